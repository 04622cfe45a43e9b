# Converting what is not whole, and into folders that hold something.
. tests/cli/lib.sh "$1"
weights=tests/data/weights
text=examples/data/tinyshakespeare.txt
n_made=0

make() { # source, fault...: the folder is $made
    made=$tmp/made$((n_made += 1))
    local source=$1
    shift
    python3 tests/cli/variants.py "$source" "$made" "$@" || fail "cannot make $source with $*"
}

# No command takes it, and nothing is written.
refused() { # part of the message, source, fault...
    local part=$1
    shift
    make "$@"
    fails 1 "$part" "$dhelix" convert "$made" "$tmp/out$n_made"
    check "nothing is written of $*" test ! -e "$tmp/out$n_made"
    same "$(find "$tmp" -maxdepth 1 -name '*.tmp-*')" '' 'nothing is left'
    [ "$1" = $weights/lora-qwen2 ] || [ "$1" = $weights/tiny-qwen2 ] || return 0
    fails 1 "$part" "$dhelix" eval "$made" --data $text --tokenizer bytes --seq 32 --batches 1
    fails 1 "$part" "$dhelix" sample "$made" --tokenizer bytes --tokens 1
    [ "$1" = $weights/lora-qwen2 ] || return 0
    fails 1 made$n_made "$dhelix" train "$tmp/lora.yaml" --quiet --set out="$tmp/run$n_made" --set lora.init_from="$made"
}
cat >"$tmp/lora.yaml" <<EOF
model: $PWD/$weights/tiny-qwen2
data: {train: $PWD/$text, tokenizer: bytes}
train: {steps: 1, batch: 2, micro_batch: 2, seq_len: 32, init_from: $PWD/$weights/tiny-qwen2, threads: 1}
lora: {rank: 4, alpha: 8, targets: all-linear}
eval: {every: 0}
EOF

# ---- adapters ---------------------------------------------------------------------------------
for kind in qwen2 gpt2 $(deep && echo mistral phi3); do
    lora=$weights/lora-$kind
    linear=$([ $kind = gpt2 ] && echo c_attn || ([ $kind = phi3 ] && echo qkv_proj || echo v_proj))
    refused "$linear.lora_A.weight" $lora drop "1.*$linear.lora_A"
    refused "$linear.lora_B.weight" $lora drop "0.*$linear.lora_B"
    refused lora_A.weight $lora drop '\.1\.'
    refused lora_A.weight $lora drop .
    refused "$linear.lora_A.weight\" has shape" $lora rows "$linear.lora_A"
    refused "$linear.lora_B.weight\" has shape" $lora rows "$linear.lora_B"
    refused "$linear.lora_B.weight\" has shape" $lora flat "$linear.lora_B"
    refused "$linear.lora_A.weight\"" $lora type "$linear.lora_A"
    refused "$linear.lora_A.weight\" holds" $lora nan "1.*$linear.lora_A"
    refused "$linear.lora_B.weight\" holds" $lora inf "0.*$linear.lora_B"
    refused 'belongs to no linear' $lora add base_model.model.lm_head.lora_A.weight
    refused 'belongs to no linear' $lora add base_model.model.model.layers.7.self_attn.q_proj.lora_B.weight
    refused 'which float32 does not hold' $lora config adapter_config.json lora_alpha=1e308
    refused 'which float32 does not hold' $lora config adapter_config.json lora_alpha=1e-308
    refused '"lora_alpha" must be' $lora config adapter_config.json lora_alpha=-8
    refused '"lora_alpha" must be' $lora config adapter_config.json 'lora_alpha="8"'
    refused '"r", the rank' $lora config adapter_config.json r=0
    refused '"r", the rank' $lora config adapter_config.json r=4.5
    refused 'no layer of this model has such a linear' $lora config adapter_config.json 'target_modules=["w_pack"]'
    refused '"init_lora_weights" is "pissa_niter_4"' $lora config adapter_config.json 'init_lora_weights="pissa_niter_4"'
done
for start in PiSSA olora corda loftq lora_ga; do
    refused 'which changes the base weights' $weights/lora-gpt2 config adapter_config.json "init_lora_weights=\"$start\""
