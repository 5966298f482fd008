//! Conv with vectors along output channels.
//!
//! M = output positions, N = M/group, K = C/group * kernel volume, for each image and group: the
//! transposed product of [`gemm`](crate::conv::gemm). Kernels broadcast elements of a copy of X, and
//! read vectors of packed weights. There are no garbage columns. Taps that see only padding are left out
//! ([`taps`](super::taps)).
//!
//! The copy is padded planes, or rows of X without padding if that saves many products
//! ([`source`](super::source)). Makes no offer if the offsets in the copy do not fit 32 bits. Scratch of
//! a task: the copy of a block of channels for one chunk of the output, and a tile, or the sums of the
//! chunk if K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{ChannelKernel, Isa, RowOffsets};

use super::last_steps::LastSteps;
use super::source::{BareRows, ChannelSource};
use super::taps::{OuterTaps, RowPiece};
use super::weights::ChannelWeights;
use crate::conv::channel_tiles::PanelPrefetch;
use crate::conv::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request, no_kernel};
use crate::conv::planes::{self, ChunkCut, ChunkLimits, OutputChunk, PER_THREAD, PaddedPlanes};
use crate::conv::shares::{GemmSplit, Part};
use crate::conv::store::{Finish, OutputStore};
use crate::conv::view;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Work};
use crate::units::Count;
use crate::{Axis, Geometry, Op};

/// Channels whose sums are kept between blocks of K, at most. More would leave room for few positions,
/// and each chunk of positions reads the weights again.
const MOST_SUMMED: usize = 1536;

pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let weights = ChannelWeights::new(request)?;
    let search = ConvSearch::new(request, weights, most_bytes)?;
    let ConvChoice { chunks, split, work, .. } = search.best()?;
    let most_pixels = search.most_pixels(&chunks)?;
    let copy_len = chunks.copy_len(&weights, most_pixels).ok_or_else(|| planes::too_large(&search.geometry.axes))?;
    let mut scratch = Ledger::default();
    let copy = scratch.book("copy of X", copy_len);
    let sums = scratch.book("sums", search.sums_len(&chunks, &split, most_pixels));
    let rows = search.rows(chunks.width)?;
    let widest = rows.iter().map(|piece| &piece.tiles).max_by_key(|tiles| tiles.width);
    let kernel = widest.map_or("", |tiles| {
        let two_rows = tiles.two_rows(tiles.nr()).filter(|_| chunks.rows > 1 && rows.len() == 1);
        two_rows.map_or(tiles.name(), ChannelKernel::name)
    });
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, rows of {} in {}{}, {}, K in blocks of {}, weights in {}",
            Count(chunks.width, "pixel"),
            Count(rows.iter().map(|piece| piece.tiles.count).sum(), "tile"),
            if search.is_bare { ", products with padding left out" } else { "" },
            Count(split.columns, "chunk"),
            weights.k.size() * weights.taps,
            Count(split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: split.tasks(),
        scratch,
        work,
    };
    let rows = [rows, search.rows(chunks.last_width)?];
    let ConvSearch { geometry, .. } = search;
    let build: Build<'a, T> = Box::new(move || {
        let source = match chunks.bare {
            None => ChannelSource::Padded(PaddedPlanes::new(&geometry, chunks.cut)),
            Some(rows) => ChannelSource::Bare(rows),
        };
        Box::new(ChannelConv {
            isa: request.isa(),
            finish: Finish::new(request),
            koff: weights.k.lens().map(|block| source.offsets(block)),
            geometry,
            rows,
            source,
            split,
            weights,
            copy,
            sums,
        })
    });
    Ok(Offer { recipe, build })
}

#[derive(Debug, Clone, PartialEq)]
struct ConvChunks {
    cut: ChunkCut,
    /// The rows without padding that are copied. None for planes.
    bare: Option<BareRows>,
    /// Elements of the copy of one channel.
    channel_len: usize,
    count: usize,
    /// Rows of pixels of a full chunk.
    rows: usize,
    /// Pixels of a row of a full chunk, and of the last chunk along the last axis.
    width: usize,
    last_width: usize,
}

