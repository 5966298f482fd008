//! A tile, the filters into which the layer's kernel is cut for it, and the steps of k of its values.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::winograd_kernels;
use convoke_kernels::winograd::Tile;
use convoke_kernels::{Real, WinogradKernel};

use super::view::{AxisRoles, MOST_STEPS, WinogradView, phases};
use crate::Axis;

/// Values of a tile that `Accuracy::Standard` allows, at most: its bound covers 6x8 values. Tiles of 8x8
/// have two to four times the error.
pub(super) const STANDARD_VALUES: usize = 48;

/// How the taps of an axis are cut into filters. If a tile has m outputs, filter i has the taps from `i
/// * m` on: it reads the transformed values of the tile that is i further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisFilters {
    pub(super) tile: Tile,
    pub(super) count: usize,
    kernel: usize,
}

impl AxisFilters {
    /// None if the tile does not suit the kernel.
    fn new(tile: Tile, kernel: usize) -> Option<Self> {
        if (tile == Tile::NONE) != (kernel == 1) {
            return None;
        }
        let rest = kernel.saturating_sub(tile.taps());
        // Filters begin m taps apart, and must leave no gap.
        if rest > 0 && tile.taps() < tile.outputs {
            return None;
        }
        Some(Self { tile, count: 1 + rest.div_ceil(tile.outputs), kernel })
    }

    pub(super) fn padded(&self, tiles: usize) -> f64 {
        let Tile { outputs, values, .. } = self.tile;
        tiles as f64 * outputs as f64 + (values - outputs) as f64
    }

    /// The taps of filter `i`. Each tap is in one filter.
    pub(super) fn taps(&self, i: usize) -> Range<usize> {
        let end = if i + 1 == self.count { self.kernel } else { (i + 1) * self.tile.outputs };
        i * self.tile.outputs..end
    }
}

/// The transforms of a tile, and the filters on both axes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scheme<T: Real> {
    pub(super) kernel: &'static WinogradKernel<T>,
    pub(super) down: AxisFilters,
    pub(super) along: AxisFilters,
}

impl<T: Real> Scheme<T> {
    /// None if the tile does not suit the layer.
    pub(super) fn new(kernel: &'static WinogradKernel<T>, roles: &AxisRoles) -> Option<Self> {
        let down = AxisFilters::new(kernel.down(), roles.down.kernel)?;
        let along = AxisFilters::new(kernel.along(), roles.along.kernel)?;
        Some(Self { kernel, down, along })
    }

    /// Whether the tables of steps of k are small enough.
    pub(super) fn has_few_steps(&self, view: &WinogradView) -> bool {
        let steps = view.channels.checked_mul(self.filters()).and_then(|n| n.checked_mul(view.roles.depth.kernel));
        steps.is_some_and(|steps| steps <= MOST_STEPS)
    }

    /// The number of filters.
    pub(super) fn filters(&self) -> usize {
        self.down.count * self.along.count
    }

    pub(super) fn outputs(&self) -> [usize; 2] {
        [self.down.tile.outputs, self.along.tile.outputs]
    }

    /// The outputs of the last row of tiles that Y lacks, if kernels can make use of that. It is 0 if
    /// the last row differs between phases, if several filters read it, or if
    /// [`Spare`](convoke_kernels::winograd::Spare) does not know the tile's points.
    pub(super) fn spare(&self, roles: &AxisRoles) -> usize {
        let outputs = self.down.tile.outputs;
        let is_even = self.down.tile.values.is_multiple_of(2);
        if self.down.count > 1 || phases(&roles.down) > 1 || !is_even {
            0
        } else {
            roles.down.output.next_multiple_of(outputs) - roles.down.output
        }
    }

    /// Rows and columns of tiles of the first phase, which is the largest.
    pub(super) fn grid(&self, roles: &AxisRoles) -> [usize; 2] {
        let tiles = |axis: &Axis, outputs: usize| axis.output.div_ceil(phases(axis)).div_ceil(outputs);
        let [down, along] = self.outputs();
        [tiles(&roles.down, down), tiles(&roles.along, along)]
    }
}

/// Whether the outputs of tiles leave gaps in the rows of pixels that are stored.
pub(super) fn is_ragged<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    !kernel.lanes().is_multiple_of(kernel.along().outputs)
}

/// Whether tiles of several rows with the same taps fill the rows of pixels. They write a large Y
/// faster: whole cache lines, past the caches.
pub(super) fn has_whole_rows<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    let (down, along) = (kernel.down(), kernel.along());
    let is_other = |other: &WinogradKernel<T>| {
        !is_ragged(other) && (other.down().taps(), other.along().taps()) == (down.taps(), along.taps())
    };
    down.outputs > 1 && winograd_kernels::<T>(kernel.isa()).iter().any(is_other)
}

/// The number of different lists of steps: see [`TileSteps::list_of`].
pub(super) const LISTS: usize = 4;

