//! `profile`: plans and times the convolutions of a model.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use convoke::{DType, Explanation, Plan};
use convoke_tools::data::Numbers;
use convoke_tools::onnx::graph::{ConvNode, Graph};
use serde::Serialize;

use super::{Verdict, load_at_start, warn_of_threads};
use crate::interrupt::{self, Interrupted};
use crate::machine::Machine;
use crate::model::ModelArgs;
use crate::options::{BAD, Choice, parse_seconds, parse_threads, with_element};
use crate::output::text::{Column, Rows, Table, bytes, line_width, percent, seconds, show, show_json, wrapped};
use crate::session::{ABOVE_100, COLUMNS, Failure, Figures, Session, geometry_text, partial};

/// Time every Conv and ConvTranspose node of an ONNX model
///
/// Reads a model, plans each of its convolutions, and times them with random weights. It shows
/// what convoke would do for this model. Activations after the nodes are not fused. Layers of the
/// same shape are timed once. Shapes that the model does not state are inferred from its inputs.
/// Weights in other files are not needed.
///
/// Each node's row is printed as soon as it was measured: a second for every three or four shapes
/// that differ, or longer for slow ones.
///
/// Two columns are not explained at the end:
///
///   node          its name, or the name of its output if it has none
///   why           the estimates of the planner's pick and of the next best algorithm
///
/// A node that is not understood, or that needs more memory than is free or more than 20 s a run,
/// is listed with the reason, and the others go on.
///
/// Ctrl-C ends it after the current run; the layers that were measured are printed.
/// The exit status is 1 if a result was wrong, 2 if a node was not run, 130 if it was interrupted.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_long_help = COLUMNS)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    #[command(flatten)]
    choice: Choice,
    /// Seconds to spend on timing each layer
    #[arg(long, default_value = "0.2", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Show all columns, however wide the terminal is
    #[arg(long)]
    wide: bool,
    /// Print JSON, with the planner's verdict on each algorithm
    #[arg(long)]
    json: bool,
}

/// All figures of one model.
#[derive(Debug, Serialize)]
struct Profile {
    model: String,
    /// The machine and the settings of the figures, by element type.
    machines: BTreeMap<String, Machine>,
    nodes: Vec<NodeRecord>,
    /// Nodes that were not run.
    failed: Vec<Failure>,
    totals: Totals,
    /// The totals by algorithm.
    by_algorithm: BTreeMap<String, Totals>,
    /// Number of nodes by operator, for operators that are other kinds of convolution.
    other_operators: BTreeMap<String, usize>,
    /// Number of convolution nodes in the model.
    asked: usize,
    /// Whether the command ended before the last node.
    interrupted: bool,
}

/// The figures of one node.
#[derive(Debug, Clone, Serialize)]
struct NodeRecord {
    name: String,
    dtype: String,
    #[serde(flatten)]
    figures: Figures,
    why: String,
    candidates: Vec<Candidate>,
}

/// The planner's verdict on one algorithm.
#[derive(Debug, Clone, Serialize)]
struct Candidate {
    algorithm: String,
    /// None if the algorithm does not accept the layer.
    estimated_seconds: Option<f64>,
    reason: String,
}

/// Sums over nodes.
#[derive(Debug, Default, Serialize)]
struct Totals {
    nodes: usize,
    flop: f64,
    seconds: f64,
    seconds_at_limit: f64,
    gflops: f64,
    share_of_limit: f64,
    packed_bytes: usize,
    /// The largest workspace of any node. Nodes run one after the other, and share it.
    workspace_bytes: usize,
}

impl Totals {
    fn of<'a>(figures: impl Iterator<Item = &'a Figures>) -> Self {
        let mut sum = Self::default();
        for f in figures {
            sum.nodes += 1;
            sum.flop += f.flop;
            sum.seconds += f.seconds_best;
            sum.seconds_at_limit += f.seconds_at_limit;
            sum.packed_bytes += f.packed_bytes;
            sum.workspace_bytes = sum.workspace_bytes.max(f.workspace_bytes);
        }
        if sum.nodes > 0 {
            sum.gflops = sum.flop / sum.seconds / 1e9;
            sum.share_of_limit = sum.seconds_at_limit / sum.seconds;
        }
        sum
    }
}

