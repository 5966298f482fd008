//! How the weights of these lowerings are packed.

use alloc::string::String;
use core::ops::Range;

use convoke_kernels::Real;

use crate::Geometry;
use crate::element::Element;
use crate::lower::channel_tiles::ChannelPanels;
use crate::lower::layout::WeightLayout;
use crate::lower::planes;
use crate::lower::shares::Part;

/// How W is packed: panels of output channels, each `[K][NR]`, with K ordered by blocks of
/// channels, then taps, then channels of the block.
pub(super) struct Weights {
    pub(super) groups: usize,
    /// Output channels of a group, and those with what fills up the last panel.
    pub(super) rows: usize,
    pub(super) padded: usize,
    /// Input channels of a group, and those in a block.
    pub(super) channels: usize,
    pub(super) block: usize,
    pub(super) taps: usize,
    /// Output channels of a panel.
    pub(super) nr: usize,
}

impl Weights {
    /// `rows` and `taps` are those of the product.
    pub(super) fn new(
        geometry: &Geometry,
        (rows, taps): (usize, usize),
        panels: ChannelPanels,
        block: usize,
    ) -> Result<Self, String> {
        let (groups, channels) = (geometry.group, geometry.in_channels_per_group());
        let padded = panels.padded(rows);
        let len = padded.checked_mul(channels * taps).and_then(|len| len.checked_mul(groups));
        if len.is_none_or(|len| len > isize::MAX as usize / 8) {
            return Err(String::from("the packed weights do not fit the address space"));
        }
        Ok(Self { groups, rows, padded, channels, block, taps, nr: panels.wide })
    }

    pub(super) fn layout(&self) -> WeightLayout {
        WeightLayout::ChannelPanels { nr: self.nr, block: self.block }
    }

    /// The output channels of a group that some panels have.
    pub(super) fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        (panels.start * self.nr).min(self.rows)..(panels.end * self.nr).min(self.rows)
    }

    /// The output channels of a task.
    pub(super) fn channels_of(&self, part: &Part) -> Range<usize> {
        let (rows, first) = (self.rows_of(&part.panels), part.group * self.rows);
        first + rows.start..first + rows.end
    }

    /// What a task has where images are shared out in bands: the number of its band, in place of an
    /// image's, and its panels of a group, in `splits` shares.
    pub(super) fn part(&self, task: (usize, usize), splits: usize) -> Part {
        Part::new(task, self.groups, 1, self.rows.div_ceil(self.nr), splits)
    }

    /// Steps of K.
    pub(super) fn steps(&self) -> usize {
        self.channels * self.taps
    }

    /// Values of all groups.
    pub(super) fn len(&self) -> usize {
        self.groups * self.group_len()
    }

    /// Values of a group.
    pub(super) fn group_len(&self) -> usize {
        self.padded * self.steps()
    }

    pub(super) fn of_group<'a, A>(&self, packed: &'a [A], group: usize) -> &'a [A] {
        &packed[group * self.group_len()..(group + 1) * self.group_len()]
    }

    /// Packs Conv's W.
    pub(super) fn pack<T: Element>(&self, w: &[T], packed: &mut [T::Acc]) {
        let Self { rows, channels, taps, .. } = *self;
        self.pack_by(packed, |group, row, c, tap| w[((group * rows + row) * channels + c) * taps + tap].to_acc());
    }

    /// Packs W, given by group, row, input channel of the group, and tap.
    pub(super) fn pack_by<A: Real>(&self, packed: &mut [A], w: impl Fn(usize, usize, usize, usize) -> A) {
        let Self { rows, channels, taps, block, nr, .. } = *self;
        if self.group_len() == 0 {
            return;
        }
        for (group, packed) in packed.chunks_exact_mut(self.group_len()).enumerate() {
            for (p, panel) in packed.chunks_mut(nr * self.steps()).enumerate() {
                let width = panel.len() / self.steps();
                for (k, step) in panel.chunks_exact_mut(width).enumerate() {
                    let (tap, c) = planes::step_of(k, channels, taps, block);
                    for (i, value) in step.iter_mut().enumerate() {
                        let row = p * nr + i;
                        *value = if row < rows { w(group, row, c, tap) } else { A::ZERO };
                    }
                }
            }
        }
    }
}
