//! What is decided for a layer: planes and tiles, how sums get into Y, tasks and scratch.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::catalogue::spatial_kernels;
use convoke_kernels::interleave::{MOST_SUMS, MOST_VECTORS};
use convoke_kernels::{Real, SpatialKernel};

use super::passes::PhaseSlots;
use super::tiles::{self, PhaseProducts, PhaseTiles};
use crate::conv::contract::Request;
use crate::conv::layout::WeightLayout;
use crate::conv::planes::{ChunkCut, ChunkLimits, PlaneSizes, chunk_bytes, positions_on, too_large};
use crate::conv::shares::{GemmSplit, TASKS_PER_THREAD};
use crate::conv::store::Finish;
use crate::conv::view::OutputPhases;
use crate::element::Element;
use crate::exec::{Ledger, Piece};
use crate::machine::{Item, Machine, Work, prices};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Vectors of a column tile whose pairs are stored, at most. The list of their places is on the stack.
pub(super) const MOST_PAIRED_VECTORS: usize = 16;
/// Groups of a task, at most: more gain nothing.
const MOST_TASK_GROUPS: usize = 16;

/// Bytes of the planes of a task's groups, if it has several. They stay in the L2 cache.
fn group_plane_bytes(machine: &Machine) -> usize {
    machine.l2_bytes / 4
}

/// How sums get into Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhaseMode {
    /// For groups of one channel. A kernel sums all phases in registers, and interleaves them from
    /// there. There are no tiles, and K is one block.
    Summed,
    /// The sums go to scratch, and are interleaved from there: after each tile, or after each panel of a
    /// whole chunk if K has several blocks.
    Interleaved,
    /// A tile has both phases of a stride of 2, which a kernel interleaves in registers, as pairs. K is
    /// one block. Some sums are interleaved from scratch all the same: if a vector of the column tile
    /// spans two rows of Y or is cropped, or if there is a residual.
    Paired,
}

pub(super) struct PhasePlan<A: Real> {
    pub(super) phases: Vec<OutputPhases>,
    pub(super) slots: PhaseSlots,
    pub(super) cut: ChunkCut,
    pub(super) sizes: PlaneSizes,
    pub(super) rows: usize,
    pub(super) tiles: PhaseTiles<A>,
    pub(super) mode: PhaseMode,
    /// Blocks of K of the phase with the most taps.
    pub(super) k_blocks: usize,
    pub(super) work: Work,
}

impl<A: Real> PhasePlan<A> {
    /// The cheapest plan.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn cheapest<T: Element<Acc = A>>(request: &Request<'_, T>, most_bytes: usize) -> Result<Self, String> {
        let packed = match request.layout {
            None => None,
            Some(WeightLayout::PhasePanels { late, channels, mr }) => Some((*late, (*channels, *mr))),
            Some(other) => return Err(other.mismatch()),
        };
        let axes = &request.geometry.axes;
        // If no phase of the last axis is late, phases may read the same inputs, but there may be one
        // more position.
        let cropped = OutputPhases::cropped(&axes[axes.len() - 1]);
        let lates = [0, cropped].into_iter().take(if cropped == 0 { 1 } else { 2 });
        let lates = lates.filter(|late| packed.is_none_or(|packed| packed.0 == *late));
        let plans =
            lates.filter_map(|late| PhaseLayer::new(request, late).plan(most_bytes, packed.map(|packed| packed.1)));
        plans.min_by(|a, b| a.work.cycles().total_cmp(&b.work.cycles())).ok_or_else(|| match packed {
            Some(_) => String::from("the weights are packed for other tiles"),
            None => too_large(axes),
        })
    }

    pub(super) fn layout(&self) -> WeightLayout {
        let late = self.phases[self.phases.len() - 1].late;
        WeightLayout::PhasePanels { late, channels: self.tiles.panels.height(0), mr: self.tiles.mr }
    }
}

impl<A: Real> fmt::Display for PhasePlan<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (channels, phases) = (self.tiles.panels.height(0), self.slots.with_taps);
        let stored = match self.mode {
            PhaseMode::Summed => return write!(f, "{} summed channel by channel", Count(phases, "phase")),
            PhaseMode::Interleaved if self.k_blocks > 1 => "interleaved panel by panel",
            PhaseMode::Interleaved => "interleaved tile by tile",
            PhaseMode::Paired => "stored in pairs without a residual",
        };
        write!(f, "{} by {} a tile, {stored}", Count(channels, "channel"), Count(phases, "phase"))
    }
}

/// A layer by phases, before its planes and tiles are chosen.
struct PhaseLayer<'a, T: Element> {
    request: &'a Request<'a, T>,
    phases: Vec<OutputPhases>,
    /// For each axis, a convolution that reads all inputs of the phases.
    convs: Vec<Axis>,
    slots: PhaseSlots,
    products: PhaseProducts,
    /// Blocks of K of the phase with the most taps.
    k_blocks: usize,
    /// Whether kernels can store pairs, if a tile has both phases of its channels.
    can_pair: bool,
}

