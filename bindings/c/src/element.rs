//! The element types, as values of the interface and as types.

use convoke::{Element, PackedWeights, bf16, f16};

use crate::status::{Result, fail};

/// The element type of X, W, bias, residual and Y: the numbers of ONNX's `TensorProto.DataType`.
///
/// The 16-bit types are only stored: sums are computed in float, the bias is added there, and the
/// result is rounded once, to nearest even. Integers are for convoke_plan_create_quantised.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// ONNX float: C's float.
    Float = 1,
    /// ONNX uint8: C's uint8_t.
    Uint8 = 2,
    /// ONNX int8: C's int8_t.
    Int8 = 3,
    /// ONNX int32: C's int32_t.
    Int32 = 6,
    /// ONNX float16: the bits of an IEEE 754 half, as uint16_t.
    Float16 = 10,
    /// ONNX double: C's double.
    Double = 11,
    /// ONNX bfloat16: the upper half of a float, as uint16_t. It needs opset 22.
    Bfloat16 = 16,
}

impl DType {
    /// `name` is that of the argument.
    pub(crate) fn of(name: &str, number: u32) -> Result<Self> {
        use DType::{Bfloat16, Double, Float, Float16, Int8, Int32, Uint8};
        let all = [Float, Uint8, Int8, Int32, Float16, Double, Bfloat16];
        match all.into_iter().find(|dtype| *dtype as u32 == number) {
            Some(dtype) => Ok(dtype),
            None => fail!(InvalidArgument, "{name}: {number} is not a convoke_dtype"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Int32 => "int32",
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

/// Evaluates an expression with the type of a number, which must be one of some [`DType`]s. The name is that of the
/// argument.
macro_rules! with_type {
    ($name:expr, $number:expr, [$($dtype:ident => $type:ty),+], $t:ident => $value:expr) => {
        match $crate::element::DType::of($name, $number)? {
            $($crate::element::DType::$dtype => {
                type $t = $type;
                $value
            })+
            other => $crate::status::fail!(
                InvalidArgument,
                "{}: {} is none of {}",
                $name,
                other.name(),
                [$($crate::element::DType::$dtype.name()),+].join(", ")
            ),
        }
    };
}
pub(crate) use with_type;
