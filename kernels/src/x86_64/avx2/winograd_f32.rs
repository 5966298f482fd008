//! AVX2 Winograd transforms for f32.
//!
//! There are 16 ymm registers. The input transform holds two rows of values (up to 16) and a
//! column of the tile (up to 8), so that larger tiles keep a part of these in the L1 cache. So
//! does the output transform.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x8, f32, Isa::Avx2, #[target_feature(enable = "avx2,fma")]);
