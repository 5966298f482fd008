//! Conv, and ConvTranspose by phases, by Winograd's minimal filtering, fused by blocks of tiles.
//!
//! A tile of m x m outputs takes n x n products for each pair of channels, n = m + r - 1, instead
//! of m x m x r x r: with F(4x4, 3x3) 36 instead of 144. For each of the n x n values, the products
//! are a GEMM: M = filters of a group, N = tiles, K = C/group (times the taps of the depth axis,
//! and times the filters that a longer kernel is cut into). A task has a block of tiles, whose
//! transformed values stay in the L2 cache. It transforms the block for all channels. Then, for
//! each panel of filters or for some panels together, it multiplies all values and takes the
//! products back into Y. Where an outer axis has taps, it does so in turns of some slices of Y.
//!
//! Accepts Conv and ConvTranspose with one to three spatial axes. The last two have more than one
//! tap together. The outermost of three axes has no dilation, and its taps are steps of k. There
//! are at most [`MOST_STEPS`](view::MOST_STEPS) steps, counted over all filters.
//!
//! * [`conv`]: on the last two axes a stride is at most [`MOST_STRIDE`](view::MOST_STRIDE), shorter
//!   than the kernel, and without dilation; its phases are channels. The outermost of three axes
//!   may have any stride. A layer with dilation d is d interleaved layers on each of the last two
//!   axes.
//! * [`transposed`]: the phases of the strides are filters over the same tiles. There is no
//!   dilation, pads at the beginning crop less than a tap's reach, and the phases along the last
//!   axis fill whole vectors.
//!
//! Both are a [`WinogradOperator`](operator::WinogradOperator) over the same
//! [core](common::WinogradCore). The scratch of a task is the transformed values of one block,
//! `values * C/group * tiles` (for each slice of X that is seen), and the products of the panels and
//! slices that are multiplied together; with a stride also the block's rows of one channel. It does
//! not depend on the image's height and width, and only up to a limit on its depth.
//!
//! Some products are zero, and are left out: those of filters that are zero ([`steps`]), and those
//! that only outputs beyond Y's end need ([`Spare`](convoke_kernels::winograd::Spare)).
//!
//! Sums of products of transformed values err more than direct sums, and NaN and infinities spread
//! over a tile. So tiles whose results are not finite are computed again directly. Where weights
//! are not finite, all tiles are.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the
//! transforms are in `convoke_kernels::winograd`.

mod block_size;
mod blocks;
mod cells;
mod choice;
mod common;
mod conv;
mod direct;
mod estimate;
mod input;
mod lowering;
mod operator;
mod pack;
mod products;
mod recipe;
mod runs;
mod scheme;
mod scratch;
mod shares;
mod steps;
mod tables;
mod together;
mod transposed;
mod view;

use alloc::string::String;

use super::contract::{Answer, Request};
use crate::choice::Accuracy;
use crate::element::Element;
use crate::{Geometry, Op};

/// Every Conv and ConvTranspose that is a convolution of stride 1 over tiles.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    match geometry.op {
        Op::Conv => conv::accepts(geometry),
        Op::ConvTranspose => transposed::accepts(geometry),
    }
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    if request.accuracy == Accuracy::Strict {
        return Err(String::from("errs more than direct sums, which Accuracy::Strict excludes"));
    }
    match request.geometry.op {
        Op::Conv => conv::offer(request, most_bytes),
        Op::ConvTranspose => transposed::offer(request, most_bytes),
    }
}
