#!/usr/bin/env python3
"""Check docs/library.md's list of variables of the process against the objects of a build.

    scripts/check_globals.py build/release      prints what differs, and exits 1 if something does

A variable is what lies in .data or .bss of a library, or is a thread's own. Constants that the loader fills in
(.data.rel.ro) are none. The libraries may call none of HOSTS: signals and the locale belong to the host program.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^[0-9a-f]+ .{7} (\.(?:data|bss|tdata|tbss)[\w.]*)\t\w+ +(?:\.hidden )?([\w.]+)$")
HOSTS = {"sigaction", "signal", "sigprocmask", "setlocale", "setenv", "putenv", "unsetenv", "chdir", "umask"}


def objects(build):
    """Archives of src, without the program's own and those of CUDA, whose variables the page sums up."""
    return [a for a in sorted((build / "src").rglob("*.a")) if "cli" not in a.parts and "cuda" not in a.parts]


def variables(archive):
    out = subprocess.run(["objdump", "-t", str(archive)], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        found = SECTION.match(line)
        if found and not found[1].startswith(".data.rel.ro") and not found[2].startswith("."):
            yield re.sub(r"\.\d+$", "", found[2])


def called(archive):
    out = subprocess.run(["nm", "-u", str(archive)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in out.splitlines() if line.strip().startswith("U ")}


def main():
    build = Path(sys.argv[1])
    page = (ROOT / "docs/library.md").read_text()
    page = page[page.index("## Variables of the process"):page.index("## What may change")]
    told = set(re.findall(r"`([a-z_]+)`", page))
    archives = objects(build)
    faults = [] if len(archives) > 10 else [f"{build} has no libraries"]
    for archive in archives:
        names = set(variables(archive))
        faults += [f"{archive.name}: the variable {n}, which docs/library.md does not name" for n in sorted(names - told)]
        faults += [f"{archive.name} calls {n}, which is the host program's" for n in sorted(called(archive) & HOSTS)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
