//! AVX-512 GEMM tiles for f32.
//!
//! A tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//! register more. Of 32 zmm registers, 14x2 (MR x NRV) takes 31, 9x3 31, 6x4 29, 4x6 29, 3x8 28
//! and 2x12 27.
//!
//! Narrower tiles of the same MR serve the column tail, and tiles of smaller MR the row tail.
//! Wide tiles of few rows serve few output channels. `gemm` runs vectors along output positions,
//! `gemmt` along output channels (NR x pixels), and `gemmt2` along output channels with the
//! pixels in two rows.

use super::vector::F32x16;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], SPATIAL:
    f32_gemm_1x16(1, 1), f32_gemm_2x16(2, 1), f32_gemm_3x16(3, 1), f32_gemm_4x16(4, 1), f32_gemm_5x16(5, 1), f32_gemm_6x16(6, 1), f32_gemm_7x16(7, 1), f32_gemm_8x16(8, 1), f32_gemm_9x16(9, 1), f32_gemm_10x16(10, 1), f32_gemm_11x16(11, 1), f32_gemm_12x16(12, 1), f32_gemm_13x16(13, 1), f32_gemm_14x16(14, 1),
    f32_gemm_1x32(1, 2), f32_gemm_2x32(2, 2), f32_gemm_3x32(3, 2), f32_gemm_4x32(4, 2), f32_gemm_5x32(5, 2), f32_gemm_6x32(6, 2), f32_gemm_7x32(7, 2), f32_gemm_8x32(8, 2), f32_gemm_9x32(9, 2), f32_gemm_10x32(10, 2), f32_gemm_11x32(11, 2), f32_gemm_12x32(12, 2), f32_gemm_13x32(13, 2), f32_gemm_14x32(14, 2),
    f32_gemm_1x48(1, 3), f32_gemm_2x48(2, 3), f32_gemm_3x48(3, 3), f32_gemm_4x48(4, 3), f32_gemm_5x48(5, 3), f32_gemm_6x48(6, 3), f32_gemm_7x48(7, 3), f32_gemm_8x48(8, 3), f32_gemm_9x48(9, 3),
    f32_gemm_1x64(1, 4), f32_gemm_2x64(2, 4), f32_gemm_3x64(3, 4), f32_gemm_4x64(4, 4), f32_gemm_5x64(5, 4), f32_gemm_6x64(6, 4),
    f32_gemm_1x96(1, 6), f32_gemm_2x96(2, 6), f32_gemm_3x96(3, 6), f32_gemm_4x96(4, 6),
    f32_gemm_1x128(1, 8), f32_gemm_2x128(2, 8), f32_gemm_3x128(3, 8),
    f32_gemm_1x192(1, 12), f32_gemm_2x192(2, 12),
);

tiles!(channel, F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], CHANNEL:
    f32_gemmt_16x1(1, 1), f32_gemmt_16x2(2, 1), f32_gemmt_16x3(3, 1), f32_gemmt_16x4(4, 1), f32_gemmt_16x5(5, 1), f32_gemmt_16x6(6, 1), f32_gemmt_16x7(7, 1), f32_gemmt_16x8(8, 1), f32_gemmt_16x9(9, 1), f32_gemmt_16x10(10, 1), f32_gemmt_16x11(11, 1), f32_gemmt_16x12(12, 1), f32_gemmt_16x13(13, 1), f32_gemmt_16x14(14, 1),
    f32_gemmt_32x1(1, 2), f32_gemmt_32x2(2, 2), f32_gemmt_32x3(3, 2), f32_gemmt_32x4(4, 2), f32_gemmt_32x5(5, 2), f32_gemmt_32x6(6, 2), f32_gemmt_32x7(7, 2), f32_gemmt_32x8(8, 2), f32_gemmt_32x9(9, 2), f32_gemmt_32x10(10, 2), f32_gemmt_32x11(11, 2), f32_gemmt_32x12(12, 2), f32_gemmt_32x13(13, 2), f32_gemmt_32x14(14, 2),
);

tiles!(two_rows, F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], TWO_ROWS:
    f32_gemmt2_16x4(2, 1), f32_gemmt2_16x6(3, 1), f32_gemmt2_16x8(4, 1), f32_gemmt2_16x10(5, 1), f32_gemmt2_16x12(6, 1),
    f32_gemmt2_32x4(2, 2), f32_gemmt2_32x6(3, 2), f32_gemmt2_32x8(4, 2), f32_gemmt2_32x10(5, 2), f32_gemmt2_32x12(6, 2),
);
