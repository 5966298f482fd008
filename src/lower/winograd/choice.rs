//! Which tile, and which blocks of tiles: by estimated cost.

use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::winograd::Tile;

use super::blocks::{Blocks, Cut, Extent};
use super::shape::{STANDARD_VALUES, Scheme, SubImage, View, depth_tasks, distance, is_ragged};
use super::shares::{self, Piece};
use super::steps::Steps;
use crate::element::Element;
use crate::lower::channel_tiles::ChannelTiles;
use crate::lower::contract::Request;
use crate::machine::Machine;

/// Bytes of a task's scratch, at the most: a limit of memory, as more gain nothing.
const MOST_BYTES: usize = 8 << 20;
/// Rows, or columns, of tiles that blocks are tried with.
const EXTENTS: [usize; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256];
/// Tiles of a block, at the most, for the same reason.
pub(super) const MOST_TILES: usize = 256;
/// Blocks of an image that are [cut into tiles](Cut::Tiles), at the most: each of them may have a
/// size of its own.
const MOST_PARTS: usize = 32;

/// A tile, a blocking and its estimated cost.
pub(super) struct Choice<T: Real> {
    pub(super) scheme: Scheme<T>,
    pub(super) blocks: Blocks,
    /// Shares that the panels of channels are split into.
    pub(super) splits: usize,
    /// Panels of a share that are multiplied value by value before their products are taken back.
    pub(super) together: usize,
    /// Cycles until all threads are done, and of all tasks together.
    latency: f64,
    pub(super) cycles: f64,
}

impl<T: Real> Choice<T> {
    /// The best blocking of a scheme for a number of threads.
    pub(super) fn new<E: Element<Acc = T>>(
        request: &Request<'_, E>,
        view: &View,
        scheme: Scheme<T>,
        threads: usize,
    ) -> Option<Self> {
        let (rows, columns) = scheme.grid(&view.roles);
        if !scheme.has_few_steps(view) {
            return None;
        }
        let steps = Steps::new(view, &scheme).all();
        let mut best: Option<Self> = None;
        // Where nothing keeps the limit of the workspace, the smallest block is offered, for the
        // planner to say so.
        let mut smallest: Option<(usize, Blocks)> = None;
        let mut consider = |images: usize, cut: Cut, parts: usize| {
            debug_assert!(
                images == 1 || images * rows * columns <= MOST_TILES,
                "{images} images of {rows} x {columns}"
            );
            let Some(blocks) = Blocks::new(view, &scheme, images, cut, parts) else { return };
            let bytes = scratch_bytes(view, &scheme, &blocks, 1);
            if bytes > MOST_BYTES {
                return;
            }
            if bytes > request.task_bytes {
                if smallest.is_none_or(|(least, _)| bytes < least) {
                    smallest = Some((bytes, blocks));
                }
                return;
            }
            // Tiles are even without shares of the panels.
            let ways = match cut {
                Cut::Tiles => 1,
                _ if threads == 1 => 1,
                _ if threads <= shares::MOST_CUT => 2,
                // More shares have whole panels, of which there may be fewer.
                _ => 3,
            };
            for splits in [1, threads, shares::MOST_CUT].into_iter().take(ways) {
                let limit = request.task_bytes.min(MOST_BYTES);
                if let Some(choice) =
                    Self::estimate(request.machine, view, scheme, steps, blocks, (threads, splits), limit)
                    && best.as_ref().is_none_or(|best| choice.latency < best.latency)
                {
                    best = Some(choice);
                }
            }
        };
        // Several small images, where there are more of them than threads.
        let batch = SubImage::count(&view.roles, view.batch);
        let (of_thread, of_block) = (batch.div_ceil(threads), MOST_TILES / rows.saturating_mul(columns).max(1));
        let (mut images, mut last) = (2, 1);
        let most = of_thread.min(of_block);
        while last < most {
            consider(images.min(most), Cut::Rows, 1);
            // As many for each thread.
            let even = batch.div_ceil(batch.div_ceil(images).next_multiple_of(threads));
            if even > last && even < images {
                consider(even, Cut::Rows, 1);
            }
            last = images;
            images *= 2;
        }
        // Whole rows of tiles, or parts of one.
        let mut last = 0;
        for height in EXTENTS.map(|height| height.min(rows)) {
            if height.saturating_mul(columns) > MOST_TILES {
                break;
            }
            let parts = rows.div_ceil(height);
            if parts != last {
                consider(1, Cut::Rows, parts);
                // Equally many for each thread.
                let even = parts.checked_next_multiple_of(threads).filter(|even| *even != parts);
                even.into_iter().for_each(|parts| consider(1, Cut::Rows, parts));
            }
            last = parts;
        }
        last = 0;
        for width in EXTENTS.into_iter().filter(|width| *width < columns) {
            let parts = columns.div_ceil(width);
            if parts != last {
                consider(1, Cut::Columns, parts);
            }
            last = parts;
        }
        // Equally many tiles for each thread, where rows are not.
        let mut parts = threads;
        while !rows.is_multiple_of(threads) && parts <= MOST_PARTS && parts < 2 * rows {
            if rows.saturating_mul(columns) <= MOST_TILES * parts {
                consider(1, Cut::Tiles, parts);
            }
            parts += threads;
        }
        best.or_else(|| Self::estimate(request.machine, view, scheme, steps, smallest?.1, (threads, 1), 0))
    }

