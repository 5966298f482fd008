//! All kernels of the build, by ISA and element type. Names and sizes of kernels can be read on any CPU, for
//! planning. To call a kernel whose ISA this CPU lacks is a panic.

use crate::activation::{ActivateFn, Activation, ActivationKernel};
use crate::depthwise::DepthwiseKernels;
use crate::depthwise_transposed::DepthwiseTransposedKernel;
use crate::dot::DotKernels;
use crate::grouped::GroupedKernel;
use crate::interleave::InterleaveKernel;
use crate::isa::Code;
use crate::pixel::PixelKernel;
use crate::pixel_depthwise::DepthwisePixelKernel;
use crate::real::ByType;
use crate::transpose::{TransposeFn, transpose_by};
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::unit::Unit;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The kernels of one ISA and element type.
pub(crate) struct Kernels<T: 'static> {
    pub(crate) spatial: &'static [SpatialKernel<T>],
    pub(crate) channel: &'static [ChannelKernel<T>],
    pub(crate) pixel: &'static [PixelKernel<T>],
    pub(crate) pixel_depthwise: &'static [DepthwisePixelKernel<T>],
    pub(crate) winograd: &'static [WinogradKernel<T>],
    pub(crate) depthwise: DepthwiseKernels<T>,
    pub(crate) grouped: &'static [GroupedKernel<T>],
    pub(crate) interleave: &'static [InterleaveKernel<T>],
    pub(crate) depthwise_transposed: &'static [DepthwiseTransposedKernel<T>],
    pub(crate) activate: Code<ActivateFn<T>>,
    pub(crate) transpose: Code<TransposeFn<T>>,
}

/// The kernels of an ISA; `None` if the build lacks it.
fn kernels<T: Real>(isa: Isa) -> Option<&'static Kernels<T>> {
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

/// A getter of kernels.
macro_rules! getter {
    ($name:ident, $field:ident: $kernel:ident, $what:literal) => {
        #[doc = concat!("The ", $what, " of one ISA and element type.")]
        ///
        /// There are none where the build lacks the ISA.
        #[must_use]
        pub fn $name<T: Real>(isa: Isa) -> &'static [$kernel<T>] {
            kernels::<T>(isa).map_or(&[], |kernels| kernels.$field)
        }
    };
}
getter!(spatial_kernels, spatial: SpatialKernel, "GEMM kernels with vectors along output positions");
getter!(channel_kernels, channel: ChannelKernel, "GEMM kernels with vectors along output channels");
getter!(pixel_kernels, pixel: PixelKernel, "GEMM kernels with vectors along channels, for pixels anywhere in X");
getter!(pixel_depthwise_kernels, pixel_depthwise: DepthwisePixelKernel, "depthwise kernels with vectors along channels, for pixels anywhere in X");
getter!(winograd_kernels, winograd: WinogradKernel, "Winograd transforms");
getter!(grouped_kernels, grouped: GroupedKernel, "direct kernels of several output channels");
getter!(interleave_kernels, interleave: InterleaveKernel, "interleaving kernels");
getter!(
    depthwise_transposed_kernels,
    depthwise_transposed: DepthwiseTransposedKernel,
    "kernels of depthwise transposed convolution"
);

/// The direct kernels of one ISA and element type; `None` where the build lacks the ISA.
#[must_use]
pub fn depthwise_kernels<T: Real>(isa: Isa) -> Option<&'static DepthwiseKernels<T>> {
    kernels(isa).map(|kernels| &kernels.depthwise)
}

/// The kernels with vectors along positions, by width, the narrowest first: kernel i of a list has a
/// tile of i + 1 rows.
pub fn spatial_widths<T: Real>(isa: Isa) -> impl Iterator<Item = &'static [SpatialKernel<T>]> {
    spatial_kernels::<T>(isa).chunk_by(|a, b| a.nrv() == b.nrv())
}

/// The kernels with vectors along channels, by width, the narrowest first: kernel i of a list has a tile
/// of i + 1 pixels.
pub fn channel_widths<T: Real>(isa: Isa) -> impl Iterator<Item = &'static [ChannelKernel<T>]> {
    channel_kernels::<T>(isa).chunk_by(|a, b| a.nrv() == b.nrv())
}

/// The kernels for pixels, by width, the narrowest first: kernel i of a list has a tile of i + 1 pixels.
pub fn pixel_widths<T: Real>(isa: Isa) -> impl Iterator<Item = &'static [PixelKernel<T>]> {
    pixel_kernels::<T>(isa).chunk_by(|a, b| a.nrv() == b.nrv())
}

/// `dst[j * dst_ld + i] = src[i * src_ld + j]` for `rows` rows of `columns` elements, by the code of an ISA, or of
/// the portable tier if the CPU or the build lacks the ISA.
///
/// # Panics
/// If a slice is too short.
pub fn transpose<T: Real>(isa: Isa, size: (usize, usize), src: (&[T], usize), dst: (&mut [T], usize)) {
    let available = if isa.is_available() { isa } else { Isa::Portable };
    let kernels = kernels::<T>(available).expect("the build has the ISAs that are available");
    transpose_by(kernels.transpose.on_this_cpu(), size, src, dst);
}

/// An activation by the code of an ISA, or of the portable tier if the CPU or the build lacks the ISA.
#[must_use]
pub fn activation_kernel<T: Real>(isa: Isa, activation: Activation<T>) -> ActivationKernel<T> {
    let available = if isa.is_available() { isa } else { Isa::Portable };
    let kernels = kernels::<T>(available).expect("the build has the ISAs that are available");
    ActivationKernel { f: kernels.activate.on_this_cpu(), activation }
}

/// The kernels of an ISA for a kind of unit. There are none where the build lacks the ISA, or this CPU lacks products of
/// bytes.
#[must_use]
pub fn dot_kernels(isa: Isa, unit: Unit) -> Option<&'static DotKernels> {
    match (isa, unit) {
        (Isa::Portable, Unit::Pairs) => Some(&crate::portable::of_pairs::KERNELS),
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
        (Isa::Neon, Unit::Pairs) => Some(&crate::aarch64::neon::of_pairs::KERNELS),
        #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
        (Isa::Avx2, Unit::Pairs) => Some(&crate::x86_64::avx2::of_pairs::KERNELS),
        #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
        (Isa::Avx2, Unit::Bytes) if isa.has_byte_products() => Some(&crate::x86_64::avx2::of_bytes::KERNELS),
        #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
        (Isa::Avx512, Unit::Pairs) => Some(&crate::x86_64::avx512::of_pairs::KERNELS),
        #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
        (Isa::Avx512, Unit::Bytes) if isa.has_byte_products() => Some(&crate::x86_64::avx512::of_bytes::KERNELS),
        _ => None,
    }
}
