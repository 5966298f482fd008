//! From an operator and an input shape to a plan.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use convoke_kernels::isa::Absence;
use spin::Once;

use super::explain::Estimate;
use super::packed::{Format, Formats, LayerOfWeights};
use super::tune::TuningKey;
use super::visible::VisibleTaps;
use super::{Method, PackedWeights, Plan, Tuning};
use crate::choice::{Accuracy, Algorithm};
use crate::conv::contract::{Lowering, Offer, Recipe, Request};
use crate::conv::layout::WeightLayout;
use crate::conv::{exact, registry};
use crate::element::Element;
use crate::epilogue::Activation;
use crate::error::{Error, bail};
use crate::exec::Line;
use crate::exec::split::{self, Shape, Tasks};
use crate::machine::{self, Isa, Machine};
use crate::{ErrorKind, Geometry, Operator};

/// Chooses how to compute: limits and wishes first, then [`plan`](Planner::plan).
///
/// ```
/// use convoke::{Activation, Conv, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let conv = Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]);
/// let plan = Planner::new().threads(2).activation(Activation::Relu).plan::<f32>(conv, &[1, 3, 224, 224])?;
/// assert_eq!(plan.geometry().output_shape(), [1, 64, 112, 112]);
/// println!("{}", plan.explain());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Planner {
    /// An error if the environment names none.
    machine: Result<Machine, String>,
    /// Whether the CPU may lack the ISA, because plans are not run.
    may_lack_isa: bool,
    algorithm: Option<Algorithm>,
    accuracy: Accuracy,
    workspace_limit: usize,
    threads: usize,
    separates_images: bool,
    activation: Activation,
    /// Of weights that are packed already.
    packed: Option<Formats>,
    tuning: Arc<Tuning>,
}

/// What narrows the choice of an algorithm.
#[derive(Debug, Clone, Copy)]
enum Wish {
    None,
    /// The tuning's choice. Taken if it accepts the layer within the limits.
    Prefer(Algorithm),
    /// The caller's choice. Taken, or the plan fails.
    Force(Algorithm),
    /// A weight is not finite: only the definition's loops are right.
    Exact,
}

