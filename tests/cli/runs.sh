# A run folder: held by one run, never begun anew by itself, with metrics that are data, and with
# what a run lacks noticed before its first step.
. tests/cli/lib.sh "$1"
chmod 755 "$tmp"
tiny_job "$tmp/job.yaml"
train=("$dhelix" train "$tmp/job.yaml" --quiet)

n_steps() { # run folder
    if [ -e "$1/metrics.jsonl" ]; then grep -c '"loss"' "$1/metrics.jsonl"; else echo 0; fi
}

wait_for_steps() { # run folder, steps, process that makes them
    while kill -0 "$3" 2>/dev/null && [ "$(n_steps "$1")" -lt "$2" ]; do sleep 0.005; done
}

# A run that takes as long as it is let.
start_long() { # run folder, further words of the command
    local run=$1
    shift
    # Job control off makes background jobs ignore SIGINT; env restores the default.
    env --default-signal=INT,HUP,USR1 "${train[@]}" --set out="$run" --set train.steps=1000000 \
        --set eval.every=0 --set checkpoint.every=0 "$@" >"$tmp/long.out" 2>"$tmp/long.err" &
    pid=$!
    wait_for_steps "$run" 3 $pid
}

ok "${train[@]}" --set out="$tmp/whole"

# ---- what cannot be read is no reason to start over ----------------------------------------
unchanged() { # run folder, as it was kept in
    check "nothing in $1 changed" diff -r --no-dereference "$1" "$2"
}

refused() { # run folder, part of the message
    cp -a "$1" "$tmp/as-it-was"
    fails 1 "$2" "${train[@]}" --set out="$1"
    check 'the way to begin anew is named' grep -q -- '--fresh' "$tmp/err"
    unchanged "$1" "$tmp/as-it-was"
    rm -rf "$tmp/as-it-was"
}

