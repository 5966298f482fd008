//! AVX-512 direct tiles of several output channels for f32.
//!
//! A tile takes `MR * NRV` sums, the smaller of MR weights and NRV vectors, and one register
//! more. Of 32 zmm registers, 4x6 (MR x NRV) takes 29, 8x3 28, 6x4 29 and 3x7 25. The masks of a
//! column are in mask registers. There are 7 of these, so that NRV is at most 7.

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
