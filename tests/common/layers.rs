//! Layers: one operator on one input shape. Proptest draws them, or tests list them.

use std::fmt;
use std::ops::RangeInclusive;

use convoke::{AutoPad, Conv, ConvTranspose, DType, Element, Geometry, Layout, Operator};
use proptest::collection::vec;
use proptest::prelude::*;

use super::is_short;

/// An operator on inputs of one shape.
#[derive(Debug, Clone)]
pub struct Layer {
    pub operator: Operator,
    pub x_shape: Vec<usize>,
}

impl Layer {
    /// A layer.
    pub fn new(operator: impl Into<Operator>, x_shape: impl Into<Vec<usize>>) -> Self {
        Self { operator: operator.into(), x_shape: x_shape.into() }
    }

    /// The same layer with other layouts of X and Y.
    #[must_use]
    pub fn with_layouts(self, [x, y]: [Layout; 2]) -> Self {
        Self { operator: self.operator.layouts(x, y), ..self }
    }

    /// The same layer with channels last in X and in Y.
    #[must_use]
    pub fn channels_last(self) -> Self {
        self.with_layouts([Layout::ChannelsLast; 2])
    }

    /// The checked sizes.
    ///
    /// # Panics
    /// If the operator rejects the shape. Layers of tests must be valid.
    pub fn geometry(&self) -> Geometry {
        self.operator.geometry(&self.x_shape).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {:?}", self.operator, self.x_shape)
    }
}

/// One spatial axis as proptest draws it. Sizes are computed from it such that the operator
/// accepts them.
#[derive(Debug, Clone)]
struct DrawnAxis {
    kernel: usize,
    dilation: usize,
    stride: usize,
    pad_begin: usize,
    pad_end: usize,
    /// Elements of X beyond the least number that the operator needs.
    extra: usize,
    output_padding: usize,
    /// For `output_shape`: the difference to the largest size that is allowed.
    shortfall: usize,
}

impl DrawnAxis {
    fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    fn output_padding(&self) -> usize {
        self.output_padding % self.stride.max(self.dilation)
    }
}

/// An axis of a layer with `rank` spatial axes. Axes are shorter if there are more of them.
fn axis(rank: usize) -> impl Strategy<Value = DrawnAxis> {
    let (kernel, extra): (usize, usize) = [(5, 40), (5, 14), (3, 6), (3, 3), (2, 3)][rank - 1];
    let sizes = (1..=kernel, 1..=3_usize, 1..=4_usize, 0..=4_usize, 0..=4_usize);
    // Some axes are longer than two of the longest vectors.
    let most = if rank <= 2 { 80 } else { extra };
    let rest = (prop_oneof![4 => 0..=extra, 1 => extra..=most], 0..=3_usize, 0..=6_usize);
    (sizes, rest).prop_map(|((kernel, dilation, stride, pad_begin, pad_end), (extra, output_padding, shortfall))| {
        DrawnAxis { kernel, dilation, stride, pad_begin, pad_end, extra, output_padding, shortfall }
    })
}

fn axes() -> impl Strategy<Value = Vec<DrawnAxis>> {
    prop_oneof![2 => Just(1), 4 => Just(2), 2 => Just(3), 1 => Just(4), 1 => Just(5)]
        .prop_flat_map(|rank: usize| vec(axis(rank), rank))
}

/// Batch, groups, and the channels of X and of Y in each group.
#[derive(Debug, Clone)]
struct DrawnChannels {
    batch: usize,
    group: usize,
    c: usize,
    m: usize,
}

/// Draws mostly odd numbers of channels in few groups, depthwise layers with a multiplier, and
/// rarely no image or no channel.
fn channels() -> impl Strategy<Value = DrawnChannels> {
    let dense = (1..=2_usize, 1..=3_usize, 0..=19_usize, 1..=37_usize);
    let depthwise = (1..=2_usize, 1..=19_usize, Just(1), 1..=3_usize);
    let empty = (0..=1_usize, 1..=2_usize, 0..=2_usize, 0..=2_usize);
    prop_oneof![12 => dense, 4 => depthwise, 1 => empty].prop_map(|(batch, group, c, m)| DrawnChannels {
        batch,
        group,
        c,
        m,
    })
}

/// Multiply-adds of a drawn layer, at most, because the reference takes some nanoseconds for
/// each.
const MACS: u128 = 60_000;

/// The layouts of X and Y; mostly not both as in ONNX.
pub fn layouts() -> impl Strategy<Value = [Layout; 2]> {
    use Layout::{ChannelsFirst as First, ChannelsLast as Last};
    prop_oneof![1 => Just([First, First]), 1 => Just([First, Last]), 1 => Just([Last, First]), 3 => Just([Last, Last])]
}

