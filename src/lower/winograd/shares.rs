//! How threads share the panels of filters of a block. Where shares are not whole panels, two
//! threads share a panel by its rows of tiles.

use alloc::vec::Vec;
use core::ops::Range;

use super::block_size::BlockSize;
use crate::exec::share;

/// The most shares for which panels are cut. Each cut is a table of calls for each size of blocks.
pub(super) const MOST_CUT: usize = 64;

/// Some panels, and the rows of tiles of a block that are multiplied by them. Rows are counted over
/// all images of the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PanelPiece {
    pub(super) panels: Range<usize>,
    pub(super) rows: Range<usize>,
}

/// The parts that a panel can be cut into for `count` shares: rows of tiles, or 1 where it cannot
/// be cut. Only a block of one image with all its tiles can.
pub(super) fn parts(size: &BlockSize, count: usize) -> usize {
    if size.images == 1 && size.own_tiles() == size.tiles() && (2..=MOST_CUT).contains(&count) { size.rows } else { 1 }
}

/// The pieces of `panels` panels that share `index` of `count` has: the rest of a panel that it has
/// in common with the share before, whole panels, and the beginning of a panel that it has in
/// common with the next share.
pub(super) fn pieces(
    size: &BlockSize,
    panels: usize,
    (index, count): (usize, usize),
) -> impl Iterator<Item = PanelPiece> {
    let (parts, all) = (parts(size, count), size.all_rows());
    let Range { start, end } = share(panels * parts, count, index);
    let piece = |panels: Range<usize>, of_panel: Range<usize>| {
        let rows = if of_panel.len() == parts { all.clone() } else { of_panel.clone() };
        (!panels.is_empty() && !of_panel.is_empty()).then_some(PanelPiece { panels, rows })
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

/// The different rows of the pieces that have less than all rows.
pub(super) fn cuts(size: &BlockSize, panels: usize, count: usize) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    if parts(size, count) > 1 {
        for piece in (0..count).flat_map(|index| pieces(size, panels, (index, count))) {
            if piece.rows != size.all_rows() && !cuts.contains(&piece.rows) {
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
            let size =
                BlockSize { images, rows, columns: 3, input_rows: rows, input_columns: 3, spare: 0, skipped, left: 0 };
            for (panels, count) in [(1, 1), (5, 2), (4, 2), (3, 4), (1, 3), (7, 16), (2, 65)] {
                let parts = parts(&size, count);
                let mut seen = alloc::vec![0; panels * images * rows];
                let cuts = cuts(&size, panels, count);
                for index in 0..count {
                    let mut own = 0;
                    for piece in pieces(&size, panels, (index, count)) {
                        assert!(piece.rows == size.all_rows() || cuts.contains(&piece.rows));
                        for panel in piece.panels.clone() {
                            piece.rows.clone().for_each(|row| seen[panel * images * rows + row] += 1);
                            own += piece.rows.len();
                        }
                    }
                    let even = panels * parts / count * images * rows / parts;
                    assert!((even..=even + images * rows / parts).contains(&own), "{own} for {even}, {size:?}");
                }
                assert!(seen.iter().all(|count| *count == 1), "{size:?}, {panels} panels in {count} shares");
            }
        }
    }
}
