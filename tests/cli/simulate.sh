# Training steps simulated: on clusters and on this machine, as text, JSON and run folders.
. tests/cli/lib.sh "$1"

cat >"$tmp/job.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 8}
train: {batch: 32, micro_batch: 1, seq_len: 4096, dtype: bf16, recompute: selective}
parallel: {tp: 4, pp: 2, dp: 2, zero: 1}
EOF

# A model whose vocabulary is known needs no data.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100
says 'llama3-8b on cluster h100: 16 ranks'
says 'tokens/s'
says 'MFU: 6 a parameter and token and causal attention'
says 'bubble'
says 'costs: cluster h100'
# Also how far predictions of the most similar published steps were off.
said=$(tr -s ' \n' ' ' <"$tmp/out")
check 'the nearest row, and the mean of several' grep -Eq 'nearest measured: .* on [0-9]+ h100.*, .* \(table [a-z0-9-]+\): predicted [0-9.]+ % too (fast|slow).*; 5 nearest rows: [0-9.]+ % off on average' <<<"$said"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster mi300x
says 'nearest measured: no row of this device'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster mi300x --json
check 'the same in JSON' grep -q '"reason": "no row of this device"' "$tmp/out"
ok "$dhelix" simulate examples/tp2.yaml
check 'nothing was published of this machine' [ "$(grep -c 'nearest measured' "$tmp/out")" = 0 ]
# A published step is its own nearest row, and what is simulated of it is what the file of predictions has.
ok "$dhelix" simulate validation/jobs/nemo-llama2-7b.yaml --cluster h100 --set parallel.dp=4 --set parallel.pp=2 \
    --set parallel.tp=1 --set parallel.cp=1 --set parallel.virtual_stages=1 --set train.batch=512 --set train.micro_batch=1 \
    --set train.seq_len=8192 --set system=nemo+second-flash --set train.fp8=hybrid --json
same "$(json table) $(json distance)" 'nemo-long 0.0' 'the row and its distance'
close "$(json predicted)" "$(awk -v all="$(json tokens_per_s)" 'BEGIN { print all / 8 }')" 1

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
    -v b="$(says_traffic gradients exposed_ms)" -v n="$(says_traffic gradients alone_ms)" \
    'BEGIN { exit !(n > 0 && a + b > n * .999 && a + b < n * 1.001) }'

# A slower device, a slow rank and a slow link take longer.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster a100 --json
check 'A100 nodes take longer' awk -v a="$(json step_ms)" -v h="$step" 'BEGIN { exit !(a > h) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --slow 11:1.5
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
fails 1 '(device.tflops.fp8)' "$dhelix" simulate "$tmp/job.yaml" --cluster a100 \
    --set train.dtype=bf16 --set train.fp8=hybrid
fails 1 'there are nodes 0 to 1' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --slow-node 2:2
fails 1 'slow.nodes: node 2: there are nodes 0 to 1' "$dhelix" simulate "$tmp/job.yaml" \
    --cluster h100 --set 'slow={nodes: 2, link_factor: 2}'
fails 2 'a node and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow-node 1
fails 2 'a rank and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow 3
fails 2 'a rank and a factor above 0' "$dhelix" simulate "$tmp/job.yaml" --slow 3:0
fails 1 'there are ranks 0 to 15' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --slow 16:2
fails 1 'h100' "$dhelix" simulate "$tmp/job.yaml" --cluster h10

# Strategies side by side; those that cannot run the job say why.
n_strategies=$("$dhelix" list strategies --json | grep -c '"name"')
forms=(--json)
if deep; then forms+=(--quiet); fi # the latter says nothing of progress, and the table
if sanitized; then forms=(); fi
for form in "${forms[@]}"; do
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --strategies all "$form" --set train.batch=16 \
        --set model.n_layers=4
    for name in $("$dhelix" list strategies --json | sed -n 's/.*"name": "\([^"]*\)".*/\1/p'); do
        says "$name"
    done
    [ "$form" != --json ] || same "$(grep -c '^      "strategy"' "$tmp/out")" "$n_strategies"
done
# The job as given comes first. Each strategy has the schedule that it needs: its own, or of those that
# make pairs the one with the shortest step.
ok "$dhelix" simulate validation/jobs/nemo-llama3-70b.yaml --cluster h100 \
    --set train.batch=16 --strategies flux,dhelix,sequential,dualpipe
