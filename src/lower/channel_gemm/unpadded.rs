//! Conv on the rows of X without padding: for kernels that reach far beyond the image, where taps
//! see padding at many outputs.
//!
//! As [`padded`](super::padded), whose packed weights it shares, but the planes are the rows of X
//! itself. A row of pixels is cut where a tap begins or ceases to see input. Then all pixels of a
//! tile have the same live taps, and the products of the other taps are left out. Such a product
//! is not zero where its weight is not finite. Those outputs are NaN, and are made so at the end.
//!
//! Accepts Conv of stride 1 with padding that some tap sees, and at most [`MOST_TAPS`] taps on
//! the last axis and on the others. Scratch for a task: the rows of one block of channels that a
//! slab of the outermost axis sees, and a tile, or the sums of the slab where K has several
//! blocks.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::channel_kernels;
use convoke_kernels::{Ahead, ChannelKernel, Isa, Real, RowOffsets, RowOffsetsRef, stream};

use super::last_steps::LastSteps;
use super::weights::ChannelWeights;
use crate::element::{Compute, Element};
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece, share};
use crate::lower::channel_tiles::{ChannelPanels, kernel_cycles, two_rows};
use crate::lower::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use crate::lower::planes;
use crate::lower::shares::{GemmSplit, Part};
use crate::lower::sink::{Finish, Sink};
use crate::machine::{Item, Work};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Taps on the last axis, and on the others together, at most: lists of them are on the
/// stack.
const MOST_TAPS: usize = 64;
/// Pixels of a row, at most: little of longer ones is padding.
const MOST_PIXELS: usize = 1 << 14;
/// Panels for each thread from which on threads share them out, because the shares are even
/// enough.
const PANELS_PER_THREAD: usize = 3;
/// Slabs for each thread from which on slabs are as even.
const SLABS_PER_THREAD: usize = 8;
/// Bytes of a task's planes and sums, at most: a limit of memory.
const MOST_BYTES: usize = 4 << 20;

/// A Conv of stride 1 whose taps do not all see input at every output.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    for (i, axis) in geometry.axes.iter().enumerate() {
        let Axis { input, stride, .. } = axis;
        if *stride != 1 || *input == 0 {
            return Err(alloc::format!(
                "spatial axis {i} has stride {stride}, input {input}, only stride 1 on an input that is not empty can be"
            ));
        }
    }
    let Some((last, outer)) = geometry.axes.split_last() else {
        return Err(String::from("there is no spatial axis"));
    };
    let outer_taps = outer.iter().fold(1_usize, |taps, axis| taps.saturating_mul(axis.kernel));
    if last.kernel > MOST_TAPS || outer_taps > MOST_TAPS || last.output > MOST_PIXELS {
        return Err(alloc::format!(
            "the last axis has {} taps and {} outputs, the others have {outer_taps} taps, at most {MOST_TAPS}, {MOST_PIXELS} and {MOST_TAPS} can be",
            last.kernel,
            last.output
        ));
    }
    if geometry.axes.iter().all(|axis| live_taps(axis) == axis.kernel * axis.output) {
        return Err(String::from("every tap sees input at every output"));
    }
    Ok(())
}

/// The taps that see input along an axis, summed over all outputs.
fn live_taps(axis: &Axis) -> usize {
    (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap).len()).sum()
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let weights = ChannelWeights::new(request)?;
    let mut geometry = request.geometry.clone();
    if geometry.axes.len() == 1 {
        geometry.axes.insert(0, Axis::UNIT);
    }
    let last = &geometry.axes[geometry.axes.len() - 1];
    let tiles =
        tiles::<T::Acc>(request.isa(), last, weights.panels).ok_or_else(|| String::from("no kernel for this tile"))?;
    let blocking = UnpaddedBlocking::new(request, &geometry, &weights, most_bytes)
        .ok_or_else(|| alloc::format!("the rows of X that a task sees take more than {MOST_BYTES} bytes"))?;
    let widest = tiles.iter().map(UnpaddedTile::most_pixels).max().unwrap_or(0);
    let (planes_len, sums_len) = blocking
        .scratch_lens(&geometry, &weights, widest)
        .filter(|(planes, sums)| planes.saturating_add(*sums) <= MOST_BYTES / size_of::<T::Acc>())
        .ok_or_else(|| alloc::format!("the rows of X and the sums of a task take more than {MOST_BYTES} bytes"))?;
    let mut scratch = Ledger::default();
    let filled = scratch.book("planes", planes_len);
    let sums = scratch.book("sums", sums_len);
    let widest = tiles.iter().max_by_key(|tile| tile.pixels.len());
    let kernel = widest.map_or("", |tile| tile.two_rows.unwrap_or(tile.kernels)[0].name());
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, products with padding left out, rows of pixels in {}, {}, K in blocks of {}, weights in {}",
            Count(tiles.len(), "tile"),
            Count(blocking.split.columns, "slab"),
            weights.block * weights.taps,
            Count(blocking.split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: blocking.split.tasks(),
        scratch,
        work: blocking.work(request, &geometry, &weights, &tiles),
    };
    let build: Build<'a, T> = Box::new(move || {
        let koff = [weights.block, weights.last_block()].map(|width| blocking.offsets(&geometry, width));
        let (isa, finish) = (request.isa(), Finish::new(request));
        Box::new(Unpadded { geometry, isa, finish, tiles, koff, blocking, weights, filled, sums })
    });
    Ok(Offer { recipe, build })
}

