//! Kernels for tensors whose channels are neighbours and whose groups have few channels, such as depthwise layers:
//! descriptors, raw arguments, and the safe call.

use crate::Isa;
use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::pixel::{PixelEpilogue, PixelStore, PixelTaps};
use crate::simd::{Accumulator, Simd};
use crate::ukernel::common_getters;
use crate::unit::Unit;

/// Which columns of a row of X the pixels of a row of Y read: pixel i reads, through tap k, column
/// `first + i * advance + k * spacing`. Columns from `count` on, and those below 0, are `zeros`. Their products may be left
/// out, unless X has units.
#[derive(Debug, Clone, Copy)]
pub struct PixelColumns {
    /// The column of pixel 0 through tap 0.
    pub first: isize,
    /// Columns from one pixel to the next.
    pub advance: usize,
    /// Taps of a row of the kernel.
    pub taps: usize,
    /// Columns from one tap to the next.
    pub spacing: usize,
    /// From the number of one tap to that of the next.
    pub step: isize,
    /// Columns of X.
    pub count: usize,
    /// Elements from one column to the next.
    pub pixel: usize,
}

impl PixelColumns {
    /// Whether the columns of some pixels, of one more pixel and tap, and all that there are, have numbers.
    fn have_numbers(&self, pixels: usize) -> bool {
        let end = || {
            let pixels = pixels.max(1).checked_mul(self.advance)?;
            let taps = self.taps.max(1).checked_mul(self.spacing)?;
            self.first.checked_add_unsigned(pixels)?.checked_add_unsigned(taps)
        };
        end().is_some() && isize::try_from(self.count).is_ok()
    }
}

/// The operand X of some tiles in some rows of pixels.
#[derive(Debug, Clone, Copy)]
pub struct PixelRows<'a, T> {
    /// The first channel of the block. A place is an index into it.
    pub x: &'a [T],
    /// At least as many zeros as the block has channels.
    pub zeros: &'a [T],
    /// Channels of the block, which are neighbours in a pixel.
    pub channels: usize,
    /// Rows of pixels.
    pub rows: usize,
    /// Pixels from one row of Y to the next.
    pub width: usize,
    /// Tiles of a row.
    pub tiles: usize,
    /// The pixel of a row that its first tile begins with.
    pub from: usize,
    /// The number of the first tap of each row of the kernel.
    pub numbers: &'a [u32],
    /// For each row of pixels and each row of the kernel: where column 0 is in X. A row at
    /// [`ZEROS`](PixelTaps::ZEROS) or behind it is padding.
    pub places: &'a [u32],
    /// What a row of pixels reads of a row of X.
    pub columns: PixelColumns,
    /// Whether a tile prefetches for the next one: columns of the last row of X, and pixels of Y. Kernels do so
    /// where taps share columns. It changes no result.
    pub prefetches_next: bool,
}

impl<T> PixelRows<'_, T> {
    /// Asserts that kernels for tiles of `mr` pixels can read X, and weights for groups of `group` channels. Returns
    /// the pixels of Y up to the last one.
    #[inline(always)]
    fn checked_pixels(&self, mr: usize, (w, group): (&[T], usize)) -> usize {
        let Self { x, zeros, channels, rows, width, tiles, from, numbers, places, columns, .. } = *self;
        assert!(places.len() == rows.saturating_mul(numbers.len()), "each row has a place for each row of the kernel");
        assert!(zeros.len() >= channels, "too few zeros");
        let of_row = tiles.saturating_mul(mr).saturating_add(from);
        assert!(columns.have_numbers(of_row), "columns are too far away");
        assert!(columns.taps <= 1 || columns.step != 0, "taps of a row have the same number");
        assert!(columns.pixel > 0 || columns.count == 0, "columns of X are in the same place");
        let furthest = places.iter().filter(|place| **place < PixelTaps::ZEROS).max();
        if let Some(furthest) = furthest.filter(|_| columns.count > 0) {
            let end = end(columns.count, columns.pixel, channels).saturating_add(*furthest as usize);
            assert!(end <= x.len(), "a row ends beyond the slice of X");
        }
        let numbers = if columns.taps > 0 { numbers } else { &[] };
        let more = isize::try_from(columns.taps).ok().and_then(|taps| columns.step.checked_mul(taps - 1));
        for number in numbers {
            let first = *number as usize;
            let last = more.and_then(|more| first.checked_add_signed(more)).expect("numbers of taps overflow");
            let rows = first.max(last).saturating_add(1);
            assert!(rows.saturating_mul(group).saturating_mul(channels) <= w.len(), "too few weights");
        }
        if rows == 0 || tiles == 0 { 0 } else { end(rows, width, of_row) }
    }
}

