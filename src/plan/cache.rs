//! Plans for inputs of many shapes, over one set of weights.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::num::NonZeroUsize;

use lru::LruCache;
use spin::Mutex;

use super::{PackedWeights, Plan, Planner};
use crate::element::Element;
use crate::error::{Error, bail};
use crate::{Byte, Operator, Quantised, QuantisedPlan};

/// Plans of one layer by the shape of X, over one set of packed weights: for networks whose input shapes
/// vary.
///
/// It keeps a limited number of plans, and forgets the one that was not asked for the longest. Threads
/// share it by reference, and may plan for different shapes at the same time.
///
/// All plans read the weights as the first one packed them: see [`Planner::packed_for`] for what
/// that means for the choice of the algorithm.
///
/// ```
/// use core::num::NonZeroUsize;
/// use convoke::{Conv, PlanCache, Planner, Run, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (conv, w) = (Conv::new([8, 3, 3, 3]).pads([1, 1, 1, 1]), vec![0.5; 8 * 3 * 3 * 3]);
/// let (usual, other) = ([1, 3, 64, 64], [1, 3, 80, 80]);
/// let most = NonZeroUsize::new(16).unwrap();
/// let cache = PlanCache::new(Planner::new(), conv, &[usual, other], &w, None, most)?;
/// let mut workspace = Workspace::with_bytes(0)?;
/// for size in [64, 80, 64, 48] {
///     let plan = cache.plan(&[1, 3, size, size])?;
///     workspace.grow_for(&plan)?;
///     let (x, mut y) = (vec![1.0_f32; 3 * size * size], vec![0.0; plan.geometry().output_len()]);
///     plan.run(Run::new(&x, cache.packed(), &mut y).workspace(&mut workspace))?;
/// }
/// assert_eq!(cache.len(), 3);
/// # Ok(()) }
/// ```
pub struct PlanCache<T: Element> {
    planner: Planner,
    operator: Operator,
    packed: PackedWeights<T>,
    plans: PlansByShape<Plan<T>>,
}

/// Plans by the shape of X.
struct PlansByShape<P>(Mutex<LruCache<Box<[usize]>, Arc<P>>>);

impl<P> PlansByShape<P> {
    /// For at most so many plans.
    fn new(most: NonZeroUsize) -> Self {
        // `LruCache::new` would allocate for `most` plans at once.
        let mut plans = LruCache::unbounded();
        plans.resize(most);
        Self(Mutex::new(plans))
    }

    /// The plan for a shape of X, which `plan` makes if it is not kept.
    fn get(&self, x_shape: &[usize], plan: impl FnOnce() -> Result<P, Error>) -> Result<Arc<P>, Error> {
        if let Some(plan) = self.0.lock().get(x_shape) {
            return Ok(plan.clone());
        }
        // Other threads are not held up. If one of them makes the same plan, the first one is kept.
        Ok(self.keep(x_shape, plan()?))
    }

