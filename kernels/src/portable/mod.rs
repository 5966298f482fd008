//! The kernels for any target, by the vectors of the `wide` crate.

pub(crate) mod activation;
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
