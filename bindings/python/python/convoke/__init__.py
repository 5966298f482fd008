"""CPU kernels for the ONNX operators Conv and ConvTranspose, on numpy arrays.

    import convoke

    y = convoke.conv(x, w, b, strides=[2, 2], pads=[3, 3, 3, 3], activation="relu")

To run a layer more than once, plan it and pack its weights once:

    plan = convoke.Planner(threads=4).conv(x.shape, w.shape, x.dtype, pads=[1, 1, 1, 1])
    packed = plan.pack(w, b)
    for x in images:
        y = plan.run(x, packed)

Arrays are C-contiguous, of float32, float64, float16 or ml_dtypes.bfloat16. Their axes are in ONNX's
order, ``(N, C, spatial...)``, or with ``layout="NHWC"`` in that order. Attributes have their ONNX names
and meanings. ``Planner.plan_quantised`` is for layers of bytes.
"""

from ._convoke import PackedWeights, Plan, QuantisedPlan, QuantisedWeights, Scaled, __version__
from ._errors import (
    BufferLengthError,
    Error,
    InvalidAttributeError,
    InvalidInputError,
    InvalidPackedError,
    InvalidShapeError,
    InvalidTypeError,
    OutOfMemoryError,
    PackedMismatchError,
    SizeOverflowError,
    ThreadsError,
    UnavailableError,
    UnsupportedOperatorError,
    WorkspaceError,
)
from ._layers import Accuracy, Activation, AutoPad, Layout, Planner, conv, conv_transpose

__all__ = [
    "Accuracy",
    "Activation",
    "AutoPad",
    "BufferLengthError",
    "Error",
    "InvalidAttributeError",
    "InvalidInputError",
    "InvalidPackedError",
    "InvalidShapeError",
    "InvalidTypeError",
    "Layout",
    "OutOfMemoryError",
    "PackedMismatchError",
    "PackedWeights",
    "Plan",
    "Planner",
    "QuantisedPlan",
    "QuantisedWeights",
    "Scaled",
    "SizeOverflowError",
    "ThreadsError",
    "UnavailableError",
    "UnsupportedOperatorError",
    "WorkspaceError",
    "__version__",
    "conv",
    "conv_transpose",
]

# What errors, tracebacks and documentation call them, whatever file they are in.
for _public in (Error, *Error.__subclasses__(), Planner, conv, conv_transpose):
    _public.__module__ = __name__
del _public
