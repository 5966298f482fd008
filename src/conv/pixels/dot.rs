//! The methods of [`gemm`](super::gemm) and [`depthwise`](super::depthwise) for bytes: exact sums of 32 bits, which are
//! requantised on their way into Y.
//!
//! Kernels multiply [units](Unit) of neighbouring values: channels, and with few channels those of neighbouring pixels too.
//! Groups of few channels are like channels of a depthwise layer: their [units](GroupUnits) are copied. As pairs of 16 bits,
//! values have lost their zero point, so that padding is zero. As four bytes they keep it, and may be read in place: then
//! padding is the zero point, no tap is left out, and a term for each output channel and [set of taps](tap_sets) takes the
//! zero point away again.

use alloc::string::String;
use core::ops::Range;

use convoke_kernels::dot::{
    AddedBytes, Byte, DotKernels, MOST_VALUES, Output, Requantise, Unit, four, kept_sums, pair,
};
use convoke_kernels::{Dest, Isa, PixelInput, PixelKernel, transpose};

use super::bytes::{ByteInput, GroupUnits, UnitReader, ValueReader};
use super::chunk::{ChunkScratch, PixelChunk, TileGroup};
use super::depthwise::{DepthwiseBlocking, pack_blocks};
use super::row_units::RowUnits;
use super::tiling::{PixelTiling, TileNeeds, XValues};
use crate::blas::Blocks;
use crate::conv::channel_tiles::ChannelPanels;
use crate::conv::channel_weights::{ChannelWeights, channel_blocks};
use crate::conv::contract::{IoStrides, no_kernel};
use crate::conv::panels::StepOrder;
use crate::conv::shares::{GemmSplit, Part};
use crate::conv::store::PixelPlace;
use crate::conv::view::phases;
use crate::exec::region::{Region, Stores};
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::Machine;
use crate::spec::Strides;
use crate::{Geometry, Layout, Op};

/// How a layer of bytes is computed.
pub(crate) struct DotLayer {
    isa: Isa,
    kernels: &'static DotKernels,
    tiling: PixelTiling,
    pub(crate) split: GemmSplit,
    method: DotMethod,
    /// Tiles whose sums are kept, at most.
    group: usize,
    sums: Piece<i32>,
    rows: Piece<i32>,
    finished: Piece<u32>,
    pub(crate) scratch: Ledger,
}

enum DotMethod {
    Gemm(DotGemm, ChunkScratch<u8>),
    Depthwise(DotDepthwise, ChunkScratch<i32>),
}

/// Units of the values that a tap of a call reads.
struct DotGemm {
    weights: ChannelWeights,
    values: ValueRun,
    /// The kernels of a narrow panel, and of a wide one.
    widths: [&'static [PixelKernel<i32>]; 2],
}

/// Groups of few channels of X, in blocks of output channels.
struct DotDepthwise {
    blocks: Blocks,
    /// Whether X is copied for all blocks of a task, and not for each.
    copies_all: bool,
    units: GroupUnits,
    no_bias: Piece<i32>,
}

/// The values that a tap of a call reads: those of the pixels of `taps` neighbouring taps of the kernel, of `pixel` values
/// each. Channels are the first of these.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ValueRun {
    taps: usize,
    pixel: usize,
}

/// What the order of packed weights depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DotFormat {
    isa: Isa,
    op: Op,
    pub(crate) unit: Unit,
    order: DotOrder,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum DotOrder {
    Panels(ChannelWeights, ValueRun),
    /// Taps of units, and blocks of channels.
    Blocks(usize, Blocks),
}

/// The sums of some tiles.
enum TileSums<'a> {
    /// They are computed. Pixels are so many elements apart.
    Kept(&'a [i32], usize),
    /// A block of K is left, which the kernel adds to the tiles, or which is all.
    Last {
        kernel: &'static PixelKernel<i32>,
        x: PixelInput<'a, u8>,
        w: &'a [i32],
        tile: &'a mut [i32],
        accumulate: bool,
    },
}

impl<'a> TileSums<'a> {
    /// The sums, and elements from one pixel to the next.
    fn computed(self) -> (&'a [i32], usize) {
        match self {
            Self::Kept(sums, pitch) => (sums, pitch),
            Self::Last { kernel, x, w, tile, accumulate } => {
                kernel.sums(&x, w, tile, accumulate);
                (tile, kernel.nr())
            }
        }
    }
}

