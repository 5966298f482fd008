//! One axis of ConvTranspose by phases: outputs that are a stride apart see the input as an
//! ordinary convolution of stride 1 does.
//!
//! Output o = v * stride + r - cropped reads, through the taps k for which o + pad - k * dilation
//! is a multiple of the stride, input v + shift: which taps, and with which shifts, depends on the
//! phase r alone. Positions v are counted from the first output, `cropped` being 0; or from the
//! output as it was before padding cropped it, with `cropped` the padding modulo the stride: then
//! all phases of a kernel that is a multiple of the stride read the same inputs.

use alloc::vec;
use alloc::vec::Vec;

use crate::Axis;

/// A tap of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tap {
    /// Its kernel position.
    pub(super) k: usize,
    /// The input that it reads lies so much behind the one that the axis' first shift reads.
    pub(super) shift: usize,
}

/// The phases of one axis.
pub(super) struct Phases {
    pub(super) axis: Axis,
    /// Outputs of position 0 that the padding crops.
    pub(super) cropped: usize,
    /// Positions of a phase; outputs of the first one and of the last one may be cropped.
    pub(super) positions: usize,
    /// The smallest shift, and how much larger the largest is.
    pub(super) low: isize,
    pub(super) reach: usize,
    /// The taps of each phase; phases that the kernel does not reach have none.
    pub(super) taps: Vec<Vec<Tap>>,
}

impl Phases {
    /// Takes memory and time in proportion to stride and kernel. `cropped` is at most the padding,
    /// and less than the stride.
    pub(super) fn new(axis: &Axis, cropped: usize) -> Self {
        let stride = axis.stride;
        // What a tap is away from the first output, in phases and in strides: sizes fit isize, and
        // so do their differences.
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

    /// The output at position `v` of phase `r`; none where it is cropped.
    pub(super) fn output(&self, v: usize, r: usize) -> Option<usize> {
        (v * self.axis.stride + r).checked_sub(self.cropped).filter(|o| *o < self.axis.output)
    }

    /// The input that a tap reads at position `v` of its phase; none where there is no such input.
    pub(super) fn input(&self, v: usize, tap: &Tap) -> Option<usize> {
        (v + tap.shift).checked_add_signed(self.low).filter(|x| *x < self.axis.input)
    }

    /// Whether all taps of phase `r` have an input at position `v`.
    pub(super) fn is_inside(&self, v: usize, r: usize) -> bool {
        self.taps[r].iter().all(|tap| self.input(v, tap).is_some())
    }

    /// The phases with taps, those with equal shifts together: they read the same inputs.
    pub(super) fn classes(&self) -> Vec<Vec<usize>> {
        let shifts = |r: usize| self.taps[r].iter().map(|tap| tap.shift);
        let mut classes: Vec<Vec<usize>> = Vec::new();
        for r in (0..self.taps.len()).filter(|r| !self.taps[*r].is_empty()) {
            match classes.iter_mut().find(|class| shifts(class[0]).eq(shifts(r))) {
                Some(class) => class.push(r),
                None => classes.push(vec![r]),
            }
        }
        classes
    }

    /// The axis as an ordinary convolution of stride 1 with two taps that lie `reach` apart: what
    /// sizes of planes depend on.
    pub(super) fn as_conv(&self, reach: usize) -> Axis {
        let (kernel, dilation) = if reach == 0 { (1, 1) } else { (2, reach) };
        Axis { kernel, dilation, stride: 1, output: self.positions, pad_begin: 0, pad_end: 0, ..self.axis }
    }
}

#[cfg(test)]
mod tests {
    use super::Phases;
    use crate::Axis;

    #[test]
    fn phases_have_the_contributions_of_the_definition() {
        let lengths = |most: usize| 1..=most;
        for (kernel, stride) in lengths(7).flat_map(|k| lengths(6).map(move |s| (k, s))) {
            for (dilation, pad_begin) in lengths(4).flat_map(|d| (0..9).map(move |p| (d, p))) {
                let axis = Axis { input: 5, kernel, output: 23, stride, dilation, pad_begin, pad_end: 0 };
                let origins = [0, pad_begin % stride].map(|cropped| Phases::new(&axis, cropped));
                for (phases, o) in origins.iter().flat_map(|p| (0..axis.output).map(move |o| (p, o))) {
                    let (v, r) = ((o + phases.cropped) / stride, (o + phases.cropped) % stride);
                    assert_eq!(phases.output(v, r), Some(o));
                    assert!(v < phases.positions);
                    for k in 0..kernel {
                        let want = (0..axis.input).find(|x| axis.output_position(*x, k) == Some(o));
                        let tap = phases.taps[r].iter().find(|tap| tap.k == k);
                        assert_eq!(tap.and_then(|tap| phases.input(v, tap)), want, "{axis:?}, output {o}, tap {k}");
                    }
                }
            }
        }
    }
}
