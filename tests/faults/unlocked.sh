# Run folder and cache on a file system without locks: runs are killed and go on with the same bits,
# a folder that another process holds is refused, and of two runs that start together one goes on.
# The same with every error by which a file system may say so, and with calls that are interrupted.
#   bash tests/faults/unlocked.sh DHELIX UNLOCKED_LIBRARY [--full]
library=$2
most=3 others=1 # rounds
[ "${3:-}" != --full ] || most=30 others=10
. tests/cli/lib.sh "$1"
draw_seed unlocked
export OMP_NUM_THREADS=1
tiny_job "$tmp/job.yaml"
gzip -c examples/data/tinyshakespeare.txt >"$tmp/text.gz"
job=("$tmp/job.yaml" --quiet --set train.threads=1 --set train.steps=200 --set checkpoint.every=5
    --set eval.every=0 --set data.train="$tmp/text.gz" --set data.cache="$tmp/cache")
ok "$dhelix" train "${job[@]}" --set out="$tmp/whole" --set data.cache=
# In a process of its own, which a kill then meets: in the background, or in parentheses.
unlocked() { exec env LD_PRELOAD="$library" "$dhelix" train "${job[@]}" "$@" <"$stdin"; }

n_steps() { # run folder
    if [ -e "$1/metrics.jsonl" ]; then grep -c '"loss"' "$1/metrics.jsonl"; else echo 0; fi
}

is_whole() { # run folder
    same "$(curve "$1" | cksum)" "$(curve "$tmp/whole" | cksum)" "losses of $1"
    check "weights of $1" cmp "$1/checkpoints/step-000200/model.safetensors" \
        "$tmp/whole/checkpoints/step-000200/model.safetensors"
}

begun() { # run folder, steps, process
    while kill -0 "$3" 2>/dev/null && [ "$(n_steps "$1")" -lt "$2" ]; do sleep 0.005; done
}

for error in ENOLCK EOPNOTSUPP ENOSYS EINVAL ENOTSUP EBADF EACCES EINTR; do
    export DH_UNLOCKED_ERROR=$error
    rounds=$others
    [ $error != ENOLCK ] || rounds=$most
    rm -rf "$tmp/killed" "$tmp/held" "$tmp"/cached-* "$tmp/cache"
    n_before=$n_failed

    # Killed again and again, then to the end.
    for ((i = 0; i < rounds; i++)); do
        unlocked --set out="$tmp/killed" >"$tmp/out" 2>"$tmp/err" &
        begun "$tmp/killed" $(($(n_steps "$tmp/killed") + RANDOM % 40)) $!
        kill -KILL $! 2>/dev/null
        wait $! 2>/dev/null
    done
    n_checks=$((n_checks + 1))
    (unlocked --set out="$tmp/killed" >"$tmp/out" 2>"$tmp/err") || fail 'the run goes on'
    is_whole "$tmp/killed"

    # A folder in use, also by a process whose number says nothing here.
    unlocked --set out="$tmp/held" --set train.steps=1000000 >"$tmp/out" 2>"$tmp/err" &
    held=$!
    begun "$tmp/held" 3 $held
    refused() { # command before the program
        n_checks=$((n_checks + 1))
        "$@" env LD_PRELOAD="$library" timeout 60 "$dhelix" train "${job[@]}" --set out="$tmp/held" <"$stdin" >"$tmp/out" 2>"$tmp/err"
        same $? 1 "exit code of a second run ($*)"
        check "the first is named ($*)" grep -q 'is in use by process' "$tmp/err"
    }
    refused
    if unshare --pid --fork true 2>/dev/null; then refused unshare --pid --fork --mount-proc; fi
    check 'the first goes on' kill -0 $held
    kill -KILL $held
    wait $held 2>/dev/null

    # Two that start together: one has the folder, and comes to its end; the other says so.
    for ((i = 0; i < rounds; i++)); do
        rm -rf "$tmp/both" "$tmp/cache"
        unlocked --set out="$tmp/both" >"$tmp/out" 2>"$tmp/err" &
        one=$!
        (unlocked --set out="$tmp/both" >"$tmp/out2" 2>"$tmp/err2")
        other=$?
        wait $one
        one=$?
        n_checks=$((n_checks + 1))
        case $one$other in
        01) check 'the other is named' grep -q 'in use by' "$tmp/err2" ;;
        10) check 'the other is named' grep -q 'in use by' "$tmp/err" ;;
        00) ;; # the second began when the first had ended
        *) fail "exit codes $one and $other of two runs in one folder" ;;
        esac
        is_whole "$tmp/both"
    done

    # Two that fill one cache.
    rm -rf "$tmp/cache"
    unlocked --set out="$tmp/cached-1" >"$tmp/out" 2>"$tmp/err" &
    one=$!
    n_checks=$((n_checks + 1))
    (unlocked --set out="$tmp/cached-2" >"$tmp/out" 2>"$tmp/err") || fail 'a run beside another'
    wait $one
    same $? 0 'exit code of the other'
    is_whole "$tmp/cached-1"
    is_whole "$tmp/cached-2"
    echo "$error: $((n_failed - n_before)) failed"
done
finish
