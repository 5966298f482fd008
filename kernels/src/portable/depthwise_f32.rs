//! Portable direct tiles for f32.
//!
//! A vector is two of 16 registers. A tile holds R sums in registers, and reads again from memory
//! what does not fit beside them.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F32x8;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F32x8, Isa::Portable, #[inline(never)],
    direct: f32_dw_1x8_direct, f32_dw_2x8_direct, f32_dw_3x8_direct;
    rows: f32_dw_1x8(1), f32_dw_2x8(2), f32_dw_3x8(3);
    channels: f32_dwt_8x1(1), f32_dwt_8x2(2), f32_dwt_8x3(3),
);
