//! The kernels of depthwise ConvTranspose with stride 2, straight from X. All phases of the last axis
//! are computed at once, and interleaved in registers.
//!
//! Row `u` of the uncropped output is the sum over the taps `k = u % SH + SH * t` of its phase, each
//! applied to row `u / SH - t` of X. One step computes a pair of vectors of the SH output rows that read
//! the same rows of X. From each of these rows of X it loads the vectors that the taps along the row
//! read: one for each shift, at most three. Each vector serves all taps of all phases. Steps go down the
//! rows, so that rows of Y are written in order.
//!
//! Most pairs of most steps lie inside X and Y, and run in a loop without masks and choices. The others,
//! at the ends of rows and at top and bottom, load by masks, and check for each row whether it exists.

use crate::Real;
use crate::depthwise_transposed::DepthwiseTransposedArgs;
use crate::simd::{LEAST_ROW, Simd};
use crate::ukernel::EpilogueArgs;

/// Vectors of a row of X that a step holds in registers, and rows, at most: 5 taps with stride 2 read as
/// many.
const MOST_HELD: usize = 3;

/// Taps of a kernel, at most: 5 x 5.
const MOST_TAPS: usize = 25;

/// The distance in X from the element at the output's position to the one that tap `k` reads. `odd` is
/// the padding modulo 2.
const fn shift(k: usize, odd: usize) -> isize {
    let phase = (k + odd) % 2;
    (phase as isize + odd as isize - k as isize) / 2
}

/// The vectors of a row that a kernel of `kw` taps holds: the least shift, and the number of shifts.
const fn shifts(kw: usize, odd: usize) -> (isize, usize) {
    let (low, high) = (shift(kw - 1, odd), shift(0, odd));
    // The last two taps belong to different phases.
    let low = if shift(kw - 2, odd) < low { shift(kw - 2, odd) } else { low };
    let high = if shift(1, odd) > high { shift(1, odd) } else { high };
    (low, (high - low) as usize + 1)
}

/// The kernel of `KH` x `KW` taps with strides `SH` and 2. `ODD` is the padding before a row
/// modulo 2.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseTransposedArgs`] states.
#[inline(always)]
pub(crate) unsafe fn depthwise_transposed<
    V: Simd,
    const SH: usize,
    const KH: usize,
    const KW: usize,
    const ODD: usize,
>(
    args: &DepthwiseTransposedArgs<'_, V::Elem>,
) {
    const { assert!(KH * KW <= MOST_TAPS && KH <= SH * MOST_HELD && KW >= 2) };
    // SAFETY: the caller's promise, passed on. Planes are as far apart as it says, and steps see
    // the output's rows. For pairs inside, everything that they see lies in rows of X, and both
    // vectors lie in rows of Y. Other pairs have masks. Whole steps have all of their rows.
    unsafe {
        let (input, output) = (&args.input, &args.output);
        let (low, held) = const { shifts(KW, ODD) };
        let before = KH.div_ceil(SH) - 1;
        let edges = PairEdges::<V>::new(args, (low, held));
        let (first, end) = (output.row / SH, (output.row + output.rows - 1) / SH + 1);
        for plane in 0..input.planes {
            let w = input.w.as_ptr().add(plane * KH * KW);
            let mut weights =
                Weights { bias: V::splat(*args.epilogue.bias.add(plane)), w, held: [V::load_scalars(w, 1); MOST_TAPS] };
            for tap in (0..KH * KW).step_by(V::SCALARS) {
                weights.held[tap / V::SCALARS] = V::load_scalars(w.add(tap), KH * KW - tap);
            }
            // LLVM must know nothing about these pointers: it would keep one for each row, vector and
            // edge in memory. Pointers to rows that do not exist are not used.
            let x = input.x.as_ptr().wrapping_add(plane * input.x_plane + first * input.width);
            let mut x = x.wrapping_offset(args.shift() + low);
            let y: *const V::Elem = args.y.wrapping_add(plane * output.plane);
            let mut y = y.wrapping_add(first * SH * output.width).wrapping_sub(output.row * output.width);
            for step in first..end {
                let has_all_outputs = step * SH >= output.row && (step + 1) * SH <= output.row + output.rows;
                let is_whole = has_all_outputs && step >= before && step < input.height;
                let mut place = Place { step, pair: 0, x, y };
                // Two loops: the choice of rows would take registers from the first one, which nearly
                // all steps use.
                while is_whole && place.pair < edges.pairs {
                    if (edges.head..edges.tail).contains(&place.pair) {
                        pairs::<V, SH, KH, KW, ODD, false, false>(args, &weights, &place, &edges);
                    } else {
                        pairs::<V, SH, KH, KW, ODD, true, false>(args, &weights, &place, &edges);
                    }
                    place.next();
                }
                while place.pair < edges.pairs {
                    pairs::<V, SH, KH, KW, ODD, true, true>(args, &weights, &place, &edges);
                    place.next();
                }
                x = V::advance(x, input.width);
                y = V::advance(y, SH * output.width);
            }
        }
    }
}

