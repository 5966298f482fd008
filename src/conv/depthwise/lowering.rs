//! The lowering itself: units, packing, and what a task does.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::interleave::SourceRow;
use convoke_kernels::{DepthwiseKernels, Isa, Real, Slots, TapTable, stream};

use super::plan::{DepthwisePlan, DepthwiseSource};
use super::taps::Along;
use crate::Geometry;
use crate::conv::contract::{Io, Lowering, Request};
use crate::conv::planes::PaddedPlanes;
use crate::conv::store::Finish;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Line, Piece, share};

/// Rows of planes that are listed, at most: a limit of memory.
const MOST_LISTED_ROWS: usize = 1 << 12;

pub(super) struct Depthwise<T: Element> {
    pub(super) geometry: Geometry,
    pub(super) isa: Isa,
    pub(super) finish: Finish<T::Acc>,
    pub(super) kernels: &'static DepthwiseKernels<T::Acc>,
    pub(super) plan: DepthwisePlan<T::Acc>,
    /// The planes, and where taps are in them. None if kernels read X.
    pub(super) planes: Option<(PaddedPlanes, TapTable)>,
    /// For each chunk, the rows that are copied into planes. Empty if they are too many to list.
    rows: Vec<Vec<SourceRow>>,
    /// Along channels: where the elements of a channel of X go.
    slots: Slots,
    pub(super) pieces: DepthwisePieces<T::Acc>,
}

#[derive(Clone, Copy)]
pub(super) struct DepthwisePieces<A> {
    pub(super) converted: Piece<A>,
    pub(super) planes: Piece<A>,
    pub(super) sums: Piece<A>,
}

pub(super) struct DepthwiseUnit {
    pub(super) image: usize,
    pub(super) groups: Range<usize>,
    /// The chunk of an output channel, and its positions.
    chunk: usize,
    pub(super) positions: Range<usize>,
}

impl<T: Element> Depthwise<T> {
    pub(super) fn new(
        request: &Request<'_, T>,
        finish: Finish<T::Acc>,
        kernels: &'static DepthwiseKernels<T::Acc>,
        plan: DepthwisePlan<T::Acc>,
        pieces: DepthwisePieces<T::Acc>,
    ) -> Self {
        let (mut planes, mut rows, mut slots) = (None, Vec::new(), Vec::new());
        if let DepthwiseSource::Planes { cut, .. } = plan.source {
            let padded = PaddedPlanes::new(request.geometry, cut);
            let unit = if plan.taps.along == Along::Rows { 1 } else { kernels.lanes() };
            if plan.taps.along == Along::Channels {
                let slot = |place: usize| u32::try_from(place * unit).expect("the cut bounds the planes");
                slots = padded.places_of_elements(padded.channel_len).into_iter().map(slot).collect();
            } else if padded.rows(&padded.chunk(0)).count().max(1).saturating_mul(plan.chunks) <= MOST_LISTED_ROWS {
                // The padding of a single chunk stays zero for all channels.
                let is_copied = |row: &SourceRow| row.src.is_some() || plan.chunks > 1;
                rows = (0..plan.chunks).map(|i| padded.rows(&padded.chunk(i)).filter(is_copied).collect()).collect();
            }
            let table = plan.taps.table(&padded, unit, plan.tiles[0].lanes());
            planes = Some((padded, table));
        }
        let (geometry, slots) = (request.geometry.clone(), Slots::new(slots));
        Self { geometry, isa: request.isa(), finish, kernels, plan, planes, rows, slots, pieces }
    }

    fn unit(&self, index: usize) -> DepthwiseUnit {
        let DepthwisePlan { chunks, unit_groups, ref source, .. } = self.plan;
        let (rest, chunk) = (index / chunks, index % chunks);
        let blocks = self.geometry.group.div_ceil(unit_groups);
        let (image, first) = (rest / blocks, rest % blocks * unit_groups);
        let groups = first..(first + unit_groups).min(self.geometry.group);
        let positions = match &self.planes {
            Some((planes, _)) => planes.chunk(chunk).positions(),
            None => {
                let len = source.chunks(&self.geometry).1;
                chunk * len..((chunk + 1) * len).min(self.geometry.output_spatial())
            }
        };
        DepthwiseUnit { image, groups, chunk, positions }
    }

    fn units(&self, task: usize) -> impl Iterator<Item = DepthwiseUnit> {
        share(self.plan.units, self.plan.tasks, task).map(|index| self.unit(index))
    }

