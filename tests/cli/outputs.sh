# What commands write: told when it cannot be written, never over what is read, and harmless on a
# terminal.
. tests/cli/lib.sh "$1"
weights=tests/data/weights
text=$PWD/examples/data/tinyshakespeare.txt
escape=$(printf '\033]0;x\007')

# ---- standard output that is full ------------------------------------------------------------------
full() {
    n_checks=$((n_checks + 1))
    timeout 100 "$@" >/dev/full 2>"$tmp/err" </dev/null
    status=$?
    [ $status -eq 1 ] || fail "exit code $status with a full standard output: $*"
    grep -q '^dhelix: error: cannot write to standard output' "$tmp/err" || fail "nothing is said: $*"
}
tiny_job "$tmp/job.yaml"
full "$dhelix" sample $weights/stories260K --tokenizer bytes --tokens 3000
full "$dhelix" sample $weights/stories260K --tokenizer bytes --tokens 3 --json
full "$dhelix" eval $weights/tiny-mistral --tokenizer bytes --data "$text" --seq 32 --batches 1
full "$dhelix" list
full "$dhelix" --help
full "$dhelix" --version
full "$dhelix" help train
full "$dhelix" completion bash
full "$dhelix" check "$tmp/job.yaml"
full "$dhelix" tokenize --tokenizer bytes --stdout "$text"
full "$dhelix" convert $weights/tiny-mistral "$tmp/full"

# ---- outputs that are inputs -----------------------------------------------------------------------
head -c 2000 "$text" >"$tmp/a.txt"
ln "$tmp/a.txt" "$tmp/hard.txt"
ln -s a.txt "$tmp/soft.txt"
mkdir "$tmp/sub"
kept() { # file, command...
    local file=$1 before
    before=$(cksum <"$file")
    shift
    fails 1 'would overwrite it' "$@"
    same "$(cksum <"$file")" "$before" "$file"
}
for out in a.txt hard.txt soft.txt sub/../a.txt; do
    kept "$tmp/a.txt" "$dhelix" tokenize "$tmp/a.txt" --tokenizer bytes --output "$tmp/$out"
    kept "$tmp/a.txt" "$dhelix" tokenize "$tmp/$out" "$text" --tokenizer bytes --output "$tmp/a.txt"
done
ok "$dhelix" tokenize "$tmp/a.txt" --tokenizer bytes --output "$tmp/a.bin"
kept "$tmp/a.bin" "$dhelix" tokenize "$tmp/a.bin" --tokenizer bytes --output "$tmp/a.bin"
kept "$tmp/job.yaml" "$dhelix" tune "$tmp/job.yaml" --devices 2 --write "$tmp/job.yaml"
kept "$tmp/job.yaml" "$dhelix" simulate "$tmp/job.yaml" --trace "$tmp/job.yaml"
kept "$tmp/job.yaml" "$dhelix" simulate "$tmp/job.yaml" --out "$tmp"
kept "$tmp/job.yaml" "$dhelix" profile "$tmp/job.yaml" --out "$tmp/job.yaml"
cp "$text" "$tmp/data.txt"
for how in 'tune --devices 2 --write' 'simulate --trace' 'profile --out'; do
    set -- $how
    command=$1
    shift
    kept "$tmp/data.txt" "$dhelix" "$command" "$tmp/job.yaml" --set data.train="[$text, $tmp/data.txt]" "$@" "$tmp/data.txt"
done
echo '{}' >"$tmp/trace.json"
kept "$tmp/trace.json" "$dhelix" profile "$tmp/job.yaml" --from-trace "$tmp/trace.json" --out "$tmp/trace.json"
kept "$tmp/trace.json" "$dhelix" calibrate "$tmp/trace.json" --out "$tmp/trace.json"
cp examples/programs/mlp_tp.graph examples/programs/mlp_tp.safetensors "$tmp"
kept "$tmp/mlp_tp.graph" "$dhelix" run-graph "$tmp/mlp_tp.graph" --ranks 2 --out "$tmp/mlp_tp.graph"
kept "$tmp/mlp_tp.safetensors" "$dhelix" run-graph "$tmp/mlp_tp.graph" --ranks 2 --inputs "$tmp/mlp_tp.safetensors" --out "$tmp/mlp_tp.safetensors"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=2 --set out="$tmp/run"
for file in metrics.jsonl job.yaml summary.json; do
    kept "$tmp/run/$file" "$dhelix" report "$tmp/run" --out "$tmp/run/$file"
    kept "$tmp/run/$file" "$dhelix" report "$tmp/run" --traces "$tmp/run/$file"
