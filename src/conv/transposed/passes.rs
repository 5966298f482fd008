//! The tables of the products: which taps, rows of B and weights each phase has.

use alloc::vec;
use alloc::vec::Vec;

use convoke_kernels::RowOffsets;

use super::tiles::blocks_of_k;
use crate::blas::Blocks;
use crate::conv::panels::StepOrder;
use crate::conv::planes::{PaddedPlanes, for_each_position};
use crate::conv::view::OutputPhases;

/// Channels whose taps follow each other in K. The rows of B that the taps share then stay in the L1
/// cache.
const INNER_CHANNELS: usize = 16;

/// The order of the last axis' phases among the sums of a tile.
pub(super) struct PhaseSlots {
    /// The phases with taps, by class. The phases of a class have equal shifts: they read the same
    /// inputs.
    pub(super) classes: Vec<Vec<usize>>,
    /// The slot of each phase among the sums. Phases with taps have slots of their own, in the order of
    /// the classes. Phases without taps share the last slot, whose sums are zero.
    pub(super) of_place: Vec<usize>,
    pub(super) with_taps: usize,
    pub(super) count: usize,
}

impl PhaseSlots {
    pub(super) fn new(along: &OutputPhases) -> Self {
        let shifts = |r: usize| along.taps[r].iter().map(|tap| tap.shift);
        let mut classes: Vec<Vec<usize>> = Vec::new();
        for r in (0..along.taps.len()).filter(|r| !along.taps[*r].is_empty()) {
            match classes.iter_mut().find(|class| shifts(class[0]).eq(shifts(r))) {
                Some(class) => class.push(r),
                None => classes.push(vec![r]),
            }
        }
        let (with_taps, phases) = (classes.iter().map(Vec::len).sum::<usize>(), along.taps.len());
        let mut of_place = vec![with_taps; phases];
        for (slot, r) in classes.iter().flatten().enumerate() {
            of_place[along.phase_place(*r)] = slot;
        }
        Self { classes, of_place, with_taps, count: with_taps + usize::from(with_taps < phases) }
    }
}

/// One phase of the axes before the last.
pub(super) struct OuterPhase {
    pub(super) r: Vec<usize>,
    /// For each tap on these axes, its position in the kernel.
    pub(super) taps: Vec<usize>,
    /// The products, by classes of phases of the last axis. Empty if there are no taps.
    pub(super) passes: Vec<PhasePass>,
}

/// The products of an [`OuterPhase`] for one class of phases of the last axis.
pub(super) struct PhasePass {
    /// The class, its first slot, and its number of phases.
    pub(super) class: usize,
    pub(super) slot: usize,
    pub(super) phases: usize,
    pub(super) taps: usize,
    /// Channels in blocks of K.
    pub(super) k: Blocks,
    /// The rows of B, for a full block of K and for the last one.
    pub(super) koff: [RowOffsets; 2],
    /// Values of the packed weights before those of this pass, for each output channel of a panel
    /// and channel of X.
    pub(super) before: usize,
}

impl OuterPhase {
    /// All phases of the outer axes, in the order of the packed weights.
    pub(super) fn all(
        phases: &[OutputPhases],
        slots: &PhaseSlots,
        planes: &PaddedPlanes,
        channels: usize,
    ) -> Vec<Self> {
        let (along, outer) = phases.split_last().expect("a geometry has an axis");
        let counts: Vec<_> = outer.iter().map(|p| p.axis.stride).collect();
        let mut all = Vec::with_capacity(counts.iter().product());
        let mut before = 0;
        for_each_position(&counts, |r| {
            let (taps, offsets) = outer_taps(outer, r, planes.pitches());
            let mut passes = Vec::new();
            let mut slot = 0;
            for (class, members) in slots.classes.iter().enumerate().filter(|_| !taps.is_empty()) {
                let shifts = along.taps[members[0]].iter().map(|tap| tap.shift);
                let views: Vec<_> = offsets.iter().flat_map(|at| shifts.clone().map(move |shift| at + shift)).collect();
                let (taps, phases) = (views.len(), members.len());
                let (k, koff) = rows_of_b(&views, channels, planes.channel_len);
                passes.push(PhasePass { class, slot, phases, taps, k, koff, before });
                slot += phases;
                before += phases * taps;
            }
            all.push(Self { r: r.to_vec(), taps, passes });
        });
        all
    }
}

/// For each tap of phase `r` of the outer axes: its position in the kernel, and the offset of its view
/// in a plane.
fn outer_taps(outer: &[OutputPhases], r: &[usize], pitches: &[usize]) -> (Vec<usize>, Vec<usize>) {
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

/// The order of K within a block of some channels.
fn inner_order(channels: usize, taps: usize) -> StepOrder {
    StepOrder { channels, taps, block: INNER_CHANNELS }
}

/// The blocks of K, and the rows of B of a full block and of the last one. `views` are the
/// offsets of the taps' views in a plane.
fn rows_of_b(views: &[usize], channels: usize, channel_len: usize) -> (Blocks, [RowOffsets; 2]) {
    let taps = views.len();
    let k = blocks_of_k(channels, taps);
    let koff = k.lens().map(|width| {
        let row = |step: usize| {
            let (t, c) = inner_order(width, taps).step(step);
            (c * channel_len + views[t]) as u32
        };
        RowOffsets::new((0..taps * width).map(row).collect())
    });
    (k, koff)
}

impl PhasePass {
    /// The tap and the channel of step `k`.
    pub(super) fn step(&self, k: usize) -> (usize, usize) {
        let block = self.k.range(k / (self.k.size() * self.taps));
        let (t, c) = inner_order(block.len(), self.taps).step(k - block.start * self.taps);
        (t, block.start + c)
    }
}
