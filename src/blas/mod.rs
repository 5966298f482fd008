//! GEMM as a service for the materialised lowerings: C = A B with constant A, which a backend may
//! pack once, a block of K at a time.

#[cfg(any(feature = "blas-gemm", feature = "blas-matrixmultiply"))]
mod foreign;
mod gemm;
mod native;

use alloc::boxed::Box;
use alloc::string::String;

use crate::choice::Blas;
use crate::element::Compute;
use crate::machine::Machine;
pub(crate) use gemm::{Blocks, Gemm, Product, Size, leading_dimension};

/// A backend for products of one size; with `layout`, one that accepts A as it was packed by a
/// backend of that [`layout`](Gemm::layout).
///
/// # Errors
/// The reason where the backend is not in this build, or cannot be had with this ISA.
pub(crate) fn backend<A: Compute>(
    blas: Blas,
    machine: &Machine,
    size: Size,
    layout: Option<usize>,
) -> Result<Box<dyn Gemm<A>>, String> {
    match blas {
        Blas::Native => native::Native::new(machine, size, layout).map(|g| Box::new(g) as Box<dyn Gemm<A>>),
        #[cfg(feature = "blas-gemm")]
        Blas::Gemm => Ok(Box::new(foreign::Foreign::gemm(size))),
        #[cfg(feature = "blas-matrixmultiply")]
        Blas::Matrixmultiply => Ok(Box::new(foreign::Foreign::matrixmultiply(size))),
        #[cfg(not(all(feature = "blas-gemm", feature = "blas-matrixmultiply")))]
        _ => Err(alloc::format!("the build lacks the Cargo feature of {blas:?}")),
    }
}
