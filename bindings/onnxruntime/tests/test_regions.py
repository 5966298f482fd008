"""Layers and what stands between them, as one node with channels last: it gives what onnxruntime gives alone."""

import re

import numpy as np
import onnxruntime
import pytest
from conftest import assert_close, layers, output_of, run, run_plain, session
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(11)
TOLERANCE = 1e-4
NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def f(*values):
    return np.array(values, np.float32)


def i(*values):
    return np.array(values, np.int64)


def model(nodes, constants, inputs, outputs=("y",), opset=18):
    """Nodes as (operator, inputs, outputs, attributes), names with spaces between. Inputs are names with dimensions."""
    made = [helper.make_node(op, ["" if name == "_" else name for name in ins.split()], outs.split(), **kind) for op, ins, outs, kind in nodes]
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


# From x of 6 channels to v of 20, and from what is made of it, t, to y.
W = {"w": normal(20, 6, 3, 3), "b": normal(20), "w2": normal(5, 20, 1, 1), "w3": normal(20, 1, 3, 3), "w4": normal(7, 40, 1, 1), "w5": normal(5, 9, 1, 1)}
CONV = ("Conv", "x w b", "v", {"pads": [1, 1, 1, 1]})
END = ("Conv", "t w2", "y", {})
NUMBERS = {"two": f(1, 1, 2, 2), "more": f(1, 1, 1.5, 2.25), "half": f(1, 1, 0.5, 0.6), "sizes": i(1, 20, 13, 31), "six": f(6), "zero": f(0)}
SLICED = {"s": i(3), "e": i(-8), "a": i(1), "o": i(1)}


def pool(op, **kind):
    return [CONV, (op, "v", "t", kind), END]


def resize(by, **kind):
    return [CONV, ("Resize", f"v _ {by}", "t", kind), END]


