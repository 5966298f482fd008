//! Single tiles of Conv by direct sums: for results that are not finite, and for weights that are
//! not.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::winograd::MOST_VALUES;
use convoke_kernels::{Ahead, Real, RowOffsets};

use super::pack::PanelFilters;
use super::scheme::Scheme;
use super::view::{AxisRoles, SubImage, WinogradView};
use crate::Geometry;
use crate::element::Element;
use crate::lower::channel_tiles::ChannelTiles;
use crate::lower::contract::Request;
use crate::lower::sink::Sink;

/// Direct sums for one tile. The part of X that it sees is copied into a patch, on which the
/// channel-vector kernels run, a row of pixels at a time.
pub(super) struct DirectTiles<T: Real> {
    /// Rows and pixels of a tile.
    height: usize,
    width: usize,
    /// Channels of X in a group.
    channels: usize,
    /// The layer's strides, down and along. The patch keeps the elements of a row by phases.
    strides: [usize; 2],
    /// Rows of a slice of the patch, and elements of a phase of a row.
    rows: usize,
    columns: usize,
    /// Elements of the patch, for all channels and taps of the depth axis.
    patch_len: usize,
    /// Where each tap of each channel sees the patch.
    koff: RowOffsets,
    /// A row of pixels, cut into the kernels' tiles.
    pixels: ChannelTiles<T>,
}

/// A tile that is computed directly, for some filters.
pub(super) struct DirectTile {
    pub(super) sub: SubImage,
    pub(super) group: usize,
    /// The slice of the view's output, and the tile's first row and pixel in the sub-image.
    pub(super) slice: usize,
    pub(super) y: usize,
    pub(super) x: usize,
    /// The first filter of a panel of the group, and some filters of the panel.
    pub(super) panel: usize,
    pub(super) filters: Range<usize>,
}

impl<T: Real> DirectTiles<T> {
    /// Makes the tables.
    ///
    /// # Panics
    /// If a kernel is lacking, or there is no [`patch_len`](Self::patch_len).
    pub(super) fn new<E: Element<Acc = T>>(request: &Request<'_, E>, view: &WinogradView, scheme: &Scheme<T>) -> Self {
        let (height, width) = (scheme.down.tile.outputs, scheme.along.tile.outputs);
        let ([_, s_along], [k_down, k_along]) = (view.strides, view.taps);
        let [rows, columns] = Self::patch(view, scheme);
        let pixels = ChannelTiles::new(request.machine, width).expect("kernels of every width");
        let channels = request.geometry.in_channels_per_group();
        let patch_len = Self::patch_len(request.geometry, view, scheme).expect("a length that was asked for");
        let slices = channels * view.roles.depth.kernel;
        let along: Vec<_> = (0..k_along).map(|j| j % s_along * columns + j / s_along).collect();
        let mut koff = Vec::with_capacity(slices * k_down * k_along);
        for slice in 0..slices {
            for i in 0..k_down {
                let row = (slice * rows + i) * s_along * columns;
                koff.extend(along.iter().map(|at| (row + at) as u32));
            }
        }
        let (strides, koff) = (view.strides, RowOffsets::new(koff));
        Self { height, width, channels, strides, rows, columns, patch_len, koff, pixels }
    }

    /// Rows of the patch with the phases of the stride down, and columns of one phase along.
    fn patch(view: &WinogradView, scheme: &Scheme<T>) -> [usize; 2] {
        let AxisRoles { down, along, .. } = &view.roles;
        [(scheme.down.tile.outputs + down.kernel - 1) * view.strides[0], scheme.along.tile.outputs + along.kernel - 1]
    }

    /// Elements of the patch. None if offsets into it exceed 32 bits.
    fn patch_len(geometry: &Geometry, view: &WinogradView, scheme: &Scheme<T>) -> Option<usize> {
        let [rows, columns] = Self::patch(view, scheme);
        let slices = geometry.in_channels_per_group() * view.roles.depth.kernel;
        let len = slices.checked_mul(rows * view.strides[1] * columns)?;
        u32::try_from(len).is_ok().then_some(len)
    }

