//! Channel GEMM without padding: for kernels that reach far beyond the image, where taps see
//! padding at many outputs.
//!
//! As [`channel_gemm`](super), whose packed weights it shares, but planes are X's own rows, and a
//! row of pixels is cut where a tap begins or ceases to see input: all pixels of a tile have the
//! same live taps, and the products of the others are left out. Where such a product is not zero,
//! because its weight is not finite, the outputs are NaN, and are made so at the end. For strides
//! of 1, and at most [`MOST_TAPS`] taps on the last axis and on the others. Scratch for a task: the
//! rows of one block of channels that a slab of the outermost axis sees, and the slab's sums.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::channel_kernels;
use convoke_kernels::{Ahead, ChannelKernel, Isa, Real, RowOffsets, stream};

use super::last_steps::LastSteps;
use super::weights::Weights;
use crate::element::{Compute, Element};
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for, share};
use crate::lower::channel_tiles::{ChannelPanels, two_rows};
use crate::lower::contract::{Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::planes;
use crate::lower::shares::Part;
use crate::lower::sink::{Finish, Sink};
use crate::{Axis, Geometry};

/// Taps on the last axis, and on the others together, at the most: lists of them are on the stack.
const MOST_TAPS: usize = 64;
/// Pixels of a row, at the most: of longer ones, little is padding.
const MOST_PIXELS: usize = 1 << 14;
/// Panels for each thread, from which on threads share them out; slabs for each, from which on
/// these are as good.
const PANELS_PER_THREAD: usize = 3;
const SLABS_PER_THREAD: usize = 8;
/// Bytes of a task's planes and sums, at the most.
const MOST_BYTES: usize = 4 << 20;

/// Pixels of a row that have the same live taps.
#[derive(Debug)]
struct Tile<T: Real> {
    pixels: Range<usize>,
    /// The taps of the last axis that see input there.
    taps: Range<usize>,
    /// For wide panels and for narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
    /// Those for two rows, where pixels are few.
    two_rows: Option<[&'static ChannelKernel<T>; 2]>,
}

/// An offer for `geometry`, whose channels are packed in blocks of `block`; none where every tap
/// sees input everywhere, or the layer is beyond reach.
pub(super) fn offer<'a, T: Element>(
    request: &'a Request<'a, T>,
    geometry: &Geometry,
    block: usize,
    most: usize,
) -> Option<Offer<'a, T>> {
    let (machine, prices) = (request.machine, request.machine.prices());
    let mut geometry = geometry.clone();
    if geometry.axes.len() == 1 {
        geometry.axes.insert(0, Axis::UNIT);
    }
    let (last, outer) = geometry.axes.split_last()?;
    let outer_taps = outer.iter().try_fold(1_usize, |n, axis| n.checked_mul(axis.kernel))?;
    let is_in_reach = |axis: &Axis| axis.stride == 1 && axis.input > 0;
    let is_short = last.kernel <= MOST_TAPS && outer_taps <= MOST_TAPS && last.output <= MOST_PIXELS;
    if !geometry.axes.iter().all(is_in_reach) || !is_short {
        return None;
    }
    let live = |axis: &Axis| (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap).len()).sum::<usize>();
    if geometry.axes.iter().all(|axis| live(axis) == axis.kernel * axis.output) {
        return None;
    }
    let (rows_out, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
    let k_blocks = channels.div_ceil(block);
    let panels = ChannelPanels::new::<T::Acc>(request.isa())?;
    let weights = Weights::new(&geometry, (rows_out, geometry.kernel_volume()), panels, block).ok()?;
    let tiles = tiles::<T::Acc>(request.isa(), last, panels)?;

    // Elements from one position to the next, for each axis.
    let mut pitches = alloc::vec![1_usize; geometry.axes.len()];
    for i in (1..geometry.axes.len()).rev() {
        pitches[i - 1] = pitches[i].checked_mul(geometry.axes[i].input)?;
    }
    let first = &geometry.axes[0];
    // Positions of Y inside of one of the outermost axis.
    let inside = geometry.axes[1..].iter().map(|axis| axis.output).product::<usize>();
    let size = |extent: usize| {
        let seen = first.input.min(extent + (first.kernel - 1) * first.dilation);
        let channel_len = planes::padded(seen.checked_mul(pitches[0])?)?;
        let sums = if k_blocks > 1 { extent.checked_mul(inside)?.checked_mul(panels.padded(rows_out))? } else { 0 };
        let bytes = channel_len.checked_mul(block)?.checked_add(sums)?.checked_mul(size_of::<T::Acc>())?;
        Some((channel_len, bytes))
    };
    // A panel of weights stays in the L1 cache: nothing else is kept in L2. Small slabs read X's
    // rows again and again (65x65, dilation 24: 25 instead of 20 ms with half of these bytes).
    let budget = planes::budget_beside(machine, 0).min(most);
    let fits = |extent: usize| size(extent).is_some_and(|(_, bytes)| bytes <= budget);
    let (mut low, mut high) = (1, first.output);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    let images = geometry.batch * geometry.group;
    let count = rows_out.div_ceil(panels.wide);
    // Threads share the panels out, of which there are equal parts; where there are too few, slabs.
    let has_shares = count >= PANELS_PER_THREAD * request.threads;
    let least_slabs = if request.threads == 1 || has_shares { 1 } else { (2 * request.threads).div_ceil(images) };
    let extent = first.output.div_ceil(first.output.div_ceil(low).max(least_slabs));
    let (channel_len, _) = size(extent).filter(|(_, bytes)| *bytes <= MOST_BYTES)?;
    let slabs = first.output.div_ceil(extent);
    let is_few = images * slabs < SLABS_PER_THREAD * request.threads;
    let splits = if has_shares && is_few {
        request.threads
    } else {
        request.threads.div_ceil(images * slabs).clamp(1, count.max(1))
    };

    // Offsets are those of taps without padding: rows begin before the planes by as much as the
    // padding shifts them, and kernels are told that they read as far behind them.
    let reach_of = |shift: fn(&Axis) -> usize| {
        let mut shifts = geometry.axes.iter().zip(&pitches).map(|(axis, pitch)| shift(axis).checked_mul(*pitch));
        shifts.try_fold(0_usize, |sum, shift| sum.checked_add(shift?))
    };
    let (margin, reach) = (reach_of(|a| a.pad_begin)?, reach_of(|a| (a.kernel - 1) * a.dilation)?);
    let furthest = reach_of(|a| a.output - 1)? - (first.output - extent) * pitches[0];
    let widest = tiles.iter().map(|tile| tile.two_rows.map_or(tile.pixels.len(), |kernels| kernels[0].mr())).max()?;
    let lengths = [margin, furthest, block * channel_len, reach, widest];
    let planes_len = lengths.into_iter().try_fold(0_usize, |sum, len| sum.checked_add(len))?;
    let share = count.div_ceil(splits) * panels.wide;
    let sums_len = if k_blocks > 1 { extent * inside * share } else { widest * panels.wide };
    if planes_len.checked_add(sums_len)? > MOST_BYTES / size_of::<T::Acc>() {
        return None;
    }

    let rows = outer.iter().map(|axis| axis.output).product::<usize>() as f64;
    let live_rows = outer.iter().map(live).product::<usize>() as f64;
    let (mut arithmetic, mut calls) = (0.0, 0.0);
    for tile in &tiles {
        // Most rows have a neighbour with the same taps.
        let kernels = tile.two_rows.unwrap_or(tile.kernels);
        let cycles =
            |kernel: &ChannelKernel<T::Acc>| machine.tile_cycles(kernel.fmas(), kernel.loads()) / kernel.rows() as f64;
        arithmetic += tile.taps.len() as f64 * panels.sum(rows_out, |narrow| cycles(kernels[usize::from(narrow)]));
        let runs = if tile.taps.len() == last.kernel { rows } else { live_rows };
        calls += runs
            * panels.sum(rows_out, |narrow| {
                prices.kernel_call_cycles + prices.sum_cycles * tile.kernels[usize::from(narrow)].fmas() as f64
            });
    }
    let stores = rows * last.output as f64 * rows_out as f64 / panels.lanes as f64 * prices.transposed_store_cycles;
    let copies = (channels * channel_len * slabs * splits) as f64 * prices.plane_cycles;
    let cycles = prices.channel_tiles * arithmetic * live_rows * channels as f64
        + calls * k_blocks as f64
        + stores
        + copies
        + slabs as f64 * prices.task_cycles;
    Some(Offer::old(
        request.machine,
        images as f64 * cycles / machine.clock_ghz,
        lines_for::<T::Acc>(planes_len).saturating_add(lines_for::<T::Acc>(sums_len)),
        Box::new(move || {
            let offsets = |width: usize| {
                let mut offsets = Vec::with_capacity(geometry.kernel_volume() * width);
                let kernel: Vec<_> = geometry.axes.iter().map(|axis| axis.kernel).collect();
                planes::for_each_position(&kernel, |tap| {
                    let shift = |(i, k): (usize, &usize)| k * geometry.axes[i].dilation * pitches[i];
                    let shift: usize = tap.iter().enumerate().map(shift).sum();
                    offsets.extend((0..width).map(|c| (c * channel_len + shift) as u32));
                });
                RowOffsets::new(offsets)
            };
            let koff = [offsets(block), offsets(channels - (k_blocks.max(1) - 1) * block)];
            let (isa, finish) = (request.isa(), Finish::new(request));
            Box::new(Unpadded {
                isa,
                finish,
                panels,
                tiles,
                koff,
                pitches,
                channel_len,
                margin,
                weights,
                extent,
                slabs,
                splits,
                planes_len,
                sums_len,
                geometry,
            })
        }),
    ))
}

