//! `report`: the speed and the error of each layer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use convoke::{DType, Isa, Planner, Workspace};
use convoke_tools::check::{self, Worst};
use convoke_tools::data::{Operands, Scalar, tensor};
use convoke_tools::peak::peak;
use convoke_tools::shapes::{self, Kind, Layer, describe, flops};
use convoke_tools::timing::Timing;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{Verdict, is_rejection};
use crate::options::{BAD, Choice, DTypeName, Team, parse_threads, with_element};

/// Elements of each output that are compared with the reference.
const SAMPLES: usize = 500;

/// Time the layers of published networks, and check each against the reference
///
/// Each layer is planned, its weights are packed, and then it is run again and again. Planning
/// and packing are outside the timed part; input and output are plain NCHW, caches are warm.
///
/// The columns:
///
///   geometry      X -> Y, kernel k, stride s, pads p (begin:end), dilation d, groups g
///   algorithm     what the plan picked
///   kernel        instruction set and micro-kernel
///   best, median  time of one run
///   GFLOP/s       of the best time; two operations a multiply-add, taps on padding included
///   peak          share of the FMA peak: number of threads times the rate of the fastest
///                 micro-kernel from the L1 cache on one core, measured at the start
///   workspace     bytes that a run borrows
///   packed        bytes of the packed weights and bias
///   error         largest distance from the double-precision reference, over a sample of
///                 some 500 output elements with all corners and every face
///   of bound      largest share of the error that rounding can explain,
///                 K * eps * sum |x| |w|; above 1 is wrong
///
/// The exit status is 1 if a result was wrong.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    #[command(flatten)]
    choice: Choice,
    /// Element type
    #[arg(long, value_enum, default_value_t = DTypeName::F32)]
    dtype: DTypeName,
    /// Only layers whose name contains one of these
    #[arg(long, value_name = "SUBSTR,..", value_delimiter = ',')]
    filter: Vec<String>,
    /// Seconds to spend on timing each layer
    #[arg(long, default_value = "0.2", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the layers' names and geometries, and run nothing
    #[arg(long)]
    list: bool,
    /// Files in the form of benches/shapes/*.csv, in place of the built-in layers
    #[arg(long, value_name = "FILE", num_args = 1..)]
    shapes: Vec<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

/// All figures of one report.
#[derive(Debug, Serialize)]
struct Report {
    /// What the figures hold for.
    machine: Machine,
    layers: Vec<Record>,
    /// Layers that the forced algorithm does not accept.
    rejected: Vec<String>,
    summary: Vec<Summary>,
}

/// Where and how the layers were run.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    dtype: String,
    threads: usize,
    /// GFLOP/s of one core, by instruction set.
    fma_peak: BTreeMap<String, f64>,
}

/// The figures of one layer.
#[derive(Debug, Serialize)]
struct Record {
    name: String,
    kind: String,
    geometry: String,
    algorithm: String,
    isa: String,
    kernel: String,
    seconds_best: f64,
    seconds_median: f64,
    reps: usize,
    gflops: f64,
    share_of_peak: f64,
    workspace_bytes: usize,
    packed_bytes: usize,
    max_error: f64,
    error_of_bound: f64,
    within_bound: bool,
}

/// The geometric mean of a kind of layers.
#[derive(Debug, Serialize)]
struct Summary {
    kind: String,
    layers: usize,
    gflops: f64,
    share_of_peak: f64,
}

/// Runs the layers, and prints the report.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let layers = args.layers()?;
    if args.list {
        for layer in &layers {
            println!("{}: {} {}", layer.name, layer.op, describe(&layer.geometry()?));
        }
        return Ok(Verdict::Good);
    }
    let report = with_element!(args.dtype, T => args.measure::<T>(&layers))?;
    ensure!(!report.layers.is_empty(), "no layer was run: the algorithm accepts none of them");
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(Verdict::from_good(report.layers.iter().all(|record| record.within_bound)))
}

