//! What a layer takes with a blocking, by estimate.

use core::iter;
use core::ops::Range;

use convoke_kernels::Real;

use super::block_size::BlockSize;
use super::blocks::TileBlocks;
use super::runs::RunCosts;
use super::scheme::{STANDARD_VALUES, Scheme, is_ragged};
use super::shares::{self, PanelPiece};
use super::steps::TileSteps;
use super::together::{MOST_SLICES, Together};
use super::view::{PixelStores, SubImage, WinogradView, depth_tasks, distance};
use crate::lower::channel_tiles::ChannelPanels;
use crate::machine::{Item, Kind, Machine, Work};

/// The share of the time with fewer slices in a turn that more slices must stay below: they take more
/// scratch.
const WORTH_IT: f64 = 0.97;

/// How a layer is cut: the tile, the blocks of tiles, and the shares of the panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct WinogradBlocking<T: Real> {
    pub(super) scheme: Scheme<T>,
    pub(super) blocks: TileBlocks,
    /// Shares that the panels of filters are split into.
    pub(super) splits: usize,
    pub(super) together: Together,
}

impl<T: Real> WinogradBlocking<T> {
    /// The number of tasks that Y is split into.
    pub(super) fn tasks(&self, view: &WinogradView) -> usize {
        let blocks = self.blocks.of_batch() * view.groups * self.blocks.of_image();
        blocks * depth_tasks(&view.roles) * self.splits
    }
}

/// A blocking with what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockingEstimate<T: Real> {
    pub(super) blocking: WinogradBlocking<T>,
    /// Cycles until all threads are done.
    pub(super) latency_cycles: f64,
    /// What all tasks take together.
    pub(super) work: Work,
}

/// A layer with a tile on a machine: what blockings are estimated for.
pub(super) struct CostModel<'a, T: Real> {
    machine: &'a Machine,
    pub(super) view: &'a WinogradView,
    pub(super) scheme: Scheme<T>,
    costs: &'a RunCosts<'a, T>,
    /// Steps of k of all values of a slice.
    slice_steps: usize,
    panels: ChannelPanels,
    /// See [`least_products`](Self::least_products).
    least_products: f64,
    /// Cycles that no block undercuts for the filters that it fetches for a slice of Y.
    least_fetches: f64,
}

impl<'a, T: Real> CostModel<'a, T> {
    /// None where the layer has too many steps, or a kernel is lacking.
    pub(super) fn new(view: &'a WinogradView, scheme: Scheme<T>, costs: &'a RunCosts<'a, T>) -> Option<Self> {
        if !scheme.has_few_steps(view) {
            return None;
        }
        let machine = costs.machine;
        let panels = ChannelPanels::new::<T>(machine.isa())?;
        let slice_steps = TileSteps::new(view, &scheme).all();
        let mut model =
            Self { machine, view, scheme, costs, slice_steps, panels, least_products: 0.0, least_fetches: 0.0 };
        model.least_products = model.least_products();
        // As if all slices shared a turn.
        let (_, slices) = model.slices();
        let filters = FilterTraffic::new(&model, panels.wide);
        let fetching = filters.fetching(1, panels.padded(view.rows), 1, [0.0; 2], 1.0 / slices);
        model.least_fetches = fetching.cycles() * view.rows.div_ceil(panels.wide) as f64;
        Some(model)
    }

    /// Cycles that no runs of tiles undercut for the products of a slice of Y, over all images.
    fn least_products(&self) -> f64 {
        let Self { view, scheme, .. } = self;
        let values = scheme.kernel.values();
        let dropped = scheme.spare(&view.roles) * scheme.kernel.along().values;
        let tiles = self.tiles(0) * (values - dropped) as f64 + self.tiles(1) * dropped as f64;
        tiles * self.costs.least_tile_cycles(self.value_steps()) * view.rows.div_ceil(self.panels.wide) as f64
    }

    /// The tiles of a slice of Y, over all images, without `left_out` rows of each.
    fn tiles(&self, left_out: usize) -> f64 {
        let roles = &self.view.roles;
        let (rows, columns) = self.scheme.grid(roles);
        SubImage::count(roles, self.view.batch) as f64 * rows.saturating_sub(left_out) as f64 * columns as f64
    }

