//! `worker`: times the layers that another program sends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use convoke::{Geometry, Layout, Plan, Workspace};
use convoke_tools::data::{ByteOperands, Numbers, Operands, Quantisation, tensor};
use convoke_tools::files;
use convoke_tools::shapes::{Layer, flops, parse_op};
use convoke_tools::timing::Timing;
use serde::{Deserialize, Serialize};

use super::{Verdict, warn_of_build};
use crate::layer_plan::{BytePlan, Io, LayerPlan};
use crate::options::{Choice, Team, parse_threads};
use crate::session::ensure_fits;

/// Time layers on request: one JSON object a line in, one out
///
/// It is for programs that compare several implementations. It reads requests from standard
/// input until that ends. Each request is one line with a JSON object, and is answered by one
/// line with a JSON object on standard output.
///
/// A request (in one line):
///
///   {"row": {"op": "Conv", "x": [1,64,56,56], "w": [64,64,3,3], "y": [1,64,56,56],
///            "strides": [1,1], "pads": [1,1,1,1], "dilations": [1,1], "group": 1,
///            "output_padding": [0,0]},
///    "dir": "DIR", "threads": 1, "secs": 0.2, "out": "y.bin"}
///
///   row      the layer: op is Conv or ConvTranspose; x, w and y are the shapes of input,
///            weights and output; the attributes mean what they mean in ONNX, and may be
///            left out; other fields are ignored
///   dir      a folder with x.bin, w.bin and b.bin: input, weights and bias as 32-bit
///            floats, little endian, row-major
///   threads  how many threads run the layer
///   secs     for how long to time; at least three runs are timed
///   out      a file to write the output to, in the form of x.bin; may be null
///
/// The row of a layer of bytes has the field "quantised", too: an object with the numbers x_scale,
/// x_zero_point, y_scale and y_zero_point, and the list w_scale, with a number for each output
/// channel. Then x.bin and the output have unsigned bytes, w.bin signed ones with the zero point
/// 0, and b.bin 32-bit integers, as ONNX's QLinearConv has them.
///
/// The answer: {"min": SECONDS, "median": SECONDS, "reps": COUNT}, or {"error": "TEXT"} for a
/// request that cannot be met. Planning and packing of the weights are outside the timed part.
/// Files are plain NCHW. With `--layout channels-last` the layer's input and output have their
/// channels last, and are converted from and to the files outside of the timed part, too.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    choice: Choice,
}

/// A line of input.
#[derive(Debug, Deserialize)]
struct Request {
    row: WorkerRow,
    dir: PathBuf,
    threads: usize,
    secs: f64,
    #[serde(default)]
    out: Option<PathBuf>,
}

/// The layer of a request.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct WorkerRow {
    #[serde(default)]
    name: String,
    op: String,
    x: Vec<usize>,
    w: Vec<usize>,
    y: Vec<usize>,
    #[serde(default)]
    strides: Vec<i64>,
    #[serde(default)]
    pads: Vec<i64>,
    #[serde(default)]
    dilations: Vec<i64>,
    #[serde(default = "one_group")]
    group: i64,
    #[serde(default)]
    output_padding: Vec<i64>,
    /// What the bytes of a layer of bytes mean.
    #[serde(default, skip_serializing)]
    quantised: Option<Quantisation>,
    /// Operations of the definition. Requests need not have it.
    #[serde(default)]
    flop: f64,
}

fn one_group() -> i64 {
    1
}

impl WorkerRow {
    /// The layer in the form of a request.
    pub(crate) fn new(layer: &Layer) -> Result<Self> {
        let geometry = layer.geometry()?;
        Ok(Self {
            name: layer.name.clone(),
            op: layer.op.to_string(),
            x: layer.x.clone(),
            w: layer.w.clone(),
            y: geometry.output_shape(),
            strides: layer.strides.clone(),
            pads: layer.pads.clone(),
            dilations: layer.dilations.clone(),
            group: layer.group,
            output_padding: layer.output_padding.clone(),
            quantised: None,
            flop: flops(&geometry),
        })
    }

    fn layer(&self) -> Result<Layer> {
        let axes = self.x.len().saturating_sub(2);
        let or_default = |given: &[i64], len, value| if given.is_empty() { vec![value; len] } else { given.to_vec() };
        Ok(Layer {
            name: self.name.clone(),
            op: parse_op(&self.op)?,
            x: self.x.clone(),
            w: self.w.clone(),
            strides: or_default(&self.strides, axes, 1),
            pads: or_default(&self.pads, 2 * axes, 0),
            dilations: or_default(&self.dilations, axes, 1),
            group: self.group,
            output_padding: or_default(&self.output_padding, axes, 0),
        })
    }
}

/// A line of output.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Timing { min: f64, median: f64, reps: usize },
    Error { error: String },
}

