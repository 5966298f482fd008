//! Sums that go to scratch first, and are interleaved from there: tile by tile, or panel by
//! panel.

use core::ops::Range;

use convoke_kernels::weave::{Run, Strands};
use convoke_kernels::{Ahead, Dest, Real};

use super::lowering::Transposed;
use super::plan::PhaseMode;
use super::planes::PhasePlanes;
use super::strips::{PhasePanel, PhaseStrip, PhaseSums, STRIP_RUNS, SlabPhase};
use crate::element::Element;
use crate::lower::contract::Io;
use crate::lower::sink::Sink;

impl<T: Element> Transposed<T> {
    /// Computes some panels for one phase, and interleaves each tile before the next is computed.
    pub(super) fn store_tiles(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panels: Range<usize>,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        let mut strip = PhaseStrip::default();
        for p in panels.clone() {
            let panel = self.panel(here, p, panels.end);
            self.for_each_strip(here, &mut strip, |strip| self.store_tile(sink, here, &panel, strip, sums));
        }
    }

    /// Computes some panels for one phase. The sums of a panel are kept between the blocks of K,
    /// and interleaved after the last one.
    pub(super) fn store_panels(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panels: Range<usize>,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        let mut strip = PhaseStrip::default();
        for p in panels.clone() {
            let panel = self.panel(here, p, panels.end);
            self.multiply(sink.io, here, &panel, 0..here.vectors, sums.sums);
            self.for_each_strip(here, &mut strip, |strip| self.interleave(sink, here, &panel, strip, sums));
        }
    }

    /// Sets `strip` to each strip of the slab in turn, and calls `store` with it.
    #[inline(always)]
    pub(super) fn for_each_strip(
        &self,
        here: &SlabPhase<'_, T::Acc>,
        strip: &mut PhaseStrip,
        mut store: impl FnMut(&mut PhaseStrip),
    ) {
        let mut vector = 0;
        while vector < here.vectors {
            self.set_strip(here, vector, strip);
            store(strip);
            vector = strip.vectors.end;
        }
    }

    /// Sets `strip` to the one that begins with vector `first` of the slab.
    fn set_strip(&self, here: &SlabPhase<'_, T::Acc>, first: usize, strip: &mut PhaseStrip) {
        let lanes = self.tiles.lanes;
        strip.vectors = first..first + self.tiles.width(here.vectors - first).nrv;
        let columns = first * lanes..strip.vectors.end * lanes;
        let begins = &self.planes.row_columns()[..here.places.len()];
        let row = begins.partition_point(|begin| begin + here.slab.width <= columns.start);
        (strip.count, strip.row) = self.runs(here, &columns, row, &mut strip.runs);
    }

    /// Finds the runs of outputs of some columns of a slab, from row `row` of the slab on. Fills
    /// `runs` with them. Returns how many there are, and the row behind them.
    pub(super) fn runs(
        &self,
        here: &SlabPhase<'_, T::Acc>,
        columns: &Range<usize>,
        mut row: usize,
        runs: &mut [Run],
    ) -> (usize, usize) {
        let last = self.phases.len() - 1;
        let along = &self.phases[last];
        let (width, origin) = (here.slab.width, here.slab.origin[last]);
        let mut count = 0;
        while count < runs.len() && row < here.places.len() {
            let (begin, place) = (self.planes.row_columns()[row], here.places[row]);
            if begin >= columns.end {
                break;
            }
            row += 1;
            if place == PhasePlanes::CROPPED {
                continue;
            }
            let (from, to) = (columns.start.max(begin) - begin, columns.end.min(begin + width) - begin);
            let (o, end) = ((origin + from) * along.axis.stride, (origin + to) * along.axis.stride - along.cropped);
            let phase = along.cropped.saturating_sub(o);
            let o = (o + phase) - along.cropped;
            let len = end.min(along.axis.output).saturating_sub(o);
            runs[count] = Run { from: begin + from - columns.start, phase, at: place + o, len };
            count += 1;
        }
        (count, row)
    }

    /// Computes one panel for one strip, and interleaves the sums into Y.
    pub(super) fn store_tile(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panel: &PhasePanel,
        strip: &PhaseStrip,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        // The lines of Y come while the products are computed. Otherwise stores that miss the
        // caches would wait for them, one after the other.
        if let Some(y) = sink.dest(panel.at, []) {
            self.weave.fetch(&strip.runs[..strip.count], panel.height, &y, self.positions);
        }
        self.multiply(sink.io, here, panel, strip.vectors.clone(), sums.sums);
        self.interleave(sink, here, panel, strip, sums);
    }

    /// Elements of the sums of a panel of `height` channels before those of the strip that begins
    /// with vector `first`.
    fn strip_at(&self, height: usize, first: usize) -> usize {
        match self.mode {
            PhaseMode::PanelByPanel => self.slots.count * height * first * self.tiles.lanes,
            _ => 0,
        }
    }

