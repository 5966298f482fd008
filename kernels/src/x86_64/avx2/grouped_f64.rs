//! AVX2 direct tiles of several output channels for f64.
//!
//! A tile takes `MR * NRV` sums, the smaller of MR weights and NRV vectors, and one register
//! more. Of 16 ymm registers, 4x2 (MR x NRV) takes 11, 6x2 15 and 3x3 13. The masks of a column
//! are read from memory.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F64x4, Isa::Avx2, #[target_feature(enable = "avx2,fma")]:
    f64_group_4x4(4, 1), f64_group_5x4(5, 1), f64_group_6x4(6, 1),
    f64_group_3x8(3, 2), f64_group_4x8(4, 2), f64_group_5x8(5, 2), f64_group_6x8(6, 2),
    f64_group_2x12(2, 3), f64_group_3x12(3, 3),
    f64_group_2x16(2, 4),
);
