//! Tiles along rows straight from X, with stride 2 along both axes.

use super::column::{Views, every_lane, rows_inside, store};
use crate::Real;
use crate::depthwise::{DirectArgs, DirectColumn, MOST_STRIDED, MOST_TAPS};
use crate::generic::VectorEpilogue;
use crate::simd::Simd;

/// Computes the tiles of [`direct`](super::direct()) with stride 2 along both axes, for three
/// columns of three taps. Two of the columns are a pair.
///
/// The sums go row by row. All nine weights are in registers, and a row of X is loaded once. A
/// row of X adds to at most two sums, so that no more than two sums are live, and tiles may
/// have any height.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`DirectArgs`] states for `args.mr`.
#[inline(always)]
pub(crate) unsafe fn threes<V: Simd>(args: &DirectArgs<'_, V::Elem>) {
    // SAFETY: as in direct_columns; a vector of output sees two vectors of X, and perhaps the
    // element before or behind them.
    unsafe {
        let output = &args.output;
        let last = output.vectors - 1;
        let is_left = args.columns.get_unchecked(1).is_pair;
        let DirectColumn { position, offset, .. } = *args.columns.get_unchecked(usize::from(is_left));
        // The third column lies left or right of the pair: its first index in the two vectors of X, the
        // position of its element beside these vectors, and the lane for this element.
        let (from, beside, lane) = if is_left { (-1, -1, 0) } else { (2, 2 * V::LANES as isize, V::LANES - 1) };
        let every = every_lane::<V>();
        let mut views =
            [StridedView::<V> { masks: [every; 2], from, beside: beside - lane as isize, lane: 1 << lane }; 3];
        let mut masked = [[false; 3]; 2];
        for (place, vector) in [(0, 0), (2, last)] {
            let from = position + (vector * 2 * V::LANES) as isize;
            // A third column on the right reads one more position.
            let stored = (output.width - vector * V::LANES).min(V::LANES) * 2 + usize::from(!is_left);
            let is_outside = |lanes: usize| from < 0 || from + lanes as isize > args.step as isize;
            views[place].masks = [V::mask(from, args.step), V::mask(from + V::LANES as isize, args.step)];
            if !(0..args.step as isize).contains(&(from + beside)) {
                views[place].lane = 0;
            }
            masked[0][place] = is_outside(stored);
            masked[1][place] = is_outside(2 * V::LANES);
        }
        for plane in 0..output.planes {
            let bias = V::splat(*output.epilogue.bias.add(plane));
            let w = args.weights(plane);
            // For each tap: the weights of the pair, then that of the third column. In memory, the taps
            // of even rows come first.
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
                let first = args.input.row + (tile * args.mr * 2) as isize;
                let x = args.row(plane, first).wrapping_offset(offset);
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

/// What [`threes`] reads of a row of X.
#[derive(Clone, Copy)]
struct StridedView<V: Simd> {
    /// The lanes in X, for both vectors that the pair reads.
    masks: [V::Mask; 2],
    /// The first index of the third column in these two vectors, of which it takes every second element.
    from: isize,
    /// The address offset of a vector that has the third column's element beside the two vectors in one
    /// lane, and that lane as a bit. `lane` is 0 if the element is not in X.
    beside: isize,
    lane: u32,
}

/// Loads a row of X for the three columns: the two of the pair, and the third one.
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

/// Adds the products of one row of X to a sum.
#[inline(always)]
fn add_three<V: Simd>(sum: V, x: [V; 3], w: [V; 3]) -> V {
    w[2].mul_add(x[2], w[1].mul_add(x[1], w[0].mul_add(x[0], sum)))
}

/// Computes a tile of [`threes`] that is one vector wide. It sees X from row `first` on, at
/// address `x`, and stores `n` elements of each row, from `at` of the output on. The rows that
/// lie `prefetch_distance` elements behind those of the tile are prefetched.
///
/// # Safety
/// CPU: the ISA of `V`, which has `MASKS`. Memory: as [`threes`], for this tile.
#[inline(always)]
unsafe fn roll<V: Simd, const MASKED: bool>(
    args: &DirectArgs<'_, V::Elem>,
    x: *const V::Elem,
    (at, n): (usize, usize),
    first: isize,
    view: &StridedView<V>,
    (bias, w): (V, &[[V; 3]; 3]),
    prefetch_distance: usize,
) {
    let (output, view, mut y) = (&args.output, *view, at);
    // Only the first two rows and the last two may be outside of X; rows in between exist.
    let is_there = |row: usize| ((first + row as isize) as usize) < args.input.height;
    // SAFETY: rows outside of X are left out; the rest is the caller's promise.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&output.epilogue, output.y, 0);
        // The compiler must not know this address: it would compute the addresses of all rows,
        // and keep them in memory.
        let mut row = V::advance(x, 0);
        let mut sum = bias;
        if is_there(0) {
            sum = add_three(sum, three::<V, MASKED>(row, &view), w[0]);
        }
        row = V::advance(row, args.step);
        for r in 1..args.mr {
            V::prefetch_near(row.wrapping_add(prefetch_distance));
            V::prefetch_near(row.wrapping_add(prefetch_distance).wrapping_add(V::LANES));
            if is_there(2 * r - 1) {
                sum = add_three(sum, three::<V, MASKED>(row, &view), w[1]);
            }
            row = V::advance(row, args.step);
            V::prefetch_near(row.wrapping_add(prefetch_distance));
            V::prefetch_near(row.wrapping_add(prefetch_distance).wrapping_add(V::LANES));
            let x = three::<V, MASKED>(row, &view);
            finish.store_first(add_three(sum, x, w[2]), y, n);
            sum = add_three(bias, x, w[0]);
            y += output.y_row;
            row = V::advance(row, args.step);
        }
        for k in 1..3 {
            V::prefetch_near(row.wrapping_add(prefetch_distance));
            V::prefetch_near(row.wrapping_add(prefetch_distance).wrapping_add(V::LANES));
            if is_there(2 * args.mr - 2 + k) {
                sum = add_three(sum, three::<V, MASKED>(row, &view), w[k]);
            }
            row = V::advance(row, args.step);
        }
        finish.store_first(sum, y, n);
        let _ = row;
    }
}

/// Computes the tiles of [`direct`](super::direct()) with stride 2 along both axes, for columns of
/// `N` taps. Two vectors of a row are split in registers: one half is what a column sees, the
/// other half is what the column to its right sees. So two columns are summed together.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
pub(super) unsafe fn direct_pairs<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<'_, V::Elem>) {
    // SAFETY: as in direct_columns; a vector of output sees two vectors of X.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
        let (last, views) = (output.vectors - 1, Views::<V, 2>::new(args));
        for plane in 0..output.planes {
            let bias = V::splat(*output.epilogue.bias.add(plane));
            let w = args.weights(plane);
            let masked = &views.masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.input.row + (tile * 2 * R) as isize;
                let inside = rows_inside(args, first);
                let x = args.row(plane, first);
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let (masks, masked) = (&views.masks[place], masked[place]);
                    let x = x.wrapping_add(vector * 2 * V::LANES);
                    // The taps of even rows come first, and those of odd rows behind all of them.
                    let mut w = [w, w.add(args.even)];
                    for column in 0..args.columns.len() {
                        let DirectColumn { offset, is_pair, .. } = *args.columns.get_unchecked(column);
                        let (x, mask) = (x.wrapping_offset(offset), masks[column]);
                        match (is_pair, (masked >> column) & 1 == 1) {
                            (true, false) => sum_pair::<V, R, N, true, false>(&mut acc, x, args.step, inside, mask, w),
                            (true, true) => sum_pair::<V, R, N, true, true>(&mut acc, x, args.step, inside, mask, w),
                            // A masked load of a whole vector costs less than one more loop.
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

/// [`sum_column`](super::column::sum_column) with stride 2, for one column, and if `PAIR` also
/// for the column to its right.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the rows that exist, of 2 R + N - 2 rows, are readable for two
/// vectors, or for the lanes of their masks. `w` is readable for the weights of the columns' even
/// and odd taps.
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
        // Straight-line code, as in sum_column. Taller tiles have no stride 2: this is
        // compiled for them, but never called.
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
