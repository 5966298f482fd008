//! The configured lowering: packing, and what a task does.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{Ahead, DepthwiseKernels, Dest, Epilogue, FlatInput, FlatTaps, Isa, Real};

use super::plan::{GroupedBlocks, GroupedPanel, TileRun};
use super::planes::GroupedPlanes;
use crate::Geometry;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Line, Piece};
use crate::lower::contract::{Io, Lowering};
use crate::lower::sink::Finish;

pub(super) struct Grouped<T: Element> {
    pub(super) geometry: Geometry,
    pub(super) isa: Isa,
    pub(super) finish: Finish<T::Acc>,
    /// The kernels that copy X into planes.
    pub(super) copy_kernels: Option<&'static DepthwiseKernels<T::Acc>>,
    pub(super) planes: GroupedPlanes,
    pub(super) taps: FlatTaps,
    pub(super) lanes: usize,
    pub(super) panels: Vec<GroupedPanel<T::Acc>>,
    pub(super) blocks: GroupedBlocks,
    /// The scratch of a task: see [`GroupedBuffers`].
    pub(super) copy: Piece<T::Acc>,
    pub(super) widened: Piece<T::Acc>,
    pub(super) sums: Piece<T::Acc>,
}

impl<T: Element> Split for Grouped<T> {
    fn tasks(&self) -> usize {
        self.blocks.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (outputs, positions) = (self.geometry.out_channels_per_group(), self.geometry.output_spatial());
        for (image, group, blocks) in self.blocks.task_units(task).map(|unit| self.place(unit)) {
            let at = |block: usize| (block * self.blocks.vectors * self.lanes).min(positions);
            let channels = group * outputs..(group + 1) * outputs;
            patch(Patch::rows(image..image + 1, channels, at(blocks.start)..at(blocks.end), positions));
        }
    }
}

impl<T: Element> Lowering<T> for Grouped<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let GroupedPlanes { h, w: along, .. } = &self.planes;
        let (channels, outputs, steps) =
            (self.geometry.in_channels_per_group(), self.geometry.out_channels_per_group(), self.taps.steps());
        let mut packed = packed.iter_mut();
        for group in 0..self.geometry.group {
            let mut row = group * outputs;
            for panel in &self.panels {
                for kx in 0..along.kernel {
                    for c in 0..channels {
                        for ky in 0..h.kernel {
                            let tap = (c * h.kernel + ky) * along.kernel + kx;
                            for (i, packed) in packed.by_ref().take(panel.height).enumerate() {
                                *packed = w[(row + i) * steps + tap].to_acc();
                            }
                        }
                    }
                }
                row += panel.height;
            }
        }
    }

    /// A share of the units.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let (copy, widened, sums) = (arena.get(self.copy), arena.get(self.widened), arena.get(self.sums));
        if self.planes.is_ragged() {
            // Copies do not write where X has no element.
            copy.fill(T::Acc::ZERO);
        }
        let buffers = &mut GroupedBuffers { copy, widened, sums };
        for unit in self.blocks.task_units(task) {
            self.unit(unit, io, buffers);
        }
    }
}

/// The scratch of a task.
struct GroupedBuffers<'a, A> {
    /// The planes of a group.
    copy: &'a mut [A],
    /// A channel of X of a 16-bit type, before it is split into planes.
    widened: &'a mut [A],
    /// Sums that kernels do not store into Y.
    sums: &'a mut [A],
}

/// What the output channels of one group of one image are summed from.
struct GroupSource<'a, A> {
    image: usize,
    group: usize,
    /// The group's input channels, in planes or in X itself.
    x: &'a [A],
    /// X from the next group on, to be fetched ahead; empty if it is of a 16-bit type.
    next: &'a [A],
}

impl<T: Element> Grouped<T> {
    /// The image, group and blocks of a unit.
    fn place(&self, unit: usize) -> (usize, usize, Range<usize>) {
        let (group, blocks) = self.blocks.unit(unit);
        (group / self.geometry.group, group % self.geometry.group, blocks)
    }

