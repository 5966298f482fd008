//! The sizes of a block of tiles, and what follows from them.

use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::winograd::Planes;

use super::runs::RunCosts;
use super::scheme::Scheme;
use super::together::Together;
use super::view::WinogradView;
use crate::machine::Work;

/// Elements that [`spread`] adds at most, beside a vector.
const MOST_PADDING: usize = 16 * 8 + 32;

/// The distance from one plane of values to the next, in elements, for planes of `len` elements.
/// Behind the last element a whole vector has room. The distance is 3 modulo 8 in cache lines of 16
/// elements, so that equal places of the planes fall into different sets of the L1 cache.
pub(super) fn spread(len: usize, lanes: usize) -> usize {
    let lines = (len + lanes).div_ceil(16);
    (lines + (11 - lines % 8) % 8) * 16
}

/// The sizes of a block of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockSize {
    /// [Sub-images](super::view::SubImage) whose tiles are in the block. There is more than one
    /// only where a sub-image is a single block.
    pub(super) images: usize,
    /// Rows and columns of tiles, with tiles of other blocks that lie in these rows.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns of transformed tiles. There are more of them where the kernel has several
    /// filters.
    pub(super) input_rows: usize,
    pub(super) input_columns: usize,
    /// Outputs of the last row of tiles that Y does not have: see
    /// [`Spare`](convoke_kernels::winograd::Spare).
    pub(super) spare: usize,
    /// Tiles of other blocks at the beginning of the first row and at the end of the last one. They
    /// are transformed, and not multiplied.
    pub(super) skipped: usize,
    pub(super) left: usize,
}

impl BlockSize {
    /// About the elements of a task's scratch for a block: transformed tiles, products, planes.
    pub(super) fn scratch_len<T: Real>(&self, scheme: &Scheme<T>, view: &WinogradView, together: Together) -> usize {
        let (lanes, values) = (scheme.kernel.lanes(), scheme.kernel.values());
        let v_plane = view.channels.saturating_mul(self.input_tiles()).saturating_add(MOST_PADDING);
        let v = v_plane.saturating_mul(values).saturating_mul(together.slots(&view.roles.depth));
        let products = (self.tiles().saturating_mul(2 * lanes)).saturating_add(MOST_PADDING).saturating_mul(values);
        let products = products.saturating_mul(together.panels).saturating_mul(together.slices);
        let planes = self.input_tiles().saturating_mul(5 * values);
        v.saturating_add(products).saturating_add(planes)
    }

    /// Places of tiles, with those of other blocks' tiles.
    pub(super) fn tiles(&self) -> usize {
        self.images * self.rows * self.columns
    }

    /// Tiles that the block multiplies.
    pub(super) fn own_tiles(&self) -> usize {
        self.tiles() - self.skipped - self.left
    }

    /// The columns of the block's own tiles in row `row` of an image.
    pub(super) fn own_columns(&self, row: usize) -> Range<usize> {
        let begin = if row == 0 { self.skipped } else { 0 };
        let end = self.columns - if row + 1 == self.rows { self.left } else { 0 };
        begin..end
    }

    /// Transformed tiles of one image.
    pub(super) fn image_input_tiles(&self) -> usize {
        self.input_rows * self.input_columns
    }

    /// Transformed tiles of all images.
    pub(super) fn input_tiles(&self) -> usize {
        self.images * self.image_input_tiles()
    }

    /// Where the tiles of a row begin among the transformed tiles. Rows are counted over all
    /// images.
    pub(super) fn row_start(&self, row: usize) -> usize {
        row / self.rows * self.image_input_tiles() + row % self.rows * self.input_columns
    }

    /// Elements from one value's transformed tiles of `channels` channels to the next value's.
    pub(super) fn v_plane<T: Real>(&self, scheme: &Scheme<T>, channels: usize) -> usize {
        spread(channels * self.input_tiles(), scheme.kernel.lanes())
    }

    /// Elements of the transformed tiles of a slice of `channels` channels.
    pub(super) fn slot_len<T: Real>(&self, scheme: &Scheme<T>, channels: usize) -> usize {
        self.v_plane(scheme, channels) * scheme.kernel.values()
    }

    /// Whether offsets into the transformed tiles of `slots` slices fit 32 bits.
    pub(super) fn fits<T: Real>(&self, scheme: &Scheme<T>, view: &WinogradView, slots: usize) -> bool {
        let v_plane = view.channels.checked_mul(self.input_tiles()).map(|len| spread(len, scheme.kernel.lanes()));
        let slot_len = v_plane.and_then(|len| len.checked_mul(scheme.kernel.values()));
        let v_len = slot_len.and_then(|len| len.checked_mul(slots));
        v_len.is_some_and(|len| u32::try_from(len).is_ok())
    }

