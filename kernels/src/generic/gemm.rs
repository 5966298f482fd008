//! The GEMM micro-kernels: a register tile of C over the whole of a K block.
//!
//! The loop is the innermost one of Goto and van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication" (2008), in BLIS's terms: an MR x NR tile of C stays in registers, and each step of k
//! is a rank-1 update with MR broadcasts and NR/LANES vectors. Two orientations share it. They differ in
//! which operand is read through the table of offsets, which makes im2col implicit:
//!
//! * [`spatial`]: vectors run along output positions. Row k of B is `b + koff[k]`, A is packed,
//!   and the broadcasts are weights;
//! * [`channel`]: vectors run along output channels of packed weights, and the broadcasts are
//!   input elements at `x + koff[k] + i`.

use super::VectorEpilogue;
use crate::Real;
use crate::activation::{ActivateArgs, ActivationKernel};
use crate::simd::{Accumulator, Simd};
use crate::ukernel::{ChannelArgs, ChannelStore, Column, EpilogueArgs, Places, Prefetch, SpatialArgs, TileStore};

/// The tiles of panels: `MR` rows of packed A times `NRV` vectors of B's rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SpatialArgs`] states for `MR` and `NR = NRV * V::LANES`.
#[inline(always)]
pub(crate) unsafe fn spatial<V: Simd, const MR: usize, const NRV: usize>(args: &SpatialArgs<V::Elem>) {
    // Each panel prefetches another cache line of the rows of B to come.
    let lines = const { if NRV * size_of::<V>() > Prefetch::LINE { NRV * size_of::<V>() / Prefetch::LINE } else { 1 } };
    // SAFETY: every pointer below stays inside what SpatialArgs promises: a holds panels * kc *
    // MR elements, each b + koff[k] holds NR, the tile holds MR * NR, and the store's contract
    // covers the rest.
    unsafe {
        let mut a = args.a;
        for panel in 0..args.panels {
            let mut prefetch =
                args.prefetch.wrapping_add(args.panels_before.wrapping_add(panel) % lines * Prefetch::LINE);
            // Sums that this block of K finishes begin with the bias, which saves adding it. Rows that
            // are a pair share their bias, which is added to the pair.
            let zeros = [V::Elem::ZERO; MR];
            let bias = match &args.store {
                Some(store) if !matches!(store.places, Places::Pairs(_)) => store.at_row(panel * MR).epilogue.bias,
                _ => zeros.as_ptr(),
            };
            let mut acc = [[V::splat(V::Elem::ZERO); NRV]; MR];
            for i in 0..MR {
                acc[i] = [V::splat(*bias.add(i)); NRV];
            }
            let mut k = 0;
            // What is added to the tile, and the tile's destination, may not be in the cache. Each of
            // the first steps prefetches a row of it.
            if const { V::SPARE_POINTERS && NRV > 1 }
                && let Some(store) = &args.store
                && let Places::Consecutive(offset) = store.places
            {
                let rows = store.at_row(panel * MR);
                let mut row = rows.y.cast_const().wrapping_add(offset);
                // A pointer and a distance, because two pointers would take one more register. Without a
                // residual, the distance is 0.
                let residual = rows.epilogue.residual;
                let residual = if residual.is_null() { 0 } else { residual.addr().wrapping_sub(rows.y.addr()) };
                while k < args.kc.min(MR) {
                    prefetch_row::<V, NRV>(row);
                    prefetch_row::<V, NRV>(row.wrapping_byte_add(residual));
                    row = row.wrapping_add(rows.ldy);
                    V::prefetch(prefetch.cast());
                    prefetch = prefetch.wrapping_add(args.prefetch_step);
                    step::<V, MR, NRV>(&mut acc, a, Side(args.b.add(*args.koff.add(k) as usize)));
                    a = a.add(MR);
                    k += 1;
                }
            }
            while k < args.kc {
                V::prefetch(prefetch.cast());
                prefetch = prefetch.wrapping_add(args.prefetch_step);
                step::<V, MR, NRV>(&mut acc, a, Side(args.b.add(*args.koff.add(k) as usize)));
                a = a.add(MR);
                k += 1;
            }
            // Hidden from LLVM, which would otherwise read all that follows before the loop over k, and
            // spill it.
            let args = core::hint::black_box(args);
            if args.accumulate {
                add_tile::<V, MR, NRV>(&mut acc, args.tile);
            }
            let Some(store) = &args.store else {
                store_tile::<V, MR, NRV>(&acc, args.tile);
                continue;
            };
            let store = &store.at_row(panel * MR);
            match store.places {
                Places::Consecutive(offset) => match store.activation {
                    None => store_plain::<V, MR, NRV>(&acc, store, offset),
                    Some(ActivationKernel { f, activation }) => {
                        store_tile::<V, MR, NRV>(&acc, args.tile);
                        let (x, len) = (args.tile, NRV * V::LANES);
                        let (y, ld, residual) = (store.y.add(offset), store.ldy, store.epilogue.residual_from(offset));
                        let (rows, x_row, residual_row) = (MR, len, ld);
                        f(&ActivateArgs { activation, rows, len, x, x_row, residual, residual_row, y, ld });
                    }
                },
                // Pairs are never requested with an odd number of rows.
                Places::Pairs(places) if MR.is_multiple_of(2) => store_pairs::<V, MR, NRV>(&acc, store, places),
                Places::Pairs(_) => {}
                Places::Mapped(columns) => {
                    store_tile::<V, MR, NRV>(&acc, args.tile);
                    store_columns::<V>(args.tile, MR, NRV, store, columns);
                }
            }
        }
    }
}

