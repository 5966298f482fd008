//! The direct kernels of groups of few channels: descriptors, raw arguments, and safe calls.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::simd::{LEAST_ROW, Simd};
use crate::ukernel::{ChannelStore, Epilogue, EpilogueArgs, RowOffsets, common_getters};
use crate::{Isa, Real};

/// The most taps of a tap column. A kernel with more taps is cut into columns of nearly equal
/// lengths, because each length is code of its own.
pub const MOST_TAPS: usize = 7;

/// Tap columns of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) taps: usize,
    pub(crate) columns: usize,
    /// The index of their first column in the table, and the index of that column's first weight.
    first: usize,
    weight: usize,
}

/// Where the taps read. The taps of a column lie `step` elements below one another. The table is
/// validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapTable {
    groups: Box<[Group]>,
    offsets: Box<[u32]>,
    step: usize,
    weights: usize,
    /// The greatest offset of any column's last tap.
    max: usize,
}

impl TapTable {
    /// Takes over groups of tap columns. A group is the number of taps of its columns, and the
    /// offsets of the columns. Tap k of a column is at its offset `+ k * step`; an output row is
    /// `step` elements below the one before it.
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

    /// Number of taps, which is the number of weights of a plane.
    #[must_use]
    pub fn weights(&self) -> usize {
        self.weights
    }
}

/// A column of taps of a [`DirectTable`], or two neighbouring columns with stride 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectColumn {
    /// The position in a row of X that output position 0 reads through the column.
    pub(crate) position: isize,
    /// The same position, counted from the beginning of the first channel's row.
    pub(crate) offset: isize,
    /// Whether the column to the right is summed together with this one.
    pub(crate) is_pair: bool,
}

/// Where the taps read, as a [`TapTable`], for kernels that read rows of X itself. All columns have the
/// same number of taps. The table is validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectTable {
    pub(crate) taps: usize,
    /// The stride of both axes, 1 or 2.
    pub(crate) stride: usize,
    columns: Box<[DirectColumn]>,
    /// Columns of all channels, each column of a pair counted.
    count: usize,
    width: usize,
    /// Elements from the first channel of X to the last one.
    reach: usize,
}

/// Rows, and elements of a row, are fewer than this. The product of two of them fits `isize`, so that no
/// position of a [`DirectTable`] overflows.
const MOST_PLACES: usize = 1 << (usize::BITS / 2 - 2);
/// Taps that a column of a [`DirectTable`] may have: those of common kernels, because each is code of
/// its own.
const DIRECT_TAPS: [usize; 5] = [1, 2, 3, 5, 7];
/// Columns of a [`DirectTable`], at most, so that a bit mask of columns fits `u32`.
pub(crate) const MOST_SHORT: usize = 32;

impl DirectTable {
    /// Rows of X, and of tiles of the output, are fewer than this.
    pub const MOST_ROWS: usize = MOST_PLACES;
    /// The most columns of all channels together.
    pub const MOST_COLUMNS: usize = MOST_SHORT;

    /// Makes a table for rows of `width` elements.
    ///
    /// `taps` is the number of taps of each column, one row apart. `stride` is that of both axes.
    /// `positions` has, for each column of a channel, the position that output position 0 reads.
    /// `channels` are summed, `distance` elements apart.
    ///
    /// The result is `None` if no kernel can do it: for rows of less than four elements, other
    /// taps than 1, 2, 3, 5 or 7, too many columns, sizes that are too large, or a stride other
    /// than 1, unless it is 2 and the columns are side by side.
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
        // Pairs begin at even positions: if a row begins at a cache line, no load of a pair crosses one.
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

    /// Whether the stride is 2 and there are three columns of three taps: a single one and a pair.
    fn is_three(&self) -> bool {
        self.stride == 2 && self.taps == 3 && self.count == 3 && self.columns.len() == 2
    }

    /// Whether `kernel` sums output rows of `outputs` elements row by row of X, with all weights in
    /// registers: for three columns of three taps, and rows of more than two vectors. It depends on the
    /// operator alone, as the order of sums does.
    #[must_use]
    pub fn goes_by_rows<T: Real>(&self, outputs: usize, kernel: &DepthwiseKernel<T>) -> bool {
        let is_three = self.stride == 1 && self.taps == 3 && self.count == 3;
        is_three && kernel.by_rows && outputs > 2 * kernel.lanes
    }

