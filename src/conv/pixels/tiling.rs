//! How Y is cut into tiles, groups of tiles and chunks of pixels, for kernels of pixels.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::PixelTaps;
use convoke_kernels::dot::Unit;

use super::source::{PixelSource, RowCopy};
use super::taps::{PixelPhase, TableRun};
use crate::conv::macro_kernel::RowPanels;
use crate::conv::shares::TASKS_PER_THREAD;
use crate::conv::{planes, view};
use crate::element::Element;
use crate::exec::split::{Patch, Span};
use crate::machine::{Item, Machine, NEAR_Y_BYTES, Work};
use crate::{Axis, Geometry, Layout, Op};

/// Entries of the table of a tile, at most.
const MOST_ENTRIES: usize = 1 << 16;

/// With at least so many bytes in a pixel, tiles of a large Y prefetch for the next ones. The CPU prefetches shorter pixels
/// itself, because what a tile reads of them is nearly contiguous.
const LONG_PIXEL_BYTES: usize = 256;

/// Tiles of a plane of the last two axes, if planes are cut into tiles, at least. Smaller planes would have
/// many small tiles: images are cut.
const TILES_OF_PLANE: usize = 4;

/// The tiles of a phase: its pixels, in rows of tiles. Where pixels of all rows are neighbours in Y, a row of tiles
/// has those of a plane, of an image, or of all images.
#[derive(Debug, Clone)]
pub(super) struct TiledPhase {
    pub(super) phase: PixelPhase,
    /// Rows of tiles, of all images, and how each is cut into tiles.
    pub(super) rows: usize,
    pub(super) cut: RowPanels,
    /// Pixels from one row of tiles to the next.
    pub(super) pixels: usize,
    /// Images, or their planes of the last two axes; 1 where tiles have pixels of several images.
    units: usize,
    /// Tiles of a chunk.
    pub(super) chunk: usize,
}

impl TiledPhase {
    pub(super) fn tiles(&self) -> usize {
        self.rows * self.cut.count()
    }

    /// Tiles that a chunk does not go beyond, unless it has several times as many.
    fn unit(&self) -> usize {
        self.tiles() / self.units
    }

    pub(super) fn chunks(&self) -> usize {
        match self.chunk < self.unit() {
            true => self.units * self.unit().div_ceil(self.chunk),
            false => self.tiles().div_ceil(self.chunk),
        }
    }

    pub(super) fn tiles_of(&self, chunk: usize) -> Range<usize> {
        let unit = self.unit();
        if self.chunk >= unit {
            return chunk * self.chunk..((chunk + 1) * self.chunk).min(self.tiles());
        }
        let of_unit = unit.div_ceil(self.chunk);
        let (first, part) = (chunk / of_unit * unit, chunk % of_unit * self.chunk);
        first + part..first + (part + self.chunk).min(unit)
    }

    /// The first pixel of a tile, counted over all rows of tiles, and its pixels.
    pub(super) fn tile(&self, tile: usize) -> (usize, usize) {
        let (row, tile) = (tile / self.cut.count(), tile % self.cut.count());
        (row * self.pixels + self.cut.start(tile), self.cut.height(tile))
    }

    /// The end of the tiles from `tile` on that are in one row of tiles and have as many pixels.
    pub(super) fn end_of_height(&self, tile: usize) -> usize {
        let (row, in_row) = (tile / self.cut.count(), tile % self.cut.count());
        let mut runs = self.cut.runs(&(in_row..self.cut.count()));
        row * self.cut.count() + runs.next().map_or(self.cut.count(), |run| run.end)
    }

    /// The rows of tiles that have some tiles.
    pub(super) fn rows_of(&self, tiles: &Range<usize>) -> Range<usize> {
        tiles.start / self.cut.count()..(tiles.end - 1) / self.cut.count() + 1
    }

    /// The first pixel of some tiles, and the pixel behind the last.
    pub(super) fn pixels_of(&self, tiles: &Range<usize>) -> Range<usize> {
        let (last, height) = self.tile(tiles.end - 1);
        self.tile(tiles.start).0..last + height
    }
}

/// What the kernels of a layer need of its tiles.
pub(super) struct TileNeeds {
    /// Pixels of a tile, at most.
    pub(super) pixels: usize,
    /// Whether a tile has pixels of one row alone.
    pub(super) in_rows: bool,
    /// Values of a pixel of X that a task reads, at most. Each counts as often as it is repeated.
    pub(super) channels: usize,
    /// Channels of Y for each channel of X, if that is repeated for them.
    pub(super) repeats: usize,
    /// Parts of the channels, each of which reads all pixels.
    pub(super) parts: usize,
    /// Whether a tap of the last axis stands for all of them.
    pub(super) is_joined: bool,
    pub(super) x: XValues,
}

