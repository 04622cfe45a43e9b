#!/usr/bin/env python3
"""Pages, examples and scripts name settings, commands and options that the program has.

    tests/cli/documents.py PATH_OF_DHELIX       from the repository root

A setting is looked for in code spans and after --set, an option after `dhelix COMMAND` in code. Left out are the
changelog, which speaks of the past, and tests, which name wrong things too.
"""
import re
import subprocess
import sys
from pathlib import Path

DHELIX = sys.argv[1]
FILES = {"c", "cu", "def", "h", "html", "json", "jsonl", "py", "safetensors", "sh", "txt", "yaml"}  # ends of names that are no settings
TOPS = ["*", *(f"{folder}/**/*" for folder in ("bench", "clusters", "docs", "examples", "fuzz", "python", "scripts", "src"))]
MADE_UP = {"train.my_setting"}  # docs/howto/add-a-setting.md


def shown(*words):
    done = subprocess.run([DHELIX, *words], capture_output=True, text=True, env={"COLUMNS": "300"}, stdin=subprocess.DEVNULL, check=True)
    return done.stdout


def pages():
    for top in TOPS:
        for page in sorted(Path().glob(top)):
            if page.suffix in (".md", ".sh", ".yaml") and page.name != "CHANGELOG.md":
                yield page, page.read_text()


def settings(text, known):
    """Names like those of settings, in sections that there are, which no setting has."""
    sections = {key.split(".")[0] for key in known if "." in key}
    for span, name in re.findall(r"`([^`\n]+)`|--set ([\w.]+)=", text):
        for key in re.findall(r"(?<![\w./-])([a-z_]+\.[a-z_0-9]+)(?![\w./*-])", span or name):
            section, last = key.split(".")
            if section in sections and last not in FILES and key not in known | MADE_UP:
                yield key


def options(text, known):
    """Options of commands that these do not have."""
    for line in text.replace("\\\n", " ").split("\n"):
        for command, rest in re.findall(r"\bdhelix ([a-z-]+)((?: [^`|#<>;\n]*)?)", line):
            for option in re.findall(r"(?<=\s)(--[a-z][a-z-]*)", re.split(r"  # |[.] ", rest)[0]) if command in known else []:
                if option not in known[command]:
                    yield f"dhelix {command} {option}"


def main():
    keys = {line.split()[0] for line in shown("list", "settings").split("\n") if line and not line[0].isspace()}
    commands = re.findall(r"^  ([a-z-]+)  ", shown("help"), re.M)
    known = {command: set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", shown(command, "--help"))) for command in commands}
    n = 0
    for name, text in pages():
        for wrong in [*settings(text, keys), *options(text, known)]:
            n += 1
            print(f"{name}: the program has no {wrong}")
    print(f"{len(keys)} settings, {len(commands)} commands, {n} wrong names")
    return 1 if n or len(keys) < 100 or len(commands) < 15 else 0


sys.exit(main())
