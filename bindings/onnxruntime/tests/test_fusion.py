"""Which nodes become part of a layer, and that results stay the same."""

import convoke_onnxruntime
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import assert_close, layers, options, output_of, run, run_plain, session
from onnx import TensorProto, helper, numpy_helper

NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, constants, inputs=(), opset=22, outputs=("y",), x_shape=(2, 6, 9, 8)):
    """A graph from x, by nodes given as (operator, inputs, output, attributes)."""
    values = {"x": normal(*x_shape)} | dict(inputs)
    domain = lambda op: "com.microsoft" if op in ("FusedConv", "QuickGelu", "FastGelu") else ""
    made = [helper.make_node(op, ins.split(" "), [out], domain=domain(op), **attributes) for op, ins, out, attributes in nodes]
    graph = helper.make_graph(
        made,
        "fusion",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in values.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=10), values


W = {"w": normal(4, 6, 3, 3), "b": normal(4)}
CONV = ("Conv", "x w b", "c", {"pads": [1, 1, 1, 1]})
NORM = {"scale": normal(4), "shift": normal(4), "mean": normal(4), "var": np.abs(normal(4)) + 0.5}
# For x.
NORM6 = {"scale6": normal(6), "shift6": normal(6), "mean6": normal(6), "var6": np.abs(normal(6)) + 0.5}


def f(value):
    return np.array(value, np.float32)


# Numbers of spelled-out activations.
NUMBERS = {"zero": f(0), "six": f([6]), "sixth": f(1 / 6), "three": f([[[[3]]]]), "low": f(-0.5), "slope": f([0.3]), "half": f([0.5]), "one": f(1), "root": f(2**0.5), "part": f(0.5**0.5), "inner": f((2 / np.pi) ** 0.5), "cube": f(0.044715)}
SHIFTED = ("Add", "c three", "s", {})
RELU6 = ("Clip", "s zero six", "g", {})
# Nodes behind CONV that together are one activation.
SPELLED = {
    "hardswish-torch": [SHIFTED, RELU6, ("Mul", "c g", "m", {}), ("Div", "m six", "y", {})],
    "hardswish-sixth": [SHIFTED, RELU6, ("Mul", "g c", "m", {}), ("Mul", "m sixth", "y", {})],
    "hardswish-inner-division": [("Add", "three c", "s", {}), RELU6, ("Div", "g six", "d", {}), ("Mul", "c d", "y", {})],
    "hardswish-relu-min": [SHIFTED, ("Relu", "s", "r", {}), ("Min", "r six", "g", {}), ("Mul", "sixth g", "d", {}), ("Mul", "d c", "y", {})],
    "hardswish-max-min": [SHIFTED, ("Max", "zero s", "r", {}), ("Min", "six r", "g", {}), ("Mul", "c g", "m", {}), ("Mul", "sixth m", "y", {})],
    "hardswish-of-a-sixth": [SHIFTED, ("Mul", "c sixth", "d", {}), RELU6, ("Mul", "d g", "y", {})],
    "hardsigmoid-swapped": [("HardSigmoid", "c", "s", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "s c", "y", {})],
    "quick-gelu": [("QuickGelu", "c", "y", {"alpha": 1.0})],
    "gelu-torch": [("Div", "c root", "d", {}), ("Erf", "d", "e", {}), ("Add", "e one", "a", {}), ("Mul", "c a", "m", {}), ("Mul", "m half", "y", {})],
    "gelu-half-first": [("Mul", "half c", "h", {}), ("Mul", "c part", "d", {}), ("Erf", "d", "e", {}), ("Add", "one e", "a", {}), ("Mul", "a h", "y", {})],
    "gelu-tanh-pow": [
        ("Pow", "c three", "p", {}), ("Mul", "p cube", "q", {}), ("Add", "c q", "s", {}), ("Mul", "s inner", "d", {}), ("Tanh", "d", "t", {}),
        ("Add", "t one", "a", {}), ("Mul", "c half", "h", {}), ("Mul", "h a", "y", {}),
    ],
    "gelu-tanh-products": [
        ("Mul", "c c", "p", {}), ("Mul", "p c", "r", {}), ("Mul", "r cube", "q", {}), ("Add", "c q", "s", {}), ("Mul", "s inner", "d", {}), ("Tanh", "d", "t", {}),
        ("Add", "t one", "a", {}), ("Mul", "c a", "h", {}), ("Mul", "h half", "y", {}),
    ],
    "gelu-sum": [("Mul", "c part", "d", {}), ("Erf", "d", "e", {}), ("Mul", "e c", "m", {}), ("Add", "m c", "s", {}), ("Mul", "s half", "y", {})],
    "mish-spelled": [("Softplus", "c", "s", {}), ("Tanh", "s", "t", {}), ("Mul", "c t", "y", {})],
    "leaky-max": [("Mul", "c slope", "m", {}), ("Max", "c m", "y", {})],
    "leaky-max-swapped": [("Mul", "slope c", "m", {}), ("Max", "m c", "y", {})],
    "leaky-max-of-leaky": [("LeakyRelu", "c", "l", {"alpha": 0.1}), ("Max", "l c", "y", {})],
    "leaky-of-two-relus": [("Relu", "c", "r", {}), ("Neg", "c", "n", {}), ("Relu", "n", "q", {}), ("Mul", "q slope", "m", {}), ("Sub", "r m", "y", {})],
    "leaky-keras": [("Relu", "c", "r", {}), ("Abs", "c", "a", {}), ("Sub", "c a", "n", {}), ("Mul", "n slope", "m", {}), ("Mul", "m half", "h", {}), ("Add", "r h", "y", {})],
    "relu-of-leaky": [("LeakyRelu", "c", "l", {"alpha": 0.1}), ("Max", "zero l", "y", {})],
    "relu6-min": [("Relu", "c", "r", {}), ("Min", "r six", "y", {})],
    "relu6-clip": [("Relu", "c", "r", {}), ("Clip", "r zero six", "y", {})],
    "relu6-min-first": [("Min", "six c", "r", {}), ("Relu", "r", "y", {})],
    "clip-max-min": [("Max", "c low", "r", {}), ("Min", "r half", "y", {})],
    "max": [("Max", "low c", "y", {})],
    "min": [("Min", "c half", "y", {})],
    "min-of-three": [("Min", "half c six", "y", {})],
}
Z = {"z": normal(2, 4, 9, 8)}
FUSED_ACTIVATIONS = {
    "Relu": [],
    "Tanh": [],
    "Sigmoid": [],
    "LeakyRelu": [0.2],
    "Clip": [-0.5, 0.75],
}


def fused_conv(inputs, activation, params):
    return ("FusedConv", inputs, "y", {"pads": [1, 1, 1, 1], "activation": activation} | ({"activation_params": params} if params else {}))


