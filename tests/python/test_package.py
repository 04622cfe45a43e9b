"""The Python package, installed: test_package.py REPOSITORY, in an empty folder, with DHELIX the program."""

import inspect
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
import typing
import unittest

import dhelix

ROOT = pathlib.Path(sys.argv.pop(1))
MATRIX = ROOT / "tests/data/published/dhelix_h100_pairwise_oef_matrix.csv"
SMALL = """
model: {family: gpt2, n_layers: 2, width: 32, n_heads: 4, max_seq: 32}
data: {train: TEXT, tokenizer: chars, val_fraction: 0.01}
train: {steps: 6, batch: 4, seq_len: 32, threads: 1}
eval: {every: 3, batches: 1}
""".replace("TEXT", str(ROOT / "examples/data/tinyshakespeare.txt"))


def program(*arguments):
    """What the command line says with --json."""
    words = [os.environ["DHELIX"], *map(str, arguments), "--json", "--quiet"]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


class Test(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(f"{self.id()}.yaml")
        self.path.write_text(SMALL, encoding="utf-8")
        self.out = f"{self.id()}.run"

    def small(self, **settings):
        return dhelix.Job(self.path, out=self.out, **settings)


class Jobs(Test):
    def test_settings(self):
        job = dhelix.Job(
            self.path,
            {"train.steps": 7, "eval.every": 0, "parallel": {"sequence": False}},
            train={"seed": 3, "dtype": "bf16"},
            optimizer={"lr": 1e-3},
            data={"val": [ROOT / "README.md", "b \"c\".txt"]},
            strategy={"passes": ["ring-gemm"], "schedule": "1f1b", "order": "list"},
        )
        want = {"train.steps": 7, "eval.every": 0, "parallel.sequence": False, "train.seed": 3}
        want.update({"train.dtype": "bf16", "optimizer.lr": 1e-3, "train.batch": 4, "model.n_layers": 2})
        self.assertEqual({name: job[name] for name in want}, want)
        self.assertEqual(job["data.val"], [str(ROOT / "README.md"), os.path.abspath('b "c".txt')])
        self.assertIn("ring-gemm", job["strategy"])
        self.assertEqual(list(job), list(dict(job)))
        self.assertIn(str(self.path), repr(job))
        self.assertIn("train.steps=7", repr(job))
        self.assertNotIn("train.stesp", job)
        with self.assertRaises(TypeError):
            job["train.steps"] = 8

    def test_replace(self):
        job = self.small(train={"steps": 8})
        other = job.replace({"train.batch": 8}, train={"steps": 9})
        self.assertEqual((job["train.steps"], job["train.batch"]), (8, 4))
        self.assertEqual((other["train.steps"], other["train.batch"]), (9, 8))
        self.assertEqual(other["out"], job["out"])
        wide = self.small(parallel={"tp": 2})
        self.assertEqual((wide["parallel.dp"], wide["ranks"]), (1, 2))
        self.assertEqual(wide.replace(ranks=4)["parallel.dp"], 2)
        self.assertEqual(wide.replace(ranks=4).replace({"parallel.tp": 1})["parallel.dp"], 4)

    def test_mapping(self):
        text = str(ROOT / "examples/data/tinyshakespeare.txt")
        sizes = {"family": "gpt2", "n_layers": 2, "width": 32, "n_heads": 4, "max_seq": 32}
        job = dhelix.Job(
            {"model": sizes, "data": {"train": text, "tokenizer": "chars"}, "train": {"steps": 6, "seq_len": 32}},
            train={"batch": 4},
        )
        self.assertEqual((job["train.steps"], job["train.batch"], job["model.width"]), (6, 4, 32))
        self.assertEqual(job["out"], os.path.abspath("run"))
        self.assertEqual(job["train"]["steps"], 6)
        self.assertEqual(job["model"]["n_layers"], 2)
        self.assertEqual(job.replace(train={"steps": 7})["train"]["steps"], 7)
        self.assertNotIn("mapping.yaml", repr(job))
        with self.assertRaises(KeyError):
            job["trian"]
        rows = job.simulate(cluster="h100", strategies=["sequential", "list"])["strategies"]
        self.assertEqual([row["strategy"] for row in rows][:1], ["sequential"])
        self.assertEqual(rows, job.simulate(cluster="h100", strategy="sequential,list")["strategies"])
        with self.assertRaises(dhelix.InvalidInput) as caught:
            dhelix.Job({"train": {"stesp": 5}})
        self.assertNotIn("--set", str(caught.exception))

    def test_yaml_reads_back(self):
        job = self.small(train={"seed": 5})
        pathlib.Path("copy.yaml").write_text(job.yaml(), encoding="utf-8")
        self.assertEqual(dhelix.Job("copy.yaml"), job)

    def test_errors(self):
        with self.assertRaisesRegex(dhelix.InvalidInput, "^train.stesp=5.*train.steps") as caught:
            self.small(train={"stesp": 5})
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(caught.exception.status, "DH_EINVAL")
        self.assertEqual(caught.exception.message, str(caught.exception))
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy)), (dhelix.InvalidInput, str(caught.exception)))
        with self.assertRaisesRegex(dhelix.FileError, "nowhere.yaml") as caught:
            dhelix.Job("nowhere.yaml")
        self.assertIsInstance(caught.exception, OSError)
        self.assertEqual(caught.exception.status, "DH_EIO")
        with self.assertRaisesRegex(dhelix.NotFound, "h100"):
            self.small().simulate(cluster="h1000")
        pathlib.Path("bad.yaml").write_text("train: {steps: 5", encoding="utf-8")
        with self.assertRaisesRegex(dhelix.MalformedFile, "bad.yaml"):
            dhelix.Job("bad.yaml")
        with self.assertRaisesRegex(TypeError, "train.steps"):
            self.small(train={"steps": None})
        with self.assertRaisesRegex(dhelix.InvalidInput, "ranks 0 to 0"):
            self.small().check(rank=1)


