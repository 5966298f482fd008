//! AVX-512 GEMM tiles for f64.
//!
//! A tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//! register more. Of 32 zmm registers, 14x2 (MR x NRV) takes 31, 9x3 31, 6x4 29, 4x6 29, 3x8 28
//! and 2x12 27.
//!
//! Narrower tiles of the same MR serve the column tail, and tiles of smaller MR the row tail.
//! Wide tiles of few rows serve few output channels. `gemm` runs vectors along output positions,
//! `gemmt` along output channels (NR x pixels), and `gemmt2` along output channels with the
//! pixels in two rows.

use super::vector::F64x8;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], SPATIAL:
    f64_gemm_1x8(1, 1), f64_gemm_2x8(2, 1), f64_gemm_3x8(3, 1), f64_gemm_4x8(4, 1), f64_gemm_5x8(5, 1), f64_gemm_6x8(6, 1), f64_gemm_7x8(7, 1), f64_gemm_8x8(8, 1), f64_gemm_9x8(9, 1), f64_gemm_10x8(10, 1), f64_gemm_11x8(11, 1), f64_gemm_12x8(12, 1), f64_gemm_13x8(13, 1), f64_gemm_14x8(14, 1),
    f64_gemm_1x16(1, 2), f64_gemm_2x16(2, 2), f64_gemm_3x16(3, 2), f64_gemm_4x16(4, 2), f64_gemm_5x16(5, 2), f64_gemm_6x16(6, 2), f64_gemm_7x16(7, 2), f64_gemm_8x16(8, 2), f64_gemm_9x16(9, 2), f64_gemm_10x16(10, 2), f64_gemm_11x16(11, 2), f64_gemm_12x16(12, 2), f64_gemm_13x16(13, 2), f64_gemm_14x16(14, 2),
    f64_gemm_1x24(1, 3), f64_gemm_2x24(2, 3), f64_gemm_3x24(3, 3), f64_gemm_4x24(4, 3), f64_gemm_5x24(5, 3), f64_gemm_6x24(6, 3), f64_gemm_7x24(7, 3), f64_gemm_8x24(8, 3), f64_gemm_9x24(9, 3),
    f64_gemm_1x32(1, 4), f64_gemm_2x32(2, 4), f64_gemm_3x32(3, 4), f64_gemm_4x32(4, 4), f64_gemm_5x32(5, 4), f64_gemm_6x32(6, 4),
    f64_gemm_1x48(1, 6), f64_gemm_2x48(2, 6), f64_gemm_3x48(3, 6), f64_gemm_4x48(4, 6),
    f64_gemm_1x64(1, 8), f64_gemm_2x64(2, 8), f64_gemm_3x64(3, 8),
    f64_gemm_1x96(1, 12), f64_gemm_2x96(2, 12),
);

tiles!(channel, F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], CHANNEL:
    f64_gemmt_8x1(1, 1), f64_gemmt_8x2(2, 1), f64_gemmt_8x3(3, 1), f64_gemmt_8x4(4, 1), f64_gemmt_8x5(5, 1), f64_gemmt_8x6(6, 1), f64_gemmt_8x7(7, 1), f64_gemmt_8x8(8, 1), f64_gemmt_8x9(9, 1), f64_gemmt_8x10(10, 1), f64_gemmt_8x11(11, 1), f64_gemmt_8x12(12, 1), f64_gemmt_8x13(13, 1), f64_gemmt_8x14(14, 1),
    f64_gemmt_16x1(1, 2), f64_gemmt_16x2(2, 2), f64_gemmt_16x3(3, 2), f64_gemmt_16x4(4, 2), f64_gemmt_16x5(5, 2), f64_gemmt_16x6(6, 2), f64_gemmt_16x7(7, 2), f64_gemmt_16x8(8, 2), f64_gemmt_16x9(9, 2), f64_gemmt_16x10(10, 2), f64_gemmt_16x11(11, 2), f64_gemmt_16x12(12, 2), f64_gemmt_16x13(13, 2), f64_gemmt_16x14(14, 2),
);

tiles!(two_rows, F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")], TWO_ROWS:
    f64_gemmt2_8x4(2, 1), f64_gemmt2_8x6(3, 1), f64_gemmt2_8x8(4, 1), f64_gemmt2_8x10(5, 1), f64_gemmt2_8x12(6, 1),
    f64_gemmt2_16x4(2, 2), f64_gemmt2_16x6(3, 2), f64_gemmt2_16x8(4, 2), f64_gemmt2_16x10(5, 2), f64_gemmt2_16x12(6, 2),
);
