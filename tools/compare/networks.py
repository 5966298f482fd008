"""Times whole networks with onnxruntime, with onnxruntime and convoke's execution provider, and with other engines, on this machine.

    tools/compare/run --networks            # all networks, one thread (tools/compare/run --networks --help for the options)
    tools/compare/run --networks --quantised u8s8    # the same, quantised by onnxruntime's quantiser

The networks are those of bindings/onnxruntime/tests/models.py, with random weights and inputs of a usual size: the `light` ones of the package onnx, those of
tools/models.py, a detector, a vocoder and a segmentation of volumes that are made up, and published classifiers, detectors and others. A time is that of one
inference from input to output. For each network, all engines run in turn, round by round, so that a drift of the machine's speed affects all alike. The
fastest run of all rounds counts. All use f32 (or what the quantiser made of it) and their fastest setting.

Outputs are compared with those of onnxruntime alone: if one differs by more than the tolerance, it is marked, and does not count. An engine whose converter
does not take a network is left out there. An engine that dies or hangs is started again, and given up after three times in a row. If the provider has no
layer of a network, that is an error.

Results are written after each network, so that nothing that was measured is lost. Ctrl-C ends the program, with table and picture of the results so far.
"""

import argparse
import csv
import datetime
import importlib.util
import json
import os
import pathlib
import signal
import sys
import tempfile

import numpy as np
from common import (
    HERE, INTERRUPTED, LABELS, ROOT, Worker, add_options, caption, check_options, earlier, installed, load_line, machine, machine_line, mean, measuring,
    plots, replace, save, summary, versions_line, write_files,
)
from engines import CONVOLUTIONS, ONNX2TF
from peers import session_options
from tqdm import tqdm

# The engines beside onnxruntime with convoke. onnxruntime is what all are compared with.
PEERS = ["onnxruntime", "openvino", "ncnn", "mnn", "xnnpack"]
# Those whose package has another name.
PACKAGES = {"xnnpack": "ai-edge-litert"}
TITLES = LABELS | {"convoke": "onnxruntime with convoke"}
# How each engine is called.
SETTINGS = {
    "onnxruntime": "input and outputs bound, the faster of levels ALL and EXTENDED",
    "convoke": "the provider with its defaults, level ALL, input and outputs bound",
    "openvino": "held to f32 (it would take bf16 where the CPU has it), latency hint, one stream, input and outputs shared",
    "ncnn": "converted by pnnx, half-precision storage and arithmetic off, memory from pools that are kept",
    "mnn": "converted by its own converter, precision high, the copies from and to plain NCHW count",
    "xnnpack": "converted by onnx2tf, as the delegate of LiteRT's interpreter, input and outputs with channels last",
}
# What the makers of the networks take for sizes that are usual in practice; their defaults are for tests.
SIZES = {
    "yolo": {"size": 640}, "unet3d": {"size": 64}, "mobilenetv3-small": {"size": 224}, "mobilenetv3-large": {"size": 224}, "efficientnet-b0": {"size": 224},
    "convnext-tiny": {"size": 224}, "yolov8n": {"size": 640}, "yolox-nano": {"size": 416}, "u2netp": {"size": 320}, "recogniser": {"width": 320},
}
# The frames of sound of the network whose length is free: about a second.
FREE = 100
# Largest difference from onnxruntime's output, relative to its largest element.
TOLERANCE = 1e-3
# What onnxruntime's quantiser makes of X and W. The first three are static QDQ with a scale for each output channel, calibrated with random inputs.
QUANTISED = {"u8s8": ("QUInt8", "QInt8"), "u8u8": ("QUInt8", "QUInt8"), "s8s8": ("QInt8", "QInt8"), "dynamic": (None, "QUInt8")}
# Engines that take such models.
TAKE_QUANTISED = ["onnxruntime", "openvino"]
# Inputs of the calibration, beside the one that is timed.
INPUTS = 2
# How far from the outputs in floats those of a quantised network may be, in onnxruntime's distance. Engines round in different places.
DISTANCE = 1.1