/// The values of X that kernels read.
#[derive(Debug, Clone, Copy)]
pub(super) struct XValues {
    /// Whether X has them as they are.
    pub(super) is_direct: bool,
    /// Bytes of a value.
    pub(super) bytes: usize,
    /// Values that kernels read behind those of a pixel, at most. They have no weights.
    pub(super) behind: usize,
    /// Whether padding counts in sums, so that no tap may be left out.
    pub(super) counts_padding: bool,
}

impl XValues {
    /// Those of floating-point numbers.
    pub(super) fn of<T: Element>() -> Self {
        Self { is_direct: T::DIRECT, bytes: size_of::<T::Acc>(), behind: 0, counts_padding: false }
    }

    /// Those of units. Four bytes keep their zero point, which padding has too.
    pub(super) fn of_units(unit: Unit) -> Self {
        Self { is_direct: false, bytes: size_of::<i32>(), behind: 0, counts_padding: unit == Unit::Bytes }
    }

    /// Those of bytes that units begin with.
    pub(super) fn of_bytes(unit: Unit, is_direct: bool) -> Self {
        Self { is_direct, bytes: 1, behind: size_of::<i32>() - 1, ..Self::of_units(unit) }
    }
}

/// The tiles of a layer.
pub(super) struct PixelTiling {
    /// With the axes of a pointwise kernel merged.
    pub(super) geometry: Geometry,
    pub(super) source: PixelSource,
    pub(super) phases: Vec<TiledPhase>,
    pixels: usize,
    pub(super) x: XValues,
    /// As in [`TileNeeds`].
    pub(super) in_rows: bool,
    /// Entries of the table of a tile, and tiles of a chunk, at most.
    pub(super) entries: usize,
    pub(super) chunk: usize,
    /// Whether tiles prefetch for the next ones: those of a Conv that reads X in place, if Y is larger than the caches keep, and
    /// a pixel has several cache lines.
    pub(super) prefetches_next: bool,
}

impl PixelTiling {
    /// # Errors
    /// The reason why a layer cannot be tiled.
    pub(super) fn new(
        (geometry, machine, threads): (&Geometry, &Machine, usize),
        needs: &TileNeeds,
        most_bytes: usize,
    ) -> Result<Self, String> {
        let geometry = view::merged(geometry);
        if geometry.input_len() >= PixelTaps::ZEROS as usize {
            return Err(alloc::format!("X has {} elements, at most {}", geometry.input_len(), PixelTaps::ZEROS - 1));
        }
        let phases = PixelPhase::all(&geometry).ok_or_else(|| String::from("its strides have too many phases"))?;
        let TileNeeds { pixels, in_rows, channels, repeats, is_joined, .. } = *needs;
        let is_in_place = needs.x.is_direct && repeats == 1 && geometry.x_layout == Layout::ChannelsLast;
        let pads = geometry.axes.last().is_some_and(Axis::is_padded);
        let copy = RowCopy { pixel: channels, repeats, most_len: 0 };
        let source = PixelSource { is_joined, copy: (!is_in_place || is_joined && pads).then_some(copy) };
        let taps = phases.iter().map(PixelPhase::taps).max().unwrap_or(0);
        let entries = match in_rows {
            true => phases.iter().map(PixelPhase::row_taps).max().unwrap_or(0),
            false => taps.saturating_mul(1 + pixels),
        };
        if entries > MOST_ENTRIES {
            return Err(alloc::format!("a tile has {taps} taps, whose places exceed {MOST_ENTRIES}"));
        }
        let x = needs.x;
        // Rows of X follow one another in the order of taps.
        let is_conv = geometry.op == Op::Conv;
        let is_long = geometry.out_channels * x.bytes >= LONG_PIXEL_BYTES;
        let prefetches_next =
            source.copy.is_none() && is_conv && is_long && geometry.output_len() * x.bytes > NEAR_Y_BYTES;
        let mut new =
            Self { geometry, source, phases: Vec::new(), pixels, x, in_rows, entries, chunk: 0, prefetches_next };
        let bytes = (machine.block_l2_bytes() / 4).min(most_bytes);
        let chunk = new.chunk_tiles(needs, phases.len(), (bytes, threads));
        new.phases = phases.into_iter().map(|phase| new.phase_tiles(phase, chunk)).collect();
        new.chunk = new.phases.iter().map(|phase| phase.chunk).max().unwrap_or(1);
        let (most_len, most) = (new.most_copied().saturating_mul(channels), planes::MOST_BYTES / x.bytes);
        if let Some(copy) = &mut new.source.copy {
            if most_len > most {
                return Err(alloc::format!(
                    "a copy of what a chunk reads of X has {most_len} elements, at most {most}"
                ));
            }
            copy.most_len = if most_len == 0 { 0 } else { most_len + x.behind };
        }
        Ok(new)
    }

