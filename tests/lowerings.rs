//! Every algorithm on every ISA in every element type, by force, against the reference.

mod common;

use std::cell::Cell;

use common::{ACTIVATIONS, Combination, Context, Layer, Operands, Oracle, accepts, layer, layers};
use convoke::{Activation, Algorithm, AutoPad, Conv, ConvTranspose, Op, Planner};
use convoke_tools::data::Scalar;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Random layers for each algorithm, ISA and element type.
const CASES: u32 = 96;

/// The bytes that a proptest generator starts from: a run can be had again.
const SEED: [u8; 32] = *b"convoke: one seed for all tests.";

/// Layers for an algorithm, nearly all of which it accepts.
fn layers_for(algorithm: Algorithm) -> BoxedStrategy<Layer> {
    match algorithm {
        Algorithm::Naive => prop_oneof![layers::conv(), layers::conv_transpose()].boxed(),
        Algorithm::Pointwise => layers::pointwise().boxed(),
        Algorithm::Col2im(_) => layers::conv_transpose().boxed(),
        _ => layers::conv().boxed(),
    }
}

/// A runner whose cases are the same in every run.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED))
}

/// Random layers, biases, residuals and splits on one combination: at least nine tenths of them must run.
fn check_random<T: Scalar>(combination: Combination) {
    let executed = Cell::new(0);
    let inputs = (layers_for(combination.algorithm), layers::options(1..=4), 0..ACTIVATIONS.len());
    let result = runner(CASES).run(&inputs, |(layer, options, activation)| {
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
        let y = operands.run(&plan);
        executed.set(executed.get() + 1);
        let oracle = Oracle::new(&geometry, &operands);
        oracle.check(activation, &y).map_err(|difference| TestCaseError::fail(format!("{difference}\n{plan:?}")))
    });
    if let Err(error) = result {
        panic!("{combination}, {}: {error}", T::DTYPE);
    }
    let executed = executed.get();
    assert!(executed >= CASES * 9 / 10, "{combination}, {}: only {executed} of {CASES} cases ran", T::DTYPE);
}

/// One test an algorithm, so that a failure names it, and all algorithms are seen to be there.
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
            assert_eq!(Algorithm::ALL.map(Algorithm::name).as_slice(), [$($algorithm),+]);
        }
    };
}

random_layers! {
    pointwise: "pointwise";
    implicit_gemm: "implicit-gemm";
    channel_gemm: "channel-gemm";
    im2col_native: "im2col:native";
    im2col_gemm: "im2col:gemm";
    im2col_matrixmultiply: "im2col:matrixmultiply";
    col2im_native: "col2im:native";
    col2im_gemm: "col2im:gemm";
    col2im_matrixmultiply: "col2im:matrixmultiply";
    naive: "naive";
}

fn check_algorithm(name: &str) {
    for combination in Combination::all().filter(|c| c.algorithm.name() == name) {
        for_each_type!(check_random(combination));
    }
}

/// A square Conv: M, C, size, kernel.
fn square(m: usize, c: usize, size: usize, kernel: usize) -> (Conv, [usize; 4]) {
    (Conv::new([m, c, kernel, kernel]), [1, c, size, size])
}

