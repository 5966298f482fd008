//! The GEMM micro-kernel with vectors along channels, for tensors whose channels are neighbours.
//!
//! An MR x NR tile of Y stays in registers. Each step of k multiplies one channel of MR pixels of X, which
//! are broadcast, by a row of NR packed weights. A table says where the pixels of each tap begin, so that
//! padding, strides, dilations, phases and the ends of rows are no cases of their own, and X is not copied.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the accumulators are split into registers; loops over iterators do not, and spill them"
)]

use super::gemm::{add_tile, store_tile, store_transposed};
use crate::activation::{ActivateArgs, Activation};
use crate::pixel::{ByteStore, PixelArgs, PixelOutput, PixelStore, PixelTaps};
use crate::simd::{Accumulator, Simd, UnitSums, prefetch};
use crate::ukernel::Prefetch;

/// Tiles of `MR` pixels times `NRV` vectors of channels.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`PixelArgs`] states for `MR` and `NR = NRV * V::LANES`.
#[inline(always)]
pub(crate) unsafe fn pixels<V: Simd, const MR: usize, const NRV: usize>(args: &PixelArgs<V::Elem>) {
    // SAFETY: the caller's promise.
    unsafe { for_each_tile::<V, Stored, MR, NRV>(args) };
}

/// The same tiles of units, whose sums are kept in memory or stored as bytes.
///
/// # Safety
/// As [`pixels`]. The sums are kept, or stored as bytes if `V` packs. Without masks there are whole vectors of channels then.
#[inline(always)]
pub(crate) unsafe fn sums<V: UnitSums, const MR: usize, const NRV: usize>(args: &PixelArgs<V::Elem>) {
    // SAFETY: the caller's promise.
    unsafe { for_each_tile::<V, OfUnits, MR, NRV>(args) };
}

/// How tiles read X, what their sums begin with, and what becomes of them.
trait TileEnds<V: Accumulator> {
    /// Bytes of what places count.
    const PLACE_BYTES: usize;

    /// Changes what the sums begin with, which is zero.
    ///
    /// # Safety
    /// As [`pixels`].
    #[inline(always)]
    unsafe fn begin<const MR: usize, const NRV: usize>(_: &PixelArgs<V::Elem>, _: &mut [[V; NRV]; MR]) {}

    /// Takes the sums of tile number `number`. They may be kept in `tile`.
    ///
    /// # Safety
    /// As [`pixels`]. `tile` is writable for the tile's elements.
    unsafe fn end<const MR: usize, const NRV: usize>(
        args: &PixelArgs<V::Elem>,
        sums: &[[V; NRV]; MR],
        tile: *mut V::Elem,
        number: usize,
    );
}

/// Sums that go where [`PixelArgs`] says.
struct Stored;

impl<V: Simd> TileEnds<V> for Stored {
    const PLACE_BYTES: usize = size_of::<V::Elem>();

