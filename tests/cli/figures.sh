# Figures of runs as files: SVG that draws what the CSV beside it says, which is what the run's files say.
. tests/cli/lib.sh "$1"
command -v python3 >/dev/null || { echo 'skipped: no python3'; exit 0; }
tiny_job "$tmp/job.yaml"
figures() { ok python3 tests/cli/figures.py "$@"; }

ok "$dhelix" train "$tmp/job.yaml" --ranks 2 --quiet --set parallel.pp=2 --set out="$tmp/run" --set trace.step=5 --set train.steps=10
printf ',b:x,c\na,0.5,-0.25\ne<f,1,-2\n' >"$tmp/run/oef.csv"
ok "$dhelix" report "$tmp/run" --svg "$tmp/fig"
says 'not drawn   table: no table.json: dhelix simulate --table'
says 'not drawn   layer: no trace in which'
figures "$tmp/run" "$tmp/fig" loss learning-rate gradient-norm tokens-per-second time timeline schedule plan memory pairs
for n in 1 2; do ok "$dhelix" report "$tmp/run" --svg "$tmp/run/figures" --quiet; done
check 'the same files give the same bytes, also in the run folder' diff -r "$tmp/fig" "$tmp/run/figures"

# Two strands, simulated: both sides of the slot that ran together longest.
cat >"$tmp/strands.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 4}
train: {batch: 16, micro_batch: 1, seq_len: 4096, dtype: bf16}
parallel: {tp: 4, pp: 2}
strategy: dhelix
EOF
ok "$dhelix" simulate "$tmp/strands.yaml" --cluster h100 --every-rank --out "$tmp/strands" --quiet
ok "$dhelix" report "$tmp/strands" --svg "$tmp/strands/fig" --quiet
figures "$tmp/strands" "$tmp/strands/fig" layer timeline schedule plan memory
ok "$dhelix" simulate "$tmp/strands.yaml" --cluster h100 --every-rank --out "$tmp/split" --quiet --set strategy=sequential --set parallel.schedule=zb-h1
ok "$dhelix" report "$tmp/split" --svg "$tmp/split/fig" --quiet
figures "$tmp/split" "$tmp/split/fig" schedule plan
check 'weight gradients apart' grep -q '^0,W,' "$tmp/split/fig/schedule.csv"

# Tables of one setting and of two; a cell that is refused has no bar.
ok "$dhelix" simulate "$tmp/job.yaml" --table parallel.tp=1,2,4 train.micro_batch=1,2 --out "$tmp/two" --quiet
ok "$dhelix" report "$tmp/two/" --svg "$tmp/tables" --quiet
figures "$tmp/two" "$tmp/tables" table
ok "$dhelix" simulate "$tmp/job.yaml" --table train.micro_batch=1,2,4 --out "$tmp/one" --quiet
ok "$dhelix" report "$tmp/one" --svg "$tmp/tables" --quiet
figures "$tmp/one" "$tmp/tables" table

# Several runs: curves together, the rest by number.
ok "$dhelix" report "$tmp/run" "$tmp/one" --svg "$tmp/both" --json
same "$(json out)" "$tmp/both"
says '"timeline-1"'
says '"timeline-2": "no trace'
check 'one figure of the losses' test -s "$tmp/both/loss.svg"
check 'the table of the second' test -s "$tmp/both/table-2.csv"
check 'no timeline of the second' test ! -e "$tmp/both/timeline-2.svg"
ok "$dhelix" report "$tmp/run" --svg "$tmp/first" --ranks 1 --quiet
check 'a rank where one is asked for' grep -q '^0,' "$tmp/first/timeline.csv"
check 'one rank where one is asked for' sh -c "! grep -q '^1,' '$tmp/first/timeline.csv'"

