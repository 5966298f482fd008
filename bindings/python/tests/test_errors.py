"""Bad input: the kind, and a message that names operator, axis, value and rule."""

import inspect
import pickle
import traceback

import convoke
import numpy as np
import pytest

X, W = np.ones([1, 4, 6, 6], np.float32), np.ones([4, 4, 3, 3], np.float32)
PLANNER = convoke.Planner()


def test_every_error_is_a_value_error():
    classes = [value for name, value in vars(convoke).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) == 14
    for cls in classes:
        assert issubclass(cls, convoke.Error) and issubclass(cls, ValueError) and cls.__doc__
    assert issubclass(convoke.OutOfMemoryError, MemoryError) and issubclass(convoke.InvalidTypeError, TypeError)
    assert len({cls.kind for cls in classes}) == 14


CASES = [
    (lambda: convoke.conv(X, W, strides=[0, 1]), convoke.InvalidAttributeError, "Conv: spatial axis 0: strides is 0, must be at least 1"),
    (lambda: convoke.conv(X, W, strides=[]), convoke.InvalidAttributeError, "Conv: strides [] has 0 entries, must have one per spatial axis of X: 2"),
    (lambda: convoke.conv(X, W, pads=[1, 1]), convoke.InvalidAttributeError, "Conv: pads [1, 1] has 2 entries"),
    (lambda: convoke.conv(X, W, pads=[0, 0, 0, -1]), convoke.InvalidAttributeError, "Conv: spatial axis 1: pads is -1"),
    (lambda: convoke.conv(X, W, kernel_shape=[3, 2]), convoke.InvalidAttributeError, "Conv: spatial axis 1: kernel_shape 2 differs from W's size 3"),
    (lambda: convoke.conv(X, W, auto_pad="SAME"), convoke.InvalidAttributeError, 'Conv: auto_pad "SAME" is none of NOTSET'),
    (lambda: convoke.conv(X, W, auto_pad="VALID", pads=[1] * 4), convoke.InvalidAttributeError, "Conv: spatial axis 0: pads [1, 1, 1, 1] together with auto_pad VALID"),
    (lambda: convoke.conv(X, W, group=0), convoke.InvalidAttributeError, "Conv: group is 0, must be at least 1"),
    (lambda: convoke.conv_transpose(X, W, output_padding=[1, 0]), convoke.InvalidAttributeError, "ConvTranspose: spatial axis 0: output_padding 1 must be less than"),
    (lambda: convoke.conv_transpose(X, W, output_shape=[3, 90]), convoke.InvalidAttributeError, "ConvTranspose: spatial axis 1: output_shape 90 would need negative padding"),
    (lambda: PLANNER.conv(range(2**36), W.shape), convoke.InvalidShapeError, "Conv: x_shape has 68719476736 entries, more than 4096"),
    (lambda: PLANNER.conv(X.shape, W.shape, strides=range(2**61)), convoke.InvalidAttributeError, "Conv: strides has 2305843009213693952 entries, more than 4096"),
    (lambda: convoke.conv(X, W, group=2), convoke.InvalidShapeError, "Conv: X has C = 4 channels (axis 1), W's axis 1 (4) * group (2) is 8"),
    (lambda: convoke.conv(X, W, dilations=[1, 3]), convoke.InvalidShapeError, "Conv: spatial axis 1: padded input 6 (6 + pads 0 + 0) is smaller than the effective kernel 7"),
    (lambda: convoke.conv(X[0, 0], W), convoke.InvalidShapeError, "Conv: X must have at least 3 dimensions"),
    (lambda: convoke.conv(X, W[0]), convoke.InvalidShapeError, "Conv: W has 3 dimensions"),
    (lambda: PLANNER.conv([1, 4, -6, 6], W.shape), convoke.InvalidShapeError, "Conv: X has size -6 on axis 2"),
    (lambda: PLANNER.conv([2**62, 4, 6, 6], W.shape), convoke.SizeOverflowError, "Conv: "),
    (lambda: PLANNER.conv([1, 4, 2**40, 2**40], W.shape), convoke.SizeOverflowError, "Conv: X of shape"),
    (lambda: convoke.conv(X, W, pads=[2**62] * 4), convoke.SizeOverflowError, "Conv: "),
    (lambda: PLANNER.conv(X.shape, W.shape, opset=0), convoke.UnsupportedOperatorError, "Conv: opset 0 does not exist"),
    (lambda: PLANNER.conv(X.shape, W.shape, "bfloat16", opset=21), convoke.InvalidTypeError, "Conv: element type bfloat16 needs opset 22"),
    (lambda: convoke.conv(X, W, strides=[1.5, 1]), convoke.UnsupportedOperatorError, 'Conv: attribute "strides" is of type FLOATS, must be INTS'),
    (lambda: convoke.conv(X, W, strides=2.0), convoke.UnsupportedOperatorError, 'Conv: attribute "strides" is of type FLOAT, must be INTS'),
    (lambda: convoke.conv(X, W, pads=-1), convoke.InvalidAttributeError, "Conv: spatial axis 0: pads is -1"),
    (lambda: PLANNER.conv([], W.shape, strides=2), convoke.InvalidShapeError, "Conv: X must have at least 3 dimensions"),
    (lambda: convoke.conv(W[:, :, :2, :2], X), convoke.InvalidShapeError, "Conv: spatial axis 0: padded input 2 (2 + pads 0 + 0) is smaller than the effective kernel 6 (kernel 6, dilation 1); X and W fit if they are exchanged"),
    (lambda: convoke.conv(X, W, activation=("clip", np.nan, 6)), convoke.InvalidAttributeError, "Conv: the activation Clip has a lower bound that is NaN"),
    (lambda: convoke.conv(X, W, activation=("clip", 0, np.nan)), convoke.InvalidAttributeError, "Conv: the activation Clip has an upper bound that is NaN"),
    (lambda: convoke.conv(X, W, group="2"), convoke.UnsupportedOperatorError, 'Conv: attribute "group" is of type STRING, must be INT'),
    (lambda: PLANNER.conv([1, 4, 2**63, 6], W.shape), convoke.SizeOverflowError, "Conv: x_shape[2] is 9223372036854775808, must fit 64 bits"),
    (lambda: PLANNER.conv(X.shape, (4, -(2**64), 3, 3)), convoke.SizeOverflowError, "Conv: w_shape[1] is -18446744073709551616, must fit 64 bits"),
    (lambda: PLANNER.conv([1, 4, 1 << 20000, 6], W.shape), convoke.SizeOverflowError, "Conv: x_shape[2] is an integer of 20001 bits, must fit 64 bits"),
    (lambda: convoke.conv(X, W, strides=[1, 2**63]), convoke.SizeOverflowError, "Conv: strides[1] is 9223372036854775808, must fit 64 bits"),
    (lambda: convoke.conv(X, W, strides=np.array([2**63, 1], np.uint64)), convoke.SizeOverflowError, "Conv: strides[0] is 9223372036854775808, must fit 64 bits"),
    (lambda: convoke.conv(X, W, strides=[1.5, 1 << 20000]), convoke.SizeOverflowError, "Conv: strides[1] is an integer of 20001 bits"),
    (lambda: convoke.conv(X, W, strides=2**64), convoke.SizeOverflowError, "Conv: strides is 18446744073709551616, must fit 64 bits"),
    (lambda: convoke.conv(X, W, group=-(2**70)), convoke.SizeOverflowError, "Conv: group is -1180591620717411303424, must fit 64 bits"),
    (lambda: convoke.conv(X, W, group=-1), convoke.InvalidAttributeError, "Conv: group is -1, must be at least 1"),
    (lambda: PLANNER.conv_transpose(X.shape, W.shape, output_shape=[6, 2**63]), convoke.SizeOverflowError, "ConvTranspose: output_shape[1] is 9223372036854775808, must fit 64 bits"),
    (lambda: PLANNER.conv(X.shape, W.shape, opset=2**63), convoke.SizeOverflowError, "Conv: opset is 9223372036854775808, must fit 64 bits"),
    (lambda: PLANNER.conv(X.shape, W.shape, opset=-1), convoke.UnsupportedOperatorError, "Conv: opset -1 does not exist"),
    (lambda: convoke.conv(X, W, threads=0), convoke.ThreadsError, "threads is 0, must be from 1 to 1024"),
    (lambda: convoke.conv(X, W, threads=-1), convoke.ThreadsError, "threads is -1, must be from 1 to 1024"),
    (lambda: convoke.conv(X, W, threads=1025), convoke.ThreadsError, "threads is 1025, must be from 1 to 1024"),
    (lambda: convoke.Planner(threads=2**200), convoke.ThreadsError, "threads is 1606938044258990275541962092341162602522202993782792835301376, must be"),
    (lambda: convoke.Planner(workspace_limit=-1), convoke.WorkspaceError, "workspace_limit is -1, must be from 0 to 2**64 - 1"),
    (lambda: convoke.Planner(workspace_limit=1 << 20000), convoke.WorkspaceError, "workspace_limit is an integer of 20001 bits, must be from 0 to"),
    (lambda: convoke.Planner(activation=("clip", 0, 10**400)), convoke.UnavailableError, "activation ('clip', 0, 1000"),
    (lambda: convoke.Planner(activation=("clip", None, 6)), convoke.UnavailableError, "activation ('clip', None, 6) is neither a name nor a name with"),
    (lambda: convoke.conv(X, W, activation="softplus"), convoke.UnavailableError, 'activation "softplus" with parameters [] is none of relu'),
    (lambda: convoke.conv(X, W, activation=""), convoke.UnavailableError, 'activation "" with parameters [] is none of relu'),
    (lambda: convoke.Planner(activation=("",)), convoke.UnavailableError, 'activation "" with parameters [] is none of relu'),
    (lambda: convoke.Planner(activation=("clip", 0, 1e39)), convoke.UnavailableError, 'activation "clip" with parameters [0.0, 1e39] has a parameter that exceeds float32'),
    (lambda: convoke.Planner(activation=("leaky_relu", -1e39)), convoke.UnavailableError, 'activation "leaky_relu" with parameters [-1e39] has a parameter'),
    (lambda: convoke.conv(X, W, activation=("clip", 0)), convoke.UnavailableError, 'activation "clip" with parameters [0.0]'),
    (lambda: convoke.conv(X, W, activation=6), convoke.UnavailableError, "activation 6 is neither a name"),
    (lambda: convoke.conv(X, W, accuracy="exact"), convoke.UnavailableError, 'accuracy "exact" is none of strict'),
    (lambda: convoke.Planner(algorithm="magic"), convoke.UnavailableError, 'unknown algorithm "magic": expected one of winograd'),
    (lambda: convoke.Planner(isa="mmx"), convoke.UnavailableError, 'isa: "mmx" is not an ISA: expected one of portable'),
    (lambda: convoke.Planner(algorithm="depthwise-transposed").conv(X.shape, W.shape), convoke.UnavailableError, "Conv: depthwise-transposed cannot be used"),
    (lambda: convoke.Planner(algorithm="winograd", workspace_limit=64).conv([1, 64, 56, 56], [64, 64, 3, 3]), convoke.WorkspaceError, "Conv: needs"),
]


