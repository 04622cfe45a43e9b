#!/usr/bin/env python3
"""Draw docs/img/strands.svg: a layer's forward and a layer's backward, one strand and two.

Both are simulated by the program from docs/img/strands.yaml; nothing in the picture is made up.

  scripts/draw_strands.py [--dhelix build/release/src/cli/dhelix] [--cluster a40]
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH, LEFT, ROW, GAP = 860, 104, 26, 6
STYLE = """
text { font: 12px sans-serif; fill: #24292f } .dim { fill: #6e7781 }
.cell { font-size: 10px; fill: #1b1f24; text-anchor: middle } .bare { fill: #ff818266 }
.F { fill: #54aeff } .B { fill: #4ac26b } rect { stroke: #ffffff; stroke-width: .5 }
@media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } .dim { fill: #8b949e }
.cell { fill: #0d1117 } .bare { fill: #da363366 } rect { stroke: #0d1117 } }
"""
SHORT = {"linear": "GEMM", "linear_dgrad": "dgrad", "linear_wgrad": "wgrad", "attention": "attn",
         "attention_grad": "attn grad", "all_gather": "all-gather", "reduce_scatter": "red.-scatter"}


def spans(args, strategy):
    """Operators of rank 0 from the middle of a simulated step, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        subprocess.run([args.dhelix, "simulate", ROOT / "docs/img/strands.yaml", "--cluster", args.cluster,
                        "--set", f"strategy={strategy}", "--trace", trace, "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        events = json.loads(trace.read_text())["traceEvents"]
    events = [e for e in events if e["ph"] == "X" and e["dur"] > 0 and e["args"].get("block") == "layer"]
    for e in events:
        e["name"], e["cat"] = e["args"]["operator"], e["args"]["phase"]
    events.sort(key=lambda e: e["ts"])
    return events


def is_forward(event):
    return event["cat"] == "forward"


def period(events, anchor, first, wanted):
    """From one layer to the next: events between two starts of `first` before an `anchor`."""
    middle = events[len(events) // 2]["ts"]
    starts, last = [], None
    for e in events:
        if e["name"] == first and wanted(e):
            last = e["ts"]
        if e["name"] == anchor and wanted(e) and last is not None and last > middle:
            starts.append(last)
    # Neighbours in a micro-batch, not across two of them: the most frequent distance.
    lengths = [b - a for a, b in zip(starts, starts[1:])]
    usual = sorted(lengths)[len(lengths) // 2]
    k = next(i for i, n in enumerate(lengths) if abs(n - usual) < 1)
    return starts[k], usual


def cut(events, start, length, shift):
    """The part of every operator inside the window, from `shift` on."""
    parts = []
    for e in events:
        begin, end = max(e["ts"], start), min(e["ts"] + e["dur"], start + length)
        if end > begin:
            parts.append((e, begin - start + shift, end - start + shift))
    return parts


def one_strand(events):
    forward = period(events, "rope", "norm", is_forward)
    backward = period(events, "activation_grad", "all_gather", lambda e: e["cat"] == "input-gradient" or
                      e["name"] == "activation_grad")
    parts = cut([e for e in events if is_forward(e)], *forward, 0)
    parts += cut([e for e in events if not is_forward(e)], *backward, forward[1])
    return parts, forward[1] + backward[1]


def two_strands(events):
    start, length = period(events, "rope", "norm", is_forward)
    return cut(events, start, length, 0), length


def bare(parts):
    """When communication runs and nothing computes."""
    marks = sorted({t for _, a, b in parts for t in (a, b)})
    for a, b in zip(marks, marks[1:]):
        on = {e["tid"] > 0 for e, x, y in parts if x <= a and y >= b}
        if on == {True}:
            yield a, b


def draw(parts, length, top, scale, title):
    exposed = sum(b - a for a, b in bare(parts))
    total = sum(b - a for e, a, b in parts if e["tid"] > 0)
    out = [f'<text x="8" y="{top - 8}">{title}<tspan class="dim">  {length / 1000:.1f} ms, '
           f'{100 * (1 - exposed / total):.0f} % of communication hidden</tspan></text>']
    for row, word in enumerate(("computes", "communicates")):
        out.append(f'<text class="dim" x="8" y="{top + row * (ROW + GAP) + 17}">{word}</text>')
    for a, b in bare(parts):
        out.append(f'<rect class="bare" x="{LEFT + a * scale:.1f}" y="{top}" width="{(b - a) * scale:.1f}" '
                   f'height="{ROW}"/>')
    for e, a, b in parts:
        y, width = top + (ROW + GAP if e["tid"] > 0 else 0), (b - a) * scale
        out.append(f'<rect class="{"F" if is_forward(e) else "B"}" x="{LEFT + a * scale:.1f}" y="{y}" '
                   f'width="{width:.1f}" height="{ROW}"/>')
        name = SHORT.get(e["name"], e["name"])
        if width > 5.6 * len(name):
            out.append(f'<text class="cell" x="{LEFT + (a + b) / 2 * scale:.1f}" y="{y + 17}">{name}</text>')
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dhelix", default=ROOT / "build/release/src/cli/dhelix")
    parser.add_argument("--cluster", default="a40")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/img/strands.svg")
    args = parser.parse_args()
    one, two = one_strand(spans(args, "sequential")), two_strands(spans(args, "dhelix"))
    scale = (WIDTH - LEFT - 8) / one[1]
    body = draw(*one, 30, scale, "One strand: a layer's forward, then its backward")
    body += draw(*two, 132, scale, "Two strands: the forward of one micro-batch beside the backward of another")
    keys = [("F", "forward of a micro-batch"), ("B", "backward of another"), ("bare", "nothing to compute")]
    for k, (kind, word) in enumerate(keys):
        body.append(f'<rect class="{kind}" x="{LEFT + 190 * k}" y="208" width="12" height="12"/>'
                    f'<text class="dim" x="{LEFT + 190 * k + 17}" y="218">{word}</text>')
    args.out.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 228" width="{WIDTH}" '
                        f'height="228"><style>{STYLE}</style>{"".join(body)}</svg>\n')


if __name__ == "__main__":
    main()
