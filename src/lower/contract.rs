//! What the planner and a lowering promise each other: the request, the offer, and the configured
//! lowering.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Isa, stream};

use crate::choice::Accuracy;
use crate::exec::Line;
use crate::exec::region::{Region, Split};
use crate::machine::Machine;
use crate::{Element, Geometry};

/// What a lowering is asked for.
pub(crate) struct Request<'a, T: Element> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) machine: &'a Machine,
    /// Threads that the split into tasks should keep busy.
    pub(crate) threads: usize,
    pub(crate) activation: stream::Activation<T::Acc>,
    pub(crate) accuracy: Accuracy,
    /// Bytes of scratch that a task may need, at the most.
    pub(crate) task_bytes: usize,
    /// The layout of weights that are already packed for this algorithm: to be accepted as it is,
    /// or rejected.
    pub(crate) layout: Option<&'a Layout>,
}

impl<T: Element> Request<'_, T> {
    /// The instruction set of the kernels.
    pub(crate) fn isa(&self) -> Isa {
        self.machine.isa()
    }
}

/// What packed weights depend on, besides operator, element type and algorithm: tile and blocking.
pub(crate) type Layout = Vec<usize>;

/// A lowering's answer.
pub(crate) type Answer<'a, T> = Result<Offer<'a, T>, String>;

/// A lowering that accepts.
pub(crate) struct Offer<'a, T: Element> {
    /// Estimated time on one core, in nanoseconds: only compared with other offers'.
    pub(crate) cost: f64,
    /// Scratch lines that each concurrent task needs.
    pub(crate) lines: usize,
    /// Makes the lowering, with its tables.
    pub(crate) build: Box<dyn FnOnce() -> Box<dyn Lowering<T>> + 'a>,
}

/// The data of one task: what all tasks of a run read, and the task's part of Y.
pub(crate) struct Io<'a, T: Element> {
    pub(crate) x: &'a [T],
    pub(crate) weights: &'a [T::Acc],
    /// One value for each output channel.
    pub(crate) bias: &'a [T::Acc],
    /// Whether all weights are finite: then a product with padding is zero, and may be left out.
    pub(crate) is_finite: bool,
    pub(crate) residual: Option<&'a [T]>,
    /// The part of Y that the task writes.
    pub(crate) y: Region<'a, T>,
}

/// A configured lowering: immutable, shared by threads.
pub(crate) trait Lowering<T: Element>: Split {
    /// What the packed weights depend on.
    fn layout(&self) -> Layout;

    /// The micro-kernel, blocking and whatever else explains the choice, in a line.
    fn describe(&self) -> String;

    /// The name of the micro-kernel that does most of the work.
    fn kernel(&self) -> &str;

    /// Number of values of the packed weights: W's, unless they are filled up.
    fn packed_len(&self, geometry: &Geometry) -> usize {
        geometry.weight_len()
    }

    /// Packs W into `packed_len` values.
    fn pack(&self, w: &[T], packed: &mut [T::Acc]);

    /// Executes one task: writes every element of its region, with computed values.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]);
}
