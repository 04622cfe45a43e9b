#!/usr/bin/env python3
"""Every strategy on every mesh in one table: step, hidden share, memory, predicted step.

Rows are those of `dhelix list strategies`, and ways of hiding that are settings of a job. What a mesh has
no use for, or the program refuses, stands below its table with the program's own reason. Links, profile,
rounds and predictions are those of run.py.

  bench/overlap/table.py                               # build/release; all meshes: an hour on two cores
  bench/overlap/table.py --meshes dp2x2 --strategies "sequential centauri dhelix" --rounds 1
  bench/overlap/table.py --reasons                     # which rows apply where, without the timing
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run  # noqa: E402  beside this file

TITLES = {"tp2": "tp 2", "cp2": "cp 2", "cp2linear": "cp 2, linear attention", "ep2": "ep 2", "tp2pp2": "tp 2 x pp 2",
          "dp2x2": "dp 2 x 2 nodes (4 ranks of data)"}
# Ways of hiding that are settings: name, settings, and those of the job that they are compared with
# for whether they apply.
PLAIN = ["strategy=sequential"]
SETTINGS = [
    ("wavelet-copies", ["strategy=round-robin", "parallel.schedule=wavelet"], ["strategy=round-robin"]),
    ("bidirectional-copies", ["strategy=list", "parallel.schedule=bidirectional"], ["strategy=list"]),
    ("dualpipe-copies", ["strategy={order: dualpipe}", "parallel.schedule=dualpipe"], ["strategy={order: dualpipe}"]),
    ("post-validation", [*PLAIN, "optimizer.post_validation=true"], PLAIN),
    ("zero1", [*PLAIN, "parallel.zero=1"], PLAIN),
    ("zero1-fuse4", [*PLAIN, "parallel.zero=1", "optimizer.fuse=4"], [*PLAIN, "parallel.zero=1"]),
    ("lasp1", [*PLAIN, "parallel.cp_linear=lasp1"], PLAIN),
    ("lasp2", [*PLAIN, "parallel.cp_linear=lasp2"], [*PLAIN, "parallel.cp_linear=lasp1"]),
]
# A row counts as slower than the first only beyond what rounds of one row vary by.
SLOWER = 1.02


def all_rows(args):
    """By name: strategies as the program lists them, and settings, each with its words."""
    listed = subprocess.run([str(args.dhelix), "list", "strategies", "--json"], check=True,
                            capture_output=True, text=True).stdout
    rows = {row["name"]: {**row, "settings": [f"strategy={row['name']}"]} for row in json.loads(listed)}
    return rows | {name: {"name": name, "settings": settings, "without": without}
                   for name, settings, without in SETTINGS}


def pass_names(row):
    """Names of the passes of a row, whatever stands in their brackets."""
    text = re.sub(r"\([^()]*\)", "", row["passes"])
    return [name.strip() for name in text.split(",") if name.strip() not in ("", "-")]


def reasons_of_passes(args, mesh, name, job):
    """Of each pass of the job's strategy that applies to no block: why."""
    words = run.words_of(args, mesh, 0, [f"strategy={name}"], job)
    said = run.dhelix(args, "check", [*words, "--print", "passes"])
    applied, reasons = set(), {}
    for line in said.splitlines():
        found = re.match(r"  ([a-z-]+)(?:\([^)]*\))?\s+(.*)", line)
        if not found:
            continue
        if found[2].startswith("not applied: "):
            reasons[found[1]] = found[2][len("not applied: "):]
        else:
            applied.add(found[1])
    return {name: why for name, why in reasons.items() if name not in applied}


def refusal(args, mesh, settings, job):
    """What the program says against a step of a job; None: nothing."""
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as out:
        words = run.words_of(args, mesh, 0, [*settings, "train.steps=1", f"out={out}/run"], job)
        try:
            run.dhelix(args, "train", [*words, "--quiet"])
        except run.Failure as failure:
            return str(failure).rsplit("dhelix: error: ", 1)[-1].split(f"the job {job}: ")[-1]
    return None


def idle_strategy(args, mesh, row, job):
    """Why a strategy has nothing to do on a mesh; None: it has."""
    names = pass_names(row)
    reasons = reasons_of_passes(args, mesh, row["name"], job) if names else {}
    idle = [f"{name}: {reasons[name]}" for name in names if name in reasons]
    own_order = row["order"] != "sequential" or row["schedule"] != "-"
    if names and len(idle) == len(names) and not own_order:
        return "; ".join(idle)
    return None