    /// Cycles that no blocking with these blocks undercuts: those of its transforms, and of
    /// products in the best runs of tiles while filters are fetched, without tiles and products
    /// that leave the caches. For one block of all images, no blocking at all undercuts them. They
    /// are rounded down, because a blocking's are summed in another order.
    pub(super) fn least_cycles(&self, blocks: &TileBlocks) -> f64 {
        let Self { machine, view, scheme, .. } = self;
        let (mut fetches, mut images, mut rows, mut vectors, mut padded) = (0.0, 0.0, 0.0, 0.0, 0.0);
        blocks.for_each_size(|size, count| {
            fetches += count as f64 * self.least_fetches;
            let (count, BlockSize { input_rows, input_columns, .. }) = ((count * size.images) as f64, size);
            images += count;
            rows += count * size.rows as f64;
            vectors += count * input_rows.saturating_mul(input_columns).div_ceil(scheme.kernel.lanes()) as f64;
            padded += count * (scheme.down.padded(input_rows) * scheme.along.padded(input_columns));
            Some(())
        });
        let (slices_in, slices_out) = self.slices();
        let input = self.input(images, vectors, padded).cycles();
        let output = self.output(rows, self.tiles(0), self.panels.padded(view.rows)).cycles();
        let products = Work::of(Kind::Arithmetic, self.least_products);
        let of_slice_out = machine.together(products, Work::of(Kind::Fetches, fetches)).cycles() + output;
        let repeats = view.groups as f64 * depth_tasks(&view.roles) as f64;
        (input * slices_in + of_slice_out * slices_out) * repeats * (1.0 - 1e-9)
    }

    /// What a blocking takes on `threads` threads, with the scratch of a task in at most
    /// `most_bytes` where that can be. None where a kernel is lacking.
    pub(super) fn estimate(
        &self,
        blocks: TileBlocks,
        splits: usize,
        threads: usize,
        most_bytes: usize,
    ) -> Option<BlockingEstimate<T>> {
        let Self { machine, view, scheme, .. } = *self;
        let largest = blocks.largest()?;
        let nr = self.panels.wide;
        let panels = view.rows.div_ceil(nr).max(1);
        let splits = splits.min(panels.saturating_mul(shares::parts(&largest, splits)));
        let fits = |together: Together| blocks.scratch_bytes(view, &scheme, together) <= most_bytes;
        let mut best: Option<BlockingEstimate<T>> = None;
        for slices in self.numbers_of_slices() {
            if slices > 1 && !fits(Together { panels: 1, slices }) {
                break;
            }
            let traffic = BlockTraffic::new(self, &largest, nr, slices);
            let panels_together =
                traffic.panels_together(panels.div_ceil(splits), |panels| fits(Together { panels, slices }));
            let together = Together { panels: panels_together, slices };
            let blocking = WinogradBlocking { scheme, blocks, splits, together };
            let all = self.all_tasks(&blocking, panels)?;
            let latency_cycles = all.latency_cycles(machine, threads);
            if best.as_ref().is_none_or(|best| latency_cycles < WORTH_IT * best.latency_cycles) {
                best = Some(BlockingEstimate { blocking, latency_cycles, work: all.work });
            }
        }
        best
    }

    /// The numbers of slices of Y in a turn that are tried. Turns have nearly as many each: there is
    /// one turn for each slice, half as many turns, and so on.
    fn numbers_of_slices(&self) -> impl Iterator<Item = usize> + use<T> {
        let all = self.slices_of_task();
        let turns = iter::successors(Some(all), |turns| (*turns > 1).then(|| turns.div_ceil(2)));
        turns.map(move |turns| all.div_ceil(turns)).take_while(|slices| *slices <= MOST_SLICES)
    }

    /// How many turns there are for a slice of Y: 1 if each slice has a turn of its own, 1/2 if two
    /// slices share one.
    fn turns_of_slice(&self, slices: usize) -> f64 {
        let all = self.slices_of_task();
        all.div_ceil(slices) as f64 / all as f64
    }

    /// Slices of Y that a task computes. Without taps on the outer axis, its slices are tasks of their
    /// own.
    fn slices_of_task(&self) -> usize {
        let depth = self.view.roles.depth;
        if depth.kernel == 1 { 1 } else { depth.output.max(1) }
    }