/// The steps of k of all values of a tile, for one slice. Steps whose transformed filters are zero are
/// left out.
///
/// The value at infinity is the product with a filter's last tap, so it is zero for filters with fewer
/// taps than the tile allows. With a stride, these belong to the phases that meet fewer taps: F(5x5,
/// 2x2) for 3x3 taps and stride 2 has 121 products instead of 144, because three of the four phases have
/// a tap less. With a longer kernel, they are the filters that have `outputs` taps.
///
/// The steps of a value are ordered by filter, then by channel of the view: by phase of the strides, then by channel of X.
pub(super) struct TileSteps {
    /// Channels of X, and the stride along.
    channels: usize,
    stride: usize,
    values: [usize; 2],
    /// For each axis, for other values and for the value at infinity: how many phases of the stride each
    /// filter has. Later phases meet fewer taps.
    phases: [[Vec<usize>; 2]; 2],
}

impl TileSteps {
    pub(super) fn new<T: Real>(view: &WinogradView, scheme: &Scheme<T>) -> Self {
        let phases = |axis: usize, filters: &AxisFilters| {
            [1, filters.tile.taps()].map(|least| {
                let has_taps = |taps: &Range<usize>, phase: usize| {
                    taps.end.min(view.phase_taps(axis, phase)).saturating_sub(taps.start) >= least
                };
                let of_filter =
                    |taps: Range<usize>| (0..view.strides[axis]).take_while(|p| has_taps(&taps, *p)).count();
                (0..filters.count).map(|i| of_filter(filters.taps(i))).collect()
            })
        };
        Self {
            channels: view.channels / (view.strides[0] * view.strides[1]),
            stride: view.strides[1],
            values: [scheme.kernel.down().values, scheme.kernel.along().values],
            phases: [phases(0, &scheme.down), phases(1, &scheme.along)],
        }
    }

    /// The number of a value's list of steps: 1 is added at infinity along, and 2 at infinity down, if
    /// the steps differ there.
    pub(super) fn list_of(&self, value: usize) -> usize {
        let differs = |axis: usize, place: usize| {
            let [elsewhere, at_infinity] = &self.phases[axis];
            usize::from(place + 1 == self.values[axis] && elsewhere != at_infinity)
        };
        2 * differs(0, value / self.values[1]) + differs(1, value % self.values[1])
    }

    /// The phases of the stride that each filter has in a list, down and along.
    fn phases(&self, list: usize) -> [&[usize]; 2] {
        [&self.phases[0][list / 2], &self.phases[1][list % 2]]
    }

    pub(super) fn count(&self, list: usize) -> usize {
        self.channels * self.phases(list).map(|phases| phases.iter().sum::<usize>()).iter().product::<usize>()
    }

    pub(super) fn all(&self) -> usize {
        (0..self.values[0] * self.values[1]).map(|value| self.count(self.list_of(value))).sum()
    }

    /// Channels of X of a group.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// The taps of a list: filters down and along, and the phase of the strides.
    pub(super) fn taps(&self, list: usize) -> impl Iterator<Item = ([usize; 2], usize)> {
        let [down, along] = self.phases(list);
        let filters = (0..down.len()).flat_map(|i| (0..along.len()).map(move |j| [i, j]));
        filters.flat_map(move |[i, j]| {
            let phases = (0..down[i]).flat_map(move |down| (0..along[j]).map(move |along| (down, along)));
            phases.map(move |(down, along)| ([i, j], down * self.stride + along))
        })
    }

    /// The steps of a list: filters down and along, and channels of the view.
    pub(super) fn steps(&self, list: usize) -> impl Iterator<Item = ([usize; 2], usize)> {
        let channels = self.channels;
        self.taps(list).flat_map(move |(filter, phase)| (0..channels).map(move |c| (filter, phase * channels + c)))
    }

    /// The place of a channel of a filter in a list. None if the product is zero.
    pub(super) fn find(&self, list: usize, [i, j]: [usize; 2], channel: usize) -> Option<usize> {
        let [down, along] = self.phases(list);
        let (phase, c) = (channel / self.channels, channel % self.channels);
        let (phase_down, phase_along) = (phase / self.stride, phase % self.stride);
        let sum = |phases: &[usize]| phases.iter().sum::<usize>();
        let before = self.channels * (sum(&down[..i]) * sum(along) + down[i] * sum(&along[..j]));
        let is_there = phase_down < down[i] && phase_along < along[j];
        is_there.then(|| before + (phase_down * along[j] + phase_along) * self.channels + c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conv, Isa};

    #[test]
    fn steps_are_found_where_they_are_listed() {
        for (kernel, strides) in [([3, 3], [2, 2]), ([7, 5], [1, 3]), ([5, 4], [3, 2]), ([3, 3], [1, 1])] {
            let conv = Conv::new([4, 3, kernel[0], kernel[1]]).strides(strides.map(|stride| stride as i64));
            let view = super::super::conv::view(&conv.geometry(&[1, 3, 40, 40]).unwrap()).unwrap();
            let suitable = winograd_kernels::<f32>(Isa::Portable).iter().filter_map(|k| Scheme::new(k, &view.roles));
            for scheme in suitable {
                let steps = TileSteps::new(&view, &scheme);
                for list in 0..LISTS {
                    for (place, (filter, channel)) in steps.steps(list).enumerate() {
                        assert!(channel < view.channels);
                        assert_eq!(steps.find(list, filter, channel), Some(place), "{scheme:?}");
                    }
                    assert_eq!(steps.steps(list).count(), steps.count(list));
                }
            }
        }
    }
}
