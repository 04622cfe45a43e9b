#!/usr/bin/env bash
# Small training runs on a GPU under NVIDIA's compute-sanitizer: memory that kernels must not touch
# (memcheck), shared memory that threads race for (racecheck), barriers that not all reach (synccheck).
#   scripts/cuda_sanitize.sh [BUILD]     a build with device cuda; build/cuda where it is not given
# Where there is no GPU, no tool or no such build it says what did not run, with status 0. The runs use
# all kernels of the families below; what a tool reports is an error, and its log is shown.
set -euo pipefail
cd "$(dirname "$0")/.."
dhelix=${1:-build/cuda}/src/cli/dhelix
tools=(memcheck racecheck synccheck)

not_run() {
    echo "compute-sanitizer: NOT run (${tools[*]}): $*"
    exit 0
}
sanitizer=
for path in compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}"/{bin,compute-sanitizer}/compute-sanitizer; do
    if sanitizer=$(command -v "$path"); then break; fi
done
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || not_run "nvidia-smi finds no GPU"
[ -n "$sanitizer" ] || not_run "there is no compute-sanitizer"
[ -x "$dhelix" ] || not_run "there is no $dhelix"
"$dhelix" list devices | grep -q '^cuda ' || not_run "$dhelix has no device cuda"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/dhelix-sanitize-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/job.yaml" <<EOF
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: chars}
train: {steps: 2, batch: 2, micro_batch: 1, seq_len: 32, threads: 1}
eval: {every: 2, batches: 1}
EOF
# What differs in kernels: norms, positions, activations, experts, latent and linear attention, bf16,
# fp8, dropout, recomputation, the optimizer by shards.
size="n_layers: 2, width: 32, n_heads: 4, max_seq: 32"
rotary="$size, n_kv_heads: 2, head_dim: 8, tied_head: false"
jobs=(
    "{family: gpt2, $size}|model.dropout=0.1"
    "{family: llama, $rotary, ffn_width: 88}|train.dtype=bf16 train.recompute=full"
    "{family: qwen3, $rotary, ffn_width: 88}|train.dtype=bf16 train.fp8=hybrid"
    "{family: gemma2, $rotary, ffn_width: 88, window: 16, window_every: 2}|train.dtype=bf16"
    "{family: mixtral, $rotary, ffn_width: 40, n_experts: 4, top_k: 2}|moe.mode=dropless"
    "{family: deepseek_v3, $size, head_dim: 12, rope_dim: 4, v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 3, n_groups: 4, top_groups: 2}|train.dtype=bf16"
    "{family: llama, $rotary, ffn_width: 88, attention: linear}|train.dtype=bf16"
    "{family: llama, $rotary, ffn_width: 88}|parallel.dp=2 parallel.zero=2 parallel.gpu_comm=host"
)
n_failed=0
for job in "${jobs[@]}"; do
    model=${job%%|*}
    words=()
    for word in ${job#*|}; do words+=(--set "$word"); done
    for tool in "${tools[@]}"; do
        if ! "$sanitizer" --tool "$tool" --error-exitcode 86 --target-processes all \
            "$dhelix" train "$tmp/job.yaml" --quiet --set "model=$model" --set device=cuda \
            --set out="$tmp/run" --fresh "${words[@]}" >"$tmp/log" 2>&1; then
            n_failed=$((n_failed + 1))
            echo "$tool: $model ${job#*|}"
            tail -40 "$tmp/log"
        fi
        rm -rf "$tmp"/run*
    done
done
echo "compute-sanitizer: ${#jobs[@]} runs under each of ${tools[*]}, $n_failed with findings"
[ "$n_failed" -eq 0 ]
