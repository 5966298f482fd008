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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn kernels_are_in_the_order_of_width_and_height() {
        // The heights of each list of one width, and that width in vectors.
        fn check(lists: impl Iterator<Item = (Vec<usize>, usize)>) -> usize {
            let mut last = 0;
            lists
                .inspect(|(heights, nrv)| {
                    assert!(heights.iter().copied().eq(1..=heights.len()), "{heights:?}");
                    assert!(*nrv > last);
                    last = *nrv;
                })
                .count()
        }
        fn check_all<T: Real>() {
            for isa in Isa::ALL.into_iter().filter(|&isa| descriptions::<T>(isa).is_some()) {
                let spatial = spatial_widths::<T>(isa);
                let channel = channel_widths::<T>(isa);
                assert!(check(spatial.map(|list| (list.iter().map(SpatialKernel::mr).collect(), list[0].nrv()))) > 0);
                assert!(check(channel.map(|list| (list.iter().map(ChannelKernel::mr).collect(), list[0].nrv()))) > 0);
            }
        }
        check_all::<f32>();
        check_all::<f64>();
    }

    /// Whether this CPU and the build have the ISA. If so, asserts that descriptions say what the
    /// kernels say.
    fn agree<T: Real>(isa: Isa) -> bool {
        let Some(all) = descriptions::<T>(isa).filter(|_| isa.is_available()) else { return false };
        let sizes = |k: &SpatialKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.lanes(), k.fmas(), k.loads());
        let spatial: Vec<_> = all.spatial.iter().map(sizes).collect();
        assert_eq!(spatial, table::spatial_kernels(isa).iter().map(sizes).collect::<Vec<_>>());
        let sizes = |k: &ChannelKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.rows(), k.fmas(), k.loads());
        for (list, kernels) in [(all.channel, table::channel_kernels(isa)), (all.two_row, table::two_row_kernels(isa))]
        {
            assert_eq!(list.iter().map(sizes).collect::<Vec<_>>(), kernels.iter().map(sizes).collect::<Vec<_>>());
        }
        let sizes = |k: &WinogradKernel<T>| (k.name(), k.isa(), k.lanes(), k.down(), k.along(), k.straight.is_some());
        let winograd: Vec<_> = all.winograd.iter().map(sizes).collect();
        assert_eq!(winograd, table::winograd_kernels(isa).iter().map(sizes).collect::<Vec<_>>());
        let sizes = |k: &crate::DepthwiseKernel<T>| {
            let has = (k.direct.is_some(), k.threes.is_some(), k.by_rows, k.halves);
            (k.name(), k.isa, k.mr(), k.nr(), has, (0..12).map(k.strides).collect::<Vec<_>>())
        };
        let sizes = |k: &DepthwiseKernels<T>| {
            let lists = [k.rows(), k.narrow(), k.channels()];
            (k.isa, k.lanes(), lists.map(|list| list.iter().map(sizes).collect::<Vec<_>>()))
        };
        assert_eq!(all.depthwise.map(sizes), table::depthwise_kernels(isa).map(sizes));
        let sizes = |k: &GroupedKernel<T>| (k.name(), k.isa(), k.mr(), k.nr(), k.lanes(), k.fmas());
        let grouped: Vec<_> = all.grouped.iter().map(sizes).collect();
        assert_eq!(grouped, table::grouped_kernels(isa).iter().map(sizes).collect::<Vec<_>>());
        let weave: Vec<_> = all.weave.iter().map(|k| (format!("{k:?}"), k.lanes())).collect();
        let of = table::weave_kernels::<T>(isa).iter().map(|k| (format!("{k:?}"), k.lanes()));
        assert_eq!(weave, of.collect::<Vec<_>>());
        let sizes = |k: &UpsampleKernel<T>| (k.name(), k.isa(), k.lanes(), k.stride(), k.kernel());
        let upsample: Vec<_> = all.upsample.iter().map(sizes).collect();
        assert_eq!(upsample, table::upsample_kernels(isa).iter().map(sizes).collect::<Vec<_>>());
        true
    }

    #[test]
    fn descriptions_say_what_kernels_say() {
        let checked = Isa::ALL.into_iter().filter(|isa| agree::<f32>(*isa) & agree::<f64>(*isa)).count();
        let there = Isa::ALL.into_iter().filter(|isa| isa.is_available()).count();
        assert_eq!(checked, there);
    }

    #[test]
    fn a_call_of_a_description_is_refused() {
        for isa in Isa::ALL {
            let Some(all) = descriptions::<f32>(isa) else { continue };
            let kernel = &all.spatial[0];
            let (a, b) = (std::vec![1.0; kernel.mr()], std::vec![1.0; kernel.nr()]);
            let mut tile = std::vec![0.0; kernel.mr() * kernel.nr()];
            let koff = crate::RowOffsets::packed(1, kernel.nr());
            let call = std::panic::AssertUnwindSafe(|| {
                kernel.partial(&a, &b, koff.rows(0..1), crate::Ahead::NONE, &mut tile, false);
            });
            assert!(std::panic::catch_unwind(call).is_err(), "{kernel:?}");
        }
    }
}
