//! The planes that kernels read: X itself, or a plane for each phase of the strides.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::stream::{self, Storage};
use convoke_kernels::{DepthwiseKernels, FlatTaps, Isa, Real, RowCopy};

use crate::Axis;
use crate::element::Element;
use crate::machine::{Item, Machine, Work};

/// The planes of a channel: one for each phase of the strides that some tap reads. Without strides
/// there is one, laid out as X is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GroupedPlanes {
    pub(super) h: Axis,
    pub(super) w: Axis,
    /// Phases along H and W.
    counts: [usize; 2],
    /// Elements of a plane. Planes of neighbouring phases along W lie so far apart.
    plane: usize,
    /// Elements of all planes of a channel.
    pub(super) pitch: usize,
}

impl GroupedPlanes {
    /// None if they are longer than the address space.
    pub(super) fn new(h: &Axis, w: &Axis, lanes: usize) -> Option<Self> {
        let counts = [h.kernel.min(h.stride), w.kernel.min(w.stride)];
        let plane = h.input.div_ceil(h.stride).checked_mul(w.output)?;
        // A copy fills up rows to whole vectors.
        let is_strided = h.stride * w.stride > 1;
        let plane = if is_strided { plane.checked_add(lanes)?.checked_next_multiple_of(lanes)? } else { plane };
        Some(Self { h: *h, w: *w, counts, plane, pitch: plane.checked_mul(counts[0] * counts[1])? })
    }

    /// Where the taps of a group of `channels` input channels read. None if that is beyond what
    /// kernels can address.
    pub(super) fn taps(&self, channels: usize, lanes: usize) -> Option<FlatTaps> {
        let (h, w) = (&self.h, &self.w);
        let plane_rows = h.input.div_ceil(h.stride);
        let (rows, columns) = (places(h, self.plane * self.counts[1]), places(w, self.plane));
        FlatTaps::new(lanes, (channels, self.pitch), (plane_rows, w.output), h.output, &rows, &columns)
    }

    pub(super) fn is_strided(&self) -> bool {
        self.h.stride * self.w.stride > 1
    }

    /// The phase of an axis that tap `i` reads: its first position in X, and its number of them.
    fn phase(axis: &Axis, i: usize) -> (usize, usize) {
        let phase = (i as isize - axis.pad_begin as isize).rem_euclid(axis.stride as isize) as usize;
        (phase, axis.input.saturating_sub(phase).div_ceil(axis.stride))
    }

    /// Whether some phases have fewer rows than their planes, or fewer elements than a row of Y.
    /// The rest of the planes is zero then.
    pub(super) fn is_ragged(&self) -> bool {
        let (rows, width) = (self.h.input.div_ceil(self.h.stride), self.w.output);
        (0..self.counts[0]).any(|i| Self::phase(&self.h, i).1 < rows)
            || (0..self.counts[1]).any(|j| Self::phase(&self.w, j).1 < width)
    }

    /// What it takes to copy a channel.
    pub(super) fn work(&self, machine: &Machine, lanes: usize) -> Work {
        let rows = (self.counts[0] * self.h.input.div_ceil(self.h.stride) * self.counts[1]) as f64;
        let vectors = self.w.input.div_ceil(self.w.stride).div_ceil(lanes) as f64;
        let row = machine.work(Item::CopiedRows, 1.0) + machine.work(Item::CopiedVectors, vectors);
        row * (rows * machine.strided_copy(self.w.stride))
    }

    /// Copies a channel of X into its planes, of which only the rows `rows` are needed. `kernels`
    /// split rows into the two phases of stride 2. Rows of a 16-bit type are converted into `widened`
    /// first, unless the planes are laid out as X.
    pub(super) fn fill<T: Element>(
        &self,
        isa: Isa,
        kernels: Option<&DepthwiseKernels<T::Acc>>,
        x: &[T],
        rows: Range<usize>,
        planes: &mut [T::Acc],
        widened: &mut [T::Acc],
    ) {
        if let Some(x) = T::as_acc(x) {
            return self.fill_widened(isa, kernels, x, rows, planes);
        }
        let (step, end) = (self.h.stride * self.w.input, x.len());
        let seen = (rows.start * step).min(end)..(rows.end * step).min(end);
        if !self.is_strided() {
            return stream::widen(isa, &x[seen.clone()], &mut planes[seen]);
        }
        stream::widen(isa, &x[seen.clone()], &mut widened[seen]);
        self.fill_widened(isa, kernels, widened, rows, planes);
    }

    /// Does the same as [`fill`](Self::fill) for a channel that has the computing type.
    fn fill_widened<A: Real + Storage<Acc = A>>(
        &self,
        isa: Isa,
        kernels: Option<&DepthwiseKernels<A>>,
        x: &[A],
        rows: Range<usize>,
        planes: &mut [A],
    ) {
        let (h, w) = (&self.h, &self.w);
        for (i, planes) in planes.chunks_exact_mut(self.counts[1] * self.plane).enumerate() {
            let (first, count) = Self::phase(h, i);
            let rows = rows.start.min(count)..rows.end.min(count);
            if rows.is_empty() {
                continue;
            }
            let x = &x[(first + rows.start * h.stride) * w.input..];
            let planes = &mut planes[rows.start * w.output..];
            if let (Some(kernels), true) = (kernels, w.stride == 2 && self.counts[1] == 2) {
                let (src_row, dst_row) = (h.stride * w.input, w.output);
                let (src_plane, dst_plane) = (0, 0);
                let copy =
                    RowCopy { planes: 1, rows: rows.len(), width: w.input, src_plane, src_row, dst_plane, dst_row };
                // The even positions of X are the phase of even taps if the padding is even, and
                // of odd taps otherwise.
                let even = w.pad_begin % 2 * self.plane;
                kernels.split(x, planes, even, self.plane - even, &copy);
                continue;
            }
            for (row, x) in x.chunks(h.stride * w.input).take(rows.len()).enumerate() {
                for j in 0..self.counts[1] {
                    let (first, len) = Self::phase(w, j);
                    if len > 0 {
                        let to = &mut planes[j * self.plane + row * w.output..][..len];
                        stream::widen_strided(isa, &x[first..w.input], w.stride, to);
                    }
                }
            }
        }
    }
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
