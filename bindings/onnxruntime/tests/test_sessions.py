"""Options, threads, several sessions, memory."""

import ctypes
import gc
import os
import pathlib
import platform
import subprocess
import sys
import threading

import convoke_onnxruntime
import models
import numpy as np
import onnxruntime
import pytest
from conftest import assert_close, layers, options, output_of, run_plain, session
from onnx import TensorProto, helper


def small(m=16, size=20, layers=3, free=False):
    net = models.Network("small", ["n" if free else 1, 8, "h" if free else size, "w" if free else size])
    x, c = "x", 8
    for _ in range(layers):
        x, c = net.node("Relu", net.conv(x, m, c, [3, 3], pads=[1] * 4)), m
    return net.model(x).SerializeToString()


def feeds(rng, *shape):
    return {"x": rng.standard_normal(shape or (1, 8, 20, 20)).astype(np.float32)}


# An instruction set of another architecture.
ABSENT = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"


@pytest.mark.parametrize(
    "chosen",
    [
        {"threads": 1},
        {"threads": 3},
        {"accuracy": "strict"},
        {"accuracy": "standard"},
        {"accuracy": "fast"},
        {"isa": "portable"},
        {"workspace_limit": 0},
        {"share_weights": True},
        {"log_level": "error"},
    ],
    ids=str,
)
def test_options(chosen, rng):
    x = feeds(rng)
    made = session(small(), **chosen)
    assert len(layers(made)) == 3
    assert_close(made.run(None, x), run_plain(small(), x), 1e-5)


@pytest.mark.parametrize("name, value", [("threads", "0"), ("thread", "1"), ("accuracy", "exact"), ("isa", "sse"), ("isa", ABSENT), ("workspace_limit", "1G"), ("tune", "1"), ("tuning_file", "absent.txt"), ("log_level", "debug")])
@pytest.mark.parametrize("by", ["provider", "configuration"])
def test_a_mistyped_option_is_an_error(name, value, by):
    made = options()
    if by == "provider":
        made.add_provider_for_devices(convoke_onnxruntime.devices(), {name: value})
    else:
        made.add_session_config_entry(f"ep.convoke.{name}", value)
        made.add_provider_for_devices(convoke_onnxruntime.devices(), {})
    # The class below `InferenceSession`, which in 1.24 falls back to onnxruntime's own provider.
    inner = onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession(made, small(), False, False)
    with pytest.raises(Exception, match=f"convoke: .*{name}"):
        inner.initialize_session([], [], set())


@pytest.mark.parametrize("chosen", [{"threads": 0}, {"accuracy": "exact"}, {"isa": ABSENT}, {"tune": True}, {"tuning_file": "absent.txt"}, {"log_level": "debug"}], ids=str)
def test_add_to_refuses_what_cannot_be(chosen):
    """A session may not run on onnxruntime's own provider instead, as 1.24 would have it."""
    made = options()
    with pytest.raises(ValueError, match=f"^convoke: .*{next(iter(chosen))}"):
        convoke_onnxruntime.add_to(made, **chosen)
    assert not made.has_providers()


def test_a_list_of_providers_replaces_those_of_the_options():
    """The README warns of it. `add_to` cannot: the list comes afterwards, and not to convoke."""
    made = convoke_onnxruntime.add_to(options())
    with pytest.warns(UserWarning, match="'providers'"):
        replaced = onnxruntime.InferenceSession(small(), made, providers=["CPUExecutionProvider"])
    assert replaced.get_providers() == ["CPUExecutionProvider"]
    assert convoke_onnxruntime.PROVIDER in onnxruntime.InferenceSession(small(), made).get_providers()


def test_the_pool_of_the_session_is_what_layers_are_split_for():
    made = convoke_onnxruntime.add_to(options(pool=3))
    assert made.get_session_config_entry("ep.convoke.threads") == "3"