/// Answers requests until standard input ends.
pub(crate) fn run(args: &WorkerArgs) -> Result<Verdict> {
    warn_of_build();
    let mut worker = Worker { choice: args.choice.clone(), teams: HashMap::new() };
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.context("standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = match worker.answer(&line) {
            Ok(timing) => Answer::Timing { min: timing.min, median: timing.median, reps: timing.reps },
            Err(error) => Answer::Error { error: format!("{error:#}") },
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n").and_then(|()| output.flush()).context("standard output")?;
    }
    Ok(Verdict::Good)
}

/// What is kept from one request to the next.
struct Worker {
    choice: Choice,
    /// The teams, by their number of threads.
    teams: HashMap<usize, Team>,
}

impl Worker {
    fn answer(&mut self, line: &str) -> Result<Timing> {
        let request: Request = serde_json::from_str(line).context("not a request")?;
        parse_threads(&request.threads.to_string())
            .map_err(|e| anyhow::anyhow!("threads: {e}, got {}", request.threads))?;
        let duration = Duration::try_from_secs_f64(request.secs).context("secs")?;

        if request.row.quantised.is_some() {
            self.choice.ensure_suits(Numbers::Bytes)?;
            self.time::<BytePlan>(&request, duration)
        } else {
            self.time::<Plan<f32>>(&request, duration)
        }
    }

    fn time<P: FilePlan>(&mut self, request: &Request, duration: Duration) -> Result<Timing> {
        let layer = request.row.layer()?;
        let operator = self.choice.operator(layer.operator());
        let plan = P::new(&self.choice.planner()?.threads(request.threads), operator, &layer.x)?;
        ensure_fits(&plan)?;
        let geometry = plan.facts().geometry;
        let shape = geometry.output_shape();
        ensure!(shape == request.row.y, "y: the output's shape is {shape:?}, not {:?}", request.row.y);

        let operands = P::read(geometry, request)?;
        let (x, packed) = (P::x(&operands), plan.pack(&operands)?);
        let mut y = tensor(std::iter::repeat_n(P::unwritten(), geometry.output_len()));
        let mut workspace = Workspace::with_bytes(plan.facts().workspace_bytes)?;
        let team = match self.teams.entry(request.threads) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Team::new(request.threads)?),
        };
        let timing = team.install(|threads| {
            Timing::measure(duration, || plan.run(&packed, Io { x, y: &mut y, workspace: &mut workspace, threads }))
        })?;
        if let Some(path) = &request.out {
            // The way back exchanges channels and positions.
            let y = with_layout(y.to_vec(), geometry.y_layout, geometry.output_spatial(), geometry.out_channels);
            fs::write(path, P::bytes(&y)).with_context(|| path.display().to_string())?;
        }
        Ok(timing)
    }
}

/// A plan of a layer whose operands are files.
trait FilePlan: LayerPlan {
    /// Reads X, W and B, with X in the layer's layout.
    fn read(geometry: &Geometry, request: &Request) -> Result<Self::Operands>;
    /// A tensor as a file has it.
    fn bytes(y: &[Self::Element]) -> Vec<u8>;
}

impl FilePlan for Plan<f32> {
    fn read(geometry: &Geometry, Request { dir, .. }: &Request) -> Result<Operands<f32>> {
        Ok(Operands {
            x: tensor(x_with_layout(geometry, read(dir, "x.bin", geometry.input_len(), f32::from_le_bytes)?)),
            w: read(dir, "w.bin", geometry.weight_len(), f32::from_le_bytes)?,
            b: read(dir, "b.bin", geometry.out_channels, f32::from_le_bytes)?,
        })
    }

    fn bytes(y: &[f32]) -> Vec<u8> {
        y.iter().flat_map(|y| y.to_le_bytes()).collect()
    }
}

impl FilePlan for BytePlan {
    fn read(geometry: &Geometry, Request { dir, row, .. }: &Request) -> Result<ByteOperands> {
        Ok(ByteOperands {
            x: tensor(x_with_layout(geometry, read(dir, "x.bin", geometry.input_len(), u8::from_le_bytes)?)),
            w: read(dir, "w.bin", geometry.weight_len(), i8::from_le_bytes)?,
            b: read(dir, "b.bin", geometry.out_channels, i32::from_le_bytes)?,
            quantisation: row.quantised.clone().context("quantised: it is missing")?,
        })
    }

    fn bytes(y: &[u8]) -> Vec<u8> {
        y.to_vec()
    }
}

/// X, which lies with channels first, in the layer's layout.
fn x_with_layout<E: Copy + Default>(geometry: &Geometry, x: Vec<E>) -> Vec<E> {
    with_layout(x, geometry.x_layout, geometry.in_channels, geometry.input_spatial())
}

/// The images of a tensor with `channels` rows of `positions` elements, in a layout.
fn with_layout<E: Copy + Default>(x: Vec<E>, layout: Layout, channels: usize, positions: usize) -> Vec<E> {
    if layout == Layout::ChannelsFirst {
        return x;
    }
    let mut last = vec![E::default(); x.len()];
    let len = (channels * positions).max(1);
    for (image, last) in x.chunks_exact(len).zip(last.chunks_exact_mut(len)) {
        for (c, row) in image.chunks_exact(positions).enumerate() {
            last[c..].iter_mut().step_by(channels).zip(row).for_each(|(to, from)| *to = *from);
        }
    }
    last
}

