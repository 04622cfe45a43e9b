# Conversations: answers alone are learnt, one a sequence or packed; answered by `sample --chat`.
. tests/cli/lib.sh "$1"
chat=tests/data/chat
cat >"$tmp/job.yaml" <<EOF
out: $tmp/run
model: {family: llama, n_layers: 2, width: 64, n_heads: 4, ffn_width: 128, max_seq: 256, vocab: 520}
data:
  train: $PWD/$chat/chat.jsonl
  val: $PWD/$chat/chat.jsonl
  tokenizer: $PWD/$chat
  format: chat
  chat_template: chatml
train: {steps: 60, batch: 4, micro_batch: 2, seq_len: 128, threads: 1}
optimizer: {lr: 5e-3, warmup_steps: 5, weight_decay: 0}
eval: {every: 60}
EOF
last() { grep '"loss"' "$1/metrics.jsonl" | tail -1 | sed 's/.*"loss":\([0-9.e-]*\).*/\1/'; }
first() { grep '"loss"' "$1/metrics.jsonl" | head -1 | sed 's/.*"loss":\([0-9.e-]*\).*/\1/'; }

# Every conversation is a row; what is not learnt and padding count nowhere.
ok "$dhelix" train "$tmp/job.yaml" --quiet
check 'four conversations a step' grep -q '"documents":4' "$tmp/run/metrics.jsonl"
check 'answers are learnt' awk "BEGIN { exit !($(last "$tmp/run") < 0.5) }"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/tp" --set train.steps=1 --set parallel.tp=2 --set parallel.cp=2
close "$(first "$tmp/tp")" "$(first "$tmp/run")" 0.00001

# What a run says of its validation data, eval says of the same conversations.
ok "$dhelix" eval "$tmp/run" --chat-template chatml --data $chat/chat.jsonl --seq 128 --json
close "$(json loss)" "$(sed -n 's/.*"val_loss":\([0-9.e-]*\).*/\1/p' "$tmp/run/metrics.jsonl" | tail -1)" 0.0001
check 'answers alone count' test "$(json tokens)" -lt 128
fails 1 'no chat template "alpaca"' "$dhelix" eval "$tmp/run" --chat-template alpaca --data $chat/chat.jsonl

# Packed, all four in a row are the same step.
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/packed" --set train.steps=1 --set data.packing=pack \
    --set train.seq_len=256 --set train.batch=1 --set train.micro_batch=1 --set eval.every=0
close "$(first "$tmp/packed")" "$(first "$tmp/run")" 0.00001

# The answer that was learnt, and nothing else, to the message that it was learnt to.
ok "$dhelix" sample "$tmp/run" --chat --chat-template chatml --prompt "What is the king's name?" --greedy
same "$(cat "$tmp/out")" 'He is Richard, the third.'
ok "$dhelix" sample "$tmp/run" --chat --chat-template chatml --system 'Speak as they did.' --greedy --json \
    --prompt "  Good day
to you. "
same "$(json end)" 'end of text'
ok "$dhelix" sample "$tmp/run" --chat --prompt "What is the king's name?" --greedy
same "$(cat "$tmp/out")" 'He is Richard, the third.' "by the run's template"
ok "$dhelix" eval "$tmp/run" --chat-template auto --data $chat/chat.jsonl --seq 128 --json
close "$(json loss)" "$(sed -n 's/.*"val_loss":\([0-9.e-]*\).*/\1/p' "$tmp/run/metrics.jsonl" | tail -1)" 0.0001
cp -r $chat "$tmp/tok"
printf '%s' "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}" >"$tmp/tok/chat_template.jinja"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/auto" --set data.tokenizer="$tmp/tok" \
    --set data.chat_template=auto --set train.steps=1
same "$(first "$tmp/auto")" "$(first "$tmp/run")" 'by the template of the tokenizer'
ok "$dhelix" sample "$tmp/auto" --chat --prompt a --tokens 3

# Documents of a run begin without BOS, and so do prompts; a flag says otherwise.
ok "$dhelix" sample "$tmp/run" --prompt 'a king' --tokens 0 --json
n=$(json prompt_tokens)
ok "$dhelix" sample "$tmp/run" --prompt 'a king' --tokens 0 --json --bos always
same "$(json prompt_tokens)" $((n + 1)) 'with BOS'
ok "$dhelix" convert "$tmp/run" "$tmp/hf"
ok "$dhelix" sample "$tmp/hf" --prompt 'a king' --tokens 0 --json
same "$(json prompt_tokens)" $((n + 1)) "with BOS, as others' models"
ok "$dhelix" sample "$tmp/hf" --prompt 'a king' --tokens 0 --json --bos never
same "$(json prompt_tokens)" "$n" 'without BOS'

fails 1 'comes with no chat_template that is known' "$dhelix" sample "$tmp/hf" --chat --prompt a

# Refused: files that are no conversations, templates that are not known, tokenizers without marks.
echo 'a text' >"$tmp/text.txt"
fails 1 'are read from JSON lines' "$dhelix" train "$tmp/job.yaml" --set data.train="$tmp/text.txt"
fails 1 'expected.json, line 1' "$dhelix" train "$tmp/job.yaml" --set data.train="$PWD/$chat/expected.json"
printf '{"text": "a"}\n' >"$tmp/text.jsonl"
fails 1 'line 1' "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" --set data.train="$tmp/text.jsonl"
fails 1 'there is no chat template "alpaca"' "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" --set data.chat_template=alpaca
fails 1 'data.chat_template=plain' "$dhelix" train "$tmp/job.yaml" --set out="$tmp/none" --set data.tokenizer=bytes
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/plain" --set data.tokenizer=bytes --set train.steps=2 \
    --set data.chat_template=plain --set train.seq_len=256
fails 1 'lora.init_from is given' "$dhelix" check "$tmp/job.yaml" --set lora.init_from="$tmp"
sed 's/^model:.*/model: mixtral-tiny/' "$tmp/job.yaml" >"$tmp/experts.yaml"
fails 1 'data.format chat with experts' "$dhelix" check "$tmp/experts.yaml"
finish