@pytest.mark.parametrize("refused, cls, message", CASES, ids=[case[2] for case in CASES])
def test_messages(refused, cls, message):
    with pytest.raises(convoke.Error) as caught:
        refused()
    assert caught.type is cls and str(caught.value).startswith(message)


def test_a_bound_may_be_infinite():
    x = np.linspace(-1, 1, X.size, dtype=np.float32).reshape(X.shape)
    clipped = convoke.conv(x, W, activation=("clip", 0, np.inf))
    assert clipped.any() and np.array_equal(clipped, convoke.conv(x, W, activation="relu"))


def test_huge_layers_need_no_memory_to_be_refused_or_planned():
    plan = PLANNER.conv([1, 1, 2**40], [1, 1, 1])
    with pytest.raises(convoke.InvalidShapeError):
        plan.run(np.ones([1, 1, 8], np.float32), plan.pack(np.ones([1, 1, 1], np.float32)))
    # 4 TiB of padding: numpy cannot allocate the result.
    with pytest.raises(convoke.OutOfMemoryError, match=r"^Conv: out of shape \[1, 1, \d+\] cannot be made: ") as caught:
        convoke.conv(np.ones([1, 1, 1], np.float32), np.ones([1, 1, 1], np.float32), pads=[0, 2**44])
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value.__cause__, MemoryError)


