#!/usr/bin/env python3
"""What of ZeRO's gathers and reductions is hidden on a limited wire, beside PyTorch's FSDP2 over gloo.

Two ranks, a core and a thread each, in two network namespaces that a rate-limited veth pair joins;
dhelix under Open MPI by TCP, PyTorch by gloo. The same GPT-2, micro-batches and optimizer. Rows take
turns over the rounds; the best round's median step counts. Needs root, and for PyTorch's rows an
interpreter with torch 2.6 or later (--torch). README.md says what the columns mean.

  bench/zero/run.py --torch build/torch-venv/bin/python      # about 15 minutes
  bench/zero/run.py --gbps 1 --rows "zero-2 zero-2-every"    # dhelix alone
"""
import argparse
import contextlib
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data" / "tinyshakespeare.txt"
PEER = Path(__file__).resolve().parent / "fsdp_step.py"
SUBNET = "192.0.2.0/24"  # TEST-NET-1: routed nowhere
JOB = """\
model: {{family: gpt2, n_layers: {layers}, width: {width}, n_heads: 8, max_seq: 256}}
data: {{train: {data}, tokenizer: bytes, val_fraction: 0}}
train: {{steps: {steps}, batch: {batch}, micro_batch: {micro_batch}, seq_len: 256, threads: 1}}
optimizer: {{lr: 1.0e-4, schedule: constant, weight_decay: 0.1}}
eval: {{every: 0}}
checkpoint: {{every: 0}}
parallel: {{bucket_mb: 4}}
"""
# dhelix's rows: settings. PyTorch's: arguments of fsdp_step.py.
OURS = {
    "zero-1": ["zero=1"],
    "zero-1-forward": ["zero=1", "gather=forward"],
    "zero-2": ["zero=2"],
    "zero-2-every": ["zero=2", "gradient_sync=every"],
    "zero-3-kept": ["zero=3", "reshard_after_forward=false"],
    "zero-3": ["zero=3"],
    "zero-3-every": ["zero=3", "gradient_sync=every"],
}
PEERS = {
    "ddp": ["--mode", "ddp", "--sync", "last"],
    "fsdp2-kept": ["--reshard", "false", "--sync", "last"],
    "fsdp2": ["--sync", "last"],
    "fsdp2-every": ["--sync", "every"],
    "fsdp2-async": ["--sync", "last", "--async"],
    "fsdp2-async-every": ["--sync", "every", "--async"],
}
FIELDS = ["row", "gbps", "step_ms", "alone_ms", "sent_mb", "wire_ms", "hidden", "own_hidden", "slab_mb", "rss_mb"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gbps", type=float, default=2, help="rate of the wire, each direction")
    p.add_argument("--rows", default=" ".join([*OURS, *PEERS]), help="of " + " ".join([*OURS, *PEERS]))
    p.add_argument("--torch", help="interpreter with PyTorch; without it its rows are left out")
    p.add_argument("--dhelix", type=Path, default=ROOT / "build/release/src/cli/dhelix")
    p.add_argument("--steps", type=int, default=5, help="timed steps of a run")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--micro", type=int, default=4, help="micro-batches of a rank's step")
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--csv", type=Path, default=ROOT / "build/bench/zero.csv")
    return p.parse_args()


# ---- the wire -------------------------------------------------------------------------------


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def wire(gbps):
    """Two namespaces joined by a pair that tc limits; their names. Nothing else sees it."""
    prefix = f"dhelix-{os.getpid()}"
    os.environ["DHELIX_NETNS"] = prefix  # bench/netns/netns-agent.sh
    names = [f"{prefix}-dh-a", f"{prefix}-dh-b"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "address", "add", f"192.0.2.{i + 1}/24", "dev", "wire")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire", "mtu", "9000", "up")
            shape = ["tbf", "rate", f"{gbps}gbit", "burst", "64kb", "limit", "8mb"]
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "wire", "root", *shape], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def sent_bytes(names):
    """Most that one end has sent so far."""
    return max(int(subprocess.run(["ip", "netns", "exec", n, "cat", "/sys/class/net/wire/statistics/tx_bytes"],
                                  check=True, capture_output=True, text=True).stdout) for n in names)


# ---- programs -------------------------------------------------------------------------------


class Failure(Exception):
    """A command that failed, with what it said."""


def finish(processes):
    """Standard outputs of commands that run at once."""
    try:
        outs = [p.communicate(timeout=900) for p in processes]
    finally:
        for p in processes:
            p.kill()  # one that has ended is left alone
    for p, (_, err) in zip(processes, outs):
        if p.returncode:
            raise Failure(err[-2000:])
    return [out for out, _ in outs]


def start(command, env, core=None):
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train_command(a, folder, name, settings, ranks):
    job = folder / f"{name}.yaml"
    micro_batch = 2
    steps = a.steps + 2
    job.write_text(JOB.format(layers=a.layers, width=a.width, data=DATA, steps=steps, micro_batch=micro_batch,
                              batch=a.micro * micro_batch * ranks), encoding="utf-8")
    words = [str(a.dhelix), "train", str(job), "--fresh", "--quiet", "--set", f"out={folder / name}"]
    for setting in settings:
        words += ["--set", f"parallel.{setting}"]
    return words


def read_run(out):
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [s for s in map(json.loads, lines) if "step_ms" in s]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {"step_ms": statistics.median(s["step_ms"] for s in steps[2:]), "own_hidden": summary.get("hidden_share"),
            "slab_mb": summary.get("slab_planned_bytes", 0) / 1e6}


