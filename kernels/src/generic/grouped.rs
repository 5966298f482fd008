//! The direct kernels of several output channels: a register tile, straight from X.
//!
//! Output rows are as long as rows of X. A plane of X is then one run of positions, and a tap reads the
//! same run, shifted. A tile is MR output channels by NR positions, and may begin and end within rows.
//! Each vector of X is loaded once for all MR channels.
//!
//! A shift brings elements from the end of one row to the beginning of the next one, where padding
//! should be. These lanes are the same for a whole column of taps, and are zeroed. Only tiles near the
//! ends of the plane read rows outside of X, and load parts of vectors.

use super::VectorEpilogue;
use super::gemm::{Row, step};
use crate::Real;
use crate::grouped::{FlatArgs, FlatTap, FlatTaps};
use crate::simd::Simd;
use crate::ukernel::EpilogueArgs;

/// What tiles read of the table of taps, by value: by reference it would be read again for each tile,
/// because a store might have changed it.
struct FlatView {
    taps: *const FlatTap,
    columns: usize,
    column_len: usize,
    masks: *const u32,
    mask_pitch: usize,
    period: usize,
    border_masks: *const u32,
    gap: (usize, usize),
}

impl FlatView {
    #[inline(always)]
    fn new(table: &FlatTaps) -> Self {
        let &FlatTaps { columns, column_len, period, gap, .. } = table;
        let (taps, masks, border_masks) = (table.taps.as_ptr(), table.masks.as_ptr(), table.border_masks.as_ptr());
        Self { taps, columns, column_len, masks, mask_pitch: table.mask_pitch(), period, border_masks, gap }
    }
}

/// Computes tiles of `MR` output channels by `NRV` vectors, side by side.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states for `MR` and `NRV`.
#[inline(always)]
pub(crate) unsafe fn flat<V: Simd, const MR: usize, const NRV: usize>(args: &FlatArgs<'_, V::Elem>) {
    // SAFETY: the caller's promise, passed on. Tiles between the borders see only positions of
    // the plane.
    unsafe {
        let (table, mut prefetch) = (FlatView::new(args.taps), args.prefetch);
        for tile in 0..args.tiles {
            let (vector, done) = (args.first + tile * NRV, tile * NRV * V::LANES);
            let is_inside = vector >= args.taps.head && vector + NRV <= args.taps.tail;
            // Two calls and not one loop with both kinds of loads, between which LLVM would move the
            // sums from register to register.
            if is_inside {
                let acc = sum::<V, MR, NRV, false>(args, &table, vector, is_inside, prefetch);
                finish::<V, MR, NRV>(args, &acc, done);
            } else {
                let acc = sum::<V, MR, NRV, true>(args, &table, vector, is_inside, prefetch);
                finish::<V, MR, NRV>(args, &acc, done);
            }
            prefetch = prefetch.wrapping_add(args.prefetch_step.wrapping_mul(args.taps.steps()));
        }
    }
}

/// Computes the sums of the tile that begins with vector `vector` of the positions. `is_inside`
/// says that no tap sees a position before or behind the plane.
///
/// Products with padding are left out. If `ZEROS`, padding is multiplied as zeros instead; tiles
/// that are not inside ask for it.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states.
#[inline(always)]
unsafe fn sum<V: Simd, const MR: usize, const NRV: usize, const ZEROS: bool>(
    args: &FlatArgs<'_, V::Elem>,
    table: &FlatView,
    vector: usize,
    is_inside: bool,
    prefetch: *const u8,
) -> [[V; NRV]; MR] {
    // SAFETY: the caller's promise of memory and ISA. border_masks has masks for all vectors
    // before head and from tail on, and for NRV neighbours of each, which a tile at the border
    // may contain.
    unsafe {
        let mut prefetch = prefetch;
        let mut acc = [[V::splat(V::Elem::ZERO); NRV]; MR];
        for i in 0..MR {
            acc[i] = [V::splat(*args.epilogue.bias.add(i)); NRV];
        }
        let x = args.x.wrapping_add(vector * V::LANES);
        // Tiles inside the gap read no border masks.
        let slot = if vector < table.gap.0 { vector } else { vector.wrapping_sub(table.gap.1) };
        let border = table.border_masks.wrapping_add(slot);
        // The taps of a column have masks of their own only at the border.
        let own = if is_inside { 0 } else { u32::MAX };
        let mut masks = table.masks.add(vector % table.period);
        let (mut taps, mut w) = (table.taps, args.w);
        for _ in 0..table.columns {
            let mut lanes = [V::lanes(V::ALL); NRV];
            if !ZEROS {
                for j in 0..NRV {
                    lanes[j] = V::lanes(*masks.add(j));
                }
            }
            let zeros = if is_inside { masks } else { border };
            let end = taps.add(table.column_len);
            while taps < end {
                V::prefetch(prefetch.cast());
                prefetch = prefetch.wrapping_add(args.prefetch_step);
                let x = x.wrapping_offset((*taps).offset as isize);
                if ZEROS {
                    step::<V, MR, NRV>(&mut acc, w, MaskedVectors(x, zeros.add(((*taps).masks & own) as usize)));
                } else {
                    step::<V, MR, NRV>(&mut acc, w, VectorLanes(x, lanes));
                }
                (taps, w) = (taps.add(1), w.add(MR));
            }
            // Behind the last channel there may be less than a pitch.
            masks = masks.wrapping_add(table.mask_pitch);
        }
        acc
    }
}

