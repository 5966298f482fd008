//! What LLVM's models of CPUs say of loops, by `llvm-mca`: it runs them in a model of a CPU's ports, latencies
//! and buffers, with every load in the L1 cache.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use convoke::Isa;
use serde::Deserialize;

/// The models for each ISA. LLVM has none of the Cortex-A76: its own name stands for the model of the
/// Cortex-A57, and the Neoverse N1 has the same core.
pub(crate) const MODELS: [(Isa, &[&str]); 3] = [
    (Isa::Neon, &["cortex-a72", "neoverse-n1", "neoverse-v1", "apple-m1"]),
    (Isa::Avx2, &["haswell", "znver3"]),
    (Isa::Avx512, &["znver4", "icelake-server", "sapphirerapids"]),
];

/// Iterations of each loop. The first ones, which fill the pipeline, count as well. More of them take minutes.
const ITERATIONS: usize = 200;

/// Share of its cycles in which a port or the front end is busy if it is what bounds a loop.
const BUSY: f64 = 0.95;

/// What a model says of a loop.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Estimate {
    /// Cycles of an iteration.
    pub(crate) cycles: f64,
    /// The share of the model's peak that the multiply-adds have.
    pub(crate) share: f64,
    /// What is busy all the time: the units that multiply, another port, or `dispatch`; or `latency`.
    pub(crate) bound: String,
}

/// The instructions of a loop, as the disassembler prints them, and how many of them are multiply-adds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loop {
    pub(crate) instructions: Vec<String>,
    pub(crate) fmas: usize,
}

