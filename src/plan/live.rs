//! The taps of a Conv that meet input: the others, which see padding alone whatever the output,
//! need not be computed.
//!
//! Large dilations reach beyond small images (3x3 of dilation 36 on 33x33 is a 1x1 layer), as do
//! kernels beyond images of a few elements. What is left is an ordinary layer with a smaller
//! kernel, so that lowerings need not know. A product with padding is zero where the weight is
//! finite; otherwise it is NaN, and such a tap's is in every output of its channel: the channel's
//! bias becomes NaN.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::Real;

use crate::element::{Compute, Element};
use crate::error::Error;
use crate::exec::reserved;
use crate::{Geometry, Op};

/// Which taps of a layer's kernel meet input, where not all do.
pub(crate) struct LiveTaps {
    /// For each spatial axis.
    pub(crate) ranges: Vec<Range<usize>>,
    /// The layer with these taps alone.
    pub(crate) geometry: Geometry,
}

impl LiveTaps {
    /// None where every tap is needed.
    pub(crate) fn new(whole: &Geometry) -> Option<Self> {
        if whole.op != Op::Conv || whole.output_len() == 0 || whole.weight_len() == 0 {
            return None;
        }
        let (ranges, axes): (Vec<_>, Vec<_>) = whole.axes.iter().map(|axis| axis.cropped()).unzip();
        let geometry = Geometry { axes, ..whole.clone() };
        (geometry.kernel_volume() < whole.kernel_volume()).then_some(Self { ranges, geometry })
    }

    /// Whether a tap, by its place in the kernel, is one of them.
    fn contain(&self, whole: &Geometry, mut tap: usize) -> bool {
        whole.axes.iter().zip(&self.ranges).rev().all(|(axis, range)| {
            let place = tap % axis.kernel;
            tap /= axis.kernel;
            range.contains(&place)
        })
    }

    /// The part of W that belongs to these taps. Makes the bias NaN for channels that multiply
    /// padding by a weight that is not finite.
    pub(crate) fn select<T: Element>(&self, whole: &Geometry, w: &[T], bias: &mut [T::Acc]) -> Result<Vec<T>, Error> {
        let mut selected = reserved(self.geometry.weight_len(), format_args!("{}, taps that meet input", whole.op))?;
        let (taps, filter) = (whole.kernel_volume(), whole.in_channels_per_group() * whole.kernel_volume());
        let is_live: Vec<_> = (0..taps).map(|tap| self.contain(whole, tap)).collect();
        for (w, bias) in w.chunks_exact(filter).zip(bias) {
            for (w, is_live) in w.iter().zip(is_live.iter().cycle()) {
                if *is_live {
                    selected.push(*w);
                } else if !w.to_acc().is_finite_value() {
                    *bias = T::Acc::from_f64(f64::NAN);
                }
            }
        }
        Ok(selected)
    }
}
