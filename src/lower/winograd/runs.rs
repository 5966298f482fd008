//! What it takes to multiply runs of tiles by the filters of a panel.

use alloc::vec::Vec;
use core::cell::RefCell;

use convoke_kernels::catalogue::channel_widths;
use convoke_kernels::{ChannelKernel, Real};

use crate::lower::channel_tiles::ChannelTiles;
use crate::machine::{Item, Machine, Work};

/// What a run of tiles that lie side by side takes, for one panel and one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunCost {
    /// Cycles of a step of k.
    step_cycles: f64,
    /// Calls of kernels.
    calls: usize,
}

impl RunCost {
    /// The work of `steps` steps of k.
    pub(super) fn work(&self, machine: &Machine, steps: f64) -> Work {
        machine.work(Item::ArithmeticCycles, self.step_cycles * steps)
            + machine.work(Item::GemmCalls, self.calls as f64)
    }
}

/// The costs of runs, by their number of tiles. The search for blocks asks for the same few numbers
/// again and again, so each cost is computed once.
pub(super) struct RunCosts<'a, T: Real> {
    pub(super) machine: &'a Machine,
    /// The kernels for wide panels, which the products have.
    kernels: &'static [ChannelKernel<T>],
    known: RefCell<Vec<Option<RunCost>>>,
}

impl<'a, T: Real> RunCosts<'a, T> {
    /// None if there are no kernels.
    pub(super) fn new(machine: &'a Machine) -> Option<Self> {
        let kernels = channel_widths::<T>(machine.isa()).last()?;
        Some(Self { machine, kernels, known: RefCell::default() })
    }

    /// The cost of a run of `width` tiles. None if a kernel is lacking.
    pub(super) fn of(&self, width: usize) -> Option<RunCost> {
        if let Some(Some(cost)) = self.known.borrow().get(width) {
            return Some(*cost);
        }
        let tiles = ChannelTiles::<T>::new(self.machine, width)?;
        let step_cycles = |t: usize| self.step_cycles(tiles.kernel(tiles.pixels(t).len(), tiles.nr()));
        let cost = RunCost { step_cycles: (0..tiles.count).map(step_cycles).sum(), calls: tiles.count };
        let mut known = self.known.borrow_mut();
        if known.len() <= width {
            known.resize(width + 1, None);
        }
        known[width] = Some(cost);
        Some(cost)
    }

    /// Cycles of a tile in the run that has the fewest for each of its tiles, with `steps` steps of
    /// k: a run of any number of tiles takes as many for each, or more.
    pub(super) fn least_tile_cycles(&self, steps: f64) -> f64 {
        let of_tile = |kernel: &ChannelKernel<T>| {
            let cost = RunCost { step_cycles: self.step_cycles(kernel), calls: 1 };
            cost.work(self.machine, steps).cycles() / kernel.mr() as f64
        };
        self.kernels.iter().map(of_tile).fold(f64::INFINITY, f64::min)
    }

    fn step_cycles(&self, kernel: &ChannelKernel<T>) -> f64 {
        self.machine.tile_cycles(kernel.fmas(), kernel.loads())
    }
}
