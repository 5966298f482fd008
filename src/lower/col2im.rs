//! ConvTranspose as GEMM + col2im: the products of every input position with every tap, added to
//! where they belong.
//!
//! M = a block of output channels * kernel volume, K = C/group, N = input positions, for each
//! image and group; K, and the taps of kernels of more than [`STEPS`], in blocks too. The output
//! is cut into bands: a run of positions of one axis, the outermost one where its slices are not
//! too large, with one position of the axes before it and all of those behind. A task makes the
//! columns of the input positions that reach its band, a run of positions at a time, and adds
//! them into sums of the band, which nobody else touches: no atomics, and every output element is
//! written once. Along the last axis the sums are kept by phases of the stride, so that every
//! addition is of two runs of neighbours. Accepts every ConvTranspose. Scratch for a task: the
//! input's and the product's tile, each of at most [`tile_bytes`] or 64 positions, and the sums
//! of the band, of at most [`band_bytes`], or one slice of [`MOST_BAND_BYTES`].

use alloc::boxed::Box;
use alloc::string::String;
use core::cmp::Ordering;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::engine::products_work;
use super::sink::Finish;
use crate::blas::{self, Blocks, Gemm, Product, Size};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::machine::{Item, Machine};
use crate::{Axis, Geometry, Op};

