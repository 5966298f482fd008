//! NEON direct tiles for f64.
//!
//! A vector is two registers. A tile takes R sums, the R + N - 1 rows of a column of N taps, and
//! a weight. Of 32 registers, 4 rows and 7 taps take 30.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F64x4;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F64x4, Isa::Neon, #[target_feature(enable = "neon")],
    direct: f64_dw_1x4_direct, f64_dw_2x4_direct, f64_dw_3x4_direct, f64_dw_4x4_direct;
    rows: f64_dw_1x4(1), f64_dw_2x4(2), f64_dw_3x4(3), f64_dw_4x4(4);
    channels: f64_dwt_4x1(1), f64_dwt_4x2(2), f64_dwt_4x3(3), f64_dwt_4x4(4),
);
