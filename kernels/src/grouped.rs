//! The direct kernels of several output channels: descriptors, raw arguments, and the safe call.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::ukernel::{Epilogue, EpilogueArgs, Prefetch, tile_kernel};
use crate::{Isa, Real, gcd};

/// Vectors of a tile along positions, at most. Tables of masks have so many masks in excess.
const MOST_VECTORS: usize = 8;
/// Masks near the border of a plane, at most: 1 MiB of them.
const MOST_MASKS: usize = 1 << 18;
/// Taps of all channels, at most: 128 MiB of them.
const MOST_STEPS: usize = 1 << 24;
/// Elements of a tile, at most. It is on the stack.
const MOST_TILE: usize = 512;

/// A tap of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlatTap {
    /// The element that output position 0 reads, from the first element of X on. It may lie outside of
    /// the channel's plane.
    pub(crate) offset: i32,
    /// The first of the tap's border masks.
    pub(crate) masks: u32,
}

/// Where the taps of a convolution read, if output rows are as long as rows of X. A plane is then one
/// run of positions, and a tap reads the same run, shifted. The table is validated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatTaps {
    /// The taps, by column: for each column, those of all channels. The taps of a column lie below one
    /// another.
    pub(crate) taps: Box<[FlatTap]>,
    pub(crate) column_len: usize,
    pub(crate) columns: usize,
    /// For each column, masks of the lanes that do not read padding beside a row. Vector v has mask `v %
    /// period`; `MOST_VECTORS` masks follow behind the period.
    pub(crate) masks: Box<[u32]>,
    pub(crate) period: usize,
    /// Vectors before `head` read positions before the plane, and vectors from `tail` on positions
    /// behind it.
    pub(crate) head: usize,
    pub(crate) tail: usize,
    /// For each tap of a channel, masks of the lanes that read X's plane, for the vectors near the
    /// border: all before `gap.0`, and those from `gap.0 + gap.1` on.
    pub(crate) border_masks: Box<[u32]>,
    pub(crate) gap: (usize, usize),
    lanes: usize,
    /// Elements of all channels of X.
    len: usize,
    plane: usize,
    outputs: usize,
    /// The least and the greatest position that a tap reads at output position 0.
    least: isize,
    most: isize,
}

impl FlatTaps {
    /// Elements of a row, at most: the table of masks grows with them.
    pub const MOST_WIDTH: usize = 4096;

