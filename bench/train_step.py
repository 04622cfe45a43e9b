#!/usr/bin/env python3
"""Milliseconds of a training step: dhelix beside PyTorch, alternating in one run.

Other load comes and goes on a machine: only programs measured in turns, within one
run, can be compared. Each round runs every program once for every dtype and number
of threads; the first steps of each are left out. Prints a table (least and median
time, interquartile range, tokens/s, peak memory, and the median over the first
program's) and writes every timed step to a CSV file with a line on the machine.

PyTorch has two answers to dhelix's bf16 (bfloat16 arithmetic, float32 master
weights): `autocast` does the same, `bf16` keeps no float32 weights at all.
"""
import argparse
import csv
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "bench/jobs/gpt2_124m_step.yaml"
PEER = ROOT / "bench/peers/torch_step.py"
BATCH, SEQ_LEN, VOCAB = 4, 256, 50257  # as in JOB
PEER_DTYPES = {"f32": ["f32"], "bf16": ["autocast", "bf16"]}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", nargs="+", choices=list(PEER_DTYPES), default=list(PEER_DTYPES))
    p.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=5, help="timed steps of a program in a round")
    p.add_argument("--warmup", type=int, default=3, help="steps before them")
    p.add_argument(
        "--ours",
        action="append",
        metavar="NAME=PATH",
        help="a dhelix binary; repeat it to compare builds (default: dhelix=build/release/src/cli/dhelix)",
    )
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting for dhelix")
    p.add_argument("--no-peer", action="store_true", help="only dhelix")
    p.add_argument("--csv", type=Path, default=ROOT / "build/bench/train_step.csv")
    return p.parse_args()


def write_tokens(path, n_tokens):
    """An llm.c token file of reproducible, evenly drawn GPT-2 ids."""
    state, ids = 1337, []
    for _ in range(n_tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % VOCAB)
    header = [20240520, 1, n_tokens] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{n_tokens}H", *ids))


