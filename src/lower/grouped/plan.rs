//! How the work is cut: panels of output channels, tiles that cover the positions, blocks and
//! units.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::{GroupedKernel, Real};

use crate::element::Element;
use crate::exec::share;
use crate::lower::contract::Request;
use crate::lower::engine::RowPanels;
use crate::lower::shares::TASKS_PER_THREAD;
use crate::machine::{Item, Machine, Work};

/// Bytes of a unit's planes, at most, where several panels of output channels read them: they
/// stay in L1 caches of 32 KiB and more, with room for Y and weights.
const PLANES_BYTES: usize = 24 << 10;

/// Bytes of the sums of a block, at most, where kernels cannot store into Y: they stay in the
/// L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 8
}

/// Vectors of a block, at least: fewer leave no choice of tiles.
const LEAST_BLOCK_VECTORS: usize = 6;

/// How Y is cut: the positions of each group of each image into blocks, and the blocks into units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GroupedBlocks {
    /// Groups of all images.
    pub(super) groups: usize,
    /// Vectors of a block, and blocks of a group.
    pub(super) vectors: usize,
    pub(super) count: usize,
    /// Vectors of the last block.
    last_vectors: usize,
    /// Units of a group.
    parts: usize,
    pub(super) tasks: usize,
}

impl GroupedBlocks {
    /// Blocks stay in caches, and there are enough of them for the threads. The planes of a group
    /// have `planes_len` values.
    pub(super) fn new<T: Element>(
        request: &Request<'_, T>,
        lanes: usize,
        heights: &[usize],
        planes_len: usize,
        is_direct: bool,
    ) -> Self {
        let (geometry, bytes) = (request.geometry, size_of::<T::Acc>());
        let groups = geometry.batch * geometry.group;
        let all_vectors = geometry.output_spatial().div_ceil(lanes);
        let for_l1 = if heights.len() > 1 { planes_len.saturating_mul(bytes).div_ceil(PLANES_BYTES) } else { 1 };
        let tallest = heights.iter().copied().max().unwrap_or(0);
        let sums = if is_direct { 0 } else { geometry.output_spatial().saturating_mul(tallest * bytes) };
        let for_l2 = sums.div_ceil(sums_bytes(request.machine));
        let tasks = TASKS_PER_THREAD * request.threads;
        let for_threads = if request.threads == 1 { 1 } else { tasks.div_ceil(groups) };
        let least_count = for_l1.max(for_l2).max(for_threads);
        let vectors = all_vectors.div_ceil(least_count).max(LEAST_BLOCK_VECTORS).min(all_vectors);
        let count = all_vectors.div_ceil(vectors);
        let parts = for_threads.min(count);
        let last_vectors = all_vectors - (count - 1) * vectors;
        Self { groups, vectors, count, last_vectors, parts, tasks: tasks.min(groups * parts) }
    }

    /// Vectors of all positions of a group.
    pub(super) fn all_vectors(&self) -> usize {
        (self.count - 1) * self.vectors + self.last_vectors
    }

    pub(super) fn units(&self) -> usize {
        self.groups * self.parts
    }

    /// The units of a task.
    pub(super) fn task_units(&self, task: usize) -> Range<usize> {
        share(self.units(), self.tasks, task)
    }

    /// The group of a unit, counted over the images, and its blocks.
    pub(super) fn unit(&self, unit: usize) -> (usize, Range<usize>) {
        (unit / self.parts, share(self.count, self.parts, unit % self.parts))
    }
}

/// Some output channels of a group.
pub(super) struct GroupedPanel<A: Real> {
    pub(super) height: usize,
    /// The tiles of a full block, and those of the last one.
    pub(super) runs: [Vec<TileRun<A>>; 2],
}

/// Tiles of one width side by side.
pub(super) struct TileRun<A: Real> {
    pub(super) kernel: &'static GroupedKernel<A>,
    /// The vector of the block that the first tile begins with.
    pub(super) first: usize,
    /// The vectors of all tiles; the last tile may have only a part of its own.
    pub(super) vectors: usize,
}

