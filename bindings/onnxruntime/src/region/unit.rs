//! What a region is made of: layers, and the nodes between them that it computes itself.

use std::sync::Arc;

use convoke::{DType, Error, Geometry, Operator};

use crate::api::Result;
use crate::fusion::{Fusion, VERSION, is_of_channels};
use crate::graph::{AttributeValue, Attributes, Node, Reasoned, Value};
use crate::region::bytes::{Blend, ByteScale, Integers, Lines, Table, is_of_bytes};
use crate::region::linear::of_numbers;

/// Nodes that are computed in one step.
pub(crate) struct Unit<'g> {
    pub(crate) nodes: Vec<Node<'g>>,
    /// What it reads, but for constants.
    pub(crate) inputs: Vec<Value<'g>>,
    pub(crate) outputs: Vec<Value<'g>>,
    pub(crate) kind: Kind<'g>,
    /// Whether it is convoke's without a region, too.
    pub(crate) stands_alone: bool,
}

pub(crate) enum Kind<'g> {
    Layer(Box<Fusion<'g>>),
    Pool(Pool),
    Resize(Resize),
    /// The product of two tensors, of which the second one may have one number for each channel of an image.
    Product,
    /// The number itself, or where it is negative the product with a slope, one for each channel.
    Slopes(Arc<[f32]>),
    /// Channels of the inputs behind one another, of which bytes may go through a table.
    Concat(Vec<Option<Arc<Table>>>),
    /// Some channels of the input, for each output, of which bytes may go through a table.
    Channels(Vec<(Vec<usize>, Option<Arc<Table>>)>),
    /// A convolution of bytes.
    Integers(Box<Integers<'g>>),
    /// Convolutions of the same bytes, whose scale is that of the numbers that X has in a run.
    Dynamic(Vec<Integers<'g>>),
    /// An entry for each byte.
    Table(Arc<Table>),
    Blend(Blend),
    Lines(Arc<Lines>),
    /// Means of bytes, and the scales of X and Y.
    Means(Pool, [ByteScale; 2]),
    Quantise(ByteScale),
    Dequantise(ByteScale),
}

impl<'g> Unit<'g> {
    pub(crate) fn of_layer(layer: Fusion<'g>) -> Result<Self> {
        Ok(Self {
            nodes: layer.nodes.clone(),
            inputs: std::iter::once(layer.x).chain(layer.residual).collect(),
            outputs: vec![layer.output()?],
            kind: Kind::Layer(layer.into()),
            stands_alone: false,
        })
    }

    pub(crate) fn layer(&self) -> Option<&Fusion<'g>> {
        if let Kind::Layer(layer) = &self.kind { Some(layer) } else { None }
    }

    /// Whether it computes with bytes, and not with floats alone.
    pub(crate) fn is_of_bytes(&self) -> bool {
        let values = self.inputs.iter().chain(&self.outputs);
        values.clone().any(|value| matches!(is_of_bytes(*value), Ok(true)))
    }

    /// Whether it has convolutions of bytes.
    pub(crate) fn is_quantised(&self) -> bool {
        matches!(self.kind, Kind::Integers(_) | Kind::Dynamic(_))
    }

    /// The nodes of convolutions of bytes.
    pub(crate) fn convolutions(&self) -> Result<Vec<Node<'g>>> {
        let mut found = Vec::new();
        for node in self.nodes.iter().filter(|_| self.is_quantised()) {
            if matches!(&*node.op()?, "Conv" | "ConvTranspose" | "QLinearConv" | "ConvInteger") {
                found.push(*node);
            }
        }
        Ok(found)
    }

    /// The unit of a node that is no layer, or why it is none. `None` if no region has its operator, or it computes no
    /// images.
    pub(crate) fn of(node: Node<'g>) -> Result<Option<Reasoned<Self>>> {
        let (op, inputs, outputs) = (node.op()?, node.inputs()?, node.outputs()?);
        let (Some(rule), Some(&Some(x))) = (rule_of(&op), inputs.first()) else { return Ok(None) };
        if dims(x)?.is_some_and(|dims| dims.len() < 3) {
            return Ok(None);
        }
        let no = |reason: String| Ok(Some(Err(reason)));
        if outputs.iter().any(Option::is_none) || (op == "MaxPool" && outputs.len() > 1) {
            return no("it has a second output, or lacks one".into());
        }
        let outputs: Vec<Value<'g>> = outputs.into_iter().flatten().collect();
        for value in outputs.iter().chain([&x]) {
            if let Some(reason) = is_no_tensor_of_region(*value)? {
                return no(reason);
            }
        }
        // Of bytes, only what is the same whatever they stand for.
        let is_of_bytes = is_of_bytes(x)?;
        let mut inputs_of = vec![x];
        let kind = match &*op {
            "MaxPool" | "AveragePool" | "GlobalMaxPool" | "GlobalAveragePool" | "ReduceMean" => {
                let pool = Pool::of(node, x)?.filter(|pool| pool.mean.is_none() || !is_of_bytes);
                pool.map(Kind::Pool)
            }
            "Resize" | "Upsample" => {
                Resize::of(node, x)?.filter(|resize| !resize.is_linear() || !is_of_bytes).map(Kind::Resize)
            }
            "Mul" => match inputs[..] {
                [_, Some(other)] if is_image(other)? => {
                    let sizes = [x, other].map(|value| is_vector(value));
                    inputs_of = match sizes {
                        [Ok(true), Ok(false)] => vec![other, x],
                        _ => vec![x, other],
                    };
                    (may_multiply(inputs_of[0], inputs_of[1])?).then_some(Kind::Product)
                }
                _ => None,
            },
            "PRelu" => match inputs.get(1) {
                Some(&Some(slope)) => slopes(x, slope)?.map(Kind::Slopes),
                _ => None,
            },
            "Concat" => {
                inputs_of = inputs.iter().flatten().copied().collect();
                let mut are_images = inputs_of.len() == inputs.len();
                for value in &inputs_of {
                    are_images &= if is_of_bytes { is_image_of_bytes(*value)? } else { is_image(*value)? };
                }
                (are_images && has_axis_of_channels(node, x, 1)?).then(|| Kind::Concat(vec![None; inputs_of.len()]))
            }
            "Split" => split(node, x, &outputs)?,
            "Slice" => slice(node, x, outputs[0])?,
            _ => None,
        };
        let Some(kind) = kind else { return no(format!("a region has {rule} alone")) };
        // A region reads nothing else in a run.
        let names = inputs_of.iter().map(|value| value.name()).collect::<Result<Vec<_>>>()?;
        for value in inputs.into_iter().flatten() {
            if value.constant()?.is_none() && !names.contains(&value.name()?) {
                return no(format!("{} is not constant", value.name()?));
            }
        }
        let stands_alone = false;
        Ok(Some(Ok(Self { nodes: vec![node], inputs: inputs_of, outputs, kind, stands_alone })))
    }
}

