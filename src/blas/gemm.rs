//! The `gemm` crate. It packs both operands in every call, into memory that it allocates.
#![expect(unsafe_code, reason = "the crate's interface is raw pointers")]

use super::{Gemm, Size, check, pack_row_major};
use crate::element::Compute;

pub(crate) struct GemmCrate {
    pub(crate) size: Size,
}

impl<A: Compute> Gemm<A> for GemmCrate {
    fn kernel(&self) -> &str {
        "gemm crate"
    }

    fn layout(&self) -> usize {
        0
    }

    fn pack(&self, packed: &mut [A], element: &dyn Fn(usize, usize) -> A) {
        pack_row_major(self.size.k, packed, element);
    }

    fn multiply(&self, packed: &[A], b: &[A], n: usize, c: &mut [A], _: &mut [A]) {
        let Size { rows, k, ld } = self.size;
        check(self.size, n, packed, b, c);
        // A stride is below the length of a slice, which is at most isize::MAX.
        let (k_stride, ld_stride) = (k as isize, ld as isize);
        // SAFETY: check() asserted that the three matrices lie within their slices, row-major with these strides, n <= ld columns of the last
        // two; C is exclusively borrowed, so that it overlaps neither operand. A is f32 or f64, which the crate supports.
        unsafe {
            gemm::gemm(
                rows,
                n,
                k,
                c.as_mut_ptr(),
                1,
                ld_stride,
                false,
                packed.as_ptr(),
                1,
                k_stride,
                b.as_ptr(),
                1,
                ld_stride,
                A::ZERO,
                A::ONE,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}
