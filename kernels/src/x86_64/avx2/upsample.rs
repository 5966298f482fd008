//! AVX2 depthwise transposed convolution of stride 2, for f32 and f64.
//!
//! Register budget, of 16 ymm: up to three rows of three vectors, two sums, bias and bounds, one
//! weight: 15; 2x2 holds its weights.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], f32);
upsample_kernels!(F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], f64);
