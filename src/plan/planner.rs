//! From an operator and an input shape to a plan.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::explain::{Explanation, Verdict};
use super::packed::Format;
use super::{Accuracy, Algorithm, PackedWeights, Plan};
use crate::element::Element;
use crate::epilogue::Activation;
use crate::error::{Error, bail};
use crate::exec::Line;
use crate::lower::{self, Lowering, Offer, Request};
use crate::machine::{self, Isa};
use crate::{Geometry, Operator};

/// Threads that a split into tasks is made for, at the most.
const MOST_THREADS: usize = 1 << 12;

/// Chooses how to compute: limits and wishes first, then [`plan`](Planner::plan).
///
/// ```
/// use convoke::{Activation, Conv, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let conv = Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]);
/// let plan = Planner::new().threads(2).activation(Activation::Relu).plan::<f32>(conv, &[1, 3, 224, 224])?;
/// assert_eq!(plan.geometry().output_shape(), [1, 64, 112, 112]);
/// println!("{}", plan.explain());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Planner {
    isa: Result<Isa, String>,
    algorithm: Option<Algorithm>,
    accuracy: Accuracy,
    workspace_limit: usize,
    threads: usize,
    activation: Activation,
    format: Option<Format>,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// The best available ISA, or that of the environment variable [`CONVOKE_ISA`](machine::ENV_ISA), or the best one up to that of
    /// [`CONVOKE_MAX_ISA`](machine::ENV_MAX_ISA); one thread; any algorithm; no limit of the workspace; no activation.
    pub fn new() -> Self {
        Self {
            isa: machine::default_isa(),
            algorithm: None,
            accuracy: Accuracy::default(),
            workspace_limit: usize::MAX,
            threads: 1,
            activation: Activation::None,
            format: None,
        }
    }

    /// Uses the kernels of one ISA, `Isa::detect_at_most(cap)` for the best one up to a cap; an error of [`plan`](Planner::plan) where the CPU or the build lacks it.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = Ok(isa);
        self
    }

    /// Uses one algorithm; an error of [`plan`](Planner::plan) where it does not accept the layer.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.format = self.format.filter(|format| format.algorithm == algorithm);
        self.algorithm = Some(algorithm);
        self
    }

    /// How much rounding error may be traded for speed.
    pub fn accuracy(mut self, accuracy: Accuracy) -> Self {
        self.accuracy = accuracy;
        self
    }

    /// Bytes of workspace that a run may need, at the most, for all threads together.
    pub fn workspace_limit(mut self, bytes: usize) -> Self {
        self.workspace_limit = bytes;
        self
    }

    /// Threads that the work is split for. A run may have more or fewer: the result is the same.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// The activation behind bias and residual.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Makes plans that accept these weights, for another batch or spatial size than the plan that packed them: the same algorithm, ISA and
    /// layout.
    pub fn packed_for<T: Element>(mut self, packed: &PackedWeights<T>) -> Self {
        self.algorithm = Some(packed.format.algorithm);
        self.isa = Ok(packed.format.isa);
        self.format = Some(packed.format.clone());
        self
    }

    /// A plan for an operator on inputs of one shape, `(N, C, spatial...)`.
    ///
    /// # Errors
    /// What breaks a rule of the operator ([`Conv::geometry`](crate::Conv::geometry)); [`Unavailable`](crate::ErrorKind::Unavailable) where
    /// the forced algorithm or ISA cannot be had; [`Workspace`](crate::ErrorKind::Workspace) where every algorithm needs more than the limit.
    pub fn plan<T: Element>(&self, operator: impl Into<Operator>, x_shape: &[usize]) -> Result<Plan<T>, Error> {
        let operator = operator.into();
        let name = operator.op_name();
        let geometry = operator.geometry(x_shape)?;
        operator.check_dtype(T::DTYPE)?;
        if self.threads == 0 {
            bail!(Unavailable, "{name}: a plan for 0 threads; there must be at least 1");
        }
        let isa = match &self.isa {
            Ok(isa) => match isa.absence() {
                None => *isa,
                Some(absence) => bail!(Unavailable, "{name}: the ISA {isa} was asked for: {absence}"),
            },
            Err(error) => bail!(Unavailable, "{name}: {error}"),
        };
        let request = Request::<T> {
            geometry: &geometry,
            isa,
            threads: self.threads.min(MOST_THREADS),
            activation: self.activation.lower(),
            accuracy: self.accuracy,
            task_bytes: self.workspace_limit / self.threads,
            layout: self.format.as_ref().map(|f| &f.layout),
        };
        let choice = self.choose(name, &request)?;
        Ok(self.finish(name, geometry, isa, choice))
    }

    /// Asks the candidates, and takes the cheapest offer within the limits.
    fn choose<T: Element>(&self, name: &str, request: &Request<'_, T>) -> Result<Choice<T>, Error> {
        let mut verdicts = Vec::new();
        let mut best: Option<(usize, Offer<'_, T>)> = None;
        let mut too_large: Option<usize> = None;
        for (algorithm, candidate) in lower::candidates::<T>() {
            let forced_out = self.algorithm.is_some_and(|forced| forced != algorithm);
            let answer = if forced_out {
                Err(String::from("another algorithm is forced"))
            } else if algorithm == Algorithm::Naive {
                candidate(request)
            } else {
                lower::check_sizes(request.geometry).and_then(|()| candidate(request))
            };
            let answer = answer.and_then(|offer| {
                let bytes =
                    offer.lines.checked_mul(size_of::<Line>()).and_then(|bytes| bytes.checked_mul(self.threads));
                match bytes {
                    Some(bytes) if bytes <= self.workspace_limit => Ok(offer),
                    bytes => {
                        let bytes = bytes.unwrap_or(usize::MAX);
                        too_large = Some(too_large.map_or(bytes, |least| least.min(bytes)));
                        Err(format!("needs {bytes} bytes of workspace, limit {}", self.workspace_limit))
                    }
                }
            });
            let (cost, reason) = match answer {
                Err(reason) => (None, reason),
                Ok(offer) => {
                    let cost = offer.cost;
                    if best.as_ref().is_none_or(|(_, best)| cost < best.cost) {
                        best = Some((verdicts.len(), offer));
                    }
                    (Some(cost), String::new())
                }
            };
            verdicts.push(Verdict { algorithm, cost, reason });
        }
        let Some((index, offer)) = best else {
            if let Some(bytes) = too_large {
                let limit = self.workspace_limit;
                bail!(Workspace, "{name}: needs {bytes} bytes of workspace at the least, the limit is {limit}");
            }
            let algorithm = self.algorithm.map_or("no algorithm", Algorithm::name);
            let reason = verdicts.iter().find(|v| Some(v.algorithm) == self.algorithm).map_or("", |v| &v.reason);
            bail!(Unavailable, "{name}: {algorithm} cannot be used: {reason}");
        };
        for (i, verdict) in verdicts.iter_mut().enumerate() {
            if let Some(cost) = verdict.cost
                && i != index
            {
                verdict.reason = format!("estimated at {}, the pick at {}", Time(cost), Time(offer.cost));
            }
        }
        Ok(Choice { index, verdicts, lines: offer.lines, lowering: (offer.build)() })
    }

    fn finish<T: Element>(&self, name: &str, geometry: Geometry, isa: Isa, choice: Choice<T>) -> Plan<T> {
        let Choice { index, verdicts, lines, lowering } = choice;
        let algorithm = verdicts[index].algorithm;
        let format = Format {
            op: geometry.op,
            algorithm,
            isa,
            group: geometry.group,
            weight_shape: geometry.weight_shape(),
            steps: geometry.axes.iter().map(|a| (a.stride, a.dilation)).collect(),
            layout: lowering.layout(),
        };
        let explanation = Explanation {
            layer: format!(
                "{name} {}: X {:?}, W {:?}, group {}, Y {:?}, {} multiply-adds",
                T::DTYPE,
                geometry.input_shape(),
                geometry.weight_shape(),
                geometry.group,
                geometry.output_shape(),
                geometry.macs()
            ),
            picked: algorithm,
            details: lowering.describe(),
            kernel: String::from(lowering.kernel()),
            isa,
            threads: self.threads,
            tasks: lowering.tasks(),
            workspace_bytes: lines * size_of::<Line>() * self.threads,
            packed_bytes: (lowering.packed_len(&geometry) + geometry.out_channels) * size_of::<T::Acc>(),
            verdicts,
        };
        Plan { geometry, format, lowering, lines, threads: self.threads, explanation }
    }
}

/// An estimate in nanoseconds, printed with some digits whatever its size.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1e4 { write!(f, "{:.0} ns", self.0) } else { write!(f, "{:.0} us", self.0 / 1e3) }
    }
}

/// The pick among the candidates.
struct Choice<T: Element> {
    /// Its place in the list.
    index: usize,
    verdicts: Vec<Verdict>,
    /// Scratch lines of a task.
    lines: usize,
    lowering: Box<dyn Lowering<T>>,
}
