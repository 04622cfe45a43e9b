#!/usr/bin/env python3
"""Fill in the tables of docs/results-simulated.md from `dhelix simulate --json`.

    scripts/simulated.py [DHELIX]     build/release/src/cli/dhelix; a minute

What stands between `<!-- NAME -->` and `<!-- end -->` is written anew: what a setting gains, and the commands
of those jobs. The text around it is not touched.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/results-simulated.md"
LLAMA, MIXTRAL = "examples/llama3_70b.yaml", "examples/mixtral_ep2.yaml"
ON_ONE_RANK = "parallel.tp=1 parallel.pp=1 parallel.dp=64 strategy=sequential"
# letter, job file, cluster, settings; then rows: text, settings that differ, what stands in the last column
JOBS = [
    ("A", LLAMA, "h100", "parallel.tp=4 parallel.cp=4 parallel.pp=4 parallel.dp=1 train.batch=16 "
     "parallel.schedule=interleaved-1f1b parallel.virtual_stages=5",
     [("transfers between stages on streams of their own", "", ""),
      ("sharing a stream with context parallelism", "system=dhelix+ordered-transfers", "")]),
    ("B", MIXTRAL, "a100", "strategy=sequential model=mixtral-8x7b parallel.tp=4 parallel.pp=4 parallel.dp=4 "
     "train.batch=256 train.micro_batch=1 train.seq_len=4096 train.dtype=bf16",
     [("whole experts on tensor-parallel ranks, which send their share of rows", "parallel.expert_tp=1", "traffic"),
      ("each expert in columns over tp ranks", "", "traffic")]),
    ("C", LLAMA, "h100", f"model=llama3-8b {ON_ONE_RANK} train.batch=64 train.seq_len=4096 train.recompute=none",
     [("ZeRO-1", "", ""),
      ("ZeRO-1, `parallel.gather: forward`", "parallel.gather=forward", ""),
      ("ZeRO-2", "parallel.zero=2", ""),
      ("ZeRO-2, `parallel.gather: forward`", "parallel.zero=2 parallel.gather=forward", ""),
      ("ZeRO-3, one block ahead, resharded after the forward", "parallel.zero=3", "memory"),
      ("the same, resharded onto the node", "parallel.zero=3 parallel.reshard_after_forward=node", "memory"),
      ("the same, kept", "parallel.zero=3 parallel.reshard_after_forward=false", "memory")]),
    ("D", LLAMA, "h100", f"{ON_ONE_RANK} train.batch=512 train.seq_len=1024 train.recompute=full parallel.zero=3",
     [("`looped-bfs` over 80 virtual stages, `regather: stage`",
       "parallel.schedule=looped-bfs parallel.virtual_stages=80 parallel.regather=stage", "memory"),
      ("`1f1b`", "", "memory")]),
    ("E", LLAMA, "h100", "parallel.dp=16 train.batch=128 train.seq_len=4096 "
     "parallel.schedule=interleaved-1f1b parallel.virtual_stages=5",
     [("parameters gathered after the optimizer", "", ""),
      ("gathered during the next step's forwards", "parallel.gather=forward", "")]),
    ("F", LLAMA, "h100", "parallel.zero=0 parallel.dp=1 train.batch=16",
     [("`zb-v`, with the barrier", "parallel.schedule=zb-v", ""),
      ("`zb-v`, post-validation", "parallel.schedule=zb-v optimizer.post_validation=true", ""),
      ("`1f1b`, with the barrier", "", ""),
      ("`1f1b`, post-validation", "optimizer.post_validation=true", "")]),
    ("G", LLAMA, "h100", f"model=llama3-8b {ON_ONE_RANK} train.batch=256 train.seq_len=4096 train.recompute=none",
     [("ZeRO-2", "parallel.zero=2", "memory"),
      ("ZeRO-2, `gradient_sync: every`", "parallel.zero=2 parallel.gradient_sync=every", "memory"),
      ("ZeRO-3", "parallel.zero=3", "memory"),
      ("ZeRO-3, `gradient_sync: every`", "parallel.zero=3 parallel.gradient_sync=every", "memory")]),
    ("H", LLAMA, "h100", "parallel.dp=16 train.batch=128 train.seq_len=4096",
     [("1F1B", "", ""),
      ("interleaved over 5 virtual stages", "parallel.schedule=interleaved-1f1b parallel.virtual_stages=5", "")]),
]


def words_of(job, more):
    settings = [word for text in (job[3], more) for word in text.split()]
    return ["simulate", job[1], "--cluster", job[2], *(word for s in settings for word in ("--set", s))]


def simulated(dhelix, words):
    done = subprocess.run([dhelix, *words, "--json"], check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"simulated: dhelix {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def time_of(ms):
    return f"{ms / 1000:.3g} s" if ms >= 10000 else f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def gains(dhelix):
    lines = ["| job | variant | step | memory or traffic |", "|---|---|---|---|"]
    for job in JOBS:
        for i, (text, more, shown) in enumerate(job[4]):
            row = simulated(dhelix, words_of(job, more))["strategies"][0]
            last = ""
            if shown == "memory":
                last = f"{row['peak_bytes'] / 2**30:.1f} GiB"
            if shown == "traffic":
                last = f"{row['traffic']['layers']['bytes'] / 2**30:.0f} GiB of layers' traffic"
            lines.append(f"| {'' if i else job[0]} | {text} | {time_of(row['step_ms'])} | {last} |".replace("|  |", "| |"))
    return "\n".join(lines)


def wrapped(words):
    lines, line = [], "dhelix"
    for word in words:
        if len(line) + len(word) > 110 and word != words[-1] and line.split()[-1] != "--set":
            lines.append(line + " \\")
            line = " "
        line += " " + word
    return "\n".join([*lines, line])


def commands(_):
    blocks = [f"# {job[0]}: {text}\n{wrapped(words_of(job, more))}" for job in JOBS for text, more, _ in job[4][-1:]]
    return "```\n" + "\n\n".join(blocks) + "\n```"


def main():
    dhelix = str(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/src/cli/dhelix").resolve())
    page = PAGE.read_text(encoding="utf-8")
    for name, make in (("gains", gains), ("commands", commands)):
        part = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.S)
        if not part.search(page):
            sys.exit(f"simulated: {PAGE} has no part <!-- {name} -->")
        text = make(dhelix)
        page = part.sub(lambda found, text=text: found[1] + text + found[2], page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