/// A row of pixels along an axis, cut where the live taps change, and then into tiles of nearly
/// equal width.
fn tiles<T: Real>(isa: Isa, axis: &Axis, panels: ChannelPanels) -> Option<Vec<Tile<T>>> {
    let kernels = channel_kernels::<T>(isa);
    let find = |mr: usize, nr: usize| kernels.iter().find(|k| k.mr() == mr && k.nr() == nr);
    let most = |nr: usize| kernels.iter().filter(|k| k.nr() == nr).map(ChannelKernel::mr).max();
    let most = most(panels.wide)?.min(most(panels.lanes)?);
    // Live taps change where a range of outputs begins or ends.
    let ranges = (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap));
    let mut cuts: Vec<_> = ranges.flat_map(|range| [range.start, range.end]).chain([0, axis.output]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut tiles = Vec::new();
    for cut in cuts.windows(2) {
        let (start, len) = (cut[0], cut[1] - cut[0]);
        let count = len.div_ceil(most);
        for t in 0..count {
            let pixels = share(len, count, t);
            let pixels = start + pixels.start..start + pixels.end;
            let kernels = [find(pixels.len(), panels.wide)?, find(pixels.len(), panels.lanes)?];
            let two_rows = two_rows(isa, pixels.len(), panels);
            tiles.push(Tile { taps: axis.taps_of_output(start), pixels, kernels, two_rows });
        }
    }
    Some(tiles)
}

