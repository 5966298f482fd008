//! What a layer looks like to Winograd's algorithm: the roles of its axes, and how its kernel is
//! cut.

use alloc::string::String;

use convoke_kernels::winograd::Tile;
use convoke_kernels::{Real, WinogradKernel, winograd_kernels};

use crate::{Axis, Geometry};

/// A layer as Winograd's algorithm sees it: a convolution of stride 1 on the axes of the tiles,
/// which Conv is, and ConvTranspose by phases.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of a group: for each phase of the stride down, those of X, each with its phases
    /// along.
    pub(super) channels: usize,
    /// The strides of the axes that tiles lie on: the elements of X that are so far apart are
    /// channels of their own.
    pub(super) strides: [usize; 2],
    /// Taps of the layer's kernel along them, of which each phase meets some.
    pub(super) taps: [usize; 2],
    /// Filters of a group.
    pub(super) rows: usize,
    /// Whether filters are phases, which are interleaved on their way into Y.
    pub(super) has_phases: bool,
    /// Whether Y is so large that it is written past the caches.
    pub(super) past_cache: bool,
    pub(super) roles: Roles,
}

impl View {
    /// Taps that phase `phase` of the stride of an axis (0 down, 1 along) meets.
    pub(super) fn phase_taps(&self, axis: usize, phase: usize) -> usize {
        self.taps[axis].saturating_sub(phase).div_ceil(self.strides[axis])
    }
}

/// The axes of a layer by what becomes of them.
#[derive(Clone, Copy)]
pub(super) struct Roles {
    /// The outer axis of three: its taps are more steps of k, over slices that are transformed
    /// once.
    pub(super) depth: Axis,
    /// The axes that tiles lie on.
    pub(super) down: Axis,
    pub(super) along: Axis,
}

impl Roles {
    /// # Errors
    /// Why the axes are not ones for Winograd.
    pub(super) fn new(axes: &[Axis]) -> Result<Self, String> {
        let roles = match *axes {
            [along] => Self { depth: Axis::UNIT, down: Axis::UNIT, along },
            [down, along] => Self { depth: Axis::UNIT, down, along },
            [depth, down, along] => Self { depth, down, along },
            _ => return Err(alloc::format!("{} spatial axes, only one to three can be", axes.len())),
        };
        if roles.depth.dilation != 1 && roles.depth.kernel != 1 {
            let dilation = roles.depth.dilation;
            return Err(alloc::format!(
                "spatial axis 0 has dilation {dilation}, only 1 can be on the outermost of three"
            ));
        }
        if roles.down.kernel == 1 && roles.along.kernel == 1 {
            return Err(String::from("along the last two spatial axes there is one tap, more are needed"));
        }
        Ok(roles)
    }
}

/// The kernel of a layer along the axes that tiles lie on.
pub(super) fn tiled_kernel(geometry: &Geometry) -> [usize; 2] {
    let mut kernels = geometry.axes.iter().rev().map(|axis| axis.kernel);
    let (along, down) = (kernels.next().unwrap_or(1), kernels.next().unwrap_or(1));
    [down, along]
}

/// Into how many tasks the outer axis is cut: with taps along it, its slices share what is
/// transformed.
pub(super) fn depth_tasks(roles: &Roles) -> usize {
    if roles.depth.kernel == 1 { roles.depth.output } else { 1 }
}

/// Number of phases: a layer with dilation d is d interleaved ones without, of which no more are
/// there than outputs.
pub(super) fn phases(axis: &Axis) -> usize {
    distance(axis).min(axis.output)
}

/// The distance between neighbours of a phase.
pub(super) fn distance(axis: &Axis) -> usize {
    if axis.kernel == 1 { 1 } else { axis.dilation }
}

/// The outputs of an image that are one phase of both axes: those that dilation interleaves are
/// images of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubImage {
    pub(super) image: usize,
    pub(super) down: Phase,
    pub(super) along: Phase,
}

impl SubImage {
    /// Number `index` of them: the phases of an image follow each other.
    pub(super) fn new(roles: &Roles, index: usize) -> Self {
        let (rest, phase_along) = (index / phases(&roles.along), index % phases(&roles.along));
        let (image, phase_down) = (rest / phases(&roles.down), rest % phases(&roles.down));
        Self { image, down: Phase::new(&roles.down, phase_down), along: Phase::new(&roles.along, phase_along) }
    }

    /// How many there are of `batch` images.
    pub(super) fn count(roles: &Roles, batch: usize) -> usize {
        batch * phases(&roles.down) * phases(&roles.along)
    }
}

/// One phase of an axis: its positions are those from `first` on, `step` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    pub(super) first: usize,
    pub(super) step: usize,
    /// Outputs of the phase.
    pub(super) output: usize,
    pad: usize,
    input: usize,
}

impl Phase {
    pub(super) fn new(axis: &Axis, first: usize) -> Self {
        let step = distance(axis);
        Self {
            first,
            step,
            output: axis.output.saturating_sub(first).div_ceil(step),
            pad: axis.pad_begin,
            input: axis.input,
        }
    }

    /// The elements of X's axis that are phase `first` of a stride.
    pub(super) fn of_stride(axis: &Axis, first: usize, stride: usize) -> Self {
        Self { first, step: stride, output: axis.output, pad: axis.pad_begin, input: axis.input }
    }

    /// The element of Y's axis that output `o` of the phase is.
    pub(super) fn place(&self, o: usize) -> usize {
        self.first + o * self.step
    }

    /// The element of X's axis that is at padded position `o` of the phase; none where that is
    /// padding.
    pub(super) fn source(&self, o: usize) -> Option<usize> {
        self.place(o).checked_sub(self.pad).filter(|position| *position < self.input)
    }

