#!/usr/bin/env bash
# test_deb.sh <build folder>: the Debian package is whole: it unpacks, its program runs with its own
# library's files in place, it names what it depends on, and its checksums are right.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test_deb: $*" >&2
    exit 1
}
"$here/scripts/deb.sh" "$build" "$work" >"$work/said" || fail "scripts/deb.sh failed"
deb=$(cat "$work/said")
[ -f "$deb" ] || fail "no package at $deb"
dpkg-deb -x "$deb" "$work/root"
dpkg-deb -e "$deb" "$work/control"
(cd "$work/root" && md5sum --quiet -c "$work/control/md5sums") || fail "checksums"
"$work/root/usr/bin/dhelix" --version | grep -q '^dhelix [0-9]' || fail "the program does not run"
for package in libc6 libjansson4 libyaml-0-2 libzstd1 zlib1g; do
    dpkg-deb -f "$deb" Depends | grep -qw "$package" || fail "it does not depend on $package"
done
for file in bin/dhelix include/dhelix/dhelix.h share/man/man1/dhelix.1.gz share/doc/dhelix/copyright \
    share/doc/dhelix/examples/slurm/mpi.sbatch share/bash-completion/completions/dhelix; do
    [ -f "$work/root/usr/$file" ] || fail "no usr/$file"
done
[ -z "$(find "$work/root" -perm /022 -not -type l)" ] || fail "files that others may write"
