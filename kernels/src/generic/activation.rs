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
    }
}

/// `1 / (1 + e^-x)`. It is computed as `e^x / (1 + e^x)`, so that the result is precise for x far
/// below zero, too. Both terms are multiplied by a power of two: `e^x` may be subnormal.
#[inline(always)]
fn sigmoid<V: Simd>(x: V) -> V {
    /// More than the digits of a subnormal number.
    const UP: i32 = 64;
    let (scale, rest) = exp(x, (V::Elem::LEAST, V::Elem::FAR), f64::from(UP));
    let power = scale.mul_add(rest, scale);
    power.div(power.add(constant(x, (1_u128 << UP) as f64)))
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
    let [terms @ .., highest] = V::Elem::SERIES else { unreachable!("the series has terms") };
    let mut series = constant(x, *highest);
    for term in terms.iter().rev() {
        series = series.mul_add(r, constant(x, *term));
    }
    (sum.low_bits_as_exponent(), series.mul(r))
}
