//! ConvTranspose with vectors along output channels: for few positions of X, where vectors along
//! positions would be half empty, and where the weights are most of what is read.
//!
//! M = positions of X, N = M/group, K = C/group for each tap, image and group. No product is with
//! padding, and no column is garbage. The kernel adds the products of a tap to the sums of a panel of
//! channels, which have the order `[tap of the last axis][phase and position of each other axis][position
//! of X on the last axis][NR]`. So the pixels of a tile are neighbours, whatever the tap. The taps of the
//! last axis are added on the way into Y, row by row.
//!
//! If X is one position, the images of a block are the pixels. If the kernel covers Y exactly too, all
//! axes are taken for one, and no taps are added. Weights are packed in the order in which they are
//! read, once for a block of images: `[panels][blocks of K][taps][K][NR]`.
//!
//! Accepts every ConvTranspose. Makes no offer if the scratch of a task exceeds [`MOST_BYTES`]: a block
//! of K of X, the sums of a panel, a row of Y by phases, and a tile.

mod last_steps;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{Isa, Prefetch, Real, RowOffsets, stream};

use self::last_steps::LastSteps;
use super::channel_weights::ChannelWeights;
use crate::blas::Blocks;
use crate::conv::channel_tiles::{ChannelTiles, PanelPrefetch};
use crate::conv::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request, no_kernel};
use crate::conv::planes::{chunk_bytes, for_each_position};
use crate::conv::shares::{GemmSplit, Part};
use crate::conv::store::{Finish, OutputStore};
use crate::conv::view;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Work};
use crate::units::Count;
use crate::{Axis, Geometry, Op};

/// Bytes of a task's scratch, at most: a limit of memory.
const MOST_BYTES: usize = 4 << 20;
/// Taps that are merged into one axis, at most. A row of Y by phases has as many pixels.
const MOST_MERGED: usize = 1 << 10;
/// Images of a block, at most: each more saves less.
const MOST_IMAGES: usize = 64;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let weights = ChannelWeights::new(request)?;
    let too_large = || alloc::format!("X, or what a panel of channels sums, takes more than {MOST_BYTES} bytes");
    let layer = AccumulateLayer::new(request.geometry).ok_or_else(too_large)?;
    let tiles_of = |width: usize| ChannelTiles::<T::Acc>::new(request.machine, width).ok_or_else(no_kernel);
    let stores = tiles_of(layer.last().output)?;
    let images = layer.image_block(request, &weights, &stores, most_bytes).ok_or_else(too_large)?;
    let blocking = AccumulateBlocking::new(&layer, &weights, images, request.threads);
    let image_blocks = blocking.image_blocks;
    let widths = match layer.pixels {
        AccumulatePixels::Positions => [layer.run_pixels(); 2],
        AccumulatePixels::Images { .. } => image_blocks.lens(),
    };
    let tiles = [tiles_of(widths[0])?, tiles_of(widths[1])?];
    let nr = stores.nr().min(weights.padded);
    let mut scratch = Ledger::default();
    let pieces = AccumulatePieces {
        x: scratch.book("X", layer.x_len(&weights) * image_blocks.size()),
        sums: scratch.book("sums", layer.lens.sums * nr * image_blocks.size()),
        row: scratch.book("row of Y", layer.lens.row * nr),
        tile: scratch.book("tile", stores.pixels(0).len() * nr),
    };
    let kernel = tiles[0].name();
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, taps accumulated in place, {} of {} at a time, weights in {}",
            Count(image_blocks.size(), "image"),
            Count(layer.geometry.input_spatial(), "pixel"),
            Count(blocking.split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: blocking.split.tasks(),
        scratch,
        work: blocking.work(request, &layer, &weights, &tiles[0]),
    };
    let build: Build<'a, T> = Box::new(move || {
        Box::new(Accumulate {
            isa: request.isa(),
            finish: Finish::new(request),
            taps: layer.tap_places(),
            runs: layer.run_places(),
            nothing: RowOffsets::new(Vec::new()),
            rows: tiles.map(|tiles| PixelTiles::new(tiles, &weights)),
            layer,
            weights,
            blocking,
            stores,
            pieces,
        })
    });
    Ok(Offer { recipe, build })
}

