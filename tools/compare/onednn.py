"""A layer by oneDNN, which is called by its C interface: its package has the library, and no binding for Python.

Numbers are those of its header dnnl_types.h, and the same in each release of its version 3.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import weakref

PACKAGE = "onednn-cpu-gomp"
CPU, IN_ORDER, F32, INFERENCE = 1, 1, 3, 96
# Convolution by sums or Winograd, as the library decides, and deconvolution by sums.
ALGORITHMS = {"convolution": 0x3, "deconvolution": 0xA}
QUERY_SOURCE, QUERY_WEIGHTS, QUERY_DESTINATION = 129, 131, 133
SOURCE, DESTINATION, WEIGHTS, BIAS = 1, 17, 33, 41
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
        source, destination = self.channels_last(row["x"]), self.channels_last(row["y"])
        bias = self.strided(b.shape, [1])
        shape, strides = weights(row)
        kind = "deconvolution" if row["op"] == "ConvTranspose" else "convolution"
        axes = len(row["strides"])
        begins, ends = row["pads"][:axes], row["pads"][axes:]
        if kind == "deconvolution":
            ends = [end - more for end, more in zip(ends, row["output_padding"])]
        attributes = [row["strides"], [dilation - 1 for dilation in row["dilations"]], begins, ends]
        description = self.create(
            f"{kind}_forward_primitive_desc_create", "primitive_desc", self.engine, INFERENCE, ALGORITHMS[kind],
            self.any(row["x"]) if blocked else source, self.any(shape), bias, self.any(row["y"]) if blocked else destination, *map(numbers, attributes), None,
        )
        self.primitive = self.create("primitive_create", "primitive", description)

        given, inside = self.memory(source, x), self.memory(destination, y)
        self.given_y = self.inside_y = destination, inside
        if blocked:
            given = self.convert((source, given), self.picked(description, QUERY_SOURCE))
            self.inside_y = self.picked(description, QUERY_DESTINATION)
        plain = self.strided(shape, strides)
        packed = self.convert((plain, self.memory(plain, w)), self.picked(description, QUERY_WEIGHTS))
        self.arguments = arguments({SOURCE: given, WEIGHTS: packed, BIAS: self.memory(bias, b), DESTINATION: self.inside_y[1]})
        self.arrays = [x, b, y]  # the memories have bare addresses

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

    def any(self, shape):
        return self.create("memory_desc_create_with_tag", "memory_desc", len(shape), numbers(shape), F32, ANY)

    def strided(self, shape, strides):
        return self.create("memory_desc_create_with_strides", "memory_desc", len(shape), numbers(shape), F32, numbers(strides))

    def channels_last(self, shape):
        """The layout of a shape (N, C, axes), whose elements lie as (N, axes, C)."""
        inner = [shape[1] * math.prod(shape[i + 1 :]) for i in range(2, len(shape))]
        return self.strided(shape, [math.prod(shape[1:]), 1, *inner])

    def memory(self, layout, array):
        address = ALLOCATE if array is None else ctypes.c_void_p(array.ctypes.data)
        return self.create("memory_create", "memory", layout, self.engine, address)


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
