//! ConvTranspose as GEMM + col2im: multiply every input position by every tap, and add each
//! product to the output that it belongs to.
//!
//! M = a block of output channels * kernel volume, K = C/group, N = input positions, for each image
//! and group. K is in blocks of at most [`MOST_BLOCK_STEPS`].
//!
//! The output is cut into slabs, along the outermost axis whose positions are not too large. A task
//! multiplies the input positions that reach its slab, a tile at a time, and adds the products to sums
//! of the slab. No other task has that slab: there are no atomics, and every output is stored once.
//! Along the last axis the sums are stored by phases of the stride, so that each addition is of two
//! runs of neighbours.
//!
//! Accepts every ConvTranspose of at most [`MOST_TAPS`]. Scratch of a task: a tile of the input and one
//! of the product, each of at most [`tile_bytes`] or [`LEAST_POSITIONS`], and the sums of the band, of
//! at most [`band_bytes`] or one position of [`MOST_BAND_BYTES`].

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::engine::products_work;
use super::layout::WeightLayout;
use super::planes::{Slab, SlabCut};
use super::shares::{GemmSplit, Part, ROWS_FOR_SHARED_ROW, TASKS_PER_THREAD};
use super::sink::Finish;
use super::view;
use crate::blas::{BlockedGemm, Blocks, Tiles};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Rows of a GEMM, about: tiles of 64 positions are then small beside the sums.
const ROWS_OF_GEMM: usize = 256;
/// The most steps of a block of K. Tiles of 64 positions then take 256 KiB, in f64 twice that.
/// Packed weights depend on it, so that it must not depend on the machine.
const MOST_BLOCK_STEPS: usize = 1024;
/// The fewest positions of a tile. Fewer make poor columns of a GEMM.
const LEAST_POSITIONS: usize = 64;
/// Taps, at most: the product of a tile has a row for each tap of an output channel.
const MOST_TAPS: usize = 1 << 14;
/// The most positions of a tile. More gain nothing.
const MOST_POSITIONS: usize = 4096;

/// Bytes of the sums of a position of an axis from which on bands are cut along the next axis. It bounds
/// the scratch of a task. It is far above [`band_bytes`], because bands of a single position multiply
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

/// The rule of [`MOST_TAPS`].
///
/// # Errors
/// The reason why not.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    match geometry.kernel_volume() {
        taps if taps > MOST_TAPS => {
            Err(alloc::format!("the kernel has {taps} taps, and at most {MOST_TAPS} can be multiplied at once"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas, most_bytes: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    // They depend on the operator alone, so that packed weights fit every input size.
    let k = Blocks::new(geometry.in_channels_per_group(), MOST_BLOCK_STEPS);
    let taps = geometry.kernel_volume();
    let channels = Blocks::new(geometry.out_channels_per_group(), (ROWS_OF_GEMM / taps).max(1));
    let rows = channels.times(taps);
    let positions = tile_bytes(machine) / size_of::<T::Acc>() / rows.size().max(k.size());
    let positions = positions.clamp(LEAST_POSITIONS, MOST_POSITIONS).min(geometry.input_spatial().max(1));
    let cut = cut(request, &channels, most_bytes);
    let bands = geometry.axes[..cut.axis].iter().map(|axis| axis.output).product::<usize>()
        * geometry.axes[cut.axis].output.div_ceil(cut.extent);

    let packed = match request.layout {
        None => None,
        Some(WeightLayout::BlasColumns { blas: packed, channels: size, panels })
            if (*packed, *size) == (blas, channels.size()) =>
        {
            Some(*panels)
        }
        Some(other) => return Err(other.mismatch()),
    };
    let gemm = BlockedGemm::<T::Acc>::new((blas, machine), (rows, k, positions), packed)?;
    let (images, groups, panels) = (geometry.batch, geometry.group, channels.count());
    let split = GemmSplit { images, groups, columns: bands, panels, shares: panels };

    let mut scratch = Ledger::default();
    let [input, product, tile] = gemm.lens();
    let sums = channels.size() * Band::new(&geometry.axes, cut, 0).len();
    let pieces = [
        scratch.book("input", input),
        scratch.book("product", product),
        scratch.book("tile", tile),
        scratch.book("sums", sums),
    ];
    let additions = geometry.macs() as f64 / geometry.in_channels_per_group().max(1) as f64;
    let recipe = Recipe {
        kernel: gemm.kernel(),
        details: alloc::format!(
            "{}, {} and {} at a time, K in blocks of {}, {}",
            gemm.kernel(),
            Count(channels.size(), "output channel"),
            Count(positions, "input position"),
            k.size(),
            Count(bands, "band")
        ),
        layout: WeightLayout::BlasColumns { blas, channels: channels.size(), panels: gemm.layout() },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: products_work(request, (geometry.input_spatial(), positions))
            + machine.work(Item::Col2imElements, additions),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let geometry = geometry.clone();
        Box::new(Col2im { geometry, isa, finish, gemm, channels, positions, cut, split, pieces })
    });
    Ok(Offer { recipe, build })
}

/// How the output is cut into bands of as many positions as [`band_bytes`] hold. A band has fewer if
/// threads would be left without work, but not so few that most input positions reach several
/// bands. Its sums take at most `most_bytes`, unless a single position takes more.
fn cut<T: Element>(request: &Request<'_, T>, channels: &Blocks, most_bytes: usize) -> SlabCut {
    let (geometry, axes) = (request.geometry, &request.geometry.axes);
    let outputs = |axes: &[Axis]| axes.iter().map(|axis| axis.output).product::<usize>();
    let position = |axis: usize| outputs(&axes[axis + 1..]).saturating_mul(channels.size() * size_of::<T::Acc>());
    let last = axes.len() - 1;
    let axis = (0..last).find(|&axis| position(axis) <= MOST_BAND_BYTES.min(most_bytes)).unwrap_or(last);
    let cut = &axes[axis];
    let fitting = band_bytes(request.machine).min(most_bytes) / position(axis).max(1);
    let tasks = geometry.batch * geometry.group * channels.count() * outputs(&axes[..axis]);
    let shared = match request.threads {
        1 => usize::MAX,
        threads => (cut.output * tasks).div_ceil(TASKS_PER_THREAD * threads),
    };
    let overlap = (cut.kernel - 1).saturating_mul(cut.dilation);
    let least = overlap.saturating_mul(ROWS_FOR_SHARED_ROW).saturating_add(cut.stride);
    let extent = fitting.min(shared.max(least)).clamp(1, cut.output);
    // Bands have nearly equal extents, which are whole strides.
    let even = cut.output.div_ceil(cut.output.div_ceil(extent));
    SlabCut { axis, extent: even.next_multiple_of(cut.stride.min(even)) }
}

/// Where the sums of one channel over a slab of the output are in scratch.
struct Band<'a> {
    axes: &'a [Axis],
    slab: Slab,
}

