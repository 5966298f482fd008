//! How the tiles of an image are cut into blocks, and the products of a block into kernel calls.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::winograd::Planes;
use convoke_kernels::{ChannelKernel, Real, RowOffsets};

use super::shape::{MOST_PADDING, Scheme, SubImage, View, spread};
use super::steps::{Segment, Steps};
use crate::lower::channel_tiles::{ChannelTiles, Rate};
use crate::machine::Machine;

/// How the tiles of an image are cut into blocks, whose sizes differ by one row of tiles, or one
/// tile, at the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Into whole rows of tiles.
    Rows,
    /// Each row into parts.
    Columns,
    /// Into tiles that follow each other, whatever the rows: a block transforms whole rows, but
    /// multiplies only its own tiles of the first one and of the last one. So threads end together
    /// that have few rows of tiles, or an odd number.
    Tiles,
}

/// The blocks of tiles of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// [Sub-images](SubImage), and those of a block: more than one only where a sub-image is a
    /// single block.
    batch: usize,
    images: usize,
    /// Rows and columns of tiles of a sub-image, the largest.
    rows: usize,
    columns: usize,
    cut: Cut,
    /// Parts that the rows, a row, or the tiles of an image are cut into.
    parts: usize,
    /// See [`Extent::spare`].
    spare: usize,
    /// Rows and columns of transformed tiles that a block has more than tiles.
    halo: [usize; 2],
}

/// A block's place in its images, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The first sub-image.
    pub(super) image: usize,
    /// The first row and column of tiles.
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) extent: Extent,
}

/// One task: a block of tiles of one group, for a share of the panels.
pub(super) struct Task<'a, T: Real> {
    /// The first [sub-image](SubImage).
    pub(super) first: usize,
    pub(super) group: usize,
    /// Slices of Y.
    pub(super) slices: Range<usize>,
    /// Which of the shares of the panels.
    pub(super) split: usize,
    pub(super) block: &'a Block<T>,
    /// The first row and column of tiles.
    pub(super) row: usize,
    pub(super) column: usize,
}

impl Blocks {
    /// Images cut into `parts`, of up to `images` images each. None where a part would have
    /// nothing, or parts cannot be had.
    pub(super) fn new<T: Real>(view: &View, scheme: &Scheme<T>, images: usize, cut: Cut, parts: usize) -> Option<Self> {
        let (rows, columns) = scheme.grid(&view.roles);
        let most = match cut {
            Cut::Rows => rows,
            Cut::Columns => columns,
            // Rows of tiles that several filters read do not lie side by side.
            Cut::Tiles if scheme.filters() > 1 => 0,
            Cut::Tiles => rows.saturating_mul(columns),
        };
        let halo = [scheme.down.count - 1, scheme.along.count - 1];
        let (batch, spare) = (SubImage::count(&view.roles, view.batch), scheme.spare(&view.roles));
        (1..=most).contains(&parts).then_some(Self { batch, images, rows, columns, cut, parts, spare, halo })
    }

    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Blocks of an image.
    pub(super) fn of_image(&self) -> usize {
        if self.cut == Cut::Columns { self.rows.saturating_mul(self.parts) } else { self.parts }
    }

    /// Images, or groups of them, that have blocks of their own.
    pub(super) fn of_batch(&self) -> usize {
        self.batch.div_ceil(self.images)
    }

    /// Block `block` of the image, or the group of images, `image`.
    pub(super) fn place(&self, image: usize, block: usize) -> Place {
        let image = image * self.images;
        let images = self.images.min(self.batch - image);
        let cut = |len: usize, part: usize| part_start(len, self.parts, part)..part_start(len, self.parts, part + 1);
        let (rows, columns, inside) = match self.cut {
            Cut::Rows => (cut(self.rows, block), 0..self.columns, None),
            Cut::Columns => {
                let row = block / self.parts;
                (row..row + 1, cut(self.columns, block % self.parts), None)
            }
            Cut::Tiles => {
                let tiles = cut(self.rows * self.columns, block);
                (tiles.start / self.columns..tiles.end.div_ceil(self.columns), 0..self.columns, Some(tiles))
            }
        };
        let whole = self.extent(images, rows.len(), columns.len(), rows.end == self.rows);
        let extent = match inside {
            Some(tiles) => Extent {
                skipped: tiles.start - rows.start * self.columns,
                left: rows.end * self.columns - tiles.end,
                ..whole
            },
            None => whole,
        };
        Place { image, row: rows.start, column: columns.start, extent }
    }

