//! Conv with few channels a group, without GEMM: depthwise with any multiplier, and groups of some
//! channels.
//!
//! A GEMM with M/group rows and K = C/group * kernel volume steps would have too little to share. There
//! may be any number of axes. The last two are H and W. For the "outer" axes before them, each tap and
//! channel of a group is a further plane. A single axis is W, or H if vectors run along channels.
//!
//! A unit of work is a chunk of the output of a group, or of several groups if that is little. Kernels
//! read X itself if they can. Otherwise a unit's input is copied into padded planes
//! ([`planes`](super::planes)), so that each tap is a shifted view of whole vectors. Tiles of rows are
//! summed in one of two orientations:
//!
//! * rows: vectors run along W. The vectors of a single row are the rows of tiles.
//! * channels: vectors run along as many groups as a vector has lanes, whose planes are transposed.
//!   This is for rows that are too short to fill vectors, and for one axis alone, whose taps share
//!   vectors then.
//!
//! Scratch of a task: converted channels of a 16-bit type, the planes, and sums that kernels cannot
//! store into Y.

mod cost;
mod lowering;
mod plan;
mod sums;
mod taps;

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::DepthwiseKernels;
use convoke_kernels::catalogue::depthwise_kernels;

use self::cost::DepthwiseCost;
use self::lowering::{Depthwise, DepthwisePieces};
use self::plan::{DepthwisePlan, DepthwiseSource};
use self::taps::Along;
use super::contract::{Answer, Build, Offer, Recipe, Request};
use super::layout::WeightLayout;
use super::store::Finish;
use crate::Geometry;
use crate::conv::planes as shared_planes;
use crate::element::Element;
use crate::exec::Ledger;
use crate::units::Count;

/// Input channels of a group, at most: with more, GEMM has enough to share.
const MOST_CHANNELS: usize = 32;

/// Conv with few input channels a group.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let channels = geometry.in_channels_per_group();
    if channels > MOST_CHANNELS {
        return Err(alloc::format!("{channels} input channels a group, at most {MOST_CHANNELS} can be"));
    }
    Ok(())
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let kernels = depthwise_kernels::<T::Acc>(request.isa())
        .ok_or_else(|| String::from("no kernels for this instruction set"))?;
    let finish = Finish::new(request);
    let plan = best_plan(request, kernels, finish.is_direct(), most_bytes)
        .ok_or_else(|| shared_planes::too_large(&geometry.axes))?;

    let mut scratch = Ledger::default();
    let pieces = DepthwisePieces {
        converted: scratch.book("converted channels", plan.scratch.converted),
        planes: scratch.book("planes", plan.scratch.planes),
        sums: scratch.book("sums", plan.scratch.sums),
    };
    let (along, kernel) = (plan.taps.along, plan.kernel(geometry));
    let (words, packed_len) = match along {
        Along::Rows => ("along rows", geometry.weight_len()),
        Along::Channels => {
            let lanes = kernels.lanes();
            let filters = geometry.group.div_ceil(lanes) * geometry.out_channels_per_group();
            ("along channels", filters.saturating_mul(plan.taps.count()).saturating_mul(lanes))
        }
    };
    let source = match plan.source {
        DepthwiseSource::X { .. } => "X",
        DepthwiseSource::Planes { .. } => "planes",
    };
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel} {words} from {source}, {} at a time, {} of {}, {} in all",
            Count(plan.unit_groups, "group"),
            Count(plan.chunks, "chunk"),
            Count(plan.source.chunks(geometry).1, "position"),
            Count(plan.units, "unit")
        ),
        layout: WeightLayout::Depthwise { along },
        packed_len,
        tasks: plan.tasks,
        scratch,
        work: DepthwiseCost { machine: request.machine, geometry, plan: &plan }.work(),
    };
    let build: Build<'a, T> = Box::new(move || Box::new(Depthwise::new(request, finish, kernels, plan, pieces)));
    Ok(Offer { recipe, build })
}

/// The plan of the cheaper orientation, or of the one that weights are packed for. None if the planes
/// are too large. Orientations are compared for one thread and without a limit of the workspace: the
/// order of sums depends on them, so results would depend on threads and limits.
fn best_plan<T: Element>(
    request: &Request<'_, T>,
    kernels: &'static DepthwiseKernels<T::Acc>,
    is_direct: bool,
    most_bytes: usize,
) -> Option<DepthwisePlan<T::Acc>> {
    let alone = Request { threads: 1, ..*request };
    let cycles = |along: Along| {
        let plan = DepthwisePlan::new(&alone, kernels, along, is_direct, usize::MAX)?;
        let cost = DepthwiseCost { machine: request.machine, geometry: request.geometry, plan: &plan };
        Some((cost.work().cycles(), along))
    };
    let (_, along) = [Along::Rows, Along::Channels]
        .into_iter()
        .filter(|along| request.layout.is_none_or(|layout| *layout == WeightLayout::Depthwise { along: *along }))
        .filter_map(cycles)
        .reduce(|a, b| if b.0 < a.0 { b } else { a })?;
    DepthwisePlan::new(request, kernels, along, is_direct, most_bytes)
}
