"""A worker that times layers with one of the libraries that are Python packages: `python peers.py onnxruntime`.

Its protocol is that of `convoke-tools worker --help`: each line of standard input is a request, and each line of standard output is an answer. Weights are
constants of the model, and are packed before timing starts. Input and output are plain NCHW in f32; layers in bytes have them in the layout of the request.
For xnnpack and onednn they are NHWC, and are converted from and to NCHW outside of the timing. The peers whose names end in `-blocked` have them as the library
picks, converted likewise.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import tempfile
import time

import numpy as np
import quantised


class OnnxRuntime:
    """The faster of two levels of optimisation: one with its blocked layout (and conversions to it), and one without. Input and output are bound to its own
    memory, so that no run allocates or copies them."""

    def __init__(self, row, folder, x, w, b, threads):
        self.load(str(folder / "model.onnx"), x, row["y"], threads)

    def load(self, model, x, shape, threads):
        import onnxruntime as ort

        levels = ort.GraphOptimizationLevel
        candidates = []
        for level in (levels.ORT_ENABLE_EXTENDED, levels.ORT_ENABLE_ALL):
            session = ort.InferenceSession(model, session_options(level, threads), providers=["CPUExecutionProvider"])
            run, sink = bound(session, x, shape)
            candidates.append((best_of(run, 6), run, sink))
        _, self.run, self.sink = min(candidates, key=lambda c: c[0])

    def output(self):
        self.run()
        return self.sink.numpy()


class OnnxRuntimeBytes(OnnxRuntime):
    def __init__(self, row, folder, x, w, b, threads):
        self.row = row
        self.load(quantised.qlinear(row, w, b), in_layout(row, x), quantised.shape(row, "y"), threads)

    def output(self):
        return from_layout(self.row, super().output())


class OnnxRuntimeBlocked:
    """onnxruntime's kernel in its blocked layout, alone. Its optimiser replaces the layer by nodes that convert X, compute, and convert Y, and writes them to a
    file. Each becomes a session of its own, and only the one that computes is timed. If X has fewer channels than a block, that one reads plain NCHW, and no
    node converts X."""

    def __init__(self, row, folder, x, w, b, threads):
        import onnx
        import onnxruntime as ort

        levels = ort.GraphOptimizationLevel
        options = session_options(levels.ORT_ENABLE_ALL, threads)
        options.optimized_model_filepath = str(folder / "blocked.onnx")
        ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        model = onnx.load(folder / "blocked.onnx")
        if {node.domain for node in model.graph.node} != {"com.microsoft.nchwc"}:
            raise ValueError("onnxruntime does not take the layer into its blocked layout")
        *before, convolution, after = [node_session(model, node, session_options(levels.ORT_DISABLE_ALL, threads)) for node in model.graph.node]
        for session in before:
            x = run_once(session, x)
        self.run, self.sink = bound(convolution, x, run_once(convolution, x).shape)
        self.after = after

    def output(self):
        self.run()
        return run_once(self.after, self.sink.numpy())


class OpenVino:
    def __init__(self, row, folder, x, w, b, threads):
        import openvino

        self.load(openvino.Core().read_model(folder / "model.onnx"), x, threads)

    def load(self, model, x, threads):
        import openvino

        self.model = openvino.Core().compile_model(model, "CPU", openvino_settings(threads))
        self.request = self.model.create_infer_request()
        self.request.set_input_tensor(openvino.Tensor(x, shared_memory=True))

    def run(self):
        # Without this option each call copies the outputs into new arrays.
        self.request.infer(share_outputs=True)

    def output(self):
        self.run()
        return self.request.get_output_tensor().data


class OpenVinoBytes(OpenVino):
    def __init__(self, row, folder, x, w, b, threads):
        import openvino

        self.row, self.x = row, in_layout(row, x)  # the request has X's bare address
        self.load(openvino.Core().read_model(quantised.qdq(row, w, b)), self.x, threads)
        facts = [node.get_rt_info() for node in self.model.get_runtime_model().get_ops()]
        types = {str(fact["runtimePrecision"].astype(str)) for fact in facts if fact["layerType"].astype(str) in ("Convolution", "Deconvolution")}
        if not types or not types <= {"u8", "i8"}:
            raise ValueError(f"OpenVINO computes the layer in {', '.join(sorted(types)) or 'nodes of another kind'}")

    def output(self):
        return from_layout(self.row, super().output())


class Ncnn:
    """Its layers. It has no batches, so images run one after the other."""

    # Numbers of an axis' parameters, from the innermost axis: kernel, dilation, stride, padding
    # at the beginning and at the end, output padding.
    AXES = [(1, 2, 3, 4, 15, 18), (11, 12, 13, 14, 16, 19), (21, 22, 23, 24, 17, 20)]
    # More parameters, and whether outputs stay as they are computed, or become plain floats.
    MORE, AS_COMPUTED = {}, 0

    def __init__(self, row, folder, x, w, b, threads):
        import ncnn

        axes, group, out = len(row["strides"]), row["group"], row["y"][1]
        transposed = row["op"] == "ConvTranspose"
        self.check(row, axes, transposed)
        layer = ("Deconvolution" if transposed else "Convolution") + ("DepthWise" if group > 1 else "") + {1: "1D", 2: "", 3: "3D"}[axes]
        parameters = {0: out, 5: 1, 6: w.size} | self.MORE
        if group > 1:
            parameters[7] = group
        for ids, axis in zip(self.AXES, reversed(range(axes))):
            values = [row["w"][2 + axis], row["dilations"][axis], row["strides"][axis], row["pads"][axis], row["pads"][axes + axis]]
            parameters.update(zip(ids, values))
            if transposed:
                parameters[ids[5]] = row["output_padding"][axis]
            # The padding at the end is a separate parameter only if it differs.
            if values[3] == values[4]:
                del parameters[ids[4]]
        if transposed:  # (C, M/group) in each group becomes (M/group, C/group)
            w = w.reshape([group, row["x"][1] // group, out // group] + row["w"][2:]).swapaxes(1, 2)
        text = " ".join(f"{key}={value}" for key, value in sorted(parameters.items()))
        (folder / "ncnn.param").write_text(f"7767517\n2 2\nInput data 0 1 data\n{layer} layer 1 1 data out {text}\n")
        (folder / "ncnn.bin").write_bytes(self.weights(row, np.ascontiguousarray(w), b))
        self.net = ncnn.Net()
        # Python deletes attributes in the order in which they were set, so the pools must be set
        # after the network to outlive it.
        self.pools = ncnn_options(self.net, threads)
        if self.net.load_param(str(folder / "ncnn.param")) or self.net.load_model(str(folder / "ncnn.bin")):
            raise ValueError("ncnn does not load the layer")
        self.images = [ncnn.Mat(np.ascontiguousarray(image)).clone() for image in x]
        self.shape = row["y"]

    @staticmethod
    def check(row, axes, transposed):
        if transposed and axes == 3 and row["group"] > 1:
            raise ValueError("grouped 3-D transposed convolution is not there")

    @staticmethod
    def weights(row, w, b):
        flag = np.zeros(1, np.uint32)  # weights follow as f32
        return flag.tobytes() + w.tobytes() + b.tobytes()

    def run(self):
        outputs = []
        for image in self.images:
            extractor = self.net.create_extractor()
            extractor.input("data", image)
            status, y = extractor.extract("out", self.AS_COMPUTED)
            if status:
                raise ValueError(f"ncnn: status {status}")
            outputs.append(y)
        return outputs

    def output(self):
        return np.stack([np.array(y).reshape(self.shape[1:]) for y in self.run()])


class NcnnBytes(Ncnn):
    """It knows signed bytes without zero points. Its Y stays in blocks of channels, because it would convert plain bytes to floats."""

    MORE, AS_COMPUTED = {8: 101}, 1

    def __init__(self, row, folder, x, w, b, threads):
        super().__init__(row, folder, quantised.signed(x), w, b, threads)

    @staticmethod
    def check(row, axes, transposed):
        # With groups it has one scale for each.
        if transposed or axes != 2 or not (row["group"] == 1 or row["group"] == row["x"][1] == row["y"][1]):
            raise ValueError("ncnn has bytes for Conv of two axes alone, with one group, or one channel of X and Y in each group")

    @staticmethod
    def weights(row, w, b):
        q = row["quantised"]
        flag = np.array([0x000D4B38], np.uint32)  # weights follow as bytes, of whole words
        scales = np.concatenate([1 / np.array(q["w_scale"]), [1 / q["x_scale"], 1 / q["y_scale"]]])
        return flag.tobytes() + w.tobytes() + bytes(-w.size % 4) + quantised.float_bias(row, b).tobytes() + scales.astype(np.float32).tobytes()

    def output(self):
        import ncnn

        def plain(y):
            found = ncnn.Mat()
            ncnn.convert_packing(y, found, 1)
            return np.array(found).reshape(self.shape[1:])

        return quantised.signed(np.stack([plain(y) for y in self.run()]))


class Mnn:
    """The copies in and out, from and to NCHW, are part of a run."""

    def __init__(self, row, folder, x, w, b, threads):
        import MNN

        mnn_convert(folder / "model.onnx", folder / "model.mnn")
        self.interpreter = MNN.Interpreter(str(folder / "model.mnn"))
        self.session = mnn_session(self.interpreter, threads)
        source, sink = self.interpreter.getSessionInput(self.session), self.interpreter.getSessionOutput(self.session)
        self.interpreter.resizeTensor(source, tuple(row["x"]))
        self.interpreter.resizeSession(self.session)
        self.x, self.y = mnn_tensor(x), mnn_tensor(np.zeros(row["y"], np.float32))
        self.source, self.sink = source, sink

    def run(self):
        self.source.copyFrom(self.x)
        self.interpreter.runSession(self.session)
        self.sink.copyToHostTensor(self.y)

    def output(self):
        self.run()
        return self.y.getNumpyData()


class Xnnpack:
    """TensorFlow Lite's interpreter hands the operator to XNNPACK."""

    def __init__(self, row, folder, x, w, b, threads):
        import xnnpack
        from ai_edge_litert.interpreter import Interpreter

        self.model = xnnpack.model(row, w, b)
        self.interpreter = Interpreter(model_content=xnnpack.write(self.model), num_threads=threads)
        self.interpreter.allocate_tensors()
        # The interpreter runs kernels of its own, without a word, where XNNPACK does not take the
        # operator. If it does, there is an operator more, that of the delegate. XNNPACK is the only
        # delegate by default.
        names = [operator["op_name"] for operator in self.interpreter._get_ops_details()]
        if names != [self.model.op, "DELEGATE"]:
            raise ValueError(f"XNNPACK does not take the operator: {', '.join(names)}")
        self.interpreter.set_tensor(self.interpreter.get_input_details()[0]["index"], self.model.from_onnx(x))
        self.run = self.interpreter.invoke

    def output(self):
        self.run()
        return self.model.to_onnx(self.interpreter.get_tensor(self.interpreter.get_output_details()[0]["index"]))


