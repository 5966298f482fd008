//! A layer that was compiled: what onnxruntime runs instead of the nodes that it was made of.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex};

use convoke::{Accuracy, DType, Element, Operator, PackedWeights, Plan, Planner, Threads, bf16, f16};
use lru::LruCache;
use num_traits::AsPrimitive;
use ort_sys::OrtKernelContext;

use crate::api::{Api, Failure, Level, Result, lock};
use crate::fusion::Fusion;
use crate::graph::{Attributes, Dim, Node, Tensor, TensorType, Value, non_null};
use crate::pool::Pool;
use crate::session::Session;
use crate::weights::{Affine, Constants, MOST_PLANS, PackedLayer};

/// A run of a node.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    api: Api,
    context: NonNull<OrtKernelContext>,
}

impl Run {
    /// # Safety
    /// The context must be that of a run, which outlives the value and all that its methods return.
    pub(crate) unsafe fn new(api: Api, context: NonNull<OrtKernelContext>) -> Self {
        Self { api, context }
    }

    fn input<'r>(self, index: usize) -> Result<Tensor<'r>> {
        let mut value = null();
        // SAFETY: the run lives.
        let status = unsafe { (self.api.ort.KernelContext_GetInput)(self.context.as_ptr(), index, &mut value) };
        self.api.check(status)?;
        // SAFETY: inputs live for the run, and nobody writes to them meanwhile.
        unsafe { Tensor::new(self.api, non_null(value, "input")?) }
    }

    /// Makes the output and returns its elements. They are `len`, which is the shape's, and live for
    /// the run. A caller may have bound the output to the memory of an input.
    fn output<T: Element>(self, shape: &[usize], len: usize) -> Result<NonNull<[MaybeUninit<T>]>> {
        let (mut value, mut data) = (null_mut(), null_mut());
        // Geometry checked that the shape is one of ONNX, whose sizes are of 63 bits.
        let dims: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        // SAFETY: the run lives, and onnxruntime copies the dimensions.
        let status = unsafe {
            let context = self.context.as_ptr();
            (self.api.ort.KernelContext_GetOutput)(context, 0, dims.as_ptr(), dims.len(), &mut value)
        };
        self.api.check(status)?;
        if len == 0 {
            return Ok((&mut [][..]).into());
        }
        // SAFETY: the output is the run's.
        self.api.check(unsafe { (self.api.ort.GetTensorMutableData)(value, &mut data) })?;
        let data = non_null(data.cast_const().cast::<MaybeUninit<T>>(), "output")?;
        if !data.is_aligned() {
            return Err(Failure::invalid(format_args!("an output that is not aligned to {} bytes", align_of::<T>())));
        }
        Ok(NonNull::slice_from_raw_parts(data, len))
    }
}

/// A layer of any element type.
pub(crate) trait Layer: Send + Sync {
    /// Computes one run of the node.
    fn run(&self, run: Run) -> Result<()>;
}

/// Packs the weights of a layer: what is left to do when the graph was read. Threads share this
/// work.
pub(crate) type Packing<'g> = Box<dyn FnOnce() -> Result<Box<dyn Layer>> + Send + 'g>;

/// Reads a fusion and all constants that it needs.
pub(crate) fn read<'g>(session: &Arc<Session>, fusion: &Fusion<'g>, fused: Node<'g>) -> Result<Packing<'g>> {
    match fusion.dtype {
        DType::F32 => read_as::<f32>(session, fusion, fused),
        DType::F64 => read_as::<f64>(session, fusion, fused),
        DType::F16 => read_as::<f16>(session, fusion, fused),
        DType::BF16 => read_as::<bf16>(session, fusion, fused),
    }
}

