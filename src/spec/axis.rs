//! One spatial axis: every size formula of the two operators stands in this file.
//!
//! Formulas are evaluated in `i128`, where no product or sum of the 64-bit sizes involved can
//! overflow, and narrowed once at the end. What passes fits `isize`, so the positions that a kernel
//! computes from an [`Axis`] do too.

use core::{fmt, ops::Range};

use super::op::Op;
use crate::error::{Error, bail};

/// One spatial axis of a validated convolution.
///
/// With `x` an input position, `o` an output position and `k` a kernel tap along this axis: Conv
/// reads `x = o * stride + k * dilation - pad_begin`; ConvTranspose adds to `o = x * stride + k *
/// dilation - pad_begin`.
///
/// In an axis that [`Conv::geometry`](super::Conv::geometry) or [`ConvTranspose::geometry`](super::ConvTranspose::geometry)
/// returned, `kernel`, `output`, `stride` and `dilation` are at least 1, and [`effective_kernel`](Axis::effective_kernel),
/// `input + pad_begin + pad_end` and, for ConvTranspose, `output + pad_begin + pad_end` are at most `isize::MAX`. The
/// methods rely on that: on an axis put together by hand they may panic.
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
    /// Elements of padding before the first input element (Conv), or cut from the output's head
    /// (ConvTranspose).
    pub pad_begin: usize,
    /// Likewise at the end. For ConvTranspose with a zero tail this is 0, and `output` exceeds the
    /// natural size.
    pub pad_end: usize,
}

impl Axis {
    /// An axis that is not there: one element, one tap.
    pub(crate) const UNIT: Self =
        Self { input: 1, kernel: 1, output: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };

    /// Elements from the first tap to the last, both included: `(kernel - 1) * dilation + 1`.
    #[must_use]
    pub fn effective_kernel(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Whether Y's position `o` depends on X's position `o` and on no other (one tap, stride 1, no
    /// padding, no tail).
    #[must_use]
    pub fn is_unit(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad_begin == 0 && self.pad_end == 0 && self.output == self.input
    }

    /// Whether there is padding at either end.
    #[must_use]
    pub fn is_padded(&self) -> bool {
        self.pad_begin != 0 || self.pad_end != 0
    }

    /// Conv: the position in X that tap `tap` of output `output` reads, or `None` where that is
    /// padding.
    #[must_use]
    pub fn input_position(&self, output: usize, tap: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation).checked_sub(self.pad_begin).filter(|&x| x < self.input)
    }

    /// Conv: the taps through which output `output` reads X and not padding.
    pub(crate) fn taps_of_output(&self, output: usize) -> Range<usize> {
        let at = output * self.stride;
        let first = self.pad_begin.saturating_sub(at).div_ceil(self.dilation).min(self.kernel);
        let end = (self.pad_begin + self.input).saturating_sub(at).div_ceil(self.dilation).clamp(first, self.kernel);
        first..end
    }

    /// ConvTranspose: the position in Y that input `input` adds to through tap `tap`, or `None`
    /// where that is cut off.
    #[must_use]
    pub fn output_position(&self, input: usize, tap: usize) -> Option<usize> {
        (input * self.stride + tap * self.dilation).checked_sub(self.pad_begin).filter(|&o| o < self.output)
    }

    /// Conv: the outputs for which tap `tap` reads X and not padding. Found by division, not by a
    /// search.
    #[must_use]
    pub fn outputs_of_tap(&self, tap: usize) -> Range<usize> {
        self.steps_inside(tap * self.dilation, 1, self.input, self.output)
    }

    /// ConvTranspose: the inputs whose contribution through tap `tap` lands in Y and is not cut
    /// off.
    #[must_use]
    pub fn inputs_of_tap(&self, tap: usize) -> Range<usize> {
        self.steps_inside(tap * self.dilation, 1, self.output, self.input)
    }

    /// Conv: the outputs all of whose taps read X, none padding.
    #[must_use]
    pub fn interior_outputs(&self) -> Range<usize> {
        self.steps_inside(0, self.effective_kernel(), self.input, self.output)
    }

    /// ConvTranspose: the inputs all of whose contributions land in Y.
    #[must_use]
    pub fn interior_inputs(&self) -> Range<usize> {
        self.steps_inside(0, self.effective_kernel(), self.output, self.input)
    }

    /// Conv: the axis without the taps at either end that see padding alone, at every output; and
    /// the taps that it keeps.
    ///
    /// What is left is an axis of Conv, too, on the same X and with the same outputs: taps whose
    /// removal would leave a negative padding stay, and so do those in the middle that a long
    /// stride carries past a short X. Steps that lead nowhere, of one output or between one tap and
    /// the next, are 1.
    pub(crate) fn cropped(&self) -> (Range<usize>, Self) {
        // Tap k of output o reads o * stride + k * dilation - pad_begin: before X for all outputs
        // if for the last, behind it if for the first.
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

    /// The steps `i` in `0..steps` for which the `span` positions from `i * stride + offset -
    /// pad_begin` on all lie in `0..extent`. Empty ranges come back as `0..0`.
    fn steps_inside(&self, offset: usize, span: usize, extent: usize, steps: usize) -> Range<usize> {
        let start = self.pad_begin.saturating_sub(offset).div_ceil(self.stride);
        // The last step begins at `extent - span`; written without a subtraction that could go
        // below zero.
        let end = match (extent + self.pad_begin).checked_sub(offset + span) {
            Some(last) => (last / self.stride + 1).min(steps),
            None => 0,
        };
        if start < end { start..end } else { 0..0 }
    }
}

/// How every message about one axis begins: "Conv: spatial axis 0".
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

/// An axis before its padding is chosen: what the formulas of `auto_pad` and `output_shape` start
/// from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    op: Op,
    index: usize,
    pub(super) input: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    effective: usize,
}

impl Window {
    /// `input` and `kernel` at most `isize::MAX`; the others at least 1.
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

    /// Conv, SAME: the padding in total that gives [`conv_same_output`](Self::conv_same_output),
    /// never negative.
    ///
    /// A kernel shorter than the stride would ask for negative padding. Clamped to zero, the
    /// sampling grid keeps starting at X's first element.
    pub(super) fn conv_same_total(&self) -> Result<usize, Error> {
        let output = wide(self.conv_same_output());
        let total = (output - 1) * wide(self.stride) + wide(self.effective) - wide(self.input);
        self.size("SAME padding", total.max(0))
    }

    /// Conv with explicit padding: `floor((input + begin + end - effective kernel) / stride) + 1`.
    pub(super) fn conv(&self, begin: usize, end: usize) -> Result<Axis, Error> {
        let padded = self.size("padded input", wide(self.input) + wide(begin) + wide(end))?;
        // Before the division: it would round a negative quotient towards zero, and 1 output come
        // out.
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
    /// At most `isize::MAX`; not positive if `input` is 0 and the stride large.
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

    /// ConvTranspose with everything chosen.
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

/// The value as a size, if it is one: `0..=isize::MAX`.
pub(super) fn narrow(value: i128) -> Option<usize> {
    isize::try_from(value).ok().and_then(|v| usize::try_from(v).ok())
}
