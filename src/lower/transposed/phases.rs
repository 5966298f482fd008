//! The phases of one axis of ConvTranspose.
//!
//! Outputs that are a stride apart form a phase. A phase reads the input as a convolution of
//! stride 1 does. Output o = v * stride + r - cropped is position v of phase r. It uses the taps
//! k for which o + pad - k * dilation is a multiple of the stride, and through each of them it
//! reads input v + shift. The phase r alone decides which taps these are, and what their shifts
//! are.
//!
//! Positions v can be counted from two places. With `cropped` 0 they are counted from the first
//! output. With `cropped` = pad % stride they are counted from the output as it was before
//! padding cropped it: then all phases of a kernel that is a multiple of the stride read the same
//! inputs.

use alloc::vec;
use alloc::vec::Vec;

use crate::Axis;

/// A tap of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tap {
    /// Its position in the kernel.
    pub(super) k: usize,
    /// Its shift, minus the smallest shift of all taps of the axis.
    pub(super) shift: usize,
}

/// The phases of one axis.
pub(super) struct AxisPhases {
    pub(super) axis: Axis,
    /// Outputs of position 0 that the padding crops: less than the stride, and at most the
    /// padding.
    pub(super) cropped: usize,
    /// Positions of a phase. Outputs of the first and of the last position may be cropped.
    pub(super) positions: usize,
    /// The smallest shift of all taps, and the difference of the largest shift to it.
    pub(super) low: isize,
    pub(super) reach: usize,
    /// The taps of each phase. Phases that the kernel does not reach have none.
    pub(super) taps: Vec<Vec<Tap>>,
}

impl AxisPhases {
    /// Takes memory and time in proportion to stride and kernel.
    pub(super) fn new(axis: &Axis, cropped: usize) -> Self {
        let stride = axis.stride;
        // The phase and the shift of a tap. Sizes fit isize, and so do their differences.
        let place = |k: usize| {
            let at = (k * axis.dilation) as isize - (axis.pad_begin - cropped) as isize;
            (at.rem_euclid(stride as isize) as usize, -at.div_euclid(stride as isize))
        };
        let shifts = || (0..axis.kernel).map(|k| place(k).1);
        let (low, high) = (shifts().min().unwrap_or(0), shifts().max().unwrap_or(0));
        let mut taps = vec![Vec::new(); stride];
        for k in 0..axis.kernel {
            let (phase, shift) = place(k);
            taps[phase].push(Tap { k, shift: (shift - low) as usize });
        }
        let positions = (axis.output + cropped).div_ceil(stride);
        Self { axis: *axis, cropped, positions, low, reach: (high - low) as usize, taps }
    }

    /// Where the taps of phase 0 are counted from. Packed weights depend on it.
    pub(super) fn origin(&self) -> usize {
        (self.axis.pad_begin + self.axis.stride - self.cropped) % self.axis.stride
    }

    /// The output at position `v` of phase `r`. None if it is cropped.
    pub(super) fn output(&self, v: usize, r: usize) -> Option<usize> {
        (v * self.axis.stride + r).checked_sub(self.cropped).filter(|o| *o < self.axis.output)
    }

    /// A convolution of stride 1 whose planes are as large as those of the phases: its two taps
    /// lie `reach` apart.
    pub(super) fn as_conv(&self) -> Axis {
        let (kernel, dilation) = if self.reach == 0 { (1, 1) } else { (2, self.reach) };
        Axis { kernel, dilation, stride: 1, output: self.positions, pad_begin: 0, pad_end: 0, ..self.axis }
    }
}

/// The order of the last axis' phases among the sums of a tile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PhaseSlots {
    /// The phases with taps. Those of a class have equal shifts: they read the same inputs.
    pub(super) classes: Vec<Vec<usize>>,
    /// The slot of each phase, which is its place among the sums. Phases with taps have slots of
    /// their own, in the order of the classes. Phases without taps share the last slot, whose
    /// sums are zero.
    pub(super) of_phase: Vec<usize>,
    /// Slots of phases with taps.
    pub(super) with_taps: usize,
    /// All slots.
    pub(super) count: usize,
}

impl PhaseSlots {
    pub(super) fn new(along: &AxisPhases) -> Self {
        let shifts = |r: usize| along.taps[r].iter().map(|tap| tap.shift);
        let mut classes: Vec<Vec<usize>> = Vec::new();
        for r in (0..along.taps.len()).filter(|r| !along.taps[*r].is_empty()) {
            match classes.iter_mut().find(|class| shifts(class[0]).eq(shifts(r))) {
                Some(class) => class.push(r),
                None => classes.push(vec![r]),
            }
        }
        let (with_taps, phases) = (classes.iter().map(Vec::len).sum::<usize>(), along.taps.len());
        let mut of_phase = vec![with_taps; phases];
        for (slot, r) in classes.iter().flatten().enumerate() {
            of_phase[*r] = slot;
        }
        Self { classes, of_phase, with_taps, count: with_taps + usize::from(with_taps < phases) }
    }
}

#[cfg(test)]
mod tests {
    use super::{AxisPhases, Tap};
    use crate::Axis;

    /// The input that a tap reads at position `v` of its phase. None if X has no such input.
    fn input(phases: &AxisPhases, v: usize, tap: &Tap) -> Option<usize> {
        (v + tap.shift).checked_add_signed(phases.low).filter(|x| *x < phases.axis.input)
    }

    #[test]
    fn phases_have_the_contributions_of_the_definition() {
        let lengths = |most: usize| 1..=most;
        for (kernel, stride) in lengths(7).flat_map(|k| lengths(6).map(move |s| (k, s))) {
            for (dilation, pad_begin) in lengths(4).flat_map(|d| (0..9).map(move |p| (d, p))) {
                let axis = Axis { input: 5, kernel, output: 23, stride, dilation, pad_begin, pad_end: 0 };
                let origins = [0, pad_begin % stride].map(|cropped| AxisPhases::new(&axis, cropped));
                for (phases, o) in origins.iter().flat_map(|p| (0..axis.output).map(move |o| (p, o))) {
                    let (v, r) = ((o + phases.cropped) / stride, (o + phases.cropped) % stride);
                    assert_eq!(phases.output(v, r), Some(o));
                    assert!(v < phases.positions);
                    for k in 0..kernel {
                        let want = (0..axis.input).find(|x| axis.output_position(*x, k) == Some(o));
                        let tap = phases.taps[r].iter().find(|tap| tap.k == k);
                        assert_eq!(tap.and_then(|tap| input(phases, v, tap)), want, "{axis:?}, output {o}, tap {k}");
                    }
                }
            }
        }
    }
}
