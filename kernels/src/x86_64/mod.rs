//! The kernels for x86-64.

pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;

/// Implements [`deinterleave`](crate::simd::Simd::deinterleave) for `M` = 4 vectors, by unzipping pairs.
#[inline(always)]
fn quarters<V: crate::simd::Simd, const M: usize>(v: [V; M]) -> [V; M] {
    let ((even0, odd0), (even1, odd1)) = (v[0].unzip(v[1]), v[2].unzip(v[3]));
    let mut every = v;
    (every[0], every[2]) = even0.unzip(even1);
    (every[1], every[3]) = odd0.unzip(odd1);
    every
}

/// What the vectors of all ISAs of x86-64 have in common, by the operations of the module `$ops`.
macro_rules! common {
    ($elem:ident by $ops:ident) => {
        type Elem = $elem;
        const REGISTERS: usize = 1;
        crate::simd::broadcast_scalars!();
        crate::registers::lane_wise!($elem by $ops: 0);

        #[inline(always)]
        fn prefetch_near(p: *const $elem) {
            // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults
            // on no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: SSE is part of x86-64, and the instruction only orders stores.
            unsafe { _mm_sfence() };
        }

        #[inline(always)]
        unsafe fn store_past_cache(self, p: *mut $elem) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { $ops::stream(p, self.0) }
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::fmadd(self.0, b.0, c.0)) }
        }
    };
}
use common;