cp -r "$tmp/whole" "$tmp/damaged"
for model in "$tmp"/damaged/checkpoints/*/model.safetensors; do
    printf 'x' | dd of="$model" bs=1 seek=5000 conv=notrunc 2>/dev/null
done
refused "$tmp/damaged" 'none of its 2 checkpoints is intact; the newest: '
check 'the damage is named' grep -q 'step-000040/model.safetensors has XXH3-128' "$tmp/err"
ok "${train[@]}" --set out="$tmp/damaged" --fresh
check 'the damaged ones are kept' test -d "$tmp/damaged.1/checkpoints/step-000040"
check 'and no lock with them' test ! -e "$tmp/damaged.1/lock"

newer=$tmp/newer/checkpoints/step-000040/manifest.json
cp -r "$tmp/whole" "$tmp/newer"
printf '{"manifest": {"format": "dhelix-checkpoint", "version": 2}, "xxh3_128": "%s"}' \
    d2328e228690da8bdffaf8f5db93b810 >"$newer"
refused "$tmp/newer" 'the checkpoint of step 40 is of a newer program: '

as_nobody=()
[ "$(id -u)" -ne 0 ] || as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
cp -r "$tmp/whole" "$tmp/closed"
chmod 000 "$tmp/closed/checkpoints/step-000040/model.safetensors"
[ "$(id -u)" -ne 0 ] || chown -R 65534:65534 "$tmp/closed"
fails 1 'the checkpoint of step 40 is not permitted to be read: ' "${as_nobody[@]}" "${train[@]}" \
    --set out="$tmp/closed"
check 'what is not permitted is named' grep -q 'model.safetensors: Permission denied' "$tmp/err"
check 'it is still there' cmp "$tmp/whole/metrics.jsonl" "$tmp/closed/metrics.jsonl"

# Checkpoints that are gone are no reason either: moved, with their volume, or only suspects are left.
cp -r "$tmp/whole" "$tmp/moved" && mv "$tmp/moved/checkpoints" "$tmp/moved/elsewhere"
refused "$tmp/moved" 'checkpoints holds no checkpoint, and saved.json says that the one of step 40 was written: put them back'
fails 1 'put them back' "$dhelix" verify "$tmp/moved"
says 'resume        refused'
fails 1 'put them back' "$dhelix" sample "$tmp/moved" --tokens 1
mkdir "$tmp/moved/checkpoints" # a place where nothing is mounted
refused "$tmp/moved" 'put them back'
rm "$tmp/moved/saved.json" # of an earlier version
refused "$tmp/moved" 'summary.json says that there were some: put them back'
rm "$tmp/moved/summary.json"
mv "$tmp/moved/elsewhere/step-000040" "$tmp/moved/checkpoints/suspect-000040"
refused "$tmp/moved" 'suspect-000040 was one: put them back'
rm -r "$tmp/moved/checkpoints" && ln -s nowhere "$tmp/moved/checkpoints"
refused "$tmp/moved" 'is a link to a place that is not there'
rm "$tmp/moved/checkpoints" && mv "$tmp/moved/elsewhere" "$tmp/moved/checkpoints"
ok "${train[@]}" --set out="$tmp/moved" # put back
ok "${train[@]}" --set out="$tmp/moved" --fresh
same "$(curve "$tmp/moved")" "$(curve "$tmp/whole")" 'begun anew'

# A run that ended before its first checkpoint begins anew, and keeps what it measured.
mkdir "$tmp/early"
cp "$tmp/whole/job.yaml" "$tmp/early"
head -5 "$tmp/whole/metrics.jsonl" >"$tmp/early/metrics.jsonl"
cp "$tmp/early/metrics.jsonl" "$tmp/measured"
ok "${train[@]}" --set out="$tmp/early"
same "$(curve "$tmp/early")" "$(curve "$tmp/whole")" 'begun anew'
check 'what was measured before is kept' cmp "$tmp/early/metrics.1.jsonl" "$tmp/measured"

# The last step's checkpoint can be left out; a run that is stopped writes one all the same.
ok "${train[@]}" --set out="$tmp/last" --set checkpoint.every=30 --set checkpoint.last=false
same "$(ls "$tmp/last/checkpoints")" step-000030 'checkpoints without the last one'
start_long "$tmp/stopped" --set checkpoint.last=false
kill -TERM $pid
wait $pid
same "$(ls "$tmp/stopped/checkpoints" | wc -l)" 1 'checkpoints of a run that was stopped'

# A damaged checkpoint is set aside; it is not one of those that are kept.
cp -r "$tmp/whole" "$tmp/aside"
printf 'x' | dd of="$tmp/aside/checkpoints/step-000040/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
cp -r "$tmp/aside/checkpoints/step-000040" "$tmp/damaged-40"
ok "${train[@]}" --set out="$tmp/aside"
same "$(curve "$tmp/aside")" "$(curve "$tmp/whole")" 'as undisturbed'
same "$(ls "$tmp/aside/checkpoints" | tr '\n' ' ')" 'damaged-000040 step-000030 step-000040 ' 'checkpoints'
check 'the damaged one is as it was' diff -r "$tmp/aside/checkpoints/damaged-000040" "$tmp/damaged-40"
rm -r "$tmp/aside/checkpoints/step-000040"
"${train[@]}" --set out="$tmp/aside" >"$tmp/out" 2>"$tmp/err" <"$stdin"
rm "$tmp/aside/metrics.jsonl"
ok "${train[@]}" --set out="$tmp/aside" --set train.steps=42
check 'metrics that are gone are missed' grep -q 'metrics.jsonl is not there: what was measured up to step 40 is lost' "$tmp/err"

# The newest is gone, an older one is there.
cp -r "$tmp/whole" "$tmp/older"
rm -r "$tmp/older/checkpoints/step-000040"
ok "${train[@]}" --set out="$tmp/older"
check 'it is missed' grep -q 'the checkpoint of step 40 was written and is not in .*; the newest there is of step 30' "$tmp/err"

# A mixture of many parts is compared to its end.
weights=$(printf '10,%.0s' {1..40}) files=$(printf '%s,' "$tmp"/part{1..41})
for i in {1..41}; do head -c 1000 examples/data/tinyshakespeare.txt >"$tmp/part$i"; done
mix=("${train[@]}" --set out="$tmp/mix" --set data.val_fraction=0 --set eval.every=0 --set "data.train=[${files%,}]")
ok "${mix[@]}" --set train.steps=2 --set "data.weights=[${weights}7]"
fails 1 'was written with data.weights "10,10,' "${mix[@]}" --set train.steps=3 --set "data.weights=[${weights}8]"
ok "${mix[@]}" --set train.steps=3 --set "data.weights=[${weights}7]"

# Other roundings are told.
ok "${train[@]}" --set out="$tmp/one" --set train.steps=2 --set train.threads=1
ok "${train[@]}" --set out="$tmp/one" --set train.steps=3 --set train.threads=2
check 'both are named' grep -q 'made with 1 threads a rank, this run has 2: .*train.threads=1 keeps them' "$tmp/err"

# So is a run that leaves the curve of its learning rate because it is made longer.
curve=("${train[@]}" --set out="$tmp/curve" --set optimizer.warmup_steps=0)
ok "${curve[@]}" --set train.steps=2
ok "${curve[@]}" --set train.steps=3
check 'the curve' grep -q 'learning rate was to be .* at step 2 and is .* optimizer.decay_steps=2' "$tmp/err"
ok "${curve[@]}" --set train.steps=4 --set optimizer.decay_steps=3
same "$(grep -c 'learning rate was to be' "$tmp/err")" 0 'a curve that is kept'

# Another shape of the curve: the rate that it was to have, and no advice that would not keep it.
planned=$(sed -n 's/.*"lr": \([0-9.e-]*\).*/\1/p' "$tmp/curve/checkpoints/step-000004/state.json")
ok "${curve[@]}" --set train.steps=6 --set optimizer.schedule=constant
check 'the rate as it was' grep -q "learning rate was to be $(printf %.4g "$planned") at step 4 and is .* say now" "$tmp/err"

