//! What is decided for a layer: where positions are counted from, planes, tiles, how sums get
//! into Y, tasks and scratch.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::catalogue::spatial_kernels;
use convoke_kernels::weave::{MOST_SUMS, MOST_VECTORS};
use convoke_kernels::{Real, SpatialKernel};

use super::phases::{AxisPhases, PhaseSlots};
use super::planes::PhasePlanes;
use super::tiles::{self, ClassSize, PhaseProducts, PhaseTiles, TileChoices, TilesWanted};
use crate::element::Element;
use crate::exec::{Ledger, Piece};
use crate::lower::contract::Request;
use crate::lower::engine::a_block_bytes;
use crate::lower::layout::WeightLayout;
use crate::lower::planes::{MOST_BYTES, too_large};
use crate::lower::shares::{GemmSplit, TASKS_PER_THREAD};
use crate::lower::sink::Finish;
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Axis, Geometry};

/// The most output channels of a group that are summed channel by channel. More channels share
/// what tiles load.
const MOST_SUMMED_CHANNELS: usize = 8;
/// The most vectors of a strip whose pairs are stored: a list of their places is on the stack.
pub(super) const MOST_PAIRED_VECTORS: usize = 16;
/// The most groups of a task: more of them gain nothing.
const MOST_TASK_GROUPS: usize = 16;

/// Bytes of planes whose rows stay in the L1 cache from tap to tap, beside the rows of Y.
fn near_plane_bytes(machine: &Machine) -> usize {
    machine.l1_bytes / 3 * 2
}

/// Bytes of the planes of a task's groups, if it has several: they stay in the L2 cache.
fn group_plane_bytes(machine: &Machine) -> usize {
    machine.l2_bytes / 4
}

/// How sums get into Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhaseMode {
    /// A kernel sums all phases of one channel in registers, and interleaves them from there.
    /// There are no tiles, and K is one block.
    ChannelByChannel,
    /// The sums of a tile go to scratch, and are interleaved before the next tile is computed. K
    /// is one block.
    TileByTile,
    /// K has several blocks. The sums of a panel for a whole slab stay in scratch until all
    /// blocks are added. Then they are interleaved.
    PanelByPanel,
    /// A tile has both phases of a stride of 2. A kernel interleaves them from registers, as
    /// pairs. K is one block. Some sums go tile by tile all the same: those of strips with a
    /// vector that spans two rows of Y or is cropped, and all of a run with a residual.
    Paired(PairMode),
}

/// How pairs are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairMode {
    pub(super) loops: PairLoops,
    /// Whether lines of Y are fetched before a tile is computed.
    pub(super) is_fetched: bool,
}

/// The order of the loops over panels of channels and strips of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairLoops {
    /// All strips are multiplied with a panel before the next panel.
    PanelsOutside,
    /// All panels are multiplied with a strip before the next strip. The panels stay in the L2
    /// cache, and the rows of the strip in the L1 cache.
    StripsOutside,
}

/// Whether tiles are multiplied, or a kernel sums channel by channel. The cheaper one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PhaseWay {
    Tiles,
    Channels,
}

/// Whether kernels can sum channel by channel, if K is one block.
fn can_sum(geometry: &Geometry) -> bool {
    let stride = geometry.axes[geometry.axes.len() - 1].stride;
    geometry.out_channels_per_group() <= MOST_SUMMED_CHANNELS && stride.is_power_of_two() && stride <= MOST_SUMS
}

