//! The direct kernels: sums over few channels, in registers over all taps, and the passes that bring X into the form they read.
//!
//! A GEMM has nothing to share among output channels here, so that the reuse is in space: a tile is a column of R output rows, one vector wide. A
//! tap column is a run of N taps below one another: its N weights are in registers, its R + N - 1 input rows are loaded once, at any alignment, and serve
//! R * N multiply-adds.
//! Two orientations share it:
//!
//! * rows: a vector is `LANES` neighbouring positions of one channel, a weight is broadcast;
//! * channels: a vector is one position of `LANES` channels, the weights are vectors. For narrow planes, and for one axis only, whose taps lie
//!   side by side: with channels as lanes they are below one another.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the accumulators are split into registers; loops over iterators do not, and spill them"
)]

use crate::Real;
use crate::depthwise::{
    CopyArgs, DepthwiseArgs, DirectArgs, DirectColumn, GatherArgs, MOST_SHORT, MOST_TAPS, TileOutput, halves,
};
use crate::simd::{LEAST_ROW, Simd, lanes_in_row};
use crate::ukernel::ChannelStore;

/// Tiles of `R` rows, over planes, tiles below one another, and vectors side by side.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn tiles<V: Simd, const R: usize, const VECTOR_WEIGHTS: bool>(args: &DepthwiseArgs<V::Elem>) {
    // SAFETY: every pointer below stays inside what DepthwiseArgs promises for these planes, tiles and vectors.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let has_halves = !VECTOR_WEIGHTS && halves_tails::<V, R>(output);
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            for tile in 0..output.tiles {
                let x = args.x.wrapping_add(plane * args.x_plane + tile * R * args.step);
                let at = plane * output.y_plane + tile * R * output.y_row;
                let is_alone = !has_halves || tile / 2 * 2 + 1 == output.tiles;
                if !is_alone && tile.is_multiple_of(2) {
                    let mut acc = [bias; R];
                    let x = x.wrapping_add((output.vectors - 1) * args.x_vector);
                    sum_groups::<V, R, false, true>(&mut acc, args, plane, x);
                    store_halves::<V, R>(&mut acc, output, at);
                }
                for vector in 0..output.vectors - usize::from(!is_alone) {
                    let mut acc = [bias; R];
                    sum_groups::<V, R, VECTOR_WEIGHTS, false>(
                        &mut acc,
                        args,
                        plane,
                        x.wrapping_add(vector * args.x_vector),
                    );
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// Adds all taps, for one vector of a tile whose input begins at `x`, or as [`sum_halves`] for two tiles.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseArgs`] states for `R`.
#[inline(always)]
unsafe fn sum_groups<V: Simd, const R: usize, const VECTOR_WEIGHTS: bool, const HALVES: bool>(
    acc: &mut [V; R],
    args: &DepthwiseArgs<V::Elem>,
    plane: usize,
    x: *const V::Elem,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut offsets = args.offsets;
        let mut w = args.w.add(plane * args.w_plane);
        for group in 0..args.groups_len {
            let group = &*args.groups.add(group);
            let (columns, step) = (group.columns, args.step);
            (offsets, w) = match group.taps {
                1 => sum::<V, R, 1, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                2 => sum::<V, R, 2, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                3 => sum::<V, R, 3, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                4 => sum::<V, R, 4, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                5 => sum::<V, R, 5, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                6 => sum::<V, R, 6, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
                _ => sum::<V, R, MOST_TAPS, VECTOR_WEIGHTS, HALVES>(acc, x, step, offsets, w, columns),
            };
        }
    }
}

/// Adds `columns` tap columns of `N` taps each to the sums; returns where offsets and weights go on.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `offsets` readable for `columns`, `w` for `columns * N` weights; for each offset, `x + offset + i * step`
/// for a vector, i < R + N - 1, or as [`sum_halves`].
#[inline(always)]
unsafe fn sum<V: Simd, const R: usize, const N: usize, const VECTOR_WEIGHTS: bool, const HALVES: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    offsets: *const u32,
    w: *const V::Elem,
    columns: usize,
) -> (*const u32, *const V::Elem) {
    let weight = if VECTOR_WEIGHTS { V::LANES } else { 1 };
    let (mut offsets, mut w) = (offsets, w);
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let end = offsets.add(columns);
        while offsets < end {
            let x = x.add(*offsets as usize);
            if HALVES {
                sum_halves::<V, R, N, false>(
                    acc,
                    x,
                    step,
                    (V::ALL >> (V::LANES / 2), &[[0; 2]; 2 * (MOST_TAPS - 1)]),
                    w,
                );
            } else {
                let mask = every_lane::<V>();
                sum_column::<V, R, N, VECTOR_WEIGHTS, false, WHOLE>(acc, x, step, (0, R + N - 1), mask, w);
            }
            w = w.add(N * weight);
            offsets = offsets.add(1);
        }
    }
    (offsets, w)
}

/// As [`tiles`] along rows, straight from X: positions that are padding are masked, and rows that are left out, which asks for finite
/// weights.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn direct<V: Simd, const R: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if goes_by_rows::<V>() && args.is_by_rows {
            let offset = |i: usize| (*args.columns.add(i)).offset;
            return direct_threes::<V, R>(args, [offset(0), offset(1), offset(2)]);
        }
        if args.stride == 2 {
            return match args.taps {
                3 if strides::<V>(R, 3) => direct_pairs::<V, R, 3>(args),
                5 if strides::<V>(R, 5) => direct_pairs::<V, R, 5>(args),
                _ => unreachable!(),
            };
        }
        match args.taps {
            1 => direct_columns::<V, R, 1>(args),
            2 => direct_columns::<V, R, 2>(args),
            3 => direct_columns::<V, R, 3>(args),
            5 => direct_columns::<V, R, 5>(args),
            _ => direct_columns::<V, R, MOST_TAPS>(args),
        }
    }
}

