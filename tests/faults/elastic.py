"""Runs whose ranks, launchers or links fail at drawn moments, and what becomes of them.

    elastic.py DHELIX [--schedules N] [--seed S] [--only I] [--threads] [--orphans] [--keep]

A schedule draws a mesh, ranks as threads or as processes (where mpirun is installed), and one to
three attacks: a rank killed, stopped, paused, slowed, or one whose message is lost; the run's
process, `dhelix launch` or mpirun killed. Each strikes while ranks start, in a step, in a
validation, while a checkpoint is written, or at the end. A run that ends early is started again
by the same command, as a person would.

Checked: the final weights, moments and losses are those of a run that is started by hand on the
meshes and at the steps the messages name, bit for bit. Nothing is lost beyond the checkpoint
interval. No process is left. No start takes longer than parallel.timeout_s and a margin. Messages
name the rank that failed. Nothing half-written stays.
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

STEPS, EVERY = 24, 4
PATIENCE_S = 6      # parallel.timeout_s
MARGIN_S = 90       # without a step or a message, in addition to three times PATIENCE_S
ORPHAN_S = 20       # until the last process of a start is gone
JOB = f"""
model: {{name: tiny, family: gpt2, n_layers: 2, n_heads: 2, width: 32, max_seq: 32}}
data: {{train: {os.getcwd()}/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}}
train: {{steps: {STEPS}, batch: 4, micro_batch: 1, seq_len: 32, threads: 1}}
optimizer: {{lr: 3.0e-3, warmup_steps: 5, decay_steps: {STEPS}}}
eval: {{every: {EVERY}, batches: 30}}
checkpoint: {{every: {EVERY}, keep: 0}}
elastic: {{action: continue}}
"""
MESHES = ["parallel.dp=4", "parallel.dp=2", "parallel.dp=2 parallel.tp=2", "parallel.tp=2",
          "parallel.tp=2 parallel.pp=2", "parallel.dp=2 parallel.pp=2 parallel.zero=1",
          "parallel.dp=4 parallel.zero=2", "parallel.dp=2 parallel.cp=2"]
PHASES = ["start", "step", "validation", "checkpoint", "end"]
EARLY = re.compile(  # how a start may end that the same command continues
    r"stopped after step|stopped; the same command|does not go on|was ended by signal|"
    r"all ranks have ended|no rank is left|ended with exit code|cannot finish|^$", re.M)


# ---- one schedule ----

class Schedule:
    def __init__(self, test, index):
        self.test, self.index = test, index
        self.draw = drawn(test.args.seed, index)
        self.apart = test.mpirun and (test.args.orphans or self.draw.random() < 0.6)
        self.mesh = self.draw.choice(MESHES)
        self.more = "checkpoint.async=true" if self.draw.random() < 0.4 else ""
        self.out = os.path.join(test.tmp, f"run-{index}")
        self.log = self.out + ".log"
        # A script that waits for mpirun passes no signal on.
        self.launcher = test.script if self.draw.random() < 0.3 else "mpirun"
        self.mark = f"DHELIX_SCHEDULE={os.getpid()}.{index}"
        self.faults, self.texts = [], []
        self.attacks = [self.draw_attack() for _ in range(self.draw.randint(1, 3))]

    def draw_attack(self):
        if self.test.args.orphans:
            return self.draw.choice(["launch KILL", "launch KILL", "mpirun KILL"]), "start", 0, self.draw.random()
        whole = ["launch KILL", "launch TERM", "mpirun KILL"] if self.apart else []
        rank = ["kill", "stop", "pause", "slow"] if self.apart else []
        inside = ["drop"] if self.apart else ["leave", "hang", "delay", "drop", "leave"]
        what = self.draw.choice(rank * 2 + inside + whole + ["run KILL", "run TERM"] * (not self.apart))
        phase = self.draw.choice(PHASES)
        return what, phase, self.draw.randrange(4), self.draw.random()

    def describe(self):
        how = "processes" if self.apart else "threads"
        how += " by a script" if self.apart and self.launcher != "mpirun" else ""
        did = ", ".join(f"{what} ({phase}, rank {rank})" for what, phase, rank, _ in self.attacks)
        return f"{self.index}: {how}, {self.mesh} {self.more}: {did}"

    def n_ranks(self):
        n = 1
        for pair in self.mesh.split():
            key, value = pair.split("=")
            n *= int(value) if key != "parallel.zero" else 1
        return n

    # -- what ranks do by themselves, by DHELIX_FAULT --

    def fault(self):
        """The first attacks that are faults inside a rank: each is of one start of the run."""
        words = []
        while self.attacks and self.attacks[0][0] in ("leave", "hang", "delay", "drop"):
            what, _, rank, at = self.attacks.pop(0)
            rank %= self.n_ranks()
            word = f"{what}:{rank}:{1 + int(at * 700)}"
            if what == "hang" and self.draw.random() < 0.5:
                word = f"{what}:{rank}:i{1 + int(at * 6000)}"
            if what == "delay":
                word += f":{self.draw.randint(50, 1500)}"
            words.append(word)
        return ",".join(words)

    # -- waiting for a moment --

    def metrics(self):
        try:
            with open(os.path.join(self.out, "metrics.jsonl")) as f:
                return f.read()
        except OSError:
            return ""

    def is_there(self, phase, at, begun):
        text = self.metrics()
        losses = re.findall(r'"step":(\d+),"loss"', text)
        last = int(losses[-1]) if losses else 0
        if phase == "step":
            return last >= 1 + int(at * (STEPS - 2))
        if phase == "validation":
            return last >= EVERY and last % EVERY == 0 and f'"step":{last},"val_loss"' not in text
        if phase == "checkpoint":
            folder = os.path.join(self.out, "checkpoints")
            return os.path.isdir(folder) and any(".tmp" in n for n in os.listdir(folder))
        if phase == "end":
            return last >= STEPS
        return time.monotonic() - begun > at * self.test.start_s

    def strike(self, attack, run):
        what, phase, rank, at = attack
        whom, _, signal_name = what.partition(" ")
        if whom == "launch" or whom == "run":
            return send(run.pid, getattr(signal, "SIG" + signal_name))
        ours = processes(self.mark)
        if whom == "mpirun":
            pids = [p for p in ours if os.path.basename(name_of(p)[0:1][0] if name_of(p) else "") == "mpirun"]
            return bool(pids) and send(pids[0], signal.SIGKILL)
        ranks = {int(e["OMPI_COMM_WORLD_RANK"]): p for p, e in ours.items() if "OMPI_COMM_WORLD_RANK" in e}
        if not ranks:
            return False
        number = sorted(ranks)[rank % len(ranks)]
        pid = ranks[number]
        if what == "kill":
            return send(pid, signal.SIGKILL)
        if what == "stop":
            self.stopped = number
            return send(pid, signal.SIGSTOP)
        for _ in range(1 if what == "pause" else 8):
            send(pid, signal.SIGSTOP)
            time.sleep(self.draw.uniform(0.02, 0.3))
            send(pid, signal.SIGCONT)
            time.sleep(0.01)
        return True

    # -- starts --

    def command(self):
        words = [self.test.args.dhelix, "launch" if self.apart else "train", self.test.job, "--quiet"]
        more = f"{self.mesh} {self.more} out={self.out} parallel.timeout_s={PATIENCE_S}"
        if self.apart:
            words += ["--launcher", self.launcher]
        return words + settings(more)

    def start(self):
        """One start and the attacks on it: exit code, text."""
        key, value = self.mark.split("=")
        env = environment(**{key: value})
        faults = self.fault()
        if faults:
            env["DHELIX_FAULT"] = faults
            self.faults.append(faults)
        self.stopped, struck, begun = None, [], time.monotonic()
        with open(self.log, "w") as log:
            run = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        before = self.metrics()
        known, moved = None, begun
        while run.poll() is None:
            inside = self.attacks and self.attacks[0][0] in ("leave", "hang", "delay", "drop")
            if self.attacks and not inside:
                what, phase, _, at = self.attacks[0]
                if (phase == "start" or self.metrics() != before) and self.is_there(phase, at, begun):
                    if self.strike(self.attacks[0], run):
                        struck.append(self.attacks[0])
                    self.attacks.pop(0)
                    begun_again = time.monotonic()
                    begun = begun_again if phase == "start" else begun
            state = (self.metrics(), os.path.getsize(self.log))
            if state != known:
                known, moved = state, time.monotonic()
            if time.monotonic() - moved > MARGIN_S + 3 * PATIENCE_S:
                self.blame("a start hangs")
                self.tell_where()
                break
            time.sleep(0.002 if self.attacks else 0.02)
        if run.poll() != -signal.SIGKILL and self.apart and processes(self.mark):
            self.blame("dhelix launch ended before its ranks")
        self.end_all()
        run.wait()
        with open(self.log, errors="replace") as log:
            text = log.read()
        self.texts.append(text)
        return run.returncode, text, struck

    def tell_where(self):
        """Where the ranks wait, if there is a debugger."""
        for pid in processes(self.mark) if shutil.which("gdb") else []:
            if "train" in name_of(pid) and "mpirun" not in name_of(pid)[0]:
                where = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"],
                                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
                print("\n".join(line[:150] for line in where.stdout.splitlines() if line[:1] == "#"), flush=True)

    def end_all(self):
        """Whatever is left of a start, and a complaint about it."""
        end = time.monotonic() + ORPHAN_S
        left = processes(self.mark)
        while left and time.monotonic() < end:
            time.sleep(0.05)
            left = processes(self.mark)
        if left:
            self.blame("processes left: " + "; ".join(f"{p} {' '.join(name_of(p)[:2])}" for p in left))
        for pid in left:
            send(pid, signal.SIGKILL)

    def blame(self, what):
        self.failures.append(what)

    # -- judgement --

    def judge_messages(self, code, text, struck):
        if self.stopped is not None and "goes on over" in text:
            if f"rank {self.stopped} (" not in text and "signal" not in text:
                self.blame(f"rank {self.stopped}, which was stopped, is not named")
        silent = "silent for too long" in text or " waited " in text  # as on a busy machine
        if code != 0 and not struck and not self.faults and not silent:
            self.blame(f"exit code {code} without an attack")
        killed = code < 0
        if code != 0 and not killed and not EARLY.search(text):
            self.blame(f"exit code {code} and no message that says how it goes on")
        if re.search(r"dhelix\(|exited on signal (4|6|7|8|11) ", text) or code in (-4, -6, -7, -8, -11):
            self.blame(f"it crashed (exit code {code})")

    def segments(self):
        """(mesh, from step), from what the messages of all starts say."""
        found = []
        for text in self.texts:
            mesh, begins = self.mesh, 0
            found.append((mesh, None))
            for line in text.splitlines():
                m = re.search(r"goes on over \d+ of \d+ ranks \(([^)]*)\).*, from (?:step (\d+)|its beginning)", line)
                if m:
                    changed = dict(p.split("=") for p in m[1].split())
                    kept = dict(p.split("=") for p in mesh.split())
                    kept.update(changed)
                    mesh = " ".join(f"{k}={v}" for k, v in kept.items())
                    found.append((mesh, int(m[2] or 0)))
                m = re.search(r"resuming from .*\(step (\d+)\)", line)
                if m:
                    found[-1] = (found[-1][0], int(m[1]))
        told = [(m, s or 0) for m, s in found]
        final = []
        for mesh, step in told:  # what a later start did anew does not count
            while final and final[-1][1] >= step:
                final.pop()
            final.append((mesh, step))
        return [s for s in final if s[1] < STEPS]

    def judge(self):
        segments = self.segments()
        hand = self.test.by_hand(segments)
        newest = f"checkpoints/step-{STEPS:06d}"
        for name in ("model.safetensors", "optimizer.safetensors"):
            a, b = (os.path.join(d, newest, name) for d in (self.out, hand))
            if not os.path.exists(a) or not filecmp.cmp(a, b, shallow=False):
                self.blame(f"{name} is not that of the run by hand: {segments}")
        if self.curve(self.out) != self.curve(hand):
            self.blame(f"losses are not those of the run by hand: {segments}")
        litter = [n for _, dirs, files in os.walk(self.out) for n in dirs + files if ".tmp-" in n]
        if litter:
            self.blame(f"half-written: {litter}")
        if os.path.exists(os.path.join(self.out, "lock")):
            self.blame("the folder's lock is left")

    @staticmethod
    def curve(folder):
        """Losses by step; a step of which a lost rank had a part may have none."""
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            text = f.read()
        losses = dict(re.findall(r'"step":(\d+),"loss":([^,]*)', text))
        return losses

    def run(self):
        self.failures = []
        what = self.describe()
        n_struck = 0
        for n in range(8):
            self.faults = []
            code, text, struck = self.start()
            n_struck += len(struck) + len(self.faults)
            self.judge_messages(code, text, struck)
            if code == 0 or self.failures:
                break
        else:
            self.blame("it does not come to its end in 8 starts")
        if not self.failures:
            self.judge()
        print(f"{'FAILED ' if self.failures else ''}{what}: {len(self.texts)} starts, {n_struck} struck, "
              f"from {[s for _, s in self.segments()]}", flush=True)
        for failure in self.failures:
            print(f"    {failure}", flush=True)
        if self.failures:
            for text in self.texts:  # with what a process said as it crashed
                lines = text.splitlines()
                crash = [i for i, line in enumerate(lines) if "received signal" in line]
                shown = lines[crash[0]:][:60] if crash else lines[-12:]
                print("".join(f"    | {line[:300]}\n" for line in shown), flush=True)
        elif not self.test.args.keep:
            shutil.rmtree(self.out, ignore_errors=True)
        return not self.failures


# ---- all of them ----

class Test:
    def __init__(self, args, tmp, batch=4):
        self.args, self.tmp = args, tmp
        self.mpirun = None if args.threads else shutil.which("mpirun")
        self.job = os.path.join(tmp, "job.yaml")
        with open(self.job, "w") as f:
            f.write(JOB.replace("batch: 4,", f"batch: {batch},"))
        self.script = os.path.join(tmp, "launcher")
        with open(self.script, "w") as f:
            f.write('#!/bin/sh\nmpirun "$@"\nexit $?\n')
        os.chmod(self.script, 0o755)
        self.made = {}
        self.start_s = self.time_start() if self.mpirun else 0.2

    def time_start(self):
        """Until processes make their first step, on this machine as it is now."""
        begun, out = time.monotonic(), os.path.join(self.tmp, "first")
        words = settings(f"parallel.dp=2 out={out} train.steps=1 eval.every=0")
        subprocess.run([self.args.dhelix, "launch", self.job, "--quiet"] + words, check=True,
                       stdin=subprocess.DEVNULL, env=environment(DHELIX_LOG="error"), timeout=MARGIN_S)
        return time.monotonic() - begun

    def by_hand(self, segments):
        """The folder of a run over these meshes from these steps; each part is made once."""
        folder = None
        for i, (mesh, step) in enumerate(segments):
            until = segments[i + 1][1] if i + 1 < len(segments) else STEPS
            key = (tuple(segments[:i + 1]), until)
            if until <= step:
                continue
            if key not in self.made:
                out = os.path.join(self.tmp, f"hand-{len(self.made)}")
                if folder:
                    shutil.copytree(folder, out)
                subprocess.run([self.args.dhelix, "train", self.job, "--quiet"] +
                               settings(f"{mesh} out={out} train.steps={until}"),
                               check=True, stdin=subprocess.DEVNULL, env=environment(DHELIX_LOG="error"),
                               timeout=MARGIN_S)
                self.made[key] = out
            folder = self.made[key]
        return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dhelix")
    parser.add_argument("--schedules", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--threads", action="store_true", help="no processes, although mpirun is there")
    parser.add_argument("--orphans", action="store_true", help="only launchers that are killed while ranks start")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    clean_up_when_stopped()
    args.seed = draw_seed("elastic", args.seed, 5)
    args.dhelix = os.path.abspath(args.dhelix)
    tmp = tempfile.mkdtemp(prefix="dhelix-elastic-")
    test = Test(args, tmp)
    which = [args.only] if args.only is not None else range(args.first, args.first + args.schedules)
    if not test.mpirun:
        print("elastic: ranks are threads alone", flush=True)
    try:
        failed = [i for i in which if not Schedule(test, i).run()]
    finally:
        if not args.keep:
            shutil.rmtree(tmp, ignore_errors=True)
    print(f"{len(which)} schedules, {len(failed)} failed: {failed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
