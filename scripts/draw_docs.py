#!/usr/bin/env python3
"""Draw the pictures of docs/img from what the program itself wrote.

    scripts/draw_docs.py loss RUN OUT.svg            a run folder's metrics.jsonl
    scripts/draw_docs.py schedules DHELIX OUT.svg    pipeline schedules, from `dhelix check --print csv`
    scripts/draw_docs.py validation DHELIX OUT.svg   predicted beside published, from `dhelix validate --json`

Colours follow the reader's light or dark setting.
"""
import json
import re
import subprocess
import sys

STYLE = """<style>
text { font: 12px sans-serif; fill: #24292f } .dim { fill: #6e7781 }
.axis { stroke: #d0d7de; fill: none } .line { stroke: #0969da; fill: none; stroke-width: 1.3 }
.dot { fill: #cf222e } .point { fill: #0969da; fill-opacity: 0.55 } .F { fill: #54aeff } .B { fill: #4ac26b } .I { fill: #4ac26b } .W { fill: #d4a72c }
.cell { font-size: 10px; fill: #1b1f24; text-anchor: middle }
@media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } .dim { fill: #8b949e }
.axis { stroke: #30363d } .line { stroke: #58a6ff } .dot { fill: #ff7b72 } .point { fill: #58a6ff } .cell { fill: #0d1117 } }
</style>"""


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
            + STYLE + "".join(parts) + "</svg>\n")


# ---- loss ------------------------------------------------------------------------------

MEAN_OF = 10  # steps; single ones are noisy


