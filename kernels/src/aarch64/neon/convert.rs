//! Conversions between `f16` and `f32`. The instructions belong to NEON since its first version,
//! but their intrinsics are not stable.

use core::arch::aarch64::*;
use core::arch::asm;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::Isa;

/// Values converted at a time: one register of `f16`, and two registers of `f32`.
const STEP: usize = 8;

/// `dst[i] = src[i]`.
///
/// # Panics
/// If the lengths differ, or the CPU lacks NEON.
pub(crate) fn widen(src: &[f16], dst: &mut [f32]) {
    assert!(src.len() == dst.len() && Isa::Neon.is_available());
    let ((src, src_rest), (dst, dst_rest)) = (src.reinterpret_cast().as_chunks(), dst.as_chunks_mut());
    for (src, dst) in src.iter().zip(dst) {
        // SAFETY: the assertion above shows that NEON is there.
        unsafe { widen_step(src, dst) };
    }
    if !src_rest.is_empty() {
        let (mut from, mut to) = ([0; STEP], [0.0; STEP]);
        from[..src_rest.len()].copy_from_slice(src_rest);
        // SAFETY: the assertion above shows that NEON is there.
        unsafe { widen_step(&from, &mut to) };
        dst_rest.copy_from_slice(&to[..src_rest.len()]);
    }
}

/// `dst[i] = src[i]`, rounded to nearest even.
///
/// # Panics
/// If the lengths differ, or the CPU lacks NEON.
pub(crate) fn narrow(src: &[f32], dst: &mut [f16]) {
    assert!(src.len() == dst.len() && Isa::Neon.is_available());
    let ((src, src_rest), (dst, dst_rest)) = (src.as_chunks(), dst.reinterpret_cast_mut().as_chunks_mut());
    for (src, dst) in src.iter().zip(dst) {
        // SAFETY: the assertion above shows that NEON is there.
        unsafe { narrow_step(src, dst) };
    }
    if !src_rest.is_empty() {
        let (mut from, mut to) = ([0.0; STEP], [0; STEP]);
        from[..src_rest.len()].copy_from_slice(src_rest);
        // SAFETY: the assertion above shows that NEON is there.
        unsafe { narrow_step(&from, &mut to) };
        dst_rest.copy_from_slice(&to[..src_rest.len()]);
    }
}

/// # Safety
/// CPU: NEON.
#[target_feature(enable = "neon")]
unsafe fn widen_step(src: &[u16; STEP], dst: &mut [f32; STEP]) {
    // SAFETY: the arrays hold what is loaded and stored. The caller runs where NEON is. The
    // conversions touch no memory.
    unsafe {
        let halves = vld1q_u16(src.as_ptr());
        let (low, high): (float32x4_t, float32x4_t);
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) low, in(vreg) halves, options(pure, nomem, nostack));
        asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) high, in(vreg) halves, options(pure, nomem, nostack));
        vst1q_f32(dst.as_mut_ptr(), low);
        vst1q_f32(dst.as_mut_ptr().add(4), high);
    }
}

/// # Safety
/// CPU: NEON.
#[target_feature(enable = "neon")]
unsafe fn narrow_step(src: &[f32; STEP], dst: &mut [u16; STEP]) {
    // SAFETY: the arrays hold what is loaded and stored. The caller runs where NEON is. The
    // conversions touch no memory.
    unsafe {
        let (low, high) = (vld1q_f32(src.as_ptr()), vld1q_f32(src.as_ptr().add(4)));
        let mut halves: uint16x8_t;
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) low, options(pure, nomem, nostack));
        asm!("fcvtn2 {0:v}.8h, {1:v}.4s", inout(vreg) halves, in(vreg) high, options(pure, nomem, nostack));
        vst1q_u16(dst.as_mut_ptr(), halves);
    }
}