def quantised():
    """A Conv between DequantizeLinear and QuantizeLinear, as quantising tools write it."""
    net = models.Network("quantised", [1, 8, 20, 20])
    (scale, zero), (small_scale, small_zero) = [(net.constant(np.float32(s)), net.constant(z)) for s, z in ((0.02, np.uint8(128)), (0.01, np.int8(0)))]
    w = net.constant(np.random.default_rng(3).integers(-20, 20, (16, 8, 3, 3)).astype(np.int8))
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", scale, zero), scale, zero)
    x = net.node("Relu", net.node("Conv", x, net.node("DequantizeLinear", w, small_scale, small_zero), pads=[1] * 4))
    # Of float weights that are not quantised.
    y = net.conv(net.node("DequantizeLinear", net.node("QuantizeLinear", x, scale, zero), scale, zero), 4, 16, [3, 3])
    return net.model(y).SerializeToString()


def test_a_quantised_conv_stays_with_onnxruntime_which_computes_it_in_int8(rng):
    made, x = session(quantised()), feeds(rng)
    assert layers(made) == [["Conv"]]
    parts = made.get_provider_graph_assignment_info()
    ops = [node.op_type for part in parts if part.ep_name == "CPUExecutionProvider" for node in part.get_nodes()]
    assert "Conv" in ops or "QLinearConv" in ops
    assert_close(made.run(None, x), run_plain(quantised(), x), 1e-5)


def test_the_log_says_what_runs_how_and_what_does_not():
    code = """
from test_sessions import *
from onnx import numpy_helper
onnxruntime.set_default_logger_severity(2)
made = convoke_onnxruntime.add_to(onnxruntime.SessionOptions(), layout="first", log_level="verbose")
onnxruntime.InferenceSession(small(), made)
onnxruntime.InferenceSession(quantised(), convoke_onnxruntime.add_to(onnxruntime.SessionOptions(), layout="first"))
# A group that does not divide: onnxruntime's own shape inference lets it pass.
graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], "odd", group=2)], "odd",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    [numpy_helper.from_array(np.ones((5, 2, 3, 3), np.float32), "w")])
made = convoke_onnxruntime.add_to(onnxruntime.SessionOptions())
try:
    onnxruntime.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString(), made).run(None, {"x": np.ones((1, 4, 8, 8), np.float32)})
    print("it ran")
except Exception as error:
    print("an error:", error)
"""
    text = output_of(code)
    assert "(Conv + Relu): Conv float: X [1, 8, 20, 20]" in text
    assert "picked" in text and "not naive" in text
    assert "3 fused nodes are convoke's" in text
    assert "(Conv) is left to onnxruntime: X and W are dequantised, and the option layout is first" in text
    assert 'node "odd" (Conv) is left to onnxruntime: Conv: ' in text
    assert "an error:" in text and "it ran" not in text


@pytest.mark.parametrize("severity", range(5))
def test_what_log_level_asks_for_is_shown_at_every_level_of_onnxruntime(severity):
    """Lines below onnxruntime's level are given that level, and say their own."""
    code = """
from test_sessions import *
made = onnxruntime.SessionOptions()
made.log_severity_level = int(sys.argv[1])
onnxruntime.InferenceSession(small(), convoke_onnxruntime.add_to(made, layout="first", log_level=sys.argv[2]))
"""
    lines = [line for line in output_of(code, severity, "verbose").splitlines() if "convoke" in line]
    assert sum(("convoke: node" if severity == 0 else "convoke (verbose): node") in line for line in lines) == 3
    assert sum(("convoke: " if severity <= 1 else "convoke (info): ") + "3 fused nodes" in line for line in lines) == 1
    assert not any("convoke: " in line or "convoke (" in line for line in output_of(code, severity, "warning").splitlines())


def test_the_log_says_how_each_size_is_computed_when_it_first_comes():
    code = """
from test_sessions import *
onnxruntime.set_default_logger_severity(2)
made = onnxruntime.InferenceSession(small(free=True, layers=1), convoke_onnxruntime.add_to(onnxruntime.SessionOptions(), threads=1, log_level="verbose"))
for size in (20, 20, 33, 20, 33):
    print("size", size, flush=True)
    made.run(None, feeds(np.random.default_rng(1), 1, 8, size, size))
"""
    lines = [line for line in output_of(code).splitlines() if "picked " in line or "size 3" in line or "Conv float" in line]
    assert len(lines) == 6 and "(Conv + Relu): Conv float: X [1, 8, 20, 20]" in lines[0] and "X [1, 8, 33, 33]" in lines[3]
    assert [line[:4] for line in (lines[2], lines[5])] == ["size"] * 2


