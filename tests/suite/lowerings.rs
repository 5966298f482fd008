//! Every algorithm is forced on every ISA in every element type, and compared with the reference.

use std::cell::Cell;

use crate::common::{
    ACTIVATIONS, Combination, Context, Layer, Operands, Oracle, accepts, cases, is_short, layer, layers,
};
use convoke::{Activation, Algorithm, Conv, ConvTranspose, Layout, Op, Planner, reference};
use convoke_tools::data::Scalar;
use convoke_tools::named;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// The seed of proptest's generator. It is fixed, so that runs can be repeated.
const SEED: [u8; 32] = *b"convoke: one seed for all tests.";

/// The oracle computes all elements together. Alone they have the same bits, also where padding and
/// weights that are not finite meet.
#[test]
fn the_definition_of_all_elements_is_that_of_each() {
    // Which bits a NaN has is not defined.
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    fn check<T: Scalar>(same: impl Fn(f64, f64) -> bool) {
        for layer in layers::hard() {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 13).with_bias(&geometry);
            if let [first, .., last] = operands.w.as_mut_slice() {
                (*first, *last) = (T::from_f64(f64::INFINITY), T::from_f64(f64::NAN));
            }
            for bias in [operands.bias.as_deref(), None] {
                let all = reference::all(&geometry, &operands.x, &operands.w, bias);
                assert_eq!(all.len(), geometry.output_len());
                // One of a few: alone they take long.
                for (index, element) in all.into_iter().enumerate().step_by(11) {
                    let alone = reference::element(&geometry, &operands.x, &operands.w, bias, index);
                    assert!(same(element.value, alone.value), "{layer}, element {index}: {element:?}, {alone:?}");
                    assert!(same(element.magnitude, alone.magnitude), "{layer}, element {index}");
                }
            }
        }
    }
    check::<f32>(same);
    check::<convoke::bf16>(same);
}

/// Layers for an algorithm. It accepts nearly all of them.
fn layers_for(algorithm: Algorithm) -> BoxedStrategy<Layer> {
    let any_layout = |layers: BoxedStrategy<Layer>| {
        (layers, layers::layouts()).prop_map(|(layer, layouts)| layer.with_layouts(layouts)).boxed()
    };
    match algorithm.name() {
        "naive" => any_layout(prop_oneof![layers::conv(), layers::conv_transpose()].boxed()),
        "winograd" => {
            let of_x = |(layer, [x, _]): (Layer, [Layout; 2])| layer.with_layouts([x, Layout::ChannelsFirst]);
            let transposed = (layers::winograd_transposed(), layers::layouts()).prop_map(of_x);
            prop_oneof![any_layout(layers::winograd().boxed()), transposed].boxed()
        }
        "grouped" => layers::grouped().boxed(),
        "depthwise-transposed" => layers::depthwise_transposed().boxed(),
        "channel-gemm" => prop_oneof![1 => layers::one_position(), 3 => layers::conv_transpose()].boxed(),
        "pixel-depthwise" => any_layout(prop_oneof![layers::depthwise(), layers::depthwise_transposed()].boxed()),
        "pixel-gemm" => {
            let any = prop_oneof![
                2 => layers::conv(),
                1 => layers::pointwise(),
                1 => layers::covered(),
                1 => layers::one_position(),
                2 => layers::conv_transpose()
            ];
            any_layout(any.boxed())
        }
        "gemm" => prop_oneof![3 => layers::conv(), 1 => layers::pointwise()].boxed(),
        "transposed" => layers::conv_transpose().boxed(),
        name if name.starts_with("col2im") => any_layout(layers::conv_transpose().boxed()),
        _ => layers::conv().boxed(),
    }
}

/// A runner whose cases are the same in every run.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED))
}

