//! Which nodes of a graph are computed together, with channels last between them.

use std::collections::{BTreeSet, HashMap, HashSet};

use convoke::DType;

use crate::api::Result;
use crate::fusion::{Finder, Fusion};
use crate::graph::{Node, Reasoned, Value};
use crate::region::unit::{Kind, Unit, is_image};
use crate::region::{moves, quantised};

/// Units that are compiled into one node, in an order in which they can run.
pub(crate) struct Region<'g> {
    pub(crate) units: Vec<Unit<'g>>,
}

impl<'g> Region<'g> {
    /// The element type of its inputs and outputs. Inside, it computes in `f32`.
    pub(crate) fn dtype(&self) -> Result<DType> {
        for value in self.units.iter().flat_map(|unit| &unit.outputs) {
            if let Some(dtype) = value.tensor_type()?.and_then(|ty| ty.dtype()) {
                return Ok(dtype);
            }
        }
        // All of it is of bytes.
        Ok(DType::F32)
    }

    /// Whether it has convolutions of bytes.
    pub(crate) fn is_quantised(&self) -> bool {
        self.units.iter().any(Unit::is_quantised)
    }

    pub(crate) fn nodes(&self) -> Vec<Node<'g>> {
        self.units.iter().flat_map(|unit| unit.nodes.clone()).collect()
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = &Fusion<'g>> {
        self.units.iter().filter_map(Unit::layer)
    }
}

/// Whether a region is to be one, or why not.
pub(crate) type Takes<'t, 'g> = &'t dyn Fn(&Region<'g>) -> Result<Reasoned<()>>;

/// What is found in a graph.
pub(crate) struct Found<'g> {
    pub(crate) regions: Vec<Region<'g>>,
    /// The layers that are in no region.
    pub(crate) layers: Vec<Fusion<'g>>,
    /// Why nodes of a kind that regions compute are in none.
    pub(crate) apart: HashMap<Node<'g>, String>,
}

/// What a graph is made of: units, and nodes that are none.
struct Part<'g> {
    unit: Option<Unit<'g>>,
    nodes: Vec<Node<'g>>,
    /// Whether it can be computed together with others.
    can_join: bool,
    /// How often the way to it leaves the units, at most. A unit and another one of the same level cannot have
    /// a foreign node between them, so they can be one node of the graph.
    level: usize,
    /// The part that stands for all that it is connected with.
    group: usize,
}

/// The regions of a graph, of the layers and the units of bytes that are found in it, and of other nodes.
pub(crate) fn regions<'g>(
    nodes: &[Node<'g>],
    finder: &Finder<'g>,
    (layers, mut units): (Vec<Fusion<'g>>, Vec<Unit<'g>>),
    takes: Takes<'_, 'g>,
) -> Result<Found<'g>> {
    // Those beside convolutions of bytes alone.
    let has_bytes = !units.is_empty();
    let mut found = Found { regions: Vec::new(), layers: Vec::new(), apart: HashMap::new() };
    for layer in layers {
        if is_layer_of_region(&layer)? {
            units.push(Unit { stands_alone: true, ..Unit::of_layer(layer)? });
        } else {
            found.layers.push(layer);
        }
    }
    let mut finder = finder.clone();
    for &node in nodes {
        let unit = match finder.pass(node)? {
            Some(layer) if is_layer_of_region(&layer)? && layer.check()?.is_ok() => Some(Unit::of_layer(layer)?),
            _ if finder.is_taken(node) => None,
            _ => match moves::unit(node)?.filter(|unit| !unit.nodes.iter().any(|node| finder.is_taken(*node))) {
                Some(unit) => Some(unit),
                None => match Unit::of(node)?.transpose() {
                    Ok(unit) => unit,
                    Err(reason) => {
                        found.apart.insert(node, reason);
                        None
                    }
                },
            },
        };
        if let Some(unit) = unit.filter(|unit| has_bytes || !unit.is_of_bytes()) {
            finder.take(&unit.nodes);
            units.push(unit);
        }
    }
    let conversions = quantised::conversions(nodes, &units, |node| !finder.is_taken(node))?;
    units.extend(conversions);
    let parts = grouped(parts(nodes, units)?)?;
    let mut by_group: Vec<Vec<Unit<'g>>> = parts.iter().map(|_| Vec::new()).collect();
    for part in parts {
        if let Some(unit) = part.unit {
            by_group[part.group].push(unit);
        }
    }
    for units in by_group {
        let has_layer = units.iter().any(|unit| unit.stands_alone);
        let mut region = Region { units };
        quantised::drop_edges(&mut region.units)?;
        let reason = match () {
            () if region.is_quantised() => takes(&region)?.err(),
            // Other units of bytes are found beside convolutions of bytes alone.
            () if region.units.iter().any(Unit::is_of_bytes) => Some("no convolution of bytes is beside it".into()),
            () if !has_layer => {
                Some("no layer with constant weights is beside it, without another node between them".into())
            }
            () if region.units.len() == 1 => Some("nothing that a region has is beside it".into()),
            () => takes(&region)?.err(),
        };
        let Some(reason) = reason else {
            found.regions.push(region);
            continue;
        };
        for unit in region.units {
            found.apart.extend(unit.nodes.iter().map(|node| (*node, reason.clone())));
            found.layers.extend(match unit.kind {
                Kind::Layer(layer) if unit.stands_alone => Some(*layer),
                _ => None,
            });
        }
    }
    Ok(found)
}

