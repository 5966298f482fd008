//! Portable Winograd transforms for f32.
//!
//! Vectors of 256 bits are two xmm registers of x86-64's baseline: the transforms keep most of
//! their values in the L1 cache.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x8, f32, Isa::Portable, #[inline(never)]);
