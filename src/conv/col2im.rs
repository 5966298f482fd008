//! ConvTranspose as GEMM + col2im: multiplies each input position by each tap, and adds the products to
//! their outputs.
//!
//! M = a block of output channels * kernel volume, K = C/group, N = input positions, for each image
//! and group. K is in blocks of at most [`MOST_BLOCK_STEPS`].
//!
//! The output is cut into chunks, along the outermost axis whose positions are small enough. A task
//! multiplies the input positions that reach its chunk, a tile at a time, and adds the products to the
//! sums of the chunk. As each chunk has one task, there are no atomics, and each output is stored once.
//! Along the last axis, sums are kept by phases of the stride, so that runs of neighbours are added.
//!
//! Accepts every ConvTranspose of at most [`MOST_TAPS`], in any layout: tiles of an X whose channels are neighbours are
//! transposed. Scratch of a task: a tile of the input and one
//! of the product, each of at most [`tile_bytes`] or [`LEAST_POSITIONS`], and the sums of the chunk, of
//! at most [`chunk_bytes`] or one position of [`MOST_CHUNK_BYTES`].

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::layout::WeightLayout;
use super::macro_kernel::{lanes, products_work};
use super::planes::{ChunkCut, OutputChunk, chunk_bytes, rows_of_channels};
use super::shares::{GemmSplit, Part, ROWS_FOR_SHARED_ROW, TASKS_PER_THREAD};
use super::store::Finish;
use super::view;
use crate::blas::{BlockedGemm, Blocks, Tiles};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Axis, Geometry, Layout};

/// Rows of a GEMM, about. Tiles of 64 positions are then small beside the sums.
const ROWS_OF_GEMM: usize = 256;
/// Steps of a block of K, at most. Tiles of 64 positions then take 256 KiB, in f64 twice that. It must
/// not depend on the machine, because packed weights depend on it.
const MOST_BLOCK_STEPS: usize = 1024;
/// Positions of a tile, at least: fewer are too few columns for a GEMM.
const LEAST_POSITIONS: usize = 64;
/// Taps, at most: the product of a tile has a row for each tap of an output channel.
const MOST_TAPS: usize = 1 << 14;
/// Positions of a tile, at most: more gain nothing.
const MOST_POSITIONS: usize = 4096;

/// If a position of an axis has sums of more bytes, chunks are cut along the next axis, to bound the
/// scratch. This is far above [`chunk_bytes`], because chunks of a single position multiply most inputs
/// several times.
const MOST_CHUNK_BYTES: usize = 4 << 20;

/// Bytes of a tile of the input, and of the product, about. Both stay in the L2 cache beside the sums.
fn tile_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
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
    let k = Blocks::new(geometry.in_channels_per_group(), MOST_BLOCK_STEPS);
    let taps = geometry.kernel_volume();
    let channels = Blocks::new(geometry.out_channels_per_group(), (ROWS_OF_GEMM / taps).max(1));
    let rows = channels.times(taps);
    let positions = tile_bytes(machine) / size_of::<T::Acc>() / rows.size().max(k.size());
    let positions = positions.clamp(LEAST_POSITIONS, MOST_POSITIONS).min(geometry.input_spatial().max(1));
    let cut = cut(request, &channels, most_bytes);
    let chunks = geometry.axes[..cut.axis].iter().map(|axis| axis.output).product::<usize>()
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
    let split = GemmSplit { images, groups, columns: chunks, panels, shares: panels };

    let mut scratch = Ledger::default();
    let [input, product, tile] = gemm.lens();
    let sums = channels.size() * SumChunk::new(&geometry.axes, cut, 0).len();
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
            Count(chunks, "chunk")
        ),
        layout: WeightLayout::BlasColumns { blas, channels: channels.size(), panels: gemm.layout() },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: products_work(request, (geometry.input_spatial(), positions))
            + Item::COL2IM_ELEMENTS.times(additions)
            + layout_work(request, channels.count()),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let geometry = geometry.clone();
        Box::new(Col2im { geometry, isa, finish, gemm, channels, positions, cut, split, pieces })
    });
    Ok(Offer { recipe, build })
}

/// The work to read an X whose channels are neighbours `reads` times, and to store such a Y. One channel lies the same way
/// in both layouts.
fn layout_work<T: Element>(request: &Request<'_, T>, reads: usize) -> Work {
    let geometry = request.geometry;
    let is_last = |layout: Layout, channels: usize| layout == Layout::ChannelsLast && channels > 1;
    let mut work = Work::default();
    if is_last(geometry.x_layout, geometry.in_channels) {
        let vectors = geometry.input_len() as f64 / lanes::<T::Acc>(request.isa()) as f64;
        work += Item::GATHERED_VECTORS.times(vectors * reads as f64);
    }
    if is_last(geometry.y_layout, geometry.out_channels) {
        work += Item::SCATTERED_ELEMENTS.times(geometry.output_len() as f64);
    }
    work
}

