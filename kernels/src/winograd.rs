//! Winograd kernels: descriptors, raw arguments, safe calls, and the transform of filters.
//!
//! A kernel of F(m, r) computes a block of tiles in three steps. [`input`](WinogradKernel::input)
//! transforms the rows of each channel. A GEMM for each of the tile's values multiplies the results by
//! the transformed filters. [`output`](WinogradKernel::output) transforms the products into pixels.
//! `generic/winograd.rs` has the algebra.

pub(crate) mod points;

use alloc::vec::Vec;
use core::ops::Range;

use self::points::{Points, has_single, pairs};

use crate::dest::end;
use crate::isa::Code;
use crate::simd::mask_in_row;
use crate::ukernel::{EpilogueArgs, common_getters};
use crate::{Dest, Epilogue, Real};

/// Values of a tile along an axis, at most: those of F(6, 3) and F(4, 5).
pub const MOST_VALUES: usize = 8;

/// A tile along one axis: `outputs` of an r-tap filter from `values = outputs + r - 1` inputs.
/// Both are 1 if the axis has no transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// n: values of the transformed tile, and its inputs.
    pub values: usize,
    /// m: outputs.
    pub outputs: usize,
}

impl Tile {
    /// No transform on this axis.
    pub const NONE: Self = Self { values: 1, outputs: 1 };

    /// r: taps of the filter.
    ///
    /// # Panics
    /// If there are no outputs, or more than values.
    #[must_use]
    pub const fn taps(self) -> usize {
        assert!(0 < self.outputs && self.outputs <= self.values, "no outputs, or more than values");
        self.values - self.outputs + 1
    }
}

/// The rows of the filter's transform for an n-value tile: one row for each value, with `taps`
/// factors.
///
/// The row of a point p is `[1, p, p^2, ...] / prod (p - b)` over the other finite points b. The
/// row of infinity is `[0, ..., 0, 1]`.
///
/// ```
/// // F(2, 3), as Lavin and Gray give it, up to the signs that input and filter share.
/// let g = convoke_kernels::winograd::filter_rows(4, 3);
/// assert_eq!(g, [[-1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]]);
/// ```
///
/// # Panics
/// If n is none of 1, 4, 6, 7, 8, or there are no taps, or more than n.
#[must_use]
pub fn filter_rows(values: usize, taps: usize) -> Vec<Vec<f64>> {
    if values == 1 {
        assert_eq!(taps, 1, "without a transform there is one tap");
        return alloc::vec![alloc::vec![1.0]];
    }
    assert!(matches!(values, 4 | 6 | 7 | 8), "transforms have 4, 6, 7 or 8 values");
    assert!((1..=values).contains(&taps), "no taps, or more than values");
    let points = Points::of(values);
    let powers = |scale: f64, x: f64| core::iter::successors(Some(scale), |power| Some(power * x)).take(taps).collect();
    // The factor of the single point in the product over the other finite points.
    let beside_single = |point: f64| if has_single(values) { point - points.single } else { 1.0 };
    let mut rows: Vec<Vec<_>> = alloc::vec![powers(1.0 / (points.all[0] * beside_single(0.0)), 0.0)];
    // Horner's rule for a polynomial in x^2 with the leading coefficient 1.
    let at = |coefficients: &[f64], square: f64| coefficients.iter().rev().fold(0.0, |sum, c| sum * square + c);
    for i in 0..pairs(values) {
        let square = points.squares[i];
        let others = at(&points.without[i][..pairs(values)], square);
        for point in [points.a[i], -points.a[i]] {
            rows.push(powers(1.0 / (2.0 * square * others * beside_single(point)), point));
        }
    }
    if has_single(values) {
        let point = points.single;
        rows.push(powers(1.0 / (point * at(&points.all[..=pairs(values)], point * point)), point));
    }
    rows.push((0..taps).map(|t| if t + 1 == taps { 1.0 } else { 0.0 }).collect());
    rows
}

