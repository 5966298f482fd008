//! AVX2 direct tiles for f64.
//!
//! A tile takes R sums, the N weights of a column, and one row. Of 16 ymm registers, 6 rows and 7
//! taps take 14. With stride 2 it takes R sums, the weights of two columns, two vectors before
//! and after their split, and the permutations: 4 rows and 3 taps take 16.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F64x4;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")],
    direct: f64_dw_1x4_direct, f64_dw_2x4_direct, f64_dw_3x4_direct, f64_dw_4x4_direct, f64_dw_5x4_direct, f64_dw_6x4_direct;
    rows: f64_dw_1x4(1), f64_dw_2x4(2), f64_dw_3x4(3), f64_dw_4x4(4), f64_dw_5x4(5), f64_dw_6x4(6);
    channels: f64_dwt_4x1(1), f64_dwt_4x2(2), f64_dwt_4x3(3), f64_dwt_4x4(4), f64_dwt_4x5(5), f64_dwt_4x6(6),
);
