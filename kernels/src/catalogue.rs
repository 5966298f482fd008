//! All kernels of the build, for planning. Those of an instruction set that this CPU lacks can be
//! read, but not called.
//!
//! Where the CPU has the ISA, these are the kernels of [`table`]. Where only the build has it,
//! they are descriptions. A description has the name and all sizes of its kernel, but its
//! function pointers are of functions that panic. So a plan can be made for another machine, and
//! a call by mistake is a panic and nothing worse.

use crate::depthwise::DepthwiseKernels;
use crate::grouped::GroupedKernel;
use crate::table::{self, Descriptions, descriptions, kernel_kinds};
use crate::ukernel::{ChannelKernel, SpatialKernel};
use crate::upsample::UpsampleKernel;
use crate::weave::WeaveKernel;
use crate::winograd::WinogradKernel;
use crate::{Isa, Real};

/// The descriptions, if the build has the ISA and the CPU lacks it.
fn described<T: Real>(isa: Isa) -> Option<&'static Descriptions<T>> {
    if isa.is_available() { None } else { descriptions::<T>(isa) }
}

/// A getter of kernels, or of their descriptions where this CPU lacks the ISA.
macro_rules! kernels_or_descriptions {
    ($name:ident, $slot:ident, $field:ident, $list:ty, $what:literal) => {
        #[doc = concat!("The ", $what, " of one ISA and element type, perhaps as descriptions.")]
        ///
        /// There are none where the build lacks the ISA.
        #[must_use]
        pub fn $name<T: Real>(isa: Isa) -> $list {
            described(isa).map_or_else(|| table::$name(isa), |all| all.$field)
        }
    };
}
kernel_kinds!(kernels_or_descriptions);

/// The kernels with vectors along positions, by width: in a list of one width, kernel i has a tile
/// of i + 1 rows. The narrowest come first.
pub fn spatial_widths<T: Real>(isa: Isa) -> impl Iterator<Item = &'static [SpatialKernel<T>]> {
    spatial_kernels::<T>(isa).chunk_by(|a, b| a.nrv() == b.nrv())
}

/// The kernels with vectors along channels, by width: in a list of one width, kernel i has a tile
/// of i + 1 pixels. The narrowest come first.
pub fn channel_widths<T: Real>(isa: Isa) -> impl Iterator<Item = &'static [ChannelKernel<T>]> {
    channel_kernels::<T>(isa).chunk_by(|a, b| a.nrv() == b.nrv())
}

/// The first kind of kernels whose descriptions do not say what the kernels say, for an ISA that
/// this CPU has. For tests: kernels do not show all that is compared.
#[doc(hidden)]
#[must_use]
pub fn wrong_descriptions<T: Real>(isa: Isa) -> Option<&'static str> {
    let all = descriptions::<T>(isa)?;
    let spatial = |k: &SpatialKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.lanes(), k.fmas(), k.loads());
    let channel = |k: &ChannelKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.rows(), k.fmas(), k.loads());
    let winograd = |k: &WinogradKernel<T>| (k.name(), k.isa(), k.lanes(), k.down(), k.along(), k.straight.is_some());
    let grouped = |k: &GroupedKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.lanes(), k.fmas());
    let weave = |k: &WeaveKernel<T>| (k.name, k.isa, k.lanes());
    let upsample = |k: &UpsampleKernel<T>| (k.name(), k.isa(), k.lanes(), k.stride(), k.kernel());
    let depthwise = match (all.depthwise, table::depthwise_kernels(isa)) {
        (Some(described), Some(kernels)) => described.is_like(kernels),
        (described, kernels) => described.is_none() && kernels.is_none(),
    };
    let agrees = [
        ("spatial", all.spatial.iter().map(spatial).eq(table::spatial_kernels(isa).iter().map(spatial))),
        ("channel", all.channel.iter().map(channel).eq(table::channel_kernels(isa).iter().map(channel))),
        ("two-row", all.two_row.iter().map(channel).eq(table::two_row_kernels(isa).iter().map(channel))),
        ("winograd", all.winograd.iter().map(winograd).eq(table::winograd_kernels(isa).iter().map(winograd))),
        ("depthwise", depthwise),
        ("grouped", all.grouped.iter().map(grouped).eq(table::grouped_kernels(isa).iter().map(grouped))),
        ("weave", all.weave.iter().map(weave).eq(table::weave_kernels(isa).iter().map(weave))),
        ("upsample", all.upsample.iter().map(upsample).eq(table::upsample_kernels(isa).iter().map(upsample))),
    ];
    agrees.into_iter().find_map(|(kind, agrees)| (!agrees).then_some(kind))
}

/// A description of a kernel of an ISA of the build. For tests: where this CPU has the ISA, nothing
/// else hands descriptions out.
#[doc(hidden)]
#[must_use]
pub fn described_kernel<T: Real>(isa: Isa) -> Option<&'static SpatialKernel<T>> {
    descriptions::<T>(isa)?.spatial.first()
}
