//! Padded, phase-split copies of a block of X: what makes every row of the im2col matrix a shifted
//! view.
//!
//! A block is a slab of the output: one position on the axes before `axis`, `extent` positions on
//! it, all positions on the axes behind it, and so a run of consecutive output elements. For an
//! axis with stride s, X is split into s phases, so that positions of one phase are neighbours; tap
//! k of an axis with dilation d then reads phase `k * d % s`, shifted by `k * d / s`. With all
//! planes of one pitch, output position o of the slab reads element `sum(o_i * pitch_i) +
//! offset(tap)`: the columns of the im2col matrix are neighbours, its rows are offsets. Between two
//! rows of the slab lie as many garbage columns as the shifts are long; they are dropped when tiles
//! are stored.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use convoke_kernels::stream;
use convoke_kernels::weave::{PhasePick, Picks, RowPick};
use convoke_kernels::{Column, Isa, Real, RowOffsets, StoreMap, gcd, weave_kernels};

use super::engine::a_block_bytes;
use crate::lower::shares::even_share;
use crate::machine::Machine;
use crate::{Axis, Element, Geometry};

/// The planes of one channel: pitches, taps' offsets, and the rows to be filled.
pub(crate) struct PaddedPlanes {
    axes: Vec<Axis>,
    /// The axis that is cut into slabs, and the slab's extent on it.
    axis: usize,
    extent: usize,
    /// Elements of a plane along each axis, and from one position to the next.
    spans: Vec<usize>,
    pitches: Vec<usize>,
    /// Elements of the planes of one channel.
    pub(crate) channel_len: usize,
    /// For each tap, the offset of its view.
    taps: Vec<usize>,
    /// The phases along the last axis, in the order in which a row of X meets them.
    phases: Vec<PhasePick>,
    /// Elements of X from one position of an axis to the next; products wrap where they are not
    /// used.
    steps: Vec<usize>,
    rows: Vec<PlaneRow>,
    /// For each row, its padded input positions along the axes before the slab's, relative to the
    /// slab's origin.
    leading: Vec<usize>,
}

/// One row of the planes, along the last axis, for all phases along that.
struct PlaneRow {
    /// Where it begins among the channel's planes: the first tap's phase.
    at: usize,
    /// The first of the slab's output positions along its axis that some tap of the row's phase
    /// reads it for.
    along: usize,
    /// Its padded input position along the slab's axis, relative to the slab's origin: 0 where that
    /// is the last axis.
    place: usize,
    /// Elements of X from the slab's origin to it; wraps.
    source: usize,
    /// Whether it is padding along an axis behind the slab's.
    is_padding: bool,
}

/// Where a slab begins: its output position along each axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slab {
    /// The linear index of the first output position.
    pub(crate) first: usize,
    /// The linear index of its position on the axes before the slab's, and the first position on
    /// the slab's axis.
    outer: usize,
    start: usize,
    /// Positions on the slab's axis; fewer than the extent in the last slab.
    pub(crate) extent: usize,
}

/// The sizes of planes, without their tables: cheap, for choosing the slab.
pub(crate) struct Sizes {
    pub(crate) channel_len: usize,
    /// Columns of a slab, garbage included.
    pub(crate) columns: usize,
    /// Slabs of the output.
    pub(crate) slabs: usize,
}

/// How far the view of the last tap is shifted along an axis.
fn reach(axis: &Axis) -> usize {
    (axis.kernel - 1) * axis.dilation / axis.stride
}

/// How far the view of the last of the taps with the phase of tap `tap` is shifted.
fn shift(axis: &Axis, tap: usize) -> usize {
    let period = period(axis);
    (axis.kernel - 1 - (axis.kernel - 1 - tap) % period) * axis.dilation / axis.stride
}

/// Whether some taps' views are shifted ones of others.
pub(crate) fn is_shifted(axes: &[Axis]) -> bool {
    axes.iter().any(|axis| reach(axis) > 0)
}

/// After how many taps of an axis their phases repeat: tap k reads phase `k * dilation % stride`,
/// and so do the taps `period` further on, but none between.
pub(crate) fn period(axis: &Axis) -> usize {
    axis.stride / gcd(axis.stride, axis.dilation)
}

