//! A layer as Winograd's algorithm sees it: a convolution of stride 1.

use alloc::string::String;
use core::ops::Range;

use crate::Axis;

/// The longest stride of Conv whose phases become channels. Published networks have kernels of twice
/// such a stride. It bounds tables on the stack.
pub(super) const MOST_STRIDE: usize = 16;
/// Steps of k of a value, at most. K is not blocked, and each plan has tables with an entry for each
/// step.
pub(super) const MOST_STEPS: usize = 1 << 13;

/// A convolution of stride 1 on the axes of the tiles. The phases of strides are channels of Conv, and
/// filters of ConvTranspose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WinogradView {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of a group. Conv with strides has one for each phase down, phase along, and channel of X, in that order.
    pub(super) channels: usize,
    /// Conv's strides, down and along.
    pub(super) strides: [usize; 2],
    /// Taps of the layer's own kernel, down and along. A phase of a stride has some of them.
    pub(super) taps: [usize; 2],
    pub(super) filters: usize,
    pub(super) stores: PixelStores,
    pub(super) roles: AxisRoles,
    /// Whether X has its channels last: then vectors of channels are transformed.
    pub(super) reads_pixels: bool,
}

/// How pixels get into Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PixelStores {
    /// Filters are channels of Y, whose rows are stored.
    Rows,
    /// The same, but Y is so large that it is written past the caches.
    RowsPastCache,
    /// Filters are channels of Y, whose pixels are stored: their channels are neighbours.
    Pixels,
    /// Filters are phases of ConvTranspose, and are interleaved.
    Interleaved,
}

impl WinogradView {
    /// Channels of X of a group, which each phase of the strides has.
    pub(super) fn channels_of_phase(&self) -> usize {
        self.channels / (self.strides[0] * self.strides[1])
    }

    /// Elements of a pixel of X as kernels with `lanes` lanes read it: a vector at least.
    pub(super) fn pixel(&self, lanes: usize) -> usize {
        self.channels_of_phase().max(lanes)
    }

    /// The number of the row of transformed tiles that a channel has. Rows are ordered by phase down, channel of X, and
    /// phase along, because a row of X is taken apart into all phases along.
    pub(super) fn row_of_v(&self, channel: usize) -> usize {
        let (channels, stride) = (self.channels_of_phase(), self.strides[1]);
        let (phase, c) = (channel / channels, channel % channels);
        (phase / stride * channels + c) * stride + phase % stride
    }

    /// The taps of phase `phase` of the stride on an axis (0 is down, 1 along).
    pub(super) fn phase_taps(&self, axis: usize, phase: usize) -> usize {
        self.taps[axis].saturating_sub(phase).div_ceil(self.strides[axis])
    }

    /// Checks that the steps of k are not too many for a tile that takes the whole kernel. Smaller tiles
    /// add steps for each filter, which is checked when the tile is chosen.
    ///
    /// # Errors
    /// The number of steps.
    pub(super) fn check_steps(&self) -> Result<(), String> {
        let (channels, taps) = (self.channels, self.roles.depth.kernel);
        match channels.checked_mul(taps) {
            Some(steps) if steps <= MOST_STEPS => Ok(()),
            _ => Err(alloc::format!(
                "{channels} channels times {taps} taps of an outer axis are too many, at most {MOST_STEPS} steps can be"
            )),
        }
    }
}

/// The axes of a layer by their roles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AxisRoles {
    /// The outer axis of three. Its taps are steps of k, over slices that are transformed once.
    pub(super) depth: Axis,
    /// The axes that tiles lie on.
    pub(super) down: Axis,
    pub(super) along: Axis,
}

impl AxisRoles {
    /// # Errors
    /// The rule that the axes break.
    pub(super) fn new([depth, down, along]: [Axis; 3]) -> Result<Self, String> {
        if depth.dilation != 1 && depth.kernel != 1 {
            let dilation = depth.dilation;
            return Err(alloc::format!(
                "spatial axis 0 has dilation {dilation}, only 1 can be on the outermost of three"
            ));
        }
        if down.kernel == 1 && along.kernel == 1 {
            return Err(String::from("along the last two spatial axes there is one tap, more are needed"));
        }
        Ok(Self { depth, down, along })
    }

    /// Tasks of the outer axis. If it has taps, its slices share what is transformed, and are one task.
    pub(super) fn depth_tasks(&self) -> usize {
        if self.depth.kernel == 1 { self.depth.output } else { 1 }
    }

    pub(super) fn sub_images(&self, batch: usize) -> usize {
        batch * phases(&self.down) * phases(&self.along)
    }
}

/// Three axes, with [`Axis::UNIT`] for those that a layer lacks.
///
/// # Errors
/// The number of axes, if they are more.
pub(super) fn three(axes: &[Axis]) -> Result<[Axis; 3], String> {
    match *axes {
        [along] => Ok([Axis::UNIT, Axis::UNIT, along]),
        [down, along] => Ok([Axis::UNIT, down, along]),
        [depth, down, along] => Ok([depth, down, along]),
        _ => Err(alloc::format!("{} spatial axes, only one to three can be", axes.len())),
    }
}

/// The number of phases of an axis: a layer of dilation d is d interleaved layers, and at most as many
/// as there are outputs.
pub(super) fn phases(axis: &Axis) -> usize {
    distance(axis).min(axis.output)
}

/// The distance of neighbours of a phase.
pub(super) fn distance(axis: &Axis) -> usize {
    if axis.kernel == 1 { 1 } else { axis.dilation }
}

/// The outputs of an image in one phase of the dilations. Each is treated as an image of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubImage {
    pub(super) image: usize,
    pub(super) down: WinogradPhase,
    pub(super) along: WinogradPhase,
}

impl SubImage {
    /// The phases of an image follow each other.
    pub(super) fn new(roles: &AxisRoles, index: usize) -> Self {
        let (rest, phase_along) = (index / phases(&roles.along), index % phases(&roles.along));
        let (image, phase_down) = (rest / phases(&roles.down), rest % phases(&roles.down));
        Self {
            image,
            down: WinogradPhase::new(&roles.down, phase_down),
            along: WinogradPhase::new(&roles.along, phase_along),
        }
    }
}

/// One phase of an axis: the positions from `first` on that are `step` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct WinogradPhase {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) output: usize,
    pad: usize,
    input: usize,
}

impl WinogradPhase {
    /// Phase `first` of a dilation.
    pub(super) fn new(axis: &Axis, first: usize) -> Self {
        let step = distance(axis);
        let output = axis.output.saturating_sub(first).div_ceil(step);
        Self { first, step, output, pad: axis.pad_begin, input: axis.input }
    }

    /// The same positions; or, with a stride over X, those of phase `phase` of it.
    pub(super) fn in_stride(self, axis: &Axis, phase: usize, stride: usize) -> Self {
        if stride == 1 { self } else { Self { first: phase, step: stride, output: axis.output, ..self } }
    }

    /// The element of Y's axis that output `o` is.
    pub(super) fn place(&self, o: usize) -> usize {
        self.first + o * self.step
    }

    /// The positions that are not padding, among `len` padded ones from `begin` on.
    pub(super) fn inside(&self, begin: usize, len: usize) -> Range<usize> {
        let until = |position: usize| position.saturating_sub(self.place(begin)).div_ceil(self.step).min(len);
        let from = until(self.pad);
        from..until(self.pad + self.input).max(from)
    }
}