impl Wish {
    /// Why an algorithm is not asked, if so.
    fn exclusion(self, algorithm: Algorithm) -> Option<&'static str> {
        match self {
            Self::Force(forced) if forced != algorithm => Some("another algorithm is forced"),
            Self::Exact if algorithm != Algorithm::NAIVE => Some("a weight is not finite"),
            _ => None,
        }
    }

    fn prefers(self, algorithm: Algorithm) -> bool {
        matches!(self, Self::Prefer(preferred) if preferred == algorithm)
    }

    /// Whether the plan fails if no algorithm that is asked accepts.
    fn is_binding(self) -> bool {
        matches!(self, Self::Force(_) | Self::Exact)
    }
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// Threads that a plan is made for, at most. It is more than machines have, and stops a number
    /// that is a mistake before anything is allocated or started for it.
    pub const MOST_THREADS: usize = 1024;

    /// The best available ISA, or that of the environment variable
    /// [`CONVOKE_ISA`](machine::ENV_ISA), or the best one up to that of
    /// [`CONVOKE_MAX_ISA`](machine::ENV_MAX_ISA); one thread; any algorithm; no limit of the
    /// workspace; no activation.
    pub fn new() -> Self {
        Self {
            machine: machine::default_isa().map(|isa| Machine::host().with_isa(isa)),
            may_lack_isa: false,
            algorithm: None,
            accuracy: Accuracy::default(),
            workspace_limit: usize::MAX,
            threads: 1,
            separates_images: false,
            activation: Activation::None,
            packed: None,
            tuning: Arc::default(),
        }
    }

    /// Uses the kernels of one ISA on [this machine](Machine::host), `Isa::detect_at_most(cap)`
    /// for the best one up to a cap; an error of [`plan`](Planner::plan) where the CPU or the
    /// build lacks it.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.machine = Ok(Machine::host().with_isa(isa));
        self.may_lack_isa = false;
        self
    }

    /// Plans for a machine that need not be this one: what is picked depends on it alone, and not
    /// on where the plan is made. A [tuning](Planner::tuning) still counts: it does not know which
    /// machine it was measured on.
    ///
    /// This CPU may lack the machine's ISA, but the build must have its kernels. Such a plan can
    /// be explained. To [`pack`](Plan::pack) for it and to [`run`](Plan::run) it are errors.
    ///
    /// ```
    /// use convoke::{Conv, Isa, Machine, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let machine = Machine::emerald_rapids().with_isa(Isa::Portable);
    /// let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    /// let plan = Planner::new().machine(machine).plan::<f32>(conv, &[1, 64, 56, 56])?;
    /// let explanation = format!("{:#}", plan.explain());
    /// assert!(explanation.contains("machine emerald-rapids: portable, L1 48 KiB, L2 2 MiB"));
    /// # Ok(()) }
    /// ```
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = Ok(machine);
        self.may_lack_isa = true;
        self
    }

    /// Uses one algorithm; an error of [`plan`](Planner::plan) where it does not accept the layer.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// How much rounding error may be traded for speed.
    pub fn accuracy(mut self, accuracy: Accuracy) -> Self {
        self.accuracy = accuracy;
        self
    }

    /// Bytes of workspace that a run may need, at most, for all threads together. A limit that the
    /// plan without a limit keeps changes nothing.
    pub fn workspace_limit(mut self, bytes: usize) -> Self {
        self.workspace_limit = bytes;
        self
    }

    /// Threads that the work is split for: [`Threads::count`](crate::Threads::count) of those that
    /// will run it. Runs on more threads are errors. 0 and more than
    /// [`MOST_THREADS`](Self::MOST_THREADS) are errors of [`plan`](Planner::plan).
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Computes the images of a batch one after the other, so that they may lie [a distance
    /// apart](crate::Run::y_image_stride). It takes little more time, unless images are small.
    pub fn separate_images(mut self, separates: bool) -> Self {
        self.separates_images = separates;
        self
    }

    /// The activation behind bias and residual. A [`Clip`](Activation::Clip) with a bound that is
    /// NaN is an error of [`plan`](Planner::plan).
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Picks by measurement: for a layer that `tuning` knows, its algorithm, if that is within the
    /// limits; for others, and where an algorithm is forced or weights are packed already, as
    /// without.
    pub fn tuning(mut self, tuning: impl Into<Arc<Tuning>>) -> Self {
        self.tuning = tuning.into();
        self
    }

    /// Makes plans that accept these weights, for another batch or spatial size than the plan that
    /// packed them. They have the same ISA, and the cheapest of the algorithms that read the layout.
    ///
    /// Another algorithm may be faster at the new size. From half to twice the size, most layers
    /// lose nothing by estimate, and few lose more than a tenth, among them those of three input
    /// channels; but layers of a few positions may take several times as long. To see what a layer
    /// loses, compare the [cost](crate::Explanation::cost) of this plan with that of one without packed
    /// weights. If it is much, pack again.
    ///
    /// If the weights do not serve, for example because of a [limit](Planner::workspace_limit), while
    /// weights that are packed for the new size would, the error of [`plan`](Planner::plan) is
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch): pack again, with a plan that is made
    /// without `packed_for`. If no weights would serve, the error is the one of that plan. A forced
    /// algorithm that packs otherwise is a `PackedMismatch` too.
    ///
    /// The operator, W's shape, group, strides, dilations and the element type must be those that
    /// the weights were packed for. Pads, `auto_pad`, `output_padding` and `output_shape` may differ. A
    /// [forced](Planner::algorithm) algorithm must read their layout. Weights that are not all finite are
    /// run by `naive`, whatever is forced.
    ///
    /// The plan that packed them may leave out taps that see only padding. Where other taps do
    /// here, the plan reads the weights of the whole kernel.
    ///
    /// Winograd's weights keep the tiles that they were packed for. So weights that were packed under
    /// [`Accuracy::Fast`] have its errors also in plans of [`Accuracy::Standard`]; plans of
    /// [`Accuracy::Strict`] refuse them. A plan whose Y is empty packs weights for the naive loops:
    /// plans that accept them are slow.
    ///
    /// ```
    /// use convoke::{Conv, Planner, Run};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let (conv, planner) = (Conv::new([8, 4, 3, 3]).pads([1, 1, 1, 1]), Planner::new());
    /// let usual = planner.plan::<f32>(conv.clone(), &[1, 4, 32, 32])?;
    /// let packed = usual.pack(&vec![0.5; 8 * 4 * 3 * 3], None)?; // once
    ///
    /// let larger = planner.packed_for(&packed).plan::<f32>(conv, &[1, 4, 48, 40])?;
    /// let (x, mut y) = (vec![1.0; 4 * 48 * 40], vec![0.0; larger.geometry().output_len()]);
    /// larger.run(Run::new(&x, &packed, &mut y))?;
    /// assert!((y[41] - 0.5 * 4.0 * 9.0).abs() < 1e-4);
    /// # Ok(()) }
    /// ```
    pub fn packed_for<T: Element>(mut self, packed: &PackedWeights<T>) -> Self {
        self.machine = self.machine.map(|machine| machine.with_isa(packed.parts.whole.format.layer.isa));
        self.packed = Some(packed.formats());
        self
    }

    /// A plan for an operator on inputs of one shape, `(N, C, spatial...)`.
    ///
    /// # Errors
    /// What breaks a rule of the operator ([`Conv::geometry`](crate::Conv::geometry));
    /// [`Unavailable`](crate::ErrorKind::Unavailable) where the forced algorithm, ISA or number of
    /// threads cannot be had; [`InvalidAttribute`](crate::ErrorKind::InvalidAttribute) for an activation
    /// with a bound that is NaN; [`Workspace`](crate::ErrorKind::Workspace) where every algorithm needs
    /// more than the limit; [`PackedMismatch`](crate::ErrorKind::PackedMismatch) where the layer or the
    /// forced algorithm is not that of the weights of [`packed_for`](Planner::packed_for), or where other
    /// weights must be packed for this X.
    pub fn plan<T: Element>(&self, operator: impl Into<Operator>, x_shape: &[usize]) -> Result<Plan<T>, Error> {
        let operator = operator.into();
        let name = operator.op_name();
        let geometry = operator.geometry(x_shape)?;
        operator.check_dtype(T::DTYPE)?;
        self.check_threads(name)?;
        if let Some(mistake) = self.activation.mistake() {
            bail!(InvalidAttribute, "{name}: {mistake}");
        }
        let machine = self.checked_machine(name)?;
        if let Some(packed) = &self.packed
            && let Some(difference) = packed.whole.layer.difference(&LayerOfWeights::new::<T>(&geometry, machine.isa()))
        {
            bail!(PackedMismatch, "{name}: {difference}");
        }
        let at_once = match self.separates_images && geometry.batch > 1 {
            true => Geometry { batch: 1, ..geometry.clone() },
            false => geometry.clone(),
        };
        let layer = Layer { geometry: &at_once, machine };
        // If Y is empty, nothing reads the weights, and any layout will do.
        let packed = self.packed.as_ref().filter(|_| geometry.output_len() > 0);
        let error = |Refusal { kind, reason }| Error::new(kind, format!("{name}: {reason}"));
        let picks = self.picks::<T>(&layer, packed).map_err(|refusal| {
            if packed.is_none() {
                return error(refusal);
            }
            match self.picks::<T>(&layer, None) {
                // Other weights would serve.
                Ok(_) => {
                    let reason = format!("{}: pack the weights again", refusal.reason);
                    error(Refusal { kind: ErrorKind::PackedMismatch, reason })
                }
                Err(refusal) => error(refusal),
            }
        })?;
        Ok(self.finish(geometry, at_once, machine, picks))
    }

    /// The machine, the threads and the limit of the workspace of a chain.
    pub(crate) fn limits_of_chain(&self) -> Result<(&Machine, usize, usize), Error> {
        if self.packed.is_some() {
            bail!(InvalidInput, "Conv: a chain cannot be planned for weights that are packed already");
        }
        let (machine, threads) = self.machine_and_threads("Conv")?;
        Ok((machine, threads, self.workspace_limit))
    }

    /// The machine and the threads, for an operator's name.
    pub(crate) fn machine_and_threads(&self, name: &str) -> Result<(&Machine, usize), Error> {
        self.check_threads(name)?;
        Ok((self.checked_machine(name)?, self.threads))
    }

    /// The first thing beside machine, threads and accuracy that was asked for.
    pub(crate) fn wish_beyond_threads(&self) -> Option<&'static str> {
        let wishes = [
            (self.activation != Activation::None, "activation"),
            (self.algorithm.is_some(), "choice of algorithms"),
            (self.workspace_limit != usize::MAX, "limit of the workspace"),
            (self.packed.is_some(), "weights of another plan"),
        ];
        wishes.into_iter().find_map(|(is_asked, wish)| is_asked.then_some(wish))
    }

    /// For a layer of a chain, on some threads.
    pub(crate) fn of_chain(&self, threads: usize, activation: Activation) -> Self {
        Self { activation, threads, workspace_limit: usize::MAX, ..self.clone() }
    }

    /// Makes plans that accept the weights of another plan.
    pub(crate) fn packed_like<T: Element>(self, plan: &Plan<T>) -> Self {
        Self { packed: Some(plan.formats()), ..self }
    }

    fn check_threads(&self, name: &str) -> Result<(), Error> {
        if !(1..=Self::MOST_THREADS).contains(&self.threads) {
            let (threads, most) = (self.threads, Self::MOST_THREADS);
            bail!(Unavailable, "{name}: a plan for {threads} threads; there must be at least 1 and at most {most}");
        }
        Ok(())
    }

    /// The picks without a limit of the workspace, if they keep the limit, or else those with it. So a
    /// limit that suffices changes nothing.
    fn picks<T: Element>(&self, layer: &Layer<'_>, packed: Option<&Formats>) -> Result<Picked<T>, Refusal> {
        match self.picks_within(layer, packed, usize::MAX) {
            Ok(picks) if self.bytes(&picks.run().recipe) <= self.workspace_limit => Ok(picks),
            _ => self.picks_within(layer, packed, self.workspace_limit),
        }
    }

    fn picks_within<T: Element>(
        &self,
        layer: &Layer<'_>,
        packed: Option<&Formats>,
        limit: usize,
    ) -> Result<Picked<T>, Refusal> {
        let whole = self.choose(layer, packed.map(|packed| &packed.whole), limit)?;
        // All taps are computed if a forced algorithm needs them, or if the weights were packed for
        // other taps.
        let visible = VisibleTaps::new(layer.geometry).and_then(|taps| {
            let layer = Layer { geometry: &taps.geometry, ..*layer };
            let Some(packed) = packed else {
                let pick = self.choose(&layer, None, limit).ok()?;
                return (pick.cost < whole.cost).then_some((taps, pick));
            };
            let (_, format) = packed.visible.as_ref().filter(|(ranges, _)| *ranges == taps.ranges)?;
            // For a single output position, its stride counts as 1.
            if format.layer != LayerOfWeights::new::<T>(&taps.geometry, layer.machine.isa()) {
                return None;
            }
            let pick = self.choose(&layer, Some(format), limit).ok()?;
            Some((taps, pick))
        });
        Ok(Picked { whole, visible })
    }

    /// The machine that plans are made for, if it can be had.
    fn checked_machine(&self, name: &str) -> Result<&Machine, Error> {
        let machine = match &self.machine {
            Ok(machine) => machine,
            Err(error) => bail!(Unavailable, "{name}: {error}"),
        };
        if let Some(mistake) = machine.mistake() {
            bail!(Unavailable, "{name}: {mistake}");
        }
        let isa = machine.isa();
        match isa.absence() {
            Some(Absence::Cpu(_)) if self.may_lack_isa => Ok(machine),
            Some(absence) => bail!(Unavailable, "{name}: the ISA {isa} was asked for: {absence}"),
            None => Ok(machine),
        }
    }

    pub(super) fn tuning_key<'a, T: Element>(&self, geometry: &'a Geometry, isa: Isa) -> TuningKey<'a> {
        TuningKey { geometry, dtype: T::DTYPE, isa, threads: self.threads, accuracy: self.accuracy }
    }

    pub(super) fn measured_pick(&self, key: &TuningKey<'_>) -> Option<Algorithm> {
        self.tuning.pick(key)
    }

    /// Takes the cheapest offer within a limit of the workspace, and builds it. If weights are packed
    /// already, it reads these.
    fn choose<T: Element>(
        &self,
        layer: &Layer<'_>,
        packed: Option<&Format>,
        limit: usize,
    ) -> Result<Method<T>, Refusal> {
        let &Layer { geometry, machine } = layer;
        let request = self.request::<T>(layer, limit, packed.map(|format| &format.layout));
        let wish = match (self.algorithm, packed) {
            (_, Some(format)) if format.layout == WeightLayout::Exact => Wish::Exact,
            (Some(algorithm), _) => Wish::Force(algorithm),
            (None, Some(_)) => Wish::None,
            (None, None) => {
                let key = self.tuning_key::<T>(geometry, machine.isa());
                self.measured_pick(&key).map_or(Wish::None, Wish::Prefer)
            }
        };
        let Answers { estimates, best, too_large } = self.ask(&request, wish, limit);
        let Some((index, offer)) = best else {
            if let Some(bytes) = too_large {
                let reason = format!("needs at least {bytes} bytes of workspace, the limit is {limit}");
                return Err(Refusal { kind: ErrorKind::Workspace, reason });
            }
            let asked = |algorithm: Algorithm| wish.is_binding() && wish.exclusion(algorithm).is_none();
            let refusal = |Estimate { algorithm, cost }: &Estimate| {
                let reason = cost.as_ref().err().filter(|_| asked(*algorithm))?;
                Some(format!("{algorithm} cannot be used: {reason}"))
            };
            let refusals = estimates.iter().filter_map(refusal).collect::<Vec<_>>().join("; ");
            let reason = match packed {
                _ if !refusals.is_empty() => refusals,
                Some(format) => unreadable(&format.layout, &estimates),
                None => String::from("no algorithm can be used"),
            };
            return Err(Refusal { kind: ErrorKind::Unavailable, reason });
        };
        // As the layout is the same, only a forged file has another number of values.
        if let Some(format) = packed
            && format.len != offer.recipe.packed_len
        {
            let reason = format!("the weights have {} values, the plan needs {}", format.len, offer.recipe.packed_len);
            return Err(Refusal { kind: ErrorKind::PackedMismatch, reason });
        }
        let algorithm = estimates[index].algorithm;
        Ok(Method { estimates, is_measured: wish.prefers(algorithm), ..layer.method(algorithm, offer) })
    }

    /// What lowerings are asked for, with a limit of the workspace.
    fn request<'a, T: Element>(
        &self,
        layer: &Layer<'a>,
        limit: usize,
        layout: Option<&'a WeightLayout>,
    ) -> Request<'a, T> {
        let &Self { threads, accuracy, .. } = self;
        let (&Layer { geometry, machine }, activation) = (layer, self.activation.lower());
        Request { geometry, machine, threads, activation, accuracy, task_bytes: limit / threads, layout }
    }

    fn ask<'a, T: Element>(&self, request: &'a Request<'a, T>, wish: Wish, limit: usize) -> Answers<'a, T> {
        let mut answers = Answers { estimates: Vec::new(), best: None, too_large: None };
        for candidate in registry::candidates::<T>() {
            let algorithm = candidate.algorithm;
            if !candidate.is_for(request.geometry.op) && self.algorithm != Some(algorithm) {
                continue;
            }
            let offer = match wish.exclusion(algorithm) {
                Some(reason) => Err(String::from(reason)),
                None => candidate.ask(request).and_then(|offer| self.within(limit, offer, &mut answers.too_large)),
            };
            let cost = offer.map(|offer| {
                let cost = request.machine.nanoseconds(&offer.recipe.work);
                let is_better = |(index, _): &(usize, Offer<'_, T>)| {
                    let best = &answers.estimates[*index];
                    let is_cheaper = best.cost.as_ref().map_or(true, |least| cost < *least);
                    wish.prefers(algorithm) || (!wish.prefers(best.algorithm) && is_cheaper)
                };
                if answers.best.as_ref().is_none_or(is_better) {
                    answers.best = Some((answers.estimates.len(), offer));
                }
                cost
            });
            answers.estimates.push(Estimate { algorithm, cost });
        }
        answers
    }

    /// The loops of the definition, which no limit and no choice excludes.
    fn exact<T: Element>(&self, layer: &Layer<'_>) -> Method<T> {
        let request = self.request(layer, usize::MAX, Some(&WeightLayout::Exact));
        layer.method(Algorithm::NAIVE, exact::offer(&request))
    }

    /// An offer, if its scratch for all threads is within the limit. `too_large` keeps the least number
    /// of bytes that exceed it.
    ///
    /// # Errors
    /// The number of bytes and the limit.
    fn within<'a, T: Element>(
        &self,
        limit: usize,
        offer: Offer<'a, T>,
        too_large: &mut Option<usize>,
    ) -> Result<Offer<'a, T>, String> {
        let bytes = self.bytes(&offer.recipe);
        if bytes <= limit && bytes < usize::MAX {
            return Ok(offer);
        }
        *too_large = Some(too_large.map_or(bytes, |least| least.min(bytes)));
        Err(format!("needs {bytes} bytes of workspace, limit {limit}"))
    }

    /// Bytes of scratch for all threads; saturates.
    fn bytes(&self, recipe: &Recipe) -> usize {
        recipe.scratch.lines().saturating_mul(size_of::<Line>()).saturating_mul(self.threads)
    }

    fn finish<T: Element>(
        &self,
        geometry: Geometry,
        at_once: Geometry,
        machine: &Machine,
        picks: Picked<T>,
    ) -> Plan<T> {
        let Picked { whole, visible } = picks;
        let exact = self.exact(&Layer { geometry: &at_once, machine });
        Plan {
            geometry,
            at_once,
            whole,
            visible,
            exact,
            threads: self.threads,
            is_runnable: machine.isa().is_available(),
            machine: machine.clone(),
            explanation: Once::new(),
        }
    }
}