class Planning(Test):
    """Against the program, which prints the same documents."""

    def test_check(self):
        job = self.small(parallel={"tp": 2})
        said = program("check", self.path, "--set", "parallel.tp=2", "--set", f"out={self.out}")
        self.assertEqual(job.check(), said)
        self.assertEqual(job.check(rank=1)["parameters"], said["parameters"])

    def test_plan(self):
        example = ROOT / "examples/tp2.yaml"
        for words, explain in ([], False), (["--explain"], True):
            said = program("plan", example, "--policy", "list", *words)
            self.assertEqual(dhelix.Job(example).plan("list", explain=explain), said)
        self.assertIn("operators", said)
        self.assertEqual(dhelix.Job(example).plan(cluster="a100"), program("plan", example, "--cluster", "a100"))

    def test_order(self):
        example = ROOT / "examples/tp2.yaml"
        said = program("plan", example, "--policy", "list", "--cluster", "a100", "--export", "json")
        self.assertEqual(dhelix.Job(example).order("list", cluster="a100"), said)
        self.assertEqual(said["format"], "dhelix.order")

    def test_simulate(self):
        example = ROOT / "examples/tp2pp2.yaml"
        names = ["sequential", "dhelix"]
        said = program("simulate", example, "--cluster", "a100", "--strategies", ",".join(names))
        job = dhelix.Job(example)
        self.assertEqual(job.simulate("a100", names), said)
        self.assertEqual(len(said["nearest"]["rows"]), 3)
        self.assertGreater(said["nearest"]["mean_error_percent"], 0)
        self.assertEqual([row["strategy"] for row in said["strategies"]], ["dhelix", "sequential"])
        self.assertEqual([row.get("as_given", False) for row in said["strategies"]], [True, False])
        cluster = ROOT / "clusters/a100.yaml"
        job.simulate(cluster, "sequential", out="simulated")
        self.assertTrue(json.loads(pathlib.Path("simulated/summary.json").read_text())["simulated"])

        said = program("simulate", example, "--cluster", "a100", "--schedules", "1f1b,zb-v")
        self.assertEqual(job.simulate("a100", schedule=["1f1b", "zb-v"]), said)

    def test_table(self):
        example = ROOT / "examples/tp2pp2.yaml"
        said = program("simulate", example, "--cluster", "a100", "--table", "parallel.tp=1,3", "train.dtype=f32,bf16")
        values = {"parallel.tp": [1, 3], "train.dtype": ["f32", "bf16"]}
        self.assertEqual(dhelix.Job(example).table(values, "a100", out="table"), said)
        self.assertEqual([len(cell["values"]) for cell in said["cells"]], [2] * 4)
        self.assertIn("does not divide", said["cells"][2]["reason"])
        self.assertTrue(pathlib.Path("table/table.csv").exists())

    def test_calibrate(self):
        rows = [f"{m},4096,{k},bf16,{2e-6 * m * 4096 * k / 700}" for m in (1024, 2048, 4096) for k in (1024, 4096)]
        pathlib.Path("gemm.csv").write_text("\n".join(["m,n,k,dtype,time_us", *rows]), encoding="utf-8")
        said = dhelix.calibrate(["gemm.csv"], "h100", "mine.yaml")
        self.assertEqual(said, program("calibrate", "gemm.csv", "--like", "h100", "--out", "mine.yaml"))
        self.assertEqual(said["measurements"], 6)
        dhelix.Job(ROOT / "examples/tp2.yaml").simulate("mine.yaml")
        with self.assertRaisesRegex(dhelix.MalformedFile, "gemm.csv:8: 1 cells"):
            pathlib.Path("gemm.csv").write_text("\n".join(["m,n,k,dtype,time_us", *rows, "7"]), encoding="utf-8")
            dhelix.calibrate(["gemm.csv"], "h100")

    def test_tune(self):
        example = ROOT / "examples/tp2.yaml"
        words = ["--cluster", "a100", "--devices", 4, "--strategies", "sequential", "--schedules", "1f1b"]
        words += ["--verify", 2, "--top", 3, "--set", "parallel.tp=2"]
        job = dhelix.Job(example)
        found = job.tune(
            "a100", 4, fixed={"parallel.tp": 2}, strategies="sequential", schedules=["1f1b"], simulated=2, top=3
        )
        self.assertEqual(found, program("tune", example, *words))
        self.assertEqual([row["settings"]["parallel.tp"] for row in found["ranked"]], [2, 2, 2])
        self.assertEqual(found["nearest"]["rows"][0]["step"]["peak_tflops"], 312)
        best = job.replace({"ranks": "auto", **found["ranked"][0]["settings"]})
        self.assertEqual(best["ranks"], 4)

    def test_tune_searches_choices_of_the_update(self):
        example = ROOT / "examples/tp2.yaml"
        words = ["--cluster", "a100", "--devices", 4, "--strategies", "sequential", "--schedules", "1f1b"]
        words += ["--zero", "0,1", "--sequence", "true,false", "--fuse", "off,4", "--post-validation", "false,true"]
        found = dhelix.Job(example).tune(
            "a100",
            4,
            strategies="sequential",
            schedules="1f1b",
            zero=[0, 1],
            sequence=[True, False],
            fuse=[0, 4],
            post_validation=[False, True],
            simulated=1,
        )
        self.assertEqual(found, program("tune", example, *words, "--verify", 1))
        with self.assertRaisesRegex(dhelix.InvalidInput, "optimizer.fuse"):
            dhelix.Job(example).tune("a100", 4, fuse=[-1])

    def test_interrupted_search_ends_at_once(self):
        job = dhelix.Job(ROOT / "examples/llama3_70b.yaml")
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt) as caught:
            job.tune("a100", 128)  # half a minute
        self.assertIsInstance(caught.exception.__context__, dhelix.Interrupted)


