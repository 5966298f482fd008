//! Portable kernels of depthwise transposed convolution with stride 2, for f32 and f64.
//!
//! A vector is two of 16 xmm registers. Larger kernels spill their rows to the L1 cache.

use super::vector::{F32x8, F64x4};
use crate::Isa;
use crate::generic::upsample::upsample_kernels;

upsample_kernels!(F32x8, Isa::Portable, #[inline(never)], f32);
upsample_kernels!(F64x4, Isa::Portable, #[inline(never)], f64);
