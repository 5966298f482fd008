//! What the fuzz targets check. Each module has one function that takes the fuzzer's bytes. It
//! panics if the crate breaks a promise; sanitizers see the rest.
//!
//! The checks are here and not in the targets, so that the lowerings are compiled once.

pub mod chain;
pub mod forged;
pub mod geometry;
pub mod kernels;
pub mod packed;
pub mod quantised;
pub mod run;
pub mod tuning;

mod layers;
mod reference;

use arbitrary::{Result, Unstructured};

/// Bytes that end early make a smaller case, or none.
fn with_bytes(data: &[u8], check: impl FnOnce(&mut Unstructured<'_>) -> Result<()>) {
    _ = check(&mut Unstructured::new(data));
}
