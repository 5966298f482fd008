//! AVX2 and FMA.

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
/// Of AVX-512 too: its narrow kernels have vectors of this size.
pub(crate) mod vector;
#[cfg(feature = "avx2")]
pub(crate) mod weave;
#[cfg(feature = "avx2")]
pub(crate) mod winograd_f32;
#[cfg(feature = "avx2")]
pub(crate) mod winograd_f64;
