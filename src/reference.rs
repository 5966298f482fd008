//! The definition of the operators, summed in f64. Tests and tools compare with it. Lowerings
//! compute by it where padding counts: if a weight is not finite.

use alloc::vec;
use alloc::vec::Vec;

use convoke_kernels::Real;

use crate::{Accuracy, Algorithm, DType, Element, Geometry, Op};

/// One output element by the definition, before it is rounded to the element type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceElement {
    /// The sum of products plus the bias.
    pub value: f64,
    /// The sum of the magnitudes of the products and of the bias. Rounding errors are
    /// proportional to it.
    pub magnitude: f64,
}

/// The output element with linear (row-major) index `index`.
///
/// Conv's padding is a literal zero that is multiplied by its weight: an infinite weight on padding
/// gives NaN. ConvTranspose has only the contributions that exist.
///
/// # Panics
/// If `index` or a slice does not fit the geometry.
#[must_use]
pub fn element<T: Element>(
    geometry: &Geometry,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    index: usize,
) -> ReferenceElement {
    let place = geometry.output_place(index);
    let bias = bias.map(|b| b[place.1].to_acc().to_f64());
    let x = |n, c, position| x[geometry.input_offset(n, c, position)].to_acc().to_f64();
    sum(geometry, place, bias.unwrap_or(0.0), x, |at| w[at].to_acc().to_f64())
}

/// Every output element, in order: the same bits as [`element`] gives, in far less time. It keeps X
/// and W in f64 meanwhile.
///
/// # Panics
/// If a slice does not fit the geometry.
#[must_use]
pub fn all<T: Element>(geometry: &Geometry, x: &[T], w: &[T], bias: Option<&[T]>) -> Vec<ReferenceElement> {
    let numbers = |values: &[T]| values.iter().map(|v| v.to_acc().to_f64()).collect::<Vec<f64>>();
    let (x, w) = (numbers(x), numbers(w));
    let strides = geometry.input_strides();
    let mut elements = vec![ReferenceElement { value: 0.0, magnitude: 0.0 }; geometry.output_len()];
    if elements.is_empty() {
        return elements;
    }
    let (positions, c_group) = (geometry.output_spatial(), geometry.in_channels_per_group());
    // As in `sum`: without channels there are no products.
    let taps = if c_group == 0 { 0 } else { geometry.kernel_volume() };
    let (mut sources, mut plane) = (Vec::with_capacity(positions), Vec::with_capacity(positions));
    for tap in 0..taps {
        sources.clear();
        sources.extend((0..positions).map(|position| source(geometry, position, tap)));
        for (n, m) in planes(geometry) {
            let filters = Filters::new(geometry, m);
            plane.clear();
            plane.extend((0..positions).map(|position| elements[geometry.output_offset(n, m, position)]));
            for c in 0..c_group {
                let first = strides.at(n, filters.channel + c, 0);
                let weight = w[filters.weight + c * filters.step + tap];
                add_products(
                    geometry.op,
                    &mut plane,
                    &sources,
                    (x.get(first..).unwrap_or(&[]), strides.position),
                    weight,
                );
            }
            for (position, element) in plane.iter().enumerate() {
                elements[geometry.output_offset(n, m, position)] = *element;
            }
        }
    }
    for (n, m) in planes(geometry) {
        let bias = bias.map_or(0.0, |b| b[m].to_acc().to_f64());
        for position in 0..positions {
            let element = &mut elements[geometry.output_offset(n, m, position)];
            element.value += bias;
            element.magnitude += bias.abs();
        }
    }
    elements
}

/// All images and output channels.
fn planes(geometry: &Geometry) -> impl Iterator<Item = (usize, usize)> {
    let channels = geometry.out_channels;
    (0..geometry.batch).flat_map(move |n| (0..channels).map(move |m| (n, m)))
}

/// Adds the products of one tap and one channel of X to a plane of Y. Positions of the channel are `step`
/// elements apart.
fn add_products(op: Op, plane: &mut [ReferenceElement], sources: &[Option<usize>], (x, step): (&[f64], usize), w: f64) {
    for (element, source) in plane.iter_mut().zip(sources) {
        let x = match (source, op) {
            (Some(source), _) => x[*source * step],
            (None, Op::Conv) => 0.0,
            (None, Op::ConvTranspose) => continue,
        };
        let product = x * w;
        element.value += product;
        element.magnitude += product.abs();
    }
}

