//! Which layouts the layers of a region read and write: channels last, unless channels first are estimated to take less
//! time, with the conversions that they ask for.

use std::collections::{HashMap, HashSet};

use convoke::{Activation, DType, Layout};

use crate::api::{Level, Result};
use crate::fusion::Fusion;
use crate::graph::{Node, Reasoned, Value};
use crate::layer::usual_shape;
use crate::options;
use crate::region::bytes::{Integers, is_of_bytes, plain};
use crate::region::find::{Region, inputs};
use crate::region::linear::of_numbers;
use crate::region::unit::{Kind, Unit, are_neighbours, channels, dims};
use crate::session::Session;
use crate::sum;

/// The layouts of X and Y.
pub(crate) type Layouts = [Layout; 2];

pub(crate) const FIRST: Layout = Layout::ChannelsFirst;
pub(crate) const LAST: Layout = Layout::ChannelsLast;

/// What is picked for a region.
pub(crate) struct Choice {
    /// The layouts of each unit. Units that are no layers have channels last.
    pub(crate) layouts: Vec<Layouts>,
    /// The estimate of all units and conversions, in nanoseconds, and that of the layers with channels first, each of
    /// which is a call of its own, and of onnxruntime's nodes. `None` if a layer cannot be planned.
    pub(crate) estimates: Option<[f64; 2]>,
}

/// Nanoseconds that onnxruntime takes to call a node.
const CALL: f64 = 1000.0;

/// Nanoseconds for an element of a pass over bytes: of onnxruntime's nodes that are part of a table or convolution here, and
/// of the two passes here that find the scale of a run.
const PASS_OF_BYTES: f64 = 0.3;

/// Nanoseconds for a byte here that is replaced by an entry of a table: between those of CPUs with and without AVX-512 VBMI.
const LOOK_UP: f64 = 0.1;

/// Nodes of onnxruntime that compute a unit: of quantised nodes, one for each QuantizeLinear or operator of bytes.
fn calls(unit: &Unit<'_>) -> Result<usize> {
    let ops = unit.nodes.iter().map(|node| node.op()).collect::<Result<Vec<_>>>()?;
    let is_one = |op: &&String| plain(op) == "QuantizeLinear" || of_numbers(op).is_some();
    Ok(if matches!(unit.kind, Kind::Dynamic(_)) { ops.len() } else { ops.iter().filter(is_one).count().max(1) })
}

/// How large the estimate of a region may be, in proportion to that of its layers with channels first: these take a
/// little longer in a network than alone.
const MOST: f64 = 1.02;

impl Choice {
    /// Whether the region is estimated to take less time; `None` if that is not known.
    pub(crate) fn is_faster(&self) -> Option<bool> {
        self.estimates.map(|[here, apart]| here < MOST * apart)
    }

