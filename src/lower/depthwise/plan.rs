//! How a layer is cut: which kernels, strips, units and tasks, and the scratch of a task.

use convoke_kernels::{DepthwiseKernel, DepthwiseKernels, DirectTable, Real};

use super::cost::DepthwiseCost;
use super::grid::{Along, Grid, MOST_BYTES};
use crate::element::Element;
use crate::lower::contract::Request;
use crate::lower::shares::TASKS_PER_THREAD;
use crate::machine::{Item, Work};

/// Bytes of the planes or sums of a unit of several groups, at most, so that they stay in a
/// cache: an absolute size until it is measured with other caches.
const UNIT_BYTES: usize = 64 << 10;

/// Rows of a tile where X and Y leave the L2 cache: higher tiles would read more streams than the
/// hardware fetches ahead.
const LARGE_ROWS: usize = 8;

/// Taps up to which [`LARGE_ROWS`] counts: with more, memory keeps up with the arithmetic.
const LARGE_TAPS: usize = 9;

/// What vectors run along, and the kernels for that.
#[derive(Clone, Copy)]
pub(super) struct Orientation<A: Real> {
    pub(super) along: Along,
    /// One kernel for each number of rows from 1 on.
    pub(super) tiles: &'static [DepthwiseKernel<A>],
    /// Whether the vectors of a single row are the rows of tiles: `Grid::is_one_row`.
    pub(super) is_one_row: bool,
}

/// What was decided for one orientation, without tables.
pub(super) struct DepthwisePlan<A: Real> {
    pub(super) grid: Grid,
    pub(super) tiles: &'static [DepthwiseKernel<A>],
    /// The table of kernels that read X itself; none where planes are read.
    pub(super) direct_table: Option<DirectTable>,
    /// Groups of a unit.
    pub(super) unit_groups: usize,
    pub(super) units: usize,
    pub(super) tasks: usize,
    pub(super) scratch: DepthwiseScratch,
    /// What all tasks take.
    pub(super) work: Work,
}

/// Values of scratch of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DepthwiseScratch {
    pub(super) planes: usize,
    pub(super) sums: usize,
    /// Rows on their way from or to a 16-bit type, or through the general epilogue.
    pub(super) staged: usize,
}

impl<A: Real> DepthwisePlan<A> {
    /// None if the planes are too large. Copies and sums take at most `most_bytes` each.
    pub(super) fn new<T: Element<Acc = A>>(
        request: &Request<'_, T>,
        kernels: &DepthwiseKernels<A>,
        orientation: Orientation<A>,
        is_direct: bool,
        most_bytes: usize,
    ) -> Option<Self> {
        let Orientation { along, tiles, is_one_row } = orientation;
        let geometry = request.geometry;
        let grid = Grid::new(geometry, along, (kernels.lanes(), tiles.last()?.nr()), is_one_row)?;
        let channels_len = grid.channels.checked_mul(geometry.input_spatial())?;
        let widened_len = if T::DIRECT { 0 } else { channels_len };
        let mut draft = DepthwiseDraft { request, grid, tiles, direct_table: None, widened_len, is_direct, most_bytes };
        if !is_one_row && widened_len.checked_mul(size_of::<A>())? <= MOST_BYTES.min(most_bytes) {
            draft.read_x();
        }
        draft.cut()?;
        let unit_groups = draft.unit_groups();
        let scratch = draft.scratch(unit_groups)?;
        let DepthwiseDraft { grid, tiles, direct_table, .. } = draft;
        let blocks = geometry.group.div_ceil(unit_groups);
        let units = geometry.batch * blocks * grid.outer_positions() * grid.strips();
        let work = DepthwiseCost::new(request.machine, geometry, &grid, tiles).work(direct_table.as_ref())
            + request.machine.work(Item::Tasks, 1.0);
        let tasks = units.min(TASKS_PER_THREAD * request.threads);
        Some(Self { grid, tiles, direct_table, unit_groups, units, tasks, scratch, work })
    }

    /// The kernel of the highest tiles of a strip.
    pub(super) fn kernel(&self) -> &'static str {
        let panels = self.grid.panels(self.tiles.len());
        self.tiles[panels.height(0) - 1].name()
    }
}

/// A plan that is being made.
struct DepthwiseDraft<'a, T: Element> {
    request: &'a Request<'a, T>,
    grid: Grid,
    tiles: &'static [DepthwiseKernel<T::Acc>],
    direct_table: Option<DirectTable>,
    /// Values of a group's channels where they are widened before kernels read them; 0 where
    /// kernels read X itself.
    widened_len: usize,
    /// Whether kernels store into Y.
    is_direct: bool,
    most_bytes: usize,
}

