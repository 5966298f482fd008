//! Tiles with vectors along output channels: how a row of pixels and the channels are cut.

use core::ops::Range;

use convoke_kernels::{Ahead, ChannelKernel, Isa, Real, channel_kernels};

use super::cost::PerIsa;
use super::engine::tile_cycles;

/// Bytes a cycle that the L3 cache gives: those of the core it was measured on. Of 32 channels, 8 pixels take as many.
const READ_BYTES_PER_CYCLE: usize = 16;

/// What the calls for a panel of weights fetch: the panel behind it, a line with each step of k, or two where there is a single call. Where that call has few pixels,
/// so that it takes less time than its weights from the L3 cache do, they are read as fast as the cache gives them, and what else is asked for gets in
/// the way: nothing, or where panels lie one behind the other [`Ahead::STREAM`].
pub(crate) struct Fetch<'w, T> {
    left: &'w [T],
    mode: Mode,
}

#[derive(Clone, Copy)]
enum Mode {
    Nothing,
    Stream,
    Lines,
    Pairs,
}

impl<'w, T: Real> Fetch<'w, T> {
    /// Fetches `weights` during `calls` calls of kernels, the first of which is `kernel`.
    pub(crate) fn new(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>) -> Self {
        let row = kernel.nr() * size_of::<T>();
        let mode = match calls {
            1 if bytes_in_its_time(kernel) < row => Mode::Nothing,
            1 if row > Ahead::LINE => Mode::Pairs,
            _ => Mode::Lines,
        };
        Self { left: weights, mode }
    }

    /// As [`new`](Self::new), where `weights` lie behind those of the calls.
    pub(crate) fn behind(weights: &'w [T], calls: usize, kernel: &ChannelKernel<T>) -> Self {
        let is_read_bound = bytes_in_its_time(kernel) <= kernel.nr() * size_of::<T>();
        if calls == 1 && is_read_bound && kernel.mr() <= Ahead::STREAM_PIXELS {
            return Self { left: weights, mode: Mode::Stream };
        }
        Self::new(weights, calls, kernel)
    }

    /// What the next call fetches, in `steps` steps of k.
    pub(crate) fn during(&mut self, steps: usize) -> Ahead {
        let (ahead, lines) = match self.mode {
            Mode::Nothing => return Ahead::NONE,
            Mode::Stream => return Ahead::STREAM,
            Mode::Lines => (Ahead::lines(self.left), 1),
            Mode::Pairs => (Ahead::pairs(self.left), 2),
        };
        self.left = self.left.get(steps * lines * Ahead::LINE / size_of::<T>()..).unwrap_or(&[]);
        ahead
    }
}

/// Bytes that the L3 cache gives in the time of one step of k.
fn bytes_in_its_time<T: Real>(kernel: &ChannelKernel<T>) -> usize {
    kernel.fmas() / 2 * READ_BYTES_PER_CYCLE
}

/// Rows of pixels cut into tiles of nearly equal width, and channels cut into panels: the kernels for all of them.
pub(crate) struct Tiles<T: Real> {
    pub(crate) panels: Panels,
    /// Pixels of a row, and tiles that it is cut into.
    pub(crate) width: usize,
    pub(crate) count: usize,
    /// Pixels of the narrower tiles, and how many tiles have one more: no divisions where tiles follow each other fast.
    narrow: usize,
    wider: usize,
    /// For wide panels and for narrow ones: the kernels of the wider tiles and of the others.
    kernels: [[&'static ChannelKernel<T>; 2]; 2],
    isa: Isa,
}

impl<T: Real> Tiles<T> {
    pub(crate) fn new(isa: Isa, width: usize) -> Option<Self> {
        let kernels = channel_kernels::<T>(isa);
        let wide = kernels.iter().map(ChannelKernel::nrv).max()?;
        let most = |nrv: usize| kernels.iter().filter(|k| k.nrv() == nrv).map(ChannelKernel::mr).max();
        let count = width.div_ceil(most(wide)?.min(most(1)?));
        let find = |mr: usize, nrv: usize| kernels.iter().find(|k| k.mr() == mr.max(1) && k.nrv() == nrv);
        let narrow = width / count;
        let pair = |nrv: usize| Some([find(width.div_ceil(count), nrv)?, find(narrow, nrv)?]);
        let kernels = [pair(wide)?, pair(1)?];
        Some(Self { panels: Panels::new::<T>(isa)?, width, count, narrow, wider: width % count, kernels, isa })
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

    /// Channels of a panel, with those that fill it up, where `channels` are left.
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

    /// The kernel for a tile of `pixels`, and a panel of `channels` channels.
    pub(crate) fn kernel(&self, pixels: usize, channels: usize) -> &'static ChannelKernel<T> {
        let pair = self.kernels[usize::from(self.panels.panel(channels).1)];
        if pair[0].mr() == pixels { pair[0] } else { pair[1] }
    }

    /// Estimated cycles of one step of k for a row of pixels and all channels.
    pub(crate) fn cycles(&self, channels: usize) -> f64 {
        let panel = |channels: usize| {
            let tile = |t: usize| {
                let kernel = self.kernel(self.pixels(t).len(), channels);
                tile_cycles(kernel.fmas(), kernel.loads()) * PerIsa::of(self.isa).channel_tiles
            };
            (tile(0) + tile(self.count - 1)) / 2.0 * self.count as f64
        };
        let last = channels % self.nr();
        (channels / self.nr()) as f64 * panel(self.nr()) + if last == 0 { 0.0 } else { panel(last) }
    }
}

/// How output channels are cut into panels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panels {
    pub(crate) lanes: usize,
    /// Channels of a wide panel; a narrow one is a vector.
    pub(crate) wide: usize,
}

impl Panels {
    /// None if there are no kernels.
    pub(crate) fn new<T: Real>(isa: Isa) -> Option<Self> {
        let kernels = channel_kernels::<T>(isa);
        Some(Self { lanes: kernels.first()?.lanes(), wide: kernels.iter().map(ChannelKernel::nr).max()? })
    }

    /// Channels of a panel, with those that fill it up, where `channels` are left; and whether it is narrow.
    pub(crate) fn panel(&self, channels: usize) -> (usize, bool) {
        let narrow = channels <= self.lanes && self.wide > self.lanes;
        (if narrow { self.lanes } else { self.wide }, narrow)
    }

    /// Channels with those that fill up the last panel.
    pub(crate) fn padded(&self, channels: usize) -> usize {
        let rest = channels % self.wide;
        channels - rest + if rest == 0 { 0 } else { self.panel(rest).0 }
    }

    /// The sum over the panels of `channels` channels of what `of` says, given whether a panel is narrow.
    pub(crate) fn sum(&self, channels: usize, of: impl Fn(bool) -> f64) -> f64 {
        let rest = channels % self.wide;
        (channels / self.wide) as f64 * of(false) + if rest == 0 { 0.0 } else { of(self.panel(rest).1) }
    }
}

#[cfg(test)]
mod tests {
    use super::Tiles;
    use convoke_kernels::Isa;

    #[test]
    fn tiles_of_a_row_cover_it_once() {
        for width in 1..200 {
            let tiles = Tiles::<f32>::new(Isa::detect(), width).expect("kernels of every width");
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
