//! The explanation of a plan: what was picked, and why not the others.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::choice::Algorithm;
use crate::conv::contract::Recipe;
use crate::exec::Line;
use crate::machine::Machine;
use crate::units::{ByteCount, Count, Time};

/// What the planner picked, and its verdict on each candidate.
///
/// `{}` prints two lines: the layer, then the pick with its estimated time and its workspace.
/// `{:#}` prints the whole: blocking, what this CPU or this build lacks for a better instruction set, memory, the
/// machine, the parts of the estimate, and for each other candidate of the operator why it was not picked.
///
/// ```
/// use convoke::{Conv, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([64, 64, 3, 3]).pads([1; 4]), &[1, 64, 56, 56])?;
/// let (short, whole) = (format!("{}", plan.explain()), format!("{:#}", plan.explain()));
/// assert_eq!(short.lines().count(), 2);
/// assert!(short.starts_with("Conv float: X [1, 64, 56, 56], W [64, 64, 3, 3], group 1, Y [1, 64, 56, 56]\npicked "));
/// assert!(whole.starts_with(&short) && whole.contains("\n  not naive "));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Explanation {
    pub(super) layer: String,
    pub(super) macs: u128,
    /// Which taps are computed, unless all are.
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
///
/// ```
/// use convoke::{Conv, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([64, 64, 3, 3]), &[1, 64, 56, 56])?;
/// let verdict = plan.explain().verdicts().iter().find(|v| v.algorithm.name() == "depthwise").unwrap();
/// assert_eq!(verdict.cost, None);
/// assert!(verdict.reason.contains("64 input channels"), "{}", verdict.reason);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The candidate.
    pub algorithm: Algorithm,
    /// Estimated time on one core, in nanoseconds; none if the candidate was rejected.
    pub cost: Option<f64>,
    /// Why the candidate was rejected or not picked; empty for the pick.
    pub reason: String,
}

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

    /// The candidates for the operator in the planner's order, the pick among them.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.layer)?;
        write!(
            f,
            "picked {} ({}), about {} on one core, workspace {}",
            self.picked,
            self.machine.isa(),
            Time(self.cost),
            ByteCount(self.workspace_bytes())
        )?;
        if f.alternate() { self.write_rest(f) } else { Ok(()) }
    }
}

impl Explanation {
    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recipe = &self.recipe;
        write!(f, "\n  {}", recipe.details)?;
        if let Some(taps) = &self.taps {
            write!(f, "\n  {taps}")?;
        }
        write!(
            f,
            "\n  ISA {}, kernel {}, {} for {}",
            self.machine.isa(),
            recipe.kernel,
            Count(recipe.tasks, "task"),
            Count(self.threads, "thread")
        )?;
        for (isa, absence) in self.machine.isa().missing_above() {
            write!(f, "\n  without {isa}: {absence}")?;
        }
        write!(f, "\n  packed weights {}, {}", ByteCount(self.packed_bytes), recipe.layout)?;
        write!(f, "\n  workspace of a thread: {}", recipe.scratch)?;
        write!(f, "\n  machine {}", self.machine)?;
        write!(f, "\n  {} multiply-adds; the estimate: {}", self.macs, recipe.work)?;
        for verdict in self.verdicts.iter().filter(|verdict| verdict.algorithm != self.picked) {
            write!(f, "\n  not {:<22} {}", verdict.algorithm.name(), verdict.reason)?;
        }
        Ok(())
    }
}
