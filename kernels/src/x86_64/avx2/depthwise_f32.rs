//! AVX2 direct tiles for f32.
//!
//! Register budget, of 16 ymm: R sums, the R + N - 1 rows of a column of N taps, a weight: 6 rows and 4 taps are 16, with more taps some rows are kept in
//! memory. Fewer rows need none, and are slower with 5 taps and more (7x7: 82 instead of 96 GFLOP/s with 4 rows). `dw` runs vectors along positions
//! (R x NR), `dwt` along channels (NR x R).

use super::vector::F32x8;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")],
    direct: f32_dw_1x8_direct, f32_dw_2x8_direct, f32_dw_3x8_direct, f32_dw_4x8_direct, f32_dw_5x8_direct, f32_dw_6x8_direct;
    rows: f32_dw_1x8(1), f32_dw_2x8(2), f32_dw_3x8(3), f32_dw_4x8(4), f32_dw_5x8(5), f32_dw_6x8(6);
    channels: f32_dwt_8x1(1), f32_dwt_8x2(2), f32_dwt_8x3(3), f32_dwt_8x4(4), f32_dwt_8x5(5), f32_dwt_8x6(6),
);
