//! How Y is cut into tiles, groups of tiles and chunks of pixels, for kernels of pixels.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::{array, iter};

use bytemuck::{Pod, Zeroable};
use convoke_kernels::{Isa, PixelTaps, Real};

use super::source::{CopyScratch, PixelSource, RowCopy};
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
use crate::spec::Strides;
use crate::{Axis, Geometry, Layout};

/// Entries of the table of a tile, at most.
const MOST_ENTRIES: usize = 1 << 16;

/// A longer chunk is taken if the next shorter one copies more than this many times the least of X.
const ENOUGH_OF_LEAST: f64 = 1.25;

/// Tiles of a plane of the last two axes, if planes are cut into tiles, at least. Smaller planes would have
/// many small tiles: images are cut.
const TILES_OF_PLANE: usize = 4;

/// Groups of tiles of a batch: so many read a panel of weights before the next one, at most.
const MOST_GROUPS: usize = 16;

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
    /// Pixels of a tile, at most, and those of a tile that is chosen because it divides a row, at least.
    pub(super) pixels: usize,
    pub(super) least: usize,
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
    /// Pixels of a tile, at most, and those of a tile that divides a row, at least.
    pixels: usize,
    least: usize,
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
    runs: Piece<TileRun>,
    outer: Piece<AxisWindow>,
}

/// A chunk of tiles, and where they read X.
pub(super) struct PixelChunk<'a, A> {
    tiling: &'a PixelTiling,
    pub(super) tiles: &'a TiledPhase,
    places: RowPlaces<'a>,
    pub(super) zeros: &'a [A],
    /// The tables of all runs.
    table: &'a [u32],
    runs: &'a [TileRun],
}