/// [`direct`] for columns of `N` taps.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_columns<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: DirectArgs promises the rows that are read, and the masks leave out what is not of them, or in loose planes, what no stored lane sees;
    // the output's contract covers the rest.
    unsafe {
        let output = &args.output;
        let is_square = (N == 3 || N == 5) && args.columns_len == N;
        let is_whole = output.tiles == 1 && output.vectors == 1 && rows_inside(args, args.row) == (N / 2, R + N / 2);
        if is_square && is_whole {
            return whole_planes::<V, R, N>(args);
        }
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let last = output.vectors - 1;
        // For the first vector of a row, those in between, and the last one: the lanes that are in X; and, as a bit for each column, whether stored
        // lanes are not among them, and whether any lane is not.
        let mut masks = [[every_lane::<V>(); MOST_SHORT]; 3];
        let mut masked = [[0_u32; 3]; 2];
        for column in 0..args.columns_len {
            let position = (*args.columns.add(column)).position;
            for (place, vector) in [(0, 0), (2, last)] {
                let from = position + (vector * V::LANES) as isize;
                let stored = (output.width - vector * V::LANES).min(V::LANES);
                let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.width as isize;
                masks[place][column] = V::mask(from, args.width);
                masked[0][place] |= u32::from(is_outside(stored)) << column;
                masked[1][place] |= u32::from(is_outside(V::LANES)) << column;
            }
        }
        let halves = halves_tails::<V, R>(output).then(|| Halves::new::<V, R, N>(args));
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = args.w.add(plane * args.w_plane);
            let masked = &masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let is_shared = halves.is_some() && tile / 2 * 2 + 1 < output.tiles;
                let first = args.row + (tile * R) as isize;
                // At most N - 1 rows are missing at either end.
                let inside = rows_inside(args, first);
                let is_edge = N > 1 && (inside.0 > 0 || inside.1 < R + N - 1);
                let x = args.x.add(plane * args.x_plane).wrapping_offset(first * args.step as isize);
                let next = if tile + 1 < output.tiles { R * args.step } else { args.next };
                for vector in 0..output.vectors - usize::from(is_shared) {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let (masks, masked) = (&masks[place], masked[place]);
                    let x = x.wrapping_add(vector * V::LANES);
                    if args.is_fetched_ahead {
                        let mut row = x.wrapping_add(next).wrapping_add((N - 1) * args.step);
                        for _ in 0..R {
                            V::prefetch_near(row);
                            row = row.wrapping_add(args.step);
                        }
                    }
                    let mut w = w;
                    for column in 0..args.columns_len {
                        let (x, mask) = (x.wrapping_offset((*args.columns.add(column)).offset), masks[column]);
                        // The mask of a whole vector costs less than one more loop.
                        if is_edge {
                            sum_column::<V, R, N, false, true, SOME>(&mut acc, x, args.step, inside, mask, w);
                        } else if (masked >> column) & 1 == 0 {
                            sum_column::<V, R, N, false, false, WHOLE>(&mut acc, x, args.step, inside, mask, w);
                        } else {
                            sum_column::<V, R, N, false, true, WHOLE>(&mut acc, x, args.step, inside, mask, w);
                        }
                        w = w.add(N);
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
            if let Some(halves) = &halves {
                direct_halves::<V, R, N>(args, plane, halves);
            }
        }
    }
}

/// Rows of a tile, at the least, that shares the last vectors of its rows with another one: lower ones are rare among several, and each costs code.
/// So only the first and the last tile see rows that are not there.
const LEAST_HALVED: usize = MOST_TAPS;

/// Rows before a tile and behind it that may not be there.
const MOST_MISSING: usize = 2 * (MOST_TAPS - 1);

/// Whether two tiles below one another share the last vectors of their rows, which have at most half as many elements as lanes.
fn halves_tails<V: Simd, const R: usize>(output: &TileOutput<V::Elem>) -> bool {
    has_halves::<V, R>() && halves(output.width, V::LANES, output.tiles)
}

/// Whether tiles of `R` rows can.
pub(crate) const fn has_halves<V: Simd, const R: usize>() -> bool {
    V::MASKS && R >= LEAST_HALVED
}

/// For [`direct_halves`], what planes have in common.
struct Halves {
    /// For each column, the lanes of half a vector that are in X, of the last one of a row.
    lanes: [u32; MOST_SHORT],
    edges: [Edges; 2],
}

/// For the rows before two tiles that share a vector, and those behind them, all lanes or none of either half: whether there is such a row. For the first two
/// tiles, and for the last two.
type Edges = [[u32; 2]; MOST_MISSING];

impl Halves {
    /// # Safety
    /// Memory: as [`DirectArgs`] states for `R`.
    unsafe fn new<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) -> Self {
        let mut halves = Self { lanes: [0; MOST_SHORT], edges: [[[0; 2]; MOST_MISSING]; 2] };
        for (i, lanes) in halves.lanes.iter_mut().enumerate().take(args.columns_len) {
            // SAFETY: the caller's promise.
            let position = unsafe { (*args.columns.add(i)).position } + ((args.output.vectors - 1) * V::LANES) as isize;
            let (from, to) = lanes_in_row(V::LANES / 2, position, args.width);
            *lanes = if from < to { (1 << to) - (1 << from) } else { 0 };
        }
        for (edges, tile) in halves.edges.iter_mut().zip([0, (args.output.tiles / 2 - 1) * 2]) {
            let inside = [tile, tile + 1].map(|tile| rows_inside(args, args.row + (tile * R) as isize));
            for (edge, lanes) in edges.iter_mut().enumerate().take(2 * (N - 1)) {
                let row = if edge < N - 1 { edge } else { R + edge - (N - 1) };
                *lanes = inside.map(|(from, to)| if from <= row && row < to { u32::MAX } else { 0 });
            }
        }
        halves
    }
}

