//! Units of depthwise layers of bytes: values of one channel, from rows of X that neighbouring taps of the kernel read.

use convoke_kernels::PixelTaps;
use convoke_kernels::dot::MOST_VALUES;

use crate::{Axis, Geometry, Layout, Op};

/// How rows of X become rows of units: unit u of a column of the kernel has the taps from `u * values` on. So X has a row
/// for each row of Y and each unit of a column, and no rows of padding.
#[derive(Debug, Clone)]
pub(super) struct RowUnits {
    /// The axis before the last one. It is [`Axis::UNIT`] for ConvTranspose, whose outputs have different taps, for one axis,
    /// and for too many rows: then each unit has one tap, and its other values have no weights.
    axis: Axis,
    /// Elements of the last axis of X, and taps of it.
    columns: [usize; 2],
    units: usize,
    values: usize,
    /// Channels that are neighbours in X: all, or one with channels first.
    pub(super) neighbours: usize,
    /// The layout of X. That of the layer of units says nothing where this has one position.
    pub(super) layout: Layout,
}

impl RowUnits {
    /// For units of so many values. Also returns the layer of units.
    pub(super) fn new(geometry: &Geometry, values: usize) -> (Self, Geometry) {
        let last = geometry.axes[geometry.axes.len() - 1];
        let neighbours = if geometry.x_layout == Layout::ChannelsLast { geometry.in_channels } else { 1 };
        let (columns, layout) = ([last.input, last.kernel], geometry.x_layout);
        let rows = |axis: Axis, units| Self { axis, columns, units, values, neighbours, layout };
        if let (Op::Conv, [.., axis, _]) = (geometry.op, &geometry.axes[..]) {
            let units = axis.kernel.div_ceil(values);
            let mut view = geometry.clone();
            let place = view.axes.len() - 2;
            let input = axis.output.saturating_mul(units);
            view.axes[place] = Axis { input, kernel: units, output: axis.output, stride: units, ..Axis::UNIT };
            let channels = geometry.batch * geometry.in_channels;
            let len = view.axes.iter().map(|axis| axis.input).fold(channels, usize::saturating_mul);
            if len < PixelTaps::ZEROS as usize {
                return (rows(*axis, units), view);
            }
        }
        (rows(Axis::UNIT, 1), geometry.clone())
    }

    /// Elements of a row.
    pub(super) fn width(&self) -> usize {
        self.columns[0]
    }

    /// The rows of X of a row of units, of which those that are padding are `None`. Rows are counted over all that is outside
    /// of them.
    pub(super) fn rows(&self, row: usize) -> [Option<usize>; MOST_VALUES] {
        let (of_plane, unit) = (row % (self.axis.output * self.units), row % self.units);
        let plane = row / (self.axis.output * self.units);
        core::array::from_fn(|i| {
            // Where the kernel has no more taps, the last one is there again, without weights.
            let tap = (unit * self.values + i).min(self.axis.kernel - 1);
            let position = self.axis.input_position(of_plane / self.units, tap)?;
            Some(plane * self.axis.input + position)
        })
    }

    /// The places in W of the weights of a unit, whose place among the units of W is given.
    pub(super) fn weights(&self, place: usize) -> [Option<usize>; MOST_VALUES] {
        let (row, column) = (place / self.columns[1], place % self.columns[1]);
        let (plane, unit) = (row / self.units, row % self.units);
        core::array::from_fn(|i| {
            let tap = unit * self.values + i;
            let is_there = i < self.values && tap < self.axis.kernel;
            is_there.then(|| (plane * self.axis.kernel + tap) * self.columns[1] + column)
        })
    }
}
