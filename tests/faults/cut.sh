# The power goes at any moment, and what was not synced is lost: what is found afterwards is whole,
# and a run goes on to where it would have ended.
#   bash tests/faults/cut.sh DHELIX CUT_LIBRARY [--full]
# Without --full, at about 32 moments of every command what its names say late, and at 4 early.
# A command runs once: its disk is copied as it would be found at every moment.
library=$2
full=${3:-}
. tests/cli/lib.sh "$1"
most_late=32 most_early=4
meshes=('' 'parallel.dp=2 checkpoint.async=true')
[ "$full" != --full ] || most_late=1000000 most_early=1000000 meshes+=(parallel.dp=2 checkpoint.async=true)
export OMP_NUM_THREADS=1
disk=$tmp/disk found=$tmp/found
beside_it= # a library that is loaded too, behind the one that cuts
plain=${library%/*}/libdh_plain.so

# A command that works on $disk; what would be found if the power went lies in $tmp/cuts.
run_and_cut() { # command...
    rm -rf "$disk" "$tmp/state" "$tmp/cuts"
    mkdir "$disk" "$tmp/state" "$tmp/cuts"
    [ ! -e "$tmp/before" ] || cp -r "$tmp/before/." "$disk"
    env DH_CUT_ROOT="$disk" DH_CUT_STATE="$tmp/state" DH_CUT_OUT="$tmp/cuts" DH_CUT_REPORT="$tmp/report" \
        LD_PRELOAD="$library${beside_it:+ $beside_it}" "$@" <"$stdin" >"$tmp/out" 2>"$tmp/err"
    same $? 0 "exit code of $1 $2"
}

# Disks that are alike are judged once.
at_any_moment() { # name, what judges the disk that is found, command...
    local name=$1 judge=$2 n_calls stride model n content first most
    shift 2
    run_and_cut "$@"
    n_calls=$(sed -n 's/calls //p' "$tmp/report")
    check "$name changes files" test "$n_calls" -gt 0
    for model in late early; do
        local -A seen=()
        most=most_$model
        stride=$(((n_calls + most - 1) / most))
        first=true
        for ((n = 1 + (n_calls - 1) % stride; n <= n_calls; n += stride)); do # with the last
            content=$(tar -C "$tmp/cuts/$n.$model" --sort=name --mtime=@0 -cf - . | cksum)
            [ -z "${seen[$content]:-}" ] || continue
            seen[$content]=1
            rm -rf "$found"
            mv "$tmp/cuts/$n.$model" "$found"
            moment="$name, change $n, $model names"
            $judge
            first=false
        done
        echo "$name, $model names: $n_calls changes, cut at every ${stride}th: ${#seen[@]} different disks"
    done
}

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
# A model that is replaced: the former or the new one, whole, and what is not the model's in its
# folder or in the one beside it.
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/former" --set train.seed=5 --set train.steps=1
mkdir "$tmp/before"
ok "$dhelix" convert "$tmp/former" "$tmp/before/made"
mkdir "$tmp/before/made/.git"
echo theirs >"$tmp/before/made/.git/one"
echo mine >"$tmp/before/made/notes"
model_of() { cat "$1/config.json" "$1/model.safetensors" 2>&1 | cksum; }
former=$(model_of "$tmp/before/made") new=$(model_of "$tmp/made")
# Without an exchange of folders there is a moment at which both lie beside the place.
old_or_new() {
    local now
    now=$(model_of "$found/made")
    n_checks=$((n_checks + 1))
    if [ -n "$beside_it" ] && [ ! -e "$found/made" ]; then
        same "$(model_of "$found"/made.replaced-*.former)" "$former" "$moment: the former model"
        same "$(model_of "$found"/made.replaced-????????????????)" "$new" "$moment: the new model"
        n_between=$((n_between + 1))
    else
        [ "$now" = "$former" ] || [ "$now" = "$new" ] || fail "$moment: neither model"
    fi
    for file in .git/one notes; do
        n_checks=$((n_checks + 1))
        cat "$found"/made/$file "$found"/made.replaced-*/$file 2>"$tmp/err" | grep -qE 'theirs|mine' ||
            fail "$moment: $file is lost"
    done
}
at_any_moment replace old_or_new "$dhelix" convert "$tmp/whole" "$disk/made" --replace
same "$(model_of "$disk/made")" "$new" 'the new model'
for error in EINVAL ENOSYS; do
    beside_it=$plain
    n_between=0
    export DH_PLAIN_ERROR=$error
    at_any_moment "replace ($error)" old_or_new "$dhelix" convert "$tmp/whole" "$disk/made" --replace
    same "$(model_of "$disk/made")" "$new" "the new model ($error)"
    same "$(cat "$disk/made/.git/one" "$disk/made/notes")" "$(printf 'theirs\nmine')" "what is not the model's ($error)"
    check "nothing lies beside it ($error)" test "$(ls "$disk")" = made
    [ "$full" != --full ] || check "the moment without a model was among them ($error)" test $n_between -gt 0
    beside_it=
done
rm -r "$tmp/made" "$tmp/before"
ok "$dhelix" report "$tmp/whole" -o "$tmp/made"
at_any_moment report whole_or_nothing "$dhelix" report "$tmp/whole" -o "$disk/made"

# ---- a checkpoint of a step that has one ----

# Written are samples 1, 2 and 3, of steps 1, 2 and 2.
never_less_of_it() {
    local sample
    ok "${library%/*}/same_step" read "$found/run"
    sample=$(cut -d ' ' -f 2 "$tmp/out")
    n_checks=$((n_checks + 1))
    if $first; then newest=0; fi
    [ "${sample:-0}" -ge "$newest" ] || fail "$moment: the newest checkpoint is of sample $sample, after $newest"
    [ "$n" -lt "$n_calls" ] || same "$sample" 3 "$moment: the last one"
    newest=$sample
    check "$moment: nothing half-written" test -z "$(find "$found" -name '*.tmp-*' -o -name 'former-*')"
}
for error in '' EINVAL ENOSYS; do
    beside_it=${error:+$plain}
    export DH_PLAIN_ERROR=$error
    at_any_moment "same step, ${error:-exchanged}" never_less_of_it "${library%/*}/same_step" write "$disk/run"
done
beside_it=

# ---- runs that go on ----

last() { cksum <"$1/checkpoints/step-000006/model.safetensors"; }
# Of complete checkpoints the newest, found by listing: late cuts never take one away again.
newest=
never_less() {
    local now
    now=$(ls "$found/run/checkpoints" 2>"$tmp/err" | tail -1)
    n_checks=$((n_checks + 1))
    [[ ! $now < $newest ]] || fail "$moment: the newest checkpoint is $now, after $newest"
    newest=$now
}
goes_on() {
    if [ "$model" = late ]; then never_less; fi
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$found/run" "${mesh[@]}"
    same "$(last "$found/run")" "$weights" "weights: $moment"
    same "$(curve "$found/run" | cksum)" "$losses" "metrics: $moment"
}
for mesh in "${meshes[@]}"; do
    set --
    for word in $mesh; do set -- "$@" --set "$word"; done
    mesh=("$@")
    rm -rf "$tmp/whole"
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/whole" "${mesh[@]}"
    weights=$(last "$tmp/whole")
    losses=$(curve "$tmp/whole" | cksum)
    newest=
    at_any_moment train goes_on "$dhelix" train "$tmp/job.yaml" --quiet --set out="$disk/run" "${mesh[@]}"
    same "$newest" step-000006 'the newest checkpoint found with late names, at last'
done
finish
