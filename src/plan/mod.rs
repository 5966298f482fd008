//! Plans: what is decided once for an operator and an input shape, and run many times.

#[cfg(feature = "save")]
mod by_name;
mod cache;
mod explain;
mod explained;
#[cfg(feature = "std")]
mod measure;
mod memory;
mod packed;
mod planner;
mod run;
#[cfg(feature = "save")]
pub(crate) mod saved;
mod tune;
mod visible;

use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Isa, Real};
use spin::Once;

pub use cache::{PlanCache, QuantisedPlanCache};
pub use explain::{Explanation, Verdict};
pub use packed::PackedWeights;
pub use planner::Planner;
pub use run::Run;
pub(crate) use run::{Distances, MOST_SPREAD, Sizes};
pub use tune::Tuning;

use crate::Geometry;
use crate::choice::Algorithm;
use crate::conv::contract::{Lowering, Recipe};
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::split::{self, Tasks};
use crate::exec::{Line, Threads, Workspace, reserved};
use crate::machine::Machine;
use crate::units::Count;
use explain::Estimate;
use packed::{Format, Formats, PackedParts, PackedVisible, Packing};
use visible::VisibleTaps;

/// A run whose estimate on one core is below so many nanoseconds is not shared among threads: handing
/// over would cost as much as it saves.
const SERIAL_COST: f64 = 4e3;

/// How to compute one operator on inputs of one shape: immutable, and shared by threads.
///
/// Made by [`Planner::plan`]. [`pack`](Plan::pack) the weights once, then [`run`](Plan::run) any
/// number of times.
///
/// ```
/// use convoke::{Conv, Planner, Run, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 3, 3]).pads([1, 1, 1, 1]), &[1, 3, 8, 8])?;
/// let (x, w, bias) = (vec![1.0; 3 * 8 * 8], vec![0.5; 4 * 3 * 3 * 3], vec![0.25; 4]);
/// let packed = plan.pack(&w, Some(&bias))?;
/// let mut workspace = Workspace::for_plan(&plan)?;
/// let mut y = vec![0.0; plan.geometry().output_len()];
/// plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace))?;
/// assert_eq!(y[9], 0.5 * 27.0 + 0.25);
/// # Ok(()) }
/// ```
#[must_use]
pub struct Plan<T: Element> {
    geometry: Geometry,
    /// The part of the batch that is computed at once: all images, or one of them.
    at_once: Geometry,
    /// The layer with all its taps: what every plan can pack.
    whole: Method<T>,
    /// Runs instead if some taps see only padding.
    visible: Option<(VisibleTaps, Method<T>)>,
    /// Runs instead if a weight, or its packed form, is not finite.
    exact: Method<T>,
    threads: usize,
    /// Whether this CPU has the ISA. Kernels of another ISA panic.
    is_runnable: bool,
    machine: Machine,
    /// Made on demand, because its text takes time.
    explanation: Once<Explanation>,
}

/// How a layer is computed, and its weights packed.
struct Method<T: Element> {
    algorithm: Algorithm,
    format: Format,
    lowering: Tasks<dyn Lowering<T>>,
    recipe: Recipe,
    /// Estimated time on one core, in nanoseconds.
    cost: f64,
    /// Of all candidates.
    estimates: Vec<Estimate>,
    /// Whether a measurement picked it.
    is_measured: bool,
}

impl<T: Element> core::fmt::Debug for Plan<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Plan({:#})", self.explain())
    }
}

