//! Conv on padded planes.
//!
//! The transposed product of [`implicit_gemm`](crate::lower::implicit_gemm): M = output
//! positions, N = M/group, K = C/group * kernel volume, for each image and group. Kernels
//! broadcast elements of the padded planes, and read vectors of packed weights. Every position is
//! a real one, so that there are no garbage columns. Where weights are finite, taps that see only
//! padding along the outermost axis are left out.
//!
//! Accepts every Conv but those that [`images`] is for. Makes no offer where the offsets in the
//! planes do not fit 32 bits. Scratch for a task: the planes of one block of channels for one
//! slab of the output, and a tile, or the sums of the slab where K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::{ChannelKernel, Isa, Real, RowOffsets};

use super::images;
use super::last_steps::LastSteps;
use super::weights::ChannelWeights;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::lower::channel_tiles::{ChannelTiles, Fetch};
use crate::lower::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use crate::lower::planes::{self, PER_THREAD, PaddedPlanes, PlaneSizes, Slab, SlabCut, SlabLimits};
use crate::lower::shares::{GemmSplit, Part};
use crate::lower::sink::{Finish, Sink};
use crate::machine::{Item, Work};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Channels whose sums are kept at a time between blocks of K, at most. The sums of more
/// would leave room for few positions, and the weights are read again for each slab of positions.
const MOST_SUMMED: usize = 1536;

/// Every Conv with an output, unless the kernel covers X.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    images::check_not_covered(geometry)
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let weights = ChannelWeights::new(request)?;
    let search = PaddedSearch { request, geometry: merged(request.geometry), weights, most_bytes };
    let PaddedChoice { blocking, tiles, work, .. } = search.best()?;
    let mut scratch = Ledger::default();
    let filled = scratch.book("planes", weights.block * blocking.sizes.channel_len);
    let sums = scratch.book("sums", blocking.sums_len(&weights, &tiles));
    let (split, most) = (blocking.split, &tiles[0]);
    let two_rows = most.two_rows(most.nr()).filter(|_| blocking.rows > 1);
    let kernel = two_rows.unwrap_or_else(|| most.kernel(most.pixels(0).len(), most.nr())).name();
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, rows of {} in {}, {} of {} of axis {}, K in blocks of {}, weights in {}",
            Count(most.width, "pixel"),
            Count(most.count, "tile"),
            Count(split.columns, "slab"),
            Count(blocking.cut.extent, "position"),
            blocking.cut.axis,
            weights.block * weights.taps,
            Count(split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: split.tasks(),
        scratch,
        work,
    };
    let geometry = search.geometry;
    let build: Build<'a, T> = Box::new(move || {
        let planes = PaddedPlanes::new(&geometry, blocking.cut, true);
        Box::new(Padded {
            isa: request.isa(),
            finish: Finish::new(request),
            koff: [planes.offsets(weights.block), planes.offsets(weights.last_block())],
            geometry,
            tiles,
            planes,
            split,
            weights,
            filled,
            sums,
        })
    });
    Ok(Offer { recipe, build })
}

/// The geometry with axes that a pointwise kernel treats alike merged into one, so that rows of
/// pixels are long.
fn merged(geometry: &Geometry) -> Geometry {
    let mut geometry = geometry.clone();
    if geometry.axes.iter().all(|a| a.kernel == 1 && a.stride == 1 && a.pad_begin + a.pad_end == 0) {
        let mut axis = geometry.axes[0];
        axis.input = geometry.input_spatial();
        axis.output = axis.input;
        geometry.axes = alloc::vec![axis];
    }
    geometry
}

/// How the positions are cut into slabs, and the panels into shares.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PaddedBlocking {
    cut: SlabCut,
    sizes: PlaneSizes,
    /// Rows of pixels of a full slab.
    rows: usize,
    /// Pixels of a row of a full slab.
    width: usize,
    /// Pixels of a row of the last slab along the slabs' axis.
    last_width: usize,
    split: GemmSplit,
}

