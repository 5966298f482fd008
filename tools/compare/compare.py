"""Times convoke beside other libraries, layer by layer, on this machine.

    tools/compare/run                       # what the README's table shows, one thread (tools/compare/run --help for the options)

For each layer, all implementations run in turn, round by round, so that a drift of the machine's speed hits all alike; the fastest run of all rounds counts.
Everywhere: f32, plain NCHW in and out, weights packed outside of the timing, each library's fastest setting. Outputs are compared; what differs by more
than the tolerance is marked, and does not count as fast. Ctrl-C ends it; what was measured is kept.
"""

import argparse
import csv
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from tqdm import tqdm

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LABELS = {
    "convoke": "convoke", "onnxruntime": "onnxruntime", "openvino": "OpenVINO", "ncnn": "ncnn", "mnn": "MNN", "rten": "rten", "tract": "tract",
    "candle": "candle",
}
PYTHON, RUST = ["onnxruntime", "openvino", "ncnn", "mnn"], ["rten", "tract", "candle"]
# Largest error, relative to the root mean square of the output. Direct sums in f32 and small Winograd tiles stay within NOTED; large Winograd tiles reach
# 1e-2, which counts, with a mark.
NOTED, TOLERANCE = 1e-4, 2e-2
# Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130


def parse():
    parser = argparse.ArgumentParser(prog="tools/compare/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PYTHON), help="libraries, joined by commas, from: " + ", ".join(PYTHON + RUST))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each layer, library and round")
    parser.add_argument("--all", action="store_true", help="all layers of benches/shapes, not only those of layers.txt")
    parser.add_argument("--filter", default="", help="only layers whose names contain one of these, joined by commas")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target/compare", help="folder for the JSON, the table and the picture")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--readme", action="store_true", help="also write the table into README.md, and the picture beside it")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="measure nothing: table and picture of an earlier results.json")
    # Set by `run`.
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rust", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- Layers ----------------------------------------------------------------------------------------------------------


def layers(options):
    chosen = [line for line in (HERE / "layers.txt").read_text().split("\n") if line and not line.startswith("#")]
    rows = [row for path in sorted((ROOT / "benches/shapes").glob("*.csv")) for row in read(path)]
    known = {row["name"]: row for row in rows}
    if not options.all:
        rows = [known[name] for name in chosen if name in known]
        if len(rows) < len(chosen):
            sys.exit(f"layers.txt: benches/shapes has no {', '.join(set(chosen) - set(known))}")
    parts = options.filter.split(",")
    rows = [row for row in rows if any(part in row["name"] for part in parts)]
    if not rows:
        sys.exit(f"no layer's name contains {options.filter}")
    return rows


def read(path):
    """The layers of a file, in the terms of the workers' protocol."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    for entry in csv.DictReader(lines):
        numbers = lambda column: [int(n) for n in entry[column].split("x")]
        x, m, k, s, d, op = numbers("x"), int(entry["out_channels"]), *map(numbers, ("kernel", "strides", "dilations", "output_padding"))
        pads, group, axes = numbers("pads"), int(entry["group"]), len(x) - 2
        pads = pads * 2 if len(pads) == axes else pads
        extent = [d[i] * (k[i] - 1) + 1 for i in range(axes)]
        total = [pads[i] + pads[axes + i] for i in range(axes)]
        if entry["op"] == "Conv":
            w = [m, x[1] // group, *k]
            y = [(x[2 + i] + total[i] - extent[i]) // s[i] + 1 for i in range(axes)]
            products = x[0] * math.prod(w) * math.prod(y)
        else:
            w = [x[1], m // group, *k]
            y = [s[i] * (x[2 + i] - 1) + op[i] + extent[i] - total[i] for i in range(axes)]
            products = x[0] * math.prod(w) * math.prod(x[2:])
        yield {
            "name": entry["name"], "op": entry["op"], "x": x, "w": w, "y": [x[0], m, *y], "strides": s, "pads": pads, "dilations": d, "group": group,
            "output_padding": op, "flop": 2 * products,
        }


def write_operands(row, folder):
    """Input, weights and bias as files, and the layer as a model."""
    from onnx import TensorProto, helper, numpy_helper, save

    random = np.random.default_rng(0)
    sums = math.prod(row["w"][1:]) if row["op"] == "Conv" else math.prod(row["w"]) / row["w"][1] / math.prod(row["strides"]) / row["group"]
    x = random.uniform(-1, 1, row["x"]).astype(np.float32)
    w = (random.uniform(-1, 1, row["w"]) * math.sqrt(3 / max(sums, 1))).astype(np.float32)
    b = random.uniform(-1, 1, row["y"][1]).astype(np.float32)
    for name, values in [("x", x), ("w", w), ("b", b)]:
        values.tofile(folder / f"{name}.bin")
    attributes = {name: row[name] for name in ("strides", "pads", "dilations", "group")} | {"kernel_shape": row["w"][2:]}
    if row["op"] == "ConvTranspose":
        attributes["output_padding"] = row["output_padding"]
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    node = helper.make_node(row["op"], ["x", "w", "b"], ["y"], **attributes)
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph([node], "layer", [value("x", row["x"])], [value("y", row["y"])], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")


# --- Measuring -------------------------------------------------------------------------------------------------------


class Worker:
    """A program that answers requests; started anew where it died."""

    def __init__(self, command, threads):
        self.command, self.threads, self.process = command, threads, None

    def ask(self, request):
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"error": "the worker died"}

    def start(self):
        threads = str(self.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
        pipe = subprocess.PIPE
        # In a session of its own, so that Ctrl-C ends this program alone.
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True, preexec_fn=self.pin
        )

    def pin(self):
        """To as many CPUs as there are threads: the same for all."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.threads])

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()


