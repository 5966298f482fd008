//! Convolutions of bytes: random layers on every ISA and in all types, against the definition, and refusals.

use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::Arc;

use convoke::{
    Activation, Byte, Conv, ConvTranspose, ErrorKind, Isa, Layout, Planner, Quantised, QuantisedPlan,
    QuantisedPlanCache, QuantisedRun, Scaled, Scales, Threads, Workspace, f16, reference,
};
use convoke_tools::data::channel_of;
use proptest::prelude::*;

use crate::common::cases;
use crate::common::layers::{self, Layer};
use crate::common::operands::Pixels;
#[cfg(feature = "save")]
use crate::forged::with_checksum;
use crate::lowerings::runner;

/// A type of the tests: its smallest and its largest value.
trait TestByte: Byte {
    const MIN: i32;
    fn of(value: i32) -> Self;
    fn number(self) -> i32;
}

macro_rules! test_byte {
    ($($t:ident)+) => {$(
        impl TestByte for $t {
            const MIN: i32 = $t::MIN as i32;

            fn of(value: i32) -> Self {
                $t::try_from(value).expect("a value of the type")
            }

            fn number(self) -> i32 {
                i32::from(self)
            }
        }
    )+};
}
test_byte!(u8 i8);

/// Scales with a table, and what that makes of an output.
type WithTable<X, Y> = (Scaled<X, Y>, Box<dyn Fn(Y) -> Y>);

/// What an output must be.
trait Expected: Quantised + PartialEq + Default {
    const ZERO_POINT: Self;
    fn expected(sum: i32, scale: f32, addend: f32) -> Self;

    /// A residual for outputs of bytes: its values, and its zero point.
    fn residual(_len: usize, _: &mut Draw) -> Option<(Vec<Self>, Self)> {
        None
    }

