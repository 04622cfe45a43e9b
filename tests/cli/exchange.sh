# Jobs from Megatron-LM, torchtitan and NeMo, and back. Inputs: tests/data/exchange/README.md.
. tests/cli/lib.sh "$1"
data=tests/data/exchange

# The job without its comments; the lines of some settings.
job() { sed '/^#/d' "$1"; }
line() { sed -n "s/^$1: //p" "$2"; }

# import PROJECT SOURCE [options]: the job file is $tmp/job.yaml
import() {
    ok "$dhelix" import "$1" "$2" --write "$tmp/job.yaml" "${@:3}"
}
has() { # key: text that its line of the job has
    n_checks=$((n_checks + 1))
    line "$1" "$tmp/job.yaml" | grep -qF -- "$2" || fail "$1 of the job is \"$(line "$1" "$tmp/job.yaml")\", without $2"
}
hasnt() { # text that the job lacks
    n_checks=$((n_checks + 1))
    ! job "$tmp/job.yaml" | grep -qF -- "$1" || fail "the job has $1"
}

# ---- Megatron-LM's examples
import megatron $data/gpt3_175b.sh
says 'The command starts 8 ranks, the mesh needs a multiple of 128: the job has 128.'
says '--step-batch-size-schedule 0:16'
has ranks 128
has system megatron-core-2026+waiting-transfers
has model 'family: gpt2, n_layers: 96, width: 12288, n_heads: 96, ffn_width: 49152, vocab: 51200'
has model 'dropout: 0.1'
has train 'batch: 1536, micro_batch: 1, seq_len: 2048, dtype: bf16'
has optimizer 'warmup_steps: 430'
has parallel 'tp: 8, pp: 16'
has parallel 'sequence: false'
has topology 'ranks_per_node: 8'
ok "$dhelix" check "$tmp/job.yaml" --print recipe
import megatron $data/gpt3_175b.sh --ranks 1024
has ranks 1024
has system +reduced-last

import megatron $data/llama3_8b_fp8.sh
has system megatron-core-2026+half-gradients
has model 'family: llama, n_layers: 32, width: 4096, n_heads: 32, n_kv_heads: 8, head_dim: 128, ffn_width: 14336, vocab: 128256'
has train 'fp8: hybrid'
has train 'steps: 15258789'
has parallel 'zero: 1, gather: forward'
check 'what is lost stands in the job' grep -q '^# --fp8-param-gather (parameters are gathered in bf16)' "$tmp/job.yaml"

import megatron $data/mixtral_8x7b.sh
has ranks 32
has model 'family: mixtral'
has model 'n_experts: 8, top_k: 2, router_aux_coef: 0.01'
has parallel 'pp: 4, ep: 8'
import megatron $data/mixtral_8x7b.sh --define SLURM_NNODES=8
has ranks 64

# ---- one flag each: setting, line of the job
base='--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000
      --micro-batch-size 1 --bf16 --swiglu --normalization RMSNorm --position-embedding-type rope
      --hidden-dropout 0 --attention-dropout 0 --disable-bias-linear --overlap-grad-reduce'
