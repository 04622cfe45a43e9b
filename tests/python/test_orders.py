"""Orders of operators, read and checked without PyTorch: test_orders.py REPOSITORY, with DHELIX the program."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
from importlib import util

import dhelix
from dhelix.orders import LAYER, OPERATORS, SAVED, Order

ROOT = pathlib.Path(sys.argv.pop(1))
JOB = """
model: {family: llama, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, ffn_width: 64, vocab: 64, max_seq: 16}
train: {batch: 4, micro_batch: 1, seq_len: 16}
parallel: {dp: 1, tp: 2}
strategy: dhelix
"""


class Orders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pathlib.Path("order.yaml").write_text(JOB, encoding="utf-8")

    def program(self, *words):
        words = [os.environ["DHELIX"], *words]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout

    def lines(self, *settings):
        """Those of a plan: its first operator is in line 5."""
        self.program("plan", "order.yaml", "--cluster", "a40", "--write", "my.order", *settings)
        return pathlib.Path("my.order").read_text(encoding="utf-8").split("\n")

    def refused(self, message, text, of=dhelix.MalformedFile):
        pathlib.Path("other.order").write_text(text, encoding="utf-8")
        with self.assertRaises(of) as caught:
            Order.read("other.order")
        self.assertIn(message, str(caught.exception))

    def test_layer(self):
        """The layer's operators are those of the program's graph."""
        graph = self.program("check", "order.yaml", "--print", "graph")
        graph = graph[graph.index("dhelix.graph v2 layer train") :].split("\n\n")[2].split("\ndhelix.graph")[0]
        graph = re.sub(r", %\d+:pos|%\d+:|, -| \{.*?\}", "", graph)
        self.assertEqual(re.sub(" +", " ", graph).strip(), re.sub(r"stats\d", "stats", LAYER).strip())
        self.assertEqual(sorted(SAVED), ["fc1.w", "fc2.w", "g", "h", "ln1.w", "ln2.w", "lse", "n1", "n2", "o", "proj.w",
                                         "qkv.rot", "qkv.w", "stats1", "stats2", "x", "x2"])

    def test_same(self):
        """Lines, the document and the job's own order say the same, with barriers and without."""
        for strategy in "dhelix", "dhelix-paper":
            lines = self.lines("--set", "strategy=" + strategy)
            want = [re.sub(" *#.*", "", line) for line in lines]
            want = [line for line in want if line and not line.startswith("layers")]
            order = Order.read(pathlib.Path("my.order"))
            have = [line for step in order.steps for line in ["barrier"] * step.barrier + [step.operator.name]]
            self.assertEqual(have, want)
            document = dhelix.Job("order.yaml", strategy=strategy).order(cluster="a40")
            self.assertEqual(Order.of(document).steps, order.steps)
            pathlib.Path("my.json").write_text(json.dumps(document), encoding="utf-8")
            self.assertEqual(Order.read("my.json").steps, order.steps)
            strands = sorted(order.steps, key=lambda step: step.operator.strand != "F")
            self.assertEqual(order.strand("F") + order.strand("B"), tuple(strands))
        self.assertEqual([step.operator for step in Order.sequential().steps], list(OPERATORS.values()))

    def test_moved(self):
        lines = self.lines()
        at = next(i for i, line in enumerate(lines) if line.startswith("B norm_wgrad d.ln2.w"))
        lines.append(lines.pop(at))
        pathlib.Path("moved.order").write_text("\n".join(lines), encoding="utf-8")
        self.assertEqual(Order.read("moved.order").steps[-1].operator.name, "B norm_wgrad d.ln2.w")

    def test_refused(self):
        lines = self.lines("--policy", "auto")
        at = {re.sub(" *#.*", "", line): i + 1 for i, line in enumerate(lines)}

        def refused(message, edited):
            self.refused(message, "\n".join(edited))

        def renamed(name):
            return [line.replace("F norm n1 ", name + " ") for line in lines]

        early, late = at["B all_gather df.part"], at["B linear_dgrad dg"]
        swapped = list(lines)
        swapped[early - 1], swapped[late - 1] = lines[late - 1], lines[early - 1]
        late_at = f"which comes later, at other.order:{late}"
        refused(f'other.order:{early}: "B linear_dgrad dg" needs "B all_gather df.part", {late_at}', swapped)
        line = at["F norm n1"]
        refused(f'other.order:{line}: the layer has no "F norm nn1"; did you mean "F norm n1"?', renamed("F norm nn1"))
        refused(f'other.order:{line}: the layer has no "F norm n1 #2"', renamed("F norm n1 #2"))
        refused(f'other.order:{line}: "forward norm n1', renamed("forward norm n1"))
        refused(f'other.order:{len(lines)}: "F norm n1" stands at other.order:{line} already', lines[:-1] + ["F norm n1"])
        less = [line for line in lines if "d.fc1.w " not in line]
        refused('other.order: "B linear_wgrad d.fc1.w" is missing (1 of 36 operators', less)
        self.refused("36 of 36 operators are", "")
        self.refused("more than 16 MiB", "#" * (1 << 24 | 1))
        for settings in ("parallel.sequence=false", "train.recompute=full", "parallel.tp=1", "parallel.cp=2"):
            with self.subTest(settings), self.assertRaisesRegex(dhelix.MalformedFile, "parallel.tp of 2 or more"):
                self.lines("--set", settings, "--set", "ranks=auto")
                Order.read("my.order")

    def test_refused_documents(self):
        document = dhelix.Job("order.yaml").order(cluster="a40")
        self.refused("not JSON", "{")
        self.refused("not JSON", '{"a":' * 100000)
        self.refused('"format" has to be "dhelix.order"', "{}")
        self.refused('"version" 1', json.dumps({**document, "version": 2}))
        self.refused('"operators" has to be a list', json.dumps({**document, "operators": 3}))
        first = document["operators"][0]
        for wrong in (3, {}, {**first, "strand": "up"}):
            text = json.dumps({**document, "operators": [first, wrong]})
            self.refused("operators[1]: wrong or missing key", text)
        self.refused("stands at other.order: operators[0] already", json.dumps({**document, "operators": [first] * 2}))

    def test_files(self):
        with self.assertRaisesRegex(dhelix.FileError, "cannot read none.order: No such file"):
            Order.read("none.order")
        pathlib.Path("other.order").write_bytes(b"F \xff")
        with self.assertRaisesRegex(dhelix.MalformedFile, "not a text in UTF-8"):
            Order.read("other.order")

    @unittest.skipIf(util.find_spec("torch"), "PyTorch is installed")
    def test_without_torch(self):
        with self.assertRaisesRegex(ImportError, r"dhelix.torch needs PyTorch 2.6 or later \(pip install torch\)"):
            import dhelix.torch  # noqa: F401


if __name__ == "__main__":
    unittest.main()
