//! Which nodes become one layer: a Conv, FusedConv or ConvTranspose, with a Pad in front of it, and
//! normalisation, addition and activation behind it. A BatchNormalization that no convolution takes is
//! a layer too: a depthwise convolution with one tap.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use convoke::{Activation, DType, Operator};

use crate::activation::{self, Function, NO_SUCH, Scaled, of_identity};
use crate::api::{Failure, Result};
use crate::graph::{AttributeValue, Attributes, Node, Reasoned, Tensor, TensorType, Value};
use crate::weights::{Affine, Constants, OutputChannels, Scalar, Scaling, can_fold};

/// A convolution with an added tensor and an activation, in models that onnxruntime has optimised.
const FUSED: &str = "com.microsoft.FusedConv";

/// A version of Conv. Later ones differ only in their types.
pub(crate) const VERSION: i64 = 11;

/// A layer and the nodes that it replaces.
pub(crate) struct Fusion<'g> {
    /// The convolution, or the normalisation that stands for one.
    node: Node<'g>,
    /// Operator, opset and attributes of the convolution, with the pads of a Pad in front added to
    /// its own.
    pub(crate) op: String,
    pub(crate) since: i64,
    pub(crate) attributes: Attributes,
    /// All nodes in the order in which they run.
    pub(crate) nodes: Vec<Node<'g>>,
    pub(crate) x: Value<'g>,
    weights: Weights<'g>,
    pub(crate) scalings: Vec<Scaling<'g>>,
    pub(crate) residual: Option<Value<'g>>,
    pub(crate) activation: Activation,
    pub(crate) dtype: DType,
    /// The element type that scalings are folded in: `f32` for a layer that regions alone have.
    folds_in: DType,
    /// Nodes before and behind it that could be part of such a layer, and why they are not.
    pub(crate) apart: Vec<(Node<'g>, String)>,
}

/// What the weights of a layer are.
enum Weights<'g> {
    Tensors {
        w: Value<'g>,
        bias: Option<Value<'g>>,
    },
    /// One weight for each channel, 1, of `dims.len() - 2` spatial axes.
    Ones {
        dims: Vec<i64>,
    },
}

impl<'g> Fusion<'g> {
    /// W and the bias, where they are tensors of the graph.
    pub(crate) fn tensors(&self) -> Option<(Value<'g>, Option<Value<'g>>)> {
        match self.weights {
            Weights::Tensors { w, bias } => Some((w, bias)),
            Weights::Ones { .. } => None,
        }
    }

    /// The dimensions of W, and W and the bias, if both are the same in every run.
    pub(crate) fn constants<T: Scalar>(&self) -> Result<Option<(Vec<i64>, Constants<'g, T>)>> {
        let (w, bias) = match &self.weights {
            Weights::Tensors { w, bias } => (w.constant()?, *bias),
            Weights::Ones { dims } => {
                let ones = vec![T::of(1.0); usize::try_from(dims[0]).unwrap_or(0)];
                return Ok(Some((dims.clone(), Constants { w: ones.into(), bias: None })));
            }
        };
        let Some(w) = w else { return Ok(None) };
        let bias = match bias.map(Value::constant).transpose()? {
            Some(None) => return Ok(None),
            bias => bias.flatten(),
        };
        let bias = bias.map(|bias| elements_as::<T>(&bias)).transpose()?;
        Ok(Some((w.dims().to_vec(), Constants { w: elements_as::<T>(&w)?, bias })))
    }

    pub(crate) fn has_constant_weights(&self) -> Result<bool> {
        let Some((w, bias)) = self.tensors() else { return Ok(true) };
        Ok(w.constant()?.is_some() && bias.map(Value::constant).transpose()?.is_none_or(|bias| bias.is_some()))
    }

    /// Whether runs read constants as onnxruntime holds them, so that it must keep them. Where W or
    /// the bias is an input, the other one is read in every run, too.
    pub(crate) fn reads_constants_in_runs(&self) -> Result<bool> {
        let residual = self.residual.map(Value::constant).transpose()?.flatten();
        Ok(!self.has_constant_weights()? || self.x.constant()?.is_some() || residual.is_some())
    }

