//! Conv as implicit GEMM with vectors along output channels: for few output positions, where
//! vectors along positions would run half empty. ConvTranspose of small maps ([`added`]).
//!
//! The transposed product of [`implicit_gemm`](super::implicit_gemm): M = output positions, N =
//! M/group, K = C/group * kernel volume, for each image and group. The broadcasts are elements of
//! the padded planes, the vectors packed weights, `[NR channels][K][NR]`. Every position is a real
//! one: there are no garbage columns, and where weights are finite, taps that see only padding
//! along the outermost axis are left out; where that pays, on all axes, on planes without padding
//! ([`unpadded`]). Accepts every Conv whose planes' offsets fit 32 bits, and what [`added`]
//! accepts. Scratch for a task: as `implicit_gemm`'s, with the sums pixel-major.

mod added;
mod images;
mod last_steps;
mod unpadded;
mod weights;

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::catalogue::channel_kernels;
use convoke_kernels::{ChannelKernel, Isa, Real, RowOffsets};

use self::last_steps::LastSteps;
use self::weights::Weights;
use super::channel_tiles::{ChannelTiles, Fetch};

use super::planes::{self, PER_THREAD, PaddedPlanes, Slab};
use super::sink::Finish;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::shares::Part;
use crate::{Geometry, Op};

/// Steps of k in a block, at the most (one channel's taps may be more): 64 channels of 3x3. A panel
/// of weights of 32 f32 channels is more than the L1 cache holds, but it is read in order and
/// fetched ahead; with 256 steps, so that it stays there, layers of many steps took 1 to 7 %
/// longer, for their sums' way to scratch and back.
const KC: usize = 576;
/// Channels whose sums are kept at a time between blocks of k, at the most (768 to 3072 channels,
/// 14x14: 215 instead of 197 GFLOP/s).
const MOST_SUMMED: usize = 1536;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    // ConvTranspose's taps are added, not summed.
    let taps = if geometry.op == Op::Conv { geometry.kernel_volume() } else { 1 };
    let block = planes::channels_per_block(geometry.in_channels_per_group(), taps, KC);
    match request.layout {
        Some(WeightLayout::ChannelPanels { block: packed, .. }) if *packed != block => {
            return Err(alloc::format!("the weights are packed in blocks of {packed} channels, not of {block}"));
        }
        _ => {}
    }
    if geometry.op == Op::ConvTranspose {
        return added::offer(request, block, most);
    }
    if images::covers(geometry) {
        return images::offer(request, block, most);
    }
    let geometry = merged(geometry);
    // Which of the two it is depends on no limit and no number of threads, so that no sum does.
    let alone = Request { threads: 1, ..*request };
    let is_unpadded = unpadded::offer(&alone, &geometry, block, usize::MAX).is_some_and(|whole| {
        padded(&alone, geometry.clone(), block, usize::MAX)
            .map_or(true, |other| whole.recipe.work.cycles() < other.recipe.work.cycles())
    });
    if is_unpadded {
        unpadded::offer(request, &geometry, block, most)
            .ok_or_else(|| String::from("X's rows that a tile sees are too large"))
    } else {
        padded(request, geometry, block, most)
    }
}

