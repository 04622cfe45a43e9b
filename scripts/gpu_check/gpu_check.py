#!/usr/bin/env python3
"""All that a machine with a GPU can say about dhelix: what is right, what is wrong, how fast it is.

  ./gpu_check.sh [--minutes N] [--out DIR]      from an unpacked bundle (scripts/bundle.sh --cuda)
  ./gpu_check.sh --continue [--minutes N]       what no earlier call had time for

It runs parts in order of value. A part is a list of checks, each a program with a time limit; one that fails
ends nothing. DIR gets results.json, results.md, logs/, wrong/; DIR.tar.gz holds all of them. gpu-check.md says more.
Status 0: nothing failed; 1: something did; 2: wrong usage.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import tarfile
import time
from pathlib import Path

# The bundle's python takes no folder from the script it is given.
sys.path.insert(0, str(Path(__file__).resolve().parent))
import parts  # noqa: E402
import report  # noqa: E402
from bench import Bench  # noqa: E402

SCHEMA = 1
# Below this nothing is begun: it would not end.
LEAST_SECONDS = 5


def arguments():
    p = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=28, help="begin no check that may end later than this (28); 8 cover correctness and the main rates")
    p.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of the results (gpu-check)")
    p.add_argument("--continue", dest="go_on", action="store_true", help="go on with the results that are in --out")
    p.add_argument("--parts", default="", help=f"of {' '.join(parts.NAMES)}; all where it is not given")
    p.add_argument("--small", action="store_true", help="small sizes and few checks: a rehearsal without a GPU")
    a = p.parse_args()
    wrong = [name for name in a.parts.split() if name not in parts.NAMES]
    if wrong:
        p.error(f"--parts {wrong[0]}: there are {' '.join(parts.NAMES)}")
    if a.minutes <= 0:
        p.error(f"--minutes {a.minutes}: more than 0")
    return a


def begin(a):
    """The results so far, and where new ones go."""
    file = a.out / "results.json"
    if a.go_on:
        if not file.exists():
            sys.exit(f"gpu_check.sh: {file} is not there: there is nothing to go on with")
        results = json.loads(file.read_text(encoding="utf-8"))
        if results.get("schema") != SCHEMA:
            sys.exit(f"gpu_check.sh: {file} is of schema {results.get('schema')}, not {SCHEMA}")
    else:
        if file.exists():
            sys.exit(f"gpu_check.sh: {file} is there: --continue goes on with it, --out takes another folder")
        results = {"schema": SCHEMA, "calls": [], "machine": {}, "checks": []}
    try:
        for folder in ("logs", "wrong"):
            (a.out / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"gpu_check.sh: {a.out} cannot be made ({error.strerror}): --out names a folder that can")
    results["calls"].append({"at": time.strftime("%Y-%m-%d %H:%M:%S"), "minutes": a.minutes, "small": a.small})
    return results


def write(a, results):
    """Both files anew, whole at any moment."""
    for name, text in (("results.json", json.dumps(results, indent=1)), ("results.md", report.markdown(results))):
        new = a.out / (name + ".new")
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, a.out / name)


def what_holds(results):
    """Checks that need not be repeated. Where the machine lacked something it is asked anew, and what was left out is
    tried: a library may have been named meanwhile."""
    checks = [c for c in results["checks"] if c["status"] != "no time"]
    if all(c["status"] == "passed" for c in checks if c["part"] == "machine"):
        return checks
    results["machine"].pop("no_gpu", None)
    return [c for c in checks if c["part"] != "machine" and c["status"] != "skipped"]


def pack(out):
    """All of it as one file, for a machine that gives back few; the folder itself stays. What to say of it."""
    packed = out.with_name(out.name + ".tar.gz")
    try:
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(out, arcname=out.name)
    except OSError as error:
        return f"{packed} cannot be written ({error.strerror})"
    return f"all of them: {packed}"


def stopped(sign, _):
    raise SystemExit(128 + sign)


def run(a, results):
    bench = Bench(a, results)
    results["checks"] = what_holds(results)
    done = {(c["part"], c["name"]) for c in results["checks"]}
    wanted = a.parts.split() or parts.NAMES
    for part in [p for p in parts.PARTS if p.name in wanted]:
        for check in part.checks(bench):
            if (part.name, check.name) in done:
                continue
            record = {"part": part.name, "name": check.name}
            if bench.seconds_left() < max(LEAST_SECONDS, check.least_seconds):
                record.update(status="no time", message="", seconds=0)
            else:
                record.update(bench.do(part.name, check))
            results["checks"].append(record)
            print(f"{record['status']:<8} {part.name}: {check.name}" + (f": {record['message']}" if record["message"] else ""), flush=True)
            write(a, results)


def main():
    a = arguments()
    a.out = a.out.resolve()
    results = begin(a)
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(sign, stopped)
    try:
        run(a, results)
    finally:
        shutil.rmtree(a.out / "work", ignore_errors=True)
        write(a, results)
        print(report.summary(results))
        print(f"results: {a.out / 'results.md'}, {a.out / 'results.json'}; {pack(a.out)}")
    return 1 if any(c["status"] == "failed" for c in results["checks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
