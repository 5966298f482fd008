//! Conv as GEMM without an im2col matrix: its rows are shifted views of padded planes.
//!
//! M = M/group, K = C/group * kernel volume, N = output positions, for each image and group. K is
//! ordered by blocks of channels, then taps, then channels of the block. Accepts every Conv whose
//! planes' offsets fit 32 bits. Scratch for a task: the planes of one block of channels for one
//! slab of the output ([`planes`](super::planes)), and the slab's sums where K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::{Ahead, Isa, Real, RowOffsets, SpatialKernel, StoreMap};

use super::engine::{Columns, FEW_STEPS, Rows, SpatialTiles, lanes};

use super::planes::{self, PER_THREAD, PaddedPlanes};
use super::sink::Finish;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::shares::Part;
use crate::{Geometry, Op};

/// Steps of k in a block, at the most (one channel's taps may be more): so many that the sums' way
/// to scratch and back costs little, and so few that a block of A stays in the L2 cache.
const KC: usize = 512;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let mut shape = Shape::new(request, most, PER_THREAD[0])?;
    if request.threads > 1
        && let Ok(other) = Shape::new(request, most, PER_THREAD[1])
        && other.busy < shape.busy
    {
        shape = other;
    }
    let machine = request.machine;
    let Shape { axis, extent, slabs, block, tiles, splits, planes_len, tiles_len, cycles, .. } = shape;
    Ok(Offer::old(
        request.machine,
        cycles / machine.clock_ghz,
        lines_for::<T::Acc>(planes_len).saturating_add(lines_for::<T::Acc>(tiles_len)),
        Box::new(move || {
            let planes = PaddedPlanes::new(geometry, axis, extent, false);
            let channels = geometry.in_channels_per_group();
            let last = channels - (channels.div_ceil(block).max(1) - 1) * block;
            let koff = [planes.offsets(block), planes.offsets(last)];
            let edge = geometry.axes[axis].output % extent;
            let lanes = lanes::<T::Acc>(request.isa());
            let maps = [planes.map(extent, lanes), planes.map(if edge == 0 { extent } else { edge }, lanes)];
            Box::new(ImplicitGemm {
                geometry: geometry.clone(),
                isa: request.isa(),
                finish: Finish::new(request),
                slabs,
                tiles,
                planes,
                koff,
                maps,
                block,
                splits,
                planes_len,
                tiles_len,
            })
        }),
    ))
}

/// How the columns are cut into slabs, and the tiles of their products.
struct Shape<A: Real> {
    /// The slabs' axis, and their extent on it.
    axis: usize,
    extent: usize,
    /// Of an image and group.
    slabs: usize,
    /// Channels in a block of k.
    block: usize,
    tiles: SpatialTiles<A>,
    splits: usize,
    planes_len: usize,
    tiles_len: usize,
    /// Of all tasks; and of all threads, until the last one is done.
    cycles: f64,
    busy: f64,
}

impl<A: Real> Shape<A> {
    /// With slabs for `per_thread` tasks of each thread, as far as they are not too small.
    fn new<T: Element<Acc = A>>(request: &Request<'_, T>, most: usize, per_thread: usize) -> Result<Self, String> {
        let (geometry, machine) = (request.geometry, request.machine);
        let prices = machine.prices();
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let taps = geometry.kernel_volume();
        let block = planes::channels_per_block(channels, taps, KC);
        let k_blocks = channels.div_ceil(block);
        let choice = planes::SlabChoice {
            images: geometry.batch * geometry.group,
            block,
            budget: planes::budget_beside(machine, (rows * block * taps).saturating_mul(size_of::<A>())).min(most),
            bytes: size_of::<A>(),
            threads: request.threads,
            per_thread,
            // Garbage columns would be more.
            is_aligned: false,
        };
        let sums_of = |columns: usize| if k_blocks > 1 { columns.saturating_mul(rows) } else { 0 };
        let Some((axis, extent, sizes)) = choice.slab(&geometry.axes, sums_of) else {
            return Err(planes::too_large(&geometry.axes, planes::MOST_BYTES));
        };
        let lanes = lanes::<A>(request.isa());
        let vectors = sizes.columns.div_ceil(lanes);
        let is_shifted = channels * taps > FEW_STEPS && planes::is_shifted(&geometry.axes);
        let weight = |kernel: &SpatialKernel<A>| machine.shifted_views(kernel.mr(), is_shifted);
        let mr = match request.layout {
            None => None,
            Some(WeightLayout::BlockedPanels { mr, .. }) => Some(*mr),
            Some(other) => return Err(other.mismatch()),
        };
        let tiles = SpatialTiles::<A>::choose(machine, rows, vectors, mr, weight)
            .ok_or_else(|| String::from("no kernel for this tile"))?;
        let arithmetic =
            tiles.cycles(machine, vectors) * (channels * taps) as f64 * machine.shifted_views(tiles.mr(), is_shifted);
        // The place of a row is found once for all channels of a block.
        let width = geometry.axes.last().map_or(1, |axis| axis.output);
        let rows_copied = (k_blocks * (sizes.channel_len / width)) as f64;
        let copies =
            (channels * sizes.channel_len) as f64 * prices.plane_cycles + rows_copied * prices.plane_row_cycles;
        let sums = k_blocks.saturating_sub(1) as f64 * (rows * vectors) as f64 * prices.sum_cycles;
        // Panels are shared out where there are too few slabs to keep the threads busy.
        let slabs = geometry.batch * geometry.group * sizes.slabs;
        let panels = tiles.panels.count();
        let splits = if request.threads == 1 { 1 } else { request.threads.div_ceil(slabs).clamp(1, panels.max(1)) };
        let tasks = slabs.saturating_mul(splits);
        let uneven = Part::unevenness(tasks, panels, splits, request.threads, |panels| panels.len());
        let cycles = arithmetic
            + tiles.finish_cycles(prices, vectors, k_blocks)
            + sums
            + copies * splits as f64
            + prices.task_cycles;
        let cycles = slabs as f64 * cycles;
        Ok(Self {
            axis,
            extent,
            slabs: sizes.slabs,
            block,
            splits,
            planes_len: block * sizes.channel_len + tiles.widest() * lanes,
            tiles_len: tiles.scratch_len(0..panels.div_ceil(splits).min(panels), vectors, k_blocks),
            tiles,
            cycles,
            busy: uneven * cycles,
        })
    }
}

