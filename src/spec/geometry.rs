//! The sizes of a convolution, all known and checked.

use alloc::vec::Vec;
use core::fmt;

use super::axis::Axis;
use super::op::{MAX_SIZE, Op};
use crate::error::{Error, bail};

/// The most elements that a tensor may have. With 8 bytes each they still fit an allocation.
const MAX_ELEMENTS: usize = MAX_SIZE / 8;

/// The sizes of one convolution on one input shape: plain numbers, all checked.
///
/// [`Conv::geometry`](super::Conv::geometry) and
/// [`ConvTranspose::geometry`](super::ConvTranspose::geometry) return it, within these bounds:
/// - X, W and Y have at most `isize::MAX / 8` elements each, so that they can be addressed in any
///   element type. A tensor with a dimension of 0 has no elements, however large the other
///   dimensions are.
/// - The product of the spatial sizes, and the elements of one filter (W without its first axis),
///   keep the same bound, even if another dimension is 0.
///
/// The fields are public for reading. The methods do not check them again: if a geometry was made
/// by hand and breaks these bounds, lengths are `usize::MAX`.
///
/// ```
/// let g = convoke::Conv::new([6, 2, 3, 3]).group(2).geometry(&[1, 4, 8, 8])?;
/// assert_eq!(g.output_shape(), [1, 6, 6, 6]);
/// assert_eq!((g.in_channels_per_group(), g.out_channels_per_group()), (2, 3));
/// assert_eq!(g.macs(), 6 * 36 * 2 * 9);
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// The operator.
    pub op: Op,
    /// N, the batch.
    pub batch: usize,
    /// Number of groups, at least 1.
    pub group: usize,
    /// C, the input channels of all groups.
    pub in_channels: usize,
    /// M, the output channels of all groups.
    pub out_channels: usize,
    /// The spatial axes, outermost first; at least one.
    pub axes: Vec<Axis>,
    /// How X lies in memory.
    pub x_layout: Layout,
    /// How Y lies in memory.
    pub y_layout: Layout,
}

/// How a tensor lies in memory.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// `(N, C, spatial...)`, as in ONNX.
    #[default]
    ChannelsFirst,
    /// `(N, spatial..., C)`: NHWC, PyTorch's `channels_last`. The channels of a pixel are neighbours.
    ChannelsLast,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelsFirst => "channels first",
            Self::ChannelsLast => "channels last",
        })
    }
}

/// Elements from an image, a channel and a position of a tensor to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strides {
    pub(crate) image: usize,
    pub(crate) channel: usize,
    pub(crate) position: usize,
}

impl Strides {
    /// Those of a tensor whose pixels are `pixel` elements apart. Channels first have no such distance, unless
    /// an image is one pixel.
    pub(crate) fn new(layout: Layout, channels: usize, positions: usize, pixel: usize) -> Self {
        match layout {
            Layout::ChannelsFirst if positions != 1 => {
                Self { image: channels.saturating_mul(positions), channel: positions, position: 1 }
            }
            _ => Self { image: positions.saturating_mul(pixel), channel: 1, position: pixel },
        }
    }

    /// Where an element lies.
    #[inline]
    pub(crate) fn at(&self, image: usize, channel: usize, position: usize) -> usize {
        image * self.image + channel * self.channel + position * self.position
    }

    /// Elements from the first to the last one of a tensor. None if the address space is smaller.
    pub(crate) fn span(&self, images: usize, channels: usize, positions: usize) -> Option<usize> {
        if [images, channels, positions].contains(&0) {
            return Some(0);
        }
        let dims = [(images, self.image), (channels, self.channel), (positions, self.position)];
        let last =
            dims.into_iter().try_fold(0_usize, |last, (len, step)| last.checked_add((len - 1).checked_mul(step)?));
        last?.checked_add(1)
    }
}

impl Geometry {
    /// The shape of X: (N, C, D1, D2, ...).
    #[must_use]
    pub fn input_shape(&self) -> Vec<usize> {
        shape(self.batch, self.in_channels, self.input_sizes())
    }

    /// The shape of Y: (N, M, O1, O2, ...).
    #[must_use]
    pub fn output_shape(&self) -> Vec<usize> {
        shape(self.batch, self.out_channels, self.output_sizes())
    }

    /// The shape of W: (M, C/group, k1, k2, ...) for Conv, (C, M/group, k1, k2, ...) for
    /// ConvTranspose.
    #[must_use]
    pub fn weight_shape(&self) -> Vec<usize> {
        let [first, second] = self.weight_channels();
        shape(first, second, self.kernel_sizes())
    }

    /// Elements of B, which is M.
    #[must_use]
    pub fn bias_len(&self) -> usize {
        self.out_channels
    }

    /// Elements of X.
    #[must_use]
    pub fn input_len(&self) -> usize {
        saturating(elements([self.batch, self.in_channels].into_iter().chain(self.input_sizes())))
    }

    /// Elements of Y.
    #[must_use]
    pub fn output_len(&self) -> usize {
        saturating(elements([self.batch, self.out_channels].into_iter().chain(self.output_sizes())))
    }