    /// Whether `kernel` can use the table for output rows of `outputs` elements. Only the first and the
    /// last vector of a row may read positions outside of X, and not every kernel has stride 2.
    #[must_use]
    pub fn serves<T: Real>(&self, outputs: usize, kernel: &DepthwiseKernel<T>) -> bool {
        let (vectors, step) = (outputs.div_ceil(kernel.lanes), kernel.lanes * self.stride);
        // The second vector must begin, and the last but one must end, inside the row.
        let inside = |column: &DirectColumn| {
            let position = column.position;
            step as isize + position >= 0 && ((vectors - 1) * step) as isize + position <= self.width as isize
        };
        let is_inside = outputs < MOST_PLACES && (vectors <= 2 || self.columns.iter().all(inside));
        is_inside && kernel.is_direct && (self.stride == 1 || self.taps >= 3 && self.taps <= kernel.most_strided_taps)
    }
}

/// Raw arguments of a tile kernel.
///
/// Memory: for each plane p, `w + p * w_plane` is readable for all weights of the groups. For
/// each plane p, tile t of R rows, row r < R, vector v of the output, tap k < `taps` and offset,
/// `x + p * x_plane + (t * R + r) * step + v * x_vector + offset + k * step` is readable for a
/// vector. `output` is valid as [`TileOutput`] states.
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
/// Memory, for each plane p of the output: `w + p * w_plane` is readable for all weights. There
/// are `taps` for each column, and as many for the second column of a pair; with stride 2, those
/// of even rows come first. For each of the columns, `x + p * x_plane + offset - position` is readable for
/// `height` rows of `step` elements. For p < `loose` it is also readable for `stride` more vectors behind
/// them. `output` is valid as [`TileOutput`] states.
///
/// Positions: output row r sees row `row + r * stride` through the first tap. Output position o
/// sees position `o * stride + position` of a column, and the next position too if the column is
/// a pair. Only the first and the last vector may see positions outside of X. A tile sees at most
/// `taps - 1` rows before X and as many behind it.
pub(crate) struct DirectArgs<'a, T> {
    pub(crate) input: DirectInput<'a, T>,
    pub(crate) columns: &'a [DirectColumn],
    pub(crate) mr: usize,
    /// Whether three columns are summed row by row.
    pub(crate) is_by_rows: bool,
    /// Number of weights of the taps of even rows, for stride 2.
    pub(crate) even: usize,
    pub(crate) step: usize,
    /// The distance of the first tile of the next plane from the last tile of a plane. Tiles that are
    /// summed row by row prefetch the rows of the next tile.
    pub(crate) next: usize,
    pub(crate) loose: usize,
    pub(crate) output: TileOutput<T>,
}

impl<T> DirectArgs<'_, T> {
    /// The weights of a plane.
    ///
    /// # Safety
    /// Memory: it is a plane of the output.
    #[inline(always)]
    pub(crate) unsafe fn weights(&self, plane: usize) -> *const T {
        // SAFETY: the caller's promise.
        unsafe { self.input.w.as_ptr().add(plane * self.input.w_plane) }
    }

    /// Row `row` of a plane of X, which may be padding.
    #[inline(always)]
    pub(crate) fn row(&self, plane: usize, row: isize) -> *const T {
        let plane = self.input.x.as_ptr().wrapping_add(plane * self.input.x_plane);
        plane.wrapping_offset(row * self.step as isize)
    }
}

/// Where the sums of tiles go.
///
/// Memory: `bias` is readable for `planes` elements. For each plane p, tile t < `tiles` of R
/// rows, and row r < R, `y + p * y_plane + (t * R + r) * y_row` is writable for `width` elements,
/// and `residual` is readable at the same elements unless it is null. `width` is greater than
/// `(vectors - 1) * LANES`, and at most `vectors * LANES`.
pub(crate) struct TileOutput<T> {
    pub(crate) planes: usize,
    pub(crate) tiles: usize,
    pub(crate) vectors: usize,
    pub(crate) width: usize,
    pub(crate) y: *mut T,
    pub(crate) y_plane: usize,
    pub(crate) y_row: usize,
    pub(crate) epilogue: EpilogueArgs<T>,
}

/// Raw arguments of a gathering pass.
///
/// Memory: `src + c * src_channel` is readable for `len` elements, for each c <
/// `channels <= LANES`. `slots` is readable for `len`. `dst + slot` is writable for a vector, for
/// each slot.
pub(crate) struct GatherArgs<T> {
    pub(crate) src: *const T,
    pub(crate) src_channel: usize,
    pub(crate) channels: usize,
    pub(crate) len: usize,
    pub(crate) slots: *const u32,
    pub(crate) dst: *mut T,
}