    pub(super) fn planes<T: Real>(&self, scheme: &Scheme<T>) -> Planes {
        Planes::new(scheme.kernel, self.input_rows, self.input_columns, self.spare)
    }

    /// All rows of tiles, counted over all images.
    pub(super) fn all_rows(&self) -> Range<usize> {
        0..self.images * self.rows
    }

    /// How many of the rows of tiles `rows` have products of a value, and how many of these lie
    /// side by side, so that they are one GEMM. Values that are `short` have no products in the
    /// last row of tiles.
    fn joined(&self, rows: &Range<usize>, is_short: bool) -> (usize, usize) {
        let of_image = self.rows - usize::from(is_short);
        let live = if self.images == 1 {
            rows.end.min(of_image).saturating_sub(rows.start)
        } else {
            debug_assert_eq!(*rows, self.all_rows(), "parts are of one image");
            self.images * of_image
        };
        let joined = match (self.input_columns == self.columns, self.images) {
            (false, _) => 1,
            (true, 1) => live,
            (true, _) if is_short => of_image,
            (true, _) if self.input_rows == self.rows => live,
            (true, _) => 1,
        };
        (live, joined)
    }

    /// How many GEMMs a value has in `rows`, and how many tiles each of them has. `rows` are all
    /// rows, or some where the block has one image and owns all its tiles.
    pub(super) fn runs(&self, rows: &Range<usize>, is_short: bool) -> (usize, usize) {
        let (live, joined) = self.joined(rows, is_short);
        if live == 0 {
            return (0, 0);
        }
        // Where there are tiles of other blocks, there is one GEMM. Without the last row, the tiles
        // at its end do not count.
        let others = self.skipped + if is_short { 0 } else { self.left };
        (live / joined, joined * self.columns - others)
    }

    /// The tiles of a GEMM of all rows.
    pub(super) fn run_len(&self) -> usize {
        self.runs(&self.all_rows(), false).1
    }

    /// The work of multiplying one value by one panel, over `steps` steps of k. None if a kernel is
    /// lacking.
    pub(super) fn gemm_work<T: Real>(
        &self,
        costs: &RunCosts<'_, T>,
        rows: &Range<usize>,
        is_short: bool,
        steps: f64,
    ) -> Option<Work> {
        let (runs, width) = self.runs(rows, is_short);
        if runs == 0 {
            return Some(Work::default());
        }
        Some(costs.of(width)?.work(costs.machine, steps) * runs as f64)
    }

    /// The first row of tiles of GEMM `run` of `rows`.
    pub(super) fn first_row(&self, run: usize, rows: &Range<usize>, is_short: bool) -> usize {
        let row = rows.start + run * self.joined(rows, is_short).1;
        if is_short { row / (self.rows - 1) * self.rows + row % (self.rows - 1) } else { row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_a_blocks_own_tiles() {
        let size = BlockSize {
            images: 1,
            rows: 3,
            columns: 7,
            input_rows: 3,
            input_columns: 7,
            spare: 2,
            skipped: 4,
            left: 2,
        };
        let all = size.all_rows();
        assert_eq!(size.runs(&all, false), (1, 15));
        assert_eq!(size.runs(&all, true), (1, 10));
        let row = BlockSize { rows: 1, input_rows: 1, ..size };
        let all = row.all_rows();
        assert_eq!((row.runs(&all, false), row.runs(&all, true)), ((1, 1), (0, 0)));
    }

    #[test]
    fn runs_are_of_the_rows_of_a_cut() {
        let size = BlockSize {
            images: 1,
            rows: 4,
            columns: 3,
            input_rows: 4,
            input_columns: 3,
            spare: 2,
            skipped: 0,
            left: 0,
        };
        assert_eq!((size.runs(&(1..3), false), size.runs(&(1..3), true)), ((1, 6), (1, 6)));
        assert_eq!((size.runs(&(2..4), false), size.runs(&(2..4), true)), ((1, 6), (1, 3)));
        assert_eq!((size.runs(&(3..4), false), size.runs(&(3..4), true)), ((1, 3), (0, 0)));
        assert_eq!(size.first_row(0, &(2..4), false), 2);
        // Rows that do not lie side by side.
        let apart = BlockSize { input_rows: 5, input_columns: 4, ..size };
        assert_eq!((apart.runs(&(1..4), false), apart.runs(&(1..4), true)), ((3, 3), (2, 3)));
        assert_eq!(apart.first_row(1, &(1..4), true), 2);
    }
}