def test_weights_that_are_inputs_are_not_transformed_in_every_run():
    """The layer is one that Winograd computes where the weights are constant."""
    code = """
from test_operators import layer
from test_sessions import *
onnxruntime.set_default_logger_severity(2)
for constant in (True, False):
    model, x = layer("Conv", 1, [1, 64, 28, 28], [64, 64, 3, 3], constant=constant, pads=[1] * 4)
    onnxruntime.InferenceSession(model.SerializeToString(), convoke_onnxruntime.add_to(onnxruntime.SessionOptions(), threads=1, log_level="verbose")).run(None, x)
"""
    picks = [line.split("picked ")[1] for line in output_of(code).splitlines() if "picked " in line]
    assert len(picks) == 2
    assert picks[0].startswith("winograd") and not picks[1].startswith("winograd")


def test_a_tuning_file_is_written_and_read(tmp_path, rng):
    path = tmp_path / "tuning.txt"
    x = feeds(rng)
    made = session(small(), tuning_file=path, tune=True, threads=1)
    text = path.read_text()
    assert len(text.splitlines()) == 1 + 2, "two of the three layers are the same"
    assert_close(made.run(None, x), run_plain(small(), x), 1e-5)
    # Layers that are known are not measured again, and others are added.
    session(small(), tuning_file=path, tune=True, threads=1)
    assert path.read_text() == text
    session(small(m=24), tuning_file=path, tune=True, threads=1)
    assert set(path.read_text().splitlines()) > set(text.splitlines())
    # A pick in the file is what runs.
    forced = [" ".join([*line.split(" ")[:-1], "naive"]) if i else line for i, line in enumerate(text.splitlines())]
    path.write_text("\n".join(forced) + "\n")
    log = output_of(
        """
from test_sessions import *
onnxruntime.set_default_logger_severity(2)
onnxruntime.InferenceSession(small(), convoke_onnxruntime.add_to(onnxruntime.SessionOptions(), threads=1, layout="first", tuning_file=sys.argv[1], log_level="verbose"))
""",
        path,
    )
    assert log.count("picked naive") == 3
    path.write_text("nonsense")
    with pytest.raises(Exception):
        made = onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession(convoke_onnxruntime.add_to(options(), tuning_file=path), small(), False, False)
        made.initialize_session([], [], set())
    assert path.read_text() == "nonsense"


def test_sessions_that_are_made_at_the_same_time_share_a_tuning_file(tmp_path):
    path, failures = tmp_path / "tuning.txt", []

    def work(first):
        for m in range(first, first + 24, 8):
            try:
                session(small(m=m, size=6, layers=1), tuning_file=path, tune=True, threads=1)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (8, 32, 56, 80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(path.read_text().splitlines()) == 1 + 12
    assert sorted(os.listdir(tmp_path)) == [path.name, path.name + ".lock"]


def test_processes_that_run_at_the_same_time_share_a_tuning_file(tmp_path):
    path = tmp_path / "tuning.txt"
    code = """
from test_sessions import *
first = int(sys.argv[2])
for m in range(first, first + 24, 4):
    session(small(m=m, size=6, layers=1), tuning_file=sys.argv[1], tune=True, threads=1)
"""
    folder = os.path.dirname(__file__)
    started = [subprocess.Popen([sys.executable, "-c", code, path, str(first)], cwd=folder) for first in (4, 28, 52)]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(path.read_text().splitlines()) == 1 + 3 * 6


@pytest.mark.parametrize("bound", ["x", "r"])
def test_an_output_may_be_bound_to_the_memory_of_an_input(bound, rng):
    net = models.Network("bound", [1, 8, 20, 20])
    if bound == "r":
        net.inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 8, 20, 20]))
    y = net.node("Add", net.conv("x", 8, 8, [3, 3], pads=[1] * 4), bound)
    model = net.model(y).SerializeToString()
    x = {value.name: rng.standard_normal((1, 8, 20, 20)).astype(np.float32) for value in net.inputs}
    wanted = run_plain(model, x)
    made = session(model)
    assert layers(made) == [["Conv", "Add"]]
    tensors = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in x.items()}
    binding = made.io_binding()
    for name, tensor in tensors.items():
        binding.bind_ortvalue_input(name, tensor)
    binding.bind_ortvalue_output(y, tensors[bound])
    made.run_with_iobinding(binding)
    assert_close([tensors[bound].numpy()], wanted, 1e-5)


