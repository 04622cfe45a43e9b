#!/usr/bin/env python3
"""gpu_check.sh over CUDA as the host plays it: without a fault everything passes; of every planted one the report
says what it is.

  rehearsal.py DHELIX KERNELS BENCH     programs over the stand-in

A bundle is laid out as scripts/bundle.sh does, with those programs in it. What a machine would have beside them is
played by scripts: nvidia-smi, compute-sanitizer, a python3 with or without PyTorch.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts/gpu_check/gpu_check.py"
SMI = """#!/bin/sh
[ -z "$PLAYED_NO_GPU" ] || { echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"; exit 9; }
echo "played GPU, ${PLAYED_DRIVER:-580.95.05}, 143771 MiB, 9.0, 1980 MHz"
"""
# The checks' python3: PyTorch's version, and its step's times.
PYTHON = """#!/bin/sh
case "$1 $2" in
    *torch_step.py*) echo '{"step_ms": [1.5, 1.25, 2.0]}'; exit ;;
    "-c import torch"*)
        [ -z "$PLAYED_NO_TORCH" ] || { echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1; }
        echo '["9.9.0", "13.0", true]'; exit ;;
esac
exec "$REAL_PYTHON" "$@"
"""
SANITIZER = """#!/bin/sh
tool=
while [ "${1#--}" != "$1" ]; do
    [ "$1" != --tool ] || tool=$2
    shift 2
done
[ -n "$PLAYED_FINDING$PLAYED_OUTSIDE" ] || exec "$@"
echo "========= COMPUTE-SANITIZER"
[ -z "$PLAYED_OUTSIDE" ] || { echo "========= Error: Target application terminated before first instrumented API call"; exit 255; }
echo "========= Invalid __global__ write of size 4 bytes at norm_rows+0x1a0"
exit 86
"""
# name: environment, parts, parts that have to fail, what the report has to say
FAULTS = {
    "wrong result": ({"DHELIX_PLAY": "wrong"}, "machine kernels jobs", {"kernels", "jobs"},
                     ["differs by", "grouped: got", "attention keeps the portable kernels", "off: its results differ"]),
    "hang": ({"DHELIX_PLAY": "hang", "DHELIX_CUDA_HANG_S": "3"}, "machine", {"machine"}, ["stream compute:", "under way: while executing"]),
    "launch error": ({"DHELIX_PLAY": "launch-error"}, "machine jobs", {"machine", "jobs"}, ["cudaErrorLaunchFailure", "of the compute stream", "CUDA_LAUNCH_BLOCKING=1: dhelix: error: while executing"]),
    "missing library": ({"PLAYED": "no-cublas"}, "machine jobs", {"machine"}, ["libcublasLt.so.13 is nowhere"]),
    "no memory": ({"DHELIX_PLAY": "no-memory"}, "machine jobs", {"machine", "jobs"}, ["cudaErrorMemoryAllocation"]),
    "sanitizer finding": ({"PLAYED_FINDING": "1"}, "machine sanitizer", {"sanitizer"}, ["memcheck finds something", "norm_rows"]),
    "NCCL missing": ({"PLAYED": "no-nccl"}, "machine meshes", {"machine"}, ["libnccl.so.2 is nowhere", "the machine has no NCCL"]),
    "PyTorch missing": ({"PLAYED_NO_TORCH": "1"}, "machine steps", {"machine"}, ["PyTorch is not there"]),
    "driver too old": ({"DHELIX_PLAY": "old-driver", "PLAYED_DRIVER": "470.57"}, "machine kernels jobs", {"machine"},
                       ["the driver is too old: 470.57", "cudaErrorInsufficientDriver"]),
    "no GPU": ({"DHELIX_PLAY": "no-gpu", "PLAYED_NO_GPU": "1"}, "machine kernels jobs", {"machine"}, ["the machine has no GPU"]),
}
wrong = []


def claim(what, holds, more=""):
    if not holds:
        wrong.append(what)
        print(f"FAILED: {what}\n{more}")


def script(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def lay_out(folder, programs):
    """The bundle, and the machine's programs and libraries."""
    bundle, machine = folder / "bundle", folder / "machine"
    for each in (bundle / "bin", bundle / "lib", machine):
        each.mkdir(parents=True)
    for name, program in zip(("dhelix", "test_gpu_kernels", "bench_gpu"), programs):
        (bundle / "bin" / name).symlink_to(Path(program).resolve())
    (bundle / "examples").symlink_to(ROOT / "examples")
    (bundle / "lib/cublaslt").write_text("libcublasLt.so.13\n", encoding="utf-8")
    script(bundle / "bin/cuda-libs", (ROOT / "scripts/bundle/start.sh").read_text(encoding="utf-8"))
    for name, text in (("nvidia-smi", SMI), ("python3", PYTHON), ("compute-sanitizer", SANITIZER)):
        script(machine / name, text)
    for name, files in (("whole", ["libcublasLt.so.13", "libnccl.so.2"]), ("no-nccl", ["libcublasLt.so.13"]), ("no-cublas", ["libnccl.so.2"])):
        (folder / name).mkdir()
        for file in files:
            (folder / name / file).touch()