/// Which nodes of an operator a region can have; `None` if it has none.
fn rule_of(op: &str) -> Option<&'static str> {
    Some(match op {
        "MaxPool" | "AveragePool" | "GlobalMaxPool" | "GlobalAveragePool" => {
            "pools without auto_pad beside dilations, ceil_mode or strides above the kernel, without ceil_mode beside \
             count_include_pad, and without dilations of a mean or means of bytes"
        }
        "ReduceMean" => "means over all spatial axes, by constant axes",
        "Resize" | "Upsample" => {
            "nearest and, but of bytes, linear Resize of two spatial axes, by constant scales or, with a known batch, sizes, \
             without antialias, axes, another policy than stretch, and the modes tf_crop_and_resize and half_pixel_symmetric"
        }
        "Mul" => "products by finite constants, and of two tensors of one shape or with one number for each channel,",
        "PRelu" => "constant slopes, one for each channel,",
        "Concat" => "Concat of channels of tensors of one type",
        "Split" => "Split of channels into known counts",
        "Slice" => "Slice of neighbouring channels, by constants of int64,",
        _ => return None,
    })
}

/// Why a region has no such tensor, if it has none.
fn is_no_tensor_of_region(value: Value<'_>) -> Result<Option<String>> {
    if is_image(value)? || is_image_of_bytes(value)? {
        return Ok(None);
    }
    let name = value.name()?;
    Ok(Some(match value.tensor_type()? {
        _ if value.constant()?.is_some() => format!("{name} is constant"),
        Some(ty) => format!("{name} of {ty} is not of float, float16 or bytes with spatial axes and known channels"),
        None => format!("{name} is no tensor"),
    }))
}