/// Prefetches a row of a tile at `row`.
#[inline(always)]
fn prefetch_row<V: Simd, const NRV: usize>(row: *const V::Elem) {
    let bytes = NRV * size_of::<V>();
    for line in 0..bytes / Prefetch::LINE {
        V::prefetch(row.wrapping_byte_add(line * Prefetch::LINE));
    }
    // A row that is not aligned ends in another line.
    V::prefetch(row.wrapping_byte_add(bytes - 1));
}

/// The tile of `MR` pixels times `NRV` vectors of packed weights, along output channels.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`ChannelArgs`] states for `MR` and `NR = NRV * V::LANES`.
#[inline(always)]
pub(crate) unsafe fn channel<V: Simd, const MR: usize, const NRV: usize>(args: &ChannelArgs<V::Elem>) {
    // SAFETY: every pointer below stays inside what ChannelArgs promises: each x + koff[k] is
    // readable for MR elements, w holds panels * kc * NR elements, and the tile panels * MR * NR.
    // There is one panel unless MR is 1. The store's contract covers the rest.
    unsafe {
        if const { MR == 1 } && args.panels != 1 {
            return panels::<V, NRV>(args);
        }
        one_panel::<V, MR, NRV>(args);
    }
}

/// The tile of `MR` pixels times a panel of `NRV` vectors.
///
/// # Safety
/// As [`channel`], with a single panel.
#[inline(always)]
unsafe fn one_panel<V: Simd, const MR: usize, const NRV: usize>(args: &ChannelArgs<V::Elem>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[V::splat(V::Elem::ZERO); NRV]; MR];
        // Each way of prefetching has its own loop, because a second line costs an instruction with each
        // step. Tiles of few pixels do not use pairs of lines, and tiles of many pixels do not stream.
        let is_pairs = const { NRV * size_of::<V>() > Prefetch::LINE } && args.prefetch_step == 2 * Prefetch::LINE;
        if const { MR <= Prefetch::STREAM_PIXELS } && args.is_stream {
            channel_sums::<V, MR, NRV, STREAM>(&mut acc, args);
        } else if const { MR >= Prefetch::STREAM_PIXELS } && is_pairs {
            channel_sums::<V, MR, NRV, 2>(&mut acc, args);
        } else {
            channel_sums::<V, MR, NRV, 1>(&mut acc, args);
        }
        if args.accumulate {
            add_tile::<V, MR, NRV>(&mut acc, args.tile);
        }
        store_tile::<V, MR, NRV>(&acc, args.tile);
        if let Some(store) = &args.store {
            store_transposed::<V>(args.tile, MR, NRV, store);
        }
    }
}