def measure(options, rows, names):
    commands = {"convoke": [options.worker, "worker"]}
    commands |= {name: [sys.executable, str(HERE / "peers.py"), name] for name in PYTHON}
    commands |= {name: [str(options.rust / name)] for name in RUST if options.rust}
    workers = {name: Worker(commands[name], options.threads) for name in names}
    results = []
    try:
        for row in tqdm(rows, unit="layer", disable=not sys.stderr.isatty()):
            results.append(measure_layer(options, row, workers))
    except KeyboardInterrupt:
        print(f"\ninterrupted: {len(results)} of {len(rows)} layers were measured", file=sys.stderr)
    finally:
        for worker in workers.values():
            worker.close()
    return results


def measure_layer(options, row, workers):
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_operands(row, folder)
        for round_ in range(options.rounds):
            for name, worker in workers.items():
                if "error" in answers.get(name, {}):
                    continue
                out = str(folder / f"y.{name}") if round_ == 0 else None
                answer = worker.ask({"row": row, "dir": str(folder), "threads": options.threads, "secs": options.seconds, "out": out})
                if "error" in answer:
                    answers[name] = answer
                else:
                    best = answers.setdefault(name, {"seconds": answer["min"]})
                    best["seconds"] = min(best["seconds"], answer["min"])
        outputs = {name: np.fromfile(folder / f"y.{name}", np.float32) for name in answers if (folder / f"y.{name}").exists()}
    if not outputs:
        return {"row": row, "answers": answers}
    # Outputs that are not numbers are wrong for sure, and would make the median no number.
    finite = [y for y in outputs.values() if np.isfinite(y).all()] or list(outputs.values())
    # The median of three or more is right if most are.
    right = np.median(np.stack(finite), axis=0).astype(np.float64)
    scale = float(np.sqrt(np.mean(right**2))) or 1.0
    for name, y in outputs.items():
        error = float(np.max(np.abs(y - right))) / scale
        answers[name]["error_of_rms"] = error
        # Of two, nobody knows which one is right.
        if len(finite) < 3 and np.isfinite(y).all() and error > TOLERANCE:
            answers[name]["disagrees"] = True
        if "seconds" in answers[name]:
            answers[name]["gflops"] = row["flop"] / answers[name]["seconds"] / 1e9
    return {"row": row, "answers": answers}


# --- Showing ---------------------------------------------------------------------------------------------------------


def is_wrong(answer):
    return not disagrees(answer) and not answer.get("error_of_rms", 0) <= TOLERANCE


def disagrees(answer):
    """Whether it differs from the only other output, so that one of the two is wrong."""
    return answer.get("disagrees", False)


def rate(result, name):
    """GFLOP/s, where the result is not wrong, and not in doubt."""
    answer = result["answers"].get(name, {})
    return None if is_wrong(answer) or disagrees(answer) else answer.get("gflops")


def best_peer(result, names):
    return max((rate(result, name) or 0 for name in names if name != "convoke"), default=0)


