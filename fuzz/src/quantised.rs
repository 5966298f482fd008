//! Plans, packs and runs small layers of bytes, and compares with the definition in whole numbers.

use arbitrary::{Result, Unstructured};
use convoke::{Byte, Error, Geometry, Planner, Quantised, QuantisedRun, Scales, Threads, Workspace};

use crate::layers::{Layer, integers, is_transposed};
use crate::run::{InTurn, Places, gap, isa};
use crate::{reference, with_bytes};

/// Layers of every kind, in some combinations of types.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let Some(layer) = Layer::arbitrary(u)? else { return Ok(()) };
        let layer = layer.in_layouts(u)?;
        match u.int_in_range(0..=3)? {
            0 => check_types::<u8, i8, u8>(&layer, u),
            1 => check_types::<i8, i8, i8>(&layer, u),
            2 => check_types::<u8, u8, i32>(&layer, u),
            _ => check_types::<i8, u8, f32>(&layer, u),
        }
    });
}

/// A type of the fuzzer's numbers.
trait Number: Copy + Default + PartialEq + std::fmt::Debug {
    fn number(self) -> i64;
    /// The number of the type whose lowest byte that is.
    fn of(byte: u8) -> Self;
    /// The output for a sum with its bias.
    fn output(sum: i64, scale: f32, zero: Self) -> Self;
}

macro_rules! number {
    ($($t:ident: |$sum:ident, $scale:ident, $zero:ident| $output:expr;)+) => {
        $(impl Number for $t {
            fn number(self) -> i64 {
                self as i64
            }

            fn of(byte: u8) -> Self {
                byte as $t
            }

            fn output($sum: i64, $scale: f32, $zero: Self) -> Self {
                $output
            }
        })+
    };
}

// `as` saturates.
number! {
    u8: |sum, scale, zero| ((sum as f32 * scale).round_ties_even() + f32::from(zero)) as u8;
    i8: |sum, scale, zero| ((sum as f32 * scale).round_ties_even() + f32::from(zero)) as i8;
    i32: |sum, _scale, _zero| sum as i32;
    f32: |sum, scale, _zero| sum as f32 * scale;
}

/// No number, one, three, or one for each of `channels`.
fn some<T>(
    u: &mut Unstructured<'_>,
    channels: usize,
    one: impl Fn(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = if u.ratio(1, 16)? { *u.choose(&[0, 3])? } else { *u.choose(&[1, channels])? };
    (0..count).map(|_| one(u)).collect()
}

fn check_types<X, W, Y>(layer: &Layer, u: &mut Unstructured<'_>) -> Result<()>
where
    X: Byte + Number,
    W: Byte + Number,
    Y: Quantised + Number,
{
    let (count, seed) = (u.int_in_range(1..=4)?, u64::from(u.arbitrary::<u16>()?));
    let planner = Planner::new().threads(count).isa(isa(u)?);
    let Ok(plan) = planner.plan_quantised::<X, W, Y>(layer.operator.clone(), &layer.x_shape) else { return Ok(()) };
    let (geometry, channels) = (plan.geometry(), plan.geometry().out_channels);
    // Any bytes, by products of small numbers.
    let bytes =
        |len: usize, seed: u64| integers(len, seed).into_iter().zip(integers(len, !seed)).map(|(a, b)| a * 30 + b * 7);
    let x: Vec<X> = bytes(geometry.input_len(), seed).map(|value| X::of(value as u8)).collect();
    let w: Vec<W> = bytes(geometry.weight_len(), seed + 1).map(|value| W::of(value as u8)).collect();
    // The middle of its type, with which kernels may multiply bytes, or any.
    let zero = |u: &mut Unstructured<'_>| Ok(W::of(if u.arbitrary()? { W::CENTRE as u8 } else { u.arbitrary()? }));
    let w_zeros = if u.arbitrary()? { some(u, channels, zero)? } else { Vec::new() };
    let bias = some(u, channels, |u| Ok(u.arbitrary::<i32>()? >> 8))?;
    let bias = (bias.len() == channels).then_some(bias);
    let scale = |u: &mut Unstructured<'_>| match u.ratio(1, 64)? {
        true => Ok(*u.choose(&[0.0, -1.0, f32::NAN, f32::INFINITY, 1.0e38])?),
        false => Ok(*u.choose(&[0.5, 0.01, 1.0, 3.0e-7, 40.0])?),
    };
    let w_scale = some(u, channels, scale)?;
    let (x_zero_point, y_zero_point) = (X::of(u.arbitrary()?), Y::of(u.arbitrary()?));
    let (x_scale, y_scale) = (scale(u)?, scale(u)?);
    let scales = Scales { x_scale, x_zero_point, w_scale: &w_scale, y_scale, y_zero_point };

    let [x_places, _, y_places] = Places::of(geometry, [gap(u)?, None, gap(u)?]);
    let spread = x_places.spread_among(&x, X::default());
    let mut y = y_places.spread_among(&vec![Y::default(); geometry.output_len()], Y::default());
    let run = |y: &mut [Y]| -> std::result::Result<(), Error> {
        let weights = plan.pack(&w, &w_zeros, bias.as_deref())?;
        let scaled = weights.scaled(&scales)?;
        let mut workspace = Workspace::with_bytes(plan.workspace_bytes())?;
        let run = QuantisedRun::new(&spread, &weights, &scaled, y).workspace(&mut workspace);
        let run = y_places.set(x_places.set(run, QuantisedRun::x_pixel_stride), QuantisedRun::y_pixel_stride);
        plan.run(run.threads(Threads::Executor(&InTurn(count)))).map(|_| ())
    };
    if run(&mut y).is_err() {
        assert!(y.iter().all(|y| *y == Y::default()), "an error leaves Y as it was");
        return Ok(());
    }
    let zero_of = |m: usize| w_zeros.get(if w_zeros.len() == 1 { 0 } else { m }).map_or(0, |zero| zero.number());
    let x: Vec<i64> = x.iter().map(|x| x.number() - x_zero_point.number()).collect();
    let w: Vec<i64> = w.iter().enumerate().map(|(i, w)| w.number() - zero_of(channel_of(geometry, i))).collect();
    let sums = reference::products(geometry, &x, &w);
    for (i, sum) in sums.into_iter().enumerate() {
        let m = i / geometry.output_spatial() % channels;
        let scale = x_scale * w_scale[if w_scale.len() == 1 { 0 } else { m }] / y_scale;
        let sum = sum + bias.as_ref().map_or(0, |bias| i64::from(bias[m]));
        let expected = Y::output(sum, scale, y_zero_point);
        assert_eq!(y[y_places.at(i)], expected, "element {i} of {layer:?}: {}", plan.explain());
    }
    Ok(())
}

/// The output channel of an element of W.
fn channel_of(geometry: &Geometry, index: usize) -> usize {
    let (c, m, taps) = (geometry.in_channels_per_group(), geometry.out_channels_per_group(), geometry.kernel_volume());
    match is_transposed(geometry) {
        true => index / (m * taps) / c * m + index / taps % m,
        false => index / (c * taps),
    }
}