/// Where the values of a block's tiles are, for one channel: value (i, j) of tile t is at `row(i) + j *
/// plane_len + t`.
///
/// Padded rows are split twice: by their phase down the column, so that rows of tiles follow one
/// another; and along the row into one plane for each value, so that tiles are neighbours although they
/// overlap in X. If rows are transformed without a split, the planes only hold a row of zeros and the
/// [free](Spare) rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planes {
    /// Number of padded rows, and elements of each.
    pub(crate) rows: usize,
    pub(crate) row_len: usize,
    /// The tile down and along.
    pub(crate) down: Tile,
    pub(crate) along: Tile,
    pub(crate) pitch: usize,
    pub(crate) tiles: usize,
    /// Elements from one phase of rows to the next, with room for a vector behind the last row; and from
    /// one plane to the next.
    pub(crate) phase_len: usize,
    pub(crate) plane_len: usize,
    /// Where the values of each row of the tiles begin.
    pub(crate) values: [usize; MOST_VALUES],
    /// Where rows are joined before they are split, behind the planes. `None` if they are not.
    pub(crate) joined: Option<Joined>,
    /// The room for [free](Spare) rows, behind that for joined rows. Both suffice for all blocks of at
    /// most as many columns.
    pub(crate) free_room: (usize, usize),
    /// Whether rows are so short that two of them are split at once.
    pub(crate) is_paired: bool,
    /// Whether rows are transformed without a split: rows of more tiles than half a vector, if there are
    /// masks for all of their vectors.
    pub(crate) is_straight: bool,
    pub(crate) spare: Spare,
    /// Elements of a vector of the kernel that the planes are for.
    pub(crate) lanes: usize,
}

impl Planes {
    /// The planes of `rows` x `columns` tiles for a kernel. `spare` outputs of the last row of tiles are
    /// not wanted.
    ///
    /// # Panics
    /// If there are no tiles, if the planes take more than half of the address space, or if no
    /// output of the last row is wanted.
    #[must_use]
    pub fn new<T: Real>(kernel: &WinogradKernel<T>, rows: usize, columns: usize, spare: usize) -> Self {
        let planes = Self::checked(kernel, rows, columns).expect("planes of some tiles, which fit the address space");
        Self { spare: Spare::new(kernel.down, spare), ..planes }
    }

    fn checked<T: Real>(kernel: &WinogradKernel<T>, rows: usize, columns: usize) -> Option<Self> {
        let WinogradKernel { down, along, lanes, .. } = *kernel;
        let length = |tile: Tile, tiles: usize| {
            let len = tiles.checked_sub(1)?.checked_mul(tile.outputs)?.checked_add(tile.values)?;
            (len < isize::MAX as usize).then_some(len)
        };
        let (padded_rows, row_len) = (length(down, rows)?, length(along, columns)?);
        // Phases are whole vectors, so that most loads of the tiles are aligned.
        let phase_rows = padded_rows.div_ceil(down.outputs);
        let phase_len = phase_rows.checked_mul(columns)?.checked_add(lanes)?.checked_next_multiple_of(lanes)?;
        let plane_len = phase_len.checked_mul(down.outputs)?;
        plane_len.checked_mul(along.values)?.checked_mul(2 * size_of::<T>())?;
        let mut values = [0; MOST_VALUES];
        for (i, begin) in values.iter_mut().enumerate().take(down.values) {
            *begin = i % down.outputs * phase_len + i / down.outputs * columns;
        }
        let (pitch, tiles) = (columns, rows.checked_mul(columns)?);
        let joined = |columns: usize| Joined::new(down, along, phase_rows, columns, lanes);
        let joined_room = (1..=columns.min(lanes)).rev().find_map(joined).map_or(0, |joined| joined.len());
        let begin = joined_room.checked_add(plane_len * along.values)?;
        let row_room = row_len.checked_next_multiple_of(lanes)?;
        let end = row_room.checked_mul(down.outputs - 1).and_then(|len| len.checked_add(begin))?;
        end.checked_mul(2 * size_of::<T>())?;
        Some(Self {
            rows: padded_rows,
            row_len,
            down,
            along,
            pitch,
            tiles,
            phase_len,
            plane_len,
            values,
            joined: joined(columns),
            free_room: (begin, end),
            spare: Spare::NONE,
            is_paired: along.outputs.is_multiple_of(2) && columns + (along.values - 1) / along.outputs <= lanes / 2,
            is_straight: kernel.is_straight
                && columns > lanes / 2
                && columns.div_ceil(lanes) * (along.outputs + 1) <= MASKS,
            lanes,
        })
    }

    /// The outputs of the last row of tiles that are not wanted.
    #[must_use]
    pub fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Padded rows that the tiles read.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a padded row that the tiles read.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Number of tiles.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// Elements of all planes, with room for whole vectors behind the last tile. Blocks of at most as
    /// many rows and columns of tiles need no more.
    #[must_use]
    pub fn scratch_len(&self) -> usize {
        self.free_room.1
    }

