# Signals in every phase of a command: it ends soon, nothing is half-written, and what is continued
# has the bits of what was not interrupted. Phases are known by what they leave, not by time.
. tests/cli/lib.sh "$1"
draw_seed signals
tiny_job "$tmp/job.yaml"

# A command in the background, whose pid is $pid. Job control off makes background jobs ignore
# SIGINT; env restores the default.
begin() { # command...
    : >"$tmp/out"
    env --default-signal=INT,TERM,HUP,USR1 "$@" </dev/null >"$tmp/out" 2>"$tmp/err" &
    pid=$!
}

until_seen() { # what is waited for, command that sees it
    local what=$1
    shift
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 $pid 2>/dev/null; then
            fail "the command ended before $what"
            return
        fi
        sleep 0.005
    done
}

# It has the signal's name, or 130 where it catches it.
ends() { # signal, exit code, what it did
    local code before=$SECONDS
    kill "-$1" $pid
    wait $pid
    code=$?
    same $code "$2" "exit code after SIG$1 $3"
    check "it ends soon after SIG$1 $3" test $((SECONDS - before)) -le 5
    [ "$2" -ne 130 ] || check "one line says so, $3" test "$(grep -c '^dhelix: error: ' "$tmp/err")" -eq 1
}

has() { # pattern of files
    compgen -G "$1"
}

# Nothing that has the name of a temporary file or folder.
none_left() { # folder
    check "nothing half-written is left in $1" test -z "$(find "$1" -name '*.tmp-*')"
}

equal() { # run folder, other run folder, step
    same "$(curve "$1" | cksum)" "$(curve "$2" | cksum)" "losses of $1"
    local file
    for file in model optimizer; do
        check "$file of $1" cmp "$1/checkpoints/step-$3/$file.safetensors" "$2/checkpoints/step-$3/$file.safetensors"
    done
}

# ---- training: text is tokenized ------------------------------------------------------------
# 10 MB of drawn words, which take seconds: a run that heeds the signal has made no step by then.
awk -v seed=$RANDOM 'BEGIN { srand(seed); for (i = 0; i < 1600000; i++) printf "%s%s", substr("abcdefghijklmnop", 1 + int(rand() * 12), 1 + int(rand() * 5)) int(rand() * 100), i % 12 ? " " : "\n" }' >"$tmp/big.txt"
reads=("$dhelix" train "$tmp/job.yaml" --quiet --set data.train="$tmp/big.txt" --set data.tokenizer=tests/data/tokenizers/gpt2
    --set train.steps=3 --set eval.batches=2)
for signal in TERM INT; do
    begin "${reads[@]}" --set out="$tmp/reads" --set data.cache="$tmp/cache-$signal"
    until_seen 'text was tokenized' has "$tmp/cache-$signal/*.tmp-*"
    ends $signal 130 'while text is tokenized'
    check 'no step was made' test ! -e "$tmp/reads/checkpoints"
    check 'no tokens are taken for whole' test -z "$(find "$tmp/cache-$signal" -name '*.tokens')"
    none_left "$tmp/cache-$signal"
done

# Text is unpacked: 600 MB of it, from members one after the other.
gzip -1 -c "$tmp/big.txt" >"$tmp/one.gz"
for _ in $(seq 60); do cat "$tmp/one.gz"; done >"$tmp/big.gz"
begin "${reads[@]}" --set out="$tmp/reads" --set data.cache="$tmp/cache-gz" --set data.train="$tmp/big.gz"
until_seen 'text was unpacked' has "$tmp/cache-gz/*.tmp-*"
ends TERM 130 'while text is unpacked'
same "$(ls "$tmp/cache-gz")" '' 'what is kept of it'

# Whatever it does before its first step, at drawn moments.
cp "$tmp/job.yaml" "$tmp/starts.yaml"
starts=("$dhelix" train "$tmp/starts.yaml" --quiet --ranks 2 --set train.steps=4 --set profile=none)
ok "${starts[@]}" --set out="$tmp/undisturbed"
for _ in 1 2 3; do
    begin "${starts[@]}" --set out="$tmp/starts"
    sleep "0.$(printf %03d $((RANDOM % 300)))"
    kill -TERM $pid 2>/dev/null
    wait $pid
    code=$?
    check "exit code $code at a drawn moment" test $code -eq 130 -o $code -eq 143 -o $code -eq 0
done
ok "${starts[@]}" --set out="$tmp/starts"
equal "$tmp/starts" "$tmp/undisturbed" 000004

# ---- training: validation -------------------------------------------------------------------
# 1,000 batches after every step; the signal comes when the step has its line and validation none.
lines() { # run folder, key: how many lines of metrics have it
    if [ -e "$1/metrics.jsonl" ]; then grep -c "\"$2\"" "$1/metrics.jsonl"; else echo 0; fi
}
validates() { # run folder, step
    [ "$(lines "$1" loss)" -eq "$2" ] && [ "$(lines "$1" val_loss)" -lt "$2" ]
}
long=("$dhelix" train "$tmp/job.yaml" --quiet --set train.steps=2 --set data.val="$PWD/examples/data/tinyshakespeare.txt"
    --set eval.every=1 --set eval.batches=1000 --set checkpoint.every=0 --set profile=none)
