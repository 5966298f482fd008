"""Graphs of operators that read and compute bytes: QLinearConv, QLinearAdd and others, as quantisers write them in the format
QOperator.

Each node is compared with onnxruntime alone, without optimisations. Sums and what is looked up are the same bytes. Sums and
products of two images may differ by one step in a few elements, where two bytes are about as near to the number.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import layers, options, output_of, run_plain, session
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
DOMAIN = "com.microsoft"


class Graph:
    """A graph whose values are bytes of a kind. Each of them has a scale and a zero point."""

    def __init__(self, kind=np.uint8, shape=(2, 6, 13, 17), seed=0, opset=13):
        self.kind, self.shape, self.opset, self.rng = kind, shape, opset, np.random.default_rng(seed)
        self.nodes, self.constants, self.scales = [], {}, {}
        self.scale("x", 0.05, 117)

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def scale(self, name, scale, zero):
        self.scales[name] = [self.constant(np.float32(scale)), self.constant(self.kind(zero if self.kind is np.uint8 else zero - 128))]

    def operand(self, name):
        return [name, *self.scales[name]]

    def node(self, op, inputs, scale=None, outputs=1, **attributes):
        """Its output is of floats, or has a scale and a zero point: its own, or those of its first input."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        if scale:
            self.scale(names[0], *scale)
            own = self.scales[names[0]]
            inputs = own + inputs if op == "QLinearConcat" else inputs + own
        elif inputs[0] in self.scales and op != "DequantizeLinear":
            self.scales.update({name: self.scales[inputs[0]] for name in names})
        domain = DOMAIN if op.startswith("QLinear") and op != "QLinearConv" else ""
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def conv(self, x, shape, scale=(0.08, 131), w=np.int8, each=True, bias=True, zero=0, **attributes):
        least = np.iinfo(w).min
        weights = self.constant(self.rng.integers(least + 60, least + 196, shape).astype(w))
        w_scale = self.rng.uniform(0.002, 0.004, shape[0] if each else ()).astype(np.float32)
        w_zero = np.full(np.shape(w_scale), least + 128 + zero, w)
        y = self.node("QLinearConv", [*self.operand(x), weights, self.constant(w_scale), self.constant(w_zero)], scale, **attributes)
        if bias:
            self.nodes[-1].input.append(self.constant(self.rng.integers(-3000, 3000, shape[0]).astype(np.int32)))
        return y

    def model(self, *outputs):
        value = lambda name, dims: helper.make_tensor_value_info(name, KINDS[self.kind], dims)
        tensors = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "graph", [value("x", self.shape)], [value(name, None) for name in outputs], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)], ir_version=10)

    def feeds(self):
        return {"x": np.random.default_rng(7).integers(0, 256, self.shape).astype(np.uint8).view(self.kind)}


