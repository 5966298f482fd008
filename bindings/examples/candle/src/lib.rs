//! candle's convolutions on convoke.
//!
//! [`conv2d`] takes the place of `Tensor::conv2d`, and packs its weights on every call.
//! [`Convolution`] packs them once: a layer of any operator, number of axes, group and padding that
//! ONNX has.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use convoke::Conv;
//! use convoke_candle::Convolution;
//!
//! # fn main() -> candle_core::Result<()> {
//! let x = Tensor::ones((1, 8, 16, 16), DType::F32, &Device::Cpu)?;
//! let w = Tensor::ones((8, 1, 3, 3), DType::F32, &Device::Cpu)?;
//! // Depthwise, with more padding at the end: TensorFlow's SAME of stride 2.
//! let conv = Conv::new(w.dims()).group(8).strides([2, 2]).pads([0, 0, 1, 1]);
//! let layer = Convolution::new(conv, x.dims(), &w, None)?;
//! assert_eq!(layer.forward(&x)?.dims(), [1, 8, 8, 8]);
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, Module, Result, Shape, Tensor, WithDType, bail};
use convoke::{Conv, ConvTranspose, Element, Operator, PlanCache, Planner, Run, Workspace, bf16, f16};

/// Plans that a layer keeps, for inputs of different sizes.
const MOST_PLANS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// As `Tensor::conv2d`. Weights are packed on every call: layers that run more than once are
/// faster as a [`Convolution`].
///
/// # Errors
/// As [`Convolution::new`] and [`Convolution::forward`](Module::forward).
pub fn conv2d(
    x: &Tensor,
    kernel: &Tensor,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
) -> Result<Tensor> {
    let [padding, stride, dilation, groups] = [padding, stride, dilation, groups].map(attribute);
    let conv = Conv::new(kernel.dims()).pads([padding; 4]).strides([stride; 2]).dilations([dilation; 2]).group(groups);
    Convolution::new(conv, x.dims(), kernel, None)?.forward(x)
}

/// As `Tensor::conv_transpose2d`, with groups. Weights are packed on every call.
///
/// # Errors
/// As [`conv2d`].
pub fn conv_transpose2d(
    x: &Tensor,
    kernel: &Tensor,
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
) -> Result<Tensor> {
    let [padding, output_padding] = [padding, output_padding].map(attribute);
    let [stride, dilation, groups] = [stride, dilation, groups].map(attribute);
    let conv = ConvTranspose::new(kernel.dims())
        .pads([padding; 4])
        .output_padding([output_padding; 2])
        .strides([stride; 2])
        .dilations([dilation; 2])
        .group(groups);
    Convolution::new(conv, x.dims(), kernel, None)?.forward(x)
}

/// An attribute's value. One that ONNX's type does not have is too large for any layer.
fn attribute(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A layer whose weights are packed. It has no gradients.
#[derive(Clone)]
pub struct Convolution(Arc<dyn AnyLayer>);

impl Convolution {
    /// Plans a layer for X of a shape, and packs its weights. Other batches and sizes of X can be
    /// computed too, but the algorithm is chosen for this one.
    ///
    /// # Errors
    /// Those of convoke; weights that are not of f32, f64, f16 or bf16, not on the CPU, or
    /// variables.
    pub fn new(operator: impl Into<Operator>, x_dims: &[usize], w: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let operator = operator.into();
        if w.track_op() || bias.is_some_and(Tensor::track_op) {
            bail!("{}: the weights are packed once, and variables may change: detach() them", operator.op_name());
        }
        for tensor in [Some(w), bias].into_iter().flatten() {
            if !tensor.device().is_cpu() {
                bail!("{}: weights on {:?}, must be on the CPU", operator.op_name(), tensor.device().location());
            }
        }
        Ok(Self(match w.dtype() {
            DType::F32 => Arc::new(Layer::<f32>::new(operator, x_dims, w, bias)?),
            DType::F64 => Arc::new(Layer::<f64>::new(operator, x_dims, w, bias)?),
            DType::F16 => Arc::new(Layer::<f16>::new(operator, x_dims, w, bias)?),
            DType::BF16 => Arc::new(Layer::<bf16>::new(operator, x_dims, w, bias)?),
            other => bail!("{}: weights of {other:?}, must be of F32, F64, F16 or BF16", operator.op_name()),
        }))
    }
}

impl Module for Convolution {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // A copy only where elements do not lie in the order of the shape.
        x.contiguous()?.apply_op1(self.clone())
    }
}

impl CustomOp1 for Convolution {
    fn name(&self) -> &'static str {
        "convoke"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.run(storage, layout)
    }
}

/// A layer of any element type.
trait AnyLayer: Send + Sync {
    fn run(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)>;
}

/// Weights that are packed, and plans for the sizes of X that came.
struct Layer<T: Element>(PlanCache<T>);

impl<T: Element + WithDType> Layer<T> {
    fn new(operator: Operator, x_dims: &[usize], w: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let elements = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<T>();
        if w.dims() != operator.weight_shape() {
            bail!("{}: W has shape {:?}, must have {:?}", operator.op_name(), w.dims(), operator.weight_shape());
        }
        if let Some(bias) = bias {
            operator.geometry(x_dims).and_then(|geometry| geometry.validate_bias(bias.dims())).map_err(Error::wrap)?;
        }
        let (w, bias) = (elements(w)?, bias.map(elements).transpose()?);
        let cache = PlanCache::new(Planner::new(), operator, &[x_dims], &w, bias.as_deref(), MOST_PLANS);
        Ok(Self(cache.map_err(Error::wrap)?))
    }
}

impl<T: Element + WithDType> AnyLayer for Layer<T> {
    fn run(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        thread_local! {
            static WORKSPACE: RefCell<Workspace<'static>> =
                RefCell::new(Workspace::with_bytes(0).expect("nothing needs no memory"));
        }
        let Some((begin, end)) = layout.contiguous_offsets() else {
            bail!("convoke: X is not contiguous");
        };
        let x = &T::cpu_storage_as_slice(storage)?[begin..end];
        let plan = self.0.plan(layout.dims()).map_err(Error::wrap)?;
        let mut y = vec![T::default(); plan.geometry().output_len()];
        let run = |workspace: &mut Workspace<'static>| {
            workspace.grow_for(&plan)?;
            plan.run(Run::new(x, self.0.packed(), &mut y).workspace(workspace)).map(|_| ())
        };
        WORKSPACE.with_borrow_mut(run).map_err(Error::wrap)?;
        Ok((T::to_cpu_storage_owned(y), plan.geometry().output_shape().into()))
    }
}
