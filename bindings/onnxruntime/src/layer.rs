//! Compiled layers: what onnxruntime runs instead of the nodes that they were made of.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use convoke::{Accuracy, Activation, Layout, Operator, PackedWeights, Plan, Planner, Threads, Workspace};
use lru::LruCache;

use crate::api::{Failure, Level, Result, lock};
use crate::fusion::Fusion;
use crate::graph::{Attributes, Dim, Node, Tensor, TensorType, Value};
use crate::run::{Run, buffer};
use crate::session::Session;
use crate::sum;
use crate::weights::{
    Affine, Constants, MOST_PLANS, OutputChannels, PackedLayer, Planned, Scalar, folded, with_an_image,
};

const FIRST: Layout = Layout::ChannelsFirst;

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
    let (common, places) = (Common::of(session, fusion)?, Places::of(fusion, inputs)?);
    let (w, bias) = fusion.tensors().ok_or_else(|| Failure::other("a layer without weights"))?;
    let (w, bias) = (inputs.place(w)?, bias.map(|bias| inputs.place(bias)).transpose()?);
    // Transforming W by Winograd takes longer than the run gains from it.
    let planner = session.planner().activation(fusion.activation).accuracy(Accuracy::Strict);
    let title = &common.title;
    session.log().write(Level::Verbose, || format!("{title}: weights that are inputs are packed in every run"));
    let (op, since, attributes) = (fusion.op.clone(), fusion.since, fusion.attributes.clone());
    let node = VersionedNode { op, since, attributes };
    let plans = Mutex::new(LruCache::new(MOST_PLANS));
    Ok(Box::new(move || Ok(Box::new(FreeLayer::<T> { common, places, planner, node, w, bias, plans }))))
}

/// What all jobs give, such as layers that are packed, in their order. They are done on at most `threads` threads, the
/// caller's among them.
pub(crate) fn on_threads<T: Send>(jobs: Vec<impl FnOnce() -> Result<T> + Send>, threads: usize) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let slots: Vec<_> = jobs.into_iter().map(|job| Mutex::new((Some(job), None))).collect();
    let work = || {
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut slot = lock(slot);
            slot.1 = slot.0.take().map(|job| job());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(slots.len()) {
            scope.spawn(work);
        }
        work();
    });
    let done = |slot: Mutex<(_, Option<_>)>| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1;
    slots.into_iter().map(|slot| done(slot).expect("every job was done")).collect()
}

/// Packs the weights of a layer.
pub(crate) type PackingConstants<'g, L> = Box<dyn FnOnce() -> Result<L> + Send + 'g>;

/// Reads a fusion whose weights are constant; `None` if some are inputs.
pub(crate) fn read_constant<'g, T: Scalar>(
    session: &Arc<Session>,
    fusion: &Fusion<'g>,
    inputs: &Inputs,
) -> Result<Option<PackingConstants<'g, ConstantLayer<T>>>> {
    let Some(packing) = read_packed::<T>(session, fusion, [FIRST; 2])? else { return Ok(None) };
    let (places, is_normalisation) = (Places::of(fusion, inputs)?, fusion.is_normalisation());
    Ok(Some(Box::new(move || Ok(ConstantLayer { layer: packing()?, places, is_normalisation }))))
}