/// The last vector of a row of [`direct_columns`], for pairs of tiles.
///
/// # Safety
/// CPU: the ISA of `V`, for which [`halves_tails`]. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_halves<V: Simd, const R: usize, const N: usize>(
    args: &DirectArgs<V::Elem>,
    plane: usize,
    halves: &Halves,
) {
    // SAFETY: as in direct_columns; the lanes leave out what is not of the rows of X.
    unsafe {
        let output = &args.output;
        let bias = V::splat(*output.bias.add(plane));
        let pairs = output.tiles / 2;
        for pair in 0..pairs {
            let mut acc = [bias; R];
            let row = args.row + (pair * 2 * R) as isize;
            let x = args.x.add(plane * args.x_plane).wrapping_offset(row * args.step as isize);
            let x = x.wrapping_add((output.vectors - 1) * V::LANES);
            let mut w = args.w.add(plane * args.w_plane);
            for i in 0..args.columns_len {
                let x = x.wrapping_offset((*args.columns.add(i)).offset);
                let lanes = halves.lanes[i];
                if pair == 0 || pair + 1 == pairs {
                    let edges = &halves.edges[usize::from(pair > 0)];
                    sum_halves::<V, R, N, true>(&mut acc, x, args.step, (lanes, edges), w);
                } else {
                    sum_halves::<V, R, N, false>(&mut acc, x, args.step, (lanes, &[[0; 2]; MOST_MISSING]), w);
                }
                w = w.add(N);
            }
            store_halves::<V, R>(&mut acc, output, plane * output.y_plane + pair * 2 * R * output.y_row);
        }
    }
}

/// As [`sum_column`] for two tiles: in the low half of each vector the rows at `x`, `x + step`, ..., in the high half those `R` rows further on; of either half
/// the lanes that are set, where `EDGE` in the first and last N - 1 rows those that `edges` leaves.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: those lanes are readable; `w` for `N` weights.
#[inline(always)]
unsafe fn sum_halves<V: Simd, const R: usize, const N: usize, const EDGE: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    (lanes, edges): (u32, &Edges),
    w: *const V::Elem,
) {
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut weights = [V::splat(V::Elem::ZERO); MOST_TAPS];
        for k in 0..N {
            weights[k] = V::splat(*w.add(k));
        }
        // Straight-line code, as in sum_column.
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + N - 1 {
                    let lanes = if EDGE && ($i + 1 < N || $i >= R) {
                        edges[if $i + 1 < N { $i } else { $i + N - 1 - R }].map(|edge| edge & lanes)
                    } else {
                        [lanes; 2]
                    };
                    let x = V::load_halves(row, row.wrapping_add(R * step), lanes);
                    for k in 0..N {
                        if $i >= k && $i - k < R {
                            acc[$i - k] = weights[k].mul_add(x, acc[$i - k]);
                        }
                    }
                    row = V::advance_after(row, step, acc[if $i < R { $i } else { R - 1 }]);
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    }
    let _ = row;
}

/// As [`store`] for two tiles, the first of which begins at `at`: the last vector of their rows, which has one of them in either half.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`TileOutput`] states.
#[inline(always)]
unsafe fn store_halves<V: Simd, const R: usize>(acc: &mut [V; R], output: &TileOutput<V::Elem>, at: usize) {
    let from = (output.vectors - 1) * V::LANES;
    let (n, at, second) = (output.width - from, at + from, R * output.y_row);
    // SAFETY: TileOutput promises that rows of both tiles may be written, and the residual read, for `width` elements.
    unsafe {
        if !output.residual.is_null() {
            let residual = output.residual.add(at);
            for r in 0..R {
                let residual = residual.add(r * output.y_row);
                acc[r] = acc[r].add(V::load_halves(residual, residual.add(second), [(1 << n) - 1; 2]));
            }
        }
        if !output.is_plain {
            for r in 0..R {
                acc[r] = acc[r].clamp(V::splat(output.lo), V::splat(output.hi));
            }
        }
        let mut y = V::advance(output.y.add(at), 0);
        for r in 0..R {
            acc[r].store_halves(y.cast_mut(), y.wrapping_add(second).cast_mut(), n);
            y = V::advance(y, output.y_row);
        }
    }
}

/// The rows of a tile's input that are there, of those from row `first` of X on.
fn rows_inside<T>(args: &DirectArgs<T>, first: isize) -> (usize, usize) {
    ((-first).max(0) as usize, (args.height as isize - first).max(0) as usize)
}

/// [`direct_columns`] for `N` columns on planes of one tile of one vector, as high as those of X, between equal padding: what planes have in common is made
/// ready once, and columns follow one another without a loop, as there is little to do for each plane.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn whole_planes<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: as in direct_columns.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let loose = args.loose.min(output.planes);
        for (from, to, lanes) in [(0, loose, output.width), (loose, output.planes, V::LANES)] {
            let mut columns = [(0_isize, every_lane::<V>(), false); N];
            for column in 0..N {
                let DirectColumn { position, offset, .. } = *args.columns.add(column);
                let is_outside = position < 0 || position + lanes as isize > args.width as isize;
                columns[column] = (offset, V::mask(position, args.width), is_outside);
            }
            let mut x = args.x.wrapping_add(from * args.x_plane).wrapping_offset(args.row * args.step as isize);
            let mut w = args.w.wrapping_add(from * args.w_plane);
            let mut at = from * output.y_plane;
            for plane in from..to {
                let mut acc = [V::splat(*output.bias.add(plane)); R];
                for column in 0..N {
                    let (offset, mask, is_masked) = columns[column];
                    let (x, taps) = (x.wrapping_offset(offset), w.wrapping_add(column * N));
                    if V::MASKS || is_masked {
                        sum_column::<V, R, N, false, true, SAME>(&mut acc, x, args.step, (0, 0), mask, taps);
                    } else {
                        sum_column::<V, R, N, false, false, SAME>(&mut acc, x, args.step, (0, 0), mask, taps);
                    }
                }
                store::<V, R>(&mut acc, output, at, 0, (lo, hi));
                x = x.wrapping_add(args.x_plane);
                w = w.wrapping_add(args.w_plane);
                at += output.y_plane;
            }
        }
    }
}

