//! One spatial axis. Every size formula of the two operators is in this file.
//!
//! Formulas are evaluated in `i128`, where no product or sum of these 64-bit sizes can overflow,
//! and narrowed once at the end. Accepted sizes fit `isize`, so the positions that a kernel
//! computes from an [`Axis`] fit too.

use core::{fmt, ops::Range};

use super::op::Op;
use crate::error::{Error, bail};

/// One spatial axis of a validated convolution.
///
/// Let `x` be an input position, `o` an output position and `k` a kernel tap along this axis.
/// Conv reads `x = o * stride + k * dilation - pad_begin`. ConvTranspose adds to `o = x * stride
/// + k * dilation - pad_begin`.
///
/// An axis that [`Conv::geometry`](super::Conv::geometry) or
/// [`ConvTranspose::geometry`](super::ConvTranspose::geometry) returned has these properties:
/// `kernel`, `output`, `stride` and `dilation` are at least 1.
/// [`effective_kernel`](Axis::effective_kernel), `input + pad_begin + pad_end` and, for
/// ConvTranspose, `output + pad_begin + pad_end` are at most `isize::MAX`. The methods rely on
/// them, and may panic on an axis without them.
///
/// ```
/// let g = convoke::Conv::new([8, 3, 3]).strides([2]).pads([1, 1]).geometry(&[1, 3, 10])?;
/// let axis = g.axes[0];
/// assert_eq!((axis.input, axis.output), (10, 5));
/// assert_eq!(axis.input_position(0, 0), None); // the padding at the head
/// assert_eq!(axis.input_position(0, 1), Some(0));
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Elements of X along the axis.
    pub input: usize,
    /// Kernel taps along the axis, at least 1.
    pub kernel: usize,
    /// Elements of Y along the axis.
    pub output: usize,
    /// Stride, at least 1.
    pub stride: usize,
    /// Distance between taps, at least 1.
    pub dilation: usize,
    /// Elements of padding before the first input element (Conv), or elements that are cut from
    /// the output's head (ConvTranspose).
    pub pad_begin: usize,
    /// The same at the end. If ConvTranspose has a tail of zeros, this is 0, and `output` exceeds
    /// the natural size.
    pub pad_end: usize,
}

impl Axis {
    /// An axis that changes nothing: one element, one tap. It stands for an axis that a layer
    /// lacks.
    pub(crate) const UNIT: Self =
        Self { input: 1, kernel: 1, output: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };

    /// Elements from the first tap to the last, both included: `(kernel - 1) * dilation + 1`.
    #[must_use]
    pub fn effective_kernel(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Whether Y's position `o` depends on X's position `o` and on no other: one tap, stride 1,
    /// no padding, no tail.
    #[must_use]
    pub fn is_unit(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad_begin == 0 && self.pad_end == 0 && self.output == self.input
    }

    /// Whether there is padding at either end.
    #[must_use]
    pub fn is_padded(&self) -> bool {
        self.pad_begin != 0 || self.pad_end != 0
    }

    /// Conv: the position in X that tap `tap` of output `output` reads; `None` if that is
    /// padding.
    #[must_use]
    pub fn input_position(&self, output: usize, tap: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation).checked_sub(self.pad_begin).filter(|&x| x < self.input)
    }

    /// Conv: the taps through which output `output` reads X and no padding.
    pub(crate) fn taps_of_output(&self, output: usize) -> Range<usize> {
        let at = output * self.stride;
        let first = self.pad_begin.saturating_sub(at).div_ceil(self.dilation).min(self.kernel);
        let end = (self.pad_begin + self.input).saturating_sub(at).div_ceil(self.dilation).clamp(first, self.kernel);
        first..end
    }

    /// ConvTranspose: the position in Y that input `input` adds to through tap `tap`; `None` if
    /// that is cut off.
    #[must_use]
    pub fn output_position(&self, input: usize, tap: usize) -> Option<usize> {
        (input * self.stride + tap * self.dilation).checked_sub(self.pad_begin).filter(|&o| o < self.output)
    }

