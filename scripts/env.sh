# Sourced by quickstart.sh, test.sh and .ci/run: a known environment on a bare
# machine (no HOME, no TERM, root in a container), and three small helpers.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

export LC_ALL=C.UTF-8
export TERM=${TERM:-dumb}
export HOME=${HOME:-/tmp}
jobs=${DHELIX_JOBS:-$(nproc)}

# Open MPI: as root in a container, more ranks than cores, no core binding (ranks
# of several tests would be bound to the same core), no cross-memory attach
# (refused by the default container seccomp profile).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl_vader_single_copy_mechanism=none

# What was compiled once, in this clone or another, need not be compiled again.
use_ccache() {
    local dir
    dir=$(ccache --get-config cache_dir 2>/dev/null) && mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] || return 0
    export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
}
use_ccache

say() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}
# build <preset> [target]: configure (also with the options in DHELIX_CMAKE) and build in build/<preset>, quietly.
build() {
    local preset=$1 target=${2:-all} log=build/$1.log options
    read -ra options <<<"${DHELIX_CMAKE:-}"
    mkdir -p build
    if cmake --preset "$preset" "${options[@]}" >"$log" 2>&1 &&
        cmake --build "build/$preset" --target "$target" -j "$jobs" >>"$log" 2>&1; then
        return 0
    fi
    # Ninja prints what failed in the middle, the count at the end.
    grep -nE '(error|Error|FAILED|undefined reference)' "$log" | head -40 >&2 || true
    tail -20 "$log" >&2
    printf 'building preset %s failed; whole log: %s\n' "$preset" "$log" >&2
    return 1
}
