//! What the examples share: ResNet's layers, timing in turn, and a table of the results.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use convoke::Geometry;
pub use convoke_tools::data::{Operands, uniform};
pub use convoke_tools::shapes::Layer;
use convoke_tools::shapes::{built_in, flops};
use convoke_tools::timing::geometric_mean;

/// For how long each layer or model is timed, which is `--seconds` of a program's arguments or 2,
/// and the other arguments.
///
/// # Errors
/// If `--seconds` is no time.
pub fn arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<(Duration, Vec<OsString>)> {
    let (mut duration, mut others) = (Duration::from_secs(2), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let seconds = arguments.next().and_then(|seconds| seconds.to_str()?.parse().ok());
            duration = Duration::try_from_secs_f64(seconds.context("--seconds must be followed by a number")?)
                .context("--seconds")?;
        } else {
            others.push(argument);
        }
    }
    Ok((duration, others))
}

/// The layers of ResNet-50, of one image.
#[must_use]
pub fn resnet50() -> Vec<Layer> {
    built_in().into_iter().filter(|layer| layer.network() == "resnet50" && layer.x[0] == 1).collect()
}

/// The shortest run of each of two computations, which take turns for a while: what slows the
/// machine down for some time slows both.
///
/// # Errors
/// The first error of either.
pub fn in_turn(
    duration: Duration,
    mut one: impl FnMut() -> Result<()>,
    mut other: impl FnMut() -> Result<()>,
) -> Result<[Duration; 2]> {
    let mut least = [Duration::MAX; 2];
    let begin = Instant::now();
    // The first round only warms caches up.
    for round in 0.. {
        if round > 3 && begin.elapsed() >= duration {
            break;
        }
        let computations: [&mut dyn FnMut() -> Result<()>; 2] = [&mut one, &mut other];
        for (least, run) in least.iter_mut().zip(computations) {
            for _ in 0..3 {
                let start = Instant::now();
                run()?;
                if round > 0 {
                    *least = (*least).min(start.elapsed());
                }
            }
        }
    }
    Ok(least)
}

/// The largest difference of two results, as a multiple of the root mean square of the second;
/// infinite if one of them has a NaN.
#[must_use]
pub fn difference(got: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(got.len(), wanted.len(), "results of one layer have one length");
    let squares: f64 = wanted.iter().map(|v| f64::from(*v).powi(2)).sum();
    let scale = (squares / wanted.len().max(1) as f64).sqrt();
    let largest = got
        .iter()
        .zip(wanted)
        .map(|(a, b)| f64::from((a - b).abs()))
        .fold(0.0, |most, difference| if difference.is_nan() { f64::INFINITY } else { f64::max(most, difference) });
    if largest == 0.0 { 0.0 } else { largest / scale }
}

/// The number of lines of the program of docs/linking.md that has some text, if a test has the same
/// lines.
///
/// # Panics
/// If the page has no such program.
#[must_use]
pub fn lines_of_page_in(test: &str, text: &str) -> Option<usize> {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let page = include_str!("../../../../docs/linking.md");
    let mut blocks = page.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("```").next());
    let program = lines(blocks.find(|block| block.contains(text)).expect("the page has the program"));
    lines(test).windows(program.len()).any(|own| own == program).then_some(program.len())
}

/// The results of layers or models, as a table in Markdown.
#[derive(Debug)]
pub struct Table {
    engine: &'static str,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    seconds: [f64; 2],
    /// Floating-point operations.
    flops: Option<f64>,
    difference: f64,
}

impl Table {
    /// An empty table for an engine with its own convolutions, and with convoke's.
    #[must_use]
    pub fn new(engine: &'static str) -> Self {
        Self { engine, rows: Vec::new() }
    }

    /// Adds a layer: the times of the engine and of convoke, and the difference of the results.
    pub fn layer(&mut self, name: &str, geometry: &Geometry, times: [Duration; 2], difference: f64) {
        self.add(name, Some(flops(geometry)), times, difference);
    }

