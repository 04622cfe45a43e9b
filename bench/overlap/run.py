#!/usr/bin/env python3
"""Strategies side by side on the same work, with communication paced to a wanted share.

For every mesh the links are paced so that communication would be a given share of a step
that hides none of it; then the strategies take turns over the rounds and seeds, the first of them also behind every few
others. A row's speed-up is the median of what it gained over the first at the same time, its step that of the first over it.
Losses must agree.
README.md says what the columns mean.

  bench/overlap/run.py                              # build/release; about 15 minutes
  bench/overlap/run.py --meshes tp2 --shares 45 --strategies "sequential dhelix"
  bench/overlap/run.py --meshes "tp2 cp2" --widths "256 512" --seeds "1 2"
  bench/overlap/run.py --ablation                   # DHelix's switches one after another
"""
import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data" / "tinyshakespeare.txt"
# Of a loss. Orders and schedules change no bit; rings of partial GEMMs (intra-batch) add a
# reduction over ranks in another order, parts of a micro-batch (domino) gradients of weights.
TOLERANCE = 1e-5
DENSE = "{{family: gpt2, n_layers: 8, width: {width}, n_heads: {heads}, max_seq: 256}}"
EXPERTS = ("{{family: mixtral, n_layers: 4, width: {width}, n_heads: {heads}, n_kv_heads: {kv_heads}, head_dim: 32,"
           " ffn_width: {ffn}, n_experts: 4, top_k: 2, max_seq: 256, tied_head: false}}")
LINEAR = ("{{family: llama, n_layers: 8, width: {width}, n_heads: {heads}, n_kv_heads: {kv_heads}, ffn_width: {ffn},"
          " max_seq: 256, attention: linear, feature_map: elu}}")
JOB = """\
model: {model}
data: {{train: {data}, tokenizer: bytes, val_fraction: 0}}
train: {{steps: {steps}, seed: {seed}, batch: {batch}, micro_batch: 2, seq_len: 256, threads: 1, dtype: {dtype}}}
eval: {{every: 0}}
"""
# name: model, micro-batches a step, settings, link that is paced
MESHES = {
    "tp2": (DENSE, 16, ["parallel.tp=2"], "local"),
    "cp2": (DENSE, 16, ["parallel.cp=2"], "local"),
    "cp2linear": (LINEAR, 16, ["parallel.cp=2"], "local"),
    "ep2": (EXPERTS, 16, ["parallel.dp=2", "parallel.ep=2", "model.router_aux_coef=0"], "local"),
    "tp2pp2": (DENSE, 16, ["parallel.tp=2", "parallel.pp=2"], "local"),
    "dp2x2": (DENSE, 4, ["parallel.dp=4", "topology.nodes=2"], "cross"),
}
DEFAULT_MESHES = "tp2 cp2 ep2 tp2pp2"
# The switches of the paper's section 6.4, one more in each row; all with the paper's barriers.
ABLATION = [
    ("nothing", "overlap.local=false overlap.cross=false overlap.comm_comm=false overlap.wgrad=false"),
    ("+ TP overlap", "overlap.cross=false overlap.comm_comm=false overlap.wgrad=false"),
    ("+ CP overlap", "overlap.comm_comm=false overlap.wgrad=false"),
    ("+ comm-comm", "overlap.wgrad=false"),
    ("+ wgrad moves", ""),
]
# Rows that are no strategy: "unhidden" runs one operator at a time, whatever its stream.
ROWS = {"unhidden": "strategy=sequential overlap.barriers=full"}
FIELDS = ["mesh", "width", "share", "gbps", "strategy", "tokens_per_s", "speedup", "speedup_least", "speedup_most",
          "step_ms", "step_least", "step_most", "hidden",
          "dependency_ms", "contention_ms", "tail_ms", "other_ms", "bubble_ms", "partners_ms", "idle_ms", "slab_mb",
          "slab_over_first", "bound_ms", "predicted_ms", "prediction_error", "predicted_hidden", "plan_says",
          "loss_error"]


class Failure(Exception):
    """A command that failed, with what it said."""


def ranks_a_core(mesh):
    """Ranks that share a core; degrees but ep, which lies inside dp, multiply to the ranks."""
    degrees = [int(s.split("=")[1]) for s in MESHES[mesh][2] if s.startswith("parallel.") and ".ep" not in s]
    ranks = 1
    for degree in degrees:
        ranks *= degree
    return max(1, ranks / (os.cpu_count() or 1))