/// The sizes of a value, as far as they are known.
pub(crate) fn dims(value: Value<'_>) -> Result<Option<Vec<Option<usize>>>> {
    let dims = value.tensor_type()?.and_then(|ty| ty.dims);
    Ok(dims.map(|dims| dims.iter().map(|dim| dim.size()).collect()))
}

/// Whether the axis of a node, which may be left out, is that of the channels of a value.
pub(crate) fn has_axis_of_channels(node: Node<'_>, value: Value<'_>, default: i64) -> Result<bool> {
    let rank = dims(value)?.map_or(0, |dims| dims.len() as i64);
    Ok([1, 1 - rank].contains(&node.attributes()?.int("axis", default)))
}

/// The channels of a value, if they are known.
pub(crate) fn channels(value: Value<'_>) -> Result<Option<usize>> {
    Ok(dims(value)?.and_then(|dims| dims.get(1).copied().flatten()))
}

/// Whether a value is no constant, and has bytes, spatial axes, and so many channels as are known.
pub(crate) fn is_image_of_bytes(value: Value<'_>) -> Result<bool> {
    Ok(is_of_bytes(value)? && has_channels(value)?)
}

/// Whether a value is no constant, and one of floats or short floats with spatial axes and so many channels as are known.
pub(crate) fn is_image(value: Value<'_>) -> Result<bool> {
    let dtype = value.tensor_type()?.and_then(|ty| ty.dtype());
    Ok(matches!(dtype, Some(DType::F32 | DType::F16)) && has_channels(value)?)
}

/// Whether a value is no constant, and has spatial axes and so many channels as are known.
pub(crate) fn has_channels(value: Value<'_>) -> Result<bool> {
    let has_axes = dims(value)?.is_some_and(|dims| dims.len() > 2);
    Ok(has_axes && channels(value)?.is_some_and(|count| count > 0) && value.constant()?.is_none())
}

/// Whether a value has one number for each channel of an image.
fn is_vector(value: Value<'_>) -> Result<bool> {
    Ok(dims(value)?.is_some_and(|dims| dims.len() > 2 && dims[2..].iter().all(|size| *size == Some(1))))
}

/// Whether `by` has one number for each channel of `x`, or may well have its shape.
pub(crate) fn may_multiply(x: Value<'_>, by: Value<'_>) -> Result<bool> {
    let (Some(of_x), Some(of_by)) = (x.tensor_type()?, by.tensor_type()?) else { return Ok(false) };
    let (Some(x_dims), Some(by_dims)) = (&of_x.dims, &of_by.dims) else { return Ok(false) };
    if x_dims.len() != by_dims.len() || x_dims[1] != by_dims[1] {
        return Ok(false);
    }
    Ok(is_vector(by)? || of_x.may_be_same_as(&of_by).is_ok())
}

