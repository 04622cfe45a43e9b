#!/usr/bin/env python3
"""How one training job scales from one rank to several, a core and a thread each.

Every mesh does the same work: the same model, global batch and steps. Runs take turns over
several rounds, since other load comes and goes; the median step of the best round counts.
README.md says what the columns mean.

  bench/scaling/run.py                              # build/release, 1 and 2 ranks
  bench/scaling/run.py --meshes "dp=4 dp=2,tp=2" --set model.width=768
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data" / "tinyshakespeare.txt"
TOLERANCE = 1e-4  # of a loss, float32: sums in another order
JOB = """\
model: {{family: gpt2, n_layers: {layers}, width: {width}, n_heads: 8, max_seq: 256}}
data: {{train: {data}, tokenizer: bytes, val_fraction: 0}}
train: {{steps: {steps}, batch: 8, micro_batch: 1, seq_len: 256, threads: 1, dtype: {dtype}}}
eval: {{every: 0}}
"""
FIELDS = ["mesh", "ranks", "tokens_per_s", "speedup", "efficiency", "compute", "communication",
          "hidden", "exposed", "idle", "step_ms", "loss_error"]


def read_run(folder):
    """Losses, median step time in ms, tokens/s, and the summary's times as shares of a step."""
    lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [s for s in map(json.loads, lines) if "step_ms" in s]
    timed = steps[2:] or steps
    summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    times = summary.get("times")
    share = {"compute": 1.0, "communication": 0.0, "hidden": 0.0, "exposed": 0.0, "idle": 0.0}
    if times:
        span = times["span_ms"]
        share = {
            "compute": times["compute_ms"] / span,
            "communication": (times["local_ms"] + times["cross_ms"]) / span,
            "hidden": times["hidden_ms"] / span,
            "exposed": times["exposed_ms"] / span,
            "idle": times["idle_ms"] / span,
        }
    return {
        "losses": [s["loss"] for s in steps],
        "step_ms": statistics.median(s["step_ms"] for s in timed),
        "tokens_per_s": statistics.median(s["tokens_per_s"] for s in timed),
        **share,
    }


def command_of(args, ranks, job, out, mesh):
    """What runs one mesh."""
    words = [str(args.dhelix), "train", str(job), "--quiet", "--set", f"out={out}"]
    for setting in mesh.split(",") if mesh != "1" else []:
        words += ["--set", f"parallel.{setting}"]
    for setting in args.set:
        words += ["--set", setting]
    if args.mpi and ranks > 1:
        words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] + words
    return words


def ranks_of(mesh):
    """Product of the degrees in "dp=2,tp=2,schedule=zb-v"; 1 for "1"."""
    n = 1
    for word in mesh.split(","):
        key, _, value = word.partition("=")
        n *= int(value) if key in ("dp", "tp", "pp", "cp") else 1
    return n


def run_once(args, mesh, folder):
    """One run of one mesh, read."""
    job, out = folder / "job.yaml", folder / "out"
    job.write_text(JOB.format(layers=args.layers, width=args.width, steps=args.steps,
                              dtype=args.dtype, data=DATA), encoding="utf-8")
    env = dict(os.environ, OMP_NUM_THREADS="1", DHELIX_LOG="warn", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command_of(args, ranks_of(mesh), job, out, mesh), env=env, check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"scaling: {mesh}: {done.stderr.strip()}")
    return read_run(out)


def measure(args, meshes):
    """Best of all rounds by mesh; losses must repeat."""
    best = {}
    for _ in range(args.rounds):
        for mesh in meshes:
            with tempfile.TemporaryDirectory(prefix="dhelix-scaling-") as folder:
                run = run_once(args, mesh, Path(folder))
            old = best.setdefault(mesh, run)
            if old["losses"] != run["losses"]:
                sys.exit(f"scaling: {mesh}: losses differ from those of the round before")
            if run["tokens_per_s"] > old["tokens_per_s"]:
                best[mesh] = run
    return best


def rows_of(best):
    """Rows of the table; the first mesh is the measure of all."""
    one = next(iter(best.values()))
    for mesh, run in best.items():
        ranks, speedup = ranks_of(mesh), run["tokens_per_s"] / one["tokens_per_s"]
        error = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], one["losses"]))
        yield {**{key: run[key] for key in FIELDS if key in run}, "mesh": mesh, "ranks": ranks,
               "speedup": speedup, "efficiency": speedup / ranks, "loss_error": error}


def print_table(rows):
    """Shares are of the first rank's step."""
    print(f"{'mesh':<28}{'ranks':>5}{'tokens/s':>10}{'speed-up':>10}{'effic.':>8}"
          f"{'compute':>9}{'comm.':>7}{'hidden':>8}{'exposed':>9}{'idle':>7}")
    for r in rows:
        print(f"{r['mesh']:<28}{r['ranks']:>5}{r['tokens_per_s']:>10.0f}{r['speedup']:>10.2f}"
              f"{r['efficiency']:>8.0%}{r['compute']:>9.0%}{r['communication']:>7.0%}"
              f"{r['hidden']:>8.0%}{r['exposed']:>9.0%}{r['idle']:>7.0%}")


def write_csv(path, rows):
    """All columns, six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dhelix", type=Path, default=ROOT / "build/release/src/cli/dhelix")
    parser.add_argument("--meshes", default="dp=2 dp=2,zero=1 tp=2 pp=2 pp=2,schedule=zb-h1 cp=2",
                        help="beside one rank: settings of `parallel` joined by commas")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--mpi", action="store_true", help="ranks as processes instead of threads")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--csv", type=Path, default=ROOT / "build/bench/scaling.csv")
    parser.add_argument("--quick", action="store_true", help="a small model, one round")
    args = parser.parse_args()
    if args.quick:
        args.layers, args.width, args.steps, args.rounds = 2, 64, 4, 1
    cores = len(os.sched_getaffinity(0))
    meshes = args.meshes.split()
    too_many = [m for m in meshes if ranks_of(m) > cores]
    if too_many:
        print(f"scaling: {cores} cores here: {' '.join(too_many)} share them", file=sys.stderr)
    rows = list(rows_of(measure(args, ["1"] + meshes)))
    print_table(rows)
    write_csv(args.csv, rows)
    tolerance = TOLERANCE if args.dtype == "f32" else 0.02
    wrong = [r["mesh"] for r in rows if not r["loss_error"] <= tolerance]
    if wrong:
        sys.exit(f"scaling: losses are not those of one rank: {' '.join(wrong)}")


if __name__ == "__main__":
    main()