/// Cuts the output into chunks of as many positions as [`chunk_bytes`] hold. They are smaller if threads
/// would have no work, unless most input positions would then reach several chunks. Their sums take at
/// most `most_bytes`, unless a single position takes more.
fn cut<T: Element>(request: &Request<'_, T>, channels: &Blocks, most_bytes: usize) -> ChunkCut {
    let (geometry, axes) = (request.geometry, &request.geometry.axes);
    let outputs = |axes: &[Axis]| axes.iter().map(|axis| axis.output).product::<usize>();
    let position = |axis: usize| outputs(&axes[axis + 1..]).saturating_mul(channels.size() * size_of::<T::Acc>());
    let last = axes.len() - 1;
    let axis = (0..last).find(|&axis| position(axis) <= MOST_CHUNK_BYTES.min(most_bytes)).unwrap_or(last);
    let cut = &axes[axis];
    let fitting = chunk_bytes(request.machine).min(most_bytes) / position(axis).max(1);
    let tasks = geometry.batch * geometry.group * channels.count() * outputs(&axes[..axis]);
    let shared = match request.threads {
        1 => usize::MAX,
        threads => (cut.output * tasks).div_ceil(TASKS_PER_THREAD * threads),
    };
    let overlap = (cut.kernel - 1).saturating_mul(cut.dilation);
    let least = overlap.saturating_mul(ROWS_FOR_SHARED_ROW).saturating_add(cut.stride);
    let extent = fitting.min(shared.max(least)).clamp(1, cut.output);
    // Nearly equal extents, which are whole strides.
    let even = cut.output.div_ceil(cut.output.div_ceil(extent));
    ChunkCut { axis, extent: even.next_multiple_of(cut.stride.min(even)) }
}

/// A chunk of the output, and the places of its sums in scratch.
struct SumChunk<'a> {
    axes: &'a [Axis],
    chunk: OutputChunk,
}

impl<'a> SumChunk<'a> {
    fn new(axes: &'a [Axis], cut: ChunkCut, index: usize) -> Self {
        Self { axes, chunk: OutputChunk::new(axes, cut, index) }
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    fn range(&self, axis: usize) -> Range<usize> {
        self.chunk.range(self.axes, axis)
    }

    fn width(&self) -> usize {
        self.range(self.axes.len() - 1).len()
    }

    /// The number of phases of the last axis, and the elements of each. Position r of a row is element
    /// `r / stride` of phase `r % stride`.
    fn phases(&self) -> (usize, usize) {
        (self.last().stride.min(self.width()), self.width().div_ceil(self.last().stride))
    }

    fn row_len(&self) -> usize {
        let (phases, span) = self.phases();
        phases * span
    }

    fn len(&self) -> usize {
        (0..self.axes.len() - 1).map(|i| self.range(i).len()).product::<usize>() * self.row_len()
    }

    /// The input positions along an axis that reach the chunk.
    fn reaching(&self, axis: usize) -> Range<usize> {
        let (axis, range) = (&self.axes[axis], self.range(axis));
        let reach = (axis.kernel - 1) * axis.dilation;
        let first = (range.start + axis.pad_begin).saturating_sub(reach).div_ceil(axis.stride);
        let end = ((range.end - 1 + axis.pad_begin) / axis.stride + 1).min(axis.input);
        // The first such position may be far beyond X.
        if first < end { first..end } else { 0..0 }
    }

    /// The number of runs of inputs that reach the chunk: one for each position on the axes before the
    /// one that is cut.
    fn runs(&self) -> usize {
        (0..self.chunk.axis).map(|i| self.reaching(i).len()).product()
    }

    fn inputs(&self, mut index: usize) -> Range<usize> {
        let (mut outer, mut step) = (0, 1);
        for i in (0..self.chunk.axis).rev() {
            let reaching = self.reaching(i);
            outer += (reaching.start + index % reaching.len()) * step;
            index /= reaching.len();
            step *= self.axes[i].input;
        }
        let behind: usize = self.axes[self.chunk.axis + 1..].iter().map(|axis| axis.input).product();
        let (first, reaching) = (outer * self.axes[self.chunk.axis].input, self.reaching(self.chunk.axis));
        (first + reaching.start) * behind..(first + reaching.end) * behind
    }

    /// The row of sums that a row of inputs reaches through a tap, both numbered over the axes before
    /// the last. None if it is outside the chunk.
    fn row(&self, inputs: usize, tap: usize) -> Option<usize> {
        let outer = &self.axes[..self.axes.len() - 1];
        view::row_met(outer, (inputs, tap), |i| self.axes[i].input, |i| self.range(i))
    }

    /// The inputs, among positions `x` of a row, whose products with a tap of the last axis are in the
    /// row of sums, and where in that row the first product is added.
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
    channels: Blocks,
    positions: usize,
    cut: ChunkCut,
    split: GemmSplit,
    /// A tile of the input, one of the product, the backend's scratch, and the sums of a block of
    /// channels.
    pieces: [Piece<T::Acc>; 4],
}

impl<T: Element> Col2im<T> {
    /// What a task computes; output channels count within the group.
    fn part(&self, task: usize) -> (Part, Range<usize>, SumChunk<'_>) {
        let part = self.split.part(task);
        let channels = self.channels.range(part.panels.start);
        let chunk = SumChunk::new(&self.geometry.axes, self.cut, part.columns);
        (part, channels, chunk)
    }

