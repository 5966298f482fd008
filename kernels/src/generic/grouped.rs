//! The micro-kernels of groups of few channels: a register tile of several output channels, straight from X.
//!
//! Output rows are as long as X's, so that a plane of X is one run of positions, and a tap is the same run, shifted: a tile is MR output channels by
//! NR positions, which may begin and end in the middle of rows. Each vector of X is loaded once for all MR channels. What a shift brings from the
//! end of one row to the beginning of the next is padding: lanes that are the same for a whole column of taps, and made zero. Only tiles near the
//! plane's ends see rows that are not there, and load parts of vectors.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the accumulators are split into registers; loops over iterators do not, and spill them"
)]

use super::gemm::{Row, Side, step};
use crate::Real;
use crate::grouped::FlatArgs;
use crate::simd::{Simd, lanes_in_row};

/// Tiles of `MR` output channels by `NRV` vectors, side by side.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states for `MR` and `NRV`.
#[inline(always)]
pub(crate) unsafe fn flat<V: Simd, const MR: usize, const NRV: usize>(args: &FlatArgs<V::Elem>) {
    // SAFETY: a vector of a tap is loaded whole where `least` and `most` show that it is inside of its plane, and else only its lanes that are; the other
    // pointers stay inside what FlatArgs promises.
    unsafe {
        let mut ahead = args.ahead;
        for tile in 0..args.tiles {
            let vector = args.first + tile * NRV;
            let from = (vector * V::LANES) as isize;
            let is_inside =
                from + args.least >= 0 && from + args.most + (NRV * V::LANES) as isize <= args.plane as isize;
            let x = args.x.wrapping_offset(from);
            let mut masks = args.masks.add(vector % args.period);
            let mut acc = [[V::splat(V::Elem::ZERO); NRV]; MR];
            for i in 0..MR {
                acc[i] = [V::splat(*args.bias.add(i)); NRV];
            }
            let (mut taps, mut w) = (args.taps, args.w);
            for column in 0..args.columns {
                let mut lanes = [V::lanes(V::ALL); NRV];
                for j in 0..NRV {
                    lanes[j] = V::lanes(*masks.add(j));
                }
                let end = taps.add(args.column_len);
                if !is_inside {
                    while taps < end {
                        let (p, at) = (x.wrapping_offset((*taps).offset as isize), from + (*taps).position as isize);
                        step::<V, MR, NRV>(&mut acc, w, Border { p, at, plane: args.plane, masks });
                        (taps, w) = (taps.add(1), w.add(MR));
                    }
                } else if *args.is_masked.add(column) {
                    while taps < end {
                        V::prefetch(ahead.cast());
                        ahead = ahead.wrapping_add(args.ahead_step);
                        step::<V, MR, NRV>(&mut acc, w, Part(x.wrapping_offset((*taps).offset as isize), lanes));
                        (taps, w) = (taps.add(1), w.add(MR));
                    }
                } else {
                    while taps < end {
                        V::prefetch(ahead.cast());
                        ahead = ahead.wrapping_add(args.ahead_step);
                        step::<V, MR, NRV>(&mut acc, w, Side(x.wrapping_offset((*taps).offset as isize)));
                        (taps, w) = (taps.add(1), w.add(MR));
                    }
                }
                masks = masks.add(args.mask_pitch);
            }
            let done = tile * NRV * V::LANES;
            if args.len - done >= NRV * V::LANES && args.residual.is_null() {
                let (lo, hi) = (V::splat(args.lo), V::splat(args.hi));
                for i in 0..MR {
                    for j in 0..NRV {
                        acc[i][j].clamp(lo, hi).store(args.y.add(i * args.ldy + done + j * V::LANES));
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
}

/// Vectors side by side, some lanes of which count.
#[derive(Clone, Copy)]
struct Part<V: Simd, const NRV: usize>(*const V::Elem, [V::Lanes; NRV]);

impl<V: Simd, const NRV: usize> Row<V> for Part<V, NRV> {
    #[inline(always)]
    unsafe fn vector(self, j: usize) -> V {
        // SAFETY: the caller's promise of memory and ISA.
        unsafe { V::load(self.0.add(j * V::LANES)).keep(self.1[j]) }
    }
}

/// Vectors side by side of which parts may lie beside their plane: vector 0 is at position `at` of it.
#[derive(Clone, Copy)]
struct Border<T> {
    p: *const T,
    at: isize,
    plane: usize,
    /// For each vector, the lanes that count.
    masks: *const u32,
}

impl<V: Simd> Row<V> for Border<V::Elem> {
    #[inline(always)]
    unsafe fn vector(self, j: usize) -> V {
        let (from, to) = lanes_in_row(V::LANES, self.at + (j * V::LANES) as isize, self.plane);
        let inside = (((1_u64 << to) - 1) & !((1_u64 << from) - 1)) as u32;
        // SAFETY: the mask has the lanes that lie in the plane; the caller's promise of the masks and the ISA.
        unsafe { V::load_mask(self.p.wrapping_add(j * V::LANES), inside & *self.masks.add(j)) }
    }
}

/// The epilogue of a tile with a residual, or beyond the last position: from memory, because loops with branches over the accumulators would keep them
/// there all the time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`FlatArgs`] states, the tile being written.
#[inline(always)]
unsafe fn store_rest<V: Simd>(args: &FlatArgs<V::Elem>, mr: usize, nrv: usize, done: usize) {
    // SAFETY: FlatArgs promises that row i may be written, and the residual read, at i * ldy for `len` elements, of which n are left at vector j.
    unsafe {
        let (lo, hi) = (V::splat(args.lo), V::splat(args.hi));
        for i in 0..mr {
            for j in 0..nrv {
                let first = done + j * V::LANES;
                let n = args.len.saturating_sub(first).min(V::LANES);
                if n == 0 {
                    break;
                }
                let at = i * args.ldy + first;
                let v = V::load(args.tile.add((i * nrv + j) * V::LANES));
                let v = if args.residual.is_null() { v } else { v.add(V::load_first(args.residual.add(at), n)) };
                v.clamp(lo, hi).store_first(args.y.add(at), n);
            }
        }
    }
}

/// Instantiates the tiles of an ISA and type, and lists them.
macro_rules! grouped {
    ($vector:ty, $isa:expr, #[$attr:meta]: $($name:ident($mr:literal, $nrv:literal)),+ $(,)?) => {
        type Elem = <$vector as crate::simd::Simd>::Elem;
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $name(args: &crate::grouped::FlatArgs<Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::grouped::flat::<$vector, $mr, $nrv>(args) }
            }
        )+
        pub(crate) static GROUPED: &[crate::GroupedKernel<Elem>] = &[$(
            crate::GroupedKernel::new::<$vector, $mr, $nrv>(stringify!($name), $isa, $name)
        ),+];
    };
}
pub(crate) use grouped;