def work(data):
    how = {None: "in f32", "dynamic": "quantised by quantize_dynamic with W in u8"}
    static = "quantised to static QDQ, {} for X and {} for W, a scale for each output channel".format
    name = data["quantised"]
    return f"One inference {how[name] if name in how else static(name[:2], name[2:])}, batch 1, random weights."


def parse():
    parser = argparse.ArgumentParser(prog="tools/compare/run --networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [name for name in PEERS if name != "xnnpack" or ONNX2TF.exists()]
    add_options(parser, "network", PEERS, default, seconds=1, timeout=600, results="networks.json")
    parser.add_argument("--readme", action="store_true", help="also write the summary into README.md, the table into docs/figures.md, and the picture")
    parser.add_argument(
        "--quantised", choices=QUANTISED,
        help=f"what onnxruntime's quantiser makes of the networks: types of X and W, or quantize_dynamic; with {', '.join(TAKE_QUANTISED)}",
    )
    parser.set_defaults(peers=None, output=None)
    options = parser.parse_args()
    libraries = TAKE_QUANTISED if options.quantised else PEERS
    options.peers = options.peers or ",".join(name for name in default if name in libraries)
    options.output = options.output or ROOT / "target/compare" / (options.quantised or "")
    if options.readme and options.quantised:
        parser.error("--readme: the tables are those of networks in f32")
    check_options(parser, options, libraries)
    if "onnxruntime" not in options.peers:
        parser.error("--peers: all are compared with onnxruntime, which is not among them")
    return options


# --- Networks --------------------------------------------------------------------------------------------------------


def networks(options):
    """Functions that make the networks, by name."""
    path = ROOT / "bindings/onnxruntime/tests/models.py"
    spec = importlib.util.spec_from_file_location("models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = options.filter.split(",")
    for part in parts:
        if not any(part in name for name in module.NETWORKS):
            sys.exit(f"no network's name contains {part!r}; there are {', '.join(module.NETWORKS)}")
    return {name: make for name, make in module.NETWORKS.items() if any(part in name for part in parts)}


def write_network(name, make, folder, quantised=None):
    """Writes the network as a model, and an input. Returns what the workers have to know, the number of convolutions, and if the network is quantised, its
    outputs in floats."""
    import onnx

    model = make(**SIZES.get(name, {}))
    graph = model.graph
    # With random weights a softmax rounds all elements but one to zero, which hides errors.
    if graph.node[-1].op_type == "Softmax":
        last = graph.node.pop()
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, None))
    # Engines that plan ahead get a size to plan for.
    dims = graph.input[0].type.tensor_type.shape.dim
    for dim in dims:
        dim.dim_value = dim.dim_value or FREE
    shape, outputs = [dim.dim_value for dim in dims], [output.name for output in graph.output]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    x.tofile(folder / "x.bin")
    floats = None
    if quantised:
        floats = quantise(model, x, folder, *QUANTISED[quantised])
        graph = onnx.load(folder / "model.onnx").graph
    else:
        onnx.save(model, folder / "model.onnx")
    convolutions = sum(node.op_type in CONVOLUTIONS for node in graph.node)
    return {"x": shape, "outputs": outputs}, {"convolutions": convolutions, "nodes": len(graph.node)}, floats