    /// Adds up the sums of one panel for strips, which are the vectors `strips` of a slab.
    fn multiply(
        &self,
        io: &Io<'_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panel: &PhasePanel,
        strips: Range<usize>,
        sums: &mut [T::Acc],
    ) {
        let channels = self.geometry.in_channels_per_group();
        if here.outer.passes.is_empty() || channels == 0 {
            return sums.fill(T::Acc::ZERO);
        }
        let all = &io.weights[panel.channel * self.channel_weights..];
        for pass in &here.outer.passes {
            let k_total = self.steps(pass);
            let a = &all[pass.before * channels * panel.height..];
            let subs = &pass.subpanels[usize::from(panel.height != self.tiles.panels.height(0))];
            let next = if panel.has_next { panel.height * self.channel_weights } else { all.len() };
            let next = all.get(next + pass.before * channels * panel.height..).unwrap_or(&[]);
            for first in (0..channels).step_by(pass.block) {
                let width = pass.block.min(channels - first);
                let koff = pass.koff[usize::from(width != pass.block)].rows(0..width * pass.taps);
                let (from, to) = (first * pass.taps, (first + width) * pass.taps);
                let mut vector = strips.start;
                while vector < strips.end {
                    let kernels = self.tiles.width(strips.end - vector);
                    let nr = kernels.nrv * self.tiles.lanes;
                    let b = &here.planes[first * self.planes.channel_len + vector * self.tiles.lanes..];
                    let at = self.strip_at(panel.height, vector) + pass.slot * panel.height * nr;
                    for sub in 0..subs.count() {
                        let (row, height) = (subs.start(sub), subs.height(sub));
                        // While the first strip is multiplied, the weights that come next are
                        // fetched, a line with each step of K: those of the next block of K, or
                        // of the next panel.
                        let ahead = match vector {
                            0 if to < k_total => a.get(row * k_total + to * height..),
                            0 => next.get(row * k_total..),
                            _ => None,
                        };
                        let ahead = ahead.map_or(Ahead::NONE, Ahead::lines);
                        let a = &a[row * k_total + from * height..row * k_total + to * height];
                        let tile = &mut sums[at + row * nr..at + (row + height) * nr];
                        kernels.of_height(height).partial(a, b, koff, ahead, tile, first > 0);
                    }
                    vector += kernels.nrv;
                }
            }
        }
    }

    /// Interleaves the sums of one panel for one strip.
    fn interleave(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        panel: &PhasePanel,
        strip: &PhaseStrip,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        let columns = strip.vectors.start * self.tiles.lanes..strip.vectors.end * self.tiles.lanes;
        let (nr, slots) = (columns.len(), &self.slots);
        let tile = &mut sums.sums[self.strip_at(panel.height, strip.vectors.start)..];
        if slots.count > slots.with_taps {
            tile[slots.with_taps * panel.height * nr..][..panel.height * nr].fill(T::Acc::ZERO);
        }
        let strands = Strands { sums: tile, slots: &slots.of_phase, step: panel.height * nr, pitch: nr };
        self.interleave_runs(sink, panel, &strip.runs[..strip.count], &strands, sums.outputs);
        // Very short rows have more runs than the list.
        let (mut count, mut row) = (strip.count, strip.row);
        while count == STRIP_RUNS {
            let mut runs = [Run::default(); STRIP_RUNS];
            (count, row) = self.runs(here, &columns, row, &mut runs);
            self.interleave_runs(sink, panel, &runs[..count], &strands, sums.outputs);
        }
    }

    /// Interleaves some runs of outputs of all channels of a panel.
    fn interleave_runs(
        &self,
        sink: &Sink<'_, '_, T>,
        panel: &PhasePanel,
        runs: &[Run],
        strands: &Strands<'_, T::Acc>,
        outputs: &mut [T::Acc],
    ) {
        let bias = &sink.io.bias[panel.channel..panel.channel + panel.height];
        let stored = sink.direct(panel.at, bias, panel.stores(runs, self.positions), |mut y, epilogue| {
            self.weave.run(strands, runs, &epilogue, &mut y, self.positions);
        });
        if stored.is_some() {
            return;
        }
        // The runs of a channel are staged one behind the other.
        let (mut staged, mut len) = ([Run::default(); STRIP_RUNS], 0);
        for (staged, run) in staged.iter_mut().zip(runs) {
            *staged = Run { at: len, ..*run };
            len += run.len;
        }
        if len == 0 {
            return;
        }
        // There is scratch for one channel at least.
        let (staged, most) = (&staged[..runs.len()], (outputs.len() / len).max(1));
        for (i, bias) in bias.chunks(most).enumerate() {
            let (first, rows) = (i * most, &mut outputs[..bias.len() * len]);
            let strands = Strands { sums: &strands.sums[first * strands.pitch..], ..*strands };
            self.weave.run(&strands, staged, &sink.staging(bias), &mut Dest::from_slice(rows), len);
            sink.staged_runs(rows, (len, self.positions), |store| {
                for (staged, run) in staged.iter().zip(runs) {
                    store(staged.at..staged.at + run.len, panel.at + first * self.positions + run.at);
                }
            });
        }
    }
}