def run(command):
    """Run to the end; stdout and peak resident MB of the child."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"train_step.py: exit {child.returncode}: {' '.join(map(str, command))}")
    return output, usage.ru_maxrss / 1024


def measure_ours(binary, tokens, dtype, threads, a):
    """Timed step_ms of one run, from its metrics.jsonl, and its peak memory."""
    out = Path(tempfile.mkdtemp(prefix="dhelix-bench-"))
    try:
        settings = [
            f"data.train={tokens}",
            f"out={out / 'run'}",
            f"train.steps={a.warmup + a.steps}",
            f"train.dtype={dtype}",
            f"train.threads={threads}",
            *a.set,
        ]
        flags = [x for s in settings for x in ("--set", s)]
        _, peak_mb = run([binary, "train", JOB, "--quiet", *flags])
        lines = (out / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [row for row in map(json.loads, lines) if "step_ms" in row]
        summary = json.loads((out / "run/summary.json").read_text(encoding="utf-8"))
        summary["model_flops_per_step"] = steps[-1]["model_flops_per_s"] * steps[-1]["step_ms"] / 1e3
        return [row["step_ms"] for row in steps][a.warmup :], peak_mb, summary
    finally:
        shutil.rmtree(out, ignore_errors=True)


def measure_peer(dtype, threads, a):
    command = ["/usr/bin/python3", PEER, "--dtype", dtype, "--threads", str(threads)]
    command += ["--steps", str(a.steps), "--warmup", str(a.warmup)]
    command += ["--batch", str(BATCH), "--seq-len", str(SEQ_LEN)]
    row = json.loads(run(command)[0])
    return row["step_ms"], row["peak_rss_mb"], None


def programs(a, tokens):
    """(name, dtype of the table, measure(threads)) of everything that takes turns."""
    ours = dict(o.split("=", 1) for o in a.ours or [f"dhelix={ROOT / 'build/release/src/cli/dhelix'}"])
    for dtype in a.dtype:
        for name, binary in ours.items():
            yield f"{name} {dtype}", dtype, lambda t, b=binary, d=dtype: measure_ours(b, tokens, d, t, a)
        if not a.no_peer:
            for peer_dtype in PEER_DTYPES[dtype]:
                yield f"PyTorch {peer_dtype}", dtype, lambda t, d=peer_dtype: measure_peer(d, t, a)


def machine():
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the start, commit {commit or 'unknown'}"


def print_table(results):
    first = {}  # (dtype, threads) -> median of the program named first
    print(f"{'program':<22}{'threads':>8}{'min ms':>10}{'median ms':>11}{'IQR ms':>9}{'tokens/s':>10}{'peak MB':>9}{'x first':>9}")
    for (name, dtype, threads), (step_ms, peak_mb) in results.items():
        median = statistics.median(step_ms)
        first.setdefault((dtype, threads), median)
        quartiles = statistics.quantiles(step_ms, n=4) if len(step_ms) > 1 else [median, median, median]
        print(
            f"{name:<22}{threads:>8}{min(step_ms):>10.1f}{median:>11.1f}{quartiles[2] - quartiles[0]:>9.1f}"
            f"{BATCH * SEQ_LEN / median * 1e3:>10.1f}{peak_mb:>9.0f}{median / first[dtype, threads]:>9.2f}"
        )


GEMMS = ("linear", "linear_dgrad", "linear_wgrad")


def print_shares(results, summaries):
    """Where dhelix's step goes, and its rate against a bare GEMM's in the same process."""
    for key, summary in summaries.items():
        name, _, threads = key
        shares = summary["operator_share"]
        median_s = statistics.median(results[key][0]) / 1e3
        gemm = sum(shares.get(op, 0) for op in GEMMS)
        peak = summary.get("gemm_peak_flops_per_s", 0)
        rate = summary["model_flops_per_step"] / median_s
        print(f"\n{name}, {threads} threads: {100 * gemm:.1f} % of the step in GEMMs", end="")
        if peak:
            print(
                f"; {rate / 1e9:.0f} model GFLOP/s = {100 * rate / peak:.1f} % of the measured GEMM peak of "
                f"{peak / 1e9:.0f}, {100 * rate / gemm / peak:.1f} % inside the GEMMs",
                end="",
            )
        print("\n  " + ", ".join(f"{op} {100 * x:.1f} %" for op, x in sorted(shares.items(), key=lambda i: -i[1]) if x >= 0.001))


def main():
    a = arguments()
    about = machine()
    print(f"# {about}\n# GPT-2 124M, {BATCH} x {SEQ_LEN} tokens a step, {a.rounds} rounds of {a.steps} timed steps", flush=True)
    results, summaries = {}, {}
    a.csv.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dhelix-bench-") as folder, a.csv.open("w", newline="", encoding="utf-8") as file:
        tokens = Path(folder) / "random.bin"
        write_tokens(tokens, (a.warmup + a.steps + 1) * BATCH * SEQ_LEN + 1)
        file.write(f"# {about}\n")
        rows = csv.writer(file)
        rows.writerow(["round", "program", "threads", "step", "step_ms", "peak_rss_mb"])
        for turn in range(a.rounds):
            for threads in dict.fromkeys(a.threads):
                for name, dtype, measure in programs(a, tokens):
                    step_ms, peak_mb, summary = measure(threads)
                    if summary:
                        summaries[name, dtype, threads] = summary
                    for i, ms in enumerate(step_ms):
                        rows.writerow([turn, name, threads, i, f"{ms:.3f}", f"{peak_mb:.1f}"])
                    file.flush()
                    print(f"# round {turn + 1}: {name}, {threads} threads: {statistics.median(step_ms):.0f} ms", file=sys.stderr)
                    known_ms, known_mb = results.get((name, dtype, threads), ([], 0))
                    results[name, dtype, threads] = (known_ms + step_ms, max(known_mb, peak_mb))
    print_table(results)
    print_shares(results, summaries)
    print(f"every step: {a.csv}")


if __name__ == "__main__":
    main()