struct Unpadded<T: Element> {
    /// With two axes at the least.
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    panels: ChannelPanels,
    /// A row of pixels.
    tiles: Vec<Tile<T::Acc>>,
    /// The rows of a full block of k, and of the last one.
    koff: [RowOffsets; 2],
    pitches: Vec<usize>,
    /// Elements from one channel's rows of X to the next one's.
    channel_len: usize,
    /// Elements before the first row.
    margin: usize,
    weights: Weights,
    /// Positions of the outermost axis in a slab, and slabs of an image.
    extent: usize,
    slabs: usize,
    /// Shares that the panels of weights are split into.
    splits: usize,
    planes_len: usize,
    sums_len: usize,
}

/// A task, and one block of k of it.
struct Block {
    image: usize,
    group: usize,
    panels: Range<usize>,
    /// Positions on the outermost axis, and the first of X's that the planes have.
    outputs: Range<usize>,
    origin: usize,
    /// Channels.
    channels: Range<usize>,
}

/// One block of k of a panel of weights.
struct Panel<'a, A> {
    w: &'a [A],
    koff: &'a RowOffsets,
    /// Whether it is a narrow one, and its channels, with those that fill it up.
    narrow: bool,
    nr: usize,
    /// Input channels of the block.
    width: usize,
    /// The last axis.
    last: &'a Axis,
    is_first: bool,
    is_last: bool,
    bias: &'a [A],
    /// What calls fetch.
    ahead: &'a [A],
}

