# Shared by the scripts of this folder, each of which is run as
#   bash tests/cli/NAME.sh PATH_OF_DHELIX
# from the repository root, and ends with finish.
set -u
dhelix=$1
# Rows of tables stay in one piece for grep.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} DHELIX_LOG=warn COLUMNS=200
export DHELIX_GEMM_PEAK=1e11 # a trial takes half a second of every run
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dhelix-cli-XXXXXX")
cleanup() { rm -rf "$tmp"; }
trap cleanup EXIT

n_checks=0
n_failed=0
stdin=/dev/null

# Whether cases are to run that are much like others: ./test.sh --ci and --full say so.
deep() { [ -n "${DHELIX_TEST_DEEP:-}" ]; }

# Whether the program is built with a sanitizer, which takes four times as long: what makes the same
# searches and simulations once more is left out then.
sanitized() { [ -n "${DHELIX_TEST_SANITIZED:-}" ]; }

fail() {
    n_failed=$((n_failed + 1))
    echo "FAILED: $*"
    [ ! -s "$tmp/err" ] || sed 's/^/    stderr: /' "$tmp/err" | head -20
    [ ! -s "$tmp/out" ] || sed 's/^/    stdout: /' "$tmp/out" | head -20
}

# Runs a command; its output is in $tmp/out and $tmp/err, its exit code in $status.
run() {
    timeout "${limit:-300}" "$@" <"$stdin" >"$tmp/out" 2>"$tmp/err"
    status=$?
}

ok() { # command...
    n_checks=$((n_checks + 1))
    run "$@"
    [ "$status" -eq 0 ] || fail "exit code $status of: $*"
}

fails() { # exit code, part of the message, command...
    local code=$1 part=$2
    shift 2
    n_checks=$((n_checks + 1))
    run "$@"
    [ "$status" -eq "$code" ] || fail "exit code $status, want $code, of: $*"
    grep -q '^dhelix: error: ' "$tmp/err" || fail "no error line from: $*"
    [ "$(grep -c '^dhelix: error: ' "$tmp/err")" -le 1 ] || fail "several error lines from: $*"
    grep -qF -- "$part" "$tmp/err" || fail "the message lacks \"$part\": $*"
}

says() { # text that the last command wrote to stdout
    n_checks=$((n_checks + 1))
    grep -qF -- "$1" "$tmp/out" || fail "the output lacks \"$1\""
}

check() { # what is claimed, command that confirms it
    local what=$1
    shift
    n_checks=$((n_checks + 1))
    "$@" >/dev/null 2>&1 || fail "$what"
}

json() { # key of a flat JSON output of the last command
    sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$tmp/out" | head -1
}

same() { # two values
    n_checks=$((n_checks + 1))
    [ "$1" = "$2" ] || fail "\"$1\" is not \"$2\"${3:+: $3}"
}

close() { # two numbers, tolerance
    n_checks=$((n_checks + 1))
    awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(d <= e && d >= -e && a != "") }' ||
        fail "$1 is not within $3 of $2"
}

# Everything of a run's metrics that does not depend on the clock.
curve() { # run folder
    grep -oE '"(step|loss|val_loss|grad_norm|lr)":[^,}]*' "$1/metrics.jsonl"
}

# A job of about a millisecond a step.
tiny_job() { # file, further lines of YAML
    cat >"$1" <<EOF
model: {name: tiny, family: gpt2, n_layers: 2, n_heads: 2, width: 32, max_seq: 32}
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: chars, val_fraction: 0.01}
train: {steps: 40, batch: 4, micro_batch: 2, seq_len: 32}
optimizer: {lr: 3.0e-3, warmup_steps: 5}
eval: {every: 10, batches: 2}
checkpoint: {every: 10, keep: 2}
EOF
}

# Seeds RANDOM: by DHELIX_TEST_SEED; with DHELIX_TEST_FRESH by the time; else always alike.
draw_seed() { # name of the script
    local seed=7405934735833
    [ -z "${DHELIX_TEST_FRESH:-}" ] || seed=$(date +%s%N)
    seed=${DHELIX_TEST_SEED:-$seed}
    RANDOM=$((seed % 32768))
    echo "$1: DHELIX_TEST_SEED=$seed"
}

finish() {
    echo "$n_checks checks, $n_failed failed"
    exit $((n_failed > 0))
}
