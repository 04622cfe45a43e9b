# dhelix launch: ranks as processes, started again over fewer when one is killed or silent; what then
# comes of the run is what is started by hand on that mesh, bit for bit. And when it ends instead.
#   bash tests/train/launch_mpi.sh DHELIX MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
launcher="${*:2}"
. tests/cli/lib.sh "$1"
export OMP_NUM_THREADS=1
draw_seed launch_mpi
tiny_job "$tmp/job.yaml"
job=("$tmp/job.yaml" --quiet --set train.threads=1 --set train.micro_batch=1 --set train.steps=30
    --set checkpoint.every=5 --set checkpoint.keep=0 --set eval.every=0 --set parallel.dp=4
    --set parallel.timeout_s=20 --set elastic.action=continue)
limit=120

launch=("$dhelix" launch "${job[@]}" --launcher "$launcher")

n_steps() { # run folder
    if [ -e "$1/metrics.jsonl" ]; then grep -c '"loss".*}$' "$1/metrics.jsonl"; else echo 0; fi
}

# The newest checkpoint when a rank was lost: the run went on from it.
begun_at() { sed -n 's/.*resuming from .*(step \([0-9]*\)).*/\1/p' "$tmp/err" | tail -1; }

# The same by hand: 4 ranks up to a step, then fewer. Settings of the first mesh, of the second.
before=() after=(--set parallel.dp=2)
by_hand() { # step
    rm -rf "$tmp/hand"
    if [ "$1" -gt 0 ]; then
        ok "$dhelix" train "${job[@]}" "${before[@]}" --set out="$tmp/hand" --set optimizer.decay_steps=30 \
            --set train.steps="$1"
    fi
    ok "$dhelix" train "${job[@]}" "${before[@]}" "${after[@]}" --set out="$tmp/hand" --set optimizer.decay_steps=30
}

went_on() { # run folder, what is said to be left
    local step left=${2:-over 2 of 4 ranks (parallel.dp=2)}
    same "$status" 0 'exit code'
    check 'one message says what happened' test "$(grep -cF "the run goes on $left" "$tmp/err")" = 1
    step=$(begun_at)
    check 'and from where' grep -q "the run goes on over .*, from \(step ${step:-none} of its newest checkpoint\|its beginning\)" "$tmp/err"
    cp "$tmp/err" "$tmp/launched"
    by_hand "${step:-0}"
    echo "  from step ${step:-0}: $(grep -o 'warn: a rank .*; the run goes on' "$tmp/launched")"
    same "$(curve "$1" | cksum)" "$(curve "$tmp/hand" | cksum)" "losses of $1"
    for file in model optimizer; do
        check "$file of $1" cmp "$1/checkpoints/step-000030/$file.safetensors" \
            "$tmp/hand/checkpoints/step-000030/$file.safetensors"
    done
    rm -rf "$1"
}

children() { # process
    cat /proc/"${1%% *}"/task/*/children 2>/dev/null | tr '\n' ' '
}

# A process of the run is killed from outside, at a random moment.
kill_one() { # run folder
    local at=$((6 + RANDOM % 15)) ranks
    DHELIX_LOG=info "${launch[@]}" --set out="$1" >"$tmp/out" 2>"$tmp/err" &
    local launched=$!
    while kill -0 $launched 2>/dev/null && [ "$(n_steps "$1")" -lt $at ]; do
        sleep 0.01
    done
    read -r -a ranks <<<"$(children "$(children $launched)")"
    same ${#ranks[@]} 4 'processes of the run'
    [ ${#ranks[@]} -ne 4 ] || kill -KILL "${ranks[RANDOM % 4]}"
    wait $launched
    status=$?
}
n_checks=$((n_checks + 1))
kill_one "$tmp/killed"
went_on "$tmp/killed"

# One that stops for ever while it computes: the others give up waiting, and say for whom.
export DHELIX_LOG=info
DHELIX_FAULT=hang:2:i700 run "${launch[@]}" --set out="$tmp/silent" \
    --set parallel.timeout_s=3
check 'the silent rank is named' grep -q 'did not come: rank 2 (' "$tmp/err"
went_on "$tmp/silent"

# Two losses, one after the other.
DHELIX_FAULT=kill:1:i500,kill:0:i900 run "${launch[@]}" --set out="$tmp/twice"
same "$status" 0 'exit code after two losses'
check 'over two ranks, then one' grep -q 'goes on over 1 of 2 ranks (parallel.dp=1)' "$tmp/err"
same "$(grep -c '"loss"' "$tmp/twice/metrics.jsonl")" 30 'steps'

# Parts of the model that only the lost rank had: another mesh, of a checkpoint. Micro-batches keep their size.
before=(--set parallel.dp=1 --set parallel.tp=2 --set parallel.pp=2 --set train.micro_batch=auto)
after=(--set parallel.pp=1 --set train.micro_batch=1)
DHELIX_FAULT=kill:3:i6000 run "${launch[@]}" "${before[@]}" --set out="$tmp/other"
went_on "$tmp/other" 'over 2 of 4 ranks (parallel.pp=1), the most that it can have by the fewest changes'

# It ends where it is told to, with one line.
export DHELIX_LOG=warn
DHELIX_FAULT=kill:3:i500 fails 1 'signal 9 (Killed), and elastic.action is stop' \
    "${launch[@]}" --set out="$tmp/stop" --set elastic.action=stop
DHELIX_FAULT=kill:3:i500 fails 1 'elastic.min_ranks is 3' \
    "${launch[@]}" --set out="$tmp/few" --set elastic.min_ranks=3
DHELIX_FAULT=kill:3:i50 fails 1 'signal 9 (Killed); the run does not go on: another mesh takes the state from a checkpoint' \
    "${launch[@]}" "${before[@]}" --set out="$tmp/early"

# Other failures are not losses: their messages come from the ranks.
n_checks=$((n_checks + 1))
run "${launch[@]}" --set out="$tmp/diverged" --set optimizer.lr=1000 \
    --set optimizer.grad_clip=0 --set optimizer.warmup_steps=0
same "$status" 1 'exit code of a diverged run'
check 'it is not started again' bash -c "! grep -q 'goes on over' '$tmp/err'"
check 'it says so' grep -q 'the run failed: .* ended with exit code 1' "$tmp/err"
fails 1 'cannot run no-such-launcher' "$dhelix" launch "${job[@]}" --launcher no-such-launcher --set out="$tmp/none"

# Asked to stop, the ranks save and are not started again.
"${launch[@]}" --set out="$tmp/stopped" --set train.steps=100000 >"$tmp/out" 2>"$tmp/err" &
launched=$!
while kill -0 $launched 2>/dev/null && [ "$(n_steps "$tmp/stopped")" -lt 5 ]; do
    sleep 0.01
done
kill -TERM $launched
wait $launched
same $? 130 'exit code after SIGTERM'
last=$(grep -c '"loss"' "$tmp/stopped/metrics.jsonl")
check 'the last step is saved' test -e "$tmp/stopped/checkpoints/step-$(printf %06d "$last")/manifest.json"
finish
