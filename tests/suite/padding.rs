//! Layers whose taps see padding at many or all outputs. Leaving such taps out must not change
//! the results.

use crate::common::{ACTIVATIONS, Combination, Context, Layer, Operands, Oracle, is_short, layer};
use convoke::{Activation, Algorithm, Conv, ErrorKind, Planner, Threads};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// Taps that never meet input, at either end or in the middle; taps that meet it at some outputs;
/// outputs that see only padding.
fn layers() -> Vec<Layer> {
    vec![
        // Dilations that reach beyond the image, or almost.
        layer(Conv::new([5, 7, 3, 3]).dilations([36, 36]).pads([36; 4]), [1, 7, 33, 33]),
        layer(Conv::new([5, 4, 3, 3]).dilations([24, 18]).pads([24, 18, 24, 18]), [1, 4, 33, 33]),
        layer(Conv::new([34, 60, 3, 3]).dilations([6, 5]).pads([6, 5, 6, 5]), [2, 60, 8, 7]),
        layer(Conv::new([6, 2, 3, 3]).group(2).dilations([9, 4]).pads([9, 4, 9, 4]), [1, 4, 10, 12]),
        layer(Conv::new([6, 1, 3, 3]).group(6).dilations([12, 12]).pads([12; 4]), [1, 6, 15, 11]),
        layer(Conv::new([4, 3, 3]).dilations([512]).pads([512, 512]), [1, 3, 700]),
        layer(Conv::new([3, 4, 3, 3, 3]).dilations([8, 6, 9]).pads([8, 6, 9, 8, 6, 9]), [1, 4, 9, 8, 9]),
        layer(Conv::new([4, 4, 3, 3]).dilations([5, 5]).pads([5, 0, 0, 5]), [1, 4, 7, 13]),
        // Kernels beyond small images, with strides and groups.
        layer(Conv::new([35, 5, 3, 3]).pads([1; 4]), [2, 5, 1, 1]),
        layer(Conv::new([9, 5, 3, 3]).pads([1; 4]), [1, 5, 1, 7]),
        layer(Conv::new([33, 130, 3, 3]).pads([1; 4]), [1, 130, 2, 2]),
        layer(Conv::new([9, 5, 3, 3]).pads([1; 4]), [1, 5, 3, 3]),
        layer(Conv::new([9, 5, 5, 5]).pads([2; 4]), [1, 5, 2, 2]),
        layer(Conv::new([9, 5, 7, 7]).pads([3; 4]), [1, 5, 4, 4]),
        layer(Conv::new([4, 3, 7, 7]).strides([2, 2]).pads([3; 4]), [1, 3, 2, 1]),
        layer(Conv::new([4, 3, 3, 3]).strides([2, 2]).pads([1; 4]), [2, 3, 1, 2]),
        layer(Conv::new([8, 2, 5, 5]).group(4).pads([2; 4]), [1, 8, 2, 1]),
        layer(Conv::new([8, 1, 5, 5]).group(8).pads([2; 4]), [1, 8, 1, 2]),
        // A stride carries taps in the middle past an image of one element.
        layer(Conv::new([3, 2, 6]).strides([4]).pads([5, 5]), [1, 2, 1]),
        // Padding that is shorter than the dilation. Without the tap, the padding would be
        // negative.
        layer(Conv::new([3, 2, 2]).dilations([36]).pads([1, 0]), [1, 2, 36]),
        layer(Conv::new([3, 2, 2]).dilations([10]).pads([5, 4]), [1, 2, 2]),
        // Padding beyond the kernel's reach, on one side and on both sides.
        layer(Conv::new([5, 3, 3, 3]).pads([10, 9, 8, 7]), [1, 3, 4, 3]),
        layer(Conv::new([5, 3, 2, 2]).dilations([3, 3]).pads([0, 9, 9, 0]), [1, 3, 4, 3]),
    ]
}

/// The plans of a layer: one of every combination, and one whose algorithm the planner chooses.
fn plans<T: Scalar>(layer: &Layer, activation: Activation, threads: usize) -> Vec<convoke::Plan<T>> {
    let tune = |planner: Planner| planner.activation(activation).threads(threads);
    let free = tune(Planner::new()).plan::<T>(layer.operator.clone(), &layer.x_shape).expect("a plan");
    Combination::all().filter_map(|combination| combination.plan::<T>(layer, tune)).chain([free]).collect()
}

#[test]
fn taps_on_padding_do_not_count() {
    fn check<T: Scalar>() {
        for layer in layers() {
            let geometry = layer.geometry();
            let plain = Operands::<T>::uniform(&geometry, 7);
            let fused = plain.clone().with_bias(&geometry).with_residual(&geometry);
            for (operands, activation, threads) in [(plain, Activation::None, 1), (fused, ACTIVATIONS[4], 3)] {
                let oracle = Oracle::new(&geometry, &operands);
                for plan in plans::<T>(&layer, activation, threads) {
                    let _context = Context(|| format!("{}: {layer}\n{plan:?}", T::DTYPE));
                    assert_eq!(oracle.check(plan.algorithm(), activation, &operands.run(&plan)), Ok(()));
                }
            }
        }
    }
    for_each_type!(check());
}

