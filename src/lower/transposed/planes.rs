//! The padded copy of a slab of X that all phases read.
//!
//! A slab is a part of the positions of a phase: one position on the axes before one of them, a
//! run of positions on that axis, and all positions behind it. All phases have the same slabs.
//! Position v of a phase reads element v + shift of the planes along each axis.
//!
//! Rows of the copy are longer than those of a phase by the reach of the shifts: columns of garbage lie
//! between the rows.

use alloc::vec::Vec;

use convoke_kernels::Isa;
use convoke_kernels::weave::{PhasePick, Picks, RowPick};

use super::phases::AxisPhases;
use crate::lower::contract::Request;
use crate::lower::planes::{
    FETCHED_CHANNELS, PER_THREAD, SlabCut, SlabLimits, for_each_position, pick_rows, positions_on, slab_bytes,
};
use crate::{Axis, Element};

pub(super) struct PhasePlanes {
    /// The phases' positions as axes of ordinary convolutions.
    axes: Vec<Axis>,
    /// The axis that is cut into slabs, and positions of a slab on it.
    axis: usize,
    extent: usize,
    /// Elements from one position to the next along each axis.
    pub(super) pitches: Vec<usize>,
    /// Elements of a row along the last axis.
    span: usize,
    /// Elements of the copy of a channel, without and with what fills up its cache lines.
    plane: usize,
    pub(super) channel_len: usize,
    /// Whether a slab is one run of X: nothing is shifted or padded.
    is_one_run: bool,
    /// Columns and rows of positions of a full slab, and slabs of an image.
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) slabs: usize,
    /// Empty until [`with_tables`](Self::with_tables) makes them.
    tables: PhaseTables,
}

/// Whether the planes of a slab are one run of X, where slabs are cut along axis `cut`.
fn is_one_run(phases: &[AxisPhases], cut: usize) -> bool {
    let is_whole = |(i, p): (usize, &AxisPhases)| match i > cut {
        true => p.positions == p.axis.input,
        false => p.positions <= p.axis.input,
    };
    let is_unmoved = |p: &AxisPhases| p.reach == 0 && p.low == 0;
    phases.iter().all(is_unmoved) && phases.iter().enumerate().all(is_whole)
}

/// Places that are looked up for each row. They take memory in proportion to the number of rows,
/// and so they are made only for the plan that is taken.
#[derive(Default)]
struct PhaseTables {
    /// The rows of a plane: positions along the axes before the last.
    of_plane: Vec<usize>,
    /// The rows of positions of a full slab: likewise, and where each begins among the columns.
    of_slab: Vec<usize>,
    columns: Vec<usize>,
}

/// A slab of an image.
pub(super) struct PhaseSlab<'a> {
    /// Its first position along each axis.
    pub(super) origin: &'a [usize],
    /// Its positions on the axis that is cut, and its positions along the last axis.
    pub(super) extent: usize,
    pub(super) width: usize,
}

impl PhasePlanes {
    /// The place of a row that padding crops.
    pub(super) const CROPPED: usize = usize::MAX;

    /// None if the planes are too large. The planes of a slab and its sums, `sums` of its columns,
    /// should not exceed `most_bytes`.
    pub(super) fn new<T: Element>(
        request: &Request<'_, T>,
        phases: &[AxisPhases],
        most_bytes: usize,
        sums: impl Fn(usize) -> usize,
    ) -> Option<Self> {
        let Request { geometry, machine, threads, .. } = *request;
        let (channels, bytes) = (geometry.in_channels_per_group(), size_of::<T::Acc>());
        let last = phases.len() - 1;
        let axes: Vec<_> = phases.iter().map(AxisPhases::as_conv).collect();
        let images = geometry.batch * geometry.group;
        // A slab has all channels.
        let limits = SlabLimits {
            images,
            block: channels,
            budget_bytes: slab_bytes(machine).min(most_bytes),
            value_bytes: bytes,
            threads,
            per_thread: PER_THREAD[0],
        };
        let (cut, sizes) = limits.cut(&axes, sums)?;
        let SlabCut { axis, extent } = cut;
        let here = |i: usize| positions_on(&axes, cut, i);
        let spans: Vec<_> = (0..=last).map(|i| here(i) + phases[i].reach).collect();
        let mut pitches = alloc::vec![1; last + 1];
        for i in (1..=last).rev() {
            pitches[i - 1] = pitches[i] * spans[i];
        }
        let plane = pitches[0] * spans[0];
        let channel_len = crate::lower::planes::padded(plane)?;
        u32::try_from(channel_len.checked_mul(channels)?).ok()?;
        Some(Self {
            is_one_run: is_one_run(phases, axis),
            rows: (0..last).map(here).product(),
            axis,
            extent,
            span: spans[last],
            pitches,
            plane,
            channel_len,
            columns: sizes.columns,
            slabs: sizes.slabs,
            axes,
            tables: PhaseTables::default(),
        })
    }

