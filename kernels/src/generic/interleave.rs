//! The interleaving kernels: the phases of a stride, each a row of sums, are interleaved into rows of
//! output, with the epilogue.
//!
//! 1, 2, 4 or 8 phases are interleaved in registers; other numbers of phases an element at a
//! time.

use super::VectorEpilogue;
use crate::Real;
use crate::interleave::{Deinterleave, DeinterleaveArgs, InterleaveArgs, OutputRun, PhaseCopy, SumArgs};
use crate::simd::{Simd, mask_in_row};
use crate::ukernel::EpilogueArgs;

/// # Safety
/// CPU: the ISA of `V`. Memory: as [`InterleaveArgs`] states.
#[inline(always)]
pub(crate) unsafe fn interleave<V: Simd>(args: &InterleaveArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on. Every run lies inside what the promise covers.
    unsafe {
        for run in args.runs {
            match args.slots.len() {
                1 => rows::<V, 1>(args, run),
                2 => rows::<V, 2>(args, run),
                4 => rows::<V, 4>(args, run),
                8 => rows::<V, 8>(args, run),
                _ => (0..args.rows).for_each(|c| scattered::<V>(args, run, c)),
            }
        }
    }
}

/// Sums phase rows, and interleaves them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states.
#[inline(always)]
pub(crate) unsafe fn sum<V: Simd>(args: &SumArgs<'_, V::Elem>) {
    // 8 accumulators hide the latency of FMA.
    // SAFETY: the caller's promise, passed on. Every run lies inside what the promise covers.
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

/// Sums and interleaves one run, `NV` vectors of each of `P` phase rows at a time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states.
#[inline(always)]
unsafe fn sum_run<V: Simd, const P: usize, const NV: usize>(args: &SumArgs<'_, V::Elem>, run: &OutputRun) {
    // SAFETY: all blocks but the last are whole, so that each block begins at a vector of its
    // phase rows, and NV <= MOST_VECTORS.
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

/// Sums and interleaves `n` outputs of a run, from output `done` on: `NV` vectors of `P` phase rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SumArgs`] states. `n <= P * NV * LANES`, and `done` is a
/// multiple of `P * LANES`.
#[inline(always)]
unsafe fn sum_block<V: Simd, const P: usize, const NV: usize>(
    args: &SumArgs<'_, V::Elem>,
    run: &OutputRun,
    done: usize,
    n: usize,
) {
    // SAFETY: the loads of a phase row are NV whole vectors from `from + done / P` on, or one
    // element further. The stores are `n` elements from `at + done` on.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&args.epilogue, args.y, run.at + done);
        let bias = V::splat(*args.epilogue.bias);
        let x = args.x.wrapping_add(run.from + done / P);
        let mut phase_rows = [[bias; NV]; P];
        for p in 0..P {
            let (phase, next) = phase_of::<P>(run, p);
            let sum = args.sums.get_unchecked(phase);
            let x = x.wrapping_add(next);
            let mut acc = [bias; NV];
            for (offset, w) in sum.koff.offsets.iter().zip(sum.w) {
                let (row, w) = (x.add(*offset as usize), V::splat(*w));
                for j in 0..NV {
                    acc[j] = w.mul_add(V::load(row.add(j * V::LANES)), acc[j]);
                }
            }
            phase_rows[p] = acc;
        }
        for j in 0..NV {
            let mut v = [bias; P];
            for p in 0..P {
                v[p] = phase_rows[p][j];
            }
            let v = interleave_vectors::<V, P>(v);
            for p in 0..P {
                let at = (j * P + p) * V::LANES;
                let n = n.saturating_sub(at).min(V::LANES);
                if n == V::LANES {
                    finish.store(v[p], at);
                } else if n > 0 {
                    finish.store_first(v[p], at, n);
                }
            }
        }
    }
}

/// Deinterleaves phases of rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DeinterleaveArgs`] states.
#[inline(always)]
pub(crate) unsafe fn deinterleave<V: Simd>(args: &DeinterleaveArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match (args.copy.stride, args.copy.phases.len()) {
            (1, _) => deinterleave_rows::<V, 1, 1>(args),
            (2, 1) => deinterleave_rows::<V, 2, 1>(args),
            (2, _) => deinterleave_rows::<V, 2, 2>(args),
            (3, 1) => deinterleave_rows::<V, 3, 1>(args),
            (3, _) => deinterleave_rows::<V, 3, 3>(args),
            (4, 1) => deinterleave_rows::<V, 4, 1>(args),
            (4, _) => deinterleave_rows::<V, 4, 4>(args),
            _ => deinterleave_blocks::<V>(args),
        }
    }
}