/// The slopes of a PRelu, if there is one for each channel of X.
fn slopes(x: Value<'_>, slope: Value<'_>) -> Result<Option<Arc<[f32]>>> {
    let (Some(dims), Some(tensor)) = (dims(x)?, slope.constant()?) else { return Ok(None) };
    let is_one_each = |floats: &Vec<f64>| is_of_channels(tensor.dims(), dims.len()) && Some(floats.len()) == dims[1];
    let floats = tensor.floats()?.filter(is_one_each);
    Ok(floats.map(|floats| floats.into_iter().map(|slope| slope as f32).collect()))
}

/// Integers that are an attribute, or in newer opsets an input.
pub(crate) fn ints(node: Node<'_>, name: &str, input: usize) -> Result<Option<Vec<i64>>> {
    match node.attributes()?.get(name) {
        Some(AttributeValue::Ints(values)) => Ok(Some(values.clone())),
        _ => ints_of_input(node, input),
    }
}

/// The integers of a constant input.
fn ints_of_input(node: Node<'_>, input: usize) -> Result<Option<Vec<i64>>> {
    Ok(node.input(input)?.map(Value::ints).transpose()?.flatten().map(<[i64]>::to_vec))
}

/// Channels of a tensor whose channels are listed, at most.
pub(crate) const MOST_CHANNELS: usize = 1 << 20;

/// Whether channels are those from one on.
pub(crate) fn are_neighbours(channels: &[usize]) -> bool {
    channels.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

/// A Split of channels, into counts that are known.
fn split<'g>(node: Node<'g>, x: Value<'g>, outputs: &[Value<'g>]) -> Result<Option<Kind<'g>>> {
    let counts = outputs.iter().map(|value| channels(*value)).collect::<Result<Option<Vec<_>>>>()?;
    let Some(counts) = counts else { return Ok(None) };
    let sum = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
    let Some(sum) = sum.filter(|sum| *sum <= MOST_CHANNELS) else { return Ok(None) };
    let mut all = 0..sum;
    let parts = counts.iter().map(|count| (all.by_ref().take(*count).collect(), None));
    Ok((has_axis_of_channels(node, x, 0)? && channels(x)? == Some(sum)).then(|| Kind::Channels(parts.collect())))
}

/// A Slice of channels by constants, one after the other.
fn slice<'g>(node: Node<'g>, x: Value<'g>, y: Value<'g>) -> Result<Option<Kind<'g>>> {
    let Some(all) = channels(x)?.filter(|all| *all <= MOST_CHANNELS) else { return Ok(None) };
    let rank = dims(x)?.map_or(0, |dims| dims.len() as i64);
    let (starts, ends) = (ints(node, "starts", 1)?, ints(node, "ends", 2)?);
    let (axes, steps) = (ints(node, "axes", 3)?, ints_of_input(node, 4)?);
    let (Some([start]), Some([end]), Some([axis])) = (starts.as_deref(), ends.as_deref(), axes.as_deref()) else {
        return Ok(None);
    };
    let has_step = node.input(4)?.is_some() && steps.as_deref() != Some(&[1]);
    if has_step || ![1, 1 - rank].contains(axis) {
        return Ok(None);
    }
    let place =
        |at: i64| if at < 0 { at.saturating_add(all as i64).max(0) as usize } else { at.min(all as i64) as usize };
    let (first, end) = (place(*start), place(*end));
    let is_told = first < end && channels(y)? == Some(end - first);
    Ok(is_told.then(|| Kind::Channels(vec![((first..end).collect(), None)])))
}

/// A maximum or mean over windows.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) mean: Option<Mean>,
    /// The windows of a depthwise convolution; over the whole image without one.
    window: Option<Window>,
    channels: usize,
}

/// What a mean is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mean {
    /// The elements of X in the window.
    OfElements,
    /// All elements of the window, padding among them.
    OfWindow,
}

#[derive(Debug, Clone)]
struct Window {
    attributes: Attributes,
    kernel: Vec<i64>,
    /// Whether a window may begin inside X or its padding and end behind it.
    ceils: bool,
}

