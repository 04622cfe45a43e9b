# Every command with its n-th allocation, file call or thread failing: it says so in one line and
# fails, or does its work all the same; nothing is lost, nothing stays allocated.
#   bash tests/faults/nth.sh DHELIX NTH_LIBRARY [--paths | --full] [COMMAND]
# With --full every call fails; with --paths, of the calls that the same chain of functions makes,
# the first; without, that of every 64th chain, and of every 8th where faults were found before.
#
# A command runs once for each kind: at every call that is to fail a copy of the process is made, in
# which it fails. A call made beside other threads, which no copy has, takes a run of its own.
library=$2
. tests/cli/lib.sh "$1"
shift 2
calls=paths:64 closely=paths:8 rarely=paths:1024 # closely: where faults were found; rarely: each call a run
case ${1:-} in
--paths) calls=paths:1 closely=paths:1 rarely=paths:16 && shift ;;
--full) calls=each closely=each rarely=paths:1 && shift ;;
esac
only=${1:-}
export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 # the limit holds where the program asks for more
mkfifo "$tmp/ask" "$tmp/answer"

# The command under test, which writes to $disk alone, and what it leaves that must be the same
# whenever it reports success.
disk=$tmp/disk
words=()
result=true # prints it
put=true    # puts there what it finds
kinds='alloc file thread'
beside_it= # a library that is loaded too
after=true # looks at what a call that failed has left

under_test() { # DH_NTH, words before the command...
    local what=$1
    shift
    rm -rf "$disk" "$tmp/report"
    mkdir "$disk"
    $put
    "$@" env DH_NTH="$what" DH_NTH_REPORT="$tmp/report" DH_NTH_DISK="$disk" DH_NTH_ASK="$tmp/ask" \
        DH_NTH_ANSWER="$tmp/answer" LD_PRELOAD="$library${beside_it:+ $beside_it}" "${words[@]}" <"$stdin" >"$disk/out" 2>"$disk/err"
}

run_once() { # kind, call
    under_test "$1:$2" timeout -s KILL 60
    status=$?
}

# Into $answer, without another process: this is asked very often.
reported() { # word
    local word rest
    answer=
    [ -e "$tmp/report" ] || return
    while read -r word rest; do [ "$word" != "$1" ] || answer+="$rest "; done <"$tmp/report"
    answer=${answer% }
}

digest() { # of what the command leaves
    $result | cksum
}

count_errors() { # into $n_errors
    local line
    n_errors=0
    while read -r line || [ -n "$line" ]; do
        [[ $line != 'dhelix: error: '* ]] || n_errors=$((n_errors + 1))
    done <"$disk/err"
}

blame() { # what
    reported struck
    cp "$disk/out" "$disk/err" "$tmp"
    fail "$name, $kind $n ($answer): $1"
}

judge() { # exit code
    n_checks=$((n_checks + 1))
    n_failing=$((n_failing + 1))
    case $1 in
    0) [ "$(digest)" = "$wanted" ] || blame 'success, and another result' ;;
    1)
        count_errors
        [ "$n_errors" -eq 1 ] || blame 'no error line, or several'
        ;;
    *) blame "exit code $1" ;;
    esac
    reported live
    if [ "$answer" != 0 ]; then
        local live=$answer
        reported at
        blame "${live:-unknown} allocations left, of $answer"
    fi
    $after
}

# Calls made beside other threads go to $beside.
fail_in_copies() {
    local how
    beside=()
    under_test "$kind:$calls" &
    exec 8<"$tmp/ask" 9>"$tmp/answer"
    while read -r n how <&8; do
        if [ "$how" = threads ]; then beside+=("$n"); else judge "$how"; fi
        echo >&9
    done
    exec 8<&- 9>&-
    wait $!
    same $? 0 "exit code of $name, whose copies fail"
}

