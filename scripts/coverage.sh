#!/usr/bin/env bash
# Which lines of src/ the release tests run: those of a plain ./test.sh, or with all cases.
#
#   scripts/coverage.sh         the tests of a plain run; then lines, share and the files least covered
#   scripts/coverage.sh --deep  the further cases and suites of ./test.sh --full, on top of what was run before
#
# Counters stay in build/coverage: --deep after a plain run runs only suites that have more to do.
# About ten minutes each on two cores. Needs gcovr (installed when it is missing).
source "$(dirname "$0")/env.sh"

deep=false
case ${1:-} in
    "") ;;
    --deep) deep=true ;;
    *) die "unknown option $1 (--deep)" ;;
esac
command -v gcovr >/dev/null || apt-get install -y -qq gcovr >/dev/null
export OMP_WAIT_POLICY=passive

# lines <name>: sum up the counters; the list of files goes to build/coverage/NAME.txt.
lines() {
    gcovr --root . --filter src/ --object-directory build/coverage --gcov-ignore-parse-errors -j "$jobs" \
        --exclude-throw-branches --json "build/coverage/$1.json" --txt "build/coverage/$1.txt" build/coverage
    printf '%s: ' "$1"
    grep '^TOTAL' "build/coverage/$1.txt"
}

build coverage || exit 1
if $deep; then
    export DHELIX_TEST_DEEP=1
    # Suites that ask whether to leave cases out, and those labelled deep.
    mapfile -t thin < <(grep -lE 'test_(is_short|is_thin|is_slow|takes|stride)|DHELIX_TEST_DEEP' -r tests --include='*.c' --include='*.sh' |
        sed -E 's|.*/||; s|\.[a-z]+$||' | grep -vE '^(dh_test|lib)$')
    pattern=$(IFS='|'; echo "${thin[*]}")
    ctest --test-dir build/coverage -LE '^full$' -R "$pattern|^cli_" -j 3 | tail -3
    ctest --test-dir build/coverage -L '^deep$' -LE '^full$' -j 3 | tail -3
    lines deep
else
    find build/coverage -name '*.gcda' -delete
    ctest --test-dir build/coverage -LE '^(full|deep)$' -j 3 | tail -3
    lines plain
    sort -k4 -n "build/coverage/plain.txt" | grep -E '^src/.*%' | head -20
fi
