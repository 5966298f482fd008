//! AVX-512 weaving of phases, for f32 and f64.
//!
//! There are 32 zmm registers. 8 phases take 8, and the results of a round of zips as many. Two
//! tables of lanes, bounds and bias take 5 more.

use super::vector::{F32x16, F64x8};
use crate::Isa;
use crate::generic::weave_kernel;

weave_kernel!(F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], F32: f32_weave, f32_fetch, f32_sum, f32_pick);
weave_kernel!(F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], F64: f64_weave, f64_fetch, f64_sum, f64_pick);
