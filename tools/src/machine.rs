//! What figures were measured on: the CPU, the versions, the day, and the measured limits.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use convoke_tools::data::Numbers;
use convoke_tools::limits::{Caches, Level, Roof};
use serde::Serialize;
use sysinfo::{MemoryRefreshKind, System};

use crate::cpu;
use crate::output::text::{bytes, wrapped};

/// Where, when and with what something was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The CPU's name, and the numbers that tell apart CPUs of the same name.
    pub(crate) cpu: String,
    /// Threads that the system offers.
    pub(crate) cores: usize,
    /// The time in UTC, such as `2026-11-21T14:00:00Z`.
    pub(crate) date: String,
    pub(crate) os: String,
    pub(crate) convoke: String,
    /// The commit that was built, if it is known.
    pub(crate) commit: Option<String>,
    pub(crate) rustc: String,
    pub(crate) dtype: String,
    pub(crate) threads: usize,
    /// Whether the caches were emptied before each run, except for X.
    pub(crate) cold: bool,
    pub(crate) caches: CacheSizes,
    /// The load average of the minute before the measurement began, if the system reports it.
    pub(crate) load: Option<f64>,
    /// GFLOP/s of all threads together, by instruction set.
    pub(crate) fma_peak: BTreeMap<String, f64>,
    /// GB/s of all threads together, by instruction set and level.
    pub(crate) read_bandwidth: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Sizes in bytes: the data caches of one core, and the last cache, which all cores share.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CacheSizes {
    pub(crate) l1: usize,
    pub(crate) l2: usize,
    pub(crate) l3: usize,
    /// Whether they are common sizes, because the system reports none.
    pub(crate) assumed: bool,
}

