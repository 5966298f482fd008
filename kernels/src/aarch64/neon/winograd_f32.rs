//! NEON Winograd transforms for f32.
//!
//! There are 32 registers. The input transform holds two rows of values (up to 16) and a column
//! of the tile (up to 8). So does the output transform.

use super::vector::F32x4;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x4, f32, Isa::Neon, #[target_feature(enable = "neon")]);
