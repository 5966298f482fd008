"""Tests of networks.py with made-up figures: `python -m unittest discover tools/compare`. They need numpy and tqdm; that of the picture needs
matplotlib, and that of the networks' sizes needs onnx and onnxruntime."""

import argparse
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

import common
import engines
import networks
import numpy as np


def good(milliseconds, **facts):
    return {"seconds": milliseconds / 1e3, "load": 0.05, "status": "good", "error_of_max": 1e-6, **facts}


def wrong(milliseconds, error=0.25):
    return good(milliseconds) | {"status": "wrong", "error_of_max": error}


def result(name, plain, convoke, **others):
    """A result of a network. Times without more are good ones."""
    answers = {"onnxruntime": plain, "convoke": convoke, **others}
    answers = {engine: answer if isinstance(answer, dict) else good(answer) for engine, answer in answers.items()}
    if answers["convoke"]["status"] == "good":
        answers["convoke"] |= {"nodes": 5, "convolutions": 3}
    return {"network": name, "nodes": 9, "convolutions": 3, "answers": answers}


def data(*results):
    levels = {"L1": 400.0, "L2": 200.0, "L3": 100.0, "DRAM": 10.0}
    machine = {"cpu": "CPU", "cores": 2, "fma_peak": {"avx2": 100.0}, "read_bandwidth": {"avx2": levels}, "convoke": "0", "rustc": "rustc"}
    return {
        "machine": machine, "versions": {"onnxruntime": "1", "openvino": "2", "mnn": "3"}, "names": ["onnxruntime", "convoke", "openvino", "mnn"], "threads": 1,
        "quantised": None, "rounds": 2, "date": "2026-01-01", "load": 0.5, "interrupted": False, "results": list(results),
    }


def mixed():
    """Ahead, behind, and with engines that are wrong, died, and are not there."""
    return data(
        result("one", 20.0, 10.0, openvino=5.0, mnn=wrong(1.0)),
        result("two", 10.0, 20.0, openvino={"status": "failed", "error": "died"}, mnn={"status": "absent", "error": "no such operator"}),
    )


class Judging(unittest.TestCase):
    def test_outputs_are_compared_with_onnxruntimes_largest_element(self):
        y = np.array([[1.0, -200.0, 3.0]], np.float32)
        off = lambda by: y + np.array([by, 0, 0], np.float32)
        judged = networks.judge({"onnxruntime": [y], "near": [off(0.1)], "far": [off(0.4)], "flat": [y.ravel()]})
        self.assertEqual({name: status for name, (status, _) in judged.items()}, {"onnxruntime": "good", "near": "good", "far": "wrong", "flat": "good"})
        self.assertAlmostEqual(judged["far"][1], 0.4 / 200, places=6)

    def test_every_output_counts_with_its_own_scale(self):
        small, large = np.full(4, 1e-3, np.float32), np.full(4, 1e3, np.float32)
        judged = networks.judge({"onnxruntime": [large, small], "mnn": [large, small * 1.01], "ncnn": [large * 1.0001, small]})
        self.assertEqual(judged["mnn"][0], "wrong")
        self.assertAlmostEqual(judged["mnn"][1], 0.01, places=4)
        self.assertEqual(judged["ncnn"][0], "good")

    def test_other_sizes_and_numbers_of_outputs_and_nan_are_wrong(self):
        y = np.ones(4, np.float32)
        for found in ([y[:3]], [y, y], [], [y * np.nan]):
            self.assertEqual(networks.judge({"onnxruntime": [y], "mnn": found})["mnn"], ("wrong", None))

    def test_quantised_networks_are_as_far_from_the_floats_as_onnxruntime(self):
        y = np.zeros(4, np.float32)
        outputs = {"onnxruntime": [y + 1], "convoke": [y - 1.05], "openvino": [y + 1.3], "nan": [y * np.nan]}
        judged = networks.judge(outputs, [y])
        self.assertEqual({name: status for name, (status, _) in judged.items()}, {"onnxruntime": "good", "convoke": "good", "openvino": "wrong", "nan": "wrong"})
        self.assertAlmostEqual(judged["openvino"][1], 1.3, places=6)
        self.assertEqual(networks.judge({"onnxruntime": [y], "convoke": [y], "openvino": [y + 1]}, [y])["openvino"][0], "wrong", "onnxruntime is exact")

    def test_without_onnxruntimes_outputs_nothing_is_known(self):
        y = np.ones(4, np.float32)
        self.assertEqual(networks.judge({"mnn": [y]}), {"mnn": ("unknown", None)})
        self.assertEqual({status for status, _ in networks.judge({"onnxruntime": [y * np.inf], "mnn": [y]}).values()}, {"unknown"})

    def test_the_fastest_round_counts_and_the_shortest_load(self):
        best = networks.better(None, {"min": 2.0, "median": 3.0, "load": 7.0, "level": "A"})
        best = networks.better(best, {"min": 1.0, "median": 3.0, "load": 9.0, "level": "B"})
        best = networks.better(best, {"min": 4.0, "median": 4.0, "load": 8.0, "level": "A"})
        self.assertEqual(best, {"seconds": 1.0, "load": 7.0, "level": "B"})


