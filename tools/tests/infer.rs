//! Shapes that a model does not state. Each test has one or a few nodes, and a Conv behind them whose
//! X shows what was inferred.

mod common;

use std::collections::BTreeMap;

use common::{external, floats, int, ints, model, network, node, value, vector};
use convoke_tools::onnx::graph::Graph;
use convoke_tools::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto,
};
use prost::Message;

/// Some nodes between the input `x` and a Conv of `y`, which adds an axis of images and one of
/// channels to y's own.
struct Chain {
    x: Vec<&'static str>,
    opset: i64,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Chain {
    fn of(x: &[&'static str], nodes: &[NodeProto]) -> Self {
        Self { x: x.to_vec(), opset: 22, nodes: nodes.to_vec(), constants: Vec::new() }
    }

    /// A single node from x to y.
    fn one(x: &[&'static str], op_type: &str, inputs: &[&str], attributes: &[AttributeProto]) -> Self {
        Self::of(x, &[node(op_type, inputs, "y", attributes)])
    }

    fn with(mut self, constants: &[TensorProto]) -> Self {
        self.constants.extend_from_slice(constants);
        self
    }

    fn opset(self, opset: i64) -> Self {
        Self { opset, ..self }
    }

    fn graph(&self, rank: usize) -> GraphProto {
        let mut nodes = self.nodes.clone();
        nodes.push(node("Unsqueeze", &["y", "two"], "wide", &[]));
        if self.opset < 13 {
            nodes.last_mut().unwrap().attribute = vec![ints("axes", &[0, 1])];
            nodes.last_mut().unwrap().input.pop();
        }
        nodes.push(node("Conv", &["wide", "w"], "conv", &[]));
        let mut constants = self.constants.clone();
        constants.extend([vector("two", &[0, 1]), external("w", &[&[1, 1][..], &vec![1; rank]].concat())]);
        let input = vec![value("x", &self.x)];
        GraphProto { node: nodes, initializer: constants, input, ..GraphProto::default() }
    }

    fn read(&self, rank: usize, sizes: &[(&str, i64)]) -> Result<Vec<usize>, String> {
        let mut whole = ModelProto::decode(&model(self.graph(rank))[..]).unwrap();
        whole.opset_import = vec![OperatorSetIdProto { domain: String::new(), version: self.opset }];
        let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let (name, conv) = Graph::decode(&whole.encode_to_vec(), sizes).unwrap().into_nodes().pop().unwrap();
        assert_eq!(name, "conv");
        conv.map(|conv| conv.geometry.input_shape()[2..].to_vec()).map_err(|error| format!("{error:#}"))
    }

    /// Asserts the shape of y.
    #[track_caller]
    fn gives(&self, shape: &[usize]) {
        assert_eq!(self.read(shape.len(), &[]).as_deref(), Ok(shape));
    }

    /// Asserts that y's shape is not known, with these words in the reason.
    #[track_caller]
    fn fails(&self, words: &[&str]) {
        let error = self.read(2, &[]).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { name: name.into(), s: value.into(), r#type: 3, ..AttributeProto::default() }
}

#[test]
fn elements_alone_keep_the_shape() {
    for op in
        ["Relu", "Clip", "Sigmoid", "BatchNormalization", "LRN", "Softmax", "Cast", "InstanceNormalization", "PRelu"]
    {
        Chain::one(&["2", "3", "4"], op, &["x"], &[]).gives(&[2, 3, 4]);
    }
}

#[test]
fn inputs_are_broadcast() {
    let b = [floats("b", &[4, 1], &[0.0; 4])];
    for op in ["Add", "Mul", "Pow", "Max", "Where"] {
        let inputs: &[&str] = if op == "Where" { &["x", "b", "x"] } else { &["x", "b"] };
        Chain::one(&["2", "1", "5"], op, inputs, &[]).with(&b).gives(&[2, 4, 5]);
    }
    Chain::one(&["2", "3"], "Add", &["x", "b"], &[]).with(&b).fails(&["node \"y\" (Add)", "[2, 3]", "[4, 1]"]);
    // Before opset 7, the second input is stretched to the first.
    let old = [int("broadcast", 1), int("axis", 0)];
    Chain::one(&["4", "7"], "Add", &["x", "b"], &old).with(&[floats("b", &[4], &[0.0; 4])]).opset(6).gives(&[4, 7]);
}

#[test]
fn pools_round_as_they_are_told() {
    let pool = |attributes: &[AttributeProto]| {
        let kernel = [ints("kernel_shape", &[3, 2]), ints("strides", &[2, 3])];
        Chain::one(&["1", "8", "10", "11"], "MaxPool", &["x"], &[&kernel[..], attributes].concat())
    };
    pool(&[]).gives(&[1, 8, 4, 4]);
    pool(&[int("ceil_mode", 1)]).gives(&[1, 8, 5, 4]);
    pool(&[ints("pads", &[1, 0, 1, 1])]).gives(&[1, 8, 5, 4]);
    pool(&[ints("dilations", &[2, 4])]).gives(&[1, 8, 3, 3]);
    pool(&[text("auto_pad", "SAME_UPPER")]).gives(&[1, 8, 5, 4]);
    pool(&[text("auto_pad", "VALID")]).gives(&[1, 8, 4, 4]);
    // With ceil_mode, a window that would begin in the padding at the end is left out.
    let late = [ints("kernel_shape", &[1]), ints("strides", &[2]), int("ceil_mode", 1)];
    Chain::one(&["1", "1", "4"], "AveragePool", &["x"], &late).gives(&[1, 1, 2]);
    Chain::one(&["1", "8", "10", "11"], "GlobalAveragePool", &["x"], &[]).gives(&[1, 8, 1, 1]);
    pool(&[ints("dilations", &[9, 9])]).fails(&["node \"y\" (MaxPool)", "out of range"]);
}

#[test]
fn sizes_change_by_scales_and_by_sizes() {
    let scales = [floats("s", &[4], &[1.0, 1.0, 2.0, 1.5])];
    let x: &[&str] = &["1", "2", "5", "7"];
    Chain::one(x, "Resize", &["x", "", "s"], &[]).with(&scales).gives(&[1, 2, 10, 10]);
    Chain::one(x, "Resize", &["x", "s"], &[]).with(&scales).opset(10).gives(&[1, 2, 10, 10]);
    Chain::one(x, "Upsample", &["x", "s"], &[]).with(&scales).opset(9).gives(&[1, 2, 10, 10]);
    let sizes = [vector("sizes", &[9, 4]), floats("none", &[0], &[])];
    let axes = ints("axes", &[2, 3]);
    Chain::one(x, "Resize", &["x", "none", "none", "sizes"], &[axes]).with(&sizes).gives(&[1, 2, 9, 4]);
    Chain::one(x, "DepthToSpace", &["x"], &[int("blocksize", 2)]).fails(&["DepthToSpace", "blocks of 2"]);
    Chain::one(&["1", "8", "5", "7"], "DepthToSpace", &["x"], &[int("blocksize", 2)]).gives(&[1, 2, 10, 14]);
    Chain::one(&["1", "8", "4", "6"], "SpaceToDepth", &["x"], &[int("blocksize", 2)]).gives(&[1, 32, 2, 3]);
}

#[test]
fn what_moves_elements() {
    let x: &[&str] = &["2", "3", "4"];
    let lists = [vector("shape", &[0, -1]), vector("pads", &[0, 1, 0, 2, 0, 0]), vector("times", &[1, 2, 3])];
    let one =
        |op: &str, inputs: &[&str], attributes: &[AttributeProto]| Chain::one(x, op, inputs, attributes).with(&lists);
    one("Reshape", &["x", "shape"], &[]).gives(&[2, 12]);
    one("Flatten", &["x"], &[int("axis", 2)]).gives(&[6, 4]);
    one("Transpose", &["x"], &[ints("perm", &[2, 0, 1])]).gives(&[4, 2, 3]);
    one("Transpose", &["x"], &[]).gives(&[4, 3, 2]);
    one("Pad", &["x", "pads"], &[]).gives(&[4, 4, 4]);
    one("Tile", &["x", "times"], &[]).gives(&[2, 6, 12]);
    one("Concat", &["x", "x"], &[int("axis", -1)]).gives(&[2, 3, 8]);
    one("ReduceMean", &["x"], &[ints("axes", &[1]), int("keepdims", 0)]).gives(&[2, 4]);
    one("ReduceMax", &["x"], &[ints("axes", &[-1])]).gives(&[2, 3, 1]);
    one("MatMul", &["x", "b"], &[]).with(&[floats("b", &[4, 5], &[0.0; 20])]).gives(&[2, 3, 5]);
    one("Expand", &["x", "b"], &[]).with(&[vector("b", &[5, 1, 3, 1])]).gives(&[5, 2, 3, 4]);
    one("Gather", &["x", "b"], &[int("axis", 1)]).with(&[vector("b", &[2, -1])]).gives(&[2, 2, 4]);
    one("Squeeze", &["x"], &[]).gives(&[2, 3, 4]);
    let gemm = [int("transA", 1), int("transB", 1)];
    Chain::one(&["4", "2"], "Gemm", &["x", "b"], &gemm).with(&[floats("b", &[5, 4], &[0.0; 20])]).gives(&[2, 5]);
    Chain::one(&["9", "1", "7"], "LSTM", &["x", "b", "b"], &[])
        .with(&[floats("b", &[2, 12, 3], &[0.0; 72])])
        .gives(&[9, 2, 1, 3]);
    one("Einsum", &["x"], &[text("equation", "abc -> ca")]).gives(&[4, 2]);
    one("Slice", &["x", "a", "b", "c", "d"], &[])
        .with(&[vector("a", &[-1, 1]), vector("b", &[i64::MIN, i64::MAX]), vector("c", &[2, 0]), vector("d", &[-2, 1])])
        .gives(&[1, 3, 2]);
    // A start before the first element is the first one, if there is any.
    let back = ["starts", "ends", "axes", "steps"].iter().zip([[-100, -100], [-200, -200], [0, 1], [-1, -1]]);
    let back: Vec<_> = back.map(|(name, list)| vector(name, &list)).collect();
    let reversed = [
        node("Slice", &["x", "starts", "ends", "axes", "steps"], "slice", &[]),
        node("Pad", &["slice", "one"], "y", &[]),
    ];
    Chain::of(&["0", "5"], &reversed).with(&back).with(&[vector("one", &[1, 0, 0, 0])]).gives(&[1, 1]);
    one("Slice", &["x"], &[ints("starts", &[1]), ints("ends", &[9]), ints("axes", &[2])]).opset(9).gives(&[2, 3, 3]);
    let mut split = node("Split", &["x"], "first", &[int("axis", 2), int("num_outputs", 3)]);
    split.output.extend(["y".to_owned(), "third".to_owned()]);
    Chain::of(x, &[split]).gives(&[2, 3, 2]);
    one("Reshape", &["x", "times"], &[]).fails(&["(Reshape)", "[2, 3, 4]", "[1, 2, 3]"]);
    one("Concat", &["x", "b"], &[int("axis", 0)]).with(&[floats("b", &[4, 5], &[0.0; 20])]).fails(&["(Concat)"]);
}

#[test]
fn shapes_that_the_model_computes() {
    // Reshape(x, Concat(Shape(x)[:1], [-1])), as exporters write it.
    let gather = [
        node("Shape", &["x"], "shape", &[]),
        node("Gather", &["shape", "zero"], "batch", &[int("axis", 0)]),
        node("Unsqueeze", &["batch", "axis"], "one", &[]),
        node("Concat", &["one", "rest"], "wanted", &[int("axis", 0)]),
        node("Reshape", &["x", "wanted"], "y", &[]),
    ];
    let zero = TensorProto { dims: Vec::new(), ..vector("zero", &[0]) };
    Chain::of(&["2", "3", "4"], &gather).with(&[zero, vector("axis", &[0]), vector("rest", &[-1])]).gives(&[2, 12]);
    // The pads of PyTorch: a list that is filled up with zeros, turned round and transposed.
    let pads = [
        node("ConstantOfShape", &["four"], "zeros", &[]),
        node("Concat", &["given", "zeros"], "all", &[int("axis", 0)]),
        node("Reshape", &["all", "pairs"], "table", &[]),
        node("Slice", &["table", "last", "least", "axis", "back"], "turned", &[]),
        node("Transpose", &["turned"], "ends", &[ints("perm", &[1, 0])]),
        node("Reshape", &["ends", "flat"], "list", &[]),
        node("Cast", &["list"], "pads", &[int("to", 7)]),
        node("Pad", &["x", "pads"], "y", &[]),
    ];
    let mut pads = pads.to_vec();
    pads[0].attribute = vec![AttributeProto { name: "value".into(), t: Some(vector("", &[0])), ..Default::default() }];
    let lists = [
        vector("four", &[4]),
        vector("given", &[1, 2]),
        vector("pairs", &[-1, 2]),
        vector("last", &[-1]),
        vector("least", &[i64::MIN + 1]),
        vector("axis", &[0]),
        vector("back", &[-1]),
        vector("flat", &[-1]),
    ];
    Chain::of(&["2", "3", "4"], &pads).with(&lists).gives(&[2, 3, 7]);
    // Sizes by arithmetic: (size * 3 / 2, rounded down).
    let sizes = [
        node("Shape", &["x"], "shape", &[]),
        node("Cast", &["shape"], "floats", &[int("to", 1)]),
        node("Mul", &["floats", "scale"], "scaled", &[]),
        node("Floor", &["scaled"], "whole", &[]),
        node("Cast", &["whole"], "sizes", &[int("to", 7)]),
        node("Resize", &["x", "", "", "sizes"], "y", &[]),
    ];
    let scale = floats("scale", &[1], &[1.5]);
    Chain::of(&["2", "3", "5"], &sizes).with(&[scale]).gives(&[3, 4, 7]);
}

#[test]
fn casts_do_what_their_target_says() {
    let resize = |scale: f32, to: i64| {
        let nodes = [
            node("Cast", &["s"], "there", &[int("to", to)]),
            node("Cast", &["there"], "back", &[int("to", 1)]),
            node("Resize", &["x", "", "back"], "y", &[]),
        ];
        Chain::of(&["1", "1", "4", "4"], &nodes).with(&[floats("s", &[4], &[1.0, 1.0, scale, scale])])
    };
    let (float, uint8, int8, uint16, int16, int32, int64, text, bool) = (1, 2, 3, 4, 5, 6, 7, 8, 9);
    let (float16, double, uint32, uint64, bfloat16) = (10, 11, 12, 13, 16);
    for to in [float, float16, double, bfloat16] {
        resize(1.5, to).gives(&[1, 1, 6, 6]);
        // 16 bits round the scale up.
        let size = if [float16, bfloat16].contains(&to) { 5 } else { 4 };
        resize(1.2499, to).gives(&[1, 1, size, size]);
    }
    for to in [uint8, int8, uint16, int16, int32, int64, uint32, uint64] {
        resize(2.5, to).gives(&[1, 1, 8, 8]);
    }
    resize(2.0, bool).gives(&[1, 1, 4, 4]);
    // What the target cannot hold, and types that are not numbers.
    let wrong = [(1e20, int64), (f32::NAN, int32), (3e9, int32), (200.0, int8), (-1.0, uint64), (2.0, text), (2.0, 0)];
    for (scale, to) in wrong {
        resize(scale, to).fails(&["node \"y\" (Resize)", "elements of \"back\""]);
    }
    // Quotients and products of sizes as they are in f64.
    let sizes = |op: &str, round: &str, number: f32| {
        let nodes = [
            node("Shape", &["x"], "shape", &[]),
            node("Cast", &["shape"], "doubles", &[int("to", double)]),
            node("Cast", &["number"], "double", &[int("to", double)]),
            node(op, &["doubles", "double"], "result", &[]),
            node(round, &["result"], "whole", &[]),
            node("Cast", &["whole"], "sizes", &[int("to", 7)]),
            node("Resize", &["x", "", "", "sizes"], "y", &[]),
        ];
        Chain::of(&["2", "3", "10"], &nodes).with(&[floats("number", &[1], &[number])])
    };
    sizes("Div", "Ceil", 4.0).gives(&[1, 1, 3]);
    sizes("Mul", "Floor", 0.7).gives(&[1, 2, 6]);
}

#[test]
fn nodes_in_any_order() {
    let nodes = [node("Relu", &["before"], "y", &[]), node("Transpose", &["x"], "before", &[])];
    Chain::of(&["2", "3"], &nodes).gives(&[3, 2]);
    let circle = [node("Relu", &["b"], "a", &[]), node("Relu", &["a"], "b", &[]), node("Add", &["x", "a"], "y", &[])];
    Chain::of(&["2", "3"], &circle).fails(&["no node before its reader writes"]);
}

#[test]
fn what_cannot_be_inferred_is_named() {
    Chain::one(&["2", "3"], "NonZero", &["x"], &[]).fails(&[
        "node \"y\" (NonZero)",
        "do not infer",
        "value_info",
        "[\"y\"]",
    ]);
    let foreign = NodeProto { domain: "com.example".into(), ..node("Relu", &["x"], "y", &[]) };
    Chain::of(&["2", "3"], &[foreign]).fails(&["(com.example.Relu)", "do not infer"]);
    Chain::one(&["2", "3"], "Reshape", &["x", "x"], &[]).fails(&[
        "node \"y\" (Reshape)",
        "elements of \"x\"",
        "that these tools do not know",
    ]);
    // Elements are known of lists as short as those of shapes.
    let first = [
        node("Constant", &[], "list", &[ints("value_ints", &[2; 65])]),
        node("Gather", &["list", "two"], "shape", &[]),
        node("Expand", &["x", "shape"], "y", &[]),
    ];
    Chain::of(&["2", "2"], &first).fails(&["elements of \"shape\""]);
    Chain::of(&["2", "2"], &first[1..]).with(&[vector("list", &[2; 65])]).fails(&["elements of \"shape\""]);
    Chain::of(&["2", "2"], &first[1..]).with(&[vector("list", &[2; 64])]).gives(&[2, 2]);
    // Nodes behind it say the same, not something of their own.
    let behind = [node("NonZero", &["x"], "odd", &[]), node("Add", &["odd", "x"], "y", &[])];
    Chain::of(&["2", "3"], &behind).fails(&["node \"odd\" (NonZero)"]);
}

#[test]
fn what_the_model_states_counts_where_nothing_is_inferred() {
    let chain = Chain::one(&["2", "3"], "NonZero", &["x"], &[]);
    let mut stated = chain.graph(2);
    stated.value_info = vec![value("y", &["2", "5"])];
    let nodes = Graph::decode(&model(stated.clone()), BTreeMap::new()).unwrap().into_nodes();
    assert_eq!(nodes[0].1.as_ref().unwrap().geometry.input_shape(), [1, 1, 2, 5]);
    // Where it is, the model is checked.
    stated.node[0].op_type = "Relu".into();
    stated.value_info.push(value("wide", &["1", "1", "2", "5"]));
    let graph = Graph::decode(&model(stated), BTreeMap::new()).unwrap();
    assert_eq!(graph.conflicts(), ["\"wide\" is [1, 1, 2, 5], and its node gives [1, 1, 2, 3]"]);
    assert_eq!(graph.into_nodes()[0].1.as_ref().unwrap().geometry.input_shape(), [1, 1, 2, 3]);
}

#[test]
fn sizes_that_are_stated_open_are_asked_for() {
    let open = |nodes: &[NodeProto], x: &[&'static str]| {
        let mut graph = Chain::of(x, nodes).graph(2);
        graph.value_info = vec![value("odd", &["n", "H"]), value("y", &["n", "H"])];
        let nodes = Graph::decode(&model(graph), BTreeMap::new()).unwrap().into_nodes();
        nodes[0].1.as_ref().unwrap_err().to_string()
    };
    // The first value whose sizes help is named, and once.
    let error = open(&[node("NonZero", &["x"], "odd", &[]), node("Relu", &["odd"], "y", &[])], &["2", "3"]);
    assert!(error.contains("node \"odd\" (NonZero)"), "{error}");
    assert!(
        error.ends_with("\"odd\" has sizes that the model leaves open: give them, as in --dim H=1 --dim n=1"),
        "{error}"
    );
    assert_eq!(error.matches("--dim H").count(), 1, "{error}");
    let error = open(&[node("Relu", &["x"], "y", &[])], &["batch", "3"]);
    assert!(error.ends_with("\"x\" has sizes that the model leaves open: give them, as in --dim batch=1"), "{error}");
}

#[test]
fn sizes_without_a_name_are_given_by_input_and_axis() {
    let mut chain = Chain::one(&["batch", "?", "4"], "Relu", &["x"], &[]);
    let error = chain.read(3, &[]).unwrap_err();
    assert!(error.contains("--dim batch=1 --dim x.1=1"), "{error}");
    assert_eq!(chain.read(3, &[("batch", 2), ("x.1", 3)]), Ok(vec![2, 3, 4]));
    chain.x = vec!["-1", "3", "4"];
    assert_eq!(chain.read(3, &[("x.0", 2)]), Ok(vec![2, 3, 4]));
    let mut open = chain.graph(3);
    open.input = vec![ValueInfoProto { name: "x".into(), r#type: Some(TypeProto { tensor_type: None }) }];
    let nodes = Graph::decode(&model(open), BTreeMap::new()).unwrap().into_nodes();
    let error = nodes[0].1.as_ref().unwrap_err().to_string();
    assert!(error.contains("does not say the shape of \"x\""), "{error}");
}

#[test]
fn branches_that_agree() {
    let branch = |op: &str, output: &str| GraphProto {
        node: vec![node(op, &["x"], output, &[])],
        output: vec![ValueInfoProto { name: output.into(), r#type: None }],
        ..GraphProto::default()
    };
    let graph =
        |name: &str, graph| AttributeProto { name: name.into(), g: Some(Box::new(graph)), ..Default::default() };
    let either = |op: &str, condition: &str| {
        let branches = [graph("else_branch", branch(op, "no")), graph("then_branch", branch("Relu", "yes"))];
        Chain::of(&["2", "3"], &[node("If", &[condition], "y", &branches)]).with(&[vector("true", &[1])])
    };
    either("Sigmoid", "x").gives(&[2, 3]);
    either("Transpose", "x").fails(&["node \"y\" (If)", "these tools do not know", "[2, 3]", "[3, 2]"]);
    either("Transpose", "true").gives(&[2, 3]);
}

/// ONNX's own models of a single Conv or ConvTranspose: the shape of the output is the stated one.
#[test]
fn convolutions_of_onnxs_tests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/onnx");
    let folders = convoke_tools::onnx::find(&root).unwrap();
    let check = |folder: &std::path::PathBuf| {
        let mut whole = ModelProto::decode(&std::fs::read(folder.join("model.onnx")).unwrap()[..]).unwrap();
        let outputs = std::mem::take(&mut whole.graph.as_mut().unwrap().output);
        let stated = outputs[0].r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref().unwrap();
        let stated: Vec<_> = stated.dim.iter().map(|dim| dim.dim_value.unwrap() as usize).collect();
        let nodes = Graph::decode(&whole.encode_to_vec(), BTreeMap::new()).unwrap().into_nodes();
        assert_eq!(nodes[0].1.as_ref().unwrap().geometry.output_shape(), stated, "{}", folder.display());
    };
    folders.iter().for_each(check);
    assert!(folders.len() > 50, "{}", folders.len());
}

/// Sizes and lists as a damaged or hostile file may have them, for each operator: nothing panics,
/// overflows or asks for memory.
#[test]
fn hostile_numbers_are_errors() {
    let lists: [&[i64]; 6] = [&[], &[i64::MAX; 4], &[i64::MIN; 4], &[-1; 40], &[0; 3], &[1 << 40, 1 << 40]];
    let names = ["axes", "pads", "strides", "dilations", "kernel_shape", "perm", "starts", "ends", "shape", "split"];
    let numbers = ["axis", "blocksize", "to", "keepdims", "start", "end", "ceil_mode", "allowzero", "transA", "layout"];
    let operators = [
        "Conv",
        "ConvTranspose",
        "MaxPool",
        "AveragePool",
        "GlobalMaxPool",
        "Resize",
        "Upsample",
        "DepthToSpace",
        "SpaceToDepth",
        "GridSample",
        "GRU",
        "Concat",
        "Split",
        "Slice",
        "Pad",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Expand",
        "Tile",
        "Gather",
        "Gemm",
        "MatMul",
        "Einsum",
        "ReduceSum",
        "ArgMax",
        "Constant",
        "ConstantOfShape",
        "Range",
        "Shape",
        "Size",
        "Add",
        "Where",
        "Relu",
        "Dropout",
        "If",
        "Loop",
    ];
    for (opset, op) in [9, 22].into_iter().flat_map(|opset| operators.map(|op| (opset, op))) {
        for list in lists {
            for dims in [&["2", "3", "4", "5"][..], &["9223372036854775807"], &["0", "4611686018427387904", "4"], &[]] {
                for attributes in [
                    &[][..],
                    &names.map(|name| ints(name, list)),
                    &numbers.map(|name| int(name, list.first().copied().unwrap_or(7))),
                ] {
                    for inputs in
                        [&["x"][..], &["x", "list", "list", "list", "list"], &["list", "x", "x"], &["list"; 3], &[]]
                    {
                        let mut chain =
                            Chain::one(&[], op, inputs, attributes).with(&[vector("list", list)]).opset(opset);
                        chain.nodes[0].output.push("more".into());
                        let mut graph = chain.graph(2);
                        graph.input = vec![value("x", dims)];
                        let _ = Graph::decode(&model(graph), BTreeMap::new()).map(Graph::into_nodes);
                    }
                }
            }
        }
    }
}

#[test]
fn a_chain_that_doubles_stays_small() {
    // Each node doubles the size: 2^100 elements, and a vector of as many numbers.
    for first in ["x", "shape"] {
        let mut nodes = vec![node("Shape", &["x"], "shape", &[])];
        let mut last = first.to_owned();
        for index in 0..100 {
            let next = format!("v{index}");
            nodes.push(node("Concat", &[&last, &last], &next, &[int("axis", 0)]));
            last = next;
        }
        nodes.push(node("Relu", &[&last], "y", &[]));
        Chain::of(&["2", "3"], &nodes).fails(&["node \"v6", "(Concat): ", "its output"]);
    }
}

#[test]
fn a_network_without_shapes() {
    let mut bare = network();
    bare.value_info.clear();
    let sizes = BTreeMap::from([("batch".to_owned(), 3)]);
    let nodes = Graph::decode(&model(bare), sizes).unwrap().into_nodes();
    let outputs: Vec<_> = nodes.iter().map(|(_, node)| node.as_ref().unwrap().geometry.output_shape()).collect();
    assert_eq!(outputs, [[3, 8, 10, 12], [3, 8, 10, 12], [3, 2, 20, 24]]);
}
