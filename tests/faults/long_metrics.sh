# A run of three million steps: more than 1 GiB of metrics.jsonl. It is continued, drawn and verified
# in memory that does not depend on their number.
#   bash tests/faults/long_metrics.sh DHELIX [LINES]
lines=${2:-3200000}
. tests/cli/lib.sh "$1"
limit=1200
tiny_job "$tmp/job.yaml"
ok "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/run" --set train.steps=10
# Lines of step 1 stand for all that came before.
{
    head -1 "$tmp/run/metrics.jsonl" | awk -v n="$lines" '{ sub(/}$/, ",\"note\":\"" sprintf("%150s", "") "\"}"); for (i = 0; i < n; i++) print }'
    tail -n +2 "$tmp/run/metrics.jsonl"
    printf '{"step":11,"lo'
} >"$tmp/long"
mv "$tmp/long" "$tmp/run/metrics.jsonl"
echo "$(stat -c %s "$tmp/run/metrics.jsonl") bytes"

within() { # KiB, command...
    local most=$1 used
    shift
    ok /usr/bin/time -f '%M' -o "$tmp/used" "$@"
    used=$(tail -1 "$tmp/used")
    echo "${2}: $used KiB"
    check "$2 in $most KiB" test "$used" -le "$most"
}

within 300000 "$dhelix" train "$tmp/job.yaml" --quiet --set out="$tmp/run" --set train.steps=12
same "$(tail -4 "$tmp/run/metrics.jsonl" | grep -c '"step":1[12],"loss"')" 2 'steps done'
same "$(cat "$tmp/run/metrics.unreadable")" '{"step":11,"lo' 'what was kept aside'
within 300000 "$dhelix" report "$tmp/run" -o "$tmp/run.html"
check 'the page is small' test "$(stat -c %s "$tmp/run.html")" -le 4000000
within 300000 "$dhelix" verify "$tmp/run"
finish
