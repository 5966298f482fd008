//! The limits of a layer's time on this machine: arithmetic, or reading and writing its data.
//!
//! [`Roof::measure`] measures the FMA peak and the read bandwidth of each memory level.
//! [`Roof::bound`] computes two times for a layer: its operations by the definition at the FMA
//! peak, and its compulsory bytes (the used part of X, W and B once, Y once) at the bandwidth of
//! the level that holds them all when the layer runs again and again. The longer time is the
//! layer's limit.
//!
//! This limits direct arithmetic on everything that the definition counts. Two methods can exceed
//! the FMA limit: Winograd's minimal filtering needs fewer multiply-adds, and taps that see
//! only padding may be left out. The bandwidth limits are never too low, because they are
//! measured by reading, and writing is slower.

use std::fmt;
use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use convoke::{Geometry, Isa, Op};
use pulp::{Simd, WithSimd};

use crate::data::{Numbers, Tensor, tensor};
use crate::peak::peak;
use crate::shapes::flops;

/// A level of the memory hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The level 1 data cache of a core.
    L1,
    /// The level 2 cache of a core.
    L2,
    /// The last cache, which cores share.
    L3,
    /// Main memory.
    Dram,
}

impl Level {
    /// All levels, from the fastest to the slowest.
    pub const ALL: [Self; 4] = [Self::L1, Self::L2, Self::L3, Self::Dram];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::Dram => "DRAM",
        })
    }
}

/// What limits a layer's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// The rate of fused multiply-adds.
    Fma,
    /// The bandwidth of a level.
    Bandwidth(Level),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fma => f.pad("FMA"),
            Self::Bandwidth(level) => level.fmt(f),
        }
    }
}

/// The limit of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The limit that takes longer.
    pub limit: Limit,
    /// The seconds that a run takes at that limit.
    pub seconds: f64,
    /// The compulsory bytes.
    pub bytes: f64,
    /// The level that holds them.
    pub level: Level,
}

/// Sizes of the caches in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// The level 1 data cache of one core.
    pub l1: usize,
    /// The level 2 cache of one core.
    pub l2: usize,
    /// The last cache, which all cores share.
    pub l3: usize,
}

impl Caches {
    /// Sizes for systems that do not report any: common sizes of current cores.
    const ASSUMED: Self = Self { l1: 32 << 10, l2: 1 << 20, l3: 32 << 20 };

    /// The sizes that Linux reports; `None` on other systems.
    #[must_use]
    pub fn reported() -> Option<Self> {
        Self::from_sysfs(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }

    /// The sizes that the system reports, or else common ones.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::reported().unwrap_or(Self::ASSUMED)
    }

    /// The sizes from the folder of one CPU's caches; `None` if not all three are there.
    fn from_sysfs(folder: &Path) -> Option<Self> {
        let size = |level: &str| {
            std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
                let read = |name| std::fs::read_to_string(entry.path().join(name)).ok();
                let holds_data = read("type")?.trim() != "Instruction";
                (holds_data && read("level")?.trim() == level).then(|| parse_size(read("size")?.trim())).flatten()
            })
        };
        Some(Self { l1: size("1")?, l2: size("2")?, l3: size("3")? })
    }

    /// The first level that holds `bytes` that are shared out among `threads` cores.
    #[must_use]
    pub fn level_of(&self, bytes: f64, threads: usize) -> Level {
        let holds = |size: usize| bytes <= size as f64;
        match () {
            () if holds(self.l1 * threads) => Level::L1,
            () if holds(self.l2 * threads) => Level::L2,
            () if holds(self.l3) => Level::L3,
            () => Level::Dram,
        }
    }
}

