"""Times a model in onnxruntime with and without convoke."""

from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence

import numpy
import onnxruntime

# Bytes of an input that is made, at most.
_MOST_BYTES = 1 << 32


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of one of the sessions."""

    name: str
    op: str
    """Its operators, if convoke computes several together."""
    shapes: str
    """Of its inputs, and of its outputs."""
    milliseconds: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A model on a number of threads. Times are the least of all runs, in milliseconds."""

    threads: int
    alone: float
    """onnxruntime without convoke."""
    convoke: float
    load_alone: float
    """The time to make a session."""
    load_convoke: float
    nodes: int
    """The nodes of the model that run on convoke."""
    difference: float
    """Of the outputs, in proportion to the largest element of each."""
    nodes_alone: Sequence[Node] = ()
    """The nodes by time, the slowest first, if they were asked for."""
    nodes_convoke: Sequence[Node] = ()

    @property
    def speedup(self) -> float:
        """How many times as fast it is with convoke."""
        return self.alone / self.convoke


def compare(
    model: str | os.PathLike[str] | bytes,
    *,
    threads: Sequence[int] | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, numpy.ndarray] | None = None,
    seconds: float = 2.0,
    layers: bool = False,
    **options: object,
) -> list[Comparison]:
    """Times a model in onnxruntime with and without convoke, on each of some numbers of threads.

    ``threads`` are one and all cores by default. Inputs are ``inputs``, or random numbers of the
    model's shapes, where ``dims`` has the sizes that the model leaves open, by their names; the first axis
    of an input is 1 unless it is in ``dims``. Each side runs for ``seconds``, in three turns, with one session at a time, because the threads of
    another one would take the cores. With ``layers``, a profile of both sides has the time of each node.
    Further arguments are those of :func:`add_to`.

    Raises ``ValueError`` for a size that is open, and what onnxruntime raises for the model.
    """
    model = model if isinstance(model, bytes) else os.fspath(model)
    feeds = dict(inputs) if inputs is not None else _inputs(_declared(model), dims or {})
    return [_compare(model, count, feeds, seconds, layers, options) for count in threads or sorted({1, _cores()})]


def table(comparisons: Sequence[Comparison], layers: int = 15) -> str:
    """Comparisons as text, with so many nodes of each side."""
    lines = [
        f"convoke {importlib.metadata.version('convoke-onnxruntime')}, onnxruntime {onnxruntime.__version__}, {_cpu()}",
        f"{'threads':>7} {'onnxruntime':>12} {'with convoke':>13} {'times as fast':>14} {'load':>9} {'with convoke':>13} {'nodes':>6} {'difference':>11}",
    ]
    for one in comparisons:
        lines.append(
            f"{one.threads:7} {one.alone:9.3f} ms {one.convoke:10.3f} ms {one.speedup:14.2f} {one.load_alone:6.0f} ms {one.load_convoke:10.0f} ms {one.nodes:6} {one.difference:11.1e}"
        )
    for one in comparisons:
        for side, nodes in (("onnxruntime", one.nodes_alone), ("with convoke", one.nodes_convoke)):
            if nodes:
                lines.append(f"\n{side}, {one.threads} threads, the slowest of {len(nodes)} nodes:")
                lines += [f"{node.milliseconds:10.3f} ms  {node.op}  {node.shapes}  {node.name}" for node in nodes[:layers]]
    return "\n".join(lines)


def _compare(model: str | bytes, threads: int, feeds: dict, seconds: float, layers: bool, options: dict) -> Comparison:
    sides = {}
    rounds = 3
    for _ in range(rounds):
        for is_convoke in (False, True):
            begin = time.perf_counter()
            session = _session(model, threads, options if is_convoke else None)
            load = time.perf_counter() - begin
            outputs = session.run(None, feeds)
            best = _least_time(session, feeds, seconds / rounds)
            nodes = _nodes_of_convoke(session) if is_convoke else 0
            del session
            known = sides.get(is_convoke, (math.inf, math.inf, None, 0))
            sides[is_convoke] = (min(known[0], best), min(known[1], load), outputs, nodes)
    (alone, load_alone, wanted, _), (own, load_own, got, nodes) = sides[False], sides[True]
    profiles = [_profile(model, threads, feeds, options if is_convoke else None) if layers else () for is_convoke in (False, True)]
    return Comparison(threads, alone * 1e3, own * 1e3, load_alone * 1e3, load_own * 1e3, nodes, _difference(got, wanted), *profiles)


def _least_time(session: onnxruntime.InferenceSession, feeds: dict, seconds: float, most: float = math.inf) -> float:
    """The least time of a run, in seconds. There are two runs, or as many as take ``seconds``, but at most ``most``."""
    best, runs, end = math.inf, 0, time.perf_counter() + seconds
    while runs < 2 or (runs < most and time.perf_counter() < end):
        begin = time.perf_counter()
        session.run(None, feeds)
        best, runs = min(best, time.perf_counter() - begin), runs + 1
    return best


