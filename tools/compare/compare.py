"""Times convoke beside other libraries, layer by layer, on this machine.

    tools/compare/run                            # the table of docs/figures.md, one thread (tools/compare/run --help for the options)
    tools/compare/run --layout channels-last     # beside XNNPACK, oneDNN and onnxruntime, with channels last
    tools/compare/run --dtype u8 --layout channels-last    # the same layers in bytes, beside those and OpenVINO

For each layer, all implementations run in turn, round by round, so that a drift of the machine's speed affects all alike. The fastest run of all rounds
counts. All use f32 (or bytes), plain NCHW in and out (or channels last), weights packed outside of the timing, and the library's fastest setting. Outputs
are compared: if one differs by more than the tolerance, it is marked, and does not count as fast. A library that dies or hangs is started again, and given up
after three times in a row. Before the layers, a layer of a single multiply-add measures what a call of each library costs. These microseconds are in all of
its times.

Results are written after each layer, so that nothing that was measured is lost. Ctrl-C ends the program, with table and picture of the results so far.
"""

import argparse
import csv
import datetime
import json
import math
import os
import pathlib
import signal
import sys
import tempfile

import numpy as np
import onednn
import quantised
from common import (
    HERE, INTERRUPTED, LABELS, ROOT, Worker, add_options, caption, check_options, earlier, installed, load_line, machine, machine_line, measuring, plots,
    replace, save, summary, tool, versions_line, write_files,
)
from tqdm import tqdm

# How each library is called. The first line of the results says what all have in common.
SETTINGS = {
    "convoke": "the planner's pick with its default accuracy",
    "onnxruntime": "CPU provider, input and output bound, the faster of its blocked layout with conversions and none (levels ALL and EXTENDED)",
    "openvino": "held to f32 (it would take bf16 where the CPU has it), latency hint, one stream, input and output shared",
    "ncnn": "half-precision storage and arithmetic off, memory from pools that are kept; a batch is images one after the other",
    "mnn": "precision high; the copies from and to plain NCHW count, as its own layout is blocked",
    "rten": "built for this CPU, weights prepacked",
    "tract": "built for this CPU, optimised plan",
    "candle": "built for this CPU; nothing is packed, and the bias is a second pass, which counts",
    "xnnpack": "as the delegate of TensorFlow Lite's interpreter, for a model of one operator, mirrored if the odd element of the padding is at the beginning",
    "onednn": "its C interface, with the layout of the weights that it picks",
    "onednn-blocked": "the same, with the layouts of X and Y that it picks; the conversions to and from them are not timed",
    "onnxruntime-blocked": "the node of its blocked layout alone, input and output bound; the nodes that convert to and from it are not timed",
}
# The same for layers in bytes, where it differs. Those that are not here are called in the same way.
BYTES = {
    "convoke": "a plan of QuantisedPlan, u8 for X and Y, i8 for W",
    "onnxruntime": "QLinearConv, with channels last its own of com.microsoft, input and output bound, the faster of levels ALL and EXTENDED",
    "openvino": "Conv between DequantizeLinear and QuantizeLinear, with channels last between two Transpose; refused unless it says that it computes in bytes",
    "ncnn": "X as signed bytes, Y in its own blocks of channels, memory from pools that are kept",
    "xnnpack": f"X and Y as signed bytes; else {SETTINGS['xnnpack']}",
}
# The layer that measures the cost of a call: one multiply-add.
CALL = {
    "name": "call", "op": "Conv", "x": [1, 1, 1, 1], "w": [1, 1, 1, 1], "y": [1, 1, 1, 1], "strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1],
    "group": 1, "output_padding": [0, 0], "flop": 2,
}
# Packages of Python, and crates, each with a program that runs it.
PYTHON = ["onnxruntime", "openvino", "ncnn", "mnn"]
RUST = {"rten": "rten", "tract": "tract-onnx", "candle": "candle-core"}
# Libraries whose own layout has channels last, and the packages of Python that have them.
LAST = {"xnnpack": "ai-edge-litert", "onednn": onednn.PACKAGE, "onednn-blocked": onednn.PACKAGE, "onnxruntime-blocked": "onnxruntime"}
# With which libraries each layout and each type is compared.
LIBRARIES = {
    ("channels-first", "f32"): [*PYTHON, *RUST],
    ("channels-last", "f32"): [*LAST, "onnxruntime"],
    ("channels-first", "u8"): ["onnxruntime", "openvino", "ncnn"],
    ("channels-last", "u8"): ["xnnpack", "onednn", "onednn-blocked", "onnxruntime", "openvino"],
}
# ISAs that another library can be held to, too, with the environment that does it.
ISAS = {"avx2": ["onednn", "onednn-blocked"]}
# What holds oneDNN to AVX2: for bytes with AVX-VNNI, which convoke has there, too, where the CPU has it.
HELD = {"f32": "AVX2", "u8": "AVX2_VNNI"}
# Largest error, relative to the root mean square of the output. Direct sums in f32 and small
# Winograd tiles stay within NOTED. Large Winograd tiles reach 1e-2, which is accepted with a
# mark.
NOTED, TOLERANCE = 1e-4, 2e-2
# Largest error of bytes in steps of Y. Scales that are multiplied in another order leave errors of one step.
STEPS = 1


