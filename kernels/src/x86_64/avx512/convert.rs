//! Conversions between `f16` and `f32`, a register of sixteen at a time. `half` converts eight
//! values at a time, in functions that are not inlined into the passes around them.

use core::mem::MaybeUninit;

use half::f16;
use pulp::cast;
use pulp::x86::V4;

use crate::convert::Conversion;

/// The rounding mode of the instruction: to nearest even, without exceptions.
const NEAREST: i32 = 0x08;

/// From `f16` to `f32`.
pub(crate) struct Widening(pub(crate) V4);

impl Conversion<16> for Widening {
    type From = f16;
    type To = f32;

    #[inline(always)]
    fn step(&self, from: [f16; 16]) -> [f32; 16] {
        cast(self.0.avx512f._mm512_cvtph_ps(cast(from.map(f16::to_bits))))
    }
}

/// From `f32` to `f16`, rounded to nearest even.
pub(crate) struct Narrowing(pub(crate) V4);

impl Conversion<16> for Narrowing {
    type From = f32;
    type To = MaybeUninit<f16>;

    #[inline(always)]
    fn step(&self, from: [f32; 16]) -> [MaybeUninit<f16>; 16] {
        let bits: [u16; 16] = cast(self.0.avx512f._mm512_cvtps_ph::<NEAREST>(cast(from)));
        bits.map(|bits| MaybeUninit::new(f16::from_bits(bits)))
    }
}
