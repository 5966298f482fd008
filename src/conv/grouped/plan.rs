//! How the work is cut: panels of output channels, tiles, blocks and units.

use core::ops::Range;

use convoke_kernels::{GroupedKernel, Real};

use crate::conv::contract::Request;
use crate::conv::macro_kernel::RowPanels;
use crate::conv::shares::TASKS_PER_THREAD;
use crate::element::Element;
use crate::exec::share;
use crate::machine::{Item, Machine, Work};

/// Bytes of a unit's planes, at most, if several panels of output channels read them. They stay in L1
/// caches of 32 KiB and more, with room for Y and weights.
const PLANES_BYTES: usize = 24 << 10;

/// Bytes of the sums of a block, at most, if kernels cannot store into Y. They stay in the L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 8
}

/// Vectors of a block, at least: fewer leave no choice of tiles.
const LEAST_BLOCK_VECTORS: usize = 6;

/// How Y is cut: the positions of each group of each image into blocks, and the blocks into units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GroupedBlocks {
    pub(super) groups: usize,
    /// Vectors of a group and of a block, and blocks of a group.
    pub(super) all_vectors: usize,
    pub(super) vectors: usize,
    pub(super) count: usize,
    parts: usize,
    pub(super) tasks: usize,
}

impl GroupedBlocks {
    /// Blocks stay in caches, and there are enough of them for the threads. The planes of a group have
    /// `planes_len` values.
    pub(super) fn new<T: Element>(
        request: &Request<'_, T>,
        lanes: usize,
        panels: RowPanels,
        planes_len: usize,
        is_direct: bool,
    ) -> Self {
        let (geometry, bytes) = (request.geometry, size_of::<T::Acc>());
        let groups = geometry.batch * geometry.group;
        let all_vectors = geometry.output_spatial().div_ceil(lanes);
        let for_l1 = if panels.count() > 1 { planes_len.saturating_mul(bytes).div_ceil(PLANES_BYTES) } else { 1 };
        let sums = if is_direct { 0 } else { geometry.output_spatial().saturating_mul(panels.height(0) * bytes) };
        let for_l2 = sums.div_ceil(sums_bytes(request.machine));
        let tasks = TASKS_PER_THREAD * request.threads;
        let for_threads = if request.threads == 1 { 1 } else { tasks.div_ceil(groups) };
        let least_count = for_l1.max(for_l2).max(for_threads);
        let vectors = all_vectors.div_ceil(least_count).max(LEAST_BLOCK_VECTORS).min(all_vectors);
        let count = all_vectors.div_ceil(vectors);
        let parts = for_threads.min(count);
        Self { groups, all_vectors, vectors, count, parts, tasks: tasks.min(groups * parts) }
    }

    /// The first vector of a block, and the number of its vectors.
    pub(super) fn block(&self, block: usize) -> (usize, usize) {
        let first = block * self.vectors;
        (first, self.vectors.min(self.all_vectors - first))
    }

    pub(super) fn units(&self) -> usize {
        self.groups * self.parts
    }

    pub(super) fn task_units(&self, task: usize) -> Range<usize> {
        share(self.units(), self.tasks, task)
    }

    /// The group of a unit, counted over the images, and its blocks.
    pub(super) fn unit(&self, unit: usize) -> (usize, Range<usize>) {
        (unit / self.parts, share(self.count, self.parts, unit % self.parts))
    }
}

/// Tiles of one width side by side.
pub(super) struct TileRun<A: Real> {
    pub(super) kernel: &'static GroupedKernel<A>,
    /// The first vector of the first tile.
    pub(super) first: usize,
    /// The vectors of all tiles. The last tile may have fewer than the others.
    pub(super) vectors: usize,
}

/// The panels of a group's output channels, and the kernels for their tiles.
pub(super) struct GroupedTiles<A: Real> {
    kernels: &'static [GroupedKernel<A>],
    pub(super) panels: RowPanels,
}

impl<A: Real> GroupedTiles<A> {
    /// As few panels of `rows` output channels as the kernels allow. None if there are no kernels.
    pub(super) fn new(kernels: &'static [GroupedKernel<A>], rows: usize) -> Option<Self> {
        let tallest = kernels.iter().map(GroupedKernel::mr).max()?;
        let has_kernel = |height: usize| kernels.iter().any(|kernel| kernel.mr() == height);
        let fits = |panels: &RowPanels| (0..panels.count()).all(|p| has_kernel(panels.height(p)));
        let panels = (1..=tallest).rev().map(|most| RowPanels::new(rows, most)).find(fits)?;
        Some(Self { kernels, panels })
    }

    /// Tiles of `height` rows over `vectors` vectors: as few as possible, of nearly equal widths.
    pub(super) fn cover(&self, height: usize, vectors: usize) -> impl Iterator<Item = TileRun<A>> {
        let kernels = move || self.kernels.iter().filter(move |kernel| kernel.mr() == height);
        let widths = RowPanels::new(vectors, kernels().map(GroupedKernel::nrv).max().unwrap_or(1));
        widths.runs(&(0..widths.count())).filter_map(move |same| {
            let (first, width) = (widths.start(same.start), widths.height(same.start));
            let kernel = kernels().filter(|kernel| kernel.nrv() >= width).min_by_key(|kernel| kernel.nrv())?;
            Some(TileRun { kernel, first, vectors: same.len() * width })
        })
    }

    /// The kernel that sums most positions of a block of the first panel.
    pub(super) fn kernel(&self, vectors: usize) -> &'static str {
        let most = self.cover(self.panels.height(0), vectors).max_by_key(|run| run.vectors);
        most.map_or("", |run| run.kernel.name())
    }

    pub(super) fn work(&self, machine: &Machine, steps: usize, blocks: &GroupedBlocks) -> Work {
        let of_block = |vectors: usize, count: usize| {
            let mut work = Work::default();
            for run in (0..self.panels.count()).flat_map(|p| self.cover(self.panels.height(p), vectors)) {
                let tiles = run.vectors.div_ceil(run.kernel.nrv());
                work += tile_work(machine, run.kernel, steps) * tiles as f64 + Item::KERNEL_CALLS.times(1.0);
            }
            work * count as f64
        };
        of_block(blocks.vectors, blocks.count - 1) + of_block(blocks.block(blocks.count - 1).1, 1)
    }
}

fn tile_work<A: Real>(machine: &Machine, kernel: &GroupedKernel<A>, steps: usize) -> Work {
    let load_slots = kernel.nrv() as f64 * machine.unaligned_slots::<A>(kernel.lanes()) + kernel.mr() as f64;
    let step = machine.longest_cycles(kernel.fmas() as f64, load_slots, machine.fma_latency_cycles);
    Item::ARITHMETIC_CYCLES.times(step * steps as f64) + Item::STORED_VECTORS.times((kernel.mr() * kernel.nrv()) as f64)
}
