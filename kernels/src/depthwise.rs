//! The direct kernels for few channels a group: descriptors, raw arguments, and the safe calls.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::isa::called;
use crate::simd::LEAST_ROW;
use crate::ukernel::{ChannelStore, Dest, Epilogue, name_and_isa};
use crate::{Isa, Real};

/// Taps of a tap column, at the most: longer kernels are cut into columns that are nearly equal.
pub const MOST_TAPS: usize = 7;

/// Tap columns of the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) taps: usize,
    pub(crate) columns: usize,
    /// The first of them among all columns, and its first weight among all weights.
    first: usize,
    weight: usize,
}

/// Where the taps read: runs of taps that lie `step` elements below one another. Validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapTable {
    groups: Box<[Group]>,
    offsets: Box<[u32]>,
    step: usize,
    weights: usize,
    /// The offset of the last tap of any column, at the most.
    max: usize,
}

impl TapTable {
    /// Takes over groups of tap columns, each the number of its columns' taps and the columns'
    /// offsets. Tap k of a column is at its offset `+ k * step`, and an output row is `step` below
    /// the one before it.
    ///
    /// # Panics
    /// If a column has no tap or more than [`MOST_TAPS`], or if offsets leave the address space.
    #[must_use]
    pub fn new(list: &[(usize, Vec<u32>)], step: usize) -> Self {
        let (mut groups, mut offsets, mut weights, mut max) = (Vec::new(), Vec::new(), 0, 0);
        for (taps, columns) in list {
            assert!((1..=MOST_TAPS).contains(taps), "a column of {taps} taps");
            groups.push(Group { taps: *taps, columns: columns.len(), first: offsets.len(), weight: weights });
            offsets.extend_from_slice(columns);
            weights = taps.saturating_mul(columns.len()).saturating_add(weights);
            let last = columns.iter().copied().max().unwrap_or(0) as usize;
            let end = (taps - 1).checked_mul(step).and_then(|reach| reach.checked_add(last));
            max = max.max(end.expect("taps are within the address space"));
        }
        Self { groups: groups.into(), offsets: offsets.into(), step, weights, max }
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of taps: weights of a plane.
    #[must_use]
    pub fn weights(&self) -> usize {
        self.weights
    }
}

/// A column of taps, or with stride 2 perhaps two, of a [`DirectTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectColumn {
    /// The position in a row of X that output position 0 sees.
    pub(crate) position: isize,
    /// The same from the first channel's row on.
    pub(crate) offset: isize,
    /// Whether the column right of it belongs to it.
    pub(crate) is_pair: bool,
}

/// As a [`TapTable`], for kernels that read rows of X itself: columns of the same number of taps.
/// Validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectTable {
    taps: usize,
    /// Of both axes, 1 or 2.
    stride: usize,
    columns: Box<[DirectColumn]>,
    /// Columns of all channels: more than `columns`, where there are pairs.
    count: usize,
    width: usize,
    /// From the first channel of X to the last one.
    reach: usize,
}

/// Sizes below which no position of [`DirectTable`] overflows.
const MOST_PLACES: usize = 1 << (usize::BITS / 2 - 2);
/// Planes up to here are fetched ahead where columns are summed one after the other with stride 1:
/// measured, 28x28 gains a tenth, 112x112 loses as much.
const FETCHED_BYTES: usize = 16 << 10;
/// Taps of a column of a [`DirectTable`]: those of common kernels, as each costs code.
const DIRECT_TAPS: [usize; 5] = [1, 2, 3, 5, 7];
/// Columns of a [`DirectTable`], at the most.
pub(crate) const MOST_SHORT: usize = 32;

impl DirectTable {
    /// Rows of X, and of tiles of the output, are fewer.
    pub const MOST_ROWS: usize = MOST_PLACES;
    /// Columns of all channels, at the most.
    pub const MOST_COLUMNS: usize = MOST_SHORT;

