//! Conv as GEMM without an im2col matrix: its rows are shifted views of padded planes.
//!
//! M = M/group, K = C/group * kernel volume, N = output positions, for each image and group. K is
//! ordered by blocks of channels, then taps, then channels of the block. Accepts every Conv.
//! Makes no offer where the offsets in the planes do not fit 32 bits. Scratch for a task: the
//! planes of one block of channels for one slab of the output ([`planes`](super::planes)), and
//! the sums of the slab where K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::{Ahead, Isa, Real, RowOffsets, SpatialKernel, StoreMap};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::engine::{Columns, FEW_STEPS, Rows, SpatialTiles, lanes};
use super::layout::WeightLayout;
use super::planes::{self, PER_THREAD, PaddedPlanes, PlaneSizes, SlabCut, SlabLimits};
use super::shares::{GemmSplit, Part};
use super::sink::Finish;
use super::view;
use crate::Geometry;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Work};
use crate::units::Count;

/// Steps of k in a block, at most. A block is at least the taps of one channel. With fewer
/// steps, the way of sums to scratch and back would cost more; with more steps, a block of A
/// would leave the L2 cache.
const MOST_STEPS: usize = 512;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let ImplicitChoice { blocking, tiles, work } = ImplicitChoice::best(request, most_bytes)?;
    let ImplicitBlocking { cut, sizes, block, k_blocks, vectors, split } = blocking;
    let mut scratch = Ledger::default();
    let planes_len = block * sizes.channel_len + tiles.widest() * tiles.lanes;
    let filled = scratch.book("planes", planes_len);
    let sums = scratch.book("sums", tiles.scratch_len(0..split.share_panels(), vectors, k_blocks));
    let recipe = Recipe {
        kernel: tiles.name(),
        details: alloc::format!(
            "{}, K in blocks of {}, {}, weights in {}",
            tiles.describe(),
            block * geometry.kernel_volume(),
            Count(split.columns, "slab"),
            Count(split.shares, "part")
        ),
        layout: WeightLayout::BlockedPanels { mr: tiles.mr(), block },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work,
    };
    let build: Build<'a, T> = Box::new(move || {
        let planes = PaddedPlanes::new(geometry, cut);
        let last_block = geometry.in_channels_per_group() - (k_blocks.max(1) - 1) * block;
        let edge = geometry.axes[cut.axis].output % cut.extent;
        let last_extent = if edge == 0 { cut.extent } else { edge };
        Box::new(ImplicitGemm {
            geometry: geometry.clone(),
            isa: request.isa(),
            finish: Finish::new(request),
            koff: [planes.offsets(block), planes.offsets(last_block)],
            maps: [cut.extent, last_extent].map(|extent| planes.map(extent, tiles.lanes)),
            tiles,
            blocking,
            planes,
            filled,
            sums,
        })
    });
    Ok(Offer { recipe, build })
}

/// A way to cut the product.
struct ImplicitChoice<A: Real> {
    blocking: ImplicitBlocking,
    tiles: SpatialTiles<A>,
    work: Work,
}

impl<A: Real> ImplicitChoice<A> {
    /// The choice whose busiest thread has the least to do.
    fn best<T: Element<Acc = A>>(request: &Request<'_, T>, most_bytes: usize) -> Result<Self, String> {
        let first = Self::new(request, most_bytes, PER_THREAD[0])?;
        if request.threads == 1 {
            return Ok(first);
        }
        match Self::new(request, most_bytes, PER_THREAD[1]) {
            Ok(other) if other.busiest_cycles(request.threads) < first.busiest_cycles(request.threads) => Ok(other),
            _ => Ok(first),
        }
    }

    /// With slabs for `per_thread` tasks of each thread.
    fn new<T: Element<Acc = A>>(
        request: &Request<'_, T>,
        most_bytes: usize,
        per_thread: usize,
    ) -> Result<Self, String> {
        let blocking = ImplicitBlocking::new(request, most_bytes, per_thread)?;
        let tiles = blocking.tiles(request)?;
        let blocking = blocking.shared_out(request.threads, tiles.panels.count());
        let work = blocking.work(request, &tiles);
        Ok(Self { blocking, tiles, work })
    }

    /// Cycles of the thread that has the most to do, times the number of threads.
    fn busiest_cycles(&self, threads: usize) -> f64 {
        self.blocking.split.unevenness(threads, |part| part.panels.len()) * self.work.cycles()
    }
}

/// How the product is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ImplicitBlocking {
    cut: SlabCut,
    sizes: PlaneSizes,
    /// Input channels of a block of K.
    block: usize,
    /// Blocks of K.
    k_blocks: usize,
    /// Vectors of columns of a full slab.
    vectors: usize,
    split: GemmSplit,
}

impl ImplicitBlocking {
    /// Slabs whose planes and sums take at most `most_bytes`, for `per_thread` tasks of each
    /// thread unless they would be too small. Their panels are in one share.
    fn new<T: Element>(request: &Request<'_, T>, most_bytes: usize, per_thread: usize) -> Result<Self, String> {
        let (geometry, machine) = (request.geometry, request.machine);
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let taps = geometry.kernel_volume();
        let block = planes::channels_per_block(channels, taps, MOST_STEPS);
        let k_blocks = channels.div_ceil(block);
        let value_bytes = size_of::<T::Acc>();
        let limits = SlabLimits {
            images: geometry.batch * geometry.group,
            block,
            budget_bytes: planes::budget_beside(machine, (rows * block * taps).saturating_mul(value_bytes))
                .min(most_bytes),
            value_bytes,
            threads: request.threads,
            per_thread,
        };
        let sums_of = |columns: usize| if k_blocks > 1 { columns.saturating_mul(rows) } else { 0 };
        let (cut, sizes) =
            limits.cut(&geometry.axes, sums_of).ok_or_else(|| planes::too_large(&geometry.axes, planes::MOST_BYTES))?;
        let vectors = sizes.columns.div_ceil(lanes::<T::Acc>(request.isa()));
        let (images, groups) = (geometry.batch, geometry.group);
        let split = GemmSplit { images, groups, columns: sizes.slabs, panels: 1, shares: 1 };
        Ok(Self { cut, sizes, block, k_blocks, vectors, split })
    }