/// The number of phases that taps read: the i-th of them is tap i's.
fn phases(axis: &Axis) -> usize {
    axis.kernel.min(period(axis))
}

/// Whether a position along a padded axis is padding.
fn is_padding(axis: &Axis, position: usize) -> bool {
    position.checked_sub(axis.pad_begin).is_none_or(|position| position >= axis.input)
}

/// Positions along axis `i` of a slab with `extent` positions on `axis`.
pub(crate) fn positions_on(axes: &[Axis], (axis, extent): (usize, usize), i: usize) -> usize {
    match i.cmp(&axis) {
        Ordering::Less => 1,
        Ordering::Equal => extent,
        Ordering::Greater => axes[i].output,
    }
}

/// Elements of a row of the planes with `len` of its own: with those that let all rows begin at
/// cache lines, where no columns of garbage come of it and they are few. Stores that cross into the
/// next line take half as long again.
fn row_len(len: usize, is_aligned: bool) -> Option<usize> {
    let whole = len.checked_next_multiple_of(LINE)?;
    Some(if is_aligned && whole - len <= len / MOST_SLACK { whole } else { len })
}

/// Elements of f32 of a cache line, and the share of a row that may be added to it.
const LINE: usize = 16;
const MOST_SLACK: usize = 4;

/// The sizes for slabs of `extent` on `axis`; none if they do not fit 32-bit offsets.
pub(crate) fn sizes(axes: &[Axis], axis: usize, extent: usize, is_aligned: bool) -> Option<Sizes> {
    let (mut plane, mut columns, mut slabs) = (1_usize, 1_usize, 1_usize);
    for (i, a) in axes.iter().enumerate().rev() {
        let here = positions_on(axes, (axis, extent), i);
        columns = (here - 1).checked_mul(plane)?.checked_add(columns)?;
        let span = here.checked_add(reach(a))?;
        plane = plane.checked_mul(row_len(span, is_aligned && i > 0 && i + 1 == axes.len())?)?;
        slabs = slabs.checked_mul(a.output.div_ceil(here))?;
    }
    let phases: usize = axes.iter().try_fold(1_usize, |n, a| n.checked_mul(phases(a)))?;
    let channel_len = padded(plane.checked_mul(phases)?)?;
    u32::try_from(channel_len.checked_mul(64)?).ok()?;
    Some(Sizes { channel_len, columns, slabs })
}

/// What is said where the planes exceed `bytes` or 32-bit offsets: with the axis along which taps
/// lie furthest apart.
pub(crate) fn too_large(axes: &[Axis], bytes: usize) -> String {
    let furthest = axes.iter().enumerate().max_by_key(|(_, axis)| reach(axis));
    let furthest = furthest.map(|(i, axis)| {
        let Axis { input, kernel, stride, dilation, pad_begin, pad_end, .. } = axis;
        alloc::format!(
            "spatial axis {i} has input {input}, pads {pad_begin} + {pad_end}, kernel {kernel}, stride {stride}, dilation {dilation}"
        )
    });
    alloc::format!("the padded planes exceed {bytes} bytes or 32-bit offsets: {}", furthest.unwrap_or_default())
}

/// A length of at least `len` that is an odd number of cache lines of f32, so that equal positions
/// of many channels do not share a cache set.
pub(crate) fn padded(len: usize) -> Option<usize> {
    let lines = len.div_ceil(16);
    (lines + 1 - lines % 2).checked_mul(16)
}

/// Channels of a block of K with at most `most` steps (one channel's taps may be more). It depends
/// on the operator alone, so that packed weights fit every input size.
pub(crate) fn channels_per_block(channels: usize, taps: usize, most: usize) -> usize {
    let most = (most / taps).max(1);
    channels.div_ceil(channels.div_ceil(most).max(1)).max(1)
}

/// The tap and the channel of step `k`: K is ordered by blocks of channels, then taps, then
/// channels of the block.
pub(crate) fn step_of(k: usize, channels: usize, taps: usize, block: usize) -> (usize, usize) {
    let first = k / (block * taps) * block;
    let width = block.min(channels - first);
    let within = k - first * taps;
    (within / width, first + within % width)
}

