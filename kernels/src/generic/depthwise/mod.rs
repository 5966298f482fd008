//! The direct kernels: sums over few channels stay in registers over all taps. And the passes that bring
//! X into the form that the kernels read.
//!
//! Output channels would share no input in a GEMM. The kernels share input between neighbouring outputs
//! instead: a tile is a column of R output rows, one vector wide. A tap column is N taps below one
//! another. Its N weights are in registers, and its R + N - 1 input rows are loaded once, at any
//! alignment, for R * N multiply-adds. Two orientations use the same code:
//!
//! * along rows: a vector is `LANES` neighbouring positions of one channel, and a weight is
//!   broadcast;
//! * along channels: a vector is one position of `LANES` channels, and the weights are vectors.
//!   This is for narrow planes, and for layers of a single axis: there the taps lie side by side
//!   in a row, but with channels as lanes they lie below one another.

mod column;
mod direct;
mod passes;
mod strided;

pub(crate) use self::direct::direct;
pub(crate) use self::passes::{gather, scatter};
pub(crate) use self::strided::threes;

use self::column::{WHOLE, every_lane, store, sum_column};
use crate::depthwise::{DepthwiseArgs, MOST_TAPS};
use crate::simd::Simd;

/// Computes tiles of `R` rows, for all planes, all tiles below one another, and all vectors side
/// by side.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn tiles<V: Simd, const R: usize, const VECTOR_WEIGHTS: bool>(args: &DepthwiseArgs<V::Elem>) {
    // SAFETY: every pointer below stays inside what DepthwiseArgs promises for these planes, tiles
    // and vectors.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.epilogue.lo), V::splat(output.epilogue.hi));
        for plane in 0..output.planes {
            let bias = V::splat(*output.epilogue.bias.add(plane));
            for tile in 0..output.tiles {
                let x = args.x.wrapping_add(plane * args.x_plane + tile * R * args.step);
                let at = plane * output.y_plane + tile * R * output.y_row;
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let x = x.wrapping_add(vector * args.x_vector);
                    sum_groups::<V, R, VECTOR_WEIGHTS>(&mut acc, args, plane, x);
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// Adds all taps for one vector of a tile with its input at `x`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseArgs`] states for `R`.
#[inline(always)]
unsafe fn sum_groups<V: Simd, const R: usize, const VECTOR_WEIGHTS: bool>(
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
                1 => sum::<V, R, 1, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                2 => sum::<V, R, 2, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                3 => sum::<V, R, 3, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                4 => sum::<V, R, 4, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                5 => sum::<V, R, 5, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                6 => sum::<V, R, 6, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
                _ => sum::<V, R, MOST_TAPS, VECTOR_WEIGHTS>(acc, x, step, offsets, w, columns),
            };
        }
    }
}

/// Adds `columns` tap columns of `N` taps each to the sums. Returns where the next offsets and
/// weights are.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `offsets` is readable for `columns` offsets, and `w` for
/// `columns * N` weights. For each offset and each i < R + N - 1, `x + offset + i * step` is
/// readable for a vector.
#[inline(always)]
unsafe fn sum<V: Simd, const R: usize, const N: usize, const VECTOR_WEIGHTS: bool>(
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
            let mask = every_lane::<V>();
            sum_column::<V, R, N, VECTOR_WEIGHTS, false, WHOLE>(acc, x, step, (0, R + N - 1), mask, w);
            w = w.add(N * weight);
            offsets = offsets.add(1);
        }
    }
    (offsets, w)
}