impl ConvChunks {
    fn new(axes: &[Axis], cut: ChunkCut, channel_len: usize, bare: Option<BareRows>) -> Self {
        let last = axes.len() - 1;
        let positions = |i: usize| planes::positions_on(axes, cut, i);
        let (width, rest) = (positions(last), axes[last].output % cut.extent);
        let last_width = if cut.axis == last && rest != 0 { rest } else { width };
        let count = axes.iter().enumerate().map(|(i, axis)| axis.output.div_ceil(positions(i))).product();
        Self { cut, bare, channel_len, count, rows: (0..last).map(positions).product(), width, last_width }
    }

    /// Values of the copy of a block of channels. None if they exceed the address space.
    fn copy_len(&self, weights: &ChannelWeights, most_pixels: usize) -> Option<usize> {
        match &self.bare {
            None => weights.k.size().checked_mul(self.channel_len),
            Some(rows) => rows.copy_len(weights.k.size(), most_pixels),
        }
    }
}

/// A way to cut the product.
struct ConvChoice {
    chunks: ConvChunks,
    split: GemmSplit,
    work: Work,
    /// Cycles of the busiest thread, times the number of threads.
    busiest_cycles: f64,
}

/// The search for the best cut.
struct ConvSearch<'a, T: Element> {
    request: &'a Request<'a, T>,
    geometry: Geometry,
    weights: ChannelWeights,
    /// Bytes that the copy and the sums of a chunk should not exceed.
    most_bytes: usize,
    /// Whether rows are copied without padding.
    is_bare: bool,
}

impl<'a, T: Element> ConvSearch<'a, T> {
    fn new(request: &'a Request<'a, T>, weights: ChannelWeights, most_bytes: usize) -> Result<Self, String> {
        let geometry = view::merged(request.geometry);
        let mut search = Self { request, geometry, weights, most_bytes, is_bare: false };
        if BareRows::can_serve(&search.geometry) {
            // Runs of taps are summed in another order than all taps. So the choice must not depend on
            // how the product is cut.
            let padded = search.computing()? + search.copying();
            search.is_bare = true;
            let bare = search.computing()? + search.copying();
            search.is_bare = bare.cycles() < padded.cycles();
        }
        if search.is_bare && search.geometry.axes.len() == 1 {
            search.geometry.axes.insert(0, Axis::UNIT);
        }
        Ok(search)
    }

    fn width(&self) -> usize {
        self.last().output
    }

    fn last(&self) -> &Axis {
        &self.geometry.axes[self.geometry.axes.len() - 1]
    }

    fn outer(&self) -> &[Axis] {
        &self.geometry.axes[..self.geometry.axes.len() - 1]
    }

    fn rows(&self, width: usize) -> Result<Vec<RowPiece<T::Acc>>, String> {
        let (machine, last) = (self.request.machine, self.last());
        let pieces = match self.is_bare {
            true => RowPiece::where_taps_change(machine, last),
            false => RowPiece::whole(machine, width, last.kernel),
        };
        pieces.ok_or_else(no_kernel)
    }

    /// Pixels of a kernel call, at most.
    fn most_pixels(&self, chunks: &ConvChunks) -> Result<usize, String> {
        let most = |width| Ok(self.rows(width)?.iter().map(|piece| piece.tiles.most_pixels()).max().unwrap_or(0));
        let [full, last]: [Result<usize, String>; 2] = [most(chunks.width), most(chunks.last_width)];
        Ok(full?.max(last?))
    }

    /// Values of a tile, or of all sums of a task if K has several blocks.
    fn sums_len(&self, chunks: &ConvChunks, split: &GemmSplit, most_pixels: usize) -> usize {
        match self.weights.k.count() > 1 {
            true => chunks.rows * chunks.width * split.share_panels() * self.weights.nr(),
            false => self.weights.nr() * most_pixels,
        }
    }

