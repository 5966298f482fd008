//! Units of quantised graphs: what nodes between DequantizeLinear and QuantizeLinear compute, or operators of bytes.
//!
//! A convolution of bytes is one of integers. What else is computed of one byte alone is a table, however many nodes
//! spell it: a SiLU of Sigmoid and Mul with quantised numbers between them, or another scale. Nodes that none of these
//! units takes compute with floats, as in any other graph.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use convoke::{Activation, DType};

use crate::activation;
use crate::api::Result;
use crate::fusion::{VERSION, is_no_inference, is_of_channels};
use crate::graph::{Attributes, Node, Tensor, Value};
use crate::region::bytes::{
    Bias, Blend, Blending, ByteScale, Bytes, Integers, Lines, Table, numbers_of, plain, zero_points,
};
use crate::region::linear::{Linear, Scaled, of_numbers};
use crate::region::numbers::{self, Operand};
use crate::region::unit::{
    Kind, Pool, Unit, channels, dims, has_axis_of_channels, has_channels, is_image_of_bytes, may_multiply,
};

/// A value of floats that is dequantised, and is read by one node alone.
struct Dequantised<'g> {
    node: Node<'g>,
    bytes: Value<'g>,
    scale: ByteScale,
}

/// A QuantizeLinear that is all that reads its input, perhaps behind a clamp.
struct Quantised<'g> {
    nodes: Vec<Node<'g>>,
    bytes: Value<'g>,
    scale: ByteScale,
    clamp: Option<Table>,
}

/// Finds the units of a graph.
struct Finder<'g, 'f> {
    nodes: &'f [Node<'g>],
    /// The nodes that compute values, by the names of these.
    producers: HashMap<String, Node<'g>>,
    taken: HashSet<Node<'g>>,
    of_constants: HashSet<String>,
}