impl PaddedBlocking {
    fn new(geometry: &Geometry, (cut, sizes): (SlabCut, PlaneSizes), split: GemmSplit) -> Self {
        let last = geometry.axes.len() - 1;
        let output = geometry.axes[last].output;
        let width = if cut.axis == last { cut.extent } else { output };
        // The last slab along the last axis is narrower.
        let rest = output % cut.extent;
        let last_width = if cut.axis == last && rest != 0 { rest } else { width };
        let rows = (0..last).map(|i| planes::positions_on(&geometry.axes, cut, i)).product();
        Self { cut, sizes, rows, width, last_width, split }
    }

    /// Values of a tile, or of all sums of a task where K has several blocks.
    fn sums_len<A: Real>(&self, weights: &ChannelWeights, tiles: &[ChannelTiles<A>; 2]) -> usize {
        match weights.k_blocks() > 1 {
            true => self.rows * self.width * self.split.share_panels() * weights.nr(),
            false => weights.nr() * tiles[0].most_pixels().max(tiles[1].most_pixels()),
        }
    }
}

/// A way to cut the product.
struct PaddedChoice<A: Real> {
    blocking: PaddedBlocking,
    /// The tiles of a full slab, and of the last one along the last axis.
    tiles: [ChannelTiles<A>; 2],
    work: Work,
    /// Cycles of the thread that has the most to do, times the number of threads.
    busiest_cycles: f64,
}

/// The search for the best cut.
struct PaddedSearch<'a, T: Element> {
    request: &'a Request<'a, T>,
    geometry: Geometry,
    weights: ChannelWeights,
    /// Bytes that the planes and sums of a slab should not exceed.
    most_bytes: usize,
}