class Tables(unittest.TestCase):
    def test_rows(self):
        rows, _ = networks.table(mixed())
        lines = rows.splitlines()
        self.assertIn("| one | 20.0 | 10.0 | 5.00 | 1.00 wrong | 2.00 | 0.50 | 3 of 3 | 5 of 9 | 50.0 | 50.0 |", lines)
        self.assertIn("| two | 10.0 | 20.0 | failed | - | 0.50 | 0.50 | 3 of 3 | 5 of 9 | 50.0 | 50.0 |", lines)
        self.assertEqual({line.count("|") for line in lines}, {12})

    def test_losses_are_first_and_what_has_no_speed_last(self):
        shown = data(result("gain", 2.0, 1.0), result("none", 1.0, {"status": "absent", "error": "no"}), result("loss", 1.0, 2.0))
        rows, _ = networks.table(shown)
        self.assertEqual([line.split()[1] for line in rows.splitlines()[2:]], ["loss", "gain", "none"])

    def test_wrong_results_do_not_count_and_losses_are_named(self):
        _, paragraphs = networks.table(mixed())
        self.assertIn("convoke is 1.00 times as fast as onnxruntime alone in geometric mean, ahead on 1, equal (1.00) on 0, behind on 1", paragraphs[0])
        self.assertIn("Behind on: two (0.50).", paragraphs[0])
        self.assertIn("0.50 times as fast as the fastest of the 3 others in geometric mean, ahead on 0", paragraphs[1])
        self.assertIn("OpenVINO 4.00 (1).", paragraphs[2])
        self.assertNotIn("MNN", paragraphs[2])
        self.assertEqual(paragraphs[3:], [
            "Wrong results, which do not count: MNN on one (off by 0.25 of the largest element).",
            "Failed: OpenVINO on two (died).",
            "Not converted, or refused: MNN on two (no such operator).",
        ])

    def test_the_mean_is_geometric(self):
        self.assertAlmostEqual(common.mean([0.5, 8.0]), 2.0)
        _, paragraphs = networks.table(data(result("one", 8.0, 1.0), result("two", 1.0, 2.0)))
        self.assertIn("Over these 2 networks onnxruntime with convoke is 2.00 times as fast as onnxruntime alone", paragraphs[0])

    def test_a_provider_without_layers_has_no_figures(self):
        refused = {"status": "absent", "error": "ValueError: no node ran on convoke"}
        rows, paragraphs = networks.table(data(result("one", 1.0, refused)))
        self.assertIn("| one | 1.00 | - | - | - | - | - | - | - | 50.0 | - |", rows)
        self.assertEqual(paragraphs, ["Not converted, or refused: onnxruntime with convoke on one (ValueError: no node ran on convoke)."])

    def test_if_onnxruntime_alone_is_wrong_nothing_is_relative_to_it(self):
        unknown = good(1.0) | {"status": "unknown", "error_of_max": None}
        rows, paragraphs = networks.table(data(result("one", unknown, unknown)))
        self.assertIn("| one | 1.00 unknown | 1.00 unknown | - | - | - | - |", rows)
        self.assertEqual(paragraphs, ["Not comparable: onnxruntime on one, onnxruntime with convoke on one."])

    def test_milliseconds_have_three_digits(self):
        shown = [networks.milliseconds(value / 1e3) for value in (0.1234, 9.994, 9.996, 99.94, 99.96, 12345.6)]
        self.assertEqual(shown, ["0.12", "9.99", "10.0", "99.9", "100", "12346"])