class OneDnn:
    """Its threads are OpenMP's. Their number is in the environment."""

    BLOCKED = False

    def __init__(self, row, folder, x, w, b, threads):
        import onednn

        if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2" and onednn.effective_isa() != onednn.AVX2:
            raise ValueError("oneDNN is not held to AVX2")
        last = np.moveaxis(x, 1, -1)
        source, self.y = aligned(last.shape, x.dtype), aligned([row["y"][0], *row["y"][2:], row["y"][1]], x.dtype)
        source[...] = last
        self.layer = onednn.Layer(row, source, w, b, self.y, self.BLOCKED)
        self.run = self.layer.run

    def output(self):
        self.layer.output()
        return np.moveaxis(self.y, -1, 1)


class OneDnnBlocked(OneDnn):
    """X and Y in the layouts that it picks, to and from which it converts outside of the timing."""

    BLOCKED = True


# --- What engines.py uses too ----------------------------------------------------------------------------------------


def session_options(level, threads):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return options


def bound(session, x, shape):
    """A run whose input and output, of this shape, are bound to memory of their own, and that output."""
    import onnxruntime as ort

    source, sink = (ort.OrtValue.ortvalue_from_shape_and_type(size, x.dtype) for size in (x.shape, shape))
    source.update_inplace(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input(session.get_inputs()[0].name, source)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, sink)
    return lambda: session.run_with_iobinding(binding), sink