/// An offer on padded planes, for channels in blocks of `block`.
fn padded<'a, T: Element>(request: &'a Request<'a, T>, geometry: Geometry, block: usize, most: usize) -> Answer<'a, T> {
    let (channels_out, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
    let k_blocks = channels.div_ceil(block);
    // The sums of more channels would leave room for few positions, for each of which the weights
    // are read again.
    let least = if k_blocks > 1 { channels_out.div_ceil(MOST_SUMMED).max(1) } else { 1 };
    let mut shape = Shape::new(request, &geometry, block, most, least, PER_THREAD[0])?;
    if request.threads > 1 {
        // Threads that share the channels out read the weights once, but each copies X.
        let shares = [least, request.threads].into_iter().take(if least < request.threads { 2 } else { 1 });
        for (shares, per_thread) in shares.flat_map(|n| PER_THREAD.map(|m| (n, m))).skip(1) {
            if let Ok(other) = Shape::new(request, &geometry, block, most, shares, per_thread)
                && other.busy < shape.busy
            {
                shape = other;
            }
        }
    }
    let Shape { axis, extent, slabs, tiles, kernel, splits, planes_len, tiles_len, cycles, .. } = shape;
    let weights = Weights::new(&geometry, (channels_out, geometry.kernel_volume()), tiles[0].panels, block)?;
    Ok(Offer::old(
        request.machine,
        cycles / request.machine.clock_ghz,
        lines_for::<T::Acc>(planes_len).saturating_add(lines_for::<T::Acc>(tiles_len)),
        Box::new(move || {
            let planes = PaddedPlanes::new(&geometry, axis, extent, true);
            let last_block = channels - (k_blocks.max(1) - 1) * block;
            Box::new(ChannelGemm {
                isa: request.isa(),
                finish: Finish::new(request),
                koff: [planes.offsets(block), planes.offsets(last_block)],
                planes,
                slabs,
                tiles,
                kernel,
                weights,
                splits,
                planes_len,
                tiles_len,
                geometry,
            })
        }),
    ))
}

/// How the positions are cut into slabs, and the panels into shares.
struct Shape<A: Real> {
    /// The slabs' axis, and their extent on it.
    axis: usize,
    extent: usize,
    /// Of an image and group.
    slabs: usize,
    /// For a full slab, and for the last one along the last axis.
    tiles: [ChannelTiles<A>; 2],
    /// That does most of the work.
    kernel: &'static ChannelKernel<A>,
    splits: usize,
    planes_len: usize,
    tiles_len: usize,
    /// Of all tasks; and of all threads, until the last one is done.
    cycles: f64,
    busy: f64,
}

impl<A: Real> Shape<A> {
    /// With at least `shares` shares of the panels, as far as there are so many panels, and slabs
    /// for `per_thread` tasks of each thread.
    fn new<T: Element<Acc = A>>(
        request: &Request<'_, T>,
        geometry: &Geometry,
        block: usize,
        most: usize,
        shares: usize,
        per_thread: usize,
    ) -> Result<Self, String> {
        let (machine, prices) = (request.machine, request.machine.prices());
        let (channels_out, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let (taps, k_blocks) = (geometry.kernel_volume(), channels.div_ceil(block));
        let lanes = channel_kernels::<A>(request.isa()).first().map_or(1, ChannelKernel::lanes);
        let shares = shares.min(channels_out.div_ceil(2 * lanes)).max(1);
        let of_share = channels_out.div_ceil(shares);
        let sums_of = |columns: usize| if k_blocks > 1 { columns * of_share.next_multiple_of(2 * lanes) } else { 0 };
        let choice = planes::SlabChoice {
            images: (geometry.batch * geometry.group).saturating_mul(shares),
            block,
            budget: planes::budget_beside(machine, (of_share * block * taps).saturating_mul(size_of::<A>())).min(most),
            bytes: size_of::<A>(),
            threads: request.threads,
            per_thread,
            is_aligned: true,
        };
        let Some((axis, extent, sizes)) = choice.slab(&geometry.axes, sums_of) else {
            return Err(planes::too_large(&geometry.axes, planes::MOST_BYTES));
        };
        let last = geometry.axes.len() - 1;
        let width = if axis == last { extent } else { geometry.axes[last].output };
        let no_kernel = || String::from("no kernel for this tile");
        let tiles = ChannelTiles::<A>::new(machine, width).ok_or_else(no_kernel)?;
        // The last slab along the last axis is narrower.
        let rest = geometry.axes[last].output % extent;
        let edge = if axis == last && rest != 0 { rest } else { width };
        let edge_tiles = ChannelTiles::<A>::new(machine, edge).ok_or_else(no_kernel)?;
        let rows = (0..last).map(|i| planes::positions_on(&geometry.axes, (axis, extent), i)).product::<usize>();
        let panels = channels_out.div_ceil(tiles.nr());
        let slabs = geometry.batch * geometry.group * sizes.slabs;
        let splits = if request.threads == 1 { 1 } else { request.threads.div_ceil(slabs) };
        let splits = splits.max(shares).clamp(1, panels.max(1));
        let share = panels.div_ceil(splits) * tiles.nr();
        let tile_len = tiles.nr() * tiles.most_pixels().max(edge_tiles.most_pixels());
        let stores = (rows * width) as f64 * channels_out as f64 / lanes as f64
            * (prices.transposed_store_cycles + prices.sum_cycles * k_blocks.saturating_sub(1) as f64);
        // Taps of the outermost axis are left out where they see padding.
        let first = &geometry.axes[0];
        let live =
            (0..if last > 0 { first.kernel } else { 0 }).map(|tap| first.outputs_of_tap(tap).len()).sum::<usize>();
        let live = if last > 0 { live as f64 / (first.kernel * first.output) as f64 } else { 1.0 };
        let cycles = tiles.cycles_of_rows(machine, rows, channels_out) * (channels * taps) as f64 * live
            + stores
            + (channels * sizes.channel_len) as f64 * splits as f64 * prices.plane_cycles
            + prices.task_cycles;
        let weights = geometry.weight_len() as f64 * size_of::<A>() as f64;
        // Of a slab.
        let cycles =
            machine.overlapped(cycles, machine.fetch_weights(weights / geometry.group as f64, weights).cycles());
        let padded = tiles.padded(channels_out);
        let work =
            |panels: Range<usize>| (panels.end * tiles.nr()).min(padded).saturating_sub(panels.start * tiles.nr());
        // Hostile sizes may exceed usize.
        let tasks = slabs.saturating_mul(splits);
        let uneven = Part::unevenness(tasks, panels, splits, request.threads, work);
        Ok(Self {
            axis,
            extent,
            slabs: sizes.slabs,
            splits,
            planes_len: block * sizes.channel_len,
            tiles_len: if k_blocks > 1 { rows * width * share } else { tile_len },
            cycles: cycles * slabs as f64,
            busy: uneven * cycles * slabs as f64,
            kernel: tiles
                .two_rows(tiles.nr())
                .filter(|_| rows > 1)
                .unwrap_or_else(|| tiles.kernel(tiles.pixels(0).len(), tiles.nr())),
            tiles: [tiles, edge_tiles],
        })
    }
}

/// The geometry with axes that a pointwise kernel treats alike merged into one, so that rows of
/// pixels are long.
fn merged(geometry: &Geometry) -> Geometry {
    let mut geometry = geometry.clone();
    if geometry.axes.iter().all(|a| a.kernel == 1 && a.stride == 1 && a.pad_begin + a.pad_end == 0) {
        let mut axis = geometry.axes[0];
        axis.input = geometry.input_spatial();
        axis.output = axis.input;
        geometry.axes = alloc::vec![axis];
    }
    geometry
}

struct ChannelGemm<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// For a full slab, and for the last one along the last axis.
    tiles: [ChannelTiles<T::Acc>; 2],
    /// That does most of the work.
    kernel: &'static ChannelKernel<T::Acc>,
    planes: PaddedPlanes,
    slabs: usize,
    /// The rows of a full block of k, and of the last one.
    koff: [RowOffsets; 2],
    weights: Weights,
    /// Shares that the panels of weights are split into.
    splits: usize,
    planes_len: usize,
    tiles_len: usize,
}

/// One block of k of one task.
struct BlockOfK<'a, A> {
    planes: &'a [A],
    koff: &'a RowOffsets,
    /// Channels of the block.
    width: usize,
    is_first: bool,
    is_last: bool,
}

