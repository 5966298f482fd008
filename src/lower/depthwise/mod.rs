//! Conv with few channels a group, directly: depthwise with any multiplier, and groups of some
//! channels.
//!
//! There is no GEMM: with M/group rows and K = C/group * kernel volume steps, it would have too
//! little to share. There may be any number of axes. The last two are H and W. Those before them
//! are "outer": their taps, and the channels of a group, are further planes. One axis alone is W,
//! or H where vectors run along channels.
//!
//! A unit of work is a strip of H of one outer position of a group, or of several groups where
//! planes are small. Kernels read X itself where they can, and that is not dearer. Otherwise the input of a unit is copied
//! into padded planes, split by phases where W has a stride, so that every tap is a shifted view of
//! whole vectors. Tiles of rows are summed from there, in one of two orientations:
//!
//! * rows: vectors run along W. The planes of one channel are a few KiB, and stay in the L1 cache.
//!   The vectors of a single row are the rows of tiles.
//! * channels: vectors run along as many groups as a vector has lanes. This is for rows that are
//!   too short to fill vectors.
//!
//! A task's scratch holds the planes, a strip of sums where kernels cannot store into Y, and rows
//! that are converted.

mod cost;
mod grid;
mod lowering;
mod plan;
mod planes;
mod sums;

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::DepthwiseKernels;
use convoke_kernels::catalogue::depthwise_kernels;

use self::grid::{Along, MOST_BYTES};
use self::lowering::{Depthwise, DepthwisePieces};
use self::plan::{DepthwisePlan, Orientation};
use super::contract::{Answer, Build, Offer, Recipe, Request};
use super::layout::WeightLayout;
use super::sink::Finish;
use crate::element::Element;
use crate::exec::Ledger;
use crate::lower::planes as shared_planes;
use crate::units::Count;
use crate::{Axis, Geometry};

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
        .ok_or_else(|| shared_planes::too_large(&geometry.axes, MOST_BYTES))?;

    let mut scratch = Ledger::default();
    let pieces = DepthwisePieces {
        planes: scratch.book("planes", plan.scratch.planes),
        sums: scratch.book("sums", plan.scratch.sums),
        staged: scratch.book("converted rows", plan.scratch.staged),
    };
    let (grid, kernel) = (&plan.grid, plan.kernel());
    let (along, packed_len) = match grid.along {
        Along::Rows => ("along rows", geometry.weight_len()),
        Along::Channels => {
            let blocks = geometry.group.div_ceil(grid.lanes) * geometry.out_channels_per_group();
            ("along channels", blocks.saturating_mul(grid.taps()).saturating_mul(grid.lanes))
        }
    };
    let source = if plan.direct_table.is_some() { "X" } else { "planes" };
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel} {along} from {source}, {} at a time, {} of {}, {} in all",
            Count(plan.unit_groups, "group"),
            Count(grid.strips(), "strip"),
            Count(grid.extent, "row"),
            Count(plan.units, "unit")
        ),
        layout: WeightLayout::Depthwise { along: grid.along },
        packed_len,
        tasks: plan.tasks,
        scratch,
        work: plan.work,
    };
    let build: Build<'a, T> = Box::new(move || Box::new(Depthwise::new(request, finish, kernels, plan, pieces)));
    Ok(Offer { recipe, build })
}

/// The plan of the cheaper orientation, or of the one that weights are packed for; none if the
/// planes are too large. Orientations are compared as for one thread and without a limit of the
/// workspace: the order of the sums depends on them, and results must depend on neither.
fn best_plan<T: Element>(
    request: &Request<'_, T>,
    kernels: &'static DepthwiseKernels<T::Acc>,
    is_direct: bool,
    most_bytes: usize,
) -> Option<DepthwisePlan<T::Acc>> {
    // The narrow kernels have no stride.
    let fits = |w: &Axis| w.stride == 1 && kernels.narrow().first().is_some_and(|kernel| w.output <= kernel.nr());
    let is_narrow = request.geometry.axes.last().is_some_and(fits);
    let rows = Orientation {
        along: Along::Rows,
        tiles: if is_narrow { kernels.narrow() } else { kernels.rows() },
        is_one_row: false,
    };
    let channels = Orientation { along: Along::Channels, tiles: kernels.channels(), is_one_row: false };
    let alone = Request { threads: 1, ..*request };
    let cycles = |orientation: Orientation<T::Acc>| {
        let plan = DepthwisePlan::new(&alone, kernels, orientation, is_direct, usize::MAX)?;
        Some((plan.work.cycles(), orientation))
    };
    let (least, mut orientation) = [rows, channels]
        .into_iter()
        .filter(|Orientation { along, .. }| {
            request.layout.is_none_or(|layout| *layout == WeightLayout::Depthwise { along: *along })
        })
        .filter_map(cycles)
        .reduce(|a, b| if b.0 < a.0 { b } else { a })?;
    // Tiles of a single row are not compared with vectors along channels: each of their loads is for
    // one tap, and CPUs differ too much in what loads cost that cross cache lines.
    if orientation.along == Along::Rows && request.geometry.axes.len() == 1 {
        let one_row = cycles(Orientation { is_one_row: true, ..rows });
        orientation = one_row.filter(|(cycles, _)| *cycles < least).map_or(orientation, |(_, one_row)| one_row);
    }
    DepthwisePlan::new(request, kernels, orientation, is_direct, most_bytes)
}
