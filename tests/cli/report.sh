# Runs drawn as pages.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"

ok "$dhelix" train "$tmp/job.yaml" --ranks 2 --set out="$tmp/run" --set trace.step=5 --set train.steps=10
says "dhelix report $tmp/run"
ok "$dhelix" report "$tmp/run/"
says "$tmp/run/report.html"
check 'the page has both ranks' grep -q '"rank":1,' "$tmp/run/report.html"
check 'and memory' grep -q '"scratch":\[' "$tmp/run/report.html"
ok "$dhelix" report "$tmp/run" -o "$tmp/first.html" --ranks 1 --quiet
check 'one rank where one is asked for' sh -c "! grep -q '\"rank\":1,' '$tmp/first.html'"
ok "$dhelix" report "$tmp/run" "$tmp/run" --out "$tmp/two.html" --json
same "$(json runs)" 2
same "$(json out)" "$tmp/two.html"

# Traces of all ranks in one file, which are as good as measurements for a profile.
ok "$dhelix" report "$tmp/run" --traces "$tmp/all.json" --json
same "$(json out)" "$tmp/all.json"
check 'both ranks are in it' sh -c "grep -q '\"pid\":0' '$tmp/all.json' && grep -q '\"pid\":1' '$tmp/all.json'"
ok "$dhelix" profile "$tmp/job.yaml" --ranks 2 --from-trace "$tmp/all.json" --out "$tmp/traced.json"
says 'imported'
says 'norm_dgrad dx: PyTorch has no one operator'
ok "$dhelix" simulate "$tmp/job.yaml" --ranks 2 --set profile="$tmp/traced.json" --set strategy=sequential
# Of several runs the page says what speed-ups are over.
ok "$dhelix" report "$tmp/run" "$tmp/run" --out "$tmp/two.html" --baseline run/ --quiet
check 'the baseline is on the page' grep -q '"baseline":0' "$tmp/two.html"
fails 1 'none of the runs, such as run' "$dhelix" report "$tmp/run" "$tmp/run" --baseline nosuch

# Simulated runs have means over all ranks, as simulate prints them; many ranks take little room.
cat >"$tmp/wide.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 4}
train: {batch: 16, micro_batch: 1, seq_len: 4096, dtype: bf16}
parallel: {tp: 2, pp: 2, dp: 2}
EOF
ok "$dhelix" simulate "$tmp/wide.yaml" --cluster h100 --every-rank --json
share=$(json hidden_share)
ok "$dhelix" simulate "$tmp/wide.yaml" --cluster h100 --every-rank --out "$tmp/wide" --quiet
close "$(sed -n 's/.*"hidden_share": \([0-9.]*\).*/\1/p' "$tmp/wide/summary.json")" "$share" 0.000001
ok "$dhelix" report "$tmp/wide" --quiet
check 'a page of 8 ranks is small' test "$(wc -c <"$tmp/wide/report.html")" -lt 150000
if command -v node >/dev/null; then
    # Scripts of the page unpack what the page has: as many instructions as the traces.
    cat >"$tmp/unpack.js" <<'EOF'
const fs = require('fs'), [page, ...scripts] = process.argv.slice(2);
const data = JSON.parse(fs.readFileSync(page, 'utf8').match(/id="data">([^]*?)<\/script>/)[1]);
const {unpack, unshare} = new Function(scripts.map(s => fs.readFileSync(s, 'utf8')).join('\n') + 'return {unpack, unshare}')();
const {ranks} = unpack(data.runs[0].trace);
unshare(ranks);
console.log(ranks.flatMap(r => r.streams.map(s => s.kind.length)).reduce((a, b) => a + b));
EOF
    ok node "$tmp/unpack.js" "$tmp/wide/report.html" src/report/html/assets/inflate.js src/report/html/assets/data.js
    same "$(cat "$tmp/out")" "$(cat "$tmp"/wide/trace-rank*.json | grep -o '"cat": *"kernel"' | wc -l)"
fi
fails 2 'of one run' "$dhelix" report "$tmp/run" "$tmp/run" --traces "$tmp/all.json"
fails 1 'trace.step=N' "$dhelix" report tests/cli --traces "$tmp/none.json"
fails 2 'one of them' "$dhelix" profile "$tmp/job.yaml" --import a.csv --from-trace b.json

# A live page, for this machine alone; what the run writes meanwhile is on it.
"$dhelix" report "$tmp/run" --serve --quiet >"$tmp/address" 2>"$tmp/err" &
server=$!
for _ in $(seq 100); do [ -s "$tmp/address" ] && break; sleep 0.1; done
port=$(sed -n 's|^http://127.0.0.1:\([0-9]*\)/[0-9a-f]\{32\}/$|\1|p' "$tmp/address")
token=$(sed -n 's|^http://127.0.0.1:[0-9]*/\([0-9a-f]\{32\}\)/$|\1|p' "$tmp/address")
get() { # path, host
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\n\r\n' "/$token$1" "${2:-localhost:$port}" >&3
    cat <&3
    exec 3<&- 3>&-
}
get / >"$tmp/out" && says "fetch('version'"
get /page >"$tmp/out" && says '"rank":1,'
before=$(get /version | tail -1)
same "$(get /version | tail -1)" "$before" 'nothing has changed'
printf '{"step":11,"loss":1.2345}\n' >>"$tmp/run/metrics.jsonl"
check 'a change is told' test "$(get /version | tail -1)" != "$before"
get "/page?$before" >"$tmp/out" && says '1.2345'
get /page example.org >"$tmp/out" && says '403 Forbidden'
get /etc/passwd >"$tmp/out" && says '404 Not Found'
fails 1 'cannot serve on port' "$dhelix" report "$tmp/run" --serve --port "$port"
kill -INT "$server"
wait "$server"
same "$?" 0 'a signal ends it'
fails 2 'is for --serve' "$dhelix" report "$tmp/run" --port 80
fails 1 'is not a folder' "$dhelix" report "$tmp/nowhere" --serve

fails 2 'an argument is missing' "$dhelix" report
fails 1 'is not a folder' "$dhelix" report "$tmp/nowhere"
fails 1 'is not a run folder' "$dhelix" report tests/cli
printf '{"step":1,"loss":2}\n{"step":2,\n{"step":3}\n' >"$tmp/run/metrics.jsonl"
fails 1 'metrics.jsonl:2:' "$dhelix" report "$tmp/run"
finish
