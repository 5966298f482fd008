//! A tile, the filters that the layer's kernel is cut into for it, and the steps of k of its values.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::winograd_kernels;
use convoke_kernels::winograd::Tile;
use convoke_kernels::{Real, WinogradKernel};

use super::view::{AxisRoles, MOST_STEPS, WinogradView, phases};
use crate::Axis;

/// The most values of a tile that `Accuracy::Standard` allows, whose bound covers those of 6x8. Tiles
/// of 8x8 values err two to four times as much.
pub(super) const STANDARD_VALUES: usize = 48;

/// How the taps of one axis are cut into filters. A tile has m outputs, and filter i takes the taps
/// from `i * m` on. So it reads the transformed values of the tile that is i places further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisFilters {
    pub(super) tile: Tile,
    pub(super) count: usize,
    kernel: usize,
}

impl AxisFilters {
    /// The filters for `kernel` taps; none if the tile does not suit them.
    fn new(tile: Tile, kernel: usize) -> Option<Self> {
        if (tile == Tile::NONE) != (kernel == 1) {
            return None;
        }
        let rest = kernel.saturating_sub(tile.taps());
        // Filters begin m taps apart, and must overlap or touch.
        if rest > 0 && tile.taps() < tile.outputs {
            return None;
        }
        Some(Self { tile, count: 1 + rest.div_ceil(tile.outputs), kernel })
    }

    /// Elements that `tiles` neighbouring tiles read.
    pub(super) fn padded(&self, tiles: usize) -> f64 {
        let Tile { outputs, values, .. } = self.tile;
        tiles as f64 * outputs as f64 + (values - outputs) as f64
    }

    /// The taps of filter `i`. Every tap is in one filter.
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
    /// The scheme of a kernel, if it suits the layer.
    pub(super) fn new(kernel: &'static WinogradKernel<T>, roles: &AxisRoles) -> Option<Self> {
        let down = AxisFilters::new(kernel.down(), roles.down.kernel)?;
        let along = AxisFilters::new(kernel.along(), roles.along.kernel)?;
        Some(Self { kernel, down, along })
    }

    /// Whether the tables of steps of k have a moderate size.
    pub(super) fn has_few_steps(&self, view: &WinogradView) -> bool {
        let steps = view.channels.checked_mul(self.filters()).and_then(|n| n.checked_mul(view.roles.depth.kernel));
        steps.is_some_and(|steps| steps <= MOST_STEPS)
    }

    /// The number of filters that the kernel is cut into.
    pub(super) fn filters(&self) -> usize {
        self.down.count * self.along.count
    }

    /// Outputs of a tile, down and along.
    pub(super) fn outputs(&self) -> [usize; 2] {
        [self.down.tile.outputs, self.along.tile.outputs]
    }

    /// The outputs of the last row of tiles that Y does not have. It is 0 where they cannot be made
    /// use of: where the last row differs between phases, where several filters read it, or where
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

    /// Rows and columns of tiles of the output's first phase, which is the largest.
    pub(super) fn grid(&self, roles: &AxisRoles) -> [usize; 2] {
        let tiles = |axis: &Axis, outputs: usize| axis.output.div_ceil(phases(axis)).div_ceil(outputs);
        let [down, along] = self.outputs();
        [tiles(&roles.down, down), tiles(&roles.along, along)]
    }
}

/// Whether tiles' outputs do not fill the rows of pixels that are stored.
pub(super) fn is_ragged<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    !kernel.lanes().is_multiple_of(kernel.along().outputs)
}

/// Whether tiles of several rows for the same taps fill the rows of pixels. Such tiles write a
/// large Y faster: whole cache lines at a time, past the caches.
pub(super) fn has_whole_rows<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    let (down, along) = (kernel.down(), kernel.along());
    let is_other = |other: &WinogradKernel<T>| {
        !is_ragged(other) && (other.down().taps(), other.along().taps()) == (down.taps(), along.taps())
    };
    down.outputs > 1 && winograd_kernels::<T>(kernel.isa()).iter().any(is_other)
}

/// The number of different lists of steps: see [`TileSteps::list_of`].
pub(super) const LISTS: usize = 4;

/// The steps of k of all values of a tile, for one slice of the outer axis. Steps whose transformed
/// filters are zero are left out.
///
/// The value at infinity is the product with a filter's last tap. A filter with fewer taps than the
/// tile allows is zero there. With a stride, such filters belong to the phases that meet fewer
/// taps: F(5x5, 2x2) for 3x3 taps and stride 2 has 121 products instead of 144, because three of
/// the four phases have a tap less. With a longer kernel they are the parts that have `outputs`
/// taps where the tile allows more.
///
/// The steps of a value are ordered by filters, and then by channels of the view.
pub(super) struct TileSteps {
    /// Channels of X, and the stride along.
    channels: usize,
    stride: usize,
    /// Values of a tile, down and along.
    values: [usize; 2],
    /// For each axis, for values elsewhere and for the value at infinity: how many phases of the
    /// stride each filter has. Later phases meet fewer taps, never more.
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

    /// The number of the list of steps that a value has: 0, or 1 more at infinity along, and 2 more
    /// at infinity down, where that has other steps.
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

    /// The number of steps of a list.
    pub(super) fn count(&self, list: usize) -> usize {
        self.channels * self.phases(list).map(|phases| phases.iter().sum::<usize>()).iter().product::<usize>()
    }

    /// The number of steps of all values.
    pub(super) fn all(&self) -> usize {
        (0..self.values[0] * self.values[1]).map(|value| self.count(self.list_of(value))).sum()
    }

    /// The steps of a list: filters down and along, and channels.
    pub(super) fn steps(&self, list: usize) -> impl Iterator<Item = ([usize; 2], usize)> {
        let [down, along] = self.phases(list);
        let filters = (0..down.len()).flat_map(|i| (0..along.len()).map(move |j| [i, j]));
        filters.flat_map(move |[i, j]| {
            let rows = 0..down[i] * self.channels;
            rows.flat_map(move |row| (0..along[j]).map(move |phase| ([i, j], row * self.stride + phase)))
        })
    }

    /// The place of a channel of a filter in a list; none where the product is zero.
    pub(super) fn find(&self, list: usize, [i, j]: [usize; 2], channel: usize) -> Option<usize> {
        let [down, along] = self.phases(list);
        let (row, phase) = (channel / self.stride, channel % self.stride);
        let sum = |phases: &[usize]| phases.iter().sum::<usize>();
        let before = self.channels * (sum(&down[..i]) * sum(along) + down[i] * sum(&along[..j]));
        (row < down[i] * self.channels && phase < along[j]).then(|| before + row * along[j] + phase)
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
