//! Ctrl-C: the first one ends a long measurement after the layer at hand, and what was measured is kept; the second ends the program.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit status of a program that was interrupted, as shells have it: 128 + SIGINT.
pub(crate) const STATUS: u8 = 130;

/// From here on, [`requested`] tells of Ctrl-C.
pub(crate) fn watch() -> Result<()> {
    let handler = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            process::exit(STATUS.into());
        }
        eprintln!("\ninterrupted: ending with what was measured (again to stop at once)");
    };
    ctrlc::set_handler(handler).context("no handler for Ctrl-C")
}

/// Whether Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