impl Pool {
    pub(crate) fn of(node: Node<'_>, x: Value<'_>) -> Result<Option<Self>> {
        let (name, mut attributes) = (node.op()?, node.attributes()?);
        let op = of_numbers(&name).unwrap_or(&name);
        let Some(channels) = channels(x)? else { return Ok(None) };
        let rank = dims(x)?.map_or(0, |dims| dims.len() as i64);
        let includes_padding = attributes.int("count_include_pad", 0) != 0;
        let mean = match op {
            "AveragePool" if includes_padding => Some(Mean::OfWindow),
            "AveragePool" | "GlobalAveragePool" | "ReduceMean" => Some(Mean::OfElements),
            _ => None,
        };
        if op.starts_with("Global") {
            return Ok(Some(Self { mean, window: None, channels }));
        }
        if op == "ReduceMean" {
            let mut axes = ints(node, "axes", 1)?.unwrap_or_default();
            axes.iter_mut().for_each(|axis| *axis += if *axis < 0 { rank } else { 0 });
            axes.sort_unstable();
            let is_global = attributes.int("keepdims", 1) == 1 && axes == (2..rank).collect::<Vec<_>>();
            return Ok(is_global.then_some(Self { mean, window: None, channels }));
        }
        let Some(AttributeValue::Ints(kernel)) = attributes.get("kernel_shape").cloned() else { return Ok(None) };
        let (ceils, dilates) = (attributes.int("ceil_mode", 0) != 0, attributes.get("dilations").is_some());
        let has_auto_pad = !matches!(attributes.string("auto_pad"), None | Some("" | "NOTSET"));
        // What a window beyond the padding counts is told differently by releases.
        if ceils && (has_auto_pad || mean == Some(Mean::OfWindow)) || (dilates && mean.is_some()) {
            return Ok(None);
        }
        attributes.remove(&["ceil_mode", "channels_last", "count_include_pad", "storage_order"]);
        if has_auto_pad {
            attributes.remove(&["pads"]);
        }
        attributes.set("group", AttributeValue::Int(channels as i64));
        let window = Window { attributes, kernel, ceils };
        // onnxruntime pads otherwise there.
        let is_odd =
            |axis: usize| window.of("dilations", axis, 1) != 1 || window.kernel[axis] < window.of("strides", axis, 1);
        if has_auto_pad && (0..window.kernel.len()).any(is_odd) {
            return Ok(None);
        }
        let pool = Self { mean, window: Some(window), channels };
        let fits = x.tensor_type()?.and_then(|ty| ty.shape()).is_none_or(|shape| pool.geometry(&shape).is_ok());
        Ok(fits.then_some(pool))
    }

    /// The depthwise convolution that has these windows.
    pub(crate) fn geometry(&self, x_shape: &[usize]) -> std::result::Result<Geometry, Error> {
        let Some(window @ Window { attributes, kernel, ceils }) = &self.window else {
            let sizes = [self.channels, 1].iter().chain(&x_shape[2..]).copied().collect::<Vec<_>>();
            return convoke::Conv::new(sizes).group(self.channels as i64).geometry(x_shape);
        };
        let w_dims: Vec<i64> = [self.channels as i64, 1].iter().chain(kernel).copied().collect();
        let mut padded = attributes.clone();
        if matches!(attributes.string("auto_pad"), None | Some("" | "NOTSET")) {
            let sizes = x_shape.iter().skip(2).enumerate();
            let pads = sizes.map(|(axis, size)| window.pads(axis, *size as i64, *ceils));
            let (begins, ends): (Vec<_>, Vec<_>) = pads.unzip();
            padded.set("pads", AttributeValue::Ints([begins, ends].concat()));
        }
        Operator::from_attributes("Conv", VERSION, &padded.for_convoke(), &w_dims)?.geometry(x_shape)
    }
}

