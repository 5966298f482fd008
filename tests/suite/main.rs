//! The tests of convoke through its public API, with one module for each thing that is checked.
//!
//! They are one program, which is linked once, and whose tests share all cores to the end.
//! `tests/memory.rs` and `tests/threads.rs` are programs of their own, because they replace the
//! allocator.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod accuracy;
#[cfg(feature = "ndarray")]
mod arrays;
mod chain;
#[cfg(feature = "rayon")]
mod determinism;
mod errors;
mod errors_run;
mod explanations;
mod forged;
mod images;
mod isa_coverage;
mod layouts;
mod limits;
mod lowerings;
mod machines;
mod messages;
mod numerics;
mod onnx_node;
mod packed;
mod padding;
mod plan_cache;
mod plans;
mod processes;
mod quantised;
mod regressions;
mod spec;
mod tiny;
mod transposed;
#[cfg(feature = "std")]
mod tuning;
mod winograd;
