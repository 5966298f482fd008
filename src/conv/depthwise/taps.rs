//! The taps of a filter as columns, and the tables by which kernels read them in planes or in X.

use alloc::vec::Vec;

use convoke_kernels::{DepthwiseKernel, DirectTable, MOST_TAPS, Real, TapTable};

pub(super) use crate::conv::layout::Along;
use crate::conv::macro_kernel::RowPanels;
use crate::conv::planes::PaddedPlanes;
use crate::conv::view::period;
use crate::{Axis, Geometry};

#[derive(Debug, Clone, Copy, PartialEq)]
struct ColumnGroup {
    first: usize,
    taps: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct TapColumns {
    pub(super) along: Along,
    /// The axis along which tiles have rows, and the axis behind it.
    pub(super) h: Axis,
    pub(super) w: Axis,
    /// Taps of the outer axes, over all channels of a group. Each has columns of its own.
    outer: usize,
    is_flat: bool,
    pub(super) channels: usize,
    /// Whether the vectors of a single row of output are the rows of tiles, so that a tile has several
    /// sums. This needs planes: X would need masks in the middle of a tile.
    pub(super) is_one_row: bool,
}

impl TapColumns {
    /// None if there are too many taps.
    pub(super) fn new(geometry: &Geometry, along: Along) -> Option<Self> {
        let (outer, h, w) = match *geometry.axes.as_slice() {
            [axis] if along == Along::Rows => (&[][..], Axis::UNIT, axis),
            [axis] => (&[][..], axis, Axis::UNIT),
            [ref outer @ .., h, w] => (outer, h, w),
            [] => return None,
        };
        let channels = geometry.in_channels_per_group();
        let outer_taps = outer.iter().try_fold(channels, |taps, axis| taps.checked_mul(axis.kernel))?;
        let rows: usize = outer.iter().map(|axis| axis.output).product::<usize>() * h.output;
        let is_one_row = along == Along::Rows && rows * h.kernel == 1;
        Some(Self { along, h, w, outer: outer_taps, is_flat: outer.is_empty(), channels, is_one_row })
    }

    pub(super) fn count(&self) -> usize {
        self.columns() * self.h.kernel
    }

    fn columns(&self) -> usize {
        self.outer * self.w.kernel
    }

    /// Columns of all groups, and the rows of X that they read in a tile of `rows` rows.
    pub(super) fn columns_and_loads(&self, rows: usize) -> (f64, f64) {
        let groups = self.groups();
        let loads: usize = groups.iter().map(|group| rows + group.taps - 1).sum();
        ((groups.len() * self.columns()) as f64, loads as f64 * self.columns() as f64)
    }

    /// Output rows from one row of a tile to the next. They read rows of X a multiple of the dilation
    /// apart, so that their taps share them. Columns of a single tap share nothing.
    pub(super) fn tile_step(&self) -> usize {
        let every = period(&self.h);
        if self.h.kernel <= every { 1 } else { self.h.dilation * every / self.h.stride }
    }

    /// The groups of columns. Taps along H of the same phase are neighbours in a plane. They are cut
    /// into columns of nearly equal length. This, and so the order of packed weights, depends on the
    /// operator alone.
    fn groups(&self) -> Vec<ColumnGroup> {
        let every = period(&self.h);
        let mut groups = Vec::new();
        for first in 0..every.min(self.h.kernel) {
            let columns = RowPanels::new((self.h.kernel - first).div_ceil(every), MOST_TAPS);
            let group = |i| ColumnGroup { first: first + columns.start(i) * every, taps: columns.height(i) };
            groups.extend((0..columns.count()).map(group));
        }
        groups
    }

    /// The index in a filter of tap `ky` along H of column `column`.
    fn tap(&self, column: usize, ky: usize) -> usize {
        let (outer, kx) = (column / self.w.kernel, column % self.w.kernel);
        (outer * self.h.kernel + ky) * self.w.kernel + kx
    }

    /// For each packed weight of an output channel, its index in the channel's filter.
    pub(super) fn order(&self) -> Vec<usize> {
        let every = period(&self.h);
        let mut order = Vec::new();
        for ColumnGroup { first, taps } in self.groups() {
            for column in 0..self.columns() {
                order.extend((0..taps).map(|k| self.tap(column, first + k * every)));
            }
        }
        order
    }

    /// The table for kernels that read planes, with `unit` elements a position. In tiles of a single
    /// row, the next row is the next vector of `nr` elements.
    pub(super) fn table(&self, planes: &PaddedPlanes, unit: usize, nr: usize) -> TapTable {
        let taps = (self.count() / self.channels.max(1)).max(1);
        let mut groups = Vec::new();
        for group in self.groups() {
            let offset = |column: usize| {
                let tap = self.tap(column, group.first);
                let at = (tap / taps * self.channel_len(planes.channel_len) + planes.tap_offset(tap % taps)) * unit;
                u32::try_from(at).expect("the cut bounds the offsets")
            };
            groups.push((group.taps, (0..self.columns()).map(offset).collect()));
        }
        let step = if self.is_one_row { nr } else { self.tile_step() * self.row_pitch(planes) * unit };
        TapTable::new(&groups, step)
    }

    /// The distance of the planes of two channels, in positions, if planes have `len`. Along channels
    /// there is one more position, for elements of X that no tap reads.
    pub(super) fn channel_len(&self, len: usize) -> usize {
        len + usize::from(self.along == Along::Channels)
    }

    pub(super) fn row_pitch(&self, planes: &PaddedPlanes) -> usize {
        if self.w == Axis::UNIT { 1 } else { planes.row_pitch() }
    }

    /// The table by which `kernel` reads X itself. None if it cannot: it does so along rows, for layers
    /// on one or two axes with few taps, equal strides of 1 or 2, and no dilation along H.
    pub(super) fn direct_table<A: Real>(&self, kernel: &DepthwiseKernel<A>) -> Option<DirectTable> {
        let Self { h, w, .. } = self;
        let (taps, stride) = (h.kernel, h.stride);
        let is_plain = self.along == Along::Rows && self.is_flat;
        // Kernels leave out at most as many rows of padding as a column has taps.
        let is_short = h.pad_begin < taps && h.pad_end < taps;
        let is_small = h.input < DirectTable::MOST_ROWS && h.output < DirectTable::MOST_ROWS - kernel.mr();
        if !is_plain || !is_short || !is_small || h.dilation > 1 || w.stride != stride {
            return None;
        }
        if self.columns() > DirectTable::MOST_COLUMNS {
            return None;
        }
        let position = |kx: usize| (kx * w.dilation) as isize - w.pad_begin as isize;
        let positions: Vec<_> = (0..w.kernel).map(position).collect();
        let channels = (self.channels, h.input * w.input);
        let table = DirectTable::new(taps, stride, &positions, channels, w.input)?;
        table.serves(w.output, kernel).then_some(table)
    }
}
