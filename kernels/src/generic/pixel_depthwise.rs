//! The depthwise kernel with vectors along channels, for tensors whose channels are neighbours.
//!
//! MR pixels of NRV vectors of channels stay in registers over all taps. A tap loads its weights once, and
//! takes one multiply-add for each pixel and vector, with X from memory. A table says where pixels begin, as
//! for the GEMM kernel.
//!
//! A group of several channels is a part of a vector. Then a vector of X stays in a register, and each of the group's
//! channels in turn is spread over the group's lanes.

use crate::Real;
use crate::activation::{ActivateArgs, Activation};
use crate::pixel::{PixelStore, PixelTaps};
use crate::pixel_depthwise::{DepthwisePixelArgs, fits_groups};
use crate::simd::Simd;

/// Tiles of `MR` pixels, of which `NRV` vectors of channels are summed at a time, or one where the taps of a row
/// are summed together.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwisePixelArgs`] states for `MR`.
#[inline(always)]
pub(crate) unsafe fn pixels<V: Simd, const MR: usize, const NRV: usize>(args: &DepthwisePixelArgs<V::Elem>) {
    let DepthwisePixelArgs { tiles, repeats, store: PixelStore { y, ld, channels, activation, .. }, .. } = *args;
    let shared = if args.shifted > 1 && args.taps.is_multiple_of(args.shifted) { args.shifted } else { 1 };
    // SAFETY: the caller's promise. Activations in place read what the blocks have stored.
    unsafe {
        for number in 0..repeats * tiles {
            let tile = (number / tiles, number % tiles);
            match shared {
                _ if const { fits_groups::<V>(MR) } && args.group > 1 => groups::<V, MR>(args, tile),
                1 => taps::<V, MR, NRV>(args, tile),
                3 => rows_of_taps::<V, MR, 3>(args, tile, shared),
                // Beside the sums of larger tiles, registers have no room for five weights.
                5 if const { MR * V::REGISTERS <= V::REGISTER_FILE / 2 } => {
                    rows_of_taps::<V, MR, 5>(args, tile, shared);
                }
                _ => rows_of_taps::<V, MR, 0>(args, tile, shared),
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

/// A tile of groups of several channels, tap by tap.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn groups<V: Simd, const MR: usize>(args: &DepthwisePixelArgs<V::Elem>, tile: (usize, usize)) {
    let (channels, mut c) = (args.store.channels, 0);
    // SAFETY: the caller's promise. No block has more than the remaining channels.
    unsafe {
        while c < channels {
            match channels - c {
                rest if rest >= V::LANES => block_of_groups::<V, MR, true>(args, tile, c, rest),
                rest => block_of_groups::<V, MR, false>(args, tile, c, rest),
            }
            c += V::LANES;
        }
    }
}

/// The channels of [`groups`] from `c` on: a vector, of which there are all if the block is `WHOLE`, and the first `n`
/// otherwise.
///
/// # Safety
/// As [`groups`]. The channels are among those of `args`.
#[inline(always)]
unsafe fn block_of_groups<V: Simd, const MR: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    (repeat, tile): (usize, usize),
    c: usize,
    n: usize,
) {
    let words = V::LANES * (size_of::<V::Elem>() / size_of::<u32>());
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names.
    unsafe {
        let mut acc = [row::<V, 1, WHOLE>(args.store.bias.add(c), n); MR];
        let places = BlockPlaces::new(args, repeat, c);
        let mut entries = args.entries.add(tile * args.step);
        for _ in 0..args.taps {
            let mut x = [V::splat(V::Elem::ZERO); MR];
            for i in 0..MR {
                x[i] = row::<V, 1, WHOLE>(places.at(*entries.add(1 + i)), n)[0];
            }
            let first = *entries as usize * args.group;
            for k in 0..args.group {
                let w = row::<V, 1, WHOLE>(args.w.wrapping_add((first + k) * args.store.channels + c), n)[0];
                for i in 0..MR {
                    acc[i][0] = x[i].permute(args.spread.add(k * words)).mul_add(w, acc[i][0]);
                }
            }
            entries = entries.add(1 + MR);
        }
        finish::<V, MR, 1, WHOLE>(args, &mut acc, (repeat * args.tiles + tile) * MR, c, n);
    }
}

/// A tile, tap by tap.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn taps<V: Simd, const MR: usize, const NRV: usize>(args: &DepthwisePixelArgs<V::Elem>, tile: (usize, usize)) {
    let (channels, mut c) = (args.store.channels, 0);
    // SAFETY: the caller's promise. No block has more than the remaining channels.
    unsafe {
        while c < channels {
            let rest = channels - c;
            if rest >= NRV * V::LANES {
                block::<V, MR, NRV, true>(args, tile, c, rest);
                c += NRV * V::LANES;
            } else if const { V::MASKS && NRV > 1 } && rest > V::LANES {
                block::<V, MR, NRV, false>(args, tile, c, rest);
                c = channels;
            } else if const { !V::MASKS && NRV > 1 } && rest >= V::LANES {
                block::<V, MR, 1, true>(args, tile, c, rest);
                c += V::LANES;
            } else {
                block::<V, MR, 1, false>(args, tile, c, rest);
                c = channels;
            }
        }
    }
}

/// A tile, whose rows of `row_len` taps share the pixels that they load: `KW` taps, or any number if that is 0.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`, and the number of taps a multiple of `row_len`, which is above 1.
#[inline(always)]
unsafe fn rows_of_taps<V: Simd, const MR: usize, const KW: usize>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: (usize, usize),
    row_len: usize,
) {
    let (channels, mut c) = (args.store.channels, 0);
    // SAFETY: the caller's promise. No block has more than the remaining channels.
    unsafe {
        while c < channels {
            match channels - c {
                rest if rest >= V::LANES => block_of_rows::<V, MR, KW, true>(args, tile, row_len, c, rest),
                rest => block_of_rows::<V, MR, KW, false>(args, tile, row_len, c, rest),
            }
            c += V::LANES;
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
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names.
    unsafe {
        // Sums begin with the bias, which saves adding it.
        let mut acc = [row::<V, NRV, WHOLE>(args.store.bias.add(c), n); MR];
        let x = BlockPlaces::new(args, repeat, c);
        let mut entries = args.entries.add(tile * args.step);
        for _ in 0..args.taps {
            let w = row::<V, NRV, WHOLE>(args.w.wrapping_add(*entries as usize * args.store.channels + c), n);
            for i in 0..MR {
                let x = row::<V, NRV, WHOLE>(x.at(*entries.add(1 + i)), n);
                for j in 0..NRV {
                    acc[i][j] = x[j].mul_add(w[j], acc[i][j]);
                }
            }
            entries = entries.add(1 + MR);
        }
        finish::<V, MR, NRV, WHOLE>(args, &mut acc, (repeat * args.tiles + tile) * MR, c, n);
    }
}

/// The channels of [`rows_of_taps`] from `c` on: a vector, of which there are all if the block is `WHOLE`, and the
/// first `n` otherwise.
///
/// # Safety
/// As [`rows_of_taps`]. The channels are among those of `args`.
#[inline(always)]
unsafe fn block_of_rows<V: Simd, const MR: usize, const KW: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    (repeat, tile): (usize, usize),
    row_len: usize,
    c: usize,
    n: usize,
) {
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names.
    unsafe {
        let mut acc = [row::<V, 1, WHOLE>(args.store.bias.add(c), n); MR];
        let x = BlockPlaces::new(args, repeat, c);
        let (w, ld) = (args.w.wrapping_add(c), args.store.channels);
        let mut entries = args.entries.add(tile * args.step);
        for _ in 0..args.taps / row_len {
            if KW > 0 {
                shared_taps::<V, MR, KW, WHOLE>(&x, (w, ld), entries, n, &mut acc);
                entries = entries.add(KW * (1 + MR));
                continue;
            }
            let mut left = row_len;
            while left == 3 || left > 4 {
                shared_taps::<V, MR, 3, WHOLE>(&x, (w, ld), entries, n, &mut acc);
                (entries, left) = (entries.add(3 * (1 + MR)), left - 3);
            }
            while left > 0 {
                shared_taps::<V, MR, 2, WHOLE>(&x, (w, ld), entries, n, &mut acc);
                (entries, left) = (entries.add(2 * (1 + MR)), left - 2);
            }
        }
        finish::<V, MR, 1, WHOLE>(args, &mut acc, (repeat * args.tiles + tile) * MR, c, n);
    }
}

/// Adds the products of `KW` neighbouring taps of a row: each pixel is loaded once for all of them.
///
/// # Safety
/// As [`block_of_rows`]. `entries` begins with the first of these taps.
#[inline(always)]
unsafe fn shared_taps<V: Simd, const MR: usize, const KW: usize, const WHOLE: bool>(
    x: &BlockPlaces<V::Elem>,
    (w, ld): (*const V::Elem, usize),
    entries: *const u32,
    n: usize,
    acc: &mut [[V; 1]; MR],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [V::splat(V::Elem::ZERO); KW];
        for k in 0..KW {
            let number = *entries.add(k * (1 + MR)) as usize;
            weights[k] = row::<V, 1, WHOLE>(w.wrapping_add(number * ld), n)[0];
        }
        // The first pixels are those of the first tap.
        for p in 0..MR {
            let x = row::<V, 1, WHOLE>(x.at(*entries.add(1 + p)), n)[0];
            for k in 0..KW {
                if k <= p {
                    acc[p - k][0] = x.mul_add(weights[k], acc[p - k][0]);
                }
            }
        }
        // Each further one is the last of the next tap.
        for p in 1..KW {
            let x = row::<V, 1, WHOLE>(x.at(*entries.add(p * (1 + MR) + MR)), n)[0];
            for k in p..KW {
                if k - p < MR {
                    acc[MR - 1 - (k - p)][0] = x.mul_add(weights[k], acc[MR - 1 - (k - p)][0]);
                }
            }
        }
    }
}

/// Where pixels are: the channels of a block, in X or among the zeros.
struct BlockPlaces<T> {
    x: *const T,
    zeros: *const T,
}

impl<T> BlockPlaces<T> {
    /// Those of the tiles of repeat number `repeat`, from channel `c` on.
    #[inline(always)]
    fn new(args: &DepthwisePixelArgs<T>, repeat: usize, c: usize) -> Self {
        Self { x: args.x.wrapping_add(repeat * args.shift + c), zeros: args.zeros.wrapping_add(c) }
    }

    #[inline(always)]
    fn at(&self, place: u32) -> *const T {
        if place < PixelTaps::ZEROS { self.x.wrapping_add(place as usize) } else { self.zeros }
    }
}

/// The epilogue of a block, whose first pixel is pixel `first` of Y.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn finish<V: Simd, const MR: usize, const NRV: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    acc: &mut [[V; NRV]; MR],
    first: usize,
    c: usize,
    n: usize,
) {
    // Hidden from LLVM, which would otherwise read all of it before the loop, and spill it.
    let PixelStore { y, ld, residual, residual_ld, activation, .. } = *core::hint::black_box(&args.store);
    // SAFETY: the caller's promise. All offsets stay in what PixelStore names.
    unsafe {
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
