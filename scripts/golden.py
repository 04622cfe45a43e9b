#!/usr/bin/env python3
"""Compare programs and searches with those that are kept in tests/golden.

    scripts/golden.py                 what differs, by job; status 1 if anything does
    scripts/golden.py --short         the same for jobs with an asterisk; seconds
    scripts/golden.py --write         keep what comes out now; the diff is for reading
    scripts/golden.py --only PATTERN  jobs and searches whose name has it
    scripts/golden.py --times OTHER   CPU seconds of bench_program, bench_sim and tune in turns with
                                      those of the build folder OTHER, and their ratio

--build FOLDER is the build folder, build/release if it is not given.

A program is kept as its digest, its number of instructions and its planned memory, one for each class of
ranks. A digest does not depend on the processor: jobs are simulated on cluster files, for which kernels need
no scratch. Times have six digits, which do not depend on the C library's last bit.
"""
import argparse
import concurrent.futures
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "tests/golden"
JOB, PROGRAMS = HERE / "job.yaml", HERE / "programs.json"
TIMES = (("bench/program/bench_program", "--model llama2-7b --seq 4096 --tp 8 --pp 16 --dp 8 --micro 32 "
          "--ranks-per-node 8 --zero1 --bf16 --joint"),
         ("bench/program/bench_program", "--model llama3-70b --seq 2048 --micro 64"),
         ("bench/sim/bench_sim", ""),
         ("src/cli/dhelix", f"tune {JOB} --cluster a100 --devices 8 --set model.n_layers=8 --threads 1 --quiet"))


def lines_of(name):
    text = (HERE / name).read_text(encoding="utf-8")
    return [shlex.split(line) for line in text.split("\n") if line.strip() and not line.startswith("#")]


def run(dhelix, words, settings):
    command = [dhelix, words[0], str(JOB), *words[1:], "--json", "--quiet", "--log-level", "error"]
    for setting in settings:
        command += ["--set", setting]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, cwd=empty)
    if done.returncode == 0:
        return json.loads(done.stdout)
    return {"error": done.stderr.strip().split("\n")[-1].replace(str(JOB), JOB.name)}


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


# ---- programs -------------------------------------------------------------------------------------


def programs_of(dhelix, job):
    name, cluster, *settings = job
    all_of = run(dhelix, ("simulate", "--placed", "--cluster", cluster), settings)
    if "error" in all_of:
        return all_of
    one = all_of["strategies"][0]
    kept = {key: rounded(one[key]) for key in ("strategy", "schedule", "step_ms", "peak_bytes")}
    for k, stage in enumerate(one["stages"]):
        kept[f"class {k}"] = {key: stage[key] for key in ("stage", "rank", "ranks", "instructions", "planned_bytes", "program_digest")}
    return kept


# ---- searches -------------------------------------------------------------------------------------


def row_of(row):
    kept = {key: row[key] for key in ("fits", "estimated_ms", "simulated_ms", "simulated_peak_bytes", "why") if key in row}
    kept["settings"] = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    kept["estimated_peak_bytes"] = row["estimated_bytes"]["peak"]
    return rounded(kept)


def best_of(row):
    return {key: value for key, value in row_of(row).items() if key in ("estimated_ms", "simulated_ms", "settings")}


def search_of(dhelix, search):
    _, cluster, devices, *rest = search
    at = rest.index("--") if "--" in rest else len(rest)
    found = run(dhelix, ("tune", "--cluster", cluster, "--devices", devices, *rest[at + 1:]), rest[:at])
    if "error" in found:
        return found
    kept = {key: found[key] for key in ("fit", "too_large", "refused", "left_out", "behind")}
    for k, row in enumerate(found["ranked"]):
        kept[f"rank {k + 1}"] = row_of(row)
    for value in found["by_value"]:
        best = value.pop("best", None)
        kept[f"{value.pop('setting')}={value.pop('value')}"] = rounded(value) | ({"best": best_of(best)} if best else {})
    return kept


# ---- comparing ------------------------------------------------------------------------------------


def differences(path, old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(f"{path}: {key}", old.get(key), new.get(key))
    elif old != new:
        yield f"{path}: {old} -> {new}"


def kept_of(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path, all_of):
    """One line for each entry of each job."""
    jobs = []
    for name, one in all_of.items():
        entries = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in one.items())
        jobs.append(f"{json.dumps(name)}: {{\n{entries}}}")
    path.write_text("{\n" + ",\n".join(jobs) + "\n}\n", encoding="utf-8")


def settle(path, made, arguments):
    """Keeps what was made, or says how it differs from what is kept."""
    kept = kept_of(path)
    if arguments.write:
        write(path, kept | made if arguments.only else made)
        return []
    return [line for name, one in made.items() for line in differences(name, kept.get(name), one)]


def compare(arguments):
    dhelix = str((Path(arguments.build) / "src/cli/dhelix").resolve())
    jobs, searches = lines_of("jobs.txt"), [] if arguments.short else lines_of("searches.txt")
    if arguments.short:
        jobs = [job for job in jobs if job[0].startswith("*")]
    jobs = [[job[0].lstrip("*"), *job[1:]] for job in jobs]
    jobs, searches = ([one for one in some if arguments.only in one[0]] for some in (jobs, searches))
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        programs = dict(zip((job[0] for job in jobs), pool.map(lambda job: programs_of(dhelix, job), jobs)))
    lines = settle(PROGRAMS, programs, arguments)
    for search in searches:
        lines += settle(HERE / f"search-{search[0]}.json", {search[0]: search_of(dhelix, search)}, arguments)
    refused = [name for name, one in programs.items() if "error" in one]
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"golden: {len(programs)} jobs and {len(searches)} searches "
          f"{'kept' if arguments.write else f'compared, {len(lines)} differences'}; {len(refused)} refused: {' '.join(refused)}")
    return 1 if lines else 0


# ---- times ----------------------------------------------------------------------------------------


def seconds(build, program, words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([f"{build}/{program}", *words.split()], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_times(arguments):
    """Least CPU time of three runs each, in turns."""
    for program, words in TIMES:
        least = [1e9, 1e9]
        for _ in range(3):
            for k, build in enumerate((arguments.build, arguments.times)):
                least[k] = min(least[k], seconds(build, program, words))
        print(f"{Path(program).name} {words}: {least[0]:.2f} s, there {least[1]:.2f} s, ratio {least[0] / least[1]:.3f}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare, which is what happens without --write")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--times", metavar="OTHER")
    arguments = parser.parse_args()
    return compare_times(arguments) if arguments.times else compare(arguments)


sys.exit(main())
