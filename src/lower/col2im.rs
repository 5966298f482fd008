//! ConvTranspose as GEMM + col2im: multiply every input position by every tap, and add each
//! product to the output that it belongs to.
//!
//! M = a block of output channels * kernel volume, K = C/group, N = input positions, for each image
//! and group. K is in blocks of at most [`MOST_BLOCK_STEPS`], and so are the taps of larger
//! kernels.
//!
//! The output is cut into bands. A band is a run of positions on one axis, with one position of
//! the axes before it and all positions of the axes behind it. That axis is the outermost one
//! whose slices are not too large. A task multiplies the input positions that reach its band, a
//! tile at a time, and adds the products to sums of the band. No other task has that band: there
//! are no atomics, and every output is stored once. Along the last axis the sums are stored by
//! phases of the stride, so that each addition is of two runs of neighbours.
//!
//! Accepts every ConvTranspose. Scratch of a task: a tile of the input and one of the product,
//! each of at most [`tile_bytes`] or 64 positions, and the sums of the band, of at most
//! [`band_bytes`] or one slice of [`MOST_BAND_BYTES`].

use alloc::boxed::Box;
use core::cmp::Ordering;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::engine::products_work;
use super::layout::WeightLayout;
use super::shares::{GemmSplit, Part, ROWS_FOR_SHARED_ROW, TASKS_PER_THREAD};
use super::sink::Finish;
use crate::blas::{self, Blocks, Gemm, Product, Size};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Rows of a GEMM, about: tiles of 64 positions are then small beside the sums.
const ROWS_OF_GEMM: usize = 256;
/// The most steps of a block of K, and the most rows of a GEMM of one channel. Tiles of 64
/// positions then take 256 KiB, in f64 twice that. Packed weights depend on it, so that it must
/// not depend on the machine.
const MOST_BLOCK_STEPS: usize = 1024;
/// The fewest positions of a tile. Fewer make poor columns of a GEMM.
const LEAST_POSITIONS: usize = 64;
/// The most positions of a tile. More gain nothing.
const MOST_POSITIONS: usize = 4096;
/// Bytes of a slice of an axis from which on bands are cut along the next axis. It bounds the
/// scratch of a task. It is far above [`band_bytes`], because bands of a single slice multiply
/// most inputs several times.
const MOST_BAND_BYTES: usize = 4 << 20;

/// Bytes of a tile of the input, and of the product, about: both stay in the L2 cache beside the
/// sums.
fn tile_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// Bytes of the sums of a band, about: they stay in the L2 cache.
fn band_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas, most_bytes: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let blocking = Col2imBlocking::new(request, most_bytes);
    let Col2imBlocking { channels, k, positions, ld, split, .. } = blocking;
    let packed = match request.layout {
        None => [None; 2],
        Some(WeightLayout::BlasColumns { blas: packed, channels: size, panels })
            if (*packed, *size) == (blas, channels.size()) =>
        {
            panels.map(Some)
        }
        Some(other) => return Err(other.mismatch()),
    };
    let backend = |rows: usize, layout: Option<usize>| {
        blas::backend::<T::Acc>(blas, machine, Size { rows, k: k.size(), ld }, layout)
    };
    let backends = [backend(blocking.rows(), packed[0])?, backend(blocking.last_rows(), packed[1])?];

    let mut scratch = Ledger::default();
    let input = scratch.book("input", k.size() * ld);
    let product = scratch.book("product", blocking.rows() * ld);
    let band = BandSums::new(&geometry.axes, &blocking.bands, 0);
    let sums = scratch.book("sums", channels.size() * band.len());
    let tile = scratch.book("tile", backends[0].tile_len.max(backends[1].tile_len));
    let additions = geometry.macs() as f64 / geometry.in_channels_per_group().max(1) as f64;
    let recipe = Recipe {
        kernel: backends[0].kernel,
        details: alloc::format!(
            "{}, {} and {} at a time, K in blocks of {}, {}",
            backends[0].kernel,
            Count(channels.size(), "output channel"),
            Count(positions, "input position"),
            k.size(),
            Count(blocking.bands.count, "band")
        ),
        layout: WeightLayout::BlasColumns {
            blas,
            channels: channels.size(),
            panels: [backends[0].layout, backends[1].layout],
        },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: products_work(request, (geometry.input_spatial(), positions), Item::Col2imFmas)
            + machine.work(Item::Col2imElements, additions),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let gemms = backends.map(|backend| (backend.build)());
        Box::new(Col2im { geometry: geometry.clone(), isa, finish, gemms, blocking, input, product, sums, tile })
    });
    Ok(Offer { recipe, build })
}