/// Why no algorithm can use weights of a layout. It includes the reason of the algorithm that packs so,
/// if there is one.
fn unreadable(layout: &WeightLayout, estimates: &[Estimate]) -> String {
    let packs_so = |name: &str| name.split(':').next() == Some(layout.algorithm());
    let own = estimates.iter().filter(|estimate| packs_so(estimate.algorithm.name()));
    let reason = own.filter_map(|estimate| estimate.cost.as_ref().err()).find(|reason| **reason != layout.mismatch());
    let reason = reason.map_or(String::new(), |reason| format!("; {} cannot: {reason}", layout.algorithm()));
    format!("no algorithm can use the weights, which are packed {layout}{reason}")
}

/// Elements of Y, and tasks, up to which debug builds check each element of a new plan.
const MOST_LOOKED_AT: usize = 1 << 20;

/// Makes the tasks of a lowering. Debug builds check each element of small ones.
///
/// # Panics
/// If their number is not the recipe's; in debug builds, if an element has two tasks or none.
fn tasks<T: Element>(lowering: Box<dyn Lowering<T>>, recipe: &Recipe, geometry: &Geometry) -> Tasks<dyn Lowering<T>> {
    let (tasks, shape) = (lowering.tasks(), Shape::of(geometry));
    assert_eq!(tasks, recipe.tasks, "{geometry:?}: {}", recipe.details);
    if cfg!(debug_assertions) && geometry.output_len() <= MOST_LOOKED_AT && tasks <= MOST_LOOKED_AT {
        let proved = split::prove(&*lowering, &shape);
        debug_assert_eq!(proved, Ok(()), "{geometry:?}: {}", recipe.details);
    }
    Tasks::new(lowering, shape)
}

