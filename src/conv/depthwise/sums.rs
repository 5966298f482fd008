//! The sums of a unit, from its planes or from X, and storing them.

use core::ops::Range;

use convoke_kernels::{
    DepthwiseInput, DepthwiseKernel, DepthwiseOutput, Dest, DirectInput, DirectTable, Epilogue, Real, TapTable,
};

use super::lowering::{Depthwise, DepthwiseUnit};
use super::taps::Along;
use crate::conv::contract::Io;
use crate::conv::macro_kernel::RowPanels;
use crate::conv::planes::PaddedPlanes;
use crate::conv::store::no_epilogue;
use crate::element::Element;
use crate::exec::region::Stores;

/// Lanes of a vector, at most.
const MOST_LANES: usize = 32;

/// Some output channels of a chunk: their weights, and where their sums are stored.
pub(super) struct Sums<'y, 'a, A> {
    positions: Range<usize>,
    planes: usize,
    w: &'a [A],
    y: Dest<'y, A>,
    y_plane: usize,
    epilogue: Epilogue<'a, A>,
}

struct PlaneRows {
    rows: usize,
    /// Elements of a row of sums.
    width: usize,
    /// Elements of the planes from one row to the next.
    pitch: usize,
    /// The first row's beginning in the planes, and in Y.
    from: usize,
    to: usize,
}

impl<T: Element> Depthwise<T> {
    /// Calls `run` for each run of tiles of the same height, with their kernel, the first row, and the
    /// number of tiles. Rows of a tile are `step` rows apart. Output channels that share their input
    /// pass over a tile one after the other, while it is in the L1 cache.
    fn tiles(
        &self,
        (rows, step): (usize, usize),
        shares_input: bool,
        mut run: impl FnMut(&DepthwiseKernel<T::Acc>, usize, usize),
    ) {
        for first in 0..step.min(rows) {
            let panels = RowPanels::new((rows - first).div_ceil(step), self.plan.tiles.len());
            for same in panels.runs(&(0..panels.count())) {
                let kernel = &self.plan.tiles[panels.height(same.start) - 1];
                let tiles = if shares_input { 1 } else { same.len() };
                same.step_by(tiles).for_each(|tile| run(kernel, first + panels.start(tile) * step, tiles));
            }
        }
    }

    /// Sums a unit's output channels by `sum`, with vectors along rows, and stores them.
    pub(super) fn rows(
        &self,
        unit: &DepthwiseUnit,
        io: &Io<'_, T>,
        sums: &mut [T::Acc],
        sum: impl Fn(&mut Sums<'_, '_, T::Acc>),
    ) {
        let (spatial, len, channels) =
            (self.geometry.output_spatial(), unit.positions.len(), self.outputs_of(&unit.groups));
        let at = self.geometry.output_offset(unit.image, channels.start, unit.positions.start);
        let taps = self.plan.taps.count();
        let (w, bias) = (&io.weights[channels.start * taps..channels.end * taps], &io.bias[channels.clone()]);
        let store = self.finish.store(io);
        let stores = [Stores::row(at, len).times(channels.len(), spatial)];
        let (positions, planes) = (unit.positions.clone(), channels.len());
        let stored = store.direct(at, bias, stores, |y, epilogue| {
            sum(&mut Sums { positions: positions.clone(), planes, w, y, y_plane: spatial, epilogue });
        });
        if stored.is_none() {
            let (y, epilogue) = (Dest::from_slice(sums), store.staging(bias));
            sum(&mut Sums { positions, planes, w, y, y_plane: len, epilogue });
            store.staged_rows(&mut sums[..planes * len], len, (at, spatial));
        }
    }

    /// Sums from X. The inputs of neighbouring output channels are `x_plane` elements apart.
    pub(super) fn sum_x(&self, table: &DirectTable, x: &[T::Acc], x_plane: usize, sums: &mut Sums<'_, '_, T::Acc>) {
        let Sums { positions, planes, w, y, y_plane, epilogue } = sums;
        let (h, width, planes) = (&self.plan.taps.h, self.plan.taps.w.output, *planes);
        let start = positions.start / width;
        let layout = DepthwiseOutput { width, row: width, plane: *y_plane };
        self.tiles((positions.len() / width, 1), x_plane == 0 && planes > 1, |kernel, row, tiles| {
            let first = ((start + row) * h.stride) as isize - h.pad_begin as isize;
            let w_plane = self.plan.taps.count();
            let input = DirectInput { table, row: first, height: h.input, w, w_plane, x, x_plane, planes, tiles };
            kernel.run_direct(&input, &mut y.from(row * width), &layout, &epilogue.from(row * width));
        });
    }

