//! The element types of the two operators.

use core::fmt;
use core::str::FromStr;

use super::op::Op;
use crate::error::{Error, bail};

/// The element type of X, W, B and Y.
///
/// ```
/// use convoke::DType;
/// assert_eq!(DType::BF16.to_string(), "bfloat16");
/// assert_eq!(DType::from_onnx(1)?, DType::F32);
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 half precision, ONNX `float16`. Storage only: sums are kept in f32.
    F16,
    /// The upper half of an f32, ONNX `bfloat16`. Storage only: sums are kept in f32.
    BF16,
    /// IEEE 754 single precision, ONNX `float`.
    F32,
    /// IEEE 754 double precision, ONNX `double`.
    F64,
}

impl DType {
    /// Every type, in the order of declaration.
    pub const ALL: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

    /// The type's name in ONNX.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float",
            DType::F64 => "double",
        }
    }

    /// Bytes per element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    /// The first opset whose Conv and ConvTranspose take the type: 22 for bfloat16, 1 for the
    /// others.
    #[must_use]
    pub fn allowed_since(self) -> u32 {
        match self {
            DType::BF16 => 22,
            DType::F16 | DType::F32 | DType::F64 => 1,
        }
    }

    /// The type with this number in ONNX's `TensorProto.DataType`: float 1, float16 10, double
    /// 11, bfloat16 16.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidType`](crate::ErrorKind::InvalidType) for any other number: neither
    /// operator takes other types.
    pub fn from_onnx(code: i32) -> Result<Self, Error> {
        match code {
            1 => Ok(DType::F32),
            10 => Ok(DType::F16),
            11 => Ok(DType::F64),
            16 => Ok(DType::BF16),
            _ => bail!(
                InvalidType,
                "Conv and ConvTranspose take float16, bfloat16, float and double, not ONNX element type {code}"
            ),
        }
    }

    /// The operators' `check_dtype`: whether the opset allows this type.
    pub(super) fn check(self, op: Op, opset: u32) -> Result<(), Error> {
        let since = self.allowed_since();
        if opset < since {
            bail!(InvalidType, "{op}: element type {self} needs opset {since}, the operator is of opset {opset}");
        }
        Ok(())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// The type of a name in ONNX, case-sensitive.
    fn from_str(name: &str) -> Result<Self, Error> {
        match Self::ALL.into_iter().find(|dtype| dtype.name() == name) {
            Some(dtype) => Ok(dtype),
            None => bail!(InvalidType, "element type {name}: it must be float16, bfloat16, float or double"),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
