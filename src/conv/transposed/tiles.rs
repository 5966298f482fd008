//! How the products of phases are cut: panels of output channels, kernels, and blocks of K.

use alloc::vec::Vec;

use convoke_kernels::catalogue::spatial_widths;
use convoke_kernels::{Real, SpatialKernel};

use crate::blas::Blocks;
use crate::conv::macro_kernel::{RowPanels, TileWidths, spatial_cycles};
use crate::conv::planes::channel_blocks;
use crate::machine::{Item, Machine, Work};

/// Rows of a tile (phases times channels), about. The sums of a column tile then stay in the L1 cache.
pub(super) const TILE_ROWS: usize = 64;
/// The most channels of a panel.
const MOST_PANEL_CHANNELS: usize = 32;
/// Steps of a block of K, at most, but at least the taps of one channel. A fixed number, because packed
/// weights and the order of sums depend on it.
const MOST_STEPS: usize = 512;
/// Channels of a block of K, at most. If K has one tap, the rows of B of 32 columns then fill an L1
/// cache of 48 KiB. A fixed number, because packed weights and the order of sums depend on it.
const MOST_BLOCK_CHANNELS: usize = 352;

/// Channels in blocks of K, for `taps` taps.
pub(super) fn blocks_of_k(channels: usize, taps: usize) -> Blocks {
    channel_blocks(channels, taps, MOST_STEPS.min(MOST_BLOCK_CHANNELS * taps))
}

/// The sizes of a layer's products.
pub(super) struct PhaseProducts {
    /// Output channels of a group.
    pub(super) rows: usize,
    /// For each class of phases of the last axis: its phases, and the steps of K of each, over all
    /// phases of the outer axes.
    pub(super) classes: Vec<(usize, usize)>,
}

/// The panels of channels, and their kernels.
pub(super) struct PhaseTiles<T: Real> {
    pub(super) panels: RowPanels,
    /// Rows of the tallest kernel.
    pub(super) mr: usize,
    pub(super) lanes: usize,
    pub(super) widths: TileWidths<T>,
}

impl<T: Real> PhaseTiles<T> {
    /// The tiles that take the fewest cycles for `vectors` vectors of columns, and what they take. If
    /// the phases `can_pair`, a panel has no more rows than one kernel. `packed` fixes the channels of
    /// the tallest panel and the rows of the tallest kernel.
    pub(super) fn cheapest(
        machine: &Machine,
        products: &PhaseProducts,
        vectors: usize,
        can_pair: bool,
        packed: Option<(usize, usize)>,
    ) -> Option<(Self, Work)> {
        let widths: Vec<_> = spatial_widths::<T>(machine.isa()).collect();
        let phases: usize = products.classes.iter().map(|(phases, _)| phases).sum();
        let mut best: Option<(Self, Work)> = None;
        for (widest, kernels) in widths.iter().enumerate() {
            let most_rows = if can_pair { kernels.len().min(TILE_ROWS) } else { TILE_ROWS };
            let most_channels = (most_rows / phases.max(1)).clamp(1, MOST_PANEL_CHANNELS).min(products.rows);
            for channels in 1..=most_channels {
                let panels = RowPanels::new(products.rows, channels);
                let heights =
                    products.classes.iter().map(|(n, _)| RowPanels::new(n * channels, kernels.len()).height(0));
                let mr = heights.max().unwrap_or(1);
                // Panels of nearly equal height may be lower than `channels`. Another choice then gives
                // the same panels.
                if panels.height(0) != channels || packed.is_some_and(|packed| packed != (channels, mr)) {
                    continue;
                }
                let tiles = Self::new(&widths[..=widest], panels, mr);
                let work = tiles.work(machine, products, vectors);
                if best.as_ref().is_none_or(|(_, least)| work.cycles() < least.cycles()) {
                    best = Some((tiles, work));
                }
            }
        }
        best
    }

    /// Panels of one channel of a group that has one, with kernels of one row.
    pub(super) fn single(machine: &Machine) -> Self {
        let widths: Vec<_> = spatial_widths::<T>(machine.isa()).collect();
        Self::new(&widths, RowPanels::new(1, 1), 1)
    }

    /// Of the widths that have kernels of `mr` rows, the kernels of up to `mr` rows.
    fn new(widths: &[&'static [SpatialKernel<T>]], panels: RowPanels, mr: usize) -> Self {
        Self { panels, mr, lanes: widths[0][0].lanes(), widths: TileWidths::new(widths, mr) }
    }

    /// The tiles of a class of `phases`, for `channels` output channels.
    pub(super) fn of_class(&self, phases: usize, channels: usize) -> RowPanels {
        RowPanels::new(phases * channels, self.mr)
    }

    pub(super) fn widest(&self) -> usize {
        self.widths.widest()[0].nrv()
    }

    pub(super) fn name(&self) -> &'static str {
        self.widths.widest()[self.mr - 1].name()
    }

    /// The products of all phases of all axes, for all rows and `vectors` vectors of columns.
    fn work(&self, machine: &Machine, products: &PhaseProducts, vectors: usize) -> Work {
        let mut work = Work::default();
        for (kernels, count) in self.widths.cover(vectors) {
            work += self.column_tile_work(machine, products, kernels) * count as f64;
        }
        work
    }

    fn column_tile_work(&self, machine: &Machine, products: &PhaseProducts, kernels: &[SpatialKernel<T>]) -> Work {
        let mut work = Work::default();
        for run in self.panels.runs(&(0..self.panels.count())) {
            for (phases, steps) in &products.classes {
                let tiles = self.of_class(*phases, self.panels.height(run.start));
                for equal in tiles.runs(&(0..tiles.count())) {
                    let kernel = &kernels[tiles.height(equal.start) - 1];
                    work += tile_work(machine, kernel, *steps) * (run.len() * equal.len()) as f64;
                }
            }
        }
        work
    }
}

/// What a tile takes: the steps of K, and the call.
fn tile_work<T: Real>(machine: &Machine, kernel: &SpatialKernel<T>, steps: usize) -> Work {
    // Taps are shifts of one another's views. Where they are not, low tiles are no better either, because
    // they store more often.
    let step = spatial_cycles(machine, kernel, machine.unaligned_slots::<T>(kernel.lanes()));
    Item::ARITHMETIC_CYCLES.times(step * steps as f64) + Item::KERNEL_CALLS.times(1.0)
}
