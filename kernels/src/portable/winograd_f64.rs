//! Portable Winograd transforms for f64.
//!
//! A vector of 256 bits is two of the 16 xmm registers of x86-64's baseline. The transforms keep
//! most of their values in the L1 cache.

use super::vector::F64x4;
use crate::Isa;
use crate::generic::winograd_tiles;

winograd_tiles!(F64x4, f64, Isa::Portable, #[inline(never)]);
