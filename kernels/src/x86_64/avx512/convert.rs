//! Conversions between `f16` and `f32`, a register of sixteen at a time. `half` converts eight
//! values at a time, in functions that are not inlined into the passes around them.

use half::f16;
use half::slice::HalfFloatSliceExt;
use pulp::cast;
use pulp::x86::V4;

/// The rounding mode of the instruction: to nearest even, without exceptions.
const NEAREST: i32 = 0x08;

/// `dst[i] = src[i]`.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(crate) fn widen(simd: V4, src: &[f16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len());
    let ((src, src_rest), (dst, dst_rest)) = (src.reinterpret_cast().as_chunks(), dst.as_chunks_mut());
    for (src, dst) in src.iter().zip(dst) {
        *dst = widen_step(simd, *src);
    }
    if !src_rest.is_empty() {
        let mut from = [0; 16];
        from[..src_rest.len()].copy_from_slice(src_rest);
        dst_rest.copy_from_slice(&widen_step(simd, from)[..src_rest.len()]);
    }
}

/// `dst[i] = src[i]`, rounded to nearest even.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(crate) fn narrow(simd: V4, src: &[f32], dst: &mut [f16]) {
    assert_eq!(src.len(), dst.len());
    let ((src, src_rest), (dst, dst_rest)) = (src.as_chunks(), dst.reinterpret_cast_mut().as_chunks_mut());
    for (src, dst) in src.iter().zip(dst) {
        *dst = narrow_step(simd, *src);
    }
    if !src_rest.is_empty() {
        let mut from = [0.0; 16];
        from[..src_rest.len()].copy_from_slice(src_rest);
        dst_rest.copy_from_slice(&narrow_step(simd, from)[..src_rest.len()]);
    }
}

#[inline(always)]
fn widen_step(simd: V4, src: [u16; 16]) -> [f32; 16] {
    cast(simd.avx512f._mm512_cvtph_ps(cast(src)))
}

#[inline(always)]
fn narrow_step(simd: V4, src: [f32; 16]) -> [u16; 16] {
    cast(simd.avx512f._mm512_cvtps_ph::<NEAREST>(cast(src)))
}
