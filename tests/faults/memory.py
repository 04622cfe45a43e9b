#!/usr/bin/env python3
"""Commands with too little memory: python3 tests/faults/memory.py DHELIX [--full] [--only NAME]

Every command runs under a list of limits of its address space, from less than it starts with to
more than it needs, and where this may make one, in a control group of so much memory. Whatever the
limit, it ends by itself: with exit code 0, or with one line that says what is wrong. A signal, an
abort, a kill by the kernel or a wait is a failure. The list is fixed; --full has more limits.
"""
import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
TIMEOUT_S = 120
DEEP = ("train-team", "train-wide-4", "train-wide-async", "check-70b", "tune-16k")  # --full alone
LOADER_FAILED = 127  # the program did not start: not ours

JOB = """
out: {out}
model: {{family: llama, n_layers: 4, width: {width}, n_heads: 8, vocab: 256, ffn_width: {ffn}, max_seq: 64}}
data: {{train: {text}, tokenizer: bytes, order: sequential}}
train: {{steps: 2, batch: 8, micro_batch: 1, seq_len: 64, threads: {threads}}}
checkpoint: {{async: {background}}}
parallel: {{{mesh}}}
"""


class Case:
    def __init__(self, name, words, least, most, kinds=("space",)):
        self.name, self.words, self.kinds = name, words, kinds
        self.least, self.most = least, most

    def limits(self, n):
        """In MiB, geometric."""
        return [round(self.least * (self.most / self.least) ** (i / (n - 1))) for i in range(n)]


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def job(folder, name, text, mesh="tp: 1", threads=1, background="false", width=64):
    return write(f"{folder}/{name}.yaml", JOB.format(
        out=f"{folder}/{name}", text=text, mesh=mesh, threads=threads, background=background,
        width=width, ffn=4 * width))


def cases(dhelix, folder, examples):
    text = write(f"{folder}/text.txt", "the quick brown fox jumps over the lazy dog\n" * 60)
    one = job(folder, "one", text)
    team = job(folder, "team", text, threads=8)
    four = job(folder, "four", text, "tp: 2, dp: 2")
    many = job(folder, "many", text, "pp: 2, tp: 4, dp: 4")
    beside = job(folder, "beside", text, "dp: 2", background="true")
    model = job(folder, "model", text)
    for trained in (model, job(folder, "wide", text, width=512)):
        subprocess.run([dhelix, "train", trained, "--quiet"], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wide = job(folder, "wide1", text, width=512)
    wide4 = job(folder, "wide4", text, "tp: 2, dp: 2", width=512)
    wide2 = job(folder, "wide2", text, "dp: 2", background="true", width=512)
    large = f"{examples}/llama3_70b.yaml"
    fresh = ["--fresh"]
    return [
        Case("train", ["train", one] + fresh, 44, 130),
        Case("train-team", ["train", team] + fresh, 60, 300),
        Case("train-4", ["train", four] + fresh, 60, 600),
        Case("train-32", ["train", many] + fresh, 100, 2000),
        Case("train-async", ["train", beside] + fresh, 60, 400),
        Case("train-wide", ["train", wide] + fresh, 40, 400, ("group",)),
        Case("train-wide-4", ["train", wide4] + fresh, 40, 800, ("group",)),
        Case("train-wide-async", ["train", wide2] + fresh, 40, 800, ("group",)),
        Case("sample-wide", ["sample", f"{folder}/wide", "--tokens", "4"], 20, 400, ("group",)),
        Case("train-70b", ["train", large, "--set", f"out={folder}/large"], 60, 12000),
        Case("check", ["check", many], 44, 80),
        Case("check-70b", ["check", large], 56, 400),
        Case("plan", ["plan", four], 44, 80),
        Case("simulate", ["simulate", large, "--cluster", "a100"], 56, 160),
        Case("simulate-100k", ["simulate", large, "--cluster", "h100", "--set", "parallel.dp=3125",
                               "--set", "train.batch=12500"], 44, 100),
        Case("tune", ["tune", four, "--cluster", "h100", "--devices", "8"], 44, 160),
        Case("tune-16k", ["tune", large, "--cluster", "h100", "--devices", "16384", "--set",
                          "train.batch=16384"], 60, 160),
        Case("sample", ["sample", f"{folder}/model", "--tokens", "4"], 44, 110),
        Case("eval", ["eval", f"{folder}/model", "--data", text], 44, 110),
        Case("convert", ["convert", f"{folder}/model", f"{folder}/out-hf", "--replace"], 44, 70),
        Case("tokenize", ["tokenize", "--tokenizer", "bytes", text, "-o", f"{folder}/x.tokens"],
             44, 70),
        Case("tokenize-learn", ["tokenize", "--train-bpe", "270", text, "-o", f"{folder}/learnt",
                                ], 44, 70),
        Case("report", ["report", f"{folder}/model", "--out", f"{folder}/x.html"], 44, 70),
    ]


class Space:
    """A limit of address space, as by ulimit -v."""
    name = "space"

    def set(self, limit_mib):
        def apply():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (limit_mib * MIB, limit_mib * MIB))
        return apply

    def close(self):
        pass


