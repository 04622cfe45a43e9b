# At a terminal: widths, help of settings, what has JSON, completion, progress that fits.
. tests/cli/lib.sh "$1"
unset COLUMNS

fits() { # columns, command...
    local columns=$1
    shift
    ok "$@"
    check "no line of '$*' is longer than $columns" \
        awk -v most="$columns" 'length($0) > most { exit 1 }' "$tmp/out"
}

# ---- help and tables fit 80 columns, or what there is --------------------------------------
fits 80 "$dhelix" help
commands=$(sed -n 's/^  \([a-z]\{1,\}\) .*/\1/p' "$tmp/out")
for command in $commands; do fits 80 "$dhelix" help "$command"; done
fits 80 "$dhelix" help job
fits 60 env COLUMNS=60 "$dhelix" help job
for list in $("$dhelix" list --json | sed -n 's/.*"name": "\(.*\)",/\1/p'); do
    fits 80 "$dhelix" list "$list"
    fits 120 env COLUMNS=120 "$dhelix" list "$list"
done
# Numbers stand under their heading, in every row.
ok "$dhelix" list clusters
check 'columns keep their place' awk '
    NR == 1 { end = index($0, "memory_gb") + 8 }
    NR > 1 && /^[a-z]/ { if (substr($0, end, 1) !~ /[0-9]/ || substr($0, end + 1, 1) ~ /[^ ]/) { bad = 1; exit } }
    END { exit bad }' "$tmp/out"
check 'what has no room behind a row stands below it' \
    test "$(grep -A1 '^h200 ' "$tmp/out" | grep -c '^    8 H200 ')" -eq 1
# A table that is too wide goes on below, with the first column in front of both parts.
ok env COLUMNS=60 "$dhelix" list clusters
check 'every cluster stands in both parts' test "$(grep -c '^h100 ' "$tmp/out")" -eq 2

# What commands say of a job.
cat >"$tmp/llama.yaml" <<EOF
model: llama3-8b
train: {batch: 32, seq_len: 4096, dtype: bf16}
parallel: {tp: 8, zero: 1}
EOF
fits 80 "$dhelix" check examples/tp2.yaml
says '804 K parameters (804096)'
says '5.08 GFLOP'
fits 80 "$dhelix" check examples/tp2.yaml --print recipe
fits 80 "$dhelix" plan examples/tp2.yaml --set profile=none
check 'auto has the shortest order, or says why not' awk '
    $1 == "auto" && $2 + 0 > 0 { own = $2 }
    $2 + 0 > 0 && $3 ~ /x$/ && (!best || $2 + 0 < best) { best = $2 + 0 }
    /^auto stops at the first order that is within 1 % of the bound/ { said = 1 }
    END { exit !(own > 0 && (own <= best || said)) }' "$tmp/out"
fits 80 "$dhelix" plan examples/tp2.yaml --set profile=none --explain
says 'reduction'
fits 80 "$dhelix" plan "$tmp/llama.yaml" --explain --set profile=none --ranks 32 --set parallel.pp=2
says 'reduce_scatter dp-cp'
says 'all_gather dp-cp'
says 'B15'
check 'every stage reduces' test "$(grep -c '^ *[01]  B15  *reduce_scatter' "$tmp/out")" -eq 2
fits 80 "$dhelix" plan examples/nanogpt_char.yaml --set profile=none --explain
says 'gradients and parameters stay on their rank'
ok "$dhelix" plan "$tmp/llama.yaml" --explain --set profile=none --ranks 32 --json
check 'reductions and gathers are there as JSON' test "$(grep -c '"in": "' "$tmp/out")" -ge 4
check 'and the operators of the slot' test "$(grep -c '"start_us"' "$tmp/out")" -gt 20
fits 80 "$dhelix" simulate "$tmp/llama.yaml" --cluster h100 --ranks 8
fits 80 "$dhelix" simulate "$tmp/llama.yaml" --cluster h100 --ranks 8 --strategies sequential,list
fits 80 "$dhelix" tune "$tmp/llama.yaml" --cluster h100 --devices 16 --strategies sequential \
    --schedules 1f1b --verify 1
