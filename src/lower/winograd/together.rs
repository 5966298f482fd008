//! What is multiplied together, so that transformed tiles and filters are read less often.

use crate::Axis;

/// What a task multiplies value by value before it takes the products back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Together {
    /// Panels of the task's share. Each value's transformed tiles are read once for all of them.
    pub(super) panels: usize,
    /// Slices of Y. Each value's filters are read once for all of them.
    pub(super) slices: usize,
}

impl Together {
    /// One panel and one slice.
    pub(super) const ONE: Self = Self { panels: 1, slices: 1 };

    /// Slices of X that are seen, on the axis `depth`: the slots of the ring of transformed tiles.
    pub(super) fn slots(&self, depth: &Axis) -> usize {
        (self.slices - 1).saturating_mul(depth.stride).saturating_add(depth.kernel)
    }
}