    /// Elements of scratch: the patch, and a row of pixels of a panel of at most `nr` channels.
    /// None if offsets into the patch exceed 32 bits.
    pub(super) fn scratch_len(
        geometry: &Geometry,
        view: &WinogradView,
        scheme: &Scheme<T>,
        nr: usize,
    ) -> Option<usize> {
        Some(Self::patch_len(geometry, view, scheme)? + scheme.along.tile.outputs * nr)
    }

    /// Computes the tile with the direct filters of its panel, and stores those of the tile.
    pub(super) fn compute<E: Element<Acc = T>>(
        &self,
        view: &WinogradView,
        tile: &DirectTile,
        PanelFilters { weights, nr }: PanelFilters<'_, T>,
        scratch: &mut [T],
        sink: &Sink<'_, '_, E>,
    ) {
        let AxisRoles { depth, down, along } = &view.roles;
        let [s_down, s_along] = self.strides;
        let sub = &tile.sub;
        // Later phases may have one row or column of tiles less.
        let width = self.width.min(sub.along.output.saturating_sub(tile.x));
        let height = self.height.min(sub.down.output.saturating_sub(tile.y));
        if width == 0 || height == 0 {
            return;
        }
        let (patch, sums) = scratch.split_at_mut(self.patch_len);
        self.fill_patch(view, tile, sink.io.x, patch);
        let (sums, koff) = (&mut sums[..self.width * nr], self.koff.rows(0..self.koff.len()));
        let first = tile.group * view.rows + tile.filters.start;
        let bias = &sink.io.bias[first..first + tile.filters.len()];
        for i in 0..height {
            for t in 0..self.pixels.count {
                let pixels = self.pixels.pixels(t);
                // Without channels there are no steps of k, and the patch is empty.
                let x = patch.get(i * s_down * s_along * self.columns + pixels.start..).unwrap_or(&[]);
                let kernel = self.pixels.kernel(pixels.len(), nr);
                let sums = &mut sums[pixels.start * nr..pixels.end * nr];
                kernel.partial(x, koff, weights, Ahead::NONE, sums, false);
            }
            let plane = (sub.image * view.groups * view.rows + first) * depth.output + tile.slice;
            let row = plane * down.output + sub.down.place(tile.y + i);
            let at = row * along.output + sub.along.place(tile.x);
            let positions = depth.output * down.output * along.output;
            for (c, bias) in bias.iter().enumerate() {
                // A tile has fewer outputs than values.
                let mut pixels = [T::ZERO; MOST_VALUES];
                let pixels = &mut pixels[..width];
                for (pixel, sums) in pixels.iter_mut().zip(sums.chunks(nr)) {
                    *pixel = sums[tile.filters.start - tile.panel + c];
                }
                sink.strided(pixels, *bias, at + c * positions, sub.along.step);
            }
        }
    }

    /// Copies the part of X that a tile sees, with zeros for padding.
    fn fill_patch<E: Element<Acc = T>>(&self, view: &WinogradView, tile: &DirectTile, x: &[E], patch: &mut [T]) {
        let AxisRoles { depth, down, along } = &view.roles;
        let [s_down, s_along] = self.strides;
        let sub = &tile.sub;
        let first = (sub.image * view.groups + tile.group) * self.channels;
        for (place, value) in patch.iter_mut().enumerate() {
            let (rest, j) = (place / self.columns, place % self.columns);
            let (rest, phase) = (rest / s_along, rest % s_along);
            let (rest, i) = (rest / self.rows, rest % self.rows);
            let (c, k) = (rest / depth.kernel, rest % depth.kernel);
            let slice = (tile.slice * depth.stride + k).checked_sub(depth.pad_begin);
            let slice = slice.filter(|slice| *slice < depth.input);
            let column = (tile.x + j) * s_along + phase;
            *value = match (slice, sub.down.source(tile.y * s_down + i), sub.along.source(column)) {
                (Some(slice), Some(row), Some(column)) => {
                    let row = ((first + c) * depth.input + slice) * down.input + row;
                    x[row * along.input + column].to_acc()
                }
                _ => T::ZERO,
            };
        }
    }
}
