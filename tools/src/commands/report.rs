//! `report`: prints the speed, the limit and the error of each layer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use convoke::{Isa, Operator, Plan};
use convoke_tools::data::Numbers;
use convoke_tools::files;
use convoke_tools::shapes::{self, Layer, describe};
use convoke_tools::timing::geometric_mean;

use super::worker::WorkerRow;
use super::{Verdict, is_rejection, load_at_start, retain_named, warn_of_threads};
use crate::interrupt::{self, Interrupted};
use crate::layer_plan::{BytePlan, LayerPlan};
use crate::machine::Machine;
use crate::options::{BAD, Choice, NumbersName, parse_seconds, parse_threads, with_element};
use crate::output::text::{Column, Rows, Table, line_width, percent, show, show_json, wrapped};
use crate::output::{chart, page};
use crate::records::{Record, Report, Series, Summary};
use crate::session::{ABOVE_100, COLUMNS, Failure, Figures, Session, geometry_text};

/// Time the layers of published networks, and check each against the reference
///
/// Each layer is planned, its weights are packed, and then it is run again and again. Planning
/// and packing are not timed. Input and output are plain NCHW. Caches are warm (with --cold,
/// everything except X comes from memory).
///
/// Each layer's row is printed as soon as it was measured. All layers take one to two minutes on
/// one thread, and --output some times as long. --list prints them and runs nothing.
///
/// Two columns are not explained at the end:
///
///   error         largest distance from the double-precision reference, over a sample of
///                 some 500 output elements with all corners and every face
///   of bound      largest error as a share of the bound of rounding errors,
///                 K * eps * sum |x| |w|; above 1 the result is wrong
///
/// With --dtype u8, layers are those of ONNX's QLinearConv. GFLOP/s and FMA count multiply-adds of
/// integers, and errors are in steps of Y, of which there must be none.
///
/// With --output DIR, the layers are also run with the other instruction sets and numbers of
/// threads of this machine, and DIR gets report.json, layers.csv, the pictures as SVG files, and
/// index.html with everything in one file.
///
/// A layer that needs more memory than is free, or more than 20 s a run, is listed with the reason,
/// and the others go on.
///
/// --scaling prints the efficiency of more threads for each layer.
///
/// Ctrl-C ends it after the current run; the layers that were measured are printed and written.
///
/// The exit status is 1 if a result was wrong, 2 if a layer was not run, 130 if it was interrupted.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_long_help = COLUMNS)]
pub(crate) struct ReportArgs {
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    /// Each layer also on these numbers of threads, with the efficiency: how many times as fast as on
    /// one thread it is, as a share of the number of threads [default: 2, 4, 8 and so on, and all cores]
    #[arg(long, value_name = "THREADS,..", num_args = 0..=1, value_delimiter = ',', value_parser = parse_threads, conflicts_with = "threads")]
    scaling: Option<Vec<usize>>,
    #[command(flatten)]
    choice: Choice,
    /// Element type
    #[arg(long, value_enum, default_value_t = NumbersName::F32)]
    dtype: NumbersName,
    /// Only layers whose name contains one of these
    #[arg(long, value_name = "SUBSTR,..", value_delimiter = ',')]
    filter: Vec<String>,
    /// Only 12 layers, of all kinds, in about 10 seconds
    #[arg(long, conflicts_with = "shapes")]
    quick: bool,
    /// Seconds to spend on timing each layer
    #[arg(long, default_value = "0.2", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Empty the caches before each run, and read X again: weights, output and workspace come
    /// from memory, as inside a large network
    #[arg(long)]
    cold: bool,
    /// Show all columns, however wide the terminal is
    #[arg(long)]
    wide: bool,
    /// Print JSON; with --list, the layers in the form of requests to the sub-command worker
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

/// Runs the layers, and prints the report.
pub(crate) fn run(args: &ReportArgs) -> Result<Verdict> {
    args.choice.ensure_suits(args.dtype.into())?;
    let layers = args.layers()?;
    if args.list {
        let list = if args.json {
            let rows = layers.iter().map(WorkerRow::new).collect::<Result<Vec<_>>>()?;
            serde_json::to_string_pretty(&rows)? + "\n"
        } else {
            let line = |layer: &Layer| Ok(format!("{}: {} {}\n", layer.name, layer.op, describe(&layer.geometry()?)));
            layers.iter().map(line).collect::<Result<String>>()?
        };
        show(|out| write!(out, "{list}"))?;
        return Ok(Verdict::Good);
    }
    if let Some(folder) = &args.output {
        make_folder(folder)?;
    }
    interrupt::watch()?;
    warn_of_threads(args.compared_threads().into_iter().fold(args.threads, usize::max));
    let report = match args.dtype.into() {
        Numbers::Floats(dtype) => with_element!(dtype, T => args.measure::<Plan<T>>(&layers)),
        Numbers::Bytes => args.measure::<BytePlan>(&layers),
    }?;
    if report.layers.is_empty() && !report.interrupted {
        let failed = report.failed.first().map(|failure| format!("{}: {}", failure.name, failure.error));
        bail!("no layer was run: {}", failed.as_deref().unwrap_or("the algorithm accepts none of them"));
    }
    if args.json {
        show_json(&report)?;
    } else {
        show(|out| print_end(&report, args.scaling.is_some(), line_width(args.wide), out))?;
    }
    if let Some(folder) = &args.output {
        write(&report, folder).with_context(|| folder.display().to_string())?;
        eprintln!("written: {}", folder.join("index.html").display());
    }
    Ok(Verdict::of_layers(report.interrupted, &report.failed, report.wrong().is_empty()))
}

/// Makes the folder of `--output` before anything is measured. Systems say of a folder that cannot
/// be made only that it was not found.
fn make_folder(folder: &Path) -> Result<()> {
    let failed = || format!("--output: the folder {} does not exist, and cannot be made", folder.display());
    if folder.exists() && !folder.is_dir() {
        bail!("--output: {} is not a folder", folder.display());
    }
    fs::create_dir_all(folder).with_context(failed)
}

impl ReportArgs {
    /// The layers that are asked for.
    fn layers(&self) -> Result<Vec<Layer>> {
        let mut layers = Vec::new();
        for path in &self.shapes {
            let text = files::read_text(path, files::TEXT)?;
            layers.extend(shapes::read(&path.display().to_string(), &text)?);
        }
        if self.shapes.is_empty() {
            layers = if self.quick { shapes::quick() } else { shapes::built_in() };
        }
        retain_named(&mut layers, &self.filter)?;
        ensure!(!layers.is_empty(), "no layers");
        Ok(layers)
    }