struct ImplicitGemm<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    tiles: SpatialTiles<T::Acc>,
    planes: PaddedPlanes,
    slabs: usize,
    /// The rows of a full block of k, and of the last one.
    koff: [RowOffsets; 2],
    /// Where columns go: in a full slab, and in the last one along the axis.
    maps: [StoreMap; 2],
    /// Channels in a block of k.
    block: usize,
    /// Shares that the panels of A are split into.
    splits: usize,
    planes_len: usize,
    tiles_len: usize,
}

impl<T: Element> ImplicitGemm<T> {
    fn k_total(&self) -> usize {
        self.geometry.in_channels_per_group() * self.geometry.kernel_volume()
    }
}

impl<T: Element> ImplicitGemm<T> {
    fn part(&self, task: usize) -> Part {
        let count = self.tiles.panels.count();
        Part::new((task, self.tasks()), self.geometry.group, self.slabs, count, self.splits)
    }
}

impl<T: Element> Split for ImplicitGemm<T> {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group * self.slabs * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.part(task);
        let panels = &self.tiles.panels;
        let rows = panels.start(part.panels.start)..panels.start(part.panels.end);
        patch(part.patch(&self.geometry, rows, self.planes.positions(part.columns)));
    }
}

impl<T: Element> Lowering<T> for ImplicitGemm<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::BlockedPanels { mr: self.tiles.mr(), block: self.block }
    }

    fn describe(&self) -> String {
        let k = self.block * self.geometry.kernel_volume();
        alloc::format!(
            "{}, K in blocks of {k}, {} slabs, panels in {} shares",
            self.tiles.describe(),
            self.slabs,
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        self.tiles.name()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let rows = self.geometry.out_channels_per_group();
        let k_total = self.k_total();
        if k_total == 0 {
            return;
        }
        for (group, packed) in packed.chunks_exact_mut(rows * k_total).enumerate() {
            self.tiles.pack(k_total, packed, |row, k| {
                let (tap, c) = planes::step_of(k, channels, taps, self.block);
                w[((group * rows + row) * channels + c) * taps + tap].to_acc()
            });
        }
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.part(task);
        let slab = self.planes.slab(columns);
        let mut arena = Arena::new(scratch);
        let planes = arena.take::<T::Acc>(self.planes_len);
        let tiles = arena.take::<T::Acc>(self.tiles_len);

        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let (taps, k_total) = (geometry.kernel_volume(), self.k_total());
        let spatial = geometry.output_spatial();
        let map = &self.maps[usize::from(!self.planes.is_full(&slab))];
        let sink = self.finish.sink(io);
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        // Without channels there is still the bias to be stored: one empty block.
        for first in (0..channels.max(1)).step_by(self.block) {
            let width = self.block.min(channels - first);
            let x = &x[first * geometry.input_spatial()..];
            self.planes.fill(self.isa, &slab, x, &mut planes[..width * self.planes.channel_len]);
            let k = first * taps..(first + width) * taps;
            let block = Rows {
                a: &io.weights[group * rows * k_total..(group + 1) * rows * k_total],
                k_total,
                k,
                panels: panels.clone(),
                bias: &io.bias[group * rows..(group + 1) * rows],
            };
            let columns = Columns {
                b: planes,
                koff: self.koff[usize::from(width != self.block)].rows(0..width * taps),
                ahead: Ahead::NONE,
                map,
                range: 0..map.columns().len(),
                at: (image * geometry.out_channels + group * rows) * spatial + slab.first,
                ldy: spatial,
            };
            self.tiles.multiply(&block, &columns, tiles, &sink);
        }
    }
}