    /// Whether the planes are for a kernel with these tiles, these vectors, and the same way to
    /// transform rows, on which masks depend.
    fn is_of<T: Real>(&self, kernel: &WinogradKernel<T>) -> bool {
        let is_transformed = !self.is_straight || kernel.is_straight;
        (self.down, self.along, self.lanes) == (kernel.down, kernel.along, kernel.lanes) && is_transformed
    }
}

/// A row of X, and its factor in a combination. A factor of 0 means no row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Term {
    pub(crate) row: usize,
    pub(crate) factor: f64,
}

/// Rows of a combination, at most. Polynomials are even or odd, so that only every second row of a tile
/// occurs.
pub(crate) const MOST_TERMS: usize = MOST_VALUES / 2;

/// The last outputs of a tile down the column that are not wanted, because Y ends before them. As many
/// inputs may then take any value (they are free). They are chosen so that as many transformed values
/// vanish, whose products need not be computed.
///
/// The value at a point is the polynomial of all other points, applied to the inputs: `sum_k c[k] d[k]`.
/// As many points are kept as there are inputs left, all of them finite. Let `M(x) = sum_k m[k] x^k` be
/// the monic polynomial with these roots. The polynomial of a dropped point, infinity included, is
/// `M(x)` times a polynomial of a degree less than the number of dropped points. So all dropped values
/// vanish if `sum_k m[k] d[k + i] = 0` for each free input i: a linear recurrence for the free inputs.
///
/// For F(4, 3) with two unwanted outputs, `d[4] = 2.5 d[2] - d[0]` and `d[5] = 2.5 d[3] - d[1]` drop 0
/// and infinity. What remains is F(2, 3) at the kept points, up to factors that move from inputs to
/// filters. Its error is less than that of F(4, 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spare {
    count: usize,
    /// The coefficients m without the leading 1: one for each wanted input.
    coefficients: [f64; MOST_VALUES],
    /// The values down the column that are dropped, one bit for each.
    dropped: u32,
}

impl Spare {
    /// All outputs are wanted.
    pub const NONE: Self = Self { count: 0, coefficients: [0.0; MOST_VALUES], dropped: 0 };

    /// The last `count` outputs of a tile are not wanted.
    ///
    /// # Panics
    /// If no output is wanted, or if some output is not wanted and the tile has other than 4, 6 or
    /// 8 values, or more outputs than values.
    #[must_use]
    pub fn new(tile: Tile, count: usize) -> Self {
        if count == 0 {
            return Self::NONE;
        }
        assert!(count < tile.outputs && tile.outputs <= tile.values, "some output is wanted, of a tile that has it");
        assert!(matches!(tile.values, 4 | 6 | 8), "the points are 0, pairs and infinity");
        let (points, known, pairs) = (Points::of(tile.values), tile.values - count, pairs(tile.values));
        // The last pairs are kept, and the point 0 if the number of inputs is odd.
        let kept = pairs - known / 2..pairs;
        let mut m = [0.0; MOST_VALUES];
        let mut degree = known % 2;
        m[degree] = 1.0;
        let mut dropped = 1 << (tile.values - 1) | u32::from(known % 2 == 0);
        for pair in 0..pairs {
            if !kept.contains(&pair) {
                dropped |= 3 << (1 + 2 * pair);
                continue;
            }
            // Multiplies by x^2 - a^2.
            degree += 2;
            for k in (0..=degree).rev() {
                m[k] = if k < 2 { 0.0 } else { m[k - 2] } - points.squares[pair] * m[k];
            }
        }
        Self { count, coefficients: m, dropped }
    }

    /// The free inputs as combinations of the others, in rows of X, for the tile with the first row
    /// `first`. Rows outside of `live` are zero.
    fn terms(&self, tile: Tile, first: usize, live: &Range<usize>) -> [[Term; MOST_TERMS]; MOST_VALUES] {
        let known = tile.values - self.count;
        // Row i: the factors of the known inputs in input i.
        let mut inputs = [[0.0; MOST_VALUES]; 2 * MOST_VALUES];
        for (i, input) in inputs.iter_mut().enumerate().take(known) {
            input[i] = 1.0;
        }
        let mut terms = [[Term::default(); MOST_TERMS]; MOST_VALUES];
        for i in 0..self.count {
            let mut sum = [0.0; MOST_VALUES];
            for (m, input) in self.coefficients[..known].iter().zip(&inputs[i..]) {
                sum.iter_mut().zip(input).for_each(|(sum, factor)| *sum -= m * factor);
            }
            inputs[known + i] = sum;
            let all = sum.iter().take(known).enumerate().map(|(j, factor)| Term { row: first + j, factor: *factor });
            let some = all.filter(|term| term.factor != 0.0 && live.contains(&term.row));
            terms[i].iter_mut().zip(some).for_each(|(to, term)| *to = term);
        }
        terms
    }

