//! `regret`: how much faster than the planner's pick the best algorithm is.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use convoke::{Algorithm, Isa, PackedWeights, Plan, Planner, Run, Threads, Workspace};
use convoke_tools::data::{Numbers, Operands, Scalar, Tensor, tensor};
use convoke_tools::realistic;
use convoke_tools::shapes::{self, Layer, LayerKind};
use convoke_tools::timing::{Timing, geometric_mean};
use serde::Serialize;

use super::{Verdict, load_at_start, retain_named, warn_of_threads};
use crate::interrupt::{self, Interrupted};
use crate::machine::Machine;
use crate::options::{BAD, Choice, LayoutName, NumbersName, Team, parse_seconds, parse_threads, with_element};
use crate::output::text::{Column, Rows, Table, line_width, seconds, show, show_json, wrapped};
use crate::session::{Failure, ensure_fits, geometry_text};

/// Time the planner's pick beside the other algorithms
///
/// The layers are random ones of the sizes that networks have, which nobody tuned for. Each layer
/// is run with the pick and with every other algorithm whose estimate is not far from the pick's, in
/// turn. The share of a layer is the time of the fastest algorithm as a share of the pick's: 1.00
/// where the pick is the fastest.
///
/// The exit status is 2 if a layer was not run, 130 if it was interrupted.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RegretArgs {
    /// Number of random layers
    #[arg(long, default_value_t = 200, value_parser = parse_layers)]
    layers: usize,
    /// Seed of the random layers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The layers of published networks in place of random ones
    #[arg(long, conflicts_with_all = ["layers", "seed"])]
    built_in: bool,
    /// Only layers whose name contains one of these
    #[arg(long, value_name = "SUBSTR,..", value_delimiter = ',')]
    filter: Vec<String>,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    /// Instruction set of the kernels [default: the best of this CPU]
    #[arg(long)]
    isa: Option<Isa>,
    /// Element type
    #[arg(long, value_enum, default_value_t = NumbersName::F32)]
    dtype: NumbersName,
    /// How X and Y lie in memory
    #[arg(long, value_enum, default_value_t)]
    layout: LayoutName,
    /// Seconds to spend on each layer
    #[arg(long, default_value = "0.3", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Run algorithms whose estimate is up to this many times the pick's
    #[arg(long, default_value_t = 3.0, value_parser = parse_within)]
    within: f64,
    /// Show all columns, however wide the terminal is
    #[arg(long)]
    wide: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_layers(text: &str) -> Result<usize, String> {
    /// Layers, at most. They take hours.
    const MOST: usize = 100_000;
    text.parse()
        .ok()
        .filter(|layers| (1..=MOST).contains(layers))
        .ok_or_else(|| format!("expected a number of 1..={MOST}"))
}