/// Shapes at which blocking, tails, borders and offsets go wrong first.
fn hard_layers() -> Vec<Layer> {
    let mut layers = Vec::new();
    let mut add = |(operator, x_shape): (Conv, [usize; 4])| layers.push(layer(operator, x_shape));
    // Output sizes around whole vectors, with 'same' padding.
    for size in [1, 2, 7, 13, 14, 17, 30, 57] {
        let (conv, x) = square(5, 3, size, 3);
        add((conv.pads([1, 1, 1, 1]), x));
    }
    // Rows of A around whole tiles and panels.
    for m in [1, 2, 3, 5, 13, 15, 17, 31, 33, 65, 100] {
        add(square(m, 4, 9, 2));
        add(square(m, 5, 6, 1));
    }
    // K in several blocks, the last of another size, and just at the blocks' size.
    add((Conv::new([3, 700, 3, 3]).pads([1, 1, 1, 1]), [1, 700, 5, 4]));
    add(square(17, 257, 7, 1));
    add(square(2, 512, 6, 1));
    add(square(33, 700, 3, 1));
    add(square(15, 57, 5, 3));
    // One kernel of more taps than a block of K has steps.
    add((Conv::new([3, 2, 25, 27]).pads([12, 13, 12, 13]), [1, 2, 9, 9]));
    // The kernel is wider than the input, all of which is padding's business; and only just fits.
    add((Conv::new([3, 2, 5, 5]).pads([2, 2, 2, 2]), [1, 2, 1, 1]));
    add((Conv::new([3, 2, 7, 7]).pads([3, 3, 3, 3]), [2, 2, 1, 1]));
    add((Conv::new([4, 3, 3, 5]).pads([0, 2, 0, 2]), [1, 3, 3, 1]));
    add((Conv::new([4, 3, 5, 9]).pads([0, 1, 0, 0]), [1, 3, 5, 8]));
    add((Conv::new([4, 3, 2, 11]).pads([0, 1, 0, 1]), [1, 3, 4, 10]));
    // Padding wider than kernel and input: whole rows of outputs see nothing else.
    add((Conv::new([2, 3, 2, 3]).pads([6, 7, 5, 4]), [1, 3, 2, 2]));
    // A single row, a single column.
    add((Conv::new([6, 5, 1, 3]).pads([0, 1, 0, 1]), [1, 5, 1, 100]));
    add((Conv::new([6, 5, 3, 1]).pads([1, 0, 1, 0]), [1, 5, 100, 1]));
    add((Conv::new([6, 5, 3, 3]).pads([1, 1, 1, 1]), [1, 5, 41, 1]));
    // Strides beyond 2, beyond the kernel, with asymmetric padding and dilation.
    add((Conv::new([5, 3, 3, 3]).strides([3, 3]).pads([1, 0, 2, 1]), [1, 3, 20, 23]));
    add((Conv::new([5, 3, 3, 3]).strides([4, 4]).pads([0, 3, 0, 1]), [3, 3, 19, 18]));
    add((Conv::new([5, 3, 1, 1]).strides([2, 3]), [3, 3, 11, 13]));
    add((Conv::new([5, 3, 2, 2]).strides([5, 7]), [1, 3, 29, 31]));
    add((Conv::new([6, 4, 3, 3]).strides([2, 2]).dilations([3, 3]).pads([3, 3, 3, 3]), [1, 4, 17, 19]));
    add((Conv::new([6, 4, 3, 3]).strides([3, 2]).dilations([2, 3]).pads([2, 1, 0, 3]), [1, 4, 17, 19]));
    add((Conv::new([6, 4, 3, 3]).strides([4, 4]).dilations([2, 6]).pads([2, 6, 2, 6]), [1, 4, 17, 19]));
    add((Conv::new([7, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]), [1, 3, 37, 33]));
    add((Conv::new([3, 3, 11, 11]).strides([4, 4]).pads([2, 2, 2, 2]), [1, 3, 35, 35]));
    // Groups: few, grouped with odd sizes, depthwise with and without a multiplier; batches.
    add((Conv::new([9, 5, 3, 3]).group(3).pads([1, 1, 1, 1]), [3, 15, 8, 7]));
    add((Conv::new([51, 7, 1, 1]).group(3), [3, 21, 5, 5]));
    add((Conv::new([19, 1, 3, 3]).group(19).pads([1, 1, 1, 1]), [2, 19, 11, 11]));
    add((Conv::new([21, 1, 3, 3]).group(7).strides([2, 2]), [2, 7, 11, 12]));
    add((Conv::new([13, 1, 1, 1]).group(13), [2, 13, 4, 4]));
    // Sizes that the program chooses.
    add((Conv::new([4, 3, 4, 4]).auto_pad(AutoPad::SameUpper).strides([2, 3]), [1, 3, 10, 11]));
    add((Conv::new([4, 3, 4, 2]).auto_pad(AutoPad::SameLower).strides([1, 3]), [1, 3, 10, 11]));
    // No channels: zeros and bias.
    add((Conv::new([5, 0, 3, 3]).pads([1, 1, 1, 1]), [2, 0, 6, 7]));
    add((Conv::new([5, 0, 1, 1]), [2, 0, 6, 7]));
    // No input position: zeros and bias.
    add((Conv::new([5, 3, 3, 3]).pads([2, 2, 2, 2]), [1, 3, 0, 4]));
    // Nothing at all.
    add((Conv::new([4, 3, 3, 3]), [0, 3, 8, 8]));
    add((Conv::new([0, 3, 3, 3]), [1, 3, 8, 8]));
    // One axis and more than two.
    layers.push(layer(Conv::new([3, 2, 9]).pads([4, 4]), [1, 2, 5000]));
    layers.push(layer(Conv::new([5, 1, 31]).strides([3]).dilations([2]), [2, 1, 1009]));
    layers.push(layer(Conv::new([16, 37, 1]), [1, 37, 301]));
    layers.push(layer(Conv::new([5, 3, 3, 3, 3]).pads([1; 6]), [2, 3, 6, 7, 5]));
    layers.push(layer(Conv::new([5, 3, 2, 3, 1]).strides([2, 1, 3]).dilations([1, 2, 1]).pads([0, 2, 1, 1, 2, 0]), [1, 3, 6, 7, 8]));
    layers.push(layer(Conv::new([4, 2, 2, 1, 3, 2]).pads([1, 0, 1, 1, 0, 0, 1, 0]), [1, 2, 3, 2, 5, 4]));
    layers.push(layer(Conv::new([3, 2, 1, 1, 1, 1]), [2, 2, 3, 2, 3, 4]));
    layers.push(layer(Conv::new([2, 2, 2, 2, 1, 2, 2]).strides([1, 2, 1, 1, 2]).pads([1; 10]), [1, 2, 2, 3, 2, 2, 3]));
    // Upsampling: strides with smaller, equal, larger kernels.
    for (kernel, stride) in [(2, 2), (4, 2), (3, 2), (1, 2), (3, 3), (5, 3), (2, 4), (16, 8), (3, 1)] {
        let conv = ConvTranspose::new([7, 5, kernel, kernel]).strides([stride; 2]);
        layers.push(layer(conv.clone(), [1, 7, 9, 6]));
        layers.push(layer(conv, [2, 7, 1, 1]));
    }
    let transposed = |w_shape: [usize; 4]| ConvTranspose::new(w_shape);
    let mut add = |operator: ConvTranspose, x_shape: [usize; 4]| layers.push(layer(operator, x_shape));
    for m in [1, 3, 13, 15, 17, 33, 65, 100] {
        add(transposed([3, m, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]).output_padding([1, 1]), [1, 3, 6, 5]);
    }
    for size in [7, 13, 14, 17, 30, 57] {
        add(transposed([3, 4, 3, 3]).pads([1, 1, 1, 1]), [1, 3, size, size]);
    }
    add(transposed([700, 3, 3, 3]).strides([2, 2]), [1, 700, 4, 5]);
    add(transposed([6, 5, 3, 3]).group(3).strides([2, 2]), [3, 6, 7, 5]);
    add(transposed([19, 1, 4, 4]).group(19).strides([2, 2]).pads([1, 1, 1, 1]), [2, 19, 7, 5]);
    add(transposed([19, 3, 4, 4]).group(19).strides([2, 2]).pads([1, 1, 1, 1]), [1, 19, 7, 5]);
    add(transposed([4, 6, 3, 3]).strides([2, 2]).dilations([3, 3]).pads([2, 1, 3, 0]), [1, 4, 9, 8]);
    add(transposed([4, 6, 3, 2]).strides([3, 1]).dilations([2, 5]).output_padding([2, 4]), [1, 4, 5, 6]);
    add(transposed([4, 6, 5, 5]).pads([4, 4, 4, 4]), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([2, 2]).auto_pad(AutoPad::SameUpper), [1, 4, 6, 5]);
    add(transposed([4, 6, 1, 1]).strides([3, 2]).auto_pad(AutoPad::SameLower), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([3, 2]).output_shape([18, 10]), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([3, 2]).output_shape([2, 3]), [1, 4, 6, 5]);
    add(transposed([4, 6, 1, 1]), [1, 4, 1, 100]);
    add(transposed([4, 6, 3, 1]).strides([1, 2]), [1, 4, 100, 1]);
    add(transposed([0, 6, 3, 3]), [1, 0, 4, 4]);
    add(transposed([3, 6, 3, 3]), [1, 3, 0, 4]);
    add(transposed([3, 6, 3, 3]), [0, 3, 4, 4]);
    layers.push(layer(ConvTranspose::new([3, 2, 9]).strides([4]), [1, 3, 1500]));
    layers.push(layer(ConvTranspose::new([3, 2, 16]).strides([8]).pads([4, 4]), [1, 3, 301]));
    layers.push(layer(ConvTranspose::new([3, 4, 3, 2, 3]).strides([2, 2, 2]).pads([1, 0, 1, 1, 0, 0]), [2, 3, 3, 4, 5]));
    layers.push(layer(ConvTranspose::new([2, 3, 2, 1, 2, 2]).strides([2, 1, 1, 2]), [1, 2, 2, 3, 2, 3]));
    layers.push(layer(ConvTranspose::new([2, 3, 2, 1, 2, 1, 2]).strides([2, 1, 1, 1, 3]), [1, 2, 2, 2, 2, 1, 3]));
    layers
}