    /// What the layer computes.
    pub(crate) fn output(&self) -> Result<Value<'g>> {
        self.nodes.last().copied().unwrap_or(self.node).output()
    }

    pub(crate) fn title(&self) -> Result<String> {
        title(self.node, &self.nodes)
    }

    /// Checks what is known before a run. If convoke cannot compute the layer, this is the reason.
    pub(crate) fn check(&self) -> Result<std::result::Result<(), String>> {
        let tensors = self.tensors();
        let values = [tensors.map(|(w, _)| w), tensors.and_then(|(_, bias)| bias), self.residual];
        for value in values.into_iter().flatten() {
            let ty = value.tensor_type()?;
            if ty.as_ref().and_then(TensorType::dtype) != Some(self.dtype) {
                return Ok(Err(format!("{} and {} are of different types", self.x.name()?, value.name()?)));
            }
        }
        let Some(w_dims) = self.weight_dims()? else { return Ok(Ok(())) };
        let x_shape = self.x.tensor_type()?.and_then(|ty| ty.shape());
        let bias = tensors.and_then(|(_, bias)| bias).map(Value::constant).transpose()?.flatten();
        // Weights are packed for an output with elements.
        if w_dims.get(usize::from(self.op == "ConvTranspose")) == Some(&0) {
            return Ok(Err("Y has no channels".into()));
        }
        if self.has_tail(&w_dims) {
            return Ok(Err(
                "auto_pad is SAME and a kernel is shorter than its stride: onnxruntime gives Y fewer elements".into(),
            ));
        }
        if let Some(rank) = bias.map(|bias| bias.dims().len()).filter(|rank| *rank != 1) {
            return Ok(Err(format!("B has {rank} dimensions, must have 1")));
        }
        let check = || -> std::result::Result<(), convoke::Error> {
            let operator = self.operator(&w_dims)?;
            operator.check_dtype(self.dtype)?;
            if let Some(x_shape) = &x_shape {
                let geometry = operator.geometry(x_shape)?;
                if let Some(bias) = &bias {
                    geometry.validate_bias(&bias.shape().unwrap_or_default())?;
                }
            }
            Ok(())
        };
        Ok(check().map_err(|error| error.to_string()))
    }

    /// Whether Y of a ConvTranspose with SAME ends with elements that no input reaches. ONNX's text asks
    /// for them, for X times the stride; its shape inference and onnxruntime leave them out.
    fn has_tail(&self, w_dims: &[i64]) -> bool {
        let of_axis = |name: &str, axis: usize, default: i64| match self.attributes.get(name) {
            Some(AttributeValue::Ints(values)) => values.get(axis).copied().unwrap_or(default),
            _ => default,
        };
        let is_short = |(axis, kernel): (usize, &i64)| {
            let reach = of_axis("dilations", axis, 1).saturating_mul(kernel.saturating_sub(1)).saturating_add(1);
            of_axis("strides", axis, 1) > reach.saturating_add(of_axis("output_padding", axis, 0))
        };
        let is_same = matches!(self.attributes.string("auto_pad"), Some("SAME_UPPER" | "SAME_LOWER"));
        self.op == "ConvTranspose" && is_same && w_dims.iter().skip(2).enumerate().any(is_short)
    }

    /// The operator, for W of these dimensions.
    pub(crate) fn operator(&self, w_dims: &[i64]) -> std::result::Result<Operator, convoke::Error> {
        Operator::from_attributes(&self.op, self.since, &self.attributes.for_convoke(), w_dims)
    }

    pub(crate) fn group(&self) -> usize {
        usize::try_from(self.attributes.int("group", 1)).unwrap_or(1)
    }

    /// Whether W and the bias can take the scalings, which they only can if they are constant.
    ///
    /// In short types the products would be rounded where the sums are not, so these take none.
    fn check_folding(&self) -> Result<Reasoned<()>> {
        let can_fold = match self.folds_in {
            DType::F32 => self.can_fold_in::<f32>()?,
            DType::F64 => self.can_fold_in::<f64>()?,
            DType::F16 | DType::BF16 => {
                return Ok(Err(format!("its numbers would be rounded in weights of {}", self.dtype)));
            }
        };
        let reason = if self.has_constant_weights()? {
            "W cannot take its numbers: there are others than one for each channel, or one is not finite or loses digits"
        } else {
            "the layer's weights are not constant"
        };
        Ok(if can_fold { Ok(()) } else { Err(reason.into()) })
    }

    /// Makes a convolution of a fused one: the tensor Z, which that adds, becomes the residual. Returns what
    /// the node computes of the sum, which is the sum itself for any other node.
    fn unfuse(&mut self) -> Result<Reasoned<Function>> {
        if self.op != FUSED {
            return Ok(Ok(Function::identity()));
        }
        self.op = "Conv".into();
        self.since = VERSION;
        if let Some(z) = self.node.input(3)? {
            match added_to(self.node.output()?, z)? {
                Ok(z) => self.residual = Some(z),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let name = self.attributes.string("activation").filter(|name| !name.is_empty()).unwrap_or("Identity");
        let numbers = match self.attributes.get("activation_params") {
            Some(AttributeValue::Floats(numbers)) => numbers,
            _ => &Vec::new(),
        };
        let function = Function::of(name, &of_identity(numbers));
        let activation = function.as_ref().and_then(|function| function.activation(self.dtype));
        let (Some(function), Some(activation)) = (function, activation) else {
            return Ok(Err(format!("its activation is {name}: {NO_SUCH}")));
        };
        self.activation = activation;
        self.attributes.remove(&["activation", "activation_params"]);
        Ok(Ok(function))
    }

    /// Puts the factor and the shift in front of an activation into W and the bias, and returns the activation. `None`
    /// if they cannot take these.
    fn take_scaled(&mut self, scaled: Scaled) -> Result<Option<Activation>> {
        if !scaled.is_plain() {
            self.scalings.push(Scaling::Numbers { factor: scaled.factor, shift: scaled.shift });
            if self.check_folding()?.is_err() {
                self.scalings.pop();
                return Ok(None);
            }
        }
        Ok(Some(scaled.activation))
    }

    fn leave(&mut self, node: Node<'g>, reason: impl Into<String>) {
        let reason = reason.into();
        match self.apart.iter_mut().find(|(known, _)| *known == node) {
            Some((_, first)) if *first == reason => {}
            Some((_, first)) => *first = format!("{first}; {reason}"),
            None => self.apart.push((node, reason)),
        }
    }

    fn can_fold_in<T: Scalar>(&self) -> Result<bool> {
        // What is wrong with W is for `check` to say.
        let Ok(Some((w_dims, constants))) = self.constants::<T>() else { return Ok(false) };
        let channels = self.operator(&w_dims).ok().and_then(|operator| OutputChannels::of(&operator, self.group()));
        let Some(channels) = channels else { return Ok(false) };
        let scalings = self.scalings.iter().map(Affine::of).collect::<Result<Vec<_>>>()?;
        Ok(can_fold(&constants, &scalings, &channels))
    }

    /// Whether it is a normalisation without a convolution, whose Y has the shape of X, even where X
    /// is empty.
    pub(crate) fn is_normalisation(&self) -> bool {
        matches!(self.weights, Weights::Ones { .. })
    }

    /// The dimensions of W, as far as they are known before a run.
    pub(crate) fn weight_dims(&self) -> Result<Option<Vec<i64>>> {
        let w = match &self.weights {
            Weights::Tensors { w, .. } => w,
            Weights::Ones { dims } => return Ok(Some(dims.clone())),
        };
        if let Some(w) = w.constant()? {
            return Ok(Some(w.dims().to_vec()));
        }
        let shape = w.tensor_type()?.and_then(|ty| ty.shape());
        Ok(shape.map(|shape| shape.into_iter().map(|size| size as i64).collect()))
    }
}

/// The elements of a tensor, converted if they are of another type.
fn elements_as<'g, T: Scalar>(tensor: &Tensor<'g>) -> Result<Cow<'g, [T]>> {
    if tensor.dtype() == Some(T::DTYPE) {
        return Ok(tensor.elements::<T>()?.into());
    }
    let floats = tensor.floats()?.ok_or_else(|| Failure::other("weights that are no floats"))?;
    Ok(floats.into_iter().map(T::of).collect::<Vec<_>>().into())
}