    fn unit(&self, unit: usize, io: &Io<'_, T>, buffers: &mut GroupedBuffers<'_, T::Acc>) {
        let GroupedBuffers { copy, widened, sums } = buffers;
        let geometry = &self.geometry;
        let (image, group, blocks) = self.place(unit);
        let spatial = geometry.input_spatial();
        let channels = geometry.in_channels_per_group();
        let (x, next) =
            io.x[(image * geometry.in_channels + group * channels) * spatial..].split_at(channels * spatial);
        let x = match T::as_acc(x) {
            Some(x) if !self.planes.is_strided() => x,
            _ => {
                let block_len = self.blocks.vectors * self.lanes;
                let window = self.taps.window(blocks.start * block_len, blocks.end * block_len);
                let width = self.planes.w.output;
                let rows = window.start / width..window.end.div_ceil(width);
                for (x, planes) in x.chunks_exact(spatial).zip(copy.chunks_exact_mut(self.planes.pitch)) {
                    self.planes.fill(self.isa, self.copy_kernels, x, rows.clone(), planes, widened);
                }
                copy
            }
        };
        let source = GroupSource { image, group, x, next: T::as_acc(next).unwrap_or(&[]) };
        for block in blocks {
            self.block(block, &source, io, sums);
        }
    }

    /// All output channels of a block of positions.
    fn block(&self, block: usize, source: &GroupSource<'_, T::Acc>, io: &Io<'_, T>, sums: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let spatial = geometry.output_spatial();
        let first = block * self.blocks.vectors;
        let (from, to) = (first * self.lanes, ((first + self.blocks.vectors) * self.lanes).min(spatial));
        let &GroupSource { image, group, x, next } = source;
        let mut row = group * geometry.out_channels_per_group();
        for (i, panel) in self.panels.iter().enumerate() {
            let runs = &panel.runs[usize::from(block + 1 == self.blocks.count)];
            let steps: usize = runs.iter().map(|run| run.vectors.div_ceil(run.kernel.nrv()) * self.taps.steps()).sum();
            // The first panel of a block fetches the block's share of the next group, a part of it
            // with each step.
            let share = geometry.in_channels_per_group() * geometry.input_spatial() / self.blocks.count;
            let step = share.div_ceil(steps.max(1));
            let next = if i == 0 { next.get(block * share..).unwrap_or(&[]) } else { &[] };
            let w = &io.weights[row * self.taps.steps()..(row + panel.height) * self.taps.steps()];
            let bias = &io.bias[row..row + panel.height];
            let at = (image * geometry.out_channels + row) * spatial + from;
            let mut done = 0;
            let mut call =
                |run: &TileRun<T::Acc>, y: &mut Dest<'_, T::Acc>, ldy: usize, epilogue: &Epilogue<'_, T::Acc>| {
                    let ahead = next.get(done * step..).map_or(Ahead::NONE, |next| Ahead::rows(next, step));
                    done += run.vectors.div_ceil(run.kernel.nrv()) * self.taps.steps();
                    let (first, vectors) = (first + run.first, run.vectors);
                    let offset = run.first * self.lanes;
                    let input = FlatInput { taps: &self.taps, w, x, ahead, first, vectors };
                    run.kernel.run(&input, &mut y.from(offset), ldy, &epilogue.from(offset));
                };
            let sink = self.finish.sink(io);
            let stores = [Stores::row(at, to - from).times(panel.height, spatial)];
            let stored = sink.direct(at, bias, stores, |mut y, epilogue| {
                runs.iter().for_each(|run| call(run, &mut y, spatial, &epilogue));
            });
            if stored.is_none() {
                let epilogue = sink.staging(bias);
                let mut y = Dest::from_slice(sums);
                runs.iter().for_each(|run| call(run, &mut y, to - from, &epilogue));
                sink.staged_rows(&mut sums[..panel.height * (to - from)], to - from, (at, spatial));
            }
            row += panel.height;
        }
    }
}