/// What a task reads, and its part of Y.
pub(crate) struct DotIo<'a, X, Y> {
    pub(crate) x: &'a [X],
    pub(crate) x_zero: X,
    pub(crate) weights: &'a [i32],
    /// As in [`Requantise`], for all channels, where `add` has them for each [set of taps](tap_sets), and for outputs
    /// without taps. The residual is all of it.
    pub(crate) requantise: Requantise<'a>,
    pub(crate) y: Region<'a, Y>,
    pub(crate) strides: IoStrides,
}

impl DotLayer {
    /// For an X of bytes without sign, or others.
    ///
    /// # Errors
    /// The reason why a layer cannot be computed so.
    pub(crate) fn new(
        (geometry, is_unsigned): (&Geometry, bool),
        (machine, threads): (&Machine, usize),
        kernels: &'static DotKernels,
    ) -> Result<Self, String> {
        let (unit, of_group) = (kernels.unit(), geometry.in_channels_per_group());
        let lanes = kernels.widths().next().ok_or_else(no_kernel)?[0].lanes();
        let mut scratch = Ledger::default();
        let is_small = of_group == 1 || 2 * geometry.out_channels_per_group() <= lanes;
        let depthwise = kernels
            .depthwise()
            .last()
            .filter(|_| geometry.group > 1 && is_small && (1..=unit.values()).contains(&of_group));
        let (method, tiling, split, (group, tile_len)) = match depthwise {
            Some(kernel) => {
                let (units, layer) = match of_group {
                    1 => {
                        let (rows, layer) = RowUnits::new(geometry, unit.values());
                        (GroupUnits::Taps(rows), layer)
                    }
                    _ => (GroupUnits::Channels(of_group), Geometry { in_channels: geometry.group, ..geometry.clone() }),
                };
                let x = XValues::of_units(unit);
                let blocking = |copies_all: bool| {
                    DepthwiseBlocking::new((&layer, machine, threads), (x, kernel.mr()), (copies_all, usize::MAX))
                };
                // Pixels of all channels are copied without gaps, if the copies stay in the L2 cache: those of a wide X do not.
                let is_near = |blocking: &DepthwiseBlocking| {
                    let (copied, repeated) = blocking.tiling.source.copy_lens();
                    (copied + repeated) * size_of::<i32>() <= machine.block_l2_bytes()
                };
                let (copies_all, blocking) = match blocking(true).ok().filter(is_near) {
                    Some(blocking) => (true, blocking),
                    None => (false, blocking(false)?),
                };
                let DepthwiseBlocking { tiling, channels: blocks, split, group } = blocking;
                let chunk = tiling.book(&mut scratch, blocks.size());
                let no_bias = scratch.book("no bias", blocks.size());
                let tile_len = kernel.mr() * blocks.size();
                let method = DotMethod::Depthwise(DotDepthwise { blocks, copies_all, units, no_bias }, chunk);
                (method, tiling, split, (group, tile_len))
            }
            None => {
                let (gemm, tiling, split) = DotGemm::new((geometry, is_unsigned), (machine, threads), kernels)?;
                let chunk = tiling.book(&mut scratch, gemm.weights.k.size() * size_of::<i32>());
                // Sums stay in the L1 cache.
                let tile_len = gemm.most_pixels() * gemm.weights.nr();
                let group = (machine.l1_bytes / 4 / (tile_len * size_of::<i32>())).max(1);
                (DotMethod::Gemm(gemm, chunk), tiling, split, (group, tile_len))
            }
        };
        let kept = group * tile_len;
        let transposed = if geometry.y_layout == Layout::ChannelsLast { 0 } else { kept };
        let sums = scratch.book("sums", kept);
        let rows = scratch.book("transposed sums", transposed);
        let finished = scratch.book("outputs", transposed);
        let isa = machine.isa();
        Ok(Self { isa, kernels, tiling, split, method, group, sums, rows, finished, scratch })
    }

    /// What is multiplied.
    pub(crate) fn unit(&self) -> Unit {
        self.kernels.unit()
    }

