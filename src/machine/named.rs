//! Machines with names. They are for tests, and for plans that are made on one machine for
//! another.

use alloc::vec::Vec;

use super::{Isa, Machine};

impl Machine {
    /// AMD Zen 5, as in servers: AVX-512.
    ///
    /// Cache sizes are those of its data sheet for one core. Rates were measured with one core
    /// reading. The clock of 4 GHz stands for a core under full
    /// vectors. The other named machines have the same clock, so that estimates can be compared.
    #[must_use]
    pub fn zen5() -> Self {
        Self {
            name: "zen5".into(),
            l1_bytes: 48 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
            l2_bytes_per_cycle: 26.0,
            l3_bytes_per_cycle: 16.0,
            memory_bytes_per_cycle: 9.0,
            fmas_per_cycle: 2.0,
            fma_latency_cycles: 4.0,
            loads_per_cycle: 2.0,
            clock_ghz: 4.0,
            isa: Isa::Avx512,
        }
    }

    /// Intel Emerald Rapids: AVX-512.
    ///
    /// Cache sizes are those of its data sheet, except that one core counts on at most a third of
    /// the level 3 cache. The rates of level 3 and memory were measured on a virtual machine. All
    /// other values are those of [`zen5`](Self::zen5).
    #[must_use]
    pub fn emerald_rapids() -> Self {
        Self {
            name: "emerald-rapids".into(),
            l2_bytes: 2 << 20,
            l3_bytes: 96 << 20,
            l3_bytes_per_cycle: 9.0,
            memory_bytes_per_cycle: 5.0,
            ..Self::zen5()
        }
    }

    /// Arm Neoverse N1, as in servers: NEON.
    ///
    /// Cache sizes, ports and latencies are those of its technical reference manual and its
    /// software optimisation guide. No machine was available to measure on, so rates
    /// are those of [`zen5`](Self::zen5).
    #[must_use]
    pub fn neoverse_n1() -> Self {
        Self { name: "neoverse-n1".into(), l1_bytes: 64 << 10, ..Self::zen5() }.with_isa(Isa::Neon)
    }

    /// A small x86-64 machine without a level 3 cache: AVX2.
    ///
    /// It is no CPU in particular. It stands for machines whose memory comes right behind the
    /// level 2 cache, and tests plans for small caches.
    #[must_use]
    pub fn no_l3() -> Self {
        Self {
            name: "no-l3".into(),
            l1_bytes: 32 << 10,
            l2_bytes: 512 << 10,
            l3_bytes: 0,
            l3_bytes_per_cycle: 9.0,
            ..Self::zen5()
        }
        .with_isa(Isa::Avx2)
    }

    /// All machines that have names.
    #[must_use]
    pub fn named() -> Vec<Self> {
        alloc::vec![Self::zen5(), Self::emerald_rapids(), Self::neoverse_n1(), Self::no_l3()]
    }
}