/// Raw arguments of a scattering pass.
///
/// Memory: `src` is readable for `len` vectors. `store` is valid as [`ChannelStore`] states for `len`
/// pixels and a vector of channels.
pub(crate) struct ScatterArgs<T> {
    pub(crate) src: *const T,
    pub(crate) len: usize,
    pub(crate) store: ChannelStore<T>,
}

/// Whether three columns of three taps can be summed row by row. The weights, the sums of a tile of 14
/// rows, and four more vectors have to fit the registers.
pub(crate) const fn goes_by_rows<V: Simd>() -> bool {
    V::MASKS && 9 + 14 + 4 <= V::REGISTER_FILE / V::REGISTERS
}

/// Rows of a tile with stride 2, at most. Their 8 sums hide the latency of multiply-adds, and each
/// height is code of its own.
pub(crate) const MOST_STRIDED: usize = 8;

/// The longest column, of 3 or 5 taps, that tiles of `mr` rows sum with stride 2; 0 if there is none.
/// The registers have to hold the sums, the weights of two columns, two vectors before and after their
/// split, and its two permutations.
pub(crate) const fn most_strided_taps<V: Simd>(mr: usize) -> usize {
    let registers = (V::REGISTER_FILE / V::REGISTERS).saturating_sub(mr + 6);
    match registers / 2 {
        _ if mr > MOST_STRIDED => 0,
        5.. => 5,
        3.. => 3,
        _ => 0,
    }
}

type TilesFn<T> = unsafe fn(&DepthwiseArgs<T>);
type DirectFn<T> = unsafe fn(&DirectArgs<'_, T>);

#[derive(Clone, Copy)]
pub(crate) struct DepthwiseCode<T> {
    tiles: TilesFn<T>,
    /// The same sums straight from X. `None` for vectors along channels.
    direct: Option<DirectFn<T>>,
    /// Straight from X with stride 2, for three columns of three taps and any number of rows.
    threes: Option<DirectFn<T>>,
}

/// A kernel for tiles of some rows.
pub struct DepthwiseKernel<T: 'static> {
    name: &'static str,
    mr: usize,
    lanes: usize,
    /// Elements of one weight: 1, or a whole vector.
    weight: usize,
    /// Whether the kernel reads X itself.
    is_direct: bool,
    /// Whether it can sum three columns of three taps straight from X, row by row.
    by_rows: bool,
    /// The longest column that it sums straight from X with stride 2; 0 if there is none.
    most_strided_taps: usize,
    code: Code<DepthwiseCode<T>>,
}

impl<T: Real> DepthwiseKernel<T> {
    /// A kernel of `mr` rows with vectors `V` along channels.
    pub(crate) const fn along_channels<V: Simd<Elem = T>>(
        (name, isa): (&'static str, Isa),
        mr: usize,
        tiles: TilesFn<T>,
    ) -> Self {
        let code = Code::new(isa, DepthwiseCode { tiles, direct: None, threes: None });
        let (weight, is_direct, by_rows, most_strided_taps) = (V::LANES, false, false, 0);
        Self { name, mr, lanes: V::LANES, weight, is_direct, by_rows, most_strided_taps, code }
    }

    /// A kernel of `mr` rows with vectors `V` along rows. It has stride 2 only if there are `threes`.
    pub(crate) const fn along_rows<V: Simd<Elem = T>>(
        (name, isa): (&'static str, Isa),
        mr: usize,
        (tiles, direct, threes): (TilesFn<T>, DirectFn<T>, Option<DirectFn<T>>),
    ) -> Self {
        let most_strided_taps = if threes.is_some() { most_strided_taps::<V>(mr) } else { 0 };
        let by_rows = goes_by_rows::<V>();
        let threes = if V::MASKS { threes } else { None };
        let code = Code::new(isa, DepthwiseCode { tiles, direct: Some(direct), threes });
        Self { name, mr, lanes: V::LANES, weight: 1, is_direct: true, by_rows, most_strided_taps, code }
    }
}

common_getters!(DepthwiseKernel, "Name, as `<dtype>_<op>_<MR>x<NR>`.");

/// What the tiles of a call read, and where it lies.
#[derive(Debug)]
pub struct DepthwiseInput<'a, T> {
    /// The taps. Only those of the groups `groups` are summed.
    pub taps: &'a TapTable,
    /// Indices of the groups that are summed.
    pub groups: Range<usize>,
    /// All weights of a plane, in the order of the tap table. For kernels with vectors along
    /// channels, each weight is a vector.
    pub w: &'a [T],
    /// Elements of `w` from one plane to the next.
    pub w_plane: usize,
    /// The input.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next; 0 if all planes read the same elements.
    pub x_plane: usize,
    /// Elements of `x` from one vector of a row to the next.
    pub x_vector: usize,
    /// Number of planes.
    pub planes: usize,
    /// Number of tiles below one another.
    pub tiles: usize,
}

/// What the tiles of a call read straight from X.
#[derive(Debug, Clone, Copy)]
pub struct DirectInput<'a, T> {
    /// The columns of taps.
    pub table: &'a DirectTable,
    /// The row of X that output row 0 reads through the first tap. Rows outside of X are padding.
    pub row: isize,
    /// Number of rows of X.
    pub height: usize,
    /// All weights of a plane, in the order of the columns. They must be finite. With stride 2, those of
    /// even rows come first.
    pub w: &'a [T],
    /// Elements of `w` from one plane to the next.
    pub w_plane: usize,
    /// The planes of X.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next; 0 if all planes read the same elements.
    pub x_plane: usize,
    /// Number of planes.
    pub planes: usize,
    /// Number of tiles below one another.
    pub tiles: usize,
}

