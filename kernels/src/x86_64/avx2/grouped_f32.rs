//! AVX2 tiles of several output channels for f32, straight from X.
//!
//! Register budget, of 16 ymm: MR * NRV sums, the smaller of MR weights and NRV vectors, one more:
//! 4x2 is 11, 6x2 15, 3x3 13. Masks of a column are read from memory.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")]:
    f32_group_4x8(4, 1), f32_group_6x8(6, 1),
    f32_group_3x16(3, 2), f32_group_4x16(4, 2), f32_group_6x16(6, 2),
    f32_group_2x24(2, 3), f32_group_3x24(3, 3),
    f32_group_2x32(2, 4),
);