impl<'a, T: Element> PhaseLayer<'a, T> {
    fn new(request: &'a Request<'a, T>, late: usize) -> Self {
        let geometry = request.geometry;
        let last = geometry.axes.len() - 1;
        let late = |(i, axis)| (axis, if i == last { late } else { OutputPhases::cropped(axis) });
        let axes = geometry.axes.iter().enumerate().map(late);
        let phases: Vec<_> = axes.map(|(axis, late)| OutputPhases::new(axis, late).listed()).collect();
        let along = &phases[last];
        let (slots, channels) = (PhaseSlots::new(along), geometry.in_channels_per_group());
        let outer_taps = geometry.kernel_volume() / along.axis.kernel;
        let class = |class: &Vec<usize>| (class.len(), along.taps[class[0]].len() * outer_taps * channels);
        let classes = slots.classes.iter().map(class).collect();
        let products = PhaseProducts { rows: geometry.out_channels_per_group(), classes };
        let most_taps = phases.iter().map(|p| p.taps.iter().map(Vec::len).max().unwrap_or(0)).product::<usize>();
        let k_blocks = tiles::blocks_of_k(channels, most_taps.max(1)).count();
        // The products of the largest tile.
        let most_fmas = spatial_kernels::<T::Acc>(request.isa()).iter().map(SpatialKernel::fmas).max().unwrap_or(0);
        let tile_cycles = (most_fmas * channels * most_taps) as f64 / request.machine.fmas_per_cycle;
        let can_pair = k_blocks == 1
            && tile_cycles >= prices::PAIRED_TILE_CYCLES
            && Finish::new(request).is_direct()
            && slots.classes.len() == 1
            && slots.of_place == [0, 1];
        let convs = phases.iter().map(OutputPhases::as_conv).collect();
        Self { request, phases, convs, slots, products, k_blocks, can_pair }
    }

    /// The cheapest tiles. None if planes are too large, or if the weights are `packed` for another
    /// number of channels in a panel or rows in a tile.
    fn plan(self, most_bytes: usize, packed: Option<(usize, usize)>) -> Option<PhasePlan<T::Acc>> {
        let Request { geometry, machine, .. } = *self.request;
        let (cut, sizes) = self.cut(most_bytes)?;
        let vectors = self.vectors(&sizes);
        let (tiles, mode, products) = if self.is_summed() {
            (PhaseTiles::single(machine), PhaseMode::Summed, Work::default())
        } else {
            let can_pair = self.can_pair && packed.is_none();
            let (tiles, products) = PhaseTiles::cheapest(machine, &self.products, vectors, can_pair, packed)?;
            let mode = self.mode(&tiles);
            (tiles, mode, products)
        };
        let positions = |i: usize| positions_on(&self.convs, cut, i);
        let chunks: f64 = (0..self.convs.len()).map(|i| self.convs[i].output as f64 / positions(i) as f64).product();
        let work = self.chunk_work(&sizes, mode, products) * ((geometry.batch * geometry.group) as f64 * chunks);
        let rows = (0..self.convs.len() - 1).map(positions).product();
        let Self { phases, slots, k_blocks, .. } = self;
        Some(PhasePlan { phases, slots, cut, sizes, rows, tiles, mode, k_blocks, work })
    }

    /// The chunks, with planes of all channels. None if the planes are too large.
    fn cut(&self, most_bytes: usize) -> Option<(ChunkCut, PlaneSizes)> {
        let Request { geometry, machine, .. } = *self.request;
        let kept_rows = if self.k_blocks > 1 { tiles::TILE_ROWS.max(self.slots.with_taps) } else { 0 };
        let budget_bytes = chunk_bytes(machine).min(most_bytes);
        let limits = ChunkLimits::new(self.request, geometry.in_channels_per_group(), budget_bytes);
        limits.cut(&self.convs, |columns| columns.saturating_mul(kept_rows))
    }

    /// Whether groups have one channel whose phases kernels can sum.
    fn is_summed(&self) -> bool {
        let stride = self.phases[self.phases.len() - 1].axis.stride;
        let channels = (self.request.geometry.in_channels_per_group(), self.products.rows);
        channels == (1, 1) && stride.is_power_of_two() && stride <= MOST_SUMS
    }

    fn vectors(&self, sizes: &PlaneSizes) -> usize {
        sizes.columns.div_ceil(crate::conv::macro_kernel::lanes::<T::Acc>(self.request.isa()))
    }

