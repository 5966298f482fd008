//! Conv, and ConvTranspose by phases, by Winograd's minimal filtering, fused by blocks of tiles.
//!
//! A tile of m x m outputs takes n x n products for each pair of channels, n = m + r - 1, instead of m x
//! m x r x r. For each of the n x n values, the products are a GEMM: M = filters of a group, N = tiles,
//! K = C/group, times the taps of the depth axis, and times the filters into which a longer kernel is
//! cut. A task transforms a block of tiles for all channels. Then, chunk by chunk of filters, it
//! multiplies the values and transforms the products back into Y.
//!
//! Accepts Conv and ConvTranspose with one to three spatial axes and at most [`MOST_STEPS`] steps of k,
//! and with what [`conv`] and [`transposed`] say; `docs/algorithms.md` has all rules. The taps of the
//! outermost of three axes are steps of k. Phases of strides are channels of Conv, and filters of
//! ConvTranspose. A layer with dilation d is d interleaved layers on each of the last two axes.
//!
//! The scratch of a task depends on the image's depth, up to a limit, but not on its height and width.
//! NaN and infinities spread over a tile, so tiles whose results are not finite are computed again by
//! the definition.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the
//! transforms are in `convoke_kernels::winograd`.

mod blocking;
mod conv;
mod cost;
mod input;
mod pack;
mod products;
mod run;
mod tiles;
mod transposed;
mod view;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use convoke_kernels::catalogue::winograd_kernels;
use convoke_kernels::{Real, WinogradKernel};

use self::blocking::Blocking;
use self::cost::{BlockingEstimate, CostModel, MOST_SCRATCH_BYTES};
use self::pack::PackedLayout;
use self::products::pixel_kernel_name;
use self::run::{ScratchPieces, Winograd};
use self::tiles::{STANDARD_VALUES, Scheme, has_whole_rows, is_ragged};
use self::view::{AxisRoles, MOST_STEPS, PixelStores, WinogradView};
use super::channel_tiles::ChannelTiles;
use super::contract::{Answer, Build, Offer, Recipe, Request};
use super::layout::WeightLayout;
use crate::choice::Accuracy;
use crate::element::Element;
use crate::exec::Ledger;
use crate::units::Count;
use crate::{Geometry, Op};

/// Conv and ConvTranspose that are a convolution of stride 1 over tiles.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    match geometry.op {
        Op::Conv => conv::accepts(geometry),
        Op::ConvTranspose => transposed::accepts(geometry),
    }
}

/// A task's scratch takes at most about `most_bytes`, if possible.
pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    if request.accuracy == Accuracy::Strict {
        return Err(String::from("errs more than direct sums, which Accuracy::Strict excludes"));
    }
    let (view, interleaved, operator) = match request.geometry.op {
        Op::Conv => conv::view_of(request)?,
        Op::ConvTranspose => transposed::view_of(request)?,
    };
    let no_kernel = || String::from("no kernel for this block of tiles");
    let free = best_tile(request, &view)?;
    let scheme = free.blocking.scheme;
    let model = CostModel::new(request.machine, &view, scheme).ok_or_else(no_kernel)?;
    let best = |threads: usize| model.best(threads, most_bytes).ok_or_else(no_kernel);
    let alone = if most_bytes >= MOST_SCRATCH_BYTES { free } else { best(1)? };
    let blocking = if request.threads == 1 { alone.blocking } else { best(request.threads)?.blocking };
    let size = blocking.blocks.largest();
    let width = size.gemms(false).1 * size.columns;
    let tiles = ChannelTiles::<T::Acc>::new(request.machine, width).ok_or_else(no_kernel)?;
    let products = match view.reads_pixels {
        true => pixel_kernel_name::<T::Acc>(request.isa(), width).ok_or_else(no_kernel)?,
        false => tiles.name(),
    };
    if !size.fits(&scheme, &view, blocking.chunk.slots(&view.roles.depth)) {
        return Err(String::from("the steps of k are too many, or the block's offsets exceed 32 bits"));
    }
    let w_len = request.geometry.weight_len();
    let Some(layout) = PackedLayout::new(&view, &scheme, tiles.padded(view.filters), w_len) else {
        return Err(String::from("the packed weights do not fit the address space"));
    };
    let mut scratch = Ledger::default();
    let pieces = ScratchPieces::book::<T>(&mut scratch, &view, &blocking, tiles.nr(), interleaved);
    let recipe = Recipe {
        kernel: scheme.kernel.name(),
        details: details(&view, &blocking, products),
        layout: weight_layout(scheme.kernel),
        packed_len: layout.len(),
        tasks: blocking.tasks(&view),
        scratch,
        // This is the blocking for one thread, for any number of threads. A blocking for several threads
        // ends sooner but does more work, so that its work could not be compared with that of other
        // lowerings.
        work: alone.work,
    };
    let build: Build<'a, T> =
        Box::new(move || Box::new(Winograd::new(request, view, blocking, (tiles, layout, pieces), operator)));
    Ok(Offer { recipe, build })
}

/// The tile with the least work, with its best blocking for one thread and an unlimited workspace.
/// Neither threads nor limits may change the tile, because it changes the results.
fn best_tile<T: Element>(request: &Request<'_, T>, view: &WinogradView) -> Result<BlockingEstimate<T::Acc>, String> {
    let allowed = winograd_kernels::<T::Acc>(request.isa()).iter().filter(|kernel| is_allowed(request, view, kernel));
    let schemes = || allowed.clone().filter_map(|kernel| Scheme::new(kernel, &view.roles));
    let best = schemes().filter_map(|scheme| CostModel::new(request.machine, view, scheme)?.best(1, usize::MAX));
    let best = best.min_by(|a, b| a.work.cycles().total_cmp(&b.work.cycles()));
    best.ok_or_else(|| no_tile(view, schemes().min_by_key(Scheme::filters)))
}

/// Why no tile is taken. `suitable` is the scheme with the fewest filters, if any tile suits the kernel.
fn no_tile<T: Real>(view: &WinogradView, suitable: Option<Scheme<T>>) -> String {
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

/// Whether the packed weights, the accuracy and the way of writing Y allow a tile.
fn is_allowed<T: Element>(request: &Request<'_, T>, view: &WinogradView, kernel: &WinogradKernel<T::Acc>) -> bool {
    // Packed weights were packed with an accuracy that allowed their tile.
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

fn details<T: Real>(view: &WinogradView, blocking: &Blocking<T>, products: &str) -> String {
    let Blocking { scheme, blocks, parts, chunk } = blocking;
    let size = blocks.place(0, 0).size;
    let images = if size.images > 1 { format!("{} x ", size.images) } else { String::new() };
    let past_cache = if view.stores == PixelStores::RowsPastCache { ", past the caches" } else { "" };
    let slices = if chunk.slices > 1 { format!(" and {} slices", chunk.slices) } else { String::new() };
    format!(
        "{} by {products}, {}, {} of {images}{} x {} tiles, weights in {}, {}{slices} at a time{past_cache}",
        scheme.kernel.name(),
        Count(scheme.filters(), "filter"),
        Count(blocks.of_image(), "block"),
        size.rows,
        size.columns,
        Count(*parts, "part"),
        Count(chunk.panels, "panel"),
    )
}
