#!/usr/bin/env python3
"""Write docs/rows.md: where each strategy wins and loses against its neighbours, simulated.

    scripts/rows.py [DHELIX] [OUT.md]     build/release/src/cli/dhelix, docs/rows.md; minutes

Every figure is of `dhelix simulate JOB --cluster NAME --strategies ... --json`, on the job below, which
nobody needs data for. Neighbours of a row are the first row and the rows that run as many strands as it does:
rows with a schedule of their own co-execute two, the others one (`dhelix list strategies`). Rows that no
device runs are compared, and nothing is compared with them. Ways of hiding that are settings of a job are
rows, too, each compared with the job without it.
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
# short name, title, settings; all on nodes of eight devices
JOBS = [
    ("8B tp 8", "Llama 3 8B on 2 nodes: tp 8, dp 2, ZeRO-1",
     "model=llama3-8b train.batch=32 train.seq_len=8192 parallel.tp=8 parallel.dp=2 parallel.zero=1"),
    ("8B tp 16", "Llama 3 8B on 2 nodes: tp 16, over both, with 16 key/value heads",
     "model=llama3-8b train.batch=16 train.seq_len=8192 parallel.tp=16 model.n_kv_heads=16"),
    ("70B", "Llama 3 70B on 8 nodes: tp 8, pp 4, dp 2, ZeRO-1",
     "model=llama3-70b train.batch=64 train.seq_len=8192 parallel.tp=8 parallel.pp=4 parallel.dp=2 "
     "parallel.zero=1 train.recompute=selective"),
    ("Mixtral", "Mixtral 8x7B on 8 nodes: tp 2, pp 2, dp 16, ep 8 over 2 nodes, experts with a capacity, ZeRO-1",
     "model=mixtral-8x7b train.batch=256 train.seq_len=4096 parallel.tp=2 parallel.pp=2 parallel.dp=16 "
     "parallel.ep=8 parallel.zero=1 train.recompute=selective moe.mode=capacity moe.capacity=1.25"),
    ("8B linear", "Llama 3 8B with linear attention on 2 nodes: cp 16, ZeRO-1",
     "model=llama3-8b model.attention=linear model.max_seq=65536 train.batch=8 train.seq_len=65536 parallel.cp=16 "
     "parallel.zero=1"),
]
# Two sequences a micro-batch: domino divides them.
JOB = "data: {train: none}\ntrain: {micro_batch: 2, dtype: bf16}\nprofile: none\n"
# Combinations that are no rows of their own.
MORE = ["domino(auto, auto)+list"]
CHOSEN = "auto"  # the strategy that is compared with all of them
# Ways of hiding that are settings: name, strategy, setting; each is compared with the job without it. A setting
# that a job refuses, or that changes nothing there, is left out with the reason.
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
    (_, title, text), (cluster, name) = where
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


def change_of(found, row, near):
    """How much faster a row is than the best of its neighbours, and which that is; None: there is none."""
    if "beside_ms" in row:
        return row["beside_ms"] / row["step_ms"] - 1, "without it"
    others = {r["strategy"]: r["step_ms"] for r in found if "step_ms" in r and r["strategy"] in near.get(row["strategy"], ())}
    if not others:
        return None
    best = min(others, key=others.get)
    return others[best] / row["step_ms"] - 1, best


def percent(change):
    """A change with its sign; none where it rounds to nothing."""
    text = f"{100 * change:+.1f} %"
    return "0.0 %" if text[1:] == "0.0 %" else text


def cells_of(found, near, name):
    """A row's cells on one cluster; empty where it does not apply."""
    row = next((r for r in found if r["strategy"] == name and "step_ms" in r), None)
    if not row:
        return [""] * 5
    base = next(r for r in found if r["strategy"] == "sequential")
    change = change_of(found, row, near) if name != "sequential" else None
    against = f"{percent(change[0])} {change[1]}" if change else ""
    memory = f"{row['peak_bytes'] / 2**30:.1f}" + ("" if row.get("fits", True) else ", too much")
    return [f"{row['step_ms']:,.0f}", f"{base['step_ms'] / row['step_ms']:.2f}", f"{100 * row['hidden_share']:.0f} %", memory, against]


def put_job(out, job, results, near):
    """A job's rows on all clusters, the shortest step on the first one first."""
    short, title, settings = job
    found = {name: results[(short, name)] for _, name in CLUSTERS}
    steps = {}
    for rows in found.values():
        for r in rows:
            if "step_ms" in r:
                steps.setdefault(r["strategy"], r["step_ms"])
    heads = [f"{name}: step, ms | over sequential | hidden | GiB | over neighbours" for _, name in CLUSTERS]
    out += [f"## {short}: {title}", "", f"`{settings}`", "", f"| strategy | {' | '.join(heads)} |",
            "|---|" + "---:|---:|---:|---:|---|" * len(CLUSTERS)]
    for name in sorted(steps, key=steps.get):
        out.append(f"| {name} | " + " | ".join(cell for rows in found.values() for cell in cells_of(rows, near, name)) + " |")
    out.append("")