    /// Conv: the outputs for which tap `tap` reads X and no padding. They are computed by
    /// division, without a search.
    #[must_use]
    pub fn outputs_of_tap(&self, tap: usize) -> Range<usize> {
        self.steps_inside(tap * self.dilation, 1, self.input, self.output)
    }

    /// ConvTranspose: the inputs whose product with tap `tap` is added to Y and not cut off.
    #[must_use]
    pub fn inputs_of_tap(&self, tap: usize) -> Range<usize> {
        self.steps_inside(tap * self.dilation, 1, self.output, self.input)
    }

    /// Conv: the outputs that read X through all of their taps, and no padding.
    #[must_use]
    pub fn interior_outputs(&self) -> Range<usize> {
        self.steps_inside(0, self.effective_kernel(), self.input, self.output)
    }

    /// ConvTranspose: the inputs whose products with all taps are added to Y.
    #[must_use]
    pub fn interior_inputs(&self) -> Range<usize> {
        self.steps_inside(0, self.effective_kernel(), self.output, self.input)
    }

    /// Conv: removes the taps at either end that see only padding, at every output. Returns the
    /// taps that are kept, and the axis with only them.
    ///
    /// The axis has the same X and the same outputs. Some taps that see only padding stay: those
    /// without which the padding would be negative, and those in the middle of the kernel that a
    /// long stride carries past a short X. The stride of a single output and the dilation of a
    /// single tap have no meaning, and become 1.
    pub(crate) fn cropped(&self) -> (Range<usize>, Self) {
        // Tap k of output o reads o * stride + k * dilation - pad_begin. A tap is before X at all
        // outputs if it is at the last one, and behind X if it is at the first one.
        let last = (self.output - 1) * self.stride;
        let before = self.pad_begin.saturating_sub(last).div_ceil(self.dilation);
        let behind = self.kernel.saturating_sub((self.pad_begin + self.input).div_ceil(self.dilation));
        let first = before.min(self.pad_begin / self.dilation);
        let taps = first..self.kernel.saturating_sub(behind.min(self.pad_end / self.dilation));
        if taps.is_empty() || taps.len() == self.kernel {
            return (0..self.kernel, *self);
        }
        let mut axis = Self {
            kernel: taps.len(),
            dilation: if taps.len() == 1 { 1 } else { self.dilation },
            pad_begin: self.pad_begin - taps.start * self.dilation,
            pad_end: self.pad_end - (self.kernel - taps.end) * self.dilation,
            ..*self
        };
        if let Some(pad_end) = (last + axis.effective_kernel()).checked_sub(axis.input + axis.pad_begin) {
            axis.pad_end = pad_end;
            axis.stride = if axis.output == 1 { 1 } else { axis.stride };
        }
        (taps, axis)
    }

    /// The steps `i` in `0..steps` for which all of the `span` positions from `i * stride +
    /// offset - pad_begin` on are in `0..extent`. An empty range is returned as `0..0`.
    fn steps_inside(&self, offset: usize, span: usize, extent: usize, steps: usize) -> Range<usize> {
        let start = self.pad_begin.saturating_sub(offset).div_ceil(self.stride);
        // The last step begins at `extent - span`. The sum is arranged so that no subtraction
        // goes below zero.
        let end = match (extent + self.pad_begin).checked_sub(offset + span) {
            Some(last) => (last / self.stride + 1).min(steps),
            None => 0,
        };
        if start < end { start..end } else { 0..0 }
    }
}

/// The name of an axis, with which every message about one axis begins: "Conv: spatial axis 0".
#[derive(Debug, Clone, Copy)]
pub(super) struct AxisName {
    pub(super) op: Op,
    pub(super) index: usize,
}

impl fmt::Display for AxisName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: spatial axis {}", self.op, self.index)
    }
}

