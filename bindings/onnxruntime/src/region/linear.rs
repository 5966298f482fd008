//! Operators that read and compute bytes, with the scales of these among their inputs: QLinearConv, and onnxruntime's own,
//! such as QLinearAdd.

use crate::api::Result;
use crate::graph::{Node, Value};
use crate::region::bytes::ByteScale;

/// Bytes, and what they stand for.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'g> {
    pub(crate) bytes: Value<'g>,
    pub(crate) scale: ByteScale,
}

/// What a node computes of bytes.
pub(crate) struct Linear<'g> {
    /// The operator of numbers.
    pub(crate) op: String,
    pub(crate) x: Vec<Scaled<'g>>,
    pub(crate) y: Scaled<'g>,
    /// Is added to numbers before these are rounded.
    pub(crate) offset: f32,
}

const PREFIX: &str = "QLinear";

/// The operator of numbers that such an operator stands for.
pub(crate) fn of_numbers(op: &str) -> Option<&str> {
    let own = op.strip_prefix("com.microsoft.").unwrap_or(op);
    own.strip_prefix(PREFIX).filter(|name| (*name == "Conv") == (own == op))
}

impl<'g> Linear<'g> {
    /// That of a node whose scales are constant. Without the weights of a convolution.
    pub(crate) fn of(node: Node<'g>) -> Result<Option<Self>> {
        let (name, inputs) = (node.op()?, node.inputs()?);
        let Some(op) = of_numbers(&name) else { return Ok(None) };
        // Where each X is, and the scale of Y. A scale is followed by its zero point.
        let (places, place_of_y) = match op {
            "Conv" => (vec![0], 6),
            "Add" | "Mul" => (vec![0, 3], 6),
            "Concat" => ((2..inputs.len()).step_by(3).collect(), 0),
            "LeakyRelu" | "Sigmoid" | "AveragePool" | "GlobalAveragePool" => (vec![0], 3),
            _ => return Ok(None),
        };
        let mut x = Vec::new();
        for place in places {
            let Some(&Some(bytes)) = inputs.get(place) else { return Ok(None) };
            let Some(scale) = ByteScale::at(node, place + 1, bytes)? else { return Ok(None) };
            x.push(Scaled { bytes, scale });
        }
        let y = node.output()?;
        let Some(scale) = ByteScale::at(node, place_of_y, y)? else { return Ok(None) };
        if x.is_empty() || node.attributes()?.int("channels_last", 0) != 0 {
            return Ok(None);
        }
        let mut linear = Self { op: op.to_owned(), x, y: Scaled { bytes: y, scale }, offset: 0.0 };
        linear.in_steps();
        let fits = |of: &Scaled<'_>| of.scale.scale > 0.0 && of.scale.scale.is_finite();
        let are_scales = linear.x.iter().chain([&linear.y]).all(fits);
        Ok(are_scales.then_some(linear))
    }

    /// Has scales be in steps of Y, as onnxruntime computes, so that halves of these are exact. Sums and products are rounded
    /// behind the zero point, and so may a half be to another side than by QuantizeLinear.
    fn in_steps(&mut self) {
        let (step, zero) = (self.y.scale.scale, self.y.scale.zero);
        match (&*self.op, &mut self.x[..]) {
            ("Add", both) => both.iter_mut().for_each(|x| x.scale.scale /= step),
            ("Mul", [one, other]) => {
                one.scale.scale = one.scale.scale * other.scale.scale / step;
                other.scale.scale = 1.0;
            }
            ("AveragePool" | "GlobalAveragePool", [x]) => {
                self.y.scale.scale = step / x.scale.scale;
                x.scale.scale = 1.0;
                return;
            }
            _ => return,
        }
        self.y.scale = ByteScale { scale: 1.0, zero: 0 };
        self.offset = f32::from(zero);
    }
}
