#!/bin/bash
# Arguments of Megatron-LM's Llama 3 8B example in fp8 (README.md).
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINT=${1:-"checkpoints/llama3"}
TOKENIZER=${3:-"MOCK"}
DATA=${4:-"MOCK"}
mkdir -p "$(dirname "$CHECKPOINT")"
GPUS=8
NODES=1
SCRIPT="pretrain_gpt.py"
TP=1
CP=1
SEQ=8192
DTYPE="fp8"
LAUNCH=(--nproc_per_node $GPUS --nnodes $NODES --node_rank ${NODE_RANK:-0})
MODEL=(
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length $SEQ --max-position-embeddings $SEQ --position-embedding-type rope
    --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused
    --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING=(
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000
    --lr-decay-samples 1949218748 --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001
    --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 --lr-decay-style cosine --clip-grad 1.0
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16
    --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc
    --empty-unused-memory-level 1 --exit-duration-in-mins 235
)
PRECISION=()
if [[ "$DTYPE" == "fp8" ]]; then
    PRECISION+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
fi
PARALLEL=(
    --tensor-model-parallel-size $TP
    --context-parallel-size $CP
    # --pipeline-model-parallel-size 1
    --sequence-parallel  # with one rank it changes nothing
)
SHARING=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
TRAINING+=("${SHARING[@]}")
TEXTS=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ "$DATA" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    TEXTS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
else
    TEXTS+=("--data-path $DATA" "--tokenizer-type HuggingFaceTokenizer" "--vocab-size 1")
fi
LOGGING=(--log-interval 1 --eval-iters 32 --eval-interval 100 --save "$CHECKPOINT" --ckpt-format torch_dist)
if [ ! -f "$SCRIPT" ]; then
    echo "Error: $SCRIPT is not there"
    exit 1
fi
torchrun ${LAUNCH[@]} \
    "$SCRIPT" \
    ${MODEL[@]} ${TRAINING[@]} ${PRECISION[@]} ${PARALLEL[@]} ${TEXTS[@]} ${LOGGING[@]}

set +x
