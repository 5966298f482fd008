"""Channels last: the results of channels first, and channels of wider arrays in place."""

import sys

import convoke
import ml_dtypes
import numpy as np
import pytest
from conftest import assert_close, normal
from test_layers import FUNCTIONS, LAYERS, channels
from test_threads import all_at_once

NAMES = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def last(array):
    """A new array with the channels last."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def first(array):
    return np.ascontiguousarray(np.moveaxis(array, -1, 1))


@pytest.mark.parametrize("op, x_shape, w_shape, attributes", LAYERS)
def test_results_are_those_of_channels_first(rng, op, x_shape, w_shape, attributes):
    x, w, b = (normal(rng, shape) for shape in (x_shape, w_shape, channels(op, w_shape, attributes)))
    nchw, nhwc = NAMES[x.ndim - 2]
    function = FUNCTIONS[op]
    residual = normal(rng, function(x, w, **attributes).shape)
    wanted = function(x, w, b, residual=residual, layout=nchw, activation="relu", **attributes)
    got = function(last(x), w, b, residual=last(residual), layout=nhwc, activation="relu", **attributes)
    assert_close(got, last(wanted))
    assert_close(function(x, w, b, residual=last(residual), layout=(nchw, nhwc), activation="relu", **attributes), last(wanted))
    assert_close(function(last(x), w, b, residual=residual, layout=(nhwc, nchw), activation="relu", **attributes), wanted)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name)
def test_other_dtypes(rng, dtype):
    x, w = normal(rng, [2, 5, 9, 8], dtype), normal(rng, [6, 5, 3, 3], dtype)
    wanted = last(convoke.conv(x, w, pads=1))
    got = convoke.conv(last(x), w, pads=1, layout="NHWC")
    assert got.dtype == dtype
    assert_close(got, wanted)
    wide = np.concatenate([last(x)] * 2, axis=-1)
    assert np.array_equal(convoke.conv(wide[..., 5:], w, pads=1, layout="NHWC"), got)


def test_shapes_are_those_of_the_arrays():
    planner = convoke.Planner()
    plan = planner.conv([2, 9, 8, 5], [6, 5, 3, 2], layout="NHWC")
    assert plan.input_shape == (2, 9, 8, 5) and plan.output_shape == (2, 7, 7, 6) and plan.weight_shape == (6, 5, 3, 2)
    plan = planner.conv_transpose([2, 5, 9], [5, 6, 3], layout=("NCW", "NWC"))
    assert plan.input_shape == (2, 5, 9) and plan.output_shape == (2, 11, 6)
    with pytest.raises(convoke.InvalidShapeError, match=r"^ConvTranspose: X has shape \[2, 9, 5\], must have \[2, 5, 9\]"):
        plan.run(np.ones([2, 9, 5], np.float32), plan.pack(np.ones([5, 6, 3], np.float32)))


X, W = np.ones([1, 6, 6, 4], np.float32), np.ones([4, 4, 3, 3], np.float32)

WRONG = [
    ("NHCW", convoke.UnavailableError, 'Conv: layout "NHCW" is none of NCW, NCHW, NCDHW, NWC, NHWC, NDHWC'),
    ("", convoke.UnavailableError, 'Conv: layout "" is none of'),
    (("NHWC", "nhwc"), convoke.UnavailableError, 'Conv: layout "nhwc" is none of'),
    ("NWC", convoke.InvalidShapeError, 'Conv: layout "NWC" has 3 axes, X has 4'),
    (("NHWC", "NDHWC"), convoke.InvalidShapeError, 'Conv: layout "NDHWC" has 5 axes, X has 4'),
    (("NHWC",), convoke.UnavailableError, "Conv: layout ('NHWC',) is neither a name nor a pair of names"),
    (("NHWC", None), convoke.UnavailableError, "Conv: layout ('NHWC', None) is neither a name nor a pair of names"),
    (1, convoke.UnavailableError, "Conv: layout 1 is neither a name nor a pair of names"),
]


@pytest.mark.parametrize("layout, cls, message", WRONG, ids=[case[2] for case in WRONG])
def test_wrong_layouts(layout, cls, message):
    with pytest.raises(cls) as caught:
        convoke.conv(X, W, layout=layout)
    assert type(caught.value) is cls and str(caught.value).startswith(message)


def test_the_channels_must_fit():
    with pytest.raises(convoke.InvalidShapeError, match="^Conv: X has C = 6 channels"):
        convoke.conv(np.ones([1, 4, 6, 6], np.float32), W, layout="NHWC")
    with pytest.raises(convoke.InvalidShapeError, match='^Conv: layout "NHWC" has 4 axes, X has 0'):
        convoke.Planner().conv([], W.shape, layout="NHWC")


@pytest.fixture
def layer(rng):
    """A plan, its packed weights, X, W and the result."""
    x, w = normal(rng, [2, 7, 6, 5]), normal(rng, [4, 5, 3, 3])
    plan = convoke.Planner(threads=2).conv(x.shape, w.shape, pads=1, layout="NHWC")
    packed = plan.pack(w)
    return plan, packed, x, w, plan.run(x, packed)


def widened(array, before=2, behind=3):
    """The array as channels of a wider one, whose other elements are NaN, and that one."""
    wide = np.full([*array.shape[:-1], before + array.shape[-1] + behind], np.nan, array.dtype)
    view = wide[..., before : before + array.shape[-1]]
    view[...] = array
    return view, wide


def nan_count(array):
    return np.isnan(array).sum()


@pytest.mark.parametrize("before, behind", [(2, 3), (0, 1), (5, 0)])
def test_channels_of_wider_arrays_are_taken_in_place(rng, layer, before, behind):
    plan, packed, x, w, wanted = layer
    x_view, _ = widened(x, before, behind)
    out, wide = widened(wanted, before, behind)
    for run in (lambda **to: plan.run(x_view, packed, **to), lambda **to: convoke.conv(x_view, w, pads=1, layout="NHWC", threads=2, **to)):
        assert np.array_equal(run(), wanted)
        out[...] = np.nan
        assert run(out=out) is out
        assert np.array_equal(out, wanted) and nan_count(wide) == wide.size - out.size
        # A residual beside `out`, and in it.
        residual = normal(rng, wanted.shape)
        added = plan.run(x, packed, residual=residual)
        run(out=out, residual=widened(residual)[0])
        assert np.array_equal(out, added)
        out[...] = residual
        run(out=out, residual=out)
        assert np.array_equal(out, added)
        out[...] = residual
        run(out=out, residual=wide[..., before : before + 4])
        assert np.array_equal(out, added) and nan_count(wide) == wide.size - out.size


@pytest.mark.parametrize("shape", [(1, 1, 1, 5), (1, 1, 4, 5), (1, 4, 1, 5), (3, 1, 1, 5), (2, 3, 4, 1), (1, 1, 1, 1)], ids=str)
def test_axes_of_one_element(rng, shape):
    x, w = normal(rng, shape), normal(rng, [3, shape[-1], 1, 1])
    plan = convoke.Planner().conv(shape, w.shape, layout="NHWC")
    packed = plan.pack(w)
    wanted = plan.run(x, packed)
    out, wide = widened(wanted)
    assert plan.run(widened(x)[0], packed, out=out) is out
    assert np.array_equal(out, wanted) and nan_count(wide) == wide.size - out.size


def test_other_numbers_of_axes(rng):
    for name, shape in (("NWC", (2, 9, 3)), ("NDHWC", (2, 4, 5, 6, 3))):
        x, w = normal(rng, shape), normal(rng, [4, 3] + [2] * (len(shape) - 2))
        assert np.array_equal(convoke.conv(widened(x)[0], w, layout=name), convoke.conv(x, w, layout=name))
        plan = convoke.Planner().conv(shape, w.shape, layout=name)
        plan.run(widened(x)[0], plan.pack(w), out=widened(plan.run(x, plan.pack(w)))[0])


def misaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = np.ndarray(array.shape, array.dtype, memory, 1)
    view[...] = array
    return view


REFUSED = {
    "rows of a larger image": lambda array: np.concatenate([array, array], axis=1)[:, : array.shape[1]],
    "columns of a larger image": lambda array: np.concatenate([array, array], axis=2)[:, :, : array.shape[2]],
    "every second image": lambda array: np.repeat(array, 2, axis=0)[::2],
    "every second channel": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "backwards": lambda array: np.ascontiguousarray(array[:, :, ::-1])[:, :, ::-1],
    "channels first": lambda array: np.moveaxis(first(array), 1, -1),
    "misaligned": lambda array: misaligned(np.concatenate([array, array], axis=-1))[..., : array.shape[-1]],
    "overlapping pixels": lambda array: np.lib.stride_tricks.as_strided(array, strides=(*(s - 4 for s in array.strides[:-1]), 4)),
}


@pytest.mark.parametrize("lay", REFUSED.values(), ids=REFUSED)
def test_what_lies_otherwise_is_refused_or_copied(layer, lay):
    plan, packed, x, w, wanted = layer
    laid = lay(x)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: X is not C-contiguous and aligned"):
        plan.run(laid, packed)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: the residual is not C-contiguous and aligned"):
        plan.run(x, packed, residual=lay(wanted))
    for run in (lambda **to: plan.run(x, packed, **to), lambda **to: convoke.conv(x, w, pads=1, layout="NHWC", **to)):
        with pytest.raises(convoke.InvalidInputError, match="^Conv: out is not C-contiguous and aligned: a copy would lose"):
            run(out=lay(wanted))
    assert_close(convoke.conv(laid, w, pads=1, layout="NHWC"), plan.run(np.ascontiguousarray(laid), packed))


def test_channels_of_channels_first_are_no_pixels(layer):
    _, _, x, w, _ = layer
    plan = convoke.Planner().conv([2, 5, 7, 6], w.shape)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: X is not C-contiguous"):
        plan.run(np.repeat(first(x), 2, axis=-1)[..., :6], plan.pack(w))


def test_x_and_out_are_not_channels_of_one_array(layer):
    plan, packed, x, _, wanted = layer
    wide = np.zeros([*x.shape[:-1], 9], np.float32)
    wide[..., :5] = x
    before = wide.copy()
    with pytest.raises(convoke.InvalidInputError, match="^Conv: out shares memory with X, which is read while it is written"):
        plan.run(wide[..., :5], packed, out=wide[..., 5:])
    wide = np.zeros([*x.shape[:-1], 8], np.float32)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: out shares memory with the residual"):
        plan.run(x, packed, residual=wide[..., :4], out=wide[..., 4:])
    assert np.array_equal(before[..., :5], x) and not wide.any()


def test_wide_arrays_may_be_read_only_or_mapped(layer, tmp_path):
    plan, packed, x, _, wanted = layer
    view, wide = widened(x)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=wide.shape)
    mapped[...] = wide
    wide.flags.writeable = False
    assert np.array_equal(plan.run(wide[..., 2:7], packed), wanted)
    assert np.array_equal(plan.run(mapped[..., 2:7], packed), wanted)
    out, wide = widened(wanted)
    before = wide.copy()
    out.flags.writeable = False
    with pytest.raises(convoke.InvalidInputError, match="^Conv: out is read-only"):
        plan.run(x, packed, out=out)
    assert np.array_equal(wide, before, equal_nan=True)


def test_views_are_not_kept(layer):
    plan, packed, x, _, wanted = layer
    arrays = [*widened(x), *widened(wanted)]
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(10):
        plan.run(arrays[0], packed, residual=arrays[2], out=arrays[2])
        with pytest.raises(convoke.Error):
            plan.run(arrays[2], packed)
    assert [sys.getrefcount(array) for array in arrays] == before


def test_channels_of_one_array_are_not_written_at_the_same_time(rng):
    """One of two runs fails, and the result is that of the other."""
    x, w = normal(rng, [1, 112, 112, 64]), normal(rng, [64, 64, 3, 3])
    plan = convoke.Planner().conv(x.shape, w.shape, pads=1, layout="NHWC")
    packed = plan.pack(w)
    wanted, joined, refused = plan.run(x, packed), np.zeros([1, 112, 112, 128], np.float32), []

    def work(i):
        for _ in range(10):
            try:
                plan.run(x, packed, out=joined[..., 64 * i : 64 * i + 64])
            except convoke.InvalidInputError as error:
                assert str(error) == "Conv: out is in use by a run of another thread"
                refused.append(error)

    all_at_once(2, work)
    for i in range(2):
        plan.run(x, packed, out=joined[..., 64 * i : 64 * i + 64])
    assert refused and np.array_equal(joined, np.concatenate([wanted, wanted], axis=-1))