impl<A: Real> Panel<'_, A> {
    /// Multiplies a tile of one row of pixels at `x`, or with a `pitch` of that and the row so many
    /// elements further on, and finishes it into Y from element `at` on, where rows follow each
    /// other. The taps `outer` of the outer axes are live.
    #[expect(clippy::too_many_arguments, reason = "a tile's operands and its place, as the kernels take them")]
    fn multiply<T: Element<Acc = A>>(
        &mut self,
        sink: &Sink<'_, '_, T>,
        tile: &Tile<A>,
        outer: &[usize],
        x: &[A],
        pitch: Option<usize>,
        sum: &mut [A],
        at: usize,
    ) {
        let (nr, width, all_taps, taps) = (self.nr, self.width, self.last.kernel, &tile.taps);
        let of_row = tile.kernels[usize::from(self.narrow)];
        let kernel = match (pitch, tile.two_rows) {
            (Some(_), Some(kernels)) => kernels[usize::from(self.narrow)],
            _ => of_row,
        };
        let outer = if taps.is_empty() { &[] } else { outer };
        let mut accumulate = !self.is_first && !outer.is_empty();
        let mut done = 0;
        loop {
            // Taps that are neighbours in the panel: along the last axis, and of several of its
            // rows where all of them are live.
            let mut end = (done + 1).min(outer.len());
            while taps.len() == all_taps && end < outer.len() && outer[end] == outer[end - 1] + 1 {
                end += 1;
            }
            let steps = match outer.get(done..end) {
                Some([from, .., to]) => from * all_taps + taps.start..to * all_taps + taps.end,
                Some([tap]) => tap * all_taps + taps.start..tap * all_taps + taps.end,
                _ => 0..0,
            };
            let steps = steps.start * width..steps.end * width;
            let w = &self.w[steps.start * nr..steps.end * nr];
            let koff = self.koff.rows(steps).with_pitch(pitch.unwrap_or(0));
            let fetch = Ahead::lines(self.ahead);
            self.ahead = self.ahead.get(koff.len() * Ahead::LINE / size_of::<A>()..).unwrap_or(&[]);
            done = end;
            let is_last = self.is_last && done == outer.len();
            let is_whole = kernel.rows() == 1 || of_row.mr() == self.last.output;
            if is_last && is_whole {
                let steps = LastSteps { x, koff, w, ahead: fetch, accumulate, bias: self.bias };
                steps.finish(kernel, sum, at, sink);
            } else {
                kernel.partial(x, koff, w, fetch, sum, accumulate);
                if is_last {
                    // Parts of rows are finished one by one: their sums are multiplied by nothing
                    // more.
                    let (koff, rows) = (koff.rows(0..0), sum.chunks_exact_mut(of_row.mr() * nr));
                    for (row, sum) in rows.enumerate() {
                        let at = at + row * self.last.output;
                        let done =
                            LastSteps { x: &[], koff, w: &[], ahead: Ahead::NONE, accumulate: true, bias: self.bias };
                        done.finish(of_row, sum, at, sink);
                    }
                }
            }
            accumulate = true;
            if done == outer.len() {
                break;
            }
        }
    }
}

impl<T: Element> Unpadded<T> {
    fn part(&self, task: usize) -> Part {
        let count = self.geometry.out_channels_per_group().div_ceil(self.panels.wide);
        Part::new((task, self.tasks()), self.geometry.group, self.slabs, count, self.splits)
    }

    /// The positions of the outermost axis of slab number `slab`.
    fn outputs(&self, slab: usize) -> Range<usize> {
        slab * self.extent..self.geometry.axes[0].output.min((slab + 1) * self.extent)
    }

    /// The axes before the last one.
    fn outer(&self) -> &[Axis] {
        &self.geometry.axes[..self.geometry.axes.len() - 1]
    }

    /// Rows of pixels for each position of the outermost axis.
    fn rows_inside(&self) -> usize {
        self.outer()[1..].iter().map(|axis| axis.output).product()
    }