    /// Sums that this block finishes begin with the bias, which saves adding it.
    #[inline(always)]
    unsafe fn begin<const MR: usize, const NRV: usize>(args: &PixelArgs<V::Elem>, sums: &mut [[V; NRV]; MR]) {
        if let PixelOutput::Pixels(store) = &args.store {
            for j in 0..NRV {
                let n = store.channels.saturating_sub(j * V::LANES).min(V::LANES);
                // SAFETY: the caller's promise of the CPU and of `channels` values.
                let bias = unsafe { V::load_first(store.bias.wrapping_add(j * V::LANES), n) };
                for i in 0..MR {
                    sums[i][j] = bias;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn end<const MR: usize, const NRV: usize>(
        args: &PixelArgs<V::Elem>,
        sums: &[[V; NRV]; MR],
        tile: *mut V::Elem,
        number: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match &args.store {
                PixelOutput::Tiles => store_tile::<V, MR, NRV>(sums, tile),
                PixelOutput::Pixels(store) => finish::<V, MR, NRV>(sums, tile, store, number * MR),
                PixelOutput::Planes(store) => {
                    store_tile::<V, MR, NRV>(sums, tile);
                    store_transposed::<V>(tile, MR, NRV, &store.at_pixel(number * MR));
                }
                // Sums of units alone become bytes.
                PixelOutput::Bytes(_) => {}
            }
        }
    }
}

/// Sums of units, which are kept, or stored as bytes.
struct OfUnits;

impl<V: UnitSums> TileEnds<V> for OfUnits {
    const PLACE_BYTES: usize = 1;

    #[inline(always)]
    unsafe fn end<const MR: usize, const NRV: usize>(
        args: &PixelArgs<V::Elem>,
        sums: &[[V; NRV]; MR],
        tile: *mut V::Elem,
        number: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match &args.store {
                PixelOutput::Bytes(store) if V::PACKS => match store.is_signed {
                    true => store_bytes::<V, MR, NRV, true>(sums, store, number * MR),
                    false => store_bytes::<V, MR, NRV, false>(sums, store, number * MR),
                },
                _ => store_tile::<V, MR, NRV>(sums, tile),
            }
        }
    }
}

/// Stores a tile as bytes, four pixels at a time. The last ones may be stored twice.
///
/// # Safety
/// CPU: the ISA of `V`, which packs. Memory: as [`ByteStore`] states, from pixel `first` on.
#[inline(always)]
unsafe fn store_bytes<V: UnitSums, const MR: usize, const NRV: usize, const SIGNED: bool>(
    sums: &[[V; NRV]; MR],
    store: &ByteStore,
    first: usize,
) {
    for j in 0..NRV {
        let n = store.channels.saturating_sub(j * V::LANES).min(V::LANES);
        if n == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let add = V::load_first(store.add.add(j * V::LANES), n);
            let (scale, y) = (store.scale.add(j * V::LANES), store.y.add(first * store.ld + j * V::LANES));
            let mut i = 0;
            while i < MR {
                let (mut four, mut to) = ([add; 4], [y; 4]);
                for k in 0..4 {
                    let pixel = if i + k < MR { i + k } else { MR - 1 };
                    four[k] = sums[pixel][j].add(add);
                    to[k] = y.add(pixel * store.ld);
                }
                V::store_bytes::<SIGNED, false>(four, scale, store.zero, (to, n));
                i += 4;
            }
        }
    }
}

/// Computes the sums of all tiles.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`PixelArgs`] states.
#[inline(always)]
unsafe fn for_each_tile<V: Accumulator, E: TileEnds<V>, const MR: usize, const NRV: usize>(args: &PixelArgs<V::Elem>) {
    // SAFETY: the caller's promise. All offsets stay in what PixelArgs names.
    unsafe {
        for (repeat, tile) in (0..args.repeats).flat_map(|repeat| (0..args.tiles).map(move |tile| (repeat, tile))) {
            let mut entries = args.entries.add(tile * args.step);
            let x_of_tile = args.x.wrapping_byte_add(repeat * args.shift * E::PLACE_BYTES);
            let mut sets = [[[V::splat(V::Elem::default()); NRV]; MR]; MOST_SETS];
            E::begin(args, &mut sets[0]);
            for _ in 0..args.taps {
                let w = args.w.add(*entries as usize * args.channels * NRV * V::LANES);
                let mut x = [args.zeros; MR];
                for i in 0..MR {
                    let place = *entries.add(1 + i);
                    x[i] = match place < PixelTaps::ZEROS {
                        true => x_of_tile.wrapping_byte_add(place as usize * E::PLACE_BYTES),
                        false => args.zeros,
                    };
                }
                entries = entries.add(1 + MR);
                // One set adds up in order.
                if const { sets_of_sums(MR, NRV) > 1 } && args.in_order {
                    block::<V, MR, NRV, 1>(&mut sets, &x, w, args.channels);
                    continue;
                }
                match const { sets_of_sums(MR, NRV) } {
                    // Hidden from LLVM, which would otherwise compile all taps again for fewer channels than sets.
                    MOST_SETS => {
                        let channels = core::hint::black_box(args.channels);
                        block::<V, MR, NRV, MOST_SETS>(&mut sets, &x, w, channels);
                    }
                    2 => block::<V, MR, NRV, 2>(&mut sets, &x, w, args.channels),
                    _ => block::<V, MR, NRV, 1>(&mut sets, &x, w, args.channels),
                }
            }
            let mut acc = sets[0];
            for set in 1..const { sets_of_sums(MR, NRV) } {
                for i in 0..MR {
                    for j in 0..NRV {
                        acc[i][j] = acc[i][j].add(sets[set][i][j]);
                    }
                }
            }
            // Hidden from LLVM, which would otherwise read all that follows before the loops, and spill it.
            let args = core::hint::black_box(args);
            let number = repeat * args.tiles + tile;
            // Without sums to keep, tiles share the first one's place.
            let tile = args.tile.add(if args.keeps_sums() { number * MR * NRV * V::LANES } else { 0 });
            if args.accumulate {
                add_tile::<V, MR, NRV>(&mut acc, tile);
            }
            E::end(args, &acc, tile, number);
        }
    }
}

/// Sets of sums, at most.
const MOST_SETS: usize = 4;

/// Sets of the sums of `mr` pixels and `nrv` vectors that steps of k add to in turn. The few sums of a small tile
/// alone would wait for the latency of their multiply-adds: about eight hide it.
const fn sets_of_sums(mr: usize, nrv: usize) -> usize {
    match mr * nrv {
        ..=2 => MOST_SETS,
        3..=6 if nrv > 1 => 2,
        _ => 1,
    }
}

/// The products of one tap: `channels` channels of the pixels at `x` times as many rows of `w`. They are added to
/// `SETS` sets in turn.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: each pixel is readable for `channels` elements, `w` for `channels * NRV`
/// vectors.
#[inline(always)]
unsafe fn block<V: Accumulator, const MR: usize, const NRV: usize, const SETS: usize>(
    sets: &mut [[[V; NRV]; MR]; MOST_SETS],
    x: &[*const V::Elem; MR],
    w: *const V::Elem,
    channels: usize,
) {
    let whole = channels - channels % (SETS * V::SCALARS);
    let mut k = 0;
    // SAFETY: the caller's promise. The loads end at `channels`.
    unsafe {
        // One load brings the scalars of several steps, if the ISA multiplies by a lane.
        while k < whole {
            for set in 0..SETS {
                steps::<V, MR, NRV>(&mut sets[set], x, w, k + set * V::SCALARS, V::SCALARS);
            }
            k += SETS * V::SCALARS;
        }
        for rest in 0..channels % (SETS * V::SCALARS) {
            steps::<V, MR, NRV>(&mut sets[0], x, w, whole + rest, 1);
        }
    }
}

/// Steps `k..k + n` of [`block`]. `n` is 1 or `SCALARS`, and known to the compiler once this is inlined.
///
/// # Safety
/// As [`block`], for `k + n <= channels`.
#[inline(always)]
unsafe fn steps<V: Accumulator, const MR: usize, const NRV: usize>(
    acc: &mut [[V; NRV]; MR],
    x: &[*const V::Elem; MR],
    w: *const V::Elem,
    k: usize,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { V::SCALARS == 1 } {
            let b = row::<V, NRV>(w, k);
            for i in 0..MR {
                let scalar = V::load_scalars(x[i].add(k), 1);
                for j in 0..NRV {
                    acc[i][j] = b[j].mul_add_scalar(scalar, 0, acc[i][j]);
                }
            }
            return;
        }
        let mut scalars = [V::load_scalars(x[0].add(k), n); MR];
        for i in 1..MR {
            scalars[i] = V::load_scalars(x[i].add(k), n);
        }
        // Straight-line code: in a loop that is not unrolled yet, the choice of a lane would be a branch.
        macro_rules! lanes {
            ($($lane:literal)+) => {$(
                if $lane < n {
                    let b = row::<V, NRV>(w, k + $lane);
                    for i in 0..MR {
                        for j in 0..NRV {
                            acc[i][j] = b[j].mul_add_scalar(scalars[i], $lane % V::SCALARS, acc[i][j]);
                        }
                    }
                }
            )+};
        }
        lanes!(0 1 2 3);
    }
}

