//! NEON GEMM tiles for f32.
//!
//! A tile takes `MR * NRV` accumulators, the smaller of NRV vectors and the scalars of MR rows,
//! four of which fit in a register, and one register more. Of 32 registers, 14x2 (MR x NRV) takes
//! 31, 9x3 31, 6x4 29, 4x6 26, 3x8 26 and 2x12 26. Multiply-adds take one lane of the scalars, so
//! that a tile of 8x3 loads 5 registers for 24 multiply-adds.
//!
//! Narrower tiles of the same MR serve the column tail, and tiles of smaller MR the row tail.
//! Wide tiles of few rows serve few output channels. `gemm` runs vectors along output positions,
//! `gemmt` along output channels (NR x pixels), and `gemmt2` along output channels with the
//! pixels in two rows.

use super::vector::F32x4;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F32x4, Isa::Neon, #[target_feature(enable = "neon")], SPATIAL:
    f32_gemm_1x4(1, 1), f32_gemm_2x4(2, 1), f32_gemm_3x4(3, 1), f32_gemm_4x4(4, 1), f32_gemm_5x4(5, 1), f32_gemm_6x4(6, 1), f32_gemm_7x4(7, 1), f32_gemm_8x4(8, 1), f32_gemm_9x4(9, 1), f32_gemm_10x4(10, 1), f32_gemm_11x4(11, 1), f32_gemm_12x4(12, 1), f32_gemm_13x4(13, 1), f32_gemm_14x4(14, 1),
    f32_gemm_1x8(1, 2), f32_gemm_2x8(2, 2), f32_gemm_3x8(3, 2), f32_gemm_4x8(4, 2), f32_gemm_5x8(5, 2), f32_gemm_6x8(6, 2), f32_gemm_7x8(7, 2), f32_gemm_8x8(8, 2), f32_gemm_9x8(9, 2), f32_gemm_10x8(10, 2), f32_gemm_11x8(11, 2), f32_gemm_12x8(12, 2), f32_gemm_13x8(13, 2), f32_gemm_14x8(14, 2),
    f32_gemm_1x12(1, 3), f32_gemm_2x12(2, 3), f32_gemm_3x12(3, 3), f32_gemm_4x12(4, 3), f32_gemm_5x12(5, 3), f32_gemm_6x12(6, 3), f32_gemm_7x12(7, 3), f32_gemm_8x12(8, 3), f32_gemm_9x12(9, 3),
    f32_gemm_1x16(1, 4), f32_gemm_2x16(2, 4), f32_gemm_3x16(3, 4), f32_gemm_4x16(4, 4), f32_gemm_5x16(5, 4), f32_gemm_6x16(6, 4),
    f32_gemm_1x24(1, 6), f32_gemm_2x24(2, 6), f32_gemm_3x24(3, 6), f32_gemm_4x24(4, 6),
    f32_gemm_1x32(1, 8), f32_gemm_2x32(2, 8), f32_gemm_3x32(3, 8),
    f32_gemm_1x48(1, 12), f32_gemm_2x48(2, 12),
);

tiles!(channel, F32x4, Isa::Neon, #[target_feature(enable = "neon")], CHANNEL:
    f32_gemmt_4x1(1, 1), f32_gemmt_4x2(2, 1), f32_gemmt_4x3(3, 1), f32_gemmt_4x4(4, 1), f32_gemmt_4x5(5, 1), f32_gemmt_4x6(6, 1), f32_gemmt_4x7(7, 1), f32_gemmt_4x8(8, 1), f32_gemmt_4x9(9, 1), f32_gemmt_4x10(10, 1), f32_gemmt_4x11(11, 1), f32_gemmt_4x12(12, 1), f32_gemmt_4x13(13, 1), f32_gemmt_4x14(14, 1),
    f32_gemmt_8x1(1, 2), f32_gemmt_8x2(2, 2), f32_gemmt_8x3(3, 2), f32_gemmt_8x4(4, 2), f32_gemmt_8x5(5, 2), f32_gemmt_8x6(6, 2), f32_gemmt_8x7(7, 2), f32_gemmt_8x8(8, 2), f32_gemmt_8x9(9, 2), f32_gemmt_8x10(10, 2), f32_gemmt_8x11(11, 2), f32_gemmt_8x12(12, 2), f32_gemmt_8x13(13, 2), f32_gemmt_8x14(14, 2),
);

tiles!(two_rows, F32x4, Isa::Neon, #[target_feature(enable = "neon")], TWO_ROWS:
    f32_gemmt2_4x4(2, 1), f32_gemmt2_4x6(3, 1), f32_gemmt2_4x8(4, 1), f32_gemmt2_4x10(5, 1), f32_gemmt2_4x12(6, 1),
    f32_gemmt2_8x4(2, 2), f32_gemmt2_8x6(3, 2), f32_gemmt2_8x8(4, 2), f32_gemmt2_8x10(5, 2), f32_gemmt2_8x12(6, 2),
);
