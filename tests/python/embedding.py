"""The package inside another program: embedding.py REPOSITORY, in an empty folder.

Locales, threads, forks, signals, the end of the interpreter, options out of range, files cut short. Each case is a
process of its own (a "scene" below), which may not hang and may not end by a signal. Schedules are drawn with a
fixed seed; DHELIX_EMBEDDING_TRIES says how many interpreters end with a thread that trains (6).
"""

import json
import locale
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
TRIES = int(os.environ.get("DHELIX_EMBEDDING_TRIES", "6"))
SEED = 36
SMALL = """
model: {family: gpt2, n_layers: 2, width: 32, n_heads: 4, max_seq: 32}
data: {train: TEXT, tokenizer: chars, val_fraction: 0.01}
train: {steps: 6, batch: 4, seq_len: 32, threads: 1}
optimizer: {lr: 0.0015, weight_decay: 0.125}
eval: {every: 3, batches: 1}
""".replace("TEXT", str(ROOT / "examples/data/tinyshakespeare.txt"))
VARYING = {"step_ms", "tokens_per_s", "search_s", "out", "checkpoint", "mfu"}


def small(out, **settings):
    import dhelix

    return dhelix.Job("job.yaml", out=out, **settings)


def losses(run):
    import dhelix

    return [line["loss"] for line in dhelix.metrics(run) if "loss" in line]


# ---- scenes ----------------------------------------------------------------------------------------


def set_locale(name):
    if name != "C":
        locale.setlocale(locale.LC_ALL, name)
        assert locale.localeconv()["decimal_point"] == ("," if "comma" in name else "."), name


def scene_locale(name, order, out):
    """All that prints or parses numbers, with the locale set before or after the package is loaded."""
    if order == "before":
        set_locale(name)
    import dhelix

    if order == "after":
        set_locale(name)
    said = {}
    job = small(out, overlap={"memory": 1.5})
    said["settings"] = {k: v for k, v in job.items() if k != "out"}
    job.replace({"train.steps": 4}).train()
    said["continued"] = job.train()["resumed_at"]
    said["losses"] = losses(out)
    said["files"] = {}
    for path in sorted(pathlib.Path(out).rglob("*")):
        if path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        if path.name in ("job.yaml", "state.json", "config.json"):
            said["files"][str(path.relative_to(out))] = path.read_text(encoding="utf-8").replace(os.path.abspath(out), "OUT")
    said["again"] = dict(dhelix.Job(f"{out}/job.yaml", out=out))["optimizer.lr"]
    small(out + ".profiled", profile="measure", data={"cache": "cache"}, parallel={"tp": 2}).train()
    for path in pathlib.Path(out + ".profiled").glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    tp2 = dhelix.Job(ROOT / "examples/tp2.yaml")
    said["check"] = tp2.check()
    said["plan"] = tp2.plan("list", cluster="a100", explain=True)
    said["order"] = tp2.order("list", cluster="a100")
    said["simulate"] = tp2.simulate("a100", ["sequential", "dhelix"], out=out + ".simulated")
    said["table"] = tp2.table({"parallel.bucket_mb": [0.5, 1.5]}, "a100")
    said["tune"] = tp2.tune("a100", 4, strategies="sequential", schedules="1f1b", simulated=2, within=1.5)
    rows = [f"{m},4096,{k},bf16,{2e-6 * m * 4096 * k / 700}" for m in (1024, 2048, 4096) for k in (1024, 4096)]
    pathlib.Path("gemm.csv").write_text("\n".join(["M,N,K,DTYPE,TIME_US", *rows]), encoding="utf-8")
    said["calibrate"] = dhelix.calibrate(["gemm.csv"], "h100", out + ".yaml")
    said["calibrated"] = pathlib.Path(out + ".yaml").read_text(encoding="utf-8")
    said["sample"] = dhelix.sample(out, "ROMEO:", 8, seed=4)
    try:
        dhelix.Job("job.yaml", optimizer={"lr": "0,5"})
    except dhelix.InvalidInput as error:
        said["error"] = str(error)
    return said


