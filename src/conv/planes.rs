//! Padded planes: copies of a block of X, split into the phases of its strides, that make every
//! row of the im2col matrix a shifted view.
//!
//! A task copies the part of X that its chunk of the output reads. A chunk has one position on each axis
//! before the axis that is cut, `extent` positions on that axis, and all positions on the axes after it.
//! So it is a run of consecutive output elements.
//!
//! An axis is split into the phases of its stride (`view.rs`), so that the positions of a phase are
//! neighbours. All planes have the same pitches. Output position o of the chunk then reads element
//! `sum(o_i * pitch_i) + offset(tap)`: columns of the im2col matrix are neighbours, and its rows are
//! offsets. For ConvTranspose the positions are those of a phase of Y, and X has one phase.
//!
//! Between two rows of the chunk there are as many garbage columns as the largest shift. The store drops
//! them.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

use convoke_kernels::interleave::{Deinterleave, PhaseCopy, SourceRow};
use convoke_kernels::stream;
use convoke_kernels::{Column, InterleaveKernel, Isa, Real, RowOffsets, StoreMap, interleave_kernels, transpose};

use super::macro_kernel::a_block_bytes;
use super::view::{period, phases, place, reach, shift};
use crate::blas::Blocks;
use crate::conv::contract::Request;
use crate::conv::shares::even_share;
use crate::exec::Line;
use crate::machine::Machine;
use crate::{Axis, Element, Geometry};

/// How the output is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkCut {
    /// The axis that is cut.
    pub(crate) axis: usize,
    /// Positions of a chunk on it. The last chunk may have fewer.
    pub(crate) extent: usize,
}

/// The planes of one channel: pitches, the offsets of taps, and the rows that are filled.
pub(crate) struct PaddedPlanes {
    axes: Vec<Axis>,
    /// The element of X that output position 0 reads through the first tap of each axis. It may lie
    /// before X.
    first: Vec<isize>,
    cut: ChunkCut,
    /// Elements of a plane along each axis.
    spans: Vec<usize>,
    /// Elements from one position of an axis to the next.
    pitches: Vec<usize>,
    /// Elements of the planes of one channel.
    pub(crate) channel_len: usize,
    /// For each tap, the offset of its view.
    taps: Vec<usize>,
    /// The phases along the last axis, in the order in which a row of X meets them.
    phases: Vec<PhaseCopy>,
    /// The same without the padding at both ends of a row of X, and how many elements of each phase are
    /// left. None where chunks have parts of rows, and for ConvTranspose.
    within: Option<(Vec<PhaseCopy>, usize)>,
    rows: Vec<PlaneRow>,
    /// For each row, its element of X on each axis before the last, in the first chunk.
    places: Vec<isize>,
}

/// One row of the planes along the last axis, in all phases of that axis.
struct PlaneRow {
    /// Where the row begins in the planes of a channel, in the phase of the first tap.
    at: usize,
    /// The first output position on the axis that is cut which reads the row through a tap of its phase.
    along: usize,
}

/// Where a chunk begins: its output position along each axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputChunk {
    /// The linear index of the first output position. The positions are neighbours.
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) axis: usize,
    /// The linear index of the position on the axes before the one that is cut.
    outer: usize,
    /// The first position on the axis that is cut.
    start: usize,
    /// Positions on the axis that is cut. The last chunk may have fewer than the cut's extent.
    pub(crate) extent: usize,
}

impl OutputChunk {
    pub(crate) fn new(axes: &[Axis], cut: ChunkCut, index: usize) -> Self {
        let ChunkCut { axis, extent } = cut;
        let output = axes[axis].output;
        let along = output.div_ceil(extent);
        let (outer, start) = (index / along, index % along * extent);
        let inner: usize = axes[axis + 1..].iter().map(|a| a.output).product();
        let extent = extent.min(output - start);
        Self { first: (outer * output + start) * inner, len: extent * inner, axis, outer, start, extent }
    }

    /// Its output positions.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.first..self.first + self.len
    }

    /// Its output positions along an axis.
    pub(crate) fn range(&self, axes: &[Axis], axis: usize) -> Range<usize> {
        match axis.cmp(&self.axis) {
            Ordering::Less => {
                let between: usize = axes[axis + 1..self.axis].iter().map(|a| a.output).product();
                let position = self.outer / between % axes[axis].output;
                position..position + 1
            }
            Ordering::Equal => self.start..self.start + self.extent,
            Ordering::Greater => 0..axes[axis].output,
        }
    }
}

