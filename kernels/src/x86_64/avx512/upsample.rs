//! AVX-512 kernels of depthwise transposed convolution with stride 2, for f32 and f64.
//!
//! There are 32 zmm registers. 4x4 holds 16 weights, two rows of three vectors, two sums, two
//! tables of lanes, bias and bounds: 29. 5x5 holds 13 of its weights, and reads the others from
//! memory.

use super::vector::{F32x16, F64x8};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], f32);
upsample_kernels!(F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], f64);
