"""Runs of dhelix that a harness starts: their surroundings, and their processes."""
import os
import random
import signal
import sys
import time


def environment(**more):
    env = dict(os.environ, LC_ALL="C.UTF-8", OMP_NUM_THREADS="1", DHELIX_GEMM_PEAK="1e11",
               COLUMNS="200", DHELIX_LOG="info", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
               OMPI_MCA_hwloc_base_binding_policy="none",
               OMPI_MCA_btl_vader_single_copy_mechanism="none")
    for name in ("DHELIX_DEVICE", "DHELIX_FAULT"):
        env.pop(name, None)
    env.update(more)
    return env


def settings(text):
    return [word for pair in text.split() for word in ("--set", pair)]


# ---- processes ----

def processes(mark):
    """Those that have the mark in their environment: {pid: environment}."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                words = f.read().split(b"\0")
            with open(f"/proc/{pid}/stat") as f:
                state = f.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in words and state not in "ZX":
            found[int(pid)] = dict(w.decode(errors="replace").split("=", 1) for w in words if b"=" in w)
    return found


def name_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read().split("\0")
    except OSError:
        return []


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


# ---- harnesses ----

def clean_up_when_stopped():
    """SIGTERM ends a harness as an error does, so that what it has made goes with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def draw_seed(name, seed, fixed):
    """A seed that was asked for; the time's with DHELIX_TEST_FRESH; else always alike."""
    if seed is None:
        seed = time.time_ns() if os.environ.get("DHELIX_TEST_FRESH") else fixed
    print(f"{name}: --seed {seed}", flush=True)
    return seed


def drawn(seed, index):
    return random.Random(f"{seed}:{index}")
