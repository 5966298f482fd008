//! The computing types: `exp`.

use convoke_kernels::Real;

#[test]
fn exp_is_within_a_few_units_in_the_last_place_of_std() {
    for i in -20_000..20_000 {
        let x = f64::from(i) * 0.004;
        assert!((Real::exp(x) / x.exp() - 1.0).abs() < 1e-15, "{x}");
        let y = x as f32;
        let want = f64::from(y).exp();
        assert!((f64::from(Real::exp(y)) / want - 1.0).abs() < 3e-7 || want < 1e-36, "{y}");
    }
}

#[test]
fn exp_of_special_values() {
    assert!(Real::exp(f32::NAN).is_nan() && Real::exp(f64::NAN).is_nan());
    assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(Real::exp(f64::NEG_INFINITY), 0.0);
    assert_eq!(Real::exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(Real::exp(f64::INFINITY), f64::INFINITY);
}