    /// Adds a whole model.
    pub fn model(&mut self, name: &str, times: [Duration; 2], difference: f64) {
        self.add(name, None, times, difference);
    }

    /// # Panics
    /// If the results differ by more than rounding: a wrong result is no faster one.
    fn add(&mut self, name: &str, flops: Option<f64>, times: [Duration; 2], difference: f64) {
        assert!(difference < 1e-2, "{name}: the results differ by {difference:.0e}");
        let seconds = times.map(|time| time.as_secs_f64());
        self.rows.push(Row { name: name.to_owned(), seconds, flops, difference });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | {}, ms | convoke, ms | convoke, GFLOP/s | times as fast | difference |", self.engine)?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|")?;
        for Row { name, seconds: [own, ours], flops, difference } in &self.rows {
            let rate = flops.map_or(String::new(), |flops| format!("{:.0}", flops / ours / 1e9));
            let [own_ms, ours_ms, times] = [own * 1e3, ours * 1e3, own / ours];
            writeln!(f, "| {name} | {own_ms:.3} | {ours_ms:.3} | {rate} | {times:.2} | {difference:.0e} |")?;
        }
        if self.rows.len() > 1 {
            let mean = geometric_mean(self.rows.iter().map(|row| row.seconds[0] / row.seconds[1]));
            let slower = self.rows.iter().filter(|row| row.seconds[1] > row.seconds[0]).count();
            writeln!(f, "\nGeometric mean {mean:.2}; convoke is slower on {slower} of {}.", self.rows.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_a_time_and_others() {
        let parsed = |line: &str| arguments(line.split_whitespace().map(OsString::from)).ok();
        assert_eq!(parsed(""), Some((Duration::from_secs(2), vec![])));
        assert_eq!(parsed("a --seconds 0.5 b"), Some((Duration::from_millis(500), vec!["a".into(), "b".into()])));
        for wrong in ["--seconds", "--seconds x", "--seconds -1", "--seconds inf", "--seconds 1e300"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn there_are_layers_of_resnet() {
        let layers = resnet50();
        assert_eq!(layers.len(), 13);
        assert!(layers.iter().all(|layer| layer.geometry().is_ok_and(|geometry| geometry.batch == 1)));
    }

    #[test]
    fn both_run_and_the_shortest_run_counts() {
        let (mut slow, mut fast) = (0, 0);
        let sleep = |count: &mut u32, ms| {
            *count += 1;
            std::thread::sleep(Duration::from_millis(if *count == 8 { 1 } else { ms }));
            Ok(())
        };
        let least = in_turn(Duration::ZERO, || sleep(&mut slow, 20), || sleep(&mut fast, 5)).unwrap();
        assert!(least[0] < Duration::from_millis(20) && least[1] < Duration::from_millis(5), "{least:?}");
        assert_eq!((slow, fast), (12, 12));
    }

    #[test]
    fn differences_are_relative() {
        assert_eq!(difference(&[2.0, 4.0], &[2.0, 4.0]), 0.0);
        assert!((difference(&[3.0, -3.5], &[3.0, -3.0]) - 0.5 / 3.0).abs() < 1e-9);
        assert_eq!(difference(&[], &[]), 0.0);
        assert_eq!(difference(&[f32::NAN, 1.0], &[1.0, 1.0]), f64::INFINITY);
    }

    #[test]
    fn losses_are_shown() {
        let mut table = Table::new("engine");
        let geometry = resnet50()[0].geometry().unwrap();
        table.layer("slow", &geometry, [Duration::from_millis(1), Duration::from_millis(2)], 1e-6);
        table.model("fast", [Duration::from_millis(8), Duration::from_millis(1)], 0.0);
        let text = table.to_string();
        assert!(text.contains("| slow | 1.000 | 2.000 | 118 | 0.50 | 1e-6 |"), "{text}");
        assert!(text.contains("| fast | 8.000 | 1.000 |  | 8.00 | 0e0 |"), "{text}");
        assert!(text.ends_with("Geometric mean 2.00; convoke is slower on 1 of 2.\n"), "{text}");
    }
}