/// Positions of a phase of an axis that taps reach. Output o is position `(o + pad) / stride` of phase
/// `(o + pad) % stride`.
fn reached(axis: &Axis) -> usize {
    view::reach(axis) + axis.input
}

/// Lengths in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AccumulateLens {
    /// The sums of a panel, for one image.
    sums: usize,
    /// A row of Y by phases.
    row: usize,
    /// One phase of such a row.
    positions: usize,
}

impl AccumulateLens {
    fn new(outer: &[Axis], last: &Axis) -> Option<Self> {
        let of_outer = |n: usize, axis: &Axis| n.checked_mul(axis.stride)?.checked_mul(reached(axis));
        let sums = outer.iter().try_fold(1, of_outer)?.checked_mul(last.kernel)?.checked_mul(last.input)?;
        let outputs = last.output.checked_add(last.pad_begin)?.div_ceil(last.stride);
        let positions = reached(last).max(outputs);
        Some(Self { sums, row: positions.checked_mul(last.stride)?, positions })
    }
}

/// What the pixels of a tile are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccumulatePixels {
    /// Positions of X.
    Positions,
    /// The images of a block: X is one position. If the taps are apart, all axes are taken for one, and
    /// each output has a tap of its own.
    Images { are_taps_apart: bool },
}

/// The layer, with its axes merged where possible.
#[derive(Debug, Clone, PartialEq)]
struct AccumulateLayer {
    geometry: Geometry,
    pixels: AccumulatePixels,
    /// Positions of a phase that taps reach, on each axis before the last.
    reached: Vec<usize>,
    lens: AccumulateLens,
}

impl AccumulateLayer {
    /// None if its sums do not fit the address space.
    fn new(geometry: &Geometry) -> Option<Self> {
        let merged = merged(geometry);
        let pixels = match geometry.input_spatial() {
            1 => AccumulatePixels::Images { are_taps_apart: merged.is_some() },
            _ => AccumulatePixels::Positions,
        };
        let geometry = merged.unwrap_or_else(|| geometry.clone());
        let (last, outer) = geometry.axes.split_last()?;
        let (reached, lens) = (outer.iter().map(reached).collect(), AccumulateLens::new(outer, last)?);
        Some(Self { geometry, pixels, reached, lens })
    }

    fn last(&self) -> &Axis {
        &self.geometry.axes[self.reached.len()]
    }

    /// Pixels of a run of X, at least one: all positions of its last two axes, because the sums have no
    /// gaps between rows.
    fn run_pixels(&self) -> usize {
        let joined = &self.geometry.axes[self.reached.len().saturating_sub(1)..];
        joined.iter().map(|axis| axis.input).product::<usize>().max(1)
    }

    /// Values of X of an image and group.
    fn x_len(&self, weights: &ChannelWeights) -> usize {
        weights.channels.saturating_mul(self.geometry.input_spatial())
    }

    /// The images of a block, so that its scratch stays in the L2 cache and takes at most `most_bytes`.
    /// None if one image takes too much. `stores` are the tiles of a row of Y.
    fn image_block<T: Element>(
        &self,
        request: &Request<'_, T>,
        weights: &ChannelWeights,
        stores: &ChannelTiles<T::Acc>,
        most_bytes: usize,
    ) -> Option<usize> {
        let nr = stores.nr().min(weights.padded);
        let beside = self.lens.row.saturating_add(stores.pixels(0).len()).saturating_mul(nr);
        let of_image = self.lens.sums.saturating_mul(nr).saturating_add(self.x_len(weights));
        let bytes =
            |images: usize| of_image.saturating_mul(images).saturating_add(beside).saturating_mul(size_of::<T::Acc>());
        if bytes(1) > MOST_BYTES {
            return None;
        }
        let most_bytes = chunk_bytes(request.machine).min(most_bytes);
        let most_images = self.geometry.batch.min(MOST_IMAGES);
        Some((2..=most_images).rev().find(|images| bytes(*images) <= most_bytes).unwrap_or(1))
    }

