//! What the planner and the lowerings promise each other.
//!
//! A lowering answers a [`Request`] with an [`Offer`]: a [`Recipe`], which is plain data and says all
//! that was decided, and a closure that builds the [`Lowering`] with its tables. The planner compares
//! recipes, and builds only the one that it picks.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::activation::Activation;
use convoke_kernels::{Isa, Real};

use super::layout::WeightLayout;
use crate::choice::Accuracy;
use crate::exec::region::Region;
use crate::exec::split::Split;
use crate::exec::{Ledger, Line};
use crate::machine::{Machine, Work};
use crate::spec::Strides;
use crate::{Axis, Element, Geometry};

#[derive(Clone, Copy)]
pub(crate) struct Request<'a, T: Element> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) machine: &'a Machine,
    /// Threads that the split into tasks should keep busy.
    pub(crate) threads: usize,
    pub(crate) activation: Activation<T::Acc>,
    pub(crate) accuracy: Accuracy,
    /// Bytes of scratch that a task may need, at most.
    pub(crate) task_bytes: usize,
    /// The layout of weights that are packed already. It may be from a forged file, so no number in it
    /// is trusted: a lowering looks among its own choices for the one that packs so. The registry
    /// refuses an offer of another layout.
    pub(crate) layout: Option<&'a WeightLayout>,
}

impl<T: Element> Request<'_, T> {
    pub(crate) fn isa(&self) -> Isa {
        self.machine.isa()
    }
}

pub(crate) type Answer<'a, T> = Result<Offer<'a, T>, String>;

/// Why a layer is refused whose tiles have no kernel.
pub(crate) fn no_kernel() -> String {
    String::from("no kernel for this tile")
}

/// The axes of rows and of the elements of a row, for algorithms on one or two axes. A single axis is
/// that of elements.
///
/// # Errors
/// The number of axes, if there are more.
pub(crate) fn last_axes(geometry: &Geometry) -> Result<(Axis, Axis), String> {
    match geometry.axes[..] {
        [w] => Ok((Axis::UNIT, w)),
        [h, w] => Ok((h, w)),
        _ => Err(alloc::format!("{} spatial axes, only one or two", geometry.axes.len())),
    }
}

/// What a lowering decided for a layer, as plain data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recipe {
    /// The name of the micro-kernel that does most of the work.
    pub(crate) kernel: &'static str,
    /// Tiles, blocking and other reasons for the choice, in one line.
    pub(crate) details: String,
    /// What the packed weights depend on, and how many values they have.
    pub(crate) layout: WeightLayout,
    pub(crate) packed_len: usize,
    /// Independent tasks that Y is split into.
    pub(crate) tasks: usize,
    pub(crate) scratch: Ledger,
    /// What all tasks take on one core. It only orders the offers for a layer.
    pub(crate) work: Work,
}

pub(crate) struct Offer<'a, T: Element> {
    pub(crate) recipe: Recipe,
    /// Makes the lowering, with its tables.
    pub(crate) build: Build<'a, T>,
}

pub(crate) type Build<'a, T> = Box<dyn FnOnce() -> Box<dyn Lowering<T>> + 'a>;

/// What a task reads, as all tasks of a run do, and its part of Y.
pub(crate) struct Io<'a, T: Element> {
    pub(crate) x: &'a [T],
    /// Finite, unless the definition's loops run. So a product with padding is zero, and may be left
    /// out.
    pub(crate) weights: &'a [T::Acc],
    /// One value for each output channel.
    pub(crate) bias: &'a [T::Acc],
    pub(crate) residual: Addend<'a, T>,
    pub(crate) y: Region<'a, T>,
    pub(crate) strides: IoStrides,
}

/// How the tensors of a run lie in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IoStrides {
    pub(crate) x: Strides,
    /// Of a residual that is a tensor. Otherwise they are those of Y.
    pub(crate) residual: Strides,
    pub(crate) y: Strides,
}

impl<T: Element> Io<'_, T> {
    /// What is added to the element of Y of an image, a channel and a position, if the task has not written
    /// it yet.
    pub(crate) fn residual_of(&self, (image, channel, position): (usize, usize, usize)) -> T::Acc {
        match self.residual {
            Addend::Output => self.residual_at(self.strides.y.at(image, channel, position)),
            _ => self.residual_at(self.strides.residual.at(image, channel, position)),
        }
    }

    /// What is added to element `at` of Y, if the task has not written it yet. The residual lies as Y does.
    pub(crate) fn residual_at(&self, at: usize) -> T::Acc {
        match self.residual {
            Addend::None => T::Acc::ZERO,
            Addend::Tensor(residual) => residual[at].to_acc(),
            Addend::Output => {
                let mut residual = [T::default()];
                self.y.read(at, &mut residual);
                residual[0].to_acc()
            }
        }
    }
}

/// The residual: what is added to finished sums before the activation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Addend<'a, T> {
    None,
    /// A tensor of Y's shape.
    Tensor(&'a [T]),
    /// What Y holds before the run.
    Output,
}

/// A configured lowering. It is immutable, and threads share it.
pub(crate) trait Lowering<T: Element>: Split {
    /// Packs W into the recipe's `packed_len` values.
    fn pack(&self, w: &[T], packed: &mut [T::Acc]);

    /// Executes one task. Memory safety rests on this: it must write every element of its region, with
    /// computed values, and no other element. It must read an element's residual before it writes the
    /// element, because Y may hold the residual. `scratch` has the lines of the recipe's ledger.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]);
}
