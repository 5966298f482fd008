//! AVX-512 tiles of several output channels for f32, straight from X.
//!
//! Register budget, of 32 zmm: MR * NRV sums, the smaller of MR weights and NRV vectors, one more:
//! 4x6 is 29, 8x3 28, 6x4 29, 3x7 25. Masks of a column are in mask registers, of which there are
//! 7: NRV is at most that.

use super::vector::F32x16;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F32x16, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")]:
    f32_group_8x16(8, 1),
    f32_group_6x32(6, 2), f32_group_8x32(8, 2),
    f32_group_4x48(4, 3), f32_group_6x48(6, 3), f32_group_8x48(8, 3),
    f32_group_2x64(2, 4), f32_group_3x64(3, 4), f32_group_4x64(4, 4), f32_group_6x64(6, 4),
    f32_group_3x80(3, 5), f32_group_4x80(4, 5),
    f32_group_4x96(4, 6),
    f32_group_2x112(2, 7), f32_group_3x112(3, 7),
);