    /// What all tasks take, with `panels` panels of filters.
    fn all_tasks(&self, blocking: &WinogradBlocking<T>, panels: usize) -> Option<AllTasks> {
        let WinogradBlocking { blocks, splits, together, .. } = *blocking;
        let repeats = (self.view.groups * depth_tasks(&self.view.roles)).checked_mul(splits)?;
        // The first share, the last one and the one in the middle: others are like these.
        let sampled = if panels.is_multiple_of(splits) { 1 } else { splits.min(3) };
        let mut all = AllTasks::default();
        blocks.for_each_size(|size, count| {
            let block = BlockWork::new(self, size, blocks.of_image(), together);
            let count = count.checked_mul(repeats)?;
            let (mut sum, mut most) = (Work::default(), 0.0_f64);
            for index in [0, splits - 1, splits / 2].into_iter().take(sampled) {
                let work = block.task(shares::pieces(&size, panels, (index, splits)))?;
                (sum, most) = (sum + work, most.max(work.cycles()));
            }
            all.add(count, sum * (count as f64 / sampled as f64), most)
        })?;
        Some(all)
    }

    /// The work of transforming the tiles of one slice of X: in each channel `vectors` vectors of
    /// tiles of `images` images, which have `padded` elements with padding.
    fn input(&self, images: f64, vectors: f64, padded: f64) -> Work {
        let Self { machine, view, scheme, .. } = self;
        let values = vectors * scheme.kernel.values() as f64;
        let transforms = machine.work(Item::SplitVectors, padded / scheme.kernel.lanes() as f64)
            + machine.work(Item::TransformedVectors, values);
        // Phases of a stride are picked before they are split.
        let picked = if view.strides[1] == 1 { 0.0 } else { padded };
        let of_channel = machine.work(Item::TransformCalls, images)
            + machine.work(Item::PickedElements, picked)
            + transforms * self.wide_transform();
        of_channel * view.channels as f64
    }

    /// The work of taking the products of all `channels` filters back into one slice of Y: of
    /// `tiles` tiles in `rows` rows.
    fn output(&self, rows: f64, tiles: f64, channels: usize) -> Work {
        let Self { machine, view, scheme, .. } = self;
        let kernel = scheme.kernel;
        let ragged = if is_ragged(kernel) { machine.prices().ragged_output } else { 1.0 };
        let pixels = match view.stores {
            PixelStores::Interleaved => scheme.down.tile.outputs * scheme.along.tile.outputs,
            PixelStores::Rows | PixelStores::RowsPastCache => 0,
        };
        let of_vector = machine.work(Item::TransformCalls, rows)
            + machine.work(Item::TakenVectors, tiles * kernel.values() as f64) * (self.wide_transform() * ragged)
            + machine.work(Item::PhaseVectors, tiles * pixels as f64);
        of_vector * (channels as f64 / kernel.lanes() as f64)
    }

    /// The work of multiplying all values by one panel, for some rows of tiles. None where a kernel
    /// is lacking.
    fn products(&self, size: &BlockSize, rows: &Range<usize>) -> Option<Work> {
        let Self { scheme, costs, .. } = self;
        let (values, steps) = (scheme.kernel.values(), self.value_steps());
        let all = size.gemm_work(costs, rows, false, steps)?;
        // Down the column, as many values are dropped in the last row of tiles as outputs.
        let dropped = size.spare * scheme.kernel.along().values;
        if dropped == 0 {
            return Some(all * values as f64);
        }
        let short = size.gemm_work(costs, rows, true, steps)?;
        let short = if short.cycles() < all.cycles() { short } else { all };
        Some(all * (values - dropped) as f64 + short * dropped as f64)
    }

    /// Steps of k of a value, on average.
    fn value_steps(&self) -> f64 {
        (self.view.roles.depth.kernel * self.slice_steps) as f64 / self.scheme.kernel.values() as f64
    }

    /// How much longer the transforms of this tile take.
    fn wide_transform(&self) -> f64 {
        if self.scheme.kernel.values() > STANDARD_VALUES { self.machine.prices().wide_transform } else { 1.0 }
    }

