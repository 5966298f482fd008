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
    /// The coefficients of a polynomial in `8 / (4 + z) - 1`, for z from 0 on: `e^(z^2 / 2) (4 + z)` times what the
    /// normal distribution has above z. They interpolate at Chebyshev's points.
    const NORMAL_TAIL: &'static [f64];
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
    const NORMAL_TAIL: &'static [f64] = &[
        0.755_285_127_236_439_8,
        0.607_896_595_597_729_4,
        0.387_137_559_494_451_7,
        0.186_524_184_316_123_97,
        0.060_395_313_430_194_13,
        0.007_521_255_530_122_264,
        -0.003_476_196_460_248_608_3,
        -0.001_575_752_081_167_645_4,
        0.000_129_340_123_073_404_17,
        0.000_162_616_315_648_399_6,
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
    const NORMAL_TAIL: &'static [f64] = &[
        0.755_285_130_415_751_5,
        0.607_896_641_971_893_1,
        0.387_137_400_742_216_53,
        0.186_521_857_959_567_2,
        0.060_396_574_890_762_4,
        0.007_540_188_969_137_313,
        -0.003_479_692_362_890_355_7,
        -0.001_630_818_487_882_364_3,
        0.000_133_344_258_903_728_37,
        0.000_231_095_150_787_687_4,
        -1.907_907_488_393_675_5e-06,
        -3.514_564_458_582_385e-05,
        7.152_737_509_308_815e-07,
        5.922_979_827_674_760_5e-06,
        -6.262_068_766_959_6e-07,
        -1.027_094_880_711_434_1e-06,
        2.662_327_898_883_562e-07,
        1.623_191_768_047_356_6e-07,
        -7.989_850_752_562_26e-08,
        -1.960_833_914_093_951_4e-08,
        1.653_604_477_550_640_2e-08,
        1.284_581_886_992_526_9e-09,
        -1.773_740_504_394_910_8e-09,
    ];
    const LEAST: f64 = -746.0;
    const FAR: f64 = 40.0;
}