    /// The cost of a blocking with a task's scratch of at most `limit` bytes, or the least there
    /// is; all values of a slice have `steps` steps of k. None where a kernel is lacking.
    fn estimate(
        machine: &Machine,
        view: &View,
        scheme: Scheme<T>,
        steps: usize,
        blocks: Blocks,
        (threads, splits): (usize, usize),
        limit: usize,
    ) -> Option<Self> {
        let roles = &view.roles;
        let largest = largest(&blocks)?;
        let nr = ChannelTiles::<T>::new(machine, largest.run_len())?.nr();
        let panels = view.rows.div_ceil(nr).max(1);
        let splits = splits.min(panels.saturating_mul(shares::parts(&largest, splits)));
        let together = Traffic::new(machine, view, &scheme, steps, &largest, nr)
            .together(panels.div_ceil(splits), |together| scratch_bytes(view, &scheme, &blocks, together) <= limit);
        let repeats = (view.groups * depth_tasks(roles)).checked_mul(splits)?;
        // The first share, the last one and the one in the middle: others are like these.
        let samples = if panels.is_multiple_of(splits) { 1 } else { splits.min(3) };
        let samples = || [0, splits - 1, splits / 2].into_iter().take(samples);
        let (mut tasks, mut cycles) = (0_usize, 0.0);
        // The longest tasks, and how many there are of them.
        let (mut longest, mut long) = (0.0, 0);
        blocks.for_each_size(|extent, count| {
            // Blocks of an image use a group's filters one after the other.
            let of_image = blocks.of_image();
            let task = |index: usize| {
                let pieces = shares::pieces(&extent, panels, (index, splits));
                Self::task_cycles(machine, view, &scheme, steps, &extent, (of_image, pieces), together)
            };
            let count = count.checked_mul(repeats)?;
            tasks = tasks.checked_add(count)?;
            let (mut sum, mut most) = (0.0, 0.0_f64);
            for index in samples() {
                let cycles = task(index)?;
                (sum, most) = (sum + cycles, most.max(cycles));
            }
            cycles += count as f64 * sum / samples().count() as f64;
            // Of a thread's tasks, all may be the same share of several blocks.
            if most > longest {
                (longest, long) = (most, 0);
            }
            if most == longest {
                long += count;
            }
            Some(())
        })?;
        // With more tasks than threads, the last one to end holds the others up by a part of it;
        // and where tasks are few, one thread has more of them than others, or more of the longest.
        let most = |tasks: usize| tasks.div_ceil(threads) as f64;
        let shared = cycles / threads as f64 + machine.prices().idle_share * longest;
        let uneven = (most(tasks) * cycles / tasks as f64).max(most(long) * longest);
        let latency = if tasks <= threads { longest } else { shared.max(uneven) };
        Some(Self { scheme, blocks, splits, together, latency, cycles })
    }

