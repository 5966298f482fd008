//! Packed filters: transformed for the tiles, and as they are for tiles that are computed directly.

use alloc::vec;
use alloc::vec::Vec;

use convoke_kernels::winograd::filter_rows;
use convoke_kernels::{Real, winograd::MOST_VALUES};

use super::shape::{Parts, Roles, Scheme};
use crate::Geometry;
use crate::element::Element;
use crate::lower::channel_tiles::Tiles;

/// Where things are in the packed filters of a group: for each panel of channels, `[value][step of k][channel]`, then, behind those of all
/// panels, `[channel of X and tap][channel]` for each panel.
///
/// The steps of k of the transformed filters are slices (taps of the depth axis), filters, channels of X.
#[derive(Clone, Copy)]
pub(super) struct PackedLayout {
    /// Channels of Y, filled up to whole vectors.
    padded: usize,
    values: usize,
    /// Steps of k.
    pub(super) steps: usize,
    /// Steps of k of the direct filters: channels of X times taps.
    pub(super) direct_steps: usize,
}

impl PackedLayout {
    pub(super) fn new<T: Real>(geometry: &Geometry, roles: &Roles, scheme: &Scheme<T>, padded: usize) -> Self {
        let channels = geometry.in_channels_per_group();
        Self {
            padded,
            values: scheme.kernel.values(),
            steps: roles.depth.kernel * scheme.filters() * channels,
            direct_steps: channels * geometry.kernel_volume(),
        }
    }

    /// Values of a group; none if they do not fit the address space.
    pub(super) fn checked_group_len(&self) -> Option<usize> {
        let each = self.values.checked_mul(self.steps)?.checked_add(self.direct_steps)?;
        self.padded.checked_mul(each)
    }

    pub(super) fn group_len(&self) -> usize {
        self.padded * (self.values * self.steps + self.direct_steps)
    }

    /// The transformed filters of the panel of `nr` channels that begins with channel `first`.
    pub(super) fn panel(&self, first: usize, nr: usize) -> core::ops::Range<usize> {
        let len = self.values * self.steps;
        first * len..(first + nr) * len
    }

    /// The direct filters of that panel.
    pub(super) fn direct_panel(&self, first: usize, nr: usize) -> core::ops::Range<usize> {
        let begin = self.padded * self.values * self.steps;
        begin + first * self.direct_steps..begin + (first + nr) * self.direct_steps
    }
}

/// The transforms of one axis' filters: `[filter][value][tap of the kernel]`, with zeros for taps of other filters.
fn transforms(parts: &Parts, kernel: usize) -> Vec<f64> {
    let (values, taps) = (parts.tile.values, parts.tile.taps());
    let rows = filter_rows(values, taps);
    let mut all = vec![0.0; parts.count * values * kernel];
    for part in 0..parts.count {
        for (value, row) in rows.iter().enumerate() {
            for tap in parts.taps(part) {
                all[(part * values + value) * kernel + tap] = row[tap - parts.taps(part).start];
            }
        }
    }
    all
}

/// Packs the filters of one group, whose W is `w`.
pub(super) fn pack<T: Element>(
    w: &[T],
    geometry: &Geometry,
    roles: &Roles,
    scheme: &Scheme<T::Acc>,
    layout: &PackedLayout,
    tiles: &Tiles<T::Acc>,
    packed: &mut [T::Acc],
) {
    let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
    let (depth, down, along) = (roles.depth.kernel, roles.down.kernel, roles.along.kernel);
    let taps = depth * down * along;
    let (g_down, g_along) = (transforms(&scheme.down, down), transforms(&scheme.along, along));
    let (n_down, n_along) = (scheme.down.tile.values, scheme.along.tile.values);
    let mut half = vec![0.0; MOST_VALUES * along];
    packed.fill(T::Acc::ZERO);
    for row in 0..rows {
        let first = row / tiles.nr() * tiles.nr();
        let nr = tiles.panel(rows - first);
        let lane = row - first;
        let (panel, direct) = (layout.panel(first, nr).start, layout.direct_panel(first, nr).start);
        for c in 0..channels {
            let w = &w[(row * channels + c) * taps..][..taps];
            for (tap, w) in w.iter().enumerate() {
                packed[direct + (c * taps + tap) * nr + lane] = w.to_acc();
            }
            for (kd, w) in w.chunks_exact(down * along).enumerate() {
                for i in 0..scheme.down.count {
                    let g = &g_down[i * n_down * down..][..n_down * down];
                    for (half, g) in half.chunks_exact_mut(along).zip(g.chunks_exact(down)) {
                        for (kh, half) in half.iter_mut().enumerate() {
                            *half = (0..down).map(|kv| g[kv] * w[kv * along + kh].to_acc().to_f64()).sum();
                        }
                    }
                    for j in 0..scheme.along.count {
                        let g = &g_along[j * n_along * along..][..n_along * along];
                        let step = ((kd * scheme.down.count + i) * scheme.along.count + j) * channels + c;
                        for (v, half) in half.chunks_exact(along).take(n_down).enumerate() {
                            for (h, g) in g.chunks_exact(along).enumerate() {
                                let value: f64 = half.iter().zip(g).map(|(half, g)| half * g).sum();
                                let at = panel + ((v * n_along + h) * layout.steps + step) * nr + lane;
                                packed[at] = T::Acc::from_f64(value);
                            }
                        }
                    }
                }
            }
        }
    }
}