    /// Whether value `value` down the column is zero in the last row of tiles.
    #[must_use]
    pub fn drops(&self, value: usize) -> bool {
        self.dropped >> value & 1 == 1
    }
}

/// Vectors of a row that is joined with others, at most. Longer rows fill their own vectors.
pub(crate) const JOINED_VECTORS: usize = 2;

/// Where narrow rows are joined before they are split, because a row of few tiles would leave most lanes
/// of a vector empty.
///
/// For each phase of rows, the elements for the first `outputs` values of the tiles follow row after
/// row. Behind all phases, the elements for the other values follow in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Elements of a joined row: those for the first outputs of all its tiles.
    pub(crate) row: usize,
    /// Elements from one phase to the next; and from the first values to the others.
    pub(crate) phase: usize,
    pub(crate) half: usize,
}

impl Joined {
    /// `None` if joining saves no instructions because rows are not narrow enough, if there is only one
    /// row, or if a tile has more values than twice its outputs.
    fn new(down: Tile, along: Tile, phase_rows: usize, columns: usize, lanes: usize) -> Option<Self> {
        let (m, n) = (along.outputs, along.values);
        if phase_rows < 2 || m < 2 || n > 2 * m || columns > tiles_of_a_vector(lanes, along) {
            return None;
        }
        let row = columns * m;
        if row > JOINED_VECTORS * lanes {
            return None;
        }
        // Loads, permutations and stores of a row that is split alone, and of one that is joined. The
        // latter cost a quarter more, because their loads wait for stores that they overlap.
        let apart = m * m + n + (n - m);
        let together = 4 * row.div_ceil(lanes) + (columns * (2 * m + n + n * (m - 1))).div_ceil(lanes);
        if 4 * apart < 5 * together {
            return None;
        }
        // Vectors of joined tiles are read whole, also the last one.
        let phase = phase_rows.checked_mul(row)?.checked_add(lanes * m)?;
        Some(Self { row, phase, half: phase.checked_mul(down.outputs).filter(|len| *len < isize::MAX as usize)? })
    }

    fn len(&self) -> usize {
        2 * self.half
    }
}

/// Which of the padded rows and elements are not padding, for all channels.
#[derive(Debug, Clone, PartialEq)]
pub struct Border {
    pub(crate) rows: Range<usize>,
    pub(crate) elements: Range<usize>,
    pub(crate) shape: Planes,
    pub(crate) masks: [u32; MASKS],
    /// The first row that only [spare](Spare) outputs read, and the combinations for this row and those
    /// after it.
    pub(crate) free: usize,
    pub(crate) extended: [[Term; MOST_TERMS]; MOST_VALUES],
}

impl Border {
    /// The border of one block's planes.
    ///
    /// # Panics
    /// If there are more rows or elements than the tiles read.
    #[must_use]
    pub fn new<T: Real>(
        kernel: &WinogradKernel<T>,
        shape: &Planes,
        rows: Range<usize>,
        elements: Range<usize>,
    ) -> Self {
        assert!(shape.is_of(kernel), "planes of another kernel");
        assert!(rows.end <= shape.rows && elements.end <= shape.row_len, "more rows or elements than the tiles read");
        let is_empty = rows.is_empty() || elements.is_empty();
        let (rows, elements) = if is_empty { (0..0, 0..0) } else { (rows, elements) };
        let (outputs, lanes) = (kernel.along.outputs, kernel.lanes);
        let step = tiles_of_a_vector(lanes, kernel.along);
        let mut masks = [0; MASKS];
        if shape.is_straight {
            masks = straight_masks(&elements, lanes, outputs);
        } else {
            for (i, masks) in masks.chunks_mut(outputs).enumerate() {
                for (s, mask) in masks.iter_mut().enumerate() {
                    *mask = visible_lanes(&elements, lanes, outputs * i * step + s * lanes);
                }
            }
        }
        let Spare { count, .. } = shape.spare;
        let free = shape.rows - count;
        let rows = rows.start.min(free)..rows.end.min(free);
        let tile = shape.rows - shape.down.values;
        let extended = if count == 0 { Default::default() } else { shape.spare.terms(shape.down, tile, &rows) };
        Self { masks, rows, elements, shape: *shape, free, extended }
    }
}