/// Random layers, biases, residuals, splits and distances of pixels on one combination. At least nine tenths of them
/// must run, or half in short runs.
fn check_random<T: Scalar>(combination: Combination) {
    let (cases, executed) = (cases(), Cell::new(0));
    let inputs = (layers_for(combination.algorithm), layers::options(1..=4), 0..ACTIVATIONS.len());
    let result = runner(cases).run(&inputs, |(layer, options, activation)| {
        let activation = ACTIVATIONS[activation];
        let tune = |planner: Planner| planner.threads(options.threads).activation(activation);
        let Some(plan) = combination.plan::<T>(&layer, tune) else { return Ok(()) };
        let geometry = layer.geometry();
        let mut operands = Operands::<T>::uniform(&geometry, options.seed);
        if options.has_bias {
            operands = operands.with_bias(&geometry);
        }
        if options.has_residual {
            operands = operands.with_residual(&geometry);
        }
        let y = operands.run_apart(&plan, options.gaps);
        executed.set(executed.get() + 1);
        let oracle = Oracle::new(&geometry, &operands);
        oracle
            .check(combination.algorithm, activation, &y)
            .map_err(|difference| TestCaseError::fail(format!("{difference}\n{plan:?}")))
    });
    if let Err(error) = result {
        panic!("{combination}, {}: {error}", T::DTYPE);
    }
    let executed = executed.get();
    // In short runs, more than a tenth may be rejected by chance.
    let least = if is_short() { cases / 2 } else { cases * 9 / 10 };
    assert!(executed >= least, "{combination}, {}: only {executed} of {cases} cases ran", T::DTYPE);
}

/// Defines one test for each algorithm, so that a failure names it. A list checks that no
/// algorithm is missing.
macro_rules! random_layers {
    ($($name:ident: $algorithm:literal;)+) => {
        mod random_layers {
            $(
                #[test]
                fn $name() {
                    super::check_algorithm($algorithm);
                }
            )+
        }

        #[test]
        fn every_algorithm_has_its_test_of_random_layers() {
            assert!(Algorithm::all().map(Algorithm::name).eq([$($algorithm),+]));
        }
    };
}

random_layers! {
    winograd: "winograd";
    gemm: "gemm";
    im2col_native: "im2col:native";
    im2col_gemm: "im2col:gemm";
    im2col_matrixmultiply: "im2col:matrixmultiply";
    channel_gemm: "channel-gemm";
    transposed: "transposed";
    col2im_native: "col2im:native";
    col2im_gemm: "col2im:gemm";
    col2im_matrixmultiply: "col2im:matrixmultiply";
    naive: "naive";
    pixel_depthwise: "pixel-depthwise";
    pixel_gemm: "pixel-gemm";
    depthwise: "depthwise";
    grouped: "grouped";
    depthwise_transposed: "depthwise-transposed";
}

fn check_algorithm(name: &str) {
    for combination in Combination::all().filter(|c| c.algorithm.name() == name) {
        for_each_type!(check_random(combination));
    }
}

/// Runs one layer on every combination with each activation of `activations`, with bias and
/// residual. Returns the combinations that ran.
fn check_layer<T: Scalar>(layer: &Layer, activations: &[Activation], executed: &mut Vec<Combination>) {
    let geometry = layer.geometry();
    let plain = Operands::<T>::uniform(&geometry, 7);
    let fused = plain.clone().with_bias(&geometry).with_residual(&geometry);
    let cases = [(Oracle::new(&geometry, &plain), plain), (Oracle::new(&geometry, &fused), fused)];
    for combination in Combination::distinct() {
        for &activation in activations {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner.activation(activation)) else { continue };
            executed.push(combination);
            let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
            for (oracle, operands) in &cases {
                let y = operands.run_both_ways(&plan);
                if let Err(difference) = oracle.check(combination.algorithm, activation, &y) {
                    panic!("{combination}, {}: {layer}: {difference}\n{plan:?}", T::DTYPE);
                }
            }
        }
    }
}

fn check_layers<T: Scalar>(layers: &[Layer], activations: &[Activation]) {
    let mut executed = Vec::new();
    for layer in layers {
        check_layer::<T>(layer, activations, &mut executed);
    }
    for combination in Combination::distinct() {
        let runs = executed.iter().filter(|&&c| c == combination).count();
        let expected = layers.iter().filter(|layer| accepts(combination.algorithm, &layer.geometry())).count();
        assert!(expected >= 2, "{combination}: only {expected} layers of the table fit it");
        assert!(runs >= expected * activations.len(), "{combination}, {}: {runs} runs of {expected}", T::DTYPE);
    }
}

fn check_hard_layers<T: Scalar>() {
    check_layers::<T>(&layers::hard_in::<T>(), &[Activation::None]);
}

#[test]
fn hard_layers_agree_in_f32() {
    check_hard_layers::<f32>();
}

#[test]
fn hard_layers_agree_in_f64() {
    check_hard_layers::<f64>();
}