/// An axis before its padding is known. The formulas of `auto_pad` and `output_shape` start from
/// it.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnpaddedAxis {
    op: Op,
    index: usize,
    pub(super) input: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    effective: usize,
}

impl UnpaddedAxis {
    /// `input` and `kernel` must be at most `isize::MAX`, the others at least 1.
    pub(super) fn new(
        op: Op,
        index: usize,
        input: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
    ) -> Result<Self, Error> {
        let name = AxisName { op, index };
        if kernel == 0 {
            bail!(InvalidShape, "{name}: W has kernel size 0, must be at least 1");
        }
        let effective = (wide(kernel) - 1) * wide(dilation) + 1;
        let Some(effective) = narrow(effective) else {
            bail!(
                Overflow,
                "{name}: effective kernel (kernel {kernel} - 1) * dilation {dilation} + 1 \
                 exceeds the address space"
            );
        };
        Ok(Self { op, index, input, kernel, stride, dilation, effective })
    }

    pub(super) fn name(&self) -> AxisName {
        AxisName { op: self.op, index: self.index }
    }

    /// Conv, SAME: `ceil(input / stride)`.
    fn conv_same_output(&self) -> usize {
        self.input.div_ceil(self.stride)
    }

    /// Conv, SAME: the total padding that gives [`conv_same_output`](Self::conv_same_output),
    /// never negative.
    ///
    /// A kernel shorter than the stride would need negative padding. It is clamped to zero, and
    /// the sampling grid still starts at X's first element.
    pub(super) fn conv_same_total(&self) -> Result<usize, Error> {
        let output = wide(self.conv_same_output());
        let total = (output - 1) * wide(self.stride) + wide(self.effective) - wide(self.input);
        self.size("SAME padding", total.max(0))
    }

    /// Conv with explicit padding: `floor((input + begin + end - effective kernel) / stride) + 1`.
    pub(super) fn conv(&self, begin: usize, end: usize) -> Result<Axis, Error> {
        let padded = self.size("padded input", wide(self.input) + wide(begin) + wide(end))?;
        // This check comes before the division, which would round a negative quotient towards
        // zero and give 1 output.
        if padded < self.effective {
            bail!(
                InvalidShape,
                "{}: padded input {padded} ({} + pads {begin} + {end}) is smaller than the effective kernel {} \
                 (kernel {}, dilation {})",
                self.name(),
                self.input,
                self.effective,
                self.kernel,
                self.dilation
            );
        }
        Ok(self.axis((padded - self.effective) / self.stride + 1, begin, end))
    }

    /// ConvTranspose without padding: `stride * (input - 1) + output_padding + effective kernel`.
    /// It is at most `isize::MAX`, and not positive if `input` is 0 and the stride large.
    pub(super) fn transposed_natural(&self, output_padding: usize) -> Result<i128, Error> {
        let natural = wide(self.stride) * (wide(self.input) - 1) + wide(output_padding) + wide(self.effective);
        self.size("output size", natural.max(0))?;
        Ok(natural)
    }

    /// ConvTranspose, SAME: `input * stride`.
    pub(super) fn transposed_same_output(&self) -> Result<usize, Error> {
        self.size("output size input * stride", wide(self.input) * wide(self.stride))
    }

    /// ConvTranspose with explicit padding: the output size `natural - begin - end`.
    pub(super) fn transposed_output(&self, natural: i128, begin: usize, end: usize) -> Result<usize, Error> {
        let output = natural - wide(begin) - wide(end);
        if output <= 0 {
            bail!(
                InvalidShape,
                "{}: output size {output} (natural size {natural} - pads {begin} - {end}) must be at least 1",
                self.name()
            );
        }
        self.size("output size", output)
    }

    /// ConvTranspose with output size and padding chosen.
    pub(super) fn transposed(&self, output: usize, begin: usize, end: usize) -> Result<Axis, Error> {
        self.size("output size with padding", wide(output) + wide(begin) + wide(end))?;
        self.size("input size with padding", wide(self.input) + wide(begin) + wide(end))?;
        Ok(self.axis(output, begin, end))
    }

