//! Tests of the binary on its command line.

mod common;

use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{Folder, ints};
use convoke_tools::onnx::proto::{AttributeProto, AttributeType, DataType, GraphProto};
use serde_json::{Value, json};

/// Runs the binary to its end.
fn run(args: &[&str]) -> Output {
    run_with_input(args, "")
}

fn run_with_input(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-tools"));
    // Messages are not broken into the lines of a terminal.
    let command = command.args(args).env_remove("COLUMNS").stdin(Stdio::piped());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads nothing may already have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts that a command fails with the status of bad input, and with this message.
fn assert_bad_input(args: &[&str], message: &str) {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(stderr.contains(message), "{args:?}: {stderr}");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_command_has_help() {
    for command in ["report", "profile", "onnx-test", "worker", "explain", "kernels", "plans", "disasm"] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success() && stdout(&output).len() > 300, "{command}");
    }
    for command in ["report", "profile"] {
        let help = stdout(&run(&[command, "--help"]));
        assert!(["of limit", "Winograd", "130"].iter().all(|word| help.contains(word)), "{help}");
    }
    let help = stdout(&run(&["worker", "--help"]));
    for word in ["\"row\"", "x.bin", "\"median\"", "little endian"] {
        assert!(help.contains(word), "the protocol is stated: {word}");
    }
}

#[test]
fn onnx_test_passes_all_types() {
    let dir = tempfile::tempdir().unwrap();
    Folder::conv().write(&dir.path().join("inputs"));
    for to in [DataType::Float, DataType::Double, DataType::Float16, DataType::Bfloat16] {
        Folder::conv().cast(to).write(&dir.path().join(format!("{to:?}")));
    }
    let mut other = Folder::conv();
    other.op_type = "MaxPool";
    other.write(&dir.path().join("other"));
    let output = run(&["onnx-test", path(dir.path())]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.lines().last(), Some("5 passed, 0 failed"), "{text}");
    assert!(text.lines().all(|line| !line.contains('\x1b')), "no colour outside a terminal");

    let text = stdout(&run(&["onnx-test", "--all-algorithms", path(&dir.path().join("inputs"))]));
    assert!(text.contains("; naive,") && text.contains("; im2col:native,") && text.ends_with(" 0 failed\n"), "{text}");
    let output = run(&["onnx-test", "--algorithm", "naive", "--isa", "portable", "--quiet", path(dir.path())]);
    assert_eq!(stdout(&output), "5 passed, 0 failed\n");
}

#[test]
fn onnx_test_fails_on_a_wrong_output() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = |name: &str, break_it: &dyn Fn(&mut Folder)| {
        let mut folder = Folder::conv();
        break_it(&mut folder);
        folder.write(&dir.path().join(name));
    };
    wrong("good", &|_| ());
    wrong("value", &|folder| folder.output.float_data[3] += 0.01);
    wrong("not-a-number", &|folder| folder.output.float_data[2] = f32::NAN);
    wrong("shape", &|folder| folder.output.dims = vec![1, 4, 1]);
    wrong("attribute", &|folder| folder.attributes.push(ints("stride", &[1])));
    wrong("data", &|folder| folder.inputs[1].float_data.clear());
    let output = run(&["onnx-test", path(dir.path())]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.ends_with("\n1 passed, 5 failed\n"), "{text}");
    assert!(text.contains("element 3 is 4.5, expected 4.51"), "{text}");

    let lenient = run(&["onnx-test", "--atol", "0.02", path(&dir.path().join("value"))]);
    assert_eq!(lenient.status.code(), Some(0));
}

#[test]
fn onnx_test_needs_a_test() {
    let dir = tempfile::tempdir().unwrap();
    assert_bad_input(&["onnx-test", path(dir.path())], "no test was run");
    assert_bad_input(&["onnx-test", "no/such/folder"], "no/such/folder");
    assert_bad_input(&["onnx-test", "--rtol", "-1", path(dir.path())], "tolerance");
}

#[test]
fn report_of_a_small_layer() {
    let args = ["report", "--filter", "bilinear,enet.5x1", "--seconds", "0.01", "--json"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let layers = report["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        assert!(layer["gflops"].as_f64().unwrap() > 0.0 && layer["within_bound"] == true, "{layer}");
        assert!(layer["error_of_bound"].as_f64().unwrap() > 0.0, "something was compared: {layer}");
    }
    for layer in layers {
        let limit = layer["limit"].as_str().unwrap();
        assert!(["FMA", "L1", "L2", "L3", "DRAM"].contains(&limit), "{layer}");
        let (at_limit, best) = (layer["seconds_at_limit"].as_f64().unwrap(), layer["seconds_best"].as_f64().unwrap());
        let share = layer["share_of_limit"].as_f64().unwrap();
        assert!(at_limit > 0.0 && (share - at_limit / best).abs() < 1e-9, "{layer}");
    }
    let bandwidth = report["machine"]["read_bandwidth"].as_object().unwrap().values().next().unwrap();
    assert!(["L1", "L2", "L3", "DRAM"].iter().all(|level| bandwidth[level].as_f64() > Some(0.1)), "{bandwidth}");
    let peaks = report["machine"]["fma_peak"].as_object().unwrap();
    assert!(peaks.values().all(|peak| peak.as_f64() > Some(0.01)) && !peaks.is_empty(), "{peaks:?}");

    let output = run(&["report", "--filter", "enet.5x1", "--seconds", "0", "--cold", "--threads", "2"]);
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("2 threads, all but X from memory in each run"), "{text}");

    for dtype in ["f32", "f64", "f16", "bf16", "u8"] {
        let output = run(&["report", "--filter", "enet.5x1", "--seconds", "0", "--dtype", dtype, "--threads", "2"]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("enet.5x1.32@64") && text.contains("2 threads") && text.contains("GFLOP/s"), "{text}");
    }
}

