//! The configured lowering: packing, and the outer loops of a task.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{Isa, RowOffsets, WeaveKernel};

use super::passes::{OuterPhase, PhasePass};
use super::phases::{AxisPhases, PhaseSlots};
use super::plan::{PhaseMode, PhasePlan, PhaseScratch, PhaseSplit};
use super::planes::PhasePlanes;
use super::strips::{PairStores, PhasePanel, PhaseSums, SlabPhase};
use super::tiles::PhaseTiles;
use crate::Geometry;
use crate::element::Element;
use crate::exec::split::{Patch, Span, Split};
use crate::exec::{Arena, Line};
use crate::lower::contract::{Io, Lowering, Request};
use crate::lower::shares::Part;
use crate::lower::sink::{Finish, Sink};

pub(super) struct Transposed<T: Element> {
    pub(super) geometry: Geometry,
    /// Values of the packed weights of an output channel.
    pub(super) channel_weights: usize,
    /// Outputs of a channel.
    pub(super) positions: usize,
    isa: Isa,
    finish: Finish<T::Acc>,
    pub(super) phases: Vec<AxisPhases>,
    pub(super) slots: PhaseSlots,
    pub(super) outers: Vec<OuterPhase>,
    /// The rows of B of phases without taps: none.
    pub(super) no_rows: RowOffsets,
    pub(super) planes: PhasePlanes,
    pub(super) tiles: PhaseTiles<T::Acc>,
    pub(super) weave: &'static WeaveKernel<T::Acc>,
    pub(super) mode: PhaseMode,
    split: PhaseSplit,
    scratch: PhaseScratch<T::Acc>,
}

impl<T: Element> Transposed<T> {
    /// Makes the tables.
    pub(super) fn new(
        request: &Request<'_, T>,
        plan: PhasePlan<T::Acc>,
        split: PhaseSplit,
        scratch: PhaseScratch<T::Acc>,
        weave: &'static WeaveKernel<T::Acc>,
    ) -> Self {
        let geometry = request.geometry;
        let outers = OuterPhase::all(&plan, geometry.in_channels_per_group());
        let PhasePlan { phases, slots, planes, tiles, mode, .. } = plan;
        Self {
            geometry: geometry.clone(),
            channel_weights: geometry.in_channels_per_group() * geometry.kernel_volume(),
            positions: geometry.output_spatial(),
            isa: request.isa(),
            finish: Finish::new(request),
            phases,
            slots,
            outers,
            no_rows: RowOffsets::new(Vec::new()),
            planes: planes.with_tables(),
            tiles,
            weave,
            mode,
            split,
            scratch,
        }
    }

    /// Steps of K of a pass.
    pub(super) fn steps(&self, pass: &PhasePass) -> usize {
        self.geometry.in_channels_per_group() * pass.taps
    }

    /// The position in the kernel of tap `t` of a pass, for phase `r` of the last axis.
    fn tap(&self, outer: &OuterPhase, r: usize, t: usize) -> usize {
        let along = &self.phases[self.phases.len() - 1];
        let taps = &along.taps[r];
        outer.taps[t / taps.len()] * along.axis.kernel + taps[t % taps.len()].k
    }

    /// Panel `p` of a group, where the panels of the task end with `end`.
    pub(super) fn panel(&self, here: &SlabPhase<'_, T::Acc>, p: usize, end: usize) -> PhasePanel {
        let channel = here.group * self.geometry.out_channels_per_group() + self.tiles.panels.start(p);
        let at = (here.image * self.geometry.out_channels + channel) * self.positions;
        PhasePanel { channel, height: self.tiles.panels.height(p), has_next: p + 1 < end, at }
    }

    /// Computes some panels for one phase, and stores them.
    fn store_phase(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panels: Range<usize>,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        match self.mode {
            PhaseMode::ChannelByChannel => {
                for p in panels.clone() {
                    self.sum_channel(sink, here, &self.panel(here, p, panels.end), sums.outputs);
                }
            }
            PhaseMode::PanelByPanel => self.store_panels(sink, here, panels, sums),
            PhaseMode::Paired(mode) if sink.pairs().is_some() => {
                let pairs = PairStores { sink, mode, end: panels.end };
                self.store_pairs(here, panels, &pairs, sums);
            }
            PhaseMode::Paired(_) | PhaseMode::TileByTile => self.store_tiles(sink, here, panels, sums),
        }
    }
}

impl<T: Element> Split for Transposed<T> {
    fn tasks(&self) -> usize {
        self.split.tasks.tasks()
    }

    /// Along each axis, a task writes all phases of the slab's positions. They are neighbours.
    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.split.tasks.part(task);
        let (rows, panels) = (self.geometry.out_channels_per_group(), &self.tiles.panels);
        for group in self.split.groups(part.group) {
            let first = group * rows;
            let channels = first + panels.start(part.panels.start)..first + panels.start(part.panels.end);
            let span = |axis: usize| {
                let phases = &self.phases[axis];
                let at = |position: usize| {
                    (position * phases.axis.stride).saturating_sub(phases.cropped).min(phases.axis.output)
                };
                let positions = self.planes.positions(part.columns, axis);
                Span::new(at(positions.start)..at(positions.end), phases.axis.output)
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
                    let (members, steps) = (&self.slots.classes[pass.class], self.steps(pass));
                    let packed = &mut packed[pass.before * channels * height..][..pass.phases * height * steps];
                    pass.subpanels[usize::from(height != panels.height(0))].pack(steps, packed, |i, k| {
                        let (t, c) = pass.step(k, channels);
                        let tap = self.tap(outer, members[i / height], t);
                        w[((group * channels + c) * rows + row + i % height) * taps + tap].to_acc()
                    });
                }
            }
        }
    }

    /// Computes one share of the panels, for one slab of one batch of groups of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group: batch, columns, panels } = self.split.tasks.part(task);
        let groups = self.split.groups(batch);
        let mut arena = Arena::new(scratch);
        let planes = arena.get(self.scratch.planes);
        let mut sums = PhaseSums { sums: arena.get(self.scratch.sums), outputs: arena.get(self.scratch.outputs) };
        let slab = self.planes.slab(columns, arena.get(self.scratch.origin));
        let places = &mut arena.get(self.scratch.places)[..self.planes.rows_of(&slab)];

        let sink = self.finish.sink(io);
        let channels = geometry.in_channels_per_group();
        let x = &io.x[(image * geometry.in_channels + groups.start * channels) * geometry.input_spatial()..];
        let group_len = channels * self.planes.channel_len;
        self.planes.fill(self.isa, &self.phases, &slab, x, &mut planes[..groups.len() * group_len]);
        let vectors = self.planes.columns_of(&slab).div_ceil(self.tiles.lanes);
        for outer in &self.outers {
            self.planes.places(&self.phases, &slab, &outer.r, places);
            if places.iter().all(|place| *place == PhasePlanes::CROPPED) {
                continue;
            }
            for group in groups.clone() {
                let planes = &planes[(group - groups.start) * group_len..];
                let here = SlabPhase { image, group, outer, slab: &slab, places, planes, vectors };
                self.store_phase(&sink, &here, panels.clone(), &mut sums);
            }
        }
    }
}