    fn measure<P: LayerPlan>(&self, layers: &[Layer]) -> Result<Report> {
        let load = load_at_start();
        let mut main = Session::new(self.choice.planner()?, self.dtype, self.threads, self.seconds)?.cold(self.cold);
        let mut others = self.others()?;
        let mut rows = Rows::new(self.table(layers), layers.len(), self.json);
        let (mut records, mut rejected, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers {
            rows.start(&layer.name);
            match measure_layer::<P>((layer, self.choice.operator(layer.operator())), &mut main, &mut others) {
                Ok(record) => {
                    if !rows.has_begun() {
                        rows.begin(&self.machine(&main, load).lines(line_width(self.wide)))?;
                    }
                    rows.row(&cells(&record), record.figures.within_bound)?;
                    records.push(record);
                }
                Err(error) if error.is::<Interrupted>() => break,
                Err(error) if self.choice.algorithm.is_some() && is_rejection(&error) => {
                    rejected.push(layer.name.clone());
                }
                Err(error) => failed.push(Failure::new(&layer.name, &error)),
            }
            rows.step();
        }
        rows.end();
        let interrupted = records.len() + rejected.len() + failed.len() < layers.len();
        let machine = self.machine(&main, load);
        let mut comparisons: Vec<Series> = others.into_iter().map(|(series, _)| series).collect();
        if let (false, Some(first)) = (comparisons.is_empty(), records.first()) {
            let mut own = Series::new(first.figures.isa.clone(), self.threads);
            records.iter().for_each(|r| own.add(&r.name, &r.figures));
            comparisons.push(own);
        }
        Ok(Report {
            machine,
            summary: summarise(&records),
            layers: records,
            rejected,
            failed,
            comparisons,
            asked: layers.len(),
            interrupted,
        })
    }

    /// The table of the layers, in the width of the terminal.
    fn table(&self, layers: &[Layer]) -> Table {
        let longest = |text: &dyn Fn(&Layer) -> String| layers.iter().map(|layer| text(layer).chars().count()).max();
        let name = longest(&|layer| layer.name.clone()).unwrap_or_default();
        let geometry = longest(&|layer| layer.geometry().map_or_else(|_| String::new(), |g| geometry_text(&g)));
        let columns = Figures::columns(geometry.unwrap_or_default());
        let errors = [Column::number("error", 7), Column::number("of bound", 5)];
        let columns = std::iter::once(Column::text("layer", name)).chain(columns).chain(errors);
        Table::new(columns.collect(), &[&["layer"][..], &Figures::FIRST].concat(), line_width(self.wide))
    }

    fn machine(&self, session: &Session, load: Option<f64>) -> Machine {
        let mut machine = Machine::new(self.dtype, session.threads(), session.roofs(), load);
        machine.cold = self.cold;
        machine
    }

    /// The other numbers of threads that layers are run on.
    fn compared_threads(&self) -> Vec<usize> {
        let mut threads = match &self.scaling {
            Some(given) if !given.is_empty() => given.clone(),
            None if self.output.is_none() => Vec::new(),
            _ => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let powers = std::iter::successors(Some(1), |threads| Some(2 * threads));
                powers.take_while(|&threads| threads < cores).chain([cores]).collect()
            }
        };
        threads.sort_unstable();
        threads.dedup();
        threads.retain(|&threads| threads != self.threads);
        threads
    }