/// Pixels of a row that have the same live taps.
#[derive(Debug)]
struct UnpaddedTile<T: Real> {
    pixels: Range<usize>,
    /// The taps of the last axis that see input there.
    taps: Range<usize>,
    /// For wide panels, and for narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
    /// The same for two rows at once, where the pixels are few.
    two_rows: Option<[&'static ChannelKernel<T>; 2]>,
}

impl<T: Real> UnpaddedTile<T> {
    /// Pixels of one call, at most.
    fn most_pixels(&self) -> usize {
        self.two_rows.map_or(self.pixels.len(), |kernels| kernels[0].mr())
    }
}

/// A row of pixels along an axis, cut where the live taps change, and then into tiles of nearly
/// equal width. None if a kernel is lacking.
fn tiles<T: Real>(isa: Isa, axis: &Axis, panels: ChannelPanels) -> Option<Vec<UnpaddedTile<T>>> {
    let kernels = channel_kernels::<T>(isa);
    let find = |mr: usize, nr: usize| kernels.iter().find(|k| k.mr() == mr && k.nr() == nr);
    let most = |nr: usize| kernels.iter().filter(|k| k.nr() == nr).map(ChannelKernel::mr).max();
    let most = most(panels.wide)?.min(most(panels.lanes)?);
    // Live taps change where the outputs of a tap begin or end.
    let ranges = (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap));
    let mut cuts: Vec<_> = ranges.flat_map(|range| [range.start, range.end]).chain([0, axis.output]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut tiles = Vec::new();
    for cut in cuts.windows(2) {
        let (start, len) = (cut[0], cut[1] - cut[0]);
        let (count, taps) = (len.div_ceil(most), axis.taps_of_output(start));
        let of_len =
            |len: usize| Some(([find(len, panels.wide)?, find(len, panels.lanes)?], two_rows(isa, len, panels)));
        let (narrow, wide) = (of_len(len / count)?, of_len(len.div_ceil(count))?);
        tiles.extend((0..count).map(|t| {
            let pixels = share(len, count, t);
            let (kernels, two_rows) = if pixels.len() == len / count { narrow } else { wide };
            UnpaddedTile { pixels: start + pixels.start..start + pixels.end, taps: taps.clone(), kernels, two_rows }
        }));
    }
    Some(tiles)
}

/// How the positions are cut into slabs of the outermost axis, and the panels into shares.
#[derive(Debug, Clone, PartialEq)]
struct UnpaddedBlocking {
    /// Elements of X from one position of an axis to the next.
    pitches: Vec<usize>,
    /// Elements from the rows of one channel of X to those of the next.
    channel_len: usize,
    /// Elements before the first row.
    margin: usize,
    /// Positions of the outermost axis in a slab.
    extent: usize,
    split: GemmSplit,
}

impl UnpaddedBlocking {
    /// Slabs whose rows and sums take at most `most_bytes`. None if they are too large.
    fn new<T: Element>(
        request: &Request<'_, T>,
        geometry: &Geometry,
        weights: &ChannelWeights,
        most_bytes: usize,
    ) -> Option<Self> {
        let axes = &geometry.axes;
        let mut pitches = alloc::vec![1_usize; axes.len()];
        for i in (1..axes.len()).rev() {
            pitches[i - 1] = pitches[i].checked_mul(axes[i].input)?;
        }
        let first = &axes[0];
        // Values of the sums for each position of the outermost axis.
        let summed = if weights.k_blocks() > 1 { positions_inside(geometry).checked_mul(weights.padded)? } else { 0 };
        let size = |extent: usize| {
            let seen = first.input.min(extent + (first.kernel - 1) * first.dilation);
            let channel_len = planes::padded(seen.checked_mul(pitches[0])?)?;
            let values = channel_len.checked_mul(weights.block)?.checked_add(extent.checked_mul(summed)?)?;
            Some((channel_len, values.checked_mul(size_of::<T::Acc>())?))
        };
        // A panel of weights stays in the L1 cache, and so the slab has the L2 cache for itself.
        // Smaller slabs would read the rows of X more often.
        let budget = planes::budget_beside(request.machine, 0).min(most_bytes);
        let fits = |extent: usize| size(extent).is_some_and(|(_, bytes)| bytes <= budget);
        let largest = planes::largest_that(first.output, fits);
        let images = geometry.batch * geometry.group;
        let (threads, panels) = (request.threads, weights.count());
        // Threads share the panels out, because their shares are equal. Where there are too few
        // panels, threads have slabs.
        let has_shares = panels >= PANELS_PER_THREAD * threads;
        let least_slabs = if threads == 1 || has_shares { 1 } else { (2 * threads).div_ceil(images) };
        let extent = first.output.div_ceil(first.output.div_ceil(largest).max(least_slabs));
        let (channel_len, _) = size(extent).filter(|(_, bytes)| *bytes <= MOST_BYTES)?;
        let slabs = first.output.div_ceil(extent);
        let is_few = images * slabs < SLABS_PER_THREAD * threads;
        let shares =
            if has_shares && is_few { threads } else { threads.div_ceil(images * slabs).clamp(1, panels.max(1)) };
        let split = GemmSplit { images: geometry.batch, groups: geometry.group, columns: slabs, panels, shares };
        // Row offsets are those of taps without padding, and so rows begin before the planes by
        // as much as the padding shifts them.
        let margin = shift(geometry, &pitches, |a| a.pad_begin)?;
        Some(Self { pitches, channel_len, margin, extent, split })
    }