def quantise(model, x, folder, of_x, of_w):
    """Writes the model as the quantiser makes it. Returns the outputs of the model before."""
    import onnx
    import onnxruntime as ort
    from onnxruntime import quantization

    class Inputs(quantization.CalibrationDataReader):
        def __init__(self):
            random = np.random.default_rng(1)
            self.inputs = iter([x, *(random.standard_normal(x.shape, np.float32) for _ in range(INPUTS))])

        def get_next(self):
            found = next(self.inputs, None)
            return None if found is None else {name: found}

    name, plain, made = model.graph.input[0].name, folder / "float.onnx", folder / "model.onnx"
    # Scales for each channel are newer than some of the networks.
    if next(opset.version for opset in model.opset_import if not opset.domain) < 13:
        model = onnx.version_converter.convert_version(model, 13)
    onnx.save(model, made)
    # As the quantiser asks for: batch normalisation becomes weights, and constants are computed.
    options = session_options(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, 0)  # on all CPUs
    options.optimized_model_filepath = str(plain)
    floats = ort.InferenceSession(str(made), options, providers=["CPUExecutionProvider"]).run(None, {name: x})
    type_ = lambda name: getattr(quantization.QuantType, name)
    if of_x:
        quantization.quantize_static(plain, made, Inputs(), per_channel=True, activation_type=type_(of_x), weight_type=type_(of_w))
    else:
        quantization.quantize_dynamic(plain, made, weight_type=type_(of_w))
    return floats


# --- Measuring -------------------------------------------------------------------------------------------------------


def measure(options, data, makers):
    """Adds the results to the data, network by network."""
    workers = {name: Worker([sys.executable, str(HERE / "engines.py"), name], options) for name in data["names"]}
    with measuring(data, workers, len(makers), "network", lambda: write_results(data, options.output)) as add:
        for name, make in tqdm(makers.items(), unit="network", disable=not sys.stderr.isatty()):
            add(measure_network(options, name, make, workers))


def measure_network(options, name, make, workers):
    answers, outputs = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        request, size, floats = write_network(name, make, folder, options.quantised)
        request |= {"dir": str(folder), "threads": options.threads, "secs": options.seconds}
        for round_ in range(options.rounds):
            for engine, worker in workers.items():
                if "error" in answers.get(engine, {}):
                    continue
                out = folder / f"y.{engine}.npz"
                answer = worker.ask(request | {"out": str(out) if round_ == 0 else None})
                if "error" in answer:
                    answers[engine] = answer
                else:
                    answers[engine] = better(answers.get(engine), answer)
                    if round_ == 0:
                        with np.load(out) as arrays:
                            outputs[engine] = list(arrays.values())
    for engine, (status, error) in judge(outputs, floats).items():
        if "error" not in answers[engine]:
            answers[engine] |= {"status": status, "distance" if options.quantised else "error_of_max": error}
    for answer in answers.values():
        answer.setdefault("status", "absent")
    return {"network": name, **size, "answers": answers}


def better(best, answer):
    """The faster of two rounds, and the shorter of their times to load."""
    answer = {"seconds": answer["min"], **{key: answer[key] for key in ("load", "level", "nodes", "convolutions") if key in answer}}
    if best is None:
        return answer
    load = min(best["load"], answer["load"])
    return min(best, answer, key=lambda one: one["seconds"]) | {"load": load}


def judge(outputs, floats=None):
    """For each engine its status, and its largest error relative to the largest element of onnxruntime's outputs (None if there is no such number). With
    outputs in floats, it is the root mean square of the distance from these, relative to that of onnxruntime.

    `good`; `wrong` is beyond the tolerance, or of another size; `unknown` means that onnxruntime has no outputs to compare with, or some that are not finite.
    Elsewhere there are also `failed` (the engine died or hung) and `absent` (the engine, or its converter, says that it cannot run the network).
    """
    right = outputs.get("onnxruntime")
    if right is None or not all(np.isfinite(y).all() for y in right):
        return {name: ("unknown", None) for name in outputs}

    def verdict(found):
        # Engines without batches leave out axes of one element.
        if [y.size for y in found] != [y.size for y in right] or not all(np.isfinite(y).all() for y in found):
            return "wrong", None
        flat = lambda tensors: [tensor.astype(np.float64).ravel() for tensor in tensors]
        if floats is None:
            error = max(float(np.abs(y - r).max(initial=0)) / (float(np.abs(r).max(initial=0)) or 1.0) for y, r in zip(flat(found), flat(right)))
            return "good" if error <= TOLERANCE else "wrong", error
        off = lambda tensors: [float(np.sqrt(np.mean((y - plain) ** 2))) for y, plain in zip(flat(tensors), flat(floats))]
        size = [float(np.sqrt(np.mean(plain**2))) or 1.0 for plain in flat(floats)]
        error = max(mine / its if its else 1.0 + mine / of for mine, its, of in zip(off(found), off(right), size))
        return "good" if error <= DISTANCE else "wrong", error

    return {name: verdict(found) for name, found in outputs.items()}