def test_shapes_that_change(rng):
    model = small(free=True)
    made = session(model, threads=2, pool=2)
    plain = onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"])
    for n, h, w in [(1, 20, 20), (3, 20, 20), (1, 64, 50), (1, 20, 20), (2, 5, 7), (1, 1, 1), (1, 200, 160), (1, 3, 300), (0, 9, 9), (1, 20, 21)]:
        x = feeds(rng, n, 8, h, w)
        assert_close(made.run(None, x), plain.run(None, x), 1e-5)


@pytest.mark.parametrize("free", [False, True])
def test_many_threads_run_one_session(free, rng):
    made = session(small(free=free, layers=4), threads=2, pool=2)
    inputs = [feeds(rng, 1 + (i % 2 if free else 0), 8, *([20 + i, 20] if free else [20, 20])) for i in range(6)]
    wanted = [made.run(None, x) for x in inputs]
    failures = []

    def work(first):
        for i in range(60):
            at = (first + i) % len(inputs)
            if not all(np.array_equal(*pair) for pair in zip(made.run(None, inputs[at]), wanted[at])):
                failures.append(at)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_sessions_at_once(rng):
    one, other = session(small(), threads=2, pool=2), session(small(m=24), threads=2, pool=2)
    x = feeds(rng)
    wanted = one.run(None, x), other.run(None, x)
    failures = []

    def work(made, outputs):
        for _ in range(200):
            if not np.array_equal(made.run(None, x)[0], outputs[0]):
                failures.append(made)

    threads = [threading.Thread(target=work, args=pair) for pair in ((one, wanted[0]), (other, wanted[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_global_pool():
    """Sessions share the pool of the process."""
    code = """
from test_sessions import *
onnxruntime.set_global_thread_pool_sizes(2, 1)
x = feeds(np.random.default_rng(1))
def shared():
    made = options(pool=0)
    made.use_per_session_threads = False
    return made
wanted = onnxruntime.InferenceSession(small(), shared(), providers=["CPUExecutionProvider"]).run(None, x)
for made in [onnxruntime.InferenceSession(small(), convoke_onnxruntime.add_to(shared(), threads=2)) for _ in range(2)]:
    assert sum(map(len, layers(made))) == 6
    assert_close(made.run(None, x), wanted, 1e-5)
print("done")
"""
    assert "done" in output_of(code)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_runs_start_no_threads_and_use_those_of_onnxruntime():
    """In a process of its own, where no other session has threads."""
    code = """
from test_sessions import *
import contextlib, time
TICK = 1 / os.sysconf("SC_CLK_TCK")
# The processor time of each thread. Those that packed may be about to end.
def seconds():
    found = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/self/task/{task}/stat").read_text().rsplit(") ")[1].split()
            found[task] = sum(map(int, fields[11:13])) * TICK
    return found
settings = options(pool=2)
# Threads that wait must not count as threads that compute.
settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
made = onnxruntime.InferenceSession(small(m=64, size=56, layers=4), convoke_onnxruntime.add_to(settings, layout="first"))
assert len(layers(made)) == 4
x = feeds(np.random.default_rng(1), 1, 8, 56, 56)
made.run(None, x)
before = seconds()
deadline = time.monotonic() + 60
while True:
    for _ in range(50):
        made.run(None, x)
    after = seconds()
    assert after.keys() <= before.keys()
    busy = sorted(after[task] - before[task] for task in after)
    if busy[-2] > 0.1:
        break
    assert time.monotonic() < deadline, busy
print("done")
"""
    assert "done" in output_of(code)


def test_the_library_can_be_unloaded_and_loaded_again():
    code = """
from test_sessions import *
x = feeds(np.random.default_rng(1))
def run():
    made = session(small(), threads=2, pool=2)
    assert len(layers(made)) == 3
    return made.run(None, x)
def there():
    return [device.ep_name for device in onnxruntime.get_ep_devices()].count(convoke_onnxruntime.PROVIDER)
first = run()
assert there() == 1
gc.collect()
for _ in range(2):
    convoke_onnxruntime.unregister()
    assert there() == 0
np.testing.assert_array_equal(run(), first)
assert there() == 1
print("done")
"""
    assert "done" in output_of(code)


def resident():
    """Bytes of memory of this process, without those that earlier tests have freed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_sessions_free_their_memory(rng):
    model, x = small(m=64), feeds(rng)
    for i in range(1000):
        session(model, threads=1).run(None, x)
        if i == 199:
            before = resident()
    # A session has over 300 KiB of packed weights: 800 that leaked would be 240 MiB.
    assert resident() - before < 8 << 20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
@pytest.mark.parametrize("share", [False, True])
def test_sessions_of_one_model_share_weights_if_they_are_told_to(share):
    net = models.Network("wide", [1, 1024, 7, 7])
    x = net.conv("x", 1024, 1024, [3, 3], pads=[1] * 4)
    model = net.model(x).SerializeToString()
    w = 4 * 9 * 1024 * 1024
    kept = [session(model, threads=1, accuracy="strict", share_weights=share)]
    before = resident()
    kept += [session(model, threads=1, accuracy="strict", share_weights=share) for _ in range(4)]
    grown = resident() - before
    assert grown < w if share else grown > 3 * w
    del kept[1:]


def test_an_older_onnxruntime_is_told_what_is_missing():
    """The library asks for its version of the interface, and says so where it is missing."""
    import ctypes

    class Base(ctypes.Structure):
        _fields_ = [("get_api", ctypes.c_void_p), ("get_version", ctypes.c_void_p)]

    library = ctypes.CDLL(str(convoke_onnxruntime.library_path()))
    messages = []
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(lambda code, text: messages.append(text.decode()) or 1)
    # CreateStatus is the first function of every version of the interface.
    table = (ctypes.c_void_p * 400)(ctypes.cast(create, ctypes.c_void_p))
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda version: ctypes.addressof(table) if version <= 23 else None)
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(text, ctypes.c_void_p).value)
    text = ctypes.c_char_p(b"1.23.2")
    base = Base(ctypes.cast(get_api, ctypes.c_void_p), ctypes.cast(get_version, ctypes.c_void_p))
    create_factories = library.CreateEpFactories
    create_factories.restype = ctypes.c_void_p
    factories, made = (ctypes.c_void_p * 1)(), ctypes.c_size_t(0)
    status = create_factories(b"convoke", ctypes.byref(base), None, factories, ctypes.c_size_t(1), ctypes.byref(made))
    assert status == 1 and made.value == 0
    assert messages == ["convoke: this provider needs onnxruntime 1.24 or newer (version 24 of its C interface), and this is 1.23.2"]


@pytest.mark.parametrize("page", ["docs/linking.md", "bindings/onnxruntime/README.md"])
def test_the_program_of_a_page_runs_its_layers_on_convoke(page, tmp_path):
    text = (pathlib.Path(__file__).parents[3] / page).read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    (program,) = [block for block in blocks if "import convoke_onnxruntime\n" in block]
    (tmp_path / "model.onnx").write_bytes(small())
    made = "onnxruntime.SessionOptions()\n"
    assert made in program
    program = program.replace(made, made + 'options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")\n')
    program += "print([part.ep_name for part in session.get_provider_graph_assignment_info()])\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert convoke_onnxruntime.PROVIDER in done.stdout
