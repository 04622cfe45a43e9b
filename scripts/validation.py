#!/usr/bin/env python3
"""Fill in the tables of docs/validation.md from `dhelix validate --json`.

    scripts/validation.py [DHELIX]     build/release/src/cli/dhelix; minutes

The last four cells of a row that begins with a table's name are written anew: rows, mean error, largest
error, aim. The other cells stay. A published table without a row, and a row without a table, are errors.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/validation.md"


def aim_of(table, unit):
    if "aim" not in table:
        return "-"
    orders = table.get("orders", {"of": 0, "right": 0})
    exact = table["aim"] == 0
    met = table["max_error"] == 0 if exact else table["mean_error"] <= table["aim"] and orders["right"] == orders["of"]
    text = "exact" if exact else f"{table['aim']:.3g}{unit}"
    if orders["of"]:
        text += f" and every order right ({orders['right']} of {orders['of']})"
    return f"{text}, {'met' if met else 'missed'}"


def cells_of(table):
    unit = f" {table['error_unit']}" if table["error_unit"] else ""
    errors = [f"{table[key]:.3g}{unit}" for key in ("mean_error", "max_error")]
    return [str(len(table["rows"])), *errors, aim_of(table, unit)]


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else "build/release/src/cli/dhelix"
    out = subprocess.run([dhelix, "validate", "--json", "--quiet"], check=True, capture_output=True, text=True,
                         stdin=subprocess.DEVNULL).stdout
    left = {table["table"]: table for table in json.loads(out)}
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines):
        if name := re.match(r"\| `([\w-]+)`(?: \*\*f\*\*)? \|.*\|.*\|.*\|", line):
            cells = line.strip("|").split("|")[:-4]
            lines[i] = "|" + "|".join([*cells, *(f" {cell} " for cell in cells_of(left.pop(name[1])))]) + "|"
    if left:
        sys.exit(f"validation: {PAGE} has no row for {', '.join(left)}")
    PAGE.write_text("\n".join(lines), encoding="utf-8")


main()
