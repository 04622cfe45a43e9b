#!/usr/bin/env python3
"""What a checkpoint costs training: GPT-2 124M, saved between steps and beside them.

Three runs take turns: without checkpoints, with ones written between steps, and with ones
written while training goes on (checkpoint.async). Prints for each the median step that nothing is
written beside, what a checkpoint stops the run for (the run's own clock: from the last step's end
to the next one's begin, and where an update waits for the copy), the share of a step that is, and
how much longer the steps beside copy and writer are, all together for a checkpoint. Other load
comes and goes on a machine: the least of all rounds is shown too.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from train_step import JOB, write_tokens  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dhelix", default=ROOT / "build/release/src/cli/dhelix")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--every", type=int, default=6, help="steps between checkpoints")
    p.add_argument("--steps", type=int, default=24, help="a multiple of --every: the last one waits for none")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=256, help="tokens of a sequence")
    p.add_argument("--dtype", default="f32")
    p.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of all ranks together")
    p.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="data-parallel ones")
    p.add_argument("--modes", nargs="+", default=["none", "between", "beside"])
    p.add_argument("--out", type=Path, default=ROOT / "runs/bench-saving", help="its disk is written to")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting for dhelix")
    return p.parse_args()


def run(a, ranks, mode, tokens):
    out = a.out / "run"
    shutil.rmtree(out, ignore_errors=True)
    every = 0 if mode == "none" else a.every
    settings = [f"data.train={tokens}", f"out={out}", f"train.steps={a.steps}", f"train.dtype={a.dtype}",
                f"train.threads={max(a.threads // ranks, 1)}", f"train.batch={a.batch}",
                f"train.micro_batch={a.batch // ranks}", f"train.seq_len={a.seq}", f"ranks={ranks}",
                f"checkpoint.every={every}", "checkpoint.keep=1",
                f"checkpoint.async={'true' if mode == 'beside' else 'false'}", *a.set]
    command = [str(a.dhelix), "train", str(JOB), "--quiet"]
    for s in settings:
        command += ["--set", s]
    env = {**os.environ, "DHELIX_LOG": "error", "DHELIX_GEMM_PEAK": "1e11"}
    subprocess.run(command, check=True, env=env)
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return {x["step"]: x["step_ms"] for x in lines}, summary.get("checkpoint_stall_ms")


def quiet(a, step):
    """A step with no checkpoint under way: the last before each, and none of the first."""
    return step > 3 and step % a.every in (0, a.every - 1)


def report(a, mode, runs):
    steps = statistics.median([ms for times, _ in runs for step, ms in times.items() if quiet(a, step)])
    stalls = [stall for _, stall in runs if stall is not None]
    if not stalls:
        print(f"{mode:12} {steps:8.0f}")
        return
    extra = []  # of checkpoints that a whole interval follows
    for times, _ in runs:
        for first in range(a.every + 1, a.steps + 1 - a.every, a.every):
            extra.append(sum(times[step] - steps for step in range(first, first + a.every - 2)))
    stall = statistics.median(stalls)
    beside = f"{statistics.median(extra):+13.0f}" if extra else f"{'-':>13}"
    print(f"{mode:12} {steps:8.0f} {stall:8.0f} {min(stalls):8.0f} {stall / steps:10.1%} {beside}")


def main():
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dhelix-bench-") as folder:
        tokens = Path(folder) / "tokens.bin"
        write_tokens(tokens, (a.batch * (a.seq + 1)) * (a.steps + 1))
        for ranks in a.ranks:
            rows = {mode: [] for mode in a.modes}
            for turn in range(a.rounds):
                for mode in a.modes:
                    rows[mode].append(run(a, ranks, mode, tokens))
                    step = statistics.median(rows[mode][-1][0].values())
                    print(f"round {turn + 1}, {ranks} ranks, {mode}: steps of {step:.0f} ms", file=sys.stderr)
            print(f"{ranks} rank{'s' if ranks > 1 else ''}, {a.batch} sequences of {a.seq} tokens, {a.dtype}, "
                  f"{a.threads} threads, a checkpoint every {a.every} steps; ms")
            print(f"{'checkpoints':12} {'step':>8} {'stall':>8} {'least':>8} {'of a step':>10} {'steps beside':>13}")
            for mode in a.modes:
                report(a, mode, rows[mode])
            sys.stdout.flush()
    shutil.rmtree(a.out, ignore_errors=True)


if __name__ == "__main__":
    main()
