//! What a layer takes with a tile and a blocking, by estimate, and the search for the best blocking.

use alloc::vec::Vec;
use core::iter;

use convoke_kernels::Real;
use convoke_kernels::catalogue::{channel_widths, pixel_widths};

use super::blocking::{BlockSize, Blocking, Chunk, MOST_IMAGES, MOST_SLICES, MOST_TILES, TileBlocks};
use super::tiles::{STANDARD_VALUES, Scheme, TileSteps, is_ragged};
use super::view::{PixelStores, WinogradView, distance};
use crate::conv::channel_tiles::ChannelPanels;
use crate::machine::{Item, Kind, Machine, Work, prices};

/// The most bytes of a task's scratch. More bytes gain nothing, and memory is limited. A limit of
/// the workspace changes nothing if it leaves a task so many.
pub(super) const MOST_SCRATCH_BYTES: usize = 8 << 20;
/// Blocks of so many rows, or columns, of tiles are tried.
const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 28, 40, 64, 96, 160, 256];
/// Chunks have more slices only where that takes less than this share of the time, because more slices
/// take more scratch.
const WORTH_IT: f64 = 0.97;

/// A blocking with what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockingEstimate<T: Real> {
    pub(super) blocking: Blocking<T>,
    /// Cycles until all threads are done.
    pub(super) latency_cycles: f64,
    /// What all tasks take.
    pub(super) work: Work,
}

/// A layer with a tile on a machine: what blockings are estimated for.
pub(super) struct CostModel<'a, T: Real> {
    machine: &'a Machine,
    view: &'a WinogradView,
    pub(super) scheme: Scheme<T>,
    /// Cycles of one step of k of the kernels for wide panels, by their tiles.
    step_cycles: Vec<f64>,
    panels: ChannelPanels,
    /// Panels of a group's filters.
    count: usize,
    /// Steps of k of a value for a slice of Y, on average.
    steps: f64,
    /// Bytes of the filters of one panel, for all values.
    filter_bytes: f64,
}

impl<'a, T: Real> CostModel<'a, T> {
    /// None where the layer has too many steps, or there are no kernels.
    pub(super) fn new(machine: &'a Machine, view: &'a WinogradView, scheme: Scheme<T>) -> Option<Self> {
        if !scheme.has_few_steps(view) {
            return None;
        }
        let panels = ChannelPanels::new::<T>(machine.isa())?;
        let step_cycles = if view.reads_pixels {
            // Places are read once for a tap, and not with each step.
            let kernels = pixel_widths::<T>(machine.isa()).last()?.iter();
            kernels.map(|kernel| machine.tile_cycles(kernel.fmas(), kernel.loads() as f64 - 1.0)).collect()
        } else {
            let kernels = channel_widths::<T>(machine.isa()).last()?.iter();
            kernels.map(|kernel| machine.tile_cycles(kernel.fmas(), kernel.loads() as f64)).collect()
        };
        let all = (view.roles.depth.kernel * TileSteps::new(view, &scheme).all()) as f64;
        let (steps, filter_bytes) = (all / scheme.kernel.values() as f64, all * (panels.wide * size_of::<T>()) as f64);
        let count = view.filters.div_ceil(panels.wide).max(1);
        Some(Self { machine, view, scheme, step_cycles, panels, count, steps, filter_bytes })
    }

    /// The best blocking for `threads` threads, with the scratch of a task in at most `most_bytes`
    /// where that can be. Blocks have whole rows of tiles if these fit: rows of Y are written faster
    /// so.
    pub(super) fn best(&self, threads: usize, most_bytes: usize) -> Option<BlockingEstimate<T>> {
        let most_bytes = most_bytes.min(MOST_SCRATCH_BYTES);
        let (rows, columns) = (self.rows(threads), self.columns());
        let bytes = |blocks: &&TileBlocks| blocks.scratch_bytes(self.view, &self.scheme, Chunk::ONE);
        let best = |blocks: &[TileBlocks]| {
            let fitting = blocks.iter().filter(|blocks| bytes(blocks) <= most_bytes);
            let estimates = fitting.flat_map(|blocks| {
                // Tasks are the blocks, or as many parts of the panels as there are threads, too.
                let parts = iter::once(1).chain((threads > 1).then_some(threads));
                parts.map(|parts| self.estimate(*blocks, parts, threads, most_bytes))
            });
            estimates.min_by(|a, b| a.latency_cycles.total_cmp(&b.latency_cycles))
        };
        // Where all exceed the limit, the least is offered, so that the planner can say how much is
        // needed.
        let least = || rows.iter().chain(&columns).filter(|b| bytes(b) <= MOST_SCRATCH_BYTES).min_by_key(bytes);
        let offered = || Some(self.estimate(*least()?, 1, threads, 0));
        best(&rows).or_else(|| best(&columns)).or_else(offered)
    }

