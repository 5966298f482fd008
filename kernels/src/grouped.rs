//! The kernels of groups of few channels: descriptors, raw arguments, and the safe call.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::isa::called;
use crate::simd::Simd;
use crate::ukernel::{Ahead, Dest, Epilogue, name_and_isa, tile_sizes};
use crate::{Isa, Real, gcd};

/// Vectors of a tile along positions, at the most.
const MOST_VECTORS: usize = 8;
/// Masks of a border, at the most.
const MOST_MASKS: usize = 1 << 18;
/// Elements of a tile, at the most.
const MOST_TILE: usize = 512;

/// A tap of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tap {
    /// The element of X that output position 0 sees, from the first one on; perhaps none of the
    /// channel's plane.
    pub(crate) offset: i32,
    /// Where its masks begin among the border's.
    pub(crate) masks: u32,
}

/// Where the taps of a convolution read whose output rows are as long as those of X's planes:
/// planes are runs of positions, and taps shift them. Validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatTaps {
    /// Column after column of taps below one another, of each all channels.
    taps: Box<[Tap]>,
    column_len: usize,
    columns: usize,
    /// For each column, the lanes that are no padding beside a row: vector v's are number `v %
    /// period`, with `MOST_VECTORS` more behind them.
    masks: Box<[u32]>,
    period: usize,
    /// Vectors before `head` and from `tail` on see positions before or behind the plane.
    head: usize,
    tail: usize,
    /// For each tap of a channel, the lanes of X's plane that vectors near the border see: those of
    /// all vectors before `gap.0`, and of those from `gap.0 + gap.1` on.
    border_masks: Box<[u32]>,
    gap: (usize, usize),
    lanes: usize,
    /// Elements of all channels.
    len: usize,
    /// Elements of a plane of X, and of an output channel.
    plane: usize,
    outputs: usize,
    /// The least and the greatest of all taps' positions.
    least: isize,
    most: isize,
}

impl FlatTaps {
    /// Elements of a row, at the most: the table of masks grows with them.
    pub const MOST_WIDTH: usize = 4096;

