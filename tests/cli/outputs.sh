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
# Of folders and patterns every file is read; and what is written beside the tokens is written, too.
mkdir "$tmp/texts"
cp "$tmp/a.txt" "$tmp/texts/b.txt"
cp "$tmp/a.txt" "$tmp/c.bin.chars.json"
kept "$tmp/texts/b.txt" "$dhelix" tokenize "$tmp/texts" --tokenizer bytes --output "$tmp/texts/b.txt"
kept "$tmp/texts/b.txt" "$dhelix" tokenize "$tmp/texts/*.txt" --tokenizer bytes --output "$tmp/texts/b.txt"
kept "$tmp/c.bin.chars.json" "$dhelix" tokenize "$tmp/c.bin.chars.json" --tokenizer chars --output "$tmp/c.bin"
check 'nothing is written then' test ! -e "$tmp/c.bin"
cp "$tmp/a.txt" "$tmp/texts/tokenizer.json"
kept "$tmp/texts/tokenizer.json" "$dhelix" tokenize "$tmp/texts/tokenizer.json" --train-bpe 260 --output "$tmp/texts"
rm "$tmp/texts/tokenizer.json"
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
kept "$tmp/texts/b.txt" "$dhelix" simulate "$tmp/job.yaml" --set data.train="$tmp/texts" --trace "$tmp/texts/b.txt"
ok "$dhelix" profile "$tmp/job.yaml" --samples 3 --out "$tmp/times.json"
kept "$tmp/times.json" "$dhelix" simulate "$tmp/job.yaml" --set profile="$tmp/times.json" --trace "$tmp/times.json"
ok "$dhelix" profile "$tmp/job.yaml" --samples 3 --set profile="$tmp/times.json" --out "$tmp/times.json"
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
for file in saved.json job.yaml; do kept "$tmp/run/$file" "$dhelix" report "$tmp/run" --out "$tmp/run/$file"; done
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

kept "$tmp/run/tokenizer.chars.json" "$dhelix" convert "$tmp/run" "$tmp/run/tokenizer.chars.json" --replace

# ---- a run folder that is an input -----------------------------------------------------------------
run_files() { find "$1" | sort; }
refuses_out() { # setting that the message names, run folder, command's further words...
    local setting=$1 dir=$2 before
    before=$(run_files "$dir"; cksum "$tmp"/*.txt "$tmp"/*.yaml)
    shift 2
    fails 1 "$setting" "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=2 --set out="$dir" \
        --set data.cache="$tmp/no-cache" "$@"
    check 'another folder is asked for' grep -q 'another .out.\|another name' "$tmp/err"
    same "$(run_files "$dir"; cksum "$tmp"/*.txt "$tmp"/*.yaml)" "$before" "what lies in $dir"
    check 'nothing is written elsewhere' test ! -e "$tmp/no-cache"
}
gpt2=$weights/tiny-random-gpt2
cp -r $gpt2 "$tmp/gpt2"
cp -r $weights/lora-gpt2 "$tmp/adapters"
chmod -R u+w "$tmp/gpt2" "$tmp/adapters"
cp -r tests/data/tokenizers/kat "$tmp/tokenizer"
cp examples/pp2_zb-h1.csv "$tmp/order.csv"
from=(--set model="$tmp/gpt2" --set train.init_from="$tmp/gpt2" --set data.tokenizer=bytes)
for dir in texts texts/ ./texts/../texts; do refuses_out data.train "$tmp/$dir" --set data.train="$tmp/texts"; done
ln -s texts "$tmp/texts.link"
refuses_out data.train "$tmp/texts.link" --set data.train="$tmp/texts"
refuses_out data.val "$tmp/texts" --set data.val="$tmp/texts"
refuses_out data.train "$tmp/a.txt" --set data.train="$tmp/a.txt"
refuses_out data.train "$tmp/hard.txt" --set data.train="$tmp/a.txt"
refuses_out data.tokenizer "$tmp/tokenizer" --set data.tokenizer="$tmp/tokenizer"
refuses_out model "$tmp/gpt2" "${from[@]}" --set train.init_from=
refuses_out train.init_from "$tmp/gpt2" "${from[@]}" --set model=$gpt2
refuses_out lora.init_from "$tmp/adapters" "${from[@]}" --set lora.init_from="$tmp/adapters" --set lora.rank=2
refuses_out parallel.schedule "$tmp/order.csv" --set parallel.schedule="$tmp/order.csv"
refuses_out profile "$tmp/times.json" --set profile="$tmp/times.json"
refuses_out job.yaml "$tmp/job.yaml"
# The handwritten job would be replaced by the run's; the run's own starts it again.
fails 1 'would overwrite it' "$dhelix" train "$tmp/job.yaml" --set out="$tmp"
fails 1 'would overwrite it' "$dhelix" launch "$tmp/job.yaml" --ranks 2 --set out="$tmp"
check 'and nothing is written' test ! -e "$tmp/checkpoints" -a ! -e "$tmp/metrics.jsonl"
ok "$dhelix" train "$tmp/run/job.yaml" --quiet --set train.steps=3
ok "$dhelix" train "$tmp/run/job.yaml" --quiet --set train.steps=2 --fresh
# What lies below the folder: a run's file, a checkpoint that it deletes; all of it with --fresh.
cp "$text" "$tmp/run/metrics.jsonl.txt"
refuses_out data.train "$tmp/run" --set data.train="$tmp/run/metrics.jsonl.txt"
refuses_out data.train "$tmp/run" --set data.train="$tmp/run/*.txt"
rm "$tmp/run/metrics.jsonl.txt"
refuses_out train.init_from "$tmp/run" --set train.init_from="$tmp/run/checkpoints/step-000002"
refuses_out train.init_from "$tmp/run" --set train.init_from="$tmp/run/checkpoints/step-000002/model.safetensors"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=3 --set out="$tmp/run" --set data.tokenizer="$tmp/run/tokenizer.chars.json"
refuses_out data.tokenizer "$tmp/run" --fresh --set data.tokenizer="$tmp/run/tokenizer.chars.json"
cp "$text" "$tmp/run/own.txt"
refuses_out data.train "$tmp/run" --fresh --set data.train="$tmp/run/own.txt"
refuses_out data.train "$tmp/texts" --fresh --set data.train="$tmp/texts/b.txt"
check 'no folder was put aside' test ! -e "$tmp/texts.1"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=2 --set out="$tmp/beside" --set data.train="$tmp/run/own.txt"

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
