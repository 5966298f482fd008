//! The GEMM of the materialised lowerings: C = A B. A is constant, so that a backend can pack it
//! once. A product is over one block of K.

#[cfg(any(feature = "blas-gemm", feature = "blas-matrixmultiply"))]
mod foreign;
mod gemm;
mod native;

use alloc::string::String;

use crate::choice::Blas;
use crate::element::Compute;
use crate::machine::Machine;
pub(crate) use gemm::{Backend, Blocks, Gemm, Product, Size, leading_dimension};

/// A backend for products of one size. If `layout` is given, it accepts an A that was packed by a
/// backend of that [`layout`](Backend::layout).
///
/// # Errors
/// The reason, if this build or this ISA lacks the backend.
pub(crate) fn backend<A: Compute>(
    blas: Blas,
    machine: &Machine,
    size: Size,
    layout: Option<usize>,
) -> Result<Backend<A>, String> {
    match blas {
        Blas::Native => native::backend(machine, size, layout),
        #[cfg(feature = "blas-gemm")]
        Blas::Gemm => Ok(foreign::Foreign::gemm(size).backend()),
        #[cfg(feature = "blas-matrixmultiply")]
        Blas::Matrixmultiply => Ok(foreign::Foreign::matrixmultiply(size).backend()),
        #[cfg(not(all(feature = "blas-gemm", feature = "blas-matrixmultiply")))]
        _ => {
            let feature = if blas == Blas::Gemm { "blas-gemm" } else { "blas-matrixmultiply" };
            Err(alloc::format!("the build lacks the Cargo feature {feature}"))
        }
    }
}
