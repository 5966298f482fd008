//! AVX-512 direct tiles for f64.
//!
//! A tile takes R sums, the N weights of a column, one row, bias and bounds. Of 32 zmm registers,
//! 8 rows and 7 taps take 19. With stride 2 it takes R <= 8 sums, the weights of two columns, two
//! vectors before and after their split, and the permutations: 24 with 5 taps. With fewer than 8
//! sums, multiply-adds would wait for one another. Only f32 has taller tiles, because each height
//! is code of its own.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R). There are `dw`
//! tiles with half as long vectors, for rows that fit in them.

use super::vector::F64x8;
use crate::Isa;
use crate::generic::depthwise::depthwise;
use crate::x86_64::avx2::vector::F64x4;

depthwise!(F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")],
    direct: f64_dw_1x8_direct, f64_dw_2x8_direct, f64_dw_3x8_direct, f64_dw_4x8_direct, f64_dw_5x8_direct, f64_dw_6x8_direct, f64_dw_7x8_direct, f64_dw_8x8_direct;
    rows: f64_dw_1x8(1), f64_dw_2x8(2), f64_dw_3x8(3), f64_dw_4x8(4), f64_dw_5x8(5), f64_dw_6x8(6), f64_dw_7x8(7), f64_dw_8x8(8);
    narrow: F64x4, direct: f64_dw_1x4_direct, f64_dw_2x4_direct, f64_dw_3x4_direct, f64_dw_4x4_direct;
    rows: f64_dw_1x4(1), f64_dw_2x4(2), f64_dw_3x4(3), f64_dw_4x4(4);
    channels: f64_dwt_8x1(1), f64_dwt_8x2(2), f64_dwt_8x3(3), f64_dwt_8x4(4), f64_dwt_8x5(5), f64_dwt_8x6(6), f64_dwt_8x7(7), f64_dwt_8x8(8),
);
