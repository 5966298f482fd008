//! What is decided for a layer: planes and tiles, how sums get into Y, tasks and scratch.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::catalogue::spatial_kernels;
use convoke_kernels::weave::{MOST_SUMS, MOST_VECTORS};
use convoke_kernels::{Real, SpatialKernel};

use super::passes::PhaseSlots;
use super::tiles::{self, PhaseProducts, PhaseTiles};
use crate::element::Element;
use crate::exec::{Ledger, Piece};
use crate::lower::contract::Request;
use crate::lower::layout::WeightLayout;
use crate::lower::planes::{
    MOST_BYTES, PER_THREAD, PlaneSizes, SlabCut, SlabLimits, positions_on, slab_bytes, too_large,
};
use crate::lower::shares::{GemmSplit, TASKS_PER_THREAD};
use crate::lower::sink::Finish;
use crate::lower::view::OutputPhases;
use crate::machine::{Item, Machine, Work, prices};
use crate::units::Count;
use crate::{Axis, Geometry};

/// The most vectors of a strip whose pairs are stored: a list of their places is on the stack.
pub(super) const MOST_PAIRED_VECTORS: usize = 16;
/// The most groups of a task: more of them gain nothing.
const MOST_TASK_GROUPS: usize = 16;

/// Bytes of the planes of a task's groups, if it has several: they stay in the L2 cache.
fn group_plane_bytes(machine: &Machine) -> usize {
    machine.l2_bytes / 4
}

/// How sums get into Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhaseMode {
    /// Groups have one channel. A kernel sums all its phases in registers, and interleaves them
    /// from there. There are no tiles, and K is one block.
    Summed,
    /// The sums of tiles go to scratch, and are interleaved from there: a tile's before the next tile is
    /// computed, or those of a panel for a whole slab if K has several blocks.
    Interleaved,
    /// A tile has both phases of a stride of 2. A kernel interleaves them from registers, as
    /// pairs. K is one block. Some sums are interleaved from scratch all the same: those of strips with
    /// a vector that spans two rows of Y or is cropped, and all of a run with a residual.
    Paired,
}

/// What is decided for a layer, and what it takes.
pub(super) struct PhasePlan<A: Real> {
    /// The phases of each axis.
    pub(super) phases: Vec<OutputPhases>,
    pub(super) slots: PhaseSlots,
    pub(super) cut: SlabCut,
    pub(super) sizes: PlaneSizes,
    /// Rows of positions of a slab.
    pub(super) rows: usize,
    pub(super) tiles: PhaseTiles<A>,
    pub(super) mode: PhaseMode,
    /// Blocks of K of the phase with the most taps.
    pub(super) k_blocks: usize,
    /// What all tasks take.
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
        // If no phase of the last axis is late, they may read the same inputs. But there may be a position
        // more.
        let cropped = OutputPhases::cropped(&axes[axes.len() - 1]);
        let lates = [0, cropped].into_iter().take(if cropped == 0 { 1 } else { 2 });
        let lates = lates.filter(|late| packed.is_none_or(|packed| packed.0 == *late));
        let plans =
            lates.filter_map(|late| PhaseLayer::new(request, late).plan(most_bytes, packed.map(|packed| packed.1)));
        plans.min_by(|a, b| a.work.cycles().total_cmp(&b.work.cycles())).ok_or_else(|| match packed {
            Some(_) => String::from("the weights are packed for other tiles"),
            None => too_large(axes, MOST_BYTES),
        })
    }

    /// What packed weights depend on.
    pub(super) fn layout(&self) -> WeightLayout {
        let late = self.phases[self.phases.len() - 1].late;
        WeightLayout::PhasePanels { late, channels: self.tiles.panels.height(0), mr: self.tiles.mr }
    }
}

/// The mode, for those who read a plan.
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

