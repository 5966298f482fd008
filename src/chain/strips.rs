//! How the rows of a chain are cut into strips.

use core::ops::Range;

use crate::Axis;
use crate::exec::share;

/// Parts of an image, at most, that threads compute at the same time: each has neighbouring strips, and begins with a
/// halo of its own.
pub(super) const MOST_PARTS: usize = 64;

/// The rows that one strip has of the tensors before and behind the layer that reads several rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Strip {
    /// Rows of the layer's Y, and so of all tensors behind it.
    pub(super) outputs: Range<usize>,
    /// Rows of the layer's X that it reads, and the padding before and behind them.
    pub(super) inputs: Range<usize>,
    pub(super) pads: [usize; 2],
    /// The first of these rows that the strip before has not computed.
    pub(super) carried: usize,
    /// The first of these rows that the next strip reads too. The rows from there on are computed by a call of their
    /// own. So a thread that begins with the next strip computes the halo by the same call, to the same bits.
    pub(super) halo: usize,
}

/// The strips of an axis of Conv, of at most `most` outputs each, if the layer can be cut so.
pub(super) fn strips(axis: &Axis, most: usize) -> impl Iterator<Item = Strip> + '_ {
    let count = count(axis, most);
    let at = move |index: usize| inputs(axis, &share(axis.output, count, index), count);
    (0..count).map(move |index| {
        let outputs = share(axis.output, count, index);
        let inputs = at(index);
        let carried = match index {
            0 => inputs.start,
            _ => at(index - 1).end.clamp(inputs.start, inputs.end),
        };
        let halo = if index + 1 == count { inputs.end } else { at(index + 1).start.clamp(carried, inputs.end) };
        Strip { pads: pads(axis, &outputs, count), outputs, inputs, carried, halo }
    })
}

/// Strips of an image, at most: their rows are listed.
const MOST_STRIPS: usize = 1 << 12;

/// The number of strips. Where one strip's halo would reach beyond the next strip, or a strip would see padding
/// alone, strips are larger than asked for.
fn count(axis: &Axis, most: usize) -> usize {
    let extent = axis.effective_kernel();
    if axis.input == 0 || axis.pad_begin >= extent || axis.pad_end >= extent {
        return 1;
    }
    let least = extent.saturating_sub(axis.stride).div_ceil(axis.stride).max(1);
    axis.output.div_ceil(most.max(1)).min(axis.output / least).clamp(1, MOST_STRIPS)
}

/// The rows of X that some outputs read.
fn inputs(axis: &Axis, outputs: &Range<usize>, count: usize) -> Range<usize> {
    if count == 1 {
        return 0..axis.input;
    }
    let start = (outputs.start * axis.stride).saturating_sub(axis.pad_begin);
    let end = (outputs.end - 1) * axis.stride + axis.effective_kernel() - axis.pad_begin;
    start..end.min(axis.input)
}

/// The padding before and behind the rows of X that some outputs read.
fn pads(axis: &Axis, outputs: &Range<usize>, count: usize) -> [usize; 2] {
    if count == 1 {
        return [axis.pad_begin, axis.pad_end];
    }
    let end = (outputs.end - 1) * axis.stride + axis.effective_kernel();
    [axis.pad_begin.saturating_sub(outputs.start * axis.stride), end.saturating_sub(axis.pad_begin + axis.input)]
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Conv;

    fn axis(input: usize, kernel: usize, [stride, dilation]: [i64; 2], pads: [i64; 2]) -> Axis {
        let conv = Conv::new([1, 1, kernel]).strides([stride]).dilations([dilation]).pads(pads);
        conv.geometry(&[1, 1, input]).unwrap().axes[0]
    }

    /// Checks the rows of all strips against the definition. Returns them.
    fn check(axis: &Axis, most: usize) -> Vec<Strip> {
        let strips: Vec<_> = strips(axis, most).collect();
        let mut computed = 0;
        for (i, strip) in strips.iter().enumerate() {
            assert_eq!(strip.outputs.start, if i == 0 { 0 } else { strips[i - 1].outputs.end });
            for (tap, output) in (0..axis.kernel).flat_map(|tap| strip.outputs.clone().map(move |o| (tap, o))) {
                let row = output * axis.stride + tap * axis.dilation;
                let in_strip = (output - strip.outputs.start) * axis.stride + tap * axis.dilation;
                let expected = axis.input_position(output, tap);
                let got = in_strip.checked_sub(strip.pads[0]).map(|row| strip.inputs.start + row);
                assert_eq!(got.filter(|row| strip.inputs.contains(row)), expected, "{axis:?} row {row} of {strip:?}");
                assert!(in_strip < strip.pads[0] + strip.inputs.len() + strip.pads[1]);
            }
            // Rows are computed once, and those of a halo by one call.
            assert!(
                strip.inputs.start <= strip.carried && strip.carried <= strip.halo && strip.halo <= strip.inputs.end
            );
            assert!(i == 0 || strip.carried == strip.inputs.start.max(computed));
            computed = strip.inputs.end;
            if let Some(next) = strips.get(i + 1)
                && next.inputs.start < strip.inputs.end
            {
                assert_eq!((next.inputs.start, next.carried), (strip.halo, strip.inputs.end));
            }
        }
        assert_eq!(strips.last().unwrap().outputs.end, axis.output);
        strips
    }

    #[test]
    fn strips_read_what_their_outputs_need() {
        for (input, kernel) in (0..12).flat_map(|input| (1..6).map(move |kernel| (input, kernel))) {
            for (stride, dilation) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 3)] {
                for pads in [[0, 0], [1, 1], [2, 0], [0, 3], [1, 7]] {
                    let conv = Conv::new([1, 1, kernel]).strides([stride]).dilations([dilation]).pads(pads);
                    let Ok(geometry) = conv.geometry(&[1, 1, input]) else { continue };
                    (1..6).for_each(|most| _ = check(&geometry.axes[0], most));
                }
            }
        }
    }

    #[test]
    fn strips_are_nearly_as_many_as_asked_for() {
        let counts = |axis: &Axis, most| check(axis, most).iter().map(|strip| strip.outputs.len()).collect::<Vec<_>>();
        assert_eq!(counts(&axis(14, 3, [1, 1], [1, 1]), 4), [4, 4, 3, 3]);
        assert_eq!(counts(&axis(14, 3, [1, 1], [1, 1]), 1), [2; 7]);
        assert_eq!(counts(&axis(14, 3, [2, 1], [1, 1]), 1), [1; 7]);
        assert_eq!(counts(&axis(14, 1, [1, 1], [0, 0]), 5), [5, 5, 4]);
        assert_eq!(counts(&axis(4, 3, [1, 1], [5, 0]), 2), [7]);
    }
}