def scene_exit(out, delay, n_threads):
    """The interpreter ends while daemon threads train."""
    n = int(n_threads)
    started = threading.Barrier(n + 1)
    heard = [0] * n

    def on_step(i, m):
        heard[i] = m["step"]

    def train(i):
        job = small(f"{out}.{i}", train={"steps": 100000}, checkpoint={"every": 5}, parallel={"tp": 1 + i % 2})
        started.wait()
        job.train(on_step=lambda m: on_step(i, m))

    for i in range(n):
        threading.Thread(target=train, args=(i,), daemon=True).start()
    started.wait()
    time.sleep(float(delay))
    return {"heard": heard}


def scene_exit_searching():
    import dhelix

    job = dhelix.Job(ROOT / "examples/llama3_70b.yaml")
    threading.Thread(target=lambda: job.tune("a100", 128), daemon=True).start()
    time.sleep(0.3)
    return {}


def scene_calls_after_end():
    """A daemon thread that goes on calling is refused, not killed inside a call."""
    def keep_calling():
        while True:
            try:
                small("many", train={"steps": 2}).check()
            except RuntimeError:
                return

    threading.Thread(target=keep_calling, daemon=True).start()
    time.sleep(0.2)
    return {}


def scene_bounds():
    """Options out of range are refused; each within seconds."""
    import dhelix

    small("bounds").train()
    tp2 = dhelix.Job(ROOT / "examples/tp2.yaml")
    far = 2**62
    calls = {
        "tune devices": lambda: tp2.tune("a100", far),
        "tune devices below 0": lambda: tp2.tune("a100", -1),
        "tune top": lambda: tp2.tune("a100", 2, top=far),
        "tune simulated": lambda: tp2.tune("a100", 2, simulated=far),
        "tune within nan": lambda: tp2.tune("a100", 2, within=math.nan),
        "tune within": lambda: tp2.tune("a100", 2, within=0.5),
        "tune memory nan": lambda: tp2.tune("a100", 2, memory_bytes=math.nan),
        "tune memory": lambda: tp2.tune("a100", 2, memory_bytes=-1),
        "tune fuse": lambda: tp2.tune("a100", 2, fuse=[far]),
        "tune zero": lambda: tp2.tune("a100", 2, zero=[far]),
        "tune buckets": lambda: tp2.tune("a100", 2, buckets=[-1]),
        "check rank": lambda: tp2.check(far),
        "check rank below 0": lambda: tp2.check(-1),
        "simulate peak": lambda: tp2.simulate("a100", peak_tflops=math.nan),
        "simulate peak below 0": lambda: tp2.simulate("a100", peak_tflops=-1),
        "table peak": lambda: tp2.table({"parallel.tp": [1]}, "a100", peak_tflops=math.inf),
        "table": lambda: tp2.table({}, "a100"),
        "table tp": lambda: tp2.table({"parallel.tp": [far]}, "a100"),
        "calibrate devices": lambda: dhelix.calibrate(["gemm.csv"], "h100", devices=far),
        "calibrate devices below 0": lambda: dhelix.calibrate(["gemm.csv"], "h100", devices=-1),
        "calibrate nothing": lambda: dhelix.calibrate([], "h100"),
        "sample tokens": lambda: dhelix.sample("bounds", "A", far),
        "sample tokens below 0": lambda: dhelix.sample("bounds", "A", -1),
        "sample top_k": lambda: dhelix.sample("bounds", "A", 1, top_k=-1),
        "sample temperature": lambda: dhelix.sample("bounds", "A", 1, temperature=-1),
        "steps": lambda: small("b", train={"steps": far}),
        "batch": lambda: small("b", train={"batch": far}),
        "ranks": lambda: small("b", ranks=far),
        "threads": lambda: small("b", train={"threads": far}),
        "lr": lambda: small("b", optimizer={"lr": math.nan}),
    }
    pathlib.Path("gemm.csv").write_text("m,n,k,dtype,time_us\n1024,4096,4096,bf16,100\n", encoding="utf-8")
    said = {}
    for name, call in calls.items():
        begin = time.monotonic()
        try:
            call()
            said[name] = "accepted"
        except (dhelix.Error, ValueError, OverflowError) as error:
            said[name] = "" if str(error) else "no message"
        if time.monotonic() - begin > 20:
            said[name] = "slow"
    return said


