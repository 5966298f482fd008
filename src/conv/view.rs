//! An axis as phases and shifts, with one formula for Conv and ConvTranspose.
//!
//! Tap k of an axis with stride s and dilation d lies `k * d = shift * s + phase` elements behind
//! the first tap. Elements of a strided axis that are s apart form a phase, and are neighbours
//! in it.
//!
//! * Conv strides over X: position v of the output reads, through that tap, element v + shift of
//!   the phase of the padded X.
//! * ConvTranspose strides over Y: position v of the phase of the padded Y gets, through that tap,
//!   element v - shift of X. So each phase of Y is a convolution of stride 1 over X.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::gcd;

use crate::{Axis, Geometry, Layout};

/// The phase and the shift of a tap.
pub(crate) fn place(axis: &Axis, tap: usize) -> (usize, usize) {
    (tap * axis.dilation % axis.stride, tap * axis.dilation / axis.stride)
}

/// The shift of the last tap, which is the largest one.
pub(crate) fn reach(axis: &Axis) -> usize {
    place(axis, axis.kernel - 1).1
}

/// The largest shift among the taps with the phase of tap `tap`.
pub(crate) fn shift(axis: &Axis, tap: usize) -> usize {
    place(axis, axis.kernel - 1 - (axis.kernel - 1 - tap) % period(axis)).1
}

/// Whether the view of some tap is a shift of another tap's view.
pub(crate) fn is_shifted(axes: &[Axis]) -> bool {
    axes.iter().any(|axis| reach(axis) > 0)
}

/// After so many taps the phases repeat: tap `k + period` has the phase of tap k.
pub(crate) fn period(axis: &Axis) -> usize {
    axis.stride / gcd(axis.stride, axis.dilation)
}

/// The number of phases that have taps. Phase number i is that of tap i.
pub(crate) fn phases(axis: &Axis) -> usize {
    axis.kernel.min(period(axis))
}

/// The positions v in `from` with `v * stride + tap * dilation - pad_begin` in `to`: outputs of Conv
/// that read X through the tap, or inputs of ConvTranspose that add to a part of Y.
pub(crate) fn meeting(axis: &Axis, tap: usize, from: Range<usize>, to: &Range<usize>) -> Range<usize> {
    let (reach, cut) = (tap * axis.dilation, axis.pad_begin + to.start);
    let first = cut.saturating_sub(reach).div_ceil(axis.stride).clamp(from.start, from.end);
    let end = (cut + to.len()).saturating_sub(reach).div_ceil(axis.stride).clamp(first, from.end);
    first..end
}

/// As [`meeting`], for rows over all axes but the last: the row of `to(i)` positions of each axis that
/// meets row `row` of `from(i)` positions through a tap. None if there is none.
pub(crate) fn row_met(
    axes: &[Axis],
    (mut row, mut tap): (usize, usize),
    from: impl Fn(usize) -> usize,
    to: impl Fn(usize) -> Range<usize>,
) -> Option<usize> {
    let (mut at, mut step) = (0_usize, 1_usize);
    for (i, axis) in axes.iter().enumerate().rev() {
        let (v, k, to) = (row % from(i), tap % axis.kernel, to(i));
        (row, tap) = (row / from(i), tap / axis.kernel);
        let place = (v * axis.stride + k * axis.dilation).checked_sub(axis.pad_begin + to.start)?;
        if place >= to.len() {
            return None;
        }
        // It wraps only if an axis has no positions, and then there is no row.
        at = place.wrapping_mul(step).wrapping_add(at);
        step = step.wrapping_mul(to.len());
    }
    Some(at)
}

/// The layer with its axes merged into one, if each output reads the input of its own position alone. A tensor with
/// one position lies alike in both layouts: its channels count as the last ones.
pub(crate) fn merged(geometry: &Geometry) -> Geometry {
    let mut geometry = geometry.clone();
    if geometry.axes.iter().all(Axis::is_unit) {
        let positions = geometry.input_spatial();
        geometry.axes = vec![Axis { input: positions, output: positions, ..geometry.axes[0] }];
    }
    if geometry.input_spatial() == 1 {
        geometry.x_layout = Layout::ChannelsLast;
    }
    if geometry.output_spatial() == 1 {
        geometry.y_layout = Layout::ChannelsLast;
    }
    geometry
}

/// A tap of a phase of Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tap {
    pub(crate) k: usize,
    /// Elements of X between what the furthest tap of the axis reads and what this tap reads.
    pub(crate) shift: usize,
}

/// The phases of an axis of Y, for ConvTranspose.
pub(crate) struct OutputPhases {
    pub(crate) axis: Axis,
    /// The phases below this one are cropped at position 0 of the padded Y.
    cropped: usize,
    /// The phases below this one are counted from position 1.
    pub(crate) late: usize,
    /// Positions of a phase.
    pub(crate) positions: usize,
    /// The element of X that position 0 reads through the furthest tap. It may lie before X.
    pub(crate) first: isize,
    pub(crate) reach: usize,
    /// The taps of each phase, if they are [`listed`](Self::listed). Phases that the kernel does not
    /// reach have none.
    pub(crate) taps: Vec<Vec<Tap>>,
}

impl OutputPhases {
    /// How many phases have their output at position 0 cropped, if all count positions from the same
    /// element of the padded Y.
    pub(crate) fn cropped(axis: &Axis) -> usize {
        axis.pad_begin % axis.stride
    }

