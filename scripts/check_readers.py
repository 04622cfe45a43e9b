#!/usr/bin/env python3
"""Check that docs/limits.md names every source that reads a file.

    scripts/check_readers.py      prints each source that is missing there, and exits 1 if there is one

A source reads a file when it calls one of READING, or the system's calls to open a file for reading. The page
says what such a file may cost. OTHERS are the exceptions, each with its reason.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READING = re.compile(r"\b(dh_map_open|dh_file_read|dh_mapped_open|dh_stamped_open|dh_text_file_open|dh_lines_open|fopen|"
                     r"fdopen|getline|open)\((?!.*O_(WRONLY|DIRECTORY|TMPFILE))")
OTHERS = {
    "base/file.c": "opens for others",
    "base/mapped.c": "opens for others",
    "base/stamp.c": "opens for others",
    "base/log.c": "writes",
    "base/memory.c": "the kernel's files",
    "base/process.c": "the kernel's files",
    "base/temporary.c": "writes; its own leftovers, which it only locks",
    "cli/bus_error.c": "the kernel's files",
    "cli/child.c": "/dev/null",
    "cli/main.c": "/dev/null",
    "describe/missing.c": "opens, and reads nothing",
    "train/carry.c": "memory of its own",
    "train/place.c": "the kernel's files",
    "train/profile_job.c": "the kernel's files",
    "train/tensorboard.c": "writes",
    "weights/safetensors_write.c": "writes; of a file that it joins the header of its own size",
}


def main():
    page = (ROOT / "docs/limits.md").read_text()
    missing = []
    for path in sorted((ROOT / "src").rglob("*.c")):
        name = str(path.relative_to(ROOT / "src"))
        code = re.sub(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", "", path.read_text(), flags=re.S)
        if READING.search(code) and name not in OTHERS and f"`{name}`" not in page and f"`src/{name}`" not in page:
            missing.append(name)
    for name in missing:
        print(f"src/{name} reads a file, and docs/limits.md does not say what one may cost")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