/// Masks that are kept for all rows and channels: enough for rows of usual width.
pub(crate) const MASKS: usize = 40;

/// Tiles of a row that one step of `split` completes. Planes beyond the first `outputs` hold the same
/// elements a tile or two further on, so that as many lanes of a vector are of no use.
pub(crate) const fn tiles_of_a_vector(lanes: usize, along: Tile) -> usize {
    lanes - (along.values - 1) / along.outputs
}

/// The lanes that are not padding, in the vector that begins with element `at` of a padded row.
#[inline(always)]
pub(crate) fn visible_lanes(elements: &Range<usize>, lanes: usize, at: usize) -> u32 {
    mask_in_row(lanes, at as isize - elements.start as isize, elements.len())
}

/// The lanes that are not padding, for the one-pass transform of a row of tiles with `outputs` each.
///
/// Each vector of tiles has `outputs` masks, one for each vector of elements from the second element of
/// the first tile on. One more mask is for two other elements: its first lane for the one behind these
/// vectors, its last lane for the one before them.
fn straight_masks(elements: &Range<usize>, lanes: usize, outputs: usize) -> [u32; MASKS] {
    let mut masks = [0; MASKS];
    for (chunk, masks) in masks.chunks_exact_mut(outputs + 1).enumerate() {
        let first = chunk * outputs * lanes;
        for (vector, mask) in masks.iter_mut().enumerate() {
            *mask = visible_lanes(elements, lanes, first + 1 + vector * lanes);
        }
        masks[outputs] = masks[outputs] & 1 | u32::from(elements.contains(&first)) << (lanes - 1);
    }
    masks
}

/// Raw arguments of the computation of [free](Spare) rows, which `terms` combine.
///
/// Memory: for each row of the first `rows` terms, `x + (row - first) * row_stride` is readable for `len` elements.
/// `free + i * free_stride` is writable for as many, in whole vectors, for each i below `rows`.
pub(crate) struct ExtendArgs<'a, T> {
    pub(crate) x: *const T,
    pub(crate) row_stride: usize,
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) terms: &'a [[Term; MOST_TERMS]; MOST_VALUES],
    pub(crate) rows: usize,
    pub(crate) zero: T,
    pub(crate) free: *mut T,
    pub(crate) free_stride: usize,
}

/// Raw arguments of a split.
///
/// Memory: `x + i * row_stride + e` is readable for each i below the number of the border's rows
/// and each e below that of its elements. `planes` is writable for `Planes::scratch_len()` elements of
/// the border's shape. That covers a vector behind every place, and behind all of that the rows
/// at `free`, in whole vectors. The border belongs to this kernel. Its shape is straight only as
/// part of [`StraightArgs`].
pub(crate) struct SplitArgs<'a, T> {
    /// The first element that is not padding, of the first row that is not.
    pub(crate) x: *const T,
    pub(crate) row_stride: usize,
    /// The distance of what is prefetched from what is read.
    pub(crate) next: usize,
    pub(crate) border: &'a Border,
    pub(crate) zero: T,
    pub(crate) planes: *mut T,
    /// The [free](Spare) rows, from their first element that is not padding on, and their distance.
    pub(crate) free: *mut T,
    pub(crate) free_stride: usize,
}

impl<T> SplitArgs<'_, T> {
    /// The first element of padded row `r` that is not padding. `None` if the whole row is padding.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> Option<*const T> {
        let Border { rows, free, shape, .. } = self.border;
        if r >= rows.start && r < rows.end {
            Some(self.x.wrapping_add((r - rows.start) * self.row_stride))
        } else if r >= *free && r < shape.rows {
            Some(self.free.wrapping_add((r - free) * self.free_stride).cast_const())
        } else {
            None
        }
    }
}

/// Raw arguments of the transform of split rows.
///
/// Memory: for every value (i, j) and every t below `tiles`, rounded up to whole vectors,
/// `planes + rows[i] + j * plane_len + t` is readable, and `v + (i * NH + j) * v_plane + t` is
/// writable.
pub(crate) struct InputArgs<T> {
    pub(crate) planes: *const T,
    pub(crate) rows: [usize; MOST_VALUES],
    pub(crate) plane_len: usize,
    pub(crate) tiles: usize,
    pub(crate) v: *mut T,
    pub(crate) v_plane: usize,
}