    /// For `channels` channels, `pitch` elements apart, vectors of `lanes`, and output planes of
    /// `outputs` rows of `width` elements: the taps of each column see row `rows[k].1` at output
    /// row 0, those of column c position `columns[c].1` at output position 0, of a plane of X, of
    /// `height` rows of `width` elements, that begins `rows[k].0 + columns[c].0` elements behind
    /// the channel. None if that is too wide, empty, too far apart for 32 bits, or if a plane ends
    /// behind its channel.
    #[must_use]
    pub fn new(
        lanes: usize,
        (channels, pitch): (usize, usize),
        (height, width): (usize, usize),
        outputs: usize,
        rows: &[(usize, isize)],
        columns: &[(usize, isize)],
    ) -> Option<Self> {
        if !(1..=Self::MOST_WIDTH).contains(&width) || height == 0 || outputs == 0 || !(1..=32).contains(&lanes) {
            return None;
        }
        let (plane, outputs) = (height.checked_mul(width)?, outputs.checked_mul(width)?);
        i32::try_from(outputs).ok()?;
        let positions = || columns.iter().flat_map(|column| rows.iter().map(move |row| (row, column)));
        let (mut least, mut most) = (0, 0);
        for (row, column) in positions() {
            let position = row.1.checked_mul(width as isize)?.checked_add(column.1)?;
            // On 32 bits, too, sums of positions fit.
            if position.unsigned_abs() > 1 << 30 {
                return None;
            }
            (least, most) = (position.min(least), position.max(most));
            if row.0.checked_add(column.0)?.checked_add(plane)? > pitch {
                return None;
            }
        }
        // No offset is beyond that of the last channel's last position.
        let last = isize::try_from(channels.checked_mul(pitch)?).ok()?.checked_add(most)?;
        i32::try_from(last).ok()?;
        // Whether output position `at` sees an element through a tap.
        let is_beside = |at: usize, column: isize| !(0..width as isize).contains(&((at % width) as isize + column));
        let is_there = |at: usize, row: isize, column: isize| {
            let seen = at as isize + row * width as isize + column;
            at < outputs && !is_beside(at, column) && (0..plane as isize).contains(&seen)
        };
        let mask = |vector: usize, is_set: &dyn Fn(usize) -> bool| {
            (0..lanes).fold(0_u32, |mask, lane| mask | u32::from(is_set(vector * lanes + lane)) << lane)
        };

        let period = width / gcd(width, lanes);
        let mut masks = Vec::with_capacity(columns.len() * (period + MOST_VECTORS));
        for &(_, column) in columns {
            masks.extend((0..period + MOST_VECTORS).map(|vector| mask(vector, &|at| !is_beside(at, column))));
        }
        let vectors = outputs.div_ceil(lanes);
        let head = least.unsigned_abs().div_ceil(lanes).min(vectors);
        let tail = (plane.saturating_sub(most.unsigned_abs()).min(outputs) / lanes).min(vectors);
        // A tile at the border may begin with vectors that are not.
        let first = (head + MOST_VECTORS).min(vectors);
        let second = tail.saturating_sub(MOST_VECTORS).max(first);
        let near = || (0..first).chain(second..vectors + MOST_VECTORS);
        let count = first + vectors + MOST_VECTORS - second;
        if positions().count().checked_mul(count)? > MOST_MASKS {
            return None;
        }
        let mut border_masks = Vec::with_capacity(positions().count() * count);
        for (&(_, row), &(_, column)) in positions() {
            border_masks.extend(near().map(|vector| mask(vector, &|at| is_there(at, row, column))));
        }

        let mut taps = Vec::with_capacity(channels * positions().count());
        for (c, column) in columns.iter().enumerate() {
            for channel in 0..channels {
                taps.extend(rows.iter().enumerate().map(|(r, row)| Tap {
                    offset: ((channel * pitch + row.0 + column.0) as isize + row.1 * width as isize + column.1) as i32,
                    masks: ((c * rows.len() + r) * count) as u32,
                }));
            }
        }
        Some(Self {
            taps: taps.into(),
            column_len: channels * rows.len(),
            columns: columns.len(),
            masks: masks.into(),
            period,
            head,
            tail,
            border_masks: border_masks.into(),
            gap: (first, second - first),
            lanes,
            len: channels * pitch,
            plane,
            outputs,
            least,
            most,
        })
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

    /// Vectors of output positions, of all, that see positions before or behind a plane: their
    /// loads are slower.
    #[must_use]
    pub fn border(&self) -> usize {
        let vectors = self.outputs.div_ceil(self.lanes);
        (self.head + vectors - self.tail).min(vectors)
    }

    /// The elements of each plane that the outputs from `from` to `to` see: some that none sees may
    /// be among them.
    #[must_use]
    pub fn window(&self, from: usize, to: usize) -> core::ops::Range<usize> {
        let clamped = |at: isize| at.clamp(0, self.plane as isize) as usize;
        let low = clamped(from as isize + self.least);
        low..clamped(to as isize + self.most).max(low)
    }
}

/// Raw arguments of a tile kernel.
///
/// Memory: `taps` readable for `columns * column_len`, `w` for MR times as many, `masks` for
/// `columns * mask_pitch`, of each column's from `vector % period` on for NRV; `bias` for MR;
/// `tile` writable for MR * NR; for each i < MR, `y + i * ldy` writable (and `residual` there
/// readable, unless null) for `len` elements, which is above `(tiles - 1) * NR`. `x + offset +
/// vector * LANES` of each tap is readable for NRV vectors, where the tile is from `head` on and
/// before `tail`; else, for the lanes of the masks at `border_masks + masks + vector`, less `gap.1`
/// if that is not before `gap.0`.
pub(crate) struct FlatArgs<T> {
    pub(crate) taps: *const Tap,
    pub(crate) columns: usize,
    pub(crate) column_len: usize,
    pub(crate) masks: *const u32,
    pub(crate) mask_pitch: usize,
    pub(crate) period: usize,
    pub(crate) head: usize,
    pub(crate) tail: usize,
    pub(crate) border_masks: *const u32,
    pub(crate) gap: (usize, usize),
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
    /// Whether the bounds of the clamp are infinite.
    pub(crate) is_plain: bool,
    /// Whether all weights are finite.
    pub(crate) is_finite: bool,
}

/// A kernel for tiles of some output channels by some vectors of positions. A reference to one is
/// the proof that it may be called.
pub struct GroupedKernel<T: 'static> {
    name: &'static str,
    isa: Isa,
    mr: usize,
    nrv: usize,
    lanes: usize,
    fmas: usize,
    f: unsafe fn(&FlatArgs<T>),
}

