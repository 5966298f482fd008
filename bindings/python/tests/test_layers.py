"""Results: against onnxruntime, the package onnx, and ONNX's own vectors."""

import glob
import math
import os

import convoke
import ml_dtypes
import numpy as np
import onnx
import pytest
from conftest import assert_close, by_onnxruntime, by_reference, normal
from onnx import helper, numpy_helper

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
VECTORS = sorted(map(os.path.dirname, glob.glob(os.path.join(os.path.dirname(__file__), "../../../tests/data/onnx/*/*/model.onnx"))))
FUNCTIONS = {"Conv": convoke.conv, "ConvTranspose": convoke.conv_transpose}

CONVS = {
    "plain": ([2, 3, 9, 7], [4, 3, 3, 3], {}),
    "one axis": ([2, 4, 20], [6, 4, 5], {"strides": [2], "pads": [1, 3]}),
    "three axes": ([1, 2, 6, 7, 8], [3, 2, 3, 2, 3], {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 1]}),
    "dilated": ([1, 4, 16, 16], [4, 4, 3, 3], {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "grouped": ([2, 8, 10, 10], [12, 2, 3, 3], {"group": 4, "pads": [0, 1, 2, 1]}),
    "depthwise": ([1, 16, 15, 15], [16, 1, 3, 3], {"group": 16, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "winograd": ([1, 32, 28, 28], [32, 32, 3, 3], {"pads": [1, 1, 1, 1]}),
    "same upper": ([1, 3, 9, 10], [4, 3, 4, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "same lower": ([1, 3, 9, 10], [4, 3, 4, 3], {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    "valid": ([1, 3, 9, 10], [4, 3, 4, 3], {"auto_pad": "VALID", "kernel_shape": [4, 3]}),
}

TRANSPOSED = {
    "plain": ([2, 3, 5, 6], [3, 4, 3, 3], {}),
    "up": ([1, 16, 12, 12], [16, 8, 2, 2], {"strides": [2, 2]}),
    "one axis": ([1, 8, 10], [8, 4, 8], {"strides": [4], "pads": [2, 2]}),
    "three axes": ([1, 2, 4, 3, 5], [2, 3, 2, 2, 2], {"strides": [2, 2, 2]}),
    "grouped": ([2, 6, 5, 5], [6, 2, 3, 3], {"group": 3, "strides": [2, 1], "pads": [1, 0, 0, 2]}),
    "dilated": ([1, 3, 6, 6], [3, 2, 3, 3], {"dilations": [2, 2], "strides": [1, 2]}),
    "output padding": ([1, 3, 5, 5], [3, 2, 3, 3], {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 1, 1]}),
    "output shape": ([1, 3, 5, 5], [3, 2, 3, 3], {"strides": [2, 2], "output_shape": [10, 9]}),
    "same upper": ([1, 3, 5, 6], [3, 2, 3, 3], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
}


def cases(layers, op):
    return [pytest.param(op, *layer, id=f"{op} {name}") for name, layer in layers.items()]


LAYERS = cases(CONVS, "Conv") + cases(TRANSPOSED, "ConvTranspose")


def channels(op, w_shape, attributes):
    return w_shape[0] if op == "Conv" else w_shape[1] * attributes.get("group", 1)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("op, x_shape, w_shape, attributes", LAYERS)
def test_onnxruntime_agrees(rng, op, x_shape, w_shape, attributes, bias):
    arrays = [normal(rng, x_shape), normal(rng, w_shape)]
    if bias:
        arrays.append(normal(rng, channels(op, w_shape, attributes)))
    assert_close(FUNCTIONS[op](*arrays, **attributes), by_onnxruntime(op, *arrays, **attributes))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("op, x_shape, w_shape, attributes", LAYERS)
def test_the_definition_agrees_in_every_dtype(rng, op, x_shape, w_shape, attributes, dtype):
    arrays = [normal(rng, shape, dtype) for shape in (x_shape, w_shape, channels(op, w_shape, attributes))]
    # The package onnx computes no ConvTranspose with an automatic padding, an output shape or several output channels of
    # a group.
    wrong = op == "ConvTranspose" and {"auto_pad", "output_shape", "group"} & attributes.keys()
    oracle = by_onnxruntime if wrong else by_reference
    got = FUNCTIONS[op](*arrays, **attributes)
    assert got.dtype == dtype
    # onnxruntime's sums are of float32.
    assert_close(got, oracle(op, *arrays, **attributes), 1e-5 if oracle is by_onnxruntime and dtype == np.float64 else None)


def tensors(folder, kind):
    paths = sorted(glob.glob(f"{folder}/test_data_set_0/{kind}_*.pb"), key=lambda path: int(path.rsplit("_", 1)[1][:-3]))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def single_nodes():
    """The vectors whose model is one node, which is of the two operators."""
    for folder in VECTORS:
        nodes = onnx.load(f"{folder}/model.onnx").graph.node
        if len(nodes) == 1:
            yield pytest.param(folder, nodes[0], id="/".join(folder.split("/")[-2:]))


@pytest.mark.parametrize("folder, node", list(single_nodes()))
def test_onnx_vectors(folder, node):
    """Inputs of the node are inputs of the model or constants in it; attributes come as the package onnx has them."""
    graph = onnx.load(f"{folder}/model.onnx").graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values |= zip((value.name for value in graph.input if value.name not in values), tensors(folder, "input"))
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    got = FUNCTIONS[node.op_type](*(values[name] for name in node.input), **attributes)
    assert_close(got, tensors(folder, "output")[0])


def test_there_are_vectors():
    assert len(list(single_nodes())) > 55


ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "hard_swish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "gelu": lambda v: v / 2 * (1 + np.vectorize(math.erf)(v / np.sqrt(2))),
    "gelu_tanh": lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
    "mish": lambda v: v * np.tanh(np.log1p(np.exp(v))),
    ("clip", -0.5, 2): lambda v: np.clip(v, -0.5, 2),
    ("leaky_relu", 0.1): lambda v: np.where(v < 0, 0.1 * v, v),
}


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_residual_and_an_activation_follow(rng, op, activation):
    x, w, b = normal(rng, [2, 6, 9, 9]), normal(rng, [6, 6, 3, 3]) / 7, normal(rng, 6)
    plain = by_reference(op, x, w, b)
    residual = normal(rng, plain.shape)
    got = FUNCTIONS[op](x, w, b, residual=residual, activation=activation)
    assert_close(got, ACTIVATIONS[activation](plain + residual), 2e-6)


def test_threads_and_accuracy_of_one_call(rng):
    x, w = normal(rng, [1, 32, 56, 56]), normal(rng, [32, 32, 3, 3])
    wanted = by_reference("Conv", x, w, pads=[1] * 4)
    for accuracy in ("strict", "standard", "fast"):
        one, three = (convoke.conv(x, w, pads=[1] * 4, accuracy=accuracy, threads=threads) for threads in (1, 3))
        assert_close(one, wanted, 1e-4 if accuracy == "fast" else 1e-5)
        assert_close(three, wanted, 1e-4 if accuracy == "fast" else 1e-5)


def test_empty_batches_channels_and_axes(rng):
    w = normal(rng, [5, 4, 3, 3])
    assert convoke.conv(np.zeros([0, 4, 8, 8], np.float32), w).shape == (0, 5, 6, 6)
    assert convoke.conv(np.zeros([2, 4, 8, 8], np.float32), w[:0]).shape == (2, 0, 6, 6)
    # Without input channels, the result is the bias.
    b = normal(rng, 5)
    got = convoke.conv(np.zeros([1, 0, 4, 4], np.float32), np.zeros([5, 0, 3, 3], np.float32), b)
    assert np.array_equal(got, np.broadcast_to(b.reshape(1, 5, 1, 1), (1, 5, 2, 2)))
    # Padding around nothing.
    assert np.array_equal(convoke.conv(np.zeros([1, 4, 0], np.float32), normal(rng, [5, 4, 3]), b, pads=[2, 2]), b.reshape(1, 5, 1) + np.zeros(2, np.float32))
    assert convoke.conv_transpose(np.zeros([0, 4, 3], np.float32), normal(rng, [4, 2, 3])).shape == (0, 2, 5)


def test_nan_and_infinity_spread_as_far_as_the_definition_says(rng):
    x, w = normal(rng, [1, 8, 20, 20]), normal(rng, [8, 8, 3, 3])
    x[0, 3, 10, 10] = np.nan
    got = convoke.conv(x, w, pads=[1] * 4)
    bad = np.zeros([20, 20], bool)
    bad[9:12, 9:12] = True
    assert np.array_equal(np.isnan(got), np.broadcast_to(bad, got.shape))
