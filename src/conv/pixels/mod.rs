//! Algorithms that see tensors as pixels, whose channels are neighbours: an indirect convolution (Dukhan, "The
//! Indirect Convolution Algorithm", 2019), for Conv and ConvTranspose.
//!
//! A table says where each pixel of a tile reads X through each tap ([`taps`]), so that X is read in place,
//! and padding is a row of zeros. Where X has another layout, another type than sums, or too few channels for
//! a tap, a task reads a copy of its part ([`source`]).
//!
//! - [`gemm`]: vectors run along output channels. M = output pixels, K = taps * C/group, N = M/group. The
//!   weights are those of `channel-gemm`.
//! - [`depthwise`]: vectors run along channels, which X and Y have in common. Its tiles have pixels of one row, whose
//!   columns are equally far apart: a table of rows takes the place of that of pixels ([`rows`]).
//! - [`dot`]: as `gemm` for bytes, and as `depthwise` for groups of few channels. [`bytes`] copies X for both.

mod bytes;
mod chunk;
pub(super) mod depthwise;
pub(crate) mod dot;
pub(super) mod gemm;
mod row_units;
mod rows;
mod source;
mod taps;
mod tiling;

pub(super) use self::source::widen_pixels;
