//! GEMM kernels for tensors whose channels are neighbours: descriptors, raw arguments, and safe calls.

use crate::activation::{ActivateArgs, ActivationKernel};
use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::ukernel::{ChannelStore, Epilogue, Residual, tile_kernel};
use crate::unit::Unit;
use crate::{Isa, Real};

/// Where the pixels of a tile read X, for each tap of the kernel (indirect convolution: Dukhan, "The
/// Indirect Convolution Algorithm", 2019).
#[derive(Debug, Clone, Copy)]
pub struct PixelTaps<'a> {
    /// For each tap its number, and for each pixel the place in X, or a place from [`ZEROS`](Self::ZEROS) on.
    pub(crate) entries: &'a [u32],
    /// Tiles of the table, and the pixels of each.
    pub(crate) tiles: usize,
    pub(crate) pixels: usize,
    /// How often the tiles are repeated, and elements from the places of one time to those of the next.
    pub(crate) repeats: usize,
    pub(crate) shift: usize,
    /// Taps of a tile, and entries from one tile to the next.
    pub(crate) taps: usize,
    pub(crate) step: usize,
    /// The greatest number of a tap, and the furthest place in X.
    pub(crate) last: usize,
    pub(crate) furthest: usize,
    pub(crate) reads_zeros: bool,
    pub(crate) in_order: bool,
}

impl<'a> PixelTaps<'a> {
    /// Places from here on read zeros in place of X. So a sum of two places, one of which is this, reads
    /// zeros too.
    pub const ZEROS: u32 = 1 << 30;

    /// Takes a table `[tiles][taps][1 + pixels]`: the number of the tap, and a place for each pixel.
    ///
    /// # Panics
    /// If the table ends within a tap, or tiles have different numbers of taps.
    #[must_use]
    pub fn new(entries: &'a [u32], tiles: usize, pixels: usize) -> Self {
        let step = pixels.saturating_add(1);
        assert!(entries.len().is_multiple_of(step.saturating_mul(tiles)), "the table ends within a tap");
        let last = entries.iter().step_by(step).fold(0, |last, number| last.max(*number));
        // Numbers of taps are compared as if they were places, because a loop over all entries is one of vectors.
        let (mut furthest, mut any) = (0, 0);
        for entry in entries {
            furthest = furthest.max(if *entry < Self::ZEROS { *entry } else { 0 });
            any |= entry;
        }
        if furthest <= last {
            let places = || entries.chunks_exact(step).flat_map(|tap| &tap[1..]);
            furthest = places().filter(|place| **place < Self::ZEROS).fold(0, |furthest, place| furthest.max(*place));
            any = places().fold(0, |any, place| any | place);
        }
        let (last, furthest, step) = (last as usize, furthest as usize, entries.len() / tiles.max(1));
        let taps = step / (1 + pixels);
        let reads_zeros = any >= Self::ZEROS;
        Self { entries, tiles, pixels, repeats: 1, shift: 0, taps, step, last, furthest, reads_zeros, in_order: false }
    }

    /// Has each sum added up in the order of its steps, so that it does not depend on how many pixels a tile has. Kernels
    /// for a few pixels take longer so.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Takes all tiles `repeats` times, one time behind the other. Each time, their places but those of zeros are
    /// `shift` elements further on.
    #[must_use]
    pub fn repeated(self, repeats: usize, shift: usize) -> Self {
        let furthest = repeats.saturating_sub(1).saturating_mul(shift).saturating_add(self.furthest);
        // Without taps X is not read, and may be shorter than any shift.
        let shift = if self.is_empty() { 0 } else { shift };
        Self { repeats: if self.tiles == 0 { 0 } else { repeats }, shift, furthest, ..self }
    }

    /// Pixels of all tiles.
    pub(crate) fn all_pixels(&self) -> usize {
        self.pixels.saturating_mul(self.tiles).saturating_mul(self.repeats)
    }

    /// Taps of a tile.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taps
    }

    /// Whether there are no taps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The operand X of a tile: elements `T` of the kernel, or bytes for a kernel of units.
