//! Portable direct tiles for f64.
//!
//! A vector is two of 16 registers. A tile holds R sums in registers, and reads again from memory
//! what does not fit beside them.
//!
//! `dw` runs vectors along positions (R x NR), `dwt` along channels (NR x R).

use super::vector::F64x4;
use crate::Isa;
use crate::generic::depthwise::depthwise;

depthwise!(F64x4, Isa::Portable, #[inline(never)],
    direct: f64_dw_1x4_direct, f64_dw_2x4_direct, f64_dw_3x4_direct;
    rows: f64_dw_1x4(1), f64_dw_2x4(2), f64_dw_3x4(3);
    channels: f64_dwt_4x1(1), f64_dwt_4x2(2), f64_dwt_4x3(3),
);