/// What depends on the channel.
struct Weights<V: Simd> {
    bias: V,
    w: *const V::Elem,
    /// The first weights, as many as registers are left.
    held: [V::Scalars; MOST_TAPS],
}

/// A step, and a pair of vectors of its output rows.
struct Place<V: Simd> {
    step: usize,
    pair: usize,
    /// Where row `step` of X begins for this pair, at the smallest shift; and where the step's first
    /// output row begins.
    x: *const V::Elem,
    y: *const V::Elem,
}

impl<V: Simd> Place<V> {
    #[inline(always)]
    fn next(&mut self) {
        self.pair += 1;
        self.x = V::advance(self.x, V::LANES);
        self.y = V::advance(self.y, 2 * V::LANES);
    }
}

/// The pairs of output vectors along a row, and what they read of X.
struct PairEdges<V: Simd> {
    pairs: usize,
    /// The pairs from `head` to `tail` read nothing outside of a row of X, and are whole vectors of Y.
    head: usize,
    tail: usize,
    /// Masks for each shift: for the first pair, for the two pairs behind those inside, and for the
    /// pairs inside.
    masks: [[V::Mask; MOST_HELD]; 4],
}

impl<V: Simd> PairEdges<V> {
    /// # Safety
    /// CPU: the ISA of `V`.
    #[inline(always)]
    unsafe fn new(args: &DepthwiseTransposedArgs<'_, V::Elem>, (low, held): (isize, usize)) -> Self {
        let (width, out_width) = (args.input.width, args.output.width);
        let pairs = out_width.div_ceil(2 * V::LANES);
        let position = |pair: usize| (pair * V::LANES) as isize + args.shift() + low;
        // A pair inside ends before position `width` at all of its shifts. The last pair may be
        // incomplete in Y.
        let behind = width as isize - (V::LANES + held - 1) as isize - position(0);
        let tail = if behind < 0 { 0 } else { (behind as usize / V::LANES + 1).min(out_width / (2 * V::LANES)) };
        let head = usize::from(position(0) < 0).min(tail);
        // SAFETY: rows are long enough for masks; the caller runs where the ISA is.
        unsafe {
            let mut masks = [[V::mask(0, V::LANES.max(LEAST_ROW)); MOST_HELD]; 4];
            for (masks, pair) in masks.iter_mut().zip([0, tail, tail + 1]) {
                for s in 0..MOST_HELD {
                    masks[s] = V::mask(position(pair) + s as isize, width);
                }
            }
            Self { pairs, head, tail, masks }
        }
    }
}

/// One step for one pair of output vectors.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseTransposedArgs`] states. Unless `MASKED`, the pair is one of
/// those inside. Unless `PARTIAL`, all rows of the step exist in X and in the output. A `PARTIAL`
/// step is also `MASKED`.
#[inline(always)]
unsafe fn pairs<
    V: Simd,
    const SH: usize,
    const KH: usize,
    const KW: usize,
    const ODD: usize,
    const MASKED: bool,
    const PARTIAL: bool,
