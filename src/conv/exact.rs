//! The loops of the definition, for any operator and geometry, without workspace.
//!
//! Accepts everything. Sums are in f64, so that it is also the most accurate.
//!
//! It visits only products that exist: an output of a ConvTranspose with long strides has few taps. It
//! runs in place of every algorithm if a weight is not finite. Such a filter of Conv also visits
//! padding, because the product with it is NaN.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::Real;
use convoke_kernels::activation::ActivationKernel;
use convoke_kernels::{Isa, activation_kernel};

use crate::conv::contract::{Build, Io, Lowering, Offer, Recipe, Request};
use crate::conv::layout::WeightLayout;
use crate::element::{Compute, Element, all_finite};
use crate::exec::split::{Patch, Split};
use crate::exec::{Ledger, Line};
use crate::machine::Item;
use crate::reference::{self, Filters};
use crate::{Axis, Geometry, Op};

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Offer<'a, T> {
    let geometry = request.geometry;
    let is_exact = request.layout == Some(&WeightLayout::Exact);
    let recipe = Recipe {
        kernel: "naive",
        details: String::from("loops of the definition, summed in f64"),
        layout: if is_exact { WeightLayout::Exact } else { WeightLayout::AsGiven },
        packed_len: geometry.weight_len(),
        tasks: geometry.batch * geometry.out_channels,
        scratch: Ledger::default(),
        work: Item::NAIVE_FMAS.times(geometry.macs() as f64),
    };
    let build: Build<'a, T> = Box::new(move || {
        let axes = geometry.axes.iter().map(|axis| TapAxis::new(geometry.op, *axis)).collect();
        let activation = activation_kernel(Isa::Portable, request.activation.to_f64());
        Box::new(Exact { geometry: geometry.clone(), axes, activation })
    });
    Offer { recipe, build }
}

struct Exact {
    geometry: Geometry,
    axes: Vec<TapAxis>,
    activation: ActivationKernel<f64>,
}

#[derive(Debug, Clone, Copy)]
struct TapAxis {
    op: Op,
    axis: Axis,
    /// ConvTranspose: the taps of an output are `period` apart, and are the solutions of `tap *
    /// dilation = output + pad_begin` modulo the stride. `common` divides stride and dilation.
    common: usize,
    period: usize,
    /// `inverse * (dilation / common) = 1` modulo `period`.
    inverse: usize,
}

impl TapAxis {
    fn new(op: Op, axis: Axis) -> Self {
        // Euclid's algorithm: `t * dilation = r` modulo the stride, in each line.
        let stride = axis.stride as i128;
        let (mut above, mut below) = ((stride, 0), (axis.dilation as i128 % stride, 1));
        while below.0 != 0 {
            let quotient = above.0 / below.0;
            (above, below) = (below, (above.0 - quotient * below.0, above.1 - quotient * below.1));
        }
        let (common, factor) = above;
        let period = stride / common;
        Self { op, axis, common: common as usize, period: period as usize, inverse: factor.rem_euclid(period) as usize }
    }

    /// The taps through which an output reads X: the first one, their distance, and the end.
    fn taps(&self, output: usize) -> (usize, usize, usize) {
        let axis = &self.axis;
        if self.op == Op::Conv {
            let taps = axis.taps_of_output(output);
            return (taps.start, 1, taps.end);
        }
        let reach = output + axis.pad_begin;
        let Some(last_input) = axis.input.checked_sub(1) else { return (0, 1, 0) };
        if !reach.is_multiple_of(self.common) {
            return (0, 1, 0);
        }
        let least = (reach as u128).saturating_sub(last_input as u128 * axis.stride as u128);
        let least = least.div_ceil(axis.dilation as u128).min(axis.kernel as u128) as usize;
        let end = (reach / axis.dilation + 1).min(axis.kernel);
        let any = (reach / self.common % self.period) as u128 * self.inverse as u128 % self.period as u128;
        let behind = (any as usize + self.period - least % self.period) % self.period;
        (least.saturating_add(behind), self.period, end)
    }

    fn source(&self, output: usize, tap: usize) -> usize {
        let axis = &self.axis;
        match self.op {
            Op::Conv => output * axis.stride + tap * axis.dilation - axis.pad_begin,
            Op::ConvTranspose => (output + axis.pad_begin - tap * axis.dilation) / axis.stride,
        }
    }
}

