//! Where tiles read X: in place, or in a copy of rows.

use core::fmt;
use core::ops::Range;

use convoke_kernels::{Isa, Real, stream, transpose};

use super::taps::{AxisWindow, PixelPhase, PixelWindow, RowPlaces};
use crate::element::Element;
use crate::spec::Strides;
use crate::{Geometry, Layout};

/// How a layer reads X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PixelSource {
    /// Whether the taps of a row are one, because their pixels are neighbours. A copy then has padding.
    pub(super) is_joined: bool,
    /// None if X is read in place.
    pub(super) copy: Option<RowCopy>,
}

/// A window of X in the type of sums, with some of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowCopy {
    /// Values of a pixel.
    pub(super) pixel: usize,
    /// How often a pixel has each channel of X: once for each channel of Y that reads it.
    pub(super) repeats: usize,
    /// Values of a window, and of what kernels read behind it, at most.
    pub(super) most_len: usize,
}

/// The scratch for copies of X.
pub(super) struct CopyScratch<'a, A> {
    pub(super) copy: &'a mut [A],
    pub(super) widened: &'a mut [A],
    pub(super) repeated: &'a mut [A],
}

impl fmt::Display for PixelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.copy.is_some() { "in copied rows" } else { "in place" })
    }
}

impl PixelSource {
    /// Values of a copy that has each channel of X once, and of the copy of that which repeats them.
    pub(super) fn copy_lens(&self) -> (usize, usize) {
        self.copy.map_or((0, 0), |RowCopy { repeats, most_len, .. }| {
            (most_len / repeats, if repeats > 1 { most_len } else { 0 })
        })
    }

    /// How the rows lie that a chunk of some pixels of a phase reads.
    pub(super) fn places<'a>(
        &self,
        geometry: &Geometry,
        strides: &Strides,
        (phase, pixels): (&PixelPhase, &Range<usize>),
        outer: &'a mut [AxisWindow],
    ) -> RowPlaces<'a> {
        let Some(copy) = self.copy else {
            let window = PixelWindow::whole(geometry, outer);
            let pixel = strides.position;
            // Pixels of a wider tensor are no neighbours. The weights are the same for taps one by one.
            let is_joined = self.is_joined && pixel == geometry.in_channels;
            return RowPlaces { row: window.columns.len() * pixel, window, pixel, is_joined };
        };
        let window = phase.window(geometry, pixels, self.is_joined, outer);
        RowPlaces { row: window.columns.len() * copy.pixel, window, pixel: copy.pixel, is_joined: self.is_joined }
    }

    /// The operand of a chunk, from the first of some channels on. They are those of Y, if channels are repeated.
    pub(super) fn read<'s, A: Copy>(
        &self,
        (x, strides): (&'s impl PixelReader<A>, &Strides),
        geometry: &Geometry,
        (channels, places): (&Range<usize>, &RowPlaces<'_>),
        CopyScratch { copy, widened, repeated }: &'s mut CopyScratch<'_, A>,
    ) -> &'s [A] {
        let Some(RowCopy { repeats, .. }) = self.copy else {
            return x.in_place().and_then(|x| x.get(channels.start..)).unwrap_or(&[]);
        };
        let (window, channels) = (&places.window, channels.start / repeats..channels.end / repeats);
        let (row_len, pixel) = (places.row / repeats, places.pixel / repeats);
        let width = geometry.axes[geometry.axes.len() - 1].input;
        let inside = window.columns.start.clamp(0, width as isize) as usize
            ..window.columns.end.clamp(0, width as isize) as usize;
        assert!(window.rows() * row_len <= copy.len(), "the window fits its copy");
        // A row may be padding alone.
        let before = (-window.columns.start).clamp(0, window.columns.len() as isize) as usize * pixel;
        let mut rest = &mut **copy;
        window.for_each_run(geometry, |image, row, rows| {
            let to = rest.split_off_mut(..rows * row_len).unwrap_or(&mut []);
            // Rows of a run of several have no padding.
            let inside_len = to.len() - (row_len - inside.len() * pixel);
            let (before, to) = to.split_at_mut(before);
            let (to, behind) = to.split_at_mut(inside_len);
            before.fill(x.padding());
            behind.fill(x.padding());
            let first = strides.at(image, channels.start, row * width + inside.start);
            // Phases without taps read no pixels.
            match geometry.x_layout {
                _ if to.is_empty() => {}
                Layout::ChannelsLast => x.pixels((first, strides.position), channels.len(), (to, pixel)),
                Layout::ChannelsFirst => x.rows((first, strides.channel), channels.len(), (to, pixel), widened),
            }
        });
        if repeats == 1 {
            return copy;
        }
        let repeated = &mut repeated[..window.rows() * places.row];
        x.repeat(copy, repeats, repeated);
        repeated
    }
}

