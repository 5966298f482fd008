//! Which taps the pixels of a row multiply.
//!
//! A tap that sees only padding adds nothing, and is left out. On the axes before the last, all pixels
//! of a row have the same taps. On the last axis, a row is cut into pieces with the same taps.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::Real;

use crate::Axis;
use crate::conv::channel_tiles::ChannelTiles;
use crate::machine::Machine;

/// Runs of outer taps, at most. Their list is on the stack.
pub(super) const MOST_RUNS: usize = 64;

/// A part of a row of pixels.
pub(super) struct RowPiece<T: Real> {
    pub(super) start: usize,
    /// The taps of the last axis that its pixels multiply.
    pub(super) taps: Range<usize>,
    pub(super) tiles: ChannelTiles<T>,
}

impl<T: Real> RowPiece<T> {
    /// A whole row of `width` pixels, all of which multiply `taps` taps. None if a kernel is lacking.
    pub(super) fn whole(machine: &Machine, width: usize, taps: usize) -> Option<Vec<Self>> {
        Some(alloc::vec![Self { start: 0, taps: 0..taps, tiles: ChannelTiles::new(machine, width)? }])
    }

    /// A row of outputs along `axis`, cut where a tap begins or ends to see X.
    pub(super) fn where_taps_change(machine: &Machine, axis: &Axis) -> Option<Vec<Self>> {
        let ranges = (0..axis.kernel).map(|tap| axis.outputs_of_tap(tap));
        let mut cuts: Vec<_> = ranges.flat_map(|range| [range.start, range.end]).chain([0, axis.output]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let piece = |cut: &[usize]| {
            let tiles = ChannelTiles::new(machine, cut[1] - cut[0])?;
            Some(Self { start: cut[0], taps: axis.taps_of_output(cut[0]), tiles })
        };
        cuts.windows(2).map(piece).collect()
    }

    /// Estimated cycles of a row for one channel and one tap of the axes before the last.
    pub(super) fn cycles(row: &[Self], machine: &Machine, channels: usize, are_paired: bool) -> f64 {
        let piece = |piece: &Self| piece.taps.len() as f64 * piece.tiles.cycles(machine, channels, are_paired);
        row.iter().map(piece).sum()
    }
}

/// The taps of the axes before the last that a row multiplies, as runs of neighbours.
pub(super) struct OuterTaps {
    runs: [Range<usize>; MOST_RUNS],
    count: usize,
}

impl OuterTaps {
    pub(super) fn none() -> Self {
        Self { runs: [const { 0..0 }; MOST_RUNS], count: 0 }
    }

    /// Finds the taps of row `row` of all outputs of `axes`. `seen(i, o)` are the taps of axis i that
    /// see X at output o.
    pub(super) fn find(&mut self, axes: &[Axis], row: usize, seen: impl Fn(usize, usize) -> Range<usize>) {
        (self.runs[0], self.count) = (0..1, 1);
        let mut inside: usize = axes.iter().map(|axis| axis.output).product();
        for (i, axis) in axes.iter().enumerate() {
            inside /= axis.output;
            let (taps, kernel) = (seen(i, row / inside % axis.output), axis.kernel);
            if taps.is_empty() {
                self.count = 0;
                return;
            }
            if taps.len() == kernel {
                self.runs[..self.count].iter_mut().for_each(|run| *run = run.start * kernel..run.end * kernel);
                continue;
            }
            // Each tap of the axes before gets a run of its own. Writing from the end overwrites nothing
            // that is still to be read.
            let count: usize = self.runs[..self.count].iter().map(ExactSizeIterator::len).sum();
            let mut to = count;
            for from in (0..self.count).rev() {
                for tap in self.runs[from].clone().rev() {
                    to -= 1;
                    self.runs[to] = tap * kernel + taps.start..tap * kernel + taps.end;
                }
            }
            self.count = count;
        }
    }

    /// Adds the taps of another row, and those between. Each row has one run.
    pub(super) fn join(&mut self, other: &Self) {
        let (own, other) = (&self.runs[0], &other.runs[0]);
        self.runs[0] = own.start.min(other.start)..own.end.max(other.end);
    }

    pub(super) fn is_one_run(&self) -> bool {
        self.count == 1
    }

    /// The number of runs that follow one another in the packed weights, for a piece that multiplies
    /// `taps` of `all` taps of the last axis.
    pub(super) fn count(&self, taps: &Range<usize>, all: usize) -> usize {
        match taps.len() {
            0 => 0,
            len if len == all => self.count,
            _ => self.runs[..self.count].iter().map(ExactSizeIterator::len).sum(),
        }
    }

    /// Run number `index` of these.
    pub(super) fn run(&self, mut index: usize, taps: &Range<usize>, all: usize) -> Range<usize> {
        if taps.len() == all {
            let run = &self.runs[index];
            return run.start * all..run.end * all;
        }
        let mut run = 0;
        while index >= self.runs[run].len() {
            index -= self.runs[run].len();
            run += 1;
        }
        let tap = self.runs[run].start + index;
        tap * all + taps.start..tap * all + taps.end
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::OuterTaps;
    use crate::Axis;

    #[test]
    fn runs_have_the_taps_that_see_input_and_no_others() {
        let axis = |input, kernel, dilation, pad_begin| {
            let output = input + 2 * pad_begin - (kernel - 1) * dilation;
            Axis { input, kernel, output, stride: 1, dilation, pad_begin, pad_end: pad_begin }
        };
        let all = [axis(5, 3, 2, 2), axis(1, 1, 1, 0), axis(4, 4, 1, 2), axis(3, 2, 3, 3)];
        let mut taps = OuterTaps::none();
        let mut checked = 0;
        for axes in [&all[..0], &all[..1], &all[..2], &all[1..3], &all[..3], &all[..]] {
            let rows: usize = axes.iter().map(|axis| axis.output).product();
            for row in 0..rows {
                taps.find(axes, row, |i, o| axes[i].taps_of_output(o));
                let sees = |tap: &usize| {
                    let (mut tap, mut row) = (*tap, row);
                    axes.iter().rev().all(|axis| {
                        let at = axis.input_position(row % axis.output, tap % axis.kernel);
                        (tap, row) = (tap / axis.kernel, row / axis.output);
                        at.is_some()
                    })
                };
                let volume: usize = axes.iter().map(|axis| axis.kernel).product();
                let wanted: Vec<_> = (0..volume).filter(sees).collect();
                for along in [0..3, 1..2, 0..0] {
                    let count = taps.count(&along, 3);
                    let found: Vec<_> = (0..count).flat_map(|i| taps.run(i, &along, 3)).collect();
                    let wanted: Vec<_> =
                        wanted.iter().flat_map(|tap| along.clone().map(move |k| 3 * tap + k)).collect();
                    assert_eq!(found, wanted, "row {row} of {axes:?}");
                    checked += found.len();
                }
            }
        }
        assert!(checked > 1000, "{checked}");
    }
}
