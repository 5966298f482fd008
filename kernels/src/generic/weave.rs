//! Weaving: the phases of a stride, each a row of sums, interleaved into rows of output, with the epilogue.
//!
//! Phases of 1, 2, 4 and 8 are interleaved in registers; others an element at a time.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the vectors are split into registers; loops over iterators do not, and spill them"
)]

use crate::Real;
use crate::simd::Simd;
use crate::weave::{FetchArgs, PickArgs, RowPick, Run, SumArgs, WeaveArgs};

/// # Safety
/// CPU: the ISA of `V`. Memory: as [`WeaveArgs`] states.
#[inline(always)]
pub(crate) unsafe fn weave<V: Simd>(args: &WeaveArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on; every row and run is inside what it covers.
    unsafe {
        for c in 0..args.rows {
            for run in args.runs {
                match args.slots.len() {
                    1 => row::<V, 1>(args, run, c),
                    2 => row::<V, 2>(args, run, c),
                    4 => row::<V, 4>(args, run, c),
                    8 => row::<V, 8>(args, run, c),
                    _ => scattered::<V>(args, run, c),
                }
            }
        }
    }
}

/// Sums strands, and weaves them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states.
#[inline(always)]
pub(crate) unsafe fn sum<V: Simd>(args: &SumArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on; every run is inside what it covers. 8 accumulators hide the latency of FMA.
    unsafe {
        for run in args.runs {
            match args.sums.len() {
                1 => sum_run::<V, 1, 8>(args, run),
                2 => sum_run::<V, 2, 4>(args, run),
                4 => sum_run::<V, 4, 2>(args, run),
                _ => sum_run::<V, 8, 1>(args, run),
            }
        }
    }
}

/// One run, `NV` vectors of each of `P` strands at a time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states.
#[inline(always)]
unsafe fn sum_run<V: Simd, const P: usize, const NV: usize>(args: &SumArgs<'_, V::Elem>, run: &Run) {
    // SAFETY: all blocks but the last are whole, so that each begins at a vector of its strands, and NV <= MOST_VECTORS.
    unsafe {
        let mut done = 0;
        while done < run.len {
            let rest = run.len - done;
            if rest > P * V::LANES {
                sum_block::<V, P, NV>(args, run, done, rest.min(P * NV * V::LANES));
                done += rest.min(P * NV * V::LANES);
            } else {
                sum_block::<V, P, 1>(args, run, done, rest);
                done += rest;
            }
        }
    }
}

/// `n` outputs of a run from the `done`-th on: `NV` vectors of `P` strands.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states; `n <= P * NV * LANES`, and `done` is a multiple of `P * LANES`.
#[inline(always)]
unsafe fn sum_block<V: Simd, const P: usize, const NV: usize>(
    args: &SumArgs<'_, V::Elem>,
    run: &Run,
    done: usize,
    n: usize,
) {
    // SAFETY: the loads of a strand are NV whole vectors from `from + done / P` on, or one element further; the stores `n` elements from `at + done` on.
    unsafe {
        let (lo, hi) = (V::splat(args.lo), V::splat(args.hi));
        let x = args.x.wrapping_add(run.from + done / P);
        let mut strands = [[V::splat(args.bias); NV]; P];
        for p in 0..P {
            let (strand, next) = strand::<P>(run, p);
            let sum = args.sums.get_unchecked(strand);
            let x = x.wrapping_add(next);
            let mut acc = [V::splat(args.bias); NV];
            for (offset, w) in sum.koff.offsets().iter().zip(sum.w) {
                let (row, w) = (x.add(*offset as usize), V::splat(*w));
                for j in 0..NV {
                    acc[j] = w.mul_add(V::load(row.add(j * V::LANES)), acc[j]);
                }
            }
            strands[p] = acc;
        }
        let y = args.y.add(run.at + done);
        let residual = args.residual.wrapping_add(run.at + done);
        for j in 0..NV {
            let mut v = [V::splat(args.bias); P];
            for p in 0..P {
                v[p] = strands[p][j];
            }
            let v = interleave::<V, P>(v);
            for p in 0..P {
                let at = (j * P + p) * V::LANES;
                let n = n.saturating_sub(at).min(V::LANES);
                if n == V::LANES {
                    let x = if args.residual.is_null() { v[p] } else { v[p].add(V::load(residual.add(at))) };
                    x.clamp(lo, hi).store(y.add(at));
                } else if n > 0 {
                    let x = if args.residual.is_null() { v[p] } else { v[p].add(V::load_first(residual.add(at), n)) };
                    x.clamp(lo, hi).store_first(y.add(at), n);
                }
            }
        }
    }
}

