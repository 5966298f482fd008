//! What is multiplied together, so that transformed tiles and filters are read less often.

use crate::Axis;

/// The most slices of Y in a turn. Filters that are read once for so many cost little.
pub(super) const MOST_SLICES: usize = 16;

/// What a task multiplies value by value before it takes the products back. The slices of Y are
/// computed in turns, and in each turn the panels of filters some at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Together {
    /// Panels of the task's share. Each value's transformed tiles are read once for all of them.
    pub(super) panels: usize,
    /// Slices of Y in a turn. Each value's filters are read once for all of them, and the tiles of
    /// a slice of X that several of them see, too.
    pub(super) slices: usize,
}

impl Together {
    /// One panel and one slice.
    pub(super) const ONE: Self = Self { panels: 1, slices: 1 };

    /// The slots of the ring of transformed slices of X, on the axis `depth`: the slices that a turn
    /// sees, with those between long strides, and at most all.
    pub(super) fn slots(&self, depth: &Axis) -> usize {
        let seen = (self.slices - 1).saturating_mul(depth.stride).saturating_add(depth.kernel);
        seen.min(depth.input.max(1))
    }
}