/// The epilogue of a tile. Its first output is number `done` of the call.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states.
#[inline(always)]
unsafe fn finish<V: Simd, const MR: usize, const NRV: usize>(
    args: &FlatArgs<'_, V::Elem>,
    acc: &[[V; NRV]; MR],
    done: usize,
) {
    // SAFETY: FlatArgs promises that row i may be written at i * ldy for `len` elements, and that
    // the tile may be written.
    unsafe {
        let EpilogueArgs { lo, hi, residual, .. } = args.epilogue;
        if args.len - done >= NRV * V::LANES && residual.is_null() {
            let y = args.y.add(done);
            if args.epilogue.is_plain {
                for i in 0..MR {
                    for j in 0..NRV {
                        acc[i][j].store(y.add(i * args.ldy + j * V::LANES));
                    }
                }
            } else {
                let (lo, hi) = (V::splat(lo), V::splat(hi));
                for i in 0..MR {
                    for j in 0..NRV {
                        acc[i][j].clamp(lo, hi).store(y.add(i * args.ldy + j * V::LANES));
                    }
                }
            }
        } else {
            for i in 0..MR {
                for j in 0..NRV {
                    acc[i][j].store(args.tile.add((i * NRV + j) * V::LANES));
                }
            }
            store_rest::<V>(args, MR, NRV, done);
        }
    }
}

/// A row of contiguous vectors. For each vector it has the lanes that are multiplied.
#[derive(Clone, Copy)]
struct VectorLanes<V: Simd, const NRV: usize>(*const V::Elem, [V::Lanes; NRV]);

impl<V: Simd, const NRV: usize> Row<V> for VectorLanes<V, NRV> {
    #[inline(always)]
    unsafe fn vector(self, j: usize) -> V {
        // SAFETY: the caller's promise of memory and ISA.
        unsafe { V::load_of(self.0.add(j * V::LANES), self.1[j]) }
    }

    #[inline(always)]
    fn product(self, j: usize, b: V, scalars: V::Scalars, i: usize, c: V) -> V {
        b.mul_add_of(scalars, i, c, self.1[j])
    }
}

/// A row of contiguous vectors. For each vector it has a mask of the lanes that are loaded; the
/// other lanes are zero.
#[derive(Clone, Copy)]
struct MaskedVectors<T>(*const T, *const u32);

impl<V: Simd> Row<V> for MaskedVectors<V::Elem> {
    #[inline(always)]
    unsafe fn vector(self, j: usize) -> V {
        // SAFETY: the caller's promise of memory and ISA. The masks only have lanes that lie in
        // the plane.
        unsafe { V::load_mask(self.0.wrapping_add(j * V::LANES), *self.1.add(j)) }
    }
}

/// The epilogue of a tile that has a residual, or reaches beyond the last position. It reads the
/// sums from memory: loops with branches over the accumulators would keep them in memory all the
/// time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states; the tile has been written.
#[inline(always)]
unsafe fn store_rest<V: Simd>(args: &FlatArgs<'_, V::Elem>, mr: usize, nrv: usize, done: usize) {
    // SAFETY: FlatArgs promises that row i may be written, and the residual read, at i * ldy for
    // `len` elements; n of them are left at vector j.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&args.epilogue, args.y, 0);
        for i in 0..mr {
            for j in 0..nrv {
                let first = done + j * V::LANES;
                let n = args.len.saturating_sub(first).min(V::LANES);
                if n == 0 {
                    break;
                }
                let sums = V::load(args.tile.add((i * nrv + j) * V::LANES));
                finish.store_first(sums, i * args.ldy + first, n);
            }
        }
    }
}