# --- Showing ---------------------------------------------------------------------------------------------------------


def status(result, name):
    return result["answers"].get(name, {}).get("status", "absent")


def seconds(result, name):
    """The time of an inference, if the outputs are right."""
    return result["answers"][name]["seconds"] if status(result, name) == "good" else None


def speed(result, name):
    """How many times as fast as onnxruntime alone an engine is, if both are right."""
    mine, plain = seconds(result, name), seconds(result, "onnxruntime")
    return plain / mine if mine and plain else None


def best_other(result, names):
    """The shortest time without convoke."""
    return min((seconds(result, name) for name in names if name != "convoke" and seconds(result, name)), default=None)


def milliseconds(value):
    """Three digits, but no exponents."""
    value *= 1e3
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def cell(result, name):
    what = status(result, name)
    if what in ("failed", "absent"):
        return {"failed": "failed", "absent": "-"}[what]
    return milliseconds(result["answers"][name]["seconds"]) + ("" if what == "good" else f" {what}")


def table(data):
    """The table as Markdown, and the paragraphs that sum it up."""
    names, results = data["names"], losses_first(data)
    heads = [TITLES[name] for name in names] + ["speed-up", "of the best", "convolutions on convoke", "nodes on convoke", "load", "load with convoke"]
    lines = ["| network | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    ratios = []
    for result in results:
        cells = [cell(result, name) for name in names]
        mine, best, gain = seconds(result, "convoke"), best_other(result, names), speed(result, "convoke")
        ratios += [(best / mine, result["network"])] if mine and best else []
        cells += [f"{gain:.2f}" if gain else "-", f"{best / mine:.2f}" if mine and best else "-"]
        has = result["answers"].get("convoke", {})
        cells += [f"{has[key]} of {result[key]}" if key in has else "-" for key in ("convolutions", "nodes")]
        loads = [result["answers"].get(name, {}).get("load") for name in ("onnxruntime", "convoke")]
        cells += ["-" if load is None else milliseconds(load) for load in loads]
        lines.append(f"| {result['network']} | " + " | ".join(cells) + " |")
    gains = [(speed(result, "convoke"), result["network"]) for result in results if speed(result, "convoke")]
    paragraphs = summary(gains, "network", TITLES["convoke"], "onnxruntime alone")
    if len(names) > 2:
        paragraphs += summary(ratios, "network", TITLES["convoke"], f"the fastest of the {len(names) - 1} others")
    return "\n".join(lines), paragraphs + means(data) + faults(data)


def means(data):
    """The speed of the other engines."""
    speeds = {name: [speed(result, name) for result in data["results"] if speed(result, name)] for name in data["names"]}
    found = [f"{TITLES[name]} {mean(speeds[name]):.2f} ({len(speeds[name])})" for name in data["names"][2:] if speeds[name]]
    return [f"The others relative to onnxruntime alone, in geometric mean (of so many networks): {', '.join(found)}."] if found else []


def faults(data):
    """Outputs that are wrong or that nothing could be compared with, and engines that died, hung, or do not take a network."""

    def reason(answer):
        off = answer.get("error_of_max")
        if answer.get("distance") is not None:
            return f"{answer['distance']:.2g} times as far from the outputs in floats as onnxruntime"
        return answer.get("error") or ("not numbers, or of another size" if off is None else f"off by {off:.2g} of the largest element")

    titles = {"wrong": "Wrong results, which do not count", "unknown": "Not comparable", "failed": "Failed", "absent": "Not converted, or refused"}
    paragraphs = []
    for what, title in titles.items():
        found = [
            f"{TITLES[name]} on {result['network']}" + ("" if what == "unknown" else f" ({reason(answer)})")
            for result in data["results"] for name, answer in result["answers"].items() if answer["status"] == what
        ]
        paragraphs += [f"{title}: {', '.join(found)}."] if found else []
    return paragraphs


def conditions(data):
    agreement = f"Outputs agree with onnxruntime's within {TOLERANCE:g} of the largest element"
    if data["quantised"]:
        agreement = f"Outputs are at most {DISTANCE:g} times as far as onnxruntime's from those of the network in floats, in root mean square"
    return [
        machine_line(data),
        versions_line(data),
        f"Milliseconds. {work(data)} The fastest run of {data['rounds']} rounds that took all in turn. Speed-up: over onnxruntime alone. "
        "Of the best: relative to the fastest of all others. Load: milliseconds to make a session, without convoke and with it.",
        f"{agreement}; `wrong`: beyond; `unknown`: onnxruntime's are missing or not finite; "
        "`failed`: the engine died or hung; `-`: it, or its converter, does not take the network (networks.csv has its words).",
        "How each is called: " + "; ".join(f"{TITLES[name]}: {SETTINGS[name]}" for name in data["names"]) + ".",
        load_line(data, "inferences"),
    ] + (["Interrupted: not all networks were measured."] if data["interrupted"] else [])


def write_results(data, folder):
    write_files(folder, {"networks.json": lambda file: json.dump(data, file, indent=1), "networks.csv": lambda file: write_csv(data, file)})


def write_csv(data, file):
    writer = csv.writer(file)
    keys = ["seconds", "load", "level", "convolutions", "nodes", "error_of_max", "distance", "status", "error"]
    writer.writerow(["network", "engine", "threads", "seconds", "load_seconds", *keys[2:-1], "reason"])
    for result in data["results"]:
        for name, answer in result["answers"].items():
            writer.writerow([result["network"], name, data["threads"], *(answer.get(key, "") for key in keys)])


def bars(data):
    """What the picture shows: for each network and engine beside onnxruntime alone (network, engine, speed or None, text)."""
    words = {"absent": "not taken", "good": "onnxruntime alone is not right"}
    found = []
    for result in data["results"]:
        for name in data["names"]:
            if name != "onnxruntime":
                value, what = speed(result, name), status(result, name)
                found.append((result["network"], name, value, f"{value:.2f}" if value else words.get(what, what)))
    return found


def losses_first(data):
    """The results, those in front where convoke is slowest beside onnxruntime alone. What has no speed comes last."""
    return sorted(data["results"], key=lambda result: speed(result, "convoke") or float("inf"))


def picture(data, path):
    """A picture that has for each network a bar of each engine, from the speed of onnxruntime alone to that of the engine, on a logarithmic axis.

    It is legible at a width of 500 pixels, which is about what a page has on a small screen.
    """
    plt = plots()
    shown, networks = bars(data), [result["network"] for result in losses_first(data)]
    names = [name for name in data["names"] if name != "onnxruntime"]
    colours = {"convoke": "#0072b2", "openvino": "#e69f00", "ncnn": "#009e73", "mnn": "#cc79a7", "xnnpack": "#56b4e9"}
    figure, axes = plt.subplots(figsize=(5.2, 1.8 + (0.13 * len(names) + 0.09) * len(networks)), layout="constrained")
    group = 0.86  # of the distance from network to network
    thickness = group / len(names)
    for network, name, value, text in shown:
        height = networks.index(network) - group / 2 + (names.index(name) + 0.5) * thickness
        # Numbers are at the free end of a bar.
        side, align = (-1, "right") if value and value < 1 else (1, "left")
        colour = "black" if value else "#aa0000" if text == "wrong" else "#666666"
        weight = "bold" if name == "convoke" else "normal"
        if value:
            axes.barh(height, value - 1, thickness * 0.92, left=1, color=colours[name])
        axes.annotate(
            text, (value or 1, height), (3 * side, 0), textcoords="offset points", ha=align, va="center_baseline", fontsize=7, color=colour, weight=weight
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    # Room for the numbers beside the bars, and for words beside the line.
    values = [value for _, _, value, _ in shown if value]
    axes.set_xlim(min([*values, 1]) / 1.3, max([*values, 1.2]) * 1.3)
    axes.set_xticks([t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]])
    axes.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(plt.NullFormatter())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yticks(range(len(networks)), networks, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(networks) - 0.45, -0.55)
    axes.set_xlabel("times as fast as onnxruntime alone", fontsize=8)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[name], label=TITLES[name]) for name in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(names), 4), frameon=False, fontsize=8, columnspacing=1, handlelength=1.2)
    caption(figure, conditions(data)[:2])
    save(figure, path)
    plt.close(figure)


