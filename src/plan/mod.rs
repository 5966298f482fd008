//! Plans: what is decided once for an operator and an input shape, and run many times.

#[cfg(feature = "save")]
mod by_name;
mod cache;
mod explain;
mod explained;
mod live;
#[cfg(feature = "std")]
mod measure;
mod memory;
mod packed;
mod planner;
#[cfg(feature = "save")]
mod saved;
mod tune;

use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use convoke_kernels::{Isa, Real};
use spin::Once;

pub use cache::PlanCache;
pub use explain::{Explanation, Verdict};
pub use packed::PackedWeights;
pub use planner::Planner;
pub use tune::Tuning;

use crate::choice::Algorithm;
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::region::{Region, Target};
use crate::exec::split::{self, Tasks};
use crate::exec::{Line, Threads, Workspace, reserved};
use crate::lower::contract::{Addend, Io, Lowering, Recipe};
use crate::machine::Machine;
use crate::units::Count;
use crate::{Activation, Geometry};
use explain::Estimate;
use live::LiveTaps;
use packed::{Format, Lineage, Live, Packing};

/// Nanoseconds, as estimated for one core, below which a run is not shared among threads: handing
/// over would cost as much as it saves.
const SERIAL_COST: f64 = 4e3;

/// How to compute one operator on inputs of one shape: immutable, and shared by threads.
///
/// Made by [`Planner::plan`]. [`pack`](Plan::pack) the weights once, then [`run`](Plan::run) any
/// number of times.
///
/// ```
/// use convoke::{Conv, Planner, Threads, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 3, 3]).pads([1, 1, 1, 1]), &[1, 3, 8, 8])?;
/// let (x, w, bias) = (vec![1.0; 3 * 8 * 8], vec![0.5; 4 * 3 * 3 * 3], vec![0.25; 4]);
/// let packed = plan.pack(&w, Some(&bias))?;
/// let mut workspace = Workspace::for_plan(&plan)?;
/// let mut y = vec![0.0; plan.geometry().output_len()];
/// plan.run(&x, &packed, &mut y, &mut workspace, Threads::Serial)?;
/// assert_eq!(y[9], 0.5 * 27.0 + 0.25);
/// # Ok(()) }
/// ```
///
/// # Into the buffer of a concatenation
/// X and Y are contiguous. The channels of one image are contiguous in a larger tensor, too, so a
/// plan for one image can write them there, and read them likewise. A run for each image costs
/// little more than one run for all, unless images are small.
///
/// ```
/// use convoke::{Conv, Planner, Threads, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (images, channels, positions) = (2, [4, 6], 8 * 8);
/// let x = vec![1.0; images * 3 * positions];
/// let mut joined = vec![0.0; images * (channels[0] + channels[1]) * positions];
/// for (first, count) in [(0, channels[0]), (channels[0], channels[1])] {
///     let conv = Conv::new([count, 3, 1, 1]);
///     let plan = Planner::new().plan::<f32>(conv, &[1, 3, 8, 8])?;
///     let packed = plan.pack(&vec![count as f32; count * 3], None)?;
///     let mut workspace = Workspace::for_plan(&plan)?;
///     for (x, joined) in x.chunks(3 * positions).zip(joined.chunks_mut((channels[0] + channels[1]) * positions)) {
///         let y = &mut joined[first * positions..(first + count) * positions];
///         plan.run(x, &packed, y, &mut workspace, Threads::Serial)?;
///     }
/// }
/// assert_eq!(joined[..4 * positions], [12.0; 4 * 64]);
/// assert_eq!(joined[14 * positions..], [18.0; 6 * 64]);
/// # Ok(()) }
/// ```
#[must_use]
pub struct Plan<T: Element> {
    /// That of the weights that it packs.
    lineage: Lineage,
    /// That of the weights that it was made for.
    packed_for: Option<Lineage>,
    geometry: Geometry,
    /// The layer with all its taps: what every plan can pack.
    whole: Method<T>,
    /// What is run instead where some taps see padding alone.
    live: Option<(LiveTaps, Method<T>)>,
    /// What is run instead where a weight is not finite. Made when it is asked for.
    exact: Once<Method<T>>,
    threads: usize,
    activation: Activation,
    /// Whether this CPU has the ISA: kernels of another one panic where
    /// they are called.
    is_runnable: bool,
    machine: Machine,
    /// Made when it is asked for, because its words take time.
    explanation: Once<Explanation>,
}

