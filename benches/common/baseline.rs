//! What changed since a baseline, by the best times. Criterion's own verdict tests all samples,
//! and `--quick` takes too few samples for it to find a change.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The least relative change of a time that is printed.
const LEAST_CHANGE: f64 = 0.05;

/// The best times of a bench's rows in seconds, and those of the requested baseline.
pub struct Baseline {
    /// The file to save them in, with `--save-baseline`.
    save: Option<PathBuf>,
    /// The name and the times of the baseline, with `--baseline`.
    before: Option<(String, BTreeMap<String, f64>)>,
    now: BTreeMap<String, f64>,
}

impl Baseline {
    /// The baseline of the bench with the name `bench`, from criterion's options.
    pub fn from_args(bench: &str) -> Self {
        let path = |name: &String| directory().join(format!("{bench}.{name}.tsv"));
        Self {
            save: option(&["--save-baseline", "-s"]).map(|name| path(&name)),
            before: option(&["--baseline", "--baseline-lenient", "-b"]).map(|name| (name.clone(), read(&path(&name)))),
            now: BTreeMap::new(),
        }
    }

    pub fn record(&mut self, row: String, seconds: f64) {
        self.now.insert(row, seconds);
    }

    /// Saves the times, and prints what changed. Rows that a filter left out keep their times in
    /// a saved baseline.
    pub fn close(self) {
        if let Some(path) = &self.save {
            let mut times = read(path);
            times.extend(self.now.clone());
            let lines: String = times.iter().map(|(row, seconds)| format!("{row}\t{seconds:e}\n")).collect();
            let saved = fs::create_dir_all(directory()).and_then(|()| fs::write(path, lines));
            saved.unwrap_or_else(|error| eprintln!("{}: {error}", path.display()));
        }
        let Some((name, before)) = &self.before else { return };
        let changes = self.now.iter().filter_map(|(row, now)| Some((row, *before.get(row)?, *now)));
        let (changed, same): (Vec<_>, Vec<_>) =
            changes.partition(|(_, before, now)| (now / before - 1.0).abs() > LEAST_CHANGE);
        println!("\nBest times beside {name}'s: {} rows within {:.0} %", same.len(), 100.0 * LEAST_CHANGE);
        for (row, before, now) in changed {
            let change = 100.0 * (now / before - 1.0);
            println!("{row:<64} {:>12.2} us {:>12.2} us {change:>+7.1} %", 1e6 * before, 1e6 * now);
        }
        let unknown = self.now.keys().filter(|row| !before.contains_key(*row)).count();
        if unknown > 0 {
            println!("{unknown} rows are not in {name}");
        }
    }
}

/// The times of a baseline; none if it was not saved.
fn read(path: &Path) -> BTreeMap<String, f64> {
    let row = |line: &str| {
        let (row, seconds) = line.split_once('\t')?;
        Some((row.to_owned(), seconds.parse().ok()?))
    };
    fs::read_to_string(path).unwrap_or_default().lines().filter_map(row).collect()
}

/// The folder in which criterion keeps its own baselines.
fn directory() -> PathBuf {
    let home = std::env::var_os("CRITERION_HOME").map(PathBuf::from);
    let target = || std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    home.unwrap_or_else(|| target().join("criterion"))
}

/// The value of an option, given as `--option value` or `--option=value`.
fn option(names: &[&str]) -> Option<String> {
    let mut arguments = std::env::args();
    while let Some(argument) = arguments.next() {
        match argument.split_once('=') {
            Some((name, value)) if names.contains(&name) => return Some(value.to_owned()),
            None if names.contains(&argument.as_str()) => return arguments.next(),
            _ => {}
        }
    }
    None
}