/// The units of bytes of a graph, of nodes that are free.
pub(crate) fn units<'g>(nodes: &[Node<'g>], is_free: impl Fn(Node<'g>) -> bool) -> Result<Vec<Unit<'g>>> {
    let mut finder =
        Finder { nodes, producers: HashMap::new(), taken: HashSet::new(), of_constants: of_constants(nodes)? };
    for &node in nodes {
        if !is_free(node) {
            finder.taken.insert(node);
        }
        for value in node.outputs()?.into_iter().flatten() {
            finder.producers.insert(value.name()?, node);
        }
    }
    let mut units = Vec::new();
    for &node in nodes {
        let unit = match finder.layer(node)? {
            Some(unit) => Some(unit),
            None => finder.dynamic(node)?,
        };
        units.extend(unit.map(|unit| finder.take(unit)));
    }
    if units.is_empty() {
        return Ok(units);
    }
    let tables = finder.tables()?;
    for &node in nodes {
        let mut unit = finder.blend(node)?;
        for find in [Finder::lines, Finder::moved] {
            unit = if unit.is_some() { unit } else { find(&finder, node)? };
        }
        units.extend(unit.map(|unit| finder.take(unit)));
    }
    for table in tables {
        let Kind::Table(own) = &table.kind else { continue };
        let x = table.inputs[0].name()?;
        let is_read_here = |consumers: Vec<Node<'g>>| consumers.iter().all(|node| table.nodes.contains(node));
        let mut behind = None;
        for (i, unit) in units.iter().enumerate() {
            let is_it = unit.outputs[0].name()? == x && unit.outputs[0].consumers()?.is_some_and(is_read_here);
            if is_it && matches!(&unit.kind, Kind::Integers(layer) if layer.table.is_none()) {
                behind = Some(i);
            }
        }
        match behind.map(|i| &mut units[i]) {
            Some(Unit { nodes, outputs, kind: Kind::Integers(layer), .. }) => {
                layer.table = Some(**own);
                nodes.extend(&table.nodes);
                *outputs = table.outputs;
            }
            _ => units.push(table),
        }
    }
    Ok(units)
}

/// QuantizeLinear and DequantizeLinear at the borders of units: they have a unit on one side at least.
pub(crate) fn conversions<'g>(
    nodes: &[Node<'g>],
    units: &[Unit<'g>],
    is_free: impl Fn(Node<'g>) -> bool,
) -> Result<Vec<Unit<'g>>> {
    let ([read, computed], of_constants) = (read_and_computed(units)?, of_constants(nodes)?);
    let mut all = Vec::new();
    for &node in nodes.iter().filter(|node| is_free(**node)) {
        let op = node.op()?;
        let (Some(x), y) = (node.input(0)?, node.output()?) else { continue };
        let is_read = read.contains(&y.name()?);
        let kind = match plain(&op) {
            _ if of_constants.contains(&x.name()?) => None,
            "DequantizeLinear" if is_read && is_image_of_bytes(x)? && is_float(y)? => {
                ByteScale::of(node, x)?.map(Kind::Dequantise)
            }
            "QuantizeLinear"
                if (is_read || computed.contains(&x.name()?))
                    && is_image_of_bytes(y)?
                    && is_float(x)?
                    && has_channels(x)? =>
            {
                ByteScale::of(node, y)?.map(Kind::Quantise)
            }
            _ => None,
        };
        all.extend(kind.map(|kind| of_node(node, x, y, kind)));
    }
    Ok(all)
}

/// The names of what units read, and of what they compute.
fn read_and_computed(units: &[Unit<'_>]) -> Result<[HashSet<String>; 2]> {
    let read = units.iter().flat_map(|unit| &unit.inputs).map(|value| value.name()).collect::<Result<_>>()?;
    let computed = units.iter().flat_map(|unit| &unit.outputs).map(|value| value.name()).collect::<Result<_>>()?;
    Ok([read, computed])
}

/// The names of bytes that are computed of constants. They become constants, which are no inputs of a fused node.
fn of_constants(nodes: &[Node<'_>]) -> Result<HashSet<String>> {
    let mut names = HashSet::new();
    for node in nodes.iter() {
        if plain(&node.op()?) == "QuantizeLinear"
            && node.input(0)?.map(Value::constant).transpose()?.flatten().is_some()
        {
            names.insert(node.output()?.name()?);
        }
    }
    Ok(names)
}

/// Leaves out conversions at the edge of a group of units: those to floats that no unit of it reads, and those to bytes of
/// what it does not compute, unless it reads them.
pub(crate) fn drop_edges(units: &mut Vec<Unit<'_>>) -> Result<()> {
    let [read, computed] = read_and_computed(units)?;
    let mut stays = Vec::new();
    for unit in units.iter() {
        let (x, y) = (unit.inputs[0].name()?, unit.outputs[0].name()?);
        stays.push(match unit.kind {
            Kind::Dequantise(_) => read.contains(&y),
            Kind::Quantise(_) => read.contains(&y) || computed.contains(&x),
            _ => true,
        });
    }
    let mut stays = stays.into_iter();
    units.retain(|_| stays.next() == Some(true));
    Ok(())
}

fn of_node<'g>(node: Node<'g>, x: Value<'g>, y: Value<'g>, kind: Kind<'g>) -> Unit<'g> {
    Unit { nodes: vec![node], inputs: vec![x], outputs: vec![y], kind, stands_alone: false }
}

fn is_float(value: Value<'_>) -> Result<bool> {
    Ok(value.tensor_type()?.and_then(|ty| ty.dtype()) == Some(DType::F32))
}

impl<'g> Finder<'g, '_> {
    fn take(&mut self, unit: Unit<'g>) -> Unit<'g> {
        self.taken.extend(&unit.nodes);
        unit
    }

    fn are_free(&self, nodes: &[Node<'g>]) -> bool {
        !nodes.iter().any(|node| self.taken.contains(node))
    }

    /// The node of an operator that computes a value, if `reader` alone reads that.
    fn producer(&self, value: Value<'g>, op: &str, reader: Node<'g>) -> Result<Option<Node<'g>>> {
        let Some(&node) = self.producers.get(&value.name()?) else { return Ok(None) };
        let is_it = plain(&node.op()?) == op && value.only_consumer()? == Some(reader);
        Ok(is_it.then_some(node))
    }

    /// The image of bytes that a node reads as floats.
    fn dequantised(&self, value: Value<'g>, reader: Node<'g>) -> Result<Option<Dequantised<'g>>> {
        let Some(node) = self.producer(value, "DequantizeLinear", reader)? else { return Ok(None) };
        let Some(bytes) = node.input(0)? else { return Ok(None) };
        if self.of_constants.contains(&bytes.name()?) || !is_image_of_bytes(bytes)? || !is_float(value)? {
            return Ok(None);
        }
        Ok(ByteScale::of(node, bytes)?.map(|scale| Dequantised { node, bytes, scale }))
    }

    /// The image of bytes that a value becomes.
    fn quantised(value: Value<'g>) -> Result<Option<Quantised<'g>>> {
        let Some(node) = value.only_consumer()? else { return Ok(None) };
        let is_it = plain(&node.op()?) == "QuantizeLinear"
            && node.input(0)?.map(Value::name).transpose()? == Some(value.name()?)
            && is_float(value)?;
        let bytes = node.output()?;
        if !is_it || !is_image_of_bytes(bytes)? {
            return Ok(None);
        }
        let quantised = |scale| Quantised { nodes: vec![node], bytes, scale, clamp: None };
        Ok(ByteScale::of(node, bytes)?.map(quantised))
    }

    /// A convolution of bytes.
    fn layer(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        let op = node.op()?;
        if !matches!(&*op, "Conv" | "ConvTranspose") {
            return self.linear_layer(node);
        }
        let [Some(x), Some(w), ..] = node.inputs()?[..] else { return Ok(None) };
        if !is_float(w)? {
            return Ok(None);
        }
        let (Some(x), attributes) = (self.dequantised(x, node)?, node.attributes()?) else { return Ok(None) };
        let Some(w_node) = self.producer(w, "DequantizeLinear", node)? else { return Ok(None) };
        let of_w = w_node.attributes()?;
        let parts = [w_node.input(0)?, w_node.input(1)?, w_node.input(2)?];
        let found = weights(parts, of_w.int("axis", 1), (&op, &attributes))?;
        let Some((w, w_scale)) = found.filter(|_| of_w.int("block_size", 0) == 0) else { return Ok(None) };
        let mut nodes = vec![x.node, w_node];
        let bias = match node.input(2)? {
            None => Bias::Numbers(Vec::new()),
            Some(bias) => match self.bias(bias, node, &mut nodes)? {
                Some(bias) => bias,
                None => return Ok(None),
            },
        };
        nodes.push(node);
        let end = node.output()?;
        let (since, inputs) = (node.since_version()?, vec![x.bytes]);
        let mut layer = Integers { op, since, attributes, w, w_scale, bias, x: x.scale, y: None, table: None };
        let mut outputs = vec![end];
        if let Some(quantised) = Self::clamped(end)? {
            (layer.y, layer.table, outputs) = (Some(quantised.scale), quantised.clamp, vec![quantised.bytes]);
            nodes.extend(quantised.nodes);
        } else if !is_float(end)? || !has_channels(end)? {
            return Ok(None);
        }
        let fits = self.are_free(&nodes) && layer.check(x.bytes)?;
        let kind = Kind::Integers(Box::new(layer));
        Ok(fits.then_some(Unit { nodes, inputs, outputs, kind, stands_alone: false }))
    }

    /// The image of bytes that a value becomes, behind at most one clamp.
    fn clamped(value: Value<'g>) -> Result<Option<Quantised<'g>>> {
        if let Some(quantised) = Self::quantised(value)? {
            return Ok(Some(quantised));
        }
        let Some(clamp) = value.only_consumer()? else { return Ok(None) };
        let function = activation::of_node(clamp, value, DType::F32)?;
        let (min, max) = match function.and_then(|function| function.activation(DType::F32)) {
            Some(Activation::Relu) => (0.0, f32::INFINITY),
            Some(Activation::Clip { min, max }) => (min, max),
            _ => return Ok(None),
        };
        let Some(mut quantised) = Self::quantised(clamp.output()?)? else { return Ok(None) };
        // Rounding to bytes keeps the order of numbers.
        let (least, most) = (quantised.scale.byte(min), quantised.scale.byte(max));
        quantised.clamp = Some(std::array::from_fn(|byte| (byte as u8).max(least).min(most)));
        quantised.nodes.insert(0, clamp);
        Ok(Some(quantised))
    }

    /// A QLinearConv.
    fn linear_layer(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        let Some(Linear { x, y, .. }) = self.linear(node)?.filter(|linear| linear.op == "Conv") else {
            return Ok(None);
        };
        let (op, attributes, x) = ("Conv".to_owned(), node.attributes()?, x[0]);
        let Some((w, w_scale)) = weights([node.input(3)?, node.input(4)?, node.input(5)?], 0, (&op, &attributes))?
        else {
            return Ok(None);
        };
        let bias = match node.input(8)? {
            None => Bias::Numbers(Vec::new()),
            Some(sums) => match sums.constant()?.map(|sums| sums.sums()).transpose()?.flatten() {
                Some(sums) => {
                    Bias::Sums { sums: sums.to_vec(), scale: w_scale.iter().map(|w| x.scale.scale * w).collect() }
                }
                None => return Ok(None),
            },
        };
        let (y_scale, table) = (Some(y.scale), None);
        let layer = Integers { op, since: VERSION, attributes, w, w_scale, bias, x: x.scale, y: y_scale, table };
        let fits = self.are_free(&[node]) && layer.check(x.bytes)?;
        Ok(fits.then(|| of_node(node, x.bytes, y.bytes, Kind::Integers(Box::new(layer)))))
    }

    /// The convolutions of what a DynamicQuantizeLinear computes: each is a ConvInteger, which is cast, and multiplied by
    /// the product of both scales. Nothing else reads bytes and scale.
    fn dynamic(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        if node.op()? != "DynamicQuantizeLinear" {
            return Ok(None);
        }
        let ([Some(x)], [Some(bytes), Some(scale), Some(zero)]) = (&node.inputs()?[..], &node.outputs()?[..]) else {
            return Ok(None);
        };
        let (x, bytes, scale, zero) = (*x, *bytes, *scale, *zero);
        if !is_float(x)? || !has_channels(x)? {
            return Ok(None);
        }
        let (mut nodes, mut layers, mut outputs) = (vec![node], Vec::new(), Vec::new());
        for conv in bytes.consumers()?.unwrap_or_default() {
            let Some((layer, all, y)) = self.scaled_sums(conv, [bytes, scale, zero])? else { return Ok(None) };
            layers.push(layer);
            nodes.extend(all);
            outputs.push(y);
        }
        for value in [bytes, scale, zero] {
            let is_read_here = |readers: Vec<Node<'g>>| readers.iter().all(|reader| nodes.contains(reader));
            if !value.consumers()?.is_some_and(is_read_here) {
                return Ok(None);
            }
        }
        let fits = !layers.is_empty() && self.are_free(&nodes);
        Ok(fits.then(|| Unit { nodes, inputs: vec![x], outputs, kind: Kind::Dynamic(layers), stands_alone: false }))
    }

    /// A ConvInteger of such bytes, the nodes that make floats of its sums, and these floats.
    fn scaled_sums(
        &self,
        conv: Node<'g>,
        [bytes, scale, zero]: [Value<'g>; 3],
    ) -> Result<Option<(Integers<'g>, Vec<Node<'g>>, Value<'g>)>> {
        let of_op = |value: Value<'g>, op: &str| -> Result<Option<Node<'g>>> {
            let Some(node) = value.only_consumer()? else { return Ok(None) };
            Ok((node.op()? == op).then_some(node))
        };
        let [Some(x), Some(w), Some(x_zero), ..] = conv.inputs()?[..] else { return Ok(None) };
        if conv.op()? != "ConvInteger" || x.name()? != bytes.name()? || x_zero.name()? != zero.name()? {
            return Ok(None);
        }
        let Some(cast) = of_op(conv.output()?, "Cast")? else { return Ok(None) };
        let Some(mul) = of_op(cast.output()?, "Mul")? else { return Ok(None) };
        let Some(product) = other(mul, cast.output()?)? else { return Ok(None) };
        let Some(scales) = self.producer(product, "Mul", mul)? else { return Ok(None) };
        let Some(w_scale) = other(scales, scale)? else { return Ok(None) };
        let (op, attributes, y) = ("Conv".to_owned(), conv.attributes()?, mul.output()?);
        // One scale: others would be along the last axis.
        let Some((w, w_scale)) = weights([Some(w), Some(w_scale), conv.input(3)?], 1, (&op, &attributes))? else {
            return Ok(None);
        };
        let of_run = ByteScale { scale: 1.0, zero: 0 };
        let (since, bias) = (VERSION, Bias::Numbers(Vec::new()));
        let layer = Integers { op, since, attributes, w, w_scale, bias, x: of_run, y: None, table: None };
        let has_rank = dims(y)?.map(|dims| dims.len()) == dims(bytes)?.map(|dims| dims.len());
        let fits = has_rank && is_float(y)? && has_channels(y)? && layer.check(bytes)?;
        Ok(fits.then(|| (layer, vec![conv, cast, scales, mul], y)))
    }

    /// What a node computes, if that is of images of bytes.
    fn linear(&self, node: Node<'g>) -> Result<Option<Linear<'g>>> {
        let Some(linear) = Linear::of(node)? else { return Ok(None) };
        for Scaled { bytes, .. } in linear.x.iter().chain([&linear.y]) {
            if self.of_constants.contains(&bytes.name()?) || !is_image_of_bytes(*bytes)? {
                return Ok(None);
            }
        }
        Ok(Some(linear))
    }

    /// Constant numbers, which may be dequantised.
    fn bias(&self, value: Value<'g>, reader: Node<'g>, nodes: &mut Vec<Node<'g>>) -> Result<Option<Bias>> {
        if let Some(numbers) = numbers_of(value)? {
            return Ok(Some(Bias::Numbers(numbers)));
        }
        let Some(node) = self.producer(value, "DequantizeLinear", reader)? else { return Ok(None) };
        let sums = node.input(0)?.map(Value::constant).transpose()?.flatten();
        let sums = sums.map(|tensor| tensor.sums()).transpose()?.flatten();
        let scale = node.input(1)?.map(numbers_of).transpose()?.flatten();
        let (Some(sums), Some(scale)) = (sums, scale) else { return Ok(None) };
        let is_plain = match node.input(2)? {
            None => true,
            Some(zeros) => match zeros.constant()?.map(|zeros| zeros.sums()).transpose()?.flatten() {
                Some(zeros) => zeros.iter().all(|zero| *zero == 0),
                None => false,
            },
        };
        if !is_plain || (scale.len() != 1 && scale.len() != sums.len()) {
            return Ok(None);
        }
        nodes.push(node);
        Ok(Some(Bias::Sums { sums: sums.to_vec(), scale }))
    }

    /// The sum or product of two images, of which one may have a number for each channel.
    fn blend(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        let name = node.op()?;
        let op = match of_numbers(&name).unwrap_or(&name) {
            "Add" => Blending::Sum,
            "Mul" => Blending::Product,
            _ => return Ok(None),
        };
        let Some((Linear { x, y, offset, .. }, nodes)) = self.operation(node)? else { return Ok(None) };
        let [one, other] = x[..] else { return Ok(None) };
        let [one, other] = if may_multiply(one.bytes, other.bytes)? { [one, other] } else { [other, one] };
        if !may_multiply(one.bytes, other.bytes)? || !self.are_free(&nodes) {
            return Ok(None);
        }
        let blend = Blend { op, of: [one.scale, other.scale], y: y.scale, offset };
        let (inputs, outputs) = (vec![one.bytes, other.bytes], vec![y.bytes]);
        Ok(Some(Unit { nodes, inputs, outputs, kind: Kind::Blend(blend), stands_alone: false }))
    }

    /// What a node computes of each number of an image by constants of its channel.
    fn lines(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        let op = node.op()?;
        if self.taken.contains(&node) || !matches!(&*op, "Add" | "BatchNormalization" | "Mul" | "PRelu") {
            return Ok(None);
        }
        let (mut image, mut constants) = (None, Vec::new());
        for (i, value) in node.inputs()?.into_iter().flatten().enumerate() {
            match self.dequantised(value, node)? {
                Some(own) if image.is_none() && (i == 0 || matches!(&*op, "Add" | "Mul")) => image = Some(own),
                Some(_) => return Ok(None),
                None => constants.push(value),
            }
        }
        let (Some(x), Some(y)) = (image, Self::quantised(node.output()?)?) else { return Ok(None) };
        let (rank, count) = (dims(x.bytes)?.map_or(0, |dims| dims.len()), channels(x.bytes)?.unwrap_or(0));
        let mut numbers = Vec::new();
        for value in constants {
            let of_channels = self.constants(value, node)?.filter(|(tensor, numbers)| {
                let is_each = op == "BatchNormalization" || is_of_channels(tensor.dims(), rank);
                is_each && numbers.len() == count
            });
            let Some((_, of_channels)) = of_channels else { return Ok(None) };
            numbers.push(of_channels);
        }
        let ones = || vec![1.0; count];
        let lines = match (&*op, &numbers[..]) {
            ("Add", [shifts]) => [ones(), ones(), shifts.clone()],
            ("Mul", [factors]) => [factors.clone(), factors.clone(), vec![0.0; count]],
            ("PRelu", [slopes]) => [ones(), slopes.clone(), vec![0.0; count]],
            ("BatchNormalization", [scale, shift, mean, variance]) if is_no_inference(node)?.is_none() => {
                let epsilon = node.attributes()?.float("epsilon", 1e-5);
                let factors: Vec<f32> =
                    scale.iter().zip(variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect();
                let shifts = shift.iter().zip(mean).zip(&factors).map(|((shift, mean), factor)| shift - mean * factor);
                [factors.clone(), factors.clone(), shifts.collect()]
            }
            _ => return Ok(None),
        };
        let Some(lines) = Lines::new([x.scale, y.scale], lines) else { return Ok(None) };
        let Some(nodes) = self.between(x.bytes, y.nodes[0])?.filter(|nodes| self.are_free(nodes)) else {
            return Ok(None);
        };
        let (inputs, outputs, kind) = (vec![x.bytes], vec![y.bytes], Kind::Lines(Arc::new(lines)));
        Ok(Some(Unit { nodes, inputs, outputs, kind, stands_alone: false }))
    }

    /// What a node computes of images of bytes, perhaps between DequantizeLinear and QuantizeLinear, and all these nodes.
    fn operation(&self, node: Node<'g>) -> Result<Option<(Linear<'g>, Vec<Node<'g>>)>> {
        if let Some(linear) = self.linear(node)? {
            return Ok(Some((linear, vec![node])));
        }
        let (mut nodes, mut x) = (Vec::new(), Vec::new());
        for value in node.inputs()?.into_iter().flatten() {
            let Some(Dequantised { node, bytes, scale }) = self.dequantised(value, node)? else { return Ok(None) };
            nodes.push(node);
            x.push(Scaled { bytes, scale });
        }
        nodes.push(node);
        let Some(Quantised { nodes: behind, bytes, scale, .. }) = Self::quantised(node.output()?)? else {
            return Ok(None);
        };
        nodes.extend(behind);
        Ok(Some((Linear { op: node.op()?, x, y: Scaled { bytes, scale }, offset: 0.0 }, nodes)))
    }

    /// A node that moves numbers, or takes the largest ones or means, of bytes.
    fn moved(&self, node: Node<'g>) -> Result<Option<Unit<'g>>> {
        if let Some(Linear { op, x, y, .. }) = self.linear(node)?.filter(|_| !self.taken.contains(&node)) {
            let kind = match &*op {
                "Concat" if has_axis_of_channels(node, x[0].bytes, 1)? => {
                    Some(concatenated(x.iter().map(|x| x.scale), y.scale))
                }
                "AveragePool" | "GlobalAveragePool" => {
                    Pool::of(node, x[0].bytes)?.map(|pool| Kind::Means(pool, [x[0].scale, y.scale]))
                }
                _ => None,
            };
            let inputs = x.iter().map(|x| x.bytes).collect();
            return Ok(kind.map(|kind| Unit { inputs, ..of_node(node, x[0].bytes, y.bytes, kind) }));
        }
        if self.taken.contains(&node) || !matches!(&*node.op()?, "Concat" | "MaxPool" | "Resize" | "Slice" | "Split") {
            return Ok(None);
        }
        let Some(Ok(unit)) = Unit::of(node)? else { return Ok(None) };
        let (mut nodes, mut x, mut y) = (vec![node], Vec::new(), Vec::new());
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for value in unit.inputs {
            let Some(dequantised) = self.dequantised(value, node)? else { return Ok(None) };
            nodes.push(dequantised.node);
            inputs.push(dequantised.bytes);
            x.push(dequantised.scale);
        }
        for value in unit.outputs {
            let Some(quantised) = Self::quantised(value)? else { return Ok(None) };
            nodes.extend(quantised.nodes);
            outputs.push(quantised.bytes);
            y.push(quantised.scale);
        }
        let kind = match unit.kind {
            Kind::Concat(_) => concatenated(x.into_iter(), y[0]),
            Kind::Resize(resize) if resize.is_linear() => return Ok(None),
            kind if y.iter().all(|y| *y == x[0]) => kind,
            _ => return Ok(None),
        };
        let fits = self.are_free(&nodes);
        Ok(fits.then_some(Unit { nodes, inputs, outputs, kind, stands_alone: false }))
    }

    /// The units that compute something of one byte alone.
    fn tables(&mut self) -> Result<Vec<Unit<'g>>> {
        let known = self.functions()?;
        let mut units = Vec::new();
        for &node in self.nodes.iter().rev() {
            let op = node.op()?;
            if self.taken.contains(&node) || (plain(&op) != "QuantizeLinear" && of_numbers(&op).is_none()) {
                continue;
            }
            let y = node.output()?;
            // From the byte that is furthest before it. What is computed of constants is a function of itself alone.
            for function in known.get(&y.name()?).into_iter().flatten().rev() {
                let Numbers::Bytes(table) = &function.numbers else { continue };
                if function.root.name()? == y.name()? {
                    continue;
                }
                // A constant of one number and more axes gives Y more, too.
                if dims(function.root)?.map(|dims| dims.len()) != dims(y)?.map(|dims| dims.len()) {
                    continue;
                }
                let Some(nodes) = self.between(function.root, node)?.filter(|nodes| self.are_free(nodes)) else {
                    continue;
                };
                let (inputs, outputs, kind) = (vec![function.root], vec![y], Kind::Table(Arc::new(**table)));
                units.push(self.take(Unit { nodes, inputs, outputs, kind, stands_alone: false }));
                break;
            }
        }
        Ok(units)
    }

    /// For each value, what it is of bytes before it, the nearest one first.
    fn functions(&self) -> Result<HashMap<String, Vec<Function<'g>>>> {
        let mut known: HashMap<String, Vec<Function<'g>>> = HashMap::new();
        for &node in self.nodes.iter().filter(|node| !self.taken.contains(node)) {
            let op = node.op()?;
            let [Some(y)] = node.outputs()?[..] else { continue };
            let (inputs, mut all) = (node.inputs()?, Vec::new());
            let Some(&Some(x)) = inputs.first() else { continue };
            match plain(&op) {
                "DequantizeLinear" if is_image_of_bytes(x)? && is_float(y)? => {
                    let Some(scale) = ByteScale::of(node, x)? else { continue };
                    let identity = [Function::identity(x)];
                    let of_bytes = known.get(&x.name()?).map_or(&identity[..], |known| known);
                    all.extend(of_bytes.iter().filter_map(|function| function.dequantised(scale)));
                }
                "QuantizeLinear" if is_image_of_bytes(y)? && is_float(x)? => {
                    let Some(scale) = ByteScale::of(node, y)? else { continue };
                    all.push(Function::identity(y));
                    let of_floats = known.get(&x.name()?).into_iter().flatten();
                    all.extend(of_floats.filter_map(|function| function.quantised(scale, 0.0)));
                }
                op if of_numbers(op).is_some() => self.compute_linear(node, &known, &mut all)?,
                op if numbers::is_known(op) => {
                    let mut operands = Vec::new();
                    for value in inputs {
                        let Some(value) = value else {
                            operands.push((&[][..], Some(Operand::Missing)));
                            continue;
                        };
                        let functions = known.get(&value.name()?).map_or(&[][..], |functions| functions);
                        operands.push((functions, self.constant_number(value)?.map(Operand::Constant)));
                    }
                    compute(op, node, &operands, &mut all)?;
                }
                _ => {}
            }
            all.truncate(MOST_ROOTS);
            if !all.is_empty() {
                known.insert(y.name()?, all);
            }
        }
        Ok(known)
    }

    /// What an operator of bytes computes: that of the numbers that these stand for.
    fn compute_linear(
        &self,
        node: Node<'g>,
        known: &HashMap<String, Vec<Function<'g>>>,
        all: &mut Vec<Function<'g>>,
    ) -> Result<()> {
        let Some(Linear { op, x, y, offset }) = Linear::of(node)? else { return Ok(()) };
        if !numbers::is_known(&op) || !is_image_of_bytes(y.bytes)? {
            return Ok(());
        }
        let mut numbers = Vec::new();
        for Scaled { bytes, scale } in x {
            let of_bytes = match known.get(&bytes.name()?) {
                Some(functions) => functions,
                None if is_image_of_bytes(bytes)? => &vec![Function::identity(bytes)],
                None => &Vec::new(),
            };
            let functions: Vec<_> = of_bytes.iter().filter_map(|function| function.dequantised(scale)).collect();
            numbers.push((functions, numbers_in(bytes, scale)?.as_deref().and_then(only).map(Operand::Constant)));
        }
        let operands: Vec<_> = numbers.iter().map(|(functions, constant)| (&functions[..], *constant)).collect();
        let mut floats = Vec::new();
        compute(&op, node, &operands, &mut floats)?;
        all.push(Function::identity(y.bytes));
        all.extend(floats.iter().filter_map(|function| function.quantised(y.scale, offset)));
        Ok(())
    }

    /// A constant that is one number, which may be dequantised.
    fn constant_number(&self, value: Value<'g>) -> Result<Option<f32>> {
        let numbers = if value.constant()?.is_some() { numbers_of(value)? } else { self.bytes_of(value)? };
        Ok(numbers.as_deref().and_then(only))
    }

    /// The numbers that constant bytes stand for.
    fn bytes_of(&self, value: Value<'g>) -> Result<Option<Vec<f32>>> {
        let Some(&node) = self.producers.get(&value.name()?) else { return Ok(None) };
        let (Some(bytes), "DequantizeLinear") = (node.input(0)?, plain(&node.op()?)) else { return Ok(None) };
        let scale = ByteScale::of(node, bytes)?;
        Ok(scale.map(|scale| numbers_in(bytes, scale)).transpose()?.flatten())
    }

    /// A constant and its numbers, which may be dequantised.
    fn constants(&self, value: Value<'g>, reader: Node<'g>) -> Result<Option<(Tensor<'g>, Vec<f32>)>> {
        let bytes = match self.producer(value, "DequantizeLinear", reader)? {
            Some(node) => node.input(0)?,
            None => None,
        };
        let Some(tensor) = bytes.unwrap_or(value).constant()? else { return Ok(None) };
        let numbers = match self.bias(value, reader, &mut Vec::new())? {
            Some(Bias::Numbers(numbers)) => Some(numbers),
            Some(Bias::Sums { sums, scale }) => {
                Some(sums.iter().zip(scale.iter().cycle()).map(|(sum, scale)| *sum as f32 * scale).collect())
            }
            None => self.bytes_of(value)?,
        };
        Ok(numbers.map(|numbers| (tensor, numbers)))
    }

    /// The nodes between a value and what a node computes, that node among them, if nothing else reads what lies between.
    fn between(&self, root: Value<'g>, last: Node<'g>) -> Result<Option<Vec<Node<'g>>>> {
        let (root, mut nodes, mut open) = (root.name()?, vec![last], vec![last]);
        while let Some(node) = open.pop() {
            for value in node.inputs()?.into_iter().flatten() {
                if value.name()? == root || value.constant()?.is_some() {
                    continue;
                }
                let Some(&producer) = self.producers.get(&value.name()?) else { return Ok(None) };
                if !nodes.contains(&producer) {
                    nodes.push(producer);
                    open.push(producer);
                }
                if nodes.len() > MOST_NODES {
                    return Ok(None);
                }
            }
        }
        for value in nodes[1..].iter().map(|node| node.output()) {
            let Some(consumers) = value?.consumers()? else { return Ok(None) };
            if !consumers.iter().all(|node| nodes.contains(node)) {
                return Ok(None);
            }
        }
        let place = |node: &Node<'g>| self.nodes.iter().position(|other| other == node);
        nodes.sort_by_key(place);
        Ok(Some(nodes))
    }
}

/// Nodes that are one table, at most.
const MOST_NODES: usize = 32;
/// Bytes before a value that it is a function of, at most.
const MOST_ROOTS: usize = 8;

/// What a value is of a byte.
struct Function<'g> {
    root: Value<'g>,
    numbers: Numbers,
}

/// For each byte.
enum Numbers {
    Floats(Box<[f32; 256]>),
    Bytes(Box<Table>),
}

impl<'g> Function<'g> {
    /// A byte of itself.
    fn identity(root: Value<'g>) -> Self {
        Self { root, numbers: Numbers::Bytes(Box::new(std::array::from_fn(|byte| byte as u8))) }
    }

    fn dequantised(&self, scale: ByteScale) -> Option<Self> {
        let Numbers::Bytes(table) = &self.numbers else { return None };
        let numbers = Numbers::Floats(Box::new(table.map(|byte| scale.number(byte))));
        Some(Self { root: self.root, numbers })
    }

    fn quantised(&self, scale: ByteScale, offset: f32) -> Option<Self> {
        let Numbers::Floats(floats) = &self.numbers else { return None };
        let numbers = Numbers::Bytes(Box::new(floats.map(|number| scale.byte(number + offset))));
        Some(Self { root: self.root, numbers })
    }
}

/// What an input of a node is of bytes before it, or else a constant.
type Input<'f, 'g> = (&'f [Function<'g>], Option<Operand<'f>>);

/// What a node computes of functions of the same byte, and of constants.
fn compute<'f, 'g>(op: &str, node: Node<'g>, inputs: &[Input<'f, 'g>], all: &mut Vec<Function<'g>>) -> Result<()> {
    let Some((first, _)) = inputs.iter().find(|(functions, _)| !functions.is_empty()) else { return Ok(()) };
    let (attributes, since) = (node.attributes()?, node.since_version()?);
    for Function { root, .. } in *first {
        let operand = |(functions, constant): &Input<'f, 'g>| {
            let mut of_root = functions.iter().filter(|function| function.root.name().ok() == root.name().ok());
            match of_root.next() {
                Some(Function { numbers: Numbers::Floats(floats), .. }) => Some(Operand::Numbers(floats)),
                Some(_) => None,
                None => *constant,
            }
        };
        let operands = inputs.iter().map(operand).collect::<Option<Vec<_>>>();
        if let Some(floats) = operands.and_then(|operands| numbers::of(op, (&attributes, since), &operands)) {
            all.push(Function { root: *root, numbers: Numbers::Floats(floats) });
        }
    }
    Ok(())
}

fn only(numbers: &[f32]) -> Option<f32> {
    if let [number] = *numbers { Some(number) } else { None }
}

/// The numbers of constant bytes.
fn numbers_in(bytes: Value<'_>, scale: ByteScale) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = bytes.constant()? else { return Ok(None) };
    let Some((bytes, flip)) = tensor.bytes()?.zip(tensor.flip()) else { return Ok(None) };
    Ok(Some(bytes.iter().map(|byte| scale.number(byte ^ flip)).collect()))
}

/// The other one of two inputs of a node.
fn other<'g>(node: Node<'g>, value: Value<'g>) -> Result<Option<Value<'g>>> {
    let [Some(one), Some(other)] = node.inputs()?[..] else { return Ok(None) };
    let name = value.name()?;
    Ok(match [one.name()? == name, other.name()? == name] {
        [true, false] => Some(other),
        [false, true] => Some(one),
        _ => None,
    })
}

/// Constant bytes, and their scales and zero points along an axis: one, or one for each output channel.
fn weights<'g>(
    [tensor, scale, zero]: [Option<Value<'g>>; 3],
    axis: i64,
    (op, attributes): (&str, &Attributes),
) -> Result<Option<(Bytes<'g>, Vec<f32>)>> {
    let tensor = tensor.map(Value::constant).transpose()?.flatten();
    let scale = scale.map(numbers_of).transpose()?.flatten();
    let (Some(tensor), Some(scale)) = (tensor, scale) else { return Ok(None) };
    let (Some(flip), Some(zero)) = (tensor.flip(), zero_points(zero)?) else { return Ok(None) };
    let of_channels = usize::from(op == "ConvTranspose");
    let count = tensor.dims().get(of_channels).map_or(0, |count| *count as usize);
    let axis = if axis < 0 { axis + tensor.dims().len() as i64 } else { axis };
    let is_each = axis == of_channels as i64 && (op == "Conv" || attributes.int("group", 1) == 1);
    let fits = |len: usize| len == 1 || (is_each && len == count);
    let are_scales = scale.iter().all(|scale| *scale > 0.0 && scale.is_finite());
    let fits = fits(scale.len()) && fits(zero.len()) && are_scales;
    Ok(fits.then_some((Bytes { tensor, zero, flip }, scale)))
}

/// Images behind one another, of the scale of Y.
fn concatenated<'g>(x: impl Iterator<Item = ByteScale>, y: ByteScale) -> Kind<'g> {
    Kind::Concat(x.map(|x| (x != y).then(|| Arc::new(requantised(x, y)))).collect())
}

/// Bytes of one scale as those of another one.
pub(crate) fn requantised(x: ByteScale, y: ByteScale) -> Table {
    std::array::from_fn(|byte| y.byte(x.number(byte as u8)))
}