/// How the products and the output are cut.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Col2imBlocking {
    /// Output channels of a group, taps, and steps of K. They depend on the operator alone, so
    /// that packed weights fit every input size. If taps are in blocks, each block of channels is
    /// one channel.
    channels: Blocks,
    taps: Blocks,
    k: Blocks,
    /// Input positions of a tile, and elements from one of its rows to the next.
    positions: usize,
    ld: usize,
    bands: OutputBands,
    split: GemmSplit,
}

impl Col2imBlocking {
    fn new<T: Element>(request: &Request<'_, T>, most_bytes: usize) -> Self {
        let (geometry, machine) = (request.geometry, request.machine);
        let k = Blocks::new(geometry.in_channels_per_group(), MOST_BLOCK_STEPS);
        let taps = Blocks::new(geometry.kernel_volume(), MOST_BLOCK_STEPS);
        let channels = Blocks::new(geometry.out_channels_per_group(), (ROWS_OF_GEMM / geometry.kernel_volume()).max(1));
        let rows = channels.size() * taps.size();
        let positions = tile_bytes(machine) / size_of::<T::Acc>() / rows.max(k.size());
        let positions = positions.clamp(LEAST_POSITIONS, MOST_POSITIONS).min(geometry.input_spatial().max(1));
        let bands = OutputBands::new(request, &channels, most_bytes);
        let (images, groups, panels) = (geometry.batch, geometry.group, channels.count());
        let split = GemmSplit { images, groups, columns: bands.count, panels, shares: panels };
        Self { channels, taps, k, positions, ld: blas::leading_dimension(positions), bands, split }
    }

    /// Rows of a product of full blocks.
    fn rows(&self) -> usize {
        self.channels.size() * self.taps.size()
    }

    /// Rows of the product of the last blocks.
    fn last_rows(&self) -> usize {
        self.channels.last().len() * self.taps.last().len()
    }
}

/// How the output of an image is cut into bands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputBands {
    axis: usize,
    /// Positions of a band on that axis. The last band may have fewer.
    extent: usize,
    /// Bands along the axis, and bands of an image.
    along: usize,
    count: usize,
}

impl OutputBands {
    /// A band has as many positions as [`band_bytes`] hold. It has fewer if threads would be left
    /// without work, but not so few that most input positions reach several bands. Its sums take
    /// at most `most_bytes`, unless a single position takes more.
    fn new<T: Element>(request: &Request<'_, T>, channels: &Blocks, most_bytes: usize) -> Self {
        let (geometry, axes) = (request.geometry, &request.geometry.axes);
        let outputs = |axes: &[Axis]| axes.iter().map(|a| a.output).product::<usize>();
        let slice = |axis: usize| outputs(&axes[axis + 1..]).saturating_mul(channels.size() * size_of::<T::Acc>());
        let last = axes.len() - 1;
        let axis = (0..last).find(|&axis| slice(axis) <= MOST_BAND_BYTES.min(most_bytes)).unwrap_or(last);
        let (cut, before) = (&axes[axis], outputs(&axes[..axis]));
        let fitting = band_bytes(request.machine).min(most_bytes) / slice(axis);
        let tasks = geometry.batch * geometry.group * channels.count() * before;
        let shared = match request.threads {
            1 => usize::MAX,
            threads => (cut.output * tasks).div_ceil(TASKS_PER_THREAD * threads),
        };
        let overlap = (cut.kernel - 1).saturating_mul(cut.dilation);
        let least = overlap.saturating_mul(ROWS_FOR_SHARED_ROW).saturating_add(cut.stride);
        let extent = fitting.min(shared.max(least)).clamp(1, cut.output);
        // Bands have nearly equal extents, which are whole strides.
        let even = cut.output.div_ceil(cut.output.div_ceil(extent));
        let extent = even.next_multiple_of(cut.stride.min(even));
        let along = cut.output.div_ceil(extent);
        Self { axis, extent, along, count: before * along }
    }
}

