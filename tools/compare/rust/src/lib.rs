//! The protocol of `convoke-tools worker --help`: each line of standard input is a request, and
//! each line of standard output is an answer.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// A layer to be timed.
#[derive(Debug, Deserialize)]
pub struct Request {
    /// The layer.
    pub row: Row,
    /// The folder with its operands, and with the layer as `model.onnx` with input `x` and output
    /// `y`.
    pub dir: PathBuf,
    /// Threads that run it.
    pub threads: usize,
    secs: f64,
    out: Option<PathBuf>,
}

/// A layer: shapes, and attributes as in ONNX.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "ONNX's names")]
pub struct Row {
    pub op: String,
    pub x: Vec<usize>,
    pub w: Vec<usize>,
    pub y: Vec<usize>,
    pub strides: Vec<usize>,
    pub pads: Vec<usize>,
    pub dilations: Vec<usize>,
    pub group: usize,
    pub output_padding: Vec<usize>,
}

/// X, W and B.
#[derive(Debug)]
#[expect(missing_docs, reason = "ONNX's names")]
pub struct Operands {
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub b: Vec<f32>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Timing { min: f64, median: f64, reps: usize },
    Error { error: String },
}

/// A layer that is ready to run.
pub trait Layer {
    /// The result of a run: an output that the library owns.
    type Output;
    /// Runs the layer once. This is the timed part.
    ///
    /// # Errors
    /// The library's.
    fn run(&mut self) -> Result<Self::Output>;
    /// The values of an output.
    ///
    /// # Errors
    /// The library's.
    fn values(output: Self::Output) -> Result<Vec<f32>>;
}

/// Answers requests until standard input ends. `prepare` is not timed.
///
/// # Errors
/// The errors of standard input and output.
pub fn serve<L: Layer>(prepare: impl Fn(&Request, Operands) -> Result<L>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let answer = match answer(&line?, &prepare) {
            Ok(timing) => timing,
            Err(error) => Answer::Error { error: format!("{error:#}").chars().take(300).collect() },
        };
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn answer<L: Layer>(line: &str, prepare: &impl Fn(&Request, Operands) -> Result<L>) -> Result<Answer> {
    let request: Request = serde_json::from_str(line)?;
    let read = |name: &str| read(&request.dir.join(name));
    let mut layer = prepare(&request, Operands { x: read("x.bin")?, w: read("w.bin")?, b: read("b.bin")? })?;
    layer.run()?;
    layer.run()?;
    let (begin, mut seconds) = (Instant::now(), Vec::new());
    while begin.elapsed().as_secs_f64() < request.secs || seconds.len() < 3 {
        let start = Instant::now();
        let output = layer.run()?;
        seconds.push(start.elapsed().as_secs_f64());
        drop(output);
    }
    seconds.sort_by(f64::total_cmp);
    if let Some(path) = &request.out {
        let y = L::values(layer.run()?)?;
        ensure!(y.len() == request.row.y.iter().product::<usize>(), "an output of {} elements", y.len());
        fs::write(path, y.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())?;
    }
    Ok(Answer::Timing { min: seconds[0], median: seconds[seconds.len() / 2], reps: seconds.len() })
}

fn read(path: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(bytes.as_chunks().0.iter().map(|&v| f32::from_le_bytes(v)).collect())
}