    /// Counts the phases below `late` from position 1. With 0, the phases of a kernel whose size is a
    /// multiple of the stride read the same inputs, but their first output may be cropped. With
    /// [`cropped`](Self::cropped), each phase begins with an output.
    pub(crate) fn new(axis: &Axis, late: usize) -> Self {
        let cropped = Self::cropped(axis);
        let positions = (axis.output + cropped - late).div_ceil(axis.stride);
        let mut new = Self { axis: *axis, cropped, late, positions, first: 0, reach: 0, taps: Vec::new() };
        new.first = new.source(axis.kernel - 1);
        new.reach = (new.source(0) - new.first) as usize;
        new
    }

    /// The element of X that position 0 reads through tap `k`. It may lie before X.
    fn source(&self, k: usize) -> isize {
        let Axis { stride, dilation, pad_begin, .. } = self.axis;
        (pad_begin / stride) as isize - ((k * dilation) as isize - self.late as isize).div_euclid(stride as isize)
    }

    /// The same with the lists of taps. They take memory and time in proportion to stride and kernel.
    pub(crate) fn listed(mut self) -> Self {
        self.taps = vec![Vec::new(); self.axis.stride];
        for k in 0..self.axis.kernel {
            let shift = (self.source(k) - self.first) as usize;
            self.taps[place(&self.axis, k).0].push(Tap { k, shift });
        }
        self
    }

    /// The output at position `v` of phase `r`. None if it is cropped.
    pub(crate) fn output(&self, v: usize, r: usize) -> Option<usize> {
        let v = v + usize::from(r < self.late);
        (v * self.axis.stride + r).checked_sub(self.cropped).filter(|o| *o < self.axis.output)
    }

    fn first_output(&self, v: usize) -> usize {
        (v * self.axis.stride).saturating_sub(self.cropped - self.late).min(self.axis.output)
    }

    /// The outputs at some positions, of all phases.
    pub(crate) fn outputs(&self, positions: &Range<usize>) -> Range<usize> {
        self.first_output(positions.start)..self.first_output(positions.end)
    }

    /// The place of phase `r` among the outputs of a position, the cropped ones included.
    pub(crate) fn phase_place(&self, r: usize) -> usize {
        (r + self.axis.stride - self.late) % self.axis.stride
    }

    /// The place of output `o` among those of position `v`.
    pub(crate) fn output_place(&self, v: usize, o: usize) -> usize {
        o + self.cropped - self.late - v * self.axis.stride
    }

    /// A convolution of stride 1 over X that reads all inputs of the phases: two taps, `reach` apart.
    pub(crate) fn as_conv(&self) -> Axis {
        let (kernel, dilation) = if self.reach == 0 { (1, 1) } else { (2, self.reach) };
        Axis { kernel, dilation, stride: 1, output: self.positions, pad_begin: 0, pad_end: 0, ..self.axis }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{OutputPhases, Tap, period, phases, place, shift};
    use crate::Axis;

    /// The input that a tap reads at position `v` of its phase. None if X has no such input.
    fn input(phases: &OutputPhases, v: usize, tap: &Tap) -> Option<usize> {
        (v + tap.shift).checked_add_signed(phases.first).filter(|x| *x < phases.axis.input)
    }

    #[test]
    fn phases_have_the_contributions_of_the_definition() {
        let lengths = |most: usize| 1..=most;
        for (kernel, stride) in lengths(7).flat_map(|k| lengths(6).map(move |s| (k, s))) {
            for (dilation, pad_begin) in lengths(4).flat_map(|d| (0..9).map(move |p| (d, p))) {
                let axis = Axis { input: 5, kernel, output: 23, stride, dilation, pad_begin, pad_end: 0 };
                for phases in [0, OutputPhases::cropped(&axis)].map(|late| OutputPhases::new(&axis, late).listed()) {
                    let all = (0..phases.positions).flat_map(|v| (0..stride).map(move |r| (v, r)));
                    let mut outputs = Vec::new();
                    for (v, r, o) in all.filter_map(|(v, r)| phases.output(v, r).map(|o| (v, r, o))) {
                        outputs.push(o);
                        assert_eq!(phases.output_place(v, o), phases.phase_place(r));
                        assert!((phases.first_output(v)..phases.first_output(v + 1)).contains(&o));
                        for k in 0..kernel {
                            let want = (0..axis.input).find(|x| axis.output_position(*x, k) == Some(o));
                            let tap = phases.taps[r].iter().find(|tap| tap.k == k);
                            assert_eq!(
                                tap.and_then(|tap| input(&phases, v, tap)),
                                want,
                                "{axis:?}, output {o}, tap {k}"
                            );
                        }
                    }
                    outputs.sort_unstable();
                    assert!(outputs.into_iter().eq(0..axis.output), "{axis:?}");
                }
            }
        }
    }

    #[test]
    fn no_tap_of_a_phase_is_shifted_further_than_its_last() {
        let lengths = || 1..=8;
        for (kernel, stride, dilation) in
            lengths().flat_map(|k| lengths().flat_map(move |s| lengths().map(move |d| (k, s, d))))
        {
            let axis = Axis { input: 100, kernel, output: 1, stride, dilation, pad_begin: 0, pad_end: 0 };
            let mut met: Vec<_> = (0..kernel).map(|tap| place(&axis, tap).0).collect();
            for tap in 0..phases(&axis) {
                let of_phase = (tap..kernel).step_by(period(&axis));
                assert!(of_phase.clone().all(|k| met[k] == met[tap]));
                assert_eq!(of_phase.map(|k| place(&axis, k).1).max(), Some(shift(&axis, tap)), "{axis:?}, tap {tap}");
            }
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), phases(&axis), "kernel {kernel}, stride {stride}, dilation {dilation}");
        }
    }
}