impl<T: Element> PaddedSearch<'_, T> {
    /// The choice whose busiest thread has the least to do.
    fn best(&self) -> Result<PaddedChoice<T::Acc>, String> {
        let threads = self.request.threads;
        let least = if self.weights.k_blocks() > 1 { self.weights.rows.div_ceil(MOST_SUMMED).max(1) } else { 1 };
        let mut best = self.choice(least, PER_THREAD[0])?;
        if threads > 1 {
            // Threads that share the channels out read the weights once, but each copies X.
            let shares = [least, threads].into_iter().take(if least < threads { 2 } else { 1 });
            for (shares, per_thread) in shares.flat_map(|n| PER_THREAD.map(|m| (n, m))).skip(1) {
                if let Ok(other) = self.choice(shares, per_thread)
                    && other.busiest_cycles < best.busiest_cycles
                {
                    best = other;
                }
            }
        }
        Ok(best)
    }

    /// At least `shares` shares of the panels, as far as there are so many panels, and slabs for
    /// `per_thread` tasks of each thread.
    fn choice(&self, shares: usize, per_thread: usize) -> Result<PaddedChoice<T::Acc>, String> {
        let Self { request, geometry, weights, .. } = self;
        let shares = shares.min(weights.rows.div_ceil(2 * weights.panels.lanes)).max(1);
        let slabs = self.slabs(shares, per_thread)?;
        let (images, groups, columns, panels) = (geometry.batch, geometry.group, slabs.1.slabs, weights.count());
        let of_threads = if request.threads == 1 { 1 } else { request.threads.div_ceil(images * groups * columns) };
        let shares = of_threads.max(shares).clamp(1, panels.max(1));
        let split = GemmSplit { images, groups, columns, panels, shares };
        let blocking = PaddedBlocking::new(geometry, slabs, split);
        let tiles =
            |width| ChannelTiles::new(request.machine, width).ok_or_else(|| String::from("no kernel for this tile"));
        let tiles = [tiles(blocking.width)?, tiles(blocking.last_width)?];
        let work = self.work(&blocking, &tiles[0]);
        let (nr, padded) = (weights.nr(), weights.padded);
        let rows = |part: &Part| (part.panels.end * nr).min(padded).saturating_sub(part.panels.start * nr);
        let busiest_cycles = split.unevenness(request.threads, rows) * work.cycles();
        Ok(PaddedChoice { blocking, tiles, work, busiest_cycles })
    }

    /// The slabs whose planes and sums fit the L2 cache, with panels in `shares` shares.
    fn slabs(&self, shares: usize, per_thread: usize) -> Result<(SlabCut, PlaneSizes), String> {
        let Self { request, geometry, weights, most_bytes } = self;
        let (of_share, value_bytes) = (weights.rows.div_ceil(shares), size_of::<T::Acc>());
        let a_bytes = (of_share * weights.block * weights.taps).saturating_mul(value_bytes);
        let summed = if weights.k_blocks() > 1 { of_share.next_multiple_of(2 * weights.panels.lanes) } else { 0 };
        let limits = SlabLimits {
            images: (geometry.batch * geometry.group).saturating_mul(shares),
            block: weights.block,
            budget_bytes: planes::budget_beside(request.machine, a_bytes).min(*most_bytes),
            value_bytes,
            threads: request.threads,
            per_thread,
            is_aligned: true,
        };
        limits
            .cut(&geometry.axes, |columns| columns * summed)
            .ok_or_else(|| planes::too_large(&geometry.axes, planes::MOST_BYTES))
    }

    /// What all tasks take; `tiles` are those of a full slab.
    fn work(&self, blocking: &PaddedBlocking, tiles: &ChannelTiles<T::Acc>) -> Work {
        let Self { request, geometry, weights, .. } = self;
        let PaddedBlocking { sizes, rows, width, split, .. } = blocking;
        let machine = request.machine;
        let live = live_share(&geometry.axes);
        let of_step = tiles.cycles_of_rows(machine, *rows, weights.rows);
        let vectors = (rows * width) as f64 * weights.rows as f64 / weights.panels.lanes as f64;
        let copied = (weights.channels * sizes.channel_len) as f64 * split.shares as f64;
        let computing = machine.work(Item::ArithmeticCycles, of_step * weights.steps() as f64 * live)
            + machine.work(Item::TransposedVectors, vectors)
            + machine.work(Item::KeptVectors, vectors * weights.k_blocks().saturating_sub(1) as f64)
            + machine.work(Item::PlaneElements, copied)
            + machine.work(Item::Tasks, 1.0);
        let bytes = geometry.weight_len() as f64 * size_of::<T::Acc>() as f64;
        let fetching = machine.fetch_weights(bytes / geometry.group as f64, bytes);
        machine.together(computing, fetching) * (split.images * split.groups * split.columns) as f64
    }
}

/// The share of the taps of the outermost axis that see input: the others are left out. Along the
/// last axis none are, because the pixels of a row differ in them.
fn live_share(axes: &[Axis]) -> f64 {
    let first = &axes[0];
    if axes.len() == 1 {
        return 1.0;
    }
    let live = (0..first.kernel).map(|tap| first.outputs_of_tap(tap).len()).sum::<usize>();
    live as f64 / (first.kernel * first.output) as f64
}