def run_once(session, x):
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def node_session(model, node, options):
    """A session of one node of a model, with the constants of the model. Its first input and its output are those of the session."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    source, sink = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (node.input[0], node.output[0]))
    graph = helper.make_graph([node], node.op_type, [source], [sink], model.graph.initializer)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return ort.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])


def openvino_settings(threads):
    """Restricted to f32. By default it computes in bf16 on CPUs with bf16 arithmetic."""
    return {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}


def ncnn_options(net, threads):
    """Sets a network's options: no half-precision storage and arithmetic; and memory pools, as in its own benchmark. From a pool that it makes itself, it
    would copy each output. Returns the pools, which must live longer than the network, because it has bare pointers to them."""
    import ncnn

    options = net.opt
    options.num_threads, options.use_vulkan_compute = threads, False
    options.use_fp16_storage = options.use_fp16_arithmetic = options.use_fp16_packed = options.use_bf16_storage = False
    pools = options.blob_allocator, options.workspace_allocator = ncnn.UnlockedPoolAllocator(), ncnn.PoolAllocator()
    return pools


def mnn_convert(model, path):
    """The converter is called directly, because the program `mnnconvert` also sends a usage report, and installs a package for that in every call.

    It leaves files in the working directory, so that is the folder of what it writes."""
    import _tools

    model, path = model.absolute(), path.absolute()
    with contextlib.chdir(path.parent):
        _tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", str(model), "--MNNModel", str(path), "--bizCode", "x"])
    if not path.exists():
        raise ValueError("MNN does not convert the model")


def mnn_session(interpreter, threads):
    """High precision: f32 sums and storage."""
    return interpreter.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})


def mnn_tensor(values):
    """A tensor in plain NCHW."""
    import MNN

    return MNN.Tensor(values.shape, MNN.Halide_Type_Float, values, MNN.Tensor_DimensionType_Caffe)


PEERS = {
    "onnxruntime": OnnxRuntime, "openvino": OpenVino, "ncnn": Ncnn, "mnn": Mnn, "xnnpack": Xnnpack, "onednn": OneDnn, "onednn-blocked": OneDnnBlocked,
    "onnxruntime-blocked": OnnxRuntimeBlocked,
}
# The same libraries on layers in bytes. Those that are not here find out by the operands.
BYTES = PEERS | {"onnxruntime": OnnxRuntimeBytes, "openvino": OpenVinoBytes, "ncnn": NcnnBytes}


def best_of(run, times):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(run, duration):
    """Two untimed runs, then as many timed runs as fit the duration, and at least three."""
    run()
    run()
    seconds, end = [], time.perf_counter() + duration
    while len(seconds) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return {"min": seconds[0], "median": seconds[len(seconds) // 2], "reps": len(seconds)}


def aligned(shape, dtype=np.float32):
    """A tensor that begins at a cache line, as with the allocators of engines."""
    size, line = np.dtype(dtype).itemsize * math.prod(shape), 64
    memory = np.empty(size + line, np.uint8)
    begin = -memory.ctypes.data % line
    return memory[begin : begin + size].view(dtype).reshape(shape)


def read(path, shape, dtype=np.float32):
    """A tensor of a file. OpenVINO reads the input in place."""
    tensor = aligned(shape, dtype)
    tensor[...] = np.fromfile(path, dtype).reshape(shape)
    return tensor


def in_layout(row, x):
    """X, which has its channels first, in the layout of the layer."""
    tensor = aligned(quantised.shape(row, "x"), x.dtype)
    tensor[...] = np.moveaxis(x, 1, -1) if quantised.is_last(row) else x
    return tensor


def from_layout(row, y):
    return np.moveaxis(y, -1, 1) if quantised.is_last(row) else y


def answer(peer, request):
    row, folder = request["row"], pathlib.Path(request["dir"])
    is_bytes = "quantised" in row
    types = (np.uint8, np.int8, np.int32) if is_bytes else [np.float32] * 3
    shapes = {"x": row["x"], "w": row["w"], "b": [row["y"][1]]}
    x, w, b = (read(folder / f"{name}.bin", shape, dtype) for (name, shape), dtype in zip(shapes.items(), types))
    # Each worker has its own files, because several workers share the layer's folder.
    with tempfile.TemporaryDirectory() as own:
        own = pathlib.Path(own)
        (own / "model.onnx").symlink_to(folder / "model.onnx")
        layer = (BYTES if is_bytes else PEERS)[peer](row, own, x, w, b, request["threads"])
        timing = measure(layer.run, request["secs"])
        if request.get("out"):
            y = np.ascontiguousarray(layer.output(), x.dtype)
            if list(y.shape) != row["y"]:
                raise ValueError(f"the output's shape is {list(y.shape)}, not {row['y']}")
            y.tofile(request["out"])
    return timing


def serve(answer):
    """Answers the requests."""
    # Text that the libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    serve(lambda request: answer(sys.argv[1], request))