    /// For rows of `width` elements: the number of each column's taps, the stride of both axes, for
    /// each column of a channel the position that output position 0 sees, and how many channels are
    /// summed and how far apart they are. Taps of a column are one row apart. None if that is
    /// nothing for the kernels: rows of less than four elements, other taps than 1, 2, 3, 5 or 7,
    /// too many columns, too large, or a stride other than 1, or 2 with columns side by side.
    #[must_use]
    pub fn new(
        taps: usize,
        stride: usize,
        positions: &[isize],
        (channels, distance): (usize, usize),
        width: usize,
    ) -> Option<Self> {
        let is_small = |x: usize| x < MOST_PLACES;
        let count = channels.checked_mul(positions.len())?;
        let reach = distance.checked_mul(channels.checked_sub(1)?)?;
        let fits = DIRECT_TAPS.contains(&taps) && (1..=MOST_SHORT).contains(&count);
        let fits = fits
            && width >= LEAST_ROW
            && is_small(width)
            && is_small(reach)
            && positions.iter().all(|x| is_small(x.unsigned_abs()));
        let is_row = positions.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1));
        if !fits || !(stride == 1 || stride == 2 && is_row) {
            return None;
        }
        // Pairs begin at even positions, where loads of rows that begin at a cache line cross none.
        let (single, pairs) = positions.split_at(usize::from(stride == 2 && positions[0].rem_euclid(2) == 1));
        let mut columns = Vec::new();
        for channel in 0..channels {
            columns.extend(single.chunks(1).chain(pairs.chunks(stride)).map(|pair| DirectColumn {
                position: pair[0],
                offset: (channel * distance) as isize + pair[0],
                is_pair: pair.len() == 2,
            }));
        }
        Some(Self { taps, stride, columns: columns.into(), count, width, reach })
    }

    /// Whether it has stride 2 and three columns of three taps, one alone and two that are a pair.
    fn is_three(&self) -> bool {
        self.stride == 2 && self.taps == 3 && self.count == 3 && self.columns.len() == 2
    }

    /// Whether `kernel` sums output rows of `outputs` elements row by row of X, with all weights in
    /// registers: three columns of three taps, in rows of more than two vectors. Depends on the
    /// operator alone, as the order of the sums does.
    #[must_use]
    pub fn goes_by_rows<T: Real>(&self, outputs: usize, kernel: &DepthwiseKernel<T>) -> bool {
        let is_three = self.stride == 1 && self.taps == 3 && self.count == 3;
        is_three && kernel.by_rows && outputs > 2 * kernel.lanes
    }

    /// Whether `kernel` can use it for output rows of `outputs` elements: only the first and the
    /// last vector may see positions that are not there, and not every kernel has stride 2.
    #[must_use]
    pub fn serves<T: Real>(&self, outputs: usize, kernel: &DepthwiseKernel<T>) -> bool {
        let (vectors, step) = (outputs.div_ceil(kernel.lanes), kernel.lanes * self.stride);
        // The second vector begins, and the last but one ends, inside the row.
        let inside = |column: &DirectColumn| {
            let position = column.position;
            step as isize + position >= 0 && ((vectors - 1) * step) as isize + position <= self.width as isize
        };
        let is_inside = outputs < MOST_PLACES && (vectors <= 2 || self.columns.iter().all(inside));
        is_inside && kernel.direct.is_some() && (self.stride == 1 || (kernel.strides)(self.taps))
    }
}

/// Raw arguments of a tile kernel.
///
/// Memory, for each plane p, tile t of R rows, and vector v of the output: `w + p * w_plane`
/// readable for all weights of the groups; `x + p * x_plane + (t * R + r) * step + v * x_vector +
/// offset + k * step` readable for a vector, r < R, k < taps, each offset.
pub(crate) struct DepthwiseArgs<T> {
    pub(crate) groups: *const Group,
    pub(crate) groups_len: usize,
    pub(crate) offsets: *const u32,
    pub(crate) step: usize,
    pub(crate) w: *const T,
    pub(crate) w_plane: usize,
    pub(crate) x: *const T,
    pub(crate) x_plane: usize,
    pub(crate) x_vector: usize,
    pub(crate) output: TileOutput<T>,
}