/// Whether three columns of three taps can be summed row by row: the weights, the sums of a tile and three vectors have to fit in registers.
pub(crate) const fn goes_by_rows<V: Simd>() -> bool {
    V::MASKS && 9 + 14 + 4 <= V::REGISTER_FILE / V::REGISTERS
}

/// [`direct_columns`] for three columns of three taps, row by row: with all weights in registers, a row of X is read once.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_threes<V: Simd, const R: usize>(args: &DirectArgs<V::Elem>, offsets: [isize; 3]) {
    // SAFETY: as in direct_columns.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let last = output.vectors - 1;
        let mut masks = [[every_lane::<V>(); 3]; 3];
        let mut masked = [[false; 3]; 2];
        for column in 0..3 {
            let position = (*args.columns.add(column)).position;
            for (place, vector) in [(0, 0), (2, last)] {
                let from = position + (vector * V::LANES) as isize;
                let stored = (output.width - vector * V::LANES).min(V::LANES);
                let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.width as isize;
                masks[place][column] = V::mask(from, args.width);
                masked[0][place] |= is_outside(stored);
                masked[1][place] |= is_outside(V::LANES);
            }
        }
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = args.w.add(plane * args.w_plane);
            let mut weights = [[V::splat(V::Elem::ZERO); 3]; 3];
            for column in 0..3 {
                for k in 0..3 {
                    weights[column][k] = V::splat(*w.add(column * 3 + k));
                }
            }
            let masked = &masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.row + (tile * R) as isize;
                let inside = rows_inside(args, first);
                let is_edge = inside.0 > 0 || inside.1 < R + 2;
                let x = args.x.add(plane * args.x_plane).wrapping_offset(first * args.step as isize);
                let next = if tile + 1 < output.tiles { R * args.step } else { args.next };
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let x = x.wrapping_add(vector * V::LANES);
                    let (masks, rows) = (masks[place], (x, args.step, next));
                    if is_edge {
                        sum_threes::<V, R, true, SOME>(&mut acc, rows, offsets, inside, masks, &weights);
                    } else if masked[place] {
                        sum_threes::<V, R, true, WHOLE>(&mut acc, rows, offsets, inside, masks, &weights);
                    } else {
                        sum_threes::<V, R, false, WHOLE>(&mut acc, rows, offsets, inside, masks, &weights);
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// Adds three columns of three taps each, at `offsets` from the rows at `x`, `x + step`, ..., otherwise as
/// [`sum_column`] at an edge. Rows `ahead` of those of the tile are fetched.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: those of R + 2 rows are readable for a vector at each offset, or for the lanes of the mask.
#[inline(always)]
unsafe fn sum_threes<V: Simd, const R: usize, const MASKED: bool, const EDGE: u8>(
    acc: &mut [V; R],
    (x, step, ahead): (*const V::Elem, usize, usize),
    offsets: [isize; 3],
    inside: (usize, usize),
    masks: [V::Mask; 3],
    weights: &[[V; 3]; 3],
) {
    // Of an address that it knows, the compiler would keep those of all rows in memory, from one vector to the next.
    let mut row = V::advance(x, 0);
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        // Straight-line code, as in sum_column.
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + 2 {
                    if $i >= 2 {
                        V::prefetch_near(row.wrapping_add(ahead));
                    }
                    if EDGE == WHOLE || (($i >= 2 || $i >= inside.0) && ($i < R || $i < inside.1)) {
                        for column in 0..3 {
                            let x = row.wrapping_offset(offsets[column]);
                            let x = if MASKED { V::load_lanes(x, masks[column]) } else { V::load(x) };
                            for k in 0..3 {
                                if $i >= k && $i - k < R {
                                    acc[$i - k] = weights[column][k].mul_add(x, acc[$i - k]);
                                }
                            }
                        }
                    }
                    row = V::advance(row, step);
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
    let _ = row;
}

/// As [`direct`] with stride 2 along both axes for three columns of three taps, two of which are a pair, row by row: with all nine weights in registers, a row of
/// X is loaded once; and as it serves two sums at the most, no more are there, and tiles are of any height.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`DirectArgs`] states for `args.mr`.
#[inline(always)]
pub(crate) unsafe fn threes<V: Simd>(args: &DirectArgs<V::Elem>) {
    // SAFETY: as in direct_columns; a vector of output sees two of X, and perhaps the element before or behind them.
    unsafe {
        let output = &args.output;
        let last = output.vectors - 1;
        let is_left = (*args.columns.add(1)).is_pair;
        let DirectColumn { position, offset, .. } = *args.columns.add(usize::from(is_left));
        // The third column is left or right of the pair: its first index in the two vectors, the element that is beside them, and the lane of that.
        let (from, beside, lane) = if is_left { (-1, -1, 0) } else { (2, 2 * V::LANES as isize, V::LANES - 1) };
        let every = every_lane::<V>();
        let mut views =
            [StridedView::<V> { masks: [every; 2], from, beside: beside - lane as isize, lane: 1 << lane }; 3];
        let mut masked = [[false; 3]; 2];
        for (place, vector) in [(0, 0), (2, last)] {
            let from = position + (vector * 2 * V::LANES) as isize;
            // A third column on the right sees one position more.
            let stored = (output.width - vector * V::LANES).min(V::LANES) * 2 + usize::from(!is_left);
            let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.width as isize;
            views[place].masks = [V::mask(from, args.width), V::mask(from + V::LANES as isize, args.width)];
            if !(0..args.width as isize).contains(&(from + beside)) {
                views[place].lane = 0;
            }
            masked[0][place] = is_outside(stored);
            masked[1][place] = is_outside(2 * V::LANES);
        }
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = args.w.add(plane * args.w_plane);
            // Of each tap: the pair, then the third column. The taps of even rows come first.
            let mut weights = [[V::splat(V::Elem::ZERO); 3]; 3];
            for i in 0..3 {
                let column = if is_left { (i + 1) % 3 } else { i };
                for (k, at) in [column * 2, 6 + column, column * 2 + 1].into_iter().enumerate() {
                    weights[k][i] = V::splat(*w.add(at));
                }
            }
            let masked = &masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * args.mr * output.y_row;
                let first = args.row + (tile * args.mr * 2) as isize;
                let x = args.x.add(plane * args.x_plane).wrapping_offset(first * args.step as isize + offset);
                let next = if tile + 1 < output.tiles { args.mr * 2 * args.step } else { args.next };
                for vector in 0..output.vectors {
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let x = x.wrapping_add(vector * 2 * V::LANES);
                    let to = (at + vector * V::LANES, (output.width - vector * V::LANES).min(V::LANES));
                    if masked[place] {
                        roll::<V, true>(args, x, to, first, &views[place], (bias, &weights), next);
                    } else {
                        roll::<V, false>(args, x, to, first, &views[place], (bias, &weights), next);
                    }
                }
            }
        }
    }
}

