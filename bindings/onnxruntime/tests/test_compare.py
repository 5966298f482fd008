"""The comparison of a model with and without convoke."""

import subprocess
import sys

import convoke_onnxruntime
import models
import numpy as np
import pytest
from onnx import TensorProto, helper


def small(dims=(1, 3, 24, 24)):
    net = models.Network("small", list(dims))
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