/// Reads `48K` or `2M` as bytes.
fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "K") => (number, 1 << 10),
        (number, "M") => (number, 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

/// The measured limits of a number of threads with an ISA.
#[derive(Debug, Clone, PartialEq)]
pub struct Roof {
    /// The number of cores that they hold for: one for each thread, but no more than the machine
    /// has.
    pub threads: usize,
    /// GFLOP/s of all threads together: the fastest micro-kernel, with operands in the L1 cache.
    pub fma: f64,
    /// GB/s of all threads together, read from each of [`Level::ALL`].
    pub bandwidth: [f64; 4],
    /// The cache sizes by which the levels were told apart.
    pub caches: Caches,
}

impl Roof {
    /// Measures all limits, in about a second; `None` if the CPU or the build lacks the ISA.
    ///
    /// # Panics
    /// If `threads` is 0.
    #[must_use]
    pub fn measure(numbers: impl Into<Numbers>, isa: Isa, threads: usize) -> Option<Self> {
        assert!(threads > 0, "at least one thread");
        let numbers = numbers.into();
        peak(numbers, isa)?;
        // More threads than cores would take turns. Each would measure the whole speed of its
        // core while it runs, and the sum would exceed the speed of the machine.
        let threads = threads.min(std::thread::available_parallelism().map_or(threads, usize::from));
        let caches = Caches::of_this_machine();
        let fma = on_all(threads, || (), |()| peak(numbers, isa).unwrap_or(0.0));
        let bandwidth = Level::ALL.map(|level| bandwidth(isa, threads, per_thread(level, &caches, threads)));
        Some(Self { threads, fma, bandwidth, caches })
    }

    /// The limit of a layer whose elements take `element_bytes` each.
    #[must_use]
    pub fn bound(&self, geometry: &Geometry, element_bytes: usize) -> Bound {
        let bytes = compulsory_bytes(geometry, element_bytes);
        let level = self.caches.level_of(bytes, self.threads);
        let arithmetic = flops(geometry) / (self.fma * 1e9);
        let traffic = bytes / (self.bandwidth[level as usize] * 1e9);
        let limit = if arithmetic >= traffic { Limit::Fma } else { Limit::Bandwidth(level) };
        Bound { limit, seconds: arithmetic.max(traffic), bytes, level }
    }
}

/// The bytes that a run has to move at least: the used part of X, W and B once, and Y once. Rows
/// of X that a stride skips do not count. Within a row everything counts, because memory moves in
/// cache lines.
#[must_use]
pub fn compulsory_bytes(geometry: &Geometry, element_bytes: usize) -> f64 {
    let share_of_x: f64 = match geometry.op {
        Op::Conv => geometry.axes.split_last().map_or(1.0, |(_, outer)| outer.iter().map(share_read).product()),
        Op::ConvTranspose => 1.0,
    };
    let x = geometry.input_len() as f64 * share_of_x;
    let rest = geometry.weight_len() + geometry.bias_len() + geometry.output_len();
    (x + rest as f64) * element_bytes as f64
}

/// Conv: the share of the input along an axis that some tap reads.
fn share_read(axis: &convoke::Axis) -> f64 {
    if axis.stride <= 1 || axis.input == 0 {
        return 1.0;
    }
    let taps = |o| (0..axis.kernel).filter_map(move |k| axis.input_position(o, k));
    let mut read = vec![false; axis.input];
    (0..axis.output).flat_map(taps).for_each(|position| read[position] = true);
    read.into_iter().filter(|&is_read| is_read).count() as f64 / axis.input as f64
}

/// Bytes that each thread reads again and again to measure a level's bandwidth: well within that
/// level, and well beyond the level before it.
fn per_thread(level: Level, caches: &Caches, threads: usize) -> usize {
    /// Bytes of all threads together, at most. More would take too long to fill.
    const MOST_BYTES: usize = 1 << 30;
    match level {
        Level::L1 => caches.l1 / 2,
        Level::L2 => caches.l2 / 2,
        Level::L3 => (caches.l3 / 4 / threads).clamp(2 * caches.l2, 8 * caches.l2),
        Level::Dram => (2 * caches.l3).min(MOST_BYTES) / threads,
    }
}

/// GB/s that `threads` threads read together, each from its own `bytes`.
fn bandwidth(isa: Isa, threads: usize, bytes: usize) -> f64 {
    /// The time to read, at least. Only the fastest burst counts, so there must be many.
    const DURATION: Duration = Duration::from_millis(120);
    /// Bursts, at least, for data that take longer than that.
    const FEWEST_PASSES: usize = 3;
    // Reads of the data between two looks at the clock. Small data are read often enough for its
    // resolution.
    let burst = 1 + (1 << 20) / bytes.max(1);
    let fill = || {
        // The data are aligned, because vectors that cross cache lines are read at half the rate.
        let data = tensor(std::iter::repeat_n(1.0_f32, bytes / size_of::<f32>()));
        read(isa, &data);
        data
    };
    let rate = |data: Tensor<f32>| {
        let (start, mut best, mut passes) = (Instant::now(), f64::INFINITY, 0);
        while start.elapsed() < DURATION || passes < FEWEST_PASSES {
            let clock = Instant::now();
            for _ in 0..burst {
                read(isa, black_box(&data));
            }
            best = best.min(clock.elapsed().as_secs_f64());
            passes += 1;
        }
        (burst * bytes) as f64 / best / 1e9
    };
    on_all(threads, fill, rate)
}

/// The sum of the results of `work` on `threads` threads. All start it at the same time, after
/// each has prepared its part.
fn on_all<P>(threads: usize, prepare: impl Fn() -> P + Sync, work: impl Fn(P) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let run = || {
        let prepared = prepare();
        barrier.wait();
        work(prepared)
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        own + helpers.into_iter().map(|helper| helper.join().expect("measuring does not panic")).sum::<f64>()
    })
}

/// Reads `data` once, with vectors of the ISA.
fn read(isa: Isa, data: &[f32]) {
    let sum = Sum(data);
    #[cfg(target_arch = "x86_64")]
    {
        if isa == Isa::Avx512
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            black_box(Simd::vectorize(simd, sum));
            return;
        }
        if isa >= Isa::Avx2
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            black_box(Simd::vectorize(simd, sum));
            return;
        }
    }
    let _ = isa;
    black_box(Simd::vectorize(pulp::Scalar128b, sum));
}