/// Raw arguments of a tile kernel that reads X itself.
///
/// Memory, for each plane p of the output: `w + p * w_plane` readable for all weights, `taps` for
/// each column, with stride 2 those of even rows first; `x + p * x_plane + offset - position` of
/// each of `columns_len` columns for `height` rows, `step` apart, of `width` elements, and for p <
/// `loose` for `stride` more vectors. Output row r sees row `row + r * stride` through the first
/// tap, and output position o sees `o * stride + position`, and one more if the column is a pair:
/// only positions of the first and the last vector may be outside; and of the rows that a tile
/// sees, at most `taps - 1` before X and behind it.
pub(crate) struct DirectArgs<T> {
    /// R.
    pub(crate) mr: usize,
    /// Whether three columns are summed row by row.
    pub(crate) is_by_rows: bool,
    pub(crate) taps: usize,
    pub(crate) stride: usize,
    pub(crate) columns: *const DirectColumn,
    pub(crate) columns_len: usize,
    /// Weights of the taps of even rows, where the stride is 2.
    pub(crate) even: usize,
    pub(crate) step: usize,
    pub(crate) w: *const T,
    pub(crate) w_plane: usize,
    /// The row of X that the first output row sees through the first tap; perhaps padding.
    pub(crate) row: isize,
    pub(crate) height: usize,
    pub(crate) x: *const T,
    pub(crate) x_plane: usize,
    /// From the last tile of a plane to the first one of the next plane.
    pub(crate) next: usize,
    /// Whether a tile whose columns are summed one after the other asks for the rows of the next
    /// one: with stride 2, and where planes are so small that the hardware does not foresee them.
    /// Tiles that go by rows always do.
    pub(crate) is_fetched_ahead: bool,
    pub(crate) loose: usize,
    pub(crate) width: usize,
    pub(crate) output: TileOutput<T>,
}

/// Memory: `bias` readable for `planes`; for each plane p, tile t < `tiles` of R rows, and row r <
/// R, `y + p * y_plane + (t * R + r) * y_row` writable (and `residual` there readable, unless null)
/// for `width` elements, which is above `(vectors - 1) * LANES` and at most `vectors * LANES`.
pub(crate) struct TileOutput<T> {
    pub(crate) planes: usize,
    pub(crate) tiles: usize,
    pub(crate) vectors: usize,
    pub(crate) width: usize,
    pub(crate) y: *mut T,
    pub(crate) y_plane: usize,
    pub(crate) y_row: usize,
    pub(crate) bias: *const T,
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
    /// Whether the bounds of the clamp are infinite.
    pub(crate) is_plain: bool,
}

/// Memory, for each plane p < `planes` and row r < `rows`: `src + p * src_plane + r * src_row`
/// readable for `width` elements; `dst + p * dst_plane + r * dst_row` writable for as many whole
/// vectors as `width` elements need, or half of them, both there and `odd` further on.
pub(crate) struct CopyArgs<T> {
    pub(crate) src: *const T,
    pub(crate) src_plane: usize,
    pub(crate) src_row: usize,
    pub(crate) planes: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) dst: *mut T,
    pub(crate) dst_plane: usize,
    pub(crate) dst_row: usize,
    pub(crate) odd: isize,
}

/// Memory: `src + c * src_channel` readable for `len` elements, c < `channels <= LANES`; `slots`
/// for `len`; `dst + slot` writable for a vector, each slot.
pub(crate) struct GatherArgs<T> {
    pub(crate) src: *const T,
    pub(crate) src_channel: usize,
    pub(crate) channels: usize,
    pub(crate) len: usize,
    pub(crate) slots: *const u32,
    pub(crate) dst: *mut T,
}

/// Whether there are two tiles the last vectors of whose rows, of `lanes` elements, fit in one.
pub(crate) fn tails_fit_in_one(width: usize, lanes: usize, tiles: usize) -> bool {
    tiles > 1 && (1..=lanes / 2).contains(&(width % lanes))
}

