//! `sequence`: times the convolutions of a model one after the other, as a network runs them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use convoke::{DType, PackedWeights, Plan, Planner, Run, Threads, Workspace, bf16, f16};
use convoke_tools::data::{Operands, Scalar, Tensor};
use convoke_tools::onnx::graph::ConvNode;
use convoke_tools::timing::Timing;
use serde::Serialize;

use super::{Verdict, load_at_start, warn_of_threads};
use crate::interrupt::{self, Interrupted};
use crate::machine::Machine;
use crate::model::ModelArgs;
use crate::options::{BAD, Choice, Team, parse_seconds, parse_threads};
use crate::output::text::{Column, Table, bytes, line_width, seconds, show, show_json, wrapped};
use crate::session::{Failure, geometry_text};

/// Time the convolutions of an ONNX model one after the other
///
/// A layer that is timed alone finds its weights and tensors in the caches, because its last run
/// has left them there. In a network, other layers have been there since. This command runs the
/// convolutions in the model's order, again and again, each with weights of its own, and then each
/// layer alone. X is the tensor of its size that was written last. Y is one of three tensors of its
/// size, which take turns, as in an engine that uses memory again. Between the convolutions nothing
/// else runs, and activations are not fused.
///
/// The columns:
///
///   in sequence   the fastest run of the layer behind the one before it
///   alone         the fastest run of the layer behind itself
///   slower        how many times as long the first one takes
///
/// Nodes with another element type than the first one's, and nodes that cannot be planned, are
/// listed with the reason.
///
/// The exit status is 2 if a node was not run, 130 after Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct SequenceArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    #[command(flatten)]
    choice: Choice,
    /// Seconds to spend on the sequence; as many are spent on the layers alone
    #[arg(long, default_value = "3", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Show all columns, however wide the terminal is
    #[arg(long)]
    wide: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// All figures of one model.
#[derive(Debug, Serialize)]
struct Sequence {
    model: String,
    machine: Machine,
    layers: Vec<LinkRecord>,
    /// Nodes that were not run.
    failed: Vec<Failure>,
    /// The fastest round of all layers.
    seconds_of_round: f64,
    /// The sums over the layers.
    seconds_in_sequence: f64,
    seconds_alone: f64,
    rounds: usize,
    packed_bytes: usize,
    tensor_bytes: usize,
    workspace_bytes: usize,
}

/// The figures of one layer.
#[derive(Debug, Serialize)]
struct LinkRecord {
    name: String,
    geometry: String,
    algorithm: String,
    kernel: String,
    seconds_in_sequence: f64,
    seconds_alone: f64,
    packed_bytes: usize,
}

/// Reads the model, runs its convolutions, and prints the figures.
pub(crate) fn run(args: &SequenceArgs) -> Result<Verdict> {
    let graph = args.model.graph()?;
    interrupt::watch()?;
    warn_of_threads(args.threads);
    let nodes = args.choice.nodes(graph);
    let dtype = nodes.iter().find_map(|(_, node)| Some(node.as_ref().ok()?.dtype));
    let measured = match dtype {
        Some(DType::F32) => measure::<f32>(args, nodes),
        Some(DType::F64) => measure::<f64>(args, nodes),
        Some(DType::F16) => measure::<f16>(args, nodes),
        Some(DType::BF16) => measure::<bf16>(args, nodes),
        None => {
            let (name, node) = nodes.into_iter().next().context("the model has no convolution")?;
            bail!("{}: no node can be run: {name}: {:#}", args.model, node.err().unwrap_or_else(|| anyhow!("no type")));
        }
    };
    let sequence = match measured {
        Err(error) if error.is::<Interrupted>() => return Ok(Verdict::Interrupted),
        measured => measured?,
    };
    if args.json {
        show_json(&sequence)?;
    } else {
        show(|out| print(&sequence, line_width(args.wide), out))?;
    }
    Ok(Verdict::of_layers(false, &sequence.failed, true))
}

/// One layer of the chain.
struct Link<T: Scalar> {
    name: String,
    plan: Plan<T>,
    packed: PackedWeights<T>,
    /// The numbers of its tensors.
    x: usize,
    y: usize,
}

