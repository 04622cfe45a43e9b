#!/usr/bin/env bash
# Prints the path of nvcc, if need be of one that is installed into build/cuda-compiler from Python
# packages. Nothing printed and status 1: there is none to be had, and why, on stderr.
set -euo pipefail
cd "$(dirname "$0")/.."

for nvcc in nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if command -v "$nvcc"; then exit 0; fi
done

# Of one release: what a later one warns of is no fault of the kernels.
packages=(nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl)
into=$PWD/build/cuda-compiler
find_nvcc() { find "$into" -path '*/bin/nvcc' -type f 2>/dev/null | head -n1; }
if [ -z "$(find_nvcc)" ]; then
    mkdir -p build
    if ! { python3 -m venv "$into" &&
        "$into/bin/pip" -q install "${packages[@]/%/==13.0.*}"; } >build/cuda-compiler.log 2>&1; then
        echo "cuda_compiler: no nvcc here, and its Python packages cannot be installed (build/cuda-compiler.log)" >&2
        exit 1
    fi
fi
nvcc=$(find_nvcc)
[ -n "$nvcc" ] || {
    echo "cuda_compiler: the packages hold no nvcc" >&2
    exit 1
}
chmod +x "$nvcc"
echo "$nvcc"