says 'the best with each value'
fits 80 "$dhelix" validate zero-bubble
# Numbers as people write them, however large.
many=(--cluster h100 --ranks 8 --set train.batch=32 --set train.micro_batch=1 --set model=llama3-70b)
fits 80 "$dhelix" plan "$tmp/llama.yaml" "${many[@]}" --set strategy=dhelix
says 'is predicted to take'
check 'no exponents in a plan' test -z "$(grep -E '[0-9]e[+-][0-9]' "$tmp/out")"
fits 80 "$dhelix" simulate "$tmp/llama.yaml" "${many[@]}"
check 'nor in a simulation' test -z "$(grep -E '[0-9]e[+-][0-9]' "$tmp/out")"

# ---- help of settings --------------------------------------------------------------------------
ok "$dhelix" help train.steps
says 'train.steps: optimizer steps'
says 'default: 1000'
says '--set train.steps=VALUE'
ok "$dhelix" help train.max_iters
says 'train.steps: optimizer steps'
ok "$dhelix" help parallel
says 'parallel.virtual_stages'
check 'a section is all that is explained' test "$(grep -c '^  train\.' "$tmp/out")" -eq 0
ok "$dhelix" help train
says 'usage: dhelix train'
ok "$dhelix" help train.
says '  train.steps'
check 'of settings alone' test "$(grep -c usage "$tmp/out")" -eq 0
fails 2 'did you mean "train.steps"?' "$dhelix" help train.stepz

# ---- JSON or a refusal --------------------------------------------------------------------------
job=examples/quickstart.yaml
fails 2 'unknown option --json' "$dhelix" help --json
fails 2 'unknown option --json' "$dhelix" completion bash --json
fails 2 '--print graph has no JSON form' "$dhelix" check $job --print graph --json
fails 2 '--decode has no JSON form' "$dhelix" tokenize --tokenizer bytes --decode --json
fails 2 'two forms' "$dhelix" validate --markdown --json
ok "$dhelix" check $job --print recipe --json
check 'what is derived is a JSON array' grep -q '^\[' "$tmp/out"

# ---- completion ---------------------------------------------------------------------------------
ok "$dhelix" completion zsh
says '#compdef dhelix'
says "'--fresh["
fails 2 'bash or zsh' "$dhelix" completion fish
ok "$dhelix" completion bash
cp "$tmp/out" "$tmp/completion"
completes() { # word that is offered, words of a command line
    local want=$1
    shift
    n_checks=$((n_checks + 1))
    # shellcheck disable=SC2016
    bash -c '. "$0"; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dhelix
        printf "%s\n" "${COMPREPLY[@]}"' "$tmp/completion" dhelix "$@" >"$tmp/out" 2>"$tmp/err"
    grep -qxF -- "$want" "$tmp/out" || fail "\"$want\" is not offered for: dhelix $*"
    [ ! -s "$tmp/err" ] || fail "completion complains: dhelix $*"
}
completes train tr
completes --fresh train --f
completes a100 simulate --cluster a
completes train.steps= train x --set train.st
completes bf16 train x --set train.dtype = b
completes dhelix train x --set strategy =
completes parallel.tp help para
completes strategies list st
completes graph check x --print ''
for command in $commands; do completes "$command" "$command"; done

# ---- progress on a terminal ----------------------------------------------------------------------
# What a terminal of so many columns is sent while a command runs in it.
terminal() { # columns, shell command
    n_checks=$((n_checks + 1))
    timeout 120 script -qefc "stty cols $1; $2" "$tmp/typescript" <"$stdin" >/dev/null 2>&1
    status=$?
}
# Lines as they were drawn: one begins where the one before is erased.
drawn() { tr '\r' '\n' <"$tmp/typescript" | sed 's/\x1b\[J//g; s/\x1b\[A//g' | grep -aE '^(\[[#-]+\] )?step [0-9]+/'; }
longest() { drawn | awk '{ if (length($0) > most) most = length($0) } END { print most + 0 }'; }