/// Panels that [`panels`] reads side by side.
///
/// The sums of a single panel wait for the latency of their multiply-adds. That takes as long as weights
/// take from the L3 cache, so that any delay of the weights adds to the time. Two panels have work left
/// in that case. See `docs/journal/channel-gemm-weights.md`.
const STREAMS: usize = 2;

/// How far each of these panels prefetches ahead, in bytes. All of them add up to
/// [`Prefetch::STREAM_BYTES`].
const STREAM_BYTES: usize = Prefetch::STREAM_BYTES / STREAMS;

/// One pixel times several panels of packed weights. The panels are divided into as many runs as
/// streams are read side by side, and each run is read from its beginning to its end. If the
/// number of panels is odd, the last three are read side by side.
///
/// # Safety
/// As [`channel`] with `MR` = 1; not for a single panel.
#[inline(always)]
unsafe fn panels<V: Simd, const NRV: usize>(args: &ChannelArgs<V::Elem>) {
    let three = if args.panels >= 3 && !args.panels.is_multiple_of(STREAMS) { 3 } else { 0 };
    let run = (args.panels - three) / STREAMS;
    // SAFETY: the panels `i + stream * run` are below `STREAMS * run`, and those from there on
    // are below `args.panels`: three, or none.
    unsafe {
        for i in 0..run {
            panels_apart::<V, NRV, STREAMS>(args, i, run);
        }
        if three > 0 {
            panels_apart::<V, NRV, 3>(args, STREAMS * run, 1);
        }
    }
}

/// The pixel times `N` panels: number `first`, and then each panel that is `apart` panels behind
/// the one before.
///
/// # Safety
/// As [`channel`] with `MR` = 1. `first + (N - 1) * apart < args.panels`.
#[inline(always)]
unsafe fn panels_apart<V: Simd, const NRV: usize, const N: usize>(
    args: &ChannelArgs<V::Elem>,
    first: usize,
    apart: usize,
) {
    let nr = NRV * V::LANES;
    // SAFETY: the caller's promise. For every panel, w has kc * NR elements and the tile NR. The
    // offsets end at kc.
    unsafe {
        let mut acc = [[[V::splat(V::Elem::ZERO); NRV]; 1]; N];
        let mut w = args.w.add(first * args.kc * nr);
        for k in 0..args.kc {
            let x = args.x.add(*args.koff.add(k) as usize);
            for n in 0..N {
                let w = w.add(n * apart * args.kc * nr);
                for line in 0..(NRV * size_of::<V>()).div_ceil(Prefetch::LINE) {
                    V::prefetch_near(w.wrapping_byte_add(STREAM_BYTES + line * Prefetch::LINE));
                }
                step::<V, 1, NRV>(&mut acc[n], x, Side(w));
            }
            w = w.add(nr);
        }
        for n in 0..N {
            let tile = args.tile.add((first + n * apart) * nr);
            if args.accumulate {
                add_tile::<V, 1, NRV>(&mut acc[n], tile);
            }
            store_tile::<V, 1, NRV>(&acc[n], tile);
        }
    }
}

/// The value of `LINES` for a stream: the panel's own rows are prefetched.
const STREAM: usize = 0;

