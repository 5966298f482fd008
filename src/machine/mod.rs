//! The machine that a plan is made for, as a plain value, and the environment variables that the
//! crate reads.
//!
//! Only [`Machine::host`] asks the CPU ([`host`](mod@host)). Lowerings take every cache size
//! and rate from the machine of their request. So a plan for a machine is the same wherever
//! it is made.

mod host;
mod named;
pub(crate) mod prices;
mod work;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt;

pub use convoke_kernels::isa::{Absence, Isa, ParseIsaError};

pub(crate) use prices::{Item, Kind};
pub(crate) use work::Work;

use self::prices::{LOAD_SLOTS, STEP_CYCLES};
use crate::exec::Line;

/// Names the instruction set that plans use by default: `portable`, `neon`, `avx2` or `avx512`, in
/// upper or lower case.
///
/// It is read when a [`Planner`](crate::Planner) is made, and needs the feature `std`. If the
/// name is unknown, or the CPU or the build lacks the ISA,
/// [`Planner::plan`](crate::Planner::plan) fails. An empty value counts as unset, here and in
/// [`ENV_MAX_ISA`].
pub const ENV_ISA: &str = "CONVOKE_ISA";

/// Caps the instruction set that plans use by default: they use the best one up to this one, in
/// the order `portable`, `neon`, `avx2`, `avx512`.
///
/// It is read when a [`Planner`](crate::Planner) is made, and needs the feature `std`. If the
/// name is unknown, [`Planner::plan`](crate::Planner::plan) fails. [`ENV_ISA`] overrides it.
pub const ENV_MAX_ISA: &str = "CONVOKE_MAX_ISA";

/// The machine that a plan is made for: cache sizes and rates, by which the planner picks
/// algorithms and blocking.
///
/// [`host`](Self::host) is the machine that the program runs on. The [named](Self::named)
/// machines are for tests, and for plans that are made on one CPU for another, with
/// [`Planner::machine`](crate::Planner::machine). Sizes and rates can be changed.
///
/// ```
/// use convoke::{Isa, Machine};
///
/// let mut machine = Machine::zen5().with_isa(Isa::Portable);
/// machine.name = "half of the level 2".into();
/// machine.l2_bytes /= 2;
/// assert_eq!(
///     machine.to_string(),
///     "half of the level 2: portable, L1 48 KiB, L2 512 KiB, L3 32 MiB, 26/16/9 bytes a cycle, \
///      2 FMAs and 2 loads a cycle, FMA latency 4 cycles, 4.0 GHz"
/// );
/// assert!(Machine::named().iter().any(|machine| machine.name == "emerald-rapids"));
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The name. Only [`explain`](crate::Plan::explain) uses it.
    pub name: Cow<'static, str>,
    /// Bytes of the level 1 data cache.
    pub l1_bytes: usize,
    /// Bytes of the level 2 cache, private to a core.
    pub l2_bytes: usize,
    /// Bytes of the level 3 cache that one core can count on; 0 without a level 3 cache.
    pub l3_bytes: usize,
    /// Bytes a cycle that one core reads from the level 2 cache, with prefetching.
    pub l2_bytes_per_cycle: f64,
    /// Bytes a cycle that one core reads from the level 3 cache; without one, the rate of memory.
    pub l3_bytes_per_cycle: f64,
    /// Bytes a cycle that one core reads from memory.
    pub memory_bytes_per_cycle: f64,
    /// Multiply-adds of vector registers that a core begins in a cycle.
    pub fmas_per_cycle: f64,
    /// Latency of a multiply-add in cycles: until its sum can be added to.
    pub fma_latency_cycles: f64,
    /// Vector loads a cycle.
    pub loads_per_cycle: f64,
    /// Cycles a nanosecond. It converts all estimates alike from cycles into nanoseconds. A run
    /// that is estimated at a few microseconds stays on one thread.
    pub clock_ghz: f64,
    isa: Isa,
}