fn read_as<'g, T>(session: &Arc<Session>, fusion: &Fusion<'g>, fused: Node<'g>) -> Result<Packing<'g>>
where
    T: Element + AsPrimitive<f64>,
    f64: AsPrimitive<T>,
{
    let names = fused.inputs()?.into_iter().map(|input| input.map_or(Ok(String::new()), Value::name));
    let names = names.collect::<Result<Vec<_>>>()?;
    let place = |value: Value<'g>| -> Result<usize> {
        let name = value.name()?;
        let at = names.iter().position(|known| *known == name);
        at.ok_or_else(|| Failure::other(format_args!("the fused node has no input {name}")))
    };
    let places = Places { x: place(fusion.x)?, residual: fusion.residual.map(place).transpose()? };
    let (session, since) = (session.clone(), fusion.node.since_version()?);
    let title = fusion.title()?;
    let Some((w, bias)) = fusion.constants()? else {
        let (w, bias) = (place(fusion.w)?, fusion.bias.map(place).transpose()?);
        let (op, attributes) = (fusion.op.clone(), fusion.attributes.clone());
        // Transforming W by Winograd takes longer than the run gains from it.
        let planner = session.planner().activation(fusion.activation).accuracy(Accuracy::Strict);
        session.log().write(Level::Verbose, || format!("{title}: weights that are inputs are packed in every run"));
        let node = VersionedNode { op, since, attributes };
        let plans = Mutex::new(LruCache::new(MOST_PLANS));
        return Ok(Box::new(move || Ok(Box::new(FreeLayer::<T> { session, planner, node, places, w, bias, plans }))));
    };
    let operator = Operator::from_attributes(&fusion.op, since, &fusion.attributes.for_convoke(), w.dims())?;
    let mut constants = Constants {
        w: w.elements::<T>()?.into(),
        bias: bias.map(|bias| bias.elements::<T>()).transpose()?.map(Into::into),
    };
    let affine = fusion.normalisation.as_ref().map(Affine::of).transpose()?;
    let group = usize::try_from(fusion.attributes.int("group", 1)).unwrap_or(1);
    let usual = fusion.x.tensor_type()?.and_then(|ty| usual_shape(&ty));
    let activation = fusion.activation;
    Ok(Box::new(move || {
        if let Some(affine) = affine {
            affine.fold_into(&mut constants, &operator, group)?;
        }
        let packed = match usual {
            Some(x_shape) => session
                .pack(&title, &operator, activation, &x_shape, &constants)
                .map_err(|failure| failure.context(&title))?,
            None => {
                session
                    .log()
                    .write(Level::Verbose, || format!("{title}: weights are packed when the size of X is known"));
                PackedLayer::of_any_size(session.planner().activation(activation), operator, constants)
            }
        };
        Ok(Box::new(ConstantLayer { session, packed, places }))
    }))
}

/// The shape of X to plan for, if all its images have the same size: that of one image where their
/// number is unknown.
fn usual_shape(ty: &TensorType) -> Option<Vec<usize>> {
    let (batch, image) = ty.dims.as_ref()?.split_first()?;
    std::iter::once(Some(batch.size().unwrap_or(1))).chain(image.iter().map(Dim::size)).collect()
}

/// Where the tensors of a layer are among the inputs of the fused node.
struct Places {
    x: usize,
    residual: Option<usize>,
}

