//! All kernels of the build, for planning. Names and sizes of kernels can be read on any CPU. To call a
//! kernel whose ISA this CPU lacks is a panic.

use crate::depthwise::DepthwiseKernels;
use crate::depthwise_transposed::DepthwiseTransposedKernel;
use crate::grouped::GroupedKernel;
use crate::interleave::InterleaveKernel;
use crate::pixel::PixelKernel;
use crate::table::{kernel_kinds, kernels};
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// A getter of kernels of the build.
macro_rules! built_kernels {
    ($name:ident, $field:ident: [$kernel:ty], $what:literal) => {
        #[doc = concat!("The ", $what, " of one ISA and element type.")]
        ///
        /// There are none where the build lacks the ISA.
        #[must_use]
        pub fn $name<T: Real>(isa: Isa) -> &'static [$kernel] {
            kernels::<T>(isa).map_or(&[], |kernels| kernels.$field)
        }
    };
}
kernel_kinds!(built_kernels);

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
