"""The same bits whatever else the machine does.

    pressure.py DHELIX [--runs N] [--seed S] [--only I] [--threads]

Jobs of 2 and 4 ranks, as threads or processes (where mpirun is installed), under drawn niceness,
affinity of the run and of single ranks, limits of threads, a share of a core by cgroup (where one
can be made), neighbours that compute, and pauses of the run or of a rank. Checked: weights,
moments, losses, norms and validations are those of the same job undisturbed, bit for bit. Where a
limit lets a team have fewer threads than the job asks for, that job has as few.
"""
import argparse
import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from started import clean_up_when_stopped, draw_seed, drawn, environment, name_of, processes, send, settings

STEPS = 20
JOB = f"""
model: {{name: tiny, family: gpt2, n_layers: 2, n_heads: 4, width: 64, max_seq: 64}}
data: {{train: {os.getcwd()}/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}}
train: {{steps: {STEPS}, batch: 8, micro_batch: 2, seq_len: 64}}
optimizer: {{lr: 3.0e-3, warmup_steps: 5}}
eval: {{every: 10, batches: 4}}
checkpoint: {{every: 10, keep: 0}}
parallel: {{timeout_s: 300}}
"""
MESHES = ["parallel.dp=2", "parallel.tp=2", "parallel.pp=2", "parallel.cp=2", "parallel.dp=2 parallel.zero=3",
          "parallel.dp=4", "parallel.dp=2 parallel.tp=2", "parallel.tp=2 parallel.pp=2",
          "parallel.dp=2 parallel.pp=2 parallel.zero=1", "parallel.tp=4", "parallel.dp=4 parallel.zero=2"]
SPIN = [sys.executable, "-c", "while True: pass"]
GONE_S = 60
LIMIT_S = 280  # without a further line of metrics: a busy machine is slow, and no fault


