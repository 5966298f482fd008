//! The methods of [`gemm`](super::gemm) and [`depthwise`](super::depthwise) for bytes: exact sums of 32 bits, which are
//! requantised on their way into Y.
//!
//! X is always copied, in [units](Unit) of neighbouring channels, or of [neighbouring taps](RowUnits) of depthwise layers.
//! As pairs of 16 bits, values have lost their zero point,
//! so that padding is zero. As four bytes they keep it: then padding is the zero point, no tap is left out, and a term for
//! each output channel and [set of taps](tap_sets) takes the zero point away again.

use alloc::string::String;

use convoke_kernels::dot::{
    AddedBytes, Byte, BytePixels, DotKernels, MOST_VALUES, Output, Requantise, Unit, four, kept_sums, pair,
};
use convoke_kernels::{Dest, Isa, PixelInput, PixelKernel, transpose};

use super::chunk::{ChunkScratch, PixelChunk, TileGroup};
use super::depthwise::{DepthwiseBlocking, pack_blocks};
use super::row_units::RowUnits;
use super::source::PixelReader;
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
use crate::{Axis, Geometry, Layout, Op};

/// How a layer of bytes is computed.
pub(crate) struct DotLayer {
    isa: Isa,
    kernels: &'static DotKernels,
    tiling: PixelTiling,
    pub(crate) split: GemmSplit,
    method: DotMethod,
    /// Tiles whose sums are kept, at most.
    group: usize,
    chunk: ChunkScratch<i32>,
    sums: Piece<i32>,
    rows: Piece<i32>,
    finished: Piece<u32>,
    no_bias: Piece<i32>,
    pub(crate) scratch: Ledger,
}