#[derive(Clone, Copy)]
struct Layer<'a> {
    geometry: &'a Geometry,
    machine: &'a Machine,
}

struct Refusal {
    kind: ErrorKind,
    reason: String,
}

impl Layer<'_> {
    /// The method of an offer, as if it were the only one.
    fn method<T: Element>(&self, algorithm: Algorithm, Offer { recipe, build }: Offer<'_, T>) -> Method<T> {
        Method {
            algorithm,
            format: Format::new::<T>(self.geometry, self.machine.isa(), &recipe),
            lowering: tasks(build(), &recipe, self.geometry),
            cost: self.machine.nanoseconds(&recipe.work),
            recipe,
            estimates: Vec::new(),
            is_measured: false,
        }
    }
}

/// The picks for all taps, and for the visible ones if these are not all.
struct Picked<T: Element> {
    whole: Method<T>,
    visible: Option<(VisibleTaps, Method<T>)>,
}

impl<T: Element> Picked<T> {
    /// The pick that runs.
    fn run(&self) -> &Method<T> {
        self.visible.as_ref().map_or(&self.whole, |(_, visible)| visible)
    }
}

struct Answers<'a, T: Element> {
    /// One for each candidate of the operator, in their order.
    estimates: Vec<Estimate>,
    /// The best offer, and its place among the candidates.
    best: Option<(usize, Offer<'a, T>)>,
    /// The least bytes of workspace of the offers that exceed the limit.
    too_large: Option<usize>,
}