/// Runs one layer on every combination with each activation of `activations`, with bias and residual. Returns what ran.
fn check_layer<T: Scalar>(layer: &Layer, activations: &[Activation], executed: &mut Vec<Combination>) {
    let geometry = layer.geometry();
    let plain = Operands::<T>::uniform(&geometry, 7);
    let fused = plain.clone().with_bias(&geometry).with_residual(&geometry);
    let cases = [(Oracle::new(&geometry, &plain), plain), (Oracle::new(&geometry, &fused), fused)];
    for combination in Combination::all() {
        for &activation in activations {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner.activation(activation)) else { continue };
            executed.push(combination);
            let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
            for (oracle, operands) in &cases {
                if let Err(difference) = oracle.check(activation, &operands.run(&plan)) {
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
    for combination in Combination::all() {
        let runs = executed.iter().filter(|&&c| c == combination).count();
        let expected = layers.iter().filter(|layer| accepts(combination.algorithm, &layer.geometry())).count();
        assert!(expected >= 2, "{combination}: only {expected} layers of the table fit it");
        assert!(runs >= expected * activations.len(), "{combination}, {}: {runs} runs of {expected}", T::DTYPE);
    }
}

#[test]
fn hard_layers_agree_in_f32() {
    check_layers::<f32>(&hard_layers(), &[Activation::None]);
}

#[test]
fn hard_layers_agree_in_f64() {
    check_layers::<f64>(&hard_layers(), &[Activation::None]);
}

#[test]
fn hard_layers_agree_in_f16() {
    check_layers::<convoke::f16>(&hard_layers(), &[Activation::None]);
}

#[test]
fn hard_layers_agree_in_bf16() {
    check_layers::<convoke::bf16>(&hard_layers(), &[Activation::None]);
}

#[test]
fn activations_agree_with_and_without_bias_and_residual() {
    let layers = [
        layer(Conv::new([17, 6, 3, 3]).group(1).pads([1, 1, 1, 1]), [2, 6, 9, 7]),
        layer(Conv::new([6, 3, 3, 3]).group(2).strides([2, 2]), [1, 6, 11, 13]),
        layer(Conv::new([3, 100, 3, 3]), [1, 100, 6, 7]),
        layer(Conv::new([19, 7, 1, 1]), [1, 7, 9, 7]),
        layer(Conv::new([10, 300, 1, 1]), [1, 300, 5, 7]),
        layer(ConvTranspose::new([7, 5, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [2, 7, 6, 5]),
        layer(ConvTranspose::new([6, 2, 4]).group(3).strides([3]), [1, 6, 200]),
    ];
    for_each_type!(check_layers(&layers, &ACTIVATIONS));
}

#[test]
fn a_planner_that_is_free_to_choose_is_right() {
    fn check<T: Scalar>(layers: &[Layer]) {
        for layer in layers {
            let plan = Planner::new().plan::<T>(layer.operator.clone(), &layer.x_shape);
            let plan = plan.unwrap_or_else(|error| panic!("{layer}: {error}"));
            let _context = Context(|| format!("{}: {layer}", T::DTYPE));
            let geometry = layer.geometry();
            let operands = Operands::uniform(&geometry, 3).with_bias(&geometry);
            let difference = Oracle::new(&geometry, &operands).check(Activation::None, &operands.run(&plan));
            assert_eq!(difference, Ok(()), "{layer}\n{plan:?}");
            if geometry.macs() > 100_000 {
                assert_ne!(plan.algorithm(), Algorithm::Naive, "{layer}\n{plan:?}");
            }
        }
    }
    for_each_type!(check(&hard_layers()));
}

#[test]
fn rejections_are_for_the_documented_reasons() {
    let conv = layer(Conv::new([4, 3, 3, 3]), [1, 3, 8, 8]);
    let transposed = layer(ConvTranspose::new([3, 4, 3, 3]), [1, 3, 8, 8]);
    let empty = layer(Conv::new([4, 3, 1, 1]), [0, 3, 8, 8]);
    for combination in Combination::all() {
        let rejects = |layer: &Layer| combination.plan::<f32>(layer, |planner| planner).is_none();
        let op = match combination.algorithm {
            Algorithm::Naive => {
                assert!(![conv.clone(), transposed.clone(), empty.clone()].iter().any(rejects));
                continue;
            }
            Algorithm::Col2im(_) => Op::ConvTranspose,
            _ => Op::Conv,
        };
        let other = if op == Op::Conv { &transposed } else { &conv };
        assert!(rejects(other), "{combination} takes the other operator");
        assert!(rejects(&empty), "{combination} takes an empty output");
    }
}