/// The sizes of planes. Finding them makes no tables, because the search asks for those of many cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneSizes {
    pub(crate) channel_len: usize,
    /// Columns of a chunk, garbage included.
    pub(crate) columns: usize,
    /// Chunks of the output of one image and group.
    pub(crate) chunks: usize,
}

/// Row offsets, ordered by tap, then channel, of `block` channels that are `channel_len` elements apart.
pub(crate) fn row_offsets(taps: &[usize], channel_len: usize, block: usize) -> RowOffsets {
    let offset = |at: usize| u32::try_from(at).expect("the size of the copy bounds the offsets");
    RowOffsets::new(taps.iter().flat_map(|tap| (0..block).map(move |c| offset(c * channel_len + tap))).collect())
}

/// For each tap, where its view begins in the planes of a channel, each of `plane` elements.
pub(crate) fn tap_offsets(axes: &[Axis], plane: usize, pitches: &[usize]) -> Vec<usize> {
    let kernel: Vec<_> = axes.iter().map(|axis| axis.kernel).collect();
    let each: Vec<_> = axes.iter().map(|axis| (phases(axis), period(axis))).collect();
    let mut offsets = Vec::with_capacity(kernel.iter().product());
    for_each_position(&kernel, |tap| {
        let (mut number, mut shift) = (0, 0);
        for (i, k) in tap.iter().enumerate() {
            let (phases, period) = each[i];
            number = number * phases + k % period;
            shift += place(&axes[i], *k).1 * pitches[i];
        }
        offsets.push(number * plane + shift);
    });
    offsets
}

/// The phases of a row without its padding, and how many elements of each are left. Rows of a phase have
/// `span` elements and are `pitch` elements apart. None if a phase would reach into the next row.
fn phases_within(axis: &Axis, phases: &[PhaseCopy], span: usize, pitch: usize) -> Option<(Vec<PhaseCopy>, usize)> {
    let from = |phase: &PhaseCopy| axis.pad_begin.saturating_sub(phase.offset).div_ceil(axis.stride);
    let begins = || phases.iter().map(from);
    let (least, most) = (begins().min()?, begins().max()?);
    let len = axis.input.div_ceil(axis.stride).min(span.saturating_sub(least));
    let moved = |phase: &PhaseCopy| PhaseCopy {
        offset: phase.offset + from(phase) * axis.stride - axis.pad_begin,
        dst: phase.dst + from(phase),
    };
    let mut within: Vec<_> = phases.iter().map(moved).collect();
    within.sort_unstable_by_key(|phase| phase.offset);
    (most + len <= pitch).then_some((within, len))
}

/// Positions of a chunk along axis `i`.
pub(crate) fn positions_on(axes: &[Axis], cut: ChunkCut, i: usize) -> usize {
    match i.cmp(&cut.axis) {
        Ordering::Less => 1,
        Ordering::Equal => cut.extent,
        Ordering::Greater => axes[i].output,
    }
}

/// Elements of `f32` of a cache line.
const LINE_ELEMENTS: usize = size_of::<Line>() / size_of::<f32>();
/// Channels of a block whose offsets must fit 32 bits.
const CHANNELS_IN_REACH: usize = 64;

/// The sizes of planes for a cut. None if they do not fit 32-bit offsets.
pub(crate) fn sizes(axes: &[Axis], cut: ChunkCut) -> Option<PlaneSizes> {
    let (mut plane, mut columns, mut chunks) = (1_usize, 1_usize, 1_usize);
    for (i, a) in axes.iter().enumerate().rev() {
        let here = positions_on(axes, cut, i);
        columns = (here - 1).checked_mul(plane)?.checked_add(columns)?;
        let span = here.checked_add(reach(a))?;
        // Kernels copy a phase of a chunk's row by positions in X, which may be far outside of it.
        let last = (a.output - 1).checked_add(span)?.checked_mul(a.stride)?;
        let furthest = last.checked_add(a.pad_begin)?.checked_add(a.input)?;
        isize::try_from(furthest.checked_add(Deinterleave::BEYOND)?).ok()?;
        plane = plane.checked_mul(span)?;
        chunks = chunks.checked_mul(a.output.div_ceil(here))?;
    }
    let phases: usize = axes.iter().try_fold(1_usize, |n, a| n.checked_mul(phases(a)))?;
    let channel_len = padded(plane.checked_mul(phases)?)?;
    u32::try_from(channel_len.checked_mul(CHANNELS_IN_REACH)?).ok()?;
    Some(PlaneSizes { channel_len, columns, chunks })
}

