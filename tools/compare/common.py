"""What compare.py (single layers) and networks.py (whole networks) share: options, workers, facts of the machine, files, and pictures."""

import argparse
import contextlib
import importlib.metadata
import io
import json
import math
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LABELS = {
    "convoke": "convoke", "onnxruntime": "onnxruntime", "openvino": "OpenVINO", "ncnn": "ncnn", "mnn": "MNN", "rten": "rten", "tract": "tract",
    "candle": "candle", "xnnpack": "XNNPACK", "onednn": "oneDNN", "onednn-blocked": "oneDNN, blocked",
    "onnxruntime-blocked": "onnxruntime, blocked",
}
# Deaths and time-outs in a row after which a library is given up.
PATIENCE = 3
# Characters that are read of a file that the user names. A device has no end.
MOST_CHARACTERS = 1 << 26
# Exit status after Ctrl-C, as in shells.
INTERRUPTED = 130


# --- Options ---------------------------------------------------------------------------------------------------------


def number(type_, least):
    """A converter of an option's text to a number that is at least so much."""

    def convert(text):
        value = type_(text)
        if not (least <= value < math.inf):
            raise ValueError
        return value

    convert.__name__ = f"number of {least} or more"  # for argparse's message
    return convert


def add_options(parser, unit, libraries, default, seconds, timeout, results):
    """The options that both programs have."""
    parser.add_argument("--peers", default=",".join(default), help=f"libraries, joined by commas, from: {', '.join(libraries)}; or all")
    parser.add_argument("--threads", type=number(int, 1), default=1)
    parser.add_argument("--rounds", type=number(int, 1), default=3)
    parser.add_argument("--seconds", type=number(float, 0), default=seconds, help=f"time for each {unit}, library and round")
    parser.add_argument("--timeout", type=number(float, 1), default=timeout, help="seconds after which a library that does not answer is ended")
    parser.add_argument("--filter", default="", help=f"only {unit}s whose names contain one of these, joined by commas")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target/compare", help="folder for JSON, CSV and picture")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help=f"measure nothing: table and picture of an earlier {results}")
    # `run` passes this.
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)


def check_options(parser, options, libraries):
    options.peers = list(libraries) if options.peers == "all" else [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in libraries]
    if unknown or not options.peers or len(set(options.peers)) < len(options.peers):
        parser.error(f"--peers: {f'no library {unknown[0]}' if unknown else 'none, or one twice'}; there are {', '.join(libraries)}")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if options.threads > cpus:
        parser.error(f"--threads: {options.threads}, but this process may use {cpus} CPUs")


# --- Measuring -------------------------------------------------------------------------------------------------------


class Worker:
    """A program that answers requests. If it dies or hangs, it is started again; after several times in a row it is given up."""

    def __init__(self, command, options, environment={}):
        self.command, self.threads, self.timeout = command, options.threads, options.timeout
        self.environment = {"OMP_NUM_THREADS": str(self.threads), "RAYON_NUM_THREADS": str(self.threads)} | environment
        self.process, self.failures = None, 0

    def ask(self, request):
        if self.failures == PATIENCE:
            return {"status": "failed", "error": f"given up after {PATIENCE} failures in a row"}
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=self.timeout)
        except queue.Empty:
            return self.fail(f"no answer within {self.timeout:g} s")
        except BrokenPipeError:
            line = ""
        if not line:
            return self.fail("died")
        try:
            answer = json.loads(line)
        except ValueError:
            return self.fail(f"not an answer: {line[:200]!r}")
        self.failures = 0
        return answer

    def fail(self, what):
        """Ends what is left of the program. Returns the reason, with the last line that the program printed."""
        self.failures += 1
        # Its output ends a moment before the process does.
        status = self.end(0.5)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()
        self.log.close()
        return {"status": "failed", "error": f"{what} (exit status {status})" + (f": {said[-1][:200]}" if said else "")}

    def start(self):
        self.log = tempfile.TemporaryFile()
        # The program gets a session of its own, so that Ctrl-C ends only this program.
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=os.environ | self.environment,
            start_new_session=True, preexec_fn=self.pin,
        )
        # A separate thread reads the answers, because reading from a pipe has no time-out.
        self.answers = queue.Queue()
        threading.Thread(target=self.read, args=(self.process.stdout, self.answers), daemon=True).start()

    @staticmethod
    def read(output, answers):
        with output:
            for line in output:
                answers.put(line)
        answers.put("")

    def pin(self):
        """Binds the program to as many CPUs as there are threads, the same CPUs for all libraries."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.threads])

    def end(self, patience):
        """The exit status of the program. It has so many seconds to end by itself."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()

    def close(self):
        if self.process is not None and self.process.returncode is None:
            self.end(5)
            self.log.close()


@contextlib.contextmanager
def measuring(data, workers, total, unit, write):
    """Gives a function that adds a result and writes all of them. Ctrl-C ends what is measured, and leaves the results so far. The workers end, too."""

    def add(result):
        data["results"].append(result)
        data["load"] = os.getloadavg()[1]
        write()

    try:
        yield add
        data["interrupted"] = False
        write()
    except KeyboardInterrupt:
        print(f"\ninterrupted: {len(data['results'])} of {total} {unit}s were measured", file=sys.stderr)
    finally:
        for worker in workers.values():
            worker.close()


# --- Machine and versions --------------------------------------------------------------------------------------------