    fn with_residual<'a, 'y, X>(
        run: QuantisedRun<'a, 'y, X, Self>,
        _: (&'a [Self], f32, Self),
        _stride: Option<usize>,
    ) -> QuantisedRun<'a, 'y, X, Self> {
        run
    }

    /// What is left of a value of the residual without the zero point.
    fn difference(self, _zero_point: Self) -> i32 {
        0
    }

    /// Gives an output of bytes a table, by which the expected values go, too.
    fn with_table<X: Byte>(scaled: Scaled<X, Self>, _: &mut Draw) -> WithTable<X, Self> {
        (scaled, Box::new(|y| y))
    }
}

macro_rules! expected {
    ($t:ident, $zero:expr; |$sum:ident, $scale:ident, $addend:ident| $expected:expr $(, $byte:ident)?) => {
        impl Expected for $t {
            const ZERO_POINT: Self = $zero;

            fn expected($sum: i32, $scale: f32, $addend: f32) -> Self {
                $expected
            }

            $(
                fn with_table<X: Byte>(scaled: Scaled<X, Self>, draw: &mut Draw) -> WithTable<X, Self> {
                    let table: [Self; 256] = std::array::from_fn(|_| draw.byte());
                    (scaled.table(&table), Box::new(move |y| table[usize::from(y as $byte)]))
                }

                fn residual(len: usize, draw: &mut Draw) -> Option<(Vec<Self>, Self)> {
                    Some((draw.bytes(len), draw.byte()))
                }

                fn with_residual<'a, 'y, X>(
                    run: QuantisedRun<'a, 'y, X, Self>,
                    (residual, scale, zero_point): (&'a [Self], f32, Self),
                    stride: Option<usize>,
                ) -> QuantisedRun<'a, 'y, X, Self> {
                    run.residual(residual, scale, zero_point).residual_pixel_stride(stride)
                }

                fn difference(self, zero_point: Self) -> i32 {
                    self.number() - zero_point.number()
                }
            )?
        }
    };
}
// `as` saturates.
expected!(u8, 77; |sum, scale, addend| ((sum as f32 * scale + addend).round_ties_even() + 77.0) as u8, u8);
expected!(i8, -5; |sum, scale, addend| ((sum as f32 * scale + addend).round_ties_even() - 5.0) as i8, u8);
expected!(i32, 0; |sum, _scale, _addend| sum);
expected!(f32, 0.0; |sum, scale, _addend| sum as f32 * scale);
// The conversion rounds once, as f64 holds the product.
expected!(f16, f16::ZERO; |sum, scale, _addend| f16::from_f64(f64::from(sum as f32 * scale)));

/// Random numbers, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Any value, the extremes more often.
    fn byte<B: TestByte>(&mut self) -> B {
        let value = match self.below(8) {
            0 => 0,
            1 => 255,
            _ => self.below(256) as i32,
        };
        B::of(B::MIN + value)
    }

    fn bytes<B: TestByte>(&mut self, len: usize) -> Vec<B> {
        (0..len).map(|_| self.byte()).collect()
    }
}

/// The zero points of W.
#[derive(Debug, Clone, Copy)]
enum Zeros {
    Absent,
    /// The middle of the type: such weights are symmetric.
    Middle,
    One,
    Each,
}

/// One layer in one combination of types, on one ISA.
fn check<X: TestByte, W: TestByte, Y: Expected>(layer: &Layer, (isa, threads): (Isa, usize), zeros: Zeros, seed: u64) {
    let planner = Planner::new().isa(isa).threads(threads);
    let plan: QuantisedPlan<X, W, Y> = planner.plan_quantised(layer.operator.clone(), &layer.x_shape).unwrap();
    let geometry = plan.geometry().clone();
    let (mut draw, channels) = (Draw(seed), geometry.out_channels);
    let (x, w) = (draw.bytes::<X>(geometry.input_len()), draw.bytes::<W>(geometry.weight_len()));
    let x_zero: X = draw.byte();
    let w_zeros: Vec<W> = match zeros {
        Zeros::Absent => Vec::new(),
        Zeros::Middle => vec![W::of(W::MIN + 128)],
        Zeros::One => draw.bytes(1),
        Zeros::Each => draw.bytes(channels),
    };
    let bias: Option<Vec<i32>> =
        (!seed.is_multiple_of(3)).then(|| (0..channels).map(|_| draw.below(200_000) as i32 - 100_000).collect());
    let w_scale: Vec<f32> =
        (0..if seed.is_multiple_of(2) { 1 } else { channels }).map(|_| 0.001 + draw.below(100) as f32 * 1e-4).collect();
    let scales =
        Scales { x_scale: 0.02, x_zero_point: x_zero, w_scale: &w_scale, y_scale: 0.37, y_zero_point: Y::ZERO_POINT };

    let weights = plan.pack(&w, &w_zeros, bias.as_deref()).unwrap();
    #[cfg(feature = "save")]
    let weights = if seed.is_multiple_of(4) { plan.load(&weights.to_bytes().unwrap()).unwrap() } else { weights };
    let mut scaled = weights.scaled(&scales).unwrap();
    let mut looked_up: Box<dyn Fn(Y) -> Y> = Box::new(|y| y);
    if seed.is_multiple_of(5) {
        (scaled, looked_up) = Y::with_table(scaled, &mut draw);
    }
    assert!(plan.accepts(&weights));
    assert_eq!(plan.isa(), isa);
    assert!(plan.explain().contains(plan.kernel()), "{}", plan.explain());
    let mut workspace = Workspace::with_bytes(plan.workspace_bytes()).unwrap();
    // Pixels that lie apart, where channels are last.
    let gaps = [(); 3].map(|()| (draw.below(2) == 0).then(|| draw.below(4) as usize));
    let [of_x, of_residual, of_y] = Pixels::of(&geometry, gaps);
    let residual = Y::residual(geometry.output_len(), &mut draw).filter(|_| seed % 7 < 3);
    let wide_residual = residual.as_ref().map(|(values, zero)| of_residual.spread(values, *zero));
    let wide_x = of_x.spread(&x, draw.byte());
    let mut wide = of_y.spread(&vec![Y::default(); geometry.output_len()], Y::ZERO_POINT);
    let mut memory = vec![MaybeUninit::uninit(); geometry.output_len()];
    // What is between pixels must be initialised.
    let run = match of_y.stride {
        Some(_) => QuantisedRun::new(&wide_x, &weights, &scaled, &mut wide),
        None => QuantisedRun::uninit(&wide_x, &weights, &scaled, &mut memory),
    };
    let run = run.x_pixel_stride(of_x.stride).y_pixel_stride(of_y.stride).workspace(&mut workspace);
    let run = match (&residual, &wide_residual) {
        (Some((_, zero)), Some(wide)) => Y::with_residual(run, (wide, 0.11, *zero), of_residual.stride),
        _ => run,
    };
    #[cfg(feature = "rayon")]
    let run = run.threads(Threads::Current.at_most(threads));
    let y = of_y.gather(plan.run(run).unwrap(), Y::ZERO_POINT);

    // The definition, in f64: all sums are integers that it holds.
    let zero_of = |m: usize| w_zeros.get(if w_zeros.len() == 1 { 0 } else { m }).map_or(0, |zero| zero.number());
    let x: Vec<f64> = x.iter().map(|x| f64::from(x.number() - x_zero.number())).collect();
    let w: Vec<f64> =
        w.iter().enumerate().map(|(i, w)| f64::from(w.number() - zero_of(channel_of(&geometry, i)))).collect();
    let bias: Option<Vec<f64>> = bias.map(|bias| bias.into_iter().map(f64::from).collect());
    for (index, (y, sum)) in y.iter().zip(reference::all(&geometry, &x, &w, bias.as_deref())).enumerate() {
        let m = geometry.output_place(index).1;
        let scale = 0.02 * w_scale[if w_scale.len() == 1 { 0 } else { m }] / 0.37;
        let addend = residual.as_ref().map_or(0, |(values, zero)| values[index].difference(*zero));
        let expected = looked_up(Y::expected(sum.value as i32, scale, addend as f32 * (0.11 / 0.37)));
        assert_eq!(f64::from(sum.value as i32), sum.value, "the sum fits");
        assert!(
            *y == expected,
            "{layer}, {isa}, {zeros:?}: element {index} is {y:?}, not {expected:?}: {}",
            plan.explain()
        );
    }
}

fn any_layer() -> impl Strategy<Value = Layer> {
    let any = prop_oneof![
        3 => layers::conv(),
        1 => layers::pointwise(),
        1 => layers::depthwise(),
        1 => layers::grouped(),
        1 => layers::one_position(),
        2 => layers::conv_transpose()
    ];
    (any, layers::layouts()).prop_map(|(layer, layouts)| layer.with_layouts(layouts))
}

fn check_random<X: TestByte, W: TestByte, Y: Expected>() {
    let zeros = prop_oneof![Just(Zeros::Absent), Just(Zeros::Middle), Just(Zeros::One), Just(Zeros::Each)];
    let inputs = (any_layer(), 1..=3_usize, zeros, any::<u32>());
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    runner(cases())
        .run(&inputs, |(layer, threads, zeros, seed)| {
            for isa in &isas {
                check::<X, W, Y>(&layer, (*isa, threads), zeros, u64::from(seed));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_layers_of_u8_and_i8_are_exact() {
    check_random::<u8, i8, u8>();
}

#[test]
fn random_layers_of_i8_and_i8_are_exact() {
    check_random::<i8, i8, i8>();
}

#[test]
fn random_layers_of_u8_and_u8_are_exact() {
    check_random::<u8, u8, i32>();
}

#[test]
fn random_layers_of_i8_and_u8_are_exact() {
    check_random::<i8, u8, f32>();
}

#[test]
fn random_layers_of_u8_and_i8_are_rounded_once_to_f16() {
    check_random::<u8, i8, f16>();
}

/// Plans, packs and runs a layer.
fn run<X: Byte, W: Byte, Y: Expected>(
    conv: Conv,
    x_shape: &[usize],
    (x, w, w_zero_point): (&[X], &[W], &[W]),
    scales: &Scales<'_, X, Y>,
) -> Vec<Y> {
    let plan = Planner::new().plan_quantised::<X, W, Y>(conv, x_shape).unwrap();
    let weights = plan.pack(w, w_zero_point, None).unwrap();
    let scaled = weights.scaled(scales).unwrap();
    let mut y = vec![Y::default(); plan.geometry().output_len()];
    plan.run(QuantisedRun::new(x, &weights, &scaled, &mut y)).unwrap();
    y
}

/// ONNX's test `test_qlinearconv`.
#[test]
fn the_vector_of_onnx_for_qlinearconv_is_met() {
    let x: [u8; 49] = [
        255, 174, 162, 25, 203, 168, 58, 15, 59, 237, 95, 129, 0, 64, 56, 242, 153, 221, 168, 12, 166, 232, 178, 186,
        195, 237, 162, 237, 188, 39, 124, 77, 80, 102, 43, 127, 230, 21, 83, 41, 40, 134, 255, 154, 92, 141, 42, 148,
        247,
    ];
    let expected = [
        0, 81, 93, 230, 52, 87, 197, 240, 196, 18, 160, 126, 255, 191, 199, 13, 102, 34, 87, 243, 89, 23, 77, 69, 60,
        18, 93, 18, 67, 216, 131, 178, 175, 153, 212, 128, 25, 234, 172, 214, 215, 121, 0, 101, 163, 114, 213, 107, 8,
    ];
    let scales = Scales {
        x_scale: 0.003_692_047,
        x_zero_point: 132,
        w_scale: &[0.001_727_945_7],
        y_scale: 0.001_626_812_6,
        y_zero_point: 123_u8,
    };
    let y = run(Conv::new([1, 1, 1, 1]), &[1, 1, 7, 7], (&x, &[0_u8], &[255]), &scales);
    assert_eq!(y, expected);
}

/// ONNX's tests `test_convinteger_without_padding` and `test_convinteger_with_padding`.
#[test]
fn the_vectors_of_onnx_for_convinteger_are_met() {
    let (x, scales) = ([2_u8, 3, 4, 5, 6, 7, 8, 9, 10], Scales::integer(1));
    let y = run(Conv::new([1, 1, 2, 2]), &[1, 1, 3, 3], (&x, &[1_u8; 4], &[]), &scales);
    assert_eq!(y, [12, 16, 24, 28]);
    let padded = Conv::new([2, 1, 2, 2]).pads([1; 4]);
    let y = run(padded, &[1, 1, 3, 3], (&x, &[1_u8; 8], &[0, 1]), &scales);
    assert_eq!(y[..16], [1, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9]);
    assert_eq!(y[16..], [0; 16]);
}

/// Depthwise layers whose X has one position lie the same way in both layouts, and are read by the caller's: X of channels
/// first was read with gaps once. A stride between pixels has no meaning there, whatever it is.
#[test]
fn depthwise_layers_of_one_position_read_their_channels() {
    let depthwise = |shape: [usize; 4], pad: i64| Conv::new(shape).group(3).pads([pad; 4]);
    for (conv, batch) in
        [(depthwise([3, 1, 1, 1], 0), 1), (depthwise([3, 1, 1, 1], 0), 2), (depthwise([3, 1, 3, 3], 1), 2)]
    {
        let taps = conv.weight_shape().iter().product::<usize>() / 3;
        // The tap in the middle is the only one that is no padding.
        let w: Vec<i8> = (0..3 * taps).map(|i| if i % taps == taps / 2 { 2 + (i / taps) as i8 } else { 50 }).collect();
        let x: Vec<u8> = (1..=3 * batch as u8).collect();
        let expected: Vec<i32> = x.iter().enumerate().map(|(i, x)| i32::from(*x) * (2 + i as i32 % 3)).collect();
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let conv = conv.clone().layouts(layout, layout);
                let plan = Planner::new().isa(isa).plan_quantised::<u8, i8, i32>(conv, &[batch, 3, 1, 1]).unwrap();
                let weights = plan.pack(&w, &[], None).unwrap();
                let scaled = weights.scaled(&Scales::integer(0)).unwrap();
                let mut y = vec![0; x.len()];
                let stride = (layout == Layout::ChannelsLast && batch == 1).then_some(usize::MAX);
                let run = QuantisedRun::new(&x, &weights, &scaled, &mut y).x_pixel_stride(stride);
                plan.run(run.y_pixel_stride(stride)).unwrap();
                assert_eq!(y, expected, "{isa}, {layout}, {taps} taps, batch {batch}");
            }
        }
    }
}

/// Each pair of products is beyond what 16 bits hold: kernels that add pairs there saturate.
#[test]
fn pairs_of_products_do_not_saturate() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let plan = Planner::new().isa(isa).plan_quantised::<u8, i8, i32>(Conv::new([40, 64, 1]), &[1, 64, 30]).unwrap();
        let weights = plan.pack(&[127; 40 * 64], &[], None).unwrap();
        let scaled = weights.scaled(&Scales::integer(0)).unwrap();
        let mut y = [0; 40 * 30];
        plan.run(QuantisedRun::new(&[255; 64 * 30], &weights, &scaled, &mut y)).unwrap();
        assert_eq!(y, [64 * 255 * 127; 40 * 30], "{isa}");
    }
}

#[test]
fn bad_input_is_refused_with_its_rule() {
    let planner = Planner::new();
    let conv = Conv::new([2, 3, 1]);
    let plan = planner.plan_quantised::<u8, i8, u8>(conv.clone(), &[1, 3, 5]).unwrap();
    let message = |error: convoke::Error| (error.kind(), error.to_string());
    let check = |error: convoke::Error, kind: ErrorKind, text: &str| assert_eq!(message(error), (kind, text.into()));

    let short = plan.pack(&[0; 5], &[], None).unwrap_err();
    check(short, ErrorKind::BufferLength, "Conv: W has 5 elements, its shape [2, 3, 1] asks for 6");
    let zeros = plan.pack(&[0; 6], &[0; 3], None).unwrap_err();
    check(zeros, ErrorKind::BufferLength, "Conv: w_zero_point has 3 elements, not 1 or 2");
    let bias = plan.pack(&[0; 6], &[], Some(&[0])).unwrap_err();
    check(bias, ErrorKind::BufferLength, "Conv: B has 1 elements, its shape [2] asks for 2");
    let large = plan.pack(&[127; 6], &[], Some(&[0, i32::MAX])).unwrap_err();
    let text = "Conv: sums of output channel 1 may reach 2147580802, more than 32 bits hold";
    check(large, ErrorKind::Overflow, text);

    let weights = plan.pack(&[1; 6], &[], None).unwrap();
    let scales = Scales { x_scale: 1.0, x_zero_point: 0, w_scale: &[1.0], y_scale: 1.0, y_zero_point: 0_u8 };
    let nan = weights.scaled(&Scales { y_scale: f32::NAN, ..scales }).unwrap_err();
    check(nan, ErrorKind::InvalidInput, "Conv: y_scale is NaN, it must be positive and finite");
    let three = weights.scaled(&Scales { w_scale: &[1.0; 3], ..scales }).unwrap_err();
    check(three, ErrorKind::BufferLength, "Conv: w_scale has 3 elements, not 1 or 2");
    let tiny = weights.scaled(&Scales { w_scale: &[1.0, 0.0], ..scales }).unwrap_err();
    check(tiny, ErrorKind::InvalidInput, "Conv: w_scale is 0, it must be positive and finite");

    let infinite = weights.scaled(&Scales { x_scale: 1e30, w_scale: &[1e30], ..scales }).unwrap_err();
    let text = "Conv: the scale of output channel 0, x_scale * w_scale / y_scale, is inf";
    check(infinite, ErrorKind::InvalidInput, text);
    let relu = planner.clone().activation(Activation::Relu).plan_quantised::<u8, i8, u8>(conv.clone(), &[1, 3, 5]);
    check(relu.unwrap_err(), ErrorKind::Unavailable, "Conv: a plan of bytes has no activation");

    let scaled = weights.scaled(&scales).unwrap();
    let mut y = [9; 10];
    let x = plan.run(QuantisedRun::new(&[0; 14], &weights, &scaled, &mut y)).unwrap_err();
    check(x, ErrorKind::BufferLength, "Conv: X has 14 elements, its shape [1, 3, 5] asks for 15");
    let apart = plan.run(QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).y_pixel_stride(3)).unwrap_err();
    let text = "Conv: Y has a pixel stride of 3 and its channels first: only channels last can";
    check(apart, ErrorKind::InvalidShape, text);
    let short = QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).residual(&[0; 9], 1.0, 0);
    let text = "Conv: the residual has 9 elements, its shape [1, 2, 5] asks for 10";
    check(plan.run(short).unwrap_err(), ErrorKind::BufferLength, text);
    let negative = QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).residual(&[0; 10], -1.0, 0);
    let text = "Conv: the residual's scale is -1, it must be positive and finite";
    check(plan.run(negative).unwrap_err(), ErrorKind::InvalidInput, text);
    let small = weights.scaled(&Scales { y_scale: 1e-9, ..scales }).unwrap();
    let large = QuantisedRun::new(&[0; 15], &weights, &small, &mut y).residual(&[0; 10], 1e30, 0);
    let text = "Conv: the residual's scale over y_scale is inf";
    check(plan.run(large).unwrap_err(), ErrorKind::InvalidInput, text);
    let apart = QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).residual(&[0; 10], 1.0, 0);
    let text = "Conv: the residual has a pixel stride of 2 and its channels first: only channels last can";
    check(plan.run(apart.residual_pixel_stride(2)).unwrap_err(), ErrorKind::InvalidShape, text);
    let threads = QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).threads(Threads::AtMost(0, &Threads::Serial));
    let threads = plan.run(threads).unwrap_err();
    check(threads, ErrorKind::Threads, "Conv: the plan was made for 1 thread, the run has 0");
    let mut memory = [0; 64];
    let mut workspace = Workspace::borrowed(&mut memory);
    let run = QuantisedRun::new(&[0; 15], &weights, &scaled, &mut y).workspace(&mut workspace);
    assert_eq!(plan.run(run).unwrap_err().kind(), ErrorKind::Workspace);
    // Three and four channels are as many units.
    for (conv, x_shape) in [(Conv::new([2, 3, 3]), [1, 3, 7]), (Conv::new([2, 4, 1]), [1, 4, 5])] {
        let other = planner.plan_quantised::<u8, i8, u8>(conv, &x_shape).unwrap();
        let foreign = other.pack(&vec![1; other.geometry().weight_len()], &[], None).unwrap();
        let of_foreign = foreign.scaled(&scales).unwrap();
        let run = plan.run(QuantisedRun::new(&[0; 15], &foreign, &of_foreign, &mut y)).unwrap_err();
        let text = "Conv: the weights are not those of a plan of this layer: pack again";
        check(run, ErrorKind::PackedMismatch, text);
    }
    let others = plan.pack(&[2; 6], &[], None).unwrap().scaled(&scales).unwrap();
    let run = plan.run(QuantisedRun::new(&[0; 15], &weights, &others, &mut y)).unwrap_err();
    check(run, ErrorKind::PackedMismatch, "Conv: the scales were made for other weights");
    assert_eq!(y, [9; 10], "Y is untouched");

    let last = conv.clone().layouts(Layout::ChannelsLast, Layout::ChannelsLast);
    let last = planner.plan_quantised::<u8, i8, u8>(last, &[1, 3, 5]).unwrap();
    let run = |stride: usize, of_y: usize, y: &mut [u8]| {
        let run = QuantisedRun::new(&[0; 19], &weights, &scaled, y);
        last.run(run.x_pixel_stride(stride).y_pixel_stride(of_y)).map(|_| ()).unwrap_err()
    };
    let narrow = run(2, 2, &mut y);
    check(narrow, ErrorKind::InvalidShape, "Conv: X has a pixel stride of 2, a pixel has 3 elements");
    let text = "Conv: X has 19 elements, 1 images of 23 elements, 25 apart, ask for 23";
    check(run(5, 2, &mut y), ErrorKind::BufferLength, text);
    let text = "Conv: Y has 10 elements, 1 images of 14 elements, 15 apart, ask for 14";
    check(run(4, 3, &mut y), ErrorKind::BufferLength, text);
    let far = run(usize::MAX / 2, 2, &mut y);
    assert_eq!(far.kind(), ErrorKind::Overflow, "{far}");
    let mut memory = [MaybeUninit::uninit(); 14];
    let uninit = last.run(QuantisedRun::uninit(&[0; 15], &weights, &scaled, &mut memory).y_pixel_stride(3));
    check(uninit.unwrap_err(), ErrorKind::BufferLength, "Conv: Y has 14 elements, its shape [1, 2, 5] asks for 10");
    assert_eq!(y, [9; 10], "Y is untouched");

    // Kernels of as many taps have other shapes.
    let depthwise = |shape: [usize; 2]| Conv::new([4, 1, shape[0], shape[1]]).group(4);
    let plans =
        [[3, 1], [1, 3]].map(|shape| planner.plan_quantised::<u8, i8, u8>(depthwise(shape), &[1, 4, 5, 5]).unwrap());
    let tall = plans[0].pack(&[1; 12], &[], None).unwrap();
    let of_tall = tall.scaled(&scales).unwrap();
    let wide = plans[1].run(QuantisedRun::new(&[0; 100], &tall, &of_tall, &mut [0; 60])).unwrap_err();
    assert_eq!(wide.kind(), ErrorKind::PackedMismatch);

    // Weights of the same layer on another X are accepted.
    let longer = planner.plan_quantised::<u8, i8, u8>(conv, &[1, 3, 9]).unwrap();
    longer.run(QuantisedRun::new(&[1; 27], &weights, &scaled, &mut [0; 18])).unwrap();
}

