"""The comparison of a model with and without convoke, and the pick of the faster one."""

import json
import subprocess
import sys
import warnings
import weakref

import convoke_onnxruntime
import models
import numpy as np
import onnxruntime
import pytest
from conftest import assert_close, options, run_plain
from convoke_onnxruntime import _compare, _faster, faster_session
from onnx import TensorProto, helper


def small(dims=(1, 3, 24, 24), seed=7):
    net = models.Network("small", list(dims), seed)
    x = net.conv("x", 16, 3, [3, 3], pads=[1] * 4)
    x = net.node("Relu", x)
    return net.model(net.conv(x, 8, 16, [1, 1]))


def test_a_comparison_has_both_sides():
    found = convoke_onnxruntime.compare(small().SerializeToString(), threads=[1, 2], seconds=0.05, layers=True, layout="first")
    assert [one.threads for one in found] == [1, 2]
    for one in found:
        assert one.nodes == 3 and one.difference < 1e-5
        assert min(one.alone, one.convoke, one.load_alone, one.load_convoke) > 0 and one.speedup == one.alone / one.convoke
        assert {node.op for node in one.nodes_convoke if node.op.startswith("convoke")} == {"convoke: Conv + Relu", "convoke: Conv"}
        assert sum("Conv" in node.op for node in one.nodes_alone) == 2
        assert all("1x3x24x24 -> 1x16x24x24" == node.shapes for node in one.nodes_convoke if node.op == "convoke: Conv + Relu")
    text = convoke_onnxruntime.table(found, layers=1)
    assert f"{found[0].speedup:.2f}" in text and text.count("the slowest of") == 4


