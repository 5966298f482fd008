//! Handles Ctrl-C and termination signals. The first one ends a long measurement after the
//! current run, and keeps the layers that were measured. The second one ends the program.

use std::error::Error;
use std::fmt;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit status of an interrupted program: 128 + SIGINT, as in shells.
pub(crate) const STATUS: u8 = 130;

/// Starts to watch: from here on, [`requested`] reports Ctrl-C.
pub(crate) fn watch() -> Result<()> {
    let handler = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            process::exit(STATUS.into());
        }
        eprintln!("\ninterrupted: ending with what was measured (again to stop at once)");
    };
    ctrlc::set_handler(handler).context("no handler for Ctrl-C")
}

/// The error of a measurement that Ctrl-C ended.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl Error for Interrupted {}

/// An error if Ctrl-C was pressed.
pub(crate) fn check() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}
