"""A worker that times whole networks with one engine: `python engines.py onnxruntime`.

Its protocol is that of peers.py: each line of standard input is a request, and each line of standard output is an answer. A request makes a session, times
it, and ends it, because the threads of an idle session wait actively for a while and would take time from the next one. Input and outputs are plain NCHW in
f32, but for XNNPACK. Libraries are loaded, and models converted for ncnn, MNN and XNNPACK, once and before the timing: that is `prepare` of each engine.

ncnn's converter is `pnnx`. Its package contains a program that needs nothing else, and Python modules that need torch. Only the program is used. `onnx2tf`, the
converter for XNNPACK, has an environment of its own, because it needs a newer Python and older libraries.
"""

import gc
import importlib.util
import pathlib
import subprocess
import sys
import time

import numpy as np
from peers import measure, mnn_convert, mnn_session, mnn_tensor, ncnn_options, openvino_settings, read, serve, session_options

# `run` installs it beside the environment of this program.
ONNX2TF = pathlib.Path(sys.prefix).with_name("onnx2tf") / "bin/onnx2tf"


# Operators of which the tables count how many run on convoke.
CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger")


class OnnxRuntime:
    """Input and outputs are bound to memory of their own, so that no run allocates or copies them."""

    # Which of them is faster differs from network to network.
    LEVELS = ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]

    @staticmethod
    def prepare(path, x):
        import onnxruntime

    def __init__(self, level, path, x, threads):
        import onnxruntime as ort

        options = session_options(getattr(ort.GraphOptimizationLevel, level), threads)
        self.session = self.open(ort, str(path), options)
        self.facts = {"level": level}

    def open(self, ort, path, options):
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(self, x, names):
        import onnxruntime as ort

        name = self.session.get_inputs()[0].name
        source = ort.OrtValue.ortvalue_from_shape_and_type(x.shape, np.float32)
        source.update_inplace(x)
        self.binding = self.session.io_binding()
        self.binding.bind_ortvalue_input(name, source)
        # The shapes of the outputs are known after a run.
        self.sinks = [ort.OrtValue.ortvalue_from_shape_and_type(y.shape, np.float32) for y in self.session.run(names, {name: x})]
        for name, sink in zip(names, self.sinks):
            self.binding.bind_ortvalue_output(name, sink)

    def run(self):
        self.session.run_with_iobinding(self.binding)

    def outputs(self):
        return [sink.numpy() for sink in self.sinks]


class Convoke(OnnxRuntime):
    """onnxruntime with convoke's provider, which has to have layers of the network."""

    LEVELS = ["ORT_ENABLE_ALL"]

    @staticmethod
    def prepare(path, x):
        import convoke_onnxruntime

        convoke_onnxruntime.register()

    def open(self, ort, path, options):
        import convoke_onnxruntime

        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return ort.InferenceSession(path, convoke_onnxruntime.add_to(options))

    def bind(self, x, names):
        import convoke_onnxruntime

        parts = self.session.get_provider_graph_assignment_info()
        ops = [node.op_type for part in parts if part.ep_name == convoke_onnxruntime.PROVIDER for node in part.get_nodes()]
        if not ops:
            raise ValueError("no node ran on convoke")
        self.facts |= {"nodes": len(ops), "convolutions": sum(op in CONVOLUTIONS for op in ops)}
        super().bind(x, names)


class OpenVino:
    LEVELS = [None]

    @staticmethod
    def prepare(path, x):
        import openvino

    def __init__(self, level, path, x, threads):
        import openvino

        self.model = openvino.Core().compile_model(str(path), "CPU", openvino_settings(threads))
        self.facts = {}

    def bind(self, x, names):
        import openvino

        self.request = self.model.create_infer_request()
        self.request.set_input_tensor(openvino.Tensor(x, shared_memory=True))

    def run(self):
        # Without this option each call copies the outputs into new arrays.
        self.request.infer(share_outputs=True)

    def outputs(self):
        return [self.request.get_output_tensor(i).data for i in range(len(self.model.outputs))]


