//! Depthwise kernels for tensors whose channels are neighbours: descriptors, raw arguments, and the safe call.

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
/// channels` is readable for `channels` elements, and so is `x + place` for each place below
/// [`PixelTaps::ZEROS`](crate::PixelTaps::ZEROS). If there are other places, so is `zeros`. `store` is valid as
/// [`PixelStore`] states, and has the channels.
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
    pub(crate) store: PixelStore<T>,
}

/// A depthwise kernel with vectors along channels, for an X whose channels are neighbours.
pub struct DepthwisePixelKernel<T: 'static> {
    name: &'static str,
    mr: usize,
    nr: usize,
    lanes: usize,
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
        Self { name, mr, nr, lanes: V::LANES, code: Code::new(isa, f) }
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

    /// Computes all tiles of `x`. Channel c of Y reads channel c of X. The channels of pixel i go,
    /// `activation(sum + bias + residual)`, to `y[i * ld..]`.
    ///
    /// `w` has the weights, as `[taps][channels]`. `x.taps` may serve many calls, which saves checking it.
    ///
    /// # Panics
    /// If a slice is too short, the table is for tiles of another size, or pixels of Y overlap.
    pub fn run(&self, x: &PixelInput<'_, T>, w: &[T], y: &mut Dest<'_, T>, ld: usize, epilogue: &PixelEpilogue<'_, T>) {
        assert!(w.len() >= x.checked_rows(self.mr), "too few weights");
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
            store,
        };
        // SAFETY: the assertions cover the memory that DepthwisePixelArgs and PixelStore ask for. Dest grants
        // the writes.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}
