# Searches for the best configuration: ranking, reasons, what is fixed, what is written.
. tests/cli/lib.sh "$1"

cat >"$tmp/job.yaml" <<EOF
model: llama3-8b
train: {batch: 32, seq_len: 4096, dtype: bf16}
parallel: {tp: 3, zero: 1}
EOF
one="--strategies sequential --schedules 1f1b"

# The file's mesh is searched over, even one that it could not have.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --top 4
says 'llama3-8b on 16 devices of cluster h100'
says '<- best'
says 'why not'
says 'the best with each value'
says 'tp spans nodes'
says 'nearest measured: '
check 'configurations a second are said' grep -q 'configurations in .* a second' "$tmp/err"

# Nothing possible has a reason, also where nothing was refused.
fails 1 'with what is kept (parallel.pp=4, parallel.virtual_stages=3) no schedule' "$dhelix" tune \
    "$tmp/job.yaml" --cluster h100 --devices 16 --set parallel.pp=4 --set parallel.virtual_stages=3 $one
fails 1 'entries for 1 virtual stages' "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 \
    --set parallel.pp=1 --set 'parallel.layer_split=0,*,0' $one

# The job as given is the first row: with its reason, or why it is not possible on these devices.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --top 2 --set parallel.tp=2
says 'as given'
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --top 2
says 'the job as given is not possible here'

# Layers that do not divide are split as each schedule can, folded ones too, and what is written
# says how.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 --set model.n_layers=27 \
    --set parallel.pp=4 --set parallel.tp=4 --set train.micro_batch=1 --strategies sequential \
    --schedules zb-v,interleaved-1f1b --verify 2 --json --quiet --write "$tmp/uneven.yaml"
same "$(json refused)" 0 'configurations whose split is refused'
tuned=$(json simulated_ms)
ok "$dhelix" simulate "$tmp/uneven.yaml" --cluster h100 --json
same "$(json step_ms)" "$tuned" 'the uneven job that was written'

if ! sanitized; then
    # Megatron-LM's 175B on 1,024 A100 (MegaScale, table 2: 11.9 s with six virtual stages): what was
    # published is simulated within 5 %, estimates of interleaved schedules are within 5 % of
    # simulations, and none on that mesh is more than 5 % faster than it.
    published() {
        ok "$dhelix" tune validation/jobs/megascale-175b.yaml --cluster a100 --devices 1024 --quiet \
            --set train.batch=768 --set parallel.tp=8 --set parallel.pp=8 --set parallel.cp=1 \
            --set train.micro_batch=1 --set parallel.schedule=interleaved-1f1b --set strategy=sequential \
            --set train.recompute=attention --json --verify 5 "$@"
    }
    near() { # two numbers
        check "$1 is within 5 % of $2" awk "BEGIN { exit !($1 > 0.95 * $2 && $1 < 1.05 * $2) }"
    }
    published --set parallel.virtual_stages=6
    six=$(json simulated_ms)
    near "$six" 11900
    published
    near "$(json simulated_ms)" "$six"
    near "$(json estimated_ms)" "$(json simulated_ms)"
fi

# What a system keeps counts against the memory, and making it again is a choice then.
peak() { # settings: most bytes of a rank
    ok "$dhelix" tune "$tmp/job.yaml" --cluster a100 --devices 8 --set parallel.tp=8 \
        --set train.micro_batch=1 $one --verify 1 --top 1 --json --quiet "$@"
    json simulated_peak_bytes
}
ours=$(peak --set train.recompute=none)
kept=$(peak --set train.recompute=none --set system=megatron-2022)
again=$(peak --set train.recompute=attention --set system=megatron-2022)
check "scores kept $kept, made again $again, ours $ours" \
    awk "BEGIN { exit !($kept > $ours + 4e9 && $again < $kept - 3e9) }"
estimated=$(json peak)
check "made again: estimated $estimated, simulated $again" \
    awk "BEGIN { exit !($estimated > .9 * $again && $estimated < 1.1 * $again) }"
ok "$dhelix" tune "$tmp/job.yaml" --cluster a100 --devices 8 --set parallel.tp=8 \
    --set train.micro_batch=1 $one --verify 0 --top 4 --set system=megatron-2022
says 'attention'
says 'less 3.5 %'

# The same input gives the same bytes; the simulated step is that of simulate.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --json --quiet \
    --write "$tmp/best.yaml"
cp "$tmp/out" "$tmp/first.json"
tuned=$(json simulated_ms)
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --json --quiet
check 'the same input gives the same bytes' cmp "$tmp/first.json" "$tmp/out"
check 'nothing is said with --quiet' test ! -s "$tmp/err"
ok "$dhelix" simulate "$tmp/best.yaml" --cluster h100 --json
same "$(json step_ms)" "$tuned" 'the job that was written'
same "$(json ranks)" 16
# It says no more than a person would: what differs from the defaults, with paths from its folder.
check 'the preset is named' grep -q 'preset: "llama3-8b"' "$tmp/best.yaml"
check 'no defaults' sh -c "! grep -qE 'topology|optimizer|links|layer_split' '$tmp/best.yaml'"
check 'few lines' awk 'END { exit NR > 25 }' "$tmp/best.yaml"
mkdir -p "$tmp/found" "$tmp/texts"
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --quiet \
    --set "data.train=$tmp/found/../texts/a.txt" --write "$tmp/found/best.yaml"