/// Raw arguments of a kernel for tiles of `MR` pixels.
///
/// Memory: `numbers` is readable for `row_taps` elements, and `places` for as many of each row. For each place below
/// [`PixelTaps::ZEROS`], `x + place + column * columns.pixel` is readable for `channels` elements for each of the
/// columns that there are, and so is `zeros`. For each tap, `w + number * group * channels` is readable for
/// `group * channels`. `store` is valid as [`PixelStore`] states, and has the channels. If `group` is above 1, it
/// divides the lanes of a vector. `column_bytes` is `columns.spacing * columns.pixel`, and `tap_bytes` is `columns.step *
/// group * channels`, in bytes. `spread` has, for each channel of a group, the [words](Simd::permute) of a vector
/// whose groups are that channel alone.
pub(crate) struct DepthwisePixelArgs<T> {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) tiles: usize,
    pub(crate) from: usize,
    pub(crate) x: *const T,
    pub(crate) zeros: *const T,
    pub(crate) numbers: *const u32,
    pub(crate) places: *const u32,
    pub(crate) row_taps: usize,
    pub(crate) columns: PixelColumns,
    /// Bytes from a column to that of the next tap, and from the weights of a tap to those of the next.
    pub(crate) column_bytes: usize,
    pub(crate) tap_bytes: isize,
    pub(crate) prefetches_next: bool,
    pub(crate) w: *const T,
    /// Channels of a group.
    pub(crate) group: usize,
    pub(crate) spread: *const u32,
    pub(crate) store: PixelStore<T>,
}

/// Whether a tile of `mr` sums fits the registers beside as many vectors of X, weights, a permutation and its result.
pub(crate) const fn fits_groups<V: Simd>(mr: usize) -> bool {
    (2 * mr + 3) * V::REGISTERS <= V::REGISTER_FILE
}

/// Channels of a group, at most.
pub const MOST_GROUP: usize = 8;

/// Words of the widest vector.
const MOST_WORDS: usize = 16;

/// A depthwise kernel with vectors along channels, for an X whose channels are neighbours. Some also compute groups of
/// several channels.
pub struct DepthwisePixelKernel<T: 'static> {
    name: &'static str,
    mr: usize,
    nr: usize,
    lanes: usize,
    fits_groups: bool,
    code: Code<unsafe fn(&DepthwisePixelArgs<T>)>,
}

common_getters!(DepthwisePixelKernel, "Name, as `<dtype>_pixel_dw_<MR>x<NR>`.");