/// Neighbouring tiles of a chunk with the same numbers of pixels and taps.
pub(super) struct TileGroup<'a> {
    pub(super) pixels: usize,
    pub(super) taps: PixelTaps<'a>,
    /// Elements of X before the first place of the table.
    pub(super) offset: usize,
    /// Where the pixels go in Y, with all channels.
    pub(super) place: PixelPlace,
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
        let TileNeeds { pixels, least, channels, is_joined, .. } = *needs;
        let is_in_place = T::DIRECT && geometry.x_layout == Layout::ChannelsLast;
        let pads = geometry.axes.last().is_some_and(Axis::is_padded);
        let copy = RowCopy { pixel: channels, most_len: 0 };
        let source = PixelSource { is_joined, copy: (!is_in_place || is_joined && pads).then_some(copy) };
        let taps = phases.iter().map(PixelPhase::taps).max().unwrap_or(0);
        let entries = taps.saturating_mul(1 + pixels);
        if entries > MOST_ENTRIES {
            return Err(alloc::format!("a tile has {taps} taps, whose places exceed {MOST_ENTRIES}"));
        }
        let mut new = Self { geometry, source, phases: Vec::new(), pixels, least, entries, chunk: 0 };
        new.phases = new.cut_into_chunks(request, needs, &phases, most_bytes);
        new.chunk = new.phases.iter().map(|phase| phase.chunk).max().unwrap_or(1);
        let (most_len, most) = (new.copied().0.saturating_mul(channels), planes::MOST_BYTES / size_of::<T::Acc>());
        if let Some(copy) = &mut new.source.copy {
            if most_len > most {
                return Err(alloc::format!(
                    "a copy of what a chunk reads of X has {most_len} elements, at most {most}"
                ));
            }
            copy.most_len = most_len;
        }
        Ok(new)
    }

    /// Pixels of the window of a chunk, at most, and those of the windows of all chunks.
    fn copied(&self) -> (usize, usize) {
        let of_phase = |tiles: &TiledPhase| {
            let (unit, chunk) = (tiles.unit(), tiles.chunk.min(tiles.tiles()));
            let pixels = chunk.min(unit).saturating_mul(self.pixels);
            let planes = tiles.units > self.geometry.batch;
            let window = tiles.phase.most_window(&self.geometry, (pixels, planes), self.source.is_joined);
            let window = window.saturating_mul((chunk / unit).max(1));
            (window, window.saturating_mul(tiles.chunks()))
        };
        let of_phases = self.phases.iter().map(of_phase);
        of_phases.fold((0, 0), |(most, all), (window, of_phase)| (most.max(window), all.saturating_add(of_phase)))
    }

    /// Cuts phases into chunks whose operands stay in the L2 cache. If their windows overlap much, longer
    /// chunks copy less of X: their windows stay in the L3 cache.
    fn cut_into_chunks<T: Element>(
        &mut self,
        request: &Request<'_, T>,
        needs: &TileNeeds,
        phases: &[PixelPhase],
        most_bytes: usize,
    ) -> Vec<TiledPhase> {
        let cut = |tiling: &Self, chunk| phases.iter().map(|phase| tiling.phase_tiles(phase, chunk)).collect();
        let (near, most) = self.chunk_tiles(request, needs, phases.len(), most_bytes);
        if self.source.copy.is_none() {
            return cut(self, near);
        }
        let most_pixels = most_bytes.min(planes::MOST_BYTES) / (needs.channels.max(1) * size_of::<T::Acc>());
        let longer = iter::successors(Some(near), |chunk| (2 * chunk <= most).then_some(2 * chunk));
        let mut copied = |chunk: usize| {
            self.phases = cut(self, chunk);
            let (window, all) = self.copied();
            (chunk == near || window <= most_pixels).then_some((chunk, all))
        };
        let cuts: Vec<_> = longer.map_while(&mut copied).collect();
        let least = cuts.iter().map(|(_, all)| *all).min().unwrap_or(0);
        let is_enough = |(_, all): &&(usize, usize)| *all as f64 <= ENOUGH_OF_LEAST * least as f64;
        cut(self, cuts.iter().find(is_enough).map_or(near, |(chunk, _)| *chunk))
    }

    /// Tiles of a chunk whose part of X and tables stay in the L2 cache, and tiles of a chunk, at most, if each
    /// thread is to have several.
    fn chunk_tiles<T: Element>(
        &self,
        request: &Request<'_, T>,
        needs: &TileNeeds,
        phases: usize,
        most_bytes: usize,
    ) -> (usize, usize) {
        let Request { geometry, machine, threads, .. } = *request;
        let inputs = geometry.batch as f64 * geometry.input_spatial() as f64 * phases as f64;
        let outputs = (geometry.batch * geometry.output_spatial()).max(1) as f64;
        let of_tile = self.pixels as f64 * (inputs / outputs) * (needs.channels * size_of::<T::Acc>()) as f64
            + (self.entries * size_of::<u32>()) as f64;
        let bytes = (machine.block_l2_bytes() / 4).min(most_bytes) as f64;
        let tiles = (geometry.batch * geometry.output_spatial()).max(1).div_ceil(self.pixels);
        let of_thread =
            if threads == 1 { tiles } else { tiles.saturating_mul(needs.parts).div_ceil(TASKS_PER_THREAD * threads) };
        let most = of_thread.clamp(1, tiles.max(1));
        (((bytes / of_tile) as usize).clamp(1, most), most)
    }

    fn phase_tiles(&self, phase: &PixelPhase, chunk: usize) -> TiledPhase {
        let geometry = &self.geometry;
        let is_copied = self.source.copy.is_some();
        let is_one = phase.is_dense() && geometry.y_layout == Layout::ChannelsLast && !is_copied;
        let image = phase.rows() * phase.last().count;
        // A chunk has images, or a part of the last two axes: what it reads of X is not much more than that.
        let (plane, has_images) = (image / phase.planes().max(1), chunk.saturating_mul(self.pixels) >= image);
        // Tiles do not depend on chunks, and so not on the number of threads: the order of sums does on them.
        let (rows, units) = match (phase.is_dense(), is_one) {
            (true, true) => (1, 1),
            (true, false) if plane < TILES_OF_PLANE * self.pixels => (geometry.batch, geometry.batch),
            (true, false) => (geometry.batch * phase.planes(), geometry.batch * phase.planes()),
            (false, _) => (geometry.batch * phase.rows(), geometry.batch * phase.planes()),
        };
        let units = if has_images && !is_one { geometry.batch } else { units };
        let pixels = geometry.batch * image / rows.max(1);
        // Tiles that divide a row have the same tables in all rows.
        let width = phase.last().count;
        let divisor = (self.least..=self.pixels).rev().find(|height| width.is_multiple_of(*height));
        let height = divisor.filter(|_| phase.is_dense() && phase.rows() > 1).unwrap_or(self.pixels);
        let cut = RowPanels::new(pixels, height);
        let unit = rows * cut.count() / units.max(1);
        // Chunks of equal numbers of tiles of an image, if possible of whole rows, or of some images.
        let row = if divisor.is_some() { (width / height).max(1) } else { 1 };
        let chunk = match chunk < unit {
            true => unit.div_ceil(unit.div_ceil(chunk)).next_multiple_of(if chunk < row { 1 } else { row }),
            false if has_images || is_one => chunk / unit * unit,
            false => unit,
        };
        TiledPhase { phase: phase.clone(), rows, cut, pixels, units, chunk }
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
        if self.source.is_joined { self.phases.first().map_or(1, last) } else { 1 }
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
            runs: scratch.book("runs of tiles", self.chunk),
            outer: scratch.book("window", geometry.axes.len() - 1),
        }
    }

    /// A chunk with the tables of all its tiles, and the scratch for what it copies of X.
    pub(super) fn open<'a, T: Element>(
        &'a self,
        (index, strides): (usize, &Strides),
        (arena, scratch): (&mut Arena<'a>, &ChunkScratch<T::Acc>),
    ) -> (PixelChunk<'a, T::Acc>, CopyScratch<'a, T::Acc>) {
        let geometry = &self.geometry;
        let (copy, widened, zeros) = (arena.get(scratch.copy), arena.get(scratch.widened), arena.get(scratch.zeros));
        let (table, runs, outer) = (arena.get(scratch.table), arena.get(scratch.runs), arena.get(scratch.outer));
        zeros.fill(T::Acc::ZERO);
        let (tiles, range) = self.chunk(index);
        let places = self.source.places(geometry, strides, (&tiles.phase, &tiles.pixels_of(&range)), outer);
        let writer = TableWriter { geometry, phase: &tiles.phase, places: &places };
        let (table, runs) = RunWriter { tiles, writer, table, runs, entries: 0, written: 0 }.write(&range);
        let chunk = PixelChunk { tiling: self, tiles, places, zeros, table, runs };
        (chunk, CopyScratch { copy, widened })
    }

    /// Parts of the channels that are read together: all if X is read in place, and otherwise each.
    pub(super) fn read_parts(&self, parts: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let most = if self.source.copy.is_some() { 1 } else { parts.len().max(1) };
        parts.clone().step_by(most).map(move |first| first..(first + most).min(parts.end))
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

    /// The work to copy what all chunks read of `parts` parts of the channels, and to write their tables, if
    /// tasks share the parts in `shares`.
    pub(super) fn reading_work(&self, (parts, shares): (usize, usize), lanes: usize) -> Work {
        let copied = self.source.copy_len() as f64 * (self.chunks() * parts.max(shares)) as f64;
        // As f64: hostile sizes may exceed usize.
        let entries = |phase: &TiledPhase| phase.tiles() as f64 * phase.phase.taps() as f64 * (1 + self.pixels) as f64;
        let tables = Item::COPIED_ELEMENTS.times(self.phases.iter().map(entries).sum());
        tables * shares as f64
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

/// Tiles of a chunk that follow one another: `count` tiles with as many tables, `repeats` times.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TileRun {
    /// The first tile, its first pixel, and the pixels of each tile.
    first: usize,
    at: usize,
    pixels: usize,
    count: usize,
    repeats: usize,
    /// Elements of X from the places of one time to those of the next.
    shift: usize,
    /// Where the tables begin, and the taps of each.
    begin: usize,
    taps: usize,
}

/// Writes the tables of the tiles of a chunk.
struct RunWriter<'w, 'a> {
    tiles: &'a TiledPhase,
    writer: TableWriter<'w>,
    table: &'a mut [u32],
    runs: &'a mut [TileRun],
    /// Entries and runs that are written.
    entries: usize,
    written: usize,
}

impl<'a> RunWriter<'_, 'a> {
    /// Returns the tables of some tiles, and the runs.
    fn write(mut self, range: &Range<usize>) -> (&'a [u32], &'a [TileRun]) {
        let mut tile = range.start;
        while tile < range.end {
            let end = self.tiles.end_of_height(tile).min(range.end);
            let (count, repeats, shift) = self.rows(tile, end).unwrap_or_else(|| self.alike(tile, end));
            let before = self.written;
            for tile in tile..tile + count {
                self.write_tile(tile, if repeats == 1 { 0 } else { before });
            }
            // Tiles with different numbers of taps are runs of their own.
            let is_one = repeats > 1 && self.written == before + 1;
            if is_one {
                (self.runs[before].repeats, self.runs[before].shift) = (repeats, shift);
            }
            tile += if is_one { count * repeats } else { count };
        }
        (self.table, &self.runs[..self.written])
    }

    /// Writes the table of a tile. It belongs to the last run if that is one from number `least` on, is not
    /// repeated, and has as many taps.
    fn write_tile(&mut self, tile: usize, least: usize) {
        let (width, begin, (at, pixels)) = (self.tiles.phase.last().count, self.entries, self.tiles.tile(tile));
        let taps = self.writer.write((at / width, at % width), pixels, &mut self.table[begin..]);
        self.entries += taps * (1 + pixels);
        let last = self.runs[least.min(self.written)..self.written].last_mut();
        let row = |tile: usize| tile / self.tiles.cut.count();
        let is_like = |run: &&mut TileRun| {
            run.repeats == 1 && (run.taps, run.pixels, row(run.first)) == (taps, pixels, row(tile))
        };
        match last.filter(is_like) {
            Some(run) => run.count += 1,
            None => {
                let first = TileRun { first: tile, at, pixels, count: 1, repeats: 1, shift: 0, begin, taps };
                self.runs[self.written] = first;
                self.written += 1;
            }
        }
    }

    /// Tiles of a row from `tile` on that have the table of the first one, up to tile `end` of equal tiles: as
    /// their number, how often they are repeated, and the shift.
    fn alike(&self, tile: usize, end: usize) -> (usize, usize, usize) {
        let (last, (at, pixels)) = (self.tiles.phase.last(), self.tiles.tile(tile));
        let alike = self.writer.alike(at % last.count, pixels).min(end - tile);
        (1, alike, pixels * last.advance * self.writer.places.pixel)
    }

    /// The tiles of a row of the phase, if it begins with `tile`, consists of whole tiles, and those of the next
    /// rows have the same tables.
    fn rows(&self, tile: usize, end: usize) -> Option<(usize, usize, usize)> {
        let (width, (at, pixels)) = (self.tiles.phase.last().count, self.tiles.tile(tile));
        let (row, count) = (at / width, width / pixels);
        if !at.is_multiple_of(width) || !width.is_multiple_of(pixels) || end - tile < 2 * count {
            return None;
        }
        let first = self.writer.first_row(row)?;
        let step = self.writer.first_row(row + 1)?.checked_sub(first)?;
        let is_next = |repeat: &usize| self.writer.first_row(row + repeat) == Some(first + repeat * step);
        let repeats = (1..(end - tile) / count).take_while(is_next).count() + 1;
        Some((count, repeats, step * self.writer.places.row))
    }
}

