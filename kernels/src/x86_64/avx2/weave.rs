//! AVX2 weaving of phases, for f32 and f64.
//!
//! There are 16 ymm registers. 8 phases take 8, and the results of a round of zips take the place
//! of their operands. Bounds and bias take 3 more.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::weave_kernel;

weave_kernel!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], F32: f32_weave, f32_fetch, f32_sum, f32_pick);
weave_kernel!(F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], F64: f64_weave, f64_fetch, f64_sum, f64_pick);