/// What is decided for a layer, and what it takes.
pub(super) struct PhasePlan<A: Real> {
    /// The phases of each axis.
    pub(super) phases: Vec<AxisPhases>,
    pub(super) slots: PhaseSlots,
    pub(super) planes: PhasePlanes,
    pub(super) tiles: PhaseTiles<A>,
    pub(super) mode: PhaseMode,
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
            Some(WeightLayout::PhasePanels { origins, .. } | WeightLayout::PhaseChannels { origins }) => Some(origins),
            Some(other) => return Err(other.mismatch()),
        };
        let axes = &request.geometry.axes;
        // Channel by channel, products are added in another order than in tiles. So which of both it is
        // must not depend on threads and limits.
        let is_alone = request.threads == 1 && most_bytes == usize::MAX;
        let by_channels = if is_alone || packed.is_some() || !can_sum(request.geometry) {
            None
        } else {
            let alone = Self::cheapest(&Request { threads: 1, ..*request }, usize::MAX)?;
            Some(alone.mode == PhaseMode::ChannelByChannel)
        };
        // If positions are counted from the output before it was cropped, the phases of the last
        // axis may read the same inputs. But there may be a position more.
        let (before, along) = axes.split_at(axes.len() - 1);
        let cropped = along[0].pad_begin % along[0].stride;
        let origins = [0, cropped];
        let plans = origins.iter().take(if cropped == 0 { 1 } else { 2 }).filter_map(|cropped| {
            let mut phases: Vec<_> = before.iter().map(|axis| AxisPhases::new(axis, 0)).collect();
            phases.push(AxisPhases::new(&along[0], *cropped));
            let is_packed = |origins: &Vec<usize>| phases.iter().map(AxisPhases::origin).eq(origins.iter().copied());
            packed.is_none_or(is_packed).then(|| PhaseLayer::new(request, phases).cheapest(most_bytes, by_channels))?
        });
        plans.min_by(|a, b| a.work.cycles().total_cmp(&b.work.cycles())).ok_or_else(|| match packed {
            Some(_) => String::from("the weights are packed for other pads or tiles"),
            None => too_large(axes, MOST_BYTES),
        })
    }

    /// What packed weights depend on.
    pub(super) fn layout(&self) -> WeightLayout {
        let origins = self.phases.iter().map(AxisPhases::origin).collect();
        match self.mode {
            PhaseMode::ChannelByChannel => WeightLayout::PhaseChannels { origins },
            _ => WeightLayout::PhasePanels { channels: self.tiles.panels.height(0), mr: self.tiles.mr, origins },
        }
    }
}

/// The mode, for those who read a plan.
impl<A: Real> fmt::Display for PhasePlan<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (channels, phases) = (self.tiles.panels.height(0), self.slots.with_taps);
        let interleaved = match self.mode {
            PhaseMode::ChannelByChannel => return write!(f, "{} summed channel by channel", Count(phases, "phase")),
            PhaseMode::TileByTile => "interleaved tile by tile",
            PhaseMode::PanelByPanel => "interleaved panel by panel",
            PhaseMode::Paired(PairMode { loops: PairLoops::PanelsOutside, .. }) => "stored in pairs without a residual",
            PhaseMode::Paired(PairMode { loops: PairLoops::StripsOutside, .. }) => {
                "stored in pairs without a residual, strips outside"
            }
        };
        let is_fetched = matches!(self.mode, PhaseMode::Paired(PairMode { is_fetched: true, .. }));
        let fetched = if is_fetched { ", lines of Y are fetched" } else { "" };
        write!(f, "{} by {} a tile, {interleaved}{fetched}", Count(channels, "channel"), Count(phases, "phase"))
    }
}

/// A layer by phases, whose planes and tiles are to be chosen.
struct PhaseLayer<'a, T: Element> {
    request: &'a Request<'a, T>,
    phases: Vec<AxisPhases>,
    slots: PhaseSlots,
    products: PhaseProducts,
    /// Blocks of K of the phase with the most taps.
    k_blocks: usize,
    /// Whether kernels can store pairs, if a tile has both phases of its channels.
    can_pair: bool,
}

impl<'a, T: Element> PhaseLayer<'a, T> {
    fn new(request: &'a Request<'a, T>, phases: Vec<AxisPhases>) -> Self {
        let geometry = request.geometry;
        let along = &phases[phases.len() - 1];
        let (slots, channels) = (PhaseSlots::new(along), geometry.in_channels_per_group());
        let class_size = |class: &Vec<usize>| ClassSize { phases: class.len(), taps: along.taps[class[0]].len() };
        let products = PhaseProducts {
            rows: geometry.out_channels_per_group(),
            classes: slots.classes.iter().map(class_size).collect(),
            outer_taps: geometry.kernel_volume() / along.axis.kernel,
            channels,
        };
        let most_taps = phases.iter().map(|p| p.taps.iter().map(Vec::len).max().unwrap_or(0)).product::<usize>();
        let k_blocks = channels.div_ceil(tiles::block_channels(channels, most_taps.max(1))).max(1);
        // The products of the largest tile.
        let most_fmas = spatial_kernels::<T::Acc>(request.isa()).iter().map(SpatialKernel::fmas).max().unwrap_or(0);
        let tile_cycles = (most_fmas * channels * most_taps) as f64 / request.machine.fmas_per_cycle;
        let can_pair = k_blocks == 1
            && tile_cycles >= request.machine.prices().paired_tile_cycles
            && Finish::new(request).is_direct()
            && along.axis.stride == 2
            && slots.classes == [[0, 1]];
        Self { request, phases, slots, products, k_blocks, can_pair }
    }

