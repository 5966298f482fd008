//! NEON tiles of several output channels for f64, straight from X.
//!
//! Register budget, of 32, two a vector: MR * NRV sums, NRV vectors and their masks, and the
//! weights, a register for two of them: 4x2 is 26, 3x2 22, 6x1 19.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F64x4, Isa::Neon, #[target_feature(enable = "neon")]:
    f64_group_3x4(3, 1), f64_group_4x4(4, 1), f64_group_6x4(6, 1),
    f64_group_2x8(2, 2), f64_group_3x8(3, 2), f64_group_4x8(4, 2),
    f64_group_2x12(2, 3),
);
