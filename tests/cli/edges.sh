# Values, sizes and files at the edge: a clear error and soon, or the right answer.
. tests/cli/lib.sh "$1"
text=$PWD/examples/data/tinyshakespeare.txt

# Weights that are not finite, or give what is not: sampling and evaluation say so in place of a text
# and of nan.
mkdir "$tmp/poisoned"
cp tests/data/weights/tiny-random-gpt2/config.json tests/data/weights/tiny-random-gpt2/model.safetensors "$tmp/poisoned"
size=$(stat -c %s "$tmp/poisoned/model.safetensors")
put() { # offset from the end, bytes
    printf "$2" | dd of="$tmp/poisoned/model.safetensors" bs=1 seek=$((size - $1)) conv=notrunc 2>/dev/null
}
put 4 '\000\000\300\177' # nan
for how in --greedy '--temperature 1' '--top-k 3' '--temperature 1e-40'; do
    # shellcheck disable=SC2086
    fails 1 'holds nan' "$dhelix" sample "$tmp/poisoned" --tokenizer bytes --prompt a --tokens 5 $how
done
for how in '' --json; do
    # shellcheck disable=SC2086
    fails 1 'holds nan' "$dhelix" eval "$tmp/poisoned" --tokenizer bytes --data "$text" --seq 32 --batches 1 $how
    same "$(cat "$tmp/out")" '' 'no result is printed'
done
put 4 '\000\000\200\177' # inf
fails 1 'holds inf' "$dhelix" eval "$tmp/poisoned" --tokenizer bytes --data "$text" --seq 32 --batches 1
put 4 '\377\377\177\177' # 3.4e38
fails 1 'there is nothing to draw from' "$dhelix" sample "$tmp/poisoned" --tokenizer bytes --prompt a --tokens 5
same "$(wc -l <"$tmp/out")" 1 'the text that was begun ends its line before the message'
fails 1 'non-finite' "$dhelix" eval "$tmp/poisoned" --tokenizer bytes --data "$text" --seq 32 --batches 1

# A temperature next to 0 is 0: quotients that overflow are no probabilities.
small=tests/data/weights/tiny-random-gpt2
ok "$dhelix" sample "$small" --tokenizer bytes --prompt a --tokens 8 --greedy
greedy=$(cksum <"$tmp/out")
ok "$dhelix" sample "$small" --tokenizer bytes --prompt a --tokens 8 --temperature 1e-42
same "$(cksum <"$tmp/out")" "$greedy" 'a temperature of 1e-42 is greedy'

# A perplexity above what a double holds is null in JSON, as the format has no infinity.
put 4 '\000\000\200\110' # 262144
ok "$dhelix" eval "$tmp/poisoned" --tokenizer bytes --data "$text" --seq 32 --batches 1 --json
says '"perplexity": null'

# Heads as wide as the model table allows, also where a config leaves its width to the default.
tiny_job "$tmp/job.yaml"
for head_dim in 258 512 1024; do
    sed "s/gpt2, .*}/llama, n_layers: 2, n_heads: 1, width: 32, ffn_width: 64, max_seq: 32, head_dim: $head_dim}/" \
        "$tmp/job.yaml" >"$tmp/wide.yaml"
    ok "$dhelix" train "$tmp/wide.yaml" --quiet --set out="$tmp/wide-$head_dim" --set train.steps=2
    ok "$dhelix" sample "$tmp/wide-$head_dim" --tokens 3
done
sed 's/"hidden_size": *[0-9]*/"hidden_size": null/' tests/data/weights/tiny-mixtral-seeded/config.json >"$tmp/config.json"
check 'the width is left out' grep -q 'null' "$tmp/config.json"
cat >"$tmp/mixtral.yaml" <<EOF
model: {config: $tmp/config.json, n_layers: 1, ffn_width: 32, vocab: 256, n_heads: 8, n_kv_heads: 1}
data: {train: $text}
train: {steps: 1, batch: 1, seq_len: 8}
eval: {every: 0}
EOF
ok "$dhelix" train "$tmp/mixtral.yaml" --quiet --set out="$tmp/mixtral"

# More micro-batches than a program has room for are refused before the memory is taken (KiB). The
# address sanitizer reserves terabytes for itself, so there is no limit under it.
address_space=2000000
! grep -q __asan_init "$dhelix" || address_space=unlimited
for batch in 100000 1048576; do
    fails 1 'micro-batches is a program of' bash -c "ulimit -v $address_space; exec timeout 60 \"\$@\"" - \
        "$dhelix" check "$tmp/job.yaml" --set train.micro_batch=1 --set train.batch=$batch
done

# Deep nesting takes libyaml time squared; 100,000 brackets are refused at the 33rd. The limit is the
# processor's time, which other programs take none of.
for bracket in '[' '{' '- '; do
    printf "%.0s$bracket" $(seq 100000) >"$tmp/deep.yaml"
    fails 1 'more than 32 collections inside each other' bash -c 'ulimit -t 10 && exec "$@"' soon "$dhelix" check "$tmp/deep.yaml"
done
fails 1 'more than 32 collections inside each other' bash -c 'ulimit -t 10 && exec "$@"' soon "$dhelix" simulate "$tmp/job.yaml" --cluster "$tmp/deep.yaml"

# A token file that another program cuts short while it is read: no bare SIGBUS.
ok "$dhelix" tokenize --tokenizer bytes "$text" -o "$tmp/tokens.bin"
"$dhelix" train "$tmp/job.yaml" --quiet --set data.train="$tmp/tokens.bin" --set data.tokenizer=bytes \
    --set train.steps=100000 --set eval.every=0 --set checkpoint.every=0 --set out="$tmp/cut" >"$tmp/out" 2>"$tmp/err" &
pid=$!
until grep -q '"step"' "$tmp/cut/metrics.jsonl" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
truncate -s 2048 "$tmp/tokens.bin"
wait $pid
same $? 1 'exit code of a run whose data were cut'
check 'the file is named' grep -q 'error: .*tokens.bin was cut short by another program' "$tmp/err"
finish