    /// Pixels of the sums of one tap of the last axis.
    fn of_tap(&self) -> usize {
        self.lens.sums / self.last().kernel
    }

    /// Where the sums of a phase and position of each axis before the last begin, among those of a tap
    /// of the last axis.
    fn sums_at(&self, places: impl Iterator<Item = (usize, usize)>) -> usize {
        let axes = self.geometry.axes.iter().zip(&self.reached).zip(places);
        axes.fold(0, |at, ((axis, reached), (r, v))| (at * axis.stride + r) * reached + v) * self.last().input
    }

    /// The same for row `y` of Y. None if no tap reaches it.
    fn sums_of_row(&self, mut y: usize) -> Option<usize> {
        let (mut at, mut step) = (0, self.last().input);
        for (axis, reached) in self.geometry.axes.iter().zip(&self.reached).rev() {
            let o = y % axis.output + axis.pad_begin;
            y /= axis.output;
            if o / axis.stride >= *reached {
                return None;
            }
            at += (o % axis.stride * reached + o / axis.stride) * step;
            step *= axis.stride * reached;
        }
        Some(at)
    }

    /// Where the sums of each tap begin, in pixels.
    fn tap_places(&self) -> Vec<usize> {
        let kernel: Vec<_> = self.geometry.axes.iter().map(|axis| axis.kernel).collect();
        let mut taps = Vec::with_capacity(self.geometry.kernel_volume());
        for_each_position(&kernel, |k| {
            let places = k.iter().zip(&self.geometry.axes).map(|(k, axis)| view::place(axis, *k));
            taps.push(k[self.reached.len()] * self.of_tap() + self.sums_at(places));
        });
        taps
    }

    /// Where the sums of each run of X begin, relative to the first run, in pixels.
    fn run_places(&self) -> Vec<usize> {
        let before = &self.geometry.axes[..self.reached.len().saturating_sub(1)];
        let inputs: Vec<_> = before.iter().map(|axis| axis.input).collect();
        let mut runs = Vec::new();
        if self.geometry.input_spatial() > 0 {
            for_each_position(&inputs, |x| runs.push(self.sums_at(x.iter().map(|x| (0, *x)).chain([(0, 0)]))));
        }
        runs
    }
}