    /// The slices of X that a task transforms, and the slices of Y that it computes, on average.
    fn slices(&self) -> (f64, f64) {
        // Without taps on the outer axis, its slices are tasks of their own.
        let (depth, tasks) = (self.view.roles.depth, depth_tasks(&self.view.roles) as f64);
        let read = depth.input.min((depth.output - 1) * depth.stride + depth.kernel);
        (read as f64 / tasks, depth.output as f64 / tasks)
    }
}

/// The sums over all tasks of a blocking.
#[derive(Default)]
struct AllTasks {
    tasks: usize,
    work: Work,
    /// Cycles of the longest tasks, and their number.
    longest_cycles: f64,
    longest: usize,
}

impl AllTasks {
    /// Adds `count` tasks, which take `work` together. The longest of them take `most_cycles` each.
    /// None if there are more tasks than can be counted.
    fn add(&mut self, count: usize, work: Work, most_cycles: f64) -> Option<()> {
        self.tasks = self.tasks.checked_add(count)?;
        self.work += work;
        // All tasks of a thread may be the same share of several blocks.
        if most_cycles > self.longest_cycles {
            (self.longest_cycles, self.longest) = (most_cycles, 0);
        }
        if most_cycles == self.longest_cycles {
            self.longest += count;
        }
        Some(())
    }

    /// Cycles until `threads` threads are done.
    fn latency_cycles(&self, machine: &Machine, threads: usize) -> f64 {
        if self.tasks <= threads {
            return self.longest_cycles;
        }
        // With more tasks than threads, the threads wait for a part of the last task. Where tasks
        // are few, one thread has more of them than others, or more of the longest.
        let cycles = self.work.cycles();
        let most = |tasks: usize| tasks.div_ceil(threads) as f64;
        let shared = cycles / threads as f64 + machine.prices().idle_share * self.longest_cycles;
        let uneven = (most(self.tasks) * cycles / self.tasks as f64).max(most(self.longest) * self.longest_cycles);
        shared.max(uneven)
    }
}

/// What the parts of a task take, for blocks of one size.
struct BlockWork<'a, T: Real> {
    model: &'a CostModel<'a, T>,
    size: BlockSize,
    /// All panels of filters.
    panels: usize,
    /// Transforming one slice of X.
    input: Work,
    /// Fetching the filters of one panel.
    fetching: Work,
    /// Waiting for tiles and products that left the L2 cache, for all panels of one slice.
    waiting: Work,
    /// Taking the products of all panels back into one slice of Y.
    output: Work,
    /// Pixels of one slice of X, and of one slice of Y, that are moved one by one.
    scattered: [f64; 2],
}

impl<'a, T: Real> BlockWork<'a, T> {
    /// A block of this size is one of `blocks` that use the same filters, one after the other.
    fn new(model: &'a CostModel<'a, T>, size: BlockSize, blocks: usize, together: Together) -> Self {
        let CostModel { view, scheme, panels, .. } = model;
        let (nr, channels) = (panels.wide, panels.padded(view.rows));
        let panels = view.rows.div_ceil(nr);
        let padded = size.images as f64 * scheme.down.padded(size.input_rows) * scheme.along.padded(size.input_columns);
        let vectors = size.images * size.image_input_tiles().div_ceil(scheme.kernel.lanes());
        let traffic = BlockTraffic::new(model, &size, nr, together.slices);
        let turns = model.turns_of_slice(together.slices);
        let pixels = size.own_tiles() * scheme.down.tile.outputs * scheme.along.tile.outputs;
        // The pixels of a phase of a dilation are not neighbours.
        let scattered = match distance(&view.roles.along) {
            1 => [0.0; 2],
            _ => [view.channels as f64 * padded, (pixels * view.rows) as f64],
        };
        Self {
            model,
            size,
            panels,
            input: model.input(size.images as f64, vectors as f64, padded) + traffic.writing(),
            fetching: traffic.filters.fetching(view.groups, channels, blocks, [traffic.tiles, traffic.products], turns),
            waiting: traffic.waiting(panels, together.panels) * turns,
            output: model.output((size.images * size.rows) as f64, size.own_tiles() as f64, channels),
            scattered,
        }
    }

