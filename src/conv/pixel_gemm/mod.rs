//! GEMM for tensors with channels last: an indirect convolution (Dukhan, "The Indirect Convolution
//! Algorithm", 2019), for Conv and ConvTranspose.
//!
//! M = output pixels, K = taps * C/group, N = M/group. Vectors run along output channels. A table says where
//! each pixel of a tile reads X through each tap ([`taps`]), so that X is read in place, and padding is a row
//! of zeros. Where X has another type than sums, or too few channels for a tap, a task reads a copy of its
//! rows ([`source`]).
//!
//! The weights are those of `channel-gemm`: panels of output channels, K in blocks of channels, then taps,
//! then channels of the block.

mod lowering;
mod plan;
mod source;
mod taps;

pub(crate) use plan::offer;
