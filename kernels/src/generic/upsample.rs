//! Depthwise transposed convolution of stride 2, straight from X: all phases of the last axis together, interleaved in registers.
//!
//! Before it is cropped, row `u` of the output is the sum over the taps `k` of its phase, `k = u % SH + SH * t`, of row `u / SH - t` of X. A step makes the SH
//! rows of output that see the same rows of X, a pair of vectors of each at a time: of each row of X it loads the vectors that the taps along
//! the row see, at most three, each at its shift, and each serves all taps of all phases that see it. Steps go down the rows, so that Y is written
//! in the order of its rows.
//!
//! Most pairs of most steps lie inside X and Y: a loop with neither masks nor choices. The others, at the ends of rows and at the top and the bottom, load by
//! masks, and ask for each row whether it is there.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the vectors are split into registers; loops over iterators do not, and spill them"
)]

use crate::Real;
use crate::simd::{LEAST_ROW, Simd};
use crate::upsample::UpsampleArgs;

/// Vectors of a row of X, and rows, that a step holds, at the most.
const MOST_HELD: usize = 3;

/// Taps of a kernel, at the most.
const MOST_TAPS: usize = 25;

/// The element of X that tap `k` reads along a row lies this far from the one that the phase's output is made at: `odd` is what the padding is modulo 2.
const fn shift(k: usize, odd: usize) -> isize {
    let phase = (k + odd) % 2;
    (phase as isize + odd as isize - k as isize) / 2
}

/// What a kernel of `kw` taps holds of a row: the first shift, and how many there are.
const fn shifts(kw: usize, odd: usize) -> (isize, usize) {
    let (low, high) = (shift(kw - 1, odd), shift(0, odd));
    // The last tap but one is of the other phase.
    let low = if shift(kw - 2, odd) < low { shift(kw - 2, odd) } else { low };
    let high = if shift(1, odd) > high { shift(1, odd) } else { high };
    (low, (high - low) as usize + 1)
}

/// The kernel of `KH` x `KW` taps, of strides `SH` and 2, where the padding before a row is `ODD` modulo 2.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`UpsampleArgs`] states.
#[inline(always)]
pub(crate) unsafe fn upsample<V: Simd, const SH: usize, const KH: usize, const KW: usize, const ODD: usize>(
    args: &UpsampleArgs<V::Elem>,
) {
    const { assert!(KH * KW <= MOST_TAPS && KH <= SH * MOST_HELD && KW >= 2) };
    // SAFETY: the caller's promise, passed on: planes are as far apart as it says, and steps see the output's rows. Pairs of `inside` have all that they
    // see in rows of X, and whole vectors in rows of Y; the masks are those of the others.
    unsafe {
        let before = KH.div_ceil(SH) - 1;
        let edges = Edges::<V>::new(args, const { shifts(KW, ODD) });
        let (first, end) = (args.row / SH, (args.row + args.rows - 1) / SH + 1);
        for plane in 0..args.planes {
            let mut place = Place {
                x: args.x.wrapping_add(plane * args.x_plane),
                y: plane * args.y_plane,
                bias: V::splat(*args.bias.add(plane)),
                w: args.w.add(plane * args.w_plane),
                held: [V::load_scalars(args.w.add(plane * args.w_plane), 1); MOST_TAPS],
            };
            for tap in (0..KH * KW).step_by(V::SCALARS) {
                place.held[tap / V::SCALARS] = V::load_scalars(place.w.add(tap), KH * KW - tap);
            }
            for step in first..end {
                let is_whole = step * SH >= args.row && (step + 1) * SH <= args.row + args.rows;
                if is_whole && step >= before && step < args.height {
                    let (head, tail) = edges.inside;
                    for pair in 0..head {
                        pairs::<V, SH, KH, KW, ODD, true>(args, &place, step, pair, &edges);
                    }
                    for pair in head..tail {
                        pairs::<V, SH, KH, KW, ODD, false>(args, &place, step, pair, &edges);
                    }
                    for pair in tail..edges.pairs {
                        pairs::<V, SH, KH, KW, ODD, true>(args, &place, step, pair, &edges);
                    }
                } else {
                    for pair in 0..edges.pairs {
                        pairs::<V, SH, KH, KW, ODD, true>(args, &place, step, pair, &edges);
                    }
                }
            }
        }
    }
}

