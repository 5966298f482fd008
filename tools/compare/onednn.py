"""A layer by oneDNN, which is called by its C interface: its package has the library, and no binding for Python.

Numbers are those of its header dnnl_types.h, and the same in each release of its version 3.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import weakref

import numpy as np
from quantised import float_bias

PACKAGE = "onednn-cpu-gomp"
CPU, IN_ORDER, INFERENCE = 1, 1, 96
TYPES = {np.dtype(np.float32): 3, np.dtype(np.int32): 4, np.dtype(np.int8): 5, np.dtype(np.uint8): 6}
# Convolution by sums or Winograd, as the library decides, and deconvolution by sums.
ALGORITHMS = {"convolution": 0x3, "deconvolution": 0xA}
QUERY_SOURCE, QUERY_WEIGHTS, QUERY_DESTINATION = 129, 131, 133
SOURCE, DESTINATION, WEIGHTS, BIAS = 1, 17, 33, 41
# With one of these: its scales, or its zero points.
KINDS = {"scales": 4096, "zero_points": 8192}
UNIMPLEMENTED = 3
# What the environment variable ONEDNN_MAX_CPU_ISA=AVX2 holds it to.
AVX2 = 0x7
# As a tag of a layout: the library picks it. As an address: the library allocates memory.
ANY, ALLOCATE = 1, ctypes.c_void_p(-1)


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("memory", ctypes.c_void_p)]


def is_installed():
    return any(importlib.metadata.distributions(name=PACKAGE))


@functools.cache
def library():
    path = next(file for file in importlib.metadata.files(PACKAGE) if file.name == "libdnnl.so.3")
    dll = ctypes.CDLL(str(path.locate()))
    dll.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    return dll


def effective_isa():
    return library().dnnl_get_effective_cpu_isa()


def call(name, *arguments):
    status = getattr(library(), f"dnnl_{name}")(*arguments)
    if status:
        raise ValueError("oneDNN does not implement the layer" if status == UNIMPLEMENTED else f"oneDNN: {name}: status {status}")


def numbers(values):
    return (ctypes.c_int64 * 12)(*values)


class Layer:
    """A convolution or transposed convolution of one to three axes. X and Y are arrays with channels last, the weights and the bias are as in ONNX. If it
    is blocked, the library picks the layouts in which it computes, and converts X here, and Y in `convert`."""

    def __init__(self, row, x, w, b, y, blocked):
        self.objects = contextlib.ExitStack()
        weakref.finalize(self, self.objects.close)
        self.engine = self.create("engine_create", "engine", CPU, ctypes.c_size_t(0))
        self.stream = self.create("stream_create", "stream", self.engine, IN_ORDER)
        b, meaning = (float_bias(row, b), quantisation(row)) if "quantised" in row else (b, [])
        source, destination = self.channels_last(row["x"], x), self.channels_last(row["y"], y)
        bias = self.strided(b.shape, [1], b)
        shape, strides = weights(row)
        kind = "deconvolution" if row["op"] == "ConvTranspose" else "convolution"
        axes = len(row["strides"])
        begins, ends = row["pads"][:axes], row["pads"][axes:]
        if kind == "deconvolution":
            ends = [end - more for end, more in zip(ends, row["output_padding"])]
        geometry = [row["strides"], [dilation - 1 for dilation in row["dilations"]], begins, ends]
        attributes = self.create("primitive_attr_create", "primitive_attr")
        for what, argument, mask, _ in meaning:
            call(f"primitive_attr_set_{what}_mask", attributes, argument, mask)
        description = self.create(
            f"{kind}_forward_primitive_desc_create", "primitive_desc", self.engine, INFERENCE, ALGORITHMS[kind],
            self.any(row["x"], x) if blocked else source, self.any(shape, w), bias, self.any(row["y"], y) if blocked else destination,
            *map(numbers, geometry), attributes,
        )
        self.primitive = self.create("primitive_create", "primitive", description)

        given, inside = self.memory(source, x), self.memory(destination, y)
        self.given_y = self.inside_y = destination, inside
        if blocked:
            given = self.convert((source, given), self.picked(description, QUERY_SOURCE))
            self.inside_y = self.picked(description, QUERY_DESTINATION)
        plain = self.strided(shape, strides, w)
        packed = self.convert((plain, self.memory(plain, w)), self.picked(description, QUERY_WEIGHTS))
        scales = {KINDS[what] + argument: self.memory(self.strided(array.shape, [1], array), array) for what, argument, _, array in meaning}
        self.arguments = arguments({SOURCE: given, WEIGHTS: packed, BIAS: self.memory(bias, b), DESTINATION: self.inside_y[1]} | scales)
        self.arrays = [x, b, y, meaning]  # the memories have bare addresses

    def output(self):
        """Computes Y in the layout of the array."""
        self.run()
        if self.inside_y is not self.given_y:
            self.convert(self.inside_y, self.given_y)

    def picked(self, description, query):
        """A layout that the library picks, and memory for it."""
        layout = ctypes.c_void_p(library().dnnl_primitive_desc_query_md(description, query, 0))
        return layout, self.memory(layout, None)

    def convert(self, given, wanted):
        reorder = self.create("reorder_primitive_desc_create", "primitive_desc", given[0], self.engine, wanted[0], self.engine, None)
        self.execute(self.create("primitive_create", "primitive", reorder), arguments({SOURCE: given[1], DESTINATION: wanted[1]}))
        return wanted[1]

    def run(self):
        self.execute(self.primitive, self.arguments)

    def execute(self, primitive, arguments):
        call("primitive_execute", primitive, self.stream, len(arguments), arguments)
        call("stream_wait", self.stream)

    def create(self, function, kind, *arguments):
        made = ctypes.c_void_p()
        call(function, ctypes.byref(made), *arguments)
        self.objects.callback(call, f"{kind}_destroy", made)
        return made

    def any(self, shape, array):
        return self.create("memory_desc_create_with_tag", "memory_desc", len(shape), numbers(shape), TYPES[array.dtype], ANY)

    def strided(self, shape, strides, array):
        return self.create("memory_desc_create_with_strides", "memory_desc", len(shape), numbers(shape), TYPES[array.dtype], numbers(strides))

    def channels_last(self, shape, array):
        """The layout of a shape (N, C, axes), whose elements, of the array's type, lie as (N, axes, C)."""
        inner = [shape[1] * math.prod(shape[i + 1 :]) for i in range(2, len(shape))]
        return self.strided(shape, [math.prod(shape[1:]), 1, *inner], array)

    def memory(self, layout, array):
        address = ALLOCATE if array is None else ctypes.c_void_p(array.ctypes.data)
        return self.create("memory_create", "memory", layout, self.engine, address)