    fn blocks(&self, images: usize, parts: [usize; 2]) -> Option<TileBlocks> {
        TileBlocks::new(self.view, &self.scheme, images, parts)
    }

    /// Blocks of whole rows of tiles: of several small images, where there are more images than
    /// threads, or of one.
    fn rows(&self, threads: usize) -> Vec<TileBlocks> {
        let [rows, columns] = self.scheme.grid(&self.view.roles);
        let batch = self.view.roles.sub_images(self.view.batch);
        let most = batch.div_ceil(threads).min(MOST_IMAGES).min(MOST_TILES / rows.saturating_mul(columns).max(1));
        // As many images, or rows, for each thread.
        let even = |all: usize, of_block: usize| all.div_ceil(of_block).checked_next_multiple_of(threads);
        let images = iter::successors(Some(2), |images| Some(2 * images)).take_while(|images| *images < 2 * most);
        let images = images.map(|images| images.min(most)).flat_map(|images| {
            let even = even(batch, images).map(|blocks| batch.div_ceil(blocks));
            iter::once(images).chain(even.filter(|even| *even > 1))
        });
        let heights = lengths(rows).filter(|height| height.saturating_mul(columns) <= MOST_TILES);
        let parts = heights.flat_map(|height| iter::once(rows.div_ceil(height)).chain(even(rows, height)));
        let parts = parts.filter_map(|parts| self.blocks(1, [parts, 1]));
        let mut blocks: Vec<_> = images.filter_map(|images| self.blocks(images, [1, 1])).chain(parts).collect();
        blocks.dedup();
        blocks
    }

    /// Blocks of parts of one row of tiles.
    fn columns(&self) -> Vec<TileBlocks> {
        let [rows, columns] = self.scheme.grid(&self.view.roles);
        let widths = lengths(columns).filter(|width| *width <= MOST_TILES);
        widths.filter_map(|width| self.blocks(1, [rows, columns.div_ceil(width)])).collect()
    }

    /// What a blocking takes on `threads` threads, with the scratch of a task in at most `most_bytes`
    /// where that can be.
    fn estimate(&self, blocks: TileBlocks, parts: usize, threads: usize, most_bytes: usize) -> BlockingEstimate<T> {
        let (view, scheme, parts) = (self.view, self.scheme, parts.min(self.count));
        let fits = |chunk: Chunk| blocks.scratch_bytes(view, &scheme, chunk) <= most_bytes;
        let of_slices = |slices: usize| {
            let chunk = self.chunk(&blocks.largest(), slices, self.count.div_ceil(parts), fits);
            let blocking = Blocking { scheme, blocks, parts, chunk };
            let (work, longest) = self.all_tasks(&blocking);
            BlockingEstimate { blocking, latency_cycles: self.latency(&blocking, threads, &work, longest), work }
        };
        let mut best = of_slices(1);
        for slices in self.numbers_of_slices().take_while(|slices| fits(Chunk { panels: 1, slices: *slices })) {
            let more = of_slices(slices);
            if more.latency_cycles < WORTH_IT * best.latency_cycles {
                best = more;
            }
        }
        best
    }

    /// The numbers of slices of Y of a chunk that are tried beside 1. Chunks have nearly as many each:
    /// there are half as many chunks as slices, and so on.
    fn numbers_of_slices(&self) -> impl Iterator<Item = usize> + use<T> {
        let all = self.slices_of_task();
        let chunks = iter::successors(Some(all), |chunks| (*chunks > 1).then(|| chunks.div_ceil(2)));
        chunks.skip(1).map(move |chunks| all.div_ceil(chunks)).take_while(|slices| *slices <= MOST_SLICES)
    }