one() { # flags, key, text of its line [ranks]
    ok "$dhelix" import megatron "$base $1" --write "$tmp/job.yaml" ${4:+--ranks $4}
    has "$2" "$3"
}
one '--tensor-model-parallel-size 4 --tp-comm-overlap --sequence-parallel' strategy intra-batch
one '--tensor-model-parallel-size=4' parallel 'sequence: false'
one '--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 --global-batch-size 8' parallel 'virtual_stages: 4, schedule: interleaved-1f1b'
hasnt waiting-transfers
one '--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication --global-batch-size 8' system +waiting-transfers
one '--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7' parallel 'layer_split: "7,*,7"'
one '--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --num-layers 30' parallel 'layer_split: "-1,*,-1"'
one '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "Et*5|(tt|)*7,t*6|t*7,L" --global-batch-size 4' parallel 'virtual_stages: 5, schedule: interleaved-1f1b, layer_split: "5,2,2,2,2,2,2,2,6,7"' 2
one '--recompute-granularity full --recompute-method uniform --recompute-num-layers 1' train 'recompute: full'
one '--recompute-granularity selective' train 'recompute: attention'
one '--recompute-granularity selective --recompute-modules core_attn layernorm' train 'recompute: selective'
one '--recompute-activations' train 'recompute: attention'
one '--use-torch-fsdp2' parallel 'zero: 3' 8
one '--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads' parallel 'zero: 2' 8
one '--ddp-bucket-size 40000000' parallel 'bucket_mb: 160' 8
one '--context-parallel-size 2 --cp-comm-type a2a' parallel 'cp: 2'
says 'no heads are exchanged'
one '--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel --moe-token-dispatcher-type alltoall' parallel 'ep: 4, expert_tp: 1'
one '--num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm' strategy combined-1f1b
deepseek='--multi-latent-attention --q-lora-rank 512 --kv-lora-rank 256 --num-experts 16 --moe-ffn-hidden-size 1024
          --moe-router-topk 4 --moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 4
          --moe-router-group-topk 2 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall'
one "$deepseek --moe-layer-freq '([0]*3+[1]*29)'" model 'dense_first: 3'
has model 'q_lora: 512, kv_lora: 256, rope_dim: 64'
has model 'n_shared: 2, n_groups: 4, top_groups: 2'
one "$deepseek --moe-layer-freq '([0]+[1])*16'" model 'family: deepseek_v3'
says 'layers without experts are the first ones'
one '--fp8-format e4m3 --fp8-recipe mxfp8' train 'fp8: e4m3'
says 'scales are those of rows and columns'
one '--attention-backend unfused' system +scores
one '--transformer-impl local' system megatron-core-2024

# ---- what is refused
fails 1 '--tensor-model-paralel-size is not a flag of Megatron-LM that is known: did you mean --tensor-model-parallel-size?' \
    "$dhelix" import megatron "$base --tensor-model-paralel-size 2"
ok "$dhelix" import megatron "$base --a-flag-of-next-year 2" --lenient
says '# --a-flag-of-next-year 2 (not known)'
fails 1 'belongs to no flag' "$dhelix" import megatron "$base --bf16 3"
fails 1 'has no value' "$dhelix" import megatron "$base --tensor-model-parallel-size"
fails 1 '--define NAME=VALUE gives it' "$dhelix" import megatron "$base --tensor-model-parallel-size \$TP"
ok "$dhelix" import megatron "$base --tensor-model-parallel-size \$TP" --define TP=2
fails 1 'the size of the vocabulary is not said' "$dhelix" import megatron "${base/--vocab-size 32000/}"
ok "$dhelix" import megatron "${base/--vocab-size 32000/}" --set model.vocab=50304
fails 1 'the imported job' "$dhelix" import megatron "$base --tensor-model-parallel-size 3"
fails 2 'did you mean megatron?' "$dhelix" import megatrn x
printf 'for i in 1 2; do\n torchrun pretrain_gpt.py --num-layers $i\ndone\n' >"$tmp/loop.sh"
fails 1 'loop.sh:1: loops' "$dhelix" import megatron "$tmp/loop.sh"
printf 'echo hello\n' >"$tmp/none.sh"
fails 1 'no command has a flag of Megatron-LM' "$dhelix" import megatron "$tmp/none.sh"
printf 'A="--num-layers 2\n' >"$tmp/quote.sh"
fails 1 'a quote that does not end' "$dhelix" import megatron "$tmp/quote.sh"
# words that double at every line, as text and as an array; more variables than a script has
{ echo A=aaaaaaaaaaaaaaaa && yes 'A=$A$A' | head -n 40; } >"$tmp/double.sh"
fails 1 'double.sh:19: the expanded words take more than 16 MiB' "$dhelix" import megatron "$tmp/double.sh"
{ echo 'A=(a b)' && yes 'A=("${A[@]}" "${A[@]}")' | head -n 40; } >"$tmp/array.sh"
fails 1 'the expanded words take more than 16 MiB' "$dhelix" import megatron "$tmp/array.sh"
seq -f 'A%.0f=' 5000 >"$tmp/many.sh"
fails 1 'many.sh:4097: more than 4096 variables' "$dhelix" import megatron "$tmp/many.sh"