/// A plane of X and of Y.
struct Place<V: Simd> {
    x: *const V::Elem,
    /// Where its output begins.
    y: usize,
    bias: V,
    w: *const V::Elem,
    /// The weights, where all of them have registers.
    held: [V::Scalars; MOST_TAPS],
}

/// The pairs of output vectors along a row.
struct Edges<V: Simd> {
    pairs: usize,
    /// The pairs that see nothing beside a row of X, and are whole vectors.
    inside: (usize, usize),
    /// Masks for each shift: of the first pair, of two pairs behind those inside, and of pairs inside.
    masks: [[V::Mask; MOST_HELD]; 4],
}

impl<V: Simd> Edges<V> {
    /// # Safety
    /// CPU: the ISA of `V`.
    #[inline(always)]
    unsafe fn new(args: &UpsampleArgs<V::Elem>, (low, held): (isize, usize)) -> Self {
        let pairs = args.out_width.div_ceil(2 * V::LANES);
        let position = |pair: usize| (pair * V::LANES) as isize + args.shift + low;
        // Pairs of a row end before position `width`, all their shifts included; the last one may be a part.
        let behind = args.width as isize - (V::LANES + held - 1) as isize - position(0);
        let tail = if behind < 0 { 0 } else { (behind as usize / V::LANES + 1).min(args.out_width / (2 * V::LANES)) };
        let head = usize::from(position(0) < 0).min(tail);
        // SAFETY: rows are long enough for masks; the caller runs where the ISA is.
        unsafe {
            let mut masks = [[V::mask(0, V::LANES.max(LEAST_ROW)); MOST_HELD]; 4];
            for (masks, pair) in masks.iter_mut().zip([0, tail, tail + 1]) {
                for s in 0..MOST_HELD {
                    masks[s] = V::mask(position(pair) + s as isize, args.width);
                }
            }
            Self { pairs, inside: (head, tail), masks }
        }
    }
}

/// One step for one pair of output vectors.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`UpsampleArgs`] states; unless `EDGE`, all rows of the step are there, in X and in the output, and the pair is one of
/// [`Edges::inside`].
#[inline(always)]
unsafe fn pairs<V: Simd, const SH: usize, const KH: usize, const KW: usize, const ODD: usize, const EDGE: bool>(
    args: &UpsampleArgs<V::Elem>,
    place: &Place<V>,
    step: usize,
    pair: usize,
    edges: &Edges<V>,
) {
    // SAFETY: a row of X is read where there is one, and of it the lanes of the mask, or all where the caller promises them; stores and the residual end with
    // the output's row.
    unsafe {
        let (low, held) = const { shifts(KW, ODD) };
        let (lo, hi) = (V::splat(args.lo), V::splat(args.hi));
        let (head, tail) = edges.inside;
        let masks = match pair {
            _ if !EDGE => &edges.masks[3],
            _ if pair < head => &edges.masks[0],
            _ if pair < tail => &edges.masks[3],
            _ => &edges.masks[1 + usize::from(pair > tail)],
        };
        let mut rows = [[V::splat(V::Elem::ZERO); MOST_HELD]; MOST_HELD];
        for t in 0..KH.div_ceil(SH) {
            let row = step.wrapping_sub(t);
            if EDGE && row >= args.height {
                continue;
            }
            let x = place.x.wrapping_add(row * args.width + pair * V::LANES).wrapping_offset(args.shift + low);
            for s in 0..held {
                let x = x.wrapping_add(s);
                rows[t][s] = if EDGE { V::load_lanes(x, masks[s]) } else { V::load(x) };
            }
        }
        for r in 0..SH {
            let row = (step * SH + r).wrapping_sub(args.row);
            if EDGE && row >= args.rows {
                continue;
            }
            let mut sums = [place.bias; 2];
            for t in 0..KH.div_ceil(SH) {
                let k = r + SH * t;
                if k >= KH {
                    continue;
                }
                // Neighbouring taps add to different sums, so that none waits for the one before it.
                for tap in 0..KW {
                    let index = k * KW + tap;
                    let first = index / V::SCALARS * V::SCALARS;
                    // Weights that have no register are read where they are used: LLVM would keep them on the stack instead.
                    let scalars = if const { holds_weights::<V>(KH * KW) } {
                        place.held[index / V::SCALARS]
                    } else {
                        V::load_scalars(place.w.add(first), KH * KW - first)
                    };
                    let phase = (tap + ODD) % 2;
                    let x = rows[t][(shift(tap, ODD) - low) as usize];
                    sums[phase] = x.mul_add_scalar(scalars, index % V::SCALARS, sums[phase]);
                }
            }
            let (a, b) = sums[0].zip(sums[1]);
            let at = place.y + row * args.out_width + pair * 2 * V::LANES;
            for (i, x) in [(0, a), (1, b)] {
                let n = if EDGE { args.out_width.saturating_sub((2 * pair + i) * V::LANES) } else { V::LANES };
                let at = at + i * V::LANES;
                if n >= V::LANES {
                    let x = if args.residual.is_null() { x } else { x.add(V::load(args.residual.add(at))) };
                    x.clamp(lo, hi).store(args.y.add(at));
                } else if n > 0 {
                    let x = if args.residual.is_null() { x } else { x.add(V::load_first(args.residual.add(at), n)) };
                    x.clamp(lo, hi).store_first(args.y.add(at), n);
                }
            }
        }
    }
}

