//! `report`: the speed, the limit and the error of each layer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use convoke::{DType, Isa};
use convoke_tools::data::Scalar;
use convoke_tools::shapes::{self, Layer, describe};
use serde::Serialize;

use super::{Verdict, is_rejection};
use crate::interrupt;
use crate::machine::Machine;
use crate::options::{BAD, Choice, DTypeName, parse_seconds, parse_threads, with_element};
use crate::output::text::{geometric_mean, percent, progress_bar, table};
use crate::output::{chart, page};
use crate::session::{COLUMNS, Figures, Session};
use crate::show;

/// Time the layers of published networks, and check each against the reference
///
/// Each layer is planned, its weights are packed, and then it is run again and again. Planning
/// and packing are outside the timed part; input and output are plain NCHW, caches are warm.
///
/// Beside the columns that are explained at the end:
///
///   error         largest distance from the double-precision reference, over a sample of
///                 some 500 output elements with all corners and every face
///   of bound      largest share of the error that rounding can explain,
///                 K * eps * sum |x| |w|; above 1 is wrong
///
/// With --output DIR, the layers are also run with the other instruction sets and numbers of
/// threads of this machine, and DIR gets report.json, layers.csv, the pictures as SVG files, and
/// index.html with all of it in one file.
///
/// Ctrl-C ends it after the layer at hand; what was measured is printed and written.
/// The exit status is 1 if a result was wrong, 130 if it was interrupted.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_long_help = COLUMNS)]
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
    /// Write a page, pictures, JSON and CSV into this folder; compare instruction sets and threads
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Print the layers' names and geometries, and run nothing
    #[arg(long)]
    list: bool,
    /// Files in the form of benches/shapes/*.csv, in place of the built-in layers
    #[arg(long, value_name = "FILE", num_args = 1..)]
    shapes: Vec<PathBuf>,
}

/// All figures of one report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What the figures hold for.
    pub(crate) machine: Machine,
    pub(crate) layers: Vec<Record>,
    /// Layers that the forced algorithm does not accept.
    pub(crate) rejected: Vec<String>,
    pub(crate) summary: Vec<Summary>,
    /// The same layers with other instruction sets and numbers of threads.
    pub(crate) comparisons: Vec<Series>,
    /// Whether it ended before the last layer.
    pub(crate) interrupted: bool,
}

/// The figures of one layer.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    /// The name's first part.
    pub(crate) network: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// The geometric mean of a kind of layers.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) kind: String,
    pub(crate) layers: usize,
    pub(crate) gflops: f64,
    pub(crate) share_of_peak: f64,
    pub(crate) share_of_limit: f64,
}

/// GFLOP/s of all layers, by name, with one instruction set and number of threads.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) isa: String,
    pub(crate) threads: usize,
    pub(crate) gflops: BTreeMap<String, f64>,
    /// Layers whose results were wrong, with the error as a multiple of its bound.
    pub(crate) wrong: BTreeMap<String, f64>,
}

/// Runs the layers, and prints the report.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let layers = args.layers()?;
    if args.list {
        let line = |layer: &Layer| Ok(format!("{}: {} {}\n", layer.name, layer.op, describe(&layer.geometry()?)));
        let lines = layers.iter().map(line).collect::<Result<String>>()?;
        show(|out| write!(out, "{lines}"))?;
        return Ok(Verdict::Good);
    }
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    interrupt::watch()?;
    let report = with_element!(args.dtype, T => args.measure::<T>(&layers))?;
    if report.layers.is_empty() && !report.interrupted {
        bail!("no layer was run: the algorithm accepts none of them");
    }
    if args.json {
        let json = serde_json::to_string_pretty(&report)?;
        show(|out| writeln!(out, "{json}"))?;
    } else {
        show(|out| print(&report, out))?;
    }
    if let Some(folder) = &args.output {
        write(&report, folder).with_context(|| folder.display().to_string())?;
        eprintln!("written: {}", folder.join("index.html").display());
    }
    Ok(match report.interrupted {
        true => Verdict::Interrupted,
        false => Verdict::from_good(report.is_right()),
    })
}