def ours(a, folder, names, row, turn):
    """One run of dhelix: over the wire, or (row "alone") two of one rank at once."""
    env = dict(os.environ, OMP_NUM_THREADS="1", DHELIX_LOG="warn", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PATH=f"{ROOT / 'bench/netns'}:{os.environ['PATH']}", TMPDIR=str(folder))
    if row == "alone":
        runs = [f"alone-{turn}-{i}" for i in range(2)]
        finish([start(train_command(a, folder, run, [], 1), env, i) for i, run in enumerate(runs)])
        return {"step_ms": statistics.mean(read_run(folder / run)["step_ms"] for run in runs)}
    run = f"{row}-{turn}"
    mpirun = ["mpirun", "-n", "2", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "oob_tcp_if_include", SUBNET,
              "--host", "dh-a:1,dh-b:1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", SUBNET,
              "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", "netns-agent.sh"]
    host = ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", 'hostname dh-a && exec "$@"', "sh"]
    finish([start([*host, *mpirun, *train_command(a, folder, run, ["dp=2", *OURS[row]], 2)], env)])
    return read_run(folder / run)


def peer(a, names, row):
    """The same of PyTorch."""
    base = [a.torch, str(PEER), "--steps", str(a.steps), "--micro", str(a.micro), "--layers", str(a.layers),
            "--width", str(a.width)]
    env = dict(os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="192.0.2.1", MASTER_PORT="29511", WORLD_SIZE="2",
               GLOO_SOCKET_IFNAME="wire", **{"MALLOC_MMAP_THRESHOLD_": "17179869184", "MALLOC_TRIM_THRESHOLD_": "34359738368"})
    if row == "alone":
        outs = finish([start([*base, "--mode", "alone"], env, i) for i in range(2)])
        return {"step_ms": statistics.mean(statistics.median(json.loads(o)["step_ms"]) for o in outs)}
    ranks = [start(["ip", "netns", "exec", n, *base, *PEERS[row]], dict(env, RANK=str(i)), i) for i, n in enumerate(names)]
    found = json.loads(finish(ranks)[0])
    return {"step_ms": statistics.median(found["step_ms"]), "rss_mb": found["peak_rss_mb"]}


# ---- rows -----------------------------------------------------------------------------------


def measure(a, folder, names, row, turn):
    before = sent_bytes(names)
    found = ours(a, folder, names, row, turn) if row in OURS else peer(a, names, row)
    found["sent_mb"] = (sent_bytes(names) - before) / (a.steps + 2) / 1e6
    return found


def best(runs):
    return min(runs, key=lambda r: r["step_ms"])


def table(a, rows, alone, results):
    print(f"{'row':<20}{'step ms':>9}{'alone ms':>10}{'sent MB':>9}{'wire ms':>9}{'hidden':>8}{'its own':>9}{'slab MB':>9}{'RSS MB':>8}")
    with a.csv.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, FIELDS)
        out.writeheader()
        for row in rows:
            if row not in results:
                continue
            r = best(results[row])
            alone_ms = best(alone["ours" if row in OURS else "peer"])["step_ms"]
            wire_ms = r["sent_mb"] * 8 / a.gbps
            hidden = max(0.0, 1 - max(r["step_ms"] - alone_ms, 0) / wire_ms)
            line = {"row": row, "gbps": a.gbps, "step_ms": round(r["step_ms"], 1), "alone_ms": round(alone_ms, 1),
                    "sent_mb": round(r["sent_mb"], 1), "wire_ms": round(wire_ms, 1), "hidden": round(hidden, 3),
                    "own_hidden": r.get("own_hidden"), "slab_mb": round(r.get("slab_mb", 0), 1), "rss_mb": r.get("rss_mb")}
            out.writerow(line)
            own = f"{100 * r['own_hidden']:.0f} %" if r.get("own_hidden") is not None else ""
            print(f"{row:<20}{r['step_ms']:>9.0f}{alone_ms:>10.0f}{r['sent_mb']:>9.1f}{wire_ms:>9.0f}{100 * hidden:>6.0f} %"
                  f"{own:>9}{line['slab_mb'] or '':>9}{line['rss_mb'] or '':>8}")


def main():
    a = arguments()
    rows = [r for r in a.rows.split() if r in OURS or a.torch]
    unknown = [r for r in a.rows.split() if r not in OURS and r not in PEERS]
    if unknown:
        sys.exit(f"run.py: no row {unknown[0]}: take some of {' '.join([*OURS, *PEERS])}")
    if os.geteuid() != 0:
        sys.exit("run.py: network namespaces need root")
    a.csv.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what ends the namespaces
    results, alone = {}, {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory(prefix="dhelix-zero-") as name, wire(a.gbps) as names:
        folder = Path(name)
        for turn in range(a.rounds):
            alone["ours"].append(ours(a, folder, names, "alone", turn))
            if any(r in PEERS for r in rows):
                alone["peer"].append(peer(a, names, "alone"))
            for row in rows:
                try:
                    results.setdefault(row, []).append(measure(a, folder, names, row, turn))
                    print(f"# round {turn + 1}: {row}: {results[row][-1]['step_ms']:.0f} ms", file=sys.stderr)
                except Failure as failure:
                    print(f"# {row} failed: {failure}", file=sys.stderr)
    results = {row: runs for row, runs in results.items() if runs}
    load = os.getloadavg()[0]
    print(f"wire of {a.gbps:g} Gbit/s, {a.micro} micro-batches of 2 x 256 tokens a rank, {a.layers} layers of width {a.width}; load {load:.1f}")
    table(a, rows, alone, results)


if __name__ == "__main__":
    main()
