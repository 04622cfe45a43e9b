#!/usr/bin/env python3
"""Draw the pictures of docs/img that explain a rule and show no measurement.

    scripts/draw_ideas.py [FOLDER]       all of these; default docs/img

axes.svg  the groups of eight ranks with dp 2, tp 2, pp 2, by the numbering of docs/words.md (tp fastest, then dp, pp)
hidden.svg  what of a transfer's own time is hidden: 10 ms of computation and 6 ms of communication
pairing.svg  the operators of a forward and a backward on two streams: one strand after the other, and paired
tour.svg  the stops of docs/tour.md: from what a step's program is made, and what uses it
waves.svg  the schedule dhelix-w, four ranks, six micro-batches, in slots that all take equally long
zero.svg  what a rank of four holds under ZeRO 0 to 3, phase by phase of a step with one micro-batch

Colours follow the reader's light or dark setting.
"""
import sys
from pathlib import Path

from draw_docs import svg

STYLE = """<style>
.box { fill: none; stroke: #6e7781 } .P { fill: #54aeff } .G { fill: #4ac26b } .O { fill: #d4a72c } .more { fill-opacity: 0.45 }
.tp { fill: none; stroke: #0969da; stroke-width: 2 } .dp { fill: none; stroke: #1a7f37; stroke-width: 2 }
.pp { fill: none; stroke: #bf8700; stroke-width: 2 } .head { font-weight: bold }
@media (prefers-color-scheme: dark) { .box { stroke: #8b949e } .tp { stroke: #58a6ff } .dp { stroke: #3fb950 } .pp { stroke: #d29922 } }
</style>"""


STRANDS = "<style>.bare { fill: #ff8182; fill-opacity: 0.35 } .on { fill: #1b1f24 }</style>"  # text on a bar stays dark


