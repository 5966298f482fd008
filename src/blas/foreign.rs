//! The backends of other crates. They choose their ISA themselves, and in every call pack both operands
//! into memory that they allocate. A is row-major.
#![expect(unsafe_code, reason = "the crates' interfaces are raw pointers")]

use super::blocks::Product;
use crate::element::Compute;

impl<A> Product<'_, A> {
    /// Checks that each slice holds its matrix, and so that the strides fit `isize`.
    fn check(&self) {
        let holds = |slice: &[A], rows: usize, ld: usize| rows.checked_mul(ld).is_some_and(|end| end <= slice.len());
        assert!(self.n <= self.ld, "n is above the leading dimension");
        assert!(holds(self.a, self.rows, self.k), "A is too short");
        assert!(holds(self.b, self.k, self.ld), "B is too short");
        assert!(holds(self.c, self.rows, self.ld), "C is too short");
    }
}

/// The crate `gemm`.
#[cfg(feature = "blas-gemm")]
pub(super) fn gemm<A: Compute>(product: Product<'_, A>) {
    product.check();
    let Product { rows, k, n, a, b, c, ld, accumulate } = product;
    let old = if accumulate { A::ONE } else { A::ZERO };
    let (a, lda, b, c, ld) = (a.as_ptr(), k as isize, b.as_ptr(), c.as_mut_ptr(), ld as isize);
    // SAFETY: the check covers the memory of the matrices. C is exclusively borrowed, so that it
    // overlaps neither operand. A is f32 or f64, which the crate supports. Without `accumulate` it
    // does not read C.
    unsafe {
        gemm::gemm(
            rows,
            n,
            k,
            c,
            1,
            ld,
            accumulate,
            a,
            1,
            lda,
            b,
            1,
            ld,
            old,
            A::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The crate `matrixmultiply`.
#[cfg(feature = "blas-matrixmultiply")]
pub(super) fn matrixmultiply<A: Compute>(product: Product<'_, A>) {
    use core::any::TypeId;
    product.check();
    let Product { rows, k, n, a, b, c, ld, accumulate } = product;
    let (a, lda, b, c, ld) = (a.as_ptr(), k as isize, b.as_ptr(), c.as_mut_ptr(), ld as isize);
    // SAFETY: the check covers the memory of the matrices. C is exclusively borrowed, so that it
    // overlaps neither operand. The type is compared before the pointers are cast to it. With a factor
    // of 0 the crate does not read C.
    unsafe {
        if TypeId::of::<A>() == TypeId::of::<f32>() {
            let old = if accumulate { 1.0 } else { 0.0 };
            matrixmultiply::sgemm(rows, k, n, 1.0, a.cast(), lda, 1, b.cast(), ld, 1, old, c.cast(), ld, 1);
        } else {
            assert!(TypeId::of::<A>() == TypeId::of::<f64>(), "Compute is f32 or f64");
            let old = if accumulate { 1.0 } else { 0.0 };
            matrixmultiply::dgemm(rows, k, n, 1.0, a.cast(), lda, 1, b.cast(), ld, 1, old, c.cast(), ld, 1);
        }
    }
}
