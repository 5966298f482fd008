//! NEON weaving of phases, for f32 and f64.
//!
//! There are 32 registers. 8 phases of f32 take 8, and of f64 16. The results of a round of zips
//! take the place of their operands. Bounds and bias take 3 or 6 more.

use super::vector::{F32x4, F64x4};
use crate::Isa;
use crate::generic::weave_kernel;

weave_kernel!(F32x4, Isa::Neon, #[target_feature(enable = "neon")], F32: f32_weave, f32_fetch, f32_sum, f32_pick);
weave_kernel!(F64x4, Isa::Neon, #[target_feature(enable = "neon")], F64: f64_weave, f64_fetch, f64_sum, f64_pick);