impl<A> PixelChunk<'_, A> {
    /// Taps of the kernel that are one tap of the tables.
    pub(super) fn joined(&self) -> usize {
        if self.places.is_joined { self.tiling.taps_of_call() } else { 1 }
    }

    /// The operand X, from the first of some channels on.
    pub(super) fn read<'s, T: Element<Acc = A>>(
        &self,
        isa: Isa,
        io: &Io<'s, T>,
        channels: &Range<usize>,
        scratch: &'s mut CopyScratch<'_, A>,
    ) -> &'s [A] {
        self.tiling.source.read(isa, io, &self.tiling.geometry, (channels, &self.places), scratch)
    }

    /// Calls `batch` for several groups of at most `most` tiles at a time.
    pub(super) fn for_each_batch(&self, most: usize, mut batch: impl FnMut(&[Option<TileGroup<'_>>])) {
        let mut groups = self.groups(most);
        loop {
            let some: [_; MOST_GROUPS] = array::from_fn(|_| groups.next());
            if some[0].is_none() {
                return;
            }
            batch(&some);
        }
    }

    /// The tiles in groups of at most `most`.
    fn groups(&self, most: usize) -> impl Iterator<Item = TileGroup<'_>> {
        let mut runs = self.runs.iter().peekable();
        // Tiles of the first run of these that belong to a group already: times, and tiles of the next time.
        let (mut times, mut tiles) = (0, 0);
        iter::from_fn(move || {
            let run = *runs.peek()?;
            let (at, pixels) = (run.at + (times * run.count + tiles) * run.pixels, run.pixels);
            let (entries, count) = (run.taps * (1 + pixels), most.min(run.count - tiles));
            let repeats = if count == run.count { (most / count).min(run.repeats - times) } else { 1 };
            let table = &self.table[run.begin + tiles * entries..][..count * entries];
            let taps = PixelTaps::new(table, count, pixels).repeated(repeats, run.shift);
            let offset = times * run.shift;
            tiles += count;
            if tiles == run.count {
                (times, tiles) = (times + repeats, 0);
            }
            if times == run.repeats {
                times = 0;
                runs.next();
            }
            Some(TileGroup { pixels, taps, offset, place: self.place(at, count * repeats * pixels) })
        })
    }

    /// Where pixels of the phase go in Y, all their channels.
    fn place(&self, first: usize, count: usize) -> PixelPlace {
        let (phase, last) = (&self.tiles.phase, self.tiles.phase.last());
        let geometry = &self.tiling.geometry;
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
        let channels = 0..geometry.out_channels;
        PixelPlace { layout: geometry.y_layout, positions, pixel, step, count, channels }
    }
}
