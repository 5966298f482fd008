//! Checks the activations, on every ISA of this CPU, against their definitions in f64.

use convoke_kernels::activation::Activation;
use convoke_kernels::{Dest, Isa, Real, activation_kernel};

type Definition = fn(f64) -> f64;

fn sigmoid(x: f64) -> f64 {
    // e^-x overflows far below zero.
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

fn mish(x: f64) -> f64 {
    let power = x.min(300.0).exp();
    let n = power * (power + 2.0);
    x * (n / (n + 2.0))
}

/// Every activation, with its definition.
fn activations<T: Real>() -> [(Activation<T>, Definition); 11] {
    let real = T::from_f64;
    [
        (Activation::IDENTITY, |x| x),
        (Activation::Clamp(T::ZERO, T::INFINITY), |x| if x < 0.0 { 0.0 } else { x }),
        (Activation::Clamp(real(-1.0), real(2.0)), |x| x.clamp(-1.0, 2.0)),
        (Activation::LeakyRelu(real(0.25)), |x| if x < 0.0 { 0.25 * x } else { x }),
        (Activation::HardSwish, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        (Activation::Silu, |x| x * sigmoid(x)),
        (Activation::Sigmoid, sigmoid),
        (Activation::Tanh, f64::tanh),
        (Activation::Gelu, |x| x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)),
        (Activation::GeluTanh, |x| x * sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x))),
        (Activation::Mish, mish),
    ]
}

fn each_type(check: impl Fn(Isa), check_f64: impl Fn(Isa)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        check(isa);
        check_f64(isa);
    }
}

/// Numbers of either sign: close together from tiny ones on to those from which on nothing changes.
fn sweep<T: Real>() -> Vec<T> {
    let most = if T::NAME == f32::NAME { 110.0 } else { 760.0 };
    let geometric = (0..).map(|i| 1e-7 * 1.0004_f64.powi(i)).take_while(|x| *x < most);
    let even = (0..50_000).map(|i| most * f64::from(i) / 50_000.0);
    geometric.chain(even).chain([1e20, 3e38]).flat_map(|x| [T::from_f64(x), T::from_f64(-x)]).collect()
}

/// Half of the distance between subnormal numbers.
fn half_unit<T: Real>() -> f64 {
    if T::NAME == f32::NAME { 2.0_f64.powi(-150) } else { f64::from_bits(1) }
}

/// The errors that are stated, in units of round-off.
fn errors_are_as_stated<T: Real>(isa: Isa) {
    let x = sweep::<T>();
    for (activation, definition) in activations::<T>() {
        let units = match activation {
            Activation::Clamp(..) => 0.0,
            Activation::LeakyRelu(_) => 1.0,
            Activation::HardSwish => 2.0,
            Activation::Sigmoid => 5.0,
            Activation::Silu | Activation::Tanh => 7.0,
            Activation::Gelu | Activation::GeluTanh => 1.0,
            Activation::Mish => 12.0,
        };
        let mut y = x.clone();
        activation_kernel(isa, activation).values(&mut y);
        for (x, y) in x.iter().map(|x| x.to_f64()).zip(y) {
            let want = definition(x);
            let (relative, tiny) = match activation {
                // x / 6 + 1/2 has terms below 1, whose errors x magnifies.
                Activation::HardSwish => (want.abs() + x.abs(), 0.0),
                Activation::Silu | Activation::Mish => (want.abs(), 2.0 * x.abs().max(1.0)),
                Activation::Gelu => ((10.0 + 4.0 * x.min(0.0).powi(2)) * want.abs(), 2.0 * x.abs().max(1.0)),
                Activation::GeluTanh => {
                    let exponent = 1.6 * (x + 0.044_715 * x.powi(3)).abs();
                    ((10.0 + if x < 0.0 { 4.0 * exponent } else { 0.0 }) * want.abs(), 2.0 * x.abs().max(1.0))
                }
                _ => (want.abs(), 2.0),
            };
            let bound = units * T::UNIT_ROUNDOFF * relative + tiny * half_unit::<T>();
            let error = (y.to_f64() - want).abs();
            assert!(error <= bound, "{isa} {activation:?}({x:e}): {y}, not {want:e}");
        }
    }
}

