#!/usr/bin/env python3
"""One training step of a GPT-2 in PyTorch: the peer of `dhelix train`.

Forward, backward and AdamW on random tokens, GPT-2 124M by default. Prints one
JSON object per (dtype, threads): milliseconds of the timed steps, tokens/s and
peak memory. Each runs in a process of its own, so that peak memory is its own
and no pool of threads outlives its number.

dtypes  f32       everything in float32
        autocast  float32 weights, bfloat16 where torch.autocast chooses it
        bf16      weights, gradients and AdamW state in bfloat16 (no float32 master
                  weights: less work and less memory than dhelix does for bf16)

Needs Debian's python3-torch and a tuned BLAS (scripts/install_deps.sh --peers):
with the reference BLAS that Debian installs beside it, float32 is 50 times slower.
"""
import argparse
import glob
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time

# glibc gives large blocks back to the kernel after each step and faults them in
# again in the next: 15-40 % of PyTorch's step. The peer is measured without that.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "17179869184",
    "MALLOC_TRIM_THRESHOLD_": "34359738368",
    "MALLOC_TOP_PAD_": "268435456",
}
# The OpenBLAS that shares PyTorch's OpenMP threads: with the one that brings its own,
# the two sets of threads fight for the cores and float32 takes 1.4 times as long.
BLAS_FOLDERS = glob.glob("/usr/lib/*/openblas-openmp")
DTYPES = ("f32", "autocast", "bf16")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    p.add_argument("--steps", type=int, default=5, help="timed steps")
    p.add_argument("--warmup", type=int, default=2, help="steps before them")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--width", type=int, default=768)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--max-seq", type=int, default=1024)
    p.add_argument("--foreach", action="store_true", help="AdamW over lists of tensors")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def build_model(a):
    """GPT-2 as Hugging Face defines it, without dropout; the head is tied."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(a.width), nn.LayerNorm(a.width)
            self.qkv = nn.Linear(a.width, 3 * a.width)
            self.proj = nn.Linear(a.width, a.width)
            self.fc = nn.Linear(a.width, 4 * a.width)
            self.fc_proj = nn.Linear(4 * a.width, a.width)

        def attention(self, x, mask):
            batch, length, width = x.shape
            q, k, v = (
                t.view(batch, length, a.heads, width // a.heads).transpose(1, 2)
                for t in self.qkv(x).split(width, dim=2)
            )
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width // a.heads))
            weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
            return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))

        def forward(self, x, mask):
            x = x + self.attention(self.ln_1(x), mask)
            return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(a.vocab, a.width)
            self.wpe = nn.Embedding(a.max_seq, a.width)
            self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
            self.ln_f = nn.LayerNorm(a.width)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)
            mask = torch.ones(a.seq_len, a.seq_len, dtype=torch.bool).triu(1)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x, self.mask)
            logits = self.ln_f(x) @ self.wte.weight.t()
            return F.cross_entropy(logits.view(-1, a.vocab).float(), targets.view(-1))

    return GPT2()


def blas_in_use():
    """File name of the BLAS this process has loaded; the reference one is refused."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {os.path.realpath(line.split()[-1]) for line in maps if "/" in line}
    tuned = sorted(f for f in files if any(name in f for name in ("openblas", "libmkl", "libblis")))
    if not tuned:
        sys.exit("torch_step.py: PyTorch runs on the reference BLAS; install libopenblas0-openmp")
    return tuned[0]


def run_child(a):
    """Measure one dtype with one number of threads; print its JSON line."""
    import torch

    dtype, threads = a.dtype[0], a.threads[0]
    torch.set_num_threads(threads)
    torch.manual_seed(1337)
    model = build_model(a)
    if dtype == "bf16":
        model = model.bfloat16()
    options = {"foreach": True} if a.foreach else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **options)

    step_ms, losses = [], []
    for _ in range(a.warmup + a.steps):
        tokens = torch.randint(a.vocab, (a.batch, a.seq_len + 1))
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast"):
            loss = model(tokens[:, :-1], tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step_ms.append((time.perf_counter() - begin) * 1e3)

    timed = step_ms[a.warmup :]
    median = statistics.median(timed)
    print(
        json.dumps(
            {
                "program": f"PyTorch {torch.__version__}",
                "blas": blas_in_use(),
                "dtype": dtype,
                "threads": threads,
                "batch": a.batch,
                "seq_len": a.seq_len,
                "steps": a.steps,
                "step_ms": [round(t, 2) for t in timed],
                "min_ms": round(min(timed), 2),
                "median_ms": round(median, 2),
                "tokens_per_s": round(a.batch * a.seq_len / median * 1e3, 1),
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
                "first_loss": round(losses[0], 4),
            }
        ),
        flush=True,
    )


def run_all(a):
    """A fresh process for each combination, with the malloc settings above."""
    passed_on = ["--steps", "--warmup", "--batch", "--seq-len", "--layers", "--width", "--heads", "--vocab", "--max-seq"]
    common = [x for name in passed_on for x in (name, str(getattr(a, name[2:].replace("-", "_"))))]
    if a.foreach:
        common.append("--foreach")
    status = 0
    for dtype in a.dtype:
        for threads in a.threads:
            env = dict(os.environ, OMP_NUM_THREADS=str(threads), LD_LIBRARY_PATH=":".join(BLAS_FOLDERS), **MALLOC)
            child = [sys.executable, __file__, "--child", "--dtype", dtype, "--threads", str(threads)]
            status |= subprocess.run(child + common, env=env, check=False).returncode
    return 1 if status else 0


if __name__ == "__main__":
    args = arguments()
    sys.exit(run_child(args) if args.child else run_all(args))
