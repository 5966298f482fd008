//! Portable direct tiles of several output channels for f64.
//!
//! Tiles are sized for 16 registers, where a vector is two registers. 4x1 (MR x NRV) takes 8
//! registers of sums, a vector and a weight.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F64x4, Isa::Portable, #[inline(never)]:
    f64_group_2x4(2, 1), f64_group_3x4(3, 1), f64_group_4x4(4, 1),
    f64_group_2x8(2, 2),
);
