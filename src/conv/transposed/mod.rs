//! ConvTranspose without a column matrix: each phase of the strides is a convolution of stride 1, and
//! all phases read the same padded copy of X.
//!
//! M = M/group * the phases of the last axis that read the same inputs, K = C/group * the taps of a
//! phase, N = positions of a phase, for each image, group and phase of the other axes. Each phase has
//! its own K, without zeros where the kernel is not a multiple of the stride. K is in blocks of
//! channels. A block is ordered by 16 channels, then taps, then channels.
//!
//! A tile has all phases of the last axis for a panel of channels and a column tile. Its sums are
//! interleaved into Y, so that each element of Y is written once: from scratch in the L1 cache, or
//! straight from registers. If K has several blocks, the sums of a panel are kept between them.
//! Depthwise layers have no tiles: a kernel sums and interleaves all phases of one channel. See
//! [`plan::PhaseMode`].
//!
//! Accepts ConvTranspose with strides up to [`MOST_STRIDE`] and kernels up to [`MOST_TAPS`], if the
//! planes of a chunk fit 32 MiB. Scratch of a task: the padded planes of all channels for one chunk, the
//! sums of one panel, and outputs that kernels cannot store into Y.

mod lowering;
mod passes;
mod plan;
mod store;
mod tiles;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::catalogue::interleave_kernels;

use crate::Geometry;
use crate::conv::contract::{Answer, Build, Offer, Recipe, Request};
use crate::conv::store::Finish;
use crate::element::Element;
use crate::exec::Ledger;
use crate::units::Count;
use lowering::Transposed;
use plan::{PhaseMode, PhasePlan, PhaseScratch, PhaseSplit};

/// The largest stride of an axis, the most phases of all axes but the last, and the most taps:
/// tables grow with them.
const MOST_STRIDE: usize = 512;
const MOST_OUTER_PHASES: usize = 1 << 12;
const MOST_TAPS: usize = 1 << 16;

/// Accepts ConvTranspose with an output, if the tables of its phases and taps are not too large.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    for (i, axis) in geometry.axes.iter().enumerate() {
        if axis.stride > MOST_STRIDE {
            return Err(alloc::format!("spatial axis {i} has stride {}, more than {MOST_STRIDE}", axis.stride));
        }
    }
    let outer = &geometry.axes[..geometry.axes.len() - 1];
    let phases = outer.iter().try_fold(1_usize, |n, a| n.checked_mul(a.stride));
    if phases.is_none_or(|n| n > MOST_OUTER_PHASES) {
        let strides: Vec<_> = outer.iter().map(|a| a.stride).collect();
        return Err(alloc::format!(
            "the strides {strides:?} of all spatial axes but the last have a product above {MOST_OUTER_PHASES}"
        ));
    }
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, at most {MOST_TAPS} can be", geometry.kernel_volume()));
    }
    Ok(())
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let Some(interleave) = interleave_kernels::<T::Acc>(request.isa()).first() else {
        return Err(String::from("no kernel that interleaves"));
    };
    let plan = PhasePlan::cheapest(request, most_bytes)?;
    let split = PhaseSplit::new(request, &plan, most_bytes);
    let mut scratch = Ledger::default();
    let is_direct = Finish::new(request).is_direct();
    let pieces = PhaseScratch::book(&mut scratch, geometry, &plan, &split, is_direct);
    let kernel = if plan.mode == PhaseMode::Summed { interleave.name() } else { plan.tiles.name() };
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, {plan}, {} of {}, weights in {}",
            Count(plan.sizes.chunks, "chunk"),
            Count(plan.sizes.columns, "column"),
            Count(split.tasks.shares, "part")
        ),
        layout: plan.layout(),
        packed_len: geometry.weight_len(),
        tasks: split.tasks.tasks(),
        scratch,
        work: plan.work,
    };
    let build: Build<'a, T> = Box::new(move || Box::new(Transposed::new(request, plan, split, pieces, interleave)));
    Ok(Offer { recipe, build })
}
