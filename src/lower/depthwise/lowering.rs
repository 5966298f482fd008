//! The configured lowering: which units there are, how weights are packed, and what a task does.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{DepthwiseKernels, DirectTable, Isa, Real, Slots, TapTable};

use super::grid::{Along, ColumnGroup};
use super::plan::DepthwisePlan;
use crate::Geometry;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Line, Piece, share};
use crate::lower::contract::{Io, Lowering, Request};
use crate::lower::sink::Finish;
use crate::lower::view::period;

pub(super) struct Depthwise<T: Element> {
    pub(super) geometry: Geometry,
    pub(super) isa: Isa,
    pub(super) finish: Finish<T::Acc>,
    pub(super) kernels: &'static DepthwiseKernels<T::Acc>,
    pub(super) plan: DepthwisePlan<T::Acc>,
    pub(super) taps: TapTable,
    /// The rows that each group of tap columns sees.
    pub(super) rows_seen: Vec<RowsSeen>,
    pub(super) slots: Slots,
    pub(super) pieces: DepthwisePieces<T::Acc>,
}

/// The rows of a plane that a group of tap columns sees, counted from the first row that belongs to
/// the tile.
pub(super) struct RowsSeen {
    pub(super) first: usize,
    pub(super) last: usize,
}

/// The scratch of a task, as it was booked.
#[derive(Clone, Copy)]
pub(super) struct DepthwisePieces<A> {
    pub(super) planes: Piece<A>,
    pub(super) sums: Piece<A>,
    pub(super) staged: Piece<A>,
}

/// The same in a run.
pub(super) struct DepthwiseBuffers<'a, A> {
    /// Padded planes.
    pub(super) planes: &'a mut [A],
    /// Sums of a strip.
    pub(super) sums: &'a mut [A],
    /// Rows on their way from or to a 16-bit type, or through the general epilogue.
    pub(super) staged: &'a mut [A],
}

/// What kernels along rows read. The inputs of an output channel and of the next one are `step`
/// elements apart, or the same if that is 0.
#[derive(Clone, Copy)]
pub(super) enum DepthwiseSource<'a, A> {
    /// Padded planes of a unit.
    Planes { x: &'a [A], step: usize },
    /// X, or a copy of it, from the unit's first channel on.
    X { table: &'a DirectTable, x: &'a [A], step: usize },
}

/// One unit of work.
pub(super) struct DepthwiseUnit {
    pub(super) image: usize,
    pub(super) groups: Range<usize>,
    /// The position on the outer axes.
    pub(super) outer: usize,
    /// The strip's first output row, and its number of them.
    pub(super) start: usize,
    pub(super) extent: usize,
}

impl<T: Element> Depthwise<T> {
    /// Makes the tables.
    pub(super) fn new(
        request: &Request<'_, T>,
        finish: Finish<T::Acc>,
        kernels: &'static DepthwiseKernels<T::Acc>,
        plan: DepthwisePlan<T::Acc>,
        pieces: DepthwisePieces<T::Acc>,
    ) -> Self {
        let grid = &plan.grid;
        let every = period(&grid.h);
        let rows_seen = |ColumnGroup { first, taps }| RowsSeen {
            first: first * grid.h.dilation,
            last: (first + (taps - 1) * every) * grid.h.dilation,
        };
        Self {
            geometry: request.geometry.clone(),
            isa: request.isa(),
            finish,
            kernels,
            taps: grid.table(),
            rows_seen: grid.column_groups().into_iter().map(rows_seen).collect(),
            slots: if grid.along == Along::Rows { Slots::new(Vec::new()) } else { grid.slots() },
            plan,
            pieces,
        }
    }

    fn unit(&self, index: usize) -> DepthwiseUnit {
        let grid = &self.plan.grid;
        let (rest, strip) = (index / grid.strips(), index % grid.strips());
        let (rest, outer) = (rest / grid.outer_positions(), rest % grid.outer_positions());
        let blocks = self.geometry.group.div_ceil(self.plan.unit_groups);
        let (image, block) = (rest / blocks, rest % blocks);
        let first = block * self.plan.unit_groups;
        let start = strip * grid.extent;
        DepthwiseUnit {
            image,
            groups: first..(first + self.plan.unit_groups).min(self.geometry.group),
            outer,
            start,
            extent: grid.extent.min(grid.h.output - start),
        }
    }

    /// The units of a task.
    fn units(&self, task: usize) -> impl Iterator<Item = DepthwiseUnit> {
        share(self.plan.units, self.plan.tasks, task).map(|index| self.unit(index))
    }
}