done
refused 'is not known and may change' $weights/lora-gpt2 config adapter_config.json 'init_lora_weights="newest"'
refused 'is not known and may change' $weights/lora-gpt2 config adapter_config.json 'init_lora_weights=3'
for other in use_rslora=true use_dora=true 'use_bdlora={"nblocks":2}' 'kasa_config={"beta":1}' \
    'velora_config={"rank":1}' 'monteclora_config={"n":1}' 'rank_pattern={"q_proj":2}' 'a_new_key=1'; do
    refused "\"${other%%=*}\" is given" $weights/lora-gpt2 config adapter_config.json "$other"
done
refused '"task_type" is "SEQ_CLS"' $weights/lora-gpt2 config adapter_config.json 'task_type="SEQ_CLS"'
refused '"peft_type" is LOHA' $weights/lora-gpt2 config adapter_config.json 'peft_type="LOHA"'
for harmless in 'init_lora_weights="gaussian"' 'init_lora_weights="EVA"' init_lora_weights=false a_new_key=null \
    'a_new_key={}' 'eva_config={"rho":2.0}' task_type=null; do
    make $weights/lora-gpt2 config adapter_config.json "$harmless"
    ok "$dhelix" convert "$made" "$tmp/harmless$n_made"
done

# ---- models -----------------------------------------------------------------------------------
for kind in qwen2 gemma2 $(deep && echo mistral phi3); do
    model=$weights/tiny-$kind
    refused 'has no tensor "model.layers.1.mlp.down_proj.weight"' $model drop layers.1.mlp.down_proj.weight
    refused 'has no tensor "model.norm.weight"' $model drop '^model.norm'
    refused 'has no tensor' $model drop 'layers.1'
    refused 'has shape' $model rows embed_tokens
    refused 'has shape' $model config config.json vocab_size=77
    refused layers $model config config.json num_hidden_layers=3
    refused 'layers.0.self_attn.o_proj.weight" holds' $model nan layers.0.self_attn.o_proj
    refused 'layers.1.mlp.down_proj.weight" holds' $model inf layers.1.mlp.down_proj
    refused 'layers.1.mlp.down_proj.weight"' $model type layers.1.mlp.down_proj
    refused 'layers.1.mlp.down_proj.weight"' $model float8 layers.1.mlp.down_proj
    refused 'is part of a quantised weight' $model add model.layers.0.mlp.down_proj.weight_scale_inv
    refused 'is part of a quantised weight' $model add model.layers.0.mlp.down_proj.qzeros
done
make $weights/tiny-mistral huge layers.0.self_attn.o_proj.weight
fails 1 'too large for bf16' "$dhelix" convert "$made" "$tmp/huge" --dtype bf16
ok "$dhelix" convert "$made" "$tmp/huge"

# What is surplus is named and left out; the count is that of what is written.
ok "$dhelix" convert $weights/tiny-mistral "$tmp/plain" --json
count=$(json parameters)
tensors=$(json tensors)
make $weights/tiny-mistral add model.layers.9.mlp.up_proj.weight visual.patch.weight
ok "$dhelix" convert "$made" "$tmp/surplus" --json
same "$(json parameters)" "$count" parameters
same "$(json tensors)" "$tensors" tensors
check 'the first is named' grep -q 'model.layers.9.mlp.up_proj.weight of the weights is not part of model' "$tmp/err"
check 'the second is named' grep -q 'visual.patch.weight of the weights is not part of model' "$tmp/err"
check 'they are left out' cmp "$tmp/plain/model.safetensors" "$tmp/surplus/model.safetensors"
# The text model of one that reads images gets its own names.
make $weights/tiny-mistral rename '^model\.' model.language_model.
ok "$dhelix" convert "$made" "$tmp/named"
check 'by the names of the text model' cmp "$tmp/plain/model.safetensors" "$tmp/named/model.safetensors"
make $weights/tiny-mistral rename '^' language_model.
python3 - "$made/config.json" <<'EOF'
import json, sys
text = json.load(open(sys.argv[1]))
json.dump({"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": text,
           "vision_config": {}}, open(sys.argv[1], "w"))