    /// The last axis.
    fn along(&self) -> &Axis {
        &self.phases[self.phases.len() - 1].axis
    }

    /// Phases of all axes but the last.
    fn outer_phases(&self) -> usize {
        self.phases[..self.phases.len() - 1].iter().map(|p| p.axis.stride).product()
    }

    /// The cheaper way, where it is decided whether channels are summed one by one. None if planes are
    /// too large, or if a kernel is lacking.
    fn cheapest(self, most_bytes: usize, by_channels: Option<bool>) -> Option<PhasePlan<T::Acc>> {
        let kept_rows = if self.k_blocks > 1 { tiles::TILE_ROWS.max(self.slots.with_taps) } else { 0 };
        let sums = |columns: usize| columns.saturating_mul(kept_rows);
        let planes = PhasePlanes::new(self.request, &self.phases, most_bytes, sums)?;
        let vectors = self.vectors(&planes);
        let mut best: Option<(Work, PhaseWay, PhaseTiles<T::Acc>)> = None;
        for way in [PhaseWay::Tiles, PhaseWay::Channels] {
            if by_channels.is_some_and(|by_channels| by_channels != (way == PhaseWay::Channels)) {
                continue;
            }
            let wanted = match (way, self.request.layout) {
                (PhaseWay::Channels, None | Some(WeightLayout::PhaseChannels { .. }))
                    if self.k_blocks == 1 && can_sum(self.request.geometry) =>
                {
                    TilesWanted::OneChannel
                }
                (PhaseWay::Tiles, None) => TilesWanted::Any,
                (PhaseWay::Tiles, Some(WeightLayout::PhasePanels { channels, mr, .. })) => {
                    TilesWanted::Packed { channels: *channels, mr: *mr }
                }
                _ => continue,
            };
            let choices = TileChoices::new(self.request.machine, &self.products, self.can_pair, wanted);
            let Some(tiles) = choices.cheapest(vectors) else { continue };
            let work = self.work(way, &planes, &tiles);
            if best.as_ref().is_none_or(|(least, ..)| work.cycles() < least.cycles()) {
                best = Some((work, way, tiles));
            }
        }
        let (work, way, tiles) = best?;
        let mode = self.mode(way, &tiles);
        Some(PhasePlan { phases: self.phases, slots: self.slots, planes, tiles, mode, work })
    }

    /// Vectors of columns of a slab.
    fn vectors(&self, planes: &PhasePlanes) -> usize {
        planes.columns.div_ceil(crate::lower::engine::lanes::<T::Acc>(self.request.isa()))
    }

    /// What all tasks take.
    fn work(&self, way: PhaseWay, planes: &PhasePlanes, tiles: &PhaseTiles<T::Acc>) -> Work {
        let (geometry, machine) = (self.request.geometry, self.request.machine);
        let (channels, vectors) = (self.products.channels, self.vectors(planes));
        // Vectors of outputs of a slab.
        let outputs = (self.products.rows * self.outer_phases() * self.along().stride) as f64 * vectors as f64;
        let products = if way == PhaseWay::Channels {
            let strides = self.phases.iter().map(|p| p.axis.stride as f64).product::<f64>();
            let taps = geometry.kernel_volume() as f64 / strides * channels as f64;
            let is_near = channels * planes.channel_len * size_of::<T::Acc>() <= near_plane_bytes(machine);
            let tap = if is_near { Item::SummedTaps } else { Item::SummedFarTaps };
            machine.work(tap, outputs * taps) + machine.work(Item::SummedVectors, outputs)
        } else {
            let tiles = tiles.work(machine, &self.products, vectors)
                + machine.work(Item::WovenVectors, outputs)
                + machine.work(Item::KeptVectors, outputs * (self.k_blocks - 1) as f64);
            let bytes = geometry.weight_len() as f64 * size_of::<T::Acc>() as f64;
            machine.together(tiles, machine.fetch_weights(bytes / geometry.group as f64, bytes))
        };
        let slab = products
            + machine.work(Item::PlaneElements, (channels * planes.channel_len) as f64)
            + machine.work(Item::Tasks, 1.0);
        slab * ((geometry.batch * geometry.group) as f64 * planes.full_slabs())
    }

