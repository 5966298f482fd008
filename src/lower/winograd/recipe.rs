//! The offer for a layer: which tile, which blocks, and what follows from them.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::catalogue::winograd_kernels;
use convoke_kernels::stream::Storage;
use convoke_kernels::{Real, WinogradKernel};

use super::blocks::{BlockCut, TileBlocks};
use super::choice::{MOST_SCRATCH_BYTES, best_blocking};
use super::common::WinogradCore;
use super::estimate::{BlockingEstimate, CostModel, WinogradBlocking};
use super::lowering::Winograd;
use super::operator::WinogradOperator;
use super::pack::PackedLayout;
use super::runs::RunCosts;
use super::scheme::{STANDARD_VALUES, Scheme, has_whole_rows, is_ragged};
use super::scratch::{OperatorNeeds, ScratchPieces};
use super::view::{AxisRoles, MOST_STEPS, PixelStores, SubImage, WinogradView};
use crate::choice::Accuracy;
use crate::element::Element;
use crate::exec::Ledger;
use crate::lower::channel_tiles::ChannelTiles;
use crate::lower::contract::{Answer, Build, Offer, Recipe, Request};
use crate::lower::layout::WeightLayout;
use crate::units::Count;

/// Makes the operator for the chosen tile, with its tables.
pub(super) type BuildOperator<'a, T> =
    Box<dyn FnOnce(&Scheme<<T as Storage>::Acc>) -> Box<dyn WinogradOperator<T>> + 'a>;

/// The offer for a view of the layer. The blocks of a task have at most `most_bytes` of scratch,
/// about, where that can be. `operator` says what the operator needs for the chosen tile; it fails
/// where a kernel is lacking.
pub(super) fn offer_view<'a, T: Element>(
    request: &'a Request<'a, T>,
    view: WinogradView,
    most_bytes: usize,
    operator: impl FnOnce(&Scheme<T::Acc>, &ChannelTiles<T::Acc>) -> Option<(BuildOperator<'a, T>, OperatorNeeds)>,
) -> Answer<'a, T> {
    let no_kernel = || String::from("no kernel for this block of tiles");
    let costs = RunCosts::new(request.machine).ok_or_else(no_kernel)?;
    let (model, free) = best_tile(request, &view, &costs)?;
    let scheme = model.scheme;
    let best = |threads: usize| best_blocking(&model, threads, most_bytes).ok_or_else(no_kernel);
    let alone = if most_bytes >= MOST_SCRATCH_BYTES { free } else { best(1)? };
    let blocking = match request.threads {
        1 => alone.blocking,
        threads => best(threads)?.blocking,
    };
    let run_len = blocking.blocks.place(0, 0).size.run_len();
    let tiles = ChannelTiles::<T::Acc>::new(request.machine, run_len).ok_or_else(no_kernel)?;
    let slots = blocking.together.slots(&view.roles.depth);
    if blocking.blocks.for_each_size(|size, _| size.fits(&scheme, &view, slots).then_some(())).is_none() {
        return Err(String::from("the steps of k are too many, or the block's offsets exceed 32 bits"));
    }
    let (operator, needs) = operator(&scheme, &tiles).ok_or_else(no_kernel)?;
    let Some(layout) = PackedLayout::new(&view, &scheme, tiles.padded(view.rows), needs.direct_len) else {
        return Err(String::from("the packed weights do not fit the address space"));
    };
    let packed_len = view.groups * layout.group_len();
    let mut scratch = Ledger::default();
    let pieces = ScratchPieces::book::<T>(&mut scratch, &view, &blocking, tiles.nr(), &needs);
    let bytes = |values: usize| values.saturating_mul(size_of::<T::Acc>());
    let far = request.machine.far_weights(bytes(request.geometry.weight_len()), bytes(packed_len));
    let recipe = Recipe {
        kernel: scheme.kernel.name(),
        details: details(&view, &blocking, &tiles),
        layout: weight_layout(scheme.kernel),
        packed_len,
        tasks: blocking.tasks(&view),
        scratch,
        // The blocking for one thread, whatever the number of threads. The blocking for several
        // threads takes more in all, but ends sooner: its work would be compared wrongly with that
        // of lowerings whose work does not grow with the number of threads.
        work: alone.work * far,
    };
    let build: Build<'a, T> = Box::new(move || {
        let core = WinogradCore::new(request, view, blocking, tiles, layout, pieces);
        Box::new(Winograd { core, operator: operator(&scheme) })
    });
    Ok(Offer { recipe, build })
}

/// A tile, and its best blocking.
type PricedTile<'a, A> = (CostModel<'a, A>, BlockingEstimate<A>);

