//! GEMM as a service for the materialised lowerings: C = A B with constant A, which a backend may pack once.

#[cfg(feature = "blas-gemm")]
mod gemm;
#[cfg(feature = "blas-matrixmultiply")]
mod matrixmultiply;
mod native;

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::Isa;

use crate::element::Compute;
use crate::plan::Blas;

/// The sizes of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Rows of A and C.
    pub(crate) rows: usize,
    /// Columns of A, rows of B.
    pub(crate) k: usize,
    /// Elements from one row of B to the next, and likewise of C: a [`leading_dimension`].
    pub(crate) ld: usize,
}

/// A GEMM of one size of A.
pub(crate) trait Gemm<A>: Send + Sync {
    /// The name of what does the work.
    fn kernel(&self) -> &str;

    /// What the packed A depends on, besides its size.
    fn layout(&self) -> usize;

    /// Packs A, rows x k values, given by row and column.
    fn pack(&self, packed: &mut [A], element: &dyn Fn(usize, usize) -> A);

    /// `c[i * ld + j] = sum over p of A[i][p] * b[p * ld + j]`, for j below `n`; what is in `c` before is not read. Whole rows of `ld` elements
    /// may be read in `b` and written in `c`. `tile` is scratch of [`tile_len`](Self::tile_len) values.
    fn multiply(&self, packed: &[A], b: &[A], n: usize, c: &mut [A], tile: &mut [A]);

    /// Values of scratch for one tile.
    fn tile_len(&self) -> usize {
        0
    }
}

/// Elements from one row to the next for `n` columns: room for whole vectors, and an odd number of cache lines of f32, so that rows do not
/// share a cache set.
pub(crate) fn leading_dimension(n: usize) -> usize {
    (n.div_ceil(16) | 1) * 16
}

/// A backend for products of one size; with `layout`, one that accepts A as it was packed by a backend of that [`layout`](Gemm::layout).
///
/// # Errors
/// The reason where the backend is not in this build, or cannot be had with this ISA.
pub(crate) fn backend<A: Compute>(
    blas: Blas,
    isa: Isa,
    size: Size,
    layout: Option<usize>,
) -> Result<Box<dyn Gemm<A>>, String> {
    match blas {
        Blas::Native => native::Native::new(isa, size, layout).map(|g| Box::new(g) as Box<dyn Gemm<A>>),
        #[cfg(feature = "blas-gemm")]
        Blas::Gemm => Ok(Box::new(gemm::GemmCrate { size })),
        #[cfg(feature = "blas-matrixmultiply")]
        Blas::Matrixmultiply => Ok(Box::new(matrixmultiply::Matrixmultiply { size })),
        #[cfg(not(all(feature = "blas-gemm", feature = "blas-matrixmultiply")))]
        _ => Err(alloc::format!("the build lacks the Cargo feature of {blas:?}")),
    }
}

/// Row-major packing: what the backends without prepacked operands take.
#[cfg(any(feature = "blas-gemm", feature = "blas-matrixmultiply"))]
fn pack_row_major<A>(k: usize, packed: &mut [A], element: &dyn Fn(usize, usize) -> A) {
    for (i, row) in packed.chunks_exact_mut(k.max(1)).enumerate() {
        for (p, value) in row.iter_mut().enumerate() {
            *value = element(i, p);
        }
    }
}

/// Panics unless the operands of a product hold what its sizes say; backends behind raw pointers call it first.
#[cfg(any(feature = "blas-gemm", feature = "blas-matrixmultiply"))]
fn check<A>(size: Size, n: usize, a: &[A], b: &[A], c: &[A]) {
    let holds = |slice: &[A], rows: usize, ld: usize| rows.checked_mul(ld).is_some_and(|end| end <= slice.len());
    assert!(n <= size.ld, "n is above the leading dimension");
    assert!(holds(a, size.rows, size.k), "A is too short");
    assert!(holds(b, size.k, size.ld), "B is too short");
    assert!(holds(c, size.rows, size.ld), "C is too short");
}
