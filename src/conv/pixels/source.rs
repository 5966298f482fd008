//! Where tiles read X: in place, or in a copy of rows.

use core::fmt;
use core::ops::Range;

use convoke_kernels::{Isa, Real, stream, transpose};

use super::taps::{AxisWindow, PixelPhase, PixelWindow, RowPlaces};
use crate::conv::contract::Io;
use crate::element::Element;
use crate::{Geometry, Layout};

/// How a layer reads X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PixelSource {
    InPlace {
        /// Whether the taps of a row are one, because their pixels are neighbours.
        is_joined: bool,
    },
    Copy(RowCopy),
}

/// A window of X in the type of sums, with the channels of a task. If the taps of a row are joined, it has
/// padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowCopy {
    pub(super) is_joined: bool,
    /// Values of a window, at most.
    pub(super) most_len: usize,
}

impl fmt::Display for PixelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace { .. } => "in place",
            Self::Copy(_) => "in copied rows",
        })
    }
}

impl PixelSource {
    pub(super) fn copy_len(&self) -> usize {
        match self {
            Self::InPlace { .. } => 0,
            Self::Copy(copy) => copy.most_len,
        }
    }

    pub(super) fn is_joined(&self) -> bool {
        match self {
            Self::InPlace { is_joined } => *is_joined,
            Self::Copy(copy) => copy.is_joined,
        }
    }

    /// The window of a chunk that reads `pixels` of a phase.
    pub(super) fn window<'a>(
        &self,
        geometry: &Geometry,
        phase: &PixelPhase,
        pixels: &Range<usize>,
        outer: &'a mut [AxisWindow],
    ) -> PixelWindow<'a> {
        match self {
            Self::InPlace { .. } => PixelWindow::whole(geometry, outer),
            Self::Copy(copy) => phase.window(geometry, pixels, copy.is_joined, outer),
        }
    }

    /// The operand of a chunk that reads a window of X, and how its rows lie. It begins with the first
    /// of `channels`.
    pub(super) fn read<'a, T: Element>(
        &self,
        isa: Isa,
        io: &Io<'a, T>,
        geometry: &Geometry,
        (channels, window): (Range<usize>, PixelWindow<'a>),
        (copy, widened): (&'a mut [T::Acc], &mut [T::Acc]),
    ) -> (&'a [T::Acc], RowPlaces<'a>) {
        let (width, pixel) = (geometry.axes[geometry.axes.len() - 1].input, io.strides.x.position);
        let (channel, channels) = (channels.start, channels.len());
        match self {
            Self::InPlace { is_joined } => {
                let x = T::as_acc(io.x).unwrap_or(&[]);
                // Pixels of a wider tensor are no neighbours. The weights are the same for taps one by one.
                let is_joined = *is_joined && pixel == geometry.in_channels;
                let places = RowPlaces { window, row: width * pixel, pixel, is_joined };
                (x.get(channel..).unwrap_or(&[]), places)
            }
            Self::Copy(layout) => {
                let inside = window.columns.start.clamp(0, width as isize) as usize
                    ..window.columns.end.clamp(0, width as isize) as usize;
                let row_len = window.columns.len() * channels;
                assert!(window.pixels() * channels <= copy.len(), "the window fits its copy");
                for (index, to) in (0..window.rows()).zip(copy.chunks_exact_mut(row_len.max(1))) {
                    let (image, row) = window.row(geometry, index);
                    let before = (inside.start as isize - window.columns.start) as usize * channels;
                    let (before, rest) = to.split_at_mut(before);
                    let (to, behind) = rest.split_at_mut(inside.len() * channels);
                    before.fill(T::Acc::ZERO);
                    behind.fill(T::Acc::ZERO);
                    let first = io.strides.x.at(image, channel, row * width + inside.start);
                    let x = io.x.get(first..).unwrap_or(&[]);
                    match geometry.x_layout {
                        Layout::ChannelsLast => fill(isa, x, (pixel, channels), to),
                        Layout::ChannelsFirst => fill_transposed(isa, x, (io.strides.x.channel, channels), to, widened),
                    }
                }
                let (pixel, is_joined) = (channels, layout.is_joined);
                (copy, RowPlaces { window, row: row_len, pixel, is_joined })
            }
        }
    }
}

/// Copies pixels of a row. `x` begins with the first, and they are `pixel` elements apart.
fn fill<T: Element>(isa: Isa, x: &[T], (pixel, channels): (usize, usize), to: &mut [T::Acc]) {
    if pixel == channels {
        return stream::widen(isa, &x[..to.len()], to);
    }
    for (i, to) in to.chunks_exact_mut(channels.max(1)).enumerate() {
        stream::widen(isa, &x[i * pixel..][..to.len()], to);
    }
}

/// Copies pixels of a row from rows of channels. `x` begins with the first of them, and they are `channel`
/// elements apart. They go through `widened`, if X has not the type of sums.
fn fill_transposed<T: Element>(
    isa: Isa,
    x: &[T],
    (channel, channels): (usize, usize),
    to: &mut [T::Acc],
    widened: &mut [T::Acc],
) {
    let pixels = to.len().checked_div(channels).unwrap_or(0);
    let size = (channels, pixels);
    if let Some(x) = T::as_acc(x) {
        return transpose(isa, size, (x, channel), (to, channels));
    }
    for (c, row) in widened.chunks_exact_mut(pixels.max(1)).enumerate().take(channels) {
        stream::widen(isa, &x[c * channel..][..row.len()], row);
    }
    transpose(isa, size, (widened, pixels), (to, channels));
}
