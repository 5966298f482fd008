//! Conv with few channels a group, directly: depthwise with any multiplier, and groups of some channels.
//!
//! No GEMM: M/group, K = C/group * kernel volume and the shared operand would be too small. Accepts every Conv with at most [`MOST_CHANNELS`]
//! input channels a group. The last two axes are H and W; those before them are "outer" and, like the channels of a group, just bring more taps
//! (one axis alone is W, or H where vectors run along channels).
//!
//! A unit of work is a strip of H of one outer position of a group, or of several groups where planes are small. Its input is copied into padded
//! planes, split by phases where W has a stride, so that every tap is a shifted view of whole vectors; then tiles of rows are summed from there.
//! Two orientations:
//!
//! * rows: vectors along W. The planes of one channel are a few KiB, and stay in the L1 cache.
//! * channels: vectors along as many groups as a vector has lanes, where rows are too short to fill vectors.
//!
//! Scratch for a task: the planes, and a strip of sums where kernels cannot store into Y.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::stream::{self, Activation};
use convoke_kernels::{
    DepthwiseInput, DepthwiseKernel, DepthwiseKernels, DepthwiseOutput, Dest, DirectInput, DirectTable, Epilogue, Isa,
    MOST_TAPS, Real, RowCopy, Slots, TapTable, depthwise_kernels,
};

use super::cost::{CLOCK, DIRECT_FINISH_CYCLES, DIRECT_UNIT_CYCLES, GATHER_CYCLES, ROW_COPY_CYCLES, TASK_CYCLES};
use super::engine::Panels;
use super::finish::Finish;
use super::{Answer, Io, Layout, Lowering, Offer, Request};
use crate::element::Element;
use crate::exec::{Arena, Line, lines_for};
use crate::machine::Caches;
use crate::{Axis, Geometry, Op};

/// Input channels of a group, at the most: with more, GEMM has enough to share.
pub(crate) const MOST_CHANNELS: usize = 32;
/// Bytes of the planes of a unit, at the most, unless strips would become so low that their borders count: the L1 cache, with room for Y.
const PLANES_BYTES: usize = 32 << 10;
/// Bytes of the planes of several groups of a unit, together.
const BATCH_BYTES: usize = 64 << 10;
/// Groups of a unit whose kernels read X itself.
const DIRECT_BATCH: usize = 64;
/// Bytes of the planes, at the most.
const MOST_BYTES: usize = 16 << 20;
/// Tasks for each thread, so that they end at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// What vectors run along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Along {
    Rows,
    Channels,
}

/// An axis of one element: what is missing where there is one axis only.
const UNIT: Axis = Axis { input: 1, kernel: 1, output: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };

/// One phase of W in a row of a plane: `element i` is padded input position `phase + i * stride`.
#[derive(Debug, Clone, Copy)]
struct Phase {
    phase: usize,
    /// Where element 0 is, from the row's beginning.
    base: usize,
    /// The elements that are not padding.
    from: usize,
    to: usize,
}

/// The planes of a unit.
#[derive(Debug, Clone)]
struct Grid {
    along: Along,
    lanes: usize,
    outer: Vec<Axis>,
    h: Axis,
    w: Axis,
    /// Input channels of a group.
    channels: usize,
    outer_taps: usize,
    phases: Vec<Phase>,
    /// Elements of a row of a plane.
    pitch: usize,
    /// Output rows of a strip; the last one of an outer position may have fewer.
    extent: usize,
    /// Elements of a plane, of which a group has one for each input channel and outer tap.
    plane: usize,
}

impl Grid {
    /// The planes' rows; none where they are too long.
    fn new(geometry: &Geometry, along: Along, lanes: usize) -> Option<Self> {
        let (outer, h, w) = match *geometry.axes.as_slice() {
            [axis] if along == Along::Rows => (Vec::new(), UNIT, axis),
            [axis] => (Vec::new(), axis, UNIT),
            [ref outer @ .., h, w] => (outer.to_vec(), h, w),
            [] => return None,
        };
        let (phases, pitch) = match along {
            Along::Rows => phases(&w, lanes)?,
            Along::Channels => {
                let span = (w.output - 1).checked_mul(w.stride)?.checked_add(w.effective_kernel())?;
                (Vec::new(), span.checked_mul(lanes)?)
            }
        };
        let outer_taps = outer.iter().try_fold(1_usize, |n, a| n.checked_mul(a.kernel))?;
        let channels = geometry.in_channels_per_group();
        Some(Self { along, lanes, outer, h, w, channels, outer_taps, phases, pitch, extent: 0, plane: 0 })
    }

    /// Rows of a plane for a strip of `extent` output rows.
    fn rows(&self, extent: usize) -> usize {
        (extent - 1) * self.h.stride + self.h.effective_kernel()
    }

