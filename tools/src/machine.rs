//! What figures hold for: the CPU, the versions, the day, and the measured limits.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use convoke_tools::limits::{Level, Roof};
use serde::Serialize;
use sysinfo::{MemoryRefreshKind, System};

/// Where, when and with what something was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Threads that the system offers.
    pub(crate) cores: usize,
    /// UTC, as in `2026-11-21T14:00:00Z`.
    pub(crate) date: String,
    pub(crate) os: String,
    pub(crate) convoke: String,
    pub(crate) rustc: String,
    pub(crate) dtype: String,
    pub(crate) threads: usize,
    pub(crate) caches: CacheSizes,
    /// GFLOP/s of all threads together, by instruction set.
    pub(crate) fma_peak: BTreeMap<String, f64>,
    /// GB/s of all threads together, by instruction set and level.
    pub(crate) read_bandwidth: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Bytes: data caches of one core, and the last one of all cores.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CacheSizes {
    pub(crate) l1: usize,
    pub(crate) l2: usize,
    pub(crate) l3: usize,
}

impl Machine {
    /// This machine, now, with the limits that were measured.
    pub(crate) fn new(dtype: &str, threads: usize, roofs: &BTreeMap<convoke::Isa, Roof>) -> Self {
        let caches = convoke_tools::limits::Caches::of_this_machine();
        let levels = |roof: &Roof| Level::ALL.map(|level| (level.to_string(), roof.bandwidth[level as usize]));
        Self {
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            convoke: env!("CARGO_PKG_VERSION").to_owned(),
            rustc: env!("CONVOKE_TOOLS_RUSTC").to_owned(),
            dtype: dtype.to_owned(),
            threads,
            caches: CacheSizes { l1: caches.l1, l2: caches.l2, l3: caches.l3 },
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

    /// What was measured on what, in one line.
    pub(crate) fn headline(&self) -> String {
        self.headline_for(self.threads..=self.threads)
    }

    /// The same for what compares several numbers of threads.
    pub(crate) fn headline_for(&self, threads: RangeInclusive<usize>) -> String {
        let Self { cpu, dtype, .. } = self;
        let threads = match (*threads.start(), *threads.end()) {
            (1, 1) => "1 thread".to_owned(),
            (least, most) if least == most => format!("{most} threads"),
            (least, most) => format!("{least} to {most} threads"),
        };
        format!("{cpu}, {dtype}, {threads}")
    }

    /// Versions and day, in one line.
    pub(crate) fn versions(&self) -> String {
        let Self { convoke, rustc, os, date, .. } = self;
        format!("convoke {convoke}, {rustc}, {os}, {date}")
    }
}

/// Bytes that can be allocated before the system has to swap or to end programs, within the limits of a container; all there can be where the system
/// does not tell.
pub(crate) fn free_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    if system.total_memory() == 0 {
        return u64::MAX;
    }
    // Not what the container's own count says is free: that takes files that are only cached for used.
    let container = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    system.available_memory().min(container)
}

/// The CPU's name, where the system tells.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
