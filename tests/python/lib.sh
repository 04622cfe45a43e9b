# Shared by the scripts of this folder, each of which is run as
#   bash tests/python/NAME.sh BUILD_FOLDER PATH_OF_DHELIX
# from the repository root.
set -euo pipefail
build=$1
export DHELIX=$2
export DHELIX_LOG=warn OMP_WAIT_POLICY=passive
export DHELIX_GEMM_PEAK=1e11 # a trial takes half a second of every run
root=$PWD
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dhelix-python-XXXXXX")
trap 'rm -rf "$tmp"' EXIT

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}
command -v python3 >/dev/null || fail "python3 is missing: scripts/install_deps.sh --dev"

# A clean virtual environment in $tmp/venv; pip fetches nothing.
environment() {
    python3 -m venv "$tmp/venv" >"$tmp/log" 2>&1 ||
        fail "no virtual environment (python3-venv: scripts/install_deps.sh --dev): $(tail -3 "$tmp/log")"
}
# Arguments of pip install.
install() {
    "$tmp/venv/bin/pip" install --quiet --no-index "$@" >"$tmp/log" 2>&1 || fail "pip install $*: $(tail -20 "$tmp/log")"
}
# Outside the tree, so that what is imported is what was installed.
inside() {
    (cd "$tmp" && env -u PYTHONPATH "$tmp/venv/bin/python" "$@")
}
