# A run from its first step to its last, sampled, evaluated, continued, begun anew.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"
text=examples/data/tinyshakespeare.txt

ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run"
says 'planned = used at most'
says "$tmp/run/checkpoints/step-000040"
for file in job.yaml metrics.jsonl summary.json tokenizer.chars.json; do
    check "$file is there" test -s "$tmp/run/$file"
done
same "$(ls "$tmp/run/checkpoints" | tr '\n' ' ')" 'step-000030 step-000040 ' 'checkpoints kept'
same "$(grep -c '"loss"' "$tmp/run/metrics.jsonl")" 40 'losses reported'
same "$(grep -c '"val_loss"' "$tmp/run/metrics.jsonl")" 4 'validation losses reported'
first=$(grep -m1 -oE '"loss":[^,]*' "$tmp/run/metrics.jsonl" | cut -d: -f2)
last=$(grep -oE '"loss":[^,]*' "$tmp/run/metrics.jsonl" | tail -1 | cut -d: -f2)
close "$first" 4.17 0.15 # ln 65: new weights know nothing
check "it learns: $first -> $last" awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.3) }'

# The run folder needs nothing else.
ok "$dhelix" sample "$tmp/run" --prompt 'ROMEO:' --tokens 100
check 'the text begins with the prompt' grep -q '^ROMEO:' "$tmp/out"
check 'it goes on past a full context' test "$(wc -c <"$tmp/out")" -eq 107
ok "$dhelix" sample "$tmp/run" --prompt 'ROMEO:' --tokens 100 --full-context stop
check 'or ends there' test "$(wc -c <"$tmp/out")" -eq 34
check 'and says so' grep -q 'context of 32 tokens is full' "$tmp/err"
ok "$dhelix" sample "$tmp/run/checkpoints/step-000030" --tokens 10
ok "$dhelix" eval "$tmp/run" --data $text --batches 10 --json
loss=$(json loss)
ok "$dhelix" convert "$tmp/run" "$tmp/hf"
ok "$dhelix" eval "$tmp/hf" --data $text --batches 10 --json
same "$(json loss)" "$loss" 'loss of the converted run'

# A complete run is left as it is; more steps continue it.
cp "$tmp/run/metrics.jsonl" "$tmp/before"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --quiet
check 'nothing is added to a complete run' cmp "$tmp/before" "$tmp/run/metrics.jsonl"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --set train.steps=44 --json --quiet
same "$(json resumed_at)" 40
same "$(json steps)" 44

# What must not change is refused; --fresh keeps the old folder.
fails 1 'was written with model.width 32, this job has 64' "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --set model.width=64
fails 1 'another tokenizer' \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --set data.tokenizer=bytes --set model.vocab=65
check 'a refused run keeps its tokenizer' test -s "$tmp/run/tokenizer.chars.json"
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/run" --fresh --quiet --set train.steps=2
check 'the old run is kept' test -d "$tmp/run.1/checkpoints/step-000044"
check 'the new one is new' test "$(ls "$tmp/run/checkpoints")" = step-000002

# Equal seeds, equal curves; another seed, another curve; the number of threads is no matter
# of the seed but of summation, and is fixed here.
for name in a b; do
    ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/$name" --quiet --set train.steps=12
done
same "$(curve "$tmp/a")" "$(curve "$tmp/b")" 'curves of equal seeds'
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/c" --quiet --set train.steps=12 --set train.seed=7
check 'another seed is another run' test "$(curve "$tmp/a")" != "$(curve "$tmp/c")"

# Where the environment keeps teams smaller than a job asks for, they compute all the same: products
# were once planned for threads that did not come.
threads() { # run folder, threads, words before the command...
    local out=$1 n=$2
    shift 2
    ok "$@" "$dhelix" train "$tmp/job.yaml" --set out="$tmp/$out" --quiet --set train.steps=4 --set train.threads="$n"
}
threads one 1 env
threads two 2 env
threads limited 2 env OMP_THREAD_LIMIT=1
check 'a limit is said' grep -q 'OMP_THREAD_LIMIT is 1: a rank computes with 1 threads, not 2' "$tmp/err"
same "$(curve "$tmp/limited")" "$(curve "$tmp/one")" 'curves of a limited team and of one thread'
threads dynamic 2 env OMP_DYNAMIC=true
same "$(curve "$tmp/dynamic")" "$(curve "$tmp/two")" 'curves of a team that was to be small where cores are busy'

# Looking at the validation loss changes nothing, least of all where its activations are
# larger than gradients and moments together.
small=(--quiet --set train.batch=64 --set train.micro_batch=64)
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/looks" "${small[@]}" --set eval.every=1
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/blind" "${small[@]}" --set eval.every=0
same "$(curve "$tmp/looks" | grep '"loss"')" "$(curve "$tmp/blind" | grep '"loss"')" \
    'losses with and without validation'

# Micro-batches change nothing but rounding.
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/m1" --quiet --set train.steps=8 --set train.micro_batch=1
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/m4" --quiet --set train.steps=8 --set train.micro_batch=4
close "$(grep -oE '"loss":[^,]*' "$tmp/m1/metrics.jsonl" | tail -1 | cut -d: -f2)" \
    "$(grep -oE '"loss":[^,]*' "$tmp/m4/metrics.jsonl" | tail -1 | cut -d: -f2)" 0.0001

