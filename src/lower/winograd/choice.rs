//! Which tile, and which blocks of tiles: by estimated cost.

use convoke_kernels::{Isa, Real};

use super::shape::{Extent, Roles, Scheme, depth_tasks, distance, phases};
use crate::Geometry;
use crate::element::Element;
use crate::lower::Request;
use crate::lower::channel_tiles::Tiles;
use crate::lower::cost::{
    FETCH_AHEAD, GEMM_CALL_CYCLES, INPUT_CYCLES, L2_SHARE, L3_BYTES_PER_CYCLE, L3_SHARE, MEMORY_BYTES_PER_CYCLE,
    OUTPUT_CYCLES, SCATTER_CYCLES, SPLIT_CYCLES, TASK_CYCLES,
};
use crate::lower::engine::tile_cycles;

/// Share of a task that threads wait for the last one.
const IDLE_SHARE: f64 = 0.1;
/// Bytes of a task's scratch, at the most: more gain nothing.
const MOST_BYTES: usize = 8 << 20;
/// Rows, or columns, of tiles that blocks are tried with.
const EXTENTS: [usize; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256];
/// Tiles of a block, at the most, for the same reason.
const MOST_TILES: usize = 256;

/// A tile, a blocking and its estimated cost.
pub(super) struct Choice<T: Real> {
    pub(super) scheme: Scheme<T>,
    pub(super) extent: Extent,
    /// Shares that the panels of channels are split into.
    pub(super) splits: usize,
    /// Cycles until all threads are done, and of all tasks together.
    latency: f64,
    pub(super) cycles: f64,
}

impl<T: Real> Choice<T> {
    /// The best blocking of a scheme for a number of threads.
    pub(super) fn new<E: Element<Acc = T>>(
        request: &Request<'_, E>,
        roles: &Roles,
        scheme: Scheme<T>,
        threads: usize,
    ) -> Option<Self> {
        let (rows, columns) = scheme.grid(roles);
        let mut best: Option<Self> = None;
        // Where nothing keeps the limit of the workspace, the smallest block is offered, for the planner to say so.
        let mut smallest: Option<(usize, Extent)> = None;
        let mut consider = |images: usize, block_rows: usize, block_columns: usize| {
            let extent = Extent::new(&scheme, images, block_rows, block_columns);
            let bytes = scheme.scratch_len(&extent, request.geometry, roles).saturating_mul(size_of::<T>());
            if bytes > MOST_BYTES {
                return;
            }
            if bytes > request.task_bytes {
                if smallest.is_none_or(|(least, _)| bytes < least) {
                    smallest = Some((bytes, extent));
                }
                return;
            }
            for splits in [1, threads] {
                if let Some(choice) =
                    Self::estimate(request.geometry, request.isa, roles, scheme, extent, (threads, splits))
                    && best.as_ref().is_none_or(|best| choice.latency < best.latency)
                {
                    best = Some(choice);
                }
                if threads == 1 {
                    break;
                }
            }
        };
        // Several small images, where there are more of them than threads.
        let mut images = 2;
        while images * rows.saturating_mul(columns) <= MOST_TILES && images * threads <= request.geometry.batch {
            consider(images, rows, columns);
            images *= 2;
        }
        // Blocks of equal size: whole rows of tiles, or parts of one.
        let equal = |whole: usize, part: usize| whole.div_ceil(whole.div_ceil(part));
        for part in EXTENTS.map(|part| part.min(rows)) {
            if part.saturating_mul(columns) > MOST_TILES {
                break;
            }
            consider(1, equal(rows, part), columns);
        }
        for part in EXTENTS.into_iter().filter(|part| *part < columns) {
            consider(1, 1, equal(columns, part));
        }
        best.or_else(|| Self::estimate(request.geometry, request.isa, roles, scheme, smallest?.1, (threads, 1)))
    }