class Pressure:
    """What is drawn for one run."""

    def __init__(self, draw, apart):
        cores = sorted(os.sched_getaffinity(0))
        self.nice = draw.choice([0, 0, 5, 10, 19])
        self.cores = draw.choice([cores, cores[:1], cores[-1:], draw.sample(cores, (len(cores) + 1) // 2)])
        self.env = {}
        for name, choices in (("OMP_NUM_THREADS", "1234"), ("OMP_THREAD_LIMIT", "123"), ("OMP_DYNAMIC", ["true"]),
                              ("OMP_WAIT_POLICY", ["active", "passive"])):
            if draw.random() < 0.4:
                self.env[name] = draw.choice(choices)
        self.n_neighbours = draw.choice([0, 0, 1, 2])
        self.share = draw.choice([None, None, 0.5, 0.8])
        self.pauses = [(draw.random(), draw.uniform(0.01, 0.4), draw.randrange(4)) for _ in range(draw.randint(0, 6))]
        self.moves = draw.random() < 0.4  # ranks to other cores meanwhile
        self.waits = draw.choice(["", "parallel.mpi_wait=sleep", "parallel.mpi_wait=block"]) if apart else ""

    def n_threads(self, wanted):
        return min(wanted, int(self.env.get("OMP_THREAD_LIMIT", wanted)))

    def __str__(self):
        env = " ".join(f"{k}={v}" for k, v in self.env.items())
        return (f"nice {self.nice}, cores {self.cores}{' that change' if self.moves else ''}, {env or 'no limits'}, "
                f"{self.n_neighbours} neighbours, share {self.share or 1}, {len(self.pauses)} pauses {self.waits}")


class Group:
    """A cgroup (version 1 or 2) with a share of a core; nothing where none can be made."""

    def __init__(self, share):
        self.folder = None
        for parent, files in (("/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us": f"{int(share * 100000)}"}),
                              ("/sys/fs/cgroup", {"cpu.max": f"{int(share * 100000)} 100000"})):
            folder = f"{parent}/dhelix-pressure-{os.getpid()}"
            try:
                os.mkdir(folder)
            except OSError:
                continue
            self.folder = folder
            try:
                for name, text in files.items():
                    with open(f"{folder}/{name}", "w") as f:
                        f.write(text)
                return
            except OSError:
                self.end()

    def take(self, pid):
        if self.folder:
            with open(f"{self.folder}/cgroup.procs", "w") as f:
                f.write(str(pid))

    def end(self):
        """Once the last process is gone: one that was killed takes its time."""
        end = time.monotonic() + GONE_S
        while self.folder:
            try:
                os.rmdir(self.folder)
                self.folder = None
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


class Test:
    def __init__(self, args, tmp):
        self.args, self.tmp = args, tmp
        self.mpirun = None if args.threads else shutil.which("mpirun")
        self.job = os.path.join(tmp, "job.yaml")
        with open(self.job, "w") as f:
            f.write(JOB)
        self.references = {}

    def train(self, mesh, out):
        return [self.args.dhelix, "train", self.job, "--quiet"] + settings(f"{mesh} out={out}")

    def reference(self, mesh):
        if mesh not in self.references:
            out = os.path.join(self.tmp, f"whole-{len(self.references)}")
            subprocess.run(self.train(mesh, out), check=True, stdin=subprocess.DEVNULL,
                           env=environment(DHELIX_LOG="error"), timeout=LIMIT_S)
            self.references[mesh] = out
        return self.references[mesh]

    def run(self, index):
        draw = drawn(self.args.seed, index)
        apart = bool(self.mpirun) and draw.random() < 0.5
        ranks, threads = draw.choice(MESHES), draw.choice([1, 1, 2])
        mesh = f"{ranks} train.threads={threads}"
        pressure = Pressure(draw, apart)
        out, mark = os.path.join(self.tmp, f"run-{index}"), f"{os.getpid()}.{index}"
        n_ranks = 1
        for degree in re.findall(r"(?:dp|tp|cp|pp)=(\d)", mesh):
            n_ranks *= int(degree)
        words = self.train(f"{mesh} {pressure.waits}", out)
        words = [self.mpirun, "-n", str(n_ranks)] + words if apart else words
        print(f"{index}: {'processes' if apart else 'threads'}, {mesh}: {pressure}", flush=True)
        reference = self.reference(f"{ranks} train.threads={pressure.n_threads(threads)}")
        code, text = self.start(words, mark, pressure, draw, out)
        faults = [] if code == 0 else [f"exit code {code}: {text[-600:]}"]
        faults += self.compare(out, reference) if code == 0 else []
        for fault in faults:
            print(f"FAILED {index}: {fault}", flush=True)
        shutil.rmtree(out, ignore_errors=True)
        return not faults

    def start(self, words, mark, pressure, draw, out):
        def begin():
            os.nice(pressure.nice)
            os.sched_setaffinity(0, pressure.cores)
        env = dict(environment(DHELIX_LOG="error"), DHELIX_SCHEDULE=mark)
        env.update(pressure.env)
        group = Group(pressure.share) if pressure.share else None
        neighbours = [subprocess.Popen(SPIN) for _ in range(pressure.n_neighbours)]
        log = open(os.path.join(self.tmp, "log"), "w+")
        run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, preexec_fn=begin)
        try:
            if group:
                group.take(run.pid)
            begun = time.monotonic()
            for at, length, rank in sorted(pressure.pauses):
                while run.poll() is None and time.monotonic() - begun < at * 2:
                    time.sleep(0.002)
                self.pause(run, mark, rank, length, pressure, draw)
            self.wait(run, os.path.join(out, "metrics.jsonl"))
        except subprocess.TimeoutExpired:
            for pid in processes(f"DHELIX_SCHEDULE={mark}"):
                send(pid, signal.SIGKILL)
            run.wait()
        finally:
            for n in neighbours:
                n.kill()
                n.wait()
            if group:
                group.end()
        log.seek(0)
        with log:
            return run.returncode, log.read()

    @staticmethod
    def wait(run, metrics):
        """Until the end, or for too long on one line of metrics."""
        known, moved = None, time.monotonic()
        while run.poll() is None:
            size = os.path.getsize(metrics) if os.path.exists(metrics) else 0
            if size != known:
                known, moved = size, time.monotonic()
            if time.monotonic() - moved > LIMIT_S:
                raise subprocess.TimeoutExpired(run.args, LIMIT_S)
            time.sleep(0.05)

    def pause(self, run, mark, rank, length, pressure, draw):
        """A rank that is a process, or all of them."""
        if run.poll() is not None:
            return
        ranks = [p for p in processes(f"DHELIX_SCHEDULE={mark}") if "train" in name_of(p) and "mpirun" not in name_of(p)[0]]
        pids = [ranks[rank]] if rank < len(ranks) else ranks
        for pid in pids:
            send(pid, signal.SIGSTOP)
        time.sleep(length)
        for pid in pids:
            try:
                if pressure.moves:
                    os.sched_setaffinity(pid, draw.sample(sorted(os.sched_getaffinity(0)), 1))
            except OSError:
                pass
            send(pid, signal.SIGCONT)

    @staticmethod
    def compare(out, reference):
        faults = []
        for step in range(10, STEPS + 1, 10):
            for name in ("model", "optimizer"):
                file = f"checkpoints/step-{step:06d}/{name}.safetensors"
                if not filecmp.cmp(f"{out}/{file}", f"{reference}/{file}", shallow=False):
                    faults.append(f"{file} differs")
        curves = []
        for folder in (out, reference):
            with open(f"{folder}/metrics.jsonl") as f:
                curves.append(re.findall(r'"(?:step|loss|val_loss|grad_norm|lr)":[^,}]*', f.read()))
        return faults + (["losses differ"] if curves[0] != curves[1] else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dhelix")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--threads", action="store_true", help="no processes, although mpirun is there")
    args = parser.parse_args()
    clean_up_when_stopped()
    args.seed = draw_seed("pressure", args.seed, 9)
    args.dhelix = os.path.abspath(args.dhelix)
    with tempfile.TemporaryDirectory(prefix="dhelix-pressure-") as tmp:
        test = Test(args, tmp)
        which = [args.only] if args.only is not None else range(args.runs)
        failed = [i for i in which if not test.run(i)]
    print(f"{len(which)} runs, {len(failed)} failed: {failed}")
    sys.exit(1 if failed else 0)


main()
