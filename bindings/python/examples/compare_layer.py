"""Times one layer with convoke and with onnxruntime, in turn, and draws the two bars.

    python compare_layer.py                                        # 64 to 64 channels, 3x3, at 56x56
    python compare_layer.py --x 1,32,112,112 --w 32,1,3,3 --group 32 --pads 1,1,1,1
    python compare_layer.py --op ConvTranspose --x 1,128,28,28 --w 128,64,2,2 --strides 2,2

It needs the packages onnx and onnxruntime. Weights are packed before the timing, and the fastest run of each counts.
"""

import argparse
import sys
import time

import convoke
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

BAR = 50
"""Characters of the longest bar."""


def main():
    options = arguments()
    attributes = {name: getattr(options, name) for name in ("strides", "pads", "dilations", "group")}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (options.x, options.w))
    try:
        plan = by_operator(convoke.Planner(threads=options.threads), options.op)(x.shape, w.shape, **attributes)
    except convoke.Error as error:
        return str(error)
    if plan.macs == 0:
        return "there is nothing to multiply"

    runs = {"convoke": run_of_convoke(plan, x, w), "onnxruntime": run_of_onnxruntime(plan, x, w, attributes)}
    difference = np.abs(runs["convoke"]() - runs["onnxruntime"]()).max() / np.abs(runs["onnxruntime"]()).max()
    seconds = fastest(runs, options.seconds)

    print(f"{plan.op} {plan.input_shape} by {plan.weight_shape}, {plan.algorithm} on {plan.isa}, {plan.threads} threads")
    print(f"largest difference: {difference:.1e} of the largest element")
    for name, rate in ((name, 2 * plan.macs / value / 1e9) for name, value in seconds.items()):
        length = BAR * rate * min(seconds.values()) / (2 * plan.macs / 1e9)
        print(f"{name:>12} {'█' * max(round(length), 1):<{BAR}} {rate:7.1f} GFLOP/s {seconds[name] * 1e3:9.3f} ms")
    return 0


def by_operator(planner, op):
    return planner.conv if op == "Conv" else planner.conv_transpose


def run_of_convoke(plan, x, w):
    packed = plan.pack(w)
    return lambda: plan.run(x, packed)


def run_of_onnxruntime(plan, x, w, attributes):
    node = helper.make_node(plan.op, ["x", "w"], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x.shape), ("y", plan.output_shape))]
    graph = helper.make_graph([node], "layer", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = plan.threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def fastest(runs, seconds):
    """The fastest run of each, in rounds of all in turn."""
    least, end = dict.fromkeys(runs, float("inf")), time.perf_counter() + seconds
    while time.perf_counter() < end or float("inf") in least.values():
        for name, run in runs.items():
            for _ in range(3):
                begin = time.perf_counter()
                run()
                least[name] = min(least[name], time.perf_counter() - begin)
    return least


def arguments():
    def sizes(text):
        return [int(size) for size in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=["Conv", "ConvTranspose"], default="Conv")
    parser.add_argument("--x", type=sizes, default=[1, 64, 56, 56], help="the shape of X")
    parser.add_argument("--w", type=sizes, default=[64, 64, 3, 3], help="the shape of W")
    parser.add_argument("--strides", type=sizes)
    parser.add_argument("--pads", type=sizes)
    parser.add_argument("--dilations", type=sizes)
    parser.add_argument("--group", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2, help="how long the layer is timed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
