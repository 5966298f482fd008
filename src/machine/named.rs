//! Machines with names: for tests, and for plans that are made without the machine.

use alloc::vec::Vec;

use super::{Isa, Machine, Prices};

impl Machine {
    /// AMD Zen 5, of servers: AVX-512.
    ///
    /// Cache sizes are those of a core of its data sheet; rates were measured with one core
    /// reading. It is what the prices were measured on. 4 GHz stands for a core's clock under
    /// full vectors, here and on the others, so that estimates compare.
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
            prices: Prices::of(Isa::Avx512),
        }
    }

    /// Intel Emerald Rapids: AVX-512.
    ///
    /// Cache sizes are those of its data sheet, but of its level 3 a core has no more than a
    /// third. Rates from level 3 and memory were measured on a virtual machine. What was not
    /// measured is as on [`zen5`](Self::zen5).
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
    /// Cache sizes, ports and latencies are those of its technical reference manual and software
    /// optimisation guide. There was no machine to measure: rates and prices are as on
    /// [`zen5`](Self::zen5).
    #[must_use]
    pub fn neoverse_n1() -> Self {
        Self { name: "neoverse-n1".into(), l1_bytes: 64 << 10, ..Self::zen5() }.with_isa(Isa::Neon)
    }

    /// A small x86-64 machine without a level 3: AVX2.
    ///
    /// No CPU in particular. It stands for all whose memory lies right behind the level 2, and
    /// keeps plans honest about small caches.
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
