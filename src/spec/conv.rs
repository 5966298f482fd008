//! ONNX `Conv`.

use alloc::vec::Vec;

use super::attributes::{Attributes, shared_attributes};
use super::dtype::DType;
use super::geometry::{Geometry, Layout};
use super::op::Op;
use super::padding::AutoPad;
use crate::error::Error;

/// ONNX `Conv`: W's shape, and the attributes by their ONNX names.
///
/// X is (N, C, D1, D2, ...), W is (M, C/group, k1, k2, ...), B is (M), Y is (N, M, O1, O2, ...),
/// with one or more spatial axes. The builder stores what it is given;
/// [`geometry`](Conv::geometry) checks everything.
///
/// With `e = (k - 1) * dilation + 1`, the output size of a spatial axis is:
/// - `auto_pad` NOTSET: `O = floor((D + begin + end - e) / stride) + 1`; VALID is the same
///   without padding;
/// - SAME_UPPER and SAME_LOWER: `O = ceil(D / stride)`, with a total padding of `max(0, (O - 1) *
///   stride + e - D)`.
///
/// A list attribute must have its full length if it is given: an empty list is an error, not the
/// default.
///
/// ```
/// use convoke::{AutoPad, Conv};
///
/// let conv = Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]);
/// assert_eq!(conv.geometry(&[1, 3, 224, 224])?.output_shape(), [1, 64, 112, 112]);
///
/// let same = Conv::new([8, 1, 3]).group(8).strides([2]).auto_pad(AutoPad::SameUpper);
/// assert_eq!(same.geometry(&[2, 8, 9])?.output_shape(), [2, 8, 5]);
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv {
    pub(super) attributes: Attributes,
}

impl Conv {
    /// A Conv with weights of shape (M, C/group, k1, k2, ...) and every attribute at its default.
    #[must_use]
    pub fn new(w_shape: impl Into<Vec<usize>>) -> Self {
        Self { attributes: Attributes::new(Op::Conv, w_shape.into()) }
    }
}

shared_attributes!(Conv);
