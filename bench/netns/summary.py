#!/usr/bin/env python3
"""Table and netns.csv of the runs that bench/netns/run.sh made; checks their losses.

Losses must be those of one rank within a tolerance (sums in another order), and over
the wire the very same as over shared memory: all communicators reduce in one order.
"""
import argparse
import csv
import json
import statistics
import sys
from pathlib import Path

TOLERANCE = 1e-4  # of a loss, float32; some 1e-7 is usual after a dozen steps
WARMUP = 2  # first steps not timed
PLACES = {
    "one": "one rank",
    "threads": "shared memory, threads",
    "mpi_shm": "shared memory, MPI",
    "wire": "{gbps} Gbit/s, MPI over TCP",
}
FIELDS = ["mesh", "link", "gbps", "latency_us", "tokens_per_s", "of_threads", "hidden", "wire_mb_per_step", "loss_error"]


def read_run(folder):
    """Losses, median tokens/s and hidden share of communication of a run."""
    with open(Path(folder) / "metrics.jsonl", encoding="utf-8") as lines:
        steps = [s for s in map(json.loads, lines) if "tokens_per_s" in s]
    if not steps:
        sys.exit(f"netns: {folder}/metrics.jsonl has no steps")
    timed = steps[WARMUP:] or steps
    summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    rate = statistics.median(s["tokens_per_s"] for s in timed)
    return [s["loss"] for s in steps], rate, summary.get("hidden_share", 0.0)


def read_all(out):
    """(mesh, place, gbps) -> losses, best tokens/s, least bytes on the wire; as they were run."""
    runs = {}
    with open(out / "runs.tsv", encoding="utf-8") as lines:
        for place, gbps, mesh, wire, folder in csv.reader(lines, delimiter="\t"):
            losses, rate, hidden = read_run(folder)
            new = {"losses": losses, "rate": 0.0, "wire": int(wire)}
            run = runs.setdefault((mesh, place, gbps), new)
            if run["losses"] != losses:
                sys.exit(f"netns: {folder}: losses differ from the same run before")
            if rate > run["rate"]:
                run["rate"], run["hidden"] = rate, hidden
            run["wire"] = min(run["wire"], int(wire))
    return runs


def loss_error(losses, reference):
    """Largest relative difference; runs of different length differ wholly."""
    if len(losses) != len(reference):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference))


def name_of(mesh):
    form, _, strategy = mesh.partition(":")
    return form if form == "one" else f"{form}=2 {strategy}".strip()


def rows_of(runs, latency_us):
    """Rows of the table, mesh by mesh in the order run."""
    one = runs["one", "one", "0"]
    meshes = list(dict.fromkeys(mesh for mesh, _, _ in runs))
    for (mesh, place, gbps), run in sorted(runs.items(), key=lambda item: meshes.index(item[0][0])):
        threads = runs.get((mesh, "threads", "0"))
        yield {
            "mesh": name_of(mesh),
            "link": PLACES[place].format(gbps=gbps),
            "gbps": gbps,
            "latency_us": latency_us if place == "wire" else "0",
            "tokens_per_s": round(run["rate"], 1),
            "of_threads": round(run["rate"] / threads["rate"], 3) if threads else "",
            "hidden": "" if place == "one" else round(run["hidden"], 3),
            "wire_mb_per_step": round(run["wire"] / len(run["losses"]) / 1e6, 3) if place == "wire" else "",
            "loss_error": f"{loss_error(run['losses'], one['losses']):.1e}",
        }


def check(runs):
    """What is wrong with the losses."""
    one = runs["one", "one", "0"]["losses"]
    for (mesh, place, gbps), run in runs.items():
        name = f"{name_of(mesh)}, {PLACES[place].format(gbps=gbps)}"
        if not loss_error(run["losses"], one) <= TOLERANCE:
            yield f"{name}: losses are not those of one rank (tolerance {TOLERANCE:g}): {run['losses']} {one}"
        threads = runs.get((mesh, "threads", "0"))
        if threads and threads["losses"] != run["losses"]:
            yield f"{name}: losses are not those of ranks as threads: {run['losses']} {threads['losses']}"


def print_table(rows):
    line = "{:<19} {:<24} {:>10} {:>11} {:>7} {:>13} {:>11}"
    print(line.format("mesh", "ranks joined by", "tokens/s", "of threads", "hidden", "MB/step sent", "loss error"))
    previous = None
    for row in rows:
        if row["mesh"] != previous and previous:
            print()
        previous = row["mesh"]
        print(line.format(row["mesh"], row["link"], f"{row['tokens_per_s']:.0f}", row["of_threads"],
                          row["hidden"], row["wire_mb_per_step"], row["loss_error"]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path, help="folder of runs.tsv")
    p.add_argument("--latency-us", default="0")
    args = p.parse_args()
    runs = read_all(args.out)
    rows = list(rows_of(runs, args.latency_us))
    print_table(rows)
    with open(args.out / "netns.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"table: {args.out / 'netns.csv'}")
    wrong = list(check(runs))
    for text in wrong:
        print(f"netns: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