def idle_settings(args, mesh, row, job):
    """Why settings change nothing on a mesh: the program's reason, or that the job's program is the same."""
    def program(settings):
        words = run.words_of(args, mesh, 0, settings, job)
        return run.dhelix(args, "check", [*words, "--print", "program"])

    refused = refusal(args, mesh, row["without"], job)
    if refused:
        return refused
    same = program(row["settings"]) == program(row["without"])
    return f"the program is that of {' '.join(row['without'])}" if same else None


def why_not(args, mesh, row, job):
    """None where a row applies to a mesh; else the program's reason."""
    idle = idle_settings if "without" in row else idle_strategy
    return refusal(args, mesh, row["settings"], job) or idle(args, mesh, row, job)


def print_table(mesh, share, measured, left, out):
    """A mesh's rows, those that do not apply with their reasons, and what planning did not foresee."""
    first = measured[0]

    def put(text=""):
        print(text, file=out, flush=True)

    put(f"\n## {TITLES.get(mesh, mesh)}\n")
    put(f"Communication {share} % of a step that hides none, links paced to {first['gbps']:.3g} Gbit/s, "
        f"width {first['width']}.\n")
    put("| strategy | step, ms | speed-up (least to most) | predicted | hidden | memory, MB | predicted step, ms | error |")
    put("|---|---|---|---|---|---|---|---|")
    surprises = []
    for r in measured:
        predicted = f"{r['predicted_ms']:.0f} | {r['prediction_error']:+.0%}" if r["predicted_ms"] else "- | -"
        gain = f"{first['predicted_ms'] / r['predicted_ms']:.2f}" if r["predicted_ms"] else "-"
        put(f"| {r['strategy']} | {r['step_ms']:.0f} | {r['speedup']:.2f} ({r['speedup_least']:.2f} to {r['speedup_most']:.2f}) | "
            f"{gain} | {r['hidden']:.0%} | {r['slab_mb']:.1f} | {predicted} |")
        if r["speedup"] < 1 / SLOWER and r["predicted_ms"] and r["plan_says"] != "slower":
            surprises.append(f"{r['strategy']} ({r['plan_says'] or 'says nothing'})")
    if left:
        put("\nNot here:\n")
        for name, why in left.items():
            put(f"- `{name}`: {why}")
    if surprises:
        put(f"\nSlower than {first['strategy']}, and what `dhelix plan` says beforehand: {', '.join(surprises)}.")


def table_of(args, mesh, rows, out):
    """Measures what applies to a mesh."""
    left, applied = {}, []
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as name:
        job = run.write_job(args, mesh, Path(name))
        for row in rows:
            why = why_not(args, mesh, row, job)
            if why:
                left[row["name"]] = why
            else:
                applied.append((row["name"], row["settings"]))
    if args.reasons:
        print(f"\n## {TITLES.get(mesh, mesh)}\n\napply: {', '.join(name for name, _ in applied)}", file=out)
        for name, why in left.items():
            print(f"- `{name}`: {why}", file=out, flush=True)
        return
    print_table(mesh, args.share, list(run.measure(args, mesh, args.share, applied)), left, out)


class Both:
    """Standard output, and a file."""

    def __init__(self, file):
        self.file = file

    def write(self, text):
        sys.stdout.write(text)
        self.file.write(text)

    def flush(self):
        sys.stdout.flush()
        self.file.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dhelix", type=Path, default=run.ROOT / "build/release/src/cli/dhelix")
    parser.add_argument("--meshes", default=" ".join(TITLES))
    parser.add_argument("--share", type=int, default=45, help="communication in %% of an unhidden step")
    parser.add_argument("--strategies", default="all", help="rows; the first is what others are compared with")
    parser.add_argument("--reasons", action="store_true", help="only which rows apply where, and why not")
    parser.add_argument("--out", type=Path, default=run.ROOT / "build/bench/table.md")
    run.add_work(parser, "256")
    args = parser.parse_args()
    run.read_work(args)
    known = all_rows(args)
    names = list(known) if args.strategies == "all" else args.strategies.split()
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"table: no row is called {unknown[0]}; there are {', '.join(known)}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with open(args.out, "w", encoding="utf-8") as file:
        out = Both(file)
        print(f"# Every strategy, every mesh\n\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the "
              f"start; {args.dtype}, a thread a rank, {args.rounds} rounds of {args.steps - 1} timed steps, seeds "
              f"{args.seeds}; a speed-up is the median of what the rounds gained over the first row, which runs again behind every "
                  f"{args.anchor} others, at the same time, a step the first row's over it; paced links sleep, they use no core.", file=out)
        for mesh in args.meshes.split():
            for args.width in args.width_list:
                table_of(args, mesh, [known[name] for name in names], out)
    print(f"\nthe same in {args.out}")


if __name__ == "__main__":
    try:
        main()
    except run.Failure as failure:
        sys.exit(f"table: {failure}")
