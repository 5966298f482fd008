"""What nobody reads, what is not finite, limits, and what onnxruntime itself would refuse."""

import os

import convoke_onnxruntime
import numpy as np
import onnxruntime
import pytest
from conftest import assert_close, layers, options, run, run_plain, session
from onnx import helper, numpy_helper
from test_fusion import CONV, NONE, NORM6, W, branches, model, normal
from test_sessions import ABSENT, feeds, small

LEVELS = [getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}") for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")]
READ = ("Conv", "x w b", "y", {"pads": [1, 1, 1, 1]})
UNREAD = {
    "Conv": ([CONV], W, {}),
    "Conv without a bias": ([("Conv", "x w ", "c", {})], W, {}),
    "Conv of weights that are inputs": ([("Conv", "x wi", "c", {})], {}, {"wi": normal(4, 6, 3, 3)}),
    "Conv and Relu": ([CONV, ("Relu", "c", "u", {})], W, {}),
    "Conv and Add": ([CONV, ("Add", "c y", "u", {})], W, {}),
    "ConvTranspose": ([("ConvTranspose", "x wt", "c", {})], {"wt": normal(6, 4, 2, 2)}, {}),
    "BatchNormalization": ([("BatchNormalization", "x scale6 shift6 mean6 var6", "c", {})], NORM6, {}),
    "LRN": ([("LRN", "x", "c", {"size": 3})], {}, {}),
    "Concat": ([CONV, ("Conv", "x w", "d", {"pads": [1, 1, 1, 1]}), ("Concat", "c d", "u", {"axis": 1})], W, {}),
    "Concat and a tensor": ([CONV, ("Concat", "c x", "u", {"axis": 1})], W, {}),
}


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("name", UNREAD)
def test_a_layer_whose_output_nobody_reads_does_nothing(name, level, batch):
    nodes, constants, inputs = UNREAD[name]
    made, x = model([READ, *nodes], W | constants, inputs, x_shape=(batch, 6, 8, 8))
    result = run(made, x, level=level)
    if level == NONE:
        ops = sorted(node[0] for node in nodes)
        assert sorted(sorted(layer) for layer in result.layers) == sorted([["Conv"], ops])
    assert_close(result.outputs, run_plain(made, x, level), 1e-5)


def test_a_layer_in_a_branch_whose_output_nobody_reads():
    nodes = lambda name: [helper.make_node("Conv", ["x", "w", "b"], [name]), helper.make_node("Conv", ["x", "w"], [f"{name}-unread"])]
    made = branches(nodes)
    for choose in (True, False):
        x = {"x": normal(1, 6, 9, 8), "choose": np.array(choose)}
        assert_close(run(made, x, level=NONE).outputs, run_plain(made, x, NONE), 1e-5)


@pytest.mark.parametrize("first", [(8, 8), (9, 9), (30, 31)])
@pytest.mark.parametrize("isa", ["portable", None] if ABSENT == "avx2" else ["portable", "avx2", None])
def test_a_workspace_limit_holds_for_images_of_every_size(isa, first):
    """Weights that were packed for one size may need more workspace for another one than new ones do."""
    made, x = model([("Conv", "x w", "y", {"pads": [1, 1, 1, 1]})], {"w": normal(6, 4, 3, 3)}, x_shape=(1, 4, *first))
    for axis in (0, 2, 3):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    for limit in (0, 1000, 4000, 8000):
        limited = session(made, level=NONE, workspace_limit=limit, isa=isa, threads=1)
        assert layers(limited) == [["Conv"]]
        for size in (first, (8, 8), (9, 9), (10, 7), (16, 16), (8, 8), (64, 3), (40, 40), (9, 9)):
            x["x"] = normal(2, 4, *size)
            assert_close(limited.run(None, x), run_plain(made, x, NONE), 1e-5)


def test_a_workspace_limit_holds_for_batches_of_every_size():
    made, x = model([("Conv", "x w", "y", {})], {"w": normal(1, 1, 4, 4)}, x_shape=(1, 1, 15, 15))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for limit in range(0, 8000, 250):
        limited = session(made, level=NONE, workspace_limit=limit, isa="portable", threads=2)
        assert layers(limited) == [["Conv"]]
        for images in (1, 3, 33, 0, 33):
            x["x"] = normal(images, 1, 15, 15)
            assert_close(limited.run(None, x), run_plain(made, x, NONE), 1e-5)