# PDF, by a program that is there or not.
mkdir "$tmp/bin"
fails 1 'install librsvg' env PATH="$tmp/bin" "$dhelix" report "$tmp/run" --svg "$tmp/fig" --pdf
check 'no half of a PDF is left' sh -c "! ls '$tmp/fig' | grep -q pdf"
printf '#!/bin/sh\necho "$@"\n' >"$tmp/bin/rsvg-convert"
chmod +x "$tmp/bin/rsvg-convert"
ok env PATH="$tmp/bin:$PATH" "$dhelix" report "$tmp/run" --svg "$tmp/fig" --pdf --quiet
check 'each figure is converted' grep -qx -- "--format=pdf -- $tmp/fig/loss.svg" "$tmp/fig/loss.pdf"
same "$(ls "$tmp/fig" | grep -c 'pdf$')" 10 'a PDF a figure'
printf '#!/bin/sh\nexit 3\n' >"$tmp/bin/rsvg-convert"
fails 1 'exit code 3' env PATH="$tmp/bin:$PATH" "$dhelix" report "$tmp/run" --svg "$tmp/pdf" --pdf
printf '#!/bin/sh\nkill -9 $$\n' >"$tmp/bin/rsvg-convert"
fails 1 'killed by signal 9' env PATH="$tmp/bin:$PATH" "$dhelix" report "$tmp/run" --svg "$tmp/pdf" --pdf
printf '#!/nowhere/sh\n' >"$tmp/bin/rsvg-convert"
chmod -x "$tmp/bin/rsvg-convert"
fails 1 'cannot run rsvg-convert: Permission denied' env PATH="$tmp/bin" "$dhelix" report "$tmp/run" --svg "$tmp/pdf" --pdf
# A signal ends the converter, too, and what it has begun goes.
printf '#!/bin/sh\necho $$ >"%s/child"\nexec sleep 60\n' "$tmp" >"$tmp/bin/rsvg-convert"
chmod +x "$tmp/bin/rsvg-convert"
PATH="$tmp/bin:$PATH" "$dhelix" report "$tmp/run" --svg "$tmp/pdf" --pdf --quiet >/dev/null 2>&1 &
for _ in {1..600}; do [ -s "$tmp/child" ] && break; sleep 0.1; done
kill -TERM $!
wait $! 2>/dev/null
for _ in {1..600}; do kill -0 "$(cat "$tmp/child")" 2>/dev/null || break; sleep 0.1; done
check 'the converter has ended' sh -c "! kill -0 $(cat "$tmp/child")"
check 'no temporary file is left' sh -c "! ls '$tmp/pdf' | grep -q tmp-"
if command -v rsvg-convert >/dev/null; then
    ok "$dhelix" report "$tmp/run" --svg "$tmp/pdf" --pdf --quiet
    same "$(head -c 5 "$tmp/pdf/timeline.pdf")" '%PDF-'
else
    echo 'skipped: PDF, no rsvg-convert (librsvg2-bin)'
fi

# Odd names and numbers, and a trace of a thousand instructions in the place of a pixel.
mkdir "$tmp/odd"
python3 - "$tmp/odd" <<'EOF2'
import json, sys
run = sys.argv[1]
span = lambda name, ts, dur, **args: {"ph": "X", "name": name, "cat": "forward", "pid": 0, "tid": 0, "ts": ts, "dur": dur, "args": args}
names = ['a,"b"', "</title><script>", "\x01\x1f\ufffe&", "line\nend", "ä" * 300]
events = [span(n, i * 10.0, 5.0, layer=2**31 - 1, micro_batch=i, block="layer") for i, n in enumerate(names)]
events += [span("x", 1e9 + i * 0.001, 0.001) for i in range(1000)]
events += [span("zero", 2e9, 0), {"ph": "C", "name": "memory", "ts": 0, "args": {"activations": 2**62, "scratch": -5}}]
other = {"persistent_bytes": {"grad": "many", "master": 1e300}}
json.dump({"otherData": other, "traceEvents": events}, open(run + "/trace-rank0.json", "w"))
with open(run + "/metrics.jsonl", "w") as f:
    for step, loss in enumerate([1, 1e308, -1e308, 1e20, 1e20 + 1, 0]):
        f.write(json.dumps({"step": step, "loss": loss, "lr": 0, "val_loss": loss}) + "\n")
table = {"settings": [{"key": 'k,"a' + "ä" * 300, "values": ["1", "<2>"]}], "cells": [{"step_ms": 1e300}, {"reason": "no,\n\"way\""}]}
json.dump(table, open(run + "/table.json", "w"))
json.dump({"steps": 0, "times": {"compute_ms": -1, "idle_ms": 1e300, "exposed_by_ms": 3}}, open(run + "/summary.json", "w"))
EOF2
ok "$dhelix" report "$tmp/odd" --svg "$tmp/odd/fig" --quiet
figures "$tmp/odd" "$tmp/odd/fig" loss learning-rate timeline schedule table memory