def quantisation(row):
    """Scales and zero points of a layer in bytes: what they are, of which argument, a mask of the axes along which they differ, and their values."""
    q = row["quantised"]
    # Output channels, or with groups these and the axis before them.
    channels = 3 if row["group"] > 1 else 1
    number = lambda what, argument, name, dtype: (what, argument, 0, np.array([q[name]], dtype))
    return [
        number("scales", SOURCE, "x_scale", np.float32), ("scales", WEIGHTS, channels, np.array(q["w_scale"], np.float32)),
        number("scales", DESTINATION, "y_scale", np.float32), number("zero_points", SOURCE, "x_zero_point", np.int32),
        number("zero_points", DESTINATION, "y_zero_point", np.int32),
    ]


def arguments(memories):
    return (Argument * len(memories))(*(Argument(index, memory) for index, memory in memories.items()))


def weights(row):
    """The shape of the weights as oneDNN has it, (group,) output channels, input channels, axes, and strides of ONNX's weights for it."""
    group, kernel = row["group"], row["w"][2:]
    outputs, inputs = row["y"][1] // group, row["x"][1] // group
    taps = math.prod(kernel)
    inner = [math.prod(kernel[i + 1 :]) for i in range(len(kernel))]
    channels = [taps, outputs * taps] if row["op"] == "ConvTranspose" else [inputs * taps, taps]
    shape, strides = [group, outputs, inputs, *kernel], [outputs * inputs * taps, *channels, *inner]
    return (shape, strides) if group > 1 else (shape[1:], strides[1:])