    /// Slices of Y that a task computes. Without taps on the outer axis, its slices are tasks of their
    /// own.
    fn slices_of_task(&self) -> usize {
        let depth = self.view.roles.depth;
        if depth.kernel == 1 { 1 } else { depth.output.max(1) }
    }

    /// The chunk of `slices` slices whose panels, of `panels` in all, wait least for what left the L2
    /// cache: the fewest panels that reach this, among chunks that fit.
    fn chunk(&self, size: &BlockSize, slices: usize, panels: usize, fits: impl Fn(Chunk) -> bool) -> Chunk {
        let waiting = |chunk: Chunk| Traffic::new(self, size, chunk).waiting(self, panels, chunk).cycles();
        let one = Chunk { panels: 1, slices };
        let (mut best, mut least) = (one, waiting(one));
        let more = iter::successors(Some(2), |panels| Some(2 * panels)).take_while(|more| *more < 2 * panels);
        for chunk in more.map(|more| Chunk { panels: more.min(panels), slices }).take_while(|chunk| fits(*chunk)) {
            let cycles = waiting(chunk);
            if cycles < least {
                (best, least) = (chunk, cycles);
            }
        }
        best
    }

    /// Cycles until `threads` threads are done with tasks of this `work`, the longest of which takes
    /// `longest`.
    fn latency(&self, blocking: &Blocking<T>, threads: usize, work: &Work, longest: f64) -> f64 {
        let tasks = blocking.tasks(self.view);
        if tasks <= threads {
            return longest;
        }
        // One thread may have more tasks than others.
        tasks.div_ceil(threads) as f64 * work.cycles() / tasks as f64
    }

    /// What all tasks take, and the cycles of the longest.
    fn all_tasks(&self, blocking: &Blocking<T>) -> (Work, f64) {
        let (parts, panels) = (blocking.parts, self.count);
        let repeats = self.view.groups as f64 * self.view.roles.depth_tasks() as f64;
        let (mut work, mut longest) = (Work::default(), 0.0_f64);
        for (size, count) in blocking.blocks.sizes() {
            let block = self.block(&size, blocking);
            work += (block.once * parts as f64 + block.of_panel * panels as f64) * (count as f64 * repeats);
            longest = longest.max((block.once + block.of_panel * panels.div_ceil(parts) as f64).cycles());
        }
        (work, longest)
    }

    /// What the tasks of a block of this size take.
    fn block(&self, size: &BlockSize, blocking: &Blocking<T>) -> BlockWork {
        let (machine, view) = (self.machine, self.view);
        let traffic = Traffic::new(self, size, blocking.chunk);
        let padded = size.images as f64 * size.padded(&self.scheme);
        let [outputs_down, outputs_along] = self.scheme.outputs();
        let pixels = (size.tiles() * outputs_down * outputs_along) as f64;
        // The pixels of a phase of a dilation are not neighbours, and are moved one by one.
        let scatter = |elements: f64| Item::SCATTERED_ELEMENTS.times(self.dilated() * elements);
        let chunks_of_slice =
            self.slices_of_task().div_ceil(blocking.chunk.slices) as f64 / self.slices_of_task() as f64;
        let waiting = traffic.waiting(self, self.count, blocking.chunk) * (chunks_of_slice / self.count as f64);
        let fetching = self.fetching(blocking.blocks.of_image(), &traffic, chunks_of_slice);
        // Filters are prefetched, which hides most of the shorter of the two.
        let of_panel = machine.overlapped(self.products(size), fetching)
            + waiting
            + (self.output(size) + scatter(pixels * view.filters as f64)) * (1.0 / self.count as f64);
        // Without taps on the outer axis, its slices are tasks of their own.
        let (depth, tasks) = (&view.roles.depth, view.roles.depth_tasks() as f64);
        let read = depth.input.min((depth.output - 1) * depth.stride + depth.kernel) as f64 / tasks;
        let gathered = if view.reads_pixels { 0.0 } else { padded * view.channels as f64 };
        let (input, computed) = (self.input(size, padded) + traffic.writing(self), depth.output as f64 / tasks);
        BlockWork {
            once: input * read + scatter(gathered) * computed + Item::TASKS.times(1.0),
            of_panel: of_panel * computed,
        }
    }