    pub(crate) fn of(session: &Session, region: &Region<'_>) -> Result<Self> {
        // Which of both layouts each value has.
        let mut there = HashMap::new();
        for value in inputs(region)? {
            there.insert(value.name()?, [true, false]);
        }
        let (outputs, dtype, shapes) = (Outputs::of(region)?, region.dtype()?, Shapes::of(region)?);
        let (mut layouts, mut estimates) = (Vec::new(), Some([CALL, 0.0]));
        let has_byte_products = region.is_quantised() && session.has_byte_products();
        for unit in &region.units {
            let mut picked = [LAST; 2];
            if let Some(layer) = unit.layer() {
                let around = Surroundings::of(&there, &outputs, layer, unit)?;
                let pick = pick(session, layer, &around, &shapes)?;
                let first = match unit.stands_alone {
                    true => estimate(session, layer, dtype, ([FIRST; 2], &shapes))?,
                    false => Some(0.0),
                };
                estimates = match (estimates, pick, first) {
                    (Some([here, apart]), Some((_, own)), Some(first)) => Some([here + own, apart + first]),
                    _ => None,
                };
                picked = pick.map_or(around.usual(), |(layouts, _)| layouts);
                mark(&mut there, layer.x, picked[0])?;
                if let Some(residual) = layer.residual {
                    mark(&mut there, residual, picked[1])?;
                }
            }
            let calls = calls(unit)?;
            let (layers, is_dynamic) = match &unit.kind {
                Kind::Integers(layer) => (std::slice::from_ref(&**layer), false),
                Kind::Dynamic(layers) => (&layers[..], true),
                _ => (&[][..], false),
            };
            for layer in layers {
                let kind = (is_dynamic, has_byte_products);
                let found = of_integers(session, (layer, kind), shapes.get(unit.inputs[0])?);
                estimates = match (estimates, found) {
                    (Some([here, apart]), Some([own, theirs])) => Some([here + own, apart + theirs]),
                    _ => None,
                };
            }
            let computed = unit.outputs.iter().map(|value| shapes.get(*value)).collect::<Result<Option<Vec<_>>>>()?;
            let count = |shape: &Vec<usize>| shape.iter().map(|size| *size as f64).product::<f64>();
            let elements = computed.map(|shapes| shapes.into_iter().map(count).sum::<f64>());
            estimates = estimates.zip(elements).map(|([here, apart], elements)| {
                let [own, theirs] = nanoseconds_an_element(&unit.kind);
                let passes = (calls - 1) as f64 * PASS_OF_BYTES;
                [here + own * elements, apart + (theirs + passes) * elements + calls as f64 * CALL]
            });
            // Conversions that no layer has been asked for.
            let mut converted = Vec::new();
            for value in unit.inputs.iter().filter(|_| unit.layer().is_none()) {
                if !mark(&mut there, *value, LAST)? {
                    converted.push((*value, LAST));
                }
            }
            for value in &unit.outputs {
                mark(&mut there, *value, picked[1])?;
                let name = value.name()?;
                if outputs.leaving.contains(&name) && (unit.layer().is_none() || outputs.read.contains(&name)) {
                    converted.push((*value, FIRST));
                }
            }
            for (value, to) in converted {
                let cost = conversion_of(session, value, &shapes, to)?;
                estimates = estimates.zip(cost).map(|([here, apart], cost)| [here + cost, apart]);
            }
            layouts.push(picked);
        }
        Ok(Self { layouts, estimates })
    }
}

/// Nanoseconds that a unit, unless it is a layer, takes for an element of what it computes: in a region, and as a node of
/// onnxruntime with channels first. Those that take about as long in both are left out.
fn nanoseconds_an_element(kind: &Kind<'_>) -> [f64; 2] {
    match kind {
        Kind::Resize(resize) if resize.is_linear() => [0.4, 1.4],
        Kind::Slopes(_) => [0.5, 3.0],
        // Parts lie within the whole, in a region.
        Kind::Concat(_) => [0.0, 0.25],
        Kind::Channels(picks) if picks.iter().all(|(channels, _)| are_neighbours(channels)) => [0.0, 0.25],
        Kind::Channels(_) => [0.3, 0.25],
        Kind::Layer(_) | Kind::Pool(_) | Kind::Resize(_) | Kind::Product => [0.0; 2],
        Kind::Integers(layer) if layer.table.is_none() => [0.0; 2],
        Kind::Dynamic(_) => [PASS_OF_BYTES, 0.0],
        Kind::Integers(_) | Kind::Table(_) => [LOOK_UP, 0.0],
        Kind::Lines(lines) => [LOOK_UP, if lines.above == lines.below { 0.3 } else { 3.0 }],
        Kind::Blend(_) | Kind::Means(..) | Kind::Quantise(_) | Kind::Dequantise(_) => [0.0; 2],
    }
}

/// Whether a session has a region, because that is estimated to take less time, or why not.
pub(crate) fn is_worthwhile(session: &Session, region: &Region<'_>) -> Result<Reasoned<()>> {
    let estimated = || -> Result<Reasoned<()>> {
        let choice = Choice::of(session, region)?;
        let estimates = match choice.estimates {
            Some([here, apart]) => format!("estimated at {here:.0} ns, with channels first at {apart:.0} ns"),
            None => "cannot be estimated, because a layer cannot be planned".into(),
        };
        // Layers of short floats are slow.
        let is_taken = choice.is_faster().unwrap_or(region.dtype()? == DType::F16);
        session.log().write(Level::Verbose, || {
            let verdict = if is_taken { "is taken" } else { "is not taken" };
            format!("a region of {} nodes {verdict}: {estimates}", region.nodes().len())
        });
        Ok(if is_taken { Ok(()) } else { Err(format!("its region is not taken: {estimates}")) })
    };
    match session.layout() {
        options::Layout::First => Ok(Err("the option layout is first".into())),
        options::Layout::Last => Ok(Ok(())),
        options::Layout::Auto => estimated(),
    }
}