def draw_loss(run):
    losses, val = [], []
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if "loss" in row:
                losses.append((row["step"], row["loss"]))
            elif "val_loss" in row:
                val.append((row["step"], row["val_loss"]))
    means = []
    for i in range(0, len(losses) - MEAN_OF + 1, MEAN_OF):
        group = losses[i:i + MEAN_OF]
        means.append((sum(s for s, _ in group) / MEAN_OF, sum(v for _, v in group) / MEAN_OF))
    width, height, left, top, right, bottom = 640, 260, 44, 14, 14, 34
    last = losses[-1][0]
    low, high = 1.5, 4.5

    def at(step, value):
        x = left + (width - left - right) * step / last
        y = top + (height - top - bottom) * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = []
    value = low
    while value <= high:
        x, y = at(0, value).split(",")
        parts.append(f'<path class="axis" d="M{at(0, value)} L{at(last, value)}"/>'
                     f'<text class="dim" x="{float(x) - 6:.1f}" y="{float(y) + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        value += 0.5
    for step in range(0, last + 1, last // 4):
        x = at(step, low).split(",")[0]
        parts.append(f'<text class="dim" x="{x}" y="{height - bottom + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<polyline class="line" points="{" ".join(at(*p) for p in means)}"/>')
    for step, value in val:
        x, y = at(step, value).split(",")
        parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="3.2"/>')
    x, y = at(*val[-1]).split(",")
    parts.append(f'<text x="{x}" y="{float(y) - 9:.1f}" text-anchor="end">validation {val[-1][1]:.3f}</text>')
    parts.append(f'<text class="dim" x="{left + 60}" y="{top + 12}">loss, nats per character: training (mean of '
                 f'{MEAN_OF} steps), validation (dots); by step</text>')
    return svg(width, height, parts)


# ---- schedules -------------------------------------------------------------------------

STAGES, MICRO = 4, 8
ROWS = [("1f1b", ""), ("zb-h1", ""), ("zb-v", "two virtual stages a rank"),
        ("dhelix-w", "two virtual stages a rank; F above B: co-executed, drawn as if nothing were gained by it")]
COST = {"F": 2, "B": 4, "I": 2, "W": 2}  # of a whole stage, in half forwards


def read_schedule(dhelix, name):
    """Per rank, slots; a slot is a list of (kind, stage, micro-batch)."""
    command = [dhelix, "check", "examples/pp2.yaml", "--print", "csv", "--set", f"parallel.pp={STAGES}", "--set",
               f"parallel.schedule={name}", "--set", "model.n_layers=8", "--set", f"train.batch={MICRO}", "--set",
               "train.micro_batch=1"]
    ranks = []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if not line.startswith("#"):
            ranks.append([[(k, int(v), int(m)) for v, k, m in re.findall(r"(\d+)([FBIW])(\d+)", cell)]
                          for cell in line.split(",") if cell])
    return ranks


def time_slots(ranks):
    """Start and end of every slot: ranks go strictly in order and wait for their inputs."""
    n_stages = 1 + max(v for slots in ranks for slot in slots for _, v, _ in slot)
    chunks = n_stages // len(ranks)
    done, clock, at = {}, [0] * len(ranks), [0] * len(ranks)
    timed = []

    def needs(kind, v, m):
        if kind == "F":
            return [("F", v - 1, m)] if v else []
        if kind == "W":
            return [("I", v, m)]
        return [("F", v, m)] + ([("G", v + 1, m)] if v + 1 < n_stages else [])

    moved = True
    while moved:
        moved = False
        for r, slots in enumerate(ranks):
            while at[r] < len(slots):
                wanted = [n for action in slots[at[r]] for n in needs(*action)]
                if any(n not in done for n in wanted):
                    break
                start = max([clock[r]] + [done[n] for n in wanted])
                end = start + sum(COST[k] for k, _, _ in slots[at[r]]) / chunks
                for kind, v, m in slots[at[r]]:
                    done[(kind, v, m)] = end
                    if kind in "BI":
                        done[("G", v, m)] = end
                timed.append((r, start, end, slots[at[r]]))
                clock[r], at[r], moved = end, at[r] + 1, True
    return timed


def draw_schedules(dhelix):
    width, left, row, gap = 860, 8, 18, 34
    timings = [(name, note, time_slots(read_schedule(dhelix, name))) for name, note in ROWS]
    longest = max(end for _, _, timed in timings for _, _, end, _ in timed)
    scale = (width - 2 * left) / longest
    parts, y = [], 0
    for name, note, timed in timings:
        makespan = max(end for _, _, end, _ in timed)
        busy = sum(end - start for _, start, end, _ in timed)
        idle = 1 - busy / (makespan * STAGES)
        parts.append(f'<text x="{left}" y="{y + 20}">{name}<tspan class="dim">  idle {100 * idle:.1f} %'
                     f'{"; " + note if note else ""}</tspan></text>')
        for rank, start, end, slot in timed:
            x, w = left + start * scale, (end - start) * scale
            top = y + 28 + rank * row
            h = (row - 3) / len(slot)
            for i, (kind, _, micro) in enumerate(slot):
                parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{top + i * h:.1f}" width="{w - 0.8:.1f}" '
                             f'height="{h - 0.5:.1f}"/>')
                if len(slot) == 1 and w > 11:
                    parts.append(f'<text class="cell" x="{x + w / 2:.1f}" y="{top + 11}">{micro}</text>')
        y += 28 + STAGES * row + gap - 28
    legend = [("F", "forward"), ("B", "backward, or its input gradients"), ("W", "weight gradients")]
    x = left
    for kind, text in legend:
        parts.append(f'<rect class="{kind}" x="{x}" y="{y + 12}" width="12" height="12"/>'
                     f'<text class="dim" x="{x + 17}" y="{y + 22}">{text}</text>')
        x += 40 + 7 * len(text)
    return svg(width, y + 32, parts)


# ---- validation ------------------------------------------------------------------------

TABLES = [("korthikanti-iteration", "iteration times, 22B to 1T, A100"), ("megatron-sc21", "throughput, 1.7B to 1T, A100"),
          ("korthikanti-layer", "times of a layer, 22B, A100"), ("korthikanti-memory", "memory, 22B to 1T"),
          ("dhelix-throughput", "throughput of four systems, A40"), ("nccl-all-reduce", "all-reduce, 8 A100"),
          ("nemo-recipes", "NeMo, 8B to 405B, bf16 and fp8, H100"), ("nemo-long", "4K to 1M tokens, fp8, H100"),
          ("mpt-h100", "MPT 760M to 70B under FSDP, H100"), ("torchtitan", "torchtitan, 8B to 405B, H100 and H200"),
          ("torchtitan-fsdp", "torchtitan under FSDP, A100 and H100")]
LOWEST, HIGHEST = 0.7, 1.3  # predicted over published


def draw_validation(dhelix):
    tables = {t["table"]: t for t in json.loads(subprocess.run([dhelix, "validate", "--json"], check=True, capture_output=True,
                                                               text=True).stdout)}
    width, left, right, row, top = 860, 400, 20, 30, 34
    bottom = top + row * len(TABLES)

    def at(ratio):
        return left + (width - left - right) * (min(max(ratio, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)

    parts = [f'<text class="dim" x="{left}" y="14">predicted over published; a dot a published figure</text>']
    for percent in range(round(100 * LOWEST), round(100 * HIGHEST) + 1, 10):
        x = at(percent / 100)
        parts.append(f'<path class="axis" d="M{x:.1f},{top - 8} V{bottom}" stroke-width="{2.5 if percent == 100 else 1}"/>'
                     f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{percent} %</text>')
    for i, (name, what) in enumerate(TABLES):
        y = top + row * i + row / 2
        rows = [r for r in tables[name]["rows"] if r["published"]]
        parts.append(f'<text x="8" y="{y + 4:.1f}">{what}<tspan class="dim">  {len(rows)} figures, mean error '
                     f'{tables[name]["mean_error"]:.3g} %</tspan></text>')
        ratios = sorted(r["predicted"] / r["published"] for r in rows)
        for k, ratio in enumerate(ratios[::max(1, len(ratios) // 64)]):
            parts.append(f'<circle class="point" cx="{at(ratio):.1f}" cy="{y + 4 * ((k % 3) - 1):.1f}" r="3"/>')
    return svg(width, bottom + 28, parts)


def main():
    drawings = {"loss": draw_loss, "schedules": draw_schedules, "validation": draw_validation}
    if len(sys.argv) != 4 or sys.argv[1] not in drawings:
        sys.exit(__doc__)
    picture = drawings[sys.argv[1]](sys.argv[2])
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main()