    /// 1 if the elements of a row are a dilation apart, otherwise 0.
    fn dilated(&self) -> f64 {
        if distance(&self.view.roles.along) == 1 { 0.0 } else { 1.0 }
    }

    /// The work of transforming the tiles of one slice of X, which have `padded` elements in each
    /// channel.
    fn input(&self, size: &BlockSize, padded: f64) -> Work {
        let Self { view, scheme, .. } = self;
        let (lanes, values) = (scheme.kernel.lanes(), scheme.kernel.values());
        if view.reads_pixels {
            let [rows, columns] = size.input();
            let (phases, vectors) = (view.strides[0] * view.strides[1], view.channels_of_phase().div_ceil(lanes));
            let of_row = Item::TRANSFORM_CALLS.times(1.0)
                + Item::INPUT_TRANSFORMS.times((columns * values * vectors) as f64 * self.wide_transform());
            return of_row * (size.images * rows * phases) as f64;
        }
        let vectors = (size.images * size.image_input_tiles().div_ceil(lanes) * values) as f64;
        // Phases of a stride are deinterleaved before they are split.
        let phase_rows = if view.strides[1] == 1 { 0.0 } else { padded };
        // Those of a dilation too, by a call for each window and a part of it for each row.
        let down = scheme.kernel.down();
        let rows = size.images * (size.rows * down.outputs + down.values - down.outputs);
        let dilated = self.dilated();
        let of_channel = Item::TRANSFORM_CALLS.times(size.images as f64 * (1.0 + dilated))
            + Item::KERNEL_CALLS.times(rows as f64 * dilated)
            + Item::COPIED_ELEMENTS.times(phase_rows)
            + Item::INPUT_TRANSFORMS.times((padded / lanes as f64 + vectors) * self.wide_transform());
        of_channel * view.channels as f64
    }

    /// The work of taking the products of all filters back into one slice of Y.
    fn output(&self, size: &BlockSize) -> Work {
        let Self { view, scheme, .. } = self;
        let kernel = scheme.kernel;
        let ragged = if is_ragged(kernel) { prices::RAGGED_OUTPUT } else { 1.0 };
        let outputs = scheme.outputs().iter().product::<usize>();
        let interleaved = if view.stores == PixelStores::Interleaved { outputs } else { 0 };
        let of_tile = kernel.values() as f64 * self.wide_transform() * ragged + interleaved as f64;
        let of_vector = Item::TRANSFORM_CALLS.times((size.images * size.rows) as f64)
            + Item::OUTPUT_TRANSFORMS.times(size.tiles() as f64 * of_tile);
        of_vector * (self.panels.padded(view.filters) as f64 / kernel.lanes() as f64)
    }

    /// How much longer the transforms of this tile take.
    fn wide_transform(&self) -> f64 {
        if self.scheme.kernel.values() > STANDARD_VALUES { prices::WIDE_TRANSFORM } else { 1.0 }
    }

    /// The work of multiplying all values by one panel, for one slice of Y.
    fn products(&self, size: &BlockSize) -> Work {
        let kernel = self.scheme.kernel;
        let all = self.gemms(size, false);
        // Down the column, as many values are dropped in the last row of tiles as outputs.
        let dropped = size.spare * kernel.along().values;
        let short = if dropped == 0 { Work::default() } else { self.gemms(size, true) };
        let short = if short.cycles() < all.cycles() { short } else { all };
        all * (kernel.values() - dropped) as f64 + short * dropped as f64
    }

    /// The work of the GEMMs of one value and one panel.
    pub(super) fn gemms(&self, size: &BlockSize, is_short: bool) -> Work {
        let (first, rows) = size.gemms(is_short);
        self.gemm(rows * size.columns) * first.count() as f64
    }

