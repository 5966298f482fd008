//! NEON direct tiles of several output channels for f64.
//!
//! A vector is two registers. A tile takes `MR * NRV` sums, NRV vectors and their masks, and the
//! weights, two in a register. Of 32 registers, 4x2 (MR x NRV) takes 26, 3x2 22 and 6x1 19.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F64x4, Isa::Neon, #[target_feature(enable = "neon")]:
    f64_group_3x4(3, 1), f64_group_4x4(4, 1), f64_group_6x4(6, 1),
    f64_group_2x8(2, 2), f64_group_3x8(3, 2), f64_group_4x8(4, 2),
    f64_group_2x12(2, 3),
);