    /// Elements of a plane of a strip; with channels as lanes, there is one more vector, for what no tap reads.
    fn plane_len(&self, extent: usize) -> Option<usize> {
        let rows = (extent - 1).checked_mul(self.h.stride)?.checked_add(self.h.effective_kernel())?;
        let spare = if self.along == Along::Channels { self.lanes } else { 0 };
        rows.checked_mul(self.pitch)?.checked_add(spare)
    }

    /// Planes of a group.
    fn planes(&self) -> usize {
        self.channels * self.outer_taps
    }

    /// Elements of the planes of a group; none if they exceed `bytes` in all.
    fn group_len(&self, extent: usize, bytes: usize, element: usize) -> Option<usize> {
        let len = self.plane_len(extent)?.checked_mul(self.channels)?.checked_mul(self.outer_taps)?;
        (len.checked_mul(element)? <= bytes).then_some(len)
    }

    /// Output rows between two rows of a tile: those in between see other rows of the input, unless dilation and stride have nothing in common.
    fn tile_step(&self) -> usize {
        self.h.dilation / gcd(self.h.stride, self.h.dilation)
    }

    /// Sets the strips: as high as keeps the planes within `PLANES_BYTES`, but not so low that rows shared by two strips weigh much; in
    /// `strips` parts at the least. False if the planes are too large.
    fn cut(&mut self, element: usize, mr: usize, strips: usize) -> bool {
        let output = self.h.output;
        let fits = |extent: usize, bytes: usize| self.group_len(extent, bytes, element).is_some();
        let highest = |bytes: usize| {
            let (mut low, mut high) = (0, output);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle, bytes) { low = middle } else { high = middle - 1 }
            }
            low
        };
        let tile = mr * self.tile_step();
        let mut extent = highest(PLANES_BYTES);
        if extent < output {
            let shared = self.h.effective_kernel() / self.h.stride;
            let wanted = (4 * shared).max(tile).min(output);
            if extent < wanted {
                extent = if fits(wanted, Caches::detect().l2 / 2) {
                    wanted
                } else {
                    highest(Caches::detect().l2 / 2).max(1)
                };
            }
            if !fits(extent, MOST_BYTES) {
                return false;
            }
        }
        let parts = output.div_ceil(extent).max(strips.min(output.div_ceil(tile)));
        extent = output.div_ceil(parts);
        // Whole tiles, where a strip has several.
        if extent > tile && fits(extent.next_multiple_of(tile), Caches::detect().l2 / 2) {
            extent = extent.next_multiple_of(tile).min(output);
        }
        let (Some(plane), Some(group)) = (self.plane_len(extent), self.group_len(extent, MOST_BYTES, element)) else {
            return false;
        };
        self.extent = extent;
        self.plane = plane;
        u32::try_from(group).is_ok()
    }

    fn strips(&self) -> usize {
        self.h.output.div_ceil(self.extent)
    }

    /// Output positions of the outer axes.
    fn outer_positions(&self) -> usize {
        self.outer.iter().map(|a| a.output).product()
    }

    /// Whether a unit's planes are whole, so that their padding is always in the same place.
    fn is_whole(&self) -> bool {
        self.strips() == 1 && self.outer.is_empty()
    }

    /// The groups of tap columns, each with its first tap along H, and the number of columns' taps: chains of taps along H that see the same rows,
    /// cut into nearly equal pieces. It depends on the operator alone, and so does the order of packed weights.
    fn pieces(&self) -> Vec<(usize, usize)> {
        let every = self.h.stride / gcd(self.h.stride, self.h.dilation);
        let mut pieces = Vec::new();
        for first in 0..every.min(self.h.kernel) {
            let chain = Panels::new((self.h.kernel - first).div_ceil(every), MOST_TAPS);
            pieces.extend((0..chain.count()).map(|p| (first + chain.start(p) * every, chain.height(p))));
        }
        pieces
    }

    /// The tap (its index in a filter of W) of each packed weight.
    fn order(&self) -> Vec<usize> {
        let every = self.h.stride / gcd(self.h.stride, self.h.dilation);
        let mut order = Vec::new();
        for (first, taps) in self.pieces() {
            for plane in 0..self.planes() {
                for kx in 0..self.w.kernel {
                    let tap = |k: usize| (plane * self.h.kernel + first + k * every) * self.w.kernel + kx;
                    order.extend((0..taps).map(tap));
                }
            }
        }
        order
    }

    fn table(&self) -> TapTable {
        let mut groups = Vec::new();
        for (first, taps) in self.pieces() {
            let mut offsets = Vec::with_capacity(self.planes() * self.w.kernel);
            for plane in 0..self.planes() {
                for kx in 0..self.w.kernel {
                    let at = plane * self.plane + first * self.h.dilation * self.pitch + self.tap_offset(kx);
                    offsets.push(u32::try_from(at).expect("cut() bounds the offsets"));
                }
            }
            groups.push((taps, offsets));
        }
        TapTable::new(&groups, self.tile_step() * self.h.stride * self.pitch)
    }

    /// The table for kernels that read X itself: one channel a group, two axes, no stride or dilation along H, no stride along W, short kernels.
    fn direct_table(&self) -> Option<DirectTable> {
        let [(_, taps)] = *self.pieces() else { return None };
        let is_plain = self.along == Along::Rows && self.outer.is_empty() && self.channels == 1;
        if !is_plain || self.w.stride > 1 || self.h.stride > 1 || self.tile_step() > 1 {
            return None;
        }
        let position = |kx: usize| (kx * self.w.dilation) as isize - self.w.pad_begin as isize;
        let table = DirectTable::new(taps, (0..self.w.kernel).map(position).collect(), self.w.input)?;
        table.serves(self.w.output, self.lanes).then_some(table)
    }

    /// How far from a row's beginning tap `kx` of W reads the first output.
    fn tap_offset(&self, kx: usize) -> usize {
        let at = kx * self.w.dilation;
        if self.along == Along::Channels {
            return at * self.lanes;
        }
        let phase = self.phases.iter().find(|p| p.phase == at % self.w.stride).expect("phases() met every tap's phase");
        phase.base + at / self.w.stride
    }

    /// Where the input positions of a strip's rows go, with channels as lanes.
    fn slots(&self) -> Slots {
        let rows = self.rows(self.extent);
        let spare = rows * self.pitch;
        let mut slots = Vec::with_capacity(rows * self.w.input);
        for row in 0..rows {
            for x in 0..self.w.input {
                let at = (x + self.w.pad_begin) * self.lanes;
                let slot = if at < self.pitch { row * self.pitch + at } else { spare };
                slots.push(u32::try_from(slot).expect("cut() bounds the planes"));
            }
        }
        Slots::new(slots)
    }

    /// Which H x W plane of a channel of X outer tap `tap` of outer position `position` reads; none where it is padding.
    fn outer_source(&self, mut position: usize, mut tap: usize) -> Option<usize> {
        let (mut source, mut step) = (0, 1);
        for axis in self.outer.iter().rev() {
            source += axis.input_position(position % axis.output, tap % axis.kernel)? * step;
            position /= axis.output;
            tap /= axis.kernel;
            step *= axis.input;
        }
        Some(source)
    }

    /// The rows of a strip's planes that are not padding, and the row of X that the first of them is.
    fn rows_inside(&self, start: usize, extent: usize) -> (Range<usize>, usize) {
        let (top, rows) = (start * self.h.stride, self.rows(extent));
        let low = self.h.pad_begin.saturating_sub(top).min(rows);
        // Rows without elements have nothing to be copied.
        let input = if self.w.input == 0 { 0 } else { self.h.input };
        let high = (self.h.pad_begin + input).saturating_sub(top).clamp(low, rows);
        (low..high, (top + low).saturating_sub(self.h.pad_begin))
    }

    /// Estimated cycles of all units, for the kernels of `mr` rows at most.
    fn cycles(&self, geometry: &Geometry, mr: usize) -> f64 {
        let (k, pieces) = ((self.planes() * self.h.kernel * self.w.kernel) as f64, self.pieces());
        let tile_rows = Panels::new(self.extent.div_ceil(self.tile_step()), mr);
        let rows = tile_rows.height(tile_rows.count() - 1).max(1) as f64;
        let columns = (pieces.len() * self.planes() * self.w.kernel) as f64;
        let loads = |weights: f64, unaligned: f64| {
            let rows_read: f64 = pieces.iter().map(|(_, taps)| rows + *taps as f64 - 1.0).sum();
            (rows_read * columns / pieces.len() as f64 * unaligned + weights) / rows / 2.0
        };
        let outputs = (self.outer_positions() * self.h.output) as f64;
        let window = self.rows(self.extent).min(self.h.input + self.h.kernel) * self.strips() * self.outer_positions();
        let planes = (self.planes() * window) as f64;
        let images = geometry.batch as f64;
        let units = (self.outer_positions() * self.strips()) as f64;
        // Sums of few rows wait for one another; short ones overlap with the next tile's.
        let fma = (k / 2.0).max(k * 2.0 / rows);
        match self.along {
            Along::Rows => {
                let vectors = self.w.output.div_ceil(self.lanes) as f64;
                let sums = fma.max(loads(k, 1.7)) + columns / rows + DIRECT_FINISH_CYCLES;
                let copied = self.phases.iter().map(|p| (p.to - p.from).div_ceil(self.lanes)).sum::<usize>() as f64;
                let strided = if self.w.stride > 2 { 2.0 } else { 1.0 };
                let copies = planes * (ROW_COPY_CYCLES * strided * self.phases.len() as f64 + 2.0 * copied * strided);
                let groups = geometry.group as f64;
                let m = geometry.out_channels_per_group() as f64;
                images * groups * (m * outputs * vectors * sums + copies + units * DIRECT_UNIT_CYCLES)
            }
            Along::Channels => {
                let blocks = geometry.group.div_ceil(self.lanes) as f64;
                let sums = fma.max(loads(k, 1.0)) + columns / rows + DIRECT_FINISH_CYCLES + GATHER_CYCLES;
                let m = geometry.out_channels_per_group() as f64;
                let gathered = planes * self.w.input as f64 * GATHER_CYCLES;
                let units = units * DIRECT_UNIT_CYCLES * 2.0;
                images * blocks * (m * outputs * self.w.output as f64 * sums + gathered + units)
            }
        }
    }
}

