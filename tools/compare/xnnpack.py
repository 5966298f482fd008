"""A layer as a model of TensorFlow Lite with one operator, for XNNPACK.

Tensors are (N, H, W, C). Padding is SAME or VALID. Where the padding of an axis is odd, SAME has one element more at the end. Layers with pads of 1 and
stride 2 have one more at the beginning, as the kernel does not reach the last element of the padding. Mirrored along the axis, such a layer is one with SAME:
it reads, multiplies and writes the same elements in the opposite order. So X, the weights and Y are mirrored, outside of the timing. Layers that are not SAME
mirrored either are refused with the reason. A PAD operator before the layer would be timed too. X that is padded beforehand would spare XNNPACK a work that
is timed with the others.
"""

import dataclasses

import numpy as np
from quantised import signed


@dataclasses.dataclass
class Model:
    """What the file says, and how X and Y of ONNX become those of the model."""

    op: str
    padding: str
    # Axes of (N, H, W, C) that are mirrored.
    mirrored: list[int]
    x: list[int]
    y: list[int]
    weights: np.ndarray
    bias: np.ndarray
    strides: list[int]
    dilations: list[int]
    multiplier: int
    # Scales and zero points of a layer in bytes, which are signed here.
    quantised: dict | None

    def from_onnx(self, x):
        x = np.ascontiguousarray(np.flip(x.transpose(0, 2, 3, 1), self.mirrored))
        return signed(x) if self.quantised else x

    def to_onnx(self, y):
        return np.flip(signed(y) if self.quantised else y, self.mirrored).transpose(0, 3, 1, 2)


def model(row, w, b):
    """The model of a layer with two axes."""
    transposed, group, (channels, outputs) = row["op"] == "ConvTranspose", row["group"], (row["x"][1], row["y"][1])
    multiplier = 1
    if transposed:
        if group > 1 or max(row["dilations"]) > 1:
            raise ValueError("TFLite has no transposed convolution with " + ("groups" if group > 1 else "dilations"))
        op, weights = "TRANSPOSE_CONV", w.transpose(1, 2, 3, 0)
    elif group > 1 and group == channels:
        op, multiplier, weights = "DEPTHWISE_CONV_2D", outputs // group, w.transpose(1, 2, 3, 0)
    else:
        # A filter with fewer channels than X means groups.
        op, weights = "CONV_2D", w.transpose(0, 2, 3, 1)
    padding, mirrored = paddings(row)
    weights = np.ascontiguousarray(np.flip(weights, mirrored))
    last = lambda shape: [shape[0], *shape[2:], shape[1]]
    return Model(op, padding, mirrored, last(row["x"]), last(row["y"]), weights, b, row["strides"], row["dilations"], multiplier, row.get("quantised"))


def paddings(row):
    """SAME or VALID, and the axes of (N, H, W, C) that are mirrored for it."""
    # A transposed convolution is padded like the convolution from its Y to its X.
    inputs, outputs = (row["y"], row["x"]) if row["op"] == "ConvTranspose" else (row["x"], row["y"])
    axes = [axis_paddings(*axis) for axis in zip(inputs[2:], outputs[2:], row["w"][2:], row["strides"], row["dilations"], row["pads"])]
    for padding in ("VALID", "SAME"):
        if all(padding in axis for axis in axes):
            return padding, [1 + i for i, axis in enumerate(axes) if axis[padding]]
    raise ValueError(f"TFLite has no such padding: pads {row['pads']}, strides {row['strides']}")


def axis_paddings(size, out, kernel, stride, dilation, begin):
    """Those of SAME and VALID that an axis has, each with whether the axis is mirrored for it."""
    reach = (out - 1) * stride + (kernel - 1) * dilation + 1
    # The padding at the end that the kernel reaches. If it is negative, the kernel does not reach the last elements.
    end = reach - size - begin
    fits = {}
    if begin == 0 and end <= 0:
        fits["VALID"] = False
    if out == -(-size // stride):
        same = max(reach - size, 0) // 2
        if begin == same:
            fits["SAME"] = False
        elif end == same:
            fits["SAME"] = True
    return fits


def write(model):
    """The bytes of the model's file."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    class Builder(flatbuffers.Builder):
        def StartVector(self, size, count, alignment):
            # The schema aligns the bytes of constants, but its Python code does not.
            return super().StartVector(size, count, 16 if size == 1 else alignment)

    options = {
        "CONV_2D": schema.Conv2DOptionsT, "DEPTHWISE_CONV_2D": schema.DepthwiseConv2DOptionsT, "TRANSPOSE_CONV": schema.TransposeConvOptionsT,
    }[model.op]()
    options.padding = getattr(schema.Padding, model.padding)
    options.strideH, options.strideW = model.strides
    if model.op != "TRANSPOSE_CONV":
        options.dilationHFactor, options.dilationWFactor = model.dilations
    if model.op == "DEPTHWISE_CONV_2D":
        options.depthMultiplier = model.multiplier

    # The first buffer is empty by the format's rules. Tensors that are not constants name it.
    buffers, tensors = [schema.BufferT()], []

    def tensor(name, shape, values=None, scales=None, zero_point=0, axis=0):
        types = {np.dtype(np.int32): schema.TensorType.INT32, np.dtype(np.int8): schema.TensorType.INT8, np.dtype(np.float32): schema.TensorType.FLOAT32}
        # X and Y have the type of the weights.
        type_ = types[(model.weights if values is None else values).dtype]
        meaning = scales and schema.QuantizationParametersT(scale=scales, zeroPoint=[zero_point] * len(scales), quantizedDimension=axis)
        tensors.append(schema.TensorT(shape=list(shape), type=type_, buffer=0 if values is None else len(buffers), name=name, quantization=meaning))
        if values is not None:
            buffers.append(schema.BufferT(data=values.view(np.uint8).ravel()))
        return len(tensors) - 1

    of_x = of_w = of_b = of_y = {}
    if model.quantised:
        q = model.quantised
        of_x, of_y = ({"scales": [q[f"{name}_scale"]], "zero_point": q[f"{name}_zero_point"] - 128} for name in "xy")
        of_w = {"scales": q["w_scale"], "axis": 3 if model.op == "DEPTHWISE_CONV_2D" else 0}
        of_b = {"scales": [q["x_scale"] * scale for scale in q["w_scale"]]}
    x, y = tensor("x", model.x, **of_x), tensor("y", model.y, **of_y)
    w, b = tensor("w", model.weights.shape, model.weights, **of_w), tensor("b", model.bias.shape, model.bias, **of_b)
    inputs = [x, w, b]
    if model.op == "TRANSPOSE_CONV":
        shape = np.array(model.y, np.int32)
        inputs = [tensor("shape", shape.shape, shape), w, x, b]
    code = getattr(schema.BuiltinOperator, model.op)
    # Version 3 of the transposed convolution has a bias. Version 2 of the others has dilations.
    version = 3 if model.op == "TRANSPOSE_CONV" else 2
    operator = schema.OperatorT(inputs=inputs, outputs=[y], builtinOptionsType=getattr(schema.BuiltinOptions, type(options).__name__[:-1]))
    operator.builtinOptions = options
    graph = schema.SubGraphT(tensors=tensors, inputs=[x], outputs=[y], operators=[operator])
    codes = [schema.OperatorCodeT(deprecatedBuiltinCode=code, builtinCode=code, version=version)]
    builder = Builder(1024)
    builder.Finish(schema.ModelT(version=3, operatorCodes=codes, subgraphs=[graph], buffers=buffers).Pack(builder), b"TFL3")
    return bytes(builder.Output())