/// Raw arguments of the transform in one pass.
///
/// Memory: `source` is valid as [`SplitArgs`] states. Its border has a straight shape with masks
/// for all vectors, and the planes have room for a row of zeros. For every value (i, j) and every
/// t below the tiles of the border's shape, `v + (i * NH + j) * v_plane + t` is writable for a
/// vector.
pub(crate) struct StraightArgs<'a, T> {
    pub(crate) source: SplitArgs<'a, T>,
    pub(crate) v: *mut T,
    pub(crate) v_plane: usize,
}

/// Raw arguments of the transform of a row of tiles with vectors along channels.
///
/// Memory: a pixel is `max(channels, LANES)` elements. For each value i down, `rows[i]` is null, or pixels are
/// readable at `rows[i] + e * step` for each e below the number of the elements `inside`. `zeros` is a readable pixel.
/// For every value xi and every t below `tiles`, `v + xi * v_plane + t * channels` is writable for a pixel.
pub(crate) struct TilePixelArgs<T> {
    pub(crate) rows: [*const T; MOST_VALUES],
    pub(crate) inside: Range<usize>,
    pub(crate) step: usize,
    pub(crate) zeros: *const T,
    pub(crate) tiles: usize,
    pub(crate) channels: usize,
    pub(crate) v: *mut T,
    pub(crate) v_plane: usize,
}

/// Raw arguments of the output transform.
///
/// Memory: `values + t * tile_step + xi * plane` of the products is readable for a vector, for each of the
/// tiles t and each xi below the number of a tile's values. `bias` is readable for `channels <= LANES`
/// elements. `bad` is writable for as many elements as there are tiles.
/// `y + c * channel_step + i * row_step + j * pixel_step` is writable for each c below `channels`, i below
/// `height` and j below `width`; `residual` is readable at the same elements unless it is null. Either the
/// channels or the pixels of a row are neighbours: one of their steps is 1. With `past_cache`, all whole vectors
/// of Y are aligned.
pub(crate) struct OutputArgs<'a, T> {
    pub(crate) products: Products<'a, T>,
    pub(crate) bad: *mut u8,
    pub(crate) pixels: Pixels,
    pub(crate) y: *mut T,
    pub(crate) epilogue: EpilogueArgs<T>,
}

/// The functions of the transforms of one kind of tile.
#[derive(Clone, Copy)]
pub(crate) struct WinogradCode<T> {
    pub(crate) extend: unsafe fn(&ExtendArgs<'_, T>),
    pub(crate) split: unsafe fn(&SplitArgs<'_, T>),
    pub(crate) input: unsafe fn(&InputArgs<T>),
    pub(crate) straight: unsafe fn(&StraightArgs<'_, T>),
    pub(crate) input_pixels: unsafe fn(&TilePixelArgs<T>),
    pub(crate) output: unsafe fn(&OutputArgs<'_, T>) -> bool,
}

/// The transforms of one kind of tile.
pub struct WinogradKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) lanes: usize,
    pub(crate) down: Tile,
    pub(crate) along: Tile,
    /// Whether the tile has a transform in one pass.
    pub(crate) is_straight: bool,
    pub(crate) code: Code<WinogradCode<T>>,
}

common_getters!(WinogradKernel, "Name, as `<dtype>_winograd_f<m>x<m>_<r>x<r>`: outputs and taps, down and along.");

/// The rows of a channel that a block of tiles reads.
#[derive(Debug, Clone)]
pub struct TileSource<'a, T> {
    /// The rows, from the first element of the first row that is not padding on.
    pub x: &'a [T],
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// The distance to the source of the next call, which is prefetched. Any number is allowed.
    pub next: usize,
}

/// The rows of X that a row of tiles reads, where channels are neighbours. A pixel is as many elements as it has
/// channels, and at least a vector.
#[derive(Debug, Clone)]
pub struct TilePixels<'a, T> {
    /// The rows, from the first pixel that is not padding on. None for a row of padding.
    pub rows: [Option<&'a [T]>; MOST_VALUES],
    /// The pixels of a padded row that are not padding.
    pub inside: Range<usize>,
    /// Elements from one pixel to the next.
    pub step: usize,
    /// The number of channels.
    pub channels: usize,
    /// A pixel of zeros.
    pub zeros: &'a [T],
}

/// The products of a row of tiles, for a vector of channels. The product of tile t and value xi
/// is at `t * tile_step + xi * plane`.
#[derive(Debug, Clone, Copy)]
pub struct Products<'a, T> {
    /// The products, from tile 0 and value 0 on.
    pub values: &'a [T],
    /// Elements from one tile to the next.
    pub tile_step: usize,
    /// Elements from one value to the next.
    pub plane: usize,
    /// Number of tiles.
    pub tiles: usize,
}