class Profiling(Test):
    def test_measured(self):
        job = self.small(parallel={"tp": 2})
        found = job.profile("measured.json", samples=3, seconds=5)
        self.assertEqual(found["file"], "measured.json")
        self.assertEqual(found["content"], json.loads(pathlib.Path("measured.json").read_text(encoding="utf-8")))
        self.assertGreater(found["seconds"], 0)
        rows = found["content"]["profile"]["operators"]
        self.assertIn("measured", {row["source"] for row in rows})
        self.assertEqual(job.replace(profile=os.path.abspath("measured.json")).train(fresh=True)["steps"], 6)
        text = str(ROOT / "examples/data/tinyshakespeare.txt")
        for how, message in (
            ({"samples": -1}, "samples: -1"),
            ({"seconds": float("nan")}, "seconds: nan"),
            ({"import_": "a.csv", "from_trace": ["b.json"]}, "one of them"),
            ({"from_trace": "b.json", "samples": 3}, "measures nothing"),
            ({"out": text}, "overwrite"),
        ):
            with self.assertRaisesRegex(dhelix.InvalidInput, message) as caught:
                job.profile(**how)
            self.assertNotIn("--", str(caught.exception))

    def test_imported(self):
        job = self.small(parallel={"tp": 2})
        words = ["--set", "parallel.tp=2", "--set", f"out={self.out}"]
        said = program("profile", self.path, *words, "--import", MATRIX, "--out", "theirs.json")
        found = job.profile("mine.json", import_=MATRIX)
        self.assertEqual(found["content"], said["content"])


