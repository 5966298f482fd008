//! Options that several sub-commands have, and the style of their output.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use convoke::{Accuracy, Algorithm, Conv, DType, Isa, Layout, Machine, Operator, Planner, Threads};
use convoke_tools::data::Numbers;
use convoke_tools::onnx::graph::{ConvNode, Graph};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Style of good results.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of errors and wrong results.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// The choices that can be passed to the planner.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Choice {
    /// Instruction set of the kernels: portable, neon, avx2 or avx512 [default: the best of this
    /// CPU]
    #[arg(long)]
    pub(crate) isa: Option<Isa>,
    /// Plan for a named machine: zen5, emerald-rapids, neoverse-n1 or no-l3 [default: this one]
    #[arg(long, value_parser = parse_machine)]
    pub(crate) machine: Option<Machine>,
    /// Force an algorithm, such as im2col:native or gemm [default: the planner's pick]
    #[arg(long)]
    pub(crate) algorithm: Option<Algorithm>,
    /// How far a result may be from the exact one [default: standard]
    #[arg(long)]
    pub(crate) accuracy: Option<AccuracyName>,
    /// How X and Y lie in memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: LayoutName,
}

impl Choice {
    /// A planner with these options; an error if this CPU or build lacks the instruction set.
    pub(crate) fn planner(&self) -> Result<Planner> {
        let mut planner = Planner::new();
        if let Some(machine) = &self.machine {
            let isa = self.isa.unwrap_or(machine.isa());
            planner = planner.machine(machine.clone().with_isa(isa));
        } else if let Some(isa) = self.isa {
            ensure!(isa.is_available(), "this CPU or build does not have {isa}; it has {}", available());
            planner = planner.isa(isa);
        }
        if let Some(algorithm) = self.algorithm {
            planner = planner.algorithm(algorithm);
        }
        if let Some(accuracy) = self.accuracy {
            planner = planner.accuracy(accuracy.into());
        }
        Ok(planner)
    }

    /// An error for options that layers of bytes have no use for.
    pub(crate) fn ensure_suits(&self, numbers: Numbers) -> Result<()> {
        if numbers == Numbers::Bytes {
            ensure!(self.algorithm.is_none(), "--algorithm: layers of bytes have no choice of algorithms");
            ensure!(self.accuracy.is_none(), "--accuracy: sums of bytes are exact");
        }
        Ok(())
    }

    /// An operator with the layout.
    pub(crate) fn operator(&self, operator: Operator) -> Operator {
        operator.layouts(self.layout.into(), self.layout.into())
    }

    /// The nodes of a model, with the layout.
    pub(crate) fn nodes(&self, graph: Graph) -> Vec<(String, Result<ConvNode>)> {
        let in_layout = |node: ConvNode| ConvNode { operator: self.operator(node.operator), ..node };
        graph.into_nodes().into_iter().map(|(name, node)| (name, node.map(in_layout))).collect()
    }

    /// The instruction set of the plans.
    pub(crate) fn isa(&self) -> Result<Isa> {
        match self.isa.or(self.machine.as_ref().map(Machine::isa)) {
            Some(isa) => Ok(isa),
            None => Ok(Planner::new().plan::<f32>(Conv::new([1, 1, 1]), &[1, 1, 1])?.isa()),
        }
    }
}

/// Finds a machine by its name.
fn parse_machine(name: &str) -> Result<Machine, String> {
    let machines = Machine::named();
    let names = machines.iter().map(|machine| &*machine.name).collect::<Vec<_>>().join(", ");
    machines.into_iter().find(|machine| machine.name == name).ok_or_else(|| format!("expected one of {names}"))
}

/// The names of the instruction sets that can be chosen.
fn available() -> String {
    let names = Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(|isa| isa.to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// `convoke::Layout`, by the names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LayoutName {
    /// (N, C, spatial...), as in ONNX
    #[default]
    ChannelsFirst,
    /// (N, spatial..., C)
    ChannelsLast,
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Self {
        match name {
            LayoutName::ChannelsFirst => Self::ChannelsFirst,
            LayoutName::ChannelsLast => Self::ChannelsLast,
        }
    }
}

/// `convoke::Accuracy`, by the names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccuracyName {
    /// Direct sums alone
    Strict,
    /// Also Winograd with tiles of up to 48 values
    Standard,
    /// Also Winograd with tiles of 8x8 values, which err two to four times as much
    Fast,
}

impl From<AccuracyName> for Accuracy {
    fn from(name: AccuracyName) -> Self {
        match name {
            AccuracyName::Strict => Self::Strict,
            AccuracyName::Standard => Self::Standard,
            AccuracyName::Fast => Self::Fast,
        }
    }
}

/// `Numbers`, by the names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NumbersName {
    F32,
    F64,
    F16,
    Bf16,
    /// X and Y in u8 with zero points, W in i8 with a scale for each output channel, as in quantised models
    U8,
}

impl From<NumbersName> for Numbers {
    fn from(name: NumbersName) -> Self {
        match name {
            NumbersName::F32 => DType::F32.into(),
            NumbersName::F64 => DType::F64.into(),
            NumbersName::F16 => DType::F16.into(),
            NumbersName::Bf16 => DType::BF16.into(),
            NumbersName::U8 => Self::Bytes,
        }
    }
}

/// Evaluates an expression with a type parameter that is set to the element type of a `DType`.
macro_rules! with_element {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            convoke::DType::F32 => {
                type $type = f32;
                $body
            }
            convoke::DType::F64 => {
                type $type = f64;
                $body
            }
            convoke::DType::F16 => {
                type $type = convoke::f16;
                $body
            }
            convoke::DType::BF16 => {
                type $type = convoke::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// The threads that a command runs layers with.
#[derive(Debug)]
pub(crate) enum Team {
    /// The calling thread alone.
    Serial,
    /// The threads of a pool that is kept.
    Pool(ThreadPool),
}

impl Team {
    /// A team of `threads`, which must be at least 1.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        if threads == 1 {
            return Ok(Self::Serial);
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        Ok(Self::Pool(pool.with_context(|| format!("no pool of {threads} threads"))?))
    }

    /// Calls `work` on a thread of the team. A run that starts inside the pool need not wake it
    /// first, which would cost microseconds.
    pub(crate) fn install<R: Send>(&self, work: impl FnOnce(Threads<'_>) -> R + Send) -> R {
        match self {
            Self::Serial => work(Threads::Serial),
            Self::Pool(pool) => pool.install(|| work(Threads::Current)),
        }
    }

    /// Calls `work` on each thread of the team.
    pub(crate) fn on_each_thread(&self, work: impl Fn() + Sync) {
        match self {
            Self::Serial => work(),
            Self::Pool(pool) => {
                pool.broadcast(|_| work());
            }
        }
    }
}

/// Parses a number of threads, at least 1.
pub(crate) fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=Planner::MOST_THREADS) => Ok(threads),
        _ => Err(format!("expected a number of 1..={}", Planner::MOST_THREADS)),
    }
}

/// Parses a time in seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}
