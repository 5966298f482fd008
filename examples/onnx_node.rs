//! From a node of an ONNX model, as a loader has it, to a result.
//!
//! `Operator::from_node` checks the whole node: names and types of attributes, shapes, opset. Its
//! errors name the operator, the axis, the value and the rule.

use convoke::{Attribute, DType, Error, ErrorKind, NodeInput, Operator, Planner, Run};

fn main() -> Result<(), Error> {
    // What the model's protobuf has of the node, and what its initialisers and shapes say.
    let attributes = [("strides", Attribute::Ints(&[2, 2])), ("auto_pad", Attribute::String("SAME_UPPER"))];
    let input = |dims| Some(NodeInput { dtype: DType::F32, dims });
    let inputs = [input(&[1, 1, 5, 5]), input(&[1, 1, 3, 3]), None]; // X, W, and no B
    let (operator, geometry) = Operator::from_node("Conv", 13, &attributes, &inputs)?;
    println!("X {:?} and W {:?} give Y {:?}", geometry.input_shape(), geometry.weight_shape(), geometry.output_shape());

    let plan = Planner::new().plan::<f32>(operator, &geometry.input_shape())?;
    let packed = plan.pack(&[1.0; 9], None)?;
    let mut y = vec![0.0; geometry.output_len()];
    plan.run(Run::new(&[1.0; 25], &packed, &mut y))?;
    // Each output counts the inputs that its filter meets: 2x2 at a corner, 3x3 in the middle.
    assert_eq!(y, [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]);
    println!("Y is {y:?}");

    // A mistake is an error before anything is computed.
    let wrong = [("strides", Attribute::Ints(&[2, 0]))];
    let error = Operator::from_node("Conv", 13, &wrong, &inputs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidAttribute);
    println!("with a stride of 0: {error}");
    Ok(())
}