/// Any Conv.
pub fn conv() -> impl Strategy<Value = Layer> {
    let mode = prop_oneof![
        6 => Just(AutoPad::NotSet),
        1 => Just(AutoPad::Valid),
        1 => Just(AutoPad::SameUpper),
        1 => Just(AutoPad::SameLower),
    ];
    (channels(), axes(), mode).prop_map(|(channels, axes, mode)| conv_layer(channels, &axes, mode))
}

/// A Conv with a 1x1 kernel, stride 1 and no padding.
pub fn pointwise() -> impl Strategy<Value = Layer> {
    let plain = |mut axis: DrawnAxis| {
        (axis.kernel, axis.stride, axis.pad_begin, axis.pad_end) = (1, 1, 0, 0);
        axis
    };
    (channels(), axes()).prop_map(move |(channels, axes)| {
        let axes: Vec<_> = axes.into_iter().map(plain).collect();
        conv_layer(channels, &axes, AutoPad::NotSet)
    })
}

/// A Conv for Winograd's algorithm. It has at most three axes, and the outer one is not dilated.
/// The stride of the inner two is 1, or so much shorter than the kernel that each phase has more
/// than one tap.
pub fn winograd() -> impl Strategy<Value = Layer> {
    let axes = prop_oneof![2 => Just(1), 5 => Just(2), 2 => Just(3)].prop_flat_map(|rank: usize| {
        // Pads of up to 8 and kernels of up to 9 give several filters an axis, and tiles with
        // only padding.
        let axis = (1..=9_usize, 0..=5_usize, 0..=8_usize, 0..=[60_usize, 14, 5][rank - 1]);
        let axis = (
            axis,
            prop_oneof![4 => Just(1_usize), 2 => 2..=4_usize, 1 => 5..=8_usize],
            prop_oneof![3 => Just(1_usize), 1 => 2..=4_usize],
        );
        let axis = axis.prop_map(move |((kernel, pad_begin, pad_end, extra), stride, dilation)| {
            let kernel = if rank == 3 { kernel.min(3) } else { kernel };
            DrawnAxis { kernel, dilation, stride, pad_begin, pad_end, extra, output_padding: 0, shortfall: 0 }
        });
        vec(axis, rank)
    });
    (channels(), axes).prop_map(|(channels, mut axes)| {
        let tiled = axes.len().saturating_sub(2);
        for axis in &mut axes[tiled..] {
            axis.stride = if axis.dilation == 1 { axis.kernel.saturating_sub(1).clamp(1, axis.stride) } else { 1 };
        }
        axes[..tiled].iter_mut().for_each(|a| a.dilation = 1);
        if axes[tiled..].iter().all(|a| a.kernel == 1) {
            axes.last_mut().expect("a layer has an axis").kernel = 3;
        }
        conv_layer(channels, &axes, AutoPad::NotSet)
    })
}

/// A Conv on one or two axes with at least two output channels in each group. Its rows of Y are
/// as long as the rows of X, or as the rows of X's phases.
pub fn grouped() -> impl Strategy<Value = Layer> {
    let axes = prop_oneof![1 => Just(1), 5 => Just(2)].prop_flat_map(|rank: usize| {
        let stride = prop_oneof![3 => Just(1_usize), 2 => Just(2_usize), 1 => 3..=5_usize];
        let axis = (1..=5_usize, 1..=3_usize, stride, 0..=6_usize, 0..=6_usize, 0..=40_usize);
        let axis = axis.prop_map(|(kernel, dilation, stride, pad_begin, pad_end, extra)| DrawnAxis {
            kernel,
            dilation: if stride == 1 { dilation } else { 1 },
            stride,
            pad_begin,
            pad_end,
            extra: extra + 1,
            output_padding: 0,
            shortfall: 0,
        });
        vec(axis, rank)
    });
    let channels = (1..=2_usize, 1..=5_usize, 0..=17_usize, 2..=32_usize);
    let channels = channels.prop_map(|(batch, group, c, m)| DrawnChannels { batch, group, c, m });
    (channels, axes).prop_map(|(channels, mut axes)| {
        if let Some(w) = axes.last_mut() {
            let reach = w.reach() - 1;
            w.pad_begin = w.pad_begin.min(reach);
            w.pad_end = reach - w.pad_begin;
        }
        conv_layer(channels, &axes, AutoPad::NotSet)
    })
}

