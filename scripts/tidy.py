#!/usr/bin/env python3
"""clang-tidy over src/*.c, as build/ci-clang compiles them: scripts/tidy.py FOLDER [JOBS]

What passed once need not be looked at again: a file is known by everything that clang-tidy reads of
it, which is its text after the preprocessor with comments (NOLINT), its command, .clang-tidy and
the version. Kept in ~/.cache/dhelix-tidy; what was not met for thirty days is forgotten."""
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time

root = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
kept = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dhelix-tidy")
DAYS = 30


def seen_of(entry):
    """What clang-tidy reads of a file by one of its commands; None: it cannot be preprocessed."""
    command = entry.get("arguments") or shlex.split(entry["command"])
    if os.path.basename(command[0]) == "ccache":
        command = command[1:]
    at = command.index("-o")
    command = [word for word in command[:at] + command[at + 2:] if word != "-c"]
    read = subprocess.run(command[:1] + ["-E", "-CC"] + command[1:], cwd=entry["directory"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return None if read.returncode else "\0".join(command).encode() + b"\0" + read.stdout


def check(file, entries, folder, common):
    """What clang-tidy finds; None: nothing. Without an entry clang-tidy takes a neighbour's."""
    seen = [seen_of(entry) for entry in entries]
    path = None
    if seen and None not in seen:
        key = hashlib.sha256(b"\0".join([common, *seen]).replace(root.encode(), b"")).hexdigest()
        path = os.path.join(kept, key)
    if path and os.path.exists(path):
        os.utime(path)
        return None
    run = subprocess.run(["clang-tidy", "--quiet", "-p", folder, file], cwd=root, text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if run.returncode:
        return run.stdout or f"{file}: error: clang-tidy ended with {run.returncode}"
    if path:
        open(path, "w").close()
    return None


def forget():
    for name in os.listdir(kept):
        path = os.path.join(kept, name)
        if os.path.getmtime(path) < time.time() - DAYS * 86400:
            os.remove(path)


def main():
    folder, jobs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count()
    files = subprocess.run(["git", "ls-files", "src/*.c"], cwd=root, check=True, text=True,
                           stdout=subprocess.PIPE).stdout.split()
    entries = {os.path.join(root, file): [] for file in files}
    with open(os.path.join(folder, "compile_commands.json")) as f:
        for entry in json.load(f):
            entries.get(entry["file"], []).append(entry)
    os.makedirs(kept, exist_ok=True)
    forget()
    version = subprocess.run(["clang-tidy", "--version"], check=True, stdout=subprocess.PIPE).stdout
    with open(os.path.join(root, ".clang-tidy"), "rb") as f:
        common = version + f.read()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        texts = pool.map(lambda file: check(file, entries[file], folder, common), entries)
        found = [text for text in texts if text]
    lines = {line for text in found for line in text.splitlines() if "error:" in line or "warning:" in line}
    print("\n".join(sorted(lines)[:60] or found[:1]), end="\n" if found else "")
    print(f"{len(entries)} files, {len(found)} with findings")
    return 1 if found or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