class Training(Test):
    def test_steps(self):
        for ranks in 1, 2:
            with self.subTest(ranks=ranks):
                heard = []
                job = self.small(parallel={"tp": ranks})
                result = job.train(on_step=heard.append, fresh=True)
                lines = dhelix.metrics(self.out)
                self.assertEqual(heard, [line for line in lines if "loss" in line])
                self.assertEqual([line["step"] for line in heard], [1, 2, 3, 4, 5, 6])
                self.assertEqual([line["step"] for line in lines if "val_loss" in line], [3, 6])
                self.assertEqual((result["steps"], result["resumed_at"]), (6, 0))
                self.assertAlmostEqual(result["loss"], heard[-1]["loss"], places=6)
                self.assertTrue(os.path.isdir(result["checkpoint"]))

    def test_broken_off(self):
        def by_exception(step):
            raise LookupError("enough")

        seen = threading.Event()

        def handle(number, frame):
            seen.set()
            signal.default_int_handler(number, frame)

        # The main thread keeps the interpreter from the handler's end until the run is told to stop.
        def is_told():
            at = sys._current_frames()[threading.main_thread().ident]
            while at and at.f_code is not handle.__code__:
                at = at.f_back
            return seen.is_set() and at is None

        def by_signal(step):
            os.kill(os.getpid(), signal.SIGINT)
            end = time.monotonic() + 60
            while not is_told():
                if time.monotonic() > end:
                    raise TimeoutError("the signal was not seen")
                time.sleep(0.001)

        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handle))
        job = self.small()
        job.train()
        losses = [line["loss"] for line in dhelix.metrics(self.out) if "loss" in line]
        for end, error in (by_exception, LookupError), (by_signal, KeyboardInterrupt):
            with self.subTest(error=error):
                calls = []

                def on_step(m):
                    calls.append(m["step"])
                    if m["step"] == 2:
                        end(m)

                with self.assertRaises(error) as caught:
                    job.train(on_step=on_step, fresh=True)
                self.assertRegex(str(caught.exception.__context__), "after step 3 of 6; the checkpoint is ")
                self.assertEqual(calls, [1, 2])  # step 3 was under way, or about to be
                self.assertEqual(job.train()["resumed_at"], 3)
                again = [line["loss"] for line in dhelix.metrics(self.out) if "loss" in line]
                self.assertEqual(again, losses)

    def test_diverged(self):
        with self.assertRaisesRegex(dhelix.Diverged, "step"):
            self.small(optimizer={"lr": 1000, "grad_clip": 0}, train={"steps": 100}).train()

    def test_other_threads_run(self):
        counted = [0]
        done = threading.Event()

        def count():
            while not done.wait(0.001):
                counted[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        try:
            before = counted[0]
            dhelix.Job(ROOT / "examples/llama3_70b.yaml").simulate("a100")
            during = counted[0] - before
        finally:
            done.set()
            thread.join()
        self.assertGreater(during, 10)

    def test_sample_and_metrics(self):
        self.small().train()
        text = dhelix.sample(self.out, "ROMEO:", 20, seed=4)
        self.assertTrue(text.startswith("ROMEO:"))
        self.assertEqual(len(text), len("ROMEO:") + 20)
        self.assertEqual(text, dhelix.sample(self.out, "ROMEO:", 20, seed=4))
        self.assertNotEqual(text, dhelix.sample(self.out, "ROMEO:", 20, seed=5))
        lines = dhelix.metrics(self.out)
        with open(os.path.join(self.out, "metrics.jsonl"), "a", encoding="utf-8") as file:
            file.write('{"step": 7, "lo')
        self.assertEqual(dhelix.metrics(pathlib.Path(self.out)), lines)
        with self.assertRaises(dhelix.Error):
            dhelix.sample("nowhere", "a", 1)
        for value in (float("nan"), float("inf")):
            with self.assertRaises(dhelix.Error):
                dhelix.sample(self.out, "a", 1, top_p=value)
            with self.assertRaises(dhelix.Error):
                dhelix.sample(self.out, "a", 1, temperature=value)


class Models(Test):
    """A model is trained once; what is made of it is compared with what the program makes."""

    @classmethod
    def setUpClass(cls):
        pathlib.Path("model.yaml").write_text(SMALL, encoding="utf-8")
        cls.run_folder = dhelix.Job("model.yaml", out="model.run").train(fresh=True)["out"]
        cls.text = pathlib.Path("short.txt")
        cls.text.write_text("ROMEO: what light\nthrough yonder window breaks?\n" * 8, encoding="utf-8")

    def test_evaluate(self):
        said = program("eval", self.run_folder, "--data", self.text, "--seq", 16, "--batches", 3, "--micro-batch", 2)
        found = dhelix.evaluate(self.run_folder, self.text, seq=16, batches=3, micro_batch=2)
        self.assertEqual(found, said)
        self.assertEqual((found["sequences"], found["tokens"], found["bytes"]), (6, 96, 96))
        self.assertEqual(found, dhelix.evaluate(self.run_folder, data=[self.text], seq=16, batches=3, micro_batch=2))
        more = dhelix.evaluate(self.run_folder, [self.text, self.text], seq=16)
        self.assertGreater(more["sequences"], 6)
        for wrong, message in (
            ({"data": []}, "data: no files"),
            ({"dtype": "f16"}, "f32 or bf16"),
            ({"micro_batch": -1}, "micro_batch: -1"),
            ({"seq": 1 << 40}, "seq: "),
        ):
            with self.assertRaisesRegex(dhelix.InvalidInput, message) as caught:
                dhelix.evaluate(self.run_folder, **{"data": self.text, **wrong})
            self.assertNotIn("--", str(caught.exception))
        with self.assertRaisesRegex(dhelix.Error, "nothing.txt"):
            dhelix.evaluate(self.run_folder, "nothing.txt")


    def test_interrupted_evaluation_ends_at_once(self):
        texts = [ROOT / "examples/data/tinyshakespeare.txt"] * 40  # a minute
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt) as caught:
            dhelix.evaluate(self.run_folder, texts, seq=32)
        self.assertIsInstance(caught.exception.__context__, dhelix.Interrupted)
        self.assertLess(time.monotonic() - start, 20)

    def test_convert(self):
        found = dhelix.convert(self.run_folder, "model.hf", dtype="bf16")
        self.assertEqual(found, program("convert", self.run_folder, "model.hf", "--dtype", "bf16", "--replace"))
        self.assertEqual(found["out"], "model.hf")
        self.assertTrue(found["tokenizer_for_transformers"])
        self.assertTrue(pathlib.Path("model.hf/config.json").exists())
        self.assertEqual(dhelix.convert(self.run_folder, "model.hf", replace=True)["tensors"], found["tensors"])
        again = dhelix.evaluate("model.hf", self.text, seq=16)  # the bits of the run's model: f32
        self.assertEqual(again["loss"], dhelix.evaluate(self.run_folder, self.text, seq=16)["loss"])
        with self.assertRaisesRegex(dhelix.InvalidInput, "model.hf") as caught:
            dhelix.convert(self.run_folder, "model.hf")
        self.assertNotIn("--", str(caught.exception))
        with self.assertRaisesRegex(dhelix.InvalidInput, "overwrite"):
            dhelix.convert("model.hf", pathlib.Path("model.hf"), replace=True)
        with self.assertRaisesRegex(dhelix.InvalidInput, "f32 or bf16"):
            dhelix.convert(self.run_folder, "other.hf", dtype="f64")


    def test_tokenize(self):
        text = "Hello world"
        said = dhelix.tokenize(text=text, tokenizer="bytes", ids=True)
        self.assertEqual((said["ids"], said["vocab"]), (list(text.encode()), 256))
        gpt2 = ROOT / "tests/data/tokenizers/gpt2"
        self.assertEqual(dhelix.tokenize(text=text, tokenizer=gpt2, ids=True)["ids"], [15496, 995])
        self.assertEqual(dhelix.detokenize((15496, 995), gpt2), text)
        self.assertEqual(dhelix.detokenize([50256, 15496], gpt2, skip_special=True), "Hello")
        self.assertEqual(dhelix.detokenize("ä€".encode()[:-1], "bytes"), "ä\ufffd")
        self.assertEqual(dhelix.detokenize([], "bytes"), "")
        said = dhelix.tokenize(self.text, "chars", output="short.bin")
        self.assertEqual(said["tokens"], self.text.stat().st_size)
        mine, theirs = pathlib.Path("short.bin").read_bytes(), pathlib.Path("theirs.bin")
        program("tokenize", self.text, "--tokenizer", "chars", "--output", theirs)
        self.assertEqual(mine, theirs.read_bytes())
        self.assertNotIn("ids", said)
        learned = dhelix.tokenize([self.text], train_bpe=270, output="learned")
        self.assertEqual(learned["vocab"], 270)
        self.assertLess(dhelix.tokenize(self.text, "learned")["tokens"], said["tokens"])
        pathlib.Path("chat.jsonl").write_text(
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n', encoding="utf-8"
        )
        chat = dhelix.tokenize("chat.jsonl", "bytes", chat_template="plain", ids=True)
        self.assertEqual(len(chat["ids"]), len(chat["learnt"]))
        self.assertEqual((chat["last"][-1], sum(chat["last"])), (True, 1))
        self.assertTrue(0 < sum(chat["learnt"]) < len(chat["ids"]))
        for wrong, message in (
            ({"tokenizer": "bytes"}, "a text or files"),
            ({"text": "a"}, "tokenizer is missing"),
            ({"inputs": self.text, "train_bpe": 270}, "needs output"),
            ({"inputs": self.text, "tokenizer": "bytes", "output": self.text}, "overwrite"),
        ):
            with self.assertRaisesRegex(dhelix.InvalidInput, message):
                dhelix.tokenize(**wrong)
        with self.assertRaisesRegex(dhelix.InvalidInput, "256"):
            dhelix.detokenize([65, 256], "bytes")
        for ids in ([1 << 40], [None], 7):
            with self.assertRaises((OverflowError, TypeError)):
                dhelix.detokenize(ids, "bytes")


    def test_report(self):
        said = dhelix.report(f"{self.run_folder}/")
        self.assertEqual(said, {"out": os.path.join(self.run_folder, "report.html"), "runs": 1})
        page = pathlib.Path(said["out"]).read_bytes()
        self.assertEqual(program("report", self.run_folder), said)
        self.assertEqual(pathlib.Path(said["out"]).read_bytes(), page)
        dhelix.Job("model.yaml").simulate(cluster="a100", out="simulated.run")
        runs = [self.run_folder, pathlib.Path("simulated.run")]
        dhelix.report(runs, "both.html", baseline="simulated.run/")
        program("report", *runs, "--out", "theirs.html", "--baseline", "simulated.run")
        self.assertEqual(pathlib.Path("both.html").read_bytes(), pathlib.Path("theirs.html").read_bytes())
        self.assertEqual(dhelix.report(runs)["out"], "./report.html")
        joined = dhelix.report("simulated.run", traces="joined.json")["out"]
        self.assertTrue(json.loads(pathlib.Path(joined).read_text(encoding="utf-8"))["traceEvents"])
        for runs, how, error in (
            ("nowhere", {}, dhelix.Error),
            ([], {}, dhelix.InvalidInput),
            (self.run_folder, {"out": f"{self.run_folder}/metrics.jsonl"}, dhelix.InvalidInput),
            (self.run_folder, {"baseline": "other"}, dhelix.InvalidInput),
            (self.run_folder, {"ranks": 2, "traces": "joined.json"}, ValueError),
        ):
            with self.assertRaises(error) as caught:
                dhelix.report(runs, **{"out": None if "traces" in how else "wrong.html", **how})
            self.assertNotIn("--", str(caught.exception))


    def test_figures(self):
        said = dhelix.figures(f"{self.run_folder}/", "drawn", only=["loss", "learning-rate"])
        self.assertEqual((said["figures"], said["missing"]), (["loss", "learning-rate"], {}))
        self.assertEqual(program("plot", self.run_folder, "--svg", "plotted", "--figures", "loss,learning-rate"), {**said, "out": "plotted"})
        self.assertEqual(dhelix.figures(self.run_folder, "all", only=[]), {**dhelix.figures(self.run_folder, "every"), "out": "all"})
        for ending in ("svg", "csv"):
            theirs = pathlib.Path(f"plotted/loss.{ending}").read_bytes()
            self.assertEqual(pathlib.Path(f"drawn/loss.{ending}").read_bytes(), theirs)
        steps = dhelix.Job("model.yaml").simulate(cluster="a100", strategies=["sequential", "flux"])
        pathlib.Path("steps.json").write_text(json.dumps(steps), encoding="utf-8")
        self.assertEqual(dhelix.figures("steps.json", "bars.svg", only="table")["figures"], ["bars"])
        self.assertTrue(pathlib.Path("bars.csv").exists())
        pathlib.Path("matrix.csv").write_text(",b\na,0.5\n", encoding="utf-8")
        job = dhelix.figures("model.yaml", "job", cluster="a100", overrides={"train": {"micro_batch": 1}})
        self.assertIn("timeline", job["figures"])
        for sources, how, error in (
            ("nowhere", {}, dhelix.NotFound),
            ([], {}, dhelix.InvalidInput),
            (self.run_folder, {"only": "tabel"}, dhelix.InvalidInput),
            (self.run_folder, {"out": "one.svg"}, dhelix.InvalidInput),
            (self.run_folder, {"out": self.run_folder}, dhelix.InvalidInput),
            (self.run_folder, {"cluster": "a100"}, dhelix.InvalidInput),
            ("steps.json", {"overrides": {"train": {"steps": 1}}}, dhelix.InvalidInput),
            (self.run_folder, {"only": ["loss", "validation"]}, dhelix.NotFound),
            ("matrix.csv", {"out": "matrix.svg"}, dhelix.InvalidInput),
            ("model.yaml", {"overrides": {"train.micro_batch": []}}, dhelix.Error),
        ):
            with self.assertRaises(error) as caught:
                dhelix.figures(sources, **{"out": "wrong", **how})
            self.assertNotIn("--", str(caught.exception))
        self.assertFalse(pathlib.Path("wrong").exists())
        self.assertEqual(pathlib.Path("matrix.csv").read_text(encoding="utf-8"), ",b\na,0.5\n")


