//! Tiles with vectors along output channels: how a row of pixels and the channels are cut.

use core::ops::Range;

use convoke_kernels::catalogue::{channel_kernels, channel_widths, two_row_kernels};
use convoke_kernels::{Ahead, ChannelKernel, Isa, Real};

use crate::machine::Machine;

/// What the calls for a panel of weights fetch: the next panel, while this one is multiplied.
///
/// A single call of few pixels may take less time than its own weights take from the L3 cache. It
/// reads them as fast as the cache gives them, and whatever else is asked for gets in the way.
/// Such a call fetches nothing, or its own panel where the next panel follows it in memory.
pub(crate) struct Fetch<'w, T> {
    left: &'w [T],
    mode: FetchMode,
}

#[derive(Clone, Copy)]
enum FetchMode {
    Nothing,
    /// The call's own panel, some way ahead: [`Ahead::STREAM`].
    Stream,
    /// A line of the next panel with each step of k.
    Lines,
    /// Two lines of the next panel with each step of k, where one call has to fetch it all.
    Pairs,
}

impl<'w, T: Real> Fetch<'w, T> {
    /// Fetches `weights` during `calls` calls of kernels, the first of which is `kernel`.
    pub(crate) fn new(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>, rate: Rate) -> Self {
        let row = kernel.nr() * size_of::<T>();
        let mode = match calls {
            1 if rate.bytes_in_step(kernel) < row => FetchMode::Nothing,
            1 if row > Ahead::LINE => FetchMode::Pairs,
            _ => FetchMode::Lines,
        };
        Self { left: weights, mode }
    }

    /// As [`new`](Self::new), where `weights` follow those of the calls in memory.
    pub(crate) fn behind(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>, rate: Rate) -> Self {
        let is_read_bound = rate.bytes_in_step(kernel) <= kernel.nr() * size_of::<T>();
        if calls == 1 && is_read_bound && kernel.mr() <= Ahead::STREAM_PIXELS {
            return Self { left: weights, mode: FetchMode::Stream };
        }
        Self::new(weights, calls, kernel, rate)
    }

    /// What the next call fetches, in `steps` steps of k.
    pub(crate) fn during(&mut self, steps: usize) -> Ahead {
        let (ahead, lines) = match self.mode {
            FetchMode::Nothing => return Ahead::NONE,
            FetchMode::Stream => return Ahead::STREAM,
            FetchMode::Lines => (Ahead::lines(self.left), 1),
            FetchMode::Pairs => (Ahead::pairs(self.left), 2),
        };
        self.left = self.left.get(steps * lines * Ahead::LINE / size_of::<T>()..).unwrap_or(&[]);
        ahead
    }
}

/// How fast weights are fetched beside multiply-adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    fmas_per_cycle: f64,
    bytes_per_cycle: usize,
}

impl Rate {
    pub(crate) fn new(machine: &Machine) -> Self {
        let bytes_per_cycle = machine.prices().panel_bytes_per_cycle;
        Self { fmas_per_cycle: machine.fmas_per_cycle, bytes_per_cycle }
    }

    /// Bytes that are fetched in the time of one step of k.
    fn bytes_in_step<T: Real>(self, kernel: &ChannelKernel<T>) -> usize {
        (kernel.fmas() as f64 / self.fmas_per_cycle) as usize * self.bytes_per_cycle
    }
}

/// The kernels for a row of pixels, which is cut into tiles of nearly equal width, and for
/// channels, which are cut into panels.
pub(crate) struct ChannelTiles<T: Real> {
    pub(crate) panels: ChannelPanels,
    /// Pixels of a row.
    pub(crate) width: usize,
    /// Tiles of a row.
    pub(crate) count: usize,
    /// Pixels of the narrower tiles. It is kept because tiles follow one another too fast for a
    /// division.
    narrow: usize,
    /// Tiles that have one pixel more.
    wider: usize,
    /// For wide panels and for narrow ones: the kernels of the wider tiles and of the others.
    kernels: [[&'static ChannelKernel<T>; 2]; 2],
    /// For wide panels and for narrow ones: the kernels of two rows at once, where rows have so
    /// few pixels.
    two_rows: Option<[&'static ChannelKernel<T>; 2]>,
    /// For wide panels and for narrow ones: what a step of two rows takes.
    joining: [JoiningCycles; 2],
    rate: Rate,
}

/// Cycles of one step of k for two rows of pixels, with the reading of the panel.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct JoiningCycles {
    /// For both rows in one call.
    at_once: f64,
    /// For each of the rows in a call of its own.
    one_row: f64,
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
        let two_rows = two_rows(isa, width, panels);
        let rate = Rate::new(machine);
        let joining = [JoiningCycles::default(); 2];
        let mut tiles = Self { panels, width, count, narrow, wider: width % count, kernels, two_rows, joining, rate };
        tiles.joining = [tiles.nr(), 1].map(|channels| {
            let Some(kernel) = tiles.two_rows(channels) else { return JoiningCycles::default() };
            // Each call reads the panel.
            let row_bytes = (kernel.nr() * size_of::<T>()) as f64;
            let read = machine.prices().read_share * row_bytes / machine.l2_bytes_per_cycle;
            JoiningCycles {
                at_once: kernel_cycles(machine, kernel) + read,
                one_row: tiles.row_cycles(machine, channels) + read,
            }
        });
        Some(tiles)
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn name(&self) -> &'static str {
        self.kernels[0][0].name()
    }

    /// Elements of a vector.
    pub(crate) fn lanes(&self) -> usize {
        self.panels.lanes
    }

    /// Channels of a wide panel.
    pub(crate) fn nr(&self) -> usize {
        self.panels.wide
    }

    /// Channels of the panel that begins where `channels` are left, with those that fill it up.
    pub(crate) fn panel(&self, channels: usize) -> usize {
        self.panels.panel(channels).0
    }

    /// Channels with those that fill up the last panel.
    pub(crate) fn padded(&self, channels: usize) -> usize {
        self.panels.padded(channels)
    }

    /// Pixels `start..end` of tile `t` of a row.
    pub(crate) fn pixels(&self, t: usize) -> Range<usize> {
        let start = |t: usize| t * self.narrow + t.min(self.wider);
        start(t)..start(t + 1)
    }

    /// Pixels of a tile, at most.
    pub(crate) fn most_pixels(&self) -> usize {
        self.two_rows(self.nr()).map_or(self.pixels(0).len(), ChannelKernel::mr)
    }

    /// The kernel for a tile of `pixels`, and a panel of `channels` channels.
    pub(crate) fn kernel(&self, pixels: usize, channels: usize) -> &'static ChannelKernel<T> {
        let pair = self.kernels[usize::from(self.panels.panel(channels).1)];
        if pair[0].mr() == pixels { pair[0] } else { pair[1] }
    }