    pub(crate) fn format(&self) -> DotFormat {
        let order = match &self.method {
            DotMethod::Gemm(gemm, _) => DotOrder::Panels(gemm.weights, gemm.values),
            DotMethod::Depthwise(depthwise, _) => {
                DotOrder::Blocks(self.tiling.geometry.kernel_volume(), depthwise.blocks)
            }
        };
        DotFormat { isa: self.isa, op: self.tiling.geometry.op, unit: self.unit(), order }
    }

    pub(crate) fn packed_len(&self) -> usize {
        match &self.method {
            DotMethod::Gemm(gemm, _) => gemm.weights.len(),
            DotMethod::Depthwise(..) => self.tiling.geometry.weight_len(),
        }
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn kernel(&self) -> &'static str {
        match &self.method {
            DotMethod::Gemm(gemm, _) => gemm.widths[1][gemm.most_pixels() - 1].name(),
            DotMethod::Depthwise(..) => self.kernels.depthwise().last().map_or("", |kernel| kernel.name()),
        }
    }

    /// Packs W. `value` gives an element without its zero point, by its output channel and its place in W.
    pub(crate) fn pack(&self, value: impl Fn(usize, usize) -> i32, packed: &mut [i32]) {
        let geometry = &self.tiling.geometry;
        match &self.method {
            DotMethod::Gemm(gemm, _) => gemm.pack((geometry, self.kernels), value, packed),
            DotMethod::Depthwise(DotDepthwise { blocks, units, .. }, _) => {
                let (taps, of_group) = (geometry.kernel_volume(), geometry.out_channels_per_group());
                let unit = |m: usize, place: usize| {
                    let places = match units {
                        GroupUnits::Taps(rows) => rows.weights(place),
                        GroupUnits::Channels(group) => core::array::from_fn(|i| {
                            // W of ConvTranspose has the channels of X outside.
                            let kernel = match geometry.op {
                                Op::Conv => m * group + i,
                                Op::ConvTranspose => (m / of_group * group + i) * of_group + m % of_group,
                            };
                            (i < *group).then(|| kernel * taps + place % taps)
                        }),
                    };
                    unit_of(self.unit(), places.map(|place| place.map_or(0, |place| value(m, place))))
                };
                pack_blocks(geometry, blocks, unit, packed);
            }
        }
    }

    pub(crate) fn run<X: Byte, Y: Output + bytemuck::Pod>(
        &self,
        task: usize,
        io: &DotIo<'_, X, Y>,
        scratch: &mut [Line],
    ) {
        let Part { columns, panels, .. } = self.split.part(task);
        let tiling = &self.tiling;
        let mut arena = Arena::new(scratch);
        let (geometry, x_strides) = (&tiling.geometry, io.strides.x);
        let input = ByteInput { isa: self.isa, kernels: self.kernels, x: io.x, zero: io.x_zero };
        match &self.method {
            DotMethod::Gemm(gemm, scratch) => {
                let x = ValueReader(input);
                let (chunk, mut copy) = tiling.open(columns, (&x, &x_strides), (&mut arena, scratch));
                let (sums, rows, finished) = (arena.get(self.sums), arena.get(self.rows), arena.get(self.finished));
                let (of_set, mut scratch) = (self.set_of(&chunk), (rows, finished));
                let (c, count) = (geometry.in_channels_per_group(), gemm.weights.count());
                for groups in tiling.read_parts(panels.start / count..panels.end.div_ceil(count)) {
                    let x = chunk.read(&x, &(groups.start * c..groups.end * c), &mut copy);
                    let panels = panels.start.max(groups.start * count)..panels.end.min(groups.end * count);
                    chunk.for_each_batch(self.group, |batch| {
                        for panel in panels.clone() {
                            let (group, p) = (panel / count, panel % count);
                            let x = x.get((group - groups.start) * c..).unwrap_or(&[]);
                            for tiles in batch.iter().flatten() {
                                let channels = gemm.weights.outputs_of(&(panel..panel + 1));
                                let place = PixelPlace { channels, ..tiles.place.clone() };
                                let call = gemm.call((&chunk, tiles, x), io.weights, (group, p), &mut *sums);
                                self.store((io, of_set), &place, call, &mut scratch);
                            }
                        }
                    });
                }
            }
            DotMethod::Depthwise(DotDepthwise { blocks, copies_all, units, no_bias }, scratch) => {
                let (layout, strides) = match units {
                    // The layer of units has no gaps between its pixels: the reader leaves out those of X.
                    GroupUnits::Taps(rows) => (rows.layout, geometry.input_strides()),
                    GroupUnits::Channels(group) => {
                        (geometry.x_layout, Strides { channel: group * x_strides.channel, ..x_strides })
                    }
                };
                let pixel = if layout == Layout::ChannelsLast { x_strides.position } else { 1 };
                let x = UnitReader { input, units, channel: x_strides.channel, pixel };
                let (chunk, mut copy) = tiling.open(columns, (&x, &strides), (&mut arena, scratch));
                let no_bias = arena.get(*no_bias);
                let (sums, rows, finished) = (arena.get(self.sums), arena.get(self.rows), arena.get(self.finished));
                let (of_set, mut scratch) = (self.set_of(&chunk), (rows, finished));
                no_bias.fill(0);
                let taps = geometry.kernel_volume();
                let of_read = if *copies_all { panels.len().max(1) } else { 1 };
                for first in panels.clone().step_by(of_read) {
                    let parts = first..(first + of_read).min(panels.end);
                    let read = blocks.span(&parts);
                    let x = chunk.read(&x, &read, &mut copy);
                    for channels in parts.map(|block| blocks.range(block)) {
                        let x = x.get(channels.start - read.start..).unwrap_or(&[]);
                        let (len, weights) = (channels.len(), &io.weights[channels.start * taps..channels.end * taps]);
                        let epilogue = kept_sums(no_bias);
                        for tiles in chunk.row_groups(self.group) {
                            let mut kept = Dest::from_slice(&mut *sums);
                            chunk.for_each_height(&tiles, (x, len), |pixels, x| {
                                let kernel = &self.kernels.depthwise()[pixels - 1];
                                kernel.run(x, (weights, 1), &mut kept, len, &epilogue);
                            });
                            let place = PixelPlace { channels: channels.clone(), ..tiles.place.clone() };
                            self.store((io, of_set), &place, TileSums::Kept(sums, len), &mut scratch);
                        }
                    }
                }
            }
        }
    }

