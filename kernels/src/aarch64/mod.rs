//! AArch64.

#[cfg(feature = "neon")]
pub(crate) mod neon;