/// Where the sums of one channel over a band of the output are in scratch.
struct BandSums<'a> {
    axes: &'a [Axis],
    /// The axis that bands are cut along. The band has its positions `origin..origin + extent`.
    axis: usize,
    origin: usize,
    extent: usize,
    /// The band's position on the axes before, as one index.
    outer: usize,
}

impl<'a> BandSums<'a> {
    fn new(axes: &'a [Axis], bands: &OutputBands, band: usize) -> Self {
        let (axis, origin) = (bands.axis, band % bands.along * bands.extent);
        let extent = bands.extent.min(axes[axis].output - origin);
        Self { axes, axis, origin, extent, outer: band / bands.along }
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    /// The band's first position along an axis, and its number of positions.
    fn range(&self, axis: usize) -> (usize, usize) {
        match axis.cmp(&self.axis) {
            Ordering::Less => {
                let behind = self.axes[axis + 1..self.axis].iter().fold(self.outer, |outer, a| outer / a.output);
                (behind % self.axes[axis].output, 1)
            }
            Ordering::Equal => (self.origin, self.extent),
            Ordering::Greater => (0, self.axes[axis].output),
        }
    }

    /// The band's first output position, as an index into a channel of Y.
    fn first(&self) -> usize {
        let behind: usize = self.axes[self.axis + 1..].iter().map(|a| a.output).product();
        (self.outer * self.axes[self.axis].output + self.origin) * behind
    }

    /// The number of phases of the last axis, and elements of each. Position r of a row is
    /// element `r / stride` of phase `r % stride`.
    fn phases(&self) -> (usize, usize) {
        let (_, extent) = self.range(self.axes.len() - 1);
        (self.last().stride.min(extent), extent.div_ceil(self.last().stride))
    }

    /// Elements of a row of sums.
    fn row_len(&self) -> usize {
        let (phases, span) = self.phases();
        phases * span
    }

    /// Rows of sums: positions of the band along the axes before the last.
    fn rows(&self) -> usize {
        (0..self.axes.len() - 1).map(|i| self.range(i).1).product()
    }

    /// Elements of the sums of a channel.
    fn len(&self) -> usize {
        self.rows() * self.row_len()
    }

    /// Output positions of the band. They are neighbours in a channel of Y.
    fn positions(&self) -> usize {
        (0..self.axes.len()).map(|i| self.range(i).1).product()
    }

    /// The input positions along an axis that reach the band. If none does, the range is `0..0`:
    /// the first position that could reach it may be far beyond X.
    fn reaching(&self, axis: usize) -> Range<usize> {
        let (origin, extent) = self.range(axis);
        let axis = &self.axes[axis];
        let first = (origin + axis.pad_begin).saturating_sub((axis.kernel - 1) * axis.dilation).div_ceil(axis.stride);
        let end = (origin + extent - 1 + axis.pad_begin) / axis.stride + 1;
        if first < axis.input { first..end.min(axis.input).max(first) } else { 0..0 }
    }

    /// The number of runs of input positions that reach the band. Each position on the axes
    /// before the band's axis has its own run.
    fn runs(&self) -> usize {
        (0..self.axis).map(|i| self.reaching(i).len()).product()
    }

    /// Run number `index` of the input positions that reach the band.
    fn inputs(&self, mut index: usize) -> Range<usize> {
        let (mut outer, mut step) = (0, 1);
        for i in (0..self.axis).rev() {
            let reaching = self.reaching(i);
            outer += (reaching.start + index % reaching.len()) * step;
            index /= reaching.len();
            step *= self.axes[i].input;
        }
        let behind: usize = self.axes[self.axis + 1..].iter().map(|a| a.input).product();
        let (first, reaching) = (outer * self.axes[self.axis].input, self.reaching(self.axis));
        (first + reaching.start) * behind..(first + reaching.end) * behind
    }

    /// The row of sums that a row of inputs reaches through a tap. Inputs and tap are indices
    /// over the axes before the last. None if that row is outside the band.
    fn row(&self, mut inputs: usize, mut tap: usize) -> Option<usize> {
        let (mut at, mut step) = (0, 1);
        for (i, axis) in self.axes[..self.axes.len() - 1].iter().enumerate().rev() {
            let (x, k) = (inputs % axis.input, tap % axis.kernel);
            (inputs, tap) = (inputs / axis.input, tap / axis.kernel);
            let (origin, extent) = self.range(i);
            let r = (x * axis.stride + k * axis.dilation).checked_sub(axis.pad_begin + origin)?;
            if r >= extent {
                return None;
            }
            at += r * step;
            step *= extent;
        }
        Some(at)
    }

    /// The inputs, among positions `x` of a row, whose products with a tap of the last axis fall
    /// into the row of sums; and the element of that row that the first product is added to.
    fn run(&self, x: Range<usize>, tap: usize) -> (Range<usize>, usize) {
        let axis = self.last();
        let (origin, extent) = self.range(self.axes.len() - 1);
        let (reach, cut) = (tap * axis.dilation, axis.pad_begin + origin);
        let from = cut.saturating_sub(reach).div_ceil(axis.stride).clamp(x.start, x.end);
        let to = (cut + extent).saturating_sub(reach).div_ceil(axis.stride).clamp(from, x.end);
        if from == to {
            return (from..to, 0);
        }
        let r = from * axis.stride + reach - cut;
        (from..to, r % axis.stride * self.phases().1 + r / axis.stride)
    }
}

/// A block of weights. Its rows are ordered by channels, then taps.
struct WeightBlock {
    group: usize,
    /// Output channels of the group.
    channels: Range<usize>,
    taps: Range<usize>,
}

impl WeightBlock {
    fn rows(&self) -> usize {
        self.channels.len() * self.taps.len()
    }
}

struct Col2im<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// The GEMM of a full block of rows, and that of the last block.
    gemms: [Box<dyn Gemm<T::Acc>>; 2],
    blocking: Col2imBlocking,
    input: Piece<T::Acc>,
    product: Piece<T::Acc>,
    /// The sums of a block of channels.
    sums: Piece<T::Acc>,
    /// Scratch of the GEMM.
    tile: Piece<T::Acc>,
}

