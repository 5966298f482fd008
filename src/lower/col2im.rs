//! ConvTranspose as GEMM + col2im: the products of every input position with every tap, added to where they belong.
//!
//! M = a block of output channels * kernel volume, K = C/group, N = input positions, for each image and group. The outermost axis of the output
//! is cut into bands; a task makes the columns of the input positions that reach its band, a run of positions at a time, and adds them into
//! sums of the band, which nobody else touches: no atomics, and every output element is written once. Along the last axis the sums are kept
//! by phases of the stride, so that every addition is of two runs of neighbours. Accepts every ConvTranspose. Scratch for a task: the input's
//! and the product's tile, each of at most [`TILE_BYTES`] or one row, and the sums of the band, of at most [`BAND_BYTES`] or one position of
//! the outermost axis.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::cost::{COL2IM_ELEMENT, COL2IM_FMA};
use super::finish::Finish;
use super::{Answer, Io, Layout, Lowering, Offer, Request};
use crate::blas::{self, Gemm, Size};
use crate::element::Element;
use crate::exec::{Arena, Line, lines_for};
use crate::plan::Blas;
use crate::{Axis, Geometry, Op};

/// Rows of a GEMM, about.
const ROWS: usize = 256;
/// Bytes of a tile of the input and of the product, about.
const TILE_BYTES: usize = 256 << 10;
/// Bytes of the sums of a band, about.
const BAND_BYTES: usize = 512 << 10;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::ConvTranspose {
        return Err(String::from("only for ConvTranspose"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let bytes = size_of::<T::Acc>();
    let (k, taps) = (geometry.in_channels_per_group(), geometry.kernel_volume());
    let channels = geometry.out_channels_per_group();
    // Output channels of a block: of equal size, and dependent on the operator alone, so that packed weights fit every input size.
    let blocks = channels.div_ceil((ROWS / taps).max(1));
    let block = channels.div_ceil(blocks);
    let positions = (TILE_BYTES / bytes / (block * taps).max(k)).clamp(64, 4096).min(geometry.input_spatial().max(1));
    let size = |channels: usize| Size { rows: channels * taps, k, ld: blas::leading_dimension(positions) };
    if size(block).rows.max(k).checked_mul(size(block).ld).is_none() {
        return Err(String::from("a tile of the columns does not fit the address space"));
    }
    let packed = |index: usize| request.layout.map(|layout| layout[index]);
    if packed(0).is_some_and(|packed| packed != block) {
        return Err(String::from("the weights are packed for other blocks"));
    }
    let gemm = blas::backend::<T::Acc>(blas, request.isa, size(block), packed(1))?;
    let last = channels - (blocks - 1) * block;
    let gemm_last = blas::backend::<T::Acc>(blas, request.isa, size(last), packed(2))?;
    let band = band_extent(request, block, blocks);
    let sums = geometry.axes[0].output.min(band);
    let Some(sums) = Sums::new(geometry, 0, sums).len().checked_mul(block) else {
        return Err(String::from("the sums of a band do not fit the address space"));
    };
    let bands = geometry.axes[0].output.div_ceil(band);
    let tile_len = gemm.tile_len().max(gemm_last.tile_len());
    let ld = size(block).ld;
    let lines =
        [k * ld, block * taps * ld, sums, tile_len].map(lines_for::<T::Acc>).into_iter().fold(0, usize::saturating_add);
    let additions = geometry.macs() as f64 / k.max(1) as f64;
    Ok(Offer {
        cost: geometry.macs() as f64 * COL2IM_FMA + additions * COL2IM_ELEMENT,
        lines,
        build: Box::new(move || {
            Box::new(Col2im {
                geometry: geometry.clone(),
                isa: request.isa,
                activation: request.activation,
                gemms: [gemm, gemm_last],
                block,
                blocks,
                band,
                bands,
                positions,
                ld,
                sums,
                tile_len,
            })
        }),
    })
}

/// Positions of the outermost axis in a band: as many as [`BAND_BYTES`] hold, fewer where threads would be left without work, but not so few
/// that most input positions reach several bands.
fn band_extent<T: Element>(request: &Request<'_, T>, block: usize, blocks: usize) -> usize {
    let geometry = request.geometry;
    let outer = &geometry.axes[0];
    let slice: usize = geometry.axes[1..].iter().map(|a| a.output).product();
    let fitting = BAND_BYTES / size_of::<T::Acc>() / (slice * block).max(1);
    let tasks = geometry.batch * geometry.group * blocks;
    let shared = if request.threads == 1 { usize::MAX } else { (outer.output * tasks).div_ceil(4 * request.threads) };
    let least = (outer.kernel - 1).saturating_mul(outer.dilation).saturating_mul(4).saturating_add(outer.stride);
    let band = fitting.min(shared.max(least)).clamp(1, outer.output);
    // Whole strides, and bands of nearly equal extent.
    let even = outer.output.div_ceil(outer.output.div_ceil(band));
    even.next_multiple_of(outer.stride.min(even))
}

/// The layout of one channel's sums over a band of the output.
struct Sums<'a> {
    axes: &'a [Axis],
    /// The band: positions `origin .. origin + extent` of the outermost axis.
    origin: usize,
    extent: usize,
}

impl<'a> Sums<'a> {
    fn new(geometry: &'a Geometry, origin: usize, extent: usize) -> Self {
        Self { axes: &geometry.axes, origin, extent }
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    /// First position and number of positions of the band along an axis.
    fn range(&self, axis: usize) -> (usize, usize) {
        if axis == 0 { (self.origin, self.extent) } else { (0, self.axes[axis].output) }
    }

    /// Phases of the last axis, and elements of a phase: position r of a row is element `r / stride` of phase `r % stride`.
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

    /// Elements of all sums of a channel; saturates.
    fn len(&self) -> usize {
        self.rows().saturating_mul(self.row_len())
    }

    /// The input positions along the outermost axis that reach the band.
    fn reaching(&self) -> Range<usize> {
        let axis = &self.axes[0];
        let first =
            (self.origin + axis.pad_begin).saturating_sub((axis.kernel - 1) * axis.dilation).div_ceil(axis.stride);
        let end = (self.origin + self.extent - 1 + axis.pad_begin) / axis.stride + 1;
        first..end.min(axis.input).max(first)
    }

    /// The row of sums that a row of inputs reaches through a tap (both over the axes before the last); none where that is outside the band.
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

    /// Of the inputs `x` of a row, those whose products with a tap of the last axis fall into the row of sums, and where the first one does.
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
    activation: stream::Activation<T::Acc>,
    /// For a full block of output channels, and for the last one.
    gemms: [Box<dyn Gemm<T::Acc>>; 2],
    /// Output channels of a block, and blocks of a group.
    block: usize,
    blocks: usize,
    /// Positions of the outermost axis in a band, and bands.
    band: usize,
    bands: usize,
    /// Input positions of a tile, and elements between the rows of a tile.
    positions: usize,
    ld: usize,
    /// Elements of the sums of a block of channels.
    sums: usize,
    tile_len: usize,
}

impl<T: Element> Col2im<T> {
    /// The output channels of block `index` of a group, and their GEMM.
    fn block(&self, index: usize) -> (Range<usize>, &dyn Gemm<T::Acc>) {
        let channels = self.geometry.out_channels_per_group();
        let range = index * self.block..((index + 1) * self.block).min(channels);
        (range, &*self.gemms[usize::from(index + 1 == self.blocks)])
    }

    /// The packed weights of a block of a group.
    fn packed_range(&self, group: usize, block: &Range<usize>) -> Range<usize> {
        let k = self.geometry.in_channels_per_group();
        let row = self.geometry.kernel_volume() * k;
        let first = group * self.geometry.out_channels_per_group();
        (first + block.start) * row..(first + block.end) * row
    }

    /// Adds the products of a tile, input positions `first..first + n`, to the sums.
    fn add(&self, layout: &Sums<'_>, first: usize, n: usize, product: &[T::Acc], sums: &mut [T::Acc]) {
        let last = layout.last();
        let (taps, row_len, len) = (self.geometry.kernel_volume(), layout.row_len(), layout.len());
        let mut done = 0;
        while done < n {
            let x = (first + done) % last.input;
            let segment = x..(x + n - done).min(last.input);
            let inputs = (first + done) / last.input;
            for tap in 0..taps {
                let Some(row) = layout.row(inputs, tap / last.kernel) else { continue };
                let (run, at) = layout.run(segment.clone(), tap % last.kernel);
                if run.is_empty() {
                    continue;
                }
                let (to, from) = (row * row_len + at, tap * self.ld + done + run.start - x);
                let rows = product.chunks_exact(taps * self.ld);
                for (sums, product) in sums.chunks_exact_mut(len).zip(rows) {
                    stream::add_assign(self.isa, &mut sums[to..to + run.len()], &product[from..from + run.len()]);
                }
            }
            done += segment.len();
        }
    }
}

impl<T: Element> Lowering<T> for Col2im<T> {
    fn layout(&self) -> Layout {
        alloc::vec![self.block, self.gemms[0].layout(), self.gemms[1].layout()]
    }

    fn describe(&self) -> String {
        alloc::format!(
            "{}, {} output channels and {} input positions at a time, {} bands",
            self.gemms[0].kernel(),
            self.block,
            self.positions,
            self.bands
        )
    }

    fn kernel(&self) -> &str {
        self.gemms[0].kernel()
    }

    fn packed_len(&self) -> usize {
        self.geometry.weight_len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (k, taps, channels) =
            (geometry.in_channels_per_group(), geometry.kernel_volume(), geometry.out_channels_per_group());
        for group in 0..geometry.group {
            for index in 0..self.blocks {
                let (block, gemm) = self.block(index);
                gemm.pack(&mut packed[self.packed_range(group, &block)], &|row, c| {
                    let (channel, tap) = (block.start + row / taps, row % taps);
                    w[((group * k + c) * channels + channel) * taps + tap].to_acc()
                });
            }
        }
    }

    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group * self.blocks * self.bands
    }

    /// One band of one block of output channels of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let (rest, band) = (task / self.bands, task % self.bands);
        let (plane, index) = (rest / self.blocks, rest % self.blocks);
        let (image, group) = (plane / geometry.group, plane % geometry.group);
        let (block, gemm) = self.block(index);
        let (k, taps) = (geometry.in_channels_per_group(), geometry.kernel_volume());
        let mut arena = Arena::new(scratch);
        let input = arena.take::<T::Acc>(k * self.ld);
        let product = arena.take::<T::Acc>(self.block * taps * self.ld);
        let sums = arena.take::<T::Acc>(self.sums);
        let tile = arena.take::<T::Acc>(self.tile_len);
        let origin = band * self.band;
        let layout = Sums::new(geometry, origin, self.band.min(geometry.axes[0].output - origin));
        let sums = &mut sums[..block.len() * layout.len()];
        sums.fill(T::Acc::ZERO);
        let spatial = geometry.input_spatial();
        let x = &io.x[(image * geometry.in_channels + group * k) * spatial..];
        let inner = if spatial == 0 { 0 } else { geometry.axes[1..].iter().map(|a| a.input).product::<usize>() };
        let reaching = layout.reaching();
        let reaching = reaching.start * inner..reaching.end * inner;
        // Tiles lie on a grid of their own, wherever the band begins: every sum sees its products in the same order for any split into bands.
        let mut first = reaching.start;
        while first < reaching.end {
            let n = (self.positions - first % self.positions).min(reaching.end - first);
            for (c, row) in input.chunks_exact_mut(self.ld).enumerate() {
                stream::widen(self.isa, &x[c * spatial + first..][..n], &mut row[..n]);
            }
            let packed = &io.weights[self.packed_range(group, &block)];
            gemm.multiply(packed, input, n, product, tile);
            self.add(&layout, first, n, &product[..block.len() * taps * self.ld], sums);
            first += n;
        }
        let finish = Finish { isa: self.isa, activation: self.activation, io };
        let (_, row_extent) = layout.range(geometry.axes.len() - 1);
        let first = if geometry.axes.len() == 1 {
            origin
        } else {
            origin * (geometry.output_spatial() / geometry.axes[0].output)
        };
        for (channel, sums) in block.clone().zip(sums.chunks_exact_mut(layout.len())) {
            let channel = group * geometry.out_channels_per_group() + channel;
            let at = (image * geometry.out_channels + channel) * geometry.output_spatial() + first;
            for (row, sums) in sums.chunks_exact_mut(layout.row_len()).enumerate() {
                finish.interleaved(sums, layout.phases(), row_extent, io.bias[channel], at + row * row_extent);
            }
        }
    }
}