/// Why a layer is refused whose planes exceed [`MOST_BYTES`] or 32-bit offsets. Names the axis with the
/// furthest taps.
pub(crate) fn too_large(axes: &[Axis]) -> String {
    let furthest = axes.iter().enumerate().max_by_key(|(_, axis)| reach(axis));
    let furthest = furthest.map(|(i, axis)| {
        let Axis { input, kernel, stride, dilation, pad_begin, pad_end, .. } = axis;
        alloc::format!(
            "spatial axis {i} has input {input}, pads {pad_begin} + {pad_end}, kernel {kernel}, stride {stride}, dilation {dilation}"
        )
    });
    alloc::format!("the padded planes exceed {MOST_BYTES} bytes or 32-bit offsets: {}", furthest.unwrap_or_default())
}

/// The smallest odd number of cache lines that holds `len` elements of `f32`. So equal positions of many
/// channels do not share a cache set.
pub(crate) fn padded(len: usize) -> Option<usize> {
    let lines = len.div_ceil(LINE_ELEMENTS);
    (lines + 1 - lines % 2).checked_mul(LINE_ELEMENTS)
}

/// Copies `(pixels, channels)` of an X whose channels are neighbours, as rows by channels. Pixels are `x_pixel` elements
/// apart, and rows `of_row`.
pub(crate) fn rows_of_channels<T: Element>(
    isa: Isa,
    (pixels, channels): (usize, usize),
    (x, x_pixel): (&[T], usize),
    (rows, of_row): (&mut [T::Acc], usize),
) {
    if let Some(x) = T::as_acc(x) {
        return transpose(isa, (pixels, channels), (x, x_pixel), (rows, of_row));
    }
    for (e, c) in (0..pixels).flat_map(|e| (0..channels).map(move |c| (e, c))) {
        rows[c * of_row + e] = x[e * x_pixel + c].to_acc();
    }
}

/// Channels in blocks of K of at most `most_steps` steps, but at least one channel. They depend on the
/// operator alone, so that packed weights serve every input size.
pub(crate) fn channel_blocks(channels: usize, taps: usize, most_steps: usize) -> Blocks {
    Blocks::new(channels, (most_steps / taps).max(1))
}

/// What a cut into chunks has to respect.
pub(crate) struct ChunkLimits {
    pub(crate) images: usize,
    pub(crate) block: usize,
    /// Bytes that the planes and sums of a chunk should not exceed.
    pub(crate) budget_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) threads: usize,
    pub(crate) per_thread: usize,
}

/// Chunks that each thread should have, the numbers that are tried. Several even out delays of a thread.
/// With one, borders and partial vectors cost less.
pub(crate) const PER_THREAD: [usize; 2] = [2, 1];
/// Bytes of the planes of a chunk, at most. Kernels that reach further (large dilations) are left to
/// lowerings that copy only what taps read.
pub(crate) const MOST_BYTES: usize = 32 << 20;
/// Columns of a chunk, at most: more gain nothing, and tables grow with them.
const MOST_COLUMNS: usize = 8192;
/// A chunk is not made narrower than this to give every thread one: borders would cost too much.
const LEAST_COLUMNS: usize = 192;

/// With at least so many channels in a block, the rows of the next channel are prefetched. The CPU's own
/// prefetchers follow fewer channels.
pub(crate) const PREFETCHED_CHANNELS: usize = 8;

/// Bytes of what a task copies and sums, about. They stay in the L2 cache.
pub(crate) fn chunk_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}