/// Asks for the destination's cache lines in the L2 cache.
///
/// # Safety
/// CPU: the ISA of `V`. No memory is touched: a prefetch is a hint.
#[inline(always)]
pub(crate) unsafe fn fetch<V: Simd>(args: &FetchArgs<'_, V::Elem>) {
    let step = 64 / size_of::<V::Elem>();
    for c in 0..args.rows {
        for run in args.runs {
            let y = args.y.wrapping_add(c * args.ldy + run.at);
            for i in 0..run.len.div_ceil(step) {
                V::prefetch(y.wrapping_add(i * step));
            }
        }
    }
}

/// Picks phases of rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`PickArgs`] states.
#[inline(always)]
pub(crate) unsafe fn pick<V: Simd>(args: &PickArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match args.stride {
            1 => pick_rows::<V, 1>(args),
            2 => pick_rows::<V, 2>(args),
            3 => pick_rows::<V, 3>(args),
            4 => pick_rows::<V, 4>(args),
            _ => {
                for row in args.rows {
                    pad::<V>(args.dst, row);
                    let [from, to] = row.live;
                    for i in from..to {
                        *args.dst.add(row.dst + i) = *args.src.add(row.src + (i - from) * args.stride);
                    }
                }
            }
        }
    }
}

/// [`pick`] with a stride that the compiler knows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`PickArgs`] states.
#[inline(always)]
unsafe fn pick_rows<V: Simd, const STRIDE: usize>(args: &PickArgs<'_, V::Elem>) {
    // SAFETY: of each row, the loads begin at its first live element and end at its last one; the stores cover its live part.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        for row in args.rows {
            pad::<V>(args.dst, row);
            let [from, to] = row.live;
            let (src, dst) = (args.src.wrapping_add(row.src), args.dst.add(row.dst + from));
            let n = to - from;
            let mut at = 0;
            // Whole vectors, as long as an element follows that is picked, too.
            while at + V::LANES < n {
                let mut v = [zero; STRIDE];
                for s in 0..STRIDE {
                    let src = src.add(at * STRIDE + s * V::LANES);
                    V::prefetch(src.wrapping_add(args.next));
                    v[s] = V::load(src);
                }
                V::deinterleave(v)[0].store(dst.add(at));
                at += V::LANES;
            }
            if at < n {
                // Elements of the source up to the last that is picked.
                let needed = (n - at - 1) * STRIDE + 1;
                let mut v = [zero; STRIDE];
                for s in 0..STRIDE {
                    let src = src.add(at * STRIDE).wrapping_add(s * V::LANES);
                    V::prefetch(src.wrapping_add(args.next));
                    v[s] = V::load_first(src, needed.saturating_sub(s * V::LANES).min(V::LANES));
                }
                V::deinterleave(v)[0].store_first(dst.add(at), n - at);
            }
        }
    }
}

/// Zeros on both sides of a row's live part.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `dst + row.dst` is writable for `row.len` elements, `live[0] <= live[1] <= len`.
#[inline(always)]
unsafe fn pad<V: Simd>(dst: *mut V::Elem, row: &RowPick) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        for (from, to) in [(0, row.live[0]), (row.live[1], row.len)] {
            let mut at = from;
            while at < to {
                zero.store_first(dst.add(row.dst + at), (to - at).min(V::LANES));
                at += V::LANES;
            }
        }
    }
}

