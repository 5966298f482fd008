//! Conv with few channels a group, straight from X: several output channels share each vector that
//! is loaded.
//!
//! M = M/group, K = C/group * kernel volume, N = output positions, for each image and group.
//! Accepts a Conv on one or two axes, with at most [`MOST_CHANNELS`] input channels and 2 to
//! `MOST_CHANNELS` output channels a group, of stride 1 and output rows as long as those of X, and
//! those at most [`FlatTaps::MOST_WIDTH`]: then X is what a GEMM reads, without a copy, and Y is
//! written in whole vectors over the ends of rows. With strides, X is copied into a plane for each
//! phase, whose rows are as long as those of Y; rows of X may not be longer than all phases, and
//! dilation asks for stride 1.
//!
//! A unit of work is a run of positions of one group of one image, in blocks that stay in the L1
//! cache. K is ordered by taps along W, then channels, then taps along H. Scratch for a task: the
//! unit's planes where X is strided or of a 16-bit type, and its sums where kernels cannot store
//! into Y.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::stream;

use convoke_kernels::catalogue::{depthwise_kernels, grouped_kernels};
use convoke_kernels::{
    Ahead, DepthwiseKernels, Dest, Epilogue, FlatInput, FlatTaps, GroupedKernel, Isa, Real, RowCopy,
};

use super::sink::{Finish, no_epilogue};
use crate::element::Element;
use crate::exec::region::{Patch, Split, Stores};
use crate::exec::{Arena, Line, lines_for, share};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::shares::TASKS_PER_THREAD;
use crate::machine::{Machine, Prices};
use crate::{Axis, Geometry, Op};

/// Channels of a group, of X and of Y, at the most: with more, GEMM has enough to share.
pub(crate) const MOST_CHANNELS: usize = 32;

/// Taps, at the most: tables grow with them.
const MOST_TAPS: usize = 128;

/// Bytes of a unit's planes, at the most, where several panels of output channels read them: they
/// stay in L1 caches of 32 KiB and more, with room for Y and weights.
const PLANES_BYTES: usize = 24 << 10;

/// Bytes of the sums of a block, at the most, where kernels cannot store into Y: they stay in the
/// L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 8
}

/// Bytes of scratch, at the most: a limit of memory.
const MOST_BYTES: usize = 16 << 20;

/// Vectors of a block, at the least: fewer leave no choice of tiles.
const LEAST_BLOCK: usize = 6;

