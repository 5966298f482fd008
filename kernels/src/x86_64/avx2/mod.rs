//! The kernels for AVX2 and FMA.

#[cfg(feature = "avx2")]
pub(crate) mod activation;
#[cfg(feature = "avx2")]
pub(crate) mod depthwise_f32;
#[cfg(feature = "avx2")]
pub(crate) mod depthwise_f64;
#[cfg(feature = "avx2")]
pub(crate) mod gemm_f32;
#[cfg(feature = "avx2")]
pub(crate) mod gemm_f64;
#[cfg(feature = "avx2")]
pub(crate) mod grouped_f32;
#[cfg(feature = "avx2")]
pub(crate) mod grouped_f64;
#[cfg(feature = "avx2")]
pub(crate) mod upsample;
/// AVX-512 uses these vectors too, in its kernels for narrow rows.
pub(crate) mod vector;
#[cfg(feature = "avx2")]
pub(crate) mod weave;
#[cfg(feature = "avx2")]
pub(crate) mod winograd_f32;
#[cfg(feature = "avx2")]
pub(crate) mod winograd_f64;
