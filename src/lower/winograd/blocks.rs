//! How the tiles of an image are cut into blocks.

use core::ops::Range;

use convoke_kernels::Real;

use super::block_size::BlockSize;
use super::scheme::Scheme;
use super::together::Together;
use super::view::{SubImage, WinogradView};

/// What the tiles of an image are cut into. The sizes of the blocks of an image differ by one row
/// of tiles, or by one tile, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockCut {
    /// Whole rows of tiles.
    Rows,
    /// Parts of a row of tiles.
    Columns,
    /// Runs of tiles across rows. A block transforms whole rows, but multiplies only its own tiles
    /// of its first row and of its last one. So threads end together even where rows of tiles are
    /// few, or odd in number.
    Tiles,
}

/// The blocks of tiles of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileBlocks {
    /// [Sub-images](SubImage) of all images.
    batch: usize,
    /// Sub-images of a block. There is more than one only where a sub-image is a single block.
    images: usize,
    /// Rows and columns of tiles of the largest sub-image.
    rows: usize,
    columns: usize,
    cut: BlockCut,
    /// Parts that the rows of an image, a row, or the tiles of an image are cut into.
    parts: usize,
    /// See [`BlockSize::spare`].
    spare: usize,
    /// Rows and columns of transformed tiles that a block has beside those of its tiles.
    halo: [usize; 2],
}

/// A block's place in its images, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockPlace {
    /// The first sub-image.
    pub(super) image: usize,
    /// The first row and column of tiles.
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) size: BlockSize,
}

impl TileBlocks {
    /// Blocks of `images` sub-images each, which are cut into `parts`. None where an image cannot
    /// be cut so, or a part would be empty.
    pub(super) fn new<T: Real>(
        view: &WinogradView,
        scheme: &Scheme<T>,
        images: usize,
        cut: BlockCut,
        parts: usize,
    ) -> Option<Self> {
        let (rows, columns) = scheme.grid(&view.roles);
        let most = match cut {
            BlockCut::Rows => rows,
            BlockCut::Columns => columns,
            // Rows of tiles that several filters read do not lie side by side.
            BlockCut::Tiles if scheme.filters() > 1 => 0,
            BlockCut::Tiles => rows.saturating_mul(columns),
        };
        let halo = [scheme.down.count - 1, scheme.along.count - 1];
        let (batch, spare) = (SubImage::count(&view.roles, view.batch), scheme.spare(&view.roles));
        (1..=most).contains(&parts).then_some(Self { batch, images, rows, columns, cut, parts, spare, halo })
    }

    pub(super) fn cut(&self) -> BlockCut {
        self.cut
    }

    /// The number of blocks of an image.
    pub(super) fn of_image(&self) -> usize {
        if self.cut == BlockCut::Columns { self.rows.saturating_mul(self.parts) } else { self.parts }
    }

    /// The number of images, or of groups of images, that have blocks of their own.
    pub(super) fn of_batch(&self) -> usize {
        self.batch.div_ceil(self.images)
    }

    /// Block `block` of image, or group of images, `image`.
    pub(super) fn place(&self, image: usize, block: usize) -> BlockPlace {
        let image = image * self.images;
        let images = self.images.min(self.batch - image);
        let cut = |len: usize, part: usize| part_start(len, self.parts, part)..part_start(len, self.parts, part + 1);
        let (rows, columns) = match self.cut {
            BlockCut::Rows => (cut(self.rows, block), 0..self.columns),
            BlockCut::Columns => {
                let row = block / self.parts;
                (row..row + 1, cut(self.columns, block % self.parts))
            }
            BlockCut::Tiles => {
                let (row, size) = self.run(images, cut(self.rows * self.columns, block));
                return BlockPlace { image, row, column: 0, size };
            }
        };
        let size = self.size(images, rows.len(), columns.len(), rows.end == self.rows);
        BlockPlace { image, row: rows.start, column: columns.start, size }
    }

    /// The first row and the size of a block that multiplies these tiles of an image.
    fn run(&self, images: usize, tiles: Range<usize>) -> (usize, BlockSize) {
        let rows = tiles.start / self.columns..tiles.end.div_ceil(self.columns);
        let whole = self.size(images, rows.len(), self.columns, rows.end == self.rows);
        let (skipped, left) = (tiles.start - rows.start * self.columns, rows.end * self.columns - tiles.end);
        (rows.start, BlockSize { skipped, left, ..whole })
    }

    fn size(&self, images: usize, rows: usize, columns: usize, is_last: bool) -> BlockSize {
        let [down, along] = self.halo;
        let (input_rows, input_columns) = (rows + down, columns + along);
        let spare = if is_last { self.spare } else { 0 };
        BlockSize { images, rows, columns, input_rows, input_columns, spare, skipped: 0, left: 0 }
    }

