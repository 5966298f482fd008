//! What the loops of a task go over: phases, panels of channels, and strips of columns.

use core::ops::Range;

use convoke_kernels::weave::Run;

use super::passes::OuterPhase;
use super::plan::{MOST_PAIRED_VECTORS, PairMode};
use super::planes::PhaseSlab;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::sink::Sink;

/// The most runs of outputs that one call interleaves, for a strip and for a slab: their lists
/// are on the stack.
pub(super) const STRIP_RUNS: usize = 8;
pub(super) const SLAB_RUNS: usize = 32;

/// One phase of the outer axes, for one slab of one group of one image: what its panels and
/// strips share.
pub(super) struct SlabPhase<'t, A> {
    pub(super) image: usize,
    pub(super) group: usize,
    pub(super) outer: &'t OuterPhase,
    pub(super) slab: &'t PhaseSlab<'t>,
    /// Where each row of the slab goes in a channel of Y: [`PhasePlanes::places`].
    ///
    /// [`PhasePlanes::places`]: super::planes::PhasePlanes::places
    pub(super) places: &'t [usize],
    /// The planes of the group.
    pub(super) planes: &'t [A],
    /// Vectors of columns of the slab.
    pub(super) vectors: usize,
}

/// Scratch for sums on their way into Y.
pub(super) struct PhaseSums<'t, A> {
    /// The sums of a panel.
    pub(super) sums: &'t mut [A],
    /// Outputs of some channels, if kernels do not store into Y.
    pub(super) outputs: &'t mut [A],
}

/// How a task stores pairs.
pub(super) struct PairStores<'t, 'a, 'b, T: Element> {
    pub(super) sink: &'t Sink<'a, 'b, T>,
    pub(super) mode: PairMode,
    /// The number of the panel behind the task's last one.
    pub(super) end: usize,
}

/// A strip of a slab's columns, as wide as a tile. It is changed in place and never moved, for
/// the same reason as [`PhasePanel`] has no slices.
#[derive(Default)]
pub(super) struct PhaseStrip {
    pub(super) vectors: Range<usize>,
    /// The strip's runs of outputs are the first `count` of the list. The strip may have more of
    /// them, from row `row` of the slab on, if the list is full.
    pub(super) runs: [Run; STRIP_RUNS],
    pub(super) count: usize,
    pub(super) row: usize,
    /// Where the pairs of each vector go in a channel of Y. Valid if pairs are stored.
    pub(super) places: [usize; MOST_PAIRED_VECTORS],
}

impl PhaseStrip {
    /// Finds where the pairs of outputs of each vector go. Returns whether pairs can be stored:
    /// each vector has pairs of one run only, and none of them is cropped.
    pub(super) fn find_pairs(&mut self, lanes: usize) -> bool {
        let runs = &self.runs[..self.count];
        for (vector, place) in self.places[..self.vectors.len()].iter_mut().enumerate() {
            let Some(run) = runs.iter().rfind(|run| run.from <= vector * lanes) else { return false };
            // The run may begin with the second output of its first pair.
            let Some(first) = (2 * (vector * lanes - run.from)).checked_sub(run.phase) else { return false };
            if first + 2 * lanes > run.len {
                return false;
            }
            *place = run.at + first;
        }
        true
    }
}

/// A panel of output channels. It has no slices: they are made where they are used. A slice is a
/// pointer and a length. If both are written to the stack and copied as one value, the copy waits
/// for all stores before it, those of the last tile into Y too.
pub(super) struct PhasePanel {
    /// The first channel, counted over all groups, and the number of channels.
    pub(super) channel: usize,
    pub(super) height: usize,
    /// Whether the task has another panel behind this one.
    pub(super) has_next: bool,
    /// The first element of its first channel in Y.
    pub(super) at: usize,
}

impl PhasePanel {
    /// What is stored of some runs of each of its channels, which have `positions` outputs each.
    pub(super) fn stores(&self, runs: &[Run], positions: usize) -> impl Iterator<Item = Stores> + Clone {
        runs.iter().map(move |run| Stores::row(self.at + run.at, run.len).times(self.height, positions))
    }
}