fn parse_within(text: &str) -> Result<f64, String> {
    let within = text.parse().ok().filter(|within: &f64| within.is_finite() && *within >= 1.0);
    within.ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// All figures.
#[derive(Debug, Serialize)]
struct Regret {
    machine: Machine,
    layers: Vec<RegretRecord>,
    /// Layers that were not run.
    failed: Vec<Failure>,
    /// The geometric mean of all shares, and of those of each kind.
    share: f64,
    share_by_kind: BTreeMap<String, f64>,
}

/// The figures of one layer.
#[derive(Debug, Serialize)]
struct RegretRecord {
    name: String,
    kind: String,
    geometry: String,
    picked: String,
    fastest: String,
    /// The time of the fastest algorithm as a share of the pick's.
    share: f64,
    /// The algorithms that were run. The first one is the pick.
    times: Vec<AlgorithmTime>,
}

/// The time of one algorithm.
#[derive(Debug, Serialize)]
struct AlgorithmTime {
    algorithm: String,
    estimated_seconds: f64,
    /// The fastest run.
    seconds: f64,
}

/// Runs the layers, and prints the shares.
pub(crate) fn run(args: &RegretArgs) -> Result<Verdict> {
    let mut layers = if args.built_in { shapes::built_in() } else { realistic::layers(args.seed, args.layers) };
    retain_named(&mut layers, &args.filter)?;
    interrupt::watch()?;
    warn_of_threads(args.threads);
    let Numbers::Floats(dtype) = args.dtype.into() else {
        bail!("--dtype u8: layers of bytes have no choice of algorithms");
    };
    let (regret, interrupted) = with_element!(dtype, T => args.measure::<T>(&layers))?;
    if let (true, Some(Failure { name, error })) = (regret.layers.is_empty(), regret.failed.first()) {
        bail!("no layer was run: {name}: {error}");
    }
    if args.json {
        show_json(&regret)?;
    } else {
        show(|out| print_end(&regret, line_width(args.wide), out))?;
    }
    Ok(Verdict::of_layers(interrupted, &regret.failed, true))
}

impl RegretArgs {
    /// The figures, and whether the command was interrupted.
    fn measure<T: Scalar>(&self, layers: &[Layer]) -> Result<(Regret, bool)> {
        let planner = Choice { isa: self.isa, ..Choice::default() }.planner()?.threads(self.threads);
        let machine = Machine::new(T::DTYPE, self.threads, &BTreeMap::new(), load_at_start());
        let team = Team::new(self.threads)?;
        let (mut records, mut failed, mut interrupted) = (Vec::new(), Vec::new(), false);
        let name = layers.iter().map(|layer| layer.name.len()).max().unwrap_or_default();
        let mut rows = Rows::new(table(name, line_width(self.wide)), layers.len(), self.json);
        rows.begin(&machine.lines(line_width(self.wide)))?;
        for layer in layers {
            rows.start(&layer.name);
            match self.layer::<T>(&planner, layer, &team) {
                Ok(record) => {
                    rows.row(&cells(&record), true)?;
                    records.push(record);
                }
                Err(error) if error.is::<Interrupted>() => {
                    interrupted = true;
                    break;
                }
                Err(error) => failed.push(Failure::new(&layer.name, &error)),
            }
            rows.step();
        }
        rows.end();
        let share = |kind: Option<&str>| {
            let of_kind = |record: &&RegretRecord| kind.is_none_or(|kind| record.kind == kind);
            geometric_mean(records.iter().filter(of_kind).map(|record| record.share))
        };
        let kinds = LayerKind::ALL.map(|kind| kind.to_string()).into_iter();
        let by_kind = kinds.map(|kind| (kind.clone(), share(Some(&kind)))).filter(|(_, share)| !share.is_nan());
        let (share, share_by_kind) = (share(None), by_kind.collect());
        Ok((Regret { machine, layers: records, failed, share, share_by_kind }, interrupted))
    }

    fn layer<T: Scalar>(&self, planner: &Planner, layer: &Layer, team: &Team) -> Result<RegretRecord> {
        let operator = layer.operator().layouts(self.layout.into(), self.layout.into());
        let pick = planner.plan::<T>(operator.clone(), &layer.x)?;
        let operands = Operands::<T>::new(pick.geometry());
        let most = pick.explain().cost() * self.within;
        let others: Vec<Algorithm> = pick
            .explain()
            .verdicts()
            .iter()
            .filter(|verdict| verdict.algorithm != pick.algorithm() && verdict.cost.is_some_and(|cost| cost <= most))
            .map(|verdict| verdict.algorithm)
            .collect();
        let (picked, kind) = (pick.algorithm().to_string(), LayerKind::of(pick.geometry()).to_string());
        let geometry = geometry_text(pick.geometry());
        let mut contenders = vec![Contender::new(pick, &operands)?];
        for algorithm in others {
            // Some take a layer only if the planner has left out taps that see only padding, and
            // cannot be forced.
            if let Ok(plan) = planner.clone().algorithm(algorithm).plan::<T>(operator.clone(), &layer.x) {
                contenders.push(Contender::new(plan, &operands)?);
            }
        }
        let mut y = tensor(std::iter::repeat_n(T::from_f64(0.0), contenders[0].plan.geometry().output_len()));
        team.install(|threads| {
            let start = Instant::now();
            let mut rounds = 0;
            while rounds < Timing::MIN_REPS || start.elapsed() < self.seconds {
                for contender in &mut contenders {
                    contender.time(&operands.x, &mut y, threads)?;
                }
                rounds += 1;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        let time = |contender: &Contender<T>| AlgorithmTime {
            algorithm: contender.plan.algorithm().to_string(),
            estimated_seconds: contender.plan.explain().cost() / 1e9,
            seconds: contender.best,
        };
        let times: Vec<_> = contenders.iter().map(time).collect();
        let fastest = times.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).context("the pick is a contender")?;
        let (fastest, share) = (fastest.algorithm.clone(), fastest.seconds / times[0].seconds);
        Ok(RegretRecord { name: layer.name.clone(), kind, geometry, picked, fastest, share, times })
    }
}

/// A plan that takes turns with others.
struct Contender<T: Scalar> {
    plan: Plan<T>,
    packed: PackedWeights<T>,
    workspace: Workspace<'static>,
    /// The fastest run, in seconds.
    best: f64,
}

impl<T: Scalar> Contender<T> {
    fn new(plan: Plan<T>, operands: &Operands<T>) -> Result<Self> {
        ensure_fits(&plan)?;
        let packed = plan.pack(&operands.w, Some(&operands.b))?;
        let workspace = Workspace::for_plan(&plan)?;
        Ok(Self { plan, packed, workspace, best: f64::INFINITY })
    }

    /// Runs it twice, and notes the time of the second run: the first one fills the caches.
    fn time(&mut self, x: &Tensor<T>, y: &mut Tensor<T>, threads: Threads<'_>) -> Result<()> {
        for is_warm in [false, true] {
            interrupt::check()?;
            let start = Instant::now();
            self.plan.run(Run::new(x, &self.packed, y).workspace(&mut self.workspace).threads(threads))?;
            if is_warm {
                self.best = self.best.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }
}

/// The table of the layers, whose names have up to `name` characters.
fn table(name: usize, width: Option<usize>) -> Table {
    let algorithm = Algorithm::all().map(|algorithm| algorithm.name().len()).max().unwrap_or_default();
    let columns = vec![
        Column::text("layer", name),
        Column::text("geometry", 60),
        Column::text("picked", algorithm),
        Column::number("time", 9),
        Column::text("fastest", algorithm),
        Column::number("share", 5),
    ];
    Table::new(columns, &["layer", "picked", "time", "share"], width)
}

fn cells(record: &RegretRecord) -> Vec<String> {
    vec![
        record.name.clone(),
        record.geometry.clone(),
        record.picked.clone(),
        seconds(record.times[0].seconds),
        record.fastest.clone(),
        format!("{:.2}", record.share),
    ]
}

/// Prints the means, and the layers with the smallest shares.
fn print_end(regret: &Regret, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    /// Layers that are listed with all their times.
    const LISTED: usize = 20;
    /// Shares from which on a layer is not listed.
    const GOOD: f64 = 0.97;
    writeln!(out, "\nGeometric mean of the shares: {:.3}", regret.share)?;
    for (kind, share) in &regret.share_by_kind {
        writeln!(out, "  {kind}: {share:.3}")?;
    }
    let mut worst: Vec<_> = regret.layers.iter().filter(|record| record.share < GOOD).collect();
    worst.sort_by(|a, b| a.share.total_cmp(&b.share));
    if !worst.is_empty() {
        writeln!(out, "\nThe smallest shares, of {} below {GOOD}:", worst.len())?;
    }
    for record in worst.iter().take(LISTED) {
        let time = |time: &AlgorithmTime| format!("{} {}", time.algorithm, seconds(time.seconds));
        let times: Vec<_> = record.times.iter().map(time).collect();
        let line = format!("  {:.2} {}: {}", record.share, record.geometry, times.join(", "));
        writeln!(out, "{}", wrapped(&line, width))?;
    }
    for Failure { name, error } in &regret.failed {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}NOT RUN{BAD:#} {name}: {error}"), width))?;
    }
    Ok(())
}
