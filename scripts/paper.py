#!/usr/bin/env python3
"""Fill in docs/paper.md, and draw its pictures, from `dhelix validate dhelix-paper --json`.

    scripts/paper.py [DHELIX]     build/release/src/cli/dhelix; two minutes

What stands between `<!-- NAME -->` and `<!-- end -->` is written anew; the text around it is not touched.
"""
import json
import os
import re
import subprocess
import sys

from draw_docs import svg

PAGE = "docs/paper.md"
SYSTEMS = ["Megatron-LM", "Intra-batch", "Wavelet+", "DHelix", "+TP overlap", "+CP overlap", "+Comm&Comm", "+Wgrad move"]
SHARES = ["tp_comm", "cp_comm", "compute", "others"]
PICTURES = {"dhelix-throughput": ("paper-fig11.svg", "TFLOP/s a device"),
            "dhelix-context": ("paper-fig12.svg", "TFLOP/s a device"),
            "dhelix-a800": ("paper-fig13a.svg", "TFLOP/s a device"),
            "dhelix-ablation": ("paper-fig15.svg", "% over Megatron-LM")}


def read_tables(dhelix):
    out = subprocess.run([dhelix, "validate", "dhelix-paper", "--json", "--quiet"], check=True, capture_output=True,
                         text=True, stdin=subprocess.DEVNULL).stdout
    return {table["table"]: table for table in json.loads(out)}


def split(label, columns):
    """A row's job and its column."""
    column = next(c for c in columns if label.endswith(" " + c))
    return label[:-len(column) - 1], column


def cells(table, columns):
    """{job: {column: (predicted, published)}}, in the order of the rows."""
    found = {}
    for row in table["rows"]:
        job, column = split(row["row"], columns)
        found.setdefault(job, {})[column] = (row["predicted"], row["published"])
    return found


def grid(table, columns):
    rows = cells(table, columns)
    used = [c for c in columns if any(c in r for r in rows.values())]
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


def draw(table, unit, path):
    """Bars that stand together are of one job: for every system what is predicted, and behind it what was published."""
    rows = cells(table, SYSTEMS)
    used = [s for s in SYSTEMS if any(s in r for r in rows.values())]
    bar, gap, left, top, high = 9, 18, 40, 34, 180
    most = max(max(pair) for row in rows.values() for pair in row.values()) * 1.05
    parts, x = [], left + gap
    shade = dict(zip(used, (0.35, 0.55, 0.75, 1)))

    def box(at, value, name, system):
        h = high * max(value, 0) / most
        parts.append(f'<rect class="{name}" x="{at:.1f}" y="{top + high - h:.1f}" width="{bar - 1}" height="{h:.1f}" '
                     f'fill-opacity="{shade[system]}"/>')

    for job, row in rows.items():
        begin = x
        for system in used:
            if system not in row:
                continue
            predicted, published = row[system]
            box(x, predicted, "F", system)
            box(x + bar, published, "B", system)
            x += 2 * bar + 3
        model, length = job.rsplit(" ", 1)
        for i, line in enumerate((model, length)):
            parts.append(f'<text class="dim" x="{(begin + x) / 2:.0f}" y="{top + high + 16 + 14 * i}" '
                         f'text-anchor="middle">{line}</text>')
        x += gap
    for k in range(5):
        value, y = most * k / 4, top + high - high * k / 4
        parts.append(f'<path class="axis" d="M{left} {y:.1f}H{x:.0f}"/>'
                     f'<text class="dim" x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>')
    parts.append(f'<rect class="F" x="{left}" y="8" width="10" height="10"/><text x="{left + 14}" y="17">predicted</text>'
                 f'<rect class="B" x="{left + 90}" y="8" width="10" height="10"/><text x="{left + 104}" y="17">published: '
                 f'{unit}; from pale to dark {", ".join(used).replace("&", "&amp;")}</text>')
    width = max(x, left + 120 + 7 * len(f"published: {unit}; from pale to dark {', '.join(used)}"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(svg(int(width), top + high + 38, parts))


def main():
    dhelix = sys.argv[1] if len(sys.argv) > 1 else "build/release/src/cli/dhelix"
    tables = read_tables(dhelix)
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    for name, table in tables.items():
        columns = SHARES if name == "dhelix-shares" else SYSTEMS
        body = plain(table) if name in ("dhelix-volumes", "dhelix-hidden", "oef-h100") else grid(table, columns)
        if name in PICTURES:
            picture, unit = PICTURES[name]
            draw(table, unit, os.path.join("docs/img", picture))
            body = f"![{table['doc']}: predicted beside published](img/{picture})\n\n{body}"
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, n = mark.subn(lambda m, body=body: m[1] + "\n" + body + "\n" + m[2], text)
        if n != 1:
            sys.exit(f"{PAGE} has no place for {name}: <!-- {name} --> ... <!-- end -->")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
