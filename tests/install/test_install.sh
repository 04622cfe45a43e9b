#!/usr/bin/env bash
# test_install.sh <cmake> <build folder> <compiler and flags>
#
# What `cmake --install` leaves is complete: the program runs, a program outside the
# project compiles through pkg-config and links the shared and the static library, the
# manual page formats without a warning and knows the settings.
set -euo pipefail
cmake=$1
build=$2
read -ra compile <<<"$3"
here=$PWD
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

fail() {
    echo "test_install: $*" >&2
    exit 1
}
"$cmake" --install "$build" --prefix "$prefix" >"$prefix.log" || fail "$(cat "$prefix.log")"
rm -f "$prefix.log"
cd "$prefix"

bin/dhelix --version | grep -q '^dhelix [0-9]' || fail "the installed program does not run"

pc=$(find "$prefix" -name dhelix.pc)
[ -n "$pc" ] || fail "dhelix.pc is not installed"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$pc")
lib=$(pkg-config --variable=libdir dhelix)
read -ra cflags < <(pkg-config --cflags dhelix)
read -ra shared < <(pkg-config --libs dhelix)
# Of the libraries below ours only the shared ones need be there: no --static.
read -ra packages < <(pkg-config --variable=private_packages dhelix)
read -ra static < <(echo "$lib/libdhelix.a" "$(pkg-config --variable=private_libs dhelix)" \
    "$(pkg-config --libs "${packages[@]}")")

check() { # program
    local out
    out=$(LD_LIBRARY_PATH=$lib "$1") || fail "$1 failed"
    # GPT-2 small has 124,439,808 parameters; a wrong key is answered with the right one.
    local want
    for want in 124439808 '5 bytes' '512 tokens on 4 ranks' 'DH_EINVAL, invalid input: .*trian.*train.*'; do
        grep -qx "$want" <<<"$out" || fail "$1 printed: $out"
    done
}
"${compile[@]}" -std=c11 -Wall -Werror "${cflags[@]}" "$here/consumer.c" -o with_shared "${shared[@]}"
check ./with_shared
"${compile[@]}" -std=c11 "${cflags[@]}" "$here/consumer.c" -o with_static "${static[@]}"
check ./with_static
# The program of the documentation is one.
awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' "$here/../../docs/library.md" >example.c
grep -q '^int main' example.c || fail "docs/library.md has no program"
"${compile[@]}" -std=c11 -Wall -Wextra -Werror "${cflags[@]}" example.c -o example "${shared[@]}"
LD_LIBRARY_PATH=$lib ./example 2>message && fail "the example ran without its job file"
grep -q 'job.yaml' message || fail "the example said: $(cat message)"
# The shared library shows what the headers declare, and nothing else.
diff <(sed -n 's/^DH_API .*\<\(dh_[a-z0-9_]*\)(.*/\1/p' include/dhelix/*.h | sort) \
    <(nm -D --defined-only "$lib/libdhelix.so" | sed 's/.* //' | sort) >symbols ||
    fail "functions of the headers (<) and of libdhelix.so (>): $(cat symbols)"
# Variables of the process: those that docs/library.md tells of, and the compiler's own.
objdump -t "$lib/libdhelix.so" | awk '/\.(data|bss|tdata|tbss)\t/ && $NF !~ /^[._]/ {print $NF}' |
    sed 's/\.[0-9]*$//; s/.*\.//' | sort -u >variables
for variable in $(grep -vx completed variables); do
    grep -q "\`$variable\`" "$here/../../docs/library.md" || fail "docs/library.md does not list the variable $variable"
done
[ "$(wc -l <variables)" -gt 10 ] || fail "libdhelix.so has no symbols to look at"
ldd with_static | grep -q libdhelix && fail "with_static still needs libdhelix.so"

page=$(find "$prefix" -name dhelix.1)
grep -q 'train.seq_len' "$page" || fail "the manual page lacks the settings"
if command -v man >/dev/null; then
    warnings=$(LC_ALL=C.UTF-8 MANWIDTH=120 man --warnings -l "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "the manual page: $warnings"
fi
[ -f "$(find "$prefix" -name quickstart.yaml)" ] || fail "the examples are missing"
echo "installed, compiled, linked and ran"
