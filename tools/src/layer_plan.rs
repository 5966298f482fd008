//! A planned layer, of floats or of bytes, as sessions and the worker run it.

use anyhow::Result;
use convoke::{
    Geometry, Isa, Operator, PackedWeights, Plan, Planner, QuantisedPlan, QuantisedRun, QuantisedWeights, Run, Scaled,
    Threads, Workspace,
};
use convoke_tools::check::{self, Worst};
use convoke_tools::data::{ByteOperands, Operands, Scalar};

/// A plan, and what runs of it read and write.
pub(crate) trait LayerPlan: Sized + Sync {
    /// The type of X and Y.
    type Element: Copy + Default + Send + Sync;
    /// X, W and B, and what they mean.
    type Operands: Sync;
    /// What is made of W, B and their meaning before the first run.
    type Packed: Sync;

    fn new(planner: &Planner, operator: Operator, x: &[usize]) -> Result<Self>;
    fn facts(&self) -> PlanFacts<'_>;
    /// The operands of the layer that are the same each time.
    fn operands(&self) -> Self::Operands;
    fn x(operands: &Self::Operands) -> &[Self::Element];
    /// What Y holds before it is written. NaN shows elements that are not written; bytes have none.
    fn unwritten() -> Self::Element;
    fn pack(&self, operands: &Self::Operands) -> Result<Self::Packed>;
    fn run(&self, packed: &Self::Packed, io: Io<'_, Self::Element>) -> Result<()>;
    /// Compares so many elements of Y with the definition.
    fn worst(&self, operands: &Self::Operands, y: &[Self::Element], samples: usize) -> Worst;
}

/// What a plan says of itself.
pub(crate) struct PlanFacts<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The algorithm, or what kernels of bytes multiply.
    pub(crate) pick: &'static str,
    pub(crate) isa: Isa,
    pub(crate) kernel: &'a str,
    pub(crate) workspace_bytes: usize,
    pub(crate) packed_bytes: usize,
}

/// What a run has beside the packed weights.
pub(crate) struct Io<'a, E> {
    pub(crate) x: &'a [E],
    pub(crate) y: &'a mut [E],
    pub(crate) workspace: &'a mut Workspace<'static>,
    pub(crate) threads: Threads<'a>,
}

impl<T: Scalar> LayerPlan for Plan<T> {
    type Element = T;
    type Operands = Operands<T>;
    type Packed = PackedWeights<T>;

    fn new(planner: &Planner, operator: Operator, x: &[usize]) -> Result<Self> {
        Ok(planner.plan(operator, x)?)
    }

    fn facts(&self) -> PlanFacts<'_> {
        PlanFacts {
            geometry: self.geometry(),
            pick: self.algorithm().name(),
            isa: self.isa(),
            kernel: self.kernel(),
            workspace_bytes: self.workspace_bytes(),
            packed_bytes: self.packed_bytes(),
        }
    }

    fn operands(&self) -> Operands<T> {
        Operands::new(self.geometry())
    }

    fn x(operands: &Operands<T>) -> &[T] {
        &operands.x
    }

    fn unwritten() -> T {
        T::from_f64(f64::NAN)
    }

    fn pack(&self, operands: &Operands<T>) -> Result<PackedWeights<T>> {
        Ok(self.pack(&operands.w, Some(&operands.b))?)
    }

    fn run(&self, packed: &PackedWeights<T>, Io { x, y, workspace, threads }: Io<'_, T>) -> Result<()> {
        self.run(Run::new(x, packed, y).workspace(workspace).threads(threads))?;
        Ok(())
    }

    fn worst(&self, operands: &Operands<T>, y: &[T], samples: usize) -> Worst {
        check::against_reference(self.geometry(), self.algorithm(), operands, y, samples)
    }
}

/// A plan of bytes of the types that most quantised models have.
pub(crate) type BytePlan = QuantisedPlan<u8, i8, u8>;

impl LayerPlan for BytePlan {
    type Element = u8;
    type Operands = ByteOperands;
    type Packed = (QuantisedWeights, Scaled<u8, u8>);

    fn new(planner: &Planner, operator: Operator, x: &[usize]) -> Result<Self> {
        Ok(planner.plan_quantised(operator, x)?)
    }

    fn facts(&self) -> PlanFacts<'_> {
        PlanFacts {
            geometry: self.geometry(),
            pick: if self.has_byte_products() { "four bytes" } else { "pairs" },
            isa: self.isa(),
            kernel: self.kernel(),
            workspace_bytes: self.workspace_bytes(),
            packed_bytes: self.packed_bytes(),
        }
    }

    fn operands(&self) -> ByteOperands {
        ByteOperands::new(self.geometry())
    }

    fn x(operands: &ByteOperands) -> &[u8] {
        &operands.x
    }

    fn unwritten() -> u8 {
        0
    }

    fn pack(&self, operands: &ByteOperands) -> Result<Self::Packed> {
        let weights = self.pack(&operands.w, &[], Some(&operands.b))?;
        let scaled = weights.scaled(&operands.quantisation.scales())?;
        Ok((weights, scaled))
    }

    fn run(&self, (weights, scaled): &Self::Packed, Io { x, y, workspace, threads }: Io<'_, u8>) -> Result<()> {
        self.run(QuantisedRun::new(x, weights, scaled, y).workspace(workspace).threads(threads))?;
        Ok(())
    }

    fn worst(&self, operands: &ByteOperands, y: &[u8], samples: usize) -> Worst {
        check::bytes_against_reference(self.geometry(), operands, y, samples)
    }
}
