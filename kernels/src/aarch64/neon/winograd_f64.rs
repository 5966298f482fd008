//! NEON Winograd transforms for f64.
//!
//! A vector is two of 32 registers: the input transform holds two rows of values (up to 32) and a
//! column of the tile (up to 16), so that the larger tiles keep a part of them in the L1 cache; so
//! does the output transform.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F64x4, f64, Isa::Neon, #[target_feature(enable = "neon")]);
