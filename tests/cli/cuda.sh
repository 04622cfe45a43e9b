# A program with device cuda. On a machine without a GPU: the device is listed, and a run on it says what the machine
# lacks. With one: small jobs of every kind of kernel train as on the cpu, in float32 and bf16, captured as a graph, by ranks
# that share the GPU. Of builds with -DDH_CUDA=ON, or AUTO where CUDA is.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"

ok "$dhelix" list devices
check 'cuda is listed' grep -q '^cuda ' "$tmp/out"
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    fails 1 'the machine has no GPU, or no driver for it' \
        "$dhelix" train "$tmp/job.yaml" --quiet --set device=cuda --set out="$tmp/run"
    check 'nothing is left of the run' test ! -e "$tmp/run/checkpoints"
    finish
    exit
fi

last_loss() { sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -1; }
# Losses of twelve steps: float32 adds in other orders, bf16 rounds what that makes.
close() { awk -v a="$1" -v b="$2" -v tolerance="$3" 'BEGIN { d = (a - b) / b; exit !(a > 0 && d * d <= tolerance * tolerance) }'; }
size='n_layers: 2, width: 64, n_heads: 4, max_seq: 64'
rotary="$size, n_kv_heads: 2, head_dim: 16, tied_head: false"
for job in "{family: gpt2, $size}|model.dropout=0.1" "{family: gpt2, $size}|train.capture=on" \
    "{family: llama, $rotary, ffn_width: 88}|train.recompute=full" \
    "{family: qwen3, $rotary, ffn_width: 88}|train.dtype=bf16" \
    "{family: gemma2, $rotary, ffn_width: 88, window: 16, window_every: 2}|train.dtype=bf16" \
    "{family: mixtral, $rotary, ffn_width: 48, n_experts: 4, top_k: 2}|train.dtype=bf16" \
    "{family: deepseek_v3, $size, head_dim: 24, rope_dim: 8, v_dim: 16, q_lora: 24, kv_lora: 32, ffn_width: 40, n_experts: 8, top_k: 3, n_groups: 4, top_groups: 2}|train.dtype=f32" \
    "{family: llama, $rotary, ffn_width: 88, attention: linear}|train.dtype=f32" \
    "{family: llama, $rotary, ffn_width: 88}|parallel.tp=2 strategy=dhelix" \
    "{family: llama, $rotary, ffn_width: 88}|parallel.dp=2 parallel.zero=3 parallel.gpu_comm=host" \
    "{family: llama, $rotary, ffn_width: 88}|parallel.cp=2 train.dtype=bf16"; do
    words=(--set "model=${job%%|*}" --set train.steps=12 --set eval.every=0)
    for word in ${job#*|}; do words+=(--set "$word"); done
    tolerance=2e-4
    [[ $job != *bf16* ]] || tolerance=5e-3
    for device in cpu cuda; do
        plain=()
        [ "$device" = cuda ] || plain=(--set train.capture=off --set parallel.gpu_comm=auto)
        ok "$dhelix" train "$tmp/job.yaml" --quiet "${words[@]}" "${plain[@]}" --set device=$device --set out="$tmp/$device" --fresh
    done
    check "${job#*|}, ${job%%,*}: $(last_loss "$tmp/cuda") on the GPU, $(last_loss "$tmp/cpu") on the cpu" \
        close "$(last_loss "$tmp/cuda")" "$(last_loss "$tmp/cpu")" $tolerance
done
finish
