//! AVX-512 direct tiles for f32.
//!
//! A tile takes R sums, the N weights of a column, one row, bias and bounds. Of 32 zmm registers,
//! 14 rows and 7 taps take 25. With stride 2 it takes R <= 8 sums, the weights of two columns,
//! two vectors before and after their split, and the permutations: 24 with 5 taps. With fewer
//! than 8 sums, multiply-adds would wait for one another. Row by row it takes R sums, 9 weights
//! and three vectors of a row: 26 with 14 rows.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R). There are `dw`
//! tiles with half as long vectors, for rows that fit in them.

use super::vector::F32x16;
use crate::Isa;
use crate::generic::depthwise::depthwise;
use crate::x86_64::avx2::vector::F32x8;

depthwise!(F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")],
    direct: f32_dw_1x16_direct, f32_dw_2x16_direct, f32_dw_3x16_direct, f32_dw_4x16_direct, f32_dw_5x16_direct, f32_dw_6x16_direct, f32_dw_7x16_direct, f32_dw_8x16_direct, f32_dw_9x16_direct, f32_dw_10x16_direct, f32_dw_11x16_direct, f32_dw_12x16_direct, f32_dw_13x16_direct, f32_dw_14x16_direct;
    rows: f32_dw_1x16(1), f32_dw_2x16(2), f32_dw_3x16(3), f32_dw_4x16(4), f32_dw_5x16(5), f32_dw_6x16(6), f32_dw_7x16(7), f32_dw_8x16(8), f32_dw_9x16(9), f32_dw_10x16(10), f32_dw_11x16(11), f32_dw_12x16(12), f32_dw_13x16(13), f32_dw_14x16(14);
    narrow: F32x8, direct: f32_dw_1x8_direct, f32_dw_2x8_direct, f32_dw_3x8_direct, f32_dw_4x8_direct, f32_dw_5x8_direct, f32_dw_6x8_direct, f32_dw_7x8_direct, f32_dw_8x8_direct;
    rows: f32_dw_1x8(1), f32_dw_2x8(2), f32_dw_3x8(3), f32_dw_4x8(4), f32_dw_5x8(5), f32_dw_6x8(6), f32_dw_7x8(7), f32_dw_8x8(8);
    channels: f32_dwt_16x1(1), f32_dwt_16x2(2), f32_dwt_16x3(3), f32_dwt_16x4(4), f32_dwt_16x5(5), f32_dwt_16x6(6), f32_dwt_16x7(7), f32_dwt_16x8(8),
);