impl<T: Element> ChannelGemm<T> {
    fn part(&self, task: usize) -> Part {
        let count = self.geometry.out_channels_per_group().div_ceil(self.tiles[0].nr());
        Part::new((task, self.tasks()), self.geometry.group, self.slabs, count, self.splits)
    }

    /// Multiplies one block of k for the panels `panels` of one slab.
    #[expect(clippy::too_many_arguments, reason = "the coordinates of a task")]
    fn multiply(
        &self,
        io: &Io<'_, T>,
        image: usize,
        group: usize,
        panels: Range<usize>,
        slab: &Slab,
        k: &BlockOfK<'_, T::Acc>,
        k_start: usize,
        sums: &mut [T::Acc],
    ) {
        let geometry = &self.geometry;
        let channels = geometry.out_channels_per_group();
        let spatial = geometry.output_spatial();
        let is_edge = self.planes.axis() + 1 == geometry.axes.len() && !self.planes.is_full(slab);
        let tiles = &self.tiles[usize::from(is_edge)];
        let rows = self.planes.slab_len(slab) / tiles.width;
        let per_row = spatial / geometry.axes[0].output;
        // Along the last axis, the pixels of a row differ in it.
        let can_skip = io.is_finite && geometry.axes.len() > 1 && geometry.axes[0].is_padded();
        let inner_taps = geometry.kernel_volume() / geometry.axes[0].kernel;
        let (weights, k_total) = (self.weights.of_group(io.weights, group), self.weights.steps());
        let sink = self.finish.sink(io);
        let is_blocked = !(k.is_first && k.is_last);
        let taps_of = |row: usize| match can_skip {
            true => geometry.axes[0].taps_of_output((slab.first + row * tiles.width) / per_row),
            false => 0..geometry.axes[0].kernel,
        };
        for p in panels.clone() {
            let first = p * tiles.nr();
            let live = tiles.nr().min(channels - first);
            let nr = tiles.kernel(tiles.pixels(0).len(), live).nr();
            let panel = &weights[first * k_total..][k_start * nr..(k_start + k.width * geometry.kernel_volume()) * nr];
            // While the first tiles are computed, the next panel is fetched.
            let next = match p + 1 {
                next if next < panels.end => weights.get(first * k_total + tiles.nr() * k_total + k_start * nr..),
                _ => weights
                    .get((panels.start * tiles.nr()) * k_total + (k_start + k.width * geometry.kernel_volume()) * nr..),
            }
            .map_or(&[][..], |next| &next[..panel.len().min(next.len())]);
            // Of several blocks of K, a panel's next one lies behind the first, and not the next
            // panel.
            let fetch = if is_blocked { Fetch::new } else { Fetch::behind };
            let of_two_rows = tiles.two_rows(live);
            let kernel = of_two_rows.unwrap_or_else(|| tiles.kernel(tiles.pixels(0).len(), live));
            let mut fetch = fetch(next, rows.div_ceil(kernel.rows()) * tiles.count, kernel, tiles.rate());
            let mut row = 0;
            while row < rows {
                let pixels_of_row = self.planes.row_offset(row);
                let mut taps = taps_of(row);
                let (mut two_rows, mut pitch) = (None, 0);
                if of_two_rows.is_some()
                    && row + 1 < rows
                    && let Some((kernel, joined)) = tiles.joined(live, [&taps, &taps_of(row + 1)])
                {
                    (two_rows, taps) = (Some(kernel), joined);
                    pitch = self.planes.row_offset(row + 1) - pixels_of_row;
                }
                let steps = taps.start * inner_taps * k.width..taps.end * inner_taps * k.width;
                let w = &panel[steps.start * nr..steps.end * nr];
                let koff = k.koff.rows(steps).with_pitch(pitch);
                for t in 0..tiles.count {
                    let pixels = two_rows.map_or_else(|| tiles.pixels(t), |kernel| 0..kernel.mr());
                    let kernel = two_rows.unwrap_or_else(|| tiles.kernel(pixels.len(), live));
                    let x = &k.planes[pixels_of_row + pixels.start..];
                    let kept = if is_blocked {
                        ((p - panels.start) * rows * tiles.width + row * tiles.width + pixels.start) * tiles.nr()
                    } else {
                        0
                    };
                    let tile = &mut sums[kept..kept + pixels.len() * nr];
                    let next = fetch.during(koff.len());
                    if !k.is_last {
                        kernel.partial(x, koff, w, next, tile, !k.is_first);
                        continue;
                    }
                    let channel = group * channels + first;
                    let bias = &io.bias[channel..channel + live];
                    let position = slab.first + row * tiles.width + pixels.start;
                    let at = (image * geometry.out_channels + channel) * spatial + position;
                    let steps = LastSteps { x, koff, w, ahead: next, accumulate: !k.is_first, bias };
                    steps.finish(kernel, tile, at, &sink);
                }
                row += two_rows.map_or(1, ChannelKernel::rows);
            }
        }
    }
}