/// Whether a layer is one of floats whose weights are the same in every run, and its tensors are not.
fn is_layer_of_region(layer: &Fusion<'_>) -> Result<bool> {
    let tensors = [Some(layer.x), layer.residual, Some(layer.output()?)];
    for value in tensors.into_iter().flatten() {
        if !is_image(value)? {
            return Ok(false);
        }
    }
    layer.has_constant_weights()
}

/// All nodes of a graph, those of a unit together, in the order of their last nodes.
fn parts<'g>(nodes: &[Node<'g>], units: Vec<Unit<'g>>) -> Result<Vec<Part<'g>>> {
    let places: HashMap<Node<'g>, usize> = nodes.iter().enumerate().map(|(i, node)| (*node, i)).collect();
    let place = |node: &Node<'g>| places.get(node).copied().unwrap_or(usize::MAX);
    let taken: HashSet<_> = units.iter().flat_map(|unit| unit.nodes.clone()).collect();
    let alone = nodes.iter().filter(|node| !taken.contains(node)).map(|node| (None, vec![*node]));
    let of_units = units.into_iter().map(|unit| {
        let nodes = unit.nodes.clone();
        (Some(unit), nodes)
    });
    let mut parts: Vec<_> = of_units
        .chain(alone)
        .map(|(unit, nodes)| Part { can_join: unit.is_some(), unit, nodes, level: 0, group: 0 })
        .collect();
    parts.sort_by_key(|part| part.nodes.iter().map(place).max());
    Ok(parts)
}

/// What reads a part.
#[derive(Default)]
struct Readers {
    parts: Vec<usize>,
    /// Whether another graph reads it, too.
    are_more: bool,
}

fn readers(parts: &[Part<'_>]) -> Result<Vec<Readers>> {
    let numbered = parts.iter().enumerate();
    let of_node: HashMap<_, _> = numbered.flat_map(|(i, part)| part.nodes.iter().map(move |node| (*node, i))).collect();
    let mut all = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let mut readers = Readers::default();
        for node in &part.nodes {
            for output in node.outputs()?.into_iter().flatten() {
                for (reader, _) in output.readers()? {
                    match of_node.get(&reader) {
                        Some(&reader) if reader != i => readers.parts.push(reader),
                        Some(_) => {}
                        None => readers.are_more = true,
                    }
                }
            }
        }
        all.push(readers);
    }
    Ok(all)
}

/// An order in which parts can run, near to that of their numbers. A part may have its last node behind one that reads
/// another of its nodes. Parts that read one another come last.
fn order(readers: &[Readers]) -> Vec<usize> {
    let mut waits = vec![0; readers.len()];
    readers.iter().flat_map(|readers| &readers.parts).for_each(|reader| waits[*reader] += 1);
    let mut ready: BTreeSet<usize> = (0..readers.len()).filter(|i| waits[*i] == 0).collect();
    let mut order = Vec::new();
    while let Some(i) = ready.pop_first() {
        order.push(i);
        for &reader in &readers[i].parts {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.insert(reader);
            }
        }
    }
    order.extend((0..readers.len()).filter(|i| waits[*i] > 0));
    order
}

/// Parts in an order in which they can run, with the level and the group of each.
fn grouped(parts: Vec<Part<'_>>) -> Result<Vec<Part<'_>>> {
    let all = readers(&parts)?;
    let order = order(&all);
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, part)| place[*part] = at);
    let mut unplaced: Vec<_> = parts.into_iter().map(Some).collect();
    let mut parts: Vec<_> = order.iter().filter_map(|part| unplaced[*part].take()).collect();
    let mut edges = Vec::new();
    for (i, part) in order.iter().enumerate() {
        let readers = all[*part].parts.iter().map(|reader| place[*reader]);
        parts[i].group = i;
        // A reader that is not among the nodes behind it: then the way from here is not known.
        if all[*part].are_more || readers.clone().any(|reader| reader < i) {
            parts[i].can_join = false;
        }
        for reader in readers.filter(|reader| *reader > i) {
            let leaves = parts[reader].can_join && !parts[i].can_join;
            parts[reader].level = parts[reader].level.max(parts[i].level + usize::from(leaves));
            edges.push((i, reader));
        }
    }
    for (i, reader) in edges {
        if parts[i].can_join && parts[reader].can_join && parts[i].level == parts[reader].level {
            let (one, other) = (root(&parts, i), root(&parts, reader));
            parts[one.max(other)].group = one.min(other);
        }
    }
    for i in 0..parts.len() {
        parts[i].group = root(&parts, i);
    }
    Ok(parts)
}

fn root(parts: &[Part<'_>], mut i: usize) -> usize {
    while parts[i].group != i {
        i = parts[i].group;
    }
    i
}

/// The values that a region reads and does not compute, each once.
pub(crate) fn inputs<'g>(region: &Region<'g>) -> Result<Vec<Value<'g>>> {
    let (mut known, mut inputs) = (HashSet::new(), Vec::new());
    for unit in &region.units {
        for value in &unit.inputs {
            if known.insert(value.name()?) {
                inputs.push(*value);
            }
        }
        for value in &unit.outputs {
            known.insert(value.name()?);
        }
    }
    Ok(inputs)
}
