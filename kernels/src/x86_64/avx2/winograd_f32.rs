//! AVX2 Winograd transforms for f32.
//!
//! Register budget, of 16 ymm: the input transform holds two rows of values (up to 16) and a column
//! of the tile (up to 8), so that the larger tiles keep a part of them in the L1 cache; so does the
//! output transform.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x8, f32, Isa::Avx2, #[target_feature(enable = "avx2,fma")]);
