//! The computing types: `exp`.

use convoke_kernels::Real;

#[test]
fn exp_is_within_2_units_in_the_last_place() {
    for i in -80_000..80_000 {
        let x = f64::from(i) * 0.00886;
        // The standard library's result is not exact either.
        let want = x.exp();
        assert!((Real::exp(x) - want).abs() <= 2.0 * (want.next_up() - want), "{x}");
        let x = (x / 8.0) as f32;
        let want = f64::from(x).exp();
        let unit = f64::from((want as f32).next_up()) - f64::from(want as f32);
        assert!((f64::from(Real::exp(x)) - want).abs() <= 2.0 * unit, "{x}");
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