/// A kernel for tiles of some rows. A reference to one is the proof that it may be called.
pub struct DepthwiseKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) isa: Isa,
    pub(crate) mr: usize,
    pub(crate) lanes: usize,
    /// Elements of a weight: 1, or a vector.
    pub(crate) weight: usize,
    pub(crate) f: unsafe fn(&DepthwiseArgs<T>),
    /// The same straight from X, for kernels along rows.
    pub(crate) direct: Option<unsafe fn(&DirectArgs<T>)>,
    /// The same with stride 2 for three columns of three taps; for any number of rows.
    pub(crate) threes: Option<unsafe fn(&DirectArgs<T>)>,
    /// Whether `direct` can sum three columns row by row.
    pub(crate) by_rows: bool,
    /// Whether two tiles share the last vectors of their rows where each fills half of it at the
    /// most.
    pub(crate) halves: bool,
    /// Whether `direct` has stride 2 for columns of so many taps.
    pub(crate) strides: fn(usize) -> bool,
}

impl<T: 'static> DepthwiseKernel<T> {
    /// The same to be read, and not to be called.
    pub(crate) const fn description(&self) -> Self {
        let called_directly: Option<unsafe fn(&DirectArgs<T>)> = Some(|_| called());
        let direct = if self.direct.is_some() { called_directly } else { None };
        let threes = if self.threes.is_some() { called_directly } else { None };
        Self { f: |_| called(), direct, threes, ..*self }
    }
}

name_and_isa!(DepthwiseKernel, "Name, as `<dtype>_<op>_<MR>x<NR>`.");

/// What the tiles of a call read, and how they lie.
#[derive(Debug)]
pub struct DepthwiseInput<'a, T> {
    /// The taps, of which those of the groups `groups` are summed.
    pub taps: &'a TapTable,
    /// Which groups.
    pub groups: Range<usize>,
    /// All weights of a plane, in the order of the tap table; each is a vector for kernels along
    /// channels.
    pub w: &'a [T],
    /// Elements of `w` from one plane to the next.
    pub w_plane: usize,
    /// The input.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next; 0 where all read the same.
    pub x_plane: usize,
    /// Elements of `x` from one vector of a row to the next.
    pub x_vector: usize,
    /// Planes.
    pub planes: usize,
    /// Tiles below one another.
    pub tiles: usize,
}

/// What the tiles of a call that reads X itself read.
#[derive(Debug)]
pub struct DirectInput<'a, T> {
    /// The taps' columns.
    pub table: &'a DirectTable,
    /// The row of X that output row 0 sees through the first tap; beyond the first and the last row
    /// is padding.
    pub row: isize,
    /// Rows of X.
    pub height: usize,
    /// All weights of a plane, finite ones, in the order of the columns; with stride 2 those of
    /// even rows first, then those of odd rows.
    pub w: &'a [T],
    /// Elements of `w` from one plane to the next.
    pub w_plane: usize,
    /// X.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next; 0 where all read the same.
    pub x_plane: usize,
    /// Planes.
    pub planes: usize,
    /// Tiles below one another.
    pub tiles: usize,
}

/// How the output of a call lies, from the destination's first element on.
#[derive(Debug, Clone, Copy)]
pub struct DepthwiseOutput {
    /// Elements of a row.
    pub width: usize,
    /// Elements from one row of a tile to the next.
    pub row: usize,
    /// Elements from one plane to the next.
    pub plane: usize,
}

impl<T: Real> DepthwiseKernel<T> {
    /// MR: rows of the tile.
    #[must_use]
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// NR: elements of a vector.
    #[must_use]
    pub fn nr(&self) -> usize {
        self.lanes
    }

    /// Vectors of a row of `outputs` elements of `tiles` tiles below one another, on average: two
    /// tiles may share the last ones of their rows.
    #[must_use]
    pub fn vectors(&self, outputs: usize, tiles: usize) -> f64 {
        let shared = if self.halves && tails_fit_in_one(outputs, self.lanes, tiles) { tiles / 2 * 2 } else { 0 };
        outputs.div_ceil(self.lanes) as f64 - shared as f64 / (2 * tiles.max(1)) as f64
    }