impl Places {
    /// Computes a run by a plan.
    fn compute<T: Element>(
        &self,
        session: &Session,
        run: Run,
        x: &Tensor<'_>,
        (plan, packed): (&Plan<T>, &PackedWeights<T>),
    ) -> Result<()> {
        let x = x.elements::<T>()?;
        let residual = self.residual.map(|at| run.input(at)?.elements::<T>()).transpose()?;
        let geometry = plan.geometry();
        let len = geometry.output_len();
        let mut y = run.output::<T>(&geometry.output_shape(), len)?;
        // SAFETY: the run outlives the pool.
        let pool = unsafe { Pool::new(run.api, run.context, plan.threads()) };
        let threads = if plan.threads() > 1 { Threads::Executor(&pool) } else { Threads::Serial };
        let compute = |y: &mut [MaybeUninit<T>]| {
            session.with_workspace(|workspace| {
                workspace.grow_for(plan)?;
                plan.run_uninit(x, packed, residual, y, workspace, threads)?;
                Ok(())
            })
        };
        if overlaps(y, x) || residual.is_some_and(|residual| overlaps(y, residual)) {
            let mut own = Vec::new();
            own.try_reserve_exact(len).map_err(|error| {
                Failure::other(format_args!("no memory for an output that is bound to an input: {error}"))
            })?;
            let own = &mut own.spare_capacity_mut()[..len];
            compute(own)?;
            // SAFETY: onnxruntime gave room for so many elements of the node's type, which its type
            // inference took from X. Inputs in that memory are not read any more.
            unsafe { y.as_mut() }.copy_from_slice(own);
            return Ok(());
        }
        // SAFETY: as above, but the memory is that of no slice that is read meanwhile.
        compute(unsafe { y.as_mut() })
    }
}

/// Whether an output has memory of an input.
fn overlaps<T>(y: NonNull<[MaybeUninit<T>]>, input: &[T]) -> bool {
    let (y_start, input) = (y.cast::<T>().as_ptr().cast_const(), input.as_ptr_range());
    let y_end = y_start.wrapping_add(y.len());
    y_start < input.end && input.start < y_end
}

/// A layer whose weights are constant.
struct ConstantLayer<T: Element> {
    session: Arc<Session>,
    packed: PackedLayer<T>,
    places: Places,
}

impl<T: Element> Layer for ConstantLayer<T> {
    fn run(&self, run: Run) -> Result<()> {
        let x = run.input(self.places.x)?;
        let planned = self.packed.plan(&x.shape()?)?;
        self.places.compute(&self.session, run, &x, (&planned.plan, planned.cache.packed()))
    }
}

/// A node but for its inputs.
struct VersionedNode {
    op: String,
    since: i64,
    attributes: Attributes,
}

type PlansByShapes<T> = LruCache<[Vec<usize>; 2], Arc<Plan<T>>>;

/// A layer whose weights are inputs: they are packed in every run.
struct FreeLayer<T: Element> {
    session: Arc<Session>,
    planner: Planner,
    node: VersionedNode,
    places: Places,
    w: usize,
    bias: Option<usize>,
    /// By the shapes of X and W.
    plans: Mutex<PlansByShapes<T>>,
}

impl<T: Element> FreeLayer<T> {
    fn plan(&self, x: &Tensor<'_>, w: &Tensor<'_>) -> Result<Arc<Plan<T>>> {
        let key = [x.shape()?, w.shape()?];
        if let Some(plan) = lock(&self.plans).get(&key) {
            return Ok(plan.clone());
        }
        let VersionedNode { op, since, attributes } = &self.node;
        let operator = Operator::from_attributes(op, *since, &attributes.for_convoke(), w.dims())?;
        let plan = Arc::new(self.planner.plan::<T>(operator, &key[0])?);
        self.session.log().write(Level::Verbose, || format!("{:#}", plan.explain()));
        lock(&self.plans).put(key, plan.clone());
        Ok(plan)
    }
}

impl<T: Element> Layer for FreeLayer<T> {
    fn run(&self, run: Run) -> Result<()> {
        let (x, w) = (run.input(self.places.x)?, run.input(self.w)?);
        let plan = self.plan(&x, &w)?;
        let bias = self.bias.map(|at| run.input(at)).transpose()?;
        if let Some(bias) = bias {
            plan.geometry().validate_bias(&bias.shape()?)?;
        }
        let bias = bias.map(|bias| bias.elements::<T>()).transpose()?;
        let packed = plan.pack(w.elements::<T>()?, bias)?;
        self.places.compute(&self.session, run, &x, (&plan, &packed))
    }
}
