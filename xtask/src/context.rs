//! What all steps share.

use std::cell::{Cell, RefCell};
use std::env;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use xshell::{Cmd, Shell};

/// The shell that runs commands in the root of the repository, and what is said at the end.
pub(crate) struct Context {
    pub(crate) sh: Shell,
    /// Cargo's folder of built files.
    pub(crate) target: PathBuf,
    skipped: RefCell<Vec<String>>,
    waited: Cell<Duration>,
}

impl Context {
    pub(crate) fn new() -> Result<Self> {
        for variable in ["CONVOKE_ISA", "CONVOKE_MAX_ISA", "CONVOKE_BENCH"] {
            ensure!(env::var_os(variable).is_none(), "{variable} is set, which would leave kernels untested");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the root of the repository")?;
        let sh = Shell::new()?;
        sh.change_dir(root);
        // As the workspace's profile for tests says, for the other workspaces and profiles too:
        // incremental results and debug information take time, and nobody debugs here.
        sh.set_var("CARGO_INCREMENTAL", "0");
        for profile in ["DEV", "RELEASE", "BENCH"] {
            sh.set_var(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
        }
        let target = root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
        Ok(Self { sh, target, skipped: RefCell::default(), waited: Cell::default() })
    }

    /// Runs a command that mostly waits for the network, and returns whether it succeeded. The end of
    /// the run says how long all of them took.
    pub(crate) fn network(&self, command: &Cmd<'_>) -> bool {
        let begin = Instant::now();
        let succeeded = command.run().is_ok();
        self.waited.set(self.waited.get() + begin.elapsed());
        succeeded
    }

    /// Says what is not checked here. The end of the run repeats it.
    pub(crate) fn skip(&self, what: &str) {
        println!("skipped: {what}");
        self.skipped.borrow_mut().push(what.to_owned());
    }

    /// As [`skip`](Self::skip), unless something can be had.
    pub(crate) fn or_skip(&self, can_be_had: bool, what: &str) -> bool {
        if !can_be_had {
            self.skip(what);
        }
        can_be_had
    }

    pub(crate) fn skipped(&self) -> Vec<String> {
        self.skipped.borrow().clone()
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited.get()
    }
}

/// Whether a command succeeds, without its output.
pub(crate) fn succeeds(command: Cmd<'_>) -> bool {
    command.quiet().ignore_stdout().ignore_stderr().run().is_ok()
}

/// Seconds of the CPU that all commands took so far; 0 where the system does not count them so.
#[cfg(unix)]
pub(crate) fn cpu_seconds() -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.user_time().tv_sec() + usage.system_time().tv_sec())
}

/// Seconds of the CPU that all commands took so far; 0 where the system does not count them so.
#[cfg(not(unix))]
pub(crate) fn cpu_seconds() -> i64 {
    0
}
