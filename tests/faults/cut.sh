# The power goes at any moment, and what was not synced is lost: what is found afterwards is whole,
# and a run goes on to where it would have ended.
#   bash tests/faults/cut.sh DHELIX CUT_LIBRARY [--full]
# Without --full about 8 moments of every command.
library=$2
full=${3:-}
. tests/cli/lib.sh "$1"
per_command=8
[ "$full" != --full ] || per_command=1000000
export OMP_NUM_THREADS=1
disk=$tmp/disk found=$tmp/found

# A command that works on $disk, cut before its n-th change; $found is the disk afterwards.
cut_at() { # model, n, command...
    local model=$1 n=$2
    shift 2
    rm -rf "$tmp/state" "$found" "$tmp/report"
    mkdir "$tmp/state"
    timeout -s KILL 60 env DH_CUT="$model:$n" DH_CUT_ROOT="$disk" DH_CUT_STATE="$tmp/state" DH_CUT_OUT="$found" \
        DH_CUT_REPORT="$tmp/report" LD_PRELOAD="$library" "$@" <"$stdin" >"$tmp/out" 2>"$tmp/err"
    status=$?
}

at_any_moment() { # name, what checks the disk that is found, command...
    local name=$1 judge=$2 n_calls stride
    shift 2
    for model in late early; do
        $prepare
        cut_at $model 0 "$@"
        same $status 0 "exit code of $name"
        n_calls=$(sed -n 's/calls //p' "$tmp/report")
        check "$name changes files" test "$n_calls" -gt 0
        stride=$(((n_calls + per_command - 1) / per_command))
        for ((n = 1; n <= n_calls; n += stride)); do
            $prepare
            cut_at $model $n "$@"
            same $status 77 "$name is cut at change $n"
            moment="$name, change $n, $model names"
            $judge
        done
        echo "$name, $model names: $n_calls changes, cut at every ${stride}th"
    done
}

empty_disk() { rm -rf "$disk" && mkdir "$disk"; }
prepare=empty_disk

# ---- files that are there whole or not at all ----

head -c 20000 examples/data/tinyshakespeare.txt >"$tmp/text"
whole_or_nothing() {
    n_checks=$((n_checks + 1))
    [ ! -e "$found/made" ] || diff -r "$found/made" "$tmp/made" >"$tmp/out" 2>&1 ||
        fail "$moment: the result is there in part"
}
cat >"$tmp/job.yaml" <<EOF
model: {name: tiny, family: gpt2, n_layers: 1, n_heads: 2, width: 8, max_seq: 8}
data: {train: $tmp/text, val_fraction: 0.1}
train: {steps: 6, batch: 4, seq_len: 8}
eval: {every: 2, batches: 1}
checkpoint: {every: 2, keep: 2}
profile: none
EOF
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/whole"
ok "$dhelix" tokenize --tokenizer bytes "$tmp/text" -o "$tmp/made"
at_any_moment tokenize whole_or_nothing "$dhelix" tokenize --tokenizer bytes "$tmp/text" -o "$disk/made"
rm "$tmp/made"
ok "$dhelix" convert "$tmp/whole" "$tmp/made"
at_any_moment convert whole_or_nothing "$dhelix" convert "$tmp/whole" "$disk/made"

# ---- runs that go on ----

last() { cksum <"$1/checkpoints/step-000006/model.safetensors"; }
goes_on() {
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$found/run" "${mesh[@]}"
    same "$(last "$found/run")" "$weights" "weights: $moment"
    same "$(curve "$found/run" | cksum)" "$losses" "metrics: $moment"
}
for mesh in '' --set=parallel.dp=2; do
    mesh=(${mesh/=/ })
    rm -rf "$tmp/whole"
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/whole" "${mesh[@]}"
    weights=$(last "$tmp/whole")
    losses=$(curve "$tmp/whole" | cksum)
    at_any_moment train goes_on "$dhelix" train "$tmp/job.yaml" --quiet --set out="$disk/run" "${mesh[@]}"
done
finish