/// Strides, at the most: with longer ones, little of X is read.
const MOST_STRIDE: usize = 8;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let prices = machine.prices();
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    let (inputs, outputs) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    if inputs > MOST_CHANNELS || !(2..=MOST_CHANNELS).contains(&outputs) {
        return Err(alloc::format!(
            "{inputs} input and {outputs} output channels a group, at most {MOST_CHANNELS} and 2 to {MOST_CHANNELS} can be"
        ));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let last = geometry.axes.len() - 1;
    let Some((h, w)) = last_axes(geometry) else {
        return Err(alloc::format!("{} spatial axes, only one or two", last + 1));
    };
    let is_strange = |axis: &Axis| axis.stride > MOST_STRIDE || axis.stride > 1 && axis.dilation > 1;
    if let Some((i, axis)) = geometry.axes.iter().enumerate().find(|(_, axis)| is_strange(axis)) {
        let Axis { stride, dilation, .. } = axis;
        return Err(alloc::format!(
            "spatial axis {i} has stride {stride}, dilation {dilation}, only strides up to {MOST_STRIDE}, and dilation beside stride 1"
        ));
    }
    let is_long = if w.stride == 1 { w.output == w.input } else { w.output >= w.input.div_ceil(w.stride) };
    if !is_long || geometry.input_spatial() == 0 {
        let Axis { input, output, stride, .. } = w;
        return Err(alloc::format!(
            "spatial axis {last} has input {input}, output {output}, stride {stride}: rows of Y are not as long as rows of X, or of its phases"
        ));
    }
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, at most {MOST_TAPS} can be", geometry.kernel_volume()));
    }
    let kernels = grouped_kernels::<T::Acc>(request.isa());
    let lanes =
        kernels.first().map(GroupedKernel::lanes).ok_or_else(|| String::from("no kernels for this instruction set"))?;
    let phases = Phases::new(&h, &w, lanes).ok_or_else(|| String::from("X is too large"))?;
    let taps = FlatTaps::new(
        lanes,
        (inputs, phases.pitch),
        (h.input.div_ceil(h.stride), w.output),
        h.output,
        &places(&h, phases.plane * phases.counts[1]),
        &places(&w, phases.plane),
    )
    .ok_or_else(|| String::from("X is empty, or too large"))?;
    let vectors = geometry.output_spatial().div_ceil(lanes);
    let steps = taps.steps() as f64;
    let heights = match request.layout {
        Some(WeightLayout::Grouped { heights }) => heights.clone(),
        Some(other) => return Err(other.mismatch()),
        None => {
            heights(machine, kernels, outputs, vectors, steps).ok_or_else(|| String::from("no kernels for so many"))?
        }
    };
    // Blocks that stay in the L1 cache while several panels read them, and enough for the threads.
    let (bytes, planes) = (size_of::<T::Acc>(), inputs * phases.pitch);
    let resident = if heights.len() > 1 { planes.saturating_mul(bytes).div_ceil(PLANES_BYTES) } else { 1 };
    let finish = Finish::new(request);
    let tallest = heights.iter().copied().max().unwrap_or(0);
    let sums = if finish.is_direct() { 0 } else { geometry.output_spatial().saturating_mul(tallest * bytes) };
    let resident = resident.max(sums.div_ceil(sums_bytes(machine)));
    let others = geometry.batch * geometry.group;
    let shared = if request.threads == 1 { 1 } else { (TASKS_PER_THREAD * request.threads).div_ceil(others) };
    let block = vectors.div_ceil(resident.max(shared)).max(LEAST_BLOCK).min(vectors);
    let blocks = vectors.div_ceil(block);
    let rest = vectors - (blocks - 1) * block;
    let parts = shared.min(blocks);
    let mut panels = Vec::with_capacity(heights.len());
    let mut cycles = 0.0;
    for height in heights {
        let (full, last) =
            (cover(machine, kernels, height, block, steps), cover(machine, kernels, height, rest, steps));
        let (Some(full), Some(last)) = (full, last) else { return Err(String::from("no kernels for this layout")) };
        cycles += (blocks - 1) as f64 * full.cycles + last.cycles;
        panels.push(Panel { height, runs: [full.runs, last.runs] });
    }
    cycles *= prices.grouped;
    cycles *= 1.0 + prices.grouped_border * taps.border() as f64 / vectors as f64;
    let is_copied = !T::DIRECT || phases.is_strided();
    if phases.is_strided() && geometry.group > 1 && inputs >= prices.grouped_strided_channels {
        cycles *= prices.grouped_strided;
    }
    let copies = if is_copied { inputs as f64 * phases.cycles(prices, lanes) } else { 0.0 };
    let lens = [
        if is_copied { planes } else { 0 },
        if finish.is_direct() { 0 } else { tallest.saturating_mul(block * lanes) },
    ];
    if lens.iter().any(|len| len.saturating_mul(bytes) > MOST_BYTES) {
        return Err(String::from("the planes are too large"));
    }
    let units = others * parts;
    Ok(Offer::old(
        request.machine,
        (others as f64 * (cycles + copies) + prices.task_cycles) / machine.clock_ghz,
        lens.iter().fold(0, |lines, len| lines.saturating_add(lines_for::<T::Acc>(*len))),
        Box::new(move || {
            Box::new(Grouped {
                geometry: geometry.clone(),
                isa: request.isa(),
                finish,
                kernels: depthwise_kernels::<T::Acc>(request.isa()),
                phases,
                taps,
                lanes,
                panels,
                block,
                blocks,
                parts,
                units,
                tasks: units.min(TASKS_PER_THREAD * request.threads),
                lens,
                zeros: vec![T::Acc::ZERO; tallest],
            })
        }),
    ))
}