/// Reads a file of `len` little-endian numbers of `N` bytes.
fn read<E, const N: usize>(dir: &Path, file: &str, len: usize, number: fn([u8; N]) -> E) -> Result<Vec<E>> {
    let path = dir.join(file);
    let bytes = files::read(&path, files::TENSOR)?;
    let (values, rest) = bytes.as_chunks();
    let fits = values.len() == len && rest.is_empty();
    ensure!(fits, "{}: {} bytes, expected {len} numbers of {N}", path.display(), bytes.len());
    Ok(values.iter().map(|&value| number(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LayoutName;
    use convoke::reference;

    fn worker() -> Worker {
        Worker { choice: Choice::default(), teams: HashMap::new() }
    }

    fn write(path: &Path, values: &[f32]) {
        fs::write(path, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    }

    /// A layer, written as a request, and its expected output, both with channels first.
    fn request(dir: &Path, threads: usize) -> (serde_json::Value, Vec<f64>) {
        let row = serde_json::json!({
            "name": "t", "op": "ConvTranspose", "x": [2, 3, 5], "w": [3, 4, 3], "y": [2, 4, 10], "strides": [2],
            "pads": [1, 1], "dilations": [1], "group": 1, "output_padding": [1], "flop": 1
        });
        let layer = serde_json::from_value::<WorkerRow>(row.clone()).unwrap().layer().unwrap();
        let geometry = layer.geometry().unwrap();
        let operands = Operands::<f32>::new(&geometry);
        write(&dir.join("x.bin"), &operands.x);
        write(&dir.join("w.bin"), &operands.w);
        write(&dir.join("b.bin"), &operands.b);
        let expected = reference::all(&geometry, &operands.x, &operands.w, Some(&operands.b));
        let request =
            serde_json::json!({"row": row, "dir": dir, "threads": threads, "secs": 0.0, "out": dir.join("y.bin")});
        (request, expected.iter().map(|e| e.value).collect())
    }

    #[test]
    fn round_trip() {
        round_trip_with(worker());
    }

    /// Files have their channels first in any case.
    #[test]
    fn round_trip_with_channels_last() {
        let choice = Choice { layout: LayoutName::ChannelsLast, ..Choice::default() };
        round_trip_with(Worker { choice, ..worker() });
    }

    fn round_trip_with(mut worker: Worker) {
        let dir = tempfile::tempdir().unwrap();
        for threads in [1, 2, 2] {
            let (request, expected) = request(dir.path(), threads);
            let timing = worker.answer(&request.to_string()).unwrap();
            assert!(timing.reps >= 3 && timing.min > 0.0 && timing.min <= timing.median);
            let y = read(dir.path(), "y.bin", expected.len(), f32::from_le_bytes).unwrap();
            assert!(y.iter().zip(&expected).all(|(y, e)| (f64::from(*y) - e).abs() < 1e-5), "{y:?} {expected:?}");
            fs::remove_file(dir.path().join("y.bin")).unwrap();
        }
        assert_eq!(worker.teams.len(), 2, "the pool of two threads was used again");
    }

    #[test]
    fn defaults_of_attributes() {
        let row: WorkerRow =
            serde_json::from_str(r#"{"op": "Conv", "x": [1,2,5], "w": [4,2,3], "y": [1,4,3]}"#).unwrap();
        assert_eq!(row.layer().unwrap().geometry().unwrap().output_shape(), [1, 4, 3]);
    }

    #[test]
    fn bad_requests_are_answered_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (good, _) = request(dir.path(), 1);
        let with = |pointer: &str, value: serde_json::Value| {
            let mut request = good.clone();
            *request.pointer_mut(pointer).unwrap() = value;
            request.to_string()
        };
        for (line, reason) in [
            ("{".to_owned(), "not a request"),
            (with("/threads", 0.into()), "threads"),
            (with("/secs", (-1.0).into()), "secs"),
            (with("/row/op", "Gemm".into()), "Gemm"),
            (with("/row/group", 2.into()), "group"),
            (with("/row/y", vec![2, 4, 9].into()), "[2, 4, 10], not [2, 4, 9]"),
            (with("/row/x", vec![2, 3, 6].into()), "not [2, 4, 10]"),
            (with("/dir", "no such folder".into()), "x.bin"),
        ] {
            let error = format!("{:#}", worker().answer(&line).unwrap_err());
            assert!(error.contains(reason), "{line}: {error}");
        }
        write(&dir.path().join("w.bin"), &[0.0; 35]);
        let error = format!("{:#}", worker().answer(&good.to_string()).unwrap_err());
        assert!(error.contains("140 bytes, expected 36 numbers of 4"), "{error}");
    }
}
