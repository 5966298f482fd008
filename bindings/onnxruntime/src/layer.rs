//! Compiled layers: what onnxruntime runs instead of the nodes that they were made of.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use convoke::{Accuracy, Element, Operator, PackedWeights, Plan, Planner, Threads};
use lru::LruCache;

use crate::api::{Failure, Level, Result, lock};
use crate::fusion::Fusion;
use crate::graph::{Attributes, Dim, Node, Tensor, TensorType, Value};
use crate::run::Run;
use crate::session::Session;
use crate::weights::{Affine, MOST_PLANS, OutputChannels, PackedLayer, Planned, Scalar, folded, with_an_image};

/// What a compiled node computes.
pub(crate) trait Layer: Send + Sync {
    /// Computes one run of the node.
    fn run(&self, run: Run) -> Result<()>;
}

/// What is left to do when the graph was read: packing the weights. Threads share this work.
pub(crate) type Packing<'g> = Box<dyn FnOnce() -> Result<Box<dyn Layer>> + Send + 'g>;

/// Where the inputs of a fused node are, by their names.
pub(crate) struct Inputs(Vec<String>);

impl Inputs {
    pub(crate) fn of(fused: Node<'_>) -> Result<Self> {
        let names = fused.inputs()?.into_iter().map(|input| input.map_or(Ok(String::new()), Value::name));
        Ok(Self(names.collect::<Result<_>>()?))
    }

    pub(crate) fn place(&self, value: Value<'_>) -> Result<usize> {
        let name = value.name()?;
        let at = self.0.iter().position(|known| *known == name);
        at.ok_or_else(|| Failure::other(format_args!("the fused node has no input {name}")))
    }
}

/// Reads a fusion and all constants that it needs.
pub(crate) fn read<'g, T: Scalar>(session: &Arc<Session>, fusion: &Fusion<'g>, inputs: &Inputs) -> Result<Packing<'g>> {
    if let Some(packing) = read_constant::<T>(session, fusion, inputs)? {
        return Ok(Box::new(move || Ok(Box::new(packing()?))));
    }
    let places = Places::of(fusion, inputs)?;
    let (w, bias) = fusion.tensors().ok_or_else(|| Failure::other("a layer without weights"))?;
    let (w, bias) = (inputs.place(w)?, bias.map(|bias| inputs.place(bias)).transpose()?);
    // Transforming W by Winograd takes longer than the run gains from it.
    let planner = session.planner().activation(fusion.activation).accuracy(Accuracy::Strict);
    let title = fusion.title()?;
    session.log().write(Level::Verbose, || format!("{title}: weights that are inputs are packed in every run"));
    let (op, since, attributes) = (fusion.op.clone(), fusion.since, fusion.attributes.clone());
    let node = VersionedNode { op, since, attributes };
    let (session, plans) = (session.clone(), Mutex::new(LruCache::new(MOST_PLANS)));
    Ok(Box::new(move || Ok(Box::new(FreeLayer::<T> { session, planner, node, places, w, bias, plans }))))
}

/// Packs the weights of a layer.
pub(crate) type PackingConstants<'g, T> = Box<dyn FnOnce() -> Result<ConstantLayer<T>> + Send + 'g>;

/// Reads a fusion whose weights are constant; `None` if some are inputs.
pub(crate) fn read_constant<'g, T: Scalar>(
    session: &Arc<Session>,
    fusion: &Fusion<'g>,
    inputs: &Inputs,
) -> Result<Option<PackingConstants<'g, T>>> {
    let Some((w_dims, constants)) = fusion.constants::<T>()? else { return Ok(None) };
    let (places, title) = (Places::of(fusion, inputs)?, fusion.title()?);
    let operator = fusion.operator(&w_dims)?;
    let scalings = fusion.scalings.iter().map(Affine::of).collect::<Result<Vec<_>>>()?;
    let channels = OutputChannels::of(&operator, fusion.group());
    let type_of_x = fusion.x.tensor_type()?;
    let usual = type_of_x.as_ref().and_then(usual_shape);
    // Plans for another number of images may exceed the limit with the same weights.
    let one_set_serves = type_of_x.is_some_and(|ty| ty.shape().is_some()) || !session.has_workspace_limit();
    let (session, activation, is_normalisation) = (session.clone(), fusion.activation, fusion.is_normalisation());
    Ok(Some(Box::new(move || {
        let constants = match channels {
            Some(channels) => folded(constants, &scalings, &channels),
            None => scalings.is_empty().then_some(constants),
        };
        let constants = constants.ok_or_else(|| Failure::other("scalings that W cannot take"))?;
        let planner = || session.planner().activation(activation);
        let packed = match usual {
            Some(x_shape) => {
                let packed = session.pack(&title, &operator, activation, &x_shape, &constants);
                let packed = packed.map_err(|failure| failure.context(&title))?;
                if one_set_serves { packed } else { packed.or_packed_anew(planner(), operator, constants) }
            }
            None => {
                session
                    .log()
                    .write(Level::Verbose, || format!("{title}: weights are packed when the size of X is known"));
                PackedLayer::of_any_size(planner(), operator, constants)
            }
        };
        Ok(ConstantLayer { session, packed, places, is_normalisation })
    })))
}

