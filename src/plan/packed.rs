//! Weights in the layout of a plan's kernels.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::Isa;

use super::memory::PackedMemory;
use crate::conv::contract::{Lowering, Recipe};
use crate::conv::layout::WeightLayout;
use crate::element::{Element, all_finite};
use crate::error::Error;
use crate::exec::{lines_for, reserved};
use crate::{DType, Geometry, Op};

/// Everything that packed weights depend on. The batch and the spatial size of X are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Format {
    pub(crate) layer: LayerOfWeights,
    pub(crate) layout: WeightLayout,
    pub(crate) len: usize,
}

impl Format {
    /// The format of weights for a layer.
    pub(crate) fn new<T: Element>(geometry: &Geometry, isa: Isa, recipe: &Recipe) -> Self {
        let layer = LayerOfWeights::new::<T>(geometry, isa);
        Self { layer, layout: recipe.layout.clone(), len: recipe.packed_len }
    }
}

/// The formats of weights for all taps and, if they are packed too, for the visible taps with their
/// ranges.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Formats {
    pub(crate) whole: Format,
    pub(crate) visible: Option<(Vec<Range<usize>>, Format)>,
}

/// The part that the caller's layer determines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct LayerOfWeights {
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) dtype: DType,
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) op: Op,
    #[cfg_attr(feature = "save", serde(with = "super::by_name"))]
    pub(crate) isa: Isa,
    pub(crate) group: usize,
    pub(crate) weight_shape: Vec<usize>,
    /// Stride and dilation of each spatial axis, because layouts by phases depend on them.
    pub(crate) steps: Vec<(usize, usize)>,
}

impl LayerOfWeights {
    pub(crate) fn new<T: Element>(geometry: &Geometry, isa: Isa) -> Self {
        Self {
            dtype: T::DTYPE,
            op: geometry.op,
            isa,
            group: geometry.group,
            weight_shape: geometry.weight_shape(),
            steps: geometry.axes.iter().map(|axis| (axis.stride, axis.dilation)).collect(),
        }
    }

    /// The number of output channels.
    ///
    /// None if the shape of W has no axis for them, as in a forged file.
    #[cfg(feature = "save")]
    pub(crate) fn out_channels(&self) -> Option<usize> {
        match self.op {
            Op::Conv => self.weight_shape.first().copied(),
            Op::ConvTranspose => self.weight_shape.get(1)?.checked_mul(self.group),
        }
    }

    /// The first difference between the layer of some weights and the one that needs them.
    pub(crate) fn difference(&self, needed: &Self) -> Option<String> {
        let differ = |what: &str, packed: &dyn fmt::Display, needed: &dyn fmt::Display| {
            Some(format!("the weights were packed for {what} {packed}, the plan needs {needed}"))
        };
        if self.dtype != needed.dtype {
            return differ("the element type", &self.dtype, &needed.dtype);
        }
        if self.op != needed.op {
            return differ("the operator", &self.op, &needed.op);
        }
        if self.weight_shape != needed.weight_shape {
            let [packed, needed] = [self, needed].map(|layer| format!("{:?}", layer.weight_shape));
            return differ("W of shape", &packed, &needed);
        }
        if self.group != needed.group {
            return differ("group", &self.group, &needed.group);
        }
        if self.steps.len() != needed.steps.len() {
            return differ("spatial axes", &self.steps.len(), &needed.steps.len());
        }
        for (axis, (packed, needed)) in self.steps.iter().zip(&needed.steps).enumerate() {
            if packed.0 != needed.0 {
                return differ(&format!("spatial axis {axis} with stride"), &packed.0, &needed.0);
            }
            if packed.1 != needed.1 {
                return differ(&format!("spatial axis {axis} with dilation"), &packed.1, &needed.1);
            }
        }
        if self.isa != needed.isa {
            return differ("the ISA", &self.isa, &needed.isa);
        }
        None
    }
}

/// Packed weights in one format.
pub(crate) struct Packing<T: Element> {
    pub(crate) format: Format,
    pub(crate) memory: PackedMemory,
    /// One value for each output channel.
    pub(crate) bias: Vec<T::Acc>,
}

impl<T: Element> Packing<T> {
    /// Packs W by a lowering, into its format.
    pub(super) fn new(
        (format, lowering): (&Format, &dyn Lowering<T>),
        w: &[T],
        bias: Vec<T::Acc>,
    ) -> Result<Self, Error> {
        let len = format.len;
        let mut lines = reserved(lines_for::<T::Acc>(len), format_args!("{}, packed weights", format.layer.op))?;
        lines.resize(lines_for::<T::Acc>(len), bytemuck::Zeroable::zeroed());
        lowering.pack(w, &mut bytemuck::cast_slice_mut(&mut lines)[..len]);
        Ok(Self { format: format.clone(), memory: PackedMemory::Owned(lines), bias })
    }

