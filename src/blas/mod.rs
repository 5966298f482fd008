//! The GEMM of the materialised lowerings: C = A B. A is constant, so that a backend can pack it
//! once. A product is over one block of K.

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

/// A backend for products of one size. If `layout` is given, it accepts an A that was packed by a
/// backend of that [`layout`](Gemm::layout).
///
/// # Errors
/// The reason, if this build or this ISA lacks the backend.
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
