//! The sums of a unit: tiles of its planes or of X, and what follows them into Y.

use core::ops::Range;

use convoke_kernels::{DepthwiseInput, DepthwiseKernel, DepthwiseOutput, Dest, DirectInput, Epilogue, Real};

use super::lowering::{Depthwise, DepthwiseBuffers, DepthwiseSource, DepthwiseUnit, RowsSeen};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::contract::Io;
use crate::lower::engine::RowPanels;
use crate::lower::sink::no_epilogue;

/// Lanes of a vector, at most: those of AVX-512 with `f32`, and room for twice as many.
const MOST_LANES: usize = 32;

/// Where kernels along rows store, and what they add on the way there.
struct RowsInto<'y, 'e, A> {
    y: Dest<'y, A>,
    layout: DepthwiseOutput,
    epilogue: Epilogue<'e, A>,
}

impl<T: Element> Depthwise<T> {
    /// Calls `run` for each run of tiles of a strip that have the same height and read the same
    /// groups of tap columns: with their kernel, these groups, the first output row of the run,
    /// counted from the strip's first, and the number of tiles. Groups that see only padding are
    /// left out if they may be.
    fn tiles(
        &self,
        unit: &DepthwiseUnit,
        leaves_out: bool,
        mut run: impl FnMut(&DepthwiseKernel<T::Acc>, Range<usize>, usize, usize),
    ) {
        let grid = &self.plan.grid;
        let step = grid.tile_step();
        let (inside, _) = grid.rows_inside(unit.start, unit.extent);
        let skips = leaves_out && self.taps.groups() > 1 && inside.len() < grid.rows(unit.extent);
        for first in 0..step.min(unit.extent) {
            let panels = RowPanels::new((unit.extent - first).div_ceil(step), self.plan.tiles.len());
            let counted = |tile: usize| {
                if !skips {
                    return 0..self.taps.groups();
                }
                let row = first + panels.start(tile) * step;
                let last = row + (panels.height(tile) - 1) * step;
                let counts = |seen: &RowsSeen| {
                    let (low, high) = (row * grid.h.stride + seen.first, last * grid.h.stride + seen.last);
                    low < inside.end && high >= inside.start
                };
                let begin = self.rows_seen.iter().position(counts).unwrap_or(0);
                begin..self.rows_seen.iter().rposition(counts).map_or(0, |last| last + 1)
            };
            let mut tile = 0;
            while tile < panels.count() {
                let (height, groups) = (panels.height(tile), counted(tile));
                let is_same = |t: &usize| panels.height(*t) == height && counted(*t) == groups;
                let same = 1 + (tile + 1..panels.count()).take_while(is_same).count();
                run(&self.plan.tiles[height - 1], groups, first + panels.start(tile) * step, same);
                tile += same;
            }
        }
    }

    /// Sums a unit's output channels `channels` with vectors along rows, and takes them into Y.
    pub(super) fn rows(
        &self,
        unit: &DepthwiseUnit,
        io: &Io<'_, T>,
        source: DepthwiseSource<'_, T::Acc>,
        channels: &Range<usize>,
        sums: &mut [T::Acc],
    ) {
        let grid = &self.plan.grid;
        let (spatial, width) = (self.geometry.output_spatial(), grid.w.output);
        let strip = unit.extent * width;
        let at = (unit.image * self.geometry.out_channels + channels.start) * spatial
            + (unit.outer * grid.h.output + unit.start) * width;
        let mut layout = DepthwiseOutput { width, row: grid.tile_step() * width, plane: spatial };
        let sink = self.finish.sink(io);
        let stores = [Stores::row(at, strip).times(channels.len(), spatial)];
        let stored = sink.direct(at, &io.bias[channels.clone()], stores, |y, epilogue| {
            self.rows_into(unit, io, source, channels, &mut RowsInto { y, layout, epilogue });
        });
        if stored.is_some() {
            return;
        }
        layout.plane = strip;
        let epilogue = sink.staging(&io.bias[channels.clone()]);
        let mut into = RowsInto { y: Dest::from_slice(sums), layout, epilogue };
        self.rows_into(unit, io, source, channels, &mut into);
        sink.staged_rows(&mut sums[..channels.len() * strip], strip, (at, spatial));
    }

