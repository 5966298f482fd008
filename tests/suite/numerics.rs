//! Special values: NaN, infinities, zeros, subnormal numbers, and rounding. Results are the same
//! on every algorithm and ISA.

use crate::common::{ACTIVATIONS, Combination, Context, Layer, Operands, Oracle, is_short, layer};
use convoke::{Activation, Algorithm, Conv, ConvTranspose, DType, Op, bf16, f16};
use convoke_tools::data::{Random, Scalar};

/// Layers with borders, several vectors and panels, groups, and more than one block of K.
fn layers() -> Vec<Layer> {
    vec![
        layer(Conv::new([17, 3, 3, 3]).pads([1, 1, 1, 1]), [2, 3, 9, 19]),
        layer(Conv::new([6, 2, 3, 5]).group(2).strides([2, 3]).dilations([1, 2]).pads([2, 0, 1, 4]), [1, 4, 11, 23]),
        layer(Conv::new([9, 1, 3, 3]).group(9).pads([1, 1, 1, 1]), [1, 9, 7, 7]),
        layer(Conv::new([5, 150, 2, 2]).pads([0, 1, 1, 0]), [1, 150, 5, 6]),
        layer(Conv::new([19, 5, 1, 1]), [2, 5, 7, 5]),
        layer(Conv::new([4, 300, 1]), [1, 300, 37]),
        layer(Conv::new([3, 2, 2, 3, 2]).pads([1; 6]), [1, 2, 4, 3, 5]),
        layer(ConvTranspose::new([5, 7, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]).output_padding([1, 1]), [2, 5, 5, 9]),
        layer(ConvTranspose::new([6, 2, 4]).group(2).strides([3]).dilations([2]), [1, 6, 41]),
        layer(ConvTranspose::new([3, 6, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 3, 7, 9]),
        layer(ConvTranspose::new([4, 3, 3, 2]).group(2).pads([0, 1, 2, 0]), [1, 4, 8, 6]),
        layer(ConvTranspose::new([3, 4, 2, 2]).strides([3, 3]).output_shape([18, 20]), [1, 3, 6, 7]),
    ]
}

/// Runs a layer on every combination, and hands each result to `check`.
fn on_every_path<T: Scalar>(
    layer: &Layer,
    activation: Activation,
    operands: &Operands<T>,
    mut check: impl FnMut(Algorithm, &[T]) -> Result<(), String>,
) {
    let mut runs = 0;
    for combination in Combination::all() {
        let Some(plan) = combination.plan::<T>(layer, |planner| planner.activation(activation)) else { continue };
        let _context = Context(|| format!("{combination}, {}, {activation:?}: {layer}", T::DTYPE));
        assert_eq!(check(combination.algorithm, &operands.run_both_ways(&plan)), Ok(()));
        runs += 1;
    }
    assert!(runs >= 3, "{layer}: only {runs} combinations ran");
}

/// The same as [`on_every_path`], for algorithms that sum the products themselves. With them,
/// exact sums have exact results.
fn on_every_direct_path<T: Scalar>(
    layer: &Layer,
    activation: Activation,
    operands: &Operands<T>,
    mut check: impl FnMut(&[T]) -> Result<(), String>,
) {
    on_every_path(layer, activation, operands, |algorithm, y| match algorithm.name() {
        "winograd" => Ok(()),
        _ => check(y),
    });
}

/// Puts special values at random places of X and W. They are few, so that some results stay
/// finite.
fn sprinkle<T: Scalar>(operands: &mut Operands<T>, random: &mut Random) {
    let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0].map(T::from_f64);
    for (tensor, count) in [(&mut operands.x, 3), (&mut operands.w, 2)] {
        for _ in 0..count {
            let at = random.below(tensor.len());
            tensor[at] = specials[random.below(specials.len())];
        }
    }
}