class Files(unittest.TestCase):
    def test_csv_and_json_without_nan(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "new"
            networks.write_results(mixed(), folder)
            self.assertEqual(json.loads((folder / "networks.json").read_text(), parse_constant=self.fail), mixed())
            lines = (folder / "networks.csv").read_text().splitlines()
            self.assertEqual(lines[0], "network,engine,threads,seconds,load_seconds,level,convolutions,nodes,error_of_max,distance,status,reason")
            self.assertIn("one,convoke,1,0.01,0.05,,3,5,1e-06,,good,", lines)
            self.assertIn("two,mnn,1,,,,,,,,absent,no such operator", lines)

    def test_what_the_picture_shows(self):
        self.assertEqual(networks.bars(mixed()), [
            ("one", "convoke", 2.0, "2.00"), ("one", "openvino", 4.0, "4.00"), ("one", "mnn", None, "wrong"),
            ("two", "convoke", 0.5, "0.50"), ("two", "openvino", None, "failed"), ("two", "mnn", None, "not taken"),
        ])

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib")
    def test_the_picture_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("first.svg", "second.svg")]
            for path in paths:
                networks.picture(mixed(), path)
            first, second = (path.read_text() for path in paths)
        self.assertEqual(first, second, "the same picture from the same figures")
        self.assertEqual(xml.etree.ElementTree.fromstring(first).tag, "{http://www.w3.org/2000/svg}svg")
        # matplotlib writes each text as a comment before its outlines.
        for text in ("one", "two", "2.00", "0.50", "wrong", "failed", "not taken", "OpenVINO"):
            self.assertIn(f"<!-- {text} -->", first)
        for fact in ("CPU, one core of\u00a02", "convoke\u00a00 (rustc)", "2026-01-01"):
            self.assertTrue(re.search(f"<!-- .*{re.escape(fact)}.* -->", first), f"the picture says where it is from: {fact}")

    def test_a_page_gets_the_block_between_its_markers(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("head\n<!-- networks -->\nold\n<!-- /networks -->\n<!-- figures -->\nlayers\n<!-- /figures -->\n")
            common.replace(page, "networks", ["new", "rows"])
            self.assertEqual(page.read_text(), "head\n<!-- networks -->\nnew\n\nrows\n<!-- /networks -->\n<!-- figures -->\nlayers\n<!-- /figures -->\n")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib")
    def test_the_readme_gets_the_summary_and_the_page_of_figures_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for page in ("README.md", "docs/figures.md"):
                (root / page).parent.mkdir(exist_ok=True)
                (root / page).write_text("".join(f"<!-- networks-{isa} -->\n<!-- /networks-{isa} -->\n" for isa in ("avx2", "avx512")))
            (root / "benches").mkdir()
            with unittest.mock.patch.object(networks, "ROOT", root):
                networks.readme(mixed() | {"interrupted": True})
            self.assertEqual([path.name for path in (root / "benches/figures").iterdir()], ["networks-avx2.svg"])
            readme, figures = ((root / page).read_text() for page in ("README.md", "docs/figures.md"))
        for text in ("Behind on: two (0.50).", "OpenVINO 4.00 (1).", "random weights", "Load of the machine", "Interrupted"):
            self.assertIn(text, readme)
            self.assertIn(text, figures)
        for text in ("| one |", "Failed: OpenVINO on two (died).", "How each is called"):
            self.assertNotIn(text, readme)
            self.assertIn(text, figures)

    def test_a_cpu_without_a_block_is_named_before_anything_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "benches").mkdir()
            (root / "README.md").write_text("<!-- networks-avx2 -->\n<!-- /networks-avx2 -->\n")
            neon = mixed()
            neon["machine"]["fma_peak"] = {"neon": 50.0}
            with unittest.mock.patch.object(networks, "ROOT", root), self.assertRaisesRegex(SystemExit, "README.md has no block networks-neon"):
                networks.readme(neon)
            self.assertEqual(list((root / "benches/figures").iterdir()), [])

    def test_both_pages_have_the_markers_before_those_of_the_layers(self):
        for page in ("README.md", "docs/figures.md"):
            text = (common.ROOT / page).read_text()
            markers = ("networks-avx2", "/networks-avx2", "networks-avx512", "/networks-avx512", "figures", "/figures")
            places = [text.index(f"<!-- {marker} -->") for marker in markers]
            self.assertEqual(places, sorted(places))