    fn extent(&self, images: usize, rows: usize, columns: usize, is_last: bool) -> Extent {
        let [down, along] = self.halo;
        let (input_rows, input_columns) = (rows + down, columns + along);
        let spare = if is_last { self.spare } else { 0 };
        Extent { images, rows, columns, input_rows, input_columns, spare, skipped: 0, left: 0 }
    }

    /// Calls `visit` with the sizes of blocks, and how many have each, until that is none; a size
    /// may come again. There are a dozen at the most, but of [`Cut::Tiles`] as many as there are
    /// blocks.
    pub(super) fn for_each_size(&self, mut visit: impl FnMut(Extent, usize) -> Option<()>) -> Option<()> {
        let Self { batch, images, rows, columns, parts, .. } = *self;
        for (images, groups) in [(images, batch / images), (batch % images, 1)] {
            let mut visit = |extent: Extent, count: usize| {
                if extent.tiles() == 0 || count * groups == 0 { Some(()) } else { visit(extent, count * groups) }
            };
            match self.cut {
                Cut::Rows => {
                    let (height, higher) = (rows / parts, rows % parts);
                    let lower = if higher == 0 { parts - 1 } else { parts - higher };
                    visit(self.extent(images, height, columns, false), lower)?;
                    visit(self.extent(images, height + 1, columns, false), higher.saturating_sub(1))?;
                    visit(self.extent(images, height + usize::from(higher > 0), columns, true), 1)?;
                }
                Cut::Columns => {
                    let (width, wider) = (columns / parts, columns % parts);
                    for (is_last, rows) in [(false, rows - 1), (true, 1)] {
                        visit(self.extent(images, 1, width, is_last), (parts - wider) * rows)?;
                        visit(self.extent(images, 1, width + 1, is_last), wider * rows)?;
                    }
                }
                Cut::Tiles => {
                    for block in 0..parts {
                        visit(Extent { images, ..self.place(0, block).extent }, 1)?;
                    }
                }
            }
        }
        Some(())
    }
}

/// Where part `part` of `parts` begins: larger parts and smaller ones take turns, and the last one
/// is a larger one.
fn part_start(len: usize, parts: usize, part: usize) -> usize {
    let more = (len % parts) as u128 * part as u128 / parts as u128;
    len / parts * part + more as usize
}

/// The sizes of a block of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// [Sub-images](SubImage) whose tiles are in the block: more than one only where a sub-image
    /// has a single block.
    pub(super) images: usize,
    /// Rows and columns of tiles that are computed, or other blocks'.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns of transformed tiles: more, where the kernel has several filters.
    pub(super) input_rows: usize,
    pub(super) input_columns: usize,
    /// Outputs of the last row of tiles that are not wanted: see
    /// [`Spare`](convoke_kernels::winograd::Spare).
    pub(super) spare: usize,
    /// Tiles of the first row, and of the last one, that are other blocks': they are transformed,
    /// and not multiplied.
    pub(super) skipped: usize,
    pub(super) left: usize,
}

impl Extent {
    /// About the elements of a task's scratch for a block: transformed tiles, the products of
    /// `together` panels, planes.
    pub(super) fn scratch_len<T: Real>(&self, scheme: &Scheme<T>, view: &View, together: usize) -> usize {
        let (lanes, values) = (scheme.kernel.lanes(), scheme.kernel.values());
        let v_plane = view.channels.saturating_mul(self.input_tiles()).saturating_add(MOST_PADDING);
        let v = v_plane.saturating_mul(values).saturating_mul(view.roles.depth.kernel);
        let products = (self.tiles().saturating_mul(2 * lanes)).saturating_add(MOST_PADDING).saturating_mul(values);
        let products = products.saturating_mul(together);
        let planes = self.input_tiles().saturating_mul(5 * values);
        v.saturating_add(products).saturating_add(planes)
    }

    /// Places of tiles: those of other blocks, too.
    pub(super) fn tiles(&self) -> usize {
        self.images * self.rows * self.columns
    }

    /// Tiles that are computed.
    pub(super) fn own_tiles(&self) -> usize {
        self.tiles() - self.skipped - self.left
    }

    /// The columns that are computed of row `row` of an image.
    pub(super) fn own_columns(&self, row: usize) -> Range<usize> {
        let begin = if row == 0 { self.skipped } else { 0 };
        let end = self.columns - if row + 1 == self.rows { self.left } else { 0 };
        begin..end
    }