impl Args {
    /// The layers that are asked for.
    fn layers(&self) -> Result<Vec<Layer>> {
        let mut layers = Vec::new();
        for path in &self.shapes {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).with_context(|| name.clone())?;
            layers.extend(shapes::read(&name, &text)?);
        }
        if self.shapes.is_empty() {
            layers = shapes::built_in();
        }
        layers.retain(|l| self.filter.is_empty() || self.filter.iter().any(|part| l.name.contains(part)));
        ensure!(!layers.is_empty(), "no layer's name contains {}", self.filter.join(" or "));
        Ok(layers)
    }

    fn measure<T: Scalar>(&self, layers: &[Layer]) -> Result<Report> {
        let planner = self.choice.planner()?;
        let team = Team::new(self.threads)?;
        let mut peaks = Peaks { dtype: self.dtype.into(), by_isa: BTreeMap::new() };
        let bar = progress_bar(layers.len());
        let mut records = Vec::new();
        let mut rejected = Vec::new();
        for layer in layers {
            bar.set_message(layer.name.clone());
            match self.run_layer::<T>(layer, &planner, &team, &mut peaks) {
                Ok(record) => records.push(record),
                Err(error) if self.choice.algorithm.is_some() && is_rejection(&error) => {
                    rejected.push(layer.name.clone());
                }
                Err(error) => bail!(error.context(format!("layer {}", layer.name))),
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let machine = Machine {
            cpu: cpu_name(),
            dtype: peaks.dtype.to_string(),
            threads: self.threads,
            fma_peak: peaks.by_isa.iter().map(|(isa, peak)| (isa.to_string(), *peak)).collect(),
        };
        Ok(Report { machine, summary: summarise(&records), layers: records, rejected })
    }

    fn run_layer<T: Scalar>(&self, layer: &Layer, planner: &Planner, team: &Team, peaks: &mut Peaks) -> Result<Record> {
        let plan = planner.clone().threads(self.threads).plan::<T>(layer.operator(), &layer.x)?;
        let geometry = plan.geometry();
        let peak = self.threads as f64 * peaks.of(plan.isa())?;
        let operands = Operands::<T>::new(geometry);
        let packed = plan.pack(&operands.w, Some(&operands.b))?;
        let mut y = tensor(std::iter::repeat_n(T::from_f64(f64::NAN), geometry.output_len()));
        let mut workspace = Workspace::for_plan(&plan)?;
        let timing = team.install(|threads| {
            Timing::measure(self.seconds, || plan.run(&operands.x, &packed, &mut y, &mut workspace, threads))
        })?;
        let worst: Worst = check::against_reference(geometry, plan.algorithm(), &operands, &y, SAMPLES);
        let gflops = flops(geometry) / timing.min / 1e9;
        Ok(Record {
            name: layer.name.clone(),
            kind: Kind::of(geometry).to_string(),
            geometry: format!("{} {}", geometry.op, describe(geometry)),
            algorithm: plan.algorithm().to_string(),
            isa: plan.isa().to_string(),
            kernel: plan.kernel().to_owned(),
            seconds_best: timing.min,
            seconds_median: timing.median,
            reps: timing.reps,
            gflops,
            share_of_peak: gflops / peak,
            workspace_bytes: plan.workspace_bytes(),
            packed_bytes: plan.packed_bytes(),
            max_error: worst.error,
            error_of_bound: worst.of_tolerance,
            within_bound: worst.is_within(),
        })
    }
}

/// The FMA peaks of one core, each measured when it is first asked for.
struct Peaks {
    dtype: DType,
    by_isa: BTreeMap<Isa, f64>,
}

impl Peaks {
    /// GFLOP/s.
    fn of(&mut self, isa: Isa) -> Result<f64> {
        match self.by_isa.entry(isa) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(entry) => {
                Ok(*entry.insert(peak(self.dtype, isa).with_context(|| format!("no kernel for {isa}"))?))
            }
        }
    }
}

