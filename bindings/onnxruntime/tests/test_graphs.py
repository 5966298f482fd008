"""Small random graphs: with convoke they give what onnxruntime gives alone.

    python test_graphs.py 17       # runs the graph of seed 17, and prints it
    python test_graphs.py 0 100    # runs those of the seeds from 0 to 99

Each graph is made twice: in its element type, which runs with convoke, and in float, which runs on
onnxruntime's own provider. The second one also computes a size for each element, by the same operators
on absolute values. What is allowed is this size times the rounding errors on the way to the element.
"""

import collections
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime
from conftest import layers, options, session
from onnx import AttributeProto, TensorProto, helper, numpy_helper, printer

COUNT = int(os.environ.get("CONVOKE_GRAPHS", 3000))
LEVELS = [getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}") for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")]
KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}
# Half the distance of 1 to the next number.
FLOAT_UNIT = 2.0**-24
# Rounding errors of Winograd's transforms, in terms of a sum of the largest X within the reach of a tile.
WINOGRAD_TERMS = 300
REACH = 15
# What onnxruntime computes of double: the other operators would make it refuse the model.
FLOAT_ONLY = {"HardSigmoid", "LeakyRelu", "PRelu", "LRN", "Max", "Div", "SqueezeExcite"}
# These are drawn in float alone, without odd constants.
PLAIN_ONLY = {"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "Resize", "Upsample", "Gelu", "Mish", "Softplus", "HardSwish", "SqueezeExcite"}
# It makes NaN of infinity in PRelu, does not check what ConvTranspose reads, and gives anything for an output that is an input.
IS_OLD = onnxruntime.__version__.startswith("1.24.")
DAMAGES = ("channels", "bias", "group", "kernel")


# A tensor of the graph: its shapes in the two runs, and the error of its elements in units of their size.
Value = collections.namedtuple("Value", "name shapes error")


class Graph:
    def __init__(self, seed):
        self.seed, rng = seed, np.random.default_rng(seed)
        self.rng, self.opset = rng, int(rng.integers(7, 23))
        self.kind = self.pick([np.float32] * 3 + [np.float64, np.float16])
        self.unit = float(np.finfo(self.kind).eps) / 2
        # A few graphs have constants that are not finite or make products overflow, and a few are not valid.
        self.odd = self.pick([np.nan, np.inf, -np.inf, 1e30, 1e-30, -1e20]) if self.chance(0.08) else None
        self.damage = self.pick(DAMAGES) if self.chance(0.04) else None
        # Of double, onnxruntime's extended optimisations make operators that it has for float alone.
        self.levels = LEVELS[: 1 if self.odd is not None else 2 if self.kind is np.float64 else 4]
        self.is_plain = self.kind is np.float32 and self.odd is None
        self.strict = self.odd is not None or self.chance(0.5)
        self.nodes, self.sizes, self.constants, self.inputs, self.values = [], [], {}, {}, []
        self.rank = self.pick([1, 2, 2, 2, 2, 3])
        self.dynamic = self.pick([(), (), (0,), range(2, 2 + self.rank), (0, *range(2, 2 + self.rank))])
        self.feeds = [{}, {}]
        first = (int(rng.integers(1, 3)), int(rng.integers(1, 25 if self.chance(0.2) else 9)), *map(int, rng.integers(3, 13, self.rank)))
        second = tuple(size + int(rng.integers(0, 6)) if axis in self.dynamic else size for axis, size in enumerate(first))
        self.input([first, second], "d")
        if self.chance(0.4):
            # What is unknown before a run may be broadcast in one.
            ones = self.pick([(), self.dynamic])
            shapes = [tuple(1 if axis in ones else size for axis, size in enumerate(shape)) for shape in (first, second)]
            self.input(shapes, self.pick(["d", "e", None]) if not ones else self.pick(["e", None]))
        for _ in range(int(rng.integers(2, 9))):
            self.add()
        self.outputs = [value for value in self.values[:-1] if value.name not in self.inputs and self.chance(0.1)] + [self.values[-1]]

    def pick(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share):
        return self.rng.random() < share

    def normal(self, shape, scale=1.0):
        return self.rng.standard_normal(shape) * scale

    def rounded(self, value):
        """As the graph's element type has it, in float."""
        return np.asarray(value).astype(self.kind).astype(np.float32)

    def input(self, shapes, prefix):
        """An input whose unknown sizes have names that begin so, or none."""
        name, dims = f"x{len(self.inputs)}", list(shapes[0])
        for axis in self.dynamic:
            dims[axis] = prefix and f"{prefix}{axis}"
        self.inputs[name] = dims
        for feeds, shape in zip(self.feeds, shapes):
            feeds[name] = self.rounded(self.normal(shape))
        self.sizes.append(helper.make_node("Abs", [name], [f"|{name}|"]))
        self.values.append(Value(name, shapes, 0.0))
        return self.values[-1]

    def constant(self, value):
        """A constant of the element type, and now and then an input that stands for one."""
        value, name = np.array(value, np.float64), f"k{len(self.constants)}"
        if value.size and self.odd is not None and self.chance(0.3):
            value.ravel()[int(self.rng.integers(value.size))] = self.odd
        value = self.rounded(value)
        self.constants[name], self.constants[f"|{name}|"] = value, np.abs(value)
        if self.chance(0.04):
            del self.constants[name]
            self.inputs[name] = value.shape
            for feeds in self.feeds:
                feeds[name] = value
        return name

    def node(self, op, values, shapes, terms, others=(), **attributes):
        """A node of values and, behind them, constants; `terms` is the number of terms of its sums."""
        out, ins = f"v{len(self.nodes)}", [value.name for value in values]
        shapes = [tuple(map(int, shape)) for shape in shapes]
        attributes = {name: value if isinstance(value, (str, float)) else np.array(value).tolist() for name, value in attributes.items()}
        self.nodes.append(helper.make_node(op, [*ins, *others], [out], **attributes))
        ins = [f"|{name}|" for name in ins] + [f"|{name}|" if name.startswith("k") else name for name in others]
        if op in ("Conv", "ConvTranspose") and not self.strict:
            # A tile's error is that of its largest element.
            self.sizes.append(helper.make_node("MaxPool", ins[:1], [f"|{out}| of tiles"], kernel_shape=[REACH] * self.rank, pads=[REACH // 2] * 2 * self.rank))
            ins[0], terms = f"|{out}| of tiles", terms + WINOGRAD_TERMS
        self.sizes.append(helper.make_node(op, ins, [f"|{out}|"], **attributes))
        errors = [value.error for value in values]
        error = sum(errors) if op == "Mul" else max(errors)
        self.values.append(Value(out, shapes, error + 2 * terms * FLOAT_UNIT + self.unit))
        return self.values[-1]

    def integers(self, value):
        name = f"i{len(self.constants)}"
        self.constants[name] = np.array(value, np.int64)
        return name

    def same(self, op, x, terms, others=(), **attributes):
        return self.node(op, [x], x.shapes, terms, others, **attributes)

    def size(self, op, *inputs):
        """What computes the last value's size instead."""
        self.sizes[-1] = helper.make_node(op, inputs, [f"|{self.values[-1].name}|"])
        return self.values[-1]

    def add(self):
        # Mostly the last value, so that there are chains.
        x = self.values[-1] if self.chance(0.85) else self.pick(self.values)
        ops = [op for op in OPERATORS if self.kind is not np.float64 or op not in FLOAT_ONLY]
        op = self.pick([op for op in ops for _ in range(OPERATORS[op])])
        getattr(self, op if self.is_plain or op not in PLAIN_ONLY else "Relu")(x)

    def window(self, x, is_dilated=True):
        """Kernel, strides, pads and dilations on which every image has an output, and its sizes."""
        draw = lambda low, high, share: self.rng.integers(low, high, self.rank) if self.chance(share) else np.full(self.rank, low)
        while True:
            kernel, strides, dilations = draw(1, 4, 0.9), draw(1, 3, 0.3), draw(1, 3, 0.2 * is_dilated)
            begin, end = draw(0, 3, 0.6) % kernel, draw(0, 3, 0.4) % kernel
            sizes = [(np.array(shape[2:]) + begin + end - dilations * (kernel - 1) - 1) // strides + 1 for shape in x.shapes]
            if np.min(sizes) > 0:
                attributes = {"kernel_shape": kernel, "strides": strides, "pads": np.array([*begin, *end])}
                return attributes | ({"dilations": dilations} if is_dilated else {}), sizes

    def Conv(self, x, is_transposed=False):
        damage = None if is_transposed and IS_OLD else self.damage
        attributes, sizes = self.window(x)
        if not is_transposed and self.chance(0.4):
            # Of X's shape, so that there is something to add.
            kernel = self.rng.choice([1, 3], self.rank)
            attributes, sizes = {"kernel_shape": kernel, "pads": np.tile(kernel // 2, 2)}, [shape[2:] for shape in x.shapes]
        channels, kernel = x.shapes[0][1], attributes["kernel_shape"]
        group = self.pick([g for g in (1, 2, 3, 4, 8) if channels % g == 0]) if self.chance(0.3) else 1
        m = channels if "strides" not in attributes or self.chance(0.2) else int(self.rng.integers(1, 7)) * group
        if is_transposed:
            grown = [attributes["strides"] * (np.array(shape[2:]) - 1) + attributes["dilations"] * (kernel - 1) + 1 for shape in x.shapes]
            attributes["pads"] *= int(np.min(grown)) > 2 * max(attributes["pads"])
            sizes = [size - attributes["pads"].reshape(2, -1).sum(0) for size in grown]
        shape = [channels, m // group, *kernel] if is_transposed else [m, channels // group, *kernel]
        terms = channels // group * math.prod(kernel)
        shape[0 if is_transposed else 1] += damage == "channels"
        shape[-1] += 30 * (damage == "kernel")
        others = [self.constant(self.normal(shape, terms**-0.5))]
        if self.chance(0.6):
            others.append(self.constant(self.normal(m + (damage == "bias"))))
        shapes = [(x_shape[0], m, *size) for x_shape, size in zip(x.shapes, sizes)]
        attributes |= {"kernel_shape": shape[2:], "group": group + (damage == "group")}
        return self.node("ConvTranspose" if is_transposed else "Conv", [x], shapes, terms + 2, others, **attributes)

    def ConvTranspose(self, x):
        return self.Conv(x, is_transposed=True) if max(x.shapes[1][2:]) < 20 else self.Conv(x)

    def BatchNormalization(self, x):
        # (|x| + |mean|) * |scale| / root(var) + |B|
        others = [self.constant(self.normal(x.shapes[0][1])) for _ in range(3)] + [self.constant(self.rng.uniform(0.5, 2, x.shapes[0][1]))]
        self.constants[f"|{others[2]}|"] *= -1
        self.constants[f"|{others[3]}|"] = self.constants.get(others[3], self.feeds[0].get(others[3]))
        return self.same("BatchNormalization", x, 12, others, epsilon=self.pick([1e-5, 1e-2]))

    def pair(self, op, x):
        others = [(value, shapes) for value in self.values if value is not x and (shapes := broadcast(value.shapes, x.shapes))]
        if not others or self.chance(0.4):
            # One number for each channel, for all, or for each element of the last axis.
            channels, row, ones = x.shapes[0][1], {shape[-1] for shape in x.shapes}, [1] * self.rank
            shape = self.pick([[channels, *ones], [1, channels, *ones], [1], [], [1, 1, *ones], [*row] if len(row) == 1 else [1]])
            return self.node(op, [x], x.shapes, 1, [self.constant(self.normal(shape))])
        other, shapes = self.pick(others)
        return self.node(op, [x, other] if self.chance(0.5) else [other, x], shapes, 1)

    Add = lambda self, x: self.pair("Add", x)
    Mul = lambda self, x: self.pair("Mul", x)

    def Sum(self, x):
        same = [value for value in self.values if value.shapes == x.shapes]
        return self.node("Sum", [x, *(self.pick(same) for _ in range(self.pick([0, 1, 1, 2])))], x.shapes, 3)

    def Concat(self, x):
        free = lambda value: [(shape[0], *shape[2:]) for shape in value.shapes]
        same = [value for value in self.values if free(value) == free(x)]
        parts = [x, *(self.pick(same) for _ in range(int(self.rng.integers(0, 3))))]
        self.rng.shuffle(parts)
        channels = sum(value.shapes[0][1] for value in parts)
        if channels < 20:
            self.node("Concat", parts, [(s[0], channels, *s[2:]) for s in x.shapes], 0, axis=1 if self.opset < 11 or self.chance(0.7) else -1 - self.rank)

    def FusedConv(self, x):
        """As onnxruntime writes it into a model that it has optimised, with an activation and perhaps a tensor to add."""
        self.Conv(x)
        if not self.is_plain:
            return self.values[-1]
        made, node, size = self.values[-1], self.nodes[-1], self.sizes[-1]
        node.op_type, node.domain = "FusedConv", "com.microsoft"
        name, numbers = self.pick([("Relu", []), ("LeakyRelu", [0.1]), ("Tanh", []), ("Clip", [-1.0, 0.5])])
        node.attribute.extend([helper.make_attribute("activation", name), helper.make_attribute("activation_params", numbers, attr_type=AttributeProto.FLOATS)])
        same = [value for value in self.values[:-1] if value.shapes == made.shapes]
        if same and self.chance(0.6):
            added = self.pick(same)
            node.input.extend([""] * (3 - len(node.input)) + [added.name])
            size.output[0] = f"|{made.name}| of products"
            self.sizes.append(helper.make_node("Add", [size.output[0], f"|{added.name}|"], [f"|{made.name}|"]))
            self.values[-1] = made._replace(error=max(made.error, added.error) + 2 * self.unit)
        return self.values[-1]

    def activation(self, op, x, others=(), **attributes):
        self.same(op, x, 4, others, **attributes)
        return self.size("Identity", f"|{x.name}|")

    Relu = lambda self, x: self.activation("Relu", x)
    LeakyRelu = lambda self, x: self.activation("LeakyRelu", x, alpha=self.pick([0.01, 0.3, 1.0]))

    def PRelu(self, x):
        if IS_OLD and self.odd is not None:
            return self.Relu(x)
        slopes = self.constant(self.rng.uniform(0, 1, self.pick([[1], [x.shapes[0][1], *[1] * self.rank]])))
        self.constants[f"|{slopes}|"] = np.maximum(self.constants[f"|{slopes}|"], 1)
        self.same("PRelu", x, 1, [slopes])
        return self.size("Mul", f"|{x.name}|", f"|{slopes}|")

    def Clip(self, x):
        # Which number is the lowest one differs in float.
        if self.kind is np.float16 and self.odd is not None:
            return self.Relu(x)
        if self.kind is np.float64:
            # Of double, onnxruntime has no older one, and its optimiser fails at one behind a Relu.
            if self.opset < 12:
                return self.Relu(x)
            self.levels = LEVELS[:1]
        low, high = self.pick([-1.0, 0.0, None]), self.pick([6.0, 0.5, None])
        if self.opset < 11:
            return self.activation("Clip", x, **{name: bound for name, bound in (("min", low), ("max", high)) if bound is not None})
        # Not a number makes no bound.
        odd, self.odd = self.odd, None
        bounds = ["" if bound is None else self.constant(bound) for bound in (low, high)]
        self.odd = odd
        return self.activation("Clip", x, bounds[: 2 if bounds[1] else 1 if bounds[0] else 0])

    def bounded(self, op, x, **attributes):
        """|x| + 1 is as much as both are."""
        self.constants.setdefault("one", np.ones((), np.float32))
        self.same(op, x, 8, **attributes)
        return self.size("Add", f"|{x.name}|", "one")

    def gate(self, op, x, **attributes):
        made = self.bounded(op, x, **attributes)
        return self.node("Mul", [x, made] if self.chance(0.5) else [made, x], x.shapes, 1) if self.chance(0.5) else made

    Sigmoid = lambda self, x: self.gate("Sigmoid", x)
    HardSigmoid = lambda self, x: self.gate("HardSigmoid", x, **self.pick([{}, {"alpha": 1 / 6, "beta": 0.5}]))

    def steep(self, op, x, slope, **attributes):
        """One whose errors are at most so many times those of X."""
        self.same(op, x, 16, **attributes)
        return self.size("Mul", f"|{x.name}|", self.constant([slope]))

    def Gelu(self, x):
        if self.opset >= 20:
            return self.steep("Gelu", x, 1.2, approximate=self.pick(["none", "tanh"]))
        if self.opset < 9:
            return self.Relu(x)
        number = lambda op, x, value: self.node(op, [x], x.shapes, 4, [self.constant(value)])
        erf = number("Add", self.bounded("Erf", number("Div", x, math.sqrt(2))), 1)
        return number("Mul", self.node("Mul", [x, erf], x.shapes, 1), 0.5)

    def Softplus(self, x):
        return self.same("Softplus", x, 8)

    def Mish(self, x):
        if self.opset >= 18 and self.chance(0.5):
            return self.steep("Mish", x, 1.2)
        return self.node("Mul", [x, self.bounded("Tanh", self.Softplus(x))], x.shapes, 1)

    def HardSwish(self, x):
        return self.steep("HardSwish", x, 1.5) if self.opset >= 14 else self.Relu(x)

    def SqueezeExcite(self, x):
        """A product with numbers of each channel, which depend on all of the image."""
        channels, few = x.shapes[0][1], int(self.rng.integers(1, 5))
        mean, ones = self.GlobalAveragePool(x), [1] * self.rank
        for of, to in ((channels, few), (few, channels)):
            kernel = self.constant(self.normal([to, of, *ones], of**-0.5))
            mean = self.node("Conv", [mean], [(shape[0], to, *ones) for shape in x.shapes], of + 2, [kernel, self.constant(self.normal(to))])
            mean = self.Relu(mean) if to == few else mean
        return self.node("Mul", [x, self.bounded(self.pick(["Sigmoid", "HardSigmoid"]), mean)], x.shapes, 1)

    def least(self, x, bound):
        self.node("Min", [x], x.shapes, 1, [self.constant(bound)])
        return self.size("Identity", f"|{x.name}|")

    def Max(self, x):
        """A LeakyRelu, or a Clip."""
        # In older opsets both sides have the same shape.
        if self.opset < 8 or self.odd is not None:
            return self.Relu(x)
        if self.chance(0.5):
            made = self.node("Mul", [x], x.shapes, 1, [self.constant(self.pick([0.01, 0.3, 1.5]))])
            return self.node("Max", [made, x] if self.chance(0.5) else [x, made], x.shapes, 1)
        made = self.node("Max", [x], x.shapes, 1, [self.constant(self.pick([0.0, -1.0]))])
        return self.least(made, self.pick([0.5, 6.0])) if self.chance(0.7) else made

    def Div(self, x):
        """A hard-swish."""
        if self.opset < 8 or self.odd is not None:
            return self.Relu(x)
        made = self.node("Add", [x], x.shapes, 1, [self.constant(self.pick([3.0, 3.0, 3.0, 2.0]))])
        made = self.least(self.Relu(made), 6.0)
        divided, gate = (x, made) if self.chance(0.3) else (made, x)
        product = lambda one, other: self.node("Mul", [one, other], x.shapes, 1)
        over = lambda value: self.node("Div", [value], x.shapes, 1, [self.constant(6.0)])
        return over(product(x, made)) if self.chance(0.5) else product(over(divided), gate)

    def Pad(self, x):
        pads = np.zeros((2, self.rank + 2), int)
        pads[:, 2:] = self.rng.integers(0, 3, (2, self.rank))
        if self.chance(0.1):
            pads[self.pick([0, 1]), self.pick([0, 1])] = 1
        shapes = [np.array(shape) + pads.sum(0) for shape in x.shapes]
        mode, value = self.pick(["constant"] * 4 + ["edge"]), self.pick([0.0, 0.0, 0.0, 1.5])
        if max(map(np.prod, shapes)) > 20000:
            return self.Relu(x)
        if self.opset < 11:
            made = self.node("Pad", [x], shapes, 0, mode=mode, value=value, pads=pads.ravel().tolist())
        else:
            axes = self.pick([range(2, self.rank + 2), range(-self.rank, 0)])
            has_axes = self.opset >= 18 and not pads[:, :2].any() and self.chance(0.4)
            others = [self.integers(pads[:, 2:].ravel() if has_axes else pads.ravel())]
            others += [self.constant(value)] if value or self.chance(0.5) else [""] if has_axes else []
            made = self.node("Pad", [x], shapes, 0, others + ([self.integers(axes)] if has_axes else []), mode=mode)
        return self.Conv(made) if self.chance(0.6) else made

    def MaxPool(self, x):
        attributes, sizes = self.window(x, self.opset > 9)
        # The old release makes one node of it and a Pad in front, whose pads are then no zeros or too large.
        if IS_OLD and any(node.op_type == "Pad" and x.name in node.output for node in self.nodes):
            return self.Relu(x)
        # onnxruntime has none of double in opset 7, and takes what is not a number for the lowest one.
        if (self.kind is np.float64 and self.opset < 8) or self.odd is not None:
            return self.Relu(x)
        return self.node("MaxPool", [x], [(*shape[:2], *size) for shape, size in zip(x.shapes, sizes)], 0, **attributes)

    def AveragePool(self, x):
        attributes, sizes = self.window(x, False)
        terms = math.prod(attributes["kernel_shape"])
        shapes = [(*shape[:2], *size) for shape, size in zip(x.shapes, sizes)]
        # Release 1.24 divides by other numbers where pads count that are at one end alone.
        counts = self.pick([0, 1]) if not IS_OLD else 0
        return self.node("AveragePool", [x], shapes, terms, count_include_pad=counts, **attributes)

    def GlobalAveragePool(self, x):
        terms = max(math.prod(shape[2:]) for shape in x.shapes)
        return self.node("GlobalAveragePool", [x], [(*shape[:2], *[1] * self.rank) for shape in x.shapes], terms)

    def GlobalMaxPool(self, x):
        return self.node("GlobalMaxPool", [x], [(*shape[:2], *[1] * self.rank) for shape in x.shapes], 0)

    def ReduceMean(self, x):
        axes = self.pick([range(2, self.rank + 2), range(-self.rank, 0)])
        by = {"others": [self.integers(axes)]} if self.opset >= 18 else {"axes": np.array(axes)}
        terms = max(math.prod(shape[2:]) for shape in x.shapes)
        return self.node("ReduceMean", [x], [(*shape[:2], *[1] * self.rank) for shape in x.shapes], terms, keepdims=1, **by)

    def Upsample(self, x):
        """What Resize was called before opset 10."""
        shapes = [(*shape[:2], *(2 * size for size in shape[2:])) for shape in x.shapes]
        if self.opset > 9 or self.rank != 2 or max(map(np.prod, shapes)) > 20000:
            return self.Resize(x)
        scales, by = [1.0, 1.0, 2.0, 2.0], {}
        if self.opset == 9:
            by["others"] = [f"s{len(self.constants)}"]
            self.constants[by["others"][0]] = np.array(scales, np.float32)
        else:
            by["scales"] = scales
        return self.node("Upsample", [x], shapes, 8, mode=self.pick(["nearest", "linear"]), **by)

    def Resize(self, x):
        if self.opset < 11 or self.rank != 2:
            return self.Relu(x)
        scales = np.array(self.pick([[1, 1, 2, 2], [1, 1, 1.5, 3], [1, 1, 0.5, 0.75], [1, 1, 1, 2]]), np.float32)
        shapes = [(*shape[:2], *np.floor(np.array(shape[2:], np.float32) * scales[2:]).astype(int)) for shape in x.shapes]
        if min(map(min, shapes)) < 1 or max(map(np.prod, shapes)) > 20000:
            return self.Relu(x)
        name = f"s{len(self.constants)}"
        self.constants[name] = scales
        kind = {"mode": self.pick(["nearest", "linear"]), "coordinate_transformation_mode": self.pick(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])}
        if kind["mode"] == "nearest":
            kind["nearest_mode"] = self.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        return self.node("Resize", [x], shapes, 8, ["", name], **kind)

    def Slice(self, x):
        """Some channels."""
        channels = x.shapes[0][1]
        if channels < 2 or self.opset < 10:
            return self.Relu(x)
        first = int(self.rng.integers(0, channels - 1))
        last = int(self.rng.integers(first + 1, channels + 1))
        names = [self.integers([value]) for value in (first, self.pick([last, last - channels if last < channels else 2**40]), self.pick([1, -1 - self.rank]))]
        return self.node("Slice", [x], [(shape[0], last - first, *shape[2:]) for shape in x.shapes], 0, names)

    def Split(self, x):
        """Channels in two parts."""
        channels = x.shapes[0][1]
        if channels < 2:
            return self.Relu(x)
        first = int(self.rng.integers(1, channels))
        part = lambda count: [(shape[0], count, *shape[2:]) for shape in x.shapes]
        by = {"others": [self.integers([first, channels - first])]} if self.opset >= 13 else {"split": np.array([first, channels - first])}
        one = self.node("Split", [x], part(first), 0, axis=self.pick([1, -1 - self.rank]) if self.opset >= 11 else 1, **by)
        other = one._replace(name=f"{one.name}b", shapes=part(channels - first))
        self.nodes[-1].output.append(other.name)
        self.sizes[-1].output.append(f"|{other.name}|")
        self.values.append(other)
        return other

    def Shuffle(self, x):
        """The channels of some groups by turns."""
        (channels, *image), group = x.shapes[0][1:], self.pick([2, 3, 4])
        if channels % group or any(axis in self.dynamic for axis in range(2, self.rank + 2)) or x.shapes[0][2:] != x.shapes[1][2:]:
            return self.Relu(x)
        parts = (group, channels // group)
        apart = self.node("Reshape", [x], [(shape[0], *parts, *image) for shape in x.shapes], 0, [self.integers([0, *parts, *image])])
        turned = self.node("Transpose", [apart], [(shape[0], *parts[::-1], *image) for shape in x.shapes], 0, perm=[0, 2, 1, *range(3, self.rank + 3)])
        made = self.node("Reshape", [turned], x.shapes, 0, [self.integers([0, channels, *image])])
        # Others take images alone.
        self.values = [value for value in self.values if value not in (apart, turned)]
        return made

    def LRN(self, x):
        # onnxruntime subtracts squares from a running sum, which is not what it was after a large one.
        if self.rank != 2 or self.odd is not None:
            return self.Relu(x)
        size, alpha, beta, bias = self.pick([1, 3, 5]), self.pick([1e-4, 0.5]), self.pick([0.75, 0.75, 0.5]), self.pick([1.0, 2.0])
        # The derivative by the element itself is at most bias^-beta, and by another one beta times that.
        near = np.abs(np.subtract.outer(range(x.shapes[0][1]), range(x.shapes[0][1]))) <= size // 2
        band = f"band{len(self.nodes)}"
        self.constants[band] = ((np.eye(x.shapes[0][1]) + beta * near) * bias**-beta)[:, :, None, None].astype(np.float32)
        self.same("LRN", x, 16, size=size, alpha=alpha, beta=beta, bias=bias)
        return self.size("Conv", f"|{x.name}|", band)

    def model(self, kind, with_sizes):
        names = [value.name for value in self.outputs]
        names += [f"|{name}|" for name in names] if with_sizes else []
        nodes = self.nodes + (self.sizes if with_sizes else [])
        read = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(value if value.dtype == np.int64 else value.astype(kind), name) for name, value in self.constants.items() if name in read]
        inputs = [helper.make_tensor_value_info(name, KINDS[kind], dims) for name, dims in self.inputs.items()]
        graph = helper.make_graph(nodes, f"seed{self.seed}", inputs, [helper.make_tensor_value_info(name, KINDS[kind], None) for name in names], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)], ir_version=10)


def broadcast(*shapes):
    """The shapes of a sum in both runs, if there is one."""
    try:
        return [np.broadcast_shapes(*pair) for pair in zip(*shapes)]
    except ValueError:
        return None


# How often each is drawn.
OPERATORS = {"Conv": 9, "ConvTranspose": 4, "BatchNormalization": 2, "Add": 3, "Mul": 2, "Relu": 2, "Clip": 1, "Sigmoid": 1, "HardSigmoid": 1}
OPERATORS |= {"LeakyRelu": 1, "PRelu": 1, "Pad": 2, "Concat": 2, "Sum": 1, "MaxPool": 1, "LRN": 1, "Max": 2, "Div": 2}
# Nodes of these operators must have run on convoke.
COMMON = [op for op in OPERATORS if op != "MaxPool"]
OPERATORS |= {"FusedConv": 2, "Gelu": 1, "Mish": 1, "Softplus": 1, "HardSwish": 1, "Shuffle": 1, "SqueezeExcite": 1}
OPERATORS |= {"AveragePool": 1, "GlobalAveragePool": 1, "GlobalMaxPool": 1, "ReduceMean": 1, "Resize": 1, "Upsample": 2, "Slice": 1, "Split": 1}
# They do so more rarely: in some opsets alone, or between layers alone. A Softplus is part of a Mish there, and a Reshape of a shuffle.
RARE = ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "Resize", "Upsample", "Slice", "Split"]
RARE += ["FusedConv", "Gelu", "Erf", "Mish", "Softplus", "HardSwish", "Reshape"]


def compare(graph, setting, got, wanted, sizes):
    """Fails where a tensor differs from the one of the run in float by more than roundings. Of double, onnxruntime has no convolution to compare with."""
    largest = float(np.finfo(graph.kind).max)
    for value, one, other, size in zip(graph.outputs, got, wanted, sizes):
        where = f"{setting}: {value.name}"
        assert one.shape == other.shape and one.dtype == graph.kind, f"{where}: {one.dtype} {one.shape}, not {other.shape}"
        one, other, size = (tensor.astype(np.float64) for tensor in (one, other, size))
        # Products and sums of other elements may overflow or not, by the order of operations.
        certain = size < largest / 4
        if graph.odd is not None and not np.isfinite(graph.odd):
            same = (np.isnan(one) == np.isnan(other)) & (np.isinf(one) * np.sign(one) == np.isinf(other) * np.sign(other))
            same |= np.isnan(one) & np.isnan(other)
            assert same.all(), f"{where}: not finite in other places: {one[~same][:3]}, not {other[~same][:3]}"
        allowed = value.error * (size + 16 * float(np.finfo(graph.kind).tiny)) + 1e-37
        with np.errstate(invalid="ignore"):
            wrong = certain & ~(np.abs(one - other) <= allowed)
        assert not wrong.any(), f"{where}: {one[wrong][:3]}, not {other[wrong][:3]}, allowed is {allowed[wrong][:3]} ({wrong.sum()} elements of {wrong.size})"


def is_refused(graph, level):
    """Whether onnxruntime alone cannot run the graph because of what its optimiser made of it. It never runs those of double, whose convolutions it lacks."""
    try:
        onnxruntime.InferenceSession(graph.model(graph.kind, False).SerializeToString(), options(level), providers=["CPUExecutionProvider"])
    except Exception:
        return graph.kind is not np.float64
    return False


def check(seed):
    """The layers of a graph with convoke; `None` where onnxruntime refuses the graph. Raises what is wrong."""
    graph = Graph(seed)
    if not graph.nodes:
        return None
    level = graph.pick(graph.levels)
    threads = graph.pick([1, 1, 1, 2])
    chosen = {"layout": graph.pick(["first", "last", "last", "auto"]), "threads": threads, "accuracy": "strict" if graph.strict else graph.pick(["standard", "fast"])}
    if graph.chance(0.1):
        chosen["workspace_limit"] = graph.pick([0, 4000, 100000])
    try:
        plain = onnxruntime.InferenceSession(graph.model(np.float32, True).SerializeToString(), options(LEVELS[0]), providers=["CPUExecutionProvider"])
        expected = [plain.run(None, feeds) for feeds in graph.feeds]
    except Exception:
        expected = None
    setting = f"{level.name}, {chosen}, {graph.kind.__name__}"
    try:
        made = session(graph.model(graph.kind, False), level=level, pool=threads, **chosen)
        got = [made.run(None, {name: value.astype(graph.kind) for name, value in feeds.items()}) for feeds in graph.feeds]
    except Exception as error:
        # Some releases of onnxruntime run some of what is damaged.
        if expected and graph.damage is None and not is_refused(graph, level):
            raise AssertionError(f"{setting}: {error}") from error
        return None
    if not expected:
        return None
    count = len(graph.outputs)
    for tensors, outputs in zip(got, expected):
        compare(graph, setting, tensors, outputs[:count], outputs[count:])
    return layers(made)


def found_by(process, file, deadline):
    """What a process has found. If it ended before its last graph, this is the fault of the last seed that it printed."""
    try:
        ended = f"ended its process with {process.wait(max(1, deadline - time.monotonic()))}"
    except subprocess.TimeoutExpired:
        ended = "takes too long"
    file.seek(0)
    text = file.read()
    seeds = [line for line in text.splitlines() if line.isdigit()]
    assert process.returncode == 0, f"the graph of seed {seeds[-1:]} {ended}:\n{text[-3000:]}"
    return json.loads(text.splitlines()[-1])


def test_random_graphs_give_what_onnxruntime_gives():
    """In processes of their own, because a fault may end them."""
    cores = os.cpu_count() or 1
    bounds = [COUNT * i // cores for i in range(cores + 1)]
    command = [sys.executable, "-W", "ignore::RuntimeWarning", __file__]
    deadline = time.monotonic() + max(1200, COUNT // 2)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(cores)]
        started = [subprocess.Popen([*command, str(first), str(end - first)], stdout=file, stderr=subprocess.STDOUT) for first, end, file in zip(bounds, bounds[1:], files)]
        for process in started:
            stack.callback(process.kill)
        every = [found_by(process, file, deadline) for process, file in zip(started, files)]
    assert [failure for one in every for failure in one["failures"]] == []
    found, operators = (sum((collections.Counter(one[name]) for one in every), collections.Counter()) for name in ("found", "operators"))
    assert found["refused"] < 0.05 * COUNT and found["with layers"] > 0.75 * COUNT and found["fused"] > 0.25 * COUNT, found
    assert min(operators[op] for op in COMMON) >= COUNT / 500 and min(operators[op] for op in RARE) >= COUNT / 1500, operators


def main(first, count):
    """Prints each seed before its graph runs, and in the end what was found, as JSON."""
    found, operators, failures = collections.Counter(), collections.Counter(), []
    for seed in range(first, first + count):
        print(seed, flush=True)
        try:
            made = check(seed)
        except Exception as error:
            failures.append(f"seed {seed}: {error}")
            continue
        found.update({"refused": made is None, "with layers": bool(made), "fused": any(len(layer) > 1 for layer in made or [])})
        operators.update(op for layer in made or [] for op in layer)
    if count == 1:
        print(printer.to_text(Graph(first).model(Graph(first).kind, False)))
    print(json.dumps({"found": found, "operators": operators, "failures": failures}), flush=True)


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