impl Machine {
    /// The same machine with the kernels of another instruction set.
    #[must_use]
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// Bytes of the level 2 cache that blocks are sized by. They are capped, because larger
    /// blocks were not faster on a CPU with a larger cache.
    pub(crate) fn block_l2_bytes(&self) -> usize {
        self.l2_bytes.min(MOST_BLOCK_L2_BYTES)
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Why no plan can be made for this machine: the first value that no machine has.
    pub(crate) fn mistake(&self) -> Option<String> {
        let sizes = [("l1_bytes", self.l1_bytes), ("l2_bytes", self.l2_bytes)];
        let rates = [
            ("l2_bytes_per_cycle", self.l2_bytes_per_cycle),
            ("l3_bytes_per_cycle", self.l3_bytes_per_cycle),
            ("memory_bytes_per_cycle", self.memory_bytes_per_cycle),
            ("fmas_per_cycle", self.fmas_per_cycle),
            ("fma_latency_cycles", self.fma_latency_cycles),
            ("loads_per_cycle", self.loads_per_cycle),
            ("clock_ghz", self.clock_ghz),
        ];
        let name = &self.name;
        let wrong_size = sizes.iter().find(|(_, bytes)| !(LEAST_BYTES..=MOST_BYTES).contains(bytes));
        if let Some((field, bytes)) = wrong_size {
            return Some(format!("machine {name}: {field} is {bytes}, not {LEAST_BYTES} to {MOST_BYTES}"));
        }
        let wrong_rate = rates.iter().find(|(_, rate)| !(LEAST_RATE..=MOST_RATE).contains(rate));
        wrong_rate.map(|(field, rate)| format!("machine {name}: {field} is {rate}, not {LEAST_RATE} to {MOST_RATE}"))
    }
}

/// The least and the most bytes of the level 1 and level 2 caches. With less, blocks, which are
/// fractions of a cache, would be empty. More would overflow the sizes of 32-bit hosts.
const LEAST_BYTES: usize = 4 << 10;
const MOST_BYTES: usize = 1 << 30;
/// Bytes of the level 2 cache that blocks are made for, at most: see [`Machine::block_l2_bytes`].
const MOST_BLOCK_L2_BYTES: usize = 1 << 20;
/// Up to so many bytes of Y are still in the caches when a run, or the reader of Y, gets there. A larger
/// Y is prefetched, with what tiles read of X, or written past the caches. An absolute size, because it was not
/// measured with other caches.
pub(crate) const NEAR_Y_BYTES: usize = 4 << 20;
/// Bounds of rates, latency and clock, within which estimates stay finite.
const LEAST_RATE: f64 = 0.001;
const MOST_RATE: f64 = 1000.0;

/// Estimates that several lowerings share.
impl Machine {
    /// Cycles to read a byte that is not in the L2 cache, out of `resident` bytes that are read
    /// repeatedly. The L3 cache keeps a part of them; the rest comes from memory.
    pub(crate) fn cycles_beyond_l2(&self, resident: f64) -> f64 {
        let kept = (self.l3_bytes as f64 / resident).min(1.0);
        kept / self.l3_bytes_per_cycle + (1.0 - kept) / self.memory_bytes_per_cycle
    }

    /// Estimated cycles of one step of K. They are the time of its multiply-adds, or of its loads,
    /// which take `load_slots` slots of the ports, whichever is longer; and at least the latency,
    /// because enough multiply-adds must be in flight.
    pub(crate) fn tile_cycles(&self, fmas: usize, load_slots: f64) -> f64 {
        // One load more than the tile's, for the table of offsets.
        let load_slots = (load_slots + 1.0) * LOAD_SLOTS;
        self.longest_cycles(fmas as f64, load_slots, self.fma_latency_cycles) + STEP_CYCLES
    }

    /// Slots of a load port for a vector of `bytes` that begins at any multiple of `align` bytes: one
    /// for each cache line that it touches.
    pub(crate) fn crossing_slots(&self, bytes: usize, align: usize) -> f64 {
        1.0 + bytes.saturating_sub(align) as f64 / size_of::<Line>() as f64
    }

