//! How a layer's tiles are cut into blocks, and how much a task multiplies at a time.

use core::iter;

use convoke_kernels::Real;
use convoke_kernels::winograd::Planes;

use super::tiles::Scheme;
use super::view::WinogradView;
use crate::Axis;

/// Tiles of a block, at most: more gain nothing, and memory is limited.
pub(super) const MOST_TILES: usize = 256;
pub(super) const MOST_IMAGES: usize = 64;
/// Slices of Y in a chunk, at most: filters that are read once for so many cost little.
pub(super) const MOST_SLICES: usize = 16;
/// Elements that [`spread`] adds, at most, beside a vector.
const MOST_PADDING: usize = 16 * 8 + 32;

/// The distance of planes of `len` elements. There is room for a vector behind the last element. The
/// distance is 3 modulo 8 in cache lines of 16 elements, so that equal places of the planes fall into
/// different sets of the L1 cache.
pub(super) fn spread(len: usize, lanes: usize) -> usize {
    let lines = (len + lanes).div_ceil(16);
    (lines + (11 - lines % 8) % 8) * 16
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Blocking<T: Real> {
    pub(super) scheme: Scheme<T>,
    pub(super) blocks: TileBlocks,
    /// Parts of the panels of filters. Each part is a task of its own.
    pub(super) parts: usize,
    pub(super) chunk: Chunk,
}

impl<T: Real> Blocking<T> {
    pub(super) fn tasks(&self, view: &WinogradView) -> usize {
        let blocks = self.blocks.of_batch() * view.groups * self.blocks.of_image();
        blocks * view.roles.depth_tasks() * self.parts
    }
}

/// What a task multiplies, value by value, before it transforms products back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Panels of filters, which share a read of each value's transformed tiles.
    pub(super) panels: usize,
    /// Slices of Y, which share a read of each value's filters, and of the tiles of slices of X.
    pub(super) slices: usize,
}

impl Chunk {
    pub(super) const ONE: Self = Self { panels: 1, slices: 1 };

    /// Slots of the ring of transformed slices of X: the slices that a chunk reads, those that long
    /// strides skip included, and at most all.
    pub(super) fn slots(&self, depth: &Axis) -> usize {
        let seen = (self.slices - 1).saturating_mul(depth.stride).saturating_add(depth.kernel);
        seen.min(depth.input.max(1))
    }
}

/// The blocks of tiles of a layer: whole rows of tiles, or parts of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileBlocks {
    /// [Sub-images](super::view::SubImage) of all images.
    batch: usize,
    /// Sub-images of a block. Several only if each of them is a single block.
    images: usize,
    /// Rows and columns of tiles of the largest sub-image.
    grid: [usize; 2],
    parts: [usize; 2],
    /// See [`BlockSize::spare`].
    spare: usize,
    /// Rows and columns of transformed tiles beside those of the block's own tiles.
    halo: [usize; 2],
}

/// A block's place in its images, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockPlace {
    pub(super) image: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) size: BlockSize,
}

impl TileBlocks {
    /// Blocks of `images` sub-images, whose rows and columns of tiles are cut into `parts`. None if a
    /// part would be empty.
    pub(super) fn new<T: Real>(
        view: &WinogradView,
        scheme: &Scheme<T>,
        images: usize,
        parts: [usize; 2],
    ) -> Option<Self> {
        let grid = scheme.grid(&view.roles);
        let halo = [scheme.down.count - 1, scheme.along.count - 1];
        let (batch, spare) = (view.roles.sub_images(view.batch), scheme.spare(&view.roles));
        let is_cut = (0..2).all(|axis| (1..=grid[axis]).contains(&parts[axis]));
        is_cut.then_some(Self { batch, images, grid, parts, spare, halo })
    }

    pub(super) fn of_image(&self) -> usize {
        self.parts[0].saturating_mul(self.parts[1])
    }

    /// The number of groups of images that have blocks of their own.
    pub(super) fn of_batch(&self) -> usize {
        self.batch.div_ceil(self.images)
    }

    /// Block `block` of group `image` of images.
    pub(super) fn place(&self, image: usize, block: usize) -> BlockPlace {
        let image = image * self.images;
        let cut = |axis: usize, part: usize| {
            let start = |part: usize| part_start(self.grid[axis], self.parts[axis], part);
            start(part)..start(part + 1)
        };
        let (rows, columns) = (cut(0, block / self.parts[1]), cut(1, block % self.parts[1]));
        let images = self.images.min(self.batch - image);
        let size = self.size(images, rows.len(), columns.len(), rows.end == self.grid[0]);
        BlockPlace { image, row: rows.start, column: columns.start, size }
    }

    fn size(&self, images: usize, rows: usize, columns: usize, is_last: bool) -> BlockSize {
        BlockSize { images, rows, columns, halo: self.halo, spare: if is_last { self.spare } else { 0 } }
    }

