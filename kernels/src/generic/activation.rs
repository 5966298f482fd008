//! Activations of rows.

use super::constant;
use crate::activation::{ActivateArgs, Activation};
use crate::real::Exponential;
use crate::simd::Simd;

/// Applies the activation to all rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`ActivateArgs`] states.
#[inline(always)]
pub(crate) unsafe fn activate<V: Simd>(args: &ActivateArgs<V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        // Outside of the loops, so that each activation has its own loop.
        match args.activation {
            Activation::Clamp(lo, hi) => rows(args, Activation::Clamp(V::splat(lo), V::splat(hi))),
            Activation::LeakyRelu(alpha) => rows(args, Activation::LeakyRelu(V::splat(alpha))),
            Activation::HardSwish => rows::<V>(args, Activation::HardSwish),
            Activation::Silu => rows::<V>(args, Activation::Silu),
            Activation::Sigmoid => rows::<V>(args, Activation::Sigmoid),
            Activation::Tanh => rows::<V>(args, Activation::Tanh),
            Activation::Gelu => rows::<V>(args, Activation::Gelu),
            Activation::GeluTanh => rows::<V>(args, Activation::GeluTanh),
            Activation::Mish => rows::<V>(args, Activation::Mish),
        }
    }
}

/// Adds the residual to all rows, and applies an activation, which the compiler knows.
///
/// # Safety
/// As [`activate`].
#[inline(always)]
unsafe fn rows<V: Simd>(args: &ActivateArgs<V::Elem>, activation: Activation<V>) {
    let ActivateArgs { rows, len, x_row, residual_row, ld, .. } = *args;
    let (whole, rest) = (len / V::LANES * V::LANES, len % V::LANES);
    // SAFETY: the caller's promise of memory and ISA. All vectors end with their row.
    unsafe {
        for row in 0..rows {
            let (x, y) = (args.x.add(row * x_row), args.y.add(row * ld));
            let residual = if args.residual.is_null() { None } else { Some(args.residual.add(row * residual_row)) };
            let mut at = 0;
            while at < whole {
                let x = V::load(x.add(at));
                let x = if let Some(residual) = residual { x.add(V::load(residual.add(at))) } else { x };
                vector(activation, x).store(y.add(at));
                at += V::LANES;
            }
            if rest > 0 {
                let x = V::load_first(x.add(at), rest);
                let x = if let Some(residual) = residual { x.add(V::load_first(residual.add(at), rest)) } else { x };
                vector(activation, x).store_first(y.add(at), rest);
            }
        }
    }
}

#[inline(always)]
fn vector<V: Simd>(activation: Activation<V>, x: V) -> V {
    let (zero, one) = (constant(x, 0.0), constant(x, 1.0));
    match activation {
        Activation::Clamp(lo, hi) => x.clamp(lo, hi),
        Activation::LeakyRelu(alpha) => x.or_if_negative(x.mul(alpha)),
        Activation::HardSwish => x.mul(x.mul(constant(x, 1.0 / 6.0)).add(constant(x, 0.5)).clamp(zero, one)),
        Activation::Silu => x.mul(sigmoid(x)),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => {
            // With m = e^2x - 1, it is m / (m + 2). Near zero m is precise, because nothing is
            // added to the second part of the power, and m has the sign of x.
            let (scale, rest) = exp(x.add(x), (-V::Elem::FAR, V::Elem::FAR), 0.0);
            let m = scale.mul(rest).sub(one.sub(scale));
            m.div(m.add(constant(x, 2.0)))
        }
        Activation::Gelu => {
            // For x of either sign: max(x, 0), less |x| times what the distribution has beyond |x|, which is nothing from
            // some |x| on. A zero keeps its sign, because no zero of another one is subtracted.
            let size = x.or_if_negative(x.mul(constant(x, -1.0))).add(zero).clamp(zero, constant(x, -V::Elem::LEAST));
            x.or_if_negative(x.mul(zero)).sub(size.mul(normal_tail(size)))
        }
        Activation::GeluTanh => {
            const TWICE: f64 = 2.0 * core::f64::consts::FRAC_2_SQRT_PI * core::f64::consts::FRAC_1_SQRT_2;
            let factor = x.mul(x).mul_add(constant(x, TWICE * 0.044_715), constant(x, TWICE));
            x.mul(sigmoid(x.mul(factor)))
        }
        Activation::Mish => {
            // tanh(ln(1 + e)) is n / (n + 2) with n = e (e + 2), for e of e^x.
            let (power, up) = (raised_power(x), (1_u128 << UP) as f64);
            let n = power.mul(power.mul_add(constant(x, 1.0 / up), constant(x, 2.0)));
            x.mul(n.div(n.add(constant(x, 2.0 * up))))
        }
    }
}

/// `1 / (1 + e^-x)`. It is computed as `e^x / (1 + e^x)`, so that the result is precise for x far
/// below zero, too.
#[inline(always)]
fn sigmoid<V: Simd>(x: V) -> V {
    let power = raised_power(x);
    power.div(power.add(constant(x, (1_u128 << UP) as f64)))
}

/// What the normal distribution has beyond `x`, which is not negative.
#[inline(always)]
fn normal_tail<V: Simd>(x: V) -> V {
    let share = constant(x, 1.0).div(x.add(constant(x, 4.0)));
    let series = polynomial(share.mul_add(constant(x, 8.0), constant(x, -1.0)), V::Elem::NORMAL_TAIL);
    let (scale, rest) = exp(x.mul(x).mul(constant(x, -0.5)), (V::Elem::LEAST, 0.0), f64::from(UP));
    let power = scale.mul_add(rest, scale);
    power.mul(share.mul(series)).mul(constant(x, 1.0 / (1_u128 << UP) as f64))
}

/// More than the digits of a subnormal number.
const UP: i32 = 64;

/// `e^x`, times 2 to the power of [`UP`], as `e^x` may be subnormal. For large x it is less.
#[inline(always)]
fn raised_power<V: Simd>(x: V) -> V {
    let (scale, rest) = exp(x, (V::Elem::LEAST, V::Elem::FAR), f64::from(UP));
    scale.mul_add(rest, scale)
}

/// `e^x` in two parts, `2^n` and `rest`: it is `2^n (1 + rest)`. The first part is returned as
/// `2^(n + up)`. x is clamped to the bounds, and NaN stays NaN in the second part.
///
/// It is Cody and Waite's reduction x = n ln 2 + r, and a polynomial for `(e^r - 1) / r`.
#[inline(always)]
fn exp<V: Simd>(x: V, (least, most): (f64, f64), up: f64) -> (V, V) {
    let x = x.clamp(constant(x, least), constant(x, most));
    // Adding a number whose unit is 1 rounds to an integer. Then n, with the exponent's bias and
    // `up`, is in the lowest bits of the sum.
    let integers = constant(x, V::Elem::INTEGERS + up);
    let sum = x.mul_add(constant(x, core::f64::consts::LOG2_E), integers);
    let n = sum.sub(integers);
    let [high, low] = V::Elem::LN_2;
    let r = n.mul_add(constant(x, -low), n.mul_add(constant(x, -high), x));
    (sum.low_bits_as_exponent(), polynomial(r, V::Elem::SERIES).mul(r))
}

/// The polynomial with these coefficients, from the constant one on.
#[inline(always)]
fn polynomial<V: Simd>(x: V, coefficients: &'static [f64]) -> V {
    let [terms @ .., highest] = coefficients else { unreachable!("a polynomial has terms") };
    let mut sum = constant(x, *highest);
    for term in terms.iter().rev() {
        sum = sum.mul_add(x, constant(x, *term));
    }
    sum
}