#[test]
fn non_finite_values_come_out_at_the_same_places_on_every_path() {
    fn check<T: Scalar>(activations: &[Activation]) {
        let (mut finite, mut nan, mut infinite) = (0, 0, 0);
        let seeds = if is_short() { 4 } else { 8 };
        for (seed, layer) in layers().iter().flat_map(|layer| (0..seeds).map(move |seed| (seed, layer))) {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, seed).with_bias(&geometry);
            sprinkle(&mut operands, &mut Random::new(1000 + seed));
            if seed % 2 == 1 {
                operands = operands.with_residual(&geometry);
            }
            let oracle = Oracle::new(&geometry, &operands);
            for element in oracle.elements() {
                finite += usize::from(element.value.is_finite());
                nan += usize::from(element.value.is_nan());
                infinite += usize::from(element.value.is_infinite());
            }
            for &activation in activations {
                on_every_path(layer, activation, &operands, |algorithm, y| oracle.check(algorithm, activation, y));
            }
        }
        assert!(finite > 1000 && nan > 1000 && infinite > 1000, "{finite} finite, {nan} NaN, {infinite} infinite");
    }
    check::<f32>(&ACTIVATIONS);
    check::<f64>(&[Activation::None, Activation::HardSwish]);
    check::<f16>(&[Activation::None, Activation::Silu]);
    check::<bf16>(&[Activation::None, Activation::Relu]);
}

#[test]
fn infinity_times_a_zero_weight_is_nan() {
    fn check<T: Scalar>() {
        for layer in layers() {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::generate(&geometry, || 1.0);
            operands.x.fill(T::from_f64(f64::INFINITY));
            operands.w.fill(T::from_f64(0.0));
            let oracle = Oracle::new(&geometry, &operands);
            on_every_path(&layer, Activation::None, &operands, |algorithm, y| {
                oracle.check(algorithm, Activation::None, y)
            });
            if geometry.op == Op::Conv {
                assert!(oracle.elements().iter().any(|e| e.value.is_nan()));
            }
        }
    }
    for_each_type!(check());
}

#[test]
fn an_infinite_weight_on_padding_is_nan_in_conv() {
    fn check<T: Scalar>() {
        let layer = layer(Conv::new([3, 2, 3, 3]).pads([1, 1, 1, 1]), [1, 2, 5, 20]);
        let mut operands = Operands::<T>::generate(&layer.geometry(), || 1.0);
        operands.w.fill(T::from_f64(f64::INFINITY));
        on_every_path(&layer, Activation::None, &operands, |_, y| {
            for (index, y) in y.iter().enumerate() {
                let (row, column) = (index / 20 % 5, index % 20);
                let is_border = row == 0 || row == 4 || column == 0 || column == 19;
                if is_border != y.to_f64().is_nan() || !is_border && y.to_f64() != f64::INFINITY {
                    return Err(format!("{} at row {row}, column {column}", y.to_f64()));
                }
            }
            Ok(())
        });
    }
    for_each_type!(check());
}

#[test]
fn a_single_weight_that_is_not_finite_is_seen_wherever_it_stands() {
    fn check<T: Scalar>() {
        let layer = layer(Conv::new([3, 2, 3, 3]).pads([1, 1, 1, 1]), [1, 2, 4, 5]);
        let geometry = layer.geometry();
        for at in 0..geometry.weight_len() {
            let mut operands = Operands::<T>::generate(&geometry, || 1.0);
            operands.w[at] = T::from_f64([f64::INFINITY, f64::NAN][at % 2]);
            let oracle = Oracle::new(&geometry, &operands);
            on_every_path(&layer, Activation::None, &operands, |algorithm, y| {
                oracle.check(algorithm, Activation::None, y)
            });
        }
    }
    for_each_type!(check());
}

#[test]
fn conv_transpose_has_only_the_contributions_that_exist() {
    fn check<T: Scalar>() {
        // Outputs 3 i + {0, 1} get one product each, and output 3 i + 2 gets none: not even zero
        // times the infinite weight.
        let layer = layer(ConvTranspose::new([1, 2, 2]).strides([3]).output_shape([3 * 11]), [1, 1, 11]);
        let mut operands = Operands::<T>::generate(&layer.geometry(), || 1.0);
        operands.w.fill(T::from_f64(f64::INFINITY));
        operands.bias = Some([5.0, 6.0].map(T::from_f64).to_vec());
        on_every_path(&layer, Activation::None, &operands, |_, y| {
            for (index, y) in y.iter().enumerate() {
                let want = if index % 3 == 2 { [5.0, 6.0][index / 33] } else { f64::INFINITY };
                if y.to_f64() != want {
                    return Err(format!("{} at {index}", y.to_f64()));
                }
            }
            Ok(())
        });
    }
    for_each_type!(check());
}

