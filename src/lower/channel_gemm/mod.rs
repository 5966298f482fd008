//! GEMM with vectors along output channels: for few output positions, where vectors along
//! positions would run half empty.
//!
//! - [`conv`]: Conv, with output positions as pixels.
//! - [`images`]: with images as pixels, where the kernel covers X; and for ConvTranspose of a single
//!   position.
//!
//! Both share how weights are packed ([`weights`]), so that weights serve both, and the tiles
//! ([`channel_tiles`](super::channel_tiles)).

mod conv;
mod images;
mod last_steps;
mod source;
mod taps;
mod weights;

use alloc::string::String;

use super::contract::{Answer, Request};
use crate::{Element, Geometry, Op};

/// Every Conv, and a ConvTranspose of one position whose kernel covers Y.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    match geometry.op {
        Op::Conv => Ok(()),
        Op::ConvTranspose => images::accepts(geometry),
    }
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    // Pixel by pixel, a kernel that covers X would read its weights once for each image.
    match images::accepts(request.geometry) {
        Ok(()) => images::offer(request, most_bytes),
        Err(_) => conv::offer(request, most_bytes),
    }
}