    /// Transformed tiles of one image, and of all.
    pub(super) fn image_input_tiles(&self) -> usize {
        self.input_rows * self.input_columns
    }

    pub(super) fn input_tiles(&self) -> usize {
        self.images * self.image_input_tiles()
    }

    /// Where tiles of row `row`, counted over all images, begin among the transformed tiles.
    pub(super) fn row_start(&self, row: usize) -> usize {
        row / self.rows * self.image_input_tiles() + row % self.rows * self.input_columns
    }

    /// Elements from one value's transformed tiles of `channels` channels to the next.
    fn v_plane<T: Real>(&self, scheme: &Scheme<T>, channels: usize) -> usize {
        spread(channels * self.input_tiles(), scheme.kernel.lanes())
    }

    /// Elements of the transformed tiles of a slice of `channels` channels.
    pub(super) fn slot_len<T: Real>(&self, scheme: &Scheme<T>, channels: usize) -> usize {
        self.v_plane(scheme, channels) * scheme.kernel.values()
    }

    pub(super) fn planes<T: Real>(&self, scheme: &Scheme<T>) -> Planes {
        Planes::new(scheme.kernel, self.input_rows, self.input_columns, self.spare)
    }

    /// All rows of tiles, counted over all images.
    pub(super) fn all_rows(&self) -> Range<usize> {
        0..self.images * self.rows
    }

    /// How many of the rows of tiles `rows` have products of a value, and how many of them lie side
    /// by side: as many are one GEMM. All if rows are, and images. Of values that are `short`, the
    /// last row of tiles has none.
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

    /// How many GEMMs a value has in `rows`, and of how many tiles each. `rows` are all, or some
    /// where all tiles are the block's own, and of one image.
    pub(super) fn runs(&self, rows: &Range<usize>, is_short: bool) -> (usize, usize) {
        let (live, joined) = self.joined(rows, is_short);
        if live == 0 {
            return (0, 0);
        }
        // Where tiles are other blocks', there is one run: without the last row, its end is no
        // matter.
        let others = self.skipped + if is_short { 0 } else { self.left };
        (live / joined, joined * self.columns - others)
    }

    /// The tiles of a GEMM of all rows.
    pub(super) fn run_len(&self) -> usize {
        self.runs(&self.all_rows(), false).1
    }

    /// Estimated cycles of the products of one value, of `steps` steps of k, with one panel. None
    /// if a kernel is lacking.
    pub(super) fn cycles<T: Real>(
        &self,
        machine: &Machine,
        rows: &Range<usize>,
        is_short: bool,
        steps: f64,
    ) -> Option<f64> {
        let (runs, width) = self.runs(rows, is_short);
        if runs == 0 {
            return Some(0.0);
        }
        let tiles = ChannelTiles::<T>::new(machine, width)?;
        let call = |t: usize| {
            let kernel = tiles.kernel(tiles.pixels(t).len(), tiles.nr());
            machine.tile_cycles(kernel.fmas(), kernel.loads()) * steps + machine.prices().gemm_call_cycles
        };
        Some(runs as f64 * (0..tiles.count).map(call).sum::<f64>())
    }

    /// The first row of tiles of GEMM `run` of `rows`.
    fn first_row(&self, run: usize, rows: &Range<usize>, is_short: bool) -> usize {
        let row = rows.start + run * self.joined(rows, is_short).1;
        if is_short { row / (self.rows - 1) * self.rows + row % (self.rows - 1) } else { row }
    }
}

/// A GEMM of some tiles of a run: they are the pixels of a kernel.
pub(super) struct Call<T: Real> {
    /// The first tile among the transformed ones, and among the places of products.
    pub(super) v: usize,
    pub(super) tile: usize,
    /// Tiles.
    pub(super) count: usize,
    /// The kernels for wide panels and narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
}

impl<T: Real> Call<T> {
    /// The kernel for a panel of `nr` filters.
    pub(super) fn kernel(&self, nr: usize) -> &'static ChannelKernel<T> {
        self.kernels[usize::from(nr < self.kernels[0].nr())]
    }
}

/// The calls of a value: run after run, `of_run` of each.
pub(super) struct Calls<T: Real> {
    pub(super) all: Vec<Call<T>>,
    pub(super) of_run: usize,
    /// How fast they fetch filters.
    pub(super) rate: Rate,
}