    /// Where the terms of a chunk's [set of taps](tap_sets) begin.
    fn set_of<A>(&self, chunk: &PixelChunk<'_, A>) -> usize {
        let geometry = &self.tiling.geometry;
        let set = match chunk.tiles.phase.first_tap(&geometry.axes) {
            Some(tap) => set_of_tap(geometry, tap),
            None => tap_sets(geometry),
        };
        set * geometry.out_channels
    }

    /// Requantises sums and stores them. `of_set` is where the terms begin that are added to them.
    fn store<X, Y: Output + bytemuck::Pod>(
        &self,
        (io, of_set): (&DotIo<'_, X, Y>, usize),
        place: &PixelPlace,
        sums: TileSums<'_>,
        (rows, finished): &mut (&mut [i32], &mut [u32]),
    ) {
        let strides = io.strides.y;
        let PixelPlace { layout, positions, pixel, step, count, ref channels } = *place;
        let m = channels.len();
        let residual = io.strides.residual;
        let added = residual.at(pixel / positions, channels.start, pixel % positions);
        let (added_ld, added_step) =
            if layout == Layout::ChannelsLast { (step * residual.position, 1) } else { (residual.channel, step) };
        let requantise = |by_rows: bool| Requantise {
            add: &io.requantise.add[of_set..][channels.clone()],
            scale: &io.requantise.scale[channels.clone()],
            by_rows,
            residual: io.requantise.residual.map(|residual| AddedBytes {
                values: &residual.values[added..],
                ld: added_ld,
                step: added_step,
                ..residual
            }),
            ..io.requantise
        };
        if layout == Layout::ChannelsLast {
            let (at, ld) = (pixel * strides.position + channels.start, step * strides.position);
            let mut y = io.y.dest(at, [Stores::row(at, m).times(count, ld)]);
            let requantise = requantise(false);
            return match sums {
                TileSums::Kept(sums, pitch) => {
                    self.kernels.finish(&requantise, (sums, pitch), (count, m), (&mut y, ld));
                }
                TileSums::Last { kernel, x, w, tile, accumulate } => {
                    self.kernels.finish_pixels((kernel, &x, w), (tile, accumulate), (&requantise, m), (&mut y, ld));
                }
            };
        }
        let (sums, pitch) = sums.computed();
        let rows = &mut rows[..m * count];
        // The transposition moves 32 bits, whatever they mean.
        let as_f32: &mut [f32] = bytemuck::cast_slice_mut(rows);
        transpose(self.isa, (count, m), (bytemuck::cast_slice(sums), pitch), (as_f32, count));
        let at = strides.at(pixel / positions, channels.start, pixel % positions);
        if step == 1 {
            let mut y = io.y.dest(at, [Stores::row(at, count).times(m, strides.channel)]);
            return self.kernels.finish(&requantise(true), (rows, count), (m, count), (&mut y, strides.channel));
        }
        let finished: &mut [Y] = &mut bytemuck::cast_slice_mut(finished)[..m * count];
        let mut y = Dest::from_slice(finished);
        self.kernels.finish(&requantise(true), (rows, count), (m, count), (&mut y, count));
        for (i, value) in finished.iter().enumerate() {
            io.y.write(at + i / count * strides.channel + i % count * step, *value);
        }
    }
}

/// How many sets of taps outputs have: one of all taps, and for ConvTranspose those of each phase of the strides. Outputs of
/// ConvTranspose that no tap reaches have none of these.
pub(crate) fn tap_sets(geometry: &Geometry) -> usize {
    tap_phases(geometry).fold(1, usize::saturating_mul)
}

/// The phases of the axes of ConvTranspose. Conv has none.
pub(crate) fn tap_phases(geometry: &Geometry) -> impl Iterator<Item = usize> {
    geometry.axes.iter().filter(|_| geometry.op == Op::ConvTranspose).map(phases)
}

/// The set that a tap belongs to, by its number among all taps of the kernel.
pub(crate) fn set_of_tap(geometry: &Geometry, mut tap: usize) -> usize {
    let (mut set, mut step) = (0, 1);
    for axis in geometry.axes.iter().rev().filter(|_| geometry.op == Op::ConvTranspose) {
        set += tap % axis.kernel % phases(axis) * step;
        (tap, step) = (tap / axis.kernel, step * phases(axis));
    }
    set
}

impl DotGemm {
    /// A GEMM, its tiles and tasks.
    fn new(
        (geometry, is_unsigned): (&Geometry, bool),
        (machine, threads): (&Machine, usize),
        kernels: &'static DotKernels,
    ) -> Result<(Self, PixelTiling, GemmSplit), String> {
        let unit = kernels.unit();
        let mut widths = kernels.widths();
        let narrow = widths.next().ok_or_else(no_kernel)?;
        let widths = [narrow, widths.last().unwrap_or(narrow)];
        let panels = ChannelPanels { lanes: narrow[0].lanes(), wide: widths[1][0].nr() };
        let (channels, rows) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        let is_last = geometry.x_layout == Layout::ChannelsLast;
        let units = channels.div_ceil(unit.values());
        let pixel = if is_last { channels } else { units * unit.values() };
        // Of calls whose taps are so many of the kernel.
        let blocks = |joined: usize| {
            let units = (joined * pixel).div_ceil(unit.values());
            let taps = geometry.kernel_volume() / joined;
            (channel_blocks(geometry.op, units, taps), units, taps)
        };
        let of_row = geometry.axes.last().map_or(1, |last| last.kernel);
        let is_joined = super::gemm::joins_taps(geometry, units) && blocks(of_row).0.count() == 1;
        let values = ValueRun { taps: if is_joined { of_row } else { 1 }, pixel };
        let (k, units, taps) = blocks(values.taps);
        let padded = panels.padded(rows);
        let weights = ChannelWeights { groups: geometry.group, rows, padded, channels: units, k, taps, panels };
        weights.check_len()?;

        // Units of several pixels need rows of neighbours, and end where X may end.
        let is_whole = !is_joined && channels.is_multiple_of(unit.values());
        let x = XValues::of_bytes(unit, is_unsigned && unit == Unit::Bytes && is_last && is_whole);
        let gemm = Self { weights, values, widths };
        let needs = TileNeeds {
            pixels: gemm.most_pixels(),
            in_rows: false,
            channels: pixel * unit.value_bytes(),
            repeats: 1,
            parts: weights.parts(machine, size_of::<i32>()),
            is_joined,
            x,
        };
        let tiling = PixelTiling::new((geometry, machine, threads), &needs, usize::MAX)?;
        let (columns, panels) = (tiling.chunks(), geometry.group * weights.count());
        let split = GemmSplit::of_chunks(columns, panels, threads);
        Ok((gemm, tiling, split))
    }

