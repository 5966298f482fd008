//! NEON Winograd transforms for f64.
//!
//! A vector is two of 32 registers. The input transform holds two rows of values (up to 32
//! registers) and a column of the tile (up to 16), so that larger tiles keep a part of these in
//! the L1 cache. So does the output transform.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F64x4, f64, Isa::Neon, #[target_feature(enable = "neon")]);
