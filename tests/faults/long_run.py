"""A long run, and whether what it takes stays the same.

    long_run.py DHELIX [--steps N] [--ranks N]

A tiny job with checkpoints (written while it trains), validations and TensorBoard's events, drawn
meanwhile by `dhelix report --serve`, whose page is asked for again and again. Sampled: resident
memory, descriptors and threads of both. Checked: none of them grows after the first quarter, by more
than what an allocator's noise is; the run ends with all its steps; and its report takes seconds.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from started import clean_up_when_stopped, environment, settings

JOB = f"""
model: {{name: tiny, family: gpt2, n_layers: 1, n_heads: 2, width: 16, max_seq: 16}}
data: {{train: {os.getcwd()}/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}}
train: {{batch: 4, seq_len: 16, threads: 1}}
optimizer: {{lr: 3.0e-3, warmup_steps: 5}}
eval: {{every: 100, batches: 2}}
checkpoint: {{every: 100, keep: 3, async: true}}
metrics: {{tensorboard: true}}
"""
TRAIN_KIB, SERVE_KIB = 2048, 8192  # of growth: an allocator's noise; a page and its lines are held
FILES = 4                          # open for a moment, as a checkpoint's are; a leak leaves one at each of hundreds
REPORT_S = 30                      # on a busy machine; about one second alone for 50,000 steps


def sample(pid):
    """KiB resident, descriptors, threads; None: it has ended."""
    try:
        with open(f"/proc/{pid}/status") as f:
            status = dict(line.split(":", 1) for line in f if ":" in line)
        return (int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]))
    except (OSError, KeyError):
        return None


def page(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return len(answer.read())
    except OSError:
        return 0


def serve(args, out, env, log):
    """Once there is something to draw: the process and its address."""
    while not os.path.exists(f"{out}/metrics.jsonl"):
        time.sleep(0.05)
    process = subprocess.Popen([args.dhelix, "report", out, "--serve"], stdin=subprocess.DEVNULL,
                               stdout=open(log, "w"), stderr=subprocess.STDOUT, env=env)
    for _ in range(600):
        with open(log) as f:
            found = re.search(r"http://\S+", f.read())
        if found or process.poll() is not None:
            return process, found and found[0]
        time.sleep(0.05)
    return process, None


def grows(name, samples, kib):
    """Highest of the last quarter against that of the second."""
    n = len(samples)
    faults = []
    early, late = samples[n // 4:n // 2], samples[3 * n // 4:]
    for i, (what, limit) in enumerate((("KiB of memory", kib), ("descriptors", FILES), ("threads", FILES))):
        before, after = max(s[i] for s in early), max(s[i] for s in late)
        print(f"{name}: {before} {what} in the second quarter, {after} in the last")
        if after > before + limit:
            faults.append(f"{name} grows from {before} to {after} {what}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dhelix")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    clean_up_when_stopped()
    args.dhelix = os.path.abspath(args.dhelix)
    with tempfile.TemporaryDirectory(prefix="dhelix-long-") as tmp:
        faults = run(args, tmp)
    for fault in faults:
        print(f"FAILED {fault}")
    sys.exit(1 if faults else 0)


def run(args, tmp):
    out, job, env = f"{tmp}/run", f"{tmp}/job.yaml", environment(DHELIX_LOG="error")
    with open(job, "w") as f:
        f.write(JOB)
    words = [args.dhelix, "train", job, "--quiet"]
    words += settings(f"out={out} train.steps={args.steps} parallel.dp={args.ranks}")
    begun = time.monotonic()
    train = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=env)
    server, url = serve(args, out, env, f"{tmp}/serve.log")
    trained, served, n_pages, asked = [], [], 0, 0
    period = 0.02 if args.steps < 10000 else 0.2
    while train.poll() is None:
        for samples, process in ((trained, train), (served, server)):
            taken = sample(process.pid)
            if taken:
                samples.append(taken)
        if url and time.monotonic() - asked > max(0.5, 10 * period):
            n_pages += page(url) > 0
            asked = time.monotonic()
        time.sleep(period)
    took = time.monotonic() - begun
    faults = [] if train.returncode == 0 else [f"exit code {train.returncode}"]
    print(f"{args.steps} steps in {took:.0f} s, {n_pages} pages, {len(trained)} samples")
    faults += grows("train", trained, TRAIN_KIB) + grows("report --serve", served, SERVE_KIB)
    if n_pages == 0:
        faults.append("no page was served")
    server.terminate()
    server.wait()
    with open(f"{out}/metrics.jsonl") as f:
        n = sum('"loss"' in line for line in f)
    if n != args.steps:
        faults.append(f"{n} of {args.steps} steps in metrics.jsonl")
    begun = time.monotonic()
    code = subprocess.run([args.dhelix, "report", out, "-o", f"{tmp}/page.html"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, env=env, timeout=600).returncode
    took = time.monotonic() - begun
    print(f"report of {args.steps} steps: {took:.1f} s, {os.path.getsize(f'{tmp}/page.html') if code == 0 else 0} bytes")
    if code != 0 or took > REPORT_S:
        faults.append(f"report: exit code {code} after {took:.1f} s")
    return faults


main()