/// How [`threes`] sees a row of X.
#[derive(Clone, Copy)]
struct StridedView<V: Simd> {
    /// The lanes that are in X, of both vectors that the pair sees.
    masks: [V::Mask; 2],
    /// The first index of the third column in those vectors, of every second one.
    from: isize,
    /// Where lane 0 of a vector would be that has the element beside them at its `lane`, which is a bit; none if that is not in X.
    beside: isize,
    lane: u32,
}

/// What a row of X brings to the pair and to the third column.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: what `view` sees of the row is readable.
#[inline(always)]
unsafe fn three<V: Simd, const MASKED: bool>(row: *const V::Elem, view: &StridedView<V>) -> [V; 3] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = if MASKED {
            (V::load_lanes(row, view.masks[0]), V::load_lanes(row.wrapping_add(V::LANES), view.masks[1]))
        } else {
            (V::load(row), V::load(row.wrapping_add(V::LANES)))
        };
        let (even, odd) = a.unzip(b);
        [even, odd, a.every_second(b, view.from).load_over(row.wrapping_offset(view.beside), view.lane)]
    }
}

/// Adds what a row brings to a sum.
///
/// # Safety
/// CPU: the ISA of `V`.
#[inline(always)]
unsafe fn add_three<V: Simd>(sum: V, x: [V; 3], w: [V; 3]) -> V {
    // SAFETY: the caller runs where the ISA is.
    unsafe { w[2].mul_add(x[2], w[1].mul_add(x[1], w[0].mul_add(x[0], sum))) }
}

/// A tile of [`threes`], one vector wide, from row `first` of X at `x` on, to `n` elements of each row from `at` of the output on; the rows `ahead` of it are
/// fetched.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`threes`], for this tile.
#[inline(always)]
unsafe fn roll<V: Simd, const MASKED: bool>(
    args: &DirectArgs<V::Elem>,
    x: *const V::Elem,
    (at, n): (usize, usize),
    first: isize,
    view: &StridedView<V>,
    (bias, w): (V, &[[V; 3]; 3]),
    ahead: usize,
) {
    let (output, view, mut y) = (&args.output, *view, at);
    // Of the first and the last two rows; those in between are there.
    let is_there = |row: usize| ((first + row as isize) as usize) < args.height;
    // SAFETY: rows outside of X are left out; the rest is the caller's promise.
    unsafe {
        // Of an address that it knows, the compiler would keep those of all rows in memory.
        let mut row = V::advance(x, 0);
        let mut sum = bias;
        if is_there(0) {
            sum = add_three(sum, three::<V, MASKED>(row, &view), w[0]);
        }
        row = V::advance(row, args.step);
        for r in 1..args.mr {
            V::prefetch_near(row.wrapping_add(ahead));
            V::prefetch_near(row.wrapping_add(ahead).wrapping_add(V::LANES));
            if is_there(2 * r - 1) {
                sum = add_three(sum, three::<V, MASKED>(row, &view), w[1]);
            }
            row = V::advance(row, args.step);
            V::prefetch_near(row.wrapping_add(ahead));
            V::prefetch_near(row.wrapping_add(ahead).wrapping_add(V::LANES));
            let x = three::<V, MASKED>(row, &view);
            store_row(add_three(sum, x, w[2]), output, y, n);
            sum = add_three(bias, x, w[0]);
            y += output.y_row;
            row = V::advance(row, args.step);
        }
        for k in 1..3 {
            V::prefetch_near(row.wrapping_add(ahead));
            V::prefetch_near(row.wrapping_add(ahead).wrapping_add(V::LANES));
            if is_there(2 * args.mr - 2 + k) {
                sum = add_three(sum, three::<V, MASKED>(row, &view), w[k]);
            }
            row = V::advance(row, args.step);
        }
        store_row(sum, output, y, n);
        let _ = row;
    }
}

/// Finishes `n` elements of a row and stores them: residual, clamp.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: they are writable, and the residual of them readable.
#[inline(always)]
unsafe fn store_row<V: Simd>(sum: V, output: &TileOutput<V::Elem>, at: usize, n: usize) {
    let mut sum = sum;
    // SAFETY: the caller's promise.
    unsafe {
        if !output.residual.is_null() {
            sum = sum.add(V::load_first(output.residual.add(at), n));
        }
        if !output.is_plain {
            sum = sum.clamp(V::splat(output.lo), V::splat(output.hi));
        }
        let y = output.y.add(at);
        if n == V::LANES { sum.store(y) } else { sum.store_first(y, n) }
    }
}

/// Rows of a tile with stride 2, at the most.
const MOST_STRIDED: usize = 8;

/// Whether tiles of `mr` rows read X with stride 2 for columns of `taps` taps: the sums, the weights of two columns, two vectors before and behind
/// their split and its two permutations have to fit in registers.
pub(crate) const fn strides<V: Simd>(mr: usize, taps: usize) -> bool {
    (taps == 3 || taps == 5) && mr <= MOST_STRIDED && 2 * taps + mr + 6 <= V::REGISTER_FILE / V::REGISTERS
}

