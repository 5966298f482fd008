//! How a layer is cut: what kernels read, units, tasks, and scratch.

use convoke_kernels::{DepthwiseKernel, DepthwiseKernels, DirectTable, Real};

use super::taps::{Along, TapColumns};
use crate::conv::contract::Request;
use crate::conv::macro_kernel::RowPanels;
use crate::conv::planes::{self, ChunkCut, ChunkLimits, MOST_BYTES, PlaneSizes, positions_on};
use crate::conv::shares::TASKS_PER_THREAD;
use crate::element::Element;
use crate::{Axis, Geometry};

/// Bytes of the planes, of the converted channels or of the sums of a unit of several groups, at most,
/// so that they stay in a cache. An absolute size, because it was not measured with other caches.
const UNIT_BYTES: usize = 64 << 10;
/// Bytes of each piece of scratch for weights that are packed along channels, at most: a limit of memory.
const MOST_FIXED_BYTES: usize = 64 << 20;

/// Rows of a tile if X and Y leave the L2 cache: taller tiles would read more streams than the hardware
/// prefetches.
const LARGE_ROWS: usize = 8;

/// [`LARGE_ROWS`] counts up to so many taps. With more, memory keeps up with the arithmetic.
const LARGE_TAPS: usize = 9;

/// A single row of up to so many vectors is read from X itself. For a longer one, a copy takes less than
/// it saves.
const SHORT_ROW_VECTORS: usize = 4;

#[derive(Debug, Clone)]
pub(super) enum DepthwiseSource {
    /// X itself, or a converted copy. A chunk is `rows` output rows.
    X { table: DirectTable, rows: usize },
    /// Padded planes, one copy for each chunk.
    Planes { cut: ChunkCut, sizes: PlaneSizes },
}

/// The decisions for one orientation, without tables of planes.
pub(super) struct DepthwisePlan<A: Real> {
    pub(super) taps: TapColumns,
    /// One kernel for each number of rows from 1 on.
    pub(super) tiles: &'static [DepthwiseKernel<A>],
    pub(super) source: DepthwiseSource,
    /// Chunks of an output channel.
    pub(super) chunks: usize,
    pub(super) unit_groups: usize,
    pub(super) units: usize,
    pub(super) tasks: usize,
    pub(super) scratch: DepthwiseScratch,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DepthwiseScratch {
    /// Of channels of a 16-bit type that are converted.
    pub(super) converted: usize,
    pub(super) planes: usize,
    pub(super) sums: usize,
}

impl<A: Real> DepthwisePlan<A> {
    /// None if the planes are too large. Copies and sums take at most `most_bytes` each.
    pub(super) fn new<T: Element<Acc = A>>(
        request: &Request<'_, T>,
        kernels: &DepthwiseKernels<A>,
        along: Along,
        is_direct: bool,
        most_bytes: usize,
    ) -> Option<Self> {
        let geometry = request.geometry;
        let taps = TapColumns::new(geometry, along)?;
        let tiles = match along {
            Along::Rows => tiles_of_rows(&taps, kernels),
            Along::Channels => kernels.channels(),
        };
        let lanes = if along == Along::Channels { kernels.lanes() } else { 1 };
        let draft = DepthwiseDraft { request, taps, lanes, is_direct, most_bytes: most_bytes.min(MOST_BYTES) };
        let (source, tiles) = match draft.read_x(tiles) {
            Some((table, tiles)) => (DepthwiseSource::X { table, rows: draft.rows_of_chunk(tiles.len()) }, tiles),
            None => (draft.planes(request.machine.l2_bytes / 4)?, tiles),
        };
        let (chunks, positions) = source.chunks(geometry);
        let unit_groups = draft.unit_groups(&source, chunks);
        let scratch = draft.scratch(&source, positions, unit_groups, tiles.last()?.lanes())?;
        let units = geometry.batch * geometry.group.div_ceil(unit_groups) * chunks;
        let tasks = units.min(TASKS_PER_THREAD * request.threads);
        let taps = draft.taps;
        Some(Self { taps, tiles, source, chunks, unit_groups, units, tasks, scratch })
    }

    /// The tiles of the largest chunk, one below the other.
    pub(super) fn panels(&self, geometry: &Geometry) -> RowPanels {
        let (_, rows, width) = self.source.shape(geometry, &self.taps, self.source.chunks(geometry).1);
        let rows = match self.source {
            DepthwiseSource::Planes { .. } if self.taps.is_one_row => width / self.tiles[0].lanes(),
            _ => rows.div_ceil(self.taps.tile_step()),
        };
        RowPanels::new(rows.max(1), self.tiles.len())
    }

