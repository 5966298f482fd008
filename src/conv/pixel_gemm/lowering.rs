//! A task: the tables of a chunk, then its panels of weights, groups of tiles and blocks of K.

use core::ops::Range;

use convoke_kernels::{Isa, PixelTaps, Pixels, Real};

use super::plan::{PhaseTiles, PixelBlocking};
use super::taps::{AxisWindow, TableWriter};
use crate::conv::contract::{Io, Lowering};
use crate::conv::shares::Part;
use crate::conv::store::{Finish, OutputStore, PixelPlace, PixelScratch};
use crate::element::Element;
use crate::exec::split::{Patch, Span, Split};
use crate::exec::{Arena, Line, Piece};
use crate::Geometry;

pub(super) struct PixelGemm<T: Element> {
    pub(super) isa: Isa,
    pub(super) geometry: Geometry,
    pub(super) finish: Finish<T::Acc>,
    pub(super) blocking: PixelBlocking<T::Acc>,
    pub(super) copy: Piece<T::Acc>,
    pub(super) widened: Piece<T::Acc>,
    pub(super) zeros: Piece<T::Acc>,
    pub(super) sums: Piece<T::Acc>,
    pub(super) finished: Piece<T::Acc>,
    pub(super) rows: Piece<T::Acc>,
    pub(super) table: Piece<u32>,
    pub(super) counts: Piece<u32>,
    pub(super) outer: Piece<AxisWindow>,
}

/// A chunk of tiles with their operands.
struct PixelChunk<'a, A> {
    tiles: &'a PhaseTiles,
    range: Range<usize>,
    group: usize,
    /// From the first channel of the group on.
    x: &'a [A],
    zeros: &'a [A],
    /// For each tile a table, of as many taps as `counts` says.
    table: &'a [u32],
    counts: &'a [u32],
}

/// Tiles of a chunk of the same size, and their table.
struct PixelTiles<'a> {
    first: usize,
    count: usize,
    pixels: usize,
    table: &'a [u32],
}

impl<A> PixelChunk<'_, A> {
    /// Calls `tiles` for each group of at most `most` tiles with the same numbers of pixels and taps.
    fn for_each_group(&self, most: usize, mut tiles: impl FnMut(PixelTiles<'_>)) {
        let (mut first, mut begin) = (self.range.start, 0);
        while first < self.range.end {
            let of = |tile: usize| (self.tiles.tile(tile).1, self.counts[tile - self.range.start]);
            let (pixels, taps) = of(first);
            let row_end = (first / self.tiles.cut.count() + 1) * self.tiles.cut.count();
            let end = (first + most).min(row_end).min(self.range.end);
            let count = (first..end).take_while(|tile| of(*tile) == (pixels, taps)).count();
            let entries = count * taps as usize * (1 + pixels);
            tiles(PixelTiles { first, count, pixels, table: &self.table[begin..begin + entries] });
            (first, begin) = (first + count, begin + entries);
        }
    }
}

impl<T: Element> PixelGemm<T> {
    /// The phase of a chunk, and its tiles.
    fn chunk(&self, mut index: usize) -> (&PhaseTiles, Range<usize>) {
        for phase in &self.blocking.phases {
            if index < phase.chunks() {
                return (phase, phase.tiles_of(index));
            }
            index -= phase.chunks();
        }
        unreachable!("a chunk is one of a phase")
    }

    /// Writes the tables of a chunk.
    fn write_tables(&self, writer: &TableWriter<'_>, tiles: &PhaseTiles, range: Range<usize>, table: &mut [u32], counts: &mut [u32]) {
        let (width, mut begin) = (tiles.phase.last().count, 0);
        for (tile, count) in range.zip(counts) {
            let (first, pixels) = tiles.tile(tile);
            let taps = writer.write((first / width, first % width), pixels, &mut table[begin..]);
            *count = taps as u32;
            begin += taps * (1 + pixels);
        }
    }