impl<T: Element> Split for ChannelGemm<T> {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group * self.slabs * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.part(task);
        let rows = self.weights.rows_of(&part.panels);
        patch(part.patch(&self.geometry, rows, self.planes.positions(part.columns)));
    }
}

impl<T: Element> Lowering<T> for ChannelGemm<T> {
    fn layout(&self) -> WeightLayout {
        self.weights.layout()
    }

    fn describe(&self) -> String {
        let k = self.weights.block * self.weights.taps;
        alloc::format!(
            "{}, rows of {} pixels in {} tiles, K in blocks of {k}, {} slabs, panels in {} shares",
            self.kernel(),
            self.tiles[0].width,
            self.tiles[0].count,
            self.slabs,
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        self.weights.len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(w, packed);
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.part(task);
        let slab = self.planes.slab(columns);
        let mut arena = Arena::new(scratch);
        let planes = arena.take::<T::Acc>(self.planes_len);
        let sums = arena.take::<T::Acc>(self.tiles_len);
        let (channels, taps) = (geometry.in_channels_per_group(), geometry.kernel_volume());
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        // Without channels there is still the bias to be stored: one empty block.
        for first in (0..channels.max(1)).step_by(self.weights.block) {
            let width = self.weights.block.min(channels - first);
            let x = &x[first * geometry.input_spatial()..];
            self.planes.fill(self.isa, &slab, x, &mut planes[..width * self.planes.channel_len]);
            let k = BlockOfK {
                planes,
                koff: &self.koff[usize::from(width != self.weights.block)],
                width,
                is_first: first == 0,
                is_last: first + width == channels,
            };
            self.multiply(io, image, group, panels.clone(), &slab, &k, first * taps, sums);
        }
    }
}