BETWEEN = {
    "max": pool("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "max-pads": pool("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max-dilated": pool("MaxPool", kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1]),
    "max-ceil": pool("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max-ceil-of-pads": pool("MaxPool", kernel_shape=[2, 2], strides=[3, 4], pads=[1, 1, 1, 1], ceil_mode=1),
    "max-same": pool("MaxPool", kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_LOWER"),
    "mean": pool("AveragePool", kernel_shape=[2, 3], strides=[1, 2]),
    "mean-pads": pool("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "mean-of-padding": pool("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "mean-ceil": pool("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "global-mean": pool("GlobalAveragePool"),
    "global-max": pool("GlobalMaxPool"),
    "reduce-mean": [CONV, ("ReduceMean", "v axes", "t", {}), END],
    "nearest": resize("two", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "nearest-default": resize("more"),
    "nearest-smaller": resize("half", nearest_mode="ceil"),
    "linear": resize("two", mode="linear"),
    "linear-torch": resize("more", mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    "linear-corners": resize("half", mode="linear", coordinate_transformation_mode="align_corners"),
    "linear-sizes": resize("_ sizes", mode="linear", coordinate_transformation_mode="asymmetric"),
    "gate": [CONV, ("GlobalAveragePool", "v", "g", {}), ("Sigmoid", "g", "h", {}), ("Mul", "v h", "t", {}), END],
    "gate-swapped": [CONV, ("GlobalAveragePool", "v", "g", {}), ("HardSigmoid", "g", "h", {}), ("Mul", "h v", "t", {}), END],
    "product": [CONV, ("Conv", "x w b", "u", {"pads": [1, 1, 1, 1]}), ("Tanh", "u", "h", {}), ("Mul", "v h", "t", {}), END],
    "sum": [CONV, ("MaxPool", "v", "p", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), ("AveragePool", "v", "q", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), ("Add", "p q", "r", {}), ("Relu", "r", "t", {}), END],
    "activation": [CONV, ("MaxPool", "v", "p", {"kernel_shape": [2, 2]}), ("Clip", "p zero six", "t", {}), END],
    "slopes": [CONV, ("PRelu", "v slopes", "t", {}), END],
    "concat": [CONV, ("Conv", "v w3", "u", {"group": 20, "pads": [1, 1, 1, 1]}), ("Concat", "v u", "t", {"axis": 1}), ("Conv", "t w4", "y", {})],
    "concat-twice": [CONV, ("Concat", "v v", "t", {"axis": -3}), ("Conv", "t w4", "y", {})],
    "concat-of-concat": [CONV, ("MaxPool", "v", "p", {"kernel_shape": [1, 1]}), ("Slice", "p s e a o", "c", {}), ("Slice", "v k1 k2 a o", "d", {}), ("Concat", "c d", "q", {"axis": 1}), ("Concat", "q v", "t", {"axis": 1}), ("Conv", "t w4", "y", {})],
    "slice": [CONV, ("Slice", "v s e a o", "t", {}), ("Conv", "t w5", "y", {})],
    "split": [CONV, ("Split", "v parts", "t r", {"axis": 1}), ("Conv", "t w5", "u", {}), ("GlobalAveragePool", "r", "h", {}), ("Conv", "h w6", "k", {}), ("Mul", "u k", "m", {}), ("Relu", "m", "y", {})],
    "shuffle": [CONV, ("Reshape", "v pairs", "p", {}), ("Transpose", "p", "q", {"perm": [0, 2, 1, 3, 4]}), ("Reshape", "q whole", "t", {}), END],
    "shuffle-of-five": [CONV, ("Reshape", "v fives", "p", {}), ("Transpose", "p", "q", {"perm": [0, 2, 1, 3, 4]}), ("Reshape", "q whole", "t", {}), END],
    "every-second": [CONV, ("Reshape", "v flat", "p", {}), ("Transpose", "p", "q", {"perm": [1, 0, 2]}), ("Reshape", "q both", "r", {}), ("Gather", "r zeroth", "c", {"axis": 0}), ("Gather", "r minus", "d", {"axis": 0}), ("Concat", "d c", "t", {"axis": 1}), END],
    # onnxruntime runs the node that gives c last, behind what reads d.
    "every-second-late": [CONV, ("Reshape", "v flat", "p", {}), ("Transpose", "p", "q", {"perm": [1, 0, 2]}), ("Reshape", "q both", "r", {}), ("Gather", "r zeroth", "c", {"axis": 0}), ("Gather", "r minus", "d", {"axis": 0}), ("MaxPool", "d", "m", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), ("Concat", "c m", "t", {"axis": 1}), END],
    "every-second-by-split": [CONV, ("Reshape", "v flat", "p", {}), ("Transpose", "p", "q", {"perm": [1, 0, 2]}), ("Reshape", "q tens", "r", {}), ("Split", "r ones", "c d", {"axis": 0}), ("Concat", "d c", "t", {"axis": 1}), END],
}
CONSTANTS = W | NUMBERS | SLICED | {"axes": i(-1, 2), "parts": i(9, 11), "w6": normal(5, 11, 1, 1), "k1": i(0), "k2": i(11), "slopes": normal(20, 1, 1)}
CONSTANTS |= {"pairs": i(0, 2, 10, 12, 17), "fives": i(1, 5, -1, 12, 17), "whole": i(1, -1, 12, 17), "flat": i(10, 2, -1), "both": i(2, 1, 10, 12, 17), "tens": i(2, 10, 12, 17), "ones": i(1, 1), "zeroth": np.array(0, np.int64), "minus": np.array(-1, np.int64)}
# Nodes whose outputs p, q and r are no images.
MOVES = {"shuffle", "shuffle-of-five", "every-second", "every-second-late", "every-second-by-split"}
OF_ONE_SIZE = {"linear-sizes"} | MOVES


def made_of(nodes, dims=(1, 6, 12, 17), outputs=("y",)):
    names = {name for _, ins, _, _ in nodes for name in ins.split()}
    return model(nodes, {name: value for name, value in CONSTANTS.items() if name in names}, {"x": dims}, outputs)


@pytest.mark.parametrize("name", BETWEEN)
def test_nodes_between_layers_are_in_their_region(name):
    nodes = BETWEEN[name]
    made, x = made_of(nodes), {"x": normal(1, 6, 12, 17)}
    wanted = run_plain(made, x, NONE)
    for threads in (1, 2):
        result = run(made, x, level=NONE, threads=threads, pool=threads, layout="last")
        assert [sorted(layer) for layer in result.layers] == [sorted(op for op, *_ in nodes)]
        assert_close(result.outputs, wanted, TOLERANCE)
    assert_close(run(made, x, layout="last").outputs, wanted, TOLERANCE)
    assert_close(run(made, x, layout="auto").outputs, wanted, TOLERANCE)


@pytest.mark.parametrize("name", [name for name in BETWEEN if name not in OF_ONE_SIZE])
def test_sizes_may_be_unknown(name):
    made = made_of(BETWEEN[name], ("n", 6, "h", "w"))
    one = session(made, level=NONE, layout="last")
    assert len(layers(one)) == 1
    for shape in [(1, 6, 12, 17), (3, 6, 9, 8), (1, 6, 12, 17), (2, 6, 30, 5)]:
        x = {"x": normal(*shape)}
        assert_close(one.run(None, x), run_plain(made, x, NONE), TOLERANCE)


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_between_may_leave_the_region(name):
    nodes = BETWEEN[name]
    outputs = [out for _, _, outs, _ in nodes for out in outs.split() if name not in MOVES or out not in "pqr"]
    made, x = made_of(nodes, outputs=outputs), {"x": normal(1, 6, 12, 17)}
    result = run(made, x, level=NONE, layout="last")
    assert len(result.layers) == 1
    assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


def test_a_product_may_be_broadcast_in_a_run():
    nodes = [CONV, ("Conv", "z w b", "u", {"pads": [1, 1, 1, 1]}), ("Mul", "v u", "t", {}), END]
    made = model(nodes, {name: CONSTANTS[name] for name in ("w", "b", "w2")}, {"x": ("n", 6, "h", "w"), "z": ("m", 6, "hz", "wz")})
    one = session(made, level=NONE, layout="last")
    assert [len(layer) for layer in layers(one)] == [4]
    for shape in [(2, 6, 12, 17), (1, 6, 1, 1), (2, 6, 1, 1), (1, 6, 12, 1), (2, 6, 1, 17)]:
        x = {"x": normal(2, 6, 12, 17), "z": normal(*shape)}
        assert_close(one.run(None, x), run_plain(made, x, NONE), TOLERANCE)


def test_a_residual_may_be_broadcast_in_a_run():
    nodes = [CONV, ("MaxPool", "z", "p", {"kernel_shape": [1, 1]}), ("Conv", "v w3", "u", {"group": 20, "pads": [1, 1, 1, 1]}), ("Add", "u p", "r", {}), ("Relu", "r", "t", {}), END]
    made = model(nodes, {name: CONSTANTS[name] for name in ("w", "b", "w2", "w3")}, {"x": ("n", 6, "h", "w"), "z": ("m", 20, "hz", "wz")})
    one = session(made, level=NONE, layout="last")
    for z in [(1, 20, 12, 17), (2, 20, 1, 1), (2, 20, 12, 1), (1, 20, 1, 17), (2, 20, 12, 17)]:
        x = {"x": normal(2, 6, 12, 17), "z": normal(*z)}
        assert_close(one.run(None, x), run_plain(made, x, NONE), TOLERANCE)


def test_regions_do_not_reach_around_a_foreign_node():
    """What the first layer computes goes to the last one both directly and by a node that is onnxruntime's."""
    nodes = [CONV, ("Conv", "v w3", "u", {"group": 20, "pads": [1, 1, 1, 1]}), ("Erf", "u", "f", {}), ("Conv", "f w3", "q", {"group": 20, "pads": [1, 1, 1, 1]}), ("Add", "q v", "t", {}), END]
    made, x = made_of(nodes), {"x": normal(1, 6, 12, 17)}
    result = run(made, x, level=NONE, layout="last")
    assert [sorted(layer) for layer in result.layers] == [["Conv", "Conv"], ["Add", "Conv", "Conv"]]
    assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


def test_an_output_may_have_the_memory_of_the_input():
    nodes = [("Conv", "x w7", "v", {"pads": [1, 1, 1, 1]}), ("MaxPool", "v", "t", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), ("Conv", "t w8", "y", {"pads": [1, 1, 1, 1]})]
    made = model(nodes, {"w7": normal(9, 6, 3, 3), "w8": normal(6, 9, 3, 3)}, {"x": (1, 6, 12, 17)})
    x = normal(1, 6, 12, 17)
    wanted = run_plain(made, {"x": x}, NONE)
    one, value = session(made, level=NONE, layout="last"), onnxruntime.OrtValue.ortvalue_from_numpy(x.copy())
    binding = one.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", value)
    one.run_with_iobinding(binding)
    assert_close([value.numpy()], wanted, TOLERANCE)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_numbers_of_axes(rank):
    ones = [1] * rank
    nodes = [("Conv", "x w", "v", {"pads": ones + ones}), ("AveragePool", "v", "p", {"kernel_shape": [2] * rank, "strides": [2] * rank}), ("GlobalAveragePool", "p", "g", {}), ("Mul", "p g", "t", {}), ("Conv", "t w2", "y", {})]
    made = model(nodes, {"w": normal(20, 6, *[3] * rank), "w2": normal(5, 20, *ones)}, {"x": (2, 6, *[9] * rank)})
    x = {"x": normal(2, 6, *[9] * rank)}
    result = run(made, x, level=NONE, layout="last")
    assert result.nodes == 5
    assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


# Units that a region does not take, and what the log says of them.
FOREIGN = {
    "indices": ([CONV, ("MaxPool", "v", "t k", {"kernel_shape": [2, 2]}), END], "MaxPool", "it has a second output, or lacks one"),
    "counted-otherwise": (pool("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1), "AveragePool", "a region has pools without"),
    "cubic": (resize("two", mode="cubic"), "Resize", "a region has nearest and"),
    "crop": ([CONV, ("Resize", "v roi two", "t", {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}), END], "Resize", "a region has nearest and"),
    "mean-of-rows": ([CONV, ("ReduceMean", "v rows", "t", {}), END], "ReduceMean", "a region has means over all spatial axes"),
    "mean-without-axes": ([CONV, ("ReduceMean", "v axes", "m", {"keepdims": 0}), ("Unsqueeze", "m axes", "t", {}), END], "ReduceMean", re.escape("m of float [1, 20] is not of float, float16 or bytes with spatial axes")),
    "slice-of-rows": ([CONV, ("Slice", "v s e rows o", "t", {}), END], "Slice", "a region has Slice of neighbouring channels"),
    "slice-with-a-step": ([CONV, ("Slice", "v zero64 all a two64", "t", {}), ("Conv", "t w9", "y", {})], "Slice", "a region has Slice of neighbouring channels"),
    "split-of-rows": ([CONV, ("Split", "v halves", "t r", {"axis": 2}), END], "Split", "a region has Split of channels"),
    "concat-of-rows": ([CONV, ("Concat", "v v", "t", {"axis": 2}), END], "Concat", "its axis is not that of channels, or there are fewer than three axes; and in no region: a region has Concat of channels"),
    "slopes-of-columns": ([CONV, ("PRelu", "v slopes17", "t", {}), END], "PRelu", "a region has constant slopes, one for each channel"),
    "product-of-rows": ([CONV, ("ReduceMean", "v rows", "m", {}), ("Mul", "v m", "t", {}), END], "Mul", "a region has products by finite constants, and of two tensors of one shape"),
    "norm-by-a-node": ([("Neg", "scale", "n", {}), ("BatchNormalization", "x n scale scale scale", "u", {}), ("Conv", "u w b", "v", {"pads": [1, 1, 1, 1]}), ("Erf", "v", "t", {}), END], "BatchNormalization", "n is not constant"),
    "other-power": ([CONV, ("LRN", "v", "t", {"size": 3, "beta": 0.5}), END], "LRN", "beta is not 0.75"),
}
CONSTANTS |= {"roi": f(0, 0, 0, 0, 1, 1, 1, 1), "rows": i(2), "zero64": i(0), "all": i(20), "two64": i(2), "w9": normal(5, 10, 1, 1)}
CONSTANTS |= {"huge": normal(6, 6, 1, 1), "halves": i(6, 6), "slopes17": normal(17), "scale": np.abs(normal(6))}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_nodes_are_left_to_onnxruntime(name):
    made, x = made_of(FOREIGN[name][0]), {"x": normal(1, 6, 12, 17)}
    result = run(made, x, level=NONE, layout="last")
    assert result.layers == [["Conv"], ["Conv"]]
    assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


def logs(what, layout, dims=(1, 6, 12, 17)):
    """What the log says of models while their sessions are made, and in the end how many layers each has."""
    code = f"""
from test_regions import *
onnxruntime.set_default_logger_severity(2)
for name, nodes in ({what}).items():
    print("the model", name, flush=True)
    made = session(made_of(nodes, {dims!r}), level=NONE, layout={layout!r}, log_level="verbose")
    print(len(layers(made)), flush=True)
"""
    return dict(text.split("\n", 1) for text in output_of(code).split("the model ")[1:])


def test_the_log_says_why_nodes_are_in_no_region():
    texts = logs("{name: nodes for name, (nodes, *_) in FOREIGN.items()}", "last")
    assert texts.keys() == FOREIGN.keys()
    for name, (_, op, reason) in FOREIGN.items():
        assert re.search(rf"\({op}\) is left to onnxruntime: {reason}", texts[name]), texts[name]
    pools = {"alone": [("MaxPool", "x", "y", {"kernel_shape": [2, 2]})]}
    texts = logs(repr(pools) + " | {'max': BETWEEN['max']}", "first")
    assert "(MaxPool) is left to onnxruntime: no layer with constant weights is beside it" in texts["alone"]
    assert "(MaxPool) is left to onnxruntime: the option layout is first" in texts["max"]


def test_the_log_says_whether_a_region_is_faster():
    texts = logs("BETWEEN", "auto")
    assert texts.keys() == BETWEEN.keys()
    verdicts = {}
    for name, text in texts.items():
        verdicts[name], *_ = re.findall(rf"a region of {len(BETWEEN[name])} nodes is (taken|not taken): estimated at \d+ ns, with channels first at \d+ ns", text)
        assert (int(text.splitlines()[-1]) == 1) == (verdicts[name] == "taken"), text
        pattern = r"is left to onnxruntime: its region is not taken: estimated at \d+ ns"
        assert bool(re.search(pattern, text)) == (verdicts[name] == "not taken"), text
    # Calls of nodes count for more than anything in an image as small as these.
    assert verdicts["concat-of-concat"] == "taken"
    # A large image that goes to channels last for a pool alone costs more than the call of a node.
    huge = [("Conv", "x huge", "v", {}), ("MaxPool", "v", "t", {"kernel_shape": [1, 1]}), ("Conv", "t huge", "y", {})]
    text = logs(f"{{'huge': {huge!r}}}", "auto", (1, 6, 900, 900))["huge"]
    assert "a region of 3 nodes is not taken: estimated at" in text, text


def test_an_upsample_is_a_resize():
    """As opsets before 10 have it."""
    for opset, mode in ((7, "nearest"), (7, "linear"), (9, "nearest"), (9, "linear")):
        by = ("v two", {}) if opset == 9 else ("v", {"scales": [1.0, 1.0, 2.0, 2.0]})
        nodes = [CONV, ("Upsample", by[0], "t", {"mode": mode, **by[1]}), END]
        made = model(nodes, {name: CONSTANTS[name] for name in ("w", "b", "w2", *(["two"] if opset == 9 else []))}, {"x": (1, 6, 12, 17)}, opset=opset)
        x = {"x": normal(1, 6, 12, 17)}
        result = run(made, x, level=NONE, layout="last")
        assert result.layers == [["Conv", "Upsample", "Conv"]]
        assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


@pytest.mark.parametrize("kind", [{"ceil_mode": 1}, {}])
def test_windows_may_be_larger_than_x(kind):
    """onnxruntime rounds the number of windows toward zero."""
    nodes = [CONV, ("MaxPool", "v", "t", {"kernel_shape": [3, 3], "strides": [2, 2], **kind}), END]
    for dims in [(1, 6, 2, 2), ("n", 6, "h", "w")]:
        made, x = made_of(nodes, dims), {"x": normal(1, 6, 2, 2)}
        result = run(made, x, level=NONE, layout="last")
        assert result.nodes == 3
        assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


@pytest.mark.parametrize("scales", [f(1, 1, 0.6, 0.6), f(1, 1, 2, 0.7), f(1, 1, 3, 1.5)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode, scales):
    nodes = [CONV, ("Resize", "v s", "t", {"mode": mode}), END]
    made = model(nodes, {name: CONSTANTS[name] for name in ("w", "b", "w2")} | {"s": scales}, {"x": (1, 6, 12, 17)}, opset=10)
    x = {"x": normal(1, 6, 12, 17)}
    result = run(made, x, level=NONE, layout="last")
    assert result.nodes == 3
    assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


@pytest.mark.parametrize("kind", [{"auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [4, 4]}])
def test_pools_that_pad_by_themselves(kind):
    made, x = made_of(pool("MaxPool", kernel_shape=[3, 3], **kind)), {"x": normal(1, 6, 12, 17)}
    try:
        wanted = run_plain(made, x, NONE)
    except Exception:
        pytest.skip("onnxruntime refuses it")
    assert_close(run(made, x, level=NONE, layout="last").outputs, wanted, TOLERANCE)


def test_an_input_that_is_not_read_may_be_no_image():
    nodes = [CONV, ("Resize", "v roi two", "t", {"mode": "linear"}), END]
    made = model(nodes, {name: CONSTANTS[name] for name in ("w", "b", "w2", "two")}, {"x": (1, 6, 12, 17), "roi": (8,)})
    x = {"x": normal(1, 6, 12, 17), "roi": f(0, 0, 0, 0, 1, 1, 1, 1)}
    assert_close(run(made, x, level=NONE, layout="last").outputs, run_plain(made, x, NONE), TOLERANCE)


@pytest.mark.parametrize("name", ["concat", "slice", "split", "gate", "sum", "concat-of-concat"])
def test_a_batch_may_be_empty(name):
    made = made_of(BETWEEN[name], ("n", 6, 12, 17))
    one = session(made, level=NONE, layout="last")
    for images in (0, 1, 0):
        x = {"x": normal(images, 6, 12, 17)}
        assert_close(one.run(None, x), run_plain(made, x, NONE), TOLERANCE)


def test_layers_and_a_concat_alone_are_a_region():
    nodes = [CONV, ("Conv", "x w b", "u", {"pads": [1, 1, 1, 1]}), ("Concat", "v u", "y", {"axis": 1})]
    made, x = made_of(nodes), {"x": normal(1, 6, 12, 17)}
    for layout in ("last", "auto", "first"):
        result = run(made, x, level=NONE, layout=layout)
        assert sum(map(len, result.layers)) == 3
        assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


def test_a_branch_may_read_what_a_region_computes():
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = [helper.make_graph([helper.make_node(op, ["v"], ["z"])], op, [], [value]) for op in ("Neg", "Abs")]
    nodes = [helper.make_node(op, ins.split(), outs.split(), **kind) for op, ins, outs, kind in (CONV, ("MaxPool", "v", "t", {"kernel_shape": [2, 2]}), END)]
    nodes.append(helper.make_node("If", ["c"], ["q"], then_branch=branches[0], else_branch=branches[1]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "q")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 6, 12, 17)), helper.make_tensor_value_info("c", TensorProto.BOOL, ())]
    graph = helper.make_graph(nodes, "graph", inputs, infos, [numpy_helper.from_array(CONSTANTS[name], name) for name in ("w", "b", "w2")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    for chosen in (True, False):
        x = {"x": normal(1, 6, 12, 17), "c": np.array(chosen)}
        result = run(made, x, level=NONE, layout="last")
        assert result.nodes == 3
        assert_close(result.outputs, run_plain(made, x, NONE), TOLERANCE)


# These stay floats in a model of float16.
FLOATS = {"two", "more", "half", "roi"}


@pytest.mark.parametrize("name", [name for name in BETWEEN if name not in OF_ONE_SIZE])
@pytest.mark.parametrize("layout", ["last", "auto"])
def test_regions_of_float16_compute_in_float(name, layout):
    """They round at their borders alone, so they are as near to float as a result of float16 can be."""
    made, x = made_of(BETWEEN[name], ("n", 6, "h", "w")), normal(1, 6, 12, 17).astype(np.float16)

    def convert(to):
        for tensor in made.graph.initializer:
            if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16) and tensor.name not in FLOATS:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16).astype(to), tensor.name))

    convert(np.float32)
    wanted = run_plain(made, {"x": x.astype(np.float32)}, NONE)
    convert(np.float16)
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    result = run(made, {"x": x}, level=NONE, layout=layout)
    is_one = layout == "last"
    assert not is_one or result.nodes == len(BETWEEN[name])
    for one, other in zip(result.outputs, wanted):
        assert one.dtype == np.float16
        np.testing.assert_allclose(one.astype(np.float32), other, rtol=2**-10 if is_one else 2e-2, atol=2e-4 if is_one else 0.5)


def test_layers_of_float16_round_by_themselves_with_channels_first():
    """1 + 2^-12 is no number of float16. With channels first, the first layer rounds it to 1; a region does not."""
    nodes = [("Conv", "x ones", "v", {}), ("Conv", "v minus more", "y", {})]
    constants = {"ones": np.ones((1, 2, 1, 1), np.float16), "minus": np.full((1, 1, 1, 1), -1, np.float16), "more": np.ones(1, np.float16)}
    made = model(nodes, constants, {"x": (1, 2, 4, 4)})
    for value in [*made.graph.input, *made.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    x = np.empty((1, 2, 4, 4), np.float16)
    x[:, 0], x[:, 1] = 1, 2.0**-12
    for layout, wanted, there in (("first", 0.0, [["Conv"], ["Conv"]]), ("last", -(2.0**-12), [["Conv", "Conv"]])):
        result = run(made, {"x": x}, level=NONE, layout=layout)
        assert result.layers == there and np.all(result.outputs[0] == np.float16(wanted)), layout


@pytest.mark.parametrize("bound", ["y", "z"])
def test_an_output_that_is_written_first_may_have_the_memory_of_the_input(bound):
    """Both read x, and one of them is written before the other one."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [("Conv", "x w7", "v", pads), ("Conv", "v w7", "p", pads), ("Add", "p x", "y", {}), ("Conv", "v w8", "q", pads), ("Add", "q x", "z", {})]
    made = model(nodes, {"w7": normal(6, 6, 3, 3), "w8": normal(6, 6, 3, 3)}, {"x": (1, 6, 12, 17)}, outputs=("y", "z"))
    x = normal(1, 6, 12, 17)
    wanted = run_plain(made, {"x": x}, NONE)
    one, value = session(made, level=NONE, layout="last"), onnxruntime.OrtValue.ortvalue_from_numpy(x.copy())
    assert len(layers(one)) == 1
    binding = one.io_binding()
    binding.bind_ortvalue_input("x", value)
    for name in ("y", "z"):
        binding.bind_ortvalue_output(name, value) if name == bound else binding.bind_output(name)
    one.run_with_iobinding(binding)
    assert_close([output.numpy() for output in binding.get_outputs()], wanted, TOLERANCE)