    /// For each plane, `tiles * MR` rows of sums: `+ bias + residual`, clamped, stored. One bias a
    /// plane.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        input: &DepthwiseInput<'_, T>,
        y: &mut Dest<'_, T>,
        output: &DepthwiseOutput,
        epilogue: &Epilogue<'_, T>,
    ) {
        let &DepthwiseInput { taps, ref groups, w, w_plane, x, x_plane, x_vector, planes, tiles } = input;
        let Some(output) = self.output(y, output, epilogue, planes, tiles) else { return };
        let read = taps.max.saturating_add(self.lanes);
        let read = end(planes, x_plane, end(tiles * self.mr, taps.step, end(output.vectors, x_vector, read)));
        assert!(taps.weights == 0 || x.len() >= read, "the input is too short");
        assert!(w.len() >= end(planes, w_plane, taps.weights.saturating_mul(self.weight)), "too few weights");
        let groups = &taps.groups[groups.clone()];
        let (first, weight) = groups.first().map_or((0, 0), |group| (group.first, group.weight));
        let args = DepthwiseArgs {
            groups: groups.as_ptr(),
            groups_len: groups.len(),
            offsets: taps.offsets[first..].as_ptr(),
            step: taps.step,
            w: w[weight * self.weight..].as_ptr(),
            w_plane,
            x: x.as_ptr(),
            x_plane,
            x_vector,
            output,
        };
        // SAFETY: the assertions, here and in output(), cover the memory that DepthwiseArgs asks
        // for: taps.max bounds each offset + k * step; Dest grants the writes; a kernel is only
        // handed out where the CPU has its ISA.
        unsafe { (self.f)(&args) };
    }

    /// As [`run`](Self::run), straight from rows of X.
    ///
    /// # Panics
    /// If a slice is too short, the table does not serve, or this is a kernel along channels.
    pub fn run_direct(
        &self,
        input: &DirectInput<'_, T>,
        y: &mut Dest<'_, T>,
        output: &DepthwiseOutput,
        epilogue: &Epilogue<'_, T>,
    ) {
        let f = self.direct.expect("a kernel along rows");
        let &DirectInput { table, row, height, w, w_plane, x, x_plane, planes, tiles } = input;
        let Some(output) = self.output(y, output, epilogue, planes, tiles) else { return };
        let step = table.width;
        assert!(table.serves(output.width, self), "the table is not for rows of this length, or this kernel");
        let is_small = row.unsigned_abs() < MOST_PLACES && height < MOST_PLACES && tiles * self.mr < MOST_PLACES;
        assert!(is_small, "too many rows");
        let last = row + ((tiles * self.mr - 1) * table.stride) as isize;
        assert!(row > -(table.taps as isize) && last < height as isize, "more padding than a column reaches");
        let read = table.reach + height * step;
        assert!(x.len() >= end(planes, x_plane, read), "the input is too short");
        // Planes with a vector behind them that may be read, though no stored element sees it.
        let behind = self.lanes * table.stride;
        let spare = (x.len() - read).checked_sub(behind);
        let loose = spare.map_or(0, |spare| spare.checked_div(x_plane).map_or(planes, |last| last + 1));
        assert!(w.len() >= end(planes, w_plane, table.taps * table.count), "too few weights");
        let args = DirectArgs {
            mr: self.mr,
            is_by_rows: table.goes_by_rows(output.width, self),
            taps: table.taps,
            stride: table.stride,
            columns: table.columns.as_ptr(),
            columns_len: table.columns.len(),
            even: table.count * table.taps.div_ceil(2),
            step,
            w: w.as_ptr(),
            w_plane,
            row,
            height,
            x: x.as_ptr(),
            x_plane,
            next: x_plane.wrapping_sub((tiles - 1) * self.mr * table.stride * step),
            is_fetched_ahead: table.stride == 2 || (1..=FETCHED_BYTES / size_of::<T>()).contains(&x_plane),
            loose,
            width: table.width,
            output,
        };
        let f = self.threes.filter(|_| table.is_three()).unwrap_or(f);
        // SAFETY: the assertions, here and in output(), cover the memory that DirectArgs asks for;
        // Dest grants the writes; a kernel is only handed out where the CPU has its ISA.
        unsafe { f(&args) };
    }

    /// The output's part of the arguments; none if it is empty.
    fn output(
        &self,
        y: &mut Dest<'_, T>,
        output: &DepthwiseOutput,
        epilogue: &Epilogue<'_, T>,
        planes: usize,
        tiles: usize,
    ) -> Option<TileOutput<T>> {
        let &DepthwiseOutput { width, row, plane } = output;
        if planes == 0 || tiles == 0 || width == 0 {
            return None;
        }
        let rows = tiles.checked_mul(self.mr).expect("rows are within the address space");
        let written = end(planes, plane, end(rows, row, width));
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.bias.len() >= planes, "one bias a plane");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        Some(TileOutput {
            planes,
            tiles,
            vectors: width.div_ceil(self.lanes),
            width,
            y: y.as_mut_ptr(),
            y_plane: plane,
            y_row: row,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
            is_plain: epilogue.lo == T::NEG_INFINITY && epilogue.hi == T::INFINITY,
        })
    }
}

