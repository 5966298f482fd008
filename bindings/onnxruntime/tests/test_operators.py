"""ONNX's own vectors of both operators, all element types, and models that are wrong."""

import glob
import os

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from conftest import assert_close, options, run, run_plain, session
from onnx import TensorProto, helper, numpy_helper

VECTORS = sorted(map(os.path.dirname, glob.glob(os.path.join(os.path.dirname(__file__), "../../../tests/data/onnx/*/*/model.onnx"))))


def tensors(folder, kind):
    paths = sorted(glob.glob(f"{folder}/test_data_set_0/{kind}_*.pb"), key=lambda path: int(path.rsplit("_", 1)[1][:-3]))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def test_there_are_vectors():
    assert len(VECTORS) > 60


@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("folder", VECTORS, ids=lambda folder: "/".join(folder.split("/")[-2:]))
def test_vectors(folder, constant):
    model = onnx.load(f"{folder}/model.onnx")
    # onnxruntime refuses the newest IR versions, of which nothing is used here.
    model.ir_version = min(model.ir_version, 10)
    feeds = dict(zip((value.name for value in model.graph.input), tensors(folder, "input")))
    if constant:
        for value in [value for value in list(model.graph.input)[1:] if value.name in feeds]:
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
            model.graph.input.remove(value)
    count = sum(node.op_type in ("Conv", "ConvTranspose") for node in model.graph.node)
    result = run(model, feeds)
    assert sum(op in ("Conv", "ConvTranspose") for layer in result.layers for op in layer) == count > 0
    assert_close(result.outputs, tensors(folder, "output"), 1e-5)


def layer(op, kind, x_shape, w_shape, opset=22, bias=True, constant=True, **attributes):
    """A model of one node in an element type, with casts so that its inputs and outputs are float.

    Values are the same for the same shapes."""
    rng = np.random.default_rng(2)
    x, w = helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape), rng.standard_normal(w_shape).astype(np.float32)
    m = w_shape[0] if op == "Conv" else w_shape[1] * attributes.get("group", 1)
    weights = {"w": w} | ({"b": rng.standard_normal(m).astype(np.float32)} if bias else {})
    nodes = [helper.make_node("Cast", [name], [f"{name}_cast"], to=kind) for name in ["x", *weights]]
    nodes.append(helper.make_node(op, ["x_cast", *(f"{name}_cast" for name in weights)], ["y_cast"], "layer", **attributes))
    nodes.append(helper.make_node("Cast", ["y_cast"], ["y"], to=TensorProto.FLOAT))
    inputs, constants, feeds = [x], [], {"x": rng.standard_normal(x_shape).astype(np.float32)}
    for name, value in weights.items():
        if constant:
            constants.append(numpy_helper.from_array(value, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))
            feeds[name] = value
    graph = helper.make_graph(nodes, "layer", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds


KINDS = {"float": (TensorProto.FLOAT, 1e-5), "double": (TensorProto.DOUBLE, 1e-6), "float16": (TensorProto.FLOAT16, 4e-3), "bfloat16": (TensorProto.BFLOAT16, 3e-2)}


@pytest.mark.parametrize("constant", [True, False], ids=["constants", "inputs"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("kind", KINDS)
def test_element_types(kind, op, constant):
    code, tolerance = KINDS[kind]
    shapes = {"x_shape": [2, 8, 9, 7], "w_shape": [12, 4, 3, 3] if op == "Conv" else [8, 6, 3, 3]}
    attributes = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1], "constant": constant}
    model, feeds = layer(op, code, **shapes, **attributes)
    exact, _ = layer(op, TensorProto.FLOAT, **shapes, **attributes)
    result = run(model, feeds)
    assert result.layers == [[op]]
    assert_close(result.outputs, run_plain(exact, feeds), tolerance)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("opset", [1, 7, 10, 11, 13, 18, 21, 22, 23])
def test_opsets(opset, op):
    if opset < 7:
        graph = helper.make_graph(
            [helper.make_node(op, ["x", "w"], ["y"])],
            "old",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        feeds = {"x": np.ones((1, 2, 5, 5), np.float32)}
    else:
        model, feeds = layer(op, TensorProto.FLOAT, [1, 2, 5, 5], [2, 2, 3, 3], opset)
    result = run(model, feeds)
    assert result.layers == [[op]]
    assert_close(result.outputs, run_plain(model, feeds), 1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_any_rank(op, rank):
    model, feeds = layer(op, TensorProto.FLOAT, [2, 3, *[5, 4, 6, 3][:rank]], [3, 3, *[2] * rank])
    result = run(model, feeds)
    assert result.layers == [[op]]
    assert_close(result.outputs, onnx.reference.ReferenceEvaluator(model).run(None, feeds), 1e-5)


@pytest.mark.parametrize("w_shape", [[4, 3, 3, 3], [4, 2, 9, 9], [4, 2, 3], [5, 2, 3, 3]], ids=str)
@pytest.mark.parametrize("constant", [True, False], ids=["constants", "inputs"])
def test_wrong_models_are_refused_as_by_onnxruntime(w_shape, constant):
    """Wrong channels, a kernel larger than the input, a wrong rank, a group that does not divide."""
    model, feeds = layer("Conv", TensorProto.FLOAT, [1, 4, 6, 6], w_shape, group=2, constant=constant)
    with pytest.raises(Exception) as wanted:
        run_plain(model, feeds)
    with pytest.raises(Exception) as got:
        run(model, feeds)
    assert got.type is wanted.type and str(got.value) == str(wanted.value)


def test_a_wrong_shape_in_a_run_is_an_error_that_names_the_rule():
    model, feeds = layer("Conv", TensorProto.FLOAT, [1, 4, 6, 6], [4, 4, 3, 3])
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, "nchw"):
        dim.dim_param = name
    made = session(model)
    with pytest.raises(Exception, match="convoke: Conv: spatial axis"):
        made.run(None, {"x": np.ones((1, 4, 2, 2), np.float32)})
    with pytest.raises(Exception, match="convoke: Conv: "):
        made.run(None, {"x": np.ones((1, 5, 6, 6), np.float32)})
    assert_close(made.run(None, feeds), run_plain(model, feeds), 1e-5)


def test_empty_batches():
    model, _ = layer("Conv", TensorProto.FLOAT, [1, 4, 6, 6], [4, 4, 3, 3])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made = session(model)
    assert made.run(None, {"x": np.ones((0, 4, 6, 6), np.float32)})[0].shape == (0, 4, 4, 4)
    assert made.run(None, {"x": np.ones((3, 4, 6, 6), np.float32)})[0].shape == (3, 4, 4, 4)


def test_weights_with_nan_and_infinity(rng):
    for bad in (np.nan, np.inf):
        model, feeds = layer("Conv", TensorProto.FLOAT, [1, 16, 20, 20], [16, 16, 3, 3], pads=[1] * 4)
        w = numpy_helper.to_array(model.graph.initializer[0]).copy()
        w[3, 2, 1, 1] = bad
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
        plain = onnxruntime.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
        result = run(model, feeds)
        assert result.layers == [["Conv"]]
        wanted = plain.run(None, feeds)[0]
        assert not np.isfinite(result.outputs[0][:, 3]).any()
        others = [m for m in range(16) if m != 3]
        assert_close([result.outputs[0][:, others]], [wanted[:, others]])