    /// The work of multiplying `width` tiles by one panel. They are cut as
    /// [`ChannelTiles`](crate::conv::channel_tiles::ChannelTiles) cuts them.
    fn gemm(&self, width: usize) -> Work {
        let calls = width.div_ceil(self.step_cycles.len());
        if calls == 0 {
            return Work::default();
        }
        let cycles = |tiles: usize| self.step_cycles[tiles.max(1) - 1];
        let (narrow, wider) = (width / calls, width % calls);
        let step =
            cycles(narrow) * (calls - wider) as f64 + if wider == 0 { 0.0 } else { cycles(narrow + 1) * wider as f64 };
        Item::ARITHMETIC_CYCLES.times(step * self.steps) + Item::VALUE_CALLS.times(calls as f64)
    }

    /// The work of fetching the filters of one panel for a slice of Y, of which there are
    /// `chunks_of_slice` chunks. Each chunk fetches them from where they are kept, and each slice from
    /// the L2 cache. `blocks` tasks use them one after the other.
    fn fetching(&self, blocks: usize, traffic: &Traffic, chunks_of_slice: f64) -> Work {
        let machine = self.machine;
        let of_group = self.filter_bytes / self.panels.wide as f64 * self.panels.padded(self.view.filters) as f64;
        let fetched = |filters: f64| {
            let resident = filters + traffic.tiles + traffic.products;
            prices::PREFETCH * machine.refetch_cycles(self.filter_bytes, resident)
        };
        // The first task of a group finds its filters where those of all groups are kept.
        let (first, later) = (fetched(of_group * self.view.groups as f64), (blocks - 1) as f64 * fetched(of_group));
        let cycles = (first + later) / blocks as f64 * chunks_of_slice;
        Work::of(Kind::Fetches, cycles.max(self.filter_bytes / machine.l2_bytes_per_cycle))
    }
}

/// The numbers of rows, or of columns, of tiles that blocks are tried with, where there are `most`.
fn lengths(most: usize) -> impl Iterator<Item = usize> {
    LENGTHS.into_iter().filter(move |length| *length < most).chain(iter::once(most))
}

/// What the tasks of a block take: each of them, and for each panel of filters.
struct BlockWork {
    once: Work,
    of_panel: Work,
}

/// Bytes that the GEMMs of a block touch beside Y in a chunk.
struct Traffic {
    /// Transformed tiles of all values, and those of them that one slice of Y sees.
    tiles: f64,
    slice_tiles: f64,
    /// Products of one panel, of all values and of all slices.
    products: f64,
    /// Filters of two values.
    filters: f64,
}

impl Traffic {
    fn new<T: Real>(model: &CostModel<'_, T>, size: &BlockSize, chunk: Chunk) -> Self {
        let (values, depth) = (model.scheme.kernel.values() as f64, &model.view.roles.depth);
        let bytes = values * size_of::<T>() as f64;
        let slot = bytes * model.view.channels as f64 * size.input_tiles() as f64;
        Self {
            tiles: slot * chunk.slots(depth) as f64,
            slice_tiles: slot * depth.kernel as f64,
            products: chunk.slices as f64 * bytes * size.tiles() as f64 * model.panels.wide as f64,
            filters: 2.0 * model.filter_bytes / values,
        }
    }

    /// Bytes that stay in the cache while `panels` panels are multiplied.
    fn resident(&self, panels: usize) -> f64 {
        self.tiles + panels as f64 * self.products + self.filters
    }

    /// The work of writing the transformed tiles of a slice of X that leave the L2 cache. It counts
    /// as many as a slice of Y sees.
    fn writing<T: Real>(&self, model: &CostModel<'_, T>) -> Work {
        Work::of(Kind::Fetches, model.machine.refetch_cycles(self.slice_tiles, self.resident(1)))
    }

    /// The work of fetching transformed tiles and products that left the L2 cache, while `panels`
    /// panels are multiplied for the slices of a chunk. Tiles are read once for the panels of a
    /// chunk. All products but those of one panel and slice leave the cache before they are taken
    /// back.
    fn waiting<T: Real>(&self, model: &CostModel<'_, T>, panels: usize, chunk: Chunk) -> Work {
        let chunks = panels.div_ceil(chunk.panels) as f64;
        let products = 2.0 * (panels as f64 - chunks / chunk.slices as f64) * self.products;
        let bytes = chunks * self.tiles + products;
        Work::of(Kind::Fetches, model.machine.refetch_cycles(bytes, self.resident(chunk.panels)))
    }
}
