#!/usr/bin/env bash
# A Debian package of a build: the program, the library with its headers, manual page, completions,
# documents.
#
#   scripts/deb.sh [BUILD [FOLDER]]     build/release -> build/dhelix_VERSION_ARCH.deb
#
# What it depends on is found in the files themselves (dpkg-shlibdeps), so it installs where it was
# built and on later releases of the same distribution.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build/release}")
mkdir -p "${2:-build}"
folder=$(realpath "${2:-build}")
[ -f "$build/CMakeCache.txt" ] || {
    echo "deb.sh: $build is no build: cmake --preset release && cmake --build --preset release first" >&2
    exit 1
}
version=$(sed -n 's/^project(dhelix VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022

DESTDIR=$root cmake --install "$build" --prefix /usr >"$work/log" || {
    cat "$work/log" >&2
    exit 1
}
strip --strip-unneeded "$root/usr/bin/dhelix" "$root"/usr/lib/libdhelix.so.*.*.*
strip --strip-debug "$root/usr/lib/libdhelix.a"
gzip -9n "$root/usr/share/man/man1/dhelix.1"
mkdir -p "$root/DEBIAN" "$work/debian"
mv "$root/usr/share/doc/dhelix/LICENSE" "$root/usr/share/doc/dhelix/copyright"

# dpkg-shlibdeps wants a source package around it.
printf 'Source: dhelix\n\nPackage: dhelix\nArchitecture: %s\n' "$arch" >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info -l"$root/usr/lib" \
    root/usr/bin/dhelix root/usr/lib/libdhelix.so.*.*.* 2>"$work/log") || {
    cat "$work/log" >&2
    exit 1
}
cat >"$root/DEBIAN/control" <<CONTROL
Package: dhelix
Version: $version
Architecture: $arch
Maintainer: dhelix <dhelix@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: ${depends#shlibs:Depends=}
Section: science
Priority: optional
Description: trains transformer language models on many ranks
 Plans, simulates and runs training steps in which communication between
 ranks is hidden behind computation. A program and a C library.
CONTROL
echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
deb=$folder/dhelix_${version}_$arch.deb
dpkg-deb --build --root-owner-group "$root" "$deb" >"$work/log"
echo "$deb"
