"""Layers of bytes: against the definition, against onnxruntime, and what is refused."""

import convoke
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from test_channels_last import NAMES, last
from test_layers import LAYERS, channels
from test_threads import all_at_once

BYTES = [np.uint8, np.int8]
RESULTS = [np.uint8, np.int8, np.int32, np.float32, np.float16]


def any_bytes(rng, shape, dtype):
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def along(per_channel, axis, axes):
    """An array of one dimension, as one that is broadcast along an axis."""
    return np.reshape(per_channel, [-1 if i == axis else 1 for i in range(axes)])


def defined(op, x, w, b, attributes, dtype, x_zero_point, w_zero_point, x_scale, w_scale, y_scale, y_zero_point):
    """By the loops of the definition in float64, which holds all sums."""
    group = attributes.get("group", 1)
    if op == "Conv":
        zero = along(w_zero_point, 0, w.ndim)
    else:
        # For each group its input channels, with the zero points of its output channels.
        zero = np.resize(w_zero_point, channels(op, w.shape, attributes)).reshape(group, 1, w.shape[1], *[1] * (w.ndim - 2))
        zero = np.repeat(zero, w.shape[0] // group, 1).reshape(w.shape[:2] + (1,) * (w.ndim - 2))
    arrays = x.astype(np.float64) - x_zero_point, w.astype(np.float64) - zero
    planner = convoke.Planner(algorithm="naive")
    function = planner.conv if op == "Conv" else planner.conv_transpose
    plan = function(x.shape, w.shape, np.float64, **attributes)
    sums = plan.run(arrays[0], plan.pack(arrays[1], b.astype(np.float64)))
    if dtype == np.int32:
        return sums.astype(np.int32)
    scale = np.float32(x_scale) * along(np.asarray(w_scale, np.float32), 1, x.ndim) / np.float32(y_scale)
    scaled = sums.astype(np.float32) * scale
    if dtype in (np.float32, np.float16):
        return scaled.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(scaled) + y_zero_point, limits.min, limits.max).astype(dtype)


def layer_of(rng, op, x_shape, w_shape, attributes, dtypes, each=True):
    """X, W, B, and scales and zero points by their names."""
    m = channels(op, w_shape, attributes)
    x, w = any_bytes(rng, x_shape, dtypes[0]), any_bytes(rng, w_shape, dtypes[1])
    b = rng.integers(-20_000, 20_000, m, np.int32)
    numbers = {
        "x_scale": 0.02,
        "x_zero_point": int(any_bytes(rng, None, dtypes[0])),
        "w_scale": rng.uniform(0.001, 0.01, m if each else 1).astype(np.float32),
        "w_zero_point": any_bytes(rng, m if each else 1, dtypes[1]),
        "y_scale": 0.37,
        "y_zero_point": 7,
    }
    return x, w, b, numbers


def run(plan, x, w, b, numbers, **arguments):
    """Packs, scales and runs."""
    numbers = dict(numbers)
    weights = plan.pack(w, b, w_zero_point=numbers.pop("w_zero_point"))
    return plan.run(x, weights, plan.scaled(weights, **numbers), **arguments)


