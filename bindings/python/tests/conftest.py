"""What the tests compare with: onnxruntime, and the package onnx's own definition of the operators."""

import numpy as np
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(3)


def model(op, arrays, opset=22, **attributes):
    """A model of one node whose inputs are arrays."""
    names = ["x", "w", "b"][: len(arrays)]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    inputs = [helper.make_tensor_value_info(name, kind, array.shape) for name, kind, array in zip(names, kinds, arrays)]
    node = helper.make_node(op, names, ["y"], **{name: value for name, value in attributes.items() if value is not None})
    graph = helper.make_graph([node], "layer", inputs, [helper.make_tensor_value_info("y", kinds[0], None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), dict(zip(names, arrays))


def by_onnxruntime(op, *arrays, **attributes):
    """The layer in float32 by onnxruntime."""
    made, feeds = model(op, [array.astype(np.float32) for array in arrays], **attributes)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def by_reference(op, *arrays, **attributes):
    """The layer in float64 by the package onnx."""
    made, feeds = model(op, [array.astype(np.float64) for array in arrays], **attributes)
    return onnx.reference.ReferenceEvaluator(made).run(None, feeds)[0]


TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""Of the largest element. 16-bit types are rounded once."""


def assert_close(got, wanted, tolerance=None):
    """Compares with the largest element."""
    assert type(got) is np.ndarray and got.flags.c_contiguous
    assert got.shape == wanted.shape
    tolerance = TOLERANCES[str(got.dtype)] if tolerance is None else tolerance
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    largest = np.abs(wanted).max(initial=0)
    assert np.abs(got - wanted).max(initial=0) <= tolerance * (largest or 1)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def normal(rng, shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)