done
kept "$tmp/run/checkpoints/step-000002/state.json" "$dhelix" report "$tmp/run" -o "$tmp/run/checkpoints/step-000002/state.json"
kept "$tmp/run/job.yaml" "$dhelix" simulate "$tmp/run/job.yaml" --out "$tmp/run"
for n in 1 2; do ok "$dhelix" report "$tmp/run"; done
ok "$dhelix" report "$tmp/run" --out "$tmp/run/report.html"
cp -r $weights/tiny-mistral "$tmp/model"
cp -r $weights/tiny-qwen2 "$tmp/base"
chmod -R u+w "$tmp/model" "$tmp/base"
ln -s model "$tmp/model.link"
kept "$tmp/model/model.safetensors" "$dhelix" convert "$tmp/model" "$tmp/model" --replace --dtype bf16
kept "$tmp/model/model.safetensors" "$dhelix" convert "$tmp/model/" "$tmp/model.link" --replace
kept "$tmp/model/model.safetensors" "$dhelix" convert "$tmp/model/model.safetensors" "$tmp/model" --replace
kept "$tmp/base/model.safetensors" "$dhelix" convert $weights/lora-qwen2 "$tmp/base" --base "$tmp/base" --replace

# ---- control characters ------------------------------------------------------------------------------
harmless() {
    n_checks=$((n_checks + 1))
    ! LC_ALL=C grep -q "$(printf '[\001-\010\013-\037\177]')" "$tmp/out" "$tmp/err" || fail "control characters: $*"
}
python3 tests/cli/variants.py $weights/tiny-mistral "$tmp/named" add "$escape.weight"
ok "$dhelix" eval "$tmp/named" --tokenizer bytes --data "$text" --seq 32 --batches 1
harmless 'a tensor name in a warning'
check 'it is named' grep -qF '\u001b]0;x\u0007.weight' "$tmp/err"
python3 tests/cli/variants.py $weights/tiny-mistral "$tmp/typed" config config.json "model_type=\"$(printf '\\u001b')[2J\""
fails 1 '\u001b[2J' "$dhelix" eval "$tmp/typed" --tokenizer bytes --data "$text"
harmless 'a setting of config.json'
python3 tests/cli/variants.py $weights/lora-qwen2 "$tmp/lora" config adapter_config.json "peft_type=\"$(printf '\\u009b\\u202e')\""
fails 1 '\u009b\u202e' "$dhelix" eval "$tmp/lora" --tokenizer bytes --data "$text"
fails 1 '\u001b' "$dhelix" eval "$tmp/no$escape" --tokenizer bytes --data "$text"
fails 2 '\u001b' "$dhelix" "$escape"
printf 'model: {"%b": 1}\n' '\\e[2J' >"$tmp/bad.yaml"
fails 1 '\u001b' "$dhelix" check "$tmp/bad.yaml"
harmless 'a key of a job'
cp "$tmp/a.txt" "$tmp/b$escape.txt"
ok "$dhelix" tokenize "$tmp/b$escape.txt" --tokenizer bytes --output "$tmp/c$escape.bin"
harmless 'a file name'
ok "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=1 --set out="$tmp/breaks" \
    --set "data.text_field=a$(printf '\302\205b\342\200\250c\342\200\251\033')"
check 'the printed job as YAML reads it' grep -qF 'a\u0085b\u2028c\u2029\x1b' "$tmp/breaks/job.yaml"

# ---- numbers that are none ---------------------------------------------------------------------------
for value in nan -nan inf; do
    fails 2 '--top-p' "$dhelix" sample $weights/tiny-mistral --tokenizer bytes --top-p $value
    fails 2 '--temperature' "$dhelix" sample $weights/tiny-mistral --tokenizer bytes --temperature $value
done
for value in -1 1 nan inf 1e308 -0.5 -1e-308; do
    sed "s/dropout=0.1/dropout=$value/" examples/programs/mlp_tp.graph >"$tmp/drop.graph"
    fails 1 'dropout' "$dhelix" run-graph "$tmp/drop.graph" --ranks 2 --inputs examples/programs/mlp_tp.safetensors
done

# ---- steps without end ---------------------------------------------------------------------------------
timeout 100 "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=10000000000 --set out="$tmp/long" \
    >"$tmp/out" 2>"$tmp/err" </dev/null &
for _ in $(seq 900); do
    [ -s "$tmp/long/metrics.jsonl" ] && break
    sleep 0.1
done
kill -INT $!
wait $!
same $? 130 'stopped, not out of memory'
check 'steps are done' test -s "$tmp/long/metrics.jsonl"
finish
