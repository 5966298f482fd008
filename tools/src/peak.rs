//! Measures how fast the micro-kernels are when every operand is in the L1 cache. Whole layers
//! are compared with that.
//!
//! The rate of the fastest micro-kernel is the *FMA peak* of the reports. It is measured rather
//! than computed from the clock, because the clock depends on the load, on other programs and on
//! the instruction set.

use std::time::{Duration, Instant};

use convoke::{DType, Isa};
use convoke_kernels::activation::Activation;
use convoke_kernels::dot::Unit;
use convoke_kernels::{
    ChannelKernel, DepthwiseInput, DepthwiseKernel, DepthwiseOutput, DepthwisePixelKernel, Dest, DirectInput,
    DirectTable, Epilogue, FlatInput, FlatTaps, GroupedKernel, PixelColumns, PixelEpilogue, PixelInput, PixelKernel,
    PixelRows, PixelTaps, Prefetch, Real, Residual, RowOffsets, SpatialKernel, TapTable, activation_kernel,
    dot_kernels, spatial_kernels,
};

use crate::data::{Numbers, Random};

/// Bytes of the operand that is streamed. Together with the other operand and the tile, it fits
/// any current L1 data cache (32 KiB).
const STREAMED_BYTES: usize = 16 << 10;
/// Steps of one call, at most.
const MAX_DEPTH: usize = 1024;
/// Rows of the other operand, which is read again and again.
const ROWS: usize = 16;

/// GFLOP/s of one core with the fastest kernel of an ISA, in the type in which these numbers are
/// computed; `None` if the CPU or the build lacks the ISA. Of bytes, the operations are those of
/// integers.
#[must_use]
pub fn peak(numbers: impl Into<Numbers>, isa: Isa) -> Option<f64> {
    if !isa.is_available() {
        return None;
    }
    match numbers.into() {
        Numbers::Floats(DType::F64) => fastest(spatial_kernels::<f64>(isa), spatial),
        Numbers::Floats(DType::F16 | DType::BF16 | DType::F32) => fastest(spatial_kernels::<f32>(isa), spatial),
        Numbers::Bytes => {
            let kernels = [Unit::Bytes, Unit::Pairs].into_iter().find_map(|unit| dot_kernels(isa, unit))?;
            let widest = kernels.widths().last()?;
            let values = kernels.unit().values() as f64;
            fastest(widest, units).map(|rate| rate * values)
        }
    }
}

fn fastest<K>(kernels: &[K], rate: impl Fn(&K, Duration) -> f64) -> Option<f64> {
    /// Kernels that are measured for longer: the fastest of a short measurement of all.
    const FINALISTS: usize = 3;
    let mut rates: Vec<_> = kernels.iter().map(|kernel| (rate(kernel, Duration::from_millis(1)), kernel)).collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    rates.iter().take(FINALISTS).map(|(_, kernel)| rate(kernel, Duration::from_millis(60))).reduce(f64::max)
}

/// GFLOP/s of one kernel with vectors along positions, from the L1 cache.
#[must_use]
pub fn spatial<T: Real>(kernel: &SpatialKernel<T>, duration: Duration) -> f64 {
    let mut operands = GemmOperands::spatial(kernel);
    rate(operands.flops(), duration, || operands.call_spatial(kernel))
}

/// GFLOP/s of one direct kernel from the L1 cache: a 5x5 kernel over rows of four vectors.
#[must_use]
pub fn direct<T: Real>(kernel: &DepthwiseKernel<T>, duration: Duration) -> f64 {
    let mut operands = Direct::new(kernel);
    rate(operands.flops(), duration, || operands.call(kernel))
}

/// GFLOP/s of one kernel of several output channels from the L1 cache: 3x3 taps of four channels.
#[must_use]
pub fn grouped<T: Real>(kernel: &GroupedKernel<T>, duration: Duration) -> f64 {
    let mut operands = Grouped::new(kernel);
    rate(operands.flops(), duration, || operands.call(kernel))
}