    /// The same with `panels` panels, which are shared out where there are too few slabs to keep
    /// the threads busy.
    fn shared_out(mut self, threads: usize, panels: usize) -> Self {
        let slabs = self.split.tasks();
        let shares = if threads == 1 { 1 } else { threads.div_ceil(slabs).clamp(1, panels.max(1)) };
        self.split = GemmSplit { panels, shares, ..self.split };
        self
    }

    /// The cheapest tile for a slab.
    fn tiles<T: Element>(&self, request: &Request<'_, T>) -> Result<SpatialTiles<T::Acc>, String> {
        let mr = match request.layout {
            None => None,
            Some(WeightLayout::BlockedPanels { mr, .. }) => Some(*mr),
            Some(other) => return Err(other.mismatch()),
        };
        let (geometry, machine) = (request.geometry, request.machine);
        let is_shifted = is_shifted(geometry);
        let factor = |kernel: &SpatialKernel<T::Acc>| machine.shifted_views(kernel.mr(), is_shifted);
        SpatialTiles::choose(machine, geometry.out_channels_per_group(), self.vectors, mr, factor)
            .ok_or_else(|| String::from("no kernel for this tile"))
    }

    /// What all tasks take.
    fn work<T: Element>(&self, request: &Request<'_, T>, tiles: &SpatialTiles<T::Acc>) -> Work {
        let (geometry, machine) = (request.geometry, request.machine);
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let (channel_len, vectors) = (self.sizes.channel_len, self.vectors);
        // The place of a row of planes is found once for all channels of a block.
        let width = geometry.axes.last().map_or(1, |axis| axis.output);
        let rows_copied = (self.k_blocks * (channel_len / width)) as f64;
        let copies = machine.work(Item::PlaneElements, (channels * channel_len) as f64)
            + machine.work(Item::PlaneRows, rows_copied);
        let kept = self.k_blocks.saturating_sub(1) as f64 * (rows * vectors) as f64;
        let arithmetic = tiles.work(machine, vectors, channels * geometry.kernel_volume());
        let of_slab = arithmetic * machine.shifted_views(tiles.mr(), is_shifted(geometry))
            + tiles.finish_work(machine, vectors, self.k_blocks)
            + machine.work(Item::KeptVectors, kept)
            + copies * self.split.shares as f64
            + machine.work(Item::Tasks, 1.0);
        of_slab * (self.split.images * self.split.groups * self.split.columns) as f64
    }
}

/// Whether taps are shifts of one another's views, and there are more steps than stores hide.
fn is_shifted(geometry: &Geometry) -> bool {
    geometry.in_channels_per_group() * geometry.kernel_volume() > FEW_STEPS && view::is_shifted(&geometry.axes)
}

struct ImplicitGemm<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    tiles: SpatialTiles<T::Acc>,
    blocking: ImplicitBlocking,
    planes: PaddedPlanes,
    /// The row offsets of a full block of K, and of the last one.
    koff: [RowOffsets; 2],
    /// Where columns go: in a full slab, and in the last one along the slabs' axis.
    maps: [StoreMap; 2],
    /// The values of the planes.
    filled: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

impl<T: Element> Split for ImplicitGemm<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let (rows, positions) = (self.tiles.panels.rows(&part.panels), self.planes.positions(part.columns));
        patch(part.patch(&self.geometry, rows, positions));
    }
}

impl<T: Element> Lowering<T> for ImplicitGemm<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let (rows, k_total) = (self.geometry.out_channels_per_group(), channels * taps);
        if k_total == 0 {
            return;
        }
        for (group, packed) in packed.chunks_exact_mut(rows * k_total).enumerate() {
            self.tiles.pack(k_total, packed, |row, k| {
                let (tap, c) = planes::step_of(k, channels, taps, self.blocking.block);
                w[((group * rows + row) * channels + c) * taps + tap].to_acc()
            });
        }
    }

    /// One share of the panels, for one slab of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.blocking.split.part(task);
        let slab = self.planes.slab(columns);
        let mut arena = Arena::new(scratch);
        let (planes, sums) = (arena.get(self.filled), arena.get(self.sums));

        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let (taps, k_total) = (geometry.kernel_volume(), channels * geometry.kernel_volume());
        let spatial = geometry.output_spatial();
        let map = &self.maps[usize::from(!self.planes.is_full(&slab))];
        let sink = self.finish.sink(io);
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        // Without channels there is still the bias to be stored: one empty block.
        for first in (0..channels.max(1)).step_by(self.blocking.block) {
            let width = self.blocking.block.min(channels - first);
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
                koff: self.koff[usize::from(width != self.blocking.block)].rows(0..width * taps),
                ahead: Ahead::NONE,
                map,
                range: 0..map.columns().len(),
                at: (image * geometry.out_channels + group * rows) * spatial + slab.first,
                ldy: spatial,
            };
            self.tiles.multiply(&block, &columns, sums, &sink);
        }
    }
}
