"""Arrays of any kind: what is read, written, copied or refused."""

import convoke
import ml_dtypes
import numpy as np
import pytest
from conftest import normal


@pytest.fixture
def layer(rng):
    """A plan, its packed weights, X, W, B and the result."""
    x, w, b = normal(rng, [2, 4, 8, 8]), normal(rng, [6, 4, 3, 3]), normal(rng, 6)
    plan = convoke.Planner().conv(x.shape, w.shape)
    packed = plan.pack(w, b)
    return plan, packed, x, w, b, plan.run(x, packed)


def misaligned(array):
    """A contiguous copy that begins one byte behind a multiple of its elements' size."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = np.ndarray(array.shape, array.dtype, memory, 1)
    view[...] = array
    assert view.flags.c_contiguous and not view.flags.aligned
    return view


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "every second": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "backwards": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "misaligned": misaligned,
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_one_call_and_pack_copy_other_layouts(layer, layout):
    plan, _, x, w, b, wanted = layer
    assert np.array_equal(convoke.conv(layout(x), layout(w), layout(b)), wanted)
    assert np.array_equal(plan.run(x, plan.pack(layout(w), layout(b))), wanted)
    residual = np.ones_like(wanted)
    assert np.array_equal(convoke.conv(x, w, b, residual=layout(residual)), plan.run(x, plan.pack(w, b), residual=residual))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_run_refuses_other_layouts(layer, layout):
    plan, packed, x, _, _, wanted = layer
    with pytest.raises(convoke.InvalidInputError, match="^Conv: X is not C-contiguous and aligned"):
        plan.run(layout(x), packed)
    with pytest.raises(convoke.InvalidInputError, match="^Conv: the residual is not C-contiguous and aligned"):
        plan.run(x, packed, residual=layout(wanted))
    with pytest.raises(convoke.InvalidInputError, match=r"^Conv: out is not C-contiguous and aligned: a copy would lose the result: pass an array as numpy.empty\(shape, dtype\) makes it$"):
        plan.run(x, packed, out=layout(wanted))


def test_a_broadcast_array_is_not_contiguous(layer):
    plan, packed, x, w, _, _ = layer
    with pytest.raises(convoke.InvalidInputError, match="not C-contiguous"):
        plan.run(np.broadcast_to(x[:1], x.shape), packed)


def test_one_element_with_strides_of_zero_is_an_array_like_others():
    one = np.broadcast_to(np.float32(2), (1, 1, 1))
    assert one.flags.c_contiguous and one.strides == (0, 0, 0)
    assert convoke.conv(one, one, one[0, 0], residual=one).item() == 8
    plan = convoke.Planner().conv([1, 1, 1], [1, 1, 1])
    packed = plan.pack(one)
    assert plan.run(one, packed, residual=one).item() == 6
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 1, 1), (0, 0, 0))
    with pytest.raises(convoke.InvalidInputError, match="^Conv: out is one element that is broadcast"):
        plan.run(one, packed, out=out)


def test_parts_of_larger_arrays_that_are_contiguous_need_no_copy(layer):
    plan, packed, x, _, _, wanted = layer
    many = np.stack([x, x + 1])
    results = np.zeros((2, *wanted.shape), np.float32)
    assert plan.run(many[0], packed, out=results[1]).base is results
    assert np.array_equal(results[1], wanted) and not results[0].any()


def test_out_is_written_and_returned(layer):
    plan, packed, x, w, b, wanted = layer
    out = np.full_like(wanted, np.nan)
    assert plan.run(x, packed, out=out) is out
    assert np.array_equal(out, wanted)
    out[...] = np.nan
    assert convoke.conv(x, w, b, out=out) is out
    assert np.array_equal(out, wanted)


def test_out_may_be_the_residual(layer):
    plan, packed, x, w, b, _ = layer
    residual = np.linspace(-1, 1, 2 * 6 * 36, dtype=np.float32).reshape(2, 6, 6, 6)
    wanted = plan.run(x, packed, residual=residual)
    for run in (lambda out: plan.run(x, packed, residual=out, out=out), lambda out: convoke.conv(x, w, b, residual=out, out=out)):
        out = residual.copy()
        assert run(out) is out
        assert np.array_equal(out, wanted)
    # Another view of the same memory, too.
    out = residual.copy()
    plan.run(x, packed, residual=out[:], out=out)
    assert np.array_equal(out, wanted)


def test_out_shares_no_other_memory():
    plan = convoke.Planner().conv([1, 2, 8], [2, 2, 1])
    packed = plan.pack(np.ones([2, 2, 1], np.float32))
    memory = np.zeros(64, np.float32)

    def at(place):
        return memory[place : place + 16].reshape(1, 2, 8)

    for place in (0, 1, 15):
        with pytest.raises(convoke.InvalidInputError, match="^Conv: out shares memory with X"):
            plan.run(at(0), packed, out=at(place))
        with pytest.raises(convoke.InvalidInputError, match="^Conv: out shares memory with X"):
            plan.run(at(place), packed, out=at(0))
    for place in (1, 15):
        with pytest.raises(convoke.InvalidInputError, match="^Conv: out shares memory with the residual"):
            plan.run(at(32), packed, residual=at(0), out=at(place))
    # By another owner of the memory.
    with pytest.raises(convoke.InvalidInputError, match="shares memory"):
        plan.run(np.frombuffer(memory, np.float32, 16).reshape(1, 2, 8), packed, out=at(8))
    assert not memory.any()
    plan.run(at(0), packed, residual=at(0), out=at(16))


def test_read_only_arrays_are_read_and_not_written(layer):
    plan, packed, x, w, b, wanted = layer
    for array in (x, w, b):
        array.flags.writeable = False
    assert np.array_equal(plan.run(x, plan.pack(w, b)), wanted)
    out = np.zeros_like(wanted)
    out.flags.writeable = False
    with pytest.raises(convoke.InvalidInputError, match="^Conv: out is read-only"):
        plan.run(x, packed, out=out)
    assert not out.any()


def test_packed_weights_do_not_follow_the_array(layer):
    plan, _, x, w, b, wanted = layer
    packed = plan.pack(w, b)
    w[...], b[...] = 0, 0
    assert np.array_equal(plan.run(x, packed), wanted)


class Named(np.ndarray):
    """A subclass that would notice if it were copied through numpy."""


def test_a_copy_method_of_a_subclass_is_not_called(layer):
    class Copies(np.ndarray):
        def copy(self, order="C"):
            raise AssertionError

    plan, _, x, w, b, wanted = layer
    x, w, residual = (np.asfortranarray(array).view(Copies) for array in (x, w, np.ones_like(wanted)))
    got = convoke.conv(x, w, np.repeat(b, 2)[::2].view(Copies), residual=residual)
    assert type(got) is np.ndarray
    assert np.array_equal(got, plan.run(np.ascontiguousarray(x), plan.pack(w, b), residual=np.ascontiguousarray(residual)))


def test_subclasses_are_arrays_and_results_are_plain(layer, tmp_path):
    plan, packed, x, _, _, wanted = layer
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=x.shape)
    mapped[...] = x
    for view in (x.view(Named), mapped):
        got = plan.run(view, packed)
        assert type(got) is np.ndarray and np.array_equal(got, wanted)
    out = np.zeros_like(wanted).view(Named)
    assert plan.run(x, packed, out=out) is out and np.array_equal(out, wanted)


def test_masked_arrays_are_refused(layer):
    plan, packed, x, w, b, wanted = layer
    masked = np.ma.masked_array(x, x > 0)
    for refused in (
        lambda: plan.run(masked, packed),
        lambda: convoke.conv(masked, w),
        lambda: convoke.conv(x, np.ma.masked_array(w)),
        lambda: plan.pack(w, np.ma.masked_array(b)),
        lambda: convoke.conv(x, w, residual=np.ma.masked_array(wanted)),
        lambda: plan.run(x, packed, out=np.ma.masked_array(wanted)),
    ):
        with pytest.raises(convoke.InvalidTypeError, match="has a mask"):
            refused()


@pytest.mark.parametrize("value", [[[[1.0]]], 1.0, "x", None, memoryview(bytes(4))], ids=str)
def test_what_is_no_array_is_refused(layer, value):
    plan, packed, x, w, _, _ = layer
    name = type(value).__name__
    for refused in (lambda: plan.run(value, packed), lambda: convoke.conv(value, w), lambda: convoke.conv(x, value), lambda: plan.pack(value)):
        with pytest.raises(convoke.InvalidTypeError, match=f"must be a numpy.ndarray, not {name}"):
            refused()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint16, np.complex64, ">f4", object, ml_dtypes.float8_e4m3], ids=str)
def test_nothing_is_converted(layer, dtype):
    plan, packed, x, w, b, wanted = layer
    other = np.ones_like(x).astype(dtype)
    with pytest.raises(convoke.InvalidTypeError, match="^Conv: X is of dtype .*, the plan is for float32"):
        plan.run(other, packed)
    with pytest.raises(convoke.InvalidTypeError, match=r"^Conv: out is of dtype .*, the plan is for float32: a copy would lose the result: pass an array as numpy.empty\(shape, dtype\) makes it$"):
        plan.run(x, packed, out=wanted.astype(dtype))
    with pytest.raises(convoke.InvalidTypeError, match="^Conv: W is of dtype"):
        convoke.conv(x, w.astype(dtype))
    with pytest.raises(convoke.InvalidTypeError, match="^Conv: B is of dtype"):
        convoke.conv(x, w, b.astype(dtype))


def test_shapes_are_checked(layer):
    plan, packed, x, w, b, wanted = layer
    for refused, name in (
        (lambda: plan.run(x[:1], packed), "X has shape"),
        (lambda: plan.run(x.reshape(-1), packed), "X has shape"),
        (lambda: plan.run(x, packed, residual=wanted[:1]), "the residual has shape"),
        (lambda: plan.run(x, packed, out=np.zeros([2, 6, 36], np.float32)), "out has shape"),
        (lambda: plan.pack(w[:, :, :2].copy()), "W has shape"),
        (lambda: plan.pack(w, b[:5]), "B has 5 elements"),
        (lambda: plan.pack(w, b.reshape(1, 6)), "B has 2 dimensions"),
    ):
        with pytest.raises(convoke.InvalidShapeError, match=f"^Conv: {name}"):
            refused()


def test_arrays_are_not_kept(layer):
    import sys

    plan, packed, x, w, b, wanted = layer
    out = np.zeros_like(wanted)
    before = [sys.getrefcount(array) for array in (x, w, b, out, wanted)]
    for _ in range(10):
        plan.run(x, plan.pack(w, b), residual=wanted, out=out)
        with pytest.raises(convoke.Error):
            plan.run(x, packed, out=x)
    assert [sys.getrefcount(array) for array in (x, w, b, out, wanted)] == before


def test_memory_is_freed(layer):
    import os

    plan, packed, x, w, b, _ = layer

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs Linux")
    for i in range(20000):
        plan.run(x, plan.pack(w, b))
        convoke.conv(x, w, b)
        if i == 2000:
            before = resident()
    # A result takes 1.7 KiB, and weights more: 18000 that leaked would be more than 60 MiB.
    assert resident() - before < 8 << 20
