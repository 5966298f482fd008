"""Conv and ConvTranspose of any ONNX model on convoke, inside onnxruntime.

    import onnxruntime
    import convoke_onnxruntime

    options = onnxruntime.SessionOptions()
    convoke_onnxruntime.add_to(options)
    session = onnxruntime.InferenceSession("model.onnx", options)
"""

from __future__ import annotations

import inspect
import pathlib
import threading

import onnxruntime

from ._compare import Comparison, Node, compare, table
from ._faster import faster_session

__all__ = ["PROVIDER", "Comparison", "Node", "add_to", "compare", "devices", "faster_session", "library_path", "register", "table", "unregister"]

PROVIDER = "Convoke"
"""The provider's name, as in ``InferenceSession.get_providers()``."""

_REGISTERED_AS = "convoke"
# An entry of a session's configuration that says that the provider was added. Copies of the options have it, too.
_ADDED = "convoke_onnxruntime.added"
# Threads that a layer is split for, at most, where the number is onnxruntime's.
_MOST_THREADS = 1024
# The smallest model that onnxruntime takes: a graph "trial" whose float input x is its output.
_TRIAL = b"\x08\x08:\x1d\x12\x05trialZ\x09\x0a\x01x\x12\x04\x0a\x02\x08\x01b\x09\x0a\x01x\x12\x04\x0a\x02\x08\x01B\x02\x10\x0d"
_lock = threading.Lock()
_registered = False


def __dir__() -> list[str]:
    return __all__


def library_path() -> pathlib.Path:
    """The library, for programs that register it themselves."""
    folder = pathlib.Path(__file__).parent
    for name in ("libconvoke_onnxruntime.so", "libconvoke_onnxruntime.dylib", "convoke_onnxruntime.dll"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{folder} has no library of convoke: was the package built for this platform?")


def register() -> None:
    """Makes the provider known to onnxruntime. Further calls do nothing."""
    global _registered
    with _lock:
        if not _registered:
            if not hasattr(onnxruntime, "register_execution_provider_library"):
                raise RuntimeError(f"convoke needs onnxruntime 1.24 or newer, and this is {onnxruntime.__version__}")
            onnxruntime.register_execution_provider_library(_REGISTERED_AS, str(library_path()))
            _registered = True


def unregister() -> None:
    """Unloads the library. No session may use it any more."""
    global _registered
    with _lock:
        if _registered:
            onnxruntime.unregister_execution_provider_library(_REGISTERED_AS)
            _registered = False


def devices() -> list[onnxruntime.OrtEpDevice]:
    """The provider's devices, which is the CPU. Registers the provider."""
    register()
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]


def add_to(
    session_options: onnxruntime.SessionOptions,
    *,
    threads: int | None = None,
    accuracy: str | None = None,
    isa: str | None = None,
    workspace_limit: int | None = None,
    tuning_file: str | pathlib.Path | None = None,
    tune: bool | None = None,
    share_weights: bool | None = None,
    layout: str | None = None,
    log_level: str | None = None,
) -> onnxruntime.SessionOptions:
    """Adds the provider to the options of a session, in front of onnxruntime's own.

    Nodes that convoke does not take run on onnxruntime's own provider. The README describes the
    options. What is ``None`` has its default; ``threads`` is then the options'
    ``intra_op_num_threads``, which must be set before, but at most 1024.

    Returns the same options. Raises ``ValueError`` for a value that cannot be, and for options to
    which the provider was added before.
    """
    if _is_added(session_options):
        raise ValueError("convoke: add_to was called with these session options before; a session has the provider once")
    if threads is None and session_options.intra_op_num_threads > 0:
        threads = min(session_options.intra_op_num_threads, _MOST_THREADS)
    chosen = {
        "threads": threads,
        "accuracy": accuracy,
        "isa": isa,
        "workspace_limit": workspace_limit,
        "tuning_file": tuning_file,
        "tune": _switch(tune),
        "share_weights": _switch(share_weights),
        "layout": layout,
        "log_level": log_level,
    }
    texts = {name: str(value) for name, value in chosen.items() if value is not None}
    _try(texts, session_options.use_per_session_threads)
    session_options.add_provider_for_devices(devices(), texts)
    session_options.add_session_config_entry(_ADDED, "1")
    return session_options


def _is_added(session_options: onnxruntime.SessionOptions) -> bool:
    return _entry(session_options, _ADDED) == "1"


def _entry(session_options: onnxruntime.SessionOptions, name: str) -> str | None:
    """An entry of a session's configuration."""
    try:
        return session_options.get_session_config_entry(name)
    except RuntimeError:  # There is no such entry.
        return None


def _chosen(session_options: onnxruntime.SessionOptions) -> dict[str, str]:
    """The options of convoke that session options have, as the library reads them."""
    entries = {name: _entry(session_options, f"ep.convoke.{name}") for name in inspect.signature(add_to).parameters}
    return {name: value for name, value in entries.items() if value is not None}


def _switch(value: bool | None) -> str | None:
    """An option that is off or on, as the library reads it. The library refuses other values."""
    return {"None": None, "False": "0", "True": "1"}.get(str(value), str(value))


def _try(texts: dict[str, str], use_per_session_threads: bool) -> None:
    """Makes a session of a trial model, so that mistakes are errors here.

    ``InferenceSession`` of onnxruntime 1.24 only prints such an error, and goes on without convoke.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.use_per_session_threads = use_per_session_threads
    options.add_provider_for_devices(devices(), texts)
    try:
        onnxruntime.InferenceSession(_TRIAL, options, enable_fallback=False)
    except Exception as error:
        _, found, message = str(error).partition("convoke: ")
        # What is not convoke's is for the user's own session to say, if it is true of that one.
        if found:
            raise ValueError(f"convoke: {message.strip()}") from None