impl<T: Element> Split for Depthwise<T> {
    fn tasks(&self) -> usize {
        self.plan.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let grid = &self.plan.grid;
        for DepthwiseUnit { image, groups, outer, start, extent } in self.units(task) {
            let first = (outer * grid.h.output + start) * grid.w.output;
            let positions = first..first + extent * grid.w.output;
            let channels = self.outputs_of(&groups);
            patch(Patch::rows(image..image + 1, channels, positions, self.geometry.output_spatial()));
        }
    }
}

impl<T: Element> Lowering<T> for Depthwise<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let grid = &self.plan.grid;
        let order = grid.order();
        if order.is_empty() {
            return;
        }
        if grid.along == Along::Rows {
            for (packed, w) in packed.chunks_exact_mut(order.len()).zip(w.chunks_exact(order.len())) {
                for (packed, tap) in packed.iter_mut().zip(&order) {
                    *packed = w[*tap].to_acc();
                }
            }
            return;
        }
        let (lanes, outputs) = (grid.lanes, self.geometry.out_channels_per_group());
        for (index, packed) in packed.chunks_exact_mut(order.len() * lanes).enumerate() {
            let (block, output) = (index / outputs, index % outputs);
            for (packed, tap) in packed.chunks_exact_mut(lanes).zip(&order) {
                for (lane, packed) in packed.iter_mut().enumerate() {
                    let group = block * lanes + lane;
                    let filter = (group * outputs + output) * order.len();
                    *packed = if group < self.geometry.group { w[filter + tap].to_acc() } else { T::Acc::ZERO };
                }
            }
        }
    }

    /// A share of the units.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let DepthwisePieces { planes, sums, staged } = self.pieces;
        let buffers =
            &mut DepthwiseBuffers { planes: arena.get(planes), sums: arena.get(sums), staged: arena.get(staged) };
        let table = self.plan.direct_table.as_ref();
        if table.is_none() {
            // Padding beside rows stays zero in all units: copies write only what lies between.
            buffers.planes.fill(T::Acc::ZERO);
        }
        for unit in self.units(task) {
            match (self.plan.grid.along, table) {
                (Along::Rows, Some(table)) => self.rows_of_x(&unit, table, io, buffers),
                (Along::Rows, None) => self.rows_of_planes(&unit, io, buffers),
                (Along::Channels, _) => {
                    self.fill(&unit, io, buffers.planes, buffers.staged);
                    for output in 0..self.geometry.out_channels_per_group() {
                        self.channels(&unit, io, output, buffers);
                    }
                }
            }
        }
    }
}

impl<T: Element> Depthwise<T> {
    /// The output channels of some groups.
    fn outputs_of(&self, groups: &Range<usize>) -> Range<usize> {
        let outputs = self.geometry.out_channels_per_group();
        groups.start * outputs..groups.end * outputs
    }

    /// The `step` of a source whose groups are `group_len` elements apart. Output channels of a
    /// group read the same input.
    fn step(&self, group_len: usize) -> usize {
        if self.geometry.out_channels_per_group() == 1 { group_len } else { 0 }
    }

    /// A unit whose kernels read X itself, or a widened copy of its channels.
    fn rows_of_x(
        &self,
        unit: &DepthwiseUnit,
        table: &DirectTable,
        io: &Io<'_, T>,
        buffers: &mut DepthwiseBuffers<'_, T::Acc>,
    ) {
        let group_len = self.plan.grid.channels * self.geometry.input_spatial();
        let first = (unit.image * self.geometry.group + unit.groups.start) * group_len;
        let x = match T::as_acc(&io.x[first..]) {
            Some(x) => x,
            None => {
                let copy = &mut buffers.staged[..unit.groups.len() * group_len];
                stream::widen(self.isa, &io.x[first..first + copy.len()], copy);
                copy
            }
        };
        let source = DepthwiseSource::X { table, x, step: self.step(group_len) };
        self.rows(unit, io, source, &self.outputs_of(&unit.groups), buffers.sums);
    }

    /// A unit whose kernels read planes. These hold all groups of a unit, or one of them where
    /// kernels would have read X, were all weights finite.
    fn rows_of_planes(&self, unit: &DepthwiseUnit, io: &Io<'_, T>, buffers: &mut DepthwiseBuffers<'_, T::Acc>) {
        let grid = &self.plan.grid;
        let group_len = grid.planes() * grid.plane;
        let together = buffers.planes.len().checked_div(group_len).unwrap_or(unit.groups.len()).max(1);
        for first in unit.groups.clone().step_by(together) {
            let part = DepthwiseUnit { groups: first..(first + together).min(unit.groups.end), ..*unit };
            self.fill(&part, io, buffers.planes, buffers.staged);
            let source = DepthwiseSource::Planes { x: buffers.planes, step: self.step(group_len) };
            self.rows(&part, io, source, &self.outputs_of(&part.groups), buffers.sums);
        }
    }
}