struct Padded<T: Element> {
    /// With axes merged where that gives longer rows of pixels.
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// The tiles of a full slab, and of the last one along the last axis.
    tiles: [ChannelTiles<T::Acc>; 2],
    planes: PaddedPlanes,
    split: GemmSplit,
    /// The row offsets of a full block of K, and of the last one.
    koff: [RowOffsets; 2],
    weights: ChannelWeights,
    /// The values of the planes.
    filled: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

/// One block of K of one task.
struct PaddedBlock<'a, 'io, T: Element> {
    sink: &'a Sink<'a, 'io, T>,
    image: usize,
    group: usize,
    panels: Range<usize>,
    slab: Slab,
    /// The planes of the block's channels.
    planes: &'a [T::Acc],
    koff: &'a RowOffsets,
    /// Input channels of the block.
    channels: Range<usize>,
    is_first: bool,
    is_last: bool,
    /// Output positions behind one position of the outermost axis, where the taps of that axis
    /// that see padding are left out.
    left_out: Option<usize>,
}

/// One panel of weights in one block of K.
struct PaddedPanel<'a, 'io, T: Element> {
    block: &'a PaddedBlock<'a, 'io, T>,
    tiles: &'a ChannelTiles<T::Acc>,
    /// The weights: `[steps of the block][nr]`.
    w: &'a [T::Acc],
    nr: usize,
    /// The bias of the channels that are not filled up.
    bias: &'a [T::Acc],
    /// The panel behind this one, which is fetched.
    fetch: Fetch<'a, T::Acc>,
    /// The element of Y that the first channel and the slab's first pixel go to.
    at: usize,
}

impl<T: Element> Padded<T> {
    /// Multiplies one block of K for all panels of a task.
    fn multiply(&self, block: &PaddedBlock<'_, '_, T>, sums: &mut [T::Acc]) {
        let is_edge = self.planes.axis() + 1 == self.geometry.axes.len() && !self.planes.is_full(&block.slab);
        let tiles = &self.tiles[usize::from(is_edge)];
        let rows = self.planes.slab_len(&block.slab) / tiles.width;
        let is_blocked = !(block.is_first && block.is_last);
        for p in block.panels.clone() {
            let mut panel = self.panel(block, tiles, p, rows);
            let kept = if is_blocked { (p - block.panels.start) * rows * tiles.width * tiles.nr() } else { 0 };
            let mut row = 0;
            while row < rows {
                row += self.multiply_rows(&mut panel, row, rows, &mut sums[kept..]);
            }
        }
    }

    /// Panel number `p` of the weights, for `rows` rows of pixels.
    fn panel<'a, 'io>(
        &self,
        block: &'a PaddedBlock<'a, 'io, T>,
        tiles: &'a ChannelTiles<T::Acc>,
        p: usize,
        rows: usize,
    ) -> PaddedPanel<'a, 'io, T> {
        let (io, k_total, taps) = (block.sink.io, self.weights.steps(), self.weights.taps);
        let weights = self.weights.of_group(io.weights, block.group);
        let first = p * tiles.nr();
        let live = tiles.nr().min(self.weights.rows - first);
        let nr = tiles.kernel(tiles.pixels(0).len(), live).nr();
        let steps = block.channels.start * taps..block.channels.end * taps;
        let w = &weights[first * k_total..][steps.start * nr..steps.end * nr];
        // While the first tiles are computed, the next panel is fetched. The last panel is
        // followed by the first one's next block of K.
        let next = match p + 1 {
            next if next < block.panels.end => (first + tiles.nr()) * k_total + steps.start * nr,
            _ => block.panels.start * tiles.nr() * k_total + steps.end * nr,
        };
        let next = weights.get(next..).map_or(&[][..], |next| &next[..w.len().min(next.len())]);
        let kernel = tiles.two_rows(live).unwrap_or_else(|| tiles.kernel(tiles.pixels(0).len(), live));
        let calls = rows.div_ceil(kernel.rows()) * tiles.count;
        // With several blocks of K, a panel's own next block lies behind it, and not the next
        // panel.
        let is_whole = block.is_first && block.is_last;
        let fetch = if is_whole { Fetch::behind } else { Fetch::new };
        let channel = block.group * self.weights.rows + first;
        PaddedPanel {
            block,
            tiles,
            w,
            nr,
            bias: &io.bias[channel..channel + live],
            fetch: fetch(next, calls, kernel, tiles.rate()),
            at: (block.image * self.geometry.out_channels + channel) * self.geometry.output_spatial()
                + block.slab.first,
        }
    }

