#!/usr/bin/env bash
# Every public header compiles alone, as C11 and as C++17, with every compiler
# at hand, without warnings.
set -euo pipefail
cd "$(dirname "$0")/.."

warnings=(-Wall -Wextra -Wshadow -Wno-unused-parameter -Werror)
failed=0
check() { # compiler, language, standard, header
    # Through an including file, so that static inline functions are not "unused".
    printf '#include "%s"\n' "${4#include/}" |
        "$1" -x "$2" -std="$3" "${warnings[@]}" -Iinclude -fsyntax-only - || {
        echo "check_headers: $4 does not compile alone as $3 with $1" >&2
        failed=1
    }
}
for header in include/dhelix/*.h; do
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null && check "$compiler" c c11 "$header"
    done
    for compiler in g++ clang++; do
        command -v "$compiler" >/dev/null && check "$compiler" c++ c++17 "$header"
    done
done
exit $failed
