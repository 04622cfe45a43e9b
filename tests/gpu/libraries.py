#!/usr/bin/env python3
"""Where programs of a bundle find CUDA's libraries (scripts/bundle/start.sh): folders of every kind, planted."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LT, NCCL, DRIVER = "libcublasLt.so.13", "libnccl.so.2", "libcuda.so.1"
wrong = []


def plant(folder, *files):
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()
    return folder


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n", encoding="utf-8")
    path.chmod(0o755)


def found(bundle, **env):
    """Folders of both libraries, as bin/cuda-libs says."""
    places = said(bundle, **env)
    places.pop(DRIVER)
    return places


def said(bundle, **env):
    base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "DHELIX_CUDA_PLACES": "", "DHELIX_DRIVER_PLACES": "",
            **{k: str(v) for k, v in env.items()}}
    done = subprocess.run([str(bundle / "bin/cuda-libs")], env=base, capture_output=True, text=True, check=False)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def drivers(bundle, top, path):
    """Where the driver's libcuda is: mounted, known to ldconfig, among CUDA's stubs."""
    claim("no driver", said(bundle, PATH=path)[DRIVER], "none")
    mounted, named = plant(top / "mounted/lib64", DRIVER), plant(top / "named driver", DRIVER)
    stubs = plant(top / "cuda/lib64/stubs", DRIVER)
    claim("a driver that is mounted", said(bundle, PATH=path, DHELIX_DRIVER_PLACES=mounted)[DRIVER], str(mounted))
    claim("a driver in LD_LIBRARY_PATH, no stub", said(bundle, PATH=path, LD_LIBRARY_PATH=f"{stubs}:{named}", DHELIX_DRIVER_PLACES=mounted)[DRIVER],
          str(named))
    claim("a driver beside the libraries that are named", said(bundle, PATH=path, DHELIX_CUDA_LIBS=named)[DRIVER], str(named))
    script(top / "known driver/ldconfig", f"printf '\\t{DRIVER} (libc6,x86-64) => {mounted}/{DRIVER}\\n'")
    claim("a driver that ldconfig knows", said(bundle, PATH=f"{top / 'known driver'}:{path}")[DRIVER], str(mounted))


def not_runnable(bundle):
    """As on a file system that is mounted noexec."""
    loader = bundle / "lib/ld-linux-x86-64.so.2"
    loader.touch(mode=0o644)
    done = subprocess.run([str(bundle / "bin/dhelix")], env={"PATH": os.environ["PATH"], "DHELIX_CUDA_LIBS": ""}, capture_output=True, text=True, check=False)
    claim("a loader that may not be run", (done.returncode, "noexec" in done.stderr), (1, True))


def claim(what, got, want):
    if got != want:
        wrong.append(what)
        print(f"FAILED: {what}: {got}, not {want}")


def main():
    with tempfile.TemporaryDirectory(prefix="dhelix-libraries-") as name:
        top = Path(name)
        bundle = top / "bundle"
        plant(bundle / "lib")
        (bundle / "lib/cublaslt").write_text(LT + "\n", encoding="utf-8")
        script(bundle / "bin/dhelix", "")
        (bundle / "bin/dhelix").write_text((ROOT / "scripts/bundle/start.sh").read_text(encoding="utf-8"), encoding="utf-8")
        (bundle / "bin/cuda-libs").symlink_to("dhelix")
        # Nothing of this machine: no nvcc, nothing that ldconfig knows, a python3 without wheels.
        empty = top / "empty"
        for tool in ("ldconfig", "python3", "python", "nvcc"):
            script(empty / tool, "exit 1")
        path = f"{empty}:/usr/bin:/bin"

        nothing = {LT: "none", NCCL: "none"}
        claim("no library", found(bundle, PATH=path), nothing)
        named = plant(top / "named", LT)
        other = plant(top / "other", NCCL)
        claim("folders that are named", found(bundle, PATH=path, DHELIX_CUDA_LIBS=f"{named}:{other}"), {LT: str(named), NCCL: str(other)})
        claim("LD_LIBRARY_PATH", found(bundle, PATH=path, LD_LIBRARY_PATH=f"{named}:{other}"), {LT: str(named), NCCL: str(other)})
        home = plant(top / "cuda/lib64", LT, NCCL)
        both = {LT: str(home), NCCL: str(home)}
        claim("CUDA_HOME", found(bundle, PATH=path, CUDA_HOME=top / "cuda"), both)
        claim("CUDA_PATH", found(bundle, PATH=path, CUDA_PATH=top / "cuda"), both)
        conda = plant(top / "conda/lib", LT, NCCL)
        claim("conda's folder", found(bundle, PATH=path, CONDA_PREFIX=top / "conda"), {LT: str(conda), NCCL: str(conda)})
        script(top / "cuda/bin/nvcc", "exit 0")
        claim("nvcc's folder", found(bundle, PATH=f"{top / 'cuda/bin'}:{path}"), both)
        (top / "link").symlink_to(top / "cuda/bin/nvcc")
        plant(top / "linked")
        (top / "linked/nvcc").symlink_to(top / "cuda/bin/nvcc")
        claim("nvcc by a link", found(bundle, PATH=f"{top / 'linked'}:{path}"), both)
        claim("the usual place", found(bundle, PATH=path, DHELIX_CUDA_PLACES=top / "cuda"), both)
        system = plant(top / "system", LT, NCCL)
        script(top / "known/ldconfig", f"printf '\\t{LT} (libc6,x86-64) => {system}/{LT}\\n\\t{NCCL} (libc6,x86-64) => {system}/{NCCL}\\n'")
        claim("ldconfig", found(bundle, PATH=f"{top / 'known'}:{path}"), {LT: str(system), NCCL: str(system)})
        for kind, folders in (("one for each", ("cublas", "nccl")), ("one for all", ("cu13", "nccl"))):
            site = top / f"site {kind}".replace(" ", "-")
            lt = plant(site / "nvidia" / folders[0] / "lib", LT)
            of_nccl = plant(site / "nvidia" / folders[1] / "lib", NCCL)
            script(top / f"python-{folders[0]}/python3", f"echo {site}")
            claim(f"PyTorch's wheels, {kind}", found(bundle, PATH=f"{top / ('python-' + folders[0])}:{path}"), {LT: str(lt), NCCL: str(of_nccl)})
            claim(f"PyTorch's wheels, {kind}, of a python that is named",
                  found(bundle, PATH=path, DHELIX_PYTHON=top / f"python-{folders[0]}/python3"), {LT: str(lt), NCCL: str(of_nccl)})
        # CUDA without NCCL, and this in the wheels.
        plant(top / "bare/lib64", LT)
        claim("each from a place of its own", found(bundle, PATH=f"{top / 'python-cublas'}:{path}", CUDA_HOME=top / "bare"),
              {LT: str(top / "bare/lib64"), NCCL: str(top / "site-one-for-each/nvidia/nccl/lib")})
        drivers(bundle, top, path)
        not_runnable(bundle)
        claim("another release is none", found(bundle, PATH=path, DHELIX_CUDA_LIBS=plant(top / "old", "libcublasLt.so.12")), nothing)
    print(f"{len(wrong)} claims failed" if wrong else "all claims hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
