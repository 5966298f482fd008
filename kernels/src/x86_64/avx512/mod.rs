//! The kernels for AVX-512 F, VL, BW, CD and DQ.

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