def scaled(kind, x, w, nodes, constants):
    """Conv of one tap with a bias of zeros, and nodes behind it, of an element type."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    values = {"w": w, "b": np.zeros(len(w))} | constants
    graph = helper.make_graph(
        [helper.make_node(op, ins.split(" "), [out]) for op, ins, out in [("Conv", "x w b", "c"), *nodes]],
        "scaled",
        [helper.make_tensor_value_info("x", code, np.shape(x))],
        [helper.make_tensor_value_info("y", code, None)],
        [numpy_helper.from_array(np.asarray(value, kind), name) for name, value in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return run(made, {"x": np.asarray(x, kind)}, level=NONE)


def column(*values):
    return np.reshape(values, (1, -1, 1))


def norm(scale, shift, mean, var):
    return [("BatchNormalization", "c s b2 m v", "y")], {"s": [scale], "b2": [shift], "m": [mean], "v": [var]}


MUL, ADD = [("Mul", "c k", "y")], [("Add", "c k", "y")]
# X, W, nodes behind the Conv, their constants, and what comes out.
NOT_FINITE = {
    "mul-inf": ([1, 1], [1, -0.5], MUL, {"k": [np.inf]}, np.inf),
    "mul-nan": ([1, 1], [1, -0.5], MUL, {"k": [np.nan]}, np.nan),
    "mul-inf-of-zeros": ([1, 1], [0, 1], MUL, {"k": [np.inf]}, np.inf),
    "add-inf": ([1, 1], [1, -0.5], ADD, {"k": [-np.inf]}, -np.inf),
    # The mean, 0, is multiplied by infinity.
    "norm-inf": ([1, 1], [1, -0.5], *norm(np.inf, 0, 0, 1), np.nan),
    "norm-of-mean-inf": ([1, 1], [1, -0.5], *norm(1, 0, -np.inf, 1), np.inf),
    "norm-of-variance-0": ([1, 1], [1, -0.5], *norm(1, 0, 0, -1e-5), np.nan),
    "weight-inf": ([1, 1], [np.inf, 1], MUL, {"k": [0.5]}, np.inf),
}
# The same with the largest and smallest powers of ten of each type.
EXTREMES = {np.float32: 30, np.float64: 300, np.float16: 4}


@pytest.mark.parametrize("kind", EXTREMES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", NOT_FINITE)
def test_constants_that_are_not_finite_scale_behind_the_sum(name, kind):
    x, w, nodes, constants, wanted = NOT_FINITE[name]
    if kind is np.float64 and name == "norm-of-variance-0":
        # The attribute epsilon is a float.
        constants = constants | {"v": [-float(np.float32(1e-5))]}
    result = scaled(kind, column(*x), np.reshape(w, (1, -1, 1)), nodes, constants)
    assert result.layers == [["Conv"]]
    np.testing.assert_array_equal(result.outputs[0].ravel(), np.asarray([wanted], kind))


@pytest.mark.parametrize("kind", EXTREMES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("x, w, factor, wanted", [(-1, 1 / 3, 1, 1 / 3), (1, -1, -1, -1), (1, -1, 0, 0), (1, -1, -1 / 2, -1 / 2)], ids=["large", "small", "zero", "underflow"])
def test_weights_that_would_overflow_or_underflow_are_scaled_behind_the_sum(kind, x, w, factor, wanted):
    """The exponents are parts of the largest one of the type: w times the factor is beyond it, but not the result."""
    at = lambda part: 10.0 ** (part * EXTREMES[kind])
    result = scaled(kind, column(at(x)), np.reshape(at(w), (1, 1, 1)), MUL, {"k": [at(factor)]})
    np.testing.assert_allclose(result.outputs[0].astype(np.float64), at(wanted), rtol=1e-2)


def test_a_sum_that_a_folded_weight_would_make_infinite():
    result = scaled(np.float32, column(1e-30), np.reshape(1e10, (1, 1, 1)), MUL, {"k": [1e30]})
    assert result.layers == [["Conv"]]
    np.testing.assert_allclose(result.outputs[0], 1e10, rtol=1e-5)


@pytest.mark.parametrize("factor", [2.0, -0.25, 0.0])
@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda kind: kind.__name__)
def test_weights_that_stay_normal_numbers_are_folded(kind, factor):
    result = scaled(kind, column(3, 5), np.reshape([0, 0.5], (1, -1, 1)), [("Mul", "c k", "d"), ("Add", "d l", "y")], {"k": [factor], "l": [1]})
    assert result.layers == [["Conv", "Mul", "Add"]]
    np.testing.assert_array_equal(result.outputs[0].ravel(), [2.5 * factor + 1])


@pytest.mark.parametrize("scale, var, taken", [(np.inf, 1, False), (1e30, 1e-30, False), (1e-30, 1e30, False), (1e-4, 1e4, True)])
def test_a_lone_normalisation_by_a_factor_that_is_no_normal_number_is_left_alone(scale, var, taken):
    constants = {name: np.full(6, value, np.float32) for name, value in (("s", scale), ("b2", 0), ("m", 0), ("v", var))}
    made, x = model([("BatchNormalization", "x s b2 m v", "n", {"epsilon": 0.0}), ("Mul", "n k", "y", {})], constants | {"k": np.full((1, 6, 1, 1), 1e-4, np.float32)})
    result = run(made, x, level=NONE)
    assert result.layers == ([["BatchNormalization", "Mul"]] if taken else [])
    np.testing.assert_allclose(result.outputs[0], run_plain(made, x, NONE)[0], rtol=1e-5)


def test_a_normalisation_of_two_axes_of_unknown_size_is_left_alone():
    made, x = model([("BatchNormalization", "x scale6 shift6 mean6 var6", "y", {})], NORM6, x_shape=(3, 6))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    result = run(made, x, level=NONE)
    assert result.layers == []
    assert_close(result.outputs, run_plain(made, x, NONE), 1e-5)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("op, w_shape", [("Conv", (0, 6, 3, 3)), ("ConvTranspose", (6, 0, 3, 3))])
def test_an_output_without_channels(op, w_shape, free):
    made, x = model([(op, "x w", "y", {})], {"w": normal(*w_shape)})
    for axis in (0, 2, 3)[: 3 * free]:
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    assert_close(run(made, x, level=NONE).outputs, run_plain(made, x, NONE), 1e-5)


@pytest.mark.parametrize("free", [False, True])
def test_a_bias_of_two_axes_is_left_to_onnxruntime(free):
    """Newer releases refuse it."""
    made, x = model([("Conv", "x w b2", "y", {})], W | {"b2": normal(1, 4)})
    for axis in (0, 2, 3)[: 3 * free]:
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    loaded = session(made, level=NONE)
    assert layers(loaded) == []
    try:
        wanted = run_plain(made, x, NONE)
    except Exception:
        with pytest.raises(Exception, match="bias must be a 1D tensor"):
            loaded.run(None, x)
    else:
        assert_close(loaded.run(None, x), wanted, 1e-5)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel, attributes, taken", [((1, 3), {}, False), ((2, 1), {"dilations": [1, 3]}, False), ((2, 1), {"output_padding": [0, 1]}, True), ((2, 2), {}, True), ((2, 3), {"dilations": [2, 1]}, True)])
def test_a_transposed_kernel_shorter_than_its_stride_has_the_output_of_onnxruntime(kernel, attributes, taken, auto_pad, free):
    node = ("ConvTranspose", "x w", "y", {"auto_pad": auto_pad, "strides": [2, 2], **attributes})
    made, x = model([node], {"w": normal(6, 4, *kernel)})
    for axis in (0, 2, 3)[: 3 * free]:
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    result = run(made, x, level=NONE)
    assert result.layers == [["ConvTranspose"]] * taken
    assert_close(result.outputs, run_plain(made, x, NONE), 1e-5)


ALLOWED_BY_ONNX = {
    "VALID with pads of zeros": (("Conv", "x w", "y", {"auto_pad": "VALID", "pads": [0, 0, 0, 0]}), {"pads": [0, 0, 0, 0]}),
    "SAME with pads of zeros": (("Conv", "x w", "y", {"auto_pad": "SAME_UPPER", "pads": [0, 0, 0, 0]}), {"pads": [1, 1, 1, 1]}),
    "SAME with dilations": (("Conv", "x w", "y", {"auto_pad": "SAME_LOWER", "dilations": [2, 2]}), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
}


@pytest.mark.parametrize("name", ALLOWED_BY_ONNX)
def test_what_the_readme_says_onnxruntime_refuses(name):
    """With convoke it computes what the same node with explicit pads does."""
    node, attributes = ALLOWED_BY_ONNX[name]
    made, x = model([node], W)
    with pytest.raises(Exception, match="pad|Dilation"):
        run_plain(made, x, NONE)
    explicit, _ = model([(*node[:3], attributes)], W)
    assert_close(run(made, x, level=NONE).outputs, run_plain(explicit, x, NONE), 1e-5)


def test_an_output_padding_that_the_readme_says_onnxruntime_refuses():
    """Newer releases do. It is below the dilation, but not below the stride."""
    w, dilated = {"w": normal(6, 4, 3, 3)}, {"dilations": [2, 2]}
    made, x = model([("ConvTranspose", "x w", "y", {"output_padding": [1, 1], **dilated})], w)
    if onnxruntime.__version__ == "1.32.0":
        with pytest.raises(Exception, match="output_padding"):
            run_plain(made, x, NONE)
    result = run(made, x, level=NONE)
    assert result.layers == [["ConvTranspose"]]
    # What it adds at the end is beyond all taps.
    without, _ = model([("ConvTranspose", "x w", "y", dilated)], w)
    (wanted,) = run_plain(without, x, NONE)
    assert_close(result.outputs, [np.pad(wanted, [(0, 0), (0, 0), (0, 1), (0, 1)])], 1e-5)


@pytest.mark.parametrize("shape", [(2, 6, 5), (1, 6, 3, 4, 5)])
def test_a_local_response_normalisation_that_the_readme_says_onnxruntime_refuses(shape):
    made, x = model([("LRN", "x", "y", {"size": 5})], {}, x_shape=shape)
    with pytest.raises(Exception, match="NumDimensions"):
        run_plain(made, x, NONE)
    assert run(made, x, level=NONE).layers == [["LRN"]]


def refused(match, **chosen):
    made = options()
    with pytest.raises(ValueError, match=match):
        convoke_onnxruntime.add_to(made, **chosen)
    assert not made.has_providers()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
@pytest.mark.parametrize("tune", [None, True])
def test_a_tuning_file_that_is_no_file_is_refused(tune, tmp_path):
    """Each of them is read without an end, or waits for a writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/full", "/dev/zero", pipe, tmp_path):
        refused(f"^convoke: the option tuning_file: cannot read {path}: it is not a regular file$", tuning_file=path, tune=tune)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_tuning_file_larger_than_the_limit_is_refused(tmp_path):
    path, head = tmp_path / "tuning.txt", b"convoke tuning 1\n"
    path.write_bytes(head + b"\n" * ((16 << 20) - len(head)))
    convoke_onnxruntime.add_to(options(), tuning_file=path)
    with open(path, "ab") as file:
        # The rest of it takes no room on the disk.
        file.truncate(1 << 40)
    refused(f"^convoke: the option tuning_file: cannot read {path}: it is larger than the limit of 16 MiB$", tuning_file=path)


