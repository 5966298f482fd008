//! Weights in the layout of one plan's kernels.

use alloc::vec::Vec;

use convoke_kernels::Isa;

use super::Algorithm;
use crate::Op;
use crate::element::Element;
use crate::exec::Line;
use crate::lower::Layout;

/// Everything that the layout of packed weights depends on; the input's spatial size is not among it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) op: Op,
    pub(crate) algorithm: Algorithm,
    pub(crate) isa: Isa,
    pub(crate) group: usize,
    pub(crate) weight_shape: Vec<usize>,
    /// Strides and dilations: layouts by phases depend on them.
    pub(crate) steps: Vec<(usize, usize)>,
    pub(crate) layout: Layout,
}

/// Weights and bias, packed by [`Plan::pack`](crate::Plan::pack) for the kernels of a plan.
///
/// They do not depend on the input's batch and spatial size: a plan for another input size accepts them if it was made by
/// [`Planner::packed_for`](crate::Planner::packed_for). Other plans reject them.
#[derive(Clone)]
pub struct PackedWeights<T: Element> {
    pub(crate) format: Format,
    pub(crate) lines: Vec<Line>,
    pub(crate) bias: Vec<T::Acc>,
    pub(crate) len: usize,
    /// Whether all weights are finite.
    pub(crate) is_finite: bool,
}

impl<T: Element> PackedWeights<T> {
    /// The algorithm that they are packed for.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.format.algorithm
    }

    /// Bytes of memory that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice()) + size_of_val(self.bias.as_slice())
    }

    pub(crate) fn values(&self) -> &[T::Acc] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Element> core::fmt::Debug for PackedWeights<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PackedWeights").field("format", &self.format).field("bytes", &self.bytes()).finish()
    }
}
