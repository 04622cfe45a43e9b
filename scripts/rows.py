#!/usr/bin/env python3
"""Write docs/rows.md: where each strategy wins and loses against its neighbours, simulated.

    scripts/rows.py [DHELIX] [OUT.md]     build/release/src/cli/dhelix, docs/rows.md; minutes

Every figure is of `dhelix simulate JOB --cluster NAME --strategies ... --json`, on the job below, which
nobody needs data for. Neighbours of a row are the first row and those that run as many strands as it does:
rows with a schedule of their own co-execute two, the others one (`dhelix list strategies`). What no device
runs is compared, and nothing is compared with it. Ways of hiding that are settings of a job are rows, too,
each beside the job that they change.
"""
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
    ("Llama 3 8B with linear attention on 2 nodes: cp 16, ZeRO-1",
     "model=llama3-8b model.attention=linear model.max_seq=65536 train.batch=8 train.seq_len=65536 parallel.cp=16 "
     "parallel.zero=1"),
]
# Two sequences a micro-batch: domino divides them.
JOB = "data: {train: none}\ntrain: {micro_batch: 2, dtype: bf16}\nprofile: none\n"
# Combinations that are no rows of their own.
MORE = ["domino(auto, auto)+list"]
# Ways of hiding that are settings: name, strategy, settings; each is beside the job without them. What a
# job refuses, or what changes nothing there, is left out with the reason.
SETTINGS = [
    ("wavelet-copies", "round-robin", "parallel.schedule=wavelet"),
    ("bidirectional-copies", "list", "parallel.schedule=bidirectional"),
    ("dualpipe-copies", "{order: dualpipe}", "parallel.schedule=dualpipe"),
    ("post-validation", "sequential", "optimizer.post_validation=true"),
    ("fuse4", "sequential", "optimizer.fuse=4"),
    ("lasp1", "sequential", "parallel.cp_linear=lasp1"),
]
CLOSE = 0.005  # of a step: as fast


