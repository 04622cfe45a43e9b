# Sampling, evaluation and conversion of models that others trained.
. tests/cli/lib.sh "$1"
stories=tests/data/weights/stories260K
llama=tests/data/tokenizers/llama2c-tok512/tokenizer.bin
tinystories=tests/data/corpora/tinystories/tok512.u16

# llama2.c's own texts, byte for byte: greedy, and its generator with top-p.
ok "$dhelix" sample $stories/stories260K.bin --tokenizer $llama --temperature 0 --tokens 200
check 'the greedy text' cmp "$tmp/out" $stories/expected_greedy_n200.txt
ok "$dhelix" sample $stories/stories260K.bin --tokenizer $llama --greedy --tokens 200 --threads 1
check 'the greedy text with one thread' cmp "$tmp/out" $stories/expected_greedy_n200.txt
ok "$dhelix" sample $stories --tokenizer $llama --top-p 0.9 --seed 133742 --tokens 256
check 'the sampled text' cmp "$tmp/out" $stories/expected_t1_p0.9_seed133742.txt

# A prompt is part of the text, from the command line or standard input.
ok "$dhelix" sample $stories --tokenizer $llama --prompt 'One day, Tom' --greedy --tokens 20
check 'the text begins with the prompt' grep -q '^One day, Tom' "$tmp/out"
cp "$tmp/out" "$tmp/text"
printf 'One day, Tom' >"$tmp/prompt"
stdin=$tmp/prompt
ok "$dhelix" sample $stories --tokenizer $llama --prompt - --greedy --tokens 20
check 'the prompt of standard input' cmp "$tmp/out" "$tmp/text"
stdin=/dev/null

# A longer prompt is read in chunks; what follows is the text the model wrote by itself.
head -1 $stories/expected_greedy_n200.txt >"$tmp/prompt"
stdin=$tmp/prompt
ok "$dhelix" sample $stories --tokenizer $llama --prompt - --greedy --tokens 100
stdin=/dev/null
check 'reading a prompt continues as writing did' \
    cmp -n 360 "$tmp/out" $stories/expected_greedy_n200.txt

ok "$dhelix" sample $stories --tokenizer $llama --tokens 5 --json
same "$(json end)" length
same "$(json new_tokens)" 5
ok "$dhelix" sample $stories --tokenizer $llama --seed 5 --tokens 2000 --json --full-context stop
cp "$tmp/out" "$tmp/first"
check 'the text ends by itself or at the context' grep -qE '"end": "(end of text|context full)"' "$tmp/first"
for tokens in 1 2; do
    ok "$dhelix" sample $stories --tokenizer $llama --tokens 30 --top-k 3 --seed 8
    cp "$tmp/out" "$tmp/again$tokens"
done
check 'the same seed gives the same text' cmp "$tmp/again1" "$tmp/again2"

# Its loss on its own kind of text, as text and in bits.
ok "$dhelix" eval $stories --tokenizer $llama --data $tinystories --batches 16 --json
close "$(json loss)" 1.30 0.15
close "$(json perplexity)" 3.67 0.55
check 'bits per byte are given' grep -q bits_per_byte "$tmp/out"
loss=$(json loss)

# Conversion keeps it: to float32 exactly, to bf16 nearly, with its tokenizer.
mkdir "$tmp/with_tokenizer"
cp $stories/stories260K.bin "$tmp/with_tokenizer/"
ok "$dhelix" convert $stories/stories260K.bin "$tmp/hf"
check 'config.json is there' test -s "$tmp/hf/config.json"
ok "$dhelix" eval "$tmp/hf" --data $tinystories --batches 16 --json
same "$(json loss)" "$loss" 'loss after conversion'
ok "$dhelix" sample "$tmp/hf" --tokenizer $llama --greedy --tokens 200
check 'the greedy text after conversion' cmp "$tmp/out" $stories/expected_greedy_n200.txt
fails 1 'the option replace replaces a model folder' "$dhelix" convert $stories "$tmp/hf"
cp $llama "$tmp/hf/tokenizer.bin"
ok "$dhelix" convert "$tmp/hf" "$tmp/hf16" --dtype bf16
says 'a tokenizer that Transformers does not read'
check 'the tokenizer is copied' cmp "$tmp/hf16/tokenizer.bin" $llama
ok "$dhelix" eval "$tmp/hf16" --data $tinystories --batches 16 --json
close "$(json loss)" "$loss" 0.01
ok "$dhelix" sample "$tmp/hf16" --tokens 5
ok "$dhelix" eval "$tmp/hf16" --data $tinystories --batches 4 --dtype bf16 --micro-batch 2