/// [`deinterleave`] for a stride that the compiler knows. One phase is copied, or any of the `P` phases
/// of the stride.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DeinterleaveArgs`] states.
#[inline(always)]
unsafe fn deinterleave_rows<V: Simd, const STRIDE: usize, const P: usize>(args: &DeinterleaveArgs<'_, V::Elem>) {
    let copy = &args.copy;
    let base = copy.phases[0].offset;
    // A phase that is not copied goes where the one before it goes, which is stored later.
    let mut slots = [copy.phases[0].dst; P];
    for phase in copy.phases {
        slots[phase.offset - base..].fill(phase.dst);
    }
    for plane in 0..copy.planes {
        let src = args.src.wrapping_add(plane.wrapping_mul(copy.src_pitch));
        let dst = args.dst.wrapping_add(plane * copy.dst_pitch);
        let mut at = 0;
        while at < copy.len {
            let position = |at: usize| copy.first + (base + at * STRIDE) as isize;
            // The vectors that lie inside the rows and are full. Others are copied one at a time,
            // for all rows with the same masks.
            let inside =
                usize::try_from(position(at)).map_or(0, |position| copy.width.saturating_sub(position) / STRIDE);
            let whole = inside.min(copy.len - at) / V::LANES;
            if whole == 0 {
                // The last vector overlaps the one before it, because a masked store is slow.
                at = at.min(copy.len.saturating_sub(V::LANES));
            }
            let run = VectorRun { copy, position: position(at), whole, n: (copy.len - at).min(V::LANES), slots };
            // SAFETY: the caller's promise. The stores are of elements from `at` on: `n` of them,
            // or all of the whole vectors.
            unsafe {
                match whole {
                    0 => run.copy_masked::<V, STRIDE>(src, dst.wrapping_add(at)),
                    _ => run.copy_whole::<V, STRIDE>(src, dst.wrapping_add(at)),
                }
            }
            at += whole.max(1) * V::LANES;
        }
    }
}

/// Some vectors of each phase, for all rows.
struct VectorRun<'a, const P: usize> {
    copy: &'a Deinterleave<'a>,
    /// Where the vectors begin in a row of the source.
    position: isize,
    /// How many of them lie inside the rows.
    whole: usize,
    /// Elements that are stored of a vector that does not lie inside.
    n: usize,
    /// Where each phase goes. Later phases are stored first.
    slots: [usize; P],
}

impl<const P: usize> VectorRun<'_, P> {
    /// Copies the whole vectors, row after row.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: each row of `src` is readable for the width of the copy, and the
    /// whole vectors lie in it. Each row of `dst` is writable for as many vectors at each slot.
    #[inline(always)]
    unsafe fn copy_whole<V: Simd, const STRIDE: usize>(&self, src: *const V::Elem, dst: *mut V::Elem) {
        let prefetch_distance = self.copy.prefetch_distance;
        for row in self.copy.rows {
            let dst = self.slots.map(|slot| dst.wrapping_add(row.dst + slot));
            let Some(begin) = row.src else {
                // SAFETY: the caller's promise.
                dst.iter().for_each(|dst| unsafe { clear::<V>(*dst, self.whole * V::LANES) });
                continue;
            };
            let src = src.wrapping_add(begin).wrapping_offset(self.position);
            for at in 0..self.whole {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut v = [V::splat(V::Elem::ZERO); STRIDE];
                    for s in 0..STRIDE {
                        let src = src.wrapping_add((at * STRIDE + s) * V::LANES);
                        V::prefetch(src.wrapping_add(prefetch_distance));
                        v[s] = V::load(src);
                    }
                    v = V::deinterleave(v);
                    for p in (0..P).rev() {
                        v[p].store(dst[p].wrapping_add(at * V::LANES));
                    }
                }
            }
        }
    }

    /// Copies one vector, in the lanes that lie in a row.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: each row of `src` is readable for the width of the copy. Each row
    /// of `dst` is writable for `n` elements at each slot.
    #[inline(always)]
    unsafe fn copy_masked<V: Simd, const STRIDE: usize>(&self, src: *const V::Elem, dst: *mut V::Elem) {
        let prefetch_distance = self.copy.prefetch_distance;
        let mut masks = [0; STRIDE];
        for s in 0..STRIDE {
            masks[s] = mask_in_row(V::LANES, self.position + (s * V::LANES) as isize, self.copy.width);
        }
        for row in self.copy.rows {
            // SAFETY: the caller's promise. The masks only have lanes that lie in a row.
            unsafe {
                let mut v = [V::splat(V::Elem::ZERO); STRIDE];
                if let Some(begin) = row.src {
                    let src = src.wrapping_add(begin).wrapping_offset(self.position);
                    for s in 0..STRIDE {
                        let src = src.wrapping_add(s * V::LANES);
                        V::prefetch(src.wrapping_add(prefetch_distance));
                        v[s] = V::load_mask(src, masks[s]);
                    }
                    v = V::deinterleave(v);
                }
                for p in (0..P).rev() {
                    let dst = dst.wrapping_add(row.dst + self.slots[p]);
                    if self.n == V::LANES { v[p].store(dst) } else { v[p].store_first(dst, self.n) }
                }
            }
        }
    }
}