/// What the choice of the slab depends on.
pub(crate) struct SlabChoice {
    /// Images times groups.
    pub(crate) images: usize,
    /// Channels of a block of K.
    pub(crate) block: usize,
    /// Bytes that the planes and sums of a slab should not exceed.
    pub(crate) budget: usize,
    /// Bytes of a value.
    pub(crate) bytes: usize,
    pub(crate) threads: usize,
    /// Slabs that each thread should have, at least.
    pub(crate) per_thread: usize,
    /// Whether rows may be longer than they need be, to begin at cache lines.
    pub(crate) is_aligned: bool,
}

/// Slabs that each thread may have: several, so that threads end at about the same time whatever
/// holds one up, or one, whose border and last vectors weigh less.
pub(crate) const PER_THREAD: [usize; 2] = [2, 1];
/// Bytes of the planes of a slab, at the most: far-reaching kernels (large dilation) beyond that
/// are for lowerings that copy only what taps see.
pub(crate) const MOST_BYTES: usize = 32 << 20;
/// Columns of a slab, at the most: more gain nothing, and tables grow with them.
const MOST_COLUMNS: usize = 8192;
/// Columns below which a slab is halved at the most for the threads' sake: its planes' borders
/// would weigh too much.
const LEAST_COLUMNS: usize = 192;

/// Channels of a block from which on the next one's rows are fetched ahead: few channels are read
/// like one.
pub(crate) const FETCHED_CHANNELS: usize = 8;
/// Bytes of the L2 cache that a slab, its sums and a block of A take, at the most, however large
/// the cache is: what streams by drives more than that out before it is read again. (Emerald
/// Rapids, with 2 MiB, was up to 20 % slower with larger slabs.)
const MOST_L2_BYTES: usize = 512 << 10;

/// The bytes of the L2 cache that a slab, its sums and a block of A take.
pub(crate) fn slab_bytes(machine: &Machine) -> usize {
    (machine.l2_bytes / 2).min(MOST_L2_BYTES)
}

/// The budget of a slab beside a block of A of `a_block` bytes, all in the L2 cache.
pub(crate) fn budget_beside(machine: &Machine, a_block: usize) -> usize {
    slab_bytes(machine).saturating_sub(a_block.min(a_block_bytes(machine))).max(machine.l2_bytes / 4)
}

impl SlabChoice {
    /// The slab's axis and extent: as much of the output as keeps the planes of a block of
    /// channels, the sums (`sums` of the columns) and a block of A within the L2 cache, but no more
    /// than leaves every thread its slabs. None if the planes are too large.
    pub(crate) fn slab(&self, axes: &[Axis], sums: impl Fn(usize) -> usize) -> Option<(usize, usize, Sizes)> {
        let fits = |axis: usize, extent: usize| {
            sizes(axes, axis, extent, self.is_aligned).is_some_and(|sizes| {
                let values = sizes.channel_len.saturating_mul(self.block).saturating_add(sums(sizes.columns));
                values.saturating_mul(self.bytes) <= self.budget && sizes.columns <= MOST_COLUMNS
            })
        };
        // The outermost axis that can be cut so that a slab fits, and the largest extent on it:
        // sizes grow with it.
        let axis = (0..axes.len() - 1).find(|&axis| fits(axis, 1)).unwrap_or(axes.len() - 1);
        let whole = axes[axis].output;
        let (mut low, mut high) = (1, whole);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(axis, middle) { low = middle } else { high = middle - 1 }
        }
        let fitting = sizes(axes, axis, low, self.is_aligned)?;
        let slabs = self.images * fitting.slabs;
        // Positions on the axes before, of all images: each is cut alike.
        let others = slabs / whole.div_ceil(low).max(1);
        if self.threads > 1 && slabs < self.per_thread * self.threads {
            let smaller = (low * slabs).div_ceil(self.per_thread * self.threads);
            let least = (low * LEAST_COLUMNS).div_ceil(fitting.columns);
            low = smaller.max(least).min(low);
        }
        // Slabs of equal extent, and threads with as many of them.
        let extent = even_share(whole, low, others, self.threads);
        let extent = whole.div_ceil(whole.div_ceil(extent));
        let sizes = sizes(axes, axis, extent, self.is_aligned)?;
        let bytes = sizes.channel_len.checked_mul(self.block)?.checked_mul(self.bytes)?;
        (bytes <= MOST_BYTES).then_some((axis, extent, sizes))
    }
}

