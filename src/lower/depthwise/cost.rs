//! What the units of a layer take.

use alloc::vec::Vec;

use convoke_kernels::{DepthwiseKernel, DirectTable, Real};

use super::grid::{Along, Grid};
use crate::Geometry;
use crate::exec::Line;
use crate::machine::{Item, Machine, Work};

/// A layer with its strips, and the kernels for it.
pub(super) struct DepthwiseCost<'a, A: Real> {
    machine: &'a Machine,
    geometry: &'a Geometry,
    grid: &'a Grid,
    tiles: &'static [DepthwiseKernel<A>],
    /// Tiles of a strip, below one another, and rows of the lowest one.
    tile_count: usize,
    tile_rows: usize,
    /// Taps of a column, for each group of tap columns.
    column_taps: Vec<usize>,
}

impl<'a, A: Real> DepthwiseCost<'a, A> {
    pub(super) fn new(
        machine: &'a Machine,
        geometry: &'a Geometry,
        grid: &'a Grid,
        tiles: &'static [DepthwiseKernel<A>],
    ) -> Self {
        let panels = grid.panels(tiles.len());
        Self {
            machine,
            geometry,
            grid,
            tiles,
            tile_count: panels.count(),
            tile_rows: panels.height(panels.count() - 1).max(1),
            column_taps: grid.column_groups().iter().map(|group| group.taps).collect(),
        }
    }

    /// What all units take, where kernels read X itself by `direct_table`, and where they read
    /// planes.
    pub(super) fn work(&self, direct_table: Option<&DirectTable>) -> Work {
        match (self.grid.along, direct_table) {
            (Along::Rows, Some(table)) => self.rows_of_x(table),
            (Along::Rows, None) => self.rows_of_planes(),
            (Along::Channels, _) => self.channels(),
        }
    }

    fn rows_of_x(&self, table: &DirectTable) -> Work {
        let (geometry, grid) = (self.geometry, self.grid);
        let m = geometry.out_channels_per_group();
        let goes_by_rows = table.goes_by_rows(grid.w.output, &self.tiles[self.tiles.len() - 1]);
        let vectors = self.vectors_of_rows(grid.w.stride == 1 && m == 1 && !goes_by_rows);
        // With stride 2, two vectors are split for each pair of columns, and for both of the rows
        // that an output row is ahead of the one before it.
        let splits = if grid.w.stride == 2 { grid.w.kernel as f64 } else { 0.0 };
        let sums = self.tile_cycles(self.machine.prices().direct_loads) * self.share_of_taps_inside() + splits;
        let channel =
            self.vector(sums) * (vectors * self.groups_factor()) + self.machine.work(Item::DepthwiseVectors, 1.0);
        channel * (geometry.batch * geometry.group * m) as f64
    }

    fn rows_of_planes(&self) -> Work {
        let (machine, geometry, grid) = (self.machine, self.geometry, self.grid);
        // In tiles of a single row, no two taps share a load. A load takes a slot for each cache line
        // that it touches: one, and `crossing` more on average, as it begins at any element of a line.
        let crossing = ((grid.nr - 1) * size_of::<A>()) as f64 / size_of::<Line>() as f64;
        let load_slots = if grid.is_one_row { 1.0 + crossing } else { machine.prices().direct_loads };
        let sums = self.tile_cycles(load_slots) + self.columns_of_a_row();
        // Of a dense layer, other lowerings hold the weights of several channels in registers,
        // which loads less than this estimate has it.
        let longer = if geometry.group == 1 { machine.prices().direct_copied_dense } else { 1.0 };
        let vectors = geometry.out_channels_per_group() as f64 * self.vectors_of_rows(true);
        let rows = self.plane_rows() * machine.strided_copy(grid.w.stride);
        let row_vectors: usize = grid.phases.iter().map(|phase| (phase.to - phase.from).div_ceil(grid.lanes)).sum();
        let group = self.vector(sums) * (vectors * longer * self.groups_factor())
            + machine.work(Item::CopiedRows, rows * grid.phases.len() as f64)
            + machine.work(Item::CopiedVectors, rows * row_vectors as f64)
            + machine.work(Item::DepthwiseUnits, self.units());
        group * (geometry.batch * geometry.group) as f64
    }

