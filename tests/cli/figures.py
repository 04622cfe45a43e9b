"""figures.py RUN FOLDER NAME...: figures in FOLDER show what the files of RUN say.

Every SVG is well-formed XML without scripts, with finite numbers, and has as many marks as its CSV has
numbers. CSV values are those of the run's files, which are read here anew. Exactly the figures NAME are there."""
import csv
import json
import math
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

run, folder, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
SVG = "{http://www.w3.org/2000/svg}"


def rows(name):
    with open(folder / f"{name}.csv", newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def load(name):
    return json.loads((run / name).read_text())


def near(a, b):
    return math.isclose(float(a), float(b), rel_tol=1e-8, abs_tol=1e-12)


def tree(name):
    text = (folder / f"{name}.svg").read_text(encoding="utf-8")
    root = xml.fromstring(text)
    assert root.tag == SVG + "svg" and root.find(SVG + "title").text, name
    assert not list(root.iter(SVG + "script")) and "href" not in text and "prefers-color-scheme:dark" in text, name
    for e in root.iter():
        for key in ("x", "y", "width", "height", "cx", "cy", "d", "transform"):
            assert not re.search("nan|inf", e.get(key, "")), (name, key, e.attrib)
        for key in ("width", "height"):
            assert e.get(key) is None or float(e.get(key)) >= 0, (name, key, e.attrib)
    return root


def marks(name, tag="rect"):
    """Titles of marks, without the legend's squares, which have none."""
    titles = [e.find(SVG + "title") for e in tree(name).iter(SVG + tag)]
    return ["".join(t.itertext()) for t in titles if t is not None]


def metric(name, key):
    lines = [json.loads(line) for line in open(run / "metrics.jsonl", encoding="utf-8")]
    got = rows(name)
    own = [r for r in got if r[key]]
    assert [int(r["step"]) for r in own] == [x["step"] for x in lines if key in x], name
    assert all(near(r[key], x[key]) for r, x in zip(own, [x for x in lines if key in x])), name
    paths = [e for e in tree(name).iter(SVG + "path") if "line" in e.get("class", "")]
    drawn = [r for r in own if abs(float(r[key])) < 1e100]
    assert len(paths) == 1 and len(re.findall("[ML]", paths[0].get("d"))) == len(drawn), name
    if key == "loss":
        vals = [(x["step"], x["val_loss"]) for x in lines if "val_loss" in x]
        found = [(int(r["step"]), float(r["val_loss"])) for r in got if r["val_loss"]]
        assert len(vals) == len(found) and all(s == t and near(v, w) for (s, v), (t, w) in zip(vals, found))
        assert len(marks(name, "circle")) == sum(abs(v) < 1e100 for _, v in vals)


def traces():
    for path in sorted(run.glob("trace-rank*.json")):
        yield json.loads(path.read_text())


def events(trace):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] != "cpu_op"]


def timeline():
    got = rows("timeline")
    all_events = [e for t in traces() for e in events(t)]
    assert len(got) == len(all_events)
    assert sorted(int(r["duration_ns"]) for r in got) == sorted(round(e["dur"] * 1000) for e in all_events)
    begin = min(e["ts"] for e in all_events)
    assert sorted(int(r["start_ns"]) for r in got) == sorted(round((e["ts"] - begin) * 1000) for e in all_events)
    assert sorted(r["operator"] for r in got) == sorted(e["args"].get("operator", e["name"]) for e in all_events)
    merged = [re.fullmatch(r"(\d+) instructions", t) for t in marks("timeline")]
    assert sum(int(m[1]) if m else 1 for m in merged) == len(got)


def layer():
    got = rows("layer")
    assert len({r["rank"] for r in got}) == 1 and len(marks("layer")) == len(got)
    sides = {(r["phase"] == "forward", r["layer"], r["micro_batch"]) for r in got}
    assert len(sides) == 2 and {s[0] for s in sides} == {True, False}
    spans = [(r["phase"] == "forward", r["stream"], int(r["start_ns"]), int(r["start_ns"]) + int(r["duration_ns"])) for r in got]
    assert any(a[0] != b[0] and a[1] != b[1] and a[2] < b[3] and b[2] < a[3] for a in spans for b in spans)


def schedule(name):
    """The passes of `schedule` are those of `plan`. A rank whose forwards and backwards overlap has two rows."""
    def key(r):
        return int(r["stage"]), int(r["virtual_stage"]), int(r["micro_batch"])

    got = rows(name)
    start, end = [next(k for k in got[0] if k.startswith(w)) for w in ("start", "end")]
    spans = [(r["stage"], r["kind"] == "F", float(r[start]), float(r[end])) for r in got]
    assert all(s[2] <= s[3] for s in spans)
    ys = {float(e.get("y")) for e in tree(name).iter(SVG + "rect") if e.find(SVG + "title") is not None}
    paired = {a[0] for a, b in zip(spans, spans[1:]) if a[0] == b[0] and a[1] != b[1] and b[2] < a[3]}
    assert len(marks(name)) == len(got) and len(ys) == len({s[0] for s in spans}) + len(paired), (ys, paired)
    if not (run / "job.yaml").exists():
        return
    by_kind = {k: sorted(key(r) for r in got if r["kind"] == k) for k in {r["kind"] for r in got}}
    assert set(by_kind) in ({"F", "B"}, {"F", "I", "W"}), set(by_kind)
    assert all(keys == by_kind["F"] and len(set(keys)) == len(keys) for keys in by_kind.values())
    if name == "plan":
        alone = {"F": 1, "B": 2, "I": 1, "W": 1}
        assert all(float(r["end"]) - float(r["start"]) in (alone[r["kind"]], 3 if paired else -1) for r in got)
    else:
        assert sorted((r["kind"], key(r)) for r in got) == sorted((r["kind"], key(r)) for r in rows("plan"))


