# Folders as today's save_pretrained leaves them (tests/data/oracles/make_saved.py): configs of every
# family, tokenizers of several classes, and whole models of both.
. tests/cli/lib.sh "$1"
saved=tests/data/saved weights=tests/data/weights

printf 'data: {train: none}\ntrain: {batch: 2, micro_batch: 1, seq_len: 32}\n' >"$tmp/job.yaml"
n=0
for config in "$saved"/*/config.json; do
    family=$(basename "$(dirname "$config")")
    ok "$dhelix" check "$tmp/job.yaml" --set "model=$saved/$family"
    says '2 layers, width 32, vocabulary 260'
    n=$((n + 1))
done
same "$n" "$(sed -n '/^FAMILIES/,/^}/p' tests/data/oracles/make_saved.py | grep -cE '^    "[a-z0-9_]+": ')" 'families'
# All model types that have a reference are among them.
for config in "$weights"/*/config.json; do
    family=$(sed -n 's/.*"model_type": "\([^"]*\)".*/\1/p' "$config")
    case $family in '' | linear_llama) continue ;; esac
    check "$family as it is saved today" test -d "$saved/$family"
done

# model_max_length of Transformers is beyond 64 bits.
grep -h model_max_length "$saved"/tokenizers/*/tokenizer_config.json | grep -q 1000000000000000019884624838656 ||
    fail 'no integer beyond 64 bits in the data'
python3 -c 'import json, sys; sys.stdout.write(json.load(open(sys.argv[1]))["text"])' \
    "$saved/tokenizers/expected.json" >"$tmp/text"
for tokenizer in "$saved"/tokenizers/*/; do
    name=$(basename "$tokenizer")
    ok "$dhelix" tokenize "$tmp/text" --tokenizer "$tokenizer" --stdout
    same "$(tr '\n' ' ' <"$tmp/out")" "$(python3 -c 'import json, sys
print(*json.load(open(sys.argv[1]))[sys.argv[2]], end=" ")' "$saved/tokenizers/expected.json" "$name")" "$name"
done

# A whole folder is evaluated, and exported with the ids that it came with.
for family in qwen2 qwen3 qwen3_moe phi3 phimoe mistral olmo2 olmo3 smollm3 gemma2 gemma3 deepseek_v3; do
    cp -r "$weights/tiny-$family" "$tmp/$family"
    cp "$saved/${family/gemma3/gemma3_text}/generation_config.json" "$tmp/$family/"
    cp "$saved"/tokenizers/Qwen2Tokenizer/* "$tmp/$family/"
    ok "$dhelix" eval "$tmp/$family" --data "$tmp/text" --seq 8
    says 'loss'
    ok "$dhelix" convert "$tmp/$family" "$tmp/$family.out"
    check "$family keeps its generation_config.json" \
        cmp "$tmp/$family/generation_config.json" "$tmp/$family.out/generation_config.json"
done

# A text that is shorter than a sample says what to change; the model's length is as long as a sample can be.
fails 1 'give more text, or a shorter length (train.seq_len; the option seq of eval)' \
    "$dhelix" eval "$tmp/qwen2" --data "$tmp/text" --seq 64
ok "$dhelix" eval "$tmp/qwen2" --data "$tmp/text" --seq 16

# What was trained here with a tokenizer of its own names its ids as well.
ok "$dhelix" tokenize examples/data/tinyshakespeare.txt --train-bpe 300 -o "$tmp/own"
cat >"$tmp/own.yaml" <<EOF
model: {family: llama, n_layers: 1, width: 32, n_heads: 2, ffn_width: 64, vocab: auto, max_seq: 64}
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: $tmp/own/tokenizer.json}
train: {batch: 2, seq_len: 32, steps: 1}
checkpoint: {every: 1}
out: $tmp/run
EOF
ok "$dhelix" train "$tmp/own.yaml" --quiet
ok "$dhelix" convert "$tmp/run" "$tmp/exported"
id=$(python3 -c 'import json, sys
print({t["content"]: t["id"] for t in json.load(open(sys.argv[1]))["added_tokens"]}["<|endoftext|>"])' "$tmp/own/tokenizer.json")
for file in config.json generation_config.json; do
    check "$file names the end of text" grep -qE "\"eos_token_id\": $id\b" "$tmp/exported/$file"
done
finish
