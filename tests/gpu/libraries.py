#!/usr/bin/env python3
"""Where programs of a bundle find CUDA's libraries (scripts/bundle/start.sh): folders of every kind, planted."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LT, NCCL = "libcublasLt.so.13", "libnccl.so.2"
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
    base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "DHELIX_CUDA_PLACES": "", **{k: str(v) for k, v in env.items()}}
    done = subprocess.run([str(bundle / "bin/cuda-libs")], env=base, capture_output=True, text=True, check=False)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


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
        claim("another release is none", found(bundle, PATH=path, DHELIX_CUDA_LIBS=plant(top / "old", "libcublasLt.so.12")), nothing)
    print(f"{len(wrong)} claims failed" if wrong else "all claims hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
