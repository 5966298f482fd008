//! NEON kernels of depthwise transposed convolution with stride 2, for f32 and f64.
//!
//! There are 32 registers. 5x5 of f32 holds seven registers of weights, three rows of three
//! vectors, two sums, bias and bounds: 21. The vectors of f64 are two registers, so that its 5x5
//! reads the weights from memory.

use super::vector::{F32x4, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x4, Isa::Neon, #[target_feature(enable = "neon")], f32);
upsample_kernels!(F64x4, Isa::Neon, #[target_feature(enable = "neon")], f64);