impl Machine {
    /// This machine now, with the measured limits, and the [`load`] when the measurement began.
    pub(crate) fn new(
        numbers: impl Into<Numbers>,
        threads: usize,
        roofs: &BTreeMap<convoke::Isa, Roof>,
        load: Option<f64>,
    ) -> Self {
        let Caches { l1, l2, l3 } = Caches::of_this_machine();
        let levels = |roof: &Roof| Level::ALL.map(|level| (level.to_string(), roof.bandwidth[level as usize]));
        Self {
            cpu: cpu::name(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cores: cores(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            convoke: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("CONVOKE_TOOLS_COMMIT").map(str::to_owned),
            rustc: env!("CONVOKE_TOOLS_RUSTC").to_owned(),
            dtype: numbers.into().to_string(),
            threads,
            cold: false,
            caches: CacheSizes { l1, l2, l3, assumed: Caches::reported().is_none() },
            load,
            fma_peak: roofs.iter().map(|(isa, roof)| (isa.to_string(), roof.fma)).collect(),
            read_bandwidth: roofs.iter().map(|(isa, roof)| (isa.to_string(), levels(roof).into())).collect(),
        }
    }

    /// The limits in one line for each instruction set.
    pub(crate) fn limits(&self) -> Vec<String> {
        let line = |(isa, peak): (&String, &f64)| {
            let bandwidth = &self.read_bandwidth[isa];
            let levels = Level::ALL.map(|level| format!("{level} {:.0}", bandwidth[&level.to_string()]));
            format!("{isa}: FMA peak {peak:.0} GFLOP/s, read bandwidth {} GB/s", levels.join(", "))
        };
        self.fma_peak.iter().map(line).collect()
    }

    /// The headline, the limits and what this CPU or this build lacks, for the top of a table in lines of `width`
    /// characters.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let missing = convoke::Isa::detect().missing_above();
        let missing = missing.map(|(isa, absence)| format!("without {isa}: {absence}"));
        self.headline().into_iter().chain(self.limits()).chain(missing).map(|line| wrapped(&line, width)).collect()
    }

    /// The machine, the setting and the versions of a measurement, one in each line.
    pub(crate) fn headline(&self) -> [String; 3] {
        let isas: Vec<_> = self.fma_peak.keys().map(String::as_str).collect();
        self.headline_for(&isas, self.threads..=self.threads)
    }

    /// The same for a comparison of several instruction sets or numbers of threads.
    pub(crate) fn headline_for(&self, isas: &[&str], threads: RangeInclusive<usize>) -> [String; 3] {
        [self.hardware(), self.setting(isas, threads), self.versions()]
    }

    fn hardware(&self) -> String {
        let Self { cpu, cores, caches, .. } = self;
        let [l1, l2, l3] = [caches.l1, caches.l2, caches.l3].map(bytes);
        let known = if caches.assumed { "caches taken to be" } else { "caches" };
        let s = if *cores == 1 { "" } else { "s" };
        format!("{cpu}, {cores} CPU{s}, {known} L1d {l1}, L2 {l2}, L3 {l3}")
    }

    fn setting(&self, isas: &[&str], threads: RangeInclusive<usize>) -> String {
        let threads = match (*threads.start(), *threads.end()) {
            (1, 1) => "1 thread".to_owned(),
            (least, most) if least == most => format!("{most} threads"),
            (least, most) => format!("{least} to {most} threads"),
        };
        let load = self.load.map(|load| format!("load average {load:.2} at the start"));
        let isas = (!isas.is_empty()).then(|| isas.join(", "));
        let cold = self.cold.then(|| "all but X from memory in each run".to_owned());
        [Some(self.dtype.clone()), isas, Some(threads), cold, load].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn versions(&self) -> String {
        let Self { convoke, rustc, os, date, .. } = self;
        let commit = self.commit.as_ref().map(|commit| format!(" (commit {commit})")).unwrap_or_default();
        format!("convoke {convoke}{commit}, {rustc}, {os}, {date}")
    }
}

/// The load average of the last minute, if the system reports it.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The text of a warning if other programs use so much of the machine that figures would be
/// wrong.
pub(crate) fn busy(load: f64) -> Option<String> {
    let cores = cores();
    (load > cores as f64 / 2.0).then(|| {
        format!("the machine is busy: its load average is {load:.2}, its CPUs are {cores}; times may be too long")
    })
}

/// The text of a warning if times and limits are those of the build, and not of the machine.
pub(crate) fn unoptimised(opt_level: &str, has_assertions: bool) -> Option<String> {
    (has_assertions || !matches!(opt_level, "2" | "3")).then(|| {
        let assertions = if has_assertions { " with debug assertions" } else { "" };
        format!("these tools were built at opt-level {opt_level}{assertions}; times and limits mean nothing; build them with --release")
    })
}

/// The text of a warning if there are more threads than CPUs, so that they wait for each other.
pub(crate) fn crowded(threads: usize) -> Option<String> {
    let cores = cores();
    (threads > cores).then(|| {
        let cpus = if cores == 1 { "CPU" } else { "CPUs" };
        format!("{threads} threads on {cores} {cpus} wait for each other; times will be too long")
    })
}

/// The number of threads that the system offers.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that can be allocated before the system has to swap or to end programs, within the
/// limits of a container. If the system reports nothing, it is the largest number.
pub(crate) fn free_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    if system.total_memory() == 0 {
        return u64::MAX;
    }
    // The container's own count of free memory is not used, because it counts cached files as
    // used.
    let container = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    system.available_memory().min(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_without_optimisation_are_warned_of() {
        assert_eq!(unoptimised("3", false), None);
        assert!(unoptimised("3", true).unwrap().contains("opt-level 3 with debug assertions"));
        assert!(unoptimised("0", false).unwrap().contains("opt-level 0; times"));
    }

    #[test]
    fn more_threads_than_cpus_are_too_many() {
        assert_eq!(crowded(cores()), None);
        assert!(crowded(cores() + 1).unwrap().starts_with(&format!("{} threads on ", cores() + 1)));
    }

    #[test]
    fn more_than_half_of_the_machine_is_busy() {
        let cores = cores() as f64;
        assert_eq!(busy(cores / 2.0), None);
        assert!(busy(cores / 2.0 + 0.1).unwrap().starts_with("the machine is busy"));
    }
}