/// Bytes for a chunk and its sums, so that they fit the L2 cache together with `a_bytes` of A.
pub(crate) fn budget_beside(machine: &Machine, a_bytes: usize) -> usize {
    let most_bytes = chunk_bytes(machine);
    most_bytes.saturating_sub(a_bytes.min(a_block_bytes(machine))).max((machine.l2_bytes / 4).min(most_bytes))
}

impl ChunkLimits {
    /// For a copy of `block` channels at a time, and several chunks for each thread.
    pub(crate) fn new<T: Element>(request: &Request<'_, T>, block: usize, budget_bytes: usize) -> Self {
        let Request { geometry, threads, .. } = *request;
        let (images, value_bytes) = (geometry.batch * geometry.group, size_of::<T::Acc>());
        Self { images, block, budget_bytes, value_bytes, threads, per_thread: PER_THREAD[0] }
    }

    /// The cut with the largest chunks that fit the budget and leave every thread enough of them. `sums`
    /// gives the values that are kept for a number of columns. None if the planes are too large.
    pub(crate) fn cut(&self, axes: &[Axis], sums: impl Fn(usize) -> usize) -> Option<(ChunkCut, PlaneSizes)> {
        let fits = |cut: ChunkCut| {
            sizes(axes, cut).is_some_and(|sizes| {
                let values = sizes.channel_len.saturating_mul(self.block).saturating_add(sums(sizes.columns));
                values.saturating_mul(self.value_bytes) <= self.budget_bytes && sizes.columns <= MOST_COLUMNS
            })
        };
        // The outermost axis on which some chunk fits, and the largest extent that does.
        let last = axes.len() - 1;
        let axis = (0..last).find(|&axis| fits(ChunkCut { axis, extent: 1 })).unwrap_or(last);
        let whole = axes[axis].output;
        let largest = largest_that(whole, |extent| fits(ChunkCut { axis, extent }));
        let fitting = sizes(axes, ChunkCut { axis, extent: largest })?;
        let cut = ChunkCut { axis, extent: self.even_extent((whole, largest), (fitting.chunks, fitting.columns)) };
        let sizes = sizes(axes, cut)?;
        let bytes = sizes.channel_len.checked_mul(self.block)?.checked_mul(self.value_bytes)?;
        (bytes <= MOST_BYTES).then_some((cut, sizes))
    }

    /// The extent, at most `largest`, that gives all threads about the same number of chunks of an axis
    /// of `whole` positions. With extent `largest` an image has `chunks` chunks of `columns` columns.
    pub(crate) fn even_extent(&self, (whole, largest): (usize, usize), (chunks, columns): (usize, usize)) -> usize {
        let chunks = self.images * chunks;
        let others = chunks / whole.div_ceil(largest).max(1);
        let mut most = largest;
        if self.threads > 1 && chunks < self.per_thread * self.threads {
            let smaller = (largest * chunks).div_ceil(self.per_thread * self.threads);
            let least = (largest * LEAST_COLUMNS).div_ceil(columns);
            most = smaller.max(least).min(largest);
        }
        let extent = even_share(whole, most, others, self.threads);
        whole.div_ceil(whole.div_ceil(extent))
    }
}

