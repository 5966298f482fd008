//! What a caller can choose: algorithm, BLAS and accuracy.

use core::fmt;
use core::str::FromStr;

use crate::Op;
use crate::error::{Error, bail};

/// A GEMM implementation behind the materialised lowerings.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blas {
    /// This crate's own.
    Native,
    /// The `gemm` crate (feature `blas-gemm`).
    Gemm,
    /// The `matrixmultiply` crate (feature `blas-matrixmultiply`).
    Matrixmultiply,
}

/// A way to compute a convolution.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Conv of strides up to 16, and ConvTranspose by phases of the stride: Winograd's minimal
    /// filtering, fused by blocks of tiles.
    Winograd,
    /// Conv with a 1x1 kernel of stride 1 without padding: GEMM on X as it stands.
    Pointwise,
    /// Conv: GEMM on shifted views of a padded copy of a block of X; the im2col matrix is never
    /// made.
    ImplicitGemm,
    /// Conv: as `ImplicitGemm`, with vectors along output channels instead of output positions, or with
    /// images in place of positions where the kernel covers X. ConvTranspose of a single position of X
    /// whose kernel covers Y exactly.
    ChannelGemm,
    /// Conv: tiles of the im2col matrix are made, and multiplied by a BLAS.
    Im2col(Blas),
    /// ConvTranspose: phases of the stride, each an ordinary convolution of stride 1; the output
    /// is written once, with the phases interleaved.
    Transposed,
    /// ConvTranspose: GEMM by a BLAS, then the columns are added into the output.
    Col2im(Blas),
    /// Both operators: the loops of the definition, summed in f64.
    Naive,
    /// Conv with few input channels a group: tiles of output rows, summed directly from X, or
    /// from padded planes of it.
    Depthwise,
    /// Conv with few channels a group, whose output rows are as long as those of X or of its
    /// phases: tiles of several output channels, summed directly from X, or, with strides, from a
    /// plane for each phase.
    Grouped,
    /// Depthwise ConvTranspose of stride 2 with a short kernel: all phases of an output row
    /// together, straight from X.
    Upsample,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Winograd,
        Self::Pointwise,
        Self::ImplicitGemm,
        Self::ChannelGemm,
        Self::Im2col(Blas::Native),
        Self::Im2col(Blas::Gemm),
        Self::Im2col(Blas::Matrixmultiply),
        Self::Transposed,
        Self::Col2im(Blas::Native),
        Self::Col2im(Blas::Gemm),
        Self::Col2im(Blas::Matrixmultiply),
        Self::Naive,
        Self::Depthwise,
        Self::Grouped,
        Self::Upsample,
    ];

    /// The name used in reports and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Winograd => "winograd",
            Self::Pointwise => "pointwise",
            Self::ImplicitGemm => "implicit-gemm",
            Self::ChannelGemm => "channel-gemm",
            Self::Im2col(Blas::Native) => "im2col:native",
            Self::Im2col(Blas::Gemm) => "im2col:gemm",
            Self::Im2col(Blas::Matrixmultiply) => "im2col:matrixmultiply",
            Self::Transposed => "transposed",
            Self::Col2im(Blas::Native) => "col2im:native",
            Self::Col2im(Blas::Gemm) => "col2im:gemm",
            Self::Col2im(Blas::Matrixmultiply) => "col2im:matrixmultiply",
            Self::Naive => "naive",
            Self::Depthwise => "depthwise",
            Self::Grouped => "grouped",
            Self::Upsample => "upsample",
        }
    }

    /// The operator that the algorithm is for; none if it is for both.
    pub(crate) fn only_for(self) -> Option<Op> {
        match self {
            Self::Winograd | Self::ChannelGemm | Self::Naive => None,
            Self::Transposed | Self::Col2im(_) | Self::Upsample => Some(Op::ConvTranspose),
            Self::Pointwise | Self::ImplicitGemm | Self::Im2col(_) | Self::Depthwise | Self::Grouped => Some(Op::Conv),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// The algorithm of a [name](Algorithm::name), in upper or lower case.
    fn from_str(s: &str) -> Result<Self, Error> {
        match Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(s)) {
            Some(algorithm) => Ok(algorithm),
            None => {
                let names = Self::ALL.map(Self::name).join(", ");
                bail!(Unavailable, "unknown algorithm {s:?}: expected one of {names}")
            }
        }
    }
}

/// How much rounding error may be traded for speed.
///
/// The error of a direct sum of K products is at most about `K * u * sum |x||w|`, with u the unit
/// round-off of the type that sums (2^-24 for `f32` and the 16-bit types, 2^-53 for `f64`). Each
/// output has its own sum, and products with zeros add nothing.
///
/// Winograd's outputs have errors in proportion to the greatest |x| that their tile reads, also
/// where that x has no weight in the output. In addition to the error of a direct sum,
///
/// ```text
/// error <= c * u * (sum, over the channels of X in the group, of max|x| * sum|w|)
/// c = 600 * (min(K, 192) + K / 192 + 64)      with Fast 2200 in place of 600, with Strict 0
/// ```
///
/// The maximum is over the output's own window in the channel, widened along the last two axes by at
/// most 8 steps on either side: a step is the greater one of stride and dilation, or one element of
/// ConvTranspose's X. The inner sum is over the output's weights for the channel.
/// [`reference::transform_tolerance`](crate::reference::transform_tolerance) computes this bound and
/// has its proof. It holds for all finite operands. Underflow adds at most 1e-38 (`f64`: 1e-316)
/// times the total of K, the sum of max|x| and the sum of |w|. Plans for weights that were packed under
/// `Fast` have its bound.
///
/// The bound is for the worst data that there can be. Usual data stay far below it: for normal and
/// uniform numbers, and for what a ReLU leaves of them, the greatest error in `f32` was below 5e-5 of
/// the output's root mean square in `Standard` and 1e-4 in `Fast`, with up to 2048 channels. This is
/// a measurement, which tests repeat, and no promise.
///
/// Where magnitudes in X differ widely, as in one-hot masks, sparse sensors or padding with large
/// values, small outputs near large inputs may have few correct digits or none. A pixel of 1e10 among
/// zeros makes outputs beside it, whose windows have zeros only, come out as some 1e10 * 1e-7 * |w|
/// instead of 0. Where such outputs matter, choose `Strict`.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accuracy {
    /// Direct sums of products only.
    Strict,
    /// Direct sums, and Winograd with tiles of up to 48 values, such as F(4x4, 3x3).
    #[default]
    Standard,
    /// The same, and Winograd with tiles of 8x8 values, F(6x6, 3x3) and F(4x4, 5x5), whose errors are
    /// two to four times as large.
    Fast,
}