/// Reads a fusion whose weights are constant, for layouts of X and Y; `None` if some are inputs.
pub(crate) fn read_packed<'g, T: Scalar>(
    session: &Arc<Session>,
    fusion: &Fusion<'g>,
    [x, y]: [Layout; 2],
) -> Result<Option<PackingConstants<'g, Packed<T>>>> {
    let Some((w_dims, constants)) = fusion.constants::<T>()? else { return Ok(None) };
    let common = Common::of(session, fusion)?;
    let operator = fusion.operator(&w_dims)?.layouts(x, y);
    let scalings = fusion.scalings.iter().map(Affine::of).collect::<Result<Vec<_>>>()?;
    let channels = OutputChannels::of(&operator, fusion.group());
    let type_of_x = fusion.x.tensor_type()?;
    let usual = type_of_x.as_ref().and_then(usual_shape);
    // Plans for another number of images may exceed the limit with the same weights.
    let one_set_serves = type_of_x.is_some_and(|ty| ty.shape().is_some()) || !session.has_workspace_limit();
    Ok(Some(Box::new(move || {
        let constants = match channels {
            Some(channels) => folded(constants, &scalings, &channels),
            None => scalings.is_empty().then_some(constants),
        };
        let constants = constants.ok_or_else(|| Failure::other("scalings that W cannot take"))?;
        Packed::of(common, operator, constants, usual, one_set_serves)
    })))
}

/// The shape of X to plan for, if all its images have the same size: that of one image where their
/// number is unknown, or none.
pub(crate) fn usual_shape(ty: &TensorType) -> Option<Vec<usize>> {
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

/// What a layer is, whatever its weights are.
struct Common {
    session: Arc<Session>,
    title: String,
    activation: Activation,
}

impl Common {
    fn of(session: &Arc<Session>, fusion: &Fusion<'_>) -> Result<Self> {
        Ok(Self { session: session.clone(), title: fusion.title()?, activation: fusion.activation })
    }

    /// Says how a run of a shape is computed.
    fn log<T: Scalar>(&self, plan: &Plan<T>) {
        self.session.log().write(Level::Verbose, || format!("{}: {:#}", self.title, plan.explain()));
    }
}

/// A run of a layer whose plan and tensors are known.
pub(crate) struct Call<'a, T: Scalar> {
    common: &'a Common,
    run: Run,
    operator: &'a Operator,
    plan: &'a Plan<T>,
    packed: &'a PackedWeights<T>,
    x: &'a [T],
    residual: Option<(&'a [T], Vec<usize>)>,
    output_shape: Vec<usize>,
}

impl<'a, T: Scalar> Call<'a, T> {
    fn new(
        common: &'a Common,
        run: Run,
        places: Places,
        operator: &'a Operator,
        (plan, packed): (&'a Plan<T>, &'a PackedWeights<T>),
    ) -> Result<Self> {
        let x = run.input(places.x)?.elements()?;
        let read = |at| run.input(at).and_then(|tensor| Ok((tensor.elements()?, tensor.shape()?)));
        let residual: Option<(&[T], _)> = places.residual.map(read).transpose()?;
        let y_shape = plan.geometry().output_shape();
        let output_shape = match &residual {
            Some((_, shape)) => sum::broadcast("Add", &y_shape, shape)?,
            None => y_shape,
        };
        Ok(Self { common, run, operator, plan, packed, x, residual, output_shape })
    }

    pub(crate) fn output_shape(&self) -> Vec<usize> {
        self.output_shape.clone()
    }

    /// The tensors that it reads: X, and the residual or nothing.
    pub(crate) fn inputs(&self) -> [&'a [T]; 2] {
        [self.x, self.residual.as_ref().map_or(&[], |(residual, _)| residual)]
    }

    /// Computes all of Y.
    pub(crate) fn compute(&self, y: &mut [MaybeUninit<T>]) -> Result<()> {
        let y_shape = self.plan.geometry().output_shape();
        match &self.residual {
            Some((residual, shape)) if *shape != y_shape => self.compute_apart(y, &y_shape, (residual, shape)),
            residual => {
                let residual = residual.as_ref().map(|(residual, _)| *residual);
                self.execute(self.plan, self.packed, self.x, residual, y).map(drop)
            }
        }
    }

    /// Computes Y where the residual has another shape than what the layer computes of X alone.
    fn compute_apart(
        &self,
        y: &mut [MaybeUninit<T>],
        own_shape: &[usize],
        (residual, shape): (&[T], &[usize]),
    ) -> Result<()> {
        if y.is_empty() {
            return Ok(());
        }
        let (session, x_shape) = (&self.common.session, self.plan.geometry().input_shape());
        let (plan, len) =
            (sum::conv(&session.planner(), self.operator, self.packed, &x_shape)?, self.plan.geometry().output_len());
        let mut own = buffer(len)?;
        let own = self.execute(&plan, self.packed, self.x, None, &mut own.spare_capacity_mut()[..len])?;
        let own = sum::repeated(own, own_shape, &self.output_shape)?;
        let residual = sum::repeated(residual, shape, &self.output_shape)?;
        let (plan, ones) = sum::add(&session.planner(), self.common.activation, &self.output_shape, [FIRST; 2])?;
        self.execute(&plan, &ones, &own, Some(&residual), y).map(drop)
    }

    /// Runs a plan on the session's memory and the threads of the run.
    fn execute<'y>(
        &self,
        plan: &Plan<T>,
        packed: &PackedWeights<T>,
        x: &[T],
        residual: Option<&[T]>,
        y: &'y mut [MaybeUninit<T>],
    ) -> Result<&'y mut [T]> {
        execute(&self.common.session, self.run, plan, convoke::Run::uninit(x, packed, y).residual(residual))
    }

    fn into_output(self) -> Result<()> {
        // SAFETY: Y is of X's type, and these are all inputs.
        unsafe { self.run.write(&self.output_shape, &self.inputs(), |y| self.compute(y)) }
    }
}