/// The sum of all values. It takes one load and one addition for each vector, so that loads are
/// the limit.
struct Sum<'a>(&'a [f32]);

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        /// Independent sums. A core begins two additions a cycle, and each takes four cycles.
        const SUMS: usize = 8;
        let (vectors, rest) = S::as_simd_f32s(self.0);
        let (blocks, tail) = vectors.as_chunks::<SUMS>();
        let mut sums = [simd.splat_f32s(0.0); SUMS];
        for block in blocks {
            for (sum, &vector) in sums.iter_mut().zip(block) {
                *sum = simd.add_f32s(*sum, vector);
            }
        }
        for &vector in tail {
            sums[0] = simd.add_f32s(sums[0], vector);
        }
        let mut total = simd.splat_f32s(0.0);
        for sum in sums {
            total = simd.add_f32s(total, sum);
        }
        simd.reduce_sum_f32s(total) + rest.iter().sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke::{Conv, ConvTranspose};

    const ROOF: Roof = Roof {
        threads: 1,
        fma: 100.0,
        bandwidth: [400.0, 200.0, 100.0, 10.0],
        caches: Caches { l1: 32 << 10, l2: 1 << 20, l3: 32 << 20 },
    };

    #[test]
    fn arithmetic_or_bandwidth_whichever_takes_longer() {
        // A pointwise layer of 512 x 512 channels on 28x28: 411 MFLOP, and 4.3 MB in the L3
        // cache.
        let dense = Conv::new([512, 512, 1, 1]).geometry(&[1, 512, 28, 28]).unwrap();
        let bound = ROOF.bound(&dense, 4);
        assert_eq!((bound.limit, bound.level), (Limit::Fma, Level::L3));
        assert!((bound.seconds - 2.0 * (512 * 512 * 784) as f64 / 100e9).abs() < 1e-9);
        // A depthwise 1x1 layer: one operation for every four bytes that are read and written.
        let thin = Conv::new([64, 1, 1, 1]).group(64).geometry(&[1, 64, 28, 28]).unwrap();
        let bound = ROOF.bound(&thin, 4);
        assert_eq!(bound.limit, Limit::Bandwidth(Level::L2));
        assert!((bound.seconds - bound.bytes / 200e9).abs() < 1e-12);
        assert_eq!(bound.bytes, f64::from(4 * (2 * 64 * 784 + 64 + 64)));
    }

    #[test]
    fn rows_that_a_stride_jumps_over_are_not_read() {
        let all = |g: &Geometry| (g.weight_len() + g.bias_len() + g.output_len()) as f64;
        let strided = Conv::new([1, 1, 1, 1]).strides([2, 2]).geometry(&[1, 1, 8, 10]).unwrap();
        assert_eq!(compulsory_bytes(&strided, 1) - all(&strided), 40.0, "every second row, whole");
        let covered = Conv::new([1, 1, 3, 3]).strides([2, 2]).geometry(&[1, 1, 9, 9]).unwrap();
        assert_eq!(compulsory_bytes(&covered, 1) - all(&covered), 81.0);
        let transposed = ConvTranspose::new([1, 1, 2, 2]).strides([4, 4]).geometry(&[1, 1, 8, 10]).unwrap();
        assert_eq!(compulsory_bytes(&transposed, 1) - all(&transposed), 80.0);
    }

    #[test]
    fn levels_by_size_and_threads() {
        let level = |bytes, threads| ROOF.caches.level_of(bytes, threads);
        assert_eq!(level(32768.0, 1), Level::L1);
        assert_eq!(level(32769.0, 1), Level::L2);
        assert_eq!(level(32769.0, 2), Level::L1);
        assert_eq!(level(2e6, 1), Level::L3);
        assert_eq!(level(1e9, 64), Level::Dram, "cores share the last cache");
    }

    #[test]
    fn cache_sizes_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Caches::from_sysfs(dir.path()), None);
        for (index, (kind, level, size)) in
            [("Data", "1", "48K"), ("Instruction", "1", "64K"), ("Unified", "2", "2048K"), ("Unified", "3", "32M")]
                .into_iter()
                .enumerate()
        {
            let folder = dir.path().join(format!("index{index}"));
            std::fs::create_dir(&folder).unwrap();
            for (name, text) in [("type", kind), ("level", level), ("size", size)] {
                std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        let expected = Caches { l1: 48 << 10, l2: 2 << 20, l3: 32 << 20 };
        assert_eq!(Caches::from_sysfs(dir.path()), Some(expected));
        assert_eq!(parse_size(""), None);
        assert_eq!(parse_size("x1K"), None);
    }

    #[test]
    fn the_portable_roof_is_plausible() {
        for threads in [1, 2] {
            let small = bandwidth(Isa::Portable, threads, 16 << 10);
            assert!((0.1..10_000.0).contains(&small), "{small} GB/s");
        }
    }

    #[test]
    fn every_value_is_read() {
        for len in [0, 1, 15, 16, 17, 128, 129, 1000] {
            let data: Vec<f32> = (1..=len).map(|i| i as f32).collect();
            let expected = (len * (len + 1) / 2) as f32;
            assert_eq!(Simd::vectorize(pulp::Scalar128b, Sum(&data)), expected, "{len}");
        }
    }
}
