//! The kernels of groups of few channels: descriptors, raw arguments, and the safe call.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::mem::MaybeUninit;

use crate::simd::Simd;
use crate::ukernel::{Ahead, Dest, Epilogue};
use crate::{Isa, Real};

/// Vectors of a tile along positions, at the most.
const MOST_VECTORS: usize = 8;
/// Elements of a tile, at the most.
const MOST_TILE: usize = 512;

/// What a tap reads for output position 0: the element, from X's first one on, and its position in the channel's plane; both may be outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tap {
    pub(crate) offset: i32,
    pub(crate) position: i32,
}

/// Where the taps of a convolution of stride 1 read whose output rows are as long as X's: planes are runs of positions, and taps shift them. Validated
/// once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatTaps {
    /// Column after column of taps below one another, of each all channels.
    taps: Box<[Tap]>,
    column_len: usize,
    /// Whether a column sees lanes that are padding.
    is_masked: Box<[bool]>,
    /// For each column, the lanes that are no padding: vector v's are number `v % period`, with `MOST_VECTORS` more behind them.
    masks: Box<[u32]>,
    period: usize,
    lanes: usize,
    channels: usize,
    /// Elements of a channel of X, and of an output channel.
    plane: usize,
    outputs: usize,
    /// The least and the greatest of all taps' positions.
    least: isize,
    most: isize,
}

impl FlatTaps {
    /// Elements of a row, at the most: the table of masks grows with them.
    pub const MOST_WIDTH: usize = 4096;

    /// For `channels` planes of `height` rows of `width` elements, vectors of `lanes`, and as wide planes of `outputs` rows: the taps of each column see
    /// row `rows[k]` of X at output row 0, those of column c position `columns[c]` at output position 0. None if that is too wide, empty, or too far
    /// apart for 32 bits.
    #[must_use]
    pub fn new(
        lanes: usize,
        channels: usize,
        (height, width): (usize, usize),
        outputs: usize,
        rows: &[isize],
        columns: &[isize],
    ) -> Option<Self> {
        if !(1..=Self::MOST_WIDTH).contains(&width) || height == 0 || outputs == 0 || !(1..=32).contains(&lanes) {
            return None;
        }
        let (plane, outputs) = (height.checked_mul(width)?, outputs.checked_mul(width)?);
        i32::try_from(outputs).ok()?;
        let (mut taps, mut masks, mut is_masked) = (Vec::new(), Vec::new(), Vec::new());
        let period = width / gcd(width, lanes);
        let (mut least, mut most) = (0, 0);
        for &column in columns {
            for channel in 0..channels {
                for &row in rows {
                    let position = row.checked_mul(width as isize)?.checked_add(column)?;
                    let offset = isize::try_from(channel.checked_mul(plane)?).ok()?.checked_add(position)?;
                    taps.push(Tap { offset: i32::try_from(offset).ok()?, position: i32::try_from(position).ok()? });
                    (least, most) = (position.min(least), position.max(most));
                }
            }
            let is_there = |position: usize| {
                ((position % width) as isize).checked_add(column).is_some_and(|x| x >= 0 && x < width as isize)
            };
            let bits = |vector: usize| {
                (0..lanes).fold(0_u32, |mask, lane| mask | u32::from(is_there(vector * lanes + lane)) << lane)
            };
            masks.extend((0..period + MOST_VECTORS).map(bits));
            is_masked.push(column != 0);
        }
        let (taps, is_masked, masks) = (taps.into(), is_masked.into(), masks.into());
        let column_len = channels * rows.len();
        Some(Self { taps, column_len, is_masked, masks, period, lanes, channels, plane, outputs, least, most })
    }

    /// Steps of k: channels times taps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.taps.len()
    }

    /// Elements of an output channel.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The elements of each channel that the outputs from `from` to `to` see: some that none sees may be among them.
    #[must_use]
    pub fn window(&self, from: usize, to: usize) -> core::ops::Range<usize> {
        let clamped = |at: isize| at.clamp(0, self.plane as isize) as usize;
        let low = clamped(from as isize + self.least);
        low..clamped(to as isize + self.most).max(low)
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Raw arguments of a tile kernel.
///
/// Memory: `taps` readable for `columns * column_len`, `w` for MR times as many, `is_masked` for `columns`, `masks` for `columns * mask_pitch`, of each
/// column's from `vector % period` on for NRV; `x + offset - position` of each tap for `plane` elements; `bias` for MR; `tile` writable for MR * NR; for
/// each i < MR, `y + i * ldy` writable (and `residual` there readable, unless null) for `len` elements, which is above `(tiles - 1) * NR`. `least` and `most`
/// bound the taps' positions.
pub(crate) struct FlatArgs<T> {
    pub(crate) taps: *const Tap,
    pub(crate) columns: usize,
    pub(crate) column_len: usize,
    pub(crate) is_masked: *const bool,
    pub(crate) masks: *const u32,
    pub(crate) mask_pitch: usize,
    pub(crate) period: usize,
    pub(crate) least: isize,
    pub(crate) most: isize,
    pub(crate) plane: usize,
    pub(crate) w: *const T,
    pub(crate) x: *const T,
    /// Prefetched, `ahead_step` bytes further on with every step: any address.
    pub(crate) ahead: *const u8,
    pub(crate) ahead_step: usize,
    /// The vector of positions that the first tile begins with.
    pub(crate) first: usize,
    pub(crate) tiles: usize,
    pub(crate) tile: *mut T,
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
    pub(crate) len: usize,
    pub(crate) bias: *const T,
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
}

/// A kernel for tiles of some output channels by some vectors of positions. A reference to one is the proof that the CPU can run it.
pub struct GroupedKernel<T: 'static> {
    name: &'static str,
    isa: Isa,
    mr: usize,
    nrv: usize,
    lanes: usize,
    fmas: usize,
    f: unsafe fn(&FlatArgs<T>),
}

