//! AVX-512 Winograd transforms for f32.
//!
//! Register budget, of 32 zmm: the input transform holds two rows of values (up to 16), a column of the tile (up to 8) and one operand; the output
//! transform an output column (up to 8 + 6 and the pairs' sums), and spills what it keeps of other columns to the L1 cache.

use super::vector::F32x16;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")]:
    f32_winograd_f2x2_3x3(4, 2; 4, 2),
    f32_winograd_f4x4_3x3(6, 4; 6, 4),
    f32_winograd_f3x3_4x4(6, 3; 6, 3),
    f32_winograd_f2x2_5x5(6, 2; 6, 2),
    f32_winograd_f6x6_3x3(8, 6; 8, 6),
    f32_winograd_f1x2_1x3(1, 1; 4, 2),
    f32_winograd_f1x4_1x3(1, 1; 6, 4),
    f32_winograd_f1x3_1x4(1, 1; 6, 3),
    f32_winograd_f1x2_1x5(1, 1; 6, 2),
    f32_winograd_f1x6_1x3(1, 1; 8, 6),
    f32_winograd_f4x1_3x1(6, 4; 1, 1),
    f32_winograd_f3x1_4x1(6, 3; 1, 1),
    f32_winograd_f2x1_5x1(6, 2; 1, 1),
);