impl<T: Real> Calls<T> {
    /// None if a kernel is lacking.
    fn new(machine: &Machine, extent: &Extent, rows: &Range<usize>, is_short: bool) -> Option<Self> {
        let (runs, width) = extent.runs(rows, is_short);
        if runs == 0 {
            return Some(Self { all: Vec::new(), of_run: 1, rate: Rate::new(machine) });
        }
        let tiles = ChannelTiles::new(machine, width)?;
        let mut all = Vec::with_capacity(runs * tiles.count);
        for run in 0..runs {
            let row = extent.first_row(run, rows, is_short);
            all.extend((0..tiles.count).map(|t| {
                let pixels = tiles.pixels(t);
                let kernel = |channels: usize| tiles.kernel(pixels.len(), channels);
                Call {
                    v: extent.row_start(row) + extent.skipped + pixels.start,
                    tile: row * extent.columns + extent.skipped + pixels.start,
                    count: pixels.len(),
                    kernels: [kernel(tiles.nr()), kernel(1)],
                }
            }));
        }
        Some(Self { all, of_run: tiles.count, rate: tiles.rate() })
    }

    /// The calls of values that are zero in the last row of tiles, with about `steps` steps of k:
    /// all of them, where those without it have too few tiles each.
    fn short(machine: &Machine, extent: &Extent, rows: &Range<usize>, steps: f64) -> Option<Self> {
        if extent.spare == 0 {
            return Some(Self { all: Vec::new(), of_run: 1, rate: Rate::new(machine) });
        }
        let cycles = |is_short: bool| extent.cycles::<T>(machine, rows, is_short, steps);
        Self::new(machine, extent, rows, cycles(true)? < cycles(false)?)
    }
}

/// Rows of tiles of a block, and the calls for one value and one panel of filters.
pub(super) struct RowCalls<T: Real> {
    /// Counted over all images.
    rows: Range<usize>,
    pub(super) calls: Calls<T>,
    /// The same for values that are [zero](Planes::drops) in the last row of tiles.
    pub(super) short_calls: Calls<T>,
}

/// A block of tiles with its tables.
pub(super) struct Block<T: Real> {
    pub(super) extent: Extent,
    pub(super) planes: Planes,
    /// For all rows, and for those of each [piece](super::shares::Piece) that has fewer.
    calls: Vec<RowCalls<T>>,
    /// Rows of k, for each list of [`Steps`]: for each slot of a slice (twice, so that any run of
    /// slots is one), the list's.
    pub(super) koff: Vec<RowOffsets>,
    /// Elements from one value's transformed tiles to the next.
    pub(super) v_plane: usize,
}

impl<T: Real> Block<T> {
    /// Whether offsets fit 32 bits.
    pub(super) fn fits(scheme: &Scheme<T>, extent: Extent, channels: usize, slots: usize) -> bool {
        let v_plane = channels.checked_mul(extent.input_tiles()).map(|len| spread(len, scheme.kernel.lanes()));
        let v_len =
            v_plane.and_then(|len| len.checked_mul(scheme.kernel.values())).and_then(|len| len.checked_mul(slots));
        v_len.is_some_and(|len| u32::try_from(len).is_ok())
    }

    /// For shares of which some have the rows `cuts` of a panel. None if a kernel is lacking. The
    /// block must [fit](Self::fits).
    pub(super) fn new(
        machine: &Machine,
        scheme: &Scheme<T>,
        steps: &Steps,
        extent: Extent,
        channels: usize,
        slots: usize,
        cuts: Vec<Range<usize>>,
    ) -> Option<Self> {
        let slot_len = extent.slot_len(scheme, channels);
        let offsets = |list: &Vec<Segment>| {
            let mut koff = Vec::new();
            for slot in 0..2 * slots {
                for segment in list {
                    let [i, j] = segment.filter;
                    let at = slot % slots * slot_len + i * extent.input_columns + j;
                    koff.extend(steps.channels(segment).map(|c| (at + c * extent.input_tiles()) as u32));
                }
            }
            RowOffsets::new(koff)
        };
        let steps_of_value = (steps.all() * slots) as f64 / scheme.kernel.values() as f64;
        let calls = core::iter::once(extent.all_rows()).chain(cuts).map(|rows| {
            Some(RowCalls {
                calls: Calls::new(machine, &extent, &rows, false)?,
                short_calls: Calls::short(machine, &extent, &rows, steps_of_value)?,
                rows,
            })
        });
        Some(Self {
            planes: extent.planes(scheme),
            calls: calls.collect::<Option<_>>()?,
            koff: steps.lists().iter().map(offsets).collect(),
            v_plane: extent.v_plane(scheme, channels),
            extent,
        })
    }

