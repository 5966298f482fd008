"""Networks that ONNX's own set lacks, three made up and eight published ones, and that set, with random weights."""

import functools
import glob
import importlib.util
import os
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """A graph that is made from front to back."""

    def __init__(self, name, x_shape, seed=7):
        self.rng, self.nodes, self.constants, self.name = np.random.default_rng(seed), [], [], name
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)]

    def constant(self, value):
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(self, x, m, c, kernel, group=1, op="Conv", **attributes):
        shape = [m, c // group, *kernel] if op == "Conv" else [c, m // group, *kernel]
        w = self.rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        b = self.rng.standard_normal(m) * 0.1
        return self.node(op, x, self.constant(w.astype(np.float32)), self.constant(b.astype(np.float32)), group=group, **attributes)

    def model(self, *outputs):
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, infos, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def yolo(size=160):
    """A detector: SiLU, residuals behind activations, concatenations, pooling pyramids, upsampling, three outputs."""
    net = Network("yolo", [1, 3, size, size])

    def silu(x, m, c, k=1, s=1):
        x = net.conv(x, m, c, [k, k], strides=[s, s], pads=[k // 2] * 4)
        return net.node("Mul", x, net.node("Sigmoid", x))

    def stage(x, m, c, n):
        """Parts of a split, each behind the one before, joined."""
        left, right = silu(x, m // 2, c), silu(x, m // 2, c)
        parts = [left, right]
        for _ in range(n):
            right = net.node("Add", right, silu(silu(right, m // 2, m // 2, 3), m // 2, m // 2, 3))
            parts.append(right)
        return silu(net.node("Concat", *parts, axis=1), m, m // 2 * len(parts))

    x = silu(silu("x", 16, 3, 3, 2), 32, 16, 3, 2)
    x = stage(x, 32, 32, 1)
    fine = stage(silu(x, 64, 32, 3, 2), 64, 64, 2)
    middle = stage(silu(fine, 128, 64, 3, 2), 128, 128, 2)
    coarse = stage(silu(middle, 256, 128, 3, 2), 256, 256, 1)
    x = silu(coarse, 128, 256)
    pools = [x]
    for _ in range(3):
        pools.append(net.node("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    coarse = silu(net.node("Concat", *pools, axis=1), 256, 512)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    up = net.node("Resize", coarse, "", scales, mode="nearest")
    middle = stage(net.node("Concat", up, middle, axis=1), 128, 384, 1)
    up = net.node("Resize", middle, "", scales, mode="nearest")
    fine = stage(net.node("Concat", up, fine, axis=1), 64, 192, 1)
    heads = [net.node("Sigmoid", net.conv(silu(x, 64, c, 3), 85, 64, [1, 1])) for x, c in ((fine, 64), (middle, 128), (coarse, 256))]
    return net.model(*heads)


def vocoder(frames=40):
    """Sound from a spectrogram: transposed convolutions, dilated residual blocks, LeakyRelu, Tanh. The length is free."""
    net = Network("vocoder", [1, 80, "frames"])
    x, c = net.conv("x", 128, 80, [7], pads=[3, 3]), 128
    for stride in (8, 4, 2):
        x = net.node("LeakyRelu", x, alpha=0.1)
        x = net.conv(x, c // 2, c, [2 * stride], op="ConvTranspose", strides=[stride], pads=[stride // 2] * 2)
        c //= 2
        for kernel in (3, 7):
            for dilation in (1, 3):
                y = net.node("LeakyRelu", x, alpha=0.1)
                y = net.conv(y, c, c, [kernel], dilations=[dilation], pads=[dilation * (kernel // 2)] * 2)
                y = net.node("LeakyRelu", y, alpha=0.1)
                x = net.node("Add", net.conv(y, c, c, [kernel], pads=[kernel // 2] * 2), x)
    x = net.node("LeakyRelu", x, alpha=0.01)
    return net.model(net.node("Tanh", net.conv(x, 1, c, [7], pads=[3, 3])))


def unet3d(size=24):
    """A segmentation of volumes: instance norm apart, PRelu, strided and transposed convolutions, skips."""
    net = Network("unet3d", [1, 2, size, size, size])

    def block(x, m, c):
        for before in (c, m):
            x = net.conv(x, m, before, [3] * 3, pads=[1] * 6)
            ones, zeros = np.ones(m, np.float32), np.zeros(m, np.float32)
            x = net.node("InstanceNormalization", x, net.constant(ones), net.constant(zeros))
            x = net.node("PRelu", x, net.constant(np.array([0.25], np.float32)))
        return x

    first = block("x", 8, 2)
    second = block(net.conv(first, 16, 8, [2] * 3, strides=[2] * 3), 16, 16)
    third = block(net.conv(second, 32, 16, [3] * 3, strides=[2] * 3, pads=[1] * 6), 32, 32)
    up = net.conv(third, 16, 32, [2] * 3, op="ConvTranspose", strides=[2] * 3)
    second = block(net.node("Concat", up, second, axis=1), 16, 32)
    up = net.conv(second, 8, 16, [2] * 3, op="ConvTranspose", strides=[2] * 3)
    first = block(net.node("Concat", up, first, axis=1), 8, 16)
    return net.model(net.conv(first, 3, 8, [1] * 3))


def silu(net, x):
    return net.node("Mul", x, net.node("Sigmoid", x))


def hard_swish_in_parts(net, x):
    """As Paddle's exporter spells it for opsets below 14."""
    clipped = net.node("Clip", net.node("Add", x, net.floats(3)), net.floats(0), net.floats(6))
    return net.node("Div", net.node("Mul", x, clipped), net.floats(6))


def gelu(net, x):
    """As PyTorch's exporter spells it for opsets below 20."""
    erf = net.node("Erf", net.node("Div", x, net.floats(np.sqrt(2))))
    return net.node("Mul", net.node("Mul", x, net.node("Add", erf, net.floats(1))), net.floats(0.5))


class Published(Network):
    """A published network as exporters write it, with batch normalisation folded into the weights.

    Each node is run by onnxruntime as soon as it is made, on several random images. So shapes are known, and weights are scaled and biases chosen such that
    each channel has about the mean and the variance that batch normalisation would give it. Values keep their size however deep the network is, and depend on
    the image.
    """

    IMAGES = 2
    ACTIVATIONS = {
        "relu": lambda net, x: net.node("Relu", x), "silu": silu, "gelu": gelu, "sigmoid": lambda net, x: net.node("Sigmoid", x),
        "hard_swish": lambda net, x: net.node("HardSwish", x), "hard_swish_in_parts": hard_swish_in_parts,
        "hard_sigmoid": lambda net, x: net.node("HardSigmoid", x, alpha=1 / 6), None: lambda net, x: x,
    }

    def __init__(self, name, *x_shape):
        super().__init__(name, [1, *x_shape])
        self.values = {"x": self.rng.standard_normal([self.IMAGES, *x_shape], np.float32)}

    def constant(self, value):
        name = super().constant(value)
        self.values[name] = np.asarray(value)
        return name

    def floats(self, value):
        return self.constant(np.asarray(value, np.float32))

    def integers(self, *values):
        return self.constant(np.array(values, np.int64))

    def node(self, op, *inputs, **attributes):
        name = super().node(op, *inputs, **attributes)
        self.run(self.nodes[-1])
        return name

    def run(self, node):
        import onnxruntime as ort

        feeds = {name: self.values[name] for name in node.input if name}
        last = node.input[-1]
        if node.op_type in ("Reshape", "Resize") and feeds[last].dtype == np.int64:
            # A shape, which the graph has for one image.
            feeds[last] = np.array([self.IMAGES, *feeds[last][1:]])
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
        model = helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.values.update(zip(node.output, session.run(None, feeds)))

    def channels(self, x):
        return self.values[x].shape[1]

    def weighted(self, op, x, w, kind=None, **attributes):
        """A node with random weights of this shape and a bias, and an activation."""
        self.values["w"] = self.rng.standard_normal(w, np.float32)
        self.run(helper.make_node(op, [x, "w"], ["y"], **attributes))
        # The channels of what MatMul reads and writes are the last axis.
        y = self.values["y"] if op == "MatMul" else np.moveaxis(self.values["y"], 1, -1)
        rows = y.reshape(-1, y.shape[-1]).astype(np.float64)
        # A single row of each image says little about single channels. Nor are channels scaled up that hardly vary.
        mean, variance = (rows.mean(0), rows.var(0)) if len(rows) > self.IMAGES else (rows.mean(), rows.var())
        scale = 1 / np.sqrt(variance + 0.1 * np.mean(rows**2)) * np.ones(y.shape[-1])
        # Where as many elements are negative as positive, each layer with an activation amplifies rounding errors of those before it, in random networks.
        bias = self.floats(self.rng.normal(1 if kind else 0, 0.2, y.shape[-1]) - mean * scale)
        if op == "MatMul":
            y = self.node("Add", self.node(op, x, self.floats(self.values["w"] * scale)), bias)
        else:
            y = self.node(op, x, self.floats((self.values["w"].T * scale).T), bias, **attributes)
        return self.ACTIVATIONS[kind](self, y)

    def layer(self, x, m, k=1, s=1, kind=None, group=1, d=1, pad=None):
        """A Conv of two axes whose padding keeps the size, and an activation. The stride may be one for each axis."""
        strides, pads = [s, s] if isinstance(s, int) else s, [k // 2 * d if pad is None else pad] * 4
        return self.weighted("Conv", x, [m, self.channels(x) // group, k, k], kind, group=group, strides=strides, dilations=[d, d], pads=pads)

    def linear(self, x, m, kind=None):
        """A layer over the last axis."""
        return self.weighted("MatMul", x, [self.values[x].shape[-1], m], kind)

    def concat(self, *parts, axis=1):
        return self.node("Concat", *parts, axis=axis)

    def split(self, x, *sizes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [x, self.integers(*sizes)], names, axis=1))
        self.run(self.nodes[-1])
        return names

    def pool(self, x, k, s=1):
        """The largest of k x k elements: with padding if k is odd, of a size that is rounded up if it is even."""
        return self.node("MaxPool", x, kernel_shape=[k, k], strides=[s, s], pads=[k // 2 * (k % 2)] * 4, ceil_mode=1 - k % 2)

    def twice(self, x):
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", x, "", self.floats([1, 1, 2, 2]), **mode)

    def transpose(self, x, *perm):
        return self.node("Transpose", x, perm=perm)

    def reshape(self, x, *shape):
        return self.node("Reshape", x, self.integers(*shape))

    def squeeze(self, x, c, kind, gate):
        """Squeeze and excite: each channel times a number that its mean and the others' decide."""
        weights = self.layer(self.layer(self.node("GlobalAveragePool", x), c, kind=kind), self.channels(x), kind=gate)
        return self.node("Mul", x, weights)

    def inverted(self, x, expanded, m, k, s, kind, squeeze=None):
        """An inverted residual: more channels, a depthwise layer, squeeze and excite, fewer channels."""
        c = self.channels(x)
        y = self.layer(x, expanded, kind=kind) if expanded != c else x
        y = self.layer(y, expanded, k, s, kind, group=expanded)
        y = self.layer(self.squeeze(y, *squeeze) if squeeze else y, m)
        return self.node("Add", y, x) if s == 1 and m == c else y

    def normalise(self, x):
        """LayerNormalization over the last axis."""
        c = self.values[x].shape[-1]
        scale, bias = self.floats(self.rng.uniform(0.5, 1.5, c)), self.floats(self.rng.standard_normal(c) * 0.1)
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def classes(self, x, *layers):
        """Layers on a value for each channel, as the networks of torchvision end."""
        x = self.node("Flatten", x)
        for m, kind in layers:
            x = self.weighted("Gemm", x, [m, self.channels(x)], kind, transB=1)
        return self.model(x)


# Of each block: kernel, expanded channels, channels, squeeze and excite, hard swish (or Relu), stride.
MOBILENET_V3 = {
    "small": [
        (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1), (5, 240, 40, 1, 1, 1),
        (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1), (5, 576, 96, 1, 1, 1),
    ],
    "large": [
        (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1),
        (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1),
        (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
    ],
}


def mobilenetv3(kind, size=96):
    """A classifier of small devices: hard swish, squeeze and excite with a hard sigmoid."""
    net, hidden = Published(f"mobilenetv3-{kind}", 3, size, size), {"small": 1024, "large": 1280}[kind]
    x = net.layer("x", 16, 3, 2, "hard_swish")
    for k, expanded, m, squeeze, hard, s in MOBILENET_V3[kind]:
        reduced = max(8, (expanded // 4 + 4) // 8 * 8)
        x = net.inverted(x, expanded, m, k, s, "hard_swish" if hard else "relu", (reduced, "relu", "hard_sigmoid") if squeeze else None)
    x = net.layer(x, 6 * net.channels(x), kind="hard_swish")
    return net.classes(net.node("GlobalAveragePool", x), (hidden, "hard_swish"), (1000, None))


def efficientnet(size=96):
    """A classifier, version B0: SiLU, squeeze and excite with a sigmoid."""
    net = Published("efficientnet-b0", 3, size, size)
    x = net.layer("x", 32, 3, 2, "silu")
    for expand, k, s, m, n in [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]:
        for block in range(n):
            c = net.channels(x)
            x = net.inverted(x, expand * c, m, k, 1 if block else s, "silu", (c // 4, "silu", "sigmoid"))
    x = net.layer(x, 1280, kind="silu")
    return net.classes(net.node("GlobalAveragePool", x), (1000, None))


def convnext(size=64):
    """A classifier, version Tiny: 7x7 depthwise layers, and layers over the channels of channels last."""
    net = Published("convnext-tiny", 3, size, size)
    last, first = lambda x: net.transpose(x, 0, 2, 3, 1), lambda x: net.transpose(x, 0, 3, 1, 2)
    norm = lambda x: first(net.normalise(last(x)))
    x = norm(net.layer("x", 96, 4, 4, pad=0))
    for c, n in [(96, 3), (192, 3), (384, 9), (768, 3)]:
        x = x if c == 96 else net.layer(norm(x), c, 2, 2, pad=0)
        for _ in range(n):
            y = net.normalise(last(net.layer(x, c, 7, group=c)))
            y = first(net.linear(net.linear(y, 4 * c, "gelu"), c))
            x = net.node("Add", net.node("Mul", net.floats(net.rng.uniform(0.2, 0.6, [c, 1, 1])), y), x)
    return net.classes(norm(net.node("GlobalAveragePool", x)), (1000, None))


def yolov8n(size=160):
    """A detector as Ultralytics exports it. The last Concat is left out: beside boxes in pixels, errors of scores would be hidden."""
    net = Published("yolov8n", 3, size, size)
    conv = lambda x, m, k=1, s=1: net.layer(x, m, k, s, "silu")

    def stage(x, m, n, shortcut=False):
        """Parts of a split, each behind the one before, joined."""
        parts = list(net.split(conv(x, m), m // 2, m // 2))
        for _ in range(n):
            y = conv(conv(parts[-1], m // 2, 3), m // 2, 3)
            parts.append(net.node("Add", parts[-1], y) if shortcut else y)
        return conv(net.concat(*parts), m)

    x = stage(conv(conv("x", 16, 3, 2), 32, 3, 2), 32, 1, True)
    fine = stage(conv(x, 64, 3, 2), 64, 2, True)
    middle = stage(conv(fine, 128, 3, 2), 128, 2, True)
    pools = [conv(stage(conv(middle, 256, 3, 2), 256, 1, True), 128)]
    for _ in range(3):
        pools.append(net.pool(pools[-1], 5))
    coarse = conv(net.concat(*pools), 256)
    middle = stage(net.concat(net.twice(coarse), middle), 128, 1)
    fine = stage(net.concat(net.twice(middle), fine), 64, 1)
    middle = stage(net.concat(conv(fine, 64, 3, 2), middle), 128, 1)
    coarse = stage(net.concat(conv(middle, 128, 3, 2), coarse), 256, 1)
    levels, anchors, strides = [], [], []
    for x, stride in (fine, 8), (middle, 16), (coarse, 32):
        heads = [net.layer(conv(conv(x, m, 3), m, 3), m) for m in (64, 80)]
        levels.append(net.reshape(net.concat(*heads), 1, 144, -1))
        row = np.arange(size // stride) + 0.5
        anchors.append(np.stack(np.meshgrid(row, row)).reshape(1, 2, -1))
        strides.append(np.full([1, 1, len(row) ** 2], stride))
    anchors, strides = (net.floats(np.concatenate(parts, axis=-1)) for parts in (anchors, strides))
    sides, scores = net.split(net.concat(*levels, axis=2), 64, 80)
    # Each side of a box is the mean of a distribution over sixteen distances.
    distribution = net.node("Softmax", net.transpose(net.reshape(sides, 1, 4, 16, -1), 0, 2, 1, 3), axis=1)
    sides = net.reshape(net.node("Conv", distribution, net.floats(np.arange(16).reshape(1, 16, 1, 1))), 1, 4, -1)
    before, behind = net.split(sides, 2, 2)
    begin, end = net.node("Sub", anchors, before), net.node("Add", anchors, behind)
    centre = net.node("Div", net.node("Add", begin, end), net.floats(2))
    boxes = net.node("Mul", net.concat(centre, net.node("Sub", end, begin)), strides)
    return net.model(boxes, net.node("Sigmoid", scores))


def yolox(size=160):
    """A detector of small devices, version Nano: depthwise layers, SiLU, a first layer on every second pixel."""
    net = Published("yolox-nano", 3, size, size)
    conv = lambda x, m, k=1, s=1, group=1: net.layer(x, m, k, s, "silu", group)
    depthwise = lambda x, m, s=1: conv(conv(x, net.channels(x), 3, s, net.channels(x)), m)

    def stage(x, m, n, shortcut=False):
        left, right = conv(x, m // 2), conv(x, m // 2)
        for _ in range(n):
            y = depthwise(conv(left, m // 2), m // 2)
            left = net.node("Add", y, left) if shortcut else y
        return conv(net.concat(left, right), m)

    def every_second(row, column):
        x = "x"
        for axis, start in (2, row), (3, column):
            x = net.node("Slice", x, net.integers(start), net.integers(2**63 - 1), net.integers(axis), net.integers(2))
        return x

    x = net.concat(*(every_second(row, column) for row, column in [(0, 0), (1, 0), (0, 1), (1, 1)]))
    x = stage(depthwise(conv(x, 16, 3), 32, 2), 32, 1, True)
    fine = stage(depthwise(x, 64, 2), 64, 3, True)
    middle = stage(depthwise(fine, 128, 2), 128, 3, True)
    x = conv(depthwise(middle, 256, 2), 128)
    coarse = stage(conv(net.concat(x, *(net.pool(x, k) for k in (5, 9, 13))), 256), 256, 1)
    coarse = conv(coarse, 128)
    middle = conv(stage(net.concat(net.twice(coarse), middle), 128, 1), 64)
    fine = stage(net.concat(net.twice(middle), fine), 64, 1)
    middle = stage(net.concat(depthwise(fine, 64, 2), middle), 128, 1)
    coarse = stage(net.concat(depthwise(middle, 128, 2), coarse), 256, 1)
    levels = []
    for x in fine, middle, coarse:
        x = conv(x, 64)
        classes, boxes = (depthwise(depthwise(x, 64), 64) for _ in range(2))
        parts = net.layer(boxes, 4), net.layer(boxes, 1, kind="sigmoid"), net.layer(classes, 80, kind="sigmoid")
        levels.append(net.reshape(net.concat(*parts), 1, 85, -1))
    return net.model(net.transpose(net.concat(*levels, axis=2), 0, 2, 1))


def u2netp(size=100):
    """A segmentation, the small version: U-Nets of thin layers in a U-Net, dilations, pooling of odd sizes, linear Resize, seven outputs."""
    net = Published("u2netp", 3, size, size)
    conv = lambda x, m, d=1: net.layer(x, m, 3, kind="relu", d=d)

    def resize(x, like):
        sizes = net.integers(1, net.channels(x), *net.values[like].shape[2:])
        return net.node("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")

    def inner(x, m, depth, d):
        """A U-Net with 16 channels inside. With a dilation it doubles that instead of pooling."""
        y = conv(x, 16, d or 1)
        if depth == 0:
            z = conv(y, 16, 2 * (d or 1))
        elif d:
            z = inner(y, 16, depth - 1, 2 * d)
        else:
            z = resize(inner(net.pool(y, 2, 2), 16, depth - 1, d), y)
        return conv(net.concat(z, y), m, d or 1)

    def unit(x, depth, d):
        x = conv(x, 64)
        return net.node("Add", inner(x, 64, depth, d), x)

    sides = []

    def outer(x, units):
        """The stages from this one on, with what each of them adds to the outputs."""
        y = unit(x, *units[0])
        if len(units) > 1:
            z = resize(outer(net.pool(y, 2, 2), units[1:]), y)
            y = unit(net.concat(z, y), *units[0])
        sides.insert(0, net.layer(y, 1, 3))
        return y

    # How often each stage pools, and whether it dilates instead.
    outer("x", [(5, 0), (4, 0), (3, 0), (2, 0), (2, 1), (2, 1)])
    sides = [sides[0], *(resize(side, sides[0]) for side in sides[1:])]
    return net.model(*(net.node("Sigmoid", y) for y in (net.layer(net.concat(*sides), 1), *sides)))


def recogniser(width=96):
    """Text from a line of 48 pixels: the convolutions of PaddleOCR's MobileNetV1Enhance, to a height of one, and a layer over 97 characters."""
    net, kind = Published("recogniser", 3, 48, width), "hard_swish_in_parts"
    x = net.layer("x", 16, 3, 2, kind)
    # Channels, kernel, strides, squeeze and excite.
    blocks = [(32, 3, 1, 0), (64, 3, 1, 0), (64, 3, 1, 0), (128, 3, (2, 1), 0), (128, 3, 1, 0), (256, 3, (2, 1), 0)]
    blocks += [(256, 5, 1, 0)] * 5 + [(512, 5, (2, 1), 1), (512, 5, (1, 2), 1)]
    for m, k, s, squeeze in blocks:
        c = net.channels(x)
        x = net.layer(x, c, k, s, kind, group=c)
        x = net.layer(net.squeeze(x, c // 4, "relu", "hard_sigmoid") if squeeze else x, m, kind=kind)
    x = net.node("Squeeze", net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), net.integers(2))
    return net.model(net.node("Softmax", net.linear(net.transpose(x, 0, 2, 1), 97), axis=2))


LIGHT = {os.path.basename(path)[6:-5]: path for path in sorted(glob.glob(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light/*.onnx")))}


def light(name):
    """A network of the `onnx` package, whose large tensors are made by nodes, with random weights instead."""
    rng, model = np.random.default_rng(3), onnx.load(LIGHT[name])
    graph = model.graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def weight(shape, name):
        shape = [int(size) for size in shape]
        if len(shape) >= 2:
            value = rng.standard_normal(shape) * np.sqrt(2 / max(1, np.prod(shape[1:])))
        elif "var" in name or "riv" in name:
            value = rng.uniform(0.5, 1.5, shape)
        elif "scale" in name or "_s_" in name:
            value = rng.uniform(0.8, 1.2, shape)
        else:
            value = rng.standard_normal(shape) * 0.1
        return numpy_helper.from_array(value.astype(np.float32), name)

    nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in known:
            graph.initializer.append(weight(known[node.input[0]], node.output[0]))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    dims = lambda value: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    data = [value for value in graph.input if len(dims(value)) == 4 and dims(value)[1] == 3]
    have = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(weight(dims(value), value.name) for value in graph.input if value not in data and value.name not in have and value.type.tensor_type.elem_type == 1)
    del graph.input[:]
    graph.input.extend(data)
    model.ir_version = max(model.ir_version, 7)
    return model


def of_tools():
    """The networks of tools/models.py, by name."""
    path = pathlib.Path(__file__).parents[3] / "tools/models.py"
    spec = importlib.util.spec_from_file_location("tools_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOLS = of_tools()
PUBLISHED = {
    **{f"mobilenetv3-{kind}": functools.partial(mobilenetv3, kind) for kind in MOBILENET_V3},
    "efficientnet-b0": efficientnet,
    "convnext-tiny": convnext,
    "yolov8n": yolov8n,
    "yolox-nano": yolox,
    "u2netp": u2netp,
    "recogniser": recogniser,
}
NETWORKS = {
    **{f"light-{name}": (lambda name=name: light(name)) for name in LIGHT},
    **{f"tools-{name}": getattr(TOOLS, name) for name in ("resnet50", "mobilenetv2", "unet")},
    "yolo": yolo,
    "vocoder": vocoder,
    "unet3d": unet3d,
    **PUBLISHED,
}
"""All networks by name. tools/compare measures them too."""