/// The geometric means of each kind of layers that occurs, and of all.
fn summarise(records: &[Record]) -> Vec<Summary> {
    let mut kinds = BTreeMap::<&str, Vec<&Record>>::new();
    for record in records {
        kinds.entry(&record.kind).or_default().push(record);
    }
    let all = records.iter().collect();
    let mean = |(kind, records): (&str, Vec<&Record>)| Summary {
        kind: kind.to_owned(),
        layers: records.len(),
        gflops: geometric_mean(records.iter().map(|r| r.gflops)),
        share_of_peak: geometric_mean(records.iter().map(|r| r.share_of_peak)),
    };
    kinds.into_iter().chain([("all", all)]).map(mean).collect()
}

fn geometric_mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(f64::ln).sum::<f64>() / count).exp()
}

/// A bar on standard error; invisible where that is not a terminal.
fn progress_bar(layers: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len}, {eta} left  {msg}").expect("a valid template");
    ProgressBar::new(layers as u64).with_style(style)
}

fn print(report: &Report) {
    let Machine { cpu, dtype, threads, fma_peak } = &report.machine;
    let plural = if *threads == 1 { "" } else { "s" };
    let peaks: Vec<_> = fma_peak.iter().map(|(isa, peak)| format!("{isa} {peak:.1} GFLOP/s")).collect();
    println!("{cpu}, {dtype}, {threads} thread{plural}; FMA peak of one core: {}\n", peaks.join(", "));
    let header = [
        "layer",
        "geometry",
        "algorithm",
        "kernel",
        "best",
        "median",
        "GFLOP/s",
        "peak",
        "workspace",
        "packed",
        "error",
        "of bound",
    ];
    let row = |r: &Record| {
        [
            r.name.clone(),
            r.geometry.clone(),
            r.algorithm.clone(),
            format!("{} {}", r.isa, r.kernel),
            seconds(r.seconds_best),
            seconds(r.seconds_median),
            format!("{:.1}", r.gflops),
            percent(r.share_of_peak),
            bytes(r.workspace_bytes),
            bytes(r.packed_bytes),
            format!("{:.1e}", r.max_error),
            format!("{:.3}", r.error_of_bound),
        ]
    };
    println!("{}\n", table(&header, report.layers.iter().map(row), 4));
    let row =
        |s: &Summary| [s.kind.clone(), s.layers.to_string(), format!("{:.1}", s.gflops), percent(s.share_of_peak)];
    println!(
        "Geometric means by kind of layer:\n{}",
        table(&["kind", "layers", "GFLOP/s", "peak"], report.summary.iter().map(row), 1)
    );
    if !report.rejected.is_empty() {
        println!("\nNot accepted by the algorithm: {}", report.rejected.join(", "));
    }
    for wrong in report.layers.iter().filter(|r| !r.within_bound) {
        anstream::println!(
            "\n{BAD}WRONG{BAD:#} {}: error {:.1e}, {:.1} times its bound",
            wrong.name,
            wrong.max_error,
            wrong.error_of_bound
        );
    }
}

/// A table whose columns from `numbers` on are aligned to the right.
fn table<const N: usize>(header: &[&str; N], rows: impl Iterator<Item = [String; N]>, numbers: usize) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header)
        .add_rows(rows);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in the unit that suits it.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A size in the unit that suits it.
fn bytes(bytes: usize) -> String {
    match bytes as f64 {
        b if b < 1024.0 => format!("{b} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{:.1} MiB", b / (1024.0 * 1024.0)),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The CPU's name, where the system tells.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!([seconds(1.25e-5), seconds(0.0123), seconds(2.0)], ["12.5 us", "12.30 ms", "2.00 s"]);
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 20)], ["12 B", "1.5 KiB", "3.0 MiB"]);
    }

    #[test]
    fn geometric_mean_of_known_numbers() {
        assert!((geometric_mean([1.0, 10.0, 100.0].into_iter()) - 10.0).abs() < 1e-9);
    }
}
