//! NEON activations, for f32 and f64.
//!
//! There are 32 registers. The coefficients of the exponential take at most 22; those of f64 are shared by
//! both registers of a vector.

use super::vector::{F32x4, F64x4};
use crate::generic::activation_kernel;

activation_kernel!(F32x4, #[target_feature(enable = "neon")], F32: f32_activate);
activation_kernel!(F64x4, #[target_feature(enable = "neon")], F64: f64_activate);
