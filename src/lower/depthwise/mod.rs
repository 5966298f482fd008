//! Conv with few channels a group, directly: depthwise with any multiplier, and groups of some
//! channels.
//!
//! No GEMM: M/group, K = C/group * kernel volume and the shared operand would be too small. Accepts
//! every Conv with at most [`MOST_CHANNELS`] input channels a group. The last two axes are H and W;
//! those before them are "outer" and, like the channels of a group, just bring more taps (one axis
//! alone is W, or H where vectors run along channels).
//!
//! A unit of work is a strip of H of one outer position of a group, or of several groups where
//! planes are small. Its input is copied into padded planes, split by phases where W has a stride,
//! so that every tap is a shifted view of whole vectors; then tiles of rows are summed from there.
//! Two orientations:
//!
//! * rows: vectors along W. The planes of one channel are a few KiB, and stay in the L1 cache.
//! * channels: vectors along as many groups as a vector has lanes, where rows are too short to fill
//!   vectors.
//!
//! Scratch for a task: the planes, and a strip of sums where kernels cannot store into Y.

mod grid;
mod lowering;
mod plan;
mod planes;
mod sums;

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::catalogue::depthwise_kernels;

use self::grid::{Along, MOST_BYTES};
use self::lowering::Depthwise;
use self::plan::Config;
use super::contract::{Answer, Offer, Request};
use super::layout::WeightLayout;
use crate::element::Element;
use crate::exec::lines_for;
use crate::lower::planes as shared_planes;
use crate::{Axis, Op};

/// Input channels of a group, at the most: with more, GEMM has enough to share.
pub(crate) const MOST_CHANNELS: usize = 32;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if geometry.in_channels_per_group() > MOST_CHANNELS {
        let channels = geometry.in_channels_per_group();
        return Err(alloc::format!("{channels} input channels a group, at most {MOST_CHANNELS} can be"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let kernels = depthwise_kernels::<T::Acc>(request.isa())
        .ok_or_else(|| String::from("no kernels for this instruction set"))?;
    let asked = |along: Along| request.layout.is_none_or(|layout| *layout == WeightLayout::Depthwise { along });
    // The narrow kernels have no stride.
    let fits = |w: &Axis| w.stride == 1 && kernels.narrow().first().is_some_and(|kernel| w.output <= kernel.nr());
    let is_narrow = geometry.axes.last().is_some_and(fits);
    let along_rows = if is_narrow { kernels.narrow() } else { kernels.rows() };
    let candidates = [(Along::Rows, along_rows), (Along::Channels, kernels.channels())];
    // As for one thread: the order of the sums depends on it.
    let alone = Request { threads: 1, ..*request };
    let best = candidates
        .into_iter()
        .filter(|(along, _)| asked(*along))
        .filter_map(|candidate| Some((Config::new(&alone, kernels, candidate, most)?.cycles, candidate)))
        .reduce(|a, b| if b.0 < a.0 { b } else { a });
    let config = best.and_then(|(_, candidate)| Config::new(request, kernels, candidate, most));
    let config = config.ok_or_else(|| shared_planes::too_large(&geometry.axes, MOST_BYTES))?;
    Ok(Offer::old(
        request.machine,
        config.cycles / request.machine.clock_ghz,
        config.lens.iter().fold(0, |lines, len| lines.saturating_add(lines_for::<T::Acc>(*len))),
        Box::new(move || Box::new(Depthwise::new(request, kernels, config))),
    ))
}