def text(x, y, words, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def rect(x, y, width, height, kind, radius=0):
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'


# ---- axes ------------------------------------------------------------------------------

DP, TP, PP = 2, 2, 2
SIDE, STEP = 34, 60


def draw_axes():
    """One panel an axis: the ranks as boxes, a frame around each group that communicates along it."""
    panels = [("tp", "tensor: every layer's linears are split", "tp"), ("dp", "data: gradients are summed", "dp"),
              ("pp", "pipeline: activations are sent on", "pp")]
    parts = [STYLE]
    for i, (axis, words, kind) in enumerate(panels):
        top = 26 + i * 154
        parts.append(text(10, top, f"{axis} groups. {words}", "head"))

        def corner(pp, dp, tp):
            return 40 + pp * (2 * STEP + 150) + tp * STEP, top + 22 + dp * STEP

        for pp in range(PP):
            parts.append(text(corner(pp, 0, 0)[0] + 120, top + 60, f"stage {pp}", "dim"))
            for dp in range(DP):
                for tp in range(TP):
                    x, y = corner(pp, dp, tp)
                    parts.append(rect(x, y, SIDE, SIDE, "box"))
                    parts.append(text(x + SIDE / 2, y + 22, tp + TP * (dp + DP * pp), "", "middle"))
            if axis != "pp":
                for other in range(2):
                    x, y = corner(pp, other, 0) if axis == "tp" else corner(pp, 0, other)
                    long = STEP + SIDE + 12
                    parts.append(rect(x - 6, y - 6, *((long, SIDE + 12) if axis == "tp" else (SIDE + 12, long)), kind, 8))
        if axis == "pp":
            for dp in range(DP):
                for tp in range(TP):
                    x, y = corner(0, dp, tp)
                    end = corner(1, dp, tp)[0] + SIDE / 2
                    far = 5 + 6 * tp  # lines of their own
                    bow = y - far if dp == 0 else y + SIDE + far
                    edge = y if dp == 0 else y + SIDE
                    parts.append(f'<path class="pp" d="M{x + SIDE / 2},{edge} V{bow} H{end} V{edge}"/>')
    parts.append(text(10, 26 + 3 * 154 - 4, "8 ranks, numbered tp first, then dp, then pp. A frame or line joins the ranks of a group.", "dim"))
    return svg(560, 26 + 3 * 154 + 8, parts)


# ---- ZeRO ------------------------------------------------------------------------------

SHARD, AHEAD = 0.25, 0.12  # share of one of four ranks; two blocks or buckets that are whole for a moment
# By phase: parameters, gradients, optimizer state, each (kept, whole for a moment).
WHOLE, NONE, SLICE, MOVING = (1, 0), (0, 0), (SHARD, 0), (SHARD, AHEAD)
ZERO = [
    [(WHOLE, NONE, WHOLE), (WHOLE, WHOLE, WHOLE), (WHOLE, WHOLE, WHOLE)],
    [(WHOLE, NONE, SLICE), (WHOLE, WHOLE, SLICE), (WHOLE, WHOLE, SLICE)],
    [(WHOLE, NONE, SLICE), (WHOLE, MOVING, SLICE), (WHOLE, SLICE, SLICE)],
    [(MOVING, NONE, SLICE), (MOVING, MOVING, SLICE), (SLICE, SLICE, SLICE)],
]


def draw_zero():
    wide, left = 120, 70
    parts = [STYLE]
    for column, phase in enumerate(["forward", "backward", "optimizer"]):
        parts.append(text(left + column * 160, 20, phase, "head"))
    for degree, phases in enumerate(ZERO):
        top = 34 + degree * 64
        parts.append(text(10, top + 28, f"ZeRO {degree}"))
        for column, values in enumerate(phases):
            x = left + column * 160
            for row, (kind, (kept, moving)) in enumerate(zip("PGO", values)):
                y = top + row * 16
                parts.append(rect(x, y, kept * wide, 11, kind))
                parts.append(rect(x + kept * wide, y, moving * wide, 11, kind + " more"))
                parts.append(rect(x, y, wide, 11, "box"))
    y = 34 + 4 * 64 + 8
    for x, kind, words in [(10, "P", "parameters"), (120, "G", "gradients"), (220, "O", "masters and moments"), (390, "P more", "whole for a moment")]:
        parts.append(rect(x, y, 11, 11, kind))
        parts.append(text(x + 17, y + 10, words))
    return svg(550, y + 22, parts)


# ---- hidden time -----------------------------------------------------------------------

COMPUTE, SEND, SLOWED, STANDS = 10, 6, 2, 0.5  # ms: alone; how much longer beside the transfer; nothing computed


def draw_hidden():
    scale, left = 26, 120
    step = COMPUTE + SLOWED + STANDS
    parts = [STYLE]

    def bar(x, y, ms, kind, words=""):
        parts.append(rect(left + x * scale, y, ms * scale, 22, kind))
        parts.append(text(left + (x + ms / 2) * scale, y + 15, words, "", "middle"))

    parts.append(text(10, 20, "one after the other: 16 ms", "head"))
    parts.append(text(10, 47, "computation"))
    parts.append(text(10, 75, "communication"))
    bar(0, 32, COMPUTE, "P", "10 ms alone")
    bar(COMPUTE, 60, SEND, "O", "6 ms alone")
    parts.append(text(10, 112, f"at the same time: {step:g} ms", "head"))
    parts.append(text(10, 139, "computation"))
    parts.append(text(10, 167, "communication"))
    bar(0, 124, COMPUTE, "P", "10 ms")
    bar(COMPUTE, 124, SLOWED, "P more")
    bar(3, 152, step - 3, "O", "runs 9.5 ms")
    x = left + step * scale
    parts.append(f'<path class="pp" d="M{x:g},116 V184"/>')
    x = left + COMPUTE * scale
    parts.append(f'<path class="tp" d="M{x:g},116 V206 H{left + step * scale:g} V184"/>')
    parts.append(text(x + 4, 222, "exposed: 2.5 ms"))
    parts.append(text(10, 222, "2 ms of slowdown (pale), 0.5 ms of standing still"))
    parts.append(text(10, 244, "hidden: 6 - 2.5 = 3.5 ms, 58 % of the communication"))
    return svg(left + (COMPUTE + SEND) * scale + 20, 256, parts)


# ---- pairing ---------------------------------------------------------------------------

# A layer by halves: (name, units of time, whether it computes). An operator needs the one before it.
FORWARD = [("gather", 2, 0), ("attention", 4, 1), ("exchange", 3, 0), ("MLP", 5, 1), ("scatter", 2, 0)]
BACKWARD = [("gather", 2, 0), ("MLP", 6, 1), ("exchange", 3, 0), ("attention", 6, 1), ("scatter", 2, 0)]
PAIRED = "BFBFBFBFBF"  # the strand of each operator, in the order of issue


def place(strands):
    """Streams in order, operators after the one before them: (kind, name, computes, start, end)."""
    left = {"F": list(FORWARD), "B": list(BACKWARD)}
    ready, free = {"F": 0, "B": 0}, [0, 0]
    for strand in strands:
        name, units, computes = left[strand].pop(0)
        start = max(ready[strand], free[computes])
        ready[strand] = free[computes] = start + units
        yield ("P" if strand == "F" else "G"), name, computes, start, start + units


def draw_pairing():
    scale, left = 19, 110
    parts = [STYLE, STRANDS]
    orders = [("one strand after the other", "F" * len(FORWARD) + "B" * len(BACKWARD)), ("paired", PAIRED)]
    for row, (title, strands) in enumerate(orders):
        placed, top = list(place(strands)), 14 + row * 88
        length = max(end for *_, end in placed)
        computing = sum(end - start for _, _, computes, start, end in placed if computes)
        parts.append(text(10, top, f"{title}: {length} units of time, of which {length - computing} without computation", "head"))
        parts.append(text(10, top + 27, "computation"))
        parts.append(text(10, top + 57, "communication"))
        parts.append(rect(left, top + 12, length * scale, 22, "bare"))
        for kind, name, computes, start, end in placed:
            y = top + (12 if computes else 42)
            parts.append(rect(left + start * scale, y, (end - start) * scale - 1, 22, kind))
            parts.append(text(left + (start + end) / 2 * scale, y + 15, name, "cell", "middle"))
    y = 14 + 2 * 88 - 8
    for x, kind, words in [(10, "P", "forward of one micro-batch"), (230, "G", "backward of another"), (410, "bare", "nothing to compute")]:
        parts.append(rect(x, y, 11, 11, kind))
        parts.append(text(x + 17, y + 10, words))
    return svg(left + 35 * scale + 20, y + 22, parts)


# ---- waves -----------------------------------------------------------------------------

RANKS, MICROS, SHOWN = 4, 6, 1  # SHOWN: the micro-batch whose way is drawn


def draw_waves():
    """Wave w enters at slot 2w and goes down the ranks and up again, with F of micro-batch w and B of w - RANKS."""
    side, left, top = 22, 62, 30
    n_slots = 2 * (MICROS + RANKS - 1) + 2 * RANKS
    parts, numbers = [STYLE, STRANDS], []
    parts.append(text(left, 18, "slots", "dim"))
    for rank in range(RANKS):
        parts.append(text(10, top + rank * 2 * side + 27, f"rank {rank}"))
        parts.append(rect(left, top + rank * 2 * side, n_slots * side, 2 * side - 4, "box"))

    def at(wave, step):
        rank = min(step, 2 * RANKS - 1 - step)
        return left + (2 * wave + step) * side, top + rank * 2 * side

    for wave in range(MICROS + RANKS):
        for step in range(2 * RANKS):
            x, y = at(wave, step)
            for micro, kind, down in [(wave, "P", 0), (wave - RANKS, "G", side - 2)]:
                if 0 <= micro < MICROS:
                    parts.append(rect(x + 1, y + 1 + down, side - 2, side - 4, kind))
                    numbers.append(text(x + side / 2, y + 15 + down, micro, "on", "middle"))
    for wave, down in [(SHOWN, 0), (SHOWN + RANKS, side - 2)]:
        way = [at(wave, step) for step in range(2 * RANKS)]
        points = " ".join(f"{x + side / 2},{y + side / 2 - 1 + down}" for x, y in way)
        parts.append(f'<polyline class="pp" points="{points}"/>')
    parts += numbers
    y = top + RANKS * 2 * side + 8
    for x, kind, words in [(10, "P", "forward of a micro-batch"), (200, "G", "backward of a micro-batch")]:
        parts.append(rect(x, y, 11, 11, kind))
        parts.append(text(x + 17, y + 10, words))
    parts.append(text(410, y + 10, f"line: the way of micro-batch {SHOWN}"))
    return svg(left + n_slots * side + 10, y + 24, parts)


# ---- tour ------------------------------------------------------------------------------

# Stops of docs/tour.md: column, row, kind, what is made, what holds it.
STOPS = [
    (0, 0.5, "tp", "1 job", "dh_job"), (1, 0.5, "tp", "2 recipe", "dh_recipe"), (2, 0, "tp", "3 graphs", "dh_graph"),
    (2, 1, "tp", "4 schedule", "dh_schedule"), (3, 0.5, "tp", "5 order of a slot", "dh_slot"),
    (0, 2.5, "dp", "6, 7 program", "dh_program"), (1, 2.5, "dp", "8 memory", "places in the slab"),
    (2, 2.5, "dp", "9 proof", "over all ranks"), (3, 2, "pp", "10, 11 run", "commands, kernels"), (3, 3, "pp", "12 simulation", "events, costs"),
]
WAYS = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (7, 9)]  # indices of STOPS


