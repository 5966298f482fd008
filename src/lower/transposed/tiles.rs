//! Panels of output channels, and the kernels for all phases of a panel.

use alloc::vec::Vec;

use convoke_kernels::catalogue::spatial_kernels;
use convoke_kernels::weave::Run;
use convoke_kernels::{Real, SpatialKernel};

use crate::lower::engine::RowPanels;
use crate::machine::Machine;

/// Rows of a tile, phases and channels together, about: the sums of a strip then stay in the L1
/// cache.
pub(super) const ROWS: usize = 64;
/// Channels of a panel, at the most.
const MOST_CHANNELS: usize = 32;

/// What is to be multiplied.
pub(super) struct Work {
    /// Output channels of a group.
    pub(super) rows: usize,
    /// For each class of phases of the last axis: phases, and taps of each along that axis.
    pub(super) classes: Vec<(usize, usize)>,
    /// Taps of the other axes.
    pub(super) outer_taps: usize,
    /// Channels of X in a group.
    pub(super) channels: usize,
}

/// The panels of channels, and the kernels for them.
pub(super) struct PhaseTiles<T: Real> {
    pub(super) panels: RowPanels,
    /// Rows of the highest kernel.
    pub(super) mr: usize,
    pub(super) lanes: usize,
    /// Widest first.
    widths: Vec<Width<T>>,
}

/// The kernels of one width, of every height.
pub(super) struct Width<T: Real> {
    pub(super) nrv: usize,
    kernels: Vec<&'static SpatialKernel<T>>,
}

impl<T: Real> Width<T> {
    pub(super) fn of_height(&self, height: usize) -> &'static SpatialKernel<T> {
        self.kernels[height - 1]
    }
}

impl<T: Real> PhaseTiles<T> {
    /// The panels and kernels that take the fewest cycles for `vectors` of columns: where all
    /// phases of a panel `can_pair`, only panels of which a kernel has all rows; with `packed`,
    /// only those of that channels and rows.
    pub(super) fn choose(
        machine: &Machine,
        work: &Work,
        vectors: usize,
        can_pair: bool,
        packed: Option<(usize, usize)>,
    ) -> Option<Self> {
        let kernels = spatial_kernels::<T>(machine.isa());
        let lanes = kernels.first()?.lanes();
        let widest = kernels.iter().map(SpatialKernel::nrv).max()?;
        let phases = work.classes.iter().map(|(phases, _)| *phases).sum::<usize>();
        let mut best: Option<(f64, Self)> = None;
        for nrv in 1..=widest {
            let Some(most) = kernels.iter().filter(|k| k.nrv() == nrv).map(SpatialKernel::mr).max() else { continue };
            for channels in 1..=work.rows.min(MOST_CHANNELS) {
                if channels > 1 && channels * phases > ROWS {
                    break;
                }
                let heights = work.classes.iter().map(|(n, _)| RowPanels::new(n * channels, most).height(0));
                let mr = packed.map_or_else(|| heights.max().unwrap_or(1), |(_, mr)| mr);
                if can_pair && packed.is_none() && phases * channels > most.max(phases) {
                    break;
                }
                if mr > most || packed.is_some_and(|(packed, _)| packed != channels) {
                    continue;
                }
                let widths = (1..=nrv).rev().filter_map(|nrv| {
                    let find = |mr: usize| kernels.iter().find(|k| k.mr() == mr && k.nrv() == nrv);
                    Some(Width { nrv, kernels: (1..=mr).map(find).collect::<Option<Vec<_>>>()? })
                });
                let tiles = Self { panels: RowPanels::new(work.rows, channels), mr, lanes, widths: widths.collect() };
                // Panels of nearly equal height may be lower than asked for, but not where weights
                // are packed.
                if packed.is_none() && tiles.panels.height(0) != channels {
                    continue;
                }
                let cycles = tiles.cycles(machine, work, vectors);
                if best.as_ref().is_none_or(|(least, _)| cycles < *least) {
                    best = Some((cycles, tiles));
                }
            }
        }
        best.map(|(_, tiles)| tiles)
    }

    /// The widest kernels of at most `vectors` vectors.
    pub(super) fn width(&self, vectors: usize) -> &Width<T> {
        // A width of one vector is in every list, because the tables have it for every height.
        self.widths.iter().find(|w| w.nrv <= vectors).unwrap_or(&self.widths[self.widths.len() - 1])
    }

    /// The widest tile, in vectors.
    pub(super) fn widest(&self) -> usize {
        self.widths[0].nrv
    }

    /// The name of the highest and widest kernel.
    pub(super) fn name(&self) -> &'static str {
        self.widths[0].of_height(self.mr).name()
    }

    /// Estimated cycles for the phases of all axes, all rows and `vectors` of columns.
    pub(super) fn cycles(&self, machine: &Machine, work: &Work, vectors: usize) -> f64 {
        let low = self.panels.height(self.panels.count() - 1);
        let tall = self.panels.height(0);
        let taller = work.rows - low * self.panels.count();
        let of_strip = |width: &Width<T>, channels: usize| {
            let of_class = |(phases, taps): &(usize, usize)| {
                let subs = RowPanels::new(phases * channels, self.mr);
                let k = (taps * work.outer_taps * work.channels) as f64;
                let of_sub = |sub: usize| {
                    let kernel = width.of_height(subs.height(sub));
                    machine.tile_cycles(kernel.fmas(), kernel.loads()) * k * machine.shifted_views(kernel.mr(), false)
                        + machine.prices().kernel_call_cycles
                };
                (0..subs.count()).map(of_sub).sum::<f64>()
            };
            work.classes.iter().map(of_class).sum::<f64>()
        };
        let mut cycles = 0.0;
        let mut at = 0;
        while at < vectors {
            let width = self.width(vectors - at);
            let repeat = if width.nrv == self.widest() { (vectors - at) / width.nrv } else { 1 };
            let tall = if taller == 0 { 0.0 } else { taller as f64 * of_strip(width, tall) };
            cycles += repeat as f64 * (tall + (self.panels.count() - taller) as f64 * of_strip(width, low));
            at += repeat * width.nrv;
        }
        cycles
    }
}

/// Finds where the pairs of outputs of each vector go; none if some are cropped, or of no run, or
/// of two.
pub(super) fn pair_places(runs: &[Run], places: &mut [usize], lanes: usize) -> Option<()> {
    for (vector, place) in places.iter_mut().enumerate() {
        let run = runs.iter().rfind(|run| run.from <= vector * lanes)?;
        // The run may begin with the second output of its first pair.
        let first = (2 * (vector * lanes - run.from)).checked_sub(run.phase)?;
        if first + 2 * lanes > run.len {
            return None;
        }
        *place = run.at + first;
    }
    Some(())
}
