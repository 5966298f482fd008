//! Hostile nodes: any attributes, any sizes, and huge ones that fit each other. Each is an error or
//! a plan, soon and without much memory.

use arbitrary::{Result, Unstructured};
use convoke::{Activation, Algorithm, Attribute, Conv, ConvTranspose, DType, Isa, Op, Operator, Planner, bf16, f16};

use crate::layers::{FarAxis, layouts};
use crate::with_bytes;

const NAMES: [&str; 9] =
    ["strides", "dilations", "pads", "group", "kernel_shape", "output_padding", "output_shape", "auto_pad", "other"];

/// The value of an attribute.
enum Value {
    Int(i64),
    Ints(Vec<i64>),
    String(&'static str),
    Float,
}

/// From an ONNX node to its geometry and its plan.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let rank = u.int_in_range(0..=5)?;
        if u.arbitrary()? {
            return far(u);
        }
        let op = *u.choose(&["Conv", "ConvTranspose", "ConvInteger"])?;
        let opset = if u.ratio(7, 8)? { u.int_in_range(1..=25)? } else { size(u)? };
        let mut attributes = Vec::new();
        for _ in 0..u.int_in_range(0..=5)? {
            attributes.push((*u.choose(&NAMES)?, value(u, rank)?));
        }
        let attributes: Vec<_> = attributes
            .iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::Int(value) => Attribute::Int(*value),
                    Value::Ints(values) => Attribute::Ints(values),
                    Value::String(value) => Attribute::String(value),
                    Value::Float => Attribute::Float(1.0),
                };
                (*name, value)
            })
            .collect();
        let w_dims = sizes(u, rank)?;
        let Ok(operator) = Operator::from_attributes(op, opset, &attributes, &w_dims) else { return Ok(()) };
        let x_shape: Vec<_> = sizes(u, rank)?.iter().map(|size| *size as usize).collect();
        let Ok(geometry) = operator.geometry(&x_shape) else { return Ok(()) };
        assert_eq!(geometry.input_shape(), x_shape);
        assert_eq!(geometry.output_shape().iter().product::<usize>(), geometry.output_len());
        plan(u, &operator, &x_shape)
    });
}

/// Attributes that are huge, and fit each other: pads make up for strides and dilations.
fn far(u: &mut Unstructured<'_>) -> Result<()> {
    let op = *u.choose(&[Op::Conv, Op::ConvTranspose])?;
    let (mut w_dims, mut x_shape) = (vec![], vec![]);
    let (mut strides, mut dilations, mut pads) = (vec![], vec![], [vec![], vec![]]);
    for _ in 0..u.int_in_range(1..=4)? {
        let (input, kernel) = (size(u)?.saturating_abs(), u.int_in_range(1..=9)?);
        let Some(axis) = FarAxis::arbitrary(u, op, input, kernel)? else { return Ok(()) };
        w_dims.push(kernel as usize);
        x_shape.push(input as usize);
        strides.push(axis.stride);
        dilations.push(axis.dilation);
        pads[0].push(axis.pads[0]);
        pads[1].push(axis.pads[1]);
    }
    let group = u.int_in_range(1..=9)?;
    let (c, m) = (u.int_in_range(0..=20)?, u.int_in_range(0..=20)?);
    let batch = size(u)?.unsigned_abs() as usize;
    let x_shape = [vec![batch, group * c], x_shape].concat();
    let pads = pads.concat();
    let operator: Operator = match op {
        Op::Conv => {
            let conv = Conv::new([vec![group * m, c], w_dims].concat()).group(group as i64);
            conv.strides(strides).dilations(dilations).pads(pads).into()
        }
        Op::ConvTranspose => {
            let conv = ConvTranspose::new([vec![group * c, m], w_dims].concat()).group(group as i64);
            conv.strides(strides).dilations(dilations).pads(pads).into()
        }
    };
    if operator.geometry(&x_shape).is_err() {
        return Ok(());
    }
    plan(u, &operator, &x_shape)
}

fn plan(u: &mut Unstructured<'_>, operator: &Operator, x_shape: &[usize]) -> Result<()> {
    let mut planner = Planner::new().threads(if u.ratio(7, 8)? { u.int_in_range(0..=9)? } else { u.arbitrary()? });
    if u.arbitrary()? {
        planner = planner.algorithm(*u.choose(&Algorithm::all().collect::<Vec<_>>())?);
    }
    if u.ratio(1, 4)? {
        planner = planner.workspace_limit(u.arbitrary()?);
    }
    if u.ratio(1, 4)? {
        planner = planner.activation(Activation::Silu);
    }
    planner = planner.isa(*u.choose(&Isa::ALL)?);
    let dtype = *u.choose(&DType::ALL)?;
    let (x_layout, y_layout) = layouts(u)?;
    let operator = operator.clone().layouts(x_layout, y_layout);
    let explain = match dtype {
        DType::F16 => planner.plan::<f16>(operator, x_shape).map(|plan| format!("{:#}", plan.explain())),
        DType::BF16 => planner.plan::<bf16>(operator, x_shape).map(|plan| format!("{:#}", plan.explain())),
        DType::F32 => planner.plan::<f32>(operator, x_shape).map(|plan| format!("{:#}", plan.explain())),
        DType::F64 => planner.plan::<f64>(operator, x_shape).map(|plan| format!("{:#}", plan.explain())),
    };
    let message = explain.unwrap_or_else(|error| error.to_string());
    assert!(message.starts_with("Conv"), "{message}");
    Ok(())
}

fn value(u: &mut Unstructured<'_>, rank: usize) -> Result<Value> {
    Ok(match u.int_in_range(0..=9)? {
        0 => Value::Int(size(u)?),
        1 => Value::String(*u.choose(&["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "", "same"])?),
        2 => Value::Float,
        kind => {
            let len = match kind {
                3 => u.int_in_range(0..=7)?,
                4..=6 => 2 * rank,
                _ => rank,
            };
            Value::Ints((0..len).map(|_| size(u)).collect::<Result<_>>()?)
        }
    })
}

fn sizes(u: &mut Unstructured<'_>, rank: usize) -> Result<Vec<i64>> {
    let rank = if u.ratio(15, 16)? { rank + 2 } else { rank };
    (0..rank).map(|_| size(u)).collect()
}

/// Small, or where arithmetic may overflow.
fn size(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=7)? {
        0..=3 => u.int_in_range(0..=9)?,
        4 => u.int_in_range(-2..=300)?,
        5 => u.int_in_range(0..=1 << 20)?,
        6 => (1_i64 << u.int_in_range(0..=62)?).wrapping_add(u.int_in_range(-2..=2)?),
        _ => u.arbitrary()?,
    })
}