# Texts are cut between characters, and shares of time that no axis can show are not drawn.
han="$(printf '漢%.0s' {1..50})"
mkdir "$tmp/$han" "$tmp/a$han"
for name in "$han" "a$han"; do
    printf '{"step":1,"loss":2,"val_loss":3}\n' >"$tmp/$name/metrics.jsonl"
    printf '{"steps":3,"times":{"compute_ms":1.7e308,"idle_ms":1.7e308,"exposed_by_ms":{"tail":1.7e308,"late":8}}}' >"$tmp/$name/summary.json"
done
ok "$dhelix" report "$tmp/$han" "$tmp/a$han" --svg "$tmp/named" --quiet
figures "$tmp/$han" "$tmp/named"
check 'the share that can be drawn' grep -q '>exposed: computation began late: 4 ms<' "$tmp/named/time.svg"
check 'whole names' grep -q ">a$han, validation: 3 at 1<" "$tmp/named/loss.svg"

# A peak narrower than a pixel is a line, and what follows it is drawn at its own height.
mkdir "$tmp/peak" "$tmp/ages" "$tmp/crowd"
python3 - "$tmp" <<'EOF2'
import json, sys
def put(run, events):
    json.dump({"otherData": {}, "traceEvents": events}, open(f"{sys.argv[1]}/{run}/trace-rank0.json", "w"))
def span(back, ts, dur, mb):
    phase = "input-gradient" if back else "forward"
    return {"ph": "X", "name": "x", "cat": phase, "pid": 0, "tid": int(back), "ts": ts, "dur": dur, "args": {"layer": 1, "micro_batch": mb}}
memory = [(0, 10, 0), (1, 1000, 7), (2, 10, 0), (900000, 500, 3), (900001, 20, 2), (1000000, 5, 0)]
put("peak", [span(False, 0, 1000000, 0)] + [
    {"ph": "C", "name": "memory", "ts": t, "args": {"activations": a << 20, "scratch": s << 20}} for t, a, s in memory])
# Overlaps whose sum is beyond 64 bits, and more of them than are looked at.
put("ages", [span(back, 0, 1e15, int(back)) for back in (False, True) for _ in range(5)] + [span(back, 0, 10, 5) for back in (False, True)])
put("crowd", [span(i % 2, 0, 1, i) for i in range(3000)])
EOF2
for run in peak ages crowd; do ok "$dhelix" report "$tmp/$run" --svg "$tmp/$run/fig"; done
says 'not drawn   layer: too many instructions ran at once'
figures "$tmp/peak" "$tmp/peak/fig" memory
figures "$tmp/ages" "$tmp/ages/fig" layer
check 'the two that overlap longest' grep -q ',1,1,0,' "$tmp/ages/fig/layer.csv"