FUSED = {
    **{name: ([CONV, *nodes], W | NUMBERS, {}) for name, nodes in SPELLED.items()},
    **{f"fused-{name.lower()}": ([fused_conv("x w b", name, params)], W, {}) for name, params in FUSED_ACTIVATIONS.items()},
    **{f"fused-add-{name.lower()}": ([fused_conv("x w  z", name, params)], W, Z) for name, params in FUSED_ACTIVATIONS.items()},
    "fused-then-norm": ([("FusedConv", "x w b", "c", {"pads": [1, 1, 1, 1]}), ("BatchNormalization", "c scale shift mean var", "y", {})], W | NORM, {}),
    "fused-add-then-relu": ([("FusedConv", "x w b z", "c", {"pads": [1, 1, 1, 1]}), ("Relu", "c", "y", {})], W, Z),
    "fused-relu-then-min": ([("FusedConv", "x w b", "c", {"pads": [1, 1, 1, 1], "activation": "Relu"}), ("Min", "c half", "y", {})], W | NUMBERS, {}),
    "pad-of-axes": ([("Pad", "x pads  axes", "p", {}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([1, 2, 0, 3]), "axes": np.array([-1, 2])}, {}),
    "pad-of-one-axis": ([("Pad", "x pads zero axes", "p", {}), ("Conv", "p w b", "y", {})], W | NUMBERS | {"pads": np.array([1, 2]), "axes": np.array([3])}, {}),
    "relu": ([CONV, ("Relu", "c", "y", {})], W, {}),
    "clip": ([CONV, ("Clip", "c lo hi", "y", {})], W | {"lo": f(-0.5), "hi": f(0.75)}, {}),
    "clip-above": ([CONV, ("Clip", "c  hi", "y", {})], W | {"hi": f(0.75)}, {}),
    "clip-by-attributes": ([CONV, ("Clip", "c", "y", {"min": -0.5, "max": 0.75})], W, {}),
    "leaky": ([CONV, ("LeakyRelu", "c", "y", {"alpha": 0.2})], W, {}),
    "leaky-default": ([CONV, ("LeakyRelu", "c", "y", {})], W, {}),
    "prelu": ([CONV, ("PRelu", "c slope", "y", {})], W | {"slope": f([0.3])}, {}),
    "hardswish": ([CONV, ("HardSwish", "c", "y", {})], W, {}),
    "sigmoid": ([CONV, ("Sigmoid", "c", "y", {})], W, {}),
    "tanh": ([CONV, ("Tanh", "c", "y", {})], W, {}),
    "silu": ([CONV, ("Sigmoid", "c", "s", {}), ("Mul", "c s", "y", {})], W, {}),
    "silu-swapped": ([CONV, ("Sigmoid", "c", "s", {}), ("Mul", "s c", "y", {})], W, {}),
    "swish": ([CONV, ("Swish", "c", "y", {})], W, {}),
    "gelu": ([CONV, ("Gelu", "c", "y", {})], W, {}),
    "gelu-tanh": ([CONV, ("Gelu", "c", "y", {"approximate": "tanh"})], W, {}),
    "gelu-fast": ([CONV, ("FastGelu", "c", "y", {})], W, {}),
    "mish": ([CONV, ("Mish", "c", "y", {})], W, {}),
    "hardsigmoid": ([CONV, ("HardSigmoid", "c", "y", {"alpha": 1 / 6, "beta": 0.5})], W, {}),
    "hardsigmoid-falling": ([CONV, ("HardSigmoid", "c", "y", {"alpha": -0.4, "beta": 0.1})], W, {}),
    "hardsigmoid-spelled": ([CONV, SHIFTED, RELU6, ("Mul", "g sixth", "y", {})], W | NUMBERS, {}),
    "hardsigmoid-mul": ([CONV, ("HardSigmoid", "c", "s", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "c s", "y", {})], W, {}),
    "add": ([CONV, ("Add", "c r", "y", {})], W, {"r": normal(2, 4, 9, 8)}),
    "add-swapped-relu": ([CONV, ("Add", "r c", "a", {}), ("Relu", "a", "y", {})], W, {"r": normal(2, 4, 9, 8)}),
    "sum-relu": ([CONV, ("Sum", "r c", "a", {}), ("Relu", "a", "y", {})], W, {"r": normal(2, 4, 9, 8)}),
    "add-constant": ([CONV, ("Add", "c r", "y", {})], W | {"r": normal(2, 4, 9, 8)}, {}),
    "norm": ([CONV, ("BatchNormalization", "c scale shift mean var", "y", {})], W | NORM, {}),
    "norm-no-bias": ([("Conv", "x w", "c", {}), ("BatchNormalization", "c scale shift mean var", "y", {"epsilon": 0.1})], W | NORM, {}),
    "norm-add-relu": (
        [CONV, ("BatchNormalization", "c scale shift mean var", "n", {}), ("Add", "n r", "a", {}), ("Relu", "a", "y", {})],
        W | NORM,
        {"r": normal(2, 4, 9, 8)},
    ),
    "mul-add-relu": (
        [CONV, ("Mul", "c m", "d", {}), ("Add", "s d", "a", {}), ("Relu", "a", "y", {})],
        W | {"m": normal(4, 1, 1), "s": normal(1, 4, 1, 1)},
        {},
    ),
    "norm-mul-of-one": (
        [CONV, ("BatchNormalization", "c scale shift mean var", "n", {}), ("Mul", "m n", "y", {})],
        W | NORM | {"m": f(0.7)},
        {},
    ),
    "norm-alone": ([("BatchNormalization", "x scale6 shift6 mean6 var6", "y", {})], NORM6, {}),
    "norm-alone-mul-add-add-relu": (
        [
            ("BatchNormalization", "x scale6 shift6 mean6 var6", "n", {}),
            ("Mul", "n m", "d", {}),
            ("Add", "d s", "a", {}),
            ("Add", "r a", "b", {}),
            ("Relu", "b", "y", {}),
        ],
        NORM6 | {"m": normal(6, 1, 1), "s": f([0.3])},
        {"r": normal(2, 6, 9, 8)},
    ),
    "pad": ([("Pad", "x pads", "p", {}), ("Conv", "p w b", "y", {"pads": [0, 1, 0, 0], "strides": [2, 1]})], W | {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 3])}, {}),
    "pad-by-attribute": ([("Pad", "x", "p", {"pads": [0, 0, 1, 2, 0, 0, 0, 3]}), ("Conv", "p w b", "y", {})], W, {}),
    "pad-zero-relu": (
        [("Pad", "x pads zero", "p", {"mode": "constant"}), ("Conv", "p w b", "c", {"auto_pad": "VALID"}), ("Relu", "c", "y", {})],
        W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": f(0)},
        {},
    ),
    "transposed-norm-relu": (
        [("ConvTranspose", "x wt", "c", {"group": 2, "strides": [2, 2]}), ("BatchNormalization", "c scale shift mean var", "n", {}), ("Relu", "n", "y", {})],
        {"wt": normal(6, 2, 2, 3)} | NORM,
        {},
    ),
    "weights-as-inputs": ([("Conv", "x wi", "c", {}), ("Relu", "c", "y", {})], {}, {"wi": normal(4, 6, 3, 3)}),
    "bias-as-input": ([("Conv", "x w bi", "c", {}), ("Relu", "c", "y", {})], W, {"bi": normal(4)}),
}
# Of models whose nodes are of an older or newer form.
OPSETS = {"clip-by-attributes": 10, "pad-by-attribute": 10, "pad-of-ones-by-attribute": 10, "norm-of-opset-8": 8, "swish": 24, "swish-of-another-slope": 24}