    /// Sums from planes. The inputs of neighbouring output channels are `x_plane` elements apart.
    pub(super) fn sum_planes(
        &self,
        (planes, taps): (&PaddedPlanes, &TapTable),
        x: &[T::Acc],
        x_plane: usize,
        sums: &mut Sums<'_, '_, T::Acc>,
    ) {
        let columns = &self.plan.taps;
        let nr = self.plan.tiles[0].lanes();
        let (blocks, rows, width) = self.plan.source.shape(&self.geometry, columns, sums.positions.len());
        if columns.is_one_row {
            let (rows, rest) = (width / nr, width % nr);
            let vectors = PlaneRows { rows, width: nr, pitch: nr, from: 0, to: 0 };
            self.sum_rows(taps, x, x_plane, &vectors, sums);
            let (rows, from) = (usize::from(rest > 0), rows * nr);
            return self.sum_rows(taps, x, x_plane, &PlaneRows { rows, width: rest, pitch: nr, from, to: from }, sums);
        }
        let unit = if columns.along == Along::Rows { 1 } else { nr };
        for block in 0..blocks {
            let (from, to) = (planes.row_offset(block * rows) * unit, block * rows * width * unit);
            let pitch = columns.row_pitch(planes) * unit;
            self.sum_rows(taps, x, x_plane, &PlaneRows { rows, width: width * unit, pitch, from, to }, sums);
        }
    }

    fn sum_rows(
        &self,
        taps: &TapTable,
        x: &[T::Acc],
        x_plane: usize,
        &PlaneRows { rows, width, pitch, from, to }: &PlaneRows,
        sums: &mut Sums<'_, '_, T::Acc>,
    ) {
        let columns = &self.plan.taps;
        let Sums { planes, w, y, y_plane, epilogue, .. } = sums;
        let step = if columns.is_one_row { 1 } else { columns.tile_step() };
        let layout = DepthwiseOutput { width, row: step * width, plane: *y_plane };
        self.tiles((rows, step), x_plane == 0 && *planes > 1, |kernel, row, tiles| {
            let input = DepthwiseInput {
                taps,
                groups: 0..taps.groups(),
                w,
                w_plane: columns.count(),
                x: x.get(from + row * pitch..).unwrap_or(&[]),
                x_plane,
                x_vector: kernel.lanes(),
                planes: *planes,
                tiles,
            };
            let to = to + row * width;
            kernel.run(&input, &mut y.from(to), &layout, &epilogue.from(to));
        });
    }

    /// Sums output channel `output` of each group of a unit from `x`, with vectors along groups, and
    /// stores it.
    pub(super) fn channels(
        &self,
        unit: &DepthwiseUnit,
        io: &Io<'_, T>,
        output: usize,
        planes: (&PaddedPlanes, &TapTable),
        (x, sums): (&[T::Acc], &mut [T::Acc]),
    ) {
        let lanes = self.kernels.lanes();
        let (spatial, len) = (self.geometry.output_spatial(), unit.positions.len());
        let outputs = self.geometry.out_channels_per_group();
        let weights = self.plan.taps.count() * lanes;
        let w = &io.weights[(unit.groups.start / lanes * outputs + output) * weights..][..weights];
        let (sums, staged) = sums.split_at_mut(len * lanes);
        // The scatter adds the bias, and clamps.
        let (zero, y) = ([T::Acc::ZERO], Dest::from_slice(sums));
        let positions = unit.positions.clone();
        let into = &mut Sums { positions, planes: 1, w, y, y_plane: 0, epilogue: no_epilogue(&zero) };
        self.sum_planes(planes, x, 0, into);
        let channel = unit.groups.start * outputs + output;
        let at = self.geometry.output_offset(unit.image, channel, unit.positions.start);
        let mut bias = [T::Acc::ZERO; MOST_LANES];
        let bias = &mut bias[..unit.groups.len()];
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias = io.bias[channel + i * outputs];
        }
        let store = self.finish.store(io);
        let stores = [Stores::row(at, len).times(bias.len(), outputs * spatial)];
        let stored = store.direct(at, bias, stores, |mut y, epilogue| {
            self.kernels.scatter(sums, &mut y, outputs * spatial, &epilogue);
        });
        if stored.is_none() {
            self.kernels.scatter(sums, &mut Dest::from_slice(staged), len, &store.staging(bias));
            store.staged_rows(&mut staged[..bias.len() * len], len, (at, outputs * spatial));
        }
    }
}