impl<T: Copy> DepthwisePixelKernel<T> {
    /// A kernel with vectors `V`.
    pub(crate) const fn new<V: Simd<Elem = T>>(
        (name, isa): (&'static str, Isa),
        (mr, nr): (usize, usize),
        f: unsafe fn(&DepthwisePixelArgs<T>),
    ) -> Self {
        Self { name, mr, nr, lanes: V::LANES, fits_groups: fits_groups::<V>(mr), code: Code::new(isa, f) }
    }

    /// The same kernel with vectors of units, for groups of one channel.
    pub(crate) const fn of_units<V: Accumulator<Elem = T>>(
        (name, isa): (&'static str, Isa),
        (mr, nr): (usize, usize),
        f: unsafe fn(&DepthwisePixelArgs<T>),
    ) -> Self {
        Self { name, mr, nr, lanes: V::LANES, fits_groups: false, code: Code::new(isa, f) }
    }

    /// The same kernel, for units.
    pub(crate) const fn of(self, unit: Unit) -> Self {
        Self { code: self.code.of(unit), ..self }
    }

    /// MR: pixels of a tile.
    #[must_use]
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// NR: channels whose sums are in registers at the same time. A call has any number of channels.
    #[must_use]
    pub fn nr(&self) -> usize {
        self.nr
    }

    /// Whether it computes groups of `group` channels: one, or a number that divides a vector.
    #[must_use]
    pub fn takes_groups(&self, group: usize) -> bool {
        let is_part = (2..=MOST_GROUP).contains(&group) && self.lanes.is_multiple_of(group);
        group == 1 || (self.fits_groups && is_part)
    }

    /// Computes all tiles of `x`, in groups of `group` channels. The channels of a group of Y read those of the same
    /// group of X. The channels of pixel i of row r go, `activation(sum + bias + residual)`, to
    /// `y[(r * width + i) * ld..]`.
    ///
    /// `w` has the weights, as `[taps][group][channels]`: those of the first channel of X in each group, then those of
    /// the second.
    ///
    /// # Panics
    /// If a slice is too short, pixels of Y overlap, or the kernel does not [take](Self::takes_groups) such groups.
    pub fn run(
        &self,
        x: &PixelRows<'_, T>,
        (w, group): (&[T], usize),
        y: &mut Dest<'_, T>,
        ld: usize,
        epilogue: &PixelEpilogue<'_, T>,
    ) {
        assert!(self.takes_groups(group), "the kernel does not take groups of so many channels");
        let pixels = x.checked_pixels(self.mr, (w, group));
        let words;
        let spread = if group > 1 {
            words = spread::<T>(group, self.lanes);
            words.as_ptr()
        } else {
            core::ptr::null()
        };
        let PixelRows { x, zeros, channels, rows, width, tiles, from, numbers, places, columns, prefetches_next } = *x;
        let store = epilogue.checked(y, ld, pixels, channels);
        assert!(rows <= 1 || tiles.saturating_mul(self.mr) <= width, "rows of Y overlap");
        if channels == 0 {
            return;
        }
        let args = DepthwisePixelArgs {
            rows,
            width,
            tiles,
            from,
            x: x.as_ptr(),
            zeros: zeros.as_ptr(),
            numbers: numbers.as_ptr(),
            places: places.as_ptr(),
            // Rows without taps have no weights, and their numbers are not checked.
            row_taps: if columns.taps > 0 { numbers.len() } else { 0 },
            columns,
            // Wrapping: a single column and a single tap may have any distance to the next.
            column_bytes: columns.spacing.wrapping_mul(columns.pixel).wrapping_mul(size_of::<T>()),
            tap_bytes: columns.step.wrapping_mul(group.wrapping_mul(channels * size_of::<T>()) as isize),
            prefetches_next,
            w: w.as_ptr(),
            group,
            spread,
            store,
        };
        // SAFETY: the assertions cover the memory that DepthwisePixelArgs and PixelStore ask for. Dest grants
        // the writes.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}

/// For each channel of a group, the words of a vector of `lanes` elements in which it stands for all of its group.
fn spread<T>(group: usize, lanes: usize) -> [u32; MOST_GROUP * MOST_WORDS] {
    let of_element = size_of::<T>() / size_of::<u32>();
    let mut words = [0; MOST_GROUP * MOST_WORDS];
    for (i, word) in words.iter_mut().enumerate().take(group * lanes * of_element) {
        let (channel, lane, part) = (i / (lanes * of_element), i / of_element % lanes, i % of_element);
        *word = ((lane / group * group + channel) * of_element + part) as u32;
    }
    words
}
