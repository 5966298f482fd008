//! Compares a result with the reference, at a sample of its elements.

use std::collections::BTreeSet;

use convoke::{Algorithm, Element, Geometry, reference};
use convoke_kernels::Real;

use crate::data::{ByteOperands, Operands, Quantisation, Random, Scalar};

/// The worst of the elements that were compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worst {
    /// Largest distance from the reference.
    pub error: f64,
    /// Largest error as a share of its element's bound. If it is above 1, the result is wrong.
    pub of_tolerance: f64,
    /// Linear index of the element with the largest share.
    pub index: usize,
    /// Number of elements that were compared.
    pub samples: usize,
}

impl Worst {
    /// Whether every element was within its bound.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.of_tolerance <= 1.0
    }
}

/// The most that an algorithm's transforms usually add to [`reference::tolerance`], for a magnitude
/// `wide` from [`reference::wide_magnitudes`] and random operands. It finds faults that
/// [`reference::transform_tolerance`] would let pass, which holds for any operands.
///
/// It is twice the largest error that was seen in random layers, dense, grouped and depthwise, of
/// tiles that [`Accuracy::Standard`](convoke::Accuracy::Standard) allows. A test repeats the
/// measurement (`errors_of_random_layers_stay_below_half_of_the_usual`).
#[must_use]
pub fn usual_transform_error<T: Element>(algorithm: Algorithm, wide: f64) -> f64 {
    match algorithm.name() {
        "winograd" => 160.0 * <T::Acc as Real>::UNIT_ROUNDOFF * wide,
        _ => 0.0,
    }
}

/// Compares `y`, from random operands, with the reference at the elements of [`sample`]. Each
/// element has its own bound: `K * eps * sum |x| |w|`, plus what the algorithm's transforms usually
/// add.
#[must_use]
pub fn against_reference<T: Scalar>(
    geometry: &Geometry,
    algorithm: Algorithm,
    operands: &Operands<T>,
    y: &[T],
    count: usize,
) -> Worst {
    let wide = reference::wide_magnitudes(geometry, &operands.x, &operands.w);
    worst_of(geometry, count, |index, channel| {
        let expected = reference::element(geometry, &operands.x, &operands.w, Some(&operands.b), index);
        let tolerance = reference::tolerance::<T>(geometry, expected.magnitude)
            + usual_transform_error::<T>(algorithm, wide[channel]);
        (distance(y[index].to_f64(), expected.value), tolerance)
    })
}

/// Compares `y` with the definition of ONNX's QLinearConv at the elements of [`sample`]. Errors are in steps of Y, and bounds
/// are 0.
#[must_use]
pub fn bytes_against_reference(geometry: &Geometry, operands: &ByteOperands, y: &[u8], count: usize) -> Worst {
    let Quantisation { x_scale, x_zero_point, w_scale, y_scale, y_zero_point } = &operands.quantisation;
    // All sums are integers that f64 holds.
    let x: Vec<f64> = operands.x.iter().map(|&x| f64::from(x) - f64::from(*x_zero_point)).collect();
    let w: Vec<f64> = operands.w.iter().map(|&w| w.into()).collect();
    let b: Vec<f64> = operands.b.iter().map(|&b| b.into()).collect();
    worst_of(geometry, count, |index, channel| {
        let sum = reference::element(geometry, &x, &w, Some(&b), index).value as f32;
        let steps = (sum * (x_scale * w_scale[channel] / y_scale)).round_ties_even();
        let expected = (steps + f32::from(*y_zero_point)).clamp(0.0, 255.0);
        (distance(y[index].into(), expected.into()), 0.0)
    })
}

/// The worst of a sample of elements. `compare` gives the error and the bound of one, by its index and its channel.
fn worst_of(geometry: &Geometry, count: usize, compare: impl Fn(usize, usize) -> (f64, f64)) -> Worst {
    let mut worst = Worst { error: 0.0, of_tolerance: 0.0, index: 0, samples: 0 };
    for index in sample(&geometry.output_shape(), count) {
        let (_, channel, _) = geometry.output_place(index);
        let (error, tolerance) = compare(index, channel);
        let of_tolerance = if error == 0.0 { 0.0 } else { error / tolerance };
        worst.samples += 1;
        worst.error = worst.error.max(error);
        // If a bound is 0, any error makes the share infinite. A NaN bound must not hide an
        // error.
        if of_tolerance > worst.of_tolerance || of_tolerance.is_nan() {
            worst.of_tolerance = if of_tolerance.is_nan() { f64::INFINITY } else { of_tolerance };
            worst.index = index;
        }
    }
    worst
}

/// `|a - b|`. NaN equals NaN, and an infinity equals itself. The distance is infinite if only one
/// of the two is such a value.
#[must_use]
pub fn distance(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        0.0
    } else if a.is_finite() && b.is_finite() {
        (a - b).abs()
    } else {
        f64::INFINITY
    }
}

