//! The loops over panels of channels and column tiles, and how sums get into Y.

use core::ops::Range;

use convoke_kernels::interleave::{MOST_SUMS, OutputRun, PhaseRows, Sum};
use convoke_kernels::{Dest, Epilogue, Prefetch, Real};

use super::lowering::{ChunkPhase, PhaseSums, Transposed};
use super::plan::{MOST_PAIRED_VECTORS, PhaseMode};
use crate::conv::contract::Io;
use crate::conv::store::OutputStore;
use crate::element::Element;
use crate::exec::region::Stores;

/// Runs of outputs that one call stores, at most, of a column tile and of a chunk. Their list is on the
/// stack.
const TILE_RUNS: usize = 8;
const CHUNK_RUNS: usize = 32;

/// The columns of a chunk that one call multiplies. It is changed in place and never moved, for the
/// reason that [`PhasePanel`] gives.
#[derive(Default)]
struct ColumnTile {
    vectors: Range<usize>,
    /// The first `count` of the list are the runs of outputs. If the list is full, there may be more,
    /// from row `row` of the chunk on.
    runs: [OutputRun; TILE_RUNS],
    count: usize,
    row: usize,
    /// Where the pairs of each vector go in a channel of Y, if pairs are stored.
    places: [usize; MOST_PAIRED_VECTORS],
}

impl ColumnTile {
    fn runs(&self) -> &[OutputRun] {
        &self.runs[..self.count]
    }

    /// Finds where the pairs of each vector go. Returns false if pairs cannot be stored: each vector
    /// must have the pairs of one run only, none of them cropped.
    fn find_pairs(&mut self, lanes: usize) -> bool {
        let runs = &self.runs[..self.count];
        for (vector, place) in self.places[..self.vectors.len()].iter_mut().enumerate() {
            let Some(run) = runs.iter().rfind(|run| run.from <= vector * lanes) else { return false };
            // The run may begin with the second output of a pair.
            let Some(first) = (2 * (vector * lanes - run.from)).checked_sub(run.phase) else { return false };
            if first + 2 * lanes > run.len {
                return false;
            }
            *place = run.at + first;
        }
        true
    }
}

/// A panel of output channels. It has no slices, which are made where they are used: a slice is two
/// words, and if both are written to the stack and copied as one value, the copy waits for all earlier
/// stores, also those of the last tile into Y.
struct PhasePanel {
    channel: usize,
    height: usize,
    /// Whether the task has another panel behind this one.
    has_next: bool,
    /// The first element of its first channel in Y.
    at: usize,
}

impl PhasePanel {
    /// What is stored of `runs` in each channel. Channels have `positions` outputs.
    fn stores(&self, runs: &[OutputRun], positions: usize) -> impl Iterator<Item = Stores> + Clone {
        runs.iter().map(move |run| Stores::row(self.at + run.at, run.len).times(self.height, positions))
    }
}

impl<T: Element> Transposed<T> {
    /// The place of a row that padding crops.
    pub(super) const CROPPED: usize = usize::MAX;

    /// Computes some panels for one phase, and stores them.
    ///
    /// Pairs are stored by column tiles if the panels stay in the L2 cache: the rows of B then stay in
    /// the L1 cache. Otherwise panels come first, as rows of many channels of Y compete for cache sets.
    pub(super) fn store_phase(
        &self,
        store: &OutputStore<'_, '_, T>,
        here: &ChunkPhase<'_, T::Acc>,
        panels: Range<usize>,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        if self.mode == PhaseMode::Summed {
            return self.sum_channel(store, here, &self.panel(here, 0, 1), sums.outputs);
        }
        let is_paired = self.mode == PhaseMode::Paired && store.pairs().is_some();
        let at_once = if is_paired && self.is_near { panels.len().max(1) } else { 1 };
        let mut column_tile = ColumnTile::default();
        for first in panels.clone().step_by(at_once) {
            let part = first..(first + at_once).min(panels.end);
            if self.k_blocks > 1 {
                self.multiply(store.io, here, &self.panel(here, first, panels.end), 0..here.vectors, sums.sums);
            }
            let mut vector = 0;
            while vector < here.vectors {
                let nrv = self.tiles.widths.of(here.vectors - vector)[0].nrv();
                self.set_column_tile(here, vector..vector + nrv, &mut column_tile);
                vector += nrv;
                if is_paired && column_tile.find_pairs(self.tiles.lanes) {
                    self.store_pairs(store, here, (part.clone(), panels.end), &column_tile, sums.sums);
                    continue;
                }
                for p in part.clone() {
                    let panel = self.panel(here, p, panels.end);
                    if self.k_blocks == 1 {
                        self.prefetch(store, &panel, column_tile.runs());
                        self.multiply(store.io, here, &panel, column_tile.vectors.clone(), sums.sums);
                    }
                    self.interleave(store, here, &panel, &column_tile, sums);
                }
            }
        }
    }

