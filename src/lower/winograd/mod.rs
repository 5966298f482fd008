//! Conv, and ConvTranspose by phases, by Winograd's minimal filtering, fused by blocks of tiles.
//!
//! A tile of m x m outputs takes n x n products for each pair of channels, n = m + r - 1, instead
//! of m x m x r x r: with F(4x4, 3x3) 36 instead of 144. For each of the n x n values, the products
//! are a GEMM: M = filters of a group, N = tiles, K = C/group (times taps of the depth axis, and
//! times filters that a longer kernel is cut into). The order is by blocks of tiles, so that their
//! transformed values stay in the L2 cache: transform the block for all channels; then for each
//! panel of filters, or some of them together, multiply all values, and take the products back into
//! Y.
//!
//! Accepts Conv with one to three spatial axes; the outermost of three may have a stride, and no
//! dilation: its taps are steps of k, of which there are at most 8192. A layer with dilation d is d
//! interleaved ones on each axis; with a stride, phases of X are channels ([`conv`]). Of
//! ConvTranspose, the phases of the strides are filters of their own over the same tiles
//! ([`transposed`]). What is common to both is here; what tells them apart is a [`Layer`]. Scratch
//! for a task: the transformed values of one block, `values * C/group * tiles` (for each tap of the
//! depth axis), the products of those panels, and of a stride the block's rows of one channel:
//! independent of the image's size.
//!
//! Not all products are computed: those whose filters are zero ([`steps`]), and those that Y's end
//! makes zero ([`Spare`](convoke_kernels::winograd::Spare)), are left out.
//!
//! Sums of products of transformed values err more than direct sums, and NaN and infinities spread
//! over a tile. So tiles whose results are not finite are computed again directly, and all tiles
//! are where weights are not finite.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the
//! transforms are in `convoke_kernels::winograd`.

mod blocks;
mod choice;
mod conv;
mod direct;
mod fused;
mod input;
mod pack;
mod shape;
mod shares;
mod steps;
mod transposed;

use alloc::string::String;

use super::contract::{Answer, Request};
use crate::Op;
use crate::choice::Accuracy;
use crate::element::Element;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    if request.accuracy == Accuracy::Strict {
        return Err(String::from("errs more than direct sums, which Accuracy::Strict excludes"));
    }
    if request.geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    match request.geometry.op {
        Op::Conv => conv::offer(request),
        Op::ConvTranspose => transposed::offer(request),
    }
}
