"""The parts, in order of value, and their checks but those of speed (speed.py)."""
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import speed
from bench import Failed, Skipped, json_lines
from jobs import FAMILIES, MESHES, SANITIZED, job_words, write_job

# The driver that a CUDA runtime asks for at least, by its major version.
LEAST_DRIVER = {12: 525, 13: 580}
SMI_FOLDERS = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/bin"]


class Check:
    """One line of the report: `run` returns what there is to say, or raises Failed or Skipped."""

    def __init__(self, name, run, least_seconds=0):
        self.name, self.run, self.least_seconds = name, run, least_seconds


class Part:
    def __init__(self, name, title, checks):
        self.name, self.title, self.checks = name, title, checks


# ---- machine -------------------------------------------------------------------------------------------------


def machine(b):
    m = b.machine()
    m["system"] = f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    m["glibc"] = next((line for line in _lines(b, ["ldd", "--version"]) if line), "not found")
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            m["processor"] = line.split(":", 1)[1].strip()
            break
    m["dhelix"] = next(iter(_lines(b, [b.program("dhelix"), "--version"])), "does not start")
    return f"{m['system']}; {m['dhelix']}"


def _lines(b, words):
    if not shutil.which(str(words[0])):
        return []
    return b.run(words, 30, missing_ok=True).out.splitlines()


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def gpu_of_kernel(b):
    """What the driver's files say where there is no nvidia-smi: containers may have the driver without its tools."""
    m, folder = b.machine(), Path(os.environ.get("DHELIX_DRIVER_FILES", "/proc/driver/nvidia"))
    version = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _read(folder / "version"))
    names = [re.search(r"Model:\s*(.+)", _read(file)) for file in sorted(folder.glob("gpus/*/information"))]
    names = [name.group(1).strip() for name in names if name]
    if not version or not names:
        m["no_gpu"] = "the machine has no GPU: there is no nvidia-smi"
        raise Failed(m["no_gpu"])
    del m["no_gpu"]
    m.update(gpus=names, gpu=names[0], driver=version.group(1), memory="unknown",
             capability="9.0" if re.search(r"\bG?H(100|200|800|20)\b", names[0]) else "unknown")
    return f"{len(names)} of {names[0]}, driver {version.group(1)}; there is no nvidia-smi, so the driver's files say so"


def gpu(b):
    """What nvidia-smi says; without a GPU the parts that need one are left out, by these words."""
    m = b.machine()
    m["no_gpu"] = "the machine has no GPU"
    smi = shutil.which("nvidia-smi", path=os.pathsep.join([os.environ.get("PATH", ""), *SMI_FOLDERS]))
    if not smi:
        return gpu_of_kernel(b)
    asked = b.run([smi, "--query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm", "--format=csv,noheader"], 60, missing_ok=True)
    rows = [line for line in asked.out.splitlines() if line.count(",") >= 3]
    if asked.status != 0 or not rows:
        m["no_gpu"] = f"the machine has no GPU: nvidia-smi says \"{asked.error()}\""
        raise Failed(m["no_gpu"])
    m["gpus"] = rows
    name, driver, memory, capability = [word.strip() for word in rows[0].split(",")[:4]]
    m.update(gpu=name, driver=driver, memory=memory, capability=capability)
    del m["no_gpu"]
    return f"{len(rows)} of {name}, {memory}, compute capability {capability}, driver {driver}"


def libraries(b):
    """CUDA's, NCCL's: where they are."""
    found = b.run([b.program("cuda-libs")], 60).out.split("\n")
    places = dict(line.split(" ", 1) for line in found if " " in line)
    b.machine()["libraries"] = places
    lt = next((name for name in places if name.startswith("libcublasLt")), None)
    if not lt or places[lt] == "none":
        why = f"{lt or 'libcublasLt'} is nowhere on this machine (CUDA's folder or PyTorch's wheels): DHELIX_CUDA_LIBS names its folder"
        b.machine().setdefault("no_gpu", why)
        raise Failed(why)
    return ", ".join(f"{name} in {place}" for name, place in places.items() if place != "none")


def nccl(b):
    if b.machine().get("libraries", {}).get("libnccl.so.2", "none") == "none":
        raise Failed("libnccl.so.2 is nowhere on this machine: ranks on several GPUs communicate through the host")
    return b.machine()["libraries"]["libnccl.so.2"]


