//! How Y is cut into tiles, groups of tiles and chunks of pixels, for kernels of pixels.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{Isa, PixelTaps, Real};

use super::source::{PixelSource, RowCopy};
use super::taps::{AxisWindow, PixelPhase, RowPlaces, TableWriter};
use crate::conv::contract::{Io, Request};
use crate::conv::macro_kernel::RowPanels;
use crate::conv::shares::TASKS_PER_THREAD;
use crate::conv::store::PixelPlace;
use crate::conv::{planes, view};
use crate::element::Element;
use crate::exec::split::{Patch, Span};
use crate::exec::{Arena, Ledger, Piece};
use crate::machine::{Item, Work};
use crate::{Axis, Geometry, Layout};

/// Entries of the table of a tile, at most.
const MOST_ENTRIES: usize = 1 << 16;

/// The tiles of a phase: its pixels, in rows of tiles. If pixels of all rows are neighbours in Y, they are one
/// row.
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
    fn end_of_height(&self, tile: usize) -> usize {
        let (row, in_row) = (tile / self.cut.count(), tile % self.cut.count());
        let mut runs = self.cut.runs(&(in_row..self.cut.count()));
        row * self.cut.count() + runs.next().map_or(self.cut.count(), |run| run.end)
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
    /// Channels of X that a task reads, at most.
    pub(super) channels: usize,
    /// Parts of the channels, each of which reads all pixels.
    pub(super) parts: usize,
    /// Whether a tap of the last axis stands for all of them.
    pub(super) is_joined: bool,
}

/// The tiles of a layer.
pub(super) struct PixelTiling {
    /// With the axes of a pointwise kernel merged.
    pub(super) geometry: Geometry,
    pub(super) source: PixelSource,
    pub(super) phases: Vec<TiledPhase>,
    pixels: usize,
    /// Entries of the table of a tile, and tiles of a chunk, at most.
    entries: usize,
    chunk: usize,
}

/// The scratch of a task, for a chunk.
pub(super) struct ChunkScratch<A> {
    copy: Piece<A>,
    widened: Piece<A>,
    zeros: Piece<A>,
    table: Piece<u32>,
    counts: Piece<u32>,
    outer: Piece<AxisWindow>,
}

/// A chunk of tiles with their operands.
pub(super) struct PixelChunk<'a, A> {
    geometry: &'a Geometry,
    pub(super) tiles: &'a TiledPhase,
    range: Range<usize>,
    /// From the first channel of a task on.
    pub(super) x: &'a [A],
    pub(super) zeros: &'a [A],
    /// Taps of the kernel that are one tap of the tables.
    pub(super) joined: usize,
    /// For each tile a table, of as many taps as `counts` says.
    table: &'a [u32],
    counts: &'a [u32],
    /// Elements from what a pixel reads to what the next one reads.
    shift: usize,
}

/// Neighbouring tiles of a chunk with the same numbers of pixels and taps.
pub(super) struct TileGroup<'a> {
    first: usize,
    count: usize,
    pub(super) pixels: usize,
    pub(super) taps: PixelTaps<'a>,
    /// Elements of X before the first place of the table.
    pub(super) offset: usize,
}