    /// Fills rows of the input, one for each channel, with some positions of an image.
    fn read(
        &self,
        io: &Io<'_, T>,
        (image, channels): (usize, Range<usize>),
        positions: Range<usize>,
        input: &mut [T::Acc],
    ) {
        let (strides, n) = (&io.strides.x, positions.len());
        // Without channels, X is empty.
        let x = io.x.get(strides.at(image, channels.start, positions.start)..).unwrap_or(&[]);
        if strides.position == 1 {
            for (c, row) in input.chunks_exact_mut(self.gemm.ld).enumerate().take(channels.len()) {
                stream::widen(self.isa, &x[c * strides.channel..][..n], &mut row[..n]);
            }
            return;
        }
        rows_of_channels(self.isa, (n, channels.len()), (x, strides.position), (input, self.gemm.ld));
    }

    fn add(&self, chunk: &SumChunk<'_>, positions: Range<usize>, product: &[T::Acc], sums: &mut [T::Acc]) {
        let (last, ld, taps) = (chunk.last(), self.gemm.ld, self.geometry.kernel_volume());
        let (row_len, len) = (chunk.row_len(), chunk.len());
        let mut first = positions.start;
        while first < positions.end {
            let (inputs, x) = (first / last.input, first % last.input);
            let segment = x..(x + positions.end - first).min(last.input);
            for tap in 0..taps {
                let Some(row) = chunk.row(inputs, tap / last.kernel) else { continue };
                let (run, at) = chunk.run(segment.clone(), tap % last.kernel);
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
        let (part, channels, chunk) = self.part(task);
        patch(part.patch(&self.geometry, channels, chunk.chunk.positions()));
    }
}

impl<T: Element> Lowering<T> for Col2im<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let rows = self.geometry.out_channels_per_group() * taps;
        self.gemm.pack(self.geometry.group, packed, |group, row, k| w[(group * channels + k) * rows + row].to_acc());
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let (Part { image, group, panels, .. }, channels, chunk) = self.part(task);
        let mut arena = Arena::new(scratch);
        let [input, product, tile, sums] = self.pieces.map(|piece| arena.get(piece));
        let sums = &mut sums[..channels.len() * chunk.len()];
        sums.fill(T::Acc::ZERO);
        let spatial = geometry.input_spatial();
        for inputs in (0..if spatial == 0 { 0 } else { chunk.runs() }).map(|run| chunk.inputs(run)) {
            // Tiles begin at multiples of their length, wherever the chunk begins, so that the order of
            // each sum does not depend on how the output is cut.
            let mut first = inputs.start;
            while first < inputs.end {
                let n = (self.positions - first % self.positions).min(inputs.end - first);
                let tiles = Tiles { b: &mut *input, c: &mut *product, tile: &mut *tile };
                self.gemm.multiply(io.weights, (group, panels.start), n, tiles, |k, input| {
                    let channels = group * geometry.in_channels_per_group() + k.start;
                    self.read(io, (image, channels..channels + k.len()), first..first + n, input);
                });
                self.add(&chunk, first..first + n, product, sums);
                first += n;
            }
        }
        let store = self.finish.store(io);
        for (channel, sums) in channels.zip(sums.chunks_exact_mut(chunk.len())) {
            let channel = group * geometry.out_channels_per_group() + channel;
            for (row, sums) in sums.chunks_exact_mut(chunk.row_len()).enumerate() {
                let position = chunk.chunk.first + row * chunk.width();
                store.interleaved(sums, chunk.phases(), chunk.width(), (image, channel, position));
            }
        }
    }
}
