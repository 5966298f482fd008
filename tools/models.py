"""Writes models with random weights to try `convoke-tools profile` on: ResNet-50, MobileNet v2, U-Net.

    python -m pip install onnx==1.23.2
    python tools/models.py DIR            # resnet50.onnx, mobilenetv2.onnx, unet.onnx
    python tools/models.py DIR --plain    # without the shapes of the values between nodes

The graphs have the convolutions, activations and additions of the networks. Normalisation is assumed to be folded into the weights.
"""

import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """A graph that is built node by node. Every method takes and returns names of values."""

    def __init__(self, name, batch, channels, size):
        self.name, self.nodes, self.weights = name, [], []
        self.random = np.random.default_rng(0)
        self.channels = {"x": channels}
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, size, size])

    def add(self, op, inputs, channels, **attributes):
        y = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [y], name=y, **attributes))
        self.channels[y] = channels
        return y

    def weight(self, *shape):
        name = f"w_{len(self.weights)}"
        values = self.random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, x, out, kernel, stride=1, group=1):
        c, pad = self.channels[x], kernel // 2
        inputs = [x, self.weight(out, c // group, kernel, kernel), self.weight(out)]
        return self.add("Conv", inputs, out, strides=[stride] * 2, pads=[pad] * 4, group=group)

    def up(self, x, out):
        inputs = [x, self.weight(self.channels[x], out, 2, 2), self.weight(out)]
        return self.add("ConvTranspose", inputs, out, strides=[2, 2])

    def relu(self, x):
        return self.add("Relu", [x], self.channels[x])

    def pool(self, x, kernel, stride):
        pad = (kernel - 1) // 2
        return self.add("MaxPool", [x], self.channels[x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def sum(self, x, y):
        return self.add("Add", [x, y], self.channels[x])

    def concat(self, x, y):
        return self.add("Concat", [x, y], self.channels[x] + self.channels[y], axis=1)

    def model(self, y):
        output = helper.make_tensor_value_info(y, TensorProto.FLOAT, [None] * 4)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.weights)
        # The version of opset 22: onnxruntime refuses the newest ones.
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def resnet50():
    b = Builder("resnet50", 1, 3, 224)
    y = b.pool(b.relu(b.conv("x", 64, 7, 2)), 3, 2)
    for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for block in range(blocks):
            s = stride if block == 0 else 1
            skip = b.conv(y, 4 * width, 1, s) if block == 0 else y
            z = b.relu(b.conv(b.relu(b.conv(y, width, 1)), width, 3, s))
            y = b.relu(b.sum(b.conv(z, 4 * width, 1), skip))
    return b.model(y)


def mobilenetv2():
    b = Builder("mobilenetv2", 1, 3, 224)
    y = b.relu(b.conv("x", 32, 3, 2))
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, out, blocks, stride in stages:
        for block in range(blocks):
            s, c = (stride if block == 0 else 1), b.channels[y]
            z = y if expand == 1 else b.relu(b.conv(y, expand * c, 1))
            z = b.relu(b.conv(z, expand * c, 3, s, expand * c))
            z = b.conv(z, out, 1)
            y = b.sum(z, y) if s == 1 and c == out else z
    return b.model(b.relu(b.conv(y, 1280, 1)))


def unet():
    b = Builder("unet", 1, 1, 256)
    twice = lambda x, out: b.relu(b.conv(b.relu(b.conv(x, out, 3)), out, 3))
    y, skips = "x", []
    for width in (64, 128, 256, 512):
        y = twice(y, width)
        skips.append(y)
        y = b.pool(y, 2, 2)
    y = twice(y, 1024)
    for width in (512, 256, 128, 64):
        y = twice(b.concat(skips.pop(), b.up(y, width)), width)
    return b.model(b.conv(y, 2, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--plain", action="store_true", help="leave the shapes of values between nodes out")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    for make in (resnet50, mobilenetv2, unet):
        model = make()
        onnx.checker.check_model(model)
        if not options.plain:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        path = options.dir / f"{make.__name__}.onnx"
        onnx.save(model, path)
        print(path)


if __name__ == "__main__":
    main()