def words_of(args, mesh, gbps, settings, job):
    """Arguments of any command on one mesh's job."""
    _, _, own, link = MESHES[mesh]
    words = [str(job)]
    pace = [f"links.{link}.gbps={gbps:.6g}", f"links.{link}.latency_us=20"] if gbps else []
    for setting in [*own, *pace, *settings, *args.set]:
        words += ["--set", setting]
    return words


def write_job(args, mesh, folder, seed=None):
    """The job file of a mesh; data-parallel ranks share its micro-batches."""
    model, n_micro, own, _ = MESHES[mesh]
    width = args.width
    model = model.format(width=width, heads=width // 32, kv_heads=width // 64, ffn=2 * width)
    dp = next((int(s.split("=")[1]) for s in own if s.startswith("parallel.dp")), 1)
    job = folder / "job.yaml"
    job.write_text(JOB.format(model=model, data=DATA, steps=args.steps, batch=2 * n_micro * dp, dtype=args.dtype,
                              seed=args.seed_list[0] if seed is None else seed), encoding="utf-8")
    return job


def dhelix(args, command, words):
    """Standard output of one command, or Failure."""
    env = dict(os.environ, OMP_NUM_THREADS="1", DHELIX_LOG="warn")
    done = subprocess.run([str(args.dhelix), command, *words], env=env, check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"dhelix {command} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def train(args, mesh, gbps, settings, keep=None, seed=None):
    """One run: its losses, median step and where a step's time went, in ms. What its experts got
    goes to the folder `keep`, where one is given."""
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as name:
        folder = Path(name)
        out = folder / "out"
        job = write_job(args, mesh, folder, seed)
        dhelix(args, "train", [*words_of(args, mesh, gbps, [*settings, f"out={out}"], job), "--quiet"])
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        if keep and (out / "experts.json").exists():
            shutil.copy(out / "experts.json", keep)
    steps = [s for s in map(json.loads, lines) if "step_ms" in s]
    timed = steps[1:]
    times, n = summary["times"], len(timed)
    run = {"losses": [s["loss"] for s in steps],
           "step_ms": statistics.median(s["step_ms"] for s in timed),
           "tokens_per_s": statistics.median(s["tokens_per_s"] for s in timed),
           "compute_ms": times["compute_ms"] / n, "local_ms": times["local_ms"] / n,
           "cross_ms": times["cross_ms"] / n, "idle_ms": times["idle_ms"] / n,
           "bubble_ms": times["bubble_ms"] / n, "partners_ms": times["partners_ms"] / n,
           "hidden": summary["hidden_share"],
           "slab_mb": summary.get("slab_planned_bytes", steps[-1].get("slab_bytes", 0)) / 1e6}
    for cause, ms in times["exposed_by_ms"].items():
        run[f"{cause}_ms"] = ms / n
    return run


def predict(args, mesh, gbps, settings):
    """Step time in ms and hidden share, by simulation on what is known of this machine."""
    if args.no_predict:
        return None, None
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as name:
        job = write_job(args, mesh, Path(name))
        found = json.loads(dhelix(args, "simulate", [*words_of(args, mesh, gbps, settings, job), "--json"]))
    rows = found.get("strategies", [found])
    return rows[0]["step_ms"], rows[0]["hidden_share"]


def plan_says(args, mesh, gbps, settings):
    """What `dhelix plan` says of a job beside the plain one, or beside strategy sequential where only that
    differs: faster, may be slower, slower; "" where it compares with neither."""
    if args.no_predict:
        return ""
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as name:
        job = write_job(args, mesh, Path(name))
        found = json.loads(dhelix(args, "plan", [*words_of(args, mesh, gbps, settings, job), "--json"]))
    said = found.get("predicted", {})
    return said.get("beside_plain", said.get("beside_sequential", ""))


def profile(args, mesh, gbps):
    """Measure the job's operators, so that orders and predictions rest on them."""
    if args.no_profile:
        return
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as name:
        job = write_job(args, mesh, Path(name))
        dhelix(args, "profile", [*words_of(args, mesh, gbps, [], job), "--quiet"])


def pace_for(args, mesh, share, keep):
    """Link speed at which communication takes `share` of a step that hides nothing: wire time is
    measured on a slow link, where hardly anything else is in it, and scales with the speed."""
    free = train(args, mesh, 0, ["strategy=sequential"], keep)
    slow = 1.0
    probe = train(args, mesh, slow, ["strategy=sequential"])
    wire = probe["local_ms"] + probe["cross_ms"]
    return slow * wire / (free["compute_ms"] * share / (1 - share))


def measure(args, mesh, share, rows):
    """Every row's strategy in turns. Orders and predictions go by the load of experts that the first
    run recorded."""
    with tempfile.TemporaryDirectory(prefix="dhelix-overlap-") as recorded:
        gbps = pace_for(args, mesh, share / 100, recorded)
        if os.listdir(recorded):
            rows = [(name, [*settings, f"moe.recorded={recorded}"]) for name, settings in rows]
        profile(args, mesh, gbps)
        yield from take_turns(args, mesh, share, gbps, rows)


def run_round(args, mesh, gbps, rows, seed):
    """Every row once, and the first again behind every args.anchor others and at the end: by name the runs with
    the time at which each was half done."""
    turns = {name: [] for name, _ in rows}

    def turn(name, settings):
        begin = time.monotonic()
        done = train(args, mesh, gbps, settings, seed=seed)
        turns[name].append({**done, "at": (begin + time.monotonic()) / 2})

    for i, row in enumerate(rows):
        turn(*row)
        if i and (i % args.anchor == 0 or i + 1 == len(rows)):
            turn(*rows[0])
    return turns


def between(anchors, at):
    """Step of the first row at a time: on the line between its runs before and behind."""
    for before, behind in zip(anchors, anchors[1:]):
        if at <= behind["at"]:
            part = max(0, (at - before["at"]) / (behind["at"] - before["at"]))
            return before["step_ms"] + part * (behind["step_ms"] - before["step_ms"])
    return anchors[-1]["step_ms"]


def middle_of(turns):
    return sorted(turns, key=lambda turn: turn["step_ms"])[(len(turns) - 1) // 2]


def take_turns(args, mesh, share, gbps, rows):
    """The rows on links of one pace: all of them in every round, each round with every seed. The machine's speed
    drifts; so a row is compared with what the first one took at the same time."""
    rounds = [run_round(args, mesh, gbps, rows, seed) for _ in range(args.rounds) for seed in args.seed_list]
    first = [turns[rows[0][0]] for turns in rounds]
    middle = middle_of([turn for anchors in first for turn in anchors])
    for name, settings in rows:
        mine = [turns[name] for turns in rounds]
        error = max(abs(a - b) / abs(b) for turns, anchors in zip(mine, first) for turn in turns
                    for a, b in zip(turn["losses"], anchors[0]["losses"]))
        if error > args.tolerance:
            raise Failure(f"{mesh}: losses of {name} differ from {rows[0][0]}'s by {error:.2g}")
        # Where the time went is told of the run in the middle.
        run = middle_of([turn for turns in mine for turn in turns])
        steps = [turn["step_ms"] for turns in mine for turn in turns]
        gains = [between(anchors, turn["at"]) / turn["step_ms"]
                 for turns, anchors in zip(mine, first) for turn in turns]
        wire = (1 - share / 100) ** -1 * share / 100 * middle["compute_ms"]
        predicted, hidden = predict(args, mesh, gbps, settings)
        # At the speed that the machine had for the first row in the middle of its runs.
        step = middle["step_ms"] / statistics.median(gains)
        yield {**{k: v for k, v in run.items() if k in FIELDS}, "mesh": mesh, "width": args.width, "share": share,
               "gbps": gbps, "strategy": name, "step_ms": step, "step_least": min(steps), "step_most": max(steps),
               "speedup": statistics.median(gains), "speedup_least": min(gains), "speedup_most": max(gains),
               "slab_over_first": run["slab_mb"] / first[0][0]["slab_mb"],
               "bound_ms": max(run["compute_ms"] * ranks_a_core(mesh), wire), "predicted_ms": predicted,
               "prediction_error": predicted and predicted / step - 1, "predicted_hidden": hidden,
               "plan_says": plan_says(args, mesh, gbps, settings), "loss_error": error}


def print_row(row, head):
    """One line; times are rank 0's, of a step."""
    if head:
        print(f"\n{row['mesh']}, width {row['width']}, communication {row['share']} % of a step that hides none "
              f"(links paced to {row['gbps']:.2f} Gbit/s)\n"
              f"{'':<16}{'tokens/s':>9}{'speed-up':>20}{'step ms':>9}{'hidden':>8}{'depend.':>8}"
              f"{'content.':>9}{'tail':>6}{'other':>7}{'bubble':>7}{'late':>6}{'idle':>6}{'slab MB':>9}{'':>7}{'bound ms':>9}{'predicted':>16}")
    predicted = f"{row['predicted_ms']:>8.0f} {row['prediction_error']:+.0%}, {row['predicted_hidden']:.0%}" if row["predicted_ms"] else ""
    gain = f"{row['speedup']:.2f} ({row['speedup_least']:.2f} to {row['speedup_most']:.2f})"
    print(f"{row['strategy']:<16}{row['tokens_per_s']:>9.0f}{gain:>20}{row['step_ms']:>9.0f}"
          f"{row['hidden']:>8.0%}{row['dependency_ms']:>8.0f}{row['contention_ms']:>9.0f}"
          f"{row['tail_ms']:>6.0f}{row['other_ms']:>7.0f}{row['bubble_ms']:>7.0f}"
          f"{row['partners_ms']:>6.0f}{row['idle_ms']:>6.0f}{row['slab_mb']:>9.1f}"
          f"{row['slab_over_first'] - 1:>+7.1%}{row['bound_ms']:>9.0f}{predicted:>16}", flush=True)


def add_work(parser, default_widths):
    """Options of what is measured and how often, for this program and table.py."""
    parser.add_argument("--widths", default=default_widths, help="of the models, multiples of 64")
    parser.add_argument("--seeds", default="1337", help="of weights, dropout and data; every round runs each")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--anchor", type=int, default=3,
                        help="behind so many rows the first one runs again, since the machine's speed drifts")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of losses, relative; bf16 on a GPU takes more")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-predict", action="store_true", help="without `dhelix simulate`")
    parser.add_argument("--no-profile", action="store_true", help="order by estimates")


def read_work(args):
    """Lists of what add_work takes as text."""
    if args.anchor < 1:
        raise Failure(f"--anchor {args.anchor}: a whole number of rows, 1 or more")
    args.seed_list = [int(seed) for seed in args.seeds.split()]
    args.width_list = [int(width) for width in args.widths.split()]
    for width in args.width_list:
        if width <= 0 or width % 64:
            raise Failure(f"width {width} is no multiple of 64: heads have 32 channels, and share keys by two")
    args.width = args.width_list[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dhelix", type=Path, default=ROOT / "build/release/src/cli/dhelix")
    parser.add_argument("--meshes", default=DEFAULT_MESHES, help=f"of {' '.join(MESHES)}")
    parser.add_argument("--shares", default="30 45 55", help="communication in %% of an unhidden step")
    parser.add_argument("--strategies", default="sequential intra-batch flux domino wavelet+ dualpipe combined-1f1b stp dhelix-paper dhelix "
                                "dhelix-rings unhidden",
                        help="rows of `dhelix list strategies`, or unhidden: one operator at a time; "
                             "the first is what others are compared with")
    parser.add_argument("--ablation", action="store_true", help="the paper's switches instead of strategies")
    parser.add_argument("--csv", type=Path, default=ROOT / "build/bench/overlap.csv")
    parser.add_argument("--quick", action="store_true", help="one small table, for tests")
    add_work(parser, "256")
    args = parser.parse_args()
    read_work(args)
    if args.quick:
        args.meshes, args.shares, args.steps, args.rounds = "tp2", "45", 2, 1
    rows = [(s, ROWS.get(s, f"strategy={s}").split()) for s in args.strategies.split()]
    if args.ablation:
        rows = [(name, ["strategy=dhelix-paper", *switches.split()]) for name, switches in ABLATION]
    load = os.getloadavg()[0]
    print(f"# {os.cpu_count()} cores, load {load:.2f} at the start; {args.dtype}, a thread a rank, "
          f"{args.rounds} rounds of {args.steps - 1} timed steps, seeds {args.seeds}; paced links sleep, "
          f"they use no core")
    args.csv.parent.mkdir(parents=True, exist_ok=True)
    with open(args.csv, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for mesh in args.meshes.split():
            for args.width in args.width_list:
                for share in map(int, args.shares.split()):
                    for i, row in enumerate(measure(args, mesh, share, rows)):
                        print_row(row, i == 0)
                        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
                        file.flush()
    print(f"every row: {args.csv}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"overlap: {failure}")
