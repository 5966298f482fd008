//! Activations: what a caller chooses, raw arguments, and calls.

use crate::Real;
use crate::dest::{Dest, end};

/// The activation at the end of the epilogue, in the computing type. All clamps are one variant. NaN
/// stays NaN in all.
///
/// `convoke::Activation` is turned into this type when a layer is planned.
///
/// Errors are counted in units of round-off of the result. A subnormal `1 / (1 + e^-x)` has an error
/// of one unit in the last place instead, which [`Silu`](Self::Silu) multiplies by x. What [`Gelu`](Self::Gelu) and
/// [`Mish`](Self::Mish) multiply by x may be subnormal, too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation<T> {
    /// `min(max(x, lo), hi)`. It is the identity if the bounds are infinite.
    Clamp(T, T),
    /// `x` if it is not negative, otherwise `alpha * x`.
    LeakyRelu(T),
    /// `x * min(max(x / 6 + 1/2, 0), 1)`.
    HardSwish,
    /// `x / (1 + e^-x)`, within 7 units of round-off.
    Silu,
    /// `1 / (1 + e^-x)`, within 5 units of round-off.
    Sigmoid,
    /// The hyperbolic tangent, within 7 units of round-off.
    Tanh,
    /// `x` times the normal distribution at x, within 10 units of round-off, and `10 + 4 x^2` if x is negative.
    Gelu,
    /// `x / (1 + e^-u)` with u = `sqrt(8 / pi) (x + 0.044715 x^3)`, within 10 units of round-off, and `10 - 4 u` if x is negative.
    GeluTanh,
    /// `x tanh(ln(1 + e^x))`, within 12 units of round-off.
    Mish,
}

impl<T: Real> Activation<T> {
    /// No activation.
    pub const IDENTITY: Self = Self::Clamp(T::NEG_INFINITY, T::INFINITY);

    /// The same in f64.
    #[must_use]
    pub fn to_f64(self) -> Activation<f64> {
        match self {
            Self::Clamp(lo, hi) => Activation::Clamp(lo.to_f64(), hi.to_f64()),
            Self::LeakyRelu(alpha) => Activation::LeakyRelu(alpha.to_f64()),
            Self::HardSwish => Activation::HardSwish,
            Self::Silu => Activation::Silu,
            Self::Sigmoid => Activation::Sigmoid,
            Self::Tanh => Activation::Tanh,
            Self::Gelu => Activation::Gelu,
            Self::GeluTanh => Activation::GeluTanh,
            Self::Mish => Activation::Mish,
        }
    }
}

/// Raw arguments of the kernel.
///
/// Memory: for each row i < `rows`, `x + i * x_row` is readable and `y + i * ld` writable for `len`
/// elements. Unless `residual` is null, `residual + i * residual_row` is readable for as many. Rows of Y do not
/// overlap. X and the residual may be Y: each element is read before it is written.
pub(crate) struct ActivateArgs<T> {
    pub(crate) activation: Activation<T>,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    pub(crate) x: *const T,
    pub(crate) x_row: usize,
    pub(crate) residual: *const T,
    pub(crate) residual_row: usize,
    pub(crate) y: *mut T,
    pub(crate) ld: usize,
}

/// The code for one ISA and type.
pub(crate) type ActivateFn<T> = unsafe fn(&ActivateArgs<T>);

/// An activation, and the code for it that this CPU runs.
#[derive(Debug, Clone, Copy)]
pub struct ActivationKernel<T> {
    pub(crate) f: ActivateFn<T>,
    pub(crate) activation: Activation<T>,
}

impl<T: Real> ActivationKernel<T> {
    /// The activation of one value.
    #[must_use]
    pub fn apply(&self, x: T) -> T {
        let mut value = [x];
        self.values(&mut value);
        value[0]
    }

    /// `values[i] = activation(values[i])`.
    pub fn values(&self, values: &mut [T]) {
        let len = values.len();
        // SAFETY: the values of a slice are initialised.
        unsafe { self.rows(&mut Dest::from_slice(values), (1, len), 0) };
    }

    /// As [`values`](Self::values), for `rows` rows of `len` elements of a destination, `ld` apart. A
    /// kernel has just stored them, and they are in the L1 cache.
    ///
    /// # Safety
    /// Memory: the elements of the rows are initialised, and the holder of the destination may write
    /// them.
    ///
    /// # Panics
    /// If the destination ends before the last row does, or a row is longer than its distance to the
    /// next one.
    #[inline]
    pub unsafe fn rows(&self, dest: &mut Dest<'_, T>, (rows, len): (usize, usize), ld: usize) {
        if rows == 0 {
            return;
        }
        assert!(rows == 1 || len <= ld, "rows overlap");
        assert!(end(rows, ld, len) <= dest.len(), "a row ends beyond the destination");
        let (rows, len) = if len == ld { (1, rows * len) } else { (rows, len) };
        let (y, activation) = (dest.as_mut_ptr(), self.activation);
        let (x, residual) = (y.cast_const(), core::ptr::null());
        let args = ActivateArgs { activation, rows, len, x, x_row: ld, residual, residual_row: ld, y, ld };
        // SAFETY: the assertions cover the memory that ActivateArgs asks for, the caller promises that it
        // is initialised, and Dest grants the writes. The code is only handed out where the CPU can run
        // it.
        unsafe { (self.f)(&args) };
    }
}
