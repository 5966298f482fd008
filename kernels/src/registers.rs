//! What the vectors of x86-64 and of NEON have in common: what goes register by register.

/// Hides from the compiler where a pointer comes from, as [`advance`](crate::simd::Simd::advance) asks.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
pub(crate) fn hide<T>(p: *const T) -> *const T {
    let mut hidden = p;
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) hidden, options(pure, nomem, nostack, preserves_flags)) };
    hidden
}

/// Keeps loads in order, as [`in_order`](crate::simd::Accumulator::in_order) asks.
#[inline(always)]
pub(crate) fn in_order<T>(p: *const T) -> *const T {
    let mut hidden = p;
    // SAFETY: no instruction. The compiler has to assume that it reads and writes memory.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) hidden, options(nostack, preserves_flags)) };
    hidden
}

/// Implements the lanes of an [`Accumulator`](crate::simd::Accumulator) of the registers `$r`, by the operations of
/// the module `$ops`.
macro_rules! sums {
    ($elem:ident by $ops:ident: $($r:tt)+) => {
        #[inline(always)]
        unsafe fn splat(x: $elem) -> Self {
            // SAFETY: the caller runs where the ISA is.
            unsafe {
                Self($({
                    // Once for each register.
                    let _ = $r;
                    $ops::splat(x)
                }),+)
            }
        }

        #[inline(always)]
        unsafe fn load(p: *const $elem) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($($ops::load(p.add($r * (Self::LANES / Self::REGISTERS)))),+) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut $elem) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { $($ops::store(p.add($r * (Self::LANES / Self::REGISTERS)), self.$r);)+ }
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::add(self.$r, b.$r)),+) }
        }

        #[inline(always)]
        fn in_order(p: *const $elem) -> *const $elem {
            crate::registers::in_order(p)
        }

        #[inline(always)]
        fn clamp(self, lo: Self, hi: Self) -> Self {
            // Where either operand is NaN, instructions of x86-64 return the second, those of NEON NaN.
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::min(hi.$r, $ops::max(lo.$r, self.$r))),+) }
        }
    };
}
pub(crate) use sums;

/// Implements a part of [`Simd`](crate::simd::Simd) for a vector of the registers `$r`, by the operations of
/// the module `$ops`.
macro_rules! lane_wise {
    ($elem:ident by $ops:ident: $($r:tt)+) => {
        #[inline(always)]
        fn prefetch(p: *const $elem) {
            crate::simd::prefetch(p);
        }

        #[inline(always)]
        fn advance(p: *const $elem, step: usize) -> *const $elem {
            crate::registers::hide(p.wrapping_add(step))
        }

        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::sub(self.$r, b.$r)),+) }
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::mul(self.$r, b.$r)),+) }
        }

        #[inline(always)]
        fn div(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::div(self.$r, b.$r)),+) }
        }

        #[inline(always)]
        fn low_bits_as_exponent(self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe {
                Self($({
                    let bits = $ops::to_bits(self.$r);
                    $ops::from_bits($ops::shift_left::<{ ($elem::MANTISSA_DIGITS - 1) as _ }>(bits))
                }),+)
            }
        }
    };
}
pub(crate) use lane_wise;
