//! The element types that kernels compute in.

use core::fmt;
use core::ops::{Add, Mul};

/// What the exponential function needs to know of a type. The trait is private, and so seals [`Real`].
pub trait Exponential {
    /// A number whose unit in the last place is 1, and whose lowest bits are the exponent's bias.
    const INTEGERS: f64;
    /// ln 2 in two parts: products of the first part with small integers are exact.
    const LN_2: [f64; 2];
    /// The coefficients of `(e^r - 1) / r` for |r| up to `ln 2 / 2`. The first is 1, and the others
    /// interpolate at Chebyshev's points.
    const SERIES: &'static [f64];
    /// From here down, e^x rounds to 0.
    const LEAST: f64;
    /// From here on, `e^x + 2` rounds to e^x.
    const FAR: f64;
}

/// Something that exists for each of the types, such as the tables of kernels, of which the types know
/// nothing.
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
    Exponential
    + Copy
    + PartialOrd
    + Add<Output = Self>
    + Mul<Output = Self>
    + fmt::Debug
    + fmt::Display
    + Send
    + Sync
    + 'static
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
    #[doc(hidden)]
    fn pick<B: ByType>(by: B) -> B::Of<Self>;
}

macro_rules! real {
    ($t:ident) => {
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

            fn pick<B: ByType>(by: B) -> B::Of<Self> {
                by.$t()
            }
        }
    };
}
real!(f32);
real!(f64);

impl Exponential for f32 {
    const INTEGERS: f64 = 12_582_912.0 + 127.0;
    const LN_2: [f64; 2] = [0.693_145_751_953_125, 1.428_606_820_309_417_3e-6];
    const SERIES: &'static [f64] = &[
        1.0,
        0.5,
        0.166_665_763_055_606_4,
        0.041_666_553_762_567_64,
        0.008_363_292_753_030_603,
        0.001_392_632_561_813_346_3,
    ];
    const LEAST: f64 = -104.0;
    const FAR: f64 = 20.0;
}

impl Exponential for f64 {
    const INTEGERS: f64 = 6_755_399_441_055_744.0 + 1023.0;
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    const SERIES: &'static [f64] = &[
        1.0,
        0.5,
        0.166_666_666_666_666_69,
        0.041_666_666_666_623_48,
        0.008_333_333_333_330_011,
        0.001_388_888_891_753_829_6,
        0.000_198_412_698_633_032_23,
        2.480_152_079_257_269_4e-5,
        2.755_726_807_289_01e-6,
        2.762_032_742_826_824e-7,
        2.510_056_927_581_368_3e-8,
    ];
    const LEAST: f64 = -746.0;
    const FAR: f64 = 40.0;
}