/// Number of neighbouring phases from which on a block of elements is transposed. Fewer phases
/// are copied an element at a time, because a transposition costs the same for any number of
/// phases.
const FEW_PHASES: usize = 4;

/// [`deinterleave`] for any stride. Neighbouring phases are read together, and transposed.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DeinterleaveArgs`] states.
#[inline(always)]
unsafe fn deinterleave_blocks<V: Simd>(args: &DeinterleaveArgs<'_, V::Elem>) {
    let copy = &args.copy;
    for (plane, row) in (0..copy.planes).flat_map(|plane| copy.rows.iter().map(move |row| (plane, row))) {
        let dst = args.dst.wrapping_add(plane * copy.dst_pitch + row.dst);
        let mut phases = copy.phases;
        while let [phase, ..] = phases {
            let is_next = |(i, other): (usize, &PhaseCopy)| other.offset == phase.offset + i;
            let near = phases.iter().take(V::LANES).enumerate().take_while(|other| is_next(*other)).count();
            let (here, behind) = phases.split_at(if near < FEW_PHASES { 1 } else { near });
            phases = behind;
            // SAFETY: the caller's promise, passed on.
            unsafe {
                match row.src {
                    None => here.iter().for_each(|phase| clear::<V>(dst.add(phase.dst), copy.len)),
                    Some(begin) => {
                        let src = args.src.wrapping_add(plane.wrapping_mul(copy.src_pitch)).wrapping_add(begin);
                        match here {
                            [phase] => deinterleave_one::<V>(copy, src, phase, dst.add(phase.dst)),
                            _ => deinterleave_near::<V>(copy, src, here, dst),
                        }
                    }
                }
            }
        }
    }
}

/// Stores `len` zeros.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `dst` is writable for `len` elements.
#[inline(always)]
unsafe fn clear<V: Simd>(dst: *mut V::Elem, len: usize) {
    for at in (0..len).step_by(V::LANES) {
        // SAFETY: the caller's promise.
        unsafe { V::splat(V::Elem::ZERO).store_first(dst.add(at), (len - at).min(V::LANES)) };
    }
}

/// Deinterleaves one phase of one row, an element at a time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `src` is readable for the row, `dst` writable for the phase.
#[inline(always)]
unsafe fn deinterleave_one<V: Simd>(
    copy: &Deinterleave<'_>,
    src: *const V::Elem,
    phase: &PhaseCopy,
    dst: *mut V::Elem,
) {
    let mut position = copy.first + phase.offset as isize;
    for i in 0..copy.len {
        let is_inside = usize::try_from(position).is_ok_and(|position| position < copy.width);
        // SAFETY: the caller's promise, of what lies in the row.
        unsafe { *dst.add(i) = if is_inside { *src.offset(position) } else { V::Elem::ZERO } };
        // Behind the last element it is not used.
        position = position.wrapping_add(copy.stride as isize);
    }
}