/// The largest difference to [`ReferenceElement::value`] that a direct algorithm may have when it
/// computes and stores `T` and the magnitudes of the products sum up to `magnitude`.
///
/// A sum of K products, added one after the other, has an error of at most K * u / (1 - K * u) *
/// sum |x||w|, with u the unit round-off (Higham, "Accuracy and Stability of Numerical
/// Algorithms", section 3.1), and half the distance between subnormal numbers for each product that
/// is so small. The bias and the epilogue add a few operations, and storing in a 16-bit type rounds
/// once more. The definition is such a sum, too, in f64.
#[must_use]
pub fn tolerance<T: Element>(geometry: &Geometry, magnitude: f64) -> f64 {
    let k = (geometry.in_channels_per_group() * geometry.kernel_volume() + 4) as f64;
    let error = |roundoff: f64, dtype: DType| {
        let share = k * roundoff;
        let relative = if share < 1.0 { share / (1.0 - share) } else { f64::INFINITY };
        relative * magnitude + k / 2.0 * smallest_step(dtype)
    };
    let acc = if T::DTYPE == DType::F64 { DType::F64 } else { DType::F32 };
    let sum = error(<T::Acc as Real>::UNIT_ROUNDOFF, acc) + error(f64::UNIT_ROUNDOFF, DType::F64);
    if T::DIRECT { sum } else { sum + (magnitude + sum) * T::UNIT_ROUNDOFF + smallest_step(T::DTYPE) / 2.0 }
}

/// For each channel of Y, the magnitude that the errors of Winograd are proportional to, because
/// its transforms mix neighbouring inputs. It is the sum over the channels of X in its group of the
/// greatest finite |x| of that channel times the sum of the finite |w| for it.
///
/// The error of an output depends only on what its tile reads, which [`Accuracy`] says. So for that
/// output, the greatest |x| may be taken over this part of X alone.
///
/// # Panics
/// If a slice does not fit the geometry.
#[must_use]
pub fn wide_magnitudes<T: Element>(geometry: &Geometry, x: &[T], w: &[T]) -> Vec<f64> {
    let finite = |v: &T| Some(v.to_acc().to_f64().abs()).filter(|v| v.is_finite());
    let (channels, c_group) = (geometry.in_channels, geometry.in_channels_per_group());
    let (taps, spatial) = (geometry.kernel_volume(), geometry.input_spatial());
    let mut most = vec![0.0; channels];
    for (n, c) in (0..geometry.batch).flat_map(|n| (0..channels).map(move |c| (n, c))) {
        let values = (0..spatial).filter_map(|position| finite(&x[geometry.input_offset(n, c, position)]));
        most[c] = values.fold(most[c], f64::max);
    }
    let of_channel = |m: usize| {
        let filters = Filters::new(geometry, m);
        let sum = |c: usize| w[filters.weight + c * filters.step..][..taps].iter().filter_map(finite).sum::<f64>();
        (0..c_group).map(|c| most[filters.channel + c] * sum(c)).sum()
    };
    (0..geometry.out_channels).map(of_channel).collect()
}

/// The most that an algorithm's transforms may add to [`tolerance`], for a magnitude `wide` from
/// [`wide_magnitudes`]. It is 0 for algorithms without transforms. This is what [`Accuracy`]
/// promises.
///
/// It is proven, for all finite operands, apart from underflow. Let A, G and B be the matrices of a
/// tile's transforms, so that an output is the sum of `A[i][v] * (G w)[v] * (B x)[v]` over the values
/// v and the channels of X. An operation has a relative error of at most u, the unit round-off. So an
/// output that depends on at most R operations in a chain errs by at most R * u times the sum of
/// `|A| * (|G| |w|) * (|B| |x|)`, up to terms in u^2. Of a channel of X, that is at most `a * max|x| *
/// sum|w|`, where `a` is the greatest sum over v of `|A[i][v]| * |G[v][t]| * sum|B[v]|` for any output
/// i and tap t. For a tile on two axes it is the product of both axes'. It is below 600 for the tiles
/// of `Standard` and below 2200 for those of `Fast`: a test derives it from the tiles' points. R is
/// the number of steps of K, of which at most 192 are summed in one go, and at most 64 operations
/// beside these.
#[must_use]
pub fn transform_tolerance<T: Element>(
    geometry: &Geometry,
    algorithm: Algorithm,
    accuracy: Accuracy,
    wide: f64,
) -> f64 {
    let amplification = match (algorithm == Algorithm::WINOGRAD, accuracy) {
        (true, Accuracy::Standard) => 600.0,
        (true, Accuracy::Fast) => 2200.0,
        _ => return 0.0,
    };
    let k = (geometry.in_channels_per_group() * geometry.kernel_volume()) as f64;
    let operations = k.min(192.0) + k / 192.0 + 64.0;
    amplification * operations * <T::Acc as Real>::UNIT_ROUNDOFF * wide
}