def put_summary(out, title, name, results, near):
    """In how many places a row wins, is as fast, and loses; where most."""
    changes = []
    for (short, cluster), found in results.items():
        row = next((r for r in found if r["strategy"] == name and "step_ms" in r), None)
        change = change_of(found, row, near) if row else None
        if change:
            changes.append((change[0], f"{percent(change[0])}, {change[1]}: {short}, {cluster}"))
    wins, losses = [c for c in changes if c[0] > CLOSE], [c for c in changes if c[0] < -CLOSE]
    out.append(f"| {title} | {len(wins)} | {len(changes) - len(wins) - len(losses)} | {len(losses)} | "
               f"{max(wins)[1] if wins else ''} | {min(losses)[1] if losses else ''} |")


def best_of(found):
    """The fastest row besides `auto`, of those that fit if any does; `t3` runs on no device."""
    rows = [r for r in found if "step_ms" in r and r["strategy"] not in (CHOSEN, "t3")]
    return min([r for r in rows if r.get("fits", True)] or rows, key=lambda r: r["step_ms"])


def put_chosen(out, results):
    """`auto` against the best of all other rows in each place."""
    lines, gains = [], []
    for (short, cluster), found in results.items():
        own, best = next(r for r in found if r["strategy"] == CHOSEN), best_of(found)
        gains.append(best["step_ms"] / own["step_ms"] - 1)
        layers = own.get("layer_split", "")
        memory = f"{own['peak_bytes'] / 2**30:.1f}" + ("" if own.get("fits", True) else ", too much")
        lines.append(f"| {short}, {cluster} | {own['step_ms']:,.0f} | {memory} | {best['strategy']} | {best['step_ms']:,.0f} | "
                     f"{percent(gains[-1])} | `{own['chosen']}`{f', layers {layers}' if layers else ''} |")
    won, lost = sum(g > CLOSE for g in gains), sum(g < -CLOSE for g in gains)
    out += [f"`auto` is the fastest in {won} of {len(gains)} places, as fast as the best in {len(gains) - won - lost}, slower in {lost}.", "",
            "| place | `auto`: step, ms | GiB | best other row that fits, or of all where none does | its step | gain | what `auto` chose |",
            "|---|---:|---:|---|---:|---:|---|", *lines, ""]


def put_left_out(out, results):
    """Rows that do not apply: for which jobs, and why."""
    where = {}
    for (short, _), found in results.items():
        for r in found:
            if "step_ms" not in r:
                why = next((r[key] for key in ("error", "why", "message") if key in r), "refused")
                jobs = where.setdefault((r["strategy"], why), [])
                if short not in jobs:
                    jobs.append(short)
    out += ["| row | jobs | reason |", "|---|---|---|"]
    out += [f"| {name} | {'all' if len(jobs) == len(JOBS) else '; '.join(jobs)} | {why} |" for (name, why), jobs in sorted(where.items())]


INTRO = f"""# Strategies compared

Where each strategy wins and where it loses, by simulation on {len(JOBS)} jobs. Every figure is predicted, not measured: orders and passes on the
same costs.

| | |
|---|---|
| clusters | cluster files `a100` and `h100`, eight devices a node |
| jobs | bf16, two sequences a micro-batch, which `domino` divides; the settings are shown with each job |
| command | `dhelix simulate JOB --cluster NAME --strategies NAMES --json` |
| made by | `scripts/rows.py` |

**Neighbours.** A strategy is compared with the fastest of its neighbours: `sequential`, and the strategies with as many strands. A strategy with
a schedule of its own has two strands, any other one. `t3`, which no device runs, is compared, and nothing is compared with it. Less
than {100 * CLOSE:.1f} % of a step counts as equal.

A place is a job on a cluster. Strategies that do not apply to a job have no place there.
"""


def page_of(rows, results):
    near = {row["name"]: neighbours_of(row, rows) for row in rows}
    head = ["| | wins | as fast | loses | largest gain: over which, where | largest loss |", "|---|---:|---:|---:|---|---|"]
    out = [INTRO, "## `strategy: auto` and the best of all other rows", ""]
    put_chosen(out, results)
    out += ["## Places in which each strategy wins and loses", "", *head]
    for row in rows[1:]:
        put_summary(out, row["name"], row["name"], results, near)
    out += ["", "## Settings, compared with the same job and strategy without them", "", *head]
    for name, strategy, setting in SETTINGS:
        put_summary(out, f"{name}: `{setting}`, `{strategy}`", name, results, near)
    out.append("")
    for job in JOBS:
        put_job(out, job, results, near)
    out += ["## What does not apply", ""]
    put_left_out(out, results)
    return "\n".join(out).rstrip() + "\n"


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/src/cli/dhelix")
    page = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/rows.md"
    listed = run(dhelix, "list", "strategies", "--json")
    rows = [*listed, *({"name": name, "schedule": "-", "doc": ""} for name in MORE)]
    names = [*(row["name"] for row in rows), CHOSEN]
    places = [(job, cluster) for job in JOBS for cluster in CLUSTERS]
    with tempfile.TemporaryDirectory(prefix="dhelix-rows-") as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB, encoding="utf-8")
        with ThreadPoolExecutor(int(os.environ.get("DHELIX_JOBS", os.cpu_count() or 1))) as pool:
            all_found = list(pool.map(lambda where: simulate_all(dhelix, job, names, where), places))
    results = {(short, name): found for ((short, _, _), (_, name)), found in zip(places, all_found)}
    page.write_text(page_of(rows, results), encoding="utf-8")
    print(f"rows: {page}")


if __name__ == "__main__":
    main()