/// Deinterleaves up to `LANES` neighbouring phases of one row. A vector holds all phases of one element;
/// the vectors are transposed.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `src` is readable for the row. `dst` is writable at each phase's
/// place for its elements.
#[inline(always)]
unsafe fn deinterleave_near<V: Simd>(
    copy: &Deinterleave<'_>,
    src: *const V::Elem,
    phases: &[PhaseCopy],
    dst: *mut V::Elem,
) {
    let first = copy.first + phases[0].offset as isize;
    for at in (0..copy.len).step_by(V::LANES) {
        let n = (copy.len - at).min(V::LANES);
        // Straight-line code: a loop would keep the vectors in memory.
        // SAFETY: the caller's promise. The masks only have lanes that lie in the row.
        unsafe {
            let mut v = [V::splat(V::Elem::ZERO); 16];
            macro_rules! each {
                ($action:ident: $($i:literal)+) => {$(
                    if $i < V::LANES {
                        $action!($i);
                    }
                )+};
            }
            macro_rules! read {
                ($i:literal) => {
                    let position = first + ((at + $i.min(n - 1)) * copy.stride) as isize;
                    v[$i] = V::load_mask(src.wrapping_offset(position), mask_in_row(V::LANES, position, copy.width));
                };
            }
            macro_rules! write {
                ($i:literal) => {
                    if let Some(phase) = phases.get($i) {
                        v[$i].store_first(dst.add(phase.dst + at), n);
                    }
                };
            }
            each!(read: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            V::transpose(&mut v);
            each!(write: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    }
}

/// Interleaves one run of all rows, with `P` phases.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`InterleaveArgs`] states.
#[inline(always)]
unsafe fn rows<V: Simd, const P: usize>(args: &InterleaveArgs<'_, V::Elem>, run: &OutputRun) {
    // SAFETY: the loads of a phase row end at `from + (phase + len).div_ceil(P)` at the latest, the
    // stores at `at + len` of the row.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&args.epilogue, args.y, 0);
        // What rows have in common is computed once, because there is little work for each row.
        let mut phase_rows = [args.sums; P];
        for p in 0..P {
            let (phase, next) = phase_of::<P>(run, p);
            phase_rows[p] = args.sums.add(*args.slots.get_unchecked(phase) * args.step + run.from + next);
        }
        let mut at = run.at;
        let whole = run.len / (P * V::LANES);
        let rest = run.len - whole * P * V::LANES;
        for c in 0..args.rows {
            let bias = V::splat(*args.epilogue.bias.add(c));
            for i in 0..whole {
                let mut v = [bias; P];
                for p in 0..P {
                    v[p] = V::load(phase_rows[p].add(i * V::LANES));
                }
                let v = interleave_vectors::<V, P>(v);
                for j in 0..P {
                    let at = at + (i * P + j) * V::LANES;
                    finish.store(v[j].add(bias), at);
                }
            }
            if rest > 0 {
                let mut v = [bias; P];
                for p in 0..P {
                    v[p] = V::load_first(phase_rows[p].add(whole * V::LANES), rest.saturating_sub(p).div_ceil(P));
                }
                let v = interleave_vectors::<V, P>(v);
                for j in 0..P {
                    let n = rest.saturating_sub(j * V::LANES).min(V::LANES);
                    if n > 0 {
                        finish.store_first(v[j].add(bias), at + (whole * P + j) * V::LANES, n);
                    }
                }
            }
            // Behind the last row neither is used, and the distances may be of any size.
            for p in 0..P {
                phase_rows[p] = phase_rows[p].wrapping_add(args.pitch);
            }
            at = at.wrapping_add(args.ldy);
        }
    }
}

/// The phase row that element `p` of a run belongs to, and how many elements behind the run's
/// beginning it starts in that phase row: 0 or 1.
#[inline(always)]
fn phase_of<const P: usize>(run: &OutputRun, p: usize) -> (usize, usize) {
    let phase = run.phase + p;
    if phase < P { (phase, 0) } else { (phase - P, 1) }
}

/// Interleaves the lanes of 1, 2, 4 or 8 vectors. Live registers: the vectors, and as many
/// results.
#[inline(always)]
fn interleave_vectors<V: Simd, const P: usize>(v: [V; P]) -> [V; P] {
    let mut v = v;
    // Each round zips the phase rows that are P / 2 apart: after log2(P) rounds they are in order.
    let mut round = 1;
    while round < P {
        let from = v;
        for i in 0..P / 2 {
            (v[2 * i], v[2 * i + 1]) = from[i].zip(from[i + P / 2]);
        }
        round *= 2;
    }
    v
}

/// Interleaves one run of one row, with any number of phases.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`InterleaveArgs`] states.
#[inline(always)]
unsafe fn scattered<V: Simd>(args: &InterleaveArgs<'_, V::Elem>, run: &OutputRun, c: usize) {
    // SAFETY: the loads of a phase row end at `from + (phase + len).div_ceil(phases)` at the latest,
    // the stores at `at + len` of the row.
    unsafe {
        let phases = args.slots.len();
        let EpilogueArgs { bias, residual, lo, hi, .. } = args.epilogue;
        for p in 0..phases {
            let phase_row = run.phase + p;
            let (slot, next) = if phase_row < phases { (phase_row, 0) } else { (phase_row - phases, 1) };
            let slot = *args.slots.get_unchecked(slot);
            let phase_row = args.sums.add(slot * args.step + c * args.pitch + run.from + next);
            for i in 0..run.len.saturating_sub(p).div_ceil(phases) {
                let at = c * args.ldy + run.at + i * phases + p;
                let x = *phase_row.add(i) + *bias.add(c);
                let x = if residual.is_null() { x } else { x + *residual.add(at) };
                let x = if x < lo { lo } else { x };
                *args.y.add(at) = if x > hi { hi } else { x };
            }
        }
    }
}
