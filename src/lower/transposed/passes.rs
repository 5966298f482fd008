//! The tables of the products: which taps, rows of B and weights each phase has.

use alloc::vec::Vec;

use convoke_kernels::{Real, RowOffsets};

use super::phases::AxisPhases;
use super::plan::PhasePlan;
use super::tiles::block_channels;
use crate::lower::engine::RowPanels;
use crate::lower::planes::{for_each_position, step_of};

/// Channels whose taps follow each other in K. The rows of B that taps share are then still in
/// the L1 cache.
const INNER_CHANNELS: usize = 16;

/// One phase of the axes before the last.
pub(super) struct OuterPhase {
    /// The phase of each of these axes.
    pub(super) r: Vec<usize>,
    /// For each tap on these axes, its position in the kernel.
    pub(super) taps: Vec<usize>,
    /// The products, by classes of phases of the last axis. Empty if there are no taps.
    pub(super) passes: Vec<PhasePass>,
}

/// The products of an [`OuterPhase`] for one class of phases of the last axis.
pub(super) struct PhasePass {
    /// The index of the class, its first slot, and its number of phases.
    pub(super) class: usize,
    pub(super) slot: usize,
    pub(super) phases: usize,
    /// How its rows are cut, for the taller panels of channels and for the lower ones.
    pub(super) subpanels: [RowPanels; 2],
    pub(super) taps: usize,
    /// Channels of a block of K.
    pub(super) block: usize,
    /// The rows of B, for a full block of K and for the last one.
    pub(super) koff: [RowOffsets; 2],
    /// Values of the packed weights before those of this pass, for each output channel of a panel
    /// and channel of X.
    pub(super) before: usize,
}

impl OuterPhase {
    /// All phases of the axes before the last. Packed weights are in their order.
    pub(super) fn all<A: Real>(plan: &PhasePlan<A>, channels: usize) -> Vec<Self> {
        let outer = &plan.phases[..plan.phases.len() - 1];
        let counts: Vec<_> = outer.iter().map(|p| p.axis.stride).collect();
        let mut all = Vec::with_capacity(counts.iter().product());
        let mut before = 0;
        for_each_position(&counts, |r| {
            let (taps, offsets) = outer_taps(outer, r, &plan.planes.pitches);
            let classes = if taps.is_empty() { 0 } else { plan.slots.classes.len() };
            let mut slot = 0;
            let passes = (0..classes).map(|class| {
                let pass = PhasePass { slot, before, ..PhasePass::new(plan, channels, &offsets, class) };
                slot += pass.phases;
                before += pass.phases * pass.taps;
                pass
            });
            let passes = passes.collect();
            all.push(Self { r: r.to_vec(), taps, passes });
        });
        all
    }
}

/// For each tap of phase `r` of the axes before the last, its position in the kernel, and how far
/// its view is from the beginning of a plane.
fn outer_taps(outer: &[AxisPhases], r: &[usize], pitches: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let taps_of: Vec<_> = outer.iter().zip(r).map(|(p, r)| &p.taps[*r]).collect();
    let lengths: Vec<_> = taps_of.iter().map(|taps| taps.len()).collect();
    let (mut taps, mut offsets) = (Vec::new(), Vec::new());
    for_each_position(&lengths, |index| {
        let (mut k, mut offset) = (0, 0);
        for (i, t) in index.iter().enumerate() {
            k = k * outer[i].axis.kernel + taps_of[i][*t].k;
            offset += taps_of[i][*t].shift * pitches[i];
        }
        taps.push(k);
        offsets.push(offset);
    });
    (taps, offsets)
}

impl PhasePass {
    /// The pass of a class, as if it were the first. `offsets` are those of the taps of the axes
    /// before the last.
    fn new<A: Real>(plan: &PhasePlan<A>, channels: usize, offsets: &[usize], class: usize) -> Self {
        let PhasePlan { phases, slots, planes, tiles, .. } = plan;
        let members = &slots.classes[class];
        let along = &phases[phases.len() - 1].taps[members[0]];
        let taps = offsets.len() * along.len();
        let block = block_channels(channels, taps);
        let last_block = channels - (channels.div_ceil(block).max(1) - 1) * block;
        let koff = [block, last_block].map(|width| {
            let row = |step: usize| {
                let (t, c) = step_of(step, width, taps, INNER_CHANNELS);
                let at = offsets[t / along.len()] + along[t % along.len()].shift;
                (c * planes.channel_len + at) as u32
            };
            RowOffsets::new((0..taps * width).map(row).collect())
        });
        let heights = [tiles.panels.height(0), tiles.panels.height(tiles.panels.count() - 1)];
        let subpanels = heights.map(|height| RowPanels::new(members.len() * height, tiles.mr));
        Self { class, slot: 0, phases: members.len(), subpanels, taps, block, koff, before: 0 }
    }

    /// The tap and the channel of step `k`.
    pub(super) fn step(&self, k: usize, channels: usize) -> (usize, usize) {
        let first = k / (self.block * self.taps) * self.block;
        let (t, c) = step_of(k - first * self.taps, self.block.min(channels - first), self.taps, INNER_CHANNELS);
        (t, first + c)
    }
}