impl<'a> Band<'a> {
    fn new(axes: &'a [Axis], cut: SlabCut, band: usize) -> Self {
        Self { axes, slab: Slab::new(axes, cut, band) }
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    /// The band's positions along an axis.
    fn range(&self, axis: usize) -> Range<usize> {
        self.slab.range(self.axes, axis)
    }

    /// The band's positions in a channel of Y.
    fn outputs(&self) -> Range<usize> {
        self.slab.first..self.slab.first + self.slab.len(self.axes)
    }

    /// Outputs of the last axis.
    fn width(&self) -> usize {
        self.range(self.axes.len() - 1).len()
    }

    /// The number of phases of the last axis, and elements of each. Position r of a row is
    /// element `r / stride` of phase `r % stride`.
    fn phases(&self) -> (usize, usize) {
        (self.last().stride.min(self.width()), self.width().div_ceil(self.last().stride))
    }

    /// Elements of a row of sums.
    fn row_len(&self) -> usize {
        let (phases, span) = self.phases();
        phases * span
    }

    /// Elements of the sums of a channel.
    fn len(&self) -> usize {
        (0..self.axes.len() - 1).map(|i| self.range(i).len()).product::<usize>() * self.row_len()
    }

    /// The input positions along an axis that reach the band.
    fn reaching(&self, axis: usize) -> Range<usize> {
        let (axis, range) = (&self.axes[axis], self.range(axis));
        let reach = (axis.kernel - 1) * axis.dilation;
        let first = (range.start + axis.pad_begin).saturating_sub(reach).div_ceil(axis.stride);
        let end = ((range.end - 1 + axis.pad_begin) / axis.stride + 1).min(axis.input);
        // The first position that could reach it may be far beyond X.
        if first < end { first..end } else { 0..0 }
    }

    /// The number of runs of input positions that reach the band: one for each position on the axes
    /// before the band's.
    fn runs(&self) -> usize {
        (0..self.slab.axis).map(|i| self.reaching(i).len()).product()
    }

    /// Run number `index` of the input positions that reach the band.
    fn inputs(&self, mut index: usize) -> Range<usize> {
        let (mut outer, mut step) = (0, 1);
        for i in (0..self.slab.axis).rev() {
            let reaching = self.reaching(i);
            outer += (reaching.start + index % reaching.len()) * step;
            index /= reaching.len();
            step *= self.axes[i].input;
        }
        let behind: usize = self.axes[self.slab.axis + 1..].iter().map(|axis| axis.input).product();
        let (first, reaching) = (outer * self.axes[self.slab.axis].input, self.reaching(self.slab.axis));
        (first + reaching.start) * behind..(first + reaching.end) * behind
    }

    /// The row of sums that a row of inputs reaches through a tap. Inputs and tap are indices
    /// over the axes before the last. None if that row is outside the band.
    fn row(&self, inputs: usize, tap: usize) -> Option<usize> {
        let outer = &self.axes[..self.axes.len() - 1];
        view::row_met(outer, (inputs, tap), |i| self.axes[i].input, |i| self.range(i))
    }

    /// The inputs, among positions `x` of a row, whose products with a tap of the last axis fall
    /// into the row of sums; and the element of that row that the first product is added to.
    fn run(&self, x: Range<usize>, tap: usize) -> (Range<usize>, usize) {
        let (axis, range) = (self.last(), self.range(self.axes.len() - 1));
        let run = view::meeting(axis, tap, x, &range);
        if run.is_empty() {
            return (run, 0);
        }
        let r = run.start * axis.stride + tap * axis.dilation - axis.pad_begin - range.start;
        (run, r % axis.stride * self.phases().1 + r / axis.stride)
    }
}

struct Col2im<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    gemm: BlockedGemm<T::Acc>,
    /// Output channels of a group.
    channels: Blocks,
    /// Input positions of a tile.
    positions: usize,
    cut: SlabCut,
    split: GemmSplit,
    /// A tile of the input, one of the product, the scratch of the backend, and the sums of a block of
    /// channels.
    pieces: [Piece<T::Acc>; 4],
}

