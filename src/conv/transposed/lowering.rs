//! The lowering itself: packing, and the outer loops of a task.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{InterleaveKernel, Isa, RowOffsets};

use super::passes::{OuterPhase, PhaseSlots};
use super::plan::{PhaseMode, PhasePlan, PhaseScratch, PhaseSplit};
use super::tiles::PhaseTiles;
use crate::Geometry;
use crate::conv::contract::{Io, Lowering, Request};
use crate::conv::macro_kernel::a_block_bytes;
use crate::conv::planes::{OutputChunk, PaddedPlanes};
use crate::conv::shares::Part;
use crate::conv::store::Finish;
use crate::conv::view::OutputPhases;
use crate::element::Element;
use crate::exec::split::{Patch, Span, Split};
use crate::exec::{Arena, Line};
use crate::machine::NEAR_Y_BYTES;

pub(super) struct Transposed<T: Element> {
    pub(super) geometry: Geometry,
    /// Values of the packed weights of an output channel.
    pub(super) channel_weights: usize,
    /// Outputs of a channel.
    pub(super) positions: usize,
    isa: Isa,
    finish: Finish<T::Acc>,
    pub(super) phases: Vec<OutputPhases>,
    pub(super) slots: PhaseSlots,
    outers: Vec<OuterPhase>,
    /// The rows of B of phases without taps.
    pub(super) no_rows: RowOffsets,
    pub(super) planes: PaddedPlanes,
    /// The first column of each row of positions of a chunk.
    pub(super) row_columns: Vec<usize>,
    pub(super) tiles: PhaseTiles<T::Acc>,
    pub(super) interleave: &'static InterleaveKernel<T::Acc>,
    pub(super) mode: PhaseMode,
    pub(super) k_blocks: usize,
    /// Whether the panels of a phase of the outer axes stay in the L2 cache.
    pub(super) is_near: bool,
    /// Whether Y is so large that its lines are prefetched.
    pub(super) is_far: bool,
    split: PhaseSplit,
    scratch: PhaseScratch<T::Acc>,
}

/// What the panels and column tiles of one phase of the outer axes share, for one chunk of one group of
/// one image.
pub(super) struct ChunkPhase<'t, A> {
    pub(super) image: usize,
    pub(super) group: usize,
    pub(super) outer: &'t OuterPhase,
    /// The positions of the chunk along the last axis.
    pub(super) along: Range<usize>,
    /// Where each row of the chunk goes in a channel of Y; [`Transposed::CROPPED`] if padding crops it.
    pub(super) places: &'t [usize],
    pub(super) planes: &'t [A],
    pub(super) vectors: usize,
}

/// Scratch for sums.
pub(super) struct PhaseSums<'t, A> {
    pub(super) sums: &'t mut [A],
    /// Outputs of some channels, if kernels do not store into Y.
    pub(super) outputs: &'t mut [A],
}

impl<T: Element> Transposed<T> {
    pub(super) fn new(
        request: &Request<'_, T>,
        plan: PhasePlan<T::Acc>,
        split: PhaseSplit,
        scratch: PhaseScratch<T::Acc>,
        interleave: &'static InterleaveKernel<T::Acc>,
    ) -> Self {
        let geometry = request.geometry;
        let PhasePlan { phases, slots, cut, rows, tiles, mode, k_blocks, .. } = plan;
        let first = phases.iter().map(|p| p.first).collect();
        let outer_phases: usize = phases[..phases.len() - 1].iter().map(|p| p.axis.stride).product();
        let panel_bytes = geometry.weight_len() / geometry.group / outer_phases * size_of::<T::Acc>();
        let planes = PaddedPlanes::from(phases.iter().map(OutputPhases::as_conv).collect(), first, cut);
        Self {
            geometry: geometry.clone(),
            channel_weights: geometry.in_channels_per_group() * geometry.kernel_volume(),
            positions: geometry.output_spatial(),
            isa: request.isa(),
            finish: Finish::new(request),
            outers: OuterPhase::all(&phases, &slots, &planes, geometry.in_channels_per_group()),
            no_rows: RowOffsets::new(Vec::new()),
            row_columns: (0..rows).map(|row| planes.row_offset(row)).collect(),
            phases,
            slots,
            planes,
            tiles,
            interleave,
            mode,
            k_blocks,
            is_near: panel_bytes <= a_block_bytes(request.machine),
            is_far: geometry.output_len() * size_of::<T>() > NEAR_Y_BYTES,
            split,
            scratch,
        }
    }

