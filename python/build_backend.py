"""Makes the wheel: a build backend (PEP 517) that needs CMake and nothing else.

The module is compiled in build/python, or taken from the build folder that DHELIX_BUILD_DIR names. The
same inputs give the same bytes.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from typing import Dict, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULE = "_dhelix.abi3.so"


class UnsupportedOperation(Exception):
    """Raised for what this backend does not make (PEP 517)."""


def _read(*path: str) -> bytes:
    with open(os.path.join(ROOT, *path), "rb") as file:
        return file.read()


def _version() -> str:
    found = re.search(rb"project\(dhelix VERSION ([0-9.]+)", _read("CMakeLists.txt"))
    assert found, "CMakeLists.txt has no version"
    return found.group(1).decode()


def _compile() -> str:
    """Build the module; its path."""
    build = os.path.join(ROOT, "build", "python")
    configure = ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF",
                 "-DDH_CUDA=OFF"]
    configure += ["-DDH_PYTHON=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, check=True)
    jobs = str(len(os.sched_getaffinity(0)))
    subprocess.run(["cmake", "--build", build, "--target", "dhelix_python", "-j", jobs], check=True)
    return os.path.join(build, "python", MODULE)


def _module() -> str:
    build = os.environ.get("DHELIX_BUILD_DIR")
    if not build:
        return _compile()
    path = os.path.join(build, "python", MODULE)
    if not os.path.exists(path):
        sys.exit(f"DHELIX_BUILD_DIR: there is no {path}: build the target dhelix_python, which needs python3-dev")
    return path


def _metadata(version: str) -> bytes:
    text = f"""Metadata-Version: 2.1
Name: dhelix
Version: {version}
Summary: Trains language models on many ranks, hides communication, and says beforehand what it takes
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

"""
    return text.encode() + _read("docs", "python.md")


def _files(version: str, tag: str) -> Dict[str, bytes]:
    """What the wheel holds, but for its record."""
    info = f"dhelix-{version}.dist-info"
    files = {}
    for name in sorted(os.listdir(os.path.join(ROOT, "python", "dhelix"))):
        if name.endswith((".py", ".typed", ".yaml")):
            files[f"dhelix/{name}"] = _read("python", "dhelix", name)
    files[f"dhelix/{MODULE}"] = _read(_module())
    files[f"{info}/METADATA"] = _metadata(version)
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: dhelix\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/LICENSE"] = _read("LICENSE")
    return files


def _record(files: Dict[str, bytes], own_name: str) -> bytes:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines + [f"{own_name},,\n"]).encode()


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Dict[str, str]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Write the wheel into a folder; its file name."""
    version = _version()
    platform = re.sub("[-.]", "_", sysconfig.get_platform())
    tag = f"cp39-abi3-{platform}"
    files = _files(version, tag)
    record = f"dhelix-{version}.dist-info/RECORD"
    files[record] = _record(files, record)
    wheel = f"dhelix-{version}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, str]] = None) -> str:
    """Not made: the source is the repository."""
    raise UnsupportedOperation("dhelix has no source distribution: install from its repository")


if __name__ == "__main__":
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