#[derive(Debug, Clone, Copy)]
pub struct PixelInput<'a, T> {
    /// The first channel of the block. A place is an index into it.
    pub x: &'a [T],
    /// At least as many zeros as a pixel of the block has elements.
    pub zeros: &'a [T],
    /// Channels of the block, which are neighbours in a pixel, or units of bytes.
    pub channels: usize,
    /// The places of the tile.
    pub taps: PixelTaps<'a>,
}

impl<T> PixelInput<'_, T> {
    /// Asserts that kernels of `mr` pixels can read X, of which a channel or unit has `width` elements. Returns the rows of
    /// weights that they read.
    ///
    /// # Panics
    /// If a slice is too short, or the table is for tiles of another size.
    #[inline(always)]
    fn checked_rows(&self, mr: usize, width: usize) -> usize {
        let Self { x, zeros, channels, taps } = *self;
        let len = channels.saturating_mul(width);
        assert!(taps.pixels == mr, "the table is one of another number of pixels");
        assert!(taps.is_empty() || x.len() >= taps.furthest.saturating_add(len), "a pixel ends beyond the slice of X");
        assert!(!taps.reads_zeros || zeros.len() >= len, "too few zeros");
        if taps.is_empty() { 0 } else { taps.last.saturating_add(1).saturating_mul(channels) }
    }
}

/// What follows the sums of a tile of pixels.
#[derive(Debug)]
pub struct PixelEpilogue<'a, T> {
    /// For each channel that is stored.
    pub bias: &'a [T],
    /// Added after the bias.
    pub residual: Residual<'a, T>,
    /// Elements from one pixel of the residual to the next.
    pub residual_ld: usize,
    /// Applied last.
    pub activation: ActivationKernel<T>,
}

impl<T: Real> PixelEpilogue<'_, T> {
    /// Finishes `pixels` pixels of `channels` sums, which have their bias already: pixel i of `sums`, which are `x_row`
    /// elements apart, goes, `activation(sum + residual)`, to `y[i * ld..]`.
    ///
    /// # Panics
    /// If a slice is too short, or pixels of Y overlap.
    pub fn finish(
        &self,
        (sums, x_row): (&[T], usize),
        y: &mut Dest<'_, T>,
        ld: usize,
        (pixels, channels): (usize, usize),
    ) {
        let PixelStore { y, residual, activation, .. } = self.checked(y, ld, pixels, channels);
        assert!(end(pixels, x_row, channels) <= sums.len(), "the sums are too short");
        let (activation, f) = (activation.activation, activation.f);
        let (x, residual_row) = (sums.as_ptr(), self.residual_ld);
        // SAFETY: the assertions here and in checked() cover the memory that ActivateArgs asks for. The kernel is
        // one of this CPU, because it is made for that alone.
        unsafe {
            f(&ActivateArgs { activation, rows: pixels, len: channels, x, x_row, residual, residual_row, y, ld });
        }
    }
}

impl<T: Copy> PixelEpilogue<'_, T> {
    /// The raw form, for `channels` channels of `pixels` pixels, which go to `y`, `ld` elements apart.
    ///
    /// # Panics
    /// If the destination, the bias or the residual is shorter, or pixels of Y overlap.
    #[inline(always)]
    pub(crate) fn checked(&self, y: &Dest<'_, T>, ld: usize, pixels: usize, channels: usize) -> PixelStore<T> {
        let Self { bias, residual, residual_ld, activation } = *self;
        assert!(pixels <= 1 || channels <= ld, "pixels of Y overlap");
        assert!(end(pixels, ld, channels) <= y.len(), "the destination is too short");
        assert!(bias.len() >= channels, "too few biases");
        assert!(residual.reaches(end(pixels, residual_ld, channels)), "the residual is too short");
        let (bias, residual, y) = (bias.as_ptr(), residual.first, y.as_mut_ptr());
        PixelStore { y, ld, channels, bias, residual, residual_ld, activation }
    }
}

