//! GEMM with vectors along output channels: for few output positions, where vectors along
//! positions would run half empty.
//!
//! Four algorithms share how weights are packed ([`weights`]), how a tile is finished
//! ([`last_steps`]), and the tiles themselves ([`channel_tiles`](super::channel_tiles)). The
//! first three are for Conv, and weights that one of them packs serve the other two.
//!
//! - [`padded`]: on padded planes.
//! - [`unpadded`]: on the rows of X, with products of padding left out.
//! - [`images`]: with images as pixels, where the kernel covers X.
//! - [`added`]: for ConvTranspose, with the taps added in place.

pub(super) mod added;
pub(super) mod images;
mod last_steps;
pub(super) mod padded;
pub(super) mod unpadded;
mod weights;
