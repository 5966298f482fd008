//! The machine that a plan is made for: a plain value, and the environment variables that the
//! crate reads.
//!
//! [`Machine::host`] alone asks the CPU ([`host`](mod@host)). All that a lowering decides by a
//! cache, a rate or a price it reads from the machine of its request, so that a plan is the same
//! wherever it is made.

mod host;
mod named;
mod prices;
mod work;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt;

pub use convoke_kernels::Isa;

pub(crate) use prices::Prices;
pub(crate) use work::{Item, Kind, Work};

/// Names the instruction set that plans use by default: `portable`, `neon`, `avx2` or `avx512`.
/// Read when a [`Planner`](crate::Planner) is made; a name that is not known, and an ISA that the
/// CPU or the build lacks, is an error of [`Planner::plan`](crate::Planner::plan). Needs the
/// feature `std`. Empty is as unset, here and in [`ENV_MAX_ISA`].
pub const ENV_ISA: &str = "CONVOKE_ISA";

/// Names the most capable instruction set that plans use by default: the best one up to it is
/// taken, in the order `portable`, `neon`, `avx2`, `avx512`. Read when a
/// [`Planner`](crate::Planner) is made; a name that is not known is an error of
/// [`Planner::plan`](crate::Planner::plan). [`ENV_ISA`] overrides it. Needs the feature `std`.
pub const ENV_MAX_ISA: &str = "CONVOKE_MAX_ISA";

/// The machine that a plan is made for: what the planner asks of a CPU when it picks algorithms
/// and blocking.
///
/// [`host`](Self::host) is the one that the program runs on. The [named](Self::named) ones are
/// for tests, and for plans that are made for another CPU, with
/// [`Planner::machine`](crate::Planner::machine). The sizes and rates can be changed; the prices
/// of single steps of work belong to the instruction set, which [`with_isa`](Self::with_isa)
/// changes.
///
/// ```
/// use convoke::{Isa, Machine};
///
/// let mut machine = Machine::zen5().with_isa(Isa::Portable);
/// machine.name = "half of the level 2".into();
/// machine.l2_bytes /= 2;
/// assert_eq!(
///     machine.to_string(),
///     "half of the level 2: portable, L1 48 KiB, L2 512 KiB, L3 32 MiB, 26/16/9 bytes a cycle, 4.0 GHz"
/// );
/// assert!(Machine::named().iter().any(|machine| machine.name == "emerald-rapids"));
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The name, for [`explain`](crate::Plan::explain) alone.
    pub name: Cow<'static, str>,
    /// Bytes of the level 1 data cache.
    pub l1_bytes: usize,
    /// Bytes of the level 2 cache, private to a core.
    pub l2_bytes: usize,
    /// Bytes of the level 3 cache that one core may hope for; 0 where there is none.
    pub l3_bytes: usize,
    /// Bytes a cycle that one core reads from level 2, with prefetching.
    pub l2_bytes_per_cycle: f64,
    /// The same from level 3; that of memory where there is none.
    pub l3_bytes_per_cycle: f64,
    /// The same from memory.
    pub memory_bytes_per_cycle: f64,
    /// Multiply-adds of registers that a core begins in a cycle.
    pub fmas_per_cycle: f64,
    /// Cycles until the sum of a multiply-add can be added to.
    pub fma_latency_cycles: f64,
    /// Loads of registers a cycle.
    pub loads_per_cycle: f64,
    /// Cycles of a nanosecond. It turns estimates into nanoseconds, those of all candidates
    /// alike. Runs that are estimated at a few microseconds stay on one thread.
    pub clock_ghz: f64,
    isa: Isa,
    prices: &'static Prices,
}

impl Machine {
    /// The same machine with the kernels of another instruction set, and with their prices.
    #[must_use]
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, prices: Prices::of(isa), ..self }
    }

    /// Bytes of the level 2 cache that blocks are fractions of: not more than were measured to
    /// gain. (A Xeon with 2 MiB was slower with larger slabs.)
    pub(crate) fn block_l2_bytes(&self) -> usize {
        self.l2_bytes.min(MOST_BLOCK_L2_BYTES)
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What single steps of work cost.
    pub(crate) fn prices(&self) -> &'static Prices {
        self.prices
    }

    /// Why no plan can be made for it: a value that no machine has.
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