check 'paths start at the folder' grep -qF '"../texts/a.txt"' "$tmp/found/best.yaml"
fails 1 'its folder is not there, or takes no files' "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one \
    --verify 0 --quiet --write "$tmp/nowhere/best.yaml"
check 'said before the search' test ! -s "$tmp/out"

if ! sanitized; then
    # A value's figure is that of a simulation, where it says so: the one of the search that has it fixed
    # (where the estimates do not tell two configurations apart, as with full, that search simulates both).
    ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 2 --json --quiet
    value=$(awk '/"value": "selective"/ { found = 1 } found && /"simulated_ms"/ { print $2 + 0; exit }' \
        "$tmp/out")
    ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --top 1 --json --quiet \
        --set train.recompute=selective
    close "$value" "$(json simulated_ms)" 1e-3
    ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 2
    says '(all simulated)'
    check 'what is estimated says so' grep -q 'estimated .*by the estimates of both' "$tmp/out"
    check 'reasons are of the same kind as the figure' \
        test -z "$(grep 'simulated.*by the estimates' "$tmp/out")"
    ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0
    says '(all estimated)'
    check 'without simulation nothing says it was' test -z "$(grep ' s  *simulated' "$tmp/out")"
fi

# What the command line sets stays; more memory lets more fit.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --json \
    --set parallel.tp=2 --set parallel.zero=0
check 'tp stays' test -z "$(grep '"parallel.tp": ' "$tmp/out" | grep -v ': 2,')"
fit=$(json fit)
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --json \
    --set parallel.tp=2 --set parallel.zero=0 --memory 160GB
check 'twice the memory lets more fit' test "$(json fit)" -gt "$fit"
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --memory 2GiB
says '0 configurations fit'
says 'with 2.00 GiB each'
says 'does not fit: stage 0 needs'

# How tokens are split and how the optimizer steps, where it is asked for: each value in the table.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --zero 0,1 --sequence all \
    --fuse off,4 --post-validation all --set parallel.tp=4
has_value() { # name in the table, value
    check "$1 $2 is in the table" awk -v name="$1" -v value="$2" '
        /^[a-z]/ { mine = $1 == name; if (mine && $2 == value) found = 1 }
        /^ / && mine && $1 == value { found = 1 }
        END { exit !found }' "$tmp/out"
}
for value in 'sp true' 'sp false' 'fuse off' 'fuse 4' 'post true' 'post false'; do has_value $value; done
# One value, and what is written has it.
written() { # line of the file, arguments
    ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 1 --quiet \
        --write "$tmp/more.yaml" --set parallel.tp=4 "${@:2}"
    check "$1 is written" grep -q "^ *$1\$" "$tmp/more.yaml"
    ok "$dhelix" simulate "$tmp/more.yaml" --cluster h100
}
written 'sequence: false' --sequence false
written 'fuse: 4' --zero 1 --fuse 4
written 'post_validation: true' --post-validation true --set parallel.pp=2
fails 1 'optimizer.fuse: "many"' "$dhelix" tune "$tmp/job.yaml" \
    --cluster h100 --devices 16 $one --fuse many
fails 1 'the first: optimizer.fuse and optimizer.post_validation exclude each other' "$dhelix" tune \
    "$tmp/job.yaml" --cluster h100 --devices 16 $one --fuse 4 --post-validation true --set parallel.pp=2
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 --strategies sequential --verify 1 \
    --set parallel.zero=3 --set parallel.regather=stage --set parallel.pp=1 --set parallel.schedule=looped-bfs
says 'looped-bfs x'
fails 1 'parallel.sequence: "maybe"' "$dhelix" tune "$tmp/job.yaml" \
    --cluster h100 --devices 16 $one --sequence maybe

# What is far behind by its work alone is counted, and said at least how long it takes.
ok "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one --verify 0 --within 1 --set train.seq_len=256 \
    --set train.micro_batch=1
says 'more not looked at: GEMMs, attention and rings alone take more than'
says ' ms or more'
fails 2 'it must be a number from 1 to' "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 --within 0.5

# Without a cluster: this machine, by estimates.
ok "$dhelix" tune examples/tp2.yaml --devices 4 $one --verify 2 --set profile=none
says 'on 4 devices of this machine'

# Documents by length: one long document decides the mesh of all, or a mesh for each length.
cat >"$tmp/lengths.yaml" <<EOF
model: {family: llama, n_layers: 4, width: 1024, n_heads: 16, n_kv_heads: 8, head_dim: 64, ffn_width: 2816,
        vocab: 8192, max_seq: 16384}