/// [`direct`] with stride 2 along both axes, for columns of `N` taps: two vectors of a row are split in registers into the positions that a column sees
/// and those of the column right of it, so that two columns are summed together.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_pairs<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: as in direct_columns; a vector of output sees two of X.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let last = output.vectors - 1;
        let mut masks = [[[every_lane::<V>(); 2]; MOST_SHORT]; 3];
        let mut masked = [[0_u32; 3]; 2];
        for column in 0..args.columns_len {
            let DirectColumn { position, is_pair, .. } = *args.columns.add(column);
            for (place, vector) in [(0, 0), (2, last)] {
                let from = position + (vector * 2 * V::LANES) as isize;
                let stored = 2 * (output.width - vector * V::LANES).min(V::LANES) - usize::from(!is_pair);
                let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.width as isize;
                masks[place][column] = [V::mask(from, args.width), V::mask(from + V::LANES as isize, args.width)];
                masked[0][place] |= u32::from(is_outside(stored)) << column;
                masked[1][place] |= u32::from(is_outside(2 * V::LANES)) << column;
            }
        }
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = args.w.add(plane * args.w_plane);
            let masked = &masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.row + (tile * 2 * R) as isize;
                let inside = rows_inside(args, first);
                let x = args.x.add(plane * args.x_plane).wrapping_offset(first * args.step as isize);
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let (masks, masked) = (&masks[place], masked[place]);
                    let x = x.wrapping_add(vector * 2 * V::LANES);
                    if args.is_fetched_ahead {
                        let next = if tile + 1 < output.tiles { 2 * R * args.step } else { args.next };
                        let mut row = x.wrapping_add(next).wrapping_add((N - 2) * args.step);
                        for _ in 0..2 * R {
                            V::prefetch_near(row);
                            V::prefetch_near(row.wrapping_add(V::LANES));
                            row = row.wrapping_add(args.step);
                        }
                    }
                    // The taps of even rows come first, those of odd rows behind all of them.
                    let mut w = [w, w.add(args.even)];
                    for column in 0..args.columns_len {
                        let DirectColumn { offset, is_pair, .. } = *args.columns.add(column);
                        let (x, mask) = (x.wrapping_offset(offset), masks[column]);
                        match (is_pair, (masked >> column) & 1 == 1) {
                            (true, false) => sum_pair::<V, R, N, true, false>(&mut acc, x, args.step, inside, mask, w),
                            (true, true) => sum_pair::<V, R, N, true, true>(&mut acc, x, args.step, inside, mask, w),
                            // The mask of a whole vector costs less than one more loop.
                            (false, _) => sum_pair::<V, R, N, false, true>(&mut acc, x, args.step, inside, mask, w),
                        }
                        let columns = 1 + usize::from(is_pair);
                        w = [w[0].wrapping_add(columns * N.div_ceil(2)), w[1].wrapping_add(columns * (N / 2))];
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// As [`sum_column`] with stride 2, for a column and, if `PAIR`, the one right of it.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: those of 2 R + N - 2 rows are readable for two vectors, or for the lanes of their masks; `w` for the weights of the columns'
/// even and odd taps.
#[inline(always)]
unsafe fn sum_pair<V: Simd, const R: usize, const N: usize, const PAIR: bool, const MASKED: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    inside: (usize, usize),
    mask: [V::Mask; 2],
    w: [*const V::Elem; 2],
) {
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut weights = [[V::splat(V::Elem::ZERO); MOST_TAPS]; 2];
        for k in 0..N {
            weights[0][k] = V::splat(*w[k % 2].add(k / 2));
            if PAIR {
                weights[1][k] = V::splat(*w[k % 2].add((N + 1 - k % 2) / 2 + k / 2));
            }
        }
        // Straight-line code, as in sum_column.
        // Beyond, `strides` is false, and this is compiled but never called.
        const { assert!(R > MOST_STRIDED || 2 * R + N - 2 <= 21, "the list of rows is too short") };
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i + 2 < 2 * R + N {
                    if ($i + 1 >= N || $i >= inside.0) && ($i + 1 < 2 * R || $i < inside.1) {
                        let (a, b) = if MASKED {
                            (V::load_lanes(row, mask[0]), V::load_lanes(row.wrapping_add(V::LANES), mask[1]))
                        } else {
                            (V::load(row), V::load(row.wrapping_add(V::LANES)))
                        };
                        let (even, odd) = a.unzip(b);
                        for k in 0..N {
                            if $i >= k && ($i - k) % 2 == 0 && ($i - k) / 2 < R {
                                acc[($i - k) / 2] = weights[0][k].mul_add(even, acc[($i - k) / 2]);
                                if PAIR {
                                    acc[($i - k) / 2] = weights[1][k].mul_add(odd, acc[($i - k) / 2]);
                                }
                            }
                        }
                    }
                    row = V::advance(row, step);
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
    }
    let _ = row;
}

/// The mask of all lanes.
///
/// # Safety
/// CPU: the ISA of `V`.
#[inline(always)]
unsafe fn every_lane<V: Simd>() -> V::Mask {
    // SAFETY: the row is long enough; the caller runs where the ISA is.
    unsafe { V::mask(0, V::LANES.max(LEAST_ROW)) }
}

/// Which rows of a tile's input are there: all of them.
const WHOLE: u8 = 0;

/// All but half as many as a column has taps, above and below. Branches would keep the compiler from ordering multiply-adds and loads of several rows: they cost
/// up to half as much again.
const SAME: u8 = 1;

/// Those that are told.
const SOME: u8 = 2;

/// Adds one tap column of `N` taps to the sums, from the rows at `x`, `x + step`, ...; where `MASKED`, the lanes of `mask` of them; of the first and last
/// N - 1 rows, those that are there according to `EDGE`: where that is `SOME`, those that are `inside`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: those of R + N - 1 rows are readable for a vector, or for the lanes of the mask; `w` for `N` weights.
#[inline(always)]
unsafe fn sum_column<
    V: Simd,
    const R: usize,
    const N: usize,
    const VECTOR_WEIGHTS: bool,
    const MASKED: bool,
    const EDGE: u8,
