//! The configured lowering: which units there are, how weights are packed, and what a task does.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{DepthwiseKernels, Isa, Real, Slots, TapTable};

use super::grid::Along;
use super::plan::Config;
use crate::Geometry;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line};
use crate::lower::contract::{Io, Lowering, Request};
use crate::lower::engine::RowPanels;
use crate::lower::layout::WeightLayout;
use crate::lower::planes::period;
use crate::lower::sink::Finish;

pub(super) struct Depthwise<T: Element> {
    pub(super) geometry: Geometry,
    pub(super) isa: Isa,
    pub(super) finish: Finish<T::Acc>,
    pub(super) kernels: &'static DepthwiseKernels<T::Acc>,
    pub(super) config: Config<T::Acc>,
    pub(super) taps: TapTable,
    /// For each group of taps, the rows of a plane from the tile's first one on that it begins
    /// with, and its reach.
    pub(super) reaches: Vec<(usize, usize)>,
    pub(super) slots: Slots,
    /// As many zeros as a unit has biases, where its sums are finished after they are stored.
    pub(super) zeros: Vec<T::Acc>,
}

/// What kernels along rows read.
#[derive(Clone, Copy)]
pub(super) enum Source<'a, A> {
    /// Padded planes of a unit.
    Planes(&'a [A]),
    /// X, or a copy of it, from the unit's first channel on.
    X(&'a [A]),
}

/// One unit of work.
pub(super) struct Unit {
    pub(super) image: usize,
    /// The groups.
    pub(super) groups: Range<usize>,
    /// The position on the outer axes.
    pub(super) outer: usize,
    /// The strip's output rows.
    pub(super) start: usize,
    pub(super) extent: usize,
}

impl<T: Element> Depthwise<T> {
    pub(super) fn new(
        request: &Request<'_, T>,
        kernels: &'static DepthwiseKernels<T::Acc>,
        config: Config<T::Acc>,
    ) -> Self {
        let grid = &config.grid;
        let is_rows = grid.along == Along::Rows;
        let every = period(&grid.h);
        let reach = |(first, taps): (usize, usize)| (first * grid.h.dilation, (taps - 1) * every * grid.h.dilation);
        let finish = Finish::new(request);
        let zeros = match grid.along {
            Along::Rows if finish.is_direct() => 0,
            Along::Rows => config.batch.max(request.geometry.out_channels_per_group()),
            Along::Channels => config.batch,
        };
        Self {
            geometry: request.geometry.clone(),
            isa: request.isa(),
            finish,
            kernels,
            taps: grid.table(),
            reaches: grid.pieces().into_iter().map(reach).collect(),
            slots: if is_rows { Slots::new(Vec::new()) } else { grid.slots() },
            zeros: alloc::vec![T::Acc::ZERO; zeros],
            config,
        }
    }

    fn unit(&self, index: usize) -> Unit {
        let grid = &self.config.grid;
        let (rest, strip) = (index / grid.strips(), index % grid.strips());
        let (rest, outer) = (rest / grid.outer_positions(), rest % grid.outer_positions());
        let blocks = self.geometry.group.div_ceil(self.config.batch);
        let (image, block) = (rest / blocks, rest % blocks);
        let first = block * self.config.batch;
        let start = strip * grid.extent;
        Unit {
            image,
            groups: first..(first + self.config.batch).min(self.geometry.group),
            outer,
            start,
            extent: grid.extent.min(grid.h.output - start),
        }
    }
}

impl<T: Element> Depthwise<T> {
    /// The units of a task.
    fn units(&self, task: usize) -> impl Iterator<Item = Unit> {
        // In 128 bits: units times tasks may exceed the address space.
        let start = |task: usize| (task as u128 * self.config.units as u128 / self.config.tasks as u128) as usize;
        (start(task)..start(task + 1)).map(|index| self.unit(index))
    }
}

impl<T: Element> Split for Depthwise<T> {
    fn tasks(&self) -> usize {
        self.config.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (outputs, grid) = (self.geometry.out_channels_per_group(), &self.config.grid);
        for Unit { image, groups, outer, start, extent } in self.units(task) {
            let first = (outer * grid.h.output + start) * grid.w.output;
            let positions = first..first + extent * grid.w.output;
            let channels = groups.start * outputs..groups.end * outputs;
            patch(Patch::rows(image..image + 1, channels, positions, self.geometry.output_spatial()));
        }
    }
}

impl<T: Element> Lowering<T> for Depthwise<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::Depthwise { along: self.config.grid.along }
    }

    fn describe(&self) -> String {
        let grid = &self.config.grid;
        let along = if grid.along == Along::Rows { "along rows" } else { "along channels" };
        alloc::format!(
            "{} {along}, {} groups a unit, {} strips of {} rows, {} units",
            self.kernel(),
            self.config.batch,
            grid.strips(),
            grid.extent,
            self.config.units
        )
    }

    fn kernel(&self) -> &'static str {
        let grid = &self.config.grid;
        let panels = RowPanels::new(grid.extent.div_ceil(grid.tile_step()), self.config.tiles.len());
        self.config.tiles[panels.height(0) - 1].name()
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        match self.config.grid.along {
            Along::Rows => self.geometry.weight_len(),
            Along::Channels => {
                let lanes = self.config.grid.lanes;
                let outputs = self.geometry.out_channels_per_group();
                self.geometry.group.div_ceil(lanes) * outputs * self.taps.weights() * lanes
            }
        }
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let grid = &self.config.grid;
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
        let Config { lens, ref grid, .. } = self.config;
        let mut arena = Arena::new(scratch);
        let [planes, sums, staged] = lens.map(|len| arena.take::<T::Acc>(len));
        // Leaving out rows of padding asks for finite weights.
        let reads_x = self.config.direct_table.is_some() && io.is_finite;
        if !reads_x {
            // Padding stays as it is now: copies write what lies between.
            planes.fill(T::Acc::ZERO);
        }
        let outputs = self.geometry.out_channels_per_group();
        // Output channels of a group read the same input; if there is one, the next one reads the
        // channels behind it.
        let step = |group: usize| if outputs == 1 { group } else { 0 };
        for unit in self.units(task) {
            let channels = unit.groups.start * outputs..unit.groups.end * outputs;
            if reads_x {
                let of_a_group = grid.channels * self.geometry.input_spatial();
                let first = (unit.image * self.geometry.group + unit.groups.start) * of_a_group;
                let x = match T::as_acc(&io.x[first..]) {
                    Some(x) => x,
                    None => {
                        let copy = &mut staged[..unit.groups.len() * of_a_group];
                        stream::widen(self.isa, &io.x[first..first + copy.len()], copy);
                        copy
                    }
                };
                self.rows(&unit, io, (Source::X(x), step(of_a_group)), &channels, sums);
                continue;
            }
            if grid.along == Along::Rows {
                // The planes hold all groups of a unit, or, where kernels would have read X, one.
                let group = grid.planes() * grid.plane;
                let together = planes.len().checked_div(group).unwrap_or(unit.groups.len()).max(1);
                for first in unit.groups.clone().step_by(together) {
                    let part = Unit { groups: first..(first + together).min(unit.groups.end), ..unit };
                    let channels = part.groups.start * outputs..part.groups.end * outputs;
                    self.fill(&part, io, planes, staged);
                    self.rows(&part, io, (Source::Planes(planes), step(group)), &channels, sums);
                }
                continue;
            }
            self.fill(&unit, io, planes, staged);
            for output in 0..outputs {
                self.channels(&unit, io, planes, output, sums, staged);
            }
        }
    }
}