    pub(super) fn outputs_of(&self, groups: &Range<usize>) -> Range<usize> {
        let outputs = self.geometry.out_channels_per_group();
        groups.start * outputs..groups.end * outputs
    }

    /// The distance of the inputs of neighbouring output channels, if those of groups are `group_len`
    /// elements apart. Output channels of a group share their input.
    fn step(&self, group_len: usize) -> usize {
        if self.geometry.out_channels_per_group() == 1 { group_len } else { 0 }
    }
}

impl<T: Element> Split for Depthwise<T> {
    fn tasks(&self) -> usize {
        self.plan.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        for DepthwiseUnit { image, groups, positions, .. } in self.units(task) {
            patch(Patch::rows(image..image + 1, self.outputs_of(&groups), positions, self.geometry.output_spatial()));
        }
    }
}

impl<T: Element> Lowering<T> for Depthwise<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let order = self.plan.taps.order();
        let outputs = self.geometry.out_channels_per_group();
        // Groups whose weights lie side by side.
        let lanes = if self.plan.taps.along == Along::Rows { 1 } else { self.kernels.lanes() };
        for (index, packed) in packed.chunks_exact_mut((order.len() * lanes).max(1)).enumerate() {
            let (block, output) = (index / outputs, index % outputs);
            for (packed, tap) in packed.chunks_exact_mut(lanes).zip(&order) {
                for (group, packed) in (block * lanes..).zip(packed) {
                    let filter = (group * outputs + output) * order.len();
                    *packed = w.get(filter + tap).map_or(T::Acc::ZERO, |w| w.to_acc());
                }
            }
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let DepthwisePieces { converted, planes, sums } = self.pieces;
        let (converted, copy, sums) = (arena.get(converted), arena.get(planes), arena.get(sums));
        let group_len = self.plan.taps.channels * self.geometry.input_spatial();
        // Copies do not write padding.
        copy.fill(T::Acc::ZERO);
        for unit in self.units(task) {
            let first = (unit.image * self.geometry.group + unit.groups.start) * group_len;
            let x = &io.x[first..];
            match (&self.plan.source, &self.planes) {
                (DepthwiseSource::X { table, .. }, _) => {
                    let (x, step) =
                        (self.widened(&x[..unit.groups.len() * group_len], converted), self.step(group_len));
                    self.rows(&unit, io, sums, |rows| self.sum_x(table, x, step, rows));
                }
                (DepthwiseSource::Planes { .. }, Some((planes, taps))) if self.plan.taps.along == Along::Rows => {
                    let step = self.plan.taps.channels * planes.channel_len;
                    let filled = &mut copy[..unit.groups.len() * step];
                    let rows = self.rows.get(unit.chunk).map_or(&[][..], Vec::as_slice);
                    planes.fill_within(self.isa, &planes.chunk(unit.chunk), rows, x, filled);
                    self.rows(&unit, io, sums, |rows| self.sum_planes((planes, taps), copy, self.step(step), rows));
                }
                (DepthwiseSource::Planes { .. }, Some((planes, taps))) => {
                    let x = self.widened(&x[..unit.groups.len() * group_len], converted);
                    self.transpose(x, unit.groups.len(), self.plan.taps.channel_len(planes.channel_len), copy);
                    for output in 0..self.geometry.out_channels_per_group() {
                        self.channels(&unit, io, output, (planes, taps), (copy, sums));
                    }
                }
                (DepthwiseSource::Planes { .. }, None) => unreachable!("new() makes the planes"),
            }
        }
    }
}

impl<T: Element> Depthwise<T> {
    /// X in the computing type: itself, or a copy.
    fn widened<'a>(&self, x: &'a [T], copy: &'a mut [T::Acc]) -> &'a [T::Acc] {
        T::as_acc(x).unwrap_or_else(|| {
            let copy = &mut copy[..x.len()];
            stream::widen(self.isa, x, copy);
            copy
        })
    }

    /// Transposes `count` groups of X into planes of vectors along groups. Planes of neighbouring
    /// channels are `plane` vectors apart.
    fn transpose(&self, x: &[T::Acc], count: usize, plane: usize, planes: &mut [T::Acc]) {
        let (spatial, plane) = (self.geometry.input_spatial(), plane * self.kernels.lanes());
        let group_len = self.plan.taps.channels * spatial;
        for channel in 0..self.plan.taps.channels {
            let x = x.get(channel * spatial..).unwrap_or(&[]);
            self.kernels.gather(x, group_len, count, &self.slots, 0..spatial, &mut planes[channel * plane..]);
        }
    }
}