/// The planes of a channel: one for each phase of the strides that some tap reads; without strides,
/// X's own.
struct Phases {
    h: Axis,
    w: Axis,
    /// Phases along H and W.
    counts: [usize; 2],
    /// Elements from one phase along W to the next, and from one channel to the next.
    plane: usize,
    pitch: usize,
}

impl Phases {
    /// None if they are too long.
    fn new(h: &Axis, w: &Axis, lanes: usize) -> Option<Self> {
        let counts = [h.kernel.min(h.stride), w.kernel.min(w.stride)];
        let plane = h.input.div_ceil(h.stride).checked_mul(w.output)?;
        // A copy fills up rows to whole vectors.
        let plane =
            if h.stride * w.stride > 1 { plane.checked_add(lanes)?.checked_next_multiple_of(lanes)? } else { plane };
        Some(Self { h: *h, w: *w, counts, plane, pitch: plane.checked_mul(counts[0] * counts[1])? })
    }

    fn is_strided(&self) -> bool {
        self.h.stride * self.w.stride > 1
    }

    /// The first element of phase `i` of an axis, which is that of tap i, and their number.
    fn of(axis: &Axis, i: usize) -> (usize, usize) {
        let phase = (i as isize - axis.pad_begin as isize).rem_euclid(axis.stride as isize) as usize;
        (phase, axis.input.saturating_sub(phase).div_ceil(axis.stride))
    }

    /// Whether some rows or planes end before the others, or before Y's: they are filled up with
    /// zeros.
    fn is_ragged(&self) -> bool {
        let (rows, width) = (self.h.input.div_ceil(self.h.stride), self.w.output);
        (0..self.counts[0]).any(|i| Self::of(&self.h, i).1 < rows)
            || (0..self.counts[1]).any(|j| Self::of(&self.w, j).1 < width)
    }

    /// Estimated cycles to copy a channel.
    fn cycles(&self, prices: &Prices, lanes: usize) -> f64 {
        let rows = (self.counts[0] * self.h.input.div_ceil(self.h.stride) * self.counts[1]) as f64;
        let strided = if self.w.stride > 2 { 2.0 } else { 1.0 };
        rows * strided * (prices.row_copy_cycles + 2.0 * self.w.input.div_ceil(self.w.stride).div_ceil(lanes) as f64)
    }

    /// Copies what of the planes is in the rows `rows`, of a channel of X.
    fn fill<T: Element>(
        &self,
        isa: Isa,
        kernels: Option<&DepthwiseKernels<T::Acc>>,
        x: &[T],
        rows: Range<usize>,
        planes: &mut [T::Acc],
    ) {
        let (h, w) = (&self.h, &self.w);
        for (i, planes) in planes.chunks_exact_mut(self.counts[1] * self.plane).enumerate() {
            let (first, count) = Self::of(h, i);
            let rows = rows.start.min(count)..rows.end.min(count);
            if rows.is_empty() {
                continue;
            }
            let x = &x[(first + rows.start * h.stride) * w.input..];
            let planes = &mut planes[rows.start * w.output..];
            if let (Some(x), Some(kernels), true) = (T::as_acc(x), kernels, w.stride == 2 && self.counts[1] == 2) {
                let (src_row, dst_row) = (h.stride * w.input, w.output);
                let (src_plane, dst_plane) = (0, 0);
                let copy =
                    RowCopy { planes: 1, rows: rows.len(), width: w.input, src_plane, src_row, dst_plane, dst_row };
                // X's even positions are the phase of taps as odd as the padding.
                let even = w.pad_begin % 2 * self.plane;
                kernels.split(x, planes, even, self.plane - even, &copy);
                continue;
            }
            for (row, x) in x.chunks(h.stride * w.input).take(rows.len()).enumerate() {
                for j in 0..self.counts[1] {
                    let (first, len) = Self::of(w, j);
                    if len > 0 {
                        let to = &mut planes[j * self.plane + row * w.output..][..len];
                        stream::widen_strided(isa, &x[first..w.input], w.stride, to);
                    }
                }
            }
        }
    }
}

/// For each tap of an axis, its phase's plane, `gap` elements from one to the next, and the
/// position that output position 0 sees there.
fn places(axis: &Axis, gap: usize) -> Vec<(usize, isize)> {
    let place = |k: usize| {
        let position = (k * axis.dilation) as isize - axis.pad_begin as isize;
        (k % axis.stride * gap, position.div_euclid(axis.stride as isize))
    };
    (0..axis.kernel).map(place).collect()
}

