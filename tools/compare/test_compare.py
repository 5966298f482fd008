"""Tests of compare.py and common.py with workers that answer, die, hang and answer nonsense, and of layers as XNNPACK, oneDNN and onnxruntime have them:
`python -m unittest discover tools/compare`.

They need numpy and tqdm. Those that run XNNPACK, oneDNN and onnxruntime are skipped without these.
"""

import contextlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

import common
import compare
import numpy as np
import onednn
import peers
import quantised
import xnnpack

# A worker that answers each request as the request's field `do` says.
WORKER = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "hang":
        time.sleep(600)
    if request["do"] == "die":
        print("the reason", file=sys.stderr, flush=True)
        os._exit(3)
    print("nonsense" if request["do"] == "nonsense" else json.dumps({"pid": os.getpid()}), flush=True)
"""


def worker(timeout=60):
    options = types.SimpleNamespace(threads=1, timeout=timeout)
    return common.Worker([sys.executable, "-c", WORKER], options)


def result(name="layer", **answers):
    """A result. Its answers are (status, GFLOP/s, error)."""
    fields = lambda status, gflops, error: {"status": status, "gflops": gflops, "error_of_rms": error, "seconds": 1e-3}
    return {"row": {"name": name}, "answers": {name: fields(*answer) for name, answer in answers.items()}}


def data(*results):
    levels = {"L1": 400.0, "L2": 200.0, "L3": 100.0, "DRAM": 10.0}
    machine = {"cpu": "CPU", "cores": 2, "fma_peak": {"avx2": 100.0}, "read_bandwidth": {"avx2": levels}, "convoke": "0", "rustc": "rustc"}
    names = ["convoke", "ncnn", "mnn"]
    return {
        "machine": machine, "versions": {"ncnn": "1", "mnn": "2"}, "names": names, "threads": 1, "rounds": 2, "date": "2026-01-01", "load": 0.5,
        "interrupted": False, "layout": "channels-first", "dtype": "f32", "isa": None, "overhead": {"convoke": 1e-7, "mnn": 4.2e-7}, "results": list(results),
    }


class Workers(unittest.TestCase):
    def test_dies_and_is_started_anew(self):
        peer = worker()
        self.addCleanup(peer.close)
        first = peer.ask({"do": "answer"})["pid"]
        self.assertEqual(peer.ask({"do": "answer"})["pid"], first)
        self.assertEqual(peer.ask({"do": "die"}), {"status": "failed", "error": "died (exit status 3): the reason"})
        self.assertNotEqual(peer.ask({"do": "answer"})["pid"], first)

    def test_hangs_and_is_ended(self):
        peer = worker(timeout=1.5)
        self.addCleanup(peer.close)
        self.assertIn("no answer within 1.5 s", peer.ask({"do": "hang"})["error"])
        self.assertIsNotNone(peer.process.poll())
        # On a machine with much else to do, a start alone may take longer.
        peer.timeout = 60
        self.assertIn("pid", peer.ask({"do": "answer"}))

    def test_is_given_up_after_failures_in_a_row(self):
        peer = worker()
        self.addCleanup(peer.close)
        for do in ("die", "nonsense", "answer", "die", "die"):
            peer.ask({"do": do})
        self.assertIn("pid", peer.ask({"do": "answer"}), "two in a row only")
        for _ in range(common.PATIENCE):
            self.assertIn("died", peer.ask({"do": "die"})["error"])
        self.assertIn("given up", peer.ask({"do": "answer"})["error"])

    def test_nonsense_is_named(self):
        peer = worker()
        self.addCleanup(peer.close)
        self.assertIn("not an answer: 'nonsense", peer.ask({"do": "nonsense"})["error"])


class Results(unittest.TestCase):
    def test_the_median_of_three_is_right(self):
        y = np.ones(8, np.float32)
        off = y.copy()
        off[3] = 1.5
        judged = compare.judge({"a": y, "b": off, "c": y, "d": y * 1.001, "e": y})
        self.assertEqual([status for status, _ in judged.values()], ["good", "wrong", "good", "rough", "good"])
        self.assertAlmostEqual(judged["b"][1], 0.5)
        self.assertAlmostEqual(judged["d"][1], 1e-3, places=6)

    def test_bytes_may_be_a_step_off(self):
        y, places = np.full(8, 7, np.uint8), np.array([0, 7])
        judge = lambda right=7, **outputs: compare.judge_bytes(outputs, places, np.full(2, right, np.uint8))
        self.assertEqual(list(judge(convoke=y, a=y + 1, b=y - 1, c=y + 2).values()), [("good", 0), ("good", 1), ("good", 1), ("inexact", 2)])
        self.assertEqual(judge(right=8, convoke=y, a=y + 1), {"convoke": ("wrong", 1), "a": ("good", 0)})
        self.assertEqual(judge(a=y), {"a": ("good", 0)}, "convoke has no output")

    def test_what_is_not_exact_is_shown_and_does_not_count(self):
        answers = {"convoke": ("good", 90.0, 0), "ncnn": ("inexact", 100.0, 30), "mnn": ("good", 60.0, 1)}
        one = result("one", **answers)
        for name, (_, _, steps) in answers.items():
            one["answers"][name]["steps"] = steps
        rows, paragraphs = compare.table(data(one) | {"dtype": "u8"})
        self.assertIn("| one | 90 | 100 not exact | 60 | 1.50 |", rows)
        self.assertIn("is 1.50 times as fast as the fastest of the 2 others in", paragraphs[0])
        self.assertIn("is 0.90 times as fast as the fastest of the 2 others, with those that are not exact, in", paragraphs[1])
        self.assertEqual(paragraphs[2], "Not exact: ncnn on 1 of 1 layers (off by up to 30 steps).")
        self.assertIn("u8, plain NCHW in and out, weights", compare.conditions(data(one) | {"dtype": "u8"})[2])

    def test_of_two_nobody_knows_which_is_wrong(self):
        y = np.ones(8, np.float32)
        self.assertEqual({status for status, _ in compare.judge({"a": y, "b": 2 * y}).values()}, {"differs"})
        self.assertEqual(compare.judge({"a": y, "b": y * np.nan}), {"a": ("good", 0.0), "b": ("wrong", None)})
        self.assertEqual(compare.judge({"a": y * np.nan}), {"a": ("wrong", None)})

    def test_wrong_results_do_not_count_and_are_named(self):
        results = [
            result("one", convoke=("good", 200.0, 0.0), ncnn=("good", 100.0, 0.0), mnn=("wrong", 900.0, 1.25)),
            result("two", convoke=("good", 50.0, 0.0), ncnn=("rough", 100.0, 1e-3), mnn=("wrong", 1.0, None)),
        ]
        rows, paragraphs = compare.table(data(*results))
        self.assertIn("| one | 200 | 100 | wrong | 2.00 |", rows)
        self.assertIn("| two | 50 | 100~ | wrong | 0.50 |", rows)
        self.assertIn("convoke is 1.00 times as fast", paragraphs[0])
        self.assertIn("Behind on: two (0.50)", paragraphs[0])
        self.assertEqual(paragraphs[1], "Wrong results: MNN on one (off by 1.2 of the root mean square), MNN on two (not numbers).")

    def test_layers_ahead_equal_and_behind_are_all_of_them(self):
        results = [result(str(rate), convoke=("good", rate, 0.0), ncnn=("good", 100.0, 0.0)) for rate in (99.4, 99.6, 100.0, 100.4, 100.6, 102.0)]
        _, paragraphs = compare.table(data(*results))
        self.assertIn("Over these 6 layers", paragraphs[0])
        self.assertIn("ahead on 2, equal (1.00) on 3, behind on 1; the least is 0.99, on 99.4. Behind on: 99.4 (0.99).", paragraphs[0])

    def test_what_a_call_costs_is_told(self):
        _, paragraphs = compare.table(data())
        self.assertEqual(len(paragraphs), 1)
        self.assertIn("one multiply-add): convoke 0.1, MNN 0.4.", paragraphs[0])
        self.assertEqual(compare.overhead(data() | {"overhead": {}}), [], "interrupted before")

    def test_the_layout_and_the_isa_are_told(self):
        versions = {"onednn": "1", "onnxruntime": "2"}
        last = data() | {"layout": "channels-last", "names": ["convoke", *versions], "versions": versions}
        self.assertIn("f32, plain NCHW in and out, weights", compare.conditions(data())[2])
        self.assertIn("channels last in and out (onnxruntime: plain NCHW", compare.conditions(last)[2])
        held = last | {"names": ["convoke", "onednn"], "isa": "avx2"}
        self.assertIn("f32, channels last in and out, convoke and oneDNN held to avx2, weights", compare.conditions(held)[2])

    def test_what_died_and_what_is_not_there(self):
        answers = {"ncnn": {"status": "failed", "error": "died"}, "mnn": {"status": "absent", "error": "no such layer"}}
        one = result("one", convoke=("differs", 200.0, 0.5))
        one["answers"] |= answers
        rows, paragraphs = compare.table(data(one))
        self.assertIn("| one | differs | failed | - | - |", rows)
        self.assertEqual(paragraphs[1], "Failed: ncnn on one (died).")
        self.assertIn("convoke on one", paragraphs[0])

    def test_files_are_complete_and_json_without_nan(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "new"
            failed = {"row": {"name": "two"}, "answers": {"mnn": {"error": "died", "status": "failed"}}}
            compare.write_results(data(result(convoke=("wrong", 5.0, None)), failed), folder)
            read = json.loads((folder / "results.json").read_text(), parse_constant=self.fail)
            self.assertEqual(len(read["results"]), 2)
            lines = (folder / "table.csv").read_text().splitlines()
            self.assertEqual(lines[1:], ["layer,convoke,1,0.001,5.0,,,wrong,", "two,mnn,1,,,,,failed,died"])
            self.assertEqual(sorted(path.name for path in folder.iterdir()), ["results.json", "table.csv"])


class Options(unittest.TestCase):
    def refused(self, *arguments):
        program = [sys.executable, str(common.HERE / "compare.py"), *arguments]
        done = subprocess.run(program, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_bad_options_say_what_is_wrong(self):
        for arguments, message in [
            (["--peers", "onnx"], "no library onnx; there are onnxruntime,"),
            (["--peers", "ncnn,ncnn"], "one twice"),
            (["--rounds", "0"], "invalid number of 1 or more value: '0'"),
            (["--seconds", "nan"], "number of 0 or more"),
            (["--threads", "100000"], "this process may use"),
            (["--from", "no/such.json"], "no/such.json: No such file"),
            (["--from", __file__], "is not a result of this version"),
            (["--peers", "onednn"], "no library onednn; there are onnxruntime,"),
            (["--layout", "channels-last", "--peers", "ncnn"], "no library ncnn; there are xnnpack, onednn, onednn-blocked, onnxruntime-blocked, onnxruntime"),
            (["--layout", "channels-last", "--isa", "avx2", "--peers", "xnnpack"], "no library xnnpack; there are onednn, onednn-blocked"),
            (["--layout", "channels-last", "--readme"], "those of channels first"),
            (["--dtype", "u8", "--readme"], "those of channels first in f32"),
            (["--dtype", "u8", "--peers", "mnn"], "no library mnn; there are onnxruntime, openvino, ncnn"),
            (["--dtype", "u8", "--layout", "channels-last", "--peers", "ncnn"], "no library ncnn; there are xnnpack, onednn,"),
            (["--dtype", "i8"], "invalid choice: 'i8'"),
            (["--isa", "avx2"], "only with --layout channels-last"),
        ]:
            self.assertIn(message, self.refused(*arguments))


def layer(op, x, out, kernel, strides, pads, group=1, output_padding=(0, 0), dilations=(1, 1)):
    """A layer of two axes as compare.py has it, and its operands."""
    shape = lambda channels, sizes: [x[0], channels, *sizes]
    axes = list(zip(x[2:], kernel, strides, dilations, pads[:2], pads[2:], output_padding))
    if op == "Conv":
        w, sizes = [out, x[1] // group, *kernel], [(n + b + e - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, e, _ in axes]
    else:
        w, sizes = [x[1], out // group, *kernel], [(n - 1) * s + (k - 1) * d + 1 + o - b - e for n, k, s, d, b, e, o in axes]
    row = {
        "op": op, "x": list(x), "w": w, "y": shape(out, sizes), "strides": list(strides), "pads": list(pads), "dilations": list(dilations), "group": group,
        "output_padding": list(output_padding),
    }
    random = np.random.default_rng(1)
    return row, *(random.uniform(-1, 1, shape).astype(np.float32) for shape in (x, w, [out]))


def expected(row, x, w, b):
    """Y by ONNX's definition."""
    y = np.zeros(row["y"]) + b[:, None, None]
    outputs, inputs = row["y"][1] // row["group"], row["x"][1] // row["group"]
    transposed = row["op"] == "ConvTranspose"
    for n, o, i in itertools.product(range(row["x"][0]), range(row["y"][1]), range(inputs)):
        c = o // outputs * inputs + i
        taps = w[c, o % outputs] if transposed else w[o, i]
        add_taps(y[n, o], x[n, c], taps, row["strides"], row["dilations"], row["pads"], transposed)
    return y


