//! The options of a session: `ep.convoke.NAME` in its configuration.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;

use convoke::{Accuracy, Isa, Planner};

use crate::api::{Failure, Level, Result};

/// The provider's name. onnxruntime makes [`PREFIX`] of it.
pub(crate) const NAME: &CStr = c"Convoke";

/// How onnxruntime begins the names of this provider's options: `ep.`, the provider's name in
/// lower case, and a dot.
pub(crate) const PREFIX: &str = "ep.convoke.";

/// The names of all options, with what their values are.
const NAMES: [(&str, &str); 9] = [
    ("threads", "a number of threads from 1 to 1024"),
    ("accuracy", "strict, standard or fast"),
    ("isa", "the name of an instruction set, as avx2"),
    ("workspace_limit", "a number of bytes"),
    ("tuning_file", "a path"),
    ("tune", "0 or 1"),
    ("share_weights", "0 or 1"),
    ("layout", "auto, first or last"),
    ("log_level", "verbose, info, warning or error"),
];

/// Threads that a layer is split for, at most.
const MOST_THREADS: usize = convoke::Planner::MOST_THREADS;

const ACCURACIES: [(&str, Accuracy); 3] =
    [("strict", Accuracy::Strict), ("standard", Accuracy::Standard), ("fast", Accuracy::Fast)];
const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

/// How tensors lie between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Channels first, as ONNX has them: each layer is a node of its own.
    First,
    /// Channels last, wherever a layer stands behind another one.
    Last,
    /// What is estimated to be faster.
    Auto,
}

impl Layout {
    const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("first", Self::First), ("last", Self::Last)];
}

/// What a user can set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub(crate) threads: usize,
    pub(crate) accuracy: Accuracy,
    pub(crate) isa: Option<Isa>,
    pub(crate) workspace_limit: usize,
    pub(crate) tuning_file: Option<PathBuf>,
    pub(crate) tune: bool,
    pub(crate) share_weights: bool,
    pub(crate) layout: Layout,
    pub(crate) log_level: Option<Level>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // As many as onnxruntime's pool has by default, but no more than a container's quota lets run.
            threads: std::thread::available_parallelism()
                .map_or(MOST_THREADS, usize::from)
                .min(num_cpus::get_physical())
                .clamp(1, MOST_THREADS),
            accuracy: Accuracy::default(),
            isa: None,
            workspace_limit: usize::MAX,
            tuning_file: None,
            tune: false,
            share_weights: false,
            layout: Layout::Auto,
            log_level: None,
        }
    }
}