/// Row `k` of the weights. It prefetches those of a later step: in a network, weights come from far caches or memory.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the row is readable.
#[inline(always)]
unsafe fn row<V: Accumulator, const NRV: usize>(w: *const V::Elem, k: usize) -> [V; NRV] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut b = [V::splat(V::Elem::default()); NRV];
        for j in 0..NRV {
            let at = w.add((k * NRV + j) * V::LANES);
            // At least once for each line.
            if const { V::LANES * size_of::<V::Elem>() } * j % Prefetch::LINE == 0 {
                prefetch(at.cast::<u8>().wrapping_add(Prefetch::STREAM_BYTES));
            }
            b[j] = V::load(at);
        }
        b
    }
}

/// The epilogue of a finished tile, which begins with pixel `first`: whole vectors that are clamped go from the
/// accumulators to Y, others through the tile.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `tile` is writable for `MR * NRV` vectors, the rest as [`PixelStore`]
/// states.
#[inline(always)]
unsafe fn finish<V: Simd, const MR: usize, const NRV: usize>(
    acc: &[[V; NRV]; MR],
    tile: *mut V::Elem,
    store: &PixelStore<V::Elem>,
    first: usize,
) {
    let PixelStore { y, ld, channels, residual, residual_ld, activation, .. } = *store;
    // SAFETY: the caller's promise.
    unsafe {
        let y = y.add(first * ld);
        let residual = if residual.is_null() { residual } else { residual.add(first * residual_ld) };
        if let Activation::Clamp(lo, hi) = activation.activation
            && channels == NRV * V::LANES
        {
            let (lo, hi) = (V::splat(lo), V::splat(hi));
            for i in 0..MR {
                for j in 0..NRV {
                    let sums = match residual.is_null() {
                        true => acc[i][j],
                        false => acc[i][j].add(V::load(residual.add(i * residual_ld + j * V::LANES))),
                    };
                    sums.clamp(lo, hi).store(y.add(i * ld + j * V::LANES));
                }
            }
            return;
        }
        store_tile::<V, MR, NRV>(acc, tile);
        let (activation, f) = (activation.activation, activation.f);
        let (x_row, len) = (NRV * V::LANES, channels);
        f(&ActivateArgs { activation, rows: MR, len, x: tile, x_row, residual, residual_row: residual_ld, y, ld });
    }
}
