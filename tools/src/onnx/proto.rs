//! The messages of ONNX's `onnx.proto` that are needed for test folders and for the shapes of a
//! graph, with the field numbers of that file. The decoder skips fields that are not listed, so
//! newer models can be read too.

/// A model: operator sets, and the graph.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The computation.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets that the nodes refer to.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Operators that the model defines itself.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// An operator that a model defines by other operators.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FunctionProto {
    /// The nodes that it stands for.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
}

/// One operator set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OperatorSetIdProto {
    /// Empty or `ai.onnx` for ONNX's own operators.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The opset's version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A graph: nodes, constants, inputs and outputs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphProto {
    /// The operators, in order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Constants, by name.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs. Old models list the initializers here too.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types of values between nodes, as far as the writer of the model noted them.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
}

/// Name and type of a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueInfoProto {
    /// The name that nodes use.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type, if it is known.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// The type of a value. Only tensors are supported, not ONNX's other kinds of types.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Element type and shape.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorTypeProto {
    /// The element type.
    #[prost(enumeration = "DataType", tag = "1")]
    pub elem_type: i32,
    /// The shape; absent if not even the rank is known.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorShapeProto {
    /// One entry for each axis.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// One axis: a number, a name, or neither.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DimensionProto {
    /// The size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// A name for a size that is not fixed.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// One operator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeProto {
    /// Names of the inputs. The name is empty for an optional input that is absent.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name; often empty.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator's name.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator set's domain.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// One attribute. `type` says which field holds the value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeProto {
    /// The attribute's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// FLOAT.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// INT.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// STRING.
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    /// TENSOR.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// GRAPH: a branch or the body of a loop.
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    /// FLOATS.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// INTS.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Which kind of value.
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
}

/// `AttributeProto.AttributeType`, as far as the two operators use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    /// Not given, as in files of the format's first version.
    Undefined = 0,
    /// In `f`.
    Float = 1,
    /// In `i`.
    Int = 2,
    /// In `s`.
    String = 3,
    /// In `floats`.
    Floats = 6,
    /// In `ints`.
    Ints = 7,
}

/// A tensor. `data_type` says which data field is used, unless `raw_data` is not empty.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorProto {
    /// The shape.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// The element type.
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    /// Elements of FLOAT.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of INT32 and BOOL. Of FLOAT16 and BFLOAT16 the bits, in the low half.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements of INT64.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Name of the value.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements of any type, little endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
    /// Elements of DOUBLE.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// 1 if the elements are in another file. Such files are not read.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// `TensorProto.DataType`, as far as the two operators accept it, or shapes are computed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum DataType {
    /// Not given.
    Undefined = 0,
    /// `f32`.
    Float = 1,
    /// `u8`.
    Uint8 = 2,
    /// `i8`.
    Int8 = 3,
    /// `u16`.
    Uint16 = 4,
    /// `i16`.
    Int16 = 5,
    /// `i32`.
    Int32 = 6,
    /// `i64`.
    Int64 = 7,
    /// A truth value.
    Bool = 9,
    /// `f16`.
    Float16 = 10,
    /// `f64`.
    Double = 11,
    /// `u32`.
    Uint32 = 12,
    /// `u64`.
    Uint64 = 13,
    /// `bf16`.
    Bfloat16 = 16,
}
