# Every mesh of 2 and 4 ranks, and some of 8, as processes against threads: the same bits, for
# each family of models. That threads come to one rank's losses is test_every_mesh's.
#   bash tests/train/meshes_mpi.sh DHELIX MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
mpirun=("${@:2}")
. tests/cli/lib.sh "$1"
export OMP_NUM_THREADS=1

sizes='n_layers: 4, width: 32, n_heads: 4, vocab: 65, max_seq: 32'
groups='n_kv_heads: 4, head_dim: 8, ffn_width: 40, tied_head: false'
families=("family: gpt2, $sizes" "family: llama, $sizes, $groups"
    "family: mixtral, $sizes, $groups, n_experts: 4, top_k: 2, router_aux_coef: 0")
meshes=('2 dp=2' '2 dp=2 zero=1' '2 tp=2' '2 cp=2' '2 pp=2' '2 pp=2 schedule=zb-v'
    '4 dp=4 zero=1' '4 tp=4' '4 cp=4' '4 pp=4' '4 dp=2 tp=2' '4 dp=2 cp=2 zero=1'
    '4 dp=2 pp=2' '4 tp=2 cp=2' '4 tp=2 pp=2' '4 cp=2 pp=2'
    '8 dp=2 tp=2 pp=2 zero=1' '8 dp=2 tp=2 cp=2' '8 tp=2 cp=2 pp=2')

same_runs() { # two run folders
    same "$(curve "$1" | cksum)" "$(curve "$2" | cksum)" "losses of $mesh, $family"
    for file in model optimizer; do
        check "$file of $mesh, $family" cmp "$1/checkpoints/step-000020/$file.safetensors" \
            "$2/checkpoints/step-000020/$file.safetensors"
    done
}

for family in "${families[@]}"; do
    cat >"$tmp/job.yaml" <<YAML
model: {$family}
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}
train: {steps: 20, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}
optimizer: {lr: 3.0e-3, warmup_steps: 4}
eval: {every: 10, batches: 2}
YAML
    for mesh in "${meshes[@]}"; do
        read -r ranks settings <<<"$mesh"
        set --
        for word in $settings; do set -- "$@" --set "parallel.$word"; done
        ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/threads" "$@"
        ok "${mpirun[@]}" -n "$ranks" "$dhelix" train "$tmp/job.yaml" --quiet \
            --set out="$tmp/processes" "$@"
        same_runs "$tmp/threads" "$tmp/processes"
        rm -rf "$tmp/threads" "$tmp/processes"
    done
done
finish