impl<T: 'static> GroupedKernel<T> {
    /// The same to be read, and not to be called.
    pub(crate) const fn description(&self) -> Self {
        Self { f: |_| called(), ..*self }
    }
}

name_and_isa!(GroupedKernel, "Name, as `<dtype>_<op>_<MR>x<NR>`.");
tile_sizes!(GroupedKernel, "MR: output channels of the tile.", "NR: positions of the tile.");

/// What the tiles of a call read.
#[derive(Debug)]
pub struct FlatInput<'a, T> {
    /// The taps.
    pub taps: &'a FlatTaps,
    /// The weights: for each tap MR, one of each output channel.
    pub w: &'a [T],
    /// Whether all of them are finite: then products with padding may be left out.
    pub is_finite: bool,
    /// The channels that are summed, all of their planes.
    pub x: &'a [T],
    /// What is fetched meanwhile, a line with each step.
    pub ahead: Ahead,
    /// The vector of output positions that the first tile begins with.
    pub first: usize,
    /// Vectors of output positions that are summed, of which the last tile may have a part; the
    /// last of them begins before the last output position.
    pub vectors: usize,
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

    /// MR rows of sums, `+ bias + residual`, clamped: those from vector `input.first` on go to `y`,
    /// row i to `y[i * ldy..]`.
    ///
    /// # Panics
    /// If a slice is too short, the taps are for vectors of another length, or a vector begins
    /// behind the last output position.
    pub fn run(&self, input: &FlatInput<'_, T>, y: &mut Dest<'_, T>, ldy: usize, epilogue: &Epilogue<'_, T>) {
        let &FlatInput { taps, w, is_finite, x, ahead, first, vectors } = input;
        let Some(before) = vectors.checked_sub(1) else { return };
        assert_eq!(taps.lanes, self.lanes, "the taps are for other vectors");
        let last = before.saturating_add(first).saturating_mul(self.lanes);
        assert!(last < taps.outputs, "a vector begins behind the last position");
        let len = (taps.outputs - first * self.lanes).min(vectors * self.lanes);
        assert!(w.len() >= taps.taps.len() * self.mr, "too few weights");
        assert!(x.len() >= taps.len, "the input is too short");
        let written = (self.mr - 1).saturating_mul(ldy).saturating_add(len);
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.bias.len() >= self.mr, "one bias a channel");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let mut tile = [const { MaybeUninit::<T>::uninit() }; MOST_TILE];
        let (ahead, ahead_step) = ahead.or(w);
        let args = FlatArgs {
            taps: taps.taps.as_ptr(),
            columns: taps.columns,
            column_len: taps.column_len,
            masks: taps.masks.as_ptr(),
            mask_pitch: taps.period + MOST_VECTORS,
            period: taps.period,
            head: taps.head,
            tail: taps.tail,
            border_masks: taps.border_masks.as_ptr(),
            gap: taps.gap,
            w: w.as_ptr(),
            x: x.as_ptr(),
            ahead,
            ahead_step,
            first,
            tiles: vectors.div_ceil(self.nrv),
            tile: tile.as_mut_ptr().cast(),
            y: y.as_mut_ptr(),
            ldy,
            len,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
            is_finite,
            is_plain: epilogue.lo == T::NEG_INFINITY && epilogue.hi == T::INFINITY,
        };
        // SAFETY: the assertions cover the memory that FlatArgs asks for; each tap's plane is one
        // of the channels of x, and MOST_VECTORS masks lie behind those of a period; the tile holds
        // MOST_TILE elements, which new() bounds; Dest grants the writes; a kernel is only handed
        // out where the CPU has its ISA.
        unsafe { (self.f)(&args) };
    }
}