def by_tflite(model, x):
    """Y of the model by TFLite's definition."""
    last = np.zeros(model.y) + model.bias
    transposed, depthwise = model.op == "TRANSPOSE_CONV", model.op == "DEPTHWISE_CONV_2D"
    # The convolution that is padded: a transposed one has its Y as input.
    sizes, outs = (model.y, model.x) if transposed else (model.x, model.y)
    begins = []
    for axis in range(2):
        reach = (model.weights.shape[1 + axis] - 1) * model.dilations[axis] + 1
        size, stride = sizes[1 + axis], model.strides[axis]
        same = model.padding == "SAME"
        assert outs[1 + axis] == (math.ceil(size / stride) if same else (size - reach) // stride + 1)
        begins.append(max((outs[1 + axis] - 1) * stride + reach - size, 0) // 2 if same else 0)
    channels = 1 if depthwise else model.weights.shape[3]
    group = model.x[3] // channels
    for n, o, i in itertools.product(range(model.x[0]), range(model.y[3]), range(channels)):
        c = o // model.multiplier if depthwise else o // (model.y[3] // group) * channels + i
        taps = model.weights[0, :, :, o] if depthwise else model.weights[o, :, :, i]
        add_taps(last[n, :, :, o], x[n, :, :, c], taps, model.strides, model.dilations, begins, transposed)
    return last


def add_taps(y, x, taps, strides, dilations, begins, transposed):
    """Adds a plane's products with taps to a plane of Y."""
    target, source = (x, y) if transposed else (y, x)
    for place in np.ndindex(target.shape):
        for tap in np.ndindex(taps.shape):
            other = tuple(p * s + t * d - b for p, s, t, d, b in zip(place, strides, tap, dilations, begins))
            if all(0 <= o < n for o, n in zip(other, source.shape)):
                if transposed:
                    y[other] += x[place] * taps[tap]
                else:
                    y[place] += x[other] * taps[tap]


# With what the model says: operator, padding and the axes that are mirrored.
LAYERS = [
    (layer("Conv", [2, 3, 5, 6], 4, [1, 1], [1, 1], [0, 0, 0, 0]), ("CONV_2D", "VALID", [])),
    (layer("Conv", [1, 3, 6, 7], 2, [1, 1], [2, 2], [0, 0, 0, 0]), ("CONV_2D", "VALID", [])),
    (layer("Conv", [1, 2, 5, 6], 3, [3, 3], [1, 1], [1, 1, 1, 1]), ("CONV_2D", "SAME", [])),
    # An even size has the odd element at the beginning, and an odd one has none.
    (layer("Conv", [1, 3, 8, 8], 2, [3, 3], [2, 2], [1, 1, 1, 1]), ("CONV_2D", "SAME", [1, 2])),
    (layer("Conv", [1, 3, 7, 8], 2, [3, 3], [2, 2], [1, 1, 1, 1]), ("CONV_2D", "SAME", [2])),
    (layer("Conv", [1, 3, 8, 8], 2, [3, 3], [2, 2], [0, 0, 1, 1]), ("CONV_2D", "SAME", [])),
    (layer("Conv", [1, 2, 9, 8], 2, [3, 2], [1, 1], [2, 0, 2, 1], dilations=[2, 1]), ("CONV_2D", "SAME", [])),
    (layer("Conv", [1, 4, 5, 5], 6, [3, 3], [1, 1], [1, 1, 1, 1], group=2), ("CONV_2D", "SAME", [])),
    (layer("Conv", [1, 3, 8, 6], 3, [5, 5], [2, 2], [2, 2, 2, 2], group=3), ("DEPTHWISE_CONV_2D", "SAME", [1, 2])),
    (layer("Conv", [1, 3, 5, 5], 6, [3, 3], [1, 1], [1, 1, 1, 1], group=3), ("DEPTHWISE_CONV_2D", "SAME", [])),
    (layer("ConvTranspose", [1, 3, 4, 5], 2, [2, 2], [2, 2], [0, 0, 0, 0]), ("TRANSPOSE_CONV", "VALID", [])),
    (layer("ConvTranspose", [1, 3, 4, 5], 2, [4, 4], [2, 2], [1, 1, 1, 1]), ("TRANSPOSE_CONV", "SAME", [])),
    (layer("ConvTranspose", [1, 3, 4, 5], 2, [3, 3], [2, 2], [1, 1, 1, 1], output_padding=[1, 1]), ("TRANSPOSE_CONV", "SAME", [1, 2])),
]


class ChannelsLast(unittest.TestCase):
    def close(self, y, row, operands):
        self.assertEqual(list(y.shape), row["y"])
        np.testing.assert_allclose(y, expected(row, *operands), atol=1e-5)

    def test_models_are_the_layers(self):
        for (row, x, w, b), says in LAYERS:
            with self.subTest(row=row):
                model = xnnpack.model(row, w, b)
                self.assertEqual((model.op, model.padding, model.mirrored), says)
                self.close(model.to_onnx(by_tflite(model, model.from_onnx(x))), row, (x, w, b))

    def test_what_tflite_cannot_say_is_refused(self):
        for (row, _, w, b), reason in [
            (layer("Conv", [1, 1, 9, 9], 1, [3, 3], [1, 1], [2, 2, 0, 0]), "no such padding: pads [2, 2, 0, 0], strides [1, 1]"),
            (layer("Conv", [1, 1, 9, 9], 1, [3, 3], [1, 1], [2, 2, 2, 2]), "no such padding"),
            # One axis needs SAME, and the other VALID.
            (layer("Conv", [1, 1, 9, 9], 1, [3, 3], [1, 1], [1, 0, 1, 0]), "no such padding"),
            (layer("ConvTranspose", [1, 1, 4, 4], 1, [9, 9], [4, 4], [4, 4, 4, 4], output_padding=[3, 3]), "no such padding"),
            (layer("ConvTranspose", [1, 2, 4, 4], 2, [2, 2], [2, 2], [0, 0, 0, 0], group=2), "with groups"),
            (layer("ConvTranspose", [1, 1, 4, 4], 1, [2, 2], [1, 1], [0, 0, 0, 0], dilations=[2, 2]), "with dilations"),
        ]:
            with self.subTest(row=row), self.assertRaises(ValueError) as raised:
                xnnpack.model(row, w, b)
            self.assertIn(reason, str(raised.exception))

    def test_weights_of_onednn_are_those_of_onnx(self):
        for op, channels in [("Conv", (6, 2)), ("ConvTranspose", (4, 3))]:
            row, _, w, _ = layer(op, [1, 4, 5, 5], 6, [3, 2], [1, 1], [0, 0, 0, 0], group=2)
            self.assertEqual(w.shape[:2], channels)
            shape, strides = onednn.weights(row)
            self.assertEqual(shape, [2, 3, 2, 3, 2])
            seen = np.lib.stride_tricks.as_strided(w, shape, [4 * stride for stride in strides])
            right = w.reshape(2, 3, 2, 3, 2) if op == "Conv" else w.reshape(2, 2, 3, 3, 2).swapaxes(1, 2)
            np.testing.assert_array_equal(seen, right)

    @unittest.skipUnless(importlib.util.find_spec("ai_edge_litert"), "needs ai-edge-litert")
    def test_xnnpack_runs_the_models(self):
        for (row, *operands), _ in LAYERS:
            with self.subTest(row=row):
                self.close(peers.Xnnpack(row, None, *operands, 1).output(), row, operands)

    @unittest.skipUnless(onednn.is_installed(), "needs onednn-cpu-gomp")
    def test_onednn_runs_the_layers(self):
        more = [
            layer("Conv", [1, 1, 9, 9], 1, [3, 3], [1, 1], [2, 1, 0, 3]),
            layer("ConvTranspose", [1, 4, 4, 4], 6, [3, 3], [2, 2], [1, 0, 0, 1], group=2, output_padding=[1, 0]),
        ]
        for row, *operands in [*(layer for layer, _ in LAYERS), *more]:
            with self.subTest(row=row):
                self.close(peers.OneDnn(row, None, *operands, 1).output(), row, operands)
                self.close(peers.OneDnnBlocked(row, None, *operands, 1).output(), row, operands)

    @unittest.skipUnless(importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"), "needs onnxruntime and onnx")
    def test_onnxruntime_runs_layers_in_its_blocked_layout(self):
        plain = [1, 1], [0, 0, 0, 0]
        for taken, (row, *_) in [
            (True, layer("Conv", [2, 20, 5, 6], 36, [1, 1], *plain)),
            (True, layer("Conv", [1, 32, 8, 8], 6, [3, 3], [2, 2], [1, 1, 1, 1])),
            (True, layer("Conv", [1, 3, 8, 8], 16, [3, 3], [2, 2], [0, 0, 1, 1])),
            (True, layer("Conv", [1, 20, 6, 5], 20, [3, 3], *plain, group=20, dilations=[2, 1])),
            (True, layer("Conv", [1, 32, 4, 4], 32, [3, 3], *plain, group=2)),
            (False, layer("Conv", [1, 17, 4, 4], 16, [3, 3], *plain)),
            (False, layer("ConvTranspose", [1, 16, 4, 4], 16, [2, 2], [2, 2], [0, 0, 0, 0])),
        ]:
            with self.subTest(row=row), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                compare.write_operands(row, folder)
                operands = [peers.read(folder / f"{name}.bin", shape) for name, shape in [("x", row["x"]), ("w", row["w"]), ("b", [row["y"][1]])]]
                with contextlib.nullcontext() if taken else self.assertRaisesRegex(ValueError, "does not take the layer"):
                    self.close(peers.OnnxRuntimeBlocked(row, folder, *operands, 1).output(), row, operands)

    @unittest.skipUnless(onednn.is_installed(), "needs onednn-cpu-gomp")
    def test_onednn_is_held_to_avx2(self):
        program = "import onednn; print(onednn.effective_isa() <= onednn.AVX2)"
        environment = os.environ | compare.ISAS["avx2"]["onednn"]
        done = subprocess.run([sys.executable, "-c", program], cwd=common.HERE, env=environment, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "True", done.stderr)


def in_bytes(row, operands, layout):
    """A layer in bytes, and its operands."""
    *operands, meaning = quantised.operands(row, *operands)
    return row | {"quantised": meaning, "layout": layout}, operands


def multiplies_bytes():
    """Whether Linux says that the CPU has VNNI."""
    cpu = pathlib.Path("/proc/cpuinfo")
    return cpu.exists() and "vnni" in cpu.read_text()


class Bytes(unittest.TestCase):
    GROUPED_TRANSPOSED = layer("ConvTranspose", [1, 4, 4, 4], 6, [3, 3], [2, 2], [1, 0, 0, 1], group=2)

    def run_layers(self, layouts, *classes, refuses=lambda row: None, more=()):
        for (row, *operands), layout in itertools.product([*(one for one, _ in LAYERS), self.GROUPED_TRANSPOSED, *more], layouts):
            row, (x, w, b) = in_bytes(row, operands, layout)
            for class_ in classes:
                with self.subTest(row=row, peer=class_.__name__), tempfile.TemporaryDirectory() as folder:
                    reason = refuses(row)
                    with self.assertRaisesRegex(ValueError, reason) if reason else contextlib.nullcontext():
                        self.close(class_(row, pathlib.Path(folder), x, w, b, 1).output(), row, (x, w, b))

    def close(self, y, row, operands):
        """Within a step of the definition of QLinearConv."""
        x, w, b = (values.astype(int) for values in operands)
        q = row["quantised"]
        scale = q["x_scale"] * np.array(q["w_scale"]) / q["y_scale"]
        right = np.clip(np.rint(expected(row, x - q["x_zero_point"], w, b) * scale[:, None, None]) + q["y_zero_point"], 0, 255)
        self.assertEqual((list(y.shape), y.dtype), (row["y"], np.uint8))
        self.assertLessEqual(np.abs(y.astype(int) - right).max(), 1)
        places, sampled = quantised.sample(row, *operands)
        self.assertLessEqual(np.abs(sampled.astype(int) - right.ravel()[places]).max(), 1)
        self.assertGreater(right.std(), 10, "outputs fill their range")

    def test_the_largest_weight_of_each_channel_is_127(self):
        for row, *operands in [LAYERS[2][0], LAYERS[7][0], LAYERS[11][0], self.GROUPED_TRANSPOSED]:
            row, (x, w, b) = in_bytes(row, operands, "channels-first")
            np.testing.assert_array_equal(np.abs(quantised.by_channel(row, w).astype(int)).max(axis=(1, 3)).ravel(), 127)
            # The bytes mean what they were made of.
            back = quantised.by_channel(row, w) * np.array(row["quantised"]["w_scale"]).reshape(row["group"], 1, -1, 1)
            np.testing.assert_allclose(back.reshape(w.shape), operands[1], atol=1 / 200)
            np.testing.assert_allclose(quantised.float_bias(row, b), operands[2], atol=1e-3)
            self.assertTrue((quantised.signed(quantised.signed(x)) == x).all() and quantised.signed(x).dtype == np.int8)

    @unittest.skipUnless(importlib.util.find_spec("ai_edge_litert"), "needs ai-edge-litert")
    def test_xnnpack(self):
        self.run_layers(["channels-last"], peers.Xnnpack, refuses=lambda row: "with groups" if row["group"] > 1 and row["op"] != "Conv" else None)

    @unittest.skipUnless(onednn.is_installed(), "needs onednn-cpu-gomp")
    def test_onednn(self):
        self.run_layers(["channels-last"], peers.OneDnn, peers.OneDnnBlocked)

    @unittest.skipUnless(importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"), "needs onnxruntime and onnx")
    @unittest.skipUnless(multiplies_bytes(), "onnxruntime's sums of u8 times i8 saturate on CPUs without VNNI")
    def test_onnxruntime(self):
        refuses = lambda row: None if row["op"] == "Conv" else "no ConvTranspose of bytes"
        self.run_layers(["channels-first", "channels-last"], peers.OnnxRuntimeBytes, refuses=refuses)

    @unittest.skipUnless(importlib.util.find_spec("openvino") and importlib.util.find_spec("onnx"), "needs OpenVINO and onnx")
    @unittest.skipUnless(multiplies_bytes(), "OpenVINO's sums of u8 times i8 saturate on CPUs without VNNI")
    def test_openvino_computes_in_bytes_or_is_refused(self):
        row, *operands = layer("Conv", [1, 32, 8, 8], 32, [3, 3], [1, 1], [1, 1, 1, 1])
        for layout in ("channels-first", "channels-last"):
            found, (x, w, b) = in_bytes(row, operands, layout)
            self.close(peers.OpenVinoBytes(found, None, x, w, b, 1).output(), found, (x, w, b))
        found, (x, w, b) = in_bytes(self.GROUPED_TRANSPOSED[0], self.GROUPED_TRANSPOSED[1:], "channels-first")
        with self.assertRaisesRegex(ValueError, "ConvTranspose with groups"):
            peers.OpenVinoBytes(found, None, x, w, b, 1)

    @unittest.skipUnless(importlib.util.find_spec("ncnn"), "needs ncnn")
    def test_ncnn(self):
        refuses = lambda row: None if row["op"] == "Conv" and (row["group"] == 1 or row["group"] == row["x"][1] == row["y"][1]) else "ncnn has bytes for Conv"
        self.run_layers(["channels-first"], peers.NcnnBytes, refuses=refuses)


class Pictures(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib")
    def test_the_picture_is_written(self):
        good = lambda gflops: ("good", gflops, 1e-7)
        results = data(result("one", convoke=good(90.0), ncnn=good(50.0), mnn=good(40.0)), result("two", convoke=good(20.0), ncnn=("wrong", 30.0, 1.0)))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "compare.svg"
            compare.picture(results, path)
            text = path.read_text()
        root = xml.etree.ElementTree.fromstring(text)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertLessEqual(float(root.get("width").removesuffix("pt")) * 4 / 3, 500, "it is not scaled down on a small screen")
        # matplotlib writes each text as a comment before its outlines.
        for word in ("one", "two", "ncnn", "wrong result", "FMA peak"):
            self.assertIn(f"<!-- {word} -->", text)
        # A number stays in the line of its name.
        self.assertIn("DRAM\u00a010", text)

    def test_dark_pages_have_their_own_colours(self):
        svg = common.with_dark_mode('<svg><defs>\n</defs><path style="fill: #ffffff"/></svg>')
        self.assertIn('@media(prefers-color-scheme:dark){svg{fill:#e8e8e8}[style*="fill: #ffffff"]{fill:#16181c!important}', svg)
        xml.etree.ElementTree.fromstring(svg)


if __name__ == "__main__":
    unittest.main()