def run(dhelix, *words):
    done = subprocess.run([dhelix, *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rows: dhelix {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def try_run(dhelix, *words):
    """The document of a command and None; or None and what it said against the job."""
    done = subprocess.run([dhelix, *words], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout), None
    return None, done.stderr.strip().rsplit("dhelix: error: ", 1)[-1].split("job.yaml: ")[-1]


def words_of(job, cluster, settings):
    words = ["simulate", str(job), "--cluster", cluster, "--json", "--quiet"]
    for setting in settings:
        words += ["--set", setting]
    return words


def simulate(dhelix, job, cluster, settings, names):
    words = words_of(job, cluster, settings)
    return run(dhelix, *words, "--strategies", ",".join(names))["strategies"]


def simulate_setting(dhelix, job, cluster, settings, row):
    """One row of SETTINGS: its step, and that of the job without it."""
    name, strategy, setting = row
    base = [*settings, f"strategy={strategy}"]
    found, why = try_run(dhelix, *words_of(job, cluster, [*base, setting]))
    if not found:
        return {"strategy": name, "error": why}
    own = found["strategies"][0]
    plain = run(dhelix, *words_of(job, cluster, base))["strategies"][0]
    if own["step_ms"] == plain["step_ms"]:
        return {"strategy": name, "error": f"{setting} changes nothing"}
    return {**own, "strategy": name, "beside_ms": plain["step_ms"]}


def simulate_all(dhelix, job, names, where):
    """Every row of one job on one cluster."""
    (title, text), (cluster, name) = where
    print(f"rows: {title}, {name}", file=sys.stderr, flush=True)
    settings = text.split()
    return [*simulate(dhelix, job, cluster, settings, names),
            *(simulate_setting(dhelix, job, cluster, settings, row) for row in SETTINGS)]


def neighbours_of(row, rows):
    """Names of the rows that it is compared with."""
    first, *_ = rows

    def strands(one):
        return 1 if one["schedule"] == "-" else 2

    return [other["name"] for other in rows if other is not row and not other["doc"].startswith("simulated only")
            and (other is first or strands(other) == strands(row))]


def put_table(out, found):
    """Rows of one job on one cluster, the shortest step first."""
    rows = sorted((r for r in found if "step_ms" in r), key=lambda r: r["step_ms"])
    base = next(r for r in rows if r["strategy"] == "sequential")
    out.append("| strategy | step, ms | over sequential | hidden | memory, GiB |")
    out.append("|---|---|---|---|---|")
    for r in rows:
        fits = "" if r.get("fits", True) else ", too much"
        out.append(f"| {r['strategy']} | {r['step_ms']:,.0f} | {base['step_ms'] / r['step_ms']:.2f} | "
                   f"{r['hidden_share']:.0%} | {r['peak_bytes'] / 2**30:.1f}{fits} |")
    out.append("")
    for r in found:
        if "step_ms" not in r:
            why = next((r[key] for key in ("error", "why", "message") if key in r), "refused")
            out.append(f"- `{r['strategy']}`: {why}")
    if out[-1]:
        out.append("")


def place_of(title, cluster):
    return f"{title.split(':')[0]}, {title.split(': ')[1].split(',')[0]}, {cluster}"


def put_places(out, name, changes):
    """Where a row wins and where it loses; changes: (place, how much faster, than what)."""
    wins = [f"{place} ({change:+.1%} over {other})" for place, change, other in changes if change > CLOSE]
    losses = [f"{place} ({change:+.1%}, {other})" for place, change, other in changes if change < -CLOSE]
    even = len(changes) - len(wins) - len(losses)
    out.append(f"**{name}**")
    out.append(f"Wins: {'; '.join(wins) or 'nowhere'}.")
    out.append(f"Loses: {'; '.join(losses) or 'nowhere'}." + (f" As fast as the best in {even}." if even else ""))
    out.append("")


def put_row(out, row, near, results):
    changes = []
    for where, steps in results.items():
        own = steps.get(row["name"])
        others = {name: steps[name]["step_ms"] for name in near if name in steps}
        if own and others:
            best = min(others, key=others.get)
            changes.append((place_of(*where), others[best] / own["step_ms"] - 1, best))
    put_places(out, row["name"], changes)


def put_setting(out, row, results):
    name, strategy, setting = row
    changes = [(place_of(*where), steps[name]["beside_ms"] / steps[name]["step_ms"] - 1, f"{strategy} without it")
               for where, steps in results.items() if name in steps]
    put_places(out, f"{name} ({setting})", changes)


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/src/cli/dhelix")
    page = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/rows.md"
    listed = run(dhelix, "list", "strategies", "--json")
    rows = [*listed, *({"name": name, "schedule": "-", "doc": ""} for name in MORE)]
    names = [row["name"] for row in rows]
    places = [(job, cluster) for job in JOBS for cluster in CLUSTERS]
    with tempfile.TemporaryDirectory(prefix="dhelix-rows-") as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB, encoding="utf-8")
        with ThreadPoolExecutor(int(os.environ.get("DHELIX_JOBS", os.cpu_count() or 1))) as pool:
            all_found = list(pool.map(lambda where: simulate_all(dhelix, job, names, where), places))
    results, tables = {}, []
    for ((title, settings), (cluster, name)), found in zip(places, all_found):
        results[(title, name)] = {r["strategy"]: r for r in found if "step_ms" in r}
        if cluster == CLUSTERS[0][0]:
            tables.append(f"### {title}\n\n`{settings}`\n")
        tables.append(f"{name}\n")
        put_table(tables, found)
    out = ["# Rows and their neighbours", "",
           "Where each strategy wins and where it loses, by simulation on cluster files `a100` and `h100` (eight devices a node). "
           "Made by `scripts/rows.py`; all figures are of `dhelix simulate JOB --cluster NAME --strategies NAMES --json` with the "
           "settings shown, bf16, two sequences a micro-batch, which domino divides. A row's neighbours are "
           "`sequential` and those with as many strands: two where a strategy has a schedule of its own, else one; `t3`, which no device "
           f"runs, is compared and nothing with it. Less than {CLOSE:.1%} of a step counts as equal. Ways of hiding that are settings "
           "of a job are beside that job without them. A model's figures: orders and "
           "passes on the same costs, not a measurement.", "", "## Each row beside its neighbours", ""]
    for row in rows[1:]:
        put_row(out, row, neighbours_of(row, rows), results)
    out += ["## Settings beside the job without them", ""]
    for setting in SETTINGS:
        put_setting(out, setting, results)
    out += ["## Tables", "", *tables]
    page.write_text("\n".join(out).rstrip() + "\n", encoding="utf-8")
    print(f"rows: {page}")


if __name__ == "__main__":
    main()
