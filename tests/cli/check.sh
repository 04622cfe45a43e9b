# Programs verified and measured without running them.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"

ok "$dhelix" check "$tmp/job.yaml"
says 'train program'
says 'eval program'
says 'verified'
says 'vocabulary 65'

# The parts add up to the planned peak, in every program.
ok "$dhelix" check "$tmp/job.yaml" --json
awk -F'[:,]' '
    /"memory_bytes"/ { inside = 1; sum = 0; next }
    inside && /}/ { inside = 0; if (sum != planned) bad = 1; programs++; next }
    inside { sum += $2 }
    /"planned_bytes"/ { planned = $2 }
    END { exit bad || programs != 2 }' "$tmp/out" || fail 'memory parts do not add up to the plan'
check 'no more than 5 % above the lower bound' \
    awk -F'[:,]' '/"planned_bytes"/ { p = $2 } /"lower_bound_bytes"/ { if (p > 1.05 * $2) exit 1 }' \
    "$tmp/out"

# Training uses what was planned, to the byte.
planned=$(json planned_bytes)
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --set train.steps=3 --json --quiet
same "$(json slab_peak_bytes)" "$planned" 'memory used and planned by check'
same "$(json slab_planned_bytes)" "$planned"

ok "$dhelix" check "$tmp/job.yaml" --print graph
says 'attention_grad'
ok "$dhelix" check "$tmp/job.yaml" --print program
says 'adamw'
ok "$dhelix" check "$tmp/job.yaml" --set strategy=dhelix --print recipe
says "the strategy's: parallel.schedule=1f1b makes no pairs"
ok "$dhelix" check examples/tp2.yaml --set strategy=auto --print recipe --quiet
says 'the shortest simulated step'

# Steps ahead of the gradient norm say what they keep; it lies where activations were.
ok "$dhelix" check examples/pp2.yaml --rank 1 --json
peak=$(json planned_bytes)
ahead=(check examples/pp2.yaml --rank 1 --set optimizer.post_validation=true)
ok "$dhelix" "${ahead[@]}" --json
check 'two sums more are planned' test "$(($(json planned_bytes) - peak))" -lt 1000
check 'what is kept is there' test "$(json kept_by_steps_bytes)" -gt 4000000
ok "$dhelix" "${ahead[@]}"
says 'kept by steps'
fails 1 'is for pipelines' "$dhelix" check "$tmp/job.yaml" --set optimizer.post_validation=true

# Which passes rewrote what, for a strategy written out; a job that names one it cannot have.
rings='strategy={passes: [ring-gemm(both)], schedule: dhelix-w, order: auto}'
ok "$dhelix" check examples/tp2.yaml --set "$rings" --print passes
says 'ring-gemm(ways=both)'
says '8 of 10 places'
says 'what reads it first is no GEMM by rows'
says 'not applied: every sequence is on one rank'
ok "$dhelix" check examples/tp2.yaml --set "$rings"
cp "$tmp/out" "$tmp/written"
ok "$dhelix" check examples/tp2.yaml --set 'strategy=ring-gemm(both)+dhelix'
check 'passes added to a row are the same' cmp "$tmp/out" "$tmp/written"
ok "$dhelix" check examples/tp2.yaml --set 'strategy=part-wise(2)+dhelix' --print passes
says '4 of 6 places'
ok "$dhelix" check examples/tp2.yaml --set 'strategy=part-wise(2)+dhelix' --set parallel.sequence=false
ok "$dhelix" check examples/tp2.yaml --set 'strategy=fuse(4)+dhelix' --print passes
says '5 of 5 places'
says 'not reduce_scatter -> x: nothing reads it'
ok "$dhelix" check examples/tp2.yaml --set 'strategy=fuse(4)+dhelix' --set parallel.sequence=false --print passes
says 'parallel.sequence=false'
ok "$dhelix" check examples/tp2.yaml --set strategy=flux --print passes
says '8 of 10 places'
says 'it comes from no GEMM by rows'
ok "$dhelix" check examples/tp2.yaml --set strategy=flux --print recipe
says "a layer's forward and backward"
ok "$dhelix" check examples/tp2.yaml --set strategy=t3 --print passes
says '4 of 4 places'
ok "$dhelix" simulate examples/tp2.yaml --cluster a100 --strategies sequential,flux,t3
fails 1 'simulated only: no device here tracks' "$dhelix" train examples/tp2.yaml --set strategy=t3 --set "out=$tmp/t3"
fails 1 'simulated only: no device here tracks' "$dhelix" profile examples/tp2.yaml --set strategy=t3 --out "$tmp/t3.profile"
ok "$dhelix" check examples/tp2.yaml --set 'strategy=domino(parts=1, columns=2)' --print passes
says '14 operators, 10 before; 2 of 2 places'
ok "$dhelix" check examples/tp2.yaml --set 'strategy=domino(columns=3)' --print passes
says 'do not divide into so many parts (model.width)'
fails 1 'did you mean ring-gemm' "$dhelix" check "$tmp/job.yaml" --set 'strategy={passes: [ring-gem]}'
fails 1 'device "cuda" is not in this build' "$dhelix" check "$tmp/job.yaml" --set device=cuda
fails 1 'stands twice' "$dhelix" check "$tmp/job.yaml" --set strategy=ring-gemm+intra-batch