# Other families, other files.
for model in tiny-random-gpt2 tiny-random-llama tiny-mistral tiny-qwen2 tiny-qwen3 tiny-phi3 \
    tiny-olmo2 tiny-olmo3 tiny-smollm3 tiny-qwen3_moe tiny-gemma2 tiny-gemma2-capped tiny-gemma3 \
    tiny-gemma3-window tiny-deepseek_v3 tiny-deepseek_v3-yarn tiny-deepseek_v3-dense tiny-qwen3_moe-dense \
    tiny-phimoe tiny-phimoe-long; do
    ok "$dhelix" convert tests/data/weights/$model "$tmp/$model"
    ok "$dhelix" eval tests/data/weights/$model --tokenizer bytes \
        --data examples/data/tinyshakespeare.txt --batches 2 --seq 64 --json
    loss=$(json loss)
    ok "$dhelix" eval "$tmp/$model" --tokenizer bytes --data examples/data/tinyshakespeare.txt \
        --batches 2 --seq 64 --json
    same "$(json loss)" "$loss" "loss of $model after conversion"
    check "$model stays of its class" diff <(grep -o '"model_type": "[a-z0-9_]*"' \
        tests/data/weights/$model/config.json) \
        <(grep -o '"model_type": "[a-z0-9_]*"' "$tmp/$model/config.json")
done
check 'of a whole number Gemma 2 gets one' grep -q '"query_pre_attn_scalar": 20,' "$tmp/tiny-gemma2/config.json"
# A model that reads images too: its text model, under the names of newer files and of older ones.
ok "$dhelix" eval tests/data/weights/tiny-gemma3 --tokenizer bytes --data examples/data/tinyshakespeare.txt \
    --batches 2 --seq 64 --json
loss=$(json loss)
for text in model.language_model. language_model.model.; do
    mkdir -p "$tmp/images"
    python3 - tests/data/weights/tiny-gemma3 "$tmp/images" $text <<'END'
