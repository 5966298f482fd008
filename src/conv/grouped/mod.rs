//! Conv with few channels a group, straight from X: several output channels share each vector that is
//! loaded.
//!
//! M = M/group, K = C/group * kernel volume, N = output positions, for each image and group. If rows of
//! Y are as long as rows of X, the GEMM reads a plane of X without a copy, and writes Y in whole vectors
//! across the ends of rows. With strides, X is copied into a plane for each phase, with rows as long as
//! those of Y.
//!
//! A unit of work is a run of positions of one group of one image, in blocks that stay in the L1 cache.
//! K is ordered by taps along W, then channels, then taps along H. Scratch of a task: the unit's planes,
//! if X is strided or of a 16-bit type, and the sums of a panel of output channels, if kernels cannot
//! store into Y.

mod lowering;
mod plan;
mod planes;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::FlatTaps;
use convoke_kernels::catalogue::grouped_kernels;

use self::lowering::Grouped;
use self::plan::{GroupedBlocks, GroupedTiles};
use self::planes::GroupedPlanes;
use super::contract::{Answer, Build, Offer, Recipe, Request, last_axes};
use super::layout::WeightLayout;
use super::store::Finish;
use crate::element::Element;
use crate::exec::Ledger;
use crate::machine::{Item, Work, prices};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Channels of a group, of X and of Y, at most: with more, GEMM has enough to share.
const MOST_CHANNELS: usize = 32;

/// Output channels of a group, at least: a single one cannot share vectors.
const LEAST_OUTPUTS: usize = 2;

/// Taps of the kernel, at most: tables of masks grow with them.
const MOST_TAPS: usize = 128;

/// The longest stride: with a longer one, little of X is read.
const MOST_STRIDE: usize = 8;

/// Elements of a row of Y, at most: tables of masks grow with them.
const MOST_WIDTH: usize = FlatTaps::MOST_WIDTH;

/// Bytes of the planes of a unit, and of its sums, at most: a limit of memory.
const MOST_BYTES: usize = 16 << 20;

/// Conv on one or two axes with few channels a group. Without a stride, rows of Y must be as long as
/// rows of X. With one, they must be at least as long as a phase of a row of X, and there must be no
/// dilation.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let (inputs, outputs) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    if inputs > MOST_CHANNELS || !(LEAST_OUTPUTS..=MOST_CHANNELS).contains(&outputs) {
        return Err(alloc::format!(
            "{inputs} input and {outputs} output channels a group, at most {MOST_CHANNELS} and {LEAST_OUTPUTS} to {MOST_CHANNELS} can be"
        ));
    }
    let (_, w) = last_axes(geometry)?;
    for (i, axis) in geometry.axes.iter().enumerate() {
        let Axis { input, stride, dilation, .. } = axis;
        if *stride > MOST_STRIDE || (*stride > 1 && *dilation > 1) {
            return Err(alloc::format!(
                "spatial axis {i} has stride {stride}, dilation {dilation}, only strides up to {MOST_STRIDE}, and dilation beside stride 1"
            ));
        }
        if *input == 0 {
            return Err(alloc::format!("spatial axis {i} has input 0"));
        }
    }
    check_rows(&w, geometry.axes.len() - 1)?;
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, at most {MOST_TAPS} can be", geometry.kernel_volume()));
    }
    Ok(())
}

/// The rule for the lengths of rows; `w` is the spatial axis with index `last`.
fn check_rows(w: &Axis, last: usize) -> Result<(), String> {
    let Axis { input, output, stride, .. } = w;
    let is_long = if *stride == 1 { output == input } else { *output >= input.div_ceil(*stride) };
    if !is_long {
        return Err(alloc::format!(
            "spatial axis {last} has input {input}, output {output}, stride {stride}: rows of Y are not as long as rows of X, or of its phases"
        ));
    }
    if *output > MOST_WIDTH {
        return Err(alloc::format!("spatial axis {last} has output {output}, at most {MOST_WIDTH} can be"));
    }
    Ok(())
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let inputs = geometry.in_channels_per_group();
    let kernels = grouped_kernels::<T::Acc>(request.isa());
    let lanes = kernels.first().ok_or_else(|| String::from("no kernels for this instruction set"))?.lanes();
    let (h, w) = last_axes(geometry)?;
    let too_large = || String::from("X is too large");
    let planes = GroupedPlanes::new(&h, &w).ok_or_else(too_large)?;
    let taps = planes.taps(inputs, lanes).ok_or_else(too_large)?;
    let tiles = GroupedTiles::new(kernels, geometry.out_channels_per_group())
        .ok_or_else(|| String::from("no panels of the kernels' heights have as many output channels as a group"))?;
    let finish = Finish::new(request);
    let is_copied = !T::DIRECT || planes.is_strided();
    let blocks = GroupedBlocks::new(request, lanes, tiles.panels, inputs * planes.pitch, finish.is_direct());

    let mut scratch = Ledger::default();
    let copy = scratch.book::<T::Acc>("planes", if is_copied { inputs * planes.pitch } else { 0 });
    let sums = if finish.is_direct() { 0 } else { tiles.panels.height(0).saturating_mul(blocks.vectors * lanes) };
    let sums = scratch.book::<T::Acc>("sums", sums);
    if copy.len().max(sums.len()).saturating_mul(size_of::<T::Acc>()) > MOST_BYTES {
        return Err(String::from("the planes are too large"));
    }
    let kernel = tiles.kernel(blocks.vectors);
    let copies = if is_copied { planes.work(inputs) } else { Work::default() };
    // Near the border of a plane, loads have masks.
    let border = 1.0 + prices::GROUPED_BORDER * taps.border() as f64 / blocks.all_vectors as f64;
    let group_work = tiles.work(machine, taps.steps(), &blocks) * border + copies;
    let heights: Vec<_> = (0..tiles.panels.count()).map(|panel| tiles.panels.height(panel)).collect();
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, panels of {heights:?} output channels, {} in all",
            Count(blocks.units(), "unit")
        ),
        layout: WeightLayout::Grouped { heights },
        packed_len: geometry.weight_len(),
        tasks: blocks.tasks,
        scratch,
        work: group_work * blocks.groups as f64 + Item::TASKS.times(1.0),
    };
    let build: Build<'a, T> = Box::new(move || {
        Box::new(Grouped {
            geometry: geometry.clone(),
            isa: request.isa(),
            finish,
            planes: if is_copied { planes.listed() } else { planes },
            taps,
            lanes,
            tiles,
            blocks,
            copy,
            sums,
        })
    });
    Ok(Offer { recipe, build })
}