def test_the_error_of_a_tuning_file_is_short(tmp_path):
    path = tmp_path / "tuning.txt"
    path.write_bytes(b"\0" * (1 << 20))
    with pytest.raises(ValueError, match="cannot understand") as error:
        convoke_onnxruntime.add_to(options(), tuning_file=path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("value", [0, 1025, 10**9, 10**30, 2.5, True])
def test_a_number_of_threads_that_cannot_be_names_the_option_and_the_limit(value):
    refused(f'^convoke: the option threads is "{value}"; it must be a number of threads from 1 to 1024$', threads=value)


def test_the_threads_of_a_large_pool_are_capped():
    made = convoke_onnxruntime.add_to(options(pool=2000))
    assert made.get_session_config_entry("ep.convoke.threads") == "1024"
    assert_close(session(small(), threads=1024).run(None, feeds(np.random.default_rng(1))), run_plain(small(), feeds(np.random.default_rng(1))), 1e-5)


@pytest.mark.parametrize("name", ["tune", "share_weights"])
@pytest.mark.parametrize("value", ["yes", "", 2, 1.0, []])
def test_a_switch_that_is_neither_off_nor_on_names_the_option(name, value):
    written = str(value).replace("[", r"\[").replace("]", r"\]")
    refused(f'^convoke: the option {name} is "{written}"; it must be 0 or 1$', **{name: value})


@pytest.mark.parametrize("value", [True, 1, "1", np.True_])
def test_a_switch_is_on(value):
    made = convoke_onnxruntime.add_to(options(), share_weights=value)
    assert made.get_session_config_entry("ep.convoke.share_weights") == "1"


@pytest.mark.parametrize("again", [{}, {"threads": 2}])
def test_adding_the_provider_twice_is_an_error(again, rng):
    made = convoke_onnxruntime.add_to(options(), threads=1)
    with pytest.raises(ValueError, match="^convoke: add_to was called with these session options before"):
        convoke_onnxruntime.add_to(made, **again)
    # The first call holds.
    assert made.get_session_config_entry("ep.convoke.threads") == "1"
    assert sum(map(len, layers(onnxruntime.InferenceSession(small(), made)))) == 6


def test_the_package_shows_its_own_names_alone():
    assert dir(convoke_onnxruntime) == sorted(convoke_onnxruntime.__all__)
    assert all(hasattr(convoke_onnxruntime, name) for name in dir(convoke_onnxruntime))