/// All panels of a group.
pub(super) struct GroupedPanels<A: Real> {
    pub(super) panels: Vec<GroupedPanel<A>>,
    /// What the tiles of a group take.
    pub(super) work: Work,
}

impl<A: Real> GroupedPanels<A> {
    /// None if there are no kernels of these heights.
    pub(super) fn new(tiles: &GroupedTiles<'_, A>, heights: &[usize], blocks: &GroupedBlocks) -> Option<Self> {
        let mut panels = Vec::with_capacity(heights.len());
        let mut work = Work::default();
        for &height in heights {
            let (full, full_work) = tiles.cover(height, blocks.vectors)?;
            let (last, last_work) = tiles.cover(height, blocks.last_vectors)?;
            work += full_work * (blocks.count - 1) as f64 + last_work;
            panels.push(GroupedPanel { height, runs: [full, last] });
        }
        Some(Self { panels, work })
    }

    /// Output channels of the tallest panel.
    pub(super) fn tallest(&self) -> usize {
        self.panels.iter().map(|panel| panel.height).max().unwrap_or(0)
    }

    /// The name of the kernel that sums most positions of the first panel, in a full block or in
    /// the last one.
    pub(super) fn kernel(&self, is_last: bool) -> &'static str {
        let runs = self.panels.first().map_or(&[][..], |panel| &panel.runs[usize::from(is_last)]);
        runs.iter().max_by_key(|run| run.vectors).map_or("", |run| run.kernel.name())
    }
}

/// The kernels, and what their tiles take.
pub(super) struct GroupedTiles<'a, A: Real> {
    pub(super) machine: &'a Machine,
    pub(super) kernels: &'static [GroupedKernel<A>],
    /// Steps of k of a tile.
    pub(super) steps: f64,
}

impl<A: Real> GroupedTiles<'_, A> {
    fn tile_work(&self, kernel: &GroupedKernel<A>) -> Work {
        let machine = self.machine;
        let load_slots = kernel.nrv() as f64 * machine.crossing_slots::<A>(kernel.lanes()) + kernel.mr() as f64;
        let step = machine.longest_cycles(kernel.fmas() as f64, load_slots, machine.fma_latency_cycles);
        machine.work(Item::ArithmeticCycles, step * self.steps)
            + machine.work(Item::StoredVectors, (kernel.mr() * kernel.nrv()) as f64)
    }

    /// Tiles of `height` rows that cover `vectors` vectors, as few as possible and of nearly equal
    /// widths, and what they take. None if there is no kernel of that height.
    fn cover(&self, height: usize, vectors: usize) -> Option<(Vec<TileRun<A>>, Work)> {
        let kernels = || self.kernels.iter().filter(|kernel| kernel.mr() == height);
        let widths = RowPanels::new(vectors, kernels().map(GroupedKernel::nrv).max()?);
        let (mut runs, mut work) = (Vec::new(), Work::default());
        for same in widths.runs(&(0..widths.count())).into_iter().filter(|same| !same.is_empty()) {
            let (first, width) = (widths.start(same.start), widths.height(same.start));
            let kernel = kernels().filter(|kernel| kernel.nrv() >= width).min_by_key(|kernel| kernel.nrv())?;
            let vectors = same.len() * width;
            work += self.tile_work(kernel) * vectors.div_ceil(kernel.nrv()) as f64;
            runs.push(TileRun { kernel, first, vectors });
        }
        work += self.machine.work(Item::KernelCalls, runs.len() as f64);
        Some((runs, work))
    }

    /// The heights of as few panels of `rows` output channels as there are kernels for, the tallest first:
    /// they differ by at most one. None if there are no kernels.
    pub(super) fn heights(&self, rows: usize) -> Option<Vec<usize>> {
        let tallest = self.kernels.iter().map(GroupedKernel::mr).max()?;
        let has_kernel = |height: usize| self.kernels.iter().any(|kernel| kernel.mr() == height);
        let panels = |most| RowPanels::new(rows, most);
        let heights = |panels: RowPanels| (0..panels.count()).map(move |p| panels.height(p));
        (1..=tallest)
            .rev()
            .map(|most| heights(panels(most)))
            .find(|heights| heights.clone().all(has_kernel))
            .map(Iterator::collect)
    }
}