    /// What a chunk takes. Its tiles take `products`.
    fn chunk_work(&self, sizes: &PlaneSizes, mode: PhaseMode, products: Work) -> Work {
        let (geometry, machine) = (self.request.geometry, self.request.machine);
        let channels = geometry.in_channels_per_group();
        let strides = self.phases.iter().map(|p| p.axis.stride as f64).product::<f64>();
        // Vectors of outputs of a chunk.
        let outputs = self.products.rows as f64 * strides * self.vectors(sizes) as f64;
        let sums = if mode == PhaseMode::Summed {
            let taps = geometry.kernel_volume() as f64 / strides;
            Item::ARITHMETIC_CYCLES.times(outputs * taps / machine.fmas_per_cycle)
                + Item::TRANSPOSED_VECTORS.times(outputs)
        } else {
            let tiles = products
                + Item::TRANSPOSED_VECTORS.times(outputs)
                + Item::STORED_VECTORS.times(outputs * (self.k_blocks - 1) as f64);
            let bytes = geometry.weight_len() as f64 * size_of::<T::Acc>() as f64;
            machine.overlapped(tiles, machine.fetch_weights(bytes / geometry.group as f64, bytes))
        };
        sums + Item::COPIED_ELEMENTS.times((channels * sizes.channel_len) as f64) + Item::TASKS.times(1.0)
    }

    fn mode(&self, tiles: &PhaseTiles<T::Acc>) -> PhaseMode {
        let has_taps = |p: &OutputPhases| p.taps.iter().all(|taps| !taps.is_empty());
        let has_pairs = self.slots.with_taps * tiles.panels.height(0) <= tiles.mr
            && self.phases.iter().all(has_taps)
            && tiles.widest() <= MOST_PAIRED_VECTORS;
        if self.can_pair && has_pairs { PhaseMode::Paired } else { PhaseMode::Interleaved }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhaseSplit {
    /// The groups of the layer, and of a batch of groups. What is prepared for a chunk serves the whole
    /// batch.
    groups: usize,
    batch: usize,
    /// Here `groups` are the batches, and `columns` the chunks.
    pub(super) tasks: GemmSplit,
}

impl PhaseSplit {
    /// A task has several groups if channels are summed one by one. Their planes take at most
    /// `most_bytes`.
    pub(super) fn new<T: Element>(request: &Request<'_, T>, plan: &PhasePlan<T::Acc>, most_bytes: usize) -> Self {
        let Request { geometry, machine, threads, .. } = *request;
        let (panels, chunks) = (plan.tiles.panels.count(), plan.sizes.chunks);
        let in_all = geometry.batch * geometry.group * chunks;
        let shares = if threads == 1 { 1 } else { threads.div_ceil(in_all).clamp(1, panels) };
        let fitting = group_plane_bytes(machine).min(most_bytes) / (plan.sizes.channel_len * size_of::<T::Acc>());
        let most = if plan.mode == PhaseMode::Summed { fitting.clamp(1, MOST_TASK_GROUPS) } else { 1 };
        let batch = most.min(geometry.group.div_ceil(TASKS_PER_THREAD * threads)).max(1);
        let groups = geometry.group.div_ceil(batch);
        let tasks = GemmSplit { images: geometry.batch, groups, columns: chunks, panels, shares };
        Self { groups: geometry.group, batch, tasks }
    }

    pub(super) fn groups(&self, batch: usize) -> Range<usize> {
        batch * self.batch..((batch + 1) * self.batch).min(self.groups)
    }
}

/// Outputs that are stored at a time, at most, but at least those of one channel. They stay in the L1
/// cache.
const STAGED_ELEMENTS: usize = 4096;

pub(super) struct PhaseScratch<A> {
    /// The planes of a batch of groups. Kernels read some vectors beyond them.
    pub(super) planes: Piece<A>,
    /// The sums of a panel, for a tile or for a whole chunk.
    pub(super) sums: Piece<A>,
    /// Outputs of some channels before they are stored, if kernels do not store into Y.
    pub(super) outputs: Piece<A>,
    /// For each row of the chunk, where its outputs go.
    pub(super) places: Piece<usize>,
}

impl<A: Real> PhaseScratch<A> {
    /// `is_direct` says that kernels store into Y.
    pub(super) fn book(
        ledger: &mut Ledger,
        geometry: &Geometry,
        plan: &PhasePlan<A>,
        split: &PhaseSplit,
        is_direct: bool,
    ) -> Self {
        let PhasePlan { phases, slots, sizes, rows, tiles, mode, k_blocks, .. } = plan;
        let planes = split.batch * geometry.in_channels_per_group() * sizes.channel_len;
        let sums_vectors = if *k_blocks > 1 { sizes.columns.div_ceil(tiles.lanes) } else { tiles.widest() };
        let stride = phases[phases.len() - 1].axis.stride;
        // The runs of outputs of some channels.
        let columns = if *mode == PhaseMode::Summed { sizes.columns } else { tiles.widest() * tiles.lanes };
        let run = columns * stride;
        let staged = (STAGED_ELEMENTS / run.max(1)).clamp(1, tiles.panels.height(0).max(1));
        Self {
            planes: ledger.book("planes", planes + tiles.widest().max(MOST_VECTORS + 1) * tiles.lanes),
            sums: ledger.book("sums", slots.count * tiles.panels.height(0) * tiles.lanes * sums_vectors),
            outputs: ledger.book("outputs", if is_direct { 0 } else { run * staged }),
            places: ledger.book("places of rows", *rows),
        }
    }
}