#[test]
fn report_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new/report");
    let output =
        run(&["report", "--filter", "bilinear,enet.5x1,googlenet", "--seconds", "0", "--output", path(&folder)]);
    assert_eq!(output.status.code(), Some(0));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    let layers = report["layers"].as_array().unwrap().len();
    assert_eq!((layers, read("layers.csv").lines().count()), (3, 4));
    let page = read("index.html");
    for name in ["enet.5x1.32@64", "bilinear.dw4x4s2.32@64", "googlenet.3a.5x5.16-32@28"] {
        assert!(page.contains(name), "{name}");
    }
    let outside = page.matches("http").count() - page.matches("http://www.w3.org/2000/svg").count();
    assert_eq!((outside, page.matches("src=").count()), (0, 0), "the page needs no other file");
    let pictures =
        fs::read_dir(&folder).unwrap().flatten().filter(|e| e.path().extension().is_some_and(|e| e == "svg"));
    let pictures: Vec<_> = pictures.map(|e| fs::read_to_string(e.path()).unwrap()).collect();
    assert_eq!(page.matches("<figure>").count(), pictures.len());
    let date = &report["machine"]["date"].as_str().unwrap()[..10];
    for picture in &pictures {
        assert!(picture.contains("</svg>") && picture.contains("rustc") && picture.contains(date), "{picture}");
    }
    assert!(pictures.len() >= 2, "a roofline and the networks at least");
    // The other instruction sets and numbers of threads have the same layers.
    for series in report["comparisons"].as_array().unwrap() {
        assert_eq!(series["gflops"].as_object().unwrap().len(), layers, "{series}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_bad_input(&["report", "--output", path(&file)], "is not a folder");
    assert_bad_input(&["report", "--output", path(&file.join("below"))], "does not exist, and cannot be made");
}

/// Ctrl-C in the middle of a report, after the first of five layers.
#[cfg(unix)]
#[test]
fn an_interrupted_report_keeps_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-tools"));
    let command = command.args(["report", "--seconds", "1", "--filter", "mbv2.dw", "--output", path(dir.path())]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("mbv2.dw")));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert!(lines.any(|line| line.contains("nterrupted")));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(report["interrupted"], true);
    assert!(read("index.html").contains("Interrupted"));
    assert!((1..5).contains(&report["layers"].as_array().unwrap().len()), "{report}");
}

/// The JSON is whole at whatever moment the report is interrupted.
#[cfg(unix)]
#[test]
fn an_interrupted_report_is_json() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-tools"));
    let command = command.args(["report", "--json", "--seconds", "1", "--filter", "mbv2.dw"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["interrupted"], true);
    assert!(report["layers"].as_array().unwrap().len() < 5, "{report}");
}

/// The width of the terminal, as programs can set it.
fn run_in_columns(columns: usize, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-tools"));
    let output = command.args(args).env("COLUMNS", columns.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// The heads of the first table: those of the line that begins with the first of them.
fn heads<'a>(text: &'a str, first: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(first) && line.contains("algorithm")).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn tables_fit_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    let mut network = common::network();
    network.node[0].name = "/features/features.0/features.0.0/a/node/with/a/long/name/of/its/own/Conv".into();
    fs::write(&file, common::model(network)).unwrap();
    let report = ["report", "--filter", "bilinear,enet.5x1,flownet", "--seconds", "0"];
    let profile = ["profile", path(&file), "--dim", "batch=1", "--seconds", "0"];
    for (args, first) in [(&report[..], "layer"), (&profile[..], "node")] {
        let (narrow, wide) = (run_in_columns(80, args), run_in_columns(120, args));
        for (text, columns) in [(&narrow, 80), (&wide, 120)] {
            let longest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            // A name without spaces, such as a path, is not broken.
            assert!(longest.chars().count() <= columns || longest.contains(path(&file)), "{columns}: {longest:?}");
        }
        let five = [first, "algorithm", "best", "GFLOP/s", "of limit"].join(" ");
        assert_eq!(heads(&narrow, first).split_whitespace().collect::<Vec<_>>().join(" "), five);
        let more = ["kernel", "FMA"].iter().filter(|head| heads(&wide, first).contains(**head)).count();
        assert!(more > 0, "{wide}");
        let all = run_in_columns(80, &[args, &["--wide"]].concat());
        assert!(["geometry", "kernel", "median", "workspace"].iter().all(|head| heads(&all, first).contains(head)));
    }
    assert!(run_in_columns(80, &profile).contains("/features/fea…"), "long names are shortened");
}

