//! Convolutions of whole models: which are found, and what is reported about those that are not
//! understood.

mod common;

use std::collections::BTreeMap;

use common::{external, floats, ints, model, network, node, value};
use convoke_tools::onnx::graph::{ConvNode, Graph};
use convoke_tools::onnx::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use prost::Message;

fn graph(of: GraphProto, batch: Option<i64>) -> Graph {
    Graph::decode(&model(of), batch.into_iter().map(|size| ("batch".to_owned(), size)).collect()).unwrap()
}

/// The nodes, none of which may have an error.
fn nodes(graph: Graph) -> Vec<(String, ConvNode)> {
    graph.into_nodes().into_iter().map(|(name, node)| (name, node.unwrap())).collect()
}

/// The error of the first node that has one.
fn error(of: GraphProto, batch: Option<i64>) -> String {
    let nodes = graph(of, batch).into_nodes();
    nodes.into_iter().find_map(|(name, node)| Some(format!("node {name}: {:#}", node.err()?))).unwrap()
}

#[test]
fn nodes_with_their_shapes() {
    let nodes = nodes(graph(network(), Some(3)));
    let found: Vec<_> =
        nodes.iter().map(|(name, n)| (name.as_str(), n.geometry.input_shape(), n.geometry.output_shape())).collect();
    assert_eq!(
        found,
        [
            ("conv1", vec![3, 4, 10, 12], vec![3, 8, 10, 12]),
            ("conv2", vec![3, 8, 10, 12], vec![3, 8, 10, 12]),
            ("up", vec![3, 8, 10, 12], vec![3, 2, 20, 24]),
        ]
    );
}

#[test]
fn a_size_that_has_a_name_must_be_given() {
    let text = error(network(), None);
    assert!(text.contains("node conv1") && text.contains("\"x\" has sizes that the model leaves open"), "{text}");
    assert!(text.contains("--dim batch=1"), "{text}");
}

#[test]
fn weights_of_constant_nodes_and_convolutions_of_branches() {
    let constant =
        AttributeProto { name: "value".into(), t: Some(floats("", &[8, 4, 1, 1], &[0.5; 32])), ..Default::default() };
    let branch = GraphProto {
        node: vec![node("Constant", &[], "w", &[constant]), node("Conv", &["x", "w"], "inner", &[])],
        ..GraphProto::default()
    };
    let attribute = AttributeProto { name: "then_branch".into(), g: Some(Box::new(branch)), ..Default::default() };
    let whole = GraphProto {
        node: vec![node("If", &["condition"], "y", &[attribute]), node("ConvInteger", &["x", "w8"], "z", &[])],
        input: vec![value("x", &["1", "4", "6", "6"])],
        ..GraphProto::default()
    };
    let graph = graph(whole, None);
    assert_eq!(graph.others(), &BTreeMap::from([("ConvInteger".to_owned(), 1)]));
    let nodes = nodes(graph);
    assert_eq!((nodes.len(), nodes[0].1.geometry.output_shape()), (1, vec![1, 8, 6, 6]));
}

#[test]
fn convolutions_of_functions_are_named() {
    let graph = GraphProto { node: vec![node("block", &["x"], "y", &[])], ..GraphProto::default() };
    let mut whole = ModelProto::decode(&model(graph)[..]).unwrap();
    let nodes =
        vec![node("Conv", &["a", "b"], "c", &[]), node("Relu", &["c"], "d", &[]), node("Conv", &["d", "e"], "f", &[])];
    whole.functions = vec![FunctionProto { node: nodes }];
    let text = Graph::decode(&whole.encode_to_vec(), BTreeMap::new()).unwrap_err().to_string();
    assert!(text.contains("2 Conv in the model's own functions") && text.contains("onnx.inliner"), "{text}");
}

#[test]
fn a_foreign_operator_of_the_same_name_is_not_ours() {
    let foreign = NodeProto { domain: "com.example".into(), ..node("Conv", &["x", "w1"], "y", &[]) };
    let bytes = model(GraphProto { node: vec![foreign], ..GraphProto::default() });
    let text = Graph::decode(&bytes, BTreeMap::new()).unwrap_err().to_string();
    assert!(text.contains("no Conv and no ConvTranspose"), "{text}");
}

#[test]
fn what_the_operator_rejects_names_the_node() {
    let mut wrong = network();
    wrong.node[2].attribute = vec![ints("strides", &[0, 1])];
    let text = error(wrong.clone(), Some(1));
    assert!(text.contains("node conv2") && text.contains("stride"), "{text}");
    let well = graph(wrong, Some(1)).into_nodes().into_iter().filter(|(_, node)| node.is_ok());
    assert_eq!(well.map(|(name, _)| name).collect::<Vec<_>>(), ["conv1", "up"], "the others are not lost");
    let mut untyped = network();
    untyped.initializer[0] = external("w1", &[8, 4, 3, 3]);
    untyped.initializer[0].data_type = 3; // int8
    assert_eq!(nodes(graph(untyped, Some(1))).len(), 3, "X's type counts where W's is not one of the four");
}
