//! Portable direct tiles of several output channels for f32.
//!
//! Tiles are sized for 16 registers, where a vector is two registers. 4x1 (MR x NRV) takes 8
//! registers of sums, a vector and a weight.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x8, Isa::Portable, #[inline(never)]:
    f32_group_2x8(2, 1), f32_group_3x8(3, 1), f32_group_4x8(4, 1),
    f32_group_2x16(2, 2),
);
