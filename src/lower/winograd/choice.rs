//! The search for the best blocks of tiles, by estimated latency.

use convoke_kernels::Real;

use super::blocks::{BlockCut, TileBlocks};
use super::estimate::{BlockingEstimate, CostModel};
use super::scheme::Scheme;
use super::shares;
use super::together::Together;
use super::view::{SubImage, WinogradView};

/// The most bytes of a task's scratch. More bytes gain nothing, and memory is limited. A limit of
/// the workspace changes nothing if it leaves a task so many.
pub(super) const MOST_SCRATCH_BYTES: usize = 8 << 20;
/// The numbers of rows, or of columns, of tiles that blocks are tried with.
const LENGTHS: [usize; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256];
/// The most tiles of a block. More tiles gain nothing, and memory is limited.
pub(super) const MOST_TILES: usize = 256;
/// The most blocks of an image that is [cut into tiles](BlockCut::Tiles). Each of them may have a
/// size of its own, and so tables of its own.
const MOST_PARTS: usize = 32;

/// The best blocking for a number of threads, with at most `task_bytes` of scratch for a task where
/// that can be. None where a kernel is lacking.
pub(super) fn best_blocking<T: Real>(
    model: &CostModel<'_, T>,
    threads: usize,
    task_bytes: usize,
) -> Option<BlockingEstimate<T>> {
    let mut search = BlockingSearch {
        model,
        view: model.view,
        scheme: model.scheme,
        threads,
        task_bytes,
        best: None,
        smallest: None,
    };
    search.try_images();
    search.try_rows();
    search.try_columns();
    search.try_tiles();
    let BlockingSearch { best, smallest, .. } = search;
    best.or_else(|| model.estimate(smallest?.1, 1, threads, 0))
}

struct BlockingSearch<'a, T: Real> {
    model: &'a CostModel<'a, T>,
    view: &'a WinogradView,
    scheme: Scheme<T>,
    threads: usize,
    /// The limit for the scratch of a task.
    task_bytes: usize,
    best: Option<BlockingEstimate<T>>,
    /// The blocks with the least scratch among those that exceed the limit, with their bytes. Where
    /// all exceed it they are offered, so that the planner can say how much is needed.
    smallest: Option<(usize, TileBlocks)>,
}

impl<T: Real> BlockingSearch<'_, T> {
    /// Compares blocks of `images` images, cut into `parts`, with the best ones.
    fn consider(&mut self, images: usize, cut: BlockCut, parts: usize) {
        debug_assert!(images == 1 || self.grid().0 * self.grid().1 * images <= MOST_TILES, "{images} images");
        let Some(blocks) = TileBlocks::new(self.view, &self.scheme, images, cut, parts) else { return };
        // Threads together take at least as long as they work.
        if let Some(best) = &self.best
            && self.model.least_cycles(&blocks) > best.latency_cycles * self.threads as f64
        {
            return;
        }
        let bytes = blocks.scratch_bytes(self.view, &self.scheme, Together::ONE);
        if bytes > MOST_SCRATCH_BYTES {
            return;
        }
        if bytes > self.task_bytes {
            if self.smallest.is_none_or(|(least, _)| bytes < least) {
                self.smallest = Some((bytes, blocks));
            }
            return;
        }
        // The numbers of shares to try. Runs of tiles are even without shares.
        let ways = match cut {
            BlockCut::Tiles => 1,
            _ if self.threads == 1 => 1,
            _ if self.threads <= shares::MOST_CUT => 2,
            // More shares than that have whole panels, and there may be fewer panels.
            _ => 3,
        };
        let most_bytes = self.task_bytes.min(MOST_SCRATCH_BYTES);
        for splits in [1, self.threads, shares::MOST_CUT].into_iter().take(ways) {
            if let Some(estimate) = self.model.estimate(blocks, splits, self.threads, most_bytes)
                && self.best.as_ref().is_none_or(|best| estimate.latency_cycles < best.latency_cycles)
            {
                self.best = Some(estimate);
            }
        }
    }

    /// Rows and columns of tiles of an image.
    fn grid(&self) -> (usize, usize) {
        self.scheme.grid(&self.view.roles)
    }

    /// Several small images, where there are more images than threads.
    fn try_images(&mut self) {
        let (rows, columns) = self.grid();
        let batch = SubImage::count(&self.view.roles, self.view.batch);
        let of_block = MOST_TILES / rows.saturating_mul(columns).max(1);
        let most = batch.div_ceil(self.threads).min(of_block);
        let (mut images, mut last) = (2, 1);
        while last < most {
            let tried = images.min(most);
            self.consider(tried, BlockCut::Rows, 1);
            // As many for each thread.
            let even = batch.div_ceil(batch.div_ceil(tried).next_multiple_of(self.threads));
            if even > last && even < tried {
                self.consider(even, BlockCut::Rows, 1);
            }
            last = images;
            images *= 2;
        }
    }

    /// Whole rows of tiles.
    fn try_rows(&mut self) {
        let (rows, columns) = self.grid();
        let mut last = 0;
        for height in LENGTHS.map(|height| height.min(rows)) {
            if height.saturating_mul(columns) > MOST_TILES {
                break;
            }
            let parts = rows.div_ceil(height);
            if parts != last {
                self.consider(1, BlockCut::Rows, parts);
                // As many for each thread.
                let even = parts.checked_next_multiple_of(self.threads).filter(|even| *even != parts);
                even.into_iter().for_each(|parts| self.consider(1, BlockCut::Rows, parts));
            }
            last = parts;
        }
    }

    /// Parts of rows of tiles.
    fn try_columns(&mut self) {
        let (_, columns) = self.grid();
        let mut last = 0;
        for width in LENGTHS.into_iter().filter(|width| *width < columns) {
            let parts = columns.div_ceil(width);
            if parts != last {
                self.consider(1, BlockCut::Columns, parts);
            }
            last = parts;
        }
    }

    /// As many tiles for each thread, where rows are not.
    fn try_tiles(&mut self) {
        let (rows, columns) = self.grid();
        let mut parts = self.threads;
        while !rows.is_multiple_of(self.threads) && parts <= MOST_PARTS && parts < 2 * rows {
            if rows.saturating_mul(columns) <= MOST_TILES * parts {
                self.consider(1, BlockCut::Tiles, parts);
            }
            parts += self.threads;
        }
    }
}
