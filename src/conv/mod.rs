//! The lowerings: each file or folder is one way to turn a convolution into calls of kernels.
//!
//! A lowering answers a [`contract::Request`] with an offer or with the reason why not. The offer,
//! once taken, becomes a [`contract::Lowering`], which splits the output into independent tasks. To
//! add one: its file here, and its line in `registry::list`. `docs/design.md` has all steps.

mod channel_gemm;
mod channel_tiles;
pub(crate) mod channel_weights;
mod col2im;
pub(crate) mod contract;
mod depthwise;
mod depthwise_transposed;
pub(crate) mod exact;
mod gemm;
mod grouped;
mod im2col;
pub(crate) mod layout;
pub(crate) mod macro_kernel;
mod panels;
pub(crate) mod pixels;
mod planes;
pub(crate) mod registry;
mod shares;
pub(crate) mod store;
mod transposed;
mod view;
mod winograd;
