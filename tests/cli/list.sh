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

# Every operator has a row, and the backend that runs everything has every kernel.
same "$("$dhelix" list ops --json | grep -c '"name"')" \
    "$(grep -c '^DH_OP(' src/graph/ops.def)" 'operators listed'
finish
