//! The `matrixmultiply` crate. It packs both operands in every call, into memory that it allocates.
#![expect(unsafe_code, reason = "the crate's interface is raw pointers")]

use core::any::TypeId;

use super::{Gemm, Size, check, pack_row_major};
use crate::element::Compute;

pub(crate) struct Matrixmultiply {
    pub(crate) size: Size,
}

impl<A: Compute> Gemm<A> for Matrixmultiply {
    fn kernel(&self) -> &str {
        "matrixmultiply crate"
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
        // two; C is exclusively borrowed, so that it overlaps neither operand. The type is compared before the pointers are cast to it.
        unsafe {
            if TypeId::of::<A>() == TypeId::of::<f32>() {
                let (a, b, c) = (packed.as_ptr().cast::<f32>(), b.as_ptr().cast::<f32>(), c.as_mut_ptr().cast::<f32>());
                matrixmultiply::sgemm(rows, k, n, 1.0, a, k_stride, 1, b, ld_stride, 1, 0.0, c, ld_stride, 1);
            } else {
                assert!(TypeId::of::<A>() == TypeId::of::<f64>(), "Compute is f32 or f64");
                let (a, b, c) = (packed.as_ptr().cast::<f64>(), b.as_ptr().cast::<f64>(), c.as_mut_ptr().cast::<f64>());
                matrixmultiply::dgemm(rows, k, n, 1.0, a, k_stride, 1, b, ld_stride, 1, 0.0, c, ld_stride, 1);
            }
        }
    }
}
