//! How the product is cut: tiles, chunks of positions, shares of the panels, blocks of K.

use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Prefetch, Real};

use super::source::{RowReading, SourcePlan, cropped, visible_runs};
use crate::blas::Blocks;
use crate::conv::contract::{Request, no_kernel};
use crate::conv::layout::WeightLayout;
use crate::conv::macro_kernel::{SpatialTiles, lanes};
use crate::conv::planes::{self, ChunkLimits, PER_THREAD, PlaneSizes};
use crate::conv::shares::{GemmSplit, Part, TASKS_PER_THREAD, even_share};
use crate::conv::view;
use crate::element::Element;
use crate::machine::{Item, Kind, Machine, Work};
use crate::{Axis, Geometry};

/// Steps of k in a block, at most, if several taps share a block of weights. A block is at least the
/// taps of one channel. With fewer steps, the way of sums to scratch and back would cost more; with more
/// steps, a block of A would leave the L2 cache. Packed weights depend on it, so it depends on no machine.
const MOST_STEPS: usize = 512;
/// Panels of A from which on packing B can pay: each reads it once more.
const PACK_PANELS: usize = 3;
/// The same where vectors that are read in place cross from one cache line into the next: because X does not
/// begin at a line, or because its rows are no whole lines and a tile, which is one line wide, would then read
/// two.
const PACK_PANELS_OFF_LINE: usize = 8;
/// Rows of X whose distance is a multiple of this many bytes fall into a quarter of the L1 cache's
/// sets, or fewer, and drive one another out; otherwise reading them in place is as fast as reading
/// a packed panel, and the packing is saved.
const CONFLICT_BYTES: usize = 1024;
/// Rows of X whose lines stay in the L1 cache, even if they fall into the same set.
const FEW_ROWS: usize = 8;
/// A cut into fewer tasks is taken only where it takes less than this share of the time, because with more
/// tasks it matters less if a thread is late.
const WORTH_IT: f64 = 0.97;

/// Steps of k in a block, at most, for rows of X: a panel of B of 32 columns of `f32` then just fills the L1
/// cache.
fn most_rows(machine: &Machine) -> usize {
    machine.l1_bytes / (32 * size_of::<f32>())
}

/// Bytes of the sums of one task, at most: with a block of A they stay in the L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// How the product is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GemmBlocking {
    pub(super) source: SourcePlan,
    /// Input channels in blocks of K.
    pub(super) k: Blocks,
    /// Input channels of a block of the packed weights: all, if there is one tap. The order of K then does
    /// not depend on the blocks.
    pub(super) packed_block: usize,
    /// Parts of K whose sums are kept in between: runs of taps of all blocks.
    pub(super) k_parts: usize,
    /// Vectors of columns of a full chunk.
    pub(super) vectors: usize,
    pub(super) split: GemmSplit,
}

/// A way to cut the product.
pub(super) struct GemmChoice<A: Real> {
    pub(super) blocking: GemmBlocking,
    pub(super) tiles: SpatialTiles<A>,
    /// What all tasks take.
    pub(super) work: Work,
}

impl<A: Real> GemmChoice<A> {
    /// The choice whose busiest thread ends first.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn best<T: Element<Acc = A>>(request: &Request<'_, T>, most_bytes: usize) -> Result<Self, String> {
        let search = GemmSearch { request, most_bytes };
        // Rows of B are rows of X, if each output reads one position.
        let is_pointwise = request.geometry.axes.iter().all(Axis::is_unit);
        let choices = if is_pointwise { search.of_rows()? } else { search.of_planes()? };
        let mut choices = choices.into_iter();
        let mut best = choices.next().expect("a search without an error has a choice");
        for other in choices {
            if search.latency_cycles(&other) < WORTH_IT * search.latency_cycles(&best) {
                best = other;
            }
        }
        Ok(best)
    }
}

/// The search for the best cut.
struct GemmSearch<'a, T: Element> {
    request: &'a Request<'a, T>,
    /// Bytes that the copy and the sums of a chunk should not exceed.
    most_bytes: usize,
}