/// The geometry with one axis, if X is one position and the kernel covers Y exactly. Every output then
/// has a tap of its own, so that rows of Y need not be told apart.
fn merged(geometry: &Geometry) -> Option<Geometry> {
    let is_covered = |axis: &Axis| {
        axis.input == 1 && axis.output == axis.kernel && axis.pad_begin == 0 && (axis.dilation == 1 || axis.kernel == 1)
    };
    let taps = geometry.kernel_volume();
    (taps <= MOST_MERGED && geometry.axes.iter().all(is_covered)).then(|| {
        let axis = Axis { kernel: taps, output: taps, ..Axis::UNIT };
        Geometry { axes: alloc::vec![axis], ..geometry.clone() }
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct AccumulateBlocking {
    image_blocks: Blocks,
    split: GemmSplit,
}

impl AccumulateBlocking {
    /// Blocks of at most `images` images.
    fn new(layer: &AccumulateLayer, weights: &ChannelWeights, images: usize, threads: usize) -> Self {
        let image_blocks = Blocks::new(layer.geometry.batch, images);
        let (units, panels) = (image_blocks.count() * weights.groups, weights.count());
        let shares = if threads == 1 { 1 } else { (2 * threads).div_ceil(units).clamp(1, panels.max(1)) };
        let split = GemmSplit { images: image_blocks.count(), groups: weights.groups, columns: 1, panels, shares };
        Self { image_blocks, split }
    }

    /// `tiles` are those of a run of X, or of a full block of images.
    fn work<T: Element>(
        &self,
        request: &Request<'_, T>,
        layer: &AccumulateLayer,
        weights: &ChannelWeights,
        tiles: &ChannelTiles<T::Acc>,
    ) -> Work {
        let (machine, geometry, last) = (request.machine, &layer.geometry, layer.last());
        let (spatial, k_blocks, image_blocks) =
            (geometry.input_spatial(), weights.k.count(), self.image_blocks.count());
        let (images, vectors, runs) = (geometry.batch as f64, weights.vectors() as f64, spatial / layer.run_pixels());
        let rows_of_pixels = match layer.pixels {
            AccumulatePixels::Positions => images,
            AccumulatePixels::Images { .. } => image_blocks as f64,
        };
        // As f64: products of sizes may exceed `usize`.
        let product = |sizes: &[usize]| sizes.iter().map(|size| *size as f64).product::<f64>();
        let of_step = tiles.cycles(machine, weights.rows);
        let multiplying = Item::ARITHMETIC_CYCLES.times(of_step * product(&[weights.channels, weights.taps, runs]))
            + Item::KERNEL_CALLS.times(product(&[tiles.count, runs, weights.taps, weights.count(), k_blocks]));
        let kept = product(&[weights.taps, spatial, k_blocks]) * vectors;
        let rows_of_y = geometry.output_spatial() / last.output;
        let outputs = geometry.output_spatial() as f64;
        let accumulated =
            (rows_of_y * (last.kernel * last.input + layer.lens.row)) as f64 + outputs + layer.lens.sums as f64;
        let storing = Item::STORED_VECTORS.times(kept)
            + Item::ACCUMULATED_VECTORS.times(accumulated * vectors)
            + Item::TRANSPOSED_VECTORS.times(outputs * vectors);
        let value_bytes = size_of::<T::Acc>();
        let fetching = machine.fetch_weights(
            product(&[weights.group_len(), value_bytes, image_blocks]),
            product(&[weights.len(), value_bytes]),
        );
        let packed = images * product(&[weights.channels, spatial, self.split.shares]);
        let of_group = machine.overlapped(multiplying * rows_of_pixels + storing * images, fetching)
            + Item::COPIED_ELEMENTS.times(packed)
            + Item::TASKS.times(product(&[image_blocks, self.split.shares]));
        of_group * geometry.group as f64
    }
}

#[derive(Debug, Clone, Copy)]
struct AccumulatePieces<A> {
    x: Piece<A>,
    sums: Piece<A>,
    /// A row of Y by phases.
    row: Piece<A>,
    tile: Piece<A>,
}

/// A row of pixels that are multiplied.
struct PixelTiles<A: Real> {
    tiles: ChannelTiles<A>,
    /// For each width of a tile, the row offsets of a full block of K of X, and of the last one.
    koff: [(usize, [RowOffsets; 2]); 2],
}

impl<A: Real> PixelTiles<A> {
    fn new(tiles: ChannelTiles<A>, weights: &ChannelWeights) -> Self {
        let widths = [tiles.pixels(0).len(), tiles.pixels(tiles.count - 1).len()];
        let koff = widths.map(|width| (width, weights.k.lens().map(|block| RowOffsets::packed(block, width))));
        Self { tiles, koff }
    }

    fn koff(&self, pixels: usize, is_last: bool) -> &RowOffsets {
        &self.koff[usize::from(self.koff[0].0 != pixels)].1[usize::from(is_last)]
    }
}

struct Accumulate<T: Element> {
    layer: AccumulateLayer,
    isa: Isa,
    finish: Finish<T::Acc>,
    taps: Vec<usize>,
    /// Where the sums of each run of pixels begin, relative to the first run.
    runs: Vec<usize>,
    weights: ChannelWeights,
    blocking: AccumulateBlocking,
    /// For a run of X; or for the images of a full block, and of the last block.
    rows: [PixelTiles<T::Acc>; 2],
    /// For a row of Y.
    stores: ChannelTiles<T::Acc>,
    /// No rows of X.
    nothing: RowOffsets,
    pieces: AccumulatePieces<T::Acc>,
}

/// One task: some panels of one group, for one block of images.
struct AccumulateTask<'a, A: Real> {
    images: Range<usize>,
    group: usize,
    row: &'a PixelTiles<A>,
    /// Images with a row of pixels of their own.
    count: usize,
    /// Pixels at one place of the sums: the images, if they are the pixels.
    step: usize,
    /// Positions of X.
    spatial: usize,
}

impl<A: Real> AccumulateTask<'_, A> {
    /// Where a pixel of a run of an image begins in X as it is packed. A block of K has all
    /// images, an image all its runs of pixels, a run all tiles, and a tile is
    /// `[channels][pixels]`.
    fn x_at(&self, k: &Range<usize>, image: usize, run: usize, pixel: usize) -> usize {
        let images = k.start * self.images.len() + image * k.len();
        images * self.spatial + (run * self.row.tiles.width + pixel) * k.len()
    }
}

/// A panel that is stored into Y.
struct AccumulateStore<'a, 'io, T: Element> {
    store: &'a OutputStore<'a, 'io, T>,
    bias: &'a [T::Acc],
    /// Values of a pixel.
    width: usize,
}

/// The sums of a panel, for one image: every `step`-th pixel of `sums` from the `first` on.
#[derive(Clone, Copy)]
struct PanelSums<'a, A> {
    sums: &'a [A],
    first: usize,
    step: usize,
    /// Values of a pixel.
    width: usize,
    /// Pixels of one tap of the last axis.
    of_tap: usize,
}