/// GFLOP/s of one kernel with vectors along channels, from the L1 cache.
#[must_use]
pub fn channel<T: Real>(kernel: &ChannelKernel<T>, duration: Duration) -> f64 {
    let mut operands = GemmOperands::channel(kernel);
    rate(operands.flops(), duration, || operands.call_channel(kernel))
}

/// GFLOP/s of one kernel for pixels anywhere in X, from the L1 cache: one tap of many channels.
#[must_use]
pub fn pixel<T: Real>(kernel: &PixelKernel<T>, duration: Duration) -> f64 {
    let mut operands = OnePixelTap::new(kernel);
    rate(operands.flops(), duration, || operands.call(kernel))
}

/// Billions of operations of one kernel for units a second, likewise, as if each unit were one value.
fn units(kernel: &PixelKernel<i32>, duration: Duration) -> f64 {
    let numbers = |len: usize| {
        let mut random = Random::new(0);
        (0..len).map(move |_| random.bits())
    };
    let bytes = |len| numbers(len).map(|bits| bits as u8).collect();
    let mut operands = OnePixelTap::of(kernel, bytes, |len| numbers(len).map(|bits| bits as i32).collect());
    rate(operands.flops(), duration, || operands.call_units(kernel))
}

/// GFLOP/s of one depthwise kernel for channels that are neighbours, from the L1 cache: a 5x5 kernel.
#[must_use]
pub fn pixel_depthwise<T: Real>(kernel: &DepthwisePixelKernel<T>, duration: Duration) -> f64 {
    let mut operands = DepthwisePixels::new(kernel);
    rate(operands.flops(), duration, || operands.call(kernel))
}

/// Operands of a GEMM kernel that fit the L1 cache together.
#[derive(Debug)]
pub struct GemmOperands<T> {
    /// The packed panel, one step of K after the other.
    panel: Vec<T>,
    /// The other operand. `offsets` goes through its rows again and again, so that a long sum
    /// needs only few rows.
    rows: Vec<T>,
    offsets: RowOffsets,
    tile: Vec<T>,
}

impl<T: Real> GemmOperands<T> {
    /// Operands for a kernel with vectors along positions.
    #[must_use]
    pub fn spatial(kernel: &SpatialKernel<T>) -> Self {
        Self::new(kernel.mr(), kernel.nr())
    }

    /// Operands for a kernel with vectors along channels.
    #[must_use]
    pub fn channel(kernel: &ChannelKernel<T>) -> Self {
        Self::new(kernel.nr(), kernel.mr())
    }

    fn new(panel_width: usize, row_len: usize) -> Self {
        let depth = (STREAMED_BYTES / (panel_width * size_of::<T>())).min(MAX_DEPTH);
        Self {
            panel: values(depth * panel_width),
            rows: values(ROWS * row_len),
            offsets: RowOffsets::new((0..depth).map(|k| (k % ROWS * row_len) as u32).collect()),
            tile: vec![T::ZERO; panel_width * row_len],
        }
    }

    /// Operations of a call.
    #[must_use]
    pub fn flops(&self) -> usize {
        2 * self.offsets.len() * self.tile.len()
    }

    /// Calls the kernel that the operands are for.
    pub fn call_spatial(&mut self, kernel: &SpatialKernel<T>) {
        let offsets = self.offsets.rows(0..self.offsets.len());
        kernel.partial(&self.panel, &self.rows, offsets, Prefetch::NONE, &mut self.tile, false);
    }

    /// Calls the kernel that the operands are for.
    pub fn call_channel(&mut self, kernel: &ChannelKernel<T>) {
        let offsets = self.offsets.rows(0..self.offsets.len());
        kernel.partial(&self.rows, offsets, &self.panel, Prefetch::NONE, &mut self.tile, false);
    }
}

/// Operands of a kernel for pixels anywhere in X that fit the L1 cache together: one tap of many channels.
#[derive(Debug)]
pub struct OnePixelTap<T, X = T> {
    x: Vec<X>,
    w: Vec<T>,
    /// The number of the tap, and the pixels' places.
    table: Vec<u32>,
    tile: Vec<T>,
    channels: usize,
}