impl PixelTiling {
    /// # Errors
    /// The reason why a layer cannot be tiled.
    pub(super) fn new<T: Element>(
        request: &Request<'_, T>,
        needs: &TileNeeds,
        most_bytes: usize,
    ) -> Result<Self, String> {
        let geometry = view::merged(request.geometry);
        if geometry.input_len() >= PixelTaps::ZEROS as usize {
            return Err(alloc::format!("X has {} elements, at most {}", geometry.input_len(), PixelTaps::ZEROS - 1));
        }
        let phases = PixelPhase::all(&geometry).ok_or_else(|| String::from("its strides have too many phases"))?;
        let TileNeeds { pixels, channels, is_joined, .. } = *needs;
        let is_in_place = T::DIRECT && geometry.x_layout == Layout::ChannelsLast;
        let pads = geometry.axes.last().is_some_and(Axis::is_padded);
        let source = match is_in_place && !(is_joined && pads) {
            true => PixelSource::InPlace { is_joined },
            false => PixelSource::Copy(RowCopy { is_joined, most_len: 0 }),
        };
        let taps = phases.iter().map(PixelPhase::taps).max().unwrap_or(0);
        let entries = taps.saturating_mul(1 + pixels);
        if entries > MOST_ENTRIES {
            return Err(alloc::format!("a tile has {taps} taps, whose places exceed {MOST_ENTRIES}"));
        }
        let mut new = Self { geometry, source, phases: Vec::new(), pixels, entries, chunk: 0 };
        let chunk = new.chunk_tiles(request, needs, phases.len(), most_bytes);
        new.phases = phases.into_iter().map(|phase| new.phase_tiles(phase, chunk)).collect();
        new.chunk = new.phases.iter().map(|phase| phase.chunk).max().unwrap_or(1);
        new.source = match source {
            PixelSource::InPlace { .. } => source,
            PixelSource::Copy(copy) => {
                let most_len = new.most_copied(is_joined).saturating_mul(channels);
                let most = planes::MOST_BYTES / size_of::<T::Acc>();
                if most_len > most {
                    return Err(alloc::format!(
                        "a copy of what a chunk reads of X has {most_len} elements, at most {most}"
                    ));
                }
                PixelSource::Copy(RowCopy { most_len, ..copy })
            }
        };
        Ok(new)
    }

    /// Pixels of the window of a chunk, at most.
    fn most_copied(&self, is_joined: bool) -> usize {
        let of_phase = |tiles: &TiledPhase| {
            let (unit, chunk) = (tiles.unit(), tiles.chunk.min(tiles.tiles()));
            let pixels = chunk.min(unit).saturating_mul(self.pixels);
            let planes = tiles.units > self.geometry.batch;
            tiles.phase.most_window(&self.geometry, (pixels, planes), is_joined).saturating_mul((chunk / unit).max(1))
        };
        self.phases.iter().map(of_phase).max().unwrap_or(0)
    }

    /// Tiles of a chunk: what they read of X, and their tables, stay in the L2 cache, and each thread has
    /// several chunks.
    fn chunk_tiles<T: Element>(
        &self,
        request: &Request<'_, T>,
        needs: &TileNeeds,
        phases: usize,
        most_bytes: usize,
    ) -> usize {
        let Request { geometry, machine, threads, .. } = *request;
        let inputs = geometry.batch as f64 * geometry.input_spatial() as f64 * phases as f64;
        let outputs = (geometry.batch * geometry.output_spatial()).max(1) as f64;
        let of_tile = self.pixels as f64 * (inputs / outputs) * (needs.channels * size_of::<T::Acc>()) as f64
            + (self.entries * size_of::<u32>()) as f64;
        let bytes = (machine.block_l2_bytes() / 4).min(most_bytes) as f64;
        let tiles = (geometry.batch * geometry.output_spatial()).max(1).div_ceil(self.pixels);
        let of_thread =
            if threads == 1 { tiles } else { tiles.saturating_mul(needs.parts).div_ceil(TASKS_PER_THREAD * threads) };
        ((bytes / of_tile) as usize).min(of_thread).clamp(1, tiles.max(1))
    }

