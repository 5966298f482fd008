//! SIMD micro-kernels behind [`convoke`](https://docs.rs/convoke): GEMM tiles, direct and
//! Winograd kernels, and streaming passes.
//!
//! This crate knows panels and tiles, but no tensors, no ONNX attributes, no threads and no
//! global state. It holds nearly all of the project's `unsafe`. What it exports is safe to call: a
//! call asserts all lengths, and that the CPU has the kernel's instruction set.
//!
//! All kernels keep these contracts:
//! * nothing outside the given slices is read or written, not even by a vector's unused lanes;
//! * without `accumulate`, a tile's old contents are not read: it may hold NaN;
//! * NaN and infinities follow IEEE 754. No product with a zero is skipped, except products with
//!   padding in kernels that ask for finite weights. Clamping lets NaN pass.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
mod aarch64;
pub mod activation;
pub mod catalogue;
#[cfg(any(
    all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"),
    all(target_arch = "x86_64", feature = "avx512")
))]
mod convert;
mod depthwise;
mod depthwise_transposed;
mod dest;
pub mod dot;
mod generic;
mod grouped;
pub mod interleave;
pub mod isa;
mod pixel;
mod pixel_depthwise;
mod portable;
mod real;
#[cfg(any(
    all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"),
    all(target_arch = "x86_64", any(feature = "avx2", feature = "avx512"))
))]
mod registers;
mod simd;
pub mod stream;
mod transpose;
mod ukernel;
mod unit;
pub mod winograd;
#[cfg(all(target_arch = "x86_64", any(feature = "avx2", feature = "avx512")))]
mod x86_64;

pub use catalogue::{
    activation_kernel, channel_kernels, depthwise_kernels, depthwise_transposed_kernels, dot_kernels, grouped_kernels,
    interleave_kernels, pixel_depthwise_kernels, pixel_kernels, spatial_kernels, transpose, winograd_kernels,
};
pub use depthwise::{
    DepthwiseInput, DepthwiseKernel, DepthwiseKernels, DepthwiseOutput, DirectInput, DirectTable, MOST_TAPS, TapTable,
};
pub use depthwise_transposed::{DepthwiseTransposedInput, DepthwiseTransposedKernel, DepthwiseTransposedOutput};
pub use dest::Dest;
pub use grouped::{FlatInput, FlatTaps, GroupedKernel};
pub use half;
pub use interleave::InterleaveKernel;
pub use isa::Isa;
pub use pixel::{PixelEpilogue, PixelInput, PixelKernel, PixelTaps};
pub use pixel_depthwise::{DepthwisePixelKernel, MOST_GROUP, PixelColumns, PixelRows};
pub use real::Real;
/// Where gathered positions go.
pub use ukernel::RowOffsets as Slots;
pub use ukernel::{
    ChannelKernel, Column, Epilogue, Prefetch, Residual, RowOffsets, RowOffsetsRef, SpatialKernel, StoreMap,
};
pub use winograd::WinogradKernel;

/// The greatest common divisor. For `b` = 0 it is `a`.
#[must_use]
pub const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
