//! Portable Winograd transforms for f64.
//!
//! Vectors of 256 bits are two xmm registers of x86-64's baseline: the transforms keep most of their values in the L1 cache.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F64x4, Isa::Portable, #[inline(never)]:
    f64_winograd_f2x2_3x3(4, 2; 4, 2),
    f64_winograd_f4x4_3x3(6, 4; 6, 4),
    f64_winograd_f3x3_4x4(6, 3; 6, 3),
    f64_winograd_f2x2_5x5(6, 2; 6, 2),
    f64_winograd_f6x6_3x3(8, 6; 8, 6),
    f64_winograd_f1x2_1x3(1, 1; 4, 2),
    f64_winograd_f1x4_1x3(1, 1; 6, 4),
    f64_winograd_f1x3_1x4(1, 1; 6, 3),
    f64_winograd_f1x2_1x5(1, 1; 6, 2),
    f64_winograd_f1x6_1x3(1, 1; 8, 6),
    f64_winograd_f4x1_3x1(6, 4; 1, 1),
    f64_winograd_f3x1_4x1(6, 3; 1, 1),
    f64_winograd_f2x1_5x1(6, 2; 1, 1),
);