/// A Conv whose kernel is as large as X, with more images than other layers have.
pub fn covered() -> impl Strategy<Value = Layer> {
    let channels = (0..=40_usize, 1..=3_usize, 0..=70_usize, 1..=70_usize);
    let channels = channels.prop_map(|(batch, group, c, m)| DrawnChannels { batch, group, c, m });
    (channels, vec((1..=4_usize, 1..=3_usize), 1..=4)).prop_map(|(channels, axes)| {
        shrunk(channels, |DrawnChannels { batch, group, c, m }| {
            let kernel = axes.iter().map(|(kernel, _)| *kernel);
            let w_shape: Vec<_> = [group * m, c].into_iter().chain(kernel.clone()).collect();
            let x_shape: Vec<_> = [batch, group * c].into_iter().chain(kernel).collect();
            let strides: Vec<_> = axes.iter().map(|(_, stride)| *stride as i64).collect();
            Layer::new(Conv::new(w_shape).group(group as i64).strides(strides), x_shape)
        })
    })
}

/// A ConvTranspose of one input position in which each output has a tap, with more images than
/// other layers have.
pub fn one_position() -> impl Strategy<Value = Layer> {
    let channels = (0..=40_usize, 1..=3_usize, 0..=70_usize, 1..=70_usize);
    let channels = channels.prop_map(|(batch, group, c, m)| DrawnChannels { batch, group, c, m });
    let axis = (1..=5_usize, 1..=3_usize, 0..=4_usize, 0..=4_usize);
    (channels, vec(axis, 1..=4)).prop_map(|(channels, axes)| {
        let draw = |(kernel, stride, pad_begin, pad_end): (usize, usize, usize, usize)| {
            let pad_begin = pad_begin.min(kernel - 1);
            let pad_end = pad_end.min(kernel - 1 - pad_begin);
            let (dilation, extra, output_padding, shortfall) = (1, 1, 0, 0);
            DrawnAxis { kernel, dilation, stride, pad_begin, pad_end, extra, output_padding, shortfall }
        };
        let axes: Vec<_> = axes.into_iter().map(draw).collect();
        transposed_layer(channels, &axes, Sizing::Pads)
    })
}

/// A ConvTranspose for Winograd's algorithm. It has at most three axes without dilation and more
/// than one tap in each phase. The phases of the last axis divide a vector. The pads crop no cell
/// that sees all taps.
pub fn winograd_transposed() -> impl Strategy<Value = Layer> {
    let axes = prop_oneof![2 => Just(1), 5 => Just(2), 2 => Just(3)].prop_flat_map(|rank: usize| {
        let axis = (1..=9_usize, 0..=8_usize, 0..=8_usize, 0..=[40_usize, 11, 4][rank - 1]);
        let axis = (axis, 1..=5_usize, 0..=2_u32, 0..=3_usize, 0..=6_usize);
        let axis =
            axis.prop_map(move |((kernel, pad_begin, pad_end, extra), stride, log, output_padding, shortfall)| {
                let kernel = if rank == 3 { kernel.min(5) } else { kernel };
                // Both values are kept, because only the last axis takes the power of two as its
                // stride.
                let drawn =
                    DrawnAxis { kernel, dilation: 1, stride, pad_begin, pad_end, extra, output_padding, shortfall };
                (drawn, 1 << log)
            });
        vec(axis, rank)
    });
    let sizing = prop_oneof![6 => Just(Sizing::Pads), 1 => Just(Sizing::Auto(AutoPad::SameUpper))];
    (channels(), axes, sizing).prop_map(|(channels, axes, sizing)| {
        let last = axes.len() - 1;
        let fit = |(i, (axis, power)): (usize, (DrawnAxis, usize))| {
            let stride = if i == last { power } else { axis.stride };
            let kernel = if i == last { axis.kernel.max(stride + 1) } else { axis.kernel };
            let pad_begin = axis.pad_begin.min(kernel.div_ceil(stride) * stride - 1);
            DrawnAxis { stride, kernel, pad_begin, ..axis }
        };
        let axes: Vec<_> = axes.into_iter().enumerate().map(fit).collect();
        transposed_layer(channels, &axes, sizing)
    })
}

/// A depthwise Conv or ConvTranspose, of up to two blocks of channels.
pub fn depthwise() -> impl Strategy<Value = Layer> {
    let multiplier = prop_oneof![1 => Just(1), 1 => 1..=3_usize];
    let channels = (1..=2_usize, prop_oneof![3 => 1..=40_usize, 1 => 120..=160_usize], multiplier)
        .prop_map(|(batch, group, m)| DrawnChannels { batch, group, c: 1, m });
    (channels, axes(), any::<bool>()).prop_map(|(channels, axes, is_transposed)| match is_transposed {
        true => transposed_layer(channels, &axes, Sizing::Pads),
        false => conv_layer(channels, &axes, AutoPad::NotSet),
    })
}