    /// What the layers are compared with: other instruction sets with the same number of threads,
    /// and other numbers of threads with the same instruction set.
    fn others(&self) -> Result<Vec<(Series, Session)>> {
        let own = self.choice.isa()?;
        let isas = Isa::ALL.into_iter().filter(|&isa| isa != Isa::Portable && isa != own && isa.is_available());
        let isas = isas.filter(|_| self.output.is_some());
        let threads = self.compared_threads().into_iter().map(|threads| (own, threads));
        let choices = isas.map(|isa| (isa, self.threads)).chain(threads);
        let session = |(isa, threads): (Isa, usize)| {
            let planner = self.choice.planner()?.isa(isa);
            let series = Series::new(isa.to_string(), threads);
            Ok((series, Session::new(planner, self.dtype, threads, self.seconds)?.cold(self.cold)))
        };
        choices.map(session).collect()
    }
}

/// Runs a layer in all settings, one right after the other, so that a drift of the machine's
/// speed affects all alike. Its figures are kept for all settings or for none.
fn measure_layer<P: LayerPlan>(
    (layer, operator): (&Layer, Operator),
    main: &mut Session,
    others: &mut [(Series, Session)],
) -> Result<Record> {
    let run = |session: &mut Session| {
        interrupt::check()?;
        session.run::<P>(&operator, &layer.x).map(|(figures, _)| figures)
    };
    let figures = run(main)?;
    let compared = others.iter_mut().map(|(_, session)| run(session)).collect::<Result<Vec<_>>>()?;
    for ((series, _), figures) in others.iter_mut().zip(&compared) {
        series.add(&layer.name, figures);
    }
    Ok(Record { name: layer.name.clone(), network: layer.network().to_owned(), figures })
}

/// The geometric means of each kind of layer that occurs, and of all layers. Layers without
/// operations are left out: their speed of 0 would make each mean 0.
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

/// The cells of the table of layers.
fn cells(record: &Record) -> Vec<String> {
    let figures = &record.figures;
    let errors = [format!("{:.1e}", figures.max_error), format!("{:.3}", figures.error_of_bound)];
    std::iter::once(record.name.clone()).chain(figures.cells()).chain(errors).collect()
}

/// Prints what follows the table of layers.
fn print_end(report: &Report, is_scaling: bool, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    if let Some(partial) = report.partial() {
        writeln!(out, "\n{BAD}{partial}{BAD:#}")?;
    }
    let means: Vec<_> = report.summary.iter().map(|summary| summary.cells().to_vec()).collect();
    let means = Table::whole(Summary::columns(), &Summary::HEADS, width, &means);
    writeln!(out, "\nGeometric means by kind of layer:\n{means}")?;
    if is_scaling {
        writeln!(out, "\nEfficiency on more threads:\n{}", scaling(report, width))?;
    }
    if report.layers.iter().any(|r| r.figures.is_above_100()) {
        writeln!(out, "\n{}", wrapped(ABOVE_100, width))?;
    }
    if !report.rejected.is_empty() {
        let rejected = format!("Not accepted by the algorithm: {}", report.rejected.join(", "));
        writeln!(out, "\n{}", wrapped(&rejected, width))?;
    }
    for wrong in report.wrong() {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}WRONG{BAD:#} {wrong}"), width))?;
    }
    for Failure { name, error } in &report.failed {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}NOT RUN{BAD:#} {name}: {error}"), width))?;
    }
    Ok(())
}

/// How many times as fast each layer is on more threads than one, as a share of their number, with the geometric
/// means of all.
fn scaling(report: &Report, width: Option<usize>) -> String {
    let isa = report.layers.first().map(|record| &record.figures.isa);
    let of_threads: Vec<_> = report.comparisons.iter().filter(|s| Some(&s.isa) == isa && s.threads > 1).collect();
    let measured = || report.layers.iter().filter(|record| record.figures.flop > 0.0);
    let share =
        |series: &Series, record: &Record| series.gflops[&record.name] / record.figures.gflops / series.threads as f64;
    let row = |name: &str, gflops: f64, share: &dyn Fn(&Series) -> f64| {
        let shares = of_threads.iter().map(|series| percent(share(series)));
        [name.to_owned(), format!("{gflops:.1}")].into_iter().chain(shares).collect::<Vec<_>>()
    };
    let rows = measured().map(|record| row(&record.name, record.figures.gflops, &|series| share(series, record)));
    let mean = geometric_mean(measured().map(|record| record.figures.gflops));
    let mean = row("geometric mean", mean, &|series| geometric_mean(measured().map(|record| share(series, record))));
    let heads: Vec<_> = of_threads.iter().map(|series| format!("{} threads", series.threads)).collect();
    let columns = heads.iter().map(|head| Column::number(head, 0));
    let columns = [Column::text("layer", 0), Column::number("GFLOP/s of 1", 0)].into_iter().chain(columns).collect();
    let last = heads.last().map_or("", String::as_str);
    Table::whole(columns, &["layer", "GFLOP/s of 1", last], width, &rows.chain([mean]).collect::<Vec<_>>())
}

/// Writes all files of `--output`.
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

/// Writes the layers, one in each line.
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
        "within_bound",
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
            f.within_bound.to_string(),
        ])?;
    }
    writer.flush()?;
    Ok(())
}