    /// The calls for all rows of tiles, or for those of a cut.
    pub(super) fn calls(&self, rows: &Range<usize>) -> &RowCalls<T> {
        self.calls.iter().find(|calls| calls.rows == *rows).expect("made for each cut")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All blocks that cuts of small grids have.
    fn for_each_cut(mut check: impl FnMut(&Blocks)) {
        for (rows, columns) in [(1, 1), (1, 9), (9, 1), (2, 3), (7, 7), (14, 14), (5, 4)] {
            for (cut, most) in [(Cut::Rows, rows), (Cut::Columns, columns), (Cut::Tiles, rows * columns)] {
                for parts in 1..=most {
                    for (batch, images) in
                        [(1, 1), (3, 1), (5, 2)].into_iter().filter(|batch| parts == 1 || batch.1 == 1)
                    {
                        check(&Blocks { batch, images, rows, columns, cut, parts, spare: 2, halo: [0, 0] });
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
                let extent = place.extent;
                assert_eq!(extent.spare > 0, place.row + extent.rows == blocks.rows, "{blocks:?} {place:?}");
                let mut own = 0;
                for (image, row) in (0..extent.images).flat_map(|i| (0..extent.rows).map(move |row| (i, row))) {
                    for column in extent.own_columns(row) {
                        let at = ((place.image + image) * blocks.rows + place.row + row) * blocks.columns;
                        seen[at + place.column + column] += 1;
                        own += 1;
                    }
                }
                assert_eq!(own, extent.own_tiles(), "{blocks:?} {place:?}");
                if extent.images == blocks.images {
                    (least, most) = (least.min(own), most.max(own));
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "{blocks:?} {seen:?}");
            let step = if blocks.cut == Cut::Rows { blocks.columns * blocks.images } else { 1 };
            assert!(most - least <= step, "{blocks:?}: {least} to {most}");
        });
    }

    #[test]
    fn sizes_are_those_that_blocks_have() {
        for_each_cut(|blocks| {
            let mut listed = Vec::new();
            let all = blocks.for_each_size(|extent, count| {
                listed.extend(core::iter::repeat_n(extent, count));
                Some(())
            });
            assert_eq!(all, Some(()));
            for (image, block) in (0..blocks.of_batch()).flat_map(|i| (0..blocks.of_image()).map(move |b| (i, b))) {
                let extent = blocks.place(image, block).extent;
                let at = listed.iter().position(|listed| *listed == extent);
                listed.swap_remove(at.unwrap_or_else(|| panic!("{blocks:?} lists no {extent:?}")));
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

    #[test]
    fn runs_are_of_a_blocks_own_tiles() {
        let extent =
            Extent { images: 1, rows: 3, columns: 7, input_rows: 3, input_columns: 7, spare: 2, skipped: 4, left: 2 };
        let all = extent.all_rows();
        assert_eq!(extent.runs(&all, false), (1, 15));
        assert_eq!(extent.runs(&all, true), (1, 10));
        let row = Extent { rows: 1, input_rows: 1, ..extent };
        let all = row.all_rows();
        assert_eq!((row.runs(&all, false), row.runs(&all, true)), ((1, 1), (0, 0)));
    }

    #[test]
    fn runs_are_of_the_rows_of_a_cut() {
        let extent =
            Extent { images: 1, rows: 4, columns: 3, input_rows: 4, input_columns: 3, spare: 2, skipped: 0, left: 0 };
        assert_eq!((extent.runs(&(1..3), false), extent.runs(&(1..3), true)), ((1, 6), (1, 6)));
        assert_eq!((extent.runs(&(2..4), false), extent.runs(&(2..4), true)), ((1, 6), (1, 3)));
        assert_eq!((extent.runs(&(3..4), false), extent.runs(&(3..4), true)), ((1, 3), (0, 0)));
        assert_eq!(extent.first_row(0, &(2..4), false), 2);
        // Rows that do not lie side by side.
        let apart = Extent { input_rows: 5, input_columns: 4, ..extent };
        assert_eq!((apart.runs(&(1..4), false), apart.runs(&(1..4), true)), ((3, 3), (2, 3)));
        assert_eq!(apart.first_row(1, &(1..4), true), 2);
    }
}