    /// Pixels of a tile, at most.
    fn most_pixels(&self) -> usize {
        self.widths[0].len().min(self.widths[1].len())
    }

    fn pack(
        &self,
        (geometry, kernels): (&Geometry, &DotKernels),
        value: impl Fn(usize, usize) -> i32,
        packed: &mut [i32],
    ) {
        let (ChannelWeights { rows, channels, taps: calls, k: blocks, .. }, values) = (self.weights, self.values);
        let (unit, of_group, taps) = (kernels.unit(), geometry.in_channels_per_group(), geometry.kernel_volume());
        let (steps, nr) = (self.weights.steps(), self.weights.nr());
        if self.weights.group_len() == 0 {
            return;
        }
        let order = StepOrder { channels, taps: calls, block: blocks.size() };
        for (group, packed) in packed.chunks_exact_mut(self.weights.group_len()).enumerate() {
            for (p, panel) in packed.chunks_mut(nr * steps).enumerate() {
                let (width, first) = (panel.len() / steps, p * nr);
                for (k, step) in panel.chunks_exact_mut(width).enumerate() {
                    let (call, u) = order.step(k);
                    for (row, packed) in (first..rows).zip(step) {
                        let of_value = |v: usize| {
                            let (tap, c) = (call * values.taps + v / values.pixel, v % values.pixel);
                            match geometry.op {
                                _ if c >= of_group || v / values.pixel >= values.taps => 0,
                                Op::Conv => {
                                    let m = group * rows + row;
                                    value(m, (m * of_group + c) * taps + tap)
                                }
                                Op::ConvTranspose => {
                                    value(group * rows + row, ((group * of_group + c) * rows + row) * taps + tap)
                                }
                            }
                        };
                        *packed = unit_of(unit, [0, 1, 2, 3].map(|i| of_value(u * unit.values() + i)));
                    }
                }
                kernels.arrange(panel);
            }
        }
    }

