//! The tests of convoke through its public API, one module for each thing that is checked.
//!
//! One program: each one that plans layers compiles every lowering for every element type anew,
//! which takes the compiler longer than the tests take to run. `tests/memory.rs` and
//! `tests/threads.rs` are programs of their own, because they replace the allocator.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "rayon")]
mod determinism;
mod errors;
mod errors_run;
mod isa_coverage;
mod lowerings;
mod machines;
mod numerics;
mod onnx_node;
mod padding;
mod processes;
mod regressions;
mod spec;
mod transposed;
#[cfg(feature = "std")]
mod tuning;
mod winograd;
