//! Plans: what is decided once for an operator and an input shape, and run many times.

mod explain;
mod live;
#[cfg(feature = "std")]
mod measure;
mod packed;
mod planner;
mod tune;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use convoke_kernels::{Isa, Real};

pub use explain::{Explanation, Verdict};
pub use packed::PackedWeights;
pub use planner::Planner;
pub use tune::Tuning;

use crate::Geometry;
use crate::choice::Algorithm;
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::region::{self, Region, Shape, Target};
use crate::exec::{Line, Threads, Workspace, reserved};
use crate::lower::contract::{Io, Lowering, Recipe};
use live::LiveTaps;
use packed::{Format, Live, Packing};

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
#[must_use]
pub struct Plan<T: Element> {
    geometry: Geometry,
    /// The layer with all its taps: what every plan can pack.
    whole: Method<T>,
    /// What is run instead where some taps see padding alone.
    live: Option<(LiveTaps, Method<T>)>,
    threads: usize,
    /// Whether this CPU has the ISA: kernels of another one are descriptions, and panic where
    /// they are called.
    is_runnable: bool,
    explanation: Explanation,
}

/// How a layer is computed, and its weights packed.
struct Method<T: Element> {
    format: Format,
    lowering: Box<dyn Lowering<T>>,
    recipe: Recipe,
    /// Estimated time on one core, in nanoseconds.
    cost: f64,
}

impl<T: Element> core::fmt::Debug for Plan<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Plan({})", self.explanation)
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

    /// Bytes of workspace for a run with the number of threads that the plan was made for. A run
    /// that is given less uses fewer threads, and needs at least one thread's share.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.method().recipe.scratch.lines() * self.threads * size_of::<Line>()
    }

    /// Bytes of the packed weights.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        self.explanation.packed_bytes
    }

    /// What was picked, and why each other candidate was not.
    #[must_use]
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }

    /// Checks that the tasks of the plan write each element of Y once: for tests, as it takes a byte
    /// and a step for each element.
    ///
    /// # Errors
    /// The first element that no task has, or two have.
    #[doc(hidden)]
    pub fn prove_tasks(&self) -> Result<(), String> {
        let method = self.method();
        region::prove(&*method.lowering, &Shape::of(&self.geometry))
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
        self.check_runnable()?;
        self.check_len("W", w.len(), self.geometry.weight_len(), || self.geometry.weight_shape())?;
        if let Some(bias) = bias {
            self.check_len("B", bias.len(), self.geometry.bias_len(), || alloc::vec![self.geometry.bias_len()])?;
        }
        let mut values = reserved(self.geometry.out_channels, format_args!("{}, bias", self.geometry.op))?;
        match bias {
            Some(bias) => values.extend(bias.iter().map(|b| b.to_acc())),
            None => values.resize(self.geometry.out_channels, T::Acc::ZERO),
        }
        let live = match &self.live {
            None => None,
            Some((taps, method)) => {
                let mut values = values.clone();
                let w = taps.select(&self.geometry, w, &mut values)?;
                let packing = Packing::new(&*method.lowering, &method.recipe, &method.format, &w, values)?;
                Some(Live { taps: taps.ranges.clone(), packing })
            }
        };
        let whole = Packing::new(&*self.whole.lowering, &self.whole.recipe, &self.whole.format, w, values)?;
        Ok(PackedWeights { whole, live })
    }

    /// Computes Y from X, `(N, C, spatial...)`. It never panics once the arguments are accepted.
    ///
    /// It allocates nothing, with two exceptions. A run that enters a rayon pool from outside may
    /// make rayon's queue allocate a block. The BLAS backends `gemm` and `matrixmultiply` allocate
    /// in every run.
    ///
    /// The result is the same, bit for bit, for any number of threads.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength),
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch) if the weights were packed by a plan
    /// with other kernels, [`Workspace`](crate::ErrorKind::Workspace) if it is too small,
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
        self.fill(x, packed, None, Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run`](Self::run), with a tensor of Y's shape added before the activation.
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
        self.fill(x, packed, Some(residual), Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run`](Self::run), into memory that need not be initialised: every element is written,
    /// and the slice comes back initialised.
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
        self.fill(x, packed, residual, Target::Uninit(y), workspace, threads)
    }

    fn fill<'y>(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        residual: Option<&[T]>,
        y: Target<'y, T>,
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<&'y mut [T], Error> {
        self.check_runnable()?;
        let (geometry, op) = (&self.geometry, self.geometry.op);
        self.check_input(x)?;
        self.check_len("Y", y.len(), geometry.output_len(), || geometry.output_shape())?;
        if let Some(residual) = residual {
            self.check_len("the residual", residual.len(), geometry.output_len(), || geometry.output_shape())?;
        }
        let packed = match self.packing_in(packed) {
            Ok(packed) => packed,
            Err(difference) => {
                bail!(PackedMismatch, "{op}: {difference}: pack with this plan, or plan with Planner::packed_for")
            }
        };
        let (method, lines) = (self.method(), workspace.lines());
        let of_thread = method.recipe.scratch.lines();
        if lines.len() < of_thread {
            let (has, needs) = (size_of_val(lines), of_thread * size_of::<Line>());
            bail!(Workspace, "{op}: the workspace has {has} bytes, one thread needs {needs}");
        }
        let threads = if method.cost < SERIAL_COST { Threads::Serial } else { threads };
        let (weights, bias, is_finite) = (packed.values(), &*packed.bias, packed.is_finite);
        let lowering = &*method.lowering;
        let run = |task: usize, region: Region<'_, T>, scratch: &mut [Line]| {
            lowering.run(task, &Io { x, weights, bias, is_finite, residual, y: region }, scratch);
        };
        Ok(y.fill(lowering, &Shape::of(geometry), threads, (lines, of_thread), &run))
    }

    /// What is run.
    fn method(&self) -> &Method<T> {
        self.live.as_ref().map_or(&self.whole, |(_, method)| method)
    }

    /// The part of packed weights that a run reads; otherwise how they differ from what the plan
    /// needs.
    fn packing_in<'a>(&self, packed: &'a PackedWeights<T>) -> Result<&'a Packing<T>, String> {
        if let Some(difference) = packed.whole.format.difference(&self.whole.format) {
            return Err(difference);
        }
        let Some((needed, method)) = &self.live else { return Ok(&packed.whole) };
        let Some(live) = packed.live.as_ref().filter(|live| live.taps == needed.ranges) else {
            return Err(format!(
                "the weights were not packed for the taps {:?}, which alone meet input",
                needed.ranges
            ));
        };
        live.packing.format.difference(&method.format).map_or(Ok(&live.packing), Err)
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

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::{Conv, ErrorKind, Machine};

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

        assert!(plan.explain().to_string().contains("machine zen5: portable, "));
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