/// Whether `taps` weights stay in registers beside two rows' sums, their permutations, bias, bounds, and two vectors of X.
const fn holds_weights<V: Simd>(taps: usize) -> bool {
    taps.div_ceil(V::SCALARS) + 11 * V::REGISTERS <= V::REGISTER_FILE
}

/// Instantiates the kernels of one ISA and element type, and lists them in a table: `name(stride, taps down, taps along)`.
macro_rules! upsample_kernels {
    ($vector:ty, $isa:expr, #[$attr:meta], $table:ident: $($name:ident($sh:literal, $kh:literal, $kw:literal)),+ $(,)?) => {
        $(
            mod $name {
                use super::*;

                /// # Safety
                /// As the generic kernel's, for this ISA and size.
                #[$attr]
                pub(super) unsafe fn even(args: &crate::upsample::UpsampleArgs<<$vector as crate::simd::Simd>::Elem>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::upsample::upsample::<$vector, $sh, $kh, $kw, 0>(args) }
                }

                /// # Safety
                /// As the generic kernel's, for this ISA and size.
                #[$attr]
                pub(super) unsafe fn odd(args: &crate::upsample::UpsampleArgs<<$vector as crate::simd::Simd>::Elem>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::upsample::upsample::<$vector, $sh, $kh, $kw, 1>(args) }
                }
            }
        )+
        pub(crate) static $table: &[crate::UpsampleKernel<<$vector as crate::simd::Simd>::Elem>] = &[$(
            crate::UpsampleKernel {
                name: stringify!($name),
                isa: $isa,
                lanes: <$vector as crate::simd::Simd>::LANES,
                stride: $sh,
                kernel: ($kh, $kw),
                f: [$name::even, $name::odd],
            }
        ),+];
    };
    ($vector:ty, $isa:expr, #[$attr:meta], f32) => {
        $crate::generic::upsample::upsample_kernels! {
            $vector, $isa, #[$attr], F32:
            f32_upsample_2x2(2, 2, 2), f32_upsample_3x3(2, 3, 3), f32_upsample_4x4(2, 4, 4), f32_upsample_5x5(2, 5, 5),
            f32_upsample_1x2(1, 1, 2), f32_upsample_1x3(1, 1, 3), f32_upsample_1x4(1, 1, 4), f32_upsample_1x5(1, 1, 5),
        }
    };
    ($vector:ty, $isa:expr, #[$attr:meta], f64) => {
        $crate::generic::upsample::upsample_kernels! {
            $vector, $isa, #[$attr], F64:
            f64_upsample_2x2(2, 2, 2), f64_upsample_3x3(2, 3, 3), f64_upsample_4x4(2, 4, 4), f64_upsample_5x5(2, 5, 5),
            f64_upsample_1x2(1, 1, 2), f64_upsample_1x3(1, 1, 3), f64_upsample_1x4(1, 1, 4), f64_upsample_1x5(1, 1, 5),
        }
    };
}
pub(crate) use upsample_kernels;