# plot: the same figures from a folder, from its files, and from one file with the traces of all ranks.
plot() { ok env TMPDIR="$tmp/made" "$dhelix" plot "$@"; }
mkdir "$tmp/made"
plot "$tmp/run" --svg "$tmp/plot/run" --quiet
check 'plot draws what report draws' diff -r -x '*.pdf' "$tmp/fig" "$tmp/plot/run"
ok "$dhelix" report "$tmp/run" --traces "$tmp/joined.json"
for file in metrics.jsonl:loss summary.json:time oef.csv:pairs; do
    plot "$tmp/run/${file%:*}" --svg "$tmp/plot/file" --quiet
    same "$(cut -d, -f2- "$tmp/plot/file/${file#*:}.csv")" "$(cut -d, -f2- "$tmp/fig/${file#*:}.csv")" "${file%:*} by itself"
done
plot "$tmp/joined.json" --svg "$tmp/plot/joined" --json
says '"timeline"'
says '"layer": "no trace in which'
check 'a trace is not said to lack curves' sh -c "! grep -q metrics '$tmp/out'"
for name in timeline memory; do check "$name of joined traces" cmp "$tmp/fig/$name.csv" "$tmp/plot/joined/$name.csv"; done
plot "$tmp/run/trace-rank1.json" --svg "$tmp/plot/one.svg" --figures timeline
check 'one file by its name' sh -c "head -2 '$tmp/plot/one.csv' | tail -1 | grep -q '^1,' && grep -q '<svg' '$tmp/plot/one.svg'"
plot "$tmp/one/table.json" --svg "$tmp/plot/table" --quiet
figures "$tmp/one" "$tmp/plot/table" table

# A job is simulated: its figures are those of the folder that simulate leaves, and the pairs of a layer.
ok "$dhelix" simulate "$tmp/strands.yaml" --cluster h100 --out "$tmp/simulated" --quiet
plot "$tmp/strands.yaml" --cluster h100 --ranks 64 --svg "$tmp/plot/job" --quiet
figures "$tmp/simulated" "$tmp/plot/job" timeline layer schedule plan memory
plot "$tmp/strands.yaml" --cluster h100 --svg "$tmp/plot/few" --quiet --set strategy=sequential
same "$(tail -n +2 "$tmp/plot/few/timeline.csv" | cut -d, -f1 | sort -u | wc -l)" 2 'a rank of each stage'
ok python3 - "$tmp/plot/job" <<'EOF2'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1] + "/pairs.csv")))
talks = lambda name: name.split()[0] in ("all_gather", "reduce_scatter", "all_reduce")
assert any(talks(r["forward"]) and not talks(r["backward"]) and float(r["effectiveness"]) > 0.3 for r in rows), rows
assert all(float(r["effectiveness"]) == 0 for r in rows if talks(r["forward"]) == talks(r["backward"])), rows
EOF2
printf 'parallel: {pp: 2}\nstages: {forward_ms: 1, input_ms: 1, weight_ms: 1}\ntrain: {batch: 4, micro_batch: 1, seq_len: 8}\n' >"$tmp/timed.yaml"
plot "$tmp/timed.yaml" --svg "$tmp/plot/timed" --json
says '"plan"'
check 'times in place of a model: the schedule alone' sh -c "! grep -q timeline '$tmp/out'"
fails 1 'no cluster is called nowhere' "$dhelix" plot "$tmp/strands.yaml" --cluster nowhere --svg "$tmp/x"
fails 1 'does not divide' env TMPDIR="$tmp/made" "$dhelix" plot "$tmp/strands.yaml" --cluster h100 --set parallel.tp=3 --svg "$tmp/x"
fails 1 'would overwrite such files' env TMPDIR="$tmp/made" "$dhelix" plot "$tmp/strands.yaml" --cluster h100 --svg "$tmp/two"

# Pairs of every strategy: names of operators that it cuts stay apart.
strategies=$("$dhelix" list strategies --json | python3 -c 'import json, sys; print(*[s["name"] for s in json.load(sys.stdin)])')
check 'there are strategies' test "$(wc -w <<<"$strategies")" -gt 10
for name in $strategies; do
    plot examples/tp2pp2.yaml --cluster h100 --set strategy="$name" --figures pairs --svg "$tmp/plot/$name" --quiet
done
ok python3 - "$tmp/plot" $strategies <<'EOF2'
import csv, sys
cut = 0
for name in sys.argv[2:]:
    rows = list(csv.DictReader(open(f"{sys.argv[1]}/{name}/pairs.csv")))
    pairs = [(r["forward"], r["backward"]) for r in rows]
    sides = [{pair[i] for pair in pairs} for i in (0, 1)]
    assert len(set(pairs)) == len(pairs) == len(sides[0]) * len(sides[1]) > 0, name
    cut += any(side + " 2" in sides[1] for side in sides[1])
assert cut > 0
EOF2
plot examples/tp2pp2.yaml --cluster h100 --figures plan --svg "$tmp/plot/planned" --quiet
same "$(ls "$tmp/plot/planned")" "plan.csv
plan.svg" 'no more figures than are named'
same "$(ls "$tmp/made")" '' 'no simulated folder is left'

