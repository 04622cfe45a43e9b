# Orders of operators as a file: written, read back as they are, edited, refused with a line, trained by.
. tests/cli/lib.sh "$1"

head -c 20000 docs/validation.md >"$tmp/text.txt"
cat >"$tmp/job.yaml" <<END
model: {family: gpt2, n_layers: 4, width: 32, n_heads: 4, vocab: 256, max_seq: 32}
data: {train: $tmp/text.txt}
train: {batch: 4, micro_batch: 1, seq_len: 32, steps: 2}
parallel: {dp: 1, tp: 2}
strategy: dhelix
END
plan=("$dhelix" plan "$tmp/job.yaml" --cluster a40 --export json)
lines() { sed 's/ *# .*//' "$1" | grep .; }

# What is written and read back is written again line by line, of whatever operators layers have.
again() { # settings
    ok "${plan[@]}" "$@" --write "$tmp/one.order"
    ok "${plan[@]}" "$@" --set overlap.policy="$tmp/one.order" --write "$tmp/two.order"
    same "$(lines "$tmp/two.order")" "$(lines "$tmp/one.order")" "the order again: $*"
}
again
again --set strategy=dhelix-paper
check 'barriers are written' grep -qx barrier "$tmp/one.order"
again --set 'strategy=domino(parts=2)+dhelix' --set train.micro_batch=2
check 'operators of one name have numbers' grep -q '#2 ' "$tmp/one.order"
again --set train.recompute=full
again --set model=mixtral-tiny --set parallel.tp=1 --set parallel.dp=2 --set parallel.ep=2

# The job's step is then that of the order: round-robin's is slower than exact's, as the policies are.
step() {
    "$dhelix" simulate "$tmp/job.yaml" --cluster a40 --json "$@" >"$tmp/out" && json step_ms
}
ok "${plan[@]}" --policy round-robin --write "$tmp/slow.order"
ok "${plan[@]}" --policy exact --write "$tmp/fast.order"
slow=$(step --set overlap.policy="$tmp/slow.order") fast=$(step --set overlap.policy="$tmp/fast.order")
check 'steps by orders' awk -v s="$slow" -v f="$fast" 'BEGIN { exit !(f > 0 && s > f * 1.02) }'
check 'other schedules' test -n "$(step --set overlap.policy="$tmp/fast.order" --set parallel.pp=2 --set parallel.schedule=dualpipev)"

# Edited: a path in the job is relative to it, and bits stay.
awk '/^B bias_grad d.fc2.b/ { late = $0; next } { print } END { print late }' "$tmp/fast.order" >"$tmp/edited.order"
check 'a line was moved' test "$(tail -1 "$tmp/edited.order" | cut -c1-11)" = 'B bias_grad'
{ cat "$tmp/job.yaml" && echo 'overlap: {policy: ./edited.order}'; } >"$tmp/edited.yaml"
ok "$dhelix" check "$tmp/edited.yaml"
ok "$dhelix" check "$tmp/edited.yaml" --print recipe
says edited.order
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/plain"
ok "$dhelix" train "$tmp/edited.yaml" --set out="$tmp/ordered"
check 'the same bits' cmp "$tmp/plain/checkpoints/step-000002/model.safetensors" \
    "$tmp/ordered/checkpoints/step-000002/model.safetensors"

# Refused, with the line and what would be right.
refused() { # message, name of the order
    fails 1 "$1" "$dhelix" check "$tmp/job.yaml" --set overlap.policy="$tmp/$2.order"
}
grep -v '^B linear_dgrad dg ' "$tmp/fast.order" >"$tmp/less.order"
refused 'lacks an operator of the job'"'"'s layer: "B linear_dgrad dg" has to stand after line' less
{ cat "$tmp/fast.order" && grep '^F norm n1' "$tmp/fast.order"; } >"$tmp/twice.order"
refused "twice.order:$(wc -l <"$tmp/twice.order"): line $(grep -n '^F norm n1' "$tmp/fast.order" | cut -d: -f1) has this operator already" twice
awk '/^B linear_dgrad dg / { late = $0; next } { print } END { print late }' "$tmp/fast.order" >"$tmp/late.order"
refused "it needs \"B linear_dgrad dg\", which is line $(wc -l <"$tmp/late.order"): move it after" late
sed 's/^B linear_dgrad dg /B linear_dgrad dgg /' "$tmp/fast.order" >"$tmp/other.order"
refused 'has no "B linear_dgrad dgg"; outputs of linear_dgrad in its backward: dg,' other
sed 's/^F norm n1/F nurm n1/' "$tmp/fast.order" >"$tmp/word.order"
refused 'did you mean norm' word
echo 'forward' >"$tmp/word.order"
refused 'word.order:1: "forward": a line is F or B' word
printf 'F norm n1 #0\n' >"$tmp/word.order"
refused 'word.order:1: "#0"' word
sed 's/^layers .*/layers 0 4/' "$tmp/fast.order" >"$tmp/layers.order"
refused 'there is no layer 4: they are 0 to 3' layers
: >"$tmp/empty.order"
refused 'empty.order has no operators' empty
refused 'cannot open' none
fails 1 'a file goes into overlap.policy' "$dhelix" check "$tmp/job.yaml" --set 'strategy={schedule: dhelix-w, order: ./fast.order}'
fails 1 'a search needs a policy' "$dhelix" tune "$tmp/job.yaml" --cluster a40 --devices 2 --set overlap.policy="$tmp/fast.order"
fails 1 'would overwrite it' "${plan[@]}" --write "$tmp/job.yaml"
finish