/// The last two axes, of which the first may be missing.
fn last_axes(geometry: &Geometry) -> Option<(Axis, Axis)> {
    match *geometry.axes.as_slice() {
        [w] => Some((Axis::UNIT, w)),
        [h, w] => Some((h, w)),
        _ => None,
    }
}

/// Some calls of kernels of one height, one behind the other, that cover some vectors of positions.
struct Cover<A: Real> {
    runs: Vec<Run<A>>,
    cycles: f64,
}

/// Tiles side by side.
struct Run<A: Real> {
    kernel: &'static GroupedKernel<A>,
    /// The vector that the first one begins with, and the number of vectors, of which the last tile
    /// may have a part.
    first: usize,
    vectors: usize,
}

/// Estimated cycles of a tile with `steps` steps of k.
fn tile_cycles<A: Real>(machine: &Machine, kernel: &GroupedKernel<A>, steps: f64) -> f64 {
    let prices = machine.prices();
    let loads = (kernel.nrv() as f64 * prices.grouped_loads + kernel.mr() as f64) / machine.loads_per_cycle;
    let step = (kernel.fmas() as f64 / machine.fmas_per_cycle).max(loads).max(machine.fma_latency_cycles);
    step * steps + (kernel.mr() * kernel.nrv()) as f64 * prices.grouped_finish_cycles + prices.kernel_call_cycles / 4.0
}

/// The cheapest tiles of `height` rows for `vectors` vectors, the last of which may reach beyond
/// them; none if there is no kernel of that height.
fn cover<A: Real>(
    machine: &Machine,
    kernels: &'static [GroupedKernel<A>],
    height: usize,
    vectors: usize,
    steps: f64,
) -> Option<Cover<A>> {
    let kernels: Vec<_> = kernels.iter().filter(|kernel| kernel.mr() == height).collect();
    let costs: Vec<_> = kernels.iter().map(|kernel| tile_cycles(machine, kernel, steps)).collect();
    let cost_of_a_vector = |i: &usize| costs[*i] / kernels[*i].nrv() as f64;
    let bulk = (0..kernels.len()).min_by(|a, b| cost_of_a_vector(a).total_cmp(&cost_of_a_vector(b)))?;
    // As many of the best width as leave a rest that others may fill better.
    let width = kernels[bulk].nrv();
    let many = (vectors / width).saturating_sub(width);
    let rest = vectors - many * width;
    // For each number of vectors, the least cost, and the width that is taken last.
    let mut least: Vec<(f64, usize)> = vec![(0.0, 0)];
    for n in 1..=rest {
        let with = |i: usize| (least[n.saturating_sub(kernels[i].nrv())].0 + costs[i], i);
        least.push((0..kernels.len()).map(with).min_by(|a, b| a.0.total_cmp(&b.0))?);
    }
    let mut counts = vec![0; kernels.len()];
    counts[bulk] = many;
    let mut left = rest;
    while left > 0 {
        counts[least[left].1] += 1;
        left = left.saturating_sub(kernels[least[left].1].nrv());
    }
    let (mut runs, mut first) = (Vec::new(), 0);
    for (kernel, tiles) in kernels.into_iter().zip(counts).filter(|(_, tiles)| *tiles > 0) {
        // Without any of the tiles, the others would not reach the end: the last one begins before
        // it.
        let covered = (tiles * kernel.nrv()).min(vectors - first);
        runs.push(Run { kernel, first, vectors: covered });
        first += covered;
    }
    let calls = runs.len() as f64 * machine.prices().kernel_call_cycles;
    Some(Cover { runs, cycles: many as f64 * costs[bulk] + least[rest].0 + calls })
}

