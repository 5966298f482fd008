//! Packed filters: transformed for the tiles, and as they are for tiles that are computed directly.

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
    // The same rows for every filter of an axis: a row of factors for each value, one for each tap.
    let rows_of = |parts: &Parts| filter_rows(parts.tile.values, parts.tile.taps());
    let (g_down, g_along) = (rows_of(&scheme.down), rows_of(&scheme.along));
    let mut half = [[0.0; MOST_VALUES]; MOST_VALUES];
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
                    let taps_down = scheme.down.taps(i);
                    for j in 0..scheme.along.count {
                        let taps_along = scheme.along.taps(j);
                        for (half, g) in half.iter_mut().zip(&g_down) {
                            for (half, kh) in half.iter_mut().zip(taps_along.clone()) {
                                let column = taps_down.clone().map(|kv| w[kv * along + kh].to_acc().to_f64());
                                *half = g.iter().zip(column).map(|(g, w)| g * w).sum();
                            }
                        }
                        let step = ((kd * scheme.down.count + i) * scheme.along.count + j) * channels + c;
                        for (v, half) in half.iter().take(g_down.len()).enumerate() {
                            for (h, g) in g_along.iter().enumerate() {
                                let value: f64 =
                                    half.iter().zip(g).take(taps_along.len()).map(|(half, g)| half * g).sum();
                                let at = panel + ((v * g_along.len() + h) * layout.steps + step) * nr + lane;
                                packed[at] = T::Acc::from_f64(value);
                            }
                        }
                    }
                }
            }
        }
    }
}