    fn best(&self) -> Result<ConvChoice, String> {
        let threads = self.request.threads;
        let least = if self.weights.k.count() > 1 { self.weights.rows.div_ceil(MOST_SUMMED).max(1) } else { 1 };
        let mut best = self.choice(least, PER_THREAD[0])?;
        if threads > 1 {
            // Threads that share out the channels read the weights once, but each copies X.
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

    /// At least `shares` shares of the panels, if there are as many panels, and chunks for `per_thread`
    /// tasks of each thread.
    fn choice(&self, shares: usize, per_thread: usize) -> Result<ConvChoice, String> {
        let Self { request, geometry, weights, .. } = self;
        let shares = shares.min(weights.rows.div_ceil(2 * weights.panels.lanes)).max(1);
        let chunks = self.chunks(shares, per_thread).ok_or_else(|| planes::too_large(&geometry.axes))?;
        let (images, groups, columns, panels) = (geometry.batch, geometry.group, chunks.count, weights.count());
        let of_threads = if request.threads == 1 { 1 } else { request.threads.div_ceil(images * groups * columns) };
        let shares = of_threads.max(shares).clamp(1, panels.max(1));
        let split = GemmSplit { images, groups, columns, panels, shares };
        let work = self.work(&chunks, &split)?;
        let (nr, padded) = (weights.nr(), weights.padded);
        let rows = |part: &Part| (part.panels.end * nr).min(padded).saturating_sub(part.panels.start * nr);
        let busiest_cycles = split.unevenness(request.threads, rows) * work.cycles();
        Ok(ConvChoice { chunks, split, work, busiest_cycles })
    }

    /// The chunks whose copy and sums fit the L2 cache. None if the copy is too large.
    fn chunks(&self, shares: usize, per_thread: usize) -> Option<ConvChunks> {
        let Self { request, geometry, weights, most_bytes, .. } = self;
        let (of_share, value_bytes) = (weights.rows.div_ceil(shares), size_of::<T::Acc>());
        let a_bytes = (of_share * weights.k.size() * weights.taps).saturating_mul(value_bytes);
        let summed = if weights.k.count() > 1 { of_share.next_multiple_of(2 * weights.panels.lanes) } else { 0 };
        let budget_bytes = planes::budget_beside(request.machine, a_bytes).min(*most_bytes);
        let limits = ChunkLimits::new(request, weights.k.size(), budget_bytes);
        let limits = ChunkLimits { images: limits.images.saturating_mul(shares), per_thread, ..limits };
        let axes = &geometry.axes;
        if !self.is_bare {
            let (cut, sizes) = limits.cut(axes, |columns| columns.saturating_mul(summed))?;
            return Some(ConvChunks::new(axes, cut, sizes.channel_len, None));
        }
        let inside = axes[1..].iter().try_fold(summed, |n, axis| n.checked_mul(axis.output))?;
        let bytes = |extent: usize| {
            let copy = BareRows::new(axes, extent)?.copy_len(weights.k.size(), 0)?;
            copy.checked_add(extent.checked_mul(inside)?)?.checked_mul(value_bytes)
        };
        let fits = |extent: usize| bytes(extent).is_some_and(|bytes| bytes <= limits.budget_bytes);
        let (whole, largest) = (axes[0].output, planes::largest_that(axes[0].output, fits));
        let columns = largest * axes[1..].iter().map(|axis| axis.output).product::<usize>();
        let extent = limits.even_extent((whole, largest), (whole.div_ceil(largest), columns));
        bytes(extent).filter(|bytes| *bytes <= planes::MOST_BYTES)?;
        let rows = BareRows::new(axes, extent)?;
        Some(ConvChunks::new(axes, ChunkCut { axis: 0, extent }, rows.channel_len, Some(rows)))
    }

    fn work(&self, chunks: &ConvChunks, split: &GemmSplit) -> Result<Work, String> {
        let Self { request, geometry, weights, .. } = self;
        let machine = request.machine;
        let copied = (weights.channels * chunks.channel_len) as f64 * (chunks.count * split.shares) as f64;
        let kept = self.vectors() * (weights.k.count() - 1) as f64;
        let computing = self.computing()?
            + Item::STORED_VECTORS.times(kept)
            + Item::COPIED_ELEMENTS.times(copied)
            + Item::TASKS.times(chunks.count as f64);
        let bytes = geometry.weight_len() as f64 * size_of::<T::Acc>() as f64;
        let fetching = machine.fetch_weights(bytes / geometry.group as f64 * chunks.count as f64, bytes);
        Ok(machine.overlapped(computing, fetching) * (split.images * split.groups) as f64)
    }

    fn height(&self) -> f64 {
        self.outer().iter().map(|axis| axis.output as f64).product()
    }

    fn vectors(&self) -> f64 {
        self.height() * self.width() as f64 * self.weights.rows as f64 / self.weights.panels.lanes as f64
    }

    /// The products of an image and group, and storing.
    fn computing(&self) -> Result<Work, String> {
        let (machine, weights, rows) = (self.request.machine, &self.weights, self.rows(self.width())?);
        let height = self.height();
        // Taps of the axes before the last that are multiplied, over all rows.
        let taps = |(i, axis): (usize, &Axis)| match i == 0 || self.is_bare {
            true => (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap).len()).sum::<usize>() as f64,
            false => (axis.output * axis.kernel) as f64,
        };
        let taps: f64 = self.outer().iter().enumerate().map(taps).product();
        let cycles = RowPiece::cycles(&rows, machine, weights.rows, height > 1.0 && !self.is_bare);
        let mut work = Item::ARITHMETIC_CYCLES.times(cycles * taps * weights.channels as f64)
            + Item::TRANSPOSED_VECTORS.times(self.vectors());
        if self.is_bare {
            // A call for each run of taps, which adds to the sums of the runs before.
            let whole = |piece: &RowPiece<T::Acc>| piece.taps.len() == self.last().kernel;
            let runs = |piece: &RowPiece<T::Acc>| if whole(piece) { height } else { taps };
            let calls: f64 = rows.iter().map(|piece| runs(piece) * piece.tiles.count as f64).sum();
            let pixels: f64 = rows.iter().map(|piece| runs(piece) * piece.tiles.width as f64).sum();
            let vectors = pixels * weights.rows as f64 / weights.panels.lanes as f64;
            work += Item::KERNEL_CALLS.times(calls * (weights.count() * weights.k.count()) as f64)
                + Item::STORED_VECTORS.times(vectors * weights.k.count() as f64);
        }
        Ok(work)
    }

    /// The copy of an image and group, uncut.
    fn copying(&self) -> Work {
        let elements = |axis: &Axis| match self.is_bare {
            true => axis.input as f64,
            false => axis.output as f64 + ((axis.kernel - 1) * axis.dilation) as f64,
        };
        let elements: f64 = self.geometry.axes.iter().map(elements).product();
        Item::COPIED_ELEMENTS.times(elements * self.weights.channels as f64)
    }
}

struct ChannelConv<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// The pieces of a row of a full chunk, and of the last chunk along the last axis.
    rows: [Vec<RowPiece<T::Acc>>; 2],
    source: ChannelSource,
    split: GemmSplit,
    /// The row offsets of a full block of K, and of the last one.
    koff: [RowOffsets; 2],
    weights: ChannelWeights,
    copy: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

/// One block of K of one task.
struct ConvBlock<'a, 'io, T: Element> {
    store: &'a OutputStore<'a, 'io, T>,
    image: usize,
    group: usize,
    panels: Range<usize>,
    chunk: OutputChunk,
    /// The pieces of a row, its pixels, and the rows of the chunk.
    pieces: &'a [RowPiece<T::Acc>],
    width: usize,
    rows: usize,
    /// The copy of the block's channels.
    x: &'a [T::Acc],
    koff: &'a RowOffsets,
    channels: Range<usize>,
    is_first: bool,
    is_last: bool,
}

impl<T: Element> ConvBlock<'_, '_, T> {
    fn is_whole(&self) -> bool {
        self.is_first && self.is_last
    }
}

/// One panel of weights in one block of K.
struct ConvPanel<'a, T: Element> {
    /// The weights: `[steps of the block][nr]`.
    w: &'a [T::Acc],
    nr: usize,
    bias: &'a [T::Acc],
    prefetch: PanelPrefetch<'a, T::Acc>,
    /// Where the first channel and first pixel of the chunk go in Y.
    at: usize,
}