    fn phase_tiles(&self, phase: PixelPhase, chunk: usize) -> TiledPhase {
        let geometry = &self.geometry;
        let is_copied = matches!(self.source, PixelSource::Copy(_));
        let is_one = phase.is_dense() && geometry.y_layout == Layout::ChannelsLast && !is_copied;
        let image = phase.rows() * phase.last().count;
        // A chunk has images, or a part of the last two axes: what it reads of X is not much more than that.
        let has_images = chunk.saturating_mul(self.pixels) >= image;
        let units = match (is_one, has_images) {
            (true, _) => 1,
            (_, true) => geometry.batch,
            _ => geometry.batch * phase.planes(),
        };
        let (rows, pixels) = match phase.is_dense() {
            true => (units, geometry.batch * image / units),
            false => (geometry.batch * phase.rows(), phase.last().count),
        };
        let cut = RowPanels::new(pixels, self.pixels);
        let unit = rows * cut.count() / units;
        // Chunks of equal numbers of tiles of an image, or of some images.
        let chunk = match chunk < unit {
            true => unit.div_ceil(unit.div_ceil(chunk)),
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

    /// Taps of the kernel that are one tap of a call.
    pub(super) fn taps_of_call(&self) -> usize {
        let last = |phase: &TiledPhase| phase.phase.last().taps();
        if self.source.is_joined() { self.phases.first().map_or(1, last) } else { 1 }
    }

    /// The phase of a chunk, and its tiles.
    fn chunk(&self, mut index: usize) -> (&TiledPhase, Range<usize>) {
        for phase in &self.phases {
            if index < phase.chunks() {
                return (phase, phase.tiles_of(index));
            }
            index -= phase.chunks();
        }
        unreachable!("a chunk is one of a phase")
    }

    /// Books the scratch of a chunk whose calls read up to `channels` channels of a pixel.
    pub(super) fn book<T: Element>(&self, scratch: &mut Ledger, channels: usize) -> ChunkScratch<T::Acc> {
        let geometry = &self.geometry;
        let copied = self.source.copy_len();
        let is_widened = !T::DIRECT && geometry.x_layout == Layout::ChannelsFirst;
        ChunkScratch {
            copy: scratch.book("rows of X", copied),
            widened: scratch.book("widened rows", if is_widened { copied } else { 0 }),
            zeros: scratch.book("zeros", channels),
            table: scratch.book("places", self.chunk * self.entries),
            counts: scratch.book("taps", self.chunk),
            outer: scratch.book("window", geometry.axes.len() - 1),
        }
    }

    /// The operands of a chunk: some channels of X, and the tables of all its tiles.
    pub(super) fn read<'a, T: Element>(
        &'a self,
        isa: Isa,
        (index, channels): (usize, Range<usize>),
        io: &Io<'a, T>,
        (arena, scratch): (&mut Arena<'a>, &ChunkScratch<T::Acc>),
    ) -> PixelChunk<'a, T::Acc> {
        let geometry = &self.geometry;
        let (copy, widened, zeros) = (arena.get(scratch.copy), arena.get(scratch.widened), arena.get(scratch.zeros));
        let (table, counts, outer) = (arena.get(scratch.table), arena.get(scratch.counts), arena.get(scratch.outer));
        zeros.fill(T::Acc::ZERO);
        let (tiles, range) = self.chunk(index);
        let window = self.source.window(geometry, &tiles.phase, &tiles.pixels_of(&range), outer);
        let (x, places) = self.source.read(isa, io, geometry, (channels, window), (copy, widened));
        let shift = tiles.phase.last().advance * places.pixel;
        let joined = if places.is_joined { self.taps_of_call() } else { 1 };
        write_tables(geometry, tiles, places, &range, (table, counts));
        PixelChunk { geometry, tiles, range, x, zeros, joined, table, counts, shift }
    }

    /// Calls `patch` for the part of Y of a chunk and some channels.
    pub(super) fn patches(&self, (index, channels): (usize, &Range<usize>), patch: &mut dyn FnMut(Patch)) {
        let (tiles, range) = self.chunk(index);
        let (geometry, phase, last) = (&self.geometry, &tiles.phase, tiles.phase.last());
        let positions = geometry.output_spatial();
        let mut pixels = tiles.pixels_of(&range);
        while !pixels.is_empty() {
            let width = if phase.is_dense() { positions } else { last.count };
            let (row, along) = (pixels.start / width, pixels.start % width);
            let len = (width - along).min(pixels.len());
            pixels.start += len;
            if phase.is_dense() {
                patch(Patch::rows(row..row + 1, channels.clone(), along..along + len, positions));
                continue;
            }
            let (image, row) = (row / phase.rows(), row % phase.rows());
            let output = geometry.axes[geometry.axes.len() - 1].output;
            let outer = phase.outer_output(geometry, row);
            let (rows, step) = (Span::new(outer..outer + 1, positions / output), last.step);
            let span = Span { size: output, start: last.first + along * step, step, count: len };
            patch(Patch { images: image..image + 1, channels: channels.clone(), axes: [Span::whole(1), rows, span] });
        }
    }

    /// The work to copy what all chunks read, and to write their tables.
    pub(super) fn reading_work(&self, lanes: usize) -> Work {
        let copied = self.source.copy_len() as f64 * self.chunks() as f64;
        // As f64: hostile sizes may exceed usize.
        let entries = |phase: &TiledPhase| phase.tiles() as f64 * phase.phase.taps() as f64 * (1 + self.pixels) as f64;
        let tables = Item::COPIED_ELEMENTS.times(self.phases.iter().map(entries).sum());
        tables
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
                (_, true) => Item::TRANSPOSED_VECTORS.times(pixels * vectors as f64),
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

/// In place of a number of taps: the table is that of the tile before, with all places shifted.
const ALIKE: u32 = u32::MAX;

/// Writes the tables of tiles one behind the other, and the taps of each.
fn write_tables(
    geometry: &Geometry,
    tiles: &TiledPhase,
    places: RowPlaces<'_>,
    range: &Range<usize>,
    (table, counts): (&mut [u32], &mut [u32]),
) {
    let writer = TableWriter { geometry, phase: &tiles.phase, places };
    let (width, mut begin, mut tile) = (tiles.phase.last().count, 0, range.start);
    while tile < range.end {
        let (first, pixels) = tiles.tile(tile);
        let taps = writer.write((first / width, first % width), pixels, &mut table[begin..]);
        let alike = writer.alike(first % width, pixels);
        let end = (tile + alike).min(tiles.end_of_height(tile)).min(range.end);
        counts[tile - range.start..end - range.start].fill(ALIKE);
        counts[tile - range.start] = taps as u32;
        begin += taps * (1 + pixels);
        tile = end;
    }
}

impl<A> PixelChunk<'_, A> {
    /// Calls `tiles` for each group of at most `most` tiles.
    pub(super) fn for_each_group(&self, most: usize, mut tiles: impl FnMut(TileGroup<'_>)) {
        let (mut first, mut begin) = (self.range.start, 0);
        let counts = |tile: usize| self.counts[tile - self.range.start];
        while first < self.range.end {
            let ((_, pixels), taps) = (self.tiles.tile(first), counts(first));
            let entries = taps as usize * (1 + pixels);
            let alike = (first + 1..self.range.end).take_while(|tile| counts(*tile) == ALIKE).count() + 1;
            if alike > 1 {
                let (table, shift) = (&self.table[begin..begin + entries], pixels * self.shift);
                for done in (0..alike).step_by(most.min(alike)) {
                    let (count, offset) = (most.min(alike - done), done * shift);
                    let taps = PixelTaps::shifted(table, count, pixels, shift);
                    tiles(TileGroup { first: first + done, count, pixels, taps, offset });
                }
                (first, begin) = (first + alike, begin + entries);
                continue;
            }
            let end = first.saturating_add(most).min(self.tiles.end_of_height(first)).min(self.range.end);
            let is_alone = |tile: usize| tile + 1 == self.range.end || counts(tile + 1) != ALIKE;
            let count = (first..end).take_while(|tile| counts(*tile) == taps && is_alone(*tile)).count();
            let taps = PixelTaps::new(&self.table[begin..begin + count * entries], count, pixels);
            tiles(TileGroup { first, count, pixels, taps, offset: 0 });
            (first, begin) = (first + count, begin + count * entries);
        }
    }

    /// Where the pixels of a group of tiles go in Y.
    pub(super) fn place(&self, group: &TileGroup<'_>, channels: Range<usize>) -> PixelPlace {
        let (first, _) = self.tiles.tile(group.first);
        let (phase, last) = (&self.tiles.phase, self.tiles.phase.last());
        let (geometry, count) = (self.geometry, group.count * group.pixels);
        let positions = geometry.output_spatial();
        let (pixel, step) = if phase.is_dense() {
            (first, 1)
        } else {
            let (row, along) = (first / last.count, first % last.count);
            let (image, row) = (row / phase.rows(), row % phase.rows());
            let width = geometry.axes[geometry.axes.len() - 1].output;
            let outer = image * (positions / width) + phase.outer_output(geometry, row);
            (outer * width + last.first + along * last.step, last.step)
        };
        PixelPlace { layout: geometry.y_layout, positions, pixel, step, count, channels }
    }
}