/// A layer by phases, whose planes and tiles are to be chosen.
struct PhaseLayer<'a, T: Element> {
    request: &'a Request<'a, T>,
    phases: Vec<OutputPhases>,
    /// Convolutions that see what the phases see.
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
        let phases = |(i, axis)| OutputPhases::new(axis, if i == last { late } else { OutputPhases::cropped(axis) });
        let phases: Vec<_> = geometry.axes.iter().enumerate().map(phases).collect();
        let along = &phases[last];
        let (slots, channels) = (PhaseSlots::new(along), geometry.in_channels_per_group());
        let outer_taps = geometry.kernel_volume() / along.axis.kernel;
        let class = |class: &Vec<usize>| (class.len(), along.taps[class[0]].len() * outer_taps * channels);
        let classes = slots.classes.iter().map(class).collect();
        let products = PhaseProducts { rows: geometry.out_channels_per_group(), classes };
        let most_taps = phases.iter().map(|p| p.taps.iter().map(Vec::len).max().unwrap_or(0)).product::<usize>();
        let k_blocks = channels.div_ceil(tiles::block_channels(channels, most_taps.max(1))).max(1);
        // The products of the largest tile.
        let most_fmas = spatial_kernels::<T::Acc>(request.isa()).iter().map(SpatialKernel::fmas).max().unwrap_or(0);
        let tile_cycles = (most_fmas * channels * most_taps) as f64 / request.machine.fmas_per_cycle;
        let can_pair = k_blocks == 1
            && tile_cycles >= prices::PAIRED_TILE_CYCLES
            && Finish::new(request).is_direct()
            && slots.classes.len() == 1
            && slots.of_strand == [0, 1];
        let convs = phases.iter().map(OutputPhases::as_conv).collect();
        Self { request, phases, convs, slots, products, k_blocks, can_pair }
    }

    /// The cheapest tiles. None if planes are too large, or if weights are `packed` for other channels of
    /// a panel and rows of a tile.
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
        let slabs: f64 = (0..self.convs.len()).map(|i| self.convs[i].output as f64 / positions(i) as f64).product();
        let work = self.slab_work(&sizes, mode, products) * ((geometry.batch * geometry.group) as f64 * slabs);
        let rows = (0..self.convs.len() - 1).map(positions).product();
        let Self { phases, slots, k_blocks, .. } = self;
        Some(PhasePlan { phases, slots, cut, sizes, rows, tiles, mode, k_blocks, work })
    }

    /// The slabs, whose planes have all channels. None if they are too large.
    fn cut(&self, most_bytes: usize) -> Option<(SlabCut, PlaneSizes)> {
        let Request { geometry, machine, threads, .. } = *self.request;
        let kept_rows = if self.k_blocks > 1 { tiles::TILE_ROWS.max(self.slots.with_taps) } else { 0 };
        let limits = SlabLimits {
            images: geometry.batch * geometry.group,
            block: geometry.in_channels_per_group(),
            budget_bytes: slab_bytes(machine).min(most_bytes),
            value_bytes: size_of::<T::Acc>(),
            threads,
            per_thread: PER_THREAD[0],
        };
        limits.cut(&self.convs, |columns| columns.saturating_mul(kept_rows))
    }

    /// Whether groups have one channel, and kernels can sum its phases.
    fn is_summed(&self) -> bool {
        let stride = self.phases[self.phases.len() - 1].axis.stride;
        let channels = (self.request.geometry.in_channels_per_group(), self.products.rows);
        channels == (1, 1) && stride.is_power_of_two() && stride <= MOST_SUMS
    }

    /// Vectors of columns of a slab.
    fn vectors(&self, sizes: &PlaneSizes) -> usize {
        sizes.columns.div_ceil(crate::lower::engine::lanes::<T::Acc>(self.request.isa()))
    }

    /// What a slab takes. Its tiles take `products`.
    fn slab_work(&self, sizes: &PlaneSizes, mode: PhaseMode, products: Work) -> Work {
        let (geometry, machine) = (self.request.geometry, self.request.machine);
        let channels = geometry.in_channels_per_group();
        let strides = self.phases.iter().map(|p| p.axis.stride as f64).product::<f64>();
        // Vectors of outputs of a slab.
        let outputs = self.products.rows as f64 * strides * self.vectors(sizes) as f64;
        let sums = if mode == PhaseMode::Summed {
            let taps = geometry.kernel_volume() as f64 / strides;
            machine.work(Item::ArithmeticCycles, outputs * taps / machine.fmas_per_cycle)
                + machine.work(Item::TransposedVectors, outputs)
        } else {
            let tiles = products
                + machine.work(Item::TransposedVectors, outputs)
                + machine.work(Item::StoredVectors, outputs * (self.k_blocks - 1) as f64);
            let bytes = geometry.weight_len() as f64 * size_of::<T::Acc>() as f64;
            machine.together(tiles, machine.fetch_weights(bytes / geometry.group as f64, bytes))
        };
        sums + machine.work(Item::CopiedElements, (channels * sizes.channel_len) as f64)
            + machine.work(Item::Tasks, 1.0)
    }

    /// How the sums of tiles get into Y.
    fn mode(&self, tiles: &PhaseTiles<T::Acc>) -> PhaseMode {
        let has_taps = |p: &OutputPhases| p.taps.iter().all(|taps| !taps.is_empty());
        let has_pairs = self.slots.with_taps * tiles.panels.height(0) <= tiles.mr
            && self.phases.iter().all(has_taps)
            && tiles.widest() <= MOST_PAIRED_VECTORS;
        if self.can_pair && has_pairs { PhaseMode::Paired } else { PhaseMode::Interleaved }
    }
}

