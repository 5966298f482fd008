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

/// Implements [`Accumulator`](crate::simd::Accumulator) for a register, by the operations of the module `$ops`.
macro_rules! accumulator {
    ($name:ident: $lanes:literal of $elem:ident by $ops:ident ) => {
        impl crate::simd::Accumulator for $name {
            type Elem = $elem;
            const LANES: usize = $lanes;
            const REGISTERS: usize = 1;
            crate::simd::broadcast_scalars!();
            crate::registers::sums!($elem by $ops: 0);
            partial!($elem by $ops);

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: a vector is the proof of the ISA.
                unsafe { Self($ops::fmadd(self.0, b.0, c.0)) }
            }
        }
    };
}
use accumulator;

/// Implements [`Accumulator`](crate::simd::Accumulator) for a register of units of 32 bits, by the operations of the
/// module `$ops`. `$dot` adds the products of the values of each unit to a sum.
macro_rules! dot_products {
    ($name:ident: $lanes:literal by $ops:ident, |$units:ident, $scalars:ident, $sums:ident| $dot:expr) => {
        impl crate::simd::Accumulator for $name {
            type Elem = i32;
            const LANES: usize = $lanes;
            const REGISTERS: usize = 1;
            type Scalars = Self;
            const SCALARS: usize = 1;
            crate::registers::sums!(i32 by $ops: 0);
            partial!(i32 by $ops);

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                b.mul_add_scalar(self, 0, c)
            }

            #[inline(always)]
            unsafe fn load_scalars(p: *const i32, _: usize) -> Self {
                // SAFETY: the caller's promise of the ISA, and of at least one element.
                unsafe { Self::splat(p.read_unaligned()) }
            }

            #[inline(always)]
            fn mul_add_scalar(self, scalars: Self, _: usize, c: Self) -> Self {
                let ($units, $scalars, $sums) = (self.0, scalars.0, c.0);
                // SAFETY: a vector is the proof of the ISA.
                Self(unsafe { $dot })
            }
        }
    };
}
use dot_products;

/// What may be converted to an integer of 32 bits, and saturates any byte.
pub(crate) const MOST_INTEGER: f32 = 1e9;

/// What the vectors of all ISAs of x86-64 have in common, by the operations of the module `$ops`.
macro_rules! common {
    ($elem:ident by $ops:ident) => {
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

    };
}
use common;