impl Loop {
    /// Independent multiply-adds of f32, as many as an ISA has registers for.
    fn peak(isa: Isa) -> Self {
        let fma = |sum: usize| match isa {
            Isa::Avx512 => format!("vfmadd231ps zmm{sum}, zmm30, zmm31"),
            Isa::Avx2 => format!("vfmadd231ps ymm{sum}, ymm14, ymm15"),
            // By a lane, as tiles multiply: the model of Apple's CPUs takes longer for whole vectors.
            _ => format!("fmla v{sum}.4s, v30.4s, v31.s[0]"),
        };
        let fmas = if isa == Isa::Avx2 { 14 } else { 30 };
        Self { instructions: (0..fmas).map(fma).collect(), fmas }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Output {
    code_regions: Vec<Region>,
    target_info: Target,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Target {
    resources: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Region {
    instructions: Vec<String>,
    resource_pressure_view: Pressure,
    summary_view: Simulation,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pressure {
    resource_pressure_info: Vec<Usage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Usage {
    instruction_index: usize,
    resource_index: usize,
    resource_usage: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Simulation {
    dispatch_width: f64,
    iterations: f64,
    total_cycles: f64,
    #[serde(rename = "TotaluOps")]
    total_uops: f64,
}

impl Region {
    fn cycles(&self) -> f64 {
        self.summary_view.total_cycles / self.summary_view.iterations
    }

    /// Cycles of an iteration in which each port is busy. They come behind those of each instruction.
    fn ports(&self) -> impl Iterator<Item = (usize, f64)> {
        let sums = self.resource_pressure_view.resource_pressure_info.iter();
        sums.filter(|usage| usage.instruction_index == self.instructions.len())
            .map(|usage| (usage.resource_index, usage.resource_usage))
    }
}

/// What the model of a CPU says of loops of an ISA.
///
/// # Errors
/// If the program cannot be run, or does not know an instruction.
pub(crate) fn estimates(program: &str, isa: Isa, cpu: &str, loops: &[&Loop]) -> Result<Vec<Estimate>> {
    let peak = Loop::peak(isa);
    let all: Vec<_> = [&peak].into_iter().chain(loops.iter().copied()).collect();
    let triple = if isa == Isa::Neon { "aarch64" } else { "x86_64" };
    let mut child = Command::new(program)
        .args([&format!("-mtriple={triple}"), &format!("-mcpu={cpu}"), &format!("-iterations={ITERATIONS}")])
        .args(["-json", "-instruction-info=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.to_owned())?;
    child.stdin.take().context("a pipe")?.write_all(assembly(isa, &all).as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    read(&String::from_utf8(output.stdout)?, &all)
}

/// A program for the assembler, in which marks surround each loop.
fn assembly(isa: Isa, loops: &[&Loop]) -> String {
    let syntax = if isa == Isa::Neon { "" } else { ".intel_syntax noprefix\n" };
    let mut text = String::from(syntax);
    for (i, Loop { instructions, .. }) in loops.iter().enumerate() {
        text += &format!("# LLVM-MCA-BEGIN {i}\n");
        for instruction in instructions {
            // An address with its symbol, such as `0x30c <function+0x30c>`: any label does.
            let line = match instruction.split_once(" <") {
                Some((before, _)) => format!("{} label", before.rsplit_once(' ').map_or("", |(before, _)| before)),
                None => instruction.clone(),
            };
            text += &format!("{line}\n");
        }
        text += "# LLVM-MCA-END\n";
    }
    text
}

/// Reads what `llvm-mca` prints for the loops, the first of which shows the peak.
fn read(json: &str, loops: &[&Loop]) -> Result<Vec<Estimate>> {
    let Output { code_regions: regions, target_info } = serde_json::from_str(json).context("llvm-mca's JSON")?;
    ensure!(regions.len() == loops.len(), "llvm-mca tells of {} loops, not {}", regions.len(), loops.len());
    let multipliers: Vec<_> = regions[0].ports().map(|(port, _)| port).collect();
    let peak = loops[0].fmas as f64 / regions[0].cycles();
    let estimate = |(region, Loop { fmas, .. }): (&Region, &&Loop)| {
        let (cycles, summary) = (region.cycles(), &region.summary_view);
        let dispatch = summary.total_uops / summary.iterations / summary.dispatch_width;
        let busiest = region.ports().max_by(|(_, first), (_, second)| first.total_cmp(second));
        let bound = match busiest {
            Some((port, usage)) if usage >= BUSY * cycles && multipliers.contains(&port) => "FMA units",
            // Ports that are alike have a number behind a dot.
            Some((port, usage)) if usage >= BUSY * cycles => {
                target_info.resources[port].split('.').next().unwrap_or_default()
            }
            _ if dispatch >= BUSY * cycles => "dispatch",
            _ => "latency",
        };
        Estimate { cycles, share: *fmas as f64 / cycles / peak, bound: bound.to_owned() }
    };
    Ok(regions.iter().zip(loops).skip(1).map(estimate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_a_label() {
        let text =
            |instruction: &str, isa| assembly(isa, &[&Loop { instructions: vec![instruction.to_owned()], fmas: 0 }]);
        let arm = text("tbnz w8, #3, 0x30c <f+0x30c>", Isa::Neon);
        assert_eq!(arm, "# LLVM-MCA-BEGIN 0\ntbnz w8, #3, label\n# LLVM-MCA-END\n");
        let x86 = text("jne 0x30c <f::<4>+0x30c>", Isa::Avx2);
        assert_eq!(x86, ".intel_syntax noprefix\n# LLVM-MCA-BEGIN 0\njne label\n# LLVM-MCA-END\n");
    }

    /// A region with one instruction, in which each port is busy for some cycles.
    fn region(cycles: f64, uops: f64, ports: &[f64]) -> String {
        let port = |(i, usage): (usize, &f64)| {
            format!(r#"{{"InstructionIndex": 1, "ResourceIndex": {i}, "ResourceUsage": {usage}}}"#)
        };
        let ports: Vec<_> = ports.iter().enumerate().map(port).collect();
        format!(
            r#"{{"Instructions": ["i"], "ResourcePressureView": {{"ResourcePressureInfo": [{}]}}, "SummaryView":
               {{"DispatchWidth": 4, "Iterations": 10, "TotalCycles": {}, "TotaluOps": {}}}}}"#,
            ports.join(", "),
            10.0 * cycles,
            10.0 * uops
        )
    }

    #[test]
    fn what_is_busy_bounds_a_loop() {
        // At its peak, the first port multiplies twice a cycle.
        let regions = [
            region(15.0, 30.0, &[15.0]),
            region(8.0, 20.0, &[8.0, 4.0]),
            region(8.0, 20.0, &[4.0, 7.9]),
            region(8.0, 32.0, &[4.0, 4.0]),
            region(10.0, 20.0, &[8.0, 4.0]),
        ];
        let json = format!(
            r#"{{"CodeRegions": [{}], "TargetInfo": {{"Resources": ["UnitV", "UnitL.1"]}}}}"#,
            regions.join(", ")
        );
        let (peak, body) = (Loop::peak(Isa::Neon), Loop { instructions: Vec::new(), fmas: 16 });
        let found = read(&json, &[&peak, &body, &body, &body, &body]).unwrap();
        let bounds: Vec<_> = found.iter().map(|estimate| estimate.bound.as_str()).collect();
        assert_eq!(bounds, ["FMA units", "UnitL", "dispatch", "latency"]);
        assert_eq!((found[0].share, found[3].share), (1.0, 0.8));
        assert!(read(&json, &[&peak]).is_err(), "a loop is missing");
    }
}