impl PaddedPlanes {
    pub(crate) fn new(geometry: &Geometry, axis: usize, extent: usize, is_aligned: bool) -> Self {
        let axes = geometry.axes.clone();
        let rank = axes.len();
        let here = |i: usize| positions_on(&axes, (axis, extent), i);
        let spans: Vec<_> = (0..rank).map(|i| here(i) + reach(&axes[i])).collect();
        let mut pitches = vec![1; rank];
        for i in (1..rank).rev() {
            let row = row_len(spans[i], is_aligned && i + 1 == rank).expect("sizes() found that the planes fit");
            pitches[i - 1] = pitches[i] * row;
        }
        let plane = pitches[0] * spans[0];
        let phases: Vec<_> = axes.iter().map(phases).collect();
        let periods: Vec<_> = axes.iter().map(period).collect();
        let kernel: Vec<_> = axes.iter().map(|a| a.kernel).collect();
        let mut taps = Vec::with_capacity(kernel.iter().product());
        for_each_position(&kernel, |tap| {
            let (mut number, mut shift) = (0, 0);
            for (i, k) in tap.iter().enumerate() {
                number = number * phases[i] + k % periods[i];
                shift += k * axes[i].dilation / axes[i].stride * pitches[i];
            }
            taps.push(number * plane + shift);
        });
        let last = rank - 1;
        let mut steps = vec![1_usize; rank];
        for i in (1..rank).rev() {
            steps[i - 1] = steps[i].wrapping_mul(axes[i].input);
        }
        let offset = |i: usize, tap: usize| tap * axes[i].dilation % axes[i].stride;
        let along = 0..phases[last];
        let mut along: Vec<_> = along.map(|tap| PhasePick { offset: offset(last, tap), dst: tap * plane }).collect();
        along.sort_unstable_by_key(|phase| phase.offset);
        let planes: usize = phases.iter().product();
        let count = planes / phases[last] * spans[..last].iter().product::<usize>();
        let (mut rows, mut leading) = (Vec::with_capacity(count), Vec::with_capacity(count * axis));
        let mut number = 0;
        for_each_position(&phases[..last], |outer_phase| {
            for_each_position(&spans[..last], |outer| {
                // Rows that no tap of their phases reaches stay as they are: columns of garbage
                // alone see them.
                let position = |i: usize| outer[i].saturating_sub(shift(&axes[i], outer_phase[i]));
                if (0..last).any(|i| position(i) >= here(i)) {
                    return;
                }
                let place = |i: usize| offset(i, outer_phase[i]) + outer[i] * axes[i].stride;
                let at = outer.iter().zip(&pitches).map(|(o, pitch)| o * pitch).sum::<usize>();
                leading.extend((0..axis).map(place));
                rows.push(PlaneRow {
                    at: number * phases[last] * plane + at,
                    along: if axis < last { position(axis) } else { 0 },
                    place: if axis < last { place(axis) } else { 0 },
                    source: (0..last).fold(0, |source: usize, i| {
                        source.wrapping_add(place(i).wrapping_sub(axes[i].pad_begin).wrapping_mul(steps[i]))
                    }),
                    is_padding: (axis + 1..last).any(|i| is_padding(&axes[i], place(i))),
                });
            });
            number += 1;
        });
        let channel_len = padded(plane * planes).expect("sizes() found that the planes fit");
        Self { axes, axis, extent, spans, pitches, channel_len, taps, phases: along, steps, rows, leading }
    }

    /// Slabs along the slab's axis.
    fn slabs_along(&self) -> usize {
        self.axes[self.axis].output.div_ceil(self.extent)
    }

    /// Slab number `index`.
    pub(crate) fn slab(&self, index: usize) -> Slab {
        let (outer, along) = (index / self.slabs_along(), index % self.slabs_along());
        let inner: usize = self.axes[self.axis + 1..].iter().map(|a| a.output).product();
        let output = self.axes[self.axis].output;
        let start = along * self.extent;
        Slab { first: (outer * output + start) * inner, outer, start, extent: self.extent.min(output - start) }
    }

