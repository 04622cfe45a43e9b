# Clusters for planning: a small job is simulated and tuned on each; link domains of 72 devices.
. tests/cli/lib.sh "$1"

cat >"$tmp/job.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 4, vocab: 32000}
train: {batch: 32, micro_batch: 1, seq_len: 4096, dtype: bf16}
parallel: {dp: 2, tp: 8}
EOF
one="--strategies sequential --schedules 1f1b --verify 1 --quiet --json"

ok "$dhelix" list clusters
for cluster in b200 b300 gb200-nvl72 gb300-nvl72 mi300x mi355x; do
    check "$cluster is listed" grep -q "^$cluster " "$tmp/out"
done
step_on() { # cluster: step_ms of the job
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster "$1" --json
    json step_ms
}
for cluster in b200 b300 gb200-nvl72 gb300-nvl72 mi300x mi355x; do
    own=$(step_on $cluster)
    check "$cluster has a step time" awk "BEGIN { exit !(${own:-0} > 0) }"
    ok "$dhelix" tune "$tmp/job.yaml" --cluster $cluster --devices 16 $one
    best=$(json simulated_ms)
    check "the best on $cluster is no slower" awk "BEGIN { exit !(${best:-1e9} <= ${own:-0} * 1.001) }"
done
# A job of H100 is faster on what came later.
h100=$(step_on h100)
for cluster in b200 gb200-nvl72 mi355x; do
    faster=$(step_on $cluster)
    check "$cluster is faster than h100" awk "BEGIN { exit !($faster < $h100) }"
done

# All of a domain: tensor parallelism of 8, of 72, and 72 ranks of experts. Two domains whole, and
# two with 64 ranks each.
cat >"$tmp/wide.yaml" <<EOF
model: {preset: llama3-8b, n_layers: 2, width: 9216, n_heads: 72, n_kv_heads: 72, ffn_width: 18432, vocab: 73728}
train: {batch: 144, micro_batch: 1, seq_len: 4608, dtype: bf16}
parallel: {dp: 2, tp: 72}
EOF
cat >"$tmp/experts.yaml" <<EOF
model: {preset: mixtral-8x7b, n_layers: 2, n_experts: 72, ffn_width: 2048}
train: {batch: 144, micro_batch: 1, seq_len: 4096, dtype: bf16}
parallel: {dp: 72, ep: 72}
EOF
for sets in "tp=8 dp=9" "tp=72 dp=1" "tp=8 dp=18" "tp=72 dp=2" "tp=8 dp=16"; do
    for cluster in gb200-nvl72 gb300-nvl72; do
        ok "$dhelix" simulate "$tmp/wide.yaml" --cluster $cluster \
            --set parallel.${sets% *} --set parallel.${sets#* } --set train.batch=144
    done
done
ok "$dhelix" simulate "$tmp/experts.yaml" --cluster gb200-nvl72 --json
inside=$(json step_ms)
ok "$dhelix" simulate "$tmp/experts.yaml" --cluster b200 --json
across=$(json step_ms)
check 'experts of one domain are faster than over nine nodes' awk "BEGIN { exit !($inside < $across) }"
ok "$dhelix" simulate "$tmp/experts.yaml" --cluster gb200-nvl72 --set parallel.dp=144 --set train.batch=288
ok "$dhelix" tune "$tmp/wide.yaml" --cluster gb200-nvl72 --devices 144 $one \
    --set parallel.tp=72 --set parallel.pp=1 --set parallel.cp=1
ok "$dhelix" tune "$tmp/experts.yaml" --cluster gb200-nvl72 --devices 72 $one \
    --set parallel.ep=72 --set parallel.pp=1 --set parallel.cp=1
fails 1 '146 ranks do not lie evenly on nodes of 72 devices (cluster gb200-nvl72' \
    "$dhelix" simulate "$tmp/job.yaml" --cluster gb200-nvl72 --set parallel.dp=73 \
    --set parallel.tp=2 --set train.batch=73

# Models to plan with, on two domains; what no operator computes is not trained.
for model in qwen3-235b-a22b qwen3-30b-a3b deepseek-v3 kimi-k2 gpt-oss-120b llama4-scout phi-3.5-moe; do
    ok "$dhelix" simulate "$tmp/job.yaml" --cluster gb200-nvl72 --set model=$model --set parallel.tp=1 \
        --set parallel.dp=16 --set parallel.ep=16 --set parallel.pp=4 --set 'parallel.layer_split=*'
done
for model in gpt-oss-120b llama4-scout phi-3.5-moe; do
    ok "$dhelix" plan "$tmp/job.yaml" --set model=$model
    ok "$dhelix" tune "$tmp/job.yaml" --cluster gb300-nvl72 --devices 64 $one --set model=$model \
        --set parallel.ep=8 --set parallel.pp=1 --set parallel.cp=1
    # Phi-3.5-MoE is trained too.
    [ $model = phi-3.5-moe ] ||
        fails 1 'are only planned and simulated' "$dhelix" train "$tmp/job.yaml" --set model=$model \
            --set data.train=README.md --set parallel.dp=1 --set parallel.tp=1
done
finish
