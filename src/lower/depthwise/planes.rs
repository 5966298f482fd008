//! How the planes of a unit are filled: along rows with rows of X between padding, split by phases,
//! and along channels with the elements of several groups side by side.

use core::ops::Range;

use convoke_kernels::{Real, RowCopy, stream};

use super::grid::Along;
use super::lowering::{Depthwise, DepthwiseUnit};
use crate::element::Element;
use crate::lower::contract::Io;

impl<T: Element> Depthwise<T> {
    /// Copies the input of a unit into the planes, whose padding beside rows is zero already.
    /// `staged` is for rows of a 16-bit type.
    pub(super) fn fill(&self, unit: &DepthwiseUnit, io: &Io<'_, T>, planes: &mut [T::Acc], staged: &mut [T::Acc]) {
        let grid = &self.plan.grid;
        let (inside, source_row) = grid.rows_inside(unit.start, unit.extent);
        let (h, w) = (&grid.h, &grid.w);
        let spatial = self.geometry.input_spatial();
        let first = (unit.image * self.geometry.in_channels + unit.groups.start * grid.channels) * spatial;
        let source_at = |outer: usize| outer * h.input * w.input + source_row * w.input;
        if grid.along == Along::Rows && grid.outer.is_empty() && grid.is_vectorised() {
            // All planes are copied by one call: their rows lie alike, and so do their sources.
            let count = unit.groups.len() * grid.channels;
            if !grid.is_whole() {
                for plane in planes.chunks_exact_mut(grid.plane).take(count) {
                    clear(plane, &inside, grid.rows(unit.extent), grid.pitch);
                }
            }
            if !inside.is_empty() && count > 0 {
                let x = &io.x[first + source_at(0)..];
                self.copy_rows(x, count, &inside, planes, staged);
            }
            return;
        }
        for (index, plane) in planes.chunks_exact_mut(grid.plane).enumerate() {
            let (channel, tap) = (index / grid.outer_taps, index % grid.outer_taps);
            // Along rows, the planes may be for more groups than the last unit has.
            if grid.along == Along::Rows && channel >= unit.groups.len() * grid.channels {
                return;
            }
            let outer = grid.outer_source(unit.outer, tap).filter(|_| !inside.is_empty());
            let Some(outer) = outer else {
                plane.fill(T::Acc::ZERO);
                continue;
            };
            if !grid.is_whole() {
                clear(plane, &inside, grid.rows(unit.extent), grid.pitch);
            }
            let x = &io.x[first + channel * spatial + source_at(outer)..];
            if grid.along == Along::Channels {
                self.gather(x, unit.groups.len(), &inside, plane, staged);
            } else if grid.is_vectorised() {
                self.copy_rows(x, 1, &inside, plane, staged);
            } else {
                for (row, x) in inside.clone().zip(x.chunks(w.input)) {
                    for phase in &grid.phases {
                        let (to, first) = (row * grid.pitch + phase.base, phase.phase + phase.from * w.stride);
                        let row = &mut plane[to + phase.from..to + phase.to];
                        if !row.is_empty() {
                            stream::widen_strided(self.isa, &x[first - w.pad_begin..], w.stride, row);
                        }
                    }
                }
            }
        }
    }

    /// Copies rows of `count` planes; `x` begins with the first row that is not padding. Rows of a
    /// 16-bit type are converted on the way, or into `staged` if they are split after that.
    fn copy_rows(&self, x: &[T], count: usize, inside: &Range<usize>, planes: &mut [T::Acc], staged: &mut [T::Acc]) {
        let grid = &self.plan.grid;
        let planes = &mut planes[inside.start * grid.pitch..];
        let spatial = self.geometry.input_spatial();
        let copy = RowCopy {
            planes: count,
            rows: inside.len(),
            width: grid.w.input,
            src_plane: spatial,
            src_row: grid.w.input,
            dst_plane: grid.plane,
            dst_row: grid.pitch,
        };
        if let Some(x) = T::as_acc(x) {
            return self.copy_widened(x, planes, &copy);
        }
        for plane in 0..count {
            let (x, planes) = (&x[plane * spatial..], &mut planes[plane * grid.plane..]);
            if grid.w.stride == 1 {
                let (phase, size) = (&grid.phases[0], (copy.rows, copy.width));
                let planes = &mut planes[phase.base + phase.from..];
                stream::widen_rows(self.isa, size, (x, copy.src_row), (planes, copy.dst_row));
            } else {
                let staged = &mut staged[..inside.len() * grid.w.input];
                stream::widen(self.isa, &x[..staged.len()], staged);
                self.copy_widened(staged, planes, &RowCopy { planes: 1, ..copy });
            }
        }
    }

    /// Copies rows that have the computing type.
    fn copy_widened(&self, x: &[T::Acc], planes: &mut [T::Acc], copy: &RowCopy) {
        let grid = &self.plan.grid;
        if grid.w.stride == 1 {
            let phase = &grid.phases[0];
            self.kernels.copy(x, &mut planes[phase.base + phase.from..], copy);
        } else {
            // Where the even positions of X go, and where the odd ones do.
            let at = |parity: usize| {
                let phase = grid.phases.iter().find(|p| p.phase == (grid.w.pad_begin + parity) % 2);
                phase.map_or(0, |phase| phase.base + phase.from)
            };
            self.kernels.split(x, planes, at(0), at(1), copy);
        }
    }

    /// Copies the rows `inside` of a plane, for `count` groups side by side; `x` begins with the
    /// first row of the first group.
    fn gather(&self, x: &[T], count: usize, inside: &Range<usize>, plane: &mut [T::Acc], staged: &mut [T::Acc]) {
        let grid = &self.plan.grid;
        let step = grid.channels * self.geometry.input_spatial();
        let range = inside.start * grid.w.input..inside.end * grid.w.input;
        if let Some(x) = T::as_acc(x) {
            return self.kernels.gather(x, step, count, &self.slots, range, plane);
        }
        let len = range.len();
        for (group, staged) in staged.chunks_exact_mut(len.max(1)).take(count).enumerate() {
            stream::widen(self.isa, &x[group * step..][..len], staged);
        }
        self.kernels.gather(staged, len, count, &self.slots, range, plane);
    }
}

/// Zeroes the rows of a plane that are not `inside`, of `rows` in all.
fn clear<A: Real>(plane: &mut [A], inside: &Range<usize>, rows: usize, pitch: usize) {
    plane[..inside.start * pitch].fill(A::ZERO);
    plane[inside.end * pitch..rows * pitch].fill(A::ZERO);
}
