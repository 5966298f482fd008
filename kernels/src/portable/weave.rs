//! Portable weaving of phases, for f32 and f64.
//!
//! A vector is two of 16 xmm registers. 4 phases take 8 registers; 8 phases spill to the L1
//! cache.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::weave_kernel;

weave_kernel!(F32x8, Isa::Portable, #[inline(never)], F32: f32_weave, f32_fetch, f32_sum, f32_pick);
weave_kernel!(F64x4, Isa::Portable, #[inline(never)], F64: f64_weave, f64_fetch, f64_sum, f64_pick);
