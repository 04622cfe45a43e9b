# Interrupted, killed, diverged, out of disk: what was saved stays whole, and a run that is
# continued is the run that was not interrupted, bit for bit.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"
steps=400
job=("$tmp/job.yaml" --quiet --set train.steps=$steps --set checkpoint.every=50 --set model.width=64)
draw_seed faults

ok "$dhelix" train "${job[@]}" --set out="$tmp/whole" --set device=cpu # of DHELIX_DEVICE are the others
whole=$(curve "$tmp/whole")

equal_to_whole() { # run folder
    same "$(curve "$1" | cksum)" "$(echo "$whole" | cksum)" "losses of $1"
    check "weights of $1" cmp "$1/checkpoints/step-000$steps/model.safetensors" \
        "$tmp/whole/checkpoints/step-000$steps/model.safetensors"
    check "moments of $1" cmp "$1/checkpoints/step-000$steps/optimizer.safetensors" \
        "$tmp/whole/checkpoints/step-000$steps/optimizer.safetensors"
}

n_steps() { # run folder
    if [ -e "$1/metrics.jsonl" ]; then grep -c '"loss"' "$1/metrics.jsonl"; else echo 0; fi
}

wait_for_steps() { # run folder, steps, process that makes them
    while kill -0 "$3" 2>/dev/null && [ "$(n_steps "$1")" -lt "$2" ]; do sleep 0.005; done
}

# SIGTERM and SIGINT: the step is finished, a checkpoint written, exit code 130.
for signal in TERM INT; do
    run_dir=$tmp/stopped-$signal
    # Job control off makes background jobs ignore SIGINT; env restores the default.
    env --default-signal=INT "$dhelix" train "${job[@]}" --set out="$run_dir" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    wait_for_steps "$run_dir" $((30 + RANDOM % 40)) $pid
    kill -$signal $pid
    wait $pid
    same $? 130 "exit code after SIG$signal"
    check 'the message names the checkpoint' grep -q 'stopped after step .*/step-' "$tmp/err"
    done_steps=$(n_steps "$run_dir")
    check 'the checkpoint is of the last step' \
        test -d "$run_dir/checkpoints/$(printf 'step-%06d' "$done_steps")"
    check 'it stopped early' test "$done_steps" -lt $steps
    ok "$dhelix" train "${job[@]}" --set out="$run_dir"
    equal_to_whole "$run_dir"
done

# SIGKILL at random moments, several times in one run that often writes a checkpoint.
run_dir=$tmp/killed
n_killed=0
for _ in 1 2 3 4 5 6; do
    "$dhelix" train "${job[@]}" --set checkpoint.every=3 --set out="$run_dir" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    wait_for_steps "$run_dir" $(($(n_steps "$run_dir") + RANDOM % 60)) $pid
    sleep "0.0$((RANDOM % 10))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ $? -ne 137 ] || n_killed=$((n_killed + 1))
done
check "killed $n_killed times in mid-run" test "$n_killed" -ge 1
ok "$dhelix" train "${job[@]}" --set out="$run_dir"
equal_to_whole "$run_dir"
same "$(find "$run_dir" -name '.tmp*' -o -name '*.tmp-*')" '' 'half-written files'

# Also by a run that had ended: killed while it removed an old checkpoint, or between a file's
# writing and its name. What is somebody's own stays.
cp -r "$tmp/whole" "$tmp/littered"
mkdir "$tmp/littered/checkpoints/.old.tmp-0123456789abcdef"
touch "$tmp/littered/job.yaml.tmp-fedcba9876543210" "$tmp/littered/notes.tmp-1"
ok "$dhelix" train "${job[@]}" --set out="$tmp/littered"
same "$(find "$tmp/littered" -name '.tmp*' -o -name '*.tmp-*')" "$tmp/littered/notes.tmp-1" 'leftovers'

# A damaged checkpoint is passed over for the one before it.
cp -r "$tmp/whole" "$tmp/damaged"
printf 'x' | dd of="$tmp/damaged/checkpoints/step-000$steps/model.safetensors" bs=1 seek=5000 \
    conv=notrunc 2>/dev/null
ok "$dhelix" train "${job[@]}" --set out="$tmp/damaged"
check 'the damage is reported' grep -q "step-000$steps" "$tmp/err"
equal_to_whole "$tmp/damaged"

# Divergence ends the run, naming step and operator; the checkpoint before it stays.
fails 1 'training step' "$dhelix" train "${job[@]}" --set out="$tmp/diverged" \
    --set optimizer.lr=1000 --set optimizer.grad_clip=0
check 'the operator is named' grep -qE 'instruction [0-9]+ .*layer.*non-finite' "$tmp/err"
cp tests/data/weights/tiny-random-gpt2/model.safetensors "$tmp/poisoned.safetensors"
size=$(stat -c %s "$tmp/poisoned.safetensors")
# The largest float: NaN itself is refused on loading.
printf '\377\377\177\177' | dd of="$tmp/poisoned.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
cat >"$tmp/poisoned.yaml" <<EOF
model: $PWD/tests/data/weights/tiny-random-gpt2/config.json
data: {train: $PWD/examples/data/tinyshakespeare.txt}
train: {steps: 5, batch: 2, seq_len: 64, init_from: $tmp/poisoned.safetensors}
EOF
fails 1 'training step 1: instruction' "$dhelix" train "$tmp/poisoned.yaml" --quiet --set out="$tmp/poisoned"
check 'no checkpoint of a diverged run' test ! -d "$tmp/poisoned/checkpoints"

# Disk full while a checkpoint is written: the error says so, the earlier one is intact, and
# with room again the run goes on from it.
mkdir "$tmp/disk"
if mount -t tmpfs -o size=1800k tmpfs "$tmp/disk" 2>/dev/null; then
    cleanup() { umount "$tmp/disk"; rm -rf "$tmp"; }
    keep_all=(--set checkpoint.keep=0)
    fails 1 'No space left on device' "$dhelix" train "${job[@]}" "${keep_all[@]}" --set out="$tmp/disk/run"
    check 'the message names the checkpoint' grep -q 'checkpoint of step' "$tmp/err"
    ok "$dhelix" sample "$tmp/disk/run" --tokens 5
    check 'no half checkpoint is left' \
        test -z "$(find "$tmp/disk/run/checkpoints" -maxdepth 1 -name '.tmp*')"
    mount -o remount,size=64m "$tmp/disk"
    ok "$dhelix" train "${job[@]}" "${keep_all[@]}" --set out="$tmp/disk/run"
    equal_to_whole "$tmp/disk/run"
else
    echo 'skipped: disk full (mounting a small tmpfs needs root)'
fi

# The output's reader goes away: training does not.
"$dhelix" train "${job[@]}" --set train.steps=20 --set out="$tmp/piped" | true
check 'training outlives its reader' test -d "$tmp/piped/checkpoints/step-000020"
finish