    /// How sums get into Y.
    fn mode(&self, way: PhaseWay, tiles: &PhaseTiles<T::Acc>) -> PhaseMode {
        if way == PhaseWay::Channels {
            return PhaseMode::ChannelByChannel;
        }
        if self.k_blocks > 1 {
            return PhaseMode::PanelByPanel;
        }
        let has_taps = |p: &AxisPhases| p.taps.iter().all(|taps| !taps.is_empty());
        let has_pairs = self.slots.with_taps * tiles.panels.height(0) <= tiles.mr
            && self.phases.iter().all(has_taps)
            && tiles.widest() <= MOST_PAIRED_VECTORS;
        if !(self.can_pair && has_pairs) {
            return PhaseMode::TileByTile;
        }
        let Request { geometry, machine, .. } = *self.request;
        let weights = geometry.weight_len() / geometry.group / self.outer_phases();
        let is_small = weights * size_of::<T::Acc>() <= a_block_bytes(machine);
        PhaseMode::Paired(PairMode {
            loops: if is_small { PairLoops::StripsOutside } else { PairLoops::PanelsOutside },
            is_fetched: geometry.output_len() * size_of::<T>() > self.request.machine.near_y_bytes(),
        })
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
        let (panels, slabs) = (plan.tiles.panels.count(), plan.planes.slabs);
        let in_all = geometry.batch * geometry.group * slabs;
        let shares = if threads == 1 { 1 } else { threads.div_ceil(in_all).clamp(1, panels) };
        let group_bytes = plan.planes.channel_len * geometry.in_channels_per_group() * size_of::<T::Acc>();
        let fitting = group_plane_bytes(machine).min(most_bytes) / group_bytes.max(1);
        let batch = match plan.mode {
            PhaseMode::ChannelByChannel => fitting.clamp(1, MOST_TASK_GROUPS),
            _ => 1,
        };
        let batch = batch.min(geometry.group.div_ceil(TASKS_PER_THREAD * threads)).max(1);
        let batches = geometry.group.div_ceil(batch);
        let tasks = GemmSplit { images: geometry.batch, groups: batches, columns: slabs, panels, shares };
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
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PhaseScratch<A> {
    /// The planes of a batch of groups. Kernels read some vectors beyond them.
    pub(super) planes: Piece<A>,
    /// The sums of a panel, for a tile or for a whole slab.
    pub(super) sums: Piece<A>,
    /// Outputs of some channels on their way to the sink, if kernels do not store into Y.
    pub(super) outputs: Piece<A>,
    /// The slab's first position along each axis.
    pub(super) origin: Piece<usize>,
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
        let PhasePlan { phases, slots, planes, tiles, mode, .. } = plan;
        let planes_len = split.batch * geometry.in_channels_per_group() * planes.channel_len;
        let sums_vectors = match mode {
            PhaseMode::PanelByPanel => planes.columns.div_ceil(tiles.lanes),
            _ => tiles.widest(),
        };
        let stride = phases[phases.len() - 1].axis.stride;
        // A run of outputs of some channels.
        let run = tiles.widest() * tiles.lanes * stride;
        let staged = (STAGED_ELEMENTS / run.max(1)).clamp(1, tiles.panels.height(0).max(1));
        Self {
            planes: ledger.book("planes", planes_len + tiles.widest().max(MOST_VECTORS + 1) * tiles.lanes),
            sums: ledger.book("sums", slots.count * tiles.panels.height(0) * tiles.lanes * sums_vectors),
            outputs: ledger.book("outputs", if is_direct { 0 } else { run * staged }),
            origin: ledger.book("origin of the slab", phases.len()),
            places: ledger.book("places of rows", planes.rows),
        }
    }
}