impl<T: Scalar> Link<T> {
    /// Runs it once, and returns the seconds.
    fn time(&self, tensors: &mut [Tensor<T>], workspace: &mut Workspace<'_>, threads: Threads<'_>) -> Result<f64> {
        interrupt::check()?;
        let [x, y] = tensors.get_disjoint_mut([self.x, self.y]).expect("X and Y are two tensors");
        let start = Instant::now();
        self.plan.run(Run::new(x, &self.packed, y).workspace(workspace).threads(threads))?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The tensors that layers pass on.
struct Tensors<T> {
    all: Vec<Tensor<T>>,
    /// For each size the tensors that are written in turn, and how often that was.
    of_size: HashMap<usize, (Vec<usize>, usize)>,
}

impl<T: Scalar> Tensors<T> {
    /// Tensors of a size that take turns.
    const TURNS: usize = 3;

    fn new() -> Self {
        Self { all: Vec::new(), of_size: HashMap::new() }
    }

    /// The tensor of this size that was written last, or a new one.
    fn read(&mut self, len: usize) -> usize {
        let (written, turns) = self.of_size.entry(len).or_default();
        match turns.checked_sub(1) {
            Some(last) => written[last % Self::TURNS],
            None => self.written(len, usize::MAX),
        }
    }

    /// The next tensor of this size, other than `x`.
    fn written(&mut self, len: usize, x: usize) -> usize {
        let (written, turns) = self.of_size.entry(len).or_default();
        loop {
            let turn = *turns % Self::TURNS;
            *turns += 1;
            if turn == written.len() {
                written.push(self.all.len());
                let values = convoke_tools::data::uniform(len, 1.0, 1);
                self.all.push(convoke_tools::data::tensor(values));
            }
            if written[turn] != x {
                return written[turn];
            }
        }
    }
}

/// Plans and packs all nodes, and times them.
fn measure<T: Scalar>(args: &SequenceArgs, nodes: Vec<(String, Result<ConvNode>)>) -> Result<Sequence> {
    let load = load_at_start();
    let planner = args.choice.planner()?.threads(args.threads);
    let (mut layers, mut failed, mut tensors) = (Vec::new(), Vec::new(), Tensors::new());
    for (name, node) in nodes {
        interrupt::check()?;
        match node.and_then(|node| layer::<T>(&planner, &node, &mut tensors)) {
            Ok((plan, packed, [x, y])) => layers.push(Link { name, plan, packed, x, y }),
            Err(error) => failed.push(Failure::new(&name, &error)),
        }
    }
    if let (true, Some(Failure { name, error })) = (layers.is_empty(), failed.first()) {
        bail!("{}: no node can be run: {name}: {error}", args.model);
    }
    let workspace_bytes = layers.iter().map(|layer| layer.plan.workspace_bytes()).max().unwrap_or_default();
    let mut workspace = Workspace::with_bytes(workspace_bytes)?;
    let times = Team::new(args.threads)?
        .install(|threads| Times::measure(args.seconds, &layers, &mut tensors.all, &mut workspace, threads))?;
    let record = |(index, layer): (usize, &Link<T>)| LinkRecord {
        name: layer.name.clone(),
        geometry: geometry_text(layer.plan.geometry()),
        algorithm: layer.plan.algorithm().to_string(),
        kernel: layer.plan.kernel().to_owned(),
        seconds_in_sequence: times.in_sequence[index],
        seconds_alone: times.alone[index],
        packed_bytes: layer.plan.packed_bytes(),
    };
    Ok(Sequence {
        model: args.model.to_string(),
        machine: Machine::new(T::DTYPE, args.threads, &std::collections::BTreeMap::new(), load),
        layers: layers.iter().enumerate().map(record).collect(),
        failed,
        seconds_of_round: times.round,
        seconds_in_sequence: times.in_sequence.iter().sum(),
        seconds_alone: times.alone.iter().sum(),
        rounds: times.rounds,
        packed_bytes: layers.iter().map(|layer| layer.plan.packed_bytes()).sum(),
        tensor_bytes: tensors.all.iter().map(|tensor| size_of_val(&tensor[..])).sum(),
        workspace_bytes,
    })
}

/// A plan, its packed weights, and the numbers of X and Y.
type Planned<T> = (Plan<T>, PackedWeights<T>, [usize; 2]);

fn layer<T: Scalar>(planner: &Planner, node: &ConvNode, tensors: &mut Tensors<T>) -> Result<Planned<T>> {
    ensure!(node.dtype == T::DTYPE, "its element type is {}, and the first node's is {}", node.dtype, T::DTYPE);
    let plan = planner.plan::<T>(node.operator.clone(), &node.geometry.input_shape())?;
    crate::session::ensure_fits(&plan)?;
    let Operands { mut w, b, .. } = Operands::<T>::new(plan.geometry());
    // Tensors go from round to round. With smaller weights their values cannot grow without end.
    w.iter_mut().for_each(|w| *w = T::from_f64(w.to_f64() / 2.0));
    let packed = plan.pack(&w, Some(&b))?;
    let x = tensors.read(plan.geometry().input_len());
    let y = tensors.written(plan.geometry().output_len(), x);
    Ok((plan, packed, [x, y]))
}

/// The fastest times, in seconds.
struct Times {
    in_sequence: Vec<f64>,
    alone: Vec<f64>,
    round: f64,
    rounds: usize,
}

impl Times {
    fn measure<T: Scalar>(
        duration: Duration,
        layers: &[Link<T>],
        tensors: &mut [Tensor<T>],
        workspace: &mut Workspace<'_>,
        threads: Threads<'_>,
    ) -> Result<Self> {
        let none = vec![f64::INFINITY; layers.len()];
        let mut times = Self { in_sequence: none.clone(), alone: none, round: f64::INFINITY, rounds: 0 };
        // The first round touches every page for the first time.
        for layer in layers {
            layer.time(tensors, workspace, threads)?;
        }
        let start = Instant::now();
        while times.rounds < Timing::MIN_REPS || start.elapsed() < duration {
            let begin = Instant::now();
            for (layer, best) in layers.iter().zip(&mut times.in_sequence) {
                *best = best.min(layer.time(tensors, workspace, threads)?);
            }
            times.round = times.round.min(begin.elapsed().as_secs_f64());
            times.rounds += 1;
        }
        for (layer, best) in layers.iter().zip(&mut times.alone) {
            let run = || layer.time(tensors, workspace, threads).map(|_| ());
            *best = Timing::measure(duration / layers.len() as u32, run)?.min;
        }
        Ok(times)
    }
}

/// Prints the table of layers, and the sums.
fn print(sequence: &Sequence, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let times =
        |in_sequence: f64, alone: f64| [seconds(in_sequence), seconds(alone), format!("{:.2}", in_sequence / alone)];
    let row = |layer: &LinkRecord| {
        let texts = [&layer.name, &layer.geometry, &layer.algorithm, &layer.kernel].map(String::clone);
        let packed = [bytes(layer.packed_bytes)];
        let times = times(layer.seconds_in_sequence, layer.seconds_alone);
        texts.into_iter().chain(times).chain(packed).collect::<Vec<_>>()
    };
    let Sequence { seconds_of_round, seconds_in_sequence, seconds_alone, rounds, .. } = sequence;
    let texts = ["all", "", "", ""].map(str::to_owned);
    let packed = [bytes(sequence.packed_bytes)];
    let all = texts.into_iter().chain(times(*seconds_in_sequence, *seconds_alone)).chain(packed).collect();
    let rows: Vec<_> = sequence.layers.iter().map(row).chain([all]).collect();
    let text = |head| Column::text(head, 0);
    let number = |head| Column::number(head, 9);
    let columns = vec![
        text("node"),
        text("geometry"),
        text("algorithm"),
        text("kernel"),
        number("in sequence"),
        number("alone"),
        number("slower"),
        number("packed"),
    ];
    let first = ["node", "algorithm", "in sequence", "alone", "slower"];
    writeln!(out, "{}\n{}\n", sequence.model, sequence.machine.lines(width).join("\n"))?;
    writeln!(out, "{}\n", Table::whole(columns, &first, width, &rows))?;
    let sums = format!(
        "The fastest of {rounds} rounds took {}. Weights take {}, tensors {}, the workspace {}.",
        seconds(*seconds_of_round),
        bytes(sequence.packed_bytes),
        bytes(sequence.tensor_bytes),
        bytes(sequence.workspace_bytes)
    );
    writeln!(out, "{}", wrapped(&sums, width))?;
    for Failure { name, error } in &sequence.failed {
        writeln!(out, "\n{}", wrapped(&format!("{BAD}NOT RUN{BAD:#} {name}: {error}"), width))?;
    }
    Ok(())
}
