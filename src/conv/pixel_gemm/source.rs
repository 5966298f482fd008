//! Where tiles read X: in place, or in a copy of rows.

use core::ops::Range;

use convoke_kernels::{Isa, Real, stream, transpose};

use super::taps::RowPlaces;
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

/// Rows of X in the type of sums, with the channels of one group, and with padding at both ends if the taps
/// of a row are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowCopy {
    /// Pixels of a row: `margin` of padding, those of X, and padding.
    pub(super) width: usize,
    pub(super) margin: usize,
    /// Pixels of X in a row, and the channels of a group.
    pub(super) input: usize,
    pub(super) channels: usize,
    pub(super) is_joined: bool,
    /// Rows of a chunk, at most.
    pub(super) most_rows: usize,
}

impl PixelSource {
    pub(super) fn copy_len(&self) -> Option<usize> {
        match self {
            Self::InPlace { .. } => Some(0),
            Self::Copy(copy) => copy.row_len().checked_mul(copy.most_rows),
        }
    }

    pub(super) fn is_joined(&self) -> bool {
        match self {
            Self::InPlace { is_joined } => *is_joined,
            Self::Copy(copy) => copy.is_joined,
        }
    }

    /// The operand of a chunk that reads some rows of X, and how its rows lie. It begins with the first
    /// channel of a group.
    pub(super) fn read<'a, T: Element>(
        &self,
        isa: Isa,
        io: &Io<'a, T>,
        geometry: &Geometry,
        (group, rows): (usize, &Range<usize>),
        (copy, widened): (&'a mut [T::Acc], &mut [T::Acc]),
    ) -> (&'a [T::Acc], RowPlaces) {
        let (width, pixel) = (geometry.axes[geometry.axes.len() - 1].input, io.strides.x.position);
        let channel = group * geometry.in_channels_per_group();
        match self {
            Self::InPlace { is_joined } => {
                let x = T::as_acc(io.x).unwrap_or(&[]);
                let places = RowPlaces { first: 0, row: width * pixel, pixel, margin: 0, is_joined: *is_joined };
                (x.get(channel..).unwrap_or(&[]), places)
            }
            Self::Copy(layout) => {
                let of_image = (geometry.input_spatial() / width.max(1)).max(1);
                for (row, to) in rows.clone().zip(copy.chunks_exact_mut(layout.row_len().max(1))) {
                    let first = io.strides.x.at(row / of_image, channel, row % of_image * width);
                    let x = io.x.get(first..).unwrap_or(&[]);
                    match geometry.x_layout {
                        Layout::ChannelsLast => layout.fill(isa, x, pixel, to),
                        Layout::ChannelsFirst => layout.transpose(isa, x, io.strides.x.channel, to, widened),
                    }
                }
                let (row, pixel) = (layout.row_len(), layout.channels);
                let RowCopy { margin, is_joined, .. } = *layout;
                (copy, RowPlaces { first: rows.start, row, pixel, margin, is_joined })
            }
        }
    }
}

impl RowCopy {
    fn row_len(&self) -> usize {
        self.width * self.channels
    }

    /// Copies one row of pixels. `x` begins with it, and its pixels are `pixel` elements apart.
    fn fill<T: Element>(&self, isa: Isa, x: &[T], pixel: usize, to: &mut [T::Acc]) {
        let inside = self.inside(to);
        if pixel == self.channels {
            return stream::widen(isa, &x[..inside.len()], inside);
        }
        for (i, to) in inside.chunks_exact_mut(self.channels.max(1)).enumerate() {
            stream::widen(isa, &x[i * pixel..][..to.len()], to);
        }
    }

    /// Copies one row of pixels from rows of channels. `x` begins with the first of them, and they are
    /// `channel` elements apart. They go through `widened`, if X has not the type of sums.
    fn transpose<T: Element>(&self, isa: Isa, x: &[T], channel: usize, to: &mut [T::Acc], widened: &mut [T::Acc]) {
        let inside = self.inside(to);
        let size = (self.channels, self.input);
        if let Some(x) = T::as_acc(x) {
            return transpose(isa, size, (x, channel), (inside, self.channels));
        }
        for (c, to) in widened.chunks_exact_mut(self.input.max(1)).enumerate().take(self.channels) {
            stream::widen(isa, &x[c * channel..][..to.len()], to);
        }
        transpose(isa, size, (widened, self.input), (inside, self.channels));
    }

    /// The pixels of X in a row of the copy. The others become zeros.
    fn inside<'t, A: Real>(&self, row: &'t mut [A]) -> &'t mut [A] {
        let (before, rest) = row.split_at_mut(self.margin * self.channels);
        let (inside, behind) = rest.split_at_mut(self.input * self.channels);
        before.fill(A::ZERO);
        behind.fill(A::ZERO);
        inside
    }
}
