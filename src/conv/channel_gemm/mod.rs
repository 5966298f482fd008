//! GEMM with vectors along output channels: for few output positions, where vectors along positions
//! would be half empty.
//!
//! - [`conv`]: Conv, with output positions as pixels.
//! - [`images`]: Conv with images as pixels, where the kernel covers X.
//! - [`accumulate`]: ConvTranspose, with the taps accumulated in place.
//!
//! Both kinds of Conv can use the same packed weights ([`weights`]). All share the tiles
//! ([`channel_tiles`](super::channel_tiles)).

mod accumulate;
mod conv;
mod images;
mod last_steps;
mod source;
mod taps;
mod weights;

pub(super) use weights::ChannelWeights;

use super::contract::{Answer, Request};
use crate::{Element, Op};

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    match request.geometry.op {
        Op::ConvTranspose => accumulate::offer(request, most_bytes),
        // As pixels of one image, a kernel that covers X would read its weights for each image.
        Op::Conv if images::is_covered(request.geometry) => images::offer(request, most_bytes),
        Op::Conv => conv::offer(request, most_bytes),
    }
}
