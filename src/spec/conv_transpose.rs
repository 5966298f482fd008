//! ONNX `ConvTranspose`.

use alloc::vec::Vec;

use super::attributes::{Attributes, at_least, shared_attributes};
use super::axis::{AxisName, UnpaddedAxis};
use super::dtype::DType;
use super::geometry::{Geometry, Layout};
use super::op::{MAX_SIZE, Op};
use super::padding::{self, AutoPad};
use crate::error::{Error, bail};

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
    output_padding: Option<Vec<i64>>,
    output_shape: Option<Vec<i64>>,
}

impl ConvTranspose {
    /// A ConvTranspose with weights of shape (C, M/group, k1, k2, ...) and every attribute at its
    /// default.
    #[must_use]
    pub fn new(w_shape: impl Into<Vec<usize>>) -> Self {
        Self {
            attributes: Attributes::new(Op::ConvTranspose, w_shape.into()),
            output_padding: None,
            output_shape: None,
        }
    }

    /// The attribute `output_padding`: extra elements at the end of the natural size, one number
    /// per spatial axis. Each is not negative and less than the larger of stride and dilation; 0
    /// if not called.
    #[must_use]
    pub fn output_padding(mut self, output_padding: impl Into<Vec<i64>>) -> Self {
        self.output_padding = Some(output_padding.into());
        self
    }

    /// The attribute `output_shape`: Y's sizes, one per spatial axis, each at least 1. With it,
    /// `pads` do not count.
    ///
    /// A list that is longer by two is read as Y's whole shape. Its first two entries must be N
    /// and M.
    #[must_use]
    pub fn output_shape(mut self, output_shape: impl Into<Vec<i64>>) -> Self {
        self.output_shape = Some(output_shape.into());
        self
    }

    fn checked(&self, x_shape: &[usize]) -> Result<Geometry, Error> {
        let a = &self.attributes;
        a.since_version()?;
        let [x_layout, y_layout] = a.layouts()?;
        let spatial = a.spatial_rank(x_shape)?;
        let group = a.group()?;
        let out_channels = self.check_channels(x_shape[1], group)?;
        let unpadded = a.unpadded(x_shape)?;
        let pads = a.pads(spatial)?;
        let output_padding = self.checked_output_padding(&unpadded)?;
        let output_shape = self.checked_output_shape(x_shape[0], out_channels, spatial)?;
        let axes = (0..spatial)
            .map(|i| {
                let output = output_shape.as_ref().map(|shape| shape[i]);
                padding::transposed_axis(&unpadded[i], a.auto_pad, pads[i], output_padding[i], output)
            })
            .collect::<Result<_, _>>()?;
        Geometry {
            op: Op::ConvTranspose,
            batch: x_shape[0],
            group,
            in_channels: x_shape[1],
            out_channels,
            axes,
            x_layout,
            y_layout,
        }
        .bounded()
    }

    /// Checks the channels of X and W. Returns M, the output channels of all groups.
    fn check_channels(&self, c: usize, group: usize) -> Result<usize, Error> {
        let [w_c, per_group] = [self.attributes.weight_shape[0], self.attributes.weight_shape[1]];
        if w_c != c {
            bail!(
                InvalidShape,
                "ConvTranspose: X has C = {c} channels (axis 1), W has {w_c} (axis 0), must be equal; W's order is (C, M/group, kernel)"
            );
        }
        if !c.is_multiple_of(group) {
            bail!(InvalidShape, "ConvTranspose: X's axis 1, C = {c}, must be a multiple of group ({group})");
        }
        match per_group.checked_mul(group).filter(|&m| m <= MAX_SIZE) {
            Some(m) => Ok(m),
            None => bail!(
                Overflow,
                "ConvTranspose: M = W's axis 1 ({per_group}) * group ({group}) exceeds the address space"
            ),
        }
    }

    fn checked_output_padding(&self, unpadded: &[UnpaddedAxis]) -> Result<Vec<usize>, Error> {
        let list = self.attributes.list("output_padding", self.output_padding.as_deref(), unpadded.len())?;
        let Some(list) = list else {
            return Ok(alloc::vec![0; unpadded.len()]);
        };
        unpadded
            .iter()
            .zip(list)
            .map(|(unpadded, &value)| {
                let size = at_least(0, "output_padding", value, format_args!("{}", unpadded.name()))?;
                let limit = unpadded.stride.max(unpadded.dilation);
                if size >= limit {
                    bail!(
                        InvalidAttribute,
                        "{}: output_padding {size} must be less than max(stride {}, dilation {}) = {limit}",
                        unpadded.name(),
                        unpadded.stride,
                        unpadded.dilation
                    );
                }
                Ok(size)
            })
            .collect()
    }

    /// The spatial entries of `output_shape`, checked.
    fn checked_output_shape(&self, n: usize, m: usize, spatial: usize) -> Result<Option<Vec<usize>>, Error> {
        let Some(list) = self.output_shape.as_deref() else {
            return Ok(None);
        };
        let sizes = match list.len().checked_sub(spatial) {
            Some(0) => list,
            Some(2) => {
                for (letter, given, size) in [("N", list[0], n), ("M", list[1], m)] {
                    if usize::try_from(given) != Ok(size) {
                        bail!(
                            InvalidAttribute,
                            "ConvTranspose: output_shape {list:?} has {} entries and names {letter} = {given}, \
                             must be {size}",
                            list.len()
                        );
                    }
                }
                &list[2..]
            }
            _ => bail!(
                InvalidAttribute,
                "ConvTranspose: output_shape {list:?} has {} entries, must have one per spatial axis of X \
                 ({spatial}), or N and M before those",
                list.len()
            ),
        };
        sizes
            .iter()
            .enumerate()
            .map(|(index, &size)| {
                at_least(1, "output_shape", size, format_args!("{}", AxisName { op: Op::ConvTranspose, index }))
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

shared_attributes!(ConvTranspose);
