"""Quantised graphs: convolutions of bytes, and what stands between them, in regions of bytes.

Sums are exact, and each rounding to bytes is that of the definition, which onnxruntime computes in floats if it optimises
nothing. Where both are as near to a number, one step more or less is allowed.
"""

import numpy as np
import onnxruntime
import pytest
from conftest import layers, run_plain, session
from onnx import TensorProto, helper, numpy_helper

NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


class Graph:
    """A graph whose values have bytes of a kind, and weights of another one."""

    def __init__(self, x=np.uint8, w=np.int8, seed=0, each=True, opset=18):
        self.x, self.w, self.each, self.opset = x, w, each, opset
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.scales = [], {}, {}

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def scale_of(self, scale, zero):
        return self.constant(np.float32(scale)), self.constant(self.x(zero if self.x is np.uint8 else zero - 128))

    def quantised(self, value, scale=0.05, zero=120):
        """What a value of floats is after a step to bytes and back."""
        return self.floats(self.bytes(value, scale, zero))

    def bytes(self, value, scale=0.05, zero=120):
        names = self.scale_of(scale, zero)
        name = self.node("QuantizeLinear", value, *names)
        self.scales[name] = names
        return name

    def floats(self, name):
        return self.node("DequantizeLinear", name, *self.scales[name])

    def conv(self, value, shape, op="Conv", bias="sums", x_scale=0.05, **attributes):
        """A convolution of a value that is dequantised, whose x has that scale."""
        least = np.iinfo(self.w).min
        w = self.rng.integers(least + 60, least + 196, shape).astype(self.w)
        count, axis = (shape[0], 0) if op == "Conv" else (shape[1], 1)
        each = self.each and (op == "Conv" or attributes.get("group", 1) == 1)
        scale = self.rng.uniform(0.002, 0.004, count if each else ()).astype(np.float32)
        zero = np.full(np.shape(scale), least + 128, self.w)
        names = [self.constant(w), self.constant(scale), self.constant(zero)]
        inputs = [value, self.node("DequantizeLinear", *names, **({"axis": axis} if each else {}))]
        channels = count if op == "Conv" else count * attributes.get("group", 1)
        if bias == "sums":
            own = (np.float32(x_scale) * np.broadcast_to(scale, channels)).astype(np.float32)
            names = [self.constant(self.rng.integers(-3000, 3000, channels).astype(np.int32)), self.constant(own), self.constant(np.zeros(channels, np.int32))]
            inputs.append(self.node("DequantizeLinear", *names, axis=0))
        elif bias == "floats":
            inputs.append(self.constant(self.rng.uniform(-0.5, 0.5, channels).astype(np.float32)))
        return self.node(op, *inputs, **attributes)

    def model(self, outputs, inputs={"x": [1, 6, 13, 17]}, kinds={}):
        of_inputs = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), dims) for name, dims in inputs.items()]
        of_outputs = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in outputs]
        tensors = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "graph", of_inputs, of_outputs, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def check(model, feeds, step=0.05, steps=1, level=NONE):
    """Compares with the definition, and asserts that all that is computed is in one region."""
    made = session(model, layout="last")
    # onnxruntime removes some conversions and adds others.
    computed = lambda ops: sorted(op for op in ops if op not in ("DequantizeLinear", "QuantizeLinear"))
    assert [computed(region) for region in layers(made)] == [computed(node.op_type for node in model.graph.node)]
    got, wanted = made.run(None, feeds), run_plain(model, feeds, level=level)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64)) / (step if one.dtype == np.float32 else 1)
        assert difference.max(initial=0) <= steps + 1e-3
        assert (difference > 1e-3).mean() < 0.05, "most elements are the same"
        assert np.unique(other).size > 8, "the test tells elements from each other"


def image(*shape, seed=5):
    return np.random.default_rng(seed).uniform(-4, 4, shape or (1, 6, 13, 17)).astype(np.float32)


X = {"x": image()}