    /// Sums output channels into a destination that begins with the strip of the first of them.
    fn rows_into(
        &self,
        unit: &DepthwiseUnit,
        io: &Io<'_, T>,
        source: DepthwiseSource<'_, T::Acc>,
        channels: &Range<usize>,
        into: &mut RowsInto<'_, '_, T::Acc>,
    ) {
        let (grid, w_plane, count) = (&self.plan.grid, self.taps.weights(), channels.len());
        let w = &io.weights[channels.start * w_plane..channels.end * w_plane];
        let (table, x, x_plane) = match source {
            DepthwiseSource::X { table, x, step } => (table, x, step),
            DepthwiseSource::Planes { x, step } if grid.is_one_row => {
                return self.one_row(x, step, channels, w, into);
            }
            DepthwiseSource::Planes { x, step } => {
                return self.tiles(unit, true, |kernel, groups, row, tiles| {
                    let input = DepthwiseInput {
                        taps: &self.taps,
                        groups,
                        w,
                        w_plane,
                        x: x.get(row * grid.h.stride * grid.pitch..).unwrap_or(&[]),
                        x_plane: step,
                        x_vector: grid.nr,
                        planes: count,
                        tiles,
                    };
                    let RowsInto { y, layout, epilogue } = &mut *into;
                    let from = row * grid.w.output;
                    kernel.run(&input, &mut y.from(from), layout, &epilogue.from(from));
                });
            }
        };
        let h = &grid.h;
        self.tiles(unit, false, |kernel, _, row, tiles| {
            // Output channels that share their input take a tile in turn, which stays in the L1
            // cache meanwhile.
            let (runs, tiles) = if x_plane == 0 && count > 1 { (tiles, 1) } else { (1, tiles) };
            for run in 0..runs {
                let row = row + run * kernel.mr();
                let (first, height) = (((unit.start + row) * h.stride) as isize - h.pad_begin as isize, h.input);
                let input = DirectInput { table, row: first, height, w, w_plane, x, x_plane, planes: count, tiles };
                let RowsInto { y, layout, epilogue } = &mut *into;
                let from = row * grid.w.output;
                kernel.run_direct(&input, &mut y.from(from), layout, &epilogue.from(from));
            }
        });
    }

    /// Sums the planes of a single row: the whole vectors as the rows of tiles, and then what is
    /// left of a vector.
    fn one_row(
        &self,
        x: &[T::Acc],
        x_plane: usize,
        channels: &Range<usize>,
        w: &[T::Acc],
        into: &mut RowsInto<'_, '_, T::Acc>,
    ) {
        let (grid, tiles) = (&self.plan.grid, self.plan.tiles);
        let (nr, width) = (grid.nr, grid.w.output);
        let RowsInto { y, layout, epilogue } = into;
        let mut run = |vector: usize, height: usize, tiles_len: usize, width: usize| {
            let input = DepthwiseInput {
                taps: &self.taps,
                groups: 0..self.taps.groups(),
                w,
                w_plane: self.taps.weights(),
                x: x.get(vector * nr..).unwrap_or(&[]),
                x_plane,
                x_vector: nr,
                planes: channels.len(),
                tiles: tiles_len,
            };
            let (from, layout) = (vector * nr, DepthwiseOutput { width, row: nr, plane: layout.plane });
            tiles[height - 1].run(&input, &mut y.from(from), &layout, &epilogue.from(from));
        };
        let (vectors, rest) = (width / nr, width % nr);
        let panels = RowPanels::new(vectors, tiles.len());
        for same in panels.runs(&(0..panels.count())).into_iter().filter(|same| !same.is_empty()) {
            run(panels.start(same.start), panels.height(same.start), same.len(), nr);
        }
        if rest > 0 {
            run(vectors, 1, 1, rest);
        }
    }

    /// Sums output channel number `output` of each group of a unit, with vectors along groups, and
    /// takes them into Y.
    pub(super) fn channels(
        &self,
        unit: &DepthwiseUnit,
        io: &Io<'_, T>,
        output: usize,
        buffers: &mut DepthwiseBuffers<'_, T::Acc>,
    ) {
        let grid = &self.plan.grid;
        let (spatial, width, lanes) = (self.geometry.output_spatial(), grid.w.output, grid.lanes);
        let outputs = self.geometry.out_channels_per_group();
        let block = unit.groups.start / lanes;
        let weights = self.taps.weights() * lanes;
        let w = &io.weights[(block * outputs + output) * weights..][..weights];
        let layout = DepthwiseOutput { width: width * lanes, row: grid.tile_step() * width * lanes, plane: 0 };
        // Bias and clamp are the scatter's.
        let zero = [T::Acc::ZERO];
        let epilogue = no_epilogue(&zero);
        let DepthwiseBuffers { planes, sums, staged } = buffers;
        let sums = &mut sums[..unit.extent * width * lanes];
        self.tiles(unit, true, |kernel, groups, row, tiles| {
            let input = DepthwiseInput {
                taps: &self.taps,
                groups,
                w,
                w_plane: 0,
                x: planes.get(row * grid.h.stride * grid.pitch..).unwrap_or(&[]),
                x_plane: 0,
                x_vector: grid.w.stride * lanes,
                planes: 1,
                tiles,
            };
            let mut y = Dest::from_slice(&mut sums[row * width * lanes..]);
            kernel.run(&input, &mut y, &layout, &epilogue);
        });
        let channel = unit.groups.start * outputs + output;
        let at = (unit.image * self.geometry.out_channels + channel) * spatial
            + (unit.outer * grid.h.output + unit.start) * width;
        let mut bias = [T::Acc::ZERO; MOST_LANES];
        let bias = &mut bias[..unit.groups.len()];
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias = io.bias[channel + i * outputs];
        }
        let (sink, strip) = (self.finish.sink(io), unit.extent * width);
        let stores = [Stores::row(at, strip).times(bias.len(), outputs * spatial)];
        let stored = sink.direct(at, bias, stores, |mut y, epilogue| {
            self.kernels.scatter(sums, &mut y, outputs * spatial, &epilogue);
        });
        if stored.is_some() {
            return;
        }
        let mut rows = Dest::from_slice(staged);
        self.kernels.scatter(sums, &mut rows, strip, &sink.staging(bias));
        sink.staged_rows(&mut staged[..bias.len() * strip], strip, (at, outputs * spatial));
    }
}