#[test]
fn nan_passes_through_every_activation() {
    fn check<T: Scalar>() {
        for layer in layers() {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 3);
            operands.x.fill(T::from_f64(f64::NAN));
            let reached = Oracle::new(&geometry, &operands);
            for activation in ACTIVATIONS {
                on_every_path(&layer, activation, &operands, |_, y| {
                    let is_same =
                        y.iter().zip(reached.elements()).all(|(y, e)| y.to_f64().is_nan() == e.value.is_nan());
                    is_same.then_some(()).ok_or_else(|| String::from("NaN is elsewhere"))
                });
            }
        }
    }
    for_each_type!(check());
}

/// The result if every sum is exact in the computing type: the sum, rounded once.
fn exactly<T: Scalar>(oracle: &Oracle, y: &[T]) -> Result<(), String> {
    for (index, (element, y)) in oracle.elements().iter().zip(y).enumerate() {
        let want = T::from_f64(element.value);
        if *y != want {
            return Err(format!("element {index} is {y:?}, not {want:?} (exactly {})", element.value));
        }
    }
    Ok(())
}

#[test]
fn sums_of_integers_are_exact_and_rounded_once() {
    fn check<T: Scalar>() {
        let mut rounded = 0;
        for layer in layers() {
            let geometry = layer.geometry();
            let operands = Operands::<T>::integers(&geometry, 30, 9);
            let oracle = Oracle::new(&geometry, &operands);
            rounded += oracle.elements().iter().filter(|e| T::from_f64(e.value).to_f64() != e.value).count();
            on_every_direct_path(&layer, Activation::None, &operands, |y| exactly(&oracle, y));
        }
        assert_eq!(rounded > 100, !T::DIRECT, "{rounded} results need rounding");
    }
    for_each_type!(check());
}

/// A Conv and a ConvTranspose of one output, which is a sum of products of x and 1. So any values
/// can be summed.
fn sums<T: Scalar>(x: &[f64], bias: f64) -> [(Layer, Operands<T>); 4] {
    let n = x.len();
    let operands = Operands {
        x: x.iter().map(|&x| T::from_f64(x)).collect(),
        w: vec![T::from_f64(1.0); n],
        bias: Some(vec![T::from_f64(bias)]),
        residual: None,
    };
    [
        layer(Conv::new([1, n, 1]), [1, n, 1]),
        layer(Conv::new([1, 1, n]), [1, 1, n]),
        layer(ConvTranspose::new([n, 1, 1]), [1, n, 1]),
        layer(ConvTranspose::new([1, 1, n]).pads([n as i64 - 1; 2]), [1, 1, n]),
    ]
    .map(|layer| (layer, operands.clone()))
}

/// Asserts that the sum of `x` and the bias is `want` on every path.
fn assert_sum<T: Scalar>(x: &[f64], bias: f64, want: f64) {
    for (layer, operands) in sums::<T>(x, bias) {
        on_every_direct_path(&layer, Activation::None, &operands, |y| {
            let got = y[0].to_f64();
            (got == want).then_some(()).ok_or_else(|| format!("{got}, not {want}"))
        });
    }
}

#[test]
fn sixteen_bit_sums_are_kept_in_f32_and_rounded_behind_the_bias() {
    // 2048 + 1 is 2048 in f16; with the bias it is 2050.
    assert_sum::<f16>(&[2048.0, 1.0], 1.0, 2050.0);
    assert_sum::<bf16>(&[256.0, 1.0], 1.0, 258.0);
    // Ties go to even.
    assert_sum::<f16>(&[2048.0, 1.0], 0.0, 2048.0);
    assert_sum::<f16>(&[2048.0, 3.0], 0.0, 2052.0);
    assert_sum::<bf16>(&[256.0, 1.0], 0.0, 256.0);
    assert_sum::<bf16>(&[256.0, 3.0], 0.0, 260.0);
    // Partial sums beyond the range of the type are not lost.
    assert_sum::<f16>(&[60_000.0, 60_000.0, -60_000.0], 0.0, 60_000.0);
}

#[test]
fn results_beyond_the_type_are_infinite() {
    assert_sum::<f16>(&[65_504.0, 15.0], 0.0, 65_504.0);
    assert_sum::<f16>(&[65_504.0, 16.0], 0.0, f64::INFINITY);
    assert_sum::<f16>(&[-65_504.0, -15.0], -1.0, f64::NEG_INFINITY);
    assert_sum::<f32>(&[3e38, 3e38], 0.0, f64::INFINITY);
    assert_sum::<f64>(&[-1.5e308, -1.5e308], 0.0, f64::NEG_INFINITY);
    let greatest = bf16::MAX.to_f64();
    assert_sum::<bf16>(&[greatest, 2.0_f64.powi(119)], 0.0, f64::INFINITY);
    assert_sum::<bf16>(&[greatest, 2.0_f64.powi(118)], 0.0, greatest);
}