impl Report {
    /// Whether all results are right, those of the comparisons too.
    fn is_right(&self) -> bool {
        self.layers.iter().all(|record| record.figures.within_bound)
            && self.comparisons.iter().all(|s| s.wrong.is_empty())
    }
}

impl Series {
    fn new(isa: String, threads: usize) -> Self {
        Self { isa, threads, gflops: BTreeMap::new(), wrong: BTreeMap::new() }
    }

    fn add(&mut self, layer: &str, figures: &Figures) {
        self.gflops.insert(layer.to_owned(), figures.gflops);
        if !figures.within_bound {
            self.wrong.insert(layer.to_owned(), figures.error_of_bound);
        }
    }
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
        let dtype: DType = self.dtype.into();
        let mut main = Session::new(self.choice.planner()?, dtype, self.threads, self.seconds)?;
        let mut others = self.others(dtype)?;
        let bar = progress_bar(layers.len());
        let (mut records, mut rejected) = (Vec::new(), Vec::new());
        let mut interrupted = false;
        for layer in layers {
            bar.set_message(layer.name.clone());
            let operator = layer.operator();
            // All of a layer at once, so that a drift of the machine's speed hits what is compared alike.
            match main.run::<T>(&operator, &layer.x) {
                Ok((figures, _)) => {
                    let network = layer.name.split('.').next().unwrap_or_default().to_owned();
                    for (series, session) in &mut others {
                        let (figures, _) = session.run::<T>(&operator, &layer.x)?;
                        series.add(&layer.name, &figures);
                    }
                    records.push(Record { name: layer.name.clone(), network, figures });
                }
                Err(error) if self.choice.algorithm.is_some() && is_rejection(&error) => {
                    rejected.push(layer.name.clone());
                }
                Err(error) => bail!(error.context(format!("layer {}", layer.name))),
            }
            bar.inc(1);
            if interrupt::requested() && records.len() + rejected.len() < layers.len() {
                interrupted = true;
                break;
            }
        }
        bar.finish_and_clear();
        let machine = Machine::new(&dtype.to_string(), main.threads(), main.roofs());
        let mut comparisons: Vec<Series> = others.into_iter().map(|(series, _)| series).collect();
        if let (false, Some(first)) = (comparisons.is_empty(), records.first()) {
            let mut own = Series::new(first.figures.isa.clone(), self.threads);
            records.iter().for_each(|r| own.add(&r.name, &r.figures));
            comparisons.push(own);
        }
        Ok(Report { machine, summary: summarise(&records), layers: records, rejected, comparisons, interrupted })
    }

    /// What the layers are compared with: other instruction sets on as many threads, other numbers of threads with the same instructions.
    fn others(&self, dtype: DType) -> Result<Vec<(Series, Session)>> {
        if self.output.is_none() {
            return Ok(Vec::new());
        }
        let own = self.choice.isa()?;
        let isas = Isa::ALL.into_iter().filter(|&isa| isa != Isa::Portable && isa != own && isa.is_available());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let powers = std::iter::successors(Some(1), |threads| Some(2 * threads)).take_while(|&threads| threads < cores);
        let threads = powers.chain([cores]).filter(|&threads| threads != self.threads);
        let choices = isas.map(|isa| (isa, self.threads)).chain(threads.map(|threads| (own, threads)));
        let session = |(isa, threads): (Isa, usize)| {
            let planner = self.choice.planner()?.isa(isa);
            let series = Series::new(isa.to_string(), threads);
            Ok((series, Session::new(planner, dtype, threads, self.seconds)?))
        };
        choices.map(session).collect()
    }
}