    /// The kernel for two rows of pixels and a panel of `channels` channels. None where rows are
    /// too long.
    pub(crate) fn two_rows(&self, channels: usize) -> Option<&'static ChannelKernel<T>> {
        self.two_rows.map(|kernels| kernels[usize::from(self.panels.panel(channels).1)])
    }

    /// The kernel for two rows of pixels and a panel of `channels` channels, and the taps that it
    /// computes. The rows need `taps` each. The kernel multiplies all taps of either for both:
    /// None where that costs more than it saves.
    pub(crate) fn joined(
        &self,
        channels: usize,
        taps: [&Range<usize>; 2],
    ) -> Option<(&'static ChannelKernel<T>, Range<usize>)> {
        let kernel = self.two_rows(channels)?;
        let joined = taps[0].start.min(taps[1].start)..taps[0].end.max(taps[1].end);
        let JoiningCycles { at_once, one_row } = self.joining[usize::from(self.panels.panel(channels).1)];
        let apart = (taps[0].len() + taps[1].len()) as f64 * one_row;
        (joined.len() as f64 * at_once <= apart).then_some((kernel, joined))
    }

    /// Estimated cycles of one step of k for a row of pixels and all channels.
    pub(crate) fn cycles(&self, machine: &Machine, channels: usize) -> f64 {
        self.of_panels(channels, |channels| self.row_cycles(machine, channels))
    }

    /// The same for `rows` rows, two at a time where there are kernels for that.
    pub(crate) fn cycles_of_rows(&self, machine: &Machine, rows: usize, channels: usize) -> f64 {
        self.of_panels(channels, |channels| match self.two_rows(channels) {
            Some(kernel) => {
                let one = self.row_cycles(machine, channels);
                (rows / 2) as f64 * kernel_cycles(machine, kernel) + (rows % 2) as f64 * one
            }
            None => rows as f64 * self.row_cycles(machine, channels),
        })
    }

    /// The sum over all panels of what `of` says for a panel of so many channels.
    fn of_panels(&self, channels: usize, of: impl Fn(usize) -> f64) -> f64 {
        let last = channels % self.nr();
        (channels / self.nr()) as f64 * of(self.nr()) + if last == 0 { 0.0 } else { of(last) }
    }

    /// Estimated cycles of one step of k for a row of pixels and a panel of `channels` channels.
    fn row_cycles(&self, machine: &Machine, channels: usize) -> f64 {
        let tile = |t: usize| kernel_cycles(machine, self.kernel(self.pixels(t).len(), channels));
        (tile(0) + tile(self.count - 1)) / 2.0 * self.count as f64
    }

    /// How fast the calls fetch weights.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }
}

/// Estimated cycles of one step of k of a tile.
pub(crate) fn kernel_cycles<T: Real>(machine: &Machine, kernel: &ChannelKernel<T>) -> f64 {
    machine.tile_cycles(kernel.fmas(), kernel.loads()) * machine.prices().channel_tiles
}

/// The kernels for two rows of `width` pixels, for wide panels and for narrow ones.
pub(crate) fn two_rows<T: Real>(
    isa: Isa,
    width: usize,
    panels: ChannelPanels,
) -> Option<[&'static ChannelKernel<T>; 2]> {
    let kernels = two_row_kernels::<T>(isa);
    let find = |nr: usize| kernels.iter().find(|k| k.mr() == 2 * width && k.nr() == nr);
    Some([find(panels.wide)?, find(panels.lanes)?])
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

    /// Channels of the panel that begins where `channels` are left, with those that fill it up;
    /// and whether it is narrow.
    pub(crate) fn panel(&self, channels: usize) -> (usize, bool) {
        let narrow = channels <= self.lanes && self.wide > self.lanes;
        (if narrow { self.lanes } else { self.wide }, narrow)
    }

    /// Channels with those that fill up the last panel.
    pub(crate) fn padded(&self, channels: usize) -> usize {
        let rest = channels % self.wide;
        channels - rest + if rest == 0 { 0 } else { self.panel(rest).0 }
    }

    /// The sum over the panels of `channels` channels. `of` is asked for a panel, and told
    /// whether it is narrow.
    pub(crate) fn sum(&self, channels: usize, of: impl Fn(bool) -> f64) -> f64 {
        let rest = channels % self.wide;
        (channels / self.wide) as f64 * of(false) + if rest == 0 { 0.0 } else { of(self.panel(rest).1) }
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