impl<T: Real> OnePixelTap<T> {
    /// Operands for a kernel.
    #[must_use]
    pub fn new(kernel: &PixelKernel<T>) -> Self {
        Self::of(kernel, values, values)
    }
}

impl<T: Copy, X> OnePixelTap<T, X> {
    /// Operands of such values. Pixels of a tile follow one another.
    fn of(kernel: &PixelKernel<T>, x: impl FnOnce(usize) -> Vec<X>, mut values: impl FnMut(usize) -> Vec<T>) -> Self {
        let (mr, nr) = (kernel.mr(), kernel.nr());
        let channels = STREAMED_BYTES / ((mr + nr) * size_of::<T>());
        let pixel = channels * size_of::<T>() / size_of::<X>();
        Self {
            x: x(mr * pixel),
            w: values(channels * nr),
            table: [0].into_iter().chain((0..mr).map(|i| (i * pixel) as u32)).collect(),
            tile: values(mr * nr),
            channels,
        }
    }

    /// Operations of a call.
    #[must_use]
    pub fn flops(&self) -> usize {
        2 * self.channels * self.tile.len()
    }

    /// X, the weights and the tile of a call.
    fn call_of(&mut self, kernel: &PixelKernel<T>) -> (PixelInput<'_, X>, &[T], &mut [T]) {
        let taps = PixelTaps::new(&self.table, 1, kernel.mr());
        (PixelInput { x: &self.x, zeros: &[], channels: self.channels, taps }, &self.w, &mut self.tile)
    }
}

impl<T: Real> OnePixelTap<T> {
    /// Calls the kernel that the operands are for.
    pub fn call(&mut self, kernel: &PixelKernel<T>) {
        let (x, w, tile) = self.call_of(kernel);
        kernel.partial(&x, w, tile, false);
    }
}

impl OnePixelTap<i32, u8> {
    fn call_units(&mut self, kernel: &PixelKernel<i32>) {
        let (x, w, tile) = self.call_of(kernel);
        kernel.sums(&x, w, tile, false);
    }
}

/// Operands of a depthwise kernel for channels that are neighbours, which fit the L1 cache together: a 5x5 kernel. A
/// call computes the same tile for several rows of Y, because it begins with checks.
#[derive(Debug)]
pub struct DepthwisePixels<T> {
    x: Vec<T>,
    zeros: Vec<T>,
    w: Vec<T>,
    /// The number of the first tap of each row of the kernel.
    numbers: Vec<u32>,
    /// For each row of Y and each row of the kernel: where the row of X begins.
    places: Vec<u32>,
    y: Vec<T>,
    bias: Vec<T>,
}

impl<T: Real> DepthwisePixels<T> {
    /// Taps of the kernel along each axis.
    const TAPS: usize = 5;
    /// Rows of Y.
    const ROWS: usize = 8;

    /// Operands for a kernel. X has the pixels that the tile reads, and the channels that are in registers at
    /// the same time.
    #[must_use]
    pub fn new(kernel: &DepthwisePixelKernel<T>) -> Self {
        let (mr, channels) = (kernel.mr(), kernel.nr());
        let row = Self::columns(mr) * channels;
        let rows_of = |row: usize| (0..Self::TAPS).map(|tap| (tap * row) as u32).collect::<Vec<_>>();
        Self {
            x: values(Self::TAPS * row),
            zeros: vec![T::ZERO; channels],
            w: values(Self::TAPS * Self::TAPS * channels),
            numbers: rows_of(Self::TAPS),
            places: rows_of(row).repeat(Self::ROWS),
            y: vec![T::ZERO; Self::ROWS * mr * channels],
            bias: values(channels),
        }
    }

    /// Columns that a tile reads.
    fn columns(mr: usize) -> usize {
        mr + Self::TAPS - 1
    }

    /// Operations of a call.
    #[must_use]
    pub fn flops(&self) -> usize {
        2 * Self::TAPS * Self::TAPS * self.y.len()
    }

