//! The table of all micro-kernels: what it does not list does not exist.

use core::convert::identity;

use crate::depthwise::{DepthwiseKernel, DepthwiseKernels};
use crate::grouped::GroupedKernel;
use crate::real::ByType;
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::upsample::UpsampleKernel;
use crate::weave::WeaveKernel;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The spatial-vector kernels of one ISA and element type; empty where the CPU or the build lacks
/// the ISA.
#[must_use]
pub fn spatial_kernels<T: Real>(isa: Isa) -> &'static [SpatialKernel<T>] {
    if isa.is_available() { T::pick(Spatial(isa)) } else { &[] }
}

/// The channel-vector kernels of one ISA and element type; empty where the CPU or the build lacks
/// the ISA.
#[must_use]
pub fn channel_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::pick(Channel(isa)) } else { &[] }
}

/// The channel-vector kernels for two rows of pixels of one ISA and element type; empty where the
/// CPU or the build lacks the ISA.
#[must_use]
pub fn two_row_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::pick(TwoRows(isa)) } else { &[] }
}

/// The Winograd transforms of one ISA and element type; empty where the CPU or the build lacks the
/// ISA.
#[must_use]
pub fn winograd_kernels<T: Real>(isa: Isa) -> &'static [WinogradKernel<T>] {
    if isa.is_available() { T::pick(Winograd(isa)) } else { &[] }
}

/// The direct kernels of one ISA and element type; none where the CPU or the build lacks the ISA.
#[must_use]
pub fn depthwise_kernels<T: Real>(isa: Isa) -> Option<&'static DepthwiseKernels<T>> {
    if isa.is_available() { T::pick(Depthwise(isa)) } else { None }
}

/// The kernels for groups of few channels of one ISA and element type; empty where the CPU or the
/// build lacks the ISA.
#[must_use]
pub fn grouped_kernels<T: Real>(isa: Isa) -> &'static [GroupedKernel<T>] {
    if isa.is_available() { T::pick(Grouped(isa)) } else { &[] }
}

/// The weaving kernel of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn weave_kernels<T: Real>(isa: Isa) -> &'static [WeaveKernel<T>] {
    if isa.is_available() { T::pick(Weave(isa)) } else { &[] }
}

/// The kernels for depthwise transposed convolution of one ISA and element type; empty where the
/// CPU or the build lacks the ISA.
#[must_use]
pub fn upsample_kernels<T: Real>(isa: Isa) -> &'static [UpsampleKernel<T>] {
    if isa.is_available() { T::pick(Upsample(isa)) } else { &[] }
}

/// The descriptions of an element type's kernels of one ISA.
pub struct Descriptions<T: 'static> {
    pub(crate) spatial: &'static [SpatialKernel<T>],
    pub(crate) channel: &'static [ChannelKernel<T>],
    pub(crate) two_row: &'static [ChannelKernel<T>],
    pub(crate) winograd: &'static [WinogradKernel<T>],
    pub(crate) depthwise: &'static DepthwiseKernels<T>,
    pub(crate) grouped: &'static [GroupedKernel<T>],
    pub(crate) weave: &'static [WeaveKernel<T>],
    pub(crate) upsample: &'static [UpsampleKernel<T>],
}

/// The descriptions of an element type's kernels of one ISA; none where the build lacks it.
pub(crate) fn descriptions<T: Real>(isa: Isa) -> Option<&'static Descriptions<T>> {
    T::pick(Described(isa))
}

/// The descriptions of a list of kernels; those of `$like` have the same type, and there is one
/// at least.
macro_rules! described_list {
    ($kernel:ty, $list:expr) => {
        described_list!($kernel, $list, like $list)
    };
    ($kernel:ty, $list:expr, like $like:expr) => {{
        const LEN: usize = $list.len();
        const FIRST: $kernel = $like[0].description();
        static ALL: [$kernel; LEN] = {
            let mut all = [FIRST; LEN];
            let mut i = 0;
            while i < LEN {
                all[i] = $list[i].description();
                i += 1;
            }
            all
        };
        &ALL
    }};
}

/// The descriptions of an element type's kernels in the module of one ISA.
macro_rules! descriptions {
    ($($tier:ident)::+, $elem:ty, $module:ident, $winograd:ident, $depthwise:ident, $grouped:ident, $list:ident) => {{
        use crate::$($tier)::+ as tier;
        type Direct = DepthwiseKernel<$elem>;
        static DEPTHWISE: DepthwiseKernels<$elem> = tier::$depthwise::DEPTHWISE.description(
            described_list!(Direct, tier::$depthwise::DEPTHWISE.rows),
            described_list!(Direct, tier::$depthwise::DEPTHWISE.narrow, like tier::$depthwise::DEPTHWISE.rows),
            described_list!(Direct, tier::$depthwise::DEPTHWISE.channels),
        );
        static ALL: Descriptions<$elem> = Descriptions {
            spatial: described_list!(SpatialKernel<$elem>, tier::$module::SPATIAL),
            channel: described_list!(ChannelKernel<$elem>, tier::$module::CHANNEL),
            two_row: described_list!(ChannelKernel<$elem>, tier::$module::TWO_ROWS, like tier::$module::CHANNEL),
            winograd: described_list!(WinogradKernel<$elem>, tier::$winograd::WINOGRAD),
            depthwise: &DEPTHWISE,
            grouped: described_list!(GroupedKernel<$elem>, tier::$grouped::GROUPED),
            weave: described_list!(WeaveKernel<$elem>, tier::weave::$list),
            upsample: described_list!(UpsampleKernel<$elem>, tier::upsample::$list),
        };
        Some(&ALL)
    }};
}

/// The descriptions of an element type's kernels, by ISA.
macro_rules! described {
    ($isa:expr, $($modules:tt)+) => {
        match $isa {
            Isa::Portable => descriptions!(portable, $($modules)+),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
            Isa::Neon => descriptions!(aarch64::neon, $($modules)+),
            #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
            Isa::Avx2 => descriptions!(x86_64::avx2, $($modules)+),
            #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
            Isa::Avx512 => descriptions!(x86_64::avx512, $($modules)+),
            _ => None,
        }
    };
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

/// The descriptions of an ISA.
struct Described(Isa);

impl ByType for Described {
    type Of<T: 'static> = Option<&'static Descriptions<T>>;

    fn f32(self) -> Self::Of<f32> {
        described!(self.0, f32, gemm_f32, winograd_f32, depthwise_f32, grouped_f32, F32)
    }

    fn f64(self) -> Self::Of<f64> {
        described!(self.0, f64, gemm_f64, winograd_f64, depthwise_f64, grouped_f64, F64)
    }
}