/// The largest number up to `most` that `fits`, or 1 if none does. If a number fits, smaller ones must.
pub(crate) fn largest_that(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

impl PaddedPlanes {
    /// The planes of Conv.
    pub(crate) fn new(geometry: &Geometry, cut: ChunkCut) -> Self {
        let first = geometry.axes.iter().map(|axis| -(axis.pad_begin as isize)).collect();
        let mut new = Self::from(geometry.axes.clone(), first, cut);
        let (axes, last) = (&new.axes, geometry.axes.len() - 1);
        let row = match last {
            _ if positions_on(axes, cut, last) < axes[last].output => 0,
            0 => new.spans[0],
            _ => new.pitches[last - 1],
        };
        new.within = phases_within(&axes[last], &new.phases, new.spans[last], row);
        new
    }

    /// Planes whose first taps read `first` at output position 0. Ignores the pads of the axes.
    pub(crate) fn from(axes: Vec<Axis>, first: Vec<isize>, cut: ChunkCut) -> Self {
        let (rank, last) = (axes.len(), axes.len() - 1);
        let spans: Vec<_> = (0..rank).map(|i| positions_on(&axes, cut, i) + reach(&axes[i])).collect();
        let mut pitches = vec![1; rank];
        for i in (1..rank).rev() {
            pitches[i - 1] = pitches[i] * spans[i];
        }
        let plane = pitches[0] * spans[0];
        let planes: usize = axes.iter().map(phases).product();
        let channel_len = padded(plane * planes).expect("sizes() found that the planes fit");
        let mut along: Vec<_> = (0..phases(&axes[last]))
            .map(|tap| PhaseCopy { offset: place(&axes[last], tap).0, dst: tap * plane })
            .collect();
        along.sort_unstable_by_key(|phase| phase.offset);
        let taps = tap_offsets(&axes, plane, &pitches);
        let (rows, places) = (Vec::new(), Vec::new());
        let mut new =
            Self { axes, first, cut, spans, pitches, channel_len, taps, phases: along, within: None, rows, places };
        new.list_rows(plane);
        new
    }

    fn list_rows(&mut self, plane: usize) {
        let Self { axes, first, cut, spans, pitches, .. } = &*self;
        let last = axes.len() - 1;
        let counts: Vec<_> = axes.iter().map(phases).collect();
        let count = counts[..last].iter().chain(&spans[..last]).product::<usize>();
        let (mut rows, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count * last));
        let mut number = 0;
        for_each_position(&counts[..last], |outer_phase| {
            for_each_position(&spans[..last], |outer| {
                // Rows that no tap of their phase reaches stay unfilled: only garbage columns see them.
                let position = |i: usize| outer[i].saturating_sub(shift(&axes[i], outer_phase[i]));
                if (0..last).any(|i| position(i) >= positions_on(axes, *cut, i)) {
                    return;
                }
                let at = outer.iter().zip(pitches).map(|(o, pitch)| o * pitch).sum::<usize>();
                let along = if cut.axis < last { position(cut.axis) } else { 0 };
                rows.push(PlaneRow { at: number * counts[last] * plane + at, along });
                places.extend((0..last).map(|i| {
                    first[i].wrapping_add_unsigned(place(&axes[i], outer_phase[i]).0 + outer[i] * axes[i].stride)
                }));
            });
            number += 1;
        });
        (self.rows, self.places) = (rows, places);
    }

    pub(crate) fn chunk(&self, index: usize) -> OutputChunk {
        OutputChunk::new(&self.axes, self.cut, index)
    }

    pub(crate) fn range(&self, chunk: &OutputChunk, axis: usize) -> Range<usize> {
        chunk.range(&self.axes, axis)
    }

    pub(crate) fn is_full(&self, chunk: &OutputChunk) -> bool {
        chunk.extent == self.cut.extent
    }

    pub(crate) fn pitches(&self) -> &[usize] {
        &self.pitches
    }

    /// Where row `row` of a chunk, along the last axis, begins in the planes, for a tap with offset 0.
    pub(crate) fn row_offset(&self, mut row: usize) -> usize {
        let mut at = 0;
        for i in (self.cut.axis..self.axes.len() - 1).rev() {
            let extent = if i == self.cut.axis { usize::MAX } else { self.axes[i].output };
            at += row % extent * self.pitches[i];
            row /= extent;
        }
        at
    }

    /// Where the view of a tap begins in the planes of a channel.
    pub(crate) fn tap_offset(&self, tap: usize) -> usize {
        self.taps[tap]
    }

    /// Elements from one row to the next, of two axes or more.
    pub(crate) fn row_pitch(&self) -> usize {
        self.pitches[self.pitches.len() - 2]
    }

    /// The row offsets of a block of K with `block` channels.
    pub(crate) fn offsets(&self, block: usize) -> RowOffsets {
        row_offsets(&self.taps, self.channel_len, block)
    }

    /// Where the columns of a chunk with `extent` positions on its axis go, in vectors of `lanes`.
    pub(crate) fn map(&self, extent: usize, lanes: usize) -> StoreMap {
        let here = |i: usize| positions_on(&self.axes, ChunkCut { extent, ..self.cut }, i);
        let rank = self.axes.len();
        let columns = (0..rank).map(|i| (here(i) - 1) * self.pitches[i]).sum::<usize>() + 1;
        let mut vectors = vec![Column { offset: 0, mask: 0 }; columns.div_ceil(lanes)];
        let width = here(rank - 1);
        for row in 0..self.rows_of(extent) {
            let (begin, end) = (self.row_offset(row), self.row_offset(row) + width);
            let reached = &mut vectors[begin / lanes..end.div_ceil(lanes)];
            for (vector, v) in reached.iter_mut().zip(begin / lanes..) {
                let (from, to) = (begin.saturating_sub(v * lanes), (end - v * lanes).min(lanes));
                vector.mask |= (((1_u64 << to) - 1) ^ ((1_u64 << from) - 1)) as u32;
            }
        }
        let mut offset = 0;
        for vector in &mut vectors {
            vector.offset = offset;
            offset += vector.mask.count_ones() as usize;
        }
        StoreMap::new(vectors, lanes)
    }

    /// Rows of outputs along the last axis, in a chunk with `extent` positions on its axis.
    pub(crate) fn rows_of(&self, extent: usize) -> usize {
        let last = self.axes.len() - 1;
        (self.cut.axis..last).map(|i| if i == self.cut.axis { extent } else { self.axes[i].output }).product()
    }

    /// The rows that a chunk fills in the planes of a channel, and where they come from.
    pub(crate) fn rows<'a>(&'a self, chunk: &'a OutputChunk) -> impl Iterator<Item = SourceRow> + 'a {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.along < chunk.extent);
        rows.map(|(number, row)| SourceRow { src: self.source(number, chunk), dst: row.at })
    }

    /// Copies the part of X that a chunk reads. `x` and `planes` begin with the first channel.
    pub(crate) fn fill<T: Element>(&self, isa: Isa, chunk: &OutputChunk, x: &[T], planes: &mut [T::Acc]) {
        let last = self.axes.len() - 1;
        let begin = self.range(chunk, last).start * self.axes[last].stride;
        let first = self.first[last].wrapping_add_unsigned(begin);
        let copy =
            Deinterleave { first, phases: &self.phases, len: self.spans[last], ..self.deinterleaving(planes.len()) };
        deinterleave_rows(isa, x, &copy, self.rows(chunk), planes);
    }

    /// As [`fill`](Self::fill), for planes whose padding is zero already. `rows` are the rows of the
    /// chunk, or empty if they are not listed.
    pub(crate) fn fill_within<T: Element>(
        &self,
        isa: Isa,
        chunk: &OutputChunk,
        rows: &[SourceRow],
        x: &[T],
        planes: &mut [T::Acc],
    ) {
        let Some((phases, len)) = &self.within else { return self.fill(isa, chunk, x, planes) };
        let copy = Deinterleave { phases, len: *len, rows, ..self.deinterleaving(planes.len()) };
        if rows.is_empty() {
            return deinterleave_rows(isa, x, &copy, self.rows(chunk), planes);
        }
        deinterleave(isa, x, &copy, planes);
    }

    /// What all copies into planes have in common. `len` is the length of all planes.
    fn deinterleaving(&self, len: usize) -> Deinterleave<'_> {
        let last = self.axes.len() - 1;
        // The product wraps for axes without elements. Then no row has a source.
        let src_pitch = self.axes.iter().fold(1_usize, |n, axis| n.wrapping_mul(axis.input));
        let planes = len / self.channel_len;
        Deinterleave {
            planes,
            src_pitch,
            dst_pitch: self.channel_len,
            rows: &[],
            width: self.axes[last].input,
            first: 0,
            stride: self.axes[last].stride,
            phases: &[],
            len: 0,
            prefetch_distance: if planes < PREFETCHED_CHANNELS { 0 } else { src_pitch },
        }
    }

    /// For each element of a channel of X, its place in the planes of the only chunk; `spare` if no tap
    /// reads it.
    pub(crate) fn places_of_elements(&self, spare: usize) -> Vec<usize> {
        let last = self.axes.len() - 1;
        let mut places = vec![spare; self.axes.iter().map(|axis| axis.input).product()];
        for SourceRow { src, dst } in self.rows(&self.chunk(0)) {
            let Some(src) = src else { continue };
            for (phase, i) in self.phases.iter().flat_map(|phase| (0..self.spans[last]).map(move |i| (phase, i))) {
                let x = self.first[last].wrapping_add_unsigned(phase.offset + i * self.axes[last].stride);
                if let Some(x) = usize::try_from(x).ok().filter(|x| *x < self.axes[last].input) {
                    places[src + x] = dst + phase.dst + i;
                }
            }
        }
        places
    }

    /// The beginning of the row of X that a row of planes copies. None if that is padding.
    fn source(&self, row: usize, chunk: &OutputChunk) -> Option<usize> {
        let last = self.axes.len() - 1;
        let places = &self.places[row * last..(row + 1) * last];
        let before = places.iter().zip(&self.axes).enumerate().try_fold(0_usize, |at, (i, (place, axis))| {
            let x = place.wrapping_add_unsigned(self.range(chunk, i).start * axis.stride);
            let x = usize::try_from(x).ok().filter(|x| *x < axis.input)?;
            Some(at.wrapping_mul(axis.input).wrapping_add(x))
        });
        Some(before?.wrapping_mul(self.axes[last].input))
    }
}

