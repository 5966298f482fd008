//! Which layouts the layers of a region read and write: channels last, unless channels first are estimated to take less
//! time, with the conversions that they ask for.

use std::collections::{HashMap, HashSet};

use convoke::{Activation, Conv, Layout, Operator};

use crate::api::Result;
use crate::fusion::Fusion;
use crate::graph::{Node, Value};
use crate::layer::usual_shape;
use crate::region::find::{Region, inputs};
use crate::region::unit::Unit;
use crate::session::Session;

/// The layouts of X and Y.
pub(crate) type Layouts = [Layout; 2];

const FIRST: Layout = Layout::ChannelsFirst;
const LAST: Layout = Layout::ChannelsLast;

/// What is picked for a region.
pub(crate) struct Choice {
    /// The layouts of each unit. Units that are no layers have channels last.
    pub(crate) layouts: Vec<Layouts>,
    /// The estimate of all layers and conversions, in nanoseconds, and that of the layers with channels first. `None`
    /// if a size is unknown.
    pub(crate) estimates: Option<[f64; 2]>,
}

impl Choice {
    pub(crate) fn of(session: &Session, region: &Region<'_>) -> Result<Self> {
        // Which of both layouts each value has.
        let mut there = HashMap::new();
        for value in inputs(region)? {
            there.insert(value.name()?, [true, false]);
        }
        let outputs = Outputs::of(region)?;
        let (mut layouts, mut estimates) = (Vec::new(), Some([0.0, 0.0]));
        for unit in &region.units {
            let mut picked = [LAST; 2];
            if let Some(layer) = unit.layer() {
                let around = Surroundings::of(&there, &outputs, layer, unit)?;
                let pick = pick(session, layer, &around)?;
                let first = if unit.stands_alone { estimate(session, layer, [FIRST; 2])? } else { Some(0.0) };
                estimates = match (estimates, pick, first) {
                    (Some([here, apart]), Some((_, own)), Some(first)) => Some([here + own, apart + first]),
                    _ => None,
                };
                picked = pick.map_or(around.usual(), |(layouts, _)| layouts);
                mark(&mut there, layer.x, picked[0])?;
                if let Some(residual) = layer.residual {
                    mark(&mut there, residual, picked[1])?;
                }
            } else {
                for value in &unit.inputs {
                    mark(&mut there, *value, LAST)?;
                }
            }
            for value in &unit.outputs {
                mark(&mut there, *value, picked[1])?;
            }
            layouts.push(picked);
        }
        Ok(Self { layouts, estimates })
    }
}

fn mark(there: &mut HashMap<String, [bool; 2]>, value: Value<'_>, layout: Layout) -> Result<()> {
    there.entry(value.name()?).or_default()[usize::from(layout == LAST)] = true;
    Ok(())
}

/// Values that leave a region, and those that units read.
pub(crate) struct Outputs {
    leaving: HashSet<String>,
    read: HashSet<String>,
}

impl Outputs {
    fn of(region: &Region<'_>) -> Result<Self> {
        let nodes: HashSet<Node<'_>> = region.nodes().into_iter().collect();
        let (mut leaving, mut read) = (HashSet::new(), HashSet::new());
        for unit in &region.units {
            for value in &unit.inputs {
                read.insert(value.name()?);
            }
            for value in &unit.outputs {
                if value.consumers()?.is_none_or(|consumers| consumers.iter().any(|node| !nodes.contains(node))) {
                    leaving.insert(value.name()?);
                }
            }
        }
        Ok(Self { leaving, read })
    }
}

/// What is known of a layer's tensors when its layouts are picked.
struct Surroundings {
    /// Whether X and the residual are there with channels first, and with channels last.
    x: [bool; 2],
    residual: Option<[bool; 2]>,
    /// What reads Y.
    wanted: Layout,
}

impl Surroundings {
    fn of(there: &HashMap<String, [bool; 2]>, outputs: &Outputs, layer: &Fusion<'_>, unit: &Unit<'_>) -> Result<Self> {
        let known = |value: Value<'_>| -> Result<_> { Ok(there.get(&value.name()?).copied().unwrap_or_default()) };
        let y = unit.outputs[0].name()?;
        let is_only_output = outputs.leaving.contains(&y) && !outputs.read.contains(&y);
        let residual = layer.residual.map(known).transpose()?;
        Ok(Self { x: known(layer.x)?, residual, wanted: if is_only_output { FIRST } else { LAST } })
    }

    fn usual(&self) -> Layouts {
        [if self.x[1] { LAST } else { FIRST }, self.wanted]
    }
}

/// The layouts of a layer, and their estimate with conversions, if its size is known.
fn pick(session: &Session, layer: &Fusion<'_>, around: &Surroundings) -> Result<Option<(Layouts, f64)>> {
    let (Some(x_shape), Some(y_shape)) = (shape(layer.x)?, shape(layer.output()?)?) else { return Ok(None) };
    let is_there = |known: [bool; 2], layout: Layout| known[usize::from(layout == LAST)];
    let mut best: Option<(Layouts, f64)> = None;
    for layouts @ [x, y] in [around.usual(), [LAST, LAST], [FIRST, FIRST], [FIRST, LAST], [LAST, FIRST]] {
        // Layers that convert on the way are worth a look where nothing else would be converted.
        if x != y && layouts != around.usual() || x == y && best.is_some_and(|(known, _)| known == layouts) {
            continue;
        }
        let Some(mut cost) = estimate(session, layer, layouts)? else { return Ok(None) };
        if !is_there(around.x, x) {
            cost += conversion(session, &x_shape, x);
        }
        if around.residual.is_some_and(|known| !is_there(known, y)) {
            cost += conversion(session, &y_shape, y);
        }
        if y != around.wanted {
            cost += conversion(session, &y_shape, around.wanted);
        }
        if best.is_none_or(|(_, least)| cost < least) {
            best = Some((layouts, cost));
        }
    }
    Ok(best)
}

/// The estimate of a layer with layouts, if its size is known.
fn estimate(session: &Session, layer: &Fusion<'_>, [x, y]: Layouts) -> Result<Option<f64>> {
    let (Some(dims), Some(x_shape)) = (layer.weight_dims()?, shape(layer.x)?) else { return Ok(None) };
    let Ok(operator) = layer.operator(&dims) else { return Ok(None) };
    Ok(session.estimate(operator.layouts(x, y), layer.activation, &x_shape))
}

/// The estimate of a tensor that is moved to a layout.
fn conversion(session: &Session, shape: &[usize], to: Layout) -> f64 {
    let from = if to == FIRST { LAST } else { FIRST };
    let mut w_shape = vec![1; shape.len()];
    w_shape[0] = shape[1];
    let operator = Operator::from(Conv::new(w_shape).group(shape[1] as i64)).layouts(from, to);
    session.estimate(operator, Activation::None, shape).unwrap_or(f64::INFINITY)
}

/// The shape of a value, with one image if their number is unknown.
fn shape(value: Value<'_>) -> Result<Option<Vec<usize>>> {
    Ok(value.tensor_type()?.as_ref().and_then(usual_shape))
}
