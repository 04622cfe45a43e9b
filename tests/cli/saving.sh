# Checkpoints written while training goes on (checkpoint.async): killed at any moment, stopped, without
# room: what was saved stays whole, and a run that is continued is the run that was not interrupted.
#   bash tests/cli/saving.sh DHELIX [--full]
# With --full it is killed 200 times.
kills=10 steps=400
[ "${2:-}" != --full ] || kills=100 steps=1500 # of each mesh
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"
every=3
last=$(printf 'step-%06d' $steps)
draw_seed saving

start() { # run folder, settings...
    local out=$1
    shift
    "$dhelix" train "${job[@]}" --set out="$out" "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
}

n_steps() { # run folder
    if [ -e "$1/metrics.jsonl" ]; then grep -c '"loss".*}$' "$1/metrics.jsonl"; else echo 0; fi
}

newest() { # run folder: of its complete checkpoints
    local path
    path=$(find "$1/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -1)
    path=${path##*step-}
    echo $((10#${path:-0}))
}

under_way() { [ -n "$(find "$1/checkpoints" -maxdepth 1 -name '.step-*' 2>/dev/null)" ]; }

equal_to_whole() { # run folder
    same "$(curve "$1" | cksum)" "$whole" "losses of $1"
    for file in model optimizer; do
        check "$file of $1" cmp "$1/checkpoints/$last/$file.safetensors" "$tmp/whole/checkpoints/$last/$file.safetensors"
    done
    same "$(find "$1" -name '.tmp*' -o -name '*.tmp-*')" '' 'half-written files'
}

# At a random step, and half of the time then at a random moment of a checkpoint's writing. A run that
# was killed loses the steps since the checkpoint before the one that was due last, at most.
kill_once() { # run folder
    local before=$((n_now + RANDOM % 12)) midway=$((RANDOM % 2)) least
    start "$1"
    while kill -0 $pid 2>/dev/null && [ "$(n_steps "$1")" -le $before ]; do sleep 0.002; done
    if [ $midway = 1 ]; then
        while kill -0 $pid 2>/dev/null && ! under_way "$1"; do :; done
        sleep "0.00$((RANDOM % 8))"
    fi
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ $? -ne 137 ] || n_killed=$((n_killed + 1))
    if under_way "$1"; then n_midway=$((n_midway + 1)); fi
    n_now=$(n_steps "$1")
    least=$(((n_now - 1) / every * every - every))
    n_checks=$((n_checks + 1))
    [ "$(newest "$1")" -ge $least ] || fail "killed at step $n_now, the newest checkpoint is $(newest "$1")"
}

for mesh in ranks=1 'parallel.dp=2 parallel.zero=1'; do
    job=("$tmp/job.yaml" --quiet --set train.steps=$steps --set train.micro_batch=1 --set eval.every=0)
    for word in $mesh; do job+=(--set "$word"); done
    rm -rf "$tmp/whole" "$tmp/killed"
    ok "$dhelix" train "${job[@]}" --set out="$tmp/whole" --set checkpoint.every=$steps --set device=cpu # DHELIX_DEVICE: the others
    whole=$(curve "$tmp/whole" | cksum)
    job+=(--set checkpoint.async=true --set checkpoint.every=$every)
    n_now=0 n_killed=0 n_midway=0
    for ((i = 0; i < kills; i++)); do kill_once "$tmp/killed"; done
    same $n_killed $kills 'times it was killed'
    echo "$mesh: $n_midway of $n_killed times while a checkpoint was written; at step $n_now in the end"
    check 'one was under way' test $n_midway -ge 1
    ok "$dhelix" train "${job[@]}" --set out="$tmp/killed"
    equal_to_whole "$tmp/killed"
done

# Asked to stop: the last checkpoint is complete before the run ends.
for signal in TERM USR1; do
    out=$tmp/stopped-$signal
    start "$out"
    while kill -0 $pid 2>/dev/null && [ "$(n_steps "$out")" -lt $((20 + RANDOM % 40)) ]; do sleep 0.002; done
    kill -$signal $pid
    wait $pid
    same $? 130 "exit code after SIG$signal"
    same "$(newest "$out")" "$(n_steps "$out")" 'the checkpoint is of the last step'
    ok "$dhelix" train "${job[@]}" --set out="$out"
    equal_to_whole "$out"
done

# Begun anew, the old folder is kept.
ok "$dhelix" train "${job[@]}" --set out="$tmp/killed" --fresh
equal_to_whole "$tmp/killed"
check 'the old folder is kept' test -d "$tmp/killed.1/checkpoints/$last"

# A thread that cannot write ends the run, which says so once; with room again it goes on.
mkdir "$tmp/disk"
if mount -t tmpfs -o size=2200k tmpfs "$tmp/disk" 2>/dev/null; then
    cleanup() { umount "$tmp/disk"; rm -rf "$tmp"; }
    full=(--set checkpoint.keep=0 --set out="$tmp/disk/run")
    fails 1 'No space left on device' "$dhelix" train "${job[@]}" "${full[@]}"
    check 'the message names the checkpoint' grep -q 'while saving the checkpoint of step' "$tmp/err"
    check 'no half checkpoint is left' test -z "$(find "$tmp/disk/run/checkpoints" -maxdepth 1 -name '.tmp*')"
    before=$(newest "$tmp/disk/run")
    check 'one is there' test "$before" -ge $every
    mount -o remount,size=512m "$tmp/disk"
    ok "$dhelix" train "${job[@]}" --set out="$tmp/disk/run" --set checkpoint.keep=2
    equal_to_whole "$tmp/disk/run"
else
    echo 'skipped: disk full (mounting a small tmpfs needs root)'
fi

# What the copy takes is known before, and is not there without it.
copies=0
for rank in 0 1; do
    ok "$dhelix" check "${job[@]}" --set parallel.zero=0 --rank $rank --json
    copies=$((copies + $(json checkpoint_copy_bytes)))
done
same $copies $((12 * $(json parameters))) 'bytes of the copies of two ranks'
ok "$dhelix" check "${job[@]}" --set checkpoint.async=false
check 'no copy' bash -c '! grep -q "a copy for checkpoints" "$1"' _ "$tmp/out"
ok "$dhelix" check "${job[@]}"
says 'a copy for checkpoints (checkpoint.async)'
finish