train: {batch: 16, seq_len: 16384, dtype: bf16}
EOF
awk 'BEGIN { for (i = 0; i < 3000; i++) print i % 70 ? 100 + i % 9 * 100 : 9000 + i % 7000 }' >"$tmp/lengths"
by_length="--cluster a40 --devices 4 --lengths $tmp/lengths"
ok "$dhelix" tune "$tmp/lengths.yaml" $by_length
says 'switching does not pay'
says ' 16384 dp=4'
own="--set strategy=sequential --set train.recompute=none"
ok "$dhelix" tune "$tmp/lengths.yaml" $by_length --memory 1.8GB $own --write "$tmp/grouped.yaml"
says 'switching pays: '
says 'parallel.dp=2 parallel.cp=2 parallel.zero=1'
says '2048 dp=4; 11776 dp=2 cp=2; 16384 dp=1 cp=4'
says 'switch.overlap=false' # what moves beside passes would need more
ok "$dhelix" tune "$tmp/lengths.yaml" $by_length --memory 1.8GB $own --json
rate=$(json tokens_per_s)
ok "$dhelix" simulate "$tmp/grouped.yaml" --cluster a40 --lengths "$tmp/lengths" --json
same "$(json tokens_per_s)" "$rate" 'what is written is what was simulated'
check 'it fits' awk -v b="$(json peak_bytes)" 'BEGIN { exit !(b > 1e9 && b <= 1.8e9) }'
fails 1 'no mesh of 4 ranks trains sequences of 16384' "$dhelix" tune "$tmp/lengths.yaml" $by_length \
    --memory 0.5GB
# Strategies and recomputation too, unless they are given: never slower than without.
ok "$dhelix" tune "$tmp/lengths.yaml" $by_length --memory 2GB --json
check 'other strategies are no slower' awk -v a="$(json tokens_per_s)" -v b="$rate" 'BEGIN { exit !(a >= b) }'
check 'it says which' grep -q 'strategy=dhelix' "$tmp/out"
ok "$dhelix" tune "$tmp/lengths.yaml" $by_length --memory 1.2GB --write "$tmp/grouped.yaml"
ok "$dhelix" simulate "$tmp/grouped.yaml" --cluster a40 --lengths "$tmp/lengths"
fails 2 '--set parallel.schedule=NAME' "$dhelix" tune "$tmp/lengths.yaml" $by_length --schedules all
fails 1 'no strategy is called dhelx' "$dhelix" tune "$tmp/lengths.yaml" $by_length --strategies dhelx
fails 1 'data.train is not set' "$dhelix" tune "$tmp/lengths.yaml" --cluster a40 --devices 4 --lengths data
# A histogram, whose humps lie between the same two halves: it is cut between them.
printf 'low\thigh\tdocuments\n9000\t10000\t3000\n15000\t16384\t60\n' >"$tmp/humps.tsv"
by_humps="--cluster a40 --devices 4 --lengths $tmp/humps.tsv --memory 2GB $own"
ok "$dhelix" tune "$tmp/lengths.yaml" $by_humps --write "$tmp/humps.yaml"
says 'lengths: a histogram of 2 ranges (low, high, count), documents: 3060, spread evenly'
says '10240 dp=2 cp=2; 16384 dp=1 cp=4'
check 'one mesh for all takes longer by far' awk '/^switching pays: / { exit !($3 > 1.3) }' "$tmp/out"
ok "$dhelix" simulate "$tmp/humps.yaml" --cluster a40 --lengths "$tmp/humps.tsv"
says 'lengths: a histogram of 2 ranges'
ok "$dhelix" tune "$tmp/lengths.yaml" $by_humps --json
says '"lengths": "a histogram of 2 ranges (low, high, count), documents: 3060, spread evenly over the'
echo 17000 >>"$tmp/humps.tsv"
fails 1 'humps.tsv:4: lines before have low, high and count' "$dhelix" tune "$tmp/lengths.yaml" $by_humps
echo long >>"$tmp/lengths"
fails 1 'lengths:3001: "long"' "$dhelix" tune "$tmp/lengths.yaml" $by_length

fails 2 'a size above 0 with its unit' "$dhelix" tune "$tmp/job.yaml" --cluster h100 --memory 80
fails 1 'no strategy is called dhelx' "$dhelix" tune "$tmp/job.yaml" --cluster h100 \
    --devices 16 --strategies dhelx
fails 1 'does not divide model.n_heads' "$dhelix" tune "$tmp/job.yaml" --cluster h100 \
    --devices 16 --set parallel.tp=3
fails 1 'no cluster' "$dhelix" tune "$tmp/job.yaml" --cluster h1000 --devices 16
fails 1 'no configuration fits' "$dhelix" tune "$tmp/job.yaml" --cluster h100 --devices 16 $one \
    --verify 0 --memory 2GiB --quiet --write "$tmp/none.yaml"
finish
