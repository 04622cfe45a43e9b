# Data of a run: compressed, by folder and pattern, mixed by weights; the same bits after a stop.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"
text=examples/data/tinyshakespeare.txt
mkdir "$tmp/data" "$tmp/more"
head -c 60000 "$text" >"$tmp/data/a.txt"
tail -c 60000 "$text" | gzip >"$tmp/data/b.txt.gz"
head -c 90000 "$text" | tail -c 30000 >"$tmp/more/c.txt"
set_data() { printf '%s\n' --set "data.train=[$1]" --set data.tokenizer=bytes --set data.val_fraction=0 --set eval.every=0 --quiet; }

# A folder is its files, in the order of their names, unpacked or not.
gunzip -c "$tmp/data/b.txt.gz" >"$tmp/b.txt"
readarray -t folder < <(set_data "$tmp/data")
readarray -t files < <(set_data "$tmp/data/a.txt, $tmp/b.txt")
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/folder" --set train.steps=4 "${folder[@]}"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/files" --set train.steps=4 "${files[@]}"
weights() { echo "$1/checkpoints/step-$2/model.safetensors"; }
check 'a folder is its files' cmp "$(weights "$tmp/folder" 000004)" "$(weights "$tmp/files" 000004)"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/folder" --set train.steps=6 "${files[@]}"

# A mixture: other weights are another run; stopped and continued it is the same run, bit for bit,
# on one rank or two.
readarray -t mixed < <(set_data "$tmp/data/*, $tmp/more")
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/whole" --set train.steps=10 "${mixed[@]}" --set data.weights=3,1
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/parts" --set train.steps=5 "${mixed[@]}" --set data.weights=3,1
fails 1 'was written with data.weights "3,1", this job has "1,1"' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/parts" --set train.steps=10 "${mixed[@]}" --set data.weights=1,1
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/parts" --set train.steps=10 "${mixed[@]}" --set data.weights=3,1 \
    --set metrics.tensorboard=true
check 'metrics for TensorBoard' grep -aq 'grad_norm' "$tmp"/parts/tensorboard/events.out.tfevents.*
check 'the same bits after a stop' cmp "$(weights "$tmp/whole" 000010)" "$(weights "$tmp/parts" 000010)"
check 'weights matter' sh -c "! cmp -s '$(weights "$tmp/whole" 000010)' '$(weights "$tmp/files" 000004)'"
(cd "$tmp" && "$dhelix" train "$tmp/whole/job.yaml" --set train.steps=11 --quiet) >"$tmp/out" 2>"$tmp/err"
check 'a run with a pattern is continued from elsewhere' test -d "$tmp/whole/checkpoints/step-000011"

fails 1 'data.weights has 3 entries (3,1,1), data.train 2' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" "${mixed[@]}" --set data.weights=3,1,1
fails 1 'weights are 1 or more' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" "${mixed[@]}" --set data.weights=3,0
readarray -t none < <(set_data "$tmp/*.none")
fails 1 'no file matches' "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" "${none[@]}"

# Long data are compared whole: one token of 17 million is enough.
truncate -s 34000000 "$tmp/long.u16"
readarray -t long < <(set_data "$tmp/long.u16")
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/long" --set train.steps=1 "${long[@]}"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/long" --set train.steps=2 "${long[@]}"
printf 'a' | dd of="$tmp/long.u16" bs=1 seek=33000 conv=notrunc 2>/dev/null
fails 1 'was written with data.train 17000000 tokens, hash' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/long" --set train.steps=3 "${long[@]}"

# Through data.cache, a file of equal length and time that holds another text is another file.
printf 'a%.0s' {1..4000} >"$tmp/layer.txt"
touch -d @1000000000 "$tmp/layer.txt"
readarray -t layer < <(set_data "$tmp/layer.txt")
layer+=(--set data.cache="$tmp/cache" --set train.steps=1)
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/first" "${layer[@]}"
tr a b <"$tmp/layer.txt" >"$tmp/other.txt" && mv "$tmp/other.txt" "$tmp/layer.txt"
touch -d @1000000000 "$tmp/layer.txt"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/second" "${layer[@]}"
check 'another text is learnt' sh -c "! cmp -s '$(weights "$tmp/first" 000001)' '$(weights "$tmp/second" 000001)'"

# A token file that is cut short while it is read: an error that names it, and no signal.
truncate -s 4000000 "$tmp/cut.u16"
readarray -t cut < <(set_data "$tmp/cut.u16")
"$dhelix" train "$tmp/job.yaml" --set out="$tmp/cut" --set train.steps=100000000 "${cut[@]}" >"$tmp/out" 2>"$tmp/err" </dev/null &
for _ in {1..600}; do [ ! -s "$tmp/cut/metrics.jsonl" ] || break; sleep 0.1; done
truncate -s 100 "$tmp/cut.u16"
wait $!
check 'a token file cut short ends the run' test $? -eq 1
check 'and it is named' grep -q 'cut.u16 was cut short by another program while it was' "$tmp/err"

# A refused resume names the setting.
fails 1 'was written with model.max_seq 32, this job has 64' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/files" --set train.steps=6 "${files[@]}" --set model.max_seq=64
finish