impl<'a, A> PanelSums<'a, A> {
    /// The sums from pixel `at` of tap `k` of the last axis on.
    fn of(&self, k: usize, at: usize) -> &'a [A] {
        &self.sums[((k * self.of_tap + at) * self.step + self.first) * self.width..]
    }
}

impl<T: Element> Accumulate<T> {
    /// Packs one block of K of X, with images as pixels.
    fn pack_images(&self, task: &AccumulateTask<'_, T::Acc>, k: &Range<usize>, x: &[T], packed: &mut [T::Acc]) {
        let channels = self.weights.channels;
        for tile in (0..task.row.tiles.count).map(|t| task.row.tiles.pixels(t)) {
            let packed = &mut packed[task.x_at(k, 0, 0, tile.start)..][..k.len() * tile.len()];
            for (packed, c) in packed.chunks_exact_mut(tile.len()).zip(k.clone()) {
                for (value, image) in packed.iter_mut().zip(task.images.start + tile.start..) {
                    *value = x[image * self.layer.geometry.in_channels + task.group * channels + c].to_acc();
                }
            }
        }
    }

    /// Packs one block of K of X, with positions as pixels.
    fn pack_positions(&self, task: &AccumulateTask<'_, T::Acc>, k: &Range<usize>, x: &[T], packed: &mut [T::Acc]) {
        let (tiles, spatial) = (&task.row.tiles, task.spatial);
        for (i, image) in task.images.clone().enumerate() {
            let channel = image * self.layer.geometry.in_channels + task.group * self.weights.channels + k.start;
            for (run, t) in (0..self.runs.len()).flat_map(|run| (0..tiles.count).map(move |t| (run, t))) {
                let tile = tiles.pixels(t);
                let packed = &mut packed[task.x_at(k, i, run, tile.start)..][..k.len() * tile.len()];
                let source = &x[channel * spatial + run * tiles.width + tile.start..];
                stream::pack_rows(self.isa, source, spatial, tile.len(), tile.len(), packed);
            }
        }
    }