    fn channels(&self) -> Work {
        let (machine, geometry, grid) = (self.machine, self.geometry, self.grid);
        let vector =
            self.vector(self.tile_cycles(1.0) + self.columns_of_a_row()) + machine.work(Item::SpreadVectors, 1.0);
        let vectors = geometry.out_channels_per_group() as f64 * self.rows() * grid.w.output as f64;
        let block = vector * vectors
            + machine.work(Item::GatheredVectors, self.plane_rows() * grid.w.input as f64)
            + machine.work(Item::DepthwiseUnits, 2.0 * self.units());
        block * (geometry.batch * geometry.group.div_ceil(grid.lanes)) as f64
    }

    /// A vector of sums, with `cycles` of arithmetic.
    fn vector(&self, cycles: f64) -> Work {
        self.machine.work(Item::ArithmeticCycles, cycles) + self.machine.work(Item::DepthwiseVectors, 1.0)
    }

    /// Cycles of the multiply-adds and loads of a vector of sums, where a vector of X takes
    /// `load_slots` slots of loads.
    fn tile_cycles(&self, load_slots: f64) -> f64 {
        let grid = self.grid;
        let (taps, rows) = (grid.taps() as f64, self.tile_rows as f64);
        let column_rows: f64 = self.column_taps.iter().map(|taps| rows + *taps as f64 - 1.0).sum();
        let vectors = column_rows * (grid.planes() * grid.w.kernel) as f64;
        self.machine.direct_tile_cycles(taps, (vectors * load_slots + taps) / rows, rows)
    }

    /// Tap columns for each row of a tile: each takes about a cycle.
    fn columns_of_a_row(&self) -> f64 {
        (self.column_taps.len() * self.grid.planes() * self.grid.w.kernel) as f64 / self.tile_rows as f64
    }

    /// Rows of an output channel.
    fn rows(&self) -> f64 {
        self.grid.outer_positions() as f64 * self.grid.h.output as f64
    }

    /// Vectors of an output channel, along rows, of which two tiles may share some.
    fn vectors_of_rows(&self, shares_vectors: bool) -> f64 {
        let sharing = if shares_vectors && !self.grid.is_one_row { self.tile_count } else { 1 };
        self.rows() * self.tiles[self.tile_rows - 1].vectors(self.grid.w.output, sharing)
    }

    /// Rows of the planes of all strips of a group.
    fn plane_rows(&self) -> f64 {
        let grid = self.grid;
        let of_strip = grid.rows(grid.extent).min(grid.h.input + grid.h.kernel) as f64;
        grid.planes() as f64 * of_strip * self.units()
    }

    /// Units of a group, or of a block of groups.
    fn units(&self) -> f64 {
        self.grid.outer_positions() as f64 * self.grid.strips() as f64
    }

    /// How much longer sums along rows take where groups have several channels.
    fn groups_factor(&self) -> f64 {
        let (geometry, prices) = (self.geometry, self.machine.prices());
        match (geometry.group, geometry.in_channels_per_group().max(geometry.out_channels_per_group())) {
            (1, _) => prices.direct_dense,
            (_, 1) => 1.0,
            _ => prices.direct_groups,
        }
    }

    /// The share of the taps along H that see a row of X: kernels leave out the others. Only the
    /// first and the last output rows see padding.
    fn share_of_taps_inside(&self) -> f64 {
        let h = &self.grid.h;
        let missing = |o: usize| (0..h.kernel).filter(|k| h.input_position(o, *k).is_none()).count();
        let first = h.kernel.min(h.output);
        let missing: usize = (0..first).chain(first.max(h.output - first)..h.output).map(missing).sum();
        1.0 - missing as f64 / (h.output as f64 * h.kernel as f64)
    }
}
