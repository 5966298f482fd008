"""Whole networks beside onnxruntime's own provider."""

import collections

import models
import numpy as np
import pytest
from conftest import assert_close, layers, run_plain, session

# A size where one is free: small, then larger, then the first again.
FREE = {"vocoder": [24, 51, 24]}
# Millions of parameters that are published, some with those of batch normalisation, which are less than a hundredth.
PARAMETERS = {
    "mobilenetv3-small": 2.54, "mobilenetv3-large": 5.48, "efficientnet-b0": 5.29, "convnext-tiny": 28.59, "yolov8n": 3.15, "yolox-nano": 0.91, "u2netp": 1.13,
    "recogniser": None,
}


def test_the_light_networks_are_there():
    assert len(models.LIGHT) >= 9


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("name", models.NETWORKS)
def test_network(name, layout, rng):
    model = models.NETWORKS[name]()
    convolutions = sum(node.op_type in ("Conv", "ConvTranspose") for node in model.graph.node)
    data = model.serialize() if hasattr(model, "serialize") else model.SerializeToString()
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    # One plan for two threads, on a pool of one and of two; and a plan for one.
    sessions = {(pool, threads): session(data, pool=pool, threads=threads, layout=layout) for pool, threads in ((1, 2), (2, 2), (1, 1))}
    for made in sessions.values():
        ops = collections.Counter(op for layer in layers(made) for op in layer)
        assert ops["Conv"] + ops["ConvTranspose"] == convolutions
    for size in FREE.get(name, [None]):
        feeds = {model.graph.input[0].name: rng.standard_normal([dim or size for dim in dims]).astype(np.float32)}
        wanted = run_plain(data, feeds)
        got = {key: made.run(None, feeds) for key, made in sessions.items()}
        for outputs in got.values():
            assert_close(outputs, wanted)
        for one, other in zip(got[1, 2], got[2, 2]):
            np.testing.assert_array_equal(one, other)
    if name in models.PUBLISHED:
        parameters = sum(np.prod(tensor.dims) for tensor in model.graph.initializer) / 1e6
        assert parameters == pytest.approx(PARAMETERS[name] or parameters, rel=0.01)
        # An output that hardly depends on the image would hide errors.
        another = run_plain(data, {model.graph.input[0].name: rng.standard_normal(dims).astype(np.float32)})
        for one, other in zip(wanted, another):
            assert np.isfinite(one).all() and np.abs(one - other).max() > 0.02 * np.abs(one).max()


def test_fusions_of_a_network():
    """The number of nodes that a residual network has left beside its layers."""
    made = session(models.TOOLS.resnet50().SerializeToString())
    found = collections.Counter(tuple(sorted(layer)) for layer in layers(made))
    assert found == {("Conv", "Relu"): 33, ("Add", "Conv", "Relu"): 16, ("Conv",): 4}
    made = session(models.yolo().SerializeToString())
    ops = {tuple(sorted(layer)) for layer in layers(made)}
    assert ops == {("Conv", "Mul", "Sigmoid"), ("Conv", "Sigmoid"), ("Concat", "Conv", "Mul", "Sigmoid")}
    made = session(models.NETWORKS["light-densenet121"]().SerializeToString())
    ops = {tuple(sorted(layer)) for layer in layers(made)}
    assert {("Add", "BatchNormalization", "Mul", "Relu"), ("Concat", "Conv")} <= ops
    made = session(models.NETWORKS["light-inception_v1"]().SerializeToString())
    assert [tuple(layer) for layer in layers(made)].count(("LRN",)) == 2
    made = session(models.vocoder().SerializeToString())
    ops = {tuple(sorted(layer)) for layer in layers(made)}
    assert ("Conv", "Tanh") in ops and ("Conv", "LeakyRelu") in ops and ("ConvTranspose", "LeakyRelu") not in ops
