//! How the panels of filters of a block are shared out among threads: where shares are not whole
//! panels, threads share one by its rows of tiles.

use alloc::vec::Vec;
use core::ops::Range;

use super::blocks::Extent;
use crate::exec::share;

/// Shares with cut panels, at the most: each cut is a table of calls for each size of blocks.
pub(super) const MOST_CUT: usize = 64;

/// Panels that are multiplied, for some rows of tiles of a block, counted over its images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) panels: Range<usize>,
    pub(super) rows: Range<usize>,
}

/// Parts that a panel can be cut into for `count` shares: rows of tiles of one image.
pub(super) fn parts(extent: &Extent, count: usize) -> usize {
    if extent.images == 1 && extent.own_tiles() == extent.tiles() && (2..=MOST_CUT).contains(&count) {
        extent.rows
    } else {
        1
    }
}

/// What share `index` of `count` has of `panels` panels: the rest of one that it shares with the
/// share before, whole ones, and the beginning of one that it shares with the next.
pub(super) fn pieces(extent: &Extent, panels: usize, (index, count): (usize, usize)) -> impl Iterator<Item = Piece> {
    let (parts, all) = (parts(extent, count), extent.all_rows());
    let Range { start, end } = share(panels * parts, count, index);
    let piece = |panels: Range<usize>, of_panel: Range<usize>| {
        let rows = if of_panel.len() == parts { all.clone() } else { of_panel.clone() };
        (!panels.is_empty() && !of_panel.is_empty()).then_some(Piece { panels, rows })
    };
    let (first, last) = (start / parts, end / parts);
    let pieces = if first == last {
        [piece(first..first + 1, start % parts..end % parts), None, None]
    } else {
        let whole = start.div_ceil(parts);
        [piece(first..whole, start % parts..parts), piece(whole..last, 0..parts), piece(last..last + 1, 0..end % parts)]
    };
    pieces.into_iter().flatten()
}

/// The rows of the pieces of all shares that are not all rows.
pub(super) fn cuts(extent: &Extent, panels: usize, count: usize) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    if parts(extent, count) > 1 {
        for piece in (0..count).flat_map(|index| pieces(extent, panels, (index, count))) {
            if piece.rows != extent.all_rows() && !cuts.contains(&piece.rows) {
                cuts.push(piece.rows);
            }
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_each_panel_is_in_one_share_and_shares_are_even() {
        for (images, rows, skipped) in [(1, 4, 0), (1, 1, 0), (1, 7, 0), (3, 2, 0), (1, 4, 2)] {
            let extent =
                Extent { images, rows, columns: 3, input_rows: rows, input_columns: 3, spare: 0, skipped, left: 0 };
            for (panels, count) in [(1, 1), (5, 2), (4, 2), (3, 4), (1, 3), (7, 16), (2, 65)] {
                let parts = parts(&extent, count);
                let mut seen = alloc::vec![0; panels * images * rows];
                let cuts = cuts(&extent, panels, count);
                for index in 0..count {
                    let mut own = 0;
                    for piece in pieces(&extent, panels, (index, count)) {
                        assert!(piece.rows == extent.all_rows() || cuts.contains(&piece.rows));
                        for panel in piece.panels.clone() {
                            piece.rows.clone().for_each(|row| seen[panel * images * rows + row] += 1);
                            own += piece.rows.len();
                        }
                    }
                    let even = panels * parts / count * images * rows / parts;
                    assert!((even..=even + images * rows / parts).contains(&own), "{own} for {even}, {extent:?}");
                }
                assert!(seen.iter().all(|count| *count == 1), "{extent:?}, {panels} panels in {count} shares");
            }
        }
    }
}
