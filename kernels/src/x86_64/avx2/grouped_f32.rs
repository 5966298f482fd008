//! AVX2 direct tiles of several output channels for f32.
//!
//! A tile takes `MR * NRV` sums, the smaller of MR weights and NRV vectors, and one register
//! more. Of 16 ymm registers, 4x2 (MR x NRV) takes 11, 6x2 15 and 3x3 13. The masks of a column
//! are read from memory.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")]:
    f32_group_4x8(4, 1), f32_group_5x8(5, 1), f32_group_6x8(6, 1),
    f32_group_3x16(3, 2), f32_group_4x16(4, 2), f32_group_5x16(5, 2), f32_group_6x16(6, 2),
    f32_group_2x24(2, 3), f32_group_3x24(3, 3),
    f32_group_2x32(2, 4),
);