/// The loop over k of [`one_panel`]. It prefetches `LINES` lines with each step, or the
/// panel's own rows for [`STREAM`].
///
/// # Safety
/// As [`one_panel`].
#[inline(always)]
unsafe fn channel_sums<V: Simd, const MR: usize, const NRV: usize, const LINES: usize>(
    acc: &mut [[V; NRV]; MR],
    args: &ChannelArgs<V::Elem>,
) {
    let (mut w, mut prefetch) = (args.w, args.prefetch);
    for k in 0..args.kc {
        // SAFETY: the caller's promise. The offsets end at kc, and so do the panel's rows.
        unsafe {
            for line in 0..LINES {
                V::prefetch(prefetch.wrapping_add(line * Prefetch::LINE).cast());
            }
            if LINES == STREAM {
                for line in 0..(NRV * size_of::<V>()).div_ceil(Prefetch::LINE) {
                    V::prefetch_near(w.wrapping_byte_add(Prefetch::STREAM_BYTES + line * Prefetch::LINE));
                }
            } else {
                prefetch = prefetch.wrapping_add(args.prefetch_step);
            }
            let x = args.x.add(*args.koff.add(k) as usize);
            let mut b = [V::splat(V::Elem::ZERO); NRV];
            for j in 0..NRV {
                b[j] = V::load(w.add(j * V::LANES));
            }
            update::<V, MR, NRV>(acc, x, &b, Side(w));
            w = w.add(NRV * V::LANES);
        }
    }
}

/// A row of B.
pub(crate) trait Row<V>: Copy {
    /// Vector number `j` of the row.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: as whoever made the row promises.
    unsafe fn vector(self, j: usize) -> V;

    /// Vector `j` of the row, given as `b`, times scalar `i` of `scalars`, plus `c`.
    #[inline(always)]
    fn product(self, _: usize, b: V, scalars: V::Scalars, i: usize, c: V) -> V
    where
        V: Simd,
    {
        b.mul_add_scalar(scalars, i, c)
    }
}

/// A row of contiguous vectors.
#[derive(Clone, Copy)]
struct Side<T>(*const T);

impl<V: Simd> Row<V> for Side<V::Elem> {
    #[inline(always)]
    unsafe fn vector(self, j: usize) -> V {
        // SAFETY: the caller's promise of memory and ISA.
        unsafe { V::load(self.0.add(j * V::LANES)) }
    }
}

/// One step of k: `MR` scalars at `a` times the `NRV` vectors of a row of B.
///
/// # Safety
/// CPU: the ISA. Memory: `a` is readable for `MR` elements, `row` for `NRV` vectors.
#[inline(always)]
pub(crate) unsafe fn step<V: Simd, const MR: usize, const NRV: usize>(
    acc: &mut [[V; NRV]; MR],
    a: *const V::Elem,
    row: impl Row<V>,
) {
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        if NRV <= MR {
            // Live registers: MR * NRV accumulators, NRV vectors of B, and the scalars of one or several
            // rows.
            let mut b = [V::splat(V::Elem::ZERO); NRV];
            for j in 0..NRV {
                b[j] = row.vector(j);
            }
            update::<V, MR, NRV>(acc, a, &b, row);
        } else {
            // Live registers: MR * NRV accumulators, the scalars of MR rows, and one vector of B.
            let mut scalars = [V::load_scalars(a, MR); MR];
            for i in 1..MR {
                scalars[i] = if i % V::SCALARS == 0 { V::load_scalars(a.add(i), MR - i) } else { scalars[i - 1] };
            }
            for j in 0..NRV {
                let b = row.vector(j);
                for i in 0..MR {
                    acc[i][j] = row.product(j, b, scalars[i], i % V::SCALARS, acc[i][j]);
                }
            }
        }
    }
}

/// Rows of a tile, at most: as many as the list of rows in [`update`] has.
const MOST_ROWS: usize = 14;