/// Tables of rows of padding alone were repeated with a shift, beyond an X without rows.
#[test]
fn an_x_without_rows_is_padding_alone() {
    for (channels, width, pad) in [(4, 40, 1), (64, 60, 0)] {
        let conv = Conv::new([2, channels, 3, 3]).pads([3, pad, 3, pad]);
        let y = run(conv, &[1, channels, 0, width], (&[], &vec![1_i8; 2 * channels * 9], &[]), &Scales::integer(5_u8));
        assert!(y.iter().all(|y| *y == 0), "{channels} channels");
    }
}

/// Layers that random ones hardly are: several blocks of K, whose units straddle pixels; few taps of few channels; and groups
/// of few channels, with padding on each axis.
#[test]
fn layers_of_each_kind_of_unit_are_exact() {
    let conv = |weights: &[usize], x: &[usize], group: usize, pads: &[i64]| {
        Layer::new(Conv::new(weights.to_vec()).group(group as i64).pads(pads.to_vec()), x)
    };
    let mut layers = vec![
        conv(&[5, 2500, 1], &[2, 2500, 9], 1, &[0, 0]),
        conv(&[5, 2501, 1], &[1, 2501, 9], 1, &[0, 0]),
        conv(&[34, 300, 3, 3], &[1, 300, 3, 6], 1, &[1, 1, 1, 1]),
        conv(&[5, 3, 3, 3], &[2, 3, 9, 40], 1, &[1, 1, 1, 1]),
        conv(&[18, 1, 7], &[1, 1, 90], 1, &[5, 0]),
        conv(&[20, 3, 2, 5], &[1, 3, 4, 33], 1, &[0, 0, 2, 0]),
        conv(&[70, 1, 3, 3, 3], &[1, 70, 4, 5, 17], 70, &[1, 1, 1, 0, 1, 2]),
    ];
    for (of_x, of_y, group) in [(2, 2, 45), (2, 1, 20), (3, 3, 41), (3, 8, 7), (4, 4, 40), (4, 1, 33), (4, 2, 50)] {
        layers.push(conv(&[group * of_y, of_x, 3, 3], &[2, group * of_x, 6, 11], group, &[1, 1, 2, 0]));
        let transposed =
            ConvTranspose::new([group * of_x, of_y, 3, 4]).group(group as i64).strides([2, 1]).pads([1, 0, 1, 2]);
        layers.push(Layer::new(transposed, [1, group * of_x, 5, 7]));
    }
    layers.push(Layer::new(ConvTranspose::new([40, 1, 2, 3]).group(40).strides([2, 2]), [1, 40, 5, 7]));
    for (i, layer) in layers.into_iter().enumerate() {
        for layouts in [[Layout::ChannelsFirst; 2], [Layout::ChannelsLast; 2]] {
            let layer = layer.clone().with_layouts(layouts);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                check::<u8, i8, u8>(&layer, (isa, 2), Zeros::Absent, 31 + i as u64);
                check::<i8, i8, i8>(&layer, (isa, 1), Zeros::Absent, 61 + i as u64);
                check::<u8, i8, i32>(&layer, (isa, 1), Zeros::Each, 91 + i as u64);
            }
        }
    }
}