>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    inside: (usize, usize),
    mask: V::Mask,
    w: *const V::Elem,
) {
    let weight = if VECTOR_WEIGHTS { V::LANES } else { 1 };
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut weights = [V::splat(V::Elem::ZERO); MOST_TAPS];
        for k in 0..N {
            let w = w.add(k * weight);
            weights[k] = if VECTOR_WEIGHTS { V::load(w) } else { V::splat(*w) };
        }
        // Straight-line code: LLVM does not unroll a loop of so many rows. A row serves N different sums, so that none waits for the one before it.
        const { assert!(R + N - 1 <= 20, "the list of rows is too short") };
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + N - 1 {
                    let is_there = match EDGE {
                        WHOLE => true,
                        SAME => $i >= N / 2 && $i < R + N / 2,
                        _ => ($i + 1 >= N || $i >= inside.0) && ($i < R || $i < inside.1),
                    };
                    if is_there {
                        let x = if $i % 2 == 0 { row } else { row.wrapping_add(step) };
                        let x = if MASKED { V::load_lanes(x, mask) } else { V::load(x) };
                        for k in 0..N {
                            if $i >= k && $i - k < R {
                                acc[$i - k] = weights[k].mul_add(x, acc[$i - k]);
                            }
                        }
                    }
                    if $i % 2 == 1 {
                        row = V::advance(row, 2 * step);
                    }
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    }
    let _ = row;
}

/// Finishes a tile: residual, clamp; to the output's rows from `at` on, vector `vector` of them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TileOutput`] states.
#[inline(always)]
unsafe fn store<V: Simd, const R: usize>(
    acc: &mut [V; R],
    output: &TileOutput<V::Elem>,
    at: usize,
    vector: usize,
    (lo, hi): (V, V),
) {
    let at = at + vector * V::LANES;
    let n = (output.width - vector * V::LANES).min(V::LANES);
    // SAFETY: TileOutput promises that rows may be written, and the residual read, for `width` elements, of which this vector has n.
    unsafe {
        if !output.residual.is_null() {
            for r in 0..R {
                acc[r] = acc[r].add(V::load_first(output.residual.add(at + r * output.y_row), n));
            }
        }
        let y = output.y.add(at);
        if !output.is_plain {
            for r in 0..R {
                acc[r] = acc[r].clamp(lo, hi);
            }
        }
        // Rows one after the other, as in sum_column.
        let mut y = V::advance(y, 0);
        if n == V::LANES {
            for r in 0..R {
                acc[r].store(y.cast_mut());
                y = V::advance(y, output.y_row);
            }
        } else if R > 1 && n == output.y_row && 2 * n >= V::LANES {
            // Rows follow one another: a whole vector reaches into the next row of the tile, which is stored after it.
            for r in 0..R - 1 {
                acc[r].store(y.cast_mut());
                y = V::advance(y, output.y_row);
            }
            acc[R - 1].store_first(y.cast_mut(), n);
        } else {
            for r in 0..R {
                acc[r].store_first(y.cast_mut(), n);
                y = V::advance(y, output.y_row);
            }
        }
    }
}

/// Copies rows into padded planes; the last vector of a row is filled up with zeros.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`CopyArgs`] states.
#[inline(always)]
pub(crate) unsafe fn copy<V: Simd>(args: &CopyArgs<V::Elem>) {
    // SAFETY: CopyArgs promises `width` elements of each row of src, and as many whole vectors of each row of dst.
    unsafe {
        for plane in 0..args.planes {
            for row in 0..args.rows {
                let src = args.src.add(plane * args.src_plane + row * args.src_row);
                let dst = args.dst.add(plane * args.dst_plane + row * args.dst_row);
                let mut at = 0;
                while at + V::LANES <= args.width {
                    V::load(src.add(at)).store(dst.add(at));
                    at += V::LANES;
                }
                if at < args.width {
                    V::load_first(src.add(at), args.width - at).store(dst.add(at));
                }
            }
        }
    }
}

/// As [`copy`], with the elements of even index to `dst`, and those of odd index to `dst + odd`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`CopyArgs`] states.
#[inline(always)]
pub(crate) unsafe fn split<V: Simd>(args: &CopyArgs<V::Elem>) {
    // SAFETY: as in copy; each pair of vectors of src is one vector of either half.
    unsafe {
        for plane in 0..args.planes {
            for row in 0..args.rows {
                let src = args.src.add(plane * args.src_plane + row * args.src_row);
                let dst = args.dst.add(plane * args.dst_plane + row * args.dst_row);
                let mut at = 0;
                while at < args.width {
                    let n = args.width - at;
                    let (a, b) = if n >= 2 * V::LANES {
                        (V::load(src.add(at)), V::load(src.add(at + V::LANES)))
                    } else {
                        let first = n.min(V::LANES);
                        (V::load_first(src.add(at), first), V::load_first(src.add(at + first), n - first))
                    };
                    let (even, odd) = a.unzip(b);
                    even.store(dst.add(at / 2));
                    odd.store(dst.offset(args.odd + (at / 2) as isize));
                    at += 2 * V::LANES;
                }
            }
        }
    }
}

