//! How the products of phases are cut: panels of output channels, kernels, and blocks of K.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Add, Mul};

use convoke_kernels::catalogue::spatial_widths;
use convoke_kernels::{Real, SpatialKernel};

use crate::lower::engine::RowPanels;
use crate::lower::planes::channels_per_block;
use crate::machine::{Item, Machine, Work};

/// Rows of a tile, which are phases times channels, about: the sums of a strip then stay in the
/// L1 cache.
pub(super) const TILE_ROWS: usize = 64;
/// The most channels of a panel.
const MOST_PANEL_CHANNELS: usize = 32;
/// The most steps of a block of K, unless the taps of one channel are more. It is an absolute
/// number, because packed weights and the order of sums depend on it.
const MOST_STEPS: usize = 512;
/// The most channels of a block of K. If K has one tap, no taps share the rows of B, and those of
/// a tile of 32 columns then fill an L1 cache of 48 KiB. It is an absolute number, because packed
/// weights and the order of sums depend on it.
const MOST_BLOCK_CHANNELS: usize = 352;

/// Channels of a block of K, for `taps` taps.
pub(super) fn block_channels(channels: usize, taps: usize) -> usize {
    channels_per_block(channels, taps, MOST_STEPS.min(MOST_BLOCK_CHANNELS * taps))
}

/// The sizes of a layer's products.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PhaseProducts {
    /// Output channels of a group.
    pub(super) rows: usize,
    /// The classes of phases of the last axis.
    pub(super) classes: Vec<ClassSize>,
    /// Taps of the axes before the last.
    pub(super) outer_taps: usize,
    /// Channels of X in a group.
    pub(super) channels: usize,
}

impl PhaseProducts {
    /// Rows of the tallest kernel that panels of so many channels take, where there are kernels of up
    /// to `most` rows.
    fn tallest(&self, channels: usize, most: usize) -> usize {
        let heights = self.classes.iter().map(|class| RowPanels::new(class.phases * channels, most).height(0));
        heights.max().unwrap_or(1)
    }

    /// Steps of K of a tile of a class.
    fn steps(&self, class: usize) -> f64 {
        (self.classes[class].taps * self.outer_taps * self.channels) as f64
    }
}

/// The size of a class of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassSize {
    pub(super) phases: usize,
    /// Taps of each phase along the last axis.
    pub(super) taps: usize,
}

/// Which tiles may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TilesWanted {
    Any,
    /// Those that weights are packed for: with so many output channels in the tallest panel, and so
    /// many rows of the tallest kernel.
    Packed {
        channels: usize,
        mr: usize,
    },
    /// Panels of one channel: nothing is multiplied by tiles.
    OneChannel,
}

/// The panels of channels, and their kernels.
pub(super) struct PhaseTiles<T: Real> {
    pub(super) panels: RowPanels,
    /// Rows of the tallest kernel.
    pub(super) mr: usize,
    pub(super) lanes: usize,
    /// The widest kernels come first.
    widths: Vec<PhaseWidth<T>>,
}

/// The kernels of one width. There is one of each height.
#[derive(Clone, Copy)]
pub(super) struct PhaseWidth<T: Real> {
    /// The width in vectors.
    pub(super) nrv: usize,
    kernels: &'static [SpatialKernel<T>],
}

impl<T: Real> PhaseWidth<T> {
    pub(super) fn of_height(&self, height: usize) -> &'static SpatialKernel<T> {
        &self.kernels[height - 1]
    }
}

/// The panels and kernels that may be taken, with what they take.
pub(super) struct TileChoices<'a, T: Real> {
    products: &'a PhaseProducts,
    widths: Vec<&'static [SpatialKernel<T>]>,
    prices: TilePrices,
    all: Vec<TileChoice>,
}

/// Panels, and kernels of up to some width and height.
#[derive(Clone, Copy)]
struct TileChoice {
    panels: RowPanels,
    /// The widths up to this one are taken, as far as they have kernels of `mr` rows.
    widest: usize,
    mr: usize,
    /// Cycles for a vector of columns that no tiles of this choice undercut.
    least_cycles: f64,
}