    pub(crate) fn values(&self) -> &[T::Acc] {
        &bytemuck::cast_slice(self.memory.lines())[..self.format.len]
    }

    pub(crate) fn is_finite(&self) -> bool {
        all_finite(self.values())
    }

    fn bytes(&self) -> usize {
        size_of_val(self.memory.lines()) + size_of_val(self.bias.as_slice())
    }
}

/// Weights and bias, packed by [`Plan::pack`](crate::Plan::pack) for the kernels of a plan.
///
/// They are accepted by every plan of the same layer and ISA whose kernels read the same layout
/// ([`Plan::accepts`](crate::Plan::accepts)). Plans for X of another batch and spatial size may choose
/// another layout, unless [`Planner::packed_for`](crate::Planner::packed_for) made them for these
/// weights.
///
/// If the plan that packed them leaves out taps that see only padding, they hold two copies: the
/// taps that it keeps, and all taps.
///
/// Where a weight is not finite, a plan of any algorithm packs W as it is, and runs the loops of the
/// definition on it: that is right, and slow ([`layout`](Self::layout) says so).
///
/// A clone is the same memory: it takes no time. W itself is not needed any more.
///
/// ```
/// use convoke::{Conv, PackedWeights, Planner, Run};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 1, 1]), &[1, 3, 8, 8])?;
/// let packed: PackedWeights<f32> = plan.pack(&[0.5; 4 * 3], Some(&[1.0; 4]))?;
/// assert_eq!(packed.layout(), plan.explain().layout());
/// let mut y = vec![0.0; plan.geometry().output_len()];
/// plan.run(Run::new(&[2.0; 3 * 8 * 8], &packed, &mut y))?;
/// assert_eq!(y[0], 4.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PackedWeights<T: Element> {
    pub(crate) parts: Arc<PackedParts<T>>,
}

/// What packed weights hold.
pub(crate) struct PackedParts<T: Element> {
    /// All taps.
    pub(crate) whole: Packing<T>,
    /// Only the taps that meet input at the size of X that they were packed for. None if all taps
    /// do.
    pub(crate) visible: Option<PackedVisible<T>>,
}

pub(crate) struct PackedVisible<T: Element> {
    /// The taps of each spatial axis.
    pub(crate) taps: Vec<Range<usize>>,
    pub(crate) packing: Packing<T>,
}

impl<T: Element> From<PackedParts<T>> for PackedWeights<T> {
    fn from(parts: PackedParts<T>) -> Self {
        Self { parts: Arc::new(parts) }
    }
}

impl<T: Element> PackedWeights<T> {
    /// How the values are laid out, as text: which plans [accept](crate::Plan::accepts) them depends on
    /// it. It says so if a weight is not finite, because the loops of the definition run then.
    #[must_use]
    pub fn layout(&self) -> String {
        let packing = self.parts.visible.as_ref().map_or(&self.parts.whole, |visible| &visible.packing);
        format!("{}", packing.format.layout)
    }

    pub(super) fn formats(&self) -> Formats {
        let PackedParts { whole, visible } = &*self.parts;
        let visible = visible.as_ref().map(|visible| (visible.taps.clone(), visible.packing.format.clone()));
        Formats { whole: whole.format.clone(), visible }
    }

    /// Bytes of memory that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.whole.bytes() + self.parts.visible.as_ref().map_or(0, |visible| visible.packing.bytes())
    }
}

impl<T: Element> core::fmt::Debug for PackedWeights<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PackedWeights")
            .field("format", &self.parts.whole.format)
            .field("visible", &self.parts.visible.as_ref().map(|visible| (&visible.taps, &visible.packing.format)))
            .field("bytes", &self.bytes())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A saved description with fewer axes than W has was taken for that of any strides.
    #[test]
    fn a_list_of_strides_that_is_too_short_differs() {
        let geometry = crate::Conv::new([8, 4, 3, 3]).strides([1, 2]).geometry(&[1, 4, 9, 9]).unwrap();
        let layer = LayerOfWeights::new::<f32>(&geometry, Isa::Portable);
        let mut forged = layer.clone();
        assert_eq!(forged.difference(&layer), None);
        forged.steps.pop();
        let difference = forged.difference(&layer).unwrap();
        assert!(difference.contains("spatial axes 1"), "{difference}");
    }
}