@pytest.mark.parametrize("bias", ["sums", "floats", "none"])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("w", KINDS)
@pytest.mark.parametrize("x", KINDS)
def test_a_convolution(x, w, each, bias):
    graph = Graph(x, w, each=each)
    y = graph.quantised(graph.conv(graph.quantised("x"), [9, 6, 3, 3], bias=bias, pads=[1, 1, 1, 1]), 0.08)
    check(graph.model([y]), X, step=0.08)


LAYERS = {
    "strided": dict(shape=[10, 6, 3, 3], strides=[2, 2], pads=[1, 0, 1, 0]),
    "dilated": dict(shape=[10, 6, 3, 3], dilations=[2, 1]),
    "grouped": dict(shape=[12, 3, 3, 3], group=2, pads=[1, 1, 1, 1]),
    "depthwise": dict(shape=[6, 1, 3, 3], group=6, pads=[1, 1, 1, 1]),
    "pointwise": dict(shape=[16, 6, 1, 1]),
    "same": dict(shape=[8, 6, 3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    "transposed": dict(op="ConvTranspose", shape=[6, 5, 3, 3], strides=[2, 2]),
    "transposed-groups": dict(op="ConvTranspose", shape=[6, 5, 2, 2], strides=[2, 2], group=3),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer):
    graph = Graph()
    y = graph.quantised(graph.conv(graph.quantised("x"), **LAYERS[layer]), 0.08)
    check(graph.model([y]), X, step=0.08)


def test_other_numbers_of_axes_and_images():
    for shape, weights in [([3, 4, 31], [7, 4, 3]), ([2, 3, 4, 5, 6], [5, 3, 2, 2, 2])]:
        graph = Graph()
        y = graph.quantised(graph.conv(graph.quantised("x"), weights), 0.08)
        check(graph.model([y], {"x": shape}), {"x": image(*shape)}, step=0.08)


@pytest.mark.parametrize("clamp", ["Relu", "Clip"])
def test_a_clamp_in_front_of_the_bytes(clamp):
    graph = Graph()
    value = graph.conv(graph.quantised("x"), [9, 6, 3, 3])
    bounds = [graph.constant(np.float32(bound)) for bound in (-0.7, 3.1)] if clamp == "Clip" else []
    check(graph.model([graph.quantised(graph.node(clamp, value, *bounds), 0.08)]), X, step=0.08)


def silu(graph, x):
    return graph.node("Mul", graph.floats(x), graph.quantised(graph.node("Sigmoid", graph.floats(x)), 1 / 255, 0))


def hard_swish(graph, x):
    three, six = (graph.node("DequantizeLinear", graph.constant(np.uint8(number)), graph.constant(np.float32(1)), graph.constant(np.uint8(0))) for number in (3, 6))
    gate = graph.quantised(graph.node("Clip", graph.quantised(graph.node("Add", graph.floats(x), three), 0.1), graph.constant(np.float32(0)), graph.constant(np.float32(6))), 6 / 255, 0)
    return graph.node("Div", graph.quantised(graph.node("Mul", graph.floats(x), gate), 0.3), six)


TABLES = {
    "sigmoid": lambda graph, x: graph.node("Sigmoid", graph.floats(x)),
    "silu": silu,
    "hard-swish": hard_swish,
    "leaky": lambda graph, x: graph.node("LeakyRelu", graph.floats(x), alpha=0.1),
    "hard-sigmoid": lambda graph, x: graph.node("HardSigmoid", graph.floats(x)),
    "another-scale": lambda graph, x: graph.floats(x),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", TABLES)
def test_functions_of_one_byte(table, kind):
    graph = Graph(kind, opset=13)
    x = graph.bytes(graph.conv(graph.quantised("x"), [9, 6, 3, 3]), 0.08)
    y = graph.conv(graph.quantised(TABLES[table](graph, x), 0.04, 60), [8, 9, 1, 1], x_scale=0.04)
    # onnxruntime joins both scales.
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC if table == "another-scale" else NONE
    check(graph.model([graph.quantised(y, 0.02)]), X, step=0.02, steps=2, level=level)


def two(graph):
    """Two images of 9 channels."""
    x = graph.bytes("x")
    return [graph.quantised(graph.conv(graph.floats(x), [9, 6, 3, 3], pads=[1, 1, 1, 1]), scale) for scale in (0.08, 0.06)]


def numbers(graph, least, most, *shape):
    """Constants, one for each channel."""
    return graph.constant(graph.rng.uniform(least, most, shape or (9,)).astype(np.float32))


def dequantised(graph, values, scale):
    """Constants, as the quantiser writes them."""
    values = np.asarray(values)
    names = [graph.constant(values), graph.constant(np.float32(scale)), graph.constant(values.dtype.type(0))]
    return graph.node("DequantizeLinear", *names)


def normalised(graph, x, *scale_and_shift):
    return graph.node("BatchNormalization", x, *scale_and_shift, numbers(graph, -1, 1), numbers(graph, 0.5, 2), epsilon=1e-3)


BETWEEN = {
    "normalisation": lambda graph: normalised(graph, two(graph)[0], numbers(graph, -1.5, 1.5), numbers(graph, -1, 1)),
    "normalisation-of-bytes": lambda graph: normalised(
        graph, two(graph)[0], dequantised(graph, np.arange(9, dtype=np.int8) - 4, 0.3), dequantised(graph, np.arange(9, dtype=np.int32) * 50 - 200, 0.004)
    ),
    "slopes": lambda graph: graph.node("PRelu", two(graph)[0], numbers(graph, -0.5, 1.5, 9, 1, 1)),
    "factors": lambda graph: graph.node("Mul", dequantised(graph, (np.arange(9, dtype=np.uint8) + 1).reshape(1, 9, 1, 1), 0.2), two(graph)[0]),
    "shifts": lambda graph: graph.node("Add", two(graph)[0], numbers(graph, -2, 2, 9, 1, 1)),
    "add": lambda graph: graph.node("Add", *two(graph)),
    "mul": lambda graph: graph.node("Mul", *two(graph)),
    "concat": lambda graph: graph.node("Concat", *two(graph), axis=1),
    "max": lambda graph: graph.node("MaxPool", two(graph)[0], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "mean": lambda graph: graph.node("AveragePool", two(graph)[0], kernel_shape=[2, 2], strides=[2, 2]),
    "gate": lambda graph: graph.node("Mul", two(graph)[0], graph.quantised(graph.node("GlobalAveragePool", two(graph)[1]), 0.01)),
    "nearest": lambda graph: graph.node("Resize", two(graph)[0], "", graph.constant(np.float32([1, 1, 2, 2])), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "linear": lambda graph: graph.node("Resize", two(graph)[0], "", graph.constant(np.float32([1, 1, 2, 2])), mode="linear"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("between", BETWEEN)
def test_what_stands_between_convolutions(between, kind):
    graph = Graph(kind)
    value = BETWEEN[between](graph)
    scale = {"concat": 0.09, "max": 0.08, "nearest": 0.08}.get(between, 0.1)
    channels = 18 if between == "concat" else 9
    y = graph.conv(graph.quantised(value, scale), [8, channels, 1, 1], x_scale=scale)
    # Both images of `two` are computed, whichever are read.
    model = graph.model([graph.quantised(y, 0.05)])
    used = prune(model)
    check(used, X, steps=2)


def prune(model):
    """Without nodes whose outputs nobody reads."""
    needed, nodes = {output.name for output in model.graph.output}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.insert(0, node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_halves_that_are_shuffled():
    graph = Graph()
    value = graph.bytes(graph.conv(graph.quantised("x"), [8, 6, 3, 3], pads=[1, 1, 1, 1]), 0.08)
    for op, attribute in [("Reshape", [1, 2, 4, 13, 17]), ("Transpose", None), ("Reshape", [1, 8, 13, 17])]:
        shape = [] if attribute is None else [graph.constant(np.int64(attribute))]
        value = graph.bytes(graph.node(op, graph.floats(value), *shape, **({} if shape else {"perm": [0, 2, 1, 3, 4]})), 0.08)
    y = graph.conv(graph.floats(value), [8, 8, 1, 1], x_scale=0.08)
    check(graph.model([graph.quantised(y, 0.05)]), X)


def gate(graph, foreign):
    """A product with a tensor that a foreign node computes."""
    q = graph.bytes(graph.conv(graph.quantised("x"), [6, 6, 3, 3], pads=[1, 1, 1, 1]), 0.08)
    return graph.node("Mul", graph.floats(q), foreign(graph, q))


EDGES = {
    "foreign": lambda graph: gate(graph, lambda graph, q: graph.node("Sin", "x")),
    "softmax": lambda graph: gate(graph, lambda graph, q: graph.node("Softmax", graph.floats(q), axis=1)),
    "constant": lambda graph: gate(graph, lambda graph, q: graph.node("DequantizeLinear", graph.constant(graph.rng.integers(0, 256, [1, 6, 1, 1]).astype(np.uint8)), *graph.scale_of(0.01, 3))),
    "quantised-constant": lambda graph: gate(graph, lambda graph, q: graph.quantised(graph.constant(graph.rng.uniform(-1, 1, [1, 6, 1, 1]).astype(np.float32)), 0.01, 100)),
    "floats-in-concat": lambda graph: graph.node("Concat", "x", graph.conv(graph.quantised("x"), [6, 6, 3, 3], pads=[1, 1, 1, 1]), graph.conv(graph.quantised("x"), [5, 6, 3, 3], pads=[1, 1, 1, 1]), axis=1),
    "floats": lambda graph: graph.node("Conv", graph.quantised(graph.node("Exp", graph.quantised(graph.node("Conv", graph.node("Sin", graph.conv(graph.quantised("x"), [6, 6, 3, 3])), graph.constant(image(4, 6, 1, 1))), 0.05)), 0.1, 3), graph.constant(image(2, 4, 1, 1))),
}


@pytest.mark.parametrize("layout", ["auto", "last"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_regions_within_a_graph(edge, layout):
    graph = Graph()
    model = prune(graph.model([EDGES[edge](graph)]))
    for level in (NONE, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        got = session(model, level=level, layout=layout).run(None, X)[0]
        wanted = run_plain(model, X, level=NONE)[0]
        assert (np.abs(got - wanted) > 0.02 * np.abs(wanted).max()).mean() < 0.02


REFUSED = {
    "blocks": lambda graph: graph.node("Conv", graph.quantised("x"), graph.node("DequantizeLinear", graph.constant(graph.rng.integers(-90, 90, [12, 6, 1, 1]).astype(np.int8)), graph.constant(graph.rng.uniform(0.01, 0.1, [2, 6, 1, 1]).astype(np.float32)), graph.constant(np.zeros([2, 6, 1, 1], np.int8)), axis=0, block_size=6)),
    "coarse-bias": lambda graph: graph.node("Conv", graph.quantised("x", 1.0), graph.node("DequantizeLinear", graph.constant(graph.rng.integers(-2, 2, [4, 6, 1, 1]).astype(np.int8)), graph.constant(np.float32(1)), graph.constant(np.int8(0))), graph.constant(np.float32([0.3, 0.4, -0.45, 0.1]))),
    "scales": lambda graph: graph.node("Conv", graph.quantised("x"), graph.node("DequantizeLinear", graph.constant(graph.rng.integers(-2, 2, [4, 6, 1, 1]).astype(np.int8)), graph.constant(np.float32(3e38)), graph.constant(np.int8(0)))),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_sums_of_integers_are_not_is_left_to_onnxruntime(refused):
    graph = Graph(opset=21)
    model = graph.model([graph.quantised(REFUSED[refused](graph), 1e-3 if refused == "scales" else 0.05)])
    made = session(model, level=NONE, layout="last")
    assert layers(made) == []
    assert np.array_equal(made.run(None, X)[0], run_plain(model, X, level=NONE)[0])


@pytest.mark.parametrize("op", ["Sum", "Max", "Min"])
def test_functions_of_three_operands(op):
    graph = Graph()
    q = graph.bytes(graph.conv(graph.quantised("x"), [9, 6, 3, 3]), 0.08)
    operands = [graph.node("Neg", graph.floats(q)), graph.node("Identity", graph.floats(q)), graph.constant(np.float32(1.5))]
    y = graph.conv(graph.quantised(graph.node(op, *operands), 0.08), [4, 9, 1, 1], x_scale=0.08)
    model = graph.model([graph.quantised(y, 0.05)])
    got, wanted = session(model, level=NONE, layout="last").run(None, X), run_plain(model, X, level=NONE)
    assert np.abs(got[0] - wanted[0]).max() < 0.06


def test_what_is_no_number_becomes_the_lowest_byte():
    graph = Graph()
    q = graph.bytes(graph.conv(graph.quantised("x"), [9, 6, 3, 3]), 0.08)
    y = graph.bytes(graph.node("Relu", graph.node("Sqrt", graph.floats(q))), 0.02, 40)
    model = graph.model([graph.floats(y)])
    got, wanted = session(model, level=NONE, layout="last").run(None, X), run_plain(model, X, level=NONE)
    assert np.abs(got[0] - wanted[0]).max() < 0.03


def test_bytes_that_enter_and_leave():
    for kind in KINDS:
        graph = Graph(kind)
        graph.scales["x"] = graph.scale_of(0.05, 120)
        y = graph.bytes(graph.conv(graph.floats("x"), [9, 6, 3, 3]), 0.08)
        x = np.random.default_rng(3).integers(0, 256, [2, 6, 13, 17]).astype(np.uint8).view(kind)
        kinds = {"x": KINDS[kind], y: KINDS[kind]}
        check(graph.model([y], {"x": ["n", 6, "h", "w"]}, kinds), {"x": x})


def test_sums_that_exceed_pairs_of_16_bits_are_exact():
    graph = Graph(seed=2)
    graph.scales["x"] = graph.scale_of(1.0, 0)
    y = graph.conv(graph.floats("x"), [8, 64, 3, 3], bias="none")
    w = next(name for name, value in graph.constants.items() if value.ndim == 4)
    graph.constants[w] = np.full([8, 64, 3, 3], 127, np.int8)
    model = graph.model([y], {"x": [1, 64, 9, 9]}, {"x": TensorProto.UINT8})
    x = np.random.default_rng(4).integers(250, 256, [1, 64, 9, 9]).astype(np.uint8)
    sums = 127 * np.lib.stride_tricks.sliding_window_view(x.astype(np.int32), (3, 3), axis=(2, 3)).sum(axis=(1, 4, 5))
    scale = next(value for value in graph.constants.values() if value.shape == (8,) and value.dtype == np.float32)
    wanted = sums[:, None].astype(np.float32) * scale[:, None, None]
    assert np.array_equal(session(model, layout="last").run(None, {"x": x})[0], wanted)


def test_threads_and_optimisation_levels_give_the_same_bytes():
    graph = Graph()
    value = graph.node("Concat", *two(graph), axis=1)
    y = graph.bytes(graph.conv(graph.quantised(value, 0.09), [8, 18, 3, 3], x_scale=0.09), 0.05)
    model = graph.model([y], {"x": [1, 6, 64, 64]}, {y: TensorProto.UINT8})
    feeds = {"x": image(1, 6, 64, 64)}
    levels = [getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}") for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_ALL")]
    all_bytes = [session(model, level=level, layout="last", threads=threads, pool=threads).run(None, feeds)[0] for level in levels for threads in (1, 3)]
    assert all(np.array_equal(one, all_bytes[0]) for one in all_bytes)


def test_with_channels_first_bytes_are_left_to_onnxruntime():
    graph = Graph()
    model = graph.model([graph.quantised(graph.conv(graph.quantised("x"), [9, 6, 3, 3]), 0.08)])
    assert layers(session(model, layout="first")) == []


def test_scales_that_are_inputs_are_left_to_onnxruntime():
    graph = Graph()
    y = graph.quantised(graph.conv(graph.quantised("x"), [9, 6, 3, 3]), 0.08)
    model = graph.model([y])
    scale = next(node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear")
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == scale)
    model.graph.initializer.remove(tensor)
    model.graph.input.append(helper.make_tensor_value_info(scale, TensorProto.FLOAT, []))
    made = session(model, layout="last")
    got = made.run(None, {**X, scale: np.array(0.05, np.float32)})
    assert layers(made) == []
    assert got[0].shape == (1, 9, 11, 15)
