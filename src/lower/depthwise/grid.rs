//! The planes of a unit: their phases, rows and strips, and the tables of what kernels read in
//! them, or in X.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{DepthwiseKernel, DirectTable, MOST_TAPS, Real, Slots, TapTable, gcd};

use crate::lower::engine::RowPanels;
pub(super) use crate::lower::layout::Along;
use crate::lower::shares::ROWS_FOR_SHARED_ROW;
use crate::lower::view::period;
use crate::machine::Machine;
use crate::{Axis, Geometry};

/// Bytes of the planes of a unit, at most, unless strips became so low that the rows at their
/// borders count: the planes stay in the L1 cache, with room for Y.
fn planes_bytes(machine: &Machine) -> usize {
    machine.l1_bytes / 3 * 2
}

/// Bytes of the planes of a unit, and bytes of its sums, at most, so that large kernels do not
/// take memory without limit.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// One phase of W in a row of a plane: element i is padded input position `phase + i * stride`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowPhase {
    pub(super) phase: usize,
    /// Where element 0 is, from the row's beginning.
    pub(super) base: usize,
    /// The elements from `from` to `to` are not padding.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Tap columns of a plane that have the same taps along H.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ColumnGroup {
    /// The first tap along H.
    pub(super) first: usize,
    /// The number of taps of a column.
    pub(super) taps: usize,
}

/// The planes of a unit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    pub(super) along: Along,
    /// Elements of the vectors that planes are made of.
    pub(super) lanes: usize,
    /// Elements of a kernel's vectors; perhaps fewer.
    pub(super) nr: usize,
    /// Whether the rows of tiles are the whole vectors of the only row of output, so that a tile has
    /// several sums. That is done in planes: X would ask for masks in the middle of a tile.
    pub(super) is_one_row: bool,
    /// The axes before H and W. Their taps are further planes.
    pub(super) outer: Vec<Axis>,
    pub(super) h: Axis,
    pub(super) w: Axis,
    /// Input channels of a group.
    pub(super) channels: usize,
    /// Taps of the outer axes, all together.
    pub(super) outer_taps: usize,
    /// The phases of a row; empty along channels, where a row is not split.
    pub(super) phases: Vec<RowPhase>,
    /// Elements of a row of a plane.
    pub(super) pitch: usize,
    /// Output rows of a strip; the last one of an outer position may have fewer.
    pub(super) extent: usize,
    /// Elements of a plane. A group has a plane for each input channel and outer tap.
    pub(super) plane: usize,
}

impl Grid {
    /// The rows of the planes, without strips; none where rows are too long.
    pub(super) fn new(
        geometry: &Geometry,
        along: Along,
        (lanes, nr): (usize, usize),
        is_one_row: bool,
    ) -> Option<Self> {
        let (outer, h, w) = match *geometry.axes.as_slice() {
            [axis] if along == Along::Rows => (Vec::new(), Axis::UNIT, axis),
            [axis] => (Vec::new(), axis, Axis::UNIT),
            [ref outer @ .., h, w] => (outer.to_vec(), h, w),
            [] => return None,
        };
        let (phases, pitch) = match along {
            Along::Rows => row_phases(&w, lanes)?,
            Along::Channels => {
                let span = (w.output - 1).checked_mul(w.stride)?.checked_add(w.effective_kernel())?;
                (Vec::new(), span.checked_mul(lanes)?)
            }
        };
        let outer_taps = outer.iter().try_fold(1_usize, |n, a| n.checked_mul(a.kernel))?;
        let channels = geometry.in_channels_per_group();
        Some(Self {
            along,
            lanes,
            nr,
            is_one_row,
            outer,
            h,
            w,
            channels,
            outer_taps,
            phases,
            pitch,
            extent: 0,
            plane: 0,
        })
    }

    /// The tiles of a strip with kernels of up to `most` rows.
    pub(super) fn panels(&self, most: usize) -> RowPanels {
        let rows = if self.is_one_row { self.w.output / self.nr } else { self.extent.div_ceil(self.tile_step()) };
        RowPanels::new(rows.max(1), most)
    }