    /// Pixels of the window of a chunk, at most.
    fn most_copied(&self) -> usize {
        let of_phase = |tiles: &TiledPhase| {
            let (unit, chunk) = (tiles.unit(), tiles.chunk.min(tiles.tiles()));
            // Chunks of pixels of several images have one of each.
            let (pixels, images) = match tiles.units {
                1 if self.geometry.output_spatial() == 1 => {
                    (1, self.geometry.batch.min(chunk.saturating_mul(self.pixels)))
                }
                _ => (chunk.min(unit).saturating_mul(self.pixels), (chunk / unit).max(1)),
            };
            let planes = tiles.units > self.geometry.batch;
            let window = tiles.phase.most_window(&self.geometry, (pixels, planes), self.source.is_joined);
            window.saturating_mul(images)
        };
        self.phases.iter().map(of_phase).max().unwrap_or(0)
    }

    /// Tiles of a chunk: what they read of X, and their tables, take at most `bytes`, which stay in the L2 cache, and
    /// each of `threads` threads has several chunks.
    fn chunk_tiles(&self, needs: &TileNeeds, phases: usize, (bytes, threads): (usize, usize)) -> usize {
        let geometry = &self.geometry;
        let inputs = geometry.batch as f64 * geometry.input_spatial() as f64 * phases as f64;
        let outputs = (geometry.batch * geometry.output_spatial()).max(1) as f64;
        let of_tile = self.pixels as f64 * (inputs / outputs) * (needs.channels * needs.x.bytes) as f64
            + (self.entries * size_of::<u32>() + size_of::<TableRun>()) as f64;
        let tiles = (geometry.batch * geometry.output_spatial()).max(1).div_ceil(self.pixels);
        let of_thread =
            if threads == 1 { tiles } else { tiles.saturating_mul(needs.parts).div_ceil(TASKS_PER_THREAD * threads) };
        ((bytes as f64 / of_tile) as usize).min(of_thread).clamp(1, tiles.max(1))
    }

    fn phase_tiles(&self, phase: PixelPhase, chunk: usize) -> TiledPhase {
        let geometry = &self.geometry;
        // Tiles have pixels of several images, if these are neighbours in Y. A copy of many pixels of them would
        // be large.
        let is_small = self.source.copy.is_none() || geometry.output_spatial() == 1;
        let crosses_rows = phase.is_dense() && !self.in_rows;
        let is_one = crosses_rows && geometry.y_layout == Layout::ChannelsLast && is_small;
        let (images, planes) = (geometry.batch, geometry.batch * phase.planes());
        let image = phase.rows() * phase.last().count;
        // Tiles do not depend on chunks, and so not on the number of threads: the order of sums does on them.
        let cuts_images = crosses_rows && image / phase.planes().max(1) < TILES_OF_PLANE * self.pixels;
        let rows = match crosses_rows {
            false => images * phase.rows(),
            true if is_one => 1,
            true if cuts_images => images,
            true => planes,
        };
        // A chunk has images, or a part of the last two axes: what it reads of X is not much more than that.
        let has_images = cuts_images || chunk.saturating_mul(self.pixels) >= image;
        let units = match has_images {
            _ if is_one => 1,
            true => images,
            false => planes,
        };
        let pixels = geometry.batch * image / rows.max(1);
        let cut = RowPanels::new(pixels, self.pixels);
        let unit = rows * cut.count() / units.max(1);
        // Chunks of equal numbers of tiles of an image, if possible of whole rows, or of some images.
        let width = phase.last().count;
        let row = match crosses_rows {
            false => cut.count(),
            true if width.is_multiple_of(self.pixels) => width / self.pixels,
            true => 1,
        };
        let chunk = match chunk < unit {
            true => unit.div_ceil(unit.div_ceil(chunk)).next_multiple_of(if chunk < row { 1 } else { row }),
            false if has_images || is_one => chunk / unit * unit,
            false => unit,
        };
        TiledPhase { phase, rows, cut, pixels, units, chunk }
    }

    /// Whether kernels store into Y.
    pub(super) fn is_stored<T: Element>(&self) -> bool {
        let is_dense = || self.phases.iter().all(|phase| phase.phase.is_dense());
        T::DIRECT && (self.geometry.y_layout == Layout::ChannelsLast || is_dense())
    }