    /// Multiplies a panel of weights, of which `real` channels are not padding, by all of X.
    fn multiply(
        &self,
        task: &AccumulateTask<'_, T::Acc>,
        mut w: &[T::Acc],
        real: usize,
        x: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let tiles = &task.row.tiles;
        let (width, calls) = (tiles.panel(real), task.count * self.runs.len() * tiles.count);
        for k in self.weights.k.iter() {
            for at in &self.taps {
                let (tap, next) = w.split_at(k.len() * width);
                w = next;
                // While the first tiles are multiplied, the weights of the next tap are prefetched.
                let next = &next[..next.len().min(tap.len())];
                let mut prefetch =
                    PanelPrefetch::behind(next, calls, tiles.kernel(tiles.pixels(0).len(), real), tiles.rate());
                for image in 0..task.count {
                    for (run, behind) in self.runs.iter().enumerate() {
                        for t in 0..tiles.count {
                            let tile = tiles.pixels(t);
                            let kernel = tiles.kernel(tile.len(), real);
                            let to = (image * self.layer.lens.sums + (at + behind) * task.step + tile.start) * width;
                            let koff = task.row.koff(tile.len(), k.len() != self.weights.k.size());
                            let x = &x[task.x_at(&k, image, run, tile.start)..][..k.len() * tile.len()];
                            let sums = &mut sums[to..to + tile.len() * width];
                            kernel.partial(x, koff.rows(0..k.len()), tap, prefetch.during(k.len()), sums, true);
                        }
                    }
                }
            }
        }
    }

    /// The same for a single position of X whose taps are apart: the sums of all taps are a row
    /// of pixels, in the order of the packed weights.
    fn multiply_position(
        &self,
        task: &AccumulateTask<'_, T::Acc>,
        mut w: &[T::Acc],
        real: usize,
        x: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let tiles = &task.row.tiles;
        for k in self.weights.k.iter() {
            let (taps, next) = w.split_at(self.taps.len() * k.len() * tiles.panel(real));
            w = next;
            let koff = task.row.koff(1, k.len() != self.weights.k.size()).rows(0..k.len());
            tiles.kernel(1, real).panels(self.taps.len(), &x[k.start..k.end], koff, taps, sums, true);
        }
    }

    /// Sums a row of Y of one image, by phases, from the sums of the taps of the last axis.
    fn add_taps(&self, sums: PanelSums<'_, T::Acc>, at: usize, row: &mut [T::Acc]) {
        let (last, width) = (self.layer.last(), sums.width);
        let len = last.input * width;
        row.fill(T::Acc::ZERO);
        for k in 0..last.kernel {
            let (phase, shift) = view::place(last, k);
            let row = &mut row[(phase * self.layer.lens.positions + shift) * width..][..len];
            stream::add_assign(self.isa, row, &sums.of(k, at)[..len]);
        }
    }

    /// Finishes a tile of pixels of a row of Y from element `at` on.
    fn store(&self, panel: &AccumulateStore<'_, '_, T>, tile: &mut [T::Acc], at: usize) {
        let (bias, koff) = (panel.bias, self.nothing.rows(0..0));
        let kernel = self.stores.kernel(tile.len() / panel.width, bias.len());
        let steps = LastSteps { x: &[], koff, w: &[], prefetch: Prefetch::NONE, accumulate: true, bias };
        steps.finish(kernel, tile, at, panel.store);
    }