# What is read is not overwritten, and then nothing is written.
mkdir "$tmp/keep"
keeps() { # SOURCE FILE, the rest: options
    local before=$(cat "$2") there=$(ls "$tmp/keep")
    fails 1 "would overwrite it" "$dhelix" plot "$1" "${@:3}"
    same "$(cat "$2")" "$before" "$2 is as it was"
    same "$(ls "$tmp/keep")" "$there" 'nothing is written'
}
cp "$tmp/run/oef.csv" "$tmp/keep/pairs.csv"
cp "$tmp/run/oef.csv" "$tmp/keep/mine.csv"
keeps "$tmp/keep/mine.csv" "$tmp/keep/mine.csv" --svg "$tmp/keep/mine.svg"
keeps "$tmp/keep/pairs.csv" "$tmp/keep/pairs.csv" --svg "$tmp/keep"
keeps "$tmp/keep/pairs.csv" "$tmp/keep/pairs.csv" --svg "$tmp/keep/../keep/"
ln -s keep/pairs.csv "$tmp/link.csv"
keeps "$tmp/link.csv" "$tmp/keep/pairs.csv" --svg "$tmp/keep"
ok "$dhelix" check "$tmp/strands.yaml" --set strategy=sequential --print csv
cp "$tmp/out" "$tmp/keep/schedule.csv"
cp "$tmp/strands.yaml" "$tmp/keep/own.yaml"
keeps "$tmp/keep/own.yaml" "$tmp/keep/schedule.csv" --cluster h100 --set strategy=sequential --set parallel.schedule="$tmp/keep/schedule.csv" --svg "$tmp/keep"

# What commands print as JSON: steps as bars, and where their time went.
"$dhelix" simulate "$tmp/strands.yaml" --cluster h100 --strategies sequential,flux,dhelix --json >"$tmp/steps.json" 2>/dev/null
"$dhelix" tune "$tmp/strands.yaml" --cluster h100 --devices 8 --top 4 --verify 2 --strategies sequential --json >"$tmp/ranked.json" 2>/dev/null
"$dhelix" simulate "$tmp/job.yaml" --table train.micro_batch=1,2 --json >"$tmp/cells.json"
for name in steps ranked cells; do plot "$tmp/$name.json" --svg "$tmp/plot/$name" --quiet; done
ok python3 - "$tmp" <<'EOF2'
import csv, json, math, sys
load = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))
rows = lambda name, file="table": list(csv.DictReader(open(f"{sys.argv[1]}/plot/{name}/{file}.csv")))
near = lambda a, b: math.isclose(float(a), b, rel_tol=1e-8)
steps = load("steps")["strategies"]
assert [r["strategy"] for r in rows("steps")] == [s["strategy"] for s in steps] and len(steps) == 3
assert all(near(r["step_ms"], s["step_ms"]) and r["fits"] == str(int(s["fits"])) for r, s in zip(rows("steps"), steps))
for s in steps:
    of = {r["part"]: float(r["ms"]) for r in rows("steps", "time") if r["run"] == s["strategy"]}
    assert near(of["compute"], s["compute_ms"]) and near(sum(of[k] for k in s["exposed_by_ms"]), sum(s["exposed_by_ms"].values()))
ranked = load("ranked")["ranked"]
assert len(ranked) == 4
for i, (r, s) in enumerate(zip(rows("ranked"), ranked)):
    assert near(r["step_ms"], s.get("simulated_ms", s["estimated_ms"])) and r["configuration"].startswith(f"{i + 1}: ")
    assert ("estimated" in r["configuration"]) == ("simulated_ms" not in s)
assert [near(r["step_ms"], c["step_ms"]) for r, c in zip(rows("cells"), load("cells")["cells"])] == [True, True]
EOF2

# A published table, from the same rows as validate.
plot zero-bubble --svg "$tmp/plot/published.svg" --quiet
"$dhelix" validate zero-bubble --json >"$tmp/validate.json"
ok python3 - "$tmp" <<'EOF2'
import csv, json, math, sys, xml.etree.ElementTree as xml
want = json.load(open(sys.argv[1] + "/validate.json"))[0]["rows"]
rows = list(csv.DictReader(open(sys.argv[1] + "/plot/published.csv")))
assert [r["row"] for r in rows] == [w["row"] for w in want] and rows
assert all(math.isclose(float(r[k]), w[k], rel_tol=1e-8, abs_tol=1e-12) for r, w in zip(rows, want) for k in ("predicted", "published", "error"))
assert xml.parse(sys.argv[1] + "/plot/published.svg").getroot().find("{http://www.w3.org/2000/svg}title").text.startswith("zero-bubble:")
EOF2

