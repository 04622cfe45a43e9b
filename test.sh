#!/usr/bin/env bash
# Build and test everything, from a clean clone on a bare Debian 12.
#
#   ./test.sh            release tests; the shorter ones again under address+undefined and thread
#                        sanitizers
#   ./test.sh --quick    release tests only
#   ./test.sh --ci       also those labelled "deep", published tables, and those labelled "long" under
#                        sanitizers
#   ./test.sh --full     also the tests labelled "full", all cases of every suite, fresh seeds, and 5 minutes
#                        of fuzzing a target
#   ./test.sh --no-install   do not install missing packages
#
# Logs lie in build/. The last line counts what passed and failed; the exit
# status is 0 only when nothing failed.
source "$(dirname "$0")/scripts/env.sh"

quick=false
ci=false
full=false
install=true
for arg in "$@"; do
    case $arg in
        --quick) quick=true ;;
        --ci) ci=true ;;
        --full) full=true ;;
        --no-install) install=false ;;
        *) die "unknown option $arg (--quick, --ci, --full, --no-install)" ;;
    esac
done
skip_labels='^(full|deep)$'
skip_sanitized='^(full|deep|long)$'
if $ci; then
    skip_labels='^full$'
    skip_sanitized='^(full|deep)$'
    export DHELIX_TEST_TABLES=1
fi
# Under the address sanitizer; fuzzing replays its seeds under the same ones.
skip_asan='^(install|browser)$'
! $full || skip_asan='^(install|browser|fuzz)$'
# Under the thread sanitizer; suites on the ranks, links and streams of others only with --full.
skip_threads='^(mpi|same-threads)$'
# What is built for the sanitizers: what they run.
sanitized_tests=short_tests
thread_tests=short_thread_tests
if $ci || $full; then
    sanitized_tests=all
    thread_tests=thread_tests
fi
if $full; then
    export DHELIX_TEST_DEEP=1
    skip_labels='^$'
    export DHELIX_TEST_FRESH=1
    skip_sanitized=$skip_labels
    skip_threads='^mpi$'
fi

passed=0
failed=0
failures=()
count() { # passed, failed, what
    passed=$((passed + $1))
    failed=$((failed + $2))
    [ "$2" -eq 0 ] || failures+=("$3")
}

# run_ctest <preset> <ctest options>: run and count the tests of build/<preset>.
run_ctest() {
    local preset=$1 log=build/$1.ctest.log summary
    shift
    # Three at a time keep two cores busy: some wait for a disk, a launcher or a timeout.
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j 3 "$@" 2>&1 |
        tee "$log" | grep -vE '^ *Start' || true
    # "97% tests passed, 2 tests failed out of 70"
    summary=$(grep -E '^[0-9]+% tests passed' "$log" || true)
    if [[ $summary =~ ([0-9]+)\ tests?\ failed\ out\ of\ ([0-9]+) ]]; then
        count $((BASH_REMATCH[2] - BASH_REMATCH[1])) "${BASH_REMATCH[1]}" "ctest $preset ($log)"
    else
        count 0 1 "ctest $preset ran no tests ($log)"
    fi
}

# Tests share the cores: threads of a loop that wait for each other sleep, where they would spin.
export OMP_WAIT_POLICY=passive
# The suppression files name third-party libraries only.
export LSAN_OPTIONS="suppressions=$root/scripts/lsan.supp:print_suppressions=0"
# Not detect_stack_use_after_return: gcc 12 misaligns 64-byte vectors on its fake stack
# (GCC bug 110027), and the AVX-512 kernels crash.
export ASAN_OPTIONS="strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="suppressions=$root/scripts/tsan.supp:halt_on_error=1:second_deadlock_stack=1"

test_release() {
    say "release: build and test"
    if build release; then run_ctest release -LE "$skip_labels"; else count 0 1 "build release"; fi
}

test_asan() {
    say "address and undefined-behaviour sanitizers"
    if ! build asan "$sanitized_tests"; then
        count 0 1 "build asan"
        return
    fi
    run_ctest asan -LE "$skip_sanitized|$skip_asan"
}

test_tsan() {
    # libgomp is not instrumented: its barriers look like races, so one OpenMP
    # thread per rank; the threads under test are ranks, streams and loaders.
    say "thread sanitizer"
    if ! build tsan "$thread_tests"; then
        count 0 1 "build tsan"
        return
    fi
    # The limit holds even where the program asks for more.
    OMP_THREAD_LIMIT=1 run_ctest tsan -L '^(tsan|comm)$' -LE "$skip_sanitized|$skip_threads"
}

# fuzz_one <executable>: 5 minutes from the seeds, with a fresh seed; new inputs stay in build/.
fuzz_one() {
    local name work log
    name=$(basename "$1")
    work=build/fuzz/work/$name
    log=build/fuzz/$name.log
    mkdir -p "$work"
    if "$1" -seed=0 -max_total_time=300 -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="$work/crash-" "$work" "fuzz/corpus/${name#fuzz_}" >"$log" 2>&1; then
        echo "  $name: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs, no finding"
        count 1 0 "$name"
    else
        tail -40 "$log"
        count 0 1 "$name ($log)"
    fi
}

test_fuzz() {
    say "fuzzing, 5 minutes a target"
    if ! command -v clang >/dev/null || ! build fuzz fuzzers; then
        count 0 1 "build fuzz"
        return
    fi
    local target
    for target in build/fuzz/fuzz/fuzz_*; do
        if [ -f "$target" ] && [ -x "$target" ]; then fuzz_one "$target"; fi
    done
}

if $install; then
    say "dependencies"
    scripts/install_deps.sh --dev
fi
test_release
if ! $quick; then
    test_asan
    test_tsan
    if $full; then test_fuzz; fi
fi

say "summary"
for failure in "${failures[@]}"; do echo "failed: $failure"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