# Sizes that leave padding between parameters.
for width in 8 12 40; do
    ok "$dhelix" check "$tmp/job.yaml" --set model.width=$width
done

# A large model is checked without its memory, data or tokenizer.
printf 'model: llama3-8b\ntrain: {batch: 1, seq_len: 64}\n' >"$tmp/large.yaml"
ok "$dhelix" check "$tmp/large.yaml"
says '8.03 B parameters (8030261248)'
fails 1 'not a multiple of parallel.dp = 3' "$dhelix" check "$tmp/job.yaml" --ranks 3

# Files that training would refuse are named with its message, and are no error: they may be elsewhere.
ok "$dhelix" check "$tmp/job.yaml" --json
check 'nothing is missing' test "$(grep -c '"missing"' "$tmp/out")" -eq 0
bytes=(--set data.tokenizer=bytes --set model.vocab=256)
missing() { # setting, value, message of train
    fails 1 "$3" "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" "${bytes[@]}" --set "$1=$2"
    ok "$dhelix" check "$tmp/job.yaml" "${bytes[@]}" --set "$1=$2" --json
    same "$(json setting)" "$1" 'the setting of what is missing'
    check "its message is that of train: $3" grep -qF -- "$3" "$tmp/out"
    ok "$dhelix" check "$tmp/job.yaml" "${bytes[@]}" --set "$1=$2"
    says "$1"
}
missing data.train nofile "cannot open $PWD/nofile: No such file or directory"
missing data.train "$tmp/*.none" "no file matches $tmp/*.none"
missing data.val nofile "cannot open $PWD/nofile: No such file or directory"
missing data.tokenizer nofile 'while opening data.tokenizer: tokenizer'

# Every example can be run, and the schedule in a file is the one it says it is.
for job in examples/*.yaml; do
    smaller=()
    # 53,259 instructions on each of 24 kinds of ranks take a while.
    [ "$job" != examples/llama3_70b.yaml ] || deep || smaller=(--set train.batch=64)
    ok "$dhelix" check "$job" "${smaller[@]}"
    says 'fixed before the first step'
done
ok "$dhelix" check examples/pp2.yaml --print csv
cp "$tmp/out" "$tmp/file.csv"
check 'the CSV file is read as it is' cmp examples/pp2_zb-h1.csv "$tmp/file.csv"
ok "$dhelix" check examples/pp2.yaml
says 'GFLOP of the model'
memory() { # a rank's parameters in bytes
    ok "$dhelix" check examples/pp2.yaml --json --set model.tied_head=false "$@"
    json parameters
}
one=$(memory)
for schedule in wavelet bidirectional dualpipe; do # two copies of the model
    ok "$dhelix" check examples/pp2.yaml --set parallel.schedule=$schedule --print schedule
    says 'rank 1  '
    ok "$dhelix" check examples/pp2.yaml --set parallel.schedule=$schedule
    says 'no deadlock'
done
ok "$dhelix" check examples/pp2.yaml --set parallel.schedule=zb-h1 --print csv
check 'and is zb-h1' cmp "$tmp/out" "$tmp/file.csv"

# Gradients of keys and values travel in the type that the job names.
kv_grads() { # type of the setting, type of the tensor
    ok "$dhelix" check examples/tp2cp2.yaml --set train.dtype=bf16 --set parallel.cp_grad_dtype="$1" --print graph
    check "with $1 they are $2" grep -qE "dkv\.in\.2 +act $2\[" "$tmp/out"
}
kv_grads compute bf16
kv_grads float32 f32
finish