/// Runs a plan on the session's memory and the threads of a run.
pub(crate) fn execute<'y, T: Scalar>(
    session: &Session,
    run: Run,
    plan: &Plan<T>,
    what: convoke::Run<'_, 'y, T>,
) -> Result<&'y mut [T]> {
    lend(session, run, plan.threads(), |workspace, threads| {
        workspace.grow_for(plan)?;
        Ok(plan.run(what.workspace(workspace).threads(threads))?)
    })
}

/// Lends a workspace of the session, and the threads of a run for work that is split for so many.
pub(crate) fn lend<R>(
    session: &Session,
    run: Run,
    count: usize,
    body: impl FnOnce(&mut Workspace<'static>, Threads<'_>) -> Result<R>,
) -> Result<R> {
    let pool = run.pool(count);
    let threads = if count > 1 { Threads::Executor(&pool) } else { Threads::Serial };
    session.with_workspace(|workspace| body(workspace, threads))
}

/// A layer with its packed weights, wherever its tensors are.
pub(crate) struct Packed<T: Scalar> {
    common: Common,
    pub(crate) operator: Operator,
    weights: PackedLayer<T>,
    /// Shapes of X whose plans are in the log.
    explained: Mutex<LruCache<Vec<usize>, ()>>,
}

impl<T: Scalar> Packed<T> {
    /// Packs for X of the usual shape, or when X is there.
    fn of(
        common: Common,
        operator: Operator,
        constants: Constants<'_, T>,
        usual: Option<Vec<usize>>,
        one_set_serves: bool,
    ) -> Result<Self> {
        let Common { session, title, activation } = &common;
        let planner = || session.planner().activation(*activation);
        let mut explained = LruCache::new(MOST_PLANS);
        let weights = match usual {
            Some(x_shape) => {
                let packed = session.pack(title, &operator, *activation, &x_shape, &constants);
                let packed = packed.map_err(|failure| failure.context(title))?;
                explained.put(x_shape, ());
                if one_set_serves { packed } else { packed.or_packed_anew(planner(), operator.clone(), constants) }
            }
            None => {
                session
                    .log()
                    .write(Level::Verbose, || format!("{title}: weights are packed when the size of X is known"));
                PackedLayer::of_any_size(planner(), operator.clone(), constants)
            }
        };
        Ok(Self { common, operator, weights, explained: Mutex::new(explained) })
    }

