//! The kernels for x86-64.

#[cfg(any(feature = "avx2", feature = "avx512"))]
pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;

/// Implements [`deinterleave`](crate::simd::Simd::deinterleave) for `M` = 4 vectors, by unzipping pairs.
#[cfg(any(feature = "avx2", feature = "avx512"))]
#[inline(always)]
fn quarters<V: crate::simd::Simd, const M: usize>(v: [V; M]) -> [V; M] {
    let ((even0, odd0), (even1, odd1)) = (v[0].unzip(v[1]), v[2].unzip(v[3]));
    let mut every = v;
    (every[0], every[2]) = even0.unzip(even1);
    (every[1], every[3]) = odd0.unzip(odd1);
    every
}

/// Hides from the compiler where a pointer comes from, as [`advance`](crate::simd::Simd::advance) asks.
#[cfg(any(feature = "avx2", feature = "avx512"))]
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
fn hide<T>(p: *const T) -> *const T {
    let mut hidden = p;
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) hidden, options(pure, nomem, nostack, preserves_flags)) };
    hidden
}

/// What the vectors of all ISAs of x86-64 have in common. Arithmetic, loads and stores are those of the
/// module `$ops`.
#[cfg(any(feature = "avx2", feature = "avx512"))]
macro_rules! common {
    ($elem:ident by $ops:ident) => {
        type Elem = $elem;
        const REGISTERS: usize = 1;
        crate::simd::broadcast_scalars!();

        #[inline(always)]
        fn prefetch(p: *const $elem) {
            crate::simd::prefetch(p);
        }

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
        fn advance(p: *const $elem, step: usize) -> *const $elem {
            crate::x86_64::hide(p.wrapping_add(step))
        }

        #[inline(always)]
        unsafe fn splat(x: $elem) -> Self {
            // SAFETY: the caller runs where the ISA is.
            unsafe { Self($ops::set1(x)) }
        }

        #[inline(always)]
        unsafe fn load(p: *const $elem) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::loadu(p)) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut $elem) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { $ops::storeu(p, self.0) }
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

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::add(self.0, b.0)) }
        }

        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::sub(self.0, b.0)) }
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::mul(self.0, b.0)) }
        }

        #[inline(always)]
        fn div(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::div(self.0, b.0)) }
        }

        #[inline(always)]
        fn clamp(self, lo: Self, hi: Self) -> Self {
            // Both instructions return their second operand where either is NaN.
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::min(hi.0, $ops::max(lo.0, self.0))) }
        }
    };
}
#[cfg(any(feature = "avx2", feature = "avx512"))]
use common;
