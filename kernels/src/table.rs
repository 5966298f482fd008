//! The table of all micro-kernels, by ISA and element type.
//!
//! The functions of this module return the kernels that this CPU can run, those of
//! [`catalogue`](crate::catalogue) all kernels of the build.

use crate::activation::{ActivateFn, Activation, ActivationKernel};
use crate::depthwise::DepthwiseKernels;
use crate::depthwise_transposed::DepthwiseTransposedKernel;
use crate::grouped::GroupedKernel;
use crate::interleave::InterleaveKernel;
use crate::isa::Code;
use crate::pixel::PixelKernel;
use crate::real::ByType;
use crate::transpose::TransposeFn;
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The kernels of one ISA and element type.
pub(crate) struct Kernels<T: 'static> {
    pub(crate) spatial: &'static [SpatialKernel<T>],
    pub(crate) channel: &'static [ChannelKernel<T>],
    pub(crate) two_row: &'static [ChannelKernel<T>],
    pub(crate) pixel: &'static [PixelKernel<T>],
    pub(crate) winograd: &'static [WinogradKernel<T>],
    pub(crate) depthwise: DepthwiseKernels<T>,
    pub(crate) grouped: &'static [GroupedKernel<T>],
    pub(crate) interleave: &'static [InterleaveKernel<T>],
    pub(crate) depthwise_transposed: &'static [DepthwiseTransposedKernel<T>],
    pub(crate) activate: Code<ActivateFn<T>>,
    pub(crate) transpose: Code<TransposeFn<T>>,
}

/// The kernels of an ISA; `None` if the build lacks it.
pub(crate) fn kernels<T: Real>(isa: Isa) -> Option<&'static Kernels<T>> {
    T::pick(Table(isa))
}

struct Table(Isa);

/// The row of an ISA for one element type. Its lists are in the module `$lists` of the ISA's module.
macro_rules! row {
    ($isa:expr, $lists:ident) => {
        match $isa {
            Isa::Portable => Some(&crate::portable::$lists::KERNELS),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
            Isa::Neon => Some(&crate::aarch64::neon::$lists::KERNELS),
            #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
            Isa::Avx2 => Some(&crate::x86_64::avx2::$lists::KERNELS),
            #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
            Isa::Avx512 => Some(&crate::x86_64::avx512::$lists::KERNELS),
            _ => None,
        }
    };
}

impl ByType for Table {
    type Of<T: 'static> = Option<&'static Kernels<T>>;

    fn f32(self) -> Self::Of<f32> {
        row!(self.0, of_f32)
    }

    fn f64(self) -> Self::Of<f64> {
        row!(self.0, of_f64)
    }
}

/// Lists the kinds of kernels, for both modules with getters for them.
///
/// `$getter!` is called for each kind with the getter's name, its field of [`Kernels`], what it returns,
/// and the beginning of its documentation.
macro_rules! kernel_kinds {
    ($getter:ident) => {
        $getter!(spatial_kernels, spatial: [SpatialKernel<T>], "GEMM kernels with vectors along output positions");
        $getter!(channel_kernels, channel: [ChannelKernel<T>], "GEMM kernels with vectors along output channels");
        $getter!(
            two_row_kernels,
            two_row: [ChannelKernel<T>],
            "GEMM kernels with vectors along output channels, for two rows of pixels"
        );
        $getter!(pixel_kernels, pixel: [PixelKernel<T>], "GEMM kernels for an X whose channels are neighbours");
        $getter!(winograd_kernels, winograd: [WinogradKernel<T>], "Winograd transforms");
        $getter!(grouped_kernels, grouped: [GroupedKernel<T>], "direct kernels of several output channels");
        $getter!(interleave_kernels, interleave: [InterleaveKernel<T>], "interleaving kernels");
        $getter!(depthwise_transposed_kernels, depthwise_transposed: [DepthwiseTransposedKernel<T>], "kernels of depthwise transposed convolution");
    };
}
pub(crate) use kernel_kinds;

/// A getter of kernels that this CPU can run.
macro_rules! available_kernels {
    ($name:ident, $field:ident: [$kernel:ty], $what:literal) => {
        #[doc = concat!("The ", $what, " of one ISA and element type.")]
        ///
        /// There are none where the CPU or the build lacks the ISA.
        #[must_use]
        pub fn $name<T: Real>(isa: Isa) -> &'static [$kernel] {
            let kernels = kernels::<T>(isa).filter(|_| isa.is_available());
            kernels.map_or(&[], |kernels| kernels.$field)
        }
    };
}
kernel_kinds!(available_kernels);

/// The direct kernels of one ISA and element type.
///
/// There are none where the CPU or the build lacks the ISA.
#[must_use]
pub fn depthwise_kernels<T: Real>(isa: Isa) -> Option<&'static DepthwiseKernels<T>> {
    kernels(isa).filter(|_| isa.is_available()).map(|kernels| &kernels.depthwise)
}

/// An activation by the code of an ISA, or of the portable tier if the CPU or the build lacks the ISA.
#[must_use]
pub fn activation_kernel<T: Real>(isa: Isa, activation: Activation<T>) -> ActivationKernel<T> {
    let available = if isa.is_available() { isa } else { Isa::Portable };
    let kernels = kernels::<T>(available).expect("the build has the ISAs that are available");
    ActivationKernel { f: kernels.activate.on_this_cpu(), activation }
}