impl<'a, T: Real> TileChoices<'a, T> {
    /// If the phases `can_pair`, a panel has no more rows than one kernel, unless weights are packed
    /// already.
    pub(super) fn new(machine: &Machine, products: &'a PhaseProducts, can_pair: bool, wanted: TilesWanted) -> Self {
        let widths: Vec<_> = spatial_widths::<T>(machine.isa()).collect();
        let phases = products.classes.iter().map(|class| class.phases).sum::<usize>();
        let prices = TilePrices::new(machine, products, &widths);
        let mut all = Vec::new();
        for (widest, kernels) in widths.iter().enumerate() {
            let tallest = kernels.len();
            for channels in 1..=products.rows.min(MOST_PANEL_CHANNELS) {
                let is_too_tall = channels > 1 && channels * phases > TILE_ROWS;
                let is_cut = can_pair && phases * channels > tallest.max(phases);
                if is_too_tall || wanted == TilesWanted::Any && is_cut {
                    break;
                }
                let is_taken = |mr: usize| widths.iter().any(|kernels| products.tallest(channels, kernels.len()) == mr);
                let mr = match wanted {
                    TilesWanted::Any => products.tallest(channels, tallest),
                    // Other kernels may be wider or narrower, with the same rows.
                    TilesWanted::Packed { channels: packed, mr } if packed == channels && is_taken(mr) => mr,
                    TilesWanted::OneChannel if channels == 1 => 1,
                    _ => continue,
                };
                if mr > tallest {
                    continue;
                }
                let panels = RowPanels::new(products.rows, channels);
                // Panels of nearly equal height may be lower than `channels`. Such a choice is
                // another one's double.
                if panels.height(0) != channels {
                    continue;
                }
                let least_cycles = prices.least(widest, mr) * products.rows as f64;
                all.push(TileChoice { panels, widest, mr, least_cycles });
            }
        }
        Self { products, widths, prices, all }
    }

    /// The tiles that take the fewest cycles for `vectors` vectors of columns. Of equals, the first
    /// ones are taken.
    pub(super) fn cheapest(&self, vectors: usize) -> Option<PhaseTiles<T>> {
        let by_bound = |one: &&TileChoice, other: &&TileChoice| one.least_cycles.total_cmp(&other.least_cycles);
        let promising = self.all.iter().min_by(by_bound)?;
        let (mut best, mut least) = (None, self.total(promising, vectors).1);
        for choice in &self.all {
            // Rounded down, because the cycles of tiles are summed in another order.
            if choice.least_cycles * vectors as f64 * (1.0 - 1e-9) > least {
                continue;
            }
            let (tiles, cycles) = self.total(choice, vectors);
            if cycles < least || best.is_none() && cycles == least {
                (best, least) = (Some(tiles), cycles);
            }
        }
        best
    }

    fn total(&self, choice: &TileChoice, vectors: usize) -> (PhaseTiles<T>, f64) {
        let tiles = PhaseTiles::new(&self.widths[..=choice.widest], choice.panels, choice.mr);
        let cycles = tiles.total(self.products, vectors, |kernel, class| self.prices.cycles(kernel, class));
        (tiles, cycles)
    }
}

impl<T: Real> PhaseTiles<T> {
    /// The kernels of up to `mr` rows, in those of the widths that have them.
    fn new(widths: &[&'static [SpatialKernel<T>]], panels: RowPanels, mr: usize) -> Self {
        let lanes = widths[0][0].lanes();
        let has_all = widths.iter().rev().filter(|kernels| kernels.len() >= mr);
        Self {
            panels,
            mr,
            lanes,
            widths: has_all.map(|kernels| PhaseWidth { nrv: kernels[0].nrv(), kernels }).collect(),
        }
    }

    /// The widest kernels of at most `vectors` vectors.
    pub(super) fn width(&self, vectors: usize) -> &PhaseWidth<T> {
        // The list ends with a width of one vector: the catalogue has it for every height.
        self.widths.iter().find(|w| w.nrv <= vectors).unwrap_or(&self.widths[self.widths.len() - 1])
    }

    /// The width of the widest tile, in vectors.
    pub(super) fn widest(&self) -> usize {
        self.widths[0].nrv
    }

    /// The name of the tallest and widest kernel.
    pub(super) fn name(&self) -> &'static str {
        self.widths[0].of_height(self.mr).name()
    }

    /// The products of all phases of all axes, for all rows and `vectors` vectors of columns.
    pub(super) fn work(&self, machine: &Machine, products: &PhaseProducts, vectors: usize) -> Work {
        self.total(products, vectors, |kernel, class| tile_work(machine, kernel, products.steps(class)))
    }