    /// Calls `visit` with each size of blocks and the number of blocks that have it, until the
    /// answer is none. A size may come again. There are a dozen sizes at most, but with
    /// [`BlockCut::Tiles`] as many as blocks.
    pub(super) fn for_each_size(&self, mut visit: impl FnMut(BlockSize, usize) -> Option<()>) -> Option<()> {
        let Self { batch, images, rows, columns, parts, .. } = *self;
        for (images, groups) in [(images, batch / images), (batch % images, 1)] {
            let mut visit = |size: BlockSize, count: usize| {
                if size.tiles() == 0 || count * groups == 0 { Some(()) } else { visit(size, count * groups) }
            };
            match self.cut {
                BlockCut::Rows => {
                    let (height, higher) = (rows / parts, rows % parts);
                    let lower = if higher == 0 { parts - 1 } else { parts - higher };
                    visit(self.size(images, height, columns, false), lower)?;
                    visit(self.size(images, height + 1, columns, false), higher.saturating_sub(1))?;
                    visit(self.size(images, height + usize::from(higher > 0), columns, true), 1)?;
                }
                BlockCut::Columns => {
                    let (width, wider) = (columns / parts, columns % parts);
                    for (is_last, rows) in [(false, rows - 1), (true, 1)] {
                        visit(self.size(images, 1, width, is_last), (parts - wider) * rows)?;
                        visit(self.size(images, 1, width + 1, is_last), wider * rows)?;
                    }
                }
                BlockCut::Tiles => {
                    // As part_start has them, without its divisions.
                    let (len, longer) = (rows * columns / parts, rows * columns % parts);
                    let (mut end, mut carry) = (0, 0);
                    for _ in 0..parts {
                        carry += longer;
                        let tiles = end..end + len + usize::from(carry >= parts);
                        carry -= if carry >= parts { parts } else { 0 };
                        end = tiles.end;
                        visit(self.run(images, tiles).1, 1)?;
                    }
                }
            }
        }
        Some(())
    }

    /// The size with the most places of tiles.
    pub(super) fn largest(&self) -> Option<BlockSize> {
        let mut largest: Option<BlockSize> = None;
        self.for_each_size(|size, _| {
            if largest.is_none_or(|largest| largest.tiles() < size.tiles()) {
                largest = Some(size);
            }
            Some(())
        })?;
        largest
    }

    /// About the bytes of a task's scratch.
    pub(super) fn scratch_bytes<T: Real>(&self, view: &WinogradView, scheme: &Scheme<T>, together: Together) -> usize {
        let mut most = 0;
        self.for_each_size(|size, _| {
            most = most.max(size.scratch_len(scheme, view, together));
            Some(())
        });
        most.saturating_mul(size_of::<T>())
    }
}

/// Where part `part` of `parts` begins. Larger parts and smaller ones take turns, and the last part
/// is a larger one.
fn part_start(len: usize, parts: usize, part: usize) -> usize {
    let rest = len % parts;
    let more = match rest.checked_mul(part) {
        Some(product) => product / parts,
        None => (rest as u128 * part as u128 / parts as u128) as usize,
    };
    len / parts * part + more
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// All blocks that cuts of small grids have.
    fn for_each_cut(mut check: impl FnMut(&TileBlocks)) {
        for (rows, columns) in [(1, 1), (1, 9), (9, 1), (2, 3), (7, 7), (14, 14), (5, 4)] {
            for (cut, most) in [(BlockCut::Rows, rows), (BlockCut::Columns, columns), (BlockCut::Tiles, rows * columns)]
            {
                for parts in 1..=most {
                    for (batch, images) in
                        [(1, 1), (3, 1), (5, 2)].into_iter().filter(|batch| parts == 1 || batch.1 == 1)
                    {
                        check(&TileBlocks { batch, images, rows, columns, cut, parts, spare: 2, halo: [0, 0] });
                    }
                }
            }
        }
    }

    #[test]
    fn each_tile_is_in_one_block_and_blocks_are_even() {
        for_each_cut(|blocks| {
            let mut seen = alloc::vec![0; blocks.batch * blocks.rows * blocks.columns];
            let (mut least, mut most) = (usize::MAX, 0);
            for (image, block) in (0..blocks.of_batch()).flat_map(|i| (0..blocks.of_image()).map(move |b| (i, b))) {
                let place = blocks.place(image, block);
                let size = place.size;
                assert_eq!(size.spare > 0, place.row + size.rows == blocks.rows, "{blocks:?} {place:?}");
                let mut own = 0;
                for (image, row) in (0..size.images).flat_map(|i| (0..size.rows).map(move |row| (i, row))) {
                    for column in size.own_columns(row) {
                        let at = ((place.image + image) * blocks.rows + place.row + row) * blocks.columns;
                        seen[at + place.column + column] += 1;
                        own += 1;
                    }
                }
                assert_eq!(own, size.own_tiles(), "{blocks:?} {place:?}");
                if size.images == blocks.images {
                    (least, most) = (least.min(own), most.max(own));
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "{blocks:?} {seen:?}");
            let step = if blocks.cut == BlockCut::Rows { blocks.columns * blocks.images } else { 1 };
            assert!(most - least <= step, "{blocks:?}: {least} to {most}");
        });
    }

    #[test]
    fn sizes_are_those_that_blocks_have() {
        for_each_cut(|blocks| {
            let mut listed = Vec::new();
            let all = blocks.for_each_size(|size, count| {
                listed.extend(core::iter::repeat_n(size, count));
                Some(())
            });
            assert_eq!(all, Some(()));
            for (image, block) in (0..blocks.of_batch()).flat_map(|i| (0..blocks.of_image()).map(move |b| (i, b))) {
                let size = blocks.place(image, block).size;
                let at = listed.iter().position(|listed| *listed == size);
                listed.swap_remove(at.unwrap_or_else(|| panic!("{blocks:?} lists no {size:?}")));
            }
            assert!(listed.is_empty(), "{blocks:?} has no {listed:?}");
        });
    }

    #[test]
    fn halves_have_equally_many_rows() {
        // 14 rows in 8 bands: two threads that take half of them each have 7.
        let rows: Vec<_> = (0..8).map(|part| part_start(14, 8, part + 1) - part_start(14, 8, part)).collect();
        assert_eq!(rows, [1, 2, 2, 2, 1, 2, 2, 2]);
        assert_eq!(part_start(usize::MAX, 3, 3), usize::MAX);
    }
}
