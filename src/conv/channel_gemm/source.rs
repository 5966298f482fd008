//! A task's copy of its part of X, in padded planes or in rows without padding.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{Isa, RowOffsets, stream};

use super::taps::{MOST_RUNS, OuterTaps};
use crate::conv::planes::{self, ChunkCut, OutputChunk, PaddedPlanes};
use crate::element::Element;
use crate::{Axis, Geometry};

pub(super) enum ChannelSource {
    Padded(PaddedPlanes),
    Bare(BareRows),
}

impl ChannelSource {
    pub(super) fn chunk(&self, index: usize) -> OutputChunk {
        match self {
            Self::Padded(planes) => planes.chunk(index),
            Self::Bare(rows) => OutputChunk::new(&rows.axes, ChunkCut { axis: 0, extent: rows.extent }, index),
        }
    }

    /// Whether the chunk is the narrower one at the end of a row.
    pub(super) fn is_edge(&self, chunk: &OutputChunk, rank: usize) -> bool {
        matches!(self, Self::Padded(planes) if chunk.axis + 1 == rank && !planes.is_full(chunk))
    }

    /// Where row `row` of a chunk begins in the copy, for a tap of offset 0.
    pub(super) fn row_offset(&self, chunk: &OutputChunk, row: usize) -> usize {
        match self {
            Self::Padded(planes) => planes.row_offset(row),
            Self::Bare(rows) => rows.row_offset(chunk, row),
        }
    }

    /// Finds the taps of the axes before the last that row `row` multiplies. In planes these leave out
    /// taps of the outermost axis alone: kernels may read the padding of the others.
    pub(super) fn find_taps(&self, axes: &[Axis], row: usize, taps: &mut OuterTaps) {
        let is_bare = matches!(self, Self::Bare(_));
        let outer = &axes[..axes.len() - 1];
        taps.find(outer, row, |i, o| if i == 0 || is_bare { outer[i].taps_of_output(o) } else { 0..outer[i].kernel });
    }

    /// The row offsets of a block of K with `width` channels.
    pub(super) fn offsets(&self, width: usize) -> RowOffsets {
        match self {
            Self::Padded(planes) => planes.offsets(width),
            Self::Bare(rows) => rows.offsets(width),
        }
    }

    /// Copies what a chunk reads of the first `count` channels of `x`.
    pub(super) fn fill<T: Element>(&self, isa: Isa, chunk: &OutputChunk, x: &[T], count: usize, copy: &mut [T::Acc]) {
        match self {
            Self::Padded(planes) => planes.fill(isa, chunk, x, &mut copy[..count * planes.channel_len]),
            Self::Bare(rows) => rows.fill(isa, chunk, x, count, copy),
        }
    }
}

/// Rows of X without padding, for a Conv of stride 1 with at least two axes. A chunk is a run of
/// positions of the outermost axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BareRows {
    axes: Vec<Axis>,
    /// Elements of X from one position of an axis to the next.
    pitches: Vec<usize>,
    /// Elements from the rows of one channel to those of the next.
    pub(super) channel_len: usize,
    /// Elements before the first row. Row offsets are those of taps without padding, so that a row's tap
    /// of offset 0 may lie before the copy by as much as the padding.
    margin: usize,
    /// Positions of the outermost axis in a chunk.
    extent: usize,
}

impl BareRows {
    /// Pixels of a row, at most. Little of a longer one is padding.
    const MOST_PIXELS: usize = 1 << 14;

    /// Whether this can serve a layer, and helps: some tap of the last axis sees padding.
    pub(super) fn can_serve(geometry: &Geometry) -> bool {
        let Some((last, outer)) = geometry.axes.split_last() else { return false };
        let taps = outer.iter().fold(1_usize, |taps, axis| taps.saturating_mul(axis.kernel));
        geometry.axes.iter().all(|axis| axis.stride == 1 && axis.input > 0)
            && taps <= MOST_RUNS
            && last.kernel <= MOST_RUNS
            && last.output <= Self::MOST_PIXELS
            && (0..last.kernel).any(|tap| last.outputs_of_tap(tap).len() < last.output)
    }