/// One or two rows of pixels: where they begin in the copy, and their taps of the axes before the last.
struct ConvRows<'a, T: Element> {
    first: usize,
    at: usize,
    taps: &'a OuterTaps,
    /// For two rows: the kernel, and the distance of the rows.
    pair: Option<(&'static ChannelKernel<T::Acc>, usize)>,
}

impl<T: Element> ChannelConv<T> {
    /// Multiplies all panels of a task by one block of K.
    fn multiply(&self, block: &ConvBlock<'_, '_, T>, sums: &mut [T::Acc]) {
        let (taps, taps_of_next) = (&mut OuterTaps::none(), &mut OuterTaps::none());
        for p in block.panels.clone() {
            let mut panel = self.panel(block, p);
            let before = if block.is_whole() { 0 } else { (p - block.panels.start) * block.rows * block.width };
            let mut row = 0;
            while row < block.rows {
                let at = self.source.row_offset(&block.chunk, row);
                self.find_taps(block, row, taps);
                let pair = self.pair(block, panel.bias.len(), row, at, taps, taps_of_next);
                let rows = ConvRows { first: row * block.width, at, taps, pair };
                self.multiply_rows(block, &mut panel, &rows, &mut sums[before * self.weights.nr()..]);
                row += if pair.is_some() { 2 } else { 1 };
            }
        }
    }