    /// Rows of a plane for a strip of `extent` output rows.
    pub(super) fn rows(&self, extent: usize) -> usize {
        (extent - 1) * self.h.stride + self.h.effective_kernel()
    }

    /// Elements of a plane of a strip. Along channels there is one more vector, which takes what no
    /// tap reads.
    pub(super) fn plane_len(&self, extent: usize) -> Option<usize> {
        let rows = (extent - 1).checked_mul(self.h.stride)?.checked_add(self.h.effective_kernel())?;
        let spare = if self.along == Along::Channels { self.lanes } else { 0 };
        rows.checked_mul(self.pitch)?.checked_add(spare)
    }

    /// Planes of a group.
    pub(super) fn planes(&self) -> usize {
        self.channels * self.outer_taps
    }

    /// Weights of an output channel: the taps of all planes.
    pub(super) fn taps(&self) -> usize {
        self.planes() * self.h.kernel * self.w.kernel
    }

    /// Elements of the planes of a group, for strips of `extent` rows; none if they exceed
    /// `most_bytes`.
    pub(super) fn group_len(&self, extent: usize, most_bytes: usize, element_bytes: usize) -> Option<usize> {
        let len = self.plane_len(extent)?.checked_mul(self.channels)?.checked_mul(self.outer_taps)?;
        (len.checked_mul(element_bytes)? <= most_bytes).then_some(len)
    }

    /// Output rows from one row of a tile to the next one. The rows of X that these two see lie a
    /// multiple of the dilation apart, so that their taps share them. A single tap shares nothing,
    /// and its dilation may be any number.
    pub(super) fn tile_step(&self) -> usize {
        let step = self.h.dilation / gcd(self.h.stride, self.h.dilation);
        if self.h.kernel == 1 { step.min(self.h.output) } else { step }
    }