    /// Finishes the sums of a panel, for one image, into Y from element `at` on.
    fn store_panel(
        &self,
        panel: &AccumulateStore<'_, '_, T>,
        sums: PanelSums<'_, T::Acc>,
        at: usize,
        row: &mut [T::Acc],
        tile: &mut [T::Acc],
    ) {
        let (last, positions, width) = (self.layer.last(), self.layer.lens.positions, sums.width);
        let row = &mut row[..self.layer.lens.row * width];
        // No two taps meet in an output: their sums are the row.
        let is_alone = last.input == 1 && last.dilation == 1;
        for y in 0..self.layer.geometry.output_spatial() / last.output {
            let from = self.layer.sums_of_row(y);
            match from {
                Some(at) if !is_alone => self.add_taps(sums, at, row),
                _ => row.fill(T::Acc::ZERO),
            }
            for t in 0..self.stores.count {
                let pixels = self.stores.pixels(t);
                let tile = &mut tile[..pixels.len() * width];
                for (pixel, o) in tile.chunks_exact_mut(width).zip(pixels.clone()) {
                    let o = o + last.pad_begin;
                    let source = match from {
                        Some(at) if is_alone && o < last.kernel => sums.of(o, at),
                        _ => &row[(o % last.stride * positions + o / last.stride) * width..],
                    };
                    pixel.copy_from_slice(&source[..width]);
                }
                self.store(panel, tile, at + y * last.output + pixels.start);
            }
        }
    }
}

impl<T: Element> Split for Accumulate<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let (images, positions) = (self.blocking.image_blocks.range(part.image), self.layer.geometry.output_spatial());
        patch(Patch::rows(images, self.weights.channels_of(&part), 0..positions, positions));
    }
}

impl<T: Element> Lowering<T> for Accumulate<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(self.isa, Op::ConvTranspose, w, packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.layer.geometry;
        let AccumulateBlocking { image_blocks, split } = self.blocking;
        let Part { image: image_block, group, panels, .. } = split.part(task);
        let (images, spatial) = (image_blocks.range(image_block), geometry.input_spatial());
        let are_images = self.layer.pixels != AccumulatePixels::Positions;
        let row = &self.rows[usize::from(are_images && images.len() != image_blocks.size())];
        let (count, step) = if are_images { (1, images.len()) } else { (images.len(), 1) };
        let task = AccumulateTask { images: images.clone(), group, row, count, step, spatial };
        let mut arena = Arena::new(scratch);
        let (x, sums) = (arena.get(self.pieces.x), arena.get(self.pieces.sums));
        let (row, tile) = (arena.get(self.pieces.row), arena.get(self.pieces.tile));
        for k in self.weights.k.iter().filter(|k| !k.is_empty()) {
            match self.layer.pixels {
                AccumulatePixels::Positions => self.pack_positions(&task, &k, io.x, x),
                AccumulatePixels::Images { .. } => self.pack_images(&task, &k, io.x, x),
            }
        }
        let (weights, nr) = (self.weights.of_group(io.weights, group), self.weights.nr());
        let store = self.finish.store(io);
        let is_row = self.layer.pixels == AccumulatePixels::Images { are_taps_apart: true } && images.len() == 1;
        for first in panels.map(|p| p * nr) {
            let width = task.row.tiles.panel(self.weights.rows - first);
            let real = width.min(self.weights.rows - first);
            let w = &weights[first * self.weights.steps()..];
            let sums = &mut sums[..self.layer.lens.sums * images.len() * width];
            sums.fill(T::Acc::ZERO);
            let channel = group * self.weights.rows + first;
            let panel = AccumulateStore { store: &store, bias: &io.bias[channel..channel + real], width };
            let at = |image: usize| geometry.output_offset(image, channel, 0);
            if is_row {
                self.multiply_position(&task, w, real, x, sums);
                for pixels in (0..self.stores.count).map(|t| self.stores.pixels(t)) {
                    let tile = &mut sums[pixels.start * width..pixels.end * width];
                    self.store(&panel, tile, at(images.start) + pixels.start);
                }
                continue;
            }
            self.multiply(&task, w, real, x, sums);
            let (len, of_tap) = (self.layer.lens.sums * width, self.layer.of_tap());
            for (i, image) in images.clone().enumerate() {
                let (sums, first) = if are_images { (&*sums, i) } else { (&sums[i * len..][..len], 0) };
                self.store_panel(&panel, PanelSums { sums, first, step, width, of_tap }, at(image), row, tile);
            }
        }
    }
}