class Ncnn:
    """It has no batches: inputs and outputs are those of one image."""

    LEVELS = [None]

    @staticmethod
    def prepare(path, x):
        import ncnn

        if (path.parent / "model.ncnn.param").exists():
            return
        program = pathlib.Path(importlib.util.find_spec("pnnx").origin).with_name("pnnx")
        shape = ",".join(map(str, x.shape))
        done = subprocess.run([program, path.name, f"inputshape=[{shape}]f32", "fp16=0"], cwd=path.parent, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if done.returncode or not (path.parent / "model.ncnn.param").exists():
            raise ValueError(f"pnnx does not convert the model: status {done.returncode}")

    def __init__(self, level, path, x, threads):
        import ncnn

        self.net = ncnn.Net()
        # Python deletes attributes in the order in which they were set, so the pools must be set
        # after the network to outlive it.
        self.pools = ncnn_options(self.net, threads)
        if self.net.load_param(str(path.parent / "model.ncnn.param")) or self.net.load_model(str(path.parent / "model.ncnn.bin")):
            raise ValueError("ncnn does not load the converted model")
        self.facts = {}

    def bind(self, x, names):
        import ncnn

        self.x = ncnn.Mat(x[0]).clone()
        self.names = [f"out{i}" for i in range(len(self.net.output_names()))]

    def run(self):
        extractor = self.net.create_extractor()
        extractor.input("in0", self.x)
        self.y = []
        for name in self.names:
            status, y = extractor.extract(name)
            if status:
                raise ValueError(f"ncnn: status {status}")
            self.y.append(y)

    def outputs(self):
        return [np.array(y) for y in self.y]


class Mnn:
    """Its own layout is blocked. The copies in and out are part of a run."""

    LEVELS = [None]

    @staticmethod
    def prepare(path, x):
        import MNN

        if not path.with_suffix(".mnn").exists():
            mnn_convert(path, path.with_suffix(".mnn"))

    def __init__(self, level, path, x, threads):
        import MNN

        self.interpreter = MNN.Interpreter(str(path.with_suffix(".mnn")))
        self.session = mnn_session(self.interpreter, threads)
        self.source = self.interpreter.getSessionInput(self.session)
        self.interpreter.resizeTensor(self.source, x.shape)
        self.interpreter.resizeSession(self.session)
        self.facts = {}

    def bind(self, x, names):
        sinks = self.interpreter.getSessionOutputAll(self.session)
        self.x = mnn_tensor(x)
        self.sinks = [(sinks[name], mnn_tensor(np.zeros(sinks[name].getShape(), np.float32))) for name in names]

    def run(self):
        self.source.copyFrom(self.x)
        self.interpreter.runSession(self.session)
        for sink, y in self.sinks:
            sink.copyToHostTensor(y)

    def outputs(self):
        return [y.getNumpyData() for _, y in self.sinks]


class Xnnpack:
    """LiteRT's interpreter, which hands to XNNPACK the operators that it takes, and runs the others itself. Channels are last. Input and outputs are converted
    from and to NCHW outside of the timing."""

    LEVELS = [None]

    @staticmethod
    def prepare(path, x):
        if not ONNX2TF.exists():
            raise ValueError("the converter onnx2tf is not installed: it needs Python 3.12 or 3.13")
        import ai_edge_litert.interpreter

        converted = path.parent / "model_float32.tflite"
        if converted.exists():
            return
        command = [ONNX2TF, "-i", path.name, "-o", ".", "-v", "error"]
        done = subprocess.run(command, cwd=path.parent, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if done.returncode or not converted.exists():
            raise ValueError(f"onnx2tf does not convert the model: status {done.returncode}")

    def __init__(self, level, path, x, threads):
        from ai_edge_litert.interpreter import Interpreter

        self.path = path
        self.interpreter = Interpreter(model_path=str(path.with_name("model_float32.tflite")), num_threads=threads)
        self.interpreter.allocate_tensors()
        # As for layers in peers.py: what XNNPACK takes is operators of the delegate.
        if all(operator["op_name"] != "DELEGATE" for operator in self.interpreter._get_ops_details()):
            raise ValueError("XNNPACK takes no operator")
        self.facts = {}

    def bind(self, x, names):
        self.x, self.names = x, names
        source, last = self.interpreter.get_input_details()[0], np.moveaxis(x, 1, -1)
        self.interpreter.set_tensor(source["index"], np.ascontiguousarray(last if last.shape == tuple(source["shape"]) else x))

    def run(self):
        self.interpreter.invoke()

    def outputs(self):
        import onnxruntime as ort

        session = ort.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        shapes = [y.shape for y in session.run(self.names, {session.get_inputs()[0].name: self.x})]
        found = {sink["name"]: self.interpreter.get_tensor(sink["index"]) for sink in self.interpreter.get_output_details()}
        return [channels_first(found[name], shape) for name, shape in zip(self.names, shapes)]


def channels_first(y, shape):
    """The converter leaves some outputs as they are, and puts the channels of others last. Those have another shape than onnxruntime's."""
    return y if y.shape == shape else np.moveaxis(y, -1, 1)


ENGINES = {"onnxruntime": OnnxRuntime, "convoke": Convoke, "openvino": OpenVino, "ncnn": Ncnn, "mnn": Mnn, "xnnpack": Xnnpack}


def answer(engine, request):
    """The fastest run, and what it took to make the session, with the faster of the engine's levels."""
    path = pathlib.Path(request["dir"]) / "model.onnx"
    x = read(path.with_name("x.bin"), request["x"])
    engine.prepare(path, x)
    return min((measured(engine, level, path, x, request) for level in engine.LEVELS), key=lambda timing: timing["min"])


def measured(engine, level, path, x, request):
    start = time.perf_counter()
    made = engine(level, path, x, request["threads"])
    load = time.perf_counter() - start
    made.bind(x, request["outputs"])
    timing = measure(made.run, request["secs"]) | {"load": load} | made.facts
    if request["out"]:
        np.savez(request["out"], *made.outputs())
    del made
    # Nothing of a session may be left when the next one is timed.
    gc.collect()
    return timing


if __name__ == "__main__":
    serve(lambda request: answer(ENGINES[sys.argv[1]], request))