enum DotMethod {
    /// Its channels are units. The kernels are those of a narrow panel, and of a wide one.
    Gemm(ChannelWeights, [&'static [PixelKernel<i32>]; 2]),
    /// Groups of one channel of X, in blocks of channels.
    Depthwise(Blocks, RowUnits),
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
    Panels(ChannelWeights),
    /// Taps of units, and blocks of channels.
    Blocks(usize, Blocks),
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
    /// # Errors
    /// The reason why a layer cannot be computed so.
    pub(crate) fn new(
        geometry: &Geometry,
        (machine, threads): (&Machine, usize),
        kernels: &'static DotKernels,
    ) -> Result<Self, String> {
        let unit = kernels.unit();
        let depthwise = kernels.depthwise().last().filter(|_| geometry.in_channels_per_group() == 1);
        let (method, tiling, split, (group, tile_len)) = match depthwise {
            Some(kernel) => {
                let (rows, layer) = RowUnits::new(geometry, unit.values());
                let pads = layer.axes[..layer.axes.len() - 1].iter().any(Axis::is_padded);
                if unit == Unit::Bytes && pads {
                    return Err(String::from("four bytes are for layers without padding on axes before the last two"));
                }
                if unit == Unit::Bytes && geometry.op == Op::ConvTranspose {
                    return Err(String::from(
                        "a depthwise ConvTranspose has no neighbouring taps, of which four would be a unit",
                    ));
                }
                let x = XValues::of_units(unit);
                let blocking = DepthwiseBlocking::new((&layer, machine, threads), (x, kernel.mr()), usize::MAX)?;
                let DepthwiseBlocking { tiling, channels, split, group } = blocking;
                let tile_len = kernel.mr() * channels.size();
                (DotMethod::Depthwise(channels, rows), tiling, split, (group, tile_len))
            }
            None => Self::gemm(geometry, (machine, threads), kernels)?,
        };
        let mut scratch = Ledger::default();
        let read = match &method {
            DotMethod::Gemm(weights, _) => weights.k.size() * tiling.taps_of_call(),
            DotMethod::Depthwise(channels, _) => channels.size(),
        };
        let chunk = tiling.book(&mut scratch, read);
        let kept = group * tile_len;
        let transposed = if geometry.y_layout == Layout::ChannelsLast { 0 } else { kept };
        let sums = scratch.book("sums", kept);
        let rows = scratch.book("transposed sums", transposed);
        let finished = scratch.book("outputs", transposed);
        let no_bias = scratch.book("no bias", if depthwise.is_some() { read } else { 0 });
        let isa = machine.isa();
        Ok(Self { isa, kernels, tiling, split, method, group, chunk, sums, rows, finished, no_bias, scratch })
    }

    /// A GEMM, its tiles and tasks, and the tiles whose sums are kept with the sums of each.
    fn gemm(
        geometry: &Geometry,
        (machine, threads): (&Machine, usize),
        kernels: &'static DotKernels,
    ) -> Result<(DotMethod, PixelTiling, GemmSplit, (usize, usize)), String> {
        let unit = kernels.unit();
        let mut widths = kernels.widths();
        let narrow = widths.next().ok_or_else(no_kernel)?;
        let widths = [narrow, widths.last().unwrap_or(narrow)];
        let panels = ChannelPanels { lanes: narrow[0].lanes(), wide: widths[1][0].nr() };
        let units = geometry.in_channels_per_group().div_ceil(unit.values());
        let (rows, taps) = (geometry.out_channels_per_group(), geometry.kernel_volume());
        let k = channel_blocks(geometry.op, units, taps);
        let padded = panels.padded(rows);
        let weights = ChannelWeights { groups: geometry.group, rows, padded, channels: units, k, taps, panels };
        weights.check_len()?;

        let pixels = widths[0].len().min(widths[1].len());
        let is_joined = k.count() == 1 && super::gemm::joins_taps(geometry, units);
        let x = XValues::of_units(unit);
        let parts = weights.parts(machine, size_of::<i32>());
        let needs = TileNeeds { pixels, in_rows: false, channels: units, repeats: 1, parts, is_joined, x };
        let tiling = PixelTiling::new((geometry, machine, threads), &needs, usize::MAX)?;
        let (columns, panels) = (tiling.chunks(), geometry.group * weights.count());
        let split = GemmSplit::of_chunks(columns, panels, threads);
        // Sums stay in the L1 cache.
        let tile_len = pixels * weights.nr();
        let group = (machine.l1_bytes / 4 / (tile_len * size_of::<i32>())).max(1);
        Ok((DotMethod::Gemm(weights, widths), tiling, split, (group, tile_len)))
    }

    /// What is multiplied.
    pub(crate) fn unit(&self) -> Unit {
        self.kernels.unit()
    }

    pub(crate) fn format(&self) -> DotFormat {
        let order = match &self.method {
            DotMethod::Gemm(weights, _) => DotOrder::Panels(*weights),
            DotMethod::Depthwise(channels, _) => DotOrder::Blocks(self.tiling.geometry.kernel_volume(), *channels),
        };
        DotFormat { isa: self.isa, op: self.tiling.geometry.op, unit: self.unit(), order }
    }

    pub(crate) fn packed_len(&self) -> usize {
        match &self.method {
            DotMethod::Gemm(weights, _) => weights.len(),
            DotMethod::Depthwise(..) => self.tiling.geometry.weight_len(),
        }
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn kernel(&self) -> &'static str {
        match &self.method {
            DotMethod::Gemm(_, widths) => widths[1][widths[0].len().min(widths[1].len()) - 1].name(),
            DotMethod::Depthwise(..) => self.kernels.depthwise().last().map_or("", |kernel| kernel.name()),
        }
    }

    /// Packs W. `value` gives an element without its zero point, by its output channel and its place in W.
    pub(crate) fn pack(&self, value: impl Fn(usize, usize) -> i32, packed: &mut [i32]) {
        match &self.method {
            DotMethod::Gemm(weights, _) => self.pack_panels(weights, value, packed),
            DotMethod::Depthwise(channels, rows) => {
                let unit = |m: usize, place: usize| {
                    let values = rows.weights(place).map(|place| place.map_or(0, |place| value(m, place)));
                    unit_of(self.unit(), values)
                };
                pack_blocks(&self.tiling.geometry, channels, unit, packed);
            }
        }
    }

    fn pack_panels(&self, weights: &ChannelWeights, value: impl Fn(usize, usize) -> i32, packed: &mut [i32]) {
        let ChannelWeights { rows, channels, taps, k: blocks, .. } = *weights;
        let (geometry, unit) = (&self.tiling.geometry, self.kernels.unit());
        let (of_group, steps, nr) = (geometry.in_channels_per_group(), weights.steps(), weights.nr());
        if weights.group_len() == 0 {
            return;
        }
        let order = StepOrder { channels, taps, block: blocks.size() };
        for (group, packed) in packed.chunks_exact_mut(weights.group_len()).enumerate() {
            for (p, panel) in packed.chunks_mut(nr * steps).enumerate() {
                let (width, first) = (panel.len() / steps, p * nr);
                for (k, step) in panel.chunks_exact_mut(width).enumerate() {
                    let (tap, u) = order.step(k);
                    for (row, packed) in (first..rows).zip(step) {
                        let of_channel = |c: usize| match geometry.op {
                            _ if c >= of_group => 0,
                            Op::Conv => value(group * rows + row, ((group * rows + row) * of_group + c) * taps + tap),
                            Op::ConvTranspose => {
                                value(group * rows + row, ((group * of_group + c) * rows + row) * taps + tap)
                            }
                        };
                        *packed = unit_of(unit, [0, 1, 2, 3].map(|i| of_channel(u * unit.values() + i)));
                    }
                }
                self.kernels.arrange(panel);
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
        // The layer of units has no gaps between its pixels: the reader leaves out those of X.
        let (rows, strides) = match &self.method {
            DotMethod::Gemm(..) => (None, io.strides.x),
            DotMethod::Depthwise(_, rows) => (Some(rows), tiling.geometry.input_strides()),
        };
        let is_last = rows.is_some_and(|rows| rows.layout == Layout::ChannelsLast);
        let pixel = if is_last { io.strides.x.position } else { 1 };
        let x = UnitReader { isa: self.isa, kernels: self.kernels, x: io.x, zero: io.x_zero, rows, pixel };
        let (chunk, mut copy) = tiling.open(columns, (&x, &strides), (&mut arena, &self.chunk));
        let geometry = &tiling.geometry;
        let set = match chunk.tiles.phase.first_tap(&geometry.axes) {
            Some(tap) => set_of_tap(geometry, tap),
            None => tap_sets(geometry),
        };
        let of_set = set * geometry.out_channels;
        let sums = arena.get(self.sums);
        let mut scratch = (arena.get(self.rows), arena.get(self.finished));
        match &self.method {
            DotMethod::Gemm(weights, widths) => {
                let (c, count) = (tiling.geometry.in_channels_per_group(), weights.count());
                for group in panels.start / count..panels.end.div_ceil(count) {
                    let x = chunk.read(&x, &(group * c..(group + 1) * c), &mut copy);
                    let panels = panels.start.max(group * count)..panels.end.min((group + 1) * count);
                    chunk.for_each_batch(self.group, |batch| {
                        for panel in panels.clone() {
                            for tiles in batch.iter().flatten() {
                                let of_group = (group, panel % count);
                                let nr = multiply((weights, widths), (&chunk, tiles, x), io.weights, of_group, sums);
                                let channels = weights.outputs_of(&(panel..panel + 1));
                                let place = PixelPlace { channels, ..tiles.place.clone() };
                                self.store((io, of_set), &place, (sums, nr), &mut scratch);
                            }
                        }
                    });
                }
            }
            DotMethod::Depthwise(blocks, _) => {
                let no_bias = arena.get(self.no_bias);
                no_bias.fill(0);
                let taps = tiling.geometry.kernel_volume();
                for block in panels {
                    let channels = blocks.range(block);
                    let x = chunk.read(&x, &channels, &mut copy);
                    let (len, weights) = (channels.len(), &io.weights[channels.start * taps..channels.end * taps]);
                    let epilogue = kept_sums(no_bias);
                    for tiles in chunk.row_groups(self.group) {
                        let mut kept = Dest::from_slice(&mut *sums);
                        chunk.for_each_height(&tiles, (x, len), |pixels, x| {
                            let kernel = &self.kernels.depthwise()[pixels - 1];
                            kernel.run(x, (weights, 1), &mut kept, len, &epilogue);
                        });
                        let place = PixelPlace { channels: channels.clone(), ..tiles.place.clone() };
                        self.store((io, of_set), &place, (sums, len), &mut scratch);
                    }
                }
            }
        }
    }

    /// Requantises sums, whose pixels are `pitch` elements apart, and stores them. `of_set` is where the terms begin that
    /// are added to them.
    fn store<X, Y: Output + bytemuck::Pod>(
        &self,
        (io, of_set): (&DotIo<'_, X, Y>, usize),
        place: &PixelPlace,
        (sums, pitch): (&[i32], usize),
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
            return self.kernels.finish(&requantise(false), (sums, pitch), (count, m), (&mut y, ld));
        }
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

/// Multiplies panel `p` of a group by some tiles of a chunk. Returns the width of the panel.
fn multiply(
    (weights, widths): (&ChannelWeights, &[&'static [PixelKernel<i32>]; 2]),
    (chunk, tiles, x): (&PixelChunk<'_, i32>, &TileGroup<'_>, &[i32]),
    packed: &[i32],
    (group, p): (usize, usize),
    sums: &mut [i32],
) -> usize {
    let rows = weights.rows_of(&(p..p + 1));
    let (nr, is_narrow) = weights.panels.panel(rows.len());
    let (k, step) = (weights.steps(), weights.taps * nr);
    let panel = &weights.of_group(packed, group)[rows.start * k..][..nr * k];
    let kernel = &widths[usize::from(!is_narrow)][tiles.pixels - 1];
    for block in weights.k.iter() {
        // Without pixels in X, all taps read padding.
        let x = x.get(block.start + tiles.offset..).filter(|x| !x.is_empty()).unwrap_or(chunk.zeros);
        let x = PixelInput { x, zeros: chunk.zeros, channels: block.len() * chunk.joined(), taps: tiles.taps };
        kernel.partial(&x, &panel[block.start * step..block.end * step], sums, block.start > 0);
    }
    nr
}

impl Split for DotLayer {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let Part { columns, panels, .. } = self.split.part(task);
        let channels = match &self.method {
            DotMethod::Gemm(weights, _) => weights.outputs_of(&panels),
            DotMethod::Depthwise(blocks, _) => blocks.range(panels.start).start..blocks.range(panels.end - 1).end,
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

/// Bytes in units: of neighbouring channels, or of the rows of a depthwise layer.
struct UnitReader<'a, X> {
    isa: Isa,
    kernels: &'static DotKernels,
    x: &'a [X],
    zero: X,
    rows: Option<&'a RowUnits>,
    /// Elements of X from one pixel of its rows to the next.
    pixel: usize,
}

impl<X: Byte> UnitReader<'_, X> {
    /// Makes units of `channels` channels, which are neighbours, of the pixels of rows. They begin with element `first` of the
    /// layer of units, and become pixels of `pixel` units.
    fn units_of_rows(&self, rows: &RowUnits, first: usize, channels: usize, (to, pixel): (&mut [i32], usize)) {
        let of_pixel = rows.neighbours;
        let (mut place, skipped, mut rest) = (first / of_pixel, first % of_pixel, to);
        while !rest.is_empty() {
            let (row, column) = (place / rows.width(), place % rows.width());
            let count = (rest.len() / pixel).min(rows.width() - column);
            let units = rest.split_off_mut(..count * pixel).unwrap_or_default();
            let starts = rows.rows(row).map(|row| Some((row? * rows.width() + column) * self.pixel + skipped));
            // Pixels without gaps are like one.
            let (step, len) = if [channels, pixel, self.pixel] == [of_pixel; 3] {
                (units.len(), units.len())
            } else {
                (pixel, channels)
            };
            for (i, units) in units.chunks_exact_mut(step).enumerate() {
                let rows = starts.map(|start| Some(&self.x[start? + i * self.pixel..]));
                self.kernels.units_of_rows(rows, self.zero, &mut units[..len]);
            }
            place += count;
        }
    }
}

impl<X: Byte> PixelReader<i32> for UnitReader<'_, X> {
    fn in_place(&self) -> Option<&[i32]> {
        None
    }

    fn padding(&self) -> i32 {
        match self.kernels.unit() {
            Unit::Pairs => 0,
            Unit::Bytes => four([self.zero.unsigned(); MOST_VALUES]),
        }
    }

    fn pixels(&self, (first, x_pixel): (usize, usize), channels: usize, (to, pixel): (&mut [i32], usize)) {
        match self.rows {
            Some(rows) if channels <= rows.neighbours => self.units_of_rows(rows, first, channels, (to, pixel)),
            // One position of units, whose rows of X have other places for each channel.
            Some(rows) => {
                for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
                    for (c, to) in to[..channels].chunks_exact_mut(1).enumerate() {
                        self.units_of_rows(rows, first + i * x_pixel + c, 1, (to, 1));
                    }
                }
            }
            None => {
                let x = BytePixels { x: &self.x[first..], pixel: x_pixel, channels };
                self.kernels.units_of_pixels(&x, self.zero, (to, pixel));
            }
        }
    }

    fn rows(
        &self,
        (first, x_channel): (usize, usize),
        channels: usize,
        (to, pixel): (&mut [i32], usize),
        widened: &mut [i32],
    ) {
        let pixels = to.len() / pixel;
        let of_unit = if self.rows.is_some() { 1 } else { self.kernels.unit().values() };
        let count = channels.div_ceil(of_unit);
        let units = if pixel == 1 { &mut *to } else { &mut widened[..pixels * count] };
        for (u, units) in units.chunks_exact_mut(pixels).enumerate() {
            let first = first + u * of_unit * x_channel;
            match self.rows {
                Some(rows) => self.units_of_rows(rows, first, 1, (units, 1)),
                None => {
                    let rows = core::array::from_fn(|i| {
                        (u * of_unit + i < channels && i < of_unit).then(|| &self.x[first + i * x_channel..])
                    });
                    self.kernels.units_of_rows(rows, self.zero, units);
                }
            }
        }
        if pixel > 1 {
            // The transposition moves 32 bits, whatever they mean.
            let (from, to): (&[f32], &mut [f32]) = (bytemuck::cast_slice(widened), bytemuck::cast_slice_mut(to));
            transpose(self.isa, (count, pixels), (from, pixels), (to, pixel));
        }
    }

    fn repeat(&self, copy: &[i32], repeats: usize, repeated: &mut [i32]) {
        for (repeated, value) in repeated.chunks_exact_mut(repeats).zip(copy) {
            repeated.fill(*value);
        }
    }
}
