//! Conversions between `f16` and `f32`. The instructions belong to NEON since its first version,
//! but their intrinsics are not stable.

use core::arch::aarch64::*;
use core::arch::asm;
use core::mem::MaybeUninit;

use half::f16;

use crate::convert::Conversion;

/// Values converted at a time: one register of `f16`, and two registers of `f32`.
const STEP: usize = 8;

/// From `f16` to `f32`.
pub(crate) struct Widening;

impl Conversion<STEP> for Widening {
    type From = f16;
    type To = f32;

    #[inline(always)]
    fn step(&self, from: [f16; STEP]) -> [f32; STEP] {
        let (from, mut to) = (from.map(f16::to_bits), [0.0; STEP]);
        // SAFETY: the arrays hold what is loaded and stored. Every target that this module is
        // compiled for has NEON. The conversions touch no memory.
        unsafe {
            let halves = vld1q_u16(from.as_ptr());
            let (low, high): (float32x4_t, float32x4_t);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) low, in(vreg) halves, options(pure, nomem, nostack));
            asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) high, in(vreg) halves, options(pure, nomem, nostack));
            vst1q_f32(to.as_mut_ptr(), low);
            vst1q_f32(to.as_mut_ptr().add(4), high);
        }
        to
    }
}

/// From `f32` to `f16`, rounded to nearest even.
pub(crate) struct Narrowing;

impl Conversion<STEP> for Narrowing {
    type From = f32;
    type To = MaybeUninit<f16>;

    #[inline(always)]
    fn step(&self, from: [f32; STEP]) -> [MaybeUninit<f16>; STEP] {
        let mut to = [0; STEP];
        // SAFETY: as above.
        unsafe {
            let (low, high) = (vld1q_f32(from.as_ptr()), vld1q_f32(from.as_ptr().add(4)));
            let mut halves: uint16x8_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) low, options(pure, nomem, nostack));
            asm!("fcvtn2 {0:v}.8h, {1:v}.4s", inout(vreg) halves, in(vreg) high, options(pure, nomem, nostack));
            vst1q_u16(to.as_mut_ptr(), halves);
        }
        to.map(|bits| MaybeUninit::new(f16::from_bits(bits)))
    }
}
