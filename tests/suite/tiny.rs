//! Every algorithm on layers of a few elements, with and without threads: small enough for miri,
//! which interprets the portable tier and sees undefined behaviour. It uses little but the crate,
//! because miri interprets the rest, too.

use crate::common::Scoped;
use convoke::{
    Activation, Algorithm, Conv, ConvTranspose, Element, Isa, Machine, Operator, Planner, Run, Threads, Workspace,
    bf16, f16, reference,
};
use convoke_tools::check::usual_transform_error;

/// Small values that are exact in every type.
fn numbers<T: Element + From<f16>>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from(f16::from_f64(((i * 7 + seed) % 13) as f64 / 8.0 - 0.75))).collect()
}

fn layers() -> [(Operator, Vec<usize>); 10] {
    [
        (Conv::new([3, 2, 3, 3]).pads([1; 4]).into(), vec![1, 2, 4, 5]),
        (Conv::new([5, 3, 1, 1]).into(), vec![2, 3, 3, 3]),
        (Conv::new([2, 1, 3, 3]).group(2).pads([1; 4]).into(), vec![1, 2, 4, 5]),
        (Conv::new([4, 2, 3, 3]).group(2).pads([1; 4]).into(), vec![1, 4, 3, 4]),
        (Conv::new([4, 2, 3, 3]).group(2).strides([2, 2]).pads([1; 4]).into(), vec![1, 4, 4, 4]),
        (Conv::new([3, 2, 3]).strides([2]).dilations([2]).pads([2, 1]).into(), vec![1, 2, 9]),
        (Conv::new([3, 2, 2, 2]).into(), vec![3, 2, 2, 2]),
        (ConvTranspose::new([2, 3, 4, 4]).strides([2, 2]).pads([1; 4]).into(), vec![1, 2, 3, 3]),
        (ConvTranspose::new([2, 1, 4, 4]).group(2).strides([2, 2]).pads([1; 4]).into(), vec![1, 2, 3, 17]),
        (ConvTranspose::new([2, 2, 3]).strides([3]).into(), vec![1, 2, 1]),
    ]
}

/// Runs every algorithm that accepts a layer in several ways, and compares them with the first.
fn check<T: Element + From<f16>>(activation: Activation) {
    let (mut seen, mut shared) = (Vec::new(), Vec::new());
    // So slow that no run is too short to be shared.
    let mut machine = Machine::zen5().with_isa(Isa::Portable);
    machine.clock_ghz = 0.001;
    for (operator, x_shape) in layers() {
        for algorithm in Algorithm::all() {
            let planner =
                Planner::new().machine(machine.clone()).algorithm(algorithm).activation(activation).threads(2);
            let Ok(plan) = planner.plan::<T>(operator.clone(), &x_shape) else { continue };
            seen.push(algorithm);
            let two = Scoped(2);
            if plan.threads_with(Threads::Executor(&two)).unwrap() == 2 {
                shared.push(algorithm);
            }
            let geometry = plan.geometry();
            let (x, w) = (numbers::<T>(geometry.input_len(), 1), numbers::<T>(geometry.weight_len(), 2));
            let (bias, residual) = (numbers::<T>(geometry.bias_len(), 3), numbers::<T>(geometry.output_len(), 4));
            let packed = plan.pack(&w, Some(&bias)).unwrap();
            let workspace = &mut Workspace::for_plan(&plan).unwrap();
            let mut y = vec![T::default(); geometry.output_len()];
            plan.run(
                Run::new(&x, &packed, &mut y)
                    .residual(Some(&residual))
                    .workspace(workspace)
                    .threads(Threads::Executor(&two)),
            )
            .unwrap();
            let mut in_place = residual.clone();
            plan.run(Run::in_place(&x, &packed, &mut in_place).workspace(workspace)).unwrap();
            assert!(y == in_place, "{plan:?}");
            if activation == Activation::None {
                let wide = reference::wide_magnitudes(geometry, &x, &w);
                let exact = reference::all(geometry, &x, &w, Some(&bias));
                for (i, (y, exact)) in y.iter().zip(exact).enumerate() {
                    let channel = i / geometry.output_spatial() % geometry.out_channels;
                    let (y, sum) = (value(*y), exact.value + value(residual[i]));
                    let bound = reference::tolerance::<T>(geometry, exact.magnitude + 1.0)
                        + usual_transform_error::<T>(algorithm, wide[channel])
                        + (sum.abs() + 1.0) * if size_of::<T>() == 2 { 1.0 / 128.0 } else { 0.0 };
                    assert!((y - sum).abs() <= bound, "element {i} is {y}, not {sum}: {plan:?}");
                }
            }
            #[cfg(feature = "save")]
            {
                let loaded = convoke::PackedWeights::<T>::from_bytes(&packed.to_bytes().unwrap()).unwrap();
                let plan = planner.packed_for(&loaded).plan::<T>(operator.clone(), &x_shape).unwrap();
                let mut again = vec![T::default(); y.len()];
                plan.run(Run::new(&x, &loaded, &mut again).residual(Some(&residual)).workspace(workspace)).unwrap();
                assert!(y == again, "{plan:?}");
            }
        }
    }
    for algorithm in Algorithm::all() {
        // Algorithms over other crates may not be in the build.
        let is_foreign = algorithm.name().ends_with(":gemm") || algorithm.name().ends_with(":matrixmultiply");
        assert!(is_foreign || seen.contains(&algorithm), "{algorithm} did not run");
        assert!(is_foreign || shared.contains(&algorithm), "{algorithm} did not run on two threads");
    }
}

/// A value in f64, by the reference: a 1x1 kernel of weight 1.
fn value<T: Element + From<f16>>(x: T) -> f64 {
    let geometry = Conv::new([1, 1, 1]).geometry(&[1, 1, 1]).unwrap();
    reference::element(&geometry, &[x], &[T::from(f16::ONE)], None, 0).value
}

#[test]
fn every_algorithm_is_right_on_tiny_layers_in_f32() {
    check::<f32>(Activation::None);
}

#[test]
#[cfg(not(miri))]
fn every_algorithm_is_right_on_tiny_layers_in_f16() {
    check::<f16>(Activation::None);
}

#[test]
#[cfg(not(miri))]
fn every_algorithm_is_right_on_tiny_layers_in_f64() {
    check::<f64>(Activation::None);
}

#[test]
#[cfg(not(miri))]
fn every_activation_runs_on_tiny_layers() {
    for activation in crate::common::ACTIVATIONS {
        check::<f32>(activation);
    }
}

/// bf16 needs opset 22, which is the default.
#[test]
#[cfg(not(miri))]
fn bf16_runs_on_tiny_layers() {
    let plan = Planner::new().isa(Isa::Portable).plan::<bf16>(Conv::new([1, 1, 2]), &[1, 1, 3]).unwrap();
    let (x, w) = ([1.0, 2.0, 3.0].map(bf16::from_f64), [1.0, 10.0].map(bf16::from_f64));
    let mut y = [bf16::ZERO; 2];
    let packed = plan.pack(&w, None).unwrap();
    plan.run(Run::new(&x, &packed, &mut y)).unwrap();
    assert_eq!(y.map(bf16::to_f64), [21.0, 32.0]);
}
