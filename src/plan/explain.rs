//! The explanation of a plan: what was picked, and why not the others.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::choice::Algorithm;
use crate::exec::Line;
use crate::lower::contract::Recipe;
use crate::machine::Machine;

/// What the planner picked, and its verdict on each candidate. `Display` prints it as a short
/// text.
#[derive(Debug, Clone)]
pub struct Explanation {
    pub(super) layer: String,
    /// Which taps are computed, if not all are.
    pub(super) taps: Option<String>,
    pub(super) picked: Algorithm,
    /// The pick's estimated time on one core, in nanoseconds.
    pub(super) cost: f64,
    pub(super) recipe: Recipe,
    pub(super) machine: Machine,
    pub(super) threads: usize,
    pub(super) packed_bytes: usize,
    pub(super) verdicts: Vec<Verdict>,
}

/// The planner's verdict on one candidate.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The candidate.
    pub algorithm: Algorithm,
    /// Estimated time on one core, in nanoseconds; none if the candidate was rejected.
    pub cost: Option<f64>,
    /// Why the candidate was rejected or not picked; empty for the pick.
    pub reason: String,
}

/// What the planner knows of a candidate.
#[derive(Debug)]
pub(super) struct Estimate {
    pub(super) algorithm: Algorithm,
    /// Estimated time on one core, in nanoseconds, or why the candidate was rejected.
    pub(super) cost: Result<f64, String>,
}

impl Explanation {
    /// The algorithm that was picked.
    #[must_use]
    pub fn picked(&self) -> Algorithm {
        self.picked
    }

    /// The pick's estimated time on one core, in nanoseconds. It is only good for comparing the
    /// candidates of one layer.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// The pick's tiles and blocking, in one line of text.
    #[must_use]
    pub fn details(&self) -> &str {
        &self.recipe.details
    }

    /// The name of the micro-kernel that does most of the work.
    #[must_use]
    pub fn kernel(&self) -> &str {
        self.recipe.kernel
    }

    /// The layout of the packed weights, as text: the tiles and blocks that the packed values
    /// depend on.
    #[must_use]
    pub fn layout(&self) -> String {
        self.recipe.layout.to_string()
    }

    /// What one thread's share of the workspace holds, as text: a name and a number of bytes for
    /// each piece.
    #[must_use]
    pub fn scratch(&self) -> String {
        self.recipe.scratch.to_string()
    }

    /// The parts of the estimated time, as text.
    #[must_use]
    pub fn work(&self) -> String {
        self.recipe.work.to_string()
    }

    /// Which taps of the kernel are computed, as text; none if all are. The others see padding
    /// alone.
    #[must_use]
    pub fn taps(&self) -> Option<&str> {
        self.taps.as_deref()
    }

    /// The machine that the plan was made for.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The number of threads that the plan was made for.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The number of tasks that a run is split into.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.recipe.tasks
    }

    /// Bytes of workspace, for all threads together.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.recipe.scratch.lines() * size_of::<Line>() * self.threads
    }

    /// Bytes of the packed weights and bias.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        self.packed_bytes
    }

    /// The candidates in the planner's order, the pick among them.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.layer)?;
        if let Some(taps) = &self.taps {
            writeln!(f, "{taps}")?;
        }
        writeln!(f, "picked {}: {}", self.picked, self.recipe.details)?;
        writeln!(
            f,
            "  ISA {}, kernel {}, {} tasks for {} threads, workspace {} bytes, packed weights {} bytes",
            self.machine.isa(),
            self.recipe.kernel,
            self.recipe.tasks,
            self.threads,
            self.workspace_bytes(),
            self.packed_bytes
        )?;
        writeln!(f, "  weights {}, scratch of a thread {}", self.recipe.layout, self.recipe.scratch)?;
        writeln!(f, "  machine {}", self.machine)?;
        writeln!(f, "  estimated at {} on one core: {}", Time(self.cost), self.recipe.work)?;
        for verdict in self.verdicts.iter().filter(|v| v.algorithm != self.picked) {
            writeln!(f, "  not {:<22} {}", verdict.algorithm.name(), verdict.reason)?;
        }
        Ok(())
    }
}

/// An estimate in nanoseconds. Long times are printed in microseconds.
pub(super) struct Time(pub(super) f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1e4 { write!(f, "{:.0} ns", self.0) } else { write!(f, "{:.0} us", self.0 / 1e3) }
    }
}
