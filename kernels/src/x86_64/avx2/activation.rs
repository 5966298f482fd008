//! AVX2 activations, for f32 and f64.
//!
//! There are 16 ymm registers. The coefficients of the exponential come from memory.

use super::vector::{F32x8, F64x4};
use crate::generic::activation_kernel;

activation_kernel!(F32x8, #[target_feature(enable = "avx2,fma")], F32: f32_activate);
activation_kernel!(F64x4, #[target_feature(enable = "avx2,fma")], F64: f64_activate);
