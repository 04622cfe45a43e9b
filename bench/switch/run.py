#!/usr/bin/env python3
"""Documents by length, each group over a mesh of its own, against all packed for one mesh.

Both are what `dhelix tune --lengths data` proposes under a rank's memory; both train the same
documents over ranks that are threads with paced links. README.md says what the columns mean.

  bench/switch/run.py path/to/corpus
  bench/switch/run.py path/to/corpus --memory 60MB --gbps 4
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
TOLERANCE = 1e-4  # of a loss, float32: sums in another order
JOB = """\
model: {{family: llama, n_layers: {layers}, width: {width}, n_heads: 8, n_kv_heads: 8, head_dim: {head_dim},
        ffn_width: {ffn}, max_seq: {seq_len}}}
data: {{train: {data}, tokenizer: {tokenizer}, val_fraction: 0}}
train: {{steps: {steps}, batch: {batch}, micro_batch: 1, seq_len: {seq_len}, threads: 1}}
eval: {{every: 0}}
checkpoint: {{every: 0}}
links: {{local: {{gbps: {gbps}, latency_us: {latency_us}}}}}
profile: none
"""
FIELDS = ["run", "home", "groups", "tokens_per_s", "gain", "predicted", "step_ms", "predicted_step_ms",
          "switch_ms", "predicted_switch_ms", "switch_wait_ms", "switch_bytes", "predicted_switch_bytes",
          "passes", "predicted_passes", "loss_error", "load"]


def documents_of(corpus, folder):
    """What data.train is given: a corpus of one file and an index becomes a file a document."""
    index = corpus / "index.tsv"
    if not index.exists():
        return corpus
    text = (corpus / "docs.txt").read_bytes()
    texts = Path(folder) / "texts"
    texts.mkdir()
    for number, line in enumerate(index.read_text(encoding="utf-8").splitlines()):
        if not line.startswith("#"):
            first, n_bytes = (int(word) for word in line.split("\t")[1:3])
            (texts / f"{number:05}.txt").write_bytes(text[first : first + n_bytes])
    return texts


def tokenizer_of(args):
    return args.tokenizer if args.tokenizer == "bytes" else Path(args.tokenizer).resolve()


def call(args, words):
    done = subprocess.run([str(args.dhelix), *words], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"dhelix {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def plans_of(args, job):
    """The best groups and the best single mesh: settings, predicted tokens/s."""
    words = ["tune", str(job), "--devices", str(args.ranks), "--lengths", "data", "--json"]
    words += ["--memory", args.memory] if args.memory else []
    words += ["--set", "strategy=sequential"] if not args.strategies else []
    found = json.loads(call(args, words))
    fitting = [p for p in found["plans"] if p["fits"]]
    single = next((p for p in fitting if p["n_groups"] == 1), None)
    groups = next((p for p in fitting if p["n_groups"] > 1), None)
    if not single or not groups:
        sys.exit("no single mesh fits, or no groups do: give another --memory")
    return single, groups


def train(args, job, plan, settings, folder):
    """A run's steps."""
    words = ["train", str(job), "--quiet", "--set", f"out={folder}"]
    for setting in plan["home"].split() + settings:
        words += ["--set", setting]
    call(args, words)
    lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [s for s in map(json.loads, lines) if "step_ms" in s]


def moved_by(plan, ending):
    """Of parameters and gradients, to and from all groups that are not at home: a step with documents in each."""
    return sum(group[kind + ending] for group in plan["step"]["groups"] for kind in ("params", "grads"))


