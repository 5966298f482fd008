//! AVX-512 activations, for f32 and f64.
//!
//! There are 32 zmm registers. The coefficients of the exponential take at most 22.

use super::vector::{F32x16, F64x8};
use crate::generic::activation_kernel;

activation_kernel!(F32x16, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], F32: f32_activate);
activation_kernel!(F64x8, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], F64: f64_activate);