    fn keep(&self, x_shape: &[usize], plan: P) -> Arc<P> {
        let (key, plan) = (Box::from(x_shape), Arc::new(plan));
        let mut plans = self.0.lock();
        if let Some(kept) = plans.get(x_shape) {
            return kept.clone();
        }
        let evicted = plans.push(key, plan.clone());
        drop(plans);
        // Dropping a plan takes long, and must not hold up other threads.
        drop(evicted);
        plan
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl<T: Element> PlanCache<T> {
    /// Plans for all known shapes of X, packs W and the bias, and keeps at most `most` plans. Plans for
    /// other shapes are made when they are asked for.
    ///
    /// The weights are packed for the fastest algorithm at the first shape. Take the shape of most runs,
    /// or one of a middle size.
    ///
    /// # Errors
    /// Those of [`Planner::plan`] and [`Plan::pack`]; those of [`plan`](Self::plan) for the other shapes;
    /// [`InvalidShape`](crate::ErrorKind::InvalidShape) if there is no shape, or if Y is empty for the
    /// first one: its plan would pack for the slowest algorithm.
    pub fn new(
        planner: Planner,
        operator: impl Into<Operator>,
        shapes: &[impl AsRef<[usize]>],
        w: &[T],
        bias: Option<&[T]>,
        most: NonZeroUsize,
    ) -> Result<Self, Error> {
        let operator = operator.into();
        let Some(usual) = shapes.first().map(AsRef::as_ref) else {
            bail!(InvalidShape, "{}: no shape of X is given", operator.op_name());
        };
        let plan = planner.plan::<T>(operator.clone(), usual)?;
        if plan.geometry().output_len() == 0 {
            let (op, y) = (plan.geometry().op, plan.geometry().output_shape());
            bail!(InvalidShape, "{op}: the first X of shape {usual:?} gives a Y of shape {y:?}, which is empty");
        }
        let cache = Self::with_packed(planner, operator, plan.pack(w, bias)?, most);
        cache.plans.keep(usual, plan);
        for shape in &shapes[1..] {
            cache.plan(shape.as_ref())?;
        }
        Ok(cache)
    }

    /// A cache without plans, over weights that are packed.
    pub fn with_packed(
        planner: Planner,
        operator: impl Into<Operator>,
        packed: PackedWeights<T>,
        most: NonZeroUsize,
    ) -> Self {
        let planner = planner.packed_for(&packed);
        Self { planner, operator: operator.into(), packed, plans: PlansByShape::new(most) }
    }

    /// The plan for a shape of X. It is made if it is not kept.
    ///
    /// # Errors
    /// Those of [`Planner::plan`]. Errors are not kept. Where these weights do not serve X of this
    /// shape, for example because of a [limit](Planner::workspace_limit) of the workspace, while weights
    /// that are packed for it would, that is [`PackedMismatch`](crate::ErrorKind::PackedMismatch): such
    /// shapes need a cache of their own, because this one does not keep W.
    pub fn plan(&self, x_shape: &[usize]) -> Result<Arc<Plan<T>>, Error> {
        self.plans.get(x_shape, || self.planner.plan(self.operator.clone(), x_shape))
    }

    /// The weights, which all plans accept.
    #[must_use]
    pub fn packed(&self) -> &PackedWeights<T> {
        &self.packed
    }

    /// Number of plans that are kept at the moment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether no plan is kept at the moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Element> core::fmt::Debug for PlanCache<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PlanCache").field("plans", &self.len()).field("packed", &self.packed).finish_non_exhaustive()
    }
}

/// Plans of one layer of bytes by the shape of X, as [`PlanCache`] has those of floats.
///
/// The weights are not in it. Those that one of its plans has packed serve the others too, unless X is so large for one of
/// them that its kernels multiply other units, or Y was empty where they were packed: see [`QuantisedPlan::accepts`].
///
/// ```
/// use core::num::NonZeroUsize;
/// use convoke::{Conv, Planner, QuantisedPlanCache, QuantisedRun, Scales};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (conv, most) = (Conv::new([8, 3, 3, 3]), NonZeroUsize::new(16).unwrap());
/// let cache = QuantisedPlanCache::<u8, i8, i32>::new(Planner::new(), conv, most);
/// let weights = cache.plan(&[1, 3, 64, 64])?.pack(&[1; 8 * 3 * 3 * 3], &[], None)?;
/// let scaled = weights.scaled(&Scales::integer(0))?;
/// for size in [64, 80, 64] {
///     let plan = cache.plan(&[1, 3, size, size])?;
///     let (x, mut y) = (vec![1; 3 * size * size], vec![0; plan.geometry().output_len()]);
///     plan.run(QuantisedRun::new(&x, &weights, &scaled, &mut y))?;
///     assert_eq!(y[0], 27);
/// }
/// assert_eq!(cache.len(), 2);
/// # Ok(()) }
/// ```
pub struct QuantisedPlanCache<X, W, Y> {
    planner: Planner,
    operator: Operator,
    plans: PlansByShape<QuantisedPlan<X, W, Y>>,
}

impl<X: Byte, W: Byte, Y: Quantised> QuantisedPlanCache<X, W, Y> {
    /// A cache of at most `most` plans, without plans.
    pub fn new(planner: Planner, operator: impl Into<Operator>, most: NonZeroUsize) -> Self {
        Self { planner, operator: operator.into(), plans: PlansByShape::new(most) }
    }

    /// The plan for a shape of X. It is made if it is not kept.
    ///
    /// # Errors
    /// Those of [`Planner::plan_quantised`]. Errors are not kept.
    pub fn plan(&self, x_shape: &[usize]) -> Result<Arc<QuantisedPlan<X, W, Y>>, Error> {
        self.plans.get(x_shape, || self.planner.plan_quantised(self.operator.clone(), x_shape))
    }

    /// Number of plans that are kept at the moment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether no plan is kept at the moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<X, W, Y> core::fmt::Debug for QuantisedPlanCache<X, W, Y> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QuantisedPlanCache").field("plans", &self.plans.len()).finish_non_exhaustive()
    }
}