@pytest.mark.parametrize("name", FUSED)
def test_nodes_become_one_layer(name):
    nodes, constants, inputs = FUSED[name]
    made, feeds = model(nodes, constants, inputs, OPSETS.get(name, 22))
    wanted = run_plain(made, feeds, NONE)
    for threads in (1, 2):
        result = run(made, feeds, level=NONE, threads=threads, pool=threads)
        assert [sorted(layer) for layer in result.layers] == [sorted(node[0] for node in nodes)]
        assert_close(result.outputs, wanted, 1e-5)
    assert_close(run(made, feeds).outputs, wanted, 1e-5)


# A bound of one of these is no float where the model is of double.
@pytest.mark.parametrize("name", [name for name in FUSED if name != "hardsigmoid-spelled"])
@pytest.mark.parametrize("code, kind, tolerance", [(TensorProto.DOUBLE, np.float64, 1e-5), (TensorProto.FLOAT16, np.float16, 1e-3)], ids=["double", "float16"])
def test_nodes_become_one_layer_in_other_types(name, code, kind, tolerance):
    """onnxruntime's results are those of float: its own provider has no convolution of double."""
    nodes, constants, inputs = FUSED[name]
    made, feeds = model(nodes, constants, inputs, OPSETS.get(name, 22))
    feeds = {name: value.astype(kind) for name, value in feeds.items()}
    floats = [tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT]

    def convert(to):
        for tensor in floats:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind).astype(to), tensor.name))

    convert(np.float32)
    wanted = run_plain(made, {name: value.astype(np.float32) for name, value in feeds.items()}, NONE)
    convert(kind)
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = code
    result = run(made, feeds, level=NONE)
    ops = [node[0] for node in nodes]
    # Factors are not folded into short weights. The largest double, which a bound that is left out
    # stands for, is no float.
    scaled = {"BatchNormalization", "Mul"} & set(ops[:2]) or ops[1:] == ["HardSigmoid"]
    alone = (bool(scaled) and not {"Max", "Erf", "Tanh"} & set(ops)) if kind is np.float16 else name == "clip-above"
    layer = ops[:1] if alone else sorted(ops)
    assert [sorted(layer) for layer in result.layers] == ([] if layer == ["BatchNormalization"] and alone else [layer])
    assert all(output.dtype == kind for output in result.outputs)
    assert_close([output.astype(np.float32) for output in result.outputs], wanted, tolerance)


def test_an_activation_stays_where_a_factor_behind_it_cannot_be_taken():
    """Weights of float16 take no factors: the Clip is the layer's, and the Mul is not."""
    nodes = [CONV, ("Clip", "c zero six", "g", {}), ("Mul", "g half", "y", {})]
    made, feeds = model(nodes, W | NUMBERS, {})
    assert [sorted(layer) for layer in run(made, feeds, level=NONE).layers] == [["Clip", "Conv", "Mul"]]
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    result = run(made, {name: value.astype(np.float16) for name, value in feeds.items()}, level=NONE)
    assert [sorted(layer) for layer in result.layers] == [["Clip", "Conv"]]