    /// Where a row of pixels of outer position `row`, counted over all outer axes, begins in the
    /// planes for a tap of offset 0; and how many taps of the outer axes see input there, which
    /// begin `live`.
    fn row(&self, row: usize, origin: usize, live: &mut [usize; MOST_TAPS]) -> (usize, usize) {
        let outer = self.outer();
        let count: usize = outer.iter().map(|axis| axis.kernel).product();
        let last = &self.geometry.axes[outer.len()];
        // Not negative: the margin is as long as all paddings shift a row.
        let mut at = self.margin - last.pad_begin;
        let mut rest = row;
        for (i, axis) in outer.iter().enumerate().rev() {
            at = at + rest % axis.output * self.pitches[i] - axis.pad_begin * self.pitches[i];
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
        (at - origin * self.pitches[0], len)
    }

    /// Multiplies one block of k.
    fn multiply(&self, io: &Io<'_, T>, block: &Block, planes: &[T::Acc], sums: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (channels, spatial) = (geometry.out_channels_per_group(), geometry.output_spatial());
        let last = &geometry.axes[geometry.axes.len() - 1];
        let (width, taps) = (block.channels.len(), geometry.kernel_volume());
        let k = block.channels.start * taps..block.channels.end * taps;
        let (is_first, is_last) = (k.start == 0, k.end == self.weights.steps());
        let koff = &self.koff[usize::from(width != self.weights.block)];
        let weights = self.weights.of_group(io.weights, block.group);
        let sink = self.finish.sink(io);
        let rows = block.outputs.start * self.rows_inside()..block.outputs.end * self.rows_inside();
        let [live, live_of_next] = &mut [[0; MOST_TAPS]; 2];
        let (mut live, mut live_of_next) = (live, live_of_next);
        let can_pair = self.tiles.iter().any(|tile| tile.two_rows.is_some());
        for p in block.panels.clone() {
            let first = p * self.panels.wide;
            let real = self.panels.wide.min(channels - first);
            let (nr, narrow) = self.panels.panel(real);
            let panel = &weights[first * self.weights.steps()..][k.start * nr..k.end * nr];
            // While the first tiles are computed, the next panel is fetched: a line with each step
            // of k.
            let next = if p + 1 < block.panels.end {
                (first + self.panels.wide) * self.weights.steps() + k.start * nr
            } else {
                block.panels.start * self.panels.wide * self.weights.steps() + k.end * nr
            };
            let ahead = weights.get(next..).map_or(&[][..], |ahead| &ahead[..panel.len().min(ahead.len())]);
            let channel = block.group * channels + first;
            let bias = &io.bias[channel..channel + real];
            let mut panel = Panel { w: panel, koff, narrow, nr, width, last, is_first, is_last, bias, ahead };
            let mut row = rows.start;
            // Where the row begins, and how many taps are live, if that is known.
            let mut known = None;
            while row < rows.end {
                let (at, len) = known.unwrap_or_else(|| self.row(row, block.origin, live));
                let outer = &live[..len];
                let next = (can_pair && row + 1 < rows.end).then(|| self.row(row + 1, block.origin, live_of_next));
                // Elements to the next row, where it has the same taps.
                let pitch = next.and_then(|(next, len)| (outer == &live_of_next[..len]).then_some(next - at));
                let height = if pitch.is_some() { 2 } else { 1 };
                let kept = match is_first && is_last {
                    true => 0,
                    false => ((p - block.panels.start) * rows.len() + row - rows.start) * last.output,
                };
                let y = (block.image * geometry.out_channels + channel) * spatial + row * last.output;
                for tile in &self.tiles {
                    let at_once = if tile.two_rows.is_some() { height } else { 1 };
                    for i in (0..height).step_by(at_once) {
                        let kept = match is_first && is_last {
                            true => 0,
                            false => kept + height * tile.pixels.start + i * tile.pixels.len(),
                        };
                        let x = &planes[at + i * pitch.unwrap_or(0) + tile.pixels.start..];
                        let sum = &mut sums[kept * self.panels.wide..][..at_once * tile.pixels.len() * nr];
                        let y = y + i * last.output + tile.pixels.start;
                        panel.multiply(&sink, tile, outer, x, pitch, sum, y);
                    }
                }
                row += height;
                known = next.filter(|_| height == 1);
                if known.is_some() {
                    core::mem::swap(&mut live, &mut live_of_next);
                }
            }
        }
    }

    /// Where a weight is not finite and its tap sees padding, the product is NaN.
    fn spoil(&self, io: &Io<'_, T>, block: &Block) {
        let geometry = &self.geometry;
        let (channels, taps) = (geometry.out_channels_per_group(), geometry.kernel_volume());
        let (spatial, k_total) = (geometry.output_spatial(), self.weights.steps());
        let weights = self.weights.of_group(io.weights, block.group);
        let rows = block.outputs.start * self.rows_inside()..block.outputs.end * self.rows_inside();
        let last = &geometry.axes[geometry.axes.len() - 1];
        let mut live = [0; MOST_TAPS];
        for row in block.panels.start * self.panels.wide..channels.min(block.panels.end * self.panels.wide) {
            let first = row / self.panels.wide * self.panels.wide;
            let (nr, _) = self.panels.panel(self.panels.wide.min(channels - first));
            let panel = &weights[first * k_total..][..k_total * nr];
            let is_spoilt = |tap: usize| {
                (0..k_total).any(|k| {
                    planes::step_of(k, geometry.in_channels_per_group(), taps, self.weights.block).0 == tap
                        && !panel[k * nr + row - first].is_finite_value()
                })
            };
            let at = (block.image * geometry.out_channels + block.group * channels + row) * spatial;
            for tap in (0..taps).filter(|tap| is_spoilt(*tap)) {
                let sees = last.outputs_of_tap(tap % last.kernel);
                for outer in rows.clone() {
                    let (_, len) = self.row(outer, block.origin, &mut live);
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
        self.geometry.batch * self.geometry.group * self.slabs * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.part(task);
        let (rows, outputs) = (self.weights.rows_of(&part.panels), self.outputs(part.columns));
        let inside = self.geometry.output_spatial() / self.geometry.axes[0].output;
        patch(part.patch(&self.geometry, rows, outputs.start * inside..outputs.end * inside));
    }
}

impl<T: Element> Lowering<T> for Unpadded<T> {
    fn layout(&self) -> WeightLayout {
        self.weights.layout()
    }

    fn describe(&self) -> String {
        let k = self.weights.block * self.weights.taps;
        alloc::format!(
            "{}, products with padding left out, rows of pixels in {} tiles, K in blocks of {k}, {} slabs, panels in {} shares",
            Lowering::<T>::kernel(self),
            self.tiles.len(),
            self.slabs,
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        let widest = self.tiles.iter().max_by_key(|tile| tile.pixels.len());
        widest.map_or("", |tile| tile.two_rows.unwrap_or(tile.kernels)[0].name())
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        self.weights.len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(w, packed);
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.part(task);
        let first = &geometry.axes[0];
        let outputs = self.outputs(columns);
        // The rows of X that the slab sees, and some between them that it may not.
        let origin = outputs.start.saturating_sub(first.pad_begin);
        let end = outputs.end - 1 + (first.kernel - 1) * first.dilation + 1;
        let end = end.saturating_sub(first.pad_begin).min(first.input);
        let seen = origin.min(end) * self.pitches[0]..end * self.pitches[0];
        let mut arena = Arena::new(scratch);
        let planes = arena.take::<T::Acc>(self.planes_len);
        let sums = arena.take::<T::Acc>(self.sums_len);
        let (channels, spatial) = (geometry.in_channels_per_group(), geometry.input_spatial());
        let x = &io.x[(image * geometry.in_channels + group * channels) * spatial..];
        let block =
            |channels| Block { image, group, panels: panels.clone(), outputs: outputs.clone(), origin, channels };
        // Without channels there is still the bias to be stored: one empty block.
        for c in (0..channels.max(1)).step_by(self.weights.block) {
            let width = self.weights.block.min(channels - c);
            for (i, plane) in planes[self.margin..].chunks_exact_mut(self.channel_len).take(width).enumerate() {
                let x = &x[(c + i) * spatial..][seen.clone()];
                stream::widen(self.isa, x, &mut plane[..x.len()]);
            }
            self.multiply(io, &block(c..c + width), planes, sums);
        }
        if !io.is_finite {
            self.spoil(io, &block(0..0));
        }
    }
}
