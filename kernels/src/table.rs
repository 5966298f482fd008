//! The table of all micro-kernels: what it does not list does not exist.

use core::convert::identity;

use crate::depthwise::DepthwiseKernels;
use crate::grouped::GroupedKernel;
use crate::real::ByType;
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::upsample::UpsampleKernel;
use crate::weave::WeaveKernel;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The spatial-vector kernels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn spatial_kernels<T: Real>(isa: Isa) -> &'static [SpatialKernel<T>] {
    if isa.is_available() { T::pick(Spatial(isa)) } else { &[] }
}

/// The channel-vector kernels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn channel_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::pick(Channel(isa)) } else { &[] }
}

/// The channel-vector kernels for two rows of pixels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn two_row_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::pick(TwoRows(isa)) } else { &[] }
}

/// The Winograd transforms of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn winograd_kernels<T: Real>(isa: Isa) -> &'static [WinogradKernel<T>] {
    if isa.is_available() { T::pick(Winograd(isa)) } else { &[] }
}

/// The direct kernels of one ISA and element type; none where the CPU or the build lacks the ISA.
#[must_use]
pub fn depthwise_kernels<T: Real>(isa: Isa) -> Option<&'static DepthwiseKernels<T>> {
    if isa.is_available() { T::pick(Depthwise(isa)) } else { None }
}

/// The kernels for groups of few channels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn grouped_kernels<T: Real>(isa: Isa) -> &'static [GroupedKernel<T>] {
    if isa.is_available() { T::pick(Grouped(isa)) } else { &[] }
}

/// The weaving kernel of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn weave_kernels<T: Real>(isa: Isa) -> &'static [WeaveKernel<T>] {
    if isa.is_available() { T::pick(Weave(isa)) } else { &[] }
}

/// The kernels for depthwise transposed convolution of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn upsample_kernels<T: Real>(isa: Isa) -> &'static [UpsampleKernel<T>] {
    if isa.is_available() { T::pick(Upsample(isa)) } else { &[] }
}

/// The slots of the table for a kind of kernel: one row an ISA, one column an element type.
macro_rules! slots {
    ($kind:ident, $slot:ty, $filled:path, $empty:expr; $($elem:ident: $module:ident::$list:ident),+) => {
        /// Those of an ISA.
        struct $kind(Isa);

        impl ByType for $kind {
            type Of<T: 'static> = $slot;
            $(
                fn $elem(self) -> Self::Of<$elem> {
                    match self.0 {
                        Isa::Portable => $filled(crate::portable::$module::$list),
                        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                        Isa::Neon => $filled(crate::aarch64::neon::$module::$list),
                        #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                        Isa::Avx2 => $filled(crate::x86_64::avx2::$module::$list),
                        #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                        Isa::Avx512 => $filled(crate::x86_64::avx512::$module::$list),
                        _ => $empty,
                    }
                }
            )+
        }
    };
}
slots!(Spatial, &'static [SpatialKernel<T>], identity, &[]; f32: gemm_f32::SPATIAL, f64: gemm_f64::SPATIAL);
slots!(Channel, &'static [ChannelKernel<T>], identity, &[]; f32: gemm_f32::CHANNEL, f64: gemm_f64::CHANNEL);
slots!(TwoRows, &'static [ChannelKernel<T>], identity, &[]; f32: gemm_f32::TWO_ROWS, f64: gemm_f64::TWO_ROWS);
slots!(Winograd, &'static [WinogradKernel<T>], identity, &[]; f32: winograd_f32::WINOGRAD, f64: winograd_f64::WINOGRAD);
slots!(Depthwise, Option<&'static DepthwiseKernels<T>>, Some, None; f32: depthwise_f32::DEPTHWISE, f64: depthwise_f64::DEPTHWISE);
slots!(Grouped, &'static [GroupedKernel<T>], identity, &[]; f32: grouped_f32::GROUPED, f64: grouped_f64::GROUPED);
slots!(Weave, &'static [WeaveKernel<T>], identity, &[]; f32: weave::F32, f64: weave::F64);
slots!(Upsample, &'static [UpsampleKernel<T>], identity, &[]; f32: upsample::F32, f64: upsample::F64);
