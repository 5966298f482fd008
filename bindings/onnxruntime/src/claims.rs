//! Which nodes of a graph are convoke's, and which of them are compiled together.

use std::collections::{HashMap, HashSet};

use convoke::DType;

use crate::api::{Failure, Level, Result};
use crate::fusion::{Finder, Fusion, title};
use crate::graph::{Node, Value};
use crate::lrn::Lrn;
use crate::region::{Found, Region, Takes, is_worthwhile, regions, units_of_bytes};
use crate::session::Session;

/// Nodes that are compiled together.
pub(crate) enum Claim<'g> {
    Layer(Box<Fusion<'g>>),
    Concat(Concat<'g>),
    Lrn(Lrn<'g>),
    Region(Region<'g>),
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
            Self::Region(region) => region.nodes(),
        }
    }

    /// The element type that it is computed in.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Layer(layer) => layer.dtype,
            Self::Concat(concat) => concat.dtype,
            Self::Lrn(_) | Self::Region(_) => DType::F32,
        }
    }

    /// Whether runs read constants as onnxruntime holds them, so that it must keep them.
    pub(crate) fn reads_constants_in_runs(&self) -> Result<bool> {
        if let Self::Lrn(lrn) = self {
            return lrn.reads_constants_in_runs();
        }
        for layer in self.layers() {
            if layer.reads_constants_in_runs()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn layers<'p>(&'p self) -> Vec<&'p Fusion<'g>> {
        let of_part = |part: &'p Part<'g>| if let Part::Layer(layer) = part { Some(&**layer) } else { None };
        match self {
            Self::Layer(layer) => vec![layer],
            Self::Concat(concat) => concat.parts.iter().filter_map(of_part).collect(),
            Self::Lrn(_) => Vec::new(),
            Self::Region(region) => region.layers().collect(),
        }
    }
}

/// The claims of a graph, whose nodes are in an order in which they can run. `tell` is told, as the end
/// of a sentence, why a convolution or a node that a region could have is left alone, and why a node is not part of a layer.
pub(crate) fn claims<'g>(
    nodes: &[Node<'g>],
    takes: Takes<'_, 'g>,
    tell: &mut dyn FnMut(Level, Node<'g>, String) -> Result<()>,
) -> Result<Vec<Claim<'g>>> {
    // A region of bytes is found anew in the graph of its fused node, of its own nodes alone. One that would not be is none.
    let is_found_again = |region: &Region<'g>| -> Result<bool> {
        let own: HashSet<_> = region.nodes().into_iter().collect();
        let found = claims_of(nodes, |node| own.contains(&node), &|_| Ok(Ok(())), &mut |_, _, _| Ok(()))?;
        Ok(matches!(&found[..], [Claim::Region(again)] if again.nodes().len() == own.len()))
    };
    let takes = |region: &Region<'g>| match takes(region)? {
        Ok(()) if region.is_quantised() && !is_found_again(region)? => {
            Ok(Err("its region would not be found again in a graph of its own".into()))
        }
        taken => Ok(taken),
    };
    claims_of(nodes, |_| true, &takes, tell)
}