    /// Elements of W.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        saturating(elements(self.weight_channels().into_iter().chain(self.kernel_sizes())))
    }

    /// Elements of one channel of one image in X: the product of the spatial sizes.
    #[must_use]
    pub fn input_spatial(&self) -> usize {
        saturating(elements(self.input_sizes()))
    }

    /// Elements of one channel of one image in Y: the product of the spatial sizes.
    #[must_use]
    pub fn output_spatial(&self) -> usize {
        saturating(elements(self.output_sizes()))
    }

    /// Where an element of X lies in its layout, by its image, its channel and its position in the channel.
    #[must_use]
    pub fn input_offset(&self, image: usize, channel: usize, position: usize) -> usize {
        self.input_strides().at(image, channel, position)
    }

    /// The same of Y.
    #[must_use]
    pub fn output_offset(&self, image: usize, channel: usize, position: usize) -> usize {
        self.output_strides().at(image, channel, position)
    }

    /// The image, the channel and the position of element `index` of Y, in its layout.
    #[must_use]
    pub fn output_place(&self, index: usize) -> (usize, usize, usize) {
        let (positions, channels) = (self.output_spatial(), self.out_channels);
        let (outer, inner) = match self.y_layout {
            Layout::ChannelsFirst => (index / positions, index % positions),
            Layout::ChannelsLast => (index / channels, index % channels),
        };
        match self.y_layout {
            Layout::ChannelsFirst => (outer / channels, outer % channels, inner),
            Layout::ChannelsLast => (outer / positions, inner, outer % positions),
        }
    }

    pub(crate) fn input_strides(&self) -> Strides {
        Strides::new(self.x_layout, self.in_channels, self.input_spatial(), self.in_channels)
    }

    pub(crate) fn output_strides(&self) -> Strides {
        Strides::new(self.y_layout, self.out_channels, self.output_spatial(), self.out_channels)
    }

    /// Checks that a tensor of `len` elements has as many as its shape asks for. `shape` is called only for the
    /// message: it allocates, which a run must not do.
    pub(crate) fn check_len(
        &self,
        name: &str,
        len: usize,
        expected: usize,
        shape: impl FnOnce() -> Vec<usize>,
    ) -> Result<(), Error> {
        if len != expected {
            let shape = shape();
            bail!(BufferLength, "{}: {name} has {len} elements, its shape {shape:?} asks for {expected}", self.op);
        }
        Ok(())
    }

    /// Taps of the kernel: the product of its spatial sizes.
    #[must_use]
    pub fn kernel_volume(&self) -> usize {
        saturating(elements(self.kernel_sizes()))
    }

    /// C / group.
    #[must_use]
    pub fn in_channels_per_group(&self) -> usize {
        self.in_channels / self.group
    }

    /// M / group.
    #[must_use]
    pub fn out_channels_per_group(&self) -> usize {
        self.out_channels / self.group
    }

    /// Multiply-adds by the definition, each of two floating-point operations. This is the usual
    /// measure of work.
    ///
    /// Conv: `N * M * (C / group) * kernel volume * output spatial`. ConvTranspose: `N * M * (C /
    /// group) * kernel volume * input spatial`. Products with padding, and products that are cut
    /// off, count too.
    #[must_use]
    pub fn macs(&self) -> u128 {
        let positions = match self.op {
            Op::Conv => self.output_spatial(),
            Op::ConvTranspose => self.input_spatial(),
        };
        let factors = [self.batch, self.out_channels, self.in_channels_per_group(), self.kernel_volume(), positions];
        // Positive factors have a product below 2^120, because they are elements of W times
        // elements of X or Y. If a factor is 0, the others may saturate before the product
        // becomes 0.
        factors.into_iter().fold(1, |product: u128, factor| product.saturating_mul(factor as u128))
    }

    /// Checks the shape of B: one dimension of M elements.
    ///
    /// # Errors
    /// [`InvalidShape`](crate::ErrorKind::InvalidShape) for another rank (also for a scalar) or
    /// another length.
    pub fn validate_bias(&self, dims: &[usize]) -> Result<(), Error> {
        let (op, m) = (self.op, self.out_channels);
        match *dims {
            [len] if len == m => Ok(()),
            [len] => bail!(InvalidShape, "{op}: B has {len} elements, must have M = {m}"),
            _ => bail!(InvalidShape, "{op}: B has {} dimensions (shape {dims:?}), must have 1: [{m}]", dims.len()),
        }
    }

    fn input_sizes(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().map(|axis| axis.input)
    }

    fn output_sizes(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().map(|axis| axis.output)
    }

    fn kernel_sizes(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().map(|axis| axis.kernel)
    }

    /// The first two dimensions of W.
    fn weight_channels(&self) -> [usize; 2] {
        match self.op {
            Op::Conv => [self.out_channels, self.in_channels_per_group()],
            Op::ConvTranspose => [self.in_channels, self.out_channels_per_group()],
        }
    }

    /// The last step of validation: checks the bounds that the type's documentation promises.
    pub(super) fn bounded(self) -> Result<Self, Error> {
        let filter = elements([self.weight_channels()[1]].into_iter().chain(self.kernel_sizes()));
        let checks = [
            ("X", self.input_shape(), [self.input_len(), self.input_spatial()]),
            ("W", self.weight_shape(), [self.weight_len(), saturating(filter).max(self.kernel_volume())]),
            ("Y", self.output_shape(), [self.output_len(), self.output_spatial()]),
        ];
        for (name, shape, lengths) in checks {
            if lengths.into_iter().any(|len| len > MAX_ELEMENTS) {
                bail!(
                    Overflow,
                    "{}: {name} of shape {shape:?} exceeds the address space: more than {MAX_ELEMENTS} elements",
                    self.op
                );
            }
        }
        Ok(self)
    }
}

fn shape(first: usize, second: usize, spatial: impl Iterator<Item = usize>) -> Vec<usize> {
    [first, second].into_iter().chain(spatial).collect()
}

/// The product of dimensions. It is 0 if one of them is 0, and `None` if it does not fit.
fn elements(dims: impl Iterator<Item = usize>) -> Option<usize> {
    let mut product = Some(1_usize);
    for dim in dims {
        if dim == 0 {
            return Some(0);
        }
        product = product.and_then(|p| p.checked_mul(dim));
    }
    product
}

fn saturating(elements: Option<usize>) -> usize {
    elements.unwrap_or(usize::MAX)
}
