//! The estimated work of a layer with one algorithm. Lowerings count it, and the prices are
//! applied here.
//!
//! A lowering counts what it does: calls, elements that it copies, vectors that it stores.
//! [`Item::times`] turns a count into cycles, by [the prices](super::prices).

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Mul};

use super::Machine;
use super::prices::{Item, Kind, L2_SHARE, NOT_HIDDEN};

impl Item {
    /// The work of `count` of it.
    #[inline]
    pub(crate) fn times(self, count: f64) -> Work {
        Work::of(self.0, count * self.1)
    }
}

impl Kind {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Arithmetic, "arithmetic"),
        (Self::Copies, "copies"),
        (Self::Stores, "stores"),
        (Self::Calls, "calls"),
        (Self::Fetches, "fetches"),
    ];
}

/// Estimated cycles on one core, by kind. Works can be added, and multiplied by how often they
/// are done.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work([f64; Kind::ALL.len()]);

impl Work {
    /// A work of `cycles` of one kind.
    #[inline]
    pub(crate) fn of(kind: Kind, cycles: f64) -> Self {
        let mut work = Self::default();
        work.0[kind as usize] = cycles;
        work
    }

    /// The cycles of all kinds together.
    #[inline]
    pub(crate) fn cycles(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl Add for Work {
    type Output = Self;

    #[inline]
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for Work {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        for (cycles, other) in self.0.iter_mut().zip(other.0) {
            *cycles += other;
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), Add::add)
    }
}

impl Mul<f64> for Work {
    type Output = Self;

    #[inline]
    fn mul(self, times: f64) -> Self {
        Self(self.0.map(|cycles| cycles * times))
    }
}

/// Prints the share of each kind that has at least one percent.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, name) in Kind::ALL {
            let percent = 100.0 * self.0[kind as usize] / self.cycles();
            if percent >= 1.0 {
                write!(f, "{separator}{name} {percent:.0} %")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

impl Machine {
    /// The work of two works that are done at the same time. The longer one does not hide all of
    /// the shorter one.
    pub(crate) fn overlapped(&self, one: Work, other: Work) -> Work {
        let (longer, shorter) = if one.cycles() >= other.cycles() { (one, other) } else { (other, one) };
        longer + shorter * NOT_HIDDEN
    }

    /// The work to fetch weights: `read` bytes in all, of weights that take `all` bytes. It is
    /// nothing if the L2 cache keeps the weights.
    pub(crate) fn fetch_weights(&self, read: f64, all: f64) -> Work {
        let is_resident = all <= self.l2_bytes as f64 * L2_SHARE;
        Work::of(Kind::Fetches, if is_resident { 0.0 } else { read * self.cycles_beyond_l2(all) })
    }

    /// Cycles to fetch `bytes` bytes of data that are used again, so far as they have left the L2
    /// cache. `resident` bytes compete for the cache; those that exceed it do not all leave it.
    pub(crate) fn refetch_cycles(&self, bytes: f64, resident: f64) -> f64 {
        let missing = (resident / self.l2_bytes as f64 - L2_SHARE) / L2_SHARE;
        missing.clamp(0.0, 1.0) * bytes * self.cycles_beyond_l2(resident)
    }

    /// Nanoseconds that a work takes on one core.
    pub(crate) fn nanoseconds(&self, work: &Work) -> f64 {
        work.cycles() / self.clock_ghz
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn counts_are_priced_by_the_machine_and_add_up_by_kind() {
        let machine = Machine::zen5();
        let call = Item::KERNEL_CALLS.1;
        let work = Item::ARITHMETIC_CYCLES.times(1e3) + Item::KERNEL_CALLS.times(3.0) * 2.0;
        assert_eq!(work.cycles(), 1e3 + 6.0 * call);
        assert_eq!(machine.nanoseconds(&work), work.cycles() / machine.clock_ghz);
        assert_eq!(work.to_string(), "arithmetic 94 %, calls 6 %");
    }

    #[test]
    fn of_two_works_at_once_the_longer_hides_most_of_the_shorter() {
        let machine = Machine::zen5();
        let (one, other) = (Work::of(Kind::Arithmetic, 100.0), Work::of(Kind::Fetches, 40.0));
        let both = machine.overlapped(one, other);
        assert_eq!(both.cycles(), 100.0 + 40.0 * NOT_HIDDEN);
        assert_eq!(both, machine.overlapped(other, one));
    }
}