    /// A layer that moves a tensor from a layout to another one: a depthwise convolution of one tap, 1.
    pub(crate) fn converting(session: &Arc<Session>, channels: usize, rank: usize, layouts: [Layout; 2]) -> Self {
        let [x, y] = layouts;
        let operator = sum::of_ones(channels, rank, layouts);
        let constants = Constants { w: vec![T::of(1.0); channels].into(), bias: None };
        let weights = PackedLayer::of_any_size(session.planner(), operator.clone(), constants);
        let title = format!("{channels} channels from {x} to {y}");
        let common = Common { session: session.clone(), title, activation: Activation::None };
        Self { common, operator, weights, explained: Mutex::new(LruCache::new(MOST_PLANS)) }
    }

    pub(crate) fn activation(&self) -> Activation {
        self.common.activation
    }

    /// The plan for X of a shape.
    pub(crate) fn plan(&self, x_shape: &[usize]) -> Result<Planned<T>> {
        let planned = self.weights.plan(x_shape)?;
        if self.common.session.log().shows(Level::Verbose) && lock(&self.explained).put(x_shape.to_vec(), ()).is_none()
        {
            self.common.log(&planned.plan);
        }
        Ok(planned)
    }
}

/// A layer whose weights are constant.
pub(crate) struct ConstantLayer<T: Scalar> {
    layer: Packed<T>,
    places: Places,
    is_normalisation: bool,
}

impl<T: Scalar> ConstantLayer<T> {
    /// The plan for a run.
    pub(crate) fn plan(&self, run: Run) -> Result<Planned<T>> {
        self.layer.plan(&run.input(self.places.x)?.shape()?)
    }

    /// A run by its plan.
    pub(crate) fn call<'a>(&'a self, run: Run, planned: &'a Planned<T>) -> Result<Call<'a, T>> {
        let Packed { common, operator, .. } = &self.layer;
        Call::new(common, run, self.places, operator, (&planned.plan, planned.cache.packed()))
    }
}

impl<T: Scalar> Layer for ConstantLayer<T> {
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

type PlansByShapes<T> = LruCache<[Vec<usize>; 2], Arc<(Operator, Plan<T>)>>;

/// A layer whose weights are inputs: they are packed in every run.
struct FreeLayer<T: Scalar> {
    common: Common,
    places: Places,
    planner: Planner,
    node: VersionedNode,
    w: usize,
    bias: Option<usize>,
    /// By the shapes of X and W.
    plans: Mutex<PlansByShapes<T>>,
}

impl<T: Scalar> FreeLayer<T> {
    fn plan(&self, x: &Tensor<'_>, w: &Tensor<'_>) -> Result<Arc<(Operator, Plan<T>)>> {
        let key = [x.shape()?, w.shape()?];
        if let Some(plan) = lock(&self.plans).get(&key) {
            return Ok(plan.clone());
        }
        let VersionedNode { op, since, attributes } = &self.node;
        let operator = Operator::from_attributes(op, *since, &attributes.for_convoke(), w.dims())?;
        let plan = self.planner.plan::<T>(operator.clone(), &key[0])?;
        self.common.log(&plan);
        let plan = Arc::new((operator, plan));
        lock(&self.plans).put(key, plan.clone());
        Ok(plan)
    }
}

impl<T: Scalar> Layer for FreeLayer<T> {
    fn run(&self, run: Run) -> Result<()> {
        let (x, w) = (run.input(self.places.x)?, run.input(self.w)?);
        let planned = self.plan(&x, &w)?;
        let (operator, plan) = &*planned;
        let bias = self.bias.map(|at| run.input(at)).transpose()?;
        if let Some(bias) = bias {
            plan.geometry().validate_bias(&bias.shape()?)?;
        }
        let bias = bias.map(|bias| bias.elements::<T>()).transpose()?;
        let packed = plan.pack(w.elements::<T>()?, bias)?;
        Call::new(&self.common, run, self.places, operator, (plan, &packed))?.into_output()
    }
}