# So do ranks, here as threads.
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/r2" --quiet --set train.steps=8 --ranks 2
close "$(grep -oE '"loss":[^,]*' "$tmp/r2/metrics.jsonl" | tail -1 | cut -d: -f2)" \
    "$(grep -oE '"loss":[^,]*' "$tmp/m4/metrics.jsonl" | tail -1 | cut -d: -f2)" 0.0001

# bf16, dropout, tokens from files, other tokenizers, a Llama.
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/bf16" --quiet --set train.dtype=bf16 --set train.steps=10
close "$(grep -oE '"loss":[^,]*' "$tmp/bf16/metrics.jsonl" | tail -1 | cut -d: -f2)" \
    "$(grep -oE '"loss":[^,]*' "$tmp/a/metrics.jsonl" | sed -n 10p | cut -d: -f2)" 0.05
ok "$dhelix" sample "$tmp/bf16" --tokens 5 --dtype bf16
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/drop" --quiet --set model.dropout=0.2 --set train.steps=5
ok "$dhelix" train "$tmp/job.yaml" --set out="$tmp/gpt2" --quiet --set train.steps=2 \
    --set data.tokenizer=tests/data/tokenizers/gpt2
check 'tokenizer files are copied' test -s "$tmp/gpt2/tokenizer/vocab.bpe"
ok "$dhelix" sample "$tmp/gpt2" --tokens 5
cat >"$tmp/llama.yaml" <<EOF
model: {family: llama, n_layers: 2, n_heads: 4, n_kv_heads: 2, width: 64, ffn_width: 96, max_seq: 64, vocab: 512}
data: {train: $PWD/tests/data/corpora/tinystories/tok512.u16}
train: {steps: 5, batch: 2, seq_len: 64, init_from: ""}
eval: {every: 0}
EOF
ok "$dhelix" train "$tmp/llama.yaml" --set out="$tmp/llama" --quiet
ok "$dhelix" eval "$tmp/llama" --data tests/data/corpora/tinystories/tok512.u16 --batches 2

# Fine-tuning starts where the weights are.
cat >"$tmp/tune.yaml" <<EOF
model: $PWD/tests/data/weights/stories260K/config.json
data: {train: $PWD/tests/data/corpora/tinystories/tok512.u16}
train: {steps: 2, batch: 2, seq_len: 256, init_from: $PWD/tests/data/weights/stories260K/stories260K.bin}
eval: {every: 0}
EOF
ok "$dhelix" train "$tmp/tune.yaml" --set out="$tmp/tune" --quiet
close "$(grep -m1 -oE '"loss":[^,]*' "$tmp/tune/metrics.jsonl" | cut -d: -f2)" 1.35 0.35

# What a rank's GEMMs could do is given here, and measured where nothing is given.
peak() { grep -oE '"gemm_peak_flops_per_s": *[0-9.e+]*' "$1/summary.json" | sed 's/.*: *//'; }
close "$(peak "$tmp/tune")" 1e11 1
ok env -u DHELIX_GEMM_PEAK "$dhelix" train "$tmp/tune.yaml" --set out="$tmp/measured" --quiet
check 'a peak is measured' awk -v peak="$(peak "$tmp/measured")" 'BEGIN { exit !(peak > 1e8 && peak != 1e11) }'

# Mistakes.
fails 1 'data.train is not set' "$dhelix" train "$tmp/job.yaml" --set 'data.train=[]' --set data.tokenizer=bytes
fails 1 'GPT-2' "$dhelix" train "$tmp/job.yaml" --set data.tokenizer=gpt2
fails 1 'model.vocab is 30' "$dhelix" train "$tmp/job.yaml" --set model.vocab=30 --set out="$tmp/x"
fails 1 'validation' "$dhelix" train "$tmp/job.yaml" --set data.val_fraction=0.00002 --set out="$tmp/x"
fails 1 'multiple of parallel.dp = 3' "$dhelix" train "$tmp/job.yaml" --ranks 3 --set out="$tmp/x"
fails 1 'srun --mpi=pmix' env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u PMIX_RANK SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 \
    "$dhelix" train "$tmp/job.yaml" --set out="$tmp/x"
check 'a job that cannot run leaves no folder' test ! -e "$tmp/x"
# Links are paced as the job says, each by its own setting: 20 calls of at least 5 ms.
for link in local cross; do
    nodes=$([ $link = local ] && echo 1 || echo 2)
    ok "$dhelix" train examples/tp2.yaml --quiet --set out="$tmp/paced-$link" --set train.steps=2 --set eval.every=0 \
        --set strategy=sequential --set topology.nodes="$nodes" --set "links.$link.latency_us=5000"
    check "a paced $link link is waited for" awk -v key="\"${link}_ms\":" \
        '$1 == key { ms = $2 + 0 } END { exit !(ms >= 100) }' "$tmp/paced-$link/summary.json"
    # What a step sends on it is counted, and what was simulated.
    ok "$dhelix" simulate examples/tp2.yaml --json --set strategy=sequential --set topology.nodes="$nodes"
    want=$(grep -oE "\"${link}_bytes\": *[0-9.e+]+" "$tmp/out" | awk '{ sum += $NF } END { printf "%.0f", sum }')
    check "simulated $link bytes are some" test "$want" -gt 1000000
    same "$(grep -oE "\"${link}_bytes\":[0-9]+" "$tmp/paced-$link/metrics.jsonl" | tail -1 | cut -d: -f2)" "$want" \
        "$link bytes of a step"
done
finish