# A run of byte tokens knows that it is one, however its vocabulary is padded.
ok "${train[@]}" --set out="$tmp/padded" --set train.steps=1 --set data.tokenizer=bytes --set model.vocab=320
ok "$dhelix" sample "$tmp/padded" --prompt hello --tokens 2
ok "$dhelix" convert "$tmp/padded" "$tmp/padded-hf"
says 'with tokenizer'

# JSON holds UTF-8 alone: what is not is refused before the first step, by name.
fails 1 'the value is not UTF-8' "${train[@]}" --set out="$tmp/caf"$'\xe9'
check 'nothing is made' test ! -e "$tmp/caf"$'\xe9'
fails 1 'data.train' "${train[@]}" --set out="$tmp/no" --set data.train="$tmp/caf"$'\xe9.txt'
mkdir "$tmp/caf"$'\xe9' && cp "$tmp/job.yaml" "$tmp/caf"$'\xe9'
fails 1 'not UTF-8' "$dhelix" train "$tmp/caf"$'\xe9/job.yaml' --quiet --set out="$tmp/no"
fails 2 'argument 1 is not UTF-8' "$dhelix" verify "$tmp/caf"$'\xe9' --json
here=$PWD program=$(realpath "$dhelix")
cd "$tmp/caf"$'\xe9' || exit 1
fails 1 'not UTF-8' "$program" train "$tmp/job.yaml" --quiet --set out=run
cd "$here" || exit 1

# FIFOs do not block.
cp -r "$tmp/whole" "$tmp/fifo"
rm "$tmp/fifo/metrics.jsonl" && mkfifo "$tmp/fifo/metrics.jsonl"
fails 1 'metrics.jsonl is not a regular file' timeout -s KILL 20 "${train[@]}" --set out="$tmp/fifo" \
    --set train.steps=41

# ---- what a run was begun with --------------------------------------------------------------
tokens=tests/data/corpora/tinystories/tok512.u16
cp $tokens "$tmp/data.u16"
cat >"$tmp/llama.yaml" <<EOF
model: {family: llama, n_layers: 1, n_heads: 2, width: 32, ffn_width: 48, max_seq: 64, vocab: 512}
data: {train: $tmp/data.u16}
train: {steps: 2, batch: 2, seq_len: 64}
eval: {every: 0}
EOF
llama=("$dhelix" train "$tmp/llama.yaml" --quiet --set out="$tmp/llama")
ok "${llama[@]}"
more=("${llama[@]}" --set train.steps=3)
fails 1 'was written with model.rope_scaling none, this job has linear' "${more[@]}" \
    --set model.rope_scaling=linear --set model.rope_factor=2