#[test]
fn hard_layers_agree_in_f16() {
    check_hard_layers::<convoke::f16>();
}

#[test]
fn hard_layers_agree_in_bf16() {
    check_hard_layers::<convoke::bf16>();
}

#[test]
fn activations_agree_with_and_without_bias_and_residual() {
    let layers = [
        layer(Conv::new([17, 6, 3, 3]).group(1).pads([1, 1, 1, 1]), [2, 6, 9, 7]),
        layer(Conv::new([6, 3, 3, 3]).group(2).strides([2, 2]), [1, 6, 11, 13]),
        layer(Conv::new([3, 100, 3, 3]), [1, 100, 6, 7]),
        layer(Conv::new([19, 7, 1, 1]), [1, 7, 9, 7]),
        layer(Conv::new([10, 300, 1, 1]), [1, 300, 5, 7]),
        layer(Conv::new([8, 6, 5]).dilations([2]).pads([4, 4]), [2, 6, 11]),
        layer(Conv::new([9, 5, 4, 3]), [3, 5, 4, 3]),
        layer(Conv::new([12, 7, 5]), [2, 7, 5]),
        layer(ConvTranspose::new([7, 5, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [2, 7, 6, 5]),
        layer(ConvTranspose::new([6, 2, 4]).group(3).strides([3]), [1, 6, 200]),
        layer(ConvTranspose::new([5, 1, 4, 4]).group(5).strides([2, 2]).pads([1, 1, 1, 1]), [2, 5, 6, 18]),
        layer(ConvTranspose::new([3, 1, 3]).group(3).strides([2]), [1, 3, 70]),
    ];
    for_each_type!(check_layers(&layers, &ACTIVATIONS));
}

#[test]
fn a_planner_that_is_free_to_choose_is_right() {
    fn check<T: Scalar>() {
        for layer in &layers::hard_in::<T>() {
            let plan = Planner::new().plan::<T>(layer.operator.clone(), &layer.x_shape);
            let plan = plan.unwrap_or_else(|error| panic!("{layer}: {error}"));
            let _context = Context(|| format!("{}: {layer}", T::DTYPE));
            let geometry = layer.geometry();
            let operands = Operands::uniform(&geometry, 3).with_bias(&geometry);
            let difference =
                Oracle::new(&geometry, &operands).check(plan.algorithm(), Activation::None, &operands.run(&plan));
            assert_eq!(difference, Ok(()), "{layer}\n{plan:?}");
            if geometry.macs() > 100_000 {
                assert_ne!(plan.algorithm(), named("naive"), "{layer}\n{plan:?}");
            }
        }
    }
    for_each_type!(check());
}

#[test]
fn rejections_are_for_the_documented_reasons() {
    let conv = layer(Conv::new([4, 3, 3, 3]), [1, 3, 8, 8]);
    let transposed = layer(ConvTranspose::new([3, 4, 3, 3]), [1, 3, 8, 8]);
    let empty = layer(Conv::new([4, 3, 1, 1]), [0, 3, 8, 8]);
    for combination in Combination::all() {
        let rejects = |layer: &Layer| combination.plan::<f32>(layer, |planner| planner).is_none();
        let op = match combination.algorithm.name() {
            "naive" => {
                assert!(![conv.clone(), transposed.clone(), empty.clone()].iter().any(rejects));
                continue;
            }
            "winograd" | "pixel-gemm" => {
                assert!(![&conv, &transposed].into_iter().any(rejects));
                assert!(rejects(&empty), "{combination} takes an empty output");
                continue;
            }
            "transposed" | "channel-gemm" => Op::ConvTranspose,
            name if name.starts_with("col2im") => Op::ConvTranspose,
            _ => Op::Conv,
        };
        let other = if op == Op::Conv { &transposed } else { &conv };
        assert!(rejects(other), "{combination} takes the other operator");
        assert!(rejects(&empty), "{combination} takes an empty output");
    }
}

#[test]
fn rejections_name_the_axis_that_is_in_the_way() {
    for (strides, axis) in [([600, 1], 0), ([1, 600], 1)] {
        let operator = ConvTranspose::new([3, 4, 2, 2]).strides(strides);
        let error = Planner::new().algorithm(named("transposed")).plan::<f32>(operator, &[1, 3, 2, 2]).unwrap_err();
        assert!(error.to_string().contains(&format!("axis {axis} ")), "{error}");
    }
}