    /// Values of the planes and of the sums. The widest tile has `widest` pixels.
    fn scratch_lens(&self, geometry: &Geometry, weights: &ChannelWeights, widest: usize) -> Option<(usize, usize)> {
        // Kernels are told that they read as far behind the rows as taps are shifted.
        let reach = shift(geometry, &self.pitches, |a| (a.kernel - 1) * a.dilation)?;
        let beyond_slab = (geometry.axes[0].output - self.extent) * self.pitches[0];
        let furthest = shift(geometry, &self.pitches, |a| a.output - 1)? - beyond_slab;
        let lens = [self.margin, furthest, weights.block * self.channel_len, reach, widest];
        let planes_len = lens.into_iter().try_fold(0_usize, |sum, len| sum.checked_add(len))?;
        let pixels = if weights.k_blocks() > 1 { self.extent * positions_inside(geometry) } else { widest };
        let panels = if weights.k_blocks() > 1 { self.split.share_panels() } else { 1 };
        Some((planes_len, pixels * panels * weights.nr()))
    }

    /// What all tasks take.
    fn work<T: Element>(
        &self,
        request: &Request<'_, T>,
        geometry: &Geometry,
        weights: &ChannelWeights,
        tiles: &[UnpaddedTile<T::Acc>],
    ) -> Work {
        let (machine, panels, split) = (request.machine, weights.panels, &self.split);
        let (outer, last) = geometry.axes.split_at(geometry.axes.len() - 1);
        let rows = outer.iter().map(|axis| axis.output).product::<usize>() as f64;
        let live_rows = outer.iter().map(live_taps).product::<usize>() as f64;
        let (mut step_cycles, mut calls, mut kept) = (0.0, 0.0, 0.0);
        for tile in tiles {
            // Most rows have a neighbour with the same taps.
            let kernels = tile.two_rows.unwrap_or(tile.kernels);
            let cycles = |kernel: &ChannelKernel<T::Acc>| kernel_cycles(machine, kernel) / kernel.rows() as f64;
            step_cycles +=
                tile.taps.len() as f64 * panels.sum(weights.rows, |narrow| cycles(kernels[usize::from(narrow)]));
            let runs = if tile.taps.len() == last[0].kernel { rows } else { live_rows };
            calls += runs * weights.count() as f64;
            kept += runs * panels.sum(weights.rows, |narrow| tile.kernels[usize::from(narrow)].fmas() as f64);
        }
        let arithmetic = step_cycles * live_rows * weights.channels as f64;
        let vectors = rows * last[0].output as f64 * weights.rows as f64 / panels.lanes as f64;
        let copied = (weights.channels * self.channel_len * split.columns * split.shares) as f64;
        let of_image = machine.work(Item::ArithmeticCycles, arithmetic)
            + machine.work(Item::KernelCalls, calls * weights.k_blocks() as f64)
            + machine.work(Item::KeptVectors, kept * weights.k_blocks() as f64)
            + machine.work(Item::TransposedVectors, vectors)
            + machine.work(Item::PlaneElements, copied)
            + machine.work(Item::Tasks, split.columns as f64);
        of_image * (split.images * split.groups) as f64
    }