    /// The sizes of blocks, each with its number of blocks. A size may occur twice.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (BlockSize, usize)> + use<> {
        let Self { batch, images, grid, parts, .. } = *self;
        // The last part is one of the longer ones.
        let (last, [rows, columns]) = (grid[0].div_ceil(parts[0]), [0, 1].map(|axis| lengths(grid[axis], parts[axis])));
        let inner = rows.map(|(len, count)| (len, count - usize::from(len == last), false));
        let rows = inner.into_iter().chain(iter::once((last, 1, true)));
        let blocks = *self;
        let of_image = rows.flat_map(move |(rows, n, is_last)| {
            columns.map(|(columns, m)| (blocks.size(images, rows, columns, is_last), n * m))
        });
        let of_images = move |(size, count): (BlockSize, usize)| {
            [(images, batch / images), (batch % images, 1)].map(|(images, n)| (BlockSize { images, ..size }, n * count))
        };
        of_image.flat_map(of_images).filter(|(size, count)| size.tiles() * count > 0)
    }

    pub(super) fn largest(&self) -> BlockSize {
        let len = |axis: usize| self.grid[axis].div_ceil(self.parts[axis]);
        self.size(self.images.min(self.batch), len(0), len(1), self.parts[0] == 1)
    }

    /// The bytes of a task's scratch, about: transformed tiles, products, planes.
    pub(super) fn scratch_bytes<T: Real>(&self, view: &WinogradView, scheme: &Scheme<T>, chunk: Chunk) -> usize {
        let (size, lanes, values) = (self.largest(), scheme.kernel.lanes(), scheme.kernel.values());
        let v_plane = view.channels.saturating_mul(size.input_tiles()).saturating_add(MOST_PADDING);
        let v = v_plane.saturating_mul(chunk.slots(&view.roles.depth));
        let products = size.tiles().saturating_mul(2 * lanes).saturating_add(MOST_PADDING);
        let products = products.saturating_mul(chunk.panels).saturating_mul(chunk.slices);
        let planes = size.input_tiles().saturating_mul(5);
        v.saturating_add(products).saturating_add(planes).saturating_mul(values * size_of::<T>())
    }
}

/// Where part `part` of `parts` begins. Long and short parts alternate, so that threads with equally
/// many parts have about the same work. The last part is a long one.
fn part_start(len: usize, parts: usize, part: usize) -> usize {
    let rest = len % parts;
    let more = match rest.checked_mul(part) {
        Some(product) => product / parts,
        None => (rest as u128 * part as u128 / parts as u128) as usize,
    };
    len / parts * part + more
}

/// The short and the long length of parts, each with its number.
fn lengths(len: usize, parts: usize) -> [(usize, usize); 2] {
    let (each, longer) = (len / parts, len % parts);
    if longer == 0 { [(each, parts), (each + 1, 0)] } else { [(each, parts - longer), (each + 1, longer)] }
}

/// The sizes of a block of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockSize {
    /// Sub-images of the block. Several only if each of them is a single block.
    pub(super) images: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns of transformed tiles beside these, if the kernel has several filters.
    pub(super) halo: [usize; 2],
    /// Outputs of the last row of tiles that Y lacks: see [`Spare`](convoke_kernels::winograd::Spare).
    pub(super) spare: usize,
}

impl BlockSize {
    pub(super) fn tiles(&self) -> usize {
        self.images * self.rows * self.columns
    }

    /// Rows and columns of transformed tiles.
    pub(super) fn input(&self) -> [usize; 2] {
        [self.rows + self.halo[0], self.columns + self.halo[1]]
    }

    pub(super) fn image_input_tiles(&self) -> usize {
        self.input()[0] * self.input()[1]
    }

    pub(super) fn input_tiles(&self) -> usize {
        self.images * self.image_input_tiles()
    }

    pub(super) fn padded<T: Real>(&self, scheme: &Scheme<T>) -> f64 {
        let [rows, columns] = self.input();
        scheme.down.padded(rows) * scheme.along.padded(columns)
    }

    /// Where the tiles of row `row`, counted over all images, begin among the transformed tiles.
    pub(super) fn row_start(&self, row: usize) -> usize {
        row / self.rows * self.image_input_tiles() + row % self.rows * self.input()[1]
    }

    /// Where the first transformed tile that filter (i, j) reads is.
    pub(super) fn place(&self, [i, j]: [usize; 2]) -> usize {
        i * self.input()[1] + j
    }