/// Raw arguments of a kernel for tiles of `MR` pixels x `NR` channels.
///
/// Memory: `entries` is readable for `taps * (1 + MR)` elements, and behind `step` elements for each further
/// tile again. The tiles are read `repeats` times, X `shift` elements further on each time. For each tap, `w + number *
/// channels * NR` is readable for `channels * NR` elements, and for each place below [`PixelTaps::ZEROS`]
/// `x + place` for `channels`, at any alignment. If there are other places, `zeros` is readable for `channels`. Places and
/// `shift` count elements, or bytes if these are units. `tile` is
/// readable and writable for `MR * NR` elements, or for those of all tiles if it keeps their sums. `store` is
/// valid as its parts state.
pub(crate) struct PixelArgs<T> {
    pub(crate) tiles: usize,
    pub(crate) repeats: usize,
    pub(crate) shift: usize,
    pub(crate) x: *const T,
    pub(crate) zeros: *const T,
    pub(crate) channels: usize,
    pub(crate) entries: *const u32,
    pub(crate) taps: usize,
    pub(crate) step: usize,
    pub(crate) in_order: bool,
    pub(crate) w: *const T,
    pub(crate) tile: *mut T,
    pub(crate) accumulate: bool,
    pub(crate) store: PixelOutput<T>,
}

impl<T> PixelArgs<T> {
    /// Whether the tiles are kept in memory, or were.
    #[inline(always)]
    pub(crate) fn keeps_sums(&self) -> bool {
        self.accumulate || matches!(self.store, PixelOutput::Tiles)
    }
}

/// Where the sums of tiles go.
pub(crate) enum PixelOutput<T> {
    /// Into the tiles alone.
    Tiles,
    Pixels(PixelStore<T>),
    /// Into planes of channels: as [`ChannelStore`] states for the pixels of all tiles in place of `MR`.
    Planes(ChannelStore<T>),
    /// As bytes. Only sums of units are stored so.
    Bytes(ByteStore),
}

/// Where the sums of a tile of pixels go, if their channels are neighbours.
///
/// Memory: `bias` is readable for `channels` elements. For each pixel i of all tiles, `y + i * ld` is
/// writable for as many, and `residual + i * residual_ld` is readable unless `residual` is null. Pixels of
/// Y do not overlap.
pub(crate) struct PixelStore<T> {
    pub(crate) y: *mut T,
    pub(crate) ld: usize,
    pub(crate) channels: usize,
    pub(crate) bias: *const T,
    pub(crate) residual: *const T,
    pub(crate) residual_ld: usize,
    pub(crate) activation: ActivationKernel<T>,
}

/// Where the sums of a tile of units go as bytes: as [`Requantise`] says, without a residual and a table.
///
/// Memory: `add` and `scale` are readable for `channels` elements, at most `NR`, and `y + i * ld` is writable for as many, for
/// each pixel i of all tiles. Pixels do not overlap. Without masks, there are whole vectors of channels.
pub(crate) struct ByteStore {
    pub(crate) y: *mut u8,
    pub(crate) ld: usize,
    pub(crate) channels: usize,
    pub(crate) add: *const i32,
    pub(crate) scale: *const f32,
    pub(crate) zero: i32,
    /// Whether bytes have a sign.
    pub(crate) is_signed: bool,
}

tile_kernel!(
    /// A GEMM micro-kernel with vectors along output channels, for an X whose channels are neighbours.
    PixelKernel, PixelArgs, "MR: rows of the tile (output pixels, broadcast).", "NR: columns of the tile (output channels, in vectors)."
);

impl<T: Copy> PixelKernel<T> {
    /// The same kernel, for units.
    pub(crate) const fn of(self, unit: Unit) -> Self {
        Self { code: self.code.of(unit), ..self }
    }