/// Marks a layout as one that a value has, and says whether it had it before.
fn mark(there: &mut HashMap<String, [bool; 2]>, value: Value<'_>, layout: Layout) -> Result<bool> {
    let is_there = &mut there.entry(value.name()?).or_default()[usize::from(layout == LAST)];
    Ok(std::mem::replace(is_there, true))
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
fn pick(
    session: &Session,
    layer: &Fusion<'_>,
    around: &Surroundings,
    shapes: &Shapes,
) -> Result<Option<(Layouts, f64)>> {
    let (Some(x_shape), Some(y_shape)) = (shapes.get(layer.x)?, shapes.get(layer.output()?)?) else { return Ok(None) };
    let is_there = |known: [bool; 2], layout: Layout| known[usize::from(layout == LAST)];
    let mut best: Option<(Layouts, f64)> = None;
    for layouts @ [x, y] in [around.usual(), [LAST; 2], [FIRST; 2]] {
        let Some(mut cost) = estimate(session, layer, DType::F32, (layouts, shapes))? else { return Ok(None) };
        if !is_there(around.x, x) {
            cost += conversion(session, x_shape, x);
        }
        if around.residual.is_some_and(|known| !is_there(known, y)) {
            cost += conversion(session, y_shape, y);
        }
        if y != around.wanted {
            cost += conversion(session, y_shape, around.wanted);
        }
        if best.is_none_or(|(_, least)| cost < least) {
            best = Some((layouts, cost));
        }
    }
    Ok(best)
}

/// The estimate of a layer with layouts, if it can be planned.
fn estimate(
    session: &Session,
    layer: &Fusion<'_>,
    dtype: DType,
    ([x, y], shapes): (Layouts, &Shapes),
) -> Result<Option<f64>> {
    let (Some(dims), Some(x_shape)) = (layer.weight_dims()?, shapes.get(layer.x)?) else { return Ok(None) };
    let Ok(operator) = layer.operator(&dims) else { return Ok(None) };
    Ok(session.estimate(dtype, operator.layouts(x, y), layer.activation, x_shape))
}

/// The estimate of a tensor that is moved to a layout. Estimates are those of tensors in the caches. One that is moved
/// mostly comes from memory or goes there, which takes twice as long.
fn conversion(session: &Session, shape: &[usize], to: Layout) -> f64 {
    let from = if to == FIRST { LAST } else { FIRST };
    let operator = sum::of_ones(shape[1], shape.len(), [from, to]);
    2.0 * session.estimate(DType::F32, operator, Activation::None, shape).unwrap_or(f64::INFINITY)
}

/// The same of a value, if its shape is known.
fn conversion_of(session: &Session, value: Value<'_>, shapes: &Shapes, to: Layout) -> Result<Option<f64>> {
    let Some(shape) = shapes.get(value)? else { return Ok(None) };
    let elements: f64 = shape.iter().map(|size| *size as f64).product();
    Ok(Some(if is_of_bytes(value)? { REORDERED_BYTE * elements } else { conversion(session, shape, to) }))
}

/// Nanoseconds for a byte that is moved to another layout.
const REORDERED_BYTE: f64 = 0.15;
/// What convolutions of bytes take, in times of one of floats.
struct ByteCosts {
    /// Here, and in onnxruntime.
    dense: [f64; 2],
    /// Of groups of one channel.
    depthwise: [f64; 2],
}

/// How much longer ConvInteger takes in onnxruntime than here, where the CPU multiplies bytes.
const DYNAMIC_OF_ONNXRUNTIME: f64 = 1.3;

/// Where the CPU multiplies bytes and adds them in 32 bits.
const OF_BYTES: ByteCosts = ByteCosts { dense: [0.5, 0.65], depthwise: [1.0, 1.7] };
/// Where sums of products of 16 bits are exact, and onnxruntime adds products in 16 bits, which saturates.
const OF_PAIRS: ByteCosts = ByteCosts { dense: [0.7, 0.52], depthwise: [1.6, 1.7] };

/// The estimate of a convolution of bytes here, and of onnxruntime's nodes: it computes a ConvTranspose in floats.
fn of_integers(
    session: &Session,
    (layer, (is_dynamic, has_byte_products)): (&Integers<'_>, (bool, bool)),
    x_shape: Option<&Vec<usize>>,
) -> Option<[f64; 2]> {
    let operator = layer.operator().ok()?.layouts(LAST, LAST);
    let floats = session.estimate(DType::F32, operator, Activation::None, x_shape?)?;
    let ByteCosts { dense, depthwise } = if has_byte_products { OF_BYTES } else { OF_PAIRS };
    // A CPU that multiplies bytes does so only if the zero point of W is the middle.
    let is_refused = has_byte_products && !layer.is_centred();
    let own = if is_refused { 1.0 } else { dense[0] };
    let costs = match () {
        // onnxruntime computes it in floats.
        () if layer.op != "Conv" => [own, 1.0],
        () if layer.is_depthwise() && !is_refused => depthwise,
        () if is_dynamic && has_byte_products => [own, own * DYNAMIC_OF_ONNXRUNTIME],
        () => [own, dense[1]],
    };
    Some(costs.map(|cost| floats * cost))
}

fn shape_of(layer: &Integers<'_>, x_shape: &[usize]) -> Option<Vec<usize>> {
    Some(layer.operator().ok()?.geometry(x_shape).ok()?.output_shape())
}

/// The shapes of a region's values, or some that may well be: sizes that are unknown are taken for usual ones.
struct Shapes(HashMap<String, Vec<usize>>);

/// What stands for an unknown size of an image.
const USUAL_SIZE: usize = 320;

impl Shapes {
    fn of(region: &Region<'_>) -> Result<Self> {
        let mut shapes = Self(HashMap::new());
        for value in inputs(region)? {
            let sizes = dims(value)?.unwrap_or_default().into_iter().enumerate();
            let shape = sizes.map(|(axis, size)| size.unwrap_or(if axis == 0 { 1 } else { USUAL_SIZE }));
            shapes.0.insert(value.name()?, shape.collect());
        }
        for unit in &region.units {
            let computed = shapes.computed(unit)?;
            for (i, value) in unit.outputs.iter().enumerate() {
                let known = value.tensor_type()?.as_ref().and_then(usual_shape);
                if let Some(shape) = known.or_else(|| computed.get(i).cloned()) {
                    shapes.0.insert(value.name()?, shape);
                }
            }
        }
        Ok(shapes)
    }

    fn get(&self, value: Value<'_>) -> Result<Option<&Vec<usize>>> {
        Ok(self.0.get(&value.name()?))
    }

    /// The shapes of what a unit computes, as far as they follow from those of its inputs.
    fn computed(&self, unit: &Unit<'_>) -> Result<Vec<Vec<usize>>> {
        let inputs = unit.inputs.iter().map(|value| self.get(*value)).collect::<Result<Option<Vec<_>>>>()?;
        let Some([x, ..]) = inputs.as_deref() else { return Ok(Vec::new()) };
        let with_channels = |count: usize| {
            let mut shape = (*x).clone();
            shape[1] = count;
            shape
        };
        Ok(match &unit.kind {
            Kind::Layer(layer) => {
                let operator = layer.weight_dims()?.and_then(|dims| layer.operator(&dims).ok());
                let geometry = operator.and_then(|operator| operator.geometry(x).ok());
                geometry.map(|geometry| geometry.output_shape()).into_iter().collect()
            }
            Kind::Pool(pool) | Kind::Means(pool, _) => {
                pool.geometry(x).map(|geometry| geometry.output_shape()).into_iter().collect()
            }
            Kind::Resize(resize) => {
                resize.sizes([x[2], x[3]]).map(|[height, width]| vec![x[0], x[1], height, width]).into_iter().collect()
            }
            Kind::Product
            | Kind::Slopes(_)
            | Kind::Table(_)
            | Kind::Blend(_)
            | Kind::Lines(_)
            | Kind::Quantise(_)
            | Kind::Dequantise(_) => vec![(*x).clone()],
            Kind::Integers(layer) => shape_of(layer, x).into_iter().collect(),
            Kind::Dynamic(layers) => layers.iter().map_while(|layer| shape_of(layer, x)).collect(),
            Kind::Concat(_) => vec![with_channels(channels(unit.outputs[0])?.unwrap_or(0))],
            Kind::Channels(picks) => picks.iter().map(|(channels, _)| with_channels(channels.len())).collect(),
        })
    }
}
