//! ConvTranspose without a column matrix: each phase of the strides is an ordinary convolution of
//! stride 1 over the same padded copy of X.
//!
//! M = M/group * the phases of the last axis that read the same inputs, K = C/group * the taps of a
//! phase, N = positions of a phase, for each image, group and phase of the other axes. No tap is
//! filled up with zeros: where the kernel is not a multiple of the stride, phases have K of their
//! own. A tile has all phases of the last axis for a panel of channels and a strip of positions; it
//! is interleaved from the L1 cache into Y, or from registers, whose elements are written once. K
//! is in blocks of channels, then taps, then channels of the block; between blocks the sums of one
//! panel are kept. Where an output has few products, each channel's phases are summed and
//! interleaved by one kernel, without tiles. Accepts ConvTranspose with strides up to
//! [`MOST_STRIDE`] and kernels up to [`MOST_TAPS`], where the planes of a slab fit 32 MiB. Scratch
//! for a task: the padded planes of all channels for one slab of the positions, and the sums of one
//! panel.

mod border;
mod pairs;
mod phases;
mod planes;
mod tiles;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::{spatial_kernels, weave_kernels};
use convoke_kernels::weave::{MOST_SUMS, MOST_VECTORS, Run, Strands, Sum};
use convoke_kernels::{Ahead, Dest, Isa, Real, RowOffsets, SpatialKernel, WeaveKernel};

use super::engine::{RowPanels, a_block_bytes};

use super::planes::{channels_per_block, for_each_position, step_of};
use super::sink::{Finish, Sink, no_epilogue};
use crate::element::Element;
use crate::exec::region::{Patch, Span, Split, Stores};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::shares::Part;

use crate::machine::Machine;
use crate::{Geometry, Op};
use phases::Phases;
use planes::{PhasePlanes, PhaseSlab};
use tiles::PhaseTiles;

