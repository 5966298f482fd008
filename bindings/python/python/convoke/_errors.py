"""The errors of the package: one class for each kind of rule."""

from __future__ import annotations

from typing import ClassVar


class Error(ValueError):
    """What this package refuses. The message names operator, axis, value and rule.

    The subclasses are the kinds of rules, and ``kind`` is the name that Rust gives them.
    """

    kind: ClassVar[str] = "Error"


class UnsupportedOperatorError(Error):
    """The opset, or an attribute's name or type, is not known."""

    kind = "UnsupportedOperator"


class InvalidAttributeError(Error):
    """An attribute's value or length breaks a rule of the operator."""

    kind = "InvalidAttribute"


class InvalidShapeError(Error):
    """The shapes of arrays do not fit each other or the attributes."""

    kind = "InvalidShape"


class InvalidTypeError(Error, TypeError):
    """A value is no array, or its dtype is not that of the layer."""

    kind = "InvalidType"


class InvalidInputError(Error):
    """An array's memory cannot be used: its layout, or because it is read-only, shared or in use. Or a scale or a zero
    point is none."""

    kind = "InvalidInput"


class SizeOverflowError(Error):
    """A size does not fit the address space."""

    kind = "Overflow"


class BufferLengthError(Error):
    """An array's length is not that of its shape."""

    kind = "BufferLength"


class WorkspaceError(Error):
    """A plan needs more scratch memory than the limit allows."""

    kind = "Workspace"


class ThreadsError(Error):
    """So many threads cannot be had."""

    kind = "Threads"


class OutOfMemoryError(Error, MemoryError):
    """Memory could not be allocated."""

    kind = "OutOfMemory"


class PackedMismatchError(Error):
    """The packed weights are not those of the plan."""

    kind = "PackedMismatch"


class UnavailableError(Error):
    """An algorithm, instruction set or other choice cannot be had."""

    kind = "Unavailable"


class InvalidPackedError(Error):
    """Bytes are not packed weights that can be used here."""

    kind = "InvalidPacked"


BY_KIND: dict[str, type[Error]] = {cls.kind: cls for cls in Error.__subclasses__()}
