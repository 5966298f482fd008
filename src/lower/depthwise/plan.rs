//! The choice: along rows or along channels, strips and units, and what they cost.

use convoke_kernels::{DepthwiseKernel, DepthwiseKernels, DirectTable, Real};

use super::grid::{Along, Grid, MOST_BYTES};
use crate::Geometry;
use crate::element::Element;
use crate::lower::contract::Request;
use crate::lower::engine::RowPanels;
use crate::lower::shares::TASKS_PER_THREAD;
use crate::lower::sink::Finish;
use crate::machine::Machine;

/// Bytes of the planes of several groups of a unit, together: an absolute size until it is
/// measured with other caches.
const BATCH_BYTES: usize = 64 << 10;

/// Rows of a tile where X and Y leave the L2 cache.
const LARGE_ROWS: usize = 8;

/// Taps up to which that counts: with more, memory keeps up.
const LARGE_TAPS: usize = 9;

/// The choice of an orientation, without tables.
pub(super) struct Config<A: Real> {
    pub(super) grid: Grid,
    pub(super) tiles: &'static [DepthwiseKernel<A>],
    /// For kernels that read X itself, where they can.
    pub(super) direct_table: Option<DirectTable>,
    /// Groups of a unit.
    pub(super) batch: usize,
    pub(super) units: usize,
    pub(super) tasks: usize,
    pub(super) cycles: f64,
    /// Values of scratch: planes, sums, and rows on their way to or from a 16-bit type.
    pub(super) lens: [usize; 3],
}