#[test]
fn errors_are_as_stated_everywhere() {
    each_type(errors_are_as_stated::<f32>, errors_are_as_stated::<f64>);
}

/// Zeros keep their sign, infinities have their limits or are NaN as by the definition, NaN stays, and
/// of tiny numbers nothing is lost.
fn special_values<T: Real>(isa: Isa, tiny: T) {
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY].map(T::from_f64);
    for (activation, definition) in activations::<T>() {
        let mut values = special;
        activation_kernel(isa, activation).values(&mut values);
        for (x, got) in special.iter().zip(values) {
            let (want, got) = (definition(x.to_f64()), got.to_f64());
            let is_same = got == want || got.is_nan() && want.is_nan();
            // A clamp's bound may be a zero of either sign.
            let has_sign =
                matches!(activation, Activation::Clamp(..)) || got.is_sign_negative() == want.is_sign_negative();
            assert!(is_same && (has_sign || want.is_nan()), "{isa} {activation:?}({x}): {got}, not {want}");
        }
        let mut nan = [T::from_f64(f64::NAN); 37];
        activation_kernel(isa, activation).values(&mut nan);
        assert!(nan.iter().all(|x| x.to_f64().is_nan()), "{isa} {activation:?} of NaN");
        let mut small = [tiny; 3];
        activation_kernel(isa, activation).values(&mut small);
        let want = T::from_f64(definition(tiny.to_f64())).to_f64();
        assert!(
            (small[0].to_f64() - want).abs() <= half_unit::<T>() * 2.0,
            "{isa} {activation:?}({tiny}): {}",
            small[0]
        );
    }
}

#[test]
fn special_values_have_their_limits() {
    each_type(|isa| special_values(isa, 3e-42_f32), |isa| special_values(isa, 5e-320_f64));
}

/// Rows of every length up to several vectors. Every element of a row is as if it were alone, and what
/// lies between rows is not touched.
fn rows_with_gaps<T: Real>(isa: Isa) {
    for (activation, _) in activations::<T>() {
        let kernel = activation_kernel(isa, activation);
        let mut alone = [T::from_f64(-0.7)];
        kernel.values(&mut alone);
        for (len, ld) in (0..40).flat_map(|len| [(len, len), (len, len + 3)]) {
            let (rows, mut values) = (3, vec![T::from_f64(-0.7); 2 * ld + len]);
            // SAFETY: the values of a vector are initialised.
            unsafe { kernel.rows(&mut Dest::from_slice(&mut values), (rows, len), ld) };
            for (i, value) in values.iter().enumerate() {
                let want = if i % ld.max(1) < len { alone[0] } else { T::from_f64(-0.7) };
                assert_eq!(*value, want, "{isa} {activation:?}: element {i} of rows of {len}, {ld} apart");
            }
        }
    }
}

#[test]
fn rows_of_every_length_are_activated_and_nothing_between_them() {
    each_type(rows_with_gaps::<f32>, rows_with_gaps::<f64>);
}

#[test]
fn one_value_is_activated_as_a_row() {
    for (activation, definition) in activations::<f64>() {
        for x in [-2.5, -0.125, 0.0, 0.75, 30.0] {
            assert!(
                (activation_kernel(Isa::Portable, activation).apply(x) - definition(x)).abs() < 1e-14,
                "{activation:?}({x})"
            );
        }
    }
}

fn activate_three(len: usize, (rows, ld): (usize, usize)) {
    let mut values = vec![0.0_f32; len];
    // SAFETY: the values of a vector are initialised.
    unsafe {
        activation_kernel(Isa::Portable, Activation::Tanh).rows(&mut Dest::from_slice(&mut values), (rows, 3), ld);
    }
}

#[test]
#[should_panic(expected = "a row ends beyond the destination")]
fn a_row_that_ends_beyond_the_destination_is_refused() {
    activate_three(7, (2, 5));
}

/// So many rows would not end.
#[test]
#[should_panic(expected = "a row ends beyond the destination")]
fn rows_that_exceed_the_address_space_are_refused() {
    activate_three(7, (usize::MAX, usize::MAX));
}

#[test]
#[should_panic(expected = "rows overlap")]
fn rows_that_overlap_are_refused() {
    activate_three(8, (2, 2));
}

#[test]
fn no_rows_are_nothing() {
    activate_three(0, (0, 5));
}
