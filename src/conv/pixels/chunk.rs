//! A chunk of tiles as a task runs it: its tables, what it reads of X, and its tiles in groups.

use core::ops::Range;
use core::{array, iter};

use bytemuck::Pod;
use convoke_kernels::PixelTaps;

use super::source::{CopyScratch, PixelReader};
use super::taps::{AxisWindow, RowPlaces, TableRun, TableWriter};
use super::tiling::{PixelTiling, TiledPhase};
use crate::Layout;
use crate::conv::store::PixelPlace;
use crate::exec::{Arena, Ledger, Piece};
use crate::spec::Strides;

/// Groups of tiles of a batch: so many read a panel of weights before the next one, at most.
const MOST_GROUPS: usize = 16;

/// The scratch of a task, for a chunk.
pub(super) struct ChunkScratch<A> {
    copy: Piece<A>,
    widened: Piece<A>,
    repeated: Piece<A>,
    zeros: Piece<A>,
    table: Piece<u32>,
    runs: Piece<TableRun>,
    outer: Piece<AxisWindow>,
}

/// A chunk of tiles, and where they read X.
pub(super) struct PixelChunk<'a, A> {
    pub(super) tiling: &'a PixelTiling,
    /// Of X.
    strides: Strides,
    pub(super) tiles: &'a TiledPhase,
    pub(super) range: Range<usize>,
    pub(super) places: RowPlaces<'a>,
    pub(super) zeros: &'a [A],
    /// The tables of all runs, or those of rows.
    pub(super) table: &'a [u32],
    runs: &'a [TableRun],
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
    /// Books the scratch of a chunk whose calls read up to `channels` values of a pixel.
    pub(super) fn book<A>(&self, scratch: &mut Ledger, channels: usize) -> ChunkScratch<A> {
        let geometry = &self.geometry;
        let (copied, repeated) = self.source.copy_lens();
        let is_widened = !self.x.is_direct && geometry.x_layout == Layout::ChannelsFirst;
        ChunkScratch {
            copy: scratch.book("rows of X", copied),
            widened: scratch.book("widened rows", if is_widened { copied } else { 0 }),
            repeated: scratch.book("repeated channels", repeated),
            zeros: scratch.book("zeros", channels),
            // Beside the places of rows stand the numbers of taps.
            table: scratch.book("places", (self.chunk + usize::from(self.in_rows)) * self.entries),
            runs: scratch.book("runs of tiles", if self.in_rows { 0 } else { self.chunk }),
            outer: scratch.book("window", geometry.axes.len() - 1),
        }
    }

    /// A chunk with the tables of all its tiles, and the scratch for what it copies of X.
    pub(super) fn open<'a, A: Pod>(
        &'a self,
        index: usize,
        (x, strides): (&impl PixelReader<A>, &Strides),
        (arena, scratch): (&mut Arena<'a>, &ChunkScratch<A>),
    ) -> (PixelChunk<'a, A>, CopyScratch<'a, A>) {
        let geometry = &self.geometry;
        let (copy, widened) = (arena.get(scratch.copy), arena.get(scratch.widened));
        let (repeated, zeros) = (arena.get(scratch.repeated), arena.get(scratch.zeros));
        let (table, runs, outer) = (arena.get(scratch.table), arena.get(scratch.runs), arena.get(scratch.outer));
        zeros.fill(x.padding());
        let (tiles, range) = self.chunk(index);
        let places = self.source.places(geometry, strides, (&tiles.phase, &tiles.pixels_of(&range)), outer);
        let counts_padding = self.x.counts_padding;
        let writer = TableWriter { geometry, phase: &tiles.phase, places: &places, counts_padding };
        let (table, runs): (&[u32], &[TableRun]) = if self.in_rows {
            (writer.write_rows(tiles.rows_of(&range), table), &[])
        } else {
            RunWriter { tiles, writer, table, runs, entries: 0, written: 0 }.write(&range)
        };
        let chunk = PixelChunk { tiling: self, strides: *strides, tiles, range, places, zeros, table, runs };
        (chunk, CopyScratch { copy, widened, repeated })
    }

    /// Parts of the channels that are read together: all if X is read in place, and otherwise each.
    pub(super) fn read_parts(&self, parts: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let most = if self.source.copy.is_some() { 1 } else { parts.len().max(1) };
        parts.clone().step_by(most).map(move |first| first..(first + most).min(parts.end))
    }
}

/// Writes the tables of the tiles of a chunk.
struct RunWriter<'w, 'a> {
    tiles: &'a TiledPhase,
    writer: TableWriter<'w>,
    table: &'a mut [u32],
    runs: &'a mut [TableRun],
    /// Entries and runs that are written.
    entries: usize,
    written: usize,
}

impl<'a> RunWriter<'_, 'a> {
    /// Returns the tables of some tiles, and the runs.
    fn write(mut self, range: &Range<usize>) -> (&'a [u32], &'a [TableRun]) {
        let mut tile = range.start;
        while tile < range.end {
            let end = self.tiles.end_of_height(tile).min(range.end);
            // Where X has no rows, all taps are padding, which does not move on.
            let is_empty = self.writer.places.window.rows() == 0;
            let (count, repeats, shift) = match is_empty {
                true => (1, 1, 0),
                false => self.rows(tile, end).unwrap_or_else(|| self.alike(tile, end)),
            };
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
        let row = |pixel: usize| pixel / self.tiles.pixels;
        let is_like =
            |run: &&mut TableRun| run.repeats == 1 && (run.taps, run.pixels, row(run.at)) == (taps, pixels, row(at));
        match last.filter(is_like) {
            Some(run) => run.count += 1,
            None => {
                let first = TableRun { at, pixels, count: 1, repeats: 1, shift: 0, begin, taps };
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

impl<A: Copy> PixelChunk<'_, A> {
    /// Taps of the kernel that are one tap of the tables.
    pub(super) fn joined(&self) -> usize {
        if self.places.is_joined { self.tiling.taps_of_call() } else { 1 }
    }

    /// The operand X, from the first of some channels on.
    pub(super) fn read<'s, X: PixelReader<A>>(
        &self,
        x: &'s X,
        channels: &Range<usize>,
        scratch: &'s mut CopyScratch<'_, A>,
    ) -> &'s [A] {
        let PixelTiling { geometry, source, .. } = self.tiling;
        source.read((x, &self.strides), geometry, (channels, &self.places), scratch)
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
    pub(super) fn place(&self, first: usize, count: usize) -> PixelPlace {
        let (geometry, phase) = (&self.tiling.geometry, &self.tiles.phase);
        let step = if phase.is_dense() { 1 } else { phase.last().step };
        let (pixel, channels) = (phase.output_pixel(geometry, first), 0..geometry.out_channels);
        PixelPlace { layout: geometry.y_layout, positions: geometry.output_spatial(), pixel, step, count, channels }
    }
}