    /// The same for a vector of `lanes` values that begins anywhere.
    pub(crate) fn unaligned_slots<A>(&self, lanes: usize) -> f64 {
        self.crossing_slots(lanes * size_of::<A>(), size_of::<A>())
    }

    /// Estimated cycles of a vector of sums in a direct kernel, in a tile of `rows` rows: `taps`
    /// multiply-adds, and loads that take `load_slots` slots. After each product a row's sum waits for
    /// its result. The other rows of the tile use that time, and the next vector half of it.
    pub(crate) fn direct_tile_cycles(&self, taps: f64, load_slots: f64, rows: f64) -> f64 {
        self.longest_cycles(taps, load_slots, taps * (self.fma_latency_cycles / 2.0) / rows)
    }

    /// Multiply-adds, loads that take `load_slots` slots of the ports, and waiting for sums go on at the
    /// same time: the longest counts.
    pub(crate) fn longest_cycles(&self, fmas: f64, load_slots: f64, wait_cycles: f64) -> f64 {
        (fmas / self.fmas_per_cycle).max(load_slots / self.loads_per_cycle).max(wait_cycles)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, isa, l2_bytes_per_cycle: l2, l3_bytes_per_cycle: l3, memory_bytes_per_cycle: memory, .. } =
            self;
        let Self { fmas_per_cycle: fmas, loads_per_cycle: loads, fma_latency_cycles: latency, .. } = self;
        write!(f, "{name}: {isa}, L1 {}, L2 {}, ", Bytes(self.l1_bytes), Bytes(self.l2_bytes))?;
        match self.l3_bytes {
            0 => write!(f, "no L3, {l2}/{memory} bytes a cycle")?,
            bytes => write!(f, "L3 {}, {l2}/{l3}/{memory} bytes a cycle", Bytes(bytes))?,
        }
        write!(f, ", {fmas} FMAs and {loads} loads a cycle, FMA latency {latency} cycles, {:.1} GHz", self.clock_ghz)
    }
}

/// A number of bytes, printed in the largest unit that divides it.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

/// The ISA that plans use if the caller names none.
pub(crate) fn default_isa() -> Result<Isa, alloc::string::String> {
    #[cfg(feature = "std")]
    {
        // Both variables are read first, so that a mistake in either is reported.
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

/// The ISA that an environment variable names; none if it is unset or empty.
#[cfg(feature = "std")]
fn named(variable: &str) -> Result<Option<Isa>, alloc::string::String> {
    match std::env::var_os(variable) {
        Some(name) if !name.is_empty() => {
            let name = name.to_string_lossy();
            name.parse().map(Some).map_err(|error| alloc::format!("{variable}: {error}"))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn named_machines_have_names_of_their_own_and_no_mistakes() {
        let all = Machine::named();
        for (i, machine) in all.iter().enumerate() {
            assert_eq!(machine.mistake(), None);
            assert!(all[..i].iter().all(|other| other.name != machine.name), "{}", machine.name);
        }
    }

    #[test]
    fn values_that_no_machine_has_are_named() {
        let machine = Machine { l1_bytes: 0, ..Machine::zen5() };
        assert_eq!(machine.mistake().unwrap(), "machine zen5: l1_bytes is 0, not 4096 to 1073741824");
        for clock_ghz in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-18, 1e6] {
            let machine = Machine { clock_ghz, ..Machine::zen5() };
            assert!(machine.mistake().unwrap().starts_with("machine zen5: clock_ghz is "), "{clock_ghz}");
        }
    }

    #[test]
    fn without_a_level_3_what_leaves_level_2_is_in_memory() {
        let machine = Machine::no_l3();
        assert_eq!(machine.cycles_beyond_l2(1e6), 1.0 / machine.memory_bytes_per_cycle);
        assert_eq!(
            machine.to_string(),
            "no-l3: avx2, L1 32 KiB, L2 512 KiB, no L3, 26/9 bytes a cycle, \
             2 FMAs and 2 loads a cycle, FMA latency 4 cycles, 4.0 GHz"
        );
    }
}