/// The first row is there long before the last layer was measured, in a pipe too.
#[test]
fn rows_appear_as_they_are_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoke-tools"));
    let layers = "enet.5x1,bilinear,googlenet,shufflenetv2";
    let command = command.args(["report", "--filter", layers, "--seconds", "1"]).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.find(|line| line.starts_with("shufflenetv2") || line.starts_with("googlenet"));
    assert!(first.is_some());
    let begin = std::time::Instant::now();
    assert!(lines.any(|line| line.starts_with("bilinear")));
    // Two layers are between them.
    assert!(begin.elapsed().as_secs_f64() > 2.0, "{:?}", begin.elapsed());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_quick_report_has_12_layers() {
    let output = run(&["report", "--quick", "--seconds", "0", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["layers"].as_array().unwrap().len(), 12);
    // Eight kinds, and all together.
    assert_eq!(report["summary"].as_array().unwrap().len(), 8 + 1);
    let text = stdout(&run(&["report", "--quick", "--filter", "resnet50", "--list"]));
    assert_eq!(text.lines().count(), 3, "{text}");
    assert_bad_input(&["report", "--quick", "--shapes", "mine.csv"], "--shapes");
}

#[test]
fn the_efficiency_of_threads_is_printed() {
    let of = |threads: &[&str]| {
        let layers = ["report", "--filter", "enet.5x1,googlenet", "--seconds", "0", "--scaling"];
        run(&[&layers[..], threads].concat())
    };
    // More threads than most machines have cores, out of order and twice.
    let text = stdout(&of(&["64,3,3,1"]));
    let table: Vec<_> = text.split_once("Efficiency on more threads:\n").unwrap().1.lines().take(4).collect();
    assert!(table[0].starts_with("layer") && table[0].ends_with("3 threads  64 threads"), "{table:#?}");
    assert!(table[3].starts_with("geometric mean") && table[3].matches('%').count() == 2, "{table:#?}");
    let report: Value = serde_json::from_str(&stdout(&of(&["2", "--json"]))).unwrap();
    let threads: Vec<_> = report["comparisons"].as_array().unwrap().iter().map(|series| &series["threads"]).collect();
    assert_eq!(threads, [2, 1]);
    assert!(stdout(&of(&[])).contains("geometric mean"));
    assert_bad_input(&["report", "--scaling", "1,0"], "1..=");
    assert_bad_input(&["report", "--scaling", "2", "--threads", "2"], "--threads");
}

#[test]
fn more_threads_than_cpus_are_warned_of() {
    let warnings = |threads: usize| {
        let threads = threads.to_string();
        let output = run(&["report", "--filter", "enet.5x1", "--seconds", "0", "--threads", &threads]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap().matches("wait for each other").count()
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!((warnings(cpus), warnings(cpus + 1)), (0, 1));
}

#[test]
fn profile_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    let mut network = common::network();
    // A third convolution, of the same shape as the second.
    network.node.push(common::node("Conv", &["relu", "w2"], "conv3", &[ints("pads", &[1, 1, 1, 1])]));
    fs::write(&file, common::model(network)).unwrap();
    let args = |rest: &[&'static str]| [&["profile", path(&file), "--seconds", "0"], rest].concat();
    let output = run(&args(&["--dim", "batch=2", "--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let nodes = profile["nodes"].as_array().unwrap();
    let names: Vec<_> = nodes.iter().map(|n| n["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["conv1", "conv2", "up", "conv3"]);
    assert_eq!(nodes[1]["seconds_best"], nodes[3]["seconds_best"], "the same shape is timed once");
    for node in nodes {
        assert!(node["within_bound"] == true && node["packed_bytes"].as_u64() > Some(0), "{node}");
        assert!(node["why"].as_str().unwrap().starts_with("est. "), "{node}");
        assert!(node["candidates"].as_array().unwrap().len() > 5, "{node}");
    }
    let sum: f64 = nodes.iter().map(|n| n["seconds_best"].as_f64().unwrap()).sum();
    assert!((profile["totals"]["seconds"].as_f64().unwrap() - sum).abs() < 1e-12);
    let text = stdout(&run(&args(&["--dim", "batch=2", "--threads", "2"])));
    assert!(
        text.contains("2x4x10x12 -> 2x8x10x12") && text.contains("2 threads") && text.contains("of limit"),
        "{text}"
    );

    assert_layout_is_taken(&args(&["--dim", "batch=2"]));

    let without_batch: Vec<&str> = args(&[]);
    assert_bad_input(&without_batch, "--dim batch=1");
    assert_bad_input(&args(&["--dim", "batch"]), "NAME=SIZE");
    assert_bad_input(&["profile", "no/such/model.onnx"], "no/such/model.onnx");
    fs::write(&file, "text").unwrap();
    assert_bad_input(&without_batch, "not an ONNX model");
}

#[test]
fn sequence_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    fs::write(&file, common::model(common::network())).unwrap();
    let args = |rest: &[&'static str]| [&["sequence", path(&file), "--seconds", "0"], rest].concat();
    let output = run(&args(&["--dim", "batch=2", "--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let sequence: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let layers = sequence["layers"].as_array().unwrap();
    let names: Vec<_> = layers.iter().map(|layer| layer["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["conv1", "conv2", "up"]);
    let sum = |key: &str| layers.iter().map(|layer| layer[key].as_f64().unwrap()).sum::<f64>();
    for key in ["seconds_in_sequence", "seconds_alone"] {
        assert!(layers.iter().all(|layer| layer[key].as_f64() > Some(0.0)), "{sequence}");
        assert!((sequence[key].as_f64().unwrap() - sum(key)).abs() < 1e-12, "{sequence}");
    }
    assert!(sequence["seconds_of_round"].as_f64().unwrap() >= sum("seconds_in_sequence"), "{sequence}");
    assert_eq!(sequence["packed_bytes"].as_f64(), Some(sum("packed_bytes")));
    let text = stdout(&run(&args(&["--dim", "batch=2", "--threads", "2"])));
    assert!(text.contains("in sequence") && text.contains("2 threads") && text.contains("rounds took"), "{text}");
    assert_layout_is_taken(&args(&["--dim", "batch=2"]));
    assert_bad_input(&args(&[]), "--dim batch=1");
}

/// Asserts that a command plans the layers of a model with channels last, if it is told to.
fn assert_layout_is_taken(args: &[&str]) {
    let refuses = |layout: &'static str| {
        let output = run(&[args, &["--layout", layout, "--algorithm", "grouped"]].concat());
        let text = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
        text.contains("Conv: grouped cannot be used: X has its channels last")
    };
    assert!(!refuses("channels-first") && refuses("channels-last"), "{args:?}");
}

#[test]
fn regret_of_random_layers() {
    let args = ["regret", "--layers", "4", "--filter", "3x3,1x1", "--seconds", "0", "--json"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let regret: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let layers = regret["layers"].as_array().unwrap();
    assert!(!layers.is_empty());
    for layer in layers {
        let times = layer["times"].as_array().unwrap();
        assert_eq!(times[0]["algorithm"], layer["picked"]);
        let seconds = |time: &Value| time["seconds"].as_f64().unwrap();
        let fastest = times.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap();
        assert_eq!(fastest["algorithm"], layer["fastest"]);
        assert!((layer["share"].as_f64().unwrap() - seconds(fastest) / seconds(&times[0])).abs() < 1e-9, "{layer}");
    }
    assert!(regret["share"].as_f64() <= Some(1.0), "{regret}");
    let text = stdout(&run(&args[..args.len() - 1]));
    assert!(text.contains("Geometric mean of the shares"), "{text}");
    assert_bad_input(&["regret", "--layers", "0"], "1..=");
    assert_bad_input(&["regret", "--within", "nan"], "at least 1");
    assert_bad_input(&["regret", "--filter", "nothing"], "no layer's name contains \"nothing\"");
}

/// A network that says nothing about the values between its nodes. Each convolution after the
/// first needs the shape of its pooled and joined input.
fn network_without_shapes() -> GraphProto {
    let weights = |name: &str, dims: &[i64]| {
        let elements = usize::try_from(dims.iter().product::<i64>()).unwrap();
        common::floats(name, dims, &vec![0.25; elements])
    };
    let axis = AttributeProto { name: "axis".into(), i: 1, r#type: AttributeType::Int.into(), ..Default::default() };
    GraphProto {
        node: vec![
            common::node("Conv", &["x", "w1"], "conv1", &[ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])]),
            common::node("Relu", &["conv1"], "relu", &[]),
            common::node("MaxPool", &["relu"], "pool", &[ints("kernel_shape", &[3, 3]), ints("strides", &[2, 2])]),
            common::node("Conv", &["pool", "w2"], "conv2", &[ints("pads", &[1, 1, 1, 1])]),
            common::node("Concat", &["pool", "conv2"], "both", &[axis]),
            common::node("ConvTranspose", &["both", "w3"], "up", &[ints("strides", &[2, 2])]),
        ],
        initializer: vec![weights("w1", &[8, 4, 3, 3]), weights("w2", &[8, 8, 3, 3]), weights("w3", &[16, 3, 2, 2])],
        input: vec![common::value("x", &["batch", "4", "18", "22"])],
        output: vec![common::value("up", &["batch", "3", "8", "10"])],
        value_info: Vec::new(),
    }
}

#[test]
fn profile_infers_the_shapes_that_a_model_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    fs::write(&file, common::model(network_without_shapes())).unwrap();
    let output = run(&["profile", path(&file), "--seconds", "0", "--dim", "batch=2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let nodes = profile["nodes"].as_array().unwrap();
    let found: Vec<_> = nodes.iter().map(|n| (n["name"].as_str().unwrap(), n["geometry"].as_str().unwrap())).collect();
    let expected = [
        ("conv1", "Conv 2x4x18x22 -> 2x8x9x11 k3x3 s2 p1"),
        ("conv2", "Conv 2x8x4x5 -> 2x8x4x5 k3x3 p1"),
        ("up", "ConvTranspose 2x16x4x5 -> 2x3x8x10 k2x2 s2"),
    ];
    assert_eq!(found, expected);
    assert_eq!(profile["failed"], json!([]));
    // Without the batch's size, no shape can be inferred.
    assert_bad_input(&["profile", path(&file), "--seconds", "0"], "--dim batch=1");
}

#[test]
fn sequence_and_explain_infer_the_shapes_that_a_model_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    fs::write(&file, common::model(network_without_shapes())).unwrap();
    let output = run(&["sequence", path(&file), "--seconds", "0", "--dim", "batch=2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let sequence: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(sequence["layers"][1]["geometry"], "Conv 2x8x4x5 -> 2x8x4x5 k3x3 p1");

    let output = run(&["explain", "--model", path(&file), "--dim", "batch=2"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let first: Vec<_> = text.lines().filter(|line| !line.starts_with("picked ")).collect();
    assert_eq!(first.len(), 3, "{text}");
    assert!(first[1].starts_with("conv2: Conv 2x8x4x5 -> 2x8x4x5 k3x3 p1: "), "{text}");
    let output = run(&["explain", "--model", path(&file)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("up: NOT PLANNED: ") && stdout(&output).contains("--dim batch=1"));
    assert_bad_input(&["explain", "--model", path(&file), "--layer", "vgg16.1_1"], "cannot be used with");
    for layer in [&["--layer", "vgg16.1_1"][..], &["conv", "--x", "1,2,9", "--w", "2,2,3"]] {
        assert_bad_input(&[&["explain", "--dim", "batch=2"], layer].concat(), "cannot be used with");
    }
}

#[test]
fn convolutions_of_other_kinds_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    let mut network = common::network();
    network.node.push(common::node("ConvInteger", &["x", "w8"], "z", &[]));
    fs::write(&file, common::model(network)).unwrap();
    for command in [&["explain", "--model"][..], &["profile", "--seconds", "0"], &["sequence", "--seconds", "0"]] {
        let output = run(&[command, &[path(&file), "--dim", "batch=1"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.matches("not covered: 1 ConvInteger").count(), 1, "{command:?}: {stderr}");
    }
}

#[test]
fn what_cannot_be_inferred_is_named_and_the_rest_is_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    let mut network = network_without_shapes();
    network.node[2].op_type = "Odd".into();
    fs::write(&file, common::model(network.clone())).unwrap();
    let args = ["profile", path(&file), "--seconds", "0", "--dim", "batch=2"];
    let output = run(&args);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("Conv 2x4x18x22 -> 2x8x9x11 k3x3 s2 p1"), "the first node is run: {text}");
    for name in ["conv2", "up"] {
        let line = text.lines().find(|line| line.starts_with(&format!("NOT RUN {name}: "))).unwrap();
        assert!(line.contains("node \"pool\" (Odd)") && line.contains("value_info"), "{line}");
    }
    // What the model states wrongly is warned of.
    network.node[2].op_type = "MaxPool".into();
    network.value_info = vec![common::value("pool", &["batch", "8", "4", "9"])];
    fs::write(&file, common::model(network)).unwrap();
    let output = run(&args);
    let warnings = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{warnings}");
    assert!(warnings.contains("\"pool\" is [2, 8, 4, 9], and its node gives [2, 8, 4, 5]"), "{warnings}");
}

/// Every command that measures says that times of an unoptimised build mean nothing, on standard
/// error alone.
#[test]
fn tools_without_optimisation_warn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.onnx");
    fs::write(&file, common::model(common::network())).unwrap();
    let model = [path(&file), "--seconds", "0", "--dim", "batch=1", "--json"];
    let commands: [&[&str]; 6] = [
        &["report", "--filter", "enet.5x1", "--seconds", "0", "--json"],
        &[&["profile"], &model[..]].concat(),
        &[&["sequence"], &model[..]].concat(),
        &["regret", "--layers", "1", "--seconds", "0", "--json"],
        &["kernels", "--measure", "--isa", "portable"],
        &["worker"],
    ];
    for command in commands {
        let output = run(command);
        let warnings = String::from_utf8_lossy(&output.stderr).matches("build them with --release").count();
        assert_eq!(warnings, usize::from(cfg!(debug_assertions)), "{command:?}: {output:?}");
        assert!(!stdout(&output).contains("--release"), "{command:?}");
    }
    for command in [&["report", "--list"][..], &["explain", "--layer", "vgg16.1_1"], &["kernels"]] {
        assert!(!String::from_utf8_lossy(&run(command).stderr).contains("--release"), "{command:?} measures nothing");
    }
}

/// Files that users name may have no end.
#[cfg(unix)]
#[test]
fn files_without_an_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = path(dir.path());
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in ["/dev/zero", "/dev/full", folder] {
        for command in
            [&["report", "--shapes", file][..], &["profile", file], &["sequence", file], &["explain", "--model", file]]
        {
            assert_bad_input(command, &format!("{file}: it is a folder or a device"));
        }
    }
    let link = |name: &str, target: &str| std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
    Folder::conv().write(&dir.path().join("case"));
    fs::remove_file(dir.path().join("case/test_data_set_0/input_0.pb")).unwrap();
    link("case/test_data_set_0/input_0.pb", "/dev/zero");
    let output = run(&["onnx-test", folder]);
    assert!(stdout(&output).contains("input_0.pb: it is a folder or a device"), "{output:?}");
    link("portable.txt", "/dev/full");
    assert_bad_input(&["plans", "--isa", "portable", "--check", folder], "portable.txt: it is a folder or a device");
    // A pipe is read, up to the same size.
    for (writer, reason) in [("cat /dev/zero", "16777216 are the most"), ("echo name,op", "pipe")] {
        let mut writer = Command::new("sh").args(["-c", &format!("{writer} > {}", path(&pipe))]).spawn().unwrap();
        assert_bad_input(&["report", "--shapes", path(&pipe)], reason);
        writer.wait().unwrap();
    }
}

#[test]
fn report_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.csv");
    let header = "name,op,x,out_channels,kernel,strides,pads,dilations,group,output_padding";
    fs::write(&file, format!("{header}\nmine,Conv,1x3x9x9,5,3x3,2x2,1x1,1x1,1,0x0\n")).unwrap();
    let text = stdout(&run(&[
        "report",
        "--seconds",
        "0",
        "--algorithm",
        "naive",
        "--isa",
        "portable",
        "--shapes",
        path(&file),
    ]));
    assert!(
        text.contains("mine") && text.contains("Conv 1x3x9x9 -> 1x5x5x5 k3x3 s2 p1") && text.contains("naive"),
        "{text}"
    );
    fs::write(&file, "name,op\n").unwrap();
    assert_bad_input(&["report", "--shapes", path(&file)], "mine.csv");
}

/// Sizes that no machine has memory for, and a layer that would take minutes for one run.
#[test]
fn layers_that_are_too_large_are_listed_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.csv");
    let header = "name,op,x,out_channels,kernel,strides,pads,dilations,group,output_padding";
    let layers = [
        "large,Conv,1x3x10000000x10000000,8,3x3,1x1,1x1,1x1,1,0x0",
        "small,Conv,1x3x9x9,5,3x3,2x2,1x1,1x1,1,0x0",
        "long,Conv,1x1x2000x2000,1,2001x2001,1x1,1000x1000,1x1,1,0x0",
    ];
    fs::write(&file, format!("{header}\n{}\n", layers.join("\n"))).unwrap();
    let args = ["report", "--seconds", "0", "--shapes", path(&file), "--output", path(dir.path()), "--json"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["layers"][0]["name"], &report["interrupted"]), (&json!("small"), &json!(false)));
    let failed = report["failed"].as_array().unwrap();
    let reason = |index: usize| failed[index]["error"].as_str().unwrap();
    assert_eq!((failed.len(), &failed[0]["name"], &failed[1]["name"]), (2, &json!("large"), &json!("long")));
    assert!(reason(0).contains("GiB are free") && reason(1).contains("one run takes"), "{failed:?}");
    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    assert!(page.contains("Not run") && page.contains("GiB are free"), "{page}");
    assert_bad_input(&["report", "--shapes", path(&file), "--filter", "large"], "large: ");
    let text = stdout(&run(&args[..5]));
    assert!(text.contains("\nNOT RUN large: ") && text.contains("\nNOT RUN long: "), "{text}");

    let file = dir.path().join("model.onnx");
    let mut network = common::network();
    network.input.push(common::value("giant", &["1", "4", "100000000", "100000000"]));
    network.node.insert(0, common::node("Conv", &["giant", "w1"], "large", &[]));
    network.node.push(common::node("Conv", &["relu", "w2"], "odd", &[ints("strides", &[0, 1])]));
    fs::write(&file, common::model(network)).unwrap();
    let args = ["profile", path(&file), "--seconds", "0", "--dim", "batch=1"];
    let output = run(&args);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("NOT RUN large: ") && text.contains("NOT RUN odd: ") && text.contains("strides"), "{text}");
    let profile: Value = serde_json::from_str(&stdout(&run(&[&args[..], &["--json"]].concat()))).unwrap();
    assert_eq!((&profile["totals"]["nodes"], profile["failed"].as_array().unwrap().len()), (&json!(3), 2));
}

/// The list is read by `tools/compare`.
#[test]
fn layers_are_listed_as_requests() {
    let text = stdout(&run(&["report", "--list", "--filter", "bilinear"]));
    assert!(text.starts_with("bilinear.dw4x4s2.32@64: ConvTranspose 1x32x64x64 -> "), "{text}");
    let rows: Value =
        serde_json::from_str(&stdout(&run(&["report", "--list", "--json", "--filter", "bilinear"]))).unwrap();
    let row = &rows[0];
    assert_eq!(
        (&row["op"], &row["x"], &row["strides"]),
        (&json!("ConvTranspose"), &json!([1, 32, 64, 64]), &json!([2, 2]))
    );
    assert_eq!(row["y"].as_array().unwrap().len(), 4);
    // Each input element has 4x4 taps.
    assert_eq!(row["flop"].as_f64().unwrap(), f64::from(2 * 32 * 64 * 64 * 16));
}

#[test]
fn report_rejects_bad_options() {
    assert_bad_input(&["report", "--filter", "no-such-layer"], "no-such-layer");
    assert_bad_input(&["report", "--filter", "vgg16,no-such-layer"], "no-such-layer");
    assert_bad_input(&["report", "--isa", "mmx"], "mmx");
    assert_bad_input(&["report", "--algorithm", "magic"], "magic");
    assert_bad_input(&["report", "--threads", "0"], "1..=");
    assert_bad_input(&["report", "--seconds", "-1"], "--seconds");
    assert_bad_input(&["report", "--dtype", "u16"], "u16");
    assert_bad_input(
        &["report", "--dtype", "u8", "--algorithm", "gemm"],
        "--algorithm: layers of bytes have no choice",
    );
    assert_bad_input(&["report", "--dtype", "u8", "--accuracy", "fast"], "--accuracy: sums of bytes are exact");
    assert_bad_input(&["regret", "--dtype", "u8"], "--dtype u8: layers of bytes have no choice");
    assert_bad_input(&["report", "--shapes", "no/such/file.csv"], "no/such/file.csv");
}

#[test]
fn worker_answers_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, values: &[f32]| {
        fs::write(dir.path().join(name), values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    };
    write("x.bin", &[1.0, 2.0, 3.0, 4.0]);
    write("w.bin", &[1.0, 10.0]);
    write("b.bin", &[0.5]);
    let out = dir.path().join("y.bin");
    let request = |y: i64, threads: i64| {
        json!({
            "row": {"name": "t", "op": "Conv", "x": [1, 1, 4], "w": [1, 1, 2], "y": [1, 1, y], "strides": [1],
                    "pads": [0, 1], "dilations": [1], "group": 1, "output_padding": [0], "flop": 16},
            "dir": dir.path(), "threads": threads, "secs": 0.01, "out": out
        })
    };
    let input = format!("{}\nnot JSON\n{}\n{}\n", request(4, 1), request(5, 1), request(4, 2));
    let output = run_with_input(&["worker"], &input);
    assert_eq!(output.status.code(), Some(0));
    let answers: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 4);
    for good in [&answers[0], &answers[3]] {
        assert!(good["min"].as_f64() <= good["median"].as_f64() && good["reps"].as_u64() >= Some(3), "{good}");
    }
    assert!(answers[1]["error"].is_string());
    assert!(answers[2]["error"].as_str().unwrap().contains("[1, 1, 4]"), "{}", answers[2]);
    let y: Vec<f32> = fs::read(&out).unwrap().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(y, [21.5, 32.5, 43.5, 4.5]);
}

/// X has its channels first in the files, whatever the layout of the layer.
#[test]
fn worker_takes_layers_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("x.bin", &[10, 20, 30, 50, 11, 12, 13, 14]);
    write("w.bin", &[2, 0, 255, 1]); // 2 and 0 of the first channel of Y, -1 and 1 of the second one
    write("b.bin", &[1_i32, -300].map(i32::to_le_bytes).concat());
    let out = dir.path().join("y.bin");
    let mut request = json!({
        "row": {"op": "Conv", "x": [1, 2, 4], "w": [2, 2, 1], "y": [1, 2, 4], "quantised": {
            "x_scale": 0.5, "x_zero_point": 10, "w_scale": [0.25, 1.0], "y_scale": 0.5, "y_zero_point": 100}},
        "dir": dir.path(), "threads": 1, "secs": 0, "out": out
    });
    for layout in ["channels-first", "channels-last"] {
        let answer = stdout(&run_with_input(&["worker", "--layout", layout], &request.to_string()));
        assert!(answer.contains("\"min\""), "{answer}");
        // (2 * 10 + 1) / 4 = 5.25 and so on; (-10 + 2 - 300) is beyond what bytes hold.
        assert_eq!(fs::read(&out).unwrap(), [100, 105, 110, 120, 0, 0, 0, 0], "{layout}");
        fs::remove_file(&out).unwrap();
    }
    let answer = stdout(&run_with_input(&["worker", "--algorithm", "gemm"], &request.to_string()));
    assert!(answer.contains("--algorithm: layers of bytes"), "{answer}");
    request["row"]["quantised"]["w_scale"] = json!([0.25, 1.0, 1.0]);
    let answer = stdout(&run_with_input(&["worker"], &request.to_string()));
    assert!(answer.contains("w_scale has 3 elements"), "{answer}");
    request["row"]["quantised"]["x_zero_point"] = json!(-1);
    let answer = stdout(&run_with_input(&["worker"], &request.to_string()));
    assert!(answer.contains("not a request"), "{answer}");
}

/// Both are no default features of convoke. These tools turn them on, and so the tests of the whole
/// workspace have them too.
#[test]
fn the_foreign_blases_are_built() {
    for blas in ["gemm", "matrixmultiply"] {
        let algorithm = format!("im2col:{blas}");
        let forced = run(&["explain", "--layer", "vgg16.1_1", "--algorithm", &algorithm]);
        assert!(forced.status.success() && stdout(&forced).contains(&algorithm), "{algorithm}: {forced:?}");
    }
}

#[test]
fn explain_names_the_pick() {
    let output = run(&["explain", "conv", "--x", "1,64,56,56", "--w", "64,64,3,3", "--pads", "1,1,1,1"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("Conv 1x64x56x56 -> 1x64x56x56 k3x3 p1: 231.2 MFLOP"), "{text}");
    assert!(lines[1].starts_with("picked ") && lines[1].contains(" on one core, workspace "), "{text}");
    assert_eq!(lines.len(), 2, "{text}");
    let whole = stdout(&run(&["explain", "conv", "--x", "1,64,56,56", "--w", "64,64,3,3", "--pads", "1,1,1,1", "-v"]));
    for word in ["1x64x56x56 -> 1x64x56x56", "not gemm", "im2col:native", "\n  machine "] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
    assert!(!whole.contains("only for ConvTranspose"), "{whole}");
    let forced = stdout(&run(&["explain", "--layer", "vgg16.1_1", "--algorithm", "im2col:native", "--threads", "2"]));
    assert!(forced.starts_with("Conv 1x3x224x224"), "{forced}");
    assert_bad_input(&["explain", "conv", "--x", "1,64,56", "--w", "64,64,3,3"], "Conv");
    assert_bad_input(&["explain"], "--x");
}

#[test]
fn kernels_are_listed() {
    let text = stdout(&run(&["kernels"]));
    assert!(text.starts_with("| ISA |") && text.contains("| portable | f64 |"), "{text}");
    let text = stdout(&run(&["kernels", "--measure", "--isa", "portable"]));
    assert!(text.contains("100 %") && !text.contains("NaN"), "{text}");
}

#[test]
fn plans_that_differ_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, isa) = (dir.path().join("new"), ["--isa", "portable"]);
    let plans = |arguments: [&str; 2]| run(&[&["plans"], &isa[..], &arguments].concat());
    let output = plans(["--write", path(&folder)]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), String::new()));

    // Changes one cost and one hash.
    let change = |file: &str, layer: &str, from: &str, to: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let begin = text.find(&format!("\n{layer}: ")).unwrap();
        let (before, after) = text.split_at(begin);
        assert!(after.contains(from), "{layer}: {after}");
        fs::write(folder.join(file), before.to_owned() + &after.replacen(from, to, 1)).unwrap();
    };
    change("portable.txt", "resnet50.c5.3x3", " t1 ", " t3 ");
    change("portable.outputs.txt", "hard.7", ": t1 ", ": t4 ");
    let output = plans(["--check", path(&folder)]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    // The plan, with the old and the new line of its machines and threads.
    let lines: Vec<_> = text.lines().collect();
    let ["portable.txt", "resnet50.c5.3x3", plan, old, same, new, "portable.outputs.txt", "hard.7", old_hash, new_hash] =
        lines[..]
    else {
        panic!("{text}");
    };
    assert_eq!(same, plan.replacen('-', "+", 1));
    assert_eq!(new, old.replacen('-', "+", 1).replacen(" t3 ", " t1 ", 1));
    assert!(old_hash.starts_with("- hard.7: t4 "), "{old_hash}");
    assert_eq!(new_hash, old_hash.replacen('-', "+", 1).replacen(" t4 ", " t1 ", 1));
    assert_bad_input(&["plans", "--isa", "portable", "--check", path(&dir.path().join("none"))], "none");
}

#[test]
fn disasm_needs_a_program() {
    assert_bad_input(&["disasm", "no/such/file"], "no/such/file");
    assert_bad_input(&["disasm", "--expect", "sse9", "no/such/file"], "sse9");
}
