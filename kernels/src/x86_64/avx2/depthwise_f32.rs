//! AVX2 direct tiles for f32.
//!
//! A tile takes R sums, the N weights of a column, and one row. Of 16 ymm registers, 6 rows and 7
//! taps take 14. With stride 2 it takes R sums, the weights of two columns, two vectors before
//! and after their split, and the permutations: 4 rows and 3 taps take 16.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F32x8;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F32x8, Isa::Avx2, #[target_feature(enable = "avx2,fma")],
    direct: f32_dw_1x8_direct, f32_dw_2x8_direct, f32_dw_3x8_direct, f32_dw_4x8_direct, f32_dw_5x8_direct, f32_dw_6x8_direct;
    rows: f32_dw_1x8(1), f32_dw_2x8(2), f32_dw_3x8(3), f32_dw_4x8(4), f32_dw_5x8(5), f32_dw_6x8(6);
    channels: f32_dwt_8x1(1), f32_dwt_8x2(2), f32_dwt_8x3(3), f32_dwt_8x4(4), f32_dwt_8x5(5), f32_dwt_8x6(6),
);
