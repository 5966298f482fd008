//! Weights in the layout of a plan's kernels.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::Isa;

use super::memory::PackedMemory;
use crate::choice::Algorithm;
use crate::element::{Element, all_finite};
use crate::error::Error;
use crate::exec::{lines_for, reserved};
use crate::lower::contract::{Lowering, Recipe};
use crate::lower::layout::WeightLayout;
use crate::{DType, Geometry, Op};

/// The plan that packed some weights. It accepts them, and so does a plan that
/// [`Planner::packed_for`](crate::Planner::packed_for) made for them: both know their layout.
#[derive(Debug, Clone)]
pub(crate) struct Lineage(Arc<()>);

impl Lineage {
    /// One that nothing else is of.
    pub(crate) fn new() -> Self {
        Self(Arc::new(()))
    }
}

impl PartialEq for Lineage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Everything that packed weights depend on. The batch and the spatial size of X are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Format {
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) dtype: DType,
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) op: Op,
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) algorithm: Algorithm,
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) isa: Isa,
    pub(crate) group: usize,
    pub(crate) weight_shape: Vec<usize>,
    /// Stride and dilation of each spatial axis, because layouts by phases depend on them.
    pub(crate) steps: Vec<(usize, usize)>,
    pub(crate) layout: WeightLayout,
    /// Number of packed values.
    pub(crate) len: usize,
}

impl Format {
    /// The format of weights for a layer.
    pub(crate) fn new<T: Element>(geometry: &Geometry, isa: Isa, algorithm: Algorithm, recipe: &Recipe) -> Self {
        Self {
            dtype: T::DTYPE,
            op: geometry.op,
            algorithm,
            isa,
            group: geometry.group,
            weight_shape: geometry.weight_shape(),
            steps: steps(geometry),
            layout: recipe.layout.clone(),
            len: recipe.packed_len,
        }
    }

    /// Number of output channels, which is that of biases.
    ///
    /// None if the shape of W is none, which only a forged file says.
    #[cfg(feature = "save")]
    pub(crate) fn out_channels(&self) -> Option<usize> {
        match self.op {
            Op::Conv => self.weight_shape.first().copied(),
            Op::ConvTranspose => self.weight_shape.get(1)?.checked_mul(self.group),
        }
    }

    /// The first difference between these weights and those of a layer, by what a caller states:
    /// operator, W, attributes, type and ISA.
    pub(crate) fn difference_of_layer<T: Element>(&self, geometry: &Geometry, isa: Isa) -> Option<String> {
        let differ = |what: &str, packed: &dyn fmt::Display, needed: &dyn fmt::Display| {
            Some(format!("the weights were packed for {what} {packed}, the plan needs {needed}"))
        };
        let weight_shape = geometry.weight_shape();
        if self.dtype != T::DTYPE {
            return differ("the element type", &self.dtype, &T::DTYPE);
        }
        if self.op != geometry.op {
            return differ("the operator", &self.op, &geometry.op);
        }
        if self.weight_shape != weight_shape {
            let packed = &self.weight_shape;
            return Some(format!("the weights were packed for W of shape {packed:?}, the plan needs {weight_shape:?}"));
        }
        if self.group != geometry.group {
            return differ("group", &self.group, &geometry.group);
        }
        let needed = steps(geometry);
        if self.steps.len() != needed.len() {
            return differ("spatial axes", &self.steps.len(), &needed.len());
        }
        for (axis, (packed, needed)) in self.steps.iter().zip(needed).enumerate() {
            if packed.0 != needed.0 {
                return differ(&format!("spatial axis {axis} with stride"), &packed.0, &needed.0);
            }
            if packed.1 != needed.1 {
                return differ(&format!("spatial axis {axis} with dilation"), &packed.1, &needed.1);
            }
        }
        if self.isa != isa {
            return differ("the ISA", &self.isa, &isa);
        }
        None
    }
}

/// Stride and dilation of each spatial axis.
fn steps(geometry: &Geometry) -> Vec<(usize, usize)> {
    geometry.axes.iter().map(|axis| (axis.stride, axis.dilation)).collect()
}

