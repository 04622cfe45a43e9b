#!/usr/bin/env python3
"""The commands of docs/tour.md print what the page shows.

    tests/cli/tour.py PATH_OF_DHELIX       from the repository root

Lines of a block follow their command, in order, with others between them. Figures with a point, times, offsets and
bytes depend on the machine: numbers of more than three digits and those with a point are not compared.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path("docs/tour.md").read_text()
NUMBER = r"\d*\.\d+(?:e[-+]\d+)?|\d{4,}"


def plain(line):
    return " ".join(re.sub(NUMBER, "#", line).split())


def missing(shown, printed):
    """The first shown line that does not follow the ones before it; None: all are there."""
    rest = iter(printed)
    return next((line for line in shown if not any(plain(line) in plain(other) for other in rest)), None)


def run(dhelix, folder, command):
    setting = re.search(r"```bash\n(.*?)```", PAGE, re.S)[1]
    path = f"{Path(dhelix).resolve().parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", f"{setting}\n{command} 2>&1"], cwd=folder, stdin=subprocess.DEVNULL, text=True,
                          env=os.environ | {"PATH": path, "COLUMNS": "80"}, capture_output=True, timeout=600)
    return done.returncode, done.stdout.split("\n")


def main():
    failed = commands = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(Path("examples").resolve())
        for block in re.findall(r"```text\n(.*?)```", PAGE, re.S):
            for part in block.split("$ ")[1:]:
                command, *shown = part.rstrip("\n").split("\n")
                code, printed = run(sys.argv[1], folder, command)
                line = missing(shown, printed)
                commands += 1
                if code != 0 or line is not None:
                    failed += 1
                    print(f"FAILED: {command}: exit code {code}, not printed: {line}\n" + "\n".join(printed[-20:]))
    print(f"{commands} commands, {failed} failed")
    return 1 if failed or commands < 8 else 0


sys.exit(main())