# ---- the shell's words: strings of options, arithmetic, defaults, conditions, `bash -c`
cat >"$tmp/words.sh" <<'EOF'
TP=${TP:-4}; N=$(( (1 + 2) * 4 - 4 ))
OPTIONS=" --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 \
  --tensor-model-parallel-size $TP --micro-batch-size 1 --bf16 "
if [ "$N" -gt 7 ]; then OPTIONS+="--train-iters $N "; else OPTIONS+="--train-iters 1 "; fi
[[ "$TP" == 4 && -z "$NOTHING" ]] && OPTIONS="$OPTIONS --sequence-parallel"
DATE=$(date)
run="python -u pretrain_gpt.py ${OPTIONS} --save /ckpt/$DATE" # once
srun -N 2 --ntasks-per-node=8 bash -c "$run" 2>&1 > log.txt
EOF
import megatron "$tmp/words.sh"
has parallel 'tp: 4'
has train 'steps: 8'
hasnt 'sequence: false'

# ---- torchtitan
fails 1 '--ranks N says it' "$dhelix" import torchtitan $data/llama3_8b.toml
import torchtitan $data/llama3_8b.toml --ranks 64
has system torchtitan+eager
has model 'preset: llama3-8b'
has train 'batch: 64, micro_batch: 1, seq_len: 8192, dtype: bf16, recompute: selective'
has parallel 'zero: 3'
import torchtitan $data/llama3_70b.toml --ranks 256
has train 'batch: 256, micro_batch: 8'
has train 'recompute: full'
import torchtitan $data/llama3_405b.toml --ranks 128
has strategy intra-batch
has system torchtitan
has train 'batch: 32, micro_batch: 2'
has train 'fp8: hybrid'
check 'what is lost stands in the job' grep -q '^# quantize.linear.float8.enable_fsdp_float8_all_gather true (parameters' "$tmp/job.yaml"
import torchtitan $data/deepseek_v3_671b.toml --ranks 256
has optimizer 'min_lr: 2.2e-05'
sed -e 's/pipeline_parallel_degree = 1/pipeline_parallel_degree = 8\npipeline_parallel_schedule = "Interleaved1F1B"/' \
    -e 's/local_batch_size = 2/local_batch_size = 32/' $data/llama3_405b.toml >"$tmp/pp.toml"
import torchtitan "$tmp/pp.toml" --ranks 512
has parallel 'virtual_stages: 2, schedule: interleaved-1f1b, layer_split: "7,8,8,8,8,8,8,8,8,8,8,8,8,8,8,7"'
has parallel 'reshard_after_forward: false'
has train 'batch: 256'
printf '[training]\nlocal_batch = 2\n' >"$tmp/bad.toml"
fails 1 'bad.toml:2: training.local_batch is not a key of torchtitan' "$dhelix" import torchtitan "$tmp/bad.toml"
printf '[training\nx = 1\n' >"$tmp/bad.toml"
fails 1 'bad.toml:1: ' "$dhelix" import torchtitan "$tmp/bad.toml"
printf '[training]\nsteps = 1\nsteps = 2\n' >"$tmp/bad.toml"
fails 1 'bad.toml:3: a key that is there already' "$dhelix" import torchtitan "$tmp/bad.toml"
printf '[model]\nname = "llama3"\nflavor = "9T"\n' >"$tmp/bad.toml"
fails 1 'no preset has the shape of llama3 9T' "$dhelix" import torchtitan "$tmp/bad.toml" --ranks 8

