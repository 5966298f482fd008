//! Pairs of phases: where both phases of a stride of two read the same inputs, the rows of a tile
//! are pairs, which the kernel interleaves from registers straight into Y.
//!
//! Tiles are short there (128 channels: 1,800 cycles), so that what a call takes beside its
//! products counts: whatever panels share is found before.

use core::ops::Range;

use convoke_kernels::{Ahead, Epilogue};

use super::{Pass, Strip, Transposed};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::contract::Io;

impl<T: Element> Transposed<T> {
    /// Multiplies some panels of a group of an image, of those of a task that `end` there, with a
    /// strip that [is whole](Strip::is_whole), and stores them into Y. `tile` is scratch.
    #[expect(clippy::too_many_arguments, reason = "operands, then the destination")]
    pub(super) fn store_pairs(
        &self,
        io: &Io<'_, T>,
        pass: &Pass,
        (image, group): (usize, usize),
        (panels, end): (Range<usize>, usize),
        strip: &Strip,
        planes: &[T::Acc],
        tile: &mut [T::Acc],
        (lo, hi): (T::Acc, T::Acc),
    ) {
        let (geometry, all) = (&self.geometry, &self.tiles.panels);
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let kernels = self.tiles.width(strip.vectors.len());
        let k = channels * pass.taps;
        let koff = pass.koff[0].rows(0..k);
        let b = &planes[strip.vectors.start * self.tiles.lanes..];
        let weights_of = |p: usize| {
            let begin = (group * rows + all.start(p)) * self.channel_len + pass.before * channels * all.height(p);
            &io.weights[begin..begin + all.height(p) * pass.phases * k]
        };
        // The bounds are written once: read as a whole soon after they are written one by one, they
        // would wait for all stores before (4 % of a short tile).
        let mut epilogue = Epilogue { bias: &[], residual: None, lo, hi };
        for p in panels {
            let (first, height) = (group * rows + all.start(p), all.height(p));
            // While the first strip is multiplied, the next panel is fetched: a line with each step
            // of k.
            let is_fetched = strip.vectors.start == 0 && p + 1 < end;
            let ahead = if is_fetched { Ahead::lines(weights_of(p + 1)) } else { Ahead::NONE };
            epilogue.bias = &io.bias[first..first + height];
            let at = (image * geometry.out_channels + first) * self.spatial;
            let run = 2 * self.tiles.lanes;
            let stores = strip.places.iter().take(strip.vectors.len());
            let stores = stores.map(|place| Stores::row(at + place, run).times(height, self.spatial));
            let y = io.y.dest(at, stores);
            let mut y = T::dest_as_acc(y).expect("a type that kernels store");
            if !self.is_near {
                self.weave.fetch(&strip.runs[..strip.count], height, &y, self.spatial);
            }
            let kernel = kernels.of_height(height * pass.phases);
            let ldy = self.spatial;
            kernel.finish_pairs(weights_of(p), b, koff, ahead, tile, false, &mut y, ldy, &strip.places, &epilogue);
        }
    }
}