/// Packed weights in one format, as a lowering packed them.
#[derive(Clone)]
pub(crate) struct Packing<T: Element> {
    pub(crate) format: Format,
    pub(crate) memory: PackedMemory,
    /// One value for each output channel.
    pub(crate) bias: Vec<T::Acc>,
    /// Whether all values are finite. If not, they are W as given, for the definition's loops.
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
        let mut packing = Self { format: format.clone(), memory: PackedMemory::Owned(lines), bias, is_finite: false };
        packing.is_finite = all_finite(packing.values());
        Ok(packing)
    }

    pub(crate) fn values(&self) -> &[T::Acc] {
        &bytemuck::cast_slice(self.memory.lines())[..self.format.len]
    }

    fn bytes(&self) -> usize {
        size_of_val(self.memory.lines()) + size_of_val(self.bias.as_slice())
    }
}

/// Weights and bias, packed by [`Plan::pack`](crate::Plan::pack) for the kernels of a plan.
///
/// They are accepted by the plan that packed them, and by plans that
/// [`Planner::packed_for`](crate::Planner::packed_for) made for them: for X of another batch and
/// spatial size. All other plans reject them, also those of the same layer
/// ([`Plan::accepts`](crate::Plan::accepts)).
///
/// If the plan that packed them leaves out taps that see padding alone, they hold two copies: the
/// taps that it keeps, and all taps.
///
/// Where a weight is not finite, a plan of any algorithm packs W as it is, and runs the loops of the
/// definition on it, `naive`: that is right, and slow.
///
/// Threads share them by reference; a clone copies them. W itself is not needed any more.
///
/// ```
/// use convoke::{Conv, PackedWeights, Planner, Threads, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 1, 1]), &[1, 3, 8, 8])?;
/// let packed: PackedWeights<f32> = plan.pack(&[0.5; 4 * 3], Some(&[1.0; 4]))?;
/// assert_eq!(packed.algorithm(), plan.algorithm());
/// let mut y = vec![0.0; plan.geometry().output_len()];
/// plan.run(&[2.0; 3 * 8 * 8], &packed, &mut y, &mut Workspace::for_plan(&plan)?, Threads::Serial)?;
/// assert_eq!(y[0], 4.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PackedWeights<T: Element> {
    /// All taps.
    pub(crate) whole: Packing<T>,
    /// Only the taps that meet input at the size of X that they were packed for. None if all taps
    /// do.
    pub(crate) live: Option<Live<T>>,
    pub(crate) lineage: Lineage,
}

/// The taps that meet input, packed.
#[derive(Clone)]
pub(crate) struct Live<T: Element> {
    /// The taps of each spatial axis.
    pub(crate) taps: Vec<Range<usize>>,
    pub(crate) packing: Packing<T>,
}

impl<T: Element> PackedWeights<T> {
    /// The algorithm that they are packed for: that of the plan, or `naive` if a weight is not
    /// finite. Others may pack alike:
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
            .field("is_finite", &self.whole.is_finite)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of a Conv of 8 filters of 4x3x3.
    fn format(steps: Vec<(usize, usize)>) -> Format {
        Format {
            dtype: DType::F32,
            op: Op::Conv,
            algorithm: Algorithm::ImplicitGemm,
            isa: Isa::Portable,
            group: 1,
            weight_shape: alloc::vec![8, 4, 3, 3],
            steps,
            layout: WeightLayout::Panels { mr: 4 },
            len: 288,
        }
    }

    /// A saved description with fewer axes than W has was taken for that of any strides.
    #[test]
    fn a_list_of_strides_that_is_too_short_differs() {
        let geometry = crate::Conv::new([8, 4, 3, 3]).strides([1, 2]).geometry(&[1, 4, 9, 9]).unwrap();
        let mut format = format(alloc::vec![(1, 1), (2, 1)]);
        assert_eq!(format.difference_of_layer::<f32>(&geometry, Isa::Portable), None);
        format.steps.pop();
        let difference = format.difference_of_layer::<f32>(&geometry, Isa::Portable).unwrap();
        assert!(difference.contains("spatial axes 1"), "{difference}");
    }
}
