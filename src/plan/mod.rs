//! Plans: what is decided once for an operator and an input shape, and run many times.

mod algorithm;
mod explain;
mod packed;
mod planner;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use convoke_kernels::{Isa, Real};

pub use algorithm::{Accuracy, Algorithm, Blas};
pub use explain::{Explanation, Verdict};
pub use packed::PackedWeights;
pub use planner::Planner;

use crate::Geometry;
use crate::element::{Compute, Element};
use crate::error::{Error, bail};
use crate::exec::output::{Inputs, Target};
use crate::exec::{Line, Threads, Workspace};
use crate::lower::Lowering;
use packed::Format;

/// Multiply-adds below which a run is not shared among threads: handing over would cost as much as it saves.
const SERIAL_MACS: u128 = 1 << 19;

/// How to compute one operator on inputs of one shape: immutable, and shared by threads.
///
/// Made by [`Planner::plan`]. [`pack`](Plan::pack) the weights once, then [`run`](Plan::run) any number of times.
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
    format: Format,
    lowering: Box<dyn Lowering<T>>,
    /// Scratch lines of a task.
    lines: usize,
    threads: usize,
    explanation: Explanation,
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
        self.format.algorithm
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.format.isa
    }

    /// The name of the micro-kernel that does most of the work.
    #[must_use]
    pub fn kernel(&self) -> &str {
        self.lowering.kernel()
    }

    /// Bytes of workspace for a run with the number of threads that the plan was made for. A run that is given less uses fewer threads, and
    /// needs at least one thread's share.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.lines * self.threads * size_of::<Line>()
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

    /// Packs W, `(M, C/group, k...)` for Conv and `(C, M/group, k...)` for ConvTranspose, and the bias, of M elements.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength) if a length is not the shape's, [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn pack(&self, w: &[T], bias: Option<&[T]>) -> Result<PackedWeights<T>, Error> {
        self.check_len("W", w.len(), self.geometry.weight_len(), || self.geometry.weight_shape())?;
        if let Some(bias) = bias {
            self.check_len("B", bias.len(), self.geometry.bias_len(), || alloc::vec![self.geometry.bias_len()])?;
        }
        let len = self.lowering.packed_len(&self.geometry);
        let bytes = len * size_of::<T::Acc>();
        let (mut lines, mut values) = (Vec::new(), Vec::new());
        let reserved = lines.try_reserve_exact(crate::exec::lines_for::<T::Acc>(len));
        if reserved.and(values.try_reserve_exact(self.geometry.out_channels)).is_err() {
            bail!(OutOfMemory, "{}: {bytes} bytes for the packed weights cannot be allocated", self.geometry.op);
        }
        lines.resize(crate::exec::lines_for::<T::Acc>(len), bytemuck::Zeroable::zeroed());
        match bias {
            Some(bias) => values.extend(bias.iter().map(|b| b.to_acc())),
            None => values.resize(self.geometry.out_channels, T::Acc::ZERO),
        }
        let is_finite = w.iter().all(|w| w.to_acc().is_finite_value());
        self.lowering.pack(w, &mut bytemuck::cast_slice_mut(&mut lines)[..len]);
        Ok(PackedWeights { format: self.format.clone(), lines, bias: values, len, is_finite })
    }

    /// Computes Y from X, `(N, C, spatial...)`. Allocates nothing (entering a rayon pool from outside it, rayon's own queue now and then
    /// allocates a block; the BLAS backends `gemm` and `matrixmultiply` allocate in every call), and never panics once the arguments are accepted.
    ///
    /// The result is the same, bit for bit, for any number of threads.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength), [`PackedMismatch`](crate::ErrorKind::PackedMismatch) if the weights were packed by
    /// a plan with other kernels, [`Workspace`](crate::ErrorKind::Workspace) if it is too small. Y is untouched then.
    pub fn run(
        &self,
        x: &[T],
        packed: &PackedWeights<T>,
        y: &mut [T],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<(), Error> {
        self.fill(&Inputs { x, packed, residual: None }, Target::Init(y), workspace, threads).map(|_| ())
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
        self.fill(&Inputs { x, packed, residual: Some(residual) }, Target::Init(y), workspace, threads).map(|_| ())
    }

    /// As [`run`](Self::run), into memory that need not be initialised: every element is written, and the slice comes back initialised.
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
        self.fill(&Inputs { x, packed, residual }, Target::Uninit(y), workspace, threads)
    }

    fn fill<'y>(
        &self,
        inputs: &Inputs<'_, T>,
        y: Target<'y, T>,
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<&'y mut [T], Error> {
        let (geometry, op) = (&self.geometry, self.geometry.op);
        self.check_input(inputs.x)?;
        self.check_len("Y", y.len(), geometry.output_len(), || geometry.output_shape())?;
        if let Some(residual) = inputs.residual {
            self.check_len("the residual", residual.len(), geometry.output_len(), || geometry.output_shape())?;
        }
        if let Some(difference) = inputs.packed.format.difference(&self.format) {
            bail!(PackedMismatch, "{op}: {difference}: pack with this plan, or plan with Planner::packed_for");
        }
        let lines = workspace.lines();
        if lines.len() < self.lines {
            let (has, needs) = (size_of_val(lines), self.lines * size_of::<Line>());
            bail!(Workspace, "{op}: the workspace has {has} bytes, one thread needs {needs}");
        }
        let threads = if geometry.macs() < SERIAL_MACS { Threads::Serial } else { threads };
        Ok(y.fill(&*self.lowering, inputs, threads, lines, self.lines))
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
