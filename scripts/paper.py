#!/usr/bin/env python3
"""Fill in docs/paper.md, and draw its pictures, from `dhelix validate dhelix-paper --json --svg`.

    scripts/paper.py [DHELIX]     build/release/src/cli/dhelix; two minutes

What stands between `<!-- NAME -->` and `<!-- end -->` is written anew; the text around it is not touched.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

PAGE = "docs/paper.md"
PICTURES = {"dhelix-throughput": "paper-fig11.svg", "dhelix-context": "paper-fig12.svg",
            "dhelix-a800": "paper-fig13a.svg", "dhelix-ablation": "paper-fig15.svg", "dhelix-shares": "paper-fig3.svg"}


def read_tables(dhelix, folder):
    """The tables; the program draws their pictures into the folder."""
    out = subprocess.run([dhelix, "validate", "dhelix-paper", "--json", "--quiet", "--svg", folder], check=True,
                         capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    return {table["table"]: table for table in json.loads(out)}


def cells(table):
    """{job: {series: (predicted, published)}}, in the order of the rows."""
    found = {}
    for row in table["rows"]:
        job = row["row"][:-len(row["series"]) - 1]
        found.setdefault(job, {})[row["series"]] = (row["predicted"], row["published"])
    return found


def grid(table):
    rows = cells(table)
    used = list(dict.fromkeys(row["series"] for row in table["rows"]))
    text = ["| predicted / published | " + " | ".join(used) + " |", "|---|" + "---:|" * len(used)]
    for job, row in rows.items():
        text.append(f"| {job} | " + " | ".join("%.1f / %.1f" % row[c] if c in row else "" for c in used) + " |")
    orders = table.get("orders")
    said = f"Mean error {table['mean_error']:.3g} {table['error_unit']}, largest {table['max_error']:.3g}"
    if orders:
        said += f"; order of the bars right for {orders['right']} of {orders['of']} jobs"
    return "\n".join(text) + f"\n\n{said}.\n"


def plain(table):
    """Rows without columns."""
    text = ["| | predicted | published |", "|---|---:|---:|"]
    text += [f"| {r['row']} | {r['predicted']:.4g} | {r['published']:.4g} |" for r in table["rows"]]
    return "\n".join(text) + f"\n\nMean error {table['mean_error']:.3g}, largest {table['max_error']:.3g}.\n"


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else "build/release/src/cli/dhelix"
    folder = tempfile.mkdtemp()
    tables = read_tables(dhelix, folder)
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    for name, table in tables.items():
        body = grid(table) if all("series" in row for row in table["rows"]) else plain(table)
        if name in PICTURES:
            picture = PICTURES[name]
            shutil.copy(os.path.join(folder, name + ".svg"), os.path.join("docs/img", picture))
            body = f"![{table['doc']}: predicted beside published](img/{picture})\n\n{body}"
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, n = mark.subn(lambda m, body=body: m[1] + "\n" + body + "\n" + m[2], text)
        if n != 1:
            sys.exit(f"{PAGE} has no place for {name}: <!-- {name} --> ... <!-- end -->")
    shutil.rmtree(folder)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
