//! AVX-512 direct tiles for f64.
//!
//! Register budget, of 32: R sums, the N weights of a column, one row, bias and bounds: 8 rows and
//! 7 taps are 19. With stride 2, R <= 8 sums, the weights of two columns, two vectors before and
//! behind their split and its permutations: 24 with 5 taps. Fewer than 8 sums would wait for one
//! another. `dw` runs vectors along positions (R x NR; half as long for rows that fit in them),
//! `dwt` along channels (NR x R). Taller tiles are left to f32, as each costs code.

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