    /// Makes the tables.
    pub(super) fn with_tables(mut self) -> Self {
        let last = self.axes.len() - 1;
        let cut = SlabCut { axis: self.axis, extent: self.extent };
        let extents: Vec<_> = (0..last).map(|i| positions_on(&self.axes, cut, i)).collect();
        // An axis has as many elements as its pitch goes into that of the axis before it.
        let plane = |i: usize| if i == 0 { self.plane } else { self.pitches[i - 1] };
        let spans: Vec<_> = (0..last).map(|i| plane(i) / self.pitches[i]).collect();
        let mut tables = PhaseTables {
            of_plane: Vec::with_capacity(last * spans.iter().product::<usize>()),
            of_slab: Vec::with_capacity(last * self.rows),
            columns: Vec::with_capacity(self.rows),
        };
        for_each_position(&spans, |row| tables.of_plane.extend_from_slice(row));
        for_each_position(&extents, |row| {
            tables.columns.push(row.iter().zip(&self.pitches).map(|(v, pitch)| v * pitch).sum());
            tables.of_slab.extend_from_slice(row);
        });
        self.tables = tables;
        self
    }

    /// The column where each row of positions of a slab begins.
    pub(super) fn row_columns(&self) -> &[usize] {
        &self.tables.columns
    }

    /// Slabs of an image. The last slab along the axis counts as the part of a full one that it
    /// has.
    pub(super) fn full_slabs(&self) -> f64 {
        let along = &self.axes[self.axis];
        self.slabs as f64 * along.output as f64 / (along.output.div_ceil(self.extent) * self.extent) as f64
    }

