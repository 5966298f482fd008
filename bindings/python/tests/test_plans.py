"""Plans, packed weights and planners."""

import copy
import os
import pickle
import subprocess
import sys

import convoke
import ml_dtypes
import numpy as np
import pytest
from conftest import by_reference, assert_close, normal


def test_a_plan_tells_what_it_is():
    plan = convoke.Planner(threads=2, activation="relu").conv([1, 3, 224, 224], [64, 3, 7, 7], strides=[2, 2], pads=[3] * 4)
    assert (plan.op, plan.threads, plan.dtype) == ("Conv", 2, np.dtype(np.float32))
    assert plan.input_shape == (1, 3, 224, 224)
    assert plan.weight_shape == (64, 3, 7, 7)
    assert plan.output_shape == (1, 64, 112, 112)
    assert plan.macs == 64 * 112 * 112 * 3 * 49
    assert plan.isa in ("avx512", "avx2", "neon", "portable")
    assert plan.workspace_bytes > 0 and plan.packed_bytes >= 64 * 3 * 49 * 4
    text = plan.explain()
    assert f"picked {plan.algorithm}" in text and plan.kernel in text and "\n  not naive " in text
    assert repr(plan).startswith("<convoke.Plan Conv") and "\n" not in repr(plan)


def test_a_plan_of_a_conv_transpose():
    plan = convoke.Planner().conv_transpose([2, 128, 32, 32], [128, 64, 2, 2], np.float64, strides=[2, 2])
    assert (plan.op, plan.output_shape, plan.dtype) == ("ConvTranspose", (2, 64, 64, 64), np.dtype(np.float64))


@pytest.mark.parametrize("dtype", ["float32", np.float64, np.dtype("float16"), "bfloat16", ml_dtypes.bfloat16], ids=str)
def test_dtypes_by_any_name(dtype):
    plan = convoke.Planner().conv([1, 1, 4], [1, 1, 3], dtype)
    assert plan.dtype == (np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype))
    packed = plan.pack(np.ones([1, 1, 3], plan.dtype))
    assert packed.dtype == plan.dtype
    y = plan.run(np.ones([1, 1, 4], plan.dtype), packed)
    assert y.dtype == plan.dtype and y.tolist() == [[[3, 3]]]


def test_bfloat16_by_name_needs_no_import():
    code = "import convoke, numpy; plan = convoke.Planner().conv([1, 1, 4], [1, 1, 3], 'bfloat16'); print(plan.dtype)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "bfloat16\n"


@pytest.mark.parametrize("dtype", [np.int8, np.complex64, ">f8", object, "V2", "U1"], ids=str)
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(convoke.InvalidTypeError, match="^Conv: dtype .*must be float32, float64, float16 or ml_dtypes.bfloat16"):
        convoke.Planner().conv([1, 1, 4], [1, 1, 3], dtype)
    with pytest.raises(convoke.InvalidTypeError, match="^packed weights: dtype"):
        convoke.PackedWeights.from_bytes(b"", dtype)


def test_planners_choose():
    shapes = [1, 32, 28, 28], [32, 32, 3, 3]
    wanted = convoke.Planner().conv(*shapes, pads=[1] * 4)
    assert wanted.algorithm == "winograd"
    assert convoke.Planner(accuracy="strict").conv(*shapes, pads=[1] * 4).algorithm != "winograd"
    assert convoke.Planner(algorithm="gemm").conv(*shapes).algorithm == "gemm"
    portable = convoke.Planner(isa="portable").conv(*shapes, pads=[1] * 4)
    assert portable.isa == "portable"
    limited = convoke.Planner(workspace_limit=wanted.workspace_bytes // 2).conv(*shapes, pads=[1] * 4)
    assert limited.workspace_bytes <= wanted.workspace_bytes // 2
    rng = np.random.default_rng(3)
    x, w = normal(rng, shapes[0]), normal(rng, shapes[1])
    for plan in (wanted, portable, limited):
        assert_close(plan.run(x, plan.pack(w)), by_reference("Conv", x, w, pads=[1] * 4))


def test_the_environment_names_the_isa():
    code = "import convoke; print(convoke.Planner().conv([1, 1, 4], [1, 1, 3]).isa)"
    environment = {**os.environ, "CONVOKE_ISA": "portable"}
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout == "portable\n"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "CONVOKE_ISA": "mmx"})
    assert "UnavailableError: Conv: " in failed.stderr and "mmx" in failed.stderr


