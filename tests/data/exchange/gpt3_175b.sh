#!/bin/bash
# Arguments of Megatron-LM's GPT-3 175B example (README.md).
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1
DATA_PATH=$5
LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_addr localhost)
MODEL=(
    --num-layers 96
    --hidden-size 12288 --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048
    --attention-backend auto # flash, fused, unfused, local
)
TRAINING=(
    --micro-batch-size 1 --global-batch-size 1536
    --step-batch-size-schedule "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"
    --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95
    --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine
    --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000
)
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
DATA=(--data-path $DATA_PATH --vocab-file $3 --merge-file $4 --split 949,50,1)
LOGGING=(
    --log-interval 100 --save-interval 10000 --eval-interval 1000
    --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH --eval-iters 10 --tensorboard-dir $2
)
torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} ${TRAINING[@]} \
    ${PARALLEL[@]} \
    ${DATA[@]} ${LOGGING[@]}