class Group:
    """A control group of so much memory, of version 1 or 2; OSError where it cannot be made."""
    name = "group"

    def __init__(self):
        version_1 = "/sys/fs/cgroup/memory"
        first = os.path.isdir(version_1)
        self.folder = f"{version_1 if first else '/sys/fs/cgroup'}/dhelix-memory-{os.getpid()}"
        self.limit = "memory.limit_in_bytes" if first else "memory.max"
        os.mkdir(self.folder)
        try:
            if not os.path.exists(f"{self.folder}/{self.limit}"):
                raise OSError("no memory controller")
            if not first and os.path.exists(f"{self.folder}/memory.swap.max"):
                write(f"{self.folder}/memory.swap.max", "0")
            self.set(1000)
        except OSError:
            self.close()
            raise

    def set(self, limit_mib):
        for _ in range(50):  # what an earlier run left in it is given back by and by
            try:
                write(f"{self.folder}/{self.limit}", str(limit_mib * MIB))
                break
            except OSError:
                time.sleep(0.1)
        else:
            write(f"{self.folder}/{self.limit}", str(limit_mib * MIB))

        def apply():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            write(f"{self.folder}/cgroup.procs", str(os.getpid()))
        return apply

    def close(self):
        for _ in range(50):
            try:
                os.rmdir(self.folder)
                return
            except OSError:
                time.sleep(0.1)


def confinements():
    found = [Space()]
    try:
        found.append(Group())
    except OSError as error:
        print(f"no control groups here ({error}): limits of address space alone")
    return found


def run(dhelix, words, prepare):
    """Exit code, stderr, seconds. The code of a signal is negative, None after TIMEOUT_S."""
    env = dict(os.environ, DHELIX_LOG="warn", DHELIX_GEMM_PEAK="1e11", COLUMNS="200")
    env.pop("OMP_NUM_THREADS", None)
    start = time.monotonic()
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen([dhelix] + words, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=err, preexec_fn=prepare,
                                 env=env, start_new_session=True)
        try:
            code = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            code = None
        err.seek(0)
        return code, err.read().decode("utf-8", "replace"), time.monotonic() - start


def judge(code, err):
    """What is wrong; None: nothing."""
    lines = [line for line in err.splitlines() if ": error: " in line]
    if code is None:
        return "it did not end"
    if code < 0:
        return f"signal {-code}"
    if code == 0 or code == LOADER_FAILED and "error while loading" in err:
        return None
    return None if len(lines) == 1 else f"exit code {code}, {len(lines)} lines of errors"


def cannot_start(dhelix, prepare, code, err):
    """Whether a library ended the program before its first line, for which --version is too much, too."""
    if code != 1 or "libgomp: Out of memory" not in err:
        return False
    code, err, _ = run(dhelix, ["--version"], prepare)
    return code == LOADER_FAILED or code == 1 and "libgomp: Out of memory" in err


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dhelix")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--limits", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    dhelix = os.path.abspath(args.dhelix)
    folder = tempfile.mkdtemp(prefix="dhelix-memory-")
    n_limits = args.limits or (60 if args.full else 4)
    n = n_failed = 0
    kinds = confinements()
    try:
        for case in cases(dhelix, folder, os.path.abspath("examples")):
            if args.only and case.name not in args.only.split(","):
                continue
            if case.name in DEEP and not (args.full or args.only):
                continue
            for kind in kinds:
                if kind.name not in case.kinds:
                    continue
                ended = {}
                for limit in case.limits(n_limits):
                    code, err, seconds = run(dhelix, case.words, kind.set(limit))
                    wrong = None if cannot_start(dhelix, kind.set(limit), code, err) else judge(code, err)
                    n += 1
                    n_failed += wrong is not None
                    last = (err.strip().splitlines() or [""])[-1]
                    ended[code] = ended.get(code, 0) + 1
                    if wrong or args.verbose:
                        print(f"{'FAILED' if wrong else 'ok'}: {case.name}, {kind.name} of {limit}"
                              f" MiB, {seconds:.1f} s: {wrong or code}: {last[:160]}", flush=True)
                print(f"{case.name}, {kind.name}: exit codes {ended}", flush=True)
    finally:
        for kind in kinds:
            kind.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"memory: {n} cases, {n_failed} failed")
    return n_failed > 0


if __name__ == "__main__":
    sys.exit(main())
