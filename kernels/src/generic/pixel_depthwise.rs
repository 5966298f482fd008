//! The depthwise kernel with vectors along channels, for tensors whose channels are neighbours.
//!
//! MR pixels of a row stay in registers over all taps. Where the taps of a row of the kernel read the same columns of X
//! as their neighbours, a column is loaded once for all of them, and columns of padding are left out. Otherwise a tap loads its weights once, and takes one
//! multiply-add for each pixel and vector, with X from memory.
//!
//! A group of several channels is a part of a vector. Then a vector of X stays in a register, and each of the group's
//! channels in turn is spread over the group's lanes.

use crate::activation::{ActivateArgs, Activation};
use crate::pixel::{PixelStore, PixelTaps};
use crate::pixel_depthwise::{DepthwisePixelArgs, PixelColumns, fits_groups};
use crate::simd::{Accumulator, Simd, Value, prefetch};
use crate::ukernel::Prefetch;

/// Tiles of `MR` pixels, of which `NRV` vectors of channels are summed at a time, or one where the taps of a row
/// share columns.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwisePixelArgs`] states for `MR`.
#[inline(always)]
pub(crate) unsafe fn pixels<V: Simd, const MR: usize, const NRV: usize>(args: &DepthwisePixelArgs<V::Elem>) {
    let DepthwisePixelArgs { rows, tiles, store: PixelStore { y, ld, channels, activation, .. }, .. } = *args;
    let apart = taps_between::<V::Elem, MR>(args);
    // SAFETY: the caller's promise. Activations in place read what the blocks have stored.
    unsafe {
        for number in 0..rows * tiles {
            let tile = &PixelTile::new(args, (number / tiles, number % tiles), MR);
            match args.group > 1 {
                true if const { fits_groups::<V>(MR) } => groups::<V, MR>(args, tile),
                _ => channels_alone::<V, MR, NRV>(args, tile, apart),
            }
            if !matches!(activation.activation, Activation::Clamp(..)) {
                let (y, residual) = (y.add(tile.pixel * ld), core::ptr::null());
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

/// The same tiles, of groups of one channel, with the clamp of an epilogue whose sums are [kept](crate::dot::kept_sums).
///
/// # Safety
/// As [`pixels`].
#[inline(always)]
pub(crate) unsafe fn sums<V: Accumulator, const MR: usize, const NRV: usize>(args: &DepthwisePixelArgs<V::Elem>) {
    let apart = taps_between::<V::Elem, MR>(args);
    for number in 0..args.rows * args.tiles {
        let tile = &PixelTile::new(args, (number / args.tiles, number % args.tiles), MR);
        // SAFETY: the caller's promise.
        unsafe { channels_alone::<V, MR, NRV>(args, tile, apart) };
    }
}

/// How many taps lie between two neighbouring pixels, where taps share columns. 0 where they do not.
#[inline(always)]
fn taps_between<T, const MR: usize>(args: &DepthwisePixelArgs<T>) -> usize {
    let PixelColumns { advance, spacing, taps, .. } = args.columns;
    match advance {
        _ if const { MR == 1 } || taps <= 1 => 0,
        advance if advance == spacing => 1,
        advance if advance == 2 * spacing => 2,
        _ => 0,
    }
}

/// A tile of groups of one channel. `apart` is as in [`taps_between`].
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn channels_alone<V: Accumulator, const MR: usize, const NRV: usize>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: &PixelTile,
    apart: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (apart, args.columns.taps) {
            (1, 3) => rows_of_taps::<V, MR, 3, 1>(args, tile),
            (1, 5) => rows_of_taps::<V, MR, 5, 1>(args, tile),
            (1, _) => rows_of_taps::<V, MR, 0, 1>(args, tile),
            (2, 3) => rows_of_taps::<V, MR, 3, 2>(args, tile),
            (2, 5) => rows_of_taps::<V, MR, 5, 2>(args, tile),
            _ => each_tap::<V, MR, NRV>(args, tile),
        }
    }
}

/// A tile of the pixels of a row.
struct PixelTile {
    /// The places of its rows of X.
    places: *const u32,
    /// The column that its first pixel reads through the first tap of a row.
    column: isize,
    /// Whether no pixel reads a column beside X.
    is_inside: bool,
    /// Its first pixel in Y.
    pixel: usize,
}

impl PixelTile {
    /// Tile number `tile` of a row.
    #[inline(always)]
    fn new<T>(args: &DepthwisePixelArgs<T>, (row, tile): (usize, usize), mr: usize) -> Self {
        let PixelColumns { first, advance, taps, spacing, count, .. } = args.columns;
        let pixel = args.from + tile * mr;
        let column = first.wrapping_add_unsigned(pixel * advance);
        let last = column.wrapping_add_unsigned((mr - 1) * advance + taps.saturating_sub(1) * spacing);
        let places = args.places.wrapping_add(row * args.row_taps);
        Self { places, column, is_inside: column >= 0 && last < count as isize, pixel: row * args.width + pixel }
    }
}

/// What a tile reads of a row, from a channel and a column on. A row of padding whose products count has no columns.
#[derive(Clone, Copy)]
struct RowReader<T> {
    /// The column, and its number. Those that lie before the row wrap to great numbers.
    x: *const T,
    column: usize,
    /// The weights of the first tap that reads it.
    w: *const T,
    /// In place of columns from `count` on.
    zeros: *const T,
    count: usize,
}

impl<T: Value> RowReader<T> {
    /// What the first pixel reads through the first tap of row number `row` of the kernel. None if that is padding that adds
    /// nothing.
    ///
    /// # Safety
    /// The tile is one of `args`, and the row one of the kernel.
    #[inline(always)]
    unsafe fn first(args: &DepthwisePixelArgs<T>, tile: &PixelTile, row: usize, c: usize) -> Option<Self> {
        // SAFETY: the caller's promise.
        let (place, number) = unsafe { (*tile.places.add(row), *args.numbers.add(row) as usize) };
        let (column, PixelColumns { count, pixel, .. }) = (tile.column as usize, args.columns);
        let count = if place < PixelTaps::ZEROS { count } else { 0 };
        (count > 0 || const { !T::LEAVES_OUT_PADDING }).then(|| Self {
            x: args.x.wrapping_add(place as usize + c).wrapping_add(column.wrapping_mul(pixel)),
            column,
            w: args.w.wrapping_add(number * args.group * args.store.channels + c),
            zeros: args.zeros.wrapping_add(c),
            count,
        })
    }

    /// What the same pixel reads through the `taps`-th tap behind this one.
    #[inline(always)]
    fn behind(&self, args: &DepthwisePixelArgs<T>, taps: usize) -> Self {
        let w = self.w.wrapping_byte_offset((taps as isize).wrapping_mul(args.tap_bytes));
        Self { w, ..self.right(args, taps * args.columns.spacing) }
    }

    /// So many columns further on, with the same weights.
    #[inline(always)]
    fn right(&self, args: &DepthwisePixelArgs<T>, columns: usize) -> Self {
        let x = self.x.wrapping_add(columns.wrapping_mul(args.columns.pixel));
        Self { x, column: self.column.wrapping_add(columns), ..*self }
    }

    /// Whether the row has the column.
    #[inline(always)]
    fn is_there(&self) -> bool {
        self.column < self.count
    }

    /// The column, or zeros.
    #[inline(always)]
    fn place(&self) -> *const T {
        if self.is_there() { self.x } else { self.zeros }
    }

    /// What pixel `i` reads through the tap.
    #[inline(always)]
    fn pixel(&self, args: &DepthwisePixelArgs<T>, i: usize) -> *const T {
        self.right(args, i * args.columns.advance).place()
    }
}

/// A tile of groups of several channels, tap by tap.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn groups<V: Simd, const MR: usize>(args: &DepthwisePixelArgs<V::Elem>, tile: &PixelTile) {
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
    tile: &PixelTile,
    c: usize,
    n: usize,
) {
    let words = V::LANES * (size_of::<V::Elem>() / size_of::<u32>());
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names.
    unsafe {
        let mut acc = [row::<V, 1, WHOLE>(args.store.bias.add(c), n); MR];
        for reader in (0..args.row_taps).filter_map(|row| RowReader::first(args, tile, row, c)) {
            for tap in 0..args.columns.taps {
                let tap = reader.behind(args, tap);
                let mut x = [V::splat(V::Elem::default()); MR];
                for i in 0..MR {
                    x[i] = row::<V, 1, WHOLE>(tap.pixel(args, i), n)[0];
                }
                for k in 0..args.group {
                    let w = row::<V, 1, WHOLE>(tap.w.wrapping_add(k * args.store.channels), n)[0];
                    for i in 0..MR {
                        acc[i][0] = x[i].permute(args.spread.add(k * words)).mul_add(w, acc[i][0]);
                    }
                }
            }
        }
        finish::<V, MR, 1, WHOLE>(args, &mut acc, tile.pixel, c, n);
    }
}

/// A tile, tap by tap.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn each_tap<V: Accumulator, const MR: usize, const NRV: usize>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: &PixelTile,
) {
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

/// A tile whose pixels are `S` times as many columns apart as the taps of a row, of which there are `KW`, or any number
/// above 1 if that is 0.
///
/// # Safety
/// As [`pixels`]. The tile is one of `args`.
#[inline(always)]
unsafe fn rows_of_taps<V: Accumulator, const MR: usize, const KW: usize, const S: usize>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: &PixelTile,
) {
    let (channels, mut c) = (args.store.channels, 0);
    // SAFETY: the caller's promise. No block has more than the remaining channels.
    unsafe {
        let mut is_inside = tile.is_inside;
        if const { !V::Elem::LEAVES_OUT_PADDING } {
            for row in 0..args.row_taps {
                is_inside &= *tile.places.add(row) < PixelTaps::ZEROS;
            }
        }
        while c < channels {
            let rest = channels - c;
            match (rest >= V::LANES, is_inside) {
                (true, true) => block_of_rows::<V, MR, KW, S, true, true>(args, tile, c, rest),
                (true, false) => block_of_rows::<V, MR, KW, S, true, false>(args, tile, c, rest),
                (false, _) => block_of_rows::<V, MR, KW, S, false, false>(args, tile, c, rest),
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
unsafe fn block<V: Accumulator, const MR: usize, const NRV: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: &PixelTile,
    c: usize,
    n: usize,
) {
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names.
    unsafe {
        // Sums begin with the bias, which saves adding it.
        let mut acc = [row::<V, NRV, WHOLE>(args.store.bias.add(c), n); MR];
        for reader in (0..args.row_taps).filter_map(|row| RowReader::first(args, tile, row, c)) {
            for tap in 0..args.columns.taps {
                let tap = reader.behind(args, tap);
                let w = row::<V, NRV, WHOLE>(tap.w, n);
                for i in 0..MR {
                    let x = row::<V, NRV, WHOLE>(tap.pixel(args, i), n);
                    for j in 0..NRV {
                        acc[i][j] = x[j].mul_add(w[j], acc[i][j]);
                    }
                }
            }
        }
        finish::<V, MR, NRV, WHOLE>(args, &mut acc, tile.pixel, c, n);
    }
}

/// The channels of [`rows_of_taps`] from `c` on: a vector, of which there are all if the block is `WHOLE`, and the
/// first `n` otherwise.
///
/// # Safety
/// As [`rows_of_taps`]. The channels are among those of `args`. `INSIDE` is set for no other tile.
#[inline(always)]
unsafe fn block_of_rows<
    V: Accumulator,
    const MR: usize,
    const KW: usize,
    const S: usize,
    const WHOLE: bool,
    const INSIDE: bool,
>(
    args: &DepthwisePixelArgs<V::Elem>,
    tile: &PixelTile,
    c: usize,
    n: usize,
) {
    // SAFETY: the caller's promise. All offsets stay in what DepthwisePixelArgs names, but those that
    // are prefetched, which may be any.
    unsafe {
        let mut acc = [row::<V, 1, WHOLE>(args.store.bias.add(c), n); MR];
        let readers = (0..args.row_taps).filter_map(|row| RowReader::first(args, tile, row, c));
        for reader in readers.clone() {
            if KW > 0 {
                shared_taps::<V, MR, KW, S, WHOLE, INSIDE>(args, reader, n, &mut acc);
                continue;
            }
            let (taps, mut done) = (args.columns.taps, 0);
            while taps - done == 3 || taps - done > 4 {
                shared_taps::<V, MR, 3, S, WHOLE, INSIDE>(args, reader.behind(args, done), n, &mut acc);
                done += 3;
            }
            while taps > done {
                shared_taps::<V, MR, 2, S, WHOLE, INSIDE>(args, reader.behind(args, done), n, &mut acc);
                done += 2;
            }
        }
        if args.prefetches_next && (c * size_of::<V::Elem>()).is_multiple_of(Prefetch::LINE) {
            // With a stride of 1 from row to row, tiles above have read the rows before the last one.
            if let Some(RowReader { x, .. }) = readers.last() {
                let read = (MR - 1) * S + args.columns.taps;
                for column in read..read + MR * S {
                    prefetch(x.wrapping_byte_add(column.wrapping_mul(args.column_bytes)));
                }
            }
            for pixel in tile.pixel + MR..tile.pixel + 2 * MR {
                prefetch(args.store.y.wrapping_add(pixel * args.store.ld + c));
            }
        }
        finish::<V, MR, 1, WHOLE>(args, &mut acc, tile.pixel, c, n);
    }
}

/// Adds the products of `KW` neighbouring taps of a row: each column is loaded once for all of them.
///
/// # Safety
/// As [`block_of_rows`]. The row begins with the first of these taps.
#[inline(always)]
unsafe fn shared_taps<
    V: Accumulator,
    const MR: usize,
    const KW: usize,
    const S: usize,
    const WHOLE: bool,
    const INSIDE: bool,
>(
    args: &DepthwisePixelArgs<V::Elem>,
    mut reader: RowReader<V::Elem>,
    n: usize,
    acc: &mut [[V; 1]; MR],
) {
    // These are read here, because the compiler assumes that loads in order change memory. A distance in bytes is added
    // without a multiplication.
    let (spacing, bytes) = (args.columns.spacing, args.column_bytes);
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [V::splat(V::Elem::default()); KW];
        for k in 0..KW {
            weights[k] = row::<V, 1, WHOLE>(reader.behind(args, k).w, n)[0];
        }
        // None if the column is padding that adds nothing.
        let mut next = || {
            let is_there = INSIDE || reader.is_there();
            let x = match is_there {
                false if const { V::Elem::LEAVES_OUT_PADDING } => None,
                _ => Some(row::<V, 1, WHOLE>(if is_there { reader.x } else { reader.zeros }, n)[0]),
            };
            reader.x = V::in_order(reader.x.wrapping_byte_add(bytes));
            reader.column = reader.column.wrapping_add(spacing);
            x
        };
        // For each pixel the columns that lie before what the next one reads first.
        for p in 0..MR {
            for s in 0..S {
                let Some(x) = next() else { continue };
                for k in 0..KW {
                    if k % S == s && k / S <= p {
                        let sum = &mut acc[p - k / S][0];
                        *sum = x.mul_add(weights[k], *sum);
                    }
                }
            }
        }
        // Those that only the last pixels read.
        for j in S..KW {
            let Some(x) = next() else { continue };
            for k in j..KW {
                if (k - j).is_multiple_of(S) && (k - j) / S < MR {
                    let sum = &mut acc[MR - 1 - (k - j) / S][0];
                    *sum = x.mul_add(weights[k], *sum);
                }
            }
        }
    }
}

/// The epilogue of a block, whose first pixel is pixel `first` of Y.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn finish<V: Accumulator, const MR: usize, const NRV: usize, const WHOLE: bool>(
    args: &DepthwisePixelArgs<V::Elem>,
    acc: &mut [[V; NRV]; MR],
    first: usize,
    c: usize,
    n: usize,
) {
    let PixelStore { y, ld, residual, residual_ld, activation, .. } = args.store;
    // SAFETY: the caller's promise. All offsets stay in what PixelStore names.
    unsafe {
        if !residual.is_null() {
            let residual = residual.add(first * residual_ld + c);
            for i in 0..MR {
                let residual = row::<V, NRV, WHOLE>(residual.add(i * residual_ld), n);
                for j in 0..NRV {
                    acc[i][j] = acc[i][j].add(residual[j]);
                }
            }
        }
        let (lo, hi) = match activation.activation {
            Activation::Clamp(lo, hi) => (V::splat(lo), V::splat(hi)),
            _ => (V::splat(V::Elem::LEAST), V::splat(V::Elem::MOST)),
        };
        let y = y.add(first * ld + c);
        for i in 0..MR {
            for j in 0..NRV {
                let (sums, y) = (acc[i][j].clamp(lo, hi), y.add(i * ld + j * V::LANES));
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
unsafe fn row<V: Accumulator, const NRV: usize, const WHOLE: bool>(p: *const V::Elem, n: usize) -> [V; NRV] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut row = [V::splat(V::Elem::default()); NRV];
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
