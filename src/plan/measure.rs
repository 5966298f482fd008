//! Picks by measurement: [`Planner::tune`].

use std::time::{Duration, Instant};

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use super::planner::Planner;
use super::tune::Tuning;
use super::{PackedWeights, Plan, Run};
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::reserved;
use crate::{ErrorKind, Operator, Threads, Workspace};

/// Candidates that are measured, at most. Each takes time and memory, and the fastest is rarely below
/// the fourth place.
const MOST_CANDIDATES: usize = 4;
/// A candidate whose estimate exceeds the pick's by this factor is not measured. Estimates are rarely
/// further off.
const MOST_ESTIMATE_RATIO: f64 = 2.0;
/// Rounds of one run of each candidate, at least, so that one slow run does not decide.
const LEAST_ROUNDS: usize = 3;
/// How long rounds go on, at least. Short layers need more of them to be told apart.
const LEAST_DURATION: Duration = Duration::from_millis(150);
/// For error messages.
const WHAT: &str = "tuning";

impl Planner {
    /// Whether the planner's [`tuning`](Planner::tuning) has this layer, so that it need not be
    /// measured.
    ///
    /// # Errors
    /// Those of [`plan`](Planner::plan).
    pub fn is_tuned<T: Element>(&self, operator: impl Into<Operator>, x_shape: &[usize]) -> Result<bool, Error> {
        let plan = self.plan::<T>(operator, x_shape)?;
        Ok(self.measured_pick(&self.tuning_key::<T>(&plan.at_once, plan.isa())).is_some())
    }

    /// Measures the candidates with the lowest estimates on made-up data, keeps the fastest in
    /// `tuning`, and returns the plan for it.
    ///
    /// It takes some tenths of a second, or three runs of each candidate if they take longer. It
    /// needs the memory of all candidates at once. The planner's [`threads`](Planner::threads) must
    /// be as many as `threads` has, because `tuning` keeps picks by their number.
    ///
    /// # Errors
    /// Those of [`plan`](Planner::plan); [`OutOfMemory`](crate::ErrorKind::OutOfMemory);
    /// [`Threads`](crate::ErrorKind::Threads) if the numbers of threads differ.
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
        let (planned, count) = (estimated.threads(), threads.count());
        if planned != count {
            bail!(Threads, "tuning for {planned} threads is measured on {count}: plan for {count}, too");
        }
        let mut candidates: Vec<_> = estimated
            .explain()
            .verdicts()
            .iter()
            .filter_map(|verdict| Some((verdict.cost?, verdict.algorithm)))
            .collect();
        candidates.sort_by(|one, other| one.0.total_cmp(&other.0));
        let longest = candidates.first().map_or(0.0, |(cost, _)| cost * MOST_ESTIMATE_RATIO);
        candidates.retain(|(cost, _)| *cost <= longest);
        candidates.truncate(MOST_CANDIDATES);

        let geometry = estimated.geometry();
        let (w, bias) = (made_up::<T>(geometry.weight_len())?, made_up::<T>(geometry.bias_len())?);
        let (x, mut y) = (made_up::<T>(geometry.input_len())?, reserved(geometry.output_len(), WHAT)?);
        let mut timed = Vec::with_capacity(candidates.len());
        for (_, algorithm) in candidates {
            match planner.clone().algorithm(algorithm).plan(operator.clone(), x_shape) {
                Ok(plan) => timed.push(TimedCandidate::new(plan, &w, &bias)?),
                // A forced algorithm gets the layer with all taps. One that accepts only the layer
                // without the invisible taps is not measured.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Workspace | ErrorKind::PackedMismatch
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        let begin = Instant::now();
        let mut rounds = 0;
        while timed.len() > 1 && (rounds < LEAST_ROUNDS || begin.elapsed() < LEAST_DURATION) {
            for candidate in &mut timed {
                candidate.once(&x, y.spare_capacity_mut(), threads)?;
            }
            rounds += 1;
        }
        let Some(fastest) = timed.into_iter().min_by_key(|candidate| candidate.fastest) else { return Ok(estimated) };
        let key = self.tuning_key::<T>(&estimated.at_once, estimated.isa());
        let picked = Tuning::of(&key, fastest.plan.algorithm());
        tuning.merge(picked.clone());
        self.clone().tuning(picked).plan(operator, x_shape)
    }
}

struct TimedCandidate<T: Element> {
    plan: Plan<T>,
    packed: PackedWeights<T>,
    workspace: Workspace<'static>,
    fastest: Duration,
}

impl<T: Element> TimedCandidate<T> {
    fn new(plan: Plan<T>, w: &[T], bias: &[T]) -> Result<Self, Error> {
        let packed = plan.pack(w, Some(bias))?;
        Ok(Self { packed, workspace: Workspace::for_plan(&plan)?, plan, fastest: Duration::MAX })
    }

    fn once(&mut self, x: &[T], y: &mut [MaybeUninit<T>], threads: Threads<'_>) -> Result<(), Error> {
        let y = &mut y[..self.plan.geometry().output_len()];
        let begin = Instant::now();
        self.plan.run(Run::uninit(x, &self.packed, y).workspace(&mut self.workspace).threads(threads))?;
        self.fastest = self.fastest.min(begin.elapsed());
        Ok(())
    }
}

/// Values of ordinary size. Zeros, subnormal numbers and overflows may take another time.
fn made_up<T: Element>(len: usize) -> Result<Vec<T>, Error> {
    let mut values = reserved(len, WHAT)?;
    values.extend((0..len).map(|i| T::round_from_f64((i % 61) as f64 / 64.0 - 0.5)));
    Ok(values)
}
