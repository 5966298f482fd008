//! ONNX `ConvTranspose`.

use alloc::vec::Vec;

use super::attributes::{Attributes, shared_attributes};
use super::dtype::DType;
use super::geometry::{Geometry, Layout};
use super::op::Op;
use super::padding::AutoPad;
use crate::error::Error;

/// ONNX `ConvTranspose`: W's shape, and the attributes by their ONNX names.
///
/// X is (N, C, D1, D2, ...), W is (C, M/group, k1, k2, ...), B is (M), Y is (N, M, O1, O2, ...),
/// with one or more spatial axes. The builder stores what it is given;
/// [`geometry`](ConvTranspose::geometry) checks everything.
///
/// The natural size of an axis is `n = stride * (D - 1) + output_padding + (k - 1) * dilation +
/// 1`. The output size `O` is:
/// - with `output_shape`: the size that it gives; `pads` do not count;
/// - else with `auto_pad` SAME_UPPER or SAME_LOWER: `O = D * stride`;
/// - else: `O = n - begin - end` (VALID: `O = n`).
///
/// In the first two cases, `n - O` elements are cut off. If their number is odd, the extra one is
/// cut at the end with SAME_UPPER, and else at the beginning. Every opset follows opset 11 in
/// this, because the formula in opset 1's text contradicts its own description. If `O` exceeds
/// `n`, by less than `stride`, the rest is a tail of zeros (plus bias).
///
/// A list attribute must have its full length if it is given: an empty list is an error, not the
/// default.
///
/// ```
/// use convoke::ConvTranspose;
///
/// let up = ConvTranspose::new([128, 64, 2, 2]).strides([2, 2]);
/// assert_eq!(up.geometry(&[1, 128, 32, 32])?.output_shape(), [1, 64, 64, 64]);
///
/// let to_shape = ConvTranspose::new([1, 2, 3, 3]).strides([3, 2]).output_shape([10, 8]);
/// assert_eq!(to_shape.geometry(&[1, 1, 3, 3])?.output_shape(), [1, 2, 10, 8]);
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvTranspose {
    pub(super) attributes: Attributes,
}

impl ConvTranspose {
    /// A ConvTranspose with weights of shape (C, M/group, k1, k2, ...) and every attribute at its
    /// default.
    #[must_use]
    pub fn new(w_shape: impl Into<Vec<usize>>) -> Self {
        Self { attributes: Attributes::new(Op::ConvTranspose, w_shape.into()) }
    }

    /// The attribute `output_padding`: extra elements at the end of the natural size, one number
    /// per spatial axis. Each is not negative and less than the larger of stride and dilation; 0
    /// if not called.
    #[must_use]
    pub fn output_padding(mut self, output_padding: impl Into<Vec<i64>>) -> Self {
        self.attributes.output_padding = Some(output_padding.into());
        self
    }

    /// The attribute `output_shape`: Y's sizes, one per spatial axis, each at least 1. With it,
    /// `pads` do not count.
    ///
    /// A list that is longer by two is read as Y's whole shape. Its first two entries must be N
    /// and M.
    #[must_use]
    pub fn output_shape(mut self, output_shape: impl Into<Vec<i64>>) -> Self {
        self.attributes.output_shape = Some(output_shape.into());
        self
    }
}

shared_attributes!(ConvTranspose);