EOF
ok "$dhelix" convert "$made" "$tmp/named3"
check "Mistral 3's text model" cmp "$tmp/plain/model.safetensors" "$tmp/named3/model.safetensors"
# A tied model of which the head alone is stored.
ok "$dhelix" convert $weights/tiny-gemma2 "$tmp/tied"
make $weights/tiny-gemma2 rename '^model.embed_tokens' lm_head
ok "$dhelix" convert "$made" "$tmp/tied.head"
check 'the head is the embedding' cmp "$tmp/tied/model.safetensors" "$tmp/tied.head/model.safetensors"
ok "$dhelix" eval "$made" --data $text --tokenizer bytes --seq 32 --batches 1
# A tied model with another head: which of both is used is said, and not where both are the same.
make $weights/tiny-mistral config config.json tie_word_embeddings=true
for command in "convert $made $tmp/headed" "eval $made --data $text --tokenizer bytes --seq 32 --batches 1"; do
    ok "$dhelix" $command
    check "$command: which head is used" grep -qF 'The embedding is used, as tie_word_embeddings says' "$tmp/err"
done
check 'the head is left out' test "$(grep -c lm_head "$tmp/headed/model.safetensors")" -eq 0
refused 'has no tensor "model.embed_tokens.weight"' $weights/tiny-mistral rename '^model.embed_tokens' other

# ---- tokenizers that are known and not read --------------------------------------------------------
# The commands say which format it is; a conversion keeps the file.
for name in qwen.tiktoken tiktoken.model tekken.json; do
    folder=$tmp/with-$name form=$([ $name = tekken.json ] && echo "Mistral's tekken.json" || echo 'this is a tiktoken file')
    cp -r $weights/tiny-qwen2 "$folder"
    if [ $name = tekken.json ]; then
        echo '{"config": {}, "vocab": [{"rank": 0, "token_bytes": "AA=="}], "special_tokens": []}' >"$folder/$name"
    else
        printf 'IQ== 0\nIg== 1\n' >"$folder/$name"
    fi
    ok "$dhelix" convert "$folder" "$folder.out"
    check "$name is kept" cmp "$folder/$name" "$folder.out/$name"
    fails 1 "$form" "$dhelix" tokenize $text --tokenizer "$folder"
    fails 1 'none that can be read is' "$dhelix" sample "$folder" --prompt a --tokens 1
    check "sample names $name" grep -qF "$form" "$tmp/err"
    fails 1 'no tokenizer was given' "$dhelix" eval "$folder" --data $text --seq 32 --batches 1
    check "eval names $name" grep -qF "$form" "$tmp/err"
done