/// One step of k: each of `MR` scalars at `a` times the vectors `b` of the row `row`. Beside the
/// accumulators and `b`, the scalars of one row are live, or as many as one load brings.
///
/// # Safety
/// CPU: the ISA. Memory: `a` is readable for `MR` elements.
#[inline(always)]
unsafe fn update<V: Simd, const MR: usize, const NRV: usize>(
    acc: &mut [[V; NRV]; MR],
    a: *const V::Elem,
    b: &[V; NRV],
    row: impl Row<V>,
) {
    const { assert!(MR <= MOST_ROWS) };
    // SAFETY: the caller's promise. Each load is of rows from i on, and ends at row MR at the
    // latest.
    unsafe {
        let mut scalars = V::load_scalars(a, MR);
        // Straight-line code: in a loop that is not unrolled yet, the choice of a lane would be a
        // branch, and would keep LLVM from unrolling it.
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < MR {
                    if $i > 0 && $i % V::SCALARS == 0 {
                        scalars = V::load_scalars(a.add($i), MR - $i);
                    }
                    for j in 0..NRV {
                        acc[$i][j] = row.product(j, b[j], scalars, $i % V::SCALARS, acc[$i][j]);
                    }
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }
}

/// Adds the sums of earlier blocks of k. They are added at the end of a block, so that rounding
/// errors grow with the length of a block and the number of blocks, and not with all of K.
///
/// # Safety
/// CPU: the ISA. Memory: `tile` is readable for `MR * NRV * LANES` elements.
#[inline(always)]
pub(super) unsafe fn add_tile<V: Accumulator, const MR: usize, const NRV: usize>(
    acc: &mut [[V; NRV]; MR],
    tile: *const V::Elem,
) {
    for i in 0..MR {
        for j in 0..NRV {
            // SAFETY: the index ends at MR * NRV * LANES.
            unsafe { acc[i][j] = acc[i][j].add(V::load(tile.add((i * NRV + j) * V::LANES))) };
        }
    }
}

/// # Safety
/// CPU: the ISA. Memory: `tile` is writable for `MR * NRV * LANES` elements.
#[inline(always)]
pub(super) unsafe fn store_tile<V: Accumulator, const MR: usize, const NRV: usize>(
    acc: &[[V; NRV]; MR],
    tile: *mut V::Elem,
) {
    for i in 0..MR {
        for j in 0..NRV {
            // SAFETY: the index ends at MR * NRV * LANES.
            unsafe { acc[i][j].store(tile.add((i * NRV + j) * V::LANES)) };
        }
    }
}

/// The epilogue of a finished tile with full columns, straight from the accumulators.
///
/// Only short, branch-free bodies may loop over the accumulators. LLVM unrolls such loops
/// completely. If a loop is not unrolled, the array that it indexes lives in memory during the
/// whole kernel. An ISA without spare pointers has no residual here.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TileStore`] states. The columns are full, and consecutive from
/// `offset` on.
#[inline(always)]
unsafe fn store_plain<V: Simd, const MR: usize, const NRV: usize>(
    acc: &[[V; NRV]; MR],
    store: &TileStore<V::Elem>,
    offset: usize,
) {
    // SAFETY: TileStore promises that row i may be written, and the residual read, at i * ldy +
    // offset for NRV * LANES elements.
    unsafe {
        let EpilogueArgs { lo, hi, residual, .. } = store.epilogue;
        let (lo, hi, y) = (V::splat(lo), V::splat(hi), store.y.add(offset));
        if const { V::SPARE_POINTERS } && !residual.is_null() {
            let residual = residual.add(offset);
            for i in 0..MR {
                for j in 0..NRV {
                    let at = i * store.ldy + j * V::LANES;
                    acc[i][j].add(V::load(residual.add(at))).clamp(lo, hi).store(y.add(at));
                }
            }
            return;
        }
        for i in 0..MR {
            for j in 0..NRV {
                acc[i][j].clamp(lo, hi).store(y.add(i * store.ldy + j * V::LANES));
            }
        }
    }
}

/// The epilogue of a finished tile with rows that are pairs of phases: they are interleaved
/// straight from the accumulators. The loops are as short as in [`store_plain`].
///
/// # Safety
/// CPU: the ISA. Memory: as [`TileStore`] states for [`Places::Pairs`].
#[inline(always)]
unsafe fn store_pairs<V: Simd, const MR: usize, const NRV: usize>(
    acc: &[[V; NRV]; MR],
    store: &TileStore<V::Elem>,
    places: *const usize,
) {
    // SAFETY: TileStore promises NRV places, bias for MR / 2 pairs, and that pair i may be
    // written at i * ldy + places[j] for 2 * LANES elements.
    unsafe {
        let EpilogueArgs { bias, lo, hi, .. } = store.epilogue;
        let (lo, hi) = (V::splat(lo), V::splat(hi));
        for i in 0..MR / 2 {
            let bias = V::splat(*bias.add(i));
            for j in 0..NRV {
                let y = store.y.add(i * store.ldy + *places.add(j));
                let (even, odd) = (acc[i][j].add(bias).clamp(lo, hi), acc[MR / 2 + i][j].add(bias).clamp(lo, hi));
                let (first, second) = even.zip(odd);
                first.store(y);
                second.store(y.add(V::LANES));
            }
        }
    }
}

/// The epilogue of a finished tile in general: residual and clamp. The sums have the bias. Garbage
/// columns are dropped.
///
/// # Safety
/// CPU: the ISA. Memory: `tile` is readable for `mr * nrv * LANES` elements, the rest as
/// [`TileStore`] states for the `columns` of a map.
#[inline(always)]
unsafe fn store_columns<V: Simd>(
    tile: *const V::Elem,
    mr: usize,
    nrv: usize,
    store: &TileStore<V::Elem>,
    columns: *const Column,
) {
    // SAFETY: TileStore promises nrv entries of columns. Row i's column j may be written, and the
    // residual read, at i * ldy + offset for as many elements as its mask has bits.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&store.epilogue, store.y, 0);
        for j in 0..nrv {
            let column = *columns.add(j);
            let n = column.mask.count_ones() as usize;
            for i in 0..mr {
                let at = i * store.ldy + column.offset;
                let v = V::load(tile.add((i * nrv + j) * V::LANES));
                let sums = if column.mask == V::ALL { v } else { v.compress(column.mask) };
                finish.store_first(sums, at, n);
            }
        }
    }
}