    /// The row offsets of a block of K with `width` channels.
    fn offsets(&self, geometry: &Geometry, width: usize) -> RowOffsets {
        let mut offsets = Vec::with_capacity(geometry.kernel_volume() * width);
        let kernel: Vec<_> = geometry.axes.iter().map(|axis| axis.kernel).collect();
        planes::for_each_position(&kernel, |tap| {
            let shift = |(i, k): (usize, &usize)| k * geometry.axes[i].dilation * self.pitches[i];
            let shift: usize = tap.iter().enumerate().map(shift).sum();
            offsets.extend((0..width).map(|c| (c * self.channel_len + shift) as u32));
        });
        RowOffsets::new(offsets)
    }
}

/// Output positions for each position of the outermost axis.
fn positions_inside(geometry: &Geometry) -> usize {
    geometry.axes[1..].iter().map(|axis| axis.output).product()
}

/// Elements of X that so many positions of each axis are together. None if they exceed the
/// address space.
fn shift(geometry: &Geometry, pitches: &[usize], positions: impl Fn(&Axis) -> usize) -> Option<usize> {
    let mut shifts = geometry.axes.iter().zip(pitches).map(|(axis, pitch)| positions(axis).checked_mul(*pitch));
    shifts.try_fold(0_usize, |sum, shift| sum.checked_add(shift?))
}

struct Unpadded<T: Element> {
    /// With two axes at least.
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// A row of pixels.
    tiles: Vec<UnpaddedTile<T::Acc>>,
    /// The row offsets of a full block of K, and of the last one.
    koff: [RowOffsets; 2],
    blocking: UnpaddedBlocking,
    weights: ChannelWeights,
    /// The values of the planes.
    filled: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

/// What a task computes.
struct UnpaddedTask {
    image: usize,
    group: usize,
    panels: Range<usize>,
    /// Positions of Y on the outermost axis.
    outputs: Range<usize>,
    /// The first position of X on the outermost axis that the planes have.
    origin: usize,
}

/// One block of K of a panel of weights.
struct UnpaddedPanel<'a, 'io, T: Element> {
    sink: &'a Sink<'a, 'io, T>,
    w: &'a [T::Acc],
    koff: &'a RowOffsets,
    is_narrow: bool,
    /// Channels, with those that fill the panel up.
    nr: usize,
    /// Input channels of the block.
    width: usize,
    last: &'a Axis,
    is_first: bool,
    is_last: bool,
    bias: &'a [T::Acc],
    /// The panel that comes next, which calls fetch.
    ahead: &'a [T::Acc],
}

/// One row of pixels, or two with the same live taps.
#[derive(Clone, Copy)]
struct UnpaddedRows<'a, A> {
    /// The live taps of the axes before the last.
    outer: &'a [usize],
    /// Where the first row begins in the planes.
    x: &'a [A],
    /// Elements of the planes from the first row to the second, where there are two.
    pitch: Option<usize>,
    /// The element of Y that the first row begins at. The second follows it.
    at: usize,
}

impl<T: Element> UnpaddedPanel<'_, '_, T> {
    /// Multiplies a tile of some rows. The last block of K finishes it into Y.
    fn multiply(&mut self, tile: &UnpaddedTile<T::Acc>, rows: UnpaddedRows<'_, T::Acc>, sums: &mut [T::Acc]) {
        let UnpaddedRows { outer, x, pitch, at } = rows;
        let (nr, width, all_taps, taps) = (self.nr, self.width, self.last.kernel, &tile.taps);
        let of_row = tile.kernels[usize::from(self.is_narrow)];
        let kernel = match (pitch, tile.two_rows) {
            (Some(_), Some(kernels)) => kernels[usize::from(self.is_narrow)],
            _ => of_row,
        };
        let outer = if taps.is_empty() { &[] } else { outer };
        let mut accumulate = !self.is_first && !outer.is_empty();
        let mut done = 0;
        loop {
            let run = &outer[done..run_end(outer, done, taps.len() == all_taps)];
            let steps = match run {
                [from, .., to] => from * all_taps + taps.start..to * all_taps + taps.end,
                [tap] => tap * all_taps + taps.start..tap * all_taps + taps.end,
                [] => 0..0,
            };
            let steps = steps.start * width..steps.end * width;
            let w = &self.w[steps.start * nr..steps.end * nr];
            let koff = self.koff.rows(steps).with_pitch(pitch.unwrap_or(0));
            let ahead = Ahead::lines(self.ahead);
            self.ahead = self.ahead.get(koff.len() * Ahead::LINE / size_of::<T::Acc>()..).unwrap_or(&[]);
            done += run.len();
            let is_last = self.is_last && done == outer.len();
            let is_whole = kernel.rows() == 1 || of_row.mr() == self.last.output;
            if is_last && is_whole {
                let steps = LastSteps { x, koff, w, ahead, accumulate, bias: self.bias };
                steps.finish(kernel, sums, at, self.sink);
            } else {
                kernel.partial(x, koff, w, ahead, sums, accumulate);
                if is_last {
                    self.finish_rows(of_row, koff.rows(0..0), sums, at);
                }
            }
            accumulate = true;
            if done == outer.len() {
                break;
            }
        }
    }