    /// The kernel of the tallest tiles.
    pub(super) fn kernel(&self, geometry: &Geometry) -> &'static str {
        self.tiles[self.panels(geometry).height(0) - 1].name()
    }
}

/// The kernels along rows. Rows that fit a short vector have kernels of their own, without stride.
fn tiles_of_rows<A: Real>(taps: &TapColumns, kernels: &DepthwiseKernels<A>) -> &'static [DepthwiseKernel<A>] {
    let fits = |kernel: &DepthwiseKernel<A>| taps.w.stride == 1 && taps.w.output <= kernel.lanes();
    if kernels.narrow().first().is_some_and(fits) { kernels.narrow() } else { kernels.rows() }
}

impl DepthwiseSource {
    /// The chunks of an output channel, and the positions of a chunk. The last one may have fewer.
    pub(super) fn chunks(&self, geometry: &Geometry) -> (usize, usize) {
        match self {
            Self::X { rows, .. } => {
                let width = geometry.axes.last().map_or(1, |w| w.output);
                let all = geometry.output_spatial() / width;
                (all.div_ceil(*rows), rows * width)
            }
            Self::Planes { cut, sizes } => {
                let positions = (0..geometry.axes.len()).map(|i| positions_on(&geometry.axes, *cut, i));
                (sizes.chunks, positions.product())
            }
        }
    }

    /// The blocks of rows of a chunk of `positions` positions, the rows of a block, and their width.
    pub(super) fn shape(&self, geometry: &Geometry, taps: &TapColumns, positions: usize) -> (usize, usize, usize) {
        let is_cut_within_rows = match self {
            Self::X { .. } => false,
            Self::Planes { cut, .. } => taps.w != Axis::UNIT && cut.axis + 1 == geometry.axes.len(),
        };
        let width = if is_cut_within_rows { positions } else { taps.w.output };
        let rows = (positions / width).min(taps.h.output);
        (positions / width / rows, rows, width)
    }
}

struct DepthwiseDraft<'a, T: Element> {
    request: &'a Request<'a, T>,
    taps: TapColumns,
    /// Groups side by side in the planes: 1 along rows.
    lanes: usize,
    is_direct: bool,
    most_bytes: usize,
}

