//! ONNX test folders and models that tests write.

#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::fs;
use std::path::Path;

use convoke_tools::onnx::proto::{
    AttributeProto, AttributeType, DataType, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use prost::Message;

/// A tensor of floats.
pub(crate) fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: DataType::Float.into(),
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// The same tensor in another element type.
pub(crate) fn cast(tensor: &TensorProto, to: DataType) -> TensorProto {
    let mut cast = TensorProto { data_type: to.into(), float_data: Vec::new(), ..tensor.clone() };
    for &value in &tensor.float_data {
        match to {
            DataType::Float => cast.float_data.push(value),
            DataType::Double => cast.double_data.push(value.into()),
            DataType::Float16 => cast.int32_data.push(convoke::f16::from_f32(value).to_bits().into()),
            DataType::Bfloat16 => cast.int32_data.push(convoke::bf16::from_f32(value).to_bits().into()),
            _ => unreachable!("not a type of the operators"),
        }
    }
    cast
}

/// A list of integers.
pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: values.to_vec(),
        r#type: AttributeType::Ints.into(),
        ..AttributeProto::default()
    }
}

/// An attribute of one integer.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: value, r#type: AttributeType::Int.into(), ..AttributeProto::default() }
}

/// A constant vector of integers.
pub(crate) fn vector(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64.into(),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// A test of one node.
pub(crate) struct Folder {
    pub(crate) op_type: &'static str,
    pub(crate) opset: i64,
    pub(crate) attributes: Vec<AttributeProto>,
    pub(crate) inputs: Vec<TensorProto>,
    /// How many inputs, from the first on, come from `input_*.pb`. The others are initializers.
    pub(crate) fed: usize,
    pub(crate) output: TensorProto,
}

impl Folder {
    /// Conv of 1, 2, 3, 4 with the kernel 1, 10 at stride 1, plus 0.5.
    pub(crate) fn conv() -> Self {
        Self {
            op_type: "Conv",
            opset: 22,
            attributes: vec![ints("pads", &[0, 1]), ints("kernel_shape", &[2])],
            inputs: vec![
                floats("x", &[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]),
                floats("w", &[1, 1, 2], &[1.0, 10.0]),
                floats("b", &[1], &[0.5]),
            ],
            fed: 3,
            output: floats("y", &[1, 1, 4], &[21.5, 32.5, 43.5, 4.5]),
        }
    }

    /// The same test in another element type, and with the weights as initializers.
    pub(crate) fn cast(mut self, to: DataType) -> Self {
        self.inputs.iter_mut().chain([&mut self.output]).for_each(|tensor| *tensor = cast(tensor, to));
        self.fed = 1;
        self
    }

    /// The bytes of `model.onnx`.
    pub(crate) fn model(&self) -> Vec<u8> {
        let names = || self.inputs.iter().map(|t| t.name.clone());
        let node = NodeProto {
            input: names().collect(),
            output: vec![self.output.name.clone()],
            op_type: self.op_type.into(),
            attribute: self.attributes.clone(),
            ..NodeProto::default()
        };
        let graph = GraphProto {
            node: vec![node],
            initializer: self.inputs[self.fed..].to_vec(),
            input: names().map(|name| ValueInfoProto { name, r#type: None }).collect(),
            output: vec![ValueInfoProto { name: self.output.name.clone(), r#type: None }],
            value_info: Vec::new(),
        };
        let opset = OperatorSetIdProto { domain: String::new(), version: self.opset };
        ModelProto { ir_version: 10, graph: Some(graph), opset_import: vec![opset], functions: Vec::new() }
            .encode_to_vec()
    }

    /// Writes the folder.
    pub(crate) fn write(&self, folder: &Path) {
        let set = folder.join("test_data_set_0");
        fs::create_dir_all(&set).unwrap();
        fs::write(folder.join("model.onnx"), self.model()).unwrap();
        for (index, input) in self.inputs[..self.fed].iter().enumerate() {
            fs::write(set.join(format!("input_{index}.pb")), input.encode_to_vec()).unwrap();
        }
        fs::write(set.join("output_0.pb"), self.output.encode_to_vec()).unwrap();
    }
}

/// A value of type float whose sizes are numbers or names.
pub(crate) fn value(name: &str, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| match text.parse() {
        Ok(size) => DimensionProto { dim_value: Some(size), dim_param: None },
        Err(_) => DimensionProto { dim_value: None, dim_param: Some((*text).to_owned()) },
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: DataType::Float.into(), shape });
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type }) }
}

/// A node of one of ONNX's own operators. Its name is that of its output.
pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str, attributes: &[AttributeProto]) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.into()],
        name: output.into(),
        op_type: op_type.into(),
        attribute: attributes.to_vec(),
        ..NodeProto::default()
    }
}

/// Weights with only a shape, because their values are in another file.
pub(crate) fn external(name: &str, dims: &[i64]) -> TensorProto {
    TensorProto { data_location: 1, ..floats(name, dims, &[]) }
}

/// Two convolutions with an activation between them, then an upsampling. The name of the batch
/// dimension is `batch`.
pub(crate) fn network() -> GraphProto {
    GraphProto {
        node: vec![
            node("Conv", &["x", "w1"], "conv1", &[ints("pads", &[1, 1, 1, 1])]),
            node("Relu", &["conv1"], "relu", &[]),
            node("Conv", &["relu", "w2", "b2"], "conv2", &[ints("pads", &[1, 1, 1, 1])]),
            node("ConvTranspose", &["conv2", "w3"], "up", &[ints("strides", &[2, 2])]),
        ],
        initializer: vec![
            external("w1", &[8, 4, 3, 3]),
            external("w2", &[8, 8, 3, 3]),
            external("b2", &[8]),
            external("w3", &[8, 2, 2, 2]),
        ],
        input: vec![value("x", &["batch", "4", "10", "12"])],
        output: vec![value("up", &["batch", "2", "20", "24"])],
        value_info: vec![value("relu", &["batch", "8", "10", "12"]), value("conv2", &["batch", "8", "10", "12"])],
    }
}

/// The bytes of a model.
pub(crate) fn model(graph: GraphProto) -> Vec<u8> {
    let opset = OperatorSetIdProto { domain: String::new(), version: 22 };
    ModelProto { ir_version: 10, graph: Some(graph), opset_import: vec![opset], functions: Vec::new() }.encode_to_vec()
}