/// The name of a node, and the operators of all that are compiled with it, for the log.
pub(crate) fn title(node: Node<'_>, nodes: &[Node<'_>]) -> Result<String> {
    let ops = nodes.iter().map(|node| node.op()).collect::<Result<Vec<_>>>()?.join(" + ");
    Ok(format!("node {:?} ({ops})", node.name()?))
}

/// Finds layers in a graph, each with nodes that no other layer has.
#[derive(Clone)]
pub(crate) struct Finder<'g> {
    /// Those that pad, by the name of their output.
    pads: HashMap<String, Node<'g>>,
    /// The names of outputs of DequantizeLinear.
    dequantised: HashSet<String>,
    /// Nodes of layers, and of other providers.
    taken: HashSet<Node<'g>>,
}

impl<'g> Finder<'g> {
    pub(crate) fn new(nodes: &[Node<'g>]) -> Result<Self> {
        let (mut pads, mut dequantised, mut taken) = (HashMap::new(), HashSet::new(), HashSet::new());
        for node in nodes {
            if node.is_of_another_provider()? {
                taken.insert(*node);
            }
            match &*node.op()? {
                "Pad" => _ = pads.insert(node.output()?.name()?, *node),
                "DequantizeLinear" => _ = dequantised.insert(node.output()?.name()?),
                _ => {}
            }
        }
        Ok(Self { pads, dequantised, taken })
    }

    /// Nodes of a layer are no other layer's.
    pub(crate) fn take(&mut self, nodes: &[Node<'g>]) {
        self.taken.extend(nodes);
    }

    pub(crate) fn is_taken(&self, node: Node<'g>) -> bool {
        self.taken.contains(&node)
    }

    /// The layer of a node.
    ///
    /// The inner result is the reason if convoke leaves the node alone. `None` if it is no
    /// convolution, or one that is taken.
    pub(crate) fn layer(&self, node: Node<'g>) -> Result<Option<std::result::Result<Fusion<'g>, String>>> {
        let op = node.op()?;
        if !matches!(&*op, "Conv" | "ConvTranspose" | FUSED) || self.is_taken(node) {
            return Ok(None);
        }
        let (Some(x), Some(w)) = (node.input(0)?, node.input(1)?) else {
            return Ok(Some(Err("X or W is missing".into())));
        };
        let Some(type_of_x) = x.tensor_type()? else { return Ok(Some(Err("X is not a tensor".into()))) };
        let Some(dtype) = type_of_x.dtype() else {
            return Ok(Some(Err(format!("X is of ONNX's type {}", type_of_x.code))));
        };
        // onnxruntime makes an integer convolution of such a Conv, but only after this call.
        if op == "Conv" && self.dequantised.contains(&x.name()?) && self.dequantised.contains(&w.name()?) {
            return Ok(Some(Err(
                "X and W are dequantised, by scales, biases or weights that convoke does not take".into()
            )));
        }
        let mut layer = Fusion {
            node,
            op,
            since: node.since_version()?,
            attributes: node.attributes()?,
            nodes: vec![node],
            x,
            weights: Weights::Tensors { w, bias: node.input(2)? },
            scalings: Vec::new(),
            residual: None,
            activation: Activation::None,
            dtype,
            folds_in: dtype,
            apart: Vec::new(),
        };
        let start = match layer.unfuse()? {
            Ok(start) => start,
            Err(reason) => return Ok(Some(Err(reason))),
        };
        self.take_pad(&mut layer)?;
        self.take_what_follows(&mut layer, start)?;
        Ok(Some(Ok(layer)))
    }

    /// The layer of a BatchNormalization that no convolution takes, or why it is none. `None` for other nodes.
    pub(crate) fn normalisation(&self, node: Node<'g>) -> Result<Option<Reasoned<Fusion<'g>>>> {
        if self.is_taken(node) || node.op()? != "BatchNormalization" {
            return Ok(None);
        }
        let Some(x) = node.input(0)? else { return Ok(None) };
        Ok(Some(match self.scaled(node, x, of_ones)? {
            Ok(layer) => layer.check()?.map(|()| layer),
            Err(reason) => Err(reason),
        }))
    }

    /// The layer of another node that can stand between convolutions: it scales channels by constants, adds
    /// two tensors, or computes an activation. `None` if it is none.
    pub(crate) fn pass(&self, node: Node<'g>) -> Result<Option<Fusion<'g>>> {
        let mut tensors = Vec::new();
        for value in node.inputs()?.into_iter().flatten() {
            if value.constant()?.is_none() {
                tensors.push(value);
            }
        }
        let Some(&x) = tensors.first().filter(|_| !self.is_taken(node)) else { return Ok(None) };
        if let (Ok(layer), 1) = (self.scaled(node, x, of_ones_in_region)?, tensors.len()) {
            return Ok(Some(layer));
        }
        let channels = x.tensor_type()?.and_then(|ty| ty.dims?.get(1)?.size());
        let layer = channels.map(|channels| of_ones_in_region(node, x, channels));
        let Some(mut layer) = layer.transpose()?.flatten() else {
            return Ok(None);
        };
        if tensors.len() == 2 && matches!(&*node.op()?, "Add" | "Sum") {
            let Ok(added) = residual(node, x)? else { return Ok(None) };
            layer.residual = Some(added);
            self.take_activation(&mut layer, node.output()?, Function::identity())?;
            return Ok(Some(layer));
        }
        let function = if tensors.len() == 1 { activation::of_node(node, x, layer.dtype)? } else { None };
        let Some(function) = function else { return Ok(None) };
        let Some(scaled) = function.scaled_activation(layer.dtype) else { return Ok(None) };
        let Some(activation) = layer.take_scaled(scaled)? else { return Ok(None) };
        layer.activation = activation;
        if scaled.is_plain() {
            self.take_activation(&mut layer, node.output()?, function)?;
        }
        Ok(Some(layer))
    }

    /// The layer of a node that scales the channels of X by constants, made of one by `of_ones`, or why it is none.
    fn scaled(
        &self,
        node: Node<'g>,
        x: Value<'g>,
        of_ones: impl Fn(Node<'g>, Value<'g>, usize) -> Result<Option<Fusion<'g>>>,
    ) -> Result<Reasoned<Fusion<'g>>> {
        let no = |reason: &str| Ok(Err(reason.into()));
        let Some(ty) = x.tensor_type()? else { return no("X is no tensor") };
        let Some(dtype) = ty.dtype().filter(|_| is_scaling(&node.op().unwrap_or_default())) else {
            return no("it does not scale floats");
        };
        let scaling = match scaling(node, x, dtype)? {
            Ok(scaling) => scaling,
            Err(reason) => return Ok(Err(reason)),
        };
        let of_x = ty.dims.and_then(|dims| dims.get(1)?.size());
        let channels = match scaling {
            Scaling::Normalisation { constants: [scale, ..], .. } => {
                let channels = scale.constant()?.map(|scale| scale.dims().iter().product::<i64>() as usize);
                channels.filter(|channels| of_x.is_none_or(|size| size == *channels))
            }
            _ => of_x,
        };
        let Some(channels) = channels else { return no("channels are unknown, or not those of the constants") };
        let Some(mut layer) = of_ones(node, x, channels)? else { return no("X has no spatial axes") };
        layer.scalings.push(scaling);
        if let Err(reason) = layer.check_folding()? {
            return Ok(Err(reason));
        }
        self.take_what_follows(&mut layer, Function::identity())?;
        Ok(Ok(layer))
    }

    /// `start` is what the node itself computes of the sum of convolution and residual.
    fn take_what_follows(&self, layer: &mut Fusion<'g>, start: Function) -> Result<()> {
        let mut end = layer.node.output()?;
        if layer.residual.is_none() && start == Function::identity() {
            self.take_scalings(layer, &mut end)?;
            self.take_residual(layer, &mut end)?;
        }
        self.take_activation(layer, end, start)
    }

    /// The only node behind a value, if it is free.
    fn next(&self, value: Value<'g>) -> Result<Option<Node<'g>>> {
        Ok(value.only_consumer()?.filter(|node| !self.taken.contains(node)))
    }

    /// A Pad in front.
    fn take_pad(&self, layer: &mut Fusion<'g>) -> Result<()> {
        let Some(&pad) = self.pads.get(&layer.x.name()?) else { return Ok(()) };
        if self.taken.contains(&pad) {
            return Ok(());
        }
        match pads_of_both(pad, layer)? {
            Ok((data, pads)) => {
                layer.attributes.set("auto_pad", AttributeValue::String("NOTSET".into()));
                layer.attributes.set("pads", AttributeValue::Ints(pads));
                layer.nodes.insert(0, pad);
                layer.x = data;
            }
            Err(reason) => layer.leave(pad, reason),
        }
        Ok(())
    }

    /// Nodes that scale each channel: their factors go into W.
    fn take_scalings(&self, layer: &mut Fusion<'g>, end: &mut Value<'g>) -> Result<()> {
        while let Some(next) = self.next(*end)? {
            if !is_scaling(&next.op()?) {
                break;
            }
            let folded = match scaling(next, *end, layer.dtype)? {
                Ok(scaling) => {
                    layer.scalings.push(scaling);
                    layer.check_folding()?.inspect_err(|_| _ = layer.scalings.pop())
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = folded {
                layer.leave(next, reason);
                break;
            }
            layer.nodes.push(next);
            *end = next.output()?;
        }
        Ok(())
    }

    /// An Add of a tensor of the same shape, or a Sum of two.
    fn take_residual(&self, layer: &mut Fusion<'g>, end: &mut Value<'g>) -> Result<()> {
        let Some(next) = self.next(*end)? else { return Ok(()) };
        if !matches!(&*next.op()?, "Add" | "Sum") {
            return Ok(());
        }
        match residual(next, *end)? {
            Ok(value) => {
                layer.residual = Some(value);
                layer.nodes.push(next);
                *end = next.output()?;
            }
            Err(reason) => layer.leave(next, reason),
        }
        Ok(())
    }

    fn take_activation(&self, layer: &mut Fusion<'g>, end: Value<'g>, start: Function) -> Result<()> {
        // A residual is added behind W, which takes the factors.
        let can_scale = layer.residual.is_none() && start == Function::identity();
        let found = activation::behind(end, (start, can_scale), layer.dtype, |node| !self.is_taken(node))?;
        for (scaled, nodes) in found.all.into_iter().rev() {
            if let Some(activation) = layer.take_scaled(scaled)? {
                layer.activation = activation;
                layer.nodes.extend(nodes);
                return Ok(());
            }
        }
        for (node, _) in end.readers()? {
            let op = node.op()?;
            let is_linear = matches!(&*op, "BatchNormalization" | "Mul" | "Add" | "Sum");
            let refused = found.refused.iter().find(|(refused, _)| *refused == node);
            let reason = if is_linear && layer.residual.is_some() && end.only_consumer()?.is_some() {
                "it stands behind an Add of a tensor"
            } else if let Some((_, reason)) = refused {
                reason
            } else if found.is_closed {
                NO_SUCH
            } else {
                "what it reads is read elsewhere, too, or leaves the graph"
            };
            let is_told = layer.apart.iter().any(|(known, _)| *known == node);
            if !is_told && (is_linear || activation::is_part(&op) || refused.is_some()) {
                layer.leave(node, reason);
            }
        }
        Ok(())
    }
}

/// A depthwise convolution of X with one tap, a 1 for each channel. `None` if X is no tensor with spatial axes.
fn of_ones<'g>(node: Node<'g>, x: Value<'g>, channels: usize) -> Result<Option<Fusion<'g>>> {
    let Some(ty) = x.tensor_type()? else { return Ok(None) };
    let (Some(dtype), Some(dims)) = (ty.dtype(), ty.dims.filter(|dims| dims.len() > 2)) else { return Ok(None) };
    let mut attributes = Attributes::default();
    attributes.set("group", AttributeValue::Int(channels as i64));
    let mut w_dims = vec![1; dims.len()];
    w_dims[0] = channels as i64;
    Ok(Some(Fusion {
        node,
        op: "Conv".into(),
        since: VERSION,
        attributes,
        nodes: vec![node],
        x,
        weights: Weights::Ones { dims: w_dims },
        scalings: Vec::new(),
        residual: None,
        activation: Activation::None,
        dtype,
        folds_in: dtype,
        apart: Vec::new(),
    }))
}

/// The same for a layer that regions alone have, which compute float16 in `f32`.
fn of_ones_in_region<'g>(node: Node<'g>, x: Value<'g>, channels: usize) -> Result<Option<Fusion<'g>>> {
    let layer = of_ones(node, x, channels)?;
    Ok(layer
        .map(|layer| Fusion { folds_in: if layer.dtype == DType::F16 { DType::F32 } else { layer.dtype }, ..layer }))
}

/// Whether nodes of this operator may scale each channel by constants.
fn is_scaling(op: &str) -> bool {
    matches!(op, "BatchNormalization" | "Mul" | "Add")
}

/// What a node does to each channel of a value, if it scales channels by constants.
fn scaling<'g>(node: Node<'g>, value: Value<'g>, dtype: DType) -> Result<Reasoned<Scaling<'g>>> {
    let make = match &*node.op()? {
        "BatchNormalization" => return normalisation(node, dtype),
        "Mul" => Scaling::Factors,
        _ => Scaling::Shifts,
    };
    let [Some(one), Some(other)] = node.inputs()?[..] else { return Ok(Err("it has not two inputs".into())) };
    let by = if one.name()? == value.name()? { other } else { one };
    let rank = value.tensor_type()?.and_then(|ty| ty.dims).map_or(0, |dims| dims.len());
    let Some(constant) = by.constant()? else { return Ok(Err(format!("{} is not constant", by.name()?))) };
    let of_type = by.tensor_type()?.and_then(|ty| ty.dtype()) == Some(dtype);
    Ok(if of_type && is_of_channels(constant.dims(), rank) {
        Ok(make(by))
    } else {
        Err(format!("{} of shape {:?} has not one number for each channel", by.name()?, constant.dims()))
    })
}

/// A BatchNormalization by constants.
fn normalisation(node: Node<'_>, dtype: DType) -> Result<Reasoned<Scaling<'_>>> {
    if node.op()? != "BatchNormalization" {
        return Ok(Err("it is no BatchNormalization".into()));
    }
    if let Some(reason) = is_no_inference(node)? {
        return Ok(Err(reason.into()));
    }
    let (attributes, inputs) = (node.attributes()?, node.inputs()?);
    let [Some(_), Some(scale), Some(shift), Some(mean), Some(variance)] = inputs[..] else {
        return Ok(Err("it has not five inputs".into()));
    };
    let constants = [scale, shift, mean, variance];
    for value in constants {
        if value.constant()?.is_none() || value.tensor_type()?.and_then(|ty| ty.dtype()) != Some(dtype) {
            return Ok(Err(format!("{} is not constant, or not of {dtype}", value.name()?)));
        }
    }
    Ok(Ok(Scaling::Normalisation { constants, epsilon: attributes.float("epsilon", 1e-5) }))
}

/// Why a BatchNormalization does something else than to scale channels by its inputs.
pub(crate) fn is_no_inference(node: Node<'_>) -> Result<Option<&'static str>> {
    // Version 9 is the first without the attribute `spatial`.
    if node.since_version()? < 9 {
        return Ok(Some("it is of an opset before 9"));
    }
    // In training it computes mean and variance itself, and has outputs for them.
    let trains = node.attributes()?.int("training_mode", 0) != 0 || node.outputs()?.iter().skip(1).any(Option::is_some);
    Ok(trains.then_some("it trains"))
}

/// The tensor that a node adds to a value, if it may well have the same shape.
fn residual<'g>(node: Node<'g>, value: Value<'g>) -> Result<Reasoned<Value<'g>>> {
    let [Some(one), Some(other)] = node.inputs()?[..] else { return Ok(Err("it does not add two tensors".into())) };
    let name = value.name()?;
    let added = if one.name()? == name { other } else { one };
    if added.name()? == name {
        return Ok(Err("it adds a tensor to itself".into()));
    }
    added_to(value, added)
}

/// The tensor that is added to a value, if it may well have the same shape.
fn added_to<'g>(value: Value<'g>, added: Value<'g>) -> Result<Reasoned<Value<'g>>> {
    let (Some(sum), Some(ty)) = (value.tensor_type()?, added.tensor_type()?) else {
        return Ok(Err("it does not add tensors".into()));
    };
    Ok(sum.may_be_same_as(&ty).map(|()| added))
}

/// The tensor that a Pad reads, and the pads of both, if they can be those of the layer alone.
fn pads_of_both<'g>(pad: Node<'g>, layer: &Fusion<'g>) -> Result<Reasoned<(Value<'g>, Vec<i64>)>> {
    let no = |reason: &str| Ok(Err(reason.into()));
    let auto_pad = layer.attributes.string("auto_pad");
    if layer.op != "Conv" {
        return no("the pads of a ConvTranspose cut off");
    }
    if !matches!(auto_pad, None | Some("" | "NOTSET" | "VALID")) {
        return no("auto_pad depends on the size behind it");
    }
    if layer.x.only_consumer()? != Some(layer.node) {
        return no("what it pads is read elsewhere, too, or leaves the graph");
    }
    let (Some(zeros), Some(data)) = (pad_of_zeros(pad)?, pad.input(0)?) else {
        return no("it pads by something else than zeros, by numbers that are not constant, or axes that are not");
    };
    let Some(added) = spatial_pads(&zeros) else { return no("it pads batch or channels, or cuts off") };
    let own = match layer.attributes.get("pads") {
        Some(AttributeValue::Ints(own)) if own.len() == added.len() => own.clone(),
        None => vec![0; added.len()],
        _ => return no("the convolution has pads of other axes"),
    };
    // VALID beside pads is a mistake, which onnxruntime refuses.
    if auto_pad == Some("VALID") && own.iter().any(|pad| *pad != 0) {
        return no("auto_pad is VALID beside pads");
    }
    let pads = own.iter().zip(&added).map(|(own, added)| own.checked_add(*added)).collect::<Option<_>>();
    Ok(pads.map(|pads| (data, pads)).ok_or_else(|| "its pads are too large".into()))
}

/// Whether a tensor that is broadcast over one of `rank` axes has a number for each channel, or one
/// for all.
pub(crate) fn is_of_channels(dims: &[i64], rank: usize) -> bool {
    // Broadcasting aligns the last axes; the channels are the second axis of `rank`.
    let mut from_last = dims.iter().rev().enumerate();
    rank >= 3 && dims.len() <= rank && from_last.all(|(i, size)| *size == 1 || i + 2 == rank)
}

/// The pads of all axes, first those before and then those behind, if the node adds zeros.
fn pad_of_zeros(pad: Node<'_>) -> Result<Option<Vec<i64>>> {
    let attributes = pad.attributes()?;
    if !matches!(attributes.string("mode"), None | Some("constant")) {
        return Ok(None);
    }
    if pad.since_version()? < 11 {
        let pads =
            if let Some(AttributeValue::Ints(pads)) = attributes.get("pads") { Some(pads.clone()) } else { None };
        return Ok(pads.filter(|_| attributes.float("value", 0.0) == 0.0));
    }
    let is_zero = match pad.input(2)? {
        None => true,
        Some(value) => value.scalar()? == Some(0.0),
    };
    let ints = |at: usize| -> Result<Option<_>> { Ok(pad.input(at)?.map(Value::ints).transpose()?.flatten()) };
    let pads = if is_zero { ints(1)? } else { None };
    if pad.input(3)?.is_none() {
        return Ok(pads.map(<[_]>::to_vec));
    }
    let rank = pad.output()?.tensor_type()?.and_then(|ty| ty.dims).map(|dims| dims.len());
    let (Some(pads), Some(axes), Some(rank)) = (pads, ints(3)?, rank) else { return Ok(None) };
    Ok(pads_of_all_axes(pads, axes, rank))
}

/// The pads of all axes, of those of some; `None` if an axis does not exist or is named twice.
fn pads_of_all_axes(pads: &[i64], axes: &[i64], rank: usize) -> Option<Vec<i64>> {
    let (before, behind) = pads.split_at_checked(axes.len()).filter(|(before, behind)| before.len() == behind.len())?;
    let mut of_all = vec![None; 2 * rank];
    for ((axis, before), behind) in axes.iter().zip(before).zip(behind) {
        let axis =
            usize::try_from(if *axis < 0 { axis + rank as i64 } else { *axis }).ok().filter(|axis| *axis < rank)?;
        if of_all[axis].replace(*before).is_some() {
            return None;
        }
        of_all[rank + axis] = Some(*behind);
    }
    Some(of_all.into_iter().map(Option::unwrap_or_default).collect())
}

/// The pads of the spatial axes, if the other two have none and nothing is cut off.
fn spatial_pads(pads: &[i64]) -> Option<Vec<i64>> {
    let (before, behind) = pads.split_at(pads.len() / 2);
    let fits = pads.len().is_multiple_of(2) && before.len() > 2 && pads.iter().all(|pad| *pad >= 0);
    let is_spatial = || before[..2].iter().chain(&behind[..2]).all(|pad| *pad == 0);
    (fits && is_spatial()).then(|| [&before[2..], &behind[2..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_of_other_axes_and_negative_ones_are_not_taken() {
        assert_eq!(spatial_pads(&[0, 0, 1, 2, 0, 0, 3, 4]), Some(vec![1, 2, 3, 4]));
        assert_eq!(spatial_pads(&[0, 0, 1, 0, 0, 3]), Some(vec![1, 3]));
        for pads in [
            &[0, 1, 1, 2, 0, 0, 3, 4][..],
            &[0, 0, 1, 2, 1, 0, 3, 4],
            &[0, 0, -1, 0, 0, 3],
            &[0, 0, 0],
            &[0, 0, 0, 0],
            &[],
        ] {
            assert_eq!(spatial_pads(pads), None, "{pads:?}");
        }
    }

    #[test]
    fn pads_of_some_axes_are_those_of_all_but_for_axes_that_cannot_be() {
        assert_eq!(pads_of_all_axes(&[1, 2, 3, 4], &[-1, 2], 4), Some(vec![0, 0, 2, 1, 0, 0, 4, 3]));
        assert_eq!(pads_of_all_axes(&[], &[], 1), Some(vec![0, 0]));
        for axes in [&[2][..], &[2, 4], &[2, -5], &[2, i64::MIN], &[2, i64::MAX], &[3, -1], &[1, 2, 3], &[0; 5]] {
            assert_eq!(pads_of_all_axes(&[1, 2, 3, 4], axes, 4), None, "{axes:?}");
        }
    }

    #[test]
    fn numbers_of_channels_are_told_from_others() {
        for dims in [&[][..], &[1], &[1, 1], &[5, 1, 1], &[1, 5, 1, 1], &[1, 1, 1, 1]] {
            assert!(is_of_channels(dims, 4), "{dims:?}");
        }
        for dims in [&[5][..], &[5, 1], &[5, 5, 1], &[5, 1, 1, 1], &[1, 1, 1, 1, 1]] {
            assert!(!is_of_channels(dims, 4), "{dims:?}");
        }
        assert!(!is_of_channels(&[], 0));
    }
}
