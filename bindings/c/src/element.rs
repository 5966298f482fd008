//! The element types, as values of the interface and as types.

use convoke::{Element, PackedWeights, bf16, f16};

use crate::status::{Result, fail};

/// The element type of X, W, bias, residual and Y: the numbers of ONNX's `TensorProto.DataType`.
///
/// The 16-bit types are only stored: sums are computed in float, the bias is added there, and the
/// result is rounded once, to nearest even.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// ONNX float: C's float.
    Float = 1,
    /// ONNX float16: the bits of an IEEE 754 half, as uint16_t.
    Float16 = 10,
    /// ONNX double: C's double.
    Double = 11,
    /// ONNX bfloat16: the upper half of a float, as uint16_t. It needs opset 22.
    Bfloat16 = 16,
}

impl DType {
    pub(crate) fn of(number: u32) -> Result<Self> {
        let all = [Self::Float, Self::Float16, Self::Double, Self::Bfloat16];
        match all.into_iter().find(|dtype| *dtype as u32 == number) {
            Some(dtype) => Ok(dtype),
            None => fail!(InvalidArgument, "dtype: {number} is not a convoke_dtype"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Float16 => "float16",
            Self::Double => "double",
            Self::Bfloat16 => "bfloat16",
        }
    }
}

/// Packed weights of any element type.
pub(crate) enum AnyWeights {
    Float(PackedWeights<f32>),
    Float16(PackedWeights<f16>),
    Double(PackedWeights<f64>),
    Bfloat16(PackedWeights<bf16>),
}

/// An element type with its packed weights.
pub(crate) trait COf: Element {
    const DTYPE_IN_C: DType;

    fn erase(weights: PackedWeights<Self>) -> AnyWeights;

    /// None if they are of another type.
    fn of(weights: &AnyWeights) -> Option<&PackedWeights<Self>>;
}

macro_rules! elements {
    ($($element:ty => $name:ident),*) => {
        $(impl COf for $element {
            const DTYPE_IN_C: DType = DType::$name;

            fn erase(weights: PackedWeights<Self>) -> AnyWeights {
                AnyWeights::$name(weights)
            }

            fn of(weights: &AnyWeights) -> Option<&PackedWeights<Self>> {
                match weights {
                    AnyWeights::$name(weights) => Some(weights),
                    _ => None,
                }
            }
        })*

        impl AnyWeights {
            /// The name of their element type.
            pub(crate) fn dtype(&self) -> DType {
                match self {
                    $(Self::$name(_) => DType::$name),*
                }
            }
        }
    };
}

elements!(f32 => Float, f16 => Float16, f64 => Double, bf16 => Bfloat16);

/// Calls a generic function for a [`DType`].
macro_rules! with_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            $crate::element::DType::Float => $function::<f32>($($argument),*),
            $crate::element::DType::Float16 => $function::<convoke::f16>($($argument),*),
            $crate::element::DType::Double => $function::<f64>($($argument),*),
            $crate::element::DType::Bfloat16 => $function::<convoke::bf16>($($argument),*),
        }
    };
}
pub(crate) use with_type;
