"""Layers in bytes: their operands, as static quantisation makes them, and models of them.

X and Y are unsigned bytes with a zero point, W is signed bytes with a scale for each output channel, and the bias has the scale of X times that of W. Ranges
are symmetric, so that zero points are 128: libraries that know signed bytes alone then have the same layer.
"""

import math

import numpy as np

# Sums, and biases, have a variance of 1/3. So many standard deviations of outputs are kept, as calibration does that ignores outliers.
DEVIATIONS = 4
ZERO_POINT = 128


def operands(row, x, w, b):
    """X, W and B in bytes, and their scales and zero points, of operands in floats as compare.py has them."""
    x_scale, y_scale = np.float32(2 / 255), np.float32(2 * DEVIATIONS * math.sqrt(2 / 3) / 255)
    channels = by_channel(row, w)
    scale = np.maximum(np.abs(channels).max(axis=(1, 3), keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    w_scale = scale.ravel()
    quantised = {
        "x_scale": float(x_scale), "x_zero_point": ZERO_POINT, "w_scale": w_scale.astype(float).tolist(), "y_scale": float(y_scale),
        "y_zero_point": ZERO_POINT,
    }
    return (
        (np.rint(x / x_scale) + ZERO_POINT).astype(np.uint8), np.rint(channels / scale).astype(np.int8).reshape(w.shape),
        np.rint(b / (x_scale * w_scale)).astype(np.int32), quantised,
    )


def by_channel(row, w):
    """The weights with four axes, of which the first one is the group, and the third one its output channels."""
    rows = row["y"][1] // row["group"]
    shape = [row["group"], 1, rows, -1] if row["op"] == "Conv" else [row["group"], -1, rows, math.prod(row["w"][2:])]
    return w.reshape(shape)


def float_bias(row, b):
    """The bias in the unit of Y before it is quantised."""
    return (b * row["quantised"]["x_scale"] * np.array(row["quantised"]["w_scale"])).astype(np.float32)


def signed(values):
    """Unsigned bytes as signed ones, with a zero point that is 128 less; and the way back."""
    return (values ^ 128).view(np.int8) if values.dtype == np.uint8 else values.view(np.uint8) ^ 128


def sample(row, x, w, b, count=100):
    """Places of some outputs, the first and the last one among them, and these outputs by the definition of QLinearConv."""
    q, shape, group = row["quantised"], row["y"], row["group"]
    outputs, inputs, axes = shape[1] // group, row["x"][1] // group, len(row["strides"])
    scale = np.float32(q["x_scale"]) * np.array(q["w_scale"], np.float32) / np.float32(q["y_scale"])
    len_ = math.prod(shape)
    places = np.unique([0, len_ - 1, *np.random.default_rng(0).integers(len_, size=count)])
    right = []
    for n, m, *position in zip(*np.unravel_index(places, shape)):
        channels = slice(m // outputs * inputs, (m // outputs + 1) * inputs)
        total = int(b[m])
        for tap in np.ndindex(*row["w"][2:]):
            geometry = list(zip(position, tap, row["strides"], row["dilations"], row["pads"][:axes]))
            if row["op"] == "Conv":
                source, weights = [p * stride + t * dilation - begin for p, t, stride, dilation, begin in geometry], w[(m, slice(None), *tap)]
            else:
                weights = w[(channels, m % outputs, *tap)]
                strided = [divmod(p + begin - t * dilation, stride) for p, t, stride, dilation, begin in geometry]
                source = [-1 if rest else place for place, rest in strided]
            if all(0 <= place < size for place, size in zip(source, row["x"][2:])):
                total += (x[(n, channels, *source)].astype(int) - q["x_zero_point"]) @ weights.astype(int)
        right.append(np.clip(np.rint(np.float32(total) * scale[m]) + q["y_zero_point"], 0, 255))
    return places, np.array(right, np.uint8)


# --- Models ----------------------------------------------------------------------------------------------------------


def attributes(row):
    found = {name: row[name] for name in ("strides", "pads", "dilations", "group")} | {"kernel_shape": row["w"][2:]}
    return found | ({"output_padding": row["output_padding"]} if row["op"] == "ConvTranspose" else {})


def is_last(row):
    return row["layout"] == "channels-last"


def shape(row, name):
    """The shape of X or Y in memory."""
    batch, channels, *axes = row[name]
    return [batch, *axes, channels] if is_last(row) else row[name]


def qlinear(row, w, b):
    """QLinearConv of ONNX, or with channels last that of onnxruntime, which its own optimiser takes."""
    from onnx import helper

    if row["op"] != "Conv":
        raise ValueError("onnxruntime has no ConvTranspose of bytes")
    last = {"domain": "com.microsoft", "channels_last": 1} if is_last(row) else {}
    inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "b"]
    return write(row, [helper.make_node("QLinearConv", inputs, ["y"], **attributes(row), **last)], constants(row, w, b))


def qdq(row, w, b):
    """The operator on floats between DequantizeLinear and QuantizeLinear. With channels last, it is between two Transpose."""
    from onnx import helper

    if row["op"] == "ConvTranspose" and row["group"] > 1:
        raise ValueError("ONNX has no scale for each output channel of a ConvTranspose with groups")
    rank = len(row["x"])
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["x_float"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_float"], axis=0 if row["op"] == "Conv" else 1),
        helper.make_node(row["op"], ["x_first" if is_last(row) else "x_float", "w_float", "b_float"], ["y_float"], **attributes(row)),
        helper.make_node("QuantizeLinear", ["y_last" if is_last(row) else "y_float", "y_scale", "y_zero"], ["y"]),
    ]
    if is_last(row):
        nodes.insert(2, helper.make_node("Transpose", ["x_float"], ["x_first"], perm=[0, rank - 1, *range(1, rank - 1)]))
        nodes.insert(4, helper.make_node("Transpose", ["y_float"], ["y_last"], perm=[0, *range(2, rank), 1]))
    return write(row, nodes, constants(row, w, b) | {"b_float": float_bias(row, b)})


def constants(row, w, b):
    q = row["quantised"]
    number = lambda name: np.float32(q[f"{name}_scale"])
    zero = lambda name: np.uint8(q[f"{name}_zero_point"])
    scale = np.array(q["w_scale"], np.float32)
    return {
        "x_scale": number("x"), "x_zero": zero("x"), "w": w, "w_scale": scale, "w_zero": np.zeros(len(scale), np.int8), "y_scale": number("y"),
        "y_zero": zero("y"), "b": b,
    }


def write(row, nodes, values):
    """The bytes of a model from X to Y, with the constants that the nodes read."""
    from onnx import TensorProto, helper, numpy_helper

    value = lambda name: helper.make_tensor_value_info(name, TensorProto.UINT8, shape(row, name))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "layer", [value("x")], [value("y")], [numpy_helper.from_array(np.asarray(array), name) for name, array in values.items() if name in used]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
