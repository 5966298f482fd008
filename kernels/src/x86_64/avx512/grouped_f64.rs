//! AVX-512 direct tiles of several output channels for f64.
//!
//! A tile takes `MR * NRV` sums, the smaller of MR weights and NRV vectors, and one register
//! more. Of 32 zmm registers, 4x6 (MR x NRV) takes 29, 8x3 28, 6x4 29 and 3x7 25. The masks of a
//! column are in mask registers. There are 7 of these, so that NRV is at most 7.

use super::vector::F64x8;
use crate::Isa;
use crate::generic::grouped::grouped;

grouped!(F64x8, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")]:
    f64_group_8x8(8, 1),
    f64_group_6x16(6, 2), f64_group_8x16(8, 2),
    f64_group_4x24(4, 3), f64_group_6x24(6, 3), f64_group_8x24(8, 3),
    f64_group_2x32(2, 4), f64_group_3x32(3, 4), f64_group_4x32(4, 4), f64_group_6x32(6, 4),
    f64_group_3x40(3, 5), f64_group_4x40(4, 5),
    f64_group_4x48(4, 6),
    f64_group_2x56(2, 7), f64_group_3x56(3, 7),
);