def draw_tour():
    wide, high, column, row = 124, 40, 156, 56
    parts = [STYLE, "<style>.way { fill: none; stroke: #6e7781 } .tip { fill: #6e7781 }</style>"]
    at = [(10 + x * column, 10 + y * row) for x, y, *_ in STOPS]
    for a, b in WAYS:
        (x0, y0), (x1, y1) = (at[a][0] + wide, at[a][1] + high / 2), (at[b][0], at[b][1] + high / 2)
        if x1 > x0:
            bend = f"H{x0 + 10:g} V{y1:g} H{x1 - 6:g}"
            tip = f"{x1:g},{y1:g} {x1 - 7:g},{y1 - 4:g} {x1 - 7:g},{y1 + 4:g}"
        else:  # from the end of the first line to the beginning of the second
            y1, x1 = at[b][1], at[b][0] + wide / 2
            x0, y0 = at[a][0] + wide / 2, at[a][1] + high
            bend = f"V{10 + 1.85 * row:g} H{x1:g} V{y1 - 6:g}"
            tip = f"{x1:g},{y1:g} {x1 - 4:g},{y1 - 7:g} {x1 + 4:g},{y1 - 7:g}"
        parts.append(f'<path class="way" d="M{x0:g},{y0:g} {bend}"/><polygon class="tip" points="{tip}"/>')
    for (x, y), (_, _, kind, title, holder) in zip(at, STOPS):
        parts.append(rect(x, y, wide, high, kind, 6))
        parts.append(text(f"{x + wide / 2:g}", f"{y + 17:g}", title, "head", "middle"))
        parts.append(text(f"{x + wide / 2:g}", f"{y + 33:g}", holder, "dim", "middle"))
    return svg(20 + 3 * column + wide, 20 + 3 * row + high, parts)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "docs/img")
    (folder / "axes.svg").write_text(draw_axes())
    (folder / "hidden.svg").write_text(draw_hidden())
    (folder / "pairing.svg").write_text(draw_pairing())
    (folder / "tour.svg").write_text(draw_tour())
    (folder / "waves.svg").write_text(draw_waves())
    (folder / "zero.svg").write_text(draw_zero())


main()
