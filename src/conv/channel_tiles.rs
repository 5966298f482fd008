//! Tiles with vectors along output channels: how rows of pixels and the channels are cut.

use core::ops::Range;

use convoke_kernels::catalogue::{channel_kernels, channel_widths};
use convoke_kernels::{ChannelKernel, Isa, Prefetch, Real};

use crate::machine::Machine;

/// Prefetches the next panel of weights while one is multiplied.
///
/// A single call of few pixels may take less time than the L3 cache needs to deliver its weights.
/// Prefetching then competes with these loads. Such a call prefetches nothing, or its own panel where
/// the next one follows it in memory.
pub(crate) struct PanelPrefetch<'w, T> {
    left: &'w [T],
    mode: PrefetchMode,
}

#[derive(Clone, Copy)]
enum PrefetchMode {
    Nothing,
    /// The call's own panel, a fixed distance ahead: [`Prefetch::STREAM`].
    Stream,
    /// A line of the next panel with each step of k.
    Lines,
    /// Two lines of the next panel with each step of k: a single call has to prefetch all of it.
    Pairs,
}

impl<'w, T: Real> PanelPrefetch<'w, T> {
    /// Prefetches `weights` during `calls` calls, the first of which is of `kernel`.
    pub(crate) fn new(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>, rate: Rate) -> Self {
        let row = kernel.nr() * size_of::<T>();
        let mode = match calls {
            1 if rate.bytes_in_step(kernel) < row => PrefetchMode::Nothing,
            1 if row > Prefetch::LINE => PrefetchMode::Pairs,
            _ => PrefetchMode::Lines,
        };
        Self { left: weights, mode }
    }

    /// As [`new`](Self::new), where `weights` follow the current panel in memory.
    pub(crate) fn behind(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>, rate: Rate) -> Self {
        let is_read_bound = rate.bytes_in_step(kernel) <= kernel.nr() * size_of::<T>();
        if calls == 1 && is_read_bound && kernel.mr() <= Prefetch::STREAM_PIXELS {
            return Self { left: weights, mode: PrefetchMode::Stream };
        }
        Self::new(weights, calls, kernel, rate)
    }

    /// What the next call prefetches, in `steps` steps of k.
    pub(crate) fn during(&mut self, steps: usize) -> Prefetch {
        let (prefetch, lines) = match self.mode {
            PrefetchMode::Nothing => return Prefetch::NONE,
            PrefetchMode::Stream => return Prefetch::STREAM,
            PrefetchMode::Lines => (Prefetch::lines(self.left), 1),
            PrefetchMode::Pairs => (Prefetch::pairs(self.left), 2),
        };
        self.left = self.left.get(steps * lines * Prefetch::LINE / size_of::<T>()..).unwrap_or(&[]);
        prefetch
    }
}

/// How many bytes of weights arrive beside multiply-adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    bytes_per_fma: f64,
}

impl Rate {
    pub(crate) fn new(machine: &Machine) -> Self {
        Self { bytes_per_fma: machine.l3_bytes_per_cycle / machine.fmas_per_cycle }
    }

    /// Bytes that arrive during one step of k.
    fn bytes_in_step<T: Real>(self, kernel: &ChannelKernel<T>) -> usize {
        (kernel.fmas() as f64 * self.bytes_per_fma) as usize
    }
}