class Engines(unittest.TestCase):
    def test_outputs_of_xnnpack_get_their_channels_back_to_the_front(self):
        y = np.arange(24).reshape(1, 2, 3, 4)
        np.testing.assert_array_equal(engines.channels_first(y, y.shape), y)
        np.testing.assert_array_equal(engines.channels_first(y.transpose(0, 2, 3, 1), y.shape), y)

    def test_without_its_converter_xnnpack_is_left_out_and_says_why_if_it_is_asked_for(self):
        missing, there = common.HERE / "missing", common.HERE / "run"
        for path, peers in [(missing, networks.PEERS[:-1]), (there, networks.PEERS)]:
            with unittest.mock.patch.object(networks, "ONNX2TF", path), unittest.mock.patch.object(sys, "argv", ["networks.py", "--worker", "worker"]):
                self.assertEqual(networks.parse().peers, peers)
        with unittest.mock.patch.object(engines, "ONNX2TF", missing), self.assertRaisesRegex(ValueError, "needs Python 3.12"):
            engines.Xnnpack.prepare(pathlib.Path("model.onnx"), None)


class Networks(unittest.TestCase):
    @unittest.skipUnless(all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))), "needs onnx and onnxruntime")
    def test_the_sizes_are_those_of_networks(self):
        made = networks.networks(argparse.Namespace(filter=""))
        for name, size in networks.SIZES.items():
            inspect.signature(made[name]).bind(**size)
        with tempfile.TemporaryDirectory() as folder:
            request, size, _ = networks.write_network("recogniser", made["recogniser"], pathlib.Path(folder))
        self.assertEqual((request["x"], size["convolutions"]), ([1, 3, 48, 320], 31))

    @unittest.skipUnless(all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))), "needs onnx and onnxruntime")
    def test_quantised_networks_compute_nearly_the_same(self):
        import onnx
        import onnxruntime as ort

        name = "light-squeezenet"  # its operators are too old for scales for each channel
        make = networks.networks(argparse.Namespace(filter=name))[name]
        for how, operator in [*dict.fromkeys(["u8s8", "u8u8", "s8s8"], "QuantizeLinear").items(), ("dynamic", "ConvInteger")]:
            with self.subTest(how=how), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                request, size, floats = networks.write_network(name, make, folder, how)
                graph = onnx.load(folder / "model.onnx").graph
                self.assertIn(operator, {node.op_type for node in graph.node})
                self.assertEqual((size["convolutions"], size["nodes"]), (26, len(graph.node)))
                x = np.fromfile(folder / "x.bin", np.float32).reshape(request["x"])
                (y,) = ort.InferenceSession(folder / "model.onnx").run(request["outputs"], {graph.input[0].name: x})
                self.assertLess(np.sqrt(np.mean((y - floats[0]) ** 2)), 0.3 * np.sqrt(np.mean(floats[0] ** 2)))


class Options(unittest.TestCase):
    def test_bad_options_say_what_is_wrong(self):
        for arguments, message in [
            (["--peers", "tract"], "no library tract; there are onnxruntime,"),
            (["--peers", "openvino"], "all are compared with onnxruntime"),
            (["--quantised", "u4"], "invalid choice: 'u4'"),
            (["--quantised", "u8s8", "--peers", "onnxruntime,ncnn"], "no library ncnn; there are onnxruntime, openvino"),
            (["--quantised", "u8s8", "--readme"], "those of networks in f32"),
            (["--from", "no/such.json"], "no/such.json: No such file"),
            (["--from", __file__], "is not a result of this version"),
            (["--from", "/dev/zero"], "/dev/zero has more than 67108864 characters"),
            (["--from", "/tmp"], "/tmp: Is a directory"),
        ]:
            done = subprocess.run([sys.executable, str(common.HERE / "networks.py"), *arguments], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertNotIn("Traceback", done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
