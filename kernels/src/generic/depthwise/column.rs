//! The parts of a tile kernel: which rows a tile reads, the sum of a tap column, and the store of a
//! tile.

use crate::Real;
use crate::depthwise::{DirectArgs, DirectColumn, MOST_SHORT, MOST_TAPS, TileOutput};
use crate::simd::{LEAST_ROW, Simd};

/// The mask with all lanes set.
///
/// # Safety
/// CPU: the ISA of `V`.
#[inline(always)]
pub(super) unsafe fn every_lane<V: Simd>() -> V::Mask {
    // SAFETY: the row has LEAST_ROW elements or more; the caller runs where the ISA is.
    unsafe { V::mask(0, V::LANES.max(LEAST_ROW)) }
}

/// `EDGE`: all rows that a tile reads exist.
pub(super) const WHOLE: u8 = 0;

/// `EDGE`: all rows that a tile reads exist except the first and the last N / 2. A constant, because
/// branches would keep the compiler from mixing multiply-adds and loads of several rows.
pub(super) const SAME: u8 = 1;

/// `EDGE`: an argument says which rows exist.
pub(super) const SOME: u8 = 2;

/// The range of rows that exist, relative to row `first` of X, for a tile that reads the rows from there
/// on.
pub(super) fn rows_inside<T>(args: &DirectArgs<'_, T>, first: isize) -> (usize, usize) {
    ((-first).max(0) as usize, (args.input.height as isize - first).max(0) as usize)
}

/// Adds one tap column of `N` taps to the sums, from the rows at `x`, `x + step`, and so on. If
/// `MASKED`, only the lanes of `mask` are loaded.
///
/// `EDGE` says which of the first and last N - 1 rows exist: [`WHOLE`], [`SAME`], or [`SOME`],
/// for which `inside` is the range of the rows that exist. Rows that do not exist are left out.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the rows that exist, of R + N - 1 rows, are readable for a
/// vector, or for the lanes of the mask. `w` is readable for `N` weights.
#[inline(always)]
pub(super) unsafe fn sum_column<
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
        // Straight-line code: LLVM does not unroll a loop of so many rows. Each row adds to N different
        // sums, so that no multiply-add waits for the one before.
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

/// Finishes a tile: adds the residual, clamps, and stores vector `vector` of the output's rows
/// from `at` on.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TileOutput`] states.
#[inline(always)]
pub(super) unsafe fn store<V: Simd, const R: usize>(
    acc: &mut [V; R],
    output: &TileOutput<V::Elem>,
    at: usize,
    vector: usize,
    (lo, hi): (V, V),
) {
    let at = at + vector * V::LANES;
    let n = (output.width - vector * V::LANES).min(V::LANES);
    // SAFETY: TileOutput promises that rows may be written, and the residual read, for `width`
    // elements; this vector has n of them. Where a whole vector is stored for n elements, it ends
    // in the next row of the tile.
    unsafe {
        if !output.epilogue.residual.is_null() {
            for r in 0..R {
                acc[r] = acc[r].add(V::load_first(output.epilogue.residual.add(at + r * output.y_row), n));
            }
        }
        let y = output.y.add(at);
        if !output.epilogue.is_plain {
            for r in 0..R {
                acc[r] = acc[r].clamp(lo, hi);
            }
        }
        // The pointer moves from row to row, as in sum_column.
        let mut y = V::advance(y, 0);
        if n == V::LANES {
            for r in 0..R {
                acc[r].store(y.cast_mut());
                y = V::advance(y, output.y_row);
            }
        } else if R > 1 && n == output.y_row && 2 * n >= V::LANES {
            // Rows are contiguous here. A whole vector reaches into the next row of the tile, which is
            // stored later and overwrites the excess.
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

/// What the vectors of a row read of X, if each reads `STRIDE` vectors of it. There are three places:
/// the first vector, the vectors in between, and the last one.
pub(super) struct Views<V: Simd, const STRIDE: usize> {
    /// For each place and column, the lanes that are in X.
    pub(super) masks: [[[V::Mask; STRIDE]; MOST_SHORT]; 3],
    /// For each place, a bit for each column: in the first list, whether a stored lane is outside of X;
    /// in the second, whether any lane is.
    pub(super) masked: [[u32; 3]; 2],
}

impl<V: Simd, const STRIDE: usize> Views<V, STRIDE> {
    /// # Safety
    /// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states.
    #[inline(always)]
    pub(super) unsafe fn new(args: &DirectArgs<'_, V::Elem>) -> Self {
        let output = &args.output;
        // SAFETY: the caller runs where the ISA is.
        let mut views = Self { masks: [[[unsafe { every_lane::<V>() }; STRIDE]; MOST_SHORT]; 3], masked: [[0; 3]; 2] };
        for (column, DirectColumn { position, is_pair, .. }) in args.columns.iter().enumerate() {
            for (place, vector) in [(0, 0), (2, output.vectors - 1)] {
                let from = position + (vector * STRIDE * V::LANES) as isize;
                let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.step as isize;
                // With stride 2, a single column uses every second lane.
                let outputs = (output.width - vector * V::LANES).min(V::LANES);
                let stored = STRIDE * outputs - usize::from(STRIDE == 2 && !is_pair);
                for s in 0..STRIDE {
                    // SAFETY: rows are long enough for masks; the caller runs where the ISA is.
                    views.masks[place][column][s] = unsafe { V::mask(from + (s * V::LANES) as isize, args.step) };
                }
                views.masked[0][place] |= u32::from(is_outside(stored)) << column;
                views.masked[1][place] |= u32::from(is_outside(STRIDE * V::LANES)) << column;
            }
        }
        views
    }
}