impl<T: Element> DepthwiseDraft<'_, T> {
    /// Takes the kernels up to the highest one that can read X. Where X and Y leave the L2 cache,
    /// that is one of few rows, unless it takes its rows one after the other.
    fn read_x(&mut self) {
        let (grid, geometry) = (&self.grid, self.request.geometry);
        let is_light = grid.h.kernel * grid.w.kernel * grid.channels <= LARGE_TAPS;
        let bytes = (geometry.input_len() + geometry.output_len()).saturating_mul(size_of::<T::Acc>());
        let is_large = is_light && bytes > self.request.machine.l2_bytes;
        let most_rows = if is_large { LARGE_ROWS } else { self.tiles.len() };
        let reading = self.tiles.iter().enumerate().rev().find_map(|(i, kernel)| {
            let table = grid.direct_table(kernel)?;
            (i < most_rows || table.goes_by_rows(grid.w.output, kernel)).then_some((i, table))
        });
        if let Some((highest, table)) = reading {
            self.tiles = &self.tiles[..=highest];
            self.direct_table = Some(table);
        }
    }

    fn reads_x(&self) -> bool {
        self.direct_table.is_some()
    }

    /// Sets the strips; none if the planes are too large.
    fn cut(&mut self) -> Option<()> {
        let (reads_x, machine, threads) = (self.reads_x(), self.request.machine, self.request.threads);
        let (grid, geometry, bytes) = (&mut self.grid, self.request.geometry, size_of::<T::Acc>());
        let blocks = if grid.along == Along::Rows { geometry.group } else { geometry.group.div_ceil(grid.lanes) };
        let others = geometry.batch * blocks * grid.outer_positions();
        let strips = if threads == 1 { 1 } else { (2 * threads).div_ceil(others) };
        if !grid.cut(machine, bytes, self.tiles.len(), strips) {
            return None;
        }
        // Threads get shares of whole channels if these are about equal; each has planes of its
        // own.
        let has_shares = others >= TASKS_PER_THREAD * threads || others.is_multiple_of(threads);
        let most_planes = if threads == 1 { MOST_BYTES } else { machine.l2_bytes / 2 };
        if reads_x && has_shares && grid.group_len(grid.h.output, most_planes.min(self.most_bytes), bytes).is_some() {
            // Nothing is copied, so that strips are of no use but to be shared out. The planes are
            // for weights that are not finite, and bounded for them.
            grid.extent = grid.h.output;
            grid.plane = grid.plane_len(grid.extent)?;
        }
        Some(())
    }

    /// Groups of a unit.
    fn unit_groups(&self) -> usize {
        let (geometry, threads, grid) = (self.request.geometry, self.request.threads, &self.grid);
        if grid.along == Along::Channels {
            return grid.lanes;
        }
        // Output channels of several groups have to follow one another.
        if geometry.out_channels_per_group() > 1 || !grid.is_whole() {
            return 1;
        }
        let bytes = size_of::<T::Acc>();
        let fitting = if !self.reads_x() {
            UNIT_BYTES.min(self.most_bytes) / (grid.planes() * grid.plane * bytes).max(1)
        } else if self.is_direct {
            // There is nothing that should stay in a cache.
            usize::MAX
        } else {
            UNIT_BYTES / ((geometry.output_spatial() + self.widened_len) * bytes)
        };
        // Each thread still gets some units.
        let share =
            if threads == 1 { usize::MAX } else { geometry.batch * geometry.group / (TASKS_PER_THREAD * threads) };
        fitting.min(share).clamp(1, geometry.group)
    }

    /// What a task of units of `unit_groups` groups needs; none if that is too large.
    fn scratch(&self, unit_groups: usize) -> Option<DepthwiseScratch> {
        let (grid, bytes) = (&self.grid, size_of::<T::Acc>());
        let outputs = self.request.geometry.out_channels_per_group();
        let strip = grid.extent * grid.w.output;
        let sums = match grid.along {
            Along::Rows if self.is_direct => 0,
            Along::Rows => strip.checked_mul(outputs.max(unit_groups))?,
            Along::Channels => strip.checked_mul(grid.lanes)?,
        };
        // The positions of X that a strip sees. There is a table of them along channels, and a copy
        // where rows of a 16-bit type are split after they were widened.
        let is_split = !T::DIRECT && grid.w.stride > 1 && grid.is_vectorised();
        let is_needed = grid.along == Along::Channels || is_split;
        let seen = if is_needed { grid.rows(grid.extent).checked_mul(grid.w.input)? } else { 0 };
        if seen.checked_mul(size_of::<u32>())? > MOST_BYTES || sums.checked_mul(bytes)? > MOST_BYTES {
            return None;
        }
        let staged = match grid.along {
            Along::Channels if !T::DIRECT => seen.max(strip) * grid.lanes,
            Along::Channels if !self.is_direct => strip * grid.lanes,
            Along::Rows if self.reads_x() => (unit_groups * self.widened_len).max(seen),
            Along::Rows => seen,
            Along::Channels => 0,
        };
        // If weights are not finite, planes are read where X would have been read, and they are
        // made for one group at a time.
        let groups = if grid.along == Along::Rows && !self.reads_x() { unit_groups } else { 1 };
        let planes = (grid.planes() * grid.plane).checked_mul(groups)?;
        Some(DepthwiseScratch { planes, sums, staged })
    }
}
