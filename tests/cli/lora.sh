# Low-rank adapters: trained, continued, PEFT's files in and out, merged.
. tests/cli/lib.sh "$1"
base=tests/data/weights/tiny-qwen2
text=tests/data/corpora/tinyshakespeare/input.txt
export DHELIX_GEMM_PEAK=1e11

cat >"$tmp/job.yaml" <<EOF
out: $tmp/run
model: $PWD/$base
data: {train: $PWD/$text, tokenizer: bytes}
train: {steps: 6, batch: 4, micro_batch: 2, seq_len: 32, init_from: $PWD/$base, threads: 1}
lora: {rank: 4, targets: [q_proj, v_proj, down_proj]}
optimizer: {lr: 1e-2, schedule: constant}
eval: {every: 0}
EOF

# What is trained has gradients and moments, the rest has none.
ok "$dhelix" check "$tmp/job.yaml" --json
trained=$(json gradients)
ok "$dhelix" check "$tmp/job.yaml" --json --set lora.rank=0
check 'gradients are those of adapters alone' test "$((trained * 4))" -lt "$(json gradients)"

# Six steps, and four with two more, come to the same bits; the checkpoint is a folder of PEFT's.
ok "$dhelix" train "$tmp/job.yaml" --quiet
ok "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=4 --set out="$tmp/two"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/two"
adapter=$tmp/run/checkpoints/step-000006
check 'continued with the same bits' cmp "$adapter/adapter_model.safetensors" \
    "$tmp/two/checkpoints/step-000006/adapter_model.safetensors"
check 'no whole model in it' test ! -e "$adapter/model.safetensors"
check "PEFT's configuration" grep -q '"peft_type": "LORA"' "$adapter/adapter_config.json"
check "PEFT's names" grep -qa \
    'base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight' "$adapter/adapter_model.safetensors"
ok "$dhelix" verify "$tmp/run"
check 'verify knows its tensors' grep -q intact "$tmp/out"

# On a mesh the same losses to rounding; a checkpoint of one is continued on another.
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/mesh" --set train.steps=3 \
    --set parallel.tp=2 --set parallel.dp=2 --set parallel.zero=1
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/mesh" --set parallel.pp=2
last() { tail -1 "$1/metrics.jsonl" | sed 's/.*"loss":\([0-9.]*\).*/\1/'; }
close "$(last "$tmp/mesh")" "$(last "$tmp/run")" 0.0001

# A loss with adapters is that of the weights that they are merged into, whose adapters they were.
eval_of() { ok "$dhelix" eval "$@" --data $text --tokenizer bytes --seq 32 --batches 8 --json; }
eval_of "$tmp/run"
loss=$(json loss)
ok "$dhelix" convert "$tmp/run" "$tmp/merged"
eval_of "$tmp/merged"
close "$(json loss)" "$loss" 0.000002
check 'the merged folder has no adapters' test ! -e "$tmp/merged/adapter_config.json"
eval_of $base
check 'training changed it' test "$(json loss)" != "$loss"

# What PEFT wrote: evaluated, sampled, merged, trained further.
for name in qwen2 gpt2 phi3 mistral; do
    eval_of tests/data/weights/lora-$name
    loss=$(json loss)
    ok "$dhelix" convert tests/data/weights/lora-$name "$tmp/merged-$name"
    eval_of "$tmp/merged-$name"
    close "$(json loss)" "$loss" 0.000002
done
ok "$dhelix" sample tests/data/weights/lora-qwen2 --tokenizer bytes --tokens 5
mkdir "$tmp/moved"
sed 's#"base_model_name_or_path": ".*"#"base_model_name_or_path": "some/model"#' \
    tests/data/weights/lora-qwen2/adapter_config.json >"$tmp/moved/adapter_config.json"
cp tests/data/weights/lora-qwen2/adapter_model.safetensors "$tmp/moved"
fails 1 'which is no file or folder here: give the weights that they belong to by the option base' "$dhelix" eval "$tmp/moved" --data $text --tokenizer bytes
eval_of "$tmp/moved" --base $base
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/further" --set train.steps=1 \
    --set lora.init_from="$PWD/tests/data/weights/lora-qwen2" --set lora.targets=all-linear \
    --set optimizer.lr=0 --set optimizer.min_lr=0
check 'adapters are taken as they were' test -s "$tmp/further/checkpoints/step-000001/adapter_model.safetensors"
eval_of "$tmp/moved" --base $base
loss=$(json loss)
eval_of "$tmp/further"
same "$(json loss)" "$loss" 'loss of adapters that were only read and written'

# Whatever is shared out, of what is trained and what is not: the same adapters, less memory.
for zero in 0 3; do
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/zero$zero" --set train.steps=3 --set train.batch=4 \
        --set parallel.dp=2 --set parallel.zero=$zero
    ok "$dhelix" check "$tmp/job.yaml" --json --set train.batch=4 --set parallel.dp=2 --set parallel.zero=$zero
    sed -n 's/,//; s/^ *"parameters": //p' "$tmp/out" | sed -n 2p >"$tmp/bytes$zero" # behind their number
done
ok cmp "$tmp/zero0/checkpoints/step-000003/adapter_model.safetensors" "$tmp/zero3/checkpoints/step-000003/adapter_model.safetensors"
check 'frozen weights are shared out' test $((3 * $(cat "$tmp/bytes3"))) -lt $((2 * $(cat "$tmp/bytes0")))

# Refused: other weights than those they were trained beside, none at all, linears that are not there,
# other kinds of adapters.
cp -r $base "$tmp/base"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/changed" --set train.steps=1 \
    --set train.init_from="$tmp/base"
printf '\1' | dd of="$tmp/base/model.safetensors" bs=1 seek=9000 conv=notrunc status=none
fails 1 'it has changed, or it' "$dhelix" eval "$tmp/run" --base "$tmp/base" --data $text --tokenizer bytes
fails 1 'train.init_from weights with hash' "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/changed" --set train.init_from="$tmp/base"
fails 1 'train.init_from' "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/none" --set train.init_from=
fails 1 'lora.targets names c_attn' "$dhelix" check "$tmp/job.yaml" --set lora.targets=q_proj,c_attn
fails 1 'targets are others' "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/none" \
    --set lora.init_from="$PWD/tests/data/weights/lora-qwen2"
for key in '"use_dora": true' '"rank_pattern": {"q_proj": 2}' '"modules_to_save": ["lm_head"]' \
    '"peft_type": "IA3"' '"bias": "all"' '"target_modules": "model.*proj"'; do
    name=${key%%:*}
    sed "/$name/d; s/^{/{$key,/" tests/data/weights/lora-mistral/adapter_config.json >"$tmp/moved/adapter_config.json"
    [ "$name" != '"target_modules"' ] || sed -i '/"[qv]_proj"/d; /^  \]/d' "$tmp/moved/adapter_config.json"
    fails 1 "$name" "$dhelix" eval "$tmp/moved" --base $base --data $text --tokenizer bytes
done
finish
