//! Single tiles, directly: for results that are not finite, and for weights that are not.

use alloc::vec;
use alloc::vec::Vec;

use convoke_kernels::{ChannelKernel, Isa, Real, RowOffsets, channel_kernels};

use super::shape::{Roles, Scheme};
use crate::Geometry;
use crate::element::Element;
use crate::lower::finish::Finish;

/// Direct sums for one tile: the part of X that it sees is copied into a patch, on which the channel-vector kernels run, a row of pixels at a
/// time.
pub(super) struct Direct<T: Real> {
    /// Rows and pixels of a tile.
    height: usize,
    width: usize,
    /// Rows and elements of a slice of the patch.
    rows: usize,
    columns: usize,
    /// Elements of the patch of all channels and taps of the depth axis.
    patch_len: usize,
    /// For each channel of X and each tap, where its view of the patch begins.
    koff: RowOffsets,
    /// For a wide panel of channels, and for one of a single vector.
    kernels: [&'static ChannelKernel<T>; 2],
    /// A vector of zeros, where a bias is asked for and added later.
    pub(super) zeros: Vec<T>,
}

/// A tile: its place and its channels.
pub(super) struct Tile {
    pub(super) image: usize,
    pub(super) group: usize,
    /// The slice of Y, and the tile's first row and pixel.
    pub(super) slice: usize,
    pub(super) y: usize,
    pub(super) x: usize,
    /// Channels of the group.
    pub(super) channels: core::ops::Range<usize>,
}

impl<T: Real> Direct<T> {
    /// None if a kernel is lacking.
    pub(super) fn new(isa: Isa, geometry: &Geometry, roles: &Roles, scheme: &Scheme<T>) -> Option<Self> {
        let (height, width) = (scheme.down.tile.outputs, scheme.along.tile.outputs);
        let (rows, columns) = (height + roles.down.kernel - 1, width + roles.along.kernel - 1);
        let kernels = channel_kernels::<T>(isa);
        let widest = kernels.iter().map(ChannelKernel::nrv).max()?;
        let find = |nrv: usize| kernels.iter().find(|k| k.mr() == width && k.nrv() == nrv);
        let slices = geometry.in_channels_per_group() * roles.depth.kernel;
        let patch_len = slices.checked_mul(rows * columns)?;
        u32::try_from(patch_len).ok()?;
        let mut koff = Vec::with_capacity(geometry.in_channels_per_group() * geometry.kernel_volume());
        for slice in 0..slices {
            for i in 0..roles.down.kernel {
                koff.extend((0..roles.along.kernel).map(|j| ((slice * rows + i) * columns + j) as u32));
            }
        }
        Some(Self {
            height,
            width,
            rows,
            columns,
            patch_len,
            koff: RowOffsets::new(koff),
            kernels: [find(widest)?, find(1)?],
            zeros: vec![T::ZERO; kernels.first()?.lanes()],
        })
    }

    /// Elements of scratch: the patch, and a row of pixels of a panel of at most `nr` channels.
    pub(super) fn scratch_len(&self, nr: usize) -> usize {
        self.patch_len + self.width * nr
    }

    /// Computes the tile with the direct filters of its panel of `nr` channels.
    #[expect(clippy::too_many_arguments, reason = "the layer, the tile, its operands and its sink")]
    pub(super) fn compute<E: Element<Acc = T>>(
        &self,
        geometry: &Geometry,
        roles: &Roles,
        tile: &Tile,
        filters: &[T],
        nr: usize,
        scratch: &mut [T],
        finish: &Finish<'_, '_, E>,
    ) where
        T: crate::element::Compute,
    {
        let (channels, depth) = (geometry.in_channels_per_group(), roles.depth.kernel);
        let (patch, sums) = scratch.split_at_mut(self.patch_len);
        let io = finish.io;
        for (place, value) in patch.iter_mut().enumerate() {
            let (rest, j) = (place / self.columns, place % self.columns);
            let (rest, i) = (rest / self.rows, rest % self.rows);
            let (c, k) = (rest / depth, rest % depth);
            let at = |axis: &crate::Axis, position: usize| {
                position.checked_sub(axis.pad_begin).filter(|position| *position < axis.input)
            };
            let position = (
                at(&roles.depth, tile.slice * roles.depth.stride + k),
                at(&roles.down, tile.y + i),
                at(&roles.along, tile.x + j),
            );
            *value = match position {
                (Some(slice), Some(y), Some(x)) => {
                    let channel = tile.image * geometry.in_channels + tile.group * channels + c;
                    let row = (channel * roles.depth.input + slice) * roles.down.input + y;
                    io.x[row * roles.along.input + x].to_acc()
                }
                _ => T::ZERO,
            };
        }
        let kernel = self.kernels[usize::from(nr != self.kernels[0].nr())];
        let width = self.width.min(roles.along.output - tile.x);
        let first = tile.group * geometry.out_channels_per_group() + tile.channels.start;
        let bias = &io.bias[first..first + tile.channels.len()];
        for i in 0..self.height.min(roles.down.output - tile.y) {
            let sums = &mut sums[..self.width * nr];
            let koff = self.koff.rows(0..self.koff.len());
            // Without channels there are no steps of k, and the patch is empty.
            kernel.partial(patch.get(i * self.columns..).unwrap_or(&[]), koff, filters, &[], sums, false);
            let plane = (tile.image * geometry.out_channels + first) * roles.depth.output + tile.slice;
            let at = (plane * roles.down.output + tile.y + i) * roles.along.output + tile.x;
            finish.transposed(&sums[..width * nr], nr, bias, at, geometry.output_spatial());
        }
    }
}
