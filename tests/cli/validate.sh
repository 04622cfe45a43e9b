# Predictions beside published tables: text, Markdown, JSON.
. tests/cli/lib.sh "$1"

# All tables: once, since six of them simulate programs.
ok "$dhelix" validate --markdown
says '| `korthikanti-iteration` |'
same "$(grep -c '^| `' "$tmp/out")" "$("$dhelix" list tables --json | grep -c '"name"')" \
    'a line for each table'

ok "$dhelix" validate zero-bubble --quiet
says 'zero-bubble: mean error'
same "$(wc -l <"$tmp/out")" 1 'a quiet line'
ok "$dhelix" validate zero-bubble
says '6.2B p=8 m=64 1F1B-I'
says '2401.10241'
rows=$(grep -c ' m=' "$tmp/out")
ok "$dhelix" validate zero-bubble --markdown
says '| predicted | published | error |'
same "$(grep -c '^| [0-9]' "$tmp/out")" "$rows" 'rows in Markdown'
ok "$dhelix" validate zero-bubble --json
same "$(grep -c '"predicted"' "$tmp/out")" "$rows" 'rows in JSON'
check 'the aim is in the JSON' grep -q '"aim": 0.005' "$tmp/out"
ok "$dhelix" validate korthikanti-iteration
says 'Calculon on the same jobs: mean error 3.65 %'
ok "$dhelix" validate dhelix-volumes
says 'aim exact: met'

# A long table: rows that belong together in a line, all of them on request and in JSON.
ok "$dhelix" validate nccl-all-reduce
says '512 to 1023 MiB, mean of 512'
same "$(grep -c '^[^ ].* MiB, ' "$tmp/out")" 11 'groups of sizes'
ok "$dhelix" validate nccl-all-reduce --rows all
same "$(grep -c ' MiB, ring' "$tmp/out")" 1024 'all rows'
ok "$dhelix" validate nccl-all-reduce --markdown
same "$(grep -c ' MiB' "$tmp/out")" 11 'groups of sizes in Markdown'
ok "$dhelix" validate nccl-all-reduce --json
same "$(grep -c '"predicted"' "$tmp/out")" 1024 'all rows in JSON'
fails 2 'rows' "$dhelix" validate nccl-all-reduce --rows some

# A cluster of one's own: slower links, longer iterations.
first() { "$dhelix" validate korthikanti-iteration --json "$@" | sed -n 's/.*"predicted": \([0-9.]*\).*/\1/p' | head -1; }
printf 'like: selene\nlocal: {gb_per_s: 30}\n' >"$tmp/slow.yaml"
check 'slower links give longer iterations' awk -v a="$(first)" -v b="$(first --cluster "$tmp/slow.yaml")" \
    'BEGIN { exit !(b > 1.2 * a) }'
printf 'like: selene\nlocal: {gb_per_s: fast}\n' >"$tmp/bad.yaml"
fails 1 'bad.yaml:2:19: local.gb_per_s' "$dhelix" validate korthikanti-iteration --cluster "$tmp/bad.yaml"
fails 1 'did you mean zero-bubble' "$dhelix" validate zero-buble
finish