/// The distance between subnormal numbers of a type: rounding near zero changes a value by half of it
/// at most.
fn smallest_step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / f64::from(1_u32 << 24),
        DType::BF16 => f64::from(f32::from_bits(1 << 16)),
        DType::F32 => f64::from(f32::from_bits(1)),
        DType::F64 => f64::from_bits(1),
    }
}

/// An output by the definition: its image, channel and position are `place`, and `x` returns an element of
/// X by the same three numbers.
pub(crate) fn sum(
    geometry: &Geometry,
    (n, m, position): (usize, usize, usize),
    bias: f64,
    x: impl Fn(usize, usize, usize) -> f64,
    w: impl Fn(usize) -> f64,
) -> ReferenceElement {
    let (c_group, filters) = (geometry.in_channels_per_group(), Filters::new(geometry, m));
    let mut total = ReferenceElement { value: 0.0, magnitude: 0.0 };
    // Without channels there are no products, however many taps there are.
    for tap in 0..if c_group == 0 { 0 } else { geometry.kernel_volume() } {
        let source = source(geometry, position, tap);
        if source.is_none() && geometry.op == Op::ConvTranspose {
            continue;
        }
        for c in 0..c_group {
            let x = source.map_or(0.0, |source| x(n, filters.channel + c, source));
            let product = x * w(filters.weight + c * filters.step + tap);
            total.value += product;
            total.magnitude += product.abs();
        }
    }
    ReferenceElement { value: total.value + bias, magnitude: total.magnitude + bias.abs() }
}

/// Where the filters of an output channel read.
pub(crate) struct Filters {
    /// The first channel of X in its group.
    pub(crate) channel: usize,
    /// The place of that channel's first weight, and the distance to the next channel's.
    pub(crate) weight: usize,
    pub(crate) step: usize,
}

impl Filters {
    pub(crate) fn new(geometry: &Geometry, m: usize) -> Self {
        let (c_group, m_group) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        let (channel, taps) = (m / m_group * c_group, geometry.kernel_volume());
        match geometry.op {
            Op::Conv => Self { channel, weight: m * c_group * taps, step: taps },
            Op::ConvTranspose => {
                Self { channel, weight: (channel * m_group + m % m_group) * taps, step: m_group * taps }
            }
        }
    }
}

/// The input position that output `position` reads through kernel `tap`. None if that is padding,
/// or for ConvTranspose if the tap contributes nothing there.
fn source(geometry: &Geometry, mut position: usize, mut tap: usize) -> Option<usize> {
    let (mut at, mut step) = (0, 1);
    for axis in geometry.axes.iter().rev() {
        let (o, k) = (position % axis.output, tap % axis.kernel);
        (position, tap) = (position / axis.output, tap / axis.kernel);
        let i = match geometry.op {
            Op::Conv => (o * axis.stride + k * axis.dilation).checked_sub(axis.pad_begin)?,
            Op::ConvTranspose => {
                let reach = (o + axis.pad_begin).checked_sub(k * axis.dilation)?;
                if reach % axis.stride != 0 {
                    return None;
                }
                reach / axis.stride
            }
        };
        if i >= axis.input {
            return None;
        }
        // It wraps only if an axis has no positions, and then the result is `None`.
        at = i.wrapping_mul(step).wrapping_add(at);
        step = usize::wrapping_mul(step, axis.input);
    }
    Some(at)
}
