# dhelix.torch and the programs of examples/torch, on two ranks of gloo. Skipped without PyTorch in
# python3, or in the Python that DHELIX_TORCH_PYTHON names. The wheel is the build folder's.
source tests/python/lib.sh

python=${DHELIX_TORCH_PYTHON:-python3}
why=$("$python" -c 'import torch, torch.distributed.pipelining' 2>&1) || {
    echo "skipped: $python has no PyTorch (${why##*$'\n'}); DHELIX_TORCH_PYTHON names one that has"
    exit 77
}
[ -f "$build/python/_dhelix.abi3.so" ] || fail "the module was not built: python3-dev is missing"
wheel=$(DHELIX_BUILD_DIR=$build scripts/wheel.sh "$tmp/dist")
python3 -m zipfile -e "$wheel" "$tmp/package"
export PYTHONPATH=$tmp/package OMP_NUM_THREADS=1

"$python" tests/python/test_torch.py || fail "tests/python/test_torch.py"

# Arguments of torchrun, on two ranks.
ranks() {
    "$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$@" >"$tmp/printed" 2>&1
}
says() {
    grep -Eq "$1" "$tmp/printed" || fail "no line $1 in: $(cat "$tmp/printed")"
}
for schedule in zb-h1 dualpipev; do
    "$DHELIX" check examples/pp2.yaml --set parallel.schedule=$schedule --print csv >"$tmp/$schedule.csv"
    ranks examples/torch/pipelining.py "$tmp/$schedule.csv" || fail "$schedule: $(cat "$tmp/printed")"
    says 'losses and gradients differ from the whole model.s by at most [0-9.]+e[+-][0-9]+ of the largest value'
done
"$DHELIX" check examples/pp2.yaml --set parallel.schedule=bidirectional --print csv >"$tmp/copies.csv"
! ranks examples/torch/pipelining.py "$tmp/copies.csv" || fail "two copies of the model ran"
says 'a stage is on two ranks'

cat >"$tmp/job.yaml" <<END
model: {family: llama, n_layers: 8, width: 32, n_heads: 4, n_kv_heads: 2, ffn_width: 64, vocab: 64, max_seq: 16}
train: {batch: 4, micro_batch: 1, seq_len: 16}
parallel: {dp: 1, tp: 2}
strategy: dhelix
END
"$DHELIX" plan "$tmp/job.yaml" --cluster a40 --policy round-robin --write "$tmp/my.order" >/dev/null
for settings in "--policy auto --set train.dtype=bf16" "--order $tmp/my.order --operators --trace $tmp/trace.json"; do
    # shellcheck disable=SC2086 # several words
    ranks examples/torch/measure.py "$tmp/job.yaml" --cluster a40 --layers 2 --steps 1 $settings ||
        fail "measure.py $settings: $(cat "$tmp/printed")"
    says '^sequential +[0-9.]+ +[0-9.]+$'
    says '^speed-up +[0-9.]+ +[0-9.]+$'
    says '^loss 4\.[0-9]+ and 4\.[0-9]+; gradients differ by at most'
done
[ "$(grep -Ec '^[FB] [a-z_]+ [a-z0-9.]+( +[0-9]+\.[0-9]){3}$' "$tmp/printed")" -eq 36 ] || fail "no times of operators: $(cat "$tmp/printed")"
python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))["traceEvents"]) == 4 * 2 * 36' "$tmp/trace.json"
! ranks examples/torch/measure.py "$tmp/job.yaml" --cluster a40 --set parallel.tp=4 --set ranks=auto || fail "two ranks ran a job for four"
says 'the job has parallel.tp=4: torchrun --nproc-per-node 4'

# The page's program, as a reader would type it.
sed -n '/^```python$/,/^```$/p' docs/howto/measure-in-pytorch.md | grep -v '^```' >"$tmp/page.py"
(cd "$tmp" && ln -s job.yaml slice.yaml && ranks page.py) || fail "the page's program: $(cat "$tmp/printed")"
says '^[0-9.]+ us a pair of layers, loss [0-9.]+$'
