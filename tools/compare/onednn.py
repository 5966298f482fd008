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
QUERY_WEIGHTS = 131
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
    """A convolution or transposed convolution of one to three axes. X and Y are arrays with channels last, the weights and the bias are as in ONNX."""

    def __init__(self, row, x, w, b, y):
        self.objects = contextlib.ExitStack()
        weakref.finalize(self, self.objects.close)
        self.engine = self.create("engine_create", "engine", CPU, ctypes.c_size_t(0))
        self.stream = self.create("stream_create", "stream", self.engine, IN_ORDER)
        source, destination = self.channels_last(row["x"]), self.channels_last(row["y"])
        bias = self.strided(b.shape, [1])
        shape, strides = weights(row)
        picks = self.create("memory_desc_create_with_tag", "memory_desc", len(shape), numbers(shape), F32, ANY)
        kind = "deconvolution" if row["op"] == "ConvTranspose" else "convolution"
        axes = len(row["strides"])
        begins, ends = row["pads"][:axes], row["pads"][axes:]
        if kind == "deconvolution":
            ends = [end - more for end, more in zip(ends, row["output_padding"])]
        attributes = [row["strides"], [dilation - 1 for dilation in row["dilations"]], begins, ends]
        description = self.create(
            f"{kind}_forward_primitive_desc_create", "primitive_desc", self.engine, INFERENCE, ALGORITHMS[kind], source, picks, bias, destination,
            *map(numbers, attributes), None,
        )
        self.primitive = self.create("primitive_create", "primitive", description)

        picked = ctypes.c_void_p(library().dnnl_primitive_desc_query_md(description, QUERY_WEIGHTS, 0))
        given = self.strided(shape, strides)
        plain, packed = self.memory(given, w), self.memory(picked, None)
        reorder = self.create("reorder_primitive_desc_create", "primitive_desc", given, self.engine, picked, self.engine, None)
        self.execute(self.create("primitive_create", "primitive", reorder), arguments({SOURCE: plain, DESTINATION: packed}))

        memories = {SOURCE: self.memory(source, x), WEIGHTS: packed, BIAS: self.memory(bias, b), DESTINATION: self.memory(destination, y)}
        self.arguments = arguments(memories)
        self.arrays = [x, b, y]  # the memories have bare addresses

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
