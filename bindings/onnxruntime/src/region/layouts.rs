//! Which layouts a layer of a region reads and writes: channels last, unless channels first are estimated to take less
//! time, with the conversions that they ask for.

use std::collections::HashMap;

use convoke::{Activation, Conv, Layout, Operator};

use crate::api::Result;
use crate::fusion::Fusion;
use crate::session::Session;

/// The layouts of X and Y.
pub(crate) type Layouts = [Layout; 2];

const FIRST: Layout = Layout::ChannelsFirst;
const LAST: Layout = Layout::ChannelsLast;

/// Estimates of a session's layers, in nanoseconds.
pub(crate) struct Estimates<'s> {
    session: &'s Session,
    /// Those of conversions, by shape.
    conversions: HashMap<(Vec<usize>, Layout), f64>,
}

/// What is known of a layer's tensors when its layouts are picked.
pub(crate) struct Surroundings {
    /// Whether X and the residual are there with channels first, and with channels last.
    pub(crate) x: [bool; 2],
    pub(crate) residual: Option<[bool; 2]>,
    /// What reads Y.
    pub(crate) wanted: Layout,
}

impl<'s> Estimates<'s> {
    pub(crate) fn new(session: &'s Session) -> Self {
        Self { session, conversions: HashMap::new() }
    }

    /// The estimate of an operator, if it can be planned.
    fn of(&self, operator: Operator, activation: Activation, x_shape: &[usize]) -> Option<f64> {
        let plan = self.session.planner().activation(activation).plan::<f32>(operator, x_shape).ok()?;
        Some(plan.explain().cost())
    }

    /// The estimate of a tensor that is moved to a layout.
    fn conversion(&mut self, shape: &[usize], to: Layout) -> f64 {
        let key = (shape.to_vec(), to);
        if let Some(known) = self.conversions.get(&key) {
            return *known;
        }
        let from = if to == FIRST { LAST } else { FIRST };
        let mut w_shape = vec![1; shape.len()];
        w_shape[0] = shape[1];
        let operator = Operator::from(Conv::new(w_shape).group(shape[1] as i64)).layouts(from, to);
        let cost = self.of(operator, Activation::None, shape).unwrap_or(f64::INFINITY);
        self.conversions.insert(key, cost);
        cost
    }

    /// The layouts of a layer, and their estimate.
    pub(crate) fn pick(&mut self, layer: &Fusion<'_>, around: &Surroundings) -> Result<(Layouts, f64)> {
        let usual = ([if around.x[1] { LAST } else { FIRST }, around.wanted], f64::NAN);
        let (Some(dims), Some(x_shape)) = (layer.weight_dims()?, layer.x.tensor_type()?.and_then(|ty| ty.shape()))
        else {
            return Ok(usual);
        };
        let Ok(operator) = layer.operator(&dims) else { return Ok(usual) };
        let Ok(geometry) = operator.geometry(&x_shape) else { return Ok(usual) };
        let y_shape = geometry.output_shape();
        let mut best = (usual.0, f64::INFINITY);
        for layouts @ [x, y] in [usual.0, [LAST, LAST], [FIRST, FIRST], [FIRST, LAST], [LAST, FIRST]] {
            let is_there = |known: [bool; 2], layout: Layout| known[usize::from(layout == LAST)];
            // Layers that convert on the way are worth a look where nothing else would be converted.
            if layouts == best.0 && best.1.is_finite() || x != y && !(is_there(around.x, x) && y == around.wanted) {
                continue;
            }
            let Some(mut cost) = self.of(operator.clone().layouts(x, y), layer.activation, &x_shape) else { continue };
            if !is_there(around.x, x) {
                cost += self.conversion(&x_shape, x);
            }
            if around.residual.is_some_and(|known| !is_there(known, y)) {
                cost += self.conversion(&y_shape, y);
            }
            if y != around.wanted {
                cost += self.conversion(&y_shape, around.wanted);
            }
            if cost < best.1 {
                best = (layouts, cost);
            }
        }
        Ok(best)
    }

    /// The estimate of a layer with channels first, if its size is known.
    pub(crate) fn with_channels_first(&self, layer: &Fusion<'_>) -> Result<Option<f64>> {
        let (dims, x_shape) = (layer.weight_dims()?, layer.x.tensor_type()?.and_then(|ty| ty.shape()));
        let (Some(dims), Some(x_shape)) = (dims, x_shape) else { return Ok(None) };
        Ok(layer.operator(&dims).ok().and_then(|operator| self.of(operator, layer.activation, &x_shape)))
    }
}