    // A call of its own would cost as much as a step of a few k.
    #[inline(always)]
    fn call<X>(&self, x: &PixelInput<'_, X>, w: &[T], tile: &mut [T], accumulate: bool, store: PixelOutput<T>) {
        let rows = x.checked_rows(self.mr, const { size_of::<T>() / size_of::<X>() });
        assert!(w.len() >= rows.saturating_mul(self.nr()), "the panel of W is too short");
        let PixelInput { x, zeros, channels, taps } = *x;
        let (count, entries, tile_len) = (taps.len(), taps.entries.as_ptr(), tile.len());
        let (x, zeros, w, tile) = (x.as_ptr().cast(), zeros.as_ptr().cast(), w.as_ptr(), tile.as_mut_ptr());
        let args = PixelArgs {
            tiles: taps.tiles,
            repeats: taps.repeats,
            shift: taps.shift,
            x,
            zeros,
            channels,
            entries,
            taps: count,
            step: taps.step,
            in_order: taps.in_order,
            w,
            tile,
            accumulate,
            store,
        };
        let kept = if args.keeps_sums() { taps.all_pixels() } else { self.mr };
        assert!(tile_len >= self.nr().saturating_mul(kept), "the tile is too short");
        // SAFETY: the assertions here, and those of who made the store, cover the memory that PixelArgs and the store ask
        // for. Dest grants the writes.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}

impl PixelKernel<i32> {
    /// Computes `tile = [tile +] X * W` over one block of units, and keeps it in `tile` as `[MR][NR]`. Units of X begin with
    /// any byte.
    ///
    /// `w` is a packed panel, `[taps][units][NR]`.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn sums(&self, x: &PixelInput<'_, u8>, w: &[i32], tile: &mut [i32], accumulate: bool) {
        self.call(x, w, tile, accumulate, PixelOutput::Tiles);
    }

    /// As [`sums`](Self::sums), over the last block. Sums go to `store`.
    ///
    /// # Panics
    /// If a slice is too short.
    ///
    /// # Safety
    /// Memory: as `store` states. The kernel is one of an ISA that stores bytes so.
    pub(crate) unsafe fn bytes(
        &self,
        x: &PixelInput<'_, u8>,
        w: &[i32],
        (tile, accumulate): (&mut [i32], bool),
        store: ByteStore,
    ) {
        self.call(x, w, tile, accumulate, PixelOutput::Bytes(store));
    }
}

impl<T: Real> PixelKernel<T> {
    /// Computes `tile = [tile +] X * W` over one block of channels, and keeps it in `tile` as `[MR][NR]`.
    ///
    /// `w` is a packed panel, `[taps][channels][NR]`.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn partial(&self, x: &PixelInput<'_, T>, w: &[T], tile: &mut [T], accumulate: bool) {
        self.call(x, w, tile, accumulate, PixelOutput::Tiles);
    }

    /// Computes the sums of [`partial`](Self::partial) over the last block of channels, and finishes them:
    /// the first `channels` channels of pixel i go, `activation(sum + bias + residual)`, to `y[i * ld..]`.
    ///
    /// # Panics
    /// If a slice is too short, or pixels of Y overlap.
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination and its stride")]
    pub fn finish(
        &self,
        x: &PixelInput<'_, T>,
        w: &[T],
        tile: &mut [T],
        accumulate: bool,
        y: &mut Dest<'_, T>,
        ld: usize,
        channels: usize,
        epilogue: &PixelEpilogue<'_, T>,
    ) {
        assert!(0 < channels && channels <= self.nr(), "channels of this tile");
        let store = epilogue.checked(y, ld, x.taps.all_pixels(), channels);
        self.call(x, w, tile, accumulate, PixelOutput::Pixels(store));
    }

    /// As [`finish`](Self::finish), for a Y whose channels come first: the pixels of channel c go, `+ bias +
    /// residual` and clamped, to `y[c * ldy..]`.
    ///
    /// # Panics
    /// If a slice is too short.
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination and its stride")]
    pub fn finish_planes(
        &self,
        x: &PixelInput<'_, T>,
        w: &[T],
        tile: &mut [T],
        accumulate: bool,
        y: &mut Dest<'_, T>,
        ldy: usize,
        channels: usize,
        epilogue: &Epilogue<'_, T>,
    ) {
        assert!(0 < channels && channels <= self.nr(), "channels of this tile");
        let end = end(channels, ldy, x.taps.all_pixels());
        let store = ChannelStore { y: y.as_mut_ptr(), ldy, channels, epilogue: epilogue.checked(y, end, channels) };
        self.call(x, w, tile, accumulate, PixelOutput::Planes(store));
    }
}