/// Rows that are passed to a kernel call at a time. Their list is on the stack.
const ROWS_AT_A_TIME: usize = 32;

/// Copies the phases of `rows` in place of the rows of `copy`.
pub(crate) fn deinterleave_rows<T: Element>(
    isa: Isa,
    x: &[T],
    copy: &Deinterleave<'_>,
    rows: impl Iterator<Item = SourceRow>,
    planes: &mut [T::Acc],
) {
    let mut rows = rows.peekable();
    let mut some = [SourceRow::default(); ROWS_AT_A_TIME];
    while rows.peek().is_some() {
        let count = some.iter_mut().zip(&mut rows).map(|(some, row)| *some = row).count();
        deinterleave(isa, x, &Deinterleave { rows: &some[..count], ..*copy }, planes);
    }
}

/// As [`InterleaveKernel::deinterleave`], for elements of any type.
pub(crate) fn deinterleave<T: Element>(isa: Isa, x: &[T], copy: &Deinterleave<'_>, planes: &mut [T::Acc]) {
    match (T::as_acc(x), interleave_kernels::<T::Acc>(isa).first()) {
        (Some(x), Some(kernel)) => kernel.deinterleave(x, copy, planes),
        // Converting a vector takes about as long as converting one element. Long strides keep few of
        // the elements.
        (None, Some(kernel))
            if (2..=(kernel.lanes() * copy.phases.len()).min(CONVERTED_ELEMENTS)).contains(&copy.stride) =>
        {
            deinterleave_converted(isa, kernel, x, copy, planes);
        }
        _ => convert(isa, x, copy, planes),
    }
}