/// The phases of W that some tap reads, and the length of a row that holds them all, for outputs in vectors of `lanes`.
fn phases(w: &Axis, lanes: usize) -> Option<(Vec<Phase>, usize)> {
    let vectors = w.output.div_ceil(lanes).checked_mul(lanes)?;
    let (mut phases, mut at) = (Vec::<Phase>::new(), 0_usize);
    let every = w.stride / gcd(w.stride, w.dilation);
    for first in 0..every.min(w.kernel) {
        let phase = first * w.dilation % w.stride;
        let from = w.pad_begin.saturating_sub(phase).div_ceil(w.stride);
        let to = (w.pad_begin + w.input).saturating_sub(phase).div_ceil(w.stride).max(from);
        // The last tap of this phase.
        let last = first + (w.kernel - 1 - first) / every * every;
        let reach = last.checked_mul(w.dilation)? / w.stride;
        // X begins at a whole vector.
        let base = at.checked_add(from.checked_next_multiple_of(lanes)?)? - from;
        let read = base.checked_add(reach)?.checked_add(vectors)?;
        let written = (base + from).checked_add((to - from).checked_next_multiple_of(lanes)?)?;
        at = read.max(written).checked_next_multiple_of(lanes)?;
        phases.push(Phase { phase, base, from, to });
    }
    // An odd number of vectors, so that equal positions of many rows do not share a cache set.
    let pitch = if (at / lanes).is_multiple_of(2) { at.checked_add(lanes)? } else { at };
    Some((phases, pitch))
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if geometry.in_channels_per_group() > MOST_CHANNELS {
        return Err(alloc::format!("more than {MOST_CHANNELS} input channels a group"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let kernels =
        depthwise_kernels::<T::Acc>(request.isa).ok_or_else(|| String::from("no kernels for this instruction set"))?;
    let asked = |along: Along| request.layout.is_none_or(|layout| layout[0] == along as usize);
    let candidates = [Along::Rows, Along::Channels].into_iter().filter(|along| asked(*along));
    let best = candidates
        .filter_map(|along| Config::new(request, kernels, along))
        .reduce(|a, b| if b.cycles < a.cycles { b } else { a });
    let config = best.ok_or_else(|| String::from("the padded planes are too large"))?;
    Ok(Offer {
        cost: config.cycles / CLOCK,
        lines: config.lens.iter().fold(0, |lines, len| lines.saturating_add(lines_for::<T::Acc>(*len))),
        build: Box::new(move || Box::new(Depthwise::new(request, kernels, config))),
    })
}

/// The choice of an orientation, without tables.
struct Config {
    grid: Grid,
    /// Groups of a unit.
    batch: usize,
    units: usize,
    tasks: usize,
    cycles: f64,
    /// Values of scratch: planes, sums, and rows on their way to or from a 16-bit type.
    lens: [usize; 3],
}

impl Config {
    /// None if the planes are too large.
    fn new<T: Element>(request: &Request<'_, T>, kernels: &DepthwiseKernels<T::Acc>, along: Along) -> Option<Self> {
        let (geometry, lanes, bytes) = (request.geometry, kernels.lanes(), size_of::<T::Acc>());
        let tiles = if along == Along::Rows { kernels.rows() } else { kernels.channels() };
        let mr = tiles.last()?.mr();
        let mut grid = Grid::new(geometry, along, lanes)?;
        let blocks = if along == Along::Rows { geometry.group } else { geometry.group.div_ceil(lanes) };
        let others = geometry.batch * blocks * grid.outer_positions();
        let strips = if request.threads == 1 { 1 } else { (2 * request.threads).div_ceil(others) };
        if !grid.cut(bytes, mr, strips) {
            return None;
        }
        if T::DIRECT && request.threads == 1 && grid.direct_table().is_some() {
            // Nothing is copied: strips have no use but to be shared out.
            grid.extent = grid.h.output;
            grid.plane = grid.plane_len(grid.extent)?;
        }
        let reads_x = T::DIRECT && grid.direct_table().is_some();
        let batch = match along {
            // Only where all of a batch's output channels follow one another, and each thread still gets some units.
            Along::Rows if geometry.out_channels_per_group() == 1 && grid.is_whole() => {
                let fitting = BATCH_BYTES / (grid.planes() * grid.plane * bytes).max(1);
                // Kernels that read X have no planes that should stay in the cache, but perhaps sums.
                let in_x = if request.direct_clamp().is_some() {
                    DIRECT_BATCH
                } else {
                    BATCH_BYTES / (geometry.output_spatial() * bytes)
                };
                let fitting = if reads_x { in_x } else { fitting };
                let share = geometry.batch * geometry.group / (TASKS_PER_THREAD * request.threads);
                fitting.min(share).clamp(1, geometry.group)
            }
            Along::Rows => 1,
            Along::Channels => lanes,
        };
        let blocks = geometry.group.div_ceil(batch);
        let units = geometry.batch * blocks * grid.outer_positions() * grid.strips();
        let strip = grid.extent * grid.w.output;
        let outputs = geometry.out_channels_per_group();
        let is_direct = request.direct_clamp().is_some();
        let sums = match along {
            Along::Rows if is_direct => 0,
            Along::Rows => strip.checked_mul(outputs.max(batch))?,
            Along::Channels => strip.checked_mul(lanes)?,
        };
        let window = if along == Along::Channels { grid.rows(grid.extent).checked_mul(grid.w.input)? } else { 0 };
        if window.checked_mul(size_of::<u32>())? > MOST_BYTES || sums.checked_mul(bytes)? > MOST_BYTES {
            return None;
        }
        let staged = match along {
            Along::Channels if !T::DIRECT => window.max(strip) * lanes,
            Along::Channels if !is_direct => strip * lanes,
            _ => 0,
        };
        let group = grid.planes() * grid.plane;
        // One group at a time where weights are not finite.
        let planes = if along == Along::Rows { group.checked_mul(if reads_x { 1 } else { batch })? } else { group };
        Some(Self {
            batch,
            units,
            tasks: units.min(TASKS_PER_THREAD * request.threads),
            cycles: grid.cycles(geometry, mr) + TASK_CYCLES,
            lens: [planes, sums, staged],
            grid,
        })
    }
}

struct Depthwise<T: Element> {
    geometry: Geometry,
    isa: Isa,
    activation: Activation<T::Acc>,
    direct: Option<(T::Acc, T::Acc)>,
    kernels: &'static DepthwiseKernels<T::Acc>,
    tiles: &'static [DepthwiseKernel<T::Acc>],
    config: Config,
    taps: TapTable,
    /// The same for kernels that read X itself, where they can.
    direct_table: Option<DirectTable>,
    /// For each group of taps, the rows of a plane from the tile's first one on that it begins with, and its reach.
    reaches: Vec<(usize, usize)>,
    slots: Slots,
    /// As many zeros as a unit has biases.
    zeros: Vec<T::Acc>,
}

/// One unit of work.
struct Unit {
    image: usize,
    /// The groups.
    groups: Range<usize>,
    /// The position on the outer axes.
    outer: usize,
    /// The strip's output rows.
    start: usize,
    extent: usize,
}

impl<T: Element> Depthwise<T> {
    fn new(request: &Request<'_, T>, kernels: &'static DepthwiseKernels<T::Acc>, config: Config) -> Self {
        let grid = &config.grid;
        let is_rows = grid.along == Along::Rows;
        let every = grid.h.stride / gcd(grid.h.stride, grid.h.dilation);
        let reach = |(first, taps): (usize, usize)| (first * grid.h.dilation, (taps - 1) * every * grid.h.dilation);
        Self {
            geometry: request.geometry.clone(),
            isa: request.isa,
            activation: request.activation,
            direct: request.direct_clamp(),
            kernels,
            tiles: if is_rows { kernels.rows() } else { kernels.channels() },
            taps: grid.table(),
            direct_table: if T::DIRECT { grid.direct_table() } else { None },
            reaches: grid.pieces().into_iter().map(reach).collect(),
            slots: if is_rows { Slots::new(Vec::new()) } else { grid.slots() },
            zeros: alloc::vec![T::Acc::ZERO; if is_rows { config.batch.max(request.geometry.out_channels_per_group()) } else { config.batch }],
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

    /// Copies the input of a unit into the planes, of which padding on W is zero already.
    fn fill(&self, unit: &Unit, io: &Io<'_, T>, planes: &mut [T::Acc], staged: &mut [T::Acc]) {
        let grid = &self.config.grid;
        let (inside, source_row) = grid.rows_inside(unit.start, unit.extent);
        let (h, w) = (&grid.h, &grid.w);
        let spatial = self.geometry.input_spatial();
        let first = (unit.image * self.geometry.in_channels + unit.groups.start * grid.channels) * spatial;
        let source_at = |outer: usize| outer * h.input * w.input + source_row * w.input;
        if grid.along == Along::Rows && grid.outer.is_empty() && T::DIRECT && self.is_vectorised() {
            // All planes are alike, and their sources follow one another.
            let count = unit.groups.len() * grid.channels;
            if !grid.is_whole() {
                for plane in planes.chunks_exact_mut(grid.plane).take(count) {
                    clear(plane, &inside, grid.rows(unit.extent), grid.pitch);
                }
            }
            if !inside.is_empty() && count > 0 {
                let x = &io.x[first + source_at(0)..];
                self.copy_rows(x, count, &inside, planes);
            }
            return;
        }
        for (index, plane) in planes.chunks_exact_mut(grid.plane).enumerate() {
            let (channel, tap) = (index / grid.outer_taps, index % grid.outer_taps);
            // With channels as lanes, all groups of the unit share a plane.
            if grid.along == Along::Rows && channel >= unit.groups.len() * grid.channels {
                return;
            }
            let outer = grid.outer_source(unit.outer, tap).filter(|_| !inside.is_empty());
            let Some(outer) = outer else {
                plane.fill(T::Acc::ZERO);
                continue;
            };
            if !grid.is_whole() {
                clear(plane, &inside, grid.rows(unit.extent), grid.pitch);
            }
            let x = &io.x[first + channel * spatial + source_at(outer)..];
            if grid.along == Along::Channels {
                self.gather(x, unit.groups.len(), &inside, plane, staged);
            } else if T::DIRECT && self.is_vectorised() {
                self.copy_rows(x, 1, &inside, plane);
            } else {
                for (row, x) in inside.clone().zip(x.chunks(w.input)) {
                    for phase in &grid.phases {
                        let (to, first) = (row * grid.pitch + phase.base, phase.phase + phase.from * w.stride);
                        let row = &mut plane[to + phase.from..to + phase.to];
                        if !row.is_empty() {
                            stream::widen_strided(self.isa, &x[first - w.pad_begin..], w.stride, row);
                        }
                    }
                }
            }
        }
    }

    /// Whether a pass of the kernels copies rows: stride 1, or both phases of stride 2.
    fn is_vectorised(&self) -> bool {
        let grid = &self.config.grid;
        grid.w.stride == 1 || (grid.w.stride == 2 && grid.phases.len() == 2)
    }

    /// Copies rows of `count` planes; `x` begins with the first row that is not padding.
    fn copy_rows(&self, x: &[T], count: usize, inside: &Range<usize>, planes: &mut [T::Acc]) {
        let (grid, Some(x)) = (&self.config.grid, T::as_acc(x)) else { return };
        let planes = &mut planes[inside.start * grid.pitch..];
        let copy = RowCopy {
            planes: count,
            rows: inside.len(),
            width: grid.w.input,
            src_plane: self.geometry.input_spatial(),
            src_row: grid.w.input,
            dst_plane: grid.plane,
            dst_row: grid.pitch,
        };
        if grid.w.stride == 1 {
            let phase = &grid.phases[0];
            self.kernels.copy(x, &mut planes[phase.base + phase.from..], &copy);
        } else {
            // The phases of X's even and odd positions.
            let at = |parity: usize| {
                let phase = grid.phases.iter().find(|p| p.phase == (grid.w.pad_begin + parity) % 2);
                phase.map_or(0, |phase| phase.base + phase.from)
            };
            self.kernels.split(x, planes, at(0), at(1), &copy);
        }
    }

    /// Copies rows of `count` groups, side by side as lanes, into a plane.
    fn gather(&self, x: &[T], count: usize, inside: &Range<usize>, plane: &mut [T::Acc], staged: &mut [T::Acc]) {
        let grid = &self.config.grid;
        let step = grid.channels * self.geometry.input_spatial();
        let range = inside.start * grid.w.input..inside.end * grid.w.input;
        if let Some(x) = T::as_acc(x) {
            return self.kernels.gather(x, step, count, &self.slots, range, plane);
        }
        let len = range.len();
        for (group, staged) in staged.chunks_exact_mut(len.max(1)).take(count).enumerate() {
            stream::widen(self.isa, &x[group * step..][..len], staged);
        }
        self.kernels.gather(staged, len, count, &self.slots, range, plane);
    }

    /// The sums of a unit's planes: calls `run` for runs of tiles of the same height, with the tap groups that count, the first output row from
    /// the strip's first on, and their number.
    fn tiles(
        &self,
        unit: &Unit,
        is_finite: bool,
        mut run: impl FnMut(&DepthwiseKernel<T::Acc>, Range<usize>, usize, usize),
    ) {
        let grid = &self.config.grid;
        let step = grid.tile_step();
        let (inside, _) = grid.rows_inside(unit.start, unit.extent);
        let skips = is_finite && self.taps.groups() > 1 && inside.len() < grid.rows(unit.extent);
        for first in 0..step.min(unit.extent) {
            let panels = Panels::new((unit.extent - first).div_ceil(step), self.tiles.len());
            let mut tile = 0;
            while tile < panels.count() {
                let height = panels.height(tile);
                let row = first + panels.start(tile) * step;
                let same = (tile..panels.count()).take_while(|t| panels.height(*t) == height).count();
                if skips {
                    let last = row + (height - 1) * step;
                    let counts = |(from, reach): &(usize, usize)| {
                        let (low, high) = (row * grid.h.stride + from, last * grid.h.stride + from + reach);
                        low < inside.end && high >= inside.start
                    };
                    let begin = self.reaches.iter().position(counts).unwrap_or(0);
                    let end = self.reaches.iter().rposition(counts).map_or(0, |last| last + 1);
                    run(&self.tiles[height - 1], begin..end, row, 1);
                    tile += 1;
                } else {
                    run(&self.tiles[height - 1], 0..self.taps.groups(), row, same);
                    tile += same;
                }
            }
        }
    }

    /// Output channels `channels`, with vectors along rows: from the planes of the unit, those of an output channel `x_plane` behind those of the one
    /// before it; or, without planes, from X itself.
    fn rows(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        (planes, x_plane): (Option<&[T::Acc]>, usize),
        channels: &Range<usize>,
        sums: &mut [T::Acc],
    ) {
        let grid = &self.config.grid;
        let (spatial, width) = (self.geometry.output_spatial(), grid.w.output);
        let strip = unit.extent * width;
        let at = (unit.image * self.geometry.out_channels + channels.start) * spatial
            + (unit.outer * grid.h.output + unit.start) * width;
        let weights = self.taps.weights();
        let w = &io.weights[channels.start * weights..channels.end * weights];
        let mut output = DepthwiseOutput { width, row: grid.tile_step() * width, plane: spatial };
        if let Some((lo, hi)) = self.direct
            && let Some(mut y) = T::dest_as_acc(io.y.dest(at))
        {
            let residual = io.residual.and_then(T::as_acc).map(|r| &r[at..]);
            let epilogue = Epilogue { bias: &io.bias[channels.clone()], residual, lo, hi };
            return self.sum(unit, io, (planes, x_plane), w, channels.len(), (&mut y, &output, &epilogue));
        }
        output.plane = strip;
        let (mut y, epilogue) = (Dest::from_slice(sums), self.no_epilogue());
        self.sum(unit, io, (planes, x_plane), w, channels.len(), (&mut y, &output, &epilogue));
        let finish = Finish { isa: self.isa, activation: self.activation, io };
        for (channel, sums) in channels.clone().zip(sums.chunks_exact_mut(strip)) {
            finish.row(sums, io.bias[channel], at + (channel - channels.start) * spatial);
        }
    }

    /// As [`rows`](Self::rows), into a destination that begins with the strip of the first of `count` output channels.
    fn sum(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        (planes, x_plane): (Option<&[T::Acc]>, usize),
        w: &[T::Acc],
        count: usize,
        (y, output, epilogue): (&mut Dest<'_, T::Acc>, &DepthwiseOutput, &Epilogue<'_, T::Acc>),
    ) {
        let grid = &self.config.grid;
        let weights = self.taps.weights();
        if let Some(planes) = planes {
            self.tiles(unit, io.is_finite, |kernel, groups, row, tiles| {
                let input = DepthwiseInput {
                    taps: &self.taps,
                    groups,
                    w,
                    w_plane: weights,
                    x: planes.get(row * grid.h.stride * grid.pitch..).unwrap_or(&[]),
                    x_plane,
                    x_vector: grid.lanes,
                    planes: count,
                    tiles,
                };
                kernel.run(&input, &mut y.from(row * grid.w.output), output, &epilogue.from(row * grid.w.output));
            });
            return;
        }
        let first = (unit.image * self.geometry.group + unit.groups.start) * self.geometry.input_spatial();
        let (Some(table), Some(x)) = (&self.direct_table, T::as_acc(&io.x[first..])) else { return };
        let h = &grid.h;
        self.tiles(unit, false, |kernel, _, row, tiles| {
            let (first, height) = ((unit.start + row) as isize - h.pad_begin as isize, h.input);
            let input =
                DirectInput { table, row: first, height, w, w_plane: weights, x, x_plane, planes: count, tiles };
            kernel.run_direct(&input, &mut y.from(row * grid.w.output), output, &epilogue.from(row * grid.w.output));
        });
    }

    /// The output channels number `output` of a unit's groups, with vectors along groups.
    fn channels(
        &self,
        unit: &Unit,
        io: &Io<'_, T>,
        planes: &[T::Acc],
        output: usize,
        sums: &mut [T::Acc],
        staged: &mut [T::Acc],
    ) {
        let grid = &self.config.grid;
        let (spatial, width, lanes) = (self.geometry.output_spatial(), grid.w.output, grid.lanes);
        let outputs = self.geometry.out_channels_per_group();
        let block = unit.groups.start / lanes;
        let weights = self.taps.weights() * lanes;
        let w = &io.weights[(block * outputs + output) * weights..][..weights];
        let place = DepthwiseOutput { width: width * lanes, row: grid.tile_step() * width * lanes, plane: 0 };
        let epilogue = self.no_epilogue();
        let sums = &mut sums[..unit.extent * width * lanes];
        self.tiles(unit, io.is_finite, |kernel, groups, row, tiles| {
            let input = DepthwiseInput {
                taps: &self.taps,
                groups,
                w,
                w_plane: 0,
                x: planes.get(row * grid.h.stride * grid.pitch..).unwrap_or(&[]),
                x_plane: 0,
                x_vector: grid.w.stride * lanes,
                planes: 1,
                tiles,
            };
            let mut y = Dest::from_slice(&mut sums[row * width * lanes..]);
            kernel.run(&input, &mut y, &place, &epilogue);
        });
        let channel = unit.groups.start * outputs + output;
        let at = (unit.image * self.geometry.out_channels + channel) * spatial
            + (unit.outer * grid.h.output + unit.start) * width;
        let mut bias = [T::Acc::ZERO; MOST_LANES];
        let bias = &mut bias[..unit.groups.len()];
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias = io.bias[channel + i * outputs];
        }
        if let Some((lo, hi)) = self.direct
            && let Some(mut y) = T::dest_as_acc(io.y.dest(at))
        {
            let residual = io.residual.and_then(T::as_acc).map(|r| &r[at..]);
            self.kernels.scatter(sums, &mut y, outputs * spatial, &Epilogue { bias, residual, lo, hi });
            return;
        }
        let strip = unit.extent * width;
        let mut rows = Dest::from_slice(staged);
        let epilogue = Epilogue { bias: &self.zeros[..bias.len()], ..epilogue };
        self.kernels.scatter(sums, &mut rows, strip, &epilogue);
        let finish = Finish { isa: self.isa, activation: self.activation, io };
        for (i, (bias, row)) in bias.iter().zip(staged.chunks_exact_mut(strip)).enumerate() {
            finish.row(row, *bias, at + i * outputs * spatial);
        }
    }

    /// Sums as they are.
    fn no_epilogue(&self) -> Epilogue<'_, T::Acc> {
        Epilogue { bias: &self.zeros, residual: None, lo: T::Acc::NEG_INFINITY, hi: T::Acc::INFINITY }
    }
}

/// Lanes of a vector, at the most.
const MOST_LANES: usize = 32;

/// Zeroes the rows of a plane that are not `inside`, of those a strip has.
fn clear<A: Real>(plane: &mut [A], inside: &Range<usize>, rows: usize, pitch: usize) {
    plane[..inside.start * pitch].fill(A::ZERO);
    plane[inside.end * pitch..rows * pitch].fill(A::ZERO);
}

impl<T: Element> Lowering<T> for Depthwise<T> {
    fn layout(&self) -> Layout {
        alloc::vec![self.config.grid.along as usize]
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

    fn kernel(&self) -> &str {
        let grid = &self.config.grid;
        let panels = Panels::new(grid.extent.div_ceil(grid.tile_step()), self.tiles.len());
        self.tiles[panels.height(0) - 1].name()
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

    fn tasks(&self) -> usize {
        self.config.tasks
    }

    /// A share of the units.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let Config { units, tasks, lens, ref grid, .. } = self.config;
        let mut arena = Arena::new(scratch);
        let [planes, sums, staged] = lens.map(|len| arena.take::<T::Acc>(len));
        // Leaving out rows of padding asks for finite weights.
        let reads_x = self.direct_table.is_some() && io.is_finite;
        if !reads_x {
            // Padding stays as it is now: copies write what lies between.
            planes.fill(T::Acc::ZERO);
        }
        let outputs = self.geometry.out_channels_per_group();
        // Output channels of a group read the same input.
        let step = |group: usize| if outputs == 1 { group } else { 0 };
        // In 128 bits: units times tasks may exceed the address space.
        let share = |task: usize| (task as u128 * units as u128 / tasks as u128) as usize;
        for index in share(task)..share(task + 1) {
            let unit = self.unit(index);
            let channels = unit.groups.start * outputs..unit.groups.end * outputs;
            if reads_x {
                self.rows(&unit, io, (None, step(self.geometry.input_spatial())), &channels, sums);
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
                    self.rows(&part, io, (Some(planes), step(group)), &channels, sums);
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