/// A depthwise ConvTranspose of stride 2 on one or two axes, with kernels of 2 to 5 taps.
pub fn depthwise_transposed() -> impl Strategy<Value = Layer> {
    let axis = (0..=7_usize, 0..=7_usize, prop_oneof![3 => 0..=20_usize, 1 => 0..=70_usize], 0..=1_usize, 0..=6_usize);
    let axes = (2..=5_usize, prop_oneof![1 => vec(axis.clone(), 1), 4 => vec(axis, 2)]);
    let channels = (1..=3_usize, 1..=9_usize).prop_map(|(batch, group)| DrawnChannels { batch, group, c: 1, m: 1 });
    let mode = prop_oneof![Just(AutoPad::Valid), Just(AutoPad::SameUpper), Just(AutoPad::SameLower)];
    let sizing = prop_oneof![
        6 => Just(Sizing::Pads),
        1 => mode.clone().prop_map(Sizing::Auto),
        1 => mode.prop_map(Sizing::OutputShape),
    ];
    (channels, axes, sizing).prop_map(|(channels, (kernel, axes), sizing)| {
        let last = axes.len() - 1;
        let draw = |(i, (pad_begin, pad_end, extra, output_padding, shortfall))| {
            // Some rows are too short for the kernels.
            let extra = if i == last { extra + 2 } else { extra + 1 };
            DrawnAxis { kernel, dilation: 1, stride: 2, pad_begin, pad_end, extra, output_padding, shortfall }
        };
        let axes: Vec<_> = axes.into_iter().enumerate().map(draw).collect();
        transposed_layer(channels, &axes, sizing)
    })
}

fn conv_layer(channels: DrawnChannels, axes: &[DrawnAxis], mode: AutoPad) -> Layer {
    let is_same = matches!(mode, AutoPad::SameUpper | AutoPad::SameLower);
    let pads = |axis: &DrawnAxis| if mode == AutoPad::NotSet { axis.pad_begin + axis.pad_end } else { 0 };
    shrunk(channels, |DrawnChannels { batch, group, c, m }| {
        // With SAME, a kernel may be larger than the input. Otherwise the kernel must fit the
        // padded input, which may be empty.
        let least = |axis: &DrawnAxis| if is_same { 1 } else { axis.reach().saturating_sub(pads(axis)) };
        let w_shape = [group * m, c].into_iter().chain(axes.iter().map(|a| a.kernel));
        let x_shape = [batch, group * c].into_iter().chain(axes.iter().map(|a| least(a) + a.extra));
        let mut conv = Conv::new(w_shape.collect::<Vec<_>>())
            .group(group as i64)
            .strides(list(axes, |a| a.stride))
            .dilations(list(axes, |a| a.dilation))
            .auto_pad(mode);
        if mode == AutoPad::NotSet {
            conv = conv.pads(pad_list(axes, |a| (a.pad_begin, a.pad_end)));
        }
        Layer { operator: conv.into(), x_shape: x_shape.collect() }
    })
}

/// How the output size of a ConvTranspose is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizing {
    Pads,
    Auto(AutoPad),
    OutputShape(AutoPad),
}

/// Any ConvTranspose.
pub fn conv_transpose() -> impl Strategy<Value = Layer> {
    let mode = prop_oneof![Just(AutoPad::Valid), Just(AutoPad::SameUpper), Just(AutoPad::SameLower)];
    let sizing = prop_oneof![
        6 => Just(Sizing::Pads),
        2 => mode.clone().prop_map(Sizing::Auto),
        2 => mode.prop_map(Sizing::OutputShape),
    ];
    (channels(), axes(), sizing).prop_map(|(channels, axes, sizing)| transposed_layer(channels, &axes, sizing))
}

