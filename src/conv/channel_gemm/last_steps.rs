//! The last steps of a tile's sums, and storing them.

use convoke_kernels::{ChannelKernel, Dest, Prefetch, Real, RowOffsetsRef};

use crate::conv::store::OutputStore;
use crate::element::Element;
use crate::exec::region::Stores;

/// Sums of a tile, at most: all registers of the longest vectors of an ISA.
const STAGED_ELEMENTS: usize = 32 * 16;

/// The last steps of k of a tile, and what is added to its sums.
pub(super) struct LastSteps<'a, A> {
    pub(super) x: &'a [A],
    pub(super) koff: RowOffsetsRef<'a>,
    pub(super) w: &'a [A],
    pub(super) prefetch: Prefetch,
    /// Whether the tile has sums of earlier steps.
    pub(super) accumulate: bool,
    /// The bias of the channels of the panel that are not padding.
    pub(super) bias: &'a [A],
}

impl<A: Real> LastSteps<'_, A> {
    /// Sums the steps, and finishes the tile into Y from element `at` on.
    pub(super) fn finish<T: Element<Acc = A>>(
        &self,
        kernel: &ChannelKernel<A>,
        tile: &mut [A],
        at: usize,
        store: &OutputStore<'_, '_, T>,
    ) {
        let Self { x, koff, w, prefetch, accumulate, bias } = *self;
        let ldy = store.io.y.shape().positions;
        let stores = [Stores::row(at, kernel.mr()).times(bias.len(), ldy)];
        let stored = store.direct(at, bias, stores, |mut y, epilogue| {
            kernel.finish(x, koff, w, prefetch, tile, accumulate, &mut y, ldy, bias.len(), &epilogue);
        });
        if stored.is_none() {
            let (pixels, mut staged) = (kernel.mr(), [A::ZERO; STAGED_ELEMENTS]);
            let rows = &mut staged[..bias.len() * pixels];
            let (mut y, epilogue) = (Dest::from_slice(rows), store.staging(bias));
            kernel.finish(x, koff, w, prefetch, tile, accumulate, &mut y, pixels, bias.len(), &epilogue);
            store.staged_rows(rows, pixels, (at, ldy));
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_kernels::catalogue::channel_kernels;
    use convoke_kernels::{ChannelKernel, Isa, Real};

    use super::STAGED_ELEMENTS;

    #[test]
    fn the_sums_of_every_kernel_are_staged() {
        fn check<T: Real>(kernels: &[ChannelKernel<T>]) {
            kernels.iter().for_each(|k| assert!(k.mr() * k.nr() <= STAGED_ELEMENTS, "{k:?}"));
        }
        for isa in Isa::ALL {
            check(channel_kernels::<f32>(isa));
            check(channel_kernels::<f64>(isa));
        }
    }
}
