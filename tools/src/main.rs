//! `convoke-tools`: reports, ONNX tests, timing for comparisons, and the explanation of plans.
//!
//! Exit status: 0 if all is well, 1 if a result was wrong, 2 for bad input or a layer that could
//! not be run, 130 if interrupted.

#![forbid(unsafe_code)]

mod assembly;
mod commands;
mod cpu;
mod interrupt;
mod layer_plan;
mod machine;
mod mca;
mod model;
mod options;
mod output;
mod records;
mod session;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::{Verdict, disasm, explain, kernels, onnx_test, plans, profile, regret, report, sequence, worker};
use options::BAD;
use output::text::{line_width, wrapped};

/// Tools for convoke, the CPU kernels of ONNX's Conv and ConvTranspose.
///
/// Exit status: 0 if all is well, 1 if a result was wrong, 2 for bad input or a layer that could
/// not be run, 130 if interrupted.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Report(report::ReportArgs),
    Profile(profile::ProfileArgs),
    Sequence(sequence::SequenceArgs),
    Regret(regret::RegretArgs),
    OnnxTest(onnx_test::OnnxTestArgs),
    Worker(worker::WorkerArgs),
    Explain(Box<explain::ExplainArgs>),
    Kernels(kernels::KernelsArgs),
    Plans(plans::PlansArgs),
    Disasm(disasm::DisasmArgs),
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().command {
        Command::Report(args) => report::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Sequence(args) => sequence::run(&args),
        Command::Regret(args) => regret::run(&args),
        Command::OnnxTest(args) => onnx_test::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Plans(args) => plans::run(&args),
        Command::Disasm(args) => disasm::run(&args),
    };
    match verdict {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(1),
        Ok(Verdict::Incomplete) => ExitCode::from(2),
        Ok(Verdict::Interrupted) => ExitCode::from(interrupt::STATUS),
        Err(error) => {
            let message = format!("{BAD}error:{BAD:#} {error:#}");
            anstream::eprintln!("{}", wrapped(&message, line_width(false)));
            ExitCode::from(2)
        }
    }
}
