//! NEON depthwise transposed convolution of stride 2, for f32 and f64.
//!
//! Register budget, of 32: of f32, 5x5 holds seven registers of weights, three rows of three
//! vectors, two sums, bias and bounds: 21; of f64, whose vectors are two registers, 5x5 reads its
//! weights from memory.

use super::vector::{F32x4, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x4, Isa::Neon, #[target_feature(enable = "neon")], f32);
upsample_kernels!(F64x4, Isa::Neon, #[target_feature(enable = "neon")], f64);