impl Window {
    /// A number of an attribute that has one for each axis, or for both ends of each.
    fn of(&self, name: &str, place: usize, default: i64) -> i64 {
        match self.attributes.get(name) {
            Some(AttributeValue::Ints(values)) => values.get(place).copied().unwrap_or(default),
            _ => default,
        }
    }

    /// The pads of an axis: as much more behind X as the last window lacks, if it begins inside X or the padding before
    /// it, and as a window lacks that alone is larger than X. onnxruntime rounds its count toward zero.
    fn pads(&self, axis: usize, size: i64, ceils: bool) -> (i64, i64) {
        let (begin, end) = (self.of("pads", axis, 0), self.of("pads", axis + self.kernel.len(), 0));
        let stride = self.of("strides", axis, 1).max(1);
        let kernel = self.kernel.get(axis).copied().unwrap_or(1);
        let reach = kernel.saturating_sub(1).saturating_mul(self.of("dilations", axis, 1)).saturating_add(1);
        let rest = size.saturating_add(begin).saturating_add(end).saturating_sub(reach);
        let more = match () {
            () if rest < 0 && rest > -stride => -rest,
            () if rest > 0
                && ceils
                && rest % stride > 0
                && (rest / stride + 1).saturating_mul(stride) < size.saturating_add(begin) =>
            {
                stride - rest % stride
            }
            () => 0,
        };
        (begin, end.saturating_add(more))
    }
}

/// An image of another size.
#[derive(Debug, Clone)]
pub(crate) struct Resize {
    by: By,
    place: Place,
    round: Option<Round>,
}

/// Elements of an axis of Y; more are refused.
const MOST_SIZE: usize = 1 << 24;

/// How large Y is, along both axes.
#[derive(Debug, Clone)]
enum By {
    Scales([f32; 2]),
    Sizes([usize; 2]),
}

/// Where an element of Y stands in X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    HalfPixel,
    TorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

/// Which element of X is the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    PreferFloor,
    PreferCeil,
    Floor,
    Ceil,
    /// That of opset 10: the ceiling where Y is smaller than X, and the floor where it is larger.
    OfScale,
}

/// For each element of Y along an axis, the two elements of X that it lies between, and the share of the second one.
pub(crate) type Sources = Vec<(usize, usize, f32)>;

impl Resize {
    fn of(node: Node<'_>, x: Value<'_>) -> Result<Option<Self>> {
        let attributes = node.attributes()?;
        let Some(4) = dims(x)?.map(|dims| dims.len()) else { return Ok(None) };
        let is_old = node.op()? == "Upsample" || node.since_version()? < 11;
        let place = match attributes.string("coordinate_transformation_mode").unwrap_or("half_pixel") {
            _ if is_old => Place::Asymmetric,
            "half_pixel" => Place::HalfPixel,
            "pytorch_half_pixel" => Place::TorchHalfPixel,
            "align_corners" => Place::AlignCorners,
            "asymmetric" => Place::Asymmetric,
            _ => return Ok(None),
        };
        let round = match (attributes.string("mode").unwrap_or("nearest"), attributes.string("nearest_mode")) {
            ("linear", _) => None,
            ("nearest", _) if is_old => Some(Round::OfScale),
            ("nearest", None | Some("round_prefer_floor")) => Some(Round::PreferFloor),
            ("nearest", Some("round_prefer_ceil")) => Some(Round::PreferCeil),
            ("nearest", Some("floor")) => Some(Round::Floor),
            ("nearest", Some("ceil")) => Some(Round::Ceil),
            _ => return Ok(None),
        };
        let is_stretched = matches!(attributes.string("keep_aspect_ratio_policy"), None | Some("stretch"));
        if attributes.int("antialias", 0) != 0 || attributes.get("axes").is_some() || !is_stretched {
            return Ok(None);
        }
        let (at_scales, at_sizes) = if is_old { (1, usize::MAX) } else { (2, 3) };
        let scales = match attributes.get("scales") {
            Some(AttributeValue::Floats(scales)) => Some(scales.clone()),
            _ => {
                let tensor = node.input(at_scales)?.map(Value::constant).transpose()?.flatten();
                let floats = tensor.map(|tensor| tensor.floats()).transpose()?.flatten();
                floats.map(|floats| floats.into_iter().map(|scale| scale as f32).collect())
            }
        };
        let sizes = if at_sizes == usize::MAX { None } else { ints_of_input(node, at_sizes)? };
        let is_size = |size: i64| (1..MOST_SIZE as i64).contains(&size);
        let by = match (scales.as_deref(), sizes.as_deref()) {
            (Some(&[1.0, 1.0, down, along]), None) if down > 0.0 && along > 0.0 => By::Scales([down, along]),
            (None | Some([]), Some(&[_, count, height, width]))
                if is_size(height) && is_size(width) && channels(x)? == usize::try_from(count).ok() =>
            {
                By::Sizes([height as usize, width as usize])
            }
            _ => return Ok(None),
        };
        // The batch is the sizes' own then.
        let is_one =
            dims(x)?.is_some_and(|dims| dims[0].map(|size| size as i64) == sizes.as_ref().map(|sizes| sizes[0]));
        Ok((matches!(by, By::Scales(_)) || is_one).then_some(Self { by, place, round }))
    }

