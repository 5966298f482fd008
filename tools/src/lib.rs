//! What convoke's tools, tests and benches share.
//!
//! * [`shapes`]: the layers of published networks (`benches/shapes/*.csv`);
//! * [`onnx`]: ONNX test folders, read with prost;
//! * [`files`]: files that users name, up to a size;
//! * [`data`]: deterministic operands of any element type;
//! * [`check`]: a result against the reference, on a sample of its elements;
//! * [`timing`]: repeated runs, their minimum and median;
//! * [`peak`]: each micro-kernel's rate from the L1 cache;
//! * [`kernels`]: the table of micro-kernels;
//! * [`hard`]: layers at which plans and kernels go wrong first;
//! * [`plans`]: what is planned for each layer, as text to be compared;
//! * [`realistic`]: random layers of the sizes that networks have;
//! * [`limits`]: what bounds a layer, the FMA peak or a level's bandwidth: the yardstick of the
//!   reports.

#![forbid(unsafe_code)]

pub mod check;
pub mod data;
pub mod files;
pub mod hard;
pub mod kernels;
pub mod limits;
pub mod onnx;
pub mod peak;
pub mod plans;
pub mod realistic;
pub mod shapes;
pub mod timing;

use convoke::Algorithm;

/// The algorithm of a name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn named(name: &str) -> Algorithm {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Whether an algorithm multiplies by another crate.
#[must_use]
pub fn has_foreign_blas(algorithm: Algorithm) -> bool {
    ["gemm", "matrixmultiply"].iter().any(|blas| algorithm.name().ends_with(&format!(":{blas}")))
}