/// The kernels for a row of pixels, in tiles of nearly equal width, and for panels of channels.
pub(crate) struct ChannelTiles<T: Real> {
    pub(crate) panels: ChannelPanels,
    pub(crate) width: usize,
    pub(crate) count: usize,
    /// Pixels of the narrower tiles, kept because a division for each tile would be slow.
    narrow: usize,
    wider: usize,
    /// By panel (wide, narrow), then by tile (wider, narrower).
    kernels: [[&'static ChannelKernel<T>; 2]; 2],
    rate: Rate,
}

impl<T: Real> ChannelTiles<T> {
    pub(crate) fn new(machine: &Machine, width: usize) -> Option<Self> {
        let isa = machine.isa();
        let mut widths = channel_widths::<T>(isa);
        let least = widths.next()?;
        let wide = widths.last().unwrap_or(least);
        let count = width.div_ceil(wide.len().min(least.len()));
        let narrow = width / count;
        let pair = |kernels: &'static [ChannelKernel<T>]| {
            let of_height = |mr: usize| kernels.get(mr.max(1) - 1);
            Some([of_height(width.div_ceil(count))?, of_height(narrow)?])
        };
        let kernels = [pair(wide)?, pair(least)?];
        let panels = ChannelPanels { lanes: least[0].lanes(), wide: wide[0].nr() };
        let rate = Rate::new(machine);
        Some(Self { panels, width, count, narrow, wider: width % count, kernels, rate })
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn name(&self) -> &'static str {
        self.kernels[0][0].name()
    }

    pub(crate) fn lanes(&self) -> usize {
        self.panels.lanes
    }

    pub(crate) fn nr(&self) -> usize {
        self.panels.wide
    }

    /// Channels of the panel that begins where `channels` are left, padding included.
    pub(crate) fn panel(&self, channels: usize) -> usize {
        self.panels.panel(channels).0
    }

    /// Channels, the padding of the last panel included.
    pub(crate) fn padded(&self, channels: usize) -> usize {
        self.panels.padded(channels)
    }

    /// Pixels `start..end` of tile `t` of a row.
    pub(crate) fn pixels(&self, t: usize) -> Range<usize> {
        let start = |t: usize| t * self.narrow + t.min(self.wider);
        start(t)..start(t + 1)
    }

    /// The kernel for a tile of `pixels`, and a panel of `channels` channels.
    pub(crate) fn kernel(&self, pixels: usize, channels: usize) -> &'static ChannelKernel<T> {
        let pair = self.kernels[usize::from(self.panels.panel(channels).1)];
        if pair[0].mr() == pixels { pair[0] } else { pair[1] }
    }

    /// Estimated cycles of one step of k for a row of pixels and all channels.
    pub(crate) fn cycles(&self, machine: &Machine, channels: usize) -> f64 {
        let last = channels % self.nr();
        let of_panel = |channels: usize| {
            let tile = |t: usize| kernel_cycles(machine, self.kernel(self.pixels(t).len(), channels));
            (tile(0) + tile(self.count - 1)) / 2.0 * self.count as f64
        };
        (channels / self.nr()) as f64 * of_panel(self.nr()) + if last == 0 { 0.0 } else { of_panel(last) }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }
}

/// Estimated cycles of one step of k of a tile.
fn kernel_cycles<T: Real>(machine: &Machine, kernel: &ChannelKernel<T>) -> f64 {
    machine.tile_cycles(kernel.fmas(), kernel.loads() as f64)
}

/// How output channels are cut into panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelPanels {
    pub(crate) lanes: usize,
    /// Channels of a wide panel; a narrow one is a vector.
    pub(crate) wide: usize,
}

impl ChannelPanels {
    /// None if there are no kernels.
    pub(crate) fn new<T: Real>(isa: Isa) -> Option<Self> {
        let kernels = channel_kernels::<T>(isa);
        Some(Self { lanes: kernels.first()?.lanes(), wide: kernels.last()?.nr() })
    }

    /// Channels of the panel that begins where `channels` are left, padding included, and whether it is
    /// narrow.
    pub(crate) fn panel(&self, channels: usize) -> (usize, bool) {
        let narrow = channels <= self.lanes && self.wide > self.lanes;
        (if narrow { self.lanes } else { self.wide }, narrow)
    }

    pub(crate) fn padded(&self, channels: usize) -> usize {
        let rest = channels % self.wide;
        channels - rest + if rest == 0 { 0 } else { self.panel(rest).0 }
    }
}

#[cfg(test)]
mod tests {
    use super::ChannelTiles;
    use crate::machine::Machine;

    #[test]
    fn tiles_of_a_row_cover_it_once() {
        for width in 1..200 {
            let tiles = ChannelTiles::<f32>::new(&Machine::host(), width).expect("kernels of every width");
            let mut next = 0;
            for t in 0..tiles.count {
                let pixels = tiles.pixels(t);
                assert_eq!(pixels.start, next);
                assert_eq!(tiles.kernel(pixels.len(), 1).mr(), pixels.len());
                next = pixels.end;
            }
            assert_eq!(next, width);
        }
    }
}
