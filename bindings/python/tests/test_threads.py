"""Pools of threads, threads of Python, and forked processes."""

import multiprocessing
import os
import sys
import threading
import time

import convoke
import numpy as np
import pytest
from conftest import normal


@pytest.fixture
def layer(rng):
    x, w = normal(rng, [1, 64, 56, 56]), normal(rng, [64, 64, 3, 3])
    return x, w, lambda threads: convoke.Planner(threads=threads).conv(x.shape, w.shape, pads=[1] * 4)


def test_the_bits_are_the_same_from_run_to_run(layer):
    x, w, plan_for = layer
    for threads in (1, 2, 3, 8):
        plan = plan_for(threads)
        packed = plan.pack(w)
        wanted = plan.run(x, packed)
        for _ in range(5):
            assert np.array_equal(plan.run(x, packed), wanted)


def all_at_once(count, work):
    """Calls ``work(i)`` on threads that begin together, and raises what they raise."""
    barrier, failures = threading.Barrier(count), []

    def body(i):
        try:
            barrier.wait()
            work(i)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_a_plan(layer, threads):
    x, w, plan_for = layer
    plan = plan_for(threads)
    packed = plan.pack(w)
    inputs = [x + i for i in range(4)]
    wanted = [plan.run(x, packed) for x in inputs]

    def work(i):
        for _ in range(20):
            assert np.array_equal(plan.run(inputs[i], packed), wanted[i])

    all_at_once(4, work)


def test_threads_plan_pack_and_run_layers_of_their_own(rng):
    w = normal(rng, [8, 8, 3, 3])

    def work(i):
        for size in range(5, 25):
            x = np.full([1, 8, size, size + i], i, np.float32)
            got = convoke.conv(x, w, threads=1 + i % 3, accuracy="strict")
            assert np.allclose(got, i * w.sum((1, 2, 3)).reshape(1, 8, 1, 1), atol=1e-3)

    all_at_once(6, work)


def test_other_threads_run_meanwhile(rng):
    """A thread counts while another one is in a run."""
    x, w = normal(rng, [1, 256, 112, 112]), normal(rng, [256, 256, 3, 3])
    plan = convoke.Planner(accuracy="strict").conv(x.shape, w.shape, pads=[1] * 4)
    packed, counted, running = plan.pack(w), 0, threading.Event()

    def run():
        running.set()
        plan.run(x, packed)

    # Python hands its lock over every five milliseconds, a run takes some tenths of a second.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        running.wait()
        while thread.is_alive():
            counted += 1
            time.sleep(0.001)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert counted > 10


def test_an_array_that_is_written_by_a_run_is_in_use(rng):
    """Two runs must not write to one array at the same time: one of them fails, and the result is that of the other."""
    x, w = normal(rng, [1, 128, 112, 112]), normal(rng, [128, 128, 3, 3])
    plan = convoke.Planner().conv(x.shape, w.shape, pads=[1] * 4)
    packed, out = plan.pack(w), np.zeros(plan.output_shape, np.float32)
    wanted, refused = plan.run(x, packed), []

    def work(i):
        for _ in range(10):
            try:
                plan.run(x, packed, out=out)
            except convoke.InvalidInputError as error:
                assert str(error) == "Conv: out is in use by a run of another thread"
                refused.append(error)

    all_at_once(3, work)
    assert refused and np.array_equal(out, wanted)
    # All may read one array.
    all_at_once(3, lambda i: plan.run(x, packed))
    assert plan.run(x, packed, out=out) is out


def is_in_use(plan, x, others, out):
    """Whether a run that writes to the array has begun. Nothing is written: `others` are weights of another plan."""
    with pytest.raises((convoke.InvalidInputError, convoke.PackedMismatchError)) as caught:
        plan.run(x, others, out=out)
    return caught.type is convoke.InvalidInputError