    /// Makes the table for vectors of `lanes` elements.
    ///
    /// X has `channels` channels that are `pitch` elements apart. A plane of X has `height` rows
    /// of `width` elements, a plane of the output `outputs` rows of `width`. For a tap in row k
    /// and column c of the kernel, the plane of X begins `rows[k].0 + columns[c].0` elements
    /// behind the beginning of the channel. Output row 0 sees row `rows[k].1` of that plane, and
    /// output position 0 sees position `columns[c].1` of the row.
    ///
    /// The result is `None` if a size is empty or too wide, if positions are too far apart for 32
    /// bits, if there are too many taps for a table, or if a plane ends behind its channel.
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
            // With this limit, sums of positions fit 32 bits, too.
            if position.unsigned_abs() > 1 << 30 {
                return None;
            }
            (least, most) = (position.min(least), position.max(most));
            if row.0.checked_add(column.0)?.checked_add(plane)? > pitch {
                return None;
            }
        }
        // Without taps, nothing is read of any channel.
        let channels = if rows.is_empty() || columns.is_empty() { 0 } else { channels };
        if positions().count().checked_mul(channels)? > MOST_STEPS {
            return None;
        }
        let last = isize::try_from(channels.checked_mul(pitch)?).ok()?.checked_add(most)?;
        i32::try_from(last).ok()?;
        // The lanes of a vector that do not read padding beside a row through a column of taps.
        let inside = |vector: usize, column: isize| {
            let mut at = vector * lanes % width;
            (0..lanes).fold(0_u32, |mask, lane| {
                let is_inside = (0..width as isize).contains(&(at as isize).saturating_add(column));
                at = if at + 1 == width { 0 } else { at + 1 };
                mask | u32::from(is_inside) << lane
            })
        };
        // The lanes of a vector that are output positions, and read X's plane or padding beside its
        // rows, if position 0 reads position `shift` of the plane.
        let within = |vector: usize, shift: isize| {
            let lane = |at: isize| (at - (vector * lanes) as isize).clamp(0, lanes as isize);
            let (begin, end) = (lane(-shift), lane((plane as isize - shift).min(outputs as isize)));
            ((1_u64 << end.max(begin)) - (1_u64 << begin)) as u32
        };

        let period = width / gcd(width, lanes);
        let mut masks = Vec::with_capacity(columns.len() * (period + MOST_VECTORS));
        for &(_, column) in columns {
            masks.extend((0..period + MOST_VECTORS).map(|vector| inside(vector, column)));
        }
        let vectors = outputs.div_ceil(lanes);
        let head = least.unsigned_abs().div_ceil(lanes).min(vectors);
        let tail = (plane.saturating_sub(most.unsigned_abs()).min(outputs) / lanes).min(vectors);
        // A tile that reaches the border may begin with vectors that do not.
        let first = (head + MOST_VECTORS).min(vectors);
        let second = tail.saturating_sub(MOST_VECTORS).max(first);
        let near = || (0..first).chain(second..vectors + MOST_VECTORS);
        let count = first + vectors + MOST_VECTORS - second;
        if positions().count().checked_mul(count)? > MOST_MASKS {
            return None;
        }
        let mut border_masks = Vec::with_capacity(positions().count() * count);
        for (&(_, column), masks) in columns.iter().zip(masks.chunks_exact(period + MOST_VECTORS)) {
            for &(_, row) in rows {
                let shift = row * width as isize + column;
                border_masks.extend(near().map(|vector| masks[vector % period] & within(vector, shift)));
            }
        }

        let mut taps = Vec::with_capacity(channels * positions().count());
        for (c, column) in columns.iter().enumerate() {
            for channel in 0..channels {
                taps.extend(rows.iter().enumerate().map(|(r, row)| FlatTap {
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

    #[inline(always)]
    pub(crate) fn mask_pitch(&self) -> usize {
        self.period + MOST_VECTORS
    }

    /// Steps of K: channels times taps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.taps.len()
    }

    /// Elements of an output channel.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The vectors of output positions that read positions outside of a plane. Their loads are slower.
    #[must_use]
    pub fn border(&self) -> usize {
        let vectors = self.outputs.div_ceil(self.lanes);
        (self.head + vectors - self.tail).min(vectors)
    }

    /// A range of elements of each plane that contains all that the outputs from `from` to `to` read.
    #[must_use]
    pub fn window(&self, from: usize, to: usize) -> core::ops::Range<usize> {
        let seen = |at: usize, shift: isize| at.saturating_add_signed(shift).min(self.plane);
        let low = seen(from, self.least);
        low..seen(to, self.most).max(low)
    }
}

/// Raw arguments of a tile kernel.
///
/// Memory: `w` is readable for MR weights for each tap, and `bias` for MR elements. `tile` is writable for
/// MR * NR elements. For each i < MR, `y + i * ldy` is writable for `len` elements, and `residual` is
/// readable at the same elements unless it is null. `len` is greater than `(tiles - 1) * NR`.
///
/// Memory of X, for each tap: `x + offset + vector * LANES` is readable for NRV vectors if the
/// tile lies from vector `head` on and before `tail`. Otherwise it is readable in the lanes of
/// the masks at `border_masks + masks + vector`, or `gap.1` masks before that place if `vector`
/// is not before `gap.0`.
pub(crate) struct FlatArgs<'a, T> {
    /// The taps have masks for NRV vectors from any vector of the output on.
    pub(crate) taps: &'a FlatTaps,
    pub(crate) w: *const T,
    pub(crate) x: *const T,
    /// The address that is prefetched, any address. It moves by `prefetch_step` bytes with each step.
    pub(crate) prefetch: *const u8,
    pub(crate) prefetch_step: usize,
    /// The vector of positions that the first tile begins with.
    pub(crate) first: usize,
    pub(crate) tiles: usize,
    pub(crate) tile: *mut T,
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
    pub(crate) len: usize,
    pub(crate) epilogue: EpilogueArgs<T>,
}

tile_kernel!(
    /// A kernel for tiles of some output channels by some vectors of positions.
    GroupedKernel, FlatArgs, "MR: output channels of the tile.", "NR: positions of the tile."
);

/// What the tiles of a call read.
#[derive(Debug)]
pub struct FlatInput<'a, T> {
    /// The taps.
    pub taps: &'a FlatTaps,
    /// The weights: MR for each tap, one for each output channel. They must be finite, because products with
    /// padding are left out.
    pub w: &'a [T],
    /// The channels that are summed, with all of their planes.
    pub x: &'a [T],
    /// The cache lines that are prefetched meanwhile, one with each step.
    pub prefetch: Prefetch,
    /// The vector of output positions that the first tile begins with.
    pub first: usize,
    /// Vectors of output positions that are summed. The last tile may have fewer than the others. The
    /// last vector begins before the last output position.
    pub vectors: usize,
}

impl<T: Real> GroupedKernel<T> {
    /// Computes MR rows of sums, adds bias and residual, clamps and stores them. Row i goes to
    /// `y[i * ldy..]`, beginning with vector `input.first`.
    ///
    /// # Panics
    /// If a slice is too short, the taps are for vectors of another length, or a vector begins
    /// behind the last output position.
    pub fn run(&self, input: &FlatInput<'_, T>, y: &mut Dest<'_, T>, ldy: usize, epilogue: &Epilogue<'_, T>) {
        let &FlatInput { taps, w, x, prefetch, first, vectors } = input;
        let Some(before) = vectors.checked_sub(1) else { return };
        assert_eq!(taps.lanes, self.lanes, "the taps are for other vectors");
        let last = before.saturating_add(first).saturating_mul(self.lanes);
        assert!(last < taps.outputs, "a vector begins behind the last position");
        let len = (taps.outputs - first * self.lanes).min(vectors * self.lanes);
        assert!(w.len() >= taps.taps.len() * self.mr, "too few weights");
        assert!(x.len() >= taps.len, "the input is too short");
        let epilogue = epilogue.checked(y, end(self.mr, ldy, len), self.mr);
        assert!(self.nrv <= MOST_VECTORS && self.mr * self.nr() <= MOST_TILE, "the tile is too large");
        let mut tile = [const { MaybeUninit::<T>::uninit() }; MOST_TILE];
        let (prefetch, prefetch_step) = prefetch.or(w);
        let (w, x, tiles) = (w.as_ptr(), x.as_ptr(), vectors.div_ceil(self.nrv));
        let (tile, y) = (tile.as_mut_ptr().cast(), y.as_mut_ptr());
        let args = FlatArgs { taps, w, x, prefetch, prefetch_step, first, tiles, tile, y, ldy, len, epilogue };
        // SAFETY: the assertions cover the memory that FlatArgs asks for. Each tap's plane lies
        // in one of the channels of x. MOST_VECTORS masks lie behind those of a period. Dest grants
        // the writes.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}