def row_of(name, plan, steps, load):
    timed = steps[1:] or steps  # the first step warms caches up

    def median(key):
        return statistics.median(s.get(key, 0) for s in timed)

    step = plan["step"]
    return {"run": name, "home": plan["home"], "groups": plan["groups"],
            "tokens_per_s": median("tokens_per_s"), "predicted": step["tokens_per_s"],
            "step_ms": median("step_ms"), "predicted_step_ms": step["step_ms"],
            "switch_ms": median("switch_ms"), "predicted_switch_ms": moved_by(plan, "_ms"),
            "switch_wait_ms": median("switch_wait_ms"),
            "switch_bytes": median("switch_bytes"), "predicted_switch_bytes": moved_by(plan, "_bytes"),
            "passes": median("passes"), "predicted_passes": sum(g["passes"] for g in step["groups"]),
            "load": load}


def measure(args, job, folder):
    single, groups = plans_of(args, job)
    grouped = ["data.packing=group", f"switch.groups={groups['groups'].replace(' ', ',')}"]
    if "switch.overlap=false" in groups["home"]:
        runs = [("groups", groups, grouped)]
    else:
        runs = [("groups", groups, grouped),
                ("groups in turn", groups, grouped + ["switch.overlap=false"])]
    runs.insert(0, ("packed", single, ["data.packing=pack"] + row_settings(single)))
    best, losses = {}, None
    for turn in range(args.rounds):
        for name, plan, settings in runs:
            steps = train(args, job, plan, settings, Path(folder) / f"{turn}-{name.replace(' ', '-')}")
            row = row_of(name, plan, steps, os.getloadavg()[0])
            losses = losses or [s["loss"] for s in steps]
            row["loss_error"] = max(abs(s["loss"] - want) for s, want in zip(steps, losses))
            if row["loss_error"] > TOLERANCE:
                sys.exit(f"{name}: losses differ by {row['loss_error']:g}")
            if name not in best or row["tokens_per_s"] > best[name]["tokens_per_s"]:
                best[name] = row
    return list(best.values())


def row_settings(single):
    """What a single group says beside its mesh."""
    words = single["groups"].split()[1:]
    names = {"recompute": "train.recompute", "micro_batch": "train.micro_batch"}
    pairs = [w.split("=", 1) for w in words]
    return [f"{names[key]}={value}" for key, value in pairs if key in names]


def report(rows, path):
    for row in rows:
        row["gain"] = row["tokens_per_s"] / rows[0]["tokens_per_s"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    print(f"{'run':16}{'tokens/s':>10}{'gain':>7}{'predicted':>11}{'switching':>11}{'predicted':>11}{'waited':>9}"
          f"{'moved':>10}{'predicted':>11}{'load':>6}  home; groups")
    for r in rows:
        print(f"{r['run']:16}{r['tokens_per_s']:10.0f}{r['gain']:7.2f}{r['predicted']:11.0f}"
              f"{r['switch_ms']:8.1f} ms{r['predicted_switch_ms']:8.1f} ms{r['switch_wait_ms']:6.0f} ms"
              f"{r['switch_bytes'] / 1e6:7.1f} MB{r['predicted_switch_bytes'] / 1e6:8.1f} MB{r['load']:6.1f}"
              f"  {r['home']}; {r['groups']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--dhelix", type=Path, default=ROOT / "build/release/src/cli/dhelix")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--memory", help="of a rank, as 60MB; without: no limit of its own")
    parser.add_argument("--gbps", type=float, default=4)
    parser.add_argument("--latency-us", type=float, default=20)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--tokenizer", default="bytes", help="bytes, or a path")
    parser.add_argument("--batch", type=int, default=8, help="rows of a step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--strategies", action="store_true", help="let the plans choose them too")
    parser.add_argument("--csv", type=Path, default=ROOT / "build/bench/switch.csv")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB.format(data=documents_of(args.corpus.resolve(), folder), steps=args.steps,
                                  tokenizer=tokenizer_of(args), batch=args.batch, seq_len=args.seq_len, layers=args.layers,
                                  width=args.width, head_dim=args.width // 8,
                                  ffn=args.width * 11 // 32 * 8, gbps=args.gbps,
                                  latency_us=args.latency_us), encoding="utf-8")
        rows = measure(args, job, folder)
    report(rows, args.csv)


if __name__ == "__main__":
    main()
