//! The planes that kernels read: X itself, or a plane for each phase of the strides.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::interleave::{Deinterleave, PhaseCopy, SourceRow};
use convoke_kernels::{FlatTaps, Isa};

use crate::Axis;
use crate::conv::planes::deinterleave;
use crate::element::Element;
use crate::machine::{Item, Work};

/// The planes of a channel: one for each phase of the strides that a tap reads. Without strides there is
/// one, as X is.
#[derive(Debug)]
pub(super) struct GroupedPlanes {
    pub(super) h: Axis,
    pub(super) w: Axis,
    counts: [usize; 2],
    /// The phases along W, in the order in which they occur in a row of X.
    phases: Vec<PhaseCopy>,
    /// The rows that are copied, by phases along H.
    source_rows: Vec<SourceRow>,
    /// Elements of a plane, which is also the distance of phases along W.
    plane: usize,
    /// Elements of all planes of a channel.
    pub(super) pitch: usize,
}

impl GroupedPlanes {
    /// None if they exceed the address space.
    pub(super) fn new(h: &Axis, w: &Axis) -> Option<Self> {
        let counts = [h.kernel.min(h.stride), w.kernel.min(w.stride)];
        let plane = h.input.div_ceil(h.stride).checked_mul(w.output)?;
        let pitch = plane.checked_mul(counts[0] * counts[1])?;
        let mut phases: Vec<_> = (0..counts[1]).map(|j| PhaseCopy { offset: phase(w, j), dst: j * plane }).collect();
        phases.sort_unstable_by_key(|phase| phase.offset);
        Some(Self { h: *h, w: *w, counts, phases, source_rows: Vec::new(), plane, pitch })
    }

    /// The same with a list of the rows that are copied.
    pub(super) fn listed(mut self) -> Self {
        let (h, rows) = (&self.h, self.rows());
        let row = |i: usize| {
            let (phase_rows, row) = (i / rows, i % rows);
            let position = phase(h, phase_rows) + row * h.stride;
            let src = (position < h.input).then_some(position * self.w.input);
            SourceRow { src, dst: phase_rows * self.counts[1] * self.plane + row * self.w.output }
        };
        self.source_rows = (0..self.counts[0] * rows).map(row).collect();
        self
    }

    fn rows(&self) -> usize {
        self.h.input.div_ceil(self.h.stride)
    }

    /// Where the taps of a group of `channels` input channels read. None if kernels cannot address that.
    pub(super) fn taps(&self, channels: usize, lanes: usize) -> Option<FlatTaps> {
        let (h, w) = (&self.h, &self.w);
        let (rows, columns) = (places(h, self.plane * self.counts[1]), places(w, self.plane));
        FlatTaps::new(lanes, (channels, self.pitch), (self.rows(), w.output), h.output, &rows, &columns)
    }

    pub(super) fn is_strided(&self) -> bool {
        self.h.stride * self.w.stride > 1
    }

    /// The work to copy a group of `channels` channels.
    pub(super) fn work(&self, channels: usize) -> Work {
        Item::COPIED_ELEMENTS.times((channels * self.pitch) as f64)
    }

    /// Copies rows `rows` of the channels of a group into their planes.
    pub(super) fn fill<T: Element>(&self, isa: Isa, x: &[T], rows: Range<usize>, planes: &mut [T::Acc]) {
        let (h, w) = (&self.h, &self.w);
        let copy = Deinterleave {
            planes: planes.len() / self.pitch,
            src_pitch: h.input * w.input,
            dst_pitch: self.pitch,
            rows: &[],
            width: w.input,
            first: 0,
            stride: w.stride,
            phases: &self.phases,
            len: w.output,
            prefetch_distance: 0,
        };
        for phase in self.source_rows.chunks_exact(self.rows()) {
            deinterleave(isa, x, &Deinterleave { rows: &phase[rows.clone()], ..copy }, planes);
        }
    }
}

/// The first position in X of the phase of an axis that tap `tap` reads.
fn phase(axis: &Axis, tap: usize) -> usize {
    (tap as isize - axis.pad_begin as isize).rem_euclid(axis.stride as isize) as usize
}

/// For each tap of an axis, where the plane of its phase begins, and the position there that output
/// position 0 reads. Planes are `gap` elements apart.
fn places(axis: &Axis, gap: usize) -> Vec<(usize, isize)> {
    let place = |k: usize| {
        let position = (k * axis.dilation) as isize - axis.pad_begin as isize;
        (k % axis.stride * gap, position.div_euclid(axis.stride as isize))
    };
    (0..axis.kernel).map(place).collect()
}