impl Options {
    /// From the configuration of a session, whose other entries are not looked at.
    pub(crate) fn parse(entries: &BTreeMap<String, String>) -> Result<Self> {
        let mut options = Self::default();
        for (key, value) in entries {
            if let Some(name) = key.strip_prefix(PREFIX) {
                options.set(name, value)?;
            }
        }
        if options.tune && options.tuning_file.is_none() {
            return Err(Failure::invalid("the option tune measures layers for a file: set tuning_file, too"));
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "threads" => self.threads = threads(name, value)?,
            "accuracy" => self.accuracy = choice(name, value, &ACCURACIES)?,
            "isa" => self.isa = Some(isa(name, value)?),
            "workspace_limit" => self.workspace_limit = number(name, value)?,
            "tuning_file" => self.tuning_file = Some(value.into()),
            "tune" => self.tune = choice(name, value, &SWITCH)?,
            "share_weights" => self.share_weights = choice(name, value, &SWITCH)?,
            "layout" => self.layout = choice(name, value, &Layout::ALL)?,
            "log_level" => self.log_level = Some(choice(name, value, &Level::ALL)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// A planner with these options.
    pub(crate) fn planner(&self) -> Planner {
        let planner = Planner::new();
        let planner = self.isa.map_or(planner.clone(), |isa| planner.isa(isa));
        planner.threads(self.threads).accuracy(self.accuracy).workspace_limit(self.workspace_limit)
    }
}

fn number(name: &str, value: &str) -> Result<usize> {
    value.parse().or_else(|_| bad(name, value))
}

fn threads(name: &str, value: &str) -> Result<usize> {
    let threads = number(name, value)?;
    if (1..=MOST_THREADS).contains(&threads) { Ok(threads) } else { bad(name, value) }
}

fn isa(name: &str, value: &str) -> Result<Isa> {
    let failure =
        |reason: &dyn std::fmt::Display| Failure::invalid(format_args!("the option {name} is {value:?}: {reason}"));
    let isa: Isa = value.parse().map_err(|error| failure(&error))?;
    isa.absence().map_or(Ok(isa), |absence| Err(failure(&absence)))
}

fn choice<V: Copy>(name: &str, value: &str, choices: &[(&str, V)]) -> Result<V> {
    choices.iter().find(|(text, _)| *text == value).map_or_else(|| bad(name, value), |(_, choice)| Ok(*choice))
}

fn bad<V>(name: &str, value: &str) -> Result<V> {
    let (_, what) = NAMES.iter().find(|(known, _)| *known == name).expect("a known option");
    Err(Failure::invalid(format_args!("the option {name} is {value:?}; it must be {what}")))
}

fn unknown(name: &str) -> Failure {
    let distance = |known: &str| strsim::damerau_levenshtein(known, &name.to_ascii_lowercase());
    let (nearest, _) = NAMES.into_iter().min_by_key(|(known, _)| distance(known)).expect("there are options");
    let names = NAMES.map(|(known, _)| known).join(", ");
    let hint = if distance(nearest) <= 3 { format!("Did you mean {nearest}? ") } else { String::new() };
    Failure::invalid(format_args!("there is no option {name}. {hint}The options are {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> std::result::Result<Options, String> {
        let entries = entries.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Options::parse(&entries).map_err(|failure| failure.to_string())
    }

    #[test]
    fn no_more_threads_than_a_container_has() {
        assert!(Options::default().threads <= std::thread::available_parallelism().unwrap().get());
    }

    #[test]
    fn options_are_read_and_others_left_alone() {
        let all = [
            ("ep.convoke.threads", "3"),
            ("ep.convoke.accuracy", "strict"),
            ("ep.convoke.isa", "portable"),
            ("ep.convoke.workspace_limit", "4096"),
            ("ep.convoke.tuning_file", "a/b.txt"),
            ("ep.convoke.tune", "1"),
            ("ep.convoke.share_weights", "1"),
            ("ep.convoke.layout", "last"),
            ("ep.convoke.log_level", "info"),
            ("session.intra_op.allow_spinning", "0"),
            ("ep.another.thread", "x"),
        ];
        let want = Options {
            threads: 3,
            accuracy: Accuracy::Strict,
            isa: Some(Isa::Portable),
            workspace_limit: 4096,
            tuning_file: Some("a/b.txt".into()),
            tune: true,
            share_weights: true,
            layout: Layout::Last,
            log_level: Some(Level::Info),
        };
        assert_eq!(parse(&all), Ok(want));
        assert_eq!(parse(&[]), Ok(Options::default()));
        assert_eq!(parse(&[("ep.convoke.threads", "1024")]).unwrap().threads, MOST_THREADS);
    }

    #[test]
    fn every_option_has_a_description() {
        for (name, _) in NAMES {
            let key = format!("{PREFIX}{name}");
            match parse(&[(&key, "\u{1}")]) {
                Ok(options) => assert_eq!(options.tuning_file, Some("\u{1}".into())),
                Err(error) => assert!(error.contains(name) && !error.contains("there is no option"), "{error}"),
            }
        }
    }

    #[test]
    fn mistakes_are_errors_that_name_what_is_wrong() {
        for (name, value, part) in [
            ("thread", "2", "Did you mean threads?"),
            ("Threads", "2", "Did you mean threads?"),
            ("unheard-of", "2", "The options are threads"),
            ("threads", "0", "the option threads is \"0\"; it must be a number of threads from 1 to 1024"),
            ("threads", "1025", "the option threads is \"1025\"; it must be a number of threads from 1 to 1024"),
            ("threads", "99999999999999999999", "from 1 to 1024"),
            ("threads", "two", "the option threads is \"two\""),
            ("accuracy", "Strict", "strict, standard or fast"),
            ("isa", "sse9", "sse9"),
            ("isa", if Isa::Neon.is_available() { "avx2" } else { "neon" }, "architecture"),
            ("workspace_limit", "-1", "a number of bytes"),
            ("tune", "yes", "0 or 1"),
            ("tune", "1", "set tuning_file, too"),
            ("layout", "nhwc", "auto, first or last"),
            ("log_level", "loud", "verbose, info, warning or error"),
        ] {
            let error = parse(&[(&format!("{PREFIX}{name}"), value)]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
