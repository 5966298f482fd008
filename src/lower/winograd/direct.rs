//! Single tiles, directly: for results that are not finite, and for weights that are not.

use alloc::vec::Vec;

use convoke_kernels::{Ahead, Real, RowOffsets};

use super::blocks::Task;
use super::shape::{Roles, Scheme, SubImage, View, tiled_kernel};
use crate::Geometry;
use crate::element::Element;
use crate::lower::channel_tiles::ChannelTiles;
use crate::lower::sink::Sink;
use crate::machine::Machine;

/// Direct sums for one tile: the part of X that it sees is copied into a patch, on which the
/// channel-vector kernels run, a row of pixels at a time.
pub(super) struct Direct<T: Real> {
    /// Rows and pixels of a tile.
    height: usize,
    width: usize,
    /// The strides of the layer: the elements of a row of the patch are kept by phases.
    strides: [usize; 2],
    /// Rows of a slice of the patch, and elements of a phase of a row.
    rows: usize,
    columns: usize,
    /// Elements of the patch of all channels and taps of the depth axis.
    patch_len: usize,
    /// For each channel of X and each tap, where its view of the patch begins.
    koff: RowOffsets,
    /// A row of pixels, cut into tiles that kernels have.
    pixels: ChannelTiles<T>,
}

/// A tile of a task: its place and its filters.
pub(super) struct Tile {
    pub(super) sub: SubImage,
    /// The slice of the view's output, and the tile's first row and pixel in the sub-image.
    pub(super) slice: usize,
    pub(super) y: usize,
    pub(super) x: usize,
    /// Filters of the group: those of a panel.
    pub(super) filters: core::ops::Range<usize>,
}

impl<T: Real> Direct<T> {
    /// None if a kernel is lacking.
    pub(super) fn new(machine: &Machine, geometry: &Geometry, view: &View, scheme: &Scheme<T>) -> Option<Self> {
        let (height, width) = (scheme.down.tile.outputs, scheme.along.tile.outputs);
        let Roles { depth, down, along } = &view.roles;
        let [s_down, s_along] = view.strides;
        let (rows, columns) = ((height + down.kernel - 1) * s_down, width + along.kernel - 1);
        let pixels = ChannelTiles::new(machine, width)?;
        let slices = geometry.in_channels_per_group() * depth.kernel;
        let patch_len = slices.checked_mul(rows * s_along * columns)?;
        let [k_down, k_along] = tiled_kernel(geometry);
        u32::try_from(patch_len).ok()?;
        let mut koff = Vec::with_capacity(geometry.in_channels_per_group() * geometry.kernel_volume());
        for slice in 0..slices {
            for i in 0..k_down {
                let row = (slice * rows + i) * s_along;
                koff.extend((0..k_along).map(|j| ((row + j % s_along) * columns + j / s_along) as u32));
            }
        }
        Some(Self {
            height,
            width,
            strides: view.strides,
            rows,
            columns,
            patch_len,
            koff: RowOffsets::new(koff),
            pixels,
        })
    }

    /// Elements of scratch: the patch, and a row of pixels of a panel of at most `nr` channels.
    pub(super) fn scratch_len(&self, nr: usize) -> usize {
        self.patch_len + self.width * nr
    }

    /// Computes the tile with the direct filters of its panel of `nr` channels.
    #[expect(clippy::too_many_arguments, reason = "the layer, the task and its tile, their operands and its sink")]
    pub(super) fn compute<E: Element<Acc = T>>(
        &self,
        geometry: &Geometry,
        view: &View,
        task: &Task<'_, T>,
        tile: &Tile,
        filters: &[T],
        nr: usize,
        scratch: &mut [T],
        sink: &Sink<'_, '_, E>,
    ) where
        T: crate::element::Compute,
    {
        let roles = &view.roles;
        let (channels, depth) = (geometry.in_channels_per_group(), roles.depth.kernel);
        let [s_down, s_along] = self.strides;
        let sub = &tile.sub;
        // Later phases may have a row or column of tiles less.
        let width = self.width.min(sub.along.output.saturating_sub(tile.x));
        let height = self.height.min(sub.down.output.saturating_sub(tile.y));
        if width == 0 || height == 0 {
            return;
        }
        let (patch, sums) = scratch.split_at_mut(self.patch_len);
        let io = sink.io;
        for (place, value) in patch.iter_mut().enumerate() {
            let (rest, j) = (place / self.columns, place % self.columns);
            let (rest, phase) = (rest / s_along, rest % s_along);
            let (rest, i) = (rest / self.rows, rest % self.rows);
            let (c, k) = (rest / depth, rest % depth);
            let slice = (tile.slice * roles.depth.stride + k).checked_sub(roles.depth.pad_begin);
            let slice = slice.filter(|slice| *slice < roles.depth.input);
            let along = (tile.x + j) * s_along + phase;
            let position = (slice, sub.down.source(tile.y * s_down + i), sub.along.source(along));
            *value = match position {
                (Some(slice), Some(y), Some(x)) => {
                    let channel = sub.image * geometry.in_channels + task.group * channels + c;
                    let row = (channel * roles.depth.input + slice) * roles.down.input + y;
                    io.x[row * roles.along.input + x].to_acc()
                }
                _ => T::ZERO,
            };
        }
        let first = task.group * geometry.out_channels_per_group() + tile.filters.start;
        let bias = &io.bias[first..first + tile.filters.len()];
        for i in 0..height {
            let sums = &mut sums[..self.width * nr];
            let koff = self.koff.rows(0..self.koff.len());
            for t in 0..self.pixels.count {
                let pixels = self.pixels.pixels(t);
                // Without channels there are no steps of k, and the patch is empty.
                let x = patch.get(i * s_down * s_along * self.columns + pixels.start..).unwrap_or(&[]);
                let sums = &mut sums[pixels.start * nr..pixels.end * nr];
                self.pixels.kernel(pixels.len(), tile.filters.len()).partial(
                    x,
                    koff,
                    filters,
                    Ahead::NONE,
                    sums,
                    false,
                );
            }
            let plane = (sub.image * geometry.out_channels + first) * roles.depth.output + tile.slice;
            let row = plane * roles.down.output + sub.down.place(tile.y + i);
            let at = row * roles.along.output + sub.along.place(tile.x);
            sink.transposed(&sums[..width * nr], nr, bias, at, (geometry.output_spatial(), sub.along.step));
        }
    }
}