    /// Prefetches the lines of a large Y that a tile will be stored to. Stores that miss the caches
    /// would wait one after the other.
    fn prefetch(&self, store: &OutputStore<'_, '_, T>, panel: &PhasePanel, runs: &[OutputRun]) {
        if let Some(y) = store.dest(panel.at, []).filter(|_| self.is_far) {
            self.interleave.prefetch(runs, panel.height, &y, self.positions);
        }
    }

    /// Panel `p` of a group, where the panels of the task end with `end`.
    fn panel(&self, here: &ChunkPhase<'_, T::Acc>, p: usize, end: usize) -> PhasePanel {
        let channel = here.group * self.geometry.out_channels_per_group() + self.tiles.panels.start(p);
        let at = self.geometry.output_offset(here.image, channel, 0);
        PhasePanel { channel, height: self.tiles.panels.height(p), has_next: p + 1 < end, at }
    }

    fn columns_of(&self, vectors: &Range<usize>) -> Range<usize> {
        vectors.start * self.tiles.lanes..vectors.end * self.tiles.lanes
    }

    /// Sets `column_tile` to some vectors of the chunk.
    fn set_column_tile(&self, here: &ChunkPhase<'_, T::Acc>, vectors: Range<usize>, column_tile: &mut ColumnTile) {
        let columns = self.columns_of(&vectors);
        let begins = &self.row_columns[..here.places.len()];
        let row = begins.partition_point(|begin| begin + here.along.len() <= columns.start);
        (column_tile.count, column_tile.row) = self.runs(here, &columns, row, &mut column_tile.runs);
        column_tile.vectors = vectors;
    }

    /// Calls `store` with the runs of outputs of some columns, from row `row` of the chunk on, a list at
    /// a time.
    fn for_each_runs(
        &self,
        here: &ChunkPhase<'_, T::Acc>,
        columns: &Range<usize>,
        mut row: usize,
        mut store: impl FnMut(&[OutputRun]),
    ) {
        let mut runs = [OutputRun::default(); CHUNK_RUNS];
        let mut count = CHUNK_RUNS;
        while count == CHUNK_RUNS {
            (count, row) = self.runs(here, columns, row, &mut runs);
            store(&runs[..count]);
        }
    }

    /// Fills `runs` with the runs of outputs of some columns, from row `row` of the chunk on. Returns
    /// their number, and the row behind them.
    fn runs(
        &self,
        here: &ChunkPhase<'_, T::Acc>,
        columns: &Range<usize>,
        mut row: usize,
        runs: &mut [OutputRun],
    ) -> (usize, usize) {
        let along = &self.phases[self.phases.len() - 1];
        let mut count = 0;
        while count < runs.len() && row < here.places.len() {
            let (begin, place) = (self.row_columns[row], here.places[row]);
            if begin >= columns.end {
                break;
            }
            row += 1;
            if place == Self::CROPPED {
                continue;
            }
            let within = |column: usize| column.clamp(begin, begin + here.along.len()) - begin;
            let (from, to) = (within(columns.start), within(columns.end));
            let outputs = along.outputs(&(here.along.start + from..here.along.start + to));
            let phase = along.output_place(here.along.start + from, outputs.start);
            let (from, at) = (begin + from - columns.start, place + outputs.start);
            runs[count] = OutputRun { from, phase, at, len: outputs.len() };
            count += 1;
        }
        (count, row)
    }

    /// Where the sums of the column tile that begins with vector `first` are, among those of a panel of
    /// `height` channels.
    fn column_tile_at(&self, height: usize, first: usize) -> usize {
        if self.k_blocks > 1 { self.slots.count * height * first * self.tiles.lanes } else { 0 }
    }

