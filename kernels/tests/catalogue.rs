//! The list of all kernels of the build, those that this CPU cannot call among them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_kernels::catalogue::{channel_widths, pixel_widths, spatial_widths};
use convoke_kernels::{ChannelKernel, Isa, PixelKernel, Prefetch, Real, RowOffsets, SpatialKernel, spatial_kernels};

/// The ISAs of the build.
fn built() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| !spatial_kernels::<f32>(*isa).is_empty())
}

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
        for isa in built() {
            let spatial = spatial_widths::<T>(isa);
            let channel = channel_widths::<T>(isa);
            let pixel = pixel_widths::<T>(isa);
            assert!(check(spatial.map(|list| (list.iter().map(SpatialKernel::mr).collect(), list[0].nrv()))) > 0);
            assert!(check(channel.map(|list| (list.iter().map(ChannelKernel::mr).collect(), list[0].nrv()))) > 0);
            assert!(check(pixel.map(|list| (list.iter().map(PixelKernel::mr).collect(), list[0].nrv()))) > 0);
        }
    }
    check_all::<f32>();
    check_all::<f64>();
}

#[test]
fn a_call_of_a_kernel_that_the_cpu_lacks_is_refused() {
    for isa in built().filter(|isa| !isa.is_available()) {
        let kernel = &spatial_kernels::<f32>(isa)[0];
        let (a, b) = (vec![1.0; kernel.mr()], vec![1.0; kernel.nr()]);
        let mut tile = vec![0.0; kernel.mr() * kernel.nr()];
        let koff = RowOffsets::packed(1, kernel.nr());
        let call = AssertUnwindSafe(|| kernel.partial(&a, &b, koff.rows(0..1), Prefetch::NONE, &mut tile, false));
        assert!(catch_unwind(call).is_err(), "{kernel:?}");
    }
}