@pytest.mark.parametrize("y_dtype", RESULTS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("op, x_shape, w_shape, attributes", LAYERS)
def test_the_definition_agrees(rng, op, x_shape, w_shape, attributes, y_dtype):
    for x_dtype, w_dtype in [(x, w) for x in BYTES for w in BYTES]:
        each = x_dtype == w_dtype
        x, w, b, numbers = layer_of(rng, op, x_shape, w_shape, attributes, (x_dtype, w_dtype), each)
        wanted = defined(op, x, w, b, attributes, y_dtype, **numbers)
        planner = convoke.Planner(threads=1 + each)
        plan = planner.plan_quantised(op, x.shape, w.shape, x_dtype, w_dtype, y_dtype, **attributes)
        got = run(plan, x, w, b, numbers)
        assert got.dtype == y_dtype and got.flags.c_contiguous and np.array_equal(got, wanted)
        nhwc = NAMES[x.ndim - 2][1]
        plan = planner.plan_quantised(op, last(x).shape, w.shape, x_dtype, w_dtype, y_dtype, layout=nhwc, **attributes)
        assert np.array_equal(run(plan, last(x), w, b, numbers), last(wanted))


def by_onnxruntime(op, inputs, y_dtype, **attributes):
    """A node of quantised operators by onnxruntime."""
    kind = helper.np_dtype_to_tensor_dtype
    made = [helper.make_tensor_value_info(name, kind(array.dtype), array.shape) for name, array in inputs.items()]
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    y = helper.make_tensor_value_info("y", kind(np.dtype(y_dtype)), None)
    graph = helper.make_graph([node], "layer", made, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_onnxruntime_agrees(rng):
    attributes = {"strides": [2, 1], "pads": [1, 0, 1, 2]}
    x, w, b, _ = layer_of(rng, "Conv", [2, 6, 9, 8], [5, 6, 3, 3], attributes, (np.uint8, np.uint8))
    zeros = {"x_zero_point": np.uint8(100), "w_zero_point": np.uint8(120)}
    # Powers of two: all is exact, but for the rounding of halves.
    scales = {"x_scale": np.float32(0.25), "w_scale": np.float32(0.5), "y_scale": np.float32(32), "y_zero_point": np.uint8(128)}
    numbers = {name: np.asarray(value) for name, value in {**zeros, **scales}.items()}
    order = "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point b".split()
    named = {**numbers, "x": x, "w": w, "b": b}
    wanted = by_onnxruntime("QLinearConv", {name: named[name] for name in order}, np.uint8, **attributes)
    plan = convoke.Planner().plan_quantised("Conv", x.shape, w.shape, np.uint8, np.uint8, np.uint8, **attributes)
    assert np.array_equal(run(plan, x, w, b, numbers), wanted)
    # Numbers of numpy, too.
    assert np.array_equal(run(plan, x, w, b, {**zeros, **scales}), wanted)

    inputs = {"x": x, "w": w, **{name: numbers[name] for name in zeros}}
    wanted = by_onnxruntime("ConvInteger", inputs, np.int32, **attributes)
    plan = convoke.Planner().plan_quantised("Conv", x.shape, w.shape, np.uint8, np.uint8, np.int32, **attributes)
    assert np.array_equal(run(plan, x, w, None, zeros), wanted)


@pytest.fixture
def layer(rng):
    """A plan of two threads, with its arrays."""
    plan = convoke.Planner(threads=2).plan_quantised("Conv", [1, 32, 40, 40], [32, 32, 3, 3], np.uint8, np.int8, np.uint8)
    x, w, b, numbers = layer_of(rng, plan.op, plan.input_shape, plan.weight_shape, {}, plan.dtypes)
    weights = plan.pack(w, b, w_zero_point=numbers.pop("w_zero_point"))
    return plan, x, w, b, weights, numbers


def test_a_plan_tells_what_it_is(layer):
    plan = layer[0]
    assert (plan.op, plan.threads, plan.macs) == ("Conv", 2, 32 * 32 * 9 * 38 * 38)
    assert plan.dtypes == (np.uint8, np.int8, np.uint8)
    assert plan.output_shape == (1, 32, 38, 38) and plan.workspace_bytes > 0
    assert "task" in plan.explain() and "workspace of a thread" in plan.explain()
    assert repr(plan) == "<convoke.QuantisedPlan Conv, X [1, 32, 40, 40] of uint8, W [32, 32, 3, 3] of int8, result of uint8>"


def test_all_but_the_arrays_may_be_absent():
    """No bias, no zero points, and scales of 1."""
    plan = convoke.Planner().plan_quantised("Conv", [1, 1, 4], [1, 1, 2], "uint8", "int8", "float32")
    weights = plan.pack(np.array([[[2, -1]]], np.int8))
    y = plan.run(np.array([[[10, 20, 30, 50]]], np.uint8), weights, plan.scaled(weights))
    assert y.tolist() == [[[0, 10, 10]]]


def test_weights_serve_many_scales(layer):
    plan, x, _, _, weights, numbers = layer
    scaled = [plan.scaled(weights, **{**numbers, "x_zero_point": zero}) for zero in (0, 255)]
    results = [plan.run(x, weights, one) for one in scaled]
    assert not np.array_equal(*results) and np.array_equal(plan.run(x, weights, scaled[0]), results[0])


@pytest.mark.parametrize("y_dtype", BYTES, ids=lambda dtype: dtype.__name__)
def test_results_go_through_a_table(rng, y_dtype):
    plan = convoke.Planner().plan_quantised("Conv", [1, 3, 9, 8], [5, 3, 3, 3], np.uint8, np.int8, y_dtype)
    x, w, b, numbers = layer_of(rng, plan.op, plan.input_shape, plan.weight_shape, {}, plan.dtypes)
    table, plain = any_bytes(rng, 256, y_dtype), run(plan, x, w, b, numbers)
    assert np.array_equal(run(plan, x, w, b, {**numbers, "y_table": table}), table[plain.view(np.uint8)])
    # An array whose elements are no neighbours.
    every_second = np.repeat(table, 2)[::2]
    assert np.array_equal(run(plan, x, w, b, {**numbers, "y_table": every_second}), table[plain.view(np.uint8)])


@pytest.mark.parametrize("y_dtype", BYTES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_residual_is_added_before_the_result_is_rounded(rng, y_dtype, layout):
    x_shape, w_shape = [2, 3, 9, 8], [5, 3, 3, 3]
    x, w, b, numbers = layer_of(rng, "Conv", x_shape, w_shape, {}, (np.uint8, np.int8))
    numbers = {**numbers, "y_scale": 0.4}
    floats = {**numbers, "y_zero_point": 0}
    products = defined("Conv", x, w, b, {}, np.float32, **floats)
    residual, zero, scale = any_bytes(rng, products.shape, y_dtype), 11, np.float32(0.3)
    ratio = scale / np.float32(0.4)
    limits = np.iinfo(y_dtype)
    rounded = np.rint(products + (residual.astype(np.int32) - zero).astype(np.float32) * ratio)
    wanted = np.clip(rounded + numbers["y_zero_point"], limits.min, limits.max).astype(y_dtype)
    if layout == "NHWC":
        x, residual, wanted = last(x), last(residual), last(wanted)
    plan = convoke.Planner().plan_quantised("Conv", x.shape, w.shape, np.uint8, np.int8, y_dtype, layout=layout)
    added = {"residual": residual, "residual_scale": scale, "residual_zero_point": zero}
    assert np.array_equal(run(plan, x, w, b, numbers, **added), wanted)
    if layout == "NHWC":
        wide_x, wide = any_bytes(rng, [2, 9, 8, 7], np.uint8), any_bytes(rng, [2, 7, 6, 13], y_dtype)
        wide_x[..., 2:5], wide[..., 1:6] = x, residual
        added["residual"], out, before = wide[..., 1:6], np.zeros_like(wide), wide.copy()
        assert np.array_equal(run(plan, wide_x[..., 2:5], w, b, numbers, **added, out=out[..., 7:12]), wanted)
        assert np.array_equal(wide, before) and not out[..., :7].any() and not out[..., 12:].any()
        assert np.array_equal(out[..., 7:12], wanted)


def test_out_is_written_and_returned(layer):
    plan, x, _, _, weights, numbers = layer
    scaled, out = plan.scaled(weights, **numbers), np.zeros(plan.output_shape, np.uint8)
    wanted = plan.run(x, weights, scaled)
    assert plan.run(x, weights, scaled, out=out) is out and np.array_equal(out, wanted)
    all_at_once(4, lambda _: np.testing.assert_array_equal(plan.run(x, weights, scaled), wanted))


def test_arrays_are_checked(layer):
    plan, x, w, b, weights, numbers = layer
    scaled, out = plan.scaled(weights, **numbers), np.zeros(plan.output_shape, np.uint8)
    shared = np.zeros(x.size + out.size, np.uint8)
    read_only = out.copy()
    read_only.flags.writeable = False
    for refused, cls, message in (
        (lambda: plan.run(x.astype(np.int8), weights, scaled), convoke.InvalidTypeError, "Conv: X is of dtype int8, the plan is for uint8"),
        (lambda: plan.run(x.tolist(), weights, scaled), convoke.InvalidTypeError, "Conv: X must be a numpy.ndarray, not list"),
        (lambda: plan.run(x[0], weights, scaled), convoke.InvalidShapeError, "Conv: X has shape [32, 40, 40], must have [1, 32, 40, 40]"),
        (lambda: plan.run(np.asfortranarray(x), weights, scaled), convoke.InvalidInputError, "Conv: X is not C-contiguous and aligned"),
        (lambda: plan.run(x, weights, scaled, out=out.astype(np.int32)), convoke.InvalidTypeError, "Conv: out is of dtype int32"),
        (lambda: plan.run(x, weights, scaled, out=out[0]), convoke.InvalidShapeError, "Conv: out has shape"),
        (lambda: plan.run(x, weights, scaled, out=read_only), convoke.InvalidInputError, "Conv: out is read-only"),
        (lambda: plan.run(shared[: x.size].reshape(x.shape), weights, scaled, out=shared[1 : out.size + 1].reshape(out.shape)), convoke.InvalidInputError, "Conv: out shares memory with X"),
        (lambda: plan.run(x, weights, scaled, residual=x), convoke.InvalidShapeError, "Conv: the residual has shape"),
        (lambda: plan.run(x, weights, scaled, residual=out.astype(np.int8)), convoke.InvalidTypeError, "Conv: the residual is of dtype int8"),
        (lambda: plan.run(x, weights, scaled, residual=out, out=out), convoke.InvalidInputError, "Conv: out shares memory with the residual"),
        (lambda: plan.run(x, weights, scaled, residual=out, residual_scale=-1), convoke.InvalidInputError, "Conv: the residual's scale is -1"),
        (lambda: plan.run(x, weights, scaled, residual=out, residual_zero_point=256), convoke.InvalidInputError, "Conv: residual_zero_point is 256"),
        (lambda: plan.pack(w.astype(np.uint8)), convoke.InvalidTypeError, "Conv: W is of dtype uint8, the plan is for int8"),
        (lambda: plan.pack(w[:1]), convoke.InvalidShapeError, "Conv: W has shape"),
        (lambda: plan.pack(w, b.astype(np.float32)), convoke.InvalidTypeError, "Conv: B is of dtype float32, the plan is for int32"),
        (lambda: plan.pack(w, b.astype(">i4")), convoke.InvalidTypeError, "Conv: B is of dtype >i4"),
        (lambda: plan.pack(w, b[:-1]), convoke.InvalidShapeError, "Conv: B has 31 elements"),
        (lambda: plan.pack(w, np.full_like(b, 2**31 - 1)), convoke.SizeOverflowError, "Conv: sums of output channel 0 may reach"),
        (lambda: plan.pack(w, w_zero_point=np.zeros(31, np.int8)), convoke.BufferLengthError, "Conv: w_zero_point has 31 elements, not 1 or 32"),
        (lambda: plan.pack(w, w_zero_point=np.zeros(32, np.int32)), convoke.InvalidTypeError, "Conv: w_zero_point is of dtype int32"),
        (lambda: plan.pack(w, w_zero_point=128), convoke.InvalidInputError, "Conv: w_zero_point is 128, must be from -128 to 127"),
    ):
        with pytest.raises(convoke.Error) as caught:
            refused()
        assert caught.type is cls and str(caught.value).startswith(message)
    assert not out.any()


def test_scales_are_checked(layer):
    plan, _, _, _, weights, numbers = layer
    for name, value, cls, message in (
        ("x_scale", 0, convoke.InvalidInputError, "Conv: x_scale is 0, it must be positive and finite"),
        ("y_scale", float("nan"), convoke.InvalidInputError, "Conv: y_scale is NaN"),
        ("x_scale", np.ones(2, np.float32), convoke.BufferLengthError, "Conv: x_scale has 2 elements, must have 1"),
        ("w_scale", np.ones(31, np.float32), convoke.BufferLengthError, "Conv: w_scale has 31 elements, not 1 or 32"),
        ("w_scale", np.ones(0, np.float32), convoke.BufferLengthError, "Conv: w_scale has 0 elements"),
        ("w_scale", np.ones(32), convoke.InvalidTypeError, "Conv: w_scale is of dtype float64"),
        ("x_zero_point", -1, convoke.InvalidInputError, "Conv: x_zero_point is -1, must be from 0 to 255"),
        ("y_table", np.zeros(255, np.uint8), convoke.InvalidShapeError, "Conv: y_table has shape [255], must have [256]"),
        ("y_table", np.zeros(256, np.int8), convoke.InvalidTypeError, "Conv: y_table is of dtype int8, the plan is for uint8"),
        ("y_table", b"", convoke.InvalidTypeError, "Conv: y_table must be a numpy.ndarray, not bytes"),
        ("y_zero_point", 256, convoke.InvalidInputError, "Conv: y_zero_point is 256, must be from 0 to 255"),
        ("x_zero_point", 2**70, convoke.SizeOverflowError, "Conv: x_zero_point is 1180591620717411303424, must fit 64 bits"),
    ):
        with pytest.raises(convoke.Error) as caught:
            plan.scaled(weights, **{**numbers, name: value})
        assert caught.type is cls and str(caught.value).startswith(message)
    floats = convoke.Planner().plan_quantised("Conv", plan.input_shape, plan.weight_shape, np.uint8, np.int8, np.float32)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: y_table: it is for results of uint8 and int8 alone"):
        floats.scaled(weights, y_table=np.zeros(256, np.float32))
    for name, value in (("x_scale", "1"), ("w_scale", [1.0]), ("x_zero_point", 1.0), ("y_zero_point", [1])):
        with pytest.raises(TypeError, match=f"^Conv: {name}: "):
            plan.scaled(weights, **{**numbers, name: value})


def test_weights_and_scales_must_be_those_of_the_plan(layer):
    plan, x, w, b, weights, numbers = layer
    scaled, again = plan.scaled(weights, **numbers), plan.pack(w, b)
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: the scales were made for other weights"):
        plan.run(x, again, scaled)
    other = convoke.Planner().plan_quantised("Conv", x.shape, [16, 32, 3, 3], np.uint8, np.int8, np.uint8)
    others = other.pack(w[:16].copy())
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: the weights are not those of a plan of this layer"):
        plan.run(x, others, plan.scaled(others))
    floats = convoke.Planner().plan_quantised("Conv", x.shape, w.shape, np.uint8, np.int8, np.float32)
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: the scales were made by a plan of other dtypes"):
        floats.run(x, weights, scaled)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: a residual is for results of uint8 and int8 alone"):
        floats.run(x, weights, floats.scaled(weights), residual=np.zeros(floats.output_shape, np.float32))
    with pytest.raises(TypeError):
        plan.run(x, convoke.Planner().conv(x.shape, w.shape).pack(w.astype(np.float32)), scaled)


def test_plans_are_checked():
    def plan(*dtypes, op="Conv", x=(1, 4, 6, 6), w=(4, 4, 3, 3), planner=convoke.Planner(), **attributes):
        return lambda: planner.plan_quantised(op, x, w, *dtypes, **attributes)

    right = np.uint8, np.int8, np.uint8
    for refused, cls, message in (
        (plan(np.float32, *right[1:]), convoke.InvalidTypeError, "Conv: X of dtype float32, must be of uint8 or int8"),
        (plan(np.uint8, np.int16, np.uint8), convoke.InvalidTypeError, "Conv: W of dtype int16, must be of uint8 or int8"),
        (plan(*right[:2], "float64"), convoke.InvalidTypeError, "Conv: a result of dtype float64, must be of uint8, int8, int32, float32 or float16"),
        (plan(*right[:2], ">i4"), convoke.InvalidTypeError, "Conv: a result of dtype >i4, must be"),
        (plan(*right, op="Gemm"), convoke.UnsupportedOperatorError, 'operator "Gemm" is neither Conv nor ConvTranspose'),
        (plan(*right, output_padding=1), convoke.UnsupportedOperatorError, 'Conv: unknown attribute "output_padding"'),
        (plan(*right, strides=0), convoke.InvalidAttributeError, "Conv: spatial axis 0: strides is 0"),
        (plan(*right, x=(1, 3, 6, 6)), convoke.InvalidShapeError, "Conv: X has C = 3 channels"),
        (plan(*right, layout="HWC"), convoke.UnavailableError, 'Conv: layout "HWC" is none of'),
        (plan(*right, planner=convoke.Planner(activation="relu")), convoke.UnavailableError, "Conv: a plan of bytes has no activation"),
        (plan(*right, planner=convoke.Planner(workspace_limit=1)), convoke.UnavailableError, "Conv: a plan of bytes has no limit of the workspace"),
    ):
        with pytest.raises(convoke.Error) as caught:
            refused()
        assert caught.type is cls and str(caught.value).startswith(message)
