//! The shapes of a node's outputs, from those of its inputs.
//!
//! All sizes are numbers. Besides shapes, small tensors of numbers are computed, because models
//! compute shapes at run time, as in `Reshape(x, Concat(Gather(Shape(x), 0), -1))`.
//!
//! An operator is a line in [`outputs`], or a name in one of its two lists. Its rule is in
//! [`windows`] (convolutions, pools, images), in [`layout`] (what moves or joins elements) or in
//! [`numbers`] (what makes and computes shapes).

mod call;
mod fact;
mod layout;
mod numbers;
mod windows;

use super::is_onnx_domain;
use super::proto::DataType;
pub(super) use call::Call;
pub(super) use fact::{Fact, Known, Unknown, of_tensor};
pub(super) use windows::geometry;

/// Operators whose output has the shape of their first input.
const SAME_SHAPE: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BatchNormalization",
    "BitwiseNot",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumSum",
    "DequantizeLinear",
    "Dropout",
    "DynamicQuantizeLinear",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Mish",
    "Neg",
    "Not",
    "PRelu",
    "QuantizeLinear",
    "RMSNormalization",
    "Reciprocal",
    "Relu",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
];

/// Operators whose output has the shape that their inputs have together.
const BROADCAST: &[&str] = &[
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
];

/// The outputs of a node, as many as are inferred.
///
/// # Errors
/// The reason why there are none.
pub(super) fn outputs(call: &Call<'_>) -> Known<Vec<Fact>> {
    let op = match (call.node.domain.as_str(), call.node.op_type.as_str()) {
        ("com.microsoft", "FusedConv") => "Conv",
        (domain, op) if is_onnx_domain(domain) => op,
        _ => "",
    };
    let one = match op {
        "Dropout" => return same(call).map(|fact| vec![fact.clone(), fact]),
        _ if SAME_SHAPE.contains(&op) => same(call),
        _ if BROADCAST.contains(&op) => broadcast(call),
        "Conv" | "ConvTranspose" => windows::convolution(call, op, [0, 1]),
        "ConvInteger" => windows::convolution(call, "Conv", [0, 1]),
        "QLinearConv" => windows::convolution(call, "Conv", [0, 3]),
        "MaxPool" => return windows::pool(call).map(|fact| vec![fact.clone(), fact]),
        "AveragePool" | "LpPool" => windows::pool(call),
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => windows::global_pool(call),
        "Resize" | "Upsample" => windows::resize(call),
        "DepthToSpace" | "SpaceToDepth" => windows::blocks(call),
        "GridSample" => windows::grid_sample(call),
        "GRU" | "LSTM" | "RNN" => return windows::recurrent(call),
        "Concat" => layout::concat(call),
        "Split" => return layout::split(call),
        "Slice" => layout::slice(call),
        "Pad" => layout::pad(call),
        "Reshape" => layout::reshape(call),
        "Flatten" => layout::flatten(call),
        "Squeeze" => layout::squeeze(call),
        "Unsqueeze" => layout::unsqueeze(call),
        "Transpose" => layout::transpose(call),
        "Expand" => layout::expand(call),
        "Tile" => layout::tile(call),
        "Gather" => layout::gather(call),
        "Gemm" => layout::gemm(call),
        "Einsum" => layout::einsum(call),
        "MatMul" => layout::matmul(call),
        "ArgMax" | "ArgMin" => layout::reduce(call, Some(vec![call.int("axis", 0)])),
        _ if op.starts_with("Reduce") => layout::reduce(call, call.list("axes", 1)?),
        "Constant" => numbers::constant(call),
        "ConstantOfShape" => numbers::constant_of_shape(call),
        "Range" => numbers::range(call),
        "Shape" => numbers::shape(call),
        "Size" => numbers::size(call),
        _ => Err(call.open("these tools do not infer shapes of this operator")),
    };
    Ok(vec![one?])
}

fn same(call: &Call<'_>) -> Known {
    let input = call.input(0)?;
    let data_type = match call.node.op_type.as_str() {
        "Cast" => i32::try_from(call.int("to", 0)).unwrap_or_default(),
        "CastLike" | "DequantizeLinear" => call.input(1)?.data_type,
        "DynamicQuantizeLinear" | "QuantizeLinear" => 0,
        _ => input.data_type,
    };
    let fact = Fact { data_type, dims: input.dims.clone(), numbers: None };
    Ok(fact.with(input.numbers.as_ref().and_then(|numbers| numbers.unary(&call.node.op_type))))
}

fn broadcast(call: &Call<'_>) -> Known {
    let op = call.node.op_type.as_str();
    let first = call.input(0)?;
    // Before opset 7, the second input is stretched to the first, along an axis of its own.
    if call.opset < 7 && call.attribute("broadcast").is_some() {
        return Ok(Fact { numbers: None, ..first.clone() });
    }
    let mut dims = first.dims.clone();
    let mut inputs = vec![first];
    for index in 1..call.inputs.len() {
        inputs.push(call.input(index)?);
        dims = call.broadcast(&dims, &call.input(index)?.dims)?;
    }
    let data_type = match op {
        "And" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Or" | "Xor" => DataType::Bool as i32,
        // The first input of Where is the condition.
        _ => inputs[usize::from(op == "Where" && inputs.len() > 1)].data_type,
    };
    Ok(call.fact(data_type, dims.into_iter().map(Some))?.with(numbers::broadcast(op, &inputs)))
}
