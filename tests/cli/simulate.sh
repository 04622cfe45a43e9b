# Training steps simulated: on clusters and on this machine, as text, JSON and run folders.
. tests/cli/lib.sh "$1"

cat >"$tmp/job.yaml" <<EOF
model: llama3-8b
train: {batch: 64, micro_batch: 1, seq_len: 4096, dtype: bf16, recompute: selective}
parallel: {tp: 4, pp: 2, dp: 2, zero1: true}
EOF

# A model whose vocabulary is known needs no data.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100
says 'llama3-8b on cluster h100: 16 ranks'
says 'tokens/s'
says 'MFU: 6 a parameter and token and causal attention'
says 'bubble'
says 'costs: cluster h100'

ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json
cp "$tmp/out" "$tmp/h100.json"
step=$(json step_ms)
mfu=$(json mfu)
same "$(json ranks)" 16
close "$(json model_tflops_per_device)" "$(awk -v m="$mfu" -v p="$(json peak_tflops_per_device)" \
    'BEGIN { print m * p }')" 0.001
check 'the parts of each stage make its step' awk -F'[:,]' -v step="$step" '
    /"compute_ms"/ { c = $2 } /"exposed_ms"/ { e = $2 } /"bubble_ms"/ { n++ }
    /"idle_ms"/ && c != "" { if (c + e + $2 > step * 1.0001 || c + e + $2 < step * .98) bad = 1; c = "" }
    END { exit bad || n < 3 }' "$tmp/out"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json
check 'the same input gives the same bytes' cmp "$tmp/h100.json" "$tmp/out"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --every-rank
same "$(json step_ms)" "$step" 'every rank by itself'

# What travels is counted as what it is, and lies within the communication.
says_traffic() { sed -n "/\"traffic\"/,/^ *}$/{/\"$1\"/,/}/p}" "$tmp/out" | sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p" | head -1; }
check 'every kind of traffic that there is' grep -q '"traffic"' "$tmp/out"
check 'gradients are reduced' awk -v n="$(says_traffic gradients bytes)" 'BEGIN { exit !(n > 0) }'
check 'and take their time' awk -v a="$(says_traffic gradients hidden_ms)" \
    -v b="$(says_traffic gradients exposed_ms)" -v n="$(says_traffic gradients run_ms)" \
    'BEGIN { exit !(n > 0 && a + b > n * .999 && a + b < n * 1.001) }'

# A slower device, a slow rank and a slow link take longer.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster a100 --json
check 'A100 nodes take longer' awk -v a="$(json step_ms)" -v h="$step" 'BEGIN { exit !(a > h) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow 3:1.5
check 'a straggler delays all' awk -v a="$(json step_ms)" -v h="$step" \
    'BEGIN { exit !(a > 1.1 * h) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow-link 3:8
check 'and so does a slow link' awk -v a="$(json step_ms)" -v h="$step" 'BEGIN { exit !(a > h) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow-node 1:8
check 'and a slow node' awk -v a="$(json step_ms)" -v h="$step" 'BEGIN { exit !(a > h) }'
slow_node=$(json step_ms)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set 'slow={nodes: [1], link_factor: 8}'
same "$(json step_ms)" "$slow_node" 'a slow node in the job file'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow 3:1.5 --slow 9:1.5
slow_ranks=$(json step_ms)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set 'slow={ranks: [3, 9], factor: 1.5}'
same "$(json step_ms)" "$slow_ranks" 'slow ranks in the job file'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --every-rank \
    --set 'slow={ranks: [3, 9], factor: 1.5}'
same "$(json step_ms)" "$slow_ranks" 'slow ranks, every rank by itself'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow-link 3:8
slow_link=$(json step_ms)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set 'slow={links: [3], link_factor: 8}'
same "$(json step_ms)" "$slow_link" 'a slow link in the job file'
fails 1 'slow.ranks: rank 16: there are ranks 0 to 15' "$dhelix" simulate "$tmp/job.yaml" \
    --cluster h100 --set 'slow={ranks: [16], factor: 2}'
fails 1 'slow.ranks names rank 3 twice' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --set 'slow={ranks: [3, 2, 3], factor: 2}'
fails 1 'there are nodes 0 to 1' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --slow-node 2:2
fails 1 'slow.nodes: node 2: there are nodes 0 to 1' "$dhelix" simulate "$tmp/job.yaml" \
    --cluster h100 --set 'slow={nodes: 2, link_factor: 2}'
fails 2 'a node and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow-node 1
fails 2 'a rank and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow 3
fails 2 'a rank and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow 3:0
fails 1 'there are ranks 0 to 15' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --slow 16:2
fails 1 'h100' "$dhelix" simulate "$tmp/job.yaml" --cluster h10

# Strategies side by side; those that cannot run the job say why.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --strategies all
n_strategies=$("$dhelix" list strategies --json | grep -c '"name"')
for name in $("$dhelix" list strategies --json | sed -n 's/.*"name": "\([^"]*\)".*/\1/p'); do
    says "$name"
done
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --strategies all --json
same "$(grep -c '"strategy"' "$tmp/out")" "$n_strategies"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --strategies sequential,dhelix \
    --set parallel.layer_split=16,16
says 'dhelix: layer split'
# What this machine cannot hold is asked for its cluster; a mesh that spans nodes says so.
fails 1 'name the hardware to simulate with --cluster' "$dhelix" simulate "$tmp/job.yaml" \
    --set model=llama3.1-405b
printf 'like: h100\nnode: {devices: 4}\n' >"$tmp/four.yaml"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/four.yaml" --set parallel.tp=8 \
    --set parallel.dp=1
says 'parallel.tp 8 spans nodes of 4 devices'
fails 1 'no strategy is called' "$dhelix" simulate "$tmp/job.yaml" --strategies dhelics

# Too large for the devices.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster a40 --set parallel.tp=1 --set parallel.dp=8 \
    --set parallel.zero1=false
says 'does not fit'

# Folders like those of runs; the same for rank 0 as the trace alone.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --out "$tmp/run" --quiet
check 'the job' test -s "$tmp/run/job.yaml"
check 'a trace of each stage' test -s "$tmp/run/trace-rank0.json" -a -s "$tmp/run/trace-rank8.json"
check 'times' grep -q '"hidden_share"' "$tmp/run/summary.json"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --trace "$tmp/trace.json" --quiet
check 'the trace' cmp "$tmp/trace.json" "$tmp/run/trace-rank0.json"
fails 2 '--trace is of one strategy' "$dhelix" simulate "$tmp/job.yaml" --strategies all \
    --trace "$tmp/t.json"

# This machine: the planned memory is that of the run itself; the vocabulary is the tokenizer's.
tiny_job "$tmp/tiny.yaml"
ok "$dhelix" simulate "$tmp/tiny.yaml" --ranks 2 --placed --json
planned=$(json planned_bytes)
says '"model": "tiny"'
ok "$dhelix" check "$tmp/tiny.yaml" --ranks 2 --json
same "$(json planned_bytes)" "$planned" 'planned by check and by simulate'
finish