def test_an_array_may_get_another_shape_while_a_run_uses_it(rng):
    """numpy changes a shape in place. What a run keeps of the array must not depend on it."""
    x, w = normal(rng, [1, 128, 112, 112]), normal(rng, [128, 128, 3, 3])
    plan = convoke.Planner().conv(x.shape, w.shape, pads=[1] * 4)
    packed, residual = plan.pack(w), np.ones(plan.output_shape, np.float32)
    others = convoke.Planner().conv(x.shape, w.shape, pads=[1] * 4).pack(w)
    wanted, changes = plan.run(x, packed) + 1, 0
    for out in (np.empty_like(residual), residual):
        shapes = [array.shape for array in (x, out, residual)]

        def run():
            assert plan.run(x, packed, residual=residual, out=out) is out

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive() and not is_in_use(plan, x, others, out):
            pass
        while thread.is_alive():
            for array in (x, out, residual):
                array.shape = -1
                changes += 1
            time.sleep(0.001)
        thread.join()
        for array, shape in zip((x, out, residual), shapes):
            array.shape = shape
        assert np.allclose(out, wanted, atol=1e-4)
    # Nothing is in use any more.
    assert changes > 0 and plan.run(x, packed, out=out) is out


def test_an_array_may_get_another_dtype_while_its_bytes_are_loaded():
    """numpy changes a dtype in place. What is kept of the array must not depend on it."""
    plan = convoke.Planner().conv([1, 1024, 4, 4], [2048, 1024, 1, 1])
    weights = np.ones(plan.weight_shape, np.float32)
    data = plan.pack(weights).to_bytes()
    memory = np.zeros(len(data) + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    array = memory[begin : begin + len(data)]
    array[...] = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    during = 0
    # The thread keeps Python's lock until the package releases it.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for _ in range(5):
            loaded, running = [], threading.Event()

            def load():
                running.set()
                loaded.append(convoke.PackedWeights.from_shared(array, np.float32))

            thread = threading.Thread(target=load)
            thread.start()
            running.wait()
            array.dtype = np.uint16
            during += not loaded
            thread.join()
            array.dtype = np.uint8
    finally:
        sys.setswitchinterval(interval)
    assert during > 0
    (packed,) = loaded
    array.dtype = np.uint16
    again = convoke.Planner().packed_for(packed).conv(plan.input_shape, plan.weight_shape)
    assert (again.run(np.ones(plan.input_shape, np.float32), packed) == 1024).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(layer):
    x, w, plan_for = layer
    plan = plan_for(2)
    packed = plan.pack(w)
    wanted = plan.run(x, packed)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child():
        again = plan_for(2)
        sender.send(np.array_equal(plan.run(x, packed), wanted) and np.array_equal(again.run(x, again.pack(w)), wanted))

    process = context.Process(target=child)
    process.start()
    try:
        assert receiver.poll(60) and receiver.recv()
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
    assert np.array_equal(plan.run(x, packed), wanted)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_threads_are_started_by_the_first_run_that_uses_them():
    def threads():
        return len(os.listdir("/proc/self/task"))

    planner, before = convoke.Planner(threads=5), threads()
    plan = planner.conv([1, 64, 56, 56], [64, 64, 3, 3])
    x, w = np.ones(plan.input_shape, np.float32), np.ones(plan.weight_shape, np.float32)
    packed = plan.pack(w)
    other = convoke.Planner(threads=5, algorithm="im2col:native").conv(plan.input_shape, plan.weight_shape).pack(w)
    # Runs that are refused.
    for refused in (lambda: plan.run(x[0], packed), lambda: plan.run(x, packed, out=x), lambda: plan.run(x, other)):
        with pytest.raises(convoke.Error):
            refused()
    # A run that is too short to be split.
    short = planner.conv([1, 1, 4], [1, 1, 3])
    assert short.threads == 5
    short.run(np.ones([1, 1, 4], np.float32), short.pack(np.ones([1, 1, 3], np.float32)))
    assert threads() == before
    for _ in range(3):
        plan.run(x, packed)
        assert threads() == before + 5
