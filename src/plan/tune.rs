//! Picks by measurement, in place of the cost model's: kept, saved as text, and loaded.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use convoke_kernels::Isa;

use crate::choice::{Accuracy, Algorithm};
use crate::error::{Error, bail};
use crate::{DType, Geometry};

/// The first line of a saved tuning; the number is that of the form of the lines behind it.
const HEAD: &str = "convoke tuning 1";

/// Which algorithm was the fastest, layer by layer: made by [`Planner::tune`](super::Planner::tune), used by [`Planner::tuning`](super::Planner::tuning).
///
/// A layer is an operator with its sizes, an element type, an ISA, a number of threads and an accuracy. `Display` and `FromStr` save it as text, a line a
/// layer, and load it: on a machine of the same kind, since another one's figures are others. What is loaded only orders algorithms: whatever it
/// says, results are right.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use convoke::{Conv, Planner, Threads, Tuning};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (conv, x_shape) = (Conv::new([8, 4, 3, 3]).pads([1, 1, 1, 1]), [1, 4, 16, 16]);
/// let mut tuning = Tuning::default();
/// let plan = Planner::new().tune::<f32>(conv.clone(), &x_shape, Threads::Serial, &mut tuning)?; // takes some tenths of a second
/// let saved = tuning.to_string();
///
/// let loaded: Tuning = saved.parse()?;
/// let again = Planner::new().tuning(loaded).plan::<f32>(conv, &x_shape)?;
/// assert_eq!(plan.algorithm(), again.algorithm());
/// # Ok(()) }
/// # main().unwrap() }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    picks: BTreeMap<String, Algorithm>,
}

impl Tuning {
    /// Number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.picks.len()
    }

    /// Whether no layer was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.picks.is_empty()
    }

    /// Takes over what `other` knows, which counts where both know a layer.
    pub fn merge(&mut self, other: Self) {
        self.picks.extend(other.picks);
    }

    pub(super) fn pick(&self, layer: &Layer<'_>) -> Option<Algorithm> {
        if self.is_empty() {
            return None; // Without making the text.
        }
        self.picks.get(&layer.to_string()).copied()
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        self.picks.iter().try_for_each(|(layer, algorithm)| writeln!(f, "{layer} = {algorithm}"))
    }
}

impl FromStr for Tuning {
    type Err = Error;

    /// # Errors
    /// [`InvalidTuning`](crate::ErrorKind::InvalidTuning) with the number of the line. Empty lines are skipped.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines().zip(1..);
        match lines.next() {
            Some((HEAD, _)) => {}
            first => {
                bail!(InvalidTuning, "tuning, line 1: {:?} instead of {HEAD:?}", first.map_or("", |(line, _)| line))
            }
        }
        let mut tuning = Self::default();
        for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty()) {
            let Some((layer, algorithm)) = line.rsplit_once(" = ") else {
                bail!(InvalidTuning, "tuning, line {number}: {line:?} is not LAYER = ALGORITHM");
            };
            match algorithm.trim().parse() {
                Ok(algorithm) => tuning.picks.insert(String::from(layer.trim()), algorithm),
                Err(error) => bail!(InvalidTuning, "tuning, line {number}: {error}"),
            };
        }
        Ok(tuning)
    }
}

/// What a pick depends on, but for the limit of the workspace: a plan within a limit that the pick exceeds falls back on estimates.
pub(super) struct Layer<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) dtype: DType,
    pub(super) isa: Isa,
    pub(super) threads: usize,
    pub(super) accuracy: Accuracy,
}

impl fmt::Display for Layer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { geometry, dtype, isa, threads, accuracy } = self;
        let Geometry { op, batch, group, in_channels, out_channels, ref axes } = **geometry;
        let accuracy = match accuracy {
            Accuracy::Strict => "strict",
            Accuracy::Standard => "standard",
            Accuracy::Fast => "fast",
        };
        write!(
            f,
            "{op} {dtype} {isa} threads {threads} {accuracy}: N {batch} C {in_channels} M {out_channels} group {group}"
        )?;
        axes.iter().try_for_each(|a| {
            let (from, to) = (a.pad_begin, a.pad_end);
            write!(f, ", {} -> {} k{} s{} d{} p{from}:{to}", a.input, a.output, a.kernel, a.stride, a.dilation)
        })
    }
}

#[cfg(feature = "std")]
mod measure {
    use std::time::{Duration, Instant};

    use alloc::string::ToString;
    use alloc::vec::Vec;
    use core::mem::MaybeUninit;

    use super::Tuning;
    use crate::element::Element;
    use crate::error::Error;
    use crate::exec::reserved;
    use crate::plan::{Plan, Planner};
    use crate::{ErrorKind, Operator, PackedWeights, Threads, Workspace};

    /// Candidates that are measured: the cheapest ones by estimate, if they are not more than so many times as long as the pick.
    const MOST_CANDIDATES: usize = 4;
    const WORTH_A_TRY: f64 = 2.0;
    /// Rounds in which each candidate runs once, at the least; and how long there are more of them.
    const LEAST_ROUNDS: usize = 3;
    const LONG_ENOUGH: Duration = Duration::from_millis(150);
    /// Who needs memory, in errors.
    const WHAT: &str = "tuning";

    impl Planner {
        /// Measures the candidates that are the cheapest by estimate on made-up data, keeps the fastest in `tuning`, and gives the plan for it. Takes some tenths
        /// of a second, or three runs of each candidate where those take longer, and the memory for all of them.
        ///
        /// Set [`threads`](Planner::threads) to as many as `threads` has: it is what layers are kept for.
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
                    // Forced, it computes all taps, also where those that meet input are all that it can.
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
            let picked = Tuning { picks: [(layer.to_string(), fastest.plan.algorithm())].into() };
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
}