/// Where `count` parts that are `step` apart end, the last of which has `len` elements.
fn end(count: usize, step: usize, len: usize) -> usize {
    (count - 1).saturating_mul(step).saturating_add(len)
}

/// Rows that are copied: for each plane, `rows` rows of `width` elements.
#[derive(Debug, Clone, Copy)]
pub struct RowCopy {
    /// Number of planes.
    pub planes: usize,
    /// Rows of a plane.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements of the source from one plane to the next.
    pub src_plane: usize,
    /// Elements of the source from one row to the next.
    pub src_row: usize,
    /// Elements of the copy from one plane to the next.
    pub dst_plane: usize,
    /// Elements of the copy from one row to the next.
    pub dst_row: usize,
}

/// The direct kernels of an ISA and type, and the passes before and behind them. A reference is
/// the proof that they may be called.
pub struct DepthwiseKernels<T: 'static> {
    pub(crate) isa: Isa,
    pub(crate) lanes: usize,
    pub(crate) rows: &'static [DepthwiseKernel<T>],
    pub(crate) narrow: &'static [DepthwiseKernel<T>],
    pub(crate) channels: &'static [DepthwiseKernel<T>],
    pub(crate) copy: unsafe fn(&CopyArgs<T>),
    pub(crate) split: unsafe fn(&CopyArgs<T>),
    pub(crate) gather: unsafe fn(&GatherArgs<T>),
    pub(crate) scatter: unsafe fn(*const T, usize, &ChannelStore<T>),
}

impl<T: 'static> DepthwiseKernels<T> {
    /// The same to be read, and not to be called, of kernels that are
    /// [descriptions](DepthwiseKernel::description) too.
    pub(crate) const fn description(
        &self,
        rows: &'static [DepthwiseKernel<T>],
        narrow: &'static [DepthwiseKernel<T>],
        channels: &'static [DepthwiseKernel<T>],
    ) -> Self {
        Self {
            rows,
            narrow,
            channels,
            copy: |_| called(),
            split: |_| called(),
            gather: |_| called(),
            scatter: |_, _, _| called(),
            ..*self
        }
    }
}

impl<T: Real> fmt::Debug for DepthwiseKernels<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DepthwiseKernels({})", self.isa)
    }
}

