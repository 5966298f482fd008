//! Kernels for tensors whose channels are neighbours and whose groups have few channels, such as depthwise layers:
//! descriptors, raw arguments, and the safe call.

use crate::dest::Dest;
use crate::isa::Code;
use crate::pixel::{PixelEpilogue, PixelInput, PixelStore};
use crate::simd::Simd;
use crate::ukernel::common_getters;
use crate::{Isa, Real};

/// Raw arguments of a kernel for tiles of `MR` pixels.
///
/// Memory: `entries` is readable for `taps * (1 + MR)` elements, and behind `step` elements for each further
/// tile again. The tiles are read `repeats` times, X `shift` elements further on each time. For each tap, `w + number *
/// group * channels` is readable for `group * channels` elements, and `x + place` for `channels` for each place below
/// [`PixelTaps::ZEROS`](crate::PixelTaps::ZEROS). If there are other places, so is `zeros`. `store` is valid as
/// [`PixelStore`] states, and has the channels. If `group` is above 1, it divides the lanes of a vector, and `spread`
/// has, for each channel of a group, the [words](Simd::permute) of a vector whose groups are that channel alone.
pub(crate) struct DepthwisePixelArgs<T> {
    pub(crate) tiles: usize,
    pub(crate) repeats: usize,
    pub(crate) shift: usize,
    pub(crate) x: *const T,
    pub(crate) zeros: *const T,
    pub(crate) entries: *const u32,
    pub(crate) taps: usize,
    pub(crate) step: usize,
    /// Any number: that of [`PixelTaps::shifted`](crate::PixelTaps::shifted).
    pub(crate) shifted: usize,
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

impl<T: Real> DepthwisePixelKernel<T> {
    /// A kernel with vectors `V`.
    pub(crate) const fn new<V: Simd<Elem = T>>(
        (name, isa): (&'static str, Isa),
        (mr, nr): (usize, usize),
        f: unsafe fn(&DepthwisePixelArgs<T>),
    ) -> Self {
        Self { name, mr, nr, lanes: V::LANES, fits_groups: fits_groups::<V>(mr), code: Code::new(isa, f) }
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
    /// group of X. The channels of pixel i go, `activation(sum + bias + residual)`, to `y[i * ld..]`.
    ///
    /// `w` has the weights, as `[taps][group][channels]`: those of the first channel of X in each group, then those of
    /// the second. `x.taps` may serve many calls, which saves checking it.
    ///
    /// # Panics
    /// If a slice is too short, the table is for tiles of another size, pixels of Y overlap, or the kernel does not
    /// [take](Self::takes_groups) such groups.
    pub fn run(
        &self,
        x: &PixelInput<'_, T>,
        (w, group): (&[T], usize),
        y: &mut Dest<'_, T>,
        ld: usize,
        epilogue: &PixelEpilogue<'_, T>,
    ) {
        assert!(self.takes_groups(group), "the kernel does not take groups of so many channels");
        assert!(w.len() >= x.checked_rows(self.mr).saturating_mul(group), "too few weights");
        let words;
        let spread = if group > 1 {
            words = spread::<T>(group, self.lanes);
            words.as_ptr()
        } else {
            core::ptr::null()
        };
        let PixelInput { x, zeros, channels, taps } = *x;
        let store = epilogue.checked(y, ld, taps.all_pixels(), channels);
        if channels == 0 {
            return;
        }
        let args = DepthwisePixelArgs {
            tiles: taps.tiles,
            repeats: taps.repeats,
            shift: taps.shift,
            x: x.as_ptr(),
            zeros: zeros.as_ptr(),
            entries: taps.entries.as_ptr(),
            taps: taps.len(),
            step: taps.step,
            shifted: taps.shifted,
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
