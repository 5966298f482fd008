//! Portable depthwise transposed convolution of stride 2, for f32 and f64.
//!
//! Register budget: a vector is two xmm of 16: the rows of the larger kernels spill to the L1
//! cache.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x8, Isa::Portable, #[inline(never)], f32);
upsample_kernels!(F64x4, Isa::Portable, #[inline(never)], f64);