    /// None if they exceed the address space.
    pub(super) fn new(axes: &[Axis], extent: usize) -> Option<Self> {
        let mut pitches = alloc::vec![1_usize; axes.len()];
        for i in (1..axes.len()).rev() {
            pitches[i - 1] = pitches[i].checked_mul(axes[i].input)?;
        }
        let first = &axes[0];
        let seen = first.input.min(extent.checked_add((first.kernel - 1) * first.dilation)?);
        let channel_len = planes::padded(seen.checked_mul(pitches[0])?)?;
        let mut new = Self { axes: axes.to_vec(), pitches, channel_len, margin: 0, extent };
        new.margin = new.shift(|axis| axis.pad_begin)?;
        Some(new)
    }

    /// Values of the copy of `block` channels, of which tiles read up to `most_pixels` at once. None if
    /// they exceed the address space.
    pub(super) fn copy_len(&self, block: usize, most_pixels: usize) -> Option<usize> {
        // Kernels' calls must cover the largest shift behind the rows.
        let reach = self.shift(|axis| (axis.kernel - 1) * axis.dilation)?;
        let furthest = self.shift(|axis| axis.output - 1)? - (self.axes[0].output - self.extent) * self.pitches[0];
        let lens = [self.margin, furthest, block.checked_mul(self.channel_len)?, reach, most_pixels];
        lens.into_iter().try_fold(0_usize, |sum, len| sum.checked_add(len))
    }

    /// The distance of elements that are `positions` positions apart on each axis. None if it exceeds
    /// the address space.
    fn shift(&self, positions: impl Fn(&Axis) -> usize) -> Option<usize> {
        let mut shifts = self.axes.iter().zip(&self.pitches).map(|(axis, pitch)| positions(axis).checked_mul(*pitch));
        shifts.try_fold(0_usize, |sum, shift| sum.checked_add(shift?))
    }

    fn last(&self) -> &Axis {
        &self.axes[self.axes.len() - 1]
    }

    /// The positions on the outermost axis that a chunk reads. They may lie behind X.
    fn seen(&self, chunk: &OutputChunk) -> Range<usize> {
        let (first, outputs) = (&self.axes[0], chunk.range(&self.axes, 0));
        let end = outputs.end + (first.kernel - 1) * first.dilation;
        outputs.start.saturating_sub(first.pad_begin)..end.saturating_sub(first.pad_begin)
    }

    fn row_offset(&self, chunk: &OutputChunk, row: usize) -> usize {
        // Not negative: the margin is as long as the paddings of all axes.
        let mut at = self.margin - self.last().pad_begin;
        let mut rest = chunk.first / self.last().output + row;
        for (axis, pitch) in self.axes.iter().zip(&self.pitches).rev().skip(1) {
            at = at + rest % axis.output * pitch - axis.pad_begin * pitch;
            rest /= axis.output;
        }
        at - self.seen(chunk).start * self.pitches[0]
    }

    fn offsets(&self, width: usize) -> RowOffsets {
        // With stride 1 there is one plane.
        planes::row_offsets(&planes::tap_offsets(&self.axes, 0, &self.pitches), self.channel_len, width)
    }

    fn fill<T: Element>(&self, isa: Isa, chunk: &OutputChunk, x: &[T], count: usize, copy: &mut [T::Acc]) {
        let (seen, pitch, input) = (self.seen(chunk), self.pitches[0], self.axes[0].input);
        let seen = seen.start.min(input)..seen.end.min(input);
        let channel = input * pitch;
        for (c, rows) in copy[self.margin..].chunks_exact_mut(self.channel_len).take(count).enumerate() {
            let x = &x[c * channel..][seen.start * pitch..seen.end * pitch];
            stream::widen(isa, x, &mut rows[..x.len()]);
        }
    }
}