/// Where the output of a call lies, from the destination's first element on.
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

    /// Computes `tiles * MR` rows of sums for each plane, adds bias and residual, clamps and
    /// stores them. There is one bias for each plane.
    ///
    /// # Panics
    /// If a slice is too short, or rows of the output begin at one element.
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
        // Without taps nothing is read. Distances may then be of any size, and products with them could
        // overflow.
        let [step, x_plane, x_vector] = match taps.weights {
            0 => [0; 3],
            _ => [taps.step, x_plane, x_vector],
        };
        assert!(taps.weights == 0 || x.len() >= read, "the input is too short");
        assert!(w.len() >= end(planes, w_plane, taps.weights.saturating_mul(self.weight)), "too few weights");
        let groups = &taps.groups[groups.clone()];
        let (first, weight) = groups.first().map_or((0, 0), |group| (group.first, group.weight));
        let args = DepthwiseArgs {
            groups: groups.as_ptr(),
            groups_len: groups.len(),
            offsets: taps.offsets[first..].as_ptr(),
            step,
            w: w[weight * self.weight..].as_ptr(),
            w_plane,
            x: x.as_ptr(),
            x_plane,
            x_vector,
            output,
        };
        // SAFETY: the assertions, here and in output(), cover the memory that DepthwiseArgs asks
        // for: taps.max bounds each offset + k * step. Dest grants the writes.
        unsafe { (self.code.on_this_cpu().tiles)(&args) };
    }

    /// Computes the sums of [`run`](Self::run) straight from rows of X.
    ///
    /// # Panics
    /// If a slice is too short, rows of the output begin at one element, the table does not serve
    /// this kernel and output, or this is a kernel with vectors along channels.
    pub fn run_direct(
        &self,
        input: &DirectInput<'_, T>,
        y: &mut Dest<'_, T>,
        output: &DepthwiseOutput,
        epilogue: &Epilogue<'_, T>,
    ) {
        let DepthwiseCode { direct, threes, .. } = self.code.on_this_cpu();
        let direct = direct.expect("a kernel along rows");
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
        // Planes with a whole vector of readable elements behind them. A kernel may load these, though
        // no stored element depends on them.
        let behind = self.lanes * table.stride;
        let spare = (x.len() - read).checked_sub(behind);
        let loose = spare.map_or(0, |spare| spare.checked_div(x_plane).map_or(planes, |last| last + 1));
        assert!(w.len() >= end(planes, w_plane, table.taps * table.count), "too few weights");
        let args = DirectArgs {
            input: *input,
            columns: &table.columns,
            mr: self.mr,
            is_by_rows: table.goes_by_rows(output.width, self),
            even: table.count * table.taps.div_ceil(2),
            step,
            next: x_plane.wrapping_sub((tiles - 1) * self.mr * table.stride * step),
            loose,
            output,
        };
        let f = threes.filter(|_| table.is_three()).unwrap_or(direct);
        // SAFETY: the assertions, here and in output(), cover the memory that DirectArgs asks
        // for. Dest grants the writes.
        unsafe { f(&args) };
    }

    /// The output's part of the arguments, or `None` if the output is empty.
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
        // Bounds the number of rows by the destination.
        assert!(is_apart(rows, row), "rows of the output begin at one element");
        let written = end(planes, plane, end(rows, row, width));
        Some(TileOutput {
            planes,
            tiles,
            vectors: width.div_ceil(self.lanes),
            width,
            y: y.as_mut_ptr(),
            y_plane: plane,
            y_row: row,
            epilogue: epilogue.checked(y, written, planes),
        })
    }
}

