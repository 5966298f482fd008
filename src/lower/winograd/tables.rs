//! The tables of a block of tiles: its kernel calls, and its rows of k.

use alloc::vec::Vec;
use core::iter;
use core::ops::Range;

use convoke_kernels::winograd::Planes;
use convoke_kernels::{ChannelKernel, Real, RowOffsets};

use super::block_size::BlockSize;
use super::runs::RunCosts;
use super::scheme::Scheme;
use super::steps::{StepSegment, TileSteps};
use super::view::WinogradView;
use crate::lower::channel_tiles::{ChannelTiles, Rate};
use crate::machine::Machine;

/// A call of a kernel for some tiles of a GEMM. The tiles are the kernel's pixels.
pub(super) struct GemmCall<T: Real> {
    /// The place of the first tile among the transformed ones.
    pub(super) v: usize,
    /// Its place among the products.
    pub(super) tile: usize,
    /// Tiles.
    pub(super) count: usize,
    /// The kernels for wide panels and for narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
}

impl<T: Real> GemmCall<T> {
    /// The kernel for a panel of `nr` filters.
    pub(super) fn kernel(&self, nr: usize) -> &'static ChannelKernel<T> {
        self.kernels[usize::from(nr < self.kernels[0].nr())]
    }
}

/// The calls for one value and one panel: GEMM after GEMM, `of_run` of each.
pub(super) struct GemmCalls<T: Real> {
    pub(super) all: Vec<GemmCall<T>>,
    pub(super) of_run: usize,
    /// How fast the calls fetch filters.
    pub(super) rate: Rate,
}

impl<T: Real> GemmCalls<T> {
    /// None if a kernel is lacking.
    fn new(machine: &Machine, size: &BlockSize, rows: &Range<usize>, is_short: bool) -> Option<Self> {
        let (runs, width) = size.runs(rows, is_short);
        if runs == 0 {
            return Some(Self { all: Vec::new(), of_run: 1, rate: Rate::new(machine) });
        }
        let tiles = ChannelTiles::new(machine, width)?;
        let mut all = Vec::with_capacity(runs * tiles.count);
        for run in 0..runs {
            let row = size.first_row(run, rows, is_short);
            all.extend((0..tiles.count).map(|t| {
                let pixels = tiles.pixels(t);
                let kernel = |channels: usize| tiles.kernel(pixels.len(), channels);
                GemmCall {
                    v: size.row_start(row) + size.skipped + pixels.start,
                    tile: row * size.columns + size.skipped + pixels.start,
                    count: pixels.len(),
                    kernels: [kernel(tiles.nr()), kernel(1)],
                }
            }));
        }
        Some(Self { all, of_run: tiles.count, rate: tiles.rate() })
    }

    /// The calls of values that are zero in the last row of tiles, for about `steps` steps of k.
    /// They leave that row out unless this makes the GEMMs so small that they take longer.
    fn short(machine: &Machine, size: &BlockSize, rows: &Range<usize>, steps: f64) -> Option<Self> {
        if size.spare == 0 {
            return Some(Self { all: Vec::new(), of_run: 1, rate: Rate::new(machine) });
        }
        let costs = RunCosts::<T>::new(machine)?;
        let cycles = |is_short: bool| Some(size.gemm_work(&costs, rows, is_short, steps)?.cycles());
        Self::new(machine, size, rows, cycles(true)? < cycles(false)?)
    }
}

/// Rows of tiles of a block, and the calls for one value and one panel of filters.
pub(super) struct RowCalls<T: Real> {
    /// Rows, counted over all images.
    rows: Range<usize>,
    pub(super) calls: GemmCalls<T>,
    /// The same for values that are [zero](Planes::drops) in the last row of tiles.
    pub(super) short_calls: GemmCalls<T>,
}

/// The tables of all blocks of one size.
pub(super) struct BlockTables<T: Real> {
    pub(super) size: BlockSize,
    pub(super) planes: Planes,
    /// The calls for all rows, and for the rows of each [piece](super::shares::PanelPiece) that has
    /// fewer.
    calls: Vec<RowCalls<T>>,
    /// The row offsets of k, for each list of [`TileSteps`]. The slots of slices form a ring. Its
    /// first slots are there twice, so that a run of slots around the ring is contiguous.
    pub(super) koff: Vec<RowOffsets>,
    /// Elements from one value's transformed tiles to the next value's.
    pub(super) v_plane: usize,
}

impl<T: Real> BlockTables<T> {
    /// The tables for blocks of a size that [fits](BlockSize::fits), in a ring of `slots` slots, with
    /// calls for the rows `cuts` beside those for all rows. None if a kernel is lacking.
    pub(super) fn new(
        machine: &Machine,
        view: &WinogradView,
        scheme: &Scheme<T>,
        steps: &TileSteps,
        (size, slots): (BlockSize, usize),
        cuts: Vec<Range<usize>>,
    ) -> Option<Self> {
        let (channels, taps) = (view.channels, view.roles.depth.kernel);
        let slot_len = size.slot_len(scheme, channels);
        let offsets = |list: &Vec<StepSegment>| {
            let mut koff = Vec::with_capacity((slots + taps - 1) * steps.of_list(list));
            for slot in 0..slots + taps - 1 {
                for segment in list {
                    let [i, j] = segment.filter;
                    let at = slot % slots * slot_len + i * size.input_columns + j;
                    steps.channels(segment).for_each(|c| koff.push((at + c * size.input_tiles()) as u32));
                }
            }
            RowOffsets::new(koff)
        };
        let steps_of_value = (steps.all() * taps) as f64 / scheme.kernel.values() as f64;
        let calls = iter::once(size.all_rows()).chain(cuts).map(|rows| {
            Some(RowCalls {
                calls: GemmCalls::new(machine, &size, &rows, false)?,
                short_calls: GemmCalls::short(machine, &size, &rows, steps_of_value)?,
                rows,
            })
        });
        Some(Self {
            planes: size.planes(scheme),
            calls: calls.collect::<Option<_>>()?,
            koff: steps.lists().iter().map(offsets).collect(),
            v_plane: size.v_plane(scheme, channels),
            size,
        })
    }

    /// The calls for all rows of tiles, or for those of a cut.
    pub(super) fn calls(&self, rows: &Range<usize>) -> &RowCalls<T> {
        self.calls.iter().find(|calls| calls.rows == *rows).expect("made for each cut")
    }
}

/// What one task computes: a block of tiles of one group, for a share of the panels.
pub(super) struct TileTask<'a, T: Real> {
    /// The first [sub-image](super::view::SubImage).
    pub(super) first: usize,
    pub(super) group: usize,
    /// Slices of Y.
    pub(super) slices: Range<usize>,
    /// Which of the shares of the panels.
    pub(super) split: usize,
    pub(super) block: &'a BlockTables<T>,
    /// The first row and column of tiles.
    pub(super) row: usize,
    pub(super) column: usize,
}