/// Linear indices of about `count` elements of a tensor, in order: every corner, some elements of
/// every face (for edge tiles and padding), and others scattered over the whole tensor. If there
/// are no more than `count` elements, all are in it.
#[must_use]
pub fn sample(shape: &[usize], count: usize) -> Vec<usize> {
    /// Elements of each of the two faces of an axis.
    const FACE: usize = 8;
    let len: usize = shape.iter().product();
    if len <= count {
        return (0..len).collect();
    }
    let linear = |index: &mut dyn Iterator<Item = usize>| shape.iter().zip(index).fold(0, |at, (&dim, i)| at * dim + i);
    let mut random = Random::new(0);
    let mut indices = BTreeSet::new();
    for corner in 0..1_usize << shape.len().min(10) {
        let end = |axis: usize| axis < 10 && corner >> axis & 1 == 1;
        indices.insert(linear(&mut shape.iter().enumerate().map(|(axis, dim)| if end(axis) { dim - 1 } else { 0 })));
    }
    for face in 0..shape.len() {
        for point in 0..2 * FACE {
            let on_face = if point < FACE { 0 } else { shape[face] - 1 };
            let mut index =
                shape.iter().enumerate().map(|(axis, &dim)| if axis == face { on_face } else { random.below(dim) });
            indices.insert(linear(&mut index));
        }
    }
    let mut random = Random::new(1);
    for _ in indices.len()..count {
        indices.insert(random.below(len));
    }
    indices.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;
    use convoke::{Conv, Planner, QuantisedRun};

    #[test]
    fn a_small_tensor_is_looked_at_completely() {
        assert_eq!(sample(&[2, 3, 4], 24), (0..24).collect::<Vec<_>>());
        assert!(sample(&[2, 0, 4], 24).is_empty());
    }

    #[test]
    fn a_sample_has_the_corners_and_faces() {
        let shape = [2, 16, 50, 70];
        let picked = sample(&shape, 500);
        assert!((400..=500).contains(&picked.len()), "{}", picked.len());
        assert!(picked.is_sorted());
        for corner in [0, 69, 49 * 70, 49 * 70 + 69, 2 * 16 * 50 * 70 - 1] {
            assert!(picked.contains(&corner), "{corner}");
        }
        assert!(picked.iter().filter(|i| *i % 70 == 69).count() >= 8, "the last column");
    }

    #[test]
    fn distance_treats_special_values_as_values() {
        assert_eq!(distance(f64::NAN, f64::NAN), 0.0);
        assert_eq!(distance(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(distance(f64::INFINITY, f64::NEG_INFINITY), f64::INFINITY);
        assert_eq!(distance(f64::NAN, 1.0), f64::INFINITY);
        assert_eq!(distance(1.0, -1.5), 2.5);
    }

    #[test]
    fn one_wrong_element_is_found() {
        let geometry = Conv::new([4, 3, 3, 3]).pads([1, 1, 1, 1]).geometry(&[1, 3, 5, 5]).unwrap();
        let operands = Operands::<f32>::new(&geometry);
        let exact = |i| reference::element(&geometry, &operands.x, &operands.w, Some(&operands.b), i).value as f32;
        let mut y: Vec<f32> = (0..geometry.output_len()).map(exact).collect();
        assert!(against_reference(&geometry, named("naive"), &operands, &y, 500).is_within());
        y[37] += 1e-3;
        let worst = against_reference(&geometry, named("naive"), &operands, &y, 500);
        assert!(!worst.is_within() && worst.index == 37 && worst.samples == 100, "{worst:?}");
        y[37] = f32::NAN;
        assert_eq!(against_reference(&geometry, named("naive"), &operands, &y, 500).of_tolerance, f64::INFINITY);
    }

    #[test]
    fn a_byte_that_is_off_by_a_step_is_found() {
        let conv = Conv::new([4, 3, 3, 3]).pads([1, 1, 1, 1]);
        let plan = Planner::new().plan_quantised::<u8, i8, u8>(conv, &[1, 3, 5, 5]).unwrap();
        let operands = ByteOperands::new(plan.geometry());
        let weights = plan.pack(&operands.w, &[], Some(&operands.b)).unwrap();
        let scaled = weights.scaled(&operands.quantisation.scales()).unwrap();
        let mut y = vec![0; 100];
        plan.run(QuantisedRun::new(&operands.x, &weights, &scaled, &mut y)).unwrap();
        assert!(bytes_against_reference(plan.geometry(), &operands, &y, 500).is_within());
        assert!(y.iter().any(|&y| y < 90) && y.iter().any(|&y| y > 166), "the outputs fill their range: {y:?}");
        y[37] ^= 1;
        let worst = bytes_against_reference(plan.geometry(), &operands, &y, 500);
        assert_eq!((worst.is_within(), worst.index, worst.error), (false, 37, 1.0));
    }
}
