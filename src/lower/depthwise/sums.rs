//! The sums of a unit: tiles of its planes or of X, and what follows them into Y.

use core::ops::Range;

use convoke_kernels::{DepthwiseInput, DepthwiseKernel, DepthwiseOutput, Dest, DirectInput, Epilogue, Real};

use super::lowering::{Depthwise, Source, Unit};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::contract::Io;
use crate::lower::engine::RowPanels;
use crate::lower::sink::no_epilogue;

/// Lanes of a vector, at the most.
const MOST_LANES: usize = 32;

impl<T: Element> Depthwise<T> {
    /// The sums of a unit's planes: calls `run` for runs of tiles of the same height, with the tap
    /// groups that count, the first output row from the strip's first on, and their number.
    fn tiles(
        &self,
        unit: &Unit,
        is_finite: bool,
        mut run: impl FnMut(&DepthwiseKernel<T::Acc>, Range<usize>, usize, usize),
    ) {
        let grid = &self.config.grid;
        let step = grid.tile_step();
        let (inside, _) = grid.rows_inside(unit.start, unit.extent);
        let skips = is_finite && self.taps.groups() > 1 && inside.len() < grid.rows(unit.extent);
        for first in 0..step.min(unit.extent) {
            let panels = RowPanels::new((unit.extent - first).div_ceil(step), self.config.tiles.len());
            let counted = |tile: usize| {
                if !skips {
                    return 0..self.taps.groups();
                }
                let row = first + panels.start(tile) * step;
                let last = row + (panels.height(tile) - 1) * step;
                let counts = |(from, reach): &(usize, usize)| {
                    let (low, high) = (row * grid.h.stride + from, last * grid.h.stride + from + reach);
                    low < inside.end && high >= inside.start
                };
                let begin = self.reaches.iter().position(counts).unwrap_or(0);
                begin..self.reaches.iter().rposition(counts).map_or(0, |last| last + 1)
            };
            let mut tile = 0;
            while tile < panels.count() {
                let (height, groups) = (panels.height(tile), counted(tile));
                let is_same = |t: &usize| panels.height(*t) == height && counted(*t) == groups;
                let same = 1 + (tile + 1..panels.count()).take_while(is_same).count();
                run(&self.config.tiles[height - 1], groups, first + panels.start(tile) * step, same);
                tile += same;
            }
        }
    }

    /// Output channels `channels`, with vectors along rows: from the planes of the unit, those of
    /// an output channel `x_plane` behind those of the one before it; or from X itself, or a copy
    /// of it.
    pub(super) fn rows(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        (source, x_plane): (Source<'_, T::Acc>, usize),
        channels: &Range<usize>,
        sums: &mut [T::Acc],
    ) {
        let grid = &self.config.grid;
        let (spatial, width) = (self.geometry.output_spatial(), grid.w.output);
        let strip = unit.extent * width;
        let at = (unit.image * self.geometry.out_channels + channels.start) * spatial
            + (unit.outer * grid.h.output + unit.start) * width;
        let weights = self.taps.weights();
        let w = &io.weights[channels.start * weights..channels.end * weights];
        let mut output = DepthwiseOutput { width, row: grid.tile_step() * width, plane: spatial };
        let sink = self.finish.sink(io);
        let stores = [Stores::row(at, strip).times(channels.len(), spatial)];
        if let Some((mut y, epilogue)) = sink.direct(at, &io.bias[channels.clone()], stores) {
            return self.sum(unit, io, (source, x_plane), w, channels.len(), (&mut y, &output, &epilogue));
        }
        output.plane = strip;
        let (mut y, epilogue) = (Dest::from_slice(sums), no_epilogue(&self.zeros));
        self.sum(unit, io, (source, x_plane), w, channels.len(), (&mut y, &output, &epilogue));
        for (channel, sums) in channels.clone().zip(sums.chunks_exact_mut(strip)) {
            sink.row(sums, io.bias[channel], at + (channel - channels.start) * spatial);
        }
    }

    /// As [`rows`](Self::rows), into a destination that begins with the strip of the first of
    /// `count` output channels.
    fn sum(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        (source, x_plane): (Source<'_, T::Acc>, usize),
        w: &[T::Acc],
        count: usize,
        (y, output, epilogue): (&mut Dest<'_, T::Acc>, &DepthwiseOutput, &Epilogue<'_, T::Acc>),
    ) {
        let grid = &self.config.grid;
        let weights = self.taps.weights();
        if let Source::Planes(planes) = source {
            self.tiles(unit, io.is_finite, |kernel, groups, row, tiles| {
                let input = DepthwiseInput {
                    taps: &self.taps,
                    groups,
                    w,
                    w_plane: weights,
                    x: planes.get(row * grid.h.stride * grid.pitch..).unwrap_or(&[]),
                    x_plane,
                    x_vector: grid.nr,
                    planes: count,
                    tiles,
                };
                kernel.run(&input, &mut y.from(row * grid.w.output), output, &epilogue.from(row * grid.w.output));
            });
            return;
        }
        let (Some(table), Source::X(x)) = (&self.config.direct_table, source) else { return };
        let h = &grid.h;
        self.tiles(unit, false, |kernel, _, row, tiles| {
            // Output channels that share their input take a tile in turn, which stays in the L1
            // cache meanwhile.
            let (runs, tiles) = if x_plane == 0 && count > 1 { (tiles, 1) } else { (1, tiles) };
            for run in 0..runs {
                let row = row + run * kernel.mr();
                let (first, height) = (((unit.start + row) * h.stride) as isize - h.pad_begin as isize, h.input);
                let input =
                    DirectInput { table, row: first, height, w, w_plane: weights, x, x_plane, planes: count, tiles };
                let from = row * grid.w.output;
                kernel.run_direct(&input, &mut y.from(from), output, &epilogue.from(from));
            }
        });
    }

    /// The output channels number `output` of a unit's groups, with vectors along groups.
    pub(super) fn channels(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        planes: &[T::Acc],
        output: usize,
        sums: &mut [T::Acc],
        staged: &mut [T::Acc],
    ) {
        let grid = &self.config.grid;
        let (spatial, width, lanes) = (self.geometry.output_spatial(), grid.w.output, grid.lanes);
        let outputs = self.geometry.out_channels_per_group();
        let block = unit.groups.start / lanes;
        let weights = self.taps.weights() * lanes;
        let w = &io.weights[(block * outputs + output) * weights..][..weights];
        let place = DepthwiseOutput { width: width * lanes, row: grid.tile_step() * width * lanes, plane: 0 };
        let epilogue = no_epilogue(&self.zeros);
        let sums = &mut sums[..unit.extent * width * lanes];
        self.tiles(unit, io.is_finite, |kernel, groups, row, tiles| {
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
            kernel.run(&input, &mut y, &place, &epilogue);
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
        if let Some((mut y, epilogue)) = sink.direct(at, bias, stores) {
            self.kernels.scatter(sums, &mut y, outputs * spatial, &epilogue);
            return;
        }
        let mut rows = Dest::from_slice(staged);
        let epilogue = Epilogue { bias: &self.zeros[..bias.len()], ..epilogue };
        self.kernels.scatter(sums, &mut rows, strip, &epilogue);
        for (i, (bias, row)) in bias.iter().zip(staged.chunks_exact_mut(strip)).enumerate() {
            sink.row(row, *bias, at + i * outputs * spatial);
        }
    }
}
