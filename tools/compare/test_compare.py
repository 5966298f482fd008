"""Tests of compare.py and common.py with workers that answer, die, hang and answer nonsense: `python -m unittest discover tools/compare`.

They need numpy and tqdm.
"""

import importlib.util
import json
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
        "interrupted": False, "overhead": {"convoke": 1e-7, "mnn": 4.2e-7}, "results": list(results),
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
            self.assertEqual(lines[1:], ["layer,convoke,1,0.001,5.0,,wrong,", "two,mnn,1,,,,failed,died"])
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
        ]:
            self.assertIn(message, self.refused(*arguments))


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
