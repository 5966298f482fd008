//! x86-64.

#[cfg(any(feature = "avx2", feature = "avx512"))]
pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;