impl<T: Element> DepthwiseDraft<'_, T> {
    /// Values of a group's channels, if they are converted before kernels read them.
    fn converted_len(&self) -> usize {
        if T::DIRECT { 0 } else { self.taps.channels.saturating_mul(self.request.geometry.input_spatial()) }
    }

    /// The table of the tallest kernel that can read X, and the kernels up to it. If X and Y leave the
    /// L2 cache, the kernel has few rows, unless it takes its rows one after the other.
    fn read_x(
        &self,
        tiles: &'static [DepthwiseKernel<T::Acc>],
    ) -> Option<(DirectTable, &'static [DepthwiseKernel<T::Acc>])> {
        let (taps, geometry) = (&self.taps, self.request.geometry);
        let bytes = (geometry.input_len() + geometry.output_len()).saturating_mul(size_of::<T::Acc>());
        let is_large = taps.count() <= LARGE_TAPS && bytes > self.request.machine.l2_bytes;
        let most_rows = if is_large { LARGE_ROWS } else { tiles.len() };
        if taps.is_one_row && taps.w.output > SHORT_ROW_VECTORS * tiles.first()?.lanes() {
            return None;
        }
        // Sums from X have another order than sums from planes, so that a limit must not decide this.
        if self.converted_len().saturating_mul(size_of::<T::Acc>()) > MOST_BYTES {
            return None;
        }
        tiles.iter().enumerate().rev().find_map(|(i, kernel)| {
            let table = taps.direct_table(kernel)?;
            (i < most_rows || table.goes_by_rows(taps.w.output, kernel)).then_some((table, &tiles[..=i]))
        })
    }

    /// Rows of a chunk if kernels read X. As nothing is copied, a channel is cut only if there are too
    /// few channels for equal shares.
    fn rows_of_chunk(&self, tile: usize) -> usize {
        let (geometry, threads, rows) = (self.request.geometry, self.request.threads, self.taps.h.output);
        let channels = geometry.batch * geometry.group;
        if threads == 1 || channels >= TASKS_PER_THREAD * threads || channels.is_multiple_of(threads) {
            return rows;
        }
        let chunks = (2 * threads).div_ceil(channels);
        rows.div_ceil(chunks).next_multiple_of(tile).min(rows)
    }

    /// The largest chunks whose planes take at most `bytes`. None if they are too large.
    fn planes(&self, bytes: usize) -> Option<DepthwiseSource> {
        let geometry = self.request.geometry;
        if self.taps.along == Along::Channels {
            return self.whole_planes(bytes);
        }
        let limits = ChunkLimits::new(self.request, self.taps.channels.max(1), bytes.min(self.most_bytes));
        let outputs = if self.is_direct { 0 } else { self.outputs() };
        let (cut, sizes) = limits.cut(&geometry.axes, |columns| columns.saturating_mul(outputs))?;
        Some(DepthwiseSource::Planes { cut, sizes })
    }

    /// One chunk, whose planes take at most `bytes`: along channels, planes have a place for each
    /// element of a channel. They may be larger if weights are packed for that.
    fn whole_planes(&self, bytes: usize) -> Option<DepthwiseSource> {
        let axes = &self.request.geometry.axes;
        let cut = ChunkCut { axis: 0, extent: axes[0].output };
        let sizes = planes::sizes(axes, cut)?;
        let channels = sizes.channel_len.checked_mul(self.taps.channels)?;
        let values = channels.checked_add(sizes.columns)?.checked_mul(self.lanes)?;
        let most_bytes = if self.request.layout.is_some() { self.limit() } else { bytes.min(self.most_bytes) };
        (values.checked_mul(size_of::<T::Acc>())? <= most_bytes).then_some(DepthwiseSource::Planes { cut, sizes })
    }

    /// Bytes of each piece of scratch, at most. Weights that are packed along channels leave no choice.
    fn limit(&self) -> usize {
        let is_fixed = self.taps.along == Along::Channels && self.request.layout.is_some();
        if is_fixed { MOST_FIXED_BYTES } else { MOST_BYTES }
    }

    /// Output channels whose sums are kept at a time.
    fn outputs(&self) -> usize {
        if self.lanes > 1 { self.lanes } else { self.request.geometry.out_channels_per_group() }
    }

    /// Groups of a unit.
    fn unit_groups(&self, source: &DepthwiseSource, chunks: usize) -> usize {
        let (geometry, threads) = (self.request.geometry, self.request.threads);
        if self.taps.along == Along::Channels {
            return self.lanes;
        }
        // Output channels of several groups have to follow one another.
        if geometry.out_channels_per_group() > 1 || chunks > 1 {
            return 1;
        }
        let group_len = match source {
            DepthwiseSource::Planes { sizes, .. } => self.taps.channels * sizes.channel_len,
            // Nothing needs to stay in a cache.
            DepthwiseSource::X { .. } if self.is_direct => 0,
            DepthwiseSource::X { .. } => geometry.output_spatial() + self.converted_len(),
        };
        let fitting = UNIT_BYTES.min(self.most_bytes).checked_div(group_len * size_of::<T::Acc>());
        let share =
            if threads == 1 { usize::MAX } else { geometry.batch * geometry.group / (TASKS_PER_THREAD * threads) };
        fitting.unwrap_or(usize::MAX).min(share).clamp(1, geometry.group)
    }

    /// What a task of units of `unit_groups` groups, with chunks of `positions` positions, needs. None
    /// if that is too large. Kernels read up to a vector of `nr` elements behind the planes.
    fn scratch(
        &self,
        source: &DepthwiseSource,
        positions: usize,
        unit_groups: usize,
        nr: usize,
    ) -> Option<DepthwiseScratch> {
        let is_transposed = self.taps.along == Along::Channels;
        let sums = positions.checked_mul(self.outputs().max(unit_groups))?;
        let (planes, reads_x) = match source {
            DepthwiseSource::X { .. } => (0, true),
            DepthwiseSource::Planes { sizes, .. } => {
                (unit_groups * self.taps.channels * self.taps.channel_len(sizes.channel_len) + nr, is_transposed)
            }
        };
        let scratch = DepthwiseScratch {
            converted: if reads_x { unit_groups.checked_mul(self.converted_len())? } else { 0 },
            planes,
            // Along channels, sums are then transposed into rows.
            sums: match (is_transposed, self.is_direct) {
                (false, true) => 0,
                (true, false) => 2 * sums,
                _ => sums,
            },
        };
        let most = scratch.converted.max(scratch.planes).max(scratch.sums).checked_mul(size_of::<T::Acc>())?;
        (most <= self.limit()).then_some(scratch)
    }
}
