//! The sub-commands, one in each file.

pub(crate) mod disasm;
pub(crate) mod explain;
pub(crate) mod kernels;
pub(crate) mod onnx_test;
pub(crate) mod plans;
pub(crate) mod profile;
pub(crate) mod regret;
pub(crate) mod report;
pub(crate) mod sequence;
pub(crate) mod worker;

use anyhow::{Result, ensure};
use convoke_tools::shapes::Layer;

use crate::machine;
use crate::options::BAD;
use crate::output::text::{line_width, wrapped};
use crate::session::Failure;

/// The result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing was wrong.
    Good,
    /// A result was wrong: exit status 1.
    Wrong,
    /// Some layers could not be run: exit status 2.
    Incomplete,
    /// The user ended it with Ctrl-C: exit status 130.
    Interrupted,
}

impl Verdict {
    /// `Good` if `good`.
    pub(crate) fn from_good(good: bool) -> Self {
        if good { Self::Good } else { Self::Wrong }
    }

    /// The verdict on many layers, from what went wrong: an interruption, layers that failed, and
    /// wrong results.
    pub(crate) fn of_layers(interrupted: bool, failed: &[Failure], right: bool) -> Self {
        match () {
            () if interrupted => Self::Interrupted,
            () if !right => Self::Wrong,
            () if !failed.is_empty() => Self::Incomplete,
            () => Self::Good,
        }
    }
}

/// Keeps the layers whose name has one of these parts, or all layers if there are none.
///
/// # Errors
/// A part that no layer's name has.
fn retain_named(layers: &mut Vec<Layer>, parts: &[String]) -> Result<()> {
    for part in parts {
        ensure!(layers.iter().any(|layer| layer.name.contains(part)), "no layer's name contains {part:?}");
    }
    layers.retain(|layer| parts.is_empty() || parts.iter().any(|part| layer.name.contains(part)));
    Ok(())
}

/// The load of the machine when a measurement begins. It prints a warning if the load is high, or
/// if these tools are too slow themselves.
fn load_at_start() -> Option<f64> {
    warn_of_build();
    let load = machine::load();
    if let Some(warning) = load.and_then(machine::busy) {
        warn(&warning);
    }
    load
}

/// Prints a warning if these tools were built without optimisation.
fn warn_of_build() {
    if let Some(warning) = machine::unoptimised(env!("CONVOKE_TOOLS_OPT_LEVEL"), cfg!(debug_assertions)) {
        warn(&warning);
    }
}

/// Prints a warning if layers are run on more threads than there are CPUs.
fn warn_of_threads(threads: usize) {
    if let Some(warning) = machine::crowded(threads) {
        warn(&warning);
    }
}

/// Prints a warning on standard error.
pub(crate) fn warn(warning: &str) {
    anstream::eprintln!("{}", wrapped(&format!("{BAD}warning:{BAD:#} {warning}"), line_width(false)));
}

/// Whether the error says that a forced algorithm does not accept the layer.
fn is_rejection(error: &anyhow::Error) -> bool {
    error.downcast_ref::<convoke::Error>().is_some_and(|e| e.kind() == convoke::ErrorKind::Unavailable)
}