/// The same, of some nodes.
fn claims_of<'g>(
    nodes: &[Node<'g>],
    is_free: impl Fn(Node<'g>) -> bool,
    takes: Takes<'_, 'g>,
    tell: &mut dyn FnMut(Level, Node<'g>, String) -> Result<()>,
) -> Result<Vec<Claim<'g>>> {
    let mut finder = Finder::new(nodes)?;
    let others: Vec<_> = nodes.iter().copied().filter(|node| !is_free(*node)).collect();
    finder.take(&others);
    let mut layers = Vec::new();
    let units = units_of_bytes(nodes, |node| !finder.is_taken(node))?;
    let mut of_bytes = Vec::new();
    for unit in &units {
        finder.take(&unit.nodes);
        of_bytes.extend(unit.convolutions()?);
    }
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
            Err(reason) => tell(Level::Warning, node, format!("is left to onnxruntime: {reason}"))?,
        }
    }
    // Behind all convolutions, which take the normalisations that follow them.
    let mut left = HashMap::new();
    for &node in nodes {
        match finder.normalisation(node)?.transpose() {
            Ok(None) => {}
            Ok(Some(layer)) => {
                finder.take(&layer.nodes);
                layers.push(layer);
            }
            Err(reason) => _ = left.insert(node, reason),
        }
    }
    let Found { regions, layers, apart } = regions(nodes, &finder, (layers, units), takes)?;
    left.extend(apart);
    for region in &regions {
        finder.take(&region.nodes());
    }
    let mut layers = Layers::new(layers)?;
    let mut others: Vec<_> = regions.into_iter().map(Claim::Region).collect();
    for &node in nodes.iter().filter(|node| !finder.is_taken(**node)) {
        match concat(node, &mut layers)? {
            Some(Ok(concat)) => others.push(Claim::Concat(concat)),
            Some(Err(reason)) => {
                let in_no_region = left.get(&node).map(|reason| format!("; and in no region: {reason}"));
                left.insert(node, format!("{reason}{}", in_no_region.unwrap_or_default()));
            }
            None => match Lrn::of(node)?.transpose() {
                Ok(lrn) => others.extend(lrn.map(Claim::Lrn)),
                Err(reason) => _ = left.insert(node, reason),
            },
        }
    }
    let claims: Vec<_> = layers.rest().chain(others).collect();
    let claimed: HashSet<_> = claims.iter().flat_map(Claim::nodes).collect();
    for layer in claims.iter().flat_map(Claim::layers) {
        for (node, reason) in layer.apart.iter().filter(|(node, _)| !claimed.contains(node)) {
            // Once is enough.
            if left.get(node) == Some(reason) {
                left.remove(node);
            }
            tell(Level::Verbose, *node, format!("is not part of {}: {reason}", layer.title()?))?;
        }
    }
    for &node in nodes.iter().filter(|node| !claimed.contains(node)) {
        let (is_of_bytes, op) = (of_bytes.contains(&node), node.op()?);
        let is_dequantised = is_of_bytes && matches!(&*op, "Conv" | "ConvTranspose");
        let dequantised = if is_dequantised { "X and W are dequantised, and " } else { "" };
        let (level, reason) = match (is_of_bytes, &*op, left.get(&node)) {
            (true, _, Some(reason)) => (Level::Warning, &**reason),
            (false, "QLinearConv", _) => (
                Level::Warning,
                "W, B, a scale or a zero point is not constant, channels are unknown, or sums are not as convoke takes them",
            ),
            (false, "ConvInteger", _) => (
                Level::Warning,
                "it does not stand between DynamicQuantizeLinear and a Cast and Mul by both scales, something else reads what \
                 lies between, W or its scale is not constant, or channels are unknown",
            ),
            (.., Some(reason)) => (Level::Verbose, &**reason),
            (.., None) => continue,
        };
        tell(level, node, format!("is left to onnxruntime: {dequantised}{reason}"))?;
    }
    Ok(claims)
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
pub(crate) fn claim_of_all<'g>(nodes: &[Node<'g>], session: &Session) -> Result<Claim<'g>> {
    // As the graph's claims were found; but a part of a graph may be estimated otherwise than as it was in all of it.
    let takes: [Takes<'_, 'g>; 3] =
        [&|region| is_worthwhile(session, region), &|_| Ok(Err(String::new())), &|_| Ok(Ok(()))];
    for takes in takes {
        let mut found = claims_of(nodes, |_| true, takes, &mut |_, _, _| Ok(()))?;
        match (found.pop(), found.is_empty()) {
            (Some(claim), true) if claim.nodes().len() == nodes.len() => return Ok(claim),
            _ => {}
        }
    }
    Err(Failure::other("a fused node that is not what was claimed"))
}

/// A Concat of channels, if there are convolutions among its inputs that nothing else reads; or why it is
/// none. One with a constant is left alone: onnxruntime would keep the weights of all its layers besides.
fn concat<'g>(
    node: Node<'g>,
    layers: &mut Layers<'g>,
) -> Result<Option<std::result::Result<Concat<'g>, &'static str>>> {
    if node.op()? != "Concat" {
        return Ok(None);
    }
    let inputs: Vec<Value<'g>> = node.inputs()?.into_iter().flatten().collect();
    let Some(ty) = inputs.first().map(|value| value.tensor_type()).transpose()?.flatten() else { return Ok(None) };
    let (Some(dtype), Some(dims)) = (ty.dtype(), &ty.dims) else { return Ok(None) };
    let axis = node.attributes()?.int("axis", 1);
    if dims.len() < 3 || !(axis == 1 || axis + dims.len() as i64 == 1) {
        return Ok(Some(Err("its axis is not that of channels, or there are fewer than three axes")));
    }
    for value in &inputs {
        if value.constant()?.is_some() {
            return Ok(Some(Err("an input is constant")));
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
    let concat = Concat { parts, dtype, node, nodes };
    let is_one = concat.nodes.len() > 1;
    Ok(Some(is_one.then_some(concat).ok_or("no input is a convolution of constant weights that only it reads")))
}
