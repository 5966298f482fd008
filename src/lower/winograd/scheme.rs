//! A tile, and how a layer's kernel is cut into filters for it.

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
    pub(super) fn grid(&self, roles: &AxisRoles) -> (usize, usize) {
        let tiles = |axis: &Axis, outputs: usize| axis.output.div_ceil(phases(axis)).div_ceil(outputs);
        (tiles(&roles.down, self.down.tile.outputs), tiles(&roles.along, self.along.tile.outputs))
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