    /// The output positions of slab number `index`, which are neighbours.
    pub(crate) fn positions(&self, index: usize) -> core::ops::Range<usize> {
        let slab = self.slab(index);
        slab.first..slab.first + self.slab_len(&slab)
    }

    /// Whether a slab has the full extent.
    pub(crate) fn is_full(&self, slab: &Slab) -> bool {
        slab.extent == self.extent
    }

    /// The axis that is cut into slabs.
    pub(crate) fn axis(&self) -> usize {
        self.axis
    }

    /// Output positions of a slab.
    pub(crate) fn slab_len(&self, slab: &Slab) -> usize {
        slab.extent * self.axes[self.axis + 1..].iter().map(|a| a.output).product::<usize>()
    }

    /// Where row `row` of a slab's outputs along the last axis begins, for a tap with offset 0.
    pub(crate) fn row_offset(&self, mut row: usize) -> usize {
        let mut at = 0;
        for i in (self.axis..self.axes.len() - 1).rev() {
            let extent = if i == self.axis { usize::MAX } else { self.axes[i].output };
            at += row % extent * self.pitches[i];
            row /= extent;
        }
        at
    }

    /// The rows of a block of k: taps, and for each of them the channels of the block.
    pub(crate) fn offsets(&self, block: usize) -> RowOffsets {
        let mut offsets = Vec::with_capacity(self.taps.len() * block);
        for tap in &self.taps {
            for c in 0..block {
                offsets.push(u32::try_from(c * self.channel_len + tap).expect("sizes() bounds the offsets"));
            }
        }
        RowOffsets::new(offsets)
    }

    /// Where the columns of a slab with `extent` positions on its axis go, in vectors of `lanes`.
    pub(crate) fn map(&self, extent: usize, lanes: usize) -> StoreMap {
        let here = |i: usize| positions_on(&self.axes, (self.axis, extent), i);
        let rank = self.axes.len();
        let columns = (0..rank).map(|i| (here(i) - 1) * self.pitches[i]).sum::<usize>() + 1;
        // The masks, a row of real columns at a time.
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

    /// Rows of outputs along the last axis, in a slab with `extent` positions on its axis.
    fn rows_of(&self, extent: usize) -> usize {
        let last = self.axes.len() - 1;
        (self.axis..last).map(|i| if i == self.axis { extent } else { self.axes[i].output }).product()
    }

    /// Fills the planes of consecutive channels for one slab; `x` begins with the first of them.
    pub(crate) fn fill<T: Element>(&self, isa: Isa, slab: &Slab, x: &[T], planes: &mut [T::Acc]) {
        let last = self.axes.len() - 1;
        let axis = &self.axes[self.axis];
        let origin = slab.start * axis.stride;
        let is_cut_within_rows = self.axis == last;
        let first = if is_cut_within_rows { origin } else { 0 };
        let mut before = if is_cut_within_rows { 0 } else { origin.wrapping_mul(self.steps[self.axis]) };
        let mut rest = slab.outer;
        for (axis, step) in self.axes[..self.axis].iter().zip(&self.steps).rev() {
            before = before.wrapping_add((rest % axis.output * axis.stride).wrapping_mul(*step));
            rest /= axis.output;
        }
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.along < slab.extent);
        let rows = rows.map(|(number, row)| {
            let is_padding = row.is_padding
                || (!is_cut_within_rows && is_padding(axis, origin + row.place))
                || (self.axis > 0 && self.is_padding_before(number, slab));
            RowPick { src: (!is_padding).then(|| before.wrapping_add(row.source)), dst: row.at }
        });
        let (channels, src_pitch) = (planes.len() / self.channel_len, self.steps[0].wrapping_mul(self.axes[0].input));
        let picks = Picks {
            planes: channels,
            src_pitch,
            dst_pitch: self.channel_len,
            rows: &[],
            width: self.axes[last].input,
            first: first as isize - self.axes[last].pad_begin as isize,
            stride: self.axes[last].stride,
            phases: &self.phases,
            len: self.spans[last],
            ahead: if channels < FETCHED_CHANNELS { 0 } else { src_pitch },
        };
        pick_rows(isa, x, &picks, rows, planes);
    }