def table(data):
    """Markdown, and the sentence that sums it up."""
    names = data["names"]
    lines = ["| layer | " + " | ".join(LABELS[name] for name in names) + " | of the best |", "|---|" + "---:|" * (len(names) + 1)]
    ratios = []
    for result in data["results"]:
        cells = []
        for name in names:
            answer, value = result["answers"].get(name, {}), rate(result, name)
            mark = "~" if answer.get("error_of_rms", 0) > NOTED else ""
            cells.append(f"{value:.0f}{mark}" if value else "wrong" if is_wrong(answer) else "differs" if disagrees(answer) else "-")
        mine, best = rate(result, "convoke"), best_peer(result, names)
        ratios += [(mine / best, result["row"]["name"])] if mine and best else []
        cells.append(f"{mine / best:.2f}" if mine and best else "-")
        lines.append(f"| {result['row']['name']} | " + " | ".join(cells) + " |")
    if not ratios:
        return "\n".join(lines), ""
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    ahead, (least, where) = sum(ratio > 1 for ratio, _ in ratios), min(ratios)
    count = len(names) - 1
    others = f"fastest of the {count} others" if count > 1 else LABELS[names[1]]
    summary = (
        f"Over these {len(ratios)} layers convoke is {mean:.2f} times as fast as the {others} in geometric mean, ahead on {ahead}; "
        f"the least is {least:.2f}, on {where}."
    )
    behind = [f"{name} ({ratio:.2f})" for ratio, name in sorted(ratios) if ratio < 0.995]
    return "\n".join(lines), summary + (f" Behind on: {', '.join(behind)}." if behind else "")


def conditions(data):
    machine, versions = data["machine"], data["versions"]
    cores = "one core" if data["threads"] == 1 else f"{data['threads']} cores"
    peaks = ", ".join(f"{isa} {peak:.0f}" for isa, peak in machine["fma_peak"].items())
    levels = next(iter(machine["read_bandwidth"].values()))
    bandwidth = ", ".join(f"{level} {levels[level]:.0f}" for level in ("L1", "L2", "L3", "DRAM"))
    peers = ", ".join(f"{LABELS[name]} {versions[name]}" for name in data["names"] if name != "convoke")
    return [
        f"{machine['cpu']}, {cores} of {machine['cores']}; FMA peak (GFLOP/s): {peaks}; read bandwidth (GB/s): {bandwidth}.",
        f"convoke {machine['convoke']} ({machine['rustc']}); {peers}; {data['date']}.",
        f"f32, plain NCHW in and out, weights packed outside of the timing; GFLOP/s of the fastest run of {data['rounds']} rounds that took all in turn.",
        f"Load of the machine while measuring: {data['load']:.1f}"
        + (" runnable threads, many more than its cores: layers that take milliseconds were interrupted all the time." if data["load"] > 2 * machine["cores"] else "."),
        f"Outputs agree within {NOTED:g} of their root mean square; `~`: within {TOLERANCE:g}; `wrong`: beyond; `-`: the library has no such layer."
        + (" `differs`: two outputs that disagree, either may be wrong." if any(disagrees(a) for r in data["results"] for a in r["answers"].values()) else ""),
    ]


def write_csv(data, path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["layer", "library", "threads", "seconds", "gflops", "error_of_rms", "reason"])
        for result in data["results"]:
            for name, answer in result["answers"].items():
                values = [answer.get(key, "") for key in ("seconds", "gflops", "error_of_rms", "error")]
                writer.writerow([result["row"]["name"], name, data["threads"], *values])


