//! What the crate knows of the machine, and the environment variables that it reads.

use core::sync::atomic::{AtomicUsize, Ordering};

pub use convoke_kernels::Isa;

/// Names the instruction set that plans use by default: `portable`, `neon`, `avx2` or `avx512`. Read when a [`Planner`](crate::Planner) is
/// made; a name that is not known, and an ISA that the CPU or the build lacks, is an error of [`Planner::plan`](crate::Planner::plan). Needs the
/// feature `std`. Empty is as unset, here and in [`ENV_MAX_ISA`].
pub const ENV_ISA: &str = "CONVOKE_ISA";

/// Names the most capable instruction set that plans use by default: the best one up to it is taken, in the order `portable`, `neon`, `avx2`,
/// `avx512`. Read when a [`Planner`](crate::Planner) is made; a name that is not known is an error of [`Planner::plan`](crate::Planner::plan).
/// [`ENV_ISA`] overrides it. Needs the feature `std`.
pub const ENV_MAX_ISA: &str = "CONVOKE_MAX_ISA";

/// The data caches that blocking is chosen for.
///
/// They order the planner's candidates: another machine may pick another algorithm or blocking, the same machine always picks the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caches {
    /// Bytes of level 2, private to a core.
    pub(crate) l2: usize,
    /// Bytes of level 3 that one core may hope for.
    pub(crate) l3: usize,
    /// Bytes a cycle that one core reads from level 3, with prefetching.
    pub(crate) l3_bytes_per_cycle: usize,
    /// The same from memory.
    pub(crate) memory_bytes_per_cycle: usize,
}

impl Caches {
    /// Where the CPU does not tell: typical of cores that the kernels are for.
    const UNKNOWN: Self = Self { l2: 1 << 20, l3: 32 << 20, l3_bytes_per_cycle: 16, memory_bytes_per_cycle: 9 };
    /// Of a level 3 that many cores (and, on a virtual machine, strangers) share, one has no more than this.
    #[cfg(any(test, target_arch = "x86_64"))]
    const MOST_L3: usize = 96 << 20;

    /// Those of this CPU.
    ///
    /// Asked once: on a virtual machine, each `cpuid` costs microseconds.
    pub(crate) fn detect() -> Self {
        // Zeros for what is not known yet; two threads that come first find the same.
        static KNOWN: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
        let known = KNOWN.each_ref().map(|value| value.load(Ordering::Relaxed));
        if !known.contains(&0) {
            let [l2, l3, l3_bytes_per_cycle, memory_bytes_per_cycle] = known;
            return Self { l2, l3, l3_bytes_per_cycle, memory_bytes_per_cycle };
        }
        let found = Self::ask();
        let values = [found.l2, found.l3, found.l3_bytes_per_cycle, found.memory_bytes_per_cycle];
        for (known, value) in KNOWN.iter().zip(values) {
            known.store(value, Ordering::Relaxed);
        }
        found
    }

    #[cfg(target_arch = "x86_64")]
    fn ask() -> Self {
        use raw_cpuid::{CacheType, CpuId};

        let cpuid = CpuId::new();
        let bytes_of = |level: u8| {
            let is_it = |c: &raw_cpuid::CacheParameter| {
                c.level() == level && matches!(c.cache_type(), CacheType::Data | CacheType::Unified)
            };
            let cache = cpuid.get_cache_parameters()?.find(is_it)?;
            Some(cache.associativity() * cache.physical_line_partitions() * cache.coherency_line_size() * cache.sets())
        };
        let l2 = bytes_of(2).unwrap_or(Self::UNKNOWN.l2).clamp(256 << 10, 4 << 20);
        // Without a level 3, what leaves level 2 is in memory.
        let l3 = bytes_of(3).unwrap_or(Self::UNKNOWN.l3).clamp(l2, Self::MOST_L3);
        // Measured on Emerald Rapids and on Zen 5.
        let is_intel = cpuid.get_vendor_info().is_some_and(|vendor| vendor.as_str() == "GenuineIntel");
        match is_intel {
            true => Self { l2, l3, l3_bytes_per_cycle: 9, memory_bytes_per_cycle: 5 },
            false => Self { l2, l3, ..Self::UNKNOWN },
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ask() -> Self {
        Self::UNKNOWN
    }
}

/// The ISA that plans use where the caller names none.
pub(crate) fn default_isa() -> Result<Isa, alloc::string::String> {
    #[cfg(feature = "std")]
    {
        // Both are read, so that a mistake in one does not hide behind the other.
        let (isa, cap) = (named(ENV_ISA)?, named(ENV_MAX_ISA)?);
        if let Some(isa) = isa {
            return match isa.absence() {
                None => Ok(isa),
                Some(absence) => Err(alloc::format!("{ENV_ISA}={isa}: {absence}")),
            };
        }
        if let Some(cap) = cap {
            return Ok(Isa::detect_at_most(cap));
        }
    }
    Ok(Isa::detect())
}

/// The ISA that an environment variable names; none where it is unset or empty.
#[cfg(feature = "std")]
fn named(variable: &str) -> Result<Option<Isa>, alloc::string::String> {
    match std::env::var_os(variable) {
        Some(name) if !name.is_empty() => {
            let name = name.to_string_lossy();
            name.parse().map(Some).map_err(|error| alloc::format!("{variable}={name}: {error}"))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_of_this_world_and_do_not_change() {
        let caches = Caches::detect();
        assert!((256 << 10..=4 << 20).contains(&caches.l2), "{caches:?}");
        assert!((caches.l2..=Caches::MOST_L3).contains(&caches.l3), "{caches:?}");
        assert_eq!(caches, Caches::detect());
    }
}
