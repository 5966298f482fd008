//! AVX2 kernels of depthwise transposed convolution with stride 2, for f32 and f64.
//!
//! There are 16 ymm registers. Up to three rows of three vectors, two sums, bias, bounds and one
//! weight take 15. Only 2x2 holds its weights in registers.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], f32);
upsample_kernels!(F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], f64);
