#!/usr/bin/env bash
# Prints the path of nvcc, if need be of one that is installed into build/cuda-compiler from Python
# packages, with the libraries that device cuda is linked with beside it. Nothing printed and status 1:
# there is none to be had, and why, on stderr. Without those libraries it says so there.
set -euo pipefail
cd "$(dirname "$0")/.."

for nvcc in nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if command -v "$nvcc"; then exit 0; fi
done

# Of one release: what a later one warns of is no fault of the kernels. cuBLASLt and NCCL as they were
# beside it; they are large, and their own dependences are for running alone.
packages=(nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl)
libraries=('nvidia-cublas==13.1.*' 'nvidia-nccl-cu13==2.28.*')
into=$PWD/build/cuda-compiler
log=build/cuda-compiler.log
find_nvcc() { find "$into" -path '*/bin/nvcc' -type f 2>/dev/null | head -n1; }
has_libraries() { [ -n "$(find "$into" -name 'libcublasLt.so*' 2>/dev/null)" ] && [ -n "$(find "$into" -name 'libnccl.so*' 2>/dev/null)" ]; }
if [ -z "$(find_nvcc)" ]; then
    mkdir -p build
    if ! { python3 -m venv "$into" &&
        "$into/bin/pip" -q install "${packages[@]/%/==13.0.*}"; } >$log 2>&1; then
        echo "cuda_compiler: no nvcc here, and its Python packages cannot be installed ($log)" >&2
        exit 1
    fi
fi
if ! has_libraries && ! "$into/bin/pip" -q install --no-deps "${libraries[@]}" >>$log 2>&1; then
    echo "cuda_compiler: ${libraries[*]} cannot be installed ($log): device cuda cannot be linked" >&2
fi
nvcc=$(find_nvcc)
[ -n "$nvcc" ] || {
    echo "cuda_compiler: the packages hold no nvcc" >&2
    exit 1
}
chmod +x "$nvcc"
echo "$nvcc"