    /// What a task with these pieces of the panels takes. None where a kernel is lacking.
    fn task(&self, pieces: impl Iterator<Item = PanelPiece>) -> Option<Work> {
        let machine = self.model.machine;
        let (mut products, mut share) = (Work::default(), 0.0);
        for PanelPiece { panels, rows } in pieces {
            // Filters are fetched ahead of their use, which hides most of the shorter of the two.
            let of_panel = machine.together(self.model.products(&self.size, &rows)?, self.fetching);
            products += of_panel * panels.len() as f64;
            // A panel that is cut counts as its part of the rows.
            share += panels.len() as f64 * rows.len() as f64 / self.size.all_rows().len() as f64;
        }
        let share = share / self.panels as f64;
        let (slices_in, slices_out) = self.model.slices();
        let [scattered_in, scattered_out] = self.scattered;
        let of_slice_out = products
            + (self.waiting + self.output) * share
            + machine.work(Item::ScatteredElements, scattered_in + scattered_out * share);
        Some(self.input * slices_in + of_slice_out * slices_out + machine.work(Item::Tasks, 1.0))
    }
}

/// The filters that a slice of a block reads.
struct FilterTraffic<'a> {
    machine: &'a Machine,
    /// Bytes of one panel of `nr` filters, for all values.
    bytes: f64,
    nr: usize,
}

impl<'a> FilterTraffic<'a> {
    fn new<T: Real>(model: &CostModel<'a, T>, nr: usize) -> Self {
        let slices = model.view.roles.depth.kernel as f64;
        Self { machine: model.machine, bytes: slices * (model.slice_steps * nr * size_of::<T>()) as f64, nr }
    }

    /// The work of fetching the filters of one panel for a slice of Y, where a group has `channels`
    /// filters, and `blocks` tasks use them one after the other. They compete for the caches with
    /// these bytes of tiles and of products. Filters come from where they are kept once a turn, of
    /// which there are `turns` for a slice, and from the L2 cache for each slice.
    fn fetching(&self, groups: usize, channels: usize, blocks: usize, [tiles, products]: [f64; 2], turns: f64) -> Work {
        let machine = self.machine;
        let of_group = self.bytes / self.nr as f64 * channels as f64;
        let fetched = |filters: f64| {
            machine.prices().fetch_ahead * machine.refetch_cycles(self.bytes, filters + tiles + products)
        };
        // The first task of a group finds its filters where those of all groups are kept.
        let (first, later) = (fetched(of_group * groups as f64), (blocks - 1) as f64 * fetched(of_group));
        let cycles = (first + later) / blocks as f64 * turns;
        Work::of(Kind::Fetches, cycles.max(self.bytes / machine.l2_bytes_per_cycle))
    }
}

/// Bytes that the GEMMs of a block touch beside Y in a turn.
struct BlockTraffic<'a> {
    machine: &'a Machine,
    slices: usize,
    /// Transformed tiles of all values, and those of them that one slice of Y sees.
    tiles: f64,
    slice_tiles: f64,
    filters: FilterTraffic<'a>,
    /// Products of one panel, of all values and of all slices of a turn.
    products: f64,
    values: f64,
}

impl<'a> BlockTraffic<'a> {
    fn new<T: Real>(model: &CostModel<'a, T>, size: &BlockSize, nr: usize, slices: usize) -> Self {
        let values = model.scheme.kernel.values() as f64;
        let bytes = values * size_of::<T>() as f64;
        let depth = &model.view.roles.depth;
        let tiles_of = |slots: usize| slots as f64 * bytes * model.view.channels as f64 * size.input_tiles() as f64;
        Self {
            machine: model.machine,
            slices,
            tiles: tiles_of(Together { panels: 1, slices }.slots(depth)),
            slice_tiles: tiles_of(depth.kernel),
            filters: FilterTraffic::new(model, nr),
            products: slices as f64 * bytes * size.tiles() as f64 * nr as f64,
            values,
        }
    }

    /// Bytes that stay in the cache while `together` panels are multiplied.
    fn resident(&self, together: usize) -> f64 {
        self.tiles + together as f64 * self.products + 2.0 * self.filters.bytes / self.values
    }

    /// The work of writing the transformed tiles of a slice of X that leave the L2 cache. It counts
    /// as many as a slice of Y sees.
    fn writing(&self) -> Work {
        Work::of(Kind::Fetches, self.machine.refetch_cycles(self.slice_tiles, self.resident(1)))
    }