    /// Whether a row of a slab's planes is padding along an axis before the slab's.
    fn is_padding_before(&self, row: usize, slab: &Slab) -> bool {
        let mut rest = slab.outer;
        let places = &self.leading[row * self.axis..(row + 1) * self.axis];
        places.iter().zip(&self.axes).rev().any(|(place, axis)| {
            let origin = rest % axis.output * axis.stride;
            rest /= axis.output;
            is_padding(axis, origin + place)
        })
    }
}

/// Rows whose places are found at a time, once for all planes.
const ROWS_AT_A_TIME: usize = 32;

/// Copies the phases of `rows`, as `picks` says but for its own rows.
pub(crate) fn pick_rows<T: Element>(
    isa: Isa,
    x: &[T],
    picks: &Picks<'_>,
    rows: impl Iterator<Item = RowPick>,
    planes: &mut [T::Acc],
) {
    let kernel = weave_kernels::<T::Acc>(isa).first();
    let mut rows = rows.peekable();
    let mut some = [RowPick::default(); ROWS_AT_A_TIME];
    while rows.peek().is_some() {
        let count = some.iter_mut().zip(&mut rows).map(|(some, row)| *some = row).count();
        let picks = Picks { rows: &some[..count], ..*picks };
        match (T::as_acc(x), kernel) {
            (Some(x), Some(kernel)) => kernel.pick(x, &picks, planes),
            _ => convert(isa, x, &picks, planes),
        }
    }
}

/// What [`WeaveKernel::pick`](convoke_kernels::WeaveKernel::pick) does, with a conversion.
fn convert<T: Element>(isa: Isa, x: &[T], picks: &Picks<'_>, planes: &mut [T::Acc]) {
    for (plane, row) in (0..picks.planes).flat_map(|plane| picks.rows.iter().map(move |row| (plane, row))) {
        for phase in picks.phases {
            let at = plane * picks.dst_pitch + row.dst + phase.dst;
            let dst = &mut planes[at..at + picks.len];
            let Some(src) = row.src else {
                dst.fill(T::Acc::ZERO);
                continue;
            };
            let row = &x[plane * picks.src_pitch + src..][..picks.width];
            // Elements of the phase that are not padding: first + i * stride in 0..width.
            let first = picks.first + phase.offset as isize;
            let within = |end: usize| end.saturating_add_signed(-first).div_ceil(picks.stride).min(picks.len);
            let (from, to) = (within(0), within(picks.width));
            dst[..from].fill(T::Acc::ZERO);
            if from < to {
                let begin = (from * picks.stride).wrapping_add_signed(first);
                stream::widen_strided(isa, &row[begin..], picks.stride, &mut dst[from..to]);
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

    use super::{period, phases, shift};
    use crate::Axis;

    #[test]
    fn no_tap_of_a_phase_is_shifted_further_than_its_last() {
        let lengths = || 1..=8;
        for (kernel, stride, dilation) in
            lengths().flat_map(|k| lengths().flat_map(move |s| lengths().map(move |d| (k, s, d))))
        {
            let axis = Axis { input: 100, kernel, output: 1, stride, dilation, pad_begin: 0, pad_end: 0 };
            for tap in 0..phases(&axis) {
                let of_phase = (tap..kernel).step_by(period(&axis));
                assert_eq!(
                    of_phase.map(|k| k * dilation / stride).max(),
                    Some(shift(&axis, tap)),
                    "{axis:?}, tap {tap}"
                );
            }
        }
    }

    #[test]
    fn the_first_taps_of_a_period_meet_every_phase_once() {
        let lengths = || 1..=8;
        for (kernel, stride, dilation) in
            lengths().flat_map(|k| lengths().flat_map(move |s| lengths().map(move |d| (k, s, d))))
        {
            let axis = Axis { input: 100, kernel, output: 1, stride, dilation, pad_begin: 0, pad_end: 0 };
            let phase = |tap: usize| tap * dilation % stride;
            let mut met: Vec<_> = (0..kernel).map(phase).collect();
            assert!((0..kernel).all(|tap| phase(tap) == phase(tap % period(&axis))));
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), phases(&axis), "kernel {kernel}, stride {stride}, dilation {dilation}");
        }
    }
}