#[test]
fn a_weight_that_is_not_finite_is_seen_on_padding() {
    fn check<T: Scalar>() {
        let mut nan = 0;
        for layer in layers() {
            let geometry = layer.geometry();
            let plans = plans::<T>(&layer, Activation::Relu, 1);
            let taps = geometry.kernel_volume();
            // One place for each tap. The filters differ from place to place, so that as many
            // filters as possible have such a weight.
            let places = (0..taps).map(|tap| (tap * 31 * taps + tap) % geometry.weight_len());
            for (i, at) in places.enumerate().step_by(if is_short() { 5 } else { 1 }) {
                let mut operands = Operands::<T>::uniform(&geometry, 3).with_bias(&geometry);
                operands.w[at] = T::from_f64([f64::INFINITY, f64::NEG_INFINITY, f64::NAN][i % 3]);
                let oracle = Oracle::new(&geometry, &operands);
                nan += oracle.elements().iter().filter(|e| e.value.is_nan()).count();
                for plan in &plans {
                    let _context = Context(|| format!("{}: {layer}, weight {at}\n{plan:?}", T::DTYPE));
                    assert_eq!(oracle.check(plan.algorithm(), Activation::Relu, &operands.run(plan)), Ok(()));
                }
            }
        }
        assert!(nan > 1000, "only {nan} results are not numbers");
    }
    check::<f32>();
    check::<convoke::bf16>();
}

#[test]
fn weights_packed_without_some_taps_serve_other_sizes() {
    let conv = Conv::new([20, 6, 3, 3]).dilations([4, 4]).pads([4; 4]);
    let inputs = [[1, 6, 3, 4], [2, 6, 1, 1], [1, 6, 4, 30], [1, 6, 9, 9], [1, 6, 40, 40]].map(|x_shape| {
        let geometry = conv.geometry(&x_shape).unwrap();
        (x_shape, geometry)
    });
    let weights = Operands::<f32>::uniform(&inputs[0].1, 5).with_bias(&inputs[0].1);
    for algorithm in Algorithm::all().map(Some).chain([None]) {
        for (packed_on, _) in &inputs {
            let planner = algorithm.map_or(Planner::new(), |algorithm| Planner::new().algorithm(algorithm));
            let Ok(plan) = planner.plan::<f32>(conv.clone(), packed_on) else { continue };
            let packed = weights.pack(&plan);
            assert_eq!(packed.layout(), plan.explain().layout());
            let picked = plan.algorithm();
            for (x_shape, geometry) in &inputs {
                let _context = Context(|| format!("{algorithm:?}: packed on {packed_on:?}, run on {x_shape:?}"));
                let operands = Operands { x: Operands::uniform(geometry, 6).x, ..weights.clone() };
                let plan = Planner::new().packed_for(&packed).plan::<f32>(conv.clone(), x_shape).unwrap();
                let y = operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
                let oracle = Oracle::new(geometry, &operands);
                assert_eq!(oracle.check(plan.algorithm(), Activation::None, &y), Ok(()), "{plan:?}");
                if x_shape == packed_on && algorithm.is_none() {
                    assert_eq!(plan.algorithm(), picked);
                }
            }
        }
    }
}

#[test]
fn weights_without_the_taps_that_a_plan_leaves_out_are_rejected() {
    let conv = Conv::new([4, 4, 3, 3]).pads([1; 4]);
    // The algorithm has the same panels and blocks for both sizes, on every ISA.
    let planner = || Planner::new().algorithm(named("pixel-gemm"));
    let plan = |x_shape: &[usize]| planner().plan::<f32>(conv.clone(), x_shape).unwrap();
    let (small, large) = (plan(&[1, 4, 3, 1]), plan(&[1, 4, 8, 8]));
    let weights = |plan: &convoke::Plan<f32>| Operands::uniform(plan.geometry(), 1);
    let packed = weights(&large).pack(&large);
    let error = weights(&small).run_packed(&small, &packed, Threads::Serial).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PackedMismatch);
    // A plan that is made for these weights takes all taps.
    let planner = Planner::new().packed_for(&packed);
    let whole = planner.plan::<f32>(conv.clone(), &[1, 4, 3, 1]).unwrap();
    assert_eq!(whole.explain().taps(), None);
    weights(&small).run_packed(&whole, &packed, Threads::Serial).unwrap();
    // What it packs itself lacks the other plan's taps, too.
    let error = weights(&small).run_packed(&small, &weights(&small).pack(&whole), Threads::Serial).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PackedMismatch);
}

#[test]
fn a_layer_of_which_one_tap_meets_input_is_planned_as_1x1() {
    let conv = Conv::new([256, 256, 3, 3]).dilations([36, 36]).pads([36; 4]);
    let plan = Planner::new().plan::<f32>(conv, &[1, 256, 33, 33]).unwrap();
    let explanation = format!("{:#}", plan.explain());
    assert!(explanation.contains("only the taps [1..2, 1..2] meet input: 71368704 multiply-adds"), "{explanation}");
    assert!(explanation.contains(plan.explain().taps().unwrap()), "{explanation}");
    let weights = Operands::<f32>::uniform(plan.geometry(), 1).pack(&plan);
    assert!(plan.packed_bytes() <= weights.bytes() && weights.bytes() < plan.packed_bytes() + 256, "{plan:?}");
}