def test_weights_that_do_not_serve_within_the_limit_are_to_be_packed_again():
    shapes = [1, 4, 8, 8], [6, 4, 3, 3]
    packed = convoke.Planner(algorithm="gemm").conv(*shapes, pads=[1] * 4).pack(np.ones(shapes[1], np.float32))
    limited = convoke.Planner(workspace_limit=0)
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: needs .* the limit is 0: pack the weights again$"):
        limited.packed_for(packed).conv(*shapes, pads=[1] * 4)
    assert limited.conv(*shapes, pads=[1] * 4).workspace_bytes == 0


def test_weights_serve_other_sizes_by_packed_for(rng):
    planner, w = convoke.Planner(activation="relu"), normal(rng, [16, 8, 3, 3])
    small = planner.conv([1, 8, 20, 20], w.shape)
    packed = small.pack(w)
    assert small.accepts(packed)
    x = normal(rng, [3, 8, 30, 24])
    assert planner.conv([1, 8, 20, 20], w.shape).accepts(packed)
    other = convoke.Planner(algorithm="im2col:native", activation="relu").conv(x.shape, w.shape)
    assert not other.accepts(packed)
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: the weights are packed otherwise"):
        other.run(x, packed)
    plan = planner.packed_for(packed).conv(x.shape, w.shape)
    assert plan.accepts(packed)
    assert_close(plan.run(x, packed), np.maximum(by_reference("Conv", x, w), 0))
    with pytest.raises(convoke.PackedMismatchError, match="strides|stride"):
        planner.packed_for(packed).conv(x.shape, w.shape, strides=[2, 2])
    with pytest.raises(convoke.PackedMismatchError, match="element type"):
        planner.packed_for(packed).conv(x.shape, w.shape, np.float64)