def driver(b):
    """Whether the program starts on this driver."""
    b.need_gpu()
    major = int(re.sub(r".*so\.", "", next((name for name in b.machine().get("libraries", {}) if "cublasLt" in name), "so.13")) or 13)
    least, has = LEAST_DRIVER.get(major, 0), b.machine()["driver"]
    try:
        _train(b, "cuda", "{family: gpt2, n_layers: 1, width: 32, n_heads: 2, max_seq: 32}", "train.steps=1", 60)
    except Failed as failed:
        if has.split(".")[0].isdigit() and int(has.split(".")[0]) < least:
            why = f"the driver is too old: {has}, and CUDA {major} takes {least} or later"
        elif b.machine().get("libraries", {}).get("libcuda.so.1") == "none" and "InsufficientDriver" in str(failed):
            why = f"the driver {has} is there and its libcuda.so.1 is not found: put its folder first in LD_LIBRARY_PATH"
        else:
            why = "a step of the smallest model fails"
        if "no GPU, or no driver" in str(failed) or "InsufficientDriver" in str(failed):
            b.machine()["no_gpu"] = why
        raise Failed(f"{why} ({failed})") from failed
    return f"driver {has}: a step of the smallest model runs"


def _pythons():
    """Those that may have PyTorch, as bin/dhelix looks for its libraries."""
    named = [os.environ.get("DHELIX_PYTHON"), shutil.which("python3"), shutil.which("python")]
    found = [str(path) for pattern in ("*/bin/python3", "*/.venv/bin/python3") for path in sorted(Path("/opt").glob(pattern))]
    return list(dict.fromkeys(python for python in named + found if python))


def torch(b):
    """PyTorch, in the python3 of the machine: for comparison alone."""
    code = "import torch, json; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))"
    for python in _pythons():
        asked = b.run([python, "-c", code], 180, missing_ok=True)
        line = next((line for line in asked.out.splitlines() if line.startswith("[")), None)
        if asked.status == 0 and line:
            version, cuda, has_gpu = json.loads(line)
            b.machine()["torch"] = {"python": python, "version": version, "cuda": cuda, "gpu": has_gpu}
            if not has_gpu:
                raise Failed(f"PyTorch {version} is there and finds no GPU: nothing is compared with it")
            return f"PyTorch {version} for CUDA {cuda} in {python}"
    raise Failed("PyTorch is not there: no python3 of this machine imports torch; nothing is compared with it")


def machine_checks(b):
    return [Check("system", machine), Check("GPU", gpu), Check("libraries", libraries), Check("NCCL", nccl), Check("driver", driver),
            Check("PyTorch", torch)]


# ---- kernels, operators --------------------------------------------------------------------------------------

GROUPS = ["norm", "pointwise", "loss", "optim", "moe", "latent", "linear", "cuda", "cuda_mma", "attn"]
# Heads of 64 channels: what wgmma takes.
WIDE_HEADS = "{family: llama, n_layers: 1, width: 128, n_heads: 2, n_kv_heads: 1, head_dim: 64, max_seq: 64, ffn_width: 64, tied_head: false}"


def _log_line(b, text):
    return next((line for line in b.log_path().read_text(encoding="utf-8").splitlines() if text in line), None)


def wgmma(b):
    """Whether attention by wgmma is used here; where it is not as it should be, later checks leave it out."""
    b.need_gpu()
    if b.machine().get("capability") != "9.0":
        raise Skipped(f"compute capability {b.machine().get('capability', 'unknown')} has no wgmma: attention is the portable one")
    try:
        _train(b, "cuda", WIDE_HEADS, "train.dtype=bf16 train.steps=1 train.batch=1 train.seq_len=64", 300 if b.small else 90,
               {"DHELIX_LOG": "info", "DHELIX_CUDA_HANG_S": "240" if b.small else "60"})
    except Failed as failed:
        b.machine()["wgmma"] = f"off: {failed}"
        raise Failed(f"attention by wgmma does not run, and is left out from here on (DHELIX_WGMMA=off): {failed}") from failed
    kept, used = _log_line(b, "attention keeps the portable kernels"), _log_line(b, "attention by wgmma, compared")
    if kept:
        b.machine()["wgmma"] = "off: its results differ"
        raise Failed(kept.split("device cuda: ", 1)[-1])
    if not used:
        b.machine()["wgmma"] = "off: not compared"
        raise Failed("the program says nothing of attention by wgmma: it was built without it, or DHELIX_WGMMA=off is set")
    b.machine()["wgmma"] = "used"
    return used.split("device cuda: ", 1)[-1]


def _suite(b, words, limit):
    """A suite, its failures, and the largest errors of all its results."""
    b.need_gpu()
    errors = b.work / "errors.jsonl"
    env = {"DHELIX_ERRORS": errors, **b.keep_wrong()}
    if not b.small:
        env["DHELIX_TEST_DEEP"] = "1"
    try:
        done = b.run(words, limit, env)
    finally:
        rows = json_lines(errors) if errors.exists() else []
        rows.sort(key=lambda r: -r["largest"] / max(r["tolerance"], 1e-300))
        b.figures["errors"] = rows[:40]
        b.figures["compared"] = sum(r["n"] for r in rows)
    if done.status != 0 or "not run:" in done.out:
        raise Failed(done.error())
    worst = rows[0] if rows else None
    said = f"{b.figures['compared']} results" if rows else ""
    return said + (f", the largest error {worst['largest']:.2g} of {worst['tolerance']:.2g} ({worst['call']}: {worst['what']} {worst['type']})"
                   if worst else "")


