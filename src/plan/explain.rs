//! Why a plan is what it is.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::choice::Algorithm;
use crate::exec::Line;
use crate::lower::contract::Recipe;
use crate::machine::Machine;

/// What the planner picked, and what it decided on each other candidate. `Display` prints it as a
/// short text.
#[derive(Debug, Clone)]
pub struct Explanation {
    pub(crate) layer: String,
    /// Which taps are computed, where not all are.
    pub(crate) taps: Option<String>,
    pub(crate) picked: Algorithm,
    /// Its estimated time on one core, in nanoseconds.
    pub(crate) cost: f64,
    pub(crate) recipe: Recipe,
    pub(crate) machine: Machine,
    pub(crate) threads: usize,
    pub(crate) packed_bytes: usize,
    pub(crate) verdicts: Vec<Verdict>,
}

/// The planner's word on one candidate.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The candidate.
    pub algorithm: Algorithm,
    /// Estimated time on one core, in nanoseconds; none if it was rejected.
    pub cost: Option<f64>,
    /// Why it was rejected, or not picked; empty for the pick.
    pub reason: String,
}

impl Explanation {
    /// The algorithm that was picked.
    #[must_use]
    pub fn picked(&self) -> Algorithm {
        self.picked
    }

    /// The pick's estimated time on one core, in nanoseconds. It only orders the candidates of a
    /// layer.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// The pick's tiles and blocking, in a line for a reader.
    #[must_use]
    pub fn details(&self) -> &str {
        &self.recipe.details
    }

    /// The name of the micro-kernel that does most of the work.
    #[must_use]
    pub fn kernel(&self) -> &str {
        self.recipe.kernel
    }

    /// How weights are packed, in words: tiles and blocks, as far as the packed values depend on
    /// them.
    #[must_use]
    pub fn layout(&self) -> String {
        self.recipe.layout.to_string()
    }

    /// What a thread's share of the workspace is for: a name and a number of bytes for each piece,
    /// in words.
    #[must_use]
    pub fn scratch(&self) -> String {
        self.recipe.scratch.to_string()
    }

    /// What the estimated time consists of, in words.
    #[must_use]
    pub fn work(&self) -> String {
        self.recipe.work.to_string()
    }

    /// Which taps of the kernel are computed, where not all are: the others see padding alone.
    #[must_use]
    pub fn taps(&self) -> Option<&str> {
        self.taps.as_deref()
    }

    /// The machine that the plan was made for.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Threads that the plan was made for.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Tasks that a run is split into.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.recipe.tasks
    }

    /// Bytes of workspace for all threads.
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

/// An estimate in nanoseconds, printed with some digits whatever its size.
pub(super) struct Time(pub(super) f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1e4 { write!(f, "{:.0} ns", self.0) } else { write!(f, "{:.0} us", self.0 / 1e3) }
    }
}