def test_weights_of_another_dtype_are_refused(rng):
    plan = convoke.Planner().conv([1, 1, 4], [1, 1, 3])
    double = convoke.Planner().conv([1, 1, 4], [1, 1, 3], np.float64)
    packed = double.pack(np.ones([1, 1, 3]))
    assert not plan.accepts(packed)
    with pytest.raises(convoke.PackedMismatchError, match="^Conv: the weights were packed for dtype float64, the plan needs float32"):
        plan.run(np.ones([1, 1, 4], np.float32), packed)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_weights_are_saved_and_loaded(rng, tmp_path, dtype):
    planner = convoke.Planner(threads=2)
    plan = planner.conv([1, 24, 30, 30], [24, 24, 3, 3], dtype, pads=[1] * 4)
    x, w, b = (normal(rng, shape, plan.dtype) for shape in (plan.input_shape, plan.weight_shape, 24))
    packed = plan.pack(w, b)
    wanted = plan.run(x, packed)
    data = packed.to_bytes()
    assert type(data) is bytes and packed.nbytes >= 24 * 24 * 9 * 2
    (tmp_path / "weights").write_bytes(data)
    mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
    for loaded in (convoke.PackedWeights.from_bytes(data, plan.dtype), convoke.PackedWeights.from_shared(mapped, plan.dtype)):
        assert loaded.dtype == plan.dtype and loaded.nbytes == packed.nbytes
        assert plan.accepts(loaded)
        again = planner.packed_for(loaded).conv(x.shape, w.shape, dtype, pads=[1] * 4)
        assert np.array_equal(again.run(x, loaded), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_pickled_and_copied(rng, dtype):
    planner = convoke.Planner()
    plan = planner.conv([1, 8, 9, 9], [8, 8, 3, 3], dtype)
    x, w = (normal(rng, shape, plan.dtype) for shape in (plan.input_shape, plan.weight_shape))
    packed = plan.pack(w)
    for other in (*(pickle.loads(pickle.dumps(packed, protocol)) for protocol in range(2, 6)), copy.copy(packed), copy.deepcopy(packed)):
        assert type(other) is convoke.PackedWeights and other is not packed
        assert other.dtype == packed.dtype and other.to_bytes() == packed.to_bytes()
        again = planner.packed_for(other).conv(x.shape, w.shape, dtype)
        assert np.array_equal(again.run(x, other), plan.run(x, packed))
    data = packed.to_bytes()
    damaged = pickle.dumps(packed).replace(data[-64:], bytes(byte ^ 1 for byte in data[-64:]))
    with pytest.raises(convoke.InvalidPackedError, match="^packed weights: "):
        pickle.loads(damaged)


def test_planners_have_a_text(rng):
    assert repr(convoke.Planner()) == "convoke.Planner()"
    planner = convoke.Planner(threads=4, activation=("clip", 0, 6), workspace_limit=1 << 20)
    assert repr(planner) == "convoke.Planner(threads=4, activation=('clip', 0, 6), workspace_limit=1048576)"
    packed = planner.conv([1, 8, 9, 9], [8, 8, 3, 3]).pack(normal(rng, [8, 8, 3, 3]))
    assert repr(planner.packed_for(packed)) == f"{planner!r}.packed_for({packed!r})"


def test_names_may_be_in_upper_case():
    plan = convoke.Planner(isa="Portable", algorithm="NAIVE").conv([1, 1, 4], [1, 1, 3])
    assert (plan.isa, plan.algorithm) == ("portable", "naive")


def test_bytes_that_are_no_weights_are_refused(rng):
    plan = convoke.Planner().conv([1, 8, 9, 9], [8, 8, 3, 3])
    data = plan.pack(normal(rng, [8, 8, 3, 3])).to_bytes()
    load = convoke.PackedWeights.from_bytes
    damaged = bytearray(data)
    damaged[-100] ^= 1
    for wrong in (b"", b"x" * 100, data[:-64], bytes(damaged)):
        with pytest.raises(convoke.InvalidPackedError, match="^packed weights: "):
            load(wrong, np.float32)
    with pytest.raises(convoke.InvalidPackedError, match="they are of float, not of double"):
        load(data, np.float64)
    with pytest.raises(TypeError):
        load(bytearray(data), np.float32)


def test_shared_bytes_are_read_only_aligned_bytes(rng):
    plan = convoke.Planner().conv([1, 8, 9, 9], [8, 8, 3, 3])
    data = plan.pack(normal(rng, [8, 8, 3, 3])).to_bytes()
    memory = np.zeros(len(data) + 128, np.uint8)
    begin = -memory.ctypes.data % 64
    aligned = memory[begin : begin + len(data)]
    aligned[...] = np.frombuffer(data, np.uint8)
    share = convoke.PackedWeights.from_shared
    with pytest.raises(convoke.InvalidPackedError, match="the array is writeable"):
        share(aligned, np.float32)
    for array in (memory, aligned):
        array.flags.writeable = False
    assert share(aligned, np.float32).nbytes > 0
    with pytest.raises(convoke.InvalidPackedError, match="they begin 1 bytes behind a multiple of 64"):
        share(memory[begin + 1 :], np.float32)
    with pytest.raises(convoke.InvalidPackedError, match="not contiguous"):
        share(memory[::2], np.float32)
    for wrong in (data, aligned.view(np.int8), aligned.reshape(1, -1)):
        with pytest.raises(TypeError):
            share(wrong, np.float32)


def test_classes_are_final_and_made_by_the_package():
    for cls in (convoke.Plan, convoke.PackedWeights, convoke.QuantisedPlan, convoke.QuantisedWeights, convoke.Scaled):
        with pytest.raises(TypeError):
            cls()
        with pytest.raises(TypeError):
            type("Own", (cls,), {})
    plan = convoke.Planner().conv([1, 1, 4], [1, 1, 3])
    with pytest.raises(AttributeError):
        plan.threads = 2
    assert convoke.Plan.__module__ == "convoke" and convoke.__version__.count(".") == 2
