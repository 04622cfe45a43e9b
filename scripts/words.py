#!/usr/bin/env python3
"""Fill the tables of docs/words.md with Megatron-LM's flags of parallelism, overlap and memory.

    scripts/words.py [--check] [DHELIX]      build/release/src/cli/dhelix

The rows are those of `dhelix list flags`, which `dhelix import` uses. --check: only say whether the page has them.
"""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/words.md"
SECTIONS = {"parallelism": "Parallelism", "overlap": "Overlap", "memory": "Recomputation and offloading"}
BEGIN, END = "<!-- scripts/words.py: begin -->\n", "<!-- scripts/words.py: end -->\n"


def cell(text):
    return text.replace("|", "\\|")


def here(row):
    setting, _, note = row["doc"].partition("; ")
    return cell(f"`{setting}`{': ' if note else ''}{note}")


def table(rows):
    lines = ["| flag | here |", "|---|---|"]
    lines += [f"| `{row['name']}` | {here(row)} |" for row in rows if row["effect"] in ("set", "with")]
    lines += [f"| `{row['name']}` | cannot be expressed: {cell(row['doc'])} |" for row in rows if row["effect"] == "cannot"]
    idle = {}
    for row in rows:
        if row["effect"] == "none":
            idle.setdefault(row["doc"], []).append(f"`{row['name']}`")
    lines += [f"| {', '.join(names)} | changes nothing in a step: {cell(note)} |" for note, names in idle.items()]
    return "\n".join(lines) + "\n"


def main():
    arguments = [word for word in sys.argv[1:] if word != "--check"]
    program = arguments[0] if arguments else str(ROOT / "build/release/src/cli/dhelix")
    rows = json.loads(subprocess.run([program, "list", "flags", "--json"], capture_output=True, text=True, check=True).stdout)
    text = PAGE.read_text()
    tables = [
        f"### {title}\n\n{table([row for row in rows if row['project'] == 'megatron' and row['section'] == section])}"
        for section, title in SECTIONS.items()
    ]
    before, rest = text.split(BEGIN)
    filled = before + BEGIN + "\n" + "\n".join(tables) + "\n" + END + rest.split(END)[1]
    if "--check" in sys.argv:
        print("docs/words.md has the flags" if filled == text else "docs/words.md lacks flags: scripts/words.py fills it")
        return filled != text
    PAGE.write_text(filled)
    return 0


sys.exit(main())