impl<T: Element> Col2im<T> {
    /// What a task computes, and the output channels of its block, counted within the group.
    fn part(&self, task: usize) -> (Part, Range<usize>) {
        let part = self.blocking.split.part(task);
        let channels = self.blocking.channels.range(part.panels.start);
        (part, channels)
    }

    /// The GEMM of a block of `rows` rows.
    fn gemm(&self, rows: usize) -> &dyn Gemm<T::Acc> {
        &*self.gemms[usize::from(rows != self.blocking.rows())]
    }

    /// Where the packed weights of a block are for steps `k` of K.
    fn packed_range(&self, block: &WeightBlock, k: &Range<usize>) -> Range<usize> {
        let (taps, k_total) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let channel = block.group * self.geometry.out_channels_per_group() + block.channels.start;
        let first = (channel * taps + block.channels.len() * block.taps.start) * k_total;
        first + block.rows() * k.start..first + block.rows() * k.end
    }

    /// Adds the products of a tile of input positions to the sums.
    fn add(
        &self,
        layout: &BandSums<'_>,
        block: &WeightBlock,
        positions: Range<usize>,
        product: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let (last, ld) = (layout.last(), self.blocking.ld);
        let (first, n) = (positions.start, positions.len());
        let (row_len, len) = (layout.row_len(), layout.len());
        let mut done = 0;
        while done < n {
            let x = (first + done) % last.input;
            let segment = x..(x + n - done).min(last.input);
            let inputs = (first + done) / last.input;
            for (i, tap) in block.taps.clone().enumerate() {
                let Some(row) = layout.row(inputs, tap / last.kernel) else { continue };
                let (run, at) = layout.run(segment.clone(), tap % last.kernel);
                if run.is_empty() {
                    continue;
                }
                let (to, from) = (row * row_len + at, i * ld + done + run.start - x);
                let rows = product.chunks_exact(block.taps.len() * ld);
                for (sums, product) in sums.chunks_exact_mut(len).zip(rows) {
                    stream::add_assign(self.isa, &mut sums[to..to + run.len()], &product[from..from + run.len()]);
                }
            }
            done += segment.len();
        }
    }
}