    /// The cost of a blocking. None where a kernel is lacking.
    fn estimate(
        geometry: &Geometry,
        isa: Isa,
        roles: &Roles,
        scheme: Scheme<T>,
        extent: Extent,
        (threads, splits): (usize, usize),
    ) -> Option<Self> {
        let bytes = size_of::<T>() as f64;
        let tiles = Tiles::<T>::new(isa, extent.runs().1)?;
        let lanes = scheme.kernel.lanes();
        let (channels, channels_out) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        let panels = channels_out.div_ceil(tiles.nr());
        let splits = splits.clamp(1, panels.max(1));
        let values = scheme.kernel.values() as f64;
        let steps = (roles.depth.kernel * scheme.filters() * channels) as f64;
        let (grid_rows, grid_columns) = scheme.grid(roles);
        let blocks = grid_rows.div_ceil(extent.rows) * grid_columns.div_ceil(extent.columns);
        // One slice in, one slice out.
        let padded_len = (extent.images
            * (extent.input_rows * scheme.down.tile.outputs)
            * (extent.input_columns * scheme.along.tile.outputs)) as f64;
        let vectors = (extent.images * extent.image_input_tiles().div_ceil(lanes)) as f64;
        let lanes = lanes as f64;
        let input = channels as f64 * (padded_len / lanes * SPLIT_CYCLES + vectors * values * INPUT_CYCLES);
        // Without taps along it, the slices of the outer axis are tasks of their own.
        let depths = depth_tasks(roles);
        let slices_in = roles.depth.input.min((roles.depth.output - 1) * roles.depth.stride + roles.depth.kernel)
            as f64
            / depths as f64;
        // The GEMMs of one panel.
        let (runs, _) = extent.runs();
        let run: f64 = (0..tiles.count)
            .map(|t| {
                let kernel = tiles.kernel(tiles.pixels(t).len(), tiles.nr());
                tile_cycles(kernel.fmas(), kernel.loads()) * steps + GEMM_CALL_CYCLES
            })
            .sum();
        let compute = values * runs as f64 * run;
        let padded = tiles.padded(channels_out) as f64;
        let filters = values * steps * padded * bytes;
        let v = values * steps / scheme.filters() as f64 * extent.input_tiles() as f64 * bytes;
        let products = values * (extent.tiles() * tiles.nr()) as f64 * bytes;
        let from = |resident: f64, traffic: f64| {
            if resident <= L2_SHARE {
                0.0
            } else if resident <= L3_SHARE {
                traffic / L3_BYTES_PER_CYCLE
            } else {
                traffic / MEMORY_BYTES_PER_CYCLE
            }
        };
        // Filters are fetched ahead of their use; transformed tiles that left the L2 cache are waited for.
        let slab = filters / padded * tiles.nr() as f64 / values;
        let ahead = FETCH_AHEAD * from(filters + v + products, slab * values);
        let late = from(v + products + 2.0 * slab, v);
        let input = input + late;
        let gemm = panels as f64 * (compute.max(ahead) + late);
        let output = (extent.tiles() as f64) * (padded / lanes) * values * OUTPUT_CYCLES;
        let slices_out = roles.depth.output as f64 / depths as f64;
        let task = slices_in * input + slices_out * (gemm + output) / splits as f64 + TASK_CYCLES;
        let (phases_down, phases_along) = (phases(&roles.down), phases(&roles.along));
        // Interleaved pixels are gathered and scattered one by one.
        let scattered = (extent.tiles() * scheme.down.tile.outputs * scheme.along.tile.outputs * channels_out) as f64;
        let apart =
            if distance(&roles.along) == 1 { 0.0 } else { (channels as f64 * padded_len + scattered) * SCATTER_CYCLES };
        let task = task + apart * slices_out;
        let tasks = (geometry.batch.div_ceil(extent.images) * geometry.group * blocks * depths * splits)
            .checked_mul(phases_down.checked_mul(phases_along)?)?;
        // The last blocks of an axis may have fewer tiles.
        let tiles_of = |rows: usize, columns: usize, images: usize| rows as f64 * columns as f64 * images as f64;
        let images = geometry.batch.next_multiple_of(extent.images);
        let in_blocks = tiles_of(blocks * extent.rows, extent.columns, images);
        let cycles = tasks as f64 * task * tiles_of(grid_rows, grid_columns, geometry.batch) / in_blocks;
        // With more tasks than threads, the last one to end holds the others up by a part of it.
        let latency = if tasks <= threads { task } else { cycles / threads as f64 + IDLE_SHARE * task };
        Some(Self { scheme, extent, splits, latency, cycles })
    }
}