    /// The position in the kernel of tap `t` of a pass, for phase `r` of the last axis.
    fn tap(&self, outer: &OuterPhase, r: usize, t: usize) -> usize {
        let along = &self.phases[self.phases.len() - 1];
        let taps = &along.taps[r];
        outer.taps[t / taps.len()] * along.axis.kernel + taps[t % taps.len()].k
    }

    /// Where the outputs of a row of a chunk begin in a channel of Y, for phase `r` of the outer axes.
    /// None if padding crops the row.
    fn place(&self, chunk: &OutputChunk, r: &[usize], mut row: usize) -> Option<usize> {
        let (mut at, mut step) = (0, self.phases[r.len()].axis.output);
        for (i, r) in r.iter().enumerate().rev() {
            let positions = self.planes.range(chunk, i);
            // Only the axis that is cut and those after it have several positions.
            let position = if i > chunk.axis { row % positions.len() } else { row };
            row = if i > chunk.axis { row / positions.len() } else { 0 };
            at += step * self.phases[i].output(positions.start + position, *r)?;
            step *= self.phases[i].axis.output;
        }
        Some(at)
    }
}

impl<T: Element> Split for Transposed<T> {
    fn tasks(&self) -> usize {
        self.split.tasks.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.split.tasks.part(task);
        let chunk = self.planes.chunk(part.columns);
        let (rows, panels) = (self.geometry.out_channels_per_group(), self.tiles.panels.rows(&part.panels));
        for group in self.split.groups(part.group) {
            let channels = group * rows + panels.start..group * rows + panels.end;
            let span = |axis: usize| {
                let phases = &self.phases[axis];
                Span::new(phases.outputs(&self.planes.range(&chunk, axis)), phases.axis.output)
            };
            Patch::for_each_box(part.image..part.image + 1, &channels, self.phases.len(), span, patch);
        }
    }
}

impl<T: Element> Lowering<T> for Transposed<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let (rows, panels) = (self.geometry.out_channels_per_group(), &self.tiles.panels);
        if channels == 0 {
            return;
        }
        for (group, packed) in packed.chunks_exact_mut(rows * self.channel_weights).enumerate() {
            for p in 0..panels.count() {
                let (row, height) = (panels.start(p), panels.height(p));
                let packed = &mut packed[row * self.channel_weights..];
                for (outer, pass) in self.outers.iter().flat_map(|o| o.passes.iter().map(move |pass| (o, pass))) {
                    let (members, steps) = (&self.slots.classes[pass.class], channels * pass.taps);
                    let packed = &mut packed[pass.before * channels * height..][..pass.phases * height * steps];
                    self.tiles.of_class(pass.phases, height).pack(steps, packed, |i, k| {
                        let (t, c) = pass.step(k);
                        let tap = self.tap(outer, members[i / height], t);
                        w[((group * channels + c) * rows + row + i % height) * taps + tap].to_acc()
                    });
                }
            }
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group: batch, columns, panels } = self.split.tasks.part(task);
        let groups = self.split.groups(batch);
        let mut arena = Arena::new(scratch);
        let planes = arena.get(self.scratch.planes);
        let mut sums = PhaseSums { sums: arena.get(self.scratch.sums), outputs: arena.get(self.scratch.outputs) };
        let chunk = self.planes.chunk(columns);
        let rows = self.planes.rows_of(chunk.extent);
        let places = &mut arena.get(self.scratch.places)[..rows];

        let store = self.finish.store(io);
        let channels = geometry.in_channels_per_group();
        let x = &io.x[geometry.input_offset(image, groups.start * channels, 0)..];
        let group_len = channels * self.planes.channel_len;
        self.planes.fill(self.isa, &chunk, x, &mut planes[..groups.len() * group_len]);
        let along = self.planes.range(&chunk, self.phases.len() - 1);
        let vectors = (self.row_columns[rows - 1] + along.len()).div_ceil(self.tiles.lanes);
        for outer in &self.outers {
            for (row, place) in places.iter_mut().enumerate() {
                *place = self.place(&chunk, &outer.r, row).unwrap_or(Self::CROPPED);
            }
            if places.iter().all(|place| *place == Self::CROPPED) {
                continue;
            }
            for group in groups.clone() {
                let planes = &planes[(group - groups.start) * group_len..];
                let here = ChunkPhase { image, group, outer, along: along.clone(), places, planes, vectors };
                self.store_phase(&store, &here, panels.clone(), &mut sums);
            }
        }
    }
}