    fn panel<'a>(&self, block: &ConvBlock<'a, '_, T>, p: usize) -> ConvPanel<'a, T> {
        let (io, k_total, taps, wide) = (block.store.io, self.weights.steps(), self.weights.taps, self.weights.nr());
        let weights = self.weights.of_group(io.weights, block.group);
        let first = p * wide;
        let real = wide.min(self.weights.rows - first);
        let (nr, _) = self.weights.panels.panel(real);
        let steps = block.channels.start * taps..block.channels.end * taps;
        let w = &weights[first * k_total..][steps.start * nr..steps.end * nr];
        // Prefetched while the first tiles are computed. After the last panel comes the first one's next
        // block of K.
        let next = match p + 1 {
            next if next < block.panels.end => (first + wide) * k_total + steps.start * nr,
            _ => block.panels.start * wide * k_total + steps.end * nr,
        };
        let next = weights.get(next..).map_or(&[][..], |next| &next[..w.len().min(next.len())]);
        let tiles = &block.pieces[0].tiles;
        let kernel = tiles.two_rows(real).unwrap_or_else(|| tiles.kernel(tiles.pixels(0).len(), real));
        let calls =
            block.rows.div_ceil(kernel.rows()) * block.pieces.iter().map(|piece| piece.tiles.count).sum::<usize>();
        // With several blocks of K, the panel's own next block follows in memory.
        let prefetch = if block.is_whole() { PanelPrefetch::behind } else { PanelPrefetch::new };
        let channel = block.group * self.weights.rows + first;
        ConvPanel {
            w,
            nr,
            bias: &io.bias[channel..channel + real],
            prefetch: prefetch(next, calls, kernel, tiles.rate()),
            at: self.geometry.output_offset(block.image, channel, block.chunk.first),
        }
    }

    /// Finds the taps of the axes before the last that row `row` of a chunk multiplies.
    fn find_taps(&self, block: &ConvBlock<'_, '_, T>, row: usize, taps: &mut OuterTaps) {
        let axes = &self.geometry.axes;
        let row = (block.chunk.first + row * block.width) / axes[axes.len() - 1].output;
        self.source.find_taps(axes, row, taps);
    }

    /// If row `row` and the next one are to be multiplied at once: the kernel, and the distance of the
    /// rows. `taps` are those of the row, and become those of both.
    fn pair(
        &self,
        block: &ConvBlock<'_, '_, T>,
        channels: usize,
        row: usize,
        at: usize,
        taps: &mut OuterTaps,
        taps_of_next: &mut OuterTaps,
    ) -> Option<(&'static ChannelKernel<T::Acc>, usize)> {
        // Rows without padding lack what the taps of another row would read.
        if matches!(self.source, ChannelSource::Bare(_)) || row + 1 == block.rows || !taps.is_one_run() {
            return None;
        }
        let kernel = block.pieces[0].tiles.two_rows(channels)?;
        self.find_taps(block, row + 1, taps_of_next);
        if !taps_of_next.is_one_run() {
            return None;
        }
        taps.join(taps_of_next);
        Some((kernel, self.source.row_offset(&block.chunk, row + 1) - at))
    }

