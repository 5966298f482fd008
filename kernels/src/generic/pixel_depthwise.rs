//! The depthwise kernel with vectors along channels, for tensors whose channels are neighbours.
//!
//! MR pixels of NRV vectors of channels stay in registers over all taps. A tap loads its weights once, and
//! takes one multiply-add for each pixel and vector, with X from memory. A table says where pixels begin, as
//! for the GEMM kernel.

use crate::Real;
use crate::activation::{ActivateArgs, Activation};
use crate::pixel::{PixelStore, PixelTaps};
use crate::pixel_depthwise::DepthwisePixelArgs;
use crate::simd::Simd;

/// Tiles of `MR` pixels, of which `NRV` vectors of channels are summed at a time.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwisePixelArgs`] states for `MR`.
#[inline(always)]
pub(crate) unsafe fn pixels<V: Simd, const MR: usize, const NRV: usize>(args: &DepthwisePixelArgs<V::Elem>) {
    let DepthwisePixelArgs { tiles, repeats, store: PixelStore { y, ld, channels, activation, .. }, .. } = *args;
    // SAFETY: the caller's promise. No block has more than the remaining channels. Activations in place read
    // what the blocks have stored.
    unsafe {
        for number in 0..repeats * tiles {
            let (repeat, tile) = (number / tiles, number % tiles);
            let mut c = 0;
            while c < channels {
                let rest = channels - c;
                if rest >= NRV * V::LANES {
                    block::<V, MR, NRV, true>(args, (repeat, tile), c, rest);
                    c += NRV * V::LANES;
                } else if const { V::MASKS && NRV > 1 } && rest > V::LANES {
                    block::<V, MR, NRV, false>(args, (repeat, tile), c, rest);
                    c = channels;
                } else if const { !V::MASKS && NRV > 1 } && rest >= V::LANES {
                    block::<V, MR, 1, true>(args, (repeat, tile), c, rest);
                    c += V::LANES;
                } else {
                    block::<V, MR, 1, false>(args, (repeat, tile), c, rest);
                    c = channels;
                }
            }
            if !matches!(activation.activation, Activation::Clamp(..)) {
                let (y, residual) = (y.add(number * MR * ld), core::ptr::null());
                let (activation, f) = (activation.activation, activation.f);
                f(&ActivateArgs {
                    activation,
                    rows: MR,
                    len: channels,
                    x: y,
                    x_row: ld,
                    residual,
                    residual_row: 0,
                    y,
                    ld,
                });
            }
        }
    }
}

/// Channels `c..c + NRV * LANES` of a tile, of which there are all if the block is `WHOLE`, and the first `n`
/// otherwise.
///
/// # Safety
/// As [`pixels`]. The tile and the channels are among those of `args`. `n > (NRV - 1) * LANES`.
#[inline(always)]
unsafe fn block<V: Simd, const MR: usize, const NRV: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    (repeat, tile): (usize, usize),
    c: usize,
    n: usize,
) {
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs and PixelStore name.
    unsafe {
        // Sums begin with the bias, which saves adding it.
        let mut acc = [row::<V, NRV, WHOLE>(args.store.bias.add(c), n); MR];
        let (x, zeros, w) =
            (args.x.wrapping_add(repeat * args.shift + c), args.zeros.wrapping_add(c), args.w.wrapping_add(c));
        let mut entries = args.entries.add(tile * args.step);
        for _ in 0..args.taps {
            let w = row::<V, NRV, WHOLE>(w.wrapping_add(*entries as usize * args.store.channels), n);
            for i in 0..MR {
                let place = *entries.add(1 + i);
                let x = if place < PixelTaps::ZEROS { x.wrapping_add(place as usize) } else { zeros };
                let x = row::<V, NRV, WHOLE>(x, n);
                for j in 0..NRV {
                    acc[i][j] = x[j].mul_add(w[j], acc[i][j]);
                }
            }
            entries = entries.add(1 + MR);
        }
        // Hidden from LLVM, which would otherwise read all of it before the loop, and spill it.
        let PixelStore { y, ld, residual, residual_ld, activation, .. } = *core::hint::black_box(&args.store);
        let first = (repeat * args.tiles + tile) * MR;
        if !residual.is_null() {
            for i in 0..MR {
                let residual = row::<V, NRV, WHOLE>(residual.add((first + i) * residual_ld + c), n);
                for j in 0..NRV {
                    acc[i][j] = acc[i][j].add(residual[j]);
                }
            }
        }
        let (lo, hi) = match activation.activation {
            Activation::Clamp(lo, hi) => (V::splat(lo), V::splat(hi)),
            _ => (V::splat(V::Elem::NEG_INFINITY), V::splat(V::Elem::INFINITY)),
        };
        for i in 0..MR {
            for j in 0..NRV {
                let (sums, y) = (acc[i][j].clamp(lo, hi), y.add((first + i) * ld + c + j * V::LANES));
                match WHOLE {
                    true => sums.store(y),
                    false => sums.store_first(y, (n - j * V::LANES).min(V::LANES)),
                }
            }
        }
    }
}

/// `NRV` vectors of neighbouring channels, of which there are all or the first `n`, as in [`block`].
///
/// # Safety
/// CPU: the ISA of `V`. Memory: these channels are readable. `n > (NRV - 1) * LANES`.
#[inline(always)]
unsafe fn row<V: Simd, const NRV: usize, const WHOLE: bool>(p: *const V::Elem, n: usize) -> [V; NRV] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut row = [V::splat(V::Elem::ZERO); NRV];
        for j in 0..NRV {
            let p = p.add(j * V::LANES);
            row[j] = match WHOLE {
                true => V::load(p),
                false => V::load_first(p, (n - j * V::LANES).min(V::LANES)),
            };
        }
        row
    }
}
