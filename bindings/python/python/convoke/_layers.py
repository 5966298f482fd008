"""Layers by keyword arguments: the planner, and both operators in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _convoke
from ._convoke import PackedWeights, Plan, QuantisedPlan
from ._errors import InvalidTypeError, UnavailableError

Activation = Union[
    Literal["relu", "hard_swish", "silu", "sigmoid", "tanh", "gelu", "gelu_tanh", "mish"],
    tuple[Literal["clip"], float, float],
    tuple[Literal["leaky_relu"], float],
]
"""What follows bias and residual: a name, or ``("clip", least, most)`` or ``("leaky_relu", slope)``."""

Accuracy = Literal["strict", "standard", "fast"]
"""``strict`` has direct sums only. ``standard`` has Winograd too: errors are in proportion to the greatest input near an
output, so that small outputs beside large inputs may have few correct digits or none. For usual data the greatest error
in float32 was below 5e-5 of the output's root mean square. ``fast`` has larger Winograd tiles, which err about three
times as much. The documentation of the crate's ``Accuracy`` has the bounds."""

AutoPad = Literal["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]
"""How the padding is chosen, as ONNX defines it."""

Layout = Literal["NCW", "NCHW", "NCDHW", "NWC", "NHWC", "NDHWC"]
"""The order of an array's axes, with a letter for each: images, channels, then depth, height and width, or channels
last."""

PerAxis = Union[int, Sequence[int]]
"""A list of one integer for each spatial axis (``pads``: two), or one integer for all of them."""


class Planner:
    """Chooses how layers are computed.

    Without arguments, plans use the best instruction set of the CPU (or what the environment variables ``CONVOKE_ISA``
    and ``CONVOKE_MAX_ISA`` say), one thread, any algorithm, and as much scratch memory as they like.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        activation: Activation | None = None,
        accuracy: Accuracy = "standard",
        algorithm: str | None = None,
        isa: str | None = None,
        workspace_limit: int | None = None,
    ) -> None:
        """
        Args:
            threads: The number of threads that runs use. Threads are started when they are needed first, and plans
                for the same number share them.
            activation: What follows bias and residual. A bound of ``clip`` may be infinite, and must not be NaN.
            accuracy: How much rounding error may be traded for speed.
            algorithm: The only algorithm that is allowed, by its name in ``Plan.explain``.
            isa: The instruction set: ``avx512``, ``avx2``, ``neon`` or ``portable``. This name and that of the
                algorithm may be in upper case, too.
            workspace_limit: Bytes of scratch memory of a run, at most.

        Raises:
            Error: ``UnavailableError`` if a name is not known, ``ThreadsError`` if ``threads`` is not from 1 to 1024,
                ``WorkspaceError`` if ``workspace_limit`` is negative.
        """
        kind = _kind(activation)
        self._planner = _convoke.Planner(threads, kind, accuracy, algorithm, isa, workspace_limit)
        given = {
            "threads": (threads, 1),
            "activation": (activation, None),
            "accuracy": (accuracy, "standard"),
            "algorithm": (algorithm, None),
            "isa": (isa, None),
            "workspace_limit": (workspace_limit, None),
        }
        changed = ", ".join(f"{name}={value!r}" for name, (value, default) in given.items() if value != default)
        self._text = f"convoke.Planner({changed})"

    def __repr__(self) -> str:
        return self._text

    def conv(
        self,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtype: DTypeLike = np.float32,
        *,
        strides: PerAxis | None = None,
        pads: PerAxis | None = None,
        dilations: PerAxis | None = None,
        group: int = 1,
        auto_pad: AutoPad | bytes = "NOTSET",
        kernel_shape: PerAxis | None = None,
        layout: Layout | tuple[Layout, Layout] | None = None,
        opset: int = 22,
    ) -> Plan:
        """A plan of Conv on arrays of one shape.

        Args:
            x_shape: ``(N, C, D1, D2, ...)``, with one or more spatial axes, or in the order of ``layout``.
            w_shape: ``(M, C / group, k1, k2, ...)``, in every layout.
            dtype: float32, float64, float16 or ml_dtypes.bfloat16.
            strides: One for each spatial axis, or one integer for all of them, as ``2`` for ``[2, 2]``; 1 if absent.
                So are the other lists.
            pads: The beginnings of all spatial axes, then the ends of all; 0 if absent.
            dilations: One for each spatial axis; 1 if absent.
            group: The number of groups of channels.
            auto_pad: How the padding is chosen, if not by ``pads``. ``bytes``, as the package onnx has it, will do.
            kernel_shape: The spatial sizes of W, which say the same.
            layout: The order of the axes of X, of the result and of a residual; ONNX's order if absent. With ``"NHWC"``,
                X is ``(N, H, W, C)`` and the result ``(N, H, W, M)``. A pair has the order of X and that of the result:
                ``("NCHW", "NHWC")``. The name has a letter for each axis, as ``"NWC"`` and ``"NDHWC"`` do for one and
                three spatial axes. Messages of errors count axes in ONNX's order.
            opset: The model's opset. bfloat16 needs 22.

        Raises:
            Error: The kind says what is wrong, the message names operator, axis, value and rule.
        """
        attributes = {
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "group": group,
            "auto_pad": auto_pad,
            "kernel_shape": kernel_shape,
        }
        layouts = _pair("Conv", layout)
        return self._planner.plan("Conv", opset, attributes, x_shape, w_shape, _dtype(dtype), layouts)

    def conv_transpose(
        self,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtype: DTypeLike = np.float32,
        *,
        strides: PerAxis | None = None,
        pads: PerAxis | None = None,
        dilations: PerAxis | None = None,
        group: int = 1,
        auto_pad: AutoPad | bytes = "NOTSET",
        kernel_shape: PerAxis | None = None,
        output_padding: PerAxis | None = None,
        output_shape: PerAxis | None = None,
        layout: Layout | tuple[Layout, Layout] | None = None,
        opset: int = 22,
    ) -> Plan:
        """A plan of ConvTranspose on arrays of one shape. What is not said here is as for ``conv``.

        Args:
            x_shape: ``(N, C, D1, D2, ...)``, with one or more spatial axes, or in the order of ``layout``.
            w_shape: ``(C, M / group, k1, k2, ...)``.
            pads: What is cut off at the beginnings of all spatial axes, then at the ends of all; 0 if absent.
            output_padding: What is added at the end of each spatial axis; 0 if absent.
            output_shape: The result's size on each spatial axis. With it, ``pads`` do not count.
        """
        attributes = {
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "group": group,
            "auto_pad": auto_pad,
            "kernel_shape": kernel_shape,
            "output_padding": output_padding,
            "output_shape": output_shape,
        }
        layouts = _pair("ConvTranspose", layout)
        return self._planner.plan("ConvTranspose", opset, attributes, x_shape, w_shape, _dtype(dtype), layouts)

    def plan_quantised(
        self,
        op: Literal["Conv", "ConvTranspose"],
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        x_dtype: DTypeLike,
        w_dtype: DTypeLike,
        y_dtype: DTypeLike,
        *,
        strides: PerAxis | None = None,
        pads: PerAxis | None = None,
        dilations: PerAxis | None = None,
        group: int = 1,
        auto_pad: AutoPad | bytes = "NOTSET",
        kernel_shape: PerAxis | None = None,
        output_padding: PerAxis | None = None,
        output_shape: PerAxis | None = None,
        layout: Layout | tuple[Layout, Layout] | None = None,
    ) -> QuantisedPlan:
        """A plan of a layer of bytes: of QLinearConv, of ConvInteger, and of what quantised graphs mean by Conv and
        ConvTranspose between DequantizeLinear and QuantizeLinear. What is not said here is as for ``conv`` and
        ``conv_transpose``.

        The planner has threads and an instruction set at most: there are no activation, algorithm, limit of the scratch
        memory or packed weights for bytes.

        Args:
            x_dtype: uint8 or int8.
            w_dtype: uint8 or int8.
            y_dtype: uint8 or int8; int32 as in ConvInteger; or float32 or float16, if DequantizeLinear follows.
        """
        attributes = {
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "group": group,
            "auto_pad": auto_pad,
            "kernel_shape": kernel_shape,
            "output_padding": output_padding,
            "output_shape": output_shape,
        }
        dtypes = _dtype(x_dtype), _dtype(w_dtype), _dtype(y_dtype)
        return self._planner.plan_quantised(op, attributes, x_shape, w_shape, dtypes, _pair(op, layout))

    def packed_for(self, packed: PackedWeights) -> Planner:
        """The same planner, whose plans accept these weights: for another batch or spatial size than that of the plan
        that packed them, and for weights that were loaded.

        Its plans have the same instruction set and layout of weights. Where the size differs much, another algorithm
        may be faster: then pack again. Where these weights do not serve, for example within ``workspace_limit``, and
        weights that are packed for the new size would, a plan fails with ``PackedMismatchError``: pack again.
        """
        planner = Planner.__new__(Planner)
        planner._planner = self._planner.packed_for(packed)
        planner._text = f"{self._text}.packed_for({packed!r})"
        return planner


def conv(
    x: NDArray[Any],
    w: NDArray[Any],
    b: NDArray[Any] | None = None,
    *,
    strides: PerAxis | None = None,
    pads: PerAxis | None = None,
    dilations: PerAxis | None = None,
    group: int = 1,
    auto_pad: AutoPad | bytes = "NOTSET",
    kernel_shape: PerAxis | None = None,
    layout: Layout | tuple[Layout, Layout] | None = None,
    activation: Activation | None = None,
    residual: NDArray[Any] | None = None,
    threads: int = 1,
    accuracy: Accuracy = "standard",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Conv of ``x``, ``(N, C, D1, D2, ...)``, by ``w``, ``(M, C / group, k1, k2, ...)``, in one call.

    It plans and packs on every call. To run a layer more than once, keep a ``Plan``.

    All arrays have the dtype of ``x``. Those that are read are copied where ``Plan.run`` would refuse how they lie in
    memory. The attributes and ``layout`` are described at ``Planner.conv``, the other arguments at ``Planner`` and
    ``Plan.run``.

    Args:
        x: The input.
        w: The filters.
        b: The bias, ``(M,)``.
        residual: An array of the output's shape that is added before the activation.
        out: Where the result is written, as ``Plan.run`` takes it; a new array if absent. It may be ``residual`` itself.

    Returns:
        The result, which is ``out`` if that is given.

    Raises:
        Error: The kind says what is wrong, the message names operator, axis, value and rule.
    """
    x, w = _array("Conv", "X", x), _array("Conv", "W", w)
    planner = Planner(threads=threads, activation=activation, accuracy=accuracy)
    plan = planner.conv(
        x.shape,
        w.shape,
        x.dtype,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=group,
        auto_pad=auto_pad,
        kernel_shape=kernel_shape,
        layout=layout,
    )
    return plan._run_copying(x, plan.pack(w, b), residual, out)


def conv_transpose(
    x: NDArray[Any],
    w: NDArray[Any],
    b: NDArray[Any] | None = None,
    *,
    strides: PerAxis | None = None,
    pads: PerAxis | None = None,
    dilations: PerAxis | None = None,
    group: int = 1,
    auto_pad: AutoPad | bytes = "NOTSET",
    kernel_shape: PerAxis | None = None,
    output_padding: PerAxis | None = None,
    output_shape: PerAxis | None = None,
    layout: Layout | tuple[Layout, Layout] | None = None,
    activation: Activation | None = None,
    residual: NDArray[Any] | None = None,
    threads: int = 1,
    accuracy: Accuracy = "standard",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """ConvTranspose of ``x``, ``(N, C, D1, D2, ...)``, by ``w``, ``(C, M / group, k1, k2, ...)``, in one call.

    The attributes are described at ``Planner.conv_transpose``, everything else at ``conv``.
    """
    x, w = _array("ConvTranspose", "X", x), _array("ConvTranspose", "W", w)
    planner = Planner(threads=threads, activation=activation, accuracy=accuracy)
    plan = planner.conv_transpose(
        x.shape,
        w.shape,
        x.dtype,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=group,
        auto_pad=auto_pad,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        output_shape=output_shape,
        layout=layout,
    )
    return plan._run_copying(x, plan.pack(w, b), residual, out)


def _array(op: str, name: str, value: NDArray[Any]) -> NDArray[Any]:
    """The value, which must be an array that is not masked: nothing is converted."""
    if not isinstance(value, np.ndarray):
        raise InvalidTypeError(f"{op}: {name} must be a numpy.ndarray, not {type(value).__name__}")
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{op}: {name} has a mask, which would be ignored: pass its method filled()")
    return value


def _dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype of a name or a type. "bfloat16" is known before ml_dtypes is imported, too."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype)


def _kind(activation: Activation | None) -> tuple[str, list[float]] | None:
    """An activation's name and parameters."""
    if activation is None:
        return None
    if isinstance(activation, str):
        return activation, []
    if isinstance(activation, Sequence) and activation and isinstance(activation[0], str):
        try:
            return activation[0], [float(value) for value in activation[1:]]
        except (OverflowError, TypeError, ValueError):
            pass
    raise UnavailableError(f"activation {activation!r} is neither a name nor a name with parameters")


def _pair(op: str, layout: Layout | tuple[Layout, Layout] | None) -> tuple[str, str] | None:
    """The layouts of X and of the result."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return layout, layout
    if isinstance(layout, Sequence) and len(layout) == 2 and all(isinstance(name, str) for name in layout):
        return layout[0], layout[1]
    raise UnavailableError(f"{op}: layout {layout!r} is neither a name nor a pair of names")