class Package(unittest.TestCase):
    def test_is_documented_and_typed(self):
        functions = [f for name in dhelix.__all__ for f in [getattr(dhelix, name)] if inspect.isfunction(f)]
        self.assertGreater(len(functions), 4)
        functions.append(dhelix.Job.__init__)
        functions += [f for name, f in vars(dhelix.Job).items() if name[0] != "_"]
        self.assertGreater(len(functions), 14)
        for function in functions:
            hints = typing.get_type_hints(function)
            self.assertIn("return", hints, function)
            for name in inspect.signature(function).parameters:
                self.assertTrue(name == "self" or name in hints, (function, name))
            self.assertTrue(inspect.getdoc(function), function)
        for name in dhelix.__all__:
            self.assertTrue(inspect.getdoc(getattr(dhelix, name)), name)
        self.assertTrue((pathlib.Path(dhelix.__file__).parent / "py.typed").exists())

    def test_version_and_clusters(self):
        said = subprocess.run([os.environ["DHELIX"], "--version"], check=True, stdout=subprocess.PIPE).stdout
        self.assertEqual(said.decode().split()[1], dhelix.__version__)
        self.assertIn("a100", dhelix.clusters())

    def test_lists(self):
        lists = dhelix.lists()
        self.assertEqual(list(lists), [row["name"] for row in program("list")])
        for name in "models", "clusters", "strategies", "schedules", "systems", "settings", "tables":
            self.assertEqual(lists[name], program("list", name))
        self.assertIn("cpu", [row["name"] for row in lists["devices"]])
        for name, rows in lists.items():
            for row in rows:
                self.assertEqual(list(row), list(rows[0]), name)
                self.assertFalse([value for value in row.values() if isinstance(value, (list, dict))], name)


if __name__ == "__main__":
    unittest.main()
