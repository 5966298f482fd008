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

/// Which algorithm was the fastest, layer by layer: made by
/// [`Planner::tune`](super::Planner::tune), used by [`Planner::tuning`](super::Planner::tuning).
///
/// A layer is an operator with its sizes, an element type, an ISA, a number of threads and an
/// accuracy. `Display` and `FromStr` save it as text, a line a layer, and load it: on a machine of
/// the same kind, since another one's figures are others. What is loaded only orders algorithms:
/// whatever it says, results are right.
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

    /// One measured layer.
    #[cfg(feature = "std")]
    pub(super) fn of(layer: &Layer<'_>, algorithm: Algorithm) -> Self {
        Self { picks: [(layer.to_string(), algorithm)].into() }
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
    /// [`InvalidTuning`](crate::ErrorKind::InvalidTuning) with the number of the line. Empty lines
    /// are skipped.
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

/// What a pick depends on, but for the limit of the workspace: a plan within a limit that the pick
/// exceeds falls back on estimates.
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