    /// Sets the strips, `strips` of them at least. They are as high as [`planes_bytes`] allows,
    /// and higher if the rows that two strips share would weigh much. False if the planes are too
    /// large.
    pub(super) fn cut(&mut self, machine: &Machine, element_bytes: usize, mr: usize, strips: usize) -> bool {
        let output = self.h.output;
        let fits = |extent: usize, bytes: usize| self.group_len(extent, bytes, element_bytes).is_some();
        let highest = |bytes: usize| {
            let (mut low, mut high) = (0, output);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle, bytes) { low = middle } else { high = middle - 1 }
            }
            low
        };
        let tile = mr.saturating_mul(self.tile_step());
        let mut extent = highest(planes_bytes(machine));
        if extent < output {
            let shared = self.h.effective_kernel() / self.h.stride;
            let wanted = ROWS_FOR_SHARED_ROW.saturating_mul(shared).max(tile).min(output);
            if extent < wanted {
                extent = if fits(wanted, machine.l2_bytes / 2) { wanted } else { highest(machine.l2_bytes / 2).max(1) };
            }
            if !fits(extent, MOST_BYTES) {
                return false;
            }
        }
        let parts = output.div_ceil(extent).max(strips.min(output.div_ceil(tile)));
        extent = output.div_ceil(parts);
        // A strip of several tiles has whole ones, if there are enough strips then.
        let whole = extent.next_multiple_of(tile);
        let enough = strips.min(output.div_ceil(extent));
        if extent > tile && output.div_ceil(whole) >= enough && fits(whole, machine.l2_bytes / 2) {
            extent = whole.min(output);
        }
        let (Some(plane), Some(group)) = (self.plane_len(extent), self.group_len(extent, MOST_BYTES, element_bytes))
        else {
            return false;
        };
        self.extent = extent;
        self.plane = plane;
        u32::try_from(group).is_ok()
    }

    pub(super) fn strips(&self) -> usize {
        self.h.output.div_ceil(self.extent)
    }

    /// Output positions of the outer axes.
    pub(super) fn outer_positions(&self) -> usize {
        self.outer.iter().map(|a| a.output).product()
    }

    /// Whether a unit has all rows of the planes of an image: their padding is always in the same
    /// place then.
    pub(super) fn is_whole(&self) -> bool {
        self.strips() == 1 && self.outer.is_empty()
    }

    /// Whether there are kernels that copy rows into planes along rows: for stride 1, and for both
    /// phases of stride 2.
    pub(super) fn is_vectorised(&self) -> bool {
        self.w.stride == 1 || (self.w.stride == 2 && self.phases.len() == 2)
    }

    /// The groups of tap columns. Taps along H whose phases are the same see the same rows of a
    /// plane, and are cut into columns of nearly equal length. This depends on the operator alone,
    /// and so does the order of packed weights.
    pub(super) fn column_groups(&self) -> Vec<ColumnGroup> {
        let every = period(&self.h);
        let mut groups = Vec::new();
        for first in 0..every.min(self.h.kernel) {
            let columns = RowPanels::new((self.h.kernel - first).div_ceil(every), MOST_TAPS);
            let group = |i| ColumnGroup { first: first + columns.start(i) * every, taps: columns.height(i) };
            groups.extend((0..columns.count()).map(group));
        }
        groups
    }

    /// For each packed weight of an output channel, its index in the channel's filter.
    pub(super) fn order(&self) -> Vec<usize> {
        let every = period(&self.h);
        let mut order = Vec::new();
        for ColumnGroup { first, taps } in self.column_groups() {
            for plane in 0..self.planes() {
                for kx in 0..self.w.kernel {
                    let tap = |k: usize| (plane * self.h.kernel + first + k * every) * self.w.kernel + kx;
                    order.extend((0..taps).map(tap));
                }
            }
        }
        order
    }

    /// The table for kernels that read planes.
    pub(super) fn table(&self) -> TapTable {
        let mut groups = Vec::new();
        for ColumnGroup { first, taps } in self.column_groups() {
            let mut offsets = Vec::with_capacity(self.planes() * self.w.kernel);
            for plane in 0..self.planes() {
                for kx in 0..self.w.kernel {
                    let at = plane * self.plane + first * self.h.dilation * self.pitch + self.tap_offset(kx);
                    offsets.push(u32::try_from(at).expect("cut() bounds the offsets"));
                }
            }
            groups.push((taps, offsets));
        }
        // A step leads to the next tap of a column, and to the next row of a tile. Where a strip has
        // neither, it may be as large as any stride. Of a single row, a step is a vector.
        let has_steps = self.tile_step() < self.extent || groups.iter().any(|(taps, _)| *taps > 1);
        let step = match has_steps {
            true => self.tile_step() * self.h.stride * self.pitch,
            false if self.is_one_row => self.nr,
            false => 0,
        };
        TapTable::new(&groups, step)
    }

    /// The table by which `kernel` reads X itself. None if it cannot: it does so along rows, for
    /// layers on one or two axes with few taps, equal strides of 1 or 2, and no dilation along H.
    pub(super) fn direct_table<A: Real>(&self, kernel: &DepthwiseKernel<A>) -> Option<DirectTable> {
        let (taps, stride) = (self.h.kernel, self.h.stride);
        let is_plain = self.along == Along::Rows && self.outer.is_empty();
        // Kernels leave out at most as many rows of padding as a column reaches.
        let is_short = self.h.pad_begin < taps && self.h.pad_end < taps;
        let is_small = self.h.input < DirectTable::MOST_ROWS && self.h.output < DirectTable::MOST_ROWS - kernel.mr();
        if !is_plain || !is_short || !is_small || self.h.dilation > 1 || self.w.stride != stride {
            return None;
        }
        if self.w.kernel.checked_mul(self.channels).is_none_or(|columns| columns > DirectTable::MOST_COLUMNS) {
            return None;
        }
        let position = |kx: usize| (kx * self.w.dilation) as isize - self.w.pad_begin as isize;
        let positions: Vec<_> = (0..self.w.kernel).map(position).collect();
        let channels = (self.channels, self.h.input * self.w.input);
        let table = DirectTable::new(taps, stride, &positions, channels, self.w.input)?;
        table.serves(self.w.output, kernel).then_some(table)
    }

    /// How far from a row's beginning tap `kx` along W is read for the first output.
    pub(super) fn tap_offset(&self, kx: usize) -> usize {
        let at = kx * self.w.dilation;
        if self.along == Along::Channels {
            return at * self.lanes;
        }
        let phase =
            self.phases.iter().find(|p| p.phase == at % self.w.stride).expect("row_phases() met every tap's phase");
        phase.base + at / self.w.stride
    }

    /// Along channels: where the positions of a strip's rows of X go in a plane.
    pub(super) fn slots(&self) -> Slots {
        let rows = self.rows(self.extent);
        let spare = rows * self.pitch;
        let mut slots = Vec::with_capacity(rows * self.w.input);
        for row in 0..rows {
            for x in 0..self.w.input {
                let at = (x + self.w.pad_begin) * self.lanes;
                let slot = if at < self.pitch { row * self.pitch + at } else { spare };
                slots.push(u32::try_from(slot).expect("cut() bounds the planes"));
            }
        }
        Slots::new(slots)
    }

    /// The H x W plane of a channel of X that output position `position` of the outer axes sees
    /// through their tap `tap`; none where it is padding.
    pub(super) fn outer_source(&self, mut position: usize, mut tap: usize) -> Option<usize> {
        let (mut source, mut step) = (0, 1);
        for axis in self.outer.iter().rev() {
            source += axis.input_position(position % axis.output, tap % axis.kernel)? * step;
            position /= axis.output;
            tap /= axis.kernel;
            step *= axis.input;
        }
        Some(source)
    }

    /// The rows of a plane that are not padding, and the row of X that is the first of them, for a
    /// strip of `extent` output rows from row `start` on.
    pub(super) fn rows_inside(&self, start: usize, extent: usize) -> (Range<usize>, usize) {
        let (top, rows) = (start * self.h.stride, self.rows(extent));
        let low = self.h.pad_begin.saturating_sub(top).min(rows);
        // Rows of X without elements count as padding.
        let input = if self.w.input == 0 { 0 } else { self.h.input };
        let high = (self.h.pad_begin + input).saturating_sub(top).clamp(low, rows);
        (low..high, (top + low).saturating_sub(self.h.pad_begin))
    }
}

