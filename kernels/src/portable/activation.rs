//! Portable activations, for f32 and f64.
//!
//! A vector is two of 16 xmm registers. The coefficients of the exponential come from memory.

use super::vector::{F32x8, F64x4};
use crate::generic::activation_kernel;

activation_kernel!(F32x8, #[inline(never)], F32: f32_activate);
activation_kernel!(F64x4, #[inline(never)], F64: f64_activate);
