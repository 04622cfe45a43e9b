# Checkpoints written while training goes on, on a disk that fills, fails, is slow or disappears, and
# under a limit on the size of files: the newest intact checkpoint is found, the run says what it could
# not save, and goes on to where the run without faults ended.
#   bash tests/faults/async.sh DHELIX DISK_LIBRARY [CASES]
# Without CASES 2 of each kind.
library=$2
cases=${3:-2}
. tests/cli/lib.sh "$1"
draw_seed async
export OMP_NUM_THREADS=1
steps=60 every=3
last=step-000060
head -c 20000 examples/data/tinyshakespeare.txt >"$tmp/text"
cat >"$tmp/job.yaml" <<END
model: {name: tiny, family: gpt2, n_layers: 2, n_heads: 2, width: 32, max_seq: 16}
data: {train: $tmp/text, val_fraction: 0.1}
train: {steps: $steps, batch: 4, micro_batch: 1, seq_len: 16}
eval: {every: 0}
checkpoint: {every: $every, keep: 2}
profile: none
END
meshes=(ranks=1 'parallel.dp=2 parallel.zero=1')
declare -A losses weights
n_found=0 n_ended=0 n_struck=0

for i in 0 1; do
    read -ra words <<<"${meshes[i]}"
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/whole$i" "${words[@]/#/--set=}"
    losses[$i]=$(curve "$tmp/whole$i" | cksum)
    weights[$i]=$(cksum <"$tmp/whole$i/checkpoints/$last/model.safetensors")
done

wrong() { # what
    cp "$tmp/first.err" "$tmp/err"
    fail "case $n ($kind, $drawn, ${meshes[mesh]}): $1"
}

# The run with its fault. What it leaves is in $out, its exit code in $code.
begin() { # words before the command...
    timeout -s KILL 120 "$@" "$dhelix" train "$tmp/job.yaml" --quiet --set out="$out" "${words[@]}" \
        --set checkpoint.async=true --set checkpoint.keep="$keep" <"$stdin" >"$tmp/out" 2>"$tmp/first.err"
    code=$?
}

recorded() { sed -n 's/{"step": \([0-9]*\)}/\1/p' "$out/saved.json" 2>"$tmp/err"; }

# No checkpoint that was complete is lost: that of saved.json is there, and whole.
look() {
    local step
    step=$(recorded)
    n_checks=$((n_checks + 1))
    [ -n "$step" ] || return 0
    timeout 60 "$dhelix" verify "$out" --json <"$stdin" >"$tmp/out" 2>"$tmp/err"
    local found
    found=$(json resume_step)
    [ -n "$found" ] && [ "$found" -ge "$step" ] || wrong "step $step was saved, found is ${found:-none}"
    n_found=$((n_found + 1))
}

# A run that could not save says so in one line, which names the checkpoint.
tells() {
    n_checks=$((n_checks + 1))
    [ "$code" -ne 0 ] || return 0
    n_ended=$((n_ended + 1))
    [ "$code" -eq 1 ] || wrong "exit code $code"
    [ "$(grep -c '^dhelix: error: ' "$tmp/first.err")" -eq 1 ] || wrong 'no error line, or several'
    grep -q 'checkpoint\|saved.json\|metrics.jsonl\|run folder' "$tmp/first.err" || wrong 'what was not saved is not named'
}

goes_on() { # further words
    timeout 120 "$dhelix" train "$tmp/job.yaml" --quiet --set out="$out" "${words[@]}" "$@" <"$stdin" >"$tmp/out" 2>"$tmp/second.err"
    local code=$?
    n_checks=$((n_checks + 1))
    if [ $code -ne 0 ]; then
        cp "$tmp/second.err" "$tmp/first.err"
        wrong "exit code $code when it goes on"
        return
    fi
    [ "$(curve "$out" | cksum)" = "${losses[$mesh]}" ] || wrong 'other losses'
    [ "$(cksum <"$out/checkpoints/$last/model.safetensors")" = "${weights[$mesh]}" ] || wrong 'other weights'
    [ -z "$(find "$out" -name '*.tmp-*')" ] || wrong 'half-written files'
}

draw() { drawn=$(($1 + RANDOM % ($2 - $1 + 1))); }

# ---- the kinds ----

on_full_disk() {
    draw 400 2500
    keep=0
    mount -t tmpfs -o "size=${drawn}k" tmpfs "$tmp/disk" 2>/dev/null || return 0
    out=$tmp/disk/run
    begin
    tells
    look
    mount -o remount,size=256m "$tmp/disk"
    goes_on
    umount "$tmp/disk"
}

on_failing_calls() { # write or fsync
    local how=once
    draw 1 $([ "$1" = write ] && echo 160 || echo 90)
    [ $((RANDOM % 2)) = 0 ] || how=on
    begin env DH_DISK_FAIL="$1:$drawn:$how" DH_DISK_REPORT="$tmp/report" LD_PRELOAD="$library"
    drawn+=" $how"
    [ "$(cat "$tmp/report")" = 0 ] || n_struck=$((n_struck + 1))
    tells
    look
    goes_on
}
on_failing_writes() { on_failing_calls write; }
on_failing_syncs() { on_failing_calls fsync; }

# Blocks of 1 KiB. Above the moments' 211 KiB only metrics.jsonl could reach it.
under_limit() {
    draw 1 240
    begin bash -c 'ulimit -f "$0"; exec "$@"' "$drawn"
    tells
    look
    goes_on
}

# All checkpoints go at a drawn moment. What was saved later is found; where nothing is left, that is
# no reason to begin anew.
when_it_disappears() {
    draw 1 80
    begin env DH_DISK_SLOW_MS=2 LD_PRELOAD="$library" &
    local pid=$! i
    for ((i = 0; i < drawn; i++)); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.01
    done
    rm -rf "$out/checkpoints" 2>/dev/null
    wait $pid
    code=$(grep -q '^dhelix: error: ' "$tmp/first.err" && echo 1 || echo 0)
    tells
    if [ -n "$(recorded)" ] && [ -z "$(find "$out/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null)" ]; then
        n_refused=$((n_refused + 1))
        cp -r "$out" "$tmp/before"
        fails 1 'put them back' "$dhelix" train "$tmp/job.yaml" --quiet --set out="$out" "${words[@]}"
        check 'nothing has changed' diff -r "$out" "$tmp/before"
        rm -rf "$tmp/before"
        goes_on --fresh
    else
        goes_on
    fi
}

# Each checkpoint takes longer than the steps until the next one is due; killed at a drawn moment.
on_slow_disk() {
    draw 20 300
    begin env DH_DISK_SLOW_MS=15 LD_PRELOAD="$library" timeout -s KILL "$(printf '%d.%03d' $((drawn * 5 / 1000)) $((drawn * 5 % 1000)))"
    [ "$code" -eq 137 ] || tells
    look
    goes_on
}

mkdir "$tmp/disk"
cleanup() {
    umount "$tmp/disk" 2>/dev/null
    rm -rf "$tmp"
}
n_refused=0
for kind in on_full_disk on_failing_writes on_failing_syncs under_limit when_it_disappears on_slow_disk; do
    red=$n_failed
    for ((n = 0; n < cases; n++)); do
        mesh=$((RANDOM % 2)) keep=2
        read -ra words <<<"${meshes[mesh]}"
        words=("${words[@]/#/--set=}")
        out=$tmp/run
        rm -rf "$out"
        $kind
    done
    echo "$kind: $cases cases, $((n_failed - red)) red"
done
echo "$n_ended runs ended by their fault, $n_struck by a failing call; $n_found times a checkpoint that was saved was looked for; $n_refused runs were refused"
finish
