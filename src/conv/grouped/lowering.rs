//! The lowering itself: packing, and what a task does.

use core::ops::Range;

use convoke_kernels::{Dest, Epilogue, FlatInput, FlatTaps, Isa, Prefetch};

use super::plan::{GroupedBlocks, GroupedTiles, TileRun};
use super::planes::GroupedPlanes;
use crate::Geometry;
use crate::conv::contract::{Io, Lowering};
use crate::conv::store::Finish;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Line, Piece};

pub(super) struct Grouped<T: Element> {
    pub(super) geometry: Geometry,
    pub(super) isa: Isa,
    pub(super) finish: Finish<T::Acc>,
    pub(super) planes: GroupedPlanes,
    pub(super) taps: FlatTaps,
    pub(super) lanes: usize,
    pub(super) tiles: GroupedTiles<T::Acc>,
    pub(super) blocks: GroupedBlocks,
    /// The planes of a group, and sums that kernels do not store into Y.
    pub(super) copy: Piece<T::Acc>,
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
        for (group, packed) in packed.chunks_exact_mut((outputs * steps).max(1)).enumerate() {
            self.tiles.panels.pack(steps, packed, |row, k| {
                let (kx, c, ky) = (k / h.kernel / channels, k / h.kernel % channels, k % h.kernel);
                w[(group * outputs + row) * steps + (c * h.kernel + ky) * along.kernel + kx].to_acc()
            });
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let (copy, sums) = (arena.get(self.copy), arena.get(self.sums));
        for unit in self.blocks.task_units(task) {
            self.unit(unit, io, copy, sums);
        }
    }
}

/// The input of the output channels of one group of one image.
struct GroupSource<'a, A> {
    image: usize,
    group: usize,
    x: &'a [A],
    /// X from the next group on, to be prefetched. Empty for a 16-bit type.
    next: &'a [A],
}

impl<T: Element> Grouped<T> {
    fn place(&self, unit: usize) -> (usize, usize, Range<usize>) {
        let (group, blocks) = self.blocks.unit(unit);
        (group / self.geometry.group, group % self.geometry.group, blocks)
    }

    fn unit(&self, unit: usize, io: &Io<'_, T>, copy: &mut [T::Acc], sums: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (image, group, blocks) = self.place(unit);
        let len = geometry.in_channels_per_group() * geometry.input_spatial();
        let (x, next) = io.x[(image * geometry.group + group) * len..].split_at(len);
        let x = match T::as_acc(x) {
            Some(x) if !self.planes.is_strided() => x,
            _ => {
                let block_len = self.blocks.vectors * self.lanes;
                let window = self.taps.window(blocks.start * block_len, blocks.end * block_len);
                let width = self.planes.w.output;
                self.planes.fill(self.isa, x, window.start / width..window.end.div_ceil(width), copy);
                copy
            }
        };
        let source = GroupSource { image, group, x, next: T::as_acc(next).unwrap_or(&[]) };
        for block in blocks {
            self.block(block, &source, io, sums);
        }
    }

    fn block(&self, block: usize, source: &GroupSource<'_, T::Acc>, io: &Io<'_, T>, sums: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let spatial = geometry.output_spatial();
        let (first, vectors) = self.blocks.block(block);
        let (from, to) = (first * self.lanes, ((first + vectors) * self.lanes).min(spatial));
        let &GroupSource { image, group, x, next } = source;
        let (panels, steps) = (&self.tiles.panels, self.taps.steps());
        for panel in 0..panels.count() {
            let (row, height) = (group * geometry.out_channels_per_group() + panels.start(panel), panels.height(panel));
            let w = &io.weights[row * steps..(row + height) * steps];
            let bias = &io.bias[row..row + height];
            let at = geometry.output_offset(image, row, from);
            let runs = || self.tiles.cover(height, vectors);
            // The first panel of a block prefetches the block's share of the next group.
            let share = geometry.in_channels_per_group() * geometry.input_spatial() / self.blocks.count;
            let tiles: usize = runs().map(|run| run.vectors.div_ceil(run.kernel.nrv())).sum();
            let next = if panel == 0 { next.get(block * share..).unwrap_or(&[]) } else { &[] };
            let call = |run: TileRun<T::Acc>, y: &mut Dest<'_, T::Acc>, ldy: usize, epilogue: &Epilogue<'_, T::Acc>| {
                let offset = run.first * self.lanes;
                let (first, vectors) = (first + run.first, run.vectors);
                let next = next.get(share * run.first / self.blocks.vectors..);
                let prefetch =
                    next.map_or(Prefetch::NONE, |next| Prefetch::rows(next, share.div_ceil((tiles * steps).max(1))));
                let input = FlatInput { taps: &self.taps, w, x, prefetch, first, vectors };
                run.kernel.run(&input, &mut y.from(offset), ldy, &epilogue.from(offset));
            };
            let store = self.finish.store(io);
            let stores = [Stores::row(at, to - from).times(height, spatial)];
            let stored = store.direct(at, bias, stores, |mut y, epilogue| {
                runs().for_each(|run| call(run, &mut y, spatial, &epilogue));
            });
            if stored.is_none() {
                let epilogue = store.staging(bias);
                let mut y = Dest::from_slice(sums);
                runs().for_each(|run| call(run, &mut y, to - from, &epilogue));
                store.staged_rows(&mut sums[..height * (to - from)], to - from, (at, spatial));
            }
        }
    }
}