def parse():
    parser = argparse.ArgumentParser(prog="tools/compare/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "layer", [*PYTHON, *RUST, *LAST], PYTHON, seconds=0.1, timeout=120, results="results.json")
    parser.add_argument(
        "--layout", choices=["channels-first", "channels-last"], default="channels-first",
        help=f"how X and Y lie in memory; with channels last there are {', '.join(LIBRARIES['channels-last', 'f32'])}, and the layers of two axes",
    )
    parser.add_argument(
        "--dtype", choices=["f32", "u8"], default="f32",
        help=f"u8: layers in bytes, with {', '.join(LIBRARIES['channels-first', 'u8'])}; with channels last {', '.join(LIBRARIES['channels-last', 'u8'])}",
    )
    parser.add_argument("--isa", choices=ISAS, help="hold convoke to this ISA, and oneDNN, which is the only other one that can be held (with channels last)")
    parser.add_argument("--all", action="store_true", help="all layers of benches/shapes, not only those of layers.txt")
    parser.add_argument("--shapes", type=pathlib.Path, nargs="+", metavar="FILE", help="layers of your own, in the form of benches/shapes/*.csv")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--readme", action="store_true", help="also write the summary into README.md, the table into docs/figures.md, and the picture")
    # `run` passes this.
    parser.add_argument("--rust", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.set_defaults(peers=None, output=None)
    options = parser.parse_args()
    last = options.layout == "channels-last"
    if options.isa and not last:
        parser.error("--isa: only with --layout channels-last, whose oneDNN can be held to it")
    if options.readme and (last or options.dtype != "f32"):
        parser.error("--readme: the tables are those of channels first in f32")
    names = list(ISAS[options.isa]) if options.isa else LIBRARIES[options.layout, options.dtype]
    if options.peers is None:
        options.peers = ",".join(name for name in names if name not in RUST)
    check_options(parser, options, names)
    return options


# --- Layers ----------------------------------------------------------------------------------------------------------


def layers(options):
    """The layers to measure, in the form of requests to convoke's worker, which reads and checks the files."""
    files = ["--shapes", *options.shapes] if options.shapes else []
    rows = json.loads(tool(options, "report", "--list", "--json", *files))
    if not options.all and not options.shapes:
        chosen = [line for line in (HERE / "layers.txt").read_text().splitlines() if line and not line.startswith("#")]
        known = {row["name"]: row for row in rows}
        missing = [name for name in chosen if name not in known]
        if missing:
            sys.exit(f"layers.txt: benches/shapes has no {', '.join(missing)}")
        rows = [known[name] for name in chosen]
    if options.layout == "channels-last":
        rows = [row for row in rows if len(row["strides"]) == 2]
    parts = options.filter.split(",")
    for part in parts:
        if not any(part in row["name"] for row in rows):
            hint = "" if options.all or options.shapes else " (of those in layers.txt; --all has more)"
            hint += " (with channels last there are only layers of two axes)" if options.layout == "channels-last" else ""
            sys.exit(f"no layer's name contains {part!r}{hint}")
    return [row for row in rows if any(part in row["name"] for part in parts)]


def write_operands(row, folder, dtype="f32", layout="channels-first"):
    """Writes input, weights and bias as files. Of floats, it also writes the layer as a model. Returns the layer as the workers have to know it, and the
    operands."""
    random = np.random.default_rng(0)
    sums = math.prod(row["w"][1:]) if row["op"] == "Conv" else math.prod(row["w"]) / row["w"][1] / math.prod(row["strides"]) / row["group"]
    x = random.uniform(-1, 1, row["x"]).astype(np.float32)
    w = (random.uniform(-1, 1, row["w"]) * math.sqrt(3 / max(sums, 1))).astype(np.float32)
    b = random.uniform(-1, 1, row["y"][1]).astype(np.float32)
    if dtype == "u8":
        x, w, b, meaning = quantised.operands(row, x, w, b)
        row = row | {"quantised": meaning, "layout": layout}
    else:
        write_model(row, w, b, folder / "model.onnx")
    for name, values in [("x", x), ("w", w), ("b", b)]:
        values.tofile(folder / f"{name}.bin")
    return row, (x, w, b)


def write_model(row, w, b, path):
    from onnx import TensorProto, helper, numpy_helper, save

    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    node = helper.make_node(row["op"], ["x", "w", "b"], ["y"], **quantised.attributes(row))
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph([node], "layer", [value("x", row["x"])], [value("y", row["y"])], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


# --- Measuring -------------------------------------------------------------------------------------------------------


def measure(options, data, rows):
    """Adds the results to the data, layer by layer."""
    commands = {"convoke": [options.worker, "worker", "--layout", options.layout, *isa(options)]}
    commands |= {name: [sys.executable, str(HERE / "peers.py"), name] for name in [*PYTHON, *LAST]}
    commands |= {name: [program(options, name)] for name in RUST if name in options.peers}
    environments = dict.fromkeys(ISAS[options.isa], {"ONEDNN_MAX_CPU_ISA": HELD[options.dtype]}) if options.isa else {}
    workers = {name: Worker(commands[name], options, environments.get(name, {})) for name in data["names"]}
    with measuring(data, workers, len(rows), "layer", lambda: write_results(data, options.output)) as add:
        answers = measure_layer(options, CALL, workers)["answers"]
        data["overhead"] = {name: answer["seconds"] for name, answer in answers.items() if "seconds" in answer}
        for row in tqdm(rows, unit="layer", disable=not sys.stderr.isatty()):
            add(measure_layer(options, row, workers))


def isa(options):
    """The options of convoke's tools that hold it to an ISA."""
    return ["--isa", options.isa] if options.isa else []


def measure_layer(options, row, workers):
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        written, operands = write_operands(row, folder, options.dtype, options.layout)
        request = {"row": written, "dir": str(folder), "threads": options.threads, "secs": options.seconds}
        for round_ in range(options.rounds):
            for name, worker in workers.items():
                if "error" in answers.get(name, {}):
                    continue
                out = str(folder / f"y.{name}") if round_ == 0 else None
                answer = worker.ask(request | {"out": out})
                if "error" in answer:
                    answers[name] = answer
                else:
                    best = answers.setdefault(name, {"seconds": answer["min"]})
                    best["seconds"] = min(best["seconds"], answer["min"])
        element, unit = (np.uint8, "steps") if options.dtype == "u8" else (np.float32, "error_of_rms")
        outputs = {name: np.fromfile(folder / f"y.{name}", element) for name, answer in answers.items() if "seconds" in answer}
    judged = judge_bytes(outputs, *quantised.sample(written, *operands)) if options.dtype == "u8" else judge(outputs)
    for name, (status, error) in judged.items():
        gflops = row["flop"] / answers[name]["seconds"] / 1e9
        answers[name] |= {"gflops": gflops, "status": status, unit: error}
    for answer in answers.values():
        answer.setdefault("status", "absent")
    return {"row": row, "answers": answers}


def judge(outputs):
    """For each output its status, and its largest error relative to the root mean square of the right output (None if that is not a number).

    `good`; `rough` is beyond what direct sums reach; `wrong`; `differs` means that two outputs disagree, and nobody knows which one is wrong. Elsewhere
    there are also `failed` (the library died or hung) and `absent` (the library says that it cannot run the layer).
    """
    if not outputs:
        return {}
    # Outputs that are not finite are wrong, and the median of them would be NaN.
    finite = [y for y in outputs.values() if np.isfinite(y).all()]
    if not finite:
        return {name: ("wrong", None) for name in outputs}
    # The median of three or more outputs is right if most of them are.
    right = np.median(np.stack(finite), axis=0).astype(np.float64)
    scale = float(np.sqrt(np.mean(right**2))) or 1.0

    def verdict(y):
        if not np.isfinite(y).all():
            return "wrong", None
        error = float(np.max(np.abs(y - right), initial=0)) / scale
        if error > TOLERANCE:
            return "wrong" if len(finite) > 2 else "differs", error
        return "rough" if error > NOTED else "good", error

    return {name: verdict(y) for name, y in outputs.items()}


def judge_bytes(outputs, places, right):
    """The same for bytes: for each output its status, and its largest difference in steps. convoke's is exact if it is so at these places. The others are
    compared with it, or at these places alone if it is not there or wrong: `inexact` is an output that is off by more than a step, as those of kernels that saturate are."""
    exact = outputs.get("convoke")
    if exact is None or (exact[places] != right).any():
        off = {name: int(np.abs(y[places].astype(int) - right).max(initial=0)) for name, y in outputs.items()}
        return {name: ("wrong" if name == "convoke" else "good" if off <= STEPS else "inexact", off) for name, off in off.items()}
    steps = {name: int(np.abs(y.astype(int) - exact).max(initial=0)) for name, y in outputs.items()}
    return {name: ("good" if off <= STEPS else "inexact", off) for name, off in steps.items()}


# --- Showing ---------------------------------------------------------------------------------------------------------


def status(result, name):
    return result["answers"].get(name, {}).get("status", "absent")


# What counts.
RIGHT = ("good", "rough")


def rate(result, name, statuses=RIGHT):
    """GFLOP/s, if the result is right."""
    return result["answers"][name]["gflops"] if status(result, name) in statuses else None


def best_peer(result, names, statuses=RIGHT):
    return max((rate(result, name, statuses) or 0 for name in names if name != "convoke"), default=0)


def table(data):
    """The table as Markdown, and the paragraphs that sum it up."""
    names = data["names"]
    lines = ["| layer | " + " | ".join(LABELS[name] for name in names) + " | of the best |", "|---|" + "---:|" * (len(names) + 1)]
    ratios, with_inexact = [], []
    texts = {
        "good": "{:.0f}", "rough": "{:.0f}~", "inexact": "{:.0f} not exact", "wrong": "wrong", "differs": "differs", "failed": "failed", "absent": "-",
    }
    for result in data["results"]:
        cells = [texts[status(result, name)].format(result["answers"].get(name, {}).get("gflops")) for name in names]
        mine, best = rate(result, "convoke"), best_peer(result, names)
        ratios += [(mine / best, result["row"]["name"])] if mine and best else []
        of_all = best_peer(result, names, (*RIGHT, "inexact"))
        with_inexact += [(mine / of_all, result["row"]["name"])] if mine and of_all else []
        cells.append(f"{mine / best:.2f}" if mine and best else "-")
        lines.append(f"| {result['row']['name']} | " + " | ".join(cells) + " |")
    count = len(names) - 1
    others = f"the fastest of the {count} others" if count > 1 else LABELS[names[1]]
    summed = summary(ratios, "layer", "convoke", others)
    if with_inexact != ratios:
        summed += summary(with_inexact, "layer", "convoke", f"{others}, with those that are not exact,")
    return "\n".join(lines), summed + inexact(data) + faults(data) + overhead(data)


def inexact(data):
    """On how many layers each library is not exact, and by how much."""
    found = {name: [r["answers"][name]["steps"] for r in data["results"] if status(r, name) == "inexact"] for name in data["names"]}
    texts = [f"{LABELS[name]} on {len(steps)} of {len(data['results'])} layers (off by up to {max(steps)} steps)" for name, steps in found.items() if steps]
    return [f"Not exact: {', '.join(texts)}."] if texts else []


def faults(data):
    """Wrong results, pairs of results of which one must be wrong, and libraries that died or hung."""

    def reason(answer):
        off = answer.get("error_of_rms")
        if answer.get("steps") is not None:
            return f"off by {answer['steps']} steps"
        return answer.get("error") or ("not numbers" if off is None else f"off by {off:.2g} of the root mean square")

    paragraphs = []
    for what, title in [("wrong", "Wrong results"), ("differs", "Two outputs that disagree, either may be wrong"), ("failed", "Failed")]:
        found = [
            f"{LABELS[name]} on {result['row']['name']} ({reason(answer)})"
            for result in data["results"] for name, answer in result["answers"].items() if answer["status"] == what
        ]
        paragraphs += [f"{title}: {', '.join(found)}."] if found else []
    return paragraphs


def overhead(data):
    """What a call of each library costs. Its figures include that."""
    calls = ", ".join(f"{LABELS[name]} {seconds * 1e6:.1f}" for name, seconds in data["overhead"].items())
    return [f"Call overhead, in all of these times (microseconds for a layer of one multiply-add): {calls}."] if calls else []


def conditions(data):
    layout = "plain NCHW in and out"
    if data["layout"] == "channels-last":
        layout = "channels last in and out"
        if "onnxruntime" in data["names"] and data["dtype"] == "f32":
            layout += " (onnxruntime: plain NCHW in and out, and the conversions to and from its blocked layout count)"
    if data["isa"]:
        layout += f", {' and '.join(LABELS[name] for name in data['names'])} held to {data['isa']}"
    settings = SETTINGS | (BYTES if data["dtype"] == "u8" else {})
    meaning = ""
    agreement = f"Outputs agree within {NOTED:g} of their root mean square; `~`: within {TOLERANCE:g}; `wrong`: beyond"
    if data["dtype"] == "u8":
        meaning = " X and Y have the zero point 128, and W, which is i8, a scale for each output channel. GFLOP/s, also of the FMA peak, are of integers."
        agreement = "convoke's outputs are those of the definition, at a sample of places; the others are convoke's, or a step of Y off; `not exact`: more, which does not count"
    return [
        machine_line(data),
        versions_line(data),
        f"{data['dtype']}, {layout}, weights packed outside of the timing; GFLOP/s of the fastest run of {data['rounds']} rounds that took all in turn.{meaning}",
        "How each is called: " + "; ".join(f"{LABELS[name]}: {settings[name]}" for name in data["names"]) + ".",
        load_line(data, "layers that take milliseconds"),
        f"{agreement}; `differs`: two outputs that disagree; "
        "`failed`: the library died or hung; `-`: it says that it has no such layer (table.csv has its words).",
    ] + (["Interrupted: not all layers were measured."] if data["interrupted"] else [])


def write_results(data, folder):
    write_files(folder, {"results.json": lambda file: json.dump(data, file, indent=1), "table.csv": lambda file: write_csv(data, file)})


def write_csv(data, file):
    writer = csv.writer(file)
    writer.writerow(["layer", "library", "threads", "seconds", "gflops", "error_of_rms", "steps", "status", "reason"])
    for result in data["results"]:
        for name, answer in result["answers"].items():
            values = [answer.get(key, "") for key in ("seconds", "gflops", "error_of_rms", "steps", "status", "error")]
            writer.writerow([result["row"]["name"], name, data["threads"], *values])


def picture(data, path):
    """A picture that has for each layer a line from the fastest other library to convoke, on a logarithmic axis.

    It is legible at a width of 500 pixels, which is about what a page has on a small screen.
    """
    plt = plots()
    names, results = data["names"], data["results"]
    figure, axes = plt.subplots(figsize=(5.2, 2.1 + 0.17 * len(results)), layout="constrained")
    colours = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a09600", "#777777"]
    markers = ["o", "s", "D", "^", "v", "P", "X", "*"]
    heights = range(len(results), 0, -1)
    lines = [(h, best_peer(r, names), rate(r, "convoke")) for r, h in zip(results, heights) if best_peer(r, names) and rate(r, "convoke")]
    axes.hlines(*zip(*lines) if lines else ([], [], []), "#0072b2", linewidth=1.2, zorder=1)
    for name, colour, marker in zip(names, colours, markers):
        points = [(rate(r, name), h) for r, h in zip(results, heights) if rate(r, name)]
        # convoke is a ring below the others, because a disc would hide a library of the same
        # speed.
        look = {"s": 40, "c": "white", "edgecolors": colour, "linewidths": 1.5, "zorder": 2} if name == "convoke" else {"s": 12, "c": colour, "zorder": 3}
        axes.scatter([p[0] for p in points], [p[1] for p in points], marker=marker, label=LABELS[name], **look)
    wrong = [(r["answers"][name]["gflops"], h) for name in names for r, h in zip(results, heights) if status(r, name) in ("wrong", "differs")]
    if wrong:
        axes.scatter(*zip(*wrong), 30, "red", marker="x", label="wrong result", zorder=4)
    peak = max(data["machine"]["fma_peak"].values())
    axes.axvline(peak, color="black", linewidth=1, linestyle="--", label="FMA peak")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(plt.ScalarFormatter())
    axes.set_xticks([t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]])
    axes.xaxis.set_minor_formatter(plt.NullFormatter())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yticks(list(heights), [r["row"]["name"] for r in results], fontsize=7.5)
    axes.set_ylim(0.2, len(results) + 0.8)
    axes.set_xlabel("GFLOP/s by the definition; Winograd makes\nfewer multiply-adds, and may exceed the peak" if data["dtype"] == "f32" else "GFLOP/s, of integers", fontsize=8)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    caption(figure, conditions(data)[:2])
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8, columnspacing=1)
    save(figure, path)
    plt.close(figure)


def readme(data):
    """Replaces the text between the markers of README.md and of docs/figures.md."""
    target = ROOT / "benches/figures"
    rows, summed = table(data)
    target.mkdir(exist_ok=True)
    picture(data, target / "compare.svg")
    facts = [f"* {line}" for line in conditions(data)]
    image = "![GFLOP/s of each layer with each library]"
    replace(
        ROOT / "README.md",
        "figures",
        [
            "\n".join([*facts[:3], *facts[6:]]),  # the machine, the versions, what was timed; whether it was interrupted
            *(paragraph for paragraph in summed if paragraph not in faults(data) + overhead(data)),
            f"{image}(benches/figures/compare.svg)",
            "[All figures](docs/figures.md#single-layers), and how each library was called. `tools/compare/run --readme` writes them.",
        ],
    )
    replace(
        ROOT / "docs/figures.md",
        "figures",
        [
            "\n".join([*facts, "* With Winograd, the multiply-adds of the definition are counted, so that figures exceed the FMA peak."]),
            *summed,
            f"{image}(../benches/figures/compare.svg)",
            rows,
            "This block is written by `tools/compare/run --readme`.",
        ],
    )


def program(options, name):
    return options.rust / name


def facts(options):
    """The machine as in convoke's report, and the versions of the libraries."""
    lock = (HERE / "rust/Cargo.lock").read_text()
    versions = {}
    for name in options.peers:
        if name in RUST:
            if options.rust is None or not program(options, name).exists():
                sys.exit(f"{name} is not built: tools/compare/run --peers {name} builds it")
            versions[name] = lock.split(f'name = "{RUST[name]}"\nversion = "')[1].split('"')[0]
        else:
            versions[name] = f"of {LAST[name]} {installed(LAST[name])}" if name in LAST else installed(name)
    return machine(options, "--dtype", options.dtype, *isa(options)), versions


def folder(data):
    """Where results are written by default. Those of another layout or type stay."""
    return ROOT / "target/compare" / ("u8" if data["dtype"] == "u8" else "") / ("channels-last" if data["layout"] == "channels-last" else "")


def main():
    options = parse()
    if options.source:
        data = earlier(options.source, table, conditions)
        options.output = options.output or folder(data)
    else:
        rows = layers(options)
        machine, versions = facts(options)
        date = datetime.date.today().isoformat()
        data = {
            "date": date, "machine": machine, "versions": versions, "threads": options.threads, "rounds": options.rounds,
            "layout": options.layout, "dtype": options.dtype, "isa": options.isa, "names": ["convoke", *options.peers], "overhead": {}, "results": [], "interrupted": True,
            "load": os.getloadavg()[1],
        }
        options.output = options.output or folder(data)
        # A request of the system to end the program is handled like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        measure(options, data, rows)
        if not data["results"]:
            sys.exit(INTERRUPTED)
    write_results(data, options.output)
    picture(data, options.output / "compare.svg")
    rows, summary = table(data)
    if options.json:
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(conditions(data)) + "\n\n" + "\n\n".join([rows, *summary]))
    for result in data["results"]:
        for name, answer in result["answers"].items():
            if "error" in answer:
                print(f"{result['row']['name']}: {LABELS[name]}: {answer['error']}", file=sys.stderr)
    print(f"written: {options.output}", file=sys.stderr)
    if data["interrupted"]:
        sys.exit(0 if options.source else INTERRUPTED)
    if options.readme:
        readme(data)
    bad = [r["row"]["name"] for r in data["results"] if status(r, "convoke") not in ("good", "rough")]
    if bad:
        sys.exit(f"convoke failed, is wrong, or nothing tells whether it is, on: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