    /// Sums one panel for the column tiles of the vectors `column_tiles`.
    fn multiply(
        &self,
        io: &Io<'_, T>,
        here: &ChunkPhase<'_, T::Acc>,
        panel: &PhasePanel,
        column_tiles: Range<usize>,
        sums: &mut [T::Acc],
    ) {
        let channels = self.geometry.in_channels_per_group();
        if here.outer.passes.is_empty() || channels == 0 {
            return sums.fill(T::Acc::ZERO);
        }
        let all = &io.weights[panel.channel * self.channel_weights..];
        for pass in &here.outer.passes {
            let k_total = channels * pass.taps;
            let a = &all[pass.before * channels * panel.height..];
            let tiles = self.tiles.of_class(pass.phases, panel.height);
            let next = if panel.has_next { panel.height * self.channel_weights } else { all.len() };
            let next = all.get(next + pass.before * channels * panel.height..).unwrap_or(&[]);
            for block in pass.k.iter() {
                let koff = pass.koff[usize::from(block.len() != pass.k.size())].rows(0..block.len() * pass.taps);
                let (from, to) = (block.start * pass.taps, block.end * pass.taps);
                let mut vector = column_tiles.start;
                while vector < column_tiles.end {
                    let kernels = self.tiles.widths.of(column_tiles.end - vector);
                    let nr = kernels[0].nr();
                    let b = &here.planes[block.start * self.planes.channel_len + vector * self.tiles.lanes..];
                    let at = self.column_tile_at(panel.height, vector) + pass.slot * panel.height * nr;
                    for t in 0..tiles.count() {
                        let (row, height) = (tiles.start(t), tiles.height(t));
                        // While the first column tile is multiplied, the weights of the next block of K,
                        // or of the next panel, are prefetched.
                        let prefetch = match vector {
                            0 if to < k_total => a.get(row * k_total + to * height..),
                            0 => next.get(row * k_total..),
                            _ => None,
                        };
                        let prefetch = prefetch.map_or(Prefetch::NONE, Prefetch::lines);
                        let a = &a[row * k_total + from * height..row * k_total + to * height];
                        let tile = &mut sums[at + row * nr..at + (row + height) * nr];
                        kernels[height - 1].partial(a, b, koff, prefetch, tile, block.start > 0);
                    }
                    vector += kernels[0].nrv();
                }
            }
        }
    }

    /// Interleaves the sums of one panel for one column tile.
    fn interleave(
        &self,
        store: &OutputStore<'_, '_, T>,
        here: &ChunkPhase<'_, T::Acc>,
        panel: &PhasePanel,
        column_tile: &ColumnTile,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        let columns = self.columns_of(&column_tile.vectors);
        let (nr, slots) = (columns.len(), &self.slots);
        let tile = &mut sums.sums[self.column_tile_at(panel.height, column_tile.vectors.start)..];
        if slots.count > slots.with_taps {
            tile[slots.with_taps * panel.height * nr..][..panel.height * nr].fill(T::Acc::ZERO);
        }
        let phase_rows = PhaseRows { sums: tile, slots: &slots.of_place, step: panel.height * nr, pitch: nr };
        let mut store = |runs: &[OutputRun]| {
            self.store_runs(store, panel, runs, sums.outputs, |first, runs, epilogue, y, ldy| {
                let phase_rows = PhaseRows { sums: &phase_rows.sums[first * nr..], ..phase_rows };
                self.interleave.run(&phase_rows, runs, epilogue, y, ldy);
            });
        };
        store(column_tile.runs());
        // Very short rows have more runs than the list.
        if column_tile.count == TILE_RUNS {
            self.for_each_runs(here, &columns, column_tile.row, store);
        }
    }

    /// Stores some runs of outputs of all channels of a panel. `kernel` gets the first channel and the
    /// bias of those that it computes, and the distance at which it stores them.
    #[inline(always)]
    fn store_runs(
        &self,
        store: &OutputStore<'_, '_, T>,
        panel: &PhasePanel,
        runs: &[OutputRun],
        outputs: &mut [T::Acc],
        kernel: impl Fn(usize, &[OutputRun], &Epilogue<'_, T::Acc>, &mut Dest<'_, T::Acc>, usize),
    ) {
        let bias = &store.io.bias[panel.channel..panel.channel + panel.height];
        let stored = store.direct(panel.at, bias, panel.stores(runs, self.positions), |mut y, epilogue| {
            kernel(0, runs, &epilogue, &mut y, self.positions);
        });
        if stored.is_some() {
            return;
        }
        let (mut staged, mut len) = ([OutputRun::default(); CHUNK_RUNS], 0);
        for (staged, run) in staged.iter_mut().zip(runs) {
            *staged = OutputRun { at: len, ..*run };
            len += run.len;
        }
        if len == 0 {
            return;
        }
        // There is scratch for at least one channel.
        let (staged, most) = (&staged[..runs.len()], (outputs.len() / len).max(1));
        for (i, bias) in bias.chunks(most).enumerate() {
            let (first, rows) = (i * most, &mut outputs[..bias.len() * len]);
            kernel(first, staged, &store.staging(bias), &mut Dest::from_slice(rows), len);
            store.staged_runs(rows, (len, self.positions), |store| {
                for (staged, run) in staged.iter().zip(runs) {
                    store(staged.at..staged.at + run.len, panel.at + first * self.positions + run.at);
                }
            });
        }
    }

