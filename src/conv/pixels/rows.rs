//! The tiles of a chunk in rows, for kernels whose tiles have pixels of one row.

use core::ops::Range;

use convoke_kernels::PixelRows;

use super::chunk::PixelChunk;
use crate::conv::store::PixelPlace;

/// Tiles of a chunk that are neighbours in Y: some of one row, or whole rows.
pub(super) struct RowGroup {
    /// The rows of tiles, and the tiles of each.
    rows: Range<usize>,
    tiles: Range<usize>,
    /// Where the pixels go in Y, with all channels.
    pub(super) place: PixelPlace,
}

impl<A: Copy> PixelChunk<'_, A> {
    /// The tiles in groups. None has more than `most` tiles.
    pub(super) fn row_groups(&self, most: usize) -> impl Iterator<Item = RowGroup> {
        let (tiles, of_image) = (self.tiles, self.tiles.phase.rows());
        let (of_row, mut tile) = (tiles.cut.count(), self.range.start);
        core::iter::from_fn(move || {
            let (row, first, left) = (tile / of_row, tile % of_row, self.range.end - tile);
            if left == 0 {
                return None;
            }
            // Rows are neighbours if all their pixels are, in one image.
            let left = left.min(most);
            let rows = (left / of_row).min(of_image - row % of_image);
            let is_whole = first == 0 && rows > 0 && tiles.phase.is_dense();
            let (rows, tiles_of_row) = if is_whole { (rows, of_row) } else { (1, left.min(of_row - first)) };
            let in_row = first..first + tiles_of_row;
            let (begin, _) = tiles.tile(tile);
            tile += rows * tiles_of_row;
            let place = self.place(begin, rows * tiles.cut.rows(&in_row).len());
            Some(RowGroup { rows: row..row + rows, tiles: in_row, place })
        })
    }

    /// Calls `run` for the tiles of a group that have the same number of pixels, with that number, and what they read of
    /// `channels` channels of X. `x` begins with the first of these.
    pub(super) fn for_each_height(
        &self,
        RowGroup { rows, tiles, .. }: &RowGroup,
        (x, channels): (&[A], usize),
        mut run: impl FnMut(usize, &PixelRows<'_, A>),
    ) {
        let (cut, phase, places) = (&self.tiles.cut, &self.tiles.phase, &self.places);
        let (numbers, rows_of_x) = self.table.split_at(phase.row_taps());
        let in_chunk = rows.start - self.tiles.rows_of(&self.range).start;
        let rows_of_x = &rows_of_x[in_chunk * numbers.len()..][..rows.len() * numbers.len()];
        let (begin, window) = (cut.start(tiles.start), &places.window.columns);
        let columns = phase.last().columns(begin, window.start, (window.len(), places.pixel));
        for run_of_tiles in cut.runs(tiles) {
            run(
                cut.height(run_of_tiles.start),
                &PixelRows {
                    x,
                    zeros: self.zeros,
                    channels,
                    rows: rows.len(),
                    width: cut.rows(tiles).len(),
                    tiles: run_of_tiles.len(),
                    from: cut.start(run_of_tiles.start) - begin,
                    numbers,
                    places: rows_of_x,
                    columns,
                    prefetches_next: self.tiling.prefetches_next,
                },
            );
        }
    }
}
