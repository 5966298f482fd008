//! Tiles below one another that share vectors: where the last vectors of their rows have at most
//! half as many elements as lanes, one tile is in the low half, the other one in the high half.

use super::column::rows_inside;
use crate::Real;
use crate::depthwise::{DirectArgs, MOST_SHORT, MOST_TAPS, TileOutput, tails_fit_in_one};
use crate::simd::{Simd, lanes_in_row};

/// Rows of a tile, at the least, that shares the last vectors of its rows with another one: lower
/// ones are rare among several, and each costs code. So only the first and the last tile see rows
/// that are not there.
const LEAST_HALVED: usize = MOST_TAPS;

/// Rows before a tile and behind it that may not be there.
const MOST_MISSING: usize = 2 * (MOST_TAPS - 1);

/// Whether two tiles below one another share the last vectors of their rows, which have at most
/// half as many elements as lanes.
pub(super) fn halves_tails<V: Simd, const R: usize>(output: &TileOutput<V::Elem>) -> bool {
    has_halves::<V, R>() && tails_fit_in_one(output.width, V::LANES, output.tiles)
}

/// Whether tiles of `R` rows can.
pub(crate) const fn has_halves<V: Simd, const R: usize>() -> bool {
    V::MASKS && R >= LEAST_HALVED
}

/// For [`direct_halves`], what planes have in common.
pub(super) struct Halves {
    /// For each column, the lanes of half a vector that are in X, of the last one of a row.
    lanes: [u32; MOST_SHORT],
    edges: [EdgeRows; 2],
}

impl Halves {
    /// # Safety
    /// Memory: as [`DirectArgs`] states for `R`.
    pub(super) unsafe fn new<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) -> Self {
        let mut halves = Self { lanes: [0; MOST_SHORT], edges: [[0; MOST_MISSING]; 2] };
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
                let [low, high] = inside.map(|(from, to)| from <= row && row < to);
                *lanes = (u32::from(low) | u32::from(high) << (V::LANES / 2)) * (V::ALL >> (V::LANES / 2));
            }
        }
        halves
    }
}

/// For the rows before two tiles that share a vector, and those behind them, the lanes of either
/// half, all or none: whether there is such a row. For the first two tiles, and for the last two.
type EdgeRows = [u32; MOST_MISSING];

/// Where nothing is at an edge, and no edges are looked at.
pub(super) const NO_EDGES: EdgeRows = [0; MOST_MISSING];

/// The last vector of a row of [`direct_columns`](super::direct), for pairs of tiles.
///
/// # Safety
/// CPU: the ISA of `V`, for which [`halves_tails`]. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
pub(super) unsafe fn direct_halves<V: Simd, const R: usize, const N: usize>(
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
                    sum_halves::<V, R, N, false>(&mut acc, x, args.step, (lanes, &NO_EDGES), w);
                }
                w = w.add(N);
            }
            store_halves::<V, R>(&mut acc, output, plane * output.y_plane + pair * 2 * R * output.y_row);
        }
    }
}

/// As [`sum_column`](super::column::sum_column) for two tiles: in the low half of each vector the
/// rows at `x`, `x + step`, ..., in the high half those `R` rows further on; of either half the
/// lanes that are set, where `EDGE` in the first and last N - 1 rows those that `edges` leaves.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: those lanes are readable; `w` for `N` weights.
#[inline(always)]
pub(super) unsafe fn sum_halves<V: Simd, const R: usize, const N: usize, const EDGE: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    (lanes, edges): (u32, &EdgeRows),
    w: *const V::Elem,
) {
    let half = V::LANES / 2;
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut weights = [V::splat(V::Elem::ZERO); MOST_TAPS];
        for k in 0..N {
            weights[k] = V::splat(*w.add(k));
        }
        // Straight-line code, as in sum_column.
        const { assert!(R + N - 1 <= 20, "the list of rows is too short") };
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + N - 1 {
                    let is_edge = EDGE && ($i + 1 < N || $i >= R);
                    let there = if is_edge { edges[if $i + 1 < N { $i } else { $i + N - 1 - R }] } else { V::ALL };
                    let lanes = [there & lanes, (there >> half) & lanes];
                    let x = V::load_halves(row, row.wrapping_add(R * step), lanes);
                    for k in 0..N {
                        if $i >= k && $i - k < R {
                            // Rows that are not there are left out, as from other tiles: -0 + 0
                            // would be 0.
                            acc[$i - k] = if is_edge {
                                x.mul_add_of(V::load_scalars(w.add(k), 1), 0, acc[$i - k], V::lanes(there))
                            } else {
                                weights[k].mul_add(x, acc[$i - k])
                            };
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

/// As [`store`](super::column::store) for two tiles, the first of which begins at `at`: the last
/// vector of their rows, which has one of them in either half.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`TileOutput`] states.
#[inline(always)]
pub(super) unsafe fn store_halves<V: Simd, const R: usize>(acc: &mut [V; R], output: &TileOutput<V::Elem>, at: usize) {
    let from = (output.vectors - 1) * V::LANES;
    let (n, at, second) = (output.width - from, at + from, R * output.y_row);
    // SAFETY: TileOutput promises that rows of both tiles may be written, and the residual read,
    // for `width` elements.
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
