#!/usr/bin/env python3
"""Write validation/predicted/steps.csv: published steps, what is predicted of them, and the facts of their jobs.

    scripts/predicted_steps.py [DHELIX]             build/release/src/cli/dhelix; many minutes
    scripts/predicted_steps.py --check [DHELIX] TABLE...
                                                    whether the file's rows of these tables are as predicted now
    scripts/predicted_steps.py --from FILE...       from what `dhelix validate TABLE --json` printed into files

`dhelix simulate` and `dhelix tune` name the nearest of these rows (src/costs/precedents.h).
"""
import csv
import io
import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "validation/predicted/steps.csv"
# Tables of times and rates of whole training steps.
TABLES = """megascale korthikanti-iteration korthikanti-scaling megatron-sc21 vtrain-node vtrain moe-folding moe-zoo
simumax-dense zero-bubble-throughput torchtitan torchtitan-fsdp mpt mpt-h100 nemo-recipes nemo nemo-long held-out
dhelix-throughput dhelix-context dhelix-a800 dhelix-experts""".split()
RATES = {"1/s", "TFLOP/s"}
FACTS = """cluster system family strategy schedule recompute parameters experts devices tp pp cp ep zero seq_len fp8 processors peak_tflops
memory_gb_per_s local_gb_per_s network_gb_per_s""".split()
COLUMNS = ["table", "row", "predicted", "published", "rate", "fitted", *FACTS]
TITLE = """# Predicted and published steps: written by scripts/predicted_steps.py from `dhelix validate --json`.
# rate 1: tokens or operations a second, else a time. fitted 1: a constant was fitted to this row.
"""
ROUNDING = 2e-4  # two figures with five digits


def validate(dhelix, tables):
    out = subprocess.run([dhelix, "validate", "--json", "--quiet", *tables], check=True, capture_output=True, text=True,
                         stdin=subprocess.DEVNULL).stdout
    return json.loads(out)


def number(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def rows_of(tables):
    """In the order of TABLES. A row of the job of a fitted row counts as fitted too."""
    tables = sorted((t for t in tables if t["table"] in TABLES), key=lambda t: TABLES.index(t["table"]))
    rows = [(t, r) for t in tables for r in t["rows"] if "step" in r]
    fitted = {r["command"] for _, r in rows if r["fitted"]}
    for table, row in rows:
        unit = table["unit"] or row["row"].rsplit(", ", 1)[1]
        yield [table["table"], row["row"], f"{row['predicted']:.5g}", f"{row['published']:.5g}",
               int(unit in RATES), int(row["command"] in fitted), *(number(row["step"][fact]) for fact in FACTS)]


def text_of(tables):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows_of(tables))
    return TITLE + out.getvalue()


def read(text):
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return [dict(row) for row in csv.DictReader(lines)]


def is_same(a, b):
    try:
        return abs(float(a) - float(b)) <= ROUNDING * abs(float(b))
    except ValueError:
        return a == b


def differences(kept, now):
    names = lambda rows: {(row["table"], row["row"]) for row in rows}
    yield from (f"{name}: only in one of both" for name in sorted(names(kept) ^ names(now)))
    for a, b in zip(kept, now):
        for column in COLUMNS:
            # Whether a row is fitted may follow from one of another table.
            if column != "fitted" and (a["table"], a["row"]) == (b["table"], b["row"]) and not is_same(a[column], b[column]):
                yield f"{a['table']}: {a['row']}: {column} is {a[column]} in the file, {b[column]} now"


def check(dhelix, names):
    kept = [row for row in read(FILE.read_text()) if row["table"] in names]
    found = list(differences(kept, read(text_of(validate(dhelix, names)))))
    if found or not kept:
        sys.exit("\n".join(found or ["no such rows"]) + f"\n{FILE.name}: scripts/predicted_steps.py writes it anew")
    print(f"{len(kept)} rows as predicted now")


def main():
    args = sys.argv[1:]
    if args[:1] == ["--check"]:
        check(args[1], args[2:] or TABLES)
    else:
        made = [t for path in args[1:] for t in json.loads(Path(path).read_text())] if args[:1] == ["--from"] else \
            validate(args[0] if args else "build/release/src/cli/dhelix", TABLES)
        FILE.write_text(text_of(made))


if __name__ == "__main__":
    main()