/// Calls `visit` with each tap through which the output at `position` reads X, and the place that it
/// reads. Both are numbers over all axes; `tap` and `source` are those over the axes before.
fn for_each_tap(
    axes: &[TapAxis],
    position: usize,
    (tap, source): (usize, usize),
    visit: &mut impl FnMut(usize, usize),
) {
    let [first, rest @ ..] = axes else { return visit(tap, source) };
    let inner: usize = rest.iter().map(|axis| axis.axis.output).product();
    let (output, position) = (position / inner, position % inner);
    let (mut next, step, end) = first.taps(output);
    while next < end {
        let at = (tap * first.axis.kernel + next, source * first.axis.input + first.source(output, next));
        for_each_tap(rest, position, at, visit);
        next = next.saturating_add(step);
    }
}

impl Exact {
    /// Whether products with padding count in an output channel: Conv's padding is multiplied, and only
    /// finite weights make zeros of it.
    fn counts_padding<A: Compute>(&self, channel: usize, weights: &[A]) -> bool {
        let len = self.geometry.in_channels_per_group() * self.geometry.kernel_volume();
        self.geometry.op == Op::Conv && !all_finite(&weights[channel * len..][..len])
    }

    /// An output without its residual.
    fn sum<T: Element>(&self, place: (usize, usize, usize), bias: f64, counts_padding: bool, io: &Io<'_, T>) -> f64 {
        let geometry = &self.geometry;
        let x = |n, c, position| io.x[io.strides.x.at(n, c, position)].to_acc().to_f64();
        let w = |at: usize| io.weights[at].to_f64();
        let c_group = geometry.in_channels_per_group();
        if c_group == 0 || counts_padding {
            return reference::sum(geometry, place, bias, x, w).value;
        }
        let (n, m, position) = place;
        let Filters { channel, weight, step } = Filters::new(geometry, m);
        // Without this, all taps of an outer axis would be tried for nothing.
        let mut rest = position;
        for axis in self.axes.iter().rev() {
            let (next, _, end) = axis.taps(rest % axis.axis.output);
            if next >= end {
                // A sum without products: a bias of -0.0 becomes 0.0.
                return 0.0 + bias;
            }
            rest /= axis.axis.output;
        }
        let mut sum = 0.0;
        for_each_tap(&self.axes, position, (0, 0), &mut |tap, source| {
            for c in 0..c_group {
                sum += x(n, channel + c, source) * w(weight + c * step + tap);
            }
        });
        sum + bias
    }
}

impl Split for Exact {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.out_channels
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (image, channel) = (task / self.geometry.out_channels, task % self.geometry.out_channels);
        let positions = self.geometry.output_spatial();
        patch(Patch::rows(image..image + 1, channel..channel + 1, 0..positions, positions));
    }
}

impl<T: Element> Lowering<T> for Exact {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, _: &mut [Line]) {
        let (image, channel) = (task / self.geometry.out_channels, task % self.geometry.out_channels);
        let (bias, counts_padding) = (io.bias[channel].to_f64(), self.counts_padding(channel, io.weights));
        for position in 0..self.geometry.output_spatial() {
            let place = (image, channel, position);
            let sum = self.sum(place, bias, counts_padding, io);
            let residual = io.residual_of(place).to_f64();
            let at = io.strides.y.at(image, channel, position);
            io.y.write(at, T::round_from_f64(self.activation.apply(sum + residual)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All taps of an output by the definition, tried one by one.
    fn tried(axis: &TapAxis, output: usize) -> Vec<(usize, usize)> {
        let source = |tap: usize| match axis.op {
            Op::Conv => axis.axis.input_position(output, tap),
            Op::ConvTranspose => (0..axis.axis.input).find(|i| axis.axis.output_position(*i, tap) == Some(output)),
        };
        (0..axis.axis.kernel).filter_map(|tap| Some((tap, source(tap)?))).collect()
    }

    #[test]
    fn taps_are_those_of_the_definition() {
        let mut count = 0;
        for op in [Op::Conv, Op::ConvTranspose] {
            for (input, kernel, stride) in all_of(&[0, 1, 2, 7], &[1, 2, 5, 8], &[1, 2, 3, 4, 6, 9]) {
                for (dilation, pad, output) in all_of(&[1, 2, 3, 4, 8, 9], &[0, 1, 5, 40], &[1, 30]) {
                    let axis = Axis { input, kernel, output, stride, dilation, pad_begin: pad, pad_end: 0 };
                    let axis = TapAxis::new(op, axis);
                    for output in 0..output {
                        let mut found = Vec::new();
                        for_each_tap(&[axis], output, (0, 0), &mut |tap, source| found.push((tap, source)));
                        assert_eq!(found, tried(&axis, output), "output {output} of {axis:?}");
                        count += found.len();
                    }
                }
            }
        }
        assert!(count > 10_000, "{count}");
    }

    fn all_of<'a>(
        one: &'a [usize],
        two: &'a [usize],
        three: &'a [usize],
    ) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        one.iter().flat_map(move |a| two.iter().flat_map(move |b| three.iter().map(move |c| (*a, *b, *c))))
    }
}