/// Rows of a GEMM, about.
const ROWS: usize = 256;
/// Bytes of a tile of the input and of the product, about: both stay in the L2 cache, beside the
/// sums.
fn tile_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}
/// Steps of K, and rows of a GEMM with one channel, at the most: tiles of 64 positions then take
/// 256 KiB (in f64 twice that). Packed weights depend on it, and so it depends on no machine.
const STEPS: usize = 1024;
/// Bytes of the sums of a band, about: they stay in the L2 cache.
fn band_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}
/// Bytes of one slice of an axis from which on bands are cut along the next axis: bands of single
/// slices multiply most inputs several times, so that only slices far beyond [`band_bytes`] are
/// cut. It bounds a task's scratch.
const MOST_BAND_BYTES: usize = 4 << 20;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas, most: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let prices = machine.prices();
    if geometry.op != Op::ConvTranspose {
        return Err(String::from("only for ConvTranspose"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    // Blocks of equal size, and dependent on the operator alone, so that packed weights fit every
    // input size.
    let k = Blocks::new(geometry.in_channels_per_group(), STEPS);
    let taps = Blocks::new(geometry.kernel_volume(), STEPS);
    let channels = Blocks::new(geometry.out_channels_per_group(), (ROWS / geometry.kernel_volume()).max(1));
    let rows = channels.size() * taps.size();
    // Where taps are in blocks, every block of channels is one channel.
    let last_rows = channels.last().len() * taps.last().len();
    let positions = tile_bytes(machine) / size_of::<T::Acc>() / rows.max(k.size());
    let positions = positions.clamp(64, 4096).min(geometry.input_spatial().max(1));
    let ld = blas::leading_dimension(positions);
    let packed = match request.layout {
        None => [None; 2],
        Some(WeightLayout::BlasColumns { channels: packed, panels }) if *packed == channels.size() => panels.map(Some),
        Some(other) => return Err(other.mismatch()),
    };
    let gemm = |rows: usize, layout: Option<usize>| {
        blas::backend::<T::Acc>(blas, machine, Size { rows, k: k.size(), ld }, layout)
    };
    let gemms = [gemm(rows, packed[0])?, gemm(last_rows, packed[1])?];
    let tile_len = gemms[0].tile_len().max(gemms[1].tile_len());
    let bands = Bands::new(request, &channels, most);
    let sums = channels.size() * Sums::new(&geometry.axes, &bands, 0).len();
    let additions = geometry.macs() as f64 / geometry.in_channels_per_group().max(1) as f64;
    Ok(Offer::old(
        request.machine,
        products_work(request, (geometry.input_spatial(), positions), Item::Col2imFmas).cycles() / machine.clock_ghz
            + additions * prices.col2im_element_cycles / machine.clock_ghz,
        [k.size() * ld, rows * ld, sums, tile_len].map(lines_for::<T::Acc>).iter().sum(),
        Box::new(move || {
            let (isa, finish) = (request.isa(), Finish::new(request));
            let geometry = geometry.clone();
            Box::new(Col2im { geometry, isa, finish, gemms, channels, taps, k, bands, positions, ld, sums, tile_len })
        }),
    ))
}

/// How the output of an image is cut into bands.
struct Bands {
    axis: usize,
    /// Positions of the axis in a band; fewer in the last one.
    extent: usize,
    /// Bands along the axis, and of an image.
    along: usize,
    count: usize,
}

impl Bands {
    /// As many positions of the axis as [`band_bytes`] hold, fewer where threads would be left
    /// without work, but not so few that most input positions reach several bands.
    fn new<T: Element>(request: &Request<'_, T>, channels: &Blocks, most: usize) -> Self {
        let (geometry, axes) = (request.geometry, &request.geometry.axes);
        let outputs = |axes: &[Axis]| axes.iter().map(|a| a.output).product::<usize>();
        let slice = |axis: usize| outputs(&axes[axis + 1..]).saturating_mul(channels.size() * size_of::<T::Acc>());
        let last = axes.len() - 1;
        let axis = (0..last).find(|&axis| slice(axis) <= MOST_BAND_BYTES.min(most)).unwrap_or(last);
        let (cut, before) = (&axes[axis], outputs(&axes[..axis]));
        let fitting = band_bytes(request.machine).min(most) / slice(axis);
        let tasks = geometry.batch * geometry.group * channels.count() * before;
        let shared = if request.threads == 1 { usize::MAX } else { (cut.output * tasks).div_ceil(4 * request.threads) };
        let least = (cut.kernel - 1).saturating_mul(cut.dilation).saturating_mul(4).saturating_add(cut.stride);
        let extent = fitting.min(shared.max(least)).clamp(1, cut.output);
        // Whole strides, and bands of nearly equal extent.
        let even = cut.output.div_ceil(cut.output.div_ceil(extent));
        let extent = even.next_multiple_of(cut.stride.min(even));
        let along = cut.output.div_ceil(extent);
        Self { axis, extent, along, count: before * along }
    }
}

/// The layout of one channel's sums over a band of the output.
struct Sums<'a> {
    axes: &'a [Axis],
    /// The axis that bands are cut along; the band is its positions `origin .. origin + extent`.
    axis: usize,
    origin: usize,
    extent: usize,
    /// The band's position on the axes before, as one index.
    outer: usize,
}

impl<'a> Sums<'a> {
    fn new(axes: &'a [Axis], bands: &Bands, band: usize) -> Self {
        let (axis, origin) = (bands.axis, band % bands.along * bands.extent);
        let extent = bands.extent.min(axes[axis].output - origin);
        Self { axes, axis, origin, extent, outer: band / bands.along }
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    /// First position and number of positions of the band along an axis.
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

    /// The output position of a channel that the band begins at.
    fn first(&self) -> usize {
        let behind: usize = self.axes[self.axis + 1..].iter().map(|a| a.output).product();
        (self.outer * self.axes[self.axis].output + self.origin) * behind
    }

    /// Phases of the last axis, and elements of a phase: position r of a row is element `r /
    /// stride` of phase `r % stride`.
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

    /// Elements of all sums of a channel.
    fn len(&self) -> usize {
        self.rows() * self.row_len()
    }

    /// Output positions of the band, which are neighbours.
    fn positions(&self) -> usize {
        (0..self.axes.len()).map(|i| self.range(i).1).product()
    }

    /// The input positions along an axis that reach the band; `0..0` if none does, because the
    /// first one that could may lie far beyond X.
    fn reaching(&self, axis: usize) -> Range<usize> {
        let (origin, extent) = self.range(axis);
        let axis = &self.axes[axis];
        let first = (origin + axis.pad_begin).saturating_sub((axis.kernel - 1) * axis.dilation).div_ceil(axis.stride);
        let end = (origin + extent - 1 + axis.pad_begin) / axis.stride + 1;
        if first < axis.input { first..end.min(axis.input).max(first) } else { 0..0 }
    }

    /// The number of runs of input positions that reach the band: of positions on the axes before
    /// the one that bands are cut along.
    fn runs(&self) -> usize {
        (0..self.axis).map(|i| self.reaching(i).len()).product()
    }

    /// Run `index` of the input positions that reach the band.
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

    /// The row of sums that a row of inputs reaches through a tap (both over the axes before the
    /// last); none where that is outside the band.
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

    /// Of the inputs `x` of a row, those whose products with a tap of the last axis fall into the
    /// row of sums, and where the first one does.
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

struct Col2im<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// For a full block of rows, and for the last one.
    gemms: [Box<dyn Gemm<T::Acc>>; 2],
    /// Output channels of a group, taps, and steps of K.
    channels: Blocks,
    taps: Blocks,
    k: Blocks,
    bands: Bands,
    /// Input positions of a tile, and elements between the rows of a tile.
    positions: usize,
    ld: usize,
    /// Elements of the sums of a block of channels.
    sums: usize,
    tile_len: usize,
}

/// A block of weights: output channels of a group, and taps. Its rows are channels, then taps.
struct Block {
    group: usize,
    channels: Range<usize>,
    taps: Range<usize>,
}

impl Block {
    fn rows(&self) -> usize {
        self.channels.len() * self.taps.len()
    }
}

impl<T: Element> Col2im<T> {
    /// The image, group, output channels of the group, and band of a task.
    fn part(&self, task: usize) -> (usize, usize, Range<usize>, usize) {
        let (rest, band) = (task / self.bands.count, task % self.bands.count);
        let (plane, index) = (rest / self.channels.count(), rest % self.channels.count());
        (plane / self.geometry.group, plane % self.geometry.group, self.channels.range(index), band)
    }

    /// The GEMM for so many rows.
    fn gemm(&self, rows: usize) -> &dyn Gemm<T::Acc> {
        &*self.gemms[usize::from(rows != self.channels.size() * self.taps.size())]
    }

    /// Where the packed weights of a block are, for a block of K.
    fn packed_range(&self, block: &Block, k: &Range<usize>) -> Range<usize> {
        let (taps, k_total) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let channel = block.group * self.geometry.out_channels_per_group() + block.channels.start;
        let first = (channel * taps + block.channels.len() * block.taps.start) * k_total;
        first + block.rows() * k.start..first + block.rows() * k.end
    }

    /// Adds the products of a tile, input positions `first..first + n`, to the sums.
    fn add(&self, layout: &Sums<'_>, block: &Block, first: usize, n: usize, product: &[T::Acc], sums: &mut [T::Acc]) {
        let last = layout.last();
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
                let (to, from) = (row * row_len + at, i * self.ld + done + run.start - x);
                let rows = product.chunks_exact(block.taps.len() * self.ld);
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
        self.geometry.batch * self.geometry.group * self.channels.count() * self.bands.count
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (image, group, rows, band) = self.part(task);
        let first = group * self.geometry.out_channels_per_group();
        let layout = Sums::new(&self.geometry.axes, &self.bands, band);
        let positions = layout.first()..layout.first() + layout.positions();
        let channels = first + rows.start..first + rows.end;
        patch(Patch::rows(image..image + 1, channels, positions, self.geometry.output_spatial()));
    }
}

impl<T: Element> Lowering<T> for Col2im<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::BlasColumns {
            channels: self.channels.size(),
            panels: [self.gemms[0].layout(), self.gemms[1].layout()],
        }
    }

    fn describe(&self) -> String {
        alloc::format!(
            "{}, {} output channels and {} input positions at a time, K in blocks of {}, {} bands",
            self.kernel(),
            self.channels.size(),
            self.positions,
            self.k.size(),
            self.bands.count
        )
    }

    fn kernel(&self) -> &'static str {
        self.gemms[0].kernel()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (k_total, taps, channels) =
            (geometry.in_channels_per_group(), geometry.kernel_volume(), geometry.out_channels_per_group());
        for group in 0..geometry.group {
            for (channels_of, taps_of) in
                self.channels.iter().flat_map(|c| self.taps.iter().map(move |taps| (c.clone(), taps)))
            {
                let block = Block { group, channels: channels_of, taps: taps_of };
                for k in self.k.iter() {
                    let packed = &mut packed[self.packed_range(&block, &k)];
                    self.gemm(block.rows()).pack(k.len(), packed, &|row, c| {
                        let channel = block.channels.start + row / block.taps.len();
                        let tap = block.taps.start + row % block.taps.len();
                        w[((group * k_total + k.start + c) * channels + channel) * taps + tap].to_acc()
                    });
                }
            }
        }
    }

    /// One band of one block of output channels of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let (image, group, channels, band) = self.part(task);
        let mut arena = Arena::new(scratch);
        let input = arena.take::<T::Acc>(self.k.size() * self.ld);
        let product = arena.take::<T::Acc>(self.channels.size() * self.taps.size() * self.ld);
        let sums = arena.take::<T::Acc>(self.sums);
        let tile = arena.take::<T::Acc>(self.tile_len);
        let layout = Sums::new(&geometry.axes, &self.bands, band);
        let sums = &mut sums[..channels.len() * layout.len()];
        sums.fill(T::Acc::ZERO);
        let spatial = geometry.input_spatial();
        let x = &io.x[(image * geometry.in_channels + group * geometry.in_channels_per_group()) * spatial..];
        for run in 0..if spatial == 0 { 0 } else { layout.runs() } {
            let inputs = layout.inputs(run);
            // Tiles lie on a grid of their own, wherever the band begins: every sum sees its
            // products in the same order for any split into bands.
            let mut first = inputs.start;
            while first < inputs.end {
                let n = (self.positions - first % self.positions).min(inputs.end - first);
                for taps in self.taps.iter() {
                    let block = Block { group, channels: channels.clone(), taps };
                    for k in self.k.iter() {
                        for (c, row) in k.clone().zip(input.chunks_exact_mut(self.ld)) {
                            stream::widen(self.isa, &x[c * spatial + first..][..n], &mut row[..n]);
                        }
                        let packed = &io.weights[self.packed_range(&block, &k)];
                        let operands = Product { packed, k: k.len(), b: input, n, accumulate: k.start > 0 };
                        self.gemm(block.rows()).multiply(operands, product, tile);
                    }
                    self.add(&layout, &block, first, n, &product[..block.rows() * self.ld], sums);
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