def kernel_checks(b):
    groups = ["norm", "loss", "moe"] if b.small else GROUPS
    suites = [Check(group, lambda b, g=group: _suite(b, [b.program("test_gpu_kernels"), g], 90), 5) for group in groups]
    return [Check("attention by wgmma, beside the portable kernels", wgmma, 5), *suites] + ([] if b.small else [
        Check("attention by wgmma, against the cpu", lambda b: _suite(b, [b.program("test_gpu_kernels"), "wgmma"], 90), 5)])


def operator_checks(b):
    def run(b):
        # Blocks of all families; in a rehearsal they take minutes.
        if b.small:
            raise Skipped("a rehearsal leaves them out: they take minutes without a GPU (test_cuda_glue)")
        return _suite(b, [b.program("test_gpu_operators")], 240)
    return [Check("all operators, in blocks of every family", run, 10)]


# ---- jobs ----------------------------------------------------------------------------------------------------


def _train(b, device, model, settings, limit, env=None):
    """A run's lines of metrics, and its summary."""
    job, out = b.work / "job.yaml", b.work / f"run-{device}"
    write_job(b, job)
    shutil.rmtree(out, ignore_errors=True)
    words = [b.program("dhelix"), "train", job, "--quiet", *job_words(b, model, settings, device, out)]
    hang = {"DHELIX_CUDA_HANG_S": os.environ.get("DHELIX_CUDA_HANG_S", str(max(2, int(min(limit, b.seconds_left()) * 0.7))))}
    done = b.run(words, limit, {"OMP_NUM_THREADS": "1", "DHELIX_GEMM_PEAK": "1e12", **hang, **(env or {})}, missing_ok=True)
    if done.status != 0:
        why = done.error()
        if "CUDA:" in why and not any(word in why for word in ("has not ended:", "MemoryAllocation")) and device == "cuda" and "CUDA_LAUNCH_BLOCKING" not in (env or {}) and "no GPU" not in why:
            # Where launches wait for their kernels the call that fails is the one that is named.
            again = b.run(words + ["--fresh"], limit, {"OMP_NUM_THREADS": "1", "DHELIX_GEMM_PEAK": "1e12", "CUDA_LAUNCH_BLOCKING": "1", **hang},
                          missing_ok=True)
            why += f"; with CUDA_LAUNCH_BLOCKING=1: {again.error() if again.status else 'it passes'}"
        raise Failed(why)
    return [row for row in json_lines(out / "metrics.jsonl") if "loss" in row]


def _compare(a, b, tolerance):
    """The largest relative difference of losses and of gradients' norms over the steps."""
    worst = {}
    if len(a) != len(b) or not a:
        raise Failed(f"{len(a)} steps on the GPU, {len(b)} on the cpu")
    for key in ("loss", "grad_norm"):
        worst[key] = max(abs(x[key] - y[key]) / max(abs(y[key]), 1e-12) for x, y in zip(a, b))
        # Norms are of roundings of all gradients: coarser by what the loss is not.
        if not worst[key] <= tolerance * (1 if key == "loss" else 10):
            step = next(i for i, (x, y) in enumerate(zip(a, b)) if not abs(x[key] - y[key]) <= tolerance * abs(y[key]))
            raise Failed(f"{key} differs by {worst[key]:.3g} (tolerance {tolerance * (1 if key == 'loss' else 10):g}), first in step {step + 1}: "
                         f"{a[step][key]:.9g} on the GPU, {b[step][key]:.9g} on the cpu")
    return worst


def _job_check(model, settings):
    def run(b):
        b.need_gpu()
        # Sums in other orders; bf16 rounds what that makes. As tests/cli/cuda.sh.
        tolerance = 5e-3 if "bf16" in settings else 2e-4
        ours = _train(b, "cuda", model, settings, 120)
        cpu = _train(b, "cpu", model, settings, 120)
        worst = _compare(ours, cpu, tolerance)
        b.figures.update(steps=len(ours), loss=ours[-1]["loss"], loss_error=worst["loss"], grad_norm_error=worst["grad_norm"])
        return f"{len(ours)} steps, losses within {worst['loss']:.2g}, norms of gradients within {worst['grad_norm']:.2g}"
    return run


def job_checks(b):
    jobs = FAMILIES[:2] if b.small else FAMILIES
    return [Check(name, _job_check(model, settings), 5) for name, model, settings in jobs]