/// Blocks of all channels of a depthwise layer made copies of the rows of a wide X too large.
#[test]
fn depthwise_layers_of_wide_images_are_planned() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let conv = Conv::new([768, 1, 3, 3]).group(768).pads([1, 1, 1, 1]);
        let plan = Planner::new().isa(isa).plan_quantised::<u8, i8, u8>(conv, &[1, 768, 64, 4096]);
        assert!(plan.is_ok(), "{isa}: {plan:?}");
    }
}

/// Units of several pixels depend on how pixels lie.
#[test]
fn weights_of_few_channels_are_for_their_layout() {
    let plan = |layout| {
        let conv = Conv::new([4, 3, 3, 3]).layouts(layout, Layout::ChannelsLast);
        Planner::new().plan_quantised::<u8, i8, u8>(conv, &[1, 3, 9, 9]).unwrap()
    };
    let [first, last] = [Layout::ChannelsFirst, Layout::ChannelsLast].map(plan);
    let weights = first.pack(&[1; 4 * 27], &[], None).unwrap();
    assert!(first.accepts(&weights) && !last.accepts(&weights));
}

/// Depthwise weights of one size of X were taken for those of another, whose units had other taps.
#[test]
fn depthwise_weights_serve_other_sizes_of_x() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for (kernel, pads) in [([2, 1], [0; 4]), ([3, 1], [0; 4]), ([4, 1], [0; 4]), ([3, 3], [0, 1, 0, 1])] {
            let conv = Conv::new([8, 1, kernel[0], kernel[1]]).group(8).pads(pads);
            let planner = Planner::new().isa(isa);
            let heights = [kernel[0], 5];
            let plans = heights
                .map(|height| planner.plan_quantised::<i8, i8, i32>(conv.clone(), &[2, 8, height, kernel[1]]).unwrap());
            let w: Vec<i8> = (0..8 * kernel[0] * kernel[1]).map(|i| (i * 29 % 101) as i8).collect();
            let weights = plans.each_ref().map(|plan| plan.pack(&w, &[], None).unwrap());
            for (plan, height) in plans.iter().zip(heights) {
                let x: Vec<i8> = (0..16 * height * kernel[1]).map(|i| (i * 37 % 200) as i8).collect();
                let [own, other] = weights.each_ref().map(|weights| {
                    let mut y = vec![0; plan.geometry().output_len()];
                    let scaled = weights.scaled(&Scales::integer(3)).unwrap();
                    plan.run(QuantisedRun::new(&x, weights, &scaled, &mut y)).unwrap();
                    y
                });
                assert_eq!(own, other, "{isa}, {kernel:?}, {height} rows");
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x) - 3.0).collect();
                let w: Vec<f64> = w.iter().map(|w| f64::from(*w)).collect();
                let sums = reference::all(plan.geometry(), &x, &w, None);
                let sums: Vec<i32> = sums.into_iter().map(|sum| sum.value as i32).collect();
                assert_eq!(own, sums, "{isa}, {kernel:?}, {height} rows");
            }
        }
    }
}