/// Whether no two of `count` parts, `step` apart, begin at one element.
fn is_apart(count: usize, step: usize) -> bool {
    count <= 1 || step > 0
}

/// The passes before and after the direct kernels.
#[derive(Clone, Copy)]
pub(crate) struct DepthwisePasses<T> {
    pub(crate) gather: unsafe fn(&GatherArgs<T>),
    pub(crate) scatter: unsafe fn(&ScatterArgs<T>),
}

/// The direct kernels of one ISA and type, and the passes before and after them.
pub struct DepthwiseKernels<T: 'static> {
    pub(crate) lanes: usize,
    pub(crate) rows: &'static [DepthwiseKernel<T>],
    pub(crate) narrow: &'static [DepthwiseKernel<T>],
    pub(crate) channels: &'static [DepthwiseKernel<T>],
    pub(crate) code: Code<DepthwisePasses<T>>,
}

impl<T: Real> fmt::Debug for DepthwiseKernels<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DepthwiseKernels({})", self.code.isa())
    }
}

impl<T: Real> DepthwiseKernels<T> {
    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The kernels with vectors along positions, for MR 1, 2, and so on.
    #[must_use]
    pub fn rows(&self) -> &'static [DepthwiseKernel<T>] {
        self.rows
    }

    /// As [`rows`](Self::rows), with shorter vectors, for rows that fit one of them. The list may be
    /// empty.
    #[must_use]
    pub fn narrow(&self) -> &'static [DepthwiseKernel<T>] {
        self.narrow
    }

    /// The kernels with vectors along channels, for MR 1, 2, and so on.
    #[must_use]
    pub fn channels(&self) -> &'static [DepthwiseKernel<T>] {
        self.channels
    }

    /// Gathers channels into vectors: position i of all channels, `src[c * src_channel + i]`, becomes
    /// one vector at `dst[slots[i]..]`. Lanes beyond the channels are zero.
    ///
    /// # Panics
    /// If a slice is too short, or there are more channels than lanes.
    pub fn gather(
        &self,
        src: &[T],
        src_channel: usize,
        channels: usize,
        slots: &RowOffsets,
        range: Range<usize>,
        dst: &mut [T],
    ) {
        let list = slots.rows(range);
        assert!(channels <= self.lanes, "more channels than lanes");
        if list.is_empty() || channels == 0 {
            return;
        }
        assert!(end(channels, src_channel, list.len()) <= src.len(), "the channels end beyond their slice");
        assert!(list.max.saturating_add(self.lanes) <= dst.len(), "a slot is beyond the copy");
        let (src, len, slots) = (src.as_ptr(), list.len(), list.offsets.as_ptr());
        let args = GatherArgs { src, src_channel, channels, len, slots, dst: dst.as_mut_ptr() };
        // SAFETY: the assertions cover the memory that GatherArgs asks for.
        unsafe { (self.code.on_this_cpu().gather)(&args) };
    }

    /// Scatters vectors of channels, one for each position, into rows of positions. The row of channel c
    /// goes, `+ bias + residual` and clamped, to `y[c * ldy..]`. There are as many channels as biases.
    ///
    /// # Panics
    /// If a slice is too short, or there are more channels than lanes.
    pub fn scatter(&self, src: &[T], y: &mut Dest<'_, T>, ldy: usize, epilogue: &Epilogue<'_, T>) {
        let (len, channels) = (src.len() / self.lanes, epilogue.bias.len());
        assert!(channels <= self.lanes, "more channels than lanes");
        if len == 0 || channels == 0 {
            return;
        }
        let epilogue = epilogue.checked(y, end(channels, ldy, len), channels);
        let store = ChannelStore { y: y.as_mut_ptr(), ldy, channels, epilogue };
        // SAFETY: the assertions cover the memory that ScatterArgs asks for. Dest grants the writes.
        unsafe { (self.code.on_this_cpu().scatter)(&ScatterArgs { src: src.as_ptr(), len, store }) };
    }
}
