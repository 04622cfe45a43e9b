# Every command with its n-th allocation, file call or thread failing: it says so in one line and
# fails, or does its work all the same; nothing is lost, nothing stays allocated.
#   bash tests/faults/nth.sh DHELIX NTH_LIBRARY [--full | COMMAND]
# Without --full about 12 calls of each kind fail, spread evenly over all of them.
library=$2
. tests/cli/lib.sh "$1"
only=${3:-}
per_kind=12
[ "$only" != --full ] || { per_kind=1000000; only=; }
export OMP_NUM_THREADS=1

# The command under test, and what it leaves that must be the same whenever it reports success.
words=()
result=     # prints it
before=true # puts things back as they were
kinds='alloc file thread'
after=true  # looks at what a call that failed has left

under_test() { # kind, n
    rm -f "$tmp/report"
    timeout -s KILL 60 env DH_NTH="$1:$2" DH_NTH_REPORT="$tmp/report" LD_PRELOAD="$library" "${words[@]}" \
        <"$stdin" >"$tmp/out" 2>"$tmp/err"
    status=$?
}

reported() { # word
    sed -n "s/^$1 //p" "$tmp/report" 2>/dev/null
}

digest() { # of what the command leaves
    $result | cksum
}

judge() { # kind, n
    n_checks=$((n_checks + 1))
    local what="$name, $1 $2 ($(reported struck))"
    case $status in
    0) [ "$(digest)" = "$wanted" ] || fail "$what: success, and another result" ;;
    1) [ "$(grep -c '^dhelix: error: ' "$tmp/err")" -eq 1 ] || fail "$what: no error line, or several" ;;
    *) fail "$what: exit code $status" ;;
    esac
    [ "$(reported live)" = 0 ] || fail "$what: $(reported live) allocations left, of $(reported at | head -3 | tr '\n' ' ')"
}

each_call() { # name
    name=$1
    [ -z "$only" ] || [ "$only" = "$name" ] || return
    $before
    under_test alloc 0
    same "$status" 0 "exit code of $name"
    wanted=$(digest)
    for kind in $kinds; do
        $before
        under_test $kind 0
        local n_calls stride
        n_calls=$(reported calls)
        [ "$kind" = thread ] || check "$name makes calls of $kind" test "$n_calls" -gt 0
        stride=$(((n_calls + per_kind - 1) / per_kind))
        for ((n = 1; n <= n_calls; n += stride)); do
            $before
            under_test $kind $n
            judge $kind $n
            $after
        done
        echo "$name: $n_calls calls of $kind, every ${stride}th failed"
    done
}

# ---- what the commands need ----

head -c 20000 examples/data/tinyshakespeare.txt >"$tmp/text"
cat >"$tmp/job.yaml" <<EOF
model: {name: tiny, family: gpt2, n_layers: 1, n_heads: 2, width: 8, max_seq: 8}
data: {train: $tmp/text, val_fraction: 0.1}
train: {steps: 4, batch: 4, seq_len: 8}
optimizer: {decay_steps: 4}
eval: {every: 2, batches: 1}
checkpoint: {every: 1, keep: 2}
profile: none
EOF
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/whole" --set trace.step=2
weights=$(cksum <"$tmp/whole/checkpoints/step-000004/model.safetensors")
output() { cat "$tmp/out"; }

# ---- commands that only print ----

result=output
words=("$dhelix" list models)
each_call list
words=("$dhelix" check "$tmp/job.yaml" --set parallel.pp=1 --json)
each_call check
words=("$dhelix" simulate "$tmp/job.yaml" --set parallel.dp=2 --json)
each_call simulate
words=("$dhelix" tune "$tmp/job.yaml" --cluster a40 --set ranks=2 --json)
each_call tune
words=("$dhelix" plan "$tmp/job.yaml")
each_call plan
words=("$dhelix" eval "$tmp/whole" --data "$tmp/text" --batches 1 --json)
each_call eval
words=("$dhelix" sample "$tmp/whole" --tokens 4 --greedy)
each_call sample

# ---- commands that write ----

written() { cat "$tmp/made"* 2>/dev/null; }
before() { rm -rf "$tmp"/made*; }
before=before
result=written
words=("$dhelix" tokenize --tokenizer bytes "$tmp/text" -o "$tmp/made")
each_call tokenize
words=("$dhelix" convert "$tmp/whole" "$tmp/made")
each_call convert
words=("$dhelix" report "$tmp/whole" -o "$tmp/made")
each_call report
result=true
words=("$dhelix" profile "$tmp/job.yaml" --samples 3 --out "$tmp/made")
each_call profile
printed_keys() { grep -o '"[a-z_0-9]*":' "$tmp/out" | sort | uniq -c; } # times differ
result=printed_keys
words+=(--json)
each_call profile_json

# ---- training: what failed goes on, and ends where the whole run ended ----

last_weights() { cat "$tmp/run/checkpoints/step-000004/model.safetensors"; }
fresh_run() { rm -rf "$tmp/run"; }
goes_on() {
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/run" "${mesh[@]}"
    same "$(last_weights | cksum)" "$wanted" "weights after $name, $kind $n"
    check "nothing half-written after $name, $kind $n" test -z "$(find "$tmp/run" -name '*.tmp-*' -o -name '.tmp-*')"
}
before=fresh_run
after=goes_on
result=last_weights
mesh=()
words=("$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/run")
each_call train
[ -n "$only" ] || same "$wanted" "$weights" 'weights of the whole run'
mesh=(--set parallel.dp=2)
words+=("${mesh[@]}")
each_call ranks
finish
