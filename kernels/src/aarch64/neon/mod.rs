//! The kernels for NEON, the Advanced SIMD of AArch64.

pub(crate) mod activation;
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

/// Runs a streaming pass. Every target that this module is compiled for has NEON. The function is
/// not inlined, as the passes of other ISAs are not, so that `disasm` finds its loops.
#[inline(never)]
pub(crate) fn pass(pass: impl pulp::WithSimd<Output = ()>) {
    pass.with_simd(pulp::Scalar);
}