/// The cheapest panels of `rows` output channels, the tallest first; none if no heights add up to
/// that.
fn heights<A: Real>(
    machine: &Machine,
    kernels: &'static [GroupedKernel<A>],
    rows: usize,
    vectors: usize,
    steps: f64,
) -> Option<Vec<usize>> {
    let mut choices: Vec<(usize, f64)> = Vec::new();
    for kernel in kernels {
        if choices.iter().all(|(height, _)| *height != kernel.mr()) {
            choices.push((kernel.mr(), cover(machine, kernels, kernel.mr(), vectors, steps)?.cycles));
        }
    }
    let mut least: Vec<Option<(f64, usize)>> = vec![Some((0.0, 0))];
    for n in 1..=rows {
        let with = |&(height, cost): &(usize, f64)| Some((least[n.checked_sub(height)?]?.0 + cost, height));
        least.push(choices.iter().filter_map(with).min_by(|a, b| a.0.total_cmp(&b.0)));
    }
    let (mut heights, mut left) = (Vec::new(), rows);
    while left > 0 {
        heights.push(least[left]?.1);
        left -= least[left]?.1;
    }
    heights.sort_unstable_by(|a, b| b.cmp(a));
    Some(heights)
}

/// Some output channels of a group.
struct Panel<A: Real> {
    height: usize,
    /// For a full block, and for the last one.
    runs: [Vec<Run<A>>; 2],
}

struct Grouped<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// Their copies of X.
    kernels: Option<&'static DepthwiseKernels<T::Acc>>,
    phases: Phases,
    taps: FlatTaps,
    lanes: usize,
    panels: Vec<Panel<T::Acc>>,
    /// Vectors of a block, blocks of a group, and units that share them out.
    block: usize,
    blocks: usize,
    parts: usize,
    units: usize,
    tasks: usize,
    /// Values of scratch: planes and sums.
    lens: [usize; 2],
    /// As many zeros as a panel has rows.
    zeros: Vec<T::Acc>,
}

impl<T: Element> Split for Grouped<T> {
    fn tasks(&self) -> usize {
        self.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (outputs, positions) = (self.geometry.out_channels_per_group(), self.geometry.output_spatial());
        for (image, group, blocks) in share(self.units, self.tasks, task).map(|unit| self.place(unit)) {
            let at = |block: usize| (block * self.block * self.lanes).min(positions);
            let channels = group * outputs..(group + 1) * outputs;
            patch(Patch::rows(image..image + 1, channels, at(blocks.start)..at(blocks.end), positions));
        }
    }
}

impl<T: Element> Lowering<T> for Grouped<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::Grouped { heights: self.panels.iter().map(|panel| panel.height).collect() }
    }

    fn describe(&self) -> String {
        let heights: Vec<_> = self.panels.iter().map(|panel| panel.height).collect();
        alloc::format!("{}, panels of {heights:?} output channels, {} units", self.kernel(), self.units)
    }

    fn kernel(&self) -> &'static str {
        let runs = &self.panels[0].runs[usize::from(self.blocks == 1)];
        runs.iter().max_by_key(|run| run.vectors).map_or("", |run| run.kernel.name())
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let Some((h, v)) = last_axes(&self.geometry) else { return };
        let (channels, outputs, steps) =
            (self.geometry.in_channels_per_group(), self.geometry.out_channels_per_group(), self.taps.steps());
        let mut packed = packed.iter_mut();
        for group in 0..self.geometry.group {
            let mut row = group * outputs;
            for panel in &self.panels {
                for kx in 0..v.kernel {
                    for c in 0..channels {
                        for ky in 0..h.kernel {
                            let tap = (c * h.kernel + ky) * v.kernel + kx;
                            for (i, packed) in packed.by_ref().take(panel.height).enumerate() {
                                *packed = w[(row + i) * steps + tap].to_acc();
                            }
                        }
                    }
                }
                row += panel.height;
            }
        }
    }

    /// A share of the units.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let [planes, sums] = self.lens.map(|len| arena.take::<T::Acc>(len));
        if self.phases.is_ragged() {
            // Copies write what lies between.
            planes.fill(T::Acc::ZERO);
        }
        for unit in share(self.units, self.tasks, task) {
            self.unit(unit, io, planes, sums);
        }
    }
}

