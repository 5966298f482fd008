"""Makes a session with convoke, or without it where onnxruntime alone is faster."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import threading
import time
import warnings
from collections.abc import Mapping, Sequence

import numpy
import onnxruntime

from ._compare import _cores, _cpu, _difference, _inputs, _least_time

# Convoke is picked if it takes at most so many times as long as onnxruntime alone.
_TIE = 1.02
# How far outputs may differ, in proportion to the largest element of each. Networks of float16 differ by 5e-4.
_MOST_DIFFERENCE = 1e-2
# Turns of each side, and the runs of a turn, at most.
_TURNS = 3
_MOST_RUNS = 200
# What is in a file of decisions.
_FORM = "convoke_onnxruntime.faster_session 1"
_ALONE, _CONVOKE = "onnxruntime", "convoke"


def faster_session(
    model: str | os.PathLike[str] | bytes,
    sess_options: onnxruntime.SessionOptions | None = None,
    *,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, numpy.ndarray] | None = None,
    seconds: float = 1.0,
    remember: str | os.PathLike[str] | None = None,
    **options: object,
) -> onnxruntime.InferenceSession:
    """Makes a session with convoke, or without it where onnxruntime alone is faster for this model on this computer.

    ``sess_options`` are those of both sessions; :func:`add_to` must have been called with them. Where they are
    left out, ``threads`` is the number of threads of both, by default onnxruntime's, and further arguments are those
    of :func:`add_to`. ``"Convoke" in session.get_providers()`` tells which session is returned. The one without
    convoke has onnxruntime's own CPU provider and no other, whatever ``sess_options`` have.

    Both sessions are made, run once and timed by turns, with ``inputs``, or with random numbers of the model's
    shapes, for which :func:`compare` describes ``dims``. Each side runs for about ``seconds`` at most, but three times
    at least. A small model takes less: each of its three turns ends after 200 runs. Then one session is released.
    Both take memory until then. Convoke is picked if its least time is at most 1.02 times that of onnxruntime. It is
    not picked, and a ``RuntimeWarning`` says why, if its session cannot be made or run, or if an output differs by
    more than 1 % of its largest element. Outputs that are no floats must be equal.

    ``remember`` is the path of a JSON file that keeps decisions: a later call makes only the session that was picked,
    and runs nothing. A decision holds for the bytes of the model, the versions of onnxruntime and convoke, the CPU's
    name, the numbers of cores and threads, the optimisation level, convoke's options, ``dims``, and the types and
    shapes of ``inputs``. Other things do not count, as files of weights beside the model and other settings of
    ``sess_options``. Where a session with convoke is not picked with a warning, nothing is kept. A missing file is
    made, but no folder. A file is replaced as a whole, so nobody reads half of one. Where two processes write at the
    same time, one may lose its decision, and a later call measures again. If the file cannot be written, a
    ``RuntimeWarning`` says so.

    Raises ``ValueError`` for a size that is open, for what :func:`add_to` refuses, for ``sess_options`` that lack the
    provider or stand beside ``threads`` or options, and for a file that is damaged or of another kind, which is left
    as it is; ``OSError`` for a file that cannot be read; and what onnxruntime raises for the model without convoke.
    """
    model = model if isinstance(model, bytes) else os.fspath(model)
    sess_options = _with_provider(sess_options, threads, options)
    if remember is not None:
        key, path = _key(model, sess_options, dims, inputs), pathlib.Path(os.path.realpath(remember))
        picked = next((one["picked"] for one in _read(path) if one["key"] == key), None)
        if picked is not None:
            own = _own(model, sess_options) if picked == _CONVOKE else None
            return own or _session(model, sess_options, _ALONE)
    alone = _session(model, sess_options, _ALONE)
    feeds = dict(inputs) if inputs is not None else _inputs(alone.get_inputs(), dims or {})
    own = _own(model, sess_options, feeds, alone.run(None, feeds))
    if own is None:
        return alone
    time_alone, time_own = _times([alone, own], feeds, seconds)
    picked = _CONVOKE if time_own <= time_alone * _TIE else _ALONE
    if remember is not None:
        try:
            _write(path, {"key": key, "picked": picked, "milliseconds": {_ALONE: time_alone * 1e3, _CONVOKE: time_own * 1e3}})
        except OSError as error:
            warnings.warn(f"convoke: the decision is not kept: {error}", RuntimeWarning, stacklevel=2)
    return own if picked == _CONVOKE else alone


def _with_provider(sess_options: onnxruntime.SessionOptions | None, threads: int | None, options: dict) -> onnxruntime.SessionOptions:
    """Session options that have the provider: those given, or new ones."""
    from . import _is_added, add_to

    if sess_options is None:
        sess_options = onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = threads or 0
        return add_to(sess_options, **options)
    if threads is not None or options:
        raise ValueError(f"convoke: {', '.join(['threads'] * (threads is not None) + list(options))} beside sess_options: set them there and in add_to")
    if not _is_added(sess_options):
        raise ValueError("convoke: add_to was not called with sess_options")
    return sess_options


def _session(model: str | bytes, sess_options: onnxruntime.SessionOptions, side: str) -> onnxruntime.InferenceSession:
    with warnings.catch_warnings():
        # The list replaces the providers of the options, as it should here.
        warnings.filterwarnings("ignore", "Specified 'providers'")
        return onnxruntime.InferenceSession(model, sess_options, providers=["CPUExecutionProvider"] if side == _ALONE else None, enable_fallback=False)


def _own(model: str | bytes, sess_options: onnxruntime.SessionOptions, feeds: dict | None = None, wanted: Sequence | None = None) -> onnxruntime.InferenceSession | None:
    """The session with convoke, or ``None`` and a warning, if it fails or if outputs are not those wanted."""
    try:
        session = _session(model, sess_options, _CONVOKE)
        difference = 0.0 if wanted is None else _difference(session.run(None, feeds), wanted)
    except Exception as error:
        reason = f"its session fails: {error}"
    else:
        if difference <= _MOST_DIFFERENCE:
            return session
        reason = f"an output differs by {difference:.1e} of its largest element"
    # The caller of `faster_session` is two frames above.
    warnings.warn(f"convoke: this model runs without it, because {reason}", RuntimeWarning, stacklevel=3)
    return None


def _times(sessions: Sequence[onnxruntime.InferenceSession], feeds: dict, seconds: float) -> list[float]:
    """The least time of a run of each session, in seconds."""
    best, end = [math.inf] * len(sessions), time.perf_counter() + seconds * len(sessions)
    for _ in range(_TURNS):
        for i, session in enumerate(sessions):
            _rest()
            best[i] = min(best[i], _least_time(session, feeds, seconds / _TURNS, _MOST_RUNS))
        if time.perf_counter() > end:
            break
    return best


def _rest() -> None:
    """Waits until the threads of a session that ran no longer spin, which takes them up to 0.1 seconds, but for 0.2 seconds at most."""
    for _ in range(20):
        begin = time.process_time()
        time.sleep(0.01)
        if time.process_time() - begin < 0.002:
            break


def _key(model: str | bytes, sess_options: onnxruntime.SessionOptions, dims: Mapping[str, int] | None, inputs: Mapping[str, numpy.ndarray] | None) -> dict:
    """What a decision depends on."""
    from . import _chosen

    arrays = {name: numpy.asarray(value) for name, value in (inputs or {}).items()}
    return {
        "model": _hash(model),
        "onnxruntime": onnxruntime.__version__,
        "convoke": importlib.metadata.version("convoke-onnxruntime"),
        "cpu": _cpu(),
        "cores": _cores(),
        "threads": sess_options.intra_op_num_threads,
        "level": sess_options.graph_optimization_level.name,
        "options": _chosen(sess_options),
        "dims": {name: int(size) for name, size in (dims or {}).items()},
        "inputs": {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()},
    }


def _hash(model: str | bytes) -> str:
    """SHA-256 of a model's bytes, in hexadecimal."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    digest = hashlib.sha256()
    with open(model, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(path: pathlib.Path) -> list[dict]:
    """The decisions in a file; none, if there is no such file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        kept = json.loads(content)
        decisions = kept["decisions"]
        if kept["form"] == _FORM and isinstance(decisions, list) and all(isinstance(one["key"], dict) and one["picked"] in (_ALONE, _CONVOKE) for one in decisions):
            return decisions
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"convoke: {path} is damaged, or no file of decisions of this version: delete it to measure again, or give another path as remember")


def _write(path: pathlib.Path, decision: dict) -> None:
    """Adds a decision to those in a file, instead of one of the same key."""
    decisions = [one for one in _read(path) if one["key"] != decision["key"]] + [decision]
    new = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump({"form": _FORM, "decisions": decisions}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
