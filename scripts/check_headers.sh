#!/usr/bin/env bash
# Every public header compiles alone, as C11 and as C++17, with every compiler at hand, without
# warnings, and shows its functions to callers (DH_API). No folder of src includes a later one.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
fail() {
    echo "check_headers: $*" >&2
    failed=1
}

warnings=(-Wall -Wextra -Wshadow -Wno-unused-parameter -Werror)
check() { # compiler, language, standard, header
    # Through an including file, so that static inline functions are not "unused".
    printf '#include "%s"\n' "${4#include/}" |
        "$1" -x "$2" -std="$3" "${warnings[@]}" -Iinclude -fsyntax-only - ||
        fail "$4 does not compile alone as $3 with $1"
}
for header in include/dhelix/*.h; do
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null && check "$compiler" c c11 "$header"
    done
    for compiler in g++ clang++; do
        command -v "$compiler" >/dev/null && check "$compiler" c++ c++17 "$header"
    done
    ! grep -HnE '^[a-z][a-z0-9_ *]*\<dh_[a-z0-9_]+\(' "$header" | grep -vE ':(typedef|static) ' ||
        fail "a function of $header is not DH_API"
done

# A header belongs to the longest layer that its path begins with.
read -ra layers <<<"$(tr '\n' ' ' <CMakeLists.txt | sed 's/.*set(DH_LAYERS \([^)]*\)).*/\1/')"
[ ${#layers[@]} -gt 10 ] || fail "CMakeLists.txt has no list of layers"
later=""
for ((i = ${#layers[@]} - 1; i >= 0; i--)); do
    layer=${layers[i]}
    if [ -n "$later" ]; then
        ! grep -HnE "^#include \"($later)/[a-z0-9_]+\.(h|def)\"" "src/$layer"/*.[ch] ||
            fail "src/$layer includes a folder that comes after it"
    fi
    later="$later${later:+|}$layer"
done
exit $failed