def scene_cut(kind):
    """A file of tokens, or of text, that another program cuts short."""
    import dhelix

    if kind == "tokens":
        pathlib.Path("cut.u16").write_bytes(bytes(random.Random(SEED).choices(range(64), k=1 << 20)))
        settings = {"data": {"train": "cut.u16", "tokenizer": "bytes"}, "model": {"vocab": 65536}}
    else:
        pathlib.Path("cut.txt").write_bytes(b"to be or not to be\n" * 30000)
        settings = {"data": {"train": "cut.txt", "tokenizer": "bytes", "val_fraction": 0}}
    job = small(f"cut-{kind}", train={"steps": 40}, eval={"every": 0}, checkpoint={"every": 10}, **settings)

    def cut(m):
        if m["step"] == 2:
            os.truncate("cut.u16" if kind == "tokens" else "cut.txt", 4096)

    try:
        job.train(on_step=cut)
        return {"end": "trained"}
    except dhelix.FileError as error:
        return {"end": str(error)}


def scene_threads(n):
    """Jobs at once in threads, and one job shared by all of them."""
    import dhelix

    n = int(n)
    said = {"failed": []}
    alone = []
    for i in range(n):
        small(f"alone{i}", train={"seed": i}, parallel={"tp": 1 + i % 2}).train()
        alone.append(losses(f"alone{i}"))
    shared = dhelix.Job(ROOT / "examples/tp2.yaml", data={"weights": "1"})
    mixture = dhelix.Job("job.yaml", slow={"ranks": "0", "factor": 2})
    want = [shared.simulate("a100", "dhelix"), shared.check(), shared.plan(cluster="a100"), mixture.simulate("a100")]

    def work(i):
        try:
            small(f"together{i}", train={"seed": i}, parallel={"tp": 1 + i % 2}).train()
            assert losses(f"together{i}") == alone[i], "other losses"
            for _ in range(2):
                got = [
                    shared.simulate("a100", "dhelix"),
                    shared.check(),
                    shared.plan(cluster="a100"),
                    mixture.simulate("a100"),
                ]
                assert got == want, "another result of a shared job"
        except BaseException as error:
            said["failed"].append(repr(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return said


def scene_raising(n):
    """Callbacks that raise in several threads: each run ends with its own exception."""
    said = {"right": 0}

    def work(i):
        def on_step(m):
            if m["step"] == 1 + i % 3:
                raise LookupError(i)

        try:
            small(f"raising{i}", parallel={"tp": 1 + i % 2}).train(on_step=on_step)
        except LookupError as error:
            said["right"] += error.args == (i,)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(int(n))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return said


def scene_fork(busy):
    """A run in the child of a fork, after a run in the parent, or while one goes on in a thread of it."""
    small("before").train()
    stop = threading.Event()

    def on_step(m):
        if stop.is_set():
            raise LookupError

    def keep_training():
        try:
            small("parent", train={"steps": 100000}, checkpoint={"every": 0}).train(on_step=on_step)
        except LookupError:
            pass

    thread = threading.Thread(target=keep_training)
    if busy == "busy":
        thread.start()
        while not pathlib.Path("parent/metrics.jsonl").exists():
            time.sleep(0.01)
    child = os.fork()
    if child == 0:
        small("child").train()
        sys.exit(7)  # through the interpreter's end, which may not wait for the parent's calls
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stop.set()
    if busy == "busy":
        thread.join()
    small("after").train()
    return {"status": status, "same": losses("child") == losses("before") == losses("after")}


def handlers():
    """Signals blocked, ignored and caught, without the two that the C library has for itself (32, 33)."""
    lines = [line.split() for line in pathlib.Path("/proc/self/status").read_text().splitlines()]
    return {line[0]: int(line[1], 16) & 0x7FFFFFFF for line in lines if line[0] in ("SigBlk:", "SigIgn:", "SigCgt:")}


def scene_signals():
    """Handlers and mask are the host's: before, while and after the library works."""
    import dhelix

    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    before = handlers()
    during = []

    def on_step(m):
        during.append({**handlers(), "SigBlk:": before["SigBlk:"]})  # the library's threads block them
        os.kill(os.getpid(), signal.SIGUSR1)

    small("signals", parallel={"tp": 2}).train(on_step=on_step)
    dhelix.Job(ROOT / "examples/tp2.yaml").tune("a100", 4, strategies="sequential", schedules="1f1b", simulated=1)
    dhelix.sample("signals", "A", 2)
    return {"same": all(d == before for d in [*during, handlers()]), "seen": len(seen) > 0}


def main_scene(name, *arguments):
    said = globals()["scene_" + name](*arguments)
    print(json.dumps(said, sort_keys=True), flush=True)


# ---- tests -----------------------------------------------------------------------------------------


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in VARYING}
    return [without_times(v) for v in value] if isinstance(value, list) else value


class Embedded(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.folder = pathlib.Path(self.id()).absolute()
        self.folder.mkdir()
        (self.folder / "job.yaml").write_text(SMALL, encoding="utf-8")

    def scene(self, name, *arguments, env=None, timeout=300):
        words = [sys.executable, os.path.abspath(__file__), str(ROOT), "scene", name, *map(str, arguments)]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
        )
        self.assertEqual(done.returncode, 0, (name, arguments, done.stderr.decode()[-2000:]))
        return json.loads(done.stdout)

    def test_locales(self):
        # A locale needs no more than this; the system's own sources may be missing.
        source = 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n'
        (self.folder / "comma.txt").write_text(source, encoding="ascii")
        made = self.folder / "locales"
        made.mkdir()
        subprocess.run(
            ["localedef", "-c", "-i", "comma.txt", made / "comma"],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.assertTrue((made / "comma/LC_NUMERIC").exists(), "localedef (of libc-bin) made no locale")
        names = ["comma"]
        turkish = ["localedef", "-f", "UTF-8", "-i", "tr_TR", made / "tr_comma"]  # I and i are no pair
        if subprocess.run(turkish, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            names.append("tr_comma")
        env = {"LOCPATH": str(made)}
        want = without_times(self.scene("locale", "C", "before", "C", env=env))
        self.assertIn("0.0015", json.dumps(want["files"]))
        for name in names:
            for order in "before", "after":
                with self.subTest(locale=name, order=order):
                    said = without_times(self.scene("locale", name, order, f"{name}.{order}", env=env))
                    for key, value in want.items():
                        self.assertEqual(said[key], value, key)

    def check_ended_run(self, run, step):
        """Nothing half-written, and a checkpoint of the last step that was told, or of one after it."""
        self.assertEqual([p for p in run.rglob("*") if ".tmp-" in p.name], [])
        if step == 0:
            return
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        newest = max(p for p in (run / "checkpoints").iterdir() if p.name.startswith("step-"))
        self.assertGreaterEqual(int(newest.name[5:]), step)
        self.assertEqual(int(newest.name[5:]), max(line["step"] for line in lines))
        json.loads((newest / "manifest.json").read_text())

    def test_end_of_the_interpreter(self):
        draw = random.Random(SEED)
        for i in range(TRIES):
            with self.subTest(i=i):
                n = 1 + i % 3
                said = self.scene("exit", f"run{i}", f"{draw.uniform(0.0, 1.0):.3f}", n)
                for k, step in enumerate(said["heard"]):
                    self.check_ended_run(self.folder / f"run{i}.{k}", step)
        self.scene("exit_searching")
        self.scene("calls_after_end")

    def test_options_out_of_range(self):
        for name, said in self.scene("bounds").items():
            self.assertEqual(said, "", name)

    def test_files_cut_short(self):
        self.assertRegex(self.scene("cut", "tokens")["end"], "cut.u16 was cut short by another program")
        self.assertEqual(self.scene("cut", "text")["end"], "trained")  # its tokens are in memory

    def test_jobs_at_once(self):
        self.assertEqual(self.scene("threads", 3), {"failed": []})

    def test_callbacks_that_raise(self):
        self.assertEqual(self.scene("raising", 6), {"right": 6})

    def test_forks(self):
        for busy in "idle", "busy":
            with self.subTest(parent=busy):
                self.folder = pathlib.Path(f"{self.id()}.{busy}").absolute()
                self.folder.mkdir()
                (self.folder / "job.yaml").write_text(SMALL, encoding="utf-8")
                self.assertEqual(self.scene("fork", busy), {"status": 7, "same": True})

    def test_signals_are_the_hosts(self):
        self.assertEqual(self.scene("signals"), {"same": True, "seen": True})


if __name__ == "__main__":
    if sys.argv[1:2] == ["scene"]:
        main_scene(*sys.argv[2:])
    else:
        unittest.main()