    pub(super) fn chunks(&self) -> usize {
        self.phases.iter().map(TiledPhase::chunks).sum()
    }

    /// How often the chunks read all weights: each reads those of its phase.
    pub(super) fn reads_of_weights(&self) -> f64 {
        // As f64: hostile sizes may exceed usize.
        let taps: f64 = self.phases.iter().map(|tiles| tiles.chunks() as f64 * tiles.phase.taps() as f64).sum();
        taps / self.geometry.kernel_volume() as f64
    }

    /// Taps of the kernel that are one tap of a call.
    pub(super) fn taps_of_call(&self) -> usize {
        let last = |phase: &TiledPhase| phase.phase.last().taps();
        if self.source.is_joined { self.phases.first().map_or(1, last) } else { 1 }
    }

    /// The phase of a chunk, and its tiles.
    pub(super) fn chunk(&self, mut index: usize) -> (&TiledPhase, Range<usize>) {
        for phase in &self.phases {
            if index < phase.chunks() {
                return (phase, phase.tiles_of(index));
            }
            index -= phase.chunks();
        }
        unreachable!("a chunk is one of a phase")
    }

    /// Calls `patch` for the part of Y of a chunk and some channels.
    pub(super) fn patches(&self, (index, channels): (usize, &Range<usize>), patch: &mut dyn FnMut(Patch)) {
        let (tiles, range) = self.chunk(index);
        let (geometry, phase, last) = (&self.geometry, &tiles.phase, tiles.phase.last());
        let positions = geometry.output_spatial();
        let mut pixels = tiles.pixels_of(&range);
        while !pixels.is_empty() {
            let width = if phase.is_dense() { positions } else { last.count };
            let len = (width - pixels.start % width).min(pixels.len());
            let at = phase.output_pixel(geometry, pixels.start);
            let (image, at) = (at / positions, at % positions);
            pixels.start += len;
            if phase.is_dense() {
                patch(Patch::rows(image..image + 1, channels.clone(), at..at + len, positions));
                continue;
            }
            let output = geometry.axes[geometry.axes.len() - 1].output;
            let rows = Span::new(at / output..at / output + 1, positions / output);
            let span = Span { size: output, start: at % output, step: last.step, count: len };
            patch(Patch { images: image..image + 1, channels: channels.clone(), axes: [Span::whole(1), rows, span] });
        }
    }

    /// The work to copy what all chunks read of `parts` parts of the channels, and to write their tables, if
    /// tasks share the parts in `shares`.
    pub(super) fn reading_work(&self, (parts, shares): (usize, usize), lanes: usize) -> Work {
        let (copied, repeated) = self.source.copy_lens();
        let copies = (self.chunks() * parts.max(shares)) as f64;
        let (copied, repeated) = (copied as f64 * copies, repeated as f64 * copies);
        // As f64: hostile sizes may exceed usize.
        let entries = |phase: &TiledPhase| phase.tiles() as f64 * phase.phase.taps() as f64 * (1 + self.pixels) as f64;
        let tables = Item::COPIED_ELEMENTS.times(self.phases.iter().map(entries).sum());
        tables * shares as f64
            + Item::COPIED_ELEMENTS.times(repeated)
            + match self.geometry.x_layout {
                Layout::ChannelsLast => Item::COPIED_ELEMENTS.times(copied),
                Layout::ChannelsFirst => Item::GATHERED_VECTORS.times(copied / lanes as f64),
            }
    }

    /// The way of finished sums of `channels` channels, in `vectors` vectors, into a Y whose channels come
    /// first.
    pub(super) fn finish_work(&self, (channels, vectors): (usize, usize)) -> Work {
        let of_phase = |phase: &TiledPhase| {
            let pixels = (phase.rows * phase.pixels) as f64;
            match (self.geometry.y_layout, phase.phase.is_dense()) {
                (Layout::ChannelsLast, _) => Work::default(),
                (_, true) => Item::SPREAD_VECTORS.times(pixels * vectors as f64),
                (_, false) => Item::SCATTERED_ELEMENTS.times(pixels * channels as f64),
            }
        };
        self.phases.iter().map(of_phase).sum()
    }

    /// The work of all tiles, if that of a tile of a phase depends on its pixels.
    pub(super) fn tiles_work(&self, of_tile: impl Fn(&TiledPhase, usize) -> Work) -> Work {
        let of_phase = |phase: &TiledPhase| {
            let runs = phase.cut.runs(&(0..phase.cut.count()));
            let of_row = runs.map(|run| of_tile(phase, phase.cut.height(run.start)) * run.len() as f64);
            of_row.sum::<Work>() * phase.rows as f64
        };
        self.phases.iter().map(of_phase).sum()
    }
}
