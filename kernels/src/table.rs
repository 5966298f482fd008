//! The table of all micro-kernels. A kernel that it does not list does not exist.

use core::convert::identity;

use crate::activation::ActivateKernel;
use crate::depthwise::{DepthwiseKernel, DepthwiseKernels};
use crate::grouped::GroupedKernel;
use crate::isa::called;
use crate::real::ByType;
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::upsample::UpsampleKernel;
use crate::weave::WeaveKernel;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// Lists the eight kinds of kernels once, for every module that has a getter for each of them.
///
/// `$getter!` is called for each kind with the getter's name, its slot in the table, its field of
/// [`Descriptions`], its type, and the beginning of its documentation.
macro_rules! kernel_kinds {
    ($getter:ident) => {
        $getter!(
            spatial_kernels,
            Spatial,
            spatial,
            &'static [SpatialKernel<T>],
            "GEMM kernels with vectors along output positions"
        );
        $getter!(
            channel_kernels,
            Channel,
            channel,
            &'static [ChannelKernel<T>],
            "GEMM kernels with vectors along output channels"
        );
        $getter!(
            two_row_kernels,
            TwoRows,
            two_row,
            &'static [ChannelKernel<T>],
            "GEMM kernels with vectors along output channels, for two rows of pixels"
        );
        $getter!(winograd_kernels, Winograd, winograd, &'static [WinogradKernel<T>], "Winograd transforms");
        $getter!(depthwise_kernels, Depthwise, depthwise, Option<&'static DepthwiseKernels<T>>, "direct kernels");
        $getter!(
            grouped_kernels,
            Grouped,
            grouped,
            &'static [GroupedKernel<T>],
            "direct kernels of several output channels"
        );
        $getter!(weave_kernels, Weave, weave, &'static [WeaveKernel<T>], "weaving kernels");
        $getter!(
            upsample_kernels,
            Upsample,
            upsample,
            &'static [UpsampleKernel<T>],
            "kernels of depthwise transposed convolution"
        );
    };
}
pub(crate) use kernel_kinds;

/// A getter of kernels that this CPU can run.
macro_rules! available_kernels {
    ($name:ident, $slot:ident, $field:ident, $list:ty, $what:literal) => {
        #[doc = concat!("The ", $what, " of one ISA and element type.")]
        ///
        /// There are none where the CPU or the build lacks the ISA.
        #[must_use]
        pub fn $name<T: Real>(isa: Isa) -> $list {
            if isa.is_available() { T::pick($slot(isa)) } else { Default::default() }
        }
    };
}
kernel_kinds!(available_kernels);

/// The kernel of activations: that of the portable tier where the CPU or the build lacks the ISA.
#[inline]
pub(crate) fn activate_kernel<T: Real>(isa: Isa) -> ActivateKernel<T> {
    T::pick(Activate(if isa.is_available() { isa } else { Isa::Portable }))
}

/// The descriptions of all kernels of one ISA and element type.
pub struct Descriptions<T: 'static> {
    pub(crate) spatial: &'static [SpatialKernel<T>],
    pub(crate) channel: &'static [ChannelKernel<T>],
    pub(crate) two_row: &'static [ChannelKernel<T>],
    pub(crate) winograd: &'static [WinogradKernel<T>],
    pub(crate) depthwise: Option<&'static DepthwiseKernels<T>>,
    pub(crate) grouped: &'static [GroupedKernel<T>],
    pub(crate) weave: &'static [WeaveKernel<T>],
    pub(crate) upsample: &'static [UpsampleKernel<T>],
}

/// The descriptions of all kernels of one ISA and element type; `None` if the build lacks the
/// ISA.
pub(crate) fn descriptions<T: Real>(isa: Isa) -> Option<&'static Descriptions<T>> {
    T::pick(Described(isa))
}

/// The descriptions of a list of kernels, which may be empty. `$like` is a list of kernels of the
/// same type that has at least one.
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

/// The descriptions of all kernels of one element type, from the modules of one ISA.
macro_rules! tier_descriptions {
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
            depthwise: Some(&DEPTHWISE),
            grouped: described_list!(GroupedKernel<$elem>, tier::$grouped::GROUPED),
            weave: described_list!(WeaveKernel<$elem>, tier::weave::$list),
            upsample: described_list!(UpsampleKernel<$elem>, tier::upsample::$list),
        };
        Some(&ALL)
    }};
}

/// The descriptions of all kernels of one element type, chosen by ISA.
macro_rules! descriptions_by_isa {
    ($isa:expr, $($modules:tt)+) => {
        match $isa {
            Isa::Portable => tier_descriptions!(portable, $($modules)+),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
            Isa::Neon => tier_descriptions!(aarch64::neon, $($modules)+),
            #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
            Isa::Avx2 => tier_descriptions!(x86_64::avx2, $($modules)+),
            #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
            Isa::Avx512 => tier_descriptions!(x86_64::avx512, $($modules)+),
            _ => None,
        }
    };
}

/// The slots of the table for a kind of kernel: one row for each ISA, one column for each element
/// type.
macro_rules! slots {
    ($kind:ident, $slot:ty, $filled:path, $empty:expr; $($elem:ident: $module:ident::$list:ident),+) => {
        /// The slots of one ISA.
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

slots!(Activate, ActivateKernel<T>, identity, |_| called(); f32: activation::F32, f64: activation::F64);

/// The descriptions of one ISA.
struct Described(Isa);

impl ByType for Described {
    type Of<T: 'static> = Option<&'static Descriptions<T>>;

    fn f32(self) -> Self::Of<f32> {
        descriptions_by_isa!(self.0, f32, gemm_f32, winograd_f32, depthwise_f32, grouped_f32, F32)
    }

    fn f64(self) -> Self::Of<f64> {
        descriptions_by_isa!(self.0, f64, gemm_f64, winograd_f64, depthwise_f64, grouped_f64, F64)
    }
}
