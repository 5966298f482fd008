//! The native part of the Python package `convoke`: plans and packed weights on numpy arrays.
//!
//! It has no Rust interface. What Python sees is `python/convoke`, which turns keyword arguments
//! into a node's attributes and calls this module.
//!
//! * [`planner`](mod@planner): a planner, and attributes from Python values.
//! * [`plan`](mod@plan): a plan and packed weights of any element type.
//! * [`quantised`](mod@quantised): the same of bytes.
//! * [`arrays`](mod@arrays): what is asked of an array before its elements are used.
//! * [`threads`](mod@threads): pools of threads, and scratch memory.
//! * [`integers`](mod@integers): integers, which have no limit in Python.
//! * [`errors`](mod@errors): the crate's errors as Python's exceptions.
#![allow(rustdoc::private_intra_doc_links, reason = "the crate has no public items, and exports a Python module")]
#![allow(clippy::needless_pass_by_value, reason = "what is read from Python's arguments is handed over by value")]

#[cfg(panic = "abort")]
compile_error!("a panic must become an error of this interface: build with panic = \"unwind\"");

mod arrays;
mod errors;
mod integers;
mod plan;
mod planner;
mod quantised;
mod threads;

/// Plans and packed weights. The package `convoke` is its interface.
// Interpreters without Python's lock turn it on for this module: `threads.rs` relies on it.
#[pyo3::pymodule(name = "_convoke", gil_used = true)]
mod native {
    #[pymodule_export]
    use crate::plan::{PackedWeights, Plan};
    #[pymodule_export]
    use crate::planner::Planner;
    #[pymodule_export]
    use crate::quantised::{QuantisedPlan, QuantisedWeights, Scaled};

    /// The crate's version.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
