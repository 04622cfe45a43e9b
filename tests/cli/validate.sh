# Predictions beside published tables: text, Markdown, JSON.
. tests/cli/lib.sh "$1"

ok "$dhelix" validate --quiet
says 'zero-bubble: mean error'
same "$(grep -c 'mean error' "$tmp/out")" "$("$dhelix" list tables --json | grep -c '"name"')" \
    'a line for each table'
ok "$dhelix" validate zero-bubble
says '6.2B p=8 m=64 1F1B-I'
says '2401.10241'
rows=$(grep -c ' m=' "$tmp/out")
ok "$dhelix" validate zero-bubble --markdown
says '| predicted | published | error |'
same "$(grep -c '^| [0-9]' "$tmp/out")" "$rows" 'rows in Markdown'
ok "$dhelix" validate --markdown
says '| `korthikanti-iteration` |'
ok "$dhelix" validate zero-bubble --json
same "$(grep -c '"predicted"' "$tmp/out")" "$rows" 'rows in JSON'
check 'the aim is in the JSON' grep -q '"aim": 0.005' "$tmp/out"

# A cluster of one's own: slower links, longer iterations.
first() { "$dhelix" validate korthikanti-iteration --json "$@" | sed -n 's/.*"predicted": \([0-9.]*\).*/\1/p' | head -1; }
printf 'like: selene\nlocal: {gb_per_s: 30}\n' >"$tmp/slow.yaml"
check 'slower links give longer iterations' awk -v a="$(first)" -v b="$(first --cluster "$tmp/slow.yaml")" \
    'BEGIN { exit !(b > 1.2 * a) }'
printf 'like: selene\nlocal: {gb_per_s: fast}\n' >"$tmp/bad.yaml"
fails 1 'bad.yaml:2:19: local.gb_per_s' "$dhelix" validate korthikanti-iteration --cluster "$tmp/bad.yaml"
fails 1 'did you mean zero-bubble' "$dhelix" validate zero-buble
finish