/// Gathers `LANES` channels: each position becomes a vector of them, at its slot.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`GatherArgs`] states.
#[inline(always)]
pub(crate) unsafe fn gather<V: Simd>(args: &GatherArgs<V::Elem>) {
    // SAFETY: GatherArgs promises `len` elements of each channel, `len` slots, and a vector of dst at each slot.
    unsafe {
        let mut at = 0;
        while at < args.len {
            let n = (args.len - at).min(V::LANES);
            let mut rows = [V::splat(V::Elem::ZERO); 16];
            if n == V::LANES && args.channels == V::LANES {
                for c in 0..V::LANES {
                    rows[c] = V::load(args.src.add(c * args.src_channel + at));
                }
            } else {
                for (c, row) in rows.iter_mut().enumerate().take(args.channels) {
                    *row = V::load_first(args.src.add(c * args.src_channel + at), n);
                }
            }
            V::transpose(&mut rows);
            // A loop of known length keeps the rows in registers.
            if n == V::LANES {
                for i in 0..V::LANES {
                    rows[i].store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            } else {
                for (i, row) in rows.iter().enumerate().take(n) {
                    row.store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            }
            at += n;
        }
    }
}

/// Turns vectors of channels, one for each of `len` positions, back into rows of positions: bias, residual, clamp.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `src` is readable for `len * LANES` elements, the rest as [`ChannelStore`] states for `len` pixels.
#[inline(always)]
pub(crate) unsafe fn scatter<V: Simd>(src: *const V::Elem, len: usize, store: &ChannelStore<V::Elem>) {
    // SAFETY: the caller's promise, passed on; the loads of a full block end at its last position.
    unsafe {
        let mut done = 0;
        // Full blocks, in loops of known length, which keep the rows in registers.
        if store.channels == V::LANES && store.residual.is_null() {
            let (lo, hi) = (V::splat(store.lo), V::splat(store.hi));
            while done + V::LANES <= len {
                let mut rows = [V::splat(V::Elem::ZERO); 16];
                for i in 0..V::LANES {
                    rows[i] = V::load(src.add((done + i) * V::LANES));
                }
                V::transpose(&mut rows);
                for c in 0..V::LANES {
                    let y = store.y.add(c * store.ldy + done);
                    rows[c].add(V::splat(*store.bias.add(c))).clamp(lo, hi).store(y);
                }
                done += V::LANES;
            }
        }
        if done < len {
            let residual = if store.residual.is_null() { store.residual } else { store.residual.add(done) };
            let rest = ChannelStore { y: store.y.add(done), residual, ..*store };
            super::gemm::store_transposed::<V>(src.add(done * V::LANES), len - done, 1, &rest);
        }
    }
}

/// Instantiates the tiles along rows, for vectors of one length.
macro_rules! row_kernels {
    ($vector:ty, #[$attr:meta], $($direct:ident, $row:ident, $mr:literal);+) => {$(
        /// # Safety
        /// As the generic kernel's, for this ISA and tile.
        #[$attr]
        unsafe fn $direct(args: &crate::depthwise::DirectArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::direct::<$vector, $mr>(args) }
        }
        /// # Safety
        /// As the generic kernel's, for this ISA and tile.
        #[$attr]
        unsafe fn $row(args: &crate::depthwise::DepthwiseArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::tiles::<$vector, $mr, false>(args) }
        }
    )+};
}
pub(crate) use row_kernels;

/// Instantiates the tiles and passes of an ISA and type, and lists them.
macro_rules! depthwise {
    ($vector:ty, $isa:expr, #[$attr:meta], direct: $($direct:ident),+; rows: $($row:ident($rr:literal)),+;
        $(narrow: $half:ty, direct: $($half_direct:ident),+; rows: $($half_row:ident($hr:literal)),+;)?
        channels: $($channel:ident($cr:literal)),+ $(,)?) => {
        type Elem = <$vector as crate::simd::Simd>::Elem;
        $(crate::generic::depthwise::row_kernels!($half, #[$attr], $($half_direct, $half_row, $hr);+);)?
        crate::generic::depthwise::row_kernels!($vector, #[$attr], $($direct, $row, $rr);+);
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $channel(args: &crate::depthwise::DepthwiseArgs<Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::depthwise::tiles::<$vector, $cr, true>(args) }
            }
        )+
        /// # Safety
        /// As the generic kernel's, for this ISA.
        #[$attr]
        unsafe fn threes(args: &crate::depthwise::DirectArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::threes::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn copy(args: &crate::depthwise::CopyArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::copy::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn split(args: &crate::depthwise::CopyArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::split::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn gather(args: &crate::depthwise::GatherArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::gather::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn scatter(src: *const Elem, len: usize, store: &crate::ukernel::ChannelStore<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::scatter::<$vector>(src, len, store) }
        }
        pub(crate) static DEPTHWISE: &crate::depthwise::DepthwiseKernels<Elem> = &crate::depthwise::DepthwiseKernels {
            isa: $isa,
            lanes: <$vector as crate::simd::Simd>::LANES,
            rows: &[$(crate::depthwise::DepthwiseKernel {
                name: stringify!($row),
                isa: $isa,
                mr: $rr,
                lanes: <$vector as crate::simd::Simd>::LANES,
                weight: 1,
                f: $row,
                direct: Some($direct),
                threes: if <$vector as crate::simd::Simd>::MASKS { Some(threes) } else { None },
                by_rows: crate::generic::depthwise::goes_by_rows::<$vector>(),
                halves: crate::generic::depthwise::has_halves::<$vector, $rr>(),
                strides: |taps| crate::generic::depthwise::strides::<$vector>($rr, taps),
            }),+],
            narrow: &[$($(crate::depthwise::DepthwiseKernel {
                name: stringify!($half_row),
                isa: $isa,
                mr: $hr,
                lanes: <$half as crate::simd::Simd>::LANES,
                weight: 1,
                f: $half_row,
                direct: Some($half_direct),
                threes: None,
                by_rows: false,
                halves: false,
                strides: |_| false,
            }),+)?],
            channels: &[$(crate::depthwise::DepthwiseKernel {
                name: stringify!($channel),
                isa: $isa,
                mr: $cr,
                lanes: <$vector as crate::simd::Simd>::LANES,
                weight: <$vector as crate::simd::Simd>::LANES,
                f: $channel,
                direct: None,
                threes: None,
                by_rows: false,
                halves: false,
                strides: |_| false,
            }),+],
            copy,
            split,
            gather,
            scatter,
        };
    };
}
pub(crate) use depthwise;