tiny_job "$tmp/job.yaml"
for columns in 80 44; do
    terminal $columns "'$dhelix' train '$tmp/job.yaml' --fresh --set out='$tmp/run'"
    same "$status" 0 "training in a terminal of $columns columns"
    check 'progress was drawn' test "$(longest)" -gt 20
    check "progress leaves the last of $columns columns free" test "$(longest)" -lt $columns
done
# Until the terminal shows what is wanted, a minute at most.
cat >"$tmp/shows" <<EOF
for i in \$(seq 600); do grep -qa "\$1" '$tmp/typescript' && exit 0; sleep .1; done
exit 1
EOF
terminal 90 "'$dhelix' train '$tmp/job.yaml' --fresh --set out='$tmp/run' --set train.steps=1000000 &
    sh '$tmp/shows' 'grad'; stty cols 50; sleep 1; kill -TERM \$!; wait \$!"
same "$status" 130 'a run that is ended'
check 'lines filled 90 columns' test "$(longest)" -ge 60
check 'and fit 50 after it was resized' test "$(drawn | tail -1 | awk '{ print length($0) }')" -lt 50

# ---- a search that is interrupted ends at once, below its line of progress -----------------------
terminal 80 "'$dhelix' tune '$tmp/llama.yaml' --cluster h100 --devices 4096 &
    sh '$tmp/shows' configurations; kill -TERM \$!; wait \$!"
same "$status" 130 'a search that is interrupted'
check 'the message has a line of its own' \
    grep -qa "^dhelix: error: interrupted" "$tmp/typescript"
# What came to its end leaves its result only.
terminal 80 "'$dhelix' tune '$tmp/llama.yaml' --cluster h100 --devices 8 --strategies sequential \
    --schedules 1f1b --verify 1"
no_bar_stays() { # command
    check "no bar of $1 stays above the result" \
        test -z "$(sed 's/.*\x1b\[J//' "$tmp/typescript" | grep -a '^\[[#-]')"
}
no_bar_stays tune

# ---- simulations and evaluations that take longer than a second say how far they are --------------
shown() { grep -qa "$1" "$tmp/typescript"; }
is_shown_by() { # text, command that is ended once the text is shown
    terminal 80 "$2 & sh '$tmp/shows' '$1'; kill -TERM \$!; wait \$!"
    same "$status" 143 "$2, ended"
    check "$2 shows '$1'" shown "$1"
}
large="simulate examples/llama3_70b.yaml --cluster h100"
! sanitized || large+=" --set train.batch=64"
table="$large --set parallel.schedule=gpipe --table train.micro_batch=1,2 --show step"
terminal 80 "'$dhelix' $table"
same "$status" 0 'a table in a terminal'
check 'cells are counted, and the one at work is named' shown '[01]/2 simulated, now train.micro_batch=[12]'
no_bar_stays simulate
terminal 80 "'$dhelix' $table --quiet"
check 'nothing is drawn with --quiet' test -z "$(grep -a 'simulated, now' "$tmp/typescript")"
# shellcheck disable=SC2086
ok "$dhelix" $large --strategies sequential
check 'nor where there is no terminal' test ! -s "$tmp/err"
is_shown_by ' simulated, now ' "'$dhelix' $large --every-rank --strategies sequential,list"
is_shown_by ' programs built' "'$dhelix' $large --every-rank"
is_shown_by ' micro-batches evaluated' \
    "'$dhelix' eval '$tmp/run' --data '$PWD/examples/data/tinyshakespeare.txt' --seq 8"

ok "$dhelix" --version
check 'the version is that of the package' \
    grep -qx "dhelix $(sed -n 's/^project(dhelix VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)" "$tmp/out"
finish