/// The tile whose work is least, with its best blocking for one thread and without a limit of the
/// workspace. Other numbers of threads and other limits take the same tile, because results must
/// not depend on them.
fn best_tile<'a, T: Element>(
    request: &Request<'_, T>,
    view: &'a WinogradView,
    costs: &'a RunCosts<'a, T::Acc>,
) -> Result<PricedTile<'a, T::Acc>, String> {
    let images = SubImage::count(&view.roles, view.batch);
    let mut models = Vec::new();
    let mut suitable: Option<Scheme<T::Acc>> = None;
    for kernel in winograd_kernels::<T::Acc>(request.isa()) {
        if !is_allowed(request, view, kernel) {
            continue;
        }
        let Some(scheme) = Scheme::new(kernel, &view.roles) else { continue };
        if suitable.is_none_or(|other| scheme.filters() < other.filters()) {
            suitable = Some(scheme);
        }
        if let Some(model) = CostModel::new(view, scheme, costs)
            && let Some(whole) = TileBlocks::new(view, &scheme, images, BlockCut::Rows, 1)
        {
            models.push((model.least_cycles(&whole), models.len(), model));
        }
    }
    // The most promising tiles first: the search ends where no other tile can be better. Of equals,
    // the first in the list of kernels is taken.
    models.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut best: Option<(f64, usize, _)> = None;
    for (least, index, model) in models {
        if best.as_ref().is_some_and(|(cycles, ..)| least > *cycles) {
            break;
        }
        let Some(estimate) = best_blocking(&model, 1, usize::MAX) else { continue };
        let cycles = estimate.work.cycles();
        if best.as_ref().is_none_or(|best| (cycles, index) < (best.0, best.1)) {
            best = Some((cycles, index, (model, estimate)));
        }
    }
    best.map(|(.., best)| best).ok_or_else(|| no_tile(view, suitable.as_ref()))
}

/// Why no tile is taken. `suitable` is the scheme with the fewest filters, if a tile suits the
/// kernel.
fn no_tile<T: Real>(view: &WinogradView, suitable: Option<&Scheme<T>>) -> String {
    let AxisRoles { depth, down, along } = &view.roles;
    match suitable {
        None => format!("no tile suits a kernel of {}x{} taps", down.kernel, along.kernel),
        Some(scheme) if !scheme.has_few_steps(view) => format!(
            "{} channels times {} filters of a tile times {} taps of an outer axis are too many, at most {MOST_STEPS} \
             steps can be",
            view.channels,
            scheme.filters(),
            depth.kernel
        ),
        Some(_) => format!("no block of tiles has kernels and fits {MOST_SCRATCH_BYTES} bytes"),
    }
}

/// Whether a tile suits the packed weights, the accuracy and the way that Y is written.
fn is_allowed<T: Element>(request: &Request<'_, T>, view: &WinogradView, kernel: &WinogradKernel<T::Acc>) -> bool {
    // Weights that are packed already were packed under an accuracy that allowed it.
    if let Some(packed) = request.layout {
        return *packed == weight_layout(kernel);
    }
    let is_accurate = request.accuracy == Accuracy::Fast || kernel.values() <= STANDARD_VALUES;
    let is_in_lines =
        view.stores == PixelStores::RowsPastCache && view.roles.along.output.is_multiple_of(kernel.lanes());
    is_accurate && !(is_in_lines && is_ragged(kernel) && has_whole_rows(kernel))
}

fn weight_layout<T: Real>(kernel: &WinogradKernel<T>) -> WeightLayout {
    WeightLayout::Winograd { down: kernel.down(), along: kernel.along() }
}

/// The blocking in a line.
fn details<T: Real>(view: &WinogradView, blocking: &WinogradBlocking<T>, tiles: &ChannelTiles<T>) -> String {
    let WinogradBlocking { scheme, blocks, splits, together } = blocking;
    let size = blocks.place(0, 0).size;
    let tiles_of_block = match blocks.cut() {
        BlockCut::Tiles => format!("{}", size.own_tiles()),
        BlockCut::Rows if size.images > 1 => format!("{} x {} x {}", size.images, size.rows, size.columns),
        BlockCut::Rows | BlockCut::Columns => format!("{} x {}", size.rows, size.columns),
    };
    let past_cache = if view.stores == PixelStores::RowsPastCache { ", past the caches" } else { "" };
    let slices = if together.slices > 1 { format!(" and {} slices", together.slices) } else { String::new() };
    format!(
        "{} by {}, {}, {} of {tiles_of_block} tiles, weights in {}, {}{slices} at a time{past_cache}",
        scheme.kernel.name(),
        tiles.name(),
        Count(scheme.filters(), "filter"),
        Count(blocks.of_image(), "block"),
        Count(*splits, "part"),
        Count(together.panels, "panel"),
    )
}
