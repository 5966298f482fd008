//! How a plan's tasks are executed: threads as a value, caller-owned workspace, disjoint parts of
//! the output.

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

/// Share number `index` of `0..len` in `count` shares, whose lengths differ by one at most. The
/// longer ones come first: a thread that has one more of them last would hold others up.
pub(crate) fn share(len: usize, count: usize, index: usize) -> Range<usize> {
    let (each, more) = (len / count, len % count);
    let start = |index: usize| index * each + index.min(more);
    start(index)..start(index + 1)
}

/// The tasks of thread number `index` of `threads`, of `tasks` in all. As [`share`], but the last
/// threads have one more: the last task is often a short one.
pub(crate) fn tasks_of_thread(tasks: usize, threads: usize, index: usize) -> Range<usize> {
    let (each, more) = (tasks / threads, tasks % threads);
    let start = |index: usize| index * each + index.saturating_sub(threads - more);
    start(index)..start(index + 1)
}
