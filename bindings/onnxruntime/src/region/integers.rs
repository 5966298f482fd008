//! Convolutions of bytes: their constants, and plans for X of known shapes.

use std::sync::{Arc, Mutex};

use convoke::{Error, Layout, Operator, QuantisedPlan, QuantisedRun, QuantisedWeights, Scaled, Scales, Workspace};

use crate::api::{Failure, Result, lock};
use crate::layer::lend;
use crate::region::bytes::{ByteScale, Integers, Table};
use crate::run::Run;
use crate::session::Session;

const LAST: Layout = Layout::ChannelsLast;

/// A convolution of bytes.
pub(crate) struct IntegerLayer {
    operator: Operator,
    w: Vec<i8>,
    w_zero: Vec<i8>,
    w_scale: Vec<f32>,
    /// One for each output channel, or none.
    bias: Vec<i32>,
    x: ByteScale,
    y: Option<ByteScale>,
    table: Option<Table>,
    /// Those of the last plan.
    packed: Mutex<Option<Arc<QuantisedWeights>>>,
}

/// A layer for X of a shape.
pub(crate) enum PlannedIntegers {
    Bytes(Box<Planned<u8>>),
    Floats(Box<Planned<f32>>),
}

/// A plan, and weights for it.
pub(crate) struct Planned<Y> {
    plan: QuantisedPlan<u8, i8, Y>,
    weights: Arc<QuantisedWeights>,
    w_scale: Vec<f32>,
    scaled: Scaled<u8, Y>,
}

impl IntegerLayer {
    pub(crate) fn of(layer: &Integers<'_>) -> Result<Self> {
        let Integers { w, w_scale, x, y, table, .. } = layer;
        let bytes = w.tensor.bytes()?.ok_or_else(|| Failure::other("weights that are no bytes"))?;
        // As signed ones.
        let signed = |bytes: &[u8]| bytes.iter().map(|byte| (byte ^ w.flip ^ 0x80) as i8).collect();
        let bias = layer.biases().ok_or_else(|| Failure::other("biases that do not fit 32 bits"))?;
        Ok(Self {
            operator: layer.operator()?.layouts(LAST, LAST),
            w: signed(bytes),
            w_zero: signed(&w.zero),
            w_scale: w_scale.clone(),
            bias,
            x: *x,
            y: *y,
            table: *table,
            packed: Mutex::default(),
        })
    }

    /// The plan for X of a shape.
    pub(crate) fn plan(&self, session: &Session, x_shape: &[usize]) -> Result<PlannedIntegers> {
        Ok(match self.y {
            Some(y) => {
                let mut planned = self.planned(session, x_shape, (y.scale, y.zero))?;
                if let Some(table) = &self.table {
                    planned.scaled = planned.scaled.table(table);
                }
                PlannedIntegers::Bytes(Box::new(planned))
            }
            None => PlannedIntegers::Floats(Box::new(self.planned(session, x_shape, (1.0, 0.0))?)),
        })
    }

    fn planned<Y: convoke::Quantised>(
        &self,
        session: &Session,
        x_shape: &[usize],
        (y_scale, y_zero_point): (f32, Y),
    ) -> Result<Planned<Y>> {
        let plan = session.planner().plan_quantised::<u8, i8, Y>(self.operator.clone(), x_shape)?;
        let weights = self.weights(&plan)?;
        let scaled = scaled(&weights, self.x, &self.w_scale, (y_scale, y_zero_point))?;
        Ok(Planned { plan, weights, w_scale: self.w_scale.clone(), scaled })
    }

    /// Packs, unless the weights of the last plan serve.
    fn weights<Y: convoke::Quantised>(
        &self,
        plan: &QuantisedPlan<u8, i8, Y>,
    ) -> std::result::Result<Arc<QuantisedWeights>, Error> {
        let mut packed = lock(&self.packed);
        if let Some(packed) = packed.as_ref().filter(|packed| plan.accepts(packed)) {
            return Ok(packed.clone());
        }
        let bias = (!self.bias.is_empty()).then_some(&*self.bias);
        let weights = Arc::new(plan.pack(&self.w, &self.w_zero, bias)?);
        *packed = Some(weights.clone());
        Ok(weights)
    }
}

fn scaled<Y: convoke::Quantised>(
    weights: &QuantisedWeights,
    ByteScale { scale, zero }: ByteScale,
    w_scale: &[f32],
    (y_scale, y_zero_point): (f32, Y),
) -> std::result::Result<Scaled<u8, Y>, Error> {
    weights.scaled(&Scales { x_scale: scale, x_zero_point: zero, w_scale, y_scale, y_zero_point })
}

impl PlannedIntegers {
    pub(crate) fn output_shape(&self) -> Vec<usize> {
        match self {
            Self::Bytes(planned) => planned.plan.geometry().output_shape(),
            Self::Floats(planned) => planned.plan.geometry().output_shape(),
        }
    }
}

impl Planned<f32> {
    /// The same, of X whose scale is known in a run.
    pub(crate) fn run_scaled(
        &self,
        session: &Session,
        run: Run,
        (x, scale): (&[u8], ByteScale),
        y: &mut [f32],
    ) -> Result<()> {
        let scaled = scaled(&self.weights, scale, &self.w_scale, (1.0, 0.0))?;
        self.run_by(session, run, (x, &scaled), y)
    }
}

impl<Y: convoke::Quantised> Planned<Y> {
    /// Computes Y on the session's memory and the threads of a run.
    pub(crate) fn run(&self, session: &Session, run: Run, x: &[u8], y: &mut [Y]) -> Result<()> {
        self.run_by(session, run, (x, &self.scaled), y)
    }

    fn run_by(&self, session: &Session, run: Run, (x, scaled): (&[u8], &Scaled<u8, Y>), y: &mut [Y]) -> Result<()> {
        let Self { plan, weights, .. } = self;
        lend(session, run, plan.threads(), |workspace, threads| {
            if workspace.bytes() < plan.workspace_bytes() {
                *workspace = Workspace::with_bytes(plan.workspace_bytes())?;
            }
            plan.run(QuantisedRun::new(x, weights, scaled, y).workspace(workspace).threads(threads))?;
            Ok(())
        })
    }
}