    /// Slab number `index`. `origin` has room for one value for each axis.
    pub(super) fn slab<'a>(&self, mut index: usize, origin: &'a mut [usize]) -> PhaseSlab<'a> {
        let along = self.axes[self.axis].output.div_ceil(self.extent);
        origin.fill(0);
        origin[self.axis] = index % along * self.extent;
        index /= along;
        for i in (0..self.axis).rev() {
            origin[i] = index % self.axes[i].output;
            index /= self.axes[i].output;
        }
        let extent = self.extent.min(self.axes[self.axis].output - origin[self.axis]);
        let last = self.axes.len() - 1;
        let width = if self.axis == last { extent } else { self.axes[last].output };
        PhaseSlab { origin, extent, width }
    }

    /// The positions of slab number `index` along an axis.
    pub(super) fn positions(&self, index: usize, axis: usize) -> core::ops::Range<usize> {
        let along = self.axes[self.axis].output.div_ceil(self.extent);
        if axis > self.axis {
            return 0..self.axes[axis].output;
        }
        if axis == self.axis {
            let start = index % along * self.extent;
            return start..self.axes[axis].output.min(start + self.extent);
        }
        let behind: usize = self.axes[axis + 1..self.axis].iter().map(|axis| axis.output).product();
        let position = index / along / behind % self.axes[axis].output;
        position..position + 1
    }

    /// Rows of positions of a slab. They are the first rows of a full slab.
    pub(super) fn rows_of(&self, slab: &PhaseSlab<'_>) -> usize {
        let last = self.axes.len() - 1;
        let on = |i: usize| if i == self.axis { slab.extent } else { self.axes[i].output };
        (self.axis..last).map(on).product()
    }

    /// Columns of a slab.
    pub(super) fn columns_of(&self, slab: &PhaseSlab<'_>) -> usize {
        self.row_columns()[self.rows_of(slab) - 1] + slab.width
    }

    /// The position of a row of a slab along axis `i`, which is not the last.
    pub(super) fn position(&self, slab: &PhaseSlab<'_>, row: usize, i: usize) -> usize {
        slab.origin[i] + self.tables.of_slab[row * (self.axes.len() - 1) + i]
    }

    /// Where the outputs of a row begin in a channel of Y, for phase `r` of the axes before the
    /// last. None if padding crops the row.
    pub(super) fn place(&self, phases: &[AxisPhases], slab: &PhaseSlab<'_>, r: &[usize], row: usize) -> Option<usize> {
        let last = phases.len() - 1;
        let mut at = 0;
        for (i, p) in phases[..last].iter().enumerate() {
            at = at * p.axis.output + p.output(self.position(slab, row, i), r[i])?;
        }
        Some(at * phases[last].axis.output)
    }

    /// The [`place`](Self::place) of each row of the slab, or [`CROPPED`](Self::CROPPED).
    pub(super) fn places(&self, phases: &[AxisPhases], slab: &PhaseSlab<'_>, r: &[usize], places: &mut [usize]) {
        if let [down, along] = phases {
            // The usual case. Rows are short, so that there are many of them.
            for (row, place) in places.iter_mut().enumerate() {
                *place = down.output(slab.origin[0] + row, r[0]).map_or(Self::CROPPED, |o| o * along.axis.output);
            }
            return;
        }
        for (row, place) in places.iter_mut().enumerate() {
            *place = self.place(phases, slab, r, row).unwrap_or(Self::CROPPED);
        }
    }

    /// Fills the planes of neighbouring channels for one slab. `x` begins with the first channel.
    pub(super) fn fill<T: Element>(
        &self,
        isa: Isa,
        phases: &[AxisPhases],
        slab: &PhaseSlab<'_>,
        x: &[T],
        planes: &mut [T::Acc],
    ) {
        let last = phases.len() - 1;
        let channels = planes.len() / self.channel_len;
        // This product may overflow beside an axis without positions. Then there are no rows, and
        // it is not used.
        let src_pitch = phases.iter().fold(1_usize, |n, p| n.wrapping_mul(p.axis.input));
        let picks = Picks {
            planes: channels,
            src_pitch,
            dst_pitch: self.channel_len,
            rows: &[],
            width: phases[last].axis.input,
            first: 0,
            stride: 1,
            phases: &[PhasePick { offset: 0, dst: 0 }],
            len: self.span,
            ahead: if channels < FETCHED_CHANNELS { 0 } else { src_pitch },
        };
        if self.is_one_run {
            // The slab is copied as a single row.
            let at = slab.origin.iter().zip(phases).fold(0, |at, (v, p)| at * p.axis.input + v);
            let len = (self.axis + 1..=last).fold(slab.extent, |len, i| len * phases[i].axis.input);
            let row = RowPick { src: Some(at), dst: 0 };
            return pick_rows(isa, x, &Picks { width: len, len, ..picks }, core::iter::once(row), planes);
        }
        let rows = (0..self.plane / self.span).filter_map(|row| self.row(phases, slab, row));
        let first = slab.origin[last] as isize + phases[last].low;
        pick_rows(isa, x, &Picks { first, ..picks }, rows, planes);
    }

    /// Where row `row` of a slab's planes comes from, and where in them it is. None if the slab
    /// does not need it.
    fn row(&self, phases: &[AxisPhases], slab: &PhaseSlab<'_>, row: usize) -> Option<RowPick> {
        let last = phases.len() - 1;
        let mut src = Some(0_usize);
        for (i, p) in phases[..last].iter().enumerate() {
            let e = self.tables.of_plane[row * last + i];
            if i == self.axis && e >= slab.extent + p.reach {
                return None;
            }
            let x = (slab.origin[i] + e).checked_add_signed(p.low).filter(|x| *x < p.axis.input);
            src = src.zip(x).map(|(src, x)| src.wrapping_mul(p.axis.input).wrapping_add(x));
        }
        let src = src.map(|src| src.wrapping_mul(phases[last].axis.input));
        Some(RowPick { src, dst: row * self.span })
    }
}