/// Reads the model, runs its nodes, and prints the profile.
pub(crate) fn run(args: &ProfileArgs) -> Result<Verdict> {
    let graph = args.model.graph()?;
    interrupt::watch()?;
    warn_of_threads(args.threads);
    let profile = args.measure(graph)?;
    if profile.nodes.is_empty()
        && let Some(Failure { name, error }) = profile.failed.first()
    {
        bail!("{}: no node can be run: {name}: {error}", profile.model);
    }
    if args.json {
        show_json(&profile)?;
    } else {
        show(|out| print_end(&profile, line_width(args.wide), out))?;
    }
    let right = profile.nodes.iter().all(|record| record.figures.within_bound);
    Ok(Verdict::of_layers(profile.interrupted, &profile.failed, right))
}

impl ProfileArgs {
    fn measure(&self, graph: Graph) -> Result<Profile> {
        let load = load_at_start();
        let mut sessions = HashMap::<DType, Session>::new();
        let mut known = HashMap::<String, NodeRecord>::new();
        let (mut records, mut failed) = (Vec::new(), Vec::new());
        let other_operators = graph.others().clone();
        let nodes = self.choice.nodes(graph);
        let count = nodes.len();
        let mut rows = Rows::new(self.table(&nodes), count, self.json);
        let mut seen = HashSet::new();
        for (name, node) in nodes {
            rows.start(&name);
            let dtype = node.as_ref().ok().map(|node| node.dtype);
            match node.and_then(|node| self.measure_node(&mut sessions, &mut known, &name, &node)) {
                Ok(record) => {
                    if let Some((&dtype, session)) = dtype.and_then(|dtype| sessions.get_key_value(&dtype))
                        && seen.insert(dtype)
                    {
                        let machine = Machine::new(dtype, session.threads(), session.roofs(), load);
                        rows.begin(&self.heading(seen.len() == 1, &machine))?;
                    }
                    rows.row(&cells(&record), record.figures.within_bound)?;
                    records.push(record);
                }
                Err(error) if error.is::<Interrupted>() => break,
                Err(error) => failed.push(Failure::new(&name, &error)),
            }
            rows.step();
        }
        rows.end();
        let of_algorithm = |name: &str| Totals::of(records.iter().map(|r| &r.figures).filter(|f| f.algorithm == name));
        let by_algorithm = records.iter().map(|r| (r.figures.algorithm.clone(), of_algorithm(&r.figures.algorithm)));
        let machine = |(&dtype, s): (&DType, &Session)| {
            (Numbers::from(dtype).to_string(), Machine::new(dtype, s.threads(), s.roofs(), load))
        };
        Ok(Profile {
            model: self.model.to_string(),
            machines: sessions.iter().map(machine).collect(),
            totals: Totals::of(records.iter().map(|r| &r.figures)),
            by_algorithm: by_algorithm.collect(),
            other_operators,
            asked: count,
            interrupted: records.len() + failed.len() < count,
            nodes: records,
            failed,
        })
    }

    /// The table of the nodes, in the width of the terminal.
    fn table(&self, nodes: &[(String, Result<ConvNode>)]) -> Table {
        let name = nodes.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        let geometries = nodes.iter().filter_map(|(_, node)| Some(geometry_text(&node.as_ref().ok()?.geometry).len()));
        let columns = Figures::columns(geometries.max().unwrap_or_default());
        let columns = std::iter::once(Column::text("node", name)).chain(columns).chain([Column::text("why", 60)]);
        Table::new(columns.collect(), &[&["node"][..], &Figures::FIRST].concat(), line_width(self.wide))
    }

    /// What stands above the nodes of an element type. The first of them have the model too.
    fn heading(&self, is_first: bool, machine: &Machine) -> Vec<String> {
        let model = is_first.then(|| self.model.to_string());
        model.into_iter().chain(machine.lines(line_width(self.wide))).collect()
    }

