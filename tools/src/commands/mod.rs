//! The sub-commands, one a file.

pub(crate) mod disasm;
pub(crate) mod explain;
pub(crate) mod kernels;
pub(crate) mod onnx_test;
pub(crate) mod report;
pub(crate) mod worker;

/// What a command found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing wrong.
    Good,
    /// A result was wrong: exit status 1.
    Wrong,
}

impl Verdict {
    /// `Good` if `good`.
    pub(crate) fn from_good(good: bool) -> Self {
        if good { Self::Good } else { Self::Wrong }
    }
}

/// Whether an error says that the algorithm that was asked for does not accept the layer.
fn is_rejection(error: &anyhow::Error) -> bool {
    error.downcast_ref::<convoke::Error>().is_some_and(|e| e.kind() == convoke::ErrorKind::Unavailable)
}