impl<T: Element> GemmSearch<'_, T> {
    /// Cycles until the busiest thread is done. Beside its tasks, it reads what other threads read
    /// too: the weights, or with several shares of them the columns.
    fn latency_cycles(&self, choice: &GemmChoice<T::Acc>) -> f64 {
        let Request { geometry, machine, threads, .. } = *self.request;
        let GemmBlocking { split, vectors, source, .. } = choice.blocking;
        let columns = |part: &Part| match source {
            SourcePlan::Rows(..) => (self.vectors() - part.columns * vectors).min(vectors),
            SourcePlan::Planes(..) => vectors,
        };
        let of_part = |part: &Part| choice.tiles.panels.rows(&part.panels).len() * columns(part);
        let own = choice.work * (split.unevenness(threads, of_part) / threads as f64);
        let read = if split.shares == 1 {
            let groups = (geometry.batch * geometry.group).div_ceil(threads).min(geometry.group);
            (geometry.weight_len() / geometry.group) as f64 * groups as f64 * size_of::<T::Acc>() as f64
        } else {
            geometry.input_len() as f64 * size_of::<T>() as f64
        };
        let reading = read / machine.l3_bytes_per_cycle;
        machine.overlapped(own, Work::of(Kind::Fetches, reading)).cycles()
    }

    /// Vectors of columns of an image, if they are not cut.
    fn vectors(&self) -> usize {
        self.request.geometry.output_spatial().div_ceil(lanes::<T::Acc>(self.request.isa()))
    }

    /// The panel height of weights that are packed already.
    fn packed_height(&self) -> Result<Option<usize>, String> {
        match self.request.layout {
            None => Ok(None),
            Some(WeightLayout::Panels { mr, .. }) => Ok(Some(*mr)),
            Some(other) => Err(other.mismatch()),
        }
    }

    /// The cheapest tile, if each load of a vector of B takes `vector_slots` slots of a port.
    fn tiles(&self, vectors: usize, vector_slots: f64) -> Result<SpatialTiles<T::Acc>, String> {
        let Request { geometry, machine, .. } = *self.request;
        let mr = self.packed_height()?;
        SpatialTiles::choose(machine, geometry.out_channels_per_group(), vectors, mr, vector_slots)
            .ok_or_else(no_kernel)
    }

    /// What all tasks take. Each load of a vector of B takes `vector_slots` slots of a port, and a chunk
    /// copies as `copies` says.
    fn work(&self, blocking: &GemmBlocking, tiles: &SpatialTiles<T::Acc>, vector_slots: f64, copies: Work) -> Work {
        let Request { geometry, machine, .. } = *self.request;
        let GemmBlocking { vectors, k_parts, split, .. } = *blocking;
        let (rows, steps) =
            (geometry.out_channels_per_group(), cropped(geometry).kernel_volume() * geometry.in_channels_per_group());
        let kept = k_parts.saturating_sub(1) as f64 * (rows * vectors) as f64;
        let of_chunk = tiles.work(machine, vectors, steps, vector_slots)
            + tiles.finish_work(vectors, k_parts)
            + Item::STORED_VECTORS.times(kept)
            + copies * split.shares as f64
            + Item::TASKS.times(1.0);
        of_chunk * (split.images * split.groups * split.columns) as f64
    }

    /// Cuts for a source of padded planes: with chunks for several tasks of each thread, and for one.
    fn of_planes(&self) -> Result<Vec<GemmChoice<T::Acc>>, String> {
        let first = self.of_chunks(PER_THREAD[0])?;
        let others = if self.request.threads > 1 { self.of_chunks(PER_THREAD[1]).ok() } else { None };
        Ok([first].into_iter().chain(others).collect())
    }

    /// Chunks of planes for `per_thread` tasks of each thread, unless they would be too small. Where there
    /// are too few chunks to keep the threads busy, the panels are shared out, too.
    fn of_chunks(&self, per_thread: usize) -> Result<GemmChoice<T::Acc>, String> {
        let Request { geometry, machine, threads, .. } = *self.request;
        let (rows, channels, taps) =
            (geometry.out_channels_per_group(), geometry.in_channels_per_group(), geometry.kernel_volume());
        let axes = cropped(geometry).axes;
        let k = planes::channel_blocks(channels, taps, MOST_STEPS);
        let k_parts = k.count() * visible_runs(&geometry.axes);
        let a_bytes = (rows * k.size() * taps).saturating_mul(size_of::<T::Acc>());
        let budget_bytes = planes::budget_beside(machine, a_bytes).min(self.most_bytes);
        let limits = ChunkLimits { per_thread, ..ChunkLimits::new(self.request, k.size(), budget_bytes) };
        let sums_of = |columns: usize| if k_parts > 1 { columns.saturating_mul(rows) } else { 0 };
        let (cut, sizes) = limits.cut(&axes, sums_of).ok_or_else(|| planes::too_large(&geometry.axes))?;
        let lanes = lanes::<T::Acc>(self.request.isa());
        let vectors = sizes.columns.div_ceil(lanes);
        let vector_slots = if view::is_shifted(&axes) { machine.unaligned_slots::<T::Acc>(lanes) } else { 1.0 };
        let tiles = self.tiles(vectors, vector_slots)?;
        let (images, groups, columns, panels) = (geometry.batch, geometry.group, sizes.chunks, tiles.panels.count());
        let shares = if threads == 1 { 1 } else { threads.div_ceil(images * groups * columns).clamp(1, panels.max(1)) };
        let split = GemmSplit { images, groups, columns, panels, shares };
        let packed_block = if taps == 1 { channels } else { k.size() };
        let source = SourcePlan::Planes(cut, sizes);
        let blocking = GemmBlocking { source, k, packed_block, k_parts, vectors, split };
        let copies = self.plane_copies(&sizes);
        let work = self.work(&blocking, &tiles, vector_slots, copies);
        Ok(GemmChoice { blocking, tiles, work })
    }

    /// What a chunk of planes takes to fill.
    fn plane_copies(&self, sizes: &PlaneSizes) -> Work {
        let Request { geometry, .. } = *self.request;
        let elements = (geometry.in_channels_per_group() * sizes.channel_len) as f64;
        Item::COPIED_ELEMENTS.times(elements)
    }

    /// Cuts for a source of rows of X: threads share out the columns, or the panels.
    fn of_rows(&self) -> Result<Vec<GemmChoice<T::Acc>>, String> {
        let Request { geometry, machine, threads, .. } = *self.request;
        let (channels, positions) = (geometry.in_channels_per_group(), geometry.input_spatial());
        let k = Blocks::new(channels, most_rows(machine));
        if u32::try_from(k.size().saturating_mul(positions)).is_err() {
            let rows = k.size();
            return Err(alloc::format!("{rows} rows of X, of {positions} positions each, exceed 32-bit offsets"));
        }
        let tiles = || self.tiles(self.vectors(), self.row_slots());
        let mut choices = alloc::vec![self.of_columns(k, tiles()?)];
        if threads > 1 && threads <= choices[0].tiles.panels.count() {
            choices.push(self.of_panels(k, tiles()?));
        }
        Ok(choices)
    }

    /// Slots of a load port for a vector of a row of X. Rows follow one another without gaps. Those of
    /// 16-bit types are packed.
    fn row_slots(&self) -> f64 {
        if !T::DIRECT {
            return 1.0;
        }
        let Request { geometry, machine, .. } = *self.request;
        let (vector_bytes, row_bytes) =
            (lanes::<T::Acc>(machine.isa()) * size_of::<T>(), geometry.input_spatial() * size_of::<T>());
        machine.crossing_slots(vector_bytes, 1 << row_bytes.trailing_zeros())
    }

    /// Columns of a task are whole tiles, enough for every thread to have a few tasks.
    fn of_columns(&self, k: Blocks, tiles: SpatialTiles<T::Acc>) -> GemmChoice<T::Acc> {
        let Request { geometry, threads, .. } = *self.request;
        let (vectors, images, widest) = (self.vectors(), geometry.batch * geometry.group, tiles.widest());
        let of_task = (vectors * images).div_ceil(if threads == 1 { 1 } else { TASKS_PER_THREAD * threads });
        let most_tiles = self.most_vectors(&tiles, 1).min(of_task).div_ceil(widest);
        let task_vectors = even_share(vectors.div_ceil(widest), most_tiles, images, threads) * widest;
        let chunks = images * vectors.div_ceil(task_vectors);
        let shares =
            if threads == 1 { 1 } else { (2 * threads).div_ceil(chunks).clamp(1, tiles.panels.count().max(1)) };
        self.of_row_chunks(k, tiles, task_vectors, shares)
    }

    /// Each thread has a share of the panels, for as many columns as the sums of a task allow. So
    /// threads write whole rows of Y. Where rows are cut, two threads write the cache line in which
    /// one ends and the other begins.
    fn of_panels(&self, k: Blocks, tiles: SpatialTiles<T::Acc>) -> GemmChoice<T::Acc> {
        let (shares, widest) = (self.request.threads, tiles.widest());
        let most_tiles = self.most_vectors(&tiles, shares).min(self.vectors()).div_ceil(widest);
        self.of_row_chunks(k, tiles, most_tiles.max(1) * widest, shares)
    }

    /// Chunks of `task_vectors` vectors of columns, and panels in `shares` shares.
    fn of_row_chunks(
        &self,
        k: Blocks,
        tiles: SpatialTiles<T::Acc>,
        task_vectors: usize,
        shares: usize,
    ) -> GemmChoice<T::Acc> {
        let Request { geometry, .. } = *self.request;
        let (channels, panels) = (geometry.in_channels_per_group(), tiles.panels.count());
        let (columns, vectors) = (self.vectors().div_ceil(task_vectors), task_vectors.min(self.vectors()));
        let split = GemmSplit { images: geometry.batch, groups: geometry.group, columns, panels, shares };
        let reading = RowReading::new::<T>(geometry, panels, tiles.widest() * tiles.lanes);
        let source = SourcePlan::Rows(reading, task_vectors * tiles.lanes);
        let blocking = GemmBlocking { source, k, packed_block: channels, k_parts: k.count(), vectors, split };
        // As f64: hostile sizes may exceed usize.
        let (packed, vector_slots) = match reading {
            RowReading::Packed => (channels as f64 * (vectors * tiles.lanes) as f64, 1.0),
            RowReading::InPlace | RowReading::InPlaceIfAligned => (0.0, self.row_slots()),
        };
        // The last chunk counts as the part of a full one that it has.
        let part = self.vectors() as f64 / (vectors * columns) as f64;
        let work = self.work(&blocking, &tiles, vector_slots, Item::COPIED_ELEMENTS.times(packed)) * part;
        GemmChoice { blocking, tiles, work }
    }

    /// Vectors of columns whose sums a task keeps in the L2 cache, with panels in `shares` shares.
    fn most_vectors(&self, tiles: &SpatialTiles<T::Acc>, shares: usize) -> usize {
        let rows = tiles.panels.rows(&(0..tiles.panels.count().div_ceil(shares))).len();
        let bytes = sums_bytes(self.request.machine).min(self.most_bytes);
        bytes / size_of::<T::Acc>() / tiles.lanes / rows.max(1)
    }
}

impl RowReading {
    /// How rows of X are read by so many panels of A, in tiles of some columns.
    fn new<T: Element>(geometry: &Geometry, panels: usize, tile: usize) -> Self {
        let row_bytes = geometry.input_spatial() * size_of::<T>();
        let is_in_conflict = geometry.in_channels_per_group() > FEW_ROWS
            && row_bytes.is_multiple_of(CONFLICT_BYTES)
            && panels >= PACK_PANELS;
        let (may_pack, has_whole_lines) = (panels >= PACK_PANELS_OFF_LINE, row_bytes.is_multiple_of(Prefetch::LINE));
        let doubles_lines = !has_whole_lines && tile * size_of::<T>() <= Prefetch::LINE;
        if !T::DIRECT || is_in_conflict || (may_pack && doubles_lines) {
            Self::Packed
        } else if may_pack && has_whole_lines {
            Self::InPlaceIfAligned
        } else {
            Self::InPlace
        }
    }
}
