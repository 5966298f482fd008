//! NEON direct tiles for f32.
//!
//! A tile takes R sums, the R + N - 1 rows of a column of N taps, and a weight. Of 32 registers,
//! 6 rows and 7 taps take 19. Three columns of three taps take nine weights, 6 sums and 3 rows.
//! With 8 rows LLVM moves some of them to memory.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F32x4;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F32x4, Isa::Neon, #[target_feature(enable = "neon")],
    direct: f32_dw_1x4_direct, f32_dw_2x4_direct, f32_dw_3x4_direct, f32_dw_4x4_direct, f32_dw_5x4_direct, f32_dw_6x4_direct;
    rows: f32_dw_1x4(1), f32_dw_2x4(2), f32_dw_3x4(3), f32_dw_4x4(4), f32_dw_5x4(5), f32_dw_6x4(6);
    channels: f32_dwt_4x1(1), f32_dwt_4x2(2), f32_dwt_4x3(3), f32_dwt_4x4(4), f32_dwt_4x5(5), f32_dwt_4x6(6),
);