    fn axis(&self, output: usize, pad_begin: usize, pad_end: usize) -> Axis {
        let Self { input, kernel, stride, dilation, .. } = *self;
        Axis { input, kernel, output, stride, dilation, pad_begin, pad_end }
    }

    fn size(&self, what: &str, value: i128) -> Result<usize, Error> {
        match narrow(value) {
            Some(size) => Ok(size),
            None => bail!(Overflow, "{}: {what} {value} exceeds the address space", self.name()),
        }
    }
}

pub(super) fn wide(value: usize) -> i128 {
    value as i128
}

/// The value as a size, if it is in `0..=isize::MAX`.
pub(super) fn narrow(value: i128) -> Option<usize> {
    isize::try_from(value).ok().and_then(|v| usize::try_from(v).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small axes of Conv, many of which have taps that see only padding.
    fn axes() -> impl Iterator<Item = Axis> {
        let sizes = (0..5).flat_map(|input| (1..5).map(move |kernel| (input, kernel)));
        let steps = (1..4).flat_map(|stride| (1..4).map(move |dilation| (stride, dilation)));
        let pads = (0..9).flat_map(|begin| (0..9).map(move |end| (begin, end)));
        let all = sizes.flat_map(move |size| {
            let pads = pads.clone();
            steps.clone().flat_map(move |step| pads.clone().map(move |pads| (size, step, pads)))
        });
        all.filter_map(|((input, kernel), (stride, dilation), (begin, end))| {
            UnpaddedAxis::new(Op::Conv, 0, input, kernel, stride, dilation).unwrap().conv(begin, end).ok()
        })
    }

    #[test]
    fn a_cropped_axis_reads_the_same_elements() {
        for axis in axes() {
            let (taps, cropped) = axis.cropped();
            assert!(!taps.is_empty() && taps.end <= axis.kernel, "{axis:?}: {taps:?}");
            assert_eq!((cropped.kernel, cropped.input, cropped.output), (taps.len(), axis.input, axis.output));
            let padded = cropped.pad_begin + cropped.input + cropped.pad_end;
            let output = (padded - cropped.effective_kernel()) / cropped.stride + 1;
            assert_eq!(output, axis.output, "{axis:?}: {cropped:?}");
            for o in 0..axis.output {
                for tap in 0..axis.kernel {
                    let kept = taps.contains(&tap).then(|| cropped.input_position(o, tap - taps.start)).flatten();
                    assert_eq!(axis.input_position(o, tap), kept, "{axis:?}: {cropped:?}, output {o}, tap {tap}");
                }
            }
        }
    }

    /// Of the first taps those that are before X at the last output, of the last taps those that are
    /// behind X at the first output, as long as padding is left. One tap stays.
    #[test]
    fn a_cropped_axis_has_no_tap_that_could_be_left_out() {
        for axis in axes() {
            let (taps, _) = axis.cropped();
            if (0..axis.kernel).all(|tap| axis.outputs_of_tap(tap).is_empty()) {
                continue;
            }
            let is_before = |tap: usize| (axis.output - 1) * axis.stride + tap * axis.dilation < axis.pad_begin;
            let is_behind = |tap: usize| tap * axis.dilation >= axis.pad_begin + axis.input;
            let has_padding = |taps: usize, pad: usize| (taps + 1) * axis.dilation <= pad;
            let message = |end: &str| alloc::format!("{axis:?}: the {end} of {taps:?}");
            assert!(!(is_before(taps.start) && has_padding(taps.start, axis.pad_begin)), "{}", message("first"));
            let left_out = axis.kernel - taps.end;
            assert!(!(is_behind(taps.end - 1) && has_padding(left_out, axis.pad_end)), "{}", message("last"));
        }
    }
}
