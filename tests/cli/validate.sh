# Predictions beside published tables: text, Markdown, JSON.
. tests/cli/lib.sh "$1"

# Several tables, a line each. All of them are in tests/validate: most of a minute, since eight
# simulate programs.
ok "$dhelix" validate korthikanti-layer zero-bubble nccl-all-reduce --markdown
says '| `korthikanti-layer` |'
same "$(grep -c '^| `' "$tmp/out")" 3 'a line for each table'
ok "$dhelix" validate korthikanti-layer zero-bubble --quiet
same "$(grep -o '^[a-z-]*:' "$tmp/out" | tr -d '\n')" 'korthikanti-layer:zero-bubble:' 'the order asked for'

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
ok "$dhelix" validate dhelix-volumes
says 'aim exact: met'

# Without a name all of them, as they are done: here until there are two.
"$dhelix" validate --quiet >"$tmp/all" 2>"$tmp/err" &
all=$!
for _ in $(seq 600); do
    [ "$(wc -l <"$tmp/all")" -lt 2 ] && kill -0 "$all" 2>/dev/null || break
    sleep 0.1
done
kill "$all" 2>/dev/null
wait "$all" 2>/dev/null
ok "$dhelix" list tables --json
sed -n 's/.*"name": "\(.*\)",*/\1/p' "$tmp/out" >"$tmp/tables"
same "$(sed 's/:.*//' "$tmp/all" | head -2 | tr '\n' ' ')" "$(head -2 "$tmp/tables" | tr '\n' ' ')" 'all tables in their order'

# Constants, fitted again.
ok "$dhelix" validate nccl-h100 --fit
says 'network.in_switch'
says 'in the rows left out'
ok "$dhelix" validate nccl-h100 --fit --json
same "$(grep -c '"part_fitted"' "$tmp/out")" 6 'constants in JSON'
fails 2 'of one TABLE' "$dhelix" validate --fit
fails 1 'no constant' "$dhelix" validate megascale --fit

# A paper's tables by its name.
fails 1 'name one of them' "$dhelix" validate dhelix-paper --fit
fails 1 'did you mean dhelix-paper' "$dhelix" validate dhelix-papers
ok "$dhelix" list tables
says 'dhelix-ablation          dhelix-paper'

# Rows that others published of NeMo: the job that a user would simulate.
ok "$dhelix" validate nemo-long --json
says '--set parallel.cp=32'
says '--set system=nemo+second-flash --set train.fp8=hybrid'
same "$(grep -c '"predicted"' "$tmp/out")" 9 'long sequences'

# Pictures: bars of both, stacks that reach 100 %, dots; a page with the rows and their commands.
ok "$dhelix" validate dhelix-volumes oef-h100 zero-bubble megascale --quiet --svg "$tmp/pictures/all" --html "$tmp/page.html"
for name in dhelix-volumes oef-h100 zero-bubble megascale; do
    check "the picture of $name" python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$tmp/pictures/all/$name.svg"
done
same "$(grep -o 'class="[FB]"' "$tmp/pictures/all/dhelix-volumes.svg" | wc -l)" 14 'a bar for each figure, and the legend'
same "$(grep -o '<circle' "$tmp/pictures/all/zero-bubble.svg" | wc -l)" 12 'a dot for each row'
same "$(grep -c '<svg' "$tmp/page.html")" 4 'a picture of each table on the page'
check 'the page has commands' grep -q 'dhelix simulate validation/jobs/megascale-175b.yaml' "$tmp/page.html"
fails 2 'of one TABLE' "$dhelix" validate nccl-h100 --fit --svg "$tmp/pictures"
fails 1 'cannot' "$dhelix" validate zero-bubble --quiet --svg "$tmp/page.html/pictures"

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

# What simulates a row gives the row's step.
ok "$dhelix" validate korthikanti-layer --json
command=$(sed -n 's/.*"command": "dhelix \(.*\)",*/\1/p' "$tmp/out" | head -1)
step=$(sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out" | head -1)
case $command in simulate\ validation/jobs/*) ;; *) fail "no command in: $command" ;; esac
# shellcheck disable=SC2086 # the command's words
ok "$dhelix" $command --json
same "$(sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$tmp/out")" "$step" 'the step of a row, by its command'
ok "$dhelix" check validation/jobs/dhelix-llama-8b.yaml --print recipe
fails 1 'is only simulated' "$dhelix" train validation/jobs/sc21-1.7b.yaml --set out="$tmp/run"

# A cluster of one's own: slower links, longer iterations.
first() { "$dhelix" validate korthikanti-layer --json "$@" | sed -n 's/.*"predicted": \([0-9.]*\).*/\1/p' | head -1; }
printf 'like: selene\nlocal: {gb_per_s: 30}\n' >"$tmp/slow.yaml"
check 'slower links give longer iterations' awk -v a="$(first)" -v b="$(first --cluster "$tmp/slow.yaml")" \
    'BEGIN { exit !(b > 1.2 * a) }'
printf 'like: selene\nlocal: {gb_per_s: fast}\n' >"$tmp/bad.yaml"
fails 1 'bad.yaml:2:19: local.gb_per_s' "$dhelix" validate korthikanti-layer --cluster "$tmp/bad.yaml"
fails 1 'did you mean zero-bubble' "$dhelix" validate zero-buble
fails 1 'did you mean zero-bubble' "$dhelix" validate korthikanti-layer zero-buble
finish
