//! Portable GEMM tiles for f64.
//!
//! Tiles are sized for the 16 xmm registers of x86-64's baseline, where a vector of 256 bits is
//! two registers. 3x4 takes 6 registers of accumulators, 2 of B and those of a broadcast.
//!
//! `gemm` runs vectors along output positions, `gemmt` along output channels (NR x pixels), and
//! `gemmt2` along output channels with the pixels in two rows.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::tiles;

tiles!(spatial, F64x4, Isa::Portable, #[inline(never)], SPATIAL:
    f64_gemm_1x4(1, 1), f64_gemm_2x4(2, 1), f64_gemm_3x4(3, 1), f64_gemm_4x4(4, 1),
    f64_gemm_1x8(1, 2), f64_gemm_2x8(2, 2),
);

tiles!(channel, F64x4, Isa::Portable, #[inline(never)], CHANNEL:
    f64_gemmt_4x1(1, 1), f64_gemmt_4x2(2, 1), f64_gemmt_4x3(3, 1), f64_gemmt_4x4(4, 1),
);

tiles!(two_rows, F64x4, Isa::Portable, #[inline(never)], TWO_ROWS:
    f64_gemmt2_4x4(2, 1),
);