def test_x_may_be_a_constant():
    """onnxruntime computes such a layer when the session is made, but not at the level that optimises nothing."""
    made, feeds = model([("Conv", "k w b", "c", {}), ("Add", "c x", "y", {})], W | {"k": normal(2, 6, 11, 10)}, x_shape=(2, 4, 9, 8))
    result = run(made, feeds, level=NONE)
    assert result.layers == [["Conv", "Add"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)
    assert_close(run(made, feeds).outputs, result.outputs, 1e-5)


APART = {
    # What is between is read elsewhere, or leaves the graph.
    "two-readers": ([CONV, ("Relu", "c", "r", {}), ("Add", "c r", "y", {})], W, {}, ["Conv"]),
    "output": ([CONV, ("Relu", "c", "y", {})], W, {}, ["Conv"]),
    # Of another shape.
    "add-broadcast": ([CONV, ("Add", "c r", "y", {})], W, {"r": normal(1, 4, 1, 1)}, ["Conv"]),
    "add-larger": ([("Conv", "x w b", "c", {}), ("Add", "c r", "y", {})], W, {"r": normal(3, 1, 4, 7, 6)}, ["Conv"]),
    "sum-of-three": ([CONV, ("Sum", "c r r", "y", {})], W, {"r": normal(2, 4, 9, 8)}, ["Conv"]),
    "sum-of-itself": ([CONV, ("Add", "c c", "y", {})], W, {}, ["Conv"]),
    # Not what convoke computes.
    "clip-by-input": ([CONV, ("Clip", "c lo", "y", {})], W, {"lo": f(0.1)}, ["Conv"]),
    "prelu-of-channels": ([CONV, ("PRelu", "c slope", "y", {})], W | {"slope": normal(4, 1, 1)}, {}, ["Conv"]),
    "hardsigmoid-default-mul": ([CONV, ("HardSigmoid", "c", "s", {}), ("Mul", "c s", "y", {})], W, {}, ["Conv"]),
    "hardswish-of-another-shift": ([CONV, ("Add", "c half", "s", {}), RELU6, ("Mul", "c g", "m", {}), ("Div", "m six", "y", {})], W | NUMBERS, {}, ["Conv"]),
    "hardswish-read-within": ([CONV, *SPELLED["hardswish-torch"][:3], ("Add", "m g", "y", {})], W | NUMBERS, {}, ["Conv"]),
    "hardswish-read-by-nobody": ([CONV, *SPELLED["hardswish-torch"][:2], ("Neg", "g", "n", {}), *SPELLED["hardswish-torch"][2:]], W | NUMBERS, {}, ["Conv"]),
    "hardswish-of-another-value": ([CONV, ("Relu", "c", "r", {}), ("Add", "r three", "s", {}), RELU6, ("Mul", "r g", "m", {}), ("Div", "m six", "y", {})], W | NUMBERS, {}, ["Conv", "Relu"]),
    "sigmoid-of-another-slope": ([CONV, ("Mul", "c half", "s", {}), ("Sigmoid", "s", "g", {}), ("Mul", "c g", "y", {})], W | NUMBERS, {}, ["Conv"]),
    "max-of-tensors": ([CONV, ("Max", "c r", "y", {})], W, {"r": normal(2, 4, 9, 8)}, ["Conv"]),
    "min-of-channels": ([CONV, ("Min", "c k", "y", {})], W | {"k": normal(4, 1, 1)}, {}, ["Conv"]),
    "min-of-more-axes": ([CONV, ("Min", "c k", "y", {})], W | {"k": f([[[[[0.5]]]]])}, {}, ["Conv"]),
    "max-of-nothing": ([CONV, ("Max", "c nan", "y", {})], W | {"nan": f(np.nan)}, {}, ["Conv"]),
    "rounded": ([CONV, ("Relu", "c", "r", {}), ("Add", "r k", "a", {}), ("Sub", "a k", "y", {})], W | {"k": f(2**23)}, {}, ["Conv", "Relu"]),
    "quick-gelu-default": ([CONV, ("QuickGelu", "c", "y", {})], W, {}, ["Conv"]),
    "elu": ([CONV, ("Elu", "c", "y", {})], W, {}, ["Conv"]),
    "softplus": ([CONV, ("Softplus", "c", "y", {})], W, {}, ["Conv"]),
    "gelu-of-another-root": ([CONV, *[("Div", "c six", "d", {}), *SPELLED["gelu-torch"][1:]]], W | NUMBERS, {}, ["Conv"]),
    "fast-gelu-of-a-bias": ([CONV, ("FastGelu", "c k", "y", {})], W | {"k": normal(8)}, {}, ["Conv"]),
    "norm-of-inputs": ([CONV, ("BatchNormalization", "c scale shift mean v", "y", {})], W | NORM, {"v": NORM["var"]}, ["Conv"]),
    "mul-of-columns": ([CONV, ("Mul", "c m", "y", {})], W | {"m": normal(8)}, {}, ["Conv"]),
    "mul-to-more-channels": ([("Conv", "x w1", "c", {}), ("Mul", "c m", "y", {})], {"w1": normal(1, 6, 3, 3), "m": normal(1, 5, 1, 1)}, {}, ["Conv"]),
    "mul-by-input": ([CONV, ("Mul", "c m", "y", {})], W, {"m": normal(4, 1, 1)}, ["Conv"]),
    "pad-of-ones": ([("Pad", "x pads one", "p", {}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "one": f(1)}, {}, ["Conv"]),
    "pad-reflect": ([("Pad", "x pads", "p", {"mode": "reflect"}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, {}, ["Conv"]),
    "pad-batch": ([("Pad", "x pads", "p", {}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([1, 0, 1, 1, 0, 0, 1, 1])}, {}, ["Conv"]),
    "pad-crop": ([("Pad", "x pads", "p", {}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([0, 0, -1, 1, 0, 0, 1, 1])}, {}, ["Conv"]),
    "pad-same": ([("Pad", "x pads", "p", {}), ("Conv", "p w b", "y", {"auto_pad": "SAME_UPPER", "strides": [2, 2]})], W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, {}, ["Conv"]),
    "pad-of-axes-of-channels": ([("Pad", "x pads  axes", "p", {}), ("Conv", "p w1 b", "y", {})], W | {"w1": normal(4, 8, 3, 3), "pads": np.array([1, 1, 1, 1]), "axes": np.array([2, -3])}, {}, ["Conv"]),
    "pad-of-axes-by-input": ([("Pad", "x pads  axes", "p", {}), ("Conv", "p w b", "y", {})], W | {"pads": np.array([1, 1, 1, 1])}, {"axes": np.array([2, 3])}, ["Conv"]),
    "pad-of-ones-by-attribute": ([("Pad", "x", "p", {"pads": [0, 0, 1, 2, 0, 0, 0, 3], "value": 1.0}), ("Conv", "p w b", "y", {})], W, {}, ["Conv"]),
    "norm-of-opset-8": ([CONV, ("BatchNormalization", "c scale shift mean var", "y", {})], W | NORM, {}, ["Conv"]),
    "swish-of-another-slope": ([CONV, ("Swish", "c", "y", {"alpha": 1.5})], W, {}, ["Conv"]),
    "pad-transposed": ([("Pad", "x pads", "p", {}), ("ConvTranspose", "p wt", "y", {})], {"wt": normal(6, 4, 2, 2), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, {}, ["ConvTranspose"]),
}


@pytest.mark.parametrize("name", APART)
def test_nodes_stay_apart(name):
    nodes, constants, inputs, alone = APART[name]
    made, feeds = model(nodes, constants, inputs, OPSETS.get(name, 22), outputs=("y", "c") if name == "output" else ("y",))
    result = run(made, feeds, level=NONE)
    assert result.layers == [alone]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


# What the log says of each of them, and how many lines there are; nothing of what no layer could take.
ELSEWHERE, NO_SUCH = "what it reads is read elsewhere, too, or leaves the graph", "no layer has such an activation"
REASONS = {
    "two-readers": ("Relu", NO_SUCH, 2),
    "output": ("Relu", ELSEWHERE),
    "add-broadcast": ("Add", "r is not constant; it adds a tensor of float [1, 4, 1, 1] to one of float [2, 4, 9, 8]"),
    "add-larger": ("Add", "it adds a tensor of float [3, 1, 4, 7, 6] to one of float [2, 4, 7, 6]"),
    "sum-of-three": ("Sum", "it does not add two tensors"),
    "sum-of-itself": ("Add", NO_SUCH),
    "clip-by-input": ("Clip", "lo is not one constant number"),
    "prelu-of-channels": ("PRelu", "slope is not one constant number"),
    "hardsigmoid-default-mul": ("Mul", NO_SUCH, 2),
    "hardswish-of-another-shift": ("Mul", NO_SUCH, 2),
    "hardswish-read-within": ("Mul", NO_SUCH, 2),
    "hardswish-read-by-nobody": ("Mul", ELSEWHERE, 2),
    "hardswish-of-another-value": None,
    "sigmoid-of-another-slope": ("Mul", NO_SUCH, 2),
    "max-of-tensors": ("Max", "r is not one constant number"),
    "min-of-channels": ("Min", "k is not one constant number"),
    "min-of-more-axes": ("Min", "k is not one constant number"),
    "max-of-nothing": ("Max", "nan is not one constant number"),
    "rounded": None,
    "quick-gelu-default": ("com.microsoft.QuickGelu", NO_SUCH),
    "elu": ("Elu", NO_SUCH),
    "softplus": ("Softplus", NO_SUCH),
    "gelu-of-another-root": ("Mul", NO_SUCH, 2),
    "fast-gelu-of-a-bias": ("com.microsoft.FastGelu", "k is not one constant number"),
    "norm-of-inputs": ("BatchNormalization", "v is not constant"),
    "mul-of-columns": ("Mul", "m of shape [8] has not one number for each channel"),
    "mul-to-more-channels": ("Mul", "W cannot take its numbers: there are others than one for each channel"),
    "mul-by-input": ("Mul", "m is not constant"),
    "pad-of-ones": ("Pad", "something else than zeros"),
    "pad-reflect": ("Pad", "something else than zeros"),
    "pad-batch": ("Pad", "it pads batch or channels"),
    "pad-crop": ("Pad", "or cuts off"),
    "pad-same": ("Pad", "auto_pad"),
    "pad-of-axes-of-channels": ("Pad", "it pads batch or channels"),
    "pad-of-axes-by-input": ("Pad", "axes that are not"),
    "pad-of-ones-by-attribute": ("Pad", "something else than zeros"),
    "norm-of-opset-8": ("BatchNormalization", "it is of an opset before 9"),
    "swish-of-another-slope": ("Swish", NO_SUCH),
    "pad-transposed": ("Pad", "the pads of a ConvTranspose cut off"),
}


def test_the_log_says_why_nodes_stay_apart():
    code = """
from test_fusion import *
onnxruntime.set_default_logger_severity(2)
def log(name, made, feeds):
    print("model", name, flush=True)
    onnxruntime.InferenceSession(made.SerializeToString(), convoke_onnxruntime.add_to(options(NONE), threads=1, layout="first", log_level="verbose"))
for name, (nodes, constants, inputs, _) in APART.items():
    log(name, *model(nodes, constants, inputs, OPSETS.get(name, 22), outputs=("y", "c") if name == "output" else ("y",)))
for name in ("constant", "rows", "read-elsewhere"):
    log(name, *joined_model(name, 1))
log("taken", *model(*FUSED["norm-add-relu"]))
nodes, constants, inputs = FUSED["add"]
log("behind", *model([*nodes[:-1], ("Add", "c r", "a", {}), ("Mul", "a m", "y", {})], constants | {"m": normal(4, 1, 1)}, inputs))
"""
    texts = dict(text.split("\n", 1) for text in output_of(code).split("model ")[1:])
    assert REASONS.keys() == APART.keys()
    for name, reason in REASONS.items():
        lines = [line for line in texts[name].splitlines() if "is not part of node" in line]
        assert len(lines) == (0 if reason is None else (*reason, 1)[2]), texts[name]
        assert reason is None or any(f"({reason[0]}) is not part of" in line and reason[1] in line for line in lines), lines
    assert texts["norm-of-inputs"].count("v is not constant") == 1, "once is enough"
    assert "(Concat) is left to onnxruntime: an input is constant" in texts["constant"]
    assert "(Concat) is left to onnxruntime: its axis is not that of channels" in texts["rows"]
    assert texts["read-elsewhere"].count("(Concat) is left to onnxruntime: no input is a convolution") == 2
    assert "is not part of" not in texts["taken"]
    assert "(Mul) is not part of" in texts["behind"] and ": it stands behind an Add of a tensor" in texts["behind"]


@pytest.mark.parametrize("name", SPELLED)
def test_what_is_not_a_number_stays_so_in_spelled_activations(name):
    made, feeds = model([CONV, *SPELLED[name]], W | NUMBERS)
    feeds["x"][0, 0, 4, 4] = np.nan
    result = run(made, feeds, level=NONE)
    assert len(result.layers[0]) == 1 + len(SPELLED[name])
    (wanted,) = run_plain(made, feeds, NONE)
    assert np.isnan(wanted).any()
    np.testing.assert_array_equal(np.isnan(result.outputs[0]), np.isnan(wanted))


@pytest.mark.parametrize("alpha, taken", [(0.1666667, True), (0.16667, False)])
def test_a_sixth_of_seven_digits_is_one(alpha, taken):
    made, feeds = model([CONV, ("HardSigmoid", "c", "s", {"alpha": alpha, "beta": 0.5}), ("Mul", "s c", "y", {})], W)
    result = run(made, feeds, level=NONE)
    assert result.layers == [["Conv", "HardSigmoid", "Mul"] if taken else ["Conv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-6)


def test_a_spelled_hardswish_of_float16_is_as_near_to_that_of_float_as_onnxruntime():
    made, feeds = model([CONV, *SPELLED["hardswish-torch"]], W | NUMBERS)
    floats = [tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    short = {tensor.name: numpy_helper.to_array(tensor).astype(np.float16) for tensor in floats}
    feeds = {"x": feeds["x"].astype(np.float16)}
    for tensor in floats:
        tensor.CopyFrom(numpy_helper.from_array(short[tensor.name].astype(np.float32), tensor.name))
    (wanted,) = run_plain(made, {"x": feeds["x"].astype(np.float32)}, NONE)
    for tensor in floats:
        tensor.CopyFrom(numpy_helper.from_array(short[tensor.name], tensor.name))
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    result = run(made, feeds, level=NONE)
    assert len(result.layers[0]) == 5
    error = lambda outputs: np.abs(outputs[0].astype(np.float32) - wanted).max()
    assert error(result.outputs) <= error(run_plain(made, feeds, NONE))


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Tanh", "Sigmoid"])
def test_a_model_that_onnxruntime_has_optimised(activation, tmp_path):
    """It makes a FusedConv of such nodes."""
    made, feeds = model([CONV, (activation, "c", "y", {})], W, opset=17)
    path, saving = str(tmp_path / "optimised.onnx"), options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    saving.optimized_model_filepath = path
    onnxruntime.InferenceSession(made.SerializeToString(), saving, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(path).graph.node] == ["FusedConv"]
    result = run(path, feeds, level=NONE)
    assert result.layers == [["FusedConv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


LEFT = {
    "hardsigmoid": (fused_conv("x w b", "HardSigmoid", [0.2, 0.5]), {}, "its activation is HardSigmoid: no layer has such an activation"),
    "shape": (fused_conv("x w b z", "Relu", []), {"z": normal(2, 4, 1, 1)}, "it adds a tensor of float [2, 4, 1, 1] to one of float [2, 4, 9, 8]"),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_log_says_why_a_fused_convolution_is_left(name):
    code = """
import sys
from test_fusion import *
onnxruntime.set_default_logger_severity(2)
node, inputs, _ = LEFT[sys.argv[1]]
made, feeds = model([node], W, inputs)
loaded = onnxruntime.InferenceSession(made.SerializeToString(), convoke_onnxruntime.add_to(options(NONE), threads=1, log_level="warning"))
assert layers(loaded) == []
"""
    assert "(com.microsoft.FusedConv) is left to onnxruntime: " + LEFT[name][2] in output_of(code, name)


@pytest.mark.parametrize("bounds, opset", [("c lo", 22), ("c  hi", 22), ("c", 22), ("c", 10)])
def test_a_clip_without_a_bound_makes_infinity_the_largest_number(bounds, opset):
    constants = {name: f(value) for name, value in (("lo", -0.5), ("hi", 0.75)) if name in bounds}
    made, feeds = model([CONV, ("Clip", bounds, "y", {})], W | constants, opset=opset)
    feeds["x"][0, 0, 4, 4] = np.inf
    result = run(made, feeds, level=NONE)
    assert result.layers == [["Conv", "Clip"]]
    (wanted,) = run_plain(made, feeds, NONE)
    largest = np.abs(wanted) == np.finfo(np.float32).max
    assert largest.any()
    np.testing.assert_array_equal(result.outputs[0][largest], wanted[largest])
    assert_close([result.outputs[0][~largest]], [wanted[~largest]], 1e-5)


def test_a_pad_does_not_hide_a_mistake():
    """VALID beside pads is refused as it is without the Pad in front."""
    conv = {"auto_pad": "VALID", "pads": [1, 1, 1, 1]}
    made, feeds = model([("Pad", "x pads", "p", {}), ("Conv", "p w b", "y", conv)], W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    for runs in (run_plain, run):
        with pytest.raises(Exception, match="pads"):
            runs(made, feeds, level=NONE)


def test_a_normalisation_behind_weights_that_are_inputs_is_a_layer_of_its_own():
    nodes = [("Conv", "x wi", "c", {}), ("BatchNormalization", "c scale shift mean var", "y", {})]
    made, feeds = model(nodes, NORM, {"wi": normal(4, 6, 3, 3)})
    result = run(made, feeds, level=NONE)
    assert sorted(result.layers) == [["BatchNormalization"], ["Conv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


SECOND = ("Conv", "x w2", "d", {"pads": [0, 0, 0, 0]})
W2 = {"w2": normal(5, 6, 1, 1)}
JOINED = {
    "two": ([CONV, SECOND, ("Concat", "c d", "y", {"axis": 1})], [["Concat", "Conv", "Conv"]]),
    "negative-axis": ([CONV, SECOND, ("Concat", "d c", "y", {"axis": -3})], [["Concat", "Conv", "Conv"]]),
    "relu-and-tensors": (
        [CONV, ("Relu", "c", "r", {}), SECOND, ("Concat", "x r x d", "y", {"axis": 1})],
        [["Concat", "Conv", "Conv", "Relu"]],
    ),
    "residual-of-the-other": (
        [CONV, ("Conv", "x w3", "e", {}), ("Add", "c e", "a", {}), SECOND, ("Concat", "a d", "y", {"axis": 1})],
        [["Add", "Concat", "Conv", "Conv"], ["Conv"]],
    ),
    "residual": (
        [("Conv", "x w6", "e", {}), ("Add", "x e", "a", {}), ("Relu", "a", "r", {}), SECOND, ("Concat", "d r", "y", {"axis": 1})],
        [["Add", "Concat", "Conv", "Conv", "Relu"]],
    ),
    "constant": ([CONV, ("Concat", "c k", "y", {"axis": 1})], [["Conv"]]),
    "weights-as-inputs": ([CONV, ("Conv", "x wi", "e", {}), ("Concat", "c e", "y", {"axis": 1})], [["Concat", "Conv"], ["Conv"]]),
    "norm": (
        [("BatchNormalization", "x scale6 shift6 mean6 var6", "n", {}), ("Relu", "n", "m", {}), SECOND, ("Concat", "m d", "y", {"axis": 1})],
        [["BatchNormalization", "Relu"], ["Concat", "Conv"]],
    ),
    "read-twice": ([CONV, ("Concat", "c c", "y", {"axis": 1})], [["Conv"]]),
    "read-elsewhere": ([CONV, ("Concat", "c x", "j", {"axis": 1}), ("Relu", "c", "r", {}), ("Concat", "j r", "y", {"axis": 1})], [["Conv"]]),
    "rows": ([CONV, ("Conv", "x w3", "e", {}), ("Concat", "c e", "y", {"axis": 2})], [["Conv"], ["Conv"]]),
}


def joined_model(name, batch, size=(9, 8)):
    constants = W | W2 | NORM6 | {"w3": normal(4, 6, 1, 1), "w6": normal(6, 6, 1, 1), "k": normal(batch, 2, *size)}
    inputs = {"wi": normal(3, 6, 1, 1)} if name == "weights-as-inputs" else {}
    return model(JOINED[name][0], constants, inputs, x_shape=(batch, 6, *size))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", JOINED)
def test_layers_write_into_the_tensor_that_joins_them(name, batch):
    made, feeds = joined_model(name, batch)
    wanted = run_plain(made, feeds, NONE)
    for threads in (1, 2):
        result = run(made, feeds, level=NONE, threads=threads, pool=threads)
        assert sorted(sorted(layer) for layer in result.layers) == JOINED[name][1]
        assert_close(result.outputs, wanted, 1e-5)
    assert_close(run(made, feeds).outputs, wanted, 1e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("code, kind, tolerance", [(TensorProto.DOUBLE, np.float64, 1e-5), (TensorProto.FLOAT16, np.float16, 2e-3)], ids=["double", "float16"])
def test_layers_of_other_types_are_joined(code, kind, tolerance, batch):
    made, feeds = joined_model("relu-and-tensors", batch)
    wanted = run_plain(made, feeds, NONE)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = code
    result = run(made, {"x": feeds["x"].astype(kind)}, level=NONE)
    assert [sorted(layer) for layer in result.layers] == JOINED["relu-and-tensors"][1]
    assert result.outputs[0].dtype == kind
    assert_close([result.outputs[0].astype(np.float32)], wanted, tolerance)


def test_large_tensors_are_copied_by_threads():
    made, feeds = joined_model("relu-and-tensors", 1, (150, 149))
    for threads in (1, 2, 3):
        result = run(made, feeds, level=NONE, threads=threads, pool=threads)
        assert len(result.layers) == 1
        assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


def of_any_size(made):
    for axis in (0, 2, 3):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    return made


@pytest.mark.parametrize("first", [0, 1, 2])
def test_joined_layers_of_any_size(first):
    made = of_any_size(joined_model("relu-and-tensors", 1)[0])
    inference = session(made, level=NONE)
    assert len(layers(inference)) == 1
    for shape in [(first, 6, 4, 4), (1, 6, 9, 8), (2, 6, 5, 7), (0, 6, 4, 4), (1, 6, 30, 40)]:
        x = normal(*shape)
        assert_close(inference.run(None, {"x": x}), run_plain(made, {"x": x}, NONE), 1e-5)


def test_joined_layers_in_memory_of_their_input():
    made, feeds = joined_model("negative-axis", 1)
    inference = session(made, level=NONE)
    assert len(layers(inference)) == 1
    # Where x lies, the first layer writes before the second one has read x.
    memory = np.zeros(9 * 72, np.float32)
    memory[: 6 * 72] = feeds["x"].ravel()
    bound = inference.io_binding()
    bound.bind_input("x", "cpu", 0, np.float32, (1, 6, 9, 8), memory.ctypes.data)
    bound.bind_output("y", "cpu", 0, np.float32, (1, 9, 9, 8), memory.ctypes.data)
    inference.run_with_iobinding(bound)
    assert_close([memory.reshape(1, 9, 9, 8)], run_plain(made, feeds, NONE), 1e-5)


def test_an_output_of_the_graph_is_not_joined():
    made, feeds = model([CONV, SECOND, ("Concat", "c d", "y", {})], W | W2, outputs=("y", "c"))
    made.graph.node[2].attribute.append(helper.make_attribute("axis", 1))
    result = run(made, feeds, level=NONE)
    assert sorted(sorted(layer) for layer in result.layers) == [["Concat", "Conv"], ["Conv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


def test_a_joined_tensor_without_elements_may_have_any_shape():
    """onnxruntime's Concat leaves such a tensor out."""
    made, feeds = model([CONV, ("Concat", "c e", "y", {"axis": 1})], W, {"e": normal(0, 0, 0, 0)}, x_shape=(1, 6, 9, 8))
    for axis in range(4):
        made.graph.input[1].type.tensor_type.shape.dim[axis].dim_param = f"e{axis}"
    result = run(made, feeds, level=NONE)
    assert [sorted(layer) for layer in result.layers] == [["Concat", "Conv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


@pytest.mark.parametrize("shape", [(2, 6, 5), (1, 6, 3, 4, 5), (0, 6, 9, 8), (2, 6, 0)])
def test_a_lone_normalisation_of_any_rank_and_without_elements(shape):
    nodes = [("BatchNormalization", "x scale6 shift6 mean6 var6", "n", {}), ("Relu", "n", "y", {})]
    made, feeds = model(nodes, NORM6, x_shape=shape)
    free, _ = model(nodes, NORM6, x_shape=shape)
    for axis in (0, *range(2, len(shape))):
        free.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    # What is empty for certain is onnxruntime's.
    for one, is_taken in ((made, 0 not in shape[1:]), (free, True)):
        result = run(one, feeds, level=NONE)
        assert [sorted(layer) for layer in result.layers] == [["BatchNormalization", "Relu"]][:is_taken]
        assert_close(result.outputs, run_plain(one, feeds, NONE), 1e-5)


def test_a_normalisation_of_two_axes_is_left_alone():
    made, feeds = model([("BatchNormalization", "x scale6 shift6 mean6 var6", "y", {})], NORM6, x_shape=(3, 6))
    assert run(made, feeds, level=NONE).layers == []


@pytest.mark.parametrize("shape", [(2, 6, 9, 8), (1, 3, 180, 140), (3, 40, 1000), (1, 6, 3, 4, 5), (0, 6, 9, 8), (2, 6, 0)])
@pytest.mark.parametrize("attributes", [{"size": 5}, {"size": 1, "alpha": 0.5}, {"size": 31, "alpha": 0.3, "beta": 0.75, "bias": 2.0}])
def test_a_local_response_normalisation_of_any_size_and_rank(shape, attributes):
    """onnxruntime itself has it for two spatial axes alone."""
    made, feeds = model([("LRN", "x", "y", attributes)], {}, x_shape=shape)
    for axis in (0, *range(2, len(shape))):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    x, half = feeds["x"].astype(np.float64), attributes["size"] // 2
    squares = [np.square(x[:, max(c - half, 0) : c + half + 1]).sum(1) for c in range(shape[1])]
    scale = attributes.get("bias", 1) + attributes.get("alpha", 1e-4) / attributes["size"] * np.stack(squares, 1)
    wanted = [(x / scale**0.75).astype(np.float32)]
    for threads in (1, 2):
        result = run(made, feeds, level=NONE, threads=threads, pool=threads)
        assert result.layers == [["LRN"]]
        assert_close(result.outputs, wanted, 1e-5)
    if len(shape) == 4:
        assert_close(run_plain(made, feeds, NONE), wanted, 1e-5)


@pytest.mark.parametrize("attributes", [{"size": 5, "beta": 0.5}, {"size": 33}])
def test_a_local_response_normalisation_by_another_power_or_of_many_channels_is_left_alone(attributes):
    made, feeds = model([("LRN", "x", "y", attributes)], {})
    assert run(made, feeds, level=NONE).layers == []


@pytest.mark.parametrize("attributes", [{"size": 4}, {"size": 5, "alpha": 0.0}, {"size": 5, "alpha": -1.0}])
def test_a_local_response_normalisation_that_onnxruntime_refuses_is_refused(attributes):
    made, _ = model([("LRN", "x", "y", attributes)], {})
    for provided in (onnxruntime.InferenceSession, session):
        with pytest.raises(Exception, match="LRN|lrn"):
            provided(made.SerializeToString())


def test_a_local_response_normalisation_in_memory_of_its_input_and_of_a_constant():
    made, feeds = model([("LRN", "x", "y", {"size": 5, "alpha": 0.5})], {}, x_shape=(1, 6, 9, 8))
    wanted = run_plain(made, feeds, NONE)
    inference, memory = session(made, level=NONE), feeds["x"].copy()
    assert layers(inference) == [["LRN"]]
    bound = inference.io_binding()
    bound.bind_input("x", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
    bound.bind_output("y", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
    inference.run_with_iobinding(bound)
    assert_close([memory], wanted, 1e-5)
    made, _ = model([("LRN", "k", "l", {"size": 5, "alpha": 0.5}), ("Add", "x", "y", {})], {"k": feeds["x"]}, x_shape=(1, 6, 9, 8))
    made.graph.node[1].input.append("l")
    result = run(made, feeds, level=NONE)
    assert result.layers == [["LRN"]]
    assert_close(result.outputs, [feeds["x"] + wanted[0]], 1e-5)


def test_a_local_response_normalisation_between_a_layer_and_a_concat():
    nodes = [CONV, ("LRN", "c", "l", {"size": 3, "alpha": 0.5}), SECOND, ("Concat", "l d", "y", {"axis": 1})]
    made, feeds = model(nodes, W | W2)
    result = run(made, feeds, level=NONE)
    assert sorted(sorted(layer) for layer in result.layers) == [["Concat", "Conv"], ["Conv"], ["LRN"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


def test_one_sum_of_two_layers_is_taken_by_one_of_them():
    second = ("Conv", "x w2", "d", {"pads": [1, 1, 1, 1]})
    made, feeds = model([CONV, second, ("Add", "c d", "a", {}), ("Relu", "a", "y", {})], W | {"w2": normal(4, 6, 3, 3)})
    result = run(made, feeds, level=NONE)
    assert sorted(map(len, result.layers)) == [1, 3]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


def test_nodes_of_a_provider_in_front_are_left_to_it():
    """onnxruntime drops all claims if one of them is of such nodes only."""
    nodes = [CONV, ("Relu", "c", "y", {}), ("Cast", "x", "xd", {"to": TensorProto.DOUBLE}), ("Conv", "xd wd", "d", {}), ("Relu", "d", "e", {})]
    made, feeds = model([*nodes, ("Cast", "e", "z", {"to": TensorProto.FLOAT})], W | {"wd": normal(4, 6, 3, 3).astype(np.float64)}, outputs=("y", "z"))
    wanted = run(made, feeds, level=NONE)
    assert wanted.layers == [["Conv", "Relu"]] * 2
    settings = options(NONE)
    settings.add_provider("CPUExecutionProvider", {})
    behind = onnxruntime.InferenceSession(made.SerializeToString(), convoke_onnxruntime.add_to(settings))
    # onnxruntime has no Conv of double itself. The Relu behind it is onnxruntime's.
    assert layers(behind) == [["Conv"]]
    assert_close(behind.run(None, feeds), wanted.outputs, 1e-5)


# Sizes of X and of the residual: the same sum, either side broadcast, both, and without elements.
SUMS = [((2, 9, 8), (2, 9, 8)), ((2, 9, 8), (1, 1, 1)), ((1, 1, 1), (3, 5, 7)), ((2, 1, 8), (1, 9, 8)), ((0, 9, 8), (1, 9, 8)), ((1, 9, 8), (0, 1, 8))]


@pytest.mark.parametrize("names", ["same", "others", "none"])
@pytest.mark.parametrize("weights", ["w", "wi"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_residual_of_unknown_sizes_is_added_by_the_layer(names, weights, joined):
    """Whether it has Y's shape is seen in a run. If not, both are broadcast."""
    nodes = [("Conv", f"x {weights} b", "c", {"pads": [1, 1, 1, 1]}), ("Add", "r c", "a", {}), ("LeakyRelu", "a", "l" if joined else "y", {"alpha": 0.3})]
    if joined:
        nodes.append(("Concat", "l l2", "y", {"axis": 1}))
    inputs = {"r": normal(2, 4, 9, 8), "l2": normal(2, 3, 9, 8)} | ({"wi": W["w"]} if weights == "wi" else {})
    made, feeds = model(nodes, W, inputs)
    for value in made.graph.input[:3]:
        for axis in (0, 2, 3):
            dim = value.type.tensor_type.shape.dim[axis]
            dim.Clear() if names == "none" else setattr(dim, "dim_param", f"{'d' if names == 'same' else value.name}{axis}")
    loaded = session(made, level=NONE)
    assert max(layers(loaded)) == ["Conv", "Add", "LeakyRelu"] + ["Concat"] * (joined and weights == "w")
    for x, r in SUMS:
        y = np.broadcast_shapes(x, r)
        for feed, channels, (batch, *image) in (("x", 6, x), ("r", 4, r), ("l2", 3, y)):
            feeds[feed] = normal(batch, channels, *image)
        assert_close(loaded.run(None, feeds), run_plain(made, feeds, NONE), 1e-5)
    with pytest.raises(Exception, match=r"convoke: Add: tensors of shapes \[2, 4, 9, 8\] and \[3, 4, 9, 8\] cannot be broadcast"):
        loaded.run(None, feeds | {"x": normal(2, 6, 9, 8), "r": normal(3, 4, 9, 8)})


@pytest.mark.parametrize("of_x, of_r, taken", [((2, "h", 8), (2, 9, "h"), True), ((2, 9, "w"), (2, 1, "w"), False), ((2, "h", 8), (2, 1, 8), False), (("n", 9, 8), (1, 9, 8), False)])
def test_a_residual_that_differs_for_certain_or_has_a_size_of_1_stays_apart(of_x, of_r, taken):
    made, feeds = model([CONV, ("Add", "c r", "y", {})], W, {"r": normal(2, 4, 9, 8)})
    for value, sizes in zip(made.graph.input, (of_x, of_r)):
        for axis, size in zip((0, 2, 3), sizes):
            setattr(value.type.tensor_type.shape.dim[axis], "dim_param" if isinstance(size, str) else "dim_value", size)
    feeds["r"] = normal(*(size if isinstance(size, int) else known for size, known in zip((of_r[0], 4, *of_r[1:]), (2, 4, 9, 8))))
    result = run(made, feeds, level=NONE)
    assert result.layers == [["Conv", "Add"] if taken else ["Conv"]]
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


def branches(nodes):
    """A model of an If, whose branches `t` and `e` have the nodes that a function gives for their names, and outputs of these names."""
    outputs = lambda name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    then, otherwise = (helper.make_graph(nodes(name), name, [], outputs(name)) for name in "te")
    graph = helper.make_graph(
        [helper.make_node("If", ["choose"], ["y"], then_branch=then, else_branch=otherwise)],
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 6, 9, 8)), helper.make_tensor_value_info("choose", TensorProto.BOOL, [])],
        outputs("y"),
        [numpy_helper.from_array(value, name) for name, value in W.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def test_a_layer_in_a_branch():
    """Graphs in an If are claimed, too."""
    made = branches(lambda name: [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Relu" if name == "t" else "Neg", ["c"], [name])])
    for choose in (True, False):
        feeds = {"x": normal(1, 6, 9, 8), "choose": np.array(choose)}
        result = run(made, feeds, level=NONE)
        # Older releases refuse a model with layers in two branches, so they get none there.
        first = tuple(map(int, onnxruntime.__version__.split("."))) >= (1, 24, 4)
        assert sorted(result.layers) == ([["Conv"], ["Conv", "Relu"]] if first else [])
        assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("what", ["norm", "norm-alone"])
def test_a_normalisation_in_a_branch_by_constants_of_an_outer_graph(what, depth):
    def branches(name, depth):
        """Nodes, the last one of which computes a value of this name."""
        if depth == 0:
            return [helper.make_node(op, ins.split(" "), [name if out == "y" else out], **attributes) for op, ins, out, attributes in FUSED[what][0]]
        made = [helper.make_graph(branches(name + end, depth - 1), name + end, [], [helper.make_tensor_value_info(name + end, TensorProto.FLOAT, None)]) for end in "te"]
        return [helper.make_node("If", ["choose"], [name], then_branch=made[0], else_branch=made[1])]

    made, feeds = model([], FUSED[what][1], {"choose": np.array(True)})
    made.graph.node.extend(branches("y", depth))
    result = run(made, feeds, level=NONE)
    first = tuple(map(int, onnxruntime.__version__.split("."))) >= (1, 24, 4)
    assert result.layers == ([[node[0] for node in FUSED[what][0]]] * 2**depth if first else [])
    assert_close(result.outputs, run_plain(made, feeds, NONE), 1e-5)