    /// Multiplies panel `p` of a group by some tiles of a chunk, up to the last block of K. `x` begins with the group's first
    /// channel.
    fn call<'a>(
        &self,
        (chunk, tiles, x): (&PixelChunk<'a, u8>, &TileGroup<'a>, &'a [u8]),
        packed: &'a [i32],
        (group, p): (usize, usize),
        tile: &'a mut [i32],
    ) -> TileSums<'a> {
        let weights = &self.weights;
        let rows = weights.rows_of(&(p..p + 1));
        let (nr, is_narrow) = weights.panels.panel(rows.len());
        let (k, step) = (weights.steps(), weights.taps * nr);
        let panel = &weights.of_group(packed, group)[rows.start * k..][..nr * k];
        let kernel = &self.widths[usize::from(!is_narrow)][tiles.pixels - 1];
        let of_block = |block: Range<usize>| {
            // Without pixels in X, all taps read padding.
            let x = x.get(block.start * size_of::<i32>() + tiles.offset..).filter(|x| !x.is_empty());
            let (x, zeros) = (x.unwrap_or(chunk.zeros), chunk.zeros);
            let x = PixelInput { x, zeros, channels: block.len(), taps: tiles.taps };
            (x, &panel[block.start * step..block.end * step], block.start > 0)
        };
        let last = weights.k.count() - 1;
        for block in 0..last {
            let (x, w, accumulate) = of_block(weights.k.range(block));
            kernel.sums(&x, w, tile, accumulate);
        }
        let (x, w, accumulate) = of_block(weights.k.range(last));
        TileSums::Last { kernel, x, w, tile, accumulate }
    }
}

impl Split for DotLayer {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let Part { columns, panels, .. } = self.split.part(task);
        let channels = match &self.method {
            DotMethod::Gemm(gemm, _) => gemm.weights.outputs_of(&panels),
            DotMethod::Depthwise(DotDepthwise { blocks, .. }, _) => blocks.span(&panels),
        };
        self.tiling.patches((columns, &channels), patch);
    }
}

/// A unit of weights.
fn unit_of(unit: Unit, [one, other, third, fourth]: [i32; MOST_VALUES]) -> i32 {
    match unit {
        Unit::Bytes => four([one, other, third, fourth].map(|value| value as u8)),
        Unit::Pairs => pair([one, other]),
    }
}