    /// Cycles of a task with a block of this size, one of several that use the same filters, and
    /// these pieces of their panels. None where a kernel is lacking.
    fn task_cycles(
        machine: &Machine,
        view: &View,
        scheme: &Scheme<T>,
        slice_steps: usize,
        extent: &Extent,
        (blocks, pieces): (usize, impl Iterator<Item = Piece>),
        together: usize,
    ) -> Option<f64> {
        let (bytes, prices) = (size_of::<T>() as f64, machine.prices());
        let tiles = ChannelTiles::<T>::new(machine, extent.run_len())?;
        let View { channels, rows: channels_out, ref roles, .. } = *view;
        let panels = channels_out.div_ceil(tiles.nr());
        let values = scheme.kernel.values() as f64;
        let steps = (roles.depth.kernel * slice_steps) as f64;
        // One slice in, one slice out.
        let padded = |tiles: usize, tile: Tile| tiles * tile.outputs + tile.values - tile.outputs;
        let padded_len = (extent.images
            * padded(extent.input_rows, scheme.down.tile)
            * padded(extent.input_columns, scheme.along.tile)) as f64;
        let vectors = (extent.images * extent.image_input_tiles().div_ceil(scheme.kernel.lanes())) as f64;
        let lanes = scheme.kernel.lanes() as f64;
        // Phases of a stride are picked before they are split.
        let picked = if view.strides[1] == 1 { 0.0 } else { padded_len * prices.pick_cycles };
        let input_calls = extent.images as f64 * prices.transform_call_cycles;
        let is_wide = scheme.kernel.values() > STANDARD_VALUES;
        let wide = if is_wide { prices.wide_transform } else { 1.0 };
        let input = channels as f64
            * (input_calls
                + picked
                + wide * (padded_len / lanes * prices.split_cycles + vectors * values * prices.input_cycles));
        // Without taps along it, the slices of the outer axis are tasks of their own.
        let depths = depth_tasks(roles);
        let slices_in = roles.depth.input.min((roles.depth.output - 1) * roles.depth.stride + roles.depth.kernel)
            as f64
            / depths as f64;
        // The GEMMs of one panel.
        let steps_of_value = steps / values;
        // As many values down the column are dropped as outputs.
        let dropped = extent.spare * scheme.kernel.along().values;
        let compute = |rows: &Range<usize>| {
            let cycles = |is_short: bool| extent.cycles::<T>(machine, rows, is_short, steps_of_value);
            let all = cycles(false)?;
            let saved = if dropped == 0 { 0.0 } else { (all - cycles(true)?).max(0.0) };
            Some(values * all - dropped as f64 * saved)
        };
        let padded = tiles.padded(channels_out) as f64;
        let filters = steps * padded * bytes;
        let traffic = Traffic::new(machine, view, scheme, slice_steps, extent, tiles.nr());
        // Filters are fetched ahead of their use, which hides most of the shorter of the two;
        // transformed tiles that left the L2 cache are waited for.
        let panel = filters / padded * tiles.nr() as f64;
        // The first of the tasks finds them where all groups' filters are kept.
        let (others, later) = ((view.groups - 1) as f64 * filters, (blocks - 1) as f64);
        let streamed =
            |filters: f64| prices.fetch_ahead * from_beyond_l2(machine, filters + traffic.v + traffic.products, panel);
        let streamed = (streamed(filters + others) + later * streamed(filters)) / blocks as f64;
        let ahead = streamed.max(panel / machine.l2_bytes_per_cycle);
        let late = traffic.late(panels, together);
        let input = input + traffic.late(1, 1);
        // Panels that are cut count as what they have of the rows.
        let (mut gemm, mut share) = (0.0, 0.0);
        for Piece { panels, rows } in pieces {
            gemm += panels.len() as f64 * machine.overlapped(compute(&rows)?, ahead);
            share += panels.len() as f64 * rows.len() as f64 / extent.all_rows().len() as f64;
        }
        let share = share / panels as f64;
        let gemm = gemm + late * share;
        let pixels = (scheme.down.tile.outputs * scheme.along.tile.outputs) as f64;
        let interleaving = if view.has_phases { pixels * prices.phase_cycles } else { 0.0 };
        let output_calls = (extent.images * extent.rows) as f64 * prices.transform_call_cycles;
        let is_ragged = is_ragged(scheme.kernel);
        let taking = values * prices.output_cycles * wide * if is_ragged { prices.ragged_output } else { 1.0 };
        let output = (padded / lanes) * (output_calls + extent.own_tiles() as f64 * (taking + interleaving));
        let slices_out = roles.depth.output as f64 / depths as f64;
        let task = slices_in * input + slices_out * (gemm + output * share) + prices.task_cycles;
        // Interleaved pixels are gathered and scattered one by one.
        let scattered = (extent.own_tiles() * channels_out) as f64 * share * pixels;
        let apart = if distance(&roles.along) == 1 {
            0.0
        } else {
            (channels as f64 * padded_len + scattered) * prices.scatter_cycles
        };
        Some(task + apart * slices_out)
    }
}

