//! How a plan's tasks are executed: threads as a value, caller-owned workspace, disjoint parts of the output.

use core::ops::Range;

pub(crate) mod output;
mod threads;
mod workspace;

pub use threads::Threads;
pub use workspace::Workspace;
pub(crate) use workspace::{Arena, Line, lines_for, reserved};

/// Share number `index` of `0..len` in `count` shares, whose lengths differ by one at the most. The longer ones come last: of tasks, the last one is often shorter
/// than the others.
pub(crate) fn share(len: usize, count: usize, index: usize) -> Range<usize> {
    let (each, more) = (len / count, len % count);
    let start = |index: usize| index * each + index.saturating_sub(count - more);
    start(index)..start(index + 1)
}