def tool(options, *arguments):
    """The output of convoke's tools."""
    done = subprocess.run([options.worker, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"convoke-tools {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def machine(options, *arguments):
    """The machine as in convoke's report. The arguments are more of the report's options."""
    layer = ["--seconds", "0", "--filter", "bilinear"]
    return json.loads(tool(options, "report", "--json", *layer, "--threads", str(options.threads), *arguments))["machine"]


def installed(name):
    """The version of a Python package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{name} is not installed: tools/compare/run installs what requirements.txt lists")


def machine_line(data):
    machine = data["machine"]
    cores = "one core" if data["threads"] == 1 else f"{data['threads']} cores"
    peaks = ", ".join(f"{isa} {peak:.0f}" for isa, peak in machine["fma_peak"].items())
    levels = next(iter(machine["read_bandwidth"].values()))
    bandwidth = ", ".join(f"{level} {levels[level]:.0f}" for level in ("L1", "L2", "L3", "DRAM"))
    return f"{machine['cpu']}, {cores} of {machine['cores']}; FMA peak (GFLOP/s): {peaks}; read bandwidth (GB/s): {bandwidth}."


def versions_line(data):
    machine, versions = data["machine"], data["versions"]
    peers = ", ".join(f"{LABELS[name]} {versions[name]}" for name in data["names"] if name != "convoke")
    return f"convoke {machine['convoke']} ({machine['rustc']}); {peers}; {data['date']}."


def load_line(data, what):
    """The load of the machine, and what it means if it was high: `what` was interrupted."""
    crowded = data["load"] > 2 * data["machine"]["cores"]
    return (
        f"Load of the machine while measuring: {data['load']:.1f}"
        + (f" runnable threads, many more than its cores: {what} were interrupted all the time" if crowded else "") + "."
    )


# --- Results ---------------------------------------------------------------------------------------------------------


def summary(ratios, unit, who, others):
    """Sums up how many times as fast as others someone is, of pairs of that and a name; as paragraphs, none if there are no pairs."""
    if not ratios:
        return []
    # The ratios are rounded as the table shows them. A ratio shown as 1.00 counts as equal.
    shown = [(round(ratio, 2), name) for ratio, name in sorted(ratios)]
    ahead, equal = sum(ratio > 1 for ratio, _ in shown), sum(ratio == 1 for ratio, _ in shown)
    behind = [f"{name} ({ratio:.2f})" for ratio, name in shown if ratio < 1]
    least, where = shown[0]
    over = f"these {len(ratios)} {unit}s" if len(ratios) > 1 else f"this {unit}"
    average = mean([ratio for ratio, _ in ratios])
    return [
        f"Over {over} {who} is {average:.2f} times as fast as {others} in geometric mean, ahead on {ahead}, equal (1.00) on {equal}, "
        f"behind on {len(behind)}; the least is {least:.2f}, on {where}."
        + (f" Behind on: {', '.join(behind)}." if behind else "")
    ]


def mean(ratios):
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def write_files(folder, files):
    """Writes files, of which each name has a function that writes to it. Each is replaced as a whole, so that there is a complete file at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in files.items():
        with open(folder / f"{name}.new", "w", newline="") as file:
            write(file)
        os.replace(folder / f"{name}.new", folder / name)


def earlier(path, *shows):
    """The data of an earlier run, which these functions can show."""
    try:
        with open(path) as file:
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            sys.exit(f"{path} has more than {MOST_CHARACTERS} characters, which are the most that is read")
        data = json.loads(text)
        for show in shows:
            show(data)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is not a result of this version: {error!r}")
    return data


def plots():
    """matplotlib's pyplot, for pictures as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "convoke"  # the same picture from the same figures
    import matplotlib.pyplot as plt

    return plt


# Colours of pictures that are others for readers who prefer dark pages.
DARK = {
    "#ffffff": "#16181c", "#000000": "#e8e8e8", "#dddddd": "#3c4046", "#555555": "#b0b0b0", "#666666": "#b0b0b0", "#0072b2": "#3294d8", "#aa0000": "#ff6b6b",
    "#ff0000": "#ff6b6b",
}


def caption(figure, lines):
    """Writes facts below a picture, which may be seen without the page around it."""
    # A number stays in the line of its name.
    facts = [textwrap.fill(re.sub(r" (?=\d)", "\u00a0", line), 84, break_long_words=False) for line in lines]
    figure.supxlabel("\n".join(facts), x=0.01, ha="left", fontsize=7.5, color="#555555")


def save(figure, path):
    """Writes a picture as SVG, with colours for dark pages."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(with_dark_mode(text.getvalue()))


def with_dark_mode(svg):
    """A picture of matplotlib that is dark where the reader prefers dark pages, also as an <img> of a page."""
    # matplotlib sets colours as styles of the elements, except black of texts, which is SVG's own.
    rules = [f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}' for light, dark in DARK.items() for kind in ("fill", "stroke")]
    style = f'<style type="text/css">@media(prefers-color-scheme:dark){{svg{{fill:{DARK["#000000"]}}}{"".join(rules)}}}</style>'
    head, rest = svg.split("<defs>", 1)
    return f"{head}<defs>\n  {style}{rest}"


def replace(path, marker, paragraphs):
    """Replaces the text between the markers `<!-- marker -->` and `<!-- /marker -->` of a page."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    head, rest = path.read_text().split(begin, 1)
    _, tail = rest.split(end, 1)
    path.write_text(f"{head}{begin}\n" + "\n\n".join(paragraphs) + f"\n{end}{tail}")