def test_sizes_that_are_open_are_asked_for(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(small(("n", 3, "height", None)).SerializeToString())
    with pytest.raises(ValueError, match="axis 2 .* --dim height=224"):
        convoke_onnxruntime.compare(path)
    with pytest.raises(ValueError, match="axis 3 .* --dim x:3=224"):
        convoke_onnxruntime.compare(path, dims={"height": 9})
    with pytest.raises(ValueError, match="no open size width"):
        convoke_onnxruntime.compare(path, dims={"height": 9, "x:3": 9, "width": 9})
    (one,) = convoke_onnxruntime.compare(path, threads=[1], dims={"n": 2, "height": 9, "x:3": 10}, seconds=0.01)
    assert one.nodes == 3
    x = np.ones((1, 3, 9, 10), np.float32)
    assert convoke_onnxruntime.compare(path, threads=[1], inputs={"x": x}, seconds=0.01)[0].difference < 1e-5


def test_what_cannot_be_made_up_is_refused():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [text], [helper.make_tensor_value_info("y", TensorProto.STRING, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ValueError, match="tensor\\(string\\)"):
        convoke_onnxruntime.compare(made.SerializeToString())
    with pytest.raises(ValueError, match="exceeds"):
        convoke_onnxruntime.compare(small(("n", 3, "h", "w")).SerializeToString(), dims={"h": 1 << 20, "w": 1 << 20})


def test_the_command(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(small().SerializeToString())
    command = [sys.executable, "-m", "convoke_onnxruntime", str(path), "--threads", "1", "--seconds", "0.05"]
    done = subprocess.run([*command, "--layers", "2", "--option", "layout=first"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "times as fast" in done.stdout and "convoke: Conv + Relu" in done.stdout
    for arguments, part in ((["--dim", "h=3"], "no open size h"), (["--dim", "h"], "'h' is not NAME=VALUE"), (["--option", "layout=nhwc"], "auto, first or last")):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 1 and part in done.stderr, done.stderr


def test_differences_are_those_of_floats():
    from convoke_onnxruntime._compare import _difference

    one = [np.array([1.0, 2.0]), np.array([3])]
    assert _difference(one, [np.array([1.0, 4.0]), np.array([3])]) == 0.5
    assert _difference(one, [np.array([1.0, 2.0]), np.array([5])]) == np.inf
    assert _difference(one, [np.array([1.0, np.nan]), np.array([3])]) == np.inf
    assert _difference([np.array([np.inf])], [np.array([-np.inf])]) == np.inf and _difference([np.array([np.nan])], [np.array([np.nan])]) == 0
    assert _difference([np.zeros(2)], [np.zeros(2)]) == 0 and _difference([np.zeros(2)], [np.zeros(3)]) == np.inf


def test_runs_are_timed_for_some_seconds_or_runs():
    class Session:
        runs = 0

        def run(self, names, feeds):
            self.runs += 1

    for seconds, most, wanted in ((0, 5, 2), (60, 5, 5), (60, 1, 2)):
        made = Session()
        assert 0 < _compare._least_time(made, {}, seconds, most) < 1 and made.runs == wanted


def test_sides_are_timed_by_turns(monkeypatch):
    calls, times = [], iter([5, 9, 4, 7, 6, 8, 3, 2])
    monkeypatch.setattr(_faster, "_rest", lambda: calls.append("rest"))
    monkeypatch.setattr(_faster, "_least_time", lambda session, feeds, seconds, most: calls.append((session, seconds)) or next(times))
    assert _faster._times(["alone", "own"], {}, 30) == [4, 7]
    assert calls == ["rest", ("alone", 10), "rest", ("own", 10)] * 3
    assert _faster._times(["alone", "own"], {}, 0) == [3, 2]


@pytest.mark.parametrize("spinning, wanted", [(0, 1), (3, 4), (99, 20)])
def test_a_turn_waits_for_threads_that_spin(monkeypatch, spinning, wanted):
    class Clock:
        """The process takes CPU time in as many of the first sleeps."""

        sleeps = 0

        def process_time(self):
            return 0.01 * min(self.sleeps, spinning)

        def sleep(self, seconds):
            self.sleeps += 1

    clock = Clock()
    monkeypatch.setattr(_faster, "time", clock)
    _faster._rest()
    assert clock.sleeps == wanted


MODEL = small().SerializeToString()
ALONE, CONVOKE = ["CPUExecutionProvider"], ["Convoke", "CPUExecutionProvider"]


class Sides:
    """Stands for the times of both sides, and knows the sessions that were made."""

    def __init__(self, monkeypatch):
        self.alone, self.convoke, self.made, self.session = 1.0, 1.0, [], _faster._session
        monkeypatch.setattr(_faster, "_rest", lambda: None)
        monkeypatch.setattr(_faster, "_least_time", lambda session, *_: self.convoke if session.get_providers() == CONVOKE else self.alone)
        monkeypatch.setattr(_faster, "_session", lambda *arguments: self.add(self.session(*arguments)))

    def add(self, session):
        self.made.append((session.get_providers(), weakref.ref(session)))
        return session

    def picked(self, *arguments, **more):
        """The providers of the session that is picked, and of those that were made; others must be released."""
        self.made.clear()
        session = faster_session(*arguments, **more)
        assert [made() for _, made in self.made if made() is not None] == [session]
        return session.get_providers(), [providers for providers, _ in self.made]


@pytest.fixture
def sides(monkeypatch):
    return Sides(monkeypatch)


@pytest.mark.parametrize("alone, convoke, wanted", [(2.0, 1.0, CONVOKE), (1.0, 1.02, CONVOKE), (1.0, 1.03, ALONE), (1.0, 9.0, ALONE)])
def test_the_faster_session_is_picked(sides, alone, convoke, wanted):
    sides.alone, sides.convoke = alone, convoke
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sides.picked(MODEL) == (wanted, [ALONE, CONVOKE])
        assert sides.picked(MODEL, convoke_onnxruntime.add_to(options())) == (wanted, [ALONE, CONVOKE])


def test_a_pick_is_remembered_for_what_it_depends_on(sides, tmp_path, monkeypatch):
    path, model = tmp_path / "picks.json", tmp_path / "model.onnx"
    model.write_bytes(MODEL)
    x = {"x": np.ones((1, 3, 24, 24), np.float32)}
    level = options(level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, pool=2)
    kinds = [
        {"model": MODEL},
        {"model": small(seed=8).SerializeToString()},
        {"model": small(("n", 3, 24, 24)).SerializeToString()},
        {"model": small(("n", 3, 24, 24)).SerializeToString(), "dims": {"n": 2}},
        {"model": MODEL, "threads": 2},
        {"model": MODEL, "threads": 2, "layout": "first"},
        {"model": MODEL, "sess_options": convoke_onnxruntime.add_to(level)},
        # Layers are split for as many threads, on another pool.
        {"model": MODEL, "sess_options": convoke_onnxruntime.add_to(options(pool=3), threads=2)},
        {"model": MODEL, "inputs": x},
    ]
    for i, kind in enumerate(kinds):
        sides.alone, sides.convoke = (1.0, 2.0) if i % 2 else (2.0, 1.0)
        wanted = ALONE if i % 2 else CONVOKE
        assert sides.picked(**kind, remember=path) == (wanted, [ALONE, CONVOKE])
        sides.alone, sides.convoke = sides.convoke, sides.alone
        assert sides.picked(**kind, remember=str(path)) == (wanted, [wanted])
    assert sides.picked(model, remember=path) == (CONVOKE, [CONVOKE])
    for where, name, value in (
        (onnxruntime, "__version__", "0"),
        (_faster, "_cpu", lambda: "another CPU"),
        (_faster, "_cores", lambda: 4096),
        (_faster.importlib.metadata, "version", lambda package: "0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert sides.picked(MODEL, remember=path)[1] == [ALONE, CONVOKE]
    decisions = json.loads(path.read_text())["decisions"]
    assert len(decisions) == len(kinds) + 4 and decisions[0]["milliseconds"] == {"onnxruntime": 2000, "convoke": 1000}
    assert set(tmp_path.iterdir()) == {model, path}


FORM, KEY = _faster._FORM, {"model": "0"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        json.dumps({"form": FORM, "decisions": []}).encode()[:-1],
        b"[]",
        json.dumps({"form": "another", "decisions": []}).encode(),
        json.dumps({"form": FORM}).encode(),
        json.dumps({"form": FORM, "decisions": {}}).encode(),
        json.dumps({"form": FORM, "decisions": [{"picked": "convoke"}]}).encode(),
        json.dumps({"form": FORM, "decisions": [{"key": KEY, "picked": "another"}]}).encode(),
        json.dumps({"form": FORM, "decisions": [7]}).encode(),
    ],
    ids=repr,
)
def test_a_file_that_is_damaged_or_of_another_kind_is_refused_and_left_alone(sides, tmp_path, content):
    path = tmp_path / "picks.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="picks.json is damaged, or no file of decisions"):
        faster_session(MODEL, remember=path)
    assert path.read_bytes() == content and not sides.made
    path.write_text(json.dumps({"form": FORM, "decisions": [{"key": KEY, "picked": "convoke"}]}))
    faster_session(MODEL, remember=path)
    assert [one["key"] == KEY for one in json.loads(path.read_text())["decisions"]] == [True, False]


def test_a_file_that_cannot_be_written_or_read(sides, tmp_path, monkeypatch):
    with pytest.warns(RuntimeWarning, match="not kept: .*absent"):
        assert sides.picked(MODEL, remember=tmp_path / "absent" / "picks.json")[0] == CONVOKE
    with pytest.raises(OSError):
        faster_session(MODEL, remember=tmp_path)
    path = tmp_path / "picks.json"
    faster_session(MODEL, threads=1, remember=path)
    content = path.read_bytes()

    def refuse(*paths):
        raise OSError("no space")

    monkeypatch.setattr(_faster.os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="not kept: no space"):
        faster_session(MODEL, threads=2, remember=path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_session_with_convoke_that_fails_is_not_picked(sides, tmp_path):
    # onnxruntime writes no model of compiled nodes.
    path, failing = tmp_path / "picks.json", options()
    failing.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    convoke_onnxruntime.add_to(failing)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="without it, because its session fails: .*compiled nodes") as caught:
            assert sides.picked(MODEL, failing, remember=path) == (ALONE, [ALONE])
        assert not path.exists() and any(one.filename == __file__ for one in caught)
    # It did not fail when it was picked.
    faster_session(MODEL, convoke_onnxruntime.add_to(options()), remember=path)
    with pytest.warns(RuntimeWarning, match="compiled nodes"):
        assert sides.picked(MODEL, failing, remember=path) == (ALONE, [ALONE])


def test_a_session_with_convoke_that_errs_is_not_picked(sides, tmp_path):
    made, path, other = sides.session, tmp_path / "picks.json", small(seed=8).SerializeToString()
    sides.session = lambda model, sess_options, side: made(other if side == "convoke" else model, sess_options, side)
    with pytest.warns(RuntimeWarning, match="an output differs by [0-9.]+e[+-]0[01] of its largest element"):
        assert sides.picked(MODEL, remember=path) == (ALONE, [ALONE, CONVOKE])
    assert not path.exists()
    with pytest.warns(RuntimeWarning, match="an output differs"):
        assert sides.picked(MODEL) == (ALONE, [ALONE, CONVOKE])


def test_what_a_faster_session_refuses():
    for more in ({"threads": 1}, {"layout": "first"}):
        with pytest.raises(ValueError, match=f"{next(iter(more))} beside sess_options"):
            faster_session(MODEL, convoke_onnxruntime.add_to(options()), **more)
    with pytest.raises(ValueError, match="add_to was not called"):
        faster_session(MODEL, options())
    with pytest.raises(ValueError, match="layout"):
        faster_session(MODEL, layout="nhwc")
    with pytest.raises(ValueError, match="axis 2 .*height"):
        faster_session(small((1, 3, "height", 9)).SerializeToString())


def test_a_faster_session_of_measured_times(tmp_path):
    path, x = tmp_path / "picks.json", {"x": np.ones((1, 3, 20, 24), np.float32)}
    model = small((1, 3, "height", 24)).SerializeToString()
    session = faster_session(model, inputs=x, threads=2, seconds=0.05, remember=path)
    (kept,) = json.loads(path.read_text())["decisions"]
    times = kept["milliseconds"]
    assert 0 < times["convoke"] < 1000 and 0 < times["onnxruntime"] < 1000
    assert kept["picked"] == ("convoke" if times["convoke"] <= 1.02 * times["onnxruntime"] else "onnxruntime")
    again = faster_session(model, inputs=x, threads=2, remember=path)
    for made in (session, again):
        assert made.get_providers() == (CONVOKE if kept["picked"] == "convoke" else ALONE)
        assert made.get_session_options().intra_op_num_threads == 2
        assert_close(made.run(None, x), run_plain(model, x), 1e-5)
