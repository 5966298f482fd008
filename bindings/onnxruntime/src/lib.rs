//! An execution provider for onnxruntime: the nodes Conv and ConvTranspose of any model run on
//! [convoke], with nodes around them.
//!
//! It is a library that onnxruntime loads
//! (`register_execution_provider_library`), and has no Rust interface. The README says how to use
//! it.
//!
//! * [`provider`](mod@provider): what onnxruntime calls.
//! * [`claims`](mod@claims): which nodes are convoke's; [`fusion`](mod@fusion): which of them become
//!   one layer; [`activation`](mod@activation): which of them compute an activation.
//! * [`layer`](mod@layer): how a layer runs; [`weights`](mod@weights): how it is packed;
//!   [`sum`](mod@sum): a residual of another shape.
//! * [`concat`](mod@concat): layers that write into one tensor; [`lrn`](mod@lrn): a node that is slow
//!   otherwise.
//! * [`region`](mod@region): layers and what stands between them, with channels last.
//! * [`run`](mod@run), [`pool`](mod@pool): inputs, output and threads of a run.
//! * [`graph`](mod@graph), [`api`](mod@api), [`failure`](mod@failure), [`pointers`](mod@pointers),
//!   [`abi`](mod@abi): onnxruntime's C interface.
#![allow(rustdoc::private_intra_doc_links, reason = "the crate has no public items, and exports two functions of C")]

#[cfg(panic = "abort")]
compile_error!("a panic must become an error of this interface: build with panic = \"unwind\"");

mod abi;
mod activation;
mod api;
mod claims;
mod concat;
mod failure;
mod fusion;
mod graph;
mod layer;
mod lrn;
mod options;
mod pointers;
mod pool;
mod provider;
mod region;
mod run;
mod session;
mod sum;
mod weights;
