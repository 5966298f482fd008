//! Which nodes of a graph are convoke's, and which of them are compiled together.

use std::collections::HashMap;

use convoke::DType;

use crate::api::{Failure, Result};
use crate::fusion::{Finder, Fusion, title};
use crate::graph::{Node, Value};
use crate::lrn::Lrn;

/// Nodes that are compiled together.
pub(crate) enum Claim<'g> {
    Layer(Box<Fusion<'g>>),
    Concat(Concat<'g>),
    Lrn(Lrn<'g>),
}

/// A Concat of channels: layers write into its output, and other tensors are copied there.
pub(crate) struct Concat<'g> {
    pub(crate) parts: Vec<Part<'g>>,
    dtype: DType,
    node: Node<'g>,
    nodes: Vec<Node<'g>>,
}

/// An input of a Concat.
pub(crate) enum Part<'g> {
    /// One that only the Concat reads.
    Layer(Box<Fusion<'g>>),
    /// One that is no constant.
    Tensor(Value<'g>),
}

impl Concat<'_> {
    pub(crate) fn title(&self) -> Result<String> {
        title(self.node, &self.nodes)
    }
}

impl<'g> Claim<'g> {
    pub(crate) fn nodes(&self) -> Vec<Node<'g>> {
        match self {
            Self::Layer(layer) => layer.nodes.clone(),
            Self::Concat(concat) => concat.nodes.clone(),
            Self::Lrn(lrn) => vec![lrn.node],
        }
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Layer(layer) => layer.dtype,
            Self::Concat(concat) => concat.dtype,
            Self::Lrn(_) => DType::F32,
        }
    }

    /// Whether runs read constants as onnxruntime holds them, so that it must keep them.
    pub(crate) fn reads_constants_in_runs(&self) -> Result<bool> {
        let parts = match self {
            Self::Layer(layer) => return layer.reads_constants_in_runs(),
            Self::Lrn(lrn) => return lrn.reads_constants_in_runs(),
            Self::Concat(concat) => &concat.parts,
        };
        for part in parts {
            if let Part::Layer(layer) = part
                && layer.reads_constants_in_runs()?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The claims of a graph, whose nodes are in an order in which they can run. `leave` is told why a
/// convolution is left alone.
pub(crate) fn claims<'g>(
    nodes: &[Node<'g>],
    leave: &mut dyn FnMut(Node<'g>, String) -> Result<()>,
) -> Result<Vec<Claim<'g>>> {
    let mut finder = Finder::new(nodes)?;
    let mut layers = Vec::new();
    for &node in nodes {
        let found = match finder.layer(node)? {
            Some(Ok(layer)) => layer.check()?.map(|()| layer),
            Some(Err(reason)) => Err(reason),
            None => continue,
        };
        match found {
            Ok(layer) => {
                finder.take(&layer.nodes);
                layers.push(layer);
            }
            Err(reason) => leave(node, reason)?,
        }
    }
    // Behind all convolutions, which take the normalisations that follow them.
    for &node in nodes {
        if let Some(layer) = finder.normalisation(node)?
            && layer.check()?.is_ok()
        {
            finder.take(&layer.nodes);
            layers.push(layer);
        }
    }
    let mut layers = Layers::new(layers)?;
    let mut others = Vec::new();
    for &node in nodes.iter().filter(|node| !finder.is_taken(**node)) {
        others.extend(concat(node, &mut layers)?.map(Claim::Concat));
        others.extend(Lrn::of(node)?.map(Claim::Lrn));
    }
    Ok(layers.rest().chain(others).collect())
}

/// Layers in the order of the graph, which a Concat can take.
struct Layers<'g> {
    layers: Vec<Option<Fusion<'g>>>,
    by_output: HashMap<String, usize>,
}

impl<'g> Layers<'g> {
    fn new(layers: Vec<Fusion<'g>>) -> Result<Self> {
        let name = |(i, layer): (usize, &Fusion<'g>)| Ok((layer.output()?.name()?, i));
        let by_output = layers.iter().enumerate().map(name).collect::<Result<_>>()?;
        Ok(Self { layers: layers.into_iter().map(Some).collect(), by_output })
    }

    /// Takes the convolution whose output a value is, if its weights are constant and only one node
    /// reads the value.
    fn take_for(&mut self, node: Node<'g>, value: Value<'g>) -> Result<Option<Fusion<'g>>> {
        let Some(&i) = self.by_output.get(&value.name()?) else { return Ok(None) };
        let fits = match &self.layers[i] {
            Some(layer) if layer.is_normalisation() => false,
            Some(layer) => layer.has_constant_weights()? && value.only_consumer()? == Some(node),
            None => false,
        };
        Ok(if fits { self.layers[i].take() } else { None })
    }

    /// Those that nobody took.
    fn rest(self) -> impl Iterator<Item = Claim<'g>> {
        self.layers.into_iter().flatten().map(|layer| Claim::Layer(layer.into()))
    }
}

/// The only claim of the graph of a fused node.
pub(crate) fn claim_of_all<'g>(nodes: &[Node<'g>]) -> Result<Claim<'g>> {
    let mut found = claims(nodes, &mut |_, _| Ok(()))?;
    match (found.pop(), found.is_empty()) {
        (Some(claim), true) if claim.nodes().len() == nodes.len() => Ok(claim),
        _ => Err(Failure::other("a fused node that is not what was claimed")),
    }
}

/// A Concat of channels, if there are convolutions among its inputs that nothing else reads. One with
/// a constant is left alone: onnxruntime would keep the weights of all its layers besides.
fn concat<'g>(node: Node<'g>, layers: &mut Layers<'g>) -> Result<Option<Concat<'g>>> {
    if node.op()? != "Concat" {
        return Ok(None);
    }
    let inputs: Vec<Value<'g>> = node.inputs()?.into_iter().flatten().collect();
    let Some(ty) = inputs.first().map(|value| value.tensor_type()).transpose()?.flatten() else { return Ok(None) };
    let (Some(dtype), Some(dims)) = (ty.dtype(), &ty.dims) else { return Ok(None) };
    let axis = node.attributes()?.int("axis", 1);
    if dims.len() < 3 || !(axis == 1 || axis + dims.len() as i64 == 1) {
        return Ok(None);
    }
    for value in &inputs {
        if value.constant()?.is_some() {
            return Ok(None);
        }
    }
    let (mut parts, mut nodes) = (Vec::new(), Vec::new());
    for value in inputs {
        parts.push(match layers.take_for(node, value)? {
            Some(layer) => {
                nodes.extend(&layer.nodes);
                Part::Layer(layer.into())
            }
            None => Part::Tensor(value),
        });
    }
    nodes.push(node);
    Ok((nodes.len() > 1).then_some(Concat { parts, dtype, node, nodes }))
}