impl<T: Real> DepthwiseKernels<T> {
    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The kernels with vectors along positions: MR 1, 2, ...
    #[must_use]
    pub fn rows(&self) -> &'static [DepthwiseKernel<T>] {
        self.rows
    }

    /// As [`rows`](Self::rows), with shorter vectors, for rows that fit in one of them; perhaps
    /// none.
    #[must_use]
    pub fn narrow(&self) -> &'static [DepthwiseKernel<T>] {
        self.narrow
    }

    /// The kernels with vectors along channels: MR 1, 2, ...
    #[must_use]
    pub fn channels(&self) -> &'static [DepthwiseKernel<T>] {
        self.channels
    }

    /// Copies rows. The last vector of each is filled up with zeros: the copy's rows are a whole
    /// number of vectors, at least.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn copy(&self, src: &[T], dst: &mut [T], copy: &RowCopy) {
        let len = copy.width.next_multiple_of(self.lanes);
        if let Some(args) = self.copy_args(src, dst, copy, len, 0) {
            // SAFETY: copy_args() asserted the memory that CopyArgs asks for; the CPU has the ISA,
            // as this value shows.
            unsafe { (self.copy)(&args) };
        }
    }

    /// Copies the elements of even index of each row to `dst[even..]`, and those of odd index to
    /// `dst[odd..]`, either filled up with zeros to whole vectors: as many for both.
    ///
    /// # Panics
    /// If a slice is too short, or the halves of a row overlap.
    pub fn split(&self, src: &[T], dst: &mut [T], even: usize, odd: usize, copy: &RowCopy) {
        let len = copy.width.div_ceil(2).next_multiple_of(self.lanes);
        assert!(even.abs_diff(odd) >= len, "the halves of a row overlap");
        if let Some(mut args) = self.copy_args(src, dst, copy, len, even.max(odd)) {
            args.dst = dst[even..].as_mut_ptr();
            args.odd = odd as isize - even as isize;
            // SAFETY: copy_args() asserted the memory that CopyArgs asks for, for both halves; the
            // CPU has the ISA, as this value shows.
            unsafe { (self.split)(&args) };
        }
    }

    /// The arguments, if there is anything to be copied; `len` elements of each row of `dst` are
    /// written, from `at` on at the most.
    fn copy_args(&self, src: &[T], dst: &mut [T], copy: &RowCopy, len: usize, at: usize) -> Option<CopyArgs<T>> {
        let &RowCopy { planes, rows, width, src_plane, src_row, dst_plane, dst_row } = copy;
        if planes == 0 || rows == 0 || width == 0 {
            return None;
        }
        assert!(end(planes, src_plane, end(rows, src_row, width)) <= src.len(), "the rows end beyond their slice");
        assert!(
            end(planes, dst_plane, end(rows, dst_row, len)).saturating_add(at) <= dst.len(),
            "the copy is too short"
        );
        let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
        Some(CopyArgs { src, src_plane, src_row, planes, rows, width, dst, dst_plane, dst_row, odd: 0 })
    }

    /// Makes position i of `channels` channels, `src[c * src_channel + i]`, a vector at
    /// `dst[slots[i]..]`; lanes beyond the channels are zero.
    ///
    /// # Panics
    /// If a slice is too short, or there are more channels than lanes.
    pub fn gather(
        &self,
        src: &[T],
        src_channel: usize,
        channels: usize,
        slots: &Slots,
        range: Range<usize>,
        dst: &mut [T],
    ) {
        let list = &slots.slots[range];
        assert!(channels <= self.lanes, "more channels than lanes");
        if list.is_empty() || channels == 0 {
            return;
        }
        assert!(end(channels, src_channel, list.len()) <= src.len(), "the channels end beyond their slice");
        assert!(slots.max.saturating_add(self.lanes) <= dst.len(), "a slot is beyond the copy");
        let (src, len, slots) = (src.as_ptr(), list.len(), list.as_ptr());
        let args = GatherArgs { src, src_channel, channels, len, slots, dst: dst.as_mut_ptr() };
        // SAFETY: the assertions cover the memory that GatherArgs asks for; the CPU has the ISA, as
        // this value shows.
        unsafe { (self.gather)(&args) };
    }

    /// Vectors of channels, one for each position, into rows of positions: channel c's, `+ bias +
    /// residual`, clamped, go to `y[c * ldy..]`, for as many channels as there are biases.
    ///
    /// # Panics
    /// If a slice is too short, or there are more channels than lanes.
    pub fn scatter(&self, src: &[T], y: &mut Dest<'_, T>, ldy: usize, epilogue: &Epilogue<'_, T>) {
        let (len, channels) = (src.len() / self.lanes, epilogue.bias.len());
        assert!(channels <= self.lanes, "more channels than lanes");
        if len == 0 || channels == 0 {
            return;
        }
        let written = end(channels, ldy, len);
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let store = ChannelStore {
            y: y.as_mut_ptr(),
            ldy,
            channels,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
        };
        // SAFETY: the assertions cover the memory that the pass asks for; Dest grants the writes;
        // the CPU has the ISA, as this value shows.
        unsafe { (self.scatter)(src.as_ptr(), len, &store) };
    }
}

/// Where gathered positions go; validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    slots: Box<[u32]>,
    max: usize,
}

impl Slots {
    /// Takes over a list of offsets, in elements.
    #[must_use]
    pub fn new(slots: Vec<u32>) -> Self {
        let max = slots.iter().copied().max().unwrap_or(0) as usize;
        Self { slots: slots.into(), max }
    }
}