/// Phases of W, at most: rows grow with them, and the table of their taps.
const MOST_PHASES: usize = 512;

/// The phases of W that some tap reads, and the length of a row that holds them all, for outputs in
/// vectors of `lanes`. None if there are too many, or the row is longer than the address space.
fn row_phases(w: &Axis, lanes: usize) -> Option<(Vec<RowPhase>, usize)> {
    let vectors = w.output.div_ceil(lanes).checked_mul(lanes)?;
    let (mut phases, mut at) = (Vec::<RowPhase>::new(), 0_usize);
    let every = period(w);
    if every.min(w.kernel) > MOST_PHASES {
        return None;
    }
    for first in 0..every.min(w.kernel) {
        let phase = first * w.dilation % w.stride;
        let from = w.pad_begin.saturating_sub(phase).div_ceil(w.stride);
        let to = (w.pad_begin + w.input).saturating_sub(phase).div_ceil(w.stride).max(from);
        // The last tap of this phase.
        let last = first + (w.kernel - 1 - first) / every * every;
        let reach = last.checked_mul(w.dilation)? / w.stride;
        // X begins at a whole vector.
        let base = at.checked_add(from.checked_next_multiple_of(lanes)?)? - from;
        let read = base.checked_add(reach)?.checked_add(vectors)?;
        // Kernels that copy all phases of a row write whole vectors, as many of each phase.
        let written = (base + from).checked_add(w.input.div_ceil(w.stride).checked_next_multiple_of(lanes)?)?;
        at = read.max(written).checked_next_multiple_of(lanes)?;
        phases.push(RowPhase { phase, base, from, to });
    }
    // An odd number of vectors, so that equal positions of many rows do not fall into the same
    // cache set.
    let pitch = if (at / lanes).is_multiple_of(2) { at.checked_add(lanes)? } else { at };
    Some((phases, pitch))
}
