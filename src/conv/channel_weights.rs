//! Weights of GEMM with vectors along output channels.

use alloc::string::String;
use core::ops::Range;

use convoke_kernels::{Isa, Real};

use crate::Op;
use crate::blas::Blocks;
use crate::conv::channel_tiles::ChannelPanels;
use crate::conv::contract::{Request, no_kernel};
use crate::conv::layout::WeightLayout;
use crate::conv::panels::StepOrder;
use crate::conv::planes;
use crate::conv::shares::Part;
use crate::element::Element;
use crate::machine::{Machine, Work};

/// Steps of k in a block, at most: 64 channels of a 3x3 kernel. A panel of 32 `f32` channels then exceeds the
/// L1 cache, but it is read in order and prefetched. Shorter blocks would store and load sums more often,
/// which costs more than it saves.
const MOST_STEPS: usize = 576;
/// Channels of a block, at least, whatever the number of taps: a cache line of `f32`. Fewer would be read a
/// part of a line at a time.
const LEAST_CHANNELS: usize = 16;

/// The blocks of K for `channels` channels and some taps.
pub(crate) fn channel_blocks(op: Op, channels: usize, taps: usize) -> Blocks {
    // ConvTranspose multiplies one tap at a time.
    let taps_of_step = if op == Op::Conv { taps } else { 1 };
    planes::channel_blocks(channels, taps_of_step, MOST_STEPS.max(LEAST_CHANNELS * taps_of_step))
}

/// W is packed in panels of output channels, each `[K][NR]`. K is ordered by blocks of channels, then
/// taps, then channels of the block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ChannelWeights {
    pub(crate) groups: usize,
    /// Output channels of a group.
    pub(crate) rows: usize,
    /// The same, with the padding of the last panel.
    pub(crate) padded: usize,
    /// Input channels of a group, or units of the values that a tap reads, and the same in blocks of K.
    pub(crate) channels: usize,
    pub(crate) k: Blocks,
    pub(crate) taps: usize,
    pub(crate) panels: ChannelPanels,
}

impl ChannelWeights {
    /// The weights of a request's layer.
    ///
    /// # Errors
    /// Weights that are packed already have another layout, the ISA has no kernels, or the packed
    /// weights would be too large.
    pub(crate) fn new<T: Element>(request: &Request<'_, T>) -> Result<Self, String> {
        let geometry = request.geometry;
        let (groups, channels) = (geometry.group, geometry.in_channels_per_group());
        let (rows, taps) = (geometry.out_channels_per_group(), geometry.kernel_volume());
        let k = channel_blocks(geometry.op, channels, taps);
        let panels = ChannelPanels::new::<T::Acc>(request.isa()).ok_or_else(no_kernel)?;
        let padded = panels.padded(rows);
        let weights = Self { groups, rows, padded, channels, k, taps, panels };
        weights.check_len()?;
        match request.layout {
            Some(WeightLayout::ChannelPanels { block: packed, .. }) if *packed != k.size() => {
                Err(alloc::format!("the weights are packed in blocks of {packed} channels, not of {}", k.size()))
            }
            Some(packed) if *packed != weights.layout() => Err(packed.mismatch()),
            _ => Ok(weights),
        }
    }

    /// # Errors
    /// The packed weights would be too large.
    pub(crate) fn check_len(&self) -> Result<(), String> {
        let len = self.padded.checked_mul(self.channels * self.taps).and_then(|len| len.checked_mul(self.groups));
        match len {
            Some(len) if len <= isize::MAX as usize / size_of::<f64>() => Ok(()),
            _ => Err(String::from("the packed weights do not fit the address space")),
        }
    }

    pub(crate) fn layout(&self) -> WeightLayout {
        WeightLayout::ChannelPanels { nr: self.nr(), block: self.k.size() }
    }

    pub(crate) fn nr(&self) -> usize {
        self.panels.wide
    }

    /// Panels of a group.
    pub(crate) fn count(&self) -> usize {
        self.rows.div_ceil(self.nr())
    }

    /// Vectors of a pixel of Y.
    pub(crate) fn vectors(&self) -> usize {
        self.rows.div_ceil(self.panels.lanes)
    }

    pub(crate) fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        (panels.start * self.nr()).min(self.rows)..(panels.end * self.nr()).min(self.rows)
    }

    /// The output channels of some panels. Both are counted over all groups.
    pub(crate) fn outputs_of(&self, panels: &Range<usize>) -> Range<usize> {
        let before = |panel: usize| panel / self.count() * self.rows + self.rows_of(&(0..panel % self.count())).end;
        before(panels.start)..before(panels.end)
    }

    /// The output channels of a task, counted over all groups.
    pub(crate) fn channels_of(&self, part: &Part) -> Range<usize> {
        let (rows, first) = (self.rows_of(&part.panels), part.group * self.rows);
        first + rows.start..first + rows.end
    }

    pub(crate) fn steps(&self) -> usize {
        self.channels * self.taps
    }

    /// Packed values of all groups.
    pub(crate) fn len(&self) -> usize {
        self.groups * self.group_len()
    }

    /// Packed values of a group.
    pub(crate) fn group_len(&self) -> usize {
        self.padded * self.steps()
    }

    /// Parts of the output channels, each of which reads all pixels it computes: groups, or panels, if packed values of
    /// `bytes` bytes leave the L2 cache. They are read again for each chunk of pixels, so tasks share these, and not pixels.
    pub(crate) fn parts(&self, machine: &Machine, bytes: usize) -> usize {
        let bytes = self.len() as f64 * bytes as f64;
        self.groups * if machine.fetch_weights(bytes, bytes) == Work::default() { 1 } else { self.count() }
    }

    pub(crate) fn of_group<'a, A>(&self, packed: &'a [A], group: usize) -> &'a [A] {
        &packed[group * self.group_len()..(group + 1) * self.group_len()]
    }

    pub(crate) fn pack<T: Element>(&self, isa: Isa, op: Op, w: &[T], packed: &mut [T::Acc]) {
        let Self { rows, channels, taps, k: blocks, .. } = *self;
        if self.group_len() == 0 {
            return;
        }
        let order = StepOrder { channels, taps, block: blocks.size() };
        for (group, packed) in packed.chunks_exact_mut(self.group_len()).enumerate() {
            for (p, panel) in packed.chunks_mut(self.nr() * self.steps()).enumerate() {
                let (width, first) = (panel.len() / self.steps(), p * self.nr());
                let count = width.min(rows - first);
                if op == Op::Conv {
                    let w = &w[(group * rows + first) * self.steps()..];
                    order.pack(isa, w, (count, width), panel);
                    continue;
                }
                for (k, step) in panel.chunks_exact_mut(width).enumerate() {
                    let (tap, c) = order.step(k);
                    let w = &w[((group * channels + c) * rows + first) * taps + tap..];
                    for (packed, value) in step.iter_mut().zip(w.iter().step_by(taps).take(count)) {
                        *packed = value.to_acc();
                    }
                    step[count..].fill(T::Acc::ZERO);
                }
            }
        }
    }
}
