//! The planes that kernels read: X itself, or a plane for each phase of the strides.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::weave::{PhasePick, Picks, RowPick};
use convoke_kernels::{FlatTaps, Isa};

use crate::Axis;
use crate::element::Element;
use crate::lower::planes::pick;
use crate::machine::{Item, Machine, Work};

/// The planes of a channel: one for each phase of the strides that some tap reads. Without strides
/// there is one, laid out as X is.
#[derive(Debug)]
pub(super) struct GroupedPlanes {
    pub(super) h: Axis,
    pub(super) w: Axis,
    /// Phases along H and W.
    counts: [usize; 2],
    /// The phases along W, in the order in which a row of X meets them.
    phases: Vec<PhasePick>,
    /// The rows that are copied: those of each phase along H in turn.
    picks: Vec<RowPick>,
    /// Elements of a plane. Planes of neighbouring phases along W lie so far apart.
    plane: usize,
    /// Elements of all planes of a channel.
    pub(super) pitch: usize,
}

impl GroupedPlanes {
    /// None if they are longer than the address space.
    pub(super) fn new(h: &Axis, w: &Axis) -> Option<Self> {
        let counts = [h.kernel.min(h.stride), w.kernel.min(w.stride)];
        let plane = h.input.div_ceil(h.stride).checked_mul(w.output)?;
        let pitch = plane.checked_mul(counts[0] * counts[1])?;
        let mut phases: Vec<_> = (0..counts[1]).map(|j| PhasePick { offset: phase(w, j), dst: j * plane }).collect();
        phases.sort_unstable_by_key(|phase| phase.offset);
        Some(Self { h: *h, w: *w, counts, phases, picks: Vec::new(), plane, pitch })
    }

    /// The same with a list of the rows that are copied.
    pub(super) fn listed(mut self) -> Self {
        let (h, rows) = (&self.h, self.rows());
        let pick = |i: usize| {
            let (phase_rows, row) = (i / rows, i % rows);
            let position = phase(h, phase_rows) + row * h.stride;
            let src = (position < h.input).then_some(position * self.w.input);
            RowPick { src, dst: phase_rows * self.counts[1] * self.plane + row * self.w.output }
        };
        self.picks = (0..self.counts[0] * rows).map(pick).collect();
        self
    }

    /// Rows of a plane.
    fn rows(&self) -> usize {
        self.h.input.div_ceil(self.h.stride)
    }

    /// Where the taps of a group of `channels` input channels read. None if that is beyond what
    /// kernels can address.
    pub(super) fn taps(&self, channels: usize, lanes: usize) -> Option<FlatTaps> {
        let (h, w) = (&self.h, &self.w);
        let (rows, columns) = (places(h, self.plane * self.counts[1]), places(w, self.plane));
        FlatTaps::new(lanes, (channels, self.pitch), (self.rows(), w.output), h.output, &rows, &columns)
    }

    pub(super) fn is_strided(&self) -> bool {
        self.h.stride * self.w.stride > 1
    }

    /// What it takes to copy a group of `channels` channels.
    pub(super) fn work(&self, machine: &Machine, channels: usize) -> Work {
        machine.work(Item::CopiedElements, (channels * self.pitch) as f64)
    }

    /// Copies the channels of a group into their planes, of which only the rows `rows` are needed.
    pub(super) fn fill<T: Element>(&self, isa: Isa, x: &[T], rows: Range<usize>, planes: &mut [T::Acc]) {
        let (h, w) = (&self.h, &self.w);
        let picks = Picks {
            planes: planes.len() / self.pitch,
            src_pitch: h.input * w.input,
            dst_pitch: self.pitch,
            rows: &[],
            width: w.input,
            first: 0,
            stride: w.stride,
            phases: &self.phases,
            len: w.output,
            ahead: 0,
        };
        for phase in self.picks.chunks_exact(self.rows()) {
            pick(isa, x, &Picks { rows: &phase[rows.clone()], ..picks }, planes);
        }
    }
}

/// The first position in X of the phase of an axis that tap `tap` reads.
fn phase(axis: &Axis, tap: usize) -> usize {
    (tap as isize - axis.pad_begin as isize).rem_euclid(axis.stride as isize) as usize
}

/// For each tap of an axis, where the plane of its phase begins, and which position of that plane
/// output position 0 sees. Planes are `gap` elements apart.
fn places(axis: &Axis, gap: usize) -> Vec<(usize, isize)> {
    let place = |k: usize| {
        let position = (k * axis.dilation) as isize - axis.pad_begin as isize;
        (k % axis.stride * gap, position.div_euclid(axis.stride as isize))
    };
    (0..axis.kernel).map(place).collect()
}