fails 1 'was written with train.seed 1337, this job has 7' "${more[@]}" --set train.seed=7
printf '\000\001' | dd of="$tmp/data.u16" bs=1 seek=1000 conv=notrunc 2>/dev/null
fails 1 'was written with data.train ' "${more[@]}"
check 'as many tokens, and other ones' grep -qE 'data.train ([0-9]+ tokens), hash [0-9a-f]{16}, this job has \1, hash' "$tmp/err"
cp $tokens "$tmp/data.u16"
ok "${more[@]}"

# ---- one run, one folder ---------------------------------------------------------------------
start_long "$tmp/held"
fails 1 "is in use by process $pid on host $(hostname)" "${train[@]}" --set out="$tmp/held"
fails 1 "is in use by process $pid" "${train[@]}" --set out="$tmp/held" --fresh
check 'it was left where it is' test ! -e "$tmp/held.1"
fails 1 "is in use by process $pid" "${train[@]}" --set out="$tmp/held" --ranks 2
kill -KILL $pid
wait $pid 2>/dev/null
check 'a killed run leaves its lock' test -e "$tmp/held/lock"
ok "${train[@]}" --set out="$tmp/held"
check 'which is taken over, and let go' test ! -e "$tmp/held/lock"
same "$(curve "$tmp/held")" "$(curve "$tmp/whole")" 'of one run only'
cat /proc/sys/kernel/random/boot_id >"$tmp/boot"
echo "host $(hostname) boot $(cat "$tmp/boot") pid $$ started 1" >"$tmp/held/lock"
ok "${train[@]}" --set out="$tmp/held" # a process of that number, but not that one

# ---- metrics are data --------------------------------------------------------------------------
"$dhelix" train "$tmp/job.yaml" --set out="$tmp/mute" 2>&- >"$tmp/out"
same $? 0 'exit code with standard error closed'
same "$(curve "$tmp/mute")" "$(curve "$tmp/whole")" 'metrics with standard error closed'
check 'no progress lines among them' test -z "$(grep -v '^{' "$tmp/mute/metrics.jsonl")"
check 'nor in the weights' cmp "$tmp/mute/checkpoints/step-000040/model.safetensors" \
    "$tmp/whole/checkpoints/step-000040/model.safetensors"

cp -r "$tmp/whole" "$tmp/flipped"
sed -i '4s/"loss"/"l\x00ss"/; 4s/{/[/' "$tmp/flipped/metrics.jsonl"
printf '{"step":41,"lo' >>"$tmp/flipped/metrics.jsonl"
ok "${train[@]}" --set out="$tmp/flipped" --set train.steps=42
check 'the lines are named' grep -q 'metrics.jsonl: 2 of 45 lines cannot be read (4, 45)' "$tmp/err"
same "$(n_steps "$tmp/flipped")" 41 'losses that are left, and new ones'
same "$(wc -l <"$tmp/flipped/metrics.unreadable")" 2 'lines kept aside'
check 'as they were' grep -q '{"step":41,"lo' "$tmp/flipped/metrics.unreadable"

# ---- before the first step -----------------------------------------------------------------------
mkdir "$tmp/disk"
if mount -t tmpfs -o size=300k tmpfs "$tmp/disk" 2>/dev/null; then
    cleanup() { umount "$tmp/disk"; rm -rf "$tmp"; }
    fails 1 'trying whether a checkpoint can be written' "${train[@]}" --set out="$tmp/disk/run" \
        --set checkpoint.every=0
    check 'what is missing is named' grep -q 'safetensors.*No space' "$tmp/err"
    same "$(n_steps "$tmp/disk/run")" 0 'steps done'
    ok "${train[@]}" --set out="$tmp/disk/none" --set checkpoint.every=0 --set checkpoint.last=false
    same "$(n_steps "$tmp/disk/none")" 40 'steps of a run that writes no checkpoint'
    check 'it leaves none' test ! -e "$tmp/disk/none/checkpoints"
else
    echo 'skipped: no space (mounting a small tmpfs needs root)'