/// The geometric means of each kind of layers that occurs, and of all. A layer without operations has no speed: it would make each mean 0.
fn summarise(records: &[Record]) -> Vec<Summary> {
    let all: Vec<_> = records.iter().map(|r| &r.figures).filter(|f| f.flop > 0.0).collect();
    let mut kinds = BTreeMap::<&str, Vec<&Figures>>::new();
    for figures in &all {
        kinds.entry(&figures.kind).or_default().push(figures);
    }
    let mean = |(kind, figures): (&str, Vec<&Figures>)| Summary {
        kind: kind.to_owned(),
        layers: figures.len(),
        gflops: geometric_mean(figures.iter().map(|f| f.gflops)),
        share_of_peak: geometric_mean(figures.iter().map(|f| f.share_of_peak)),
        share_of_limit: geometric_mean(figures.iter().map(|f| f.share_of_limit)),
    };
    kinds.into_iter().chain([("all", all)]).filter(|(_, figures)| !figures.is_empty()).map(mean).collect()
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}\n{}", report.machine.headline(), report.machine.versions())?;
    for line in report.machine.limits() {
        writeln!(out, "{line}")?;
    }
    let header = [&["layer"][..], &Figures::HEADS, &["error", "of bound"]].concat();
    let row = |r: &Record| {
        [
            &[r.name.clone()][..],
            &r.figures.cells(),
            &[format!("{:.1e}", r.figures.max_error), format!("{:.3}", r.figures.error_of_bound)],
        ]
        .concat()
    };
    writeln!(out, "\n{}\n", table(&header, report.layers.iter().map(row), 4))?;
    let row = |s: &Summary| {
        let count = s.layers.to_string();
        [s.kind.clone(), count, format!("{:.1}", s.gflops), percent(s.share_of_peak), percent(s.share_of_limit)]
    };
    let header = ["kind", "layers", "GFLOP/s", "FMA", "of limit"];
    writeln!(out, "Geometric means by kind of layer:\n{}", table(&header, report.summary.iter().map(row), 1))?;
    if report.layers.iter().any(|r| r.figures.is_winograd()) {
        writeln!(out, "\nWinograd makes fewer multiply-adds than the definition has: its shares may exceed 100 %.")?;
    }
    if !report.rejected.is_empty() {
        writeln!(out, "\nNot accepted by the algorithm: {}", report.rejected.join(", "))?;
    }
    for wrong in report.layers.iter().filter(|r| !r.figures.within_bound) {
        writeln!(
            out,
            "\n{BAD}WRONG{BAD:#} {}: error {:.1e}, {:.1} times its bound",
            wrong.name, wrong.figures.max_error, wrong.figures.error_of_bound
        )?;
    }
    // The last one is the report itself.
    let others = report.comparisons.split_last().map_or(&[][..], |(_, others)| others);
    for Series { isa, threads, wrong, .. } in others {
        for (name, times) in wrong {
            writeln!(
                out,
                "\n{BAD}WRONG{BAD:#} {name} with {isa}, threads: {threads}: {times:.1} times the bound of its error"
            )?;
        }
    }
    Ok(())
}

/// Writes everything that `--output` promises.
fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::write(folder.join("report.json"), serde_json::to_string_pretty(report)?)?;
    write_csv(report, &folder.join("layers.csv"))?;
    let pictures = chart::all(report)?;
    for picture in &pictures {
        fs::write(folder.join(picture.file), &picture.svg)?;
    }
    fs::write(folder.join("index.html"), page::render(report, &pictures))?;
    Ok(())
}

/// The layers, one a line.
fn write_csv(report: &Report, path: &Path) -> Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    writer.write_record([
        "name",
        "kind",
        "geometry",
        "algorithm",
        "isa",
        "kernel",
        "threads",
        "seconds_best",
        "seconds_median",
        "gflops",
        "share_of_peak",
        "limit",
        "share_of_limit",
        "compulsory_bytes",
        "workspace_bytes",
        "packed_bytes",
        "max_error",
        "error_of_bound",
    ])?;
    for Record { name, figures: f, .. } in &report.layers {
        writer.write_record([
            name.clone(),
            f.kind.clone(),
            f.geometry.clone(),
            f.algorithm.clone(),
            f.isa.clone(),
            f.kernel.clone(),
            report.machine.threads.to_string(),
            f.seconds_best.to_string(),
            f.seconds_median.to_string(),
            f.gflops.to_string(),
            f.share_of_peak.to_string(),
            f.limit.clone(),
            f.share_of_limit.to_string(),
            f.compulsory_bytes.to_string(),
            f.workspace_bytes.to_string(),
            f.packed_bytes.to_string(),
            f.max_error.to_string(),
            f.error_of_bound.to_string(),
        ])?;
    }
    writer.flush()?;
    Ok(())
}
