//! x86-64.

#[cfg(feature = "avx2")]
pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;