    fn multiply_rows(
        &self,
        block: &ConvBlock<'_, '_, T>,
        panel: &mut ConvPanel<'_, T>,
        rows: &ConvRows<'_, T>,
        sums: &mut [T::Acc],
    ) {
        let channels = panel.bias.len();
        for piece in block.pieces {
            for t in 0..piece.tiles.count {
                let pixels = rows.pair.map_or_else(|| piece.tiles.pixels(t), |(kernel, _)| 0..kernel.mr());
                let kernel = rows.pair.map_or_else(|| piece.tiles.kernel(pixels.len(), channels), |(kernel, _)| kernel);
                let pixel = piece.start + pixels.start;
                let kept = if block.is_whole() { 0 } else { (rows.first + pixel) * self.weights.nr() };
                let tile = &mut sums[kept..kept + pixels.len() * panel.nr];
                self.multiply_tile(block, panel, rows, (piece, kernel, pixel), tile);
            }
        }
    }

    /// Sums the runs of taps of a tile at pixel `pixel` of the rows. The last block of K finishes it
    /// into Y.
    fn multiply_tile(
        &self,
        block: &ConvBlock<'_, '_, T>,
        panel: &mut ConvPanel<'_, T>,
        rows: &ConvRows<'_, T>,
        (piece, kernel, pixel): (&RowPiece<T::Acc>, &ChannelKernel<T::Acc>, usize),
        tile: &mut [T::Acc],
    ) {
        let (all, width) = (self.geometry.axes[self.geometry.axes.len() - 1].kernel, block.channels.len());
        let x = &block.x[rows.at + pixel..];
        let pitch = rows.pair.map_or(0, |(_, pitch)| pitch);
        // Without taps, one empty run stores the bias.
        let count = rows.taps.count(&piece.taps, all);
        for run in 0..count.max(1) {
            let taps = if count == 0 { 0..0 } else { rows.taps.run(run, &piece.taps, all) };
            let steps = taps.start * width..taps.end * width;
            let w = &panel.w[steps.start * panel.nr..steps.end * panel.nr];
            let koff = block.koff.rows(steps).with_pitch(pitch);
            let (accumulate, prefetch) = (!block.is_first || run > 0, panel.prefetch.during(koff.len()));
            if block.is_last && run + 1 >= count {
                let steps = LastSteps { x, koff, w, prefetch, accumulate, bias: panel.bias };
                steps.finish(kernel, tile, panel.at + rows.first + pixel, block.store);
            } else {
                kernel.partial(x, koff, w, prefetch, tile, accumulate);
            }
        }
    }
}

impl<T: Element> Split for ChannelConv<T> {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.split.part(task);
        let (rows, positions) = (self.weights.rows_of(&part.panels), self.source.chunk(part.columns).positions());
        patch(part.patch(&self.geometry, rows, positions));
    }
}

impl<T: Element> Lowering<T> for ChannelConv<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(Op::Conv, w, packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.split.part(task);
        let mut arena = Arena::new(scratch);
        let (copy, sums) = (arena.get(self.copy), arena.get(self.sums));
        let ChannelWeights { channels, k, .. } = self.weights;
        let x = &io.x[geometry.input_offset(image, group * channels, 0)..];
        let store = self.finish.store(io);
        // Without channels, one empty block stores the bias.
        for block in k.iter() {
            let chunk = self.source.chunk(columns);
            self.source.fill(self.isa, &chunk, &x[block.start * geometry.input_spatial()..], block.len(), copy);
            let pieces = &self.rows[usize::from(self.source.is_edge(&chunk, geometry.axes.len()))];
            let row_len = pieces.iter().map(|piece| piece.tiles.width).sum();
            let block = ConvBlock {
                store: &store,
                image,
                group,
                panels: panels.clone(),
                pieces,
                width: row_len,
                rows: chunk.len / row_len,
                chunk,
                x: copy,
                koff: &self.koff[usize::from(block.len() != k.size())],
                is_first: block.start == 0,
                is_last: block.end == channels,
                channels: block,
            };
            self.multiply(&block, sums);
        }
    }
}