impl<T: Element> Plan<T> {
    /// The resolved sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.method().algorithm
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.whole.format.layer.isa
    }

    /// The name of the micro-kernel that does most of the work.
    #[must_use]
    pub fn kernel(&self) -> &str {
        self.method().recipe.kernel
    }

    /// The number of threads that the plan was made for, by
    /// [`Planner::threads`](Planner::threads). A run has no more.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The number of threads that a run on `threads` uses.
    ///
    /// It is that of `threads`, but a run uses no more threads than the plan has tasks, and a short
    /// run uses one. A run on fewer threads than the plan was made for gives the same bits. Its
    /// tasks are shaped for more threads, which can make it slower than a plan for fewer.
    ///
    /// ```
    /// use convoke::{Conv, ErrorKind, Planner, Threads};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    /// let threads = Threads::Pool(&pool);
    /// let plan = |count| Planner::new().threads(count).plan::<f32>(Conv::new([64, 64, 3, 3]), &[1, 64, 56, 56]);
    /// assert_eq!(plan(threads.count())?.threads_with(threads)?, 2);
    /// // One thread is what a planner plans for if it is told nothing.
    /// assert_eq!(plan(1)?.threads_with(threads).unwrap_err().kind(), ErrorKind::Threads);
    /// assert_eq!(plan(1)?.threads_with(threads.at_most(1))?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Threads`](crate::ErrorKind::Threads) if there are more than the plan was made for, or
    /// none.
    pub fn threads_with(&self, threads: Threads<'_>) -> Result<usize, Error> {
        self.slots(self.method(), threads)
    }

    fn slots(&self, method: &Method<T>, threads: Threads<'_>) -> Result<usize, Error> {
        let (op, count, planned) = (self.geometry.op, threads.count(), self.threads);
        if count == 0 {
            bail!(Threads, "{op}: a run on 0 threads; there must be at least 1");
        }
        if count > planned {
            bail!(
                Threads,
                "{op}: the plan was made for {}, the run has {count}: plan for {count}, or run on at most {planned}",
                Count(planned, "thread")
            );
        }
        Ok(if method.cost < SERIAL_COST { 1 } else { count.min(method.recipe.tasks).max(1) })
    }

    /// Bytes of workspace for a run with the number of threads that the plan was made for. A run
    /// needs an equal share of it for each thread that it uses
    /// ([`threads_with`](Self::threads_with)), and fails if it is given less.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.method().recipe.scratch.lines() * self.threads * size_of::<Line>()
    }

    /// Bytes of the packed weights.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        let packed_len = |method: &Method<T>| method.recipe.packed_len.saturating_add(self.geometry.out_channels);
        let visible = self.visible.as_ref().map_or(0, |(_, method)| packed_len(method));
        packed_len(&self.whole).saturating_add(visible).saturating_mul(size_of::<T::Acc>())
    }

    /// What was picked, and why each other candidate was not: in two lines of text, or as
    /// `{:#}` the whole.
    #[must_use]
    pub fn explain(&self) -> &Explanation {
        self.explanation.call_once(|| self.explained())
    }

    /// Checks that the tasks of the plan write each element of Y once: for tests, as it takes a
    /// byte and a step for each element.
    ///
    /// # Errors
    /// The first element that no task has, or two have.
    #[doc(hidden)]
    pub fn prove_tasks(&self) -> Result<(), String> {
        let method = self.method();
        split::prove(&*method.lowering, method.lowering.shape())
    }

    /// Packs W, `(M, C/group, k...)` for Conv and `(C, M/group, k...)` for ConvTranspose, and the
    /// bias, of M elements.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength) if a length is not the shape's,
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the plan is [for a
    /// machine](Planner::machine) whose ISA this CPU lacks.
    pub fn pack(&self, w: &[T], bias: Option<&[T]>) -> Result<PackedWeights<T>, Error> {
        self.check_weights(w, bias)?;
        let packing =
            |method: &Method<T>, w: &[T]| Packing::new((&method.format, &*method.lowering), w, self.bias_values(bias)?);
        let exact = || Ok(PackedParts { whole: packing(&self.exact, w)?, visible: None }.into());
        let whole = packing(&self.whole, w)?;
        let visible = match &self.visible {
            Some((taps, method)) => {
                let packing = packing(method, &taps.select(&self.at_once, w)?)?;
                Some(PackedVisible { taps: taps.ranges.clone(), packing })
            }
            None => None,
        };
        // Transforms of finite weights may overflow.
        let is_finite = whole.is_finite() && visible.as_ref().is_none_or(|visible| visible.packing.is_finite());
        if is_finite { Ok(PackedParts { whole, visible }.into()) } else { exact() }
    }

    /// Checks that a run accepts these weights: their layer, the ISA and the layout must be those that
    /// the plan packs itself. Plans of the same layer on the same machine share weights.
    ///
    /// ```
    /// use convoke::{Conv, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let (conv, planner) = (Conv::new([8, 4, 3, 3]), Planner::new());
    /// let small = planner.plan::<f32>(conv.clone(), &[1, 4, 16, 16])?;
    /// let packed = small.pack(&vec![0.5; 8 * 4 * 3 * 3], None)?;
    /// assert!(small.accepts(&packed).is_ok());
    /// assert!(planner.plan::<f32>(conv.clone(), &[1, 4, 16, 16])?.accepts(&packed).is_ok());
    /// // For other sizes, another layout may be the fastest, unless a plan is made for these weights.
    /// let large = planner.clone().packed_for(&packed).plan::<f32>(conv.clone(), &[2, 4, 64, 64])?;
    /// assert!(large.accepts(&packed).is_ok());
    /// assert!(planner.plan::<f32>(conv.strides([2, 2]), &[1, 4, 16, 16])?.accepts(&packed).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch), which names what differs.
    pub fn accepts(&self, packed: &PackedWeights<T>) -> Result<(), Error> {
        let (op, format) = (self.geometry.op, &packed.parts.whole.format);
        if self.reads(packed) {
            return Ok(());
        }
        if let Some(difference) = format.layer.difference(&self.whole.format.layer) {
            bail!(PackedMismatch, "{op}: {difference}");
        }
        // Every plan runs the definition's loops on weights that are not finite. An empty Y reads no
        // weights.
        if *format == self.exact.format || self.geometry.output_len() == 0 {
            return Ok(());
        }
        let (packed, needed) = (packed.layout(), self.explain().layout());
        bail!(
            PackedMismatch,
            "{op}: the weights are packed otherwise ({packed}) than the plan reads them ({needed}): pack with this \
             plan, or make a plan for these weights"
        )
    }

    /// The method for finite weights.
    fn method(&self) -> &Method<T> {
        self.visible.as_ref().map_or(&self.whole, |(_, method)| method)
    }

    /// The layouts of the weights that the plan packs.
    fn formats(&self) -> Formats {
        let visible = self.visible.as_ref().map(|(taps, method)| (taps.ranges.clone(), method.format.clone()));
        Formats { whole: self.whole.format.clone(), visible }
    }

    /// Whether the kernels of [`method`](Self::method) read these weights.
    fn reads(&self, packed: &PackedWeights<T>) -> bool {
        let PackedParts { whole, visible } = &*packed.parts;
        whole.format == self.whole.format
            && self.visible.as_ref().is_none_or(|(taps, method)| {
                visible
                    .as_ref()
                    .is_some_and(|visible| visible.taps == taps.ranges && visible.packing.format == method.format)
            })
    }

    /// The method for packed weights, and the part of them that it reads.
    fn method_for<'a>(&'a self, packed: &'a PackedWeights<T>) -> Result<(&'a Method<T>, &'a Packing<T>), Error> {
        self.accepts(packed)?;
        Ok(match (&self.visible, &packed.parts.visible) {
            _ if !self.reads(packed) => (&self.exact, &packed.parts.whole),
            (Some((_, method)), Some(visible)) => (method, &visible.packing),
            _ => (&self.whole, &packed.parts.whole),
        })
    }

    /// Whether this CPU can run the kernels.
    pub(crate) fn check_runnable(&self) -> Result<(), Error> {
        if !self.is_runnable {
            let (op, isa) = (self.geometry.op, self.isa());
            bail!(
                Unavailable,
                "{op}: the plan is for another machine, whose ISA {isa} this CPU lacks: it can be explained, but not run"
            );
        }
        Ok(())
    }

    fn check_weights(&self, w: &[T], bias: Option<&[T]>) -> Result<(), Error> {
        self.check_runnable()?;
        self.geometry.check_len("W", w.len(), self.geometry.weight_len(), || self.geometry.weight_shape())?;
        match bias {
            Some(bias) => self
                .geometry
                .check_len("B", bias.len(), self.geometry.bias_len(), || alloc::vec![self.geometry.bias_len()]),
            None => Ok(()),
        }
    }

    /// The bias, or zeros, in the computing type.
    fn bias_values(&self, bias: Option<&[T]>) -> Result<Vec<T::Acc>, Error> {
        let mut values = reserved(self.geometry.out_channels, format_args!("{}, bias", self.geometry.op))?;
        match bias {
            Some(bias) => values.extend(bias.iter().map(|b| b.to_acc())),
            None => values.resize(self.geometry.out_channels, T::Acc::ZERO),
        }
        Ok(values)
    }

    pub(crate) fn check_input(&self, x: &[T]) -> Result<(), Error> {
        self.geometry.check_len("X", x.len(), self.geometry.input_len(), || self.geometry.input_shape())
    }
}

