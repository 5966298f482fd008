"""Builds the library and puts it into the wheel."""

import json
import os
import pathlib
import subprocess
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = pathlib.Path(__file__).parent
# What the package looks for, by platform.
NAMES = ["libconvoke_onnxruntime.so", "libconvoke_onnxruntime.dylib", "convoke_onnxruntime.dll"]


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        # Another target's library, for example of a cross compiler, may be given with the tag of
        # its platform.
        library = os.environ.get("CONVOKE_ONNXRUNTIME_LIBRARY") or build()
        if pathlib.Path(library).name not in NAMES:
            raise ValueError(f"CONVOKE_ONNXRUNTIME_LIBRARY: {library} must have one of the names {', '.join(NAMES)}")
        platform = os.environ.get("CONVOKE_WHEEL_PLATFORM") or sysconfig.get_platform()
        build_data["pure_python"] = False
        # It is loaded by onnxruntime, and knows nothing of Python.
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
        build_data["force_include"][library] = f"convoke_onnxruntime/{pathlib.Path(library).name}"


def build():
    """The path of the library, built by cargo."""
    command = ["cargo", "build", "--locked", "--release", "--message-format=json-render-diagnostics", "-p", "convoke-onnxruntime"]
    messages = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout
    for message in map(json.loads, messages.splitlines()):
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == "convoke_onnxruntime":
            return next(name for name in message["filenames"] if not name.endswith((".rlib", ".d", ".lib")))
    raise RuntimeError("cargo built no library")