# ---- NeMo
import nemo $data/nemo_llama3_70b.yaml
has ranks 1024
has system nemo+second-flash
has model 'family: llama, n_layers: 80, width: 8192, n_heads: 64, n_kv_heads: 8, ffn_width: 28672, vocab: 128512'
has parallel 'tp: 4, pp: 4, cp: 2, virtual_stages: 5, schedule: interleaved-1f1b, zero: 1, gather: forward, bucket_mb: 125'
check 'what is lost stands in the job' grep -q '^# model.defer_embedding_wgrad_compute' "$tmp/job.yaml"
import nemo $data/nemo_gpt3_175b.yaml --ranks 128 --set train.batch=256
has ranks 128
has model 'family: gpt2, n_layers: 96'
has model 'ffn_width: 49152'
has train 'batch: 256'
has train 'recompute: attention'
import nemo $data/nemo2_llama3_8b.yaml
has ranks 8
has system nemo+half-gradients
has model 'preset: llama3-8b'
has train 'batch: 512, micro_batch: 1, seq_len: 8192, dtype: bf16'
has parallel 'cp: 2, zero: 1, gather: forward'
sed 's/tp_comm_overlap: false/tp_comm_overlap: true/; s/tensor_model_parallel_size: 1/tensor_model_parallel_size: 2/' \
    $data/nemo2_llama3_8b.yaml >"$tmp/rings.yaml"
import nemo "$tmp/rings.yaml"
has strategy intra-batch
sed 's/Llama3Config8B/Nemotron4Config15B/' $data/nemo2_llama3_8b.yaml >"$tmp/other.yaml"
fails 1 '--set model=... gives a preset' "$dhelix" import nemo "$tmp/other.yaml"
import nemo "$tmp/other.yaml" --set model=llama2-7b --set train.seq_len=4096
has model 'preset: llama2-7b'
printf 'model:\n  num_layer: 2\n' >"$tmp/bad.yaml"
fails 1 'model.num_layer is not a key of NeMo' "$dhelix" import nemo "$tmp/bad.yaml"

# ---- there and back: mesh, schedule, recomputation, overlap, model and batch stay
back() { # project, the job
    ok "$dhelix" export "$1" "$2"
    cp "$tmp/out" "$tmp/flags"
    ok "$dhelix" import "$1" "$tmp/flags" --write "$tmp/back.yaml"
    for key in ranks strategy system parallel; do
        same "$(line $key "$tmp/back.yaml")" "$(line $key "$2")" "$key of $1"
    done
    for key in model train; do
        same "$(line $key "$tmp/back.yaml" | sed 's/steps: [0-9]*, \|, seed: [0-9]*\|, init_std: [0-9.e-]*\|, norm_eps: [0-9.e-]*\|, head_dim: [0-9]*//g')" \
            "$(line $key "$2" | sed 's/steps: [0-9]*, \|, seed: [0-9]*\|, init_std: [0-9.e-]*\|, norm_eps: [0-9.e-]*\|, head_dim: [0-9]*//g')" "$key of $1"
    done
}
for name in gpt3_175b llama3_8b_fp8 mixtral_8x7b; do
    import megatron $data/$name.sh
    back megatron "$tmp/job.yaml"
done
for flags in '--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8' \
    '--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7' \
    '--tensor-model-parallel-size 4 --tp-comm-overlap --sequence-parallel --recompute-granularity full' \
    '--use-megatron-fsdp' '--recompute-activations --ddp-bucket-size 50000000' \
    '--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel --moe-token-dispatcher-type alltoall' \
    '--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8 --num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm'; do
    ok "$dhelix" import megatron "$base $flags" --write "$tmp/job.yaml"
    back megatron "$tmp/job.yaml"
