//! What follows the sum of products: bias, residual, activation.

use convoke_kernels::{Real, activation};

/// The activation that is applied to each output element, after bias and residual. Every
/// activation keeps NaN.
///
/// It is what a caller chooses, with bounds in `f32`. Kernels take
/// [`convoke_kernels::activation::Activation`], which it is turned into when a layer is planned:
/// there, `None`, `Relu` and `Clip` are one clamp, in the computing type.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// No activation.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, min), max)`: `max` everywhere if `min` exceeds it, as in ONNX's Clip. Bounds may
    /// be infinite; a bound that is NaN is an error when a layer is planned.
    Clip {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// `x` if it is not negative, else `alpha * x`. It is also ONNX's PRelu with a single slope.
    LeakyRelu {
        /// Slope of the negative part.
        alpha: f32,
    },
    /// `x * min(max(x / 6 + 1/2, 0), 1)`.
    HardSwish,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x` times the normal distribution at x: `x / 2 * (1 + erf(x / sqrt(2)))`, ONNX's Gelu.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, ONNX's Gelu with `approximate` of `tanh`.
    GeluTanh,
    /// `x * tanh(ln(1 + e^x))`.
    Mish,
}

impl Activation {
    /// Why nothing can be planned with it.
    pub(crate) fn mistake(self) -> Option<&'static str> {
        let Self::Clip { min, max } = self else { return None };
        let mistakes = [
            (min, "the activation Clip has a lower bound that is NaN"),
            (max, "the activation Clip has an upper bound that is NaN"),
        ];
        mistakes.into_iter().find(|(bound, _)| bound.is_nan()).map(|(_, mistake)| mistake)
    }

    /// The activation in the form that kernels take.
    pub(crate) fn lower<T: Real>(self) -> activation::Activation<T> {
        let real = |x: f32| T::from_f64(f64::from(x));
        match self {
            Self::None => activation::Activation::IDENTITY,
            Self::Relu => activation::Activation::Clamp(T::ZERO, T::INFINITY),
            Self::Clip { min, max } => activation::Activation::Clamp(real(min), real(max)),
            Self::LeakyRelu { alpha } => activation::Activation::LeakyRelu(real(alpha)),
            Self::HardSwish => activation::Activation::HardSwish,
            Self::Silu => activation::Activation::Silu,
            Self::Sigmoid => activation::Activation::Sigmoid,
            Self::Tanh => activation::Activation::Tanh,
            Self::Gelu => activation::Activation::Gelu,
            Self::GeluTanh => activation::Activation::GeluTanh,
            Self::Mish => activation::Activation::Mish,
        }
    }
}