    /// Whether elements of Y lie between those of X, and are not the nearest ones.
    pub(crate) fn is_linear(&self) -> bool {
        self.round.is_none()
    }

    /// The sizes of Y, for those of X; `None` if Y would be very large.
    pub(crate) fn sizes(&self, x_sizes: [usize; 2]) -> Option<[usize; 2]> {
        let sizes = match self.by {
            By::Scales(scales) => [0, 1].map(|axis| (x_sizes[axis] as f32 * scales[axis]).floor() as usize),
            By::Sizes(sizes) => sizes,
        };
        sizes.iter().all(|size| *size < MOST_SIZE).then_some(sizes)
    }

    /// The sources of both axes, for the sizes of X; `None` if Y would be very large.
    pub(crate) fn sources(&self, x_sizes: [usize; 2]) -> Option<[Sources; 2]> {
        let sizes = self.sizes(x_sizes)?;
        Some([0, 1].map(|axis| {
            let (from, to) = (x_sizes[axis], sizes[axis]);
            let scale = match self.by {
                By::Scales(scales) => scales[axis],
                By::Sizes(_) => to as f32 / from as f32,
            };
            (0..to).map(|at| self.source(at, scale, (from, to))).collect()
        }))
    }

    /// Source: ONNX's specification of Resize, in floats, as onnxruntime computes it.
    fn source(&self, at: usize, scale: f32, (from, to): (usize, usize)) -> (usize, usize, f32) {
        let last = from.saturating_sub(1);
        let place = match self.place {
            _ if scale == 1.0 => at as f32,
            Place::Asymmetric => at as f32 / scale,
            Place::AlignCorners if to == 1 => 0.0,
            Place::AlignCorners => at as f32 * last as f32 / (to - 1) as f32,
            Place::TorchHalfPixel if to == 1 => 0.0,
            Place::HalfPixel | Place::TorchHalfPixel => (at as f32 + 0.5) / scale - 0.5,
        };
        let Some(round) = self.round else {
            let place = place.clamp(0.0, last as f32);
            let first = (place as usize).min(last);
            return (first, (first + 1).min(last), place - first as f32);
        };
        let nearest = match round {
            // Half of the way is nearer to the floor.
            Round::PreferFloor if place == place.floor() + 0.5 => place.floor(),
            Round::PreferFloor | Round::PreferCeil => place.round(),
            Round::OfScale if scale < 1.0 => place.ceil(),
            Round::Floor | Round::OfScale => place.floor(),
            Round::Ceil => place.ceil(),
        };
        let nearest = (nearest.max(0.0) as usize).min(last);
        (nearest, nearest, 0.0)
    }
}
