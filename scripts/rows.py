#!/usr/bin/env python3
"""Write docs/rows.md: where each strategy wins and loses against its neighbours, simulated.

    scripts/rows.py [DHELIX] [OUT.md]     build/release/src/cli/dhelix, docs/rows.md; minutes

Every figure is of `dhelix simulate JOB --cluster NAME --strategies all --json`, on the job below, which
nobody needs data for. Neighbours of a row are the first row and those that run as many strands as it does:
rows with a schedule of their own co-execute two, the others one (`dhelix list strategies`). What no device
runs is compared, and nothing is compared with it.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = [("a100", "A100"), ("h100", "H100")]
# title, settings; all on nodes of eight devices
JOBS = [
    ("Llama 3 8B on 2 nodes: tp 8, dp 2, ZeRO-1",
     "model=llama3-8b train.batch=32 train.seq_len=8192 parallel.tp=8 parallel.dp=2 parallel.zero=1"),
    ("Llama 3 8B on 2 nodes: tp 16, over both, with 16 key/value heads",
     "model=llama3-8b train.batch=16 train.seq_len=8192 parallel.tp=16 model.n_kv_heads=16"),
    ("Llama 3 70B on 8 nodes: tp 8, pp 4, dp 2, ZeRO-1",
     "model=llama3-70b train.batch=64 train.seq_len=8192 parallel.tp=8 parallel.pp=4 parallel.dp=2 "
     "parallel.zero=1 train.recompute=selective"),
    ("Mixtral 8x7B on 8 nodes: tp 2, pp 2, dp 16, ep 8 over 2 nodes, experts with a capacity, ZeRO-1",
     "model=mixtral-8x7b train.batch=256 train.seq_len=4096 parallel.tp=2 parallel.pp=2 parallel.dp=16 "
     "parallel.ep=8 parallel.zero=1 train.recompute=selective moe.mode=capacity moe.capacity=1.25"),
]
JOB = "data: {train: none}\ntrain: {micro_batch: 1, dtype: bf16}\nprofile: none\n"
CLOSE = 0.005  # of a step: as fast


def run(dhelix, *words):
    done = subprocess.run([dhelix, *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rows: dhelix {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def simulate(dhelix, job, cluster, settings):
    words = ["simulate", str(job), "--cluster", cluster, "--strategies", "all", "--json", "--quiet"]
    for setting in settings.split():
        words += ["--set", setting]
    return run(dhelix, *words)


def neighbours_of(row, rows):
    """Names of the rows that it is compared with."""
    first, *_ = rows

    def strands(one):
        return 1 if one["schedule"] == "-" else 2

    return [other["name"] for other in rows if other is not row and not other["doc"].startswith("simulated only")
            and (other is first or strands(other) == strands(row))]


def put_table(out, found):
    """Rows of one job on one cluster, the shortest step first."""
    rows = sorted((r for r in found["strategies"] if "step_ms" in r), key=lambda r: r["step_ms"])
    base = next(r for r in rows if r["strategy"] == "sequential")
    out.append("| strategy | step, ms | over sequential | hidden | memory, GiB |")
    out.append("|---|---|---|---|---|")
    for r in rows:
        fits = "" if r.get("fits", True) else ", too much"
        out.append(f"| {r['strategy']} | {r['step_ms']:,.0f} | {base['step_ms'] / r['step_ms']:.2f} | "
                   f"{r['hidden_share']:.0%} | {r['peak_bytes'] / 2**30:.1f}{fits} |")
    out.append("")
    for r in found["strategies"]:
        if "step_ms" not in r:
            why = next((r[key] for key in ("error", "why", "message") if key in r), "refused")
            out.append(f"- `{r['strategy']}`: {why}")
    if out[-1]:
        out.append("")


def put_row(out, row, near, results):
    """Where a row wins and where it loses."""
    wins, even, losses = [], 0, []
    for (title, cluster), steps in results.items():
        own = steps.get(row["name"])
        others = {name: steps[name] for name in near if name in steps}
        if own is None or not others:
            continue
        best = min(others, key=others.get)
        change = others[best] / own - 1
        where = f"{title.split(':')[0]}, {title.split(': ')[1].split(',')[0]}, {cluster}"
        if change > CLOSE:
            wins.append(f"{where} ({change:+.1%} over {best})")
        elif change < -CLOSE:
            losses.append(f"{where} ({change:+.1%}, {best})")
        else:
            even += 1
    out.append(f"**{row['name']}**")
    out.append(f"Wins: {'; '.join(wins) or 'nowhere'}.")
    out.append(f"Loses: {'; '.join(losses) or 'nowhere'}." + (f" As fast as the best in {even}." if even else ""))
    out.append("")


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/src/cli/dhelix")
    page = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/rows.md"
    rows = run(dhelix, "list", "strategies", "--json")
    results, tables = {}, []
    with tempfile.TemporaryDirectory(prefix="dhelix-rows-") as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB, encoding="utf-8")
        for title, settings in JOBS:
            tables.append(f"### {title}\n\n`{settings}`\n")
            for cluster, name in CLUSTERS:
                print(f"rows: {title}, {name}", file=sys.stderr, flush=True)
                found = simulate(dhelix, job, cluster, settings)
                results[(title, name)] = {r["strategy"]: r["step_ms"] for r in found["strategies"] if "step_ms" in r}
                tables.append(f"{name}\n")
                put_table(tables, found)
    out = ["# Rows and their neighbours", "",
           "Where each strategy wins and where it loses, by simulation on cluster files `a100` and `h100` (eight devices a node). "
           "Made by `scripts/rows.py`; all figures are of `dhelix simulate JOB --cluster NAME --strategies all --json` with the "
           "settings shown, bf16, a sequence a micro-batch. A row's neighbours are "
           "`sequential` and those with as many strands: two where a strategy has a schedule of its own, else one; `t3`, which no device "
           f"runs, is compared and nothing with it. Less than {CLOSE:.1%} of a step counts as equal. A model's figures: orders and "
           "passes on the same costs, not a measurement.", "", "## Each row beside its neighbours", ""]
    for row in rows[1:]:
        put_row(out, row, neighbours_of(row, rows), results)
    out += ["## Tables", "", *tables]
    page.write_text("\n".join(out).rstrip() + "\n", encoding="utf-8")
    print(f"rows: {page}")


if __name__ == "__main__":
    main()