    /// Computes the panels up to `end` for one column tile, and stores them as pairs. `tile` is scratch.
    /// These tiles are short, so that all that a call does beside its products counts.
    fn store_pairs(
        &self,
        store: &OutputStore<'_, '_, T>,
        here: &ChunkPhase<'_, T::Acc>,
        (panels, end): (Range<usize>, usize),
        column_tile: &ColumnTile,
        tile: &mut [T::Acc],
    ) {
        let (io, pass) = (store.io, &here.outer.passes[0]);
        let kernels = self.tiles.widths.of(column_tile.vectors.len());
        let (k, ldy) = (self.geometry.in_channels_per_group() * pass.taps, self.positions);
        let koff = pass.koff[0].rows(0..k);
        let b = &here.planes[column_tile.vectors.start * self.tiles.lanes..];
        let weights_of = |panel: &PhasePanel| {
            let before = pass.before * self.geometry.in_channels_per_group() * panel.height;
            &io.weights[panel.channel * self.channel_weights + before..][..panel.height * pass.phases * k]
        };
        let places = &column_tile.places[..column_tile.vectors.len()];
        // The epilogue is made before the loop over panels. A kernel loads several of its values at
        // once. If they had just been written one by one, that load would wait for all earlier stores.
        let mut epilogue = store.pairs().expect("checked before: kernels store pairs");
        for p in panels {
            let panel = self.panel(here, p, end);
            // While the first column tile is multiplied, the next panel is prefetched.
            let has_prefetch = column_tile.vectors.start == 0 && panel.has_next;
            let prefetch =
                if has_prefetch { Prefetch::lines(weights_of(&self.panel(here, p + 1, end))) } else { Prefetch::NONE };
            epilogue.bias = &io.bias[panel.channel..panel.channel + panel.height];
            let run = 2 * self.tiles.lanes;
            let stores = places.iter().map(|place| Stores::row(panel.at + place, run).times(panel.height, ldy));
            let mut y = store.dest(panel.at, stores.clone()).expect("a type that kernels store");
            self.prefetch(store, &panel, column_tile.runs());
            let (kernel, a) = (&kernels[panel.height * pass.phases - 1], weights_of(&panel));
            kernel.finish_pairs(a, b, koff, prefetch, tile, false, &mut y, ldy, places, &epilogue);
            store.activate_stored(stores);
        }
    }

    /// Computes one channel for one phase of a whole chunk.
    fn sum_channel(
        &self,
        store: &OutputStore<'_, '_, T>,
        here: &ChunkPhase<'_, T::Acc>,
        channel: &PhasePanel,
        outputs: &mut [T::Acc],
    ) {
        let along = &self.phases[self.phases.len() - 1];
        let a = &store.io.weights[channel.channel * self.channel_weights..];
        let mut phase_rows = [Sum { w: &[], koff: self.no_rows.rows(0..0) }; MOST_SUMS];
        for pass in &here.outer.passes {
            for (member, r) in self.slots.classes[pass.class].iter().enumerate() {
                let w = &a[pass.before + member * pass.taps..][..pass.taps];
                phase_rows[along.phase_place(*r)] = Sum { w, koff: pass.koff[0].rows(0..pass.taps) };
            }
        }
        let phase_rows = &phase_rows[..self.slots.of_place.len()];
        self.for_each_runs(here, &self.columns_of(&(0..here.vectors)), 0, |runs| {
            self.store_runs(store, channel, runs, outputs, |_, runs, epilogue, y, _| {
                self.interleave.sum(here.planes, phase_rows, runs, epilogue, y);
            });
        });
    }
}