# On another cluster the table is predicted as validate does it.
plot korthikanti-layer --cluster h200 --figures validation --svg "$tmp/plot/elsewhere.svg" --quiet
"$dhelix" validate korthikanti-layer --cluster h200 --json >"$tmp/validate.json"
"$dhelix" validate korthikanti-layer --json >"$tmp/own.json"
ok python3 - "$tmp" <<'EOF2'
import csv, json, math, sys
load = lambda name: [r["predicted"] for r in json.load(open(f"{sys.argv[1]}/{name}.json"))[0]["rows"]]
got = [float(r["predicted"]) for r in csv.DictReader(open(sys.argv[1] + "/plot/elsewhere.csv"))]
assert all(math.isclose(a, b, rel_tol=1e-8) for a, b in zip(got, load("validate"), strict=True)) and load("own") != load("validate")
EOF2

# Rankings name the settings in which rows differ, also where one lacks them; traces may mix their ranks.
python3 - "$tmp" <<'EOF2'
import json, sys
put = lambda name, value: json.dump(value, open(f"{sys.argv[1]}/{name}.json", "w"))
settings = [{"parallel.tp": 1, "strategy": "a"}, {"parallel.tp": 1, "strategy": "a", "zero": 3}, {"parallel.tp": 2, "strategy": "a"}]
put("settings", {"ranked": [{"settings": s, "simulated_ms": 1} for s in settings]})
put("mixed", {"traceEvents": [{"ph": "X", "name": "x", "pid": p, "tid": 0, "ts": i, "dur": 1} for i, p in enumerate([3, 1, 3, 1, 2, 3])]})
put("rounded", {"steps": 2, "times": {"compute_ms": 3, "bubble_ms": 1, "idle_ms": 1.0000000000000002, "exposed_by_ms": {"tail": 0.001}}})
put("alone", {"steps": 3, "loss": 2.5})
EOF2
plot "$tmp/settings.json" --svg "$tmp/plot/settings" --quiet
same "$(cut -d'"' -f2 "$tmp/plot/settings/table.csv" | tail -n +2 | cut -d, -f1,2 | sed 's/,1$//' | paste -sd';')" '1: tp 1;2: tp 1, zero 3;3: tp 2'
plot "$tmp/mixed.json" --svg "$tmp/plot/mixed" --quiet
same "$(tail -n +2 "$tmp/plot/mixed/timeline.csv" | cut -d, -f1 | paste -sd' ')" '1 1 2 3 3 3' 'each rank once'
plot "$tmp/rounded.json" --svg "$tmp/plot/rounded" --quiet
same "$(grep -c ',0$' "$tmp/plot/rounded/time.csv")" 6 'no part is a rounding error'
grep -q ',idle,0$' "$tmp/plot/rounded/time.csv" && grep -q ',tail,0.001$' "$tmp/plot/rounded/time.csv"
check 'small parts stay' test $? = 0

# What would change nothing, and what nothing has, is refused before anything is written.
fails 1 'no source is a job' "$dhelix" plot "$tmp/run" --set train.steps=3 --svg "$tmp/x"
fails 1 'no source is a job' "$dhelix" plot korthikanti-layer --set train.steps=3 --svg "$tmp/x"
fails 1 'jobs and published tables' "$dhelix" plot "$tmp/run" --cluster h100 --svg "$tmp/x"
fails 1 'table: there is nothing to draw: no table.json' "$dhelix" plot "$tmp/run" --figures loss,table --svg "$tmp/x"
fails 1 'nothing to draw: no times in summary.json' "$dhelix" plot "$tmp/alone.json" --svg "$tmp/x"
echo '{"step":1,"speed":2}' >"$tmp/lossless.jsonl"
fails 1 'nothing to draw: no line of the metrics has' "$dhelix" plot "$tmp/lossless.jsonl" --svg "$tmp/x"
ok "$dhelix" plot "$tmp/run" "$tmp/one" --figures timeline --svg "$tmp/plot/either"
says 'figure      timeline-1'
says 'not drawn   timeline-2'
latin=$(printf '%s/plot/\377' "$tmp")
fails 1 'not UTF-8' "$dhelix" plot "$tmp/run" --svg "$latin" --json
fails 1 'not UTF-8' "$dhelix" plot "$tmp/run" --figures loss --svg "$latin.svg" --json
check 'nothing is written' test ! -e "$latin" -a ! -e "$latin.svg"
ok "$dhelix" plot "$tmp/run" --figures loss --svg "$latin.svg"
check 'people may name it so' test -s "$latin.csv"
fails 1 'timed.yaml: it is a file' "$dhelix" plot "$tmp/run" --svg "$tmp/timed.yaml/x"
mkdir "$tmp/folder.svg" "$tmp/taken" "$tmp/taken/loss.csv"
fails 1 'folder.svg is a folder' "$dhelix" plot "$tmp/run" --figures loss --svg "$tmp/folder.svg"
fails 1 'loss.csv is a folder' "$dhelix" plot "$tmp/run" --figures loss --svg "$tmp/taken"
same "$(ls "$tmp/taken")" loss.csv 'no half of a figure'