meshes=('--ranks 1' '--ranks 2')
! deep || meshes+=('--ranks 2 --set parallel.pp=2' '--ranks 4 --set parallel.dp=2 --set parallel.tp=2')
n=0
for mesh in "${meshes[@]}"; do
    # shellcheck disable=SC2206
    words=("${long[@]}" $mesh)
    n=$((n + 1))
    cut=$tmp/cut-$n
    ok "${words[@]}" --set out="$tmp/uncut-$n"
    for step in 1 2; do
        begin "${words[@]}" --set out="$cut"
        until_seen "the validation of step $step" validates "$cut" $step
        ends TERM 130 "in the validation of step $step ($mesh)"
        same "$(lines "$cut" loss)" $step 'no further step was made'
        same "$(lines "$cut" val_loss)" $((step - 1)) 'the validation was cut short'
        check 'the message names the checkpoint' grep -q "stopped after step $step of 2; .*step-00000$step" "$tmp/err"
    done
    ok "${words[@]}" --set out="$cut"
    equal "$cut" "$tmp/uncut-$n" 000002
done

# ---- commands that only print or write one file --------------------------------------------------
begin "$dhelix" tokenize --tokenizer tests/data/tokenizers/gpt2 "$tmp/big.txt" -o "$tmp/big.bin"
until_seen 'tokens were written' has "$tmp/big.bin.tmp-*"
ends TERM 143 'in tokenize'
same "$(compgen -G "$tmp/big.bin*")" '' 'what tokenize leaves'
for signal in TERM HUP USR1; do
    begin "$dhelix" tokenize --tokenizer bytes "$tmp/big.gz" -o "$tmp/big.bin"
    until_seen 'text was unpacked' sh -c "ls -l /proc/$pid/fd | grep -q '(deleted)'"
    ends $signal $((128 + $(kill -l $signal))) 'while tokenize unpacks'
    same "$(compgen -G "$tmp/big.bin*")" '' 'what tokenize leaves'
done
begin "$dhelix" tokenize --train-bpe 5000 "$tmp/big.gz" -o "$tmp/learned"
until_seen 'text was unpacked' sh -c "ls -l /proc/$pid/fd | grep -q '(deleted)'"
ends TERM 143 'while a tokenizer is learned'
check 'no tokenizer is written' test ! -e "$tmp/learned"
begin "$dhelix" eval "$tmp/undisturbed" --data "$PWD/examples/data/tinyshakespeare.txt" --seq 8
until_seen 'it began' grep -q libdnnl "/proc/$pid/maps"
ends TERM 143 'in eval'
same "$(cat "$tmp/out")" '' 'what eval printed'
begin "$dhelix" profile "$tmp/job.yaml" --seconds 1000 --samples 10000 --out "$tmp/profile.json"
# The second thread takes signals; the third is a rank.
until_seen 'a rank began' grep -q '^Threads:.*[3-9]$' "/proc/$pid/status"
ends TERM 130 'in profile'
check 'no profile is written' test ! -e "$tmp/profile.json"
# A model of 100 MB, which takes a while to write.
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/large" --set train.steps=1 --set train.batch=1 --set train.micro_batch=1 \
    --set model.width=512 --set model.n_layers=8 --set profile=none --set eval.every=0
ok "$dhelix" convert "$tmp/undisturbed" "$tmp/replaced"
before=$(cat "$tmp"/replaced/* | cksum)
for out in made replaced; do
    begin "$dhelix" convert "$tmp/large" "$tmp/$out" --replace
    until_seen 'weights were written' has "$tmp/$out.tmp-*/model.safetensors*"
    ends TERM 143 'in convert'
    none_left "$tmp"
done
check 'no model is written' test ! -e "$tmp/made"
same "$(cat "$tmp"/replaced/* | cksum)" "$before" 'the model that was to be replaced'
begin "$dhelix" simulate examples/llama3_70b.yaml --cluster h100 --trace "$tmp/trace.json"
until_seen 'signals were its own' grep -q '^SigBlk:.*42..$' "/proc/$pid/status"
ends TERM 143 'in simulate'
same "$(compgen -G "$tmp/trace.json*")" '' 'what simulate leaves'
for _ in 1 2 3; do
    begin "$dhelix" verify "$tmp/large"
    until_seen 'it began' grep -qx dhelix "/proc/$pid/comm"
    sleep "0.0$((RANDOM % 10))"
    kill -TERM $pid 2>/dev/null
    wait $pid
    code=$?
    check "exit code $code of verify" test $code -eq 143 -o $code -eq 0
done
ok "$dhelix" verify "$tmp/large"
begin "$dhelix" sample "$tmp/undisturbed" --prompt a --tokens 1000000
until_seen 'text was written' test -s "$tmp/out"
ends TERM 130 'in sample'
# A prompt that takes seconds to read, or minutes on a busy machine.
cat >"$tmp/reader.yaml" <<EOF
model: {family: llama, n_layers: 8, width: 512, n_heads: 8, ffn_width: 1408, vocab: 256, max_seq: 4096}
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: bytes}
train: {steps: 1, batch: 1, micro_batch: 1, seq_len: 32}
eval: {every: 0}
out: $tmp/reader
EOF
ok "$dhelix" train "$tmp/reader.yaml" --quiet
begin "$dhelix" sample "$tmp/reader" --prompt "$(head -c 4000 "$tmp/big.txt")" --tokens 90
until_seen 'the prompt was shown' test -s "$tmp/out"
ends TERM 130 'while a prompt is read'
finish
