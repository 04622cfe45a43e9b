# The tables, as text and as JSON.
. tests/cli/lib.sh "$1"

ok "$dhelix" list
for list in $(awk 'NR > 1 { print $1 }' "$tmp/out"); do
    ok "$dhelix" list "$list"
    rows=$(grep -c '^[^ ]' "$tmp/out")
    check "list $list has rows" test "$rows" -ge 2
    ok "$dhelix" list "$list" --json
    check "list $list is a JSON array" grep -q '^\[' "$tmp/out"
    same "$(grep -c '^  {' "$tmp/out")" $((rows - 1)) "rows of list $list as JSON"
done
ok "$dhelix" list models
says gpt2
ok "$dhelix" list ops
says 'cpu(parts)'
says attention_grad
says 'cpu'
ok "$dhelix" list schedules
says 1f1b
ok "$dhelix" list strategies
says sequential
ok "$dhelix" list passes
says 'ways: forth, both'
same "$("$dhelix" list passes --json | grep -c '"name"')" \
    "$(grep -c '^DH_PASS(' src/graph/passes.def)" 'passes listed'
ok "$dhelix" list clusters
says a40
ok "$dhelix" list cluster-settings
says device.memory_gb_per_s
says attention_grad
ok "$dhelix" list groups
says 'gradients of dense weights'
ok "$dhelix" list placements
says 2p-1-g
ok "$dhelix" list worlds
says mpi
ok "$dhelix" list settings
says train.micro_batch


# A job of a published table goes by its name, or by its path where there is no such file.
ok "$dhelix" list jobs
check 'its model and mesh' grep -q '^megascale-175b  *gpt-175b  *256  dp 4, tp 8, pp 8' "$tmp/out"
same "$("$dhelix" list jobs --json | grep -c '"name"')" "$(ls validation/jobs | wc -l)" 'jobs listed'
ok "$dhelix" list jobs --json
check 'a job with its tables' grep -q '"tables": "zero-bubble-throughput, zero-bubble-memory"' "$tmp/out"
by_file=$("$dhelix" simulate validation/jobs/korthikanti-22b.yaml --cluster selene)
same "$("$dhelix" simulate korthikanti-22b --cluster selene)" "$by_file" 'a job by its name'
here=$PWD program=$(realpath "$dhelix")
cd "$tmp" || exit 1
same "$("$program" simulate validation/jobs/korthikanti-22b.yaml --cluster selene)" "$by_file" 'and by its path elsewhere'
cd "$here" || exit 1
fails 1 'cannot open korthikanti-2b' "$dhelix" simulate korthikanti-2b --cluster selene
ok "$dhelix" help sc21-7.5b
says 'dhelix simulate sc21-7.5b'
ok "$dhelix" completion bash
check 'jobs and files' grep -q 'simulate:\*) words=.*sc21-7.5b .*files=yes' "$tmp/out"
ok "$dhelix" completion zsh
says '_dhelix_jobs'

# Every operator has a row, and the backend that runs everything has every kernel.
same "$("$dhelix" list ops --json | grep -c '"name"')" \
    "$(grep -c '^DH_OP(' src/graph/ops.def)" 'operators listed'
finish