    /// Calls the kernel that the operands are for.
    pub fn call(&mut self, kernel: &DepthwisePixelKernel<T>) {
        let Self { x, zeros, w, numbers, places, y, bias } = self;
        let (mr, channels) = (kernel.mr(), bias.len());
        let (count, pixel) = (Self::columns(mr), channels);
        let columns = PixelColumns { first: 0, advance: 1, taps: Self::TAPS, spacing: 1, step: 1, count, pixel };
        let (rows, width, tiles, from) = (Self::ROWS, mr, 1, 0);
        let x = PixelRows {
            x,
            zeros,
            channels,
            rows,
            width,
            tiles,
            from,
            numbers,
            places,
            columns,
            prefetches_next: false,
        };
        let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
        let epilogue = PixelEpilogue { bias, residual: Residual::NONE, residual_ld: 0, activation };
        kernel.run(&x, (w, 1), &mut Dest::from_slice(y), channels, &epilogue);
    }
}

/// Operands of a direct kernel that fit the L1 cache together: a 5x5 kernel over rows of four
/// vectors.
#[derive(Debug)]
pub struct Direct<T> {
    taps: TapTable,
    /// The table for kernels that read X itself.
    table: Option<DirectTable>,
    w: Vec<T>,
    x: Vec<T>,
    y: Vec<T>,
    width: usize,
    rows: usize,
    x_vector: usize,
}

impl<T: Real> Direct<T> {
    /// Taps of the kernel along each axis.
    const TAPS: usize = 5;

    /// Operands for a direct kernel of either orientation.
    #[must_use]
    pub fn new(kernel: &DepthwiseKernel<T>) -> Self {
        let (width, rows) = (4 * kernel.lanes(), kernel.mr());
        let step = width + Self::TAPS - 1;
        let positions: Vec<_> = (0..Self::TAPS as isize).collect();
        let table = DirectTable::new(Self::TAPS, 1, &positions, (1, 0), step);
        Self {
            table: table.filter(|table| table.serves(width, kernel)),
            taps: TapTable::new(&[(Self::TAPS, (0..Self::TAPS as u32).collect())], step),
            // The weights are also enough for kernels whose weights are vectors.
            w: values(Self::TAPS * Self::TAPS * kernel.lanes()),
            x: values((rows + Self::TAPS) * step),
            y: vec![T::ZERO; rows * width],
            width,
            rows,
            x_vector: kernel.lanes(),
        }
    }

    /// Operations of a call.
    #[must_use]
    pub fn flops(&self) -> usize {
        2 * Self::TAPS * Self::TAPS * self.rows * self.width
    }