impl<A: Real> Config<A> {
    /// None if the planes are too large.
    pub(super) fn new<T: Element<Acc = A>>(
        request: &Request<'_, T>,
        kernels: &DepthwiseKernels<A>,
        (along, tiles): (Along, &'static [DepthwiseKernel<A>]),
        most_bytes: usize,
    ) -> Option<Self> {
        let machine = request.machine;
        let (geometry, lanes, bytes) = (request.geometry, kernels.lanes(), size_of::<T::Acc>());
        let (mr, nr) = (tiles.last()?.mr(), tiles.last()?.nr());
        let mut grid = Grid::new(geometry, along, lanes, nr)?;
        let blocks = if along == Along::Rows { geometry.group } else { geometry.group.div_ceil(lanes) };
        let outputs = geometry.out_channels_per_group();
        // Kernels that read X: the highest that do, but not of so many rows that they are too many
        // streams where X and Y leave the L2 cache, unless they take them one after the other.
        let is_light = grid.h.kernel * grid.w.kernel * grid.channels <= LARGE_TAPS;
        let is_large =
            is_light && (geometry.input_len() + geometry.output_len()).saturating_mul(bytes) > machine.l2_bytes;
        let most = if is_large { LARGE_ROWS } else { mr };
        // Of a 16-bit type, a copy of whole channels stands in for X.
        let channels_len = grid.channels.checked_mul(geometry.input_spatial())?;
        let is_readable = T::DIRECT || channels_len.checked_mul(bytes)? <= MOST_BYTES.min(most_bytes);
        let by_rows = |(i, table): &(usize, DirectTable)| table.goes_by_rows(grid.w.output, &tiles[*i]);
        let reading = (0..mr)
            .rev()
            .filter_map(|i| Some((i, grid.direct_table(&tiles[i])?)))
            .find(|reading| reading.0 < most || by_rows(reading))
            .filter(|_| is_readable);
        let (tiles, direct_table) = match reading {
            Some((i, table)) => (&tiles[..=i], Some(table)),
            None => (tiles, None),
        };
        let (mr, reads_x) = (tiles.len(), direct_table.is_some());
        let shares_vectors = match &direct_table {
            Some(table) => {
                grid.w.stride == 1 && outputs == 1 && !table.goes_by_rows(grid.w.output, &tiles[tiles.len() - 1])
            }
            None => along == Along::Rows,
        };
        let others = geometry.batch * blocks * grid.outer_positions();
        let strips = if request.threads == 1 { 1 } else { (2 * request.threads).div_ceil(others) };
        if !grid.cut(machine, bytes, mr, strips) {
            return None;
        }
        // Threads get shares of whole channels if these are about equal; each has planes of its
        // own.
        let has_shares = others >= TASKS_PER_THREAD * request.threads || others.is_multiple_of(request.threads);
        let most_planes = if request.threads == 1 { MOST_BYTES } else { machine.l2_bytes / 2 };
        if reads_x && has_shares && grid.group_len(grid.h.output, most_planes.min(most_bytes), bytes).is_some() {
            // Nothing is copied: strips have no use but to be shared out, and to bound the planes
            // that weights which are not finite ask for.
            grid.extent = grid.h.output;
            grid.plane = grid.plane_len(grid.extent)?;
        }
        let batch = match along {
            // Only where all of a batch's output channels follow one another, and each thread still
            // gets some units.
            Along::Rows if geometry.out_channels_per_group() == 1 && grid.is_whole() => {
                let fitting = if !reads_x {
                    BATCH_BYTES.min(most_bytes) / (grid.planes() * grid.plane * bytes).max(1)
                } else if Finish::new(request).is_direct() {
                    // Nothing that should stay in a cache.
                    usize::MAX
                } else {
                    let copied = if T::DIRECT { 0 } else { channels_len };
                    BATCH_BYTES / ((geometry.output_spatial() + copied) * bytes)
                };
                let share = if request.threads == 1 {
                    usize::MAX
                } else {
                    geometry.batch * geometry.group / (TASKS_PER_THREAD * request.threads)
                };
                fitting.min(share).clamp(1, geometry.group)
            }
            Along::Rows => 1,
            Along::Channels => lanes,
        };
        let blocks = geometry.group.div_ceil(batch);
        let units = geometry.batch * blocks * grid.outer_positions() * grid.strips();
        let strip = grid.extent * grid.w.output;
        let is_direct = Finish::new(request).is_direct();
        let sums = match along {
            Along::Rows if is_direct => 0,
            Along::Rows => strip.checked_mul(outputs.max(batch))?,
            Along::Channels => strip.checked_mul(lanes)?,
        };
        let window = if along == Along::Channels { grid.rows(grid.extent).checked_mul(grid.w.input)? } else { 0 };
        if window.checked_mul(size_of::<u32>())? > MOST_BYTES || sums.checked_mul(bytes)? > MOST_BYTES {
            return None;
        }
        let staged = match along {
            Along::Channels if !T::DIRECT => window.max(strip) * lanes,
            Along::Channels if !is_direct => strip * lanes,
            Along::Rows if reads_x && !T::DIRECT => batch * channels_len,
            _ => 0,
        };
        let group = grid.planes() * grid.plane;
        // One group at a time where weights are not finite.
        let planes = if along == Along::Rows { group.checked_mul(if reads_x { 1 } else { batch })? } else { group };
        Some(Self {
            batch,
            units,
            tasks: units.min(TASKS_PER_THREAD * request.threads),
            tiles,
            direct_table,
            cycles: grid.cycles(machine, geometry, tiles, (reads_x, shares_vectors)) + machine.prices().task_cycles,
            lens: [planes, sums, staged],
            grid,
        })
    }
}

impl Grid {
    /// Estimated cycles of all units, for these kernels, which may read X, and of which two tiles
    /// may share vectors.
    fn cycles<A: Real>(
        &self,
        machine: &Machine,
        geometry: &Geometry,
        tiles: &[DepthwiseKernel<A>],
        (reads_x, shares_vectors): (bool, bool),
    ) -> f64 {
        let prices = machine.prices();
        let (k, pieces) = ((self.planes() * self.h.kernel * self.w.kernel) as f64, self.pieces());
        let tile_rows = RowPanels::new(self.extent.div_ceil(self.tile_step()), tiles.len());
        let tile_height = tile_rows.height(tile_rows.count() - 1).max(1);
        let rows = tile_height as f64;
        let columns = (pieces.len() * self.planes() * self.w.kernel) as f64;
        let loads = |weights: f64, unaligned: f64| {
            let rows_read: f64 = pieces.iter().map(|(_, taps)| rows + *taps as f64 - 1.0).sum();
            (rows_read * columns / pieces.len() as f64 * unaligned + weights) / rows / machine.loads_per_cycle
        };
        let outputs = (self.outer_positions() * self.h.output) as f64;
        let window = self.rows(self.extent).min(self.h.input + self.h.kernel) * self.strips() * self.outer_positions();
        let planes = (self.planes() * window) as f64;
        let images = geometry.batch as f64;
        let units = (self.outer_positions() * self.strips()) as f64;
        // Sums of few rows wait for one another; short ones overlap with the next tile's.
        let fma = (k / machine.fmas_per_cycle).max(k * prices.direct_wait_cycles / rows);
        match self.along {
            Along::Rows => {
                let sharing = if shares_vectors { tile_rows.count() } else { 1 };
                let vectors = tiles[tile_height - 1].vectors(self.w.output, sharing);
                let sums = fma.max(loads(k, prices.direct_loads)) + columns / rows + prices.direct_finish_cycles;
                let copied = self.phases.iter().map(|p| (p.to - p.from).div_ceil(self.lanes)).sum::<usize>() as f64;
                let strided = if self.w.stride > 2 { 2.0 } else { 1.0 };
                let copies =
                    planes * (prices.row_copy_cycles * strided * self.phases.len() as f64 + 2.0 * copied * strided);
                let groups = geometry.group as f64;
                let m = geometry.out_channels_per_group() as f64;
                let longer =
                    match (geometry.group, geometry.in_channels_per_group().max(geometry.out_channels_per_group())) {
                        (1, _) => prices.direct_dense,
                        (_, 1) => 1.0,
                        _ => prices.direct_groups,
                    };
                if reads_x {
                    // A split of two vectors for each pair of columns of both rows that an output
                    // row is ahead.
                    let splits = if self.w.stride == 2 { self.w.kernel as f64 } else { 0.0 };
                    // Rows of padding are left out; only the first and the last output rows see
                    // some.
                    let (height, taps) = (self.h.output, self.h.kernel);
                    let missing = |o: usize| (0..taps).filter(|k| self.h.input_position(o, *k).is_none()).count();
                    let first = taps.min(height);
                    let missing: usize = (0..first).chain(first.max(height - first)..height).map(missing).sum();
                    let there = 1.0 - missing as f64 / (height as f64 * taps as f64);
                    let sums = fma.max(loads(k, prices.direct_loads)) * there + splits + prices.direct_finish_cycles;
                    return images * groups * m * (outputs * vectors * longer * sums + prices.direct_finish_cycles);
                }
                // Of a dense layer, other lowerings hold the weights of several channels in
                // registers, which loads less than this estimate has it.
                let sums = if geometry.group == 1 { sums * prices.direct_copied_dense } else { sums };
                images * groups * (m * outputs * vectors * longer * sums + copies + units * prices.direct_unit_cycles)
            }
            Along::Channels => {
                let blocks = geometry.group.div_ceil(self.lanes) as f64;
                let sums = fma.max(loads(k, 1.0)) + columns / rows + prices.direct_finish_cycles + prices.gather_cycles;
                let m = geometry.out_channels_per_group() as f64;
                let gathered = planes * self.w.input as f64 * prices.gather_cycles;
                let units = units * prices.direct_unit_cycles * 2.0;
                images * blocks * (m * outputs * self.w.output as f64 * sums + gathered + units)
            }
        }
    }
}
