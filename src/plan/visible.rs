//! Leaves out the taps of a Conv that see only padding at every output.
//!
//! Dilated kernels can reach beyond small images: a 3x3 kernel of dilation 36 on a 33x33 image
//! has one tap that meets input. What is left is an ordinary layer with a smaller kernel, so the
//! lowerings need not know.

use alloc::vec::Vec;
use core::ops::Range;

use crate::element::Element;
use crate::error::Error;
use crate::exec::reserved;
use crate::{Geometry, Op};

/// The taps of a layer's kernel that meet input, for a layer in which not all do.
pub(crate) struct VisibleTaps {
    /// The taps of each spatial axis.
    pub(crate) ranges: Vec<Range<usize>>,
    /// The layer with only these taps.
    pub(crate) geometry: Geometry,
}

impl VisibleTaps {
    /// None if every tap meets input.
    pub(crate) fn new(whole: &Geometry) -> Option<Self> {
        if whole.op != Op::Conv || whole.output_len() == 0 || whole.weight_len() == 0 {
            return None;
        }
        let (ranges, axes): (Vec<_>, Vec<_>) = whole.axes.iter().map(|axis| axis.cropped()).unzip();
        let geometry = Geometry { axes, ..whole.clone() };
        (geometry.kernel_volume() < whole.kernel_volume()).then_some(Self { ranges, geometry })
    }

    /// Whether these taps include `tap`, an index into the kernel.
    fn contain(&self, whole: &Geometry, mut tap: usize) -> bool {
        whole.axes.iter().zip(&self.ranges).rev().all(|(axis, range)| {
            let place = tap % axis.kernel;
            tap /= axis.kernel;
            range.contains(&place)
        })
    }

    /// The weights of these taps.
    pub(crate) fn select<T: Element>(&self, whole: &Geometry, w: &[T]) -> Result<Vec<T>, Error> {
        let mut selected = reserved(self.geometry.weight_len(), format_args!("{}, taps that meet input", whole.op))?;
        let is_visible: Vec<_> = (0..whole.kernel_volume()).map(|tap| self.contain(whole, tap)).collect();
        selected
            .extend(w.iter().zip(is_visible.iter().cycle()).filter(|(_, is_visible)| **is_visible).map(|(w, _)| *w));
        Ok(selected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conv, ConvTranspose, Operator};

    fn has_invisible_taps(operator: impl Into<Operator>, x_shape: &[usize]) -> bool {
        VisibleTaps::new(&operator.into().geometry(x_shape).unwrap()).is_some()
    }

    #[test]
    fn taps_are_left_out_only_of_conv_with_outputs_and_only_where_they_see_padding_alone() {
        let dilated = |channels| Conv::new([1, channels, 3]).dilations([9]).pads([9, 9]);
        assert!(has_invisible_taps(dilated(1), &[1, 1, 5]));
        assert!(!has_invisible_taps(dilated(1), &[0, 1, 5]), "no outputs");
        assert!(!has_invisible_taps(dilated(0), &[1, 0, 5]), "no weights");
        assert!(!has_invisible_taps(Conv::new([1, 1, 3]).pads([1, 1]), &[1, 1, 5]), "each tap meets input");
        // Its padding is cut off Y.
        assert!(!has_invisible_taps(ConvTranspose::new([1, 1, 5]).pads([1, 1]), &[1, 1, 2]));
    }
}