/// Where the pixels of a row of tiles go: pixel j of row i of channel c is at `c * channel_step + i * row_step + j *
/// pixel_step`.
#[derive(Debug, Clone, Copy)]
pub struct Pixels {
    /// Number of channels, at most a vector of them.
    pub channels: usize,
    /// Elements from one channel to the next.
    pub channel_step: usize,
    /// Elements from one row to the next.
    pub row_step: usize,
    /// Elements from one pixel of a row to the next. It is 1, or the channels are neighbours.
    pub pixel_step: usize,
    /// Pixels of a row, at most as many as the tiles have.
    pub width: usize,
    /// Number of rows, at most as many as a tile has.
    pub height: usize,
    /// Whether the pixels are not read soon. They are then written past the caches, if they are neighbours and
    /// aligned to vectors.
    pub past_cache: bool,
}

impl<T: Real> WinogradKernel<T> {
    /// The tile down the columns.
    #[must_use]
    pub fn down(&self) -> Tile {
        self.down
    }

    /// The tile along the rows.
    #[must_use]
    pub fn along(&self) -> Tile {
        self.along
    }

    /// Values of a tile.
    #[must_use]
    pub fn values(&self) -> usize {
        self.down.values * self.along.values
    }

    /// Transforms the tiles of one channel from its rows: value xi of tile t goes to
    /// `v[xi * v_plane + t]`, with values row by row. Padding is zero, and the inputs of
    /// [spare](Spare) outputs are computed. The call clobbers the `planes`, and elements up to a
    /// vector behind the last tile of each value.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn input(&self, source: &TileSource<'_, T>, border: &Border, planes: &mut [T], v: &mut [T], v_plane: usize) {
        let TileSource { x, row_stride, next } = *source;
        let Border { rows, elements, shape, .. } = border;
        assert!(shape.is_of(self), "the border of another kernel");
        assert!(planes.len() >= shape.scratch_len(), "the planes are too short");
        let read = end(rows.len(), row_stride, elements.len());
        assert!(read <= x.len() || rows.is_empty(), "the rows end beyond their slice");
        let written = end(self.values(), v_plane, shape.tiles + self.lanes - 1);
        assert!(written <= v.len(), "transformed tiles end beyond their slice");
        let free_stride = elements.len().next_multiple_of(self.lanes);
        let (planes, v) = (planes.as_mut_ptr(), v.as_mut_ptr());
        let free = planes.wrapping_add(shape.free_room.0);
        let code = self.code.on_this_cpu();
        let source = SplitArgs { x: x.as_ptr(), row_stride, next, border, zero: T::ZERO, planes, free, free_stride };
        if shape.spare.count > 0 {
            let (first, len, rows) = (rows.start, elements.len(), shape.spare.count);
            let (terms, zero, x) = (&border.extended, T::ZERO, x.as_ptr());
            let args = ExtendArgs { x, row_stride, first, len, terms, rows, zero, free, free_stride };
            // SAFETY: the rows of X are asserted above, and the border's terms are of these. The room behind the
            // planes is for all free rows, with all of their elements.
            unsafe { (code.extend)(&args) };
        }
        if shape.is_straight {
            // SAFETY: the memory of StraightArgs is asserted above: a row of tiles ends less than
            // a vector behind its last one. The planes have room for a row of zeros, which is two
            // vectors longer than the tiles' outputs.
            return unsafe { (code.straight)(&StraightArgs { source, v, v_plane }) };
        }
        // SAFETY: the memory of SplitArgs is asserted above; a row's last place lies a vector
        // before its phase's end.
        unsafe { (code.split)(&source) };
        let Planes { values, plane_len, tiles, .. } = *shape;
        let args = InputArgs { planes, rows: values, plane_len, tiles, v, v_plane };
        // SAFETY: the memory of InputArgs is asserted above; the last tile of the last row lies a
        // vector before its phase's end.
        unsafe { (code.input)(&args) };
    }

    /// Transforms a row of tiles with vectors along channels: value xi of channel c of tile t goes to
    /// `v[xi * v_plane + t * channels + c]`. If a vector has more lanes than there are channels, the call clobbers what
    /// follows a tile, up to the end of the vector.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn input_pixels(&self, source: &TilePixels<'_, T>, tiles: usize, v: &mut [T], v_plane: usize) {
        let TilePixels { rows, inside, step, channels, zeros } = source;
        let pixel = (*channels).max(self.lanes);
        let read = end(inside.len(), *step, pixel);
        assert!(zeros.len() >= pixel, "too few zeros");
        assert!(rows.iter().flatten().all(|row| read <= row.len()), "a pixel ends beyond its row");
        assert!(end(self.values(), v_plane, end(tiles, *channels, pixel)) <= v.len(), "tiles end beyond their slice");
        let args = TilePixelArgs {
            rows: rows.map(|row| row.map_or(core::ptr::null(), <[T]>::as_ptr)),
            inside: inside.clone(),
            step: *step,
            zeros: zeros.as_ptr(),
            tiles,
            channels: *channels,
            v: v.as_mut_ptr(),
            v_plane,
        };
        // SAFETY: the memory of TilePixelArgs is asserted above.
        unsafe { (self.code.on_this_cpu().input_pixels)(&args) }
    }

    /// Computes the last rows of a tile, which are [free](Spare), from its rows `live`. All other rows are zero.
    ///
    /// # Panics
    /// If `rows` are not those of a tile in whole vectors, or a live row is a free one.
    pub fn extend(&self, spare: &Spare, live: &Range<usize>, rows: &mut [T]) {
        let known = self.down.values - spare.count;
        let len = rows.len() / self.down.values;
        assert!(rows.len() == self.down.values * len && len.is_multiple_of(self.lanes), "rows in whole vectors");
        assert!(live.end <= known, "a live row is free");
        let (terms, x) = (&spare.terms(self.down, 0, live), rows.as_mut_ptr());
        let (first, rows, zero, free) = (0, spare.count, T::ZERO, x.wrapping_add(known * len));
        let args = ExtendArgs { x, row_stride: len, first, len, terms, rows, zero, free, free_stride: len };
        // SAFETY: all rows are those of the slice. Terms are of live rows.
        unsafe { (self.code.on_this_cpu().extend)(&args) }
    }

    /// Transforms the products of a row of tiles into pixels, adds bias and residual, clamps and stores
    /// them. Returns whether all sums were finite before the bias. `bad[t]` becomes 1 for each tile with
    /// sums that may not have been finite.
    ///
    /// # Panics
    /// If a slice is too short, or neither channels nor pixels are neighbours.
    pub fn output(
        &self,
        products: &Products<'_, T>,
        pixels: &Pixels,
        y: &mut Dest<'_, T>,
        epilogue: &Epilogue<'_, T>,
        bad: &mut [u8],
    ) -> bool {
        let Products { values, tile_step, plane, tiles } = *products;
        let Pixels { channels, channel_step, row_step, pixel_step, width, height, past_cache } = *pixels;
        if tiles == 0 || channels == 0 || width == 0 || height == 0 {
            return true;
        }
        let read = end(tiles, tile_step, end(self.values(), plane, self.lanes));
        assert!(read <= values.len(), "products end beyond their slice");
        assert!(channels <= self.lanes, "more channels than a vector has lanes");
        // It also bounds the tiles, so that the products below do not overflow.
        assert!(bad.len() >= tiles, "one mark a tile");
        assert!(height <= self.down.outputs && width <= tiles * self.along.outputs, "more pixels than the tiles have");
        assert!(width > (tiles - 1) * self.along.outputs, "tiles without pixels");
        assert!(pixel_step == 1 || channel_step == 1, "neither channels nor pixels are neighbours");
        let written = end(channels, channel_step, end(height, row_step, end(width, pixel_step, 1)));
        let epilogue = epilogue.checked(y, written, channels);
        let vector = self.lanes * size_of::<T>();
        let is_aligned = pixel_step == 1
            && self.lanes.is_multiple_of(self.along.outputs)
            && (y.as_mut_ptr() as usize).is_multiple_of(vector)
            && channel_step.is_multiple_of(self.lanes)
            && row_step.is_multiple_of(self.lanes);
        let pixels = Pixels { past_cache: past_cache && is_aligned, ..*pixels };
        let args = OutputArgs { products: *products, bad: bad.as_mut_ptr(), pixels, y: y.as_mut_ptr(), epilogue };
        // SAFETY: the memory of OutputArgs is asserted above. Dest grants the writes.
        unsafe { (self.code.on_this_cpu().output)(&args) }
    }
}