def readme(data):
    """Replaces the text between the markers of README.md, which has the summary, and of docs/figures.md, which has the table too. CPUs whose best instruction
    set is another one have markers and a picture of their own."""
    target = ROOT / "benches/figures"
    rows, summed = table(data)
    target.mkdir(exist_ok=True)
    peaks = data["machine"]["fma_peak"]
    marker = f"networks-{max(peaks, key=peaks.get)}"
    for page in ("README.md", "docs/figures.md"):
        if f"<!-- {marker} -->" not in (ROOT / page).read_text():
            sys.exit(f"{page} has no block {marker} for this CPU")
    picture(data, target / f"{marker}.svg")
    facts = [f"* {line}" for line in conditions(data)]
    image = "![How many times as fast as onnxruntime alone each engine is on each network]"
    replace(
        ROOT / "README.md",
        marker,
        [
            # The machine, the versions, what was timed, the load; whether it was interrupted.
            "\n".join([*facts[:2], f"* {work(data)} Wrong results do not count.", *facts[5:]]),
            *(paragraph for paragraph in summed if paragraph not in faults(data)),
            f"{image}(benches/figures/{marker}.svg)",
            "[All figures](docs/figures.md#whole-networks), and what failed. `tools/compare/run --networks --readme` writes them.",
        ],
    )
    replace(
        ROOT / "docs/figures.md",
        marker,
        [
            "\n".join(facts),
            *summed,
            f"{image}(../benches/figures/{marker}.svg)",
            rows,
            "This block is written by `tools/compare/run --networks --readme`.",
        ],
    )


