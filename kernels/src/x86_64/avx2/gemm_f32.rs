//! AVX2 + FMA GEMM tiles for f32.
//!
//! A tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//! register more. Of 16 ymm registers, 6x2 (MR x NRV) takes 15, 3x3 13, 2x4 11 and 2x6 15. 4x3
//! would take 16, and LLVM spills it.
//!
//! Narrower tiles of the same MR serve the column tail, and tiles of smaller MR the row tail.
//! Wide tiles of few rows serve few output channels. `gemm` runs vectors along output positions,
//! `gemmt` along output channels (NR x pixels), and `gemmt2` along output channels with the
//! pixels in two rows.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], SPATIAL:
    f32_gemm_1x8(1, 1), f32_gemm_2x8(2, 1), f32_gemm_3x8(3, 1), f32_gemm_4x8(4, 1), f32_gemm_5x8(5, 1), f32_gemm_6x8(6, 1),
    f32_gemm_1x16(1, 2), f32_gemm_2x16(2, 2), f32_gemm_3x16(3, 2), f32_gemm_4x16(4, 2), f32_gemm_5x16(5, 2), f32_gemm_6x16(6, 2),
    f32_gemm_1x24(1, 3), f32_gemm_2x24(2, 3), f32_gemm_3x24(3, 3),
    f32_gemm_1x32(1, 4), f32_gemm_2x32(2, 4),
    f32_gemm_1x48(1, 6), f32_gemm_2x48(2, 6),
);

tiles!(channel, F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], CHANNEL:
    f32_gemmt_8x1(1, 1), f32_gemmt_8x2(2, 1), f32_gemmt_8x3(3, 1), f32_gemmt_8x4(4, 1), f32_gemmt_8x5(5, 1), f32_gemmt_8x6(6, 1),
    f32_gemmt_16x1(1, 2), f32_gemmt_16x2(2, 2), f32_gemmt_16x3(3, 2), f32_gemmt_16x4(4, 2), f32_gemmt_16x5(5, 2), f32_gemmt_16x6(6, 2),
);

tiles!(two_rows, F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")], TWO_ROWS:
    f32_gemmt2_8x4(2, 1), f32_gemmt2_8x6(3, 1),
    f32_gemmt2_16x4(2, 2), f32_gemmt2_16x6(3, 2),
);
