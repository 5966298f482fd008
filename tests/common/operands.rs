//! X, W, bias and residual of a layer, and a run on them.

use std::mem::MaybeUninit;

use convoke::{Error, Geometry, PackedWeights, Plan, Run, Threads, Workspace};
use convoke_tools::data::{Random, Scalar, uniform};

/// The inputs of a run.
#[derive(Debug, Clone)]
pub struct Operands<T> {
    pub x: Vec<T>,
    pub w: Vec<T>,
    pub bias: Option<Vec<T>>,
    pub residual: Option<Vec<T>>,
}

impl<T: Scalar> Operands<T> {
    /// X and W from a generator of values, without bias and residual.
    pub fn generate(geometry: &Geometry, mut value: impl FnMut() -> f64) -> Self {
        let mut tensor = |len: usize| (0..len).map(|_| T::from_f64(value())).collect::<Vec<_>>();
        let (x, w) = (tensor(geometry.input_len()), tensor(geometry.weight_len()));
        Self { x, w, bias: None, residual: None }
    }

    /// Numbers in -1..1.
    pub fn uniform(geometry: &Geometry, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self::generate(geometry, || random.uniform())
    }

    /// Small integers. Sums of their products are exact in any order, in f32 too, up to 2^24 /
    /// `limit`^2 products.
    pub fn integers(geometry: &Geometry, limit: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let operands = Self::generate(geometry, || random.below(2 * limit + 1) as f64 - limit as f64);
        let mut tensor =
            |len: usize| (0..len).map(|_| T::from_f64(random.below(2 * limit + 1) as f64 - limit as f64)).collect();
        Self { bias: Some(tensor(geometry.out_channels)), residual: Some(tensor(geometry.output_len())), ..operands }
    }

    /// Adds a bias in -1..1.
    #[must_use]
    pub fn with_bias(self, geometry: &Geometry) -> Self {
        Self { bias: Some(uniform(geometry.out_channels, 1.0, 101)), ..self }
    }

    /// Adds a residual in -1..1.
    #[must_use]
    pub fn with_residual(self, geometry: &Geometry) -> Self {
        Self { residual: Some(uniform(geometry.output_len(), 1.0, 102)), ..self }
    }

    /// Packs the weights.
    ///
    /// # Panics
    /// If they are rejected.
    pub fn pack(&self, plan: &Plan<T>) -> PackedWeights<T> {
        plan.pack(&self.w, self.bias.as_deref()).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
    }

    /// Packs the weights, and runs on the calling thread.
    ///
    /// # Panics
    /// If anything is rejected.
    pub fn run(&self, plan: &Plan<T>) -> Vec<T> {
        self.run_packed(plan, &self.pack(plan), Threads::Serial).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
    }

    /// As [`run`](Self::run). If there is a residual, it also runs with the residual in Y, which
    /// must give the same bits.
    pub fn run_both_ways(&self, plan: &Plan<T>) -> Vec<T> {
        let packed = self.pack(plan);
        let y = self.run_packed(plan, &packed, Threads::Serial).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
        if let Some(residual) = &self.residual {
            let (mut in_place, mut workspace) = (residual.clone(), Workspace::for_plan(plan).unwrap());
            plan.run(Run::in_place(&self.x, &packed, &mut in_place).workspace(&mut workspace)).unwrap();
            assert_eq!(bits(&in_place), bits(&y), "with the residual in Y: {plan:?}");
        }
        y
    }

    /// Runs with the smallest workspace that is enough for all threads. Workspace and output are
    /// full of NaN before, so that the result shows what is read before it is written, or not
    /// written.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_packed(&self, plan: &Plan<T>, packed: &PackedWeights<T>, threads: Threads<'_>) -> Result<Vec<T>, Error> {
        let mut memory = vec![NAN_BYTE; plan.workspace_bytes() + 63];
        let mut workspace = Workspace::borrowed(&mut memory);
        let mut y = vec![MaybeUninit::new(T::from_f64(f64::NAN)); plan.geometry().output_len()];
        plan.run(
            Run::uninit(&self.x, packed, &mut y)
                .residual(self.residual.as_deref())
                .workspace(&mut workspace)
                .threads(threads),
        )
        .map(|y| y.to_vec())
    }
}

/// The byte with which NaNs of every element type can be filled.
pub const NAN_BYTE: u8 = 0xff;

/// The bits of values, for comparisons that distinguish zeros and NaNs.
pub fn bits<T: Scalar>(values: &[T]) -> Vec<u64> {
    values.iter().map(|v| v.to_f64().to_bits()).collect()
}
