//! NEON direct tiles of several output channels for f32.
//!
//! A tile takes `MR * NRV` sums, NRV vectors and their masks, and the weights, four in a
//! register. Of 32 registers, 4x5 (MR x NRV) takes 31, 6x3 26 and 8x2 22. Tiles of 2 and 3 rows
//! load and multiply one vector at a time: the sums and masks of 2x8, and two registers more, are
//! 26.

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
