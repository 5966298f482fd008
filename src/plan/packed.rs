//! Weights in the layout of a plan's kernels.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::Isa;

use crate::Op;
use crate::choice::Algorithm;
use crate::element::{Compute, Element};
use crate::error::Error;
use crate::exec::{Line, lines_for, reserved};
use crate::lower::contract::{Lowering, Recipe};
use crate::lower::layout::WeightLayout;

/// Everything that packed weights depend on. The batch and the spatial size of X are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) op: Op,
    pub(crate) algorithm: Algorithm,
    pub(crate) isa: Isa,
    pub(crate) group: usize,
    pub(crate) weight_shape: Vec<usize>,
    /// Stride and dilation of each spatial axis, because layouts by phases depend on them.
    pub(crate) steps: Vec<(usize, usize)>,
    pub(crate) layout: WeightLayout,
}

impl Format {
    /// The first difference between these weights and those that a plan needs, with both values.
    /// None if there is no difference.
    pub(crate) fn difference(&self, plan: &Self) -> Option<String> {
        let Self { op, algorithm, isa, group, weight_shape, steps, layout } = self;
        let differ = |what: &str, packed: &dyn fmt::Display, needed: &dyn fmt::Display| {
            Some(format!("the weights were packed for {what} {packed}, the plan needs {needed}"))
        };
        let lists = |what: &str, packed: &[usize], needed: &[usize]| {
            Some(format!("the weights were packed for {what} {packed:?}, the plan needs {needed:?}"))
        };
        if *op != plan.op {
            return differ("the operator", op, &plan.op);
        }
        if *weight_shape != plan.weight_shape {
            return lists("W of shape", weight_shape, &plan.weight_shape);
        }
        if *group != plan.group {
            return differ("group", group, &plan.group);
        }
        for (axis, ((stride, dilation), (plan_stride, plan_dilation))) in steps.iter().zip(&plan.steps).enumerate() {
            if stride != plan_stride {
                return differ(&format!("spatial axis {axis} with stride"), stride, plan_stride);
            }
            if dilation != plan_dilation {
                return differ(&format!("spatial axis {axis} with dilation"), dilation, plan_dilation);
            }
        }
        if !algorithm.packs_like(plan.algorithm) {
            return differ("the algorithm", algorithm, &plan.algorithm);
        }
        if *isa != plan.isa {
            return differ("the ISA", isa, &plan.isa);
        }
        if *layout != plan.layout {
            return differ(&format!("{algorithm} as"), layout, &plan.layout);
        }
        None
    }
}

/// Packed weights in one format, as a lowering packed them.
#[derive(Clone)]
pub(crate) struct Packing<T: Element> {
    pub(crate) format: Format,
    lines: Vec<Line>,
    len: usize,
    /// One value for each output channel.
    pub(crate) bias: Vec<T::Acc>,
    /// Whether all weights are finite.
    pub(crate) is_finite: bool,
}

impl<T: Element> Packing<T> {
    /// Packs W as a lowering's recipe says.
    pub(crate) fn new(
        lowering: &dyn Lowering<T>,
        recipe: &Recipe,
        format: &Format,
        w: &[T],
        bias: Vec<T::Acc>,
    ) -> Result<Self, Error> {
        let len = recipe.packed_len;
        let mut lines = reserved(lines_for::<T::Acc>(len), format_args!("{}, packed weights", format.op))?;
        lines.resize(lines_for::<T::Acc>(len), bytemuck::Zeroable::zeroed());
        lowering.pack(w, &mut bytemuck::cast_slice_mut(&mut lines)[..len]);
        let is_finite = w.iter().all(|w| w.to_acc().is_finite_value());
        Ok(Self { format: format.clone(), lines, len, bias, is_finite })
    }

    pub(crate) fn values(&self) -> &[T::Acc] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice()) + size_of_val(self.bias.as_slice())
    }
}

/// Weights and bias, packed by [`Plan::pack`](crate::Plan::pack) for the kernels of a plan.
///
/// They do not depend on the batch and the spatial size of X. A plan for another size of X
/// accepts them if it was made by [`Planner::packed_for`](crate::Planner::packed_for). Other
/// plans reject them.
///
/// If the plan that packed them leaves out taps that see padding alone, they hold two copies: the
/// taps that it keeps, and all taps.
#[derive(Clone)]
pub struct PackedWeights<T: Element> {
    /// All taps.
    pub(crate) whole: Packing<T>,
    /// Only the taps that meet input at the size of X that they were packed for. None if all taps
    /// do.
    pub(crate) live: Option<Live<T>>,
}

/// The taps that meet input, packed.
#[derive(Clone)]
pub(crate) struct Live<T: Element> {
    /// The taps of each spatial axis.
    pub(crate) taps: Vec<Range<usize>>,
    pub(crate) packing: Packing<T>,
}

impl<T: Element> PackedWeights<T> {
    /// The algorithm of the plan that packed them. Others may pack alike:
    /// [`Planner::packed_for`](crate::Planner::packed_for) takes the cheapest of these.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.live.as_ref().map_or(&self.whole, |live| &live.packing).format.algorithm
    }

    /// Bytes of memory that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.whole.bytes() + self.live.as_ref().map_or(0, |live| live.packing.bytes())
    }
}

impl<T: Element> core::fmt::Debug for PackedWeights<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PackedWeights")
            .field("format", &self.whole.format)
            .field("live", &self.live.as_ref().map(|live| (&live.taps, &live.packing.format)))
            .field("bytes", &self.bytes())
            .finish()
    }
}