    /// Of `len` padded positions from `begin` on, those that are not padding.
    pub(super) fn live(&self, begin: usize, len: usize) -> core::ops::Range<usize> {
        let until = |position: usize| position.saturating_sub(self.place(begin)).div_ceil(self.step).min(len);
        let from = until(self.pad);
        from..until(self.pad + self.input).max(from)
    }
}

/// How the taps of one axis are cut into filters of a tile: filter i takes the taps from `i * m`
/// on, so that it reads the transformed values of the tile i places further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) tile: Tile,
    pub(super) count: usize,
    kernel: usize,
}

impl Parts {
    /// The filters for `kernel` taps; none if the tile does not suit them.
    fn new(tile: Tile, kernel: usize) -> Option<Self> {
        if (tile == Tile::NONE) != (kernel == 1) {
            return None;
        }
        let rest = kernel.saturating_sub(tile.taps());
        // Filters that follow each other at m taps must overlap or touch.
        if rest > 0 && tile.taps() < tile.outputs {
            return None;
        }
        Some(Self { tile, count: 1 + rest.div_ceil(tile.outputs), kernel })
    }

    /// The taps of filter `i`: every tap is in one filter.
    pub(super) fn taps(&self, i: usize) -> core::ops::Range<usize> {
        let end = if i + 1 == self.count { self.kernel } else { (i + 1) * self.tile.outputs };
        i * self.tile.outputs..end
    }
}

/// A kernel, and the filters on both axes.
pub(super) struct Scheme<T: Real> {
    pub(super) kernel: &'static WinogradKernel<T>,
    pub(super) down: Parts,
    pub(super) along: Parts,
}

impl<T: Real> Clone for Scheme<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Real> Copy for Scheme<T> {}

impl<T: Real> Scheme<T> {
    /// The scheme of a kernel, if it suits the layer.
    pub(super) fn new(kernel: &'static WinogradKernel<T>, roles: &Roles) -> Option<Self> {
        let down = Parts::new(kernel.down(), roles.down.kernel)?;
        let along = Parts::new(kernel.along(), roles.along.kernel)?;
        Some(Self { kernel, down, along })
    }

    /// Whether the tables of steps of k are of a moderate size.
    pub(super) fn has_few_steps(&self, view: &View) -> bool {
        let steps = view.channels.checked_mul(self.filters()).and_then(|n| n.checked_mul(view.roles.depth.kernel));
        steps.is_some_and(|steps| steps <= MOST_STEPS)
    }

    /// Filters.
    pub(super) fn filters(&self) -> usize {
        self.down.count * self.along.count
    }

    /// Outputs of the last row of tiles that Y does not have, where that is the same row for all
    /// phases, one filter reads it, and [`Spare`](convoke_kernels::winograd::Spare) has the tile's
    /// points.
    pub(super) fn spare(&self, roles: &Roles) -> usize {
        let outputs = self.down.tile.outputs;
        let is_even = self.down.tile.values.is_multiple_of(2);
        if self.down.count > 1 || phases(&roles.down) > 1 || !is_even {
            0
        } else {
            roles.down.output.next_multiple_of(outputs) - roles.down.output
        }
    }

    /// Rows and columns of tiles of the output, of its first phase, which is the largest.
    pub(super) fn grid(&self, roles: &Roles) -> (usize, usize) {
        let tiles = |axis: &Axis, outputs: usize| axis.output.div_ceil(phases(axis)).div_ceil(outputs);
        (tiles(&roles.down, self.down.tile.outputs), tiles(&roles.along, self.along.tile.outputs))
    }
}

/// Elements that [`spread`] adds, at the most, and a vector.
pub(super) const MOST_PADDING: usize = 16 * 8 + 32;

/// From one plane of values to the next, for `len` elements: with room for a whole vector behind
/// the last, and such that equal places of the planes fall into different sets of the L1 cache (the
/// distance in lines is odd; 3 modulo 8 measured best).
pub(super) fn spread(len: usize, lanes: usize) -> usize {
    let lines = (len + lanes).div_ceil(16);
    (lines + (11 - lines % 8) % 8) * 16
}

/// Steps of k for one value of a tile, at the most: K is not blocked, and its tables of offsets are
/// made for each plan.
const MOST_STEPS: usize = 1 << 13;

/// Values of a tile beyond which the error leaves `Accuracy::Standard`: 8x8 do, where 6x8 keep half
/// of its bound.
pub(super) const STANDARD_VALUES: usize = 48;

/// Whether tiles' outputs do not fill the rows of pixels that are stored.
pub(super) fn is_ragged<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    !kernel.lanes().is_multiple_of(kernel.along().outputs)
}

/// Whether tiles of several rows for the same taps fill them: then a large Y is better written by
/// those, a whole cache line at a time, past the caches (yolov5's stem took 1.7 times as long by
/// F(4x5, 3x3), 64 channels at 256x256 1.16, 320 at 64x64 1.06).
pub(super) fn has_whole_rows<T: Real>(kernel: &WinogradKernel<T>) -> bool {
    let (down, along) = (kernel.down(), kernel.along());
    let is_other = |other: &WinogradKernel<T>| {
        !is_ragged(other) && (other.down().taps(), other.along().taps()) == (down.taps(), along.taps())
    };
    down.outputs > 1 && winograd_kernels::<T>(kernel.isa()).iter().any(is_other)
}

/// Strides whose phases become channels, at the most: those of published networks' kernels of twice
/// their length. (Tables of phases are on the stack.)
pub(super) const MOST_STRIDE: usize = 16;
