//! The definition of the operators, summed in f64. Tests and tools compare with it. Lowerings
//! compute by it where padding counts: if a weight is not finite.

use alloc::vec;
use alloc::vec::Vec;

use convoke_kernels::Real;

use crate::{DType, Element, Geometry, Op};

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
    let bias = bias.map(|b| b[place(geometry, index).1].to_acc().to_f64());
    sum(geometry, index, bias.unwrap_or(0.0), |at| x[at].to_acc().to_f64(), |at| w[at].to_acc().to_f64())
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
    let mut elements = vec![ReferenceElement { value: 0.0, magnitude: 0.0 }; geometry.output_len()];
    if elements.is_empty() {
        return elements;
    }
    let (positions, c_group, spatial) =
        (geometry.output_spatial(), geometry.in_channels_per_group(), geometry.input_spatial());
    // As in `sum`, no channels have no products.
    let taps = if c_group == 0 { 0 } else { geometry.kernel_volume() };
    let mut sources = Vec::with_capacity(positions);
    for tap in 0..taps {
        sources.clear();
        sources.extend((0..positions).map(|position| source(geometry, position, tap)));
        for (index, plane) in elements.chunks_exact_mut(positions).enumerate() {
            let (n, m) = (index / geometry.out_channels, index % geometry.out_channels);
            let filters = Filters::new(geometry, m);
            for c in 0..c_group {
                let first = (n * geometry.in_channels + filters.channel + c) * spatial;
                let weight = w[filters.weight + c * filters.step + tap];
                add_products(geometry.op, plane, &sources, &x[first..first + spatial], weight);
            }
        }
    }
    for (index, plane) in elements.chunks_exact_mut(positions).enumerate() {
        let bias = bias.map_or(0.0, |b| b[index % geometry.out_channels].to_acc().to_f64());
        for element in plane {
            element.value += bias;
            element.magnitude += bias.abs();
        }
    }
    elements
}

/// Adds the products of one tap and one channel of X to a plane of Y.
fn add_products(op: Op, plane: &mut [ReferenceElement], sources: &[Option<usize>], x: &[f64], w: f64) {
    for (element, source) in plane.iter_mut().zip(sources) {
        let x = match (source, op) {
            (Some(source), _) => x[*source],
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
/// its transforms mix neighbouring inputs. It is the greatest finite magnitude in X times the sum
/// of the finite magnitudes of the channel's weights.
#[must_use]
pub fn wide_magnitudes<T: Element>(geometry: &Geometry, x: &[T], w: &[T]) -> Vec<f64> {
    let finite = |v: &T| Some(v.to_acc().to_f64().abs()).filter(|v| v.is_finite());
    let most = x.iter().filter_map(finite).fold(0.0, f64::max);
    let (taps, c_group, m_group) =
        (geometry.kernel_volume(), geometry.in_channels_per_group(), geometry.out_channels_per_group());
    let filter = |m: usize, c: usize| match geometry.op {
        Op::Conv => m * c_group + c,
        Op::ConvTranspose => (m / m_group * c_group + c) * m_group + m % m_group,
    };
    let sum = |filter: usize| w[filter * taps..(filter + 1) * taps].iter().filter_map(finite).sum::<f64>();
    let of_channel = |m: usize| (0..c_group).map(|c| sum(filter(m, c))).sum::<f64>() * most;
    (0..geometry.out_channels).map(of_channel).collect()
}

/// The error that an algorithm's transforms may add to [`tolerance`], for a magnitude `wide` from
/// [`wide_magnitudes`]. It is 0 for algorithms without transforms.
///
/// It is not proven: bounds on each step of Winograd's F(4x4, 3x3) give more than 10^4 units of
/// round-off, because they ignore that errors have signs and cancel. It is twice the largest error
/// that was seen in random layers, dense, grouped and depthwise, of tiles that
/// [`Accuracy::Standard`](crate::Accuracy::Standard) allows. A test repeats the measurement
/// (`errors_of_random_layers_stay_below_half_of_the_bound`).
#[must_use]
pub fn transform_tolerance<T: Element>(algorithm: crate::Algorithm, wide: f64) -> f64 {
    match algorithm {
        crate::Algorithm::Winograd => 160.0 * <T::Acc as Real>::UNIT_ROUNDOFF * wide,
        _ => 0.0,
    }
}

/// The distance between subnormal numbers of a type: rounding near zero changes a value by half of it
/// at most.
fn smallest_step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / f64::from(1_u32 << 24),
        // The upper half of an f32.
        DType::BF16 => f64::from(f32::from_bits(1 << 16)),
        DType::F32 => f64::from(f32::from_bits(1)),
        DType::F64 => f64::from_bits(1),
    }
}

/// Sums up one output element from accessors of X and W.
pub(crate) fn sum(
    geometry: &Geometry,
    index: usize,
    bias: f64,
    x: impl Fn(usize) -> f64,
    w: impl Fn(usize) -> f64,
) -> ReferenceElement {
    let (n, m) = place(geometry, index);
    let (c_group, filters) = (geometry.in_channels_per_group(), Filters::new(geometry, m));
    let position = index % geometry.output_spatial();
    let (taps, spatial) = (geometry.kernel_volume(), geometry.input_spatial());
    let mut total = ReferenceElement { value: 0.0, magnitude: 0.0 };
    // Without channels there are no products, however many taps there are.
    for tap in 0..if c_group == 0 { 0 } else { taps } {
        let source = source(geometry, position, tap);
        if source.is_none() && geometry.op == Op::ConvTranspose {
            continue;
        }
        for c in 0..c_group {
            let x = source.map_or(0.0, |s| x((n * geometry.in_channels + filters.channel + c) * spatial + s));
            let product = x * w(filters.weight + c * filters.step + tap);
            total.value += product;
            total.magnitude += product.abs();
        }
    }
    ReferenceElement { value: total.value + bias, magnitude: total.magnitude + bias.abs() }
}

/// What an output channel is the sum of.
struct Filters {
    /// The first channel of X in its group.
    channel: usize,
    /// The place of that channel's first weight, and the distance to the next channel's.
    weight: usize,
    step: usize,
}

impl Filters {
    fn new(geometry: &Geometry, m: usize) -> Self {
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

/// The image and the output channel of an output element.
fn place(geometry: &Geometry, index: usize) -> (usize, usize) {
    let plane = index / geometry.output_spatial();
    (plane / geometry.out_channels, plane % geometry.out_channels)
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
        // This wraps only if another axis has no positions, and then the result is none anyway.
        at = i.wrapping_mul(step).wrapping_add(at);
        step = usize::wrapping_mul(step, axis.input);
    }
    Some(at)
}