/// How Y is split into tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhaseSplit {
    /// The groups of the layer, and the groups of a batch. What is prepared for a slab serves all
    /// groups of the batch.
    groups: usize,
    batch: usize,
    /// Its groups are the batches, and its columns the slabs.
    pub(super) tasks: GemmSplit,
}

impl PhaseSplit {
    /// Tasks have several groups where channels are summed one by one. Their planes take at most
    /// `most_bytes`.
    pub(super) fn new<T: Element>(request: &Request<'_, T>, plan: &PhasePlan<T::Acc>, most_bytes: usize) -> Self {
        let Request { geometry, machine, threads, .. } = *request;
        let (panels, slabs) = (plan.tiles.panels.count(), plan.sizes.slabs);
        let in_all = geometry.batch * geometry.group * slabs;
        let shares = if threads == 1 { 1 } else { threads.div_ceil(in_all).clamp(1, panels) };
        let fitting = group_plane_bytes(machine).min(most_bytes) / (plan.sizes.channel_len * size_of::<T::Acc>());
        let most = if plan.mode == PhaseMode::Summed { fitting.clamp(1, MOST_TASK_GROUPS) } else { 1 };
        let batch = most.min(geometry.group.div_ceil(TASKS_PER_THREAD * threads)).max(1);
        let groups = geometry.group.div_ceil(batch);
        let tasks = GemmSplit { images: geometry.batch, groups, columns: slabs, panels, shares };
        Self { groups: geometry.group, batch, tasks }
    }

    /// The groups of a batch.
    pub(super) fn groups(&self, batch: usize) -> Range<usize> {
        batch * self.batch..((batch + 1) * self.batch).min(self.groups)
    }
}

/// Outputs that are on their way to the sink at a time, at most, unless those of one channel are
/// more. They stay in the L1 cache.
const STAGED_ELEMENTS: usize = 4096;

/// The scratch of a task.
pub(super) struct PhaseScratch<A> {
    /// The planes of a batch of groups. Kernels read some vectors beyond them.
    pub(super) planes: Piece<A>,
    /// The sums of a panel, for a tile or for a whole slab.
    pub(super) sums: Piece<A>,
    /// Outputs of some channels on their way to the sink, if kernels do not store into Y.
    pub(super) outputs: Piece<A>,
    /// For each row of the slab, where its outputs go.
    pub(super) places: Piece<usize>,
}

impl<A: Real> PhaseScratch<A> {
    /// Books enough. `is_direct` says that kernels store into Y.
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