    /// Finishes parts of two rows one by one, from their sums: in Y, a part of a row does not
    /// follow the one before. `nothing` is no rows of X.
    fn finish_rows(&self, kernel: &ChannelKernel<T::Acc>, nothing: RowOffsetsRef<'_>, sums: &mut [T::Acc], at: usize) {
        for (row, sums) in sums.chunks_exact_mut(kernel.mr() * self.nr).enumerate() {
            let (ahead, accumulate, bias) = (Ahead::NONE, true, self.bias);
            let done = LastSteps { x: &[], koff: nothing, w: &[], ahead, accumulate, bias };
            done.finish(kernel, sums, at + row * self.last.output, self.sink);
        }
    }
}

/// The end of the run of live taps that begins with number `done`. The weights of a run are
/// neighbours in the panel: those of one tap of the outer axes, or of several neighbours where
/// all taps of the last axis are live.
fn run_end(outer: &[usize], done: usize, are_all_live: bool) -> usize {
    let mut end = (done + 1).min(outer.len());
    while are_all_live && end < outer.len() && outer[end] == outer[end - 1] + 1 {
        end += 1;
    }
    end
}

impl<T: Element> Unpadded<T> {
    /// The positions of the outermost axis of slab number `slab`.
    fn outputs(&self, slab: usize) -> Range<usize> {
        let extent = self.blocking.extent;
        slab * extent..self.geometry.axes[0].output.min((slab + 1) * extent)
    }

    fn last(&self) -> &Axis {
        &self.geometry.axes[self.geometry.axes.len() - 1]
    }

    /// The axes before the last one.
    fn outer(&self) -> &[Axis] {
        &self.geometry.axes[..self.geometry.axes.len() - 1]
    }

    /// The rows of pixels of a task, counted over all axes before the last.
    fn rows(&self, task: &UnpaddedTask) -> Range<usize> {
        let inside = self.outer()[1..].iter().map(|axis| axis.output).product::<usize>();
        task.outputs.start * inside..task.outputs.end * inside
    }

    /// Where row number `row` begins in the planes for a tap of offset 0, and how many taps of
    /// the outer axes see input there. `live` begins with these.
    fn row(&self, row: usize, origin: usize, live: &mut [usize; MOST_TAPS]) -> (usize, usize) {
        let (outer, pitches) = (self.outer(), &self.blocking.pitches);
        let count: usize = outer.iter().map(|axis| axis.kernel).product();
        // Not negative: the margin is as long as all paddings shift a row.
        let mut at = self.blocking.margin - self.last().pad_begin;
        let mut rest = row;
        for (i, axis) in outer.iter().enumerate().rev() {
            at = at + rest % axis.output * pitches[i] - axis.pad_begin * pitches[i];
            rest /= axis.output;
        }
        let mut len = 0;
        for tap in 0..count {
            let (mut rest, mut tap_rest) = (row, tap);
            let sees = outer.iter().rev().all(|axis| {
                let (o, k) = (rest % axis.output, tap_rest % axis.kernel);
                (rest, tap_rest) = (rest / axis.output, tap_rest / axis.kernel);
                axis.input_position(o, k).is_some()
            });
            if sees {
                live[len] = tap;
                len += 1;
            }
        }
        (at - origin * pitches[0], len)
    }