/// The block with the most places of tiles.
fn largest(blocks: &Blocks) -> Option<Extent> {
    let mut largest: Option<Extent> = None;
    blocks.for_each_size(|extent, _| {
        if largest.is_none_or(|largest| largest.tiles() < extent.tiles()) {
            largest = Some(extent);
        }
        Some(())
    })?;
    largest
}

/// About the bytes of a task's scratch.
fn scratch_bytes<T: Real>(view: &View, scheme: &Scheme<T>, blocks: &Blocks, together: usize) -> usize {
    let mut most = 0;
    blocks.for_each_size(|extent, _| {
        most = most.max(extent.scratch_len(scheme, view, together));
        Some(())
    });
    most.saturating_mul(size_of::<T>())
}

/// What leaves the L2 cache comes from the next level: not all at once when it is full.
fn from_beyond_l2(machine: &Machine, resident: f64, traffic: f64) -> f64 {
    let l2_share = machine.prices().l2_share;
    let missing = (resident / machine.l2_bytes as f64 - l2_share) / l2_share;
    missing.clamp(0.0, 1.0) * traffic * machine.cycles_beyond_l2(resident)
}

/// Bytes of what the GEMMs of a slice of a block touch beside Y.
struct Traffic<'m> {
    machine: &'m Machine,
    /// Transformed tiles, of all values.
    v: f64,
    /// Filters and products of one panel, of all values.
    filters: f64,
    products: f64,
    values: f64,
}

impl<'m> Traffic<'m> {
    fn new<T: Real>(
        machine: &'m Machine,
        view: &View,
        scheme: &Scheme<T>,
        steps: usize,
        extent: &Extent,
        nr: usize,
    ) -> Self {
        let values = scheme.kernel.values() as f64;
        let bytes = values * size_of::<T>() as f64;
        let slices = view.roles.depth.kernel as f64;
        Self {
            machine,
            v: slices * bytes * view.channels as f64 * extent.input_tiles() as f64,
            filters: slices * (steps * nr * size_of::<T>()) as f64,
            products: bytes * extent.tiles() as f64 * nr as f64,
            values,
        }
    }

    /// Cycles that are waited for transformed tiles and products that left the L2 cache, while
    /// `panels` panels are multiplied, `together` of them for each value: tiles are read once for
    /// those, and products of more than one panel leave it until they are taken back.
    fn late(&self, panels: usize, together: usize) -> f64 {
        let resident = self.v + together as f64 * self.products + 2.0 * self.filters / self.values;
        let tiles = panels.div_ceil(together) as f64 * self.v;
        let products = 2.0 * (panels - panels.div_ceil(together)) as f64 * self.products;
        from_beyond_l2(self.machine, resident, tiles + products)
    }

    /// How many panels to multiply together for the least [`late`](Self::late): the fewest, of
    /// those whose scratch `fits`.
    fn together(&self, panels: usize, fits: impl Fn(usize) -> bool) -> usize {
        let (mut best, mut least) = (1, self.late(panels, 1));
        let mut together = 2;
        while together < 2 * panels && fits(together.min(panels)) {
            let late = self.late(panels, together.min(panels));
            if late < least {
                (best, least) = (together.min(panels), late);
            }
            together *= 2;
        }
        best
    }
}
