//! Convolutions of bytes: random layers on every ISA and in all types, against the definition, and refusals.

use convoke::{
    Byte, Geometry, Isa, Op, Planner, Quantised, QuantisedPlan, QuantisedRun, Scales, Threads, Workspace, reference,
};
use proptest::prelude::*;

use crate::common::cases;
use crate::common::layers::{self, Layer};
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

/// What an output must be.
trait Expected: Quantised + PartialEq + Default {
    const ZERO_POINT: Self;
    fn expected(sum: i32, scale: f32) -> Self;
}

macro_rules! expected {
    ($t:ident, $zero:literal: |$sum:ident, $scale:ident| $expected:expr) => {
        impl Expected for $t {
            const ZERO_POINT: Self = $zero;

            fn expected($sum: i32, $scale: f32) -> Self {
                $expected
            }
        }
    };
}
// `as` saturates.
expected!(u8, 77: |sum, scale| ((sum as f32 * scale).round_ties_even() + 77.0) as u8);
expected!(i8, -5: |sum, scale| ((sum as f32 * scale).round_ties_even() - 5.0) as i8);
expected!(i32, 0: |sum, _scale| sum);
expected!(f32, 0.0: |sum, scale| sum as f32 * scale);

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

/// The output channel of an element of W.
fn channel_of(geometry: &Geometry, index: usize) -> usize {
    let (rows, c, taps) =
        (geometry.out_channels_per_group(), geometry.in_channels_per_group(), geometry.kernel_volume());
    match geometry.op {
        Op::Conv => index / (c * taps),
        Op::ConvTranspose => index / (taps * rows) / c * rows + index / taps % rows,
    }
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
        (seed % 3 > 0).then(|| (0..channels).map(|_| draw.below(200_000) as i32 - 100_000).collect());
    let w_scale: Vec<f32> =
        (0..if seed % 2 == 0 { 1 } else { channels }).map(|_| 0.001 + draw.below(100) as f32 * 1e-4).collect();
    let scales =
        Scales { x_scale: 0.02, x_zero_point: x_zero, w_scale: &w_scale, y_scale: 0.37, y_zero_point: Y::ZERO_POINT };

    let weights = plan.pack(&w, &w_zeros, bias.as_deref()).unwrap();
    let scaled = weights.scaled(&scales).unwrap();
    let mut workspace = Workspace::with_bytes(plan.workspace_bytes()).unwrap();
    let mut y = vec![Y::default(); geometry.output_len()];
    let run = QuantisedRun::new(&x, &weights, &scaled, &mut y).workspace(&mut workspace);
    #[cfg(feature = "rayon")]
    let run = run.threads(Threads::Current.at_most(threads));
    plan.run(run).unwrap();

    // The definition, in f64: all sums are integers that it holds.
    let zero_of = |m: usize| w_zeros.get(if w_zeros.len() == 1 { 0 } else { m }).map_or(0, |zero| zero.number());
    let x: Vec<f64> = x.iter().map(|x| f64::from(x.number() - x_zero.number())).collect();
    let w: Vec<f64> =
        w.iter().enumerate().map(|(i, w)| f64::from(w.number() - zero_of(channel_of(&geometry, i)))).collect();
    let bias: Option<Vec<f64>> = bias.map(|bias| bias.into_iter().map(f64::from).collect());
    for (index, (y, sum)) in y.iter().zip(reference::all(&geometry, &x, &w, bias.as_deref())).enumerate() {
        let m = geometry.output_place(index).1;
        let scale = 0.02 * w_scale[if w_scale.len() == 1 { 0 } else { m }] / 0.37;
        let expected = Y::expected(sum.value as i32, scale);
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
