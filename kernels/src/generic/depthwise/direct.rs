//! Tiles along rows straight from X, with stride 1, and the choice between the ways to read X.

use super::column::{SAME, SOME, Views, WHOLE, every_lane, rows_inside, store, sum_column};
use super::strided::direct_pairs;
use crate::Real;
use crate::depthwise::{DirectArgs, DirectColumn, MOST_SHORT, MOST_TAPS, goes_by_rows, most_strided_taps};
use crate::simd::Simd;

/// Computes the tiles of [`tiles`](super::tiles) along rows, straight from X. Positions outside
/// of a row are masked, and rows outside of X are left out. Weights must be finite, because
/// masked positions are multiplied as zeros.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn direct<V: Simd, const R: usize>(args: &DirectArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if goes_by_rows::<V>() && args.is_by_rows {
            let offset = |i: usize| args.columns.get_unchecked(i).offset;
            return direct_threes::<V, R>(args, [offset(0), offset(1), offset(2)]);
        }
        if args.input.table.stride == 2 {
            return match args.input.table.taps {
                3 if most_strided_taps::<V>(R) >= 3 => direct_pairs::<V, R, 3>(args),
                5 if most_strided_taps::<V>(R) >= 5 => direct_pairs::<V, R, 5>(args),
                _ => unreachable!(),
            };
        }
        match args.input.table.taps {
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
unsafe fn direct_columns<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<'_, V::Elem>) {
    // SAFETY: DirectArgs promises the rows that are read. The masks leave out what lies outside
    // of them; in loose planes they may leave in lanes that no stored lane depends on, which are
    // readable. The output's contract covers the rest.
    unsafe {
        let output = &args.output;
        let is_square = (N == 3 || N == 5) && args.columns.len() == N;
        let is_whole =
            output.tiles == 1 && output.vectors == 1 && rows_inside(args, args.input.row) == (N / 2, R + N / 2);
        if is_square && is_whole {
            return whole_planes::<V, R, N>(args);
        }
        let (lo, hi) = (V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
        let (last, views) = (output.vectors - 1, Views::<V, 1>::new(args));
        for plane in 0..output.planes {
            let bias = V::splat(*output.epilogue.bias.add(plane));
            let w = args.weights(plane);
            let masked = &views.masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.input.row + (tile * R) as isize;
                // At most N - 1 rows are missing at either end.
                let inside = rows_inside(args, first);
                let is_edge = N > 1 && (inside.0 > 0 || inside.1 < R + N - 1);
                let x = args.row(plane, first);
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let (masks, masked) = (&views.masks[place], masked[place]);
                    let x = x.wrapping_add(vector * V::LANES);
                    let mut w = w;
                    for column in 0..args.columns.len() {
                        let (x, mask) =
                            (x.wrapping_offset(args.columns.get_unchecked(column).offset), masks[column][0]);
                        // A masked load of a whole vector costs less than one more loop.
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
        }
    }
}

/// [`direct_columns`] for `N` columns, on planes of one tile of one vector that are as high as
/// those of X between equal padding. There is little work for each plane, so that whatever planes
/// have in common is computed once, and columns follow one another without a loop.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn whole_planes<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<'_, V::Elem>) {
    // SAFETY: as in direct_columns.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
        let loose = args.loose.min(output.planes);
        for (from, to, lanes) in [(0, loose, output.width), (loose, output.planes, V::LANES)] {
            let mut columns = [(0_isize, every_lane::<V>(), false); N];
            for column in 0..N {
                let DirectColumn { position, offset, .. } = *args.columns.get_unchecked(column);
                let is_outside = position < 0 || position + lanes as isize > args.step as isize;
                columns[column] = (offset, V::mask(position, args.step), is_outside);
            }
            let mut x = args.row(from, args.input.row);
            let mut w = args.input.w.as_ptr().wrapping_add(from * args.input.w_plane);
            let mut at = from * output.y_plane;
            for plane in from..to {
                let mut acc = [V::splat(*output.epilogue.bias.add(plane)); R];
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
                x = x.wrapping_add(args.input.x_plane);
                w = w.wrapping_add(args.input.w_plane);
                at += output.y_plane;
            }
        }
    }
}

/// [`direct_columns`] for three columns of three taps, row by row. All weights are in registers,
/// so that a row of X is read once.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_threes<V: Simd, const R: usize>(args: &DirectArgs<'_, V::Elem>, offsets: [isize; 3]) {
    // SAFETY: as in direct_columns.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
        let (last, views) = (output.vectors - 1, Views::<V, 1>::new(args));
        for plane in 0..output.planes {
            let bias = V::splat(*output.epilogue.bias.add(plane));
            let w = args.weights(plane);
            let mut weights = [[V::splat(V::Elem::ZERO); 3]; 3];
            for column in 0..3 {
                for k in 0..3 {
                    weights[column][k] = V::splat(*w.add(column * 3 + k));
                }
            }
            let masked = &views.masked[usize::from(plane >= args.loose)];
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.input.row + (tile * R) as isize;
                let inside = rows_inside(args, first);
                let is_edge = inside.0 > 0 || inside.1 < R + 2;
                let x = args.row(plane, first);
                let next = if tile + 1 < output.tiles { R * args.step } else { args.next };
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let place = usize::from(vector > 0) + usize::from(vector > 0 && vector == last);
                    let x = x.wrapping_add(vector * V::LANES);
                    let (masks, rows) = (&views.masks[place], (x, args.step, next));
                    if is_edge {
                        sum_threes::<V, R, true, SOME>(&mut acc, rows, offsets, inside, masks, &weights);
                    } else if masked[place] != 0 {
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

/// Adds three columns of three taps each, at `offsets` from the rows at `x`, `x + step`, and so
/// on. Masks and edges are as in [`sum_column`]. The rows that lie `prefetch_distance` elements behind those
/// of the tile are prefetched.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the rows that exist, of R + 2 rows, are readable for a vector at
/// each offset, or for the lanes of the mask.
#[inline(always)]
unsafe fn sum_threes<V: Simd, const R: usize, const MASKED: bool, const EDGE: u8>(
    acc: &mut [V; R],
    (x, step, prefetch_distance): (*const V::Elem, usize, usize),
    offsets: [isize; 3],
    inside: (usize, usize),
    masks: &[[V::Mask; 1]; MOST_SHORT],
    weights: &[[V; 3]; 3],
) {
    // The compiler must not know this address: it would compute the addresses of all rows, and
    // keep them in memory from one vector to the next.
    let mut row = V::advance(x, 0);
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        // Straight-line code, as in sum_column.
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + 2 {
                    if $i >= 2 {
                        V::prefetch_near(row.wrapping_add(prefetch_distance));
                    }
                    if EDGE == WHOLE || (($i >= 2 || $i >= inside.0) && ($i < R || $i < inside.1)) {
                        for column in 0..3 {
                            let x = row.wrapping_offset(offsets[column]);
                            let x = if MASKED { V::load_lanes(x, masks[column][0]) } else { V::load(x) };
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