/// The epilogue of a finished channel-vector tile `[pixels][nrv * LANES]`: bias, residual and clamp.
/// The tile is transposed to rows of pixels.
///
/// # Safety
/// CPU: the ISA. Memory: `tile` is readable for `pixels * nrv * LANES` elements, the rest as
/// [`ChannelStore`] states.
#[inline(always)]
pub(crate) unsafe fn store_transposed<V: Simd>(
    tile: *const V::Elem,
    pixels: usize,
    nrv: usize,
    store: &ChannelStore<V::Elem>,
) {
    // SAFETY: the loads end at the last pixel's last vector. ChannelStore promises bias for
    // `channels`, and that row c < channels may be written, and the residual read, at c * ldy for
    // `pixels` elements.
    unsafe {
        let finish = VectorEpilogue::<V>::new(&store.epilogue, store.y, 0);
        for first in (0..pixels).step_by(V::LANES) {
            let n = (pixels - first).min(V::LANES);
            for j in 0..nrv {
                let mut rows = [V::splat(V::Elem::ZERO); 16];
                for (i, row) in rows.iter_mut().enumerate().take(n) {
                    *row = V::load(tile.add(((first + i) * nrv + j) * V::LANES));
                }
                V::transpose(&mut rows);
                let channels = store.channels.saturating_sub(j * V::LANES).min(V::LANES);
                for (c, row) in rows.iter().enumerate().take(channels) {
                    let channel = j * V::LANES + c;
                    let sums = row.add(V::splat(*store.epilogue.bias.add(channel)));
                    finish.store_first(sums, channel * store.ldy + first, n);
                }
            }
        }
    }
}