/// How a layer is computed, and its weights packed.
struct Method<T: Element> {
    format: Format,
    lowering: Tasks<dyn Lowering<T>>,
    recipe: Recipe,
    /// Estimated time on one core, in nanoseconds.
    cost: f64,
    /// Those of all candidates.
    estimates: Vec<Estimate>,
    /// Whether it was picked because a measurement says so.
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
        self.method().format.algorithm
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.whole.format.isa
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

    /// The number of threads that a run by a method uses.
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
        let live = self.live.as_ref().map_or(0, |(_, method)| packed_len(method));
        packed_len(&self.whole).saturating_add(live).saturating_mul(size_of::<T::Acc>())
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
        let packing = |method: &Method<T>, w: &[T]| {
            Packing::new(&*method.lowering, &method.recipe, &method.format, w, self.bias_values(bias)?)
        };
        let (mut whole, lineage) = (packing(&self.whole, w)?, self.lineage.clone());
        if !whole.is_finite {
            whole = packing(self.exact(), w)?;
            return Ok(PackedWeights { whole, live: None, lineage });
        }
        let live = match &self.live {
            Some((taps, method)) => {
                let packing = packing(method, &taps.select(&self.geometry, w)?)?;
                Some(Live { taps: taps.ranges.clone(), packing })
            }
            None => None,
        };
        Ok(PackedWeights { whole, live, lineage })
    }

    /// Checks that a run accepts these weights: this plan packed them, or was made for them by
    /// [`Planner::packed_for`].
    ///
    /// ```
    /// use convoke::{Conv, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let (conv, planner) = (Conv::new([8, 4, 3, 3]), Planner::new());
    /// let small = planner.plan::<f32>(conv.clone(), &[1, 4, 16, 16])?;
    /// let packed = small.pack(&vec![0.5; 8 * 4 * 3 * 3], None)?;
    /// assert!(small.accepts(&packed).is_ok());
    /// // Another plan might read another layout. It is refused although its layer is the same.
    /// assert!(planner.plan::<f32>(conv.clone(), &[1, 4, 16, 16])?.accepts(&packed).is_err());
    /// let large = planner.packed_for(&packed).plan::<f32>(conv, &[2, 4, 64, 64])?;
    /// assert!(large.accepts(&packed).is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch), which names what differs.
    pub fn accepts(&self, packed: &PackedWeights<T>) -> Result<(), Error> {
        if packed.lineage == self.lineage || Some(&packed.lineage) == self.packed_for.as_ref() {
            return Ok(());
        }
        let (op, format) = (self.geometry.op, &packed.whole.format);
        match format.difference_of_layer::<T>(&self.geometry, self.isa()) {
            Some(difference) => bail!(PackedMismatch, "{op}: {difference}"),
            // They are W as it is, whichever plan packed them.
            None if !packed.whole.is_finite => Ok(()),
            None => bail!(
                PackedMismatch,
                "{op}: another plan packed the weights: pack with this plan, or make a plan for these weights"
            ),
        }
    }

    /// Computes Y from X, `(N, C, spatial...)`.
    ///
    /// It allocates nothing, with two exceptions. A run that enters a rayon pool from outside may
    /// make rayon's queue allocate a block. The BLAS backends `gemm` and `matrixmultiply` allocate
    /// in every run.
    ///
    /// The result is the same, bit for bit, for any number of threads.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength),
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch) if the plan does not
    /// [accept](Plan::accepts) the weights, [`Threads`](crate::ErrorKind::Threads) if there are more threads than
    /// the plan was made for, [`Workspace`](crate::ErrorKind::Workspace) if it is too small,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the plan is [for a
    /// machine](Planner::machine) whose ISA this CPU lacks. Y is untouched then.
    pub fn run(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        y: &mut [T],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<(), Error> {
        self.fill(x, packed, Addend::None, Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run`](Self::run), with a tensor of Y's shape added before the activation.
    ///
    /// ```
    /// use convoke::{Activation, Conv, Planner, Threads, Workspace};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().activation(Activation::Relu).plan::<f32>(Conv::new([1, 1, 1]), &[1, 1, 3])?;
    /// let packed = plan.pack(&[2.0], None)?;
    /// let (x, residual, mut y) = ([1.0, 2.0, 3.0], [10.0, 20.0, -30.0], [0.0; 3]);
    /// plan.run_residual(&x, &packed, &residual, &mut y, &mut Workspace::for_plan(&plan)?, Threads::Serial)?;
    /// assert_eq!(y, [12.0, 24.0, 0.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_residual(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        residual: &[T],
        y: &mut [T],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<(), Error> {
        self.fill(x, packed, Addend::Tensor(residual), Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run_residual`](Self::run_residual), with what Y holds before as the residual:
    /// `y = activation(conv(x) + y)`. The bits are the same.
    ///
    /// ```
    /// use convoke::{Activation, Conv, Planner, Threads, Workspace};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().activation(Activation::Relu).plan::<f32>(Conv::new([1, 1, 1]), &[1, 1, 3])?;
    /// let packed = plan.pack(&[2.0], None)?;
    /// let mut y = [10.0, 20.0, -30.0];
    /// plan.run_in_place(&[1.0, 2.0, 3.0], &packed, &mut y, &mut Workspace::for_plan(&plan)?, Threads::Serial)?;
    /// assert_eq!(y, [12.0, 24.0, 0.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in_place(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        y: &mut [T],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<(), Error> {
        self.fill(x, packed, Addend::Output, Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run`](Self::run), into memory that need not be initialised: every element is written,
    /// and the slice comes back initialised.
    ///
    /// ```
    /// use convoke::{Conv, Planner, Threads, Workspace};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().plan::<f32>(Conv::new([1, 1, 2]), &[1, 1, 4])?;
    /// let packed = plan.pack(&[10.0, 1.0], None)?;
    /// let mut memory = Vec::with_capacity(3); // not filled first
    /// let y = &mut memory.spare_capacity_mut()[..3];
    /// let mut workspace = Workspace::for_plan(&plan)?;
    /// let y = plan.run_uninit(&[1.0, 2.0, 3.0, 4.0], &packed, None, y, &mut workspace, Threads::Serial)?;
    /// assert_eq!(y, [12.0, 23.0, 34.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_uninit<'y>(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        residual: Option<&[T]>,
        y: &'y mut [MaybeUninit<T>],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<&'y mut [T], Error> {
        self.fill(x, packed, residual.map_or(Addend::None, Addend::Tensor), Target::Uninit(y), workspace, threads)
    }

    fn fill<'y>(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        residual: Addend<'_, T>,
        y: Target<'y, T>,
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<&'y mut [T], Error> {
        self.check_runnable()?;
        let (geometry, op) = (&self.geometry, self.geometry.op);
        self.check_input(x)?;
        self.check_len("Y", y.len(), geometry.output_len(), || geometry.output_shape())?;
        if let Addend::Tensor(residual) = residual {
            self.check_len("the residual", residual.len(), geometry.output_len(), || geometry.output_shape())?;
        }
        let (method, packed) = self.method_for(packed)?;
        let slots = self.slots(method, threads)?;
        let of_thread = method.recipe.scratch.lines();
        let (has, needs) = (workspace.bytes(), slots * of_thread * size_of::<Line>());
        if has < needs {
            let has = workspace.description();
            bail!(Workspace, "{op}: {has}, {slots} threads need {needs}");
        }
        let (weights, bias) = (packed.values(), &*packed.bias);
        let lowering = &method.lowering;
        let run = |task: usize, region: Region<'_, T>, scratch: &mut [Line]| {
            lowering.run(task, &Io { x, weights, bias, residual, y: region }, scratch);
        };
        let proven = lowering.proven().unwrap_or_else(|error| panic!("{geometry:?}: {}: {error}", self.explain()));
        Ok(y.fill(&proven, (threads, slots), (workspace.lines(), of_thread), &run))
    }

    /// What is run if all weights are finite.
    fn method(&self) -> &Method<T> {
        self.live.as_ref().map_or(&self.whole, |(_, method)| method)
    }

    /// What is run if a weight is not finite.
    fn exact(&self) -> &Method<T> {
        if self.whole.format.algorithm == Algorithm::Naive {
            return &self.whole;
        }
        self.exact.call_once(|| Method::exact(&self.geometry, &self.machine, self.threads, self.activation))
    }

    /// What is run on packed weights, and the part of them that it reads.
    fn method_for<'a>(&'a self, packed: &'a PackedWeights<T>) -> Result<(&'a Method<T>, &'a Packing<T>), Error> {
        self.accepts(packed)?;
        Ok(match &self.live {
            _ if !packed.whole.is_finite => (self.exact(), &packed.whole),
            None => (&self.whole, &packed.whole),
            Some((_, method)) => {
                (method, &packed.live.as_ref().expect("accepted weights have what the plan reads").packing)
            }
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

    /// Whether weights can be packed, and the lengths of W and of the bias.
    fn check_weights(&self, w: &[T], bias: Option<&[T]>) -> Result<(), Error> {
        self.check_runnable()?;
        self.check_len("W", w.len(), self.geometry.weight_len(), || self.geometry.weight_shape())?;
        match bias {
            Some(bias) => {
                self.check_len("B", bias.len(), self.geometry.bias_len(), || alloc::vec![self.geometry.bias_len()])
            }
            None => Ok(()),
        }
    }

    /// The bias, or zeros, as sums are computed.
    fn bias_values(&self, bias: Option<&[T]>) -> Result<Vec<T::Acc>, Error> {
        let mut values = reserved(self.geometry.out_channels, format_args!("{}, bias", self.geometry.op))?;
        match bias {
            Some(bias) => values.extend(bias.iter().map(|b| b.to_acc())),
            None => values.resize(self.geometry.out_channels, T::Acc::ZERO),
        }
        Ok(values)
    }

    /// The length of X.
    pub(crate) fn check_input(&self, x: &[T]) -> Result<(), Error> {
        self.check_len("X", x.len(), self.geometry.input_len(), || self.geometry.input_shape())
    }

    /// The shape is for the message only: it is an allocation, which a run must not make.
    fn check_len(
        &self,
        name: &str,
        len: usize,
        expected: usize,
        shape: impl FnOnce() -> Vec<usize>,
    ) -> Result<(), Error> {
        if len != expected {
            let shape = shape();
            bail!(
                BufferLength,
                "{}: {name} has {len} elements, its shape {shape:?} asks for {expected}",
                self.geometry.op
            );
        }
        Ok(())
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
        let mut workspace = Workspace::for_plan(&plan).unwrap();
        plan.is_runnable = false;

        assert!(alloc::format!("{:#}", plan.explain()).contains("machine zen5: portable, "));
        let expected = "Conv: the plan is for another machine, whose ISA portable this CPU lacks: it can be explained, but not run";
        let refuses = |result: Result<(), Error>| {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unavailable, expected));
        };
        let mut y = alloc::vec![7.0; 4 * 8 * 8];
        let residual = y.clone();
        refuses(plan.pack(&w, None).map(|_| ()));
        refuses(plan.run(&x, &packed, &mut y, &mut workspace, Threads::Serial));
        refuses(plan.run_residual(&x, &packed, &residual, &mut y, &mut workspace, Threads::Serial));
        let mut fresh = alloc::vec![MaybeUninit::uninit(); y.len()];
        refuses(plan.run_uninit(&x, &packed, None, &mut fresh, &mut workspace, Threads::Serial).map(|_| ()));
        // Before anything else is looked at, and without a trace.
        refuses(plan.run(&[], &packed, &mut [], &mut workspace, Threads::Serial));
        assert!(y.iter().all(|y| *y == 7.0));
    }
}
