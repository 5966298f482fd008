//! Two tiles below one another that share vectors. Where the last vectors of their rows are at
//! most half full, one tile takes the low half of the lanes, and the other one the high half.

use super::column::rows_inside;
use crate::Real;
use crate::depthwise::{DirectArgs, MOST_SHORT, MOST_TAPS, TileOutput, tails_fit_in_one};
use crate::simd::{Simd, lanes_in_row};

/// The least rows of a tile that shares vectors with another one. Lower tiles are rare where
/// there are several, and each height is code of its own. At this height only the first and the
/// last tile see rows outside of X.
const LEAST_HALVED: usize = MOST_TAPS;

/// The most rows before and behind a tile that may be missing in X. A column of taps reaches one
/// row less than it has taps.
const MOST_MISSING: usize = 2 * (MOST_TAPS - 1);

/// Whether two tiles below one another share the last vectors of their rows, which are at most
/// half full.
pub(super) fn halves_tails<V: Simd, const R: usize>(output: &TileOutput<V::Elem>) -> bool {
    has_halves::<V>(R) && tails_fit_in_one(output.width, V::LANES, output.tiles)
}

/// Whether tiles of `mr` rows have code to share vectors.
pub(crate) const fn has_halves<V: Simd>(mr: usize) -> bool {
    V::MASKS && mr >= LEAST_HALVED
}

/// What planes have in common in [`direct_halves`].
pub(super) struct Halves {
    /// For each column, the lanes of half a vector that are in X, in the last vector of a row.
    lanes: [u32; MOST_SHORT],
    edges: [EdgeRows; 2],
}

impl Halves {
    /// # Safety
    /// Memory: as [`DirectArgs`] states for `R`.
    pub(super) unsafe fn new<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<'_, V::Elem>) -> Self {
        let mut halves = Self { lanes: [0; MOST_SHORT], edges: [[0; MOST_MISSING]; 2] };
        for (i, lanes) in halves.lanes.iter_mut().enumerate().take(args.columns.len()) {
            // SAFETY: the caller's promise.
            let position =
                unsafe { args.columns.get_unchecked(i).position } + ((args.output.vectors - 1) * V::LANES) as isize;
            let (from, to) = lanes_in_row(V::LANES / 2, position, args.step);
            *lanes = if from < to { (1 << to) - (1 << from) } else { 0 };
        }
        for (edges, tile) in halves.edges.iter_mut().zip([0, (args.output.tiles / 2 - 1) * 2]) {
            let inside = [tile, tile + 1].map(|tile| rows_inside(args, args.input.row + (tile * R) as isize));
            for (edge, lanes) in edges.iter_mut().enumerate().take(2 * (N - 1)) {
                let row = if edge < N - 1 { edge } else { R + edge - (N - 1) };
                let [low, high] = inside.map(|(from, to)| from <= row && row < to);
                *lanes = (u32::from(low) | u32::from(high) << (V::LANES / 2)) * (V::ALL >> (V::LANES / 2));
            }
        }
        halves
    }
}

/// For each row before or behind two tiles that share vectors: the lanes of the halves in which
/// that row exists. A half has all of its lanes, or none. There is one list for the first two
/// tiles, and one for the last two.
type EdgeRows = [u32; MOST_MISSING];

/// The list that is passed where no row is missing. It is not read.
pub(super) const NO_EDGES: EdgeRows = [0; MOST_MISSING];

/// Computes the last vectors of the rows of `direct_columns`, for pairs of tiles.
///
/// # Safety
/// CPU: the ISA of `V`. [`halves_tails`] holds for the output. Memory: as [`DirectArgs`] states
/// for `R`.
#[inline(always)]
pub(super) unsafe fn direct_halves<V: Simd, const R: usize, const N: usize>(
    args: &DirectArgs<'_, V::Elem>,
    plane: usize,
    halves: &Halves,
) {
    // SAFETY: as in direct_columns; the lanes leave out what lies outside of the rows of X.
    unsafe {
        let output = &args.output;
        let bias = V::splat(*output.epilogue.bias.add(plane));
        let pairs = output.tiles / 2;
        for pair in 0..pairs {
            let mut acc = [bias; R];
            let row = args.input.row + (pair * 2 * R) as isize;
            let x = args.row(plane, row);
            let x = x.wrapping_add((output.vectors - 1) * V::LANES);
            let mut w = args.weights(plane);
            for i in 0..args.columns.len() {
                let x = x.wrapping_offset(args.columns.get_unchecked(i).offset);
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

/// [`sum_column`](super::column::sum_column) for two tiles. The low half of each vector sees the
/// rows at `x`, `x + step`, and so on; the high half sees the rows that are `R` rows further on.
/// Either half loads the lanes that are set in `lanes`. If `EDGE`, the first and last N - 1 rows
/// load only the lanes that `edges` has for them.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: those lanes are readable. `w` is readable for
/// `N` weights.
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
                            // Lanes of missing rows keep their sums, as in other tiles. Adding a
                            // zero product would not do: -0 + 0 is 0.
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

/// [`store`](super::column::store) for the last vector of the rows of two tiles. Each half of a
/// vector is one tile, and the first tile begins at `at`.
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
        if !output.epilogue.residual.is_null() {
            let residual = output.epilogue.residual.add(at);
            for r in 0..R {
                let residual = residual.add(r * output.y_row);
                acc[r] = acc[r].add(V::load_halves(residual, residual.add(second), [(1 << n) - 1; 2]));
            }
        }
        if !output.epilogue.is_plain() {
            for r in 0..R {
                acc[r] = acc[r].clamp(V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
            }
        }
        let mut y = V::advance(output.y.add(at), 0);
        for r in 0..R {
            acc[r].store_halves(y.cast_mut(), y.wrapping_add(second).cast_mut(), n);
            y = V::advance(y, output.y_row);
        }
    }
}