    /// Calls the kernel that the operands are for.
    pub fn call(&mut self, kernel: &DepthwiseKernel<T>) {
        let Self { taps, w, x, y, width, x_vector, .. } = self;
        let (planes, tiles) = (1, 1);
        let input =
            DepthwiseInput { taps, groups: 0..1, w, w_plane: 0, x, x_plane: 0, x_vector: *x_vector, planes, tiles };
        let output = DepthwiseOutput { width: *width, row: *width, plane: 0 };
        let epilogue = Epilogue { bias: &[T::ZERO], residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
        kernel.run(&input, &mut Dest::from_slice(y), &output, &epilogue);
    }

    /// Whether the kernel also reads X itself.
    #[must_use]
    pub fn reads_x(&self) -> bool {
        self.table.is_some()
    }

    /// Computes the same sums by the kernel's loops that read X itself, without padding. It does
    /// nothing if the kernel has no such loops.
    pub fn call_on_x(&mut self, kernel: &DepthwiseKernel<T>) {
        let Self { table: Some(table), w, x, y, width, rows, .. } = self else { return };
        let (height, planes, tiles) = (*rows + Self::TAPS, 1, 1);
        let input = DirectInput { table, row: 0, height, w, w_plane: 0, x, x_plane: 0, planes, tiles };
        let output = DepthwiseOutput { width: *width, row: *width, plane: 0 };
        let epilogue = Epilogue { bias: &[T::ZERO], residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
        kernel.run_direct(&input, &mut Dest::from_slice(y), &output, &epilogue);
    }
}

/// Operands of a kernel of several output channels that fit the L1 cache together: 3x3 taps of four
/// channels.
#[derive(Debug)]
pub struct Grouped<T> {
    taps: FlatTaps,
    w: Vec<T>,
    x: Vec<T>,
    y: Vec<T>,
    bias: Vec<T>,
    nr: usize,
}

impl<T: Real> Grouped<T> {
    /// Tiles of the planes, at least.
    const TILES: usize = 12;

    /// Operands for a kernel: planes of at least twelve tiles, in rows that begin within vectors.
    ///
    /// # Panics
    /// Never, because the table of such planes is small.
    #[must_use]
    pub fn new(kernel: &GroupedKernel<T>) -> Self {
        /// Input channels of a group.
        const CHANNELS: usize = 4;
        let width = kernel.lanes() * 7 / 2;
        let height = (Self::TILES * kernel.nr()).div_ceil(width);
        let shifts = [(0, -1), (0, 0), (0, 1)];
        let channels = (CHANNELS, height * width);
        let taps = FlatTaps::new(kernel.lanes(), channels, (height, width), height, &shifts, &shifts);
        let taps = taps.expect("a small table");
        Self {
            w: values(taps.steps() * kernel.mr()),
            x: values(CHANNELS * height * width),
            y: vec![T::ZERO; kernel.mr() * taps.outputs()],
            bias: values(kernel.mr()),
            nr: kernel.nr(),
            taps,
        }
    }

    /// Operations of a call.
    #[must_use]
    pub fn flops(&self) -> usize {
        2 * self.w.len() * Self::TILES * self.nr
    }

    /// Calls the kernel that the operands are for.
    pub fn call(&mut self, kernel: &GroupedKernel<T>) {
        let Self { taps, w, x, y, bias, .. } = self;
        let ldy = taps.outputs();
        let input = FlatInput { taps, w, x, prefetch: Prefetch::NONE, first: 0, vectors: Self::TILES * kernel.nrv() };
        let epilogue = Epilogue { bias, residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
        kernel.run(&input, &mut Dest::from_slice(y), ldy, &epilogue);
    }
}

fn values<T: Real>(len: usize) -> Vec<T> {
    let mut random = Random::new(0);
    (0..len).map(|_| T::from_f64(random.uniform())).collect()
}

/// GFLOP/s of calls with `flops` operations each: the best of many short bursts, each long enough
/// for the clock's resolution.
fn rate(flops: usize, duration: Duration, mut call: impl FnMut()) -> f64 {
    /// Operations of a burst. It takes about 10 microseconds, so that reading the clock takes a
    /// negligible part.
    const BURST: usize = 2_000_000;
    let burst = BURST / flops + 1;
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while best.is_infinite() || begin.elapsed() < duration {
        let start = Instant::now();
        for _ in 0..burst {
            call();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    (burst * flops) as f64 / best / 1e9
}

#[cfg(test)]
mod tests {
    use convoke_kernels::depthwise_kernels;

    use super::*;

    #[test]
    fn the_portable_peak_is_a_plausible_rate() {
        for numbers in [Numbers::Floats(DType::F32), Numbers::Bytes] {
            let peak = peak(numbers, Isa::Portable).expect("always available");
            assert!((0.01..10_000.0).contains(&peak), "{numbers}: {peak} GFLOP/s");
        }
    }

    #[test]
    fn direct_kernels_sum_the_same_from_planes_and_from_x() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let Some(kernels) = depthwise_kernels::<f32>(isa) else { continue };
            for kernel in kernels.rows().iter().chain(kernels.narrow()) {
                let mut operands = Direct::new(kernel);
                assert!(operands.reads_x(), "{kernel:?}");
                operands.call(kernel);
                let sums = core::mem::take(&mut operands.y);
                operands.y = vec![0.0; sums.len()];
                operands.call_on_x(kernel);
                let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                assert!(sums.iter().zip(&operands.y).all(is_close) && sums.iter().any(|y| *y != 0.0), "{kernel:?}");
            }
        }
    }

    #[test]
    fn an_isa_that_the_cpu_lacks_has_no_peak() {
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            assert_eq!(peak(DType::F32, isa), None);
        }
    }
}
