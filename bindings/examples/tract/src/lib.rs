//! tract with its convolutions on convoke: [`with_convoke`] replaces the nodes Conv and Deconv of
//! a model before tract optimises it.
//!
//! ```no_run
//! use tract_onnx::prelude::*;
//!
//! # fn main() -> TractResult<()> {
//! let model = tract_onnx::onnx().model_for_path("model.onnx")?.into_typed()?;
//! let (model, replaced) = convoke_tract::with_convoke(model)?;
//! println!("{replaced}");
//! let runnable = model.into_optimized()?.into_runnable()?;
//! # Ok(()) }
//! ```

use std::cell::RefCell;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use convoke::{AutoPad, Conv, ConvTranspose, Element, Operator, PlanCache, Planner, Run, Workspace, f16};
use tract_onnx::tract_core::internal::*;
use tract_onnx::tract_core::ops::cnn::{Conv as TractConv, Deconv, KernelFormat, PaddingSpec, PoolSpec};
use tract_onnx::tract_core::ops::nn::DataFormat;

/// Plans that a layer keeps, for inputs of different sizes.
const MOST_PLANS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// What became of a model's convolutions.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Names of the nodes that run on convoke.
    pub replaced: Vec<String>,
    /// Names of those that are left to tract, with the reason.
    pub left: Vec<(String, String)>,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (replaced, all) = (self.replaced.len(), self.replaced.len() + self.left.len());
        write!(f, "{replaced} of {all} convolutions run on convoke")?;
        self.left.iter().try_for_each(|(name, reason)| write!(f, "\n  not {name}: {reason}"))
    }
}

/// Replaces the convolutions of a model that was not optimised yet.
///
/// A node is left to tract if it is quantised, or its weights or the size of its images are not
/// known. The number of images may be unknown.
///
/// The layers keep only packed weights. The constants that they were made from are freed as tract
/// optimises the model, if nothing else has them.
///
/// # Errors
/// Those of tract.
pub fn with_convoke(mut model: TypedModel) -> TractResult<(TypedModel, Replaced)> {
    // Weights may stand behind casts and reshapes of constants.
    tract_onnx::tract_core::optim::Optimizer::prop_consts().optimize(&mut model)?;
    let mut replaced = Replaced::default();
    for id in 0..model.nodes.len() {
        let node = model.node(id);
        let (conv, deconv) = (node.op_as::<TractConv>(), node.op_as::<Deconv>());
        let layer = match (conv, deconv) {
            (Some(conv), _) => conv_layer(&model, node, conv),
            (_, Some(deconv)) => deconv_layer(&model, node, deconv),
            (None, None) => continue,
        };
        let name = node.name.clone();
        match layer {
            Ok(op) => {
                TypedModelPatch::replace_single_op(&model, node, &node.inputs[..1], op)?.apply(&mut model)?;
                replaced.replaced.push(name);
            }
            Err(reason) => replaced.left.push((name, format!("{reason:#}"))),
        }
    }
    Ok((model, replaced))
}

/// A layer for a Conv, or why it is left.
fn conv_layer(model: &TypedModel, node: &TypedNode, conv: &TractConv) -> TractResult<Convolution> {
    ensure!(conv.q_params.is_none(), "it is quantised");
    let w = weights(model, node, conv.kernel_fmt, &conv.pool_spec)?;
    let mut operator = Conv::new(w.shape())
        .strides(sizes(&conv.pool_spec.strides())?)
        .dilations(sizes(&conv.pool_spec.dilations())?)
        .group(conv.group.try_into()?);
    operator = match &conv.pool_spec.padding {
        PaddingSpec::Valid => operator,
        PaddingSpec::Explicit(begin, end) => operator.pads(sizes(&[&**begin, &**end].concat())?),
        PaddingSpec::SameUpper => operator.auto_pad(AutoPad::SameUpper),
        PaddingSpec::SameLower => operator.auto_pad(AutoPad::SameLower),
        PaddingSpec::ExplicitOnnxPool(..) => bail!("its padding is that of a pooling layer"),
    };
    convolution(model, node, operator.into(), &w)
}

/// A layer for a Deconv, or why it is left.
fn deconv_layer(model: &TypedModel, node: &TypedNode, deconv: &Deconv) -> TractResult<Convolution> {
    let w = weights(model, node, deconv.kernel_format, &deconv.pool_spec)?;
    // From (M, C/group, kernel) to ONNX's (C, M/group, kernel).
    let w = w.split_axis(0, deconv.group)?.move_axis(1, 2)?.collapse_axis_with_next(0);
    let mut operator = ConvTranspose::new(w.shape())
        .strides(sizes(&deconv.pool_spec.strides())?)
        .dilations(sizes(&deconv.pool_spec.dilations())?)
        .output_padding(sizes(&deconv.adjustments)?)
        .group(deconv.group.try_into()?);
    operator = match &deconv.pool_spec.padding {
        PaddingSpec::Valid => operator,
        PaddingSpec::Explicit(begin, end) => operator.pads(sizes(&[&**begin, &**end].concat())?),
        padding => bail!("its padding is {padding:?}"),
    };
    convolution(model, node, operator.into(), &w)
}

