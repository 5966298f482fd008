//! Models of the form that a file has, with tract's convolutions and with convoke's.

use std::sync::Weak;

use convoke_examples::{difference, uniform};
use convoke_tract::{Replaced, with_convoke};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto, type_proto,
};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::TDim;
use tract_onnx::tract_core::ops::konst::Const;

/// A graph that is made from front to back.
#[derive(Default)]
struct Network {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

/// An attribute of a node.
enum Value<'a> {
    Int(i64),
    Ints(&'a [i64]),
    String(&'a str),
}

impl Network {
    /// A constant of random numbers, such that sums of `terms` products keep their order of
    /// magnitude.
    fn constant(&mut self, shape: &[usize], terms: usize) -> String {
        let values: Vec<f32> =
            uniform(shape.iter().product(), (3.0 / terms as f64).sqrt(), self.constants.len() as u64);
        let name = format!("k{}", self.constants.len());
        self.constants.push(TensorProto {
            name: name.clone(),
            dims: shape.iter().map(|size| *size as i64).collect(),
            data_type: DataType::Float as i32,
            float_data: values,
            ..Default::default()
        });
        name
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Value<'_>)]) -> String {
        let output = format!("v{}", self.nodes.len());
        let attribute = |(name, value): &(&str, Value<'_>)| {
            let mut attribute = AttributeProto { name: (*name).to_owned(), ..Default::default() };
            match value {
                Value::Int(value) => (attribute.r#type, attribute.i) = (AttributeType::Int as i32, *value),
                Value::Ints(values) => {
                    (attribute.r#type, attribute.ints) = (AttributeType::Ints as i32, values.to_vec())
                }
                Value::String(text) => {
                    (attribute.r#type, attribute.s) = (AttributeType::String as i32, text.as_bytes().to_vec())
                }
            }
            attribute
        };
        self.nodes.push(NodeProto {
            name: output.clone(),
            op_type: op.to_owned(),
            input: inputs.iter().map(|input| (*input).to_owned()).collect(),
            output: vec![output.clone()],
            attribute: attributes.iter().map(attribute).collect(),
            ..Default::default()
        });
        output
    }

    /// A Conv of W's shape, with a bias if it is asked for.
    fn conv(&mut self, x: &str, w: [usize; 4], has_bias: bool, attributes: &[(&str, Value<'_>)]) -> String {
        let kernel = self.constant(&w, w[1] * w[2] * w[3]);
        let bias = has_bias.then(|| self.constant(&w[..1], 3));
        let inputs: Vec<_> = [x, &kernel].into_iter().chain(bias.as_deref()).collect();
        self.node("Conv", &inputs, attributes)
    }

    /// The model as tract loads it: X is of 8 channels, with a free number of images, and the
    /// output is that of the last node.
    fn load(self, x: [&str; 4]) -> TractResult<TypedModel> {
        let dimension = |text: &&str| tensor_shape_proto::Dimension {
            value: Some(match text.parse() {
                Ok(size) => tensor_shape_proto::dimension::Value::DimValue(size),
                Err(_) => tensor_shape_proto::dimension::Value::DimParam((*text).to_owned()),
            }),
            ..Default::default()
        };
        let value = |name: &str, shape: Option<TensorShapeProto>| {
            let tensor = type_proto::Tensor { elem_type: DataType::Float as i32, shape };
            let kind = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() };
            ValueInfoProto { name: name.to_owned(), r#type: Some(kind), ..Default::default() }
        };
        let last = self.nodes.last().expect("there are nodes").name.clone();
        let graph = GraphProto {
            input: vec![value("x", Some(TensorShapeProto { dim: x.iter().map(dimension).collect() }))],
            output: vec![value(&last, None)],
            node: self.nodes,
            initializer: self.constants,
            ..Default::default()
        };
        let opset = OperatorSetIdProto { version: 17, ..Default::default() };
        let proto = ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() };
        tract_onnx::onnx().model_for_proto_model(&proto)?.into_typed()
    }
}

/// A network of all kinds of layers: dense, strided and padded as TensorFlow does, depthwise,
/// pointwise without a bias, with a residual, transposed with groups.
fn network() -> Network {
    let mut net = Network::default();
    let x = net.conv("x", [16, 8, 3, 3], true, &[("pads", Value::Ints(&[1; 4]))]);
    let x = net.node("Relu", &[&x], &[]);
    let same =
        [("auto_pad", Value::String("SAME_UPPER")), ("group", Value::Int(16)), ("strides", Value::Ints(&[2, 2]))];
    let x = net.conv(&x, [16, 1, 3, 3], true, &same);
    let y = net.conv(&x, [16, 16, 1, 1], false, &[]);
    let x = net.node("Add", &[&x, &y], &[]);
    let pads = [("pads", Value::Ints(&[0, 2, 1, 3])), ("dilations", Value::Ints(&[1, 2])), ("group", Value::Int(2))];
    let x = net.conv(&x, [12, 8, 2, 3], true, &pads);
    let (kernel, bias) = (net.constant(&[12, 4, 3, 3], 27), net.constant(&[8], 3));
    let up = [
        ("strides", Value::Ints(&[2, 2])),
        ("pads", Value::Ints(&[1; 4])),
        ("output_padding", Value::Ints(&[1, 0])),
        ("group", Value::Int(2)),
    ];
    net.node("ConvTranspose", &[&x, &kernel, &bias], &up);
    net
}

/// The outputs of a model for random images.
fn run(model: TypedModel, shape: [usize; 4]) -> TractResult<Tensor> {
    let x = Tensor::from_shape(&shape, &uniform::<f32>(shape.iter().product(), 1.0, 9))?;
    let outputs = model.into_optimized()?.into_runnable()?.run(tvec!(x.into_tvalue()))?;
    Ok(outputs[0].clone().into_tensor())
}

fn assert_same(got: &Tensor, wanted: &Tensor) -> TractResult<()> {
    assert_eq!(got.shape(), wanted.shape());
    let (got, wanted) = (got.try_as_plain_ram()?, wanted.try_as_plain_ram()?);
    let difference = difference(got.as_slice()?, wanted.as_slice()?);
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[test]
fn a_model_gives_the_same_with_all_its_convolutions_replaced() -> TractResult<()> {
    let model = network().load(["2", "8", "20", "15"])?;
    let (replaced, report) = with_convoke(model.clone())?;
    assert_eq!((report.replaced.len(), report.left.len()), (5, 0), "{report}");
    assert_eq!(report.to_string(), "5 of 5 convolutions run on convoke");
    let ours = replaced.nodes.iter().filter(|node| node.op.name() == "ConvokeConvolution").count();
    assert_eq!(ours, 5);
    assert_same(&run(replaced, [2, 8, 20, 15])?, &run(model, [2, 8, 20, 15])?)
}

/// A layer that is computed in another type, as a model of that type or with casts has it.
fn cast_network(element: DataType) -> Network {
    let mut net = Network::default();
    let (kernel, bias) = (net.constant(&[6, 8, 3, 3], 72), net.constant(&[6], 3));
    let to = |element: DataType| [("to", Value::Int(element as i64))];
    let [x, kernel, bias] = ["x", &kernel, &bias].map(|name| net.node("Cast", &[name], &to(element)));
    let y = net.node("Conv", &[&x, &kernel, &bias], &[("pads", Value::Ints(&[1; 4]))]);
    net.node("Cast", &[&y], &to(DataType::Float));
    net
}

#[test]
fn layers_of_other_types_are_replaced() -> TractResult<()> {
    let shape = ["2", "8", "20", "15"];
    let wanted = run(cast_network(DataType::Float).load(shape)?, [2, 8, 20, 15])?;
    for (element, datum_type, tolerance) in
        [(DataType::Double, DatumType::F64, 1e-6), (DataType::Float16, DatumType::F16, 1e-2)]
    {
        let (replaced, report) = with_convoke(cast_network(element).load(shape)?)?;
        assert_eq!((report.replaced.len(), report.left.len()), (1, 0), "{datum_type:?}: {report}");
        let layer = replaced.nodes.iter().find(|node| node.op.name() == "ConvokeConvolution").expect("it is there");
        assert_eq!(layer.outputs[0].fact.datum_type, datum_type);
        let got = run(replaced, [2, 8, 20, 15])?;
        let (got, wanted) = (got.try_as_plain_ram()?, wanted.try_as_plain_ram()?);
        let difference = difference(got.as_slice()?, wanted.as_slice()?);
        assert!(difference < tolerance, "{datum_type:?}: {difference}");
    }
    Ok(())
}

#[test]
fn the_number_of_images_may_be_free() -> TractResult<()> {
    let model = network().load(["n", "8", "20", "15"])?;
    let (replaced, report) = with_convoke(model.clone())?;
    assert_eq!(report.replaced.len(), 5, "{report}");
    for images in [1, 3] {
        let shape = [images, 8, 20, 15];
        assert_same(&run(replaced.clone(), shape)?, &run(model.clone(), shape)?)?;
    }
    Ok(())
}

#[test]
fn a_runnable_model_is_shared_by_threads() -> TractResult<()> {
    let (model, _) = with_convoke(network().load(["1", "8", "20", "15"])?)?;
    let model = model.into_optimized()?.into_runnable()?;
    let x = Tensor::from_shape(&[1, 8, 20, 15], &uniform::<f32>(8 * 300, 1.0, 9))?;
    let output = |x: &Tensor| model.run(tvec!(x.clone().into_tvalue())).map(|outputs| outputs[0].clone().into_tensor());
    let wanted = output(&x)?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(output(&x).unwrap(), wanted)));
        }
    });
    Ok(())
}

#[test]
fn weights_are_freed_once_they_are_packed() -> TractResult<()> {
    let model = network().load(["1", "8", "20", "15"])?;
    let constants = model.nodes.iter().filter_map(|node| Some(node.op_as::<Const>()?.val()));
    // Not those of one number: Relu's zero is used when the model runs.
    let weights: Vec<Weak<Tensor>> = constants.filter(|tensor| tensor.len() > 1).map(Arc::downgrade).collect();
    assert_eq!(weights.len(), 9, "five kernels, four biases");
    let (model, report) = with_convoke(model)?;
    assert_eq!(report.replaced.len(), 5, "{report}");
    let model = model.into_optimized()?.into_runnable()?;
    let kept: Vec<_> = weights.iter().filter_map(Weak::upgrade).collect();
    assert!(kept.is_empty(), "{kept:?}");
    let x = Tensor::zero::<f32>(&[1, 8, 20, 15])?;
    model.run(tvec!(x.into_tvalue()))?;
    Ok(())
}

/// The reasons for the nodes that are left.
fn reasons(report: &Replaced) -> Vec<&str> {
    report.left.iter().map(|(_, reason)| reason.as_str()).collect()
}

#[test]
fn what_cannot_be_replaced_is_left_with_a_reason() -> TractResult<()> {
    let mut net = Network::default();
    let kernel = net.node("Identity", &["x"], &[]);
    net.node("Conv", &["x", &kernel], &[]);
    let model = net.load(["8", "8", "3", "3"])?;
    let (left, report) = with_convoke(model.clone())?;
    assert_eq!(reasons(&report), ["its weights are not constant"], "{report}");
    assert_same(&run(left, [8, 8, 3, 3])?, &run(model, [8, 8, 3, 3])?)?;

    let model = network().load(["1", "8", "h", "15"])?;
    let (left, report) = with_convoke(model.clone())?;
    assert!(
        report.replaced.is_empty() && reasons(&report)[0].starts_with("the size of its images is not known"),
        "{report}"
    );
    // With the size set, it can.
    let height = model.symbols.sym("h");
    let model = model.set_symbols(&[(height, TDim::Val(20))].into())?;
    let (replaced, report) = with_convoke(model)?;
    assert_eq!(report.replaced.len(), 5, "{report}");
    assert_same(&run(replaced, [1, 8, 20, 15])?, &run(left, [1, 8, 20, 15])?)
}