def environment(folder, env):
    env = {**os.environ, "PATH": f"{folder / 'machine'}:{os.environ['PATH']}", "REAL_PYTHON": sys.executable, "DHELIX_BUNDLE": str(folder / "bundle"),
           "DHELIX_CUDA_LIBS": str(folder / env.get("PLAYED", "whole")), "DHELIX_LOG": "warn", **env}
    for key in ("DHELIX_PYTHON", "CUDA_HOME", "DHELIX_TEST_DEEP"):
        env.pop(key, None)
    return env


def check(folder, name, env, parts, *more):
    """One call; its results and its page."""
    out = folder / ("out " + name)
    words = [sys.executable, str(CHECK), "--small", "--minutes", "8", "--out", str(out), *(["--parts", parts] if parts else []), *more]
    done = subprocess.run(words, env=environment(folder, env), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return done, results, (out / "results.md").read_text(encoding="utf-8"), out


def failed_parts(results):
    return {c["part"] for c in results["checks"] if c["status"] == "failed"}


def without_a_fault(folder):
    done, results, page, out = check(folder, "no fault", {}, "")
    claim("without a fault nothing fails", done.returncode == 0 and not failed_parts(results), done.stdout + done.stderr)
    claim("the page says so", "Nothing failed." in page and "A rehearsal" in page, page)
    by_part = {c["part"] for c in results["checks"] if c["status"] == "passed"}
    for part in ("machine", "kernels", "jobs", "captured", "meshes", "rates", "steps", "sanitizer", "hiding"):
        claim(f"part {part} ran", part in by_part, done.stdout)
    claim("errors are told", any(r["n"] > 0 for c in results["checks"] for r in c.get("figures", {}).get("errors", [])))
    claim("rates are told", any(r.get("of_peak") for c in results["checks"] for r in c.get("figures", {}).get("rates", [])))
    claim("attention by wgmma is compared and used", results["machine"].get("wgmma") == "used" and "the largest difference is" in page, page)
    claim("PyTorch takes turns", any(c.get("figures", {}).get("torch_ms") == 1.5 for c in results["checks"]))
    claim("pairs are written", (out / "pairs-copies.csv").stat().st_size > 100)
    claim("nothing is left behind", not (out / "work").exists())


def missing_then_there(folder):
    """A machine's lack that is mended between two calls: the second asks again, and tries what was left out."""
    _, results, _, out = check(folder, "mended", {"PLAYED": "no-cublas"}, "machine jobs")
    claim("without the library jobs are left out", {c["status"] for c in results["checks"] if c["part"] == "jobs"} == {"skipped"}, str(results))
    done, results, page, _ = check(folder, "mended", {}, "machine jobs", "--continue")
    claim("with it they run", done.returncode == 0 and {c["status"] for c in results["checks"]} == {"passed"} and "Nothing failed." in page, page)
    n = len(results["checks"])
    claim("and stand there once", n == len({(c["part"], c["name"]) for c in results["checks"]}), page)
    with tarfile.open(out.with_name(out.name + ".tar.gz")) as archive:
        names = archive.getnames()
    claim("one file has all of it", {f"{out.name}/results.json", f"{out.name}/results.md", f"{out.name}/logs"} <= set(names), str(names))


def without_nvidia_smi(folder):
    """A container that has the driver without its tools."""
    files = folder / "driver"
    (files / "gpus/0000").mkdir(parents=True)
    (files / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", encoding="utf-8")
    (files / "gpus/0000/information").write_text("Model: \t\t NVIDIA H200\nIRQ: 17\n", encoding="utf-8")
    smi = folder / "machine/nvidia-smi"
    kept = smi.read_text(encoding="utf-8")
    smi.unlink()
    if shutil.which("nvidia-smi"):
        print("not tried: this machine has an nvidia-smi")
        return script(smi, kept)
    _, results, page, _ = check(folder, "no tools", {"DHELIX_DRIVER_FILES": str(files)}, "machine")
    script(smi, kept)
    m = results["machine"]
    claim("the driver's files tell of the GPU", not failed_parts(results) and (m["gpu"], m["driver"], m["capability"]) ==
          ("NVIDIA H200", "580.95.05", "9.0"), page)


def sanitizer_outside(folder):
    """compute-sanitizer that sees nothing of the program has found nothing wrong either."""
    _, results, page, _ = check(folder, "outside", {"PLAYED_OUTSIDE": "1"}, "machine sanitizer")
    claim("a sanitizer that does not get in is left out", {c["status"] for c in results["checks"] if c["part"] == "sanitizer"} == {"skipped"}, page)


def stopped(folder):
    """A call that is told to end: its program ends too, and what there was is written."""
    out, pid = folder / "stopped", folder / "pid"
    smi = folder / "machine/nvidia-smi"
    kept = smi.read_text(encoding="utf-8")
    script(smi, f"#!/bin/sh\necho $$ >{pid}.new && mv {pid}.new {pid}\nexec sleep 600\n")
    call = subprocess.Popen([sys.executable, str(CHECK), "--small", "--out", str(out)], env=environment(folder, {}), stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        if pid.exists():
            break
        time.sleep(0.1)
    call.terminate()
    said, _ = call.communicate(timeout=60)
    script(smi, kept)
    claim("a call that is stopped says what there is", call.returncode == 143 and "results:" in said and (out / "results.md").exists(), said)
    try:
        os.kill(int(pid.read_text(encoding="ascii")), 0)
        claim("its program ended", False)
    except ProcessLookupError:
        pass


def logs_are_small(folder):
    """No more than they may take, whatever programs say."""
    sys.path.insert(0, str(CHECK.parent))
    import bench
    out = folder / "logs"
    (out / "logs").mkdir(parents=True)
    b = bench.Bench(argparse.Namespace(small=True, out=out, minutes=1), {"machine": {}})
    for i in range(60):
        b.part, b.name = "part", str(i)
        b.log(["words"], "\ufffd" * (1 << 20), 0, 1, False)
    size = sum(f.stat().st_size for f in (out / "logs").iterdir())
    claim("logs take 16 MB at most", 8 << 20 < size <= 16 * 10**6, str(size))
    quota = folder / "cpu.max"
    for text, want in (("max 100000", len(os.sched_getaffinity(0))), ("100000 100000", 1), ("50000 100000", 1), ("nothing", len(os.sched_getaffinity(0)))):
        quota.write_text(text + "\n", encoding="ascii")
        claim(f"processors of a quota of {text}", bench.processors(quota) == want)


def goes_on(folder):
    """A call without time leaves everything to the next one, which does not repeat what is done."""
    name = "continued"
    done, results, _, out = check(folder, name, {}, "machine")
    n = len(results["checks"])
    env = {**os.environ, "DHELIX_BUNDLE": str(folder / "bundle")}
    for minutes, want in (("0.01", "no time"), ("10", "skipped")):
        subprocess.run([sys.executable, str(CHECK), "--small", "--continue", "--minutes", minutes, "--out", str(out), "--parts", "machine operators"],
                       env=env, capture_output=True, check=False)
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        claim(f"with {minutes} minutes: {want}", [c["status"] for c in results["checks"][n:]] == [want], json.dumps(results["checks"], indent=1))
    again = subprocess.run([sys.executable, str(CHECK), "--out", str(out)], env=env, capture_output=True, text=True, check=False)
    claim("results are not overwritten", again.returncode != 0 and "--continue" in again.stderr, again.stderr)


def with_fault(folder, name):
    env, parts, failing, texts = FAULTS[name]
    done, results, page, out = check(folder, name, env, parts)
    claim(f"{name}: parts that fail: {failing}", failed_parts(results) == failing, done.stdout + done.stderr)
    claim(f"{name}: status 1", done.returncode == 1, done.stderr)
    for text in texts:
        claim(f"{name}: the page says \"{text}\"", text in page, page)
    for part in parts.split():
        claim(f"{name}: part {part} is told of", any(c["part"] == part for c in results["checks"]), page)
    if name == "wrong result":
        kept = json.loads((out / "wrong/wrong.json").read_text(encoding="utf-8"))
        size = (out / "wrong/wrong.bin").stat().st_size
        claim("the first wrong kernel is kept", kept["call"].startswith("dh_cuda_") and kept["arrays"] and
              size == sum(a["bytes"] for a in kept["arrays"]) <= 8 << 20, json.dumps(kept)[:2000])
        claim("its scalar arguments have values", len(kept["values"]) == len(kept["arguments"].split(",")) and
              any(isinstance(v, (int, dict)) for v in kept["values"]), json.dumps(kept)[:2000])
    print(f"{name}: " + next(line for line in page.splitlines() if " failed.** " in line))


def main():
    with tempfile.TemporaryDirectory(prefix="dhelix-rehearsal-") as name:
        folder = Path(name)
        lay_out(folder, sys.argv[1:])
        without_a_fault(folder)
        goes_on(folder)
        missing_then_there(folder)
        without_nvidia_smi(folder)
        sanitizer_outside(folder)
        stopped(folder)
        logs_are_small(folder)
        for fault in FAULTS:
            with_fault(folder, fault)
    print(f"{len(wrong)} claims failed" if wrong else "all claims hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
