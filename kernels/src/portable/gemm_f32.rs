//! Portable GEMM tiles for f32.
//!
//! Tiles are sized for the 16 xmm registers of x86-64's baseline, where a vector of 256 bits is
//! two registers. 3x8 takes 6 registers of accumulators, 2 of B and those of a broadcast.
//!
//! `gemm` runs vectors along output positions, `gemmt` along output channels (NR x pixels), and
//! `gemmt2` along output channels with the pixels in two rows.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F32x8, Isa::Portable, #[inline(never)], SPATIAL:
    f32_gemm_1x8(1, 1), f32_gemm_2x8(2, 1), f32_gemm_3x8(3, 1), f32_gemm_4x8(4, 1),
    f32_gemm_1x16(1, 2), f32_gemm_2x16(2, 2),
);

tiles!(channel, F32x8, Isa::Portable, #[inline(never)], CHANNEL:
    f32_gemmt_8x1(1, 1), f32_gemmt_8x2(2, 1), f32_gemmt_8x3(3, 1), f32_gemmt_8x4(4, 1),
);

tiles!(two_rows, F32x8, Isa::Portable, #[inline(never)], TWO_ROWS:
    f32_gemmt2_8x4(2, 1),
);