/// Bytes of the caches of levels 1 and 2: with less, blocks that are fractions of them would be
/// empty; more exceeds the numbers of 32-bit hosts.
const LEAST_BYTES: usize = 4 << 10;
const MOST_BYTES: usize = 1 << 30;
/// Bytes of level 2 that blocks are made for, at the most.
const MOST_BLOCK_L2_BYTES: usize = 1 << 20;
/// Rates, latency and clock: estimates stay finite, and whole numbers of bytes fit.
const LEAST_RATE: f64 = 0.001;
const MOST_RATE: f64 = 1000.0;

/// What estimates have in common.
impl Machine {
    /// To fetch `read` bytes of weights that take `all` bytes: nothing where the L2 cache keeps
    /// them.
    pub(crate) fn fetch_weights(&self, read: f64, all: f64) -> Work {
        let is_resident = all <= self.l2_bytes as f64 * self.prices.l2_share;
        Work::of(Kind::Fetches, if is_resident { 0.0 } else { read * self.cycles_beyond_l2(all) })
    }

    /// Cycles to read a byte that the L2 cache does not have, of `resident` bytes that are used
    /// again and again: as much as the L3 cache keeps of them is there.
    pub(crate) fn cycles_beyond_l2(&self, resident: f64) -> f64 {
        let kept = (self.l3_kept_bytes() / resident).min(1.0);
        kept / self.l3_bytes_per_cycle + (1.0 - kept) / self.memory_bytes_per_cycle
    }

    /// What the cost of weights of `bytes` that take `packed` bytes is multiplied by:
    /// `far_weights` where packing drives them out of the L3 cache.
    pub(crate) fn far_weights(&self, bytes: usize, packed: usize) -> f64 {
        let kept = self.l3_kept_bytes();
        if packed as f64 > kept && bytes as f64 <= kept { self.prices.far_weights } else { 1.0 }
    }

    /// Bytes that the L3 cache keeps of whatever exceeds it.
    fn l3_kept_bytes(&self) -> f64 {
        self.l3_bytes as f64 * self.prices.l3_share
    }

    /// How much longer arithmetic takes on shifted views in tiles of `mr` rows. `is_shifted` says
    /// that taps are shifts of one another's views, and that there are more steps than stores
    /// hide.
    pub(crate) fn shifted_views(&self, mr: usize, is_shifted: bool) -> f64 {
        match mr {
            0..=2 => self.prices.shifted_two_rows,
            3 | 4 => self.prices.shifted_four_rows,
            _ if is_shifted => self.prices.shifted_taps,
            _ => self.prices.shifted_rows,
        }
    }

    /// Estimated cycles of one step of k: the multiply-adds and loads that a core begins in a
    /// cycle, and at least as many multiply-adds in flight as their latency asks for.
    pub(crate) fn tile_cycles(&self, fmas: usize, loads: usize) -> f64 {
        let fma = fmas as f64 / self.fmas_per_cycle;
        // The loads and the offset table's.
        let loads = (loads + 1) as f64 / self.loads_per_cycle * self.prices.load_slots;
        fma.max(loads).max(self.fma_latency_cycles) + self.prices.step_cycles
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, isa, l2_bytes_per_cycle: l2, l3_bytes_per_cycle: l3, memory_bytes_per_cycle: memory, .. } =
            self;
        write!(f, "{name}: {isa}, L1 {}, L2 {}, ", Bytes(self.l1_bytes), Bytes(self.l2_bytes))?;
        match self.l3_bytes {
            0 => write!(f, "no L3, {l2}/{memory} bytes a cycle")?,
            bytes => write!(f, "L3 {}, {l2}/{l3}/{memory} bytes a cycle", Bytes(bytes))?,
        }
        write!(f, ", {:.1} GHz", self.clock_ghz)
    }
}

/// A number of bytes, in the largest unit that it is a whole number of.
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
    fn an_isa_brings_its_prices() {
        let (wide, narrow) = (Machine::zen5(), Machine::zen5().with_isa(Isa::Avx2));
        assert_eq!((wide.isa(), narrow.isa()), (Isa::Avx512, Isa::Avx2));
        assert_ne!(wide.prices(), narrow.prices());
        assert_eq!(narrow.with_isa(Isa::Avx512), wide);
    }

    #[test]
    fn without_a_level_3_what_leaves_level_2_is_in_memory() {
        let machine = Machine::no_l3();
        assert_eq!(machine.cycles_beyond_l2(1e6), 1.0 / machine.memory_bytes_per_cycle);
        assert_eq!(machine.to_string(), "no-l3: avx2, L1 32 KiB, L2 512 KiB, no L3, 26/9 bytes a cycle, 4.0 GHz");
    }
}
