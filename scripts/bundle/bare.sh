#!/usr/bin/env bash
# Tries a bundle where there is nothing: a root folder with a static busybox and the unpacked archive,
# no C library, no network (unshare, chroot). Takes root, or user namespaces.
#
#   scripts/bundle/bare.sh ARCHIVE [BUSYBOX]     BUSYBOX: a static one, as Debian's busybox-static has
#
# Status 77: the machine has no busybox, or lets nobody change roots.
set -euo pipefail
archive=$(realpath "${1:?bare.sh ARCHIVE [BUSYBOX]}")
busybox=${2:-$(command -v busybox || true)}
[ -n "$busybox" ] && [ -x "$busybox" ] || { echo "bare.sh: not run: there is no busybox" >&2; exit 77; }
! ldd "$busybox" >/dev/null 2>&1 || { echo "bare.sh: not run: $busybox is not static" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bare=$work/root
mkdir -p "$bare"/{bin,proc,sys,tmp,dev,noexec}
cp "$busybox" "$bare/bin/busybox"
for applet in sh tar gzip gunzip sed cat ls readlink uname mkdir rm grep head tail wc date env tr ip; do ln -s busybox "$bare/bin/$applet"; done
cp "$archive" "$bare/tmp/bundle.tar.gz"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(--map-root-user)
unshare "${as_root[@]}" --net --mount --pid --fork true 2>/dev/null || { echo "bare.sh: not run: no namespaces here" >&2; exit 77; }

cat >"$bare/tmp/try.sh" <<'EOF'
set -e
cd /tmp
tar xzf bundle.tar.gz
cd dhelix-*
echo "files of this root but the bundle's: $(ls / | tr '\n' ' ' 2>/dev/null || ls /)"
ls /lib /lib64 /usr /etc 2>&1 | sed 's/^/  /' || true
echo "network: $(ip -o addr show up 2>/dev/null | wc -l) addresses"
say() { echo "\$ $*"; "$@" 2>&1 | tail -n 6; }
say bin/dhelix --version
say bin/dhelix list devices
say bin/dhelix check examples/tp2.yaml --quiet
say bin/dhelix train examples/quickstart.yaml --quiet --set train.steps=3 --set eval.every=0 --set out=/tmp/run
grep -o '"step":[0-9]*,"loss":[0-9.]*' /tmp/run/metrics.jsonl
say bin/dhelix sample /tmp/run --prompt "To be" --tokens 8
grep -q '"step":3,' /tmp/run/metrics.jsonl
[ ! -e bin/cuda-libs ] || say bin/cuda-libs
if [ -e gpu_check.sh ]; then
    echo '$ ./gpu_check.sh --small --parts "machine kernels" --out /tmp/check'
    ./gpu_check.sh --small --parts "machine kernels" --out /tmp/check || true
    grep -q 'the machine has no GPU' /tmp/check/results.md
    cd /noexec
    tar xzf /tmp/bundle.tar.gz
    cd dhelix-*
    echo '$ sh gpu_check.sh, on a file system that is mounted noexec'
    ! sh gpu_check.sh 2>/tmp/noexec || exit 1
    cat /tmp/noexec
    grep -q 'not noexec' /tmp/noexec
fi
echo "bare.sh: all of it ran"
EOF
unshare "${as_root[@]}" --net --mount --pid --fork bash -c '
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys" || true
    mount -t tmpfs -o noexec tmpfs "$1/noexec"
    for file in null urandom zero; do touch "$1/dev/$file"; mount --bind "/dev/$file" "$1/dev/$file"; done
    chroot=$(command -v chroot || echo /usr/sbin/chroot)
    exec env -i PATH=/bin HOME=/tmp "$chroot" "$1" /bin/sh /tmp/try.sh' _ "$bare"
