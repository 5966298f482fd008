//! AVX-512 Winograd transforms for f32.
//!
//! There are 32 zmm registers. The input transform holds two rows of values (up to 16), a column
//! of the tile (up to 8) and one operand. The output transform holds one output column (up to 8 +
//! 6, and the sums of the pairs), and keeps other columns in the L1 cache.

use super::vector::F32x16;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x16, f32, Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")]);
