//! Pairs of phases. If both phases of a stride of 2 read the same inputs, the rows of a tile are
//! pairs, and a kernel interleaves them from registers straight into Y.
//!
//! These tiles are short, so that whatever a call does beside its products counts. What the
//! panels share is found once for each strip.

use core::ops::Range;

use convoke_kernels::Ahead;

use super::lowering::Transposed;
use super::plan::PairLoops;
use super::strips::{PairStores, PhaseStrip, PhaseSums, SlabPhase};
use crate::element::Element;
use crate::exec::region::Stores;

impl<T: Element> Transposed<T> {
    /// Computes some panels for one phase, and stores pairs where it can. Other strips are
    /// interleaved from scratch.
    pub(super) fn store_pairs(
        &self,
        here: &SlabPhase<'_, T::Acc>,
        panels: Range<usize>,
        pairs: &PairStores<'_, '_, '_, T>,
        sums: &mut PhaseSums<'_, T::Acc>,
    ) {
        let together = match pairs.mode.loops {
            PairLoops::PanelsOutside => 1,
            PairLoops::StripsOutside => panels.len().max(1),
        };
        let mut strip = PhaseStrip::default();
        for first in panels.clone().step_by(together) {
            let part = first..(first + together).min(panels.end);
            self.for_each_strip(here, &mut strip, |strip| {
                if strip.find_pairs(self.tiles.lanes) {
                    return self.store_strip(here, part.clone(), strip, pairs, sums.sums);
                }
                for p in part.clone() {
                    let panel = self.panel(here, p, pairs.end);
                    self.store_tile(pairs.sink, here, &panel, strip, sums);
                }
            });
        }
    }

    /// Computes some panels for one strip, and stores them as pairs. `tile` is scratch.
    fn store_strip(
        &self,
        here: &SlabPhase<'_, T::Acc>,
        panels: Range<usize>,
        strip: &PhaseStrip,
        pairs: &PairStores<'_, '_, '_, T>,
        tile: &mut [T::Acc],
    ) {
        let (geometry, all) = (&self.geometry, &self.tiles.panels);
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let (io, pass) = (pairs.sink.io, &here.outer.passes[0]);
        let kernels = self.tiles.width(strip.vectors.len());
        let k = channels * pass.taps;
        let koff = pass.koff[0].rows(0..k);
        let b = &here.planes[strip.vectors.start * self.tiles.lanes..];
        let weights_of = |p: usize| {
            let begin =
                (here.group * rows + all.start(p)) * self.channel_weights + pass.before * channels * all.height(p);
            &io.weights[begin..begin + all.height(p) * pass.phases * k]
        };
        // The epilogue is made once, before the panels. A kernel reads several of its values by one
        // load. If they had just been written one by one, that load would wait for all stores
        // before them.
        let mut epilogue = pairs.sink.pairs().expect("checked before: kernels store pairs");
        for p in panels {
            let (first, height) = (here.group * rows + all.start(p), all.height(p));
            // While the first strip is multiplied, the next panel is fetched, a line with each
            // step of K.
            let is_ahead = strip.vectors.start == 0 && p + 1 < pairs.end;
            let ahead = if is_ahead { Ahead::lines(weights_of(p + 1)) } else { Ahead::NONE };
            epilogue.bias = &io.bias[first..first + height];
            let at = (here.image * geometry.out_channels + first) * self.positions;
            let run = 2 * self.tiles.lanes;
            let stores = strip.places.iter().take(strip.vectors.len());
            let stores = stores.map(|place| Stores::row(at + place, run).times(height, self.positions));
            let mut y = pairs.sink.dest(at, stores.clone()).expect("a type that kernels store");
            if pairs.mode.is_fetched {
                self.weave.fetch(&strip.runs[..strip.count], height, &y, self.positions);
            }
            let kernel = kernels.of_height(height * pass.phases);
            let ldy = self.positions;
            kernel.finish_pairs(weights_of(p), b, koff, ahead, tile, false, &mut y, ldy, &strip.places, &epilogue);
            pairs.sink.activate_stored(stores);
        }
    }
}