    /// Adds up `tile` over these tiles: it is given the kernel of a tile, and its class of phases.
    fn total<V>(&self, products: &PhaseProducts, vectors: usize, tile: impl Fn(&SpatialKernel<T>, usize) -> V) -> V
    where
        V: Copy + Default + Add<Output = V> + Mul<f64, Output = V>,
    {
        let strip = |width: &PhaseWidth<T>, channels: usize| {
            let class = |(index, class): (usize, &ClassSize)| {
                let subpanels = RowPanels::new(class.phases * channels, self.mr);
                let of_height = |panel: usize| tile(width.of_height(subpanels.height(panel)), index);
                let (taller, lower) = (of_height(0), of_height(subpanels.count() - 1));
                let subpanel = |index: usize| if subpanels.is_taller(index) { taller } else { lower };
                (0..subpanels.count()).map(subpanel).fold(V::default(), V::add)
            };
            products.classes.iter().enumerate().map(class).fold(V::default(), V::add)
        };
        let count = self.panels.count();
        let (tall, low) = (self.panels.height(0), self.panels.height(count - 1));
        let taller = products.rows - low * count;
        let mut total = V::default();
        let mut at = 0;
        while at < vectors {
            let width = self.width(vectors - at);
            let repeat = if width.nrv == self.widest() { (vectors - at) / width.nrv } else { 1 };
            let tall = if taller == 0 { V::default() } else { strip(width, tall) * taller as f64 };
            total = total + (tall + strip(width, low) * (count - taller) as f64) * repeat as f64;
            at += repeat * width.nrv;
        }
        total
    }
}

/// Cycles of the tiles of all kernels: the search asks for the same ones again and again.
struct TilePrices {
    /// By class, width in vectors, and rows.
    cycles: Vec<f64>,
    widths: usize,
    heights: usize,
    /// By number of a width, and rows: see [`least`](Self::least).
    least: Vec<f64>,
}

impl TilePrices {
    fn new<T: Real>(machine: &Machine, products: &PhaseProducts, all_widths: &[&'static [SpatialKernel<T>]]) -> Self {
        let all = || all_widths.iter().copied().flatten();
        let (nrv, mr) = (all().map(SpatialKernel::nrv).max(), all().map(SpatialKernel::mr).max());
        let (widths, heights) = (nrv.unwrap_or(0), mr.unwrap_or(0));
        let cycles = vec![0.0; products.classes.len() * widths * heights];
        let mut prices = Self { cycles, widths, heights, least: vec![0.0; all_widths.len() * heights] };
        for (index, class) in products.classes.iter().enumerate() {
            let mut least_of_width = vec![f64::INFINITY; heights];
            for (i, kernels) in all_widths.iter().enumerate() {
                let mut least = f64::INFINITY;
                for (height, least_so_far) in least_of_width.iter_mut().enumerate() {
                    if let Some(kernel) = kernels.get(height) {
                        let place = prices.place(kernel, index);
                        let cycles = tile_work(machine, kernel, products.steps(index)).cycles();
                        prices.cycles[place] = cycles;
                        least = least.min(cycles / (kernel.mr() * kernel.nrv()) as f64);
                    }
                    *least_so_far = least_so_far.min(least);
                    prices.least[i * heights + height] += *least_so_far * class.phases as f64;
                }
            }
        }
        prices
    }

    /// Cycles for a vector of columns of one channel, with the phases of all classes, that no tiles
    /// undercut which have kernels of up to `mr` rows, and of widths up to number `widest`.
    fn least(&self, widest: usize, mr: usize) -> f64 {
        self.least[widest * self.heights + mr - 1]
    }

    fn place<T: Real>(&self, kernel: &SpatialKernel<T>, class: usize) -> usize {
        (class * self.widths + kernel.nrv() - 1) * self.heights + kernel.mr() - 1
    }

    fn cycles<T: Real>(&self, kernel: &SpatialKernel<T>, class: usize) -> f64 {
        self.cycles[self.place(kernel, class)]
    }
}

/// What a tile takes: `steps` steps of K, and the call of its kernel.
fn tile_work<T: Real>(machine: &Machine, kernel: &SpatialKernel<T>, steps: f64) -> Work {
    let step = machine.tile_cycles(kernel.fmas(), kernel.loads());
    let cycles = step * steps * machine.shifted_views(kernel.mr(), false);
    machine.work(Item::ArithmeticCycles, cycles) + machine.work(Item::KernelCalls, 1.0)
}
