//! NEON: AArch64's Advanced SIMD.

pub(crate) mod convert;
pub(crate) mod depthwise_f32;
pub(crate) mod depthwise_f64;
pub(crate) mod gemm_f32;
pub(crate) mod gemm_f64;
pub(crate) mod grouped_f32;
pub(crate) mod grouped_f64;
pub(crate) mod upsample;
mod vector;
pub(crate) mod weave;
pub(crate) mod winograd_f32;
pub(crate) mod winograd_f64;

/// Runs a streaming pass. Its target has NEON, as every one that this module is compiled for; it is
/// a function of its own, as the passes of other ISAs are, so that `disasm` finds its loops.
#[inline(never)]
pub(crate) fn pass(pass: impl pulp::WithSimd<Output = ()>) {
    pass.with_simd(pulp::Scalar);
}