def check(graph, *outputs, differing=0.0, left=()):
    """Compares with onnxruntime alone, and asserts that all nodes but those that are left are in one region. So many elements may
    differ by a step."""
    model, feeds = graph.model(*outputs), graph.feeds()
    made = session(model, level=NONE, layout="last")
    assert list(map(sorted, layers(made))) == [sorted(node.op_type for node in model.graph.node if node.op_type not in left)]
    for one, other in zip(made.run(None, feeds), run_plain(model, feeds, level=NONE), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        difference = np.abs(one.astype(np.int32) - other.astype(np.int32))
        assert difference.max() <= (differing > 0) and (difference > 0).mean() <= differing
        assert np.unique(other).size > 8, "the test tells elements from each other"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("zero", [0, -9])
@pytest.mark.parametrize(("x", "w"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_a_convolution(x, w, zero, each, bias):
    graph = Graph(x)
    check(graph, graph.conv("x", [9, 6, 3, 3], w=w, each=each, bias=bias, zero=zero, pads=[1, 1, 1, 1]))


LAYERS = {
    "strided": dict(shape=[10, 6, 3, 3], strides=[2, 2], pads=[1, 0, 1, 0]),
    "dilated": dict(shape=[10, 6, 3, 3], dilations=[2, 1]),
    "grouped": dict(shape=[12, 3, 3, 3], group=2, pads=[1, 1, 1, 1]),
    "depthwise": dict(shape=[6, 1, 3, 3], group=6, pads=[1, 1, 1, 1]),
    "pointwise": dict(shape=[16, 6, 1, 1], kernel_shape=[1, 1]),
    "same": dict(shape=[8, 6, 3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer, kind):
    graph = Graph(kind, opset=10)
    check(graph, graph.conv("x", **LAYERS[layer]))


@pytest.mark.parametrize(("shape", "weights"), [([3, 4, 31], [7, 4, 3]), ([2, 3, 4, 5, 6], [5, 3, 2, 2, 2])])
def test_other_numbers_of_axes(shape, weights):
    graph = Graph(shape=shape)
    check(graph, graph.conv("x", weights))


def test_random_layers():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        axes, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
        of_group, filters = int(rng.integers(1, 5)), int(rng.integers(1, 5)) * group
        kernel, dilations, strides = (rng.integers(1, 4, axes), rng.integers(1, 3, axes), rng.integers(1, 3, axes))
        sizes = (kernel - 1) * dilations + rng.integers(1, 9, axes)
        x, w = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)][int(rng.integers(3))]
        graph = Graph(x, [int(rng.integers(1, 3)), of_group * group, *map(int, sizes)], seed)
        attributes = dict(group=group, strides=strides.tolist(), dilations=dilations.tolist(), pads=rng.integers(0, 2, 2 * axes).tolist())
        kinds = dict(w=w, each=bool(rng.integers(2)), bias=bool(rng.integers(2)), zero=int(rng.integers(-20, 20)))
        y = graph.conv("x", [filters, of_group, *map(int, kernel)], (0.03, int(rng.integers(256))), **kinds, **attributes)
        model = graph.model(y)
        made = session(model, level=NONE, layout="last")
        assert layers(made) == [["QLinearConv"]], f"seed {seed}"
        assert np.array_equal(made.run(None, graph.feeds())[0], run_plain(model, graph.feeds(), level=NONE)[0]), f"seed {seed}"


def sums_by_numpy(x, w, scale):
    """A pointwise layer without zero points of X and Y, whose Y has the scale 1."""
    sums = np.einsum("nchw,mc->nmhw", x.astype(np.int32), w.astype(np.int32))
    return np.rint(sums.astype(np.float32) * scale[:, None, None])


@pytest.mark.parametrize("w", KINDS)
def test_what_onnx_allows_and_onnxruntime_refuses(w):
    """X of int8 beside W of uint8, and a zero point of W for each channel."""
    graph = Graph(np.int8, (1, 6, 9, 8))
    graph.scale("x", 1, 128)
    y = graph.conv("x", [5, 6, 1, 1], (1, 128), w=w, bias=False)
    weights, scale, zero = (graph.constants[name] for name in graph.nodes[0].input[3:6])
    zero[:] = zero + np.arange(5)
    made = session(graph.model(y), layout="last")
    assert layers(made) == [["QLinearConv"]]
    x = graph.feeds()["x"]
    wanted = sums_by_numpy(x, weights[:, :, 0, 0].astype(np.int32) - zero[:, None], scale).clip(-128, 127)
    assert np.array_equal(made.run(None, {"x": x})[0], wanted)


def two(graph):
    return [graph.conv("x", [9, 6, 3, 3], scale, pads=[1, 1, 1, 1]) for scale in ((0.08, 131), (0.06, 90))]


def silu(graph):
    x = two(graph)[0]
    return graph.node("QLinearMul", graph.operand(x) + graph.operand(graph.node("QLinearSigmoid", graph.operand(x), (1 / 256, 0))), (0.04, 9))


def hard_swish(graph):
    x = graph.conv("x", [9, 6, 3, 3], (0.077, 131))
    for name, value, scale in [("three", 255, 3 / 255), ("sixth", 255, 1 / 6 / 255)]:
        graph.constants[name] = np.array(value if graph.kind is np.uint8 else value - 128, graph.kind)
        graph.scale(name, scale, 0)
    gate = graph.node("QLinearAdd", graph.operand(x) + graph.operand("three"), (6 / 255, 0))
    gated = graph.node("QLinearMul", graph.operand(gate) + graph.operand(x), (0.149, 40))
    return graph.node("QLinearMul", graph.operand(gated) + graph.operand("sixth"), (0.03, 40))


def gate(graph):
    x, other = two(graph)
    mean = graph.node("QLinearGlobalAveragePool", graph.operand(other), (0.01, 120), channels_last=0)
    return graph.node("QLinearMul", graph.operand(mean) + graph.operand(x), (0.02, 131))


BETWEEN = {
    "add": lambda graph: graph.node("QLinearAdd", sum(map(graph.operand, two(graph)), []), (0.1, 133)),
    "halves": lambda graph: graph.node("QLinearAdd", sum(map(graph.operand, ("x", "x")), []), (0.1, 133)),
    "mul": lambda graph: graph.node("QLinearMul", sum(map(graph.operand, two(graph)), []), (0.1, 119)),
    "gate": gate,
    "concat": lambda graph: graph.node("QLinearConcat", sum(map(graph.operand, two(graph)), []), (0.08, 131), axis=1),
    "concat-of-the-last": lambda graph: graph.node("QLinearConcat", sum(map(graph.operand, two(graph)), []), (0.09, 131), axis=-3),
    "leaky": lambda graph: graph.node("QLinearLeakyRelu", graph.operand(two(graph)[0]), (0.06, 70), alpha=0.1),
    "sigmoid": lambda graph: graph.node("QLinearSigmoid", graph.operand(two(graph)[0]), (1 / 256, 0)),
    "silu": silu,
    "hard-swish": hard_swish,
    "mean": lambda graph: graph.node("QLinearAveragePool", graph.operand(two(graph)[0]), (0.07, 131), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]),
    "mean-with-padding": lambda graph: graph.node("QLinearAveragePool", graph.operand(two(graph)[0]), (0.07, 131), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "mean-of-all": lambda graph: graph.node("QLinearGlobalAveragePool", graph.operand(two(graph)[0]), (0.01, 131)),
    "max": lambda graph: graph.node("MaxPool", two(graph)[:1], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "nearest": lambda graph: graph.node("Resize", [two(graph)[0], "", graph.constant(np.float32([1, 1, 2, 2]))], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "split": lambda graph: graph.node("Split", [two(graph)[0], graph.constant(np.int64([4, 5]))], outputs=2, axis=1)[0],
    "slice": lambda graph: graph.node("Slice", [two(graph)[0], *map(graph.constant, (np.int64([2]), np.int64([8]), np.int64([1])))]),
    "bytes-behind-one-another": lambda graph: graph.node("Concat", two(graph), axis=1),
    "shuffle": lambda graph: shuffle(graph),
}


def shuffle(graph):
    x = graph.conv("x", [8, 6, 1, 1])
    for op, attribute in [("Reshape", [2, 2, 4, 13, 17]), ("Transpose", None), ("Reshape", [2, 8, 13, 17])]:
        x = graph.node(op, [x] + ([] if attribute is None else [graph.constant(np.int64(attribute))]), **({"perm": [0, 2, 1, 3, 4]} if attribute is None else {}))
    return x


def shuffle_of_floats(graph):
    """Every second channel, through floats to other scales, as onnxruntime's quantiser leaves them."""
    x = graph.node("Reshape", [graph.conv("x", [8, 6, 1, 1]), graph.constant(np.int64([2, 4, 2, 13, 17]))])
    halves = [graph.node("Gather", [graph.node("DequantizeLinear", graph.operand(x)), graph.constant(np.int64(place))], axis=2) for place in (0, 1)]
    halves = [graph.node("QuantizeLinear", [half], scale) for half, scale in zip(halves, ((0.07, 131), (0.08, 90)))]
    return graph.node("QLinearConcat", graph.operand(halves[1]) + graph.operand(halves[0]), (0.08, 131), axis=1)


BETWEEN["shuffle-of-floats"] = shuffle_of_floats

ROUNDED = {"add": 1e-3, "mul": 1e-3, "gate": 0.01, "silu": 1e-3, "hard-swish": 1e-3, "sigmoid": 1e-3, "mean": 1e-3, "mean-with-padding": 1e-3}


def pruned(graph, *outputs):
    """Without nodes whose outputs nobody reads."""
    needed, nodes = set(outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.insert(0, node)
    graph.nodes = nodes
    return graph


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("between", BETWEEN)
def test_what_stands_behind_convolutions(between, kind):
    graph = Graph(kind)
    y = BETWEEN[between](graph)
    if between == "halves":
        # A region has a convolution.
        y = graph.node("QLinearConcat", graph.operand(y) + graph.operand(graph.conv("x", [4, 6, 1, 1])), (0.1, 133), axis=1)
    check(pruned(graph, y), y, differing=ROUNDED.get(between, 0.0))


class Images(CalibrationDataReader):
    def __init__(self, count=3):
        rng = np.random.default_rng(3)
        self.images = iter([{"x": rng.uniform(-2, 2, [1, 6, 24, 24]).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.images, None)


def network():
    """A float network with what convolutional ones have between their layers."""
    rng, nodes, constants = np.random.default_rng(2), [], {}

    def node(op, *inputs, **attributes):
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], f"n{len(nodes)}", **attributes))
        return f"v{len(nodes) - 1}"

    def constant(value):
        constants[f"c{len(constants)}"] = value
        return f"c{len(constants) - 1}"

    def conv(x, shape, **attributes):
        w = rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        return node("Conv", x, constant(w), constant(rng.normal(0, 0.1, shape[0]).astype(np.float32)), **attributes)

    x = node("Relu", conv("x", [16, 6, 3, 3], pads=[1, 1, 1, 1]))
    gated = conv(x, [16, 1, 3, 3], group=16, pads=[1, 1, 1, 1])
    gated = node("Mul", gated, node("Sigmoid", gated))
    x = node("Add", x, conv(gated, [16, 16, 1, 1]))
    x = node("Mul", x, node("Sigmoid", conv(node("GlobalAveragePool", x), [16, 16, 1, 1])))
    small = node("LeakyRelu", conv(node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), [16, 16, 1, 1]), alpha=0.1)
    large = node("Resize", small, "", constant(np.float32([1, 1, 2, 2])), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    x = node("Concat", large, x, node("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=1)
    node("Conv", x, constant(rng.normal(0, 0.1, [8, 48, 3, 3]).astype(np.float32)))
    nodes[-1].output[0] = "y"
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "network", [value("x", [1, 6, 24, 24])], [value("y", None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("x", "w"), [(QuantType.QUInt8, QuantType.QUInt8), (QuantType.QUInt8, QuantType.QInt8), (QuantType.QInt8, QuantType.QInt8)])
def test_a_network_that_onnxruntime_quantised(x, w, each, tmp_path):
    path = str(tmp_path / "quantised.onnx")
    quantize_static(network(), path, Images(), quant_format=QuantFormat.QOperator, per_channel=each, activation_type=x, weight_type=w)
    model = onnx.load(path)
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("QLinearConv") == 6
    feeds = Images(1).get_next()
    # On CPUs without VNNI, onnxruntime's sums of u8 times i8 saturate in 16 bits, unless it is told to make W of u8, which it does from this level on. Those of
    # i8 times i8 do not.
    plain = options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    plain.add_session_config_entry("session.x64quantprecision", str(int(x == QuantType.QUInt8)))
    exact = onnxruntime.InferenceSession(model.SerializeToString(), plain, providers=["CPUExecutionProvider"])
    for level in (NONE, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        made = session(model, level=level, layout="last")
        # The last DequantizeLinear stays, because nothing in the region reads its floats.
        assert list(map(sorted, layers(made))) == [sorted(op for op in ops if op != "DequantizeLinear")]
        difference = np.abs(made.run(None, feeds)[0] - exact.run(None, feeds)[0])
        scale = next(numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == "y_scale")
        assert difference.max() <= 1.01 * scale and (difference > 0).mean() < 0.02


def log_of(change, model=None, **convoke):
    """What is logged of a small graph that is changed, as text."""
    graph = Graph()
    model = model or graph.model(graph.conv("x", [9, 6, 3, 3]))
    change(model)
    code = f"""
from conftest import *
import onnx
onnxruntime.set_default_logger_severity(2)
made = onnxruntime.SessionOptions()
onnxruntime.InferenceSession({model.SerializeToString()!r}, convoke_onnxruntime.add_to(made, log_level="verbose", **{convoke!r}))
"""
    return output_of(code)


def of_input(place):
    """Makes an input of the convolution one of the model."""

    def change(model):
        name = model.graph.node[0].input[place]
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        model.graph.initializer.remove(tensor)

    return change


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 6, 7, 8])
def test_what_is_not_constant_is_left_to_onnxruntime(place):
    graph = Graph()
    model = graph.model(graph.conv("x", [9, 6, 3, 3]))
    name = model.graph.node[0].input[place]
    of_input(place)(model)
    made = session(model, layout="last")
    feeds = {**graph.feeds(), name: graph.constants[name]}
    assert layers(made) == []
    assert np.array_equal(made.run(None, feeds)[0], run_plain(model, feeds)[0])


def test_the_log_says_why_a_convolution_is_left():
    assert "(QLinearConv) is left to onnxruntime: W, B, a scale or a zero point is not constant" in log_of(of_input(3), layout="last")
    assert "(QLinearConv) is left to onnxruntime: the option layout is first" in log_of(lambda model: None, layout="first")
    assert "is left to onnxruntime" not in log_of(lambda model: None, layout="last")
    integers = dynamic([1, 6, 13, 13], [([9, 6, 3, 3], 4, {})])
    assert "(ConvInteger) is left to onnxruntime: the option layout is first" in log_of(lambda model: None, integers, layout="first")
    assert "(ConvInteger) is left to onnxruntime: it does not stand between" in log_of(another_reader, integers, layout="last")


WRONG = {
    "scale": lambda graph: graph.constants.update({graph.nodes[0].input[6]: np.float32(-1)}),
    "scales": lambda graph: graph.constants.update({graph.nodes[0].input[4]: np.full(3, 0.1, np.float32)}),
    "infinite": lambda graph: graph.constants.update({graph.nodes[0].input[1]: np.float32(np.inf)}),
    "group": lambda graph: graph.nodes[0].attribute.append(helper.make_attribute("group", 4)),
    "bias": lambda graph: graph.constants.update({graph.nodes[0].input[8]: np.zeros(4, np.int32)}),
    "biases": lambda graph: graph.constants.update({graph.nodes[0].input[8]: np.full(9, 2**31 - 1, np.int32)}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_convoke_does_not_take_is_not_claimed(wrong):
    graph = Graph()
    y = graph.conv("x", [9, 6, 3, 3])
    WRONG[wrong](graph)
    try:
        made = session(graph.model(y), layout="last")
    except Exception as error:
        assert "Convoke" not in str(error)
        return
    assert layers(made) == []


def test_other_operators_are_left_to_onnxruntime():
    """A Resize between pixels, a constant image, and a Softmax of bytes."""
    graph = Graph()
    large = graph.node("Resize", [two(graph)[0], "", graph.constant(np.float32([1, 1, 2, 2]))], mode="linear")
    graph.constants["image"] = graph.rng.integers(0, 256, [1, 9, 26, 34]).astype(np.uint8)
    graph.scale("image", 0.05, 100)
    y = graph.node("QLinearAdd", graph.operand(large) + graph.operand("image"), (0.1, 133))
    y = graph.node("QLinearSoftmax", graph.operand(y), (1 / 256, 0), axis=1, opset=13)
    model = pruned(graph, y).model(y)
    made = session(model, level=NONE, layout="last")
    assert layers(made) == [["QLinearConv"]]
    assert np.array_equal(made.run(None, graph.feeds())[0], run_plain(model, graph.feeds(), level=NONE)[0])


def test_what_is_computed_of_a_constant_is_no_region():
    graph = Graph()
    graph.constants["image"] = graph.rng.integers(0, 256, [2, 9, 13, 17]).astype(np.uint8)
    graph.scale("image", 0.02, 100)
    gate = graph.node("QLinearSigmoid", graph.operand("image"), (1 / 256, 0))
    y = graph.node("QLinearMul", graph.operand(two(graph)[0]) + graph.operand(gate), (0.03, 133))
    check(pruned(graph, y), y, left=["QLinearSigmoid", "QLinearMul"])


def test_bytes_alone_are_no_region():
    graph = Graph()
    y = graph.node("MaxPool", ["x"], kernel_shape=[2, 2])
    y = graph.node("QLinearAdd", graph.operand(y) + graph.operand(y), (0.1, 133))
    assert layers(session(graph.model(y), layout="last")) == []


def dynamic(x, convolutions, w=np.uint8):
    """A graph of floats: what quantize_dynamic writes for some layers of the same X."""
    rng, nodes, constants = np.random.default_rng(4), [], {}

    def constant(value):
        constants[f"c{len(constants)}"] = np.asarray(value)
        return f"c{len(constants) - 1}"

    nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]))
    for i, (shape, zero, attributes) in enumerate(convolutions):
        least = np.iinfo(w).min
        weights = constant(rng.integers(least + 60, least + 196, shape).astype(w))
        zeros = [] if zero is None else [constant(w(least + 128 + zero))]
        nodes.append(helper.make_node("ConvInteger", ["q", weights, "zero", *zeros], [f"sums{i}"], **attributes))
        nodes.append(helper.make_node("Cast", [f"sums{i}"], [f"floats{i}"], to=TensorProto.FLOAT))
        scales = ["scale", constant(np.float32(0.003))]
        nodes.append(helper.make_node("Mul", scales if i % 2 else scales[::-1], [f"scales{i}"]))
        both = [f"floats{i}", f"scales{i}"]
        nodes.append(helper.make_node("Mul", both if i % 2 else both[::-1], [f"y{i}"]))
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [value(f"y{i}", None) for i in range(len(convolutions))]
    graph = helper.make_graph(nodes, "dynamic", [value("x", x)], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)


DYNAMIC = {
    "one": ([2, 6, 13, 17], [([9, 6, 3, 3], 0, {})]),
    "of-a-zero-point": ([2, 6, 13, 17], [([9, 6, 3, 3], 17, dict(pads=[1, 1, 1, 1], strides=[2, 1]))]),
    "without-a-zero-point": ([2, 6, 13, 17], [([9, 6, 1, 1], None, {})]),
    "several": ([2, 6, 13, 17], [([9, 6, 3, 3], -5, {}), ([6, 1, 3, 3], 0, dict(group=6)), ([4, 6, 1, 1], 3, {})]),
    "of-one-axis": ([3, 4, 301], [([7, 4, 5], 9, dict(dilations=[2]))]),
    "of-three-axes": ([1, 3, 4, 5, 6], [([5, 3, 2, 2, 2], 9, {})]),
    "unknown": (["n", 6, "h", "w"], [([9, 6, 3, 3], 1, {})]),
}


@pytest.mark.parametrize("numbers", ["both", "positive", "negative", "zeros", "tiny"])
@pytest.mark.parametrize("case", DYNAMIC)
def test_scales_of_a_run(case, numbers):
    shape, convolutions = DYNAMIC[case]
    model = dynamic(shape, convolutions)
    made = session(model, level=NONE, layout="last")
    assert list(map(sorted, layers(made))) == [sorted(node.op_type for node in model.graph.node)]
    low, high = {"both": (-3, 5), "positive": (1, 5), "negative": (-5, -1), "zeros": (0, 0), "tiny": (0, 1e-41)}[numbers]
    shape = [{"n": 2, "h": 20, "w": 11}.get(size, size) for size in shape]
    rng = np.random.default_rng(8)
    for factor in (1, 1.7):
        feeds = {"x": (rng.uniform(low, high, shape) * factor).astype(np.float32)}
        for one, other in zip(made.run(None, feeds), run_plain(model, feeds, level=NONE), strict=True):
            assert one.shape == other.shape and np.array_equal(one, other)


@pytest.mark.parametrize("threads", [1, 3])
def test_scales_of_a_run_do_not_depend_on_threads(threads):
    model = dynamic([1, 6, 64, 64], [([9, 6, 3, 3], 4, {})])
    feeds = {"x": np.random.default_rng(8).normal(0, 1, [1, 6, 64, 64]).astype(np.float32)}
    made = session(model, layout="last", threads=threads, pool=threads)
    assert np.array_equal(made.run(None, feeds)[0], run_plain(model, feeds, level=NONE)[0])


def test_an_infinite_number_is_an_error_of_the_run():
    made = session(dynamic([1, 6, 8, 8], [([9, 6, 3, 3], 4, {})]), layout="last")
    x = np.ones([1, 6, 8, 8], np.float32)
    x[0, 0, 0, 0] = np.inf
    with pytest.raises(Exception, match="x_scale is inf"):
        made.run(None, {"x": x})


def another_reader(model):
    model.graph.node.append(helper.make_node("Identity", ["scale"], ["read"]))
    model.graph.output.append(helper.make_tensor_value_info("read", TensorProto.FLOAT, []))


def another_zero(model):
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(3), "three"))
    model.graph.node[1].input[2] = "three"


def sums_that_leave(model):
    model.graph.output.append(helper.make_tensor_value_info("sums0", TensorProto.INT32, None))


def scales_for_columns(model):
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == model.graph.node[3].input[0])
    tensor.CopyFrom(numpy_helper.from_array(np.linspace(0.001, 0.1, 11, dtype=np.float32), tensor.name))


@pytest.mark.parametrize("change", [another_reader, another_zero, sums_that_leave, scales_for_columns])
def test_other_uses_of_scales_of_a_run_are_left_to_onnxruntime(change):
    model = dynamic([1, 6, 13, 13], [([9, 6, 3, 3], 4, {})])
    change(model)
    feeds = {"x": np.random.default_rng(8).normal(0, 1, [1, 6, 13, 13]).astype(np.float32)}
    made = session(model, level=NONE, layout="last")
    assert layers(made) == []
    for one, other in zip(made.run(None, feeds), run_plain(model, feeds, level=NONE), strict=True):
        assert np.array_equal(one, other)


def test_a_network_that_onnxruntime_quantised_dynamically(tmp_path):
    path = str(tmp_path / "quantised.onnx")
    quantize_dynamic(network(), path, weight_type=QuantType.QUInt8)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node].count("ConvInteger") == 6
    feeds = Images(1).get_next()
    made = session(model, layout="last")
    assert [part.count("ConvInteger") for part in layers(made)] == [6]
    got, wanted = made.run(None, feeds)[0], run_plain(model, feeds)[0]
    # Floats between layers are rounded otherwise, and so may be the scale of a layer.
    assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()