    /// Multiplies one block of K, of the input channels `channels`.
    fn multiply(
        &self,
        sink: &Sink<'_, '_, T>,
        task: &UnpaddedTask,
        channels: Range<usize>,
        planes: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let (rows, width) = (self.rows(task), self.last().output);
        let [live, live_of_next] = &mut [[0; MOST_TAPS]; 2];
        let (mut live, mut live_of_next) = (live, live_of_next);
        let can_pair = self.tiles.iter().any(|tile| tile.two_rows.is_some());
        for p in task.panels.clone() {
            let mut panel = self.panel(sink, task, &channels, p);
            let y = (task.image * self.geometry.out_channels + task.group * self.weights.rows + p * self.weights.nr())
                * self.geometry.output_spatial();
            let mut row = rows.start;
            // Where the row begins, and how many taps are live, if that is known.
            let mut known = None;
            while row < rows.end {
                let (at, len) = known.unwrap_or_else(|| self.row(row, task.origin, live));
                let outer = &live[..len];
                let next = (can_pair && row + 1 < rows.end).then(|| self.row(row + 1, task.origin, live_of_next));
                // Two rows are multiplied at once if they have the same taps, and the second begins
                // behind the first: where an outer axis goes on, it can begin before it.
                let pitch = next.filter(|(_, len)| outer == &live_of_next[..*len]);
                let pitch = pitch.and_then(|(next, _)| next.checked_sub(at));
                // Pixels before this row, of all panels.
                let before = ((p - task.panels.start) * rows.len() + row - rows.start) * width;
                let of_rows = UnpaddedRows { outer, x: &planes[at..], pitch, at: y + row * width };
                self.multiply_rows(&mut panel, of_rows, before, sums);
                let height = if pitch.is_some() { 2 } else { 1 };
                row += height;
                known = next.filter(|_| height == 1);
                if known.is_some() {
                    core::mem::swap(&mut live, &mut live_of_next);
                }
            }
        }
    }

    /// Multiplies the tiles of some rows. `before` are the pixels before them, where all sums of
    /// a task are kept.
    fn multiply_rows(
        &self,
        panel: &mut UnpaddedPanel<'_, '_, T>,
        rows: UnpaddedRows<'_, T::Acc>,
        before: usize,
        sums: &mut [T::Acc],
    ) {
        let (height, pitch) = (if rows.pitch.is_some() { 2 } else { 1 }, rows.pitch.unwrap_or(0));
        let is_whole = panel.is_first && panel.is_last;
        for tile in &self.tiles {
            let pixels = &tile.pixels;
            let at_once = if tile.two_rows.is_some() { height } else { 1 };
            for i in (0..height).step_by(at_once) {
                let kept = if is_whole { 0 } else { before + height * pixels.start + i * pixels.len() };
                let x = &rows.x[i * pitch + pixels.start..];
                let sums = &mut sums[kept * self.weights.nr()..][..at_once * pixels.len() * panel.nr];
                let at = rows.at + i * self.last().output + pixels.start;
                panel.multiply(tile, UnpaddedRows { x, at, ..rows }, sums);
            }
        }
    }

