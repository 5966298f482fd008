//! What a caller can choose: algorithm, BLAS and accuracy.

use core::fmt;

/// A GEMM implementation behind the materialised lowerings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Blas {
    /// This crate's own.
    Native,
    /// The `gemm` crate (feature `blas-gemm`).
    Gemm,
    /// The `matrixmultiply` crate (feature `blas-matrixmultiply`).
    Matrixmultiply,
}

/// A way to compute a convolution, by its name: to be forced, or to be told. [`all`](Self::all) lists
/// them, and the page on algorithms in the documentation says what each is good for. Which ones there
/// are may change with any version.
///
/// ```
/// use convoke::{Algorithm, Conv, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let im2col: Algorithm = "im2col:native".parse()?;
/// let plan = Planner::new().algorithm(im2col).plan::<f32>(Conv::new([8, 4, 3, 3]), &[1, 4, 16, 16])?;
/// assert_eq!(plan.algorithm(), im2col);
/// assert_eq!(plan.algorithm().to_string(), "im2col:native");
/// assert!("im2row".parse::<Algorithm>().unwrap_err().to_string().contains("expected one of winograd, "));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Algorithm(pub(crate) &'static str);

impl Algorithm {
    /// Fused transforms, which round otherwise than direct sums do.
    pub(crate) const WINOGRAD: Self = Self("winograd");
    /// The loops of the definition, which accept every layer.
    pub(crate) const NAIVE: Self = Self("naive");

    /// The name used in reports and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
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