    /// The distance of two values' transformed tiles of `channels` channels.
    pub(super) fn v_plane<T: Real>(&self, scheme: &Scheme<T>, channels: usize) -> usize {
        spread(channels * self.input_tiles(), scheme.kernel.lanes())
    }

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
        let [rows, columns] = self.input();
        Planes::new(scheme.kernel, rows, columns, self.spare)
    }

    /// The first row of tiles of each GEMM of a value, and the rows of a GEMM: rows that are neighbours
    /// among the transformed tiles are one GEMM. Rows are counted over all images. Values that are
    /// `short` lack the last row of each image.
    pub(super) fn gemms(&self, is_short: bool) -> (impl Iterator<Item = usize> + use<>, usize) {
        let of_image = self.rows - usize::from(is_short);
        let (all, rows) = (self.images * of_image, self.rows);
        let joined = match self.halo {
            [0, 0] if !is_short => all,
            [_, 0] => of_image,
            _ => 1,
        };
        let first = (0..all).step_by(joined.max(1)).map(move |row| row / of_image * rows + row % of_image);
        (first, joined)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// All blocks that cuts of small grids have.
    fn for_each_cut(mut check: impl FnMut(&TileBlocks)) {
        for grid in [[1, 1], [1, 9], [9, 1], [2, 3], [7, 7], [14, 14], [5, 4]] {
            for parts in (1..=grid[0]).flat_map(|down| (1..=grid[1]).map(move |along| [down, along])) {
                for (batch, images) in [(1, 1), (3, 1), (5, 2)] {
                    if parts == [1, 1] || images == 1 {
                        check(&TileBlocks { batch, images, grid, parts, spare: 2, halo: [0, 0] });
                    }
                }
            }
        }
    }

    fn places(blocks: &TileBlocks) -> impl Iterator<Item = BlockPlace> {
        let numbers = (0..blocks.of_batch()).flat_map(|image| (0..blocks.of_image()).map(move |block| (image, block)));
        numbers.map(|(image, block)| blocks.place(image, block))
    }

    #[test]
    fn each_tile_is_in_one_block_and_blocks_are_even() {
        for_each_cut(|blocks| {
            let [rows, columns] = blocks.grid;
            let mut seen = vec![0; blocks.batch * rows * columns];
            for place in places(blocks) {
                let size = place.size;
                assert_eq!(size.spare > 0, place.row + size.rows == rows, "{blocks:?} {place:?}");
                assert!(size.rows.abs_diff(rows / blocks.parts[0]) <= 1, "{blocks:?} {place:?}");
                assert!(size.columns.abs_diff(columns / blocks.parts[1]) <= 1, "{blocks:?} {place:?}");
                let largest = blocks.largest();
                assert!(size.rows <= largest.rows && size.columns <= largest.columns && size.images <= largest.images);
                for (image, row) in (0..size.images).flat_map(|i| (0..size.rows).map(move |row| (i, row))) {
                    let at = ((place.image + image) * rows + place.row + row) * columns + place.column;
                    seen[at..at + size.columns].iter_mut().for_each(|count| *count += 1);
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "{blocks:?} {seen:?}");
        });
    }

    #[test]
    fn sizes_are_those_that_blocks_have() {
        for_each_cut(|blocks| {
            let mut listed: Vec<_> =
                blocks.sizes().flat_map(|(size, count)| core::iter::repeat_n(size, count)).collect();
            for BlockPlace { size, .. } in places(blocks) {
                let at = listed.iter().position(|listed| *listed == size);
                listed.swap_remove(at.unwrap_or_else(|| panic!("{blocks:?} lists no {size:?}")));
            }
            assert!(listed.is_empty(), "{blocks:?} has no {listed:?}");
        });
    }

    #[test]
    fn halves_have_equally_many_rows() {
        // 14 rows in 8 parts: two threads that take half of them each have 7.
        let rows: Vec<_> = (0..8).map(|part| part_start(14, 8, part + 1) - part_start(14, 8, part)).collect();
        assert_eq!(rows, [1, 2, 2, 2, 1, 2, 2, 2]);
        assert_eq!(part_start(usize::MAX, 3, 3), usize::MAX);
    }

    #[test]
    fn gemms_have_rows_that_lie_side_by_side() {
        let size = BlockSize { images: 2, rows: 4, columns: 3, halo: [0, 0], spare: 2 };
        let gemms = |size: BlockSize, is_short: bool| {
            let (first, rows) = size.gemms(is_short);
            (first.collect::<Vec<_>>(), rows)
        };
        assert_eq!((gemms(size, false), gemms(size, true)), ((vec![0], 8), (vec![0, 4], 3)));
        let tall = BlockSize { halo: [1, 0], ..size };
        assert_eq!(gemms(tall, false), (vec![0, 4], 4));
        let wide = BlockSize { halo: [0, 1], images: 1, ..size };
        assert_eq!((gemms(wide, false), gemms(wide, true)), ((vec![0, 1, 2, 3], 1), (vec![0, 1, 2], 1)));
        let row = BlockSize { images: 1, rows: 1, ..size };
        assert_eq!(gemms(row, true), (vec![], 0));
    }
}