    /// Where the pixels of a group of tiles go in Y.
    fn place(&self, tiles: &PhaseTiles, group: &PixelTiles<'_>, channels: Range<usize>) -> PixelPlace {
        let (first, _) = tiles.tile(group.first);
        let (phase, last, geometry) = (&tiles.phase, tiles.phase.last(), &self.geometry);
        let (count, positions) = (group.count * group.pixels, geometry.output_spatial());
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

    /// Multiplies panel `p` by all tiles of a chunk.
    fn multiply(
        &self,
        chunk: &PixelChunk<'_, T::Acc>,
        p: usize,
        store: &OutputStore<'_, '_, T>,
        scratch: &mut PixelScratch<'_, T::Acc>,
    ) {
        let weights = &self.blocking.weights;
        let first = p * weights.nr();
        let rows = first..weights.rows.min(first + weights.nr());
        let (nr, is_narrow) = weights.panels.panel(rows.len());
        let panel = &weights.of_group(store.io.weights, chunk.group)[first * weights.steps()..];
        let panel = &panel[..nr * weights.steps()];
        let channels = chunk.group * weights.rows + rows.start..chunk.group * weights.rows + rows.end;
        let kernels = self.blocking.kernels[usize::from(!is_narrow)];
        let joined = self.blocking.taps_of_call();
        chunk.for_each_group(self.blocking.group, |group| {
            let kernel = &kernels[group.pixels - 1];
            let taps = PixelTaps::new(group.table, group.count, group.pixels);
            let place = self.place(chunk.tiles, &group, channels.clone());
            for block in weights.k.iter() {
                let x = chunk.x.get(block.start..).unwrap_or(&[]);
                let x = Pixels { x, zeros: chunk.zeros, channels: block.len() * joined, taps };
                let step = weights.taps * nr;
                let (w, accumulate) = (&panel[block.start * step..block.end * step], block.start > 0);
                match block.end == weights.channels {
                    true => store.pixels(kernel, (&x, w), scratch, accumulate, &place),
                    false => kernel.partial(&x, w, scratch.sums, accumulate),
                }
            }
        });
    }
}

impl<T: Element> Split for PixelGemm<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let channels = self.blocking.weights.channels_of(&part);
        let (tiles, range) = self.chunk(part.columns);
        let (phase, last, positions) = (&tiles.phase, tiles.phase.last(), self.geometry.output_spatial());
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
            let output = self.geometry.axes[self.geometry.axes.len() - 1].output;
            let outer = phase.outer_output(&self.geometry, row);
            let (rows, step) = (Span::new(outer..outer + 1, positions / output), last.step);
            let span = Span { size: output, start: last.first + along * step, step, count: len };
            patch(Patch { images: image..image + 1, channels: channels.clone(), axes: [Span::whole(1), rows, span] });
        }
    }
}

impl<T: Element> Lowering<T> for PixelGemm<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.blocking.weights.pack(self.geometry.op, w, packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let Part { group, columns, panels, .. } = self.blocking.split.part(task);
        let mut arena = Arena::new(scratch);
        let (copy, widened, zeros) = (arena.get(self.copy), arena.get(self.widened), arena.get(self.zeros));
        let (sums, finished, rows) = (arena.get(self.sums), arena.get(self.finished), arena.get(self.rows));
        let (table, counts, outer) = (arena.get(self.table), arena.get(self.counts), arena.get(self.outer));
        zeros.fill(T::Acc::ZERO);
        let (tiles, range) = self.chunk(columns);
        let window = self.blocking.source.window(&self.geometry, &tiles.phase, &tiles.pixels_of(&range), outer);
        let (x, places) = self.blocking.source.read(self.isa, io, &self.geometry, (group, window), (copy, widened));
        let writer = TableWriter { geometry: &self.geometry, phase: &tiles.phase, places };
        self.write_tables(&writer, tiles, range.clone(), table, counts);
        let chunk = PixelChunk { tiles, range, group, x, zeros, table, counts };
        let store = self.finish.store(io);
        let mut scratch = PixelScratch { sums, finished, rows };
        for p in panels {
            self.multiply(&chunk, p, &store, &mut scratch);
        }
    }
}