/// How values that kernels read are made of X.
pub(super) trait PixelReader<A> {
    /// X, if it has these values.
    fn in_place(&self) -> Option<&[A]>;

    /// The value that padding has.
    fn padding(&self) -> A;

    /// Copies `channels` channels of pixels of a row, which become pixels of `pixel` values. They begin with element
    /// `first` of X, and are `x_pixel` elements apart.
    fn pixels(&self, at: (usize, usize), channels: usize, to: (&mut [A], usize));

    /// The same from rows of channels, which are `x_channel` elements apart. They may go through `widened`, which is as long
    /// as all values.
    fn rows(&self, at: (usize, usize), channels: usize, to: (&mut [A], usize), widened: &mut [A]);

    /// Repeats each value.
    fn repeat(&self, copy: &[A], repeats: usize, repeated: &mut [A]);
}

/// Copies `channels` channels of pixels, which are `x_pixel` elements apart and become `pixel` apart.
pub(in crate::conv) fn widen_pixels<T: Element>(
    isa: Isa,
    (x, x_pixel): (&[T], usize),
    channels: usize,
    (to, pixel): (&mut [T::Acc], usize),
) {
    if x_pixel == channels && pixel == channels {
        return stream::widen(isa, &x[..to.len()], to);
    }
    for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
        stream::widen(isa, &x[i * x_pixel..][..channels], &mut to[..channels]);
    }
}

/// Floating-point numbers in the type of sums.
pub(super) struct Widened<'a, T> {
    pub(super) isa: Isa,
    pub(super) x: &'a [T],
}

impl<T: Element> PixelReader<T::Acc> for Widened<'_, T> {
    fn in_place(&self) -> Option<&[T::Acc]> {
        T::as_acc(self.x)
    }

    fn padding(&self) -> T::Acc {
        T::Acc::ZERO
    }

    fn pixels(&self, (first, x_pixel): (usize, usize), channels: usize, (to, pixel): (&mut [T::Acc], usize)) {
        widen_pixels(self.isa, (self.x.get(first..).unwrap_or(&[]), x_pixel), channels, (to, pixel));
    }

    fn rows(
        &self,
        (first, x_channel): (usize, usize),
        channels: usize,
        (to, pixel): (&mut [T::Acc], usize),
        widened: &mut [T::Acc],
    ) {
        let (isa, x) = (self.isa, &self.x[first..]);
        // One channel lies the same way in both layouts.
        if pixel == 1 {
            return stream::widen(isa, &x[..to.len()], to);
        }
        let pixels = to.len() / pixel;
        let size = (channels, pixels);
        if let Some(x) = T::as_acc(x) {
            return transpose(isa, size, (x, x_channel), (to, pixel));
        }
        for (c, row) in widened.chunks_exact_mut(pixels).enumerate().take(channels) {
            stream::widen(isa, &x[c * x_channel..][..row.len()], row);
        }
        transpose(isa, size, (widened, pixels), (to, pixel));
    }

    fn repeat(&self, copy: &[T::Acc], repeats: usize, repeated: &mut [T::Acc]) {
        stream::repeat(self.isa, copy, repeats, repeated);
    }
}