def _session(model: str | bytes, threads: int, convoke: dict | None, profile: str | None = None) -> onnxruntime.InferenceSession:
    from . import add_to

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if convoke is None:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Without convoke, which a failure would mean, there is nothing to compare.
    return onnxruntime.InferenceSession(model, add_to(options, **convoke), enable_fallback=False)


def _nodes_of_convoke(session: onnxruntime.InferenceSession) -> int:
    from . import PROVIDER

    return sum(len(part.get_nodes()) for part in session.get_provider_graph_assignment_info() if part.ep_name == PROVIDER)


def _declared(model: str | bytes) -> list[onnxruntime.NodeArg]:
    """The inputs that a model declares."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).get_inputs()


def _inputs(declared: Sequence[onnxruntime.NodeArg], dims: Mapping[str, int]) -> dict:
    """Random inputs of the declared shapes: floats of the normal distribution, and zeros of other types."""
    unused, random, made = set(dims), numpy.random.default_rng(0), {}
    for value in declared:
        shape = []
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                name = size or f"{value.name}:{axis}"
                unused.discard(name)
                if name in dims:
                    size = dims[name]
                elif axis == 0:
                    size = 1
                else:
                    raise ValueError(f"axis {axis} of the input {value.name!r} has an open size: give it as dims={{{name!r}: 224}}, or --dim {name}=224")
            shape.append(size)
        kind = _TYPES.get(value.type)
        if kind is None:
            raise ValueError(f"the input {value.name!r} is {value.type}, for which no numbers are made: give inputs")
        if math.prod(shape) * numpy.dtype(kind).itemsize > _MOST_BYTES:
            raise ValueError(f"the input {value.name!r} of shape {shape} exceeds {_MOST_BYTES} bytes")
        is_float = numpy.issubdtype(kind, numpy.floating)
        made[value.name] = random.standard_normal(shape).astype(kind) if is_float else numpy.zeros(shape, kind)
    if unused:
        raise ValueError(f"the model has no open size {', '.join(sorted(unused))}")
    return made


_TYPES = {
    "tensor(float)": numpy.float32,
    "tensor(double)": numpy.float64,
    "tensor(float16)": numpy.float16,
    "tensor(bool)": numpy.bool_,
} | {f"tensor({name})": getattr(numpy, name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")}


def _difference(got: Sequence, wanted: Sequence) -> float:
    """The largest difference of floats, in proportion to the largest element of their output; infinite where shapes, what is not finite, or other numbers differ."""
    worst = 0.0
    for one, other in zip(got, wanted, strict=True):
        if not isinstance(one, numpy.ndarray):
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return math.inf
        if one.dtype.kind != "f":
            worst = worst if numpy.array_equal(one, other) else math.inf
            continue
        finite = numpy.isfinite(other)
        if not numpy.array_equal(one[~finite], other[~finite], equal_nan=True) or not numpy.isfinite(one[finite]).all():
            return math.inf
        one, other = one[finite].astype(numpy.float64), other[finite].astype(numpy.float64)
        largest = float(numpy.abs(other).max(initial=0))
        worst = max(worst, float(numpy.abs(one - other).max(initial=0)) / (largest or 1.0))
    return worst


def _profile(model: str | bytes, threads: int, feeds: dict, convoke: dict | None) -> list[Node]:
    """The nodes of a session by their least time."""
    with tempfile.TemporaryDirectory() as folder:
        session = _session(model, threads, convoke, os.path.join(folder, "profile"))
        ops = {}
        if convoke is not None:
            # Compiled nodes are numbered in the order of the parts.
            parts = [part for part in session.get_provider_graph_assignment_info() if part.ep_name != "CPUExecutionProvider"]
            ops = {i: _ops([node.op_type for node in part.get_nodes()]) for i, part in enumerate(parts)}
        for _ in range(10):
            session.run(None, feeds)
        events = json.loads(pathlib.Path(session.end_profiling()).read_text())
    times, nodes = collections.defaultdict(list), {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["name"]].append(event["dur"])
            nodes[event["name"]] = event["args"]
    found = []
    for name, args in nodes.items():
        shapes = " -> ".join(_shapes(args.get(key, [])) for key in ("input_type_shape", "output_type_shape"))
        op, name_of_node = args.get("op_name", ""), name.removesuffix("_kernel_time")
        if op.startswith("Convoke"):
            op = ops.get(int(name_of_node.rsplit("_", 1)[-1]), "convoke") if name_of_node.rsplit("_", 1)[-1].isdigit() else "convoke"
            op = f"convoke: {op}"
        found.append(Node(name_of_node, op, shapes, min(times[name]) / 1e3))
    return sorted(found, key=lambda node: -node.milliseconds)


def _ops(names: Sequence[str]) -> str:
    """A few operators, or how many there are of each."""
    if len(names) <= 8:
        return " + ".join(names)
    counts = collections.Counter(names).most_common()
    return f"{len(names)} nodes, " + ", ".join(f"{count} {name}" for name, count in counts)


def _shapes(types: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """At most three shapes of a profile."""
    texts = ["x".join(map(str, shape)) or "1" for entry in types for shape in entry.values()]
    return ", ".join(texts[:3] + ["..."] * (len(texts) > 3))


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
