//! A table of algorithms that were measured to be the fastest. The planner prefers them to its
//! estimates.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use convoke_kernels::Isa;

use crate::choice::{Accuracy, Algorithm};
use crate::error::{Error, bail};
use crate::{DType, Geometry, Layout};

/// The first line of a saved tuning. The number is the version of the form of the lines after it.
const HEAD: &str = "convoke tuning 1";

/// The fastest algorithm of each layer that was measured. [`Planner::tune`](super::Planner::tune)
/// fills it, and [`Planner::tuning`](super::Planner::tuning) uses it.
///
/// A layer here is an operator with its sizes, an element type, an ISA, a number of threads and
/// an accuracy. `Display` saves a tuning as text, one line for each layer, and `FromStr` loads
/// it. Load it on machines of the same kind, because on another kind other algorithms may be the
/// fastest. A tuning only chooses among algorithms: results are right whatever it says.
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

    /// Adds all layers of `other`. Where both have a layer, `other`'s algorithm is kept.
    pub fn merge(&mut self, other: Self) {
        self.picks.extend(other.picks);
    }

    /// A tuning of one measured layer.
    #[cfg(feature = "std")]
    pub(super) fn of(key: &TuningKey<'_>, algorithm: Algorithm) -> Self {
        Self { picks: [(key.to_string(), algorithm)].into() }
    }

    pub(super) fn pick(&self, key: &TuningKey<'_>) -> Option<Algorithm> {
        if self.is_empty() {
            return None; // Without making the text.
        }
        self.picks.get(&key.to_string()).copied()
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
    /// [`InvalidTuning`](crate::ErrorKind::InvalidTuning) with the number of the line. Empty
    /// lines are skipped.
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

/// What the fastest algorithm depends on, and so the key of a [`Tuning`]. The workspace limit is
/// not in it: if a pick exceeds the limit, the plan falls back on estimates.
pub(super) struct TuningKey<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) dtype: DType,
    pub(super) isa: Isa,
    pub(super) threads: usize,
    pub(super) accuracy: Accuracy,
}

impl fmt::Display for TuningKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { geometry, dtype, isa, threads, accuracy } = self;
        let Geometry { op, batch, group, in_channels, out_channels, ref axes, x_layout, y_layout } = **geometry;
        let accuracy = match accuracy {
            Accuracy::Strict => "strict",
            Accuracy::Standard => "standard",
            Accuracy::Fast => "fast",
        };
        write!(
            f,
            "{op} {dtype} {isa} threads {threads} {accuracy}: N {batch} C {in_channels} M {out_channels} group {group}"
        )?;
        for (name, layout) in [("X", x_layout), ("Y", y_layout)] {
            if layout != Layout::default() {
                write!(f, ", {name} {layout}")?;
            }
        }
        axes.iter().try_for_each(|a| {
            let (from, to) = (a.pad_begin, a.pad_end);
            write!(f, ", {} -> {} k{} s{} d{} p{from}:{to}", a.input, a.output, a.kernel, a.stride, a.dilation)
        })
    }
}