/// One run of one row, with `P` phases.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`WeaveArgs`] states.
#[inline(always)]
unsafe fn row<V: Simd, const P: usize>(args: &WeaveArgs<'_, V::Elem>, run: &Run, c: usize) {
    // SAFETY: the loads of a strand end at `from + (phase + len).div_ceil(P)` at the latest, the stores at `at + len` of the row.
    unsafe {
        let (lo, hi) = (V::splat(args.lo), V::splat(args.hi));
        let bias = V::splat(*args.bias.add(c));
        let mut strands = [args.sums; P];
        for p in 0..P {
            let (strand, next) = strand::<P>(run, p);
            strands[p] =
                args.sums.add(*args.slots.get_unchecked(strand) * args.step + c * args.pitch + run.from + next);
        }
        let y = args.y.add(c * args.ldy + run.at);
        let residual = args.residual.wrapping_add(c * args.ldy + run.at);
        let has_residual = !args.residual.is_null();
        let whole = run.len / (P * V::LANES);
        for i in 0..whole {
            let mut v = [bias; P];
            for p in 0..P {
                v[p] = V::load(strands[p].add(i * V::LANES));
            }
            let v = interleave::<V, P>(v);
            for j in 0..P {
                let at = (i * P + j) * V::LANES;
                let x = v[j].add(bias);
                let x = if has_residual { x.add(V::load(residual.add(at))) } else { x };
                x.clamp(lo, hi).store(y.add(at));
            }
        }
        let rest = run.len - whole * P * V::LANES;
        if rest > 0 {
            let mut v = [bias; P];
            for p in 0..P {
                v[p] = V::load_first(strands[p].add(whole * V::LANES), rest.saturating_sub(p).div_ceil(P));
            }
            let v = interleave::<V, P>(v);
            for j in 0..P {
                let n = rest.saturating_sub(j * V::LANES).min(V::LANES);
                if n > 0 {
                    let at = (whole * P + j) * V::LANES;
                    let x = v[j].add(bias);
                    let x = if has_residual { x.add(V::load_first(residual.add(at), n)) } else { x };
                    x.clamp(lo, hi).store_first(y.add(at), n);
                }
            }
        }
    }
}

/// The strand of element `p` of a run, and how many elements further than the run's it begins.
#[inline(always)]
fn strand<const P: usize>(run: &Run, p: usize) -> (usize, usize) {
    let strand = run.phase + p;
    if strand < P { (strand, 0) } else { (strand - P, 1) }
}

/// The lanes of 1, 2, 4 or 8 vectors in turn. Live: the vectors and as many results.
///
/// # Safety
/// CPU: the ISA of `V`.
#[inline(always)]
unsafe fn interleave<V: Simd, const P: usize>(v: [V; P]) -> [V; P] {
    let mut v = v;
    // Each round zips the strands that are half of all apart: after log2(P) rounds they are in order.
    let mut round = 1;
    while round < P {
        let from = v;
        for i in 0..P / 2 {
            // SAFETY: the caller runs where the ISA is.
            let (low, high) = unsafe { from[i].zip(from[i + P / 2]) };
            v[2 * i] = low;
            v[2 * i + 1] = high;
        }
        round *= 2;
    }
    v
}

/// One run of one row, with any number of phases.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`WeaveArgs`] states.
#[inline(always)]
unsafe fn scattered<V: Simd>(args: &WeaveArgs<'_, V::Elem>, run: &Run, c: usize) {
    // SAFETY: the loads of a strand end at `from + (phase + len).div_ceil(phases)` at the latest, the stores at `at + len` of the row.
    unsafe {
        let phases = args.slots.len();
        let bias = *args.bias.add(c);
        for p in 0..phases {
            let strand = run.phase + p;
            let (slot, next) = if strand < phases { (strand, 0) } else { (strand - phases, 1) };
            let slot = *args.slots.get_unchecked(slot);
            let strand = args.sums.add(slot * args.step + c * args.pitch + run.from + next);
            for i in 0..run.len.saturating_sub(p).div_ceil(phases) {
                let at = c * args.ldy + run.at + i * phases + p;
                let x = *strand.add(i) + bias;
                let x = if args.residual.is_null() { x } else { x + *args.residual.add(at) };
                let x = if x < args.lo { args.lo } else { x };
                *args.y.add(at) = if x > args.hi { args.hi } else { x };
            }
        }
    }
}
