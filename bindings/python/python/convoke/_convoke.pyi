from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["PackedWeights", "Plan", "Planner", "QuantisedPlan", "QuantisedWeights", "Scaled", "__version__"]

__version__: str

_Scale: TypeAlias = float | np.floating[Any] | NDArray[np.float32]
_ZeroPoint: TypeAlias = int | np.integer[Any] | NDArray[np.integer[Any]]

@final
class Planner:
    def __new__(
        cls,
        threads: int,
        activation: tuple[str, Sequence[float]] | None,
        accuracy: str,
        algorithm: str | None,
        isa: str | None,
        workspace_limit: int | None,
    ) -> Planner: ...
    def packed_for(self, packed: PackedWeights) -> Planner: ...
    def plan(
        self,
        op_type: str,
        opset: int,
        attributes: Mapping[str, Any],
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtype: np.dtype[Any],
        layouts: tuple[str, str] | None,
    ) -> Plan: ...
    def plan_quantised(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtypes: tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]],
        layouts: tuple[str, str] | None,
    ) -> QuantisedPlan: ...

@final
class Plan:
    """How to compute one layer on arrays of one shape."""

    @property
    def op(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def output_shape(self) -> tuple[int, ...]: ...
    @property
    def weight_shape(self) -> tuple[int, ...]: ...
    @property
    def macs(self) -> int: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def packed_bytes(self) -> int: ...
    def pack(self, w: NDArray[Any], b: NDArray[Any] | None = None) -> PackedWeights: ...
    def run(
        self,
        x: NDArray[Any],
        packed: PackedWeights,
        *,
        residual: NDArray[Any] | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]: ...
    def _run_copying(
        self,
        x: NDArray[Any],
        packed: PackedWeights,
        residual: NDArray[Any] | None,
        out: NDArray[Any] | None,
    ) -> NDArray[Any]: ...
    def accepts(self, packed: PackedWeights) -> bool: ...
    def explain(self) -> str: ...

@final
class PackedWeights:
    """The weights and the bias of a layer, as a plan has packed them."""

    @staticmethod
    def from_bytes(data: bytes, dtype: DTypeLike) -> PackedWeights: ...
    @staticmethod
    def from_shared(data: NDArray[np.uint8], dtype: DTypeLike) -> PackedWeights: ...
    def to_bytes(self) -> bytes: ...
    def __reduce__(self) -> tuple[Callable[[bytes, DTypeLike], PackedWeights], tuple[bytes, np.dtype[Any]]]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

@final
class QuantisedPlan:
    """How to compute one layer of bytes on arrays of one shape."""

    @property
    def op(self) -> str: ...
    @property
    def dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def output_shape(self) -> tuple[int, ...]: ...
    @property
    def weight_shape(self) -> tuple[int, ...]: ...
    @property
    def macs(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    def pack(
        self, w: NDArray[Any], b: NDArray[np.int32] | None = None, *, w_zero_point: _ZeroPoint | None = None
    ) -> QuantisedWeights: ...
    def scaled(
        self,
        weights: QuantisedWeights,
        *,
        x_scale: _Scale | None = None,
        x_zero_point: _ZeroPoint | None = None,
        w_scale: _Scale | None = None,
        y_scale: _Scale | None = None,
        y_zero_point: _ZeroPoint | None = None,
        y_table: NDArray[np.uint8] | NDArray[np.int8] | None = None,
    ) -> Scaled: ...
    def run(
        self,
        x: NDArray[Any],
        weights: QuantisedWeights,
        scaled: Scaled,
        *,
        residual: NDArray[Any] | None = None,
        residual_scale: _Scale | None = None,
        residual_zero_point: _ZeroPoint | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]: ...
    def explain(self) -> str: ...

@final
class QuantisedWeights:
    """The weights and the bias of a layer of bytes, as a quantised plan has packed them."""

@final
class Scaled:
    """What runs do with sums: made by ``QuantisedPlan.scaled`` for some weights, which it is for alone."""