fails 1 'is not a folder, a file' "$dhelix" plot "$tmp/nowhere" --svg "$tmp/x"
fails 1 'did you mean table' "$dhelix" plot "$tmp/run" --figures tabel --svg "$tmp/x"
fails 1 'is one file, and there are' "$dhelix" plot "$tmp/run" --svg "$tmp/x.svg"
fails 1 'nothing to draw: no table.json' "$dhelix" plot "$tmp/run" --figures table --svg "$tmp/x.svg"
fails 1 'would overwrite such files' "$dhelix" plot "$tmp/one/table.json" --svg "$tmp/two/x.svg"
fails 1 'bytes before .svg' "$dhelix" plot "$tmp/one/table.json" --svg "$tmp/.svg"
echo '{"a": 1}' >"$tmp/other.json"
fails 1 'no figure is drawn from this JSON document' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
echo '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "pid": 1}]}' >"$tmp/other.json"
fails 1 'no instruction of dhelix' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
echo '{"cells": [1], "settings": []}' >"$tmp/other.json"
fails 1 'other.json: one or two settings' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
echo '{"ranked": [{"settings": 3}, 5], "strategies": 7}' >"$tmp/other.json"
fails 1 'other.json: one or two settings' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
python3 -c 'print("{\"strategies\": [" + ",".join(["{\"reason\": \"no\"}"] * 1025) + "]}")' >"$tmp/other.json"
fails 1 'other.json: 1025 rows' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
echo '{"a": ' >"$tmp/other.json"
fails 1 'other.json:2:' "$dhelix" plot "$tmp/other.json" --svg "$tmp/x"
check 'no folder for what is not drawn' test ! -e "$tmp/x"

# A document as deep as a parser goes is drawn from as it is.
mkdir "$tmp/deep"
python3 -c 'print("{\"steps\": 3, \"times\": {\"compute_ms\": 1}, \"x\":" + "[" * 2047 + "]" * 2047 + "}")' >"$tmp/deep/summary.json"
ok "$dhelix" report "$tmp/deep" --svg "$tmp/deep/fig"
says 'figure      time'

fails 2 'is for --svg' "$dhelix" report "$tmp/run" --pdf
fails 2 'without --out' "$dhelix" report "$tmp/run" --svg "$tmp/x" --out "$tmp/x.html"
fails 2 'without --out' "$dhelix" report "$tmp/run" --svg "$tmp/x" --traces "$tmp/x.json"
fails 1 'would overwrite it' "$dhelix" report "$tmp/run" --svg "$tmp/run/."
ok "$dhelix" report "$tmp/one" --svg "$tmp/fig"
says 'not drawn   timeline: no trace: --set trace.step=N; timeline.svg is of an earlier call'
before=$(cat "$tmp/two/table.csv")
fails 1 'would overwrite such files' "$dhelix" report "$tmp/one" --svg "$tmp/two"
same "$(cat "$tmp/two/table.csv")" "$before" 'the table of another run'
fails 1 'is not a folder' "$dhelix" report "$tmp/nowhere" --svg "$tmp/x"
fails 1 'is not a run folder' "$dhelix" report tests/cli --svg "$tmp/x"
printf '{"step":1,"loss":2}\n{"step":2,\n{"step":3}\n' >"$tmp/run/metrics.jsonl"
fails 1 'metrics.jsonl:2:' "$dhelix" report "$tmp/run" --svg "$tmp/x"
check 'then no folder is made' test ! -e "$tmp/x"
finish
