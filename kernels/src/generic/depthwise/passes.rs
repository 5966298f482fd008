//! The passes that bring X into the form that tiles read, and sums back into rows.

use crate::Real;
use crate::depthwise::{GatherArgs, ScatterArgs};
use crate::simd::Simd;
use crate::ukernel::{ChannelStore, EpilogueArgs};

/// Gathers `LANES` channels: the elements of all channels at one position become a vector at the
/// position's slot.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`GatherArgs`] states.
#[inline(always)]
pub(crate) unsafe fn gather<V: Simd>(args: &GatherArgs<V::Elem>) {
    // SAFETY: GatherArgs promises `len` elements of each channel, `len` slots, and a vector of dst
    // at each slot.
    unsafe {
        let mut at = 0;
        while at < args.len {
            let n = (args.len - at).min(V::LANES);
            let mut rows = [V::splat(V::Elem::ZERO); 16];
            if n == V::LANES && args.channels == V::LANES {
                for c in 0..V::LANES {
                    rows[c] = V::load(args.src.add(c * args.src_channel + at));
                }
            } else {
                for (c, row) in rows.iter_mut().enumerate().take(args.channels) {
                    *row = V::load_first(args.src.add(c * args.src_channel + at), n);
                }
            }
            V::transpose(&mut rows);
            // A loop of known length keeps the rows in registers.
            if n == V::LANES {
                for i in 0..V::LANES {
                    rows[i].store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            } else {
                for (i, row) in rows.iter().enumerate().take(n) {
                    row.store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            }
            at += n;
        }
    }
}

/// Turns vectors of channels, one for each of `len` positions, back into rows of positions, with
/// bias, residual and clamp.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`ScatterArgs`] states.
#[inline(always)]
pub(crate) unsafe fn scatter<V: Simd>(&ScatterArgs { src, len, ref store }: &ScatterArgs<V::Elem>) {
    // SAFETY: the caller's promise, passed on. The loads of a full block end at its last
    // position.
    unsafe {
        let mut done = 0;
        // Full blocks, in loops of known length, so that the rows stay in registers.
        if store.channels == V::LANES && store.epilogue.residual.is_null() {
            let EpilogueArgs { bias, lo, hi, .. } = store.epilogue;
            let (lo, hi) = (V::splat(lo), V::splat(hi));
            while done + V::LANES <= len {
                let mut rows = [V::splat(V::Elem::ZERO); 16];
                for i in 0..V::LANES {
                    rows[i] = V::load(src.add((done + i) * V::LANES));
                }
                V::transpose(&mut rows);
                for c in 0..V::LANES {
                    let y = store.y.add(c * store.ldy + done);
                    rows[c].add(V::splat(*bias.add(c))).clamp(lo, hi).store(y);
                }
                done += V::LANES;
            }
        }
        if done < len {
            let epilogue = EpilogueArgs { residual: store.epilogue.residual_from(done), ..store.epilogue };
            let rest = ChannelStore { y: store.y.add(done), epilogue, ..*store };
            crate::generic::gemm::store_transposed::<V>(src.add(done * V::LANES), len - done, 1, &rest);
        }
    }
}