    /// Panel number `p`, over the input channels `channels`.
    fn panel<'a, 'io>(
        &'a self,
        sink: &'a Sink<'a, 'io, T>,
        task: &UnpaddedTask,
        channels: &Range<usize>,
        p: usize,
    ) -> UnpaddedPanel<'a, 'io, T> {
        let (taps, all_steps, wide) = (self.weights.taps, self.weights.steps(), self.weights.nr());
        let weights = self.weights.of_group(sink.io.weights, task.group);
        let k = channels.start * taps..channels.end * taps;
        let first = p * wide;
        let live = wide.min(self.weights.rows - first);
        let (nr, is_narrow) = self.weights.panels.panel(live);
        let w = &weights[first * all_steps..][k.start * nr..k.end * nr];
        // While the first tiles are computed, the next panel is fetched: a line with each step of
        // k.
        let next = if p + 1 < task.panels.end {
            (first + wide) * all_steps + k.start * nr
        } else {
            task.panels.start * wide * all_steps + k.end * nr
        };
        let ahead = weights.get(next..).map_or(&[][..], |ahead| &ahead[..w.len().min(ahead.len())]);
        let channel = task.group * self.weights.rows + first;
        UnpaddedPanel {
            sink,
            w,
            koff: &self.koff[usize::from(channels.len() != self.weights.block)],
            is_narrow,
            nr,
            width: channels.len(),
            last: self.last(),
            is_first: k.start == 0,
            is_last: k.end == all_steps,
            bias: &sink.io.bias[channel..channel + live],
            ahead,
        }
    }

    /// Makes outputs NaN where a weight is not finite and its tap sees padding: so would the
    /// products be that were left out.
    fn spoil(&self, io: &Io<'_, T>, task: &UnpaddedTask) {
        let (taps, k_total, wide) = (self.weights.taps, self.weights.steps(), self.weights.nr());
        let weights = self.weights.of_group(io.weights, task.group);
        let last = self.last();
        let mut live = [0; MOST_TAPS];
        for row in self.weights.rows_of(&task.panels) {
            let first = row / wide * wide;
            let (nr, _) = self.weights.panels.panel(wide.min(self.weights.rows - first));
            let panel = &weights[first * k_total..][..k_total * nr];
            let is_spoilt = |tap: usize| {
                (0..k_total).any(|k| {
                    planes::step_of(k, self.weights.channels, taps, self.weights.block).0 == tap
                        && !panel[k * nr + row - first].is_finite_value()
                })
            };
            let channel = task.image * self.geometry.out_channels + task.group * self.weights.rows + row;
            let at = channel * self.geometry.output_spatial();
            for tap in (0..taps).filter(|tap| is_spoilt(*tap)) {
                let sees = last.outputs_of_tap(tap % last.kernel);
                for outer in self.rows(task) {
                    let (_, len) = self.row(outer, task.origin, &mut live);
                    let sees = if live[..len].contains(&(tap / last.kernel)) { sees.clone() } else { 0..0 };
                    for pixel in (0..last.output).filter(|pixel| !sees.contains(pixel)) {
                        io.y.write(at + outer * last.output + pixel, T::round_from_f64(f64::NAN));
                    }
                }
            }
        }
    }
}

impl<T: Element> Split for Unpadded<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let (rows, outputs) = (self.weights.rows_of(&part.panels), self.outputs(part.columns));
        let inside = positions_inside(&self.geometry);
        patch(part.patch(&self.geometry, rows, outputs.start * inside..outputs.end * inside));
    }
}

impl<T: Element> Lowering<T> for Unpadded<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(w, packed);
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let UnpaddedBlocking { pitches, channel_len, margin, split, .. } = &self.blocking;
        let Part { image, group, columns, panels } = split.part(task);
        let (first, outputs) = (&self.geometry.axes[0], self.outputs(columns));
        // The rows of X that the slab sees, and some between them that it may not see.
        let origin = outputs.start.saturating_sub(first.pad_begin);
        let end = outputs.end - 1 + (first.kernel - 1) * first.dilation + 1;
        let end = end.saturating_sub(first.pad_begin).min(first.input);
        let seen = origin.min(end) * pitches[0]..end * pitches[0];
        let task = UnpaddedTask { image, group, panels, outputs, origin };
        let mut arena = Arena::new(scratch);
        let (planes, sums) = (arena.get(self.filled), arena.get(self.sums));
        let (channels, spatial) = (self.weights.channels, self.geometry.input_spatial());
        let x = &io.x[(image * self.geometry.in_channels + group * channels) * spatial..];
        let sink = self.finish.sink(io);
        // Without channels there is still the bias to be stored: one empty block.
        for c in (0..channels.max(1)).step_by(self.weights.block) {
            let width = self.weights.block.min(channels - c);
            for (i, plane) in planes[*margin..].chunks_exact_mut(*channel_len).take(width).enumerate() {
                let x = &x[(c + i) * spatial..][seen.clone()];
                stream::widen(self.isa, x, &mut plane[..x.len()]);
            }
            self.multiply(&sink, &task, c..c + width, planes, sums);
        }
    }
}