import json, struct, sys
source, target, text = sys.argv[1:]
with open(source + "/model.safetensors", "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
head = {name.replace("model.", text, 1): tensor for name, tensor in head.items()}
for name in ("vision_tower.patch.weight", "multi_modal_projector.norm.weight"):
    head["model." * (text[0] == "m") + name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    data += struct.pack("<f", 7.0)
with open(target + "/model.safetensors", "wb") as f:
    head = json.dumps(head).encode()
    f.write(struct.pack("<Q", len(head)) + head + data)
with open(source + "/config.json") as f, open(target + "/config.json", "w") as out:
    json.dump({"model_type": "gemma3", "text_config": json.load(f), "vision_config": {}}, out)
END
    ok "$dhelix" eval "$tmp/images" --tokenizer bytes --data examples/data/tinyshakespeare.txt --batches 2 --seq 64 --json
    same "$(json loss)" "$loss" "loss of the text model below $text"
    check 'what is left out is said' grep -q '2 tensors by which the model reads images are left out' "$tmp/err"
    ok "$dhelix" convert "$tmp/images" "$tmp/images.$text"
    check 'what is written is the text model' grep -q '"model_type": "gemma3_text"' "$tmp/images.$text/config.json"
done
# What Transformers needs beside the weights is kept.
cp -r tests/data/weights/tiny-random-gpt2 "$tmp/kept"
chmod -R u+w "$tmp/kept"
echo '{"eos_token_id": [7, 9]}' >"$tmp/kept/generation_config.json"
sed 's/^{/{"bos_token_id": 5, "eos_token_id": [7, 9], "pad_token_id": 3,/' \
    tests/data/weights/tiny-random-gpt2/config.json |
    awk 'NR > 1 && /"(bos|eos|pad)_token_id"/ { next } { print }' >"$tmp/kept/config.json"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.out"
check 'generation_config.json is kept' \
    cmp "$tmp/kept/generation_config.json" "$tmp/kept.out/generation_config.json"
for id in '"bos_token_id": 5' '"pad_token_id": 3' '"eos_token_id": \['; do
    check "config.json keeps $id" grep -q "$id" "$tmp/kept.out/config.json"
done
# And what it needs to make the same ids of a text.
cp tests/data/tokenizers/gpt2/encoder.json tests/data/tokenizers/gpt2/vocab.bpe "$tmp/kept/"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.gpt2"
says 'with tokenizer'
check 'merges under the name it looks for' cmp "$tmp/kept/vocab.bpe" "$tmp/kept.gpt2/merges.txt"
check 'so is the vocabulary' cmp "$tmp/kept/encoder.json" "$tmp/kept.gpt2/vocab.json"
check 'end of text' grep -q '"eos_token": "<|endoftext|>"' "$tmp/kept.gpt2/tokenizer_config.json"
rm "$tmp/kept/encoder.json" "$tmp/kept/vocab.bpe"
cp tests/data/tokenizers/spm/unigram.model "$tmp/kept/tokenizer.model"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.unigram"
check 'a unigram model by its scores' grep -q '"Unigram"' "$tmp/kept.unigram/tokenizer.json"
cp tests/data/tokenizers/mistral/tokenizer.model "$tmp/kept/"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.spm"
check 'merges by score' grep -q '"merges"' "$tmp/kept.spm/tokenizer.json"
rm "$tmp/kept/tokenizer.model"
cp tests/data/tokenizers/hf/llama.json "$tmp/kept/tokenizer.json"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.llama"
check 'beginning of text' grep -q '"bos_token": "<s>"' "$tmp/kept.llama/tokenizer_config.json"
# A model that names no ids gets its tokenizer's: Transformers would take those of its own vocabulary.
cp -r "$tmp/kept" "$tmp/bare"
rm -f "$tmp/bare/generation_config.json"
sed -i -E 's/"(bos|eos|pad)_token_id"/"former_\1"/g' "$tmp/bare/config.json"
ok "$dhelix" convert "$tmp/bare" "$tmp/bare.out"
for file in config.json generation_config.json; do
    check "$file names the tokenizer's ids" python3 -c '
import json, sys
ids = json.load(open(sys.argv[1]))
assert ids["bos_token_id"] == 1 and ids["eos_token_id"] == 2, ids' "$tmp/bare.out/$file"
done
echo '{"eos_token": "</s>"}' >"$tmp/kept/tokenizer_config.json"
ok "$dhelix" convert "$tmp/kept" "$tmp/kept.own"
check 'a configuration that is there stays' \
    cmp "$tmp/kept/tokenizer_config.json" "$tmp/kept.own/tokenizer_config.json"
ok "$dhelix" convert tests/data/weights/tiny-mixtral-seeded "$tmp/mixtral"
says 'without a tokenizer'

# Every rank would make the same latent channels without sequence parallelism.
tiny_job "$tmp/latent.yaml"
fails 1 'needs parallel.sequence true' "$dhelix" check "$tmp/latent.yaml" --set model=deepseek-tiny \
    --set model.vocab=auto --set parallel.tp=2 --set parallel.sequence=false
fails 1 'needs a tokenizer' "$dhelix" sample $stories
fails 1 'belongs to another model' "$dhelix" sample $stories --tokenizer tests/data/tokenizers/gpt2
fails 1 'longer than the model' "$dhelix" eval $stories --data $tinystories --seq 4096
fails 1 'outside' "$dhelix" eval $stories --data tests/data/corpora/tinyshakespeare/tiny_shakespeare_val.bin
head -c 1000 $stories/stories260K.bin >"$tmp/cut.bin"
fails 1 'cut.bin' "$dhelix" sample "$tmp/cut.bin" --tokenizer $llama
# A GPT-2 without biases: Transformers, which has them always, gets zeros, and reading it back gives
# the same model without a word.
tiny_job "$tmp/plain.yaml"
ok "$dhelix" train "$tmp/plain.yaml" --set model.bias=false --set train.steps=2 --set eval.every=0 --set out="$tmp/plain" --quiet
ok "$dhelix" convert "$tmp/plain" "$tmp/plain_hf" --json
same "$(json tensors)" 28 'weights, and 6 biases a layer and one behind them'
for model in "$tmp/plain" "$tmp/plain_hf"; do
    ok "$dhelix" eval "$model" --data examples/data/tinyshakespeare.txt --batches 2 --json
    json loss >>"$tmp/plain_losses"
    check "$model: no warning" test ! -s "$tmp/err"
done
same "$(sort -u "$tmp/plain_losses" | wc -l)" 1 'the same loss'
ok "$dhelix" convert "$tmp/plain_hf" "$tmp/plain_again" --json
same "$(json tensors)" 28 'none twice'
same "$(json tokenizer_for_transformers)" true
# Characters, and bytes, are a tokenizer.json there, with the same ids.
ok "$dhelix" tokenize --tokenizer "$tmp/plain/tokenizer.chars.json" --stdout examples/data/tinyshakespeare.txt
cp "$tmp/out" "$tmp/ids"
ok "$dhelix" tokenize --tokenizer "$tmp/plain_hf" --stdout examples/data/tinyshakespeare.txt
check 'ids of characters' cmp "$tmp/out" "$tmp/ids"
check 'which have no beginning and no end' test "$(grep -cE '"(bos|eos)_token_id": null' "$tmp/plain_hf/config.json")" = 2
check 'nor a generation_config.json' test ! -e "$tmp/plain_hf/generation_config.json"
ok "$dhelix" train "$tmp/plain.yaml" --set data.tokenizer=bytes --set train.steps=1 --set eval.every=0 --set out="$tmp/bytes" --quiet
ok "$dhelix" convert "$tmp/bytes" "$tmp/bytes_hf"
ok "$dhelix" tokenize --tokenizer "$tmp/bytes_hf" --stdout tests/cli/lib.sh
cp "$tmp/out" "$tmp/ids"
ok "$dhelix" tokenize --tokenizer bytes --stdout tests/cli/lib.sh
check 'ids of bytes' cmp "$tmp/out" "$tmp/ids"
finish