/// Elements that are converted at a time, on the stack. Rows of longer strides are converted element by
/// element.
const CONVERTED_ELEMENTS: usize = 1024;

/// As [`InterleaveKernel::deinterleave`], for elements of a 16-bit type. Whole rows are converted first,
/// because single conversions are slow.
fn deinterleave_converted<T: Element>(
    isa: Isa,
    kernel: &InterleaveKernel<T::Acc>,
    x: &[T],
    copy: &Deinterleave<'_>,
    planes: &mut [T::Acc],
) {
    let mut converted = [T::Acc::ZERO; CONVERTED_ELEMENTS];
    let most = (CONVERTED_ELEMENTS / copy.stride).max(1);
    for (plane, begin) in (0..copy.planes).flat_map(|p| (0..copy.len).step_by(most).map(move |begin| (p, begin))) {
        let len = most.min(copy.len - begin);
        // The part of the row that is read. Its first element may lie before the row.
        let first = copy.first.saturating_add_unsigned(begin * copy.stride);
        let within = |at: isize| usize::try_from(at).unwrap_or(0).min(copy.width);
        let seen = within(first)..within(first.saturating_add_unsigned(len * copy.stride));
        let rows_at_once =
            CONVERTED_ELEMENTS.checked_div(seen.len()).map_or(ROWS_AT_A_TIME, |rows| rows.min(ROWS_AT_A_TIME));
        for rows in copy.rows.chunks(rows_at_once) {
            let mut here = [SourceRow::default(); ROWS_AT_A_TIME];
            for (i, (here, row)) in here.iter_mut().zip(rows).enumerate() {
                let at = i * seen.len();
                if let Some(src) = row.src {
                    let src = plane * copy.src_pitch + src;
                    stream::widen(isa, &x[src..][seen.clone()], &mut converted[at..at + seen.len()]);
                }
                *here = SourceRow { src: row.src.map(|_| at), dst: row.dst + begin };
            }
            let here = Deinterleave {
                planes: 1,
                rows: &here[..rows.len()],
                width: seen.len(),
                first: first - seen.start as isize,
                len,
                prefetch_distance: 0,
                ..*copy
            };
            kernel.deinterleave(&converted, &here, &mut planes[plane * copy.dst_pitch..]);
        }
    }
}

