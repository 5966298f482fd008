//! How the tasks of a plan are executed: threads, workspace, and disjoint parts of the output.

use core::ops::Range;

#[cfg(feature = "std")]
mod job;
pub(crate) mod region;
pub(crate) mod split;
mod threads;
mod workspace;

#[cfg(feature = "std")]
pub use job::Job;
pub use threads::{Executor, Threads};
pub use workspace::Workspace;
pub(crate) use workspace::{Arena, Ledger, Line, Piece, lines_for, reserved};

/// Share `index` of `0..len` in `count` shares, whose lengths differ by at most one. The longer ones
/// come first, because a longer one at the end would delay the others.
pub(crate) fn share(len: usize, count: usize, index: usize) -> Range<usize> {
    let (each, more) = (len / count, len % count);
    let start = |index: usize| index * each + index.min(more);
    start(index)..start(index + 1)
}

/// The tasks of thread `index`. As [`share`], but the last threads have one more, because the last task
/// is often short.
pub(crate) fn tasks_of_thread(tasks: usize, threads: usize, index: usize) -> Range<usize> {
    let (each, more) = (tasks / threads, tasks % threads);
    let start = |index: usize| index * each + index.saturating_sub(threads - more);
    start(index)..start(index + 1)
}