def test_integers_of_another_type_are_type_errors():
    for refused, name in (
        (lambda: convoke.Planner(threads="2"), "threads"),
        (lambda: convoke.Planner(threads=2.0), "threads"),
        (lambda: convoke.Planner(workspace_limit="1"), "workspace_limit"),
        (lambda: PLANNER.conv("1468", W.shape), "Conv: x_shape"),
        (lambda: PLANNER.conv(X.shape, 4), "Conv: w_shape"),
        (lambda: PLANNER.conv(X.shape, W.shape, opset="22"), "Conv: opset"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: "):
            refused()


def test_integers_of_numpy_are_integers():
    plan = convoke.Planner(threads=np.int64(1), workspace_limit=np.uint64(2**40)).conv(np.array(X.shape), np.array(W.shape), strides=np.array([2, 2]), group=np.int8(1))
    assert plan.output_shape == (1, 4, 2, 2)


@pytest.mark.parametrize("call", [lambda: convoke.conv(X, W, stride=[1, 1]), lambda: convoke.conv(X), lambda: PLANNER.conv(X.shape), lambda: convoke.conv(X, W, None, [1, 1])], ids=["name", "W", "w_shape", "position"])
def test_wrong_calls_are_type_errors(call):
    with pytest.raises(TypeError):
        call()


def test_an_error_leaves_out_untouched():
    plan, out = PLANNER.conv(X.shape, W.shape), np.full([1, 4, 4, 4], 7, np.float32)
    packed = convoke.Planner(algorithm="im2col:native").conv(X.shape, W.shape).pack(W)
    with pytest.raises(convoke.PackedMismatchError):
        plan.run(X, packed, out=out)
    assert (out == 7).all()
    # Nothing is left in use by the run that failed.
    assert plan.run(X, plan.pack(W), out=out) is out


def test_an_integer_stands_for_a_list():
    x, w = [1, 4, 9, 8], [4, 4, 3, 3]
    for one, two in (
        (PLANNER.conv(x, w, strides=2, pads=1, dilations=2, kernel_shape=3), PLANNER.conv(x, w, strides=[2, 2], pads=[1] * 4, dilations=[2, 2], kernel_shape=[3, 3])),
        (PLANNER.conv_transpose(x, w, strides=2, output_padding=1), PLANNER.conv_transpose(x, w, strides=[2, 2], output_padding=[1, 1])),
        (PLANNER.conv_transpose(x, w, strides=np.int64(2), output_shape=18), PLANNER.conv_transpose(x, w, strides=[2, 2], output_shape=[18, 18])),
        (PLANNER.conv([1, 4, 9], [4, 4, 3], pads=1), PLANNER.conv([1, 4, 9], [4, 4, 3], pads=[1, 1])),
    ):
        assert one.explain() == two.explain()
    assert np.array_equal(convoke.conv(X, W, strides=2, pads=1), convoke.conv(X, W, strides=[2, 2], pads=[1, 1, 1, 1]))


def test_tracebacks_name_the_package():
    with pytest.raises(convoke.Error) as caught:
        convoke.conv(X, W, strides=[0, 1])
    assert traceback.format_exception_only(caught.value)[0].startswith("convoke.InvalidAttributeError: ")
    for value in map(convoke.__dict__.get, convoke.__all__):
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == "convoke", value
    assert pickle.loads(pickle.dumps(convoke.ThreadsError("so many"))).args == ("so many",)