>(
    args: &DepthwiseTransposedArgs<'_, V::Elem>,
    weights: &Weights<V>,
    &Place { step, pair, x, y }: &Place<V>,
    edges: &PairEdges<V>,
) {
    // SAFETY: a row of X is only read if it exists, in the lanes of the mask, or whole where the
    // caller promises that. Stores and the residual end with the output's row.
    unsafe {
        let (low, held) = const { shifts(KW, ODD) };
        let EpilogueArgs { residual, lo, hi, .. } = args.epilogue;
        let (lo, hi) = (V::splat(lo), V::splat(hi));
        let masks = if !MASKED || PARTIAL && (edges.head..edges.tail).contains(&pair) {
            3
        } else if pair < edges.head {
            0
        } else {
            1 + usize::from(pair > edges.tail)
        };
        let masks = edges.masks.get_unchecked(masks);
        let mut rows = [[V::splat(V::Elem::ZERO); MOST_HELD]; MOST_HELD];
        for t in 0..KH.div_ceil(SH) {
            if PARTIAL && step.wrapping_sub(t) >= args.input.height {
                continue;
            }
            let x = x.wrapping_sub(t * args.input.width);
            for s in 0..held {
                let x = x.wrapping_add(s);
                rows[t][s] = if MASKED { V::load_lanes(x, masks[s]) } else { V::load(x) };
            }
        }
        for r in 0..SH {
            if PARTIAL && (step * SH + r).wrapping_sub(args.output.row) >= args.output.rows {
                continue;
            }
            let mut sums = [weights.bias; 2];
            for t in 0..KH.div_ceil(SH) {
                let k = r + SH * t;
                if k >= KH {
                    continue;
                }
                // Neighbouring taps add to different sums, so that no multiply-add waits for the one
                // before.
                for tap in 0..KW {
                    let index = k * KW + tap;
                    let first = index / V::SCALARS * V::SCALARS;
                    // Weights without a register are read where they are used: otherwise LLVM would keep
                    // them on the stack.
                    let scalars =
                        if index / V::SCALARS < const { held_weights::<V>(KH.div_ceil(SH) * shifts(KW, ODD).1) } {
                            weights.held[index / V::SCALARS]
                        } else {
                            V::load_scalars(weights.w.add(first), KH * KW - first)
                        };
                    let phase = (tap + ODD) % 2;
                    let x = rows[t][(shift(tap, ODD) - low) as usize];
                    sums[phase] = x.mul_add_scalar(scalars, index % V::SCALARS, sums[phase]);
                }
            }
            let (a, b) = sums[0].zip(sums[1]);
            let y = y.wrapping_add(r * args.output.width);
            for (i, x) in [(0, a), (1, b)] {
                let n = if MASKED { args.output.width.saturating_sub((2 * pair + i) * V::LANES) } else { V::LANES };
                let y = y.wrapping_add(i * V::LANES).cast_mut();
                let mut x = x;
                // Only a residual needs the distance from the beginning of Y.
                if n >= V::LANES {
                    if !residual.is_null() {
                        x = x.add(V::load(residual.offset(y.offset_from(args.y))));
                    }
                    x.clamp(lo, hi).store(y);
                } else if n > 0 {
                    if !residual.is_null() {
                        x = x.add(V::load_first(residual.offset(y.offset_from(args.y)), n));
                    }
                    x.clamp(lo, hi).store_first(y, n);
                }
            }
        }
    }
}

/// Registers that are left for weights. The others hold `vectors` of X, the sums of two rows and their
/// results, tables of permutations, bias and bounds.
const fn held_weights<V: Simd>(vectors: usize) -> usize {
    V::REGISTER_FILE.saturating_sub((vectors + 10) * V::REGISTERS)
}
