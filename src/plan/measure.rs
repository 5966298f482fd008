//! Picks by measurement: [`Planner::tune`].

use std::time::{Duration, Instant};

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use super::planner::Planner;
use super::tune::Tuning;
use super::{PackedWeights, Plan};
use crate::element::Element;
use crate::error::Error;
use crate::exec::reserved;
use crate::{ErrorKind, Operator, Threads, Workspace};

/// Candidates that are measured: the cheapest ones by estimate, if they are not more than so many
/// times as long as the pick.
const MOST_CANDIDATES: usize = 4;
const WORTH_A_TRY: f64 = 2.0;
/// Rounds in which each candidate runs once, at the least; and how long there are more of them.
const LEAST_ROUNDS: usize = 3;
const LONG_ENOUGH: Duration = Duration::from_millis(150);
/// Who needs memory, in errors.
const WHAT: &str = "tuning";

impl Planner {
    /// Measures the candidates that are the cheapest by estimate on made-up data, keeps the fastest
    /// in `tuning`, and gives the plan for it. Takes some tenths of a second, or three runs of each
    /// candidate where those take longer, and the memory for all of them.
    ///
    /// Set [`threads`](Planner::threads) to as many as `threads` has: it is what layers are kept
    /// for.
    ///
    /// # Errors
    /// Those of [`plan`](Planner::plan); [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn tune<T: Element>(
        &self,
        operator: impl Into<Operator>,
        x_shape: &[usize],
        threads: Threads<'_>,
        tuning: &mut Tuning,
    ) -> Result<Plan<T>, Error> {
        let operator = operator.into();
        let planner = self.clone().tuning(Tuning::default());
        let estimated = planner.plan::<T>(operator.clone(), x_shape)?;
        estimated.check_runnable()?;
        let mut candidates: Vec<_> = estimated
            .explain()
            .verdicts()
            .iter()
            .filter_map(|verdict| Some((verdict.cost?, verdict.algorithm)))
            .collect();
        candidates.sort_by(|one, other| one.0.total_cmp(&other.0));
        let longest = candidates.first().map_or(0.0, |(cost, _)| cost * WORTH_A_TRY);
        candidates.retain(|(cost, _)| *cost <= longest);
        candidates.truncate(MOST_CANDIDATES);

        let geometry = estimated.geometry();
        let (w, bias) = (made_up::<T>(geometry.weight_len())?, made_up::<T>(geometry.bias_len())?);
        let (x, mut y) = (made_up::<T>(geometry.input_len())?, reserved(geometry.output_len(), WHAT)?);
        let mut runs = Vec::with_capacity(candidates.len());
        for (_, algorithm) in candidates {
            match planner.clone().algorithm(algorithm).plan(operator.clone(), x_shape) {
                Ok(plan) => runs.push(Run::new(plan, &w, &bias)?),
                // Forced, it computes all taps, also where those that meet input are all that it
                // can.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Workspace) => {}
                Err(error) => return Err(error),
            }
        }
        let begin = Instant::now();
        let mut rounds = 0;
        while runs.len() > 1 && (rounds < LEAST_ROUNDS || begin.elapsed() < LONG_ENOUGH) {
            for run in &mut runs {
                run.once(&x, y.spare_capacity_mut(), threads)?;
            }
            rounds += 1;
        }
        let Some(fastest) = runs.into_iter().min_by_key(|run| run.fastest) else { return Ok(estimated) };
        let layer = self.layer::<T>(geometry, estimated.isa());
        let picked = Tuning::of(&layer, fastest.plan.algorithm());
        tuning.merge(picked.clone());
        self.clone().tuning(picked).plan(operator, x_shape)
    }
}

/// A candidate with all that it needs.
struct Run<T: Element> {
    plan: Plan<T>,
    packed: PackedWeights<T>,
    workspace: Workspace<'static>,
    fastest: Duration,
}

impl<T: Element> Run<T> {
    fn new(plan: Plan<T>, w: &[T], bias: &[T]) -> Result<Self, Error> {
        let packed = plan.pack(w, Some(bias))?;
        Ok(Self { packed, workspace: Workspace::for_plan(&plan)?, plan, fastest: Duration::MAX })
    }

    fn once(&mut self, x: &[T], y: &mut [MaybeUninit<T>], threads: Threads<'_>) -> Result<(), Error> {
        let y = &mut y[..self.plan.geometry().output_len()];
        let begin = Instant::now();
        self.plan.run_uninit(x, &self.packed, None, y, &mut self.workspace, threads)?;
        self.fastest = self.fastest.min(begin.elapsed());
        Ok(())
    }
}

/// Values of usual size: zeros, subnormal numbers and overflows would take other ways.
fn made_up<T: Element>(len: usize) -> Result<Vec<T>, Error> {
    let mut values = reserved(len, WHAT)?;
    values.extend((0..len).map(|i| T::round_from_f64((i % 61) as f64 / 64.0 - 0.5)));
    Ok(values)
}