done
for name in llama3_8b llama3_70b llama3_405b deepseek_v3_671b; do
    import torchtitan $data/$name.toml --ranks 128
    back torchtitan "$tmp/job.yaml"
done
import torchtitan "$tmp/pp.toml" --ranks 512
back torchtitan "$tmp/job.yaml"

cp "$tmp/job.yaml" "$tmp/titan.yaml"
for name in nemo_gpt3_175b nemo_llama3_70b; do
    import nemo $data/$name.yaml --ranks 64
    back nemo "$tmp/job.yaml"
done
import nemo $data/nemo2_llama3_8b.yaml # a preset: its sizes are written
ok "$dhelix" export nemo "$tmp/job.yaml"
says 'grad_reduce_in_fp32: false'
cp "$tmp/out" "$tmp/flags"
ok "$dhelix" import nemo "$tmp/flags" --write "$tmp/back.yaml"
for key in ranks system parallel; do
    same "$(line $key "$tmp/back.yaml")" "$(line $key "$tmp/job.yaml")" "$key of nemo"
done
for flags in '--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8' \
    '--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7' \
    '--tensor-model-parallel-size 4 --tp-comm-overlap --sequence-parallel --recompute-granularity full' \
    '--recompute-granularity selective --recompute-modules core_attn layernorm mlp' \
    '--num-experts 8 --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall'; do
    ok "$dhelix" import megatron "$base $flags" --write "$tmp/megatron.yaml"
    sed 's/^system: megatron[a-z0-9-]*/system: nemo/' "$tmp/megatron.yaml" >"$tmp/job.yaml"
    back nemo "$tmp/job.yaml"
done
cp "$tmp/titan.yaml" "$tmp/job.yaml"

# What has no flag there is named.
ok "$dhelix" export megatron "$tmp/job.yaml" --set strategy=dhelix --set parallel.schedule=dhelix-w --set parallel.virtual_stages=2 --set parallel.layer_split='*'
says '#   strategy: dhelix (Megatron-LM has none like it)'
says '#   parallel.schedule: dhelix-w'
ok "$dhelix" export torchtitan "$tmp/job.yaml" --set parallel.zero=1 --json
says '"parallel.zero"'
ok "$dhelix" import megatron $data/gpt3_175b.sh --json
says '"not_expressed"'

# Combined micro-batches: a flag with experts, by the strategy alone too; else a comment.
combined=--overlap-moe-expert-parallel-comm
stages='--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8'
experts='--num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall'
ok "$dhelix" import megatron "$base $stages $experts" --write "$tmp/job.yaml"
ok "$dhelix" export megatron "$tmp/job.yaml" --set strategy=combined-1f1b
says "$combined"
check 'it has a flag' sh -c "! grep -q '#   strategy: combined-1f1b' '$tmp/out'"
ok "$dhelix" export megatron "$tmp/job.yaml" --set strategy=combined-1f1b --set parallel.virtual_stages=1 --set parallel.schedule=1f1b
says '#   parallel.virtual_stages: 1 (Megatron-LM combines stages where it is above 1)'
ok "$dhelix" import megatron "$base $stages" --write "$tmp/job.yaml"
for dense in strategy parallel.schedule; do
    ok "$dhelix" export megatron "$tmp/job.yaml" --set $dense=combined-1f1b
    says "#   $dense: combined-1f1b (Megatron-LM combines micro-batches of models with experts alone)"
    check 'a dense model has no such flag' sh -c "! grep -q -- $combined '$tmp/out'"
done

# ---- one table: what a flag is, in lists, help and pages
ok "$dhelix" help use-sharp
says '--use-sharp (megatron): cannot be expressed here'
ok "$dhelix" help tensor_parallel_degree
says 'here parallel.tp'
if command -v python3 >/dev/null; then
    ok python3 scripts/words.py --check "$dhelix"
fi
finish
