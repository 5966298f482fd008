//! The backends of other crates. They choose their ISA themselves. In every call they pack both
//! operands, into memory that they allocate.
#![expect(unsafe_code, reason = "the crates' interfaces are raw pointers")]

use alloc::boxed::Box;

use super::gemm::{Backend, Gemm, Product, Size};
use crate::element::Compute;

/// A backend that takes pointers to row-major operands.
pub(crate) struct Foreign<A> {
    size: Size,
    name: &'static str,
    multiply: unsafe fn(&Raw<A>),
}

/// A product of row-major matrices with unit column strides.
///
/// Memory: `a` is readable for `rows` rows of `lda` elements. `b` is readable for `k` rows of
/// `ld` elements. `c` is readable and writable for `rows` rows of `ld` elements. `k` is at most
/// `lda`, and `n` is at most `ld`.
struct Raw<A> {
    rows: usize,
    k: usize,
    n: usize,
    a: *const A,
    lda: isize,
    b: *const A,
    c: *mut A,
    ld: isize,
    accumulate: bool,
}

impl<A: Compute> Foreign<A> {
    /// The crate `gemm`.
    #[cfg(feature = "blas-gemm")]
    pub(crate) fn gemm(size: Size) -> Self {
        Self { size, name: "gemm crate", multiply: gemm }
    }

    /// The crate `matrixmultiply`.
    #[cfg(feature = "blas-matrixmultiply")]
    pub(crate) fn matrixmultiply(size: Size) -> Self {
        Self { size, name: "matrixmultiply crate", multiply: matrixmultiply }
    }

    pub(crate) fn backend(self) -> Backend<A> {
        Backend { kernel: self.name, layout: 0, tile_len: 0, build: Box::new(move || Box::new(self)) }
    }
}

impl<A: Compute> Gemm<A> for Foreign<A> {
    /// Packed A is row-major.
    fn pack(&self, k: usize, packed: &mut [A], element: &dyn Fn(usize, usize) -> A) {
        for (i, row) in packed.chunks_exact_mut(k.max(1)).enumerate() {
            for (p, value) in row.iter_mut().enumerate() {
                *value = element(i, p);
            }
        }
    }

    fn multiply(&self, product: Product<'_, A>, c: &mut [A], _: &mut [A]) {
        let Size { rows, ld, .. } = self.size;
        let Product { packed, k, b, n, accumulate } = product;
        let holds = |slice: &[A], rows: usize, ld: usize| rows.checked_mul(ld).is_some_and(|end| end <= slice.len());
        assert!(n <= ld, "n is above the leading dimension");
        assert!(holds(packed, rows, k), "A is too short");
        assert!(holds(b, k, ld), "B is too short");
        assert!(holds(c, rows, ld), "C is too short");
        // The strides fit isize: they are at most the length of a slice.
        let (a, lda, b, c, ld) = (packed.as_ptr(), k as isize, b.as_ptr(), c.as_mut_ptr(), ld as isize);
        // SAFETY: the assertions cover the memory that Raw asks for. C is exclusively borrowed,
        // so that it overlaps neither operand.
        unsafe { (self.multiply)(&Raw { rows, k, n, a, lda, b, c, ld, accumulate }) };
    }
}

/// # Safety
/// Memory: as [`Raw`] states.
#[cfg(feature = "blas-gemm")]
unsafe fn gemm<A: Compute>(raw: &Raw<A>) {
    let Raw { rows, k, n, a, lda, b, c, ld, accumulate } = *raw;
    let old = if accumulate { A::ONE } else { A::ZERO };
    // SAFETY: the caller promises the memory. A is f32 or f64, which the crate supports. Without
    // `accumulate` it does not read C.
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

/// # Safety
/// Memory: as [`Raw`] states.
#[cfg(feature = "blas-matrixmultiply")]
unsafe fn matrixmultiply<A: Compute>(raw: &Raw<A>) {
    use core::any::TypeId;
    let Raw { rows, k, n, a, lda, b, c, ld, accumulate } = *raw;
    // SAFETY: the caller promises the memory. The type is compared before the pointers are cast
    // to it. With a factor of 0 the crate does not read C.
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