impl<T: Element> Grouped<T> {
    /// The image, group and blocks of positions of a unit.
    fn place(&self, unit: usize) -> (usize, usize, Range<usize>) {
        let (plane, part) = (unit / self.parts, unit % self.parts);
        let blocks = part * self.blocks / self.parts..(part + 1) * self.blocks / self.parts;
        (plane / self.geometry.group, plane % self.geometry.group, blocks)
    }

    fn unit(&self, unit: usize, io: &Io<'_, T>, planes: &mut [T::Acc], sums: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (image, group, blocks) = self.place(unit);
        let spatial = geometry.input_spatial();
        let channels = geometry.in_channels_per_group();
        let (x, next) =
            io.x[(image * geometry.in_channels + group * channels) * spatial..].split_at(channels * spatial);
        let x = match T::as_acc(x) {
            Some(x) if !self.phases.is_strided() => x,
            _ => {
                let (from, to) = (blocks.start * self.block * self.lanes, blocks.end * self.block * self.lanes);
                let (window, width) = (self.taps.window(from, to), self.phases.w.output);
                let rows = window.start / width..window.end.div_ceil(width);
                for (x, planes) in x.chunks_exact(spatial).zip(planes.chunks_exact_mut(self.phases.pitch)) {
                    self.phases.fill(self.isa, self.kernels, x, rows.clone(), planes);
                }
                planes
            }
        };
        let next = T::as_acc(next).unwrap_or(&[]);
        for block in blocks {
            self.block(block, (image, group), io, x, next, sums);
        }
    }

    /// All output channels of a block of positions; `next` begins with the next group's channels of
    /// X.
    fn block(
        &self,
        block: usize,
        (image, group): (usize, usize),
        io: &Io<'_, T>,
        x: &[T::Acc],
        next: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let geometry = &self.geometry;
        let spatial = geometry.output_spatial();
        let first = block * self.block;
        let (from, to) = (first * self.lanes, ((first + self.block) * self.lanes).min(spatial));
        let mut row = group * geometry.out_channels_per_group();
        for (i, panel) in self.panels.iter().enumerate() {
            let runs = &panel.runs[usize::from(block + 1 == self.blocks)];
            let steps: usize = runs.iter().map(|run| run.vectors.div_ceil(run.kernel.nrv()) * self.taps.steps()).sum();
            // The first panel of each block fetches its share of the next group, and each step a
            // share of that.
            let share = geometry.in_channels_per_group() * geometry.input_spatial() / self.blocks;
            let step = share.div_ceil(steps.max(1));
            let next = if i == 0 { next.get(block * share..).unwrap_or(&[]) } else { &[] };
            let w = &io.weights[row * self.taps.steps()..(row + panel.height) * self.taps.steps()];
            let bias = &io.bias[row..row + panel.height];
            let at = (image * geometry.out_channels + row) * spatial + from;
            let mut done = 0;
            let mut call =
                |run: &Run<T::Acc>, y: &mut Dest<'_, T::Acc>, ldy: usize, epilogue: &Epilogue<'_, T::Acc>| {
                    let ahead = next.get(done * step..).map_or(Ahead::NONE, |next| Ahead::rows(next, step));
                    done += run.vectors.div_ceil(run.kernel.nrv()) * self.taps.steps();
                    let (first, vectors) = (first + run.first, run.vectors);
                    let offset = run.first * self.lanes;
                    let input = FlatInput { taps: &self.taps, w, is_finite: io.is_finite, x, ahead, first, vectors };
                    run.kernel.run(&input, &mut y.from(offset), ldy, &epilogue.from(offset));
                };
            let sink = self.finish.sink(io);
            let stores = [Stores::row(at, to - from).times(panel.height, spatial)];
            if let Some((mut y, epilogue)) = sink.direct(at, bias, stores) {
                runs.iter().for_each(|run| call(run, &mut y, spatial, &epilogue));
            } else {
                let epilogue = no_epilogue(&self.zeros);
                let mut y = Dest::from_slice(sums);
                runs.iter().for_each(|run| call(run, &mut y, to - from, &epilogue));
                for (i, sums) in sums.chunks_exact_mut(to - from).take(panel.height).enumerate() {
                    sink.row(sums, bias[i], at + i * spatial);
                }
            }
            row += panel.height;
        }
    }
}