/// Weights for other strides, whose sums are those of other taps, were accepted, and the run panicked.
#[test]
fn transposed_weights_are_for_their_strides() {
    let plan = |stride: i64| {
        let operator = ConvTranspose::new([2, 3, 3]).strides([stride]);
        Planner::new().plan_quantised::<u8, i8, i32>(operator, &[1, 2, 5]).unwrap()
    };
    let (narrow, wide) = (plan(1), plan(2));
    let weights = narrow.pack(&[1; 18], &[], None).unwrap();
    assert!(narrow.accepts(&weights) && !wide.accepts(&weights));
    let (scaled, mut y) = (weights.scaled(&Scales::integer(0)).unwrap(), vec![0; wide.geometry().output_len()]);
    let error = wide.run(QuantisedRun::new(&[1; 10], &weights, &scaled, &mut y)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PackedMismatch, "{error}");
    // Those of Conv serve all strides.
    let plan = |stride: i64| {
        let operator = Conv::new([3, 2, 3]).strides([stride]);
        Planner::new().plan_quantised::<u8, i8, i32>(operator, &[1, 2, 5]).unwrap()
    };
    assert!(plan(1).accepts(&plan(2).pack(&[1; 18], &[], None).unwrap()));
}

#[test]
#[cfg(feature = "save")]
fn saved_weights_that_are_damaged_or_foreign_are_refused() {
    let planner = Planner::new();
    let plan = |conv: Conv| planner.plan_quantised::<u8, i8, u8>(conv, &[1, 8, 5]).unwrap();
    let of_layer = plan(Conv::new([3, 8, 2]));
    let saved = of_layer.pack(&[1; 48], &[], Some(&[5, 6, 7])).unwrap().to_bytes().unwrap();
    assert!(saved.len().is_multiple_of(64));
    of_layer.load(&saved).unwrap();
    let refused = |bytes: &[u8], kind: ErrorKind, text: &str| {
        let error = of_layer.load(bytes).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
    };
    for len in (0..saved.len()).step_by(7) {
        refused(&saved[..len], ErrorKind::InvalidPacked, "packed weights: ");
    }
    for at in 0..saved.len() {
        let mut changed = saved.clone();
        changed[at] ^= 1;
        refused(&changed, ErrorKind::InvalidPacked, "packed weights: ");
    }

    // The checksum is right from here on. No letter of the description may be another one.
    let described = 24..24 + u32::from_ne_bytes(saved[20..24].try_into().unwrap()) as usize;
    for at in described.clone() {
        let mut forged = saved.clone();
        forged[at] ^= 1;
        refused(&with_checksum(forged), ErrorKind::PackedMismatch, "Conv: the weights are not those of a plan");
    }
    for len in [0_u32, described.len() as u32 - 1, saved.len() as u32, u32::MAX] {
        let mut forged = saved.clone();
        forged[20..24].copy_from_slice(&len.to_ne_bytes());
        assert!(of_layer.load(&with_checksum(forged)).is_err(), "{len}");
    }
    let longer = with_checksum([&saved[..], &[0; 64]].concat());
    refused(&longer, ErrorKind::InvalidPacked, "bytes are more than their layout has");
    let shorter = with_checksum(saved[..saved.len() - 64].to_vec());
    refused(&shorter, ErrorKind::InvalidPacked, "bytes are fewer than their layout has");

    // Weights of another layer, and of floats.
    let others = [Conv::new([3, 8, 1]), Conv::new([4, 8, 2]), Conv::new([4, 2, 2]).group(4)].map(plan);
    for other in &others {
        let foreign = other.pack(&vec![1; other.geometry().weight_len()], &[], None).unwrap().to_bytes().unwrap();
        refused(&foreign, ErrorKind::PackedMismatch, "Conv: the weights are not those of a plan");
    }
    let floats = planner.plan::<f32>(Conv::new([3, 8, 2]), &[1, 8, 5]).unwrap();
    let floats = floats.pack(&[1.0; 48], None).unwrap().to_bytes().unwrap();
    refused(&floats, ErrorKind::PackedMismatch, "Conv: the weights are not those of a plan");
    let error = convoke::PackedWeights::<f32>::from_bytes(&saved).unwrap_err();
    assert_eq!(error.to_string(), "packed weights: their layout cannot be read");
    // Values that are forged make results wrong, and nothing else.
    for fill in [0x7f, 0x80, 0xff] {
        let mut forged = saved.clone();
        forged[described.end.next_multiple_of(64)..].fill(fill);
        let weights = of_layer.load(&with_checksum(forged)).unwrap();
        let scales = Scales { x_scale: 1.0, x_zero_point: 3, w_scale: &[1.0], y_scale: 1.0, y_zero_point: 0_u8 };
        let scaled = weights.scaled(&scales).unwrap();
        of_layer.run(QuantisedRun::new(&[9; 40], &weights, &scaled, &mut [0; 12])).unwrap();
    }
}

#[test]
fn plans_by_shape_share_weights_and_are_forgotten() {
    let cache = QuantisedPlanCache::<u8, i8, i32>::new(Planner::new(), Conv::new([2, 3, 2]), NonZeroUsize::MIN);
    assert!(cache.is_empty());
    let first = cache.plan(&[1, 3, 4]).unwrap();
    assert!(Arc::ptr_eq(&first, &cache.plan(&[1, 3, 4]).unwrap()));
    let weights = first.pack(&[1; 12], &[], None).unwrap();
    let scaled = weights.scaled(&Scales::integer(0)).unwrap();
    let second = cache.plan(&[2, 3, 9]).unwrap();
    let mut y = [0; 32];
    second.run(QuantisedRun::new(&[2; 54], &weights, &scaled, &mut y)).unwrap();
    assert_eq!((y, cache.len()), ([12; 32], 1));
    assert!(!Arc::ptr_eq(&first, &cache.plan(&[1, 3, 4]).unwrap()));
    let error = cache.plan(&[1, 4, 4]).unwrap_err();
    assert_eq!((error.kind(), cache.len()), (ErrorKind::InvalidShape, 1), "{error}");
}
