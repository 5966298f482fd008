//! The machine that the program runs on, as its CPU describes itself.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{Isa, Machine};

/// Bytes of a level 3 cache that one core can count on, at most. Many cores share a large
/// level 3 cache, and on a virtual machine so do other guests.
#[cfg(any(test, target_arch = "x86_64"))]
const MOST_L3_BYTES: usize = 96 << 20;

/// What the CPU says about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuAnswers {
    l1_bytes: usize,
    l2_bytes: usize,
    /// 0 without a level 3 cache.
    l3_bytes: usize,
    is_intel: bool,
}

impl Machine {
    /// The machine that the program runs on, with the best instruction set that its CPU and the
    /// build have.
    ///
    /// On x86-64, the CPU is asked once for its caches and its maker. With the feature `std`, its clock
    /// is measured once, in less than a millisecond. What it does not say, such as rates, is that of
    /// [`emerald_rapids`](Self::emerald_rapids) for all CPUs of Intel, and that of
    /// [`zen5`](Self::zen5) for others and on other architectures.
    #[must_use]
    pub fn host() -> Self {
        let CpuAnswers { l1_bytes, l2_bytes, l3_bytes, is_intel } = CpuAnswers::known();
        // A CPU cannot be asked for rates. They are those of the measured machine that is most
        // like it.
        let alike = if is_intel { Self::emerald_rapids() } else { Self::zen5() };
        let l3_bytes_per_cycle = if l3_bytes == 0 { alike.memory_bytes_per_cycle } else { alike.l3_bytes_per_cycle };
        #[cfg(all(feature = "std", not(miri)))]
        let alike = Self { clock_ghz: clock_ghz(), ..alike };
        let host = Self { name: "host".into(), l1_bytes, l2_bytes, l3_bytes, l3_bytes_per_cycle, ..alike };
        host.with_isa(Isa::detect())
    }
}

/// The clock in GHz, rounded to tenths: measured by operations of one cycle that wait for one another.
#[cfg(all(feature = "std", not(miri)))]
fn clock_ghz() -> f64 {
    use core::hint::black_box;
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    const CHAIN: u32 = 20_000;
    static TENTHS: OnceLock<f64> = OnceLock::new();
    let time = || {
        let (start, mask) = (Instant::now(), black_box(1_u64));
        black_box((0..CHAIN).fold(mask, |value, _| value.rotate_left(7) ^ mask));
        start.elapsed().max(Duration::from_micros(1))
    };
    // The fastest of several: others may be interrupted, or begin before the clock is up.
    let fastest = || (0..8).map(|_| time()).min().unwrap_or_default();
    let tenths = TENTHS.get_or_init(|| (20.0 * f64::from(CHAIN) / fastest().as_nanos() as f64).round());
    tenths.clamp(5.0, 80.0) / 10.0
}

impl CpuAnswers {
    /// Asks the CPU once, because on a virtual machine each `cpuid` takes microseconds.
    fn known() -> Self {
        // 0 stands for "not known yet", so numbers that may be 0 are stored with 1 added. Threads that
        // ask at the same time get the same answers.
        static KNOWN: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
        let known = KNOWN.each_ref().map(|value| value.load(Ordering::Relaxed));
        if !known.contains(&0) {
            let [l1_bytes, l2_bytes, l3_bytes, is_intel] = known;
            return Self { l1_bytes, l2_bytes, l3_bytes: l3_bytes - 1, is_intel: is_intel == 2 };
        }
        let found = Self::ask();
        let values = [found.l1_bytes, found.l2_bytes, found.l3_bytes + 1, usize::from(found.is_intel) + 1];
        for (known, value) in KNOWN.iter().zip(values) {
            known.store(value, Ordering::Relaxed);
        }
        found
    }

    /// The values where the CPU does not say.
    fn unknown() -> Self {
        let Machine { l1_bytes, l2_bytes, l3_bytes, .. } = Machine::zen5();
        Self { l1_bytes, l2_bytes, l3_bytes, is_intel: false }
    }

    /// Miri, which interprets tests, has no `cpuid`.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn ask() -> Self {
        use raw_cpuid::{CacheType, CpuId};

        let (cpuid, unknown) = (CpuId::new(), Self::unknown());
        let is_intel = cpuid.get_vendor_info().is_some_and(|vendor| vendor.as_str() == "GenuineIntel");
        let bytes_of = |level: u8| {
            let is_it = |c: &raw_cpuid::CacheParameter| {
                c.level() == level && matches!(c.cache_type(), CacheType::Data | CacheType::Unified)
            };
            let cache = cpuid.get_cache_parameters()?.find(is_it)?;
            Some(cache.associativity() * cache.physical_line_partitions() * cache.coherency_line_size() * cache.sets())
        };
        let l1_bytes = bytes_of(1).unwrap_or(unknown.l1_bytes).clamp(16 << 10, 256 << 10);
        let l2_bytes = bytes_of(2).unwrap_or(unknown.l2_bytes).clamp(256 << 10, 4 << 20);
        // A CPU that names a level 2 cache and no level 3 cache has no level 3 cache.
        let l3_bytes = match (bytes_of(2), bytes_of(3)) {
            (Some(_), None) => 0,
            (_, l3_bytes) => l3_bytes.unwrap_or(unknown.l3_bytes).clamp(l2_bytes, MOST_L3_BYTES),
        };
        Self { l1_bytes, l2_bytes, l3_bytes, is_intel }
    }

    #[cfg(any(not(target_arch = "x86_64"), miri))]
    fn ask() -> Self {
        Self::unknown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_of_this_world_and_does_not_change() {
        let host = Machine::host();
        assert_eq!(host.mistake(), None);
        assert!((16 << 10..=256 << 10).contains(&host.l1_bytes), "{host:?}");
        assert!((256 << 10..=4 << 20).contains(&host.l2_bytes), "{host:?}");
        assert!(host.l3_bytes == 0 || (host.l2_bytes..=MOST_L3_BYTES).contains(&host.l3_bytes), "{host:?}");
        assert_eq!(host, Machine::host());
    }
}
