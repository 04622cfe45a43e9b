#!/usr/bin/env bash
# Install what dhelix needs on Debian 12.
#
#   scripts/install_deps.sh           build and run
#   scripts/install_deps.sh --dev     also tests, sanitizers, fuzzing, static analysis
#   scripts/install_deps.sh --peers   also the programs bench/ compares with
#   scripts/install_deps.sh --list    only print the names (with the flags above)
#
# Asks dpkg first: when everything is there, nothing touches the network and no
# rights are needed.
set -euo pipefail

packages=(
    build-essential cmake ninja-build pkg-config
    libdnnl-dev                     # GEMM kernels (oneDNN)
    libopenmpi-dev openmpi-bin      # ranks as processes
    libyaml-dev                     # job files
    libjansson-dev                  # config.json, safetensors headers, metrics
    libpcre2-dev libutf8proc-dev    # tokenizers
    libhwloc-dev                    # topology
    libxxhash-dev                   # checksums
    zlib1g-dev libzstd-dev          # compressed texts
    libcmocka-dev                   # tests
)
dev_packages=(
    clang clang-format clang-tidy clang-tools cppcheck
    libclang-rt-14-dev llvm         # libFuzzer, symbolised sanitizer reports
    libomp-dev                      # OpenMP under clang
    python3 man-db iproute2 ccache
    python3-dev python3-venv        # the Python package, in an environment of its own
    chromium-headless-shell         # the pages of `dhelix report`; 100 MB to fetch
)
peer_packages=(python3-torch libopenblas0-openmp)

list_only=false
for arg in "$@"; do
    case $arg in
        --dev) packages+=("${dev_packages[@]}") ;;
        --peers) packages+=("${peer_packages[@]}") ;;
        --list) list_only=true ;;
        *)
            echo "install_deps.sh: unknown option $arg (--dev, --peers, --list)" >&2
            exit 2
            ;;
    esac
done
if $list_only; then
    printf '%s\n' "${packages[@]}"
    exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install_deps.sh: this is not a Debian system; install the equivalents of:" >&2
    printf '  %s\n' "${packages[@]}" >&2
    exit 1
fi

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | head -n1)" = installed ]
}
missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "install_deps.sh: neither root nor sudo; run this as root:" >&2
        echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Quiet when it works, everything when it does not.
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >"$log" 2>&1
}
echo "installing: ${missing[*]}"
# A fresh image has no package lists; an old one has outdated ones.
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
    cat "$log" >&2
    echo "install_deps.sh: apt-get failed (above)" >&2
    exit 1
fi