    /// Multiplies row number `row` of `rows` rows of pixels, or two rows at once where that pays.
    /// Returns how many. `sums` are those of the panel.
    fn multiply_rows(&self, panel: &mut PaddedPanel<'_, '_, T>, row: usize, rows: usize, sums: &mut [T::Acc]) -> usize {
        let PaddedPanel { block, tiles, w, nr, bias, .. } = *panel;
        let (live, is_blocked) = (bias.len(), !(block.is_first && block.is_last));
        let row_at = self.planes.row_offset(row);
        let mut taps = self.live_taps(block, row, tiles.width);
        let (mut two_rows, mut pitch) = (None, 0);
        if tiles.two_rows(live).is_some()
            && row + 1 < rows
            && let Some((kernel, joined)) = tiles.joined(live, [&taps, &self.live_taps(block, row + 1, tiles.width)])
        {
            (two_rows, taps) = (Some(kernel), joined);
            pitch = self.planes.row_offset(row + 1) - row_at;
        }
        let of_tap = self.weights.taps / self.geometry.axes[0].kernel * block.channels.len();
        let steps = taps.start * of_tap..taps.end * of_tap;
        let w = &w[steps.start * nr..steps.end * nr];
        let koff = block.koff.rows(steps).with_pitch(pitch);
        for t in 0..tiles.count {
            let pixels = two_rows.map_or_else(|| tiles.pixels(t), |kernel| 0..kernel.mr());
            let kernel = two_rows.unwrap_or_else(|| tiles.kernel(pixels.len(), live));
            let x = &block.planes[row_at + pixels.start..];
            let first = row * tiles.width + pixels.start;
            let kept = if is_blocked { first * tiles.nr() } else { 0 };
            let tile = &mut sums[kept..kept + pixels.len() * nr];
            let ahead = panel.fetch.during(koff.len());
            if block.is_last {
                let steps = LastSteps { x, koff, w, ahead, accumulate: !block.is_first, bias };
                steps.finish(kernel, tile, panel.at + first, block.sink);
            } else {
                kernel.partial(x, koff, w, ahead, tile, !block.is_first);
            }
        }
        two_rows.map_or(1, ChannelKernel::rows)
    }

    /// The taps of the outermost axis that a row of `width` pixels needs.
    fn live_taps(&self, block: &PaddedBlock<'_, '_, T>, row: usize, width: usize) -> Range<usize> {
        let first = &self.geometry.axes[0];
        match block.left_out {
            Some(positions) => first.taps_of_output((block.slab.first + row * width) / positions),
            None => 0..first.kernel,
        }
    }
}

impl<T: Element> Split for Padded<T> {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.split.part(task);
        let (rows, positions) = (self.weights.rows_of(&part.panels), self.planes.positions(part.columns));
        patch(part.patch(&self.geometry, rows, positions));
    }
}

impl<T: Element> Lowering<T> for Padded<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(w, packed);
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.split.part(task);
        let slab = self.planes.slab(columns);
        let mut arena = Arena::new(scratch);
        let (planes, sums) = (arena.get(self.filled), arena.get(self.sums));
        let (channels, block) = (self.weights.channels, self.weights.block);
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        let sink = self.finish.sink(io);
        // Along the last axis, the pixels of a row differ in their taps.
        let first = &geometry.axes[0];
        let leaves_out = geometry.axes.len() > 1 && first.is_padded();
        let left_out = leaves_out.then(|| geometry.output_spatial() / first.output);
        // Without channels there is still the bias to be stored: one empty block.
        for first in (0..channels.max(1)).step_by(block) {
            let width = block.min(channels - first);
            let x = &x[first * geometry.input_spatial()..];
            self.planes.fill(self.isa, &slab, x, &mut planes[..width * self.planes.channel_len]);
            let block = PaddedBlock {
                sink: &sink,
                image,
                group,
                panels: panels.clone(),
                slab,
                planes,
                koff: &self.koff[usize::from(width != block)],
                channels: first..first + width,
                is_first: first == 0,
                is_last: first + width == channels,
                left_out,
            };
            self.multiply(&block, sums);
        }
    }
}