    /// The work of fetching transformed tiles and products that left the L2 cache, while `panels`
    /// panels are multiplied, `together` of them by each value. Tiles are read once for these. All
    /// products but those of one panel and slice leave the cache before they are taken back.
    fn waiting(&self, panels: usize, together: usize) -> Work {
        let tiles = panels.div_ceil(together) as f64 * self.tiles;
        let left = panels as f64 - panels.div_ceil(together) as f64 / self.slices as f64;
        let products = 2.0 * left * self.products;
        Work::of(Kind::Fetches, self.machine.refetch_cycles(tiles + products, self.resident(together)))
    }

    /// How many panels to multiply together, so that the [waiting](Self::waiting) is shortest: the
    /// fewest panels that reach this, among those whose scratch `fits`.
    fn panels_together(&self, panels: usize, fits: impl Fn(usize) -> bool) -> usize {
        let waiting = |together: usize| self.waiting(panels, together).cycles();
        let (mut best, mut least) = (1, waiting(1));
        let mut together = 2;
        while together < 2 * panels {
            let cycles = waiting(together.min(panels));
            if cycles < least {
                // Where this many do not fit, more of them do not.
                if !fits(together.min(panels)) {
                    break;
                }
                (best, least) = (together.min(panels), cycles);
            }
            together *= 2;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use convoke_kernels::catalogue::winograd_kernels;

    use super::super::{blocks::BlockCut, conv};
    use super::*;
    use crate::Conv;

    #[test]
    fn no_blocking_undercuts_the_least_cycles() {
        let same = |dilation: i64| [dilation; 4];
        let layers = [
            (Conv::new([64, 32, 3, 3]).pads(same(1)), [1, 32, 30, 41]),
            (Conv::new([48, 1, 3, 3]).group(48).pads(same(1)), [2, 48, 13, 13]),
            (Conv::new([20, 24, 5, 5]).strides([2, 2]), [3, 24, 27, 19]),
            (Conv::new([7, 200, 3, 3]).pads(same(2)).dilations([2, 2]), [1, 200, 9, 17]),
        ]
        .map(|(conv, x)| conv.geometry(&x).unwrap());
        let volume = Conv::new([70, 40, 3, 3, 3]).pads([1; 6]).geometry(&[1, 40, 7, 8, 9]).unwrap();
        let (machine, threads) = (Machine::zen5().with_isa(crate::Isa::Portable), 3);
        let costs = RunCosts::<f32>::new(&machine).unwrap();
        let mut compared = 0;
        for geometry in layers.into_iter().chain([volume]) {
            let view = conv::view(&geometry).unwrap();
            for kernel in winograd_kernels::<f32>(machine.isa()) {
                let Some(scheme) = Scheme::new(kernel, &view.roles) else { continue };
                let model = CostModel::new(&view, scheme, &costs).unwrap();
                let blocks = |images: usize, cut, parts| TileBlocks::new(&view, &scheme, images, cut, parts);
                let images = SubImage::count(&view.roles, view.batch);
                let of_any = model.least_cycles(&blocks(images, BlockCut::Rows, 1).unwrap());
                let cuts = [BlockCut::Rows, BlockCut::Columns, BlockCut::Tiles];
                let cut = cuts.into_iter().flat_map(|cut| (1..20).filter_map(move |parts| blocks(1, cut, parts)));
                for blocks in cut.chain(blocks(view.batch, BlockCut::Rows, 1)) {
                    let least = model.least_cycles(&blocks);
                    for splits in [1, threads] {
                        let estimate = model.estimate(blocks, splits, threads, usize::MAX).unwrap();
                        let cycles = estimate.work.cycles();
                        assert!(of_any <= cycles && least <= cycles, "{of_any} {least} {cycles} {view:?} {blocks:?}");
                        assert!(cycles <= estimate.latency_cycles * threads as f64 * (1.0 + 1e-9), "{blocks:?}");
                        // A bound far below would leave out nothing.
                        compared += usize::from(least > 0.5 * cycles);
                    }
                }
            }
        }
        assert!(compared > 100, "{compared} bounds are near");
    }
}