cut -d' ' -f1 "$tmp/out" | grep -xE 'sequential|flux|dhelix|dualpipe' | tr '\n' ' ' >"$tmp/order"
same "$(cat "$tmp/order")" 'sequential flux dhelix dualpipe '
check 'each with its schedule' grep -qE '^dhelix +dhelix-w ' "$tmp/out"
check 'or the one of the job' grep -qE '^flux +interleaved-1f1b x5 ' "$tmp/out"
says 'speed-up: over the job as given, sequential with interleaved-1f1b x5'
check 'no row is refused' sh -c "! grep -q 'by construction' '$tmp/out'"
ok "$dhelix" simulate validation/jobs/nemo-llama3-70b.yaml --cluster h100 \
    --set train.batch=16 --strategies dualpipe,sequential --json
cp "$tmp/out" "$tmp/several.json"
speed_up=$(sed -n 's/.*"speed_up": \([0-9.]*\).*/\1/p' "$tmp/out" | tail -1)
step_own=$(sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out" | tail -1)
ok "$dhelix" simulate validation/jobs/nemo-llama3-70b.yaml --cluster h100 --set train.batch=16 --json
close "$speed_up" "$(awk -v a="$(json step_ms)" -v b="$step_own" 'BEGIN { print a / b }')" 0.00001
ok "$dhelix" simulate validation/jobs/nemo-llama3-70b.yaml --cluster h100 --set train.batch=16 --json \
    --set strategy=dualpipe --set parallel.schedule=dualpipev --set parallel.virtual_stages=2
close "$(json step_ms)" "$step_own" 0.000001
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --strategies sequential,dhelix \
    --set parallel.layer_split=4,4
check 'dhelix-w cannot have this split' grep -qE '^dhelix +combined-1f1b x1 ' "$tmp/out"
# Without a pipeline, too, a forward of the next micro-batch runs beside a backward.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set parallel.pp=1 --set strategy=sequential \
    --json
in_turn=$(json step_ms)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set parallel.pp=1 --set strategy=combined-1f1b \
    --json
check 'combined-1f1b hides on one stage' awk -v a="$in_turn" -v b="$(json step_ms)" \
    'BEGIN { exit !(b < 0.97 * a) }'
# A job that cannot be as it is given says so beside the rows that can.
ok "$dhelix" simulate validation/jobs/nemo-llama3-70b.yaml --cluster h100 --set train.batch=16 \
    --set strategy=dhelix --strategies flux,dhelix
says 'dhelix, as given: schedule dhelix-w: 5 virtual stages'
says 'speed-up: over flux with interleaved-1f1b x5, since the job as given cannot be simulated'
check 'with its own schedule it can' grep -qE '^dhelix +dhelix-w ' "$tmp/out"
# Other schedules are compared with that of the job.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set train.batch=16 --schedules zb-v --strategies flux,sequential
check 'the job is the first row' grep -qE '^sequential +1f1b .* as given$' "$tmp/out"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set train.batch=16 --schedules zb-v,gpipe --quiet \
    --out "$tmp/several"
check 'and has its folder' test -s "$tmp/several/1f1b/summary.json" -a -s "$tmp/several/zb-v/summary.json"
# strategy: auto is at least as fast as every row that fits, and what it chose can be said in a job.
tp_pp=(simulate "$tmp/job.yaml" --cluster a100 --set model.n_layers=8 --set train.batch=16
    --set train.micro_batch=2)
ok "$dhelix" "${tp_pp[@]}" --strategies sequential,dhelix,flux,dualpipe,domino,auto --json
cp "$tmp/out" "$tmp/chosen.json"
check 'auto is the fastest' awk '/"strategy"/ { auto = /"auto"/ } /"step_ms"/ { ms = $2 + 0 }
    /"fits": true/ { if (auto) own = ms; else if (!best || ms < best) best = ms }
    END { exit !(own && own <= 1.005 * best) }' "$tmp/out"
chosen=$(sed -n 's/.*"chosen": "\(.*\)",*$/\1/p' "$tmp/out")
split=$(sed -n 's/.*"layer_split": "\(.*\)",*$/\1/p' "$tmp/out" | tail -1)
auto_ms=$(sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out" | tail -1)
ok "$dhelix" "${tp_pp[@]}" --json --set "strategy=$chosen" --set "parallel.layer_split=$split"
close "$(json step_ms)" "$auto_ms" 0.000001
ok "$dhelix" "${tp_pp[@]}" --set train.batch=4 --set strategy=auto --strategies auto,sequential
says 'auto'
# Two copies of the model are tried as well, after all others: here they are worth their memory.
# The search above runs the same code under the sanitizers.
if ! sanitized; then
    copies=("${tp_pp[@]}" --set parallel.tp=2)
    ok "$dhelix" "${copies[@]}" --strategies sequential,dualpipe,auto --json
    own_ms=$(sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out" | tail -1)
    check 'the chosen schedule keeps two copies' grep -Eq '"chosen": ".*schedule: (bidirectional|dualpipe|wavelet),' "$tmp/out"
    ok "$dhelix" "${copies[@]}" --set parallel.schedule=bidirectional --strategies sequential,list --json
    check 'and is no slower than a job that names it' awk -v own="$own_ms" '/"step_ms"/ { ms = $2 + 0 } END { exit !(own <= ms) }' "$tmp/out"
fi
# A strategy that finds nothing of its own to do says so: its row is no result.
few=(simulate "$tmp/job.yaml" --cluster h100 --set train.batch=16 --set model.n_layers=4)
ok "$dhelix" "${few[@]}" --strategies sequential,dhelix,round-robin
same "$(grep -c 'same as' "$tmp/out")" 1 'round-robin alone'
says 'same as sequential'
# What is the same is the programs: one sequence cannot be divided, so domino is list.
ok "$dhelix" "${few[@]}" --strategies list,domino,coconet,flux --json
same "$(sed -n 's/.*"same_as": "\([^"]*\)".*/\1/p' "$tmp/out" | tr '\n' ' ')" 'list sequential '
ok "$dhelix" "${few[@]}" --set train.micro_batch=2 --strategies list,domino --json
same "$(grep -c '"same_as"' "$tmp/out")" 0 'two sequences are divided'
ok "$dhelix" "${few[@]}" --schedules 1f1b,gpipe --strategies sequential,list,round-robin --json
check 'and of which schedule' grep -q '"same_as_schedule": "1f1b"' "$tmp/out"
# A head in a thousand chunks is paired as well.
printf 'model: {preset: llama3-8b, n_layers: 2}\ntrain: {batch: 16, micro_batch: 8, seq_len: 4096}\n' \
    >"$tmp/head.yaml"
ok "$dhelix" simulate "$tmp/head.yaml" --cluster h100 --ranks 8 --set parallel.tp=8 --json \
    --strategies sequential,dhelix
check 'dhelix is faster' awk '/"step_ms"/ { ms[n++] = $2 + 0 } END { exit !(n == 2 && ms[1] < ms[0]) }' \
    "$tmp/out"
# What this machine cannot hold is asked for its cluster; a mesh that spans nodes says so.
fails 1 'name the hardware to simulate with --cluster' "$dhelix" simulate "$tmp/job.yaml" \
    --set model=llama3.1-405b
printf 'like: h100\nnode: {devices: 4}\n' >"$tmp/four.yaml"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/four.yaml" --set parallel.tp=8 \
    --set parallel.dp=1
says 'parallel.tp 8 spans nodes of 4 devices'
# Both directions of a link at once: over a slow one, 16 messages forth and 16 back take the time of 16.
cat >"$tmp/two.yaml" <<EOF
model: {family: gpt2, n_layers: 2, width: 1600, n_heads: 25, vocab: 1024, max_seq: 1024, tied_head: false}
train: {batch: 16, micro_batch: 1, seq_len: 1024, dtype: bf16}
parallel: {pp: 2, schedule: 1f1b}
EOF
printf 'like: a100\nnode: {devices: 1}\nnetwork: {gb_per_s: 0.0625, transfer_efficiency: 0.9, step_us: 0}\n' >"$tmp/wire.yaml"
ok "$dhelix" simulate "$tmp/two.yaml" --cluster "$tmp/wire.yaml" --json
check 'both directions run at once' awk -v ms="$(json step_ms)" \
    'BEGIN { all = 16 * 1024 * 1600 * 2 / 0.05625e9 * 1e3; exit !(ms > all && ms < 1.25 * all) }'
# A share of a link that was measured on another one.
printf 'like: h100\nnetwork: {gb_per_s: 50}\n' >"$tmp/narrow.yaml"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/narrow.yaml"
check 'a share of another link is warned of' grep -q 'network.efficiency is that of a link of 400' "$tmp/err"
printf 'like: a100\nnetwork: {gb_per_s: 50}\n' >"$tmp/narrow.yaml"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/narrow.yaml"
check 'a share by adapter holds for fewer' awk '/network.efficiency is that of/ { exit 1 }' "$tmp/err"
fails 1 'no strategy is called' "$dhelix" simulate "$tmp/job.yaml" --strategies dhelics

# Layers that do not divide, as even as each schedule can; a split of a folded schedule's own.
fails 1 'or * for as even as can be' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --set model.n_layers=27
for schedule in 1f1b zb-v zb-auto; do
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set model.n_layers=27 \
        --set 'parallel.layer_split=*' --set parallel.schedule=$schedule --set train.batch=16
done
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set model.n_layers=27 \
    --set parallel.layer_split=6,7,7,7 --set parallel.schedule=zb-v --set train.batch=16
fails 1 '4 entries for 2 virtual stages' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --set model.n_layers=27 --set parallel.layer_split=6,7,7,7 --set train.batch=16

# zb-auto is placed by the job's own times: no slower than what was made by hand, and with more
# activations faster.
zb() { # settings: the step
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set parallel.tp=1 \
        --set parallel.pp=4 --set parallel.dp=1 --set train.batch=16 --set train.micro_batch=1 "$@"
    json step_ms
}
h1=$(zb --set parallel.schedule=zb-h1)
auto=$(zb --set parallel.schedule=zb-auto)
more=$(zb --set parallel.schedule=zb-auto --set parallel.max_activations=8)
check "zb-auto $auto, zb-h1 $h1" awk "BEGIN { exit !($auto <= $h1 * 1.002) }"
check "zb-auto $auto, with 8 activations $more" awk "BEGIN { exit !($more < $auto) }"
fails 1 'parallel.max_activations is for schedules' "$dhelix" simulate "$tmp/job.yaml" \
    --cluster h100 --set parallel.max_activations=4

# Times of stages instead of a model: 1F1B of 4 stages and 8 micro-batches stands still for 3 of 11.
cat >"$tmp/stages.yaml" <<EOF
stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}
train: {batch: 8, micro_batch: 1}
parallel: {pp: 4}
EOF
ok "$dhelix" simulate "$tmp/stages.yaml" --json
same "$(json step_ms)" 33.0
close "$(json bubble)" 0.272727 1e-5
ok "$dhelix" simulate "$tmp/stages.yaml" --set stages.forward_ms=1,2,1,1
says 'bubble'
fails 1 '3 times; the schedule has 4 virtual stages' "$dhelix" simulate "$tmp/stages.yaml" \
    --set stages.forward_ms=1,2,1
fails 1 'orders operators' "$dhelix" simulate "$tmp/stages.yaml" --set strategy=dhelix
fails 2 'times instead of a model' "$dhelix" simulate "$tmp/stages.yaml" --every-rank
ok "$dhelix" simulate "$tmp/stages.yaml" --cluster h100 --quiet --json
same "$(json step_ms)" 33.0 'no cluster changes times that are given'
for command in train check plan; do
    fails 1 'only `dhelix simulate`' "$dhelix" "$command" "$tmp/stages.yaml"
done

# Gradients' buckets grow with the ranks that reduce them, 4 MB for each, and are faster for it.
bucket() { # settings: the step
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set parallel.tp=8 \
        --set parallel.pp=1 --set parallel.dp=64 --set train.batch=64 --set train.micro_batch=1 "$@"
    json step_ms
}
auto=$(bucket)
same "$(bucket --set parallel.bucket_mb=256)" "$auto" 'buckets of 64 ranks'
small=$(bucket --set parallel.bucket_mb=25)
check "buckets $auto, of 25 MB $small" awk "BEGIN { exit !($auto < $small) }"

# Every schedule in one table: each the step of the job with it, or the reason why not.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --schedules all --json --set train.batch=16
same "$(grep -c '^      "schedule":' "$tmp/out")" "$("$dhelix" list schedules --json | grep -c '"name"')"
for schedule in wavelet bidirectional dualpipe; do # two copies of the model are simulated too
    check "$schedule has a step" awk -v s="\"schedule\": \"$schedule\"" \
        'index($0, s) { in_row = 1 } in_row && /"step_ms"/ { found = 1 } /"schedule":/ && !index($0, s) { in_row = 0 }
         END { exit !found }' "$tmp/out"
done
zb=$(sed -n '/"schedule": "zb-v"/,$d; s/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out" | tail -1)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --set parallel.schedule=zb-v \
    --set parallel.virtual_stages=2 --set train.batch=16
same "$(json step_ms)" "$zb" 'zb-v of all and by itself'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --schedules 1f1b,gpipe,dhelix-w --strategies sequential,dhelix
says '1f1b, gpipe with dhelix: strategy dhelix orders pairs'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --schedules 1f1b,gpipe --set parallel.pp=1
says 'gpipe: parallel.pp is 1'
fails 1 'did you mean "1f1b"' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --schedules 1f1

# One or two settings as a matrix; what a cell cannot have is its reason. 80 columns are enough.
COLUMNS=80 ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set parallel.dp=null --ranks 16 \
    --table parallel.tp=4,3,8 train.micro_batch=1,2 --out "$tmp/table"
says '(1) '
says 'a multiple of parallel.tp 3'
check 'no line is longer than 80 columns' awk 'length > 80 { exit 1 }' "$tmp/out"
same "$(grep -c '"values": ' "$tmp/table/table.json")" 8 'two settings and six cells'
same "$(wc -l <"$tmp/table/table.csv")" 7 'a line a cell'
says 'nearest measured: '
cell=$(sed -n 's/^4,1,sequential,16,\([0-9.]*\),.*/\1/p' "$tmp/table/table.csv")
close "$cell" "$step" 0.001
says "shortest step that fits"
# The nearest step is that of the cell simulated by itself: also by the schedule that a strategy brings.
nearest() { sed -n '/"nearest"/,$p' "$tmp/out" | grep -E '"(table|row|distance)"'; }
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set strategy=dhelix --json
alone=$(nearest)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --set strategy=dhelix --table train.micro_batch=1 --json
same "$(nearest)" "$alone" 'the nearest step of a table'
check 'there is one' test -n "$alone"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --table parallel.tp=4,2 --csv
says 'parallel.tp,taken_strategy,taken_ranks,step_ms,'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --show memory \
    --table strategy=sequential,dhelix train.recompute=none,full
says 'memory'
says 'GiB'
ok "$dhelix" report "$tmp/table" --quiet
check 'the table is on the page' grep -q '"table":{"model":"llama3-8b"' "$tmp/table/report.html"
fails 1 'unknown setting "parallel.tq"' "$dhelix" simulate "$tmp/job.yaml" --table parallel.tq=1,2
fails 1 'no cell of the table can be simulated' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --table parallel.tp=3,5
for bad in parallel.tp parallel.tp= parallel.tp=1,,2 '=1'; do
    fails 2 'KEY=V1,V2 is wanted' "$dhelix" simulate "$tmp/job.yaml" --table "$bad"
done
fails 2 'stands twice' "$dhelix" simulate "$tmp/job.yaml" --table parallel.tp=1 parallel.tp=2
fails 2 'one or two settings' "$dhelix" simulate "$tmp/job.yaml" --table a=1 b=2 c=3
fails 2 '--csv' "$dhelix" simulate "$tmp/job.yaml" --csv
fails 2 '--table has no --strategies' "$dhelix" simulate "$tmp/job.yaml" --strategies all --table a=1

if ! sanitized; then
    # Where a strategy loses to none, the plan says so beforehand, by the steps that are simulated.
    loses=(--cluster h100 --set train.batch=16 --set parallel.tp=16 --set parallel.pp=1 --set parallel.dp=1
        --set model.n_kv_heads=16 --set parallel.zero=0)
    ok "$dhelix" plan "$tmp/job.yaml" "${loses[@]}" --set strategy=flux
    says '% slower. --set strategy=sequential would be faster here'
    ok "$dhelix" plan "$tmp/job.yaml" "${loses[@]}" --set strategy=flux --json
    own=$(json step_ms)
    plain=$(json sequential_ms)
    same "$(json beside_sequential)" slower
    ok "$dhelix" simulate "$tmp/job.yaml" "${loses[@]}" --set strategy=flux --json
    close "$(json step_ms)" "$own" 0.000001
    ok "$dhelix" simulate "$tmp/job.yaml" "${loses[@]}" --json
    close "$(json step_ms)" "$plain" 0.000001
    ok "$dhelix" plan "$tmp/job.yaml" "${loses[@]}" --set strategy=list --set overlap.memory=1.5 --set model.n_layers=32 --set model.max_seq=16384 --set train.seq_len=16384
    says 'less than predictions are wrong by: it may be slower.'
    says '4.3 points, the mean error of speed-ups on a cluster'
    ok "$dhelix" plan "$tmp/job.yaml" "${loses[@]}" --set strategy=round-robin
    says ': as long. Error'

    # And where settings lose to the job without them; a gain that is less than predictions are wrong by is
    # none to count on. What it is compared with is the step of that job.
    fewer=(--cluster h100 --set model.n_layers=8 --set train.batch=16)
    beside() { # word, what is left out, settings...
        local word=$1 without=$2
        shift 2
        ok "$dhelix" plan "$tmp/job.yaml" "${fewer[@]}" "$@" --json
        same "$(json beside_plain)" "$word" "$*"
        same "$(json plain_without)" "$without"
        own=$(json step_ms) plain=$(json plain_ms)
    }
    ok "$dhelix" simulate "$tmp/job.yaml" "${fewer[@]}" --json
    step=$(json step_ms)
    beside slower parallel.schedule=wavelet --set parallel.schedule=wavelet
    same "$plain" "$step" 'one copy'
    ok "$dhelix" simulate "$tmp/job.yaml" "${fewer[@]}" --set parallel.schedule=wavelet --json
    same "$(json step_ms)" "$own" 'two copies'
    beside faster parallel.schedule=bidirectional --set parallel.schedule=bidirectional --set strategy=dhelix
    same "$plain" "$step" 'one copy in one strand'
    check 'the word is that of the gain' awk -v w="$(json beside_sequential)" -v a="$own" -v b="$(json sequential_ms)" \
        -v e="$(json error)" 'BEGIN { exit !(a < b && (w == "faster") == (b > (1 + e) * a)) }'
    check 'beside two copies in one strand' awk -v a="$(json sequential_ms)" -v b="$plain" 'BEGIN { exit !(a < b) }'
    beside 'may be slower' optimizer.post_validation=true --set optimizer.post_validation=true
    check 'no strategy, no other one' sh -c "! grep -q sequential_ms '$tmp/out'"
    check 'the gain is less than the error' awk -v a="$own" -v b="$plain" -v e="$(json error)" \
        'BEGIN { exit !(a < b && b < (1 + e) * a) }'
    ok "$dhelix" plan "$tmp/job.yaml" "${fewer[@]}" --set optimizer.post_validation=true
    says 'it may be slower'
    beside slower optimizer.fuse=4 --set optimizer.fuse=4
    ok "$dhelix" plan "$tmp/job.yaml" "${fewer[@]}" --set optimizer.fuse=4
    says '% slower. A job without optimizer.fuse=4'
    beside 'may be slower' parallel.cp_linear=lasp1 --set parallel.cp=2 --set parallel.tp=2 --set model.attention=linear \
        --set parallel.cp_linear=lasp1
    ok "$dhelix" plan "$tmp/job.yaml" "${fewer[@]}" --json
    check 'a plain job is beside nothing' sh -c "! grep -q predicted '$tmp/out'"
fi

# Layers of two kinds: any two side by side; stages take what theirs do.
cat >"$tmp/kinds.yaml" <<END
model: {preset: deepseek-tiny, n_layers: 4, dense_first: 1, dense_width: 96}
data: {train: none}
train: {batch: 8, micro_batch: 1, seq_len: 64}
parallel: {dp: 2, ep: 2, pp: 2}
END
for layers in 0,0 0,3 3,0 1,3; do
    ok "$dhelix" plan "$tmp/kinds.yaml" --cluster h100 --layers $layers --json
    echo "$layers $(json bound_us)"
done >"$tmp/bounds"
same "$(cut -d' ' -f2 "$tmp/bounds" | sort -u | wc -l)" 4 'pairs of kinds take different times'
ok "$dhelix" plan "$tmp/kinds.yaml" --cluster h100
says 'forward of layer 1 during the backward of layer 1'
ok "$dhelix" plan "$tmp/kinds.yaml" --cluster h100 --layers 0,3
says 'forward of layer 0, a layer without experts, during the backward of layer 3'
ok "$dhelix" plan "$tmp/kinds.yaml" --cluster h100 --layers 0,3 --export json
says '"backward": 3'
fails 1 'there is no layer 4: they are 0 to 3' "$dhelix" plan "$tmp/kinds.yaml" --layers 0,4
fails 2 'two numbers of layers' "$dhelix" plan "$tmp/kinds.yaml" --layers 0

# A plan of a cluster's device, and another of a slower one.
ok "$dhelix" plan "$tmp/job.yaml" --cluster h100 --json
bound=$(json bound_us)
says '"costs": "cluster h100"'
ok "$dhelix" plan "$tmp/job.yaml" --cluster a100 --json
check 'A100 takes longer' awk -v a="$(json bound_us)" -v h="$bound" 'BEGIN { exit !(a > h) }'

# What communicators hold of a device, and what else was tried.
explain=(plan "$tmp/job.yaml" --cluster h100 --explain --set model.n_layers=4 --set train.batch=16)
ok "$dhelix" "${explain[@]}"
says 'planned for the others'
says 'full with'
ok "$dhelix" "${explain[@]}" --json
check 'no step is longer than with links full' awk -v a="$(json step_ms)" -v f="$(json full_step_ms)" \
    'BEGIN { exit !(a > 0 && a <= f) }'
ok "$dhelix" "${explain[@]}" --set parallel.gpu_comm_sms=3
says '(parallel.gpu_comm_sms)'

# Too large for the devices.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster a40 --set parallel.tp=1 --set parallel.dp=8 \
    --set parallel.zero=0 --set model.n_layers=32
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

# A cluster from measurements: steps of it, and what is wrong with a file.
{
    echo m,n,k,dtype,tflops
    for m in 1024 2048 4096 8192; do echo "$m,4096,4096,bf16,500"; echo "$m,4096,1024,bf16,400"; done
} >"$tmp/gemm.csv"
COLUMNS=80 ok "$dhelix" calibrate "$tmp/gemm.csv" --like h100 --out "$tmp/mine.yaml"
says 'gemm.efficiency'
says 'no measurement of it: kept'
check 'no line is longer than 80 columns' awk 'length > 80 { exit 1 }' "$tmp/out"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/mine.yaml" --json
check 'slower GEMMs, a slower step' awk -v a="$(json step_ms)" -v h="$step" 'BEGIN { exit !(a > h) }'
fails 2 '--like NAME is missing' "$dhelix" calibrate "$tmp/gemm.csv"
fails 1 'did you mean' "$dhelix" calibrate "$tmp/gemm.csv" --like h10
echo 1,2 >>"$tmp/gemm.csv"
fails 1 'gemm.csv:10: 2 cells' "$dhelix" calibrate "$tmp/gemm.csv" --like h100

# To another layout: what moves, by every rule, and what that takes.
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --reshard-to parallel.tp=8 parallel.dp=1
says 'params (bf16) of 16 ranks, 8 a node'
says 'stay on their ranks'
says 'first '
says 'hotspa '
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --reshard-to parallel.tp=8 parallel.dp=1 --json
cp "$tmp/out" "$tmp/reshard.json"
moved=$(json local_bytes)
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --reshard-to parallel.tp=8 parallel.dp=1
check 'the same input gives the same bytes' cmp "$tmp/reshard.json" "$tmp/out"
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --reshard states --json \
    --reshard-to parallel.tp=8 parallel.dp=1
check 'masters and moments are more' awk -v a="$(json local_bytes)" -v p="$moved" \
    'BEGIN { exit !(a > 2 * p && p > 0) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --reshard-chunk 50 --json \
    --reshard-to parallel.tp=8 parallel.dp=1
check 'in several chunks' awk -v n="$(json chunks)" 'BEGIN { exit !(n > 1) }'
ok "$dhelix" simulate "$tmp/job.yaml" --cluster h100 --json --reshard-to train.steps=7
same "$(json local_bytes)" 0 'nothing moves to the same layout'
fails 1 'with --reshard-to: ' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --reshard-to parallel.tp=3
fails 1 'over the same ranks' "$dhelix" simulate "$tmp/job.yaml" --cluster h100 \
    --reshard-to parallel.dp=8
fails 2 'is of no step' "$dhelix" simulate "$tmp/job.yaml" --placed --reshard-to parallel.dp=1
fails 2 '--reshard-to' "$dhelix" simulate "$tmp/job.yaml" --reshard grads

# Documents by length: a step of several meshes, by lengths from a file.
for n in 60 120 250 500 900 1900 90 300; do echo $n; done >"$tmp/lengths"
cat >"$tmp/grouped.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 8}
data: {packing: group}
ranks: 16
train: {batch: 8, seq_len: 2048, micro_batch: 1, dtype: bf16}
parallel: {tp: 8, zero: 1}
switch: {groups: [512 tp=4, 2048 tp=8]}
EOF
ok "$dhelix" simulate "$tmp/grouped.yaml" --cluster h100 --lengths "$tmp/lengths"
says 'nearest measured: '
says 'weights and optimizer at dp 2, tp 8'
says 'All documents packed for dp'
ok "$dhelix" simulate "$tmp/grouped.yaml" --cluster h100 --lengths "$tmp/lengths" --json
check 'the second group is at home' awk -v n="$(grep -c '"at_home": true' "$tmp/out")" \
    'BEGIN { exit n != 1 }'
check 'parameters move' awk -v b="$(json params_bytes)" 'BEGIN { exit !(b > 1e9) }'
fails 1 'data.train is not set' "$dhelix" simulate "$tmp/grouped.yaml" --cluster h100
fails 2 'a step of several programs' "$dhelix" simulate "$tmp/grouped.yaml" --every-rank
fails 2 'of a job with data.packing group' "$dhelix" simulate "$tmp/job.yaml" --lengths x
fails 1 'data.packing group' "$dhelix" simulate "$tmp/grouped.yaml" --cluster h100 \
    --table train.batch=8,16

# A power limit takes its share of arithmetic, and a host that issues operators slowly decides a
# step's time alone; neither changes anything where it does not bind.
limited() { # a line of a cluster like a100: milliseconds of a step
    printf 'like: a100\n%s\n' "$1" >"$tmp/limited.yaml"
    ok "$dhelix" simulate "$tmp/limits.yaml" --cluster "$tmp/limited.yaml" --json
    json step_ms
}
cat >"$tmp/limits.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 4}
train: {batch: 8, seq_len: 2048, micro_batch: 1, dtype: bf16}
parallel: {tp: 2, dp: 4}
EOF
free=$(limited '')
same "$(limited 'power: {rated_w: 400, limit_w: 400}')" "$free" 'a limit at the rated power'
same "$(limited 'launch: {host_us: 0.001}')" "$free" 'a host that is faster than the device'
half=$(limited 'power: {rated_w: 400, limit_w: 200}')
third=$(limited 'power: {rated_w: 400, limit_w: 200, exponent: 1}')
check "half the power: $free to $half ms, in proportion $third" awk "BEGIN {
    exit !($half > 1.1 * $free && $half < 1.26 * $free && $third > 1.4 * $free && $third < 2 * $free) }"
slow=$(limited 'launch: {host_us: 4000}') slower=$(limited 'launch: {host_us: 8000}')
check "a slow host decides: $slow and $slower ms" awk "BEGIN {
    exit !($slow > 2 * $free && $slower > 1.98 * $slow && $slower < 2.02 * $slow) }"

# This machine: the planned memory is that of the run itself; the vocabulary is the tokenizer's.
tiny_job "$tmp/tiny.yaml"
ok "$dhelix" simulate "$tmp/tiny.yaml" --ranks 2 --placed --json
planned=$(json planned_bytes)
says '"model": "tiny"'
ok "$dhelix" check "$tmp/tiny.yaml" --ranks 2 --json
same "$(json planned_bytes)" "$planned" 'planned by check and by simulate'
OMP_NUM_THREADS=1 ok taskset -c 0 "$dhelix" simulate "$tmp/tiny.yaml" --ranks 2
says '2 ranks share 1 core'
finish