# ---- folders that hold something -----------------------------------------------------------------
out=$tmp/kept
ok "$dhelix" convert $weights/tiny-qwen2 "$out"
mkdir -p "$out/.git/objects" "$out/vocab.txt"
echo mine >"$out/README.md"
echo theirs >"$out/.git/objects/one"
echo deep >"$out/vocab.txt/note"
ln -s README.md "$out/link"
echo '{}' >"$out/tokenizer.json"
cp "$out/model.safetensors" "$out/model-00001-of-00002.safetensors"
cp "$out/model.safetensors" "$out/other.safetensors"
ok "$dhelix" convert $weights/tiny-mistral "$out" --replace
check 'the new model' cmp "$out/model.safetensors" "$tmp/plain/model.safetensors"
check 'a file that is not the model'"'"'s' grep -q mine "$out/README.md"
check 'a folder' grep -q theirs "$out/.git/objects/one"
check 'a folder of a tokenizer'"'"'s name' grep -q deep "$out/vocab.txt/note"
check 'a link' grep -q mine "$out/link"
check 'weights of another name' test -s "$out/other.safetensors"
check 'the former shards are gone' test ! -e "$out/model-00001-of-00002.safetensors"
check 'the former tokenizer is gone' test ! -e "$out/tokenizer.json"
same "$(ls "$tmp" | grep -cE 'kept\.')" 0 'nothing beside it'
ln -s kept "$tmp/way"
ok "$dhelix" convert $weights/tiny-qwen2 "$tmp/way" --replace
check 'a link to the folder stays one' test -L "$tmp/way"
check 'and leads to the model' grep -q qwen2 "$out/config.json"
check 'with what it held' grep -q theirs "$out/.git/objects/one"
mkdir "$tmp/adapters"
cp $weights/lora-qwen2/* "$tmp/adapters"
fails 1 'is no model folder' "$dhelix" convert $weights/tiny-mistral "$tmp/adapters" --replace
cp $weights/tiny-qwen2/config.json "$tmp/adapters"
fails 1 'holds adapters' "$dhelix" convert $weights/tiny-mistral "$tmp/adapters" --replace
check 'adapters stay' cmp "$tmp/adapters/adapter_model.safetensors" $weights/lora-qwen2/adapter_model.safetensors

# ---- links, pipes, devices -------------------------------------------------------------------------
echo secret >"$tmp/secret"
links() { # folder: a model folder
    mkdir -p "$1"
    cp $weights/tiny-mistral/* "$1"
}
for name in chat_template.jinja generation_config.json tokenizer_config.json special_tokens_map.json added_tokens.json chat_template.json; do
    links "$tmp/link.$name"
    cp tests/data/tokenizers/hf/llama.json "$tmp/link.$name/tokenizer.json"
    ln -s ../secret "$tmp/link.$name/$name"
    fails 1 'is a link to' "$dhelix" convert "$tmp/link.$name" "$tmp/link.$name.out"
    check "$name is not copied" test ! -e "$tmp/link.$name.out"
done
links "$tmp/inside"
echo '{{ x }}' >"$tmp/inside/real"
ln -s real "$tmp/inside/chat_template.jinja"
ok "$dhelix" convert "$tmp/inside" "$tmp/inside.out"
check 'a link within the folder' cmp "$tmp/inside/real" "$tmp/inside.out/chat_template.jinja"
hub=$tmp/hub/models--a--b
mkdir -p "$hub/blobs" "$hub/snapshots/1" "$tmp/hub/models--c--d/blobs"
for file in config.json model.safetensors; do
    cp $weights/tiny-mistral/$file "$hub/blobs/$file.blob"
    ln -s ../../blobs/$file.blob "$hub/snapshots/1/$file"
done
echo '{{ x }}' >"$hub/blobs/0a"
ln -s ../../blobs/0a "$hub/snapshots/1/chat_template.jinja"
ok "$dhelix" convert "$hub/snapshots/1" "$tmp/hub.out"
check "a cache's link" cmp "$hub/blobs/0a" "$tmp/hub.out/chat_template.jinja"
cp "$hub/blobs/0a" "$tmp/hub/models--c--d/blobs/0a"
ln -sf ../../../models--c--d/blobs/0a "$hub/snapshots/1/chat_template.jinja"
fails 1 'is a link to' "$dhelix" convert "$hub/snapshots/1" "$tmp/hub.other"
ln -sf ../../../../secret "$hub/snapshots/1/chat_template.jinja"
fails 1 'is a link to' "$dhelix" convert "$hub/snapshots/1" "$tmp/hub.other"
limit=20
for name in config.json model.safetensors tokenizer.json generation_config.json; do
    links "$tmp/pipe.$name"
    rm -f "$tmp/pipe.$name/$name"
    mkfifo "$tmp/pipe.$name/$name"
    fails 1 'is not a regular file' "$dhelix" convert "$tmp/pipe.$name" "$tmp/pipe.out"
    links "$tmp/device.$name"
    ln -sf /dev/zero "$tmp/device.$name/$name"
    fails 1 "$name" "$dhelix" convert "$tmp/device.$name" "$tmp/device.out"
done
for file in ../secret /etc/passwd sub/model.safetensors . ..; do
    links "$tmp/index"
    rm "$tmp/index/model.safetensors"
    echo "{\"weight_map\": {\"model.norm.weight\": \"$file\"}}" >"$tmp/index/model.safetensors.index.json"
    fails 1 'is not a plain file name' "$dhelix" convert "$tmp/index" "$tmp/index.out"
done
unset limit
finish