fi
(
    ulimit -f 20
    "${train[@]}" --set out="$tmp/limited" >"$tmp/out" 2>"$tmp/err"
)
same $? 1 'exit code under a limit on file sizes'
check 'which is named' grep -q 'File too large' "$tmp/err"
same "$(n_steps "$tmp/limited")" 0 'steps done'
deep=$tmp/$(printf 'd%.0s' {1..200})
deep=$deep/$(printf 'e%.0s' {1..200})/$(printf 'f%.0s' {1..200})/$(printf 'g%.0s' {1..200})
deep=$deep/$(printf 'h%.0s' {1..200})
ok "${train[@]}" --set out="$deep" --set train.steps=2
check 'a path above a thousand bytes is one like others' test -s "$deep/checkpoints/step-000002/model.safetensors"
ok "${train[@]}" --set out="$deep" --set train.steps=3 --json
same "$(json checkpoint)" "$deep/checkpoints/step-000003" 'the newest checkpoint'
for _ in 1 2 3 4; do deep=$deep/$deep; done
fails 1 'set a shorter one' "${train[@]}" --set out="$deep"

# ---- a folder that goes away ---------------------------------------------------------------------
start_long "$tmp/gone"
rm -rf "$tmp/gone"
kill -TERM $pid
wait $pid
same $? 130 'exit code'
check 'it says so' grep -q 'gone was removed or replaced' "$tmp/long.err"
check 'the job is there' test -s "$tmp/gone/job.yaml"
check 'so is the tokenizer' test -s "$tmp/gone/tokenizer.chars.json"
ok "$dhelix" sample "$tmp/gone" --tokens 5

# ---- signals ---------------------------------------------------------------------------------------
for signal in HUP USR1; do
    start_long "$tmp/stopped-$signal"
    kill -$signal $pid
    wait $pid
    same $? 130 "exit code after SIG$signal"
    check 'the message names the checkpoint' grep -q 'stopped after step .*/step-' "$tmp/long.err"
done
env --ignore-signal=HUP "${train[@]}" --set out="$tmp/nohup" --set train.steps=300 2>"$tmp/err" &
pid=$!
wait_for_steps "$tmp/nohup" 3 $pid
kill -HUP $pid
wait $pid
same $? 0 'exit code where SIGHUP is ignored'

# ---- verify ------------------------------------------------------------------------------------------
ok "$dhelix" verify "$tmp/whole"
says 'step 40       intact, 4 files'
says 'resume        continues from step 40'
cp -r "$tmp/whole" "$tmp/proved"
printf 'x' | dd of="$tmp/proved/checkpoints/step-000040/optimizer.safetensors" bs=1 seek=9000 conv=notrunc 2>/dev/null
echo 'no metrics' >>"$tmp/proved/metrics.jsonl"
fails 1 '1 of 2 checkpoints are not intact' "$dhelix" verify "$tmp/proved"
check 'the file is named' grep -q 'step 40 .*damaged: .*optimizer.safetensors has XXH3-128' "$tmp/out"
says 'resume        continues from step 30'
says 'metrics       45 lines, of which 1 cannot be read: 45'
fails 1 'not intact' "$dhelix" verify "$tmp/proved" --json
same "$(json resume_step)" 30
cp "$tmp/newer/checkpoints/step-000040/manifest.json" "$tmp/proved/checkpoints/step-000040/"
fails 1 'not intact' "$dhelix" verify "$tmp/proved"
says 'step 40       of a newer program'
says 'resume        refused'
fails 1 'there is no run folder' "$dhelix" verify "$tmp/nowhere"
mkdir "$tmp/empty"
ok "$dhelix" verify "$tmp/empty"
says 'resume        begins: there is no checkpoint'

# ---- sampling beside a run that prunes ---------------------------------------------------------------
start_long "$tmp/pruned" --set checkpoint.every=1 --set checkpoint.keep=1
while [ ! -d "$tmp/pruned/checkpoints/step-000001" ] && [ "$(n_steps "$tmp/pruned")" -lt 2 ]; do sleep 0.01; done
n_samples=0
for _ in $(seq 80); do
    "$dhelix" sample "$tmp/pruned" --tokens 1 --quiet >"$tmp/out" 2>"$tmp/err" && n_samples=$((n_samples + 1))
done
same $n_samples 80 'samples drawn'
kill -TERM $pid
wait $pid
same $? 130 'exit code of the run'
finish