/// As [`InterleaveKernel::deinterleave`], for elements that are converted, row by row.
fn convert<T: Element>(isa: Isa, x: &[T], copy: &Deinterleave<'_>, planes: &mut [T::Acc]) {
    for (plane, row) in (0..copy.planes).flat_map(|plane| copy.rows.iter().map(move |row| (plane, row))) {
        for phase in copy.phases {
            let at = plane * copy.dst_pitch + row.dst + phase.dst;
            let dst = &mut planes[at..at + copy.len];
            let Some(src) = row.src else {
                dst.fill(T::Acc::ZERO);
                continue;
            };
            let row = &x[plane * copy.src_pitch + src..][..copy.width];
            // Elements of the phase that are not padding: first + i * stride in 0..width.
            let first = copy.first + phase.offset as isize;
            let within = |end: usize| end.saturating_add_signed(-first).div_ceil(copy.stride).min(copy.len);
            let (from, to) = (within(0), within(copy.width));
            dst[..from].fill(T::Acc::ZERO);
            if from < to {
                let begin = (from * copy.stride).wrapping_add_signed(first);
                stream::widen_strided(isa, &row[begin..], copy.stride, &mut dst[from..to]);
            }
            dst[to.max(from)..].fill(T::Acc::ZERO);
        }
    }
}

/// Calls `visit` with all positions of a box with the given lengths, in row-major order.
pub(crate) fn for_each_position(lengths: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut position = vec![0; lengths.len()];
    for _ in 0..lengths.iter().product() {
        visit(&position);
        for (p, len) in position.iter_mut().zip(lengths).rev() {
            *p += 1;
            if *p < *len {
                break;
            }
            *p = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use convoke_kernels::Isa;
    use convoke_kernels::interleave::{Deinterleave, PhaseCopy, SourceRow};
    use convoke_kernels::stream::Storage;

    use super::deinterleave_rows;
    use crate::f16;

    /// Strides whose rows are converted before they are deinterleaved, and strides that are too long for
    /// that; rows that begin before X's, and rows that end behind them.
    #[test]
    fn phases_of_a_16_bit_type_are_those_of_its_values_in_f32() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for stride in [1, 2, 3, 7, 16, 17, 100, 513, 1025] {
                for (first, len) in [(-5, 40), (0, 600), (3, 9), (700, 4), (-2000, 30)] {
                    let (width, planes) = (650, 2);
                    let x: Vec<f16> = (0..planes * 3 * width).map(|i| f16::from_f32((i % 997) as f32)).collect();
                    let wide: Vec<f32> = x.iter().map(|x| x.to_acc()).collect();
                    let rows = [Some(2 * width), None, Some(0)];
                    let rows = (0..40).map(|i| SourceRow { src: rows[i % 3], dst: i * 2 * len });
                    let phases = [PhaseCopy { offset: 0, dst: 0 }, PhaseCopy { offset: 1, dst: len }];
                    let copy = Deinterleave {
                        planes,
                        src_pitch: 3 * width,
                        dst_pitch: 40 * 2 * len,
                        rows: &[],
                        width,
                        first,
                        stride,
                        phases: &phases[..stride.min(2)],
                        len,
                        prefetch_distance: 0,
                    };
                    let mut got = alloc::vec![0.5_f32; planes * copy.dst_pitch];
                    let mut want = got.clone();
                    deinterleave_rows(isa, &x, &copy, rows.clone(), &mut got);
                    deinterleave_rows(isa, &wide, &copy, rows, &mut want);
                    assert!(got == want, "{isa}: stride {stride}, from {first}, {len} long");
                }
            }
        }
    }
}