def main():
    options = parse()
    if options.source:
        data = earlier(options.source, table, conditions)
    else:
        makers = networks(options)
        versions = {name: installed(PACKAGES.get(name, name)) for name in options.peers}
        installed("convoke-onnxruntime")
        data = {
            "quantised": options.quantised, "date": datetime.date.today().isoformat(), "machine": machine(options), "versions": versions, "threads": options.threads, "rounds": options.rounds,
            "names": ["onnxruntime", "convoke", *(name for name in options.peers if name != "onnxruntime")], "results": [], "interrupted": True,
            "load": os.getloadavg()[1],
        }
        # A request of the system to end the program is handled like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        measure(options, data, makers)
        if not data["results"]:
            sys.exit(INTERRUPTED)
    write_results(data, options.output)
    picture(data, options.output / "networks.svg")
    rows, summed = table(data)
    print("\n".join(conditions(data)) + "\n\n" + "\n\n".join([rows, *summed]))
    print(f"written: {options.output}", file=sys.stderr)
    if data["interrupted"]:
        sys.exit(0 if options.source else INTERRUPTED)
    if options.readme:
        readme(data)
    bad = [f"{result['network']} ({status(result, 'convoke')})" for result in data["results"] if status(result, "convoke") != "good"]
    if bad:
        sys.exit(f"onnxruntime with convoke is not good on: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
