//! The expected result of a run, and the bound of its error.

use convoke::{Activation, Algorithm, DType, Geometry, Op, reference};
use convoke_kernels::stream::Storage;
use convoke_tools::check::usual_transform_error;
use convoke_tools::data::Scalar;

use super::Operands;

/// The result of a layer by the definition, before the activation.
pub struct Oracle {
    geometry: Geometry,
    /// Sum, bias and residual of each output element.
    elements: Vec<reference::ReferenceElement>,
    /// For each channel of a Conv, the magnitude that errors of algorithms with transforms are
    /// proportional to.
    wide: Vec<f64>,
}

impl Oracle {
    /// Computes the result of a layer on its operands.
    pub fn new<T: Scalar>(geometry: &Geometry, operands: &Operands<T>) -> Self {
        let Operands { x, w, bias, residual } = operands;
        let mut elements = reference::all(geometry, x, w, bias.as_deref());
        for (element, residual) in elements.iter_mut().zip(residual.iter().flatten()) {
            element.value += residual.to_f64();
            element.magnitude += residual.to_f64().abs();
        }
        let wide = reference::wide_magnitudes(geometry, x, w);
        Self { geometry: geometry.clone(), elements, wide }
    }

    /// The elements before the activation.
    pub fn elements(&self) -> &[reference::ReferenceElement] {
        &self.elements
    }

    /// Compares a result. Where the definition is not finite, the result must be the same;
    /// elsewhere it must be within [`bound`](Self::bound).
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check<T: Scalar>(&self, algorithm: Algorithm, activation: Activation, y: &[T]) -> Result<(), String> {
        if y.len() != self.elements.len() {
            return Err(format!("{} elements instead of {}", y.len(), self.elements.len()));
        }
        for (index, (element, y)) in self.elements.iter().zip(y).enumerate() {
            let (want, got) = (apply(activation, element.value), y.to_f64());
            let is_right = if want.is_finite() {
                (got - want).abs() <= self.bound::<T>(algorithm, activation, index)
            } else {
                got.is_nan() && want.is_nan() || got == want
            };
            if !is_right {
                let bound = self.bound::<T>(algorithm, activation, index);
                return Err(format!(
                    "element {index} of shape {:?} is {got}, expected {want} within {bound:e}",
                    self.geometry.output_shape()
                ));
            }
        }
        Ok(())
    }

    /// The largest error of an element: the error of the sum after the activation, the
    /// activation's own error, and the rounding of the store.
    fn bound<T: Scalar>(&self, algorithm: Algorithm, activation: Activation, index: usize) -> f64 {
        let element = self.elements[index];
        let (mut sum, roundoff) = if T::DTYPE == DType::F64 {
            (reference::tolerance::<f64>(&self.geometry, element.magnitude), f64::UNIT_ROUNDOFF)
        } else {
            (reference::tolerance::<f32>(&self.geometry, element.magnitude), f32::UNIT_ROUNDOFF)
        };
        let (_, channel, _) = self.geometry.output_place(index);
        if let Some(&wide) = self.wide.get(channel) {
            sum += if T::DTYPE == DType::F64 {
                usual_transform_error::<f64>(algorithm, wide)
            } else {
                usual_transform_error::<f32>(algorithm, wide)
            };
        }
        let value = apply(activation, element.value);
        let error = slope(activation) * sum + own_error(activation, element.value) * roundoff;
        if T::DIRECT { error } else { error + (value.abs() + error) * T::UNIT_ROUNDOFF + half_step(T::DTYPE) }
    }
}

/// Half the distance between the subnormal numbers of a 16-bit type.
fn half_step(dtype: DType) -> f64 {
    2_f64.powi(if dtype == DType::F16 { -25 } else { -134 })
}

/// The activation by its definition.
pub fn apply(activation: Activation, x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Clip { min, max } => x.max(min.into()).min(max.into()),
        Activation::LeakyRelu { alpha } if x < 0.0 => f64::from(alpha) * x,
        Activation::LeakyRelu { .. } => x,
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Gelu => x / 2.0 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Mish => x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh(),
        _ => panic!("tests/common/oracle.rs: say what {activation:?} is"),
    }
}

/// The activation's greatest slope, by which it may magnify an error.
fn slope(activation: Activation) -> f64 {
    match activation {
        Activation::LeakyRelu { alpha } => f64::from(alpha).abs().max(1.0),
        Activation::HardSwish => 1.5,
        Activation::Silu | Activation::Gelu | Activation::GeluTanh | Activation::Mish => 1.2,
        _ => 1.0,
    }
}

/// The activation's own error at `x`, in units of round-off of the computing type.
fn own_error(activation: Activation, x: f64) -> f64 {
    let value = apply(activation, x).abs();
    match activation {
        Activation::LeakyRelu { .. } => value,
        // x / 6 + 1/2 has terms below 1 where it matters, so its error is a few units even near
        // its zero. x magnifies it.
        Activation::HardSwish => 4.0 * (value + x.abs()),
        // An exponential with an error of 4 units, an addition, and a division.
        Activation::Silu | Activation::Sigmoid | Activation::Tanh => 8.0 * value,
        Activation::Mish => 13.0 * value,
        Activation::Gelu => (11.0 + 4.0 * x.min(0.0).powi(2)) * value,
        Activation::GeluTanh => (11.0 + 6.4 * (x + 0.044_715 * x.powi(3)).min(0.0).abs()) * value,
        _ => 0.0,
    }
}