/// The shape of X to plan for, if all its images have the same size: that of one image where their
/// number is unknown, or none.
fn usual_shape(ty: &TensorType) -> Option<Vec<usize>> {
    let (batch, image) = ty.dims.as_ref()?.split_first()?;
    let sizes = std::iter::once(Some(batch.size().unwrap_or(1))).chain(image.iter().map(Dim::size));
    sizes.collect::<Option<_>>().map(with_an_image)
}

/// Where the tensors of a layer are among the inputs of the fused node.
#[derive(Clone, Copy)]
struct Places {
    x: usize,
    residual: Option<usize>,
}

impl Places {
    fn of(fusion: &Fusion<'_>, inputs: &Inputs) -> Result<Self> {
        let residual = fusion.residual.map(|value| inputs.place(value)).transpose()?;
        Ok(Self { x: inputs.place(fusion.x)?, residual })
    }
}

/// A run of a layer whose plan and tensors are known.
pub(crate) struct Call<'a, T: Element> {
    session: &'a Session,
    run: Run,
    plan: &'a Plan<T>,
    packed: &'a PackedWeights<T>,
    x: &'a [T],
    residual: Option<&'a [T]>,
}

impl<'a, T: Element> Call<'a, T> {
    fn new(
        session: &'a Session,
        run: Run,
        places: Places,
        (plan, packed): (&'a Plan<T>, &'a PackedWeights<T>),
    ) -> Result<Self> {
        let x = run.input(places.x)?.elements::<T>()?;
        let residual = places.residual.map(|at| run.input(at)?.elements::<T>()).transpose()?;
        Ok(Self { session, run, plan, packed, x, residual })
    }

    pub(crate) fn output_shape(&self) -> Vec<usize> {
        self.plan.geometry().output_shape()
    }

    /// The tensors that it reads: X, and the residual or nothing.
    pub(crate) fn inputs(&self) -> [&'a [T]; 2] {
        [self.x, self.residual.unwrap_or_default()]
    }

    /// Computes all of Y.
    pub(crate) fn compute(&self, y: &mut [MaybeUninit<T>]) -> Result<()> {
        let pool = self.run.pool(self.plan.threads());
        let threads = if self.plan.threads() > 1 { Threads::Executor(&pool) } else { Threads::Serial };
        self.session.with_workspace(|workspace| {
            workspace.grow_for(self.plan)?;
            self.plan.run_uninit(self.x, self.packed, self.residual, y, workspace, threads)?;
            Ok(())
        })
    }

    fn into_output(self) -> Result<()> {
        // SAFETY: Y is of X's type, and these are all inputs.
        unsafe { self.run.write(&self.output_shape(), &self.inputs(), |y| self.compute(y)) }
    }
}

/// A layer whose weights are constant.
pub(crate) struct ConstantLayer<T: Element> {
    session: Arc<Session>,
    packed: PackedLayer<T>,
    places: Places,
    is_normalisation: bool,
}

impl<T: Element> ConstantLayer<T> {
    /// The plan for a run.
    pub(crate) fn plan(&self, run: Run) -> Result<Planned<T>> {
        self.packed.plan(&run.input(self.places.x)?.shape()?)
    }

    /// A run by its plan.
    pub(crate) fn call<'a>(&'a self, run: Run, planned: &'a Planned<T>) -> Result<Call<'a, T>> {
        Call::new(&self.session, run, self.places, (&planned.plan, planned.cache.packed()))
    }
}

impl<T: Element> Layer for ConstantLayer<T> {
    fn run(&self, run: Run) -> Result<()> {
        if self.is_normalisation {
            let shape = run.input(self.places.x)?.shape()?;
            // A convolution has no such X.
            if shape.contains(&0) {
                // SAFETY: the output is of X's type, as that of a BatchNormalization is, and empty.
                return unsafe { run.write::<T>(&shape, &[], |_| Ok(())) };
            }
        }
        self.call(run, &self.plan(run)?)?.into_output()
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
        Call::new(&self.session, run, self.places, (&plan, &packed))?.into_output()
    }
}