impl<T: Real> fmt::Debug for GroupedKernel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.isa)
    }
}

/// What the tiles of a call read.
#[derive(Debug)]
pub struct FlatInput<'a, T> {
    /// The taps.
    pub taps: &'a FlatTaps,
    /// The weights: for each tap MR, one of each output channel.
    pub w: &'a [T],
    /// The channels of X that are summed, all of their planes.
    pub x: &'a [T],
    /// What is fetched meanwhile, a line with each step.
    pub ahead: Ahead,
    /// The vector of output positions that the first tile begins with.
    pub first: usize,
    /// Tiles side by side, all of which begin before the last output position.
    pub tiles: usize,
}

impl<T: Real> GroupedKernel<T> {
    pub(crate) const fn new<V: Simd<Elem = T>, const MR: usize, const NRV: usize>(
        name: &'static str,
        isa: Isa,
        f: unsafe fn(&FlatArgs<T>),
    ) -> Self {
        const { assert!(NRV <= MOST_VECTORS && MR * NRV * V::LANES <= MOST_TILE) };
        Self { name, isa, mr: MR, nrv: NRV, lanes: V::LANES, fmas: MR * NRV * V::REGISTERS, f }
    }

    /// Name, as `<dtype>_<op>_<MR>x<NR>`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The ISA that it needs.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// MR: output channels of the tile.
    #[must_use]
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// NR: positions of the tile.
    #[must_use]
    pub fn nr(&self) -> usize {
        self.nrv * self.lanes
    }

    /// Vectors of the tile along positions.
    #[must_use]
    pub fn nrv(&self) -> usize {
        self.nrv
    }

    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Multiply-adds of registers in a step.
    #[must_use]
    pub fn fmas(&self) -> usize {
        self.fmas
    }

    /// MR rows of sums, `+ bias + residual`, clamped: those from vector `input.first` on go to `y`, row i to `y[i * ldy..]`.
    ///
    /// # Panics
    /// If a slice is too short, the taps are for vectors of another length, or a tile begins behind the last output position.
    pub fn run(&self, input: &FlatInput<'_, T>, y: &mut Dest<'_, T>, ldy: usize, epilogue: &Epilogue<'_, T>) {
        let &FlatInput { taps, w, x, ahead, first, tiles } = input;
        let Some(before) = tiles.checked_sub(1) else { return };
        assert_eq!(taps.lanes, self.lanes, "the taps are for other vectors");
        let last = before.saturating_mul(self.nrv).saturating_add(first).saturating_mul(self.lanes);
        assert!(last < taps.outputs, "a tile begins behind the last position");
        let len = (taps.outputs - first * self.lanes).min(tiles * self.nr());
        assert!(w.len() >= taps.taps.len() * self.mr, "too few weights");
        assert!(x.len() >= taps.channels * taps.plane, "the input is too short");
        let written = (self.mr - 1).saturating_mul(ldy).saturating_add(len);
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.bias.len() >= self.mr, "one bias a channel");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let mut tile = [const { MaybeUninit::<T>::uninit() }; MOST_TILE];
        let (ahead, ahead_step) = ahead.or(w);
        let args = FlatArgs {
            taps: taps.taps.as_ptr(),
            columns: taps.is_masked.len(),
            column_len: taps.column_len,
            is_masked: taps.is_masked.as_ptr(),
            masks: taps.masks.as_ptr(),
            mask_pitch: taps.period + MOST_VECTORS,
            period: taps.period,
            least: taps.least,
            most: taps.most,
            plane: taps.plane,
            w: w.as_ptr(),
            x: x.as_ptr(),
            ahead,
            ahead_step,
            first,
            tiles,
            tile: tile.as_mut_ptr().cast(),
            y: y.as_mut_ptr(),
            ldy,
            len,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
        };
        // SAFETY: the assertions cover the memory that FlatArgs asks for; each tap's plane is one of the channels of x, and MOST_VECTORS masks lie behind
        // those of a period; the tile holds MOST_TILE elements, which new() bounds; Dest grants the writes; a kernel is only handed out where the CPU
        // has its ISA.
        unsafe { (self.f)(&args) };
    }
}
