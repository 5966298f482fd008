//! The table of all micro-kernels: what it does not list does not exist.

use crate::catalogue::Descriptions;
use crate::depthwise::{DepthwiseKernel, DepthwiseKernels};
use crate::grouped::GroupedKernel;
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::upsample::UpsampleKernel;
use crate::weave::WeaveKernel;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The spatial-vector kernels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn spatial_kernels<T: Real>(isa: Isa) -> &'static [SpatialKernel<T>] {
    if isa.is_available() { T::spatial_slot(isa) } else { &[] }
}

/// The channel-vector kernels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn channel_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::channel_slot(isa) } else { &[] }
}

/// The channel-vector kernels for two rows of pixels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn two_row_kernels<T: Real>(isa: Isa) -> &'static [ChannelKernel<T>] {
    if isa.is_available() { T::two_row_slot(isa) } else { &[] }
}

/// The Winograd transforms of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn winograd_kernels<T: Real>(isa: Isa) -> &'static [WinogradKernel<T>] {
    if isa.is_available() { T::winograd_slot(isa) } else { &[] }
}

/// The direct kernels of one ISA and element type; none where the CPU or the build lacks the ISA.
#[must_use]
pub fn depthwise_kernels<T: Real>(isa: Isa) -> Option<&'static DepthwiseKernels<T>> {
    if isa.is_available() { T::depthwise_slot(isa) } else { None }
}

/// The kernels for groups of few channels of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn grouped_kernels<T: Real>(isa: Isa) -> &'static [GroupedKernel<T>] {
    if isa.is_available() { T::grouped_slot(isa) } else { &[] }
}

/// The weaving kernel of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn weave_kernels<T: Real>(isa: Isa) -> &'static [WeaveKernel<T>] {
    if isa.is_available() { T::weave_slot(isa) } else { &[] }
}

/// The kernels for depthwise transposed convolution of one ISA and element type; empty where the CPU or the build lacks the ISA.
#[must_use]
pub fn upsample_kernels<T: Real>(isa: Isa) -> &'static [UpsampleKernel<T>] {
    if isa.is_available() { T::upsample_slot(isa) } else { &[] }
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
    ($elem:ty, $($tier:ident)::+, $module:ident, $winograd:ident, $depthwise:ident, $grouped:ident, $list:ident) => {{
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

/// The slots of the table: one row an ISA, one column an element type and kind of kernel.
macro_rules! slots {
    ($($elem:ty: $module:ident, $winograd:ident, $depthwise:ident, $grouped:ident, $list:ident);+) => {$(
        impl crate::real::Slots for $elem {
            fn spatial_slot(isa: Isa) -> &'static [SpatialKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::$module::SPATIAL,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::$module::SPATIAL,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::$module::SPATIAL,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::$module::SPATIAL,
                    _ => &[],
                }
            }

            fn channel_slot(isa: Isa) -> &'static [ChannelKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::$module::CHANNEL,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::$module::CHANNEL,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::$module::CHANNEL,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::$module::CHANNEL,
                    _ => &[],
                }
            }

            fn two_row_slot(isa: Isa) -> &'static [ChannelKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::$module::TWO_ROWS,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::$module::TWO_ROWS,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::$module::TWO_ROWS,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::$module::TWO_ROWS,
                    _ => &[],
                }
            }

            fn winograd_slot(isa: Isa) -> &'static [WinogradKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::$winograd::WINOGRAD,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::$winograd::WINOGRAD,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::$winograd::WINOGRAD,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::$winograd::WINOGRAD,
                    _ => &[],
                }
            }

            fn depthwise_slot(isa: Isa) -> Option<&'static DepthwiseKernels<Self>> {
                match isa {
                    Isa::Portable => Some(crate::portable::$depthwise::DEPTHWISE),
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => Some(crate::aarch64::neon::$depthwise::DEPTHWISE),
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => Some(crate::x86_64::avx2::$depthwise::DEPTHWISE),
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => Some(crate::x86_64::avx512::$depthwise::DEPTHWISE),
                    _ => None,
                }
            }

            fn grouped_slot(isa: Isa) -> &'static [GroupedKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::$grouped::GROUPED,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::$grouped::GROUPED,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::$grouped::GROUPED,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::$grouped::GROUPED,
                    _ => &[],
                }
            }

            fn weave_slot(isa: Isa) -> &'static [WeaveKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::weave::$list,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::weave::$list,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::weave::$list,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::weave::$list,
                    _ => &[],
                }
            }

            fn upsample_slot(isa: Isa) -> &'static [UpsampleKernel<Self>] {
                match isa {
                    Isa::Portable => crate::portable::upsample::$list,
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => crate::aarch64::neon::upsample::$list,
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => crate::x86_64::avx2::upsample::$list,
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => crate::x86_64::avx512::upsample::$list,
                    _ => &[],
                }
            }

            fn descriptions(isa: Isa) -> Option<&'static Descriptions<Self>> {
                match isa {
                    Isa::Portable => descriptions!($elem, portable, $module, $winograd, $depthwise, $grouped, $list),
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
                    Isa::Neon => descriptions!($elem, aarch64::neon, $module, $winograd, $depthwise, $grouped, $list),
                    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
                    Isa::Avx2 => descriptions!($elem, x86_64::avx2, $module, $winograd, $depthwise, $grouped, $list),
                    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
                    Isa::Avx512 => descriptions!($elem, x86_64::avx512, $module, $winograd, $depthwise, $grouped, $list),
                    _ => None,
                }
            }
        }
    )+};
}
slots!(f32: gemm_f32, winograd_f32, depthwise_f32, grouped_f32, F32; f64: gemm_f64, winograd_f64, depthwise_f64, grouped_f64, F64);