    /// Runs a node, or takes the figures of an earlier node of the same shape.
    fn measure_node(
        &self,
        sessions: &mut HashMap<DType, Session>,
        known: &mut HashMap<String, NodeRecord>,
        name: &str,
        node: &ConvNode,
    ) -> Result<NodeRecord> {
        interrupt::check()?;
        let key = format!("{} {:?}", node.dtype, node.geometry);
        if let Some(record) = known.get(&key) {
            return Ok(NodeRecord { name: name.to_owned(), ..record.clone() });
        }
        let session = match sessions.entry(node.dtype) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Session::new(self.choice.planner()?, node.dtype, self.threads, self.seconds)?)
            }
        };
        let record = run_node(session, name, node)?;
        known.insert(key, record.clone());
        Ok(record)
    }
}

fn run_node(session: &mut Session, name: &str, node: &ConvNode) -> Result<NodeRecord> {
    let (operator, x) = (&node.operator, node.geometry.input_shape());
    let (figures, explanation) = with_element!(node.dtype, T => {
        let (figures, plan) = session.run::<Plan<T>>(operator, &x)?;
        (figures, plan.explain().clone())
    });
    let candidate = |v: &convoke::Verdict| Candidate {
        algorithm: v.algorithm.to_string(),
        estimated_seconds: v.cost.map(|nanoseconds| nanoseconds / 1e9),
        reason: v.reason.clone(),
    };
    Ok(NodeRecord {
        name: name.to_owned(),
        dtype: Numbers::from(node.dtype).to_string(),
        why: estimates(&explanation, &figures.algorithm),
        candidates: explanation.verdicts().iter().map(candidate).collect(),
        figures,
    })
}

/// The estimates of the planner's pick and of the next best algorithm.
fn estimates(explanation: &Explanation, picked: &str) -> String {
    let costs = explanation.verdicts().iter().filter_map(|v| Some((v.cost?, v.algorithm.name())));
    let (mine, others): (Vec<_>, Vec<_>) = costs.partition(|(_, name)| *name == picked);
    let text = |(nanoseconds, name): &(f64, &str)| format!("{name} {}", seconds(nanoseconds / 1e9));
    let pick = mine.first().map_or_else(|| "forced".to_owned(), |pick| format!("est. {}", text(pick)));
    match others.iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some(next) => format!("{pick}, next {}", text(next)),
        None => format!("{pick}, nothing else accepts it"),
    }
}

/// The cells of the table of nodes.
fn cells(record: &NodeRecord) -> Vec<String> {
    std::iter::once(record.name.clone()).chain(record.figures.cells()).chain([record.why.clone()]).collect()
}

/// Prints what follows the table of nodes.
fn print_end(profile: &Profile, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    if let Some(partial) = partial(profile.nodes.len(), profile.asked, "nodes", profile.interrupted, &profile.failed) {
        writeln!(out, "\n{BAD}{partial}{BAD:#}")?;
    }
    writeln!(out, "\n{}", totals(profile, width))?;
    if profile.nodes.iter().any(|r| r.figures.is_above_100()) {
        writeln!(out, "\n{}", wrapped(ABOVE_100, width))?;
    }
    for wrong in profile.nodes.iter().filter(|r| !r.figures.within_bound) {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}WRONG{BAD:#} {}", wrong.figures.wrong(&wrong.name)), width))?;
    }
    for Failure { name, error } in &profile.failed {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}NOT RUN{BAD:#} {name}: {error}"), width))?;
    }
    Ok(())
}

/// The table of the sums, by algorithm.
fn totals(profile: &Profile, width: Option<usize>) -> String {
    let row = |name: &str, t: &Totals| {
        vec![
            name.to_owned(),
            t.nodes.to_string(),
            format!("{:.2}", t.flop / 1e9),
            seconds(t.seconds),
            percent(t.seconds / profile.totals.seconds),
            format!("{:.1}", t.gflops),
            percent(t.share_of_limit),
            bytes(t.workspace_bytes),
            bytes(t.packed_bytes),
        ]
    };
    let algorithms = profile.by_algorithm.iter().map(|(name, totals)| row(name, totals));
    let rows: Vec<_> = algorithms.chain([row("all", &profile.totals)]).collect();
    let numbers = ["nodes", "GFLOP", "time", "of time", "GFLOP/s", "of limit", "workspace", "packed"];
    let columns = std::iter::once(Column::text("algorithm", 0)).chain(numbers.map(|head| Column::number(head, 0)));
    Table::whole(columns.collect(), &["algorithm", "nodes", "time", "of time", "of limit"], width, &rows)
}