def mesh_checks(b):
    meshes = MESHES[:1] if b.small else MESHES
    checks = [Check(f"{name}, by copies on the GPU", _job_check(model, f"{settings} parallel.gpu_comm=device"), 5) for name, model, settings in meshes]

    def by_nccl(name, model, settings, env, where):
        def run(b):
            b.need_gpu()
            if b.machine().get("libraries", {}).get("libnccl.so.2", "none") == "none":
                raise Skipped("the machine has no NCCL")
            try:
                ours = _train(b, "cuda", model, f"{settings} parallel.gpu_comm=nccl parallel.timeout_s=30", 60, env)
            except Failed as failed:
                if "have the same GPU" in str(failed) or "Duplicate GPU" in str(failed) or "invalid usage" in str(failed):
                    raise Skipped(f"this NCCL has no ranks that share a GPU: {failed}") from failed
                raise
            worst = _compare(ours, _train(b, "cpu", model, settings, 120), 5e-3)
            return f"losses within {worst['loss']:.2g}"
        return Check(f"{name}, by NCCL on {where}", run, 5)
    shared = [by_nccl(*mesh, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, "one GPU") for mesh in meshes[:1 if b.small else 2]]
    several = len(b.machine().get("gpus", [])) > 1 and not b.small
    return checks + shared + ([by_nccl(*mesh, {"CUDA_VISIBLE_DEVICES": "0,1"}, "two GPUs") for mesh in meshes] if several else [])


def captured_checks(b):
    def same_bits(model, settings):
        def run(b):
            b.need_gpu()
            plain = _train(b, "cuda", model, f"{settings} train.capture=off", 120)
            captured = _train(b, "cuda", model, f"{settings} train.capture=on", 120)
            for step, (x, y) in enumerate(zip(plain, captured)):
                if (x["loss"], x["grad_norm"]) != (y["loss"], y["grad_norm"]):
                    raise Failed(f"step {step + 1}: loss {y['loss']:.9g} captured, {x['loss']:.9g} not")
            return f"{len(plain)} steps with the same bits"
        return run
    return [Check(name, same_bits(model, settings), 5) for name, model, settings in FAMILIES[:1 if b.small else 3]]


# ---- compute-sanitizer ---------------------------------------------------------------------------------------


def sanitizer_checks(b):
    def run(tool, model, settings):
        def check(b):
            b.need_gpu()
            program = shutil.which("compute-sanitizer")
            for folder in (os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda"):
                for path in (f"{folder}/bin/compute-sanitizer", f"{folder}/compute-sanitizer/compute-sanitizer"):
                    program = program or (path if os.access(path, os.X_OK) else None)
            if not program:
                raise Skipped("there is no compute-sanitizer")
            job, out = b.work / "job.yaml", b.work / "run"
            write_job(b, job)
            words = [program, "--tool", tool, "--error-exitcode", "86", "--target-processes", "all", b.program("dhelix"), "train", job,
                     "--quiet", *job_words(b, model, settings + " train.steps=2 train.batch=2 train.seq_len=32", "cuda", out)]
            done = b.run(words, 150, {"OMP_NUM_THREADS": "1", "DHELIX_GEMM_PEAK": "1e12"}, missing_ok=True)
            if "Device not supported" in done.out:
                raise Skipped("compute-sanitizer does not support this machine's device")
            if "terminated before first instrumented API call" in done.out:
                raise Skipped("compute-sanitizer does not get into the program here")
            if done.status != 0:
                raise Failed(f"{tool} finds something: {done.error()}")
            return "nothing found"
        return check
    tools = ["memcheck"] if b.small else ["memcheck", "racecheck", "synccheck"]
    jobs = SANITIZED[:1] if b.small else SANITIZED
    return [Check(f"{tool}: {name}", run(tool, model, settings), 20) for name, model, settings in jobs for tool in tools]


PARTS = [
    Part("machine", "The machine", machine_checks),
    Part("kernels", "Kernels against references in float64 and the cpu", kernel_checks),
    Part("operators", "Operators against the cpu's", operator_checks),
    Part("jobs", "Jobs of every family against the cpu", job_checks),
    Part("captured", "Steps captured as a graph: the same bits", captured_checks),
    Part("meshes", "Ranks as threads on one GPU", mesh_checks),
    Part("rates", "Rates of kernels", speed.rate_checks(Check)),
    Part("steps", "Training steps", speed.step_checks(Check)),
    Part("sanitizer", "compute-sanitizer", sanitizer_checks),
    Part("hiding", "Hidden communication", speed.hiding_checks(Check)),
]
NAMES = [part.name for part in PARTS]
assert sys.version_info >= (3, 9)
