//! Portable Winograd transforms for f32.
//!
//! A vector of 256 bits is two of the 16 xmm registers of x86-64's baseline. The transforms keep
//! most of their values in the L1 cache.

use super::vector::F32x8;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F32x8, f32, Isa::Portable, #[inline(never)]);
