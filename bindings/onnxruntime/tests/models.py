"""Networks of three kinds that ONNX's own set lacks, and that set, with random weights."""

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
NETWORKS = {
    **{f"light-{name}": (lambda name=name: light(name)) for name in LIGHT},
    **{f"tools-{name}": getattr(TOOLS, name) for name in ("resnet50", "mobilenetv2", "unet")},
    "yolo": yolo,
    "vocoder": vocoder,
    "unet3d": unet3d,
}
"""All networks by name. tools/compare measures them too."""
