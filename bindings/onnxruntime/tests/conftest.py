"""Runs models with and without convoke, and counts the nodes that really ran on it."""

import dataclasses
import os
import subprocess
import sys

import convoke_onnxruntime
import numpy as np
import onnxruntime
import pytest

onnxruntime.set_default_logger_severity(3)


@dataclasses.dataclass
class Result:
    outputs: list
    layers: list
    """The operators of each layer that ran on convoke."""

    @property
    def nodes(self):
        return sum(map(len, self.layers))


def options(level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, pool=1):
    """Options of a session that tells which nodes run where."""
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = pool
    made.graph_optimization_level = level
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return made


def load(model):
    """What InferenceSession takes, of a path or a model."""
    return model if isinstance(model, (str, bytes)) else model.SerializeToString()


def session(model, level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, pool=1, layout="first", **convoke):
    """With channels first, each layer is a node, so that tests can tell which nodes are in it."""
    return onnxruntime.InferenceSession(load(model), convoke_onnxruntime.add_to(options(level, pool), layout=layout, **convoke))


def layers(made):
    """The operators of each layer that convoke has in a session."""
    parts = made.get_provider_graph_assignment_info()
    return [[node.op_type for node in part.get_nodes()] for part in parts if part.ep_name == convoke_onnxruntime.PROVIDER]


def run(model, feeds, **kind):
    made = session(model, **kind)
    return Result(made.run(None, feeds), layers(made))


def run_plain(model, feeds, level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
    """On onnxruntime's own provider."""
    return onnxruntime.InferenceSession(load(model), options(level), providers=["CPUExecutionProvider"]).run(None, feeds)


def assert_close(got, wanted, tolerance=1e-3):
    """Compares with the largest element."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert one.shape == other.shape and one.dtype == other.dtype
        one, other = one.astype(np.float64), other.astype(np.float64)
        assert np.array_equal(np.isfinite(one), np.isfinite(other))
        finite = np.isfinite(other)
        largest = np.abs(other[finite]).max(initial=0)
        assert np.abs(one[finite] - other[finite]).max(initial=0) <= tolerance * (largest or 1)


def output_of(code, *arguments):
    """What a process of its own writes, standard error included: onnxruntime's log goes there."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=os.path.dirname(__file__), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def rng():
    return np.random.default_rng(1)