fn transposed_layer(channels: DrawnChannels, axes: &[DrawnAxis], sizing: Sizing) -> Layer {
    // An empty axis of X is defined if the output is not empty. The automatic sizes are not
    // defined there.
    let empty = |a: &DrawnAxis| a.extra == 0 && sizing == Sizing::Pads && a.reach() + a.output_padding() > a.stride;
    let input = |a: &DrawnAxis| if empty(a) { 0 } else { a.extra.max(1) };
    let natural = |a: &DrawnAxis| (a.stride * input(a) + a.output_padding() + a.reach()) - a.stride;
    // At most as much padding as leaves one output.
    let pads = |a: &DrawnAxis| {
        let begin = a.pad_begin.min(natural(a) - 1);
        (begin, a.pad_end.min(natural(a) - 1 - begin))
    };
    shrunk(channels, |DrawnChannels { batch, group, c, m }| {
        let w_shape = [group * c, m].into_iter().chain(axes.iter().map(|a| a.kernel));
        let x_shape = [batch, group * c].into_iter().chain(axes.iter().map(input));
        let mut operator = ConvTranspose::new(w_shape.collect::<Vec<_>>())
            .group(group as i64)
            .strides(list(axes, |a| a.stride))
            .dilations(list(axes, |a| a.dilation))
            .output_padding(list(axes, DrawnAxis::output_padding));
        operator = match sizing {
            Sizing::Pads => operator.pads(pad_list(axes, pads)),
            Sizing::Auto(mode) => operator.auto_pad(mode),
            Sizing::OutputShape(mode) => {
                let output = |a: &DrawnAxis| (natural(a) + a.stride - 1).saturating_sub(a.shortfall).max(1);
                operator.auto_pad(mode).output_shape(list(axes, output))
            }
        };
        Layer { operator: operator.into(), x_shape: x_shape.collect() }
    })
}

/// The layer with fewer channels, then fewer groups, until it is cheap enough.
fn shrunk(mut channels: DrawnChannels, layer: impl Fn(DrawnChannels) -> Layer) -> Layer {
    loop {
        let candidate = layer(channels.clone());
        if candidate.geometry().macs() <= MACS {
            return candidate;
        }
        match &mut channels {
            DrawnChannels { m, .. } if *m > 7 => *m = *m * 2 / 3,
            DrawnChannels { c, .. } if *c > 1 => *c = *c * 2 / 3,
            DrawnChannels { m, .. } if *m > 1 => *m -= 1,
            DrawnChannels { group, .. } if *group > 1 => *group -= 1,
            _ => return candidate,
        }
    }
}

fn list(axes: &[DrawnAxis], value: impl Fn(&DrawnAxis) -> usize) -> Vec<i64> {
    axes.iter().map(|axis| value(axis) as i64).collect()
}

/// The pads in ONNX's order: all beginnings, then all ends.
fn pad_list(axes: &[DrawnAxis], pads: impl Fn(&DrawnAxis) -> (usize, usize)) -> Vec<i64> {
    let mut all = list(axes, |axis| pads(axis).0);
    all.extend(list(axes, |axis| pads(axis).1));
    all
}

/// The options of a run besides its layer.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub has_bias: bool,
    pub has_residual: bool,
    /// Threads that the plan splits the work for. The run itself may be serial.
    pub threads: usize,
    pub seed: u64,
    /// Elements between the pixels of X, residual and Y, where channels are last.
    pub gaps: [Option<usize>; 3],
}

/// Any options, with up to `threads` threads.
pub fn options(threads: RangeInclusive<usize>) -> impl Strategy<Value = Options> {
    let gap = || prop_oneof![2 => Just(None), 3 => (0..=20_usize).prop_map(Some)];
    (any::<bool>(), any::<bool>(), threads, 0..1000_u64, [gap(), gap(), gap()]).prop_map(
        |(has_bias, has_residual, threads, seed, gaps)| Options { has_bias, has_residual, threads, seed, gaps },
    )
}

/// Layers with sizes at which plans and kernels are most likely to be wrong.
pub fn hard() -> Vec<Layer> {
    convoke_tools::hard::layers().into_iter().map(|case| Layer::new(case.operator, case.x_shape)).collect()
}

/// The hard layers for tests that run them in every type. In short runs f16 and bf16 take turns,
/// because both have the kernels of f32: they only convert to and from it.
pub fn hard_in<T: Element>() -> Vec<Layer> {
    let (first, step) = match T::DTYPE {
        DType::F16 if is_short() => (0, 2),
        DType::BF16 if is_short() => (1, 2),
        _ => (0, 1),
    };
    hard().into_iter().skip(first).step_by(step).collect()
}

/// Layers that are large enough to be shared among threads.
pub fn shared_layers() -> [Layer; 3] {
    [
        Layer::new(Conv::new([24, 20, 3, 3]).pads([1, 1, 1, 1]), [1, 20, 30, 31]),
        Layer::new(Conv::new([70, 300, 1, 1]), [1, 300, 17, 9]),
        Layer::new(ConvTranspose::new([30, 17, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 30, 20, 21]),
    ]
}
