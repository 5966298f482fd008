//! The element types of tensors.

use convoke_kernels::Real;
use convoke_kernels::stream::Storage;

use crate::DType;

pub use half::{bf16, f16};

/// The element type of a tensor: `f32`, `f64`, [`f16`](struct@f16) or [`bf16`]. The trait is
/// sealed.
///
/// The 16-bit types are only stored. Products and sums are computed in f32, the bias is added
/// there, and the result is rounded once, to nearest even. f64 computes in f64.
pub trait Element: Storage<Acc: Compute> + bytemuck::Pod {
    /// The type as ONNX names it.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f64 {
    const DTYPE: DType = DType::F64;
}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}

/// A type that sums are computed in: `f32` or `f64`.
pub trait Compute: Real + bytemuck::Pod {
    #[doc(hidden)]
    fn is_finite_value(self) -> bool;
}

/// Whether all values are finite. It looks at many of them before it decides, because a decision
/// after each one keeps the compiler from using vectors.
pub(crate) fn all_finite<A: Compute>(values: &[A]) -> bool {
    values.chunks(1024).all(|values| values.iter().fold(true, |all, value| all & value.is_finite_value()))
}

impl Compute for f32 {
    fn is_finite_value(self) -> bool {
        self.is_finite()
    }
}

impl Compute for f64 {
    fn is_finite_value(self) -> bool {
        self.is_finite()
    }
}
