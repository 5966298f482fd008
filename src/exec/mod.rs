//! How a plan's tasks are executed: threads as a value, caller-owned workspace, disjoint parts of the output.

pub(crate) mod output;
mod threads;
mod workspace;

pub use threads::Threads;
pub use workspace::Workspace;
pub(crate) use workspace::{Arena, Line, lines_for};
