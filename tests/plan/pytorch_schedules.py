"""Pipeline schedules beside PyTorch's (torch.distributed.pipelining): pytorch_schedules.py DHELIX

Every schedule that runs one copy of the model, written as CSV, is valid to PyTorch, which also finds
an order of its sends and receives. Every schedule that PyTorch makes, with its communication and
without, is read, and has the actions of the row that is named after it.
Skipped where PyTorch's pipelining is not installed."""
import csv
import json
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
try:
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
except ImportError as error:
    print("no PyTorch with pipelines:", error)
    sys.exit(SKIPPED)

JOB = """
model: {family: gpt2, n_layers: 16, n_heads: 2, width: 32, max_seq: 32, vocab: 64}
train: {micro_batch: 1, seq_len: 32}
"""
TIMES = "stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}\ntrain: {micro_batch: 1}\n"
# Class, our row, virtual stages a rank. PyTorch's LoopedBFS goes back through micro-batches in the
# opposite order; here gradients are added in the order of micro-batches. Its 1F1B runs by code and
# not by a list of actions.
BOTH = (("ScheduleGPipe", "gpipe", 1), ("ScheduleInterleaved1F1B", "interleaved-1f1b", 2),
        ("ScheduleInterleaved1F1B", "interleaved-1f1b", 3), ("ScheduleInterleavedZeroBubble", "interleaved-zb", 2),
        ("ScheduleInterleavedZeroBubble", "interleaved-zb", 3), ("ScheduleZBVZeroBubble", "zb-v", 2),
        ("ScheduleDualPipeV", "dualpipev", 2), ("ScheduleLoopedBFS", None, 2))
SIZES = ((2, 4), (4, 8), (4, 10), (4, 12))
dhelix, failures = os.path.abspath(sys.argv[1]), []


def said(*words):
    return subprocess.run((dhelix, *words), check=True, capture_output=True, text=True).stdout


def settings(pp, m, stages):
    return ("--ranks", str(pp), "--set", f"parallel.pp={pp}", "--set", f"parallel.virtual_stages={stages}",
            "--set", f"train.batch={m}")


def order_of(text):
    """Actions by rank, as PyTorch reads a file."""
    return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(text.splitlines()))}


def write(order, path):
    """As PyTorch writes a file."""
    with open(path, "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows(order[rank] for rank in sorted(order))


def computes(order):
    return [[str(a) for a in order[rank] if a is not None and a.is_compute_op] for rank in sorted(order)]


def n_stages(order):
    parts = (p for row in order.values() for a in row if a is not None for p in (a.sub_actions or (a,)))
    return max(p.stage_index for p in parts) + 1


def ours_there(row, pp, m):
    stages = 2 if row["placement"] == "round-robin" else 1
    order = order_of(said("check", "job.yaml", *settings(pp, m, stages), "--set", "parallel.schedule=" + row["name"], "--print", "csv"))
    n = n_stages(order)
    rank_of = schedules._validate_schedule(order, pp, n, m)
    # The send and receive orders are found by a walk that a schedule with a deadlock never ends.
    compute = {rank: [a for a in row if a is not None] for rank, row in order.items()}
    schedules._add_send_recv(compute, lambda stage: rank_of[stage], n)


def theirs_here(name, row, pp, m, stages):
    cls, made = getattr(schedules, name), None
    for with_comms in (True, False) if stages > 1 else (False,):
        made = dict(enumerate(get_schedule_ops(cls, pp, m, stages, with_comms=with_comms)))
        write(made, "theirs.csv")
        said("simulate", "times.yaml", *settings(pp, m, stages), "--set", "parallel.schedule=theirs.csv")
    if row:
        ours = order_of(said("check", "job.yaml", *settings(pp, m, stages), "--set", "model.n_layers=24", "--set",
                             "parallel.schedule=" + row, "--print", "csv"))
        if computes(ours) != computes(made):
            raise AssertionError(f"other actions:\n{computes(ours)}\n{computes(made)}")


def tried(what, call, *arguments):
    try:
        call(*arguments)
    except (AssertionError, RuntimeError, subprocess.CalledProcessError) as error:
        failures.append(what)
        print("FAILED:", what, error, getattr(error, "stderr", ""))


def main():
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in (("job.yaml", JOB), ("times.yaml", TIMES)):
            with open(name, "w", encoding="utf-8") as f:
                f.write(text)
        for row in json.loads(said("list", "schedules", "--json")):
            if row["placement"] in ("bidirectional", "parallel"):
                continue  # two copies of the model: PyTorch has a stage on one rank
            for pp, m in SIZES[:2]:
                tried(f"{row['name']} on {pp} ranks", ours_there, row, pp, m)
                n += 1
        for name, row, stages in BOTH:
            for pp, m in SIZES if hasattr(schedules, name) else ():
                tried(f"{name} on {pp} ranks, {m} micro-batches", theirs_here, name, row, pp, m, stages)
                n += 1
        os.chdir("/")
    print(f"{n} schedules, {len(failures)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