each_call() { # name
    [ -z "$only" ] || [ "$only" = "$1" ] || return 0
    name=$1
    declare -gA seen=() # disks that were looked at
    run_once alloc 0
    same "$status" 0 "exit code of $name"
    wanted=$(digest)
    for kind in $kinds; do
        local n_calls n_red=$n_failed beside
        n_failing=0
        run_once "$kind" 0
        reported calls
        n_calls=$answer
        [ "$kind" = thread ] || check "$name makes calls of $kind" test "$n_calls" -gt 0
        fail_in_copies
        for n in "${beside[@]}"; do
            run_once "$kind" "$n"
            judge "$status"
        done
        echo "$name: $n_calls calls of $kind, $n_failing failed, ${#beside[@]} of them beside threads; $((n_failed - n_red)) red"
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

# ---- commands that only print ----

output() { cat "$disk/out"; }
result=output
words=("$dhelix" list models)
each_call list
words=("$dhelix" help train)
each_call help
words=("$dhelix" completion bash)
calls=$closely each_call completion # of all lists; rows were once left out, and clusters a bug
words=("$dhelix" check "$tmp/job.yaml" --set parallel.pp=1 --json)
each_call check
words=("$dhelix" simulate "$tmp/job.yaml" --set parallel.dp=2 --json)
each_call simulate
words=("$dhelix" simulate "$tmp/job.yaml" --cluster a40 --table parallel.dp=2,3 train.micro_batch=1,2 --csv)
each_call table
{
    echo m,n,k,dtype,tflops
    for k in 512 1024 2048 4096; do echo "1024,1024,$k,bf16,100"; echo "4096,1024,$k,bf16,120"; done
} >"$tmp/gemm.csv"
words=("$dhelix" calibrate "$tmp/gemm.csv" --like a40)
each_call calibrate
words=("$dhelix" tune "$tmp/job.yaml" --cluster a40 --set ranks=2 --threads 1 --json)
each_call tune
words[-2]=2
calls=$rarely each_call tune_threads
words=("$dhelix" plan "$tmp/job.yaml")
each_call plan
words=("$dhelix" plan "$tmp/job.yaml" --export json)
each_call plan_export
awk 'BEGIN { for (i = 0; i < 60; i++) print 1 + i * 7 % 8 }' >"$tmp/lengths"
words=("$dhelix" tune "$tmp/job.yaml" --cluster a40 --devices 2 --lengths "$tmp/lengths" --json)
each_call tune_lengths
words=("$dhelix" validate korthikanti-layer nccl-all-reduce --json)
each_call validate
# What is started is no part of the command: without the library it says what it was given. No file
# call fails: between fork and exec one is made in another process, beside the command's own.
printf '%s\n' 'unset LD_PRELOAD' 'echo "$@"' >"$tmp/launcher"
words=("$dhelix" launch "$tmp/job.yaml" --ranks 2 --set parallel.dp=2 --launcher "bash $tmp/launcher")
kinds='alloc thread'
each_call launch
kinds='alloc file thread'
words=("$dhelix" tokenize --tokenizer tests/data/chat --chat-template chatml tests/data/chat/chat.jsonl --stdout)
each_call chat
words=("$dhelix" eval "$tmp/whole" --data "$tmp/text" --batches 1 --json)
each_call eval
words=("$dhelix" sample "$tmp/whole" --tokens 4 --greedy)
each_call sample
words=("$dhelix" verify "$tmp/whole")
each_call verify

# ---- commands that write ----

made() { (cd "$disk" && find . -path './made*' -type f | sort | xargs -r cksum); }
result=made
words=("$dhelix" tokenize --tokenizer bytes "$tmp/text" -o "$disk/made")
each_call tokenize
gzip -c "$tmp/text" >"$tmp/packed.gz"
words=("$dhelix" tokenize --tokenizer bytes "$tmp/packed.gz" -o "$disk/made")
each_call unpack
words=("$dhelix" tokenize --train-bpe 300 "$tmp/text" -o "$disk/made")
each_call train_bpe
ok "$dhelix" tokenize --train-bpe 300 "$tmp/text" -o "$tmp/bpe"
words=("$dhelix" run-graph examples/programs/mlp_tp.graph --ranks 2 --inputs examples/programs/mlp_tp.safetensors
    --out "$disk/made")
each_call run_graph
words=("$dhelix" report "$tmp/whole" --traces "$disk/made")
each_call traces
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/merges" --set data.tokenizer="$tmp/bpe"
words=("$dhelix" convert "$tmp/merges" "$disk/made")
each_call convert_tokenizer
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/unigram" --set data.tokenizer=tests/data/tokenizers/spm/unigram.model
words=("$dhelix" convert "$tmp/unigram" "$disk/made")
each_call convert_unigram
beside=(--set train.init_from="$tmp/whole/checkpoints/step-000004" --set lora.rank=2 --set lora.targets=c_attn)
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/beside" "${beside[@]}"
words=("$dhelix" convert "$tmp/beside" "$disk/made")
each_call convert_lora
words=("$dhelix" convert "$tmp/whole" "$disk/made")
calls=$closely each_call convert # some few of its calls once gave other digits
# A model that is replaced: the former or the new one, and somebody's file, in its place or beside it; also
# on a file system that knows plain renames only.
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/other" --set train.steps=1 --set train.seed=5
ok "$dhelix" convert "$tmp/other" "$tmp/former"
echo mine >"$tmp/former/notes"
put_former() { cp -r "$tmp/former" "$disk/made"; }
model_in() { cat "$1/config.json" "$1/model.safetensors" 2>"$tmp/err" | cksum; }
ok "$dhelix" convert "$tmp/whole" "$tmp/new"
former=$(model_in "$tmp/former") new=$(model_in "$tmp/new")
is_either() {
    local now
    now=$(model_in "$disk/made")
    [ "$now" = "$former" ] || [ "$now" = "$new" ] || blame 'neither model is there'
    [ "$(cat "$disk"/made*/notes 2>"$tmp/err")" = mine ] || blame 'a file that is not the model'"'"'s is lost'
}
put=put_former
after=is_either
words=("$dhelix" convert "$tmp/whole" "$disk/made" --replace)
each_call replace
beside_it=${library%/*}/libdh_plain.so
calls=$closely each_call replace_plainly
beside_it=
put=true
after=true
words=("$dhelix" report "$tmp/whole" -o "$disk/made")
each_call report
# What a profile knew stays, or is there with what is new. No file call fails: where /proc/cpuinfo
# cannot be read the machine is another, whose profile replaces this one, with a warning.
matrix=tests/data/published/dhelix_h100_pairwise_oef_matrix.csv
words=("$dhelix" profile "$tmp/job.yaml" --import $matrix --out "$disk/made.json")
ok "$dhelix" profile "$tmp/job.yaml" --import $matrix --out "$tmp/old.json"
put_profile() { cp "$tmp/old.json" "$disk/made.json"; }
is_whole() { cmp -s "$disk/made.json" "$tmp/old.json" || [ "$(digest)" = "$wanted" ] || blame 'what was known is lost'; }
ok "$dhelix" report "$tmp/whole" --traces "$tmp/traces.json"
words=("$dhelix" profile "$tmp/job.yaml" --from-trace "$tmp/traces.json" --out "$disk/made.json")
kinds='alloc thread'
each_call from_trace
words=("$dhelix" profile "$tmp/job.yaml" --import $matrix --out "$disk/made.json")
put=put_profile
after=is_whole
kinds='alloc thread'
calls=$closely each_call import
kinds='alloc file thread'
put=true
after=true
result=true
words=("$dhelix" profile "$tmp/job.yaml" --samples 3 --out "$disk/made")
each_call profile
printed_keys() { grep -o '"[a-z_0-9]*":' "$disk/out" | sort | uniq -c; } # times differ
result=printed_keys
words+=(--json)
each_call profile_json

# ---- a page that is served ----

# Whoever asks again gets the run as it is by now, also where a page could not be drawn. The first
# is of a metric alone: what draws the second is new.
last_answer() { grep -o 'live  *http://127.0.0.1:' "$disk/out"; cat "$disk/answer"; }
two_runs() {
    mkdir "$disk/run" && cp -r "$tmp/whole" "$disk/next"
    printf '{"step":1,"loss":4.5}\n' >"$disk/run/metrics.jsonl"
}
put=two_runs
result=last_answer
beside_it=${library%/*}/libdh_visits.so
export DH_VISITS='/ /version /page next>run /page /page'
words=("$dhelix" report "$disk/run" --serve)
kinds='alloc file' # without the thread that waits for signals one ends the program at once
TMPDIR=$disk each_call serve
kinds='alloc file thread'
put=true
beside_it=

# ---- training: what failed goes on, and ends where the whole run ended ----

last_weights() { cat "$disk/run/checkpoints/step-000004/model.safetensors"; }
# Runs that find the same end alike: each disk is gone on with once.
goes_on() {
    local state
    state=$(tar -C "$disk" --sort=name --mtime=@0 -cf - run 2>"$tmp/err" | cksum)
    [ -z "${seen[$state]:-}" ] || return 0
    seen[$state]=1
    ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$disk/run" "${mesh[@]}"
    same "$(digest)" "$wanted" "weights after $name, $kind $n"
    check "nothing half-written after $name, $kind $n" test -z "$(find "$disk/run" -name '*.tmp-*' -o -name '.tmp-*')"
}
after=goes_on
result=last_weights
mesh=()
words=("$dhelix" train "$tmp/job.yaml" --quiet --set out="$disk/run")
calls=$closely each_call train
[ -n "$only" ] || same "$wanted" "$weights" 'weights of the whole run'
half_run() { cp -r "$tmp/half" "$disk/run"; }
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/half" --set train.steps=2
put=half_run
each_call resume
[ -n "$only" ] || same "$wanted" "$weights" 'weights of the run that went on'
put=true
# What TensorBoard reads is beside it; what adapters are trained to lies in another file.
events=(--set metrics.tensorboard=true)
words+=("${events[@]}")
each_call tensorboard
words=("${words[@]:0:${#words[@]}-${#events[@]}}")
last_adapter() { cat "$disk/run/checkpoints/step-000004/adapter_model.safetensors"; }
mesh=("${beside[@]}")
result=last_adapter
words+=("${mesh[@]}")
each_call train_beside
words=("${words[@]:0:${#words[@]}-${#mesh[@]}}")
result=last_weights
mesh=(--set data.format=chat --set data.train=tests/data/chat/chat.jsonl --set data.val=tests/data/chat/chat.jsonl
    --set data.val_fraction=0 --set data.tokenizer=tests/data/chat --set data.chat_template=chatml --set model.max_seq=64
    --set train.seq_len=64)
words+=("${mesh[@]}")
each_call train_chat
words=("${words[@]:0:${#words[@]}-${#mesh[@]}}")
mesh=()
writer=(--set checkpoint.async=true --set checkpoint.every=3)
words+=("${writer[@]}")
each_call saving
words=("${words[@]:0:${#words[@]}-${#writer[@]}}")
mesh=(--set parallel.dp=2)
words+=("${mesh[@]}")
each_call ranks
finish