#[test]
fn subnormal_numbers_are_not_flushed() {
    fn check<T: Scalar>() {
        let smallest = match T::DTYPE {
            DType::F16 => 2.0_f64.powi(-24),
            DType::BF16 => 2.0_f64.powi(-133),
            DType::F32 => 2.0_f64.powi(-149),
            DType::F64 => f64::from_bits(1),
        };
        for layer in layers() {
            let geometry = layer.geometry();
            let integers = Operands::<f64>::integers(&geometry, 2, 4);
            let scaled = |values: &[f64], scale: f64| values.iter().map(|v| T::from_f64(v * scale)).collect::<Vec<_>>();
            let operands = Operands {
                x: scaled(&integers.x, smallest),
                w: scaled(&integers.w, 1.0),
                bias: integers.bias.as_deref().map(|b| scaled(b, smallest)),
                residual: None,
            };
            let oracle = Oracle::new(&geometry, &operands);
            assert!(oracle.elements().iter().any(|e| e.value != 0.0));
            on_every_direct_path(&layer, Activation::None, &operands, |y| exactly(&oracle, y));
            on_every_direct_path(&layer, Activation::Relu, &operands, |y| {
                let is_right = y.iter().zip(oracle.elements()).all(|(y, e)| y.to_f64() == e.value.max(0.0));
                is_right.then_some(()).ok_or_else(|| String::from("flushed behind the activation"))
            });
        }
    }
    for_each_type!(check());
}

#[test]
fn negative_zeros_are_zeros() {
    fn check<T: Scalar>() {
        for layer in layers() {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::generate(&geometry, || 1.0);
            operands.x.fill(T::from_f64(-0.0));
            for activation in ACTIVATIONS {
                let zero = if activation == Activation::Sigmoid { 0.5 } else { 0.0 };
                on_every_path(&layer, activation, &operands, |_, y| {
                    let is_right = y.iter().all(|y| y.to_f64() == zero);
                    is_right.then_some(()).ok_or_else(|| format!("not all are {zero}"))
                });
            }
        }
    }
    for_each_type!(check());
}

/// `reference::tolerance` was 0 where rounding to a subnormal number, or to zero, is all of the error,
/// for each type but f16.
#[test]
fn the_bound_holds_near_zero() {
    /// Values whose products have about the magnitude of the smallest numbers of a type.
    fn check<T: Scalar>(least_exponent: i32) {
        let root = 2_f64.powi(least_exponent / 2);
        let mut lost = 0;
        for layer in layers() {
            let (geometry, mut random) = (layer.geometry(), Random::new(71));
            let operands = Operands::<T>::generate(&geometry, || 2.0 * random.uniform() * root);
            let elements = convoke::reference::all(&geometry, &operands.x, &operands.w, None);
            on_every_direct_path(&layer, Activation::None, &operands, |y| {
                for (index, (y, exact)) in y.iter().zip(&elements).enumerate() {
                    let bound = convoke::reference::tolerance::<T>(&geometry, exact.magnitude);
                    let error = (y.to_f64() - exact.value).abs();
                    if error > bound {
                        return Err(format!("element {index} is {y:?}, exactly {exact:?}, bound {bound:e}"));
                    }
                    lost += usize::from(error > 0.0);
                }
                Ok(())
            });
        }
        assert!(lost > 100 || T::DTYPE == DType::F64, "{}: {lost} elements were rounded", T::DTYPE);
    }
    check::<f32>(-149);
    check::<f64>(-1074);
    check::<f16>(-24);
    check::<bf16>(-133);

    // Half a step of bf16 is 4.6e-41: rounded rightly to -0.
    let geometry = Conv::new([1, 1, 1]).geometry(&[1, 1, 1]).unwrap();
    let [x, w] = [2_f64.powi(-70), -1.96875 * 2_f64.powi(-68)].map(bf16::from_f64);
    let exact = convoke::reference::element(&geometry, &[x], &[w], None, 0);
    assert!((-5.66e-42..-5.64e-42).contains(&exact.value), "{exact:?}");
    assert!(convoke::reference::tolerance::<bf16>(&geometry, exact.magnitude) >= exact.value.abs());
}
