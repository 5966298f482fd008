//! NEON tiles of several output channels for f32, straight from X.
//!
//! Register budget, of 32: MR * NRV sums, NRV vectors and their masks, and the weights, a register
//! for four of them: 4x5 is 31, 6x3 26, 8x2 22. Of 2 and 3 rows a vector is loaded and multiplied
//! at a time: 2x8 sums, masks, and two more are 26.

use super::vector::F32x4;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x4, Isa::Neon, #[target_feature(enable = "neon")]:
    f32_group_8x4(8, 1),
    f32_group_6x8(6, 2), f32_group_8x8(8, 2),
    f32_group_6x12(6, 3),
    f32_group_2x16(2, 4), f32_group_3x16(3, 4), f32_group_4x16(4, 4),
    f32_group_4x20(4, 5),
    f32_group_3x24(3, 6),
    f32_group_2x32(2, 8),
);
