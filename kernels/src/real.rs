//! The element types that kernels compute in.

use core::fmt;
use core::ops::{Add, Mul};

/// Seals [`Real`]: kernels compute in no other type.
pub trait Sealed {}

impl Sealed for f32 {}
impl Sealed for f64 {}

/// Something that exists once for each of the types. The tables of kernels are given this way, so
/// that the types know nothing of kernels.
pub trait ByType {
    /// The type of what exists for `T`.
    type Of<T: 'static>;

    /// What exists for `f32`.
    fn f32(self) -> Self::Of<f32>;
    /// What exists for `f64`.
    fn f64(self) -> Self::Of<f64>;
}

/// A type that kernels compute in: `f32` or `f64`. The trait is sealed.
pub trait Real:
    Sealed + Copy + PartialOrd + Add<Output = Self> + Mul<Output = Self> + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Positive infinity.
    const INFINITY: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;
    /// The unit round-off: half the distance from 1 to the next greater value.
    const UNIT_ROUNDOFF: f64;
    /// The type's name, as kernel names have it.
    const NAME: &'static str;

    /// Rounds from `f64`.
    fn from_f64(x: f64) -> Self;
    /// Converts to `f64`, exactly.
    fn to_f64(self) -> f64;
    /// `self` without its sign.
    #[must_use]
    fn magnitude(self) -> Self;
    /// e to the power `self`, within 2 units in the last place. NaN stays NaN. It has no
    /// branches, so that loops over it vectorise.
    fn exp(self) -> Self;

    #[doc(hidden)]
    fn pick<B: ByType>(by: B) -> B::Of<Self>;
}

/// Implements [`Real`]. e^x uses Cody and Waite's reduction x = n ln 2 + r and a polynomial in r;
/// 2^n is written into the exponent field.
macro_rules! real {
    ($t:ident, $mantissa:literal, $bias:literal, $lo:literal, $hi:literal, $shifter:literal, $ln2_hi:literal, $ln2_lo:literal, $terms:literal) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $t::INFINITY;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            const UNIT_ROUNDOFF: f64 = $t::EPSILON as f64 / 2.0;
            const NAME: &'static str = stringify!($t);

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }

            #[inline(always)]
            fn exp(self) -> Self {
                // Comparisons with NaN are false, so that it passes, and stays NaN in the
                // polynomial.
                let x = if self < $lo { $lo } else { self };
                let x = if x > $hi { $hi } else { x };
                // Adding 1.5 * 2^mantissa rounds to an integer, which is then in the lowest bits of
                // the sum; subtracting it again leaves the integer.
                let n = (x * core::$t::consts::LOG2_E + $shifter) - $shifter;
                let r = (x - n * $ln2_hi) - n * $ln2_lo;
                // The Taylor series by Horner's rule, for |r| <= ln 2 / 2.
                const COEFFICIENTS: [$t; $terms] = {
                    let (mut coefficients, mut factorial, mut k) = ([1.0; $terms], 1.0, 1);
                    while k < $terms {
                        factorial *= k as $t;
                        coefficients[k] = 1.0 / factorial;
                        k += 1;
                    }
                    coefficients
                };
                let mut p = 0.0;
                let mut k = $terms;
                while k > 0 {
                    k -= 1;
                    p = p * r + COEFFICIENTS[k];
                }
                // 2^n is applied in two halves, so that results near the limits neither overflow
                // nor lose their exponent.
                // Bits above the exponent's are shifted out. A conversion to an integer would keep
                // LLVM from making vectors of it.
                let half = (n * 0.5 + $shifter) - $shifter;
                let scale = |n: $t| $t::from_bits((n + $shifter).to_bits().wrapping_add($bias) << $mantissa);
                p * scale(half) * scale(n - half)
            }

            fn pick<B: ByType>(by: B) -> B::Of<Self> {
                by.$t()
            }
        }
    };
}
real!(f32, 23, 127, -104.0, 89.0, 12_582_912.0, 0.693_359_4, -2.121_944_4e-4, 8);
real!(f64, 52, 1023, -746.0, 710.0, 6_755_399_441_055_744.0, 0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10, 14);