/// Steps of k in a block, at the most (one channel's taps may be more), and channels: without taps
/// that share them, the rows of B for a tile of 32 columns then fill the L1 cache. (1024 to 512
/// channels, 2x2, stride 2 at 16x16 in ms: blocks of 256 4.87, of 342 4.68, of 512 4.9.)
const KC: usize = 512;
const MOST_BLOCK: usize = 352;
/// Channels whose taps follow each other in K: the rows of B that taps share are then still in the
/// L1 cache.
const INNER: usize = 16;
/// Strides of an axis, phases of all axes but the last, and taps, at the most: tables grow with
/// them.
const MOST_STRIDE: usize = 512;
const MOST_OUTER_PHASES: usize = 1 << 12;
const MOST_TAPS: usize = 1 << 16;
/// Output channels of a group that are summed one by one, at the most: more of them share what
/// tiles load.
const MOST_SUMMED: usize = 8;
/// Bytes of planes whose rows stay in the L1 cache from tap to tap, beside Y's.
fn near_plane_bytes(machine: &Machine) -> usize {
    machine.l1_bytes / 3 * 2
}
/// Bytes of Y, an absolute size until it is measured with other caches, up to which its lines are
/// in the caches when pairs of phases are stored; those of a larger one are fetched before the
/// tile. (128 to 64 channels, 2x2, stride 2 at 128x128, 16 MiB, in ms: interleaved from scratch
/// 5.6, pairs 7.0, pairs with lines fetched 5.25.)
const NEAR_BYTES: usize = 4 << 20;
/// Cycles that a tile's products must take for pairs to be stored from registers: panels of which
/// one kernel has all rows have more tiles (AVX2, 64 to 32 channels: 2x2x2 at 16x16x16 14 % slower,
/// 2x2 at 57x57 15 %; 128 to 64 2 to 5 % faster).
const PAIRED_CYCLES: usize = 600;
/// Runs of outputs that one call interleaves, of a strip and of a slab, and vectors of a strip:
/// lists of them are on the stack.
const STRIP_RUNS: usize = 8;
const STRIP_VECTORS: usize = 16;
const SLAB_RUNS: usize = 32;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::ConvTranspose {
        return Err(String::from("only for ConvTranspose"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    for (i, axis) in geometry.axes.iter().enumerate() {
        if axis.stride > MOST_STRIDE {
            return Err(alloc::format!("spatial axis {i} has stride {}, more than {MOST_STRIDE}", axis.stride));
        }
    }
    let last = geometry.axes.len() - 1;
    let outer_phases = geometry.axes[..last].iter().try_fold(1_usize, |n, a| n.checked_mul(a.stride));
    if outer_phases.is_none_or(|n| n > MOST_OUTER_PHASES) {
        let strides: Vec<_> = geometry.axes[..last].iter().map(|a| a.stride).collect();
        return Err(alloc::format!(
            "the strides {strides:?} of all spatial axes but the last have a product above {MOST_OUTER_PHASES}"
        ));
    }
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, at most {MOST_TAPS} can be", geometry.kernel_volume()));
    }
    let Some(weave) = weave_kernels::<T::Acc>(request.isa()).first() else {
        return Err(String::from("no kernel that interleaves"));
    };
    // The last axis' phases read the same inputs where they are counted from the uncropped output;
    // but then there may be a position more.
    let along = &geometry.axes[last];
    let origins = [0, along.pad_begin % along.stride];
    let choices = origins.iter().take(if origins[1] == 0 { 1 } else { 2 }).filter_map(|cropped| {
        let axes = geometry.axes.iter().enumerate();
        let phases: Vec<_> = axes.map(|(i, axis)| Phases::new(axis, if i == last { *cropped } else { 0 })).collect();
        if let Some(WeightLayout::Phases { origins, .. }) = request.layout
            && !origins.iter().copied().eq(origins_of(&phases))
        {
            return None;
        }
        PhaseChoice::new(request, phases, most)
    });
    let Some(choice) = choices.min_by(|a, b| a.cycles.total_cmp(&b.cycles)) else {
        return Err(match request.layout {
            Some(_) => String::from("the weights are packed for other pads or tiles"),
            None => super::planes::too_large(&geometry.axes, super::planes::MOST_BYTES),
        });
    };
    let machine = request.machine;
    let PhaseChoice { cycles, phases, classes, slots, planes, tiles, is_summed, is_blocked, can_pair } = choice;
    let channels = geometry.in_channels_per_group();
    let has_dead = slots < along.stride;
    let slabs = geometry.batch * geometry.group * planes.slabs;
    let splits = if request.threads == 1 { 1 } else { request.threads.div_ceil(slabs).clamp(1, tiles.panels.count()) };
    // What is decided for a slab serves several groups where groups are small.
    let batch =
        if is_summed { most_groups(machine, planes.channel_len * channels * size_of::<T::Acc>(), most) } else { 1 };
    let batch = batch.min(geometry.group.div_ceil(4 * request.threads)).max(1);
    let planes_len = batch * channels * planes.channel_len + tiles.widest().max(MOST_VECTORS + 1) * tiles.lanes;
    let sums_of_vector = (slots + usize::from(has_dead)) * tiles.panels.height(0) * tiles.lanes;
    let sums_len = sums_of_vector * if is_blocked { planes.columns.div_ceil(tiles.lanes) } else { tiles.widest() };
    let buffer_len = tiles.widest() * tiles.lanes * geometry.axes[last].stride;
    let values = [planes_len, sums_len, buffer_len].map(lines_for::<T::Acc>);
    let numbers = [geometry.axes.len(), planes.rows].map(lines_for::<usize>);
    Ok(Offer::old(
        request.machine,
        cycles / machine.clock_ghz,
        values.iter().chain(&numbers).fold(0, |sum, lines| sum.saturating_add(*lines)),
        Box::new(move || {
            let planes = planes.with_tables();
            let mut slot_of = alloc::vec![slots; geometry.axes[last].stride];
            for (slot, r) in classes.iter().flatten().enumerate() {
                slot_of[*r] = slot;
            }
            let (tall, low) = (tiles.panels.height(0), tiles.panels.height(tiles.panels.count() - 1));
            let heights = ([tall, low], tiles.mr);
            let outers = Outer::all(&phases, &classes, &planes, channels, heights);
            let is_one_tile = |outer: &Outer| match &outer.passes[..] {
                [pass] => pass.subs.iter().all(|panels| panels.count() == 1),
                _ => false,
            };
            let is_paired = can_pair && !is_summed && tiles.widest() <= STRIP_VECTORS && outers.iter().all(is_one_tile);
            let outer_bytes = geometry.weight_len() / geometry.group / outers.len() * size_of::<T::Acc>();
            let is_near = geometry.output_len() * size_of::<T>() <= NEAR_BYTES;
            let strips_first = is_paired && outer_bytes <= a_block_bytes(machine);
            Box::new(Transposed {
                geometry: geometry.clone(),
                channel_len: channels * geometry.kernel_volume(),
                spatial: geometry.output_spatial(),
                isa: request.isa(),
                finish: Finish::new(request),
                phases,
                classes,
                slot_of,
                slots,
                has_dead,
                outers,
                nothing: RowOffsets::new(Vec::new()),
                planes,
                tiles,
                weave,
                is_blocked,
                is_summed,
                is_paired,
                is_near,
                strips_first,
                batch,
                splits,
                planes_len,
                sums_len,
                buffer_len,
            })
        }),
    ))
}

/// Where the taps of each axis' phases are counted from: the packed weights depend on it.
fn origins_of(phases: &[Phases]) -> impl Iterator<Item = usize> {
    phases.iter().map(|p| (p.axis.pad_begin + p.axis.stride - p.cropped) % p.axis.stride)
}

/// Channels in a block of k.
fn block_of(channels: usize, taps: usize) -> usize {
    channels_per_block(channels, taps, KC.min(MOST_BLOCK * taps))
}

/// Groups of a task whose planes, of `bytes` each, stay in the L2 cache, and do not exceed `most`
/// bytes.
fn most_groups(machine: &Machine, bytes: usize, most: usize) -> usize {
    ((machine.l2_bytes / 4).min(most) / bytes.max(1)).clamp(1, 16)
}

/// Phases with the planes and tiles that are cheapest for them.
struct PhaseChoice<A: Real> {
    /// Of all tasks.
    cycles: f64,
    phases: Vec<Phases>,
    classes: Vec<Vec<usize>>,
    /// Phases of the last axis that have taps.
    slots: usize,
    planes: PhasePlanes,
    tiles: PhaseTiles<A>,
    is_summed: bool,
    is_blocked: bool,
    /// Whether kernels can interleave the phases of the last axis, if a tile has both of its
    /// channels.
    can_pair: bool,
}

impl<A: Real> PhaseChoice<A> {
    /// None where planes are too large, or a kernel is lacking.
    fn new<T: Element<Acc = A>>(request: &Request<'_, T>, phases: Vec<Phases>, most: usize) -> Option<Self> {
        let (geometry, machine) = (request.geometry, request.machine);
        let prices = machine.prices();
        let (last, outer) = phases.split_last()?;
        let classes = last.classes();
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let work = tiles::Work {
            rows,
            classes: classes.iter().map(|class| (class.len(), last.taps[class[0]].len())).collect(),
            outer_taps: geometry.kernel_volume() / last.axis.kernel,
            channels,
        };
        let longest = phases.iter().map(|p| p.taps.iter().map(Vec::len).max().unwrap_or(0)).product::<usize>();
        let k_blocks = channels.div_ceil(block_of(channels, longest.max(1))).max(1);
        let is_blocked = k_blocks > 1;
        let slots = classes.iter().map(Vec::len).sum::<usize>();
        let outer_phases = outer.iter().map(|p| p.axis.stride).product::<usize>();
        let outputs = (rows * outer_phases * last.axis.stride) as f64;
        let widest = spatial_kernels::<A>(request.isa()).iter().map(SpatialKernel::fmas).max().unwrap_or(0);
        let can_pair = !is_blocked
            && widest / 2 * channels * longest >= PAIRED_CYCLES
            && Finish::new(request).is_direct()
            && last.axis.stride == 2
            && classes == [[0, 1]];
        let can_sum = !is_blocked && rows <= MOST_SUMMED && [1, 2, 4, 8].contains(&last.axis.stride);
        let mut best: Option<(f64, PhasePlanes, PhaseTiles<A>, bool)> = None;
        for (is_dense, is_summed) in [(false, false), (true, false), (false, true)] {
            let packed = match request.layout {
                Some(WeightLayout::Phases { channels, mr, is_summed, .. }) => Some((*channels, *mr, *is_summed)),
                _ => None,
            };
            if is_summed && !can_sum || packed.is_some_and(|(.., packed)| packed != is_summed) {
                continue;
            }
            let sums = |columns: usize| if is_blocked { columns.saturating_mul(tiles::ROWS.max(slots)) } else { 0 };
            let Some(planes) = PhasePlanes::new(request, &phases, is_dense, most, sums) else { continue };
            let vectors = planes.columns.div_ceil(super::engine::lanes::<A>(request.isa()));
            let packed = if is_summed { Some((1, 1)) } else { packed.map(|(channels, mr, _)| (channels, mr)) };
            let Some(tiles) = PhaseTiles::choose(machine, &work, vectors, can_pair, packed) else { continue };
            let outputs = outputs * vectors as f64;
            let arithmetic = if is_summed {
                let strides = phases.iter().map(|p| p.axis.stride as f64).product::<f64>();
                let taps = geometry.kernel_volume() as f64 / strides;
                let is_near = channels * planes.channel_len * size_of::<A>() <= near_plane_bytes(machine);
                let tap = if is_near { prices.summed_tap_cycles } else { prices.summed_far_cycles };
                outputs * (taps * channels as f64 * tap + prices.summed_cycles)
            } else {
                let sums = (k_blocks - 1) as f64 * prices.sum_cycles;
                let cycles = tiles.cycles(machine, &work, vectors) + outputs * (prices.weave_cycles + sums);
                let weights = geometry.weight_len() as f64 * size_of::<A>() as f64;
                machine.overlapped(cycles, machine.fetch_weights(weights / geometry.group as f64, weights).cycles())
            };
            let cycles = arithmetic + (channels * planes.channel_len) as f64 * prices.plane_cycles + prices.task_cycles;
            let cycles = (geometry.batch * geometry.group) as f64 * planes.full_slabs() * cycles;
            if best.as_ref().is_none_or(|(least, ..)| cycles < *least) {
                best = Some((cycles, planes, tiles, is_summed));
            }
        }
        let (cycles, planes, tiles, is_summed) = best?;
        Some(Self { cycles, phases, classes, slots, planes, tiles, is_summed, is_blocked, can_pair })
    }
}

/// One phase of the axes before the last.
struct Outer {
    /// The phase of each of them.
    r: Vec<usize>,
    /// The positions in the kernel of its taps, on these axes.
    taps: Vec<usize>,
    /// One for each class of phases of the last axis; none if the phase has no taps.
    passes: Vec<Pass>,
}

/// The products of an [`Outer`] for one class of phases of the last axis.
struct Pass {
    /// The index of the class, and its first slot.
    class: usize,
    slot: usize,
    /// Phases of the class.
    phases: usize,
    /// Its rows, for the higher panels of channels and for the lower ones.
    subs: [RowPanels; 2],
    /// Taps.
    taps: usize,
    /// Channels in a block of k.
    block: usize,
    /// The rows of a full block of k, and of the last one.
    koff: [RowOffsets; 2],
    /// Values of the packed weights before it, for each row of a panel and channel of X.
    before: usize,
}

impl Pass {
    /// The tap and the channel of step `k`.
    fn step(&self, k: usize, channels: usize) -> (usize, usize) {
        let first = k / (self.block * self.taps) * self.block;
        let (t, c) = step_of(k - first * self.taps, self.block.min(channels - first), self.taps, INNER);
        (t, first + c)
    }
}

impl Outer {
    /// `heights` are those of panels of channels, and of the highest kernel.
    fn all(
        phases: &[Phases],
        classes: &[Vec<usize>],
        planes: &PhasePlanes,
        channels: usize,
        heights: ([usize; 2], usize),
    ) -> Vec<Self> {
        let (last, outer) = phases.split_last().expect("at least one axis");
        let mut before = 0;
        let counts: Vec<_> = outer.iter().map(|p| p.axis.stride).collect();
        let mut all = Vec::with_capacity(counts.iter().product());
        for_each_position(&counts, |r| {
            let taps_of: Vec<_> = outer.iter().zip(r).map(|(p, r)| &p.taps[*r]).collect();
            let lengths: Vec<_> = taps_of.iter().map(|taps| taps.len()).collect();
            let (mut taps, mut offsets) = (Vec::new(), Vec::new());
            for_each_position(&lengths, |index| {
                let (mut k, mut offset) = (0, 0);
                for (i, t) in index.iter().enumerate() {
                    k = k * outer[i].axis.kernel + taps_of[i][*t].k;
                    offset += taps_of[i][*t].shift * planes.pitches[i];
                }
                taps.push(k);
                offsets.push(offset);
            });
            let mut slot = 0;
            let passes = classes.iter().enumerate().filter(|_| !taps.is_empty()).map(|(class, members)| {
                let of_last = &last.taps[members[0]];
                let count = taps.len() * of_last.len();
                let block = block_of(channels, count);
                let edge = channels - (channels.div_ceil(block).max(1) - 1) * block;
                let koff = [block, edge].map(|width| {
                    let mut koff = Vec::with_capacity(count * width);
                    for step in 0..count * width {
                        let (t, c) = step_of(step, width, count, INNER);
                        let at = offsets[t / of_last.len()] + planes.last_offset(of_last[t % of_last.len()].shift);
                        koff.push((c * planes.channel_len + at) as u32);
                    }
                    RowOffsets::new(koff)
                });
                let subs = heights.0.map(|height| RowPanels::new(members.len() * height, heights.1));
                let pass = Pass { class, slot, phases: members.len(), subs, taps: count, block, koff, before };
                before += members.len() * count;
                slot += members.len();
                pass
            });
            let passes = passes.collect();
            all.push(Self { r: r.to_vec(), taps, passes });
        });
        all
    }
}

struct Transposed<T: Element> {
    geometry: Geometry,
    /// Values of the packed weights of one output channel, and elements of one in Y.
    channel_len: usize,
    spatial: usize,
    isa: Isa,
    finish: Finish<T::Acc>,
    phases: Vec<Phases>,
    /// The phases of the last axis that read the same inputs.
    classes: Vec<Vec<usize>>,
    /// For each phase of the last axis, its place among the rows of a tile; phases without taps
    /// share the place behind the others.
    slot_of: Vec<usize>,
    slots: usize,
    has_dead: bool,
    outers: Vec<Outer>,
    /// No rows: of phases without taps.
    nothing: RowOffsets,
    planes: PhasePlanes,
    tiles: PhaseTiles<T::Acc>,
    weave: &'static WeaveKernel<T::Acc>,
    /// Whether sums are kept between blocks of k.
    is_blocked: bool,
    /// Whether kernels sum and weave single channels, without tiles.
    is_summed: bool,
    /// Whether a tile has both phases of the last axis for a panel's channels, and kernels can
    /// interleave them.
    is_paired: bool,
    /// Whether Y stays in the caches.
    is_near: bool,
    /// Whether all panels are multiplied with a strip before the next one, whose rows stay in the
    /// L1 cache as the panels do in L2.
    strips_first: bool,
    /// Groups of a task.
    batch: usize,
    /// Shares that the panels are split into.
    splits: usize,
    planes_len: usize,
    sums_len: usize,
    buffer_len: usize,
}

/// A strip of a slab's columns, as wide as a tile. Changed where it is, and not moved, for the same
/// reason as [`Panel`] has no slices.
#[derive(Default)]
struct Strip {
    vectors: Range<usize>,
    /// The runs of outputs that it gives, the first `count` of the list, and the slab's row that
    /// follows them.
    runs: [Run; STRIP_RUNS],
    count: usize,
    row: usize,
    /// Whether all vectors have whole pairs of outputs, and where those go, in elements from the
    /// beginning of a channel.
    is_whole: bool,
    places: [usize; STRIP_VECTORS],
}

/// A panel of output channels. Slices are made where they are used: a pair of pointer and length
/// that is written to the stack and copied as a whole waits for all stores before it, those of the
/// last tile into Y among them (10 % of a layer of 128 channels).
struct Panel {
    /// The first channel, of all groups'; how many there are; and whether other panels follow it.
    channel: usize,
    height: usize,
    has_next: bool,
    /// The first element of its first channel in Y.
    at: usize,
}

impl Panel {
    /// What is stored of some runs of each of its channels, which have `positions` positions.
    fn stores(&self, runs: &[Run], positions: usize) -> impl Iterator<Item = Stores> {
        runs.iter().map(move |run| Stores::row(self.at + run.at, run.len).times(self.height, positions))
    }
}

impl<T: Element> Transposed<T> {
    /// Steps of k of a pass.
    fn k_of(&self, pass: &Pass) -> usize {
        self.geometry.in_channels_per_group() * pass.taps
    }

    /// The position in the kernel of tap `t` of a pass, for the phase `r` of the last axis.
    fn tap(&self, outer: &Outer, r: usize, t: usize) -> usize {
        let last = &self.phases[self.phases.len() - 1];
        let of_last = &last.taps[r];
        outer.taps[t / of_last.len()] * last.axis.kernel + of_last[t % of_last.len()].k
    }

    /// Elements from one channel's sums of a tile to the next phase's: a strip begins at `first`
    /// vectors.
    fn strip_at(&self, panel: usize, first: usize) -> usize {
        if !self.is_blocked {
            return 0;
        }
        (self.slots + usize::from(self.has_dead)) * panel * first * self.tiles.lanes
    }

    /// Computes the sums of one panel for the strips `strips` (in vectors) of a slab.
    fn multiply(
        &self,
        io: &Io<'_, T>,
        (outer, panel): (&Outer, &Panel),
        strips: Range<usize>,
        planes: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let channels = self.geometry.in_channels_per_group();
        if outer.passes.is_empty() || channels == 0 {
            return sums.fill(T::Acc::ZERO);
        }
        let all = &io.weights[panel.channel * self.channel_len..];
        for pass in &outer.passes {
            let k_total = self.k_of(pass);
            let a = &all[pass.before * channels * panel.height..];
            let subs = &pass.subs[usize::from(panel.height != self.tiles.panels.height(0))];
            let next = if panel.has_next { panel.height * self.channel_len } else { all.len() };
            let next = all.get(next + pass.before * channels * panel.height..).unwrap_or(&[]);
            for first in (0..channels).step_by(pass.block) {
                let width = pass.block.min(channels - first);
                let koff = pass.koff[usize::from(width != pass.block)].rows(0..width * pass.taps);
                let (from, to) = (first * pass.taps, (first + width) * pass.taps);
                let mut vector = strips.start;
                while vector < strips.end {
                    let kernels = self.tiles.width(strips.end - vector);
                    let nr = kernels.nrv * self.tiles.lanes;
                    let b = &planes[first * self.planes.channel_len + vector * self.tiles.lanes..];
                    let at = self.strip_at(panel.height, vector) + pass.slot * panel.height * nr;
                    for sub in 0..subs.count() {
                        let (row, height) = (subs.start(sub), subs.height(sub));
                        // While the first strip is multiplied, the next block of k is fetched, or
                        // the next panel's first one: a line with each step of k.
                        let ahead = match vector {
                            0 if to < k_total => a.get(row * k_total + to * height..),
                            0 => next.get(row * k_total..),
                            _ => None,
                        };
                        let ahead = ahead.map_or(Ahead::NONE, Ahead::lines);
                        let a = &a[row * k_total + from * height..row * k_total + to * height];
                        let tile = &mut sums[at + row * nr..at + (row + height) * nr];
                        kernels.of_height(height).partial(a, b, koff, ahead, tile, first > 0);
                    }
                    vector += kernels.nrv;
                }
            }
        }
    }

    /// Interleaves some runs of a strip of `nr` columns.
    fn store(
        &self,
        sink: &Sink<'_, '_, T>,
        panel: &Panel,
        runs: &[Run],
        sums: &[T::Acc],
        nr: usize,
        buffer: &mut [T::Acc],
    ) {
        let bias = &sink.io.bias[panel.channel..panel.channel + panel.height];
        let spatial = self.spatial;
        let strands = Strands { sums, slots: &self.slot_of, step: panel.height * nr, pitch: nr };
        if let Some((mut y, epilogue)) = sink.direct(panel.at, bias, panel.stores(runs, spatial)) {
            return self.weave.run(&strands, runs, &epilogue, &mut y, spatial);
        }
        for (c, bias) in bias.iter().enumerate() {
            let strands = Strands { sums: &strands.sums[c * nr..], ..strands };
            for run in runs {
                let row = &mut buffer[..run.len];
                self.weave.run(
                    &strands,
                    &[Run { at: 0, ..*run }],
                    &no_epilogue(&[T::Acc::ZERO]),
                    &mut Dest::from_slice(row),
                    0,
                );
                sink.row(row, *bias, panel.at + c * spatial + run.at);
            }
        }
    }

    /// The runs of outputs of a strip, `nr` columns from `column` on, from row `row` of the slab
    /// on; `places` are those of its rows. Fills `runs`, and gives how many there are, and the row
    /// that follows.
    fn runs(
        &self,
        (slab, places): (&PhaseSlab<'_>, &[usize]),
        (column, nr): (usize, usize),
        mut row: usize,
        runs: &mut [Run],
    ) -> (usize, usize) {
        let last = &self.phases[self.phases.len() - 1];
        let (width, origin) = (slab.width, slab.origin[self.phases.len() - 1]);
        let mut count = 0;
        while count < runs.len() && row < places.len() {
            let (begin, place) = (self.planes.row_columns()[row], places[row]);
            if begin >= column + nr {
                break;
            }
            row += 1;
            if place == usize::MAX {
                continue;
            }
            let (from, to) = (column.max(begin) - begin, (column + nr).min(begin + width) - begin);
            let (o, end) = ((origin + from) * last.axis.stride, (origin + to) * last.axis.stride - last.cropped);
            let phase = last.cropped.saturating_sub(o);
            let o = (o + phase) - last.cropped;
            let len = end.min(last.axis.output).saturating_sub(o);
            runs[count] = Run { from: begin + from - column, phase, at: place + o, len };
            count += 1;
        }
        (count, row)
    }

    /// Sets `strip` to the one that begins with vector `first` of a slab's `vectors`; `places` are
    /// those of the slab's rows.
    fn set_strip(&self, (slab, places): (&PhaseSlab<'_>, &[usize]), first: usize, vectors: usize, strip: &mut Strip) {
        let lanes = self.tiles.lanes;
        strip.vectors = first..first + self.tiles.width(vectors - first).nrv;
        let nr = strip.vectors.len() * lanes;
        let begins = &self.planes.row_columns()[..places.len()];
        let row = begins.partition_point(|begin| begin + slab.width <= first * lanes);
        (strip.count, strip.row) = self.runs((slab, places), (first * lanes, nr), row, &mut strip.runs);
        strip.is_whole = self.is_paired
            && tiles::pair_places(&strip.runs[..strip.count], &mut strip.places[..strip.vectors.len()], lanes)
                .is_some();
    }

    /// Computes the sums of one panel for one strip, unless that is done, and interleaves them into
    /// Y.
    fn strip(
        &self,
        sink: &Sink<'_, '_, T>,
        (outer, panel): (&Outer, &Panel),
        (slab, places): (&PhaseSlab<'_>, &[usize]),
        strip: &Strip,
        planes: &[T::Acc],
        (sums, buffer): (&mut [T::Acc], &mut [T::Acc]),
    ) {
        let (column, nr) = (strip.vectors.start * self.tiles.lanes, strip.vectors.len() * self.tiles.lanes);
        let io = sink.io;
        if !self.is_blocked {
            // The lines of Y come while the products are computed: stores that miss the caches
            // would wait for them one after the other.
            if let Some(y) = T::dest_as_acc(io.y.dest(panel.at, [])) {
                self.weave.fetch(&strip.runs[..strip.count], panel.height, &y, self.spatial);
            }
            self.multiply(io, (outer, panel), strip.vectors.clone(), planes, sums);
        }
        if self.has_dead {
            sums[self.slots * panel.height * nr..][..panel.height * nr].fill(T::Acc::ZERO);
        }
        self.store(sink, panel, &strip.runs[..strip.count], sums, nr, buffer);
        // There may be more of very short rows.
        let (mut count, mut row) = (strip.count, strip.row);
        while count == STRIP_RUNS {
            let mut runs = [Run::default(); STRIP_RUNS];
            (count, row) = self.runs((slab, places), (column, nr), row, &mut runs);
            self.store(sink, panel, &runs[..count], sums, nr, buffer);
        }
    }

    /// Sums and interleaves all of a slab of one channel.
    fn sum(
        &self,
        sink: &Sink<'_, '_, T>,
        (outer, panel): (&Outer, &Panel),
        (slab, places): (&PhaseSlab<'_>, &[usize]),
        planes: &[T::Acc],
        buffer: &mut [T::Acc],
    ) {
        let io = sink.io;
        let (a, bias) = (&io.weights[panel.channel * self.channel_len..], &io.bias[panel.channel..=panel.channel]);
        let mut strands = [Sum { w: &[], koff: self.nothing.rows(0..0) }; MOST_SUMS];
        for pass in &outer.passes {
            let k = self.k_of(pass);
            for (member, r) in self.classes[pass.class].iter().enumerate() {
                let first = pass.before * self.geometry.in_channels_per_group() + member * k;
                strands[*r] = Sum { w: &a[first..first + k], koff: pass.koff[0].rows(0..k) };
            }
        }
        let strands = &strands[..self.slot_of.len()];
        let columns = (0, self.planes.columns_of(slab));
        let mut runs = [Run::default(); SLAB_RUNS];
        let (mut count, mut row) = self.runs((slab, places), columns, 0, &mut runs);
        while count > 0 {
            let runs_here = &runs[..count];
            if let Some((mut y, epilogue)) = sink.direct(panel.at, bias, panel.stores(runs_here, self.spatial)) {
                self.weave.sum(planes, strands, runs_here, &epilogue, &mut y);
            } else {
                for run in &runs[..count] {
                    // A run may be a whole row of the slab: more than the buffer holds.
                    for first in (0..run.len).step_by(self.buffer_len) {
                        let buffer = &mut buffer[..self.buffer_len.min(run.len - first)];
                        let part =
                            Run { from: run.from + first / self.slot_of.len(), at: 0, len: buffer.len(), ..*run };
                        self.weave.sum(
                            planes,
                            strands,
                            &[part],
                            &no_epilogue(&[T::Acc::ZERO]),
                            &mut Dest::from_slice(buffer),
                        );
                        sink.row(buffer, bias[0], panel.at + run.at + first);
                    }
                }
            }
            (count, row) = self.runs((slab, places), columns, row, &mut runs);
        }
    }
}

impl<T: Element> Transposed<T> {
    /// The image, batch of groups, slab and panels of a task.
    fn part(&self, task: usize) -> Part {
        let (count, batches) = (self.tiles.panels.count(), self.geometry.group.div_ceil(self.batch));
        Part::new((task, self.tasks()), batches, self.planes.slabs, count, self.splits)
    }

    /// The groups of a batch.
    fn groups(&self, batch: usize) -> Range<usize> {
        batch * self.batch..((batch + 1) * self.batch).min(self.geometry.group)
    }
}

impl<T: Element> Split for Transposed<T> {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group.div_ceil(self.batch) * self.planes.slabs * self.splits
    }

    /// Along each axis, all phases of the slab's positions: neighbouring outputs.
    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.part(task);
        let (rows, panels) = (self.geometry.out_channels_per_group(), &self.tiles.panels);
        for group in self.groups(part.group) {
            let first = group * rows;
            let channels = first + panels.start(part.panels.start)..first + panels.start(part.panels.end);
            let span = |axis: usize| {
                let phases = &self.phases[axis];
                let at = |position: usize| {
                    (position * phases.axis.stride).saturating_sub(phases.cropped).min(phases.axis.output)
                };
                let positions = self.planes.positions(part.columns, axis);
                Span::new(at(positions.start)..at(positions.end), phases.axis.output)
            };
            Patch::for_each_box(part.image..part.image + 1, &channels, self.phases.len(), span, patch);
        }
    }
}

impl<T: Element> Lowering<T> for Transposed<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::Phases {
            channels: self.tiles.panels.height(0),
            mr: self.tiles.mr,
            is_summed: self.is_summed,
            origins: origins_of(&self.phases).collect(),
        }
    }

    fn describe(&self) -> String {
        alloc::format!(
            "{}, {} channels by {} phases a tile{}, {} slabs of {} columns, panels in {} shares",
            self.kernel(),
            self.tiles.panels.height(0),
            self.slots,
            if self.is_paired { " stored in pairs" } else { "" },
            self.planes.slabs,
            self.planes.columns,
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        if self.is_summed { self.weave.name() } else { self.tiles.name() }
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let rows = self.geometry.out_channels_per_group();
        if channels == 0 {
            return;
        }
        for (group, packed) in packed.chunks_exact_mut(rows * self.channel_len).enumerate() {
            for p in 0..self.tiles.panels.count() {
                let (row, height) = (self.tiles.panels.start(p), self.tiles.panels.height(p));
                let packed = &mut packed[row * self.channel_len..];
                for outer in &self.outers {
                    for pass in &outer.passes {
                        let members = &self.classes[pass.class];
                        let k_total = self.k_of(pass);
                        let packed = &mut packed[pass.before * channels * height..][..pass.phases * height * k_total];
                        pass.subs[usize::from(height != self.tiles.panels.height(0))].pack(k_total, packed, |i, k| {
                            let (t, c) = pass.step(k, channels);
                            let tap = self.tap(outer, members[i / height], t);
                            w[((group * channels + c) * rows + row + i % height) * taps + tap].to_acc()
                        });
                    }
                }
            }
        }
    }

    /// One share of the panels, for one slab of one batch of groups of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let Part { image, group: batch, columns, panels } = self.part(task);
        let groups = self.groups(batch);
        let mut arena = Arena::new(scratch);
        let planes = arena.take::<T::Acc>(self.planes_len);
        let sums = arena.take::<T::Acc>(self.sums_len);
        let buffer = arena.take::<T::Acc>(self.buffer_len);
        let slab = self.planes.slab(columns, arena.take::<usize>(geometry.axes.len()));
        let places = &mut arena.take::<usize>(self.planes.rows)[..self.planes.rows_of(&slab)];

        let x = &io.x[(image * geometry.in_channels + groups.start * channels) * geometry.input_spatial()..];
        let filled = &mut planes[..groups.len() * channels * self.planes.channel_len];
        self.planes.fill(self.isa, &self.phases, &slab, x, filled);
        let sink = self.finish.sink(io);
        let vectors = self.planes.columns_of(&slab).div_ceil(self.tiles.lanes);
        let mut strip = Strip::default();
        let clamp = if self.is_paired && io.residual.is_none() { self.finish.clamp() } else { None };
        for outer in &self.outers {
            self.planes.places(&self.phases, &slab, &outer.r, places);
            if places.iter().all(|place| *place == usize::MAX) {
                continue;
            }
            for group in groups.clone() {
                let planes = &planes[(group - groups.start) * channels * self.planes.channel_len..];
                let panel = |p: usize| {
                    let channel = group * rows + self.tiles.panels.start(p);
                    let at = (image * geometry.out_channels + channel) * self.spatial;
                    Panel { channel, height: self.tiles.panels.height(p), has_next: p + 1 < panels.end, at }
                };
                let per_strip = if self.strips_first && clamp.is_some() { panels.len().max(1) } else { 1 };
                for first in panels.clone().step_by(per_strip) {
                    let part = first..(first + per_strip).min(panels.end);
                    if self.is_summed {
                        self.sum(&sink, (outer, &panel(first)), (&slab, places), planes, buffer);
                        continue;
                    }
                    if self.is_blocked {
                        self.multiply(io, (outer, &panel(first)), 0..vectors, planes, sums);
                    }
                    let mut vector = 0;
                    while vector < vectors {
                        self.set_strip((&slab, places), vector, vectors, &mut strip);
                        if let (Some(clamp), [pass], true) = (clamp, &outer.passes[..], strip.is_whole) {
                            self.store_pairs(
                                io,
                                pass,
                                (image, group),
                                (part.clone(), panels.end),
                                &strip,
                                planes,
                                sums,
                                clamp,
                            );
                        } else {
                            for panel in part.clone().map(panel) {
                                let sums = &mut sums[self.strip_at(panel.height, vector)..];
                                self.strip(&sink, (outer, &panel), (&slab, places), &strip, planes, (sums, buffer));
                            }
                        }
                        vector = strip.vectors.end;
                    }
                }
            }
        }
        if !io.is_finite {
            for group in groups {
                self.redo_borders(&sink, image, group, panels.clone(), &slab);
            }
        }
    }
}