def shares():
    summary, got = load("summary.json"), rows("time")
    times, steps = summary["times"], summary["steps"] - 1
    want = {"compute": times["compute_ms"], "bubble": times["bubble_ms"], "partners": times["partners_ms"],
            "idle": times["idle_ms"] - times["bubble_ms"] - times["partners_ms"], **times["exposed_by_ms"]}
    assert {r["part"] for r in got} == set(want)
    assert all(near(r["ms"], max(want[r["part"]], 0) / steps) for r in got), (got, want)
    drawn = [float(r["ms"]) for r in got if float(r["ms"]) > 0]
    bars = [e for e in tree("time").iter(SVG + "rect") if e.find(SVG + "title") is not None]
    assert len(bars) == len(drawn)
    # Each begins where those before it end, on one scale.
    before = [sum(drawn[:i]) for i in range(len(drawn) + 1)]
    xs = [float(e.get("x")) for e in bars]
    xs.append(xs[-1] + float(bars[-1].get("width")))
    scale = (xs[-1] - xs[0]) / before[-1]
    assert all(abs(x - xs[0] - scale * b) < 0.7 for x, b in zip(xs, before)), (xs, before)


def memory():
    got = rows("memory")
    trace = next(t for t in traces() if t["otherData"].get("rank", 0) == int(got[0]["rank"]))
    want = [e["args"] for e in sorted(trace["traceEvents"], key=lambda e: e.get("ts", 0)) if e["ph"] == "C"]
    assert [(int(r["activations_bytes"]), int(r["scratch_bytes"])) for r in got] == [
        (a["activations"], a["scratch"]) for a in want]
    sums = [[float(r["persistent_bytes"]) for r in got]]
    for key in ("activations_bytes", "scratch_bytes"):
        sums.insert(0, [a + float(r[key]) for a, r in zip(sums[0], got)])
    if max(map(max, sums)) >= 1e100:  # beyond any axis
        sums = []
    paths = [e.get("d") for e in tree("memory").iter(SVG + "path") if e.get("class", "").startswith("k")]
    assert len(paths) == len(sums)
    times = [int(r["time_ns"]) for r in got]
    for values, path in zip(sums, paths):
        zero = float(re.match(r"M\S+ ([^HV]+)", path)[1])
        heights = [zero - float(y) for y in re.findall(r"V([^HVZ]+)", path)]
        highest = max(map(max, sums)) / max(zero - float(y) for p in paths for y in re.findall(r"V([^HVZ]+)", p))
        assert abs(max(heights) - max(values) / highest) < 0.03 and abs(heights[-2] - values[-1] / highest) < 0.03
        area, x, level = 0, 0, 0
        for letter, number in re.findall("([HV])([^HVZ]+)", path):
            area += level * (float(number) - x) if letter == "H" else 0
            x, level = (float(number), level) if letter == "H" else (x, zero - float(number))
        want = sum(v * (b - a) for v, a, b in zip(values, times, times[1:])) / highest * (x - 54) / (times[-1] - times[0])
        assert len(got) > 9 or abs(area - want) < 0.5 * 150, (area, want)  # a peak is a quarter of a pixel at most


def pairs():
    got = [(r["forward"], r["backward"], float(r["effectiveness"])) for r in rows("pairs")]
    with open(run / "oef.csv", newline="") as f:
        head, *lines = list(csv.reader(f))
    assert got == [(line[0], c, float(v)) for line in lines for c, v in zip(head[1:], line[1:]) if v]
    assert len(marks("pairs")) == len(got)


def table():
    document, got = load("table.json"), rows("table")
    cells = document["cells"]
    assert len(got) == len(cells)
    keys = [s["key"] for s in document["settings"]]
    for r, c in zip(got, cells):
        assert (r["step_ms"] == "") == ("reason" in c) and r["reason"] == c.get("reason", "")
        assert "values" not in c or [r[k] for k in keys] == c["values"]
        assert "reason" in c or near(r["step_ms"], c["step_ms"])
    assert len(marks("table")) == sum(c.get("step_ms", 1e300) < 1e100 for c in cells)


checks = {"loss": lambda: metric("loss", "loss"), "learning-rate": lambda: metric("learning-rate", "lr"),
          "gradient-norm": lambda: metric("gradient-norm", "grad_norm"),
          "tokens-per-second": lambda: metric("tokens-per-second", "tokens_per_s"), "time": shares,
          "timeline": timeline, "layer": layer, "schedule": lambda: schedule("schedule"),
          "plan": lambda: schedule("plan"), "memory": memory, "pairs": pairs, "table": table}
there = {p.stem for p in folder.glob("*.svg")}
assert there == {p.stem for p in folder.glob("*.csv")} and there >= set(names), there
for name in there:
    tree(name)
for name in names:
    checks[name]()