impl<T: Element> Split for Col2im<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (part, channels) = self.part(task);
        let layout = BandSums::new(&self.geometry.axes, &self.blocking.bands, part.columns);
        patch(part.patch(&self.geometry, channels, layout.first()..layout.first() + layout.positions()));
    }
}

impl<T: Element> Lowering<T> for Col2im<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (geometry, Col2imBlocking { channels, taps, k, .. }) = (&self.geometry, &self.blocking);
        let (k_total, rows) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        for group in 0..geometry.group {
            for (channels, taps) in channels.iter().flat_map(|c| taps.iter().map(move |taps| (c.clone(), taps))) {
                let block = WeightBlock { group, channels, taps };
                for k in k.iter() {
                    let packed = &mut packed[self.packed_range(&block, &k)];
                    self.gemm(block.rows()).pack(k.len(), packed, &|row, c| {
                        let channel = block.channels.start + row / block.taps.len();
                        let tap = block.taps.start + row % block.taps.len();
                        w[((group * k_total + k.start + c) * rows + channel) * geometry.kernel_volume() + tap].to_acc()
                    });
                }
            }
        }
    }

    /// Computes one band of one block of output channels of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let (geometry, blocking) = (&self.geometry, &self.blocking);
        let (Part { image, group, columns: band, .. }, channels) = self.part(task);
        let mut arena = Arena::new(scratch);
        let (input, product) = (arena.get(self.input), arena.get(self.product));
        let (sums, tile) = (arena.get(self.sums), arena.get(self.tile));
        let layout = BandSums::new(&geometry.axes, &blocking.bands, band);
        let sums = &mut sums[..channels.len() * layout.len()];
        sums.fill(T::Acc::ZERO);
        let spatial = geometry.input_spatial();
        let x = &io.x[(image * geometry.in_channels + group * geometry.in_channels_per_group()) * spatial..];
        for run in 0..if spatial == 0 { 0 } else { layout.runs() } {
            let inputs = layout.inputs(run);
            // Tiles begin at multiples of their length, wherever the band begins. So every sum
            // adds its products in the same order, however the output is cut.
            let mut first = inputs.start;
            while first < inputs.end {
                let n = (blocking.positions - first % blocking.positions).min(inputs.end - first);
                for taps in blocking.taps.iter() {
                    let block = WeightBlock { group, channels: channels.clone(), taps };
                    for k in blocking.k.iter() {
                        for (c, row) in k.clone().zip(input.chunks_exact_mut(blocking.ld)) {
                            stream::widen(self.isa, &x[c * spatial + first..][..n], &mut row[..n]);
                        }
                        let packed = &io.weights[self.packed_range(&block, &k)];
                        let operands = Product { packed, k: k.len(), b: input, n, accumulate: k.start > 0 };
                        self.gemm(block.rows()).multiply(operands, product, tile);
                    }
                    self.add(&layout, &block, first..first + n, &product[..block.rows() * blocking.ld], sums);
                }
                first += n;
            }
        }
        let sink = self.finish.sink(io);
        let (_, row_extent) = layout.range(geometry.axes.len() - 1);
        for (channel, sums) in channels.zip(sums.chunks_exact_mut(layout.len())) {
            let channel = group * geometry.out_channels_per_group() + channel;
            let at = (image * geometry.out_channels + channel) * geometry.output_spatial() + layout.first();
            for (row, sums) in sums.chunks_exact_mut(layout.row_len()).enumerate() {
                sink.interleaved(sums, layout.phases(), row_extent, io.bias[channel], at + row * row_extent);
            }
        }
    }
}
