//! Portable tiles of several output channels for f32, straight from X.
//!
//! Sized for 16 registers, two of which are a vector: 4x1 is 8 sums, a vector and a weight.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x8, Isa::Portable, #[inline(never)]:
    f32_group_2x8(2, 1), f32_group_3x8(3, 1), f32_group_4x8(4, 1),
    f32_group_2x16(2, 2),
);
