//! AVX2 + FMA GEMM tiles for f64.
//!
//! A tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//! register more. Of 16 ymm registers, 6x2 (MR x NRV) takes 15, 3x3 13, 2x4 11 and 2x6 15. 4x3
//! would take 16, and LLVM spills it.
//!
//! Narrower tiles of the same MR serve the column tail, and tiles of smaller MR the row tail.
//! Wide tiles of few rows serve few output channels. `gemm` runs vectors along output positions,
//! `gemmt` along output channels (NR x pixels), and `gemmt2` along output channels with the
//! pixels in two rows.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], SPATIAL:
    f64_gemm_1x4(1, 1), f64_gemm_2x4(2, 1), f64_gemm_3x4(3, 1), f64_gemm_4x4(4, 1), f64_gemm_5x4(5, 1), f64_gemm_6x4(6, 1),
    f64_gemm_1x8(1, 2), f64_gemm_2x8(2, 2), f64_gemm_3x8(3, 2), f64_gemm_4x8(4, 2), f64_gemm_5x8(5, 2), f64_gemm_6x8(6, 2),
    f64_gemm_1x12(1, 3), f64_gemm_2x12(2, 3), f64_gemm_3x12(3, 3),
    f64_gemm_1x16(1, 4), f64_gemm_2x16(2, 4),
    f64_gemm_1x24(1, 6), f64_gemm_2x24(2, 6),
);

tiles!(channel, F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], CHANNEL:
    f64_gemmt_4x1(1, 1), f64_gemmt_4x2(2, 1), f64_gemmt_4x3(3, 1), f64_gemmt_4x4(4, 1), f64_gemmt_4x5(5, 1), f64_gemmt_4x6(6, 1),
    f64_gemmt_8x1(1, 2), f64_gemmt_8x2(2, 2), f64_gemmt_8x3(3, 2), f64_gemmt_8x4(4, 2), f64_gemmt_8x5(5, 2), f64_gemmt_8x6(6, 2),
);

tiles!(two_rows, F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")], TWO_ROWS:
    f64_gemmt2_4x4(2, 1), f64_gemmt2_4x6(3, 1),
    f64_gemmt2_8x4(2, 2), f64_gemmt2_8x6(3, 2),
);