fn sizes(sizes: &[usize]) -> TractResult<Vec<i64>> {
    Ok(sizes.iter().map(|size| i64::try_from(*size)).collect::<Result<_, _>>()?)
}

/// The weights, if they are constant and in ONNX's layout.
fn weights(model: &TypedModel, node: &TypedNode, format: KernelFormat, spec: &PoolSpec) -> TractResult<Tensor> {
    ensure!(spec.data_format == DataFormat::NCHW, "its data are {:?}", spec.data_format);
    ensure!(format == KernelFormat::OIHW, "its weights are {format:?}");
    let fact = model.outlet_fact(node.inputs[1])?;
    let constant = fact.konst.as_ref().context("its weights are not constant")?;
    Ok(Tensor::clone(constant))
}

fn convolution(model: &TypedModel, node: &TypedNode, operator: Operator, w: &Tensor) -> TractResult<Convolution> {
    let facts = model.node_input_facts(node.id)?;
    let bias = facts[2].konst.as_ref().context("its bias is not constant")?;
    // The number of images does not matter to packed weights.
    let images = facts[0].shape[0].to_usize().unwrap_or(1);
    let image = facts[0].shape.iter().skip(1).map(|size| Ok(size.to_usize()?)).collect::<TractResult<Vec<_>>>();
    let usual = [vec![images], image.context("the size of its images is not known")?].concat();
    let layer: Arc<dyn AnyLayer> = match facts[0].datum_type {
        DatumType::F32 => Arc::new(Layer::<f32>::new(operator, &usual, w, bias)?),
        DatumType::F64 => Arc::new(Layer::<f64>::new(operator, &usual, w, bias)?),
        DatumType::F16 => Arc::new(Layer::<f16>::new(operator, &usual, w, bias)?),
        other => bail!("it is of {other:?}"),
    };
    let constants = [facts[1], facts[2]].map(TypedFact::without_value);
    Ok(Convolution { layer, original: node.op.clone(), constants })
}

/// A convolution that is computed by convoke: an operator of tract with X as its one input.
#[derive(Clone)]
pub struct Convolution {
    layer: Arc<dyn AnyLayer>,
    /// What it replaces, which knows the shape of its output, and what it was told of W and B:
    /// without their values, as a model would keep those beside the packed weights.
    original: Box<dyn TypedOp>,
    constants: [TypedFact; 2],
}

impl fmt::Debug for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Convolution({:?})", self.original)
    }
}

impl PartialEq for Convolution {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.layer, &other.layer)
    }
}

impl Eq for Convolution {}

impl Op for Convolution {
    fn name(&self) -> StaticName {
        "ConvokeConvolution".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        self.original.info()
    }

    op_as_typed_op!();
}

impl EvalOp for Convolution {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        Ok(tvec!(self.layer.run(&x)?.into_tvalue()))
    }
}

impl TypedOp for Convolution {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [w, bias] = &self.constants;
        self.original.output_facts(&[inputs[0], w, bias])
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        let [w, bias] = &self.constants;
        self.original.cost(&[inputs[0], w, bias])
    }

    as_op!();
}

/// A layer of any element type.
trait AnyLayer: Send + Sync {
    fn run(&self, x: &Tensor) -> TractResult<Tensor>;
}

/// Weights that are packed, and plans for the sizes of X that came.
struct Layer<T: Element>(PlanCache<T>);

impl<T: Element + Datum> Layer<T> {
    fn new(operator: Operator, usual: &[usize], w: &Tensor, bias: &Tensor) -> TractResult<Self> {
        let channels = operator.geometry(usual)?.out_channels;
        let (w, bias) = (w.cast_to::<T>()?, bias.cast_to::<T>()?);
        let bias = bias.try_as_plain_ram()?.as_slice::<T>()?;
        // A scalar stands for all channels.
        let bias = if let [bias] = bias { vec![*bias; channels] } else { bias.to_vec() };
        let w = w.try_as_plain_ram()?;
        Ok(Self(PlanCache::new(Planner::new(), operator, &[usual], w.as_slice::<T>()?, Some(&bias), MOST_PLANS)?))
    }
}

impl<T: Element + Datum> AnyLayer for Layer<T> {
    fn run(&self, x: &Tensor) -> TractResult<Tensor> {
        thread_local! {
            static WORKSPACE: RefCell<Workspace<'static>> =
                RefCell::new(Workspace::with_bytes(0).expect("nothing needs no memory"));
        }
        let plan = self.0.plan(x.shape())?;
        let x = x.try_as_plain_ram()?;
        // SAFETY: a run writes every element, or fails, and the tensor is dropped then.
        let mut y = unsafe { Tensor::uninitialized::<T>(&plan.geometry().output_shape())? };
        let mut elements = y.try_as_plain_ram_mut()?;
        WORKSPACE.with_borrow_mut(|workspace| {
            workspace.grow_for(&plan)?;
            let (x, y) = (x.as_slice::<T>()?, elements.as_slice_mut::<T>()?);
            plan.run(Run::new(x, self.0.packed(), y).workspace(workspace))?;
            Ok::<_, TractError>(())
        })?;
        Ok(y)
    }
}