impl<T: Element> Col2im<T> {
    /// What a task computes: the output channels of its block, counted within the group, and its band.
    fn part(&self, task: usize) -> (Part, Range<usize>, Band<'_>) {
        let part = self.split.part(task);
        let channels = self.channels.range(part.panels.start);
        let band = Band::new(&self.geometry.axes, self.cut, part.columns);
        (part, channels, band)
    }

    /// Adds the products of a tile of input positions to the sums.
    fn add(&self, band: &Band<'_>, positions: Range<usize>, product: &[T::Acc], sums: &mut [T::Acc]) {
        let (last, ld, taps) = (band.last(), self.gemm.ld, self.geometry.kernel_volume());
        let (row_len, len) = (band.row_len(), band.len());
        let mut first = positions.start;
        while first < positions.end {
            let (inputs, x) = (first / last.input, first % last.input);
            let segment = x..(x + positions.end - first).min(last.input);
            for tap in 0..taps {
                let Some(row) = band.row(inputs, tap / last.kernel) else { continue };
                let (run, at) = band.run(segment.clone(), tap % last.kernel);
                if run.is_empty() {
                    continue;
                }
                let (to, from) = (row * row_len + at, tap * ld + first - positions.start + run.start - x);
                for (sums, product) in sums.chunks_exact_mut(len).zip(product.chunks_exact(taps * ld)) {
                    stream::add_assign(self.isa, &mut sums[to..to + run.len()], &product[from..from + run.len()]);
                }
            }
            first += segment.len();
        }
    }
}

impl<T: Element> Split for Col2im<T> {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (part, channels, band) = self.part(task);
        patch(part.patch(&self.geometry, channels, band.outputs()));
    }
}

impl<T: Element> Lowering<T> for Col2im<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let rows = self.geometry.out_channels_per_group() * taps;
        self.gemm.pack(self.geometry.group, packed, |group, row, k| w[(group * channels + k) * rows + row].to_acc());
    }

    /// Computes one band of one block of output channels of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let (Part { image, group, panels, .. }, channels, band) = self.part(task);
        let mut arena = Arena::new(scratch);
        let [input, product, tile, sums] = self.pieces.map(|piece| arena.get(piece));
        let sums = &mut sums[..channels.len() * band.len()];
        sums.fill(T::Acc::ZERO);
        let spatial = geometry.input_spatial();
        let x = &io.x[geometry.input_offset(image, group * geometry.in_channels_per_group(), 0)..];
        for inputs in (0..if spatial == 0 { 0 } else { band.runs() }).map(|run| band.inputs(run)) {
            // Tiles begin at multiples of their length, wherever the band begins. So every sum adds its
            // products in the same order, however the output is cut.
            let mut first = inputs.start;
            while first < inputs.end {
                let n = (self.positions - first % self.positions).min(inputs.end - first);
                let tiles = Tiles { b: &mut *input, c: &mut *product, tile: &mut *tile };
                self.gemm.multiply(io.weights, (group, panels.start), n, tiles, |k, input| {
                    for (c, row) in k.zip(input.chunks_exact_mut(self.gemm.ld)) {
                        stream::widen(self.isa, &x[c * spatial + first..][..n], &mut row[..n]);
                    }
                });
                self.add(&band, first..first + n, product, sums);
                first += n;
            }
        }
        let sink = self.finish.sink(io);
        for (channel, sums) in channels.zip(sums.chunks_exact_mut(band.len())) {
            let channel = group * geometry.out_channels_per_group() + channel;
            let at = geometry.output_offset(image, channel, band.outputs().start);
            for (row, sums) in sums.chunks_exact_mut(band.row_len()).enumerate() {
                sink.interleaved(sums, band.phases(), band.width(), io.bias[channel], at + row * band.width());
            }
        }
    }
}