def picture(data, path):
    """For each layer a line from the fastest other library to convoke, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "convoke"  # the same picture from the same figures
    import matplotlib.pyplot as plt

    names, results = data["names"], [result for result in data["results"] if rate(result, "convoke")]
    figure, axes = plt.subplots(figsize=(10, 1.9 + 0.19 * len(results)), layout="constrained")
    colours = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a09600", "#777777"]
    markers = ["o", "s", "D", "^", "v", "P", "X", "*"]
    heights = range(len(results), 0, -1)
    axes.hlines(heights, [best_peer(r, names) or rate(r, "convoke") for r in results], [rate(r, "convoke") for r in results], "#0072b2", linewidth=1.2, zorder=1)
    for name, colour, marker in zip(names, colours, markers):
        points = [(rate(r, name), h) for r, h in zip(results, heights) if rate(r, name)]
        size = 46 if name == "convoke" else 18
        axes.scatter([p[0] for p in points], [p[1] for p in points], size, colour, marker=marker, label=LABELS[name], zorder=3 if name == "convoke" else 2)
    peak = max(data["machine"]["fma_peak"].values())
    axes.axvline(peak, color="black", linewidth=1, linestyle="--", label="FMA peak")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.set_xticks([t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]])
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set_yticks(list(heights), [r["row"]["name"] for r in results], fontsize=8)
    axes.set_ylim(0.2, len(results) + 0.8)
    axes.set_xlabel("GFLOP/s, multiply-adds of the definition (Winograd makes fewer, and may exceed the FMA peak)")
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.set_title("\n".join(conditions(data)[:2]), fontsize=8, loc="left", color="#555555", wrap=True)
    figure.legend(loc="outside upper left", ncols=len(names) + 1, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def readme(data):
    """Replaces what stands between the markers of README.md."""
    path, target = ROOT / "README.md", ROOT / "benches/figures"
    text = path.read_text()
    begin, end = "<!-- figures -->", "<!-- /figures -->"
    head, rest = text.split(begin, 1)
    _, tail = rest.split(end, 1)
    rows, summary = table(data)
    target.mkdir(exist_ok=True)
    picture(data, target / "compare.svg")
    facts = "\n".join(f"* {line}" for line in conditions(data))
    body = (
        f"{facts}\n* With Winograd, the multiply-adds of the definition are counted, so that figures exceed the FMA peak.\n\n{summary}\n\n"
        f"![GFLOP/s of each layer with each library](benches/figures/compare.svg)\n\n{rows}\n\nThis block is written by `tools/compare/run --readme`.\n"
    )
    path.write_text(f"{head}{begin}\n{body}{end}{tail}")


def facts(options, names):
    """The machine, as convoke's report states it, and the versions of the libraries."""
    from importlib.metadata import version

    command = [options.worker, "report", "--json", "--seconds", "0", "--filter", "bilinear", "--threads", str(options.threads)]
    machine = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["machine"]
    lock = (HERE / "rust/Cargo.lock").read_text()
    crate = lambda name: lock.split(f'name = "{name}"\nversion = "')[1].split('"')[0]
    crates = {"rten": "rten", "tract": "tract-onnx", "candle": "candle-core"}
    return machine, {name: crate(crates[name]) if name in crates else version(name) for name in names if name != "convoke"}


def main():
    options = parse()
    if options.source:
        data = json.loads(options.source.read_text())
    else:
        peers = [name for name in options.peers.split(",") if name]
        unknown = [name for name in peers if name not in PYTHON + (RUST if options.rust else [])]
        if unknown:
            sys.exit(f"no library {unknown[0]}: there are {', '.join(PYTHON + RUST)} (tools/compare/run builds the last {len(RUST)} where --peers names one)")
        names = ["convoke", *peers]
        rows = layers(options)
        machine, versions = facts(options, names)
        results = measure(options, rows, names)
        date = datetime.date.today().isoformat()
        data = dict(date=date, machine=machine, versions=versions, threads=options.threads, rounds=options.rounds, names=names, results=results)
        data["interrupted"] = len(results) < len(rows)
        data["load"] = os.getloadavg()[1]
        if not results:
            sys.exit(INTERRUPTED)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "results.json").write_text(json.dumps(data, indent=1))
    write_csv(data, options.output / "table.csv")
    picture(data, options.output / "compare.svg")
    rows, summary = table(data)
    if options.json:
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(conditions(data)) + f"\n\n{rows}\n\n{summary}")
    for result in data["results"]:
        for name, answer in result["answers"].items():
            if "error" in answer:
                print(f"{result['row']['name']}: {LABELS[name]}: {answer['error']}", file=sys.stderr)
    print(f"written: {options.output}", file=sys.stderr)
    if data["interrupted"]:
        sys.exit(INTERRUPTED)
    if options.readme:
        readme(data)
    wrong = [result["row"]["name"] for result in data["results"] if is_wrong(result["answers"]["convoke"])]
    differing = [result["row"]["name"] for result in data["results"] if any(map(disagrees, result["answers"].values()))]
    messages = [f"convoke's result is wrong: {', '.join(wrong)}"] if wrong else []
    messages += [f"two outputs disagree, and nothing tells which one is wrong: {', '.join(differing)}"] if differing else []
    if messages:
        sys.exit("\n".join(messages))


if __name__ == "__main__":
    main()