impl Workspace<'static> {
    /// Enough for a plan, with the number of threads it was made for.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if it cannot be allocated.
    pub fn for_plan<T: Element>(plan: &Plan<T>) -> Result<Self, Error> {
        Self::with_bytes(plan.workspace_bytes())
    }
}

impl Workspace<'_> {
    /// Makes it as large as a plan needs, if it is smaller: for plans that are made when shapes
    /// become known. It has memory of its own then, also if it was
    /// [borrowed](Workspace::borrowed): the memory that was lent is used no longer.
    ///
    /// ```
    /// use convoke::{Conv, Element, Error, Plan, Planner, Workspace};
    ///
    /// /// Before a run, in an engine whose workspaces may be borrowed ones.
    /// fn prepare<T: Element>(workspace: &mut Workspace<'_>, plan: &Plan<T>) -> Result<(), Error> {
    ///     workspace.grow_for(plan)
    /// }
    ///
    /// # fn main() -> Result<(), Error> {
    /// let plan = Planner::new().plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, 60, 60])?;
    /// let mut lent = [0; 64];
    /// let mut workspace = Workspace::borrowed(&mut lent);
    /// prepare(&mut workspace, &plan)?;
    /// assert!(workspace.bytes() >= plan.workspace_bytes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if it cannot be allocated. It is as before
    /// then.
    pub fn grow_for<T: Element>(&mut self, plan: &Plan<T>) -> Result<(), Error> {
        if self.bytes() < plan.workspace_bytes() {
            *self = Workspace::with_bytes(plan.workspace_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::{Conv, ErrorKind};

    /// What `Planner::machine` gives on a CPU that lacks the machine's ISA, on CPUs that lack
    /// none too.
    #[test]
    fn a_plan_for_an_isa_that_the_cpu_lacks_is_explained_and_not_run() {
        let conv = Conv::new([4, 3, 3, 3]).pads([1, 1, 1, 1]);
        let machine = Machine::zen5().with_isa(Isa::Portable);
        let mut plan = Planner::new().machine(machine).plan::<f32>(conv, &[1, 3, 8, 8]).unwrap();
        let (x, w) = (alloc::vec![1.0; 3 * 8 * 8], alloc::vec![1.0; 4 * 3 * 3 * 3]);
        let packed = plan.pack(&w, None).unwrap();
        plan.is_runnable = false;

        assert!(alloc::format!("{:#}", plan.explain()).contains("machine zen5: portable, "));
        let expected = "Conv: the plan is for another machine, whose ISA portable this CPU lacks: it can be explained, but not run";
        let refuses = |result: Result<(), Error>| {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unavailable, expected));
        };
        let mut y = alloc::vec![7.0; 4 * 8 * 8];
        refuses(plan.pack(&w, None).map(|_| ()));
        refuses(plan.run(Run::new(&x, &packed, &mut y)).map(|_| ()));
        // Before anything else is looked at, and without a trace.
        refuses(plan.run(Run::new(&[], &packed, &mut [])).map(|_| ()));
        assert!(y.iter().all(|y| *y == 7.0));
    }
}
